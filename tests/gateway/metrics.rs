//! Tests of `GET /metrics`: the values are correct, `docs/metrics.md` documents every metric, and callers cannot create
//! series.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::{Command, Stdio},
};

use tokio::time::Instant;
use tollgate::{
    Gateway,
    config::Config,
    demo::{script, vendor::ScriptedVendor},
};
use tollgate_layers::reserve::Event;

use crate::{
    edge::Edge,
    logins::{login_at, token_endpoint},
    prelude::*,
    price_rules::with_rules,
    secrets::Folder,
};

const CHAT: &str = "path=\"/v1/chat/completions\"";
const MESSAGES: &str = "path=\"/v1/messages\"";

/// The metrics of one scrape, parsed from the classic text format.
#[derive(Clone, Debug, PartialEq)]
pub struct Scrape {
    /// The type of each metric, by its name.
    types: BTreeMap<String, String>,
    /// The value of each series, by its name and labels as they are written.
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    fn parse(text: &str) -> Self {
        let (mut types, mut samples) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines() {
            if let Some(typed) = line.strip_prefix("# TYPE ") {
                let (name, kind) = typed.split_once(' ').unwrap();
                let before = types.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "{name} twice");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let before = samples.insert(series.to_owned(), value.parse().unwrap());
                assert_eq!(before, None, "{series} twice");
            }
        }
        Self { types, samples }
    }

    /// Returns the value of a series; 0 if the scrape does not contain the series.
    fn get(&self, series: &str) -> f64 {
        self.samples.get(series).copied().unwrap_or_default()
    }

    /// Returns the label names of a metric's series, without the label `le` of histograms.
    fn labels(&self, name: &str, kind: &str) -> BTreeSet<String> {
        let name = match kind {
            "histogram" => format!("{name}_count"),
            _ => name.to_owned(),
        };
        let mut labels = BTreeSet::new();
        for series in self.samples.keys() {
            let Some(rest) = series.strip_prefix(name.as_str()) else {
                continue;
            };
            let Some(pairs) = rest.strip_prefix('{') else {
                continue;
            };
            labels.extend(pairs.split("\",").map(|pair| {
                let (label, _) = pair.split_once('=').unwrap();
                label.to_owned()
            }));
        }
        labels
    }
}

/// Scrapes the metrics without a key. Returns the content type and the text.
async fn text(world: &World, accept: &str) -> (String, String) {
    let url = format!("http://{}/metrics", world.gateway.admin_address().unwrap());
    let headers = [("accept", accept)];
    let answer = world
        .ask(request(Method::GET, &url, &headers, Bytes::new()))
        .await
        .expect(200);
    let kind = answer.headers["content-type"].to_str().unwrap().to_owned();
    (kind, answer.text())
}

async fn scrape(world: &World) -> Scrape {
    let (kind, text) = text(world, "*/*").await;
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    Scrape::parse(&text)
}

/// Repeats scrapes until these series have these values, and returns the last scrape. Several scrapes may be needed,
/// because a call is counted only after its response.
pub async fn shows(world: &World, expected: &[(&str, f64)]) -> Scrape {
    let mut last = None;
    let seen = tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            let scrape = scrape(world).await;
            if expected
                .iter()
                .all(|(series, value)| scrape.get(series) == *value)
            {
                return scrape;
            }
            last = Some(scrape);
            tokio::task::yield_now().await;
        }
    })
    .await;
    seen.unwrap_or_else(|_| {
        let last = last.unwrap();
        let wrong: Vec<_> = expected
            .iter()
            .filter(|(series, value)| last.get(series) != *value)
            .map(|(series, value)| format!("{series}: {} and not {value}", last.get(series)))
            .collect();
        panic!("{}", wrong.join("\n"));
    })
}

fn says(world: &World, op: Op, input: u64, output: u64) {
    world.vendor_sends(plain_reply(op, "да", input, output));
}

/// Returns the rows of the tables in `docs/metrics.md`: the name, type and labels of each metric.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let text = include_str!("../../docs/metrics.md");
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, _] = cells.as_slice() else {
            return None;
        };
        let name = name.strip_prefix('`')?.strip_suffix('`')?.to_owned();
        let labels = labels.split(", ").filter(|label| !label.is_empty());
        Some((
            name,
            ((*kind).to_owned(), labels.map(str::to_owned).collect()),
        ))
    });
    rows.collect()
}

#[tokio::test]
async fn documented_metrics_equal_those_of_a_scrape() {
    let route = "model = \"vendor-chat-1\" }";
    let cost = "{ input = \"1\", cached_input = \"1\", output = \"1\", cache_write = \"1\" }";
    let with_cost = format!("model = \"vendor-chat-1\", cost_usdt_mtok = {cost} }}");
    let hook = "[[webhook]]\nname = \"w\"\nurl = \"https://hooks.example/\"\nsecrets = [\"${WEBHOOK_SECRET}\"]\n[ledger]";
    let (name, endpoint) = ("name = \"chat-vendor\"\n", token_endpoint().await);
    let login = format!("{name}{}\n", login_at(&endpoint));
    let setup = Setup::default().edit(route, &with_cost).edit(name, &login);
    let world = setup.edit("[ledger]", hook).start().await;
    // The metric about a vendor's token exists only after the first call.
    says(&world, Op::Chat, 9, 2);
    let key = world.key().await;
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);
    // A series of refusals with a code exists only after the first refusal with this code.
    world.get("/v1/models", &[]).await.expect(401);
    let scrape = scrape(&world).await;
    let shown: BTreeMap<_, _> = scrape
        .types
        .iter()
        .map(|(name, kind)| (name.clone(), (kind.clone(), scrape.labels(name, kind))))
        .collect();
    assert_eq!(shown, documented());
    assert!(shown.len() >= 37, "{}", shown.len());
}

#[tokio::test]
async fn prometheus_can_parse_the_metrics() {
    let (world, key) = World::start_with_key().await;
    says(&world, Op::Chat, 9, 2);
    world.chat(&key, &chat_body("x")).await;
    world.get("/v1/nowhere", &[]).await;
    let (kind, open) = text(
        &world,
        "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
    )
    .await;
    assert_eq!(
        kind,
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
    has(&open, "# TYPE tollgate_requests counter\n");

    let (_, classic) = text(&world, "*/*").await;
    assert!(!classic.contains("# EOF"), "{classic}");
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Ok(promtool) => promtool,
        Err(error) => {
            println!("skipped: promtool (package prometheus) cannot be run: {error}");
            return;
        }
    };
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(classic.as_bytes()).unwrap();
    drop(stdin);
    let output = promtool.wait_with_output().unwrap();
    let reported =
        String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{reported}");
    assert!(reported.trim().is_empty(), "{reported}");
}

#[tokio::test]
async fn metrics_count_calls_by_end_reason_and_count_their_tokens_and_rubles() {
    let (world, key) = World::start_with_key().await;
    says(&world, Op::Chat, 9, 2);
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);
    world.vendor_sends(Reply::stream(events(Op::Messages, &["да"], 9, 2)));
    let body = with(Op::Messages.body("x"), json!({ "stream": true }));
    assert_eq!(world.messages(&key, &body).await.status, 200);
    let scrape = shows(
        &world,
        &[
            (&format!("tollgate_requests_total{{{CHAT},status=\"200\"}}"), 1.0),
            (&format!("tollgate_requests_total{{{MESSAGES},status=\"200\"}}"), 1.0),
            ("tollgate_calls_total{model=\"chat\",vendor=\"chat-vendor\",end=\"finished\"}", 1.0),
            ("tollgate_calls_total{model=\"messages\",vendor=\"messages-vendor\",end=\"finished\"}", 1.0),
            ("tollgate_tokens_total{model=\"chat\",class=\"input\"}", 9.0),
            ("tollgate_tokens_total{model=\"chat\",class=\"output\"}", 2.0),
            ("tollgate_tokens_total{model=\"messages\",class=\"output\"}", 2.0),
            // A call of the model `chat` costs 9 × 100 + 2 × 200 µ₽. A call of `messages` costs ten times that amount.
            ("tollgate_charged_rubles_total{model=\"chat\"}", 0.0013),
            ("tollgate_charged_rubles_total{model=\"messages\"}", 0.013),
            ("tollgate_loss_rubles_total", 0.0),
            ("tollgate_holds_open", 0.0),
            ("tollgate_hold_oldest_seconds", 0.0),
            ("tollgate_in_flight", 0.0),
            ("tollgate_ready", 1.0),
            ("tollgate_prices_available", 1.0),
            ("tollgate_exchange_rate_rubles", 100.0),
            ("tollgate_exchange_rate_age_seconds", 0.0),
        ],
    )
    .await;
    for path in [CHAT, MESSAGES] {
        for histogram in ["first_byte", "own", "answer"] {
            let series = format!("tollgate_{histogram}_seconds_count{{{path}}}");
            assert_eq!(scrape.get(&series), 1.0, "{series}");
        }
        let own = scrape.get(&format!("tollgate_own_seconds_sum{{{path}}}"));
        let first = scrape.get(&format!("tollgate_first_byte_seconds_sum{{{path}}}"));
        assert!(own > 0.0 && own < first, "{own} {first}");
    }
    for operation in ["find_key", "reserve", "settle"] {
        let series = format!("tollgate_ledger_seconds_count{{operation=\"{operation}\"}}");
        assert_eq!(scrape.get(&series), 2.0, "{series}");
        let series = format!("tollgate_ledger_errors_total{{operation=\"{operation}\"}}");
        assert_eq!(scrape.get(&series), 0.0, "{series}");
    }
    for vendor in ["chat-vendor", "messages-vendor"] {
        let series = format!("tollgate_vendor_head_seconds_count{{vendor=\"{vendor}\"}}");
        assert_eq!(scrape.get(&series), 1.0, "{series}");
    }
    assert!(scrape.get("tollgate_connections") >= 1.0);
    assert!(scrape.get("process_resident_memory_bytes") > 1e6);
    assert!(scrape.get("tollgate_config_loaded_timestamp_seconds") > 1.7e9);
}

#[tokio::test]
async fn metrics_count_refusals_by_status_and_code() {
    let (world, key) = World::start_with_key().await;
    let poor = world.key_with("poor", "0.01", json!({})).await;
    let slow = world
        .another_key("acme", json!({ "requests_per_second": 1 }))
        .await;
    says(&world, Op::Chat, 9, 2);
    let wrong = Key {
        secret: "tg-rubbish".into(),
        ..key.clone()
    };
    let unknown = with(chat_body("x"), json!({ "model": "nothing" }));
    let missing = with(chat_body("x"), json!({ "messages": null }));
    for (key, body, status) in [
        (&wrong, chat_body("x"), 401),
        (&poor, chat_body("x"), 403),
        (&key, unknown, 503),
        (&key, missing, 400),
    ] {
        let refused = world.chat(key, &body).await;
        assert_eq!(refused.status, status, "{refused:?}");
    }
    let mut limited = 0.0;
    for _ in 0..3 {
        match world.chat(&slow, &chat_body("x")).await.status.as_u16() {
            200 => {}
            429 => limited += 1.0,
            other => panic!("{other}"),
        }
    }
    assert!(limited >= 1.0);
    let mut catalog = 0.0;
    for _ in 0..40 {
        if world.get("/v1/tollgate/models", &[]).await.status == 429 {
            catalog += 1.0;
        }
    }
    assert!(catalog >= 1.0);
    world.get("/v1/nowhere?x", &[]).await;
    let chat = |status: u16| format!("tollgate_requests_total{{{CHAT},status=\"{status}\"}}");
    shows(
        &world,
        &[
            (&chat(200), 3.0 - limited),
            (&chat(400), 1.0),
            (&chat(401), 1.0),
            (&chat(403), 1.0),
            (&chat(429), limited),
            (&chat(503), 1.0),
            (
                "tollgate_requests_total{path=\"other\",status=\"404\"}",
                1.0,
            ),
            (
                "tollgate_requests_total{path=\"/v1/tollgate/models\",status=\"429\"}",
                catalog,
            ),
            ("tollgate_refusals_total{code=\"invalid_api_key\"}", 1.0),
            (
                "tollgate_refusals_total{code=\"insufficient_balance\"}",
                1.0,
            ),
            ("tollgate_refusals_total{code=\"model_not_found\"}", 1.0),
            (
                "tollgate_refusals_total{code=\"invalid_request_error\"}",
                1.0,
            ),
            (
                "tollgate_refusals_total{code=\"rate_limit_exceeded\"}",
                limited + catalog,
            ),
            ("tollgate_limited_total{by=\"key\"}", limited),
            ("tollgate_limited_total{by=\"catalog\"}", catalog),
            ("tollgate_limited_total{by=\"address\"}", 0.0),
            ("tollgate_limited_total{by=\"unknown_key\"}", 0.0),
            ("tollgate_shed_total", 0.0),
            ("tollgate_holds_open", 0.0),
        ],
    )
    .await;
}

#[tokio::test]
async fn metrics_count_losses_and_estimates_and_calls_that_cost_more_than_their_hold() {
    let world = World::start().await;
    let rich = world.key().await;
    // The hold counts these 3000 bytes as 2000 tokens, but the vendor may count up to 3000 tokens.
    let dense = Op::Chat.body(&"x".repeat(3000));
    says(&world, Op::Chat, 3000, 100);
    let first = world.chat(&rich, &dense).await;
    let held = micro(&world.receipt(&first.number()).await["held_rub"]);
    let funds = held + 10_000;
    let poor = world.key_with("poor", &rubles(funds), json!({})).await;
    assert_eq!(world.chat(&poor, &dense).await.status, 200);
    world.vendor_sends(Reply::json(200, &answer(Op::Chat, "да", &Value::Null)));
    assert_eq!(world.chat(&rich, &chat_body("x")).await.status, 200);
    // The vendor reports 150 output tokens, but the request allows only 100.
    says(&world, Op::Chat, 9, 150);
    assert_eq!(world.chat(&rich, &chat_body("x")).await.status, 200);
    let loss = f64::from(u32::try_from(320_000 - funds + 50 * 200).unwrap()) / 1e6;
    shows(
        &world,
        &[
            ("tollgate_overruns_total", 2.0),
            ("tollgate_loss_rubles_total", loss),
            ("tollgate_estimated_calls_total", 2.0),
            ("tollgate_bounded_calls_total", 1.0),
        ],
    )
    .await;
}

#[tokio::test]
async fn metrics_count_calls_with_more_input_than_the_prices_cover() {
    let setup = Setup::default().edit(
        "output_tokens_max = 4000",
        "output_tokens_max = 4000\ninput_tokens_priced_max = 2600",
    );
    let (world, key) = setup.start_with_key().await;
    // The hold counts these 3000 bytes as 2000 tokens, and adds 520 tokens for the call. The vendor may count up to
    // 3000 tokens.
    let dense = Op::Chat.body(&"x".repeat(3000));
    for input in [2600, 2601] {
        says(&world, Op::Chat, input, 100);
        let answer = world.chat(&key, &dense).await;
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["usage"]["input"], input, "charged as it is told");
    }
    shows(&world, &[("tollgate_unpriced_input_calls_total", 1.0)]).await;
}

#[tokio::test]
async fn metrics_count_unpriced_calls_and_the_tokens_of_further_rate_classes() {
    let used = json!({ "input_tokens": 9, "output_tokens": 2, "cache_creation_input_tokens": 7,
        "cache_creation": { "ephemeral_1h_input_tokens": 4, "ephemeral_5m_input_tokens": 3 },
        "server_tool_use": { "web_search_requests": 2 } });
    let reported = answer(Op::Messages, "да", &used);
    let of_class =
        |class: &str| format!("tollgate_tokens_total{{model=\"messages\",class=\"{class}\"}}");
    let counted = [
        (of_class("input"), 9.0),
        (of_class("cache_write"), 3.0),
        (of_class("cache_write_1h"), 4.0),
        (of_class("web_search_call"), 2.0),
    ];
    // The first gateway has a price for every rate class. The second gateway has prices only for the four usual
    // classes.
    for (setup, unpriced) in [(with_rules(), 0.0), (Setup::default(), 1.0)] {
        let (world, key) = setup.start_with_key().await;
        world.vendor_sends(Reply::json(200, &reported.clone()));
        // The caller requests no searches, but the call's hold is large enough to pay for them.
        let long = messages_body(&"x".repeat(30_000));
        world.messages(&key, &long).await.expect(200);
        let mut expected: Vec<_> = counted
            .iter()
            .map(|(series, count)| (series.as_str(), *count))
            .collect();
        expected.push(("tollgate_unpriced_calls_total", unpriced));
        shows(&world, &expected).await;
    }
}

#[tokio::test]
async fn metrics_count_vendor_failures_and_show_the_open_breaker() {
    let (world, key) = World::start_with_key().await;
    world.vendor_sends(refusal(500, "x"));
    for _ in 0..5 {
        assert_eq!(world.chat(&key, &chat_body("x")).await.status, 503);
    }
    let breaker = |vendor: &str, model: &str| {
        format!("tollgate_vendor_breaker_open{{vendor=\"{vendor}\",model=\"{model}\"}}")
    };
    shows(
        &world,
        &[
            (
                "tollgate_vendor_failures_total{vendor=\"chat-vendor\"}",
                5.0,
            ),
            (
                "tollgate_vendor_failures_total{vendor=\"messages-vendor\"}",
                0.0,
            ),
            (
                "tollgate_vendor_head_seconds_count{vendor=\"chat-vendor\"}",
                0.0,
            ),
            (&breaker("chat-vendor", "vendor-chat-1"), 1.0),
            (&breaker("messages-vendor", "vendor-messages-1"), 0.0),
            (
                "tollgate_calls_total{model=\"chat\",vendor=\"chat-vendor\",end=\"released\"}",
                5.0,
            ),
            ("tollgate_refusals_total{code=\"vendor_unavailable\"}", 5.0),
            ("tollgate_charged_rubles_total{model=\"chat\"}", 0.0),
        ],
    )
    .await;

    world.vendor_sends(refusal(429, "x").header("retry-after", "2"));
    let body = Op::Messages.body("x");
    assert_eq!(world.messages(&key, &body).await.status, 429);
    world.vendor_sends(refusal(401, "x"));
    assert_eq!(world.messages(&key, &body).await.status, 503);
    shows(
        &world,
        &[
            ("tollgate_limited_total{by=\"vendor\"}", 1.0),
            (
                "tollgate_vendor_failures_total{vendor=\"messages-vendor\"}",
                2.0,
            ),
            (
                "tollgate_vendor_keys_parked{vendor=\"messages-vendor\"}",
                1.0,
            ),
            ("tollgate_vendor_keys_parked{vendor=\"chat-vendor\"}", 0.0),
        ],
    )
    .await;
}

#[tokio::test]
async fn model_unknown_to_its_vendor_has_a_metric_and_does_not_count_as_a_vendor_failure() {
    let (world, key) = World::start_with_key().await;
    let unknown = |vendor: &str, model: &str| {
        format!("tollgate_vendor_model_unknown{{vendor=\"{vendor}\",model=\"{model}\"}}")
    };
    let chat = unknown("chat-vendor", "vendor-chat-1");
    world.vendor_sends(refusal(404, "no such model"));
    for _ in 0..5 {
        assert_eq!(world.chat(&key, &chat_body("x")).await.status, 503);
    }
    shows(
        &world,
        &[
            (&chat, 1.0),
            (&unknown("messages-vendor", "vendor-messages-1"), 0.0),
            (
                "tollgate_vendor_failures_total{vendor=\"chat-vendor\"}",
                0.0,
            ),
            (
                "tollgate_vendor_breaker_open{vendor=\"chat-vendor\",model=\"vendor-chat-1\"}",
                0.0,
            ),
        ],
    )
    .await;
    world.vendor.script(script::polite);
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);
    shows(&world, &[(&chat, 0.0)]).await;
}

#[tokio::test]
async fn metrics_show_calls_in_flight() {
    let (world, key) = limits("in_flight_max = 1").start_with_key().await;
    for op in BOTH {
        let running = Running::start(&world, op, &key, &op.body("x")).await;
        let shown = shows(
            &world,
            &[("tollgate_holds_open", 1.0), ("tollgate_in_flight", 1.0)],
        )
        .await;
        assert!(shown.get("tollgate_hold_oldest_seconds") > 0.0);
        assert_eq!(op.call(&world, &key, &op.body("x")).await.status, 503);
        running.finish().await;
        shows(
            &world,
            &[("tollgate_holds_open", 0.0), ("tollgate_in_flight", 0.0)],
        )
        .await;
    }
    shows(
        &world,
        &[
            ("tollgate_shed_total", 2.0),
            ("tollgate_refusals_total{code=\"overloaded\"}", 2.0),
            (&format!("tollgate_answer_seconds_count{{{CHAT}}}"), 1.0),
        ],
    )
    .await;
}

#[tokio::test]
async fn client_that_disconnects_before_the_answer_is_counted_as_499() {
    let (world, key) = World::start_with_key().await;
    let never = Arc::new(Notify::new());
    world.vendor.script(move |_| {
        Reply::raw(
            200,
            "text/event-stream",
            vec![Step::Hold(Arc::clone(&never))],
        )
    });
    let body = with(chat_body("x"), json!({ "stream": true }));
    tokio::select! {
        res = world.send(world.chat_request(&key, &body)) => panic!("{res:?}"),
        () = eventually("the vendor is asked", async || {
            (world.vendor.received().len() == 1).then_some(())
        }) => {}
    }
    shows(
        &world,
        &[
            (
                &format!("tollgate_requests_total{{{CHAT},status=\"499\"}}"),
                1.0,
            ),
            (&format!("tollgate_first_byte_seconds_count{{{CHAT}}}"), 0.0),
            (
                "tollgate_calls_total{model=\"chat\",vendor=\"chat-vendor\",end=\"client_left\"}",
                1.0,
            ),
            ("tollgate_in_flight", 0.0),
            ("tollgate_holds_open", 0.0),
        ],
    )
    .await;
}

/// Returns the names and labels of all series.
async fn series(world: &World) -> BTreeSet<String> {
    scrape(world).await.samples.into_keys().collect()
}

#[tokio::test]
async fn callers_cannot_create_metric_series() {
    let (world, key) = World::start_with_key().await;
    let ask = async |n: u64| {
        let name = format!("model \"{n}\"\n{}", n * 7919);
        let body = with(chat_body("x"), json!({ "model": name }));
        assert_eq!(world.chat(&key, &body).await.status, 503);
        let path = format!("/v1/tollgate/{n}?{n}");
        assert_eq!(world.get(&path, &[]).await.status, 404);
        let receipt = format!("/v1/tollgate/receipts/{n}");
        world.get(&receipt, &[]).await;
    };
    ask(0).await;
    let before = series(&world).await;
    for n in 1..=1000 {
        ask(n).await;
    }
    assert_eq!(series(&world).await, before);
}

#[tokio::test]
async fn names_with_special_characters_are_valid_metric_labels() {
    let name = "a \\\"model\\\" \\\\ of mine";
    let setup = Setup::default().edit("id = \"chat\"", &format!("id = \"{name}\""));
    let world = setup.start().await;
    let scrape = scrape(&world).await;
    // TOML and the text format of the metrics escape the characters of this name in the same way.
    let series = format!("tollgate_tokens_total{{model=\"{name}\",class=\"input\"}}");
    assert_eq!(scrape.samples.get(&series), Some(&0.0), "{scrape:?}");
}

/// While Redis does not respond, a scrape returns the last known values without waiting.
#[tokio::test]
async fn metrics_scrape_does_not_wait_for_redis() {
    let server = RedisServer::start().await;
    let (world, key) = Setup::default()
        .ledger(&server.url())
        .start_with_key()
        .await;
    let op = Op::Chat;
    let running = Running::start(&world, op, &key, &op.body("x")).await;
    server.kill();
    running.finish().await;
    let shown = eventually("the charge waits", async || {
        let requested = Instant::now();
        let scrape = scrape(&world).await;
        assert!(
            requested.elapsed() < Duration::from_secs(1),
            "{:?}",
            requested.elapsed()
        );
        let errors = scrape.get("tollgate_ledger_errors_total{operation=\"settle\"}");
        (scrape.get("tollgate_outbox_rows") == 1.0 && errors >= 1.0).then_some(scrape)
    })
    .await;
    assert_eq!(shown.get("tollgate_holds_open"), 1.0);
    assert!(shown.get("tollgate_outbox_oldest_seconds") > 0.0);
    eventually("it is not ready", async || {
        (scrape(&world).await.get("tollgate_ready") == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn reload_adds_metric_series_of_new_models_and_keeps_the_old_series() {
    let edge = Edge::start("").await;
    let config = edge.dir.path().join("tollgate.toml");
    let first = std::fs::read_to_string(&config).unwrap();
    let scrape = async || {
        let answer = edge.admin(Method::GET, "/metrics", None).await;
        Scrape::parse(&answer.text())
    };
    let tokens =
        |model: &str| format!("tollgate_tokens_total{{model=\"{model}\",class=\"input\"}}");
    let before = scrape().await;
    assert!(before.samples.contains_key(&tokens("chat")));
    assert_eq!(
        before.get("tollgate_config_reloads_total{result=\"ok\"}"),
        0.0
    );

    std::fs::write(&config, first.replace("id = \"chat\"", "id = \"newer\"")).unwrap();
    edge.hang_up();
    eventually("it is reloaded", async || {
        let scrape = scrape().await;
        (scrape.get("tollgate_config_reloads_total{result=\"ok\"}") == 1.0).then_some(())
    })
    .await;
    // The first scrape that counts the reload may not contain the new model yet, so the test repeats the scrape.
    let after = scrape().await;
    for model in ["chat", "newer"] {
        assert!(after.samples.contains_key(&tokens(model)), "{model}");
    }

    std::fs::write(&config, "nonsense").unwrap();
    edge.hang_up();
    eventually("it is not reloaded", async || {
        let failed = scrape().await;
        (failed.get("tollgate_config_reloads_total{result=\"failed\"}") == 1.0).then_some(())
    })
    .await;
}

/// The embedding program's handler panics when a call has ended. The gateway continues to settle calls.
#[tokio::test]
async fn panic_in_a_metrics_report_stops_no_other_work() {
    let vendor = ScriptedVendor::start().await.unwrap();
    let text = config_text(vendor.address(), "memory:", "unused.db");
    let config = Config::parse(&text, &secret).unwrap_or_else(|errors| panic!("{errors}"));
    let report = |event: &Event<'_>| {
        if matches!(event, Event::Settled { .. }) {
            panic!("panicked on purpose");
        }
    };
    let gateway = Gateway::build(&config, report).await.unwrap();
    let world = World {
        gateway,
        vendor,
        client: client(),
        dir: Folder::create(),
    };
    let key = world.key().await;
    for _ in 0..3 {
        let answer = world.chat(&key, &chat_body("x")).await;
        world.receipt(&answer.number()).await;
    }
    let url = format!("http://{}/readyz", world.gateway.admin_address().unwrap());
    let ready = request(Method::GET, &url, &[], Bytes::new());
    assert_eq!(whole(world.send(ready).await).await.status, 200);
    shows(
        &world,
        &[("tollgate_ready", 1.0), ("tollgate_holds_open", 0.0)],
    )
    .await;
}

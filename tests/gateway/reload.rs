//! Tests of a gateway that reloads its configuration while calls are in flight: on SIGHUP, or because a file has
//! changed.

use std::sync::Mutex;

use hyper::body::Incoming;
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep},
};
use tollgate::demo::script::polite;

use crate::{edge::Edge, prelude::*};

/// The cost of a call with `chat_body("Привет")`, in micro-rubles: nine input tokens and three output tokens.
const COST: i64 = 1500;
const STREAMS: usize = 200;
const RELOADS: usize = 10;

/// Returns the configuration with another input price for the first model. The original price is 1 USDT.
fn priced(config: &str, usdt: usize) -> String {
    let with = |price: &str| format!("input = \"{price}\", cached_input = \"0.1\"");
    assert!(config.contains(&with("1")));
    config.replacen(&with("1"), &with(&usdt.to_string()), 1)
}

/// Returns the configuration with these lines in the section `[limits]`.
fn limited(config: &str, lines: &str) -> String {
    config.replace("[tariff]", &format!("[limits]\n{lines}\n[tariff]"))
}

async fn stream(edge: &Edge, key: &str) -> Incoming {
    let url = format!("http://{}/v1/chat/completions", edge.address);
    let body = with(chat_body("Привет"), json!({ "stream": true })).to_string();
    let req = json_request(Method::POST, &url, key, body);
    let res = edge.client.request(req).await.unwrap();
    assert_eq!(res.status(), 200);
    let mut body = res.into_body();
    read_until(&mut body, "Вы ").await;
    body
}

async fn get(edge: &Edge, path: &str) -> Answer {
    let url = format!("http://{}{path}", edge.address);
    let req = request(Method::GET, &url, &[], Bytes::new());
    whole(edge.client.request(req).await.unwrap()).await
}

async fn spent(edge: &Edge) -> i64 {
    edge.nothing_is_held().await;
    let path = "/admin/v1/accounts/acme";
    let account = edge.admin(Method::GET, path, None).await.json();
    micro(&account["spent_rub"])
}

#[tokio::test]
async fn ten_reloads_under_load_fail_no_call_and_change_the_price_of_no_running_call() {
    let edge = Edge::start_with(|text| text).await;
    let key = edge.key().await;
    let held = Arc::new(Mutex::new(Vec::new()));
    let holds = Arc::clone(&held);
    edge.vendor.script(move |received| {
        if received.json()["stream"] != true {
            return polite(received);
        }
        let hold = Arc::new(Notify::new());
        holds.lock().unwrap().push(Arc::clone(&hold));
        polite(received).with_step(2, Step::Hold(hold))
    });
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(stream(&edge, &key).await);
    }

    let config = edge.config();
    for nth in 1..=RELOADS {
        let next = priced(&config, nth + 1);
        let next = limited(&next, &format!("in_flight_max = {}", 1000 + nth));
        let next = next.replace("[[vendor]]", "[[vendor]]\nidle_seconds = 100");
        let calls = async {
            for _ in 0..20 {
                edge.chat(&key, &chat_body("Привет")).await.expect(200);
            }
        };
        tokio::join!(edge.reload(&next), calls);
    }
    for hold in held.lock().unwrap().iter() {
        hold.notify_one();
    }
    for mut body in streams {
        let rest = rest(&mut body).await;
        assert!(rest.contains("Привет") && rest.contains("[DONE]"), "{rest}");
    }
    let before = spent(&edge).await;
    let answer = edge.chat(&key, &chat_body("Привет")).await;
    let number = answer.headers["x-request-id"].to_str().unwrap();
    assert_eq!(spent(&edge).await - before, COST + 900 * RELOADS as i64);
    let path = format!("/admin/v1/receipts/{number}");
    let receipt = eventually("there is a receipt", async || {
        let receipt = edge.admin(Method::GET, &path, None).await;
        receipt.status.is_success().then(|| receipt.json())
    })
    .await;
    assert_eq!(receipt["price"]["version"], RELOADS + 1, "{receipt}");

    eventually("the streams were charged at the first price", async || {
        let log = edge.log();
        let of_the_price = log
            .lines()
            .filter(|line| line.contains("\"charged_rub\":\"0.0015\""));
        (of_the_price.count() >= STREAMS).then_some(())
    })
    .await;
}

#[tokio::test]
async fn reloaded_limits_apply_to_the_next_request_on_an_open_connection() {
    let edge = Edge::start_with(|text| text).await;
    let key = edge.key().await;
    let config = edge.config();
    let chat = async |body: &str| edge.chat(&key, &chat_body(body)).await.status.as_u16();
    assert_eq!(chat("x").await, 200);
    for (lines, expected) in [
        ("body_bytes_max = 50", 413),
        ("in_flight_max = 1\nhead_bytes_max = 4096", 200),
        ("messages_max = 1\ncall_seconds = 10", 200),
    ] {
        edge.reload(&limited(&config, lines)).await;
        assert_eq!(chat("x").await, expected, "{lines}");
    }

    edge.reload(&limited(&config, "uri_bytes_max = 64")).await;
    let long = format!("/?{}", "x".repeat(64));
    assert_eq!(get(&edge, &long).await.status, 414);
    let one_a_second = "requests_per_second = 1\ncatalog_requests_per_second = 1";
    edge.reload(&limited(&config, one_a_second)).await;
    let (mut of_calls, mut of_catalogs) = (0, 0);
    for _ in 0..5 {
        of_calls += usize::from(chat("x").await == 429);
        of_catalogs += usize::from(get(&edge, "/v1/tollgate/models").await.status == 429);
    }
    assert!(of_calls > 0 && of_catalogs > 0, "{of_calls} {of_catalogs}");

    edge.reload(&config).await;
    assert_eq!(get(&edge, &long).await.status, 200);
    assert_eq!(chat("x").await, 200);
    assert!(!edge.log().contains("needs_restart"), "{}", edge.log());
}

#[tokio::test]
async fn reload_reports_settings_that_it_does_not_apply() {
    let edge = Edge::start_with(|text| text).await;
    let config = edge.config();
    let other = config
        .replace("[ledger]", "[ledger]\nhold = \"strict\"")
        .replacen("base_url", "language = \"en\"\nbase_url", 1);
    edge.reload(&other).await;
    edge.says(
        "some of the changed settings take effect only after a restart",
        1,
    )
    .await;
    let log = edge.log();
    has(&log, "\"needs_restart\":\"language, ledger.hold\"");
}

/// Starts a gateway that checks its files for changes every second.
async fn watching() -> Edge {
    Edge::start_with(|text| format!("reload_poll_seconds = 1\n{text}")).await
}

#[tokio::test]
async fn changed_configuration_is_reloaded_and_an_invalid_one_is_reported_once() {
    let edge = watching().await;
    let config = edge.config();
    edge.configure(&priced(&config, 0));
    edge.says("configuration not reloaded: ", 1).await;
    assert!(edge.log().contains("above 0"));
    // The gateway checks the same invalid file twice more, and must not report the error again.
    sleep(Duration::from_millis(2500)).await;
    edge.configure(&config[..config.len() / 2]);
    edge.says("configuration not reloaded: ", 2).await;
    let catalog = get(&edge, "/v1/tollgate/models").await.json();
    assert_eq!(catalog["models"][0]["input_rub_mtok"], "100.00");
    edge.configure(&priced(&config, 2));
    edge.says("reloaded", 1).await;
    let catalog = get(&edge, "/v1/tollgate/models").await.json();
    assert_eq!(catalog["models"][0]["input_rub_mtok"], "200.00");
    assert_eq!(catalog["price_version"]["id"], 2);
    let log = edge.log();
    let of_the_price = log.lines().filter(|line| line.contains("above 0"));
    assert_eq!(of_the_price.count(), 1, "{log}");
}

#[tokio::test]
async fn changed_secret_file_is_reloaded() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("vendor-key");
    std::fs::write(&secret, "the-first-key").unwrap();
    let named = format!("key = \"file:{}\"", secret.display());
    let edge = Edge::start_with(|text| {
        let text = text.replace("key = \"${VENDOR_KEY}\"", &named);
        format!("reload_poll_seconds = 1\n{text}")
    })
    .await;
    let key = edge.key().await;
    for (nth, shown) in ["the-first-key", "the-second-key"].into_iter().enumerate() {
        if nth > 0 {
            std::fs::write(&secret, shown).unwrap();
            edge.says("reloaded", nth).await;
        }
        assert_eq!(edge.chat(&key, &chat_body("x")).await.status, 200);
        let received = edge.vendor.received();
        let header = &received.last().unwrap().headers["authorization"];
        assert_eq!(header, &format!("Bearer {shown}"));
    }
}

#[tokio::test]
async fn rate_source_that_does_not_answer_delays_no_reload_and_removes_no_prices() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stored = JoinSet::new();
    let url = format!("http://{}/rate", silent.local_addr().unwrap());
    stored.spawn(async move {
        let mut sockets = Vec::new();
        while let Ok((socket, _)) = silent.accept().await {
            sockets.push(socket);
        }
    });
    let edge = Edge::start_with(|text| text).await;
    let config = edge.config();
    let source = format!("url = \"{url}\"\nselect = \"/rate\"");
    let next = priced(&config, 2).replace("fixed = \"100\"", &source);
    let begun = Instant::now();
    edge.reload(&next).await;
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let catalog = get(&edge, "/v1/tollgate/models").await.json();
    assert_eq!(catalog["priced"], true);
    let shown = decimal(&catalog["models"][0]["input_rub_mtok"]);
    assert_eq!(shown, decimal(&json!("200")));
}

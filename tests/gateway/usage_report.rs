//! Tests of reports for operators: usage, exports and audits, from the admin API and from the commands.

use std::{
    collections::BTreeMap,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use tollgate_ledger::{
    redis::{RedisLedger, RedisSettings},
    rollup::{self, Scope},
    testing::spoil_sums,
};

use crate::{ledger::folder, prelude::*, price_rules::with_rules, support::process::TOLLGATE};

/// Runs the binary against this gateway. The gateway runs on this thread, so another thread waits for the binary.
pub async fn tollgate(world: &World, args: &[&str], input: &str) -> Output {
    let mut command = Command::new(TOLLGATE);
    let address = world.gateway.admin_address().unwrap();
    command
        .args(args)
        .env("TOLLGATE_ADMIN_URL", format!("http://{address}"))
        .env("TOLLGATE_ADMIN_KEY", ADMIN_KEY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let input = input.to_owned();
    let run = move || {
        let mut child = command.spawn().unwrap();
        // The write fails if the command ends without reading its input.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Checks the exit code of a command. Returns its standard output.
pub fn reported(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{output:?}: {errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs a command that must exit with this code. Returns its standard output.
pub async fn typed(world: &World, line: &str, code: i32) -> String {
    let args: Vec<&str> = line.split(' ').collect();
    reported(&tollgate(world, &args, "").await, code)
}

/// Checks the exit code of a command. Returns its standard error.
pub fn complained(output: &Output, code: i32) -> String {
    assert_eq!(reported(output, code), "");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command that must fail with this exit code. Returns its error text.
pub async fn refused(world: &World, line: &str, code: i32) -> String {
    let args: Vec<&str> = line.split(' ').collect();
    complained(&tollgate(world, &args, "").await, code)
}

/// Makes calls of two accounts with three keys. Returns the keys and the receipts.
async fn busy(world: &World) -> (Vec<Key>, Vec<Value>) {
    let keys = vec![
        world.key_with("acme", "1000", json!({})).await,
        world.another_key("acme", json!({})).await,
        world.key_with("beta", "1000", json!({})).await,
    ];
    let mut receipts = Vec::new();
    for (calls, key) in keys.iter().enumerate() {
        for op in BOTH {
            for _ in 0..=calls {
                let answer = op.call(world, key, &op.body("Привет")).await;
                receipts.push(world.receipt(&answer.number()).await);
            }
        }
    }
    (keys, receipts)
}

async fn usage(world: &World, query: &str) -> Value {
    let path = format!("/admin/v1/usage{query}");
    let answer = world.admin_get(&path).await;
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    answer.json()
}

#[tokio::test]
async fn further_rate_classes_have_columns_in_the_usage_report_if_a_call_used_them() {
    let (world, key) = with_rules().start_with_key().await;
    let plain = Op::Chat.call(&world, &key, &Op::Chat.body("Привет")).await;
    world.receipt(&plain.number()).await;
    let by_model = "usage --by model --format csv";
    let csv = typed(&world, by_model, 0).await;
    assert!(!csv.contains("cache_write_1h"), "{csv}");

    let used = json!({ "input_tokens": 9, "output_tokens": 2, "cache_creation_input_tokens": 7,
        "cache_creation": { "ephemeral_1h_input_tokens": 4, "ephemeral_5m_input_tokens": 3 },
        "server_tool_use": { "web_search_requests": 2 } });
    world.vendor_sends(Reply::json(200, &answer(Op::Messages, "да", &used)));
    let mark = json!({ "type": "ephemeral", "ttl": "1h" });
    let parts = json!([{ "type": "text", "text": "Привет", "cache_control": mark }]);
    let tool = json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": 5 });
    let requested = json!({ "messages": [{ "role": "user", "content": parts }], "tools": [tool] });
    let call = Op::Messages
        .call(&world, &key, &with(Op::Messages.body(""), requested))
        .await;
    world.receipt(&call.number()).await;

    let csv = typed(&world, by_model, 0).await;
    let lines: Vec<_> = csv.lines().collect();
    let ends = |line: &str, end: &str| assert!(line.ends_with(end), "{end}: {csv}");
    let columns = ",cost_known_calls,cache_write_1h_tokens,web_search_calls";
    ends(lines[0], columns);
    ends(lines[1], ",0,0");
    ends(lines[2], ",4,2");
    let table = typed(&world, "usage --by model", 0).await;
    let lines: Vec<Vec<_>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let last_two = |line: usize| lines[line][lines[line].len() - 2..].join(" ");
    let head = table.lines().next().unwrap();
    assert!(head.ends_with("  1 H CACHE WRITE TOKENS  WEB SEARCHES"));
    for (line, counts) in [(1, "0 0"), (2, "4 2"), (3, "4 2")] {
        assert_eq!(last_two(line), counts, "{table}");
    }
    let all = typed(&world, "usage --by model --format json", 0).await;
    let all: Value = serde_json::from_str(&all).unwrap();
    let classes = json!({ "cache_write_1h": 4, "web_search_call": 2 });
    assert_eq!(all["rows"][1]["usage"]["classes"], classes, "{all}");
    assert_eq!(all["total"]["usage"]["classes"], classes, "{all}");
    assert_eq!(all["rows"][0]["usage"].get("classes"), None, "{all}");
}

/// Returns the expected sums of a report: calls, input, output and charge of these receipts, grouped by these fields.
fn sums(receipts: &[Value], group: &[&str]) -> BTreeMap<Vec<String>, [i64; 4]> {
    let mut sums = BTreeMap::new();
    for receipt in receipts {
        let words = group.iter().map(|word| match *word {
            "month" => receipt["at"].as_str().unwrap()[..7].to_owned(),
            "day" => receipt["at"].as_str().unwrap()[..10].to_owned(),
            word => receipt[word].as_str().unwrap().to_owned(),
        });
        let row: &mut [i64; 4] = sums.entry(words.collect()).or_default();
        let tokens = |class: &str| receipt["usage"][class].as_i64().unwrap();
        row[0] += 1;
        row[1] += tokens("input");
        row[2] += tokens("output");
        row[3] += micro(&receipt["charged_rub"]);
    }
    sums
}

/// Returns the rows of a report: the values of the grouping fields, and the sums.
fn rows(answer: &Value, group: &[&str]) -> Vec<(Vec<String>, [i64; 4])> {
    let rows = answer["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        let words = group
            .iter()
            .map(|word| row[*word].as_str().unwrap().to_owned());
        (words.collect(), row_sums(row))
    })
    .collect()
}

fn row_sums(row: &Value) -> [i64; 4] {
    [
        row["calls"].as_i64().unwrap(),
        row["usage"]["input"].as_i64().unwrap(),
        row["usage"]["output"].as_i64().unwrap(),
        micro(&row["charged_rub"]),
    ]
}

#[tokio::test]
async fn usage_report_equals_the_sum_of_the_receipts_in_every_grouping() {
    let world = World::start().await;
    let (_, receipts) = busy(&world).await;
    assert_eq!(receipts.len(), 12);
    for group in [
        vec!["account", "key", "model"],
        vec!["model"],
        vec!["account"],
        vec!["model", "account"],
        vec!["month"],
        vec!["day"],
        vec!["key", "day", "account", "model"],
    ] {
        let answer = usage(&world, &format!("?group={}", group.join(","))).await;
        let expected: Vec<_> = sums(&receipts, &group).into_iter().collect();
        assert_eq!(rows(&answer, &group), expected, "{group:?}");
        let total = expected.iter().fold([0; 4], |mut total, (_, row)| {
            for (sum, part) in total.iter_mut().zip(row) {
                *sum += part;
            }
            total
        });
        assert_eq!(row_sums(&answer["total"]), total, "{group:?}");
        assert_eq!(answer["total"]["estimated_calls"], 0);
        assert_eq!(answer["group"], json!(group));
    }
    let unnamed = usage(&world, "").await;
    assert_eq!(unnamed, usage(&world, "?group=account,key,model").await);
    // A request with several groups, separated by semicolons, returns the same reports as one request for each group.
    for of in ["", "&account=acme"] {
        let several = usage(&world, &format!("?group=day;model,key;session{of}")).await;
        let mut each = Vec::new();
        for group in ["day", "model,key", "session"] {
            each.push(usage(&world, &format!("?group={group}{of}")).await);
        }
        assert_eq!(several, json!({ "reports": each }));
    }
}

/// Percentiles come from a histogram. So they are at least the exact value, and at most one eighth higher.
#[tokio::test]
async fn durations_in_the_usage_report_agree_with_receipts() {
    let world = World::start().await;
    let (_, receipts) = busy(&world).await;
    let answer = usage(&world, "?group=hour").await;
    for (name, of) in [("whole", "whole_ms"), ("first_byte", "first_byte_ms")] {
        let times = receipts.iter();
        let times = times.filter_map(|receipt| receipt["timeline"][of].as_u64());
        let mut times: Vec<u64> = times.collect();
        assert_eq!(times.len(), 12, "{receipts:?}");
        times.sort_unstable();
        let returned = &answer["total"][name];
        assert_eq!(returned["calls"], 12, "{returned}");
        for (percentile, exact) in [("p50_ms", times[5]), ("p99_ms", times[11])] {
            let ms = returned[percentile].as_u64().unwrap();
            assert!(exact <= ms && ms <= exact + exact / 8, "{ms} for {exact}");
        }
    }
}

#[tokio::test]
async fn usage_report_can_be_filtered_by_account_and_key_and_model_and_time() {
    let world = World::start().await;
    let (keys, receipts) = busy(&world).await;
    let (second, beta) = (&keys[1].id, &keys[2].id);
    let of = |query: String, field: &'static str, value: &str| {
        let value = value.to_owned();
        let receipts: Vec<Value> = receipts
            .iter()
            .filter(|receipt| receipt[field] == value.as_str())
            .cloned()
            .collect();
        (query, receipts)
    };
    let none = Vec::new();
    for (query, receipts) in [
        of("account=acme".into(), "account", "acme"),
        of(format!("key={second}"), "key", second),
        of(format!("account=beta&key={beta}"), "key", beta),
        of("model=messages".into(), "model", "messages"),
        of("model=m%65ssages".into(), "model", "messages"),
        ("since=2026-01-31".into(), receipts.clone()),
        (
            "since=2026-01-31&until=9999-12-31T23:59:59%2B03:00".into(),
            receipts.clone(),
        ),
        ("until=2026-01-31".into(), none.clone()),
        ("since=9999-01-01".into(), none.clone()),
        ("model=no-such-model".into(), none),
    ] {
        let answer = usage(&world, &format!("?{query}&group=account,key,model")).await;
        let group = ["account", "key", "model"];
        let expected: Vec<_> = sums(&receipts, &group).into_iter().collect();
        assert_eq!(rows(&answer, &group), expected, "{query}");
    }
    let of_another = format!("account=acme&key={beta}");
    for (query, status, says) in [
        ("account=nobody", 404, "no account nobody"),
        ("key=nothing", 404, "no key nothing"),
        (
            of_another.as_str(),
            400,
            "key: does not belong to account acme",
        ),
        (
            "acount=acme",
            400,
            "acount: unknown parameter; this call takes account, key, model,",
        ),
        ("group=week", 400, "group: must be a comma-separated list"),
        ("session=a%20b", 400, "session: an id must have"),
        (
            "endpoint=chat",
            400,
            "endpoint: must be one of chat/completions,",
        ),
        ("since=yesterday", 400, "since: must be a date"),
        (
            "since=2026-01-31&until=2026-01-31",
            400,
            "until: must be later than the parameter since",
        ),
    ] {
        let path = format!("/admin/v1/usage?{query}");
        let answer = world.admin_get(&path).await;
        let error = answer.json()["error"].clone();
        let text = error["message"].as_str().unwrap();
        assert_eq!(answer.status, status, "{query}: {text}");
        assert!(text.starts_with(says), "{query}: {text}");
    }
}

#[tokio::test]
async fn admin_request_with_an_unknown_parameter_is_refused() {
    let world = World::start().await;
    world.key().await;
    for path in [
        "/admin/v1/accounts?limit=5",
        "/admin/v1/accounts/acme?x",
        "/admin/v1/export?acount=acme",
    ] {
        let answer = world.admin_get(path).await;
        assert_eq!(answer.status, 400, "{path}");
        let text = answer.text();
        assert!(
            text.contains("unknown parameter; this call takes "),
            "{path}: {text}"
        );
    }
}

/// This is tested in every store, because each store saves sessions in its own way.
#[tokio::test]
async fn usage_report_can_be_grouped_by_session() {
    let (server, folder) = (RedisServer::start().await, folder());
    let file = format!("sqlite:{}", folder.path().join("books.db").display());
    for ledger in ["memory:", &file, &server.url()] {
        let world = Setup::default().ledger(ledger).start().await;
        let keys = [
            world.key_with("acme", "1000", json!({})).await,
            world.key_with("beta", "1000", json!({})).await,
        ];
        let mut receipts = Vec::new();
        for (session, key, calls) in [
            (Some("s-2"), 0, 2),
            (Some("s-1"), 0, 1),
            // Another account has a session with the same name.
            (Some("s-1"), 1, 3),
            (None, 1, 2),
        ] {
            let bearer = format!("Bearer {}", keys[key].secret);
            let mut headers = vec![("authorization", bearer.as_str())];
            headers.extend(session.map(|session| ("x-claude-code-session-id", session)));
            for op in BOTH {
                for _ in 0..calls {
                    let body = op.body("Привет").to_string();
                    let answer = op.post(&world, &headers, body).await;
                    let mut receipt = world.receipt(&answer.number()).await;
                    assert_eq!(receipt["session"].as_str(), session, "{ledger}");
                    // Receipts without a session are summed under an empty session name.
                    receipt["session"] = session.unwrap_or_default().into();
                    receipts.push(receipt);
                }
            }
        }
        for group in [
            vec!["session"],
            vec!["account", "session"],
            vec!["session", "model", "day"],
        ] {
            let mut answer = usage(&world, &format!("?group={}", group.join(","))).await;
            for row in answer["rows"].as_array_mut().unwrap() {
                assert!(row["session"] != "", "{ledger}: {row}");
                if row["session"].is_null() {
                    row["session"] = "".into();
                }
            }
            let expected: Vec<_> = sums(&receipts, &group).into_iter().collect();
            assert_eq!(rows(&answer, &group), expected, "{ledger} {group:?}");
        }
        let of_one = usage(&world, "?session=s-1&group=account").await;
        let of_it = |receipt: &&Value| receipt["session"] == "s-1";
        let receipts_of_it: Vec<Value> = receipts.iter().filter(of_it).cloned().collect();
        let expected: Vec<_> = sums(&receipts_of_it, &["account"]).into_iter().collect();
        assert_eq!(rows(&of_one, &["account"]), expected, "{ledger}");

        let csv = typed(&world, "usage --by session --format csv", 0).await;
        let begins: Vec<_> = csv
            .lines()
            .map(|line| line.split(',').take(2).collect::<Vec<_>>().join(","))
            .collect();
        let expected = ["session,calls", ",4", "s-1,8", "s-2,4"];
        assert_eq!(begins, expected, "{ledger}");
        let table = typed(&world, "usage --session s-2 --by session", 0).await;
        assert_eq!(table.lines().count(), 3, "{ledger}: {table}");

        let sessions: Vec<Value> = exported(&world, "?account=acme")
            .await
            .iter()
            .filter_map(|line| line.get("session").cloned())
            .collect();
        assert_eq!(sessions.len(), 6, "{ledger}");
        let export = typed(&world, "export", 0).await;
        let audited = tollgate(&world, &["audit", "--export", "-"], &export).await;
        let sound = reported(&audited, 0).starts_with("ok: 2 accounts");
        assert!(sound, "{ledger}");
    }
}

/// The endpoint in a usage report is the path that the caller used, whatever format the vendor speaks. This is tested
/// in every store.
#[tokio::test]
async fn usage_report_can_be_grouped_by_endpoint() {
    const MODEL: &str = "[[model]]\nid = \"chat\"";
    let vectors = format!(
        "[[model]]\nid = \"vectors\"\nfamily = \"Test\"\nkind = \"embedding\"\n\
         usdt_mtok = {{ input = \"0.2\" }}\nroutes = [ {{ vendor = \"chat-vendor\", model = \"vectors-1\" }} ]\n{MODEL}"
    );
    let (server, folder) = (RedisServer::start().await, folder());
    let file = format!("sqlite:{}", folder.path().join("books.db").display());
    for ledger in ["memory:", &file, &server.url()] {
        let setup = Setup::default().ledger(ledger).edit(MODEL, &vectors);
        let world = setup.start().await;
        let key = world.key_with("acme", "1000", json!({})).await;
        let mut receipts = Vec::new();
        for (endpoint, model, calls) in [
            ("chat/completions", "chat", 1),
            ("chat/completions", "messages", 1),
            ("messages", "chat", 3),
            ("responses", "messages", 2),
            ("embeddings", "vectors", 1),
        ] {
            let body = match endpoint {
                "responses" | "embeddings" => json!({ "model": model, "input": "Привет" }),
                _ => json!({
                    "model": model, "max_tokens": 100,
                    "messages": [{ "role": "user", "content": "Привет" }],
                }),
            };
            for _ in 0..calls {
                let headers = [
                    ("x-api-key", key.secret.as_str()),
                    ("content-type", "application/json"),
                    ("anthropic-version", "2026-10-21"),
                ];
                let url = world.url(&format!("/v1/{endpoint}"));
                let body = body.to_string().into();
                let answer = world.ask(request(Method::POST, &url, &headers, body)).await;
                assert_eq!(answer.status, 200, "{ledger} {endpoint}: {answer:?}");
                let receipt = world.receipt(&answer.number()).await;
                assert_eq!(receipt["endpoint"], endpoint, "{ledger}: {receipt}");
                receipts.push(receipt);
            }
        }
        for group in [vec!["endpoint"], vec!["model", "endpoint", "day"]] {
            let answer = usage(&world, &format!("?group={}", group.join(","))).await;
            let expected: Vec<_> = sums(&receipts, &group).into_iter().collect();
            assert_eq!(rows(&answer, &group), expected, "{ledger} {group:?}");
        }
        let of_one = usage(&world, "?endpoint=chat/completions&group=endpoint,model").await;
        let rows = of_one["rows"].as_array().unwrap();
        let models: Vec<_> = rows.iter().map(|row| &row["model"]).collect();
        assert_eq!(models, ["chat", "messages"], "{ledger}");

        let table = typed(&world, "usage --endpoint messages --by endpoint", 0).await;
        let row = table.lines().nth(1).unwrap();
        assert!(row.starts_with("messages      3 "), "{table}");
        let number = receipts[0]["number"].as_str().unwrap();
        let shown = typed(&world, &format!("receipt {number}"), 0).await;
        let is_endpoint = |line: &str| line.split_whitespace().eq(["endpoint", "chat/completions"]);
        assert!(shown.lines().any(is_endpoint), "{shown}");

        let exported = exported(&world, "?account=acme").await;
        let calls = exported.iter().filter(|line| line["kind"] == "call");
        let returned: Vec<_> = calls.map(|line| &line["endpoint"]).collect();
        let stored: Vec<_> = receipts
            .iter()
            .map(|receipt| &receipt["endpoint"])
            .collect();
        assert_eq!(returned, stored, "{ledger}");
    }
}

/// The usage of a group is the sum of what the books have charged to the group, whichever keys belonged to it at the
/// time. This is tested in every store.
#[tokio::test]
async fn usage_by_group_equals_the_spending_of_the_groups() {
    let (server, folder) = (RedisServer::start().await, folder());
    let file = format!("sqlite:{}", folder.path().join("books.db").display());
    for ledger in ["memory:", &file, &server.url()] {
        let world = Setup::default().ledger(ledger).start().await;
        let keys = [
            world.key_with("acme", "1000", json!({})).await,
            world.another_key("acme", json!({})).await,
        ];
        let groups = "/admin/v1/accounts/acme/groups";
        for id in ["one", "two"] {
            let made = world.admin_post(groups, json!({ "id": id })).await;
            assert_eq!(made.status, 200, "{ledger}: {made:?}");
        }
        let mut receipts = Vec::new();
        for (key, group, calls) in [
            (0, None, 1),
            (0, Some("one"), 2),
            (1, Some("one"), 1),
            (0, Some("two"), 3),
            (1, None, 1),
        ] {
            let path = format!("/admin/v1/keys/{}", keys[key].id);
            let put = world.admin_patch(&path, json!({ "group": group })).await;
            assert_eq!(put.status, 200, "{ledger}: {put:?}");
            for _ in 0..calls {
                let answer = world.chat(&keys[key], &chat_body("Привет")).await;
                assert_eq!(answer.status, 200, "{ledger}: {answer:?}");
                let receipt = world.receipt(&answer.number()).await;
                assert_eq!(receipt["group"].as_str(), group, "{ledger}: {receipt}");
                receipts.push(receipt);
            }
        }
        let answer = usage(&world, "?account=acme&group=group,key").await;
        let mut expected: BTreeMap<(Option<&str>, &str), [i64; 2]> = BTreeMap::new();
        for receipt in &receipts {
            let key = receipt["key"].as_str().unwrap();
            let row = expected.entry((receipt["group"].as_str(), key));
            let row = row.or_default();
            *row = [row[0] + 1, row[1] + micro(&receipt["charged_rub"])];
        }
        let returned = answer["rows"].as_array().unwrap().iter().map(|row| {
            let sums = [row["calls"].as_i64().unwrap(), micro(&row["charged_rub"])];
            ((row["group"].as_str(), row["key"].as_str().unwrap()), sums)
        });
        assert_eq!(returned.collect::<BTreeMap<_, _>>(), expected, "{ledger}");

        let answer = usage(&world, "?group=group").await;
        let books = world.admin_get(groups).await.json();
        let spent = books["groups"].as_array().unwrap().iter();
        let spent = spent.map(|group| (&group["id"], &group["spent_rub"]));
        let spent: Vec<_> = spent.collect();
        let rows = answer["rows"].as_array().unwrap();
        assert_eq!(rows[0]["group"], Value::Null, "{ledger}: {answer}");
        let returned: Vec<_> = rows[1..]
            .iter()
            .map(|row| (&row["group"], &row["charged_rub"]))
            .collect();
        assert_eq!(returned, spent, "{ledger}");
        let audit = tollgate(&world, &["audit"], "").await;
        assert!(reported(&audit, 0).starts_with("ok"), "{ledger}");

        let table = typed(&world, "usage --account acme --by group", 0).await;
        let begins: Vec<_> = table
            .lines()
            .map(|line| {
                line.split_whitespace()
                    .take(2)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        let expected = ["GROUP CALLS", "- 2", "one 3", "two 3", "total 8"];
        assert_eq!(begins, expected, "{ledger}");
        let export = typed(&world, "export", 0).await;
        let audited = tollgate(&world, &["audit", "--export", "-"], &export).await;
        assert!(reported(&audited, 0).starts_with("ok"), "{ledger}");
        let exported = exported(&world, "?account=acme").await;
        let of_two = exported
            .iter()
            .filter(|line| line["kind"] == "call" && line["group"] == "two");
        assert_eq!(of_two.count(), 3, "{ledger}");
    }
}

#[tokio::test]
async fn usage_report_counts_calls_with_estimated_usage_separately() {
    let (world, key) = World::start_with_key().await;
    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("x")).await;
    let number = running.number.clone();
    drop(running);
    let receipt = world.receipt(&number).await;
    assert_eq!(receipt["estimated"], true);
    let answer = usage(&world, "").await;
    assert_eq!(answer["rows"][0]["estimated_calls"], 1);
    assert_eq!(answer["total"]["estimated_calls"], 1);
}

#[tokio::test]
async fn usage_command_prints_exact_csv_and_reports_an_empty_result() {
    let world = World::start().await;
    let nothing = tollgate(&world, &["usage"], "").await;
    assert!(reported(&nothing, 0).starts_with("no call was charged"));

    let (_, receipts) = busy(&world).await;
    let line = "usage --by account,model --since 2026-01-31";
    let mut expected = String::from(
        "account,model,calls,input_tokens,cached_input_tokens,cache_write_tokens,output_tokens,\
         charged_rub,loss_rub,estimated_calls\n",
    );
    for (words, [calls, input, output, charged]) in sums(&receipts, &["account", "model"]) {
        let charged = tollgate_layers::money::MicroRub::new(charged);
        expected.push_str(&format!(
            "{},{calls},{input},0,0,{output},{charged},0.00,0\n",
            words.join(",")
        ));
    }
    let csv = typed(&world, &format!("{line} --format csv"), 0).await;
    assert_eq!(csv, expected);
    let answer = usage(&world, "?group=account,model&since=2026-01-31").await;
    for json in ["--json", "--format json"] {
        let printed = typed(&world, &format!("{line} {json}"), 0).await;
        let printed: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(printed, answer, "{json}");
    }

    let table = typed(&world, "usage --by model", 0).await;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("MODEL "), "{table}");
    assert!(lines[0].contains("CHARGED, ₽"), "{table}");
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[3].starts_with("total "), "{table}");
    assert!(lines[3].contains("12"), "{table}");

    let nobody = refused(&world, "usage --account nobody", 1).await;
    assert_eq!(nobody, "error: no account nobody\n");
}

/// Returns the lines of an export from the admin API.
async fn exported(world: &World, query: &str) -> Vec<Value> {
    let path = format!("/admin/v1/export{query}");
    let answer = world.admin_get(&path).await.expect(200);
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    assert!(!answer.failed);
    let lines = answer.text();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn export_has_each_account_with_its_receipts_but_no_secrets() {
    let world = World::start().await;
    let (keys, receipts) = busy(&world).await;
    let path = "/admin/v1/accounts/acme/adjustments";
    let body = json!({ "id": "a1", "amount_rub": "-1.5", "reason": "a mistake" });
    world.admin_post(path, body).await;

    let lines = exported(&world, "").await;
    let kinds = |lines: &[Value], kind: &str| -> Vec<Value> {
        lines
            .iter()
            .filter(|line| line["kind"] == kind)
            .cloned()
            .collect()
    };
    assert_eq!(lines[0]["version"], 1);
    assert_eq!(
        lines.last().unwrap(),
        &json!({"kind": "end", "accounts": 2, "lines": lines.len()})
    );
    let accounts = kinds(&lines, "account");
    let ids: Vec<_> = accounts
        .iter()
        .map(|account| account["id"].clone())
        .collect();
    assert_eq!(ids, ["acme", "beta"]);
    for (account, keys) in accounts.iter().zip([2, 1]) {
        assert_eq!(account["keys"].as_array().unwrap().len(), keys);
        let path = format!("/admin/v1/accounts/{}", account["id"].as_str().unwrap());
        let shown = world.admin_get(&path).await.json();
        // An export contains no sums of the current day or month, no keys and no debt, so these fields are not
        // compared.
        let of_all_times = |field: &str| {
            !matches!(
                field,
                "keys" | "spent_day_rub" | "spent_month_rub" | "debt_rub"
            )
        };
        let shown = shown.as_object().unwrap();
        for (field, value) in shown.iter().filter(|(field, _)| of_all_times(field)) {
            assert_eq!(&account[field], value, "{field}");
        }
    }
    let mut numbers: Vec<_> = kinds(&lines, "call")
        .iter()
        .map(|call| call["number"].clone())
        .collect();
    let mut expected: Vec<_> = receipts
        .iter()
        .map(|receipt| receipt["number"].clone())
        .collect();
    numbers.sort_by_key(Value::to_string);
    expected.sort_by_key(Value::to_string);
    assert_eq!(numbers, expected);
    let entries = kinds(&lines, "entry");
    let adjusted = entries.iter().find(|entry| entry["id"] == "a1").unwrap();
    assert_eq!(adjusted["amount_rub"], "-1.50");
    assert_eq!(adjusted["reason"], "a mistake");

    let text = lines.iter().map(Value::to_string).collect::<String>();
    for key in &keys {
        assert!(!text.contains(&key.secret), "a secret is exported");
    }
    assert!(!text.contains("digest") && !text.contains("Привет"));

    let of_beta = exported(&world, "?account=beta").await;
    assert_eq!(kinds(&of_beta, "account").len(), 1);
    assert!(
        kinds(&of_beta, "call")
            .iter()
            .all(|call| call["account"] == "beta")
    );
    let nobody = world.admin_get("/admin/v1/export?account=nobody");
    assert_eq!(nobody.await.status, 404);
}

/// Runs `tollgate export` into this file.
async fn export_to(world: &World, file: &Path) -> String {
    let args = ["export", "--output", file.to_str().unwrap()];
    let output = tollgate(world, &args, "").await;
    reported(&output, 0);
    std::fs::read_to_string(file).unwrap()
}

#[tokio::test]
async fn export_can_be_audited_offline_while_calls_run() {
    let folder = folder();
    let ledger = format!("sqlite:{}", folder.path().join("books.db").display());
    for ledger in ["memory:", &ledger] {
        let world = Setup::default().ledger(ledger).start().await;
        let (keys, receipts) = busy(&world).await;
        let running = Running::start(&world, Op::Chat, &keys[0], &Op::Chat.body("x")).await;
        let file = folder.path().join("export.ndjson");
        let export = export_to(&world, &file).await;
        let file = file.to_str().unwrap();

        let sound = tollgate(&world, &["audit", "--export", file], "").await;
        let no_breach = "ok: 2 accounts, 3 keys, 1 open hold, no breach\n";
        assert_eq!(reported(&sound, 0), no_breach);
        let sound = tollgate(&world, &["audit", "--export", "-", "--json"], &export).await;
        let report: Value = serde_json::from_str(&reported(&sound, 0)).unwrap();
        let expected = json!({"accounts": 2, "keys": 3, "holds_open": 1, "breaches": []});
        assert_eq!(report, expected);
        let to_stdout = typed(&world, "export", 0).await;
        assert_eq!(to_stdout.lines().count(), export.lines().count());

        // The export is edited: one receipt charges a micro-ruble more than its usage costs. The audit must find this.
        let charged = receipts[0]["charged_rub"].as_str().unwrap();
        let number = receipts[0]["number"].as_str().unwrap();
        let more = tollgate_layers::money::MicroRub::new(micro(&receipts[0]["charged_rub"]) + 1);
        let tampered: String = export
            .lines()
            .map(|line| {
                let line = if line.contains(number) {
                    let from = format!("\"charged_rub\":\"{charged}\"");
                    assert!(line.contains(&from), "{line}");
                    line.replace(&from, &format!("\"charged_rub\":\"{more}\""))
                } else {
                    line.to_owned()
                };
                line + "\n"
            })
            .collect();
        let found = tollgate(&world, &["audit", "--export", "-"], &tampered).await;
        let text = reported(&found, 1);
        has(&text, "\nI3 key ");
        has(&text, "stop selling");

        // This copy of the export lacks its last line, so the audit must refuse it.
        let lines: Vec<&str> = export.lines().collect();
        let cut = lines[..lines.len() - 1].join("\n");
        let found = tollgate(&world, &["audit", "--export", "-"], &cut).await;
        let text = complained(&found, 65);
        let line = lines.len();
        let begin = format!("error: -: line {line}: the export has no end line");
        assert!(text.starts_with(&begin), "{text}");

        assert_eq!(typed(&world, "audit", 0).await, no_breach);
        running.finish().await;
        world.settled(&keys[0]).await;
    }
}

#[tokio::test]
async fn export_file_is_readable_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt;

    let world = World::start().await;
    world.key().await;
    let folder = folder();
    let file = folder.path().join("export.ndjson");
    let into = |account: &str| format!("export --account {account} --output {}", file.display());
    let report = typed(&world, &(into("acme") + " --json"), 0).await;
    let report: Value = serde_json::from_str(&report).unwrap();
    let text = std::fs::read(&file).unwrap();
    assert_eq!(report["accounts"], 1);
    assert_eq!(report["bytes"], text.len());
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let refusal = refused(&world, &into("nobody"), 1).await;
    assert_eq!(refusal, "error: no account nobody\n");
    assert_eq!(std::fs::read(&file).unwrap(), text, "the earlier one stays");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Returns the admin API's reports for every grouping.
async fn reports(world: &World) -> Vec<Value> {
    let mut reports = Vec::new();
    for query in [
        "",
        "?group=day",
        "?group=hour",
        "?group=month",
        "?group=vendor,model",
        "?group=endpoint&account=acme",
        "?group=key,day",
        "?group=session",
        "?group=day&model=chat",
        "?group=hour&account=beta",
    ] {
        reports.push(usage(world, query).await);
    }
    reports
}

#[tokio::test]
async fn usage_report_is_the_same_before_and_after_the_roll_up() {
    let server = RedisServer::start().await;
    let world = Setup::default().ledger(&server.url()).start().await;
    let (keys, _) = busy(&world).await;
    let before = reports(&world).await;
    assert!(before[0]["total"]["calls"] == 12, "{before:?}");

    let url = server.url();
    let ledger = RedisLedger::connect(&url, RedisSettings::default());
    let ledger = ledger.await.unwrap();
    rollup::roll_up(&ledger, u64::MAX).await.unwrap();
    assert_eq!(reports(&world).await, before);
    // The reports include a call as soon as it is charged, although earlier days come from stored sums.
    let answer = world.chat(&keys[0], &chat_body("Привет")).await;
    world.receipt(&answer.number()).await;
    let later = reports(&world).await;
    assert!(later[0]["total"]["calls"] == 13, "{later:?}");

    // The audit reports a stored sum that is wrong. After that, the sum is computed again.
    let clean = tollgate(&world, &["audit"], "").await;
    reported(&clean, 0);
    spoil_sums(&ledger, Scope::Days).await;
    let breach = typed(&world, "audit", 1).await;
    has(&breach, "U1 sums of all accounts by day on ");
    assert_ne!(reports(&world).await, later);
    let rebuilt = typed(&world, "usage --rebuild", 0).await;
    assert!(rebuilt.contains("being rebuilt"), "{rebuilt}");
    typed(&world, "audit", 0).await;
    assert_eq!(reports(&world).await, later);
}

/// Returns the receipts of all accounts, from all pages.
async fn all_receipts(world: &World, query: &str) -> Vec<String> {
    let (mut numbers, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/admin/v1/receipts?{query}{after}");
        let answer = world.admin_get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let page = answer.json();
        let rows = page["receipts"].as_array().unwrap().iter();
        numbers.extend(rows.map(|row| row["number"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else {
            return numbers;
        };
        after = format!("&after={next}");
    }
}

/// Two accounts make calls in turn. The list has the calls in the order in which they were charged. Calls charged in
/// the same millisecond are ordered by account.
async fn receipts_of_all(world: &World) {
    let (_, mut receipts) = busy(world).await;
    let key = world.another_key("acme", json!({})).await;
    for _ in 0..2 {
        let answer = Op::Chat.call(world, &key, &Op::Chat.body("x")).await;
        receipts.push(world.receipt(&answer.number()).await);
    }
    receipts.reverse();
    receipts.sort_by_key(|receipt| std::cmp::Reverse(receipt["at_ms"].as_u64()));
    let numbers = |of: &dyn Fn(&Value) -> bool| -> Vec<String> {
        let found = receipts.iter().filter(|receipt| of(receipt));
        found
            .map(|receipt| receipt["number"].as_str().unwrap().to_owned())
            .collect()
    };
    for limit in [1, 3, 500] {
        let found = all_receipts(world, &format!("limit={limit}")).await;
        assert_eq!(found, numbers(&|_| true), "{limit}");
    }
    let of_chat = all_receipts(world, "model=chat&limit=2").await;
    assert_eq!(of_chat, numbers(&|receipt| receipt["model"] == "chat"));
    let of_beta = all_receipts(world, "account=beta&limit=2").await;
    assert_eq!(of_beta, numbers(&|receipt| receipt["account"] == "beta"));
    let none = all_receipts(world, "until=2000-01-01").await;
    assert_eq!(none, Vec::<String>::new());
}

#[tokio::test]
async fn latest_receipts_in_memory_include_those_of_all_accounts() {
    receipts_of_all(&World::start().await).await;
}

#[tokio::test]
async fn latest_receipts_in_sqlite_include_those_of_all_accounts() {
    let folder = folder();
    let url = format!("sqlite:{}", folder.path().join("books.db").display());
    receipts_of_all(&Setup::default().ledger(&url).start().await).await;
}

#[tokio::test]
async fn latest_receipts_in_redis_include_those_of_all_accounts() {
    let server = RedisServer::start().await;
    receipts_of_all(&Setup::default().ledger(&server.url()).start().await).await;
}

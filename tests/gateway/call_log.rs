//! Tests of the log lines of calls: each call has exactly one line, which is complete and contains the request number
//! that the caller got.

use crate::{edge::Edge, prelude::*};

const SESSION: &str = "0198c2de-7f10-7c3e-9d0e-6b1f2a3c4d5e";
/// An invalid session id. The gateway must not write it into its log.
const NO_SESSION: &str = "<script>forged</script>";

/// Posts `body` to an operation with this key.
async fn ask(edge: &Edge, op: Op, key: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {key}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("anthropic-version", "2026-10-21"),
        ("x-claude-code-session-id", NO_SESSION),
        ("x-session-id", SESSION),
    ];
    let url = format!("http://{}{}", edge.address, op.path());
    let req = request(Method::POST, &url, &headers, body.to_string().into());
    whole(edge.client.request(req).await.unwrap()).await
}

/// Returns all log lines that contain this request number.
fn lines(edge: &Edge, number: &str) -> Vec<Value> {
    let log = edge.log();
    let lines = log.lines().filter(|line| line.contains(number));
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Returns the log line that the gateway writes at the end of a call.
async fn line(edge: &Edge, answer: &Answer) -> Value {
    let number = answer.number();
    let line = eventually("the call has its line", async || {
        let found = lines(edge, &number);
        found.into_iter().find(|line| line["target"] == "call")
    })
    .await;
    assert_eq!(line["message"], "call");
    assert_eq!(line["number"], number);
    line
}

fn prefix(key: &str) -> &str {
    &key[..9]
}

#[tokio::test]
async fn served_call_has_one_log_line_with_all_its_facts() {
    let mut edge = Edge::start("").await;
    let key = edge.key().await;
    let mut answers = Vec::new();
    for op in BOTH {
        for stream in [false, true] {
            if stream {
                let reported = events(op, &["да"], 9, 2);
                edge.vendor.script(move |_| Reply::stream(reported.clone()));
            } else {
                edge.vendor.script(move |_| plain_reply(op, "да", 9, 2));
            }
            let body = with(op.body("x"), json!({ "stream": stream }));
            let answer = ask(&edge, op, &key, &body).await.expect(200);
            let line = line(&edge, &answer).await;
            let charged = match op {
                Op::Chat => "0.0013",
                Op::Messages => "0.013",
            };
            for (field, expected) in [
                ("level", json!("INFO")),
                ("account", json!("acme")),
                ("path", json!(op.path())),
                ("status", json!(200)),
                ("session", json!(SESSION)),
                ("model", json!(op.model())),
                ("vendor", json!(format!("{}-vendor", op.model()))),
                ("streamed", json!(stream)),
                ("input", json!(9)),
                ("cached_input", json!(0)),
                ("cache_write", json!(0)),
                ("output", json!(2)),
                ("estimated", json!(false)),
                ("bounded", json!(false)),
                ("charged_rub", json!(charged)),
                ("loss_rub", json!("0.00")),
                ("booked", json!("held")),
                ("end", json!("finished")),
                ("code", Value::Null),
                ("error", Value::Null),
            ] {
                assert_eq!(line[field], expected, "{field}: {line}");
            }
            let shown = line["key"].as_str().unwrap();
            assert!(shown.starts_with(prefix(&key)), "{line}");
            assert!(shown.len() < key.len(), "{line}");
            assert!(
                line["held_rub"].as_str().is_some_and(|held| held > "0.00"),
                "{line}"
            );
            let ms = |field: &str| {
                line[field]
                    .as_f64()
                    .unwrap_or_else(|| panic!("{field}: {line}"))
            };
            assert!(0.0 < ms("own_ms"), "{line}");
            assert!(ms("own_ms") < ms("first_byte_ms"), "{line}");
            assert!(ms("first_byte_ms") <= ms("whole_ms"), "{line}");
            answers.push(answer);
        }
    }
    // The gateway has ended, so it cannot write a second line for a call.
    assert_eq!(edge.stop().await, Some(0), "{}", edge.log());
    for answer in answers {
        assert_eq!(lines(&edge, &answer.number()).len(), 1, "{}", edge.log());
    }
    assert!(!edge.log().contains("script"), "{}", edge.log());
}

#[tokio::test]
async fn search_tool_that_the_gateway_removed_is_logged_for_vendors_of_every_format() {
    let mut edge = Edge::start("").await;
    let key = edge.key().await;
    edge.vendor
        .script(move |_| plain_reply(Op::Chat, "да", 9, 2));
    let function = json!({ "type": "function", "name": "f", "parameters": { "type": "object" } });
    let search = json!({ "type": "web_search" });
    for (tools, cut) in [
        (json!([search, function]), json!(1)),
        (json!([function, search, search]), json!(2)),
        (json!([function]), Value::Null),
    ] {
        let body = json!({ "model": "chat", "input": "x", "tools": tools });
        let url = format!("http://{}/v1/responses", edge.address);
        let req = json_request(Method::POST, &url, &key, body.to_string());
        let answer = whole(edge.client.request(req).await.unwrap())
            .await
            .expect(200);
        let line = line(&edge, &answer).await;
        assert_eq!(line["tools_cut"], cut, "{line}");
    }
    assert_eq!(edge.stop().await, Some(0), "{}", edge.log());
}

#[tokio::test]
async fn refused_call_has_exactly_one_log_line() {
    let mut edge = Edge::start("").await;
    let key = edge.key().await;
    let mut answers = Vec::new();
    let unknown = with(chat_body("x"), json!({ "model": "x".repeat(100) }));
    for (key, body, status, level, code) in [
        ("tg-rubbish", chat_body("x"), 401, "INFO", "invalid_api_key"),
        (key.as_str(), unknown, 503, "INFO", "model_not_found"),
        (
            key.as_str(),
            json!({ "model": "chat" }),
            400,
            "INFO",
            "invalid_request_error",
        ),
    ] {
        let answer = ask(&edge, Op::Chat, key, &body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        let line = line(&edge, &answer).await;
        assert_eq!(line["status"], status, "{line}");
        assert_eq!(line["level"], level, "{line}");
        assert_eq!(line["code"], code, "{line}");
        assert_eq!(line["path"], "/v1/chat/completions", "{line}");
        assert_eq!(line["account"].is_string(), status != 401, "{line}");
        assert_eq!(line["key"].is_string(), status != 401, "{line}");
        for nothing in ["charged_rub", "booked", "end", "vendor", "own_ms"] {
            assert_eq!(line[nothing], Value::Null, "{nothing}: {line}");
        }
        let model = line["model"].as_str().map(str::len);
        assert_eq!(model, (status == 503).then_some(64), "{line}");
        assert!(line["whole_ms"].as_f64() > Some(0.0), "{line}");
        // The error text in the log line is plain English, without names of Rust types.
        let error = line["error"].as_str().unwrap();
        assert!(!error.contains("Missing"), "{error}");
        assert!(!error.contains("Wrong"), "{error}");
        answers.push(answer);
    }
    assert_eq!(edge.stop().await, Some(0), "{}", edge.log());
    for answer in answers {
        assert_eq!(lines(&edge, &answer.number()).len(), 1, "{}", edge.log());
    }
}

#[tokio::test]
async fn log_line_of_a_failed_call_has_its_vendor_and_reason_but_no_cost() {
    let edge = Edge::start("").await;
    let key = edge.key().await;
    edge.vendor.script(|_| refusal(500, "out of order"));
    let answer = ask(&edge, Op::Chat, &key, &chat_body("x"))
        .await
        .expect(503);
    let line = line(&edge, &answer).await;
    assert_eq!(line["level"], "WARN", "{line}");
    assert_eq!(line["code"], "vendor_unavailable", "{line}");
    assert_eq!(line["vendor"], "chat-vendor", "{line}");
    assert_eq!(line["end"], "released", "{line}");
    assert_eq!(line["charged_rub"], Value::Null, "{line}");
    let cause = line["cause"].as_str().unwrap();
    assert!(cause.contains("500"), "{line}");
    assert!(cause.contains("out of order"), "{line}");
}

/// If the vendor does not know a model, the name in the route may be mistyped. The log must not report an outage of the
/// vendor.
#[tokio::test]
async fn model_missing_at_its_vendor_is_named_in_the_log_but_not_to_the_caller() {
    let edge = Edge::start("").await;
    let key = edge.key().await;
    let reported = "no model vendor-chat-1, see https://vendor.example/models";
    edge.vendor.script(move |_| refusal(404, reported));
    let answer = ask(&edge, Op::Chat, &key, &chat_body("x"))
        .await
        .expect(503);
    assert!(!answer.text().contains("vendor-chat-1"), "{answer:?}");
    let number = answer.number();
    let returned = eventually("the operator is told", async || {
        let mut found = lines(&edge, &number).into_iter();
        found.find(|line| line["level"] == "ERROR" && line["target"] != "call")
    })
    .await;
    let message = returned["message"].as_str().unwrap();
    assert!(message.contains("has no such model"), "{returned}");
    assert!(message.contains("routes[].model"), "{returned}");
    for (field, expected) in [
        ("vendor", json!("chat-vendor")),
        ("model", json!("vendor-chat-1")),
        ("status", json!(404)),
        (
            "error",
            json!("no model vendor-chat-1, see https://…/models"),
        ),
    ] {
        assert_eq!(returned[field], expected, "{field}: {returned}");
    }
    let vendors = edge.admin(Method::GET, "/admin/v1/vendors", None).await;
    let vendors = vendors.json();
    let route = &vendors["vendors"][0]["routes"][0];
    assert_eq!(route["model"], "vendor-chat-1", "{vendors}");
    assert_eq!(route["last_error"]["status"], 404, "{vendors}");
    let text = &route["last_error"]["text"];
    assert_eq!(text, "model not found (404)", "{vendors}");
    assert!(route["last_error"]["at"].is_string(), "{vendors}");
    assert_eq!(route["state"], "resting", "{vendors}");
    assert_eq!(route["failures"], 0, "{vendors}");
}

/// If a vendor refuses a call with 403, the reason may be the model or the content of this request, so the vendor's key
/// may still work for other requests.
#[tokio::test]
async fn log_line_states_that_a_vendor_key_is_paused_only_if_it_is_paused() {
    for (status, says) in [(401, "key, which is parked"), (403, "its route is paused")] {
        let edge = Edge::start("").await;
        let key = edge.key().await;
        edge.vendor.script(move |_| refusal(status, "no"));
        let answer = ask(&edge, Op::Chat, &key, &chat_body("x"))
            .await
            .expect(503);
        let number = answer.number();
        let returned = eventually("the operator is told", async || {
            let mut found = lines(&edge, &number).into_iter();
            found.find(|line| line["level"] == "ERROR")
        })
        .await;
        assert_eq!(returned["status"], status, "{returned}");
        assert!(
            returned["message"].as_str().unwrap().contains(says),
            "{returned}"
        );
        let vendors = edge.admin(Method::GET, "/admin/v1/vendors", None).await;
        let parked = &vendors.json()["vendors"][0]["keys_parked"];
        assert_eq!(*parked, u64::from(status == 401), "{returned}");
    }
}

#[tokio::test]
async fn log_line_of_a_broken_stream_has_the_reason() {
    let edge = Edge::start("").await;
    let key = edge.key().await;
    let mut reported = events(Op::Chat, &["раз ", "два"], 9, 2);
    reported.truncate(2);
    edge.vendor
        .script(move |_| Reply::stream(reported.clone()).cut());
    let body = with(chat_body("x"), json!({ "stream": true }));
    let answer = ask(&edge, Op::Chat, &key, &body).await.expect(200);
    let line = line(&edge, &answer).await;
    for (field, expected) in [
        ("level", "WARN"),
        ("code", "vendor_broken"),
        ("end", "vendor_cut"),
    ] {
        assert_eq!(line[field], expected, "{field}: {line}");
    }
    assert_eq!(line["status"], 200, "{line}");
    assert_eq!(line["estimated"], true, "{line}");
}

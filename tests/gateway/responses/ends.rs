//! Tests of streams that the vendor ends with an error, cuts off, or leaves incomplete.

use super::{ask, beginning, body, charged, cost, delta, event, says, setup, stream, usage};
use crate::prelude::*;

const COUNTS: [u64; 4] = [9, 0, 0, 5];

fn streamed() -> Value {
    body(json!({ "stream": true }))
}

/// Parses the data of each event of a stream.
fn data(stream: &str) -> Vec<Value> {
    let lines = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    lines
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn flat(code: &str) -> String {
    event(
        &json!({ "type": "error", "sequence_number": 3, "code": code, "message": "words of theirs", "param": null }),
    )
}

fn nested(code: &str) -> String {
    event(&json!({ "type": "error", "sequence_number": 3,
        "error": { "type": "x", "code": code, "message": "words of theirs", "param": null } }))
}

fn failed(code: &str, usage: &Value) -> String {
    event(
        &json!({ "type": "response.failed", "sequence_number": 3, "response": { "id": "resp_v1",
        "status": "failed", "output": [], "usage": usage,
        "error": { "code": code, "message": "words of theirs" } } }),
    )
}

/// Checks that after the text `before`, the stream contains only the gateway's two events about an error. Returns the
/// code of the error.
fn ends(what: &str, answer: &Answer, before: &str) -> String {
    assert_eq!(answer.status, 200, "{what}: {answer:?}");
    let text = answer.text();
    let behind = text
        .strip_prefix(before)
        .unwrap_or_else(|| panic!("{what}: {text}"));
    let events = data(behind);
    let [error, failed] = &events[..] else {
        panic!("{what}: {behind}");
    };
    assert_eq!(error["type"], "error", "{what}");
    assert_eq!(failed["type"], "response.failed", "{what}");
    assert_eq!(error["sequence_number"], 3, "{what}");
    assert_eq!(failed["sequence_number"], 4, "{what}");
    let response = &failed["response"];
    assert_eq!(response["id"], "resp_v1", "{what}");
    assert_eq!(response["status"], "failed", "{what}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.ends_with(&format!(" ({})", answer.number())),
        "{what}: {message}"
    );
    assert_eq!(response["error"]["message"], message, "{what}");
    assert_eq!(error["error"]["message"], message, "{what}");
    assert_eq!(response["error"]["code"], error["code"], "{what}");
    error["code"].as_str().unwrap().to_owned()
}

/// The code of a request that exceeds the model's context.
const LONG: &str = "context_length_exceeded";

#[tokio::test]
async fn broken_responses_stream_ends_with_two_gateway_events_and_the_request_number() {
    let (world, key) = setup().start_with_key().await;
    let begun = [beginning().concat(), delta(2, "раз ")].concat();
    let silently = failed("server_error", &Value::Null);
    let half = "event: response.output_text.delta\ndata: {\"type";
    for (what, more, code) in [
        ("flat", flat("server_error"), "server_error"),
        ("nested", nested("insufficient_quota"), "server_error"),
        (
            "a limit",
            nested("rate_limit_exceeded"),
            "rate_limit_exceeded",
        ),
        ("failed", silently.clone(), "server_error"),
        ("both", nested("server_error") + &silently, "server_error"),
        ("the end", String::new(), "server_error"),
        ("half an event", half.to_owned(), "server_error"),
        ("a reset", String::new(), "server_error"),
    ] {
        let reply = Reply::stream([begun.clone(), more]);
        let resets = what == "a reset";
        says(&world, if resets { reply.cut() } else { reply });
        let answer = ask(&world, &key, &streamed()).await;
        assert_eq!(ends(what, &answer, &begun), code, "{what}");
        assert!(!answer.text().contains("words of theirs"), "{what}");
        // The receipt has estimated counts: of the input, and of the seven bytes of text that were delivered.
        let receipt = world.receipt(&answer.number()).await;
        assert!(micro(&receipt["charged_rub"]) > 0, "{what}: {receipt}");
        assert_eq!(receipt["estimated"], true, "{what}: {receipt}");
    }
    let reported = [begun.clone(), failed("server_error", &usage(COUNTS))];
    says(&world, Reply::stream(reported));
    let answer = ask(&world, &key, &streamed()).await;
    ends("with usage", &answer, &begun);
    charged("with usage", &world, &answer, cost(COUNTS), false).await;
    // The text of the vendor's error is forwarded if the caller can correct the error.
    says(&world, Reply::stream([begun.clone(), nested(LONG)]));
    let answer = ask(&world, &key, &streamed()).await;
    let code = ends("too long", &answer, &begun);
    assert_eq!(code, LONG);
    assert!(answer.text().contains("words of theirs"), "{answer:?}");
}

#[tokio::test]
async fn responses_failure_before_any_content_has_an_error_status() {
    let (world, key) = setup().start_with_key().await;
    for begun in [String::new(), beginning().concat()] {
        for (code, status, kind, ours) in [
            ("server_error", 503, API, "vendor_unavailable"),
            ("insufficient_quota", 503, API, "vendor_unavailable"),
            ("rate_limit_exceeded", 429, LIMIT, "vendor_rate_limit"),
            ("invalid_prompt", 400, INVALID, ""),
            (LONG, 400, INVALID, LONG),
            ("image_too_large", 400, INVALID, ""),
        ] {
            for reported in [flat(code), nested(code), failed(code, &Value::Null)] {
                says(&world, Reply::stream([begun.clone(), reported.clone()]));
                let answer = ask(&world, &key, &streamed()).await;
                refused(&reported, &answer, status, kind, ours);
                cost_nothing(&reported, &world, &key, &answer).await;
            }
        }
    }
}

#[tokio::test]
async fn responses_client_that_disconnects_after_the_last_event_counts_as_finished() {
    let (world, key) = setup().start_with_key().await;
    let events = stream(&["раз ", "два"], &usage(COUNTS));
    let hold = std::sync::Arc::new(tokio::sync::Notify::new());
    let reply = Reply::stream(events.clone()).with_step(events.len(), Step::Hold(hold));
    says(&world, reply);
    let bearer = format!("Bearer {}", key.secret);
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
    ];
    let url = world.url("/v1/responses");
    let req = request(
        http::Method::POST,
        &url,
        &headers,
        streamed().to_string().into(),
    );
    let mut res = world.send(req).await;
    let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
    let mut text = String::new();
    while !text.contains("response.completed") {
        text.push_str(&next_text(res.body_mut()).await.unwrap());
    }
    drop(res);
    let receipt = world.receipt(&number).await;
    let charge = i64::try_from(cost(COUNTS)).unwrap();
    assert_eq!(micro(&receipt["charged_rub"]), charge, "{receipt}");
    assert_eq!(receipt["end"], "finished", "{receipt}");
}

//! Tests of responses from a vendor of the Responses format to a caller of the same format: the bytes are forwarded
//! unchanged, and the cost is correct.

use std::{fs, path::Path};

use super::{answer, ask, body, charged, cost, event, says, setup, stream, usage, world};
use crate::prelude::*;

const COUNTS: [u64; 4] = [9, 3, 2, 5];

fn streamed() -> Value {
    body(json!({ "stream": true }))
}

/// Returns the stream as the vendor sent it, and the cost that the gateway has inserted before the last event.
fn returned(answer: &Answer) -> (String, String) {
    let text = answer.text();
    let (reported, cost) = told_cost(&text);
    (reported, cost.to_owned())
}

/// Returns the recordings of the Responses format whose files have this extension, except recordings of errors.
fn recorded(ending: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/fixtures");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let is_error = name.contains("error-") || name.contains("failed-");
        if name.starts_with("responses-") && name.ends_with(ending) && !is_error {
            found.push((name, fs::read_to_string(entry.path()).unwrap()));
        }
    }
    assert!(found.len() >= 3, "{ending}: {}", found.len());
    found
}

/// Returns the token counts of a recorded usage.
fn counts(usage: &Value) -> [u64; 4] {
    let details = &usage["input_tokens_details"];
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    [
        count(&usage["input_tokens"]),
        count(&details["cached_tokens"]),
        count(&details["cache_write_tokens"]),
        count(&usage["output_tokens"]),
    ]
}

/// Returns a key and a request whose hold is large enough for every recording.
async fn rich(world: &World) -> (Key, Value) {
    let key = world.key_with("rich", "1000000", json!({})).await;
    (key, body(json!({ "input": "слово ".repeat(50_000) })))
}

#[tokio::test]
async fn recorded_responses_pass_byte_for_byte_and_are_charged_by_their_usage() {
    let world = world().await;
    let (key, body) = rich(&world).await;
    for (name, reported) in recorded(".json") {
        let step = Step::Send(reported.clone().into());
        says(&world, Reply::raw(200, "application/json", vec![step]));
        let answer = ask(&world, &key, &body).await;
        let json: Value = serde_json::from_str(&reported).unwrap();
        let counts = counts(&json["usage"]);
        // In one recording, all counts of the usage are zero. The gateway does not rely on such a usage, and estimates
        // the counts.
        if counts == [0; 4] {
            assert_eq!(world.receipt(&answer.number()).await["estimated"], true);
            continue;
        }
        assert_eq!(answer.status, 200, "{name}");
        assert_eq!(answer.text(), reported, "{name}");
        charged(&name, &world, &answer, cost(counts), false).await;
    }
}

/// Returns the stream up to its last event, and the last event. The gateway drops all data after it.
fn up_to_the_last(stream: &str) -> (&str, Value) {
    let mut end = 0;
    for event in stream.split_inclusive("\n\n") {
        end += event.len();
        let data = event.lines().find_map(|line| line.strip_prefix("data:"));
        let data: Value = data
            .and_then(|data| serde_json::from_str(data).ok())
            .unwrap_or_default();
        if matches!(
            data["type"].as_str(),
            Some("response.completed" | "response.incomplete")
        ) {
            return (&stream[..end], data["response"]["usage"].clone());
        }
    }
    panic!("there is no last event");
}

#[tokio::test]
async fn recorded_responses_streams_pass_byte_for_byte_in_any_split() {
    let world = world().await;
    let (key, body) = rich(&world).await;
    let body = crate::harness::with(body, json!({ "stream": true }));
    for (name, reported) in recorded(".sse") {
        let (expected, usage) = up_to_the_last(&reported);
        for size in [7, 1000, usize::MAX] {
            let steps = reported.as_bytes().chunks(size.min(reported.len()));
            let steps = steps
                .map(|piece| Step::Send(piece.to_vec().into()))
                .collect();
            says(&world, Reply::raw(200, "text/event-stream", steps));
            let answer = ask(&world, &key, &body).await;
            assert_eq!(answer.status, 200, "{name}");
            let (text, _) = returned(&answer);
            assert!(!answer.failed, "{name} by {size}: {text}");
            assert!(text == expected, "{name} by {size}: {text}");
            charged(&name, &world, &answer, cost(counts(&usage)), false).await;
        }
    }
}

#[tokio::test]
async fn responses_stream_is_forwarded_and_charged_despite_comments_and_crlf_and_a_done_event() {
    let (world, key) = setup().start_with_key().await;
    let usual = stream(&["раз ", "два"], &usage(COUNTS)).concat();
    let no_names: String = usual
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("event:"))
        .collect();
    for (reported, behind) in [
        (usual.replace('\n', "\r\n"), ""),
        (no_names, "data: [DONE]\n\n"),
        (format!(": PROCESSING\n\n{usual}"), ": bye\n\n"),
    ] {
        says(&world, Reply::stream([reported.clone() + behind]));
        let answer = ask(&world, &key, &streamed()).await;
        assert_eq!(returned(&answer).0, reported);
        charged("a stream", &world, &answer, cost(COUNTS), false).await;
    }
}

#[tokio::test]
async fn responses_usage_is_read_once_from_the_last_event_or_else_estimated() {
    let (world, key) = setup().start_with_key().await;
    let mut early = stream(&["раз ", "два"], &usage(COUNTS));
    early[0] = early[0].replace(
        "\"usage\":null",
        "\"usage\":{\"input_tokens\":7,\"output_tokens\":70}",
    );
    for events in [stream(&["раз ", "два"], &usage(COUNTS)), early] {
        says(&world, Reply::stream(events));
        let answer = ask(&world, &key, &streamed()).await;
        charged("said", &world, &answer, cost(COUNTS), false).await;
    }
    // The output of thirteen bytes counts as four tokens. The input is estimated in the same way for plain responses
    // and for streams.
    says(
        &world,
        Reply::stream(stream(&["раз ", "два"], &Value::Null)),
    );
    let streamed = ask(&world, &key, &streamed()).await;
    says(&world, Reply::json(200, &answer("раз два", &Value::Null)));
    let plain = ask(&world, &key, &body(json!({}))).await;
    let receipts = [
        world.receipt(&streamed.number()).await,
        world.receipt(&plain.number()).await,
    ];
    for receipt in &receipts {
        assert_eq!(receipt["estimated"], true, "{receipt}");
        let charged = &receipts[0]["charged_rub"];
        assert_eq!(receipt["charged_rub"], *charged, "{receipt}");
    }
    let reported = plain.json();
    assert_eq!(reported["usage"]["output_tokens"], 4, "{reported}");
    let input = reported["usage"]["input_tokens"].as_u64().unwrap();
    assert!(input > 0, "{reported}");
}

#[tokio::test]
async fn unknown_events_and_fields_of_a_responses_stream_pass_unchanged() {
    let (world, key) = setup().start_with_key().await;
    let mut events = stream(&["раз"], &usage(COUNTS));
    let song = json!({ "type": "response.song.delta", "sequence_number": 9, "delta": "ля" });
    events.insert(3, event(&song));
    let keepalive = json!({ "type": "keepalive", "sequence_number": 8 });
    events.insert(3, event(&keepalive));
    says(&world, Reply::stream(events.clone()));
    let answer = ask(&world, &key, &streamed()).await;
    assert_eq!(returned(&answer).0, events.concat());
}

#[tokio::test]
async fn invalid_answer_of_a_responses_vendor_becomes_an_error_and_costs_nothing() {
    let (world, key) = setup().start_with_key().await;
    let ended = |status: &str, error: Value| {
        let mut answer = answer("", &Value::Null);
        answer["status"] = status.into();
        answer["error"] = error;
        Reply::json(200, &answer)
    };
    let error = |code: &str| json!({ "code": code, "message": "the words of sk-vendor" });
    let whole = Reply::json(200, &answer("да", &usage(COUNTS)));
    let events = Reply::stream(stream(&["да"], &usage(COUNTS)));
    let failed = |code: &str| ended("failed", error(code));
    let silent = |status: &str| ended(status, Value::Null);
    for (what, reply, status, kind, code) in [
        (
            "failed",
            failed("server_error"),
            503,
            API,
            "vendor_unavailable",
        ),
        (
            "failed, silently",
            silent("failed"),
            503,
            API,
            "vendor_unavailable",
        ),
        (
            "cancelled",
            silent("cancelled"),
            503,
            API,
            "vendor_unavailable",
        ),
        (
            "a limit",
            failed("rate_limit_exceeded"),
            429,
            LIMIT,
            "vendor_rate_limit",
        ),
        ("a bad prompt", failed("invalid_prompt"), 400, INVALID, ""),
        ("queued", silent("queued"), 502, API, "vendor_broken"),
        ("JSON for a stream", whole, 502, API, "vendor_broken"),
        ("a stream for JSON", events, 502, API, "vendor_broken"),
    ] {
        let streamed = what == "JSON for a stream";
        says(&world, reply);
        let answer = ask(&world, &key, &body(json!({ "stream": streamed }))).await;
        refused(what, &answer, status, kind, code);
        cost_nothing(what, &world, &key, &answer).await;
    }
}

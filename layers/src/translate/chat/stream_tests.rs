//! Numbered cases of a Messages stream that is translated for a Chat Completions caller.

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use crate::{
    call::Format,
    error::Error,
    formats::{chat::NAME_BYTES_MAX, wire::AnswerCx},
    sse::Splitter,
    translate::{Origin, Translator},
};

const CX: AnswerCx = AnswerCx {
    created: 1_790_000_000,
    usage_asked: false,
    thinking_asked: false,
};

const START: &str = r#"{"type":"message_start","message":{"id":"msg_1","model":"opus","content":[],
        "usage":{"input_tokens":5,"cache_read_input_tokens":7,"cache_creation_input_tokens":2,"output_tokens":1}}}"#;
const STOP: &str = r#"{"type":"message_stop"}"#;

fn stop_reason(reason: &str) -> String {
    format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{{"output_tokens":9}}}}"#
    )
}

fn block(index: u64, block: &str) -> String {
    format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#)
}

fn delta(index: u64, delta: &str) -> String {
    format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
}

fn block_stop(index: u64) -> String {
    format!(r#"{{"type":"content_block_stop","index":{index}}}"#)
}

/// Returns the translation of these events, and the result with which the stream ended.
fn run<E: AsRef<str>>(cx: AnswerCx, events: &[E]) -> (String, Result<(), Error>) {
    let (mut stream, mut out, mut result) = (
        Translator::to_chat(Format::Messages, Origin::default(), cx, false),
        BytesMut::new(),
        Ok(()),
    );
    let mut splitter = Splitter::default();
    let text: String = events
        .iter()
        .map(|data| {
            format!(
                "event: any\ndata: {}\n\n",
                data.as_ref().replace('\n', "\ndata: ")
            )
        })
        .collect();
    splitter
        .push(&Bytes::from(text), |event| {
            if result.is_ok() {
                result = stream.event(&event, &mut out);
            }
        })
        .unwrap();
    let result = result.and_then(|()| stream.end(&mut out));
    (String::from_utf8(out.to_vec()).unwrap(), result)
}

/// Returns the chunks of a complete stream as JSON. Checks that the last event is `[DONE]`, and removes it.
fn chunks<E: AsRef<str>>(cx: AnswerCx, events: &[E]) -> Vec<Value> {
    let (text, result) = run(cx, events);
    result.unwrap();
    let text = text
        .strip_suffix("data: [DONE]\n\n")
        .expect("[DONE] is last");
    text.split_terminator("\n\n")
        .filter(|event| !event.starts_with(':'))
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect()
}

fn deltas<E: AsRef<str>>(events: &[E]) -> Vec<Value> {
    let chunks = chunks(CX, events);
    chunks
        .iter()
        .map(|chunk| chunk["choices"][0]["delta"].clone())
        .collect()
}

/// Adds the first and the last events of a stream before and after these events.
fn whole(events: &[String], reason: &str) -> Vec<String> {
    [
        &[START.to_owned()][..],
        events,
        &[stop_reason(reason), STOP.to_owned()][..],
    ]
    .concat()
}

fn text(index: u64, text: &str) -> [String; 3] {
    [
        block(index, r#"{"type":"text","text":""}"#),
        delta(
            index,
            &format!(r#"{{"type":"text_delta","text":"{text}"}}"#),
        ),
        block_stop(index),
    ]
}

fn tool(index: u64, pieces: &[&str]) -> Vec<String> {
    let start =
        format!(r#"{{"type":"tool_use","id":"toolu_{index}","name":"f{index}","input":{{}}}}"#);
    let mut events = vec![block(index, &start)];
    events.extend(pieces.iter().map(|piece| {
        delta(
            index,
            &json!({"type": "input_json_delta", "partial_json": piece}).to_string(),
        )
    }));
    events.push(block_stop(index));
    events
}

#[test]
fn case_67_role_is_sent_once_and_id_and_model_stay_the_same() {
    let events = whole(&[text(0, "a"), text(1, "b")].concat(), "end_turn");
    let chunks = chunks(CX, &events);
    assert_eq!(
        chunks[0],
        json!({
            "id": "msg_1", "object": "chat.completion.chunk", "created": CX.created, "model": "opus",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}],
        })
    );
    assert_eq!(chunks.len(), 4);
    for chunk in &chunks[1..] {
        for name in ["id", "object", "created", "model"] {
            assert_eq!(chunk[name], chunks[0][name]);
        }
        assert!(chunk["choices"][0]["delta"].get("role").is_none());
    }
}

#[test]
fn case_68_tool_calls_are_numbered_separately_from_other_blocks() {
    let dropped = block(
        2,
        r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_fetch","input":{}}"#,
    );
    let search = delta(
        2,
        r#"{"type":"input_json_delta","partial_json":"{\"url\":1}"}"#,
    );
    let result = block(
        3,
        r#"{"type":"web_fetch_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"x"}}"#,
    );
    let events = [
        &text(0, "x")[..],
        &tool(1, &["{}"])[..],
        &[dropped, search, block_stop(2), result, block_stop(3)][..],
        &tool(4, &["{}"])[..],
    ]
    .concat();
    let calls: Vec<_> = deltas(&whole(&events, "tool_use"))
        .into_iter()
        .filter(|delta| delta.get("tool_calls").is_some())
        .map(|delta| {
            (
                delta["tool_calls"][0]["index"].clone(),
                delta["tool_calls"][0]["id"].clone(),
            )
        })
        .collect();
    let expected = [
        (json!(0), json!("toolu_1")),
        (json!(0), Value::Null),
        (json!(1), json!("toolu_4")),
        (json!(1), Value::Null),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn case_69_tool_name_is_sent_only_in_the_first_delta() {
    let events = whole(&tool(0, &["", "{\"city\"", ": \"Омск\"}"]), "tool_use");
    let expected = [
        json!({"role": "assistant", "content": ""}),
        json!({"tool_calls": [{"index": 0, "id": "toolu_0", "type": "function",
                "function": {"name": "f0", "arguments": ""}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"city\""}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": ": \"Омск\"}"}}]}),
        json!({}),
    ];
    assert_eq!(deltas(&events), expected);
}

#[test]
fn case_70_tool_call_without_arguments_has_the_empty_object() {
    for (name, events) in [
        ("no delta", tool(0, &[])),
        ("empty delta", tool(0, &["", ""])),
        ("blanks", tool(0, &[" ", "\n"])),
        ("null", tool(0, &["nu", "ll "])),
        ("no block stop", tool(0, &[])[..1].to_vec()),
    ] {
        let deltas = deltas(&whole(&events, "tool_use"));
        assert_eq!(deltas.len(), 4, "{name}");
        let call = json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]});
        assert_eq!(deltas[2], call, "{name}");
    }
}

#[test]
fn null_inside_tool_call_arguments_is_kept() {
    for input in ["{}", "null", r#""""#] {
        let start = format!(r#"{{"type":"tool_use","id":"t","name":"f","input":{input}}}"#);
        let pieces = ["{\"a\":[1,", "null", "]}"];
        let mut events = tool(0, &pieces);
        events[0] = block(0, &start);
        let deltas = deltas(&whole(&events, "tool_use"));
        let reported = deltas[2..5]
            .iter()
            .map(|delta| &delta["tool_calls"][0]["function"]["arguments"]);
        assert!(reported.eq(&pieces), "{input}: {deltas:?}");
    }
}

#[test]
fn usage_is_read_despite_malformed_fields_around_it() {
    let cx = AnswerCx {
        usage_asked: true,
        ..CX
    };
    let odd = |delta: &str, usage: &str| {
        format!(r#"{{"type":"message_delta","delta":{delta},"usage":{usage}}}"#)
    };
    for delta in ["7", "[]", r#"{"stop_reason":7}"#] {
        let mut events = whole(&text(0, "a"), "end_turn");
        events.insert(events.len() - 1, odd(delta, r#"{"output_tokens":11}"#));
        let chunks = chunks(cx, &events);
        assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 11);
        // An event with an invalid `delta` is ignored except for its usage. Without usage, it is an error.
        let at = events.len() - 2;
        events[at] = odd(delta, "null");
        assert!(run(cx, &events).1.is_err(), "{delta}");
        let mut lost = whole(&text(0, "a"), "end_turn");
        let at = lost.len() - 2;
        lost[at] = odd(delta, r#"{"output_tokens":11}"#);
        assert!(run(cx, &lost).1.is_err(), "{delta}");
    }
}

#[test]
fn tool_input_in_the_first_event_of_its_block_is_sent_once() {
    let start = r#"{"type":"tool_use","id":"t","name":"f","input":{"n": 12345678901234567890123}}"#;
    for pieces in [
        &[][..],
        &[r#"{"type":"input_json_delta","partial_json":"{\"n\":1}"}"#][..],
    ] {
        let mut events = vec![block(0, start)];
        events.extend(pieces.iter().map(|piece| delta(0, piece)));
        events.push(block_stop(0));
        let deltas = deltas(&whole(&events, "tool_use"));
        assert_eq!(deltas.len(), 4);
        assert_eq!(
            deltas[2]["tool_calls"][0]["function"]["arguments"],
            r#"{"n":12345678901234567890123}"#
        );
    }
}

#[test]
fn case_71_thinking_becomes_reasoning_and_signatures_are_dropped() {
    let events = [
        block(0, r#"{"type":"thinking","thinking":"","signature":""}"#),
        delta(0, r#"{"type":"thinking_delta","thinking":"hm\n\u0436"}"#),
        delta(0, r#"{"type":"signature_delta","signature":"EqkB"}"#),
        block_stop(0),
        block(1, r#"{"type":"redacted_thinking","data":"secret"}"#),
        block_stop(1),
        block(2, r#"{"type":"text","text":"be"}"#),
        delta(2, r#"{"type":"citations_delta","citation":{"text":7}}"#),
        delta(2, r#"{"type":"text_delta","text":"gun"}"#),
        block_stop(2),
    ];
    let expected = [
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning_content": "hm\nж"}),
        json!({"content": "be"}),
        json!({"content": "gun"}),
        json!({}),
    ];
    assert_eq!(deltas(&whole(&events, "end_turn")), expected);
}

#[test]
fn case_72_ping_becomes_a_comment() {
    let events = whole(&[r#"{"type": "ping"}"#.to_owned()], "end_turn");
    let (out, result) = run(CX, &events);
    assert!(
        result.is_ok() && out.contains("\n\n: keep-alive\n\n"),
        "{out}"
    );
}

#[test]
fn case_73_finish_reason_has_a_chunk_of_its_own() {
    for (reason, expected) in [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        // Without a tool call, the reason `tool_use` would make agents wait for a call.
        ("tool_use", "stop"),
        ("refusal", "content_filter"),
    ] {
        let mut events = whole(&text(0, "a"), reason);
        // Vendors may report usage again after the stop reason.
        events.insert(events.len() - 1, stop_reason(reason));
        let chunks = chunks(CX, &events);
        let reasons: Vec<_> = chunks
            .iter()
            .map(|chunk| chunk["choices"][0]["finish_reason"].clone())
            .collect();
        assert_eq!(reasons, [Value::Null, Value::Null, json!(expected)]);
        assert_eq!(chunks[2]["choices"][0]["delta"], json!({}));
    }
    let called = chunks(CX, &whole(&tool(0, &["{}"]), "tool_use"));
    let last = called.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn case_74_later_usage_replaces_earlier_usage() {
    let later = r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"input_tokens":6,"cache_creation_input_tokens":null,
            "output_tokens":4,"output_tokens_details":{"thinking_tokens":3}}}"#;
    let cx = AnswerCx {
        usage_asked: true,
        ..CX
    };
    let chunks = chunks(cx, &whole(&[later.to_owned()], "end_turn"));
    assert_eq!(
        chunks.last().unwrap()["usage"],
        json!({
            "prompt_tokens": 15, "completion_tokens": 9, "total_tokens": 24,
            "prompt_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 3},
        })
    );
}

#[test]
fn case_75_usage_chunk_is_sent_if_requested() {
    let events = whole(&text(0, "a"), "end_turn");
    let chunks = |usage_asked| chunks(AnswerCx { usage_asked, ..CX }, &events);
    let requested = chunks(true);
    let (last, before) = requested.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], 23);
    assert_eq!(
        (&last["id"], &last["model"]),
        (&json!("msg_1"), &json!("opus"))
    );
    assert!(
        before
            .iter()
            .all(|chunk| chunk.get("usage") == Some(&Value::Null))
    );
    let not_asked = chunks(false);
    assert_eq!(not_asked.len(), before.len());
    assert!(not_asked.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[test]
fn case_76_error_event_ends_the_stream_without_done() {
    // `passthrough` turns this event into an error of the body. So the translation must write nothing for it.
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"org-1"}}"#;
    let events = [
        &[START.to_owned()][..],
        &text(0, "a")[..],
        &[error.to_owned()][..],
    ]
    .concat();
    let (out, result) = run(CX, &events);
    assert!(matches!(result, Err(Error::VendorBroken(_))));
    assert!(!out.contains("[DONE]") && !out.contains("org-1"), "{out}");
}

#[test]
fn case_77_truncated_stream_never_looks_finished() {
    let events = whole(
        &[&text(0, "a")[..], &tool(1, &["{\"a\":"])[..]].concat(),
        "tool_use",
    );
    let reason_at = events.len() - 2;
    for end in 0..events.len() {
        let (out, result) = run(CX, &events[..end]);
        assert!(
            matches!(result, Err(Error::VendorBroken(_))),
            "{end} events"
        );
        assert!(!out.contains("[DONE]"), "{out}");
        assert_eq!(
            out.contains("\"finish_reason\":\""),
            end > reason_at,
            "{out}"
        );
    }
    let mut no_reason = events;
    no_reason.remove(reason_at);
    let (out, result) = run(CX, &no_reason);
    assert!(matches!(result, Err(Error::VendorBroken(_))));
    assert!(
        !out.contains("[DONE]") && !out.contains("\"finish_reason\":\""),
        "{out}"
    );
}

#[test]
fn case_78_nothing_is_written_if_the_first_event_is_an_error() {
    // If the first event is an error, nothing is written, so that the response can still have an error status.
    let (out, result) = run(
        CX,
        &[r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#],
    );
    assert!(out.is_empty() && matches!(result, Err(Error::VendorBroken(_))));
}

#[test]
fn case_78a_input_count_is_taken_from_the_first_event_if_the_last_has_none() {
    let cx = AnswerCx {
        usage_asked: true,
        ..CX
    };
    let chunks = chunks(cx, &whole(&[], "end_turn"));
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(14), &json!(9))
    );
}

#[test]
fn unknown_events_are_skipped_and_malformed_events_are_errors() {
    let unknown = [
        r#"{"type":"tomorrow","delta":"any shape","index":"x"}"#.to_owned(),
        delta(0, r#"{"type":"compaction_delta","text":{"a":1}}"#),
        block(0, r#"{"type":"compaction","text":{"a":1}}"#),
    ];
    assert_eq!(deltas(&whole(&unknown, "end_turn")).len(), 2);
    let long = START.replace("msg_1", &"x".repeat(NAME_BYTES_MAX));
    for events in [
        vec!["nonsense".to_owned()],
        vec![r#"{"no":"type"}"#.to_owned()],
        vec![r#"{"type":"message_start"}"#.to_owned()],
        vec![START.replace("\"msg_1\"", "7")],
        vec![long],
        text(0, "before the start").to_vec(),
        whole(
            &[r#"{"type":"content_block_start","index":0}"#.to_owned()],
            "end_turn",
        ),
        whole(
            &[block(0, r#"{"type":"tool_use","name":"f","input":{}}"#)],
            "tool_use",
        ),
        whole(
            &[
                block(0, r#"{"type":"text"}"#),
                delta(0, r#"{"type":"text_delta"}"#),
            ],
            "end_turn",
        ),
        whole(
            &[delta(
                0,
                r#"{"type":"input_json_delta","partial_json":"{}"}"#,
            )],
            "tool_use",
        ),
        // Two tool calls that are open at once are an error, because arguments could be added to the wrong tool call.
        whole(
            &[
                block(0, r#"{"type":"tool_use","id":"a","name":"f","input":{}}"#),
                block(1, r#"{"type":"tool_use","id":"b","name":"f","input":{}}"#),
                delta(0, r#"{"type":"input_json_delta","partial_json":"{}"}"#),
            ],
            "tool_use",
        ),
    ] {
        let (_, result) = run(CX, &events);
        assert!(matches!(result, Err(Error::VendorBroken(_))), "{events:?}");
    }
}

#[test]
fn memory_of_a_translated_stream_does_not_grow_with_its_length() {
    let (mut stream, mut out) = (
        Translator::to_chat(Format::Messages, Origin::default(), CX, false),
        BytesMut::new(),
    );
    let long = delta(
        0,
        &format!(r#"{{"type":"text_delta","text":"{}"}}"#, "x".repeat(10_000)),
    );
    let text: String = [START.to_owned(), block(0, r#"{"type":"text","text":""}"#)]
        .into_iter()
        .chain(std::iter::repeat_n(long, 100))
        .map(|data| format!("data: {}\n\n", data.replace('\n', " ")))
        .collect();
    Splitter::default()
        .push(&Bytes::from(text), |event| {
            stream.event(&event, &mut out).unwrap();
            let stored = format!("{stream:?}").len();
            assert!(stored <= 1536, "{stored}");
            out.clear();
        })
        .unwrap();
}

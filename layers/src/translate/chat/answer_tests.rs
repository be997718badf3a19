//! Numbered cases of a plain Messages response that is translated for a Chat Completions caller.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    call::Format,
    error::Error,
    formats::wire::AnswerCx,
    translate::{Origin, Translator},
};

const CX: AnswerCx = AnswerCx {
    created: 1_790_000_000,
    usage_asked: false,
    thinking_asked: false,
};

fn plain(vendor: &[u8]) -> Result<Bytes, Error> {
    Translator::to_chat(Format::Messages, Origin::default(), CX, true).answer(vendor)
}

fn translated(vendor: &str) -> Value {
    serde_json::from_slice(&plain(vendor.as_bytes()).unwrap()).unwrap()
}

fn with(content: &str, stop_reason: &str) -> Value {
    translated(&format!(
        r#"{{"id":"msg_1","type":"message","role":"assistant","model":"opus","content":{content},
        "stop_reason":{stop_reason},"stop_sequence":null,"usage":{{"input_tokens":3,"output_tokens":2}}}}"#
    ))
}

#[test]
fn case_50_stop_reasons_become_finish_reasons() {
    for (stop_reason, finish_reason) in [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        // Without a tool call, `tool_use` would make agents wait for ever for a call that does not exist.
        ("tool_use", "stop"),
        ("refusal", "content_filter"),
        ("pause_turn", "stop"),
        ("model_context_window_exceeded", "length"),
        ("one_of_tomorrow", "stop"),
    ] {
        let answer = with(
            r#"[{"type":"text","text":"x"}]"#,
            &format!("\"{stop_reason}\""),
        );
        assert_eq!(
            answer["choices"][0]["finish_reason"], finish_reason,
            "{stop_reason}"
        );
    }
    let call = r#"[{"type":"tool_use","id":"t","name":"f","input":{}}]"#;
    let answer = with(call, r#""tool_use""#);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn case_54_several_text_blocks_become_one_content() {
    let answer = with(
        r#"[{"type":"text","text":"a\n \"","citations":[{"type":"x"}]},{"type":"thinking","thinking":"h\u006d","signature":"s"},
        {"type":"redacted_thinking","data":"x"},{"type":"text","text":"\u0436b\ud83e\udd80"},
        {"type":"web_search_tool_result","content":{"type":"x"},"text":7}]"#,
        r#""end_turn""#,
    );
    assert_eq!(
        answer,
        json!({
            "id": "msg_1", "object": "chat.completion", "created": CX.created, "model": "opus",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "a\n \"жb🦀", "refusal": null, "reasoning_content": "hm"},
                "logprobs": null,
                "finish_reason": "stop",
            }],
            "usage": {
                "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        })
    );
}

#[test]
fn case_55_content_is_null_only_if_there_are_tool_calls() {
    let call = r#"{"type":"tool_use","id":"toolu_1","name":"f","input":{ "n" : 12345678901234567890123, "s": "a b" }}"#;
    let message = |content: &str| with(content, r#""tool_use""#)["choices"][0]["message"].clone();
    assert_eq!(
        message(&format!(
            r#"[{call},{{"type":"tool_use","id":"toolu_2","name":"g","input":{{}}}}]"#
        )),
        json!({
            "role": "assistant", "content": null, "refusal": null,
            "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "f",
                    "arguments": r#"{"n":12345678901234567890123,"s":"a b"}"#}},
                {"id": "toolu_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        })
    );
    let both = message(&format!(r#"[{{"type":"text","text":"x"}},{call}]"#));
    assert_eq!(both["content"], "x");
    let none = message(r#"[{"type":"text","text":""}]"#);
    assert_eq!(none["content"], "");
    assert!(none.get("tool_calls").is_none());
}

fn usage(usage: &str) -> Value {
    translated(&format!(
        r#"{{"id":"m","model":"o","content":[],"usage":{usage}}}"#
    ))["usage"]
        .clone()
}

#[test]
fn token_counts_with_a_decimal_point_are_translated_as_they_are_charged() {
    let usage = usage(r#"{"input_tokens":9.0,"output_tokens":4.0}"#);
    let shown = ["prompt_tokens", "completion_tokens", "total_tokens"];
    assert_eq!(shown.map(|name| usage[name].as_u64()), [9, 4, 13].map(Some));
}

#[test]
fn tool_call_without_input_gets_the_empty_object() {
    for input in [
        r#""input":{}"#,
        r#""input":null"#,
        r#""input":"""#,
        r#""x":1"#,
    ] {
        let call = format!(r#"[{{"type":"tool_use","id":"t","name":"f",{input}}}]"#);
        let answer = with(&call, r#""tool_use""#);
        let call = &answer["choices"][0]["message"]["tool_calls"][0];
        assert_eq!(call["function"]["arguments"], "{}", "{input}");
    }
}

#[test]
fn case_56_the_prompt_count_includes_the_cache() {
    for (vendor, prompt, cached, written, completion) in [
        (
            r#"{"input_tokens":5,"cache_read_input_tokens":7,"cache_creation_input_tokens":11,"output_tokens":13}"#,
            23,
            7,
            11,
            13,
        ),
        (
            r#"{"input_tokens":5,"cache_read_input_tokens":null,"output_tokens":1}"#,
            5,
            0,
            0,
            1,
        ),
        // The total of tokens written to the cache is missing, or is lower than the sum over the lifetimes.
        (
            r#"{"input_tokens":5,"cache_creation":{"ephemeral_5m_input_tokens":60,"ephemeral_1h_input_tokens":400},"output_tokens":1}"#,
            465,
            0,
            460,
            1,
        ),
        (
            r#"{"input_tokens":5,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":60,"ephemeral_1h_input_tokens":400},"output_tokens":1}"#,
            465,
            0,
            460,
            1,
        ),
        // The meter marks such counts as suspect. The response is translated nevertheless.
        (r#"{"input_tokens":-5,"output_tokens":"many"}"#, 0, 0, 0, 0),
        ("null", 0, 0, 0, 0),
    ] {
        assert_eq!(
            usage(vendor),
            json!({
                "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
                "completion_tokens_details": {"reasoning_tokens": 0},
            }),
            "{vendor}"
        );
    }
    let absurd = usage(
        r#"{"input_tokens":18446744073709551615,"cache_read_input_tokens":1,"output_tokens":1}"#,
    );
    assert_eq!(absurd["total_tokens"], u64::MAX);
}

#[test]
fn case_58_the_output_count_includes_reasoning() {
    let usage = usage(
        r#"{"input_tokens":1,"output_tokens":100,"output_tokens_details":{"thinking_tokens":60}}"#,
    );
    assert_eq!(
        (
            &usage["completion_tokens"],
            &usage["total_tokens"],
            &usage["completion_tokens_details"]["reasoning_tokens"]
        ),
        (&json!(100), &json!(101), &json!(60))
    );
}

#[test]
fn case_59_created_is_the_current_time() {
    assert_eq!(with("[]", "null")["created"], CX.created);
}

#[test]
fn case_62_empty_response_is_valid() {
    let answer = with("[]", r#""end_turn""#);
    assert_eq!(answer["choices"][0]["message"]["content"], "");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn case_64_body_that_is_not_a_response_is_an_error() {
    // The layer below handles errors in the form of a response. Translation fails if it gets one.
    for body in [
        r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#,
        "",
        "[]",
        "<html>",
        r#"{"content":"text"}"#,
        r#"{"content":[{"text":"no type"}]}"#,
        r#"{"content":[{"type":"text"}]}"#,
        r#"{"content":[{"type":"text","text":7}]}"#,
        r#"{"content":[{"type":"tool_use","name":"f","input":{}}]}"#,
    ] {
        assert!(
            matches!(plain(body.as_bytes()), Err(Error::VendorBroken(_))),
            "{body}"
        );
    }
}

#[test]
fn lone_surrogate_is_forwarded_unchanged() {
    let body = br#"{"id":"m","model":"o","content":[{"type":"text","text":"a\ud83e"}],"stop_reason":"max_tokens"}"#;
    let answer = plain(body).unwrap();
    assert!(
        String::from_utf8(answer.to_vec())
            .unwrap()
            .contains(r#""content":"a\ud83e""#)
    );
}

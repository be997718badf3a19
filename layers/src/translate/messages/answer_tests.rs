//! Numbered cases of a plain Chat Completions response that is translated for a Messages caller.

use bytes::Bytes;
use serde_json::{Value, json};

use super::testing::proofs;
use crate::{
    call::Format,
    error::Error,
    formats::wire::AnswerCx,
    translate::{Origin, Translator},
};

const CX: AnswerCx = AnswerCx {
    created: 1_700_000_000,
    usage_asked: true,
    thinking_asked: true,
};

fn plain(body: &[u8], cx: AnswerCx) -> Result<Bytes, Error> {
    Translator::to_messages(Format::Chat, Origin::default(), cx, true).answer(body)
}

fn with(cx: &AnswerCx, message: Value, finish_reason: Value) -> Result<Value, Error> {
    let body = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    });
    let out = plain(body.to_string().as_bytes(), *cx)?;
    let mut answer: Value = serde_json::from_slice(&out).unwrap();
    proofs(&mut answer["content"]);
    Ok(answer)
}

fn answered(message: Value, finish_reason: &str) -> Value {
    with(&CX, message, json!(finish_reason)).unwrap()
}

fn call(arguments: Value) -> Value {
    json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}})
}

#[test]
fn response_has_every_field_that_the_messages_format_requires() {
    assert_eq!(
        answered(json!({"role": "assistant", "content": "4"}), "stop"),
        json!({
            "id": "chatcmpl-1", "type": "message", "role": "assistant", "model": "gpt",
            "content": [{"type": "text", "text": "4"}],
            "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {"input_tokens": 3, "cache_creation_input_tokens": 0,
                      "cache_read_input_tokens": 0, "output_tokens": 2},
        })
    );
}

#[test]
fn case_51_finish_reasons_become_stop_reasons() {
    for (finish, stop) in [
        (json!("stop"), "end_turn"),
        (json!("length"), "max_tokens"),
        // Without a tool call, `tool_use` would make agents wait for ever for a call that does not exist.
        (json!("tool_calls"), "end_turn"),
        (json!("function_call"), "end_turn"),
        (json!("content_filter"), "refusal"),
        (json!(""), "end_turn"),
        (json!(null), "end_turn"),
        (json!("eos"), "end_turn"),
    ] {
        let answer = with(&CX, json!({"content": "x"}), finish.clone()).unwrap();
        assert_eq!(answer["stop_reason"], stop, "{finish}");
    }
    assert!(matches!(
        with(&CX, json!({"content": "x"}), json!("error")),
        Err(Error::VendorBroken(_))
    ));
}

#[test]
fn case_52_stop_reason_with_a_tool_call_is_tool_use_unless_the_response_was_cut() {
    for (finish, stop) in [
        ("stop", "tool_use"),
        ("tool_calls", "tool_use"),
        ("function_call", "tool_use"),
        ("", "tool_use"),
        ("length", "max_tokens"),
    ] {
        let message = json!({"content": null, "tool_calls": [call(json!("{}"))]});
        assert_eq!(answered(message, finish)["stop_reason"], stop);
    }
}

#[test]
fn case_53_text_precedes_the_tool_calls_and_all_tool_calls_are_kept() {
    for finish in ["stop", "tool_calls", "length", "content_filter"] {
        let message = json!({"content": "Let me see.", "tool_calls": [
            call(json!("{\"a\":1}")),
            {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": ""}},
        ]});
        assert_eq!(
            answered(message, finish)["content"],
            json!([
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "call_2", "name": "g", "input": {}},
            ])
        );
    }
}

#[test]
fn tool_call_arguments_become_an_object_and_numbers_are_unchanged() {
    for (arguments, input) in [
        (r#""{}""#, "{}"),
        (r#""""#, "{}"),
        ("null", "{}"),
        (r#""null""#, "{}"),
        (
            r#""{\"n\":12345678901234567890123,\"b\":1.50}""#,
            r#"{"n":12345678901234567890123,"b":1.50}"#,
        ),
        (r#"{"n":1e400}"#, r#"{"n":1e400}"#),
        // Arguments that are not a JSON object are put into one.
        (r#""[1]""#, r#"{"arguments":[1]}"#),
        (r#""{\"cut\": \"of""#, r#"{"arguments":"{\"cut\": \"of"}"#),
        ("7", r#"{"arguments":7}"#),
    ] {
        let body = format!(
            r#"{{"choices":[{{"message":{{"tool_calls":[{{"id":"c","function":{{"name":"f","arguments":{arguments}}}}}]}},"finish_reason":"tool_calls"}}]}}"#
        );
        let out = plain(body.as_bytes(), CX).unwrap();
        let out = std::str::from_utf8(&out).unwrap();
        assert!(out.contains(&format!("\"input\":{input}}}")), "{out}");
    }
}

#[test]
fn case_59_stop_sequence_is_null() {
    let answer = answered(json!({"content": "x"}), "stop");
    assert_eq!(answer.get("stop_sequence"), Some(&Value::Null));
}

#[test]
fn case_60_reasoning_becomes_thinking_if_requested() {
    let thought = json!([{"type": "thinking", "thinking": "hm", "signature": ""},
                             {"type": "text", "text": "4"}]);
    for message in [
        json!({"content": "4", "reasoning_content": "hm"}),
        json!({"content": "4", "reasoning": "hm"}),
        json!({"content": "4", "reasoning": "hm", "reasoning_content": "hm"}),
        json!({"content": "4", "reasoning_details": [{"type": "reasoning.text", "text": "hm"},
                   {"type": "reasoning.encrypted", "data": "x"}]}),
        json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                   {"type": "text", "text": "4"}]}),
    ] {
        assert_eq!(
            answered(message.clone(), "stop")["content"],
            thought,
            "{message}"
        );
        let cx = AnswerCx {
            thinking_asked: false,
            ..CX
        };
        let answer = with(&cx, message, json!("stop")).unwrap();
        assert_eq!(answer["content"], json!([{"type": "text", "text": "4"}]));
    }
}

#[test]
fn case_61_refusal_becomes_text_and_a_stop_reason() {
    let answer = answered(json!({"content": null, "refusal": "I cannot."}), "stop");
    assert_eq!(
        answer["content"],
        json!([{"type": "text", "text": "I cannot."}])
    );
    assert_eq!(answer["stop_reason"], "refusal");
    let none = answered(json!({"content": "4", "refusal": ""}), "stop");
    assert_eq!(none["stop_reason"], "end_turn");
}

#[test]
fn case_63_and_64_error_is_not_a_response_and_its_message_is_only_logged() {
    let error = json!({"error": {"message": "org-123 is out of quota", "code": 429}});
    let refused = plain(error.to_string().as_bytes(), CX).unwrap_err();
    assert!(
        matches!(refused, Error::VendorUnavailable(_)),
        "{refused:?}"
    );
    for broken in [
        "<html>",
        "[]",
        "{}",
        r#"{"choices":[]}"#,
        r#"{"choices":[{"index":0}]}"#,
        r#"{"choices":[{"message":{"content":5}}]}"#,
        r#"{"choices":[{"message":{"tool_calls":[{"id":"c"}]}}]}"#,
        r#"{"choices":[{"message":{"tool_calls":[{"function":{"name":""}}]}}]}"#,
    ] {
        let refused = plain(broken.as_bytes(), CX).unwrap_err();
        assert!(
            matches!(refused, Error::VendorBroken(_)),
            "{broken}: {refused:?}"
        );
    }
}

#[test]
fn list_of_text_parts_becomes_one_text() {
    let message = json!({"content": [{"type": "text", "text": "a"},
            {"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "b"}]});
    assert_eq!(
        answered(message, "stop")["content"],
        json!([{"type": "text", "text": "ab"}])
    );
    for nothing in [json!(""), json!(null), json!([])] {
        assert_eq!(
            answered(json!({"content": nothing}), "stop")["content"],
            json!([])
        );
    }
}

#[test]
fn function_call_counts_as_a_tool_call_unless_it_is_empty() {
    let message = json!({"content": null, "function_call": {"name": "f", "arguments": "{}"}});
    let called = answered(message, "function_call");
    assert_eq!(called["content"][0]["name"], "f");
    let id = called["content"][0]["id"].as_str().unwrap();
    assert!(id.starts_with("toolu_"), "{id}");
    let message = json!({"content": "4", "function_call": {"name": "", "arguments": ""}});
    assert_eq!(answered(message, "stop")["stop_reason"], "end_turn");
}

#[test]
fn missing_ids_get_the_same_values_in_each_translation() {
    let body = json!({"id": "", "model": "m", "choices": [{"message": {"content": "x",
            "tool_calls": [{"function": {"name": "f"}}, {"id": "", "function": {"name": "g"}}]}}]});
    let read = || -> Value {
        serde_json::from_slice(&plain(body.to_string().as_bytes(), CX).unwrap()).unwrap()
    };
    let answer = read();
    assert_eq!(answer, read());
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    let ids = [&answer["content"][1]["id"], &answer["content"][2]["id"]];
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.is_string()));
}

/// Before translation, `passthrough` has written the charged usage into a response without usage.
#[test]
fn missing_usage_is_translated_to_zeros() {
    let body = r#"{"choices":[{"message":{"content":"123456789"},"finish_reason":"stop"}]}"#;
    let answer: Value = serde_json::from_slice(&plain(body.as_bytes(), CX).unwrap()).unwrap();
    assert_eq!(answer["usage"]["output_tokens"], 0);
    assert_eq!(answer["usage"]["input_tokens"], 0);
}

/// Returns the translation of the usage in a Chat Completions response.
fn read(usage: &str) -> Value {
    let body = format!(r#"{{"choices":[{{"message":{{"content":"a"}}}}],"usage":{usage}}}"#);
    let bytes = plain(body.as_bytes(), CX).unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    answer["usage"].clone()
}

#[test]
fn case_57_cached_tokens_are_not_in_the_input_count_and_no_count_is_negative() {
    for (usage, [input, write, read_, output]) in [
        (
            r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}"#,
            [10, 0, 0, 5],
        ),
        (
            r#"{"prompt_tokens":4020,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":4012}}"#,
            [8, 4012, 0, 8],
        ),
        (
            r#"{"prompt_tokens":12,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":11}}"#,
            [1, 0, 11, 1],
        ),
        (
            r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_cache_hit_tokens":4}"#,
            [6, 0, 4, 5],
        ),
        (
            r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":11,"cache_write_tokens":7}}"#,
            [3, 7, 11, 5],
        ),
        (
            r#"{"prompt_tokens":10,"completion_tokens":-3,"prompt_tokens_details":null}"#,
            [10, 0, 0, 0],
        ),
    ] {
        assert_eq!(
            read(usage),
            json!({"input_tokens": input, "cache_creation_input_tokens": write,
                   "cache_read_input_tokens": read_, "output_tokens": output}),
            "{usage}"
        );
    }
    for nothing in ["{}", "7", r#"{"prompt_tokens":null}"#] {
        assert_eq!(read(nothing)["input_tokens"], 0);
    }
}

#[test]
fn case_58_reasoning_is_counted_once_in_the_output() {
    for (usage, output) in [
        (
            r#"{"prompt_tokens":18,"completion_tokens":345,"total_tokens":363,"completion_tokens_details":{"reasoning_tokens":315}}"#,
            345,
        ),
        // The total shows that the vendor counts reasoning in addition to the completion.
        (
            r#"{"prompt_tokens":18,"completion_tokens":30,"total_tokens":363,"completion_tokens_details":{"reasoning_tokens":315}}"#,
            345,
        ),
    ] {
        let read = read(usage);
        assert_eq!(read["output_tokens"], output);
        assert_eq!(
            read["output_tokens_details"],
            json!({"thinking_tokens": 315})
        );
    }
}

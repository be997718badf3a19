use bytes::Bytes;
use serde_json::{Value, json};

use super::testing::{CREATED, curious, requested};
use crate::{
    call::Format,
    error::Error,
    formats::{capsule, turn::KEPT_BYTES_MAX},
    translate::{RequestEcho, Translator},
};

pub(super) fn chat_answer(body: &[u8], requested: RequestEcho) -> Result<Bytes, Error> {
    Translator::to_responses(Format::Chat, requested, true).answer(body)
}

pub(super) fn messages_answer(body: &[u8], requested: RequestEcho) -> Result<Bytes, Error> {
    Translator::to_responses(Format::Messages, requested, true).answer(body)
}

fn from_chat_for(request: &Value, message: Value, finish: &str, usage: Value) -> Value {
    let body = json!({"id": "c1", "model": "gpt", "usage": usage,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}]});
    let bytes = chat_answer(body.to_string().as_bytes(), requested(request)).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn from_chat(message: Value, finish: &str) -> Value {
    from_chat_for(
        &curious(),
        message,
        finish,
        json!({"prompt_tokens": 3, "completion_tokens": 2}),
    )
}

fn from_messages_for(request: &Value, content: Value, stop: &str) -> Value {
    let body = json!({"id": "m1", "type": "message", "model": "opus", "content": content, "stop_reason": stop,
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 11,
                  "output_tokens": 13, "output_tokens_details": {"thinking_tokens": 4}}});
    let bytes = messages_answer(body.to_string().as_bytes(), requested(request)).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn from_messages(content: Value, stop: &str) -> Value {
    from_messages_for(&curious(), content, stop)
}

fn tool_call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn no_tools() -> Value {
    json!({"model": "m", "input": "x"})
}

#[test]
fn r46_text_becomes_one_message_item() {
    for answer in [
        from_chat(json!({"role": "assistant", "content": "a \"ж\""}), "stop"),
        from_messages(
            json!([{"type": "text", "text": "a "}, {"type": "text", "text": "\"ж\""}]),
            "end_turn",
        ),
    ] {
        assert_eq!(
            (&answer["object"], &answer["status"]),
            (&json!("response"), &json!("completed"))
        );
        assert_eq!(answer["created_at"], CREATED);
        let id = answer["id"].as_str().unwrap();
        assert_eq!(id, "resp_0198c0de000070008000000000000001");
        assert_eq!(
            answer["output"],
            json!([{"id": "msg_0198c0de000070008000000000000001_0", "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "a \"ж\"", "annotations": [], "logprobs": []}]}])
        );
        for null in [
            "error",
            "incomplete_details",
            "instructions",
            "previous_response_id",
        ] {
            assert_eq!(answer.get(null), Some(&Value::Null), "{null}");
        }
        assert_eq!(answer["store"], false);
    }
}

#[test]
fn r47_text_and_two_tool_calls_become_three_items() {
    let chat = from_chat(
        json!({"content": "so", "tool_calls": [tool_call("a", "f", "{\"n\": 1}"), tool_call("b", "g", "{}")]}),
        "tool_calls",
    );
    let messages = from_messages(
        json!([{"type": "text", "text": "so"}, {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}},
        {"type": "tool_use", "id": "b", "name": "g", "input": {}}]),
        "tool_use",
    );
    for answer in [chat, messages] {
        assert_eq!(answer["status"], "completed");
        let output = answer["output"].as_array().unwrap();
        let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
        assert_eq!(kinds, ["message", "function_call", "function_call"]);
        assert_eq!(
            (&output[1]["call_id"], &output[2]["call_id"]),
            (&json!("a"), &json!("b"))
        );
        let arguments: Value =
            serde_json::from_str(output[1]["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(
            (arguments, &output[2]["arguments"]),
            (json!({"n": 1}), &json!("{}"))
        );
        assert_eq!(output[2]["id"], "fc_0198c0de000070008000000000000001_2");
        assert!(output[1].get("namespace").is_none());
    }
}

#[test]
fn r48_truncated_responses_are_incomplete() {
    let chat = |finish| from_chat(json!({"content": "a"}), finish);
    let messages = |stop| from_messages(json!([{"type": "text", "text": "a"}]), stop);
    for (answer, reason) in [
        (chat("length"), "max_output_tokens"),
        (chat("content_filter"), "content_filter"),
        (messages("max_tokens"), "max_output_tokens"),
        (
            messages("model_context_window_exceeded"),
            "max_output_tokens",
        ),
        (messages("refusal"), "content_filter"),
    ] {
        assert_eq!(answer["status"], "incomplete");
        assert_eq!(answer["incomplete_details"], json!({"reason": reason}));
        assert_eq!(answer["output"][0]["status"], "incomplete");
    }
    for stop in ["end_turn", "stop_sequence", "pause_turn", "of_tomorrow"] {
        assert_eq!(messages(stop)["status"], "completed");
    }
}

#[test]
fn r48_r77_a_truncated_block_of_any_kind_is_incomplete() {
    let text = json!({"type": "text", "text": "a"});
    let tool = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
    let thinking = json!({"type": "thinking", "thinking": "t", "signature": "s"});
    let redacted = json!({"type": "redacted_thinking", "data": "d"});
    for last in [&text, &tool, &thinking, &redacted] {
        let answer = from_messages(json!([thinking, text, tool, last]), "max_tokens");
        let statuses: Vec<&Value> = answer["output"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| &item["status"])
            .collect();
        assert_eq!(
            statuses,
            ["completed", "completed", "completed", "incomplete"],
            "{last}"
        );
    }
    // The signature arrived before the response was cut, so the item has it.
    let answer = from_messages(json!([thinking]), "max_tokens");
    assert!(answer["output"][0]["encrypted_content"].is_string());
}

#[test]
fn plain_response_may_be_longer_than_a_stream_may_be() {
    let long = "x".repeat(KEPT_BYTES_MAX + 1);
    let text = json!({"type": "text", "text": long});
    for answer in [
        from_chat(json!({"content": long}), "stop"),
        from_messages(json!([text]), "end_turn"),
    ] {
        let reported = answer["output"][0]["content"][0]["text"].as_str();
        assert_eq!(reported, Some(&*long));
    }
}

#[test]
fn r49_refusal_becomes_a_refusal_part() {
    let answer = from_chat(json!({"content": null, "refusal": "no"}), "stop");
    assert_eq!(
        answer["output"][0]["content"],
        json!([{"type": "refusal", "refusal": "no"}])
    );
    assert_eq!(answer["status"], "completed");
}

#[test]
fn r50_reasoning_precedes_the_text_and_is_not_in_it() {
    let answer = from_chat_for(
        &no_tools(),
        json!({"content": "a", "reasoning_content": "hm"}),
        "stop",
        Value::Null,
    );
    let reasoning = &answer["output"][0];
    assert_eq!(
        (
            &reasoning["type"],
            &reasoning["summary"],
            &reasoning["encrypted_content"]
        ),
        (&json!("reasoning"), &json!([]), &Value::Null)
    );
    assert_eq!(
        reasoning["content"],
        json!([{"type": "reasoning_text", "text": "hm"}])
    );
    assert_eq!(answer["output"][1]["content"][0]["text"], "a");

    let content = json!([{"type": "thinking", "thinking": "h\"m", "signature": "s=="}, {"type": "redacted_thinking", "data": "d"},
        {"type": "text", "text": "a"}]);
    let answer = from_messages(content.clone(), "end_turn");
    let reasoning = &answer["output"][0];
    assert_eq!(
        reasoning["summary"],
        json!([{"type": "summary_text", "text": "h\"m"}])
    );
    let sealed = reasoning["encrypted_content"].as_str().unwrap();
    let opened: Value = serde_json::from_str(&capsule::open(sealed, "claude").unwrap()).unwrap();
    assert_eq!(opened, json!([content[0]]));
    let redacted = answer["output"][1]["encrypted_content"].as_str().unwrap();
    let opened: Value = serde_json::from_str(&capsule::open(redacted, "claude").unwrap()).unwrap();
    assert_eq!(
        (opened, &answer["output"][1]["summary"]),
        (json!([content[1]]), &json!([]))
    );

    let hidden = json!({"model": "m", "input": "x", "include": ["reasoning.encrypted_content"]});
    let answer = from_messages_for(&hidden, content.clone(), "end_turn");
    assert_eq!(answer["output"][0]["summary"], json!([]));
    assert_eq!(answer["output"][0]["encrypted_content"], sealed);
    let answer = from_messages_for(&no_tools(), content, "end_turn");
    assert_eq!(answer["output"].as_array().unwrap().len(), 1);
    assert_eq!(answer["output"][0]["type"], "message");
}

#[test]
fn r51_usage_of_each_vendor_is_translated() {
    let usage = |input, cached, written, output, reasoning| {
        json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
               "output_tokens": output, "output_tokens_details": {"reasoning_tokens": reasoning}, "total_tokens": input + output})
    };
    assert_eq!(
        from_messages(json!([]), "end_turn")["usage"],
        usage(23, 7, 11, 13, 4)
    );
    let chat = json!({"prompt_tokens": 30, "completion_tokens": 9, "total_tokens": 39,
        "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 6}});
    let answer = from_chat_for(&no_tools(), json!({"content": "a"}), "stop", chat);
    assert_eq!(answer["usage"], usage(30, 10, 5, 9, 6));
    let silent = from_chat_for(
        &no_tools(),
        json!({"content": "four four"}),
        "stop",
        Value::Null,
    );
    assert_eq!(silent["usage"], usage(0, 0, 0, 0, 0));
}

#[test]
fn r52_r53_tool_calls_have_the_callers_tool_names() {
    let request = json!({"model": "m", "input": "x", "tools": [{"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]}]});
    let calls = json!([
        tool_call("a", "patch", "{\"input\":\"*** \\\"x\\\"\\n\"}"),
        tool_call("b", "ns__f", "{}"),
        tool_call("c", "patch", "no {json"),
        tool_call("d", "ns__c", "{\"input\":7}"),
        tool_call("e", "unknown", "{}")
    ]);
    let answer = from_chat_for(
        &request,
        json!({"tool_calls": calls}),
        "tool_calls",
        Value::Null,
    );
    let output = answer["output"].as_array().unwrap();
    assert_eq!(output[0]["type"], "custom_tool_call");
    assert_eq!(
        (&output[0]["name"], &output[0]["input"]),
        (&json!("patch"), &json!("*** \"x\"\n"))
    );
    assert_eq!(output[0]["id"], "ctc_0198c0de000070008000000000000001_0");
    assert_eq!(
        (
            &output[1]["type"],
            &output[1]["name"],
            &output[1]["namespace"]
        ),
        (&json!("function_call"), &json!("f"), &json!("ns"))
    );
    assert_eq!(output[2]["input"], "no {json");
    assert_eq!(
        (&output[3]["namespace"], &output[3]["input"]),
        (&json!("ns"), &json!("{\"input\":7}"))
    );
    assert_eq!(output[4]["name"], "unknown");
    // The vendor gets a shortened name. The response to the caller has the caller's own name.
    let long = "n".repeat(65);
    let request =
        json!({"model": "m", "input": "x", "tools": [{"type": "function", "name": long}]});
    let sent = super::request_tests::chat(request.clone());
    let short = sent["tools"][0]["function"]["name"].as_str().unwrap();
    assert_eq!(short.len(), 64);
    let calls = json!({"tool_calls": [tool_call("a", short, "{}")]});
    let answer = from_chat_for(&request, calls, "tool_calls", Value::Null);
    assert_eq!(answer["output"][0]["name"], long);
    // R13, R33: the response lists only the tools that were sent to the vendor.
    let mut offered = request.clone();
    offered["tools"].as_array_mut().unwrap().extend([
        json!({"type": "web_search"}),
        json!({"type": "tool_search"}),
    ]);
    let answer = from_chat_for(&offered, json!({"content": "a"}), "stop", Value::Null);
    assert_eq!(answer["tools"], request["tools"]);
}

#[test]
fn r54_empty_response_has_no_items() {
    for answer in [
        from_chat(json!({"content": ""}), "stop"),
        from_messages(json!([]), "end_turn"),
    ] {
        assert_eq!(
            (&answer["output"], &answer["status"]),
            (&json!([]), &json!("completed"))
        );
    }
}

#[test]
fn r55_items_of_a_response_are_accepted_back_unchanged() {
    let content = json!([{"type": "thinking", "thinking": "hm", "signature": "s=="}, {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}}]);
    let answer = from_messages(content.clone(), "tool_use");
    let mut input = vec![json!({"role": "user", "content": "q"})];
    input.extend(answer["output"].as_array().unwrap().iter().cloned());
    input.push(json!({"type": "function_call_output", "call_id": "a", "output": "1"}));
    let body = json!({"model": "m", "input": input}).to_string();
    let dialect = crate::model::Dialect::default();
    let cx = super::testing::cx(&dialect);
    let sent: Value = serde_json::from_slice(
        &super::testing::to_messages(body.as_bytes(), "claude", &cx).unwrap(),
    )
    .unwrap();
    assert_eq!(sent["messages"][1]["content"], content);
    let sent: Value =
        serde_json::from_slice(&super::testing::to_chat(body.as_bytes(), "v", &cx).unwrap())
            .unwrap();
    assert_eq!(sent["messages"][1]["tool_calls"][0]["id"], "a");
    assert_eq!(sent["messages"][2]["role"], "tool");
}

#[test]
fn r57_body_that_is_not_a_response_is_an_error() {
    for body in [
        "",
        "<html>",
        "{}",
        r#"{"choices":[]}"#,
        r#"{"choices":[{"message":{"tool_calls":[{"id":"a"}]}}]}"#,
    ] {
        assert!(
            matches!(
                chat_answer(body.as_bytes(), requested(&no_tools())),
                Err(Error::VendorBroken(_))
            ),
            "{body}"
        );
        assert!(
            matches!(
                messages_answer(body.as_bytes(), requested(&no_tools())),
                Err(Error::VendorBroken(_))
            ),
            "{body}"
        );
    }
    let error = chat_answer(br#"{"error":{"message":"no"}}"#, requested(&no_tools()));
    assert!(matches!(error, Err(Error::VendorUnavailable(_))));
}

#[test]
fn request_fields_that_the_response_repeats_are_on_one_line() {
    let body = "{\"model\":\"m\",\n\"input\":\"x\",\"tools\":[{\n\"type\":\"function\",\"name\":\"f\\n\"}],\"reasoning\":{\"effort\":\"low\"},\"metadata\":{\"a\":\"b\"}}";
    let requested = RequestEcho::read(
        body.as_bytes(),
        super::testing::NUMBER.simple(),
        CREATED,
        "v",
    )
    .unwrap();
    let bytes = chat_answer(br#"{"choices":[{"message":{"content":"a"}}]}"#, requested).unwrap();
    assert!(!bytes.contains(&b'\n'));
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(answer["tools"][0]["name"], "f\n");
    assert_eq!(
        (&answer["reasoning"], &answer["metadata"]),
        (&json!({"effort": "low"}), &json!({"a": "b"}))
    );
    assert_eq!(
        (&answer["parallel_tool_calls"], &answer["tool_choice"]),
        (&json!(true), &json!("auto"))
    );
}

use serde_json::{Value, json};

use super::testing::{cx, of_chat, of_messages, refused};
use crate::model::Dialect;

pub(super) fn sent_by_chat(fields: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    let bytes = of_chat(body.to_string().as_bytes(), &cx(&Dialect::default())).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn chat_refused(fields: Value) -> String {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    refused(of_chat(
        body.to_string().as_bytes(),
        &cx(&Dialect::default()),
    ))
}

pub(super) fn sent_by_messages(fields: Value) -> Value {
    let mut body =
        json!({"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    let bytes = of_messages(
        body.to_string().as_bytes(),
        "open",
        &cx(&Dialect::default()),
    )
    .unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn user(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
}

#[test]
fn r59_r61_chat_conversation_becomes_items_in_order() {
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{ \"n\":1}"}});
    let sent = sent_by_chat(json!({"messages": [
        {"role": "system", "content": "s"}, {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "https://x.example/a.png", "detail": "low"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="}}]},
        {"role": "assistant", "content": "so", "refusal": "no", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "1"}, {"role": "tool", "tool_call_id": "x", "content": "lost"},
        {"role": "assistant", "content": ""}]}));
    assert_eq!(
        sent,
        json!({"model": "vendor-model", "max_output_tokens": 500, "store": false, "input": [
            {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "s"}]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"},
                {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "low"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}, {"type": "refusal", "refusal": "no"}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{ \"n\":1}"},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            user("lost")]})
    );
}

#[test]
fn r60_strict_flag_is_always_sent() {
    let tool =
        |strict: Value| json!({"type": "function", "function": {"name": "f", "strict": strict}});
    let sent = sent_by_chat(
        json!({"tools": [tool(Value::Null), tool(json!(false)), tool(json!(true))], "tool_choice": "auto"}),
    );
    let strict: Vec<&Value> = sent["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["strict"])
        .collect();
    assert_eq!(strict, [false, false, true]);
    assert_eq!(
        sent["tools"][0]["parameters"],
        json!({"type": "object", "properties": {}})
    );
    let sent = sent_by_messages(
        json!({"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]}),
    );
    assert_eq!(
        sent["tools"],
        json!([{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": false}])
    );
    let none =
        sent_by_chat(json!({"tools": [], "tool_choice": "auto", "parallel_tool_calls": true}));
    assert!(
        ["tools", "tool_choice", "parallel_tool_calls"]
            .iter()
            .all(|field| none.get(*field).is_none())
    );
}

#[test]
fn r62_output_limit_is_at_least_16() {
    let dialect = Dialect::default();
    let low = crate::formats::wire::RequestCx {
        output_tokens: 1,
        ..cx(&dialect)
    };
    for bytes in [
        of_chat(
            br#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#,
            &low,
        ),
        of_messages(
            br#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#,
            "v",
            &low,
        ),
    ] {
        let sent: Value = serde_json::from_slice(&bytes.unwrap()).unwrap();
        assert_eq!(sent["max_output_tokens"], 16);
    }
}

#[test]
fn r63_stop_sequences_are_refused() {
    for stop in [json!("x"), json!(["x"])] {
        assert_eq!(chat_refused(json!({"stop": stop})), "stop");
    }
    sent_by_chat(json!({"stop": []}));
    sent_by_messages(json!({"stop_sequences": []}));
    let body = br#"{"model":"m","max_tokens":9,"stop_sequences":["x"],"messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(
        refused(of_messages(body, "v", &cx(&Dialect::default()))),
        "stop_sequences"
    );
    for (field, value) in [
        ("n", json!(2)),
        ("logprobs", json!(true)),
        ("functions", json!([])),
        ("of_tomorrow", json!(1)),
    ] {
        assert_eq!(chat_refused(json!({field: value})), field);
    }
}

#[test]
fn r64_schemas_are_sent_unchanged() {
    let schema = json!({"type": "object", "properties": {"a": {"const": 1.0}}});
    let sent = sent_by_chat(
        json!({"verbosity": "low", "reasoning_effort": "high", "response_format":
        {"type": "json_schema", "json_schema": {"name": "n", "description": "d", "schema": schema, "strict": true}}}),
    );
    assert_eq!(
        sent["text"],
        json!({"format": {"type": "json_schema", "name": "n", "description": "d", "schema": schema, "strict": true}, "verbosity": "low"})
    );
    assert_eq!(sent["reasoning"], json!({"effort": "high"}));
    let sent = sent_by_messages(
        json!({"output_config": {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}}),
    );
    assert_eq!(
        sent["text"]["format"],
        json!({"type": "json_schema", "name": "answer", "schema": schema, "strict": true})
    );
    assert_eq!(sent["reasoning"], json!({"effort": "low"}));
}

#[test]
fn r65_free_text_tools_stay_free_text_in_both_directions() {
    let sent = sent_by_chat(json!({
        "tools": [{"type": "custom", "custom": {"name": "p", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "d"}}}}],
        "tool_choice": {"type": "custom", "custom": {"name": "p"}},
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "p", "input": "x\n"}}]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "ok"}]}]}));
    assert_eq!(
        sent["tools"],
        json!([{"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "d"}}])
    );
    assert_eq!(sent["tool_choice"], json!({"type": "custom", "name": "p"}));
    assert_eq!(
        sent["input"][1],
        json!({"type": "custom_tool_call", "call_id": "a", "name": "p", "input": "x\n"})
    );
    assert_eq!(
        sent["input"][2],
        json!({"type": "custom_tool_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "ok"}]})
    );
}

#[test]
fn r66_r67_r68_messages_conversation_becomes_items() {
    let sent = sent_by_messages(
        json!({"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "thinking": {"type": "adaptive"}, "metadata": {"user_id": "who"}, "stream": true, "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "text", "text": "so"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"n": 1}}]},
        {"role": "user", "content": [{"type": "text", "text": "n"}, {"type": "tool_result", "tool_use_id": "t", "is_error": true, "content": [
            {"type": "text", "text": "bad"}]}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "u", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": [{"type": "text", "text": "see"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]}]}]}),
    );
    assert_eq!(sent["instructions"], "a\nb");
    assert_eq!(
        sent["input"],
        json!([user("q"), {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
            {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{\"n\":1}"},
            {"type": "function_call_output", "call_id": "t", "output": "Error: bad"}, user("n"),
            {"type": "function_call", "call_id": "u", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "u", "output": [{"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA=="}]}])
    );
    assert_eq!(
        (&sent["tool_choice"], &sent["parallel_tool_calls"]),
        (&json!("required"), &json!(false))
    );
    assert_eq!(
        (&sent["reasoning"], &sent["include"]),
        (
            &json!({"summary": "auto"}),
            &json!(["reasoning.encrypted_content"])
        )
    );
    assert_eq!(
        (&sent["safety_identifier"], &sent["stream"], &sent["store"]),
        (&json!("who"), &json!(true), &json!(false))
    );
    let plain = sent_by_messages(json!({}));
    assert!(plain.get("reasoning").is_none() && plain.get("include").is_none());
}

#[test]
fn r66_failed_tool_result_without_text_is_marked_as_an_error() {
    let result = |content: Value| {
        let sent = sent_by_messages(json!({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "is_error": true, "content": content}]}]}));
        sent["input"][0]["output"].clone()
    };
    assert_eq!(result(json!([])), "Error");
    assert_eq!(result(json!("x")), "Error: x");
}

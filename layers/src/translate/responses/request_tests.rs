use serde_json::{Value, json};

use super::testing::{cx, refused, to_chat, to_messages};
use crate::{
    error::{Error, Problem},
    formats::capsule,
    model::{Dialect, SystemRole, Thinking},
};

fn with(fields: Value) -> Value {
    let mut body = json!({"model": "m", "input": "hi"});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn chat_as(body: &Value, dialect: Dialect) -> Value {
    let bytes = to_chat(body.to_string().as_bytes(), "deep", &cx(&dialect)).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

pub(super) fn chat(fields: Value) -> Value {
    chat_as(&with(fields), Dialect::default())
}

fn messages_as(body: &Value, dialect: Dialect) -> Value {
    let bytes = to_messages(body.to_string().as_bytes(), "claude", &cx(&dialect)).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

pub(super) fn messages(fields: Value) -> Value {
    messages_as(&with(fields), Dialect::default())
}

/// Returns the name of the field for which both translations refuse the request.
pub(super) fn both_refuse(fields: Value) -> String {
    let chat = chat_refuses(fields.clone());
    assert_eq!(chat, messages_refuses(fields));
    chat
}

fn chat_refuses(fields: Value) -> String {
    refused(to_chat(
        with(fields).to_string().as_bytes(),
        "deep",
        &cx(&Dialect::default()),
    ))
}

fn messages_refuses(fields: Value) -> String {
    let body = with(fields).to_string();
    refused(to_messages(
        body.as_bytes(),
        "claude",
        &cx(&Dialect::default()),
    ))
}

fn call(id: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "f", "arguments": arguments, "status": "completed"})
}

/// Returns a truncated tool call, as a response contains it.
fn cut(id: &str, arguments: &str) -> Value {
    let mut call = call(id, arguments);
    call["status"] = json!("incomplete");
    call
}

fn output(id: &str, output: impl Into<Value>) -> Value {
    json!({"type": "function_call_output", "call_id": id, "output": output.into()})
}

#[test]
fn r16_all_instructions_come_first_and_keep_their_order() {
    let body = with(json!({"instructions": "a", "input": [
        {"role": "developer", "content": "b"}, {"role": "user", "content": "c"}]}));
    assert_eq!(
        chat_as(&body, Dialect::default())["messages"],
        json!([{"role": "system", "content": "a"}, {"role": "system", "content": "b"},
               {"role": "user", "content": "c"}])
    );
    let newer = Dialect::default().system_role(Some(SystemRole::Developer));
    let roles = chat_as(&body, newer);
    assert_eq!(roles["messages"][1]["role"], "developer");
    let sent = messages_as(&body, Dialect::default());
    assert_eq!(
        sent["system"],
        json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    );
    assert_eq!(
        sent["messages"],
        json!([{"role": "user", "content": [{"type": "text", "text": "c"}]}])
    );
    assert_eq!(sent["max_tokens"], 500);
}

#[test]
fn r55_truncated_tool_call_is_dropped_and_its_output_becomes_the_users_text() {
    let user = json!({"role": "user", "content": "q"});
    let returned = |role: &str, text: &str| json!({"role": role, "content": text});
    for items in [
        json!([user, call("a", "{}"), cut("b", "{\"a\":"), output("a", "x")]),
        // The arguments of the tool call are complete, but it has no output.
        json!([user, call("a", "{}"), cut("b", "{}"), output("a", "x")]),
        json!([user, call("a", "{}"), {"type": "custom_tool_call", "call_id": "b", "name": "p", "input": "te",
            "status": "incomplete"}, output("a", "x")]),
    ] {
        let sent = chat(json!({"input": items}));
        let turns = sent["messages"].as_array().unwrap();
        assert_eq!(turns.len(), 3);
        assert_eq!(turns[1]["tool_calls"].as_array().unwrap().len(), 1);
        let sent = messages(json!({"input": items}));
        assert_eq!(sent["messages"][1]["content"].as_array().unwrap().len(), 1);
        assert_eq!(sent["messages"][2]["content"][0]["tool_use_id"], "a");
    }
    let run = json!([user, cut("b", "{\"a\":"), output("b", "no arguments")]);
    let sent = chat(json!({"input": run}));
    assert_eq!(
        sent["messages"],
        json!([returned("user", "q"), returned("user", "no arguments")])
    );
    let sent = messages(json!({"input": run}));
    assert_eq!(sent["messages"].as_array().unwrap().len(), 1);
    // A tool call that is marked as incomplete is sent like any other tool call if its arguments are complete and it
    // has an output.
    for arguments in ["{\"a\":1}", ""] {
        let whole = json!([user, cut("b", arguments), output("b", "x")]);
        let sent = chat(json!({"input": whole}));
        assert_eq!(sent["messages"][2]["tool_call_id"], "b");
        let sent = messages(json!({"input": whole}));
        assert_eq!(sent["messages"][2]["content"][0]["tool_use_id"], "b");
    }
}

#[test]
fn r17_r18_texts_keep_their_bytes_and_their_order() {
    let input = json!([{"role": "user", "content": [
        {"type": "input_text", "text": "a \n"}, {"type": "input_text", "text": "ё🦀"}, {"type": "input_text", "text": "\"\\"}]}]);
    let sent = chat(json!({"input": input}));
    let texts = ["a \n", "ё🦀", "\"\\"];
    for (place, text) in texts.iter().enumerate() {
        assert_eq!(sent["messages"][0]["content"][place]["text"], *text);
    }
    let sent = messages(json!({"input": input}));
    for (place, text) in texts.iter().enumerate() {
        assert_eq!(sent["messages"][0]["content"][place]["text"], *text);
    }
    assert_eq!(
        chat(json!({}))["messages"],
        json!([{"role": "user", "content": "hi"}])
    );
}

#[test]
fn r19_r20_images_and_documents_are_translated() {
    let input = json!([{"role": "user", "content": [
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "original"},
        {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="}]}]);
    let sent = chat(json!({"input": input}));
    assert_eq!(
        sent["messages"][0]["content"],
        json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "high"}},
               {"type": "image_url", "image_url": {"url": "https://x.example/a.png", "detail": "low"}},
               {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="}}])
    );
    let sent = messages(json!({"input": input}));
    assert_eq!(
        sent["messages"][0]["content"],
        json!([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
               {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
               {"type": "document", "title": "a.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="}}])
    );
    let remembered =
        json!({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]});
    assert_eq!(both_refuse(remembered), "input[0].content[0].file_id");
    let far = json!({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x"}]}]});
    assert_eq!(both_refuse(far), "input[0].content[0].file_url");
    let word = json!({"input": [{"role": "user", "content": [
        {"type": "input_file", "file_data": "data:application/msword;base64,QQ=="}]}]});
    assert_eq!(messages_refuses(word), "input[0].content[0].file_data");
}

#[test]
fn r21_earlier_output_of_the_model_becomes_text() {
    let input = json!([{"role": "user", "content": "q"}, {"type": "message", "id": "msg_1", "status": "completed",
        "role": "assistant", "phase": "commentary", "content": [
        {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
        {"type": "refusal", "refusal": "no"}]}]);
    assert_eq!(
        chat(json!({"input": input}))["messages"][1],
        json!({"role": "assistant", "content": "ano"})
    );
    assert_eq!(
        messages(json!({"input": input}))["messages"][1]["content"],
        json!([{"type": "text", "text": "a"}, {"type": "text", "text": "no"}])
    );
}

#[test]
fn r22_tool_calls_and_their_outputs_are_paired() {
    let input = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "so"},
        call("a", "{\"x\": 1}"), call("b", "{}"), output("a", "1"), output("b", "2"), {"role": "user", "content": "n"}]);
    let sent = chat(json!({"input": input}));
    let called = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    assert_eq!(
        sent["messages"],
        json!([{"role": "user", "content": "q"},
               // R23: the text and both tool calls are in one message.
               {"role": "assistant", "content": "so", "tool_calls": [called("a", "{\"x\": 1}"), called("b", "{}")]},
               {"role": "tool", "tool_call_id": "a", "content": "1"},
               {"role": "tool", "tool_call_id": "b", "content": "2"},
               {"role": "user", "content": "n"}])
    );
    let sent = messages(json!({"input": input}));
    let used =
        |id: &str, input: Value| json!({"type": "tool_use", "id": id, "name": "f", "input": input});
    let result = |id: &str, text: &str| json!({"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": text}]});
    assert_eq!(
        sent["messages"],
        json!([{"role": "user", "content": [{"type": "text", "text": "q"}]},
               {"role": "assistant", "content": [{"type": "text", "text": "so"}, used("a", json!({"x": 1})), used("b", json!({}))]},
               {"role": "user", "content": [result("a", "1"), result("b", "2"), {"type": "text", "text": "n"}]}])
    );
}

#[test]
fn r24_tool_outputs_in_any_order_find_their_tool_calls() {
    let input = json!([{"role": "user", "content": "q"}, call("a", "{}"), call("b", "{}"),
        {"role": "user", "content": "wait"}, output("b", "2"), output("a", "1")]);
    let sent = chat(json!({"input": input}));
    let messages_sent = sent["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages_sent
        .iter()
        .map(|one| one["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"]);
    let ids: Vec<&Value> = messages_sent[2..4]
        .iter()
        .map(|one| &one["tool_call_id"])
        .collect();
    assert_eq!(ids, ["b", "a"]);
    let sent = messages(json!({"input": input}));
    let last = &sent["messages"][2]["content"];
    assert_eq!(
        (&last[0]["tool_use_id"], &last[1]["tool_use_id"]),
        (&json!("b"), &json!("a"))
    );
    assert_eq!(last[2]["text"], "wait");
}

#[test]
fn r25_image_in_a_tool_output_is_translated() {
    let input = json!([{"role": "user", "content": "q"}, call("a", "{}"), output("a", json!([
        {"type": "input_text", "text": "t"}, {"type": "input_text", "text": "u"},
        {"type": "input_image", "image_url": "https://x.example/a.png"}])), {"role": "user", "content": "n"}]);
    let sent = chat(json!({"input": input}));
    assert_eq!(
        sent["messages"][2],
        json!({"role": "tool", "tool_call_id": "a", "content": "t\nu"})
    );
    assert_eq!(
        sent["messages"][3]["content"],
        json!([{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}, {"type": "text", "text": "n"}])
    );
    let result = &messages(json!({"input": input}))["messages"][2]["content"][0];
    assert_eq!(
        result["content"],
        json!([{"type": "text", "text": "t"}, {"type": "text", "text": "u"},
               {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}])
    );
    // If the output is only an image, the tool message refers to the user's next message.
    let input = json!([
        call("a", "{}"),
        output(
            "a",
            json!([{"type": "input_image", "image_url": "https://x.example/a.png"}])
        )
    ]);
    let sent = chat(json!({"input": input}));
    assert_eq!(sent["messages"][1]["content"], "See the next message.");
    assert_eq!(sent["messages"][2]["role"], "user");
}

#[test]
fn r26_tool_output_without_a_tool_call_becomes_the_users_text() {
    let input = json!([output("x", "lost")]);
    assert_eq!(
        chat(json!({"input": input}))["messages"],
        json!([{"role": "user", "content": "lost"}])
    );
    assert_eq!(
        messages(json!({"input": input}))["messages"],
        json!([{"role": "user", "content": [{"type": "text", "text": "lost"}]}])
    );
}

#[test]
fn r27_tool_call_arguments_become_an_object_for_messages_vendors() {
    let body = |arguments: &str| json!({"input": [{"role": "user", "content": "q"}, call("a", arguments)]});
    let input = |arguments| messages(body(arguments))["messages"][1]["content"][0]["input"].clone();
    assert_eq!(input(""), json!({}));
    assert_eq!(
        input("{\"n\":9007199254740993}"),
        json!({"n": 9_007_199_254_740_993_u64})
    );
    for broken in ["{", "[1]", "7"] {
        assert_eq!(messages_refuses(body(broken)), "input[1].arguments");
    }
    let big = "{\"n\": 12345678901234567890123}";
    let bytes = to_messages(
        with(body(big)).to_string().as_bytes(),
        "claude",
        &cx(&Dialect::default()),
    )
    .unwrap();
    assert!(
        String::from_utf8(bytes.to_vec())
            .unwrap()
            .contains("12345678901234567890123")
    );
}

#[test]
fn reasoning_returns_to_its_chat_vendor_with_the_tool_calls_after_it() {
    let reasoning = |fields: Value| {
        let mut item = json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "secret"}]});
        item.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        item
    };
    let content =
        json!([{"type": "reasoning_text", "text": "h"}, {"type": "reasoning_text", "text": "m"}]);
    let shown = |sealed: &str| reasoning(json!({"content": content, "encrypted_content": sealed}));
    let state = r#"{"type":"chat_state","field":"reasoning","calls":{"a":{"s":1}}}"#;
    let ours = shown(&capsule::seal("deep", state));
    let unmarked = reasoning(json!({"content": content}));
    let reported = json!({"role": "assistant", "content": "so"});
    let call = |id: &str| call(id, "{}");
    let none = json!([null, null, null]);
    for (items, expected) in [
        (json!([unmarked, call("a")]), json!(["hm", null, null])),
        (
            json!([unmarked, reported, call("a")]),
            json!(["hm", null, null]),
        ),
        (json!([ours, call("a")]), json!([null, "hm", {"s": 1}])),
        (json!([call("a"), ours]), json!([null, null, {"s": 1}])),
        (json!([shown("gAAAA"), call("a")]), none.clone()),
        (
            json!([shown(&capsule::seal("other", state)), call("a")]),
            none.clone(),
        ),
        (
            json!([unmarked, {"role": "user", "content": "n"}, call("a")]),
            none.clone(),
        ),
        (json!([unmarked, reported]), none.clone()),
    ] {
        let sent = chat(json!({"input": items}));
        assert!(!sent.to_string().contains("secret"), "{sent}");
        let messages = sent["messages"].as_array().unwrap();
        let message = messages
            .iter()
            .rfind(|it| it["role"] == "assistant")
            .unwrap();
        let back = [
            &message["reasoning_content"],
            &message["reasoning"],
            &message["tool_calls"][0]["extra_content"],
        ];
        assert_eq!(json!(back), expected, "{items}");
    }
}

#[test]
fn r28_r29_thinking_returns_only_to_its_vendor() {
    let blocks = r#"[{"type":"thinking","thinking":"hm \u0436","signature":"EqQB+/="}]"#;
    let reasoning = |sealed: &str| {
        json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "secret"}],
        "content": null, "encrypted_content": sealed})
    };
    let body = |sealed: &str| {
        with(
            json!({"input": [{"role": "user", "content": "q"}, reasoning(sealed), call("a", "{}"), output("a", "1")]}),
        )
    };
    let ours = body(&capsule::seal("claude", blocks));
    let bytes = to_messages(
        ours.to_string().as_bytes(),
        "claude",
        &cx(&Dialect::default()),
    )
    .unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let turn = format!("[{},{{\"type\":\"tool_use\"", &blocks[1..blocks.len() - 1]);
    assert!(text.contains(&turn), "{text}");
    for foreign in [
        "gAAAAABsecret",
        &capsule::seal("other", blocks),
        "tg1.Y2xhdWRl.?",
        "tg1.Y2xhdWRl.e30",
    ] {
        let sent = messages_as(&body(foreign), Dialect::default());
        assert_eq!(
            sent["messages"][1]["content"][0]["type"], "tool_use",
            "{foreign}"
        );
        assert!(!sent.to_string().contains("secret"));
    }
    assert!(
        !chat_as(&ours, Dialect::default())
            .to_string()
            .contains("secret")
    );
    // After a turn that begins with returned thinking, the vendor may think again.
    let mut ours = ours;
    ours["reasoning"] = json!({"effort": "low"});
    let budget = Dialect::default().thinking(Thinking::Budget);
    let sent = |body: &Value| {
        let big = crate::formats::wire::RequestCx {
            output_tokens: 8000,
            ..cx(&budget)
        };
        let bytes = to_messages(body.to_string().as_bytes(), "claude", &big).unwrap();
        serde_json::from_slice::<Value>(&bytes).unwrap()
    };
    assert_eq!(sent(&ours)["thinking"]["type"], "enabled");
    ours["input"][1]["encrypted_content"] = json!("lost");
    assert!(sent(&ours).get("thinking").is_none());
}

#[test]
fn thinking_without_a_tool_call_after_it_is_dropped() {
    let block = json!({"type": "thinking", "thinking": "t", "signature": "s"});
    let thought = json!({"type": "reasoning", "summary": [],
        "encrypted_content": capsule::seal("claude", &json!([block]).to_string())});
    let user = json!({"role": "user", "content": "q"});
    let reported = json!({"role": "assistant", "content": "a"});
    for (items, turns) in [
        (json!([user, thought]), json!([["text"]])),
        (
            json!([user, reported, thought]),
            json!([["text"], ["text"]]),
        ),
        // The tool call was truncated, so it and its thinking are left out.
        (json!([user, thought, cut("c", "{")]), json!([["text"]])),
        (json!([user, thought, user]), json!([["text", "text"]])),
        (
            json!([
                user,
                thought,
                thought,
                reported,
                call("c", "{}"),
                thought,
                output("c", "x")
            ]),
            json!([
                ["text"],
                ["thinking", "thinking", "text", "tool_use"],
                ["tool_result"]
            ]),
        ),
        (
            json!([user, thought, {"role": "developer", "content": "d"}, call("c", "{}"), output("c", "x")]),
            json!([["text", "text"], ["thinking", "tool_use"], ["tool_result"]]),
        ),
    ] {
        let sent = messages(json!({"input": items}));
        let kinds = |turn: &Value| -> Value {
            let blocks = turn["content"].as_array().unwrap();
            blocks.iter().map(|block| block["type"].clone()).collect()
        };
        let sent: Value = sent["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(kinds)
            .collect();
        assert_eq!(sent, turns, "{items}");
    }
}

#[test]
fn r38_json_answer_formats_are_translated() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "number", "maximum": 9_007_199_254_740_993_u64}}});
    let body = json!({"text": {"format": {"type": "json_schema", "name": "out", "schema": schema, "strict": true}}});
    assert_eq!(
        chat(body.clone())["response_format"],
        json!({"type": "json_schema", "json_schema": {"name": "out", "schema": schema, "strict": true}})
    );
    assert_eq!(
        messages(body.clone())["output_config"]["format"],
        json!({"type": "json_schema", "schema": schema})
    );
    let without = Dialect::default().json_schema(false);
    assert_eq!(
        refused(to_chat(
            with(body).to_string().as_bytes(),
            "deep",
            &cx(&without)
        )),
        "text.format.type"
    );
    let object = json!({"text": {"format": {"type": "json_object"}}});
    assert_eq!(
        chat(object.clone())["response_format"],
        json!({"type": "json_object"})
    );
    assert!(
        messages(object)["system"][0]["text"]
            .as_str()
            .unwrap()
            .contains("JSON")
    );
    let text = json!({"text": {"format": {"type": "text"}, "verbosity": "low"}});
    assert!(chat(text.clone()).get("response_format").is_none());
    assert!(messages(text).get("output_config").is_none());
}

#[test]
fn r39_reasoning_efforts_are_translated() {
    for (word, effort) in [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "xhigh"),
        ("max", "max"),
    ] {
        let body = json!({"reasoning": {"effort": word}});
        assert_eq!(chat(body.clone())["reasoning_effort"], word);
        assert_eq!(messages(body)["output_config"], json!({"effort": effort}));
    }
    assert_eq!(
        messages(json!({"reasoning": {"effort": "none"}}))["thinking"],
        json!({"type": "disabled"})
    );
    assert_eq!(
        both_refuse(json!({"reasoning": {"effort": "huge"}})),
        "reasoning.effort"
    );
}

#[test]
fn r40_r43_fields_without_a_counterpart_in_the_vendors_format_are_not_sent() {
    let body = json!({"text": {"verbosity": "low"}, "truncation": "auto", "prompt_cache_key": "k",
        "prompt_cache_retention": "24h", "client_metadata": {"a": "b"}, "metadata": {"c": "d"}, "moderation": {},
        "store": false, "background": false, "service_tier": "auto", "include": ["reasoning.encrypted_content"],
        "stream_options": {"include_obfuscation": false}, "safety_identifier": "who", "user": "older"});
    let sent = messages(body.clone());
    let mut fields: Vec<&String> = sent.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["max_tokens", "messages", "metadata", "model"]);
    assert_eq!(sent["metadata"], json!({"user_id": "who"}));
    let sent = chat(body);
    let mut fields: Vec<&String> = sent.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(
        fields,
        [
            "max_completion_tokens",
            "messages",
            "metadata",
            "model",
            "prompt_cache_key",
            "safety_identifier",
            "user"
        ]
    );
}

#[test]
fn r41_r42_r44_settings_without_a_counterpart_are_refused() {
    assert_eq!(both_refuse(json!({"top_logprobs": 3})), "top_logprobs");
    assert_eq!(
        both_refuse(json!({"include": ["x", "message.output_text.logprobs"]})),
        "include[1]"
    );
    for kind in [
        "local_shell",
        "shell",
        "apply_patch",
        "computer",
        "computer_use_preview",
        "mcp",
        "file_search",
    ] {
        assert_eq!(
            both_refuse(json!({"tools": [{"type": kind}]})),
            "tools[0].type"
        );
    }
    for kind in [
        "local_shell_call",
        "shell_call_output",
        "apply_patch_call",
        "computer_call",
        "web_search_call",
        "compaction",
        "item_reference",
    ] {
        assert_eq!(
            both_refuse(json!({"input": [{"type": kind, "id": "x"}]})),
            "input[0].type"
        );
    }
    assert_eq!(both_refuse(json!({"of_tomorrow": 1})), "of_tomorrow");
    assert_eq!(messages_refuses(json!({"temperature": 1.5})), "temperature");
}

#[test]
fn r45_conversation_of_instructions_alone_is_refused() {
    let body = json!({"input": [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]});
    let bytes = with(body).to_string();
    let sent = to_messages(bytes.as_bytes(), "claude", &cx(&Dialect::default()));
    assert!(
        matches!(
            &sent,
            Err(Error::Invalid { field, problem: Problem::NothingSaid }) if field == "input"
        ),
        "{sent:?}"
    );
}

#[test]
fn stream_request_asks_the_vendor_for_usage() {
    let sent = chat(json!({"stream": true}));
    assert_eq!(
        (&sent["stream"], &sent["stream_options"]),
        (&json!(true), &json!({"include_usage": true}))
    );
    assert_eq!(messages(json!({"stream": true}))["stream"], true);
}

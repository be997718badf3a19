use std::{fs, path::PathBuf};

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use super::{
    testing::{events, run},
    vendor_request_tests::{sent_by_chat, sent_by_messages},
};
use crate::{
    call::Format,
    error::Error,
    formats::{capsule, wire::AnswerCx},
    translate::{Origin, Translator},
};

const CX: AnswerCx = AnswerCx {
    created: 1_790_000_000,
    usage_asked: true,
    thinking_asked: true,
};

fn response(output: Value) -> Value {
    json!({"id": "resp_v", "object": "response", "status": "completed", "model": "gpt", "output": output, "error": null,
        "usage": {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1}, "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 17}})
}

fn message(text: &str) -> Value {
    json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

fn into_chat(body: &[u8], origin: &Origin, cx: &AnswerCx) -> Result<Bytes, Error> {
    Translator::to_chat(Format::Responses, origin.clone(), *cx, true).answer(body)
}

fn into_messages(body: &[u8], origin: &Origin, cx: &AnswerCx) -> Result<Bytes, Error> {
    Translator::to_messages(Format::Responses, origin.clone(), *cx, true).answer(body)
}

fn to_chat_caller(answer: &Value) -> Value {
    serde_json::from_slice(
        &into_chat(answer.to_string().as_bytes(), &Origin::default(), &CX).unwrap(),
    )
    .unwrap()
}

fn to_messages_caller(answer: &Value) -> Value {
    serde_json::from_slice(&into_messages(answer.to_string().as_bytes(), &open(), &CX).unwrap())
        .unwrap()
}

/// Returns the origin of the responses of the vendor `open` to a request without tools.
fn open() -> Origin {
    Origin::new(&"open".into(), b"{}")
}

fn reasoning() -> Value {
    json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s1"}, {"type": "summary_text", "text": "s2"}],
        "encrypted_content": "gAAA+/=\u{436}"})
}

#[test]
fn r65_free_text_tool_call_comes_back_as_free_text() {
    let answer = response(
        json!([{"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x\n"}]),
    );
    let calls = to_chat_caller(&answer)["choices"][0]["message"]["tool_calls"].clone();
    assert_eq!(
        calls,
        json!([{"id": "c", "type": "custom", "custom": {"name": "p", "input": "x\n"}}])
    );
}

#[test]
fn r69_r70_reasoning_is_carried_through_a_messages_caller() {
    let answer = to_messages_caller(&response(json!([reasoning(), message("a"),
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "opaque"}])));
    let content = answer["content"].as_array().unwrap();
    assert_eq!(
        (&content[0]["type"], &content[0]["thinking"]),
        (&json!("thinking"), &json!("s1\n\ns2"))
    );
    assert_eq!(content[2]["type"], "redacted_thinking");
    let sent = sent_by_messages(
        json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]}),
    );
    assert_eq!(sent["input"][1], reasoning());
    assert_eq!(
        sent["input"][3],
        json!({"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "opaque"})
    );
    let foreign = json!([{"type": "thinking", "thinking": "x", "signature": "EqQB"}, {"type": "text", "text": "a"},
        {"type": "redacted_thinking", "data": capsule::seal("other", "{\"type\":\"reasoning\"}")}]);
    let sent = sent_by_messages(
        json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": foreign}]}),
    );
    assert_eq!(sent["input"].as_array().unwrap().len(), 2);
    let silent = AnswerCx {
        thinking_asked: false,
        ..CX
    };
    let bytes = into_messages(
        response(json!([reasoning(), message("a")]))
            .to_string()
            .as_bytes(),
        &open(),
        &silent,
    )
    .unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(answer["content"], json!([{"type": "text", "text": "a"}]));
}

#[test]
fn hidden_reasoning_is_sent_with_the_tool_call_after_it() {
    let omitted = AnswerCx {
        thinking_asked: false,
        ..CX
    };
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
    let answer = response(json!([reasoning(), message("a"), call]));
    let bytes = into_messages(answer.to_string().as_bytes(), &open(), &omitted).unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    let content = answer["content"].as_array().unwrap();
    let kinds: Vec<&Value> = content.iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text", "redacted_thinking", "tool_use"]);
    let sent = sent_by_messages(json!({"messages": [{"role": "assistant", "content": content}]}));
    assert_eq!(sent["input"][1], reasoning());
}

#[test]
fn tool_names_over_64_characters_come_back_as_the_caller_wrote_them() {
    let (long, schema) = ("n".repeat(65), json!({"type": "object", "properties": {}}));
    let custom = json!({"type": "custom", "custom": {"name": "c"}});
    let chat = json!({"tools": [custom, {"type": "function", "function": {"name": long, "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": long}}});
    let messages = json!({"tools": [{"name": long, "input_schema": schema}],
        "tool_choice": {"type": "tool", "name": long},
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
            {"type": "tool_reference", "tool_name": "f"}]}]}]});
    for (sent, body) in [
        (sent_by_chat(chat.clone()), chat),
        (sent_by_messages(messages.clone()), messages),
    ] {
        let short = sent["tool_choice"]["name"].as_str().unwrap().to_owned();
        assert_eq!(short.len(), 64);
        let tools = sent["tools"].as_array().unwrap();
        assert_eq!(tools.last().unwrap()["name"], short);
        let call =
            json!({"type": "function_call", "call_id": "c", "name": short, "arguments": "{}"});
        let answer = response(json!([call])).to_string();
        let origin = Origin::new(&"open".into(), body.to_string().as_bytes());
        let answered = if body.get("messages").is_none() {
            let bytes = into_chat(answer.as_bytes(), &origin, &CX).unwrap();
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"].clone()
        } else {
            assert_eq!(sent["input"][0]["output"], "f");
            let bytes = into_messages(answer.as_bytes(), &origin, &CX).unwrap();
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            answer["content"][0]["name"].clone()
        };
        assert_eq!(answered, long);
    }
}

#[test]
fn r71_r73_r75_messages_are_joined_and_items_without_a_counterpart_are_dropped() {
    let both = json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "sum"}], "content": [{"type": "reasoning_text", "text": "raw"}]});
    let answer = response(
        json!([both, message("one"), {"type": "web_search_call", "id": "ws", "status": "completed"}, message("two")]),
    );
    let chat = to_chat_caller(&answer);
    let reported = &chat["choices"][0]["message"];
    assert_eq!(
        (&reported["content"], &reported["reasoning_content"]),
        (&json!("one\n\ntwo"), &json!("raw"))
    );
    assert_eq!(chat["choices"][0]["finish_reason"], "stop");
    let messages = to_messages_caller(&answer);
    assert_eq!(
        messages["content"],
        json!([{"type": "thinking", "thinking": "raw", "signature": capsule::seal("open", "{}")},
        {"type": "text", "text": "one"}, {"type": "text", "text": "two"}])
    );
}

#[test]
fn r72_r74_r76_stop_reasons_and_arguments_and_usage_are_translated() {
    let call =
        json!({"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": ""});
    let mut answer = response(json!([call]));
    let (chat, messages) = (to_chat_caller(&answer), to_messages_caller(&answer));
    assert_eq!(
        (
            &chat["choices"][0]["finish_reason"],
            &messages["stop_reason"]
        ),
        (&json!("tool_calls"), &json!("tool_use"))
    );
    let message = &chat["choices"][0]["message"];
    assert_eq!(
        (
            &message["content"],
            &message["tool_calls"][0]["function"]["arguments"]
        ),
        (&Value::Null, &json!("{}"))
    );
    assert_eq!(
        messages["content"],
        json!([{"type": "tool_use", "id": "c", "name": "f", "input": {}}])
    );
    assert_eq!(
        messages["usage"],
        json!({"input_tokens": 5, "cache_creation_input_tokens": 1, "cache_read_input_tokens": 4,
        "output_tokens": 7, "output_tokens_details": {"thinking_tokens": 2}})
    );
    assert_eq!(
        chat["usage"]["prompt_tokens_details"],
        json!({"cached_tokens": 4, "cache_write_tokens": 1})
    );
    answer["output"][0]["arguments"] = json!("[1");
    assert_eq!(
        to_messages_caller(&answer)["content"][0]["input"],
        json!({"arguments": "[1"})
    );
    answer["status"] = json!("incomplete");
    for (reason, finish, stop) in [
        ("max_output_tokens", "length", "max_tokens"),
        ("content_filter", "content_filter", "refusal"),
        ("steered", "length", "max_tokens"),
    ] {
        answer["incomplete_details"] = json!({"reason": reason});
        assert_eq!(
            to_chat_caller(&answer)["choices"][0]["finish_reason"],
            finish
        );
        assert_eq!(to_messages_caller(&answer)["stop_reason"], stop);
    }
    answer["usage"] = json!({"input_tokens": 3, "output_tokens": 2});
    assert_eq!(to_chat_caller(&answer)["usage"]["total_tokens"], 5);
    assert_eq!(
        to_messages_caller(&answer)["usage"]["cache_read_input_tokens"],
        0
    );
}

#[test]
fn plain_response_may_exceed_the_limit_of_bytes_that_wait_in_a_stream() {
    let long = "x".repeat((4 << 20) + 1);
    let answer = response(json!([message(&long)]));
    let received = to_messages_caller(&answer)["content"][0]["text"].clone();
    assert_eq!(received.as_str(), Some(&*long));
    let received = to_chat_caller(&answer)["choices"][0]["message"]["content"].clone();
    assert_eq!(received.as_str(), Some(&*long));
}

#[test]
fn refusals_and_invalid_bodies_become_errors() {
    let refusal =
        response(json!([{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]));
    let chat = to_chat_caller(&refusal);
    assert_eq!(
        (
            &chat["choices"][0]["message"]["content"],
            &chat["choices"][0]["message"]["refusal"]
        ),
        (&Value::Null, &json!("no"))
    );
    assert_eq!(to_messages_caller(&refusal)["stop_reason"], "refusal");
    for body in [
        "",
        "{}",
        "<html>",
        r#"{"output":[],"status":"queued"}"#,
        r#"{"output":[{"type":"function_call"}]}"#,
    ] {
        assert!(
            matches!(
                into_chat(body.as_bytes(), &Origin::default(), &CX),
                Err(Error::VendorBroken(_))
            ),
            "{body}"
        );
        assert!(
            matches!(
                into_messages(body.as_bytes(), &open(), &CX),
                Err(Error::VendorBroken(_))
            ),
            "{body}"
        );
    }
    let failed =
        br#"{"output":[],"status":"failed","error":{"code":"server_error","message":"x"}}"#;
    assert!(matches!(
        into_chat(failed, &Origin::default(), &CX),
        Err(Error::VendorUnavailable(_))
    ));
}

fn chat_run(chunks: &[&[u8]]) -> (BytesMut, Result<(), Error>) {
    let mut stream = Translator::to_chat(Format::Responses, Origin::default(), CX, false);
    run(chunks, |event, out| match event {
        Some(event) => stream.event(event, out),
        None => stream.end(out),
    })
}

fn messages_run(chunks: &[&[u8]]) -> (BytesMut, Result<(), Error>) {
    let mut stream = Translator::to_messages(Format::Responses, open(), CX, false);
    run(chunks, |event, out| match event {
        Some(event) => stream.event(event, out),
        None => stream.end(out),
    })
}

/// Collects the message of a Chat Completions stream, and the reason why it ended.
fn chat_heard(bytes: &[u8]) -> (Value, Value) {
    let (mut reported, mut finish, mut usage, mut done) =
        (json!({}), Value::Null, Value::Null, false);
    for event in events(&[bytes]) {
        let Some(data) = event.data() else { continue };
        assert!(!done, "an event behind [DONE]");
        if &*data == b"[DONE]" {
            done = true;
            continue;
        }
        let chunk: Value = serde_json::from_slice(&data).unwrap();
        assert_eq!(chunk["object"], "chat.completion.chunk");
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
            continue;
        }
        let choice = &chunk["choices"][0];
        for field in ["content", "refusal", "reasoning_content"] {
            if let Some(piece) = choice["delta"][field].as_str() {
                reported[field] = json!(format!(
                    "{}{piece}",
                    reported[field].as_str().unwrap_or_default()
                ));
            }
        }
        for call in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let index = call["index"].as_u64().unwrap() as usize;
            if !reported["calls"][index].is_array() {
                assert!(call["id"].is_string());
                if reported["calls"].is_null() {
                    reported["calls"] = json!([]);
                }
                assert_eq!(reported["calls"].as_array().unwrap().len(), index);
                reported["calls"].as_array_mut().unwrap().push(json!([
                    call["id"],
                    call["function"]["name"],
                    ""
                ]));
            }
        }
        for call in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let index = call["index"].as_u64().unwrap() as usize;
            let piece = call["function"]["arguments"].as_str().unwrap();
            let known = reported["calls"][index][2].as_str().unwrap().to_owned();
            reported["calls"][index][2] = json!(known + piece);
        }
        if !choice["finish_reason"].is_null() {
            assert!(finish.is_null());
            finish = choice["finish_reason"].clone();
        }
    }
    assert!(done && !finish.is_null());
    reported["usage"] = usage;
    (reported, finish)
}

/// Collects the content, the stop reason and the usage of a Messages stream. Panics if blocks interleave.
fn messages_heard(bytes: &[u8]) -> Value {
    let (mut content, mut open, mut end) = (Vec::<Value>::new(), false, Value::Null);
    for event in events(&[bytes]) {
        let data: Value = serde_json::from_slice(&event.data().unwrap()).unwrap();
        let kind = data["type"].as_str().unwrap();
        assert_eq!(event.name(), kind.as_bytes());
        match kind {
            "content_block_start" => {
                assert!(!open && data["index"] == content.len());
                content.push(data["content_block"].clone());
                open = true;
            }
            "content_block_delta" => {
                assert!(open && data["index"] == content.len() - 1);
                let (block, delta) = (content.last_mut().unwrap(), &data["delta"]);
                for field in ["text", "thinking", "signature", "partial_json"] {
                    if let Some(piece) = delta[field].as_str() {
                        block[field] = json!(format!(
                            "{}{piece}",
                            block[field].as_str().unwrap_or_default()
                        ));
                    }
                }
            }
            "content_block_stop" => {
                assert!(open);
                open = false;
                let block = content.last_mut().unwrap();
                if let Some(json) = block.as_object_mut().unwrap().remove("partial_json") {
                    block["input"] = serde_json::from_str(json.as_str().unwrap()).unwrap_or(json);
                }
            }
            "message_delta" => end = data.clone(),
            "message_start" | "message_stop" | "ping" => {}
            other => panic!("{other}"),
        }
    }
    assert!(!open);
    json!({"content": content, "stop_reason": end["delta"]["stop_reason"], "usage": end["usage"]})
}

fn recordings(ending: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let entries = fs::read_dir(&folder).expect("the recordings");
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter(|name| name.starts_with("responses-") && name.ends_with(ending))
        .collect();
    names.sort();
    names
        .into_iter()
        .map(|name| (name.clone(), fs::read(folder.join(&name)).unwrap()))
        .collect()
}

/// Returns the response in the last event of a recorded stream. If that response has no items, they are taken from the
/// `done` events.
fn source(bytes: &[u8]) -> Option<Value> {
    let (mut items, mut last) = (Vec::new(), None);
    for event in events(&[bytes]) {
        let Some(data) = event.data() else { continue };
        let Ok(data) = serde_json::from_slice::<Value>(&data) else {
            continue;
        };
        match data["type"].as_str().unwrap() {
            "response.output_item.done" => {
                items.push((data["output_index"].as_u64(), data["item"].clone()))
            }
            "response.completed" | "response.incomplete" => last = Some(data["response"].clone()),
            _ => {}
        }
    }
    items.sort_by_key(|(index, _)| *index);
    let mut last = last?;
    if last["output"].as_array().is_none_or(Vec::is_empty) {
        last["output"] = items.into_iter().map(|(_, item)| item).collect();
    }
    Some(last)
}

#[test]
fn r82_r84_r85_deltas_of_recorded_streams_add_up_to_their_last_event() {
    let mut whole = 0;
    for (name, bytes) in recordings(".sse") {
        let Some(source) = source(&bytes) else {
            for (out, end) in [chat_run(&[&bytes]), messages_run(&[&bytes])] {
                assert!(
                    matches!(end, Err(Error::VendorUnavailable(_))),
                    "{name}: {end:?}"
                );
                let text = String::from_utf8_lossy(&out);
                assert!(
                    !text.contains("[DONE]") && !text.contains("message_stop"),
                    "{name}"
                );
            }
            continue;
        };
        whole += 1;
        let (out, end) = chat_run(&[&bytes]);
        end.unwrap();
        let (reported, finish) = chat_heard(&out);
        let plain = to_chat_caller(&source);
        let message = &plain["choices"][0]["message"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        // The recording with `-phase-` in its name lacks some deltas.
        let shortened = name.contains("-phase-");
        let whole_text = if shortened {
            "Got it\n\nHere are a few **AI".to_owned()
        } else {
            text(&message["content"])
        };
        assert_eq!(text(&reported["content"]), whole_text, "{name}");
        assert_eq!(
            text(&reported["reasoning_content"]),
            text(&message["reasoning_content"]),
            "{name}"
        );
        let calls: Vec<Value> = message["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| {
                json!([
                    call["id"],
                    call["function"]["name"],
                    call["function"]["arguments"]
                ])
            })
            .collect();
        assert_eq!(
            reported["calls"].as_array().cloned().unwrap_or_default(),
            calls,
            "{name}"
        );
        assert_eq!(finish, plain["choices"][0]["finish_reason"], "{name}");
        assert_eq!(reported["usage"], plain["usage"], "{name}");

        let (out, end) = messages_run(&[&bytes]);
        end.unwrap();
        let received = messages_heard(&out);
        let plain = to_messages_caller(&source);
        for field in ["content", "stop_reason", "usage"] {
            if !(shortened && field == "content") {
                assert_eq!(received[field], plain[field], "{name} {field}");
            }
        }
        for step in [1, 13] {
            let chunks: Vec<&[u8]> = bytes.chunks(step).collect();
            assert!(messages_run(&chunks).0 == out, "{name} in pieces of {step}");
            assert!(
                chat_run(&chunks).0 == chat_run(&[&bytes]).0,
                "{name} in pieces of {step}"
            );
        }
        let crlf = String::from_utf8(bytes)
            .unwrap()
            .replace("\r\n", "\n")
            .replace('\n', "\r\n");
        assert!(messages_run(&[crlf.as_bytes()]).0 == out, "{name}");
    }
    assert!(whole >= 7, "{whole}");
}

#[test]
fn recorded_responses_are_valid_in_both_other_formats() {
    for (name, bytes) in recordings(".json") {
        if name.contains("-error-") {
            assert!(
                into_chat(&bytes, &open(), &CX).is_err()
                    && into_messages(&bytes, &open(), &CX).is_err(),
                "{name}"
            );
            continue;
        }
        let source: Value = serde_json::from_slice(&bytes).unwrap();
        let calls = |kind: &str| {
            source["output"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|item| item["type"] == kind)
                .count()
        };
        let chat = to_chat_caller(&source);
        let message = &chat["choices"][0]["message"];
        assert_eq!(
            message["tool_calls"].as_array().map_or(0, Vec::len),
            calls("function_call"),
            "{name}"
        );
        let messages = to_messages_caller(&source);
        let blocks = messages["content"].as_array().unwrap();
        assert_eq!(
            blocks
                .iter()
                .filter(|block| block["type"] == "tool_use")
                .count(),
            calls("function_call"),
            "{name}"
        );
        assert_eq!(
            messages["usage"]["output_tokens"], source["usage"]["output_tokens"],
            "{name}"
        );
        assert_eq!(
            chat["usage"]["prompt_tokens"], source["usage"]["input_tokens"],
            "{name}"
        );
    }
}

fn stream(events: &[Value]) -> Vec<u8> {
    let mut stream = String::new();
    for event in events {
        stream += &format!("data: {event}\n\n");
    }
    stream.into_bytes()
}

fn created() -> Value {
    json!({"type": "response.created", "response": {"id": "resp_v", "model": "gpt", "output": [], "usage": null}})
}

fn added(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.added", "output_index": index, "item": item})
}

fn done(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": index, "item": item})
}

fn completed(output: Value) -> Value {
    json!({"type": "response.completed", "response": response(output)})
}

fn call(arguments: &str) -> Value {
    json!({"type": "function_call", "id": "x", "call_id": "c", "name": "f", "arguments": arguments})
}

#[test]
fn r83_tool_arguments_are_written_once_whichever_event_has_them() {
    let delta = |piece: &str| json!({"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "y", "delta": piece});
    let reported = json!({"type": "response.function_call_arguments.done", "output_index": 0, "arguments": "{\"n\":1}"});
    let full = call("{\"n\":1}");
    for events in [
        vec![
            created(),
            added(0, call("")),
            delta("{\"n\""),
            delta(":1}"),
            reported.clone(),
            done(0, full.clone()),
            completed(json!([full])),
        ],
        vec![
            created(),
            added(0, call("")),
            reported.clone(),
            done(0, full.clone()),
            completed(json!([full])),
        ],
        vec![
            created(),
            added(0, call("")),
            done(0, full.clone()),
            completed(json!([])),
        ],
        vec![created(), done(0, full.clone()), completed(json!([full]))],
        vec![
            created(),
            json!({"type": "response.of_tomorrow", "output_index": "?"}),
            completed(json!([full])),
            delta("late"),
        ],
    ] {
        let bytes = stream(&events);
        let (out, end) = chat_run(&[&bytes]);
        end.unwrap();
        let (reported, finish) = chat_heard(&out);
        assert_eq!(
            (&reported["calls"], finish),
            (&json!([["c", "f", "{\"n\":1}"]]), json!("tool_calls"))
        );
        let (out, end) = messages_run(&[&bytes]);
        end.unwrap();
        assert_eq!(
            messages_heard(&out)["content"],
            json!([{"type": "tool_use", "id": "c", "name": "f", "input": {"n": 1}}])
        );
    }
    let none = stream(&[
        created(),
        added(0, call("")),
        done(0, call("")),
        completed(json!([])),
    ]);
    assert_eq!(chat_heard(&chat_run(&[&none]).0).0["calls"][0][2], "{}");
    assert_eq!(
        messages_heard(&messages_run(&[&none]).0)["content"][0]["input"],
        json!({})
    );
}

/// Translates a stream of these events to both other formats. Returns a Chat Completions message and the content of a
/// Messages response.
fn both_heard(events: &[Value]) -> (Value, Value) {
    let bytes = stream(events);
    let ((chat, chat_end), (messages, messages_end)) =
        (chat_run(&[&bytes]), messages_run(&[&bytes]));
    chat_end.and(messages_end).unwrap();
    let content = messages_heard(&messages)["content"].clone();
    (chat_heard(&chat).0, content)
}

fn delta(kind: &str, index: u64, piece: &str) -> Value {
    json!({"type": format!("response.{kind}.delta"), "output_index": index, "delta": piece})
}

#[test]
fn parts_of_reasoning_are_separated_by_a_blank_line() {
    let texts = |kind: &str, texts: &[&str]| -> Value {
        let texts = texts.iter();
        texts
            .map(|text| json!({"type": kind, "text": text}))
            .collect()
    };
    let summed =
        json!({"type": "reasoning", "summary": texts("summary_text", &["first.", "more"])});
    let raw = json!({"type": "reasoning", "summary": [], "content": texts("reasoning_text", &["Second", "end"])});
    let items = json!([summed, raw, message("a")]);
    let whole = "first.\n\nmore\n\nSecond\n\nend";
    let plain = to_chat_caller(&response(items.clone()));
    assert_eq!(plain["choices"][0]["message"]["reasoning_content"], whole);
    let content = to_messages_caller(&response(items.clone()))["content"].clone();
    assert_eq!(content[0]["thinking"], "first.\n\nmore");
    assert_eq!(content[1]["thinking"], "Second\n\nend");
    let piece = |kind: &str, index: u64, name: &str, part: u64, text: &str| {
        let mut event = delta(kind, index, text);
        event[name] = json!(part);
        event
    };
    let summary =
        |part, text: &str| piece("reasoning_summary_text", 0, "summary_index", part, text);
    let reasoning = |part, text: &str| piece("reasoning_text", 1, "content_index", part, text);
    let (reported, received) = both_heard(&[
        created(),
        summary(0, "fir"),
        summary(0, "st."),
        summary(1, "more"),
        done(0, summed),
        reasoning(0, "Second"),
        reasoning(1, "end"),
        done(1, raw),
        completed(items),
    ]);
    assert_eq!(reported["reasoning_content"], whole);
    assert_eq!(received, content);
}

#[test]
fn r85_interleaved_items_are_buffered_only_for_messages_callers() {
    let text = |piece: &str| json!({"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": piece});
    let thought = |piece: &str| json!({"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": piece});
    let sealed = json!({"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "h1h2"}], "encrypted_content": "e"});
    let bytes = stream(&[
        created(),
        added(0, json!({"type": "reasoning", "summary": []})),
        thought("h1"),
        added(1, json!({"type": "message", "content": []})),
        text("a"),
        thought("h2"),
        text("b"),
        done(1, message("ab")),
        done(0, sealed),
        completed(json!([])),
    ]);
    let (reported, _) = chat_heard(&chat_run(&[&bytes]).0);
    assert_eq!(
        (&reported["content"], &reported["reasoning_content"]),
        (&json!("ab"), &json!("h1h2"))
    );
    let received = messages_heard(&messages_run(&[&bytes]).0);
    assert_eq!(
        (&received["content"][0]["thinking"], &received["content"][1]),
        (&json!("h1h2"), &json!({"type": "text", "text": "ab"}))
    );
    assert!(
        received["content"][0]["signature"]
            .as_str()
            .unwrap()
            .starts_with("tg1.")
    );
}

#[test]
fn r86_r87_end_of_a_stream_is_translated() {
    let mut cut = completed(json!([message("a")]));
    cut["type"] = json!("response.incomplete");
    cut["response"]["status"] = json!("incomplete");
    cut["response"]["incomplete_details"] = json!({"reason": "max_output_tokens"});
    let bytes = stream(&[created(), cut]);
    assert_eq!(chat_heard(&chat_run(&[&bytes]).0).1, "length");
    assert_eq!(
        messages_heard(&messages_run(&[&bytes]).0)["stop_reason"],
        "max_tokens"
    );
    let flat = json!({"type": "error", "code": "server_error", "message": "x", "param": null});
    let nested = json!({"type": "error", "error": {"type": "server_error", "code": "server_error", "message": "x"}});
    let failed = json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "x"}}});
    for ending in [vec![flat], vec![nested], vec![failed], vec![]] {
        let mut events = vec![created(), added(0, json!({"type": "message"}))];
        events.extend(ending);
        for (out, end) in [
            chat_run(&[&stream(&events)]),
            messages_run(&[&stream(&events)]),
        ] {
            assert!(matches!(
                end,
                Err(Error::VendorUnavailable(_) | Error::VendorBroken(_))
            ));
            let text = String::from_utf8_lossy(&out);
            assert!(!text.contains("[DONE]") && !text.contains("message_stop"));
        }
    }
}

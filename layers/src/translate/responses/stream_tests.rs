use std::{fs, path::PathBuf};

use bytes::BytesMut;
use serde_json::{Value, json};

use super::{
    answer_tests::{chat_answer, messages_answer},
    testing::{curious, received, requested, run},
};
use crate::{
    call::Format,
    error::Error,
    formats::{capsule, turn::KEPT_BYTES_MAX},
    translate::Translator,
};

fn chat_run(request: &Value, chunks: &[&[u8]]) -> (BytesMut, Result<(), Error>) {
    let mut stream = Translator::to_responses(Format::Chat, requested(request), false);
    run(chunks, |event, out| match event {
        Some(event) => stream.event(event, out),
        None => stream.end(out),
    })
}

fn messages_run(request: &Value, chunks: &[&[u8]]) -> (BytesMut, Result<(), Error>) {
    let mut stream = Translator::to_responses(Format::Messages, requested(request), false);
    run(chunks, |event, out| match event {
        Some(event) => stream.event(event, out),
        None => stream.end(out),
    })
}

/// Builds a Chat Completions stream with these deltas.
fn chat_stream(deltas: &[Value], finish: &str) -> Vec<u8> {
    let mut stream = String::new();
    let chunk = |delta: &Value, finish: Value| json!({"id": "c", "model": "gpt", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    for delta in deltas {
        stream += &format!("data: {}\n\n", chunk(delta, Value::Null));
    }
    stream += &format!("data: {}\n\n", chunk(&json!({}), json!(finish)));
    let usage =
        json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}});
    stream += &format!("data: {usage}\n\ndata: [DONE]\n\n");
    stream.into_bytes()
}

fn chat_heard(request: &Value, deltas: &[Value], finish: &str) -> Value {
    let (out, end) = chat_run(request, &[&chat_stream(deltas, finish)]);
    end.unwrap();
    received(&out)
}

fn piece(index: u64, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})
}

fn tools() -> Value {
    json!({"model": "m", "input": "x", "tools": [{"type": "custom", "name": "patch"}]})
}

#[test]
fn r78_r79_r80_chat_stream_is_translated_item_by_item() {
    let response = chat_heard(
        &curious(),
        &[
            json!({"role": "assistant", "content": ""}),
            json!({"reasoning_content": "h"}),
            json!({"reasoning_content": "m"}),
            json!({"content": "a\""}),
            json!({"content": "ж"}),
            piece(0, Some("c1"), Some("f"), ""),
            piece(0, None, None, "{\"n\":"),
            piece(0, None, None, "1}"),
            json!({"content": "after"}),
        ],
        "tool_calls",
    );
    assert_eq!(
        (&response["status"], &response["model"]),
        (&json!("completed"), &json!("gpt"))
    );
    let output = response["output"].as_array().unwrap();
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "message"]);
    assert_eq!(output[0]["content"][0]["text"], "hm");
    assert_eq!(output[1]["content"][0]["text"], "a\"ж");
    assert_eq!(output[2]["arguments"], "{\"n\":1}");
    assert_eq!(output[3]["content"][0]["text"], "after");
    assert_eq!(response["usage"]["total_tokens"], 5);
}

#[test]
fn first_chunk_with_only_prompt_filter_results_does_not_begin_the_response() {
    let about = json!({"id": "", "model": "", "choices": [], "prompt_filter_results": []});
    let about = format!("data: {about}\n\n").into_bytes();
    let reported = chat_stream(&[json!({"content": "a"})], "stop");
    let (out, end) = chat_run(&curious(), &[&about, &reported]);
    end.unwrap();
    let text = String::from_utf8(out.to_vec()).unwrap();
    assert!(!text.contains("\"model\":\"\""), "{text}");
    assert_eq!(received(&out)["model"], "gpt");
}

#[test]
fn r81_interleaved_tool_calls_are_open_at_the_same_time() {
    let deltas = [
        piece(0, Some("a"), Some("f"), "{\"x\""),
        piece(1, Some("b"), Some("g"), "{"),
        piece(0, None, None, ":1}"),
        piece(1, None, None, "}"),
    ];
    let (out, end) = chat_run(&curious(), &[&chat_stream(&deltas, "tool_calls")]);
    end.unwrap();
    let text = String::from_utf8(out.to_vec()).unwrap();
    let second = text.find("\"output_index\":1").unwrap();
    assert!(second < text.find("response.output_item.done").unwrap());
    let response = received(&out);
    assert_eq!(
        (
            &response["output"][0]["arguments"],
            &response["output"][1]["arguments"]
        ),
        (&json!("{\"x\":1}"), &json!("{}"))
    );
}

#[test]
fn tool_call_gets_a_name_that_arrives_late_and_defaults_for_missing_id_and_arguments() {
    let response = chat_heard(
        &curious(),
        &[
            piece(0, Some("a"), None, "{\"x\":"),
            piece(0, None, Some("f"), "2}"),
            piece(1, None, Some("g"), "null"),
        ],
        "stop",
    );
    assert_eq!(
        (
            &response["output"][0]["name"],
            &response["output"][0]["arguments"]
        ),
        (&json!("f"), &json!("{\"x\":2}"))
    );
    assert_eq!(response["output"][1]["arguments"], "{}");
    assert!(
        response["output"][1]["call_id"]
            .as_str()
            .unwrap()
            .starts_with("toolu_")
    );
    let (_, end) = chat_run(
        &curious(),
        &[&chat_stream(
            &[piece(0, Some("a"), None, "{}")],
            "tool_calls",
        )],
    );
    assert!(matches!(end, Err(Error::VendorBroken(_))));
}

#[test]
fn input_of_a_free_text_tool_is_sent_in_one_piece() {
    let deltas = [
        piece(0, Some("a"), Some("patch"), "{\"inp"),
        piece(0, None, None, "ut\":\"l1\\nl2\"}"),
    ];
    let (out, end) = chat_run(&tools(), &[&chat_stream(&deltas, "tool_calls")]);
    end.unwrap();
    let text = String::from_utf8(out.to_vec()).unwrap();
    assert_eq!(
        text.matches("event: response.custom_tool_call_input.delta")
            .count(),
        1
    );
    assert!(!text.contains("function_call_arguments"));
    let response = received(&out);
    assert_eq!(
        (
            &response["output"][0]["type"],
            &response["output"][0]["input"]
        ),
        (&json!("custom_tool_call"), &json!("l1\nl2"))
    );
}

#[test]
fn r48_stream_that_was_cut_ends_as_incomplete() {
    let response = chat_heard(
        &curious(),
        &[
            json!({"content": "a"}),
            piece(0, Some("c"), Some("f"), "{\"x"),
        ],
        "length",
    );
    assert_eq!(
        (
            &response["status"],
            &response["incomplete_details"]["reason"]
        ),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(
        (
            &response["output"][0]["status"],
            &response["output"][1]["status"]
        ),
        (&json!("completed"), &json!("incomplete"))
    );
    let response = chat_heard(
        &curious(),
        &[json!({"content": "a"}), json!({"refusal": "no"})],
        "content_filter",
    );
    assert_eq!(
        response["output"][0]["content"],
        json!([
        {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}, {"type": "refusal", "refusal": "no"}])
    );
    assert_eq!(response["incomplete_details"]["reason"], "content_filter");
}

fn messages_stream(events: &[Value]) -> Vec<u8> {
    let start = json!({"type": "message_start", "message": {"id": "m", "model": "opus", "usage": {"input_tokens": 5, "output_tokens": 1}}});
    let mut stream = format!("event: message_start\ndata: {start}\n\n");
    for event in events {
        stream += &format!(
            "event: {}\ndata: {event}\n\n",
            event["type"].as_str().unwrap()
        );
    }
    stream.into_bytes()
}

fn block(index: u64, block: Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn delta(index: u64, delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn stop(index: u64) -> Value {
    json!({"type": "content_block_stop", "index": index})
}

fn last(reason: &str) -> [Value; 2] {
    [
        json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 9}}),
        json!({"type": "message_stop"}),
    ]
}

fn thinking_and_a_call(reason: &str) -> Vec<u8> {
    let [end, stopped] = last(reason);
    messages_stream(&[
        block(
            0,
            json!({"type": "thinking", "thinking": "", "signature": ""}),
        ),
        delta(0, json!({"type": "thinking_delta", "thinking": "h"})),
        delta(0, json!({"type": "thinking_delta", "thinking": "m\""})),
        delta(0, json!({"type": "signature_delta", "signature": "s="})),
        stop(0),
        json!({"type": "ping"}),
        block(1, json!({"type": "redacted_thinking", "data": "dd"})),
        stop(1),
        block(2, json!({"type": "text", "text": ""})),
        delta(2, json!({"type": "text_delta", "text": "so"})),
        stop(2),
        block(
            3,
            json!({"type": "tool_use", "id": "t", "name": "f", "input": {}}),
        ),
        delta(3, json!({"type": "input_json_delta", "partial_json": ""})),
        delta(
            3,
            json!({"type": "input_json_delta", "partial_json": "{\"n\":1}"}),
        ),
        stop(3),
        block(
            4,
            json!({"type": "tool_use", "id": "u", "name": "g", "input": {}}),
        ),
        stop(4),
        json!({"type": "of_tomorrow"}),
        end,
        stopped,
    ])
}

#[test]
fn r78_r80_messages_stream_is_translated_item_by_item() {
    let (out, end) = messages_run(&curious(), &[&thinking_and_a_call("tool_use")]);
    end.unwrap();
    let response = received(&out);
    let output = response["output"].as_array().unwrap();
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(
        kinds,
        [
            "reasoning",
            "reasoning",
            "message",
            "function_call",
            "function_call"
        ]
    );
    assert_eq!(output[0]["summary"][0]["text"], "hm\"");
    let opened = capsule::open(output[0]["encrypted_content"].as_str().unwrap(), "claude").unwrap();
    assert_eq!(
        opened,
        r#"[{"type":"thinking","thinking":"hm\"","signature":"s="}]"#
    );
    assert_eq!(
        (&output[3]["arguments"], &output[4]["arguments"]),
        (&json!("{\"n\":1}"), &json!("{}"))
    );
    assert_eq!(
        (
            &response["usage"]["input_tokens"],
            &response["usage"]["output_tokens"]
        ),
        (&json!(5), &json!(9))
    );
    let plain = json!({"model": "m", "input": "x"});
    let (out, end) = messages_run(&plain, &[&thinking_and_a_call("max_tokens")]);
    end.unwrap();
    let response = received(&out);
    let output = response["output"].as_array().unwrap();
    assert_eq!((output.len(), &output[0]["type"]), (3, &json!("message")));
    assert_eq!(
        (&output[1]["status"], &output[2]["status"]),
        (&json!("completed"), &json!("incomplete"))
    );
}

#[test]
fn r77_deltas_of_a_stream_add_up_to_the_plain_response() {
    let (out, _) = messages_run(&curious(), &[&thinking_and_a_call("tool_use")]);
    let body = json!({"id": "m", "model": "opus", "stop_reason": "tool_use", "usage": {"input_tokens": 5, "output_tokens": 9},
        "content": [{"type": "thinking", "thinking": "hm\"", "signature": "s="}, {"type": "redacted_thinking", "data": "dd"},
            {"type": "text", "text": "so"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"n": 1}},
            {"type": "tool_use", "id": "u", "name": "g", "input": {}}]});
    let plain = messages_answer(body.to_string().as_bytes(), requested(&curious())).unwrap();
    assert_eq!(
        received(&out),
        serde_json::from_slice::<Value>(&plain).unwrap()
    );

    let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{\"input\":\"x\"}"}});
    let message = json!({"reasoning_content": "hm", "content": "so", "tool_calls": [call("a", "patch"), call("b", "f")]});
    let body = json!({"id": "c", "model": "gpt", "choices": [{"message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2}});
    let plain = chat_answer(body.to_string().as_bytes(), requested(&tools())).unwrap();
    let streamed = chat_heard(
        &tools(),
        &[
            json!({"reasoning_content": "hm"}),
            json!({"content": "so"}),
            piece(0, Some("a"), Some("patch"), "{\"input\":\"x\"}"),
            piece(1, Some("b"), Some("f"), "{\"input\":\"x\"}"),
        ],
        "tool_calls",
    );
    assert_eq!(streamed, serde_json::from_slice::<Value>(&plain).unwrap());
}

fn recordings(beginning: &str, ending: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let entries = fs::read_dir(&folder).expect("the recordings");
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter(|name| name.starts_with(beginning) && name.ends_with(ending))
        .collect();
    names.sort();
    names
        .into_iter()
        .map(|name| (name.clone(), fs::read(folder.join(&name)).unwrap()))
        .collect()
}

#[test]
fn r82_recorded_streams_have_the_same_translation_wherever_they_are_cut() {
    let mut whole = 0;
    for (name, bytes) in recordings("chat-", ".sse")
        .into_iter()
        .chain(recordings("messages-", ".sse"))
    {
        let run = |chunks: &[&[u8]]| match name.starts_with("chat-") {
            true => chat_run(&curious(), chunks),
            false => messages_run(&curious(), chunks),
        };
        let (out, end) = run(&[&bytes]);
        if end.is_err() {
            assert!(
                !out.windows(10).any(|window| window == b".completed"),
                "{name}"
            );
            continue;
        }
        whole += 1;
        let response = received(&out);
        let items = response["output"].as_array().unwrap();
        assert!(!items.is_empty(), "{name}");
        for step in [1, 7, 100] {
            let chunks: Vec<&[u8]> = bytes.chunks(step).collect();
            let (cut, end) = run(&chunks);
            end.unwrap();
            assert!(cut == out, "{name} in pieces of {step}");
        }
        let crlf = String::from_utf8(bytes.clone())
            .unwrap()
            .replace("\r\n", "\n")
            .replace('\n', "\r\n");
        let (crlf, _) = run(&[crlf.as_bytes()]);
        assert_eq!(received(&crlf)["output"], response["output"], "{name}");
        // The text of the recording, which is read without the code under test.
        let reported: String = String::from_utf8(bytes)
            .unwrap()
            .lines()
            .filter_map(|line| {
                let data: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
                let text = data["choices"][0]["delta"]["content"]
                    .as_str()
                    .or(data["delta"]["text"].as_str());
                text.map(str::to_owned)
            })
            .collect();
        let text: String = items
            .iter()
            .flat_map(|item| item["content"].as_array().into_iter().flatten())
            .filter(|part| part["type"] == "output_text")
            .map(|part| part["text"].as_str().unwrap())
            .collect();
        assert_eq!(text, reported, "{name}");
    }
    assert!(whole >= 14, "{whole}");
}

#[test]
fn recorded_responses_have_items_and_usage() {
    let mut whole = 0;
    for (name, bytes) in recordings("chat-", ".json")
        .into_iter()
        .chain(recordings("messages-", ".json"))
    {
        let answer = match name.starts_with("chat-") {
            true => chat_answer(&bytes, requested(&curious())),
            false => messages_answer(&bytes, requested(&curious())),
        };
        let Ok(answer) = answer else {
            assert!(name.contains("-error-"), "{name}");
            continue;
        };
        whole += 1;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(!answer["output"].as_array().unwrap().is_empty(), "{name}");
        let source: Value = serde_json::from_slice(&bytes).unwrap();
        let usage = &source["usage"];
        let output = usage["completion_tokens"]
            .as_u64()
            .or(usage["output_tokens"].as_u64());
        assert_eq!(answer["usage"]["output_tokens"].as_u64(), output, "{name}");
    }
    assert!(whole >= 6, "{whole}");
}

#[test]
fn r89_response_of_a_failing_vendor_never_completes() {
    let chat = chat_stream(&[json!({"content": "a"})], "stop");
    let cut = chat
        .windows(13)
        .position(|window| window == b"finish_reason")
        .unwrap();
    let messages = thinking_and_a_call("tool_use");
    let end = messages
        .windows(14)
        .position(|window| window == b"message_delta\"")
        .unwrap();
    let error = b"data: {\"error\":{\"message\":\"x\"}}\n\n";
    let failed = b"event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n";
    for (out, end) in [
        chat_run(&curious(), &[&chat[..cut]]),
        chat_run(&curious(), &[&chat[..0]]),
        chat_run(&curious(), &[error]),
        chat_run(&curious(), &[b"data: [DONE]\n\n"]),
        messages_run(&curious(), &[&messages[..end]]),
        messages_run(&curious(), &[]),
        messages_run(&curious(), &[&messages[..end / 2], b"\n\n", failed]),
        messages_run(&curious(), &[b"data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"a\"}}\n\n"]),
    ] {
        assert!(matches!(end, Err(Error::VendorBroken(_) | Error::VendorUnavailable(_))), "{end:?}");
        assert!(!String::from_utf8_lossy(&out).contains("response.completed"));
    }
}

#[test]
fn error_message_in_place_of_a_chat_response_is_the_vendors_error() {
    let text = b"data: {\"id\":\"c\",\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let done = b"data: [DONE]\n\n";
    for error in [
        &b"event: error\ndata: {\"message\":\"boom\"}\n\n"[..],
        b"data: {\"object\":\"error\",\"message\":\"boom\"}\n\n",
        b"data: {\"detail\":\"boom\"}\n\n",
    ] {
        for chunks in [
            &[&text[..], error, done][..],
            &[error, done],
            &[text, error],
        ] {
            let (out, end) = chat_run(&curious(), chunks);
            let error = end.unwrap_err();
            assert!(matches!(error, Error::VendorUnavailable(_)), "{error:?}");
            assert!(format!("{error:?}").contains("boom"), "{error:?}");
            assert!(!String::from_utf8_lossy(&out).contains("response.completed"));
        }
    }
}

#[test]
fn truncated_tool_call_arguments_are_an_error_unless_the_finish_reason_explains_them() {
    let half = || [piece(0, Some("a"), Some("f"), "{\"path\":\"/a")];
    for reason in ["tool_calls", "stop"] {
        let (out, end) = chat_run(&curious(), &[&chat_stream(&half(), reason)]);
        assert!(matches!(end, Err(Error::VendorBroken(_))), "{end:?}");
        assert!(!String::from_utf8_lossy(&out).contains("response.completed"));
    }
    assert_eq!(
        chat_heard(&curious(), &half(), "length")["status"],
        "incomplete"
    );
    // Complete arguments that are not JSON are a mistake of the model, so they are forwarded unchanged.
    let odd = [piece(0, Some("a"), Some("f"), "{'a': 1}")];
    assert_eq!(
        chat_heard(&curious(), &odd, "tool_calls")["status"],
        "completed"
    );
}

#[test]
fn usage_in_the_last_choice_is_reported() {
    let chunk = json!({"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop",
        "usage": {"prompt_tokens": 100, "completion_tokens": 20}}]});
    let stream = format!("data: {chunk}\n\ndata: [DONE]\n\n");
    let (out, end) = chat_run(&curious(), &[stream.as_bytes()]);
    end.unwrap();
    let usage = &received(&out)["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"]),
        (&json!(100), &json!(20))
    );
}

#[test]
fn usage_object_of_zeros_after_real_usage_is_ignored() {
    let mut stream = chat_stream(&[json!({"content": "a"})], "stop");
    let done = stream.len() - b"data: [DONE]\n\n".len();
    stream.truncate(done);
    let zero =
        b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\n";
    let (out, end) = chat_run(&curious(), &[&stream, zero, b"data: [DONE]\n\n"]);
    end.unwrap();
    assert_eq!(received(&out)["usage"]["output_tokens"], 2);
}

#[test]
fn r91_keep_alives_have_sequence_numbers_only_after_the_first_event() {
    let stream = chat_stream(&[json!({"content": "a"}), json!({"content": "b"})], "stop");
    let first = stream.windows(2).position(|pair| pair == b"\n\n").unwrap() + 2;
    let comment = b": keep-alive\n\n";
    let chunks: [&[u8]; 4] = [comment, &stream[..first], comment, &stream[first..]];
    let (out, end) = chat_run(&curious(), &chunks);
    end.unwrap();
    let text = String::from_utf8(out.to_vec()).unwrap();
    assert!(text.starts_with(": keep-alive\n\nevent: response.created\n"));
    let alive = "event: keepalive\ndata: {\"type\":\"keepalive\",\"sequence_number\":5}\n\n";
    assert!(text.contains(alive), "{text}");
    assert_eq!(received(&out)["output"][0]["content"][0]["text"], "ab");
}

#[test]
fn response_too_long_to_repeat_in_the_last_event_is_refused() {
    let long = "x".repeat(KEPT_BYTES_MAX / 2);
    let deltas = vec![json!({"content": long}); 3];
    let (_, end) = chat_run(&curious(), &[&chat_stream(&deltas, "stop")]);
    assert!(matches!(end, Err(Error::AnswerTooLong(_))));
}

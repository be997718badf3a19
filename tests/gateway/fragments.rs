//! Tests that the caller gets the same response wherever a vendor cuts its stream, even after each letter. So the
//! gateway never interprets a piece of a text, of reasoning or of tool arguments as if it were complete.

use std::{fs, path::Path};

use bytes::BytesMut;
use serde_json::Map;
use tollgate_layers::{
    call::Format,
    passthrough::usage::Reader,
    sse::{Event, Splitter},
    translate::{Origin, Translator, wire::AnswerCx},
    usage::{Reading, Usage},
};

use crate::prelude::*;

const CX: AnswerCx = AnswerCx {
    created: 1_790_000_000,
    usage_asked: true,
    thinking_asked: true,
};

/// The response as a caller of the other format receives it, and the usage that the gateway meters for the charge.
#[derive(Clone, Debug, Default, PartialEq)]
struct Heard {
    id: String,
    model: String,
    text: String,
    thinking: String,
    /// The id, the name and the arguments of each tool call.
    calls: Vec<[String; 3]>,
    stop: Value,
    usage: Value,
    whole: bool,
    error: Option<String>,
    metered: Metered,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Metered {
    usage: Option<Usage>,
    text_bytes: u64,
    /// Whether the vendor counted the output, whether some usage was implausible, and whether the last event has
    /// arrived.
    flags: [bool; 3],
}

/// Translates a stream of this format for a caller of the other format, and meters the stream.
fn received(format: Format, stream: &str) -> Heard {
    let mut reader = Reader::new(format);
    let (mut to_messages, mut to_chat) = (
        Translator::to_messages(Format::Chat, Origin::default(), CX, false),
        Translator::to_chat(Format::Messages, Origin::default(), CX, false),
    );
    let (mut out, mut error) = (BytesMut::new(), None);
    let each = |event: Event| {
        let _ = reader.event(&event);
        let step = match format {
            Format::Chat => to_messages.event(&event, &mut out),
            Format::Messages => to_chat.event(&event, &mut out),
            Format::Responses => unreachable!("no stream of that format is cut here"),
        };
        error = error.take().or(step.err());
    };
    let stream = Bytes::copy_from_slice(stream.as_bytes());
    Splitter::default().push(&stream, each).unwrap();
    let reported = std::str::from_utf8(&out).unwrap().lines();
    let reported: Vec<Value> = reported
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data)))
        .collect();
    let received = match format {
        Format::Chat => of_messages(&reported),
        Format::Messages => of_chat(&reported),
        Format::Responses => unreachable!("no stream of that format is cut here"),
    };
    let mut reading = Reading::default();
    reader.note(&mut reading);
    Heard {
        error: error.map(|error| format!("{error:?}")),
        metered: Metered {
            usage: reading.usage,
            text_bytes: reading.text_bytes,
            flags: [reading.output_counted, reading.suspect, reader.finished()],
        },
        ..received
    }
}

fn of_messages(events: &[Value]) -> Heard {
    let mut received = Heard::default();
    for event in events {
        match text(&event["type"]).as_str() {
            "message_start" => {
                received.id = text(&event["message"]["id"]);
                received.model = text(&event["message"]["model"]);
            }
            "content_block_start" if event["content_block"]["type"] == "tool_use" => {
                let block = &event["content_block"];
                let call = [text(&block["id"]), text(&block["name"]), String::new()];
                received.calls.push(call);
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                received.text += &text(&delta["text"]);
                received.thinking += &text(&delta["thinking"]);
                if let Some(piece) = delta["partial_json"].as_str() {
                    received.calls.last_mut().unwrap()[2].push_str(piece);
                }
            }
            "message_delta" => {
                received.stop = event["delta"]["stop_reason"].clone();
                received.usage = event["usage"].clone();
            }
            "message_stop" => received.whole = true,
            _ => {}
        }
    }
    // If the vendor sends no id, the gateway derives one from the first chunk. The derived id depends on where the
    // stream was cut, so only its prefix is compared.
    if received.id.starts_with(&format!("msg_{:x}", CX.created)) {
        received.id.truncate(4);
    }
    received
}

fn of_chat(chunks: &[Value]) -> Heard {
    let mut received = Heard::default();
    for chunk in chunks {
        if chunk == "[DONE]" {
            received.whole = true;
            continue;
        }
        (received.id, received.model) = (text(&chunk["id"]), text(&chunk["model"]));
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        received.text += &text(&delta["content"]);
        received.thinking += &text(&delta["reasoning_content"]);
        let call = &delta["tool_calls"][0];
        if call["id"].is_string() {
            let name = text(&call["function"]["name"]);
            received
                .calls
                .push([text(&call["id"]), name, String::new()]);
        }
        if let Some(piece) = call["function"]["arguments"].as_str() {
            received.calls.last_mut().unwrap()[2].push_str(piece);
        }
        if !choice["finish_reason"].is_null() {
            received.stop = choice["finish_reason"].clone();
        }
        if !chunk["usage"].is_null() {
            received.usage = chunk["usage"].clone();
        }
    }
    received
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A part of a vendor's stream: one event, or one field of a chunk. If it contains several texts, all of them are cut
/// after the same numbers of characters.
#[derive(Debug)]
struct Part {
    /// The lines of the event that precede its `data:` line.
    head: String,
    /// The JSON data of the event. If the data is not JSON, it is stored as a string and written unchanged.
    data: Value,
    /// JSON pointers to the text that is cut. There are several if a vendor writes the same text to several fields.
    cut: Vec<String>,
    /// Fields that only the last piece of the part contains.
    last: Map<String, Value>,
}

/// Splits a stream into parts. A chunk with several fields becomes several parts.
fn parts(format: Format, stream: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    for event in stream.split_terminator("\n\n") {
        let (mut head, mut data) = (String::new(), None);
        for line in event.lines() {
            match line.strip_prefix("data:") {
                Some(rest) => data = Some(rest.trim()),
                None => head = head + line + "\n",
            }
        }
        let json = data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data)));
        match (format, json) {
            (_, None) => parts.push(Part::whole(head, Value::Null)),
            (Format::Chat, Some(chunk)) if chunk["choices"][0]["delta"].is_object() => {
                chat_parts(&mut parts, &chunk);
            }
            (Format::Messages, Some(event)) if event.is_object() => {
                messages_parts(&mut parts, head, event);
            }
            (_, Some(data)) => parts.push(Part::whole(head, data)),
        }
    }
    parts
}

fn messages_parts(parts: &mut Vec<Part>, head: String, mut event: Value) {
    const NAMES: [&str; 3] = ["text", "thinking", "partial_json"];
    let mut more = None;
    if event["type"] == "content_block_start" {
        // The start of a block may contain text. This text is moved to a delta, so that it can be cut.
        for name in ["text", "thinking"] {
            let begun = text(&event["content_block"][name]);
            if !begun.is_empty() {
                event["content_block"][name] = json!("");
                let delta = json!({ "type": format!("{name}_delta"), name: begun });
                more = Some(
                    json!({ "type": "content_block_delta", "index": event["index"], "delta": delta }),
                );
            }
        }
    }
    let is_delta = event["type"] == "content_block_delta";
    let cut = NAMES.map(|name| format!("/delta/{name}"));
    parts.push(Part {
        cut: cut.into_iter().filter(|_| is_delta).collect(),
        ..Part::whole(head, event)
    });
    if let Some(more) = more {
        messages_parts(parts, "event: content_block_delta\n".into(), more);
    }
}

fn chat_parts(parts: &mut Vec<Part>, chunk: &Value) {
    const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_details"];
    let mut rest = chunk.clone();
    let choice = rest["choices"][0].as_object_mut().unwrap();
    let finish = choice.remove("finish_reason");
    let mut delta = match choice.remove("delta") {
        Some(Value::Object(delta)) => delta,
        other => panic!("{other:?}"),
    };
    let mut last = Map::new();
    for name in ["usage", "x_groq"] {
        last.extend(
            rest.as_object_mut()
                .unwrap()
                .remove(name)
                .map(|value| (name.to_owned(), value)),
        );
    }

    // Each pair contains the fields of one part, and the pointers to its texts.
    let mut reported: Vec<(Map<String, Value>, Vec<String>)> = Vec::new();
    let reasoning: Map<_, _> = REASONING
        .iter()
        .filter_map(|name| delta.remove_entry(*name))
        .collect();
    let one = |name: &str, value: Value| Map::from_iter([(name.to_owned(), value)]);
    let names = [
        "reasoning_content",
        "reasoning",
        "reasoning_details/0/text",
        "reasoning_details/0/summary",
    ];
    let details = reasoning.get("reasoning_details").and_then(Value::as_array);
    let cut = if details.is_none_or(|details| details.len() < 2) {
        &names[..]
    } else {
        &[]
    };
    reported.push((
        reasoning.clone(),
        cut.iter().copied().map(String::from).collect(),
    ));
    match delta.remove("content") {
        Some(Value::Array(list)) => reported.extend(list.into_iter().map(|part| {
            let names = ["text", "thinking", "thinking/0/text"];
            (
                one("content", json!([part])),
                names.map(|name| format!("content/0/{name}")).into(),
            )
        })),
        content => reported.push((
            content
                .map(|content| one("content", content))
                .unwrap_or_default(),
            vec!["content".into()],
        )),
    }
    for (name, cut) in [
        ("refusal", "refusal"),
        ("function_call", "function_call/arguments"),
    ] {
        reported.extend(
            delta
                .remove(name)
                .map(|value| (one(name, value), vec![cut.into()])),
        );
    }
    if let Some(Value::Array(calls)) = delta.get("tool_calls").cloned() {
        delta.remove("tool_calls");
        let cut = || vec!["tool_calls/0/function/arguments".to_owned()];
        reported.extend(
            calls
                .into_iter()
                .map(|call| (one("tool_calls", json!([call])), cut())),
        );
    }
    // Fields without text that can be cut are written first, in a separate part.
    reported.insert(0, (delta, Vec::new()));
    reported.retain(|(delta, _)| !delta.is_empty());
    if reported.is_empty() {
        reported.push((Map::new(), Vec::new()));
    }
    let count = reported.len();
    for (index, (delta, cut)) in reported.into_iter().enumerate() {
        let mut data = rest.clone();
        data["choices"][0]["delta"] = Value::Object(delta);
        let mut part = Part::whole(String::new(), data);
        part.cut = cut
            .iter()
            .map(|cut| format!("/choices/0/delta/{cut}"))
            .collect();
        if index + 1 == count {
            part.last = std::mem::take(&mut last);
            part.last.extend(
                finish
                    .clone()
                    .map(|finish| ("finish_reason".to_owned(), finish)),
            );
        }
        parts.push(part);
    }
}

impl Part {
    fn whole(head: String, data: Value) -> Self {
        Self {
            head,
            data,
            cut: Vec::new(),
            last: Map::new(),
        }
    }

    /// Returns the number of characters of the part's longest text.
    fn len(&self) -> usize {
        let texts = self
            .cut
            .iter()
            .filter_map(|cut| self.data.pointer(cut)?.as_str());
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    }

    /// Writes the part in pieces that end after these numbers of characters, and a last piece with the remaining
    /// characters.
    fn write(&self, ends: &[usize], names_again: bool, out: &mut String) {
        let mut ends: Vec<_> = ends.iter().map(|end| (*end).min(self.len())).collect();
        ends.push(usize::MAX);
        if self.len() == 0 {
            ends.drain(..ends.len() - 1);
        }
        let mut begin = 0;
        for (index, end) in ends.iter().enumerate() {
            let mut data = self.data.clone();
            for cut in &self.cut {
                if let Some(Value::String(text)) = data.pointer_mut(cut) {
                    *text = text.chars().skip(begin).take(end - begin).collect();
                }
            }
            begin = *end;
            if index > 0 && !names_again {
                for (owner, names) in [
                    ("/choices/0/delta/tool_calls/0", &["id", "type"][..]),
                    ("/choices/0/delta/tool_calls/0/function", &["name"]),
                    ("/choices/0/delta/function_call", &["name"]),
                ] {
                    if let Some(Value::Object(owner)) = data.pointer_mut(owner) {
                        owner.retain(|name, _| !names.contains(&name.as_str()));
                    }
                }
            }
            if index + 1 == ends.len() {
                for (name, value) in &self.last {
                    let owner = if name == "finish_reason" {
                        &mut data["choices"][0]
                    } else {
                        &mut data
                    };
                    owner[name] = value.clone();
                }
            }
            out.push_str(&self.head);
            match data {
                Value::Null => {}
                Value::String(text) => *out = format!("{out}data: {text}\n"),
                data => *out = format!("{out}data: {data}\n"),
            }
            out.push('\n');
        }
    }
}

/// Writes all parts as a stream. `ends` returns where each part is cut.
fn written(parts: &[Part], names_again: bool, ends: impl Fn(usize, &Part) -> Vec<usize>) -> String {
    let mut out = String::new();
    for (index, part) in parts.iter().enumerate() {
        part.write(&ends(index, part), names_again, &mut out);
    }
    out
}

/// Checks that the stream gives the same result wherever its texts are cut. Returns the number of cut streams that were
/// checked.
fn is_the_same_in_pieces(what: &str, format: Format, stream: &str) -> usize {
    let whole = received(format, stream);
    assert!(whole.whole && whole.error.is_none(), "{what}: {whole:?}");
    let parts = parts(format, stream);
    let (longest, letters) = (
        parts.iter().map(Part::len).max().unwrap_or(0),
        |part: &Part| (1..part.len()).collect(),
    );
    let mut cuts = 0;
    let mut check = |stream: String| {
        cuts += 1;
        assert_eq!(received(format, &stream), whole, "{what}:\n{stream}");
    };
    // Each text is cut into three pieces. The middle piece is as long as `{}` or `null`.
    for at in 0..longest {
        for length in [2, 4] {
            check(written(&parts, false, |_, _| vec![at, at + length]));
        }
    }
    for names_again in [false, true] {
        check(written(&parts, names_again, |_, part| letters(part)));
        // Each text is cut into two pieces: after its first character, after its second, and so on.
        for at in 0..=longest {
            check(written(&parts, names_again, |_, _| vec![at]));
        }
        // If the stream has fewer than 20 parts, each text is cut while the other texts are not. With more parts, this
        // would take long.
        for (index, part) in parts.iter().enumerate().filter(|_| parts.len() < 20) {
            for at in 0..=part.len() {
                let ends = |this, _: &Part| if this == index { vec![at] } else { Vec::new() };
                check(written(&parts, names_again, ends));
            }
        }
    }
    cuts
}

#[test]
fn recorded_streams_give_the_same_result_in_any_split() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/fixtures");
    let mut streams = [0, 0];
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".sse") || name.starts_with("responses-") {
            continue;
        }
        let format = if name.starts_with("chat-") {
            Format::Chat
        } else {
            Format::Messages
        };
        let stream = fs::read_to_string(folder.join(&name)).unwrap();
        // A stream that ends with an error has no response to compare.
        if stream.contains("\"error\":{") {
            continue;
        }
        is_the_same_in_pieces(&name, format, &stream);
        streams[usize::from(format == Format::Messages)] += 1;
    }
    assert!(streams[0] >= 8 && streams[1] >= 7, "{streams:?}");
}

/// Returns arguments of tool calls: for each, the text that a vendor sends, and the JSON that this text means.
fn arguments() -> Vec<(&'static str, Value)> {
    vec![
        (r#"{"a":[1,null]}"#, json!({ "a": [1, null] })),
        (
            r#" {"a":null,"null":{},"b":[[],{}]} "#,
            json!({ "a": null, "null": {}, "b": [[], {}] }),
        ),
        (
            r#"{"s":"null","t":"}\"]\\","u":"\u007d\n"}"#,
            json!({ "s": "null", "t": "}\"]\\", "u": "}\n" }),
        ),
        (
            "{\"ключ\":\"🦀\",\"n\":[-1.5e3,true,\"\"]}",
            json!({ "ключ": "🦀", "n": [-1500.0, true, ""] }),
        ),
        ("{}", json!({})),
        ("", json!({})),
        (" \n", json!({})),
        ("null", json!({})),
        (" null ", json!({})),
    ]
}

fn meant(what: &str, format: Format, stream: &str, calls: &[(&str, &Value)]) {
    let received = received(format, stream);
    let received = received.calls.iter().map(|[id, name, arguments]| {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
        assert!(!id.is_empty(), "{what}");
        (name.clone(), arguments)
    });
    let calls = calls
        .iter()
        .map(|(name, arguments)| ((*name).to_owned(), (*arguments).clone()));
    assert_eq!(
        received.collect::<Vec<_>>(),
        calls.collect::<Vec<_>>(),
        "{what}:\n{stream}"
    );
}

#[test]
fn tool_arguments_from_chat_vendors_are_complete_in_any_split() {
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        format!(
            "data: {}\n\n",
            json!({ "id": "chatcmpl-1", "model": "gpt", "choices": [choice], "usage": null })
        )
    };
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13 });
    let end = format!(
        "data: {}\n\ndata: [DONE]\n\n",
        json!({ "id": "chatcmpl-1", "model": "gpt", "choices": [], "usage": usage })
    );
    for (one, means) in arguments() {
        let two = r#"{"b":[null]}"#;
        let call = |fields: Value, name: &str, arguments: &str| {
            let mut call = fields;
            call["function"] = json!({ "name": name, "arguments": arguments });
            call
        };
        let both = [("f", &means), ("g", &json!({ "b": [null] }))];
        for (what, delta, calls) in [
            (
                "indexes",
                json!({ "tool_calls": [
                call(json!({ "index": 0, "id": "c0" }), "f", one), call(json!({ "index": 1, "id": "c1" }), "g", two),
            ] }),
                &both[..],
            ),
            (
                "no indexes",
                json!({ "tool_calls": [
                call(json!({ "id": "c0" }), "f", one), call(json!({ "id": "c1" }), "g", two),
            ] }),
                &both,
            ),
            (
                "one index",
                json!({ "tool_calls": [
                call(json!({ "index": 0, "id": "c0" }), "f", one), call(json!({ "index": 0, "id": "c1" }), "g", two),
            ] }),
                &both,
            ),
            (
                "one index, no ids",
                json!({ "tool_calls": [
                call(json!({ "index": 0 }), "f", one), call(json!({ "index": 0 }), "g", two),
            ] }),
                &both,
            ),
            (
                "of old",
                json!({ "function_call": { "name": "f", "arguments": one } }),
                &both[..1],
            ),
            (
                "beside words",
                json!({ "role": "assistant", "reasoning": "null", "content": "null {",
                "tool_calls": [call(json!({ "index": 1, "id": "c0" }), "f", one)] }),
                &both[..1],
            ),
            (
                "beside parts",
                json!({ "content": [{ "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] },
                { "type": "text", "text": "null" }], "refusal": null,
                "tool_calls": [call(json!({ "index": 0, "id": "c0" }), "f", one)] }),
                &both[..1],
            ),
        ] {
            let what = format!("{what}: {one:?}");
            let stream = chunk(delta, Value::Null) + &chunk(json!({}), json!("tool_calls")) + &end;
            meant(&what, Format::Chat, &stream, calls);
            assert!(is_the_same_in_pieces(&what, Format::Chat, &stream) > 8);
        }
    }
}

#[test]
fn tool_arguments_from_messages_vendors_are_complete_in_any_split() {
    let event = |data: Value| format!("event: {}\ndata: {data}\n\n", text(&data["type"]));
    let block = |index: u64, block: Value, delta: Value| {
        [
            json!({ "type": "content_block_start", "index": index, "content_block": block }),
            json!({ "type": "content_block_delta", "index": index, "delta": delta }),
            json!({ "type": "content_block_stop", "index": index }),
        ]
        .map(event)
        .concat()
    };
    for (one, means) in arguments() {
        for input in [json!({}), Value::Null, json!("")] {
            let tool = |id: &str, name: &str| json!({ "type": "tool_use", "id": id, "name": name, "input": input });
            let pieces = |json: &str| json!({ "type": "input_json_delta", "partial_json": json });
            let usage = json!({ "input_tokens": 9, "output_tokens": 4 });
            let stream = [
                event(json!({ "type": "message_start", "message": { "id": "msg_1", "model": "opus", "usage": usage } })),
                block(0, json!({ "type": "thinking", "thinking": "" }), json!({ "type": "thinking_delta", "thinking": "null" })),
                block(1, json!({ "type": "text", "text": "nu" }), json!({ "type": "text_delta", "text": "ll {" })),
                block(2, json!({ "type": "server_tool_use", "id": "s", "name": "s", "input": {} }), pieces(one)),
                block(3, tool("t0", "f"), pieces(one)),
                block(4, tool("t1", "g"), pieces(r#"{"b":[null]}"#)),
                event(json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": usage })),
                event(json!({ "type": "message_stop" })),
            ]
            .concat();
            let what = format!("{one:?} behind {input}");
            meant(
                &what,
                Format::Messages,
                &stream,
                &[("f", &means), ("g", &json!({ "b": [null] }))],
            );
            assert!(is_the_same_in_pieces(&what, Format::Messages, &stream) > 8);
        }
    }
}

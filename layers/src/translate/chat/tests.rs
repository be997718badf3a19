//! Translates recordings of Messages vendors. A caller must read the same content from the translation as from the
//! recording.

use std::{fs, path::PathBuf};

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use crate::{
    call::Format,
    error::Error,
    formats::wire::AnswerCx,
    sse::Splitter,
    translate::{Origin, Translator},
};

const CX: AnswerCx = AnswerCx {
    created: 1_790_000_000,
    usage_asked: true,
    thinking_asked: false,
};

/// The content of a response, as collected by a caller from a stream.
#[derive(Debug, Default, PartialEq)]
struct Gathered {
    id: String,
    model: String,
    text: String,
    reasoning: String,
    /// The id, name and arguments of each tool call.
    tools: Vec<(String, String, Value)>,
    finish_reason: String,
    /// The counts of prompt, cached, written, completion and reasoning tokens.
    usage: [u64; 5],
}

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("recordings");
    fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the names of the Messages recordings that end with `ending`. Recorded errors are left out, because they
/// never reach the translation.
fn recordings(ending: &str) -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("the recordings are there")
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("messages-") && name.ends_with(ending))
        .filter(|name| !name.contains("-error-"))
        .collect();
    names.sort();
    assert!(names.len() >= 4, "{names:?}");
    names
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Parses the `data` lines of a stream as JSON.
fn data(stream: &[u8]) -> Vec<Value> {
    String::from_utf8(stream.to_vec())
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .filter(|data| data.trim() != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// Reads a message as the SDK of the Messages format does. The result has the names of the Chat Completions format.
fn message(message: &Value) -> Gathered {
    let blocks = message["content"].as_array().unwrap();
    let joined = |kind: &str, field: &str| -> String {
        let of_kind = blocks.iter().filter(|block| block["type"] == kind);
        of_kind.map(|block| string(&block[field])).collect()
    };
    let usage = &message["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    let (read, written) = (
        count("cache_read_input_tokens"),
        count("cache_creation_input_tokens"),
    );
    Gathered {
        id: string(&message["id"]),
        model: string(&message["model"]),
        text: joined("text", "text"),
        reasoning: joined("thinking", "thinking"),
        tools: blocks
            .iter()
            .filter(|block| block["type"] == "tool_use")
            .map(|block| {
                (
                    string(&block["id"]),
                    string(&block["name"]),
                    block["input"].clone(),
                )
            })
            .collect(),
        finish_reason: match message["stop_reason"].as_str().unwrap() {
            "end_turn" | "stop_sequence" => "stop",
            "max_tokens" => "length",
            "tool_use" => "tool_calls",
            other => panic!("{other} is new in the recordings"),
        }
        .to_owned(),
        usage: [
            count("input_tokens") + read + written,
            read,
            written,
            count("output_tokens"),
            usage["output_tokens_details"]["thinking_tokens"]
                .as_u64()
                .unwrap_or(0),
        ],
    }
}

/// Collects the message of a recorded stream.
fn messages_stream(stream: &[u8]) -> Gathered {
    let mut whole = Value::Null;
    let mut pieces = String::new();
    for event in data(stream) {
        match event["type"].as_str().unwrap() {
            "message_start" => whole = event["message"].clone(),
            "content_block_start" => {
                pieces.clear();
                whole["content"]
                    .as_array_mut()
                    .unwrap()
                    .push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let block = whole["content"].as_array_mut().unwrap().last_mut().unwrap();
                for (kind, field) in [("text_delta", "text"), ("thinking_delta", "thinking")] {
                    if delta["type"] == kind {
                        block[field] =
                            json!(string(&block[field]) + delta[field].as_str().unwrap());
                    }
                }
                if let Some(piece) = delta["partial_json"].as_str() {
                    pieces.push_str(piece);
                    if let Ok(input) = serde_json::from_str(&pieces) {
                        block["input"] = input;
                    }
                }
            }
            "message_delta" => {
                whole["stop_reason"] = event["delta"]["stop_reason"].clone();
                for (name, count) in event["usage"].as_object().unwrap() {
                    whole["usage"][name] = count.clone();
                }
            }
            _ => {}
        }
    }
    message(&whole)
}

fn chat_usage(usage: &Value) -> [u64; 5] {
    let counts = [
        &usage["prompt_tokens"],
        &usage["prompt_tokens_details"]["cached_tokens"],
        &usage["prompt_tokens_details"]["cache_write_tokens"],
        &usage["completion_tokens"],
        &usage["completion_tokens_details"]["reasoning_tokens"],
    ]
    .map(|count| count.as_u64().unwrap());
    assert_eq!(usage["total_tokens"], counts[0] + counts[3]);
    counts
}

/// Collects the content of a Chat Completions stream as the SDK of that format does, and checks the form of its chunks.
fn chat_stream(stream: &[u8]) -> Gathered {
    let text = std::str::from_utf8(stream).unwrap();
    assert!(text.ends_with("\n\ndata: [DONE]\n\n") && text.matches("[DONE]").count() == 1);
    let mut gathered = Gathered::default();
    let mut arguments: Vec<String> = Vec::new();
    let (chunks, mut roles) = (data(stream), 0);
    for chunk in &chunks {
        for name in ["id", "object", "created", "model"] {
            assert_eq!(chunk[name], chunks[0][name]);
        }
        let Some(choice) = chunk["choices"].get(0) else {
            gathered.usage = chat_usage(&chunk["usage"]);
            continue;
        };
        assert!(chunk["usage"].is_null() && gathered.finish_reason.is_empty());
        gathered.finish_reason = string(&choice["finish_reason"]);
        let delta = &choice["delta"];
        roles += usize::from(delta.get("role").is_some());
        gathered.text += delta["content"].as_str().unwrap_or_default();
        gathered.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if call.get("id").is_some() {
                assert_eq!(call["index"], gathered.tools.len());
                let name = string(&call["function"]["name"]);
                gathered
                    .tools
                    .push((string(&call["id"]), name, Value::Null));
                arguments.push(String::new());
            }
            assert_eq!(call["index"], arguments.len() - 1);
            let piece = call["function"]["arguments"].as_str().unwrap();
            arguments.last_mut().unwrap().push_str(piece);
        }
    }
    assert_eq!(
        (roles, &chunks[0]["object"]),
        (1, &json!("chat.completion.chunk"))
    );
    gathered.id = string(&chunks[0]["id"]);
    gathered.model = string(&chunks[0]["model"]);
    for (tool, arguments) in gathered.tools.iter_mut().zip(arguments) {
        tool.2 = serde_json::from_str(&arguments).unwrap();
    }
    gathered
}

/// Translates a stream that arrives in these chunks.
fn translate(chunks: &[&[u8]]) -> Vec<u8> {
    let (mut events, mut out) = (
        Translator::to_chat(Format::Messages, Origin::default(), CX, false),
        BytesMut::new(),
    );
    let mut splitter = Splitter::default();
    for chunk in chunks {
        splitter
            .push(&Bytes::copy_from_slice(chunk), |event| {
                events.event(&event, &mut out).unwrap();
            })
            .unwrap();
    }
    if let Some(event) = splitter.finish() {
        events.event(&event, &mut out).unwrap();
    }
    events.end(&mut out).unwrap();
    out.to_vec()
}

#[test]
fn recorded_responses_keep_everything_that_the_chat_format_can_express() {
    for name in recordings(".json") {
        let recorded = fixture(&name);
        let expected = message(&serde_json::from_slice(&recorded).unwrap());
        let answer: Value = serde_json::from_slice(
            &Translator::to_chat(Format::Messages, Origin::default(), CX, true)
                .answer(&recorded)
                .unwrap(),
        )
        .unwrap();
        let choice = &answer["choices"][0];
        let message = &choice["message"];
        let call = |call: &Value| {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            (
                string(&call["id"]),
                string(&call["function"]["name"]),
                serde_json::from_str::<Value>(arguments).unwrap(),
            )
        };
        let gathered = Gathered {
            id: string(&answer["id"]),
            model: string(&answer["model"]),
            text: string(&message["content"]),
            reasoning: string(&message["reasoning_content"]),
            tools: message["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
                .map(call)
                .collect(),
            finish_reason: string(&choice["finish_reason"]),
            usage: chat_usage(&answer["usage"]),
        };
        assert_eq!(gathered, expected, "{name}");
        assert_eq!(
            (&answer["object"], &answer["created"]),
            (&json!("chat.completion"), &json!(CX.created))
        );
    }
}

#[test]
fn recorded_streams_keep_everything_that_the_chat_format_can_express() {
    for name in recordings(".sse") {
        let recorded = fixture(&name);
        let gathered = chat_stream(&translate(&[&recorded]));
        assert_eq!(gathered, messages_stream(&recorded), "{name}");
    }
}

#[test]
fn recorded_streams_have_the_same_translation_however_they_are_split_into_chunks() {
    for name in recordings(".sse") {
        let recorded = fixture(&name);
        let whole = translate(&[&recorded]);
        // The step is a prime number, so that the cuts in all recordings together are at positions of every kind.
        for cut in (0..recorded.len()).step_by(61) {
            let (before, after) = recorded.split_at(cut);
            assert_eq!(translate(&[before, after]), whole, "{name} cut at {cut}");
        }
        for length in [1, 2, 3, 7, 64, 1000] {
            let chunks: Vec<_> = recorded.chunks(length).collect();
            assert_eq!(translate(&chunks), whole, "{name} in pieces of {length}");
        }
    }
}

#[test]
fn recorded_streams_that_break_off_never_look_finished() {
    for name in recordings(".sse") {
        let recorded = fixture(&name);
        let stop = memchr::memmem::rfind(&recorded, b"event: message_stop").unwrap();
        let (mut events, mut out) = (
            Translator::to_chat(Format::Messages, Origin::default(), CX, false),
            BytesMut::new(),
        );
        Splitter::default()
            .push(&Bytes::from(recorded).slice(..stop), |event| {
                events.event(&event, &mut out).unwrap();
            })
            .unwrap();
        assert!(
            matches!(events.end(&mut out), Err(Error::VendorBroken(_))),
            "{name}"
        );
        assert_eq!(memchr::memmem::find(&out, b"[DONE]"), None, "{name}");
    }
}

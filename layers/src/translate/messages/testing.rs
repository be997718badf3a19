//! A strict reader of Messages streams for tests. It panics on everything that the format forbids.

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use crate::{
    call::Format,
    capsule,
    error::Error,
    formats::wire::AnswerCx,
    sse::{Event, Splitter},
    translate::{Origin, Translator},
};

pub(super) const CX: AnswerCx = AnswerCx {
    created: 1_700_000_000,
    usage_asked: true,
    thinking_asked: true,
};

/// The content of a stream, as read by a caller.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Heard {
    pub(super) id: String,
    pub(super) model: String,
    /// The content blocks, as a plain response has them.
    pub(super) content: Vec<Value>,
    pub(super) stop_reason: Option<String>,
    pub(super) usage: Value,
    pub(super) pings: usize,
    /// The signatures of thinking blocks, which are removed from `content`.
    pub(super) proofs: Vec<String>,
    /// The names of all events except pings.
    pub(super) names: Vec<String>,
    pub(super) whole: bool,
}

/// Reads a stream. Panics if the order of its events is forbidden.
pub(super) fn received(bytes: &[u8]) -> Heard {
    let mut received = Heard::default();
    let mut open: Option<(usize, String)> = None;
    for event in events(&[bytes]) {
        let data: Value = serde_json::from_slice(&event.data().expect("data")).expect("JSON");
        let name = data["type"].as_str().unwrap().to_owned();
        assert_eq!(event.name(), name.as_bytes(), "an event's name is its type");
        if name == "ping" {
            received.pings += 1;
            continue;
        }
        assert!(!received.whole, "{name} behind the end");
        assert_eq!(received.names.is_empty(), name == "message_start", "{name}");
        let index = data["index"].as_u64().map(|index| index as usize);
        match name.as_str() {
            "message_start" => {
                let message = &data["message"];
                assert_eq!(
                    (&message["type"], &message["role"], &message["content"]),
                    (&json!("message"), &json!("assistant"), &json!([]))
                );
                for null in ["stop_reason", "stop_sequence"] {
                    assert_eq!(message.get(null), Some(&Value::Null));
                }
                received.id = message["id"].as_str().unwrap().to_owned();
                received.model = message["model"].as_str().unwrap().to_owned();
                received.usage = message["usage"].clone();
                assert!(
                    received.usage["input_tokens"].is_u64()
                        && received.usage["output_tokens"].is_u64()
                );
            }
            "content_block_start" => {
                assert!(open.is_none(), "blocks do not interleave");
                assert_eq!(index, Some(received.content.len()), "indexes grow by one");
                received.content.push(data["content_block"].clone());
                open = Some((received.content.len() - 1, String::new()));
            }
            "content_block_delta" => {
                let (at, json) = open.as_mut().expect("an open block");
                assert_eq!(index, Some(*at));
                let (block, delta) = (&mut received.content[*at], &data["delta"]);
                let (field, expected) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "input_json_delta" => ("partial_json", "tool_use"),
                    "signature_delta" => ("signature", "thinking"),
                    other => panic!("{other}"),
                };
                assert_eq!(block["type"], expected);
                let piece = delta[field].as_str().unwrap();
                if field == "partial_json" {
                    json.push_str(piece);
                } else if field == "signature" {
                    assert!(piece.starts_with(capsule::PREFIX), "{piece}");
                    received.proofs.push(piece.to_owned());
                } else {
                    block[field] = json!(format!("{}{piece}", block[field].as_str().unwrap()));
                }
            }
            "content_block_stop" => {
                let (at, json) = open.take().expect("an open block");
                assert_eq!(index, Some(at));
                if received.content[at]["type"] == "tool_use" {
                    assert_eq!(received.content[at]["input"], json!({}));
                    // If the response was cut at the token limit, its arguments may be truncated.
                    received.content[at]["input"] =
                        serde_json::from_str(&json).unwrap_or(Value::String(json));
                }
            }
            "message_delta" => {
                assert!(open.is_none() && received.stop_reason.is_none());
                received.stop_reason =
                    Some(data["delta"]["stop_reason"].as_str().unwrap().to_owned());
                assert_eq!(data["delta"].get("stop_sequence"), Some(&Value::Null));
                received.usage = data["usage"].clone();
            }
            "message_stop" => {
                assert!(received.stop_reason.is_some());
                received.whole = true;
            }
            other => panic!("{other}"),
        }
        received.names.push(name);
    }
    received
}

/// Removes the signatures of thinking blocks from the content and returns them.
pub(super) fn proofs(content: &mut Value) -> Vec<String> {
    let blocks = content.as_array_mut().into_iter().flatten();
    let thinking = blocks.filter(|block| block["type"] == "thinking");
    let proofs = thinking.map(|block| std::mem::replace(&mut block["signature"], json!("")));
    let proofs: Vec<String> = proofs
        .map(|proof| proof.as_str().expect("a signature").to_owned())
        .collect();
    assert!(proofs.iter().all(|it| it.starts_with(capsule::PREFIX)));
    proofs
}

/// Returns the events of a stream that arrives in these chunks.
pub(super) fn events(chunks: &[&[u8]]) -> Vec<Event> {
    let (mut splitter, mut events) = (Splitter::default(), Vec::new());
    for chunk in chunks {
        let chunk = Bytes::copy_from_slice(chunk);
        splitter.push(&chunk, |event| events.push(event)).unwrap();
    }
    events.extend(splitter.finish());
    events
}

/// Translates a Chat Completions stream that arrives in these chunks. Also returns the result with which it ended.
pub(super) fn translated(cx: AnswerCx, chunks: &[&[u8]]) -> (BytesMut, Result<(), Error>) {
    let (mut translation, mut out) = (
        Translator::to_messages(Format::Chat, Origin::default(), cx, false),
        BytesMut::new(),
    );
    for event in events(chunks) {
        if let Err(error) = translation.event(&event, &mut out) {
            return (out, Err(error));
        }
    }
    let end = translation.end(&mut out);
    (out, end)
}

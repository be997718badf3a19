//! Writes the end of a stream that the gateway stops, as a vendor ends it at the request's ceiling of output. The events
//! have no usage; like a vendor's events, they are read and completed before they are forwarded.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    sse::Event,
    stream_progress::{Created, Reached},
};

/// Returns whether an event has a position in its stream: it has data, and is not a ping.
pub(in crate::passthrough) fn is_position(event: &Event) -> bool {
    let (name, data) = event.parts();
    name != b"ping" && data.is_some()
}

/// The fields that all chunks of a chat stream have in common.
const CHUNK_FIELDS: [&str; 6] = [
    "id",
    "object",
    "created",
    "model",
    "system_fingerprint",
    "service_tier",
];

/// Returns the end of a chat stream. `is_over` is whether the stream's choice has finished.
pub(super) fn chat(last: &Event, is_over: bool) -> Bytes {
    const DONE: &str = "data: [DONE]\n\n";
    if is_over {
        return Bytes::from_static(DONE.as_bytes());
    }
    let last: Option<Map<String, Value>> = last
        .data()
        .and_then(|data| serde_json::from_slice(&data).ok());
    let mut chunk: Map<String, Value> = last.unwrap_or_default();
    chunk.retain(|name, _| CHUNK_FIELDS.contains(&name.as_str()));
    chunk
        .entry("object")
        .or_insert_with(|| "chat.completion.chunk".into());
    let choices = json!([{ "index": 0, "delta": {}, "finish_reason": "length" }]);
    chunk.insert("choices".to_owned(), choices);
    format!("data: {}\n\n{DONE}", Value::Object(chunk)).into()
}

/// Returns the end of a messages stream. `is_over` is whether its `message_delta` has arrived.
pub(super) fn messages(last: &Event, is_over: bool) -> Bytes {
    #[derive(Deserialize)]
    struct Position {
        #[serde(rename = "type")]
        kind: String,
        index: Option<u64>,
    }
    let last: Option<Position> = last
        .data()
        .and_then(|data| serde_json::from_slice(&data).ok());
    let mut events = Vec::new();
    match &last {
        None => {
            let message = json!({ "id": "msg_stopped", "type": "message", "role": "assistant", "model": "",
                "content": [], "stop_reason": null, "stop_sequence": null,
                "usage": { "input_tokens": 0, "output_tokens": 0 } });
            events.push(json!({ "type": "message_start", "message": message }));
        }
        Some(Position {
            kind,
            index: Some(index),
        }) if kind != "content_block_stop" => {
            events.push(json!({ "type": "content_block_stop", "index": index }));
        }
        Some(_) => {}
    }
    if !is_over {
        let delta = json!({ "stop_reason": "max_tokens", "stop_sequence": null });
        events.push(json!({ "type": "message_delta", "delta": delta }));
    }
    events.push(json!({ "type": "message_stop" }));
    written(&events)
}

/// Returns the end of a responses stream.
pub(super) fn responses(reached: Reached) -> Bytes {
    let is_begun = reached.created.is_some();
    let created = reached.created.unwrap_or_else(|| Created {
        id: "resp_stopped".to_owned(),
        ..Created::default()
    });
    let mut events = Vec::new();
    if !is_begun {
        let response = created.answer("in_progress", &Value::Null, &Value::Null);
        events.push(json!({ "type": "response.created", "response": response }));
    }
    let reason = json!({ "reason": "max_output_tokens" });
    let response = created.answer("incomplete", &Value::Null, &reason);
    events.push(json!({ "type": "response.incomplete", "response": response }));
    for (number, event) in (reached.next_number..).zip(&mut events) {
        event["sequence_number"] = number.into();
    }
    written(&events)
}

fn written(events: &[Value]) -> Bytes {
    let event = |event: &Value| {
        let kind = event["type"].as_str().unwrap_or_default();
        format!("event: {kind}\ndata: {event}\n\n")
    };
    events.iter().map(event).collect::<String>().into()
}

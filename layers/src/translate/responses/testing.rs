//! A strict reader of Responses streams for tests. It panics on everything that would break the official clients.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    call::Format,
    error::Error,
    formats::{
        turn::request::translate,
        wire::{CacheCx, RequestCx},
    },
    model::Dialect,
    sse::{Event, Splitter},
    translate::RequestEcho,
};

pub(super) const NUMBER: Uuid = Uuid::from_u128(0x0198_c0de_0000_7000_8000_0000_0000_0001);
pub(super) const CREATED: u64 = 1_790_000_000;

/// Returns the data of this request that is needed to translate the response of the vendor `claude`.
pub(super) fn requested(request: &Value) -> RequestEcho {
    let body = request.to_string();
    RequestEcho::read(body.as_bytes(), NUMBER.simple(), CREATED, "claude").unwrap()
}

/// Builds a request for all reasoning: a summary and encrypted reasoning.
pub(super) fn curious() -> Value {
    json!({"model": "m", "input": "x", "include": ["reasoning.encrypted_content"],
           "reasoning": {"summary": "auto"}})
}

pub(super) fn to_chat(body: &[u8], vendor: &str, cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    translate(Format::Responses, Format::Chat, body, vendor, cx)
}

pub(super) fn to_messages(body: &[u8], vendor: &str, cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    translate(Format::Responses, Format::Messages, body, vendor, cx)
}

pub(super) fn of_chat(body: &[u8], cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    translate(Format::Chat, Format::Responses, body, "open", cx)
}

pub(super) fn of_messages(body: &[u8], vendor: &str, cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    translate(Format::Messages, Format::Responses, body, vendor, cx)
}

pub(super) fn cx(dialect: &Dialect) -> RequestCx<'_> {
    RequestCx {
        model: "vendor-model",
        output_tokens: 500,
        dialect,
        cache: CacheCx::default(),
    }
}

/// Returns the name of the field in a refusal.
pub(super) fn refused(result: Result<Bytes, Error>) -> String {
    match result {
        Err(Error::Invalid { field, .. }) => field.into_owned(),
        other => panic!("{other:?}"),
    }
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

/// Translates a stream that arrives in these chunks. Also returns the result with which it ended.
pub(super) fn run(
    chunks: &[&[u8]],
    mut each: impl FnMut(Option<&Event>, &mut BytesMut) -> Result<(), Error>,
) -> (BytesMut, Result<(), Error>) {
    let mut out = BytesMut::new();
    for event in events(chunks) {
        if let Err(error) = each(Some(&event), &mut out) {
            return (out, Err(error));
        }
    }
    let end = each(None, &mut out);
    (out, end)
}

/// Reads a complete stream, and returns the response in its last event. Panics if an event is out of order.
pub(super) fn received(bytes: &[u8]) -> Value {
    let mut items: BTreeMap<u64, Heard> = BTreeMap::new();
    let (mut first, mut last) = (None, None);
    let events = events(&[bytes]).into_iter();
    // Before the first event, a keep-alive is a comment, because an event would need a sequence number.
    let returned = events.filter(|event| event.data().is_some());
    for (number, event) in returned.enumerate() {
        let data: Value = serde_json::from_slice(&event.data().expect("data")).expect("JSON");
        let kind = data["type"].as_str().unwrap();
        assert_eq!(event.name(), kind.as_bytes(), "an event's name is its type");
        assert_eq!(data["sequence_number"], number, "{kind}");
        assert!(last.is_none(), "{kind} behind the end");
        if kind == "keepalive" {
            assert!(first.is_some());
            continue;
        }
        let response = &data["response"];
        if number < 2 {
            assert_eq!(kind, ["response.created", "response.in_progress"][number]);
            assert_eq!(response["status"], "in_progress");
            assert_eq!(
                (&response["usage"], &response["output"]),
                (&Value::Null, &json!([]))
            );
            first = Some(response.clone());
            continue;
        }
        if let "response.completed" | "response.incomplete" = kind {
            assert_eq!(
                kind,
                format!("response.{}", response["status"].as_str().unwrap())
            );
            last = Some(response.clone());
            continue;
        }
        let index = data["output_index"].as_u64().unwrap();
        if kind == "response.output_item.added" {
            assert_eq!(index, items.len() as u64, "indexes are dense");
            let item = data["item"].clone();
            items.insert(
                index,
                Heard {
                    item,
                    ..Heard::default()
                },
            );
            continue;
        }
        items.get_mut(&index).expect("an item").take(kind, &data);
    }
    let (first, last) = (first.unwrap(), last.expect("an end"));
    for same in ["id", "model", "created_at", "tools", "object"] {
        assert_eq!(first[same], last[same]);
    }
    let done: Vec<Value> = items
        .into_values()
        .map(|received| received.done.expect("done"))
        .collect();
    assert_eq!(json!(done), last["output"], "the last event has the items");
    last
}

/// The part of an item whose events have been read.
#[derive(Default)]
struct Heard {
    item: Value,
    /// The joined deltas of the item, by the index of the part.
    deltas: BTreeMap<u64, String>,
    closed: usize,
    done: Option<Value>,
}

impl Heard {
    fn take(&mut self, kind: &str, data: &Value) {
        assert!(self.done.is_none(), "{kind} behind its end");
        if kind == "response.output_item.done" {
            self.done(&data["item"]);
            return;
        }
        assert_eq!(data["item_id"], self.item["id"], "{kind}");
        let place = ["content_index", "summary_index"]
            .iter()
            .find_map(|name| data[*name].as_u64());
        let place = place.unwrap_or(0);
        let reported = |field: &str| data[field].as_str().map(str::to_owned);
        if kind.ends_with(".delta") {
            *self.deltas.entry(place).or_default() += &reported("delta").unwrap();
            return;
        }
        if kind.ends_with("part.added") {
            assert!(self.deltas.insert(place, String::new()).is_none(), "{kind}");
            return;
        }
        let fields = ["text", "refusal", "arguments", "input"];
        let whole = fields.iter().find_map(|field| reported(field)).or_else(|| {
            fields
                .iter()
                .find_map(|field| data["part"][*field].as_str().map(str::to_owned))
        });
        let deltas = self.deltas.get(&place).cloned().unwrap_or_default();
        assert_eq!(whole, Some(deltas), "{kind}");
        self.closed += 1;
    }

    fn done(&mut self, item: &Value) {
        for same in ["id", "type", "call_id", "name", "namespace"] {
            assert_eq!(self.item[same], item[same]);
        }
        assert_eq!(self.item["status"], "in_progress");
        let parts = ["content", "summary"]
            .iter()
            .flat_map(|list| item[*list].as_array().into_iter().flatten());
        let mut texts: Vec<&str> = parts
            .map(|part| part["text"].as_str().or(part["refusal"].as_str()).unwrap())
            .collect();
        let mut times = 2;
        if let Some(arguments) = item["arguments"].as_str().or(item["input"].as_str()) {
            texts.push(arguments);
            times = 1;
        }
        let received: Vec<&String> = self.deltas.values().collect();
        let received: Vec<&String> = if times == 1 && received.is_empty() {
            Vec::new()
        } else {
            received
        };
        if !(received.is_empty() && texts == [""]) {
            assert_eq!(received, texts, "{item}");
        }
        assert_eq!(
            self.closed,
            texts.len() * times,
            "each part is done once: {item}"
        );
        self.done = Some(item.clone());
    }
}

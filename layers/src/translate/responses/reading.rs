//! Reads a responses vendor's answer, plain or streamed, and passes its pieces to code that writes the caller's format.
//!
//! Vendors differ: some send only `.done` events without deltas, another item id in each event, interleaved items, or a
//! last event without items. So an item is identified only by its `output_index`, and each of its texts is passed on
//! once, from the first event that has it.

use std::{borrow::Cow, collections::HashMap};

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::usage::Counts;
use crate::{
    error::Error,
    sse::Event,
    translate::{
        messages::{
            Stop, is_comment,
            text::{given, inner},
        },
        origin::Origin,
        wire::{broken, too_much},
    },
    vendor_usage::is_error,
};

/// The largest number of items in one answer.
const ITEMS_MAX: usize = 4_096;
/// The longest part of a vendor's error message that is logged, in characters.
const ERROR_CHARS_MAX: usize = 500;

/// Receives the pieces of an answer. Texts are JSON-escaped and without quotes.
pub(super) trait Sink {
    /// Called when the answer begins; `id` and `model` are JSON strings.
    fn begin(&mut self, id: &str, model: &str, out: &mut BytesMut);
    /// Called with a piece of a message's text or refusal.
    fn text(
        &mut self,
        item: u64,
        refusal: bool,
        piece: &str,
        out: &mut BytesMut,
    ) -> Result<(), Error>;
    /// Called with a piece of reasoning that people can read.
    fn thought(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error>;
    /// Called when a tool call begins.
    fn call(&mut self, item: u64, call: Call<'_>, out: &mut BytesMut) -> Result<(), Error>;
    /// Called with a piece of a call's arguments or free text.
    fn arguments(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error>;
    /// Called when an item is complete. `sealed` is the item's JSON, if it is reasoning that only the vendor can read
    /// and that must be returned to the vendor.
    fn done(&mut self, item: u64, sealed: Option<&str>, out: &mut BytesMut) -> Result<(), Error>;
    /// Called when the answer ends.
    fn finish(
        &mut self,
        stop: Stop,
        counts: Option<Counts>,
        out: &mut BytesMut,
    ) -> Result<(), Error>;
    /// Called when the vendor sends a keep-alive.
    fn alive(&mut self, out: &mut BytesMut);
}

/// A tool call in the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    /// Whether the tool takes free text.
    pub(super) custom: bool,
}

/// The state of reading one answer; `S` writes the caller's format.
#[derive(Debug)]
pub(super) struct Reading<S> {
    sink: S,
    origin: Origin,
    items: HashMap<u64, Item>,
    begun: bool,
    called: bool,
    ended: bool,
}

/// The parts of an item that were already passed on.
#[derive(Debug, Default)]
struct Item {
    /// The indices of the parts whose text was passed on.
    said: Vec<u64>,
    /// Whether the summary is passed on, or the reasoning itself: the first that arrives. `None` before that.
    summary: Option<bool>,
    last_part: u64,
    called: bool,
    given: bool,
    done: bool,
}

impl<S: Sink> Reading<S> {
    pub(super) fn new(sink: S, origin: Origin) -> Self {
        Self {
            sink,
            origin,
            items: HashMap::new(),
            begun: false,
            called: false,
            ended: false,
        }
    }

    /// Reads a plain answer.
    pub(super) fn answer(mut self, body: &[u8], out: &mut BytesMut) -> Result<(), Error> {
        let response: Response<'_> = serde_json::from_slice(body).map_err(broken)?;
        response.check()?;
        self.begin(&response, out);
        self.finish(&response, out)
    }

    /// Reads the next event of a stream.
    pub(super) fn event(&mut self, event: &Event, out: &mut BytesMut) -> Result<(), Error> {
        if self.ended {
            return Ok(());
        }
        let Some(data) = event.data() else {
            if is_comment(event) {
                self.sink.alive(out);
            }
            return Ok(());
        };
        let data = data.trim_ascii();
        if matches!(data, b"" | b"[DONE]") {
            return Ok(());
        }
        match serde_json::from_slice::<Wire<'_>>(data) {
            Ok(wire) => self.wire(&wire, out),
            Err(error) => {
                // An event of unknown type may have any fields, so only a known type makes this an error.
                let odd: Odd<'_> = serde_json::from_slice(data).map_err(broken)?;
                if KNOWN.contains(&&*odd.kind) {
                    return Err(broken(error));
                }
                Ok(())
            }
        }
    }

    /// Handles the end of the vendor's bytes; fails if the stream was truncated.
    pub(super) fn end(&self) -> Result<(), Error> {
        if self.ended {
            Ok(())
        } else {
            Err(broken("the stream ended in the middle"))
        }
    }

    fn wire(&mut self, wire: &Wire<'_>, out: &mut BytesMut) -> Result<(), Error> {
        let index = wire.output_index.unwrap_or(0);
        let piece = wire.delta.and_then(inner).unwrap_or_default();
        match &*wire.kind {
            "response.created" | "response.in_progress" | "response.queued" => {
                if let Some(response) = &wire.response {
                    self.begin(response, out);
                }
                Ok(())
            }
            "response.output_item.added" => {
                let item = wire.item()?;
                self.call(index, item, out)
            }
            "response.output_text.delta" => self.text(wire, false, piece, true, out),
            "response.refusal.delta" => self.text(wire, true, piece, true, out),
            "response.output_text.done" => self.text(
                wire,
                false,
                given(wire.text).unwrap_or_default(),
                false,
                out,
            ),
            "response.refusal.done" => self.text(
                wire,
                true,
                given(wire.refusal).unwrap_or_default(),
                false,
                out,
            ),
            "response.reasoning_text.delta" => {
                self.thought(index, false, wire.content_index.unwrap_or(0), piece, out)
            }
            "response.reasoning_summary_text.delta" => {
                self.thought(index, true, wire.summary_index.unwrap_or(0), piece, out)
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.arguments(index, piece, true, out)
            }
            "response.function_call_arguments.done" | "response.custom_tool_call_input.done" => {
                let whole = given(wire.arguments).or_else(|| given(wire.input));
                self.arguments(index, whole.unwrap_or_default(), false, out)
            }
            "response.output_item.done" => {
                let item = wire.item()?;
                self.item(index, item, out)
            }
            "response.completed" | "response.incomplete" => {
                let response = wire
                    .response
                    .as_ref()
                    .ok_or_else(|| broken("a last event without a response"))?;
                self.begin(response, out);
                self.finish(response, out)
            }
            "response.failed" | "error" | "response.cancelled" => Err(failed(wire)),
            "keepalive" => {
                self.sink.alive(out);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, response: &Response<'_>, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.begun, true) {
            let string = |value: Option<&'_ RawValue>| {
                let value = value.map_or("\"\"", RawValue::get);
                if value.starts_with('"') {
                    value.to_owned()
                } else {
                    "\"\"".to_owned()
                }
            };
            self.sink
                .begin(&string(response.id), &string(response.model), out);
        }
    }

    fn state(&mut self, index: u64) -> Result<&mut Item, Error> {
        if !self.begun {
            return Err(broken("an item before the answer"));
        }
        if self.items.len() == ITEMS_MAX && !self.items.contains_key(&index) {
            return Err(too_much(format!("more than {ITEMS_MAX} items")));
        }
        Ok(self.items.entry(index).or_default())
    }

    /// Passes on a text: each delta or, if there was no delta, the whole text.
    fn text(
        &mut self,
        wire: &Wire<'_>,
        refusal: bool,
        piece: &str,
        delta: bool,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        let index = wire.output_index.unwrap_or(0);
        self.part(
            index,
            wire.content_index.unwrap_or(0),
            refusal,
            piece,
            delta,
            out,
        )
    }

    fn part(
        &mut self,
        index: u64,
        part: u64,
        refusal: bool,
        piece: &str,
        delta: bool,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        let item = self.state(index)?;
        let said = item.said.contains(&part);
        if piece.is_empty() || item.done || (said && !delta) {
            return Ok(());
        }
        if !said {
            item.said.push(part);
        }
        self.sink.text(index, refusal, piece, out)
    }

    /// Passes on a piece of reasoning. If the vendor sends both the reasoning and a summary, only the first to arrive
    /// is passed on.
    fn thought(
        &mut self,
        index: u64,
        summary: bool,
        part: u64,
        piece: &str,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        let item = self.state(index)?;
        if piece.is_empty() || item.done || *item.summary.get_or_insert(summary) != summary {
            return Ok(());
        }
        if std::mem::replace(&mut item.last_part, part) != part {
            self.sink.thought(index, "\\n\\n", out)?;
        }
        self.sink.thought(index, piece, out)
    }

    fn call(&mut self, index: u64, raw: &RawValue, out: &mut BytesMut) -> Result<(), Error> {
        let item: OutputItem<'_> = serde_json::from_str(raw.get()).map_err(broken)?;
        let custom = match &*item.kind {
            "function_call" => false,
            "custom_tool_call" => true,
            _ => return self.state(index).map(|_| ()),
        };
        if std::mem::replace(&mut self.state(index)?.called, true) {
            return Ok(());
        }
        let id = given(item.call_id).or_else(|| given(item.id));
        let (Some(id), Some(name)) = (id, given(item.name)) else {
            return Err(broken("a call without an id or a name"));
        };
        self.called = true;
        let name = self.origin.name(name);
        self.sink.call(index, Call { id, name, custom }, out)
    }

    fn arguments(
        &mut self,
        index: u64,
        piece: &str,
        delta: bool,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        let item = self.state(index)?;
        if piece.is_empty() || item.done || !item.called || (item.given && !delta) {
            return Ok(());
        }
        item.given = true;
        self.sink.arguments(index, piece, out)
    }

    /// Handles a complete item: passes on the texts of which no event has arrived.
    fn item(&mut self, index: u64, raw: &RawValue, out: &mut BytesMut) -> Result<(), Error> {
        if self.state(index)?.done {
            return Ok(());
        }
        let item: OutputItem<'_> = serde_json::from_str(raw.get()).map_err(broken)?;
        let mut sealed = None;
        match &*item.kind {
            "message" => {
                for (place, part) in (0..).zip(parts(item.content)) {
                    match &*part.kind {
                        "refusal" => {
                            let text = given(part.refusal).unwrap_or_default();
                            self.part(index, place, true, text, false, out)?;
                        }
                        _ => {
                            let text = given(part.text).unwrap_or_default();
                            self.part(index, place, false, text, false, out)?;
                        }
                    }
                }
            }
            "reasoning" => {
                if self.state(index)?.summary.is_none() {
                    for (place, part) in (0..).zip(parts(item.content)) {
                        let text = given(part.text).unwrap_or_default();
                        self.thought(index, false, place, text, out)?;
                    }
                }
                if self.state(index)?.summary.is_none() {
                    for (place, part) in (0..).zip(parts(item.summary)) {
                        let text = given(part.text).unwrap_or_default();
                        self.thought(index, true, place, text, out)?;
                    }
                }
                sealed = item.sealed();
            }
            "function_call" | "custom_tool_call" => {
                self.call(index, raw, out)?;
                let whole = given(item.arguments).or_else(|| given(item.input));
                self.arguments(index, whole.unwrap_or_default(), false, out)?;
            }
            // The vendor's own tools, and unknown items, have no counterpart.
            _ => {}
        }
        self.state(index)?.done = true;
        self.sink.done(index, sealed.as_deref(), out)
    }

    fn finish(&mut self, response: &Response<'_>, out: &mut BytesMut) -> Result<(), Error> {
        let stop = response.stop()?;
        let output = response.output.as_deref().unwrap_or_default();
        for (index, item) in (0..).zip(output) {
            // No event has announced or completed these items.
            let missing = self.items.len() < output.len() || self.items.contains_key(&index);
            if missing {
                self.item(index, item, out)?;
            }
        }
        self.ended = true;
        let stop = match stop {
            Stop::EndTurn if self.called => Stop::ToolUse,
            stop => stop,
        };
        let counts = response.usage.and_then(Counts::read);
        self.sink.finish(stop, counts, out)
    }
}

/// Returns the error that the event reports, with the vendor's own message.
fn failed(wire: &Wire<'_>) -> Error {
    let of_response = wire.response.as_ref().and_then(|response| response.error);
    let text = wire.error.or(of_response).or(wire.message);
    let text: String = text
        .map_or("", RawValue::get)
        .chars()
        .take(ERROR_CHARS_MAX)
        .collect();
    Error::VendorUnavailable(crate::scrub::scrubbed(&text).into())
}

const KNOWN: [&str; 6] = [
    "response.output_item.added",
    "response.output_item.done",
    "response.output_text.delta",
    "response.function_call_arguments.delta",
    "response.completed",
    "response.incomplete",
];

/// The fields of an event, parsed leniently: used if the event does not parse as [`Wire`].
#[derive(Deserialize)]
struct Odd<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
}

/// Any event of a responses stream, with the fields that are translated.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    output_index: Option<u64>,
    content_index: Option<u64>,
    summary_index: Option<u64>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<Response<'a>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

impl<'a> Wire<'a> {
    fn item(&self) -> Result<&'a RawValue, Error> {
        self.item
            .ok_or_else(|| broken("an item's event without the item"))
    }
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<Cow<'a, str>>,
    #[serde(borrow)]
    output: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    incomplete_details: Option<Details<'a>>,
}

#[derive(Deserialize)]
struct Details<'a> {
    #[serde(borrow)]
    reason: Option<Cow<'a, str>>,
}

impl Response<'_> {
    /// Refuses an answer that is an error, or that has no output.
    fn check(&self) -> Result<(), Error> {
        if let Some(error) = self.error.filter(|error| is_error(error.get())) {
            let text: String = error.get().chars().take(ERROR_CHARS_MAX).collect();
            return Err(Error::VendorUnavailable(
                crate::scrub::scrubbed(&text).into(),
            ));
        }
        // If an answer has usage but no items, it is an empty answer.
        if self.output.is_none() && self.usage.is_none() {
            return Err(broken("an answer without output"));
        }
        Ok(())
    }

    fn stop(&self) -> Result<Stop, Error> {
        match self.status.as_deref() {
            Some("completed") | None => Ok(Stop::EndTurn),
            Some("incomplete") => {
                let details = self.incomplete_details.as_ref();
                let reason = details.and_then(|details| details.reason.as_deref());
                Ok(match reason {
                    Some("content_filter") => Stop::Refusal,
                    _ => Stop::MaxTokens,
                })
            }
            Some(status) => Err(broken(format!("an answer with the status {status}"))),
        }
    }
}

#[derive(Deserialize)]
struct OutputItem<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    call_id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
    #[serde(borrow)]
    encrypted_content: Option<&'a RawValue>,
}

impl OutputItem<'_> {
    /// Returns the item's JSON in the form in which the vendor accepts it back, which must have a summary.
    fn sealed(&self) -> Option<String> {
        given(self.encrypted_content)?;
        let encrypted = self.encrypted_content?.get();
        let id = match self.id.filter(|id| given(Some(*id)).is_some()) {
            Some(id) => format!("\"id\":{},", id.get()),
            None => String::new(),
        };
        let summary = self.summary.map(RawValue::get);
        let summary = summary
            .filter(|summary| summary.starts_with('['))
            .unwrap_or("[]");
        Some(format!(
            "{{\"type\":\"reasoning\",{id}\"summary\":{summary},\"encrypted_content\":{encrypted}}}"
        ))
    }
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
}

fn parts(list: Option<&RawValue>) -> Vec<Part<'_>> {
    list.and_then(|list| serde_json::from_str(list.get()).ok())
        .unwrap_or_default()
}

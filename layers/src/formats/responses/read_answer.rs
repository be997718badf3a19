//! Reads a response in the Responses format.
//!
//! Vendors differ. Some send only `.done` events without deltas, or another item id in each event, or interleaved
//! items, or a last event without items. So an item is identified only by its `output_index`, and each of its texts is
//! passed on once, from the first event that contains it.

use std::{borrow::Cow, collections::HashMap};

use serde_json::value::RawValue;

use super::super::turn::{
    Call, Counts, Emit, Event, Proof, Reader as Read, Stop, arguments, truncated, without_data,
};
use crate::{
    error::Error,
    formats::{
        arguments::Lead,
        errors::unavailable,
        text::{given, inner},
        wire::{broken, too_many},
    },
    sse,
    vendor_usage::{is_error, responses_usage},
};

/// The maximum number of items in one response.
const ITEMS_MAX: usize = 4_096;

/// Reads a response in the Responses format. No event is delayed, and no text is stored.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    items: HashMap<u64, Item>,
    begun: bool,
    called: bool,
    ended: bool,
}

/// The parts of an item that have been passed on so far.
#[derive(Debug, Default)]
struct Item {
    /// The indices of the parts whose text has been passed on.
    reported: Vec<u64>,
    /// True if the summary is passed on, false if the reasoning itself is: whichever arrives first. `None` before
    /// either arrives.
    summary: Option<bool>,
    last_part: u64,
    called: bool,
    /// The state of the beginning of a tool call's arguments. `None` for free text.
    lead: Option<Lead>,
    given: bool,
    done: bool,
}

impl Read for Reader {
    fn event(&mut self, event: &sse::Event, emit: Emit<'_>) -> Result<(), Error> {
        if self.ended {
            return Ok(());
        }
        let Some(data) = event.data() else {
            return without_data(event, emit);
        };
        let data = data.trim_ascii();
        if matches!(data, b"" | b"[DONE]") {
            return Ok(());
        }
        match serde_json::from_slice::<Wire<'_>>(data) {
            Ok(wire) => self.wire(&wire, emit),
            Err(error) => {
                // An event of unknown type may have any fields. So the failed parse is an error only if the type is
                // known.
                let odd: Odd<'_> = serde_json::from_slice(data).map_err(broken)?;
                if KNOWN.contains(&&*odd.kind) {
                    return Err(broken(error));
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, _: Emit<'_>) -> Result<(), Error> {
        if self.ended { Ok(()) } else { Err(truncated()) }
    }

    fn answer(&mut self, body: &[u8], emit: Emit<'_>) -> Result<(), Error> {
        let response: Response<'_> = serde_json::from_slice(body).map_err(broken)?;
        response.check()?;
        self.begin(&response, emit)?;
        self.finish(&response, emit)
    }
}

impl Reader {
    fn wire(&mut self, wire: &Wire<'_>, emit: Emit<'_>) -> Result<(), Error> {
        let index = wire.output_index.unwrap_or(0);
        let piece = wire.delta.and_then(inner).unwrap_or_default();
        let part = (index, wire.content_index.unwrap_or(0));
        let summary_part = (index, wire.summary_index.unwrap_or(0));
        match &*wire.kind {
            "response.created" | "response.in_progress" | "response.queued" => {
                let response = wire.response.as_ref();
                response.map_or(Ok(()), |response| self.begin(response, emit))
            }
            "response.output_item.added" => self.call(index, wire.item()?, emit),
            "response.output_text.delta" => self.text(part, false, piece, true, emit),
            "response.refusal.delta" => self.text(part, true, piece, true, emit),
            "response.output_text.done" => self.text(part, false, whole(wire.text), false, emit),
            "response.refusal.done" => self.text(part, true, whole(wire.refusal), false, emit),
            "response.reasoning_text.delta" => self.thought(part, false, piece, emit),
            "response.reasoning_summary_text.delta" => {
                self.thought(summary_part, true, piece, emit)
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.arguments(index, piece, true, emit)
            }
            "response.function_call_arguments.done" | "response.custom_tool_call_input.done" => {
                let whole = given(wire.arguments).or_else(|| given(wire.input));
                self.arguments(index, whole.unwrap_or_default(), false, emit)
            }
            "response.output_item.done" => self.item(index, wire.item()?, emit),
            "response.completed" | "response.incomplete" => {
                let response = wire.response.as_ref();
                let response =
                    response.ok_or_else(|| broken("the last event has no response object"))?;
                self.begin(response, emit)?;
                self.finish(response, emit)
            }
            "response.failed" | "error" | "response.cancelled" => Err(failed(wire)),
            "keepalive" => emit(Event::Alive),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, response: &Response<'_>, emit: Emit<'_>) -> Result<(), Error> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let string = |value: Option<&'_ RawValue>| match value.map_or("", RawValue::get) {
            text if text.starts_with('"') => text.to_owned(),
            _ => "\"\"".to_owned(),
        };
        let (id, model) = (&string(response.id), &string(response.model));
        emit(Event::Begin { id, model })
    }

    fn state(&mut self, index: u64) -> Result<&mut Item, Error> {
        if !self.begun {
            return Err(broken("an output item precedes response.created"));
        }
        if self.items.len() == ITEMS_MAX && !self.items.contains_key(&index) {
            return Err(too_many(ITEMS_MAX, "output items"));
        }
        Ok(self.items.entry(index).or_default())
    }

    /// Passes on a part of an item: each delta, or the whole text if no delta has arrived.
    fn text(
        &mut self,
        (index, part): (u64, u64),
        refusal: bool,
        piece: &str,
        delta: bool,
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        let item = self.state(index)?;
        let reported = item.reported.contains(&part);
        if piece.is_empty() || item.done || (reported && !delta) {
            return Ok(());
        }
        if !reported {
            item.reported.push(part);
        }
        emit(Event::Text(index, refusal, piece))
    }

    /// Passes on a piece of reasoning. If the vendor sends both reasoning and a summary of it, only the one that
    /// arrives first is passed on.
    fn thought(
        &mut self,
        (index, part): (u64, u64),
        summary: bool,
        piece: &str,
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        let item = self.state(index)?;
        if piece.is_empty() || item.done || *item.summary.get_or_insert(summary) != summary {
            return Ok(());
        }
        if std::mem::replace(&mut item.last_part, part) != part {
            emit(Event::Reasoning(index, summary, "\\n\\n"))?;
        }
        emit(Event::Reasoning(index, summary, piece))
    }

    fn call(&mut self, index: u64, raw: &RawValue, emit: Emit<'_>) -> Result<(), Error> {
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
            return Err(broken("a tool call has no id or no name"));
        };
        self.called = true;
        self.state(index)?.lead = (!custom).then(Lead::default);
        let call = Call { id, name, custom };
        emit(Event::Call { item: index, call })
    }

    fn arguments(
        &mut self,
        index: u64,
        piece: &str,
        delta: bool,
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        let item = self.state(index)?;
        if piece.is_empty() || item.done || !item.called || (item.given && !delta) {
            return Ok(());
        }
        item.given = true;
        let (stored, rest) = match &mut item.lead {
            Some(lead) => lead.take(piece),
            None => ("", piece),
        };
        arguments(index, stored, emit)?;
        arguments(index, rest, emit)
    }

    /// Handles a complete item. Passes on those of its texts that no earlier event contained.
    fn item(&mut self, index: u64, raw: &RawValue, emit: Emit<'_>) -> Result<(), Error> {
        if self.state(index)?.done {
            return Ok(());
        }
        let item: OutputItem<'_> = serde_json::from_str(raw.get()).map_err(broken)?;
        let mut sealed = None;
        match &*item.kind {
            "message" => {
                for (place, part) in (0..).zip(parts(item.content)) {
                    let refusal = part.kind == "refusal";
                    let text = if refusal { part.refusal } else { part.text };
                    self.text((index, place), refusal, whole(text), false, emit)?;
                }
            }
            "reasoning" => {
                for (summary, list) in [(false, item.content), (true, item.summary)] {
                    if self.state(index)?.summary.is_some() {
                        continue;
                    }
                    for (place, part) in (0..).zip(parts(list)) {
                        self.thought((index, place), summary, whole(part.text), emit)?;
                    }
                }
                sealed = item.sealed();
            }
            "function_call" | "custom_tool_call" => {
                self.call(index, raw, emit)?;
                let whole = given(item.arguments).or_else(|| given(item.input));
                self.arguments(index, whole.unwrap_or_default(), false, emit)?;
            }
            // The vendor's own tools and unknown items have no counterpart in other formats.
            _ => {}
        }
        if let Some(json) = &sealed {
            emit(Event::Proof(index, Proof::Item(json)))?;
        }
        let item = self.state(index)?;
        item.done = true;
        arguments(index, item.lead.map_or("", Lead::cut), emit)?;
        emit(Event::Done(index, false))
    }

    fn finish(&mut self, response: &Response<'_>, emit: Emit<'_>) -> Result<(), Error> {
        let stop = response.stop()?;
        let output = response.output.as_deref().unwrap_or_default();
        for (index, item) in (0..).zip(output) {
            // If the last event contains an item that no earlier event contained, the item is passed on now.
            let missing = self.items.len() < output.len() || self.items.contains_key(&index);
            if missing {
                self.item(index, item, emit)?;
            }
        }
        self.ended = true;
        let stop = match stop {
            Stop::EndTurn if self.called => Stop::ToolUse,
            stop => stop,
        };
        emit(Event::Stop(stop))?;
        let usage = response.usage.and_then(usage);
        emit(Event::End(usage.unwrap_or_default()))
    }
}

/// Reads the usage, by the same code that reads it for the charge. `None` if the usage counts nothing.
fn usage(usage: &RawValue) -> Option<Counts> {
    let counted = responses_usage(usage.get())?;
    Some(Counts::new(&counted.usage, counted.reasoning))
}

/// Returns the error that the event reports, with the vendor's own message.
fn failed(wire: &Wire<'_>) -> Error {
    let of_response = wire.response.as_ref().and_then(|response| response.error);
    let text = wire.error.or(of_response).or(wire.message);
    unavailable(text.map_or("", RawValue::get))
}

const KNOWN: [&str; 6] = [
    "response.output_item.added",
    "response.output_item.done",
    "response.output_text.delta",
    "response.function_call_arguments.delta",
    "response.completed",
    "response.incomplete",
];

raw_fields! {
    /// The fields of an event that does not parse as [`Wire`]. They are parsed leniently.
    struct Odd<'a> {
        ;
        #[serde(borrow, default, rename = "type")] kind: Cow<'a, str>,
    }
    /// Any event of a Responses stream, reduced to the fields that are translated.
    struct Wire<'a> {
        delta, text, refusal, arguments, input, item, error, message;
        #[serde(borrow, rename = "type")] kind: Cow<'a, str>,
        output_index: Option<u64>,
        content_index: Option<u64>,
        summary_index: Option<u64>,
        #[serde(borrow)] response: Option<Response<'a>>,
    }
}

impl<'a> Wire<'a> {
    fn item(&self) -> Result<&'a RawValue, Error> {
        self.item
            .ok_or_else(|| broken("an event of an output item has no item"))
    }
}

raw_fields! {
    struct Response<'a> {
        id, model, usage, error;
        #[serde(borrow)] status: Option<Cow<'a, str>>,
        #[serde(borrow)] output: Option<Vec<&'a RawValue>>,
        #[serde(borrow)] incomplete_details: Option<Details<'a>>,
    }
    struct Details<'a> {
        ;
        #[serde(borrow)] reason: Option<Cow<'a, str>>,
    }
}

impl Response<'_> {
    /// Refuses a response that is an error or has no output.
    fn check(&self) -> Result<(), Error> {
        if let Some(error) = self.error.filter(|error| is_error(error.get())) {
            return Err(unavailable(error.get()));
        }
        // A response that has usage but no items counts as an empty response.
        if self.output.is_none() && self.usage.is_none() {
            return Err(broken("the response has no output"));
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
            Some(status) => Err(broken(format!("the response has the status {status}"))),
        }
    }
}

raw_fields! {
    struct OutputItem<'a> {
        id, call_id, name, arguments, input, content, summary, encrypted_content;
        #[serde(borrow, default, rename = "type")] kind: Cow<'a, str>,
    }
}

impl OutputItem<'_> {
    /// Returns the item's JSON in the form in which the vendor accepts it back. In this form it must have a summary.
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

raw_fields! {
    struct Part<'a> {
        text, refusal;
        #[serde(borrow, default, rename = "type")] kind: Cow<'a, str>,
    }
}

/// Returns the text between the quotes of a JSON string. Empty if the field is absent.
fn whole(text: Option<&RawValue>) -> &str {
    given(text).unwrap_or_default()
}

fn parts(list: Option<&RawValue>) -> Vec<Part<'_>> {
    list.and_then(|list| serde_json::from_str(list.get()).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<Counts> {
        usage(&RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn usage_that_callers_get_is_the_charged_usage() {
        let usual = r#"{"input_tokens":100,"input_tokens_details":{"cached_tokens":40,"cache_write_tokens":10},
            "output_tokens":30,"output_tokens_details":{"reasoning_tokens":20},"total_tokens":130}"#;
        let counts = read(usual).unwrap();
        assert_eq!(
            (counts.input(), counts.cached, counts.written, counts.fresh),
            (100, 40, 10, 50)
        );
        assert_eq!((counts.output, counts.reasoning), (30, Some(20)));
        // Some vendors report reasoning in addition to the output.
        let beside = r#"{"input_tokens":10,"output_tokens":5,"total_tokens":115,
            "output_tokens_details":{"reasoning_tokens":100}}"#;
        let counts = read(beside).unwrap();
        assert_eq!((counts.output, counts.reasoning), (105, Some(100)));
        assert!(read("{}").is_none());
    }
}

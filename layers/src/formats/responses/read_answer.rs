//! Reads the answer of a responses vendor.
//!
//! Vendors differ: some send only `.done` events without deltas, another item id in each event, interleaved items, or a
//! last event without items. So an item is identified only by its `output_index`, and each of its texts is passed on
//! once, from the first event that has it.

use std::{borrow::Cow, collections::HashMap};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::turn::{
    Call, Counts, Emit, Event, Proof, Reader as Read, Stop, arguments, is_comment, truncated,
    vendor_error,
};
use crate::{
    error::Error,
    formats::{
        arguments::Lead,
        text::{given, inner},
        wire::{broken, too_much},
    },
    json::members,
    sse,
    vendor_usage::{counts, is_error, responses_usage},
};

/// The largest number of items in one answer.
const ITEMS_MAX: usize = 4_096;

/// Reads a responses answer. No event is delayed, and no text is stored.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    items: HashMap<u64, Item>,
    begun: bool,
    called: bool,
    ended: bool,
}

/// The parts of an item that were already passed on.
#[derive(Debug, Default)]
struct Item {
    /// The indices of the parts whose text was passed on.
    reported: Vec<u64>,
    /// Whether the summary is passed on, or the reasoning itself: the first that arrives. `None` before that.
    summary: Option<bool>,
    last_part: u64,
    called: bool,
    /// The state of the beginning of a call's arguments; `None` for free text.
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
            return if is_comment(event) {
                emit(Event::Alive)
            } else {
                Ok(())
            };
        };
        let data = data.trim_ascii();
        if matches!(data, b"" | b"[DONE]") {
            return Ok(());
        }
        match serde_json::from_slice::<Wire<'_>>(data) {
            Ok(wire) => self.wire(&wire, emit),
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
        match &*wire.kind {
            "response.created" | "response.in_progress" | "response.queued" => {
                let response = wire.response.as_ref();
                response.map_or(Ok(()), |response| self.begin(response, emit))
            }
            "response.output_item.added" => {
                let item = wire.item()?;
                self.call(index, item, emit)
            }
            "response.output_text.delta" => self.text(wire, false, piece, true, emit),
            "response.refusal.delta" => self.text(wire, true, piece, true, emit),
            "response.output_text.done" => self.text(
                wire,
                false,
                given(wire.text).unwrap_or_default(),
                false,
                emit,
            ),
            "response.refusal.done" => self.text(
                wire,
                true,
                given(wire.refusal).unwrap_or_default(),
                false,
                emit,
            ),
            "response.reasoning_text.delta" => {
                self.thought(index, false, wire.content_index.unwrap_or(0), piece, emit)
            }
            "response.reasoning_summary_text.delta" => {
                self.thought(index, true, wire.summary_index.unwrap_or(0), piece, emit)
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.arguments(index, piece, true, emit)
            }
            "response.function_call_arguments.done" | "response.custom_tool_call_input.done" => {
                let whole = given(wire.arguments).or_else(|| given(wire.input));
                self.arguments(index, whole.unwrap_or_default(), false, emit)
            }
            "response.output_item.done" => {
                let item = wire.item()?;
                self.item(index, item, emit)
            }
            "response.completed" | "response.incomplete" => {
                let response = wire
                    .response
                    .as_ref()
                    .ok_or_else(|| broken("a last event without a response"))?;
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
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        let index = wire.output_index.unwrap_or(0);
        self.part(
            index,
            wire.content_index.unwrap_or(0),
            refusal,
            piece,
            delta,
            emit,
        )
    }

    fn part(
        &mut self,
        index: u64,
        part: u64,
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
        emit(Event::Text {
            item: index,
            refusal,
            piece,
        })
    }

    /// Passes on a piece of reasoning. If the vendor sends both the reasoning and a summary, only the first to arrive
    /// is passed on.
    fn thought(
        &mut self,
        index: u64,
        summary: bool,
        part: u64,
        piece: &str,
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        let item = self.state(index)?;
        if piece.is_empty() || item.done || *item.summary.get_or_insert(summary) != summary {
            return Ok(());
        }
        let between = match std::mem::replace(&mut item.last_part, part) {
            last if last != part => "\\n\\n",
            _ => "",
        };
        for piece in [between, piece] {
            if !piece.is_empty() {
                emit(Event::Reasoning {
                    item: index,
                    summary,
                    piece,
                })?;
            }
        }
        Ok(())
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
            return Err(broken("a call without an id or a name"));
        };
        self.called = true;
        self.state(index)?.lead = (!custom).then(Lead::default);
        emit(Event::Call {
            item: index,
            call: Call { id, name, custom },
        })
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

    /// Handles a complete item: passes on the texts of which no event has arrived.
    fn item(&mut self, index: u64, raw: &RawValue, emit: Emit<'_>) -> Result<(), Error> {
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
                            self.part(index, place, true, text, false, emit)?;
                        }
                        _ => {
                            let text = given(part.text).unwrap_or_default();
                            self.part(index, place, false, text, false, emit)?;
                        }
                    }
                }
            }
            "reasoning" => {
                if self.state(index)?.summary.is_none() {
                    for (place, part) in (0..).zip(parts(item.content)) {
                        let text = given(part.text).unwrap_or_default();
                        self.thought(index, false, place, text, emit)?;
                    }
                }
                if self.state(index)?.summary.is_none() {
                    for (place, part) in (0..).zip(parts(item.summary)) {
                        let text = given(part.text).unwrap_or_default();
                        self.thought(index, true, place, text, emit)?;
                    }
                }
                sealed = item.sealed();
            }
            "function_call" | "custom_tool_call" => {
                self.call(index, raw, emit)?;
                let whole = given(item.arguments).or_else(|| given(item.input));
                self.arguments(index, whole.unwrap_or_default(), false, emit)?;
            }
            // The vendor's own tools, and unknown items, have no counterpart.
            _ => {}
        }
        if let Some(json) = &sealed {
            emit(Event::Proof {
                item: index,
                proof: Proof::Item(json),
            })?;
        }
        let item = self.state(index)?;
        item.done = true;
        arguments(index, item.lead.map_or("", Lead::cut), emit)?;
        let implied = false;
        emit(Event::Done {
            item: index,
            implied,
        })
    }

    fn finish(&mut self, response: &Response<'_>, emit: Emit<'_>) -> Result<(), Error> {
        let stop = response.stop()?;
        let output = response.output.as_deref().unwrap_or_default();
        for (index, item) in (0..).zip(output) {
            // No event has announced or completed these items.
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
        emit(Event::End(
            response.usage.and_then(usage).unwrap_or_default(),
        ))
    }
}

/// Reads the usage of a responses answer, with the code that also reads it for the charge. `None` if it counts nothing.
fn usage(usage: &RawValue) -> Option<Counts> {
    let counted = responses_usage(usage.get())?;
    let [details] = members(usage.get(), &["output_tokens_details"]).ok()?;
    let reasoning = details
        .and_then(|json| counts(json, &["reasoning_tokens"]))
        .and_then(|[reasoning]| reasoning.tokens);
    let reasoning = reasoning.filter(|reasoning| *reasoning > 0);
    Some(Counts::new(&counted.usage, reasoning))
}

/// Returns the error that the event reports, with the vendor's own message.
fn failed(wire: &Wire<'_>) -> Error {
    let of_response = wire.response.as_ref().and_then(|response| response.error);
    let text = wire.error.or(of_response).or(wire.message);
    vendor_error(text.map_or("", RawValue::get))
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
            return Err(vendor_error(error.get()));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<Counts> {
        usage(&RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn callers_see_the_charged_usage() {
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

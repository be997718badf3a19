//! Writes a responses answer while its content arrives: its items, their parts, and the events about them.
//!
//! Texts are stored and written JSON-escaped, without quotes. Several items may be open at once, so no item waits for
//! another. `.done` events and the last event repeat all deltas, so these are stored; a stream stores at most
//! [`KEPT_BYTES_MAX`].

mod close;
mod item;

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

use bytes::BytesMut;
use serde::de::IgnoredAny;

use self::item::{Call, Item, ItemId, Part, Reasoning, ReasoningNames, part_json};
use super::{asked::Asked, capsule, usage::Counts};
use crate::{
    error::Error,
    stream_progress::{Created, StreamProgress},
    translate::{
        chat_state::Kept,
        messages::{Stop, put},
        wire::too_much,
    },
};

/// The maximum bytes of text, arguments and thinking that a stream may store.
pub(super) const KEPT_BYTES_MAX: usize = 4 << 20;
/// The largest number of items in one answer.
const ITEMS_MAX: usize = 4_096;

/// Writes one answer in the responses format.
#[derive(Debug)]
pub(super) struct Writer {
    asked: Asked,
    /// The vendor's name of the model, as a JSON string.
    model: String,
    sequence: u64,
    items: Vec<Item>,
    /// The index of the message or reasoning item that is open.
    open: Option<usize>,
    kept_bytes: usize,
    /// Whether a plain answer is written, without events.
    silent: bool,
    begun: bool,
    progress: StreamProgress,
    /// State for a chat vendor that was not put into an item yet.
    pub(super) state: Kept,
}

/// The proof of a messages vendor's thinking, with which the thinking can be sent back to the vendor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Thought<'t> {
    /// The vendor's signature of thinking that people can read.
    Signed(&'t str),
    /// The data of thinking that only the vendor can read.
    Redacted(&'t str),
}

impl Writer {
    /// Creates the writer of one answer. `silent`: a plain answer, without events.
    pub(super) fn new(asked: Asked, silent: bool) -> Self {
        Self {
            asked,
            model: String::new(),
            sequence: 0,
            items: Vec::new(),
            open: None,
            kept_bytes: 0,
            silent,
            begun: false,
            progress: StreamProgress::default(),
            state: Kept::default(),
        }
    }

    /// Returns the position of the stream, for code that must end it early.
    pub(super) fn progress(&self) -> StreamProgress {
        self.progress.clone()
    }

    /// Writes a keep-alive.
    pub(super) fn alive(&mut self, out: &mut BytesMut) {
        if self.begun {
            self.event("keepalive", format_args!(""), out);
        } else {
            out.extend_from_slice(b": keep-alive\n\n");
        }
    }

    /// Returns whether the answer has begun.
    pub(super) fn begun(&self) -> bool {
        self.begun
    }

    /// Writes the first two events. `model` is the vendor's name of the model, as a JSON string.
    pub(super) fn begin(&mut self, model: &str, out: &mut BytesMut) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        model.clone_into(&mut self.model);
        if !self.silent {
            self.progress.created(Created {
                id: format!("resp_{}", self.asked.number),
                created_at: self.asked.created,
                model: serde_json::from_str(model).unwrap_or_default(),
            });
        }
        for kind in ["response.created", "response.in_progress"] {
            let response = if self.silent {
                String::new()
            } else {
                self.response("in_progress", "", None, None)
            };
            self.event(kind, format_args!(",\"response\":{response}"), out);
        }
    }

    /// Adds a piece of text or of a refusal to the open message; if no message is open, opens one.
    pub(super) fn text(
        &mut self,
        refusal: bool,
        piece: &str,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        self.keep(piece.len())?;
        let going_on = self
            .open
            .filter(|open| matches!(self.items[*open], Item::Message(_)));
        let index = match going_on {
            Some(index) => index,
            None => self.add_text(Item::Message(Vec::new()), out)?,
        };
        let Item::Message(parts) = &mut self.items[index] else {
            return Ok(());
        };
        let same = parts.last().is_some_and(|part| part.refusal == refusal);
        if !same {
            let before = parts.len().checked_sub(1);
            parts.push(Part {
                refusal,
                text: String::new(),
            });
            let content_index = parts.len() - 1;
            if let Some(before) = before {
                self.part_done(index, before, out);
            }
            let part = part_json(refusal, "");
            self.of_item(
                "response.content_part.added",
                index,
                format_args!(",\"content_index\":{content_index},\"part\":{part}"),
                out,
            );
        }
        let Item::Message(parts) = &mut self.items[index] else {
            return Ok(());
        };
        let content_index = parts.len() - 1;
        parts[content_index].text.push_str(piece);
        let (kind, logprobs) = if refusal {
            ("response.refusal.delta", "")
        } else {
            ("response.output_text.delta", ",\"logprobs\":[]")
        };
        self.of_item(
            kind,
            index,
            format_args!(",\"content_index\":{content_index},\"delta\":\"{piece}\"{logprobs}"),
            out,
        );
        Ok(())
    }

    /// Adds a piece of reasoning that is not encrypted. The caller always gets it.
    pub(super) fn thought(&mut self, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        let going_on = self.open.filter(
            |open| matches!(&self.items[*open], Item::Reasoning(reasoning) if !reasoning.summary),
        );
        let index = match going_on {
            Some(index) => index,
            None => self.begin_reasoning(false, true, out)?,
        };
        self.reasoning_piece(index, piece, out)
    }

    /// Begins the thinking of a messages vendor. The caller gets an item for it only if it requested a summary or
    /// encrypted reasoning.
    pub(super) fn begin_thinking(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        if self.asked.summary || self.asked.encrypted {
            self.begin_reasoning(true, self.asked.summary, out)?;
        } else {
            self.close_open(out);
        }
        Ok(())
    }

    /// Begins thinking that only the vendor can read. The caller gets an item for it only if it requested encrypted
    /// reasoning.
    pub(super) fn begin_redacted(&mut self, out: &mut BytesMut) -> Result<bool, Error> {
        if self.asked.encrypted {
            self.begin_reasoning(true, false, out)?;
        } else {
            self.close_open(out);
        }
        Ok(self.asked.encrypted)
    }

    /// Adds a piece of a messages vendor's thinking.
    pub(super) fn thinking(&mut self, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        match self.open {
            Some(index) if matches!(self.items[index], Item::Reasoning(_)) => {
                self.reasoning_piece(index, piece, out)
            }
            _ => Ok(()),
        }
    }

    /// Ends the thinking of a messages vendor, whose signature or data goes into the item as a capsule.
    pub(super) fn end_thinking(&mut self, thought: Thought<'_>) -> Result<(), Error> {
        let asked = self.asked.encrypted;
        let Some(index) = self.open.filter(|_| asked) else {
            return Ok(());
        };
        let Item::Reasoning(reasoning) = &mut self.items[index] else {
            return Ok(());
        };
        let blocks = match thought {
            Thought::Signed("") => return Ok(()),
            Thought::Signed(signature) => format!(
                "[{{\"type\":\"thinking\",\"thinking\":\"{}\",\"signature\":\"{signature}\"}}]",
                reasoning.text
            ),
            Thought::Redacted(data) => {
                format!("[{{\"type\":\"redacted_thinking\",\"data\":\"{data}\"}}]")
            }
        };
        let capsule = capsule::seal(&self.asked.vendor, &blocks);
        let bytes = capsule.len();
        reasoning.capsule = Some(capsule);
        self.keep(bytes)
    }

    /// Begins a call of the tool to which the vendor gives this name; ends the open item.
    pub(super) fn begin_call(
        &mut self,
        call_id: &str,
        name: &str,
        out: &mut BytesMut,
    ) -> Result<usize, Error> {
        self.close_open(out);
        self.write_state(out)?;
        self.keep(call_id.len() + name.len())?;
        let mut head = format!("\"call_id\":\"{call_id}\",");
        let known = self.asked.names.get(name);
        let written = match known {
            None => write!(head, "\"name\":\"{name}\""),
            Some(tool) => match &tool.namespace {
                None => write!(head, "\"name\":{}", tool.name),
                Some(namespace) => {
                    write!(head, "\"name\":{},\"namespace\":{namespace}", tool.name)
                }
            },
        };
        written.expect("writing to memory does not fail");
        let custom = known.is_some_and(|tool| tool.custom);
        self.add(
            Item::Call(Call {
                head,
                custom,
                ..Call::default()
            }),
            out,
        )
    }

    /// Adds a piece of a call's arguments.
    pub(super) fn arguments(
        &mut self,
        index: usize,
        piece: &str,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        self.keep(piece.len())?;
        let Item::Call(call) = &mut self.items[index] else {
            return Ok(());
        };
        let (kept, rest) = call.lead.take(piece);
        call.arguments.push_str(kept);
        call.arguments.push_str(rest);
        // The free text is a string within the arguments, so it is written when they are complete.
        if call.custom || (kept.is_empty() && rest.is_empty()) {
            return Ok(());
        }
        self.of_item(
            "response.function_call_arguments.delta",
            index,
            format_args!(",\"delta\":\"{kept}{rest}\""),
            out,
        );
        Ok(())
    }

    /// Returns whether the arguments of a call are truncated.
    pub(super) fn has_cut_arguments(&self) -> bool {
        self.items.iter().any(|item| match item {
            Item::Call(call) if call.lead.begun() => {
                let text = serde_json::from_str::<Cow<'_, str>>(&format!("\"{}\"", call.arguments));
                text.is_ok_and(|text| {
                    serde_json::from_str::<IgnoredAny>(&text).is_err_and(|error| error.is_eof())
                })
            }
            Item::Call(call) => !call.lead.is_none(),
            _ => false,
        })
    }

    /// Ends the open message or reasoning item, if there is one.
    pub(super) fn close_open(&mut self, out: &mut BytesMut) {
        if let Some(index) = self.open.take() {
            self.close(index, "completed", out);
        }
    }

    /// Ends this item of the answer.
    pub(super) fn close_item(&mut self, index: usize, out: &mut BytesMut) {
        if self.open == Some(index) {
            self.open = None;
        }
        self.close(index, "completed", out);
    }

    /// Ends all items, and writes the last event or the plain answer.
    pub(super) fn finish(&mut self, stop: Stop, counts: &Counts, out: &mut BytesMut) {
        let (status, reason) = match stop {
            Stop::EndTurn | Stop::ToolUse => ("completed", None),
            Stop::MaxTokens => ("incomplete", Some("max_output_tokens")),
            Stop::Refusal => ("incomplete", Some("content_filter")),
        };
        self.open = None;
        let last = self.items.len();
        for index in 0..last {
            // Only the last item can be truncated; the others are complete.
            let status = if index + 1 == last {
                status
            } else {
                "completed"
            };
            self.close(index, status, out);
        }
        let mut output = String::with_capacity(self.kept_bytes + 256);
        for item in &self.items {
            if let Item::Done(json) = item {
                if !output.is_empty() {
                    output.push(',');
                }
                output.push_str(json);
            }
        }
        let response = self.response(status, &output, Some(counts), reason);
        if self.silent {
            out.extend_from_slice(response.as_bytes());
            return;
        }
        let kind = if reason.is_none() {
            "response.completed"
        } else {
            "response.incomplete"
        };
        self.event(kind, format_args!(",\"response\":{response}"), out);
    }

    /// Writes the state for a chat vendor that is left, if any, as an item of its own.
    pub(super) fn write_state(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        if !self.state.needs_block() {
            return Ok(());
        }
        let capsule = self.state.seal(&self.asked.vendor);
        self.keep(capsule.len())?;
        let index = self.begin_reasoning(true, false, out)?;
        if let Item::Reasoning(reasoning) = &mut self.items[index] {
            reasoning.capsule = Some(capsule);
        }
        self.close_item(index, out);
        Ok(())
    }

    fn begin_reasoning(
        &mut self,
        summary: bool,
        shown: bool,
        out: &mut BytesMut,
    ) -> Result<usize, Error> {
        let reasoning = Reasoning {
            summary,
            shown,
            ..Reasoning::default()
        };
        self.add_text(Item::Reasoning(reasoning), out)
    }

    fn reasoning_piece(
        &mut self,
        index: usize,
        piece: &str,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        if piece.is_empty() {
            return Ok(());
        }
        self.keep(piece.len())?;
        let Item::Reasoning(reasoning) = &mut self.items[index] else {
            return Ok(());
        };
        let (first, summary) = (reasoning.text.is_empty(), reasoning.summary);
        reasoning.text.push_str(piece);
        if !reasoning.shown {
            return Ok(());
        }
        let names = ReasoningNames::of(summary);
        if first {
            self.of_item(
                names.part_added,
                index,
                format_args!(
                    ",\"{}\":0,\"part\":{{\"type\":\"{}\",\"text\":\"\"}}",
                    names.index, names.part
                ),
                out,
            );
        }
        self.of_item(
            names.delta,
            index,
            format_args!(",\"{}\":0,\"delta\":\"{piece}\"", names.index),
            out,
        );
        Ok(())
    }

    /// Ends the open item, and adds this item as the open one.
    fn add_text(&mut self, item: Item, out: &mut BytesMut) -> Result<usize, Error> {
        self.close_open(out);
        let index = self.add(item, out)?;
        self.open = Some(index);
        Ok(index)
    }

    fn add(&mut self, item: Item, out: &mut BytesMut) -> Result<usize, Error> {
        if self.items.len() == ITEMS_MAX {
            return Err(too_much(format!("more than {ITEMS_MAX} items")));
        }
        let index = self.items.len();
        self.items.push(item);
        if !self.silent {
            let json = self.items[index].json(self.item_id(index), "in_progress");
            self.event(
                "response.output_item.added",
                format_args!(",\"output_index\":{index},\"item\":{json}"),
                out,
            );
        }
        Ok(index)
    }

    fn item_id(&self, index: usize) -> ItemId {
        ItemId {
            prefix: self.items[index].prefix(),
            number: self.asked.number,
            index,
        }
    }

    /// Writes an event about the item with this index.
    fn of_item(&mut self, kind: &str, index: usize, rest: fmt::Arguments<'_>, out: &mut BytesMut) {
        if self.silent {
            return;
        }
        let id = self.item_id(index);
        self.event(
            kind,
            format_args!(",\"item_id\":\"{id}\",\"output_index\":{index}{rest}"),
            out,
        );
    }

    fn event(&mut self, kind: &str, rest: fmt::Arguments<'_>, out: &mut BytesMut) {
        if self.silent {
            return;
        }
        let number = self.sequence;
        self.sequence += 1;
        self.progress.number(self.sequence);
        put(
            out,
            format_args!(
                "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number}{rest}}}\n\n"
            ),
        );
    }

    fn response(
        &self,
        status: &str,
        output: &str,
        counts: Option<&Counts>,
        reason: Option<&str>,
    ) -> String {
        let Asked {
            number,
            created,
            echo,
            ..
        } = &self.asked;
        let model = &self.model;
        let usage = counts.map_or_else(|| "null".to_owned(), Counts::json);
        let details = reason.map_or_else(
            || "null".to_owned(),
            |reason| format!("{{\"reason\":\"{reason}\"}}"),
        );
        format!(
            "{{\"id\":\"resp_{number}\",\"object\":\"response\",\"created_at\":{created},\
             \"status\":\"{status}\",\"model\":{model},\"output\":[{output}],\"usage\":{usage},\
             \"error\":null,\"incomplete_details\":{details},{echo}}}"
        )
    }

    pub(super) fn keep(&mut self, bytes: usize) -> Result<(), Error> {
        self.kept_bytes += bytes;
        // The size of a plain answer was limited when it was read.
        if self.kept_bytes > KEPT_BYTES_MAX && !self.silent {
            return Err(too_much(format!(
                "more than {KEPT_BYTES_MAX} bytes of answer"
            )));
        }
        Ok(())
    }
}

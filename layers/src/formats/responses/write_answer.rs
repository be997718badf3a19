//! Writes an answer in the responses format: its items, their parts, and the events about them.
//!
//! Several items may be open at once, so no item waits for another. `.done` events and the last event repeat all deltas,
//! so these are stored; a stream stores at most [`KEPT_BYTES_MAX`].

mod close;
mod item;

use std::fmt::{self, Write as _};

use bytes::BytesMut;

use self::item::{Call, Item, ItemId, Part, Reasoning, ReasoningNames, part_json};
use super::super::turn::{
    Call as NewCall, Counts, Event, KEPT_BYTES_MAX, Proof, Stop, Writer as Write, put,
};
use crate::{
    error::Error,
    formats::{capsule, chat::state::Kept, responses::requested::RequestEcho, wire::too_much},
    stream_progress::{Created, StreamProgress},
};

/// The largest number of items in one answer.
const ITEMS_MAX: usize = 4_096;

/// Writes one answer in the responses format.
#[derive(Debug)]
pub(crate) struct Writer {
    requested: RequestEcho,
    /// The vendor's name of the model, as a JSON string.
    model: String,
    sequence: u64,
    items: Vec<Item>,
    /// The item and the index of each tool call.
    calls: Vec<(u64, usize)>,
    /// The index of the message or reasoning item that is open.
    open: Option<usize>,
    /// The index of the item that its vendor has ended. It is closed when another item follows: only then it is known
    /// that it was not truncated.
    ended: Option<usize>,
    kept_bytes: usize,
    /// Whether a plain answer is written, without events.
    silent: bool,
    begun: bool,
    stop: Option<Stop>,
    progress: StreamProgress,
    /// State of a chat vendor that was not put into an item yet.
    state: Kept,
}

impl Writer {
    /// Creates the writer of one answer. `silent`: a plain answer, without events.
    pub(crate) fn new(requested: RequestEcho, silent: bool) -> Self {
        Self {
            requested,
            model: String::new(),
            sequence: 0,
            items: Vec::new(),
            calls: Vec::new(),
            open: None,
            ended: None,
            kept_bytes: 0,
            silent,
            begun: false,
            stop: None,
            progress: StreamProgress::default(),
            state: Kept::default(),
        }
    }

    /// Writes a keep-alive.
    fn alive(&mut self, out: &mut BytesMut) {
        if self.begun {
            self.event("keepalive", format_args!(""), out);
        } else {
            out.extend_from_slice(b": keep-alive\n\n");
        }
    }

    /// Writes the first two events. `model` is the vendor's name of the model, as a JSON string.
    fn begin(&mut self, model: &str, out: &mut BytesMut) {
        self.begun = true;
        model.clone_into(&mut self.model);
        if !self.silent {
            self.progress.created(Created {
                id: format!("resp_{}", self.requested.number),
                created_at: self.requested.created,
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
    fn text(&mut self, refusal: bool, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        self.close_ended(out);
        if piece.is_empty() {
            return Ok(());
        }
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

    /// Adds a piece of reasoning. The caller always gets reasoning itself. It gets an item for a summary only
    /// if it requested a summary or encrypted reasoning.
    fn reasoning(&mut self, summary: bool, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        self.close_ended(out);
        let going_on = self.open.filter(
            |open| matches!(&self.items[*open], Item::Reasoning(it) if it.summary == summary),
        );
        let shown = !summary || self.requested.summary;
        let index = match going_on {
            Some(index) => index,
            None if shown || self.requested.encrypted => {
                self.begin_reasoning(summary, shown, out)?
            }
            None => {
                self.close_open(out);
                return Ok(());
            }
        };
        self.reasoning_piece(index, piece, out)
    }

    fn proof(&mut self, proof: Proof<'_>, out: &mut BytesMut) -> Result<(), Error> {
        match proof {
            Proof::State(field, details) => self.state.fields(field, details),
            Proof::CallSignature(id, signature) => self.state.sign(id, signature),
            Proof::Signature(piece) => {
                self.keep(piece.len())?;
                if let Some(index) = self.open
                    && let Item::Reasoning(reasoning) = &mut self.items[index]
                {
                    reasoning.signature.push_str(piece);
                }
            }
            Proof::Redacted(data) => {
                self.close_open(out);
                if self.requested.encrypted {
                    let json = format!("[{{\"type\":\"redacted_thinking\",\"data\":\"{data}\"}}]");
                    let capsule = capsule::seal(&self.requested.vendor, &json);
                    self.ended = Some(self.add_sealed(capsule, out)?);
                }
            }
            // The proof of a vendor of this format.
            Proof::Item(_) => {}
        }
        Ok(())
    }

    /// Adds an item of reasoning that only the vendor can read.
    fn add_sealed(&mut self, capsule: String, out: &mut BytesMut) -> Result<usize, Error> {
        self.keep(capsule.len())?;
        let index = self.begin_reasoning(true, false, out)?;
        if let Item::Reasoning(reasoning) = &mut self.items[index] {
            reasoning.capsule = Some(capsule);
        }
        Ok(index)
    }

    /// Begins a call; ends the open item.
    fn call(&mut self, item: u64, call: NewCall<'_>, out: &mut BytesMut) -> Result<(), Error> {
        let NewCall { id, name, .. } = call;
        self.close_open(out);
        self.write_state(out)?;
        self.keep(id.len() + name.len())?;
        let mut head = format!("\"call_id\":\"{id}\",");
        let known = self.requested.names.get(name);
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
        let call = Call {
            head,
            custom,
            ..Call::default()
        };
        let index = self.add(Item::Call(call), out)?;
        self.calls.push((item, index));
        Ok(())
    }

    /// Adds a piece of a call's arguments.
    fn arguments(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        self.keep(piece.len())?;
        let Some((index, call)) = self.find_call(item) else {
            return Ok(());
        };
        call.arguments.push_str(piece);
        // The free text is a string within the arguments, so it is written when they are complete.
        if !call.custom {
            self.of_item(
                "response.function_call_arguments.delta",
                index,
                format_args!(",\"delta\":\"{piece}\""),
                out,
            );
        }
        Ok(())
    }

    fn find_call(&mut self, item: u64) -> Option<(usize, &mut Call)> {
        let (_, index) = *self.calls.iter().rfind(|call| call.0 == item)?;
        match &mut self.items[index] {
            Item::Call(call) => Some((index, call)),
            _ => None,
        }
    }

    /// Handles the end of an item, as far as the vendor reports it. A message may go on in the next piece of text.
    fn done(&mut self, item: u64, out: &mut BytesMut) {
        let open = self.open;
        let reasoning = open.filter(|open| matches!(self.items[*open], Item::Reasoning(_)));
        let call = self.find_call(item).map(|(index, _)| index);
        if let Some(index) = call.or(reasoning) {
            self.close_ended(out);
            self.ended = Some(index);
        }
    }

    fn close_ended(&mut self, out: &mut BytesMut) {
        if let Some(index) = self.ended.take() {
            self.close_item(index, out);
        }
    }

    /// Ends the open message or reasoning item, if there is one.
    fn close_open(&mut self, out: &mut BytesMut) {
        self.close_ended(out);
        if let Some(index) = self.open.take() {
            self.close(index, "completed", out);
        }
    }

    /// Ends this item of the answer.
    fn close_item(&mut self, index: usize, out: &mut BytesMut) {
        if self.open == Some(index) {
            self.open = None;
        }
        self.close(index, "completed", out);
    }

    /// Ends all items, and writes the last event or the plain answer.
    fn finish(&mut self, counts: &Counts, out: &mut BytesMut) -> Result<(), Error> {
        let (status, reason) = match self.stop {
            Some(Stop::EndTurn | Stop::ToolUse) | None => ("completed", None),
            Some(Stop::MaxTokens) => ("incomplete", Some("max_output_tokens")),
            Some(Stop::Refusal) => ("incomplete", Some("content_filter")),
        };
        if !self.calls.is_empty() {
            self.write_state(out)?;
        }
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
            return Ok(());
        }
        let kind = if reason.is_none() {
            "response.completed"
        } else {
            "response.incomplete"
        };
        self.event(kind, format_args!(",\"response\":{response}"), out);
        Ok(())
    }

    /// Writes the state of a chat vendor that is left, if any, as an item of its own.
    fn write_state(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        if !self.state.needs_block() {
            return Ok(());
        }
        let capsule = self.state.seal(&self.requested.vendor);
        let index = self.add_sealed(capsule, out)?;
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
            number: self.requested.number,
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
        let RequestEcho {
            number,
            created,
            echo,
            ..
        } = &self.requested;
        let model = &self.model;
        let usage = counts.map_or_else(|| "null".to_owned(), usage);
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

    fn keep(&mut self, bytes: usize) -> Result<(), Error> {
        self.kept_bytes += bytes;
        // An answer that is not streamed was limited in size when it was read.
        if self.kept_bytes > KEPT_BYTES_MAX && !self.silent {
            return Err(too_much(format!(
                "more than {KEPT_BYTES_MAX} bytes of answer"
            )));
        }
        Ok(())
    }
}

impl Write for Writer {
    fn write(&mut self, event: Event<'_>, out: &mut BytesMut) -> Result<(), Error> {
        match event {
            Event::Begin { model, .. } => self.begin(model, out),
            Event::Text { refusal, piece, .. } => self.text(refusal, piece, out)?,
            Event::Reasoning { summary, piece, .. } => self.reasoning(summary, piece, out)?,
            Event::Proof { proof, .. } => self.proof(proof, out)?,
            Event::Call { item, call } => self.call(item, call, out)?,
            Event::Arguments { item, piece, .. } => self.arguments(item, piece, out)?,
            Event::Done { item, implied } if !implied => self.done(item, out),
            // Several items may be open.
            Event::Done { .. } => {}
            Event::Stop(stop) => self.stop = Some(stop),
            Event::End(counts) => self.finish(&counts, out)?,
            Event::Alive => self.alive(out),
        }
        Ok(())
    }

    fn progress(&self) -> Option<StreamProgress> {
        Some(self.progress.clone())
    }
}

/// Returns the usage: the input includes cached tokens, and the output includes reasoning.
fn usage(counts: &Counts) -> String {
    let Counts {
        written,
        cached,
        output,
        ..
    } = counts;
    let (input, total) = (counts.input(), counts.total());
    let reasoning = counts.reasoning.unwrap_or(0);
    format!(
        "{{\"input_tokens\":{input},\"input_tokens_details\":{{\"cached_tokens\":{cached},\
         \"cache_write_tokens\":{written}}},\"output_tokens\":{output},\
         \"output_tokens_details\":{{\"reasoning_tokens\":{reasoning}}},\"total_tokens\":{total}}}"
    )
}

//! Writes a response in the Responses format: its items, their parts, and the events about them.
//!
//! Several items may be open at once, so no item waits for another. The deltas are stored, because `.done` events and
//! the last event repeat them. A stream stores at most [`KEPT_BYTES_MAX`].

mod close;
mod item;

use std::fmt;

use bytes::BytesMut;

use self::item::{Call, Item, ItemId, Part, Reasoning, ReasoningNames, part_json};
use super::{
    super::turn::{
        Call as NewCall, Counts, Event, KEPT_BYTES_MAX, Proof, Stop, Writer as Write, put,
    },
    usage::write as write_usage,
};
use crate::{
    error::Error,
    formats::{
        capsule,
        chat::{self, state::Kept},
        responses::requested::RequestEcho,
        wire::too_many,
    },
    stream_progress::{Created, StreamProgress},
};

/// The maximum number of items in one response.
const ITEMS_MAX: usize = 4_096;

/// Writes one response in the Responses format.
#[derive(Debug)]
pub(crate) struct Writer {
    requested: RequestEcho,
    /// The vendor's name for the model, as a JSON string.
    model: String,
    items: Vec<Item>,
    /// The item number and the output index of each tool call.
    calls: Vec<(u64, usize)>,
    /// The index of the open message or reasoning item; `None` if none is open.
    open: Option<usize>,
    /// The index of the item that the vendor has ended. It is closed when another item follows, because only then it is
    /// known not to be truncated.
    ended: Option<usize>,
    kept_bytes: usize,
    events: Events,
    begun: bool,
    stop: Option<Stop>,
    /// The state of a Chat Completions vendor that has not been put into an item yet.
    state: Kept,
}

impl Writer {
    /// Creates the writer of one response. If `silent`, it writes a plain response without events.
    pub(crate) fn new(requested: RequestEcho, silent: bool) -> Self {
        Self {
            events: Events {
                silent,
                ..Events::default()
            },
            requested,
            model: String::new(),
            items: Vec::new(),
            calls: Vec::new(),
            open: None,
            ended: None,
            kept_bytes: 0,
            begun: false,
            stop: None,
            state: Kept::default(),
        }
    }

    /// Writes a keep-alive in the caller's format.
    fn alive(&mut self, out: &mut BytesMut) {
        if self.begun {
            self.events.write("keepalive", format_args!(""), out);
        } else {
            out.extend_from_slice(chat::KEEP_ALIVE);
        }
    }

    /// Writes the first two events. `model` is the vendor's name for the model, as a JSON string.
    fn begin(&mut self, model: &str, out: &mut BytesMut) {
        self.begun = true;
        model.clone_into(&mut self.model);
        if self.events.silent {
            return;
        }
        self.events.progress.created(Created {
            id: format!("resp_{}", self.requested.number),
            created_at: self.requested.created,
            model: serde_json::from_str(model).unwrap_or_default(),
        });
        for kind in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress", "", None, None);
            let rest = format_args!(",\"response\":{response}");
            self.events.write(kind, rest, out);
        }
    }

    /// Adds a piece of text or of a refusal to the open message. If no message is open, opens one.
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
        let id = self.item_id(index);
        let Item::Message(parts) = &mut self.items[index] else {
            return Ok(());
        };
        if parts.last().is_none_or(|part| part.refusal != refusal) {
            self.events.part_done(id, parts, out);
            parts.push(Part {
                refusal,
                text: String::new(),
            });
            let (content_index, part) = (parts.len() - 1, part_json(refusal, ""));
            let rest = format_args!(",\"content_index\":{content_index},\"part\":{part}");
            self.events
                .of_item("response.content_part.added", id, rest, out);
        }
        let content_index = parts.len() - 1;
        parts[content_index].text.push_str(piece);
        let (kind, logprobs) = if refusal {
            ("response.refusal.delta", "")
        } else {
            ("response.output_text.delta", ",\"logprobs\":[]")
        };
        let rest =
            format_args!(",\"content_index\":{content_index},\"delta\":\"{piece}\"{logprobs}");
        self.events.of_item(kind, id, rest, out);
        Ok(())
    }

    /// Adds a piece of reasoning. The caller always gets reasoning itself, but gets an item with a summary only if it
    /// requested a summary or encrypted reasoning.
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
            // This proof is from a Responses vendor, whose responses to Responses callers are not translated.
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

    /// Begins a tool call, and ends the open item.
    fn call(&mut self, item: u64, call: NewCall<'_>, out: &mut BytesMut) -> Result<(), Error> {
        let NewCall { id, name, .. } = call;
        self.close_open(out);
        self.write_state(out)?;
        self.keep(id.len() + name.len())?;
        let known = self.requested.names.get(name);
        let name = known.map_or_else(|| format!("\"{name}\""), |tool| tool.name.clone());
        let mut head = format!("\"call_id\":\"{id}\",\"name\":{name}");
        if let Some(namespace) = known.and_then(|tool| tool.namespace.as_ref()) {
            head.push_str(&format!(",\"namespace\":{namespace}"));
        }
        let call = Call {
            head,
            name,
            custom: known.is_some_and(|tool| tool.custom),
            arguments: String::new(),
        };
        let index = self.add(Item::Call(call), out)?;
        self.calls.push((item, index));
        Ok(())
    }

    /// Adds a piece of a tool call's arguments.
    fn arguments(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        self.keep(piece.len())?;
        let Some((index, call)) = self.find_call(item) else {
            return Ok(());
        };
        call.arguments.push_str(piece);
        // The free text is a string within the arguments, so it is written when they are complete.
        if !call.custom {
            let id = self.item_id(index);
            let rest = format_args!(",\"delta\":\"{piece}\"");
            self.events
                .of_item("response.function_call_arguments.delta", id, rest, out);
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

    /// Handles the end of an item that the vendor reports. A message may continue with the next piece of text.
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

    /// Ends the open message or reasoning item, if any.
    fn close_open(&mut self, out: &mut BytesMut) {
        self.close_ended(out);
        if let Some(index) = self.open.take() {
            self.close(index, "completed", out);
        }
    }

    /// Ends the item with this index.
    fn close_item(&mut self, index: usize, out: &mut BytesMut) {
        if self.open == Some(index) {
            self.open = None;
        }
        self.close(index, "completed", out);
    }

    /// Ends all items, and writes the last event or the plain response.
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
            // Only the last item can be truncated. All others are complete.
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
        if self.events.silent {
            out.extend_from_slice(response.as_bytes());
            return Ok(());
        }
        let kind = if reason.is_none() {
            "response.completed"
        } else {
            "response.incomplete"
        };
        let rest = format_args!(",\"response\":{response}");
        self.events.write(kind, rest, out);
        Ok(())
    }

    /// Writes the remaining state of a Chat Completions vendor, if any, as an item of its own.
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
        let id = self.item_id(index);
        let Item::Reasoning(reasoning) = &mut self.items[index] else {
            return Ok(());
        };
        if reasoning.shown {
            let names = ReasoningNames::of(reasoning.summary);
            let (place, part) = (names.index, names.part);
            if reasoning.text.is_empty() {
                let part = format_args!("{{\"type\":\"{part}\",\"text\":\"\"}}");
                let rest = format_args!(",\"{place}\":0,\"part\":{part}");
                self.events.of_item(names.part_added, id, rest, out);
            }
            let rest = format_args!(",\"{place}\":0,\"delta\":\"{piece}\"");
            self.events.of_item(names.delta, id, rest, out);
        }
        reasoning.text.push_str(piece);
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
            return Err(too_many(ITEMS_MAX, "output items"));
        }
        let index = self.items.len();
        self.items.push(item);
        if !self.events.silent {
            let json = self.items[index].json(self.item_id(index), "in_progress");
            let rest = format_args!(",\"output_index\":{index},\"item\":{json}");
            self.events.write("response.output_item.added", rest, out);
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

    fn response(
        &self,
        status: &str,
        output: &str,
        counts: Option<&Counts>,
        reason: Option<&str>,
    ) -> String {
        let (requested, model) = (&self.requested, &self.model);
        let (number, created, echo) = (requested.number, requested.created, &requested.echo);
        let usage = counts.map_or_else(|| "null".to_owned(), write_usage);
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
        // The size of a response that is not streamed was limited when it was read.
        if self.kept_bytes > KEPT_BYTES_MAX && !self.events.silent {
            return Err(too_many(KEPT_BYTES_MAX, "bytes"));
        }
        Ok(())
    }
}

impl Write for Writer {
    fn write(&mut self, event: Event<'_>, out: &mut BytesMut) -> Result<(), Error> {
        match event {
            Event::Begin { model, .. } => self.begin(model, out),
            Event::Text(_, refusal, piece) => self.text(refusal, piece, out)?,
            Event::Reasoning(_, summary, piece) => self.reasoning(summary, piece, out)?,
            Event::Proof(_, proof) => self.proof(proof, out)?,
            Event::Call { item, call } => self.call(item, call, out)?,
            Event::Arguments { item, piece, .. } => self.arguments(item, piece, out)?,
            Event::Done(item, false) => self.done(item, out),
            // An implied end closes nothing, because this format allows several open items.
            Event::Done(_, true) => {}
            Event::Stop(stop) => self.stop = Some(stop),
            Event::End(counts) => self.finish(&counts, out)?,
            Event::Alive => self.alive(out),
        }
        Ok(())
    }

    fn progress(&self) -> Option<StreamProgress> {
        Some(self.events.progress.clone())
    }
}

/// Numbers and writes the events of a stream.
#[derive(Debug, Default)]
struct Events {
    /// Whether a plain response is written, without events.
    silent: bool,
    sequence: u64,
    progress: StreamProgress,
}

impl Events {
    fn write(&mut self, kind: &str, rest: fmt::Arguments<'_>, out: &mut BytesMut) {
        if self.silent {
            return;
        }
        let number = self.sequence;
        self.sequence += 1;
        self.progress.number(self.sequence);
        let event = format_args!(
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number}{rest}}}\n\n"
        );
        put(out, event);
    }

    /// Writes an event about the item with this id.
    fn of_item(&mut self, kind: &str, id: ItemId, rest: fmt::Arguments<'_>, out: &mut BytesMut) {
        let index = id.index;
        let rest = format_args!(",\"item_id\":\"{id}\",\"output_index\":{index}{rest}");
        self.write(kind, rest, out);
    }
}

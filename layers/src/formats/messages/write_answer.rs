//! Writes an answer in the messages format, which has one open block at a time.

use std::collections::VecDeque;

use bytes::BytesMut;
use serde_json::value::RawValue;

use super::super::turn::{Call, Counts, Event, Proof, Stop, Writer as Write, check_kept, put};
use crate::{
    error::Error,
    formats::{
        capsule,
        chat::state::Kept,
        origin::Origin,
        wire::{AnswerCx, broken},
    },
};

/// Writes the events of a messages stream, or a plain messages answer.
///
/// A piece of the open block is written at once. A piece of another block waits until the open block has ended, so a
/// stream stores at most 4 MiB.
#[derive(Debug)]
pub(crate) struct Writer {
    origin: Origin,
    thinking_asked: bool,
    /// Whether a plain answer is written and not the events of a stream.
    plain: bool,
    /// The plain answer up to its stop reason, with a block as soon as it has ended.
    answer: String,
    /// The offset in the plain answer at which the blocks begin.
    blocks_at: usize,
    /// The offset in the plain answer of the last thinking's signature, if the signature is the state of a chat vendor.
    signature_at: Option<usize>,
    /// The blocks that have not ended. The first one is open, or is the next to be.
    blocks: VecDeque<Block>,
    /// The number of blocks that were opened so far.
    opened: usize,
    /// The bytes of blocks that have not ended and of content that waits, and those of ids and names of calls.
    kept_bytes: usize,
    called: bool,
    refused: bool,
    stop: Option<Stop>,
    /// The state of a chat vendor that was not put into a block yet.
    state: Option<Kept>,
    /// Capsules with reasoning that the caller does not see. They are written before the next tool call.
    hidden: Vec<String>,
}

#[derive(Debug)]
struct Block {
    item: u64,
    kind: Kind,
    open: bool,
    /// Content that has arrived and was not written yet.
    waiting: String,
    /// The signature or data of thinking.
    capsule: Option<String>,
    end: End,
}

#[derive(Debug)]
enum Kind {
    Text,
    Thinking,
    /// A tool call: its id, its name, and whether arguments were written.
    Call(String, String, bool),
}

impl Kind {
    /// Returns the type of a delta of the block, and the name of its field.
    const fn delta(&self) -> (&'static str, &'static str) {
        match self {
            Self::Text => ("text_delta", "text"),
            Self::Thinking => ("thinking_delta", "thinking"),
            Self::Call(..) => ("input_json_delta", "partial_json"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Running,
    /// The block ends when another one waits.
    Implied,
    Done,
}

impl Writer {
    /// Creates the writer of one answer. `origin` has the vendor's name and the names of tools.
    pub(crate) fn new(origin: Origin, cx: AnswerCx, plain: bool) -> Self {
        Self {
            origin,
            thinking_asked: cx.thinking_asked,
            plain,
            answer: String::new(),
            blocks_at: 0,
            signature_at: None,
            blocks: VecDeque::new(),
            opened: 0,
            kept_bytes: 0,
            called: false,
            refused: false,
            stop: None,
            state: None,
            hidden: Vec::new(),
        }
    }

    /// Writes `message_start`. Its input count is 0, because the vendor has not reported usage yet; the last event has
    /// the count.
    fn begin(&mut self, id: &str, model: &str, out: &mut BytesMut) {
        let message = format_args!(
            "{{\"id\":{id},\"type\":\"message\",\"role\":\"assistant\",\"model\":{model},\"content\":["
        );
        if self.plain {
            self.answer = message.to_string();
            self.blocks_at = self.answer.len();
            return;
        }
        put(
            out,
            format_args!(
                "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{message}],\
                 \"stop_reason\":null,\"stop_sequence\":null,\"usage\":{}}}}}\n\n",
                usage(&Counts::default())
            ),
        );
    }

    /// Returns the block to which text or reasoning of this item belongs; if there is none, adds one.
    fn block(&mut self, item: u64, kind: Kind) -> &mut Block {
        let last = self.blocks.len().wrapping_sub(1);
        let goes_on = |(index, block): &(usize, &Block)| {
            let ended = block.end == End::Done || (block.end == End::Implied && *index != last);
            block.item == item && !ended
        };
        let found = self.blocks.iter().enumerate().find(goes_on);
        let index = found.map_or(self.blocks.len(), |(index, _)| index);
        if index == self.blocks.len() {
            self.kept_bytes += size_of::<Block>();
            self.blocks.push_back(Block {
                item,
                kind,
                open: false,
                waiting: String::new(),
                capsule: None,
                end: End::Running,
            });
        }
        &mut self.blocks[index]
    }

    fn reasoning(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        if !self.thinking_asked {
            if let Some(state) = &mut self.state {
                state.hide(piece);
            }
            return Ok(());
        }
        self.piece(item, Kind::Thinking, piece, out)
    }

    fn piece(
        &mut self,
        item: u64,
        kind: Kind,
        piece: &str,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        if piece.is_empty() || self.write_piece(item, piece, out) {
            return Ok(());
        }
        let block = self.block(item, kind);
        block.end = End::Running;
        block.waiting.push_str(piece);
        self.kept_bytes += piece.len();
        self.advance(out)
    }

    /// Writes a piece of the open block without storing it. Returns whether the block of this item is open.
    fn write_piece(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> bool {
        let front = self.blocks.front_mut();
        let Some(open) = front.filter(|block| block.open && block.item == item) else {
            return false;
        };
        match &mut open.kind {
            Kind::Call(_, _, begun) => *begun = true,
            Kind::Text | Kind::Thinking => open.end = End::Running,
        }
        let (kind, field) = open.kind.delta();
        self.delta(kind, field, piece, out);
        true
    }

    fn call(&mut self, item: u64, call: Call<'_>, out: &mut BytesMut) -> Result<(), Error> {
        // A messages caller cannot have tools with free text, so calls of such tools are left out.
        if call.custom {
            return Ok(());
        }
        self.called = true;
        let name = self.origin.name(call.name);
        self.kept_bytes += call.id.len() + name.len();
        let kind = Kind::Call(call.id.to_owned(), name.to_owned(), false);
        self.block(item, kind);
        self.advance(out)
    }

    fn arguments(
        &mut self,
        item: u64,
        piece: &str,
        fault: Option<&'static str>,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        if let Some(fault) = fault {
            return Err(broken(fault));
        }
        if self.write_piece(item, piece, out) {
            return Ok(());
        }
        if let Some(block) = self.blocks.iter_mut().find(|block| block.item == item) {
            block.waiting.push_str(piece);
            self.kept_bytes += piece.len();
        }
        self.advance(out)
    }

    fn proof(&mut self, item: u64, proof: Proof<'_>) {
        match proof {
            Proof::State(field, details) => {
                let state = self.state.get_or_insert_default();
                state.fields(field, details);
            }
            Proof::CallSignature(id, signature) => {
                self.state.get_or_insert_default().sign(id, signature);
            }
            Proof::Item(json) => {
                let capsule = capsule::seal(&self.origin.vendor, json);
                if self.thinking_asked {
                    self.block(item, Kind::Thinking).capsule = Some(capsule);
                } else if check_kept(self.kept_bytes + capsule.len()).is_ok() {
                    self.kept_bytes += capsule.len();
                    self.hidden.push(capsule);
                }
            }
            // The proofs of a vendor of this format.
            Proof::Signature(_) | Proof::Redacted(_) => {}
        }
    }

    /// Marks a block as complete.
    fn done(&mut self, item: u64, implied: bool, out: &mut BytesMut) -> Result<(), Error> {
        let end = if implied { End::Implied } else { End::Done };
        let running = |block: &&mut Block| block.item == item && block.end != End::Done;
        if let Some(block) = self.blocks.iter_mut().rfind(running) {
            block.end = end;
        }
        self.advance(out)
    }

    /// Writes the content of the first block. When it has ended, continues with the next.
    fn advance(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        while let Some(mut block) = self.blocks.pop_front() {
            let ends = match block.end {
                End::Running => false,
                End::Implied => !self.blocks.is_empty(),
                End::Done => true,
            };
            if ends || !self.plain {
                self.write_block(&mut block, ends, out);
            }
            if !ends {
                self.blocks.push_front(block);
                break;
            }
            self.kept_bytes -= size_of::<Block>();
        }
        // The size of a plain answer was limited when it was read, and a plain answer writes a block only when it is
        // complete.
        if self.plain {
            return Ok(());
        }
        check_kept(self.kept_bytes)
    }

    fn write_block(&mut self, block: &mut Block, ends: bool, out: &mut BytesMut) {
        let waiting = std::mem::take(&mut block.waiting);
        self.kept_bytes -= waiting.len();
        // The caller does not see this reasoning. If it has a capsule, the capsule is written as redacted thinking.
        if matches!(block.kind, Kind::Thinking) && !block.open && waiting.is_empty() {
            if let Some(capsule) = block.capsule.take().filter(|_| ends) {
                self.redacted(&capsule, out);
            }
            return;
        }
        if matches!(block.kind, Kind::Call(..)) && !block.open {
            self.write_hidden(out);
        }
        if self.plain {
            return self.write_plain(block, &waiting);
        }
        if !std::mem::replace(&mut block.open, true) {
            let block = match &block.kind {
                Kind::Text => r#"{"type":"text","text":""}"#.to_owned(),
                Kind::Thinking => r#"{"type":"thinking","thinking":"","signature":""}"#.to_owned(),
                Kind::Call(id, name, _) => format!(
                    "{{\"type\":\"tool_use\",\"id\":\"{id}\",\"name\":\"{name}\",\"input\":{{}}}}"
                ),
            };
            self.start(&block, out);
        }
        if let Kind::Call(_, _, begun) = &mut block.kind {
            *begun |= !waiting.is_empty();
        }
        let (kind, field) = block.kind.delta();
        self.delta(kind, field, &waiting, out);
        if !ends {
            return;
        }
        match &block.kind {
            Kind::Call(_, _, false) => self.delta(kind, field, "{}", out),
            Kind::Thinking => {
                let signature = block.capsule.take().unwrap_or_else(|| self.signature());
                self.delta("signature_delta", "signature", &signature, out);
            }
            Kind::Text | Kind::Call(..) => {}
        }
        self.stop_block(out);
    }

    fn write_plain(&mut self, block: &mut Block, waiting: &str) {
        let json = match &block.kind {
            Kind::Text => format!("{{\"type\":\"text\",\"text\":\"{waiting}\"}}"),
            Kind::Thinking => {
                let capsule = block.capsule.take();
                let later = capsule.is_none() && self.state.is_some();
                let signature = match capsule {
                    Some(capsule) => capsule,
                    None if later => String::new(),
                    None => self.signature(),
                };
                let thinking = format!(
                    "{{\"type\":\"thinking\",\"thinking\":\"{waiting}\",\"signature\":\"{signature}\"}}"
                );
                self.push(&thinking);
                self.signature_at = later.then(|| self.answer.len() - 2);
                return;
            }
            Kind::Call(id, name, _) => format!(
                "{{\"type\":\"tool_use\",\"id\":\"{id}\",\"name\":\"{name}\",\"input\":{}}}",
                object(waiting)
            ),
        };
        self.push(&json);
    }

    /// Adds a block to the plain answer.
    fn push(&mut self, block: &str) {
        if self.answer.len() > self.blocks_at {
            self.answer.push(',');
        }
        self.answer.push_str(block);
    }

    /// Returns the signature for thinking that the vendor did not sign: the state of a chat vendor, or an empty capsule.
    /// Messages vendors reject thinking without their signature, and blocks with a capsule are removed before a request
    /// is sent to one.
    fn signature(&mut self) -> String {
        let vendor = &self.origin.vendor;
        let state = self.state.as_mut().map(|state| state.seal(vendor));
        state.unwrap_or_else(|| capsule::seal(vendor, "{}"))
    }

    /// Writes what the vendor needs back with the call that follows, if anything.
    fn write_hidden(&mut self, out: &mut BytesMut) {
        for capsule in std::mem::take(&mut self.hidden) {
            self.kept_bytes -= capsule.len();
            self.redacted(&capsule, out);
        }
        // A plain answer has the whole state in one block.
        if !self.plain {
            self.write_state(out);
        }
    }

    fn write_state(&mut self, out: &mut BytesMut) {
        if self.state.as_ref().is_some_and(Kept::needs_block) {
            let data = self.signature();
            self.redacted(&data, out);
        }
    }

    fn redacted(&mut self, capsule: &str, out: &mut BytesMut) {
        let block = format!("{{\"type\":\"redacted_thinking\",\"data\":\"{capsule}\"}}");
        if self.plain {
            return self.push(&block);
        }
        self.start(&block, out);
        self.stop_block(out);
    }

    fn start(&mut self, block: &str, out: &mut BytesMut) {
        let index = self.opened;
        self.opened += 1;
        put(
            out,
            format_args!(
                "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":{index},\
                 \"content_block\":{block}}}\n\n"
            ),
        );
    }

    fn delta(&self, kind: &str, field: &str, piece: &str, out: &mut BytesMut) {
        if piece.is_empty() {
            return;
        }
        let index = self.opened - 1;
        put(
            out,
            format_args!(
                "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\
                 \"delta\":{{\"type\":\"{kind}\",\"{field}\":\"{piece}\"}}}}\n\n"
            ),
        );
    }

    fn stop_block(&self, out: &mut BytesMut) {
        let index = self.opened - 1;
        put(
            out,
            format_args!(
                "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"
            ),
        );
    }

    fn end(&mut self, counts: &Counts, out: &mut BytesMut) -> Result<(), Error> {
        for block in &mut self.blocks {
            block.end = End::Done;
        }
        self.advance(out)?;
        let (reason, usage) = (self.stop_reason(), usage(counts));
        if self.plain {
            self.end_plain();
            let answer = &self.answer;
            put(
                out,
                format_args!(
                    "{answer}],\"stop_reason\":\"{reason}\",\"stop_sequence\":null,\"usage\":{usage}}}"
                ),
            );
            return Ok(());
        }
        if self.called {
            self.write_state(out);
        }
        put(
            out,
            format_args!(
                "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":\
                 {{\"stop_reason\":\"{reason}\",\"stop_sequence\":null}},\"usage\":{usage}}}\n\n\
                 event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
            ),
        );
        Ok(())
    }

    /// Puts the state of a chat vendor into the plain answer: into its thinking or, if it has none but the tool calls
    /// need state, into a block of its own before all others.
    fn end_plain(&mut self) {
        if let Some(at) = self.signature_at {
            let signature = self.signature();
            self.answer.insert_str(at, &signature);
        } else if self.called && self.state.as_ref().is_some_and(Kept::needs_block) {
            let data = self.signature();
            let block = format!("{{\"type\":\"redacted_thinking\",\"data\":\"{data}\"}},");
            self.answer.insert_str(self.blocks_at, &block);
        }
    }

    /// Returns the stop reason. It depends on the tool calls, too: many vendors send the usual end after a tool call,
    /// and some announce a call without one, which would make agents wait for ever.
    fn stop_reason(&self) -> &'static str {
        match self.stop {
            _ if self.refused => "refusal",
            Some(Stop::Refusal) => "refusal",
            Some(Stop::MaxTokens) => "max_tokens",
            Some(Stop::ToolUse | Stop::EndTurn) | None if self.called => "tool_use",
            Some(Stop::ToolUse | Stop::EndTurn) | None => "end_turn",
        }
    }
}

impl Write for Writer {
    fn write(&mut self, event: Event<'_>, out: &mut BytesMut) -> Result<(), Error> {
        match event {
            Event::Begin { id, model } => self.begin(id, model, out),
            Event::Text {
                item,
                refusal,
                piece,
            } => {
                self.refused |= refusal;
                self.piece(item, Kind::Text, piece, out)?;
            }
            Event::Reasoning { item, piece, .. } => self.reasoning(item, piece, out)?,
            Event::Proof { item, proof } => self.proof(item, proof),
            Event::Call { item, call } => self.call(item, call, out)?,
            Event::Arguments { item, piece, fault } => self.arguments(item, piece, fault, out)?,
            Event::Done { item, implied } => self.done(item, implied, out)?,
            Event::Stop(stop) => self.stop = Some(stop),
            Event::End(counts) => self.end(&counts, out)?,
            Event::Alive => out.extend_from_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n"),
        }
        Ok(())
    }
}

/// Returns the arguments as a JSON object. If the model wrote something else, such as truncated JSON, that is put into
/// an object.
fn object(escaped: &str) -> String {
    if escaped.is_empty() {
        return "{}".to_owned();
    }
    let quoted = format!("\"{escaped}\"");
    let text: Option<String> = serde_json::from_str(&quoted).ok();
    let value = text.as_deref().map(serde_json::from_str::<&RawValue>);
    match value {
        Some(Ok(value)) if value.get().starts_with('{') => value.get().to_owned(),
        Some(Ok(value)) => format!("{{\"arguments\":{}}}", value.get()),
        _ => format!("{{\"arguments\":{quoted}}}"),
    }
}

/// Returns the usage, in which the input includes neither cache reads nor cache writes.
fn usage(counts: &Counts) -> String {
    let Counts {
        fresh,
        written,
        cached,
        output,
        reasoning,
    } = counts;
    let details = reasoning.map_or_else(String::new, |reasoning| {
        format!(",\"output_tokens_details\":{{\"thinking_tokens\":{reasoning}}}")
    });
    format!(
        "{{\"input_tokens\":{fresh},\"cache_creation_input_tokens\":{written},\
         \"cache_read_input_tokens\":{cached},\"output_tokens\":{output}{details}}}"
    )
}

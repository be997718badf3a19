//! Writes a response in the Messages format. This format has at most one open block at a time.

use std::collections::VecDeque;

use bytes::BytesMut;
use serde_json::value::RawValue;

use super::{
    super::turn::{Call, Counts, Event, Proof, Stop, Writer as Write, check_kept, put},
    PING,
    usage::write,
};
use crate::{
    error::Error,
    formats::{
        capsule,
        chat::state::Kept,
        origin::Origin,
        wire::{AnswerCx, broken},
    },
    price::Counts as ClassCounts,
};

/// Writes the events of a Messages stream, or a plain Messages response.
///
/// A piece of the open block is written at once. A piece of another block waits until the open block has ended. A
/// stream stores at most 4 MiB of such pieces.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    origin: Origin,
    thinking_asked: bool,
    /// Whether the writer writes a plain response instead of the events of a stream.
    plain: bool,
    /// The plain response so far, up to its stop reason. A block is added when it has ended.
    answer: String,
    /// The offset in the plain response at which the blocks begin.
    blocks_at: usize,
    /// The offset of the last thinking's signature in the plain response, if the signature is the state of a Chat
    /// Completions vendor.
    signature_at: Option<usize>,
    /// The blocks that have not ended. The first of them is open, or is opened next.
    blocks: VecDeque<Block>,
    /// The number of blocks that have been opened so far.
    opened: usize,
    /// The number of stored bytes: blocks that have not ended, content that waits, and ids and names of tool calls.
    kept_bytes: usize,
    called: bool,
    refused: bool,
    stop: Option<Stop>,
    /// The state of a Chat Completions vendor that has not been put into a block yet.
    state: Option<Kept>,
    /// Capsules with reasoning that is hidden from the caller. They are written before the next tool call.
    hidden: Vec<String>,
}

#[derive(Debug)]
struct Block {
    item: u64,
    kind: Kind,
    open: bool,
    /// Content that has arrived but has not been written yet.
    waiting: String,
    /// The signature of thinking, or the data of redacted thinking.
    capsule: Option<String>,
    end: End,
}

#[derive(Debug)]
enum Kind {
    Text,
    Thinking,
    /// A tool call: its id, its name, and whether arguments have been written.
    Call(String, String, bool),
}

impl Kind {
    /// Returns the type of the block's deltas, and the name of the field in them.
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
    /// The block ends as soon as another block waits.
    Implied,
    Done,
}

impl Writer {
    /// Creates the writer of one response. `origin` has the vendor's name and the names of the tools.
    pub(crate) fn new(origin: Origin, cx: AnswerCx, plain: bool) -> Self {
        Self {
            origin,
            thinking_asked: cx.thinking_asked,
            plain,
            ..Self::default()
        }
    }

    /// Writes `message_start`. Its input count is 0, because the vendor has not reported usage yet; the last event has
    /// the real count.
    fn begin(&mut self, id: &str, model: &str, out: &mut BytesMut) {
        let message = format_args!(
            "{{\"id\":{id},\"type\":\"message\",\"role\":\"assistant\",\"model\":{model},\"content\":["
        );
        if self.plain {
            self.answer = message.to_string();
            self.blocks_at = self.answer.len();
            return;
        }
        let usage = usage(&Counts::default());
        let event = format_args!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{message}],\
             \"stop_reason\":null,\"stop_sequence\":null,\"usage\":{usage}}}}}\n\n"
        );
        put(out, event);
    }

    /// Returns the block to which text or reasoning of this item belongs. If there is no such block, adds one.
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

    /// Writes a piece of the open block without storing the piece. Returns whether the open block is that of this item.
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
        // A caller of the Messages format cannot have tools with free text. So calls of such tools are left out.
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
            // These proofs are from Messages vendors, whose responses to Messages callers are not translated.
            Proof::Signature(_) | Proof::Redacted(_) => {}
        }
    }

    /// Marks the block of this item as complete.
    fn done(&mut self, item: u64, implied: bool, out: &mut BytesMut) -> Result<(), Error> {
        let end = if implied { End::Implied } else { End::Done };
        let running = |block: &&mut Block| block.item == item && block.end != End::Done;
        if let Some(block) = self.blocks.iter_mut().rfind(running) {
            block.end = end;
        }
        self.advance(out)
    }

    /// Writes the content of the first block. When that block has ended, continues with the next.
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
        // The blocks of a plain response are written only when they are complete. They need no limit here, because the
        // size of the response was limited when it was read.
        if self.plain {
            return Ok(());
        }
        check_kept(self.kept_bytes)
    }

    fn write_block(&mut self, block: &mut Block, ends: bool, out: &mut BytesMut) {
        let waiting = std::mem::take(&mut block.waiting);
        self.kept_bytes -= waiting.len();
        // This reasoning is hidden from the caller. If it has a capsule, the capsule is written as redacted thinking.
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
        match &block.kind {
            Kind::Text => self.push(&format!("{{\"type\":\"text\",\"text\":\"{waiting}\"}}")),
            Kind::Thinking => {
                let capsule = block.capsule.take();
                // If an unsigned thinking block gets the vendor's state as its signature, the signature is inserted
                // when the response is complete.
                let later = capsule.is_none() && self.state.is_some();
                let signature = match capsule {
                    Some(capsule) => capsule,
                    None if later => String::new(),
                    None => self.signature(),
                };
                self.push(&format!(
                    "{{\"type\":\"thinking\",\"thinking\":\"{waiting}\",\"signature\":\"{signature}\"}}"
                ));
                self.signature_at = later.then(|| self.answer.len() - 2);
            }
            Kind::Call(id, name, _) => self.push(&format!(
                "{{\"type\":\"tool_use\",\"id\":\"{id}\",\"name\":\"{name}\",\"input\":{}}}",
                object(waiting)
            )),
        }
    }

    /// Adds a block to the plain response.
    fn push(&mut self, block: &str) {
        if self.answer.len() > self.blocks_at {
            self.answer.push(',');
        }
        self.answer.push_str(block);
    }

    /// Returns the signature of thinking that the vendor did not sign: the state of a Chat Completions vendor, or an
    /// empty capsule. Messages vendors reject thinking that they did not sign, so blocks with a capsule are removed
    /// before a request is sent to a Messages vendor.
    fn signature(&mut self) -> String {
        let vendor = &self.origin.vendor;
        let state = self.state.as_mut().map(|state| state.seal(vendor));
        state.unwrap_or_else(|| capsule::seal(vendor, "{}"))
    }

    /// Writes the hidden reasoning, if there is any, which the vendor needs back with the next tool call.
    fn write_hidden(&mut self, out: &mut BytesMut) {
        for capsule in std::mem::take(&mut self.hidden) {
            self.kept_bytes -= capsule.len();
            self.redacted(&capsule, out);
        }
        // A plain response has the whole state in one block.
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
        let event = format_args!(
            "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":{index},\
             \"content_block\":{block}}}\n\n"
        );
        put(out, event);
    }

    fn delta(&self, kind: &str, field: &str, piece: &str, out: &mut BytesMut) {
        if piece.is_empty() {
            return;
        }
        let index = self.opened - 1;
        let event = format_args!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\
             \"delta\":{{\"type\":\"{kind}\",\"{field}\":\"{piece}\"}}}}\n\n"
        );
        put(out, event);
    }

    fn stop_block(&self, out: &mut BytesMut) {
        let index = self.opened - 1;
        let event = format_args!(
            "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"
        );
        put(out, event);
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
            let end = format_args!(
                "{answer}],\"stop_reason\":\"{reason}\",\"stop_sequence\":null,\"usage\":{usage}}}"
            );
            put(out, end);
            return Ok(());
        }
        if self.called {
            self.write_state(out);
        }
        let events = format_args!(
            "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":\
             {{\"stop_reason\":\"{reason}\",\"stop_sequence\":null}},\"usage\":{usage}}}\n\n\
             event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
        );
        put(out, events);
        Ok(())
    }

    /// Puts the state of a Chat Completions vendor into the plain response: into its thinking or, if it has no thinking
    /// but its tool calls need the state, into a block before all others.
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

    /// Returns the stop reason. It also depends on the tool calls: many vendors report an ordinary end after a tool
    /// call, and some announce a call without sending one, so that agents would wait for ever.
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
            Event::Text(item, refusal, piece) => {
                self.refused |= refusal;
                self.piece(item, Kind::Text, piece, out)?;
            }
            Event::Reasoning(item, _, piece) => self.reasoning(item, piece, out)?,
            Event::Proof(item, proof) => self.proof(item, proof),
            Event::Call { item, call } => self.call(item, call, out)?,
            Event::Arguments { item, piece, fault } => self.arguments(item, piece, fault, out)?,
            Event::Done(item, implied) => self.done(item, implied, out)?,
            Event::Stop(stop) => self.stop = Some(stop),
            Event::End(counts) => self.end(&counts, out)?,
            Event::Alive => out.extend_from_slice(PING),
        }
        Ok(())
    }
}

/// Returns the arguments as a JSON object. If the model wrote something else, for example truncated JSON, it is put
/// into an object.
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

fn usage(counts: &Counts) -> String {
    write(counts, &ClassCounts::default())
}

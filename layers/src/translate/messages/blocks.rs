//! Writes the content blocks of a streamed message one after another: the messages format has one open block at a time.
//!
//! Chunks of a chat stream may alternate between tool calls. A piece of the open block is written at once. A later
//! block waits while the open block is a tool call with incomplete arguments, or while its own tool name is unknown.

use std::{
    borrow::Cow,
    collections::VecDeque,
    fmt::{self, Write as _},
};

use bytes::BytesMut;
use serde_json::value::RawValue;

use super::{
    answer::{ToolCall, tool_id},
    text::{given, inner, string},
};
use crate::{
    error::Error,
    translate::{
        arguments::{Lead, next_byte},
        chat_state::Kept,
        origin::Origin,
        wire::{broken, compact, too_much},
    },
};

/// The maximum bytes that a stream may store: blocks that wait, and the ids and names of calls.
pub(in crate::translate) const KEPT_BYTES_MAX: usize = 4 << 20;
/// The largest number of tool calls in one answer.
pub(in crate::translate) const CALLS_MAX: usize = 1_024;

const NO_OBJECT: &str = "tool arguments that are not an object";

/// Identifies a content block within a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum BlockId {
    Thinking,
    Text,
    /// The tool call with this number, counted from 0 in the order in which the calls appear.
    Call(usize),
}

/// The content blocks of one message.
#[derive(Debug, Default)]
pub(in crate::translate) struct Blocks {
    open: Option<BlockId>,
    /// The number of blocks that were opened so far. The open block is the last of these.
    opened: usize,
    waiting: VecDeque<Waiting>,
    calls: Calls,
    kept_bytes: usize,
    origin: Origin,
    /// State for the vendor that was not put into a block yet.
    state: Kept,
    /// A hash of the message, from which missing ids of tool calls are derived.
    message_hash: u64,
}

/// A block that waits to be opened, with its content so far, JSON-escaped and without quotes.
#[derive(Debug)]
struct Waiting {
    place: BlockId,
    json: String,
}

/// The tool calls of a stream, whose pieces may arrive in any order.
#[derive(Debug, Default)]
pub(in crate::translate) struct Calls(Vec<Call>);

#[derive(Debug, Default)]
pub(in crate::translate) struct Call {
    /// The index that the vendor gives the call: from 0, from 1, or the same for all calls.
    index: Option<u64>,
    pub(in crate::translate) id: Option<String>,
    pub(in crate::translate) name: Option<String>,
    arguments: Arguments,
    signed: bool,
    closed: bool,
}

/// A piece of a tool call.
#[derive(Debug)]
pub(in crate::translate) struct CallPiece<'a> {
    /// The number of the tool call, counted from 0.
    pub(in crate::translate) number: usize,
    /// The arguments in this piece, JSON-escaped and without quotes.
    pub(in crate::translate) arguments: Cow<'a, str>,
    /// The signature of the call; only in the first piece that has one.
    pub(in crate::translate) signature: Option<&'a RawValue>,
    /// How many bytes of this piece are stored until the stream ends.
    kept_bytes: usize,
}

impl Blocks {
    /// Creates an answer without blocks. `origin` has the vendor's name and the names of tools.
    pub(in crate::translate) fn new(origin: Origin) -> Self {
        Self {
            origin,
            ..Self::default()
        }
    }

    /// Returns the state for the vendor, which is written with the next block that can carry it.
    pub(in crate::translate) fn state(&mut self) -> &mut Kept {
        &mut self.state
    }

    /// Sets the hash from which missing ids are derived; must be called before the first piece.
    pub(in crate::translate) fn begin(&mut self, message_hash: u64) {
        self.message_hash = message_hash;
    }

    /// Returns whether a tool was called.
    pub(in crate::translate) fn called(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Adds a piece of text or thinking, JSON-escaped and without quotes.
    pub(in crate::translate) fn text(
        &mut self,
        place: BlockId,
        piece: &str,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        if self.open == Some(place) {
            self.delta(place, piece, out);
            return Ok(());
        }
        let last = self.waiting.back_mut().filter(|last| last.place == place);
        match last {
            Some(last) => last.json.push_str(piece),
            None => self.wait(place, piece),
        }
        self.kept_bytes += piece.len();
        self.advance(out)
    }

    /// Adds a piece of a tool call: its id and name, a part of its arguments, or all of these.
    pub(in crate::translate) fn call(
        &mut self,
        piece: &ToolCall<'_>,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        let Some(piece) = self.calls.piece(piece)? else {
            return Ok(());
        };
        self.kept_bytes += piece.kept_bytes;
        let number = piece.number;
        let call = &mut self.calls.0[number];
        if let Some(signature) = piece.signature {
            self.state
                .sign(&call.id(self.message_hash, number), signature);
        }
        let arguments = call.arguments.take(&piece.arguments)?;
        let closed = call.closed;
        let place = BlockId::Call(number);
        if self.open == Some(place) {
            self.delta(place, arguments, out);
        } else if !closed {
            match self.waiting.iter_mut().find(|one| one.place == place) {
                Some(waiting) => waiting.json.push_str(arguments),
                None => self.wait(place, arguments),
            }
            self.kept_bytes += arguments.len();
        }
        self.advance(out)
    }

    /// Returns whether the arguments of every call are complete.
    pub(in crate::translate) fn whole(&self) -> bool {
        self.calls.0.iter().all(|call| call.arguments.whole())
    }

    /// Handles the end of the answer: writes and closes all waiting blocks.
    pub(in crate::translate) fn finish(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        loop {
            self.close(out);
            let Some(next) = self.waiting.front() else {
                if self.called() {
                    self.write_state(out);
                }
                return Ok(());
            };
            if !self.may_open(next.place) {
                return Err(broken("a tool call without a name"));
            }
            self.open_next(out);
        }
    }

    fn wait(&mut self, place: BlockId, piece: &str) {
        let json = piece.to_owned();
        self.waiting.push_back(Waiting { place, json });
    }

    /// Opens blocks that wait, as far as possible. Only blocks that still wait count towards the limit.
    fn advance(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        while let Some(next) = self.waiting.front() {
            if !self.may_close() || !self.may_open(next.place) {
                break;
            }
            self.close(out);
            self.open_next(out);
        }
        if self.kept_bytes > KEPT_BYTES_MAX {
            let why = format!("more than {KEPT_BYTES_MAX} bytes would have to be buffered");
            return Err(too_much(why));
        }
        Ok(())
    }

    /// Returns whether the open block may be closed. Later text can begin another block, but later arguments cannot.
    fn may_close(&self) -> bool {
        match self.open {
            Some(BlockId::Call(number)) => self.calls.0[number].arguments.complete(),
            _ => true,
        }
    }

    fn may_open(&self, place: BlockId) -> bool {
        match place {
            BlockId::Call(number) => self.calls.0[number].name.is_some(),
            BlockId::Thinking | BlockId::Text => true,
        }
    }

    fn open_next(&mut self, out: &mut BytesMut) {
        let Some(Waiting { place, json }) = self.waiting.pop_front() else {
            return;
        };
        self.kept_bytes -= json.len();
        if matches!(place, BlockId::Call(_)) {
            self.write_state(out);
        }
        self.start(out);
        self.open = Some(place);
        match place {
            BlockId::Thinking => {
                put(
                    out,
                    format_args!(r#"{{"type":"thinking","thinking":"","signature":""}}"#),
                );
            }
            BlockId::Text => put(out, format_args!(r#"{{"type":"text","text":""}}"#)),
            BlockId::Call(number) => {
                let call = &self.calls.0[number];
                let name = self.origin.name(call.name.as_deref().unwrap_or_default());
                let id = call.id(self.message_hash, number);
                put(
                    out,
                    format_args!(
                        r#"{{"type":"tool_use","id":"{id}","name":"{name}","input":{{}}}}"#
                    ),
                );
            }
        }
        out.extend_from_slice(b"}\n\n");
        self.delta(place, &json, out);
    }

    /// Writes the beginning of the event that opens the next block, up to the block itself.
    fn start(&mut self, out: &mut BytesMut) {
        let index = self.opened;
        self.opened += 1;
        put(
            out,
            format_args!(
                "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":{index},\"content_block\":"
            ),
        );
    }

    /// Writes the event that closes the last block.
    fn stop(&self, out: &mut BytesMut) {
        let index = self.opened - 1;
        put(
            out,
            format_args!(
                "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"
            ),
        );
    }

    /// Writes the state that is left, if any, as a block of its own.
    fn write_state(&mut self, out: &mut BytesMut) {
        if self.state.needs_block() {
            let data = self.state.seal(&self.origin.vendor);
            self.start(out);
            put(
                out,
                format_args!("{{\"type\":\"redacted_thinking\",\"data\":\"{data}\"}}}}\n\n"),
            );
            self.stop(out);
        }
    }

    /// Writes a delta of the open block.
    fn delta(&self, place: BlockId, piece: &str, out: &mut BytesMut) {
        if piece.is_empty() {
            return;
        }
        let (kind, field) = match place {
            BlockId::Thinking => ("thinking_delta", "thinking"),
            BlockId::Text => ("text_delta", "text"),
            BlockId::Call(_) => ("input_json_delta", "partial_json"),
        };
        self.piece(kind, field, piece, out);
    }

    fn piece(&self, kind: &str, field: &str, piece: &str, out: &mut BytesMut) {
        let index = self.opened - 1;
        put(
            out,
            format_args!(
                "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\
                 \"delta\":{{\"type\":\"{kind}\",\"{field}\":\"{piece}\"}}}}\n\n"
            ),
        );
    }

    fn close(&mut self, out: &mut BytesMut) {
        let Some(place) = self.open else {
            return;
        };
        match place {
            BlockId::Call(number) => {
                self.calls.0[number].closed = true;
                let arguments = &self.calls.0[number].arguments;
                if !arguments.lead.begun() {
                    self.delta(place, arguments.lead.end(), out);
                }
            }
            BlockId::Thinking => {
                let signature = self.state.seal(&self.origin.vendor);
                self.piece("signature_delta", "signature", &signature, out);
            }
            BlockId::Text => {}
        }
        self.open = None;
        self.stop(out);
    }
}

impl Call {
    /// Returns the vendor's id of the call or, if there is none, an id that is derived from the message.
    pub(in crate::translate) fn id(&self, message_hash: u64, number: usize) -> Cow<'_, str> {
        match &self.id {
            Some(id) => Cow::Borrowed(id),
            None => Cow::Owned(tool_id(message_hash, number)),
        }
    }
}

impl Calls {
    /// Returns whether the answer has no tool calls.
    pub(in crate::translate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the call with this number, counted from 0 in the order in which the calls appear.
    pub(in crate::translate) fn get(&self, number: usize) -> &Call {
        &self.0[number]
    }

    /// Finds the call to which a piece belongs, and adds the piece's id and name to it. `None` if the piece is empty.
    pub(in crate::translate) fn piece<'a>(
        &mut self,
        piece: &ToolCall<'a>,
    ) -> Result<Option<CallPiece<'a>>, Error> {
        let function = piece.function.as_ref();
        let (id, name) = (given(piece.id), given(function.and_then(|it| it.name)));
        let arguments = match function.and_then(|it| it.arguments) {
            Some(arguments) => argument_piece(arguments)?,
            None => Cow::Borrowed(""),
        };
        let signature = piece.signature();
        if id.is_none() && name.is_none() && arguments.is_empty() && signature.is_none() {
            return Ok(None);
        }
        let number = self.number(piece.index, id, name, &arguments)?;
        let (call, mut kept_bytes) = (&mut self.0[number], 0);
        for (known, news) in [(&mut call.id, id), (&mut call.name, name)] {
            if let Some(news) = news
                && known.is_none()
            {
                kept_bytes += news.len();
                *known = Some(news.to_owned());
            }
        }
        let signature = signature.filter(|_| !std::mem::replace(&mut call.signed, true));
        Ok(Some(CallPiece {
            number,
            arguments,
            signature,
            kept_bytes,
        }))
    }

    /// Tracks a call's arguments to find their end, also if they are not an object: a later piece cannot belong to a
    /// call whose arguments are complete.
    pub(in crate::translate) fn follow(&mut self, piece: &CallPiece<'_>) {
        // The error is ignored, because here arguments need not be an object.
        let _ = self.0[piece.number].arguments.take(&piece.arguments);
    }

    /// Returns the number of the call to which a piece belongs. If it belongs to none, adds a call.
    fn number(
        &mut self,
        index: Option<u64>,
        id: Option<&str>,
        name: Option<&str>,
        arguments: &str,
    ) -> Result<usize, Error> {
        let calls = &mut self.0;
        let known = |call: &Call| call.id.as_deref().is_some_and(|known| Some(known) == id);
        let found = match (index, id) {
            (Some(_), _) => calls.iter().rposition(|call| call.index == index),
            (None, Some(_)) => calls.iter().rposition(known),
            (None, None) if name.is_some() => None,
            (None, None) => calls.len().checked_sub(1),
        };
        // One vendor sends complete calls that all have the same index. A piece with a name begins another call if it
        // also has another id, if the name differs, or if it has arguments although the call's arguments are complete.
        // Vendors may repeat the same name in each piece, and blanks do not count as arguments.
        let another = |call: &Call| match (id, &call.id, &call.name) {
            (Some(id), Some(known), _) => id != known,
            (_, _, Some(known)) if Some(known.as_str()) != name => true,
            _ => call.arguments.complete() && !is_blank(arguments),
        };
        let found = found.filter(|number| name.is_none() || !another(&calls[*number]));
        if let Some(number) = found {
            return Ok(number);
        }
        if calls.len() == CALLS_MAX {
            return Err(too_much(format!("more than {CALLS_MAX} tool calls")));
        }
        calls.push(Call {
            index,
            ..Call::default()
        });
        Ok(calls.len() - 1)
    }
}

/// Appends formatted text to the output.
pub(in crate::translate) fn put(out: &mut BytesMut, text: fmt::Arguments<'_>) {
    out.write_fmt(text)
        .expect("writing to memory does not fail");
}

/// Returns a piece of arguments, JSON-escaped and without quotes. Some vendors send the object itself, which is escaped
/// here.
fn argument_piece(arguments: &RawValue) -> Result<Cow<'_, str>, Error> {
    match inner(arguments) {
        Some(piece) => Ok(Cow::Borrowed(piece)),
        None if arguments.get().starts_with('{') => {
            let json = string(&compact(arguments));
            Ok(Cow::Owned(inner(&json).unwrap_or_default().to_owned()))
        }
        None => Err(broken("tool arguments that are not a string")),
    }
}

/// Returns whether a piece of arguments has only blanks.
fn is_blank(piece: &str) -> bool {
    let mut bytes = piece.bytes();
    std::iter::from_fn(|| next_byte(&mut bytes)).all(|byte| byte.is_ascii_whitespace())
}

/// Parses a call's arguments just enough to find the end of their object.
#[derive(Debug, Default)]
struct Arguments {
    lead: Lead,
    started: bool,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Arguments {
    fn complete(&self) -> bool {
        self.started && self.depth == 0
    }

    /// Returns whether no arguments are missing: their object is complete, or the call has none.
    fn whole(&self) -> bool {
        self.complete() || self.lead.is_none()
    }

    /// Takes the next piece, JSON-escaped and without quotes. Returns the part to forward.
    fn take<'p>(&mut self, piece: &'p str) -> Result<&'p str, Error> {
        let (kept, rest) = self.lead.take(piece);
        if !kept.is_empty() {
            return Err(broken(NO_OBJECT));
        }
        let mut bytes = rest.bytes();
        while let Some(byte) = next_byte(&mut bytes) {
            self.byte(byte)?;
        }
        Ok(rest)
    }

    fn byte(&mut self, byte: u8) -> Result<(), Error> {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return Ok(());
        }
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {}
            _ if self.complete() => return Err(broken("tool arguments after their end")),
            b'{' => {
                self.started = true;
                self.depth += 1;
            }
            _ if !self.started => return Err(broken(NO_OBJECT)),
            b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            b'"' => self.in_string = true,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_arguments_is_found_however_they_are_split() {
        let whole = r#" {"a": [1, {"b": "}]\" \\"}], "ключ": "{", "n": null}"#;
        let written = serde_json::to_string(whole).unwrap();
        let written = &written[1..written.len() - 1];
        for cut in 0..=written.len() {
            let escape_or_character = !written.is_char_boundary(cut)
                || written[..cut]
                    .bytes()
                    .rev()
                    .take_while(|byte| *byte == b'\\')
                    .count()
                    % 2
                    == 1;
            if escape_or_character {
                continue;
            }
            let mut arguments = Arguments::default();
            arguments.take(&written[..cut]).unwrap();
            assert_eq!(arguments.complete(), cut == written.len(), "{cut}");
            arguments.take(&written[cut..]).unwrap();
            assert!(arguments.complete());
            arguments.take(" \\n").unwrap();
            assert!(arguments.take("1").is_err());
        }
    }

    #[test]
    fn escapes_of_any_kind_are_understood() {
        let mut arguments = Arguments::default();
        arguments.take(r"\u007b\u0022a\u0022:1").unwrap();
        assert!(arguments.started && !arguments.complete());
        arguments.take(r"\u007d").unwrap();
        assert!(arguments.complete());
        for no_object in ["[", "7", r"\u0022", "x", r"\"] {
            assert!(Arguments::default().take(no_object).is_err(), "{no_object}");
        }
    }
}

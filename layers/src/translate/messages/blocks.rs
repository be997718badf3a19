//! The blocks of a streamed message: one open at a time, in order, never interleaved.
//!
//! Chat chunks may go back and forth between tool calls. A piece that belongs to the open block goes
//! on at once. A later block waits only while the open one is a tool call whose arguments have not
//! come to the end of their object, or while its own name is not known.

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
        wire::{broken, compact, too_much},
    },
};

/// Bytes that may be kept of one stream: what waits for its turn, and the ids and names of calls.
pub(in crate::translate) const KEPT_BYTES_MAX: usize = 4 << 20;
/// Tool calls of one answer.
pub(in crate::translate) const CALLS_MAX: usize = 1_024;

const NO_OBJECT: &str = "tool arguments that are no object";

/// The block that a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum BlockId {
    Thinking,
    Text,
    /// The call of this number, counted from 0 in the order of appearance.
    Call(usize),
}

/// The blocks of one message.
#[derive(Debug, Default)]
pub(in crate::translate) struct Blocks {
    open: Option<BlockId>,
    /// How many blocks have been opened. The open one is the last of them.
    opened: usize,
    waiting: VecDeque<Waiting>,
    calls: Calls,
    kept_bytes: usize,
    /// What the ids are made of that the vendor leaves out.
    message_hash: u64,
}

/// A block that is not open yet, with all that has come of it, as it stands between quotes.
#[derive(Debug)]
struct Waiting {
    place: BlockId,
    json: String,
}

/// The tool calls of one streamed answer, whose pieces come in any order.
#[derive(Debug, Default)]
pub(in crate::translate) struct Calls(Vec<Call>);

#[derive(Debug, Default)]
pub(in crate::translate) struct Call {
    /// As the vendor counts: from 0 or 1, or all alike.
    index: Option<u64>,
    pub(in crate::translate) id: Option<String>,
    pub(in crate::translate) name: Option<String>,
    arguments: Arguments,
    closed: bool,
}

/// A piece of a tool call.
#[derive(Debug)]
pub(in crate::translate) struct CallPiece<'a> {
    /// Which call it is of.
    pub(in crate::translate) number: usize,
    /// Arguments, as they stand between the quotes of a string.
    pub(in crate::translate) arguments: Cow<'a, str>,
    /// How many bytes of it are kept for good.
    kept_bytes: usize,
}

impl Blocks {
    /// Before the first piece.
    pub(in crate::translate) fn begin(&mut self, message_hash: u64) {
        self.message_hash = message_hash;
    }

    /// Whether a tool was called.
    pub(in crate::translate) fn called(&self) -> bool {
        !self.calls.is_empty()
    }

    /// A piece of text or thinking, as it stands between its quotes.
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

    /// A piece of a tool call: its id and name, or some of its arguments, or all of it.
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

    /// Whether each call has all of its arguments.
    pub(in crate::translate) fn whole(&self) -> bool {
        self.calls.0.iter().all(|call| call.arguments.whole())
    }

    /// The answer has ended: everything that waits is written and closed.
    pub(in crate::translate) fn finish(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        loop {
            self.close(out);
            let Some(next) = self.waiting.front() else {
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

    /// Opens what waits, as far as it need not wait any more. Only what is left then counts.
    fn advance(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        while let Some(next) = self.waiting.front() {
            if !self.may_close() || !self.may_open(next.place) {
                break;
            }
            self.close(out);
            self.open_next(out);
        }
        if self.kept_bytes > KEPT_BYTES_MAX {
            let why = format!("more than {KEPT_BYTES_MAX} bytes would have to wait");
            return Err(too_much(why));
        }
        Ok(())
    }

    /// More of a text may always come, but as well in a block of its own. More of a call may not.
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
        let index = self.opened;
        self.opened += 1;
        self.open = Some(place);
        put(
            out,
            format_args!(
                "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":{index},\"content_block\":"
            ),
        );
        match place {
            BlockId::Thinking => {
                put(
                    out,
                    format_args!(r#"{{"type":"thinking","thinking":"","signature":""}}"#),
                );
            }
            BlockId::Text => put(out, format_args!(r#"{{"type":"text","text":""}}"#)),
            BlockId::Call(number) => {
                let Call { id, name, .. } = &self.calls.0[number];
                let name = name.as_deref().unwrap_or_default();
                let id = match id {
                    Some(id) => Cow::Borrowed(id.as_str()),
                    None => Cow::Owned(tool_id(self.message_hash, number)),
                };
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

    /// A piece of the open block.
    fn delta(&self, place: BlockId, piece: &str, out: &mut BytesMut) {
        if piece.is_empty() {
            return;
        }
        let (kind, field) = match place {
            BlockId::Thinking => ("thinking_delta", "thinking"),
            BlockId::Text => ("text_delta", "text"),
            BlockId::Call(_) => ("input_json_delta", "partial_json"),
        };
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
        if let BlockId::Call(number) = place {
            self.calls.0[number].closed = true;
            let arguments = &self.calls.0[number].arguments;
            if !arguments.lead.begun() {
                self.delta(place, arguments.lead.end(), out);
            }
        }
        self.open = None;
        let index = self.opened - 1;
        put(
            out,
            format_args!(
                "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"
            ),
        );
    }
}

impl Calls {
    /// Whether there is none.
    pub(in crate::translate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The call of this number, counted from 0 in the order of appearance.
    pub(in crate::translate) fn get(&self, number: usize) -> &Call {
        &self.0[number]
    }

    /// Takes a piece in. `None` if it says nothing.
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
        if id.is_none() && name.is_none() && arguments.is_empty() {
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
        Ok(Some(CallPiece {
            number,
            arguments,
            kept_bytes,
        }))
    }

    /// Follows a call's arguments to their end, whatever they are: a call that they are complete of goes on
    /// with no other.
    pub(in crate::translate) fn follow(&mut self, piece: &CallPiece<'_>) {
        // What is no object is nobody's business here.
        let _ = self.0[piece.number].arguments.take(&piece.arguments);
    }

    /// Which call a piece is of; a new one where it fits none.
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
        // One vendor gives every call the same index, whole: another id with a name, another name, or
        // arguments with a name behind the end of a call's arguments, are of another call. A name alone
        // may stand in each piece, and blanks are no arguments.
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

/// Writes behind what is there.
pub(in crate::translate) fn put(out: &mut BytesMut, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("memory takes it");
}

/// Some arguments as they stand between the quotes of a string. Some vendors write the object itself.
fn argument_piece(arguments: &RawValue) -> Result<Cow<'_, str>, Error> {
    match inner(arguments) {
        Some(piece) => Ok(Cow::Borrowed(piece)),
        None if arguments.get().starts_with('{') => {
            let json = string(&compact(arguments));
            Ok(Cow::Owned(inner(&json).unwrap_or_default().to_owned()))
        }
        None => Err(broken("tool arguments that are no text")),
    }
}

/// Whether a piece, as it stands between the quotes of a string, is nothing but blanks.
fn is_blank(piece: &str) -> bool {
    let mut bytes = piece.bytes();
    std::iter::from_fn(|| next_byte(&mut bytes)).all(|byte| byte.is_ascii_whitespace())
}

/// How far a call's arguments have come: as much of JSON as tells where their object ends.
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

    /// Whether nothing is missing: an object came to its end, or there is none.
    fn whole(&self) -> bool {
        self.complete() || self.lead.is_none()
    }

    /// Takes the next piece, as it stands between the quotes of a string. Gives what of it goes on.
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
            _ if self.complete() => return Err(broken("tool arguments behind their end")),
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
    fn the_end_of_arguments_is_seen_wherever_they_are_cut() {
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

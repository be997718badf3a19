//! The tool calls of a Chat Completions stream, whose pieces may arrive in any order.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{super::turn::check_kept, answer_fields::ToolCall};
use crate::{
    error::Error,
    formats::{
        arguments::{Lead, next_byte},
        text::{given, inner, string},
        wire::{broken, compact, too_many},
    },
};

/// The maximum number of tool calls in one response.
pub(crate) const CALLS_MAX: usize = 1_024;

const NO_OBJECT: &str = "the arguments of a tool call are not an object";

/// The tool calls of one stream.
#[derive(Debug, Default)]
pub(super) struct Calls {
    list: Vec<Call>,
    /// The number of bytes in stored ids, names and arguments.
    kept_bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Call {
    /// The vendor's index of the tool call. Vendors count from 0, or from 1, or give all tool calls the same index.
    index: Option<u64>,
    id: Option<String>,
    pub(super) name: Option<String>,
    arguments: Arguments,
    fault: Option<&'static str>,
    signed: bool,
    /// Whether the tool call was passed on. It is passed on once its name has arrived.
    pub(super) begun: bool,
    /// The arguments that arrived before the name of the tool call.
    waiting: String,
}

/// A piece of a tool call in a stream.
#[derive(Debug)]
pub(super) struct CallPiece<'a> {
    /// The number of the tool call, counted from 0.
    pub(super) number: usize,
    /// The letters of `null` in earlier pieces, if they turn out to belong to the arguments.
    pub(super) stored: &'static str,
    /// The arguments in this piece, JSON-escaped and without quotes.
    pub(super) arguments: Cow<'a, str>,
    /// The signature of the tool call. Set only for the first piece that has a signature.
    pub(super) signature: Option<&'a RawValue>,
    /// The reason why the arguments are not one object, if they are not.
    pub(super) fault: Option<&'static str>,
}

impl Call {
    /// Returns the vendor's id of the tool call. If there is none, returns an id that is derived from the message.
    pub(super) fn id(&self, message_hash: u64, number: usize) -> Cow<'_, str> {
        match &self.id {
            Some(id) => Cow::Borrowed(id),
            None => Cow::Owned(tool_id(message_hash, number)),
        }
    }

    /// Returns whether all arguments of the tool call have arrived.
    pub(super) fn complete(&self) -> bool {
        self.arguments.complete()
    }
}

/// Returns an id for a tool call that has none. It is the same in every translation of this message, and differs in
/// other messages.
pub(super) fn tool_id(message_hash: u64, number: usize) -> String {
    format!("toolu_{message_hash:016x}_{number}")
}

impl Calls {
    /// Returns the tool call with this number. Tool calls are numbered from 0, in the order in which they appear.
    pub(super) fn get(&self, number: usize) -> &Call {
        &self.list[number]
    }

    /// Begins to pass on the tool call, and returns the arguments that arrived before its name.
    pub(super) fn begin(&mut self, number: usize) -> String {
        let call = &mut self.list[number];
        call.begun = true;
        self.kept_bytes -= call.waiting.len();
        std::mem::take(&mut call.waiting)
    }

    /// Stores arguments of a tool call whose name has not arrived yet.
    pub(super) fn wait(&mut self, piece: &CallPiece<'_>) -> Result<(), Error> {
        let waiting = &mut self.list[piece.number].waiting;
        waiting.push_str(piece.stored);
        waiting.push_str(&piece.arguments);
        self.kept_bytes += piece.stored.len() + piece.arguments.len();
        check_kept(self.kept_bytes)
    }

    /// Returns whether the arguments of every tool call are complete.
    pub(super) fn whole(&self) -> bool {
        self.list.iter().all(|call| call.arguments.whole())
    }

    /// Returns whether the name of every tool call has arrived.
    pub(super) fn named(&self) -> bool {
        self.list.iter().all(|call| call.begun)
    }

    /// Returns the letters of truncated `null`s, each with the number of its tool call.
    pub(super) fn cut(&self) -> impl Iterator<Item = (usize, &'static str)> {
        let cut = |call: &Call| call.arguments.lead.cut();
        let cuts = self.list.iter().map(cut).enumerate();
        cuts.filter(|(_, cut)| !cut.is_empty())
    }

    /// Finds the tool call to which a piece belongs, and adds the piece's id and name to it. `None` if the piece is
    /// empty.
    pub(super) fn piece<'a>(
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
        let call = &mut self.list[number];
        for (known, news) in [(&mut call.id, id), (&mut call.name, name)] {
            if let Some(news) = news
                && known.is_none()
            {
                self.kept_bytes += news.len();
                *known = Some(news.to_owned());
            }
        }
        let signature = signature.filter(|_| !std::mem::replace(&mut call.signed, true));
        let (stored, skipped, fault) = call.arguments.take(&arguments);
        call.fault = call.fault.or(fault);
        let fault = call.fault;
        check_kept(self.kept_bytes)?;
        Ok(Some(CallPiece {
            number,
            stored,
            arguments: match arguments {
                Cow::Borrowed(piece) => Cow::Borrowed(&piece[skipped..]),
                Cow::Owned(mut piece) => Cow::Owned(piece.split_off(skipped)),
            },
            signature,
            fault,
        }))
    }

    /// Returns the number of the tool call to which a piece belongs. If the piece belongs to no known tool call, adds a
    /// new tool call.
    fn number(
        &mut self,
        index: Option<u64>,
        id: Option<&str>,
        name: Option<&str>,
        arguments: &str,
    ) -> Result<usize, Error> {
        let calls = &mut self.list;
        let known = |call: &Call| call.id.as_deref().is_some_and(|known| Some(known) == id);
        let found = match (index, id) {
            (Some(_), _) => calls.iter().rposition(|call| call.index == index),
            (None, Some(_)) => calls.iter().rposition(known),
            (None, None) if name.is_some() => None,
            (None, None) => calls.len().checked_sub(1),
        };
        // One vendor sends complete tool calls that all have the same index. A piece with a name begins another tool
        // call in three cases: it also has another id, its name differs, or it has arguments although the arguments of
        // the earlier tool call are complete. Vendors may repeat the same name in each piece. White space does not
        // count as arguments.
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
            return Err(too_many(CALLS_MAX, "tool calls"));
        }
        calls.push(Call {
            index,
            ..Call::default()
        });
        Ok(calls.len() - 1)
    }
}

/// Returns a piece of arguments, JSON-escaped and without quotes. Some vendors send the arguments as an object, which
/// is escaped here.
fn argument_piece(arguments: &RawValue) -> Result<Cow<'_, str>, Error> {
    match inner(arguments) {
        None if !arguments.get().starts_with('{') => {
            Err(broken("the arguments of a tool call are not a string"))
        }
        _ => Ok(escaped(arguments)),
    }
}

/// Returns the arguments JSON-escaped and without quotes, whether they are a string or JSON itself.
pub(super) fn escaped(arguments: &RawValue) -> Cow<'_, str> {
    match inner(arguments) {
        Some(text) => Cow::Borrowed(text),
        None => {
            let json = string(&compact(arguments));
            Cow::Owned(inner(&json).unwrap_or_default().to_owned())
        }
    }
}

/// Returns whether the piece of arguments contains only white space.
fn is_blank(piece: &str) -> bool {
    let mut bytes = piece.bytes();
    std::iter::from_fn(|| next_byte(&mut bytes)).all(|byte| byte.is_ascii_whitespace())
}

/// Parses the arguments of a tool call just enough to find their end.
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
        self.started && self.depth == 0 && !self.in_string
    }

    /// Returns whether no arguments are missing, that is, they are complete or the tool call has none.
    fn whole(&self) -> bool {
        self.complete() || self.lead.is_none()
    }

    /// Takes the next piece, which is JSON-escaped and without quotes. Returns the letters that were kept back and
    /// belong to the arguments, the offset in the piece at which the arguments continue, and, if the arguments are not
    /// one object, the reason.
    fn take(&mut self, piece: &str) -> (&'static str, usize, Option<&'static str>) {
        let (stored, rest) = self.lead.take(piece);
        let mut fault = (!stored.is_empty()).then_some(NO_OBJECT);
        self.started |= !stored.is_empty();
        let mut bytes = rest.bytes();
        while let Some(byte) = next_byte(&mut bytes) {
            fault = fault.or(self.byte(byte));
        }
        (stored, piece.len() - rest.len(), fault)
    }

    fn byte(&mut self, byte: u8) -> Option<&'static str> {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return None;
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return None;
        }
        let fault = match (self.started, byte) {
            (false, b'{') => None,
            (false, _) => Some(NO_OBJECT),
            (true, _) => self
                .complete()
                .then_some("tool arguments continue after their object has ended"),
        };
        self.started = true;
        match byte {
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b'"' => self.in_string = true,
            _ => {}
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_tool_call_arguments_is_found_however_they_are_split() {
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
            assert_eq!(arguments.take(&written[..cut]).2, None);
            assert_eq!(arguments.complete(), cut == written.len(), "{cut}");
            assert_eq!(arguments.take(&written[cut..]).2, None);
            assert!(arguments.complete());
            assert_eq!(arguments.take(" \\n").2, None);
            assert!(arguments.take("1").2.is_some());
        }
    }

    #[test]
    fn every_kind_of_escape_in_tool_call_arguments_is_decoded() {
        let mut arguments = Arguments::default();
        arguments.take(r"\u007b\u0022a\u0022:1");
        assert!(arguments.started && !arguments.complete());
        assert_eq!(arguments.take(r"\u007d").2, None);
        assert!(arguments.complete());
        for no_object in ["[", "7", r"\u0022", "x", r"\"] {
            assert!(
                Arguments::default().take(no_object).2.is_some(),
                "{no_object}"
            );
        }
    }
}

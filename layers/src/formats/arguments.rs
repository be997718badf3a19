//! Finds where the arguments of a tool call begin if they arrive in pieces.
//!
//! For a tool call without arguments, vendors send spaces or `null`. But a piece `null` may also be a part of
//! arguments, as in `[1,` `null` `]`. So the pieces before and after a piece `null` decide whether it is a part of the
//! arguments.

use std::str::Bytes;

const NULL: &str = "null";

/// Tracks the arguments of a tool call until they contain more than white space or `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lead {
    /// The number of letters of `null` that were received so far.
    letters: usize,
    begun: bool,
}

impl Lead {
    /// Takes the next piece, which is JSON-escaped and has no quotes. Returns the text to forward now: the letters that
    /// were kept back from earlier pieces, and the part of this piece that belongs to the arguments.
    pub(crate) fn take<'p>(&mut self, piece: &'p str) -> (&'static str, &'p str) {
        if self.begun {
            return ("", piece);
        }
        let mut bytes = piece.bytes();
        loop {
            let at = piece.len() - bytes.len();
            let Some(byte) = next_byte(&mut bytes) else {
                return ("", "");
            };
            let between = self.letters == 0 || self.letters == NULL.len();
            if NULL.as_bytes().get(self.letters) == Some(&byte) {
                self.letters += 1;
            } else if !(between && byte.is_ascii_whitespace()) {
                self.begun = true;
                // A `null` before an object is only a placeholder, which is not forwarded.
                let stored = if between && byte == b'{' {
                    ""
                } else {
                    &NULL[..self.letters]
                };
                return (stored, &piece[at..]);
            }
        }
    }

    /// Returns whether the tool call has no arguments, because only white space or `null` arrived.
    pub(crate) const fn is_none(self) -> bool {
        !self.begun && matches!(self.letters, 0 | 4)
    }

    /// Returns the letters of a truncated `null`. They are the arguments if nothing else arrives.
    pub(crate) fn cut(self) -> &'static str {
        match self.letters {
            1..4 if !self.begun => &NULL[..self.letters],
            _ => "",
        }
    }
}

/// Returns the next byte of the text of a JSON string, with its escape decoded. For a character above U+00FF, returns a
/// byte that has no meaning in JSON.
pub(crate) fn next_byte(bytes: &mut Bytes<'_>) -> Option<u8> {
    const NO_MEANING: u8 = b'x';
    let byte = bytes.next()?;
    if byte != b'\\' {
        return Some(byte);
    }
    Some(match bytes.next() {
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b'r') => b'\r',
        Some(b'u') => {
            let code = bytes.by_ref().take(4).try_fold(0, |code: u32, digit| {
                Some(code * 16 + char::from(digit).to_digit(16)?)
            });
            code.and_then(|code| u8::try_from(code).ok())
                .unwrap_or(NO_MEANING)
        }
        Some(byte @ (b'"' | b'\\' | b'/')) => byte,
        _ => NO_MEANING,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the arguments that are forwarded for these pieces, including those that are forwarded only when the
    /// pieces have ended.
    fn taken(pieces: &[&str]) -> String {
        let (mut lead, mut all) = (Lead::default(), String::new());
        for piece in pieces {
            let (stored, rest) = lead.take(piece);
            all.push_str(stored);
            all.push_str(rest);
        }
        all.push_str(lead.cut());
        if all.is_empty() { "{}".into() } else { all }
    }

    #[test]
    fn tool_call_arguments_count_as_missing_only_if_all_pieces_are_white_space_or_null() {
        for (pieces, all) in [
            (&[][..], "{}"),
            (&["", " ", "\\n"], "{}"),
            (&["null"], "{}"),
            (&[" nu", "ll\\t"], "{}"),
            (&["n", "u", "l", "l"], "{}"),
            (&["\\u006eu", "l\\u006c"], "{}"),
            // This `null` is a placeholder for the object that follows it.
            (&["null", " {\\\"a\\\":", "1}"], "{\\\"a\\\":1}"),
            (&["nul", "l{}"], "{}"),
            (&["{\\\"a\\\":[1,", "null", "]}"], "{\\\"a\\\":[1,null]}"),
            (&["[", "null", "]"], "[null]"),
            // If the pieces are a truncated `null` or begin another word, they are forwarded unchanged.
            (&["nu"], "nu"),
            (&["nu", "m"], "num"),
            (&["nu", " ll"], "nu ll"),
            (&["nu{"], "nu{"),
            (&["null", "x"], "nullx"),
            (&["nullnull"], "nullnull"),
            (&["\\\\"], "\\\\"),
        ] {
            assert_eq!(taken(pieces), all, "{pieces:?}");
        }
    }
}

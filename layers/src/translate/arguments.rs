//! Where a tool's arguments begin that come in pieces. Vendors write blanks or `null` for a call without
//! any; but a piece of arguments may be just that as well, as in `[1,` `null` `]`: only the whole tells.

use std::str::Bytes;

const NULL: &str = "null";

/// Arguments up to where they are more than blanks or `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lead {
    /// How many letters of `null` have come.
    letters: usize,
    begun: bool,
}

impl Lead {
    /// They are more than that.
    pub(super) const fn begun(self) -> bool {
        self.begun
    }

    /// Takes the next piece, as it stands between the quotes of a string. Gives what goes on now: what was
    /// kept of the pieces before, and what of this one.
    pub(super) fn take<'p>(&mut self, piece: &'p str) -> (&'static str, &'p str) {
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
                // A null in front of an object has kept its place.
                let kept = if between && byte == b'{' {
                    ""
                } else {
                    &NULL[..self.letters]
                };
                return (kept, &piece[at..]);
            }
        }
    }

    /// They came to nothing: to blanks, or to `null`.
    pub(super) const fn is_none(self) -> bool {
        !self.begun && matches!(self.letters, 0 | 4)
    }

    /// What stands for arguments that have ended before they began: the empty object, or so much of `null`
    /// as came before it was cut.
    pub(super) fn end(self) -> &'static str {
        match self.letters {
            0 | 4 => "{}",
            letters => &NULL[..letters],
        }
    }
}

/// The next byte of what stands between the quotes of a string. Of an escape it is the byte that it stands
/// for, or any that has no meaning to JSON.
pub(super) fn next_byte(bytes: &mut Bytes<'_>) -> Option<u8> {
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

    /// What goes on of these pieces, and what stands for them at their end.
    fn taken(pieces: &[&str]) -> String {
        let (mut lead, mut all) = (Lead::default(), String::new());
        for piece in pieces {
            let (kept, rest) = lead.take(piece);
            all.push_str(kept);
            all.push_str(rest);
        }
        if !lead.begun() {
            all.push_str(lead.end());
        }
        all
    }

    #[test]
    fn arguments_are_none_only_as_a_whole() {
        for (pieces, all) in [
            (&[][..], "{}"),
            (&["", " ", "\\n"], "{}"),
            (&["null"], "{}"),
            (&[" nu", "ll\\t"], "{}"),
            (&["n", "u", "l", "l"], "{}"),
            (&["\\u006eu", "l\\u006c"], "{}"),
            // Kept its place for an object.
            (&["null", " {\\\"a\\\":", "1}"], "{\\\"a\\\":1}"),
            (&["nul", "l{}"], "{}"),
            (&["{\\\"a\\\":[1,", "null", "]}"], "{\\\"a\\\":[1,null]}"),
            (&["[", "null", "]"], "[null]"),
            // Cut off, or another word: what came is what there is.
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

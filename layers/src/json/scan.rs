//! A fast scan for strings in bytes that may be invalid JSON.

use super::bytes::{NEAR, special};

/// A string that was found in bytes which may be invalid JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The bytes between the string's quotes.
    pub text: &'a [u8],
    /// Whether the string contains escapes.
    pub escaped: bool,
    /// The position after the string's closing quote.
    pub end: usize,
}

/// Finds the first string at or after the position `at`.
#[inline]
#[must_use]
pub fn string(json: &[u8], at: usize) -> Option<Found<'_>> {
    // A byte-by-byte search suffices, because usually only one or two bytes are between two strings.
    let quote = json.get(at..)?.iter().position(|byte| *byte == b'"')?;
    let start = at + quote + 1;
    let mut end = special::<false, NEAR>(json, start);
    let mut escaped = false;
    while *json.get(end)? != b'"' {
        escaped = true;
        end = special::<false, NEAR>(json, end + 2);
    }
    Some(Found {
        text: &json[start..end],
        escaped,
        end: end + 1,
    })
}

/// Returns the length of a JSON string in UTF-8 bytes after its escapes are decoded.
#[must_use]
pub fn decoded_len(text: &[u8]) -> u64 {
    let (mut at, mut bytes) = (0, 0);
    while let Some(plain) = memchr::memchr(b'\\', &text[at..]) {
        bytes += plain as u64;
        at += plain + 1;
        let unicode = text.get(at) == Some(&b'u');
        let digits = text.get(at + 1..at + 5).filter(|_| unicode);
        let code = digits
            .and_then(|digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes += match code {
            None | Some(0..0x80) => 1,
            // Each half of a surrogate pair counts as half of a four-byte character.
            Some(0x80..0x800 | 0xD800..0xE000) => 2,
            Some(_) => 3,
        };
        at = (at + if code.is_some() { 5 } else { 1 }).min(text.len());
    }
    bytes + (text.len() - at) as u64
}

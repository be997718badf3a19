//! JSON strings in bytes, without building anything.

use memchr::memchr2;

/// The first string from `at` on: what is between its quotes, and where it ends.
#[must_use]
pub fn string(json: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let start = at + memchr::memchr(b'"', json.get(at..)?)? + 1;
    let mut end = start;
    loop {
        end += memchr2(b'"', b'\\', json.get(end..)?)?;
        if json[end] == b'"' {
            return Some((&json[start..end], end + 1));
        }
        end += 2;
    }
}

/// The UTF-8 length of a JSON string's contents.
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
            // Each half of a surrogate pair is half of a four-byte character.
            Some(0x80..0x800 | 0xD800..0xE000) => 2,
            Some(_) => 3,
        };
        at = (at + if code.is_some() { 5 } else { 1 }).min(text.len());
    }
    bytes + (text.len() - at) as u64
}

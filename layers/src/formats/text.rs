//! JSON strings that are copied from one document to another without being decoded, so that their escapes do not
//! change.

use std::borrow::Cow;

use serde_json::value::{RawValue, to_raw_value};

use crate::{
    error::Error,
    formats::wire::{Object, Value},
};

/// A JSON value: borrowed from a document as it is written, or built here.
pub(crate) type Json<'a> = Cow<'a, RawValue>;

/// Returns the text between the quotes of a JSON string, still escaped; `None` for any other value.
pub(crate) fn inner(value: &RawValue) -> Option<&str> {
    value.get().strip_prefix('"')?.strip_suffix('"')
}

/// Returns the text between the quotes of a JSON string, still escaped; `None` if the field is absent, or if the string
/// is empty: vendors send `""` and null for fields that they omit.
pub(crate) fn given(value: Option<&RawValue>) -> Option<&str> {
    value.and_then(inner).filter(|inner| !inner.is_empty())
}

/// Returns a field of a request that must be a string, as it is written.
pub(crate) fn literal<'a>(value: &Value<'a, '_>) -> Result<&'a RawValue, Error> {
    match inner(value.raw) {
        Some(_) => Ok(value.raw),
        None => Err(value.wrong_type("string")),
    }
}

/// Returns an optional string; an empty one counts as missing.
pub(crate) fn optional<'a>(
    object: &Object<'a, '_>,
    name: &str,
) -> Result<Option<&'a RawValue>, Error> {
    let Some(value) = object.get(name)? else {
        return Ok(None);
    };
    let text = literal(&value)?;
    Ok(given(Some(text)).map(|_| text))
}

/// Joins pieces, each JSON-escaped and without quotes, to one JSON string.
pub(crate) fn quoted(pieces: &[&str]) -> Json<'static> {
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut json = String::with_capacity(length + 2);
    json.push('"');
    json.extend(pieces.iter().copied());
    json.push('"');
    made(json)
}

/// Encodes a text as a JSON string.
pub(crate) fn string(text: &str) -> Json<'static> {
    Cow::Owned(to_raw_value(text).expect("any text makes a JSON string"))
}

/// Wraps JSON that the gateway has built and that is known to be valid.
pub(crate) fn made(json: String) -> Json<'static> {
    Cow::Owned(RawValue::from_string(json).expect("JSON built from parts of JSON is JSON"))
}

/// Joins JSON strings. The separator `between` must be JSON-escaped.
pub(crate) fn joined<'a>(mut texts: Vec<Json<'a>>, between: &str) -> Json<'a> {
    if texts.len() == 1 {
        return texts.swap_remove(0);
    }
    let mut pieces = Vec::with_capacity(2 * texts.len());
    for text in &texts {
        if !pieces.is_empty() {
            pieces.push(between);
        }
        pieces.extend(inner(text));
    }
    quoted(&pieces)
}

/// The longest name of a tool, or id of a call, that vendors of the chat and the responses format accept, in
/// characters.
const CHARS_MAX: usize = 64;
/// How many characters of a longer name or id are kept before a dash and a hash of 16 digits.
const CHARS_KEPT: usize = CHARS_MAX - 17;

/// Shortens a name or an id, given as a JSON string, to at most 64 characters. The result for a name is the same
/// everywhere, so calls, results and tools still match.
pub(crate) fn shortened(literal: Json<'_>) -> Json<'_> {
    if literal.get().len() - 2 <= CHARS_MAX {
        return literal;
    }
    let text = serde_json::from_str::<String>(literal.get());
    match text.ok().filter(|text| text.chars().count() > CHARS_MAX) {
        None => literal,
        Some(text) => {
            let stored: String = text.chars().take(CHARS_KEPT).collect();
            string(&format!("{stored}-{:016x}", hash(text.as_bytes())))
        }
    }
}

/// FNV-1a with 64 bits. The result is the same on every node and in every build, so ids that are derived from it are
/// stable.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Json<'_> {
        Cow::Borrowed(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn strings_are_joined_as_written() {
        let texts = vec![
            raw(r#""a\u00e9\n""#),
            raw(r#""""#),
            raw(r#""\ud83d\ude00\\""#),
        ];
        assert_eq!(
            joined(texts, "\\n").get(),
            r#""a\u00e9\n\n\n\ud83d\ude00\\""#
        );
        assert_eq!(joined(vec![raw("\"x\"")], "\\n").get(), "\"x\"");
        assert_eq!(joined(Vec::new(), "\\n").get(), "\"\"");
    }

    #[test]
    fn names_over_64_characters_are_shortened_always_alike() {
        let long = "ж".repeat(65);
        for (name, short) in [
            ("get_weather".to_owned(), "get_weather".to_owned()),
            ("n".repeat(64), "n".repeat(64)),
            ("ж".repeat(64), "ж".repeat(64)),
            (
                long.clone(),
                format!("{}-{:016x}", "ж".repeat(47), hash(long.as_bytes())),
            ),
        ] {
            assert_eq!(shortened(string(&name)).get(), string(&short).get());
        }
        // The same name, spelled with escapes, gives the same result.
        let escaped = raw(r#""\u0436""#).get().trim_matches('"').repeat(65);
        let escaped = made(format!("\"{escaped}\""));
        assert_eq!(shortened(escaped).get(), shortened(string(&long)).get());
    }

    #[test]
    fn name_hash_is_stable_across_versions() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}

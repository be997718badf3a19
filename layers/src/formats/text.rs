//! JSON strings that are copied from one document to another without being decoded, so that their escapes stay
//! unchanged.

use std::borrow::Cow;

use serde_json::value::{RawValue, to_raw_value};

use crate::{
    error::Error,
    formats::wire::{Object, Value},
};

/// A JSON value, either borrowed from a document as written there, or built by the gateway.
pub(crate) type Json<'a> = Cow<'a, RawValue>;

/// Returns the text between the quotes of a JSON string, with its escapes. `None` for any other value.
pub(crate) fn inner(value: &RawValue) -> Option<&str> {
    value.get().strip_prefix('"')?.strip_suffix('"')
}

/// Returns the text between the quotes of a JSON string, with its escapes. `None` if the field is absent or the string
/// is empty, because vendors send `""` and null for fields that they omit.
pub(crate) fn given(value: Option<&RawValue>) -> Option<&str> {
    value.and_then(inner).filter(|inner| !inner.is_empty())
}

/// Returns a field of a request that must be a string, as written in the request.
pub(crate) fn literal<'a>(value: &Value<'a, '_>) -> Result<&'a RawValue, Error> {
    match inner(value.raw) {
        Some(_) => Ok(value.raw),
        None => Err(value.wrong_type("string")),
    }
}

/// Returns an optional string. An empty string counts as missing.
pub(crate) fn optional<'a>(
    object: &Object<'a, '_>,
    name: &str,
) -> Result<Option<&'a RawValue>, Error> {
    let text = object.get(name)?.map(|value| literal(&value)).transpose()?;
    Ok(text.filter(|text| given(Some(text)).is_some()))
}

/// Joins pieces into one JSON string. The pieces are JSON-escaped and without quotes.
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
    Cow::Owned(to_raw_value(text).expect("any text can be written as a JSON string"))
}

/// Wraps JSON that the gateway has built and that is therefore valid.
pub(crate) fn made(json: String) -> Json<'static> {
    Cow::Owned(RawValue::from_string(json).expect("JSON that was built from valid JSON is valid"))
}

/// Joins JSON strings into one, with the separator `between`, which must be JSON-escaped.
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

/// The maximum number of characters of a tool's name or a call's id that vendors of the Chat Completions and Responses
/// formats accept.
const CHARS_MAX: usize = 64;
/// The number of characters of a longer name or id that are kept. They are followed by a dash and a hash of 16 digits.
const CHARS_KEPT: usize = CHARS_MAX - 17;

/// Shortens a name or an id, given as a JSON string, to at most 64 characters. Equal names are shortened in the same
/// way, so that tool calls still match their tools, and tool results their calls.
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

/// Returns the 64-bit FNV-1a hash. It is the same on every node and in every build, so ids that are derived from it are
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
    fn json_strings_are_joined_without_decoding() {
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
    fn names_over_64_characters_are_always_shortened_in_the_same_way() {
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
        // The same name with escapes must give the same result.
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

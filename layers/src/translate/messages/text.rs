//! JSON strings that go from one document into another without being read: escapes stay as written.

use std::borrow::Cow;

use serde_json::value::{RawValue, to_raw_value};

use crate::{
    error::Error,
    translate::wire::{Object, Value},
};

/// A JSON value taken over as it stands, or made here.
pub(in crate::translate) type Json<'a> = Cow<'a, RawValue>;

/// What is between the quotes of a string; `None` for any other value.
pub(in crate::translate) fn inner(value: &RawValue) -> Option<&str> {
    value.get().strip_prefix('"')?.strip_suffix('"')
}

/// What is between the quotes of a string, if it is there and not empty: vendors write `""` and null
/// for what they leave out.
pub(in crate::translate) fn given(value: Option<&RawValue>) -> Option<&str> {
    value.and_then(inner).filter(|inner| !inner.is_empty())
}

/// A field of a request that must be a string, as it stands.
pub(in crate::translate) fn literal<'a>(value: &Value<'a, '_>) -> Result<&'a RawValue, Error> {
    match inner(value.raw) {
        Some(_) => Ok(value.raw),
        None => Err(value.wrong_type("string")),
    }
}

/// A string that may be left out; an empty one is as good as left out.
pub(in crate::translate) fn optional<'a>(
    object: &Object<'a, '_>,
    name: &str,
) -> Result<Option<&'a RawValue>, Error> {
    let Some(value) = object.get(name)? else {
        return Ok(None);
    };
    let text = literal(&value)?;
    Ok(given(Some(text)).map(|_| text))
}

/// A string of pieces, each as it stands between the quotes of a string.
pub(in crate::translate) fn quoted(pieces: &[&str]) -> Json<'static> {
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut json = String::with_capacity(length + 2);
    json.push('"');
    json.extend(pieces.iter().copied());
    json.push('"');
    made(json)
}

/// A text as a JSON string.
pub(in crate::translate) fn string(text: &str) -> Json<'static> {
    Cow::Owned(to_raw_value(text).expect("any text makes a JSON string"))
}

/// JSON that was put together here.
pub(in crate::translate) fn made(json: String) -> Json<'static> {
    Cow::Owned(RawValue::from_string(json).expect("parts of JSON were put together as JSON"))
}

/// Several strings as one, with `between`, escaped as JSON has it, in between.
pub(in crate::translate) fn joined<'a>(mut texts: Vec<Json<'a>>, between: &str) -> Json<'a> {
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

/// FNV-1a, 64 bits: the same on every node and in every build, so that an id made of it is, too.
pub(in crate::translate) fn hash(bytes: &[u8]) -> u64 {
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
    fn strings_are_joined_as_they_are_written() {
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
    fn a_hash_never_changes() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}

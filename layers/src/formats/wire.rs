//! Used by requests and answers: the context of a translation, and JSON that is read and written with its values as
//! they are written. So values that are not interpreted do not change, such as a number outside the range of every
//! numeric type, a schema or an escape.

use std::{borrow::Cow, fmt};

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memchr;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::text::{Json, string};
use crate::{
    call::Format,
    error::{BoxError, Error, Problem},
    model::{Dialect, OutputField},
    path::Path,
};

/// The data, in addition to the body, from which a request is translated.
#[derive(Clone, Copy, Debug)]
pub struct RequestCx<'a> {
    /// The name that the vendor gives the model.
    pub model: &'a str,
    /// The ceiling of output tokens, per choice, that the hold covers.
    pub output_tokens: u64,
    /// The fields of the vendor's format that the model accepts.
    pub dialect: &'a Dialect,
    /// The settings for the vendor's prompt cache.
    pub cache: CacheCx<'a>,
}

/// A request's settings for the vendor's cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheCx<'a> {
    /// A hash that is equal for all calls of one key in one session; `None` if the caller named no session.
    pub key: Option<&'a str>,
    /// Whether the model has a price for cache writes with a lifetime of an hour.
    pub hour_priced: bool,
}

impl RequestCx<'_> {
    /// Returns the ceiling of output tokens, if `field` is the name under which the vendor accepts it.
    pub(crate) fn ceiling(&self, field: OutputField) -> Option<u64> {
        (self.dialect.output_field == field).then_some(self.output_tokens)
    }

    /// Returns `prompt_cache_key`, if the vendor accepts it: the caller's own, or a key that is derived from the
    /// session. With it, a vendor routes calls to the machine that has their prompt in its cache. Unless the dialect
    /// decides, vendors of the chat format get no derived key, because many of them reject unknown fields.
    pub(crate) fn cache_key<'a>(
        &self,
        given: Option<&'a RawValue>,
        vendor: Format,
    ) -> Option<Json<'a>> {
        let taken = self.dialect.prompt_cache_key;
        if taken == Some(false) {
            return None;
        }
        let ours = taken.unwrap_or(vendor == Format::Responses);
        let key = || self.cache.key.filter(|_| ours).map(string);
        given.map(Cow::Borrowed).or_else(key)
    }
}

/// `stream_options` of a chat request. It requests the usage by which the stream is charged.
#[derive(Debug, Serialize)]
pub(crate) struct StreamOptions {
    include_usage: bool,
}

impl StreamOptions {
    pub(crate) fn of(stream: bool) -> Option<Self> {
        stream.then_some(Self {
            include_usage: true,
        })
    }
}

/// The data, in addition to the body, from which an answer is translated.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerCx {
    /// The current time in Unix seconds.
    pub created: u64,
    /// For chat callers: whether the caller requested the usage of a stream (`stream_options.include_usage`).
    pub usage_asked: bool,
    /// For messages callers: whether the caller requested blocks of thinking.
    pub thinking_asked: bool,
}

/// Creates the error for a vendor's answer that violates its format: a 502.
pub(crate) fn broken(why: impl Into<BoxError>) -> Error {
    Error::VendorBroken(why.into())
}

/// Creates the error for an answer that exceeds a memory limit: a 502 that is charged.
pub(crate) fn too_much(why: String) -> Error {
    Error::AnswerTooLong(why.into())
}

/// Appends `value` to the output as JSON without white space.
pub(crate) fn write_json(out: &mut BytesMut, value: &impl Serialize) {
    serde_json::to_writer(out.writer(), value)
        .expect("writing to memory does not fail, and keys are strings");
}

/// Returns the JSON of a value without white space between its tokens, which stay as they are written.
pub(crate) fn compact(value: &RawValue) -> Cow<'_, str> {
    let json = value.get();
    // White space within strings also leads past this shortcut; then the value is copied unchanged.
    if !json.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return Cow::Borrowed(json);
    }
    let (mut text, mut in_string, mut escaped) = (String::with_capacity(json.len()), false, false);
    text.extend(json.chars().filter(|char| {
        if in_string {
            in_string = escaped || *char != '"';
            escaped = !escaped && *char == '\\';
            return true;
        }
        in_string = *char == '"';
        !char.is_ascii_whitespace()
    }));
    Cow::Owned(text)
}

/// A value of the request, which is not parsed yet, with its path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value<'a, 'p> {
    pub(crate) path: Path<'p>,
    pub(crate) raw: &'a RawValue,
}

impl<'a, 'p> Value<'a, 'p> {
    /// Creates a 400 error that names this value.
    pub(crate) fn refuse(&self, problem: Problem) -> Error {
        self.path.refuse(problem)
    }

    /// Returns the value as decoded text; other types are refused.
    pub(crate) fn string(&self) -> Result<Cow<'a, str>, Error> {
        match serde_json::from_str(self.raw.get()) {
            Ok(Text(text)) => Ok(text),
            Err(_) => Err(self.wrong_type("string")),
        }
    }

    /// Returns the value as a boolean.
    pub(crate) fn flag(&self) -> Result<bool, Error> {
        match self.raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.wrong_type("boolean")),
        }
    }

    /// Returns the value as an unsigned integer.
    pub(crate) fn count(&self) -> Result<u64, Error> {
        self.raw
            .get()
            .parse()
            .map_err(|_| self.wrong_type("integer"))
    }

    /// Returns the value as a number of any kind.
    pub(crate) fn number(&self) -> Result<f64, Error> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.wrong_type("number"))
    }

    /// Returns the fields of the object.
    pub(crate) fn object(self) -> Result<Object<'a, 'p>, Error> {
        match serde_json::from_str(self.raw.get()) {
            Ok(fields) => Ok(Object {
                path: self.path,
                fields,
            }),
            Err(_) => Err(self.wrong_type("object")),
        }
    }

    /// Returns the elements of the array, each of which is an object.
    pub(crate) fn objects(&self) -> Result<Vec<Fields<'a>>, Error> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.wrong_type("array of objects"))
    }

    /// Returns the elements of the array.
    pub(crate) fn array(&self) -> Result<Vec<&'a RawValue>, Error> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.wrong_type("array"))
    }

    /// Creates a 400 error: the value is not of the expected type.
    pub(crate) fn wrong_type(&self, expected: &'static str) -> Error {
        self.refuse(Problem::WrongType(expected))
    }
}

/// A string that is borrowed from the JSON if it has no escapes. serde borrows in a `Cow` only with this attribute.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// An object of the request, with its path.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a, 'p> {
    pub(crate) path: Path<'p>,
    pub(crate) fields: Fields<'a>,
}

impl<'a> Object<'a, '_> {
    /// Returns the value of a field; null counts as absent.
    pub(crate) fn get<'o>(&'o self, name: &'o str) -> Result<Option<Value<'a, 'o>>, Error> {
        let path = Path::Key(&self.path, name);
        let mut found = self.fields.0.iter().filter(|(key, _)| *key == name);
        let first = found.next();
        if found.next().is_some() {
            return Err(path.refuse(Problem::Duplicate));
        }
        Ok(first
            .filter(|(_, raw)| raw.get() != "null")
            .map(|(_, raw)| Value { path, raw }))
    }

    /// Returns the value of a required field.
    pub(crate) fn need<'o>(&'o self, name: &'o str) -> Result<Value<'a, 'o>, Error> {
        self.get(name)?
            .ok_or_else(|| self.refuse(name, Problem::Missing))
    }

    /// Creates a 400 error that names a field of this object.
    pub(crate) fn refuse(&self, name: &str, problem: Problem) -> Error {
        Path::Key(&self.path, name).refuse(problem)
    }
}

/// The fields of an object in order; their values are not parsed yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut pairs = Vec::with_capacity(4);
                while let Some((Text(name), value)) =
                    map.next_entry::<Text<'de>, &'de RawValue>()?
                {
                    pairs.push((name, value));
                }
                Ok(Fields(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Returns the JSON with replacement characters for invalid UTF-8 and lone surrogates; `None` if it has neither.
pub(crate) fn mended(json: &[u8]) -> Option<Bytes> {
    let mut text = String::from_utf8_lossy(json);
    for at in lone_halves(text.as_bytes()) {
        text.to_mut().replace_range(at..at + 6, "\\ufffd");
    }
    match text {
        Cow::Borrowed(_) => None,
        Cow::Owned(text) => Some(text.into()),
    }
}

/// Returns the offsets of the escapes of lone surrogates.
fn lone_halves(json: &[u8]) -> Vec<usize> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(skipped) = json.get(at..).and_then(|rest| memchr(b'\\', rest)) {
        let escape = at + skipped;
        at = match (half(json, escape), half(json, escape + 6)) {
            (None, _) => escape + 2,
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => escape + 12,
            (Some(_), _) => {
                found.push(escape);
                escape + 6
            }
        };
    }
    found
}

/// Returns the surrogate whose escape is at this offset, if there is one.
fn half(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..)?.strip_prefix(b"\\u")?.get(..4)?;
    let unit = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (0xd800..=0xdfff).contains(&unit).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_text_is_replaced_and_everything_else_stays() {
        for (json, expected) in [
            (&b"{}"[..], None),
            (br#"["\ud83d\ude00","\\ud83d","\u0041"]"#, None),
            (br#""a\ud83d b""#, Some(r#""a\ufffd b""#)),
            (br#""\ude00\ud83d""#, Some(r#""\ufffd\ufffd""#)),
            (br#""\uD83D\ud83d\ude00""#, Some(r#""\ufffd\ud83d\ude00""#)),
            (b"\"a\xed\xa0\xbd\"", Some("\"a\u{fffd}\u{fffd}\u{fffd}\"")),
            (br#""\ud83"#, None),
            (br#""\"#, None),
        ] {
            let mended = mended(json);
            assert_eq!(mended.as_deref(), expected.map(str::as_bytes), "{json:?}");
        }
    }

    #[test]
    fn only_blanks_are_removed() {
        for (json, compacted) in [
            ("{}", "{}"),
            ("{ }", "{}"),
            (
                "{\n  \"a\" : [ 1e400 , 12345678901234567890123 ],\t\"b\":null }",
                r#"{"a":[1e400,12345678901234567890123],"b":null}"#,
            ),
            (
                r#"{"a b": "c \" d \\" , "e": "\\\" f"}"#,
                r#"{"a b":"c \" d \\","e":"\\\" f"}"#,
            ),
        ] {
            let value: &RawValue = serde_json::from_str(json).unwrap();
            assert_eq!(compact(value), compacted);
        }
    }

    #[test]
    fn fields_are_found_by_their_decoded_names_and_once() {
        let raw: &RawValue = serde_json::from_str(r#"{"\u0061":1,"b":null,"c":2,"c":3}"#).unwrap();
        let object = Value {
            path: Path::Root,
            raw,
        }
        .object()
        .unwrap();
        assert_eq!(object.need("a").unwrap().count().unwrap(), 1);
        assert!(
            object.get("b").unwrap().is_none(),
            "null is as good as absent"
        );
        assert!(matches!(
            object.get("c"),
            Err(Error::Invalid { field, problem: Problem::Duplicate }) if field == "c"
        ));
    }
}

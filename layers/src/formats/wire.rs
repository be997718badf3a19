//! The context of a translation, and JSON values that are read and written unchanged, for requests and responses.
//! Because the values are not interpreted, nothing in them changes: a number outside the range of every numeric type, a
//! schema, an escape.

use std::{borrow::Cow, fmt};

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memchr;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

pub(crate) use super::errors::broken;
use super::{
    text::{Json, literal, string},
    turn::put,
};
use crate::{
    call::Format,
    error::{Error, Problem},
    model::{Dialect, OutputField},
    path::Path,
};

/// The data from which a request is translated, in addition to its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestCx<'a> {
    /// The vendor's name for the model.
    pub model: &'a str,
    /// The limit of output tokens per choice that the hold covers.
    pub output_tokens: u64,
    /// The fields of the vendor's format that the model accepts.
    pub dialect: &'a Dialect,
    /// The request's settings for the vendor's prompt cache.
    pub cache: CacheCx<'a>,
}

/// The settings of a request for the vendor's prompt cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheCx<'a> {
    /// A hash that is equal for all calls of one key in one session. `None` if the caller named no session.
    pub key: Option<&'a str>,
    /// Whether the model has a price for cache writes with a lifetime of an hour.
    pub hour_priced: bool,
}

impl RequestCx<'_> {
    /// Returns the limit of output tokens, if `field` is the field in which the vendor accepts it.
    pub(crate) fn ceiling(&self, field: OutputField) -> Option<u64> {
        (self.dialect.output_field == field).then_some(self.output_tokens)
    }

    /// Returns the `prompt_cache_key` for the vendor, if the vendor accepts it: the caller's own key, or a key that is
    /// derived from the session. With this key, a vendor routes calls to the machine that has their prompt in its
    /// cache. Unless the dialect decides otherwise, vendors of the Chat Completions format get no derived key, because
    /// many of them reject unknown fields.
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

/// The data from which a response is translated, in addition to its body.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerCx {
    /// The time of the translation, in Unix seconds.
    pub created: u64,
    /// For callers of the Chat Completions format: whether the caller requested the usage of a stream
    /// (`stream_options.include_usage`).
    pub usage_asked: bool,
    /// For callers of the Messages format: whether the caller requested blocks of thinking.
    pub thinking_asked: bool,
}

/// Creates the error of a response that exceeds a memory limit. It is a 502, and the call is charged.
pub(crate) fn too_much(why: String) -> Error {
    Error::AnswerTooLong(why.into())
}

/// Creates the error of a response that has more than `max` of these parts.
pub(crate) fn too_many(max: impl fmt::Display, parts: &str) -> Error {
    too_much(format!("the response has more than {max} {parts}"))
}

/// Appends `value` to `out` as JSON without white space.
pub(crate) fn write_json(out: &mut BytesMut, value: &impl Serialize) {
    serde_json::to_writer(out.writer(), value)
        .expect("writing to memory does not fail, and keys are strings");
}

/// Writes a JSON object field by field.
#[derive(Debug)]
pub(crate) struct ObjectWriter(BytesMut);

impl ObjectWriter {
    /// Begins an object of about this many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let mut out = BytesMut::with_capacity(bytes);
        out.put_u8(b'{');
        Self(out)
    }

    pub(crate) fn field(&mut self, name: &str, value: &impl Serialize) -> &mut Self {
        let comma = if self.0.len() > 1 { "," } else { "" };
        put(&mut self.0, format_args!("{comma}\"{name}\":"));
        write_json(&mut self.0, value);
        self
    }

    /// Writes the field, unless `value` is `None`.
    pub(crate) fn some(&mut self, name: &str, value: Option<impl Serialize>) -> &mut Self {
        match value {
            Some(value) => self.field(name, &value),
            None => self,
        }
    }

    /// Writes the field unless the list is empty.
    pub(crate) fn list(&mut self, name: &str, list: &[impl Serialize]) -> &mut Self {
        self.some(name, (!list.is_empty()).then_some(list))
    }

    pub(crate) fn end(mut self) -> Bytes {
        self.0.put_u8(b'}');
        self.0.freeze()
    }
}

/// Returns the JSON of a value without white space between its tokens. The tokens stay as written.
pub(crate) fn compact(value: &RawValue) -> Cow<'_, str> {
    let json = value.get();
    // White space inside strings also prevents this shortcut. Then the value is copied unchanged.
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

/// A value of the request that is not parsed yet, with its path.
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

    /// Returns the value as decoded text. Refuses values that are not strings.
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
    pub(crate) fn objects(&self) -> Result<impl Iterator<Item = Object<'a, '_>>, Error> {
        let list: Vec<Fields<'a>> = serde_json::from_str(self.raw.get())
            .map_err(|_| self.wrong_type("array of objects"))?;
        let objects = list.into_iter().enumerate();
        Ok(objects.map(|(index, fields)| Object {
            path: Path::Index(&self.path, index),
            fields,
        }))
    }
    /// Returns the elements of the array.
    pub(crate) fn elements(&self) -> Result<impl Iterator<Item = Value<'a, '_>>, Error> {
        let list = self.array()?.into_iter().enumerate();
        Ok(list.map(|(index, raw)| Value {
            path: Path::Index(&self.path, index),
            raw,
        }))
    }
    /// Returns the elements of the array, without their paths.
    pub(crate) fn array(&self) -> Result<Vec<&'a RawValue>, Error> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.wrong_type("array"))
    }
    /// Creates a 400 error, which states that the value is not of the expected type.
    pub(crate) fn wrong_type(&self, expected: &'static str) -> Error {
        self.refuse(Problem::WrongType(expected))
    }
}

/// A string that is borrowed from the JSON if it has no escapes. Only with this attribute does serde borrow in a `Cow`.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// An object of the request, with its path.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a, 'p> {
    pub(crate) path: Path<'p>,
    pub(crate) fields: Fields<'a>,
}

impl<'a> Object<'a, '_> {
    /// Returns the value of a field. A field with null counts as absent.
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

    /// Returns the object in a field.
    pub(crate) fn object<'o>(&'o self, name: &'o str) -> Result<Option<Object<'a, 'o>>, Error> {
        self.get(name)?.map(Value::object).transpose()
    }
    /// Returns the object in a required field.
    pub(crate) fn need_object<'o>(&'o self, name: &'o str) -> Result<Object<'a, 'o>, Error> {
        self.need(name)?.object()
    }
    /// Returns the string in a required field, as written in the request.
    pub(crate) fn need_literal(&self, name: &str) -> Result<Json<'a>, Error> {
        literal(&self.need(name)?).map(Cow::Borrowed)
    }
    /// Returns the value of a boolean field.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Error> {
        self.get(name)?.map(|flag| flag.flag()).transpose()
    }
    /// Creates a 400 error that names a field of this object.
    pub(crate) fn refuse(&self, name: &str, problem: Problem) -> Error {
        Path::Key(&self.path, name).refuse(problem)
    }
}

/// The fields of an object in order. Their values are not parsed yet.
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

/// Returns the JSON with invalid UTF-8 and lone surrogates replaced by the replacement character. `None` if it contains
/// neither.
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

/// Returns the offsets of the escapes that are lone surrogates.
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

/// Returns the surrogate whose escape begins at this offset, if there is one.
fn half(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..)?.strip_prefix(b"\\u")?.get(..4)?;
    let unit = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (0xd800..=0xdfff).contains(&unit).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_characters_in_json_are_replaced_and_everything_else_stays_unchanged() {
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
    fn only_white_space_between_tokens_is_removed() {
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
    fn fields_are_found_by_their_decoded_names_and_must_be_unique() {
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

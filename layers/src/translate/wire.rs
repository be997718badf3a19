//! What both directions share: what they are told beside the JSON, and reading and writing of JSON
//! that carries values through as they stand. A number that no type holds, a schema, an escape: what
//! is not read is not changed.

use std::{borrow::Cow, fmt};

use bytes::{BufMut, BytesMut};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    error::{BoxError, Error, Problem},
    model::{Dialect, OutputField},
    path::Path,
};

/// What a request's translation needs beside the request.
#[derive(Clone, Copy, Debug)]
pub struct RequestCx<'a> {
    /// The vendor's name of the model.
    pub model: &'a str,
    /// The ceiling on output tokens, per choice, that the hold pays for.
    pub output_tokens: u64,
    /// What the model takes of its vendor's format.
    pub dialect: &'a Dialect,
}

impl RequestCx<'_> {
    /// The ceiling on output tokens, if `field` is where a chat request to the vendor has it.
    pub(super) fn ceiling(&self, field: OutputField) -> Option<u64> {
        (self.dialect.output_field == field).then_some(self.output_tokens)
    }

    /// A number of the request that has the same name in each format, as it is written, where the model takes it.
    pub(super) fn sampling<'a>(
        &self,
        fields: &Object<'a, '_>,
        name: &str,
    ) -> Result<Option<&'a RawValue>, Error> {
        let Some(value) = fields.get(name)? else {
            return Ok(None);
        };
        value.number()?;
        Ok(self.dialect.sampling.then_some(value.raw))
    }
}

/// What a stream is asked to tell beside its text, in a chat request: its usage, which it is charged by.
#[derive(Debug, Serialize)]
pub(super) struct StreamOptions {
    include_usage: bool,
}

impl StreamOptions {
    pub(super) fn of(stream: bool) -> Option<Self> {
        stream.then_some(Self {
            include_usage: true,
        })
    }
}

/// What an answer's translation needs beside the answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerCx {
    /// Now, in Unix seconds.
    pub created: u64,
    /// Chat callers: whether a stream's usage was asked for (`stream_options.include_usage`).
    pub usage_asked: bool,
    /// Messages callers: whether thinking blocks are wanted.
    pub thinking_asked: bool,
}

/// A vendor's answer that is not what its format asks for: a 502.
pub(super) fn broken(why: impl Into<BoxError>) -> Error {
    Error::VendorBroken(why.into())
}

/// More of an answer than is kept: a 502 that is charged.
pub(super) fn too_much(why: String) -> Error {
    Error::AnswerTooLong(why.into())
}

/// Writes `value` as compact JSON behind what is there.
pub(super) fn write_json(out: &mut BytesMut, value: &impl Serialize) {
    serde_json::to_writer(out.writer(), value).expect("memory takes it, and names are strings");
}

/// A value's JSON without the blanks between its tokens. What it consists of stays as it is written.
pub(super) fn compact(value: &RawValue) -> Cow<'_, str> {
    let json = value.get();
    // Blanks inside strings cost the short way, not the result.
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

/// A value of the request, not read yet, and the way to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'a, 'p> {
    pub(super) path: Path<'p>,
    pub(super) raw: &'a RawValue,
}

impl<'a, 'p> Value<'a, 'p> {
    /// A 400 that names this value.
    pub(super) fn refuse(&self, problem: Problem) -> Error {
        self.path.refuse(problem)
    }

    /// Its text, decoded.
    pub(super) fn string(&self) -> Result<Cow<'a, str>, Error> {
        match serde_json::from_str(self.raw.get()) {
            Ok(Text(text)) => Ok(text),
            Err(_) => Err(self.wrong_type("string")),
        }
    }

    /// A boolean.
    pub(super) fn flag(&self) -> Result<bool, Error> {
        match self.raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.wrong_type("boolean")),
        }
    }

    /// An unsigned integer.
    pub(super) fn count(&self) -> Result<u64, Error> {
        self.raw
            .get()
            .parse()
            .map_err(|_| self.wrong_type("integer"))
    }

    /// Any number.
    pub(super) fn number(&self) -> Result<f64, Error> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.wrong_type("number"))
    }

    /// Its fields.
    pub(super) fn object(self) -> Result<Object<'a, 'p>, Error> {
        match serde_json::from_str(self.raw.get()) {
            Ok(fields) => Ok(Object {
                path: self.path,
                fields,
            }),
            Err(_) => Err(self.wrong_type("object")),
        }
    }

    /// Its elements, each an object.
    pub(super) fn objects(&self) -> Result<Vec<Fields<'a>>, Error> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.wrong_type("array of objects"))
    }

    /// Its elements.
    pub(super) fn array(&self) -> Result<Vec<&'a RawValue>, Error> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.wrong_type("array"))
    }

    /// It has another type than the one named.
    pub(super) fn wrong_type(&self, expected: &'static str) -> Error {
        self.refuse(Problem::WrongType(expected))
    }
}

/// A string without a copy where it has no escapes: serde borrows for `Cow` only when it is told to.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// An object of the request and the way to it.
#[derive(Clone, Debug)]
pub(super) struct Object<'a, 'p> {
    pub(super) path: Path<'p>,
    pub(super) fields: Fields<'a>,
}

impl<'a> Object<'a, '_> {
    /// The value of a field; null is as good as absent.
    pub(super) fn get<'o>(&'o self, name: &'o str) -> Result<Option<Value<'a, 'o>>, Error> {
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

    /// The value of a field that must be there.
    pub(super) fn need<'o>(&'o self, name: &'o str) -> Result<Value<'a, 'o>, Error> {
        self.get(name)?
            .ok_or_else(|| self.refuse(name, Problem::Missing))
    }

    /// A 400 that names a field of this object.
    pub(super) fn refuse(&self, name: &str, problem: Problem) -> Error {
        Path::Key(&self.path, name).refuse(problem)
    }
}

/// An object's fields in their order, values not read yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_go_and_nothing_else() {
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

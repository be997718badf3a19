//! Bodies of the admin API: flat JSON objects that are read field by field, so that every error names its field and no
//! field is ignored.
//!
//! Errors of a derived `Deserialize` with `serde_path_to_error` would be less helpful. For an unknown field they
//! suggest no similar name; for a wrong type they do not describe a valid value; and they state positions in a text
//! that a program generated. To distinguish null from an absent field, each field would need a wrapper.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::Value;

use super::refusal::Refusal;

const LIST_LEN_MAX: usize = 1000;

/// The fields of a body that have not been read yet.
#[derive(Debug)]
pub(super) struct Fields(Vec<(String, Value)>);

impl Fields {
    /// Parses an object. Refuses repeated fields, and fields that are not in `known`.
    pub(super) fn parse(body: &[u8], known: &[&str]) -> Result<Self, Refusal> {
        let Object(fields) = serde_json::from_slice(body).map_err(|error| {
            Refusal::invalid("", format!("the body is not a JSON object: {error}"))
        })?;
        for (index, (name, _)) in fields.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                return Err(Refusal::unknown("field", "no fields", name, known));
            }
            if fields[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(Refusal::invalid(name, "occurs twice; send this field once"));
            }
        }
        Ok(Self(fields))
    }

    /// Reads an optional field that must not be null.
    pub(super) fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<Option<T>, Refusal> {
        self.take(name)
            .map(|value| read(&value).map_err(|problem| Refusal::invalid(name, problem)))
            .transpose()
    }

    /// Reads a required field.
    pub(super) fn required<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<T, Refusal> {
        self.optional(name, read)?
            .ok_or_else(|| Refusal::invalid(name, "required"))
    }

    /// Reads a field that may be null; null removes the setting.
    pub(super) fn nullable<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<Option<Option<T>>, Refusal> {
        self.optional(name, |value| {
            if value.is_null() {
                Ok(None)
            } else {
                read(value).map(Some)
            }
        })
    }

    /// Reads a list; null is an empty list.
    pub(super) fn list<T>(
        &mut self,
        name: &str,
        read: impl Fn(&Value) -> Result<T, String>,
    ) -> Result<Option<Vec<T>>, Refusal> {
        let items = match self.take(name) {
            None => return Ok(None),
            Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) if items.len() <= LIST_LEN_MAX => items,
            Some(Value::Array(_)) => {
                return Err(Refusal::invalid(
                    name,
                    format!("has more than {LIST_LEN_MAX} items"),
                ));
            }
            Some(_) => return Err(Refusal::invalid(name, "must be a list of strings")),
        };
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            values.push(
                read(item)
                    .map_err(|problem| Refusal::invalid(format!("{name}[{index}]"), problem))?,
            );
        }
        Ok(Some(values))
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        let index = self.0.iter().position(|(field, _)| field == name)?;
        Some(self.0.swap_remove(index).1)
    }
}

/// An object with its fields in the order in which they were sent. Repeated fields are kept, so that they can be
/// refused; a map would keep only the last one.
struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields::{address, amount, ceiling, requests, time_after, words};

    const KNOWN: &[&str] = &[
        "id",
        "amount_rub",
        "ceiling_rub",
        "models",
        "addresses",
        "requests_per_second",
        "until",
    ];

    fn read(body: &str) -> Result<(), Refusal> {
        let mut fields = Fields::parse(body.as_bytes(), KNOWN)?;
        fields.required("id", words)?;
        fields.optional("amount_rub", amount)?;
        fields.nullable("ceiling_rub", ceiling)?;
        fields.list("models", words)?;
        fields.list("addresses", address)?;
        fields.nullable("requests_per_second", requests)?;
        fields.nullable("until", time_after(1_000))?;
        Ok(())
    }

    #[test]
    fn error_names_the_invalid_body_field() {
        for (body, begins) in [
            ("", "the body is not a JSON object"),
            ("[]", "the body is not a JSON object"),
            (r#"{"id":"a""#, "the body is not a JSON object"),
            ("{}", "id: required"),
            (r#"{"id":"a","id":"b"}"#, "id: occurs twice"),
            (r#"{"id":"a","\u0069d":"b"}"#, "id: occurs twice"),
            (
                r#"{"id":"a","currency":"RUB"}"#,
                "currency: unknown field; this call takes id, amount_rub,",
            ),
            (r#"{"id":null}"#, "id: must be a string"),
            (r#"{"id":7}"#, "id: must be a string"),
            (r#"{"id":" "}"#, "id: must not be empty"),
            (r#"{"id":"a\nb"}"#, "id: must be one line"),
            (
                r#"{"id":"a","amount_rub":100}"#,
                "amount_rub: must be a string of decimal rubles",
            ),
            (
                r#"{"id":"a","amount_rub":"1,5"}"#,
                "amount_rub: not a decimal number",
            ),
            (
                r#"{"id":"a","ceiling_rub":"-1"}"#,
                "ceiling_rub: must not be negative",
            ),
            (r#"{"id":"a","models":"m"}"#, "models: must be a list"),
            (
                r#"{"id":"a","models":["m",1]}"#,
                "models[1]: must be a string",
            ),
            (
                r#"{"id":"a","addresses":["10.0.0.0/40"]}"#,
                "addresses[0]: must be an address such as",
            ),
            (
                r#"{"id":"a","requests_per_second":0}"#,
                "requests_per_second: must be a whole number",
            ),
            (
                r#"{"id":"a","requests_per_second":1.5}"#,
                "requests_per_second: must be a whole number",
            ),
            (r#"{"id":"a","until":"soon"}"#, "until: must be a time"),
            (
                r#"{"id":"a","until":"1970-01-01"}"#,
                "until: is in the past",
            ),
        ] {
            let message = read(body).unwrap_err().message();
            assert!(message.starts_with(begins), "{body}: {message}");
        }
    }

    #[test]
    fn valid_body_fields_are_accepted() {
        for body in [
            r#"{"id":"платёж №7"}"#,
            r#"{"id":"a","amount_rub":"-0.000001","ceiling_rub":null,"models":null,"requests_per_second":null}"#,
            r#"{"id":"a","ceiling_rub":"0","addresses":["203.0.113.7","2001:db8::/32"],"until":"2027-01-31"}"#,
        ] {
            assert_eq!(read(body), Ok(()), "{body}");
        }
    }

    #[test]
    fn null_field_and_absent_field_differ() {
        let mut fields = Fields::parse(br#"{"ceiling_rub":null,"models":[]}"#, KNOWN).unwrap();
        assert_eq!(fields.nullable("ceiling_rub", ceiling), Ok(Some(None)));
        assert_eq!(fields.nullable("requests_per_second", requests), Ok(None));
        assert_eq!(fields.list("models", words), Ok(Some(Vec::new())));
        assert_eq!(fields.list("addresses", address), Ok(None));
    }
}

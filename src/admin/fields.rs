//! Bodies of the admin API: flat JSON objects, read field by field, so that every error names its
//! field and nothing is ignored.
//!
//! Derived by serde, with `serde_path_to_error` for the names, the errors would say less: of an unknown field neither
//! what was likely meant nor, where it is the path that is asked, its name; of a wrong type what it is and not what
//! to send; and where in the text, which a program has made. Null and absent would need a wrapper at each field, and
//! `import` reads the same fields from text, by the same functions.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::Value;
use tollgate_layers::{key::KeyDigest, money::MicroRub};

use super::refusal::Refusal;
use crate::text::time::parse_rfc3339_ms;

const LIST_LEN_MAX: usize = 1000;
const REQUESTS_MAX: u32 = 1_000_000;
const CALLS_MAX: u32 = 100_000;
const TOKENS_MAX: u32 = 1_000_000_000;
const PREFIX_LEN_MAX: usize = 16;

/// The fields of a body that have not been read yet.
#[derive(Debug)]
pub(super) struct Fields(Vec<(String, Value)>);

impl Fields {
    /// Reads an object that has no other fields than the `known` ones, and none of them twice.
    pub(super) fn parse(body: &[u8], known: &[&str]) -> Result<Self, Refusal> {
        let Object(fields) = serde_json::from_slice(body).map_err(|error| {
            Refusal::invalid("", format!("the body is not a JSON object: {error}"))
        })?;
        for (index, (name, _)) in fields.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                return Err(Refusal::unknown("field", "no fields", name, known));
            }
            if fields[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(Refusal::invalid(name, "stands there twice; send it once"));
            }
        }
        Ok(Self(fields))
    }

    /// A field that may be left out but not be null.
    pub(super) fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<Option<T>, Refusal> {
        self.take(name)
            .map(|value| read(&value).map_err(|problem| Refusal::invalid(name, problem)))
            .transpose()
    }

    /// A field that must be there.
    pub(super) fn required<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<T, Refusal> {
        self.optional(name, read)?
            .ok_or_else(|| Refusal::invalid(name, "required"))
    }

    /// A field whose null means "none".
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

    /// A list; null is an empty one.
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

/// Decimal rubles in a string: a JSON number would go through a float somewhere on its way.
pub(crate) fn amount(value: &Value) -> Result<MicroRub, String> {
    let text = value
        .as_str()
        .ok_or("must be a string of decimal rubles, like \"100.00\"")?;
    text.parse::<MicroRub>().map_err(|error| error.to_string())
}

/// An amount that is not negative.
pub(crate) fn ceiling(value: &Value) -> Result<MicroRub, String> {
    match amount(value)? {
        amount if amount < MicroRub::ZERO => Err("must not be negative".into()),
        amount => Ok(amount),
    }
}

/// One line of text, up to 200 characters, possibly empty.
pub(crate) fn line(value: &Value) -> Result<String, String> {
    let text = value.as_str().ok_or("must be a string")?;
    if text.chars().count() > 200 || text.chars().any(char::is_control) {
        return Err("must be one line of at most 200 characters".into());
    }
    Ok(text.to_owned())
}

/// A line that says something.
pub(crate) fn words(value: &Value) -> Result<String, String> {
    let text = line(value)?;
    if text.trim().is_empty() || text.trim() != text {
        return Err("must not be empty, nor begin or end with a space".into());
    }
    Ok(text)
}

/// One of our own id types.
pub(super) fn id<T: std::str::FromStr<Err: fmt::Display>>(value: &Value) -> Result<T, String> {
    value
        .as_str()
        .ok_or("must be a string")?
        .parse::<T>()
        .map_err(|error| error.to_string())
}

/// The SHA-256 of a key, in hexadecimal digits.
pub(crate) fn sha256(value: &Value) -> Result<KeyDigest, String> {
    let text = value.as_str().unwrap_or_default();
    let hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.parse() {
        Ok(digest) if hex => Ok(digest),
        _ => Err(
            "must be 64 hexadecimal digits, as `printf %s \"$KEY\" | sha256sum` prints them".into(),
        ),
    }
}

/// The beginning of a key, for people: too short to be one.
pub(crate) fn prefix(value: &Value) -> Result<String, String> {
    let text = words(value)?;
    if text.chars().count() > PREFIX_LEN_MAX {
        return Err(format!(
            "must be the first characters of the key, {PREFIX_LEN_MAX} at most"
        ));
    }
    Ok(text)
}

/// A CIDR block, or one address.
pub(crate) fn address(value: &Value) -> Result<IpNet, String> {
    parse_address(value.as_str().ok_or("must be a string")?)
}

/// A CIDR block, or one address, from text. A block with more than its network in it could be meant as
/// either.
pub(crate) fn parse_address(text: &str) -> Result<IpNet, String> {
    let block = text
        .parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "must be an address or a block, like 203.0.113.7 or 203.0.113.0/24")?;
    let network = block.trunc();
    if block == network {
        Ok(network)
    } else {
        let address = block.addr();
        Err(format!(
            "{block} lies in the block {network}: send {network} for all of it, or {address} for that address"
        ))
    }
}

/// Requests in some time: at least one.
pub(crate) fn requests(value: &Value) -> Result<u32, String> {
    up_to(REQUESTS_MAX, value)
}

/// Calls that may be open at once: at least one.
pub(crate) fn calls(value: &Value) -> Result<u32, String> {
    up_to(CALLS_MAX, value)
}

/// Tokens in some time: at least one.
pub(crate) fn tokens(value: &Value) -> Result<u32, String> {
    up_to(TOKENS_MAX, value)
}

fn up_to(max: u32, value: &Value) -> Result<u32, String> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| format!("must be a whole number from 1 to {max}"))
}

/// `true` or `false`.
pub(super) fn flag(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| "must be true or false".into())
}

/// A time in the future, in Unix milliseconds.
pub(crate) fn time_after(now_ms: u64) -> impl Fn(&Value) -> Result<u64, String> {
    move |value: &Value| match value.as_str().and_then(parse_rfc3339_ms) {
        None => Err(
            "must be a time like \"2027-01-31T12:00:00Z\", or a date like \"2027-01-31\"".into(),
        ),
        Some(ms) if ms <= now_ms => Err("lies in the past".into()),
        Some(ms) => Ok(ms),
    }
}

/// An object with its fields as sent: a map would drop all but the last of a name.
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
    fn every_error_names_its_field() {
        for (body, begins) in [
            ("", "the body is not a JSON object"),
            ("[]", "the body is not a JSON object"),
            (r#"{"id":"a""#, "the body is not a JSON object"),
            ("{}", "id: required"),
            (r#"{"id":"a","id":"b"}"#, "id: stands there twice"),
            (r#"{"id":"a","\u0069d":"b"}"#, "id: stands there twice"),
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
                "addresses[0]: must be an address or a block",
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
                "until: lies in the past",
            ),
        ] {
            let message = read(body).unwrap_err().message();
            assert!(message.starts_with(begins), "{body}: {message}");
        }
    }

    #[test]
    fn what_is_right_is_taken() {
        for body in [
            r#"{"id":"платёж №7"}"#,
            r#"{"id":"a","amount_rub":"-0.000001","ceiling_rub":null,"models":null,"requests_per_second":null}"#,
            r#"{"id":"a","ceiling_rub":"0","addresses":["203.0.113.7","2001:db8::/32"],"until":"2027-01-31"}"#,
        ] {
            assert_eq!(read(body), Ok(()), "{body}");
        }
    }

    #[test]
    fn a_digest_is_64_digits_and_a_prefix_no_key() {
        let digest = sha256(&("0aB".repeat(21) + "0").into()).unwrap();
        assert_eq!(digest.to_string(), "0ab".repeat(21) + "0");
        for bad in [
            "",
            "0a",
            &"+a".repeat(32),
            &"zz".repeat(32),
            &"é".repeat(32),
        ] {
            assert!(sha256(&bad.into()).is_err(), "{bad}");
        }
        assert!(sha256(&Value::Null).is_err());
        assert_eq!(prefix(&"sk-AbC…".into()).unwrap(), "sk-AbC…");
        assert!(prefix(&"sk-0123456789abcdef".into()).is_err() && prefix(&" ".into()).is_err());
    }

    #[test]
    fn null_and_absent_differ() {
        let mut fields = Fields::parse(br#"{"ceiling_rub":null,"models":[]}"#, KNOWN).unwrap();
        assert_eq!(fields.nullable("ceiling_rub", ceiling), Ok(Some(None)));
        assert_eq!(fields.nullable("requests_per_second", requests), Ok(None));
        assert_eq!(fields.list("models", words), Ok(Some(Vec::new())));
        assert_eq!(fields.list("addresses", address), Ok(None));
    }

    #[test]
    fn a_block_is_its_network_and_an_address_stands_for_itself() {
        for (text, block) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("203.0.113.7", "203.0.113.7/32"),
            ("203.0.113.7/32", "203.0.113.7/32"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(parse_address(text).unwrap().to_string(), block);
        }
        for (text, network, address) in [
            ("10.0.0.5/8", "10.0.0.0/8", "10.0.0.5"),
            ("2001:db8::1/32", "2001:db8::/32", "2001:db8::1"),
        ] {
            let problem = parse_address(text).unwrap_err();
            assert!(
                problem.contains(&format!("send {network} "))
                    && problem.contains(&format!("or {address} ")),
                "{problem}"
            );
        }
    }
}

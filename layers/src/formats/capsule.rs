//! A capsule carries a vendor's signed reasoning through a caller of another format, and back to that vendor.
//!
//! It has the form `tg1.<vendor's name>.<JSON>`, with both parts in base64url without padding. A capsule is neither
//! secret nor signed by the gateway: the vendor verifies its own signature. If a request has a capsule of another
//! vendor, or one with another prefix, it is not sent to the vendor.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};

use crate::capsule::PREFIX;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Encodes a vendor's JSON as a capsule, which needs no escapes in a JSON string.
pub(crate) fn seal(vendor: &str, json: &str) -> String {
    let mut sealed = String::with_capacity(PREFIX.len() + (vendor.len() + json.len()) * 4 / 3 + 8);
    sealed.push_str(PREFIX);
    encode(vendor.as_bytes(), &mut sealed);
    sealed.push('.');
    encode(json.as_bytes(), &mut sealed);
    sealed
}

/// Decodes a capsule; `None` if the text is not a capsule, or if the capsule is of another vendor.
pub(crate) fn open(sealed: &str, vendor: &str) -> Option<String> {
    let (whose, json) = sealed.strip_prefix(PREFIX)?.split_once('.')?;
    if decode(whose)? != vendor.as_bytes() {
        return None;
    }
    String::from_utf8(decode(json)?).ok()
}

/// Returns whether every JSON parser reads one of these types from the object. Callers can forge capsules, and parsers
/// differ if a field occurs twice or in another case: some use the first occurrence, some the last.
pub(crate) fn is_of(json: &str, kinds: &[&str]) -> bool {
    let kind = serde_json::from_str::<Kind>(json);
    kind.is_ok_and(|Kind(kind)| kinds.contains(&&*kind))
}

/// The type of an object in which no two field names are equal, ignoring case.
struct Kind(String);

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = Kind;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a type")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Kind, A::Error> {
                let (mut names, mut kind) = (BTreeSet::new(), None);
                while let Some(name) = object.next_key::<String>()? {
                    match &*name {
                        "type" => kind = Some(object.next_value()?),
                        _ => drop(object.next_value::<IgnoredAny>()?),
                    }
                    if !names.insert(name.to_lowercase()) {
                        return Err(A::Error::custom("a name occurs twice"));
                    }
                }
                kind.map(Kind)
                    .ok_or_else(|| A::Error::missing_field("type"))
            }
        }

        json.deserialize_map(Names)
    }
}

fn encode(bytes: &[u8], out: &mut String) {
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=group.len() {
            let value = bits >> (18 - 6 * digit) & 63;
            out.push(char::from(DIGITS[value as usize]));
        }
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4 + 2);
    for group in text.as_bytes().chunks(4) {
        if group.len() == 1 {
            return None;
        }
        let mut bits = 0_u32;
        for at in 0..4 {
            let value = match group.get(at) {
                None => 0,
                Some(byte @ b'A'..=b'Z') => byte - b'A',
                Some(byte @ b'a'..=b'z') => byte - b'a' + 26,
                Some(byte @ b'0'..=b'9') => byte - b'0' + 52,
                Some(b'-') => 62,
                Some(b'_') => 63,
                Some(_) => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reasoning_capsule_opens_only_for_its_vendor() {
        let json = r#"[{"type":"thinking","thinking":"ж","signature":"a+/="}]"#;
        let sealed = seal("anthropic", json);
        assert!(sealed.starts_with("tg1.YW50aHJvcGlj."), "{sealed}");
        assert_eq!(open(&sealed, "anthropic").as_deref(), Some(json));
        assert_eq!(open(&sealed, "other"), None);
        for broken in [
            "",
            "tg1.",
            "tg1.YW50aHJvcGlj",
            "tg1.YW50aHJvcGlj.A",
            "tg1.YW50aHJvcGlj.?",
            "gAAAAAB",
        ] {
            assert_eq!(open(broken, "anthropic"), None, "{broken}");
        }
    }

    #[test]
    fn ambiguous_object_has_no_type() {
        for json in [
            r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}"#,
            r#" {"summary":[{"type":"summary_text","text":"t"}],"type" : "reasoning"}"#,
        ] {
            assert!(is_of(json, &["reasoning"]), "{json}");
        }
        for json in [
            r#"{"type":"reasoning","type":"message","role":"user","content":[]}"#,
            r#"{"type":"reasoning","TYPE":"message","role":"user","content":[]}"#,
            r#"{"type":"reasoning","ty\u0070e":"message"}"#,
            r#"{"Type":"reasoning"}"#,
            r#"{"type":["reasoning"]}"#,
            r#"{"type":"image","source":{},"thinking":""}"#,
            r#"{"type":"reasoning"},{"type":"message"}"#,
            r#"["reasoning"]"#,
        ] {
            assert!(!is_of(json, &["reasoning", "thinking"]), "{json}");
        }
    }

    proptest! {
        #[test]
        fn reasoning_capsule_round_trips(vendor in ".{0,12}", json in ".{0,40}") {
            let sealed = seal(&vendor, &json);
            prop_assert!(sealed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)));
            prop_assert_eq!(open(&sealed, &vendor), Some(json));
        }
    }
}

//! A capsule carries a vendor's signed reasoning through a caller of another format, and back to that vendor.
//!
//! A capsule has the form `tg1.<vendor's name>.<JSON>`, with the name and the JSON in base64url without padding. The
//! gateway neither encrypts nor signs a capsule, because the vendor verifies its own signature in the JSON. A capsule
//! is sent only to the vendor that it names, and only if its prefix is `tg1`.

use std::collections::BTreeSet;

use crate::{capsule::PREFIX, formats::wire::Fields};
use base64::{
    Engine,
    alphabet::URL_SAFE,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

/// Base64url without padding. Unused bits of the last digit are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// Encodes a vendor's JSON as a capsule. The capsule needs no escapes in a JSON string.
pub(crate) fn seal(vendor: &str, json: &str) -> String {
    let mut sealed = String::with_capacity(PREFIX.len() + (vendor.len() + json.len()) * 4 / 3 + 8);
    sealed.push_str(PREFIX);
    BASE64.encode_string(vendor, &mut sealed);
    sealed.push('.');
    BASE64.encode_string(json, &mut sealed);
    sealed
}

/// Decodes a capsule. `None` if the text is not a capsule, or is a capsule of another vendor.
pub(crate) fn open(sealed: &str, vendor: &str) -> Option<String> {
    let (whose, json) = sealed.strip_prefix(PREFIX)?.split_once('.')?;
    if BASE64.decode(whose).ok()? != vendor.as_bytes() {
        return None;
    }
    String::from_utf8(BASE64.decode(json).ok()?).ok()
}

/// Returns whether every JSON parser would read one of `kinds` as the object's type. Callers can forge capsules, and
/// parsers differ if a field occurs twice or in another case: some use the first occurrence, others the last.
pub(crate) fn is_of(json: &str, kinds: &[&str]) -> bool {
    let Ok(Fields(fields)) = serde_json::from_str(json) else {
        return false;
    };
    let mut names = BTreeSet::new();
    let is_unambiguous = fields
        .iter()
        .all(|(name, _)| names.insert(name.to_lowercase()));
    let kind = fields.iter().find(|(name, _)| name == "type");
    let kind = kind.and_then(|(_, kind)| serde_json::from_str::<String>(kind.get()).ok());
    is_unambiguous && kind.is_some_and(|kind| kinds.contains(&&*kind))
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
    fn object_with_an_ambiguous_type_field_matches_no_type() {
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

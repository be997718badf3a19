//! Replaces the role of instructions in a request to a vendor that uses the caller's format but accepts only one of the
//! two roles `system` and `developer`.

use std::{borrow::Cow, ops::Range};

use memchr::memmem;
use serde_json::value::RawValue;

use crate::{
    call::Format,
    json::{members, within},
    model::SystemRole,
};

/// Returns the edits of the body that replace the role of its instructions.
pub(super) fn renamed(
    format: Format,
    body: &[u8],
    role: SystemRole,
) -> Vec<(Range<usize>, Cow<'static, str>)> {
    let (other, role) = match role {
        SystemRole::System => ("\"developer\"", "\"system\""),
        SystemRole::Developer => ("\"system\"", "\"developer\""),
    };
    let list = match format {
        Format::Chat => "messages",
        Format::Responses => "input",
        // In the Messages format, instructions have a field of their own and no role.
        Format::Messages => return Vec::new(),
    };
    if memmem::find(body, other.as_bytes()).is_none() {
        return Vec::new();
    }
    let all = || {
        let body = std::str::from_utf8(body).ok()?;
        let [list] = members(body, &[list]).ok()?;
        let all: Vec<&RawValue> = serde_json::from_str(list?).ok()?;
        let roles = all
            .into_iter()
            .filter_map(|message| members(message.get(), &["role"]).ok()?[0])
            .filter(|written| *written == other)
            .map(|written| (within(body.as_bytes(), written), Cow::Borrowed(role)));
        Some(roles.collect())
    };
    all().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_get_the_role_that_the_vendor_accepts() {
        for (format, role, sent, expected) in [
            (
                Format::Chat,
                SystemRole::Developer,
                r#"{"messages": [{"role" : "system","content":"\"system\""},{"role":"user","content":[]}]}"#,
                r#"{"messages": [{"role" : "developer","content":"\"system\""},{"role":"user","content":[]}]}"#,
            ),
            (
                Format::Chat,
                SystemRole::System,
                r#"{"messages":[{"content":"x","role":"developer"},{"role":"system","content":"y"}]}"#,
                r#"{"messages":[{"content":"x","role":"system"},{"role":"system","content":"y"}]}"#,
            ),
            (
                Format::Responses,
                SystemRole::System,
                r#"{"input":[{"role":"developer","content":"x"},{"type":"function_call","name":"developer"}]}"#,
                r#"{"input":[{"role":"system","content":"x"},{"type":"function_call","name":"developer"}]}"#,
            ),
            (
                Format::Responses,
                SystemRole::System,
                r#"{"input":"\"developer\"","x":"developer"}"#,
                r#"{"input":"\"developer\"","x":"developer"}"#,
            ),
            (
                Format::Messages,
                SystemRole::Developer,
                r#"{"messages":[{"role":"system","content":"x"}]}"#,
                r#"{"messages":[{"role":"system","content":"x"}]}"#,
            ),
        ] {
            let mut written = sent.to_owned();
            let mut edits = renamed(format, sent.as_bytes(), role);
            while let Some((span, role)) = edits.pop() {
                written.replace_range(span, &role);
            }
            assert_eq!(written, expected);
        }
    }
}

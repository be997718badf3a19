//! Counts the text in a vendor's JSON without building it: what a call is charged by when its usage
//! never comes.

use crate::{
    call::Format,
    json::{Found, decoded_len, string},
};

/// What one look at the strings of a chunk, an event or a whole answer finds. Nothing is checked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strings {
    /// UTF-8 bytes of text, reasoning and tool arguments.
    pub(super) text_bytes: u64,
    /// There is a `finish_reason`.
    pub(super) finish_reason: bool,
    /// There is, somewhere, a `usage` that is not null, or a name that may stand for it.
    pub(super) usage: bool,
    /// The same of `error`.
    pub(super) error: bool,
}

impl Strings {
    pub(super) fn of(format: Format, json: &[u8]) -> Self {
        let mut found = Self::default();
        let mut at = 0;
        while let Some(name) = string(json, at) {
            let Some(value) = value_of(json, name.end) else {
                at = name.end;
                continue;
            };
            at = value;
            let rest = &json[value..];
            if rest.starts_with(b"null") {
                continue;
            }
            match name.text {
                b"usage" => found.usage = true,
                b"error" => found.error = true,
                b"finish_reason" => {
                    found.finish_reason |= rest.starts_with(b"\"") && !rest.starts_with(b"\"\"");
                }
                // Whoever reads them for good decodes it.
                _ if name.escaped => {
                    found.usage = true;
                    found.error = true;
                }
                _ => {}
            }
            if rest.starts_with(b"\"")
                && let Some(Found { text, escaped, end }) = string(json, value)
            {
                if is_text(format, name.text) {
                    found.text_bytes += if escaped {
                        decoded_len(text)
                    } else {
                        text.len() as u64
                    };
                }
                at = end;
            }
        }
        found
    }
}

/// UTF-8 bytes of text, reasoning and tool arguments in a chunk, an event or a whole answer.
pub(super) fn text_bytes(format: Format, json: &[u8]) -> u64 {
    Strings::of(format, json).text_bytes
}

fn is_text(format: Format, name: &[u8]) -> bool {
    match format {
        Format::Chat => matches!(
            name,
            b"content"
                | b"reasoning_content"
                | b"reasoning"
                | b"thinking"
                | b"text"
                | b"summary"
                | b"refusal"
                | b"arguments"
                | b"input"
        ),
        Format::Messages => matches!(
            name,
            b"text" | b"thinking" | b"partial_json" | b"data" | b"content"
        ),
    }
}

/// Where the value of a name that ended at `end` begins. `None` of a string that is no name.
fn value_of(json: &[u8], end: usize) -> Option<usize> {
    let colon = blanks(json, end);
    let value = blanks(json, (*json.get(colon)? == b':').then_some(colon + 1)?);
    (value < json.len()).then_some(value)
}

/// Where the blanks from `at` on end.
fn blanks(json: &[u8], mut at: usize) -> usize {
    while json.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_counted_and_names_are_not() {
        for (format, json, bytes) in [
            (
                Format::Chat,
                r#"{"choices":[{"delta":{"content":"abc"}}],"content":null}"#,
                3,
            ),
            (
                Format::Chat,
                r#"{"delta" : { "content" : "a\"b" , "reasoning":"\u0436\ud83e\udd80" } }"#,
                9,
            ),
            (
                Format::Chat,
                r#"{"role":"content","x":"content","arguments":"{\"a\":1}"}"#,
                7,
            ),
            (
                Format::Messages,
                r#"{"delta":{"type":"text_delta","text":"привет"}}"#,
                12,
            ),
            (
                Format::Messages,
                r#"{"type":"text","partial_json":"{\"ci"}"#,
                4,
            ),
            (Format::Chat, r#"{"content":"cut off"#, 0),
            (Format::Chat, "", 0),
            (Format::Chat, "\"content\":\"\\", 0),
        ] {
            assert_eq!(text_bytes(format, json.as_bytes()), bytes, "{json}");
        }
    }

    #[test]
    fn what_may_be_usage_an_error_or_an_end_is_seen() {
        for (json, finish_reason, usage, error) in [
            (
                r#"{"usage":null,"error":null,"finish_reason":null}"#,
                false,
                false,
                false,
            ),
            (r#"{"usage" : {"x":1}}"#, false, true, false),
            (r#"{"x_groq":{"usage":{}}}"#, false, true, false),
            (r#"{"error":"x"}"#, false, false, true),
            (r#"{"\u0075sage":{}}"#, false, true, true),
            (
                r#"{"choices":[{"finish_reason" : "stop"}]}"#,
                true,
                false,
                false,
            ),
            (r#"{"choices":[{"finish_reason":""}]}"#, false, false, false),
            (r#"{"choices":[{"finish_reason":"sto"#, true, false, false),
            (
                r#"{"content":"\"usage\":{},\"error\":{},\"finish_reason\":\"x\""}"#,
                false,
                false,
                false,
            ),
            (r#"{"role":"usage","x":"error"}"#, false, false, false),
            ("[DONE]", false, false, false),
            ("", false, false, false),
        ] {
            let found = Strings::of(Format::Chat, json.as_bytes());
            assert_eq!(
                (found.finish_reason, found.usage, found.error),
                (finish_reason, usage, error),
                "{json}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_string_counts_as_long_as_it_is(text in ".*") {
            let json = serde_json::json!({ "x": 1, "delta": { "content": text } }).to_string();
            prop_assert_eq!(text_bytes(Format::Chat, json.as_bytes()), text.len() as u64);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            text_bytes(Format::Chat, &bytes);
            text_bytes(Format::Messages, &bytes);
        }
    }
}

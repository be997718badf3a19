//! Counts the text in a vendor's JSON without building it: what a call is charged by when its usage
//! never comes.

use crate::{
    call::Format,
    json::{decoded_len, string},
};

/// UTF-8 bytes of text, reasoning and tool arguments in a chunk, an event or a whole answer.
pub(super) fn text_bytes(format: Format, json: &[u8]) -> u64 {
    let counts = |name: &[u8]| match format {
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
    };
    let (mut at, mut sum) = (0, 0);
    while let Some((name, end)) = string(json, at) {
        at = end;
        let Some(value) = value_of(json, end) else {
            continue;
        };
        if let Some((text, end)) = string(json, value) {
            if counts(name) {
                sum += decoded_len(text);
            }
            at = end;
        }
    }
    sum
}

/// Where the value of a name that ended at `end` begins, if it is a string.
fn value_of(json: &[u8], end: usize) -> Option<usize> {
    let blanks = |at: usize| {
        Some(
            at + json
                .get(at..)?
                .iter()
                .take_while(|byte| byte.is_ascii_whitespace())
                .count(),
        )
    };
    let colon = blanks(end)?;
    let value = blanks((*json.get(colon)? == b':').then_some(colon + 1)?)?;
    (*json.get(value)? == b'"').then_some(value)
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

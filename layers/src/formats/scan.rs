//! Counts the text in a vendor's JSON without parsing all of it. A call whose usage never arrives is charged by this
//! count.

use super::{chat::meter::Chat, messages::meter::Messages, responses::meter::Responses};
use crate::{
    call::Format,
    json::{Found, decoded_len, string},
    text_size::TextSize,
};

/// The fields of a format that contain text of the model.
pub(crate) trait Texts {
    /// Returns whether the field contains text.
    fn is_text(name: &[u8]) -> bool;

    /// Returns how many bytes of a base64 field count as one byte of text. `None` for fields that contain text.
    fn opaque(_name: &[u8]) -> Option<u64> {
        None
    }
}

/// The maximum number of bytes at the beginning of a chunk, before its first text, that are remembered.
const HEAD_BYTES_MAX: usize = 512;

/// Scans the chunks or events of one stream. Most chunks begin with the same bytes as the chunk before, up to their
/// text. So these bytes are scanned only once.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// The remembered beginning of a chunk, which ends with the quote that opens the name of the chunk's first text.
    /// The results of a scan up to that quote do not depend on the bytes after it.
    head: Vec<u8>,
    in_head: Strings,
}

impl Chunks {
    /// Scans the next chunk as [`Strings::of`] does. The chunk's text continues the text `before`.
    pub(crate) fn strings<F: Texts>(&mut self, json: &[u8], before: &TextSize) -> Strings {
        let text = before.behind();
        if let Some(name) = self.head.len().checked_sub(1)
            && json.starts_with(&self.head)
        {
            let in_head = Strings {
                text,
                ..self.in_head
            };
            return in_head.and_from::<F>(name, json);
        }
        let mut found = Strings {
            text,
            ..Strings::default()
        };
        let Some(text) = found.next_text::<F>(json, 0) else {
            return found;
        };
        self.head.clear();
        if text.name < HEAD_BYTES_MAX {
            self.head.extend_from_slice(&json[..=text.name]);
            self.in_head = found;
            // Whether reasoning has been counted depends on the text after the remembered beginning.
            self.in_head.reasoned = false;
        }
        found.count(&text);
        found.and_from::<F>(text.end, json)
    }
}

/// The result of a scan over the strings of a chunk, an event or a whole response. The JSON is not validated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Strings {
    /// The size of text, reasoning and tool arguments together.
    pub(crate) text: TextSize,
    /// The number of choices that have a `finish_reason`.
    pub(crate) finish_reasons: u32,
    /// Whether a field `usage` is not null. Also true if a field's name has escapes, because it could spell `usage`.
    pub(crate) usage: bool,
    /// Whether a field `error` is not null. Also true if a field's name has escapes, because it could spell `error`.
    pub(crate) error: bool,
    /// Whether reasoning of the current message has been counted. Some vendors repeat it in other fields of the
    /// message.
    reasoned: bool,
    /// Whether the field `reasoning_details` of the current message has begun.
    details: bool,
}

/// A text of the response that was found in a chunk or event.
struct Text<'a> {
    /// The offset of the quote that opens the name of the text's field.
    name: usize,
    /// The text as it is written, with its escapes.
    written: &'a [u8],
    /// Whether the text contains escapes.
    escaped: bool,
    /// If the text is base64, the number of base64 bytes that count as one byte of text.
    opaque: Option<u64>,
    /// The offset after the text's closing quote.
    end: usize,
}

impl Strings {
    pub(crate) fn of<F: Texts>(json: &[u8]) -> Self {
        Self::default().and_from::<F>(0, json)
    }

    /// Scans the JSON from the offset `at` on, and counts the texts that follow.
    fn and_from<F: Texts>(mut self, mut at: usize, json: &[u8]) -> Self {
        while let Some(text) = self.next_text::<F>(json, at) {
            self.count(&text);
            at = text.end;
        }
        self
    }

    fn count(&mut self, text: &Text<'_>) {
        match text.opaque {
            Some(bytes) => self
                .text
                .add_unread(decoded_len(text.written).div_ceil(bytes)),
            None if text.escaped => self.text.push_json(text.written),
            None => self.text.push(text.written),
        }
    }

    /// Returns the first text from the offset `at` on, without counting it. Records everything else before this text
    /// or, if there is no text, up to the end of the JSON.
    fn next_text<'a, F: Texts>(&mut self, json: &'a [u8], mut at: usize) -> Option<Text<'a>> {
        loop {
            let name = string(json, at)?;
            let Some(value) = value_of(json, name.end) else {
                at = name.end;
                continue;
            };
            let rest = &json[value..];
            if rest.starts_with(b"null") {
                at = value + b"null".len();
                continue;
            }
            at = value;
            match name.text {
                b"usage" => self.usage = true,
                b"error" => self.error = true,
                b"finish_reason" => {
                    let finished = rest.starts_with(b"\"") && !rest.starts_with(b"\"\"");
                    self.finish_reasons += u32::from(finished);
                }
                b"delta" | b"message" => (self.reasoned, self.details) = (false, false),
                b"reasoning_details" => self.details = true,
                // The name may spell `usage` or `error` with escapes. Only parsing the event can decide that.
                _ if name.escaped => {
                    self.usage = true;
                    self.error = true;
                }
                _ => {}
            }
            if !rest.starts_with(b"\"") {
                continue;
            }
            let Found { text, escaped, end } = string(json, value)?;
            if F::is_text(name.text) && !self.is_repeated(name.text, text) {
                return Some(Text {
                    name: name.end - name.text.len() - 2,
                    written: text,
                    escaped,
                    opaque: F::opaque(name.text),
                    end,
                });
            }
            at = end;
        }
    }

    /// Returns whether the text repeats reasoning that was already counted in another field of its message.
    fn is_repeated(&mut self, name: &[u8], text: &[u8]) -> bool {
        match name {
            b"reasoning" | b"reasoning_content" => {
                let repeated = self.reasoned;
                self.reasoned |= !text.is_empty();
                repeated
            }
            b"text" | b"summary" => self.reasoned && self.details,
            _ => false,
        }
    }
}

/// Returns the size of text, reasoning and tool arguments in a chunk, an event or a whole response.
pub(crate) fn text_size(format: Format, json: &[u8]) -> TextSize {
    let strings = match format {
        Format::Chat => Strings::of::<Chat>(json),
        Format::Messages => Strings::of::<Messages>(json),
        Format::Responses => Strings::of::<Responses>(json),
    };
    strings.text
}

/// Returns the size of the text in an event. The text continues the text `before`.
pub(crate) fn text_behind<F: Texts>(before: &TextSize, json: &[u8]) -> TextSize {
    let nothing = Strings {
        text: before.behind(),
        ..Strings::default()
    };
    nothing.and_from::<F>(0, json).text
}

/// Returns the offset of the value after a name that ends at `end`. `None` if the string is not the name of a field.
fn value_of(json: &[u8], end: usize) -> Option<usize> {
    let colon = blanks(json, end);
    let value = blanks(json, (*json.get(colon)? == b':').then_some(colon + 1)?);
    (value < json.len()).then_some(value)
}

/// Returns the position of the first byte from `at` on that is not white space.
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
    fn text_of_a_response_is_counted_without_field_names() {
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
            // Reasoning that a message contains in two fields counts once per message.
            (
                Format::Chat,
                r#"{"delta":{"content":"","reasoning":"abc","reasoning_details":[{"type":"reasoning.text","text":"abc"}]}}"#,
                3,
            ),
            (
                Format::Chat,
                r#"{"delta":{"reasoning_content":"abc","reasoning":"abc"}}"#,
                3,
            ),
            (
                Format::Chat,
                r#"{"delta":{"reasoning":"","reasoning_details":[{"text":"abc"}]}}"#,
                3,
            ),
            (
                Format::Chat,
                r#"[{"message":{"reasoning":"abc","content":[{"text":"d"}]}},{"message":{"reasoning":"ef"}}]"#,
                6,
            ),
            // Sound counts by its duration, and its transcript counts as text.
            (
                Format::Chat,
                r#"{"delta":{"audio":{"transcript":"abc","data":"AAAAAAAA","expires_at":7}}}"#,
                4,
            ),
            (Format::Chat, r#"{"content":"cut off"#, 0),
            (Format::Chat, "", 0),
            (Format::Chat, "\"content\":\"\\", 0),
        ] {
            assert_eq!(text_size(format, json.as_bytes()).bytes(), bytes, "{json}");
        }
    }

    #[test]
    fn scan_finds_every_usage_every_error_and_every_finish_reason() {
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
            let found = Strings::of::<Chat>(json.as_bytes());
            assert_eq!(
                (found.finish_reasons > 0, found.usage, found.error),
                (finish_reason, usage, error),
                "{json}"
            );
        }
    }

    #[test]
    fn prefix_repeated_in_every_event_is_scanned_once() {
        let chunk = |role: &str, text: &str, end: &str| {
            format!(
                r#"{{"id":"1","usage":null,"choices":[{{"delta":{{{role}"content":"{text}"}},"finish_reason":{end}}}]}}"#
            )
        };
        let mut chunks = Chunks::default();
        let mut heads = Vec::new();
        for (json, bytes) in [
            (chunk(r#""role":"assistant","#, "", "null"), 0),
            (chunk("", "a", "null"), 1),
            (chunk("", r#"\"ж"#, "null"), 3),
            (r#"{"id":"1","choices":[]}"#.to_owned(), 0),
            (chunk("", "bc", r#""stop""#), 2),
            (chunk(r#""x":"x","#, "d", "null"), 1),
            (
                format!(r#"{{"id":"{}","content":"d"}}"#, "1".repeat(600)),
                1,
            ),
            (chunk("", "e", "null"), 1),
        ] {
            let found = chunks.strings::<Chat>(json.as_bytes(), &TextSize::default());
            assert_eq!(found, Strings::of::<Chat>(json.as_bytes()), "{json}");
            assert_eq!(found.text.bytes(), bytes, "{json}");
            heads.push(chunks.head.len());
        }
        let (role, plain) = (64, 45);
        assert_eq!(heads, [role, plain, plain, plain, plain, plain, 0, plain]);
    }

    /// Generates pieces of JSON and of other text.
    fn pieces() -> impl Strategy<Value = String> {
        const PIECES: &[&str] = &[
            "{",
            "}",
            "[",
            ":",
            ",",
            " ",
            "7",
            "nul",
            "null",
            "\"",
            "\\",
            "\\\"",
            "\"\"",
            "\"x\"",
            "\"x\":",
            "\"content\"",
            "\"content\":",
            "\"content\":\"",
            "\"text\":\"ж\"",
            "\"usage\":",
            "\"error\":",
            "\"finish_reason\":",
            "\"\\u0061\":",
        ];
        proptest::collection::vec(proptest::sample::select(PIECES), 0..12)
            .prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn chunks_of_a_stream_give_the_same_result_however_they_are_grouped(
            (one, other) in (pieces(), pieces()),
            chunks in proptest::collection::vec((any::<bool>(), pieces()), 1..12),
        ) {
            fn check<F: Texts>(chunks: &[String]) -> Result<(), TestCaseError> {
                let mut stream = Chunks::default();
                for json in chunks {
                    let found = stream.strings::<F>(json.as_bytes(), &TextSize::default());
                    prop_assert_eq!(found, Strings::of::<F>(json.as_bytes()), "{}", json);
                }
                Ok(())
            }
            let chunks = chunks.iter().map(|(first, rest)| format!("{}{rest}", if *first { &one } else { &other }));
            let chunks: Vec<String> = chunks.collect();
            check::<Chat>(&chunks)?;
            check::<Messages>(&chunks)?;
        }

        #[test]
        fn response_text_counts_by_its_decoded_length(text in ".*") {
            let json = serde_json::json!({ "x": 1, "delta": { "content": text } }).to_string();
            prop_assert_eq!(text_size(Format::Chat, json.as_bytes()).bytes(), text.len() as u64);
        }

        #[test]
        fn text_scan_never_panics_whatever_bytes_it_gets(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            text_size(Format::Chat, &bytes);
            text_size(Format::Messages, &bytes);
        }
    }
}

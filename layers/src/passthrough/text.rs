//! Counts the text in a vendor's JSON without building it: what a call is charged by when its usage
//! never comes.

use crate::{
    call::Format,
    json::{Found, decoded_len, string},
};

/// The beginning of a chunk up to its text is kept up to this.
const HEAD_BYTES_MAX: usize = 512;

/// Looks at the chunks or events of one stream. Most begin as the one before does, up to their text, and
/// that is looked at once.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// How the last one with a text began whose beginning was new: up to the quote that opens the name of
    /// its first text, and with it. What was found before that quote hangs on nothing behind it.
    head: Vec<u8>,
    in_head: Strings,
}

impl Chunks {
    /// [`Strings::of`] the next one.
    pub(super) fn strings(&mut self, format: Format, json: &[u8]) -> Strings {
        if let Some(name) = self.head.len().checked_sub(1)
            && json.starts_with(&self.head)
        {
            return self.in_head.and_from(name, format, json);
        }
        let mut found = Strings::default();
        let Some(text) = found.next_text(format, json, 0) else {
            return found;
        };
        self.head.clear();
        if text.name < HEAD_BYTES_MAX {
            self.head.extend_from_slice(&json[..=text.name]);
            self.in_head = found;
            // Of the text behind the head.
            self.in_head.reasoned = false;
        }
        found.text_bytes = text.bytes;
        found.and_from(text.end, format, json)
    }
}

/// What one look at the strings of a chunk, an event or a whole answer finds. Nothing is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Strings {
    /// UTF-8 bytes of text, reasoning and tool arguments.
    pub(super) text_bytes: u64,
    /// How many choices have a `finish_reason`.
    pub(super) finish_reasons: u32,
    /// There is, somewhere, a `usage` that is not null, or a name that may stand for it.
    pub(super) usage: bool,
    /// The same of `error`.
    pub(super) error: bool,
    /// The message that is looked at has reasoning that was counted: some vendors say it again in other fields.
    reasoned: bool,
    /// Its `reasoning_details` have begun.
    details: bool,
}

/// Where a text was found.
struct Text {
    /// The quote that opens its name.
    name: usize,
    /// UTF-8 bytes of it.
    bytes: u64,
    /// Behind it.
    end: usize,
}

impl Strings {
    pub(super) fn of(format: Format, json: &[u8]) -> Self {
        Self::default().and_from(0, format, json)
    }

    /// This, and what there is from `at` on.
    fn and_from(mut self, mut at: usize, format: Format, json: &[u8]) -> Self {
        while let Some(text) = self.next_text(format, json, at) {
            self.text_bytes += text.bytes;
            at = text.end;
        }
        self
    }

    /// The first text from `at` on, not counted yet; notes what else there is up to it, or to the end.
    fn next_text(&mut self, format: Format, json: &[u8], mut at: usize) -> Option<Text> {
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
                // Whoever reads them for good decodes it.
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
            if is_text(format, name.text) && !self.is_repeated(name.text, text) {
                let bytes = if escaped {
                    decoded_len(text)
                } else {
                    text.len() as u64
                };
                return Some(Text {
                    name: name.end - name.text.len() - 2,
                    bytes: if is_sound(format, name.text) {
                        bytes.div_ceil(SOUND_BYTES)
                    } else {
                        bytes
                    },
                    end,
                });
            }
            at = end;
        }
    }
}

impl Strings {
    /// Whether a text is reasoning that another field of its message has said already.
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
                | b"transcript"
                | b"data"
                | b"arguments"
                | b"input"
        ),
        Format::Messages => matches!(
            name,
            b"text" | b"thinking" | b"partial_json" | b"data" | b"content"
        ),
        Format::Responses => matches!(
            name,
            b"delta" | b"text" | b"refusal" | b"arguments" | b"input"
        ),
    }
}

/// Bytes of base64 that weigh as one of text does: a second of what vendors stream (PCM of 16 bits, 24 kHz) has 64 000 of
/// them, and is 20 tokens.
const SOUND_BYTES: u64 = 800;

fn is_sound(format: Format, name: &[u8]) -> bool {
    name == b"data" && format == Format::Chat
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
            // Reasoning that is said in two fields is made once, in each message anew.
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
            // Sound weighs as what is said in it, and by its length in time.
            (
                Format::Chat,
                r#"{"delta":{"audio":{"transcript":"abc","data":"AAAAAAAA","expires_at":7}}}"#,
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
                (found.finish_reasons > 0, found.usage, found.error),
                (finish_reason, usage, error),
                "{json}"
            );
        }
    }

    #[test]
    fn what_begins_alike_is_looked_at_once() {
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
            let found = chunks.strings(Format::Chat, json.as_bytes());
            assert_eq!(found, Strings::of(Format::Chat, json.as_bytes()), "{json}");
            assert_eq!(found.text_bytes, bytes, "{json}");
            heads.push(chunks.head.len());
        }
        let (role, plain) = (64, 45);
        assert_eq!(heads, [role, plain, plain, plain, plain, plain, 0, plain]);
    }

    /// Pieces of JSON and of what is none.
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
        fn chunks_of_a_stream_say_what_each_says_by_itself(
            (one, other) in (pieces(), pieces()),
            chunks in proptest::collection::vec((any::<bool>(), pieces()), 1..12),
        ) {
            for format in [Format::Chat, Format::Messages] {
                let mut stream = Chunks::default();
                for (first, rest) in &chunks {
                    let json = format!("{}{rest}", if *first { &one } else { &other });
                    let found = stream.strings(format, json.as_bytes());
                    prop_assert_eq!(found, Strings::of(format, json.as_bytes()), "{}", json);
                }
            }
        }

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

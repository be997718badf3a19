//! Meters responses of the Chat Completions format, and responses to embeddings calls.

use bytes::Bytes;
use memchr::memmem;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    DONE, KEEP_ALIVE,
    chunk::{Chunk, groq_usage},
    usage::{chat_usage, embeddings_usage, write},
};
use crate::{
    error::Error,
    formats::{
        counts::Counts,
        errors::{broken, vendor_error},
        metering::{Metered, Plain, Seen, Stream, StreamState, shrinks},
        scan::{Chunks, Strings, Texts},
    },
    json::{members, within},
    sse::Event,
    text_size::TextSize,
    usage::Usage,
    vendor_usage::{VendorUsage, is_error, tier},
};

/// The number of bytes of base64 sound that count as one byte of text. Vendors stream PCM of 16 bits and 24 kHz: a
/// second of sound has 64,000 bytes of base64 and costs 20 tokens.
const SOUND_BYTES: u64 = 800;

/// The fields that have the same value in all chunks of a stream.
const CHUNK_FIELDS: [&str; 6] = [
    "id",
    "object",
    "created",
    "model",
    "system_fingerprint",
    "service_tier",
];

/// The Chat Completions format, as metered by `passthrough`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chat;

impl Texts for Chat {
    fn is_text(name: &[u8]) -> bool {
        matches!(
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
        )
    }

    fn opaque(name: &[u8]) -> Option<u64> {
        (name == b"data").then_some(SOUND_BYTES)
    }
}

impl Plain for Chat {
    const CONTENT: &'static str = "choices";
    const MAY_BE_EMPTY: bool = false;

    fn usage(usage: &str, _: &str) -> Option<VendorUsage> {
        chat_usage(usage)
    }

    fn write_usage(usage: &Usage) -> String {
        write(&Counts::new(usage, None), &usage.classes)
    }

    fn text(response: &str) -> TextSize {
        Strings::of::<Self>(response.as_bytes()).text
    }

    /// Returns the error in the choice of a response that has only one. Some vendors report errors in choices.
    fn refused(_: &str, choices: Option<&str>) -> Option<Error> {
        let choices = choices?;
        memmem::find(choices.as_bytes(), b"\"error\"")?;
        let choices = serde_json::from_str::<Vec<EndedChoice<'_>>>(choices).ok()?;
        let [choice] = choices.as_slice() else {
            return None;
        };
        let error = choice.error.filter(|error| is_error(error.get()))?;
        Some(vendor_error(error.get()))
    }
}

impl Metered for Chat {
    const KEEP_ALIVE: &'static [u8] = KEEP_ALIVE;
    type Stream = ChatStream;
}

/// The format of responses to embeddings calls, as metered by `passthrough`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Embeddings;

impl Plain for Embeddings {
    const CONTENT: &'static str = "data";
    const MAY_BE_EMPTY: bool = false;
    const HAS_OUTPUT: bool = false;

    fn usage(usage: &str, _: &str) -> Option<VendorUsage> {
        embeddings_usage(usage)
    }

    fn write_usage(usage: &Usage) -> String {
        let tokens = usage.input_total();
        format!("{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}}")
    }

    fn text(_: &str) -> TextSize {
        TextSize::default()
    }
}

/// The state of a Chat Completions stream.
#[derive(Debug, Default)]
pub(crate) struct ChatStream {
    chunks: Chunks,
    /// The number of choices that have finished.
    ended: u64,
}

impl Stream for ChatStream {
    fn event(&mut self, state: &mut StreamState, _: &Event, _: &[u8], whole: &[u8]) -> Seen {
        let data = whole.trim_ascii();
        if data == b"[DONE]" {
            return self.done(state);
        }
        // Vendors that report a service tier report it in each chunk, so only the first chunk is parsed for it.
        if !state.spoke
            && let Ok([Some(json)]) = members(&String::from_utf8_lossy(data), &["service_tier"])
        {
            state.tier = tier(json);
        }
        let strings = self.chunks.strings::<Chat>(data, &state.text);
        state.text.add(&strings.text);
        self.ended += u64::from(strings.finish_reasons);
        let is_over = self.ended > state.more_choices;
        (state.may_end, state.usage_due, state.is_final) = (is_over, is_over, is_over);
        // Most chunks have neither usage nor an error, or have null for them. Such chunks need not be parsed.
        if !strings.usage && !strings.error {
            return Seen::Other;
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else {
            state.suspect |= strings.usage;
            return Seen::Other;
        };
        let usage = chunk.usage(data);
        state.usage_at = usage.map(|usage| within(whole, usage.get()));
        if let Some(json) = chunk.service_tier {
            state.tier = tier(json.get());
        }
        if let Some(usage) = usage {
            count(state, usage);
        }
        // The chunk with an error may also contain the usage of the text before the error.
        let is_error = |error: &&RawValue| is_error(error.get());
        // If several choices were requested, an error in one choice does not end the others.
        let is_only = state.more_choices == 0;
        let of_choice = || in_choices(data, |choice| choice.error).filter(|_| is_only);
        let error = chunk.error.filter(is_error).or_else(of_choice);
        if let Some(error) = error.filter(is_error) {
            return Seen::Failure(vendor_error(error.get()));
        }
        match usage.is_some() && is_without_choices(data) {
            true => Seen::UsageAlone,
            false => Seen::Other,
        }
    }

    fn with_usage(&self, event: &Event, usage: &str) -> Option<Bytes> {
        Some([usage_chunk(usage).as_bytes(), event.raw()].concat().into())
    }

    fn ceiling(&self, last: &Event) -> Bytes {
        if self.ended > 0 {
            return Bytes::from_static(DONE);
        }
        let last: Option<Map<String, Value>> = last
            .data()
            .and_then(|data| serde_json::from_slice(&data).ok());
        let mut chunk: Map<String, Value> = last.unwrap_or_default();
        chunk.retain(|name, _| CHUNK_FIELDS.contains(&name.as_str()));
        chunk
            .entry("object")
            .or_insert_with(|| "chat.completion.chunk".into());
        let choices = json!([{ "index": 0, "delta": {}, "finish_reason": "length" }]);
        chunk.insert("choices".to_owned(), choices);
        let chunk = format!("data: {}\n\n", Value::Object(chunk));
        [chunk.as_bytes(), DONE].concat().into()
    }

    /// Returns the last line, `data: [DONE]`, which clients expect and some vendors omit.
    fn closing(&self, usage: Option<&str>) -> Bytes {
        let usage = usage.map(usage_chunk).unwrap_or_default();
        [usage.as_bytes(), DONE].concat().into()
    }
}

impl ChatStream {
    fn done(&self, state: &mut StreamState) -> Seen {
        // The call is charged if a choice has text or has finished, or if tokens were counted.
        let has_counted = state.usage.is_some_and(|counts| !counts.usage.is_zero());
        if state.text.bytes() == 0 && self.ended == 0 && !has_counted {
            state.usage = None;
            return Seen::Failure(broken(
                "the stream has no text, no finished choice and no counted tokens",
            ));
        }
        state.finished = true;
        state.lacks_usage = state.usage.is_none();
        Seen::Other
    }
}

fn usage_chunk(usage: &str) -> String {
    format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n")
}

/// Records the usage that a chunk reports.
fn count(state: &mut StreamState, usage: &RawValue) {
    let Some(counts) = chat_usage(usage.get()) else {
        state.suspect = true;
        return;
    };
    // Some vendors end the stream with a usage object whose counts are all 0. It is ignored if an earlier event had
    // usage.
    if counts.usage.is_zero() && state.usage.is_some() {
        return;
    }
    let counts_output = counts.usage.output_total() > 0 || state.text.bytes() == 0;
    state.counted_at = counts_output.then_some(state.text.bytes());
    let shrunk = state.usage.map(|old| shrinks(&old, &counts));
    state.suspect |= shrunk.is_some_and(|(input, output)| input || output);
    state.usage = Some(counts);
}

raw_fields! {
    /// The fields of a choice that are read: all except its text.
    struct EndedChoice<'a> { usage, error }
}

impl<'a> Chunk<'a> {
    /// Returns the usage. Some vendors put it into `x_groq`, or into the choice that finishes.
    fn usage(&self, chunk: &'a [u8]) -> Option<&'a RawValue> {
        let usage = self.usage.or_else(|| groq_usage(self.x_groq?));
        usage.or_else(|| in_choices(chunk, |choice| choice.usage))
    }
}

/// Returns this field of the first choice that has it. Choices that cannot be parsed count as having no fields.
fn in_choices<'a>(
    chunk: &'a [u8],
    find: fn(EndedChoice<'a>) -> Option<&'a RawValue>,
) -> Option<&'a RawValue> {
    raw_fields! {
        struct Choices<'a> {
            ;
            #[serde(borrow)] choices: Vec<EndedChoice<'a>>,
        }
    }
    let chunk = serde_json::from_slice::<Choices<'a>>(chunk).ok()?;
    chunk.choices.into_iter().find_map(find)
}

/// Returns whether the chunk has no choices. False if its choices cannot be parsed.
fn is_without_choices(chunk: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Choices {
        choices: Option<Vec<IgnoredAny>>,
    }
    serde_json::from_slice::<Choices>(chunk)
        .is_ok_and(|chunk| chunk.choices.is_none_or(|choices| choices.is_empty()))
}

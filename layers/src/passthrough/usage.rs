//! Reads usage, the end and errors off a vendor's bytes (specification 2.2 and 2.4; the classes as in
//! docs/decisions.md, "Money": cached tokens stand inside the chat format's prompt, and beside the messages
//! format's input).

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{
    broken, responses,
    text::{Chunks, text_bytes},
    tool_calls::ToolCalls,
};
use crate::{
    call::Format,
    error::Error,
    json::members,
    price::Class,
    scrub::scrubbed,
    sse::Event,
    stream_progress::StreamProgress,
    usage::{End, Meter, Reading, Usage},
    vendor_usage::{
        MessagesUsage, VendorUsage, chat_usage, embeddings_usage, is_error, responses_usage,
    },
};

/// Reads a stream, event by event.
#[derive(Debug)]
pub struct Reader {
    format: Format,
    chunks: Chunks,
    chat: Option<VendorUsage>,
    messages: MessagesUsage,
    /// All that is known of a stream of the responses format.
    responses: Option<Box<responses::Told>>,
    output_counted: bool,
    suspect: bool,
    text_bytes: u64,
    spoke: bool,
    /// Choices that were asked for and have not finished.
    choices_left: u64,
    /// Any has, whether it was asked for or not.
    has_ended_any: bool,
    finished: bool,
}

/// How the comment begins that says what a stream cost.
const COST_COMMENT: &[u8] = b": cost_rub";

/// What an event was.
#[derive(Debug)]
pub enum Seen {
    /// Anything that goes on.
    Other,
    /// What only says that there will be an answer.
    Announced,
    /// A chat chunk with usage and without choices.
    UsageAlone,
    /// What the call cost another gateway of our kind: callers are told what it costs them.
    CostComment,
    /// The vendor's error inside a stream.
    Failure(Error),
}

impl Reader {
    /// A reader of streams of this format.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            chunks: Chunks::default(),
            chat: None,
            messages: MessagesUsage::default(),
            responses: (format == Format::Responses).then(Box::default),
            output_counted: false,
            suspect: false,
            text_bytes: 0,
            spoke: false,
            choices_left: 1,
            has_ended_any: false,
            finished: false,
        }
    }

    /// For an answer with so many choices: it may end once all of them have finished.
    #[must_use]
    pub const fn choices(mut self, choices: u64) -> Self {
        self.choices_left = choices;
        self
    }

    /// Takes note of the next event.
    pub fn event(&mut self, event: &Event) -> Seen {
        let Some(data) = event.data() else {
            return match event.raw().trim_ascii_start().starts_with(COST_COMMENT) {
                true => Seen::CostComment,
                false => Seen::Other,
            };
        };
        let seen = match self.format {
            Format::Chat => self.chat_event(&data),
            Format::Messages => self.messages_event(event.name(), &data),
            Format::Responses => self.responses_event(event, &data),
        };
        // The name is looked for until it no longer matters.
        self.spoke = self.spoke
            || (!matches!(seen, Seen::Failure(_) | Seen::Announced) && event.name() != b"ping");
        seen
    }

    /// An event has come that is no error and no mere sign of life.
    #[must_use]
    pub const fn spoke(&self) -> bool {
        self.spoke
    }

    /// The last event has come.
    #[must_use]
    pub const fn finished(&self) -> bool {
        self.finished
    }

    /// Nothing is missing if the stream ends now: some chat vendors leave out `[DONE]`.
    #[must_use]
    pub const fn may_end(&self) -> bool {
        self.finished || self.choices_left == 0
    }

    /// All text has come, as far as can be told, and the usage has not.
    #[must_use]
    pub fn usage_due(&self) -> bool {
        if self.finished {
            return false;
        }
        match &self.responses {
            Some(told) => told.usage_due(),
            None => self.choices_left == 0,
        }
    }

    /// A choice has said or ended something, or tokens were counted: there is something to pay for.
    fn has_answered(&self) -> bool {
        let has_counted = || self.chat.is_some_and(|counts| !counts.usage.is_zero());
        self.text_bytes > 0 || self.has_ended_any || has_counted()
    }

    /// The newest usage.
    fn counts(&self) -> Option<VendorUsage> {
        match self.format {
            Format::Chat => self.chat,
            Format::Messages => self.messages.counts(),
            Format::Responses => self.responses.as_ref()?.usage,
        }
    }

    /// Writes down what has been counted.
    pub fn note(&self, reading: &mut Reading) {
        let counts = self.counts();
        note(counts, reading);
        let uncounted = |told: &responses::Told| told.ran_uncounted();
        reading.unknown |= self.responses.as_deref().is_some_and(uncounted);
        reading.output_counted = self.output_counted();
        reading.suspect = self.suspect || counts.is_some_and(|counts| counts.suspect);
        reading.text_bytes = self.text_bytes;
    }

    /// The newest usage.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.counts().map(|counts| counts.usage)
    }

    /// Whether the usage's output is a count: messages streams begin with a guess.
    const fn output_counted(&self) -> bool {
        match self.format {
            Format::Chat => self.chat.is_some(),
            Format::Messages => self.output_counted,
            Format::Responses => matches!(&self.responses, Some(told) if told.usage.is_some()),
        }
    }

    /// What is told to whoever has to end a stream of the responses format.
    #[must_use]
    pub fn progress(&self) -> Option<StreamProgress> {
        self.responses.as_ref().map(|told| told.progress.clone())
    }

    /// A sign of life in the stream's format that means nothing.
    #[must_use]
    pub const fn keep_alive(&self) -> Bytes {
        Bytes::from_static(match self.format {
            // A number of ours would collide with the vendor's.
            Format::Chat | Format::Responses => b": keep-alive\n\n",
            Format::Messages => b"event: ping\ndata: {\"type\":\"ping\"}\n\n",
        })
    }

    fn chat_event(&mut self, data: &[u8]) -> Seen {
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            if !self.has_answered() {
                self.chat = None;
                return Seen::Failure(broken("a stream without an answer"));
            }
            self.finished = true;
            return Seen::Other;
        }
        let strings = self.chunks.strings(Format::Chat, data);
        self.text_bytes += strings.text_bytes;
        let finished = u64::from(strings.finish_reasons);
        self.has_ended_any |= finished > 0;
        self.choices_left = self.choices_left.saturating_sub(finished);
        // Most chunks have neither, or only null, and need no second look.
        let usage_here = strings.usage;
        if !usage_here && !strings.error {
            return Seen::Other;
        }
        let Ok(chunk) = serde_json::from_slice::<ChatAnswer<'_>>(data) else {
            self.suspect |= usage_here;
            return Seen::Other;
        };
        let groq = || {
            let groq = serde_json::from_str::<Groq<'_>>(chunk.x_groq?.get());
            groq.ok()?.usage
        };
        let usage = chunk.usage.or_else(groq);
        let counted = usage.map(|usage| {
            let counts = chat_usage(usage.get())?;
            Some(counts.served_as(chunk.service_tier.map(RawValue::get)))
        });
        match counted {
            // One of nothing at all behind one of something says nothing.
            Some(Some(counts)) if counts.usage.is_zero() && self.chat.is_some() => {}
            Some(Some(counts)) => self.chat = Some(counts),
            Some(None) => self.suspect = true,
            None => {}
        }
        // An error may bring the usage of what came before it.
        if let Some(error) = chunk.error.filter(|error| is_error(error.get())) {
            return Seen::Failure(vendor_error(error.get()));
        }
        if usage.is_none() {
            return Seen::Other;
        }
        match serde_json::from_slice(data) {
            Ok(ChatChoices {
                choices: Some(choices),
            }) if choices.is_empty() => Seen::UsageAlone,
            _ => Seen::Other,
        }
    }

    fn responses_event(&mut self, event: &Event, data: &[u8]) -> Seen {
        let Some(told) = &mut self.responses else {
            return Seen::Other;
        };
        let seen = told.event(event.name(), data);
        // What is an error of the vendor's does not go on.
        if !matches!(seen, Seen::Failure(_)) {
            told.progress.passed(event);
        }
        self.text_bytes = told.text_bytes();
        self.suspect |= told.suspect;
        self.finished |= told.finished;
        seen
    }

    fn messages_event(&mut self, name: &[u8], data: &[u8]) -> Seen {
        let strings = self.chunks.strings(Format::Messages, data);
        self.text_bytes += strings.text_bytes;
        if !matches!(
            name,
            b"" | b"message_start" | b"message_delta" | b"message_stop" | b"error"
        ) {
            return Seen::Other;
        }
        let Ok(event) = serde_json::from_slice::<MessagesEvent<'_>>(data) else {
            self.suspect |= strings.usage;
            // Whatever its shape, an error's words are the vendor's own.
            if name == b"error" || (name.is_empty() && strings.error) {
                return Seen::Failure(vendor_error(&String::from_utf8_lossy(data)));
            }
            return Seen::Other;
        };
        match event.kind {
            "message_stop" => self.finished = true,
            "error" => {
                return Seen::Failure(event.error.map_or_else(
                    || broken("an error without a text"),
                    |error| vendor_error(error.get()),
                ));
            }
            _ if strings.usage => {
                let started = serde_json::from_slice::<MessagesStart<'_>>(data).ok();
                let usage = started
                    .and_then(|start| start.message?.usage)
                    .or(event.usage);
                match usage.map(|usage| MessagesUsage::of(usage.get())) {
                    Some(Some(usage)) => {
                        self.output_counted |=
                            event.kind == "message_delta" && usage.counts_output();
                        self.messages.replace_by(usage);
                    }
                    Some(None) => self.suspect = true,
                    None => {}
                }
            }
            _ => {}
        }
        Seen::Other
    }
}

/// Reads a plain answer into the meter. Gives back the answer with the usage that is charged, where that is not
/// what stands in it.
///
/// # Errors
/// It is no JSON object, an error in the clothes of an answer, or says and counts nothing.
pub fn plain(format: Format, bytes: &[u8], meter: &Meter) -> Result<Option<Bytes>, Error> {
    let json = as_text(bytes);
    let said_in = match format {
        Format::Chat => "choices",
        Format::Messages => "content",
        Format::Responses => "output",
    };
    let [usage, error, service_tier, said] =
        members(&json, &["usage", "error", "service_tier", said_in]).map_err(broken)?;
    let calls = match format {
        Format::Responses => ToolCalls::of(&json),
        Format::Chat | Format::Messages => ToolCalls::default(),
    };
    let counts = usage
        .filter(|usage| *usage != "null")
        .and_then(|usage| match format {
            Format::Chat => Some(chat_usage(usage)?.served_as(service_tier)),
            Format::Messages => MessagesUsage::of(usage)?.counts(),
            Format::Responses => {
                let usage = responses_usage(usage)?.served_as(service_tier);
                Some(calls.within(usage))
            }
        });
    let error = error.filter(|error| is_error(error));
    let refused = match format {
        Format::Responses => responses::refused(&json),
        _ => None,
    };
    if let Some(error) = refused.or_else(|| error.map(vendor_error)) {
        note_error(counts, meter);
        return Err(error);
    }
    // A message may be empty; a chat without a choice is none.
    let is_empty_one = |said: &str| format == Format::Chat && is_empty_array(said);
    if said.is_none_or(|said| !said.starts_with('[') || is_empty_one(said)) {
        counted_at_least(counts)?;
    }
    // Text is only charged by where the vendor has not counted it.
    let uncounted = counts.is_none_or(|counts| counts.usage.output_total() == 0);
    let text = match format {
        _ if !uncounted => 0,
        Format::Responses => responses::output_bytes(&json),
        _ => text_bytes(format, bytes),
    };
    meter.update(|reading| {
        note(counts, reading);
        reading.unknown |= counts.is_none() && calls.any();
        reading.output_counted = counts.is_some();
        reading.suspect = counts.is_none_or(|counts| counts.suspect);
        reading.text_bytes = text;
        reading.end = Some(End::Finished);
    });
    // An answer has its usage (specification 2.2, 2.4), and spending is computed from it.
    let charged = meter.counted().filter(|counted| counted.estimated);
    Ok(charged
        .map(|charged| with_usage(format, bytes, within(&json, usage).as_ref(), &charged.usage)))
}

fn is_empty_array(json: &str) -> bool {
    let inner = json
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.trim_ascii().is_empty())
}

/// What says nothing is an answer where its vendor has counted tokens for it, and takes money.
fn counted_at_least(counts: Option<VendorUsage>) -> Result<(), Error> {
    match counts {
        Some(counts) if !counts.usage.is_zero() => Ok(()),
        _ => Err(broken("an answer that says nothing")),
    }
}

/// What a vendor has counted beside an error is charged; one that counts nothing is free.
fn note_error(counts: Option<VendorUsage>, meter: &Meter) {
    let Some(counts) = counts.filter(|counts| !counts.usage.is_zero()) else {
        return;
    };
    meter.update(|reading| {
        note(Some(counts), reading);
        reading.output_counted = true;
        reading.suspect = counts.suspect;
        reading.end = Some(End::VendorError);
    });
}

/// Reads embeddings into the meter, as [`plain`] does a chat's answer: they have usage, and no text.
///
/// # Errors
/// It is no JSON object, an error in the clothes of an answer, or has and counts nothing.
pub fn embeddings(bytes: &[u8], meter: &Meter) -> Result<Option<Bytes>, Error> {
    let json = as_text(bytes);
    let [usage, error, service_tier, data] =
        members(&json, &["usage", "error", "service_tier", "data"]).map_err(broken)?;
    let old = within(&json, usage);
    let counts = usage.and_then(|usage| Some(embeddings_usage(usage)?.served_as(service_tier)));
    if let Some(error) = error.filter(|error| is_error(error)) {
        note_error(counts, meter);
        return Err(vendor_error(error));
    }
    if data.is_none_or(|data| !data.starts_with('[') || is_empty_array(data)) {
        counted_at_least(counts)?;
    }
    meter.update(|reading| {
        note(counts, reading);
        reading.output_counted = true;
        reading.suspect = counts.is_none_or(|counts| counts.suspect);
        reading.end = Some(End::Finished);
    });
    let charged = meter.counted().filter(|counted| counted.estimated);
    Ok(charged.map(|charged| {
        let tokens = charged.usage.input_total();
        let usage = format!("{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}}");
        with_member(bytes, old.as_ref(), &usage)
    }))
}

fn note(counts: Option<VendorUsage>, reading: &mut Reading) {
    reading.usage = counts.map(|counts| counts.usage);
    if let Some(counts) = counts {
        reading.cache_write_usual = counts.cache_write_usual;
        reading.served = counts.served;
        reading.unknown = counts.unknown;
    }
}

/// JSON as text that is as long: one that its vendor has cut within a character is the caller's to see, and no
/// reason to refuse.
fn as_text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    text.into()
}

/// Where a part of a text stands in it.
fn within(text: &str, part: Option<&str>) -> Option<Range<usize>> {
    let part = part?;
    let start = part.as_ptr().addr() - text.as_ptr().addr();
    Some(start..start + part.len())
}

/// An answer, a JSON object, with this usage.
fn with_usage(format: Format, answer: &[u8], old: Option<&Range<usize>>, usage: &Usage) -> Bytes {
    let Usage {
        input,
        cached_input,
        cache_write,
        classes,
        ..
    } = *usage;
    let output = usage.output_total();
    let [hour, half_day, sound, image, spoken, drawn, searches] =
        Class::ALL.map(|class| classes.get(class));
    let written = cache_write.saturating_add(hour).saturating_add(half_day);
    let some = |count: u64, text: String| if count > 0 { text } else { String::new() };
    let usage = match format {
        Format::Chat => {
            let prompt = usage.input_total();
            let total = prompt.saturating_add(output);
            let lives = some(
                half_day,
                format!(
                    ",\"cache_write_tokens_details\":{{\"ttl_30m_tokens\":{},\"ttl_12h_tokens\":{half_day}}}",
                    cache_write.saturating_add(hour)
                ),
            );
            let parts = some(sound, format!(",\"audio_tokens\":{sound}"))
                + &some(image, format!(",\"image_tokens\":{image}"));
            let made = some(
                spoken.saturating_add(drawn),
                format!(
                    ",\"completion_tokens_details\":{{\"audio_tokens\":{spoken},\"image_tokens\":{drawn}}}"
                ),
            );
            let tools = some(searches, server_tool_use(searches));
            format!(
                "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{output},\"total_tokens\":{total},\
                 \"prompt_tokens_details\":{{\"cached_tokens\":{cached_input},\
                 \"cache_write_tokens\":{written}{lives}{parts}}}{made}{tools}}}"
            )
        }
        Format::Messages => {
            let lives = some(
                hour,
                format!(
                    ",\"cache_creation\":{{\"ephemeral_5m_input_tokens\":{},\"ephemeral_1h_input_tokens\":{hour}}}",
                    cache_write.saturating_add(half_day)
                ),
            );
            let input = input.saturating_add(sound).saturating_add(image);
            let tools = some(searches, server_tool_use(searches));
            format!(
                "{{\"input_tokens\":{input},\"cache_creation_input_tokens\":{written},\
                 \"cache_read_input_tokens\":{cached_input},\"output_tokens\":{output}{lives}{tools}}}"
            )
        }
        Format::Responses => {
            let input = usage.input_total();
            let total = input.saturating_add(output);
            format!(
                "{{\"input_tokens\":{input},\"input_tokens_details\":{{\"cached_tokens\":{cached_input},\
                 \"cache_write_tokens\":{written}}},\"output_tokens\":{output},\
                 \"output_tokens_details\":{{\"reasoning_tokens\":0}},\"total_tokens\":{total}}}"
            )
        }
    };
    with_member(answer, old, &usage)
}

/// An answer, a JSON object, with this as its `usage`: at `old`, or as its last member.
fn with_member(answer: &[u8], old: Option<&Range<usize>>, usage: &str) -> Bytes {
    if let Some(&Range { start, end }) = old {
        return [&answer[..start], usage.as_bytes(), &answer[end..]]
            .concat()
            .into();
    }
    let object = answer.trim_ascii_end();
    let brace = object.len().saturating_sub(1);
    let members = object[..brace].trim_ascii_end();
    let comma: &[u8] = if members.ends_with(b"{") { b"" } else { b"," };
    [
        members,
        comma,
        b"\"usage\":",
        usage.as_bytes(),
        &answer[members.len()..],
    ]
    .concat()
    .into()
}

fn server_tool_use(searches: u64) -> String {
    format!(",\"server_tool_use\":{{\"web_search_requests\":{searches}}}")
}

/// A vendor's own words about an error go to the log, not to the caller.
pub(super) fn vendor_error(error: &str) -> Error {
    let text: String = error.chars().take(500).collect();
    Error::VendorUnavailable(scrubbed(&text).into())
}

/// Has no type for what stands beside the usage: whatever that is, usage is read.
#[derive(Deserialize)]
struct ChatAnswer<'a> {
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    x_groq: Option<&'a RawValue>,
    #[serde(borrow)]
    service_tier: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ChatChoices {
    choices: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct Groq<'a> {
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct MessagesEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct MessagesStart<'a> {
    #[serde(borrow)]
    message: Option<StartedMessage<'a>>,
}

#[derive(Deserialize)]
struct StartedMessage<'a> {
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Bounds;

    fn read(format: Format, usage: &str) -> (Option<Usage>, bool) {
        let meter = Meter::default();
        let body = format!("{{\"choices\":[{{}}],\"content\":[],\"usage\":{usage}}}");
        plain(format, body.as_bytes(), &meter).unwrap();
        (meter.read().usage, meter.read().suspect)
    }

    #[test]
    fn an_empty_error_beside_an_answer_is_none() {
        let plain = |error: &str| {
            let body = format!(
                r#"{{"choices":[],"error":{error},"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#
            );
            plain(Format::Chat, body.as_bytes(), &Meter::default())
        };
        for error in ["null", "{}", r#""""#, "false"] {
            plain(error).unwrap();
        }
        for error in [r#"{"message":"no"}"#, r#""no""#, "true", "[]"] {
            plain(error).unwrap_err();
        }
    }

    #[test]
    fn chat_usage_counts_each_token_once() {
        for (usage, classes, suspect) in [
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}"#,
                [10, 0, 0, 5],
                false,
            ),
            (
                r#"{"prompt_tokens":4020,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":4012}}"#,
                [8, 0, 4012, 8],
                false,
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_cache_hit_tokens":4}"#,
                [6, 4, 0, 5],
                false,
            ),
            // Reasoning beside the completion.
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":115,"completion_tokens_details":{"reasoning_tokens":100}}"#,
                [10, 0, 0, 105],
                false,
            ),
            // Reasoning inside it.
            (
                r#"{"prompt_tokens":10,"completion_tokens":105,"total_tokens":115,"completion_tokens_details":{"reasoning_tokens":100}}"#,
                [10, 0, 0, 105],
                false,
            ),
            (
                r#"{"prompt_tokens":-5,"completion_tokens":5}"#,
                [0, 0, 0, 5],
                true,
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":null}"#,
                [10, 0, 0, 0],
                true,
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":11}}"#,
                [0, 10, 0, 5],
                true,
            ),
        ] {
            let [input, cached_input, cache_write, output] = classes;
            let expected = Usage {
                input,
                cached_input,
                cache_write,
                output,
                ..Usage::default()
            };
            assert_eq!(
                read(Format::Chat, usage),
                (Some(expected), suspect),
                "{usage}"
            );
        }
        assert_eq!(read(Format::Chat, "null"), (None, true));
        assert_eq!(read(Format::Chat, "\"x\""), (None, true));
    }

    #[test]
    fn messages_usage_has_the_cache_beside_the_input() {
        let usage = r#"{"input_tokens":3,"cache_creation_input_tokens":2,"cache_read_input_tokens":1,"output_tokens":9}"#;
        let expected = Usage {
            input: 3,
            cached_input: 1,
            cache_write: 2,
            output: 9,
            ..Usage::default()
        };
        assert_eq!(read(Format::Messages, usage), (Some(expected), false));
    }

    const BOUNDS: Bounds = Bounds {
        input_bound: 100,
        input_limit: 150,
        input_estimate: 20,
        sound_estimate: 0,
        output_bound: 50,
        output_limit: 60,
        calls_max: None,
        cache_write: None,
        output_class: None,
    };

    #[test]
    fn an_answer_without_usable_usage_says_what_is_charged_and_keeps_every_other_byte() {
        const CHAT: &str = r#""choices":[{"message":{"content":"abcdefgh\u0436"}}]"#;
        const MESSAGES: &str = r#""content":[{"type":"text","text":"abcdefgh\u0436"}]"#;
        const RESPONSES: &str = r#""output":[{"content":[{"type":"output_text","text":"abcdefgh\u0436"}]}],"instructions":"no text""#;
        for (format, text) in [
            (Format::Chat, CHAT),
            (Format::Messages, MESSAGES),
            (Format::Responses, RESPONSES),
        ] {
            // What stands in front of the usage and behind it, where there is none, and where there is.
            let without = [
                (format!("{{{text}"), "}".to_owned()),
                (format!(" {{\"id\" : 1.000 ,{text}"), " }\r\n".to_owned()),
            ];
            let with = [
                (format!("{{{text},\"usage\":"), "}".to_owned()),
                (
                    "{\"x\":{\"usage\":null}, \"us\\u0061ge\" : ".to_owned(),
                    format!(" ,{text}}}\n"),
                ),
            ];
            let mut answers: Vec<_> = without
                .iter()
                .map(|(before, after)| ([before, after.as_str()].concat(), before, after, true))
                .collect();
            for nonsense in [
                "null",
                "{}",
                "[]",
                "\"x\"",
                r#"{"prompt_tokens":null}"#,
                r#"{"prompt_tokens":"9","completion_tokens":"5","input_tokens":-1}"#,
            ] {
                let answer =
                    |(before, after)| (format!("{before}{nonsense}{after}"), before, after);
                let with = with.iter().map(|(before, after)| answer((before, after)));
                answers.extend(with.map(|(answer, before, after)| (answer, before, after, false)));
            }
            for (answer, before, after, is_new) in answers {
                let meter = Meter::default();
                meter.charge_within(BOUNDS);
                let said = plain(format, answer.as_bytes(), &meter).unwrap().unwrap();
                let said = String::from_utf8(said.to_vec()).unwrap();
                let usage = said.strip_prefix(before.as_str()).unwrap();
                let usage = usage.strip_suffix(after.as_str()).unwrap();
                let usage = match is_new {
                    true => usage.strip_prefix(",\"usage\":").unwrap(),
                    false => usage,
                };
                let expected = match format {
                    Format::Chat => {
                        r#"{"prompt_tokens":20,"completion_tokens":3,"total_tokens":23,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":0}}"#
                    }
                    Format::Messages => {
                        r#"{"input_tokens":20,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":3}"#
                    }
                    Format::Responses => {
                        r#"{"input_tokens":20,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":23}"#
                    }
                };
                assert_eq!(usage, expected, "{answer}");
            }
        }
    }

    #[test]
    fn what_is_put_in_reads_as_what_is_charged() {
        const COUNTS: [u64; 4] = [0, 7, 120, u64::MAX];
        let usages = COUNTS.iter().flat_map(|input| {
            let rest = COUNTS
                .iter()
                .flat_map(|cached| COUNTS.map(|output| (*cached, output)));
            rest.map(|(cached, output)| (*input, cached, output))
        });
        for (input, cached, output) in usages {
            for (format, usage) in [
                (
                    Format::Chat,
                    format!(
                        r#"{{"prompt_tokens":{input},"completion_tokens":{output},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
                    ),
                ),
                (
                    Format::Messages,
                    format!(
                        r#"{{"input_tokens":{input},"cache_creation_input_tokens":{cached},"output_tokens":{output}}}"#
                    ),
                ),
            ] {
                let answer = format!(
                    r#"{{"choices":[{{}}],"content":[{{"text":"abcde"}}],"usage":{usage}}}"#
                );
                let meter = Meter::default();
                meter.charge_within(BOUNDS);
                let said = plain(format, answer.as_bytes(), &meter).unwrap();
                let charged = meter.counted().unwrap();
                assert_eq!(said.is_some(), charged.estimated, "{answer}");
                let again = Meter::default();
                let said = said.unwrap_or(answer.into());
                plain(format, &said, &again).unwrap();
                assert_eq!(again.read().usage, Some(charged.usage), "{said:?}");
                assert!(!again.read().suspect, "{said:?}");
            }
        }
    }

    #[test]
    fn usage_is_put_where_it_stood_beside_half_a_character() {
        for (before, after) in [
            (&b"{\"choices\":[\"a\xD0\"],\"usage\":"[..], &b"}"[..]),
            (b"{\"usage\":", b",\"choices\":[\"\xF0\x9F\"]}"),
        ] {
            let meter = Meter::default();
            meter.charge_within(BOUNDS);
            let answer = [before, b"null", after].concat();
            let said = plain(Format::Chat, &answer, &meter).unwrap().unwrap();
            assert!(
                said.starts_with(before) && said.ends_with(after),
                "{said:?}"
            );
            assert!(
                said[before.len()..].starts_with(b"{\"prompt_tokens\":20,"),
                "{said:?}"
            );
        }
        let meter = Meter::default();
        meter.charge_within(BOUNDS);
        let said = plain(Format::Messages, b" {\"content\":[] } ", &meter)
            .unwrap()
            .unwrap();
        assert!(
            said.starts_with(b" {\"content\":[],\"usage\":{\"input_tokens\":20,"),
            "{said:?}"
        );
        assert!(said.ends_with(b"\"output_tokens\":0} } "), "{said:?}");
    }

    #[test]
    fn an_answer_goes_on_as_it_is_where_nobody_said_by_what_it_is_charged() {
        let plain = |answer: &str| plain(Format::Chat, answer.as_bytes(), &Meter::default());
        assert_eq!(plain(r#"{"choices":[{}]}"#).unwrap(), None);
    }

    #[test]
    fn an_answer_that_says_nothing_is_one_only_where_tokens_are_counted() {
        for (format, empty, counted) in [
            (
                Format::Chat,
                &[
                    "{}",
                    r#"{"choices":null}"#,
                    r#"{"choices":[ ]}"#,
                    r#"{"choices":{}}"#,
                ][..],
                r#"{"prompt_tokens":3,"completion_tokens":0}"#,
            ),
            (
                Format::Messages,
                &["{}", r#"{"content":null}"#],
                r#"{"input_tokens":3,"output_tokens":0}"#,
            ),
            (
                Format::Responses,
                &["{}", r#"{"output":null}"#],
                r#"{"input_tokens":3,"output_tokens":0}"#,
            ),
        ] {
            for empty in empty {
                let with = |usage: &str| {
                    let comma = if *empty == "{}" { "" } else { "," };
                    let answer = empty.strip_suffix('}').unwrap();
                    format!("{answer}{comma}\"usage\":{usage}}}")
                };
                let said = |answer: &str| {
                    let meter = Meter::default();
                    let said = plain(format, answer.as_bytes(), &meter);
                    (said, meter.read().end)
                };
                for nothing in ["null", "{}", &counted.replace('3', "0")] {
                    for answer in [(*empty).to_owned(), with(nothing)] {
                        let (said, end) = said(&answer);
                        assert!(matches!(said, Err(Error::VendorBroken(_))), "{answer}");
                        assert_eq!(end, None, "{answer}");
                    }
                }
                let (said, end) = said(&with(counted));
                assert_eq!((said.unwrap(), end), (None, Some(End::Finished)));
            }
        }
    }

    #[test]
    fn embeddings_without_data_are_an_answer_only_where_tokens_are_counted() {
        for answer in [
            "{}",
            r#"{"data":null}"#,
            r#"{"data":[]}"#,
            r#"{"usage":{"prompt_tokens":0}}"#,
        ] {
            let said = embeddings(answer.as_bytes(), &Meter::default());
            assert!(matches!(said, Err(Error::VendorBroken(_))), "{answer}");
        }
        for answer in [r#"{"data":[{}]}"#, r#"{"usage":{"prompt_tokens":3}}"#] {
            embeddings(answer.as_bytes(), &Meter::default()).unwrap();
        }
    }

    #[test]
    fn a_chat_stream_that_says_nothing_does_not_end_well() {
        let done = |events: &[&str]| {
            let mut reader = Reader::new(Format::Chat);
            for event in events {
                let seen = reader.chat_event(event.as_bytes());
                assert!(!matches!(seen, Seen::Failure(_)), "{event}");
            }
            reader.chat_event(b"[DONE]")
        };
        for events in [
            &[][..],
            &["{}"],
            &[r#"{"choices":[]}"#],
            &[r#"{"choices":[],"usage":{}}"#],
            &[r#"{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}"#],
            &[r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#],
        ] {
            let seen = done(events);
            assert!(
                matches!(seen, Seen::Failure(Error::VendorBroken(_))),
                "{events:?}"
            );
        }
        for events in [
            &[r#"{"choices":[{"delta":{"content":"a"}}]}"#][..],
            &[r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#],
            &[r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}"#],
        ] {
            assert!(matches!(done(events), Seen::Other), "{events:?}");
        }
    }

    #[test]
    fn an_answer_that_is_an_error_or_no_json_is_no_answer() {
        let meter = Meter::default();
        let error = plain(Format::Chat, br#"{"error":{"message":"no"}}"#, &meter).unwrap_err();
        assert!(matches!(error, Error::VendorUnavailable(_)));
        assert!(matches!(
            plain(Format::Chat, b"<html>", &meter),
            Err(Error::VendorBroken(_))
        ));
        assert_eq!(meter.read().end, None);
    }
}

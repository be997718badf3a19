//! Reads the usage of a stream, event by event.

use std::ops::Range;

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{ceiling, note, put_in::with_usage, within};
use crate::{
    call::Format,
    error::Error,
    json::members,
    passthrough::{broken, note_text, responses, text::Chunks, vendor_error::vendor_error},
    price::{Class, Label},
    sse::{Event, sign_of_life},
    stream_progress::StreamProgress,
    text_size::TextSize,
    usage::{End, Meter, Reading, Usage},
    vendor_usage::{MessagesUsage, VendorUsage, chat_usage, is_error, tier},
};

/// Reads usage, the end and errors of a stream, event by event.
#[derive(Debug)]
pub struct Reader {
    format: Format,
    chunks: Chunks,
    chat: Option<VendorUsage>,
    messages: MessagesUsage,
    /// The state of the stream, if its format is responses.
    responses: Option<Box<responses::ResponsesState>>,
    /// The service tier that the chunks of a chat stream have reported so far.
    tier: Label,
    /// How many bytes of text had arrived when the vendor last counted the output.
    counted_at: Option<u64>,
    /// The number of web searches whose results arrived in a messages stream.
    searches: u64,
    suspect: bool,
    /// The byte range of the usage in the data of the latest event, if that event has usage.
    usage_at: Option<Range<usize>>,
    /// Whether the latest event should have stated the usage, and no event has stated it.
    lacks_usage: bool,
    text: TextSize,
    spoke: bool,
    /// Whether the request has several choices.
    has_choices: bool,
    /// The number of requested choices that have not finished.
    choices_left: u64,
    /// Whether a choice has finished, even a choice that was not requested. In a messages stream: whether a
    /// `message_delta` has arrived.
    has_ended_any: bool,
    finished: bool,
}

/// The beginning of the comment in which a gateway reports the cost of a stream.
const COST_COMMENT: &[u8] = b": cost_rub";

/// The kind of an event, which decides whether it is forwarded.
#[derive(Debug)]
pub enum Seen {
    /// An event of any other kind, which is forwarded.
    Other,
    /// An event without data, such as a comment or a blank line.
    Nothing,
    /// An event that announces an answer without containing a part of it.
    Announced,
    /// A chat chunk that has usage and no choices.
    UsageAlone,
    /// A comment with the cost of the call at another gateway of this kind. It is removed, because callers get this
    /// gateway's cost.
    CostComment,
    /// An error that the vendor reports within the stream.
    Failure(Error),
}

impl Reader {
    /// Creates a reader of streams of this format.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            chunks: Chunks::default(),
            chat: None,
            messages: MessagesUsage::default(),
            responses: (format == Format::Responses).then(Box::default),
            tier: Label::default(),
            counted_at: None,
            searches: 0,
            suspect: false,
            usage_at: None,
            lacks_usage: false,
            text: TextSize::default(),
            spoke: false,
            has_choices: false,
            choices_left: 1,
            has_ended_any: false,
            finished: false,
        }
    }

    /// Sets the number of requested choices. When all of them have finished, the answer may end.
    #[must_use]
    pub const fn choices(mut self, choices: u64) -> Self {
        self.has_choices = choices > 1;
        self.choices_left = choices;
        self
    }

    /// Reads the next event of the stream, and returns its kind.
    pub fn event(&mut self, event: &Event) -> Seen {
        let (name, data) = event.parts();
        let Some(data) = data else {
            return match event.raw().trim_ascii_start().starts_with(COST_COMMENT) {
                true => Seen::CostComment,
                false => Seen::Nothing,
            };
        };
        (self.usage_at, self.lacks_usage) = (None, false);
        let seen = match self.format {
            Format::Chat => self.chat_event(&data),
            Format::Messages => self.messages_event(name, &data),
            Format::Responses => self.responses_event(event, name, &data),
        };
        self.spoke =
            self.spoke || (!matches!(seen, Seen::Failure(_) | Seen::Announced) && name != b"ping");
        seen
    }

    /// Returns the latest event with its usage replaced by the charged usage, if the two differ; otherwise `None`. They
    /// differ if the vendor's usage is contradictory, was cut to the request's bounds, or is the final usage and
    /// incomplete. A plain answer would state the same usage.
    pub fn charged(&self, event: &Event, meter: &Meter) -> Option<Bytes> {
        let Some(at) = self.usage_at.as_ref() else {
            return self.unstated(event, meter);
        };
        meter.update(|reading| self.note(reading));
        let counted = match self.has_come_whole() {
            true => meter.counted_at(End::Finished)?,
            false => meter.counted()?,
        };
        let contradicted = counted.overcount.is_some() || meter.look(|reading| reading.suspect);
        if !counted.estimated || !(contradicted || self.has_come_whole()) {
            return None;
        }
        let data = with_usage(self.format, &event.data()?, Some(at), &counted.usage);
        Some(event.with_data(&data))
    }

    /// Returns the latest event with the charged usage, if this event should state the usage and no event has stated
    /// it. Only for answers that are translated, because the caller's format requires usage, and for answers that the
    /// gateway ends.
    fn unstated(&self, event: &Event, meter: &Meter) -> Option<Bytes> {
        let adds_usage = |reading: &Reading| reading.translated || reading.stopped_by.is_some();
        if !self.lacks_usage || !meter.look(adds_usage) {
            return None;
        }
        let data = event.data()?;
        if self.format == Format::Chat {
            let chunk = self.usage_chunk(meter)?;
            return Some([&chunk[..], &event.raw()[..]].concat().into());
        }
        let usage = self.final_usage(meter)?;
        if self.format == Format::Messages {
            return Some(event.with_data(&with_usage(self.format, &data, None, &usage)));
        }
        let [response] = members(std::str::from_utf8(&data).ok()?, &["response"]).ok()?;
        let response = response?;
        let [old] = members(response, &["usage"]).ok()?;
        let old = old.map(|old| within(response.as_bytes(), old));
        let (bytes, at) = (response.as_bytes(), within(&data, response));
        let stated = with_usage(self.format, bytes, old.as_ref(), &usage);
        let data = [&data[..at.start], &stated[..], &data[at.end..]].concat();
        Some(event.with_data(&data))
    }

    /// Returns a chat chunk with the charged usage, for a translated stream that ends without any usage.
    pub fn missing_usage(&self, meter: &Meter) -> Option<Bytes> {
        let is_missing = self.format == Format::Chat && self.chat.is_none();
        if is_missing && meter.look(|reading| reading.translated) {
            self.usage_chunk(meter)
        } else {
            None
        }
    }

    fn usage_chunk(&self, meter: &Meter) -> Option<Bytes> {
        let usage = self.final_usage(meter)?;
        let chunk = with_usage(Format::Chat, br#"{"choices":[]}"#, None, &usage);
        Some([&b"data: "[..], &chunk[..], b"\n\n"].concat().into())
    }

    /// Returns the usage that will be charged if the stream ends now.
    fn final_usage(&self, meter: &Meter) -> Option<Usage> {
        meter.update(|reading| self.note(reading));
        Some(meter.counted_at(End::Finished)?.usage)
    }

    /// Returns whether usage that arrives now is the vendor's final usage.
    fn has_come_whole(&self) -> bool {
        match self.format {
            Format::Chat => self.choices_left == 0,
            Format::Messages => self.has_ended_any,
            Format::Responses => self.finished,
        }
    }

    /// Returns whether an event has arrived that is neither an error, nor a keep-alive, nor an announcement.
    #[must_use]
    pub const fn spoke(&self) -> bool {
        self.spoke
    }

    /// Returns whether the last event of the stream was received.
    #[must_use]
    pub const fn finished(&self) -> bool {
        self.finished
    }

    /// Returns whether the stream is complete if it ends now. Some chat vendors omit the last event, `[DONE]`.
    #[must_use]
    pub const fn may_end(&self) -> bool {
        self.finished || self.choices_left == 0
    }

    /// Returns whether all text seems to have arrived, while the usage has not.
    #[must_use]
    pub fn usage_due(&self) -> bool {
        if self.finished {
            return false;
        }
        match &self.responses {
            Some(reported) => reported.usage_due(),
            None => self.choices_left == 0,
        }
    }

    /// Returns whether the latest event should have stated the usage, and no event has stated it.
    pub(in crate::passthrough) const fn lacks_usage(&self) -> bool {
        self.lacks_usage
    }

    /// Returns the events with which a vendor ends a stream at the request's ceiling of output, without usage. `last`
    /// is the last event that has a position in the stream; empty if there was no such event.
    pub(in crate::passthrough) fn ceiling(&self, last: Bytes) -> Bytes {
        let last = Event::of(last);
        match self.format {
            Format::Chat => ceiling::chat(&last, self.has_ended_any),
            Format::Messages => ceiling::messages(&last, self.has_ended_any),
            Format::Responses => {
                let reached = self.progress().map(|progress| progress.reached());
                ceiling::responses(reached.unwrap_or_default())
            }
        }
    }

    /// Returns whether there is something to charge: a choice has text or has finished, or tokens were counted.
    fn has_answered(&self) -> bool {
        let has_counted = || self.chat.is_some_and(|counts| !counts.usage.is_zero());
        self.text.bytes() > 0 || self.has_ended_any || has_counted()
    }

    /// Returns the newest usage that the vendor reported.
    fn counts(&self) -> Option<VendorUsage> {
        match self.format {
            Format::Chat => self.chat,
            Format::Messages => self.messages.counts().map(|mut counts| {
                // The number of search results is used until the vendor reports its own count of searches.
                if self.counted_at.is_none() {
                    let searches = counts.usage.classes.get_mut(Class::WebSearchCall);
                    *searches = self.searches.max(*searches);
                }
                counts
            }),
            Format::Responses => self.responses.as_ref()?.usage,
        }
    }

    /// Records the usage and the text so far in the meter.
    pub fn note(&self, reading: &mut Reading) {
        let counts = self.counts();
        let tier = self
            .responses
            .as_deref()
            .map_or(self.tier, |reported| reported.tier);
        note(counts, tier, reading);
        let uncounted = |reported: &responses::ResponsesState| reported.ran_uncounted();
        reading.unknown |= self.responses.as_deref().is_some_and(uncounted);
        reading.output_counted = self.output_counted();
        reading.suspect = self.suspect || counts.is_some_and(|counts| counts.suspect);
        note_text(&self.text, reading);
    }

    /// Returns the newest usage by rate class.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.counts().map(|counts| counts.usage)
    }

    /// Returns whether the usage counts all output so far. Messages streams begin with an estimate, and vendors that
    /// report usage in each chunk may not have counted the latest text.
    fn output_counted(&self) -> bool {
        match &self.responses {
            Some(reported) => reported.usage.is_some(),
            None => self.counted_at == Some(self.text.bytes()),
        }
    }

    /// Returns the position of a responses stream, for code that must end the stream early.
    #[must_use]
    pub fn progress(&self) -> Option<StreamProgress> {
        self.responses
            .as_ref()
            .map(|reported| reported.progress.clone())
    }

    /// Returns a keep-alive in the stream's format, which clients ignore.
    #[must_use]
    pub const fn keep_alive(&self) -> Bytes {
        sign_of_life(self.format)
    }

    fn chat_event(&mut self, data: &[u8]) -> Seen {
        let whole = data;
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            if !self.has_answered() {
                self.chat = None;
                return Seen::Failure(broken("a stream without an answer"));
            }
            self.finished = true;
            self.lacks_usage = self.chat.is_none();
            return Seen::Other;
        }
        // Vendors that report a service tier report it in each chunk, so only the first chunk is parsed for it.
        if !self.spoke
            && let Ok([Some(json)]) = members(&String::from_utf8_lossy(data), &["service_tier"])
        {
            self.tier = tier(json);
        }
        let strings = self.chunks.strings(Format::Chat, data, &self.text);
        self.text.add(&strings.text);
        let finished = u64::from(strings.finish_reasons);
        self.has_ended_any |= finished > 0;
        self.choices_left = self.choices_left.saturating_sub(finished);
        // Most chunks have no usage and no error, or only null, and need not be parsed.
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
        // Some vendors put usage or an error into the choice that finishes, not next to the choices.
        let in_choices = |find: fn(EndedChoice<'_>) -> Option<&RawValue>| {
            let choices = serde_json::from_slice::<EndedChoices<'_>>(data).ok()?;
            choices.choices.into_iter().find_map(find)
        };
        let of_choice = || in_choices(|choice| choice.usage);
        let usage = chunk.usage.or_else(groq).or_else(of_choice);
        self.usage_at = usage.map(|usage| within(whole, usage.get()));
        if let Some(json) = chunk.service_tier {
            self.tier = tier(json.get());
        }
        if let Some(usage) = usage {
            self.count_chunk(usage);
        }
        // The chunk of an error may also have the usage of the text before the error.
        let is_error = |error: &&RawValue| is_error(error.get());
        let error = chunk.error.filter(is_error);
        // If several choices were requested, an error in one choice does not end the others.
        let of_choice = || in_choices(|choice| choice.error).filter(|_| !self.has_choices);
        if let Some(error) = error.or_else(of_choice).filter(is_error) {
            return Seen::Failure(vendor_error(error.get()));
        }
        if usage.is_none() {
            return Seen::Other;
        }
        let chunk = serde_json::from_slice::<ChatChoices>(data);
        let has_choices =
            |chunk: ChatChoices| chunk.choices.is_some_and(|choices| !choices.is_empty());
        match chunk.map(has_choices) {
            Ok(false) => Seen::UsageAlone,
            Ok(true) | Err(_) => Seen::Other,
        }
    }

    /// Records the usage that a chunk of a chat stream states.
    fn count_chunk(&mut self, usage: &RawValue) {
        let Some(counts) = chat_usage(usage.get()) else {
            self.suspect = true;
            return;
        };
        // Some vendors end the stream with a usage of zero. It is ignored if an earlier event had usage.
        if counts.usage.is_zero() && self.chat.is_some() {
            return;
        }
        let counts_output = counts.usage.output_total() > 0 || self.text.bytes() == 0;
        self.counted_at = counts_output.then_some(self.text.bytes());
        let shrinks =
            |old: VendorUsage| has_less_output(&counts, &old) || has_less_input(&counts, &old);
        self.suspect |= self.chat.is_some_and(shrinks);
        self.chat = Some(counts);
    }

    fn responses_event(&mut self, event: &Event, name: &[u8], data: &[u8]) -> Seen {
        let Some(reported) = &mut self.responses else {
            return Seen::Other;
        };
        let seen = reported.event(name, data);
        // The vendor's errors are not forwarded, so they do not advance the position in the stream.
        if !matches!(seen, Seen::Failure(_)) {
            reported.progress.passed(event);
        }
        self.usage_at = reported.usage_at.take();
        self.text = reported.text();
        self.suspect |= reported.suspect;
        self.finished |= reported.finished;
        self.lacks_usage = reported.finished && reported.usage.is_none();
        seen
    }

    fn messages_event(&mut self, name: &[u8], data: &[u8]) -> Seen {
        let strings = self.chunks.strings(Format::Messages, data, &self.text);
        self.text.add(&strings.text);
        // Only the few blocks that are search results are parsed.
        const SEARCHED: &[u8] = b"web_search_tool_result\"";
        if name == b"content_block_start" && memmem::find(data, SEARCHED).is_some() {
            let block = serde_json::from_slice::<Begun<'_>>(data);
            self.searches += u64::from(block.is_ok_and(|block| block.is_search()));
        }
        if !matches!(
            name,
            b"" | b"message_start" | b"message_delta" | b"message_stop" | b"error"
        ) {
            return Seen::Other;
        }
        let Ok(event) = serde_json::from_slice::<MessagesEvent<'_>>(data) else {
            self.suspect |= strings.usage;
            // The event cannot be parsed. If it is an error, it may contain text of the vendor, so it is not forwarded.
            if name == b"error" || (name.is_empty() && strings.error) {
                return Seen::Failure(vendor_error(&String::from_utf8_lossy(data)));
            }
            return Seen::Other;
        };
        match event.kind {
            "message_stop" => self.finished = true,
            "message_delta" if !strings.usage => {
                self.lacks_usage = self.counted_at.is_none();
            }
            "error" => {
                return Seen::Failure(event.error.map_or_else(
                    || broken("an error without a message"),
                    |error| vendor_error(error.get()),
                ));
            }
            _ if strings.usage => {
                let started = serde_json::from_slice::<MessagesStart<'_>>(data).ok();
                let usage = started
                    .and_then(|start| start.message?.usage)
                    .or(event.usage);
                self.usage_at = usage.map(|usage| within(data, usage.get()));
                if let Some(usage) = usage {
                    self.count_message(usage, event.kind == "message_delta");
                }
            }
            _ => {}
        }
        Seen::Other
    }

    /// Records the usage of an event of a messages stream. `behind` is whether the event is a `message_delta`, which
    /// comes after the text.
    fn count_message(&mut self, usage: &RawValue, behind: bool) {
        self.has_ended_any |= behind;
        let Some(usage) = MessagesUsage::of(usage.get()) else {
            self.suspect = true;
            return;
        };
        let (before, output_before) = (self.messages.counts(), self.counted_at);
        if behind && usage.counts_output() {
            self.counted_at = Some(self.text.bytes());
        }
        self.messages.replace_by(usage);
        // The first count of output is an estimate, so a lower count after it is not suspect.
        let shrinks = |(old, new): (VendorUsage, VendorUsage)| {
            has_less_input(&new, &old) || output_before.is_some() && has_less_output(&new, &old)
        };
        self.suspect |= before.zip(self.messages.counts()).is_some_and(shrinks);
    }
}

/// Returns whether the newer usage has less output.
fn has_less_output(newer: &VendorUsage, older: &VendorUsage) -> bool {
    newer.usage.output_total() < older.usage.output_total()
}

/// Returns whether the newer usage has less input.
fn has_less_input(newer: &VendorUsage, older: &VendorUsage) -> bool {
    newer.usage.input_total() < older.usage.input_total()
}

/// Only these fields are parsed, so that the usage can be read even if other fields are invalid.
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
struct EndedChoices<'a> {
    #[serde(borrow)]
    choices: Vec<EndedChoice<'a>>,
}

/// Fields of a choice other than its text.
#[derive(Deserialize)]
pub(super) struct EndedChoice<'a> {
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
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

/// The event that begins a content block.
#[derive(Deserialize)]
struct Begun<'a> {
    #[serde(borrow)]
    content_block: Block<'a>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

impl Begun<'_> {
    /// Returns whether the block is a successful search, which is billed. A failed search has an object instead of an
    /// array of results.
    fn is_search(&self) -> bool {
        let Block { kind, content } = &self.content_block;
        *kind == "web_search_tool_result"
            && content.is_some_and(|content| content.get().starts_with('['))
    }
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

    #[test]
    fn an_error_in_the_only_choice_ends_the_stream() {
        let chunk = |error: &str| {
            format!(
                r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"error","error":{error}}}]}}"#
            )
        };
        for (choices, error, fails) in [
            (1, r#"{"code":504,"message":"gone"}"#, true),
            (1, "null", false),
            (2, r#"{"code":504,"message":"gone"}"#, false),
        ] {
            let mut reader = Reader::new(Format::Chat).choices(choices);
            let seen = reader.chat_event(chunk(error).as_bytes());
            let failed = matches!(seen, Seen::Failure(Error::VendorUnavailable(_)));
            assert_eq!(failed, fails, "{choices} {error}");
        }
    }

    /// A caller that disconnects before the last event has received the results, so the searches must be charged.
    #[test]
    fn searches_are_counted_by_their_results_until_the_vendor_reports_a_count() {
        let mut reader = Reader::new(Format::Messages);
        let mut searches = |name: &str, data: &str| {
            reader.messages_event(name.as_bytes(), data.as_bytes());
            let usage = reader.usage().unwrap();
            usage.classes.get(Class::WebSearchCall)
        };
        let start =
            r#"{"type":"message_start","message":{"usage":{"input_tokens":10,"output_tokens":1}}}"#;
        let block = |content: &str| {
            format!(
                r#"{{"type":"content_block_start","index":1,"content_block":{{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":{content}}}}}"#
            )
        };
        let found = block(r#"[{"type":"web_search_result","url":"https://x"}]"#);
        let failed = block(r#"{"type":"web_search_tool_result_error","error_code":"unavailable"}"#);
        let text = r#"{"type":"content_block_start","index":2,"content_block":{"type":"text","text":"web_search_tool_result\""}}"#;
        assert_eq!(searches("message_start", start), 0);
        for (event, count) in [(&*found, 1), (&*failed, 1), (text, 1), (&*found, 2)] {
            assert_eq!(searches("content_block_start", event), count, "{event}");
        }
        let reported = r#"{"type":"message_delta","usage":{"output_tokens":9,"server_tool_use":{"web_search_requests":1}}}"#;
        assert_eq!(searches("message_delta", reported), 1);
    }

    #[test]
    fn chat_stream_without_content_counts_as_broken() {
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

    fn reading(format: Format, events: &[&str]) -> Reading {
        let mut reader = Reader::new(format);
        for event in events {
            let seen = match format {
                Format::Chat => reader.chat_event(event.as_bytes()),
                _ => reader.messages_event(b"", event.as_bytes()),
            };
            assert!(!matches!(seen, Seen::Failure(_)), "{event}");
            reader.spoke = true;
        }
        let mut reading = Reading::default();
        reader.note(&mut reading);
        reading
    }

    #[test]
    fn output_count_is_complete_unless_text_arrives_after_it() {
        const TEXT: &str = r#"{"choices":[{"delta":{"content":"abcdefgh"}}]}"#;
        let counting = |text: &str, output: u64| {
            format!(
                r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}],"usage":{{"prompt_tokens":9,"completion_tokens":{output}}}}}"#
            )
        };
        for (events, counted) in [
            (vec![TEXT.to_owned()], false),
            (vec![counting("", 0)], true),
            (vec![counting("", 0), TEXT.to_owned()], false),
            (vec![counting("a", 0)], false),
            (vec![counting("a", 1), TEXT.to_owned()], false),
            (vec![counting("a", 1), counting("b", 2)], true),
            (
                vec![counting("a", 1), TEXT.to_owned(), counting("", 3)],
                true,
            ),
        ] {
            let events: Vec<&str> = events.iter().map(String::as_str).collect();
            assert_eq!(
                reading(Format::Chat, &events).output_counted,
                counted,
                "{events:?}"
            );
        }
        const DELTA: &str =
            r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":5}}"#;
        const BLOCK: &str = r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"abc"}}"#;
        for (events, counted) in [
            (&[BLOCK, DELTA][..], true),
            (&[BLOCK, DELTA, BLOCK], false),
            (&[BLOCK, DELTA, BLOCK, DELTA], true),
        ] {
            assert_eq!(
                reading(Format::Messages, events).output_counted,
                counted,
                "{events:?}"
            );
        }
    }

    #[test]
    fn tier_reported_before_the_usage_is_kept() {
        const TEXT: &str = r#"{"service_tier":"fast","choices":[{"delta":{"content":"abc"}}]}"#;
        const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
        for events in [&[TEXT][..], &[TEXT, USAGE]] {
            let served = reading(Format::Chat, events).served;
            assert_eq!(served.service_tier.as_str(), "priority", "{events:?}");
        }
        let flex = USAGE.replace("{\"choices\"", "{\"service_tier\":\"flex\",\"choices\"");
        let served = reading(Format::Chat, &[TEXT, &flex]).served;
        assert_eq!(served.service_tier.as_str(), "flex");
    }

    #[test]
    fn usage_is_read_from_the_last_choice_or_from_a_separate_chunk() {
        const ENDS: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop","usage":{"prompt_tokens":100,"completion_tokens":20}}]}"#;
        let usage = reading(Format::Chat, &[ENDS]).usage.unwrap();
        assert_eq!((usage.input, usage.output), (100, 20));
        let usage = r#""usage":{"prompt_tokens":1,"completion_tokens":1}"#;
        for (choices, alone) in [
            (r#""choices":[],"#, true),
            (r#""choices":null,"#, true),
            ("", true),
            (r#""choices":[{"delta":{}}],"#, false),
        ] {
            let chunk = format!("{{{choices}{usage}}}");
            let seen = Reader::new(Format::Chat).chat_event(chunk.as_bytes());
            assert_eq!(matches!(seen, Seen::UsageAlone), alone, "{chunk}");
        }
    }
}

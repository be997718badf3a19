//! Usage of a stream, event by event.

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::note;
use crate::{
    call::Format,
    error::Error,
    json::members,
    passthrough::{broken, responses, text::Chunks, vendor_error::vendor_error},
    price::{Class, Label},
    sse::{Event, sign_of_life},
    stream_progress::StreamProgress,
    usage::{Reading, Usage},
    vendor_usage::{MessagesUsage, VendorUsage, chat_usage, is_error, tier},
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
    /// At which tier it is served, as far as a chat stream has said.
    tier: Label,
    /// The bytes of text that had come when output was counted last.
    counted_at: Option<u64>,
    /// Searches of the web whose results have come in a messages stream.
    searches: u64,
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
            tier: Label::default(),
            counted_at: None,
            searches: 0,
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
        let (name, data) = event.parts();
        let Some(data) = data else {
            return match event.raw().trim_ascii_start().starts_with(COST_COMMENT) {
                true => Seen::CostComment,
                false => Seen::Other,
            };
        };
        let seen = match self.format {
            Format::Chat => self.chat_event(&data),
            Format::Messages => self.messages_event(name, &data),
            Format::Responses => self.responses_event(event, name, &data),
        };
        self.spoke =
            self.spoke || (!matches!(seen, Seen::Failure(_) | Seen::Announced) && name != b"ping");
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
            Format::Messages => self.messages.counts().map(|mut counts| {
                // Until the vendor says how many it counts.
                if self.counted_at.is_none() {
                    let searches = counts.usage.classes.get_mut(Class::WebSearchCall);
                    *searches = self.searches.max(*searches);
                }
                counts
            }),
            Format::Responses => self.responses.as_ref()?.usage,
        }
    }

    /// Writes down what has been counted.
    pub fn note(&self, reading: &mut Reading) {
        let counts = self.counts();
        let tier = self
            .responses
            .as_deref()
            .map_or(self.tier, |told| told.tier);
        note(counts, tier, reading);
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

    /// Whether the usage's output is a count of all of it: messages streams begin with a guess, and vendors that count in
    /// each chunk may have counted nothing yet.
    fn output_counted(&self) -> bool {
        match &self.responses {
            Some(told) => told.usage.is_some(),
            None => self.counted_at == Some(self.text_bytes),
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
        sign_of_life(self.format)
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
        // Vendors that say it say it in each chunk.
        if !self.spoke
            && let Ok([Some(json)]) = members(&String::from_utf8_lossy(data), &["service_tier"])
        {
            self.tier = tier(json);
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
        // One vendor has it in the choice that ends.
        let of_choice = || {
            let choices = serde_json::from_slice::<CountedChoices<'_>>(data).ok()?;
            choices.choices.into_iter().find_map(|choice| choice.usage)
        };
        let usage = chunk.usage.or_else(groq).or_else(of_choice);
        let counted = usage.map(|usage| chat_usage(usage.get()));
        if let Some(json) = chunk.service_tier {
            self.tier = tier(json.get());
        }
        match counted {
            // One of nothing at all behind one of something says nothing.
            Some(Some(counts)) if counts.usage.is_zero() && self.chat.is_some() => {}
            Some(Some(counts)) => {
                let counts_output = counts.usage.output_total() > 0 || self.text_bytes == 0;
                self.counted_at = counts_output.then_some(self.text_bytes);
                self.chat = Some(counts);
            }
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
        let chunk = serde_json::from_slice::<ChatChoices>(data);
        let has_choices =
            |chunk: ChatChoices| chunk.choices.is_some_and(|choices| !choices.is_empty());
        match chunk.map(has_choices) {
            Ok(false) => Seen::UsageAlone,
            Ok(true) | Err(_) => Seen::Other,
        }
    }

    fn responses_event(&mut self, event: &Event, name: &[u8], data: &[u8]) -> Seen {
        let Some(told) = &mut self.responses else {
            return Seen::Other;
        };
        let seen = told.event(name, data);
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
        // Most blocks are none, and need no second look.
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
                        if event.kind == "message_delta" && usage.counts_output() {
                            self.counted_at = Some(self.text_bytes);
                        }
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
struct CountedChoices<'a> {
    #[serde(borrow)]
    choices: Vec<CountedChoice<'a>>,
}

#[derive(Deserialize)]
struct CountedChoice<'a> {
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
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

/// A block that begins.
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
    /// Whether a search has found what is charged for: one that failed has an object in the place of its results.
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

    /// A caller who leaves before the last event has had them.
    #[test]
    fn searches_are_counted_by_their_results_until_the_vendor_has_counted() {
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
        let told = r#"{"type":"message_delta","usage":{"output_tokens":9,"server_tool_use":{"web_search_requests":1}}}"#;
        assert_eq!(searches("message_delta", told), 1);
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
    fn output_is_counted_while_no_text_has_come_behind_the_count() {
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
    fn the_tier_is_known_before_the_usage_is_and_stays_where_that_says_none() {
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
    fn usage_is_read_in_the_choice_that_ends_and_alone_it_has_no_choices() {
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

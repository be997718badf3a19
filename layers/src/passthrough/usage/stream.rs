//! Usage of a stream, event by event.

use bytes::Bytes;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{note, vendor_error};
use crate::{
    call::Format,
    error::Error,
    passthrough::{broken, responses, text::Chunks},
    sse::Event,
    stream_progress::StreamProgress,
    usage::{Reading, Usage},
    vendor_usage::{MessagesUsage, VendorUsage, chat_usage, is_error},
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
}

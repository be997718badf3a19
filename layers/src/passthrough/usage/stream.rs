//! Reads the usage of a stream, event by event.

use bytes::Bytes;

use super::note;
use crate::{
    call::Format,
    formats::{
        chat::meter::Chat,
        messages::meter::Messages,
        metering::{Metered, Seen, Stream, StreamState, with_member},
        responses::meter::Responses,
    },
    passthrough::note_text,
    sse::Event,
    stream_progress::StreamProgress,
    usage::{End, Meter, Reading, Usage},
};

/// Reads the usage, the errors and the end of a stream, event by event.
#[derive(Debug)]
pub struct Reader {
    state: StreamState,
    stream: Box<dyn Stream>,
    write_usage: fn(&Usage) -> String,
    keep_alive: &'static [u8],
}

/// The beginning of the comment in which a gateway reports the cost of a stream.
const COST_COMMENT: &[u8] = b": cost_rub";

impl Reader {
    /// Creates a reader for streams of this format.
    #[must_use]
    pub fn new(format: Format) -> Self {
        match format {
            Format::Chat => Self::for_format::<Chat>(),
            Format::Messages => Self::for_format::<Messages>(),
            Format::Responses => Self::for_format::<Responses>(),
        }
    }

    fn for_format<F: Metered>() -> Self {
        Self {
            state: StreamState::default(),
            stream: Box::<F::Stream>::default(),
            write_usage: F::write_usage,
            keep_alive: F::KEEP_ALIVE,
        }
    }

    /// Sets the number of requested choices. After all of them have finished, the stream may end.
    #[must_use]
    pub const fn choices(mut self, choices: u64) -> Self {
        self.state.more_choices = choices.saturating_sub(1);
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
        let Self { state, stream, .. } = self;
        (state.usage_at, state.lacks_usage) = (None, false);
        let seen = stream.event(state, event, name, &data);
        state.spoke |= !matches!(seen, Seen::Failure(_) | Seen::Announced) && name != b"ping";
        seen
    }

    /// Returns the latest event with the charged usage in place of the reported usage, if the two differ; otherwise
    /// `None`. They differ if the reported usage is contradictory or was cut to the request's bounds, or if it is the
    /// final usage and is incomplete. So a stream states the same usage as a plain response would.
    pub fn charged(&self, event: &Event, meter: &Meter) -> Option<Bytes> {
        let Some(at) = self.state.usage_at.as_ref() else {
            return self.unstated(event, meter);
        };
        meter.update(|reading| self.note(reading));
        let is_final = self.state.is_final;
        let counted = match is_final {
            true => meter.counted_at(End::Finished)?,
            false => meter.counted()?,
        };
        let contradicted = counted.overcount.is_some() || meter.look(|reading| reading.suspect);
        if !counted.estimated || !(contradicted || is_final) {
            return None;
        }
        let usage = (self.write_usage)(&counted.usage);
        Some(event.with_data(&with_member(&event.data()?, Some(at), &usage)))
    }

    /// Returns the latest event with the charged usage, if this event should state usage and no event has stated it
    /// yet. This is done only for responses that are translated, because the caller's format requires usage, and for
    /// responses that the gateway ends.
    fn unstated(&self, event: &Event, meter: &Meter) -> Option<Bytes> {
        let adds_usage = |reading: &Reading| reading.translated || reading.stopped_by.is_some();
        if !self.state.lacks_usage || !meter.look(adds_usage) {
            return None;
        }
        self.stream.with_usage(event, &self.final_usage(meter)?)
    }

    /// Returns the events that are missing at the end of a stream that may end without them. If the stream is
    /// translated and has no usage, these events state the charged usage.
    pub(in crate::passthrough) fn closing(&self, meter: &Meter) -> Bytes {
        let states_usage = self.state.usage.is_none() && meter.look(|reading| reading.translated);
        let usage = states_usage.then(|| self.final_usage(meter)).flatten();
        self.stream.closing(usage.as_deref())
    }

    /// Returns the usage object with the usage that is charged if the stream ends now.
    fn final_usage(&self, meter: &Meter) -> Option<String> {
        meter.update(|reading| self.note(reading));
        let counted = meter.counted_at(End::Finished)?;
        Some((self.write_usage)(&counted.usage))
    }

    /// Returns whether an event of the response itself has arrived: not an error, a keep-alive or an announcement.
    #[must_use]
    pub const fn spoke(&self) -> bool {
        self.state.spoke
    }

    /// Returns whether the last event of the stream was received.
    #[must_use]
    pub const fn finished(&self) -> bool {
        self.state.finished
    }

    /// Returns whether the stream is complete if it ends now. Some vendors of the Chat Completions format omit the last
    /// event, `[DONE]`.
    #[must_use]
    pub const fn may_end(&self) -> bool {
        self.state.finished || self.state.may_end
    }

    /// Returns whether all text seems to have arrived but the usage has not.
    #[must_use]
    pub const fn usage_due(&self) -> bool {
        self.state.usage_due && !self.state.finished
    }

    /// Returns whether the latest event should have stated usage, and no event has stated it yet.
    pub(in crate::passthrough) const fn lacks_usage(&self) -> bool {
        self.state.lacks_usage
    }

    /// Returns the events with which a vendor ends a stream at the request's output limit, without usage. `last` is the
    /// last event that has a position in the stream, or is empty if there was none.
    pub(in crate::passthrough) fn ceiling(&self, last: Bytes) -> Bytes {
        self.stream.ceiling(&Event::of(last))
    }

    /// Records in the meter the usage and the text that have arrived so far.
    pub fn note(&self, reading: &mut Reading) {
        let StreamState { usage, text, .. } = &self.state;
        note(*usage, self.state.tier, reading);
        reading.unknown |= self.state.unknown;
        // The output may be counted only in part: Messages streams begin with an estimate, and vendors that report
        // usage in each chunk may not have counted the latest text.
        let counted_at = self.state.counted_at;
        reading.output_counted = counted_at.is_some_and(|at| at >= text.bytes());
        reading.suspect = self.state.suspect || usage.is_some_and(|counts| counts.suspect);
        note_text(text, reading);
    }

    /// Returns the latest reported usage by rate class.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.state.usage.map(|counts| counts.usage)
    }

    /// Returns how far a Responses stream has got, for code that must end the stream early.
    #[must_use]
    pub fn progress(&self) -> Option<StreamProgress> {
        self.stream.progress()
    }

    /// Returns a keep-alive in the stream's format, which clients ignore.
    #[must_use]
    pub const fn keep_alive(&self) -> Bytes {
        Bytes::from_static(self.keep_alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Error, price::Class};

    fn event(reader: &mut Reader, name: &str, data: &str) -> Seen {
        let event = format!("event: {name}\ndata: {data}\n\n");
        reader.event(&Event::of(event.into()))
    }

    #[test]
    fn error_in_the_only_choice_ends_the_stream() {
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
            let seen = event(&mut reader, "", &chunk(error));
            let failed = matches!(seen, Seen::Failure(Error::VendorUnavailable(_)));
            assert_eq!(failed, fails, "{choices} {error}");
        }
    }

    /// A caller that disconnects before the last event has received the search results, so the searches must be
    /// charged.
    #[test]
    fn searches_are_counted_by_their_results_until_the_vendor_reports_a_count() {
        let mut reader = Reader::new(Format::Messages);
        let mut searches = |name: &str, data: &str| {
            event(&mut reader, name, data);
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
    fn chat_stream_without_content_counts_as_broken_off() {
        let done = |events: &[&str]| {
            let mut reader = Reader::new(Format::Chat);
            for data in events {
                let seen = event(&mut reader, "", data);
                assert!(!matches!(seen, Seen::Failure(_)), "{data}");
            }
            event(&mut reader, "", "[DONE]")
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
        for data in events {
            let seen = event(&mut reader, "", data);
            assert!(!matches!(seen, Seen::Failure(_)), "{data}");
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
    fn usage_is_read_from_the_chunk_of_the_last_choice_or_from_a_separate_chunk() {
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
            let seen = event(&mut Reader::new(Format::Chat), "", &chunk);
            assert_eq!(matches!(seen, Seen::UsageAlone), alone, "{chunk}");
        }
    }
}

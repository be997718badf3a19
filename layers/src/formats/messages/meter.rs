//! Meters responses of the Messages format.

use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use serde_json::json;

use super::{
    PING,
    usage::{MessagesUsage, write},
};
use crate::{
    formats::{
        counts::Counts,
        errors::{broken, named_events, vendor_error},
        metering::{Metered, Plain, Seen, Stream, StreamState, as_text, shrinks, with_member},
        scan::{Chunks, Strings, Texts},
    },
    json::{members, within},
    price::Class,
    sse::Event,
    text_size::TextSize,
    usage::Usage,
    vendor_usage::VendorUsage,
};

/// The Messages format, as metered by `passthrough`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages;

impl Texts for Messages {
    fn is_text(name: &[u8]) -> bool {
        matches!(
            name,
            b"text" | b"thinking" | b"partial_json" | b"data" | b"content"
        )
    }

    /// Fields with base64 contain encrypted reasoning.
    fn opaque(name: &[u8]) -> Option<u64> {
        (name == b"data").then_some(1)
    }
}

impl Plain for Messages {
    const CONTENT: &'static str = "content";

    fn usage(usage: &str, _: &str) -> Option<VendorUsage> {
        MessagesUsage::of(usage)?.counts()
    }

    fn write_usage(usage: &Usage) -> String {
        write(&Counts::new(usage, None), &usage.classes)
    }

    fn text(response: &str) -> TextSize {
        Strings::of::<Self>(response.as_bytes()).text
    }
}

impl Metered for Messages {
    const KEEP_ALIVE: &'static [u8] = PING;
    type Stream = MessagesStream;
}

/// The state of a Messages stream.
#[derive(Debug, Default)]
pub(crate) struct MessagesStream {
    chunks: Chunks,
    usage: MessagesUsage,
    /// The number of web searches whose results have arrived.
    searches: u64,
    /// Whether a `message_delta` with usage has arrived.
    has_ended: bool,
}

impl Stream for MessagesStream {
    fn event(&mut self, state: &mut StreamState, _: &Event, name: &[u8], data: &[u8]) -> Seen {
        let strings = self.chunks.strings::<Messages>(data, &state.text);
        state.text.add(&strings.text);
        // An event that begins a block is parsed only if it contains this text, because it may begin search results.
        // Such events are rare.
        const SEARCHED: &[u8] = b"web_search_tool_result\"";
        if name == b"content_block_start" && memmem::find(data, SEARCHED).is_some() {
            self.searches += u64::from(begins_search(&as_text(data)));
            self.update(state);
        }
        if !matches!(
            name,
            b"" | b"message_start" | b"message_delta" | b"message_stop" | b"error"
        ) {
            return Seen::Other;
        }
        let json = as_text(data);
        let Ok([Some(kind), usage, error, message]) =
            members(&json, &["type", "usage", "error", "message"])
        else {
            state.suspect |= strings.usage;
            // The event cannot be parsed. If it is an error, it may contain text of the vendor that is not meant for
            // the caller, so it is not forwarded.
            if name == b"error" || (name.is_empty() && strings.error) {
                return Seen::Failure(vendor_error(&json));
            }
            return Seen::Other;
        };
        match kind {
            "\"message_stop\"" => state.finished = true,
            "\"message_delta\"" if !strings.usage => {
                state.lacks_usage = state.counted_at.is_none();
            }
            "\"error\"" => {
                let nothing = || broken("the vendor reported an error without a message");
                return Seen::Failure(given(error).map_or_else(nothing, vendor_error));
            }
            _ if strings.usage => {
                let started = given(message).and_then(|json| members(json, &["usage"]).ok()?[0]);
                if let Some(usage) = given(started).or(given(usage)) {
                    state.usage_at = Some(within(json.as_bytes(), usage));
                    self.count(state, usage, kind == "\"message_delta\"");
                }
            }
            _ => {}
        }
        Seen::Other
    }

    fn with_usage(&self, event: &Event, usage: &str) -> Option<Bytes> {
        Some(event.with_data(&with_member(&event.data()?, None, usage)))
    }

    fn ceiling(&self, last: &Event) -> Bytes {
        #[derive(Deserialize)]
        struct Position {
            #[serde(rename = "type")]
            kind: String,
            index: Option<u64>,
        }
        let last: Option<Position> = last
            .data()
            .and_then(|data| serde_json::from_slice(&data).ok());
        let mut events = Vec::new();
        match &last {
            None => {
                let message = json!({ "id": "msg_stopped", "type": "message", "role": "assistant", "model": "",
                    "content": [], "stop_reason": null, "stop_sequence": null,
                    "usage": { "input_tokens": 0, "output_tokens": 0 } });
                events.push(json!({ "type": "message_start", "message": message }));
            }
            Some(Position {
                kind,
                index: Some(index),
            }) if kind != "content_block_stop" => {
                events.push(json!({ "type": "content_block_stop", "index": index }));
            }
            Some(_) => {}
        }
        if !self.has_ended {
            let delta = json!({ "stop_reason": "max_tokens", "stop_sequence": null });
            events.push(json!({ "type": "message_delta", "delta": delta }));
        }
        events.push(json!({ "type": "message_stop" }));
        named_events(&events).into()
    }
}

impl MessagesStream {
    /// Records the usage in an event. `is_last` is whether the event is a `message_delta`, which follows the text.
    fn count(&mut self, state: &mut StreamState, usage: &str, is_last: bool) {
        self.has_ended |= is_last;
        state.is_final = self.has_ended;
        let Some(usage) = MessagesUsage::of(usage) else {
            state.suspect = true;
            return;
        };
        let (before, output_before) = (self.usage.counts(), state.counted_at);
        if is_last && usage.counts_output() {
            state.counted_at = Some(state.text.bytes());
        }
        self.usage.replace_by(usage);
        // The first count of the output is an estimate, so a lower later count is not suspect.
        let shrunk = before
            .zip(self.usage.counts())
            .map(|(old, new)| shrinks(&old, &new));
        state.suspect |=
            shrunk.is_some_and(|(input, output)| input || output_before.is_some() && output);
        self.update(state);
    }

    fn update(&self, state: &mut StreamState) {
        state.usage = self.usage.counts();
        // Until the vendor reports its own count of searches, the number of search results is used.
        if let Some(counts) = &mut state.usage
            && state.counted_at.is_none()
        {
            let searches = counts.usage.classes.get_mut(Class::WebSearchCall);
            *searches = self.searches.max(*searches);
        }
    }
}

/// Returns the value unless it is null.
fn given(json: Option<&str>) -> Option<&str> {
    json.filter(|json| *json != "null")
}

/// Returns whether the event begins a block with the results of a successful search, which is billed. A failed search
/// has an object instead of an array of results.
fn begins_search(event: &str) -> bool {
    let block = members(event, &["content_block"]).ok().and_then(|[it]| it);
    let fields = block.and_then(|block| members(block, &["type", "content"]).ok());
    matches!(fields, Some([Some("\"web_search_tool_result\""), Some(content)]) if content.starts_with('['))
}

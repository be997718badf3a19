//! Marks a response as an event stream of a certain format, and finds the last event of a stream.

use bytes::Bytes;
use serde::Deserialize;

use crate::{
    call::Format,
    sse::{Event, Splitter},
};

/// Extension of a response whose body is an event stream of this format. An error that the gateway inserts into the
/// stream must have this format too. `passthrough` inserts the extension, and `translate` replaces it with one for the
/// caller's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventStream(pub Format);

impl EventStream {
    /// Returns the position in `events` of the stream's last event (`data: [DONE]`, `message_stop` or
    /// `response.completed`). `None` if `events` does not contain it. `events` must consist of complete events.
    #[must_use]
    pub fn last_event_at(self, events: &Bytes) -> Option<usize> {
        let (mut at, mut found) = (0, None);
        let split = Splitter::default().push(events, |event| {
            if found.is_none() && self.ends_with(&event) {
                found = Some(at);
            }
            at += event.raw().len();
        });
        split.ok().and(found)
    }

    fn ends_with(self, event: &Event) -> bool {
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(rename = "type")]
            kind: &'a str,
        }
        event.data().is_some_and(|data| match self.0 {
            Format::Chat => data.trim_ascii() == b"[DONE]",
            Format::Messages => {
                serde_json::from_slice(&data).is_ok_and(|Named { kind }| kind == "message_stop")
            }
            Format::Responses => serde_json::from_slice(&data).is_ok_and(|Named { kind }| {
                matches!(kind, "response.completed" | "response.incomplete")
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_event_of_a_stream_is_found_in_every_allowed_notation() {
        const STOP: &str = r#"data: {"type":"message_stop"}"#;
        for (format, before, last) in [
            (Format::Chat, "", "data: [DONE]\n\n"),
            (Format::Chat, "data: {}\n\n", "data:[DONE]\r\n\r\n"),
            (Format::Chat, "\n", "data: [DONE] \r\r: bye\n\n"),
            (
                Format::Chat,
                ": [DONE]\n\n",
                "data: [DONE]\n\ndata: [DONE]\n\n",
            ),
            (
                Format::Chat,
                "data: {\"content\":\"data: [DONE]\"}\n\n",
                ": last\ndata: [DONE]\n\n",
            ),
            (
                Format::Messages,
                "event: ping\ndata: {\"type\": \"ping\"}\n\n",
                &format!("event: message_stop\n{STOP}\n\n"),
            ),
            (
                Format::Messages,
                "data: {\"type\":\"message_delta\"}\r\n\r\n",
                &format!("{STOP}\r\nevent: message_stop\r\n\r\n"),
            ),
            (
                Format::Messages,
                "data: {\"type\":\"content_block_delta\",\"text\":\"message_stop\"}\n\n",
                "data: { \"x\": [],\ndata: \"type\" : \"message_stop\" }\n\n",
            ),
        ] {
            let at = |events: &str| EventStream(format).last_event_at(&events.to_owned().into());
            assert_eq!(at(&format!("{before}{last}")), Some(before.len()), "{last}");
            assert_eq!(at(before), None, "{before}");
        }
    }
}

//! What is ambient in a request or an answer: named extensions, each with its inserter.

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use bytes::Bytes;
use http::HeaderName;
use serde::Deserialize;
pub use tollgate_ledger::number::RequestNumber;

use crate::{
    call::Format,
    error::Error,
    key::KeyRecord,
    money::MicroRub,
    sse::{Event, Splitter},
};

/// The client's address, already seen through trusted proxies. Inserted by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddr(pub IpAddr);

impl ClientAddr {
    /// The block that limits count: an IPv4 address, or an IPv6 /64.
    #[must_use]
    pub fn block(&self) -> IpAddr {
        match self.0.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        }
    }
}

/// Who calls: the key that was shown and its account. Inserted by `auth`.
#[derive(Clone, Debug)]
pub struct Caller(pub Arc<KeyRecord>);

impl Caller {
    /// The caller of a request.
    ///
    /// # Errors
    /// [`Error::Internal`]: there is no `auth` above, which is a mistake of stacking and not the caller's.
    pub fn of<B>(req: &http::Request<B>) -> Result<&Self, Error> {
        let caller = req.extensions().get();
        caller.ok_or_else(|| Error::Internal("nobody has called: auth must stand above".into()))
    }
}

/// The header by which calls say that they are the same one, sent again.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What answers are sealed with that are kept for a caller: derived from the secret that was presented, which nobody
/// stores. Inserted by `auth`, where the request has an [`IDEMPOTENCY_KEY`] and the caller's key allows it.
#[derive(Clone)]
pub struct AnswerKey(pub [u8; 32]);

impl fmt::Debug for AnswerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerKey")
    }
}

/// On a request whose answer is kept: what the call costs, written by whoever ends its hold.
#[derive(Clone, Debug, Default)]
pub struct CallCost(Arc<AtomicI64>);

impl CallCost {
    /// It costs so much.
    pub fn set(&self, cost: MicroRub) {
        self.0.store(cost.micro(), Ordering::Release);
    }

    /// Whether it was charged; not before its hold has ended.
    #[must_use]
    pub fn is_charged(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// On an answer: it is a stream whose vendor has said nothing yet, and the head was not waited with any longer. Inserted by
/// `passthrough`, for `failover`.
#[derive(Clone, Copy, Debug)]
pub struct NothingSaid;

/// On an answer: its body is an event stream of this format, so an error inside it must take this
/// shape. Inserted by `passthrough`; `translate` puts the caller's format in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventStream(pub Format);

impl EventStream {
    /// Where in whole events of such a stream its last one begins, `data: [DONE]`, `message_stop` or
    /// `response.completed`, if it is among them.
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
    fn the_last_event_of_a_stream_is_found_however_it_is_written() {
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

    #[test]
    fn a_caller_whom_nobody_has_let_in_is_our_own_fault_and_not_the_callers() {
        let req = http::Request::new(());
        let refused = Caller::of(&req);
        assert!(matches!(refused, Err(Error::Internal(_))), "{refused:?}");
    }

    #[test]
    fn ipv6_counts_by_64_bits_and_mapped_ipv4_as_ipv4() {
        let block = |text: &str| ClientAddr(text.parse().unwrap()).block().to_string();
        assert_eq!(block("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(block("::ffff:192.0.2.7"), "192.0.2.7");
    }
}

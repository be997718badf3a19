//! Marks API keys that the gateway does not use for a while.

use std::time::Duration;

use tokio::time::Instant;

/// The reason why the gateway does not use an API key for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::failover) enum Why {
    /// The vendor's rate limit for the API key is reached.
    Limited,
    /// The vendor is down, and has stated how long the gateway should wait.
    Down,
    /// The vendor rejected the API key.
    Refused,
}

/// A mark on an API key that the gateway does not use until a certain time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) digest: u64,
    pub(super) until: Instant,
    why: Why,
}

impl Mark {
    /// Marks a key, or extends its mark. Also removes expired marks, so that there are at most as many marks as keys.
    pub(super) fn set(
        marks: &mut Vec<Self>,
        digest: u64,
        (wait, why): (Duration, Why),
        now: Instant,
    ) {
        let until = now + wait;
        let before = marks.iter().find(|mark| mark.digest == digest);
        let until = before.map_or(until, |before| before.until.max(until));
        marks.retain(|mark| mark.digest != digest && mark.until > now);
        marks.push(Self { digest, until, why });
    }

    pub(super) fn wait(marks: &[Self], digest: u64, now: Instant) -> Option<(Duration, Why)> {
        let mark = marks.iter().find(|mark| mark.digest == digest)?;
        (mark.until > now).then(|| (mark.until - now, mark.why))
    }
}

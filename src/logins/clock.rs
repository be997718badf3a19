//! A clock that follows a remote server's clock, by the `date` headers of the server's responses.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, header::DATE};

use crate::text::time::now_ms;

/// If the clocks differ by at most this many seconds, the difference is ignored: servers tolerate such a difference,
/// and `date` headers have only whole seconds.
const IGNORED_S: i64 = 60;

/// This machine's clock, corrected to a server's clock by the `date` headers of its responses. Signatures and
/// assertions contain a time, and the server refuses them if this time differs from its own clock by minutes.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// Seconds to add to this machine's clock to get the server's clock.
    offset_s: AtomicI64,
}

impl Clock {
    /// Returns the corrected Unix time in milliseconds.
    pub(super) fn now_ms(&self) -> u64 {
        now_ms().saturating_add_signed(self.offset_s.load(Ordering::Relaxed) * 1000)
    }

    /// Corrects the clock by the `date` header of a response. Returns whether the clock was wrong.
    pub(super) fn correct(&self, answer: &HeaderMap) -> bool {
        let Some(server_ms) = date_ms(answer) else {
            return false;
        };
        let difference_s = (server_ms.cast_signed() - now_ms().cast_signed()) / 1000;
        let offset_s = match difference_s.abs() > IGNORED_S {
            true => difference_s,
            false => 0,
        };
        let before = self.offset_s.swap(offset_s, Ordering::Relaxed);
        (before - offset_s).abs() > IGNORED_S
    }
}

/// Returns the time in the `date` header of a response, in Unix milliseconds.
pub(super) fn date_ms(answer: &HeaderMap) -> Option<u64> {
    let text = answer.get(DATE)?.to_str().ok()?;
    let at: SystemTime = httpdate::parse_http_date(text).ok()?;
    let since = at.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn clock_is_corrected_only_if_it_differs_from_the_servers_clock_by_minutes() {
        let answer = |offset_s: i64| {
            let at =
                UNIX_EPOCH + Duration::from_millis(now_ms().saturating_add_signed(offset_s * 1000));
            HeaderMap::from_iter([(DATE, httpdate::fmt_http_date(at).parse().unwrap())])
        };
        let clock = Clock::default();
        let is_at = |offset_s: i64| {
            let expected = now_ms().saturating_add_signed(offset_s * 1000);
            clock.now_ms().abs_diff(expected) < 5000
        };
        assert!(!clock.correct(&answer(20)) && is_at(0));
        assert!(clock.correct(&answer(300)) && is_at(300));
        assert!(!clock.correct(&answer(310)));
        assert!(clock.correct(&answer(-300)) && is_at(-300));
        assert!(clock.correct(&answer(0)) && is_at(0));
        assert!(!clock.correct(&HeaderMap::new()));
    }
}

//! A circuit breaker per server. While the server is down, calls fail immediately instead of waiting.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// How often one call is sent to a server that is down, to find out whether it answers again.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(250);
/// A server counts as down after this many consecutive calls without an answer.
const TIMEOUTS_MAX: u32 = 3;

/// Lets calls fail immediately while the server is down, except for one call every [`PROBE_EVERY`].
#[derive(Debug)]
pub(super) struct Breaker {
    begin: Instant,
    /// When the next probe is due, in milliseconds since `begin`; 0 while all calls are sent.
    next_probe_ms: AtomicU64,
    timeouts: AtomicU32,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self {
            begin: Instant::now(),
            next_probe_ms: AtomicU64::new(0),
            timeouts: AtomicU32::new(0),
        }
    }

    pub(super) fn admits(&self) -> bool {
        let due = self.next_probe_ms.load(Ordering::Relaxed);
        if due == 0 {
            return true;
        }
        let now = self.now_ms();
        // If several calls find at the same time that a probe is due, only one of them is sent: the first call that
        // writes the time of the next probe.
        now >= due
            && self
                .next_probe_ms
                .compare_exchange(
                    due,
                    now + probe_every_ms(),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    pub(super) fn answered(&self) {
        // The counter is reset only if it is not zero. It usually is zero, and a needless write would invalidate a
        // cache line that all cores share.
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
        if self.next_probe_ms.load(Ordering::Relaxed) != 0 {
            self.next_probe_ms.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn open(&self) {
        self.next_probe_ms
            .store(self.now_ms() + probe_every_ms(), Ordering::Relaxed);
    }

    /// Counts a call that was not answered in time, and returns whether the breaker is now open. A single late call
    /// does not open it.
    pub(super) fn timed_out(&self) -> bool {
        let count = (self.timeouts.fetch_add(1, Ordering::Relaxed)).saturating_add(1);
        let down = count >= TIMEOUTS_MAX || self.next_probe_ms.load(Ordering::Relaxed) != 0;
        if down {
            self.open();
        }
        down
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX / 2)
    }
}

fn probe_every_ms() -> u64 {
    u64::try_from(PROBE_EVERY.as_millis()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unreachable_server_is_probed_every_quarter_of_a_second() {
        let breaker = Breaker::new();
        assert!(breaker.admits() && breaker.admits());
        breaker.open();
        assert!(!breaker.admits());
        tokio::time::advance(PROBE_EVERY).await;
        assert_eq!([(); 3].map(|()| breaker.admits()), [true, false, false]);
        breaker.answered();
        assert_eq!([(); 3].map(|()| breaker.admits()), [true; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_opens_after_three_consecutive_late_answers() {
        let breaker = Breaker::new();
        assert!(!breaker.timed_out() && !breaker.timed_out());
        breaker.answered();
        assert_eq!([(); 3].map(|()| breaker.timed_out()), [false, false, true]);
        assert!(!breaker.admits());
    }
}

//! A circuit breaker per server: refuses calls while the server is down.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// The interval at which one call is sent to a server that is down, to check whether it answers again.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(250);
/// After this number of unanswered calls in a row, the server counts as down.
const TIMEOUTS_MAX: u32 = 3;

/// Refuses calls at once while the server is down, except one call every [`PROBE_EVERY`].
#[derive(Debug)]
pub(super) struct Breaker {
    begin: Instant,
    /// The time of the next probe, in milliseconds since `begin`; 0 while all calls are sent.
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
        // If several calls find that a probe is due, only one is sent: the call that sets the time of the next probe.
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
        // Reads before writing: normally the counter is zero already, and no write disturbs a cache line that all cores
        // share.
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

    /// Counts a call that got no answer in time, and returns whether the breaker is now open. A single such call does
    /// not open the breaker.
    pub(super) fn timed_out(&self) -> bool {
        let count = self
            .timeouts
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
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
    async fn breaker_opens_after_consecutive_late_answers() {
        let breaker = Breaker::new();
        assert!(!breaker.timed_out() && !breaker.timed_out());
        breaker.answered();
        assert_eq!([(); 3].map(|()| breaker.timed_out()), [false, false, true]);
        assert!(!breaker.admits());
    }
}

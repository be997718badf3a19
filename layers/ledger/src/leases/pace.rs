//! The call rate and the spending rate of a key, which determine the size of the key's lease.

use super::lease::Size;
use crate::{book::Millis, money::MicroRub};

/// The length of the windows in which calls are counted, in milliseconds. The target size of a lease is enough for the
/// calls of at least one window.
const WINDOW_MS: Millis = 200;
/// The target size of a lease is enough for the calls of at least this many round trips to the ledger. Money arrives
/// one round trip after the turn that requests it. Only then is the next turn made, which takes another round trip. The
/// remaining round trips are a reserve for calls that are not evenly spaced.
const ROUND_TRIPS: Millis = 5;
/// A round trip counts as at most this long, in milliseconds: one slow response must not make leases huge.
const ROUND_TRIP_MS_MAX: Millis = 500;
/// The target for a lease's free money is at least this many times the key's largest hold.
const HOLDS_MIN: i64 = 8;
/// The ledger enlarges a lease only if the account's free money outside its leases is at least this many times the
/// key's largest hold.
const HOLDS_BESIDE: i64 = 32;

/// A key's calls in the current window and in the previous window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    window: u64,
    now: Window,
    before: Window,
    last_call: Millis,
    round_trip: Millis,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    calls: u64,
    wanted: MicroRub,
    largest: MicroRub,
}

impl Pace {
    pub(crate) fn note(&mut self, want: MicroRub, now: Millis) {
        self.roll(now);
        self.now.calls += 1;
        self.now.wanted = self.now.wanted.plus_or_max(want);
        self.now.largest = self.now.largest.max(want);
        self.last_call = now;
    }

    /// Records how long the ledger took to answer a turn. A longer time than before takes effect at once, a shorter
    /// time gradually.
    pub(crate) fn note_round_trip(&mut self, took: Millis) {
        let less = self.round_trip - self.round_trip.div_ceil(8);
        self.round_trip = less.max(took.min(ROUND_TRIP_MS_MAX));
    }

    /// Returns the calls per second in the busier one of the two windows.
    pub(crate) fn calls_per_second(&mut self, now: Millis) -> u64 {
        self.roll(now);
        self.now.calls.max(self.before.calls) * 1000 / WINDOW_MS
    }

    /// Returns how long ago the last call began, in milliseconds.
    pub(crate) const fn idle_ms(&self, now: Millis) -> Millis {
        now.saturating_sub(self.last_call)
    }

    /// Returns the target size of a lease that continues at the current call rate.
    pub(crate) fn size(&mut self, now: Millis) -> Size {
        self.roll(now);
        let largest = self.now.largest.max(self.before.largest);
        let wanted = self.now.wanted.max(self.before.wanted);
        let covered = WINDOW_MS.max(ROUND_TRIPS * self.round_trip);
        let wanted = in_time(wanted, covered);
        // Even if all calls are free, the lease needs one micro-ruble: a lease without money cannot be opened.
        let floor = times(largest, HOLDS_MIN).max(MicroRub::new(1));
        Size {
            free: wanted.max(floor),
            short_of: times(largest, HOLDS_BESIDE),
        }
    }

    fn roll(&mut self, now: Millis) {
        let window = now / WINDOW_MS;
        if window == self.window {
            return;
        }
        self.before = if window == self.window + 1 {
            self.now
        } else {
            Window::default()
        };
        (self.window, self.now) = (window, Window::default());
    }
}

fn times(amount: MicroRub, count: i64) -> MicroRub {
    MicroRub::new(amount.micro().saturating_mul(count)).min(MicroRub::MAX)
}

/// Returns the amount that calls hold in `covered` milliseconds, if they hold `wanted` per window.
fn in_time(wanted: MicroRub, covered: Millis) -> MicroRub {
    let all = i128::from(wanted.micro()) * i128::from(covered) / i128::from(WINDOW_MS);
    MicroRub::of_sum(all).min(MicroRub::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_size_suffices_for_the_recent_call_rate_and_at_least_eight_holds() {
        let mut pace = Pace::default();
        for n in 0..100 {
            pace.note(MicroRub::new(10), 1_000 + n);
        }
        let size = |free, short_of| Size {
            free: MicroRub::new(free),
            short_of: MicroRub::new(short_of),
        };
        assert_eq!(pace.size(1_100), size(1_000, 320));
        assert_eq!(pace.calls_per_second(1_199), 500);
        // A window counts for at most two window lengths: while it is current and while it is the previous one.
        pace.note(MicroRub::new(7), 1_250);
        assert_eq!(pace.size(1_250), size(1_000, 320));
        assert_eq!(pace.size(1_400), size(56, 224));
        assert_eq!(pace.calls_per_second(1_650), 0);
        assert_eq!(pace.size(1_650), size(1, 0));
        assert_eq!(pace.idle_ms(1_650), 400);
    }

    #[test]
    fn lease_size_suffices_for_the_calls_that_arrive_during_five_round_trips_to_the_ledger() {
        let mut pace = Pace::default();
        for n in 0..100 {
            pace.note(MicroRub::new(10), 1_000 + n);
        }
        let free = |pace: &mut Pace| pace.size(1_100).free.micro();
        pace.note_round_trip(40);
        assert_eq!(free(&mut pace), 1_000);
        pace.note_round_trip(200);
        assert_eq!(free(&mut pace), 5_000);
        // A very slow round trip counts as half a second, and is forgotten gradually.
        pace.note_round_trip(60_000);
        assert_eq!(free(&mut pace), 12_500);
        for _ in 0..32 {
            pace.note_round_trip(1);
        }
        assert_eq!(free(&mut pace), 1_000);
        assert_eq!(in_time(MicroRub::MAX, 2_500), MicroRub::MAX);
    }
}

//! How fast a key spends money, which determines the size of the key's lease.

use super::lease::Size;
use crate::{book::Millis, money::MicroRub};

/// Calls are counted in windows of this length, in milliseconds. A lease covers the calls of at least one window.
const WINDOW_MS: Millis = 200;
/// A lease also covers the calls during this number of round trips to the ledger. An amount that a turn of the lease
/// requests arrives one round trip later. Only then is the next turn made, which takes another round trip. The rest is
/// for calls that are not evenly spaced.
const ROUND_TRIPS: Millis = 5;
/// A longer round trip, in milliseconds, is counted as this long, so that one slow answer does not make leases huge.
const ROUND_TRIP_MS_MAX: Millis = 500;
/// The free money of a lease is at least the key's largest hold, multiplied by this number.
const HOLDS_MIN: i64 = 8;
/// The ledger enlarges a lease only if the account's free money outside the lease is at least the key's largest hold,
/// multiplied by this number.
const HOLDS_BESIDE: i64 = 32;

/// The calls of a key in the current window and in the previous window.
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

    /// Records the time until the ledger answered a turn of the lease. If the time is longer than before, it counts at
    /// once; if shorter, gradually.
    pub(crate) fn note_round_trip(&mut self, took: Millis) {
        let less = self.round_trip - self.round_trip.div_ceil(8);
        self.round_trip = less.max(took.min(ROUND_TRIP_MS_MAX));
    }

    /// Calls per second, according to the busier of the two windows.
    pub(crate) fn calls_per_second(&mut self, now: Millis) -> u64 {
        self.roll(now);
        self.now.calls.max(self.before.calls) * 1000 / WINDOW_MS
    }

    /// Returns the time since the last call, in milliseconds.
    pub(crate) const fn silent_ms(&self, now: Millis) -> Millis {
        now.saturating_sub(self.last_call)
    }

    /// The size that a lease should have for future calls.
    pub(crate) fn size(&mut self, now: Millis) -> Size {
        self.roll(now);
        let largest = self.now.largest.max(self.before.largest);
        let wanted = self.now.wanted.max(self.before.wanted);
        let covered = WINDOW_MS.max(ROUND_TRIPS * self.round_trip);
        let wanted = in_time(wanted, covered);
        // At least one micro-ruble, even if all calls are free: a lease without money cannot be opened.
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

/// The amount that calls hold in `covered` milliseconds, if they hold `wanted` per window.
fn in_time(wanted: MicroRub, covered: Millis) -> MicroRub {
    let all = i128::from(wanted.micro()) * i128::from(covered) / i128::from(WINDOW_MS);
    MicroRub::of_sum(all).min(MicroRub::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_has_money_for_the_recent_call_rate_and_a_minimum_number_of_holds() {
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
        // The previous window counts until it is two windows old.
        pace.note(MicroRub::new(7), 1_250);
        assert_eq!(pace.size(1_250), size(1_000, 320));
        assert_eq!(pace.size(1_400), size(56, 224));
        assert_eq!(pace.calls_per_second(1_650), 0);
        assert_eq!(pace.size(1_650), size(1, 0));
        assert_eq!(pace.silent_ms(1_650), 400);
    }

    #[test]
    fn lease_amount_covers_five_round_trips_to_a_distant_ledger() {
        let mut pace = Pace::default();
        for n in 0..100 {
            pace.note(MicroRub::new(10), 1_000 + n);
        }
        let free = |pace: &mut Pace| pace.size(1_100).free.micro();
        pace.note_round_trip(40);
        assert_eq!(free(&mut pace), 1_000);
        pace.note_round_trip(200);
        assert_eq!(free(&mut pace), 5_000);
        // A slow round trip counts for half a second at most, and is forgotten gradually.
        pace.note_round_trip(60_000);
        assert_eq!(free(&mut pace), 12_500);
        for _ in 0..32 {
            pace.note_round_trip(1);
        }
        assert_eq!(free(&mut pace), 1_000);
        assert_eq!(in_time(MicroRub::MAX, 2_500), MicroRub::MAX);
    }
}

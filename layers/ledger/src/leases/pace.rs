//! How fast a key spends: what a lease is sized by.

use super::lease::Size;
use crate::{book::Millis, money::MicroRub};

/// What is counted together. A lease covers what comes in so long at least.
const WINDOW_MS: Millis = 200;
/// And what comes in so many round trips to the ledger: what a turn asks for is there one later, the turn after it is made
/// then and answered another one later, and calls do not come evenly.
const ROUND_TRIPS: Millis = 5;
/// A ledger that is slower than this for once does not make leases larger yet.
const ROUND_TRIP_MS_MAX: Millis = 500;
/// Of the largest holds, a lease has room for so many at least.
const HOLDS_MIN: i64 = 8;
/// Of the largest holds, the ledger has so many free beside a lease.
const HOLDS_BESIDE: i64 = 32;

/// The calls of a key in this window and in the one before it.
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

    /// A turn was answered after so long. Longer is believed at once, shorter by and by.
    pub(crate) fn note_round_trip(&mut self, took: Millis) {
        let less = self.round_trip - self.round_trip.div_ceil(8);
        self.round_trip = less.max(took.min(ROUND_TRIP_MS_MAX));
    }

    /// Calls a second, by the fuller window.
    pub(crate) fn calls_per_second(&mut self, now: Millis) -> u64 {
        self.roll(now);
        self.now.calls.max(self.before.calls) * 1000 / WINDOW_MS
    }

    /// How long there was no call.
    pub(crate) const fn silent_ms(&self, now: Millis) -> Millis {
        now.saturating_sub(self.last_call)
    }

    /// What a lease should have for calls to come.
    pub(crate) fn size(&mut self, now: Millis) -> Size {
        self.roll(now);
        let largest = self.now.largest.max(self.before.largest);
        let wanted = self.now.wanted.max(self.before.wanted);
        let covered = WINDOW_MS.max(ROUND_TRIPS * self.round_trip);
        let wanted = in_time(wanted, covered);
        // Something, even where calls cost nothing: a lease without money is none.
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

/// What comes in `covered` ms where so much comes in a window.
fn in_time(wanted: MicroRub, covered: Millis) -> MicroRub {
    let all = i128::from(wanted.micro()) * i128::from(covered) / i128::from(WINDOW_MS);
    MicroRub::of_sum(all).min(MicroRub::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_covers_a_window_of_calls_and_some_holds_at_least() {
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
        // The window before counts until it is two windows old.
        pace.note(MicroRub::new(7), 1_250);
        assert_eq!(pace.size(1_250), size(1_000, 320));
        assert_eq!(pace.size(1_400), size(56, 224));
        assert_eq!(pace.calls_per_second(1_650), 0);
        assert_eq!(pace.size(1_650), size(1, 0));
        assert_eq!(pace.silent_ms(1_650), 400);
    }

    #[test]
    fn a_lease_covers_five_round_trips_to_a_ledger_that_is_far() {
        let mut pace = Pace::default();
        for n in 0..100 {
            pace.note(MicroRub::new(10), 1_000 + n);
        }
        let free = |pace: &mut Pace| pace.size(1_100).free.micro();
        pace.note_round_trip(40);
        assert_eq!(free(&mut pace), 1_000);
        pace.note_round_trip(200);
        assert_eq!(free(&mut pace), 5_000);
        // One that was slow once is forgotten, and counts for no more than half a second.
        pace.note_round_trip(60_000);
        assert_eq!(free(&mut pace), 12_500);
        for _ in 0..32 {
            pace.note_round_trip(1);
        }
        assert_eq!(free(&mut pace), 1_000);
        assert_eq!(in_time(MicroRub::MAX, 2_500), MicroRub::MAX);
    }
}

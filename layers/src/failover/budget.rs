//! How many attempts beyond the first there may be: a share of the calls, and a few for quiet times.
//! The idea is that of tower's `TpsBudget`.
//!
//! While one vendor is sick its calls go to the others, and the budget is not felt. When all are sick
//! each call would be sent to all of them: what is left of the vendors would get a multiple of the load.
//! Then the budget is soon used up, and the first error is the answer. Pure: the time is given.

use std::time::Duration;

use tokio::time::Instant;

/// A retry in the unit of account: thousandths.
const RETRY: u64 = 1000;

/// How many retries are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSettings {
    /// Retries for a hundred calls.
    pub retries_percent: u32,
    /// Retries a second that are always there: without them, a gateway with few calls would have none.
    pub retries_per_second: u32,
    /// Most retries that can be saved up. A vendor that dies under load fails all calls that wait for it
    /// at once, and they are to be retried at once.
    pub retries_max: u32,
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self {
            retries_percent: 20,
            retries_per_second: 20,
            retries_max: 1000,
        }
    }
}

/// An account of retries in thousandths.
#[derive(Debug)]
pub(super) struct Budget {
    settings: BudgetSettings,
    saved: u64,
    at: Instant,
}

impl Budget {
    /// A full one.
    pub(super) const fn new(settings: BudgetSettings, now: Instant) -> Self {
        Self {
            settings,
            saved: settings.retries_max as u64 * RETRY,
            at: now,
        }
    }

    /// A call has come.
    pub(super) fn deposit(&mut self) {
        self.add(u64::from(self.settings.retries_percent) * RETRY / 100);
    }

    /// Takes a retry, if one is there.
    pub(super) fn withdraw(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at);
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        // What is less than a millisecond stays with the clock.
        self.at += Duration::from_millis(millis);
        // One a second is a thousandth a millisecond.
        self.add(millis.saturating_mul(u64::from(self.settings.retries_per_second)));
        let left = self.saved.checked_sub(RETRY);
        if let Some(left) = left {
            self.saved = left;
        }
        left.is_some()
    }

    fn add(&mut self, more: u64) {
        let max = u64::from(self.settings.retries_max) * RETRY;
        self.saved = self.saved.saturating_add(more).min(max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(budget: &mut Budget, wanted: usize, now: Instant) -> usize {
        (0..wanted).filter(|_| budget.withdraw(now)).count()
    }

    #[tokio::test(start_paused = true)]
    async fn retries_are_a_share_of_the_calls_and_a_few_a_second() {
        let now = Instant::now();
        let settings = BudgetSettings {
            retries_percent: 20,
            retries_per_second: 5,
            retries_max: 50,
        };
        let mut budget = Budget::new(settings, now);
        assert_eq!(granted(&mut budget, 1000, now), 50, "what was saved up");
        for _ in 0..100 {
            budget.deposit();
        }
        assert_eq!(granted(&mut budget, 1000, now), 20, "a share of the calls");
        let later = now + Duration::from_secs(2);
        assert_eq!(granted(&mut budget, 1000, later), 10, "a few a second");
        let much_later = later + Duration::from_secs(1_000_000_000);
        assert_eq!(granted(&mut budget, 1000, much_later), 50, "never more");
    }

    #[tokio::test(start_paused = true)]
    async fn short_times_add_up() {
        let mut now = Instant::now();
        let settings = BudgetSettings {
            retries_percent: 0,
            retries_per_second: 1,
            retries_max: 10,
        };
        let mut budget = Budget::new(settings, now);
        granted(&mut budget, 10, now);
        let mut count = 0;
        for _ in 0..10_000 {
            now += Duration::from_micros(500);
            count += usize::from(budget.withdraw(now));
        }
        assert_eq!(count, 5);
    }
}

//! Limits retries to a share of the calls, plus a few per second for quiet times. The idea is that of tower's
//! `TpsBudget`.
//!
//! While one vendor fails, its calls move to others and the budget does not matter. If all vendors fail, every call
//! would be sent to all of them, and what still works would get a multiple of the load. The budget then runs out soon,
//! and the first error is returned. Pure: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The cost of a retry in the budget's unit, thousandths.
const RETRY: u64 = 1000;

/// The limits of the budget for retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSettings {
    /// The number of retries per hundred calls.
    pub retries_percent: u32,
    /// Retries per second that are always allowed; without them, a gateway with few calls would have none.
    pub retries_per_second: u32,
    /// The maximum retries that can accumulate. A vendor that fails under load fails all waiting calls at once, and
    /// all of them must be retried immediately.
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

/// The balance of retries, in thousandths.
#[derive(Debug)]
pub(super) struct Budget {
    settings: BudgetSettings,
    saved: u64,
    at: Instant,
}

impl Budget {
    /// Creates a full budget.
    pub(super) const fn new(settings: BudgetSettings, now: Instant) -> Self {
        Self {
            settings,
            saved: settings.retries_max as u64 * RETRY,
            at: now,
        }
    }

    /// Adds the share of a retry that a call earns.
    pub(super) fn deposit(&mut self) {
        self.add(u64::from(self.settings.retries_percent) * RETRY / 100);
    }

    /// Takes a retry if the budget has one.
    pub(super) fn withdraw(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at);
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        // The rest of a millisecond carries over to the next call.
        self.at += Duration::from_millis(millis);
        // One per second equals one thousandth per millisecond.
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
    async fn retries_are_limited_to_a_share_of_the_calls_and_a_few_per_second() {
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
    async fn retry_budget_fills_with_time_between_retries() {
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

//! Limits retries to a share of the calls, plus a few retries per second for times with few calls. The budget is
//! modelled on tower's `TpsBudget`.
//!
//! If one vendor fails, its calls move to other vendors, and the budget suffices. If all vendors fail, every call would
//! be sent to all of them, and a vendor that still works would receive a multiple of its load. Instead, the budget soon
//! runs out, and calls return their first error. The budget has no clock: its functions take the time as an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The cost of one retry in the budget's unit, thousandths of a retry.
const RETRY: u64 = 1000;

/// The limits of the retry budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSettings {
    /// The number of retries that are allowed per hundred calls.
    pub retries_percent: u32,
    /// The number of retries per second that are always allowed. Without them, a gateway with few calls could not
    /// retry.
    pub retries_per_second: u32,
    /// The maximum number of unused retries that are saved. If a vendor fails under load, all calls that wait for it
    /// fail at the same moment, and must be retried immediately.
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

/// The available retries, in thousandths of a retry.
#[derive(Debug)]
pub(super) struct Budget {
    settings: BudgetSettings,
    saved: u64,
    at: Instant,
}

impl Budget {
    /// Creates a budget that is full: it has the maximum number of unused retries.
    pub(super) const fn new(settings: BudgetSettings, now: Instant) -> Self {
        Self {
            settings,
            saved: settings.retries_max as u64 * RETRY,
            at: now,
        }
    }

    /// Adds the share of a retry that one new call earns.
    pub(super) fn deposit(&mut self) {
        self.add(u64::from(self.settings.retries_percent) * RETRY / 100);
    }

    /// Takes one retry from the budget. Returns whether the budget had one.
    pub(super) fn withdraw(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at);
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        // Only whole milliseconds are counted now. The remaining fraction of a millisecond is counted by a later call
        // of this function.
        self.at += Duration::from_millis(millis);
        // One retry per second is one thousandth of a retry per millisecond.
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
    async fn retries_are_limited_to_a_share_of_the_calls_plus_a_few_per_second() {
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
    async fn retry_budget_refills_over_time_between_retries() {
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

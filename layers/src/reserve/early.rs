//! Which vendors' first counts of input were also their last ones.
//!
//! Some vendors count the input in the first event of a stream. If that is the final count, most of the hold can be
//! returned while the call runs. Other vendors begin with a guess, or with zero, and a guess looks like a count. So a
//! first count is believed once a call of the same vendor and model has ended with it, and never again after one has
//! ended with more.

use std::hash::{BuildHasher, RandomState};

use quick_cache::sync::Cache;

/// The maximum number of pairs of a vendor and a model. A pair that is forgotten must prove itself again.
const PAIRS_MAX: usize = 4096;

/// The record of how reliable first counts are, by vendor and model.
#[derive(Debug)]
pub(super) struct EarlyCounts {
    right: Cache<u64, bool>,
    hasher: RandomState,
}

impl Default for EarlyCounts {
    fn default() -> Self {
        Self {
            right: Cache::new(PAIRS_MAX),
            hasher: RandomState::new(),
        }
    }
}

impl EarlyCounts {
    /// Returns whether a first count can be relied on.
    pub(super) fn are_final(&self, vendor: &str, model: &str) -> bool {
        self.right.get(&self.pair(vendor, model)) == Some(true)
    }

    /// Records that a call has ended, and whether within its first count.
    pub(super) fn record(&self, vendor: &str, model: &str, is_within: bool) {
        let pair = self.pair(vendor, model);
        if !is_within || self.right.get(&pair).is_none() {
            self.right.insert(pair, is_within);
        }
    }

    fn pair(&self, vendor: &str, model: &str) -> u64 {
        self.hasher.hash_one((vendor, model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_usage_counts_are_trusted_once_proved_and_never_after_a_wrong_one() {
        let counts = EarlyCounts::default();
        let believed = || counts.are_final("v", "m");
        assert!(!believed());
        counts.record("v", "m", true);
        assert!(believed());
        assert!(!counts.are_final("v", "n") && !counts.are_final("w", "m"));
        counts.record("v", "m", false);
        counts.record("v", "m", true);
        assert!(!believed());
    }
}

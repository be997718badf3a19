//! Remembers which vendors' first counts of input were final.
//!
//! Some vendors count the input in the first event of a stream. If that count is final, most of the hold can be
//! returned while the call runs. Other vendors begin with an estimate, or with zero, and an estimate looks like a
//! count. So first counts of a vendor and model are used only after one of their calls has ended with its first count,
//! and never again after one has ended with a higher count.

use std::hash::{BuildHasher, RandomState};

use quick_cache::sync::Cache;

/// The maximum number of pairs of a vendor and a model. If a pair was evicted, its first counts are not used until
/// another call has ended.
const PAIRS_MAX: usize = 4096;

/// For each pair of a vendor and a model, whether first counts were final.
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
    /// Returns whether first counts of this vendor and model may be used.
    pub(super) fn are_final(&self, vendor: &str, model: &str) -> bool {
        self.right.get(&self.pair(vendor, model)) == Some(true)
    }

    /// Records that a call has ended; `is_within`: its final count was at most its first count.
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
    fn early_usage_counts_are_trusted_once_proved_and_never_after_a_wrong_count() {
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

//! Remembers which vendors' first counts of the input were final.
//!
//! Some vendors count the input in the first event of a stream. If this count is final, most of the hold can be
//! returned while the call runs. Other vendors begin with zero, or with an estimate that looks like a count. So the
//! first counts of a vendor and model are used only after one of their calls has ended with a count that was not higher
//! than its first count. After a call has ended with a higher count, the first counts of this pair are never used
//! again.

use std::hash::{BuildHasher, RandomState};

use quick_cache::sync::Cache;

/// The maximum number of pairs of a vendor and a model. The first counts of an evicted pair are not used until another
/// call has ended.
const PAIRS_MAX: usize = 4096;

/// Whether first counts were final, for each pair of a vendor and a model.
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
    /// Returns whether the first counts of this vendor and model may be used.
    pub(super) fn are_final(&self, vendor: &str, model: &str) -> bool {
        self.right.get(&self.pair(vendor, model)) == Some(true)
    }

    /// Records that a call has ended. `is_within` states whether the final count of the call's input was at most the
    /// first count.
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
    fn early_input_counts_are_trusted_after_a_correct_one_and_never_again_after_a_too_low_one() {
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

//! Randomness from a seed alone: splitmix64. No clock, no thread and no address gets in.
//!
//! A test binary or a bench takes it in with `#[path = "../support/random.rs"] mod random;`.

#![allow(dead_code, reason = "none needs all of it")]

/// A generator. Two with the same beginning say the same for ever.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator of one thing in the world of `seed`, named by `parts`. What is drawn for it does not
    /// depend on what was drawn for others before.
    pub(crate) fn of(seed: u64, parts: &[u64]) -> Self {
        let mut random = Self(seed ^ 0x6A09_E667_F3BC_C908);
        for part in parts {
            random = Self(random.bits() ^ part.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        }
        random
    }

    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    /// From 0 to `count` - 1.
    pub(crate) const fn index(&mut self, count: usize) -> usize {
        (self.bits() % count as u64) as usize
    }

    /// True `per_mille` times of a thousand.
    pub(crate) const fn chance(&mut self, per_mille: u64) -> bool {
        self.bits() % 1000 < per_mille
    }
}

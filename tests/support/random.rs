//! Randomness from a seed alone: splitmix64. No clock, no thread and no address gets in.
//!
//! The simulation takes in this file alone: nothing of the rest may be in it.

#![allow(dead_code, reason = "none needs all of it")]

/// Where a seed other than the usual one is given.
pub(crate) const SEED: &str = "TOLLGATE_SEED";

/// The seed of a run: what [`SEED`] says, or else the usual one. Printed, so that a test that fails shows it.
pub(crate) fn seed(usual: u64) -> u64 {
    let seed = std::env::var(SEED).map_or(usual, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{SEED} is a whole number, not {text:?}"))
    });
    println!("{SEED}={seed}");
    seed
}

/// A seed that no run has had before, for tests that look further each time.
pub(crate) fn new_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

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

    /// A seed for generators of others.
    pub(crate) fn bytes(mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&self.bits().to_le_bytes());
        }
        bytes
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

//! Randomness that depends only on a seed (splitmix64), not on clocks, threads or addresses.
//!
//! The simulation includes only this file of the module, so this file must not use the others.

#![allow(dead_code, reason = "none needs all of it")]

/// The environment variable whose seed replaces the usual seed of a test.
pub(crate) const SEED: &str = "TOLLGATE_SEED";

/// Returns the seed of a run: the value of [`SEED`] if it is set, otherwise `usual`. Prints the seed, so that a failed
/// run can be repeated.
pub(crate) fn seed(usual: u64) -> u64 {
    let seed = std::env::var(SEED).map_or(usual, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{SEED} is a whole number, not {text:?}"))
    });
    println!("{SEED}={seed}");
    seed
}

/// Returns a different seed at each call, for tests that use a new seed in each run.
pub(crate) fn new_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// A generator of random numbers. Two generators with the same state produce the same sequence.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates the generator for one purpose, which `parts` name, in a run with this seed. Its values do not change if
    /// other values are drawn for other purposes.
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

    /// Returns a seed for a random generator of another crate.
    pub(crate) fn bytes(mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&self.bits().to_le_bytes());
        }
        bytes
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    /// Returns a number from 0 to `count` - 1.
    pub(crate) const fn index(&mut self, count: usize) -> usize {
        (self.bits() % count as u64) as usize
    }

    /// Returns true in `per_mille` of a thousand cases, on average.
    pub(crate) const fn chance(&mut self, per_mille: u64) -> bool {
        self.bits() % 1000 < per_mille
    }
}

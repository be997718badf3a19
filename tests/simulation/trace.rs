//! The log of a simulated run. It is off if many seeds are run, and complete for a single seed.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::plan::Ms;

/// How the lines of a run's log are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracing {
    /// The lines are neither formatted nor printed.
    Off,
    /// The lines are hashed, so that two runs can be compared.
    Hashed,
    /// The lines are printed.
    Printed,
}

/// The log lines of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    how: Tracing,
    hash: AtomicU64,
}

impl Trace {
    pub(crate) const fn new(how: Tracing) -> Self {
        Self {
            how,
            hash: AtomicU64::new(0),
        }
    }

    pub(crate) fn note(&self, at: Ms, line: impl FnOnce() -> String) {
        match self.how {
            Tracing::Off => {}
            Tracing::Hashed => {
                // The hash covers the time of each line and the order of the lines.
                let hash = fnv(self.hash.load(Ordering::Relaxed), &at.to_le_bytes());
                self.hash
                    .store(fnv(hash, line().as_bytes()), Ordering::Relaxed);
            }
            Tracing::Printed => println!("{:>10}  {}", Seconds(at), line()),
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }
}

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(hash ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
        })
}

/// Formats milliseconds as seconds.
pub(crate) struct Seconds(pub(crate) Ms);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:03} s", self.0 / 1000, self.0 % 1000))
    }
}

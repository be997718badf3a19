//! The clocks and random names that leases use: those of a gateway, or those of a simulation.

use tokio::time::Instant;
use uuid::Uuid;

use crate::{book::Millis, embedded::now_ms};

/// A gateway's clocks: a monotonic clock, and the wall clock, which continues while the machine sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since an arbitrary moment.
    pub steady: Millis,
    /// Unix time in milliseconds.
    pub wall: Millis,
}

/// A source of the time, and of unique names for leases and turns.
pub trait LeaseSource: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Now;

    /// Returns a unique name for a lease or a turn: a UUIDv7.
    fn name(&self) -> Uuid;
}

/// The system's clocks.
pub(super) struct System {
    began: Instant,
}

impl Default for System {
    fn default() -> Self {
        Self {
            began: Instant::now(),
        }
    }
}

impl LeaseSource for System {
    fn now(&self) -> Now {
        let steady = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now {
            steady,
            wall: now_ms(),
        }
    }

    fn name(&self) -> Uuid {
        Uuid::now_v7()
    }
}

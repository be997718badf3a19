//! The source of clocks and unique names for leases: the system, or a simulation.

use tokio::time::Instant;
use uuid::Uuid;

use crate::{book::Millis, book::millis, embedded::now_ms};

/// The current time on two clocks: a monotonic clock, and the wall clock. Unlike the monotonic clock, the wall clock
/// advances while the machine sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since an arbitrary moment.
    pub steady: Millis,
    /// Unix time in milliseconds.
    pub wall: Millis,
}

/// A source of times, and of unique names for leases and their turns.
pub trait LeaseSource: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Now;

    /// Returns a unique name for a lease or for one of its turns: a UUIDv7.
    fn name(&self) -> Uuid;
}

/// The system's clocks and random generator. The steady time begins at this instant.
pub(super) struct System(pub(super) Instant);

impl LeaseSource for System {
    fn now(&self) -> Now {
        let (steady, wall) = (millis(self.0.elapsed()), now_ms());
        Now { steady, wall }
    }

    fn name(&self) -> Uuid {
        Uuid::now_v7()
    }
}

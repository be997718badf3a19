//! The clocks and names of leases: a gateway's own, or those of a simulation.

use tokio::time::Instant;
use uuid::Uuid;

use crate::{book::Millis, embedded::now_ms};

/// What a gateway's clocks say, in ms: one that never goes back, and the one of the calendar, which goes on while a
/// machine sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Since some moment.
    pub steady: Millis,
    /// Unix time.
    pub wall: Millis,
}

/// Where leases have the time and fresh names from.
pub trait LeaseSource: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Now;

    /// A name for a lease or a turn that nothing else has: a UUIDv7.
    fn name(&self) -> Uuid;
}

/// The system's.
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

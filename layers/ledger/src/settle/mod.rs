//! How a hold ends: by whom it is owned while its call runs, and how the ledger is told of its end, off the
//! caller's way.

mod ending;
mod running;
mod settler;
mod task;

#[cfg(any(feature = "outbox", feature = "redis"))]
pub(crate) use self::ending::cause_of;
#[cfg(feature = "outbox")]
pub(crate) use self::ending::{FRESH, jittered};
pub use self::{
    ending::Ending,
    running::{Cut, Granted, RunningEntry},
    settler::{Event, QueuePermit, Settler, SettlerSettings, Unacknowledged},
    task::SettlerTask,
};
use crate::{contract::Item, money::MicroRub, usage::Reading};

/// Computes a call's charge.
pub trait Bill: Send + Sync + 'static {
    /// What the call cost, and what for; `None` when it costs nothing. Asked now and then while the
    /// call runs, and once at its end. Must not panic: it runs in a `Drop`.
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)>;
}

//! Ends holds: who owns a hold while its call runs, and how its end is sent to the ledger without delaying the caller.

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
    running::{AdjustedHold, Cut, Granted, Running, RunningEntry},
    settler::{Event, QueuePermit, Settler, SettlerSettings, Unacknowledged},
    task::SettlerTask,
};
use crate::{contract::Item, money::MicroRub, usage::Reading};

/// Computes the charge of a call.
pub trait Bill: Send + Sync + 'static {
    /// Returns the cost of the call and the content of its receipt; `None` if it is free. Called from time to time
    /// while the call runs, and once when it ends: also after an error, after an answer with status 500, or if the
    /// client has disconnected. So compute the cost from `reading`: [`Reading::end`] is `None` if no answer was
    /// delivered. A bill that ignores `reading` charges for failures. Must not panic, since it runs in a `Drop`.
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)>;

    /// Returns the most that the call can still cost, if `reading` shows that this is less than the hold. The hold is
    /// then lowered to that amount. Called when the answer has begun and the vendor has reported usage. By default the
    /// hold does not change.
    fn cost_max(&self, reading: &Reading) -> Option<MicroRub> {
        let _ = reading;
        None
    }

    /// Returns the most that the call can cost if its output is at most `output_tokens`. Called if the meter's bounds
    /// have `growing`; the hold is then raised to that amount. By default the hold does not grow.
    fn cost_within(&self, reading: &Reading, output_tokens: u64) -> Option<MicroRub> {
        let _ = (reading, output_tokens);
        None
    }
}

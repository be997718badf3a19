//! Ends holds: keeps the hold of each in-flight call alive, and sends its settlement or release to the ledger without
//! delaying the caller.

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

/// Computes the cost of a call and the content of its receipt.
pub trait Bill: Send + Sync + 'static {
    /// Returns the cost of a call and the content of its receipt, or `None` if the call is free. It is called from time
    /// to time while the call is in flight, and once when the call ends, even after an error, a status 500 or a client
    /// disconnect. So compute the cost from `reading`, in which [`Reading::end`] is `None` if no response was
    /// delivered: a bill that ignores `reading` charges for failed calls. This method runs in a `Drop`, so it must not
    /// panic.
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)>;

    /// Returns the most that the call can still cost, if `reading` shows that this is less than the hold. The hold is
    /// then lowered to the returned amount. Called when the response has begun and the vendor has reported usage. The
    /// default leaves the hold unchanged.
    fn cost_max(&self, reading: &Reading) -> Option<MicroRub> {
        let _ = reading;
        None
    }

    /// Returns the most that the call can cost if its output has at most `output_tokens` tokens. The hold is then
    /// raised to the returned amount. Called only if the meter's bounds are `growing`. The default leaves the hold
    /// unchanged.
    fn cost_within(&self, reading: &Reading, output_tokens: u64) -> Option<MicroRub> {
        let _ = (reading, output_tokens);
        None
    }
}

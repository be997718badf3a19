//! Collects facts about each request while it is handled. When the request has ended, writes them to one log line and
//! adds them to the metrics.
//!
//! [`ObserveLayer`] is the outermost layer. It creates a [`CallRecord`], which travels with the request. Each
//! function of `marks` in the stack records a fact that the layer above it has determined. It records the fact before it
//! passes the request on, because it does not see what the layers below it return. A call that has held money ends
//! twice, in either order: for its client, and in the ledger. After both ends, the call's log line is written and, if
//! the call is traced, its spans are sent.

mod attempts;
mod call_record;
mod facts;
mod line;
mod lookup;
mod marks;
mod observe;
mod refusals;
mod spans;
mod unbooked;

pub(crate) use self::{
    attempts::AttemptsLayer,
    line::CHARGE,
    marks::{admitted, granted, known, parsed, sent},
    refusals::{RefusalLines, Source},
    unbooked::STRANGERS_MAX,
};
pub use self::{
    call_record::{CallRecord, Calls},
    line::TARGET,
    observe::{Observe, ObserveLayer, ResponseBody, ResponseFuture},
};

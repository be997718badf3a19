//! What operators are shown of vendors and their routes.

use std::{sync::Arc, time::Duration};

use http::StatusCode;

/// What is known of a vendor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorState {
    /// The operator's name for it.
    pub name: Arc<str>,
    /// The operator has taken it out.
    pub disabled: bool,
    /// Calls at it now, streams to their ends.
    pub in_flight: usize,
    /// The most of them.
    pub connections_max: usize,
    /// Our keys at it.
    pub keys: usize,
    /// Of these, how many it has refused lately.
    pub keys_parked: usize,
    /// By the vendor's name of the model.
    pub routes: Vec<RouteState>,
}

/// What is known of a vendor's model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteState {
    /// The vendor's name of the model.
    pub model: String,
    /// Whether calls are let through that have another route.
    pub breaker: BreakerState,
    /// The newest that the vendor has said of it is that it has no such model (404).
    pub model_unknown: bool,
    /// Failures in a row.
    pub failures: u32,
    /// Calls on it now, streams to their ends.
    pub in_flight: usize,
    /// The time to the first byte that is to be expected; `None` where it was never measured.
    pub first_byte: Option<Duration>,
    /// Time until it is tried again; `None` while it is.
    pub open_for: Option<Duration>,
    /// Time that it rests: with all its keys, by the vendor's wish, or as the vendor has no such model.
    pub rests_for: Option<Duration>,
    /// The newest error of the vendor's; answers since then leave it.
    pub last_error: Option<LastError>,
}

/// What a vendor did instead of answering: a limit and a refusal of our key too, a refusal of a caller's request
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastError {
    /// How long ago.
    pub ago: Duration,
    /// The vendor's status; `None` where it gave none, or answered something broken.
    pub status: Option<StatusCode>,
}

/// Whether a route lets calls through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BreakerState {
    /// It does.
    Closed,
    /// It does not, unless they have no other: for all calls, or for those of the one caller who has met all
    /// failures.
    Open,
    /// One call at a time, to see.
    HalfOpen,
}

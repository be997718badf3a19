//! The state of vendors and routes as shown to operators.

use std::{sync::Arc, time::Duration};

use http::StatusCode;

/// The state of a vendor, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorState {
    /// The operator's name for the vendor.
    pub name: Arc<str>,
    /// Whether the operator has disabled the vendor.
    pub disabled: bool,
    /// The number of calls in flight; a stream counts until it ends.
    pub in_flight: usize,
    /// The largest number of calls in flight.
    pub connections_max: usize,
    /// The number of API keys that are configured for the vendor.
    pub keys: usize,
    /// The number of these keys that the vendor recently refused.
    pub keys_parked: usize,
    /// The vendor's routes, ordered by its name of the model.
    pub routes: Vec<RouteState>,
}

/// The state of one of the vendor's models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteState {
    /// The vendor's name of the model.
    pub model: String,
    /// Whether the route admits calls that also have another route.
    pub breaker: BreakerState,
    /// Whether the vendor's newest answer was that it does not have the model (404).
    pub model_unknown: bool,
    /// The number of consecutive failures.
    pub failures: u32,
    /// The number of calls in flight; a stream counts until it ends.
    pub in_flight: usize,
    /// Expected time to the first byte; `None` if it was never measured.
    pub first_byte: Option<Duration>,
    /// The time until the next try; `None` while the route is tried.
    pub open_for: Option<Duration>,
    /// Time that the route rests: because all its keys are limited, or the vendor does not have the model.
    pub rests_for: Option<Duration>,
    /// The vendor's newest error; later successes do not clear it.
    pub last_error: Option<LastError>,
}

/// A vendor's error, including a rate limit or a refusal of our key, but not a refusal of a caller's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastError {
    /// The time since the error.
    pub ago: Duration,
    /// The vendor's status; `None` if it sent none, or its answer was malformed.
    pub status: Option<StatusCode>,
}

/// The state of a route's breaker: whether it admits calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BreakerState {
    /// The route admits all calls.
    Closed,
    /// Admits only calls without another route. Applies to all callers, or only to the caller that met all failures.
    Open,
    /// Admits one call at a time, as a probe.
    HalfOpen,
}

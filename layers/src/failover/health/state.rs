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
    /// The largest number of calls in flight that the vendor may have.
    pub connections_max: usize,
    /// The number of API keys that are configured for the vendor.
    pub keys: usize,
    /// The number of API keys that are not used now, because the vendor refused them.
    pub keys_parked: usize,
    /// The vendor's routes, sorted by the vendor's name of the model.
    pub routes: Vec<RouteState>,
}

/// The state of one of the vendor's models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteState {
    /// The vendor's name of the model.
    pub model: String,
    /// The breaker, as it applies to calls that also have another route.
    pub breaker: BreakerState,
    /// Whether the vendor's newest answer on this route was a 404: it does not have the model.
    pub model_unknown: bool,
    /// The number of failures in a row.
    pub failures: u32,
    /// The number of calls in flight; a stream counts until it ends.
    pub in_flight: usize,
    /// Expected time to the first byte of an answer; `None` if it was never measured.
    pub first_byte: Option<Duration>,
    /// The time until the open breaker admits a probe; `None` if the breaker is not open.
    pub open_for: Option<Duration>,
    /// The time for which the route is not used, because the vendor limits all its API keys or does not have the model.
    pub rests_for: Option<Duration>,
    /// The vendor's newest error; later successes do not remove it.
    pub last_error: Option<LastError>,
}

/// A vendor's error. Includes a rate limit and a refusal of the operator's API key, but not a refusal of a caller's
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastError {
    /// The time since the error.
    pub ago: Duration,
    /// The status that the vendor returned; `None` if it returned no status, or a malformed answer.
    pub status: Option<StatusCode>,
}

/// The state of a route's breaker: whether it admits calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BreakerState {
    /// The route admits all calls.
    Closed,
    /// The route admits only calls without another route. This applies to all callers, or only to the caller in whose
    /// calls all failures occurred.
    Open,
    /// The route admits one call at a time, as a probe.
    HalfOpen,
}

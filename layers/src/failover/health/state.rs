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
    /// The number of calls in flight at the vendor; a stream counts until it ends.
    pub in_flight: usize,
    /// The maximum number of calls in flight at the vendor.
    pub connections_max: usize,
    /// The number of API keys that are configured for the vendor.
    pub keys: usize,
    /// The number of API keys that are not used at present, because the vendor refused them.
    pub keys_parked: usize,
    /// The vendor's routes, ordered by the vendor's name for the model.
    pub routes: Vec<RouteState>,
}

/// The state of one route: a model at a vendor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteState {
    /// The vendor's name for the model.
    pub model: String,
    /// The state of the breaker, as it applies to calls that also have another route.
    pub breaker: BreakerState,
    /// Whether the vendor's latest response on this route was a 404, that is, the vendor does not have the model.
    pub model_unknown: bool,
    /// The number of failures in a row on this route.
    pub failures: u32,
    /// The number of calls in flight on this route; a stream counts until it ends.
    pub in_flight: usize,
    /// The expected time to the first byte of a response; `None` if it was never measured.
    pub first_byte: Option<Duration>,
    /// The time until the open breaker admits a probe; `None` if the breaker is not open.
    pub open_for: Option<Duration>,
    /// How long the route is not used, because the vendor limits all its API keys or does not have the model.
    pub rests_for: Option<Duration>,
    /// The vendor's latest error on this route. Later successes do not remove it.
    pub last_error: Option<LastError>,
}

/// An error that a vendor caused. It may be a rate limit or a refusal of the operator's API key, but not a refusal of a
/// caller's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastError {
    /// The time that has passed since the error.
    pub ago: Duration,
    /// The HTTP status that the vendor returned. `None` if it returned no status or a malformed response.
    pub status: Option<StatusCode>,
}

/// The state of a route's breaker: whether it admits calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BreakerState {
    /// The route admits all calls.
    Closed,
    /// The route admits only calls without another route. This applies to all callers, or only to one caller if all
    /// failures occurred in that caller's calls.
    Open,
    /// The route admits one call at a time, as a probe.
    HalfOpen,
}

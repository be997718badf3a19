//! Endpoints for vendors: show their state and disable them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::StatusCode;
use serde::Serialize;
use tollgate_layers::failover::{BreakerState, LastError, RouteState, VendorState};

use super::{
    Admin, Answer,
    change::changes,
    fields::Fields,
    now_ms, ok,
    refusal::Refusal,
    route::{AdminRequest, Route, routes},
};
use crate::{
    api::fields::either,
    text::{
        percent,
        time::{millis, rfc3339},
    },
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/vendors" => list_vendors;
    patch "/admin/v1/vendors/{vendor}" => change_vendor;
};

const CHANGE_FIELDS: &[&str] = &["status"];
/// The words for a vendor's status, and whether the vendor is enabled.
const STATUSES: [(&str, bool); 2] = [("active", true), ("disabled", false)];

impl Admin {
    async fn list_vendors(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let vendors = self.health.snapshot();
        let now_ms = now_ms();
        let vendors = vendors.iter();
        let vendors: Vec<_> = vendors.map(|it| VendorAnswer::new(it, now_ms)).collect();
        ok(&BTreeMap::from([("vendors", vendors)]))
    }

    /// Disables a vendor on this node until it restarts. To remove a vendor permanently, change the configuration.
    async fn change_vendor(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let none = || {
            let text =
                "no such vendor: `tollgate vendor list` (GET /admin/v1/vendors) lists the vendors";
            Refusal::NotFound(text.into())
        };
        let name = percent::decoded(request.named());
        let who = request.who();
        let body = request.body().await?;
        let name = name.ok_or_else(none)?;
        let mut fields = Fields::parse(&body, CHANGE_FIELDS)?;
        let enabled = fields.required("status", either(STATUSES))?;
        let find = || {
            let vendors = self.health.snapshot();
            vendors.into_iter().find(|vendor| *vendor.name == *name)
        };
        let before = find().ok_or_else(none)?;
        if !self.health.enable(&name, enabled) {
            return Err(none());
        }
        let vendor = find().ok_or_else(none)?;
        let now_ms = now_ms();
        let [before, after] = [&before, &vendor].map(|state| VendorAnswer::new(state, now_ms));
        let change = changes(CHANGE_FIELDS, &before, &after);
        tracing::info!(target: "audit", who = who.name(), what = "vendor.change", vendor = name, change);
        ok(&after)
    }
}

/// The state of a vendor on this node.
#[derive(Serialize)]
struct VendorAnswer<'a> {
    name: &'a str,
    status: &'static str,
    in_flight: usize,
    connections_max: usize,
    keys: usize,
    keys_parked: usize,
    routes: Vec<RouteAnswer<'a>>,
}

#[derive(Serialize)]
struct RouteAnswer<'a> {
    model: &'a str,
    state: &'static str,
    failures: u32,
    in_flight: usize,
    ewma_ms: Option<u64>,
    shut_until: Option<String>,
    rests_until: Option<String>,
    last_error: Option<ErrorAnswer>,
}

#[derive(Serialize)]
struct ErrorAnswer {
    at: String,
    status: Option<u16>,
    /// A readable description of the vendor's last error.
    text: String,
}

impl<'a> VendorAnswer<'a> {
    fn new(vendor: &'a VendorState, now_ms: u64) -> Self {
        Self {
            name: &vendor.name,
            status: match vendor.disabled {
                true => "disabled",
                false => "active",
            },
            in_flight: vendor.in_flight,
            connections_max: vendor.connections_max,
            keys: vendor.keys,
            keys_parked: vendor.keys_parked,
            routes: (vendor.routes.iter())
                .map(|route| RouteAnswer::new(vendor, route, now_ms))
                .collect(),
        }
    }
}

impl<'a> RouteAnswer<'a> {
    fn new(vendor: &VendorState, route: &'a RouteState, now_ms: u64) -> Self {
        let after = |wait: Duration| rfc3339(now_ms.saturating_add(millis(wait)));
        let error = |LastError { ago, status }: LastError| ErrorAnswer {
            at: rfc3339(now_ms.saturating_sub(millis(ago))),
            status: status.map(|status| status.as_u16()),
            text: words(status),
        };
        Self {
            model: &route.model,
            state: match vendor.disabled {
                true => "disabled",
                false => state(route),
            },
            failures: route.failures,
            in_flight: route.in_flight,
            ewma_ms: route.first_byte.map(millis),
            shut_until: route.open_for.map(after),
            rests_until: route.rests_for.map(after),
            last_error: route.last_error.map(error),
        }
    }
}

/// Returns the state of a route whose vendor is not disabled, as operators see it. A route gets all calls; or, after
/// failures, only calls that have no other route; or a single probe call; or none. A route that gets calls but has not
/// answered one yet is not reported as answering.
const fn state(route: &RouteState) -> &'static str {
    match route.breaker {
        BreakerState::Open => "shut",
        BreakerState::HalfOpen => "trying",
        _ if route.rests_for.is_some() => "resting",
        // No first byte was ever measured, so the vendor has not answered any call.
        _ if route.first_byte.is_none() && route.last_error.is_some() => "failing",
        _ if route.first_byte.is_none() => "untried",
        _ => "answering",
    }
}

/// Describes a vendor's failure by its status, so that a misspelt model name is not mistaken for an outage.
fn words(status: Option<StatusCode>) -> String {
    let Some(status) = status else {
        return "no answer".into();
    };
    let what = match status.as_u16() {
        401 | 402 => "gateway's key refused",
        403 => "forbidden",
        404 => "model not found",
        429 => "vendor at its limit",
        _ => "failed",
    };
    format!("{what} ({})", status.as_u16())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn vendor_list_shows_the_state_and_failures_and_latency_of_each_vendor() {
        let mut route = RouteState {
            model: "m-1".into(),
            breaker: BreakerState::Open,
            model_unknown: false,
            failures: 5,
            in_flight: 2,
            first_byte: Some(Duration::from_micros(1_234_567)),
            open_for: Some(Duration::from_secs(4)),
            rests_for: None,
            last_error: Some(LastError {
                ago: Duration::from_secs(1),
                status: Some(StatusCode::NOT_FOUND),
            }),
        };
        assert_eq!(state(&route), "shut");
        route.breaker = BreakerState::HalfOpen;
        assert_eq!(state(&route), "trying");
        route.breaker = BreakerState::Closed;
        assert_eq!(state(&route), "answering");
        route.rests_for = Some(Duration::from_secs(1));
        assert_eq!(state(&route), "resting");
        (route.rests_for, route.first_byte) = (None, None);
        assert_eq!(state(&route), "failing", "our key was refused");
        let refused = route.last_error.take();
        assert_eq!(state(&route), "untried");
        (route.last_error, route.first_byte) = (refused, Some(Duration::from_micros(1_234_567)));
        (route.breaker, route.rests_for) = (BreakerState::Open, None);
        let mut vendor = VendorState {
            name: "a".into(),
            disabled: true,
            in_flight: 3,
            connections_max: 1024,
            keys: 2,
            keys_parked: 1,
            routes: vec![route],
        };
        let shown = serde_json::to_value(VendorAnswer::new(&vendor, 1_000)).unwrap();
        assert_eq!(
            shown,
            json!({
                "name": "a", "status": "disabled", "in_flight": 3, "connections_max": 1024,
                "keys": 2, "keys_parked": 1,
                "routes": [{
                    "model": "m-1", "state": "disabled", "failures": 5, "in_flight": 2, "ewma_ms": 1234,
                    "shut_until": "1970-01-01T00:00:05Z", "rests_until": null,
                    "last_error": {
                        "at": "1970-01-01T00:00:00Z", "status": 404, "text": "model not found (404)",
                    },
                }],
            })
        );
        vendor.disabled = false;
        let shown = serde_json::to_value(VendorAnswer::new(&vendor, 1_000)).unwrap();
        assert_eq!(shown["routes"][0]["state"], "shut");
    }

    #[test]
    fn last_error_of_a_vendor_is_shown_as_text() {
        for (status, reported) in [
            (Some(404), "model not found (404)"),
            (Some(429), "vendor at its limit (429)"),
            (Some(402), "gateway's key refused (402)"),
            (Some(403), "forbidden (403)"),
            (Some(529), "failed (529)"),
            (None, "no answer"),
        ] {
            let status = status.map(|status| StatusCode::from_u16(status).unwrap());
            assert_eq!(words(status), reported);
        }
    }

    #[test]
    fn any_vendor_name_can_be_a_path_segment() {
        for (name, segment) in [
            ("openai-eu_2.b~c", "openai-eu_2.b~c"),
            ("a b/c%?#", "a%20b%2Fc%25%3F%23"),
            ("мир", "%D0%BC%D0%B8%D1%80"),
        ] {
            assert_eq!(percent::encoded(name), segment);
            assert_eq!(percent::decoded(segment).as_deref(), Some(name));
        }
        for none in ["%", "%2", "%zz", "%FF"] {
            assert_eq!(percent::decoded(none), None, "{none}");
        }
    }

    #[test]
    fn vendor_status_is_active_or_disabled() {
        let enabled = either(STATUSES);
        assert_eq!(enabled(&json!("active")), Ok(true));
        assert_eq!(enabled(&json!("disabled")), Ok(false));
        for other in [json!("off"), json!(true), json!(null)] {
            assert!(enabled(&other).is_err(), "{other}");
        }
    }
}

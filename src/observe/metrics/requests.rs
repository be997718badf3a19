//! Counters and durations of requests, by path. Every request uses them, so this module does not allocate for a series
//! that exists already.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::families::{Histograms, WordLabel, histograms};
use crate::{
    edge::routes::{Route, Routes},
    text::words::words,
};

/// Upper bounds of buckets, in seconds, for the time to the head of a response. The catalog answers fastest, a slowly
/// thinking model last.
pub(super) const HEAD_SECONDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
];
/// Upper bounds of buckets, in seconds, for the part of the time to a response's head that the gateway itself takes.
const OVERHEAD_SECONDS: [f64; 13] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
];
/// Upper bounds of buckets, in seconds, for the time from a response's head to the end of its body. For streams this
/// time is long.
const ANSWER_SECONDS: [f64; 13] = [
    0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
];

/// The status under which a request is counted if its client disconnects before the head of the response.
pub(crate) const CLIENT_LEFT: u16 = 499;

/// All statuses that the gateway sends. Any other status would be counted as `other`.
const STATUSES: [u16; 23] = [
    200, 204, 304, 400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 422, 429, 431, 451, 499, 500,
    501, 502, 503, 504,
];

/// The path of a request, as it is counted and logged: a route, or `None` for every path that is not a route.
pub(crate) type PathLabel = Option<Route>;

/// The label for all paths that are not routes, and for all statuses that are not in [`STATUSES`].
const OTHER: &str = "other";

words! {
    /// The kind of limit because of which a request was refused with 429.
    pub(crate) enum LimitedBy {
        Address = "address",
        Key = "key",
        Catalog = "catalog",
        UnknownKey = "unknown_key",
        AdminKey = "admin_key",
        Vendor = "vendor",
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PathStatus {
    path: Arc<str>,
    status: String,
}

/// Counters and durations of requests, by path.
#[derive(Debug)]
pub(crate) struct Requests {
    routes: Routes,
    /// The counters of each path, indexed by the path's route.
    paths: [PathCounts; Route::ALL.len()],
    others: PathCounts,
    requests: Family<PathStatus, Counter>,
    first_byte: Histograms,
    overhead: Histograms,
    answer: Histograms,
    refusals: Family<WordLabel, Counter>,
    limited: Family<WordLabel, Counter>,
    /// Number of requests refused with 503 because no permit of `in_flight` was free.
    pub(crate) shed: Counter,
    pub(crate) in_flight: Gauge,
}

/// The series of one path, looked up once.
#[derive(Debug)]
struct PathCounts {
    path: Arc<str>,
    /// The request counters of one path: one for each of [`STATUSES`], in that order, and one for all other statuses.
    requests: [OnceLock<Counter>; STATUSES.len() + 1],
    first_byte: OnceLock<Histogram>,
    overhead: OnceLock<Histogram>,
    answer: OnceLock<Histogram>,
}

impl PathCounts {
    fn new(path: impl Into<Arc<str>>) -> Self {
        Self {
            path: path.into(),
            requests: [const { OnceLock::new() }; STATUSES.len() + 1],
            first_byte: OnceLock::new(),
            overhead: OnceLock::new(),
            answer: OnceLock::new(),
        }
    }

    /// Returns the path's histogram in `family`, which `known` keeps.
    fn histogram<'a>(&self, known: &'a OnceLock<Histogram>, family: &Histograms) -> &'a Histogram {
        known.get_or_init(|| family.get_or_create_owned(&[("path", Arc::clone(&self.path))]))
    }
}

impl Requests {
    /// Registers the counters of requests. `service` is the service's path segment.
    pub(super) fn register(registry: &mut Registry, service: &str) -> Self {
        let requests = Self {
            routes: Routes::new(service),
            paths: Route::ALL.map(|route| PathCounts::new(route.path(service))),
            others: PathCounts::new(OTHER),
            requests: Family::default(),
            first_byte: histograms(|| Histogram::new(HEAD_SECONDS)),
            overhead: histograms(|| Histogram::new(OVERHEAD_SECONDS)),
            answer: histograms(|| Histogram::new(ANSWER_SECONDS)),
            refusals: Family::default(),
            limited: Family::default(),
            shed: Counter::default(),
            in_flight: Gauge::default(),
        };
        series! { registry, requests:
            requests "tollgate_requests" "Requests by path and status of the answer; 499 if the client left before the answer";
            refusals "tollgate_refusals" "Refused requests, by the code of the refusal";
            first_byte "tollgate_first_byte_seconds" "Time from a request's head to the head of its successful answer";
            overhead "tollgate_own_seconds" "Time from a call's head to its first request to a vendor, without the time in which the call's body arrived";
            answer "tollgate_answer_seconds" "Time from the head of a successful answer to the end of its body";
            shed "tollgate_shed" "Requests refused with 503 because limits.in_flight_max requests were in flight already";
            limited "tollgate_limited" "Requests refused with 429, by the limit exceeded";
            in_flight "tollgate_in_flight" "Requests in flight, until the end of their answers";
        }
        // These series exist from the start with value zero: if a series begins at one, Prometheus's `rate()` misses
        // its first increment.
        for label in [Some(Route::Chat), Some(Route::Messages)] {
            let _ = requests.counter(label, 200);
            let _ = requests.first_byte(label);
            let _ = requests.answer(label);
            let _ = requests.overhead(label);
        }
        for by in LimitedBy::ALL {
            let _ = requests.limited(by);
        }
        requests
    }

    /// Returns the label under which a request's path is counted.
    pub(crate) fn label(&self, path: &str) -> PathLabel {
        self.routes.find(path)
    }

    /// Returns the text of a path label.
    pub(crate) fn path(&self, label: PathLabel) -> &str {
        &self.counts(label).path
    }

    fn counts(&self, label: PathLabel) -> &PathCounts {
        label.map_or(&self.others, |route| &self.paths[route as usize])
    }

    /// Counts a request that has ended with this status. If the response was successful, also records the time to its
    /// head, and the time from its head to its end.
    pub(crate) fn ended(&self, label: PathLabel, status: u16, times: Option<(Duration, Duration)>) {
        self.counter(label, status).inc();
        if let Some((head, answer)) = times {
            self.first_byte(label).observe(head.as_secs_f64());
            self.answer(label).observe(answer.as_secs_f64());
        }
    }

    /// Records how long the gateway itself took before it sent the call to its first vendor.
    pub(crate) fn sent(&self, label: PathLabel, overhead: Duration) {
        self.overhead(label).observe(overhead.as_secs_f64());
    }

    pub(crate) fn refused(&self, code: &'static str) {
        self.refusals.get_or_create(&[("code", code)]).inc();
    }

    pub(crate) fn limited(&self, by: LimitedBy) -> Counter {
        self.limited.get_or_create_owned(&[("by", by.as_str())])
    }

    fn counter(&self, label: PathLabel, status: u16) -> &Counter {
        let found = STATUSES.iter().position(|known| *known == status);
        let index = found.unwrap_or(STATUSES.len());
        let counts = self.counts(label);
        counts.requests[index].get_or_init(|| {
            let labels = PathStatus {
                path: Arc::clone(&counts.path),
                status: found.map_or_else(|| OTHER.to_owned(), |_| status.to_string()),
            };
            self.requests.get_or_create(&labels).clone()
        })
    }

    fn first_byte(&self, label: PathLabel) -> &Histogram {
        let counts = self.counts(label);
        counts.histogram(&counts.first_byte, &self.first_byte)
    }

    fn overhead(&self, label: PathLabel) -> &Histogram {
        let counts = self.counts(label);
        counts.histogram(&counts.overhead, &self.overhead)
    }

    fn answer(&self, label: PathLabel) -> &Histogram {
        let counts = self.counts(label);
        counts.histogram(&counts.answer, &self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Requests {
        Requests::register(&mut Registry::default(), "tollgate")
    }

    #[test]
    fn each_path_has_its_own_metric_label_and_unknown_paths_share_one() {
        let requests = requests();
        let label = |path: &str| requests.path(requests.label(path)).to_owned();
        for route in Route::ALL {
            let path = route.path("tollgate");
            assert_eq!(label(&path), path);
        }
        for (path, expected) in [
            (
                "/v1/tollgate/receipts/01a1f9e4",
                "/v1/tollgate/receipts/{number}",
            ),
            ("/v1/tollgate/connect/zed", "/v1/tollgate/connect/{client}"),
            ("/v1/models/m", "/v1/models/{model}"),
            ("/v1/models/a/b", "/v1/models/{model}"),
        ] {
            assert_eq!(label(path), expected);
        }
        for unknown in ["", "/v1/other/models", "/v1/tollgate/", "/v1/messages/"] {
            assert_eq!(label(unknown), "other", "{unknown}");
        }
    }

    #[test]
    fn statuses_that_the_gateway_never_returns_share_one_metric_label() {
        let requests = requests();
        let label = requests.label("/");
        for status in [100, 299, 599] {
            requests.ended(label, status, None);
        }
        assert_eq!(requests.counter(label, 1).get(), 3);
        assert_eq!(requests.counter(label, 200).get(), 0);
    }
}

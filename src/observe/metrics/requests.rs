//! Counters of requests by path: outcomes and durations. They are used for every request, so nothing here allocates
//! once a series exists.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::histograms::histograms;
use crate::edge::routes::{Route, Routes};

/// Buckets, in seconds, for the time to an answer's head. The catalog answers fastest, a model that thinks slowest.
pub(super) const HEAD_SECONDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
];
/// Buckets, in seconds, for the part of the time to an answer's head that the gateway itself takes.
const OVERHEAD_SECONDS: [f64; 13] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
];
/// Buckets, in seconds, for the time from the head to the end of a body, which is long for streams.
const ANSWER_SECONDS: [f64; 13] = [
    0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
];

/// Status counted for a request whose client disconnected before the head of the answer.
pub(crate) const CLIENT_LEFT: u16 = 499;

/// All statuses that the gateway sends; any other status is counted as the last entry.
const STATUSES: [(u16, &str); 24] = [
    (200, "200"),
    (204, "204"),
    (304, "304"),
    (400, "400"),
    (401, "401"),
    (403, "403"),
    (404, "404"),
    (405, "405"),
    (408, "408"),
    (409, "409"),
    (413, "413"),
    (414, "414"),
    (415, "415"),
    (422, "422"),
    (429, "429"),
    (431, "431"),
    (451, "451"),
    (CLIENT_LEFT, "499"),
    (500, "500"),
    (501, "501"),
    (502, "502"),
    (503, "503"),
    (504, "504"),
    (0, "other"),
];

/// A path as it is counted and logged: a route, or `None` for all other paths together.
pub(crate) type PathLabel = Option<Route>;

/// Label of the paths that are not in the table.
const OTHER: &str = "other";

/// The limit that made a request fail with 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LimitedBy {
    Address,
    Key,
    Catalog,
    UnknownKey,
    AdminKey,
    Vendor,
}

impl LimitedBy {
    const ALL: [Self; 6] = [
        Self::Address,
        Self::Key,
        Self::Catalog,
        Self::UnknownKey,
        Self::AdminKey,
        Self::Vendor,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Key => "key",
            Self::Catalog => "catalog",
            Self::UnknownKey => "unknown_key",
            Self::AdminKey => "admin_key",
            Self::Vendor => "vendor",
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PathStatus {
    path: Arc<str>,
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Path {
    path: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Code {
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct By {
    by: &'static str,
}

/// The counters of requests.
#[derive(Debug)]
pub(crate) struct Requests {
    routes: Routes,
    /// The counters, indexed by the route.
    paths: [PathCounts; Route::ALL.len()],
    others: PathCounts,
    requests: Family<PathStatus, Counter>,
    first_byte: Family<Path, Histogram>,
    overhead: Family<Path, Histogram>,
    answer: Family<Path, Histogram>,
    refusals: Family<Code, Counter>,
    limited: Family<By, Counter>,
    /// The number of requests that got 503 because no permit was free.
    pub(crate) shed: Counter,
    pub(crate) in_flight: Gauge,
}

/// The series of a path, looked up once.
#[derive(Debug)]
struct PathCounts {
    path: Arc<str>,
    requests: [OnceLock<Counter>; STATUSES.len()],
    first_byte: OnceLock<Histogram>,
    overhead: OnceLock<Histogram>,
    answer: OnceLock<Histogram>,
}

impl PathCounts {
    fn new(path: impl Into<Arc<str>>) -> Self {
        Self {
            path: path.into(),
            requests: [const { OnceLock::new() }; STATUSES.len()],
            first_byte: OnceLock::new(),
            overhead: OnceLock::new(),
            answer: OnceLock::new(),
        }
    }

    fn label(&self) -> Path {
        Path {
            path: Arc::clone(&self.path),
        }
    }
}

impl Requests {
    /// Registers the counters. `service` is the service's path segment.
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
        requests.names(registry);
        // These series are created at zero, because a rate misses the first increment of a series that did not exist.
        for label in [Some(Route::Chat), Some(Route::Messages)] {
            let _ = requests.counter(label, 200);
            let _ = requests.histograms(label);
            let _ = requests.overhead_histogram(label);
        }
        for by in LimitedBy::ALL {
            let _ = requests.limited(by);
        }
        requests
    }

    fn names(&self, registry: &mut Registry) {
        series! { registry, self:
            requests "tollgate_requests" "Requests by path and status of the answer; 499 if the client left before the answer";
            refusals "tollgate_refusals" "Refused requests, by the code of the refusal";
            first_byte "tollgate_first_byte_seconds" "Time from a request's head to the head of its successful answer";
            overhead "tollgate_own_seconds" "Time from a call's head to its first request to a vendor, without the time in which its body arrived";
            answer "tollgate_answer_seconds" "Time from the head of a successful answer to the end of its body";
            shed "tollgate_shed" "Requests refused with 503 because limits.in_flight_max requests were in flight already";
            limited "tollgate_limited" "Requests refused with 429, by the limit exceeded";
            in_flight "tollgate_in_flight" "Requests in flight, until the end of their answers";
        }
    }

    /// Returns the label of a request's path.
    pub(crate) fn label(&self, path: &str) -> PathLabel {
        self.routes.find(path)
    }

    /// Returns the label as text.
    pub(crate) fn path(&self, label: PathLabel) -> &str {
        &self.counts(label).path
    }

    fn counts(&self, label: PathLabel) -> &PathCounts {
        label.map_or(&self.others, |route| &self.paths[route as usize])
    }

    /// Counts the end of a request with its status. For a successful answer, also records the time to its head, and the
    /// time from the head to the end.
    pub(crate) fn ended(&self, label: PathLabel, status: u16, times: Option<(Duration, Duration)>) {
        self.counter(label, status).inc();
        if let Some((head, answer)) = times {
            let (first_byte, whole) = self.histograms(label);
            first_byte.observe(head.as_secs_f64());
            whole.observe(answer.as_secs_f64());
        }
    }

    /// Counts a call sent to its first vendor, with the time that the gateway itself took.
    pub(crate) fn sent(&self, label: PathLabel, overhead: Duration) {
        self.overhead_histogram(label)
            .observe(overhead.as_secs_f64());
    }

    pub(crate) fn refused(&self, code: &'static str) {
        self.refusals.get_or_create(&Code { code }).inc();
    }

    pub(crate) fn limited(&self, by: LimitedBy) -> Counter {
        let by = By { by: by.as_str() };
        self.limited.get_or_create(&by).clone()
    }

    fn counter(&self, label: PathLabel, status: u16) -> &Counter {
        let found = STATUSES.iter().position(|(known, _)| *known == status);
        let index = found.unwrap_or(STATUSES.len() - 1);
        let counts = self.counts(label);
        counts.requests[index].get_or_init(|| {
            let labels = PathStatus {
                path: Arc::clone(&counts.path),
                status: STATUSES[index].1,
            };
            self.requests.get_or_create(&labels).clone()
        })
    }

    fn overhead_histogram(&self, label: PathLabel) -> &Histogram {
        let counts = self.counts(label);
        counts
            .overhead
            .get_or_init(|| self.overhead.get_or_create(&counts.label()).clone())
    }

    fn histograms(&self, label: PathLabel) -> (&Histogram, &Histogram) {
        let counts = self.counts(label);
        let first_byte = counts
            .first_byte
            .get_or_init(|| self.first_byte.get_or_create(&counts.label()).clone());
        let answer = counts
            .answer
            .get_or_init(|| self.answer.get_or_create(&counts.label()).clone());
        (first_byte, answer)
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
        for known in [
            "/v1/chat/completions",
            "/v1/messages",
            "/v1/responses",
            "/v1/messages/count_tokens",
            "/v1/models",
            "/v1/tollgate/models",
            "/v1/tollgate/key",
            "/v1/tollgate/estimate",
            "/",
            "/openapi.yaml",
            "/api/hello",
        ] {
            assert_eq!(label(known), known);
        }
        let receipt = "/v1/tollgate/receipts/01a1f9e4-2e1f-777c-a089-775322c8110e";
        assert_eq!(label(receipt), "/v1/tollgate/receipts/{number}");
        assert_eq!(label("/v1/tollgate/connect"), "/v1/tollgate/connect");
        let client = "/v1/tollgate/connect/zed";
        assert_eq!(label(client), "/v1/tollgate/connect/{client}");
        for model in ["/v1/models/m", "/v1/models/a/b"] {
            assert_eq!(label(model), "/v1/models/{model}");
        }
        for unknown in ["", "/v1/other/models", "/v1/tollgate/", "/v1/messages/"] {
            assert_eq!(label(unknown), "other", "{unknown}");
        }
    }

    #[test]
    fn statuses_that_the_gateway_never_sends_share_one_metric_label() {
        let requests = requests();
        let label = requests.label("/");
        for status in [100, 299, 599] {
            requests.ended(label, status, None);
        }
        assert_eq!(requests.counter(label, 1).get(), 3);
        assert_eq!(requests.counter(label, 200).get(), 0);
    }
}

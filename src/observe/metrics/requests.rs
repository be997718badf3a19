//! Requests by path: how they ended and how long they took. On the way of every request, so nothing here
//! allocates once a series is there.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::histograms;
use crate::endpoints::{openapi, router::HELLO};

/// To the head of an answer: from the catalog's to that of a model that thinks first.
pub(super) const HEAD_SECONDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
];
/// Our own part of it.
const OVERHEAD_SECONDS: [f64; 13] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
];
/// From the head to the end of a body, which for a stream may be long.
const ANSWER_SECONDS: [f64; 13] = [
    0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
];

/// What a request whose client left before the head of the answer is counted as.
pub(crate) const CLIENT_LEFT: u16 = 499;

/// All that is answered; whatever else it might be is the last one.
const STATUSES: [(u16, &str); 22] = [
    (200, "200"),
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
    (CLIENT_LEFT, "499"),
    (500, "500"),
    (501, "501"),
    (502, "502"),
    (503, "503"),
    (504, "504"),
    (0, "other"),
];

/// A path as it is counted and logged: those of the API, and one for all others.
///
/// [`PathLabel::pattern`] is the one table of them. A number of its own is what each is made into here and nowhere
/// else, so that no two share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathLabel {
    Chat,
    Messages,
    Responses,
    CountTokens,
    Embeddings,
    Models,
    Model,
    Catalog,
    KeyInfo,
    Estimate,
    Receipt,
    Receipts,
    Spending,
    Payments,
    AutoTopup,
    Notification,
    OwnKeys,
    OwnKey,
    Page,
    UsagePage,
    UsagePageFile,
    OpenApi,
    Connect,
    ConnectClient,
    Hello,
    Other,
}

/// How a path is written, and its label. From a brace on, any text stands there.
enum Pattern {
    Whole(&'static str),
    /// Behind `/v1/<service>/`.
    OfService(&'static str),
    /// Whatever no other pattern fits.
    Rest(&'static str),
}

impl PathLabel {
    const COUNT: usize = Self::Other as usize + 1;

    /// Each at its own number. Calls stand first: they are looked for first.
    const ALL: [Self; Self::COUNT] = [
        Self::Chat,
        Self::Messages,
        Self::Responses,
        Self::CountTokens,
        Self::Embeddings,
        Self::Models,
        Self::Model,
        Self::Catalog,
        Self::KeyInfo,
        Self::Estimate,
        Self::Receipt,
        Self::Receipts,
        Self::Spending,
        Self::Payments,
        Self::AutoTopup,
        Self::Notification,
        Self::OwnKeys,
        Self::OwnKey,
        Self::Page,
        Self::UsagePage,
        Self::UsagePageFile,
        Self::OpenApi,
        Self::Connect,
        Self::ConnectClient,
        Self::Hello,
        Self::Other,
    ];

    const fn pattern(self) -> Pattern {
        match self {
            Self::Chat => Pattern::Whole("/v1/chat/completions"),
            Self::Messages => Pattern::Whole("/v1/messages"),
            Self::Responses => Pattern::Whole("/v1/responses"),
            Self::CountTokens => Pattern::Whole("/v1/messages/count_tokens"),
            Self::Embeddings => Pattern::Whole("/v1/embeddings"),
            Self::Models => Pattern::Whole("/v1/models"),
            Self::Model => Pattern::Whole("/v1/models/{model}"),
            Self::Catalog => Pattern::OfService("models"),
            Self::KeyInfo => Pattern::OfService("key"),
            Self::Estimate => Pattern::OfService("estimate"),
            Self::Receipt => Pattern::OfService("receipts/{number}"),
            Self::Receipts => Pattern::OfService("receipts"),
            Self::Spending => Pattern::OfService("usage"),
            Self::Payments => Pattern::OfService("payments"),
            Self::AutoTopup => Pattern::OfService("payments/auto"),
            Self::Notification => Pattern::Whole("/payments/{provider}"),
            Self::OwnKeys => Pattern::OfService("keys"),
            Self::OwnKey => Pattern::OfService("keys/{key}"),
            Self::Page => Pattern::Whole("/"),
            Self::UsagePage => Pattern::Whole("/usage"),
            Self::UsagePageFile => Pattern::Whole("/usage/{file}"),
            Self::OpenApi => Pattern::Whole(openapi::PATH),
            Self::Connect => Pattern::OfService("connect"),
            Self::ConnectClient => Pattern::OfService("connect/{client}"),
            Self::Hello => Pattern::Whole(HELLO),
            Self::Other => Pattern::Rest("other"),
        }
    }

    /// Whether it is one where models are asked.
    pub(crate) const fn is_of_calls(self) -> bool {
        self.is_of_inference() || matches!(self, Self::CountTokens)
    }

    /// Whether it is one where they answer.
    pub(crate) const fn is_of_inference(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Messages | Self::Responses | Self::Embeddings
        )
    }
}

const _: () = {
    let mut number = 0;
    while number < PathLabel::COUNT {
        assert!(
            PathLabel::ALL[number] as usize == number,
            "ALL stands in another order than the enum"
        );
        number += 1;
    }
};

/// Who let a request wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LimitedBy {
    Address,
    Key,
    Catalog,
    UnknownKey,
    Vendor,
}

impl LimitedBy {
    const ALL: [Self; 5] = [
        Self::Address,
        Self::Key,
        Self::Catalog,
        Self::UnknownKey,
        Self::Vendor,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Key => "key",
            Self::Catalog => "catalog",
            Self::UnknownKey => "unknown_key",
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
    /// At the number of their label.
    paths: [PathCounts; PathLabel::COUNT],
    requests: Family<PathStatus, Counter>,
    first_byte: Family<Path, Histogram>,
    overhead: Family<Path, Histogram>,
    answer: Family<Path, Histogram>,
    refusals: Family<Code, Counter>,
    limited: Family<By, Counter>,
    /// 503 for want of a permit.
    pub(crate) shed: Counter,
    pub(crate) in_flight: Gauge,
}

/// The series of a path, each found once.
#[derive(Debug)]
struct PathCounts {
    path: Arc<str>,
    /// Where it is open: how much of it a path begins with.
    fixed: Option<usize>,
    requests: [OnceLock<Counter>; STATUSES.len()],
    first_byte: OnceLock<Histogram>,
    overhead: OnceLock<Histogram>,
    answer: OnceLock<Histogram>,
}

impl PathCounts {
    fn new(pattern: &Pattern, service: &str) -> Self {
        let path: Arc<str> = match pattern {
            Pattern::Whole(path) | Pattern::Rest(path) => Arc::from(*path),
            Pattern::OfService(path) => format!("/v1/{service}/{path}").into(),
        };
        Self {
            fixed: path.find('{'),
            path,
            requests: [const { OnceLock::new() }; STATUSES.len()],
            first_byte: OnceLock::new(),
            overhead: OnceLock::new(),
            answer: OnceLock::new(),
        }
    }

    /// Whether the path is this one, or one of these.
    fn fits(&self, path: &str) -> bool {
        match self.fixed {
            None => *self.path == *path,
            Some(end) => path.starts_with(&self.path[..end]),
        }
    }

    fn label(&self) -> Path {
        Path {
            path: Arc::clone(&self.path),
        }
    }
}

impl Requests {
    /// `service` is the path segment that names the service.
    pub(super) fn register(registry: &mut Registry, service: &str) -> Self {
        let requests = Self {
            paths: PathLabel::ALL.map(|label| PathCounts::new(&label.pattern(), service)),
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
        // A rate of what is not there yet misses the first one.
        for label in [PathLabel::Chat, PathLabel::Messages] {
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
        registry.register(
            "tollgate_requests",
            "Requests by path and by the status of their answer; 499 where the client left before it",
            self.requests.clone(),
        );
        registry.register(
            "tollgate_refusals",
            "Requests that were refused, by the code of the refusal",
            self.refusals.clone(),
        );
        registry.register(
            "tollgate_first_byte_seconds",
            "From a request's head to the head of its answer, where that is a good one",
            self.first_byte.clone(),
        );
        registry.register(
            "tollgate_own_seconds",
            "From a call's head to its being sent to a vendor, less the time that its body took to come",
            self.overhead.clone(),
        );
        registry.register(
            "tollgate_answer_seconds",
            "From the head of a good answer to the end of its body",
            self.answer.clone(),
        );
        registry.register(
            "tollgate_shed",
            "Requests refused with 503 because limits.in_flight_max are under way",
            self.shed.clone(),
        );
        registry.register(
            "tollgate_limited",
            "Requests refused with 429, by whose limit it was",
            self.limited.clone(),
        );
        registry.register(
            "tollgate_in_flight",
            "Requests under way, answers to their ends",
            self.in_flight.clone(),
        );
    }

    /// The label of a request's path.
    pub(crate) fn label(&self, path: &str) -> PathLabel {
        let all = PathLabel::ALL;
        all.into_iter()
            .find(|label| self.paths[*label as usize].fits(path))
            .unwrap_or(PathLabel::Other)
    }

    /// The label as text.
    pub(crate) fn path(&self, label: PathLabel) -> &str {
        &self.paths[label as usize].path
    }

    /// A request has ended: with this status, and a good answer's times to its head and from there on.
    pub(crate) fn ended(&self, label: PathLabel, status: u16, times: Option<(Duration, Duration)>) {
        self.counter(label, status).inc();
        if let Some((head, answer)) = times {
            let (first_byte, whole) = self.histograms(label);
            first_byte.observe(head.as_secs_f64());
            whole.observe(answer.as_secs_f64());
        }
    }

    /// A call is sent to its first vendor, after so much of our own time.
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
        let counts = &self.paths[label as usize];
        counts.requests[index].get_or_init(|| {
            let labels = PathStatus {
                path: Arc::clone(&counts.path),
                status: STATUSES[index].1,
            };
            self.requests.get_or_create(&labels).clone()
        })
    }

    fn overhead_histogram(&self, label: PathLabel) -> &Histogram {
        let counts = &self.paths[label as usize];
        counts
            .overhead
            .get_or_init(|| self.overhead.get_or_create(&counts.label()).clone())
    }

    fn histograms(&self, label: PathLabel) -> (&Histogram, &Histogram) {
        let counts = &self.paths[label as usize];
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
    fn each_path_has_its_label_and_unknown_ones_share_one() {
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
    fn no_two_labels_are_of_the_same_path() {
        let requests = requests();
        for label in PathLabel::ALL {
            assert_eq!(requests.label(requests.path(label)), label);
        }
    }

    #[test]
    fn a_status_that_is_never_answered_has_no_label_of_its_own() {
        let requests = requests();
        let label = requests.label("/");
        for status in [100, 299, 599] {
            requests.ended(label, status, None);
        }
        assert_eq!(requests.counter(label, 1).get(), 3);
        assert_eq!(requests.counter(label, 200).get(), 0);
    }
}

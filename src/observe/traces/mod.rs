//! Traces: decides which calls are traced, records the attempts of these calls, and exports their spans to a collector.
//!
//! A traced call carries a [`Trail`]. When the call has ended, `record::spans` builds the call's spans from the trail
//! and the record. The spans are put into a queue, and [`exporter`] sends them in batches. If the queue is full, new
//! spans are dropped.
//!
//! The OpenTelemetry crates are not used. Even with only its feature `http-json`, `opentelemetry-otlp` adds 11 crates
//! (one is prost, which JSON does not need), and would replace only [`otlp`] and [`exporter`].

mod exporter;
pub(crate) mod otlp;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, Method, Request};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tollgate_layers::{
    call::Call,
    model::{ModelKind, Route},
};
use tollgate_ledger::number::RequestNumber;

pub(crate) use self::exporter::Exporter;
use self::{exporter::Item, otlp::Span};
use crate::config::Config;

/// Maximum number of traced calls whose spans wait in the queue.
const QUEUE_CALLS_MAX: usize = 2_048;

/// The header of W3C Trace Context, level 1, which names the caller's trace and span.
const TRACEPARENT: &str = "traceparent";
/// The bit "sampled" in the flags of a `traceparent` header.
const SAMPLED: u8 = 1;
/// The number of random bits at the end of a trace id (W3C Trace Context, level 2).
const RANDOM_BITS: u32 = 56;

const MILLION: u64 = 1_000_000;

/// Starts the export of traces; `None` if the configuration has no section `[traces]`. `dropped` counts the calls whose
/// spans are dropped.
pub(crate) fn start(config: &Config, dropped: &Counter) -> Option<(Traces, Exporter)> {
    let traces = config.traces.as_ref()?;
    let (queue, waiting) = mpsc::channel(QUEUE_CALLS_MAX);
    let end = queue.clone();
    let exporter = Exporter::start(traces, &config.service, end, waiting, dropped.clone());
    let traces = Traces {
        queue,
        random_min: random_min(traces.calls_per_million),
        dropped: dropped.clone(),
    };
    Some((traces, exporter))
}

/// Selects the calls to trace, and queues their spans for the collector.
pub(crate) struct Traces {
    queue: mpsc::Sender<Item>,
    /// A trace is sampled only if the random part of its id is at least this number.
    random_min: u64,
    dropped: Counter,
}

impl Traces {
    /// Returns the trail of a request, if the request must be traced. If the caller's flags are "not sampled", the
    /// request is not traced. If the flags are "sampled", the share that the operator configured still decides.
    pub(crate) fn begin<B>(&self, number: RequestNumber, req: &Request<B>) -> Option<Trail> {
        if req.method() != Method::POST {
            return None;
        }
        let own = number.uuid().as_u128();
        let parent = Parent::from_headers(req.headers());
        let trace_id = parent.as_ref().map_or(own, |parent| parent.trace_id);
        if parent.as_ref().is_some_and(|parent| !parent.is_sampled)
            || random_bits(trace_id) < self.random_min
        {
            return None;
        }
        Some(Trail {
            trace_id,
            parent: parent.map(|parent| parent.span_id),
            // The span id is never zero, because it contains the variant bits of a UUID.
            span_id: low(own),
            began: SystemTime::now(),
            output_tokens_max: None,
            kind: ModelKind::default(),
            attempts: Vec::new(),
        })
    }

    /// Queues the spans of a call, or drops them if the queue is full.
    pub(crate) fn send(&self, spans: Vec<Span>) {
        if self.queue.try_send(Item::Call(spans)).is_err() {
            self.dropped.inc();
        }
    }
}

/// The tracing state of a traced call. Calls that are not traced have none.
pub(crate) struct Trail {
    /// The caller's trace id; without one, the request number.
    pub(crate) trace_id: u128,
    /// The id of the caller's span, if the caller sent one.
    pub(crate) parent: Option<u64>,
    /// The id of the request's span. The ids of the attempts' spans are the next numbers after it.
    pub(crate) span_id: u64,
    pub(crate) began: SystemTime,
    /// The output limit in the request, in tokens.
    pub(crate) output_tokens_max: Option<u64>,
    kind: ModelKind,
    pub(crate) attempts: Vec<AttemptMade>,
}

/// An attempt at a vendor, with times since the call began.
pub(crate) struct AttemptMade {
    pub(crate) route: Arc<Route>,
    pub(crate) began: Duration,
    /// Error code and time of the failure; `None` if the attempt was answered or dropped.
    pub(crate) failed: Option<(&'static str, Duration)>,
}

impl Trail {
    pub(crate) fn parsed(&mut self, call: &Call) {
        self.output_tokens_max = call.output_tokens.filter(|max| *max > 0);
        self.kind = call.kind;
    }

    /// Returns the name of the operation in OpenTelemetry's semantic conventions.
    pub(crate) const fn operation(&self) -> &'static str {
        match self.kind {
            ModelKind::Embedding => "embeddings",
            _ => "chat",
        }
    }

    pub(crate) fn attempt(&mut self, route: &Arc<Route>, at: Duration) {
        self.attempts.push(AttemptMade {
            route: Arc::clone(route),
            began: at,
            failed: None,
        });
    }

    /// Records that the last attempt has failed.
    pub(crate) fn attempt_failed(&mut self, code: &'static str, at: Duration) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.failed = Some((code, at));
        }
    }
}

/// The trace and span of the caller, from the header `traceparent: 00-<trace>-<span>-<flags>`.
#[derive(Debug, PartialEq, Eq)]
struct Parent {
    trace_id: u128,
    span_id: u64,
    is_sampled: bool,
}

impl Parent {
    /// Parses the header `traceparent`. If a request has several such headers, all are ignored.
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all(TRACEPARENT).iter();
        let one = given.next()?.to_str().ok()?;
        given.next().is_none().then(|| Self::parse(one)).flatten()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version = hex(parts.next()?, 2)?;
        let trace_id = hex(parts.next()?, 32)?;
        let span_id = low(hex(parts.next()?, 16)?);
        let flags = low(hex(parts.next()?, 2)?);
        // Later versions of the header may append further fields.
        let is_whole = parts.next().is_none() || version > 0;
        (is_whole && version != 0xff && trace_id != 0 && span_id != 0).then_some(Self {
            trace_id,
            span_id,
            is_sampled: flags & u64::from(SAMPLED) != 0,
        })
    }
}

/// Parses a lowercase hexadecimal number of exactly `digits` digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != digits || !text.bytes().all(is_digit) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

const fn low(number: u128) -> u64 {
    (number & u64::MAX as u128) as u64
}

const fn random_bits(trace_id: u128) -> u64 {
    low(trace_id) & ((1 << RANDOM_BITS) - 1)
}

/// Returns the smallest random part with which a trace is sampled. Of a million random parts that are evenly
/// distributed, `of_million` parts are at least this number, so `of_million` traces are sampled.
fn random_min(of_million: u32) -> u64 {
    let left_out = u128::from(MILLION.saturating_sub(of_million.into()));
    low((left_out << RANDOM_BITS) / u128::from(MILLION))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn traces(calls_per_million: u32) -> (Traces, mpsc::Receiver<Item>) {
        let (queue, waiting) = mpsc::channel(1);
        let traces = Traces {
            queue,
            random_min: random_min(calls_per_million),
            dropped: Counter::default(),
        };
        (traces, waiting)
    }

    fn request(traceparent: &[&str]) -> Request<()> {
        let mut req = Request::post("/v1/messages");
        for line in traceparent {
            req = req.header(TRACEPARENT, *line);
        }
        req.body(()).unwrap()
    }

    #[test]
    fn span_of_the_caller_is_read_from_traceparent() {
        let parent = Parent::parse(GOOD).unwrap();
        assert_eq!(parent.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(parent.span_id, 0x00f0_67aa_0ba9_02b7);
        assert!(parent.is_sampled);
        let unkept = GOOD.replace("-01", "-02");
        assert!(!Parent::parse(&unkept).unwrap().is_sampled);
        let later = format!("cc{}-more", &GOOD[2..]);
        assert_eq!(Parent::parse(&later), Some(parent));
    }

    #[test]
    fn invalid_traceparent_headers_are_ignored() {
        for bad in [
            "",
            "-",
            "00",
            &format!("ff{}", &GOOD[2..]),
            &format!("{GOOD}-more"),
            &GOOD.to_uppercase(),
            &GOOD.replace("4bf9", "4bf"),
            &GOOD.replace("4bf9", "+bf9"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert_eq!(Parent::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn call_joins_its_callers_trace_or_starts_one() {
        let (traces, _waiting) = traces(1_000_000);
        let number = RequestNumber::now_v7();
        let own = number.uuid().as_u128();
        for lines in [&[] as &[&str], &["rubbish"], &[GOOD, GOOD]] {
            let trail = traces.begin(number, &request(lines)).unwrap();
            assert_eq!((trail.trace_id, trail.parent), (own, None), "{lines:?}");
        }
        let trail = traces.begin(number, &request(&[GOOD])).unwrap();
        assert_eq!(trail.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(trail.parent, Some(0x00f0_67aa_0ba9_02b7));
        assert_eq!(trail.span_id, low(own));
        let unkept = GOOD.replace("-01", "-00");
        assert!(traces.begin(number, &request(&[&unkept])).is_none());
    }

    #[test]
    fn configured_percentage_of_calls_is_traced() {
        let (traces, _waiting) = traces(250_000);
        // The random parts are evenly distributed over the range of 56 bits.
        let step = (1_u128 << RANDOM_BITS).div_ceil(1_000);
        let stored = (0..1_000_u128).filter(|index| {
            let trace = format!("00-{:032x}-00f067aa0ba902b7-01", (1 << 100) + index * step);
            traces
                .begin(RequestNumber::now_v7(), &request(&[&trace]))
                .is_some()
        });
        assert_eq!(stored.count(), 250);
        assert_eq!(random_min(1_000_000), 0);
        assert_eq!(random_min(500_000), 1 << (RANDOM_BITS - 1));
    }

    #[test]
    fn spans_are_dropped_and_counted_when_the_export_queue_is_full() {
        let (traces, _waiting) = traces(1_000_000);
        traces.send(Vec::new());
        assert_eq!(traces.dropped.get(), 0);
        traces.send(Vec::new());
        assert_eq!(traces.dropped.get(), 1);
    }
}

//! Traces: which calls have one, what is noted of them on their way, and how spans reach a collector.
//!
//! There are no spans while a call runs. A traced one carries a [`Trail`]; its spans are made of that and of the
//! call's record when the call's line is written (`record::spans`), and go into a queue from which [`exporter`] sends
//! them in batches. A full queue drops what comes.
//!
//! Not the crates of OpenTelemetry: `opentelemetry-otlp` with `http-json` alone brings 11 further crates (prost
//! among them, which JSON has no use for) in place of [`otlp`] and [`exporter`], and what is above these would stay. So
//! the feature `otel` has no dependency; it keeps the trail of a call out of builds that send none.

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

/// Traced calls that may wait to be sent.
const QUEUE_CALLS_MAX: usize = 2_048;

/// The way of the W3C's trace context, level 1, through HTTP.
const TRACEPARENT: &str = "traceparent";
/// Its flag "sampled".
const SAMPLED: u8 = 1;
/// So many of a trace's last bits are random (trace context, level 2).
const RANDOM_BITS: u32 = 56;

const MILLION: u64 = 1_000_000;

/// Sends traces as the configuration says; `None` where it has no `[traces]`. `dropped` counts calls whose spans are
/// lost.
pub(crate) fn start(config: &Config, dropped: &Counter) -> Option<(Traces, Exporter)> {
    let traces = config.traces.as_ref()?;
    let (queue, waiting) = mpsc::channel(QUEUE_CALLS_MAX);
    let exporter = Exporter::start(
        traces,
        &config.service,
        queue.clone(),
        waiting,
        dropped.clone(),
    );
    let traces = Traces {
        queue,
        random_min: random_min(traces.calls_per_million),
        dropped: dropped.clone(),
    };
    Some((traces, exporter))
}

/// The way to the collector.
pub(crate) struct Traces {
    queue: mpsc::Sender<Item>,
    /// A trace whose random bits are less is not kept.
    random_min: u64,
    dropped: Counter,
}

impl Traces {
    /// What is to be noted of a request, if it is to be traced. A caller that says that its trace is not kept is
    /// believed; that it is kept does not override the operator's share.
    pub(crate) fn begin<B>(&self, number: RequestNumber, req: &Request<B>) -> Option<Trail> {
        if req.method() != Method::POST {
            return None;
        }
        let own = number.uuid().as_u128();
        let parent = Parent::of(req.headers());
        let trace_id = parent.as_ref().map_or(own, |parent| parent.trace_id);
        if parent.as_ref().is_some_and(|parent| !parent.is_sampled)
            || random_bits(trace_id) < self.random_min
        {
            return None;
        }
        Some(Trail {
            trace_id,
            parent: parent.map(|parent| parent.span_id),
            // Its variant's bits are set, so it is never 0.
            span_id: low(own),
            began: SystemTime::now(),
            output_tokens_max: None,
            kind: ModelKind::default(),
            attempts: Vec::new(),
        })
    }

    /// Queues a call's spans, or drops them.
    pub(crate) fn send(&self, spans: Vec<Span>) {
        if self.queue.try_send(Item::Call(spans)).is_err() {
            self.dropped.inc();
        }
    }
}

/// What a traced call has that an untraced one has not.
pub(crate) struct Trail {
    /// The caller's trace; without one the request's number, by which it is found.
    pub(crate) trace_id: u128,
    /// The caller's span.
    pub(crate) parent: Option<u64>,
    /// That of the request. Those of its attempts are the next ones.
    pub(crate) span_id: u64,
    pub(crate) began: SystemTime,
    /// The ceiling that the caller has set.
    pub(crate) output_tokens_max: Option<u64>,
    kind: ModelKind,
    pub(crate) attempts: Vec<AttemptMade>,
}

/// A vendor was asked. Times count from the call's beginning.
pub(crate) struct AttemptMade {
    pub(crate) route: Arc<Route>,
    pub(crate) began: Duration,
    /// The code of its failure and when that was known; `None` for one that answered, or was given up.
    pub(crate) failed: Option<(&'static str, Duration)>,
}

impl Trail {
    pub(crate) fn parsed(&mut self, call: &Call) {
        self.output_tokens_max = call.output_tokens.filter(|max| *max > 0);
        self.kind = call.kind;
    }

    /// What is asked of the model, in the words of OpenTelemetry.
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

    /// The attempt made last has failed.
    pub(crate) fn attempt_failed(&mut self, code: &'static str, at: Duration) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.failed = Some((code, at));
        }
    }
}

/// A caller's span: `00-<trace>-<span>-<flags>`.
#[derive(Debug, PartialEq, Eq)]
struct Parent {
    trace_id: u128,
    span_id: u64,
    is_sampled: bool,
}

impl Parent {
    /// That of the one header; of several none is believed.
    fn of(headers: &HeaderMap) -> Option<Self> {
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
        // A later version may say more behind what this one says.
        let is_whole = parts.next().is_none() || version > 0;
        (is_whole && version != 0xff && trace_id != 0 && span_id != 0).then_some(Self {
            trace_id,
            span_id,
            is_sampled: flags & u64::from(SAMPLED) != 0,
        })
    }
}

/// So many lowercase digits.
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

/// Of a million evenly spread random parts, so many are not less.
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
    fn a_callers_span_is_read() {
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
    fn what_is_no_span_is_none() {
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
    fn a_call_joins_its_callers_trace_or_has_one_of_its_own() {
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
    fn the_operators_share_of_the_traces_is_kept() {
        let (traces, _waiting) = traces(250_000);
        // Evenly spread over what the last 56 bits can be.
        let step = (1_u128 << RANDOM_BITS).div_ceil(1_000);
        let kept = (0..1_000_u128).filter(|index| {
            let trace = format!("00-{:032x}-00f067aa0ba902b7-01", (1 << 100) + index * step);
            traces
                .begin(RequestNumber::now_v7(), &request(&[&trace]))
                .is_some()
        });
        assert_eq!(kept.count(), 250);
        assert_eq!(random_min(1_000_000), 0);
        assert_eq!(random_min(500_000), 1 << (RANDOM_BITS - 1));
    }

    #[test]
    fn what_finds_the_queue_full_is_dropped_and_counted() {
        let (traces, _waiting) = traces(1_000_000);
        traces.send(Vec::new());
        assert_eq!(traces.dropped.get(), 0);
        traces.send(Vec::new());
        assert_eq!(traces.dropped.get(), 1);
    }
}

//! What is known of each request while it is under way, and what is said of it at its end: one line in
//! the log, and the counters.
//!
//! [`ObserveLayer`] stands on top and makes a [`CallRecord`], which travels with the request; each `RecordLayer` in the
//! stack writes into it what the layer above has found out, since a request that is refused below does not come
//! back up. A call that has held money ends twice, for its client and in the ledger, in either order: the
//! second end writes the line, and sends the spans where the call is traced.

mod attempts;
mod line;
mod observe;
mod record_layer;
#[cfg(feature = "otel")]
mod spans;
mod unbooked;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use foldhash::fast::FixedState;
use http::Request;
use tokio::time::Instant;
use tollgate_layers::{
    Error,
    call::Call,
    model::Route,
    respond::{Language, Refused, Severity},
};
use tollgate_ledger::{
    account::KeyRecord,
    contract::{Settled, Settlement},
    number::RequestNumber,
    session::SessionId,
    settle::Event,
    timeline::{FailedAttempt, Timeline},
    usage::Meter,
};

pub(crate) use self::{
    attempts::AttemptsLayer,
    record_layer::{RecordLayer, admitted, granted, known, parsed, sent},
    unbooked::{How, UNBOOKED_MAX, Unbooked},
};
pub use self::{
    line::TARGET,
    observe::{Observe, ObserveLayer, ResponseBody, ResponseFuture},
};
use crate::observe::{
    metrics::{Metrics, requests::PathLabel},
    traces::{Traces, Trail},
};

/// The requests of one gateway. Clones share them.
#[derive(Clone)]
pub struct Calls(Arc<Shared>);

struct Shared {
    metrics: Arc<Metrics>,
    traces: Option<Traces>,
    /// Those that hold money.
    held: Mutex<Held>,
    /// Those that ended without a receipt, the latest.
    unbooked: unbooked::Latest,
}

/// By the hold's number. We have made those ourselves: no caller can choose ones that collide.
type Held = HashMap<RequestNumber, CallRecord, FixedState>;

impl Calls {
    /// Counts with `metrics`.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self::traced(metrics, None)
    }

    /// The same, with spans of calls sent by `traces`.
    pub(crate) fn traced(metrics: Arc<Metrics>, traces: Option<Traces>) -> Self {
        Self(Arc::new(Shared {
            metrics,
            traces,
            held: Mutex::default(),
            unbooked: unbooked::Latest::default(),
        }))
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// What a settler reports: the end of a call in the ledger. Calls that an earlier process has left come
    /// without a record.
    pub fn event(&self, event: &Event<'_>) {
        match event {
            Event::Settled {
                settlement,
                settled,
            } => match self.take(settlement.number) {
                Some(record) => {
                    self.0.metrics.sales.settled(settlement, settled);
                    record.settled(settlement, settled);
                }
                None => {
                    // What an earlier process has booked, it has counted.
                    if settled.moved() {
                        self.0.metrics.sales.settled(settlement, settled);
                    }
                    line::of_an_earlier_process(settlement, settled);
                }
            },
            Event::Released { number } => {
                if let Some(record) = self.take(*number) {
                    record.released();
                }
            }
            _ => {}
        }
    }

    /// How many calls hold money, and how long ago the oldest of them came.
    pub(crate) fn holds(&self) -> (usize, Duration) {
        let held = self.held();
        let oldest = held.values().map(|record| record.0.began.elapsed()).max();
        (held.len(), oldest.unwrap_or_default())
    }

    /// A call of which no receipt is there, where this gateway still knows it.
    pub(crate) fn unbooked(&self, number: RequestNumber) -> Option<Unbooked> {
        let running = self.held().get(&number).cloned();
        match running {
            Some(record) => Some(Unbooked::running(&record, &record.lock())),
            None => self.0.unbooked.find(number),
        }
    }

    fn begin<B>(&self, req: &Request<B>) -> CallRecord {
        let number = req.extensions().get::<RequestNumber>().copied();
        let number = number.unwrap_or_else(RequestNumber::now_v7);
        let path = self.0.metrics.requests.label(req.uri().path());
        let traces = self.0.traces.as_ref().filter(|_| path.is_of_inference());
        let trail = traces.and_then(|traces| traces.begin(number, req));
        CallRecord(Arc::new(Record {
            calls: self.clone(),
            number,
            path,
            began: Instant::now(),
            facts: Mutex::new(Facts {
                trail,
                ..Facts::default()
            }),
        }))
    }

    fn take(&self, number: RequestNumber) -> Option<CallRecord> {
        self.held().remove(&number)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

/// On a request: what is known of it. Inserted by [`ObserveLayer`].
#[derive(Clone)]
pub struct CallRecord(Arc<Record>);

struct Record {
    calls: Calls,
    number: RequestNumber,
    path: PathLabel,
    began: Instant,
    facts: Mutex<Facts>,
}

/// What the layers have found out.
#[derive(Default)]
struct Facts {
    admitted: bool,
    key: Option<Arc<KeyRecord>>,
    /// When the body was begun to be read, and how long that took.
    body_began: Option<Instant>,
    body_took: Duration,
    model: Option<String>,
    session: Option<SessionId>,
    streamed: Option<bool>,
    /// Tools of the vendor's that were merely on offer, and were taken out.
    tools_cut: Option<u64>,
    held: bool,
    vendor: Option<Arc<str>>,
    overhead: Option<Duration>,
    /// There if it is traced.
    trail: Option<Trail>,
    /// The end for the client, while that in the ledger is to come.
    answered: Option<Answered>,
    /// The end in the ledger, while that for the client is to come.
    booked: Option<Booked>,
}

/// A call's end for its client.
struct Answered {
    status: u16,
    /// To the head of the answer; `None` where its client left before.
    head: Option<Duration>,
    whole: Duration,
    /// Boxed: few have one, and all are moved.
    failure: Option<Box<Failure>>,
}

/// Why a request was refused, or its answer broke off.
#[derive(Debug)]
struct Failure {
    code: &'static str,
    severity: Severity,
    text: String,
    cause: Option<String>,
}

/// A call's end in the ledger.
enum Booked {
    Settled(Box<(Settlement, Settled)>),
    Released,
}

impl CallRecord {
    /// It has a permit.
    fn admitted(&self) {
        self.lock().admitted = true;
        self.metrics().requests.in_flight.inc();
    }

    /// Its key is known; its body is read next.
    fn known(&self, key: Arc<KeyRecord>) {
        let mut facts = self.lock();
        facts.key = Some(key);
        facts.body_began = Some(Instant::now());
    }

    /// Its body is there and says which model it wants.
    fn parsed(&self, call: &Call) {
        let mut facts = self.lock();
        facts.model = Some(call.model.clone());
        facts.session = call.session.clone();
        facts.streamed = Some(call.stream);
        let own = call.spans.responses.as_deref();
        facts.tools_cut = own.map(|own| own.tools_cut).filter(|count| *count > 0);
        if let Some(trail) = &mut facts.trail {
            trail.parsed(call);
        }
        if let Some(began) = facts.body_began {
            facts.body_took = began.elapsed();
        }
    }

    /// The ledger holds money for it. From here on its meter knows how it goes, for the receipt.
    fn granted(&self, meter: &Meter) {
        let held_ms = self.millis(Instant::now());
        meter.update(|reading| {
            reading.timeline = Some(Timeline {
                held_ms,
                ..Timeline::default()
            });
        });
        self.lock().held = true;
        self.0.calls.held().insert(self.0.number, self.clone());
    }

    /// This vendor is tried.
    fn attempt(&self, route: &Arc<Route>) {
        let mut facts = self.lock();
        facts.vendor = Some(Arc::clone(&route.vendor.name));
        if let Some(trail) = &mut facts.trail {
            trail.attempt(route, self.0.began.elapsed());
        }
    }

    /// The vendor that is tried, since then, has failed.
    fn attempt_failed(&self, error: &Error, vendor: &Arc<str>, began: Instant, meter: &Meter) {
        let refused = Refused::new(error, self.0.number, Language::En);
        let (status, code) = (refused.status().as_u16(), code(&refused));
        let failed = FailedAttempt {
            at_ms: self.millis(began),
            took_ms: millis(began.elapsed()),
            status,
            code: code.into(),
            vendor: Arc::clone(vendor),
        };
        meter.update(|reading| {
            if let Some(timeline) = &mut reading.timeline {
                timeline.failed(failed);
            }
        });
        if let Some(trail) = &mut self.lock().trail {
            trail.attempt_failed(code, self.0.began.elapsed());
        }
    }

    /// The first of the answer is there, of a vendor that was asked then.
    fn attempt_answered(&self, status: u16, began: Instant, meter: &Meter) {
        let (asked, first_byte) = (self.millis(began), self.millis(Instant::now()));
        meter.update(|reading| {
            if let Some(timeline) = &mut reading.timeline {
                timeline.asked_ms = Some(asked);
                timeline.first_byte_ms = Some(first_byte);
                timeline.status = Some(status);
            }
        });
    }

    /// The request goes to a vendor; the first time is what counts.
    fn sent(&self) {
        let mut facts = self.lock();
        if facts.overhead.is_none() {
            let overhead = self.0.began.elapsed().saturating_sub(facts.body_took);
            facts.overhead = Some(overhead);
            self.metrics().requests.sent(self.0.path, overhead);
        }
    }

    /// Its answer has ended, or its client has left.
    fn answered(&self, answered: Answered) {
        let requests = &self.metrics().requests;
        let times = answered
            .head
            .filter(|_| (200..400).contains(&answered.status))
            .map(|head| (head, answered.whole.saturating_sub(head)));
        requests.ended(self.0.path, answered.status, times);
        let mut facts = self.lock();
        if facts.admitted {
            requests.in_flight.dec();
        }
        match facts.booked.take() {
            Some(Booked::Settled(booked)) => {
                let (settlement, settled) = &*booked;
                self.ended(&facts, &answered, Some((settlement, settled)));
            }
            None if facts.held => facts.answered = Some(answered),
            Some(Booked::Released) | None => self.ended(&facts, &answered, None),
        }
    }

    fn settled(&self, settlement: &Settlement, settled: &Settled) {
        let mut facts = self.lock();
        match facts.answered.take() {
            Some(answered) => self.ended(&facts, &answered, Some((settlement, settled))),
            None => {
                let booked = Box::new((settlement.clone(), *settled));
                facts.booked = Some(Booked::Settled(booked));
            }
        }
    }

    fn released(&self) {
        let mut facts = self.lock();
        self.metrics()
            .sales
            .released(facts.model.as_deref(), facts.vendor.as_deref());
        match facts.answered.take() {
            Some(answered) => self.ended(&facts, &answered, None),
            None => facts.booked = Some(Booked::Released),
        }
    }

    /// It has ended, wherever it had to.
    fn ended(&self, facts: &Facts, answered: &Answered, booked: Option<(&Settlement, &Settled)>) {
        line::of_a_call(self, facts, answered, booked);
        if booked.is_none() && self.0.path.is_of_calls() {
            let unbooked = Unbooked::ended(self, facts, answered);
            self.0.calls.0.unbooked.push(unbooked);
        }
        #[cfg(feature = "otel")]
        if let (Some(trail), Some(traces)) = (&facts.trail, &self.0.calls.0.traces) {
            traces.send(spans::of_a_call(self, trail, facts, answered, booked));
        }
    }

    /// From when it came in to this moment.
    fn millis(&self, at: Instant) -> u32 {
        millis(at.saturating_duration_since(self.0.began))
    }

    fn metrics(&self) -> &Metrics {
        &self.0.calls.0.metrics
    }

    fn lock(&self) -> MutexGuard<'_, Facts> {
        self.0.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The word for a refusal: its code, or its kind where that is empty.
fn code(refused: &Refused<'_>) -> &'static str {
    match refused.code() {
        "" => refused.kind(),
        code => code,
    }
}

impl fmt::Debug for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallRecord").field(&self.0.number).finish()
    }
}

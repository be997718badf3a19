//! Records facts of each request while it runs, and reports them at its end: in one line of the log, and in the
//! counters.
//!
//! [`ObserveLayer`] is outermost and creates a [`CallRecord`], which travels with the request. Each `RecordLayer` in
//! the stack records a fact that the layer above it has determined. It records the fact on the way down, because a
//! refusal further down does not pass through it. A call that has held money ends twice, for its client and in the
//! ledger, in either order. At the second end, its log line is written and, if the call is traced, its spans are sent.

mod attempts;
mod line;
mod observe;
mod record_layer;
mod refusals;
mod spans;
mod unbooked;

use std::{
    cmp::Reverse,
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use foldhash::fast::FixedState;
use http::Request;
use tokio::time::Instant;
use tollgate_layers::{
    Error,
    call::Call,
    facts::ClientAddr,
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
pub(crate) use self::{
    line::CHARGE,
    refusals::{RefusalLines, Source},
};
pub use self::{
    line::TARGET,
    observe::{Observe, ObserveLayer, ResponseBody, ResponseFuture},
};
use crate::{
    edge::routes,
    observe::{
        metrics::{
            Metrics,
            requests::{CLIENT_LEFT, PathLabel},
        },
        traces::{Traces, Trail},
    },
};

/// The requests of one gateway. Clones share them.
#[derive(Clone)]
pub struct Calls(Arc<Shared>);

struct Shared {
    metrics: Arc<Metrics>,
    traces: Option<Traces>,
    /// The records of requests for which money is held.
    held: Mutex<Held>,
    /// The latest requests that ended without a receipt, for operators who search them.
    unbooked: unbooked::Latest,
    /// Decides which requests that held no money are logged.
    refusals: RefusalLines,
}

/// Records by request number. The gateway generates the numbers, so no caller can choose numbers that collide in the
/// map.
type Held = HashMap<RequestNumber, CallRecord, FixedState>;

impl Calls {
    /// Creates the records of a gateway's requests, which are counted in `metrics`.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self::traced(metrics, None)
    }

    /// Like `new`, and sends spans of calls through `traces`.
    pub(crate) fn traced(metrics: Arc<Metrics>, traces: Option<Traces>) -> Self {
        Self(Arc::new(Shared {
            metrics,
            traces,
            held: Mutex::default(),
            unbooked: unbooked::Latest::default(),
            refusals: RefusalLines::default(),
        }))
    }

    /// Returns the metrics in which calls are counted.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Handles a settler's event: the end of a call in the ledger. Calls left by an earlier process have no record.
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
                    // If an earlier process booked the charge, that process also counted it.
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

    /// Returns how many calls hold money, and the age of the oldest such call.
    pub(crate) fn holds(&self) -> (usize, Duration) {
        let held = self.held();
        let oldest = held.values().map(|record| record.0.began.elapsed()).max();
        (held.len(), oldest.unwrap_or_default())
    }

    /// Returns a call without a receipt, if this gateway still has a record of it.
    pub(crate) fn unbooked(&self, number: RequestNumber) -> Option<Unbooked> {
        let running = self.held().get(&number).cloned();
        match running {
            Some(record) => Some(Unbooked::running(&record, &record.lock())),
            None => self.0.unbooked.find(number),
        }
    }

    /// Returns the calls without a receipt that pass `is_wanted`, including running calls, latest first.
    pub(crate) fn all_unbooked(&self, is_wanted: impl Fn(&Unbooked) -> bool) -> Vec<Unbooked> {
        let running: Vec<CallRecord> = self.held().values().cloned().collect();
        let mut calls = self.0.unbooked.list(&is_wanted);
        calls.extend(
            running
                .iter()
                .map(|record| Unbooked::running(record, &record.lock()))
                .filter(is_wanted),
        );
        // A call that ended while the two lists were read is in both.
        calls.sort_by_key(|call| Reverse((call.number, matches!(call.how, How::Ended { .. }))));
        calls.dedup_by_key(|call| call.number);
        calls
    }

    fn begin<B>(&self, req: &Request<B>) -> CallRecord {
        let number = req.extensions().get::<RequestNumber>().copied();
        let number = number.unwrap_or_else(RequestNumber::now_v7);
        let path = self.0.metrics.requests.label(req.uri().path());
        let traces = self
            .0
            .traces
            .as_ref()
            .filter(|_| path.is_some_and(routes::Route::is_of_inference));
        let trail = traces.and_then(|traces| traces.begin(number, req));
        CallRecord(Arc::new(Record {
            calls: self.clone(),
            number,
            path,
            address: req.extensions().get().map(ClientAddr::block),
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

/// Request extension with everything known about the request. Inserted by [`ObserveLayer`].
#[derive(Clone)]
pub struct CallRecord(Arc<Record>);

struct Record {
    calls: Calls,
    number: RequestNumber,
    path: PathLabel,
    /// The client's address block, by which log lines of refusals are bounded.
    address: Option<IpAddr>,
    began: Instant,
    facts: Mutex<Facts>,
}

/// The facts that the layers have recorded about the request.
#[derive(Default)]
struct Facts {
    admitted: bool,
    key: Option<Arc<KeyRecord>>,
    /// When reading the body began, and how long it took.
    body_began: Option<Instant>,
    body_took: Duration,
    model: Option<String>,
    session: Option<SessionId>,
    streamed: Option<bool>,
    /// The number of tools of the vendor that the request made available but did not require, and that the gateway
    /// removed.
    tools_cut: Option<u64>,
    held: bool,
    vendor: Option<Arc<str>>,
    overhead: Option<Duration>,
    /// The tracing state; present if the request is traced.
    trail: Option<Trail>,
    /// The end of the call for its client, stored until the end in the ledger is known.
    answered: Option<Answered>,
    /// The end of the call in the ledger, stored until the end for the client is known.
    booked: Option<Booked>,
}

/// The end of a call for its client.
struct Answered {
    status: u16,
    /// The time to the head of the answer; `None` if the client disconnected before the head.
    head: Option<Duration>,
    whole: Duration,
    /// Boxed, because few requests fail and every `Answered` is moved.
    failure: Option<Box<Failure>>,
}

/// The reason why a request was refused, or its answer aborted.
#[derive(Debug)]
struct Failure {
    code: &'static str,
    severity: Severity,
    text: String,
    cause: Option<String>,
}

/// The end of a call in the ledger: settled or released.
enum Booked {
    Settled(Box<(Settlement, Settled)>),
    Released,
}

impl CallRecord {
    fn is_of_calls(&self) -> bool {
        self.0.path.is_some_and(routes::Route::is_of_calls)
    }

    /// Records that `in_flight` has admitted the request.
    fn admitted(&self) {
        self.lock().admitted = true;
        self.metrics().requests.in_flight.inc();
    }

    /// Records the key of the request. From now on, the body is read.
    fn known(&self, key: Arc<KeyRecord>) {
        let mut facts = self.lock();
        facts.key = Some(key);
        facts.body_began = Some(Instant::now());
    }

    /// Records that the body has been parsed, and its model.
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

    /// Records that the ledger holds money for the call. From now on the call's meter collects the timeline for the
    /// receipt.
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

    /// Records that an attempt at this vendor has begun.
    fn attempt(&self, route: &Arc<Route>) {
        let mut facts = self.lock();
        facts.vendor = Some(Arc::clone(&route.vendor.name));
        if let Some(trail) = &mut facts.trail {
            trail.attempt(route, self.0.began.elapsed());
        }
    }

    /// Records that the attempt at this vendor, begun at `began`, has failed.
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

    /// Records that the attempt begun at `began` has started to answer.
    fn attempt_answered(&self, status: u16, began: Instant, meter: &Meter) {
        let (requested, first_byte) = (self.millis(began), self.millis(Instant::now()));
        meter.update(|reading| {
            if let Some(timeline) = &mut reading.timeline {
                timeline.asked_ms = Some(requested);
                timeline.first_byte_ms = Some(first_byte);
                timeline.status = Some(status);
            }
        });
    }

    /// Records that the request is sent to a vendor; only the first time counts.
    fn sent(&self) {
        let mut facts = self.lock();
        if facts.overhead.is_none() {
            let overhead = self.0.began.elapsed().saturating_sub(facts.body_took);
            facts.overhead = Some(overhead);
            self.metrics().requests.sent(self.0.path, overhead);
        }
    }

    /// Records that the answer has ended, or that the client has disconnected.
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

    /// Reports a request that has ended for its client and, if it held money, in the ledger.
    fn ended(&self, facts: &Facts, answered: &Answered, booked: Option<(&Settlement, &Settled)>) {
        if self.has_line(facts, answered) {
            line::of_a_call(self, facts, answered, booked);
        }
        if booked.is_none() && self.is_of_calls() {
            let unbooked = Unbooked::ended(self, facts, answered);
            self.0.calls.0.unbooked.push(unbooked);
        }
        if let (Some(trail), Some(traces)) = (&facts.trail, &self.0.calls.0.traces) {
            traces.send(spans::of_a_call(self, trail, facts, answered, booked));
        }
    }

    /// Returns whether the request gets a log line of its own. A request that held money always gets a line. A request
    /// that was refused before it held money may only be counted.
    fn has_line(&self, facts: &Facts, answered: &Answered) -> bool {
        let cause = match &answered.failure {
            Some(failure) => failure.code,
            None if answered.status == CLIENT_LEFT => "client_left",
            None => return true,
        };
        let account = facts.key.as_ref().map(|key| key.account.clone());
        let address = self.0.address;
        facts.held
            || self.0.calls.0.refusals.admit(Source {
                address,
                account,
                cause,
            })
    }

    /// Returns the milliseconds from the request's arrival to this moment.
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

/// Returns a word for a refusal: its code, or its kind if the code is empty.
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

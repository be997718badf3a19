//! The record of a request. It travels with the request, and reports the request's end to the log, the metrics and the
//! traces.

use std::{collections::HashMap, fmt, net::IpAddr, sync::Arc, time::Duration};

use foldhash::fast::FixedState;
use http::Request;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tollgate_layers::{
    Error,
    call::Call,
    facts::ClientAddr,
    model::Route,
    respond::{Language, Refused},
};
use tollgate_ledger::{
    account::KeyRecord,
    contract::{Settled, Settlement},
    number::RequestNumber,
    settle::Event,
    timeline::{FailedAttempt, Timeline},
    unbooked::UnbookedStore,
    usage::Meter,
};

use super::{
    facts::{Answered, Booked, EndedCall, Facts, code, millis},
    line,
    refusals::{RefusalLines, Source},
    spans,
    unbooked::{self, Unbooked},
};
use crate::{
    edge::routes,
    observe::{
        metrics::{
            Metrics,
            requests::{CLIENT_LEFT, PathLabel},
        },
        traces::Traces,
    },
};

/// The records of all requests of one gateway. Clones share them.
#[derive(Clone)]
pub struct Calls(pub(super) Arc<Shared>);

pub(super) struct Shared {
    metrics: Arc<Metrics>,
    traces: Option<Traces>,
    /// The records of requests that hold money, by request number.
    pub(super) held: Mutex<Held>,
    /// Calls that ended without a receipt, kept for operators and customers who look them up.
    pub(super) unbooked: Unbooked,
    /// Decides which refused requests that held no money get a log line.
    refusals: RefusalLines,
}

/// Records by request number. The map needs no protection against keys that are chosen to collide, because the gateway
/// generates the numbers.
pub(super) type Held = HashMap<RequestNumber, CallRecord, FixedState>;

impl Calls {
    /// Creates the records for a gateway. Requests are counted in `metrics`.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self::stored(metrics, None, None)
    }

    /// Like `new`. In addition, sends the spans of traced calls through `traces`, and stores calls without a receipt in
    /// `store`.
    pub(crate) fn stored(
        metrics: Arc<Metrics>,
        traces: Option<Traces>,
        store: Option<Arc<dyn UnbookedStore>>,
    ) -> Self {
        let unbooked = Unbooked {
            queues: Mutex::default(),
            store,
            dropped: metrics.refused_calls_dropped.clone(),
        };
        Self(Arc::new(Shared {
            metrics,
            traces,
            held: Mutex::default(),
            unbooked,
            refusals: RefusalLines::default(),
        }))
    }

    /// Returns the metrics in which requests are counted.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Handles an event of the settler: a call has ended in the ledger. A call that an earlier process left unsettled
    /// has no record.
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
                    // If an earlier process booked this charge, it has also counted it.
                    if settled.moved() {
                        self.0.metrics.sales.settled(settlement, settled);
                    }
                    line::log_earlier_process(settlement, settled);
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

    /// Returns the number of calls that hold money, and the age of the oldest of them.
    pub(crate) fn holds(&self) -> (usize, Duration) {
        let held = self.0.held.lock();
        let oldest = held.values().map(|record| record.0.began.elapsed()).max();
        (held.len(), oldest.unwrap_or_default())
    }

    pub(super) fn begin<B>(&self, req: &Request<B>) -> CallRecord {
        let number = req.extensions().get::<RequestNumber>().copied();
        let number = number.unwrap_or_else(RequestNumber::now_v7);
        let path = self.0.metrics.requests.label(req.uri().path());
        let is_traced = path.is_some_and(routes::Route::is_of_inference);
        let traces = self.0.traces.as_ref().filter(|_| is_traced);
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
        self.0.held.lock().remove(&number)
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

/// A request extension that contains everything known about the request. [`ObserveLayer`](super::ObserveLayer) inserts
/// it.
#[derive(Clone)]
pub struct CallRecord(pub(super) Arc<Record>);

pub(super) struct Record {
    pub(super) calls: Calls,
    pub(super) number: RequestNumber,
    pub(super) path: PathLabel,
    /// The client's address block. It is used to bound the number of log lines about refusals.
    address: Option<IpAddr>,
    pub(super) began: Instant,
    facts: Mutex<Facts>,
}

impl CallRecord {
    pub(super) fn path(&self) -> &str {
        self.metrics().requests.path(self.0.path)
    }

    /// Records that the `in_flight` layer has admitted the request.
    pub(super) fn admitted(&self) {
        self.lock().admitted = true;
        self.metrics().requests.in_flight.inc();
    }

    /// Records the key of the request. After this, the request's body is read.
    pub(super) fn known(&self, key: Arc<KeyRecord>) {
        let mut facts = self.lock();
        facts.key = Some(key);
        facts.body_began = Some(Instant::now());
    }

    /// Records that the request's body has been parsed, and which model it names.
    pub(super) fn parsed(&self, call: &Call) {
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

    /// Records that the ledger holds money for the call. From now on, the call's meter collects the times for the
    /// receipt.
    pub(super) fn granted(&self, meter: &Meter) {
        let held_ms = self.millis(Instant::now());
        meter.update(|reading| {
            reading.timeline = Some(Timeline {
                held_ms,
                ..Timeline::default()
            });
        });
        self.lock().held = true;
        let mut held = self.0.calls.0.held.lock();
        held.insert(self.0.number, self.clone());
    }

    /// Records that an attempt at the vendor of this route has begun.
    pub(super) fn attempt(&self, route: &Arc<Route>) {
        let mut facts = self.lock();
        facts.vendor = Some(Arc::clone(&route.vendor.name));
        if let Some(trail) = &mut facts.trail {
            trail.attempt(route, self.0.began.elapsed());
        }
    }

    /// Records that the attempt that began at `began` has failed.
    pub(super) fn attempt_failed(
        &self,
        error: &Error,
        vendor: &Arc<str>,
        began: Instant,
        meter: &Meter,
    ) {
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

    /// Records that the vendor has begun to answer the attempt that began at `began`.
    pub(super) fn attempt_answered(&self, status: u16, began: Instant, meter: &Meter) {
        let (requested, first_byte) = (self.millis(began), self.millis(Instant::now()));
        meter.update(|reading| {
            if let Some(timeline) = &mut reading.timeline {
                timeline.asked_ms = Some(requested);
                timeline.first_byte_ms = Some(first_byte);
                timeline.status = Some(status);
            }
        });
    }

    /// Records that the request is being sent to a vendor. Only the first attempt is recorded.
    pub(super) fn sent(&self) {
        let mut facts = self.lock();
        if facts.overhead.is_none() {
            let overhead = self.0.began.elapsed().saturating_sub(facts.body_took);
            facts.overhead = Some(overhead);
            self.metrics().requests.sent(self.0.path, overhead);
        }
    }

    /// Records that the call has ended for the client: the response has ended, or the client has disconnected.
    pub(super) fn answered(&self, answered: Answered) {
        let requests = &self.metrics().requests;
        let head = answered
            .head
            .filter(|_| (200..400).contains(&answered.status));
        let times = head.map(|head| (head, answered.whole.saturating_sub(head)));
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
        let (model, vendor) = (facts.model.as_deref(), facts.vendor.as_deref());
        self.metrics().sales.released(model, vendor);
        match facts.answered.take() {
            Some(answered) => self.ended(&facts, &answered, None),
            None => facts.booked = Some(Booked::Released),
        }
    }

    /// Reports a request that has ended for its client and, if it held money, also in the ledger.
    fn ended(&self, facts: &Facts, answered: &Answered, booked: Option<(&Settlement, &Settled)>) {
        let call = EndedCall {
            number: self.0.number,
            path: self.path(),
            is_call: self.0.path.is_some_and(routes::Route::is_of_calls),
            facts,
            answered,
            booked,
        };
        if self.has_line(facts, answered) {
            line::log(&call);
        }
        if booked.is_none() && call.is_call {
            self.0.calls.0.unbooked.push(unbooked::ended(&call));
        }
        if let (Some(trail), Some(traces)) = (&facts.trail, &self.0.calls.0.traces) {
            traces.send(spans::of_a_call(trail, &call));
        }
    }

    /// Returns whether the request gets a log line of its own. A request that held money always gets one. If a request
    /// was refused before it held money, it may be counted without a log line.
    fn has_line(&self, facts: &Facts, answered: &Answered) -> bool {
        let cause = match &answered.failure {
            Some(failure) => failure.code,
            None if answered.status == CLIENT_LEFT => "client_left",
            None => return true,
        };
        let account = facts.key.as_ref().map(|key| key.account.clone());
        let source = Source {
            address: self.0.address,
            account,
            cause,
        };
        facts.held || self.0.calls.0.refusals.admit(source)
    }

    /// Returns the milliseconds from the arrival of the request to `at`.
    fn millis(&self, at: Instant) -> u32 {
        millis(at.saturating_duration_since(self.0.began))
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.calls.0.metrics
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Facts> {
        self.0.facts.lock()
    }
}

impl fmt::Debug for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallRecord").field(&self.0.number).finish()
    }
}

//! The state of one route, a model at a vendor. All calls share it.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::time::Instant;

use super::{
    mark::{Mark, Why},
    state::{BreakerState, LastError, RouteState},
};
use crate::{
    failover::{
        breaker::{Breaker, Pass, Shown},
        load::PeakEwma,
    },
    lock::lock,
    model::Route,
    usage::Meter,
};

/// The longest time for which one response pauses a route, even if the vendor requests more.
const REST_MAX: Duration = Duration::from_secs(300);

/// The state of one route, a model at a vendor. All calls share it.
#[derive(Debug, Default)]
pub(in crate::failover) struct RouteRecord {
    model: String,
    pub(in crate::failover) identity: u64,
    in_flight: AtomicUsize,
    /// Whether a call is trying the route now although the route is paused. Only one call at a time may do this.
    trying: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(in crate::failover) struct Inner {
    pub(in crate::failover) breaker: Breaker,
    pub(in crate::failover) load: PeakEwma,
    /// The meter of the last call that was sent on the route while its breaker was open. It shows whether a connection
    /// was made.
    pub(in crate::failover) tried: Option<Meter>,
    /// The API keys that have reached their rate limit for this model.
    pub(super) rests: Vec<Mark>,
    pub(in crate::failover) last_error: Option<(Instant, Option<StatusCode>)>,
}

/// An attempt that is made although the breaker is open, because the call has no other route.
#[derive(Clone, Copy, Debug)]
pub(in crate::failover) struct LastResort {
    /// Whether this is the first attempt of the call.
    pub(in crate::failover) first: bool,
}

impl Inner {
    /// Returns the time until a call without another route is admitted.
    pub(super) fn last_resort_in(&mut self, now: Instant) -> Duration {
        // If the last call that was sent while the breaker was open got a connection, the vendor is reachable. So other
        // calls need not wait for its response.
        let reached = |meter: &Meter| meter.look(|reading| reading.dispatched);
        if self.tried.as_ref().is_some_and(reached) {
            self.breaker.reached();
        }
        self.breaker.last_resort_in(now)
    }
}

impl RouteRecord {
    pub(super) fn new(route: &Route) -> Self {
        // The hasher's keys are fixed, so a route has the same identity on every node.
        let mut identity = DefaultHasher::new();
        (&*route.vendor.name, &route.model).hash(&mut identity);
        Self {
            model: route.model.clone(),
            identity: identity.finish(),
            ..Self::default()
        }
    }

    /// Admits a call of this caller if the breaker allows it. With `last_resort`, a call may be admitted even if the
    /// breaker is open.
    pub(in crate::failover) fn pass(
        &self,
        caller: u64,
        last_resort: Option<LastResort>,
        meter: &Meter,
        now: Instant,
    ) -> Option<Pass> {
        let mut inner = self.lock();
        let pass = match last_resort {
            None => inner.breaker.pass(caller, now),
            Some(LastResort { first }) => {
                inner.last_resort_in(now);
                inner.breaker.last_resort(caller, first, now)
            }
        }?;
        if inner.breaker.shown_to(caller, now) != Shown::Closed {
            inner.tried = Some(meter.clone());
        }
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Some(pass)
    }

    pub(in crate::failover) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the only permit to try a paused route. Returns whether the permit was free.
    pub(in crate::failover) fn start_trying(&self) -> bool {
        !self.trying.swap(true, Ordering::Relaxed)
    }

    pub(in crate::failover) fn stop_trying(&self) {
        self.trying.store(false, Ordering::Relaxed);
    }

    pub(in crate::failover) fn rest(&self, digest: u64, wait: Duration, why: Why, now: Instant) {
        Mark::set(
            &mut self.lock().rests,
            digest,
            (wait.min(REST_MAX), why),
            now,
        );
    }

    pub(in crate::failover) fn wake(&self, digest: u64) {
        self.lock().rests.retain(|mark| mark.digest != digest);
    }

    pub(in crate::failover) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn state(&self, keys: usize, now: Instant) -> RouteState {
        let inner = self.lock();
        let model_unknown = inner.breaker.is_lacking();
        let (breaker, open_for, lacks_for) = match inner.breaker.shown(now) {
            Shown::Open(wait) if model_unknown => (BreakerState::Closed, None, Some(wait)),
            Shown::Due | Shown::Probing(_) if model_unknown => (BreakerState::Closed, None, None),
            Shown::Closed => (BreakerState::Closed, None, None),
            Shown::Open(wait) => (BreakerState::Open, Some(wait), None),
            Shown::Due | Shown::Probing(_) => (BreakerState::HalfOpen, None, None),
        };
        let waits = inner.rests.iter().filter(|mark| mark.until > now);
        let rests = waits.clone().count() >= keys.max(1);
        let soonest = waits.map(|mark| mark.until - now).min();
        RouteState {
            model: self.model.clone(),
            breaker,
            model_unknown,
            failures: inner.breaker.failures(),
            in_flight: self.in_flight(),
            first_byte: inner.load.expected(now),
            open_for,
            rests_for: soonest.filter(|_| rests).max(lacks_for),
            last_error: inner.last_error.map(|(at, status)| LastError {
                ago: now.saturating_duration_since(at),
                status,
            }),
        }
    }
}

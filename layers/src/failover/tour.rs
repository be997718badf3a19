//! The routes of one call: which one is tried next, and what is said when none can be.

use std::{sync::Arc, time::Duration};

use http::Request;
use tokio::time::Instant;

use super::{
    choice::{Candidate, choose},
    conversation::conversation,
    health::{Health, Look, Place, Why},
    running::Running,
};
use crate::{
    call::{Attempt, Priced},
    error::Error,
    facts::Caller,
    model::{OnDisconnect, Route},
    usage::Meter,
};

/// What a caller is told to wait where calls end at any time, or an operator has to act.
const FULL_WAIT: Duration = Duration::from_secs(1);
const OPERATOR_WAIT: Duration = Duration::from_secs(30);

/// The way of a call over its routes.
#[derive(Debug)]
pub(super) struct Tour {
    health: Health,
    stops: Vec<Stop>,
    conversation: Option<u64>,
    meter: Meter,
}

/// A route of the call.
#[derive(Debug)]
struct Stop {
    route: Arc<Route>,
    place: Place,
    done: bool,
}

/// The route that is tried, with its places taken.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) index: usize,
    pub(super) route: Arc<Route>,
    pub(super) running: Running,
}

impl Tour {
    pub(super) fn new(health: &Health, req: &Request<Priced>) -> Self {
        let priced = req.body();
        let routes = &priced.model.routes;
        let stops = routes.iter().map(|route| Stop {
            route: Arc::clone(route),
            place: health.place(route),
            done: false,
        });
        // Reading a body for it costs something.
        let sticky = priced.model.sticky && routes.len() > 1;
        let conversation = sticky.then(|| {
            let caller = req.extensions().get::<Caller>();
            let key = caller.map_or("", |Caller(key)| &*key.id);
            conversation(key, &priced.model.id, &priced.call.body)
        });
        Self {
            health: health.clone(),
            stops: stops.collect(),
            conversation,
            meter: priced.meter.clone(),
        }
    }

    /// Whether there can be more than one attempt.
    pub(super) fn may_go_on(&self) -> bool {
        match self.stops.as_slice() {
            [] => false,
            [only] => only.route.vendor.credentials.len() > 1,
            _ => true,
        }
    }

    /// The route of the call's first attempt. One that rests is better than none.
    pub(super) fn first(&self, now: Instant) -> Option<Chosen> {
        self.next(now).or_else(|| self.resting(now))
    }

    /// The best route that is open and was not tried.
    pub(super) fn next(&self, now: Instant) -> Option<Chosen> {
        if let [only] = self.stops.as_slice() {
            // Most models have one way, and nothing to choose.
            return if only.done {
                None
            } else {
                self.start(0, false, now)
            };
        }
        let mut taken = Vec::new();
        loop {
            let candidates: Vec<Candidate> = self
                .open(now)
                .filter(|candidate| !taken.contains(&candidate.index))
                .collect();
            let index = choose(&candidates, self.conversation, self.health.draw())?;
            if let Some(chosen) = self.start(index, false, now) {
                return Some(chosen);
            }
            // Somebody was faster.
            taken.push(index);
        }
    }

    /// A route that failed, or cannot carry the call, is not tried again.
    pub(super) fn done(&mut self, index: usize) {
        self.stops[index].done = true;
    }

    /// Why nobody was asked: what is over first is what the caller has to wait for.
    pub(super) fn refusal(&self, now: Instant) -> Error {
        let waits = self
            .stops
            .iter()
            .map(|stop| match stop.look(&self.health, now) {
                // It was free a moment ago, or will be in a moment.
                Look::Ready { .. } | Look::Full => (FULL_WAIT, Error::Overloaded),
                Look::Resting {
                    wait,
                    why: Why::Limited,
                } => (wait, Error::VendorLimit { retry_after: wait }),
                Look::Shut { wait }
                | Look::Resting {
                    wait,
                    why: Why::Down,
                } => (wait, Error::RoutesOut { retry_after: wait }),
                Look::Disabled
                | Look::Resting {
                    why: Why::Refused, ..
                } => (
                    OPERATOR_WAIT,
                    Error::RoutesOut {
                        retry_after: OPERATOR_WAIT,
                    },
                ),
            });
        waits.min_by_key(|(wait, _)| *wait).map_or_else(
            || Error::VendorUnavailable("the model has no route".into()),
            |(_, error)| error,
        )
    }

    fn open(&self, now: Instant) -> impl Iterator<Item = Candidate> {
        let stops = self.stops.iter().enumerate();
        stops.filter_map(move |(index, stop)| {
            if stop.done {
                return None;
            }
            let Look::Ready {
                expected,
                in_flight,
            } = stop.look(&self.health, now)
            else {
                return None;
            };
            Some(Candidate {
                index,
                priority: stop.route.priority,
                weight: stop.route.weight,
                expected,
                in_flight,
                identity: stop.place.route.identity,
            })
        })
    }

    /// The route that has rested long enough the soonest, unless a call tries it already.
    fn resting(&self, now: Instant) -> Option<Chosen> {
        let stops = self.stops.iter().enumerate();
        let mut resting: Vec<(Duration, usize)> = stops
            .filter_map(|(index, stop)| match stop.look(&self.health, now) {
                Look::Resting { wait, .. } => Some((wait, index)),
                _ => None,
            })
            .collect();
        resting.sort_unstable();
        resting
            .into_iter()
            .find_map(|(_, index)| self.start(index, true, now))
    }

    fn start(&self, index: usize, rests: bool, now: Instant) -> Option<Chosen> {
        let Stop { route, place, .. } = &self.stops[index];
        let running = Running::start(&self.health, place, route, rests, &self.meter, now)?;
        Some(Chosen {
            index,
            route: Arc::clone(route),
            running,
        })
    }
}

impl Chosen {
    /// The request on this route. What it uses is counted from here on.
    pub(super) fn attempt(&self, req: Request<Priced>) -> Request<Attempt> {
        let vendor = &self.route.vendor;
        let drained = vendor.on_disconnect == OnDisconnect::Drain;
        let meter = &req.body().meter;
        meter.attempt(Arc::clone(&vendor.name), drained);
        req.map(|priced| Attempt {
            priced,
            route: Arc::clone(&self.route),
            credential: self.running.credential(),
        })
    }
}

impl Stop {
    fn look(&self, health: &Health, now: Instant) -> Look {
        self.place.look(health, &self.route.vendor, now)
    }
}

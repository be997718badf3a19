//! The routes of one call: selects the route to try next, or the error if no route can be tried.

use std::{sync::Arc, time::Duration};

use http::Request;
use tokio::time::Instant;

use super::{
    choice::{Candidate, choose},
    conversation::conversation,
    health::{Availability, Health, LastResort, RouteHandle, Why},
    running::{Entry, Running},
};
use crate::{
    call::{Attempt, Priced},
    error::Error,
    facts::Caller,
    model::{OnDisconnect, Route},
    usage::{Attempted, Meter},
};

/// The `retry-after` for callers if every vendor has its maximum number of calls in flight. It is short, because a call
/// may end at any time. If an operator must act, callers get a longer `retry-after`.
const FULL_WAIT: Duration = Duration::from_secs(1);
const OPERATOR_WAIT: Duration = Duration::from_secs(30);

/// The routes of a call, and which of them the call has tried.
#[derive(Debug)]
pub(super) struct RoutePlan {
    health: Health,
    routes_planned: Vec<PlannedRoute>,
    conversation: Option<u64>,
    caller: u64,
    meter: Meter,
}

/// A route in the plan of a call.
#[derive(Debug)]
struct PlannedRoute {
    route: Arc<Route>,
    place: RouteHandle,
    done: bool,
}

/// A route that was chosen. The call is already counted as in flight on this route.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) index: usize,
    pub(super) route: Arc<Route>,
    pub(super) running: Running,
}

impl RoutePlan {
    pub(super) fn new(health: &Health, req: &Request<Priced>) -> Self {
        let priced = req.body();
        let routes = &priced.model.routes;
        let routes_planned = routes.iter().map(|route| PlannedRoute {
            route: Arc::clone(route),
            place: health.place(route),
            done: false,
        });
        // Hashing the beginning of the body takes time, so it is done only if the model is sticky.
        let sticky = priced.model.sticky && routes.len() > 1;
        let caller = req.extensions().get::<Caller>();
        let conversation = sticky.then(|| {
            let key = caller.map_or("", |Caller(key)| &*key.id);
            conversation(key, &priced.model.id, &priced.call.body)
        });
        Self {
            health: health.clone(),
            routes_planned: routes_planned.collect(),
            conversation,
            // If no caller is authenticated, all calls count as calls of one caller.
            caller: caller.map_or(0, |Caller(key)| health.caller(&key.id)),
            meter: priced.meter.clone(),
        }
    }

    /// Returns whether the call may have more than one attempt.
    pub(super) fn may_go_on(&self) -> bool {
        match self.routes_planned.as_slice() {
            [] => false,
            [only] => only.route.vendor.credentials.len() > 1,
            _ => true,
        }
    }

    /// Chooses the route of the call's first attempt. If no route is available, chooses a paused route, or else a route
    /// with an open breaker.
    pub(super) fn first(&self, now: Instant) -> Option<Chosen> {
        let chosen = self.open(now).or_else(|| self.resting(now));
        chosen.or_else(|| self.shut(LastResort { first: true }, now))
    }

    /// Chooses the route of a later attempt, which is never a paused route.
    pub(super) fn next(&self, now: Instant) -> Option<Chosen> {
        let chosen = self.open(now);
        chosen.or_else(|| self.shut(LastResort { first: false }, now))
    }

    /// Returns the best route that is available and that this call has not tried.
    fn open(&self, now: Instant) -> Option<Chosen> {
        if let [only] = self.routes_planned.as_slice() {
            // Most models have a single route, so there is nothing to choose.
            return if only.done {
                None
            } else {
                self.start(0, Entry::Open, now)
            };
        }
        let mut taken = Vec::new();
        loop {
            let is_free = |candidate: &Candidate| !taken.contains(&candidate.index);
            let candidates: Vec<Candidate> = self.candidates(now).filter(is_free).collect();
            let index = choose(&candidates, self.conversation, self.health.draw())?;
            if let Some(chosen) = self.start(index, Entry::Open, now) {
                return Some(chosen);
            }
            // Another call has taken the route's last slot meanwhile.
            taken.push(index);
        }
    }

    /// Marks a route as tried: it failed, or its format cannot carry the call.
    pub(super) fn done(&mut self, index: usize) {
        self.routes_planned[index].done = true;
    }

    /// Returns the error for a call that no vendor received. It is the error of the route that can be used soonest.
    pub(super) fn refusal(&self, now: Instant) -> Error {
        let waits = self
            .routes_planned
            .iter()
            .map(|stop| match self.look(stop, now) {
                // All slots of the vendor were taken. One of them will be free soon.
                Availability::Ready { .. } | Availability::Full => (FULL_WAIT, Error::Overloaded),
                Availability::Resting {
                    wait,
                    why: Why::Limited,
                } => (wait, Error::VendorLimit { retry_after: wait }),
                // If a call has no other route, an open breaker admits it after `last_resort`, before the breaker's own
                // wait ends.
                Availability::Shut {
                    last_resort: wait, ..
                }
                | Availability::Resting {
                    wait,
                    why: Why::Down,
                } => (wait, Error::RoutesOut { retry_after: wait }),
                Availability::Disabled
                | Availability::Resting {
                    why: Why::Refused, ..
                } => (
                    OPERATOR_WAIT,
                    Error::RoutesOut {
                        retry_after: OPERATOR_WAIT,
                    },
                ),
            });
        waits.min_by_key(|(wait, _)| *wait).map_or_else(
            || Error::VendorUnavailable("the model has no route to a vendor".into()),
            |(_, error)| error,
        )
    }

    fn candidates(&self, now: Instant) -> impl Iterator<Item = Candidate> {
        let routes_planned = self.routes_planned.iter().enumerate();
        routes_planned.filter_map(move |(index, stop)| {
            if stop.done {
                return None;
            }
            let Availability::Ready {
                expected,
                in_flight,
            } = self.look(stop, now)
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

    /// Chooses the paused route that can be used soonest, unless another call is trying it.
    fn resting(&self, now: Instant) -> Option<Chosen> {
        let routes_planned = self.routes_planned.iter().enumerate();
        let mut resting: Vec<(Duration, usize)> = routes_planned
            .filter_map(|(index, stop)| match self.look(stop, now) {
                Availability::Resting { wait, .. } => Some((wait, index)),
                _ => None,
            })
            .collect();
        resting.sort_unstable();
        resting
            .into_iter()
            .find_map(|(_, index)| self.start(index, Entry::Resting, now))
    }

    /// Chooses among the routes with an open breaker that this call has not tried. Routes that admit calls at once are
    /// preferred, then the route whose wait ends soonest.
    fn shut(&self, how: LastResort, now: Instant) -> Option<Chosen> {
        let routes_planned = self.routes_planned.iter().enumerate();
        let mut shut: Vec<_> = routes_planned
            .filter(|(_, stop)| !stop.done)
            .filter_map(|(index, stop)| match self.look(stop, now) {
                Availability::Shut { wait, last_resort } => {
                    Some((last_resort, wait, stop.route.priority, index))
                }
                _ => None,
            })
            .collect();
        shut.sort_unstable();
        shut.into_iter()
            .find_map(|(.., index)| self.start(index, Entry::LastResort(how), now))
    }

    fn look(&self, stop: &PlannedRoute, now: Instant) -> Availability {
        let vendor = &stop.route.vendor;
        stop.place.look(&self.health, vendor, self.caller, now)
    }

    fn start(&self, index: usize, entry: Entry, now: Instant) -> Option<Chosen> {
        let PlannedRoute { route, place, .. } = &self.routes_planned[index];
        let running = Running::start(
            &self.health,
            place,
            route,
            entry,
            self.caller,
            &self.meter,
            now,
        )?;
        Some(Chosen {
            index,
            route: Arc::clone(route),
            running,
        })
    }
}

impl Chosen {
    /// Returns the request for this route. From then on, the call's meter counts the usage of this attempt.
    pub(super) fn attempt(&self, req: Request<Priced>) -> Request<Attempt> {
        let Priced {
            call,
            meter,
            prices,
            ..
        } = req.body();
        let route = self.route.speaking(call.format);
        let vendor = &route.vendor;
        // Prices may depend on the route's own costs. Only then is the route's name copied.
        let has_costs = !prices.route_costs().is_empty();
        meter.attempt(Attempted {
            vendor: Arc::clone(&vendor.name),
            model: has_costs.then(|| route.model.as_str().into()),
            translated: vendor.format != call.format,
            outlives_client: vendor.on_disconnect == OnDisconnect::Drain,
        });
        req.map(|priced| Attempt {
            priced,
            route,
            credential: self.running.credential(),
        })
    }
}

//! The state of vendors and routes, which all calls share: failures, calls in flight, times to the first byte, routes
//! and API keys that are paused, and vendors that the operator has disabled.
//!
//! The state of a route is stored under two names: the operator's name for the vendor, and the vendor's name for the
//! model. So routes that remain in the config keep their state when the config is reloaded. [`Health::follow`] removes
//! the state of other routes, so the config bounds its size. Each node has its own state, which a restart clears.

mod mark;
mod route;
mod state;
mod vendor;

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, RwLock},
    time::Duration,
};

use foldhash::fast;
use http::HeaderValue;
use tokio::time::Instant;

pub use self::state::{BreakerState, LastError, RouteState, VendorState};
use self::{mark::Mark, route::RouteRecord, vendor::VendorRecord};
pub(super) use self::{mark::Why, route::LastResort};
use super::{breaker::Shown, choice::Draw};
use crate::{
    key::KeyId,
    lock::{read, write},
    model::{Route, Vendor},
};

/// The health of all vendors and routes. Clones share the state.
#[derive(Clone, Debug)]
pub struct Health {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The operator chooses the vendors' names, so a fast hash is safe. The same is true for the maps of routes.
    vendors: RwLock<HashMap<Arc<str>, Arc<VendorRecord>, fast::RandomState>>,
    /// API keys are identified by a digest that has no meaning outside this process.
    digests: RandomState,
    /// Callers are also identified by a hash. The gateway assigns their ids, so a fast hash is safe.
    callers: fast::RandomState,
    draw: Draw,
}

impl Health {
    /// Creates an empty state, in which all vendors count as healthy.
    #[must_use]
    pub fn new() -> Self {
        // The seed comes from the random source with which the process seeds its hash maps.
        Self::seeded(RandomState::new().hash_one(0))
    }

    pub(super) fn seeded(seed: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                vendors: RwLock::default(),
                digests: RandomState::new(),
                callers: fast::RandomState::default(),
                draw: Draw::new(seed),
            }),
        }
    }

    /// Keeps the state of these routes, and removes the state of all others. The gateway calls this function after it
    /// has read the config. Calls that are running on removed routes continue.
    pub fn follow<'a>(&self, routes: impl IntoIterator<Item = &'a Arc<Route>>) {
        let mut stored: HashMap<Arc<str>, Vec<String>> = HashMap::new();
        for route in routes {
            let place = self.place(route);
            place.vendor.note(&route.vendor);
            let models = stored.entry(Arc::clone(&place.vendor.name)).or_default();
            models.push(route.model.clone());
        }
        let mut vendors = write(&self.shared.vendors);
        vendors.retain(|name, vendor| match stored.get(name) {
            None => false,
            Some(models) => {
                write(&vendor.routes).retain(|model, _| models.contains(model));
                true
            }
        });
    }

    /// Enables a vendor, or disables it if `enabled` is false. New calls skip a disabled vendor; in-flight calls
    /// continue. Returns whether the vendor exists. The setting survives reloads of the config, but not a restart.
    pub fn enable(&self, vendor: &str, enabled: bool) -> bool {
        let vendors = read(&self.shared.vendors);
        let Some(vendor) = vendors.get(vendor) else {
            return false;
        };
        vendor.enable(enabled);
        true
    }

    /// Returns the current state of all vendors, sorted by name.
    #[must_use]
    pub fn snapshot(&self) -> Vec<VendorState> {
        let now = Instant::now();
        let mut all: Vec<VendorState> = read(&self.shared.vendors)
            .values()
            .map(|vendor| vendor.state(now))
            .collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    pub(super) fn draw(&self) -> &Draw {
        &self.shared.draw
    }

    /// Returns the records of a route and of its vendor. Creates them if they do not exist.
    pub(super) fn place(&self, route: &Route) -> RouteHandle {
        let name = &*route.vendor.name;
        let found = read(&self.shared.vendors).get(name).map(Arc::clone);
        let vendor = found.unwrap_or_else(|| {
            let mut vendors = write(&self.shared.vendors);
            let made = || Arc::new(VendorRecord::new(&route.vendor));
            let name = Arc::clone(&route.vendor.name);
            Arc::clone(vendors.entry(name).or_insert_with(made))
        });
        let found = read(&vendor.routes).get(&route.model).map(Arc::clone);
        let route = found.unwrap_or_else(|| {
            let mut routes = write(&vendor.routes);
            let made = || Arc::new(RouteRecord::new(route));
            Arc::clone(routes.entry(route.model.clone()).or_insert_with(made))
        });
        RouteHandle { vendor, route }
    }

    pub(super) fn digest(&self, credential: &HeaderValue) -> u64 {
        let reported = credential.as_bytes();
        // A key has the same digest in every format, with or without `Bearer`.
        let key = reported.strip_prefix(b"Bearer ").unwrap_or(reported);
        self.shared.digests.hash_one(key)
    }

    /// Returns a digest by which this process identifies a caller.
    pub(super) fn caller(&self, key: &KeyId) -> u64 {
        self.shared.callers.hash_one(&**key)
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

/// The shared records of a route and of its vendor.
#[derive(Clone, Debug)]
pub(super) struct RouteHandle {
    pub(super) vendor: Arc<VendorRecord>,
    pub(super) route: Arc<RouteRecord>,
}

/// Whether a route can be tried at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// The route can be tried now.
    Ready {
        /// The expected time to the first byte, if it was measured.
        expected: Option<Duration>,
        /// The number of calls in flight on the route.
        in_flight: usize,
    },
    /// The route is paused: none of its API keys may be used yet. After `wait`, one of them may be used.
    Resting { wait: Duration, why: Why },
    /// The vendor already has its maximum number of calls in flight.
    Full,
    /// The route's breaker is open for `wait`. A call without another route is admitted after `last_resort`.
    Shut {
        wait: Duration,
        last_resort: Duration,
    },
    /// The operator has disabled the vendor.
    Disabled,
}

impl RouteHandle {
    pub(super) fn look(
        &self,
        health: &Health,
        vendor: &Vendor,
        caller: u64,
        now: Instant,
    ) -> Availability {
        if self.vendor.is_disabled() {
            return Availability::Disabled;
        }
        let resting = self.key(health, vendor, now).1;
        if self.vendor.in_flight() >= vendor.connections_max {
            return Availability::Full;
        }
        let mut inner = self.route.lock();
        match inner.breaker.shown_to(caller, now) {
            Shown::Open(wait) | Shown::Probing(wait) => Availability::Shut {
                wait,
                last_resort: inner.last_resort_in(now),
            },
            Shown::Closed | Shown::Due => match resting {
                Some((wait, why)) => Availability::Resting { wait, why },
                None => Availability::Ready {
                    expected: inner.load.expected(now),
                    in_flight: self.route.in_flight(),
                },
            },
        }
    }

    /// Returns the index of the API key to use: the next key in the rotation that may be used. If no key may be used
    /// yet, returns the key that can be used soonest, with the remaining time and the reason.
    pub(super) fn key(
        &self,
        health: &Health,
        vendor: &Vendor,
        now: Instant,
    ) -> (usize, Option<(Duration, Why)>) {
        let count = vendor.credentials.len().max(1);
        let turn = self.vendor.turn() % count;
        let parked = self.vendor.lock_parked();
        let inner = self.route.lock();
        if parked.is_empty() && inner.rests.is_empty() {
            return (turn, None);
        }
        let wait_of = |index: usize| {
            let digest = health.digest(vendor.credentials.get(index)?);
            Mark::wait(&parked, digest, now).max(Mark::wait(&inner.rests, digest, now))
        };
        (0..count)
            .map(|step| (turn + step) % count)
            .map(|index| (index, wait_of(index)))
            .min_by_key(|(_, wait)| *wait)
            .unwrap_or((turn, None))
    }
}

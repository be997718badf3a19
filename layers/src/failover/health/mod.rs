//! What is known of vendors and their routes, from call to call: who is sick, rests, is full or was
//! taken out, how fast each one is, and which keys are parked.
//!
//! Kept by the vendor's name and its name of the model, so a reload of the config keeps what it knows of
//! the routes that stay. It is bounded by the config: [`Health::follow`] forgets the others. Each node
//! knows its own; nothing is kept over a restart.

mod lock;
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
use self::{
    lock::{read, write},
    mark::Mark,
    route::RouteRecord,
    vendor::VendorRecord,
};
pub(super) use self::{mark::Why, route::LastResort};
use super::{breaker::Shown, choice::Draw};
use crate::{
    key::KeyId,
    model::{Route, Vendor},
};

/// The state of all vendors and routes. Clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The names are the operator's, so a hash that is quick will do; the same below.
    vendors: RwLock<HashMap<Arc<str>, Arc<VendorRecord>, fast::RandomState>>,
    /// Keys are told apart by a digest that means nothing outside this process.
    digests: RandomState,
    /// So are callers. Their ids are ours, so a hash that is quick will do.
    callers: fast::RandomState,
    draw: Draw,
}

impl Health {
    /// Nothing is known, and all are taken to be well.
    #[must_use]
    pub fn new() -> Self {
        // As random as the hash maps of this process are.
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

    /// Knows these routes and forgets all others: for the config's, when it is read. What is known of
    /// those that stay is kept, and calls that run on the others end as they began.
    pub fn follow<'a>(&self, routes: impl IntoIterator<Item = &'a Arc<Route>>) {
        let mut kept: HashMap<Arc<str>, Vec<String>> = HashMap::new();
        for route in routes {
            let place = self.place(route);
            place.vendor.note(&route.vendor);
            kept.entry(Arc::clone(&place.vendor.name))
                .or_default()
                .push(route.model.clone());
        }
        let mut vendors = write(&self.shared.vendors);
        vendors.retain(|name, vendor| match kept.get(name) {
            None => false,
            Some(models) => {
                write(&vendor.routes).retain(|model, _| models.contains(model));
                true
            }
        });
    }

    /// Takes a vendor out (`false`) or puts it back. New calls pass it by; those that run go on. Says
    /// whether there is such a vendor. It stays so until a restart, over reloads.
    pub fn enable(&self, vendor: &str, enabled: bool) -> bool {
        let vendors = read(&self.shared.vendors);
        let Some(vendor) = vendors.get(vendor) else {
            return false;
        };
        vendor.enable(enabled);
        true
    }

    /// What is known now, by the vendors' names.
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

    /// The records of a route, made when they are not there.
    pub(super) fn place(&self, route: &Route) -> RouteHandle {
        let name = &*route.vendor.name;
        let found = read(&self.shared.vendors).get(name).map(Arc::clone);
        let vendor = found.unwrap_or_else(|| {
            let mut vendors = write(&self.shared.vendors);
            let made = || Arc::new(VendorRecord::new(&route.vendor));
            Arc::clone(
                vendors
                    .entry(Arc::clone(&route.vendor.name))
                    .or_insert_with(made),
            )
        });
        let found = read(&vendor.routes).get(&route.model).map(Arc::clone);
        let record = found.unwrap_or_else(|| {
            let mut routes = write(&vendor.routes);
            let made = || Arc::new(RouteRecord::new(route));
            Arc::clone(routes.entry(route.model.clone()).or_insert_with(made))
        });
        RouteHandle {
            vendor,
            route: record,
        }
    }

    pub(super) fn digest(&self, credential: &HeaderValue) -> u64 {
        let said = credential.as_bytes();
        // One key, whatever the format that the vendor is spoken to.
        let key = said.strip_prefix(b"Bearer ").unwrap_or(said);
        self.shared.digests.hash_one(key)
    }

    /// What a caller is told apart from others by.
    pub(super) fn caller(&self, key: &KeyId) -> u64 {
        self.shared.callers.hash_one(&**key)
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

/// The records that a call on a route needs.
#[derive(Clone, Debug)]
pub(super) struct RouteHandle {
    pub(super) vendor: Arc<VendorRecord>,
    pub(super) route: Arc<RouteRecord>,
}

/// Whether a route can be tried now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// It can.
    Ready {
        /// The time to its first byte, where that was measured.
        expected: Option<Duration>,
        /// Calls on it.
        in_flight: usize,
    },
    /// It could, but each of its keys is to be left alone, the first one for so long.
    Resting { wait: Duration, why: Why },
    /// As many calls run at the vendor as may.
    Full,
    /// It failed too often; it is tried again after so long, by a call that has no other route after so long.
    Shut {
        wait: Duration,
        last_resort: Duration,
    },
    /// The operator has taken its vendor out.
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

    /// The key to use: of those that are free the next in turn, else the one that is free the soonest,
    /// with how long it should be left alone, and why.
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

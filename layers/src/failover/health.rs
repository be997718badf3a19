//! What is known of vendors and their routes, from call to call: who is sick, rests, is full or was
//! taken out, how fast each one is, and which keys are parked.
//!
//! Kept by the vendor's name and its name of the model, so a reload of the config keeps what it knows of
//! the routes that stay. It is bounded by the config: [`Health::follow`] forgets the others. Each node
//! knows its own; nothing is kept over a restart.

use std::{
    collections::HashMap,
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use foldhash::fast;
use http::{HeaderValue, StatusCode};
use tokio::time::Instant;

use super::{
    breaker::{Breaker, Pass, Shown, Trouble},
    choice::Draw,
    load::PeakEwma,
};
use crate::{
    key::KeyId,
    model::{Route, Vendor},
    usage::Meter,
};

/// A key that a vendor refused is left out for so long: the operator has to act, and may have.
const KEY_PARKED: Duration = Duration::from_secs(300);
/// No vendor is left alone for longer because of one answer, whatever that asks for.
const REST_MAX: Duration = Duration::from_secs(300);

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
        vendor.disabled.store(!enabled, Ordering::Relaxed);
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
        self.shared.digests.hash_one(credential.as_bytes())
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

/// What is known of a vendor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorState {
    /// The operator's name for it.
    pub name: Arc<str>,
    /// The operator has taken it out.
    pub disabled: bool,
    /// Calls at it now, streams to their ends.
    pub in_flight: usize,
    /// The most of them.
    pub connections_max: usize,
    /// Our keys at it.
    pub keys: usize,
    /// Of these, how many it has refused lately.
    pub keys_parked: usize,
    /// By the vendor's name of the model.
    pub routes: Vec<RouteState>,
}

/// What is known of a vendor's model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteState {
    /// The vendor's name of the model.
    pub model: String,
    /// Whether calls are let through that have another route.
    pub breaker: BreakerState,
    /// The newest that the vendor has said of it is that it has no such model (404).
    pub model_unknown: bool,
    /// Failures in a row.
    pub failures: u32,
    /// Calls on it now, streams to their ends.
    pub in_flight: usize,
    /// The time to the first byte that is to be expected; `None` where it was never measured.
    pub first_byte: Option<Duration>,
    /// Time until it is tried again; `None` while it is.
    pub open_for: Option<Duration>,
    /// Time that it rests: with all its keys, by the vendor's wish, or as the vendor has no such model.
    pub rests_for: Option<Duration>,
    /// The newest error of the vendor's; answers since then leave it.
    pub last_error: Option<LastError>,
}

/// What a vendor did instead of answering: a limit and a refusal of our key too, a refusal of a caller's request
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastError {
    /// How long ago.
    pub ago: Duration,
    /// The vendor's status; `None` where it gave none, or answered something broken.
    pub status: Option<StatusCode>,
}

/// Whether a route lets calls through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BreakerState {
    /// It does.
    Closed,
    /// It does not, unless they have no other: for all calls, or for those of the one caller who has met all
    /// failures.
    Open,
    /// One call at a time, to see.
    HalfOpen,
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

/// Why a key is to be left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// It is at its limit.
    Limited,
    /// The vendor is down, and has said for how long.
    Down,
    /// The vendor refused it.
    Refused,
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
        if self.vendor.in_flight.load(Ordering::Relaxed) >= vendor.connections_max {
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
        let turn = self.vendor.turn.load(Ordering::Relaxed) % count;
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

/// A vendor, from call to call.
#[derive(Debug)]
pub(super) struct VendorRecord {
    pub(super) name: Arc<str>,
    disabled: AtomicBool,
    in_flight: AtomicUsize,
    /// Whose turn it is among the keys.
    turn: AtomicUsize,
    parked: Mutex<Vec<Mark>>,
    routes: RwLock<HashMap<String, Arc<RouteRecord>, fast::RandomState>>,
    /// What the config says, to be shown beside what is.
    connections_max: AtomicUsize,
    keys: AtomicUsize,
}

impl VendorRecord {
    fn new(vendor: &Vendor) -> Self {
        Self {
            name: Arc::clone(&vendor.name),
            disabled: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            parked: Mutex::default(),
            routes: RwLock::default(),
            connections_max: AtomicUsize::new(vendor.connections_max),
            keys: AtomicUsize::new(vendor.credentials.len()),
        }
    }

    fn note(&self, vendor: &Vendor) {
        self.connections_max
            .store(vendor.connections_max, Ordering::Relaxed);
        self.keys.store(vendor.credentials.len(), Ordering::Relaxed);
    }

    /// Whether the operator has taken it out.
    pub(super) fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    /// Takes one of `max` places, if one is free.
    pub(super) fn enter(&self, max: usize) -> bool {
        let more = |count: usize| (count < max).then_some(count + 1);
        self.in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub(super) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// The next call takes the key behind this one.
    pub(super) fn take_turn(&self, credential: usize) {
        self.turn
            .store(credential.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn park(&self, digest: u64, now: Instant) {
        Mark::set(
            &mut self.lock_parked(),
            digest,
            (KEY_PARKED, Why::Refused),
            now,
        );
    }

    pub(super) fn unpark(&self, digest: u64) {
        self.lock_parked().retain(|mark| mark.digest != digest);
    }

    fn lock_parked(&self) -> MutexGuard<'_, Vec<Mark>> {
        lock(&self.parked)
    }

    fn state(&self, now: Instant) -> VendorState {
        let keys = self.keys.load(Ordering::Relaxed);
        let parked = self.lock_parked();
        let keys_parked = parked.iter().filter(|mark| mark.until > now).count();
        drop(parked);
        let mut routes: Vec<RouteState> = read(&self.routes)
            .values()
            .map(|route| route.state(keys, now))
            .collect();
        routes.sort_by(|one, other| one.model.cmp(&other.model));
        VendorState {
            name: Arc::clone(&self.name),
            disabled: self.disabled.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            connections_max: self.connections_max.load(Ordering::Relaxed),
            keys,
            keys_parked: keys_parked.min(keys),
            routes,
        }
    }
}

/// A vendor's model, from call to call.
#[derive(Debug)]
pub(super) struct RouteRecord {
    model: String,
    pub(super) identity: u64,
    in_flight: AtomicUsize,
    /// A call tries it although it rests.
    trying: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) breaker: Breaker,
    pub(super) load: PeakEwma,
    /// Of the call that tries it last although it is shut.
    pub(super) tried: Option<Meter>,
    /// Keys that the vendor wants to be left alone with on this model.
    rests: Vec<Mark>,
    pub(super) last_error: Option<(Instant, Option<StatusCode>)>,
}

/// A call has no other route.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastResort {
    /// It has asked nobody yet.
    pub(super) first: bool,
}

impl Inner {
    /// In how long a call is let through that has no other route.
    fn last_resort_in(&mut self, now: Instant) -> Duration {
        // Whoever has a connection may wait for the answer for long, and the others need not.
        let reached = |meter: &Meter| meter.look(|reading| reading.dispatched);
        if self.tried.as_ref().is_some_and(reached) {
            self.breaker.reached();
        }
        self.breaker.last_resort_in(now)
    }

    /// The vendor failed a call.
    pub(super) fn failed(&mut self, pass: Pass, trouble: Trouble, now: Instant, random: u8) {
        // Its meter will be another vendor's.
        self.tried = None;
        self.breaker.failed(pass, trouble, now, random);
    }
}

impl RouteRecord {
    fn new(route: &Route) -> Self {
        // Fixed keys: the same on every node.
        let mut identity = DefaultHasher::new();
        (&*route.vendor.name, &route.model).hash(&mut identity);
        Self {
            model: route.model.clone(),
            identity: identity.finish(),
            in_flight: AtomicUsize::new(0),
            trying: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                breaker: Breaker::new(),
                load: PeakEwma::default(),
                tried: None,
                rests: Vec::new(),
                last_error: None,
            }),
        }
    }

    /// Lets a call of this caller through, if it does: as its `last_resort` also where it is shut.
    pub(super) fn pass(
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

    pub(super) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the one place of calls that try it although it rests.
    pub(super) fn start_trying(&self) -> bool {
        !self.trying.swap(true, Ordering::Relaxed)
    }

    pub(super) fn stop_trying(&self) {
        self.trying.store(false, Ordering::Relaxed);
    }

    pub(super) fn rest(&self, digest: u64, wait: Duration, why: Why, now: Instant) {
        Mark::set(
            &mut self.lock().rests,
            digest,
            (wait.min(REST_MAX), why),
            now,
        );
    }

    pub(super) fn wake(&self, digest: u64) {
        self.lock().rests.retain(|mark| mark.digest != digest);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn state(&self, keys: usize, now: Instant) -> RouteState {
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

/// A key that is to be left alone for a while.
#[derive(Clone, Copy, Debug)]
struct Mark {
    digest: u64,
    until: Instant,
    why: Why,
}

impl Mark {
    /// Sets a key's mark, and wipes out those that are over: there are as many as keys, at most.
    fn set(marks: &mut Vec<Self>, digest: u64, (wait, why): (Duration, Why), now: Instant) {
        let until = now + wait;
        let before = marks.iter().find(|mark| mark.digest == digest);
        let until = before.map_or(until, |before| before.until.max(until));
        marks.retain(|mark| mark.digest != digest && mark.until > now);
        marks.push(Self { digest, until, why });
    }

    fn wait(marks: &[Self], digest: u64, now: Instant) -> Option<(Duration, Why)> {
        let mark = marks.iter().find(|mark| mark.digest == digest)?;
        (mark.until > now).then(|| (mark.until - now, mark.why))
    }
}

// What these locks guard is never half written, whatever panics.

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

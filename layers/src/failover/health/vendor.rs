//! A vendor, from call to call.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use foldhash::fast;
use tokio::time::Instant;

use super::{
    lock::{lock, read},
    mark::{Mark, Why},
    route::RouteRecord,
    state::{RouteState, VendorState},
};
use crate::model::Vendor;

/// A key that a vendor refused is left out for so long: the operator has to act, and may have.
const KEY_PARKED: Duration = Duration::from_secs(300);

/// A vendor, from call to call.
#[derive(Debug)]
pub(in crate::failover) struct VendorRecord {
    pub(super) name: Arc<str>,
    disabled: AtomicBool,
    in_flight: AtomicUsize,
    /// Whose turn it is among the keys.
    turn: AtomicUsize,
    parked: Mutex<Vec<Mark>>,
    /// By the vendor's name of the model.
    pub(super) routes: RwLock<HashMap<String, Arc<RouteRecord>, fast::RandomState>>,
    /// What the config says, to be shown beside what is.
    connections_max: AtomicUsize,
    keys: AtomicUsize,
}

impl VendorRecord {
    pub(super) fn new(vendor: &Vendor) -> Self {
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

    /// What a config says that was read anew.
    pub(super) fn note(&self, vendor: &Vendor) {
        self.connections_max
            .store(vendor.connections_max, Ordering::Relaxed);
        self.keys.store(vendor.credentials.len(), Ordering::Relaxed);
    }

    pub(super) fn enable(&self, enabled: bool) {
        self.disabled.store(!enabled, Ordering::Relaxed);
    }

    /// Calls at it now.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whose turn it is among the keys.
    pub(super) fn turn(&self) -> usize {
        self.turn.load(Ordering::Relaxed)
    }

    /// Whether the operator has taken it out.
    pub(in crate::failover) fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    /// Takes one of `max` places, if one is free.
    pub(in crate::failover) fn enter(&self, max: usize) -> bool {
        let more = |count: usize| (count < max).then_some(count + 1);
        self.in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub(in crate::failover) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// The next call takes the key behind this one.
    pub(in crate::failover) fn take_turn(&self, credential: usize) {
        self.turn
            .store(credential.wrapping_add(1), Ordering::Relaxed);
    }

    pub(in crate::failover) fn park(&self, digest: u64, now: Instant) {
        Mark::set(
            &mut self.lock_parked(),
            digest,
            (KEY_PARKED, Why::Refused),
            now,
        );
    }

    pub(in crate::failover) fn unpark(&self, digest: u64) {
        self.lock_parked().retain(|mark| mark.digest != digest);
    }

    /// Keys that it has refused.
    pub(super) fn lock_parked(&self) -> MutexGuard<'_, Vec<Mark>> {
        lock(&self.parked)
    }

    pub(super) fn state(&self, now: Instant) -> VendorState {
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
            disabled: self.is_disabled(),
            in_flight: self.in_flight(),
            connections_max: self.connections_max.load(Ordering::Relaxed),
            keys,
            keys_parked: keys_parked.min(keys),
            routes,
        }
    }
}

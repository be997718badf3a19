//! The state of a vendor that all calls share.

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

/// The time for which a key that the vendor rejected is not used: the operator has to act, and may have done so by
/// then.
const KEY_PARKED: Duration = Duration::from_secs(300);

/// The state of a vendor that all calls share.
#[derive(Debug)]
pub(in crate::failover) struct VendorRecord {
    pub(super) name: Arc<str>,
    disabled: AtomicBool,
    in_flight: AtomicUsize,
    /// The index of the API key that is used next.
    turn: AtomicUsize,
    parked: Mutex<Vec<Mark>>,
    /// The vendor's routes, by its name of the model.
    pub(super) routes: RwLock<HashMap<String, Arc<RouteRecord>, fast::RandomState>>,
    /// Configured values, shown to operators next to the current ones.
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

    /// Applies the vendor's values from a config that was reloaded.
    pub(super) fn note(&self, vendor: &Vendor) {
        self.connections_max
            .store(vendor.connections_max, Ordering::Relaxed);
        self.keys.store(vendor.credentials.len(), Ordering::Relaxed);
    }

    pub(super) fn enable(&self, enabled: bool) {
        self.disabled.store(!enabled, Ordering::Relaxed);
    }

    /// Returns the number of calls in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the index of the API key that is used next.
    pub(super) fn turn(&self) -> usize {
        self.turn.load(Ordering::Relaxed)
    }

    /// Returns whether the operator has disabled the vendor.
    pub(in crate::failover) fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    /// Takes one of `max` slots, if one is free.
    pub(in crate::failover) fn enter(&self, max: usize) -> bool {
        let more = |count: usize| (count < max).then_some(count + 1);
        self.in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub(in crate::failover) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Passes the turn to the key after this one.
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

    /// The API keys that the vendor has rejected.
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

//! The state of one vendor, shared by all calls.

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
    mark::{Mark, Why},
    route::RouteRecord,
    state::{RouteState, VendorState},
};
use crate::{
    lock::{lock, read},
    model::Vendor,
};

/// How long the gateway does not use an API key that the vendor rejected. The operator must act, and may have acted
/// after this time.
const KEY_PARKED: Duration = Duration::from_secs(300);

/// The state of one vendor, shared by all calls.
#[derive(Debug, Default)]
pub(in crate::failover) struct VendorRecord {
    pub(super) name: Arc<str>,
    disabled: AtomicBool,
    in_flight: AtomicUsize,
    /// The index of the next API key in the rotation.
    turn: AtomicUsize,
    parked: Mutex<Vec<Mark>>,
    /// The vendor's routes, by the vendor's name for the model.
    pub(super) routes: RwLock<HashMap<String, Arc<RouteRecord>, fast::RandomState>>,
    /// The configured limit of calls in flight. It is shown to operators next to the number of calls in flight.
    connections_max: AtomicUsize,
    keys: AtomicUsize,
}

impl VendorRecord {
    pub(super) fn new(vendor: &Vendor) -> Self {
        let record = Self {
            name: Arc::clone(&vendor.name),
            ..Self::default()
        };
        record.note(vendor);
        record
    }

    /// Stores the vendor's limit and its number of API keys, which may change when the config is reloaded.
    pub(super) fn note(&self, vendor: &Vendor) {
        self.connections_max
            .store(vendor.connections_max, Ordering::Relaxed);
        self.keys.store(vendor.credentials.len(), Ordering::Relaxed);
    }

    pub(super) fn enable(&self, enabled: bool) {
        self.disabled.store(!enabled, Ordering::Relaxed);
    }

    /// Returns the number of calls in flight at the vendor.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the index of the next API key in the rotation.
    pub(super) fn turn(&self) -> usize {
        self.turn.load(Ordering::Relaxed)
    }

    /// Returns whether the operator has disabled the vendor.
    pub(in crate::failover) fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    /// Counts one more call in flight, if fewer than `max` are in flight. Returns whether the call was counted.
    pub(in crate::failover) fn enter(&self, max: usize) -> bool {
        let more = |count: usize| (count < max).then_some(count + 1);
        self.in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub(in crate::failover) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes the API key after this one the next key in the rotation.
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

    /// Locks the list of API keys that the vendor has rejected.
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

//! Counters of vendors: how quickly they answer, and how often they fail.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use foldhash::fast::FixedState;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::{histograms::histograms, requests::HEAD_SECONDS};
use crate::catalog::snapshot::Snapshot;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Vendor {
    vendor: Arc<str>,
}

/// The counters of all vendors.
#[derive(Debug)]
pub(crate) struct Vendors {
    /// Counters by the vendor's name; vendors of earlier configurations stay.
    counts: RwLock<HashMap<Arc<str>, Arc<VendorCounts>, FixedState>>,
    head: Family<Vendor, Histogram>,
    failures: Family<Vendor, Counter>,
}

/// The counters of one vendor.
#[derive(Debug)]
pub(crate) struct VendorCounts {
    head: Histogram,
    failures: Counter,
}

impl VendorCounts {
    /// Counts an answer, with the time to its beginning.
    pub(crate) fn answered(&self, time: Duration) {
        self.head.observe(time.as_secs_f64());
    }

    /// Counts a failed attempt.
    pub(crate) fn failed(&self) {
        self.failures.inc();
    }
}

impl Vendors {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let vendors = Self {
            counts: RwLock::default(),
            head: histograms(|| Histogram::new(HEAD_SECONDS)),
            failures: Family::default(),
        };
        series! { registry, vendors:
            head "tollgate_vendor_head_seconds" "Time from a request to a vendor to the beginning of its answer: the first event of a stream, or a whole \
             answer that is not streamed";
            failures "tollgate_vendor_failures" "Requests that the vendor did not answer: unreachable, too slow, broken, at its limit, or the gateway's \
             key refused. A model that the vendor does not have is not counted";
        }
        vendors
    }

    pub(super) fn follow(&self, snapshot: &Snapshot) {
        let mut counts = self.counts.write().unwrap_or_else(PoisonError::into_inner);
        for vendor in snapshot.vendors() {
            let name = &vendor.name;
            if !counts.contains_key(name) {
                let labels = Vendor {
                    vendor: Arc::clone(name),
                };
                let made = VendorCounts {
                    head: self.head.get_or_create(&labels).clone(),
                    failures: self.failures.get_or_create(&labels).clone(),
                };
                counts.insert(Arc::clone(name), Arc::new(made));
            }
        }
    }

    /// Returns the counters of a vendor; `None` if no configuration has named the vendor.
    pub(crate) fn of(&self, vendor: &str) -> Option<Arc<VendorCounts>> {
        let counts = self.counts.read().unwrap_or_else(PoisonError::into_inner);
        counts.get(vendor).cloned()
    }
}

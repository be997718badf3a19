//! Metrics of vendors: how quickly vendors answer, and how often they fail.

use std::{collections::HashMap, sync::Arc, time::Duration};

use foldhash::fast::FixedState;
use parking_lot::RwLock;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::{
    families::{NameLabels, histograms},
    requests::HEAD_SECONDS,
};
use crate::catalog::snapshot::Snapshot;

/// Response times and failures of all vendors.
#[derive(Debug)]
pub(crate) struct Vendors {
    /// The metrics by vendor name. Vendors of earlier configurations are kept.
    counts: RwLock<HashMap<Arc<str>, Arc<VendorCounts>, FixedState>>,
    head: Family<NameLabels<1>, Histogram>,
    failures: Family<NameLabels<1>, Counter>,
}

/// Response times and failures of one vendor.
#[derive(Debug)]
pub(crate) struct VendorCounts {
    head: Histogram,
    failures: Counter,
}

impl VendorCounts {
    /// Records that the vendor has answered, and the time to the beginning of its answer.
    pub(crate) fn answered(&self, time: Duration) {
        self.head.observe(time.as_secs_f64());
    }

    /// Counts an attempt at which the vendor failed.
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
            failures "tollgate_vendor_failures" "Requests that the vendor did not answer, because it was unreachable, too slow, broken or at its limit, \
             or refused the gateway's key. A 404 for a model that the vendor does not have is not counted";
        }
        vendors
    }

    pub(super) fn follow(&self, snapshot: &Snapshot) {
        let mut counts = self.counts.write();
        for vendor in snapshot.vendors() {
            let name = &vendor.name;
            if !counts.contains_key(name) {
                let labels = [("vendor", Arc::clone(name))];
                let made = VendorCounts {
                    head: self.head.get_or_create_owned(&labels),
                    failures: self.failures.get_or_create_owned(&labels),
                };
                counts.insert(Arc::clone(name), Arc::new(made));
            }
        }
    }

    /// Returns the metrics of a vendor; `None` if no configuration has named it.
    pub(crate) fn find(&self, vendor: &str) -> Option<Arc<VendorCounts>> {
        self.counts.read().get(vendor).cloned()
    }
}

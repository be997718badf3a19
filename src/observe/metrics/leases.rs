//! Metrics of this gateway's leases and lease turns.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tollgate_layers::reserve::redis::LeaseCounts;

use super::{families::WordLabel, parts::Parts};
use crate::text::time::millis;

/// Metrics of leases. The ledger keeps the counts; a scrape copies them into these metrics.
#[derive(Debug, Default)]
pub(super) struct Leases {
    open: Gauge,
    leased: Gauge<f64, AtomicU64>,
    holds: Counter,
    turns: Counter,
    ends: Counter,
    ends_waited: Counter<f64, Parts<1000>>,
    recalls_asked: Counter,
    recalls_heard: Counter,
    refusals: Counter,
    lost: Counter,
}

impl Leases {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let recalls = Family::<WordLabel, Counter>::default();
        let counter = |side| recalls.get_or_create_owned(&[("side", side)]);
        let leases = Self {
            recalls_asked: counter("asked"),
            recalls_heard: counter("heard"),
            ..Self::default()
        };
        series! { registry, leases:
            open "tollgate_leases_open" "Leases that this gateway has; 0 if ledger.lease_ms_max is 0";
            leased "tollgate_leased_rubles" "Money in the leases of this gateway, as last confirmed by Redis";
            holds "tollgate_lease_holds" "Holds granted from a lease, without a request to Redis";
            turns "tollgate_lease_turns" "Lease turns (one script each) that Redis has answered";
            ends "tollgate_lease_ends" "Ended calls reported to Redis in lease turns";
            ends_waited "tollgate_lease_ends_waited_seconds" "Time from the earliest end of a call in a lease turn to Redis's answer, summed over all turns";
        }
        registry.register(
            "tollgate_lease_recalls",
            "Leases that this gateway recalled before a refusal, and leases of this gateway that others recalled",
            recalls,
        );
        series! { registry, leases:
            refusals "tollgate_lease_refusals" "Calls refused although leases were recalled for them";
            lost "tollgate_leases_lost" "Leases of this gateway that another process took over or Redis no longer has";
        }
        leases
    }

    pub(super) fn set(&self, now: &LeaseCounts) {
        self.open.set(i64::try_from(now.open).unwrap_or(i64::MAX));
        self.leased.set(now.leased_rub.micro() as f64 / 1e6);
        self.ends_waited.inner().set(millis(now.ends_waited));
        for (counter, count) in [
            (&self.holds, now.granted),
            (&self.turns, now.turns),
            (&self.ends, now.ends),
            (&self.recalls_asked, now.recalls),
            (&self.recalls_heard, now.recalls_heard),
            (&self.refusals, now.refused),
            (&self.lost, now.lost),
        ] {
            counter.inner().store(count, Ordering::Relaxed);
        }
    }
}

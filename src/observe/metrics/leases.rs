//! Money that this gateway holds by itself, and how it tells Redis of it.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tollgate_layers::reserve::redis::LeaseCounts;

use super::parts::Parts;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Side {
    side: &'static str,
}

/// What the ledger counts; a scrape copies it.
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
        let recalls = Family::<Side, Counter>::default();
        let side = |side| recalls.get_or_create(&Side { side }).clone();
        let leases = Self {
            recalls_asked: side("asked"),
            recalls_heard: side("heard"),
            ..Self::default()
        };
        registry.register(
            "tollgate_leases_open",
            "Leases that this gateway has; 0 where ledger.lease_ms_max is",
            leases.open.clone(),
        );
        registry.register(
            "tollgate_leased_rubles",
            "What they have, as far as Redis has answered",
            leases.leased.clone(),
        );
        registry.register(
            "tollgate_lease_holds",
            "Holds that were granted from a lease, without Redis",
            leases.holds.clone(),
        );
        registry.register(
            "tollgate_lease_turns",
            "Turns that Redis has answered: each is one script",
            leases.turns.clone(),
        );
        registry.register(
            "tollgate_lease_ends",
            "Ends of calls that it was told in them",
            leases.ends.clone(),
        );
        registry.register(
            "tollgate_lease_ends_waited_seconds",
            "How long the oldest end of each turn had waited for the turn's answer, together",
            leases.ends_waited.clone(),
        );
        registry.register(
            "tollgate_lease_recalls",
            "Leases that were asked for by this gateway before a refusal, and its own that heard so from another",
            recalls,
        );
        registry.register(
            "tollgate_lease_refusals",
            "Calls that were refused after a recall",
            leases.refusals.clone(),
        );
        registry.register(
            "tollgate_leases_lost",
            "Leases that turned out to be another's, or none's: fenced",
            leases.lost.clone(),
        );
        leases
    }

    pub(super) fn set(&self, now: &LeaseCounts) {
        self.open.set(i64::try_from(now.open).unwrap_or(i64::MAX));
        self.leased.set(now.leased_rub.micro() as f64 / 1e6);
        let waited_ms = u64::try_from(now.ends_waited.as_millis()).unwrap_or(u64::MAX);
        self.ends_waited.inner().set(waited_ms);
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

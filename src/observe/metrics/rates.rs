//! Counters of what rate limits over all gateways cost in Redis.

use std::sync::atomic::Ordering;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tollgate_layers::rate_limit::shared::RateCounts;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Of {
    limit: &'static str,
}

/// Counters of rate limits in Redis. The limiters count, and a scrape copies their counts.
#[derive(Debug, Default)]
pub(super) struct Rates {
    takes: Counter,
    spends: Counter,
    permits: Counter,
    given_back: Counter,
    waited: Counter,
    failures: Counter,
}

impl Rates {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let commands = Family::<Of, Counter>::default();
        let of = |limit| commands.get_or_create(&Of { limit }).clone();
        let rates = Self {
            takes: of("requests"),
            spends: of("tokens"),
            ..Self::default()
        };
        registry.register(
            "tollgate_rate_commands",
            "Scripts sent to Redis for the per-minute limits of keys",
            commands,
        );
        registry.register(
            "tollgate_rate_permits",
            "Permits granted to this gateway",
            rates.permits.clone(),
        );
        registry.register(
            "tollgate_rate_permits_given_back",
            "Permits returned unused",
            rates.given_back.clone(),
        );
        registry.register(
            "tollgate_rate_waits",
            "Limits of requests decided by Redis' answer, in parallel with the ledger's",
            rates.waited.clone(),
        );
        registry.register(
            "tollgate_rate_failures",
            "Commands without an answer of Redis: counted by this gateway alone",
            rates.failures.clone(),
        );
        rates
    }

    pub(super) fn set(&self, now: &RateCounts) {
        for (counter, count) in [
            (&self.takes, now.takes),
            (&self.spends, now.spends),
            (&self.permits, now.permits),
            (&self.given_back, now.given_back),
            (&self.waited, now.waited),
            (&self.failures, now.failures),
        ] {
            counter.inner().store(count, Ordering::Relaxed);
        }
    }
}

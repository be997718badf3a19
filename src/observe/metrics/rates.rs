//! Counters of the work in Redis for rate limits over all gateways.

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

/// Counters of rate limits in Redis. The limiters keep the counts, and a scrape copies them.
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
        series! { registry, rates:
            permits "tollgate_rate_permits" "Permits for requests of keys that Redis granted to this gateway";
            given_back "tollgate_rate_permits_given_back" "Permits for requests of keys that this gateway returned to Redis unused";
            waited "tollgate_rate_waits" "Rate-limit decisions that waited for Redis, in parallel with the ledger";
            failures "tollgate_rate_failures" "Rate-limit scripts that Redis did not answer; their requests were counted by this gateway alone";
        }
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

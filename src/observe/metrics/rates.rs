//! Metrics of the per-minute limits of keys, which Redis counts for all gateways.

use std::sync::atomic::Ordering;

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tollgate_layers::rate_limit::shared::RateCounts;

use super::families::WordLabel;

/// Metrics of rate limits in Redis. The limiters keep the counts; a scrape copies them into these metrics.
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
        let commands = Family::<WordLabel, Counter>::default();
        let counter = |limit| commands.get_or_create_owned(&[("limit", limit)]);
        let rates = Self {
            takes: counter("requests"),
            spends: counter("tokens"),
            ..Self::default()
        };
        registry.register(
            "tollgate_rate_commands",
            "Scripts sent to Redis for the per-minute limits of keys",
            commands,
        );
        series! { registry, rates:
            permits "tollgate_rate_permits" "Permits for requests of keys, granted by Redis to this gateway";
            given_back "tollgate_rate_permits_given_back" "Permits for requests of keys, returned to Redis by this gateway unused";
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

//! What the rates of keys cost Redis, where they hold over all gateways.

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

/// What the limiters count; a scrape copies it.
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
            "What Redis was asked for the rates of keys by the minute: each is one script",
            commands,
        );
        registry.register(
            "tollgate_rate_permits",
            "Requests that it let this gateway admit",
            rates.permits.clone(),
        );
        registry.register(
            "tollgate_rate_permits_given_back",
            "Of these, what no request came for",
            rates.given_back.clone(),
        );
        registry.register(
            "tollgate_rate_waits",
            "Limits of requests that were decided by Redis' answer, beside the ledger's",
            rates.waited.clone(),
        );
        registry.register(
            "tollgate_rate_failures",
            "Questions that Redis did not answer: this gateway counted alone",
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

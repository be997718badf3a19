//! Counts requests and tokens per minute, per key. If the ledger is Redis, requests and tokens of all gateways are
//! counted together in Redis. Otherwise this process is the only gateway, and it counts in its memory.

use std::time::Duration;

use tollgate_layers::{
    key::KeyId,
    rate_limit::{
        Gcra, Limiter, PostPaid, Quota,
        shared::{
            RateCounts, RedisRates, SharedGcra, SharedPostPaid, SharedRates, SharedRatesTask,
        },
    },
};

use crate::ledger::AnyLedger;

/// The maximum number of keys whose requests and tokens are counted in memory.
pub(crate) const KEYS_MAX: usize = 100_000;

/// Counts requests and tokens per minute, per key. Clones share the counts.
#[derive(Clone, Debug)]
pub struct KeyRates {
    /// Counts requests per minute, per key.
    pub(crate) requests: KeyRequests,
    /// Counts tokens per minute, per key.
    pub(crate) tokens: KeyTokens,
    shared: Option<SharedRates<RedisRates>>,
}

impl KeyRates {
    /// Creates counters in Redis if the ledger is Redis, otherwise in this process. With Redis, also returns the task
    /// that sends the counters' requests to Redis.
    pub(crate) fn new(store: &AnyLedger) -> (Self, Option<SharedRatesTask>) {
        match store {
            AnyLedger::Memory(_) | AnyLedger::Sqlite(_) => {
                let rates = Self {
                    requests: KeyRequests::Here(Gcra::new(KEYS_MAX)),
                    tokens: KeyTokens::Here(PostPaid::new(KEYS_MAX)),
                    shared: None,
                };
                (rates, None)
            }
            AnyLedger::Redis(outbox) => {
                let store = RedisRates::new(outbox.ledger().conn().clone());
                let (shared, task) = SharedRates::new(store);
                let requests = SharedGcra::new(shared.clone(), "key-minute", KEYS_MAX);
                let tokens = SharedPostPaid::new(shared.clone(), "key-tokens", KEYS_MAX);
                let rates = Self {
                    requests: KeyRequests::Everywhere(requests),
                    tokens: KeyTokens::Everywhere(tokens),
                    shared: Some(shared),
                };
                (rates, Some(task))
            }
        }
    }

    /// Returns how many rate-limit requests were sent to Redis, and how they ended. All counts are zero without Redis.
    pub(crate) fn counts(&self) -> RateCounts {
        (self.shared.as_ref()).map_or_else(RateCounts::default, SharedRates::counts)
    }
}

/// A limit per key, counted either by this gateway alone or by Redis for all gateways together.
#[derive(Clone, Debug)]
pub(crate) enum PerKey<H, E> {
    Here(H),
    Everywhere(E),
}

/// Counts requests per minute against the limit of each key.
pub(crate) type KeyRequests = PerKey<Gcra<KeyId>, SharedGcra<KeyId, RedisRates>>;

/// Counts tokens per minute against the limit of each key.
pub(crate) type KeyTokens = PerKey<PostPaid<KeyId>, SharedPostPaid<KeyId, RedisRates>>;

impl KeyTokens {
    /// Adds the tokens that a call has used to the count of its key.
    pub(crate) fn take(&self, id: &KeyId, tokens: u64) {
        match self {
            Self::Here(limiter) => limiter.take(id, tokens),
            Self::Everywhere(limiter) => limiter.take(id, tokens),
        }
    }
}

impl<H: Limiter<KeyId>, E: Limiter<KeyId>> Limiter<KeyId> for PerKey<H, E> {
    async fn admit(&self, id: KeyId, quota: Quota) -> Result<(), Duration> {
        match self {
            Self::Here(limiter) => limiter.admit(id, quota).await,
            Self::Everywhere(limiter) => limiter.admit(id, quota).await,
        }
    }

    fn admit_now(&self, id: &KeyId, quota: Quota) -> Option<Result<(), Duration>> {
        match self {
            Self::Here(limiter) => limiter.admit_now(id, quota),
            Self::Everywhere(limiter) => limiter.admit_now(id, quota),
        }
    }
}

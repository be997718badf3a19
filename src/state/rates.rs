//! Keys' limits per minute. They are counted in Redis over all gateways if the ledger is Redis. Otherwise they are
//! counted in this process, which is then the only gateway.

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

/// The maximum number of keys whose rates are kept in memory.
pub(crate) const KEYS_MAX: usize = 100_000;

/// The counters of keys' requests and tokens per minute. Clones share them.
#[derive(Clone, Debug)]
pub struct KeyRates {
    /// The limit of requests per minute.
    pub(crate) requests: KeyRequests,
    /// The limit of tokens per minute.
    pub(crate) tokens: KeyTokens,
    shared: Option<SharedRates<RedisRates>>,
}

impl KeyRates {
    /// Counts in Redis if the ledger is Redis, otherwise in this process. With Redis, the returned task sends the
    /// requests to Redis.
    pub(crate) fn of(store: &AnyLedger) -> (Self, Option<SharedRatesTask>) {
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

    /// Returns counts of the requests to Redis; all counts are zero without Redis.
    pub(crate) fn counts(&self) -> RateCounts {
        (self.shared.as_ref()).map_or_else(RateCounts::default, SharedRates::counts)
    }
}

/// A limit per key: counted by this gateway alone, or over all gateways by Redis.
#[derive(Clone, Debug)]
pub(crate) enum PerKey<H, E> {
    Here(H),
    Everywhere(E),
}

/// The limit of requests per minute, per key.
pub(crate) type KeyRequests = PerKey<Gcra<KeyId>, SharedGcra<KeyId, RedisRates>>;

/// The limit of tokens per minute, per key.
pub(crate) type KeyTokens = PerKey<PostPaid<KeyId>, SharedPostPaid<KeyId, RedisRates>>;

impl KeyTokens {
    /// Counts the tokens that a call of the key has used.
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

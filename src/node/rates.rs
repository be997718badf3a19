//! What keys may ask and use in a minute: over all gateways where the ledger is Redis, in this one otherwise, which is
//! then the only one.

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

/// How many keys' rates are remembered.
pub(crate) const KEYS_MAX: usize = 100_000;

/// The rates of keys by the minute. Clones share them.
#[derive(Clone, Debug)]
pub struct KeyRates {
    /// Their requests.
    pub(crate) requests: KeyRequests,
    /// Their tokens.
    pub(crate) tokens: KeyTokens,
    shared: Option<SharedRates<RedisRates>>,
}

impl KeyRates {
    /// Counted where the books are. What is asked of Redis is asked by the task.
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

    /// What was asked of Redis; all zero where nothing is.
    pub(crate) fn counts(&self) -> RateCounts {
        (self.shared.as_ref()).map_or_else(RateCounts::default, SharedRates::counts)
    }
}

/// Requests of keys by the minute.
#[derive(Clone, Debug)]
pub(crate) enum KeyRequests {
    Here(Gcra<KeyId>),
    Everywhere(SharedGcra<KeyId, RedisRates>),
}

impl Limiter<KeyId> for KeyRequests {
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

/// Tokens of keys by the minute.
#[derive(Clone, Debug)]
pub(crate) enum KeyTokens {
    Here(PostPaid<KeyId>),
    Everywhere(SharedPostPaid<KeyId, RedisRates>),
}

impl KeyTokens {
    /// Takes what a call of the key has used.
    pub(super) fn take(&self, id: &KeyId, tokens: u64) {
        match self {
            Self::Here(limiter) => limiter.take(id, tokens),
            Self::Everywhere(limiter) => limiter.take(id, tokens),
        }
    }
}

impl Limiter<KeyId> for KeyTokens {
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

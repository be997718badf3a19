//! Limits requests per address: over all gateways if the ledger is Redis, otherwise in this process.

use std::{net::IpAddr, time::Duration};

use prometheus_client::metrics::counter::Counter;
use tollgate_layers::rate_limit::{Gcra, Limiter, Quota, redis::RedisLimiter};

use crate::ledger::AnyLedger;

/// The largest number of addresses that are remembered.
const ADDRESSES_MAX: usize = 100_000;

/// Limits requests per address block.
#[derive(Clone, Debug)]
pub struct AddressLimiter {
    here: Gcra<IpAddr>,
    everywhere: Option<RedisLimiter>,
}

impl AddressLimiter {
    /// Creates a limiter that counts in this process only.
    #[must_use]
    pub fn local() -> Self {
        Self {
            here: Gcra::new(ADDRESSES_MAX),
            everywhere: None,
        }
    }

    /// Creates a limiter that counts over all gateways that share the store, if gateways can share this kind of store.
    #[must_use]
    pub fn shared(store: &AnyLedger) -> Self {
        let everywhere = match store {
            AnyLedger::Redis(outbox) => {
                let conn = outbox.ledger().conn().clone();
                Some(RedisLimiter::new(conn, "catalog"))
            }
            AnyLedger::Memory(_) | AnyLedger::Sqlite(_) => None,
        };
        Self {
            everywhere,
            ..Self::local()
        }
    }
}

/// A limiter whose refusals are counted in metrics.
#[derive(Clone, Debug)]
pub(crate) struct Counted<L> {
    limiter: L,
    refusals: Counter,
}

impl<L> Counted<L> {
    pub(crate) const fn new(limiter: L, refusals: Counter) -> Self {
        Self { limiter, refusals }
    }

    fn count(&self, verdict: Result<(), Duration>) -> Result<(), Duration> {
        verdict.inspect_err(|_| {
            self.refusals.inc();
        })
    }
}

impl<K: Send + 'static, L: Limiter<K> + Sync> Limiter<K> for Counted<L> {
    async fn admit(&self, id: K, quota: Quota) -> Result<(), Duration> {
        let verdict = self.limiter.admit(id, quota).await;
        self.count(verdict)
    }

    fn admit_now(&self, id: &K, quota: Quota) -> Option<Result<(), Duration>> {
        let verdict = self.limiter.admit_now(id, quota)?;
        Some(self.count(verdict))
    }
}

impl Limiter<IpAddr> for AddressLimiter {
    async fn admit(&self, id: IpAddr, quota: Quota) -> Result<(), Duration> {
        if let Some(everywhere) = &self.everywhere {
            // The future is boxed, because otherwise every call's future would reserve space for it, although most
            // calls do not need it.
            match Box::pin(everywhere.check(&id.to_string(), quota)).await {
                Ok(verdict) => return verdict,
                // The catalog costs nothing, so callers can still read it while Redis is unavailable.
                Err(error) => tracing::debug!(
                    error,
                    "Redis did not answer: requests are counted only in this process"
                ),
            }
        }
        self.here.admit(id, quota).await
    }

    fn admit_now(&self, id: &IpAddr, quota: Quota) -> Option<Result<(), Duration>> {
        match self.everywhere {
            Some(_) => None,
            None => self.here.admit_now(id, quota),
        }
    }
}

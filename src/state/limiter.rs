//! Limits requests per address. If the ledger is Redis, the requests to all gateways are counted together; otherwise
//! this process counts only the requests that it receives itself.

use std::{net::IpAddr, time::Duration};

use prometheus_client::metrics::counter::Counter;
use tollgate_layers::rate_limit::{Gcra, Limiter, Quota, redis::RedisLimiter};

use crate::ledger::AnyLedger;

/// The maximum number of address blocks whose requests are counted.
const ADDRESSES_MAX: usize = 100_000;

/// Limits requests per address block: an IPv4 address or an IPv6 /64.
#[derive(Clone, Debug)]
pub struct AddressLimiter {
    here: Gcra<IpAddr>,
    everywhere: Option<RedisLimiter>,
}

impl AddressLimiter {
    /// Creates a limiter that counts the requests to this process only.
    #[must_use]
    pub fn local() -> Self {
        Self {
            here: Gcra::new(ADDRESSES_MAX),
            everywhere: None,
        }
    }

    /// Creates a limiter that counts the requests to all gateways that share the store. If gateways cannot share this
    /// kind of store, counts the requests to this process only.
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

/// Counts the refusals of a limiter in the metrics.
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
            // The future is boxed because it is large. Unboxed, it would enlarge the future of every call, although
            // most calls do not need it.
            match Box::pin(everywhere.check(&id.to_string(), quota)).await {
                Ok(verdict) => return verdict,
                // If Redis is unavailable, requests are still admitted, because they read the price list, which costs
                // nothing.
                Err(error) => tracing::debug!(
                    error,
                    "Redis did not respond: requests per address are counted only in this process"
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

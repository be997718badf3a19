use std::{sync::Arc, time::Duration};

use super::{Batch, RateStore, Take};
use crate::{
    error::BoxError,
    rate_limit::Quota,
    redis_conn::{RedisConn, RedisScript},
};

/// Stores the totals of all gateways in Redis, under `tg:rl:<limit>:<id>`, by the clock of the Redis server. Clones
/// share one connection.
#[derive(Clone)]
pub struct RedisRates {
    conn: RedisConn,
    take: Arc<RedisScript>,
    spend: Arc<RedisScript>,
}

impl RedisRates {
    /// Creates a store that uses this connection.
    #[must_use]
    pub fn new(conn: RedisConn) -> Self {
        Self {
            take: Arc::new(conn.script("", include_str!("take.lua"))),
            spend: Arc::new(conn.script("", include_str!("spend.lua"))),
            conn,
        }
    }
}

impl RateStore for RedisRates {
    async fn take(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        take: Take,
        ttl: Duration,
    ) -> Result<Result<u64, Duration>, BoxError> {
        let args = [
            micros(quota.per),
            quota.count.max(1).into(),
            quota.burst.max(1).into(),
            node,
            take.calls,
            take.spare,
            take.has,
            take.back,
            micros(ttl),
        ];
        let keys = [format!("tg:rl:{id}")];
        let answer = self.conn.eval_integers(&self.take, &keys, &args).await?;
        Ok(u64::try_from(answer).map_err(|_| Duration::from_micros(answer.unsigned_abs())))
    }

    async fn spend(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        batch: Batch,
    ) -> Result<u64, BoxError> {
        let args = [
            micros(quota.per),
            quota.count.max(1).into(),
            node,
            batch.number,
            batch.units.min(UNITS_MAX),
        ];
        let keys = [format!("tg:rl:{id}")];
        let answer = self.conn.eval_integers(&self.spend, &keys, &args).await?;
        Ok(u64::try_from(answer).unwrap_or_default())
    }
}

/// The largest number of units whose thousandths Lua's numbers can represent exactly.
const UNITS_MAX: u64 = 1_000_000_000_000;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

debug_fields!(impl[] RedisRates { conn: conn });

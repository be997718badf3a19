//! Counts requests in Redis. All gateways share one count, by the clock of the Redis server.

use std::{sync::Arc, time::Duration};

use super::Quota;
use crate::{
    error::BoxError,
    redis_conn::{RedisConn, RedisScript},
};

/// Counts requests in Redis, under `tg:rl:<name>:<id>`. Clones share one connection.
#[derive(Clone)]
pub struct RedisLimiter {
    conn: RedisConn,
    script: Arc<RedisScript>,
    name: Arc<str>,
}

impl RedisLimiter {
    /// Creates a limiter whose counts are stored under `name`. Limiters with the same name share their counts.
    #[must_use]
    pub fn new(conn: RedisConn, name: &str) -> Self {
        let script = Arc::new(conn.script("", include_str!("gcra.lua")));
        let name = name.into();
        Self { conn, script, name }
    }

    /// Admits and counts a request of the caller `id`, or returns how long the caller should wait.
    ///
    /// # Errors
    /// An error if Redis cannot be reached. The calling code may then count requests itself.
    pub async fn check(&self, id: &str, quota: Quota) -> Result<Result<(), Duration>, BoxError> {
        let interval = quota.per.as_micros() / u128::from(quota.count.max(1));
        let interval = u64::try_from(interval).unwrap_or(u64::MAX).max(1);
        let keys = [format!("tg:rl:{}:{id}", self.name)];
        let args = [interval, quota.burst.max(1).into()];
        let wait = self.conn.eval_integers(&self.script, &keys, &args).await?;
        Ok(match u64::try_from(wait) {
            Ok(wait @ 1..) => Err(Duration::from_micros(wait)),
            _ => Ok(()),
        })
    }
}

debug_fields!(impl[] RedisLimiter { name: name, conn: conn });

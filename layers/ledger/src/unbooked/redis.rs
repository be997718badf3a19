//! Calls without a receipt in Redis, shared by many gateways. All of them are in one slot. Each operation is one script
//! that handles a limited number of calls, so that it does not delay other commands noticeably.
//!
//! ```text
//! tg:unbooked:{all}    HASH  <number>: the call as JSON
//! tg:unbooked:{all}:i  ZSET  the indexes; all scores are 0: t:<number>, a:<account>:<number>, k:<key>:<number>,
//!                            c:<code>:<number>
//! tg:unbooked:{all}:n  ZSET  <account>: its calls; the empty account has the calls with unknown keys
//! ```
//!
//! If no gateway writes calls any more, Redis deletes the store's three keys when the last call has expired.

use std::{fmt, ops::Range, sync::Arc};

use futures_util::future::BoxFuture;

use super::{REMOVED_MAX, UnbookedBounds, UnbookedCall, UnbookedIndex, UnbookedStore};
use crate::{
    BoxError,
    conn::{OPERATOR_TIMEOUT, RedisConn, RedisScript},
    number::RequestNumber,
};

/// How many calls one run of the script writes at most, so that it does not delay holds noticeably.
const WRITTEN_AT_ONCE: usize = 20;

/// A store of calls without a receipt in Redis. Clones share the connection.
#[derive(Clone)]
pub struct RedisUnbooked {
    conn: RedisConn,
    bounds: UnbookedBounds,
    write: Arc<RedisScript>,
    read: Arc<RedisScript>,
}

impl RedisUnbooked {
    /// Creates a store over an existing connection.
    #[must_use]
    pub fn new(conn: RedisConn, bounds: UnbookedBounds) -> Self {
        Self {
            write: conn.script("", include_str!("redis/write.lua")).into(),
            read: conn.script("", include_str!("redis/read.lua")).into(),
            bounds,
            conn,
        }
    }
}

impl fmt::Debug for RedisUnbooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisUnbooked")
            .field("conn", &self.conn)
            .finish_non_exhaustive()
    }
}

fn keys() -> [String; 3] {
    ["", ":i", ":n"].map(|part| format!("tg:unbooked:{{all}}{part}"))
}

impl UnbookedStore for RedisUnbooked {
    fn bounds(&self) -> UnbookedBounds {
        self.bounds
    }

    fn write<'a>(&'a self, calls: &'a [UnbookedCall]) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let mut left = calls;
            loop {
                let some;
                (some, left) = left.split_at(left.len().min(WRITTEN_AT_ONCE));
                let mut args = vec![
                    self.bounds.calls_max.to_string(),
                    self.bounds.first_number().to_string(),
                    self.bounds.age_max.as_millis().to_string(),
                    (some.len() + REMOVED_MAX).to_string(),
                ];
                for call in some {
                    args.extend([call.number.to_string(), serde_json::to_string(call)?]);
                }
                let (conn, keys) = (&self.conn, keys());
                let _: i64 = conn
                    .eval(&self.write, &keys, &args, OPERATOR_TIMEOUT)
                    .await?;
                if left.is_empty() {
                    return Ok(());
                }
            }
        })
    }

    fn read<'a>(
        &'a self,
        index: UnbookedIndex<'a>,
        numbers: Range<RequestNumber>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnbookedCall>, BoxError>> {
        let index = match index {
            UnbookedIndex::All => "t:".to_owned(),
            UnbookedIndex::Account(account) => format!("a:{account}:"),
            UnbookedIndex::Key(key) => format!("k:{key}:"),
            UnbookedIndex::Code(code) => format!("c:{code}:"),
        };
        let args = [
            format!("[{index}{}", numbers.start),
            format!("({index}{}", numbers.end),
            limit.to_string(),
        ];
        Box::pin(async move {
            let keys = keys();
            let found = self.conn.eval(&self.read, &keys, &args, OPERATOR_TIMEOUT);
            let found: Vec<String> = found.await?;
            let calls = found.iter().map(|json| serde_json::from_str(json));
            Ok(calls.collect::<Result<_, _>>()?)
        })
    }
}

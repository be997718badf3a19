//! Which key a digest is of: asked of the server, and remembered for a few seconds.

use std::{sync::Arc, time::Duration};

use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::{RedisLedger, names::digest_key};
use crate::{
    BoxError,
    account::{KeyDigest, KeyRecord, KeyStore},
};

/// How long a key that was found is remembered. What it may hold is asked of the server each time.
const KEY_CACHED: Duration = Duration::from_secs(5);
/// How long a key is known beyond that while its record is out of reach.
const KEY_KEPT: Duration = Duration::from_secs(60);
/// How long it is remembered that a key was not found.
const NO_KEY_CACHED: Duration = Duration::from_secs(1);
/// How many keys are remembered.
const KEYS_CACHED_MAX: usize = 20_000;

/// The keys that were asked for lately.
pub(super) type KeyCache = Cache<KeyDigest, CachedKey>;

pub(super) fn cache() -> KeyCache {
    Cache::new(KEYS_CACHED_MAX)
}

#[derive(Clone)]
pub(super) struct CachedKey {
    record: Option<Arc<KeyRecord>>,
    until: Instant,
}

impl KeyStore for RedisLedger {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        if let Some(found) = self.find_key_now(digest) {
            return found;
        }
        // The age counts from before the question, so that it bounds how old the answer can be.
        let asked = Instant::now();
        let conn = &self.0.conn;
        let key = digest_key(digest);
        let words = ["HGET", &key, "record"];
        // Boxed: each call has room for this future, and a key that is known never runs it.
        let asking = Box::pin(conn.command(&words, conn.response_timeout()));
        let found: Option<String> = match asking.await {
            Ok(found) => found,
            // In a Cluster the record may lie on another server than the account, which decides what
            // the key may hold.
            Err(fault) => {
                return match self.0.keys.get(digest) {
                    Some(known) if asked < known.until + KEY_KEPT && known.record.is_some() => {
                        Ok(known.record)
                    }
                    _ => Err(fault.into()),
                };
            }
        };
        let record: Option<Arc<KeyRecord>> = found
            .map(|json| serde_json::from_str(&json))
            .transpose()?
            .map(Arc::new);
        if record.is_none() {
            Box::pin(self.missing_key()).await?;
        }
        let until = asked
            + if record.is_some() {
                KEY_CACHED
            } else {
                NO_KEY_CACHED
            };
        self.0.keys.insert(
            *digest,
            CachedKey {
                record: record.clone(),
                until,
            },
        );
        Ok(record)
    }

    /// A key that was asked for lately.
    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        if let Err(fault) = self.0.data.present() {
            return Some(Err(fault.into()));
        }
        let known = self.0.keys.get(digest)?;
        (Instant::now() < known.until).then_some(Ok(known.record))
    }
}

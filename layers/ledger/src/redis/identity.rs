//! Looks up callers' keys on the server by their digests, and caches the records for a few seconds.

use std::{sync::Arc, time::Duration};

use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::{RedisLedger, names::digest_key};
use crate::{
    BoxError,
    account::{KeyDigest, KeyRecord, KeyStore},
};

/// How long a found key is cached. A cached key cannot spend too much, because the server decides on each of its holds.
const KEY_CACHED: Duration = Duration::from_secs(5);
/// How much longer a cached key is used if the server that stores its record does not answer.
const KEY_KEPT: Duration = Duration::from_secs(60);
/// How long the result that a key does not exist is cached.
const NO_KEY_CACHED: Duration = Duration::from_secs(1);
/// The largest number of keys in the cache.
const KEYS_CACHED_MAX: usize = 20_000;

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
        // The age of the record is measured from before the request, so that it is never too small.
        let requested = Instant::now();
        let conn = &self.0.conn;
        let key = digest_key(digest);
        let words = ["HGET", &key, "record"];
        // Boxed, so that calls with a cached key do not reserve space for this future.
        let asking = Box::pin(conn.command(&words, conn.response_timeout()));
        let found: Option<String> = match asking.await {
            Ok(found) => found,
            // In a Cluster, the key's record may be on another server than its account. If the record's server does not
            // answer, an outdated record may be used: the account's server still decides what the key may hold.
            Err(fault) => {
                return match self.0.keys.get(digest) {
                    Some(known) if requested < known.until + KEY_KEPT && known.record.is_some() => {
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
        let cached_for = match record {
            Some(_) => KEY_CACHED,
            None => NO_KEY_CACHED,
        };
        let (until, known) = (requested + cached_for, record.clone());
        let cached = CachedKey {
            record: known,
            until,
        };
        self.0.keys.insert(*digest, cached);
        Ok(record)
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        if let Err(fault) = self.0.data.present() {
            return Some(Err(fault.into()));
        }
        let known = self.0.keys.get(digest)?;
        (Instant::now() < known.until).then_some(Ok(known.record))
    }
}

use std::{collections::HashMap, fmt, sync::Arc};

use crate::{
    error::BoxError,
    key::{KeyDigest, KeyRecord, KeyStore},
};

/// A fixed list of keys: a key store for services with few callers, for examples and for tests. Clones share the list.
#[derive(Clone, Default)]
pub struct KeyList(Arc<HashMap<KeyDigest, Arc<KeyRecord>>>);

/// If two records have the same digest, the later record is used.
impl FromIterator<KeyRecord> for KeyList {
    fn from_iter<I: IntoIterator<Item = KeyRecord>>(records: I) -> Self {
        let by_digest = |record: KeyRecord| (record.digest, Arc::new(record));
        Self(Arc::new(records.into_iter().map(by_digest).collect()))
    }
}

impl KeyStore for KeyList {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        Ok(self.0.get(digest).cloned())
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        Some(Ok(self.0.get(digest).cloned()))
    }
}

impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyList")
            .field("keys", &self.0.len())
            .finish()
    }
}

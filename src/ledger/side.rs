//! Opens stores whose data is kept in the same place as the ledger, but is not part of the ledger.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tollgate_ledger::unbooked::{RedisUnbooked, SqliteUnbooked, UnbookedStore};

use super::AnyLedger;
use crate::config::{LedgerConfig, LedgerUrl};

/// Returns the path of the ledger's file with `.suffix` appended: the path of another store's file.
pub(crate) fn side_file(ledger: &Path, suffix: &str) -> PathBuf {
    let mut path = ledger.as_os_str().to_owned();
    path.push(".");
    path.push(suffix);
    path.into()
}

impl AnyLedger {
    /// Opens the store of calls that have no receipt. Returns `None` if the configuration turns it off.
    pub(crate) fn unbooked_store(&self, config: &LedgerConfig) -> Option<Arc<dyn UnbookedStore>> {
        let bounds = config.refused_calls?;
        Some(match (self, &config.url) {
            (Self::Redis(outbox), _) => {
                Arc::new(RedisUnbooked::new(outbox.ledger().conn().clone(), bounds))
            }
            (Self::Sqlite(_), LedgerUrl::Sqlite(path)) => {
                Arc::new(SqliteUnbooked::new(&side_file(path, "calls"), bounds))
            }
            (Self::Memory(_) | Self::Sqlite(_), _) => Arc::new(SqliteUnbooked::in_memory(bounds)),
        })
    }
}

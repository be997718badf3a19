//! The ledger that the config names, behind one type.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use tollgate_layers::{
    error::BoxError,
    facts::RequestNumber,
    key::{AccountId, KeyDigest, KeyId, KeyRecord, KeyStore},
    money::MicroRub,
    reserve::{
        ledger::{
            AccountView, Audit, BookError, Bookkeeping, Entry, Hold, KeyChange, KeyView, Ledger,
            LedgerError, Receipt, Reserved, Settled, Settlement, TariffVersion,
        },
        memory::MemoryLedger,
        redis::{RedisLedger, RedisSettings},
        sqlite::{OpenError, SqliteLedger},
    },
};

use crate::config::LedgerUrl;

/// One of the ledgers. Clones share it.
#[derive(Clone, Debug)]
pub enum Store {
    /// Nothing outlives the process.
    Memory(MemoryLedger),
    /// One file, one gateway.
    Sqlite(SqliteLedger),
    /// Many gateways.
    Redis(RedisLedger),
}

impl Store {
    /// Opens the ledger that `ledger.url` names. An SQLite file is read and checked on this thread:
    /// nothing is served yet.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn open(url: &LedgerUrl) -> Result<Self, StoreError> {
        match url {
            LedgerUrl::Memory => Ok(Self::Memory(MemoryLedger::new())),
            LedgerUrl::Sqlite(path) => SqliteLedger::open(path)
                .map(Self::Sqlite)
                .map_err(StoreError::Sqlite),
            LedgerUrl::Redis(url) => {
                let opened = RedisLedger::connect(url, RedisSettings::default()).await;
                let ledger = opened.map_err(StoreError::Redis)?;
                for warning in ledger.check_server().await.map_err(StoreError::Redis)? {
                    tracing::warn!("ledger.url: {warning}");
                }
                Ok(Self::Redis(ledger))
            }
        }
    }

    /// Writes what is queued and lets go of the file. Nothing may be asked of the store afterwards.
    pub async fn close(&self) {
        match self {
            Self::Sqlite(ledger) => ledger.close().await,
            // Nothing is buffered: what was acknowledged is where it belongs.
            Self::Memory(_) | Self::Redis(_) => {}
        }
    }
}

/// Why the ledger that `ledger.url` names could not be opened. The URL may hold a password, so it is
/// not shown.
#[derive(Debug)]
pub enum StoreError {
    /// The file.
    Sqlite(OpenError),
    /// The server.
    Redis(LedgerError),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(error) => write!(f, "ledger.url: {error}"),
            Self::Redis(_) => {
                f.write_str("ledger.url: the Redis server cannot be used: check that it runs")
            }
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Its own words are shown already.
            Self::Sqlite(error) => error.source(),
            Self::Redis(error) => Some(error),
        }
    }
}

/// The same call on whichever ledger it is.
macro_rules! ask {
    ($store:expr, $ledger:ident => $call:expr) => {
        match $store {
            Store::Memory($ledger) => $call,
            Store::Sqlite($ledger) => $call,
            Store::Redis($ledger) => $call,
        }
    };
}

impl Ledger for Store {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        ask!(self, ledger => ledger.reserve(hold).await)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        ask!(self, ledger => ledger.settle(settlement).await)
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        ask!(self, ledger => ledger.release(number, account, key).await)
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        ask!(self, ledger => ledger.extend(number, account, ttl).await)
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        ask!(self, ledger => ledger.probe(account, key).await)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        ask!(self, ledger => ledger.expire().await)
    }
}

impl Bookkeeping for Store {
    async fn create_account(&self, id: &AccountId, name: &str) -> Result<AccountView, BookError> {
        ask!(self, ledger => ledger.create_account(id, name).await)
    }

    async fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> Result<AccountView, BookError> {
        ask!(self, ledger => ledger.change_account(id, name, suspended).await)
    }

    async fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
        ask!(self, ledger => ledger.account(id).await)
    }

    async fn accounts(&self) -> Result<Vec<AccountView>, BookError> {
        ask!(self, ledger => ledger.accounts().await)
    }

    async fn enter(&self, account: &AccountId, entry: &Entry) -> Result<AccountView, BookError> {
        ask!(self, ledger => ledger.enter(account, entry).await)
    }

    async fn create_key(
        &self,
        record: &KeyRecord,
        ceiling: Option<MicroRub>,
    ) -> Result<KeyView, BookError> {
        ask!(self, ledger => ledger.create_key(record, ceiling).await)
    }

    async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
        ask!(self, ledger => ledger.change_key(id, change).await)
    }

    async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        ask!(self, ledger => ledger.key(id).await)
    }

    async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        ask!(self, ledger => ledger.keys(account).await)
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        ask!(self, ledger => ledger.receipt(number).await)
    }

    async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
        ask!(self, ledger => ledger.tariff_version(fingerprint).await)
    }

    async fn audit(&self) -> Result<Audit, BookError> {
        ask!(self, ledger => ledger.audit().await)
    }
}

impl KeyStore for Store {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        ask!(self, ledger => ledger.find_key(digest).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_cannot_be_opened_names_the_setting() {
        let dir = tempfile::tempdir().unwrap();
        let url = LedgerUrl::Sqlite(dir.path().join("missing").join("ledger.db"));
        let error = Store::open(&url).await.unwrap_err();
        assert!(
            error.to_string().starts_with("ledger.url: cannot open"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_closed_file_can_be_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let url = LedgerUrl::Sqlite(dir.path().join("ledger.db"));
        let store = Store::open(&url).await.unwrap();
        let id: AccountId = "acme".parse().unwrap();
        store.create_account(&id, "Acme").await.unwrap();
        store.close().await;
        assert_eq!(
            Store::open(&url)
                .await
                .unwrap()
                .account(&id)
                .await
                .unwrap()
                .name,
            "Acme"
        );
    }
}

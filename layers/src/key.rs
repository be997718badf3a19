//! Accounts, keys and key stores, and the check that a key has money left to spend.

use std::future::Future;

pub use tollgate_ledger::account::*;

use crate::error::Error;

/// Checks whether a key has money left to spend.
pub trait Funds: Send + Sync + 'static {
    /// Refuses a key with which no call can be paid, for example because its account is empty.
    ///
    /// # Errors
    /// A refusal that a hold of any amount would get, or [`Error::LedgerUnavailable`] if the ledger cannot be reached.
    fn check(&self, key: &KeyRecord) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Does not check whether a key has money left: every authenticated caller is served.
#[derive(Clone, Copy, Debug, Default)]
pub struct WithoutLedger;

impl Funds for WithoutLedger {
    async fn check(&self, _: &KeyRecord) -> Result<(), Error> {
        Ok(())
    }
}

//! Accounts, keys and key stores, and the check that a key has money left to spend.

use std::future::Future;

pub use tollgate_ledger::account::*;

use crate::error::Error;

/// Checks whether a key has money left to spend.
pub trait Funds: Send + Sync + 'static {
    /// Refuses a key that cannot pay for any call, for example because its account is empty.
    ///
    /// # Errors
    /// The error with which a hold of any amount would be refused, or [`Error::LedgerUnavailable`] if the ledger cannot
    /// be reached.
    fn check(&self, key: &KeyRecord) -> impl Future<Output = Result<(), Error>> + Send;
}

/// A check that accepts every key: every authenticated caller is served, whether or not its key has money left.
#[derive(Clone, Copy, Debug, Default)]
pub struct WithoutLedger;

impl Funds for WithoutLedger {
    async fn check(&self, _: &KeyRecord) -> Result<(), Error> {
        Ok(())
    }
}

//! Accounts, keys and where they are found, as the ledger knows them, and whether a key has anything to spend.

use std::future::Future;

pub use tollgate_ledger::account::*;

use crate::error::Error;

/// Whether a key has anything to spend.
pub trait Funds: Send + Sync + 'static {
    /// Refuses a key that could hold nothing at all.
    ///
    /// # Errors
    /// The refusals of a call that do not depend on its amount, or that the ledger is out of reach.
    fn check(&self, key: &KeyRecord) -> impl Future<Output = Result<(), Error>> + Send;
}

//! Accounts, keys and key stores, and the check that a key has money left to spend.

use std::future::Future;

pub use tollgate_ledger::account::*;

use crate::error::Error;

/// Checks whether a key has money left to spend.
pub trait Funds: Send + Sync + 'static {
    /// Refuses a key with which no call can be paid, for example because its account is empty.
    ///
    /// # Errors
    /// The refusals of a hold that do not depend on its amount, or an error if the ledger cannot be reached.
    fn check(&self, key: &KeyRecord) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Does not check funds: every authenticated caller is served.
#[derive(Clone, Copy, Debug, Default)]
pub struct WithoutLedger;

impl Funds for WithoutLedger {
    async fn check(&self, _: &KeyRecord) -> Result<(), Error> {
        Ok(())
    }
}

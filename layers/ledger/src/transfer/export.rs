//! Reads a whole ledger, account by account.

use std::vec;

use crate::{
    account::AccountId,
    contract::{AccountBooks, BookError, LedgerAdmin},
};

/// Iterates over accounts. Each is read as of one moment, which differs from account to account.
/// [`JournalPages::up_to`](crate::contract::JournalPages::up_to) reads an account's journal up to that moment. The
/// memory used does not grow with the journal.
#[derive(Clone, Debug)]
pub struct Export {
    accounts: vec::IntoIter<AccountId>,
}

impl Export {
    /// Reads these accounts, in this order.
    #[must_use]
    pub fn of(accounts: Vec<AccountId>) -> Self {
        Self {
            accounts: accounts.into_iter(),
        }
    }

    /// Reads all accounts, by id.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    pub async fn whole<L: LedgerAdmin + ?Sized>(ledger: &L) -> Result<Self, BookError> {
        let views = ledger.accounts().await?;
        Ok(Self::of(views.into_iter().map(|view| view.id).collect()))
    }

    /// Returns the next account as it is now; `None` after the last account. An id without an account is skipped.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    pub async fn next<L: LedgerAdmin + ?Sized>(
        &mut self,
        ledger: &L,
    ) -> Result<Option<AccountBooks>, BookError> {
        for account in self.accounts.by_ref() {
            match ledger.books(&account).await {
                Ok(books) => return Ok(Some(books)),
                Err(BookError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

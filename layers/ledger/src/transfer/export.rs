//! Reads a whole ledger for an export, account by account.

use std::vec;

use crate::{
    account::AccountId,
    contract::{AccountBooks, BookError, LedgerAdmin, if_found},
};

/// Iterates over accounts. Each account is read at one moment, which differs from account to account.
/// [`JournalPages::up_to`](crate::contract::JournalPages::up_to) then reads the account's journal up to that moment.
/// The memory used does not grow with the length of the journal.
#[derive(Clone, Debug)]
pub struct Export {
    accounts: vec::IntoIter<AccountId>,
}

impl Export {
    /// Selects these accounts, in this order.
    #[must_use]
    pub fn for_accounts(accounts: Vec<AccountId>) -> Self {
        Self {
            accounts: accounts.into_iter(),
        }
    }

    /// Selects all accounts, sorted by id.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses the request or is unreachable.
    pub async fn whole<L: LedgerAdmin + ?Sized>(ledger: &L) -> Result<Self, BookError> {
        let views = ledger.accounts().await?;
        Ok(Self::for_accounts(
            views.into_iter().map(|view| view.id).collect(),
        ))
    }

    /// Returns the next account as it is now; `None` after the last account. Ids without an account are skipped.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses the request or is unreachable.
    pub async fn next<L: LedgerAdmin + ?Sized>(
        &mut self,
        ledger: &L,
    ) -> Result<Option<AccountBooks>, BookError> {
        for account in self.accounts.by_ref() {
            let books = if_found(ledger.books(&account).await)?;
            if books.is_some() {
                return Ok(books);
            }
        }
        Ok(None)
    }
}

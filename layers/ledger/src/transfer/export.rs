//! The one way to go through a ledger: account by account.

use std::vec;

use crate::{
    account::AccountId,
    contract::{AccountBooks, BookError, LedgerAdmin},
};

/// Goes through accounts, each as it stands at one moment of its own. The journal that belongs to that moment is read by
/// [`JournalPages::up_to`](crate::contract::JournalPages::up_to); nothing here grows with it.
#[derive(Clone, Debug)]
pub struct Export {
    accounts: vec::IntoIter<AccountId>,
}

impl Export {
    /// Of these accounts, in this order.
    #[must_use]
    pub fn of(accounts: Vec<AccountId>) -> Self {
        Self {
            accounts: accounts.into_iter(),
        }
    }

    /// Of all accounts, by id.
    ///
    /// # Errors
    /// See [`LedgerAdmin::accounts`].
    pub async fn whole<L: LedgerAdmin + ?Sized>(ledger: &L) -> Result<Self, BookError> {
        let views = ledger.accounts().await?;
        Ok(Self::of(views.into_iter().map(|view| view.id).collect()))
    }

    /// The next account as it stands now; `None` behind the last one. An id that was taken for an account that was
    /// never made is left out.
    ///
    /// # Errors
    /// See [`LedgerAdmin::books`].
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

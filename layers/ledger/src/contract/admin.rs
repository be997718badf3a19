//! The trait of a ledger for operators.

use std::future::Future;

use serde::{Deserialize, Serialize};

use super::{
    AccountBooks, AccountView, GroupChange, GroupRecord, GroupView, JournalPage, JournalPart,
    KeyChange, KeyView, Receipt,
};
use crate::{
    BoxError,
    account::{AccountId, GroupId, KeyId, KeyRecord},
    ceiling::Ceilings,
    money::MicroRub,
    number::RequestNumber,
};

/// A payment into an account, or a correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The operator's id of the entry. Booking an entry with the same id again changes nothing.
    pub id: String,
    /// The signed amount of the entry.
    pub amount: MicroRub,
    /// The reason of a correction; `None` for a payment.
    pub reason: Option<String>,
}

/// The reason why an operator's request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// The account, key or receipt does not exist.
    #[error("not found")]
    NotFound,
    /// An account, key or entry with this id already exists with other contents.
    #[error("this name or number exists already, with other contents")]
    Exists,
    /// The balance would fall below the held amount, or below zero.
    #[error("the balance would fall below what is held")]
    BelowHeld,
    /// The balance would exceed [`MicroRub::MAX`].
    #[error("the balance would exceed the largest amount")]
    AboveMax,
    /// The group does not exist in the account, or was removed.
    #[error("the account has no such group, or it was removed")]
    NoGroup,
    /// The group still has keys that are not deleted.
    #[error("the group has keys that are not deleted")]
    GroupInUse,
    /// The ledger did not answer, or its answer was lost: retry with the same id.
    #[error("ledger out of reach")]
    Unavailable(#[source] BoxError),
}

/// A version of the tariff. Its number increases by one whenever the tariff changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TariffVersion {
    /// The number of the version, from 1.
    pub id: u64,
    /// Unix time in milliseconds from which this version is in force.
    pub effective_from_ms: u64,
}

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// The number of accounts that were checked.
    pub accounts: u64,
    /// The number of keys that were checked.
    pub keys: u64,
    /// The number of open holds that were found.
    pub holds_open: u64,
    /// Every breach of an invariant; the text begins with the invariant's name.
    pub breaches: Vec<String>,
}

/// The ledger operations that an operator needs. Each change that is acknowledged here is durable.
pub trait LedgerAdmin: Send + Sync + 'static {
    /// Opens an account. Opening it again with the same name changes nothing.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn create_account(
        &self,
        id: &AccountId,
        name: &str,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Renames an account, suspends it or resumes it. `None` leaves a field unchanged.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Returns one account.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn account(
        &self,
        id: &AccountId,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Returns all accounts by id.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn accounts(&self) -> impl Future<Output = Result<Vec<AccountView>, BookError>> + Send;

    /// Books a payment or a correction, once per id. A repeated entry is accepted if its amount is the same, even if
    /// its reason differs; [`LedgerAdmin::entry`] returns the reason that was booked.
    ///
    /// # Errors
    /// [`BookError::Exists`] if the id was booked with another amount, or another [`BookError`].
    fn enter(
        &self,
        account: &AccountId,
        entry: &Entry,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Returns the entry with this id, if the journal still has it. A ledger overrides this method if it can find the
    /// entry without reading the journal.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn entry(
        &self,
        account: &AccountId,
        id: &str,
    ) -> impl Future<Output = Result<Option<Entry>, BookError>> + Send {
        super::journal::entry_of(self, account, id)
    }

    /// Adds a key to its account.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Changes a key. Once the ledger has acknowledged that a key is disabled, no new hold is made on this key.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn change_key(
        &self,
        id: &KeyId,
        change: &KeyChange,
    ) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Returns one key.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn key(&self, id: &KeyId) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Returns all keys of an account, by id, including deleted keys.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn keys(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<KeyView>, BookError>> + Send;

    /// Creates a group of an account's keys. Creating it again with the same name and ceilings changes nothing. The id
    /// of a removed group cannot be used again.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn create_group(
        &self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
    ) -> impl Future<Output = Result<GroupView, BookError>> + Send;

    /// Changes a group, or removes it. A group can be removed only after its last key has left or was deleted.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn change_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
    ) -> impl Future<Output = Result<GroupView, BookError>> + Send;

    /// Returns all groups of an account, by id, including removed groups.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn groups(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<GroupView>, BookError>> + Send;

    /// Returns the receipt of a call.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn receipt(
        &self,
        number: RequestNumber,
    ) -> impl Future<Output = Result<Receipt, BookError>> + Send;

    /// Returns the receipt of a call of this account; [`BookError::NotFound`] for a call of another account. Unlike
    /// [`LedgerAdmin::receipt`], this method may serve callers: a store with separate data per account reads no other
    /// account.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn receipt_of(
        &self,
        account: &AccountId,
        number: RequestNumber,
    ) -> impl Future<Output = Result<Receipt, BookError>> + Send {
        let found = self.receipt(number);
        async move {
            let receipt = found.await?;
            if receipt.account != *account {
                return Err(BookError::NotFound);
            }
            Ok(receipt)
        }
    }

    /// Returns a part of an account's journal, oldest line first unless `part` requests the newest first. Pages that
    /// are read one after another by their `next` contain every line once, even if lines are booked meanwhile.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> impl Future<Output = Result<JournalPage, BookError>> + Send;

    /// Returns an account with its keys and holds at one moment, and the position of its journal's end at that moment.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn books(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<AccountBooks, BookError>> + Send;

    /// Returns the tariff's version. Creates a new version if `fingerprint` differs from that of the version in force.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn tariff_version(
        &self,
        fingerprint: &str,
    ) -> impl Future<Output = Result<TariffVersion, BookError>> + Send;

    /// Checks the invariants I1 to I5 over the whole ledger. The default checks what [`audit`](crate::audit::audit) can
    /// read from books and journals; a store that can check more data overrides it.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn audit(&self) -> impl Future<Output = Result<Audit, BookError>> + Send {
        crate::audit::audit(self)
    }
}

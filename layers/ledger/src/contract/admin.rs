//! The ledger operations that operators use.

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

/// A payment into an account, or a correction of its balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The id of the entry, which the operator chooses. Booking an entry with the same id again changes nothing.
    pub id: String,
    /// The amount of the entry; a negative correction reduces the balance.
    pub amount: MicroRub,
    /// The reason for a correction; `None` for a payment.
    pub reason: Option<String>,
}

/// Why an operator's request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// The account, key or receipt that the request names does not exist.
    #[error("not found")]
    NotFound,
    /// An account, key or entry with the requested id exists already and has other contents.
    #[error("an account, key or entry with this id exists already and has other contents")]
    Exists,
    /// The change would leave the account with less money than its open holds reserve, or with a negative balance.
    #[error("the balance would fall below the amount that open holds reserve")]
    BelowHeld,
    /// The change would raise the balance above [`MicroRub::MAX`].
    #[error("the balance would exceed the largest amount that the ledger can store")]
    AboveMax,
    /// The account never had the group, or the group was removed.
    #[error("the account has no such group, or the group was removed")]
    NoGroup,
    /// A group cannot be removed while it has keys that are not deleted.
    #[error("the group still has keys that are not deleted")]
    GroupInUse,
    /// The ledger did not respond, or its response was lost. Retry with the same id: the change may have been made.
    #[error("ledger out of reach")]
    Unavailable(#[from] BoxError),
}

/// Returns `None` instead of [`BookError::NotFound`].
pub(crate) fn if_found<T>(result: Result<T, BookError>) -> Result<Option<T>, BookError> {
    match result {
        Err(BookError::NotFound) => Ok(None),
        result => result.map(Some),
    }
}

/// A version of the tariff. Each change of the tariff creates a version with the next higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TariffVersion {
    /// The number of the version; the first version has number 1.
    pub id: u64,
    /// Unix time in milliseconds from which this version is in force.
    pub effective_from_ms: u64,
}

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// The number of accounts that the audit checked.
    pub accounts: u64,
    /// The number of keys that the audit checked.
    pub keys: u64,
    /// The number of open holds that the audit found.
    pub holds_open: u64,
    /// One text per breach of an invariant. Each text begins with the invariant's name, for example `I1`.
    pub breaches: Vec<String>,
}

/// The ledger operations that operators use. A change is durable when it is acknowledged.
///
/// A method fails with a [`BookError`] if the ledger refuses the request or is unreachable. The documentation of a
/// method lists only the errors that this method returns in addition.
pub trait LedgerAdmin: Send + Sync + 'static {
    /// Opens an account. Opening it again with the same name changes nothing.
    fn create_account(
        &self,
        id: &AccountId,
        name: &str,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Renames an account, suspends it or resumes it. `None` leaves a field unchanged.
    fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Returns one account.
    fn account(
        &self,
        id: &AccountId,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Returns all accounts, sorted by id.
    fn accounts(&self) -> impl Future<Output = Result<Vec<AccountView>, BookError>> + Send;

    /// Books a payment or a correction, at most once per id. A repeated entry succeeds if its amount is the same, even
    /// if its reason differs; [`LedgerAdmin::entry`] returns the reason that was booked first.
    ///
    /// # Errors
    /// [`BookError::Exists`] if an entry with this id was booked with another amount; another [`BookError`] if the
    /// ledger refuses the entry or is unreachable.
    fn enter(
        &self,
        account: &AccountId,
        entry: &Entry,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Returns the entry with this id, or `None` if the journal does not have it any more. The default reads the
    /// journal; a ledger overrides this method if it can look an entry up by its id.
    fn entry(
        &self,
        account: &AccountId,
        id: &str,
    ) -> impl Future<Output = Result<Option<Entry>, BookError>> + Send {
        super::journal::entry_of(self, account, id)
    }

    /// Adds a key to the account that `record` names.
    fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Changes a key. After the ledger has acknowledged that a key is disabled, no new hold is made with this key.
    fn change_key(
        &self,
        id: &KeyId,
        change: &KeyChange,
    ) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Returns one key.
    fn key(&self, id: &KeyId) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Returns all keys of an account, including deleted keys, sorted by id.
    fn keys(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<KeyView>, BookError>> + Send;

    /// Creates a group of keys in an account. A repeated creation with the same name and ceilings changes nothing. The
    /// id of a removed group cannot be used again.
    fn create_group(
        &self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
    ) -> impl Future<Output = Result<GroupView, BookError>> + Send;

    /// Renames a group, changes its ceilings, or removes it. A group can be removed only after its last key has left it
    /// or was deleted.
    fn change_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
    ) -> impl Future<Output = Result<GroupView, BookError>> + Send;

    /// Returns all groups of an account, including removed groups, sorted by id.
    fn groups(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<GroupView>, BookError>> + Send;

    /// Returns the receipt of a call, whichever account paid for it.
    fn receipt(
        &self,
        number: RequestNumber,
    ) -> impl Future<Output = Result<Receipt, BookError>> + Send;

    /// Returns the receipt of a call that `account` paid for, or [`BookError::NotFound`] if another account paid.
    /// Unlike [`LedgerAdmin::receipt`], this method may serve callers: if a store keeps the data of each account apart,
    /// it reads only the data of `account`.
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

    /// Returns a page of an account's journal. The oldest line comes first, unless `part` requests the newest first. If
    /// a reader passes `next` of each page to the following request, it gets every line exactly once, even if lines are
    /// booked meanwhile.
    fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> impl Future<Output = Result<JournalPage, BookError>> + Send;

    /// Returns an account with its keys and open holds, and the position of the last line of its journal, all read at
    /// one moment.
    fn books(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<AccountBooks, BookError>> + Send;

    /// Returns the tariff version in force. If `fingerprint` differs from the fingerprint of that version, creates a
    /// new version and returns it.
    fn tariff_version(
        &self,
        fingerprint: &str,
    ) -> impl Future<Output = Result<TariffVersion, BookError>> + Send;

    /// Checks the invariants I1 to I5 over the whole ledger. The default runs [`audit`](crate::audit::audit), which
    /// reads books and journals. A store overrides this method if it has further data that can be checked.
    fn audit(&self) -> impl Future<Output = Result<Audit, BookError>> + Send {
        crate::audit::audit(self)
    }
}

//! Copies all data of a ledger to an empty ledger, for example when an operator moves from a file to Redis.
//!
//! [`copy`] reads an [`Export`] account by account, writes each account to the target, and audits what it writes. All
//! data of one account is read as of one moment. If an interrupted run has left accounts in the target, they are
//! written again. No gateway may use either ledger during the copy; a [`Target`] refuses gateways until
//! [`Target::publish`].

mod export;

use std::collections::HashMap;

use super::contract::{
    AccountBooks, BookError, Document, Documents, EVENTS_AT_ONCE_MAX, EventStore, JournalLine,
    JournalPages, Ledger, LedgerAdmin, TariffVersion, if_found,
};
use crate::{
    account::AccountId,
    audit::{AccountAudit, Snapshot},
    happening::{Event, Levels, Watched},
    money::MicroRub,
};

pub use self::export::Export;

/// The operations of a ledger from which data is copied.
///
/// A method fails with a [`BookError`] if the ledger refuses the request or is unreachable. The documentation of a
/// method lists only the errors that this method returns in addition.
pub trait Source: LedgerAdmin + Ledger + EventStore + Documents {
    /// Returns the ids and amounts of all entries of an account, including entries that its journal has dropped.
    fn entries(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<HashMap<String, MicroRub>, BookError>> + Send;

    /// Returns how many calls of an account may still be charged although their holds have expired.
    fn unsettled(&self, account: &AccountId)
    -> impl Future<Output = Result<u64, BookError>> + Send;

    /// Returns the tariff version in force, and its fingerprint.
    fn tariff(
        &self,
    ) -> impl Future<Output = Result<Option<(TariffVersion, String)>, BookError>> + Send;
}

/// A ledger that is being filled with a copy. Every write may be repeated.
///
/// A method fails with a [`BookError`] if the ledger refuses the request or is unreachable. The documentation of a
/// method lists only the errors that this method returns in addition.
pub trait Target: Sized {
    /// The ledger to which the copy is written.
    type Ledger: LedgerAdmin;

    /// Returns whether the target already contains these books, from an earlier run.
    fn has(&mut self, books: &AccountBooks)
    -> impl Future<Output = Result<bool, BookError>> + Send;

    /// Writes lines of an account's journal, oldest first. If `forgotten` is set, older lines are missing in the
    /// source; the sums of the journal are then less than the sums in the books.
    fn lines(
        &mut self,
        account: &AccountId,
        lines: &[JournalLine],
        forgotten: bool,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// Writes an account with its keys. Its journal lines must have been written before.
    fn account(
        &mut self,
        books: &AccountBooks,
        entries: &HashMap<String, MicroRub>,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// Writes the tariff version in force, so that later versions get higher numbers.
    fn tariff(
        &mut self,
        version: TariffVersion,
        fingerprint: &str,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// Writes the alert levels of an account, or of one of its keys or groups. The account must have been written
    /// before.
    fn levels(
        &mut self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// Writes events with their numbers, oldest first.
    fn events(&mut self, events: &[Event]) -> impl Future<Output = Result<(), BookError>> + Send;

    /// Writes a document.
    fn document(
        &mut self,
        document: &Document,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// Returns the target as a ledger, for the audit. Nothing more is written after this.
    fn filled(&mut self) -> impl Future<Output = Result<Self::Ledger, BookError>> + Send;

    /// Completes the copy: from now on, gateways can use the ledger.
    fn publish(self, ledger: Self::Ledger) -> impl Future<Output = Result<(), BookError>> + Send;
}

/// The progress of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// The number of accounts in the copy, including those from an earlier run.
    pub accounts: u64,
    /// The number of accounts that an earlier run had already copied.
    pub there_already: u64,
    /// The number of journal lines in the copied accounts.
    pub lines: u64,
}

/// The reason why a copy was not completed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// One of the two ledgers refused a request, or did not answer.
    #[error("the copy was interrupted because one of the ledgers failed")]
    Broken(#[from] BookError),
    /// The account has open holds: a call is in flight, which would be charged in the source but not in the copy.
    #[error(
        "account {0} has open holds: a gateway is using the source, or has not settled all of its calls"
    )]
    HoldsOpen(AccountId),
    /// The books of the source break an invariant. The copy would have the same breaches.
    #[error("the audit of the source found a breach: {}", .0.join("; "))]
    Breach(Vec<String>),
}

/// Copies all accounts. Calls `progress` after each account.
///
/// # Errors
/// [`CopyError::Broken`] if a ledger does not answer, [`CopyError::HoldsOpen`] if a call is in flight,
/// [`CopyError::Breach`] if the books of the source break an invariant. After an error, the copy can be started again
/// from the same source.
pub async fn copy<S: Source, T: Target>(
    from: &S,
    to: &mut T,
    mut progress: impl FnMut(&Copied),
) -> Result<Copied, CopyError> {
    let mut copied = Copied::default();
    let mut export = Export::whole(from).await?;
    while let Some(books) = export.next(from).await? {
        if !books.holds.is_empty() {
            return Err(CopyError::HoldsOpen(books.view.id));
        }
        copied.accounts += 1;
        if to.has(&books).await? {
            copied.there_already += 1;
        } else {
            copied.lines += copy_account(from, to, &books).await?;
        }
        for (of, levels) in from.levels(&books.view.id).await? {
            to.levels(&books.view.id, &of, levels).await?;
        }
        progress(&copied);
    }
    if let Some((version, fingerprint)) = from.tariff().await? {
        to.tariff(version, &fingerprint).await?;
    }
    copy_feed(from, to).await?;
    Ok(copied)
}

/// Copies the events, and the documents that record which events each receiver has accepted.
async fn copy_feed<S: Source, T: Target>(from: &S, to: &mut T) -> Result<(), BookError> {
    from.gather().await?;
    let mut after = 0;
    loop {
        let events = from.events(after, EVENTS_AT_ONCE_MAX).await?;
        let Some(last) = events.last() else { break };
        after = last.number;
        to.events(&events).await?;
    }
    for document in from.documents("").await? {
        to.document(&document).await?;
    }
    Ok(())
}

/// Copies an account: first its journal, page by page, and then its sums and keys. Returns the number of its journal
/// lines. Fails if the audit of these lines finds breaches; the sums and keys are then not written.
async fn copy_account<S: Source, T: Target>(
    from: &S,
    to: &mut T,
    books: &AccountBooks,
) -> Result<u64, CopyError> {
    let (id, forgotten) = (&books.view.id, !books.journal_complete);
    let mut audit = AccountAudit::new(Snapshot::from(books));
    let (mut entries, mut count) = (HashMap::new(), 0);
    let mut pages = JournalPages::up_to(books);
    while let Some(lines) = pages.next(from).await? {
        for line in &lines {
            audit.line(line);
            if let JournalLine::Entry { id, amount_rub, .. } = line {
                entries.insert(id.clone(), *amount_rub);
            }
        }
        count += lines.len() as u64;
        to.lines(id, &lines, forgotten).await?;
    }
    let breaches = audit.finish();
    if !breaches.is_empty() {
        return Err(CopyError::Breach(breaches));
    }
    if forgotten {
        // The source's journal has dropped some entries.
        entries.extend(from.entries(id).await?);
    }
    to.account(books, &entries).await?;
    Ok(count)
}

/// The sums of a ledger, in micro-rubles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of accounts.
    pub accounts: u64,
    /// The number of keys, including deleted keys.
    pub keys: u64,
    /// The sum of payments and corrections.
    pub entered: i128,
    /// The sum of the balances.
    pub balance: i128,
    /// The sum of the charges.
    pub spent: i128,
    /// The sum of the costs that could not be charged.
    pub loss: i128,
}

impl Totals {
    fn add(&mut self, books: &AccountBooks) {
        let micro = |amount: MicroRub| i128::from(amount.micro());
        self.accounts += 1;
        self.keys += books.keys.len() as u64;
        self.entered += micro(books.entered_rub);
        self.balance += micro(books.view.balance_rub);
        self.spent += micro(books.view.spent_rub);
        self.loss += micro(books.view.loss_rub);
    }
}

/// How two ledgers differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The sums of the first ledger.
    pub from: Totals,
    /// The sums of the second ledger.
    pub to: Totals,
    /// The accounts that differ; at most 20 are listed.
    pub different: Vec<AccountId>,
}

/// The largest number of differing accounts that are listed.
const DIFFERENT_MAX: usize = 20;

/// Compares two ledgers, account by account and key by key.
///
/// # Errors
/// A [`BookError`] if one of the two ledgers does not respond.
pub async fn compare(
    from: &impl LedgerAdmin,
    to: &impl LedgerAdmin,
) -> Result<Comparison, BookError> {
    let mut found = Comparison::default();
    let differs = |id: AccountId, found: &mut Comparison| {
        if found.different.len() < DIFFERENT_MAX {
            found.different.push(id);
        }
    };
    let mut export = Export::whole(from).await?;
    while let Some(ours) = export.next(from).await? {
        found.from.add(&ours);
        let theirs = if_found(to.books(&ours.view.id).await)?;
        if theirs.is_none_or(|theirs| !same(&ours, &theirs)) {
            differs(ours.view.id, &mut found);
        }
    }
    let mut export = Export::whole(to).await?;
    while let Some(theirs) = export.next(to).await? {
        found.to.add(&theirs);
        if if_found(from.account(&theirs.view.id).await)?.is_none() {
            differs(theirs.view.id, &mut found);
        }
    }
    Ok(found)
}

/// Returns whether two accounts have the same money, names, keys, groups and holds.
pub(super) fn same(one: &AccountBooks, other: &AccountBooks) -> bool {
    let what = |books: &AccountBooks| (books.view.clone(), books.entered_rub, books.keys.clone());
    what(one) == what(other) && one.holds == other.holds && one.groups == other.groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contract::Entry, memory::MemoryLedger};

    #[tokio::test]
    async fn comparison_of_ledgers_finds_a_difference_of_one_kopeck_and_a_missing_account() {
        let (one, other) = (MemoryLedger::new(), MemoryLedger::new());
        let ids: [AccountId; 2] = ["acme", "beta"].map(|id| id.parse().unwrap());
        let paid = |micro| Entry {
            id: "p1".into(),
            amount: MicroRub::new(micro),
            reason: None,
        };
        for ledger in [&one, &other] {
            ledger.create_account(&ids[0], "Acme").await.unwrap();
        }
        one.enter(&ids[0], &paid(10_000)).await.unwrap();
        other.enter(&ids[0], &paid(20_000)).await.unwrap();
        let found = compare(&one, &other).await.unwrap();
        assert_eq!(found.different, [ids[0].clone()]);
        assert_eq!((found.from.balance, found.to.balance), (10_000, 20_000));

        other.create_account(&ids[1], "Beta").await.unwrap();
        let found = compare(&one, &other).await.unwrap();
        assert_eq!(found.different, ids);
        assert_eq!((found.from.accounts, found.to.accounts), (1, 2));

        let found = compare(&one, &one).await.unwrap();
        assert!(found.different.is_empty() && found.from == found.to);
    }
}

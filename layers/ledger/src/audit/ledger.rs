//! Audits a whole ledger, account by account.

use futures_util::future::join_all;

use super::{AccountAudit, Snapshot};
use crate::{
    account::AccountId,
    contract::{Audit, BookError, JournalPage, JournalPages, JournalPart, LedgerAdmin, if_found},
    number::RequestNumber,
};

/// How many accounts are audited at the same time. Each audit keeps one page of a journal in memory.
const AUDITS_AT_ONCE: usize = 8;

/// Audits a whole ledger through its contract. While an account is audited, the audit keeps 16 bytes in memory for each
/// of the account's calls.
///
/// # Errors
/// A [`BookError`] if the ledger does not answer.
pub async fn audit<L: LedgerAdmin + ?Sized>(ledger: &L) -> Result<Audit, BookError> {
    over(&Contract(ledger)).await
}

/// The operations that an audit needs of a ledger.
pub(crate) trait Source: Sync {
    /// Returns the ids of all accounts, sorted.
    fn accounts(&self) -> impl Future<Output = Result<Vec<AccountId>, BookError>> + Send;

    /// Returns an account read at one moment; `None` if it does not exist.
    fn account_state(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Option<AccountState>, BookError>> + Send;

    /// Returns a part of an account's journal, and the calls in this part that moved money more than once. The list of
    /// these calls is empty if the store cannot find them.
    fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> impl Future<Output = Result<(JournalPage, Vec<RequestNumber>), BookError>> + Send;

    /// Returns a hold of `open` whose call has already ended. `None` if no such hold exists, or if the store cannot
    /// find such holds.
    fn ended(
        &self,
        account: &AccountId,
        open: &[RequestNumber],
    ) -> impl Future<Output = Result<Option<RequestNumber>, BookError>> + Send {
        let _ = (account, open);
        std::future::ready(Ok(None))
    }
}

/// An account's books, all read at one moment.
#[derive(Debug)]
pub(crate) struct AccountState {
    /// The audit of the account, in which the books are checked and no journal line has been added yet.
    pub(crate) audit: AccountAudit,
    pub(crate) keys: usize,
    /// The position of the journal's last line when the books were read.
    pub(crate) journal_end: String,
}

/// Audits a whole ledger, using all the data that `source` can read.
pub(crate) async fn over<S: Source>(source: &S) -> Result<Audit, BookError> {
    let mut audit = Audit::default();
    for ids in source.accounts().await?.chunks(AUDITS_AT_ONCE) {
        for found in join_all(ids.iter().map(|id| one(source, id))).await {
            let Some((keys, holds_open, breaches)) = found? else {
                continue;
            };
            audit.add(keys, holds_open, breaches);
        }
    }
    Ok(audit)
}

impl Audit {
    /// Adds the result for one account.
    pub(crate) fn add(&mut self, keys: usize, holds_open: usize, breaches: Vec<String>) {
        self.accounts += 1;
        self.keys += keys as u64;
        self.holds_open += holds_open as u64;
        self.breaches.extend(breaches);
    }
}

/// Audits one account. Returns the number of its keys, the number of its open holds, and its breaches.
async fn one<S: Source>(
    source: &S,
    id: &AccountId,
) -> Result<Option<(usize, usize, Vec<String>)>, BookError> {
    let Some(account_state) = source.account_state(id).await? else {
        return Ok(None);
    };
    let (mut audit, journal_end) = (account_state.audit, account_state.journal_end);
    let mut pages = JournalPages::new(id.clone(), JournalPart::whole(), Some(journal_end));
    while let Some((account, part)) = pages.requested() {
        let (page, twice) = source.journal(account, &part).await?;
        let lines = pages.turned(page);
        lines.iter().for_each(|line| audit.line(line));
        (twice.into_iter()).for_each(|number| audit.settled_twice(number));
    }
    let open: Vec<RequestNumber> = audit.books.holds.iter().map(|hold| hold.number).collect();
    if let Some(number) = source.ended(id, &open).await? {
        audit.ended(number);
    }
    Ok(Some((account_state.keys, open.len(), audit.finish())))
}

/// Reads a ledger through its public contract.
struct Contract<'a, L: ?Sized>(&'a L);

impl<L: LedgerAdmin + ?Sized> Source for Contract<'_, L> {
    async fn accounts(&self) -> Result<Vec<AccountId>, BookError> {
        let views = self.0.accounts().await?;
        Ok(views.into_iter().map(|view| view.id).collect())
    }

    async fn account_state(&self, account: &AccountId) -> Result<Option<AccountState>, BookError> {
        let Some(books) = if_found(self.0.books(account).await)? else {
            return Ok(None);
        };
        Ok(Some(AccountState {
            audit: AccountAudit::new(Snapshot::from(&books)).keeping_numbers(),
            keys: books.keys.len(),
            journal_end: books.journal_end,
        }))
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<(JournalPage, Vec<RequestNumber>), BookError> {
        Ok((self.0.journal(account, part).await?, Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{books, journal},
        *,
    };
    use crate::contract::JournalLine;

    /// A ledger with the books and the journal of one account. It lists a second account that has no books.
    struct Contracted {
        books: Snapshot,
        journal: Vec<JournalLine>,
    }

    impl Source for Contracted {
        async fn accounts(&self) -> Result<Vec<AccountId>, BookError> {
            Ok(vec!["acme".parse().unwrap(), "gone".parse().unwrap()])
        }

        async fn account_state(
            &self,
            account: &AccountId,
        ) -> Result<Option<AccountState>, BookError> {
            Ok((*account == self.books.id).then(|| AccountState {
                audit: AccountAudit::new(self.books.clone()),
                keys: 2,
                journal_end: "5".into(),
            }))
        }

        async fn journal(
            &self,
            _: &AccountId,
            part: &JournalPart<'_>,
        ) -> Result<(JournalPage, Vec<RequestNumber>), BookError> {
            assert_eq!(part.end, Some("5"));
            let at = part.after.map_or(0, |after| after.parse().unwrap());
            let next = (at + 1 < self.journal.len()).then(|| (at + 1).to_string());
            let lines = vec![self.journal[at].clone()];
            Ok((JournalPage { lines, next }, Vec::new()))
        }

        async fn ended(
            &self,
            _: &AccountId,
            open: &[RequestNumber],
        ) -> Result<Option<RequestNumber>, BookError> {
            Ok(open.first().copied())
        }
    }

    #[tokio::test]
    async fn audit_reads_every_page_of_a_journal() {
        let source = Contracted {
            books: books(),
            journal: journal(),
        };
        let found = over(&source).await.unwrap();
        assert_eq!((found.accounts, found.keys, found.holds_open), (1, 2, 2));
        let both =
            "I5 account acme: hold 00000000-0000-0000-0000-000000000001 is both open and ended";
        assert_eq!(found.breaches, [both]);
    }
}

//! An account's journal: a list of lines, oldest first, which is read in pages.

use serde::{Deserialize, Serialize};

use super::{AccountBooks, BookError, Booked, Entry, Item, LedgerAdmin};
use crate::{
    account::{AccountId, GroupId, KeyId},
    money::MicroRub,
    number::RequestNumber,
};

/// A call's receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The call's number.
    pub number: RequestNumber,
    /// Unix time in milliseconds at which the call was booked.
    pub at_ms: u64,
    /// The account that paid.
    pub account: AccountId,
    /// The key with which the call was made.
    pub key: KeyId,
    /// The group whose spending includes the charge: the group that the key was in when the call was booked. `None` if
    /// the key was in no group, if nothing was booked, or if a version without groups wrote the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// The amount that was first held for the call.
    pub held_rub: MicroRub,
    /// The cost of the call.
    pub cost_rub: MicroRub,
    /// The amount that was charged.
    pub charged_rub: MicroRub,
    /// The part of the cost that could not be charged.
    pub loss_rub: MicroRub,
    /// How the ledger booked the settlement.
    pub booked: Booked,
    /// The receipt's content in addition to the money: the model, the usage, the price, and how the call ended.
    #[serde(flatten)]
    pub item: Item,
}

/// One line of an account's journal: an entry, a charged call, or a disputed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every line is a call, so boxing calls would cost one allocation per line"
)]
pub enum JournalLine {
    /// A payment into the account, or a correction of its balance.
    Entry {
        /// The entry's id, chosen by the operator.
        id: String,
        /// Unix time in milliseconds at which the entry was booked.
        at_ms: u64,
        /// The account on which the entry was booked.
        account: AccountId,
        /// The amount of the entry; a negative correction reduces the balance.
        amount_rub: MicroRub,
        /// The reason for a correction; `None` for a payment.
        reason: Option<String>,
    },
    /// A call that was charged, or whose charge is disputed.
    Call(Receipt),
}

impl JournalLine {
    /// Unix time in milliseconds at which the line was booked.
    #[must_use]
    pub const fn at_ms(&self) -> u64 {
        match self {
            Self::Entry { at_ms, .. } => *at_ms,
            Self::Call(receipt) => receipt.at_ms,
        }
    }

    /// Returns this line as an entry if it is the entry with the id `wanted`; otherwise `None`.
    pub(crate) fn into_entry(self, wanted: &str) -> Option<Entry> {
        match self {
            Self::Entry {
                id,
                amount_rub: amount,
                reason,
                ..
            } if id == wanted => Some(Entry { id, amount, reason }),
            _ => None,
        }
    }
}

/// Finds an entry by its id. Reads the journal from its end, because an entry is usually looked up a moment after it
/// was booked.
pub(crate) async fn entry_of<L: LedgerAdmin + ?Sized>(
    ledger: &L,
    account: &AccountId,
    id: &str,
) -> Result<Option<Entry>, BookError> {
    let part = JournalPart {
        newest_first: true,
        ..JournalPart::whole()
    };
    let mut pages = JournalPages::new(account.clone(), part, None);
    while let Some(lines) = pages.next(ledger).await? {
        if let Some(entry) = (lines.into_iter()).find_map(|line| line.into_entry(id)) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// The largest number of lines that one page of a journal contains.
pub const JOURNAL_LINES_MAX: usize = 1000;

/// Selects a part of an account's journal, and how to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPart<'a> {
    /// Skips lines that were booked before this time, in Unix milliseconds.
    pub since_ms: u64,
    /// Skips lines that were booked at this time or later, in Unix milliseconds.
    pub until_ms: u64,
    /// Continues after this position: the [`JournalPage::next`] of a page that was read in the same direction.
    pub after: Option<&'a str>,
    /// Reads backwards, from the newest line to the oldest.
    pub newest_first: bool,
    /// Skips lines that were booked after the books with this [`journal_end`](super::AccountBooks::journal_end) were
    /// read.
    pub end: Option<&'a str>,
    /// The position at which a reader that reads backwards stops, for example the last position whose lines a
    /// [`Rollup`](crate::rollup::Rollup) has summed.
    pub behind: Option<&'a str>,
    /// The maximum number of lines in the page. A value above [`JOURNAL_LINES_MAX`] counts as [`JOURNAL_LINES_MAX`].
    pub limit: usize,
}

impl JournalPart<'_> {
    /// Selects the whole journal, in pages of [`JOURNAL_LINES_MAX`] lines.
    #[must_use]
    pub const fn whole() -> Self {
        Self {
            since_ms: 0,
            until_ms: u64::MAX,
            after: None,
            newest_first: false,
            end: None,
            behind: None,
            limit: JOURNAL_LINES_MAX,
        }
    }
}

/// A page of a journal. Its lines are in the requested direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalPage {
    /// The lines of this page.
    pub lines: Vec<JournalLine>,
    /// The position to pass as [`JournalPart::after`] to read the next page; `None` at the end of the journal.
    pub next: Option<String>,
}

/// Reads an account's journal to its end, page after page.
///
/// ```
/// # use tollgate_ledger::contract::{AccountBooks, BookError, JournalPages, LedgerAdmin};
/// async fn lines<L: LedgerAdmin>(ledger: &L, books: &AccountBooks) -> Result<usize, BookError> {
///     let mut pages = JournalPages::up_to(books);
///     let mut lines = 0;
///     while let Some(page) = pages.next(ledger).await? {
///         lines += page.len();
///     }
///     Ok(lines)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct JournalPages {
    account: AccountId,
    /// The part to read, without its positions, which the next two fields contain.
    pub(crate) part: JournalPart<'static>,
    /// The position after which the next page begins.
    pub(crate) after: Option<String>,
    end: Option<String>,
    is_done: bool,
}

impl JournalPages {
    /// Starts to read the lines that `books` include. Lines that were booked after `books` were read are left out.
    #[must_use]
    pub fn up_to(books: &AccountBooks) -> Self {
        let end = Some(books.journal_end.clone());
        Self::new(books.view.id.clone(), JournalPart::whole(), end)
    }

    pub(crate) const fn new(
        account: AccountId,
        part: JournalPart<'static>,
        end: Option<String>,
    ) -> Self {
        Self {
            account,
            part,
            after: None,
            end,
            is_done: false,
        }
    }

    /// Returns the lines of the next page, oldest first, and `None` after the last page. After an error, the next call
    /// requests the same page again.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses the request or is unreachable.
    pub async fn next<L: LedgerAdmin + ?Sized>(
        &mut self,
        ledger: &L,
    ) -> Result<Option<Vec<JournalLine>>, BookError> {
        let Some((account, part)) = self.requested() else {
            return Ok(None);
        };
        let page = ledger.journal(account, &part).await?;
        Ok(Some(self.turned(page)))
    }

    /// Returns the account and the part of its journal to request for the next page; `None` after the last page.
    pub(crate) fn requested(&self) -> Option<(&AccountId, JournalPart<'_>)> {
        let part = JournalPart {
            after: self.after.as_deref(),
            end: self.end.as_deref(),
            ..self.part
        };
        (!self.is_done).then_some((&self.account, part))
    }

    /// Lets other tasks run, unless the last page was read. A ledger in this process answers without waiting, so a task
    /// that reads many pages calls this after each page.
    pub(crate) async fn yield_between(&self) {
        if !self.is_done {
            tokio::task::yield_now().await;
        }
    }

    /// Stores the position after `page`, and returns the lines of `page`.
    pub(crate) fn turned(&mut self, page: JournalPage) -> Vec<JournalLine> {
        self.is_done = page.next.is_none();
        self.after = page.next;
        page.lines
    }
}

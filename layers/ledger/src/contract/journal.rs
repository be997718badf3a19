//! An account's journal: its lines in order, read page by page.

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
    /// The key that the call was made with.
    pub key: KeyId,
    /// The group whose spending includes the charge: the key's group when the call was booked. `None` if the key was in
    /// no group, if nothing was booked, or if an earlier version wrote the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// The amount that was held for the call at first.
    pub held_rub: MicroRub,
    /// The cost of the call.
    pub cost_rub: MicroRub,
    /// The amount that was charged.
    pub charged_rub: MicroRub,
    /// The part of the cost that was not charged.
    pub loss_rub: MicroRub,
    /// How the settlement was booked.
    pub booked: Booked,
    /// The model, the usage and the price of the call.
    #[serde(flatten)]
    pub item: Item,
}

/// One line of an account's journal: an entry, a charged call, or a disputed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all lines are calls: boxing them would cost an allocation each"
)]
pub enum JournalLine {
    /// A payment or a correction.
    Entry {
        /// The entry's id, chosen by the operator.
        id: String,
        /// Unix time in milliseconds at which it was booked.
        at_ms: u64,
        /// The account on which the entry was booked.
        account: AccountId,
        /// The signed amount of the entry.
        amount_rub: MicroRub,
        /// The reason of a correction; `None` for a payment.
        reason: Option<String>,
    },
    /// A call that was charged or disputed.
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

    /// Returns the line as an entry, if it is the entry with the id `wanted`.
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

/// Finds an entry. Reads the journal backwards from its end, since an entry that is looked up was usually booked a
/// moment ago.
pub(crate) async fn entry_of<L: LedgerAdmin + ?Sized>(
    ledger: &L,
    account: &AccountId,
    id: &str,
) -> Result<Option<Entry>, BookError> {
    let mut after: Option<String> = None;
    loop {
        let part = JournalPart {
            after: after.as_deref(),
            newest_first: true,
            ..JournalPart::whole()
        };
        let page = ledger.journal(account, &part).await?;
        let mut lines = page.lines.into_iter();
        if let Some(entry) = lines.find_map(|line| line.into_entry(id)) {
            return Ok(Some(entry));
        }
        after = page.next;
        if after.is_none() {
            return Ok(None);
        }
    }
}

/// The largest number of lines in a page of a journal.
pub const JOURNAL_LINES_MAX: usize = 1000;

/// The part of an account's journal to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPart<'a> {
    /// Reads lines from this time on, in Unix milliseconds.
    pub since_ms: u64,
    /// Reads lines before this time, in Unix milliseconds.
    pub until_ms: u64,
    /// Reads lines after this position: the [`JournalPage::next`] of a page read in the same direction.
    pub after: Option<&'a str>,
    /// Reads backwards, from the last line.
    pub newest_first: bool,
    /// Reads no line booked after the books with this [`journal_end`](super::AccountBooks::journal_end) were read.
    pub end: Option<&'a str>,
    /// When reading backwards: the position at which to stop. A [`Rollup`](crate::rollup::Rollup) reports the end of
    /// its sums as such a position.
    pub behind: Option<&'a str>,
    /// The maximum number of lines to return. A larger value counts as [`JOURNAL_LINES_MAX`].
    pub limit: usize,
}

impl JournalPart<'_> {
    /// Reads the whole journal, in the largest pages.
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

/// The lines of a journal, in the requested direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalPage {
    /// The lines of this page.
    pub lines: Vec<JournalLine>,
    /// The position from which the next page continues; `None` at the end of the journal.
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
    end: String,
    next: NextPage,
}

#[derive(Clone, Debug)]
enum NextPage {
    First,
    After(String),
    None,
}

impl JournalPages {
    /// Reads the lines that these books include, and no line booked later.
    #[must_use]
    pub fn up_to(books: &AccountBooks) -> Self {
        Self::new(books.view.id.clone(), books.journal_end.clone())
    }

    pub(crate) const fn new(account: AccountId, end: String) -> Self {
        Self {
            account,
            end,
            next: NextPage::First,
        }
    }

    /// Returns the next page's lines, oldest first; `None` after the last page. After an error, the same page is read
    /// again.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
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

    /// Returns the account, and the part of its journal that is the next page; `None` after the last page.
    pub(crate) fn requested(&self) -> Option<(&AccountId, JournalPart<'_>)> {
        let after = match &self.next {
            NextPage::First => None,
            NextPage::After(line) => Some(line.as_str()),
            NextPage::None => return None,
        };
        let part = JournalPart {
            after,
            end: Some(&self.end),
            ..JournalPart::whole()
        };
        Some((&self.account, part))
    }

    /// Moves on to the page after `page`, and returns the lines of `page`.
    pub(crate) fn turned(&mut self, page: JournalPage) -> Vec<JournalLine> {
        self.next = page.next.map_or(NextPage::None, NextPage::After);
        page.lines
    }
}

//! An account's journal: its lines in their order, page by page.

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
    /// Unix time in milliseconds when it was booked.
    pub at_ms: u64,
    /// Who paid.
    pub account: AccountId,
    /// On which key.
    pub key: KeyId,
    /// The group that was charged with it: the one that the key was in then. `None` where it was in none, where nothing
    /// was booked, and where an earlier version wrote the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// What was held.
    pub held_rub: MicroRub,
    /// What it cost.
    pub cost_rub: MicroRub,
    /// What was charged.
    pub charged_rub: MicroRub,
    /// Cost beyond the charge.
    pub loss_rub: MicroRub,
    /// How it was booked.
    pub booked: Booked,
    /// What was bought.
    #[serde(flatten)]
    pub item: Item,
}

/// One line of an account's journal: what moved its money, and what was disputed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all lines are calls: a box would be one more allocation for each"
)]
pub enum JournalLine {
    /// A payment or a correction.
    Entry {
        /// The operator's id for it.
        id: String,
        /// Unix time in milliseconds when it was booked.
        at_ms: u64,
        /// Whose it is.
        account: AccountId,
        /// How much, signed.
        amount_rub: MicroRub,
        /// Why, for a correction.
        reason: Option<String>,
    },
    /// A call.
    Call(Receipt),
}

impl JournalLine {
    /// Unix time in milliseconds when it was booked.
    #[must_use]
    pub const fn at_ms(&self) -> u64 {
        match self {
            Self::Entry { at_ms, .. } => *at_ms,
            Self::Call(receipt) => receipt.at_ms,
        }
    }

    /// The payment or correction, if this is the one of that id.
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

/// Looks for an entry from the journal's end back: who asks has mostly booked it just now.
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

/// How many lines a page of a journal has at most.
pub const JOURNAL_LINES_MAX: usize = 1000;

/// Which part of an account's journal is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPart<'a> {
    /// From this time on, in Unix milliseconds.
    pub since_ms: u64,
    /// Before this time.
    pub until_ms: u64,
    /// Behind what a page called [`JournalPage::next`], in the same direction.
    pub after: Option<&'a str>,
    /// From the last line back, for whoever looks at the latest.
    pub newest_first: bool,
    /// Nothing that came later than these books: their [`journal_end`](super::AccountBooks::journal_end).
    pub end: Option<&'a str>,
    /// Where the newest come first: nothing up to this place, as a [`Rollup`](crate::rollup::Rollup) tells how far it is.
    pub behind: Option<&'a str>,
    /// How many lines at most; no more than [`JOURNAL_LINES_MAX`] come.
    pub limit: usize,
}

impl JournalPart<'_> {
    /// All of it, in pages as large as they get.
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

/// Lines of a journal, in the direction that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalPage {
    /// The lines.
    pub lines: Vec<JournalLine>,
    /// Where to go on; `None` at the end.
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
    /// The lines that these books count, and no later ones.
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

    /// The next page's lines, oldest first; `None` behind the last page. Asked again after an error, it asks for the
    /// same page.
    ///
    /// # Errors
    /// See [`LedgerAdmin::journal`].
    pub async fn next<L: LedgerAdmin + ?Sized>(
        &mut self,
        ledger: &L,
    ) -> Result<Option<Vec<JournalLine>>, BookError> {
        let Some((account, part)) = self.asked() else {
            return Ok(None);
        };
        let page = ledger.journal(account, &part).await?;
        Ok(Some(self.turned(page)))
    }

    /// Which page is next.
    pub(crate) fn asked(&self) -> Option<(&AccountId, JournalPart<'_>)> {
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

    /// Goes on behind the page that was asked for.
    pub(crate) fn turned(&mut self, page: JournalPage) -> Vec<JournalLine> {
        self.next = page.next.map_or(NextPage::None, NextPage::After);
        page.lines
    }
}

//! The journals of the memory store: all entries, and the newest receipts.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::{
    account::AccountId,
    book::Hashing,
    contract::{
        BookError, Booked, JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPart, Receipt,
    },
    number::RequestNumber,
};

/// The largest number of receipts that are kept, over all accounts. When it is exceeded, the oldest receipt is dropped.
pub const RECEIPTS_MAX: usize = 100_000;

/// The journals of all accounts: all entries, and the newest receipts.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) lines: HashMap<AccountId, BTreeMap<JournalCursor, JournalLine>, Hashing>,
    pub(super) calls: HashMap<RequestNumber, (AccountId, JournalCursor), Hashing>,
    pub(super) calls_by_age: VecDeque<RequestNumber>,
    pub(super) last: JournalCursor,
    pub(super) has_forgotten: bool,
}

/// The position of a line: its number, counted over all accounts.
type JournalCursor = u64;

impl Journal {
    pub(super) fn receipt(&self, number: RequestNumber) -> Option<&Receipt> {
        let (account, place) = self.calls.get(&number)?;
        match self.lines.get(account)?.get(place)? {
            JournalLine::Call(receipt) => Some(receipt),
            JournalLine::Entry { .. } => None,
        }
    }

    pub(super) fn call(&mut self, receipt: Receipt) {
        let number = receipt.number;
        match self.receipt(number) {
            None => self.calls_by_age.push_back(number),
            // A disputed receipt moved no money, so a later receipt of the same call replaces it.
            Some(first) if first.booked == Booked::Stale && receipt.booked != Booked::Stale => {
                self.forget(number);
            }
            Some(_) => return,
        }
        let account = receipt.account.clone();
        let place = self.add(&account, JournalLine::Call(receipt));
        self.calls.insert(number, (account, place));
        if self.calls_by_age.len() > RECEIPTS_MAX
            && let Some(oldest) = self.calls_by_age.pop_front()
        {
            self.forget(oldest);
            self.has_forgotten = true;
        }
    }

    pub(super) fn add(&mut self, account: &AccountId, line: JournalLine) -> JournalCursor {
        self.last += 1;
        self.lines
            .entry(account.clone())
            .or_default()
            .insert(self.last, line);
        self.last
    }

    pub(super) fn forget(&mut self, number: RequestNumber) {
        if let Some((account, place)) = self.calls.remove(&number)
            && let Some(lines) = self.lines.get_mut(&account)
        {
            lines.remove(&place);
        }
    }

    pub(super) fn page(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        let after = part.after.map(place).transpose()?;
        let end = part.end.map_or(Ok(JournalCursor::MAX), place)?;
        let behind = part.behind.map_or(Ok(0), place)?;
        let first = behind.saturating_add(1);
        let (first, last) = match after {
            Some(after) if part.newest_first => (first, after.saturating_sub(1).min(end)),
            None if part.newest_first => (first, end),
            after => (after.map_or(0, |after| after.saturating_add(1)), end),
        };
        let Some(lines) = self.lines.get(account).filter(|_| first <= last) else {
            return Ok(JournalPage::default());
        };
        let limit = part.limit.clamp(1, JOURNAL_LINES_MAX);
        let times = part.since_ms..part.until_ms;
        let requested = lines
            .range(first..=last)
            .filter(|(_, line)| times.contains(&line.at_ms()));
        let page: Vec<(&JournalCursor, &JournalLine)> = if part.newest_first {
            requested.rev().take(limit).collect()
        } else {
            requested.take(limit).collect()
        };
        let next = match page.last() {
            Some((place, _)) if page.len() == limit => Some(place.to_string()),
            _ => None,
        };
        Ok(JournalPage {
            lines: page.into_iter().map(|(_, line)| line.clone()).collect(),
            next,
        })
    }
}

fn place(text: &str) -> Result<JournalCursor, BookError> {
    text.parse()
        .map_err(|_| BookError::Unavailable(format!("{text:?} is not a journal cursor").into()))
}

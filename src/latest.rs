//! Latest receipts: journals from the end back, so that nobody reads all of them to see today.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt,
    str::FromStr,
};

use futures_util::future::join_all;
use tollgate_layers::{
    key::AccountId,
    reserve::ledger::{
        BookError, Booked, JOURNAL_LINES_MAX, JournalLine, JournalPart, LedgerAdmin, Receipt,
    },
};

use crate::ledger::AnyLedger;

/// How many lines of the journal one page looks through at most, for those that are asked for.
const LINES_MAX: usize = 5_000;
/// The same where it is of many accounts: their lines come few at a time.
const LINES_OF_ALL_MAX: usize = 1_000;
/// How many accounts are asked at the same time.
const ACCOUNTS_AT_ONCE: usize = 64;
/// A page of an account's is so many times as long as the one before, where it is one among many.
const PAGE_GROWTH: usize = 8;

/// Lines of an account, newest first, as many at a time as they come.
#[derive(Debug)]
pub(crate) struct LatestLines<'a> {
    store: &'a AnyLedger,
    account: &'a AccountId,
    since_ms: u64,
    until_ms: u64,
    after: Option<String>,
    limit: usize,
    ended: bool,
}

impl<'a> LatestLines<'a> {
    pub(crate) const fn new(
        store: &'a AnyLedger,
        account: &'a AccountId,
        since_ms: u64,
        until_ms: u64,
    ) -> Self {
        Self {
            store,
            account,
            since_ms,
            until_ms,
            after: None,
            limit: JOURNAL_LINES_MAX,
            ended: false,
        }
    }

    /// Few lines at first, and more by and by: most accounts have none that are looked at.
    const fn few_at_first(mut self) -> Self {
        self.limit = 1;
        self
    }

    /// The next lines; `None` behind the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<JournalLine>>, BookError> {
        if self.ended {
            return Ok(None);
        }
        if self.after.is_some() {
            // The embedded ledgers answer at once: others want to be served too.
            tokio::task::yield_now().await;
        }
        let part = JournalPart {
            since_ms: self.since_ms,
            until_ms: self.until_ms,
            after: self.after.as_deref(),
            newest_first: true,
            limit: self.limit,
            ..JournalPart::whole()
        };
        self.limit = (self.limit * PAGE_GROWTH).min(JOURNAL_LINES_MAX);
        let page = self.store.journal(self.account, &part).await?;
        self.after = page.next;
        self.ended = self.after.is_none();
        Ok(Some(page.lines))
    }
}

/// The receipt of a line, if it is one. A dispute moved nothing and may be of a call that was charged.
pub(crate) fn charged(line: &JournalLine) -> Option<&Receipt> {
    match line {
        JournalLine::Call(receipt) => (receipt.booked != Booked::Stale).then_some(receipt),
        JournalLine::Entry { .. } => None,
    }
}

/// Which receipts of an account.
#[derive(Debug)]
pub(crate) struct ReceiptsPart {
    pub(crate) since_ms: u64,
    pub(crate) until_ms: u64,
    pub(crate) after: Option<ReceiptsCursor>,
    pub(crate) limit: usize,
}

/// Some of them, latest first. Fewer may come than there are: `next` says where to go on.
#[derive(Debug)]
pub(crate) struct ReceiptsPage {
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) next: Option<ReceiptsCursor>,
}

impl ReceiptsPage {
    /// The latest of these accounts that `asks_for` takes; those of one millisecond by account, in this order.
    pub(crate) async fn read(
        store: &AnyLedger,
        accounts: &[AccountId],
        part: &ReceiptsPart,
        asks_for: impl Fn(&Receipt) -> bool,
    ) -> Result<Self, BookError> {
        let mut reached = part.after;
        let (until_ms, mut seen) = match reached {
            Some(ReceiptsCursor { at_ms, lines }) => (at_ms.saturating_add(1), lines),
            None => (u64::MAX, 0),
        };
        let until_ms = until_ms.min(part.until_ms);
        let mut latest = Latest::begin(store, accounts, part.since_ms, until_ms).await?;
        let lines_max = match accounts.len() {
            1 => LINES_MAX,
            _ => LINES_OF_ALL_MAX,
        };
        let (mut receipts, mut left) = (Vec::new(), lines_max);
        while let Some(line) = latest.next().await? {
            let at_ms = line.at_ms();
            if seen > 0 && part.after.is_some_and(|after| after.at_ms == at_ms) {
                seen -= 1;
                continue;
            }
            if receipts.len() == part.limit || left == 0 {
                let next = reached;
                return Ok(Self { receipts, next });
            }
            left -= 1;
            reached = Some(ReceiptsCursor::behind(reached, at_ms));
            let is_asked_for = charged(&line).is_some_and(&asks_for);
            if let JournalLine::Call(receipt) = line
                && is_asked_for
            {
                receipts.push(receipt);
            }
        }
        Ok(Self {
            receipts,
            next: None,
        })
    }
}

/// Lines of many accounts, newest first.
struct Latest<'a> {
    ways: Vec<Way<'a>>,
    /// Of each that has a line, the time of its first one.
    turns: BinaryHeap<(u64, Reverse<usize>)>,
}

/// The lines of one of them.
struct Way<'a> {
    latest: LatestLines<'a>,
    lines: VecDeque<JournalLine>,
}

impl<'a> Latest<'a> {
    async fn begin(
        store: &'a AnyLedger,
        accounts: &'a [AccountId],
        since_ms: u64,
        until_ms: u64,
    ) -> Result<Self, BookError> {
        let ways = accounts.iter().map(|account| {
            let latest = LatestLines::new(store, account, since_ms, until_ms);
            Way {
                latest: match accounts.len() {
                    1 => latest,
                    _ => latest.few_at_first(),
                },
                lines: VecDeque::new(),
            }
        });
        let mut ways: Vec<Way<'a>> = ways.collect();
        for some in ways.chunks_mut(ACCOUNTS_AT_ONCE) {
            for filled in join_all(some.iter_mut().map(Way::fill)).await {
                match filled {
                    // One of many may be gone since they were listed.
                    Err(BookError::NotFound) if accounts.len() > 1 => {}
                    filled => filled?,
                }
            }
        }
        let mut latest = Self {
            ways,
            turns: BinaryHeap::new(),
        };
        (0..accounts.len()).for_each(|at| latest.wait(at));
        Ok(latest)
    }

    fn wait(&mut self, at: usize) {
        let first = self.ways[at].lines.front();
        self.turns
            .extend(first.map(|line| (line.at_ms(), Reverse(at))));
    }

    async fn next(&mut self) -> Result<Option<JournalLine>, BookError> {
        let Some((_, Reverse(at))) = self.turns.pop() else {
            return Ok(None);
        };
        let way = &mut self.ways[at];
        let line = way.lines.pop_front();
        if way.lines.is_empty() {
            way.fill().await?;
        }
        self.wait(at);
        Ok(line)
    }
}

impl Way<'_> {
    /// A page may have no line of the time that is asked for, and yet others behind it.
    async fn fill(&mut self) -> Result<(), BookError> {
        while self.lines.is_empty()
            && let Some(lines) = self.latest.next().await?
        {
            self.lines.extend(lines);
        }
        Ok(())
    }
}

/// How far was read: up to so many lines of this millisecond. The store's own cursors would tell a caller how many
/// calls others make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiptsCursor {
    at_ms: u64,
    lines: u32,
}

impl ReceiptsCursor {
    const fn behind(before: Option<Self>, at_ms: u64) -> Self {
        let lines = match before {
            Some(before) if before.at_ms == at_ms => before.lines.saturating_add(1),
            _ => 1,
        };
        Self { at_ms, lines }
    }
}

impl fmt::Display for ReceiptsCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.at_ms, self.lines)
    }
}

impl FromStr for ReceiptsCursor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('-').and_then(|(at_ms, lines)| {
            Some(Self {
                at_ms: at_ms.parse().ok()?,
                lines: lines.parse().ok()?,
            })
        });
        parsed.ok_or("must be the `next` of an answer to the same question")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_counts_the_lines_of_its_millisecond() {
        let mut reached = None;
        for (at_ms, text) in [(9, "9-1"), (9, "9-2"), (8, "8-1"), (7, "7-1"), (7, "7-2")] {
            let next = ReceiptsCursor::behind(reached, at_ms);
            assert_eq!(next.to_string(), text);
            assert_eq!(text.parse(), Ok(next));
            reached = Some(next);
        }
        for none in ["", "7", "7-", "-1", "7-x", "7-1-1"] {
            assert!(none.parse::<ReceiptsCursor>().is_err(), "{none}");
        }
    }
}

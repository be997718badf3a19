//! Reads the latest receipts. Journals are read from their end backwards, so that showing today's receipts does not
//! read whole journals.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt,
    str::FromStr,
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tollgate_layers::{
    facts::RequestNumber,
    key::AccountId,
    reserve::ledger::{
        BookError, Booked, JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPart, LedgerAdmin,
        Receipt,
    },
};
use tollgate_ledger::rollup::{Rollup, Search, Sought, Times};

use super::AnyLedger;
use crate::text::time::now_ms;

/// The maximum number of journal lines that are read for a page of one account.
const LINES_MAX: usize = 2_000;
/// The maximum number of journal lines that are read for a page of many accounts. Each account contributes few lines.
const LINES_OF_ALL_MAX: usize = 1_000;
/// The maximum number of steps back in time for one page. The roll-up's sums determine which times may have matching
/// lines.
const STRETCHES_MAX: usize = 16;
/// A page that has taken this long makes no further step.
const LONG: Duration = Duration::from_millis(50);
/// How many accounts are read at the same time.
const ACCOUNTS_AT_ONCE: usize = 256;
/// The number of lines that are first read from each account if many accounts are merged. The time of the second line
/// determines when the account is read again.
const LINES_FIRST: usize = 2;
/// Factor by which each further page of an account grows if many accounts are merged.
const PAGE_GROWTH: usize = 8;

/// Pauses (ms) between attempts to find a receipt. A charge is booked some milliseconds after its answer has ended, and
/// the caller may request the receipt as soon as it has the answer.
pub(crate) const LOOK_AGAIN_MS: &[u64] = &[10, 20, 40, 80];
/// Pauses before a repeated search through all accounts, in milliseconds.
pub(crate) const LOOK_IN_ALL_AGAIN_MS: &[u64] = &[100];
/// If a call began longer ago than this, it has ended and its charge is booked, so its receipt is searched only once.
const CALL_MAX: Duration = Duration::from_secs(3_600);

/// Searches a call's receipt with `look`. Repeats the search if the call is so recent that its charge may not be booked
/// yet.
///
/// # Errors
/// The error that `look` returned last.
pub(crate) async fn receipt_soon<F: Future<Output = Result<Receipt, BookError>>>(
    number: RequestNumber,
    look_again_ms: &[u64],
    look: impl Fn() -> F,
) -> Result<Receipt, BookError> {
    let age_ms = now_ms().abs_diff(number.unix_ms());
    if u128::from(age_ms) < CALL_MAX.as_millis() {
        for wait_ms in look_again_ms {
            match look().await {
                Err(BookError::NotFound) => sleep(Duration::from_millis(*wait_ms)).await,
                found => return found,
            }
        }
    }
    look().await
}

/// Lines of an account's journal, newest first, a page at a time.
#[derive(Debug)]
pub(crate) struct LatestLines<'a> {
    store: &'a AnyLedger,
    account: &'a AccountId,
    /// The spans of time that are still to be read, oldest first.
    left: Times<'a>,
    after: Option<String>,
    limit: usize,
}

impl<'a> LatestLines<'a> {
    pub(crate) fn new(
        store: &'a AnyLedger,
        account: &'a AccountId,
        since_ms: u64,
        until_ms: u64,
    ) -> Self {
        let times = Times {
            times: std::iter::once(since_ms..until_ms).collect(),
            behind: None,
        };
        Self::in_times(store, account, times)
    }

    const fn in_times(store: &'a AnyLedger, account: &'a AccountId, left: Times<'a>) -> Self {
        Self {
            store,
            account,
            left,
            after: None,
            limit: JOURNAL_LINES_MAX,
        }
    }

    /// Makes the first pages of a journal small and later pages larger. If many accounts are merged, most of them have
    /// no line that is shown.
    const fn few_at_first(mut self) -> Self {
        self.limit = LINES_FIRST;
        self
    }

    /// Returns the next lines; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<JournalLine>>, BookError> {
        let Some(part) = self.part() else {
            return Ok(None);
        };
        if part.after.is_some() {
            // The embedded ledgers answer without waiting, so this task yields to others.
            tokio::task::yield_now().await;
        }
        let page = self.store.journal(self.account, &part).await?;
        Ok(Some(self.turned(page)))
    }

    /// Returns the next part to read.
    fn part(&self) -> Option<JournalPart<'_>> {
        let time = self.left.times.last()?;
        Some(JournalPart {
            since_ms: time.start,
            until_ms: time.end,
            after: self.after.as_deref(),
            behind: self.left.behind,
            newest_first: true,
            limit: self.limit,
            ..JournalPart::whole()
        })
    }

    /// Moves on to the part of the journal after this page, and returns the page's lines.
    fn turned(&mut self, page: JournalPage) -> Vec<JournalLine> {
        self.after = page.next;
        if self.after.is_some() {
            self.limit = (self.limit * PAGE_GROWTH).min(JOURNAL_LINES_MAX);
        } else {
            self.left.times.pop();
            self.left.behind = None;
        }
        page.lines
    }
}

/// Returns the receipt of a line, if the line is a charged call. A disputed receipt moved no money, and its call may
/// have another receipt.
pub(crate) fn charged(line: &JournalLine) -> Option<&Receipt> {
    match line {
        JournalLine::Call(receipt) => (receipt.booked != Booked::Stale).then_some(receipt),
        JournalLine::Entry { .. } => None,
    }
}

/// The receipts to read: their period, the cursor after which they begin, and their maximum number.
#[derive(Debug)]
pub(crate) struct ReceiptsPart {
    pub(crate) since_ms: u64,
    pub(crate) until_ms: u64,
    pub(crate) after: Option<ReceiptsCursor>,
    pub(crate) limit: usize,
}

/// Receipts, latest first. A page may have fewer than the limit; `next` continues the search.
#[derive(Debug)]
pub(crate) struct ReceiptsPage {
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) next: Option<ReceiptsCursor>,
}

impl ReceiptsPage {
    /// Reads the latest receipts of these accounts that pass `asks_for`; receipts of the same millisecond are ordered
    /// by account. `sought` is a coarser filter: `asks_for` must reject every receipt that `sought` excludes.
    pub(crate) async fn read(
        store: &AnyLedger,
        accounts: &[AccountId],
        part: &ReceiptsPart,
        sought: Sought<'_>,
        asks_for: impl Fn(&Receipt) -> bool,
    ) -> Result<Self, BookError> {
        let until_ms = match part.after {
            Some(after) => part.until_ms.min(after.at_ms.saturating_add(1)),
            None => part.until_ms,
        };
        let alone = match accounts {
            [account] => Some(account),
            _ => None,
        };
        let mut search = Search::begin(store, alone, sought, part.since_ms..until_ms).await?;
        let mut reading = Reading::new(accounts.len(), part);
        let begun = Instant::now();
        // A page makes at least one step, so that following `next` always makes progress.
        for step in 0..STRETCHES_MAX {
            if step > 0 && begun.elapsed() > LONG {
                break;
            }
            let Some(stretch) = search.next(store).await? else {
                return Ok(reading.ended());
            };
            let times = |account: &AccountId| stretch.times(&search, account);
            let mut latest = Latest::begin(store, accounts, times).await?;
            while let Some(line) = latest.next().await? {
                if let Some(next) = reading.enough(line.at_ms()) {
                    return Ok(reading.cut(next));
                }
                reading.add(line, &asks_for);
            }
        }
        Ok(match search.next(store).await? {
            Some(stretch) => {
                let next = ReceiptsCursor::before(stretch.time.end);
                reading.cut(next)
            }
            None => reading.ended(),
        })
    }

    /// Returns the time since which the pages so far contain every receipt; `None` if they contain all receipts.
    pub(crate) fn searched_since_ms(&self) -> Option<u64> {
        self.next.map(|next| next.at_ms.saturating_add(1))
    }
}

/// A page of receipts that is being read.
struct Reading {
    receipts: Vec<Receipt>,
    limit: usize,
    /// The number of lines that may still be read.
    left: usize,
    /// The end of the previous page: a millisecond, and how many of its receipts the pages so far contain.
    given: Option<ReceiptsCursor>,
    /// The time of the previous line that was read, in Unix milliseconds.
    at_ms: u64,
    /// How many matching receipts of the millisecond `at_ms` were found, on this page and those before it.
    of_ms: u32,
}

impl Reading {
    fn new(accounts: usize, part: &ReceiptsPart) -> Self {
        Self {
            receipts: Vec::new(),
            limit: part.limit,
            left: match accounts {
                1 => LINES_MAX,
                _ => LINES_OF_ALL_MAX,
            },
            given: part.after,
            at_ms: u64::MAX,
            of_ms: 0,
        }
    }

    /// Returns the cursor of the next page if this page must end before a line of time `at_ms`. A page that ends
    /// because the maximum number of lines was read does not end within a millisecond, because the cursor does not
    /// count receipts that do not match.
    const fn enough(&self, at_ms: u64) -> Option<ReceiptsCursor> {
        if self.receipts.len() == self.limit {
            return Some(ReceiptsCursor {
                at_ms: self.at_ms,
                receipts: self.of_ms,
            });
        }
        match self.left == 0 && at_ms < self.at_ms {
            true => Some(ReceiptsCursor { at_ms, receipts: 0 }),
            false => None,
        }
    }

    fn add(&mut self, line: JournalLine, asks_for: impl Fn(&Receipt) -> bool) {
        self.left = self.left.saturating_sub(1);
        if line.at_ms() < self.at_ms {
            (self.at_ms, self.of_ms) = (line.at_ms(), 0);
        }
        let is_asked_for = charged(&line).is_some_and(asks_for);
        if let JournalLine::Call(receipt) = line
            && is_asked_for
        {
            self.of_ms += 1;
            let given = self.given.filter(|given| given.at_ms == self.at_ms);
            if given.is_none_or(|given| self.of_ms > given.receipts) {
                self.receipts.push(receipt);
            }
        }
    }

    fn cut(self, next: ReceiptsCursor) -> ReceiptsPage {
        ReceiptsPage {
            receipts: self.receipts,
            next: Some(next),
        }
    }

    fn ended(self) -> ReceiptsPage {
        ReceiptsPage {
            receipts: self.receipts,
            next: None,
        }
    }
}

/// Merges the lines of many accounts, newest first.
struct Latest<'a> {
    ways: Vec<Way<'a>>,
    /// The time of the next line of each account that has more lines.
    turns: BinaryHeap<(u64, Reverse<usize>)>,
}

/// The lines of one account that were read but not merged yet, and the part of its journal that is still to be read.
struct Way<'a> {
    latest: LatestLines<'a>,
    lines: VecDeque<JournalLine>,
}

impl<'a> Latest<'a> {
    async fn begin(
        store: &'a AnyLedger,
        accounts: &'a [AccountId],
        times: impl Fn(&AccountId) -> Times<'a>,
    ) -> Result<Self, BookError> {
        let ways = accounts.iter().filter_map(|account| {
            let times = times(account);
            if times.times.is_empty() {
                return None;
            }
            let latest = LatestLines::in_times(store, account, times);
            Some(Way {
                latest: match accounts.len() {
                    1 => latest,
                    _ => latest.few_at_first(),
                },
                lines: VecDeque::new(),
            })
        });
        let mut latest = Self {
            ways: ways.collect(),
            turns: BinaryHeap::new(),
        };
        let mut first = 0;
        for some in latest.ways.chunks_mut(ACCOUNTS_AT_ONCE) {
            let alone = accounts.len() == 1;
            let times = Self::begin_some(store, some, alone).await?;
            let turns = times.into_iter().enumerate();
            let turns = turns.filter_map(|(at, time)| Some((time?, Reverse(first + at))));
            latest.turns.extend(turns);
            first += some.len();
        }
        Ok(latest)
    }

    /// Returns the time of the newest line of each account (or of its newest call). If the store can return this time
    /// without the line, an account's lines are read only when the merge needs them.
    async fn begin_some(
        store: &'a AnyLedger,
        ways: &mut [Way<'a>],
        alone: bool,
    ) -> Result<Vec<Option<u64>>, BookError> {
        let mut times: Vec<Option<u64>> = vec![None; ways.len()];
        loop {
            // A part of the journal may have no line although an older part has one, so the next part is read.
            let open = ways.iter().zip(&times).enumerate();
            let open = open.filter(|(_, (_, time))| time.is_none());
            let parts = open
                .filter_map(|(at, (way, _))| Some((at, way.latest.account, way.latest.part()?)));
            let (open, parts): (Vec<usize>, Vec<(&AccountId, JournalPart<'_>)>) = parts
                .map(|(at, account, part)| (at, (account, part)))
                .unzip();
            if open.is_empty() {
                return Ok(times);
            }
            let newest = match alone {
                true => None,
                false => store.newest_ms(&parts).await?,
            };
            if let Some(newest) = newest {
                for (at, newest) in open.into_iter().zip(newest) {
                    times[at] = newest;
                    if newest.is_none() {
                        ways[at].latest.turned(JournalPage::default());
                    }
                }
                continue;
            }
            let pages = store.journals(&parts).await?;
            for (at, page) in open.into_iter().zip(pages) {
                let way = &mut ways[at];
                match page {
                    Some(page) => way.lines.extend(way.latest.turned(page)),
                    None if alone => return Err(BookError::NotFound),
                    // One of many accounts may have been removed after the accounts were listed.
                    None => way.latest.left.times.clear(),
                }
                times[at] = way.lines.front().map(JournalLine::at_ms);
            }
        }
    }

    fn wait(&mut self, at: usize) {
        let first = self.ways[at].lines.front();
        self.turns
            .extend(first.map(|line| (line.at_ms(), Reverse(at))));
    }

    async fn next(&mut self) -> Result<Option<JournalLine>, BookError> {
        while let Some((_, Reverse(at))) = self.turns.pop() {
            let way = &mut self.ways[at];
            // If only the time of the line was read and not the line, the lines are read now. The first of these lines
            // may be older than that time, so another account may be next.
            let line = way.lines.pop_front();
            if way.lines.is_empty() {
                way.fill().await?;
            }
            self.wait(at);
            if line.is_some() {
                return Ok(line);
            }
        }
        Ok(None)
    }
}

impl Way<'_> {
    /// Reads pages until a page has a matching line: a page of the journal may have no such line although a later page
    /// has one.
    async fn fill(&mut self) -> Result<(), BookError> {
        while self.lines.is_empty()
            && let Some(lines) = self.latest.next().await?
        {
            self.lines.extend(lines);
        }
        Ok(())
    }
}

/// How far receipts were read: all receipts that are newer than this millisecond, and this number of matching receipts
/// of the millisecond itself. Callers do not get the store's own cursors, because these would reveal how many calls
/// other customers make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiptsCursor {
    at_ms: u64,
    receipts: u32,
}

impl ReceiptsCursor {
    /// Creates the cursor for receipts that are older than this time.
    pub(crate) const fn before(at_ms: u64) -> Self {
        Self {
            at_ms: at_ms.saturating_sub(1),
            receipts: 0,
        }
    }
}

impl fmt::Display for ReceiptsCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.at_ms, self.receipts)
    }
}

impl FromStr for ReceiptsCursor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('-').and_then(|(at_ms, receipts)| {
            Some(Self {
                at_ms: at_ms.parse().ok()?,
                receipts: receipts.parse().ok()?,
            })
        });
        parsed.ok_or("must be the `next` of an answer to a request with the same parameters")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips() {
        for (at_ms, receipts, text) in [(9, 1, "9-1"), (8, 0, "8-0")] {
            let next = ReceiptsCursor { at_ms, receipts };
            assert_eq!(next.to_string(), text);
            assert_eq!(text.parse(), Ok(next));
        }
        for none in ["", "7", "7-", "-1", "7-x", "7-1-1"] {
            assert!(none.parse::<ReceiptsCursor>().is_err(), "{none}");
        }
    }
}

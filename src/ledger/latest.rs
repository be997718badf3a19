//! Reads the newest receipts of accounts. Journals are read backwards from their end, so that whole journals need not
//! be read for a page of today's receipts.

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

/// The maximum number of journal lines that are read for a page of receipts of one account.
const LINES_MAX: usize = 2_000;
/// The maximum number of journal lines that are read for a page of receipts of many accounts.
const LINES_OF_ALL_MAX: usize = 1_000;
/// The maximum number of steps back in time for one page of receipts. The sums of the roll-up show which spans of time
/// may contain matching lines; each step reads such spans.
const STRETCHES_MAX: usize = 16;
/// If reading a page of receipts has taken this long, no further step back in time is made for this page.
const LONG: Duration = Duration::from_millis(50);
/// The number of accounts whose journals are read at the same time.
const ACCOUNTS_AT_ONCE: usize = 256;
/// The number of lines that are first read from each account if receipts of many accounts are merged. The last of these
/// lines determines when the account is read again.
const LINES_FIRST: usize = 2;
/// If receipts of many accounts are merged, each further page of an account's journal is larger than the page before it
/// by this factor.
const PAGE_GROWTH: usize = 8;

/// Pauses between attempts to find a receipt, in milliseconds. A charge is booked some milliseconds after the response
/// has ended, and the caller may request the receipt sooner than that.
pub(crate) const LOOK_AGAIN_MS: &[u64] = &[10, 20, 40, 80];
/// Pauses between searches for a receipt in the journals of all accounts, in milliseconds.
pub(crate) const LOOK_IN_ALL_AGAIN_MS: &[u64] = &[100];
/// If a call began longer ago than this, it has ended and its charge is booked. So its receipt is searched for only
/// once.
const CALL_MAX: Duration = Duration::from_secs(3_600);

/// Calls `look` to find the receipt of a call. If the call is recent, its charge may not be booked yet, so the search
/// is repeated after each pause of `look_again_ms`.
///
/// # Errors
/// The error that the last `look` returned.
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

/// Reads an account's journal, newest lines first, one page at a time.
#[derive(Debug)]
pub(crate) struct LatestLines<'a> {
    store: &'a AnyLedger,
    account: &'a AccountId,
    /// The spans of time that are still to be read, the oldest span first.
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

    /// Makes the first page of the journal small and each later page larger. This suits a merge of many accounts: for
    /// most of them, the first page shows that they have no line to contribute.
    const fn few_at_first(mut self) -> Self {
        self.limit = LINES_FIRST;
        self
    }

    /// Returns the next page of lines; `None` if all lines were returned.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<JournalLine>>, BookError> {
        let Some(part) = self.part() else {
            return Ok(None);
        };
        if part.after.is_some() {
            // The embedded ledgers answer without waiting, so without this yield other tasks would not get to run.
            tokio::task::yield_now().await;
        }
        let page = self.store.journal(self.account, &part).await?;
        Ok(Some(self.turned(page)))
    }

    /// Returns the part of the journal to read next; `None` if everything was read.
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

    /// Advances to the part of the journal after this page, and returns the lines of the page.
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

/// Returns the receipt of a journal line; `None` if the line is an entry, or if the receipt is disputed. A disputed
/// receipt moved no money, and its call may have another receipt.
pub(crate) fn charged(line: &JournalLine) -> Option<&Receipt> {
    match line {
        JournalLine::Call(receipt) => (receipt.booked != Booked::Stale).then_some(receipt),
        JournalLine::Entry { .. } => None,
    }
}

/// The receipts to return: those in a period, after a cursor, and at most `limit`.
#[derive(Debug)]
pub(crate) struct ReceiptsPart {
    pub(crate) since_ms: u64,
    pub(crate) until_ms: u64,
    pub(crate) after: Option<ReceiptsCursor>,
    pub(crate) limit: usize,
}

/// A page of receipts, newest first. It may contain fewer receipts than the limit even if further receipts follow after
/// the cursor `next`.
#[derive(Debug)]
pub(crate) struct ReceiptsPage {
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) next: Option<ReceiptsCursor>,
}

impl ReceiptsPage {
    /// Returns the newest receipts of these accounts for which `asks_for` returns true. Receipts of the same
    /// millisecond are ordered by account. `sought` is a coarser filter: `asks_for` must reject every receipt that
    /// `sought` excludes.
    pub(crate) async fn read(
        store: &AnyLedger,
        accounts: &[AccountId],
        part: &ReceiptsPart,
        sought: Sought<'_>,
        asks_for: impl Fn(&Receipt) -> bool,
    ) -> Result<Self, BookError> {
        let after_ms = part.after.map(|after| after.at_ms.saturating_add(1));
        let until_ms = part.until_ms.min(after_ms.unwrap_or(u64::MAX));
        let alone = match accounts {
            [account] => Some(account),
            _ => None,
        };
        let mut search = Search::begin(store, alone, sought, part.since_ms..until_ms).await?;
        let mut reading = Reading::new(accounts.len(), part);
        let begun = Instant::now();
        // The limits apply only after the first step, so that a caller who follows `next` always makes progress.
        for step in 0..STRETCHES_MAX {
            if step > 0 && begun.elapsed() > LONG {
                break;
            }
            let Some(stretch) = search.next(store).await? else {
                return Ok(reading.page(None));
            };
            let times = |account: &AccountId| stretch.times(&search, account);
            let mut latest = Latest::begin(store, accounts, times).await?;
            while let Some(line) = latest.next().await? {
                if let Some(next) = reading.enough(line.at_ms()) {
                    return Ok(reading.page(Some(next)));
                }
                reading.add(line, &asks_for);
            }
        }
        let next = search.next(store).await?;
        let next = next.map(|stretch| ReceiptsCursor::before(stretch.time.end));
        Ok(reading.page(next))
    }

    /// Returns the time since which the pages returned so far contain every receipt; `None` if they contain all
    /// receipts.
    pub(crate) fn searched_since_ms(&self) -> Option<u64> {
        self.next.map(|next| next.at_ms.saturating_add(1))
    }
}

/// A page of receipts while it is being read.
struct Reading {
    receipts: Vec<Receipt>,
    limit: usize,
    /// The number of journal lines that may still be read for this page.
    left: usize,
    /// The cursor at which the previous page ended: a millisecond, and how many matching receipts of that millisecond
    /// were returned so far.
    given: Option<ReceiptsCursor>,
    /// The time of the last line that was read, in Unix milliseconds.
    at_ms: u64,
    /// How many matching receipts of the millisecond `at_ms` were found, on this page and on the pages before it.
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

    /// If the page must end before a line of time `at_ms`, returns the cursor of the next page. If the limit on lines
    /// is reached, the page still continues to the end of a millisecond, because a cursor counts matching receipts, not
    /// lines.
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

    /// Returns the page. `next` is the cursor of the next page; `None` if this page is the last.
    fn page(self, next: Option<ReceiptsCursor>) -> ReceiptsPage {
        ReceiptsPage {
            receipts: self.receipts,
            next,
        }
    }
}

/// Merges the journal lines of many accounts, newest first.
struct Latest<'a> {
    ways: Vec<Way<'a>>,
    /// For each account that has more lines: the time of its next line.
    turns: BinaryHeap<(u64, Reverse<usize>)>,
}

/// For each account: the lines that were read but not merged yet, and the part of its journal that is still to be read.
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

    /// Returns the time of each account's newest line (or of its newest call). If the store can return this time
    /// without the line, the lines of an account are read only when the merge needs them.
    async fn begin_some(
        store: &'a AnyLedger,
        ways: &mut [Way<'a>],
        alone: bool,
    ) -> Result<Vec<Option<u64>>, BookError> {
        let mut times: Vec<Option<u64>> = vec![None; ways.len()];
        loop {
            // If this part of the journal has no line, an older part may still have some, so the next part is read.
            let open = ways.iter().zip(&times).enumerate();
            let open = open.filter(|(_, (_, time))| time.is_none());
            let parts = open
                .filter_map(|(at, (way, _))| Some((at, way.latest.account, way.latest.part()?)));
            let parts = parts.map(|(at, account, part)| (at, (account, part)));
            let (open, parts): (Vec<usize>, Vec<_>) = parts.unzip();
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
                    // An account may have been removed after the accounts were listed.
                    None => way.latest.left.times.clear(),
                }
                times[at] = way.lines.front().map(JournalLine::at_ms);
            }
        }
    }

    fn wait(&mut self, at: usize) {
        let first = self.ways[at].lines.front();
        let turn = first.map(|line| (line.at_ms(), Reverse(at)));
        self.turns.extend(turn);
    }

    async fn next(&mut self) -> Result<Option<JournalLine>, BookError> {
        while let Some((_, Reverse(at))) = self.turns.pop() {
            let way = &mut self.ways[at];
            // If so far only the time of the account's next line is known, its lines are read now. The newest of these
            // lines may be older than that time, so another account may come first.
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
    /// Reads pages of the journal until one has lines. If a page is empty, later pages may still have lines.
    async fn fill(&mut self) -> Result<(), BookError> {
        while self.lines.is_empty()
            && let Some(lines) = self.latest.next().await?
        {
            self.lines.extend(lines);
        }
        Ok(())
    }
}

/// The place at which a page of receipts ended: all newer receipts were returned, and of the receipts of this
/// millisecond the first `count` matching ones. Callers do not get the store's own cursors, which would reveal how many
/// calls other customers make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiptsCursor {
    at_ms: u64,
    receipts: u32,
}

impl ReceiptsCursor {
    /// Creates a cursor after which only receipts older than this time are returned.
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
        let wanted =
            "must be the value of `next` in a response to a request with the same parameters";
        parsed.ok_or(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_of_a_page_of_receipts_round_trips_as_text() {
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

//! An account's latest receipts: its journal from the end back, so that nobody reads all of it to see today.

use std::{fmt, str::FromStr};

use tollgate_layers::{
    key::AccountId,
    reserve::ledger::{BookError, Booked, JournalLine, JournalPart, LedgerAdmin, Receipt},
};

use crate::ledger::AnyLedger;

/// How many lines of the journal one page looks through at most, for those that are asked for.
const LINES_MAX: usize = 5_000;

/// Lines of an account, newest first, as many at a time as they come.
#[derive(Debug)]
pub(crate) struct LatestLines<'a> {
    store: &'a AnyLedger,
    account: &'a AccountId,
    since_ms: u64,
    until_ms: u64,
    after: Option<String>,
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
            ended: false,
        }
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
            ..JournalPart::whole()
        };
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
    /// The latest of `account` that `asks_for` takes.
    pub(crate) async fn read(
        store: &AnyLedger,
        account: &AccountId,
        part: &ReceiptsPart,
        asks_for: impl Fn(&Receipt) -> bool,
    ) -> Result<Self, BookError> {
        let mut reached = part.after;
        let (until_ms, mut seen) = match reached {
            Some(ReceiptsCursor { at_ms, lines }) => (at_ms.saturating_add(1), lines),
            None => (u64::MAX, 0),
        };
        let until_ms = until_ms.min(part.until_ms);
        let mut latest = LatestLines::new(store, account, part.since_ms, until_ms);
        let (mut receipts, mut left) = (Vec::new(), LINES_MAX);
        while let Some(lines) = latest.next().await? {
            for line in lines {
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
        }
        Ok(Self {
            receipts,
            next: None,
        })
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

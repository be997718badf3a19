//! Statements from the roll-up. Whole days (UTC) come from sums. Two kinds of calls are read one by one: calls on days
//! that are only partly in the period, and calls after the summed lines.
//!
//! The roll-up is not authoritative. If the journal is complete, the sums and the remaining lines must together equal
//! the account's spending and payments in the books, to the micro-ruble. If they do not, the statement is computed
//! without the roll-up.

use std::ops::Range;

use super::{Reader, Statement, StatementError, must_reach_back};
use crate::{
    account::AccountId,
    contract::{JournalLine, JournalPages, LedgerAdmin, Receipt},
    rollup::{DAY_MS, Rolled, Rollup, Scope, Sums, counted, whole_within},
};

/// Computes a statement from the roll-up; `None` if the roll-up does not suffice.
pub(super) async fn read<L: Rollup + ?Sized>(
    ledger: &L,
    account: &AccountId,
    time: &Range<u64>,
) -> Result<Option<Statement>, StatementError> {
    let within = whole_within(DAY_MS, time);
    if within.is_empty() {
        return Ok(None);
    }
    let behind = whole_within(DAY_MS, &(time.end..u64::MAX));
    // The sums are read before the books, so the books include at least every line that is in the sums.
    let Rolled { rows, places, .. } = ledger
        .rolled(&[(Scope::Account(account.clone()), 0..u64::MAX)])
        .await?;
    let Some(place) = places.get(account) else {
        return Ok(None);
    };
    let books = ledger.books(account).await?;
    must_reach_back(ledger, &books, time.start).await?;
    let Some(entries) = ledger.entries(account, &books.journal_end).await? else {
        return Ok(None);
    };
    let mut reader = Reader::new(books.view.balance_rub, time.clone());
    let amounts = entries.iter().map(|line| match line {
        JournalLine::Entry { amount_rub, .. } => i128::from(amount_rub.micro()),
        JournalLine::Call(_) => 0,
    });
    let entered: i128 = amounts.sum();
    entries.into_iter().try_for_each(|line| reader.line(line))?;
    let mut sums = DaySums {
        reader: &mut reader,
        within: within.clone(),
        behind: behind.clone(),
        spent: 0,
    };
    for (day_ms, words, of_day) in &rows {
        sums.add(*day_ms, &words.model, of_day)?;
    }
    let mut since_then = JournalPages::up_to(&books);
    since_then.after = Some(place.clone());
    let lines = each(ledger, since_then, |receipt| {
        let call = Sums::from_receipt(receipt);
        sums.add(receipt.at_ms, &receipt.item.model, &call)
    });
    lines.await?;
    let booked = [books.view.spent_rub, books.entered_rub].map(|sum| i128::from(sum.micro()));
    if books.journal_complete && [sums.spent, entered] != booked {
        return Ok(None);
    }
    // Reads the calls of the days that are only partly in the period.
    for edge in [time.start..within.start, within.end..behind.start] {
        if edge.is_empty() {
            continue;
        }
        let mut pages = JournalPages::up_to(&books);
        (pages.part.since_ms, pages.part.until_ms) = (edge.start, edge.end);
        let lines = each(ledger, pages, |receipt| {
            match edge.contains(&receipt.at_ms) {
                true => reader.line(JournalLine::Call(receipt.clone())),
                false => Ok(()),
            }
        });
        lines.await?;
    }
    Ok(Some(reader.finish()))
}

/// Adds the sums of whole days, and the calls after the summed lines, to a statement.
struct DaySums<'a> {
    reader: &'a mut Reader,
    /// The whole days of the period.
    within: Range<u64>,
    /// The whole days after the period.
    behind: Range<u64>,
    /// The sum of all charges since the account was opened, in micro-rubles.
    spent: i128,
}

impl DaySums<'_> {
    fn add(&mut self, at_ms: u64, model: &str, sums: &Sums) -> Result<(), StatementError> {
        if self.within.contains(&at_ms) {
            self.reader.spent(model, sums);
        } else if self.behind.contains(&at_ms) {
            self.reader.closing_micro += sums.charged_micro;
        }
        self.spent += sums.charged_micro;
        self.reader.is_short()
    }
}

/// Calls `visit` with each receipt in a part of a journal.
async fn each<L: LedgerAdmin + ?Sized>(
    ledger: &L,
    mut pages: JournalPages,
    mut visit: impl FnMut(&Receipt) -> Result<(), StatementError>,
) -> Result<(), StatementError> {
    while let Some(lines) = pages.next(ledger).await? {
        (lines.iter().filter_map(counted)).try_for_each(&mut visit)?;
        pages.yield_between().await;
    }
    Ok(())
}

//! Statements from the roll-up: whole days (UTC) come from sums. Two kinds of calls are read line by line: those on
//! days that are only partly in the period, and those after the sums.
//!
//! The roll-up is not part of the books. If the journal is complete, the sums and lines of the account must equal its
//! spending and its payments in the books, to the micro-ruble. If they do not, the statement is computed without the
//! sums.

use std::ops::Range;

use super::{Reader, Statement, StatementError, must_reach_back};
use crate::{
    account::AccountId,
    contract::{JournalLine, JournalPart, LedgerAdmin, Receipt},
    rollup::{DAY_MS, Rolled, Rollup, Scope, Sums, counted, whole_within},
};

/// Computes a statement from the roll-up; `None` if the roll-up is not sufficient.
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
    // The sums are read before the books, so that the books include at least the lines in the sums.
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
    let (mut spent, mut entered) = (0, 0);
    let mut reader = Reader::new(books.view.balance_rub, time.clone());
    for line in entries {
        if let JournalLine::Entry { amount_rub, .. } = &line {
            entered += i128::from(amount_rub.micro());
        }
        reader.line(line)?;
    }
    let mut add = |reader: &mut Reader, at_ms: u64, model: &str, sums: &Sums| {
        if within.contains(&at_ms) {
            reader.spent(model, sums);
        } else if behind.contains(&at_ms) {
            reader.closing_micro += sums.charged_micro;
        }
        spent += sums.charged_micro;
        reader.is_short()
    };
    for (day_ms, words, sums) in &rows {
        add(&mut reader, *day_ms, &words.model, sums)?;
    }
    let end = &books.journal_end;
    let since_then = JournalPart {
        after: Some(place),
        end: Some(end),
        ..JournalPart::whole()
    };
    let lines = each(ledger, account, since_then, |receipt| {
        add(
            &mut reader,
            receipt.at_ms,
            &receipt.item.model,
            &Sums::of(receipt),
        )
    });
    lines.await?;
    let comes_to = [
        i128::from(books.view.spent_rub.micro()),
        books.entered_rub.micro().into(),
    ];
    if books.journal_complete && [spent, entered] != comes_to {
        return Ok(None);
    }
    // The calls on the days that are only partly in the period.
    for edge in [time.start..within.start, within.end..behind.start] {
        let part = JournalPart {
            since_ms: edge.start,
            until_ms: edge.end,
            end: Some(end),
            ..JournalPart::whole()
        };
        if edge.is_empty() {
            continue;
        }
        let lines = each(ledger, account, part, |receipt| {
            match edge.contains(&receipt.at_ms) {
                true => reader.line(JournalLine::Call(receipt.clone())),
                false => Ok(()),
            }
        });
        lines.await?;
    }
    Ok(Some(reader.finish()))
}

/// Calls `tell` with each receipt in a part of a journal.
async fn each<L: LedgerAdmin + ?Sized>(
    ledger: &L,
    account: &AccountId,
    part: JournalPart<'_>,
    mut tell: impl FnMut(&Receipt) -> Result<(), StatementError>,
) -> Result<(), StatementError> {
    let mut page = ledger.journal(account, &part).await?;
    loop {
        for receipt in page.lines.iter().filter_map(counted) {
            tell(receipt)?;
        }
        let Some(next) = page.next else {
            return Ok(());
        };
        // A ledger in this process answers without waiting, so yield to let other tasks run.
        tokio::task::yield_now().await;
        let part = JournalPart {
            after: Some(&next),
            ..part
        };
        page = ledger.journal(account, &part).await?;
    }
}

//! An account's statement for a period: the opening balance, payments and corrections, spending per model, and the
//! closing balance.
//!
//! Statements are not stored. They are computed backwards from the current books and the journal, so lines older than
//! the period are not needed. The same journal always yields the same statement: a journal only grows, and a new line
//! is dated back by at most [`DATED_BACK_MS_MAX`].
//!
//! If the [roll-up](crate::rollup) has an account's sums of whole days, the calls of these days are not read one by
//! one.

mod rolled;

use std::{collections::BTreeMap, ops::Range};

use crate::{
    account::AccountId,
    contract::{
        AccountBooks, BookError, Booked, JournalLine, JournalPages, JournalPart, LedgerAdmin,
        Receipt,
    },
    money::MicroRub,
    rollup::{Rollup, Sums},
    usage::Usage,
};

/// The largest number of milliseconds by which a new journal line may be dated back. After a failover, Redis dates
/// lines by the clock of the new server, which may be behind. A period that ended longer ago than this gets no more
/// lines.
pub const DATED_BACK_MS_MAX: u64 = 3_600_000;

/// The largest number of payments and corrections in a statement. It is also the largest number of models.
pub const LINES_MAX: usize = 10_000;

/// The number of micro-rubles in a kopeck.
const KOPECK: i128 = 10_000;

/// The movements of an account's money in a period. Sums are in micro-rubles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// The balance at the beginning of the period.
    pub opening_micro: i128,
    /// The payments of the period, oldest first.
    pub payments: Vec<Moved>,
    /// The corrections of the period, oldest first.
    pub corrections: Vec<Moved>,
    /// The spending in the period, by model.
    pub models: BTreeMap<String, Spent>,
    /// The balance at the end of the period.
    pub closing_micro: i128,
}

/// A payment or a correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The entry's id, chosen by the operator.
    pub id: String,
    /// The time of the entry, in Unix milliseconds.
    pub at_ms: u64,
    /// The amount of the entry; a negative correction reduces the balance.
    pub amount_rub: MicroRub,
    /// The reason for a correction; `None` for a payment.
    pub reason: Option<String>,
}

/// The spending on one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// The number of calls.
    pub calls: u64,
    /// The tokens of the calls.
    pub usage: Usage,
    /// The charges of the calls.
    pub charged_micro: i128,
}

/// The sums of a statement in whole kopecks.
///
/// Balances, payments and corrections are rounded separately, and the spending is computed from the rounded values. So
/// the sums of a statement always agree, and the opening balance is the closing balance of the previous period. Over
/// any number of months, the spending differs from the charges by at most one kopeck. If all payments and corrections
/// are whole kopecks, as in bank transfers, the spending is never negative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kopecks {
    /// The balance at the beginning of the period.
    pub opening: i128,
    /// The sum of payments.
    pub payments: i128,
    /// The sum of corrections; it may be negative.
    pub corrections: i128,
    /// The spending: opening + payments + corrections − closing.
    pub spent: i128,
    /// The spending on each model, each rounded separately, in the order of [`Statement::models`].
    pub models: Vec<i128>,
    /// The difference between `spent` and the sum of `models`, which rounding causes.
    pub models_rounding: i128,
    /// The balance at the end of the period.
    pub closing: i128,
}

/// The reason why a statement could not be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatementError {
    /// The ledger did not answer.
    #[error(transparent)]
    Ledger(#[from] BookError),
    /// The journal may have dropped lines of the period.
    #[error("lines of the requested period may have been deleted from the journal")]
    Forgotten,
    /// The statement would have more than [`LINES_MAX`] lines.
    #[error("the statement would have more than {LINES_MAX} lines")]
    TooLong,
}

impl Statement {
    /// Computes an account's statement for a period in Unix milliseconds. If the period has not ended, or ended less
    /// than [`DATED_BACK_MS_MAX`] ago, a later statement for the same period may differ.
    ///
    /// # Errors
    /// [`StatementError::Ledger`] if the ledger does not answer. [`StatementError::Forgotten`] if the journal may have
    /// dropped lines of the period. [`StatementError::TooLong`] if the statement would have too many lines.
    pub async fn read<L: Rollup + ?Sized>(
        ledger: &L,
        account: &AccountId,
        time: Range<u64>,
    ) -> Result<Self, StatementError> {
        match rolled::read(ledger, account, &time).await? {
            Some(statement) => Ok(statement),
            None => Self::read_all(ledger, account, time).await,
        }
    }

    /// Computes the statement from the journal, without the roll-up.
    async fn read_all<L: LedgerAdmin + ?Sized>(
        ledger: &L,
        account: &AccountId,
        time: Range<u64>,
    ) -> Result<Self, StatementError> {
        let books = ledger.books(account).await?;
        must_reach_back(ledger, &books, time.start).await?;
        let mut pages = JournalPages::up_to(&books);
        pages.part.since_ms = time.start;
        let mut reader = Reader::new(books.view.balance_rub, time);
        while let Some(lines) = pages.next(ledger).await? {
            lines.into_iter().try_for_each(|line| reader.line(line))?;
            pages.yield_between().await;
        }
        Ok(reader.finish())
    }

    /// Returns the sum of all payments.
    #[must_use]
    pub fn payments_micro(&self) -> i128 {
        sum(&self.payments)
    }

    /// Returns the sum of all corrections; it may be negative.
    #[must_use]
    pub fn corrections_micro(&self) -> i128 {
        sum(&self.corrections)
    }

    /// Returns the sum of the charges of all calls.
    #[must_use]
    pub fn spent_micro(&self) -> i128 {
        self.models.values().map(|spent| spent.charged_micro).sum()
    }

    /// Returns the statement's sums in whole kopecks.
    #[must_use]
    pub fn kopecks(&self) -> Kopecks {
        let [opening, payments, corrections, closing] = [
            self.opening_micro,
            self.payments_micro(),
            self.corrections_micro(),
            self.closing_micro,
        ]
        .map(to_kopecks);
        let spent = opening + payments + corrections - closing;
        let models = self.models.values();
        let models: Vec<i128> = models
            .map(|spent| to_kopecks(spent.charged_micro))
            .collect();
        Kopecks {
            opening,
            payments,
            corrections,
            spent,
            models_rounding: spent - models.iter().sum::<i128>(),
            models,
            closing,
        }
    }
}

/// Rounds to whole kopecks. Half a kopeck is rounded away from zero.
#[must_use]
pub fn to_kopecks(micro: i128) -> i128 {
    (micro.abs() + KOPECK / 2) / KOPECK * micro.signum()
}

fn sum(moved: &[Moved]) -> i128 {
    let amounts = moved.iter().map(|it| i128::from(it.amount_rub.micro()));
    amounts.sum()
}

/// Fails unless the journal contains every line since the beginning of the period. A journal drops its oldest lines
/// first. So if it contains a line from before the period, it contains all lines of the period.
async fn must_reach_back<L: LedgerAdmin + ?Sized>(
    ledger: &L,
    books: &AccountBooks,
    begins_ms: u64,
) -> Result<(), StatementError> {
    if books.journal_complete {
        return Ok(());
    }
    let part = JournalPart {
        // Skips entries at time 0, whose true time is unknown.
        since_ms: 1,
        until_ms: begins_ms.saturating_sub(DATED_BACK_MS_MAX),
        limit: 1,
        ..JournalPart::whole()
    };
    let mut pages = JournalPages::new(books.view.id.clone(), part, None);
    while let Some(lines) = pages.next(ledger).await? {
        if !lines.is_empty() {
            return Ok(());
        }
    }
    Err(StatementError::Forgotten)
}

/// Computes a statement from all lines since the beginning of the period. The current balance is known, so lines after
/// the period are needed to find the closing balance.
#[derive(Debug)]
struct Reader {
    time: Range<u64>,
    /// The current balance minus the changes by lines after the period.
    closing_micro: i128,
    statement: Statement,
}

impl Reader {
    fn new(balance: MicroRub, time: Range<u64>) -> Self {
        Self {
            time,
            closing_micro: balance.micro().into(),
            statement: Statement::default(),
        }
    }

    fn line(&mut self, line: JournalLine) -> Result<(), StatementError> {
        let at_ms = line.at_ms();
        if at_ms < self.time.start {
            return Ok(());
        }
        if at_ms >= self.time.end {
            self.closing_micro -= moved_by(&line);
            return Ok(());
        }
        match line {
            JournalLine::Entry {
                id,
                amount_rub,
                reason,
                ..
            } => {
                let kind = match reason {
                    None => &mut self.statement.payments,
                    Some(_) => &mut self.statement.corrections,
                };
                kind.push(Moved {
                    id,
                    at_ms,
                    amount_rub,
                    reason,
                });
            }
            JournalLine::Call(receipt) if is_charge(&receipt) => {
                let sums = Sums::from_receipt(&receipt);
                self.spent(&receipt.item.model, &sums);
            }
            JournalLine::Call(_) => {}
        }
        self.is_short()
    }

    /// Adds the spending on a model to the period.
    fn spent(&mut self, model: &str, sums: &Sums) {
        let models = &mut self.statement.models;
        if !models.contains_key(model) {
            models.insert(model.to_owned(), Spent::default());
        }
        if let Some(spent) = models.get_mut(model) {
            spent.calls += sums.calls;
            spent.usage = spent.usage.plus(&sums.usage);
            spent.charged_micro += sums.charged_micro;
        }
    }

    fn is_short(&self) -> Result<(), StatementError> {
        let statement = &self.statement;
        let entries = statement.payments.len() + statement.corrections.len();
        if entries.max(statement.models.len()) > LINES_MAX {
            return Err(StatementError::TooLong);
        }
        Ok(())
    }

    fn finish(self) -> Statement {
        let mut statement = self.statement;
        let moved =
            statement.payments_micro() + statement.corrections_micro() - statement.spent_micro();
        statement.closing_micro = self.closing_micro;
        statement.opening_micro = self.closing_micro - moved;
        statement
    }
}

/// Returns whether a receipt moved money. A disputed receipt moved none, and another receipt may charge the same call.
fn is_charge(receipt: &Receipt) -> bool {
    receipt.booked != Booked::Stale
}

fn moved_by(line: &JournalLine) -> i128 {
    match line {
        JournalLine::Entry { amount_rub, .. } => amount_rub.micro().into(),
        JournalLine::Call(receipt) if is_charge(receipt) => {
            -i128::from(receipt.charged_rub.micro())
        }
        JournalLine::Call(_) => 0,
    }
}

#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "redis", feature = "testing"))]
mod rolled_tests;
#[cfg(test)]
mod tests;

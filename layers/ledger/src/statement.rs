//! An account's statement: what stood on it when a time began, what came in, what was spent, and what was left.
//!
//! Nothing of it is kept. It is computed backwards from the books and the journal, so that it needs no line that is older
//! than the time it is of, and the same journal always gives the same statement: lines are only ever added to a journal,
//! and none is dated back by more than [`DATED_BACK_MS_MAX`].
//!
//! Where the [roll-up](crate::rollup) knows the days of an account, their calls are not read one by one.

mod rolled;

use std::{collections::BTreeMap, ops::Range};

use crate::{
    account::AccountId,
    contract::{AccountBooks, BookError, Booked, JournalLine, JournalPart, LedgerAdmin, Receipt},
    money::MicroRub,
    rollup::{Rollup, Sums},
    usage::Usage,
};

/// How far a new line of a journal may be dated back: a Redis that has failed over to a server with a slow clock books
/// with that. A time that ended so long ago gets no further line.
pub const DATED_BACK_MS_MAX: u64 = 3_600_000;

/// How many payments and corrections, and how many models, a statement has at most.
pub const LINES_MAX: usize = 10_000;

/// Micro-rubles in a kopeck.
const KOPECK: i128 = 10_000;

/// What moved an account's money in a time. Sums are micro-rubles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// The balance when it began.
    pub opening_micro: i128,
    /// What was paid in, oldest first.
    pub payments: Vec<Moved>,
    /// What was corrected, oldest first.
    pub corrections: Vec<Moved>,
    /// What was spent, by model.
    pub models: BTreeMap<String, Spent>,
    /// The balance when it ended.
    pub closing_micro: i128,
}

/// A payment or a correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The operator's id for it.
    pub id: String,
    /// Unix time in milliseconds when it was booked.
    pub at_ms: u64,
    /// How much, signed.
    pub amount_rub: MicroRub,
    /// Why, for a correction.
    pub reason: Option<String>,
}

/// What was spent on a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Calls.
    pub calls: u64,
    /// What they used.
    pub usage: Usage,
    /// What was charged for them.
    pub charged_micro: i128,
}

/// A statement's sums in whole kopecks.
///
/// Balances, payments and corrections are rounded, each for itself, and what was spent is what lies between them: so the
/// sums of a statement are exact among themselves, its opening balance is the closing one of the time before, and what was
/// spent in many months is never more than a kopeck off what was charged in them. Where payments and corrections are of
/// whole kopecks, as they are in banks, it is not negative either.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kopecks {
    /// The balance when it began.
    pub opening: i128,
    /// What was paid in.
    pub payments: i128,
    /// What was corrected, signed.
    pub corrections: i128,
    /// What was spent: opening + payments + corrections − closing.
    pub spent: i128,
    /// What was spent on each model, rounded for itself, in the order of [`Statement::models`].
    pub models: Vec<i128>,
    /// What `spent` is beside the sum of `models`.
    pub models_rounding: i128,
    /// The balance when it ended.
    pub closing: i128,
}

/// Why there is no statement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatementError {
    /// The ledger did not answer.
    #[error(transparent)]
    Ledger(#[from] BookError),
    /// The journal does not, or may not, reach back to the beginning of the time.
    #[error("the journal may have forgotten lines of that time")]
    Forgotten,
    /// It would have more than [`LINES_MAX`] lines.
    #[error("it would have more than {LINES_MAX} lines")]
    TooLong,
}

impl Statement {
    /// The statement of an account for a time in Unix milliseconds. One of a time that has not ended yet, or ended less
    /// than [`DATED_BACK_MS_MAX`] ago, may be another one later.
    ///
    /// # Errors
    /// See [`StatementError`].
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

    /// The same by the journal alone.
    async fn read_all<L: LedgerAdmin + ?Sized>(
        ledger: &L,
        account: &AccountId,
        time: Range<u64>,
    ) -> Result<Self, StatementError> {
        let books = ledger.books(account).await?;
        must_reach_back(ledger, &books, time.start).await?;
        let mut reader = Reader::new(books.view.balance_rub, time);
        let mut after: Option<String> = None;
        loop {
            let part = JournalPart {
                since_ms: reader.time.start,
                after: after.as_deref(),
                end: Some(&books.journal_end),
                ..JournalPart::whole()
            };
            let page = ledger.journal(account, &part).await?;
            for line in page.lines {
                reader.line(line)?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(reader.finish());
            }
            // Ledgers in this process answer at once: others want to be served too.
            tokio::task::yield_now().await;
        }
    }

    /// All that was paid in.
    #[must_use]
    pub fn payments_micro(&self) -> i128 {
        sum(&self.payments)
    }

    /// All that was corrected, signed.
    #[must_use]
    pub fn corrections_micro(&self) -> i128 {
        sum(&self.corrections)
    }

    /// All that was spent.
    #[must_use]
    pub fn spent_micro(&self) -> i128 {
        self.models.values().map(|spent| spent.charged_micro).sum()
    }

    /// Its sums in whole kopecks.
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

/// To the nearest kopeck; half of one away from zero.
#[must_use]
pub fn to_kopecks(micro: i128) -> i128 {
    (micro.abs() + KOPECK / 2) / KOPECK * micro.signum()
}

fn sum(moved: &[Moved]) -> i128 {
    let amounts = moved.iter().map(|it| i128::from(it.amount_rub.micro()));
    amounts.sum()
}

/// Whether the journal has all of a time that begins then.
async fn must_reach_back<L: LedgerAdmin + ?Sized>(
    ledger: &L,
    books: &AccountBooks,
    begins_ms: u64,
) -> Result<(), StatementError> {
    match books.journal_complete || reaches_back(ledger, &books.view.id, begins_ms).await? {
        true => Ok(()),
        false => Err(StatementError::Forgotten),
    }
}

/// A journal forgets its oldest lines: where it has one of before the time, it has all of the time.
async fn reaches_back<L: LedgerAdmin + ?Sized>(
    ledger: &L,
    account: &AccountId,
    begins_ms: u64,
) -> Result<bool, StatementError> {
    let mut after: Option<String> = None;
    loop {
        let part = JournalPart {
            // Entries of which nobody knows the time any more are kept under the first moment of all.
            since_ms: 1,
            until_ms: begins_ms.saturating_sub(DATED_BACK_MS_MAX),
            after: after.as_deref(),
            limit: 1,
            ..JournalPart::whole()
        };
        let page = ledger.journal(account, &part).await?;
        if !page.lines.is_empty() {
            return Ok(true);
        }
        after = page.next;
        if after.is_none() {
            return Ok(false);
        }
    }
}

/// Reads the lines from the beginning of a time to the end of the journal, at which the balance is known.
#[derive(Debug)]
struct Reader {
    time: Range<u64>,
    /// What the account has now, less what moved it behind the time.
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
                let sums = Sums::of(&receipt);
                self.spent(&receipt.item.model, &sums);
            }
            JournalLine::Call(_) => {}
        }
        self.is_short()
    }

    /// Calls of a model in the time.
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

/// A dispute moved nothing and may be of a call that was charged.
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

//! Documents for accountants. A statement has an account's balances, payments and spending in a month, as JSON, CSV,
//! HTML and PDF. Invoices (`invoice`) have the same formats except CSV.
//!
//! The ledger computes the sums (`tollgate_ledger::statement`). This module adds names, the statement's number, the
//! seller's VAT and a hash. For a closed month, all data that is not in the journal is stored with the statement's
//! hash, so the same journal yields the same bytes.

mod closed;
mod csv;
mod html;
mod in_words;
mod invoice;
mod issue;
pub(crate) mod money;
mod payment_code;
mod pdf;
mod sheet;
#[cfg(test)]
mod tests;

use std::{fmt, ops::Range, str::FromStr};

use rust_decimal::{Decimal, RoundingStrategy, prelude::ToPrimitive};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tollgate_layers::{
    calendar::month_begins_ms, key::AccountId, money::MicroRub, respond::Language, usage::Usage,
};
use tollgate_ledger::statement::{DATED_BACK_MS_MAX, Moved, Statement};

use self::closed::ClosedStatement;
use self::money::{Kopecks, Micro};
pub(crate) use self::{
    invoice::{Invoice, InvoiceError, Order},
    issue::{IssueError, issue},
};
use crate::{
    config::SellerConfig,
    text::{
        hex::hex,
        time::{offset, rfc3339},
    },
};

/// The time between the end of a month and its closing. It is long enough that no line can be dated back into a closed
/// month, even if this machine's clock is ahead of the ledger's.
const CLOSED_AFTER_MS: u64 = 2 * DATED_BACK_MS_MAX;
/// The version of the JSON format that is hashed. A changed format gets another number, and a comment at this constant
/// must then describe the earlier format.
const VERSION: u32 = 1;

/// A calendar month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Month {
    /// The number of the month, counted from January 1970, which is 0.
    index: u64,
}

/// The error if a text does not name a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a month like 2026-11")]
pub(crate) struct NotAMonth;

impl FromStr for Month {
    type Err = NotAMonth;

    fn from_str(text: &str) -> Result<Self, NotAMonth> {
        let (year, month) = text.split_once('-').ok_or(NotAMonth)?;
        let number = |digits: &str, count: usize| -> Option<u64> {
            let plain = digits.len() == count && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        let year = number(year, 4).and_then(|year| year.checked_sub(1970));
        let month = number(month, 2).filter(|month| (1..=12).contains(month));
        let (year, month) = year.zip(month).ok_or(NotAMonth)?;
        Ok(Self {
            index: year * 12 + month - 1,
        })
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.year(), self.of_year() + 1)
    }
}

impl Month {
    const fn year(self) -> u64 {
        1970 + self.index / 12
    }

    /// Returns the index of the month in its year; January is 0.
    const fn of_year(self) -> u64 {
        self.index % 12
    }

    /// Returns the time from the month's beginning to the next month's beginning, in a time zone that is
    /// `utc_offset_minutes` ahead of UTC.
    pub(crate) fn time(self, utc_offset_minutes: i32) -> Range<u64> {
        let begins = |index: u64| {
            let ahead_ms = i64::from(utc_offset_minutes) * 60_000;
            month_begins_ms(index).saturating_add_signed(-ahead_ms)
        };
        begins(self.index)..begins(self.index + 1)
    }
}

/// The account, the month and the seller of a statement, and the time at which the statement is made.
#[derive(Debug)]
pub(crate) struct About<'a> {
    pub(crate) account: &'a AccountId,
    /// The account's name.
    pub(crate) name: &'a str,
    pub(crate) month: Month,
    pub(crate) seller: Option<&'a SellerConfig>,
    pub(crate) now_ms: u64,
}

/// A statement with all the data that any of its formats contains.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    version: u32,
    number: String,
    account: AccountId,
    name: String,
    month: String,
    since: String,
    until: String,
    utc_offset: String,
    /// Whether the statement can no longer change.
    closed: bool,
    /// The time at which the statement was made; `None` if the statement can no longer change.
    #[serde(skip_serializing_if = "Option::is_none")]
    as_of: Option<String>,
    seller: Option<SellerConfig>,
    opening: Amount,
    payments: Entries,
    corrections: Entries,
    spending: Spending,
    vat: Vat,
    closing: Amount,
    #[serde(skip)]
    month_of: Month,
    #[serde(skip)]
    utc_offset_minutes: i32,
}

/// An amount, both rounded to kopecks and exactly as the ledger stores it.
#[derive(Clone, Copy, Debug, Serialize)]
struct Amount {
    rub: Kopecks,
    exact_rub: Micro,
}

#[derive(Debug, Serialize)]
struct Entries {
    #[serde(flatten)]
    amount: Amount,
    entries: Vec<EntryLine>,
}

#[derive(Debug, Serialize)]
struct EntryLine {
    id: String,
    at: String,
    amount_rub: MicroRub,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip)]
    at_ms: u64,
}

#[derive(Debug, Serialize)]
struct Spending {
    #[serde(flatten)]
    amount: Amount,
    models: Vec<ModelLine>,
    /// The rounding difference: the total minus the sum of the models' amounts, each of which is rounded to kopecks.
    models_rounding_rub: Kopecks,
}

#[derive(Debug, Serialize)]
struct ModelLine {
    model: String,
    calls: u64,
    usage: Usage,
    #[serde(flatten)]
    amount: Amount,
}

/// The VAT that is included in the spending.
#[derive(Debug, Serialize)]
struct Vat {
    percent: Option<String>,
    rub: Kopecks,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Document {
    pub(crate) fn new(about: &About<'_>, statement: Statement) -> Self {
        let utc_offset_minutes = about.seller.map_or(0, |seller| seller.utc_offset_minutes);
        let time = about.month.time(utc_offset_minutes);
        let closed = about.now_ms >= time.end.saturating_add(CLOSED_AFTER_MS);
        let kopecks = statement.kopecks();
        let amount = |kopecks: i128, micro: i128| Amount {
            rub: Kopecks::new(kopecks),
            exact_rub: Micro::new(micro),
        };
        let opening = amount(kopecks.opening, statement.opening_micro);
        let paid = amount(kopecks.payments, statement.payments_micro());
        let corrected = amount(kopecks.corrections, statement.corrections_micro());
        let spent = amount(kopecks.spent, statement.spent_micro());
        let closing = amount(kopecks.closing, statement.closing_micro);
        let models = statement.models.into_iter().zip(kopecks.models);
        let models = models.map(|((model, spent), kopecks)| ModelLine {
            model,
            calls: spent.calls,
            usage: spent.usage,
            amount: amount(kopecks, spent.charged_micro),
        });
        Self {
            version: VERSION,
            number: format!("{}-{}", about.account, about.month),
            account: about.account.clone(),
            name: about.name.to_owned(),
            month: about.month.to_string(),
            since: rfc3339(time.start),
            until: rfc3339(time.end),
            utc_offset: offset(utc_offset_minutes),
            closed,
            as_of: (!closed).then(|| rfc3339(about.now_ms)),
            seller: about.seller.cloned(),
            opening,
            payments: Entries::new(paid, statement.payments),
            corrections: Entries::new(corrected, statement.corrections),
            spending: Spending {
                amount: spent,
                models: models.collect(),
                models_rounding_rub: Kopecks::new(kopecks.models_rounding),
            },
            vat: Vat::new(about.seller, kopecks.spent),
            closing,
            month_of: about.month,
            utc_offset_minutes,
        }
    }

    /// Returns the statement's number, which is also its file name without the extension.
    pub(crate) fn number(&self) -> &str {
        &self.number
    }

    /// Returns the statement as the API returns it: all fields, and the hash of this JSON without its hash field.
    pub(crate) fn json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Sealed<'a> {
            #[serde(flatten)]
            document: &'a Document,
            sha256: String,
        }
        json(&Sealed {
            document: self,
            sha256: self.sha256(),
        })
    }

    /// Returns the statement as CSV, for spreadsheets and programs.
    pub(crate) fn csv(&self) -> String {
        csv::written(self)
    }

    /// Returns the statement as an HTML page.
    pub(crate) fn html(&self, language: Language) -> String {
        html::written(&sheet::Sheet::new(self, language))
    }

    /// Returns the statement as PDF, for filing.
    pub(crate) fn pdf(&self, language: Language) -> Vec<u8> {
        let sheet = sheet::Sheet::new(self, language);
        let keywords = format!("{}, sha256 {}", self.number, self.sha256());
        pdf::written(&sheet, &self.number, &keywords)
    }

    /// Returns the hash of all fields, which is the same in every output format.
    fn sha256(&self) -> String {
        hex(&Sha256::digest(json(self)))
    }
}

fn json(of: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(of).expect("serializing a document with string keys to JSON cannot fail")
}

impl Entries {
    fn new(amount: Amount, moved: Vec<Moved>) -> Self {
        let entries = moved.into_iter().map(|moved| EntryLine {
            id: moved.id,
            at: rfc3339(moved.at_ms),
            amount_rub: moved.amount_rub,
            reason: moved.reason,
            at_ms: moved.at_ms,
        });
        Self {
            amount,
            entries: entries.collect(),
        }
    }
}

impl Vat {
    /// Computes the VAT that is included in the spending. At 20 percent, 120 kopecks include 20 kopecks of VAT.
    fn new(seller: Option<&SellerConfig>, spent: i128) -> Self {
        let percent = seller.and_then(|seller| seller.vat_percent);
        let kopecks = percent.and_then(|percent| {
            let whole = Decimal::ONE_HUNDRED + percent;
            let within = Decimal::try_from_i128_with_scale(spent, 0).ok()? * percent / whole;
            within
                .round_dp_with_strategy(0, RoundingStrategy::MidpointAwayFromZero)
                .to_i128()
        });
        Self {
            percent: percent.map(|percent| percent.normalize().to_string()),
            rub: Kopecks::new(kopecks.unwrap_or_default()),
            note: seller.and_then(|seller| seller.vat_note.clone()),
        }
    }
}

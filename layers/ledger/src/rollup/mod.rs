//! The roll-up: sums that were made of the journals beforehand, so that nobody who asks for a month reads all of its
//! receipts.
//!
//! Nothing of it stands in the way of a call. A task reads what journals have got since it was there last
//! ([`roll_up`]) and adds that to sums: of each account by day, key and group, of all accounts by day and by hour, each by
//! model, vendor and endpoint. How far each journal is in the sums is written in the same step. When a month is over, its days
//! are added up once more, so that a year is not read day by day. Whoever asks
//! ([`read`]) gets the sums, and behind them what the journals have got since: so an answer is never older than the
//! journal, and it is the same that all receipts one by one would give.
//!
//! A time is made of the whole months, days and hours in it, an account's of days, and of the receipts of what is left. What was
//! taken back by nobody is all that is rolled up: the youngest lines are left alone ([`STANDS_MS`]), since a server
//! that takes over may not have them.
//!
//! Payments and corrections are in no sum. A ledger that cannot find them among millions of calls keeps them beside the
//! sums, in the same step.
//!
//! The journals are the books, and these are none: [`check`] says where the two differ, and [`Rollup::clear_sums`] has
//! them made anew.

mod check;
mod latency;
mod read;
mod roll;
mod search;
#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "redis", feature = "testing"))]
mod search_tests;
mod sums;
mod tally;
#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "redis", feature = "testing"))]
pub(crate) mod tests;

use std::{
    collections::HashMap,
    ops::Range,
    time::{SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

pub use self::{
    check::check,
    latency::{Latency, LatencyError},
    read::{Part, Whose, read},
    roll::{Roller, roll_up},
    search::{Search, SearchPart, Sought, Times},
    sums::{Counted, Sums, is_failed},
    tally::Tally,
};
pub(crate) use self::{read::whole_within, sums::counted};
use crate::{
    account::{AccountId, GroupId, KeyId},
    calendar::{month_begins_ms, month_of},
    contract::{BookError, JournalLine, JournalPage, JournalPart, LedgerAdmin, Receipt},
    endpoint::{self, Endpoint},
};

/// A line is rolled up when it is so old. A server that fails over loses what its replica had not heard, which is
/// younger.
pub const STANDS_MS: u64 = 10_000;

/// Stores may forget what is older.
const KEPT_MS: u64 = 400 * DAY_MS;

pub(crate) const HOUR_MS: u64 = 3_600_000;
pub(crate) const DAY_MS: u64 = 24 * HOUR_MS;

/// Whose sums, and of how long each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// An account's, by the day and by its keys and groups.
    Account(AccountId),
    /// All accounts', by the day.
    Days,
    /// All accounts', by the hour.
    Hours,
    /// All accounts', by the month: of months that are over, out of their days.
    Months,
}

impl Scope {
    /// When the time of a sum begins that a moment is in.
    #[must_use]
    pub fn begin_ms(&self, at_ms: u64) -> u64 {
        match self {
            Self::Account(_) | Self::Days => at_ms - at_ms % DAY_MS,
            Self::Hours => at_ms - at_ms % HOUR_MS,
            Self::Months => month_begins_ms(month_of(at_ms)),
        }
    }

    /// The times of whole sums within a time. One without an end has all of them.
    #[must_use]
    pub fn whole_within(&self, time: &Range<u64>) -> Range<u64> {
        match self {
            Self::Account(_) | Self::Days => whole_within(DAY_MS, time),
            Self::Hours => whole_within(HOUR_MS, time),
            Self::Months => {
                let begin = match self.begin_ms(time.start) {
                    begin if begin == time.start => begin,
                    _ => month_begins_ms(month_of(time.start) + 1),
                };
                let end = match time.end {
                    u64::MAX => u64::MAX,
                    end => self.begin_ms(end),
                };
                begin..end
            }
        }
    }

    /// Whose account's it is; none's where it is of all.
    #[must_use]
    pub const fn account(&self) -> Option<&AccountId> {
        match self {
            Self::Account(id) => Some(id),
            Self::Days | Self::Hours | Self::Months => None,
        }
    }

    /// The word that stores have for it. No account is called like the others.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Account(id) => id,
            Self::Days => "=days",
            Self::Hours => "=hours",
            Self::Months => "=months",
        }
    }
}

/// What a sum is of, within its scope and time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Words {
    /// The key; none where it is of all accounts.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// The group that was charged; none where it is of all accounts.
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// The model.
    #[serde(rename = "m")]
    pub model: String,
    /// Who answered.
    #[serde(rename = "v")]
    pub vendor: String,
    /// Where the calls came in.
    #[serde(
        rename = "e",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "endpoint::kept"
    )]
    pub endpoint: Option<Endpoint>,
}

impl Words {
    fn of(receipt: &Receipt, scope: &Scope) -> Self {
        let item = &receipt.item;
        let all = Self {
            key: Some(receipt.key.clone()),
            group: receipt.group.clone(),
            model: item.model.clone(),
            vendor: item.vendor.clone(),
            endpoint: item.endpoint,
        };
        all.within(scope)
    }

    /// What of an account's words a scope tells apart.
    fn within(self, scope: &Scope) -> Self {
        match scope {
            Scope::Account(_) => self,
            Scope::Days | Scope::Hours | Scope::Months => Self {
                key: None,
                group: None,
                ..self
            },
        }
    }
}

/// A sum's place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId {
    /// Whose it is.
    pub scope: Scope,
    /// When its time begins, in Unix milliseconds.
    pub at_ms: u64,
    /// What it is of.
    pub words: Words,
}

/// How far the journals are in the sums.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Another one after each change: it grows.
    pub version: u64,
    /// Behind which line each account's journal goes on; of those that are not here, nothing is in the sums.
    pub places: HashMap<AccountId, String>,
    /// The same of the payments and corrections that are kept beside them; `None` of a ledger that finds them without.
    pub entries: Option<HashMap<AccountId, String>>,
    /// The end of the last month whose days are added up.
    pub months_end_ms: u64,
}

/// Sums, and how far they go: read at one moment.
#[derive(Clone, Debug, Default)]
pub struct Rolled {
    /// When the time of a sum begins, what it is of, and the sum.
    pub rows: Vec<(u64, Words, Sums)>,
    /// As [`Marks::places`]; of an account's sums, its own alone.
    pub places: HashMap<AccountId, String>,
    /// As [`Marks::months_end_ms`]; not told where an account's sums were asked for.
    pub months_end_ms: u64,
}

/// Lines of a journal that stand for good.
#[derive(Clone, Debug, Default)]
pub struct StandingLines {
    /// What the calls among them come to.
    pub calls: Tally,
    /// How many lines there are.
    pub lines: usize,
    /// Where the last of them is; none where there are none.
    pub place: Option<String>,
    /// There may be more behind it.
    pub more: bool,
    /// The payments and corrections among the lines, with their places, for a ledger that keeps them beside the sums.
    pub entries: Vec<(String, JournalLine)>,
}

/// What takes the place of sums.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// [`Marks::version`] as it was read.
    pub version: u64,
    /// What the sums come to.
    pub rows: Vec<(RowId, Sums)>,
    /// How far journals are in them then.
    pub places: Vec<(AccountId, String)>,
    /// Payments and corrections to be kept beside them, with their places.
    pub entries: Vec<(String, JournalLine)>,
    /// How far journals are in these then.
    pub entry_places: Vec<(AccountId, String)>,
    /// [`Marks::months_end_ms`] from then on, where that moves.
    pub months_end_ms: Option<u64>,
}

pub(crate) fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = since_epoch.map_or(0, |since| since.as_millis());
    u64::try_from(now_ms).unwrap_or(u64::MAX)
}

/// A page, if its account is there.
pub(crate) fn there(
    page: Result<JournalPage, BookError>,
) -> Result<Option<JournalPage>, BookError> {
    match page {
        Ok(page) => Ok(Some(page)),
        Err(BookError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A ledger that keeps sums. One that keeps none has no marks, and whoever asks reads the journals.
pub trait Rollup: LedgerAdmin {
    /// The ids of all accounts. Worth an implementation of its own where their money need not be looked at.
    ///
    /// # Errors
    /// See [`BookError`].
    fn account_ids(&self) -> impl Future<Output = Result<Vec<AccountId>, BookError>> + Send {
        async move {
            let views = self.accounts().await?;
            Ok(views.into_iter().map(|view| view.id).collect())
        }
    }

    /// Parts of several journals, in their order; `None` of an account that is not there. Worth an implementation of its own
    /// where they can be asked for together.
    ///
    /// # Errors
    /// See [`LedgerAdmin::journal`].
    fn journals(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
    ) -> impl Future<Output = Result<Vec<Option<JournalPage>>, BookError>> + Send {
        async move {
            let pages = parts.iter().map(|(id, part)| self.journal(id, part));
            let pages = join_all(pages).await.into_iter();
            pages.map(there).collect()
        }
    }

    /// When the newest call in each of these parts was booked, which go back from a time; `None` of one that has none.
    /// Without a list, where to know it takes as long as to read the call.
    ///
    /// # Errors
    /// See [`LedgerAdmin::journal`].
    fn newest_ms(
        &self,
        _parts: &[(&AccountId, JournalPart<'_>)],
    ) -> impl Future<Output = Result<Option<Vec<Option<u64>>>, BookError>> + Send {
        async { Ok(None) }
    }

    /// How far it is.
    ///
    /// # Errors
    /// See [`BookError`].
    fn marks(&self) -> impl Future<Output = Result<Marks, BookError>> + Send;

    /// The sums of scopes whose times begin in these times, all of them read at one moment. Scopes are an account's alone,
    /// or of all accounts.
    ///
    /// # Errors
    /// See [`BookError`].
    fn rolled(
        &self,
        parts: &[(Scope, Range<u64>)],
    ) -> impl Future<Output = Result<Rolled, BookError>> + Send;

    /// When the oldest sums of a scope may begin; `None` where it has none.
    ///
    /// # Errors
    /// See [`BookError`].
    fn oldest_sums_ms(
        &self,
        scope: &Scope,
    ) -> impl Future<Output = Result<Option<u64>, BookError>> + Send;

    /// When the line at a place of a journal was booked, in Unix milliseconds: none behind it was before that, unless a
    /// server's clock went back.
    fn place_ms(&self, place: &str) -> u64;

    /// These sums, in their order.
    ///
    /// # Errors
    /// See [`BookError`].
    fn sums_at(
        &self,
        ids: &[RowId],
    ) -> impl Future<Output = Result<Vec<Option<Sums>>, BookError>> + Send;

    /// Lines of a journal behind the place `after`, no younger than `before_ms`.
    ///
    /// # Errors
    /// See [`BookError`].
    fn standing_lines(
        &self,
        account: &AccountId,
        after: Option<&str>,
        before_ms: u64,
    ) -> impl Future<Output = Result<StandingLines, BookError>> + Send;

    /// All payments and corrections of a journal up to `end`, as
    /// [`AccountBooks::journal_end`](crate::contract::AccountBooks::journal_end) says it, in its order;
    /// `None` where they cannot be told without reading the calls between them.
    ///
    /// # Errors
    /// See [`BookError`].
    fn entries(
        &self,
        account: &AccountId,
        end: &str,
    ) -> impl Future<Output = Result<Option<Vec<JournalLine>>, BookError>> + Send;

    /// Writes sums, all or nothing, unless somebody else has; says what their version is then, if it did.
    ///
    /// # Errors
    /// See [`BookError`].
    fn change_sums(
        &self,
        change: &Change,
    ) -> impl Future<Output = Result<Option<u64>, BookError>> + Send;

    /// Forgets all sums, so that they are made anew.
    ///
    /// # Errors
    /// See [`BookError`].
    fn clear_sums(&self) -> impl Future<Output = Result<(), BookError>> + Send;
}

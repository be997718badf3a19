//! The roll-up: sums computed from the journals in advance, so that a report over a month does not read all of its
//! receipts.
//!
//! No call waits for the roll-up. A task reads what was added to the journals since its last round ([`roll_up`]) and
//! adds it to sums: of each account by day, key and group, and of all accounts by day and by hour, each by model,
//! vendor and endpoint. Sums are written together with the position up to which they include each journal, in one
//! atomic write. After the end of a month, the sums of its days are added up, so that a year is not read day by day. A
//! report ([`read`]) combines the sums with the journal lines after the lines that the sums include. So a report is
//! never older than the journal, and equals the result of reading every receipt.
//!
//! The sum of any time range is composed of the whole months, days and hours in it (for one account: days), and of the
//! receipts at its ends. Only lines that are final are rolled up: the youngest lines are not ([`STANDS_MS`]), since
//! after a failover the new primary may not have them.
//!
//! No sum includes payments and corrections. A ledger that cannot find them among millions of calls stores them next to
//! the sums, in the same atomic write.
//!
//! The journals are the books; the sums are derived from them. [`check`] reports where sums and journals differ, and
//! after [`Rollup::clear_sums`] the sums are computed again.

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
    read::{CallScope, Part, read},
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

/// The age at which a line is rolled up, in milliseconds. A failover may lose lines that the replica has not received;
/// such lines are younger than this.
pub const STANDS_MS: u64 = 10_000;

/// The age, in milliseconds, from which stores may drop sums.
const KEPT_MS: u64 = 400 * DAY_MS;

pub(crate) const HOUR_MS: u64 = 3_600_000;
pub(crate) const DAY_MS: u64 = 24 * HOUR_MS;

/// The accounts that a sum includes, and the length of its period.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Sums of one account per day, by key and group.
    Account(AccountId),
    /// Sums of all accounts per day.
    Days,
    /// Sums of all accounts per hour.
    Hours,
    /// Sums of all accounts per month, added up from the days of months that are over.
    Months,
}

impl Scope {
    /// Returns the beginning of the period that contains a time, in Unix milliseconds.
    #[must_use]
    pub fn begin_ms(&self, at_ms: u64) -> u64 {
        match self {
            Self::Account(_) | Self::Days => at_ms - at_ms % DAY_MS,
            Self::Hours => at_ms - at_ms % HOUR_MS,
            Self::Months => month_begins_ms(month_of(at_ms)),
        }
    }

    /// Returns the range of whole periods within a time range. A range without an end includes all periods after its
    /// beginning.
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

    /// The account, unless the scope is over all accounts.
    #[must_use]
    pub const fn account(&self) -> Option<&AccountId> {
        match self {
            Self::Account(id) => Some(id),
            Self::Days | Self::Hours | Self::Months => None,
        }
    }

    /// Returns the scope's name in stores. No account can have the name of another scope.
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

/// The fields by which a sum is broken down, within its scope and period.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Words {
    /// The key; `None` in sums over all accounts.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// The group that was charged; `None` in sums over all accounts, or if no group was charged.
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// The catalog's name of the model.
    #[serde(rename = "m")]
    pub model: String,
    /// The vendor that answered.
    #[serde(rename = "v")]
    pub vendor: String,
    /// The endpoint that was called.
    #[serde(
        rename = "e",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "endpoint::stored"
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

    /// Removes the fields that the scope does not distinguish.
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

/// The fields that identify a sum.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId {
    /// The accounts and the length of the period.
    pub scope: Scope,
    /// The time at which the period begins, in Unix milliseconds.
    pub at_ms: u64,
    /// Fields by which the sum is broken down.
    pub words: Words,
}

/// The positions up to which the sums contain the journals.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// A number that increases with each change of the sums.
    pub version: u64,
    /// The position of each account's last included line. An account that is missing here is not included at all.
    pub places: HashMap<AccountId, String>,
    /// The position up to which each account's payments and corrections are stored next to the sums; `None` if the
    /// ledger does not store them there.
    pub entries: Option<HashMap<AccountId, String>>,
    /// The end of the last month that was added up, in Unix milliseconds.
    pub months_end_ms: u64,
}

/// Sums and the positions up to which they contain the journals, all read at one moment.
#[derive(Clone, Debug, Default)]
pub struct Rolled {
    /// The beginning of the period in Unix milliseconds, the fields by which the sum is broken down, and the sum.
    pub rows: Vec<(u64, Words, Sums)>,
    /// The positions in [`Marks::places`]; for an account's sums, only that account's position.
    pub places: HashMap<AccountId, String>,
    /// The value of [`Marks::months_end_ms`]; 0 if an account's sums were requested.
    pub months_end_ms: u64,
}

/// The next lines of a journal that are final, for the roll-up.
#[derive(Clone, Debug, Default)]
pub struct UnrolledLines {
    /// The sums of the calls among those lines.
    pub calls: Tally,
    /// The number of lines.
    pub lines: usize,
    /// The position of the last line; `None` if there are no lines.
    pub place: Option<String>,
    /// Whether more final lines may follow.
    pub more: bool,
    /// The payments and corrections among the lines, with their positions, for a ledger that stores them next to the
    /// sums.
    pub entries: Vec<(String, JournalLine)>,
}

/// A batch of sums that replace the stored sums with the same ids.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The value of [`Marks::version`] from which the new sums were computed.
    pub version: u64,
    /// The new sums.
    pub rows: Vec<(RowId, Sums)>,
    /// The positions up to which journals are included in the new sums.
    pub places: Vec<(AccountId, String)>,
    /// Payments and corrections to be stored next to the sums, with their positions.
    pub entries: Vec<(String, JournalLine)>,
    /// The positions up to which payments and corrections are stored after this change.
    pub entry_places: Vec<(AccountId, String)>,
    /// The new [`Marks::months_end_ms`], if it changes.
    pub months_end_ms: Option<u64>,
}

pub(crate) fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = since_epoch.map_or(0, |since| since.as_millis());
    u64::try_from(now_ms).unwrap_or(u64::MAX)
}

/// Turns the error for a missing account into `None`.
pub(crate) fn there(
    page: Result<JournalPage, BookError>,
) -> Result<Option<JournalPage>, BookError> {
    match page {
        Ok(page) => Ok(Some(page)),
        Err(BookError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A ledger that stores a roll-up. A ledger that does not store sums has no marks, and reports read its journals.
pub trait Rollup: LedgerAdmin {
    /// Returns the ids of all accounts. A ledger overrides this method if it can list them without reading their money.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn account_ids(&self) -> impl Future<Output = Result<Vec<AccountId>, BookError>> + Send {
        async move {
            let views = self.accounts().await?;
            Ok(views.into_iter().map(|view| view.id).collect())
        }
    }

    /// Returns a part of each of several journals, in the given order; `None` for an account that does not exist. A
    /// ledger overrides this method if it can request the parts together.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
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

    /// Returns the time of the newest call in each of these parts of journals; `None` for a part without calls. The
    /// parts must have [`JournalPart::newest_first`] set. Returns `None` instead of a list if the ledger would have to
    /// read the calls.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn newest_ms(
        &self,
        _parts: &[(&AccountId, JournalPart<'_>)],
    ) -> impl Future<Output = Result<Option<Vec<Option<u64>>>, BookError>> + Send {
        async { Ok(None) }
    }

    /// Returns the positions up to which the sums contain the journals.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn marks(&self) -> impl Future<Output = Result<Marks, BookError>> + Send;

    /// Returns the sums whose periods begin in these ranges, all read at one moment. Either all scopes are the same
    /// account's, or all scopes are over all accounts.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn rolled(
        &self,
        parts: &[(Scope, Range<u64>)],
    ) -> impl Future<Output = Result<Rolled, BookError>> + Send;

    /// Returns a lower bound of the time at which the oldest sums of a scope begin; `None` if the scope has no sums.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn oldest_sums_ms(
        &self,
        scope: &Scope,
    ) -> impl Future<Output = Result<Option<u64>, BookError>> + Send;

    /// Returns the time of the journal line at a position, in Unix milliseconds. Later lines do not have an earlier
    /// time, unless a server's clock went back.
    fn place_ms(&self, place: &str) -> u64;

    /// Returns the sums with these ids, in the same order.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn sums_at(
        &self,
        ids: &[RowId],
    ) -> impl Future<Output = Result<Vec<Option<Sums>>, BookError>> + Send;

    /// Returns the lines of a journal after the position `after` whose times are before `before_ms`.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn unrolled_lines(
        &self,
        account: &AccountId,
        after: Option<&str>,
        before_ms: u64,
    ) -> impl Future<Output = Result<UnrolledLines, BookError>> + Send;

    /// Returns all payments and corrections of a journal up to `end`, an
    /// [`AccountBooks::journal_end`](crate::contract::AccountBooks::journal_end), in journal order; `None` if the
    /// ledger can only find them by reading the calls between them.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn entries(
        &self,
        account: &AccountId,
        end: &str,
    ) -> impl Future<Output = Result<Option<Vec<JournalLine>>, BookError>> + Send;

    /// Writes all of these sums in one step, unless the stored sums have another version than `change` expects. Returns
    /// the new version if they were written.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn change_sums(
        &self,
        change: &Change,
    ) -> impl Future<Output = Result<Option<u64>, BookError>> + Send;

    /// Deletes all sums, so that they are computed again.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn clear_sums(&self) -> impl Future<Output = Result<(), BookError>> + Send;
}

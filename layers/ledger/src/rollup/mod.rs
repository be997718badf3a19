//! The roll-up: sums that are computed from the journals in advance, so that a report about a month need not read all
//! of the month's receipts.
//!
//! No call waits for the roll-up. A task reads the lines that were added to the journals since its last round
//! ([`roll_up`]), and adds them to two kinds of sums. The sums of one account are per day, broken down by key, group,
//! model, vendor and endpoint. The sums over all accounts are per day and per hour, broken down by model, vendor and
//! endpoint. Sums are written together with the position up to which they contain each journal, in one atomic write.
//! When a month is over, the sums of its days are added up, so that a report about a year need not read each day. A
//! report ([`read`]) combines the sums with the journal lines after that position, so it is always up to date and
//! equals the result of reading every receipt.
//!
//! The total of any time range is composed of the whole months, days and hours in it (for one account: of the whole
//! days), and of single receipts at both ends. Only final lines are summed. The youngest lines are not final
//! ([`STANDS_MS`]), because a failover may lose them.
//!
//! Sums do not include payments and corrections. A ledger that cannot find them among millions of calls stores them
//! next to the sums, in the same atomic write.
//!
//! The journals are authoritative, and the sums are derived from them. [`check`] reports differences between sums and
//! journals. After [`Rollup::clear_sums`], the sums are computed again.

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

use std::{collections::HashMap, ops::Range};

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
    contract::{
        BookError, JournalLine, JournalPage, JournalPart, LedgerAdmin, Receipt, if_found, if_valid,
    },
    endpoint::Endpoint,
};
pub(crate) use crate::{calendar::DAY_MS, embedded::now_ms};

/// The age in milliseconds at which a journal line is final and may be summed. A failover may lose lines that the
/// replica has not received, but these lines are younger than this.
pub const STANDS_MS: u64 = 10_000;

/// The age in milliseconds after which a store may drop sums.
const KEPT_MS: u64 = 400 * DAY_MS;

pub(crate) const HOUR_MS: u64 = 3_600_000;

/// Which accounts a sum includes, and how long its period is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Sums of one account per day, broken down by key and group among other fields.
    Account(AccountId),
    /// Sums of all accounts per day.
    Days,
    /// Sums of all accounts per hour.
    Hours,
    /// Sums of all accounts per month, computed from daily sums when the month is over.
    Months,
}

impl Scope {
    /// Returns the beginning of the period that contains the time `at_ms`, in Unix milliseconds.
    #[must_use]
    pub fn begin_ms(&self, at_ms: u64) -> u64 {
        match self {
            Self::Account(_) | Self::Days => at_ms - at_ms % DAY_MS,
            Self::Hours => at_ms - at_ms % HOUR_MS,
            Self::Months => month_begins_ms(month_of(at_ms)),
        }
    }

    /// Returns the part of a time range that consists of whole periods. If the range has no end, the result has none
    /// either.
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

    /// Returns the account; `None` if the scope is over all accounts.
    #[must_use]
    pub const fn account(&self) -> Option<&AccountId> {
        match self {
            Self::Account(id) => Some(id),
            Self::Days | Self::Hours | Self::Months => None,
        }
    }

    /// Returns the scope's name in stores: the account's id, or a word that is not a valid account id.
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

/// The fields by which sums of one scope and period are broken down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Words {
    /// The key with which the calls were made; `None` in sums over all accounts.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// The group that was charged; `None` in sums over all accounts, and if no group was charged.
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// The model's name in the catalog.
    #[serde(rename = "m")]
    pub model: String,
    /// The vendor that served the calls.
    #[serde(rename = "v")]
    pub vendor: String,
    /// The endpoint that the callers used.
    #[serde(rename = "e", default, deserialize_with = "if_valid")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
}

impl Words {
    fn from_receipt(receipt: &Receipt, scope: &Scope) -> Self {
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

    /// Removes the fields by which sums of this scope are not broken down.
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

/// Identifies a stored sum.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId {
    /// The accounts that the sum includes, and the length of its period.
    pub scope: Scope,
    /// The beginning of the period, in Unix milliseconds.
    pub at_ms: u64,
    /// The fields by which the sum is broken down.
    pub words: Words,
}

/// How far the sums reach: their version, and the positions up to which they contain the journals.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// The version of the sums; it increases with each change.
    pub version: u64,
    /// For each account, the position of its last summed line. An account without a position has no summed lines.
    pub places: HashMap<AccountId, String>,
    /// For each account, the position up to which its payments and corrections are stored next to the sums; `None` if
    /// this ledger does not store them there.
    pub entries: Option<HashMap<AccountId, String>>,
    /// The end of the last month that has monthly sums, in Unix milliseconds.
    pub months_end_ms: u64,
}

/// Stored sums, and the positions up to which they contain the journals, read at one moment.
#[derive(Clone, Debug, Default)]
pub struct Rolled {
    /// The sums. Each row is the beginning of the period in Unix milliseconds, the fields by which the sum is broken
    /// down, and the sum.
    pub rows: Vec<(u64, Words, Sums)>,
    /// The positions of [`Marks::places`]. If the sums of one account were requested, only the position of this
    /// account.
    pub places: HashMap<AccountId, String>,
    /// The value of [`Marks::months_end_ms`]; 0 if the sums of one account were requested.
    pub months_end_ms: u64,
}

/// The next final lines of a journal, for the roll-up.
#[derive(Clone, Debug, Default)]
pub struct UnrolledLines {
    /// The sums of the calls in the lines that were read.
    pub calls: Tally,
    /// The number of lines that were read.
    pub lines: usize,
    /// The position of the last line that was read; `None` if no line was read.
    pub place: Option<String>,
    /// Whether the journal may contain more final lines.
    pub more: bool,
    /// The payments and corrections in the lines that were read, with their positions; only for a ledger that stores
    /// them next to the sums.
    pub entries: Vec<(String, JournalLine)>,
}

/// A batch of changes to the stored sums. Each sum in it replaces the stored sum with the same id.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The value of [`Marks::version`] from which the new sums were computed.
    pub version: u64,
    /// The new sums, with their ids.
    pub rows: Vec<(RowId, Sums)>,
    /// The positions up to which the new sums contain the journals.
    pub places: Vec<(AccountId, String)>,
    /// Payments and corrections to store next to the sums, with their positions.
    pub entries: Vec<(String, JournalLine)>,
    /// The positions up to which payments and corrections are stored after this change.
    pub entry_places: Vec<(AccountId, String)>,
    /// The new value of [`Marks::months_end_ms`]; `None` leaves it unchanged.
    pub months_end_ms: Option<u64>,
}

/// A ledger that can store a roll-up. If it stores no sums, its [`Marks`] are empty, so reports read its journals.
///
/// A method fails with a [`BookError`] if the ledger refuses the request or is unreachable. The documentation of a
/// method lists only the errors that this method returns in addition.
pub trait Rollup: LedgerAdmin {
    /// Returns the ids of all accounts. A ledger overrides this method if it can list them without reading each
    /// account's money.
    fn account_ids(&self) -> impl Future<Output = Result<Vec<AccountId>, BookError>> + Send {
        async move {
            let views = self.accounts().await?;
            Ok(views.into_iter().map(|view| view.id).collect())
        }
    }

    /// Returns one page of each of several journals, in the given order; `None` for an account that does not exist. A
    /// ledger overrides this method if it can request the pages together.
    fn journals(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
    ) -> impl Future<Output = Result<Vec<Option<JournalPage>>, BookError>> + Send {
        async move {
            let pages = parts.iter().map(|(id, part)| self.journal(id, part));
            let pages = join_all(pages).await.into_iter();
            pages.map(if_found).collect()
        }
    }

    /// Returns the time of the newest call in each of these parts of journals, or `None` for a part without calls. The
    /// parts must have [`JournalPart::newest_first`] set. If the ledger could answer only by reading the calls, it
    /// returns `None` instead of a list.
    fn newest_ms(
        &self,
        _parts: &[(&AccountId, JournalPart<'_>)],
    ) -> impl Future<Output = Result<Option<Vec<Option<u64>>>, BookError>> + Send {
        async { Ok(None) }
    }

    /// Returns the version of the sums, and the positions up to which they contain the journals.
    fn marks(&self) -> impl Future<Output = Result<Marks, BookError>> + Send;

    /// Returns the sums whose periods begin in these ranges, read at one moment. The scopes must either all be of the
    /// same account, or all be over all accounts.
    fn rolled(
        &self,
        parts: &[(Scope, Range<u64>)],
    ) -> impl Future<Output = Result<Rolled, BookError>> + Send;

    /// Returns a time at or before the beginning of the oldest sum of a scope; `None` if the scope has no sums.
    fn oldest_sums_ms(
        &self,
        scope: &Scope,
    ) -> impl Future<Output = Result<Option<u64>, BookError>> + Send;

    /// Returns the time of the journal line at a position, in Unix milliseconds. No later line has an earlier time,
    /// unless a server's clock was set back.
    fn place_ms(&self, place: &str) -> u64;

    /// Returns the sums with these ids, in the order of the ids.
    fn sums_at(
        &self,
        ids: &[RowId],
    ) -> impl Future<Output = Result<Vec<Option<Sums>>, BookError>> + Send;

    /// Returns the lines of a journal after the position `after` that have a time before `before_ms`.
    fn unrolled_lines(
        &self,
        account: &AccountId,
        after: Option<&str>,
        before_ms: u64,
    ) -> impl Future<Output = Result<UnrolledLines, BookError>> + Send;

    /// Returns all payments and corrections of a journal, in the order of the journal, up to `end` (an
    /// [`AccountBooks::journal_end`](crate::contract::AccountBooks::journal_end)). `None` if the ledger could find them
    /// only by reading the calls between them.
    fn entries(
        &self,
        account: &AccountId,
        end: &str,
    ) -> impl Future<Output = Result<Option<Vec<JournalLine>>, BookError>> + Send;

    /// Writes all sums of the change in one atomic step, if the version of the stored sums is still
    /// [`Change::version`]. Returns the new version if they were written.
    fn change_sums(
        &self,
        change: &Change,
    ) -> impl Future<Output = Result<Option<u64>, BookError>> + Send;

    /// Deletes all sums. The roll-up then computes them again.
    fn clear_sums(&self) -> impl Future<Output = Result<(), BookError>> + Send;
}

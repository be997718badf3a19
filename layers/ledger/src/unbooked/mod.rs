//! Calls without a receipt: they were refused, or they failed, or they were free. They are stored for a limited time,
//! so that every gateway can find such a call by its number.
//!
//! The store of these calls is not part of the books, and it may lose its contents. It contains who made each call and
//! why the call was not charged, but never the contents of a request or a response.

#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
#[cfg(any(feature = "redis", feature = "sqlite"))]
mod tests;

use std::{fmt, ops::Range, time::Duration};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

#[cfg(feature = "redis")]
pub use self::redis::RedisUnbooked;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteUnbooked;
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    book::millis,
    contract::if_valid,
    embedded::now_ms,
    number::RequestNumber,
    session::SessionId,
};

/// How many stored calls one page reads at most. If few of them match the query, the page is short, and the next page
/// continues after them.
const READ_MAX: usize = 10_000;
/// How many calls one request to the store reads at most.
const READ_AT_ONCE: usize = 500;
/// One write removes at most this many calls above the limits, plus as many as the write adds.
#[cfg(any(feature = "redis", feature = "sqlite"))]
const REMOVED_MAX: usize = 20;

/// A call without a receipt: it is in flight, or it ended without a charge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnbookedCall {
    /// The call's number, from which the time of its arrival follows.
    pub number: RequestNumber,
    /// The state of the call.
    pub state: UnbookedState,
    /// The path of the request.
    pub path: String,
    /// The account of the caller's key; `None` if the key is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountId>,
    /// The caller's key; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// The requested model; `None` if the request was not parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The session that the request names, if it names one.
    #[serde(default, deserialize_with = "if_valid")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The vendor of the last attempt; `None` if no vendor was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// The status of the response; `None` while the call is in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The error code of the response; `None` if the call was not refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The field of the request that caused the refusal, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The cause in words. It contains no text of the caller or of a vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The time from the call's arrival to its end, or to now if it is in flight, in milliseconds.
    pub whole_ms: u32,
}

/// The state of a call without a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnbookedState {
    /// The call holds money and is in flight.
    Running,
    /// The call was refused before money was held.
    Refused,
    /// Money was held for the call, and all of it was released.
    Released,
}

/// Selects calls without a receipt. A field that is `None` does not restrict the selection.
#[derive(Clone, Debug)]
pub struct UnbookedQuery {
    /// Selects calls of this account.
    pub account: Option<AccountId>,
    /// Selects calls with this key.
    pub key: Option<KeyId>,
    /// Selects calls that requested this model.
    pub model: Option<String>,
    /// Selects calls whose last attempt was at this vendor.
    pub vendor: Option<String>,
    /// Selects calls whose request names this session.
    pub session: Option<SessionId>,
    /// Selects calls in this state.
    pub state: Option<UnbookedState>,
    /// Selects calls that were refused with this error code.
    pub code: Option<String>,
    /// Selects calls that arrived at this time or later, in Unix milliseconds.
    pub since_ms: u64,
    /// Selects calls that arrived before this time, in Unix milliseconds.
    pub until_ms: u64,
    /// Selects calls with lower numbers than this one: the [`UnbookedPage::next`] of the previous page.
    pub before: Option<RequestNumber>,
    /// The largest number of calls on the page.
    pub limit: usize,
}

impl UnbookedQuery {
    /// Selects the latest `limit` calls.
    #[must_use]
    pub const fn latest(limit: usize) -> Self {
        Self {
            account: None,
            key: None,
            model: None,
            vendor: None,
            session: None,
            state: None,
            code: None,
            since_ms: 0,
            until_ms: u64::MAX,
            before: None,
            limit,
        }
    }

    /// Returns whether the query selects this call.
    #[must_use]
    pub fn selects(&self, call: &UnbookedCall) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, found: &Option<T>) -> bool {
            wanted.is_none() || wanted == found
        }
        self.numbers().contains(&call.number)
            && is(&self.account, &call.account)
            && is(&self.key, &call.key)
            && is(&self.model, &call.model)
            && is(&self.vendor, &call.vendor)
            && is(&self.session, &call.session)
            && is(&self.code, &call.code)
            && self.state.is_none_or(|state| state == call.state)
    }

    fn numbers(&self) -> Range<RequestNumber> {
        let end = RequestNumber::first_at(self.until_ms);
        RequestNumber::first_at(self.since_ms)..self.before.map_or(end, |before| end.min(before))
    }

    /// Returns the index to read: the one with the fewest calls that do not match the query.
    const fn index(&self) -> UnbookedIndex<'_> {
        match self {
            Self { key: Some(key), .. } => UnbookedIndex::Key(key),
            Self {
                account: Some(account),
                ..
            } => UnbookedIndex::Account(account),
            Self {
                code: Some(code), ..
            } => UnbookedIndex::Code(code.as_str()),
            _ => UnbookedIndex::All,
        }
    }
}

/// A page of calls, newest call first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnbookedPage {
    /// The calls that match. A page may be short even if more calls follow on the next page.
    pub calls: Vec<UnbookedCall>,
    /// All calls down to this number were searched, and the next page continues below it; `None` on the last page.
    pub next: Option<RequestNumber>,
}

/// An index by which a store finds calls.
#[derive(Clone, Copy, Debug)]
pub enum UnbookedIndex<'a> {
    /// All calls.
    All,
    /// The calls of an account.
    Account(&'a AccountId),
    /// The calls with a key.
    Key(&'a KeyId),
    /// The calls that were refused with this code.
    Code(&'a str),
}

/// Limits on how many calls are stored, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnbookedBounds {
    /// The largest number of stored calls. If there are more, the account with the most calls loses its oldest ones, so
    /// that a flood of calls of one account does not displace the calls of others.
    pub calls_max: u64,
    /// How long a call is stored, counted from its arrival.
    pub age_max: Duration,
}

impl UnbookedBounds {
    /// Returns the lowest number of a call that is still recent enough to be stored.
    fn first_number(&self) -> RequestNumber {
        RequestNumber::first_at(now_ms().saturating_sub(millis(self.age_max)))
    }
}

/// Stores calls without a receipt.
pub trait UnbookedStore: fmt::Debug + Send + Sync + 'static {
    /// Returns the limits on how many calls are stored, and for how long.
    fn bounds(&self) -> UnbookedBounds;

    /// Stores calls that have ended; a call that is already stored is not changed. Then removes calls above the limits,
    /// but only some of them at once. Therefore the caller should also write empty slices from time to time.
    ///
    /// # Errors
    /// An error if the store did not answer, or if its answer was lost. The write can be repeated.
    fn write<'a>(&'a self, calls: &'a [UnbookedCall]) -> BoxFuture<'a, Result<(), BoxError>>;

    /// Returns the newest calls of an index whose numbers are in this range: newest first, and at most `limit`.
    ///
    /// # Errors
    /// An error if the store did not answer.
    fn read<'a>(
        &'a self,
        index: UnbookedIndex<'a>,
        numbers: Range<RequestNumber>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnbookedCall>, BoxError>>;
}

impl dyn UnbookedStore + '_ {
    /// Returns the call with this number, if it is stored.
    ///
    /// # Errors
    /// An error if the store did not answer.
    pub async fn find(&self, number: RequestNumber) -> Result<Option<UnbookedCall>, BoxError> {
        if number < self.bounds().first_number() {
            return Ok(None);
        }
        let only = number..number.next();
        Ok(self.read(UnbookedIndex::All, only, 1).await?.pop())
    }

    /// Returns a page of the calls that the query selects.
    ///
    /// # Errors
    /// An error if the store did not answer.
    pub async fn page(&self, query: &UnbookedQuery) -> Result<UnbookedPage, BoxError> {
        let mut numbers = query.numbers();
        numbers.start = numbers.start.max(self.bounds().first_number());
        let mut calls = Vec::new();
        // Reads one call more than the page contains, to find out whether another page follows.
        let (mut has_read, mut at_once) = (0, query.limit.saturating_add(1).min(READ_AT_ONCE));
        loop {
            let found = self.read(query.index(), numbers.clone(), at_once).await?;
            let (is_last, last) = (found.len() < at_once, found.last().map(|call| call.number));
            has_read += found.len();
            calls.extend(found.into_iter().filter(|call| query.selects(call)));
            let next = match calls.get(query.limit) {
                Some(_) => calls.get(query.limit.saturating_sub(1)).map(|it| it.number),
                None if is_last => None,
                None if has_read >= READ_MAX => last,
                None => {
                    numbers.end = last.unwrap_or(numbers.start);
                    at_once = READ_AT_ONCE;
                    continue;
                }
            };
            calls.truncate(query.limit);
            return Ok(UnbookedPage { calls, next });
        }
    }
}

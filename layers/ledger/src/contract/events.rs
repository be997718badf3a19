//! The ledger's events, and the alert levels: amounts of money at which an event is emitted.

use std::future::Future;

use super::BookError;
use crate::{
    account::{AccountId, KeyId},
    happening::{Event, Happening, Levels, Watched},
};

/// How many events are stored. When the store is full, each further event replaces the oldest event.
pub const EVENTS_MAX: u64 = 100_000;
/// The largest number of events that one call of [`EventStore::events`] returns.
pub const EVENTS_AT_ONCE_MAX: usize = 1000;
/// For 90 days (in milliseconds) after an event, another event with the same [`OnceEvent::once`] is not emitted.
pub const ONCE_MS: u64 = 90 * 24 * 3_600_000;

/// An event that a gateway reports and that the ledger emits at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnceEvent {
    /// Identifies the event. If the same text is reported again within [`ONCE_MS`], nothing is emitted.
    pub once: String,
    /// The account that the event is about, if it is about an account.
    pub account: Option<AccountId>,
    /// The key that the event is about, if it is about a key.
    pub key: Option<KeyId>,
    /// The kind and content of the event.
    pub what: Happening,
}

/// The events of a ledger, in one order. The ledger emits the event of a charge, a payment or a correction in the same
/// atomic step that moves the money, so money never moves without an event.
///
/// A method fails with a [`BookError`] if the ledger refuses the request or is unreachable. The documentation of a
/// method lists only the errors that this method returns in addition.
pub trait EventStore: Send + Sync + 'static {
    /// Sets the alert levels of an account, or of one of its keys or groups. If the balance or the remainder under the
    /// ceilings is already at or below a new level, no event is emitted for this level until the amount has risen above
    /// it and falls to it again.
    fn set_levels(
        &self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// Returns the alert levels of an account, then those of its keys, then those of its groups. Keys and groups are
    /// sorted by id. A key or group without alert levels is left out.
    fn levels(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<(Watched, Levels)>, BookError>> + Send;

    /// Gives numbers to events that have none yet, and returns the number of the last event. If a store numbers each
    /// event when emitting it, this method only returns the last number.
    fn gather(&self) -> impl Future<Output = Result<u64, BookError>> + Send;

    /// Returns at most `limit` events with numbers higher than `after`, oldest first. Events that the store has
    /// replaced by newer events are missing.
    fn events(
        &self,
        after: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Event>, BookError>> + Send;

    /// Emits an event, unless an event with the same `once` was emitted in the last [`ONCE_MS`]. Returns whether the
    /// event was emitted.
    fn emit_once(&self, event: &OnceEvent) -> impl Future<Output = Result<bool, BookError>> + Send;
}

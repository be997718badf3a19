//! The events of a ledger, and the alert levels at which some of the events are emitted.

use std::future::Future;

use super::BookError;
use crate::{
    account::{AccountId, KeyId},
    happening::{Event, Happening, Levels, Watched},
};

/// The maximum number of stored events. A further event replaces the oldest one.
pub const EVENTS_MAX: u64 = 100_000;
/// The largest number of events that one read returns.
pub const EVENTS_AT_ONCE_MAX: usize = 1000;
/// The time for which an event with the same [`OnceEvent::once`] is not emitted again: 90 days, in milliseconds.
pub const ONCE_MS: u64 = 90 * 24 * 3_600_000;

/// An event that a gateway reports and that is emitted once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnceEvent {
    /// Identifies the event: the same text again within [`ONCE_MS`] emits nothing.
    pub once: String,
    /// The account that the event is about, if there is one.
    pub account: Option<AccountId>,
    /// The key that the event is about, if there is one.
    pub key: Option<KeyId>,
    /// The kind and content of the event.
    pub what: Happening,
}

/// The events of a ledger, totally ordered. The event of a charge, a payment or a correction is emitted in the same step
/// that moves the money, so that no money moves without its event.
pub trait EventStore: Send + Sync + 'static {
    /// Sets the alert levels of an account, or of one of its keys or groups. A level that the amount had already passed
    /// before this change is reported only when the amount passes it again.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn set_levels(
        &self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// Returns the alert levels of an account, then those of its keys, then those of its groups, each sorted by id. A
    /// key or group without alert levels is left out.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn levels(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<(Watched, Levels)>, BookError>> + Send;

    /// Numbers the events that have no number yet, in a store that numbers events in a separate operation. Returns the
    /// number of the last event.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn gather(&self) -> impl Future<Output = Result<u64, BookError>> + Send;

    /// Returns at most `limit` events after the number `after`, oldest first. Dropped events are not returned.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn events(
        &self,
        after: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Event>, BookError>> + Send;

    /// Emits an event unless an event with the same `once` was emitted before; returns whether it was emitted now.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn emit_once(&self, event: &OnceEvent) -> impl Future<Output = Result<bool, BookError>> + Send;
}

//! The events of a ledger, and the documents (small versioned texts) that consumers of events store next to the books.

use std::{future::Future, time::Duration};

use super::BookError;
use crate::{
    account::{AccountId, KeyId},
    happening::{Event, Happening, Levels, Watched},
};

/// Events that are stored, at most; beyond that the oldest is dropped.
pub const EVENTS_MAX: u64 = 100_000;
/// The largest number of events that one read returns.
pub const EVENTS_AT_ONCE_MAX: usize = 1000;
/// The time for which an event with the same [`Telling::once`] is not emitted again: 90 days, in milliseconds.
pub const TOLD_MS: u64 = 90 * 24 * 3_600_000;

/// An event that a gateway reports and that is emitted once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telling {
    /// Identifies the event: the same text again within [`TOLD_MS`] emits nothing.
    pub once: String,
    /// The account that the event is about, if there is one.
    pub account: Option<AccountId>,
    /// The key that the event is about, if there is one.
    pub key: Option<KeyId>,
    /// The kind and content of the event.
    pub what: Happening,
}

/// A document: a text that is stored next to the books, with a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The document's name, unique within the ledger.
    pub name: String,
    /// The document's version; each change increases it by one, from 1.
    pub version: u64,
    /// The text of the document.
    pub text: String,
}

/// The events of a ledger, totally ordered, and the documents stored next to them. The event of a charge, a payment or
/// a correction is emitted in the same step that moves the money, so that no money moves without its event.
pub trait Feed: Send + Sync + 'static {
    /// Sets the amounts (levels) at which an account, or one of its keys or groups, emits an event. A level that was
    /// passed before this change is reported only when it is passed again.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn set_levels(
        &self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// Returns the levels of an account, then of its keys, then of its groups, each sorted by id. Empty levels are
    /// left out.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn levels(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<(Watched, Levels)>, BookError>> + Send;

    /// Numbers the events that have no number yet, in a store where numbering is a separate step. Returns the number of
    /// the last event.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn gather(&self) -> impl Future<Output = Result<u64, BookError>> + Send;

    /// At most `limit` events after the number `after`, oldest first. Dropped events are not returned.
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
    fn tell(&self, telling: &Telling) -> impl Future<Output = Result<bool, BookError>> + Send;

    /// Returns the document with this name, if it exists.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn note(&self, name: &str) -> impl Future<Output = Result<Option<Note>, BookError>> + Send;

    /// Writes a document if its version is still `version`; 0 requires that it does not exist. An empty text deletes
    /// it.
    ///
    /// # Errors
    /// [`BookError::Exists`] if the document was changed meanwhile, or another [`BookError`] if the ledger does not
    /// answer.
    fn put_note(
        &self,
        name: &str,
        version: u64,
        text: &str,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// The documents whose names begin with `begins`, sorted by name.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn notes(&self, begins: &str) -> impl Future<Output = Result<Vec<Note>, BookError>> + Send;

    /// Acquires or renews the exclusive right named `name` for `owner`. Returns whether `owner` has the right now. The
    /// right expires unless `owner` renews it.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn lease(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, BookError>> + Send;
}

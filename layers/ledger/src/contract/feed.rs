//! The events of a ledger, and the notes that consumers of events store next to the books.

use std::{future::Future, time::Duration};

use super::BookError;
use crate::{
    account::{AccountId, KeyId},
    happening::{Event, Happening, Levels, Watched},
};

/// Events that are kept; beyond that the oldest is dropped.
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

/// A text that is stored next to the books, with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The document's name, unique within the ledger.
    pub name: String,
    /// The document's version; each change increases it by one, from 1.
    pub version: u64,
    /// The text of the document.
    pub text: String,
}

/// The events of a ledger, in one order, and the notes stored next to them. The event of a charge, a payment or a
/// correction is emitted in the same step that moves the money, so that no money moves without its event.
pub trait Feed: Send + Sync + 'static {
    /// Sets the levels of an account, or of one of its keys or groups. A level that was passed before is reported only
    /// when it is passed again.
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

    /// Numbers events that have no number yet, in a store where that is a separate step. Returns the number of the
    /// last.
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

    /// Emits an event unless it was emitted before; returns whether it was emitted now.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn tell(&self, telling: &Telling) -> impl Future<Output = Result<bool, BookError>> + Send;

    /// Returns the document with this name, if it exists.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn note(&self, name: &str) -> impl Future<Output = Result<Option<Note>, BookError>> + Send;

    /// Writes a note if its version is still `version`; 0 if there must be none yet. An empty text deletes the note.
    ///
    /// # Errors
    /// [`BookError::Exists`] if the note was changed meanwhile, or another [`BookError`] if the ledger does not answer.
    fn put_note(
        &self,
        name: &str,
        version: u64,
        text: &str,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// The notes whose names begin with `begins`, by name.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn notes(&self, begins: &str) -> impl Future<Output = Result<Vec<Note>, BookError>> + Send;

    /// Acquires or renews the exclusive right named `name` for `owner`. Returns whether `owner` has it now; it expires
    /// unless it is renewed.
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

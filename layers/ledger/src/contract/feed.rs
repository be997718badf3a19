//! What a ledger tells, and what is kept beside it by those who pass it on.

use std::{future::Future, time::Duration};

use super::BookError;
use crate::{
    account::{AccountId, KeyId},
    happening::{Event, Happening, Levels, Watched},
};

/// How many events are kept; the oldest is forgotten first.
pub const EVENTS_MAX: u64 = 100_000;
/// How many events come at once, at most.
pub const EVENTS_AT_ONCE_MAX: usize = 1000;
/// How long what was told once is not told again: 90 days, in milliseconds.
pub const TOLD_MS: u64 = 90 * 24 * 3_600_000;

/// Something that a gateway has seen, to be told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telling {
    /// What it is told by: the same again is told once. See [`TOLD_MS`].
    pub once: String,
    /// Whose money, where it is an account's.
    pub account: Option<AccountId>,
    /// On which key, where it is one's.
    pub key: Option<KeyId>,
    /// What it is.
    pub what: Happening,
}

/// A text that is kept beside the books, and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its name.
    pub name: String,
    /// Grows with each change, from 1.
    pub version: u64,
    /// The text.
    pub text: String,
}

/// The events of a ledger, in one order, and notes beside them. What a charge, a payment or a correction tells is made
/// in the step that moves the money; nothing moves money without telling it.
pub trait Feed: Send + Sync + 'static {
    /// From now on these levels of an account, or of one of its keys or groups, are told. A level that has been passed already is
    /// told when it is passed the next time.
    ///
    /// # Errors
    /// See [`BookError`].
    fn set_levels(
        &self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// The levels of an account, of its keys and of its groups, where there are some: in this order, each by id.
    ///
    /// # Errors
    /// See [`BookError`].
    fn levels(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<(Watched, Levels)>, BookError>> + Send;

    /// Gives their places to events that have none yet, where that is a step of its own; answers the place of the last.
    ///
    /// # Errors
    /// See [`BookError`].
    fn gather(&self) -> impl Future<Output = Result<u64, BookError>> + Send;

    /// So many events behind the place `after`, oldest first. Of those that are forgotten there is none.
    ///
    /// # Errors
    /// See [`BookError`].
    fn events(
        &self,
        after: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Event>, BookError>> + Send;

    /// Adds an event, unless the same was told before; says whether it was added.
    ///
    /// # Errors
    /// See [`BookError`].
    fn tell(&self, telling: &Telling) -> impl Future<Output = Result<bool, BookError>> + Send;

    /// A note.
    ///
    /// # Errors
    /// See [`BookError`].
    fn note(&self, name: &str) -> impl Future<Output = Result<Option<Note>, BookError>> + Send;

    /// Writes a note where its version is still this one; 0: where there is none. An empty text takes it away.
    ///
    /// # Errors
    /// See [`BookError`]; [`BookError::Exists`] where somebody else has changed it.
    fn put_note(
        &self,
        name: &str,
        version: u64,
        text: &str,
    ) -> impl Future<Output = Result<(), BookError>> + Send;

    /// The notes whose names begin so, by name.
    ///
    /// # Errors
    /// See [`BookError`].
    fn notes(&self, begins: &str) -> impl Future<Output = Result<Vec<Note>, BookError>> + Send;

    /// Whether `owner` alone may do what `name` names, for so long from now: it had the right or took it.
    ///
    /// # Errors
    /// See [`BookError`].
    fn lease(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, BookError>> + Send;
}

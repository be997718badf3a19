//! The contract of a ledger: the types that all stores share, and its traits.
//!
//! [`Ledger`] is what a call needs; [`LedgerAdmin`] is what an operator needs. [`EventStore`], [`Documents`] and
//! [`LeaderLease`] are for consumers of events and for other background tasks. [`super::book`] is the state machine
//! that defines every answer.

mod admin;
mod documents;
mod events;
mod groups;
mod holds;
mod journal;
mod leader;
mod ledger;
mod settlement;
mod views;

#[cfg(feature = "redis")]
pub(crate) use self::journal::entry_of;
pub use self::{
    admin::{Audit, BookError, Entry, LedgerAdmin, TariffVersion},
    documents::{Document, Documents, Update, Updating, Versioned},
    events::{EVENTS_AT_ONCE_MAX, EVENTS_MAX, EventStore, ONCE_MS, OnceEvent},
    groups::{GroupChange, GroupRecord, GroupView},
    holds::{Adjusted, Adjustment, Hold, LedgerError, Refusal, Reserved},
    journal::{JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPages, JournalPart, Receipt},
    leader::LeaderLease,
    ledger::Ledger,
    settlement::{Booked, Item, Settled, Settlement},
    views::{AccountBooks, AccountView, KeyChange, KeyView, OpenHold, PeriodView},
};

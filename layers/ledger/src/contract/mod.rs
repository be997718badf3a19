//! The contract that all ledgers fulfil: the traits that they implement, and the types of these traits.
//!
//! Calls use [`Ledger`], and operators use [`LedgerAdmin`]. Consumers of events and other background tasks use
//! [`EventStore`], [`Documents`] and [`LeaderLease`]. The state machine [`super::book`] defines the result of every
//! operation.

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

pub(crate) use self::{admin::if_found, settlement::if_valid};
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
#[cfg(feature = "redis")]
pub(crate) use self::{documents::to_json, journal::entry_of};

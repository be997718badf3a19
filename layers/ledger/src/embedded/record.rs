//! The changes of the state, as a durable store writes them.

use std::sync::Arc;

use crate::{
    account::{AccountId, GroupId, KeyRecord},
    book::{KeyBook, Millis},
    ceiling::{Ceilings, Period},
    contract::{Document, Entry, Receipt, Settlement, TariffVersion},
    happening::{Event, Levels, Watched},
    money::MicroRub,
    number::RequestNumber,
    rollup,
};

/// A result, and the record that a durable store must write before it returns the result.
pub(crate) type Journaled<T> = (T, Option<Record>);

/// A change as a durable store writes it. Amounts are new values, not differences, so that writing the records again,
/// in the same order, changes nothing.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "sqlite"),
    allow(dead_code, reason = "used only by the durable store")
)]
#[expect(
    clippy::large_enum_variant,
    reason = "most records are receipts: boxing them would cost more than it saves"
)]
pub(crate) enum Record {
    Account {
        id: AccountId,
        name: String,
        suspended: bool,
    },
    Entry {
        account: AccountId,
        entry: Entry,
        at_ms: Millis,
        balance: MicroRub,
        events: Vec<Event>,
    },
    Key {
        record: Arc<KeyRecord>,
        ceilings: Ceilings,
        /// The groups that the key has joined or left, as they are after the change.
        groups: Vec<GroupRow>,
    },
    /// A group of an account's keys.
    Group { account: AccountId, group: GroupRow },
    Settled {
        receipt: Receipt,
        balance: MicroRub,
        loss: MicroRub,
        /// The key's usage, if the key is one of the account's.
        used: Option<Used>,
        /// The usage of the key's group, if the key is in a group.
        group: Option<(GroupId, Used)>,
        /// Whether the call had a checkpoint in the store.
        noted: bool,
        /// The events that the change emits.
        events: Vec<Event>,
    },
    /// Checkpoints of the running calls: their costs so far.
    Noted(Vec<Settlement>),
    /// The number of a call that had a checkpoint and ended without a charge.
    Forgotten(RequestNumber),
    Tariff {
        version: TariffVersion,
        fingerprint: String,
    },
    /// An event that a gateway reported, and its name: an event with the same name is not emitted again.
    Told { event: Event, once: String },
    Levels {
        account: AccountId,
        of: Watched,
        levels: Levels,
    },
    /// A document. An empty text deletes it.
    Document(Document),
    /// Sums of the roll-up, with their new version.
    Summed {
        change: rollup::Change,
        version: u64,
    },
    /// Deletes all sums of the roll-up.
    SumsCleared { version: u64 },
}

/// A key's total usage, and its usage before its current month and its current day.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "sqlite"),
    allow(dead_code, reason = "used only by the durable store")
)]
pub(crate) struct Used {
    pub(crate) in_all: MicroRub,
    pub(crate) month: Period,
    pub(crate) day: Period,
}

impl Used {
    pub(super) const fn of(key: &KeyBook) -> Self {
        Self {
            in_all: key.used,
            month: key.month,
            day: key.day,
        }
    }
}

/// A group as a durable store writes it.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(feature = "sqlite"),
    allow(dead_code, reason = "used only by the durable store")
)]
pub(crate) struct GroupRow {
    pub(crate) id: GroupId,
    pub(crate) name: String,
    pub(crate) removed: bool,
    pub(crate) ceilings: Ceilings,
    pub(crate) carried: MicroRub,
    pub(crate) used: Used,
}

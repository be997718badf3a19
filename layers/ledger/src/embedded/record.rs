//! Records: the changes of the state in the form in which a durable store writes them.

#![cfg_attr(
    not(feature = "sqlite"),
    allow(dead_code, reason = "only durable stores use these items")
)]

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

/// A change in the form in which a durable store writes it. Amounts are absolute values and not differences, so writing
/// the same records again in the same order changes nothing.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most records are receipts, so boxing receipts would cost more than it saves"
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
        /// The groups that the key has joined or left, with their values after the change.
        groups: Vec<GroupRow>,
    },
    /// A group of an account's keys.
    Group {
        account: AccountId,
        group: GroupRow,
    },
    Settled(SettledCall),
    /// Checkpoints of in-flight calls: what they have cost so far.
    Noted(Vec<Settlement>),
    /// The number of a call whose checkpoint must be deleted because the call has ended without a charge.
    Forgotten(RequestNumber),
    /// A version of the tariff, with its fingerprint.
    Tariff(TariffVersion, String),
    /// An event that a gateway reported, and its name. A further event with the same name is not emitted.
    EmittedOnce {
        event: Event,
        once: String,
    },
    Levels(AccountId, Watched, Levels),
    /// A document. An empty text deletes it.
    Document(Document),
    /// Roll-up sums, with their new version.
    Summed {
        change: rollup::Change,
        version: u64,
    },
    /// All roll-up sums are deleted.
    SumsCleared {
        version: u64,
    },
}

/// A settled call, and the sums after it.
#[derive(Debug)]
pub(crate) struct SettledCall {
    pub(crate) receipt: Receipt,
    pub(crate) balance: MicroRub,
    pub(crate) loss: MicroRub,
    /// The key's spending; `None` if the account has no such key.
    pub(crate) used: Option<Used>,
    /// The spending of the key's group; `None` if the key is in no group.
    pub(crate) group: Option<(GroupId, Used)>,
    /// Whether the store has a checkpoint of this call, which must be deleted.
    pub(crate) noted: bool,
    /// The events that the change emits.
    pub(crate) events: Vec<Event>,
}

/// A key's total spending, and its spending before its current month and before its current day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) in_all: MicroRub,
    pub(crate) month: Period,
    pub(crate) day: Period,
}

impl Used {
    pub(super) const fn from_money(key: &KeyBook) -> Self {
        Self {
            in_all: key.used,
            month: key.month,
            day: key.day,
        }
    }
}

/// A group in the form in which a durable store writes it.
#[derive(Clone, Debug)]
pub(crate) struct GroupRow {
    pub(crate) id: GroupId,
    pub(crate) name: String,
    pub(crate) removed: bool,
    pub(crate) ceilings: Ceilings,
    pub(crate) carried: MicroRub,
    pub(crate) used: Used,
}

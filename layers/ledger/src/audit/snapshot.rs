//! The money of an account at one moment, in the form that stores and exports return.

use serde::Deserialize;

use crate::{
    account::{AccountId, GroupId, KeyId},
    contract::{AccountBooks, OpenHold},
    money::MicroRub,
};

/// The part of [`AccountBooks`] that an audit needs: the money of an account at one moment.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    /// The account's id.
    pub id: AccountId,
    /// The account's balance (`b` in the invariants).
    pub balance_rub: MicroRub,
    /// The sum of the account's open holds (`h` in the invariants).
    pub held_rub: MicroRub,
    /// The total spending of the account's keys (`Σ u`), as stored on the account.
    pub spent_rub: MicroRub,
    /// The sum of costs that could not be charged.
    pub loss_rub: MicroRub,
    /// The sum of all payments and corrections.
    pub entered_rub: MicroRub,
    /// The account's keys.
    pub keys: Vec<KeySnapshot>,
    /// The account's groups of keys.
    #[serde(default)]
    pub groups: Vec<GroupSnapshot>,
    /// The account's open holds.
    pub holds: Vec<OpenHold>,
    /// Whether the journal contains every line ever booked.
    pub journal_complete: bool,
}

/// The money of a key.
#[derive(Clone, Debug, Deserialize)]
pub struct KeySnapshot {
    /// The key's id.
    pub id: KeyId,
    /// The key's spending so far (`u` in the invariants).
    pub spent_rub: MicroRub,
    /// The amount that the key's in-flight calls hold (`h_k` in the invariants).
    pub held_rub: MicroRub,
    /// The key's spending before the day of its last charge, or before the month of that charge, whichever is more.
    /// `None` if the store does not report it.
    #[serde(skip)]
    pub before_rub: Option<MicroRub>,
    /// The group that the key is in; `None` if it is in no group.
    #[serde(default)]
    pub group: Option<GroupId>,
    /// The number of open calls according to the store's counter; `None` if the store does not count them.
    #[serde(skip)]
    pub calls: Option<u64>,
}

/// The money of a group of keys.
#[derive(Clone, Debug, Deserialize)]
pub struct GroupSnapshot {
    /// The group's id.
    pub id: GroupId,
    /// The spending of keys while they were in the group (`u` in the invariants).
    pub spent_rub: MicroRub,
    /// The amount that the in-flight calls of the group's keys hold (`h_k` in the invariants).
    pub held_rub: MicroRub,
    /// The group's spending minus the total spending of its present keys.
    pub carried_rub: MicroRub,
    /// The group's spending before the day or month of its last charge, as in [`KeySnapshot::before_rub`].
    #[serde(skip)]
    pub before_rub: Option<MicroRub>,
}

impl From<&AccountBooks> for Snapshot {
    fn from(books: &AccountBooks) -> Self {
        Self {
            id: books.view.id.clone(),
            balance_rub: books.view.balance_rub,
            held_rub: books.view.held_rub,
            spent_rub: books.view.spent_rub,
            loss_rub: books.view.loss_rub,
            entered_rub: books.entered_rub,
            keys: books
                .keys
                .iter()
                .map(|key| KeySnapshot {
                    id: key.record.id.clone(),
                    spent_rub: key.spent_rub,
                    held_rub: key.held_rub,
                    before_rub: None,
                    group: key.record.group.clone(),
                    calls: None,
                })
                .collect(),
            groups: books
                .groups
                .iter()
                .map(|group| GroupSnapshot {
                    id: group.record.id.clone(),
                    spent_rub: group.spent_rub,
                    held_rub: group.held_rub,
                    carried_rub: group.carried_rub,
                    before_rub: None,
                })
                .collect(),
            holds: books.holds.clone(),
            journal_complete: books.journal_complete,
        }
    }
}

//! The money of an account at one moment, as a store or an export contains it.

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
    /// The account's balance, `b` in the invariants.
    pub balance_rub: MicroRub,
    /// The sum of the account's holds, `h` in the invariants.
    pub held_rub: MicroRub,
    /// The sum of what the account's keys have spent, `Σ u`, as stored on the account.
    pub spent_rub: MicroRub,
    /// The costs of calls that could not be charged.
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
    /// Whether the journal has all its lines.
    pub journal_complete: bool,
}

/// The money of a key.
#[derive(Clone, Debug, Deserialize)]
pub struct KeySnapshot {
    /// The key's id.
    pub id: KeyId,
    /// The key's spending so far, `u` in the invariants.
    pub spent_rub: MicroRub,
    /// The amount that the key's running calls hold, `h_k` in the invariants.
    pub held_rub: MicroRub,
    /// The key's usage before the day of its last charge began, or before the month of that charge began: the larger
    /// amount. `None` if the store does not report it.
    #[serde(skip)]
    pub before_rub: Option<MicroRub>,
    /// The group that the key is in, if any.
    #[serde(default)]
    pub group: Option<GroupId>,
    /// The number of calls counted as open; `None` if the store does not count them.
    #[serde(skip)]
    pub calls: Option<u64>,
}

/// The money of a group of keys.
#[derive(Clone, Debug, Deserialize)]
pub struct GroupSnapshot {
    /// The group's id.
    pub id: GroupId,
    /// The spending of keys while they were in the group, `u` in the invariants.
    pub spent_rub: MicroRub,
    /// The amount that the running calls of the group's keys hold, `h_k` in the invariants.
    pub held_rub: MicroRub,
    /// The group's spending minus that of its present keys.
    pub carried_rub: MicroRub,
    /// The group's usage before its current day or month began, computed as in [`KeySnapshot::before_rub`].
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

//! The money of an account at one moment, as a store or an export shows it.

use serde::Deserialize;

use crate::{
    account::{AccountId, GroupId, KeyId},
    contract::{AccountBooks, OpenHold},
    money::MicroRub,
};

/// The money of an account at one moment: of [`AccountBooks`] what an audit needs.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    /// Whose it is.
    pub id: AccountId,
    /// `b`.
    pub balance_rub: MicroRub,
    /// `h`.
    pub held_rub: MicroRub,
    /// `Σ u` as the account is shown to have it.
    pub spent_rub: MicroRub,
    /// Costs that could not be charged.
    pub loss_rub: MicroRub,
    /// The sum of all entries.
    pub entered_rub: MicroRub,
    /// Its keys.
    pub keys: Vec<KeySnapshot>,
    /// Its groups of keys.
    #[serde(default)]
    pub groups: Vec<GroupSnapshot>,
    /// Its open holds.
    pub holds: Vec<OpenHold>,
    /// The journal has forgotten nothing.
    pub journal_complete: bool,
}

/// The money of a key.
#[derive(Clone, Debug, Deserialize)]
pub struct KeySnapshot {
    /// Which one.
    pub id: KeyId,
    /// `u`.
    pub spent_rub: MicroRub,
    /// `h_k`.
    pub held_rub: MicroRub,
    /// What it had used before the day or the month of its last charge began, whichever is more; `None` where that is
    /// not shown.
    #[serde(skip)]
    pub before_rub: Option<MicroRub>,
    /// The group that it is in.
    #[serde(default)]
    pub group: Option<GroupId>,
    /// How many of its calls are counted as open; `None` where they are not counted.
    #[serde(skip)]
    pub calls: Option<u64>,
}

/// The money of a group of keys.
#[derive(Clone, Debug, Deserialize)]
pub struct GroupSnapshot {
    /// Which one.
    pub id: GroupId,
    /// `u`: of its keys while they were in it.
    pub spent_rub: MicroRub,
    /// `h_k` of its keys.
    pub held_rub: MicroRub,
    /// What it has spent beyond what its keys have.
    pub carried_rub: MicroRub,
    /// As a key's.
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

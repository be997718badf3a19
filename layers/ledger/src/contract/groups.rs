//! Groups of keys that share ceilings, in the form that operators see.

use serde::{Deserialize, Serialize};

use super::PeriodView;
use crate::{account::GroupId, ceiling::Ceilings, money::MicroRub};

/// A group's id, name and state, without its money.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// The group's id, unique within the account.
    pub id: GroupId,
    /// The group's display name.
    pub name: String,
    /// Whether the group was removed. No key can join a removed group. The ledger keeps the sums of a removed group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// A group with its ceilings and spending, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// The group's id, name and state.
    #[serde(flatten)]
    pub record: GroupRecord,
    /// The most that the group's keys may spend together in total; `None` if there is no such ceiling.
    pub ceiling_rub: Option<MicroRub>,
    /// The spending of keys while they were in the group.
    pub spent_rub: MicroRub,
    /// The amount that the in-flight calls of the group's keys hold.
    pub held_rub: MicroRub,
    /// The amount that the group's keys can still spend together: the account's free money, or the remainder under one
    /// of the group's ceilings if that is less.
    pub free_rub: MicroRub,
    /// The ceiling and the spending of the current month.
    pub month: PeriodView,
    /// The ceiling and the spending of the current day.
    pub day: PeriodView,
    /// The spending of keys that have left the group, minus the amount that the present keys had spent before they
    /// joined. This equals the group's spending minus the total spending of its present keys.
    pub carried_rub: MicroRub,
}

impl GroupView {
    /// Returns the group's ceilings.
    #[must_use]
    pub const fn ceilings(&self) -> Ceilings {
        Ceilings {
            total: self.ceiling_rub,
            month: self.month.ceiling_rub,
            day: self.day.ceiling_rub,
        }
    }
}

/// A change of a group. A field that is `None` is not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChange {
    /// The group's new name.
    pub name: Option<String>,
    /// The new ceiling on total spending; `Some(None)` removes the ceiling.
    pub ceiling: Option<Option<MicroRub>>,
    /// The new ceiling per month; `Some(None)` removes the ceiling.
    pub ceiling_month: Option<Option<MicroRub>>,
    /// The new ceiling per day; `Some(None)` removes the ceiling.
    pub ceiling_day: Option<Option<MicroRub>>,
    /// Removes the group permanently.
    pub remove: bool,
}

impl GroupChange {
    /// Applies this change to the ceilings `before`, and returns the new ceilings.
    #[must_use]
    pub fn ceilings(&self, before: Ceilings) -> Ceilings {
        Ceilings {
            total: self.ceiling.unwrap_or(before.total),
            month: self.ceiling_month.unwrap_or(before.month),
            day: self.ceiling_day.unwrap_or(before.day),
        }
    }

    /// Applies this change to a group's record. [`GroupChange::ceilings`] applies the change to the ceilings, which are
    /// not part of the record.
    pub fn apply(&self, record: &mut GroupRecord) {
        if let Some(name) = &self.name {
            record.name.clone_from(name);
        }
        record.removed |= self.remove;
    }
}

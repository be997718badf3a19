//! Groups of keys: what they may spend together, as operators see it.

use serde::{Deserialize, Serialize};

use super::PeriodView;
use crate::{account::GroupId, ceiling::Ceilings, money::MicroRub};

/// What is known of a group, money apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Its id, once in its account.
    pub id: GroupId,
    /// Its name.
    pub name: String,
    /// It was removed: no key gets into it, and its books are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// A group as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// What is known of it.
    #[serde(flatten)]
    pub record: GroupRecord,
    /// The most that its keys may spend together, if limited.
    pub ceiling_rub: Option<MicroRub>,
    /// Spent by keys while they were in it.
    pub spent_rub: MicroRub,
    /// Held by the running calls of its keys.
    pub held_rub: MicroRub,
    /// What its keys can spend together now: the least of the account's free money and the rests of its ceilings.
    pub free_rub: MicroRub,
    /// The current month.
    pub month: PeriodView,
    /// The current day.
    pub day: PeriodView,
    /// What it has spent beyond what its keys have: that of keys that left it, less what keys had spent when they came.
    pub carried_rub: MicroRub,
}

impl GroupView {
    /// The most that it may spend.
    #[must_use]
    pub const fn ceilings(&self) -> Ceilings {
        Ceilings {
            total: self.ceiling_rub,
            month: self.month.ceiling_rub,
            day: self.day.ceiling_rub,
        }
    }
}

/// A change of a group. `None` leaves a field alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChange {
    /// Its name.
    pub name: Option<String>,
    /// The ceiling; `Some(None)` takes it away.
    pub ceiling: Option<Option<MicroRub>>,
    /// The ceiling of a month; `Some(None)` takes it away.
    pub ceiling_month: Option<Option<MicroRub>>,
    /// The ceiling of a day; `Some(None)` takes it away.
    pub ceiling_day: Option<Option<MicroRub>>,
    /// It is removed, for good.
    pub remove: bool,
}

impl GroupChange {
    /// What the change makes of a group's ceilings.
    #[must_use]
    pub fn ceilings(&self, before: Ceilings) -> Ceilings {
        Ceilings {
            total: self.ceiling.unwrap_or(before.total),
            month: self.ceiling_month.unwrap_or(before.month),
            day: self.ceiling_day.unwrap_or(before.day),
        }
    }

    /// Writes the change into a record, its ceilings apart.
    pub fn apply(&self, record: &mut GroupRecord) {
        if let Some(name) = &self.name {
            record.name.clone_from(name);
        }
        record.removed |= self.remove;
    }
}

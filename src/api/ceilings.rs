//! Ceilings on what a key or a group may spend. The admin API, owners' keys, commands, imports and pages take names,
//! values and labels from this one list.

use serde::{Deserialize, Serialize};
use tollgate_layers::{
    money::MicroRub,
    reserve::ledger::{GroupChange, GroupView, KeyChange, KeyView},
};

/// Spending of a key or a group in each period, with its ceiling.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Spending {
    pub(crate) ceiling_rub: Option<MicroRub>,
    pub(crate) spent_rub: MicroRub,
    pub(crate) ceiling_month_rub: Option<MicroRub>,
    pub(crate) spent_month_rub: MicroRub,
    pub(crate) ceiling_day_rub: Option<MicroRub>,
    pub(crate) spent_day_rub: MicroRub,
}

impl From<&KeyView> for Spending {
    fn from(view: &KeyView) -> Self {
        Self {
            ceiling_rub: view.ceiling_rub,
            spent_rub: view.spent_rub,
            ceiling_month_rub: view.month.ceiling_rub,
            spent_month_rub: view.month.spent_rub,
            ceiling_day_rub: view.day.ceiling_rub,
            spent_day_rub: view.day.spent_rub,
        }
    }
}

impl From<&GroupView> for Spending {
    fn from(view: &GroupView) -> Self {
        Self {
            ceiling_rub: view.ceiling_rub,
            spent_rub: view.spent_rub,
            ceiling_month_rub: view.month.ceiling_rub,
            spent_month_rub: view.month.spent_rub,
            ceiling_day_rub: view.day.ceiling_rub,
            spent_day_rub: view.day.spent_rub,
        }
    }
}

/// A ceiling in a request for a change: `None` keeps it, `Some(None)` removes it.
pub(crate) type NewCeiling = Option<Option<MicroRub>>;

/// A ceiling on what a key or a group may spend in a period.
pub(crate) struct Ceiling {
    /// JSON pointers to the ceiling and to the amount spent in the same period.
    pub(crate) pointers: (&'static str, &'static str),
    /// Column names in commands: of the ceiling, of the amount spent, and of the amount spent if the column is narrow.
    pub(crate) headings: (&'static str, &'static str, &'static str),
    /// The explanation of the ceiling in the help of `tollgate import`.
    pub(crate) import_help: &'static str,
    /// Labels on the operators' pages: of the ceiling in a form, of its column, and of the column with the amount
    /// spent.
    pub(crate) labels: (&'static str, &'static str, &'static str),
    /// The label of the ceiling for a key's holder, in Russian and in English.
    pub(crate) holder_label: (&'static str, &'static str),
    of_key: fn(&mut KeyChange) -> &mut NewCeiling,
    of_group: fn(&mut GroupChange) -> &mut NewCeiling,
    value: fn(&Spending) -> (Option<MicroRub>, MicroRub),
}

impl Ceiling {
    /// Returns the name of the ceiling's field.
    pub(crate) const fn field(&self) -> &'static str {
        self.pointers.0.split_at(1).1
    }
}

impl Spending {
    /// Returns each ceiling with its value and the amount spent in its period.
    pub(crate) fn rows(&self) -> [(&'static Ceiling, Option<MicroRub>, MicroRub); 3] {
        CEILINGS.each_ref().map(|ceiling| {
            let (value, spent) = (ceiling.value)(self);
            (ceiling, value, spent)
        })
    }
}

/// The ceilings, in the order in which they are shown.
pub(crate) static CEILINGS: [Ceiling; 3] = [
    Ceiling {
        pointers: ("/ceiling_rub", "/spent_rub"),
        headings: ("ceiling", "spent", "spent"),
        import_help: "maximum total spending of the key",
        labels: ("Total ceiling, ₽", "Ceiling, ₽", "Charged, ₽"),
        holder_label: ("Лимит за всё время, ₽", "Ceiling in all, ₽"),
        of_key: |change| &mut change.ceiling,
        of_group: |change| &mut change.ceiling,
        value: |spending| (spending.ceiling_rub, spending.spent_rub),
    },
    Ceiling {
        pointers: ("/ceiling_month_rub", "/spent_month_rub"),
        headings: ("ceiling of a month", "spent this month", "month"),
        import_help: "maximum spending per month",
        labels: ("Monthly ceiling, ₽", "Monthly ceiling, ₽", "This month, ₽"),
        holder_label: ("Лимит за месяц, ₽", "Ceiling of a month, ₽"),
        of_key: |change| &mut change.ceiling_month,
        of_group: |change| &mut change.ceiling_month,
        value: |spending| (spending.ceiling_month_rub, spending.spent_month_rub),
    },
    Ceiling {
        pointers: ("/ceiling_day_rub", "/spent_day_rub"),
        headings: ("ceiling of a day", "spent today", "today"),
        import_help: "maximum spending per day",
        labels: ("Daily ceiling, ₽", "Daily ceiling, ₽", "Today, ₽"),
        holder_label: ("Лимит за день, ₽", "Ceiling of a day, ₽"),
        of_key: |change| &mut change.ceiling_day,
        of_group: |change| &mut change.ceiling_day,
        value: |spending| (spending.ceiling_day_rub, spending.spent_day_rub),
    },
];

/// Returns the names of the fields.
pub(crate) fn fields() -> impl Iterator<Item = &'static str> {
    CEILINGS.iter().map(Ceiling::field)
}

/// Builds a change of a key from the ceilings that `read` finds.
///
/// # Errors
/// Returns the first error that `read` returns.
pub(crate) fn of_key<E>(
    mut read: impl FnMut(&'static str) -> Result<NewCeiling, E>,
) -> Result<KeyChange, E> {
    let mut change = KeyChange::default();
    for ceiling in &CEILINGS {
        *(ceiling.of_key)(&mut change) = read(ceiling.field())?;
    }
    Ok(change)
}

/// Builds a change of a group from the ceilings that `read` finds.
///
/// # Errors
/// The first error of `read`.
pub(crate) fn of_group<E>(
    mut read: impl FnMut(&'static str) -> Result<NewCeiling, E>,
) -> Result<GroupChange, E> {
    let mut change = GroupChange::default();
    for ceiling in &CEILINGS {
        *(ceiling.of_group)(&mut change) = read(ceiling.field())?;
    }
    Ok(change)
}

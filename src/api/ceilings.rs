//! Ceilings on what a key or a group may spend in total, per month and per day. [`CEILINGS`] has the names, values and
//! labels of ceilings for the admin API, the endpoints for owner keys, commands, imports and pages.

use serde::{Deserialize, Serialize};
use tollgate_layers::{
    money::MicroRub,
    reserve::ledger::{GroupChange, GroupView, KeyChange, KeyView, PeriodView},
};

/// The amounts that a key or a group has spent in total, in this month and today, with their ceilings.
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
        Self::new(view.ceiling_rub, view.spent_rub, &view.month, &view.day)
    }
}

impl From<&GroupView> for Spending {
    fn from(view: &GroupView) -> Self {
        Self::new(view.ceiling_rub, view.spent_rub, &view.month, &view.day)
    }
}

/// A ceiling in a request that changes a key or a group. `None` leaves the ceiling unchanged, `Some(None)` removes it.
pub(crate) type NewCeiling = Option<Option<MicroRub>>;

/// The names, labels and accessors of the ceiling for one period: total, month or day.
pub(crate) struct Ceiling {
    /// JSON pointers to the ceiling, and to the amount spent in its period.
    pub(crate) pointers: (&'static str, &'static str),
    /// Column names in the output of commands: for the ceiling, for the amount spent, and for the amount spent if the
    /// column must be narrow.
    pub(crate) headings: (&'static str, &'static str, &'static str),
    /// The explanation of this ceiling in the help text of `tollgate import`.
    pub(crate) import_help: &'static str,
    /// Labels on the operators' pages: of the form field for the ceiling, of the column with the ceiling, and of the
    /// column with the amount spent.
    pub(crate) labels: (&'static str, &'static str, &'static str),
    /// The label of this ceiling on pages for a key's holder, in Russian and in English.
    pub(crate) holder_label: (&'static str, &'static str),
    of_key: fn(&mut KeyChange) -> &mut NewCeiling,
    of_group: fn(&mut GroupChange) -> &mut NewCeiling,
    value: fn(&Spending) -> (Option<MicroRub>, MicroRub),
}

impl Ceiling {
    pub(crate) const fn field(&self) -> &'static str {
        self.pointers.0.split_at(1).1
    }
}

impl Spending {
    const fn new(
        ceiling_rub: Option<MicroRub>,
        spent_rub: MicroRub,
        month: &PeriodView,
        day: &PeriodView,
    ) -> Self {
        Self {
            ceiling_rub,
            spent_rub,
            ceiling_month_rub: month.ceiling_rub,
            spent_month_rub: month.spent_rub,
            ceiling_day_rub: day.ceiling_rub,
            spent_day_rub: day.spent_rub,
        }
    }

    /// Returns each kind of ceiling with its current value, and with the amount spent in its period.
    pub(crate) fn rows(&self) -> [(&'static Ceiling, Option<MicroRub>, MicroRub); 3] {
        CEILINGS.each_ref().map(|ceiling| {
            let (value, spent) = (ceiling.value)(self);
            (ceiling, value, spent)
        })
    }
}

/// All kinds of ceilings, in the order in which they are shown.
pub(crate) static CEILINGS: [Ceiling; 3] = [
    Ceiling {
        pointers: ("/ceiling_rub", "/spent_rub"),
        headings: ("ceiling", "spent", "spent"),
        import_help: "maximum total spending of the key",
        labels: ("Total ceiling, ₽", "Ceiling, ₽", "Charged, ₽"),
        holder_label: ("Лимит за всё время, ₽", "Total ceiling, ₽"),
        of_key: |change| &mut change.ceiling,
        of_group: |change| &mut change.ceiling,
        value: |spending| (spending.ceiling_rub, spending.spent_rub),
    },
    Ceiling {
        pointers: ("/ceiling_month_rub", "/spent_month_rub"),
        headings: ("monthly ceiling", "spent this month", "month"),
        import_help: "maximum spending per month",
        labels: ("Monthly ceiling, ₽", "Monthly ceiling, ₽", "This month, ₽"),
        holder_label: ("Лимит за месяц, ₽", "Monthly ceiling, ₽"),
        of_key: |change| &mut change.ceiling_month,
        of_group: |change| &mut change.ceiling_month,
        value: |spending| (spending.ceiling_month_rub, spending.spent_month_rub),
    },
    Ceiling {
        pointers: ("/ceiling_day_rub", "/spent_day_rub"),
        headings: ("daily ceiling", "spent today", "today"),
        import_help: "maximum spending per day",
        labels: ("Daily ceiling, ₽", "Daily ceiling, ₽", "Today, ₽"),
        holder_label: ("Лимит за день, ₽", "Daily ceiling, ₽"),
        of_key: |change| &mut change.ceiling_day,
        of_group: |change| &mut change.ceiling_day,
        value: |spending| (spending.ceiling_day_rub, spending.spent_day_rub),
    },
];

pub(crate) fn fields() -> impl Iterator<Item = &'static str> {
    CEILINGS.iter().map(Ceiling::field)
}

/// Builds a change of a key's ceilings. `read` returns the requested change of each ceiling.
///
/// # Errors
/// The first error that `read` returns.
pub(crate) fn of_key<E>(
    mut read: impl FnMut(&'static str) -> Result<NewCeiling, E>,
) -> Result<KeyChange, E> {
    let mut change = KeyChange::default();
    for ceiling in &CEILINGS {
        *(ceiling.of_key)(&mut change) = read(ceiling.field())?;
    }
    Ok(change)
}

/// Builds a change of a group's ceilings. `read` returns the requested change of each ceiling.
///
/// # Errors
/// The first error that `read` returns.
pub(crate) fn of_group<E>(
    mut read: impl FnMut(&'static str) -> Result<NewCeiling, E>,
) -> Result<GroupChange, E> {
    let mut change = GroupChange::default();
    for ceiling in &CEILINGS {
        *(ceiling.of_group)(&mut change) = read(ceiling.field())?;
    }
    Ok(change)
}

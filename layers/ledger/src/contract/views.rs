//! Accounts, keys and holds as operators see them, and what they may change.

use serde::{Deserialize, Serialize};

use super::GroupView;
use crate::{
    account::{AccountId, GroupId, KeyId, KeyRecord, KeyStatus},
    ceiling::Ceilings,
    money::MicroRub,
    number::RequestNumber,
};
#[cfg(any(feature = "redis", feature = "sqlite"))]
use crate::{
    calendar::{day_of, month_of},
    ceiling::Period,
};

/// A hold that stands, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenHold {
    /// The call's number.
    pub number: RequestNumber,
    /// On which key.
    pub key: KeyId,
    /// How much.
    pub held_rub: MicroRub,
    /// Unix time in milliseconds when it ends by itself; `None` would be never (a breach of I8).
    pub due_ms: Option<u64>,
}

/// An account as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountView {
    /// Its id.
    pub id: AccountId,
    /// Its name.
    pub name: String,
    /// No call is admitted while true.
    #[serde(rename = "status", with = "status")]
    pub suspended: bool,
    /// Posted balance: top-ups and adjustments less charges.
    pub balance_rub: MicroRub,
    /// Held by running calls.
    pub held_rub: MicroRub,
    /// Balance less holds.
    pub free_rub: MicroRub,
    /// Charged so far.
    pub spent_rub: MicroRub,
    /// Costs that could not be charged.
    pub loss_rub: MicroRub,
    /// How many holds stand.
    #[serde(default)]
    pub holds_open: u64,
}

mod status {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(
        suspended: &bool,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if *suspended { "suspended" } else { "active" })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<bool, D::Error> {
        Ok(String::deserialize(deserializer)? == "suspended")
    }
}

/// A key as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    /// What it may do.
    #[serde(flatten)]
    pub record: KeyRecord,
    /// The most it may spend, if limited.
    pub ceiling_rub: Option<MicroRub>,
    /// Spent so far.
    pub spent_rub: MicroRub,
    /// Held by its running calls.
    pub held_rub: MicroRub,
    /// What it can spend now: the least of the account's free money and the rests of its ceilings.
    pub free_rub: MicroRub,
    /// The current month.
    pub month: PeriodView,
    /// The current day.
    pub day: PeriodView,
}

#[cfg(any(feature = "redis", feature = "sqlite"))]
impl KeyView {
    /// Its month and its day, as a ledger keeps them.
    pub(crate) fn periods(&self) -> (Period, Period) {
        periods(self.spent_rub, &self.month, &self.day)
    }
}

#[cfg(any(feature = "redis", feature = "sqlite"))]
impl GroupView {
    /// The same of a group.
    pub(crate) fn periods(&self) -> (Period, Period) {
        periods(self.spent_rub, &self.month, &self.day)
    }
}

#[cfg(any(feature = "redis", feature = "sqlite"))]
fn periods(spent: MicroRub, month: &PeriodView, day: &PeriodView) -> (Period, Period) {
    let period = |view: &PeriodView, index: fn(u64) -> u64| Period {
        index: index(view.resets_at_ms.saturating_sub(1)),
        before: spent.minus_or_zero(view.spent_rub),
    };
    (period(month, month_of), period(day, day_of))
}

/// What a key may spend and has spent in a day or a month of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodView {
    /// The most it may spend in it, if limited.
    pub ceiling_rub: Option<MicroRub>,
    /// Spent in it so far.
    pub spent_rub: MicroRub,
    /// When the next one begins, in Unix milliseconds.
    pub resets_at_ms: u64,
}

/// An account with all that belongs to it, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountBooks {
    /// Its money.
    #[serde(flatten)]
    pub view: AccountView,
    /// The sum of all its entries, those among them that the journal may have forgotten.
    pub entered_rub: MicroRub,
    /// Its keys, by id; deleted ones too.
    pub keys: Vec<KeyView>,
    /// Its groups of keys, by id; removed ones too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupView>,
    /// Its holds, by number.
    pub holds: Vec<OpenHold>,
    /// How far the journal went at that moment.
    pub journal_end: String,
    /// The journal has forgotten nothing: its sums are those of the books.
    pub journal_complete: bool,
}

/// A change of a key. `None` leaves a field alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChange {
    /// The operator's name for it.
    pub name: Option<String>,
    /// Enabled, disabled or deleted. A deleted key stays deleted.
    pub status: Option<KeyStatus>,
    /// The ceiling; `Some(None)` takes it away.
    pub ceiling: Option<Option<MicroRub>>,
    /// The ceiling of a month; `Some(None)` takes it away.
    pub ceiling_month: Option<Option<MicroRub>>,
    /// The ceiling of a day; `Some(None)` takes it away.
    pub ceiling_day: Option<Option<MicroRub>>,
    /// Catalog names it may call.
    pub models: Option<Vec<String>>,
    /// Addresses it may be used from.
    pub addresses: Option<Vec<ipnet::IpNet>>,
    /// Requests per second; `Some(None)` takes the limit away.
    pub requests_per_second: Option<Option<u32>>,
    /// Requests per minute; `Some(None)` takes the limit away.
    pub requests_per_minute: Option<Option<u32>>,
    /// Tokens per minute; `Some(None)` takes the limit away.
    pub tokens_per_minute: Option<Option<u32>>,
    /// The group of keys that it spends with; `Some(None)` takes it out of its group.
    pub group: Option<Option<GroupId>>,
    /// How many of its calls may be open at once; `Some(None)` takes the limit away.
    pub concurrency: Option<Option<u32>>,
    /// Whether answers to calls with an idempotency key are kept.
    pub idempotency: Option<bool>,
    /// When it expires; `Some(None)` means never.
    pub expires_at_ms: Option<Option<u64>>,
    /// When it was changed.
    pub changed_at_ms: Option<u64>,
}

impl KeyChange {
    /// What the change makes of a key's ceilings.
    #[must_use]
    pub fn ceilings(&self, before: Ceilings) -> Ceilings {
        Ceilings {
            total: self.ceiling.unwrap_or(before.total),
            month: self.ceiling_month.unwrap_or(before.month),
            day: self.ceiling_day.unwrap_or(before.day),
        }
    }

    /// Writes the change into a record, its ceilings apart.
    pub fn apply(self, record: &mut KeyRecord) {
        fn set<T>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        set(&mut record.name, self.name);
        // It would not be an owner key any more.
        if !record.is_owner() {
            set(&mut record.models, self.models);
        }
        set(&mut record.addresses, self.addresses);
        set(&mut record.requests_per_second, self.requests_per_second);
        set(&mut record.requests_per_minute, self.requests_per_minute);
        set(&mut record.tokens_per_minute, self.tokens_per_minute);
        set(&mut record.group, self.group);
        set(&mut record.concurrency, self.concurrency);
        set(&mut record.idempotency, self.idempotency);
        set(&mut record.expires_at_ms, self.expires_at_ms);
        set(&mut record.changed_at_ms, self.changed_at_ms);
        if record.status != KeyStatus::Deleted {
            set(&mut record.status, self.status);
        }
    }
}

//! Accounts, keys and holds as operators see them, and the changes that operators make.

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

/// An open hold, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenHold {
    /// The call's number.
    pub number: RequestNumber,
    /// The key that the call is made with.
    pub key: KeyId,
    /// The amount held.
    pub held_rub: MicroRub,
    /// Unix time in milliseconds at which the hold expires. `None` means never, which is a breach of invariant I8.
    pub due_ms: Option<u64>,
}

/// An account as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountView {
    /// The account's id.
    pub id: AccountId,
    /// The account's display name.
    pub name: String,
    /// If true, every call of the account is refused.
    #[serde(rename = "status", with = "status")]
    pub suspended: bool,
    /// The posted balance: payments and corrections minus charges.
    pub balance_rub: MicroRub,
    /// The sum of the account's open holds.
    pub held_rub: MicroRub,
    /// The balance minus the holds.
    pub free_rub: MicroRub,
    /// The sum of the account's charges.
    pub spent_rub: MicroRub,
    /// The sum of costs that could not be charged.
    pub loss_rub: MicroRub,
    /// The number of the account's open holds.
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
    /// The key's settings.
    #[serde(flatten)]
    pub record: KeyRecord,
    /// The most that the key may spend, if it has a ceiling.
    pub ceiling_rub: Option<MicroRub>,
    /// The key's spending so far.
    pub spent_rub: MicroRub,
    /// The amount that the key's running calls hold.
    pub held_rub: MicroRub,
    /// The amount that the key can spend now: the account's free money, or what is left under one of the key's ceilings
    /// if that is less.
    pub free_rub: MicroRub,
    /// The ceiling and the spending of the current month.
    pub month: PeriodView,
    /// The ceiling and the spending of the current day.
    pub day: PeriodView,
}

#[cfg(any(feature = "redis", feature = "sqlite"))]
impl KeyView {
    /// Returns the month and the day, as a ledger stores them.
    pub(crate) fn periods(&self) -> (Period, Period) {
        periods(self.spent_rub, &self.month, &self.day)
    }
}

#[cfg(any(feature = "redis", feature = "sqlite"))]
impl GroupView {
    /// Returns the month and the day, as a ledger stores them.
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

/// Ceiling and spending of a key or a group in a month or day (UTC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodView {
    /// The most that may be spent in the period, if limited.
    pub ceiling_rub: Option<MicroRub>,
    /// The spending in the period so far.
    pub spent_rub: MicroRub,
    /// The time at which the next period begins, in Unix milliseconds.
    pub resets_at_ms: u64,
}

/// An account with everything that belongs to it, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountBooks {
    /// The account's settings and money.
    #[serde(flatten)]
    pub view: AccountView,
    /// The sum of all entries, including those that the journal has dropped.
    pub entered_rub: MicroRub,
    /// The account's keys, by id, including deleted keys.
    pub keys: Vec<KeyView>,
    /// The account's groups of keys, by id, including removed groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupView>,
    /// The account's open holds, by call number.
    pub holds: Vec<OpenHold>,
    /// The position of the journal's end when these books were read.
    pub journal_end: String,
    /// Whether the journal has all its lines. If so, the sums of the journal equal those of the books.
    pub journal_complete: bool,
}

/// A change of a key. A field that is `None` is not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChange {
    /// The key's new name.
    pub name: Option<String>,
    /// Enables, disables or deletes the key. A deleted key stays deleted.
    pub status: Option<KeyStatus>,
    /// The new ceiling in total; `Some(None)` removes it.
    pub ceiling: Option<Option<MicroRub>>,
    /// The new ceiling per month; `Some(None)` removes it.
    pub ceiling_month: Option<Option<MicroRub>>,
    /// The new ceiling per day; `Some(None)` removes it.
    pub ceiling_day: Option<Option<MicroRub>>,
    /// Catalog names of the models that the key may call.
    pub models: Option<Vec<String>>,
    /// The client addresses from which the key may be used.
    pub addresses: Option<Vec<ipnet::IpNet>>,
    /// The limit of requests per second; `Some(None)` removes it.
    pub requests_per_second: Option<Option<u32>>,
    /// The limit of requests per minute; `Some(None)` removes it.
    pub requests_per_minute: Option<Option<u32>>,
    /// The limit of tokens per minute; `Some(None)` removes it.
    pub tokens_per_minute: Option<Option<u32>>,
    /// The group whose ceilings the key shares; `Some(None)` removes the key from its group.
    pub group: Option<Option<GroupId>>,
    /// The maximum number of calls that may be open at once; `Some(None)` removes the limit.
    pub concurrency: Option<Option<u32>>,
    /// Whether answers to calls with an idempotency key are stored.
    pub idempotency: Option<bool>,
    /// Whether holds of the key may grow with the output.
    pub growing_holds: Option<bool>,
    /// Unix time in milliseconds at which the key expires; `Some(None)` means never.
    pub expires_at_ms: Option<Option<u64>>,
    /// The time of the change, in Unix milliseconds.
    pub changed_at_ms: Option<u64>,
}

impl KeyChange {
    /// Applies the change to ceilings and returns the result.
    #[must_use]
    pub fn ceilings(&self, before: Ceilings) -> Ceilings {
        Ceilings {
            total: self.ceiling.unwrap_or(before.total),
            month: self.ceiling_month.unwrap_or(before.month),
            day: self.ceiling_day.unwrap_or(before.day),
        }
    }

    /// Applies the change to a record. The record does not contain the ceilings, so they are not changed here.
    pub fn apply(self, record: &mut KeyRecord) {
        fn set<T>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        set(&mut record.name, self.name);
        // A special entry in a key's list of models makes it an owner key, so the list of an owner key must not change.
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
        set(&mut record.growing_holds, self.growing_holds);
        set(&mut record.expires_at_ms, self.expires_at_ms);
        set(&mut record.changed_at_ms, self.changed_at_ms);
        if record.status != KeyStatus::Deleted {
            set(&mut record.status, self.status);
        }
    }
}

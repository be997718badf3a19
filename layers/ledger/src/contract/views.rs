//! Accounts, keys and holds in the form that operators see, and the changes that operators make to them.

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
    /// The key with which the call was made.
    pub key: KeyId,
    /// The amount that the hold reserves.
    pub held_rub: MicroRub,
    /// Unix time in milliseconds at which the hold expires. `None` means that it never expires, which breaks the
    /// invariant I8.
    pub due_ms: Option<u64>,
}

/// An account as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountView {
    /// The account's id.
    pub id: AccountId,
    /// The account's display name.
    pub name: String,
    /// Whether the account is suspended; all calls of a suspended account are refused.
    #[serde(rename = "status", with = "status")]
    pub suspended: bool,
    /// The balance: payments and corrections minus charges. Open holds are not subtracted.
    pub balance_rub: MicroRub,
    /// The sum of the account's open holds: the part of the balance that is reserved.
    pub held_rub: MicroRub,
    /// The balance minus the sum of the open holds.
    pub free_rub: MicroRub,
    /// The sum of all charges since the account was opened.
    pub spent_rub: MicroRub,
    /// The sum of the costs that could not be charged to the account.
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
    /// The most that the key may spend in total; `None` if there is no such ceiling.
    pub ceiling_rub: Option<MicroRub>,
    /// The key's spending since it was created.
    pub spent_rub: MicroRub,
    /// The amount that the key's in-flight calls hold.
    pub held_rub: MicroRub,
    /// The amount that the key can spend now: the account's free money, or the remainder under one of the key's
    /// ceilings if that is less.
    pub free_rub: MicroRub,
    /// The ceiling and the spending of the current month.
    pub month: PeriodView,
    /// The ceiling and the spending of the current day.
    pub day: PeriodView,
}

#[cfg(any(feature = "redis", feature = "sqlite"))]
impl KeyView {
    #[cfg(feature = "redis")]
    pub(crate) const fn ceilings(&self) -> Ceilings {
        Ceilings {
            total: self.ceiling_rub,
            month: self.month.ceiling_rub,
            day: self.day.ceiling_rub,
        }
    }

    /// Returns the current month and the current day of this key, in the form in which a ledger stores them.
    pub(crate) fn periods(&self) -> (Period, Period) {
        periods(self.spent_rub, &self.month, &self.day)
    }
}

#[cfg(any(feature = "redis", feature = "sqlite"))]
impl GroupView {
    /// Returns the current month and the current day of this group, in the form in which a ledger stores them.
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

/// The ceiling and the spending of a key or a group in one calendar month or day (UTC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodView {
    /// The most that may be spent in the month or day; `None` if there is no such ceiling.
    pub ceiling_rub: Option<MicroRub>,
    /// The spending in the month or day so far.
    pub spent_rub: MicroRub,
    /// Unix time in milliseconds at which the next month or day begins.
    pub resets_at_ms: u64,
}

/// An account with its keys, groups and open holds, read at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountBooks {
    /// The account's name, state and money.
    #[serde(flatten)]
    pub view: AccountView,
    /// The sum of all entries ever booked, including entries that the journal does not contain any more.
    pub entered_rub: MicroRub,
    /// The account's keys, including deleted keys, sorted by id.
    pub keys: Vec<KeyView>,
    /// The account's groups of keys, including removed groups, sorted by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupView>,
    /// The account's open holds, sorted by call number.
    pub holds: Vec<OpenHold>,
    /// The position of the journal's last line at the moment when these books were read.
    pub journal_end: String,
    /// Whether the journal still contains every line ever booked. If so, sums over the journal equal the sums in these
    /// books.
    pub journal_complete: bool,
}

/// A change of a key. A field that is `None` is not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChange {
    /// The key's new name.
    pub name: Option<String>,
    /// Enables, disables or deletes the key. A deletion cannot be undone.
    pub status: Option<KeyStatus>,
    /// The new ceiling over the key's whole life; `Some(None)` removes the ceiling.
    pub ceiling: Option<Option<MicroRub>>,
    /// The new ceiling per month; `Some(None)` removes the ceiling.
    pub ceiling_month: Option<Option<MicroRub>>,
    /// The new ceiling per day; `Some(None)` removes the ceiling.
    pub ceiling_day: Option<Option<MicroRub>>,
    /// The catalog names of the models that the key may call.
    pub models: Option<Vec<String>>,
    /// The client addresses from which the key may be used.
    pub addresses: Option<Vec<ipnet::IpNet>>,
    /// The new limit of requests per second; `Some(None)` removes the limit.
    pub requests_per_second: Option<Option<u32>>,
    /// The new limit of requests per minute; `Some(None)` removes the limit.
    pub requests_per_minute: Option<Option<u32>>,
    /// The new limit of tokens per minute; `Some(None)` removes the limit.
    pub tokens_per_minute: Option<Option<u32>>,
    /// The group whose ceilings apply to the key; `Some(None)` removes the key from its group.
    pub group: Option<Option<GroupId>>,
    /// How many calls of the key may be open at once; `Some(None)` removes the limit.
    pub concurrency: Option<Option<u32>>,
    /// Whether the gateway stores the answers to the key's calls that have an idempotency key.
    pub idempotency: Option<bool>,
    /// Whether a hold of the key starts small and grows with the output of its call.
    pub growing_holds: Option<bool>,
    /// Unix time in milliseconds at which the key expires; `Some(None)` means that it never expires.
    pub expires_at_ms: Option<Option<u64>>,
    /// Unix time in milliseconds at which the change is made.
    pub changed_at_ms: Option<u64>,
}

impl KeyChange {
    /// Applies this change to the ceilings `before`, and returns the new ceilings.
    #[must_use]
    pub fn ceilings(&self, before: Ceilings) -> Ceilings {
        Ceilings {
            total: self.ceiling.unwrap_or(before.total),
            month: self.ceiling_month.unwrap_or(before.month),
            day: self.ceiling_day.unwrap_or(before.day),
        }
    }

    /// Applies this change to a key's record. [`KeyChange::ceilings`] applies the change to the ceilings, which are not
    /// part of the record.
    pub fn apply(self, record: &mut KeyRecord) {
        fn set<T>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        set(&mut record.name, self.name);
        // An owner key is marked by a special entry in its list of models, so this list must not be replaced.
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

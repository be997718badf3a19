//! Groups of keys: which key is in which group, and the money of a group.

use std::collections::BTreeMap;

use super::{Account, GroupBook, KeyBook, Millis, Rejection};
use crate::{
    account::{GroupId, KeyId},
    ceiling::Ceilings,
    contract::{GroupRecord, GroupView, KeyView},
    happening::Happening,
    money::MicroRub,
    number::RequestNumber,
};

impl Account {
    /// Creates a group, or changes its name and ceilings.
    pub fn set_group(&mut self, id: &GroupId, name: &str, ceilings: Ceilings, removed: bool) {
        let group = self.groups.entry(id.clone()).or_default();
        name.clone_into(&mut group.name);
        group.money.ceilings = ceilings;
        group.money.enabled = !removed;
        group.removed = removed;
    }

    /// Adds a group that was read from a store.
    pub fn restore_group(&mut self, id: GroupId, group: GroupBook) {
        self.groups.insert(id, group);
    }

    /// Returns the group with this id.
    #[must_use]
    pub fn group(&self, id: &GroupId) -> Option<&GroupBook> {
        self.groups.get(id)
    }

    /// Returns the group with this id, to change its alert levels.
    pub fn group_mut(&mut self, id: &GroupId) -> Option<&mut GroupBook> {
        self.groups.get_mut(id)
    }

    /// Iterates over all groups with their ids.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (&GroupId, &GroupBook)> {
        self.groups.iter()
    }

    /// Returns the group that a key is in; `None` if it is in no group.
    #[must_use]
    pub fn group_of(&self, key: &KeyId) -> Option<&GroupId> {
        self.group_of.get(key)
    }

    /// Moves a key with its holds into a group, or out of its group, and sets the limit of the key's open calls.
    ///
    /// # Errors
    /// A [`Rejection`] if the key or the group does not exist.
    pub fn bind(
        &mut self,
        id: &KeyId,
        group: Option<&GroupId>,
        concurrency: Option<u32>,
    ) -> Result<(), Rejection> {
        self.limits_calls |= concurrency.is_some();
        let key = self.keys.get_mut(id).ok_or(Rejection::NotFound)?;
        let before = self.group_of.get(id);
        if before == group {
            key.concurrency = concurrency;
            return Ok(());
        }
        if let Some(group) = group {
            let joined = self.groups.get_mut(group);
            let joined = joined.filter(|group| !group.removed);
            let joined = joined.ok_or(Rejection::NoGroup)?;
            joined.money.held = joined.money.held.plus_or_max(key.held);
            joined.carried = plus(joined.carried, -key.used.micro());
        }
        if let Some(left) = before.and_then(|before| self.groups.get_mut(before)) {
            left.money.held = left.money.held.minus_or_zero(key.held);
            left.carried = plus(left.carried, key.used.micro());
        }
        key.concurrency = concurrency;
        match group {
            Some(group) => self.group_of.insert(id.clone(), group.clone()),
            None => self.group_of.remove(id),
        };
        Ok(())
    }

    /// Adds a key to its group; both were read from a store.
    pub fn restore_member(&mut self, key: &KeyId, group: &GroupId) {
        self.group_of.insert(key.clone(), group.clone());
    }

    pub(super) fn money_of_group(&self, key: &KeyId) -> Option<&KeyBook> {
        money_in(&self.groups, &self.group_of, key)
    }

    pub(super) fn money_of_group_mut(&mut self, key: &KeyId) -> Option<&mut KeyBook> {
        if self.group_of.is_empty() {
            return None;
        }
        let group = self.group_of.get(key)?;
        Some(&mut self.groups.get_mut(group)?.money)
    }

    /// Adds a charge of a key to the spending of the key's group, and emits the group's events.
    pub(super) fn charge_group(
        &mut self,
        key: &KeyId,
        charged: MicroRub,
        now: Millis,
        by: RequestNumber,
    ) {
        let Some(money) = self.money_of_group_mut(key) else {
            return;
        };
        let reported = money.spend(charged, now, by);
        let id = self.group_of.get(key).cloned();
        self.happened.extend(reported.into_iter().map(|mut what| {
            if let Happening::CeilingLow { group, .. } | Happening::CeilingReached { group, .. } =
                &mut what
            {
                group.clone_from(&id);
            }
            (None, what)
        }));
    }

    /// Returns the group as operators see it.
    #[must_use]
    pub fn group_view(&self, id: &GroupId, now: Millis) -> Option<GroupView> {
        let group = self.groups.get(id)?;
        let record = GroupRecord {
            id: id.clone(),
            name: group.name.clone(),
            removed: group.removed,
        };
        Some(group.view(record, self.balance.minus_or_zero(self.held), now))
    }
}

/// Returns the money of a key's group. A function without `self`, for callers that have already borrowed other fields
/// of the account.
pub(super) fn money_in<'a>(
    groups: &'a BTreeMap<GroupId, GroupBook>,
    group_of: &BTreeMap<KeyId, GroupId>,
    key: &KeyId,
) -> Option<&'a KeyBook> {
    // Most accounts have no groups.
    if group_of.is_empty() {
        return None;
    }
    Some(&groups.get(group_of.get(key)?)?.money)
}

impl GroupBook {
    /// Returns the group as operators see it. `account` is the free money of its account.
    #[must_use]
    pub fn view(&self, record: GroupRecord, account: MicroRub, now: Millis) -> GroupView {
        let (month, day) = self.money.periods(now);
        GroupView {
            record,
            ceiling_rub: self.money.ceilings.total,
            spent_rub: self.money.used,
            held_rub: self.money.held,
            free_rub: self.money.room(account, MicroRub::ZERO, now).0,
            month,
            day,
            carried_rub: self.carried,
        }
    }

    /// Reduces the free money in a key's view to what the group's ceilings allow.
    #[must_use]
    pub fn bounds(&self, key: KeyView, now: Millis) -> KeyView {
        KeyView {
            free_rub: self.money.room(key.free_rub, MicroRub::ZERO, now).0,
            ..key
        }
    }
}

fn plus(amount: MicroRub, change: i64) -> MicroRub {
    MicroRub::of_sum(i128::from(amount.micro()) + i128::from(change))
}

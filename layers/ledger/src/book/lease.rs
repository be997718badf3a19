//! Operations on a book for `leases/model.rs`, the model of a ledger with leases. To the book, a lease is a hold from
//! which many calls are paid.

use super::{Account, Book, Millis, Open, hold::Bound};
use crate::{
    account::{AccountId, KeyId},
    contract::{Booked, Refusal, Settled},
    money::MicroRub,
    number::RequestNumber,
};

impl Book {
    /// Sets the amount and the expiry of a hold. Creates the hold if it does not exist.
    pub(crate) fn resize_hold(
        &mut self,
        number: RequestNumber,
        id: &AccountId,
        key: &KeyId,
        amount: MicroRub,
        due: Millis,
    ) {
        let Some(account) = self.accounts.get_mut(id) else {
            return;
        };
        if let Some(before) = account.close(number) {
            debug_assert_eq!(before.key, *key, "all turns of a lease have the same key");
        }
        account.held = account.held.plus_or_max(amount);
        if let Some(key) = account.keys.get_mut(key) {
            key.held = key.held.plus_or_max(amount);
            key.calls = key.calls.saturating_add(1);
        }
        if let Some(group) = account.money_of_group_mut(key) {
            group.held = group.held.plus_or_max(amount);
        }
        account.due.insert((due, number));
        let open = Open {
            key: key.clone(),
            held: amount,
            want: MicroRub::ZERO,
            least: MicroRub::ZERO,
            due,
            adjusted: 0,
        };
        account.open.insert(number, open);
        self.watch(id);
    }

    /// Returns the result of a hold that ended recently, if the book still has its tombstone.
    pub(crate) fn buried(
        &mut self,
        number: RequestNumber,
        id: &AccountId,
        now: Millis,
    ) -> Option<Settled> {
        let account = self.accounts.get_mut(id)?;
        account.forget_tombstones(now);
        account.tombstones.get(&number).copied()
    }

    /// Ends a hold without leaving a tombstone.
    pub(crate) fn end_hold(&mut self, number: RequestNumber, id: &AccountId) {
        if let Some(account) = self.accounts.get_mut(id) {
            account.close(number);
        }
    }
}

impl Account {
    /// Returns a hold's key, amount and expiry.
    pub(crate) fn hold(&self, number: RequestNumber) -> Option<(&KeyId, MicroRub, Millis)> {
        let open = self.open.get(&number)?;
        Some((&open.key, open.held, open.due))
    }

    /// Returns the key of a hold that has expired.
    pub(crate) fn expired_hold(&self, number: RequestNumber) -> Option<&KeyId> {
        self.expired.get(&number).map(|expired| &expired.key)
    }

    /// Returns whether every hold on the key is refused, whatever its amount.
    pub(crate) fn refuses(&self, key: &KeyId, now: Millis) -> Option<Refusal> {
        self.admits(key, now).err()
    }

    /// Returns whether the key or its group has spent and holds more than a ceiling allows, because the ceiling was
    /// lowered.
    pub(crate) fn is_over_a_ceiling(&self, id: &KeyId, now: Millis) -> bool {
        let Some(key) = self.keys.get(id) else {
            return false;
        };
        let over = |held: MicroRub, bound: Bound| bound.spent.plus_or_max(held) > bound.limit;
        let group = self.money_of_group(id);
        key.bounds(now).any(|bound| over(key.held, bound))
            || group.is_some_and(|group| group.bounds(now).any(|bound| over(group.held, bound)))
    }

    /// Charges a call of a lease. The lease's hold pays the part `cover` of the cost, free money pays the rest.
    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of a charge in the journal"
    )]
    pub(crate) fn charge_from(
        &mut self,
        lease: RequestNumber,
        number: RequestNumber,
        key: &KeyId,
        cost: MicroRub,
        cover: MicroRub,
        booked: Booked,
        now: Millis,
    ) -> Settled {
        if let Some(open) = self.open.get_mut(&lease) {
            open.held = open.held.minus_or_zero(cover);
            self.held = self.held.minus_or_zero(cover);
            if let Some(key) = self.keys.get_mut(key) {
                key.held = key.held.minus_or_zero(cover);
            }
            if let Some(group) = self.money_of_group_mut(key) {
                group.held = group.held.minus_or_zero(cover);
            }
        }
        let settled = self.charge(number, key, cost, cover, booked, now);
        self.happened.clear();
        settled
    }
}

//! Operations on a book for `leases/model.rs`, the model of a ledger with leases. In a book, a lease is a hold from
//! which many calls are paid.

use super::{Account, Book, Millis, Open, hold::Bound};
use crate::{
    account::{AccountId, KeyId},
    contract::{Booked, Refusal, Settled},
    money::MicroRub,
    number::RequestNumber,
};

impl Book {
    /// Sets the amount and the expiry time of a hold. Creates the hold if it does not exist.
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
            debug_assert_eq!(before.key, *key, "every turn of a lease names the same key");
        }
        let open = Open {
            key: key.clone(),
            held: amount,
            want: MicroRub::ZERO,
            least: MicroRub::ZERO,
            due,
            adjusted: 0,
        };
        account.add_hold(number, open);
        self.watch(id);
    }

    /// Returns the result of a hold that ended recently, if its tombstone still exists.
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
    /// Returns the key, the amount and the expiry time of a hold.
    pub(crate) fn hold(&self, number: RequestNumber) -> Option<(&KeyId, MicroRub, Millis)> {
        let open = self.open.get(&number)?;
        Some((&open.key, open.held, open.due))
    }

    pub(crate) fn expired_hold(&self, number: RequestNumber) -> Option<&KeyId> {
        self.expired.get(&number).map(|expired| &expired.key)
    }

    /// Returns the reason why every hold of the key is refused, whatever its amount; `None` if no such reason exists.
    pub(crate) fn refuses(&self, key: &KeyId, now: Millis) -> Option<Refusal> {
        self.admits(key, now).err()
    }

    /// Returns whether the spending and the holds of the key, or of its group, exceed a ceiling, because the ceiling
    /// was lowered.
    pub(crate) fn is_over_a_ceiling(&self, id: &KeyId, now: Millis) -> bool {
        let Some(key) = self.keys.get(id) else {
            return false;
        };
        let over = |held: MicroRub, bound: Bound| bound.spent.plus_or_max(held) > bound.limit;
        let group = self.money_of_group(id);
        key.bounds(now).any(|bound| over(key.held, bound))
            || group.is_some_and(|group| group.bounds(now).any(|bound| over(group.held, bound)))
    }

    /// Charges a call whose money was held in a lease. The lease pays the part `cover` of the cost, and free money pays
    /// the remainder.
    #[expect(
        clippy::too_many_arguments,
        reason = "these are the fields of a charge in the journal"
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
            self.change_held(key, |sum| sum.minus_or_zero(cover));
        }
        let settled = self.charge(number, key, cost, cover, booked, now);
        self.happened.clear();
        settled
    }
}

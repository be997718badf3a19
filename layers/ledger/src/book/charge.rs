//! The commands that move money: ENTER, SETTLE and RELEASE. An ended hold leaves a tombstone: the stored result, which
//! a repeated command returns.

use super::{Account, Book, Millis, Open, Rejection, TOMBSTONE_MS, group::money_in};
use crate::{
    account::{AccountId, KeyId},
    contract::{Booked, Entry, Settled},
    money::MicroRub,
    number::RequestNumber,
};

impl Book {
    /// Adds a payment or a correction to the balance, once per id.
    ///
    /// # Errors
    /// A [`Rejection`] if the account is unknown, if an entry with this id has another amount, or if the balance would
    /// be out of range.
    pub fn enter(&mut self, account: &AccountId, entry: &Entry) -> Result<(), Rejection> {
        let account = self.accounts.get_mut(account).ok_or(Rejection::NotFound)?;
        match account.entries.get(&entry.id) {
            Some(amount) if *amount == entry.amount => return Ok(()),
            Some(_) => return Err(Rejection::Exists),
            None => {}
        }
        let balance = account
            .balance
            .checked_add(entry.amount)
            .ok_or(Rejection::AboveMax)?;
        if entry.amount < MicroRub::ZERO && balance < account.held {
            return Err(Rejection::BelowHeld);
        }
        account.remember_entry(&entry.id, entry.amount);
        let before = std::mem::replace(&mut account.balance, balance);
        account.emit_entry_events(entry, before);
        Ok(())
    }

    /// Charges a call and ends its hold. Charges a call at most once.
    pub fn settle(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
        cost: MicroRub,
        fresh: bool,
        now: Millis,
    ) -> Settled {
        let Some(account) = self.accounts.get_mut(account) else {
            return Settled::nothing(Booked::NoAccount);
        };
        account.forget_tombstones(now);
        if let Some(first) = account.tombstones.get(&number) {
            return Settled {
                repeated: true,
                ..*first
            };
        }
        let open = account.open.get(&number).map(|open| &open.key);
        let expired = account.expired.get(&number).map(|expired| &expired.key);
        let (held, booked) = match (open, expired) {
            // If the settlement names another key than the hold, no money moves.
            (Some(other), _) | (None, Some(other)) if other != key => {
                return Settled::nothing(Booked::Stale);
            }
            (Some(_), _) => {
                let closed = account.close(number);
                (
                    closed.map_or(MicroRub::ZERO, |open| open.held),
                    Booked::Held,
                )
            }
            (None, Some(_)) => {
                account.expired.remove(&number);
                (MicroRub::ZERO, Booked::Late)
            }
            (None, None) if fresh && account.keys.contains_key(key) => {
                (MicroRub::ZERO, Booked::Forced)
            }
            (None, None) => return Settled::nothing(Booked::Stale),
        };
        let settled = account.charge(number, key, cost, held, booked, now);
        account.bury(number, settled, now);
        settled
    }

    /// Charges a call and ends its hold, without a tombstone. Only the book of a lease uses this function: a repeated
    /// settlement is answered by the ledger, not by this book. Returns the amount that could be charged; `None` if the
    /// key has no such hold.
    #[cfg(feature = "redis")]
    pub(crate) fn settle_and_forget(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
        cost: MicroRub,
        now: Millis,
    ) -> Option<MicroRub> {
        let account = self.accounts.get_mut(account)?;
        let open = account.open.get(&number);
        if open.is_some_and(|open| open.key == *key) {
            let held = account.close(number)?.held;
            let settled = account.charge(number, key, cost, held, Booked::Held, now);
            // The event of this charge is emitted by the ledger and not by the lease's book.
            account.happened.clear();
            return Some(settled.charged);
        }
        // The money of the hold became free when the hold expired, so this book charges nothing.
        (account.forget_expired(number, key)).then_some(MicroRub::ZERO)
    }

    /// Ends a hold without a charge and without a tombstone. Returns whether the hold existed.
    #[cfg(feature = "redis")]
    pub(crate) fn release_and_forget(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> bool {
        let Some(account) = self.accounts.get_mut(account) else {
            return false;
        };
        account.close(number).is_some() || account.forget_expired(number, key)
    }

    /// Ends a hold without a charge. If a RESERVE for the same call arrives later, it is refused.
    pub fn release(&mut self, number: RequestNumber, account: &AccountId, now: Millis) {
        let Some(account) = self.accounts.get_mut(account) else {
            return;
        };
        account.forget_tombstones(now);
        if account.tombstones.contains_key(&number) {
            return;
        }
        account.close(number);
        account.expired.remove(&number);
        account.bury(number, Settled::nothing(Booked::Released), now);
    }
}

impl Account {
    /// Returns the sum of all charges so far, over all keys.
    #[must_use]
    pub fn spent(&self) -> MicroRub {
        self.keys
            .values()
            .fold(MicroRub::ZERO, |sum, key| sum.plus_or_max(key.used))
    }

    pub(super) fn remember_entry(&mut self, id: &str, amount: MicroRub) {
        self.entries.insert(id.to_owned(), amount);
        self.entered += i128::from(amount.micro());
    }

    /// Removes an open hold, and subtracts it from all sums of holds.
    pub(super) fn close(&mut self, number: RequestNumber) -> Option<Open> {
        let open = self.open.remove(&number)?;
        self.due.remove(&(open.due, number));
        self.change_held(&open.key, |sum| sum.minus_or_zero(open.held));
        if let Some(key) = self.keys.get_mut(&open.key) {
            key.calls = key.calls.saturating_sub(1);
        }
        Some(open)
    }

    /// Changes the sums of the holds of the account, of a key, and of the key's group.
    pub(super) fn change_held(&mut self, key: &KeyId, change: impl Fn(MicroRub) -> MicroRub) {
        self.held = change(self.held);
        if let Some(key) = self.keys.get_mut(key) {
            key.held = change(key.held);
        }
        if let Some(group) = self.money_of_group_mut(key) {
            group.held = change(group.held);
        }
    }

    #[cfg(feature = "redis")]
    fn forget_expired(&mut self, number: RequestNumber, key: &KeyId) -> bool {
        let known = self.expired.get(&number);
        known.is_some_and(|expired| expired.key == *key) && self.expired.remove(&number).is_some()
    }

    /// Charges the cost, but at most the hold plus the free money. The remainder of the cost is a loss. Held money is
    /// charged even if a ceiling was lowered after the hold was granted.
    pub(super) fn charge(
        &mut self,
        number: RequestNumber,
        key: &KeyId,
        cost: MicroRub,
        held: MicroRub,
        booked: Booked,
        now: Millis,
    ) -> Settled {
        let account = self.balance.minus_or_zero(self.held.plus_or_max(held));
        let money = self.keys.get_mut(key);
        let group = money_in(&self.groups, &self.group_of, key);
        let free_beside_hold = match &money {
            None => MicroRub::ZERO,
            Some(money) => money.room_in(group, account, held, now).0,
        };
        let charged = cost.min(held.plus_or_max(free_beside_hold));
        let loss = cost.minus_or_zero(charged);
        let left = self.balance.minus_or_zero(charged);
        let before = std::mem::replace(&mut self.balance, left);
        self.loss = self.loss.plus_or_max(loss);
        if let Some(money) = money {
            let passed = money.spend(charged, now, number);
            let passed = passed.into_iter().map(|what| (Some(key.clone()), what));
            self.happened.extend(passed);
            self.charge_group(key, charged, now, number);
        }
        if let Some(level) = self.levels.passed(before, left) {
            self.tell_low(level, number.to_string());
        }
        Settled {
            booked,
            charged,
            loss,
            repeated: false,
        }
    }

    pub(super) fn bury(&mut self, number: RequestNumber, result: Settled, now: Millis) {
        self.tombstones.insert(number, result);
        self.tombstones_by_age.push_back((now, number));
    }

    pub(super) fn forget_tombstones(&mut self, now: Millis) {
        while let Some(&(at, number)) = self.tombstones_by_age.front() {
            if now.saturating_sub(at) < TOMBSTONE_MS {
                break;
            }
            self.tombstones_by_age.pop_front();
            self.tombstones.remove(&number);
        }
    }
}

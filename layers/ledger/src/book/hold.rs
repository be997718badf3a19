//! The commands that hold money (RESERVE, EXTEND, ADJUST, PROBE), and the computation of how much a key may still hold.

use std::{mem, time::Duration};

use super::{Account, Book, EXPIRE_ON_RESERVE_MAX, KeyBook, Millis, Open, millis};
use crate::{
    account::{AccountId, KeyId, KeyRecord},
    calendar::{day_begins_ms, day_of, month_begins_ms, month_of},
    ceiling::{Ceiling, Ceilings, Period},
    contract::{Adjusted, Adjustment, Hold, KeyView, PeriodView, Refusal, Reserved},
    money::MicroRub,
    number::RequestNumber,
};

impl Book {
    /// Makes a hold for a call (invariant I1).
    ///
    /// # Errors
    /// A [`Refusal`] if the money cannot be held.
    pub fn reserve(&mut self, hold: &Hold, now: Millis) -> Result<Reserved, Refusal> {
        let account = self.accounts.get_mut(&hold.account);
        let account = account.ok_or(Refusal::Unknown)?;
        account.forget_tombstones(now);
        if account.tombstones.contains_key(&hold.number)
            || account.expired.contains_key(&hold.number)
        {
            return Err(Refusal::Gone);
        }
        if let Some(open) = account.open.get(&hold.number) {
            let same = open.key == hold.key && open.want == hold.want && open.least == hold.least;
            let (held, free) = (open.held, account.free(&hold.key, now));
            return same
                .then_some(Reserved { held, free })
                .ok_or(Refusal::Conflict);
        }
        account.admits(&hold.key, now)?;
        account.admits_a_call(&hold.key, now)?;
        let free = account.free_for(&hold.key, hold.want, hold.least, now)?;
        let held = hold.want.min(free);
        let due = now.saturating_add(millis(hold.ttl));
        let open = Open {
            key: hold.key.clone(),
            held,
            want: hold.want,
            least: hold.least,
            due,
            adjusted: 0,
        };
        account.add_hold(hold.number, open);
        if account.watched.is_none_or(|at| due < at) {
            self.watch(&hold.account);
        }
        Ok(Reserved {
            held,
            free: free.minus_or_zero(held),
        })
    }

    /// Sets the expiry time of a hold to `ttl` from now. Returns whether the hold existed.
    pub fn extend(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
        now: Millis,
    ) -> bool {
        let Some(book) = self.accounts.get_mut(account) else {
            return false;
        };
        let Some(open) = book.open.get_mut(&number) else {
            return false;
        };
        book.due.remove(&(open.due, number));
        open.due = now.saturating_add(millis(ttl));
        book.due.insert((open.due, number));
        if book.watched.is_none_or(|at| open.due < at) {
            self.watch(account);
        }
        true
    }

    /// Changes the amount of a hold. An increase must fit like a new hold (I1), and is granted in full or refused.
    ///
    /// # Errors
    /// A [`Refusal`] if an increase does not fit. The hold is then unchanged.
    pub fn adjust(&mut self, adjustment: &Adjustment, now: Millis) -> Result<Adjusted, Refusal> {
        let (number, key) = (&adjustment.number, &adjustment.key);
        let amount = adjustment.amount.max(MicroRub::ZERO);
        let Some(account) = self.accounts.get_mut(&adjustment.account) else {
            return Ok(Adjusted::Gone);
        };
        let open = account.open.get(number).filter(|open| open.key == *key);
        let Some((held, adjusted)) = open.map(|open| (open.held, open.adjusted)) else {
            return Ok(Adjusted::Gone);
        };
        if adjustment.sequence <= adjusted {
            return Ok(Adjusted::Held(held));
        }
        if amount > held {
            account.admits(key, now)?;
            let more = amount.minus_or_zero(held);
            let room = account.free_for(key, more, more, now);
            // If money is short, `free_for` has ended expired holds, possibly including the hold that is to be changed.
            if !account.open.contains_key(number) {
                return Ok(Adjusted::Gone);
            }
            room?;
        }
        account.resize(*number, amount, adjustment.sequence);
        Ok(Adjusted::Held(amount))
    }

    /// Checks whether the key could hold any money at all.
    ///
    /// # Errors
    /// A [`Refusal`] if the key could hold nothing.
    pub fn probe(&self, account: &AccountId, key: &KeyId, now: Millis) -> Result<(), Refusal> {
        self.accounts
            .get(account)
            .ok_or(Refusal::Unknown)?
            .admits(key, now)
    }
}

impl Account {
    /// Returns the amount that a key can still hold: `max(0, min(b − h, l − u − h_k))`, over all ceilings of the key
    /// and of its group.
    #[must_use]
    pub fn free(&self, key: &KeyId, now: Millis) -> MicroRub {
        self.room(key, now).0
    }

    /// Returns the amount that a key can still hold, and the ceiling that limits it; `None` if the account's money
    /// limits it.
    pub(crate) fn room(&self, key: &KeyId, now: Millis) -> (MicroRub, Option<Ceiling>) {
        let account = self.balance.minus_or_zero(self.held);
        match self.keys.get(key) {
            None => (MicroRub::ZERO, None),
            Some(money) => money.room_in(self.money_of_group(key), account, MicroRub::ZERO, now),
        }
    }

    /// Returns the free money of the key; a refusal if less than `least` of `want` can be held in addition to its open
    /// holds. Ends expired holds first if money is short.
    fn free_for(
        &mut self,
        key: &KeyId,
        want: MicroRub,
        least: MicroRub,
        now: Millis,
    ) -> Result<MicroRub, Refusal> {
        let (mut free, mut ceiling) = self.room(key, now);
        if free < want && self.expire(EXPIRE_ON_RESERVE_MAX, now) > 0 {
            (free, ceiling) = self.room(key, now);
        }
        if want.min(free) >= least {
            return Ok(free);
        }
        let held = self.keys.get(key).map_or(MicroRub::ZERO, |key| key.held);
        Err(Refusal::DoesNotFit {
            free,
            held,
            ceiling,
        })
    }

    /// Adds an open hold, and adds it to all sums of holds.
    pub(super) fn add_hold(&mut self, number: RequestNumber, open: Open) {
        self.change_held(&open.key, |sum| sum.plus_or_max(open.held));
        if let Some(key) = self.keys.get_mut(&open.key) {
            key.calls = key.calls.saturating_add(1);
        }
        self.due.insert((open.due, number));
        self.open.insert(number, open);
    }

    /// Sets the amount of an open hold, and stores the sequence number of the change.
    fn resize(&mut self, number: RequestNumber, amount: MicroRub, adjusted: u32) {
        let Some(open) = self.open.get_mut(&number) else {
            return;
        };
        let before = mem::replace(&mut open.held, amount);
        open.adjusted = adjusted;
        let key = open.key.clone();
        self.change_held(&key, |sum| sum.minus_or_zero(before).plus_or_max(amount));
    }

    /// Returns the amount by which `adjustment` would enlarge its hold; zero if it would not enlarge the hold.
    #[cfg(feature = "redis")]
    pub(crate) fn growth(&self, adjustment: &Adjustment) -> MicroRub {
        let open = self.open.get(&adjustment.number);
        let open =
            open.filter(|open| open.key == adjustment.key && adjustment.sequence > open.adjusted);
        open.map_or(MicroRub::ZERO, |open| {
            adjustment.amount.minus_or_zero(open.held)
        })
    }

    /// Checks that the key may have another open call. Ends expired holds first if the key's limit of open calls is
    /// reached.
    fn admits_a_call(&mut self, id: &KeyId, now: Millis) -> Result<(), Refusal> {
        if !self.limits_calls {
            return Ok(());
        }
        let most = |account: &Self| {
            let key = account.keys.get(id)?;
            key.concurrency.filter(|most| key.calls >= *most)
        };
        if most(self).is_some() {
            self.expire(EXPIRE_ON_RESERVE_MAX, now);
        }
        most(self).map_or(Ok(()), |most| Err(Refusal::TooManyCalls { most }))
    }

    /// Checks for reasons to refuse any hold of the key, whatever its amount. Considers the balance and the spending,
    /// but not open holds: if money is held but not spent, a hold is refused with `DoesNotFit`, and not with
    /// `AccountEmpty` or `CeilingUsedUp`.
    pub(super) fn admits(&self, key: &KeyId, now: Millis) -> Result<(), Refusal> {
        let id = key;
        let key = self.keys.get(id).ok_or(Refusal::Unknown)?;
        if !key.enabled {
            Err(Refusal::Disabled)
        } else if self.suspended {
            Err(Refusal::Suspended)
        } else if self.balance <= MicroRub::ZERO {
            Err(Refusal::AccountEmpty)
        } else if let Some(bound) = key.bounds(now).find(Bound::is_used_up) {
            Err(Refusal::CeilingUsedUp(bound.ceiling))
        } else {
            let group = self.money_of_group(id);
            match group.and_then(|group| group.bounds(now).find(Bound::is_used_up)) {
                None => Ok(()),
                Some(bound) => Err(Refusal::CeilingUsedUp(bound.ceiling.of_group())),
            }
        }
    }
}

impl KeyBook {
    /// Returns the key as operators see it. `account` is the free money of its account.
    #[must_use]
    pub fn view(&self, record: KeyRecord, account: MicroRub, now: Millis) -> KeyView {
        let (month, day) = self.periods(now);
        KeyView {
            record,
            ceiling_rub: self.ceilings.total,
            spent_rub: self.used,
            held_rub: self.held,
            free_rub: self.room(account, MicroRub::ZERO, now).0,
            month,
            day,
        }
    }

    /// Returns the current month and day as operators see them.
    pub(super) fn periods(&self, now: Millis) -> (PeriodView, PeriodView) {
        let (month, day) = (self.month_at(now), self.day_at(now));
        let month = PeriodView {
            ceiling_rub: self.ceilings.month,
            spent_rub: month.spent(self.used),
            resets_at_ms: month_begins_ms(month.index.saturating_add(1)),
        };
        let day = PeriodView {
            ceiling_rub: self.ceilings.day,
            spent_rub: day.spent(self.used),
            resets_at_ms: day_begins_ms(day.index.saturating_add(1)),
        };
        (month, day)
    }

    /// Returns the amount that the key can hold in addition to its open holds and to `beside`, and the ceiling that
    /// limits this amount, if a ceiling does. `account` is the free money of the account.
    pub(crate) fn room(
        &self,
        account: MicroRub,
        beside: MicroRub,
        now: Millis,
    ) -> (MicroRub, Option<Ceiling>) {
        let held = self.held.plus_or_max(beside);
        let mut room = (account, None);
        for bound in self.bounds(now) {
            let left = bound.limit.minus_or_zero(bound.spent.plus_or_max(held));
            if left < room.0 {
                room = (left, Some(bound.ceiling));
            }
        }
        room
    }

    /// Returns the amount as [`Self::room`] does, further limited by the ceilings of the key's group, if the key is in
    /// a group.
    pub(super) fn room_in(
        &self,
        group: Option<&Self>,
        account: MicroRub,
        beside: MicroRub,
        now: Millis,
    ) -> (MicroRub, Option<Ceiling>) {
        let room = self.room(account, beside, now);
        match group.map(|group| group.room(room.0, beside, now)) {
            Some((left, Some(ceiling))) => (left, Some(ceiling.of_group())),
            _ => room,
        }
    }

    /// Returns the ceilings: first the one in total, then the one per month, then the one per day.
    pub(super) fn bounds(&self, now: Millis) -> impl Iterator<Item = Bound> {
        let Ceilings { total, month, day } = self.ceilings;
        let total = total.map(|limit| Bound {
            ceiling: Ceiling::Total,
            limit,
            spent: self.used,
        });
        let month = month.map(|limit| {
            let period = self.month_at(now);
            Bound {
                ceiling: Ceiling::of_month(period.index),
                limit,
                spent: period.spent(self.used),
            }
        });
        let day = day.map(|limit| {
            let period = self.day_at(now);
            Bound {
                ceiling: Ceiling::of_day(period.index),
                limit,
                spent: period.spent(self.used),
            }
        });
        [total, month, day].into_iter().flatten()
    }

    pub(super) fn month_at(&self, now: Millis) -> Period {
        self.month.at(month_of(now), self.used)
    }

    pub(super) fn day_at(&self, now: Millis) -> Period {
        self.day.at(day_of(now), self.used)
    }
}

/// A ceiling, and the spending that counts against it.
pub(super) struct Bound {
    pub(super) ceiling: Ceiling,
    pub(super) limit: MicroRub,
    pub(super) spent: MicroRub,
}

impl Bound {
    fn is_used_up(&self) -> bool {
        self.spent >= self.limit
    }
}

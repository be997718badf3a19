//! What may be held: RESERVE, EXTEND, PROBE, and the room under balance and ceilings that they go by.

use std::time::Duration;

use super::{Account, Book, EXPIRE_ON_RESERVE_MAX, KeyBook, Millis, Open};
use crate::{
    account::{AccountId, KeyId, KeyRecord},
    calendar::{day_begins_ms, day_of, month_begins_ms, month_of},
    ceiling::{Ceiling, Ceilings, Period},
    contract::{Hold, KeyView, PeriodView, Refusal, Reserved},
    money::MicroRub,
    number::RequestNumber,
};

impl Book {
    /// Holds money for a call (I1).
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn reserve(&mut self, hold: &Hold, now: Millis) -> Result<Reserved, Refusal> {
        let account = self
            .accounts
            .get_mut(&hold.account)
            .ok_or(Refusal::Unknown)?;
        account.forget_tombstones(now);
        if account.tombstones.contains_key(&hold.number)
            || account.expired.contains_key(&hold.number)
        {
            return Err(Refusal::Gone);
        }
        if let Some(open) = account.open.get(&hold.number) {
            let same = open.key == hold.key && open.want == hold.want && open.least == hold.least;
            let held = open.held;
            return if same {
                Ok(Reserved {
                    held,
                    free: account.free(&hold.key, now),
                })
            } else {
                Err(Refusal::Conflict)
            };
        }
        account.admits(&hold.key, now)?;
        account.admits_a_call(&hold.key, now)?;
        let (mut free, mut ceiling) = account.room(&hold.key, now);
        if free < hold.want && account.expire(EXPIRE_ON_RESERVE_MAX, now) > 0 {
            (free, ceiling) = account.room(&hold.key, now);
        }
        let held = hold.want.min(free);
        let key = account.keys.get_mut(&hold.key).ok_or(Refusal::Unknown)?;
        if held < hold.least {
            return Err(Refusal::DoesNotFit {
                free,
                held: key.held,
                ceiling,
            });
        }
        let due = now.saturating_add(millis(hold.ttl));
        key.held = key.held.plus_or_max(held);
        key.calls = key.calls.saturating_add(1);
        if let Some(group) = account.money_of_group_mut(&hold.key) {
            group.held = group.held.plus_or_max(held);
        }
        account.held = account.held.plus_or_max(held);
        account.due.insert((due, hold.number));
        let open = Open {
            key: hold.key.clone(),
            held,
            want: hold.want,
            least: hold.least,
            due,
        };
        account.open.insert(hold.number, open);
        if account.watched.is_none_or(|at| due < at) {
            self.watch(&hold.account);
        }
        Ok(Reserved {
            held,
            free: free.minus_or_zero(held),
        })
    }

    /// Lets a hold live for `ttl` from now. Says whether it still stood.
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

    /// Whether the key could hold anything at all.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn probe(&self, account: &AccountId, key: &KeyId, now: Millis) -> Result<(), Refusal> {
        self.accounts
            .get(account)
            .ok_or(Refusal::Unknown)?
            .admits(key, now)
    }
}

impl Account {
    /// What a key can still hold: `max(0, min(b − h, l − u − h_k))`, over all its ceilings and its group's.
    #[must_use]
    pub fn free(&self, key: &KeyId, now: Millis) -> MicroRub {
        self.room(key, now).0
    }

    /// The same, and the ceiling that leaves no more, if one does.
    pub(crate) fn room(&self, key: &KeyId, now: Millis) -> (MicroRub, Option<Ceiling>) {
        let account = self.balance.minus_or_zero(self.held);
        match self.keys.get(key) {
            None => (MicroRub::ZERO, None),
            Some(money) => money.room_in(self.money_of_group(key), account, MicroRub::ZERO, now),
        }
    }

    /// Whether the key may have one more call open, once what is past its time has ended.
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

    /// The refusals that do not depend on an amount. Empty is judged by posted money alone, so that
    /// a key whose money is merely held is told that the call does not fit.
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
    /// The key as operators see it, where its account has so much free.
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

    /// Its current month and day as operators see them.
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

    /// What the key can hold beside its open holds and `beside`, where its account has so much free; and
    /// the ceiling that leaves no more, if one does.
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

    /// The same beside what its group leaves, where it is in one.
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

    /// Its ceilings: the one that begins anew last comes first.
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

/// A ceiling of a key, and what has been spent under it.
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

fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

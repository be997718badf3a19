//! Emits the events of entries and charges in the same atomic step that moves the money. A step that moves no money
//! emits no event.

use std::mem;

use super::{Account, KeyBook, Millis};
use crate::{
    account::KeyId,
    ceiling::{Ceiling, Ceilings},
    contract::Entry,
    happening::{CeilingKind, Happening, reached},
    money::MicroRub,
    number::RequestNumber,
};

impl Account {
    /// Removes and returns the events emitted since the last call, in order. Each event comes with its key, if it has
    /// one.
    pub fn happened(&mut self) -> Vec<(Option<KeyId>, Happening)> {
        mem::take(&mut self.happened)
    }

    /// Emits the events of an entry; `before` is the balance before the entry.
    pub(super) fn emit_entry_events(&mut self, entry: &Entry, before: MicroRub) {
        let (id, amount_rub, balance_rub) = (entry.id.clone(), entry.amount, self.balance);
        let what = match &entry.reason {
            None => Happening::TopUp {
                entry: id,
                amount_rub,
                balance_rub,
            },
            Some(reason) => Happening::Correction {
                entry: id,
                amount_rub,
                reason: reason.clone(),
                balance_rub,
            },
        };
        self.happened.push((None, what));
        if let Some(level) = self.levels.passed(before, balance_rub) {
            self.tell_low(level, entry.id.clone());
        }
    }

    pub(super) fn tell_low(&mut self, level_rub: MicroRub, by: String) {
        let what = Happening::BalanceLow {
            level_rub,
            balance_rub: self.balance,
            by,
        };
        self.happened.push((None, what));
    }
}

impl KeyBook {
    /// Adds a charge to the key's spending. Returns an event for each ceiling whose remaining amount falls to an alert
    /// level, or nearly to zero.
    pub(super) fn spend(
        &mut self,
        charged: MicroRub,
        now: Millis,
        number: RequestNumber,
    ) -> Vec<Happening> {
        (self.month, self.day) = (self.month_at(now), self.day_at(now));
        let used = self.used.plus_or_max(charged);
        let reported = match self.ceilings == Ceilings::NONE {
            true => Vec::new(),
            false => self.passed(used, now, number),
        };
        self.used = used;
        reported
    }

    /// Returns an event for each ceiling whose remaining amount falls to an alert level, or nearly to zero, when the
    /// spending grows to `used`. The stored day and month must be current at `now`.
    fn passed(&self, used: MicroRub, now: Millis, number: RequestNumber) -> Vec<Happening> {
        let mut reported = Vec::new();
        for bound in self.bounds(now) {
            let ceiling = match bound.ceiling {
                Ceiling::Total | Ceiling::GroupTotal => CeilingKind::Total,
                Ceiling::Month { .. } | Ceiling::GroupMonth { .. } => CeilingKind::Month,
                Ceiling::Day { .. } | Ceiling::GroupDay { .. } => CeilingKind::Day,
            };
            let (ceiling_rub, before) = (bound.limit, bound.limit.minus_or_zero(bound.spent));
            let spent = bound.spent.plus_or_max(used.minus_or_zero(self.used));
            let left_rub = bound.limit.minus_or_zero(spent);
            let by = || number.to_string();
            if let Some(level_rub) = self.levels.passed(before, left_rub) {
                reported.push(Happening::CeilingLow {
                    group: None,
                    ceiling,
                    ceiling_rub,
                    level_rub,
                    left_rub,
                    by: by(),
                });
            }
            let reached = reached(ceiling_rub);
            if left_rub <= reached && reached < before {
                reported.push(Happening::CeilingReached {
                    group: None,
                    ceiling,
                    ceiling_rub,
                    left_rub,
                    by: by(),
                });
            }
        }
        reported
    }
}

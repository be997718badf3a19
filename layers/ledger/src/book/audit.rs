//! Whether a book keeps its invariants now.

use std::collections::HashMap;

use super::{Account, Book, KeyBook};
use crate::{
    account::{AccountId, KeyId},
    contract::Audit,
    money::MicroRub,
    number::RequestNumber,
};

impl Book {
    /// Checks I1–I5 as far as a state can show them. I1 leaves no trace: a key that has used more than
    /// its ceiling may have had a higher one then.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let mut audit = Audit {
            accounts: self.accounts.len() as u64,
            ..Audit::default()
        };
        for (id, account) in self.accounts() {
            audit.keys += account.keys.len() as u64;
            audit.holds_open += account.open.len() as u64;
            account.audit(id, &mut audit.breaches);
        }
        audit
    }
}

impl Account {
    pub(super) fn audit(&self, id: &AccountId, breaches: &mut Vec<String>) {
        let micro = |amount: MicroRub| i128::from(amount.micro());
        let held: i128 = self.open.values().map(|open| micro(open.held)).sum();
        if held != micro(self.held) {
            breaches.push(format!(
                "I2 account {id}: held {} but its holds sum to {held} µ₽",
                self.held.micro()
            ));
        }
        let mut held_by_key: HashMap<&KeyId, i128> = HashMap::new();
        for open in self.open.values() {
            *held_by_key.entry(&open.key).or_default() += micro(open.held);
        }
        for (key_id, key) in &self.keys {
            let held = held_by_key.get(key_id).copied().unwrap_or(0);
            if held != micro(key.held) {
                breaches.push(format!(
                    "I2 key {key_id}: held {} but its holds sum to {held} µ₽",
                    key.held.micro()
                ));
            }
        }
        breaches.extend(self.keys.iter().filter_map(|(id, key)| key.breach(id)));
        if let Some((number, open)) = self
            .open
            .iter()
            .find(|(_, open)| !self.keys.contains_key(&open.key))
        {
            breaches.push(format!(
                "I2 account {id}: hold {number} is on key {}, which is not there",
                open.key
            ));
        }
        let entered: i128 = self.entries.values().map(|amount| micro(*amount)).sum();
        if entered != self.entered {
            breaches.push(format!(
                "I3 account {id}: entered {} but its entries sum to {entered} µ₽",
                self.entered
            ));
        }
        let used: i128 = self.keys.values().map(|key| micro(key.used)).sum();
        if micro(self.balance) != self.entered - used {
            let balance = self.balance.micro();
            breaches.push(format!(
                "I3 account {id}: balance {balance}, entered {} less used {used} µ₽",
                self.entered
            ));
        }
        if self.held < MicroRub::ZERO || self.held > self.balance {
            let (held, balance) = (self.held.micro(), self.balance.micro());
            breaches.push(format!(
                "I4 account {id}: held {held} of a balance of {balance} µ₽"
            ));
        }
        let ended = |number: &RequestNumber| {
            self.tombstones.contains_key(number) || self.expired.contains_key(number)
        };
        if let Some(number) = self.open.keys().find(|number| ended(number)) {
            breaches.push(format!(
                "I5 account {id}: hold {number} is both open and ended"
            ));
        }
        if let Some((number, _)) = self.open.iter().find(|(number, open)| {
            !self.due.contains(&(open.due, **number)) || self.watched.is_none_or(|at| at > open.due)
        }) {
            breaches.push(format!("I8 account {id}: hold {number} would never expire"));
        }
    }
}

impl KeyBook {
    /// No period began with more than the key has used: its ceiling would not bound anything.
    pub(crate) fn breach(&self, id: &KeyId) -> Option<String> {
        let before = self.month.before.max(self.day.before);
        (before > self.used).then(|| {
            let (used, before) = (self.used.micro(), before.micro());
            format!("I3 key {id}: used {used}, but {before} µ₽ before its day or month began")
        })
    }
}

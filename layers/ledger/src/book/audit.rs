//! The parts of a book that an [audit](crate::audit) reads in addition to
//! [`AccountBooks`](crate::contract::AccountBooks).

use super::{Account, Book, KeyBook, Millis};
use crate::{
    account::AccountId,
    audit::{AccountAudit, GroupSnapshot, KeySnapshot, Snapshot},
    contract::{Audit, OpenHold},
    money::MicroRub,
    number::RequestNumber,
};

impl Book {
    /// Checks the invariants I1 to I5 as far as a book without a journal allows.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let mut audit = Audit::default();
        for (id, account) in self.accounts() {
            let breaches = account.audit(id, false).without_journal();
            audit.add(account.keys.len(), account.open.len(), breaches);
        }
        audit
    }
}

impl KeyBook {
    /// Returns the key's spending before its current day or before its current month, whichever is more.
    pub(crate) fn used_before(&self) -> MicroRub {
        self.month.before.max(self.day.before)
    }
}

impl Account {
    /// Starts the audit of this account. If the store has a journal, the caller then passes the journal's lines to the
    /// audit.
    pub(crate) fn audit(&self, id: &AccountId, journal_complete: bool) -> AccountAudit {
        let mut holds: Vec<OpenHold> = self
            .open
            .iter()
            .map(|(number, open)| OpenHold {
                number: *number,
                key: open.key.clone(),
                held_rub: open.held,
                due_ms: self.ends_by_itself(*number, open.due).then_some(open.due),
            })
            .collect();
        holds.sort_unstable_by_key(|hold| hold.number);
        let ended: Vec<RequestNumber> = holds
            .iter()
            .map(|hold| hold.number)
            .filter(|number| {
                self.tombstones.contains_key(number) || self.expired.contains_key(number)
            })
            .collect();
        let keys = self.keys.iter().map(|(id, key)| KeySnapshot {
            id: id.clone(),
            spent_rub: key.used,
            held_rub: key.held,
            before_rub: Some(key.used_before()),
            group: self.group_of.get(id).cloned(),
            calls: Some(u64::from(key.calls)),
        });
        let groups = self.groups.iter().map(|(id, group)| GroupSnapshot {
            id: id.clone(),
            spent_rub: group.money.used,
            held_rub: group.money.held,
            carried_rub: group.carried,
            before_rub: Some(group.money.used_before()),
        });
        let mut audit = AccountAudit::new(Snapshot {
            id: id.clone(),
            balance_rub: self.balance,
            held_rub: self.held,
            spent_rub: self.spent(),
            loss_rub: self.loss,
            entered_rub: MicroRub::of_sum(self.entered),
            keys: keys.collect(),
            groups: groups.collect(),
            holds,
            journal_complete,
        });
        let entries = self.entries.values();
        audit.entries_kept(entries.map(|amount| i128::from(amount.micro())).sum());
        ended.into_iter().for_each(|number| audit.ended(number));
        audit
    }

    /// Returns whether the sweep will find this hold when it expires.
    fn ends_by_itself(&self, number: RequestNumber, due: Millis) -> bool {
        self.due.contains(&(due, number)) && self.watched.is_some_and(|at| at <= due)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::{
        account::KeyId,
        book::{Command, apply},
        ceiling::Ceilings,
        contract::{Booked, Entry, Hold, Settled},
    };

    /// An account with a payment of 100, of which 30 are held.
    fn book() -> Book {
        let mut book = Book::default();
        let (account, key): (AccountId, KeyId) = ("acme".parse().unwrap(), "k1".parse().unwrap());
        let entry = Entry {
            id: "p1".into(),
            amount: MicroRub::new(100),
            reason: None,
        };
        for command in [
            Command::SetAccount {
                account: account.clone(),
                suspended: false,
            },
            Command::SetKey {
                account: account.clone(),
                key: key.clone(),
                ceilings: Ceilings::NONE,
                enabled: true,
            },
            Command::Enter {
                account: account.clone(),
                entry,
            },
            Command::SetGroup {
                account: account.clone(),
                group: "g1".parse().unwrap(),
                ceilings: Ceilings::NONE,
            },
            Command::Bind {
                account: account.clone(),
                key: key.clone(),
                group: Some("g1".parse().unwrap()),
                concurrency: None,
            },
            Command::Reserve(Hold {
                number: number(),
                account,
                key,
                want: MicroRub::new(30),
                least: MicroRub::new(30),
                ttl: Duration::from_secs(1),
            }),
        ] {
            apply(&mut book, &command, 1);
        }
        book
    }

    fn of_group(account: &mut Account) -> &mut crate::book::GroupBook {
        account.groups.values_mut().next().unwrap()
    }

    fn number() -> RequestNumber {
        RequestNumber::from_uuid(Uuid::from_u128(1))
    }

    #[test]
    fn audit_of_a_manipulated_book_reports_the_name_of_the_broken_invariant() {
        assert_eq!(book().audit().breaches, Vec::<String>::new());
        type Edit = fn(&mut Account);
        let cases: [(Edit, &str); 13] = [
            (
                |account| account.keys.values_mut().next().unwrap().calls = 2,
                "I2 key k1: 2 calls are counted as open, but it has 1 holds",
            ),
            (
                |account| of_group(account).money.held = MicroRub::new(29),
                "I2 group g1: held 29 but its keys hold 30",
            ),
            (
                |account| of_group(account).carried = MicroRub::new(1),
                "I3 group g1: used 0, but its keys used 0 and 1 µ₽ are carried",
            ),
            (
                |account| account.groups.clear(),
                "I2 account acme: key k1 is in group g1, which is not there",
            ),
            (|account| account.held = MicroRub::new(31), "I2 account"),
            (|account| account.due.clear(), "I8 account"),
            (|account| account.watched = None, "I8 account"),
            (|account| account.watched = Some(1_002), "I8 account"),
            (|account| account.balance = MicroRub::new(99), "I3 account"),
            (|account| account.entered = 101, "I3 account"),
            (|account| account.balance = MicroRub::new(29), "I4 account"),
            (
                |account| {
                    let settled = Settled {
                        booked: Booked::Held,
                        charged: MicroRub::ZERO,
                        loss: MicroRub::ZERO,
                        repeated: false,
                    };
                    account.tombstones.insert(number(), settled);
                },
                "I5 account",
            ),
            (
                |account| {
                    let key = account.keys.values_mut().next().unwrap();
                    key.day.before = MicroRub::new(1);
                },
                "I3 key k1: used 0, but 1 µ₽ before",
            ),
        ];
        for (index, (edit, says)) in cases.into_iter().enumerate() {
            let mut book = book();
            edit(book.accounts.values_mut().next().unwrap());
            let breaches = book.audit().breaches;
            assert!(
                breaches.iter().any(|breach| breach.starts_with(says)),
                "{index}: {says}: {breaches:?}"
            );
        }
    }
}

//! Reads the complete stored state of one account at one moment.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::{
    NO_ARGS, RECEIPT_MS, RedisLedger,
    groups::{GroupRow, views},
    keys::{KEY_PARTS, MONEY_PARTS, StoredKey, stored},
    names::account_key,
};
use crate::{
    account::{AccountId, KeyId},
    audit::{GroupSnapshot, KeySnapshot, Snapshot},
    conn::{RedisFault, Result},
    contract::{AccountBooks, AccountView, GroupView, KeyView, OpenHold},
    money::MicroRub,
};

/// The deadline for reading the stored state of an account. The reply of an account with 60 000 keys has a million
/// values.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How far the clocks of servers may differ, in milliseconds, before journal lines count as dropped too early.
const CLOCK_MS_MAX: u64 = 3_600_000;

/// The reply of `books.lua`: the account's fields, the keys' records, the holds' expiry times, the amounts of entries,
/// the journal's end, the number of missing journal lines (-1 if unknown), and the server's time.
type Reply = (
    HashMap<String, String>,
    HashMap<String, String>,
    HashMap<String, String>,
    Vec<i64>,
    String,
    i64,
    u64,
);

/// The complete stored state of one account at one moment.
#[derive(Debug)]
pub(super) struct StoredBooks {
    fields: HashMap<String, String>,
    records: HashMap<String, String>,
    due: HashMap<String, String>,
    entered: i128,
    pub(super) journal_end: String,
    lines_missing: Option<u64>,
    now: u64,
}

impl RedisLedger {
    /// Reads the state of an account; `None` if the account does not exist.
    pub(super) async fn stored_books(&self, account: &AccountId) -> Result<Option<StoredBooks>> {
        let keys = ["", ":k", ":x", ":t", ":j"].map(|part| account_key(account, part));
        let conn = &self.0.conn;
        let reply: Option<Reply> = conn
            .eval(&self.0.scripts.books, &keys, NO_ARGS, READ_TIMEOUT)
            .await?;
        Ok(reply.map(StoredBooks::from))
    }
}

impl From<Reply> for StoredBooks {
    fn from((fields, records, due, entries, journal_end, lines_missing, now): Reply) -> Self {
        Self {
            fields,
            records,
            due,
            entered: entries.into_iter().map(i128::from).sum(),
            journal_end,
            lines_missing: u64::try_from(lines_missing).ok(),
            now,
        }
    }
}

impl StoredBooks {
    /// Returns the account's books in the form that operators see.
    pub(super) fn books(&self, id: &AccountId) -> Result<AccountBooks> {
        let snapshot = self.snapshot(id)?;
        let free_rub = snapshot.balance_rub.minus_or_zero(snapshot.held_rub);
        let stored = self.stored_keys(free_rub)?;
        let mut keys: Vec<KeyView> = stored.into_iter().map(|key| key.view).collect();
        keys.sort_unstable_by(|a, b| a.record.id.cmp(&b.record.id));
        Ok(AccountBooks {
            view: AccountView {
                id: id.clone(),
                name: self.fields.get("name").cloned().unwrap_or_default(),
                suspended: (self.fields.get("s")).is_some_and(|suspended| suspended == "1"),
                balance_rub: snapshot.balance_rub,
                held_rub: snapshot.held_rub,
                free_rub,
                spent_rub: snapshot.spent_rub,
                loss_rub: snapshot.loss_rub,
                holds_open: snapshot.holds.len() as u64,
            },
            entered_rub: snapshot.entered_rub,
            keys,
            groups: self.groups(free_rub)?,
            holds: snapshot.holds,
            journal_end: self.journal_end.clone(),
            journal_complete: snapshot.journal_complete,
        })
    }

    /// Returns the account's money as stored, including money of keys that have no record.
    pub(super) fn snapshot(&self, id: &AccountId) -> Result<Snapshot> {
        let amount = |name: &str| -> Result<MicroRub> {
            Ok(MicroRub::new(self.number(id, name)?.unwrap_or_default()))
        };
        let mut keys: BTreeMap<KeyId, KeySnapshot> = BTreeMap::new();
        let mut holds = Vec::new();
        let mut spent = MicroRub::ZERO;
        for (name, value) in &self.fields {
            let unexpected = || unexpected(id, name);
            if let Some(number) = name.strip_prefix("o:") {
                holds.push(self.open_hold(number, value).ok_or_else(unexpected)?);
            } else if name.starts_with("g:") {
                // The field belongs to a group and not to a key.
            } else if let Some((key_id, "u" | "h")) = name.split_once('.') {
                let key: KeyId = key_id.parse().map_err(|_| unexpected())?;
                let (used, held) = (
                    amount(&format!("{key_id}.u"))?,
                    amount(&format!("{key_id}.h"))?,
                );
                let money = KeySnapshot {
                    id: key.clone(),
                    spent_rub: used,
                    held_rub: held,
                    before_rub: None,
                    group: None,
                    calls: None,
                };
                if keys.insert(key, money).is_none() && self.records.contains_key(key_id) {
                    spent = spent.plus_or_max(used);
                }
            }
        }
        holds.sort_unstable_by_key(|hold| hold.number);
        for key in keys.values_mut() {
            self.bind(id, key)?;
        }
        let groups = self.groups(MicroRub::ZERO)?.into_iter();
        let groups = groups.map(|group| GroupSnapshot {
            before_rub: Some(used_before(&group)),
            id: group.record.id,
            spent_rub: group.spent_rub,
            held_rub: group.held_rub,
            carried_rub: group.carried_rub,
        });
        Ok(Snapshot {
            id: id.clone(),
            balance_rub: amount("b")?,
            held_rub: amount("h")?,
            spent_rub: spent,
            loss_rub: amount("loss")?,
            entered_rub: MicroRub::of_sum(self.entered),
            keys: keys.into_values().collect(),
            groups: groups.collect(),
            holds,
            journal_complete: self.lines_missing == Some(0),
        })
    }

    fn open_hold(&self, number: &str, value: &str) -> Option<OpenHold> {
        let mut parts = value.split(':');
        let (held, key) = (parts.next()?, parts.next()?);
        let due = self.due.get(number).map(|due| due.parse());
        Some(OpenHold {
            number: number.parse().ok()?,
            key: key.parse().ok()?,
            held_rub: MicroRub::new(held.parse().ok()?),
            due_ms: due.transpose().ok()?,
        })
    }

    /// Returns how many journal lines are missing although no script has dropped them for their age; `None` if this is
    /// unknown.
    pub(super) fn lines_lost(&self) -> Option<u64> {
        let (dropped, _) = self.dropped()?;
        Some(self.lines_missing?.saturating_sub(dropped))
    }

    /// Returns the time before which all lines were dropped, if they were dropped before the end of their retention
    /// because a clock was ahead. Otherwise returns `None`.
    pub(super) fn dropped_early_ms(&self) -> Option<u64> {
        let (_, cut_ms) = self.dropped()?;
        let kept_since = self.now.saturating_sub(RECEIPT_MS);
        (cut_ms > kept_since.saturating_add(CLOCK_MS_MAX)).then_some(cut_ms)
    }

    /// Returns how many lines the scripts have dropped for their age, and the time before which all of them were
    /// written (see `journal.lua`).
    fn dropped(&self) -> Option<(u64, u64)> {
        let (count, cut_ms) = self.fields.get("jf")?.split_once(':')?;
        Some((count.parse().ok()?, cut_ms.parse().ok()?))
    }

    pub(super) fn keys(&self) -> usize {
        self.records.len()
    }

    /// Returns the account's money. For each key it includes the spending before the key's current day and month.
    pub(super) fn snapshot_with_periods(&self, id: &AccountId) -> Result<Snapshot> {
        let mut snapshot = self.snapshot(id)?;
        let mut befores: BTreeMap<KeyId, MicroRub> = BTreeMap::new();
        for key in self.stored_keys(MicroRub::ZERO)? {
            befores.insert(key.view.record.id, key.money.used_before());
        }
        for key in &mut snapshot.keys {
            key.before_rub = befores.remove(&key.id);
        }
        // A key that was never used has no money fields, so `snapshot` does not contain it.
        let unused = befores.into_iter().map(|(id, before)| KeySnapshot {
            id,
            spent_rub: MicroRub::ZERO,
            held_rub: MicroRub::ZERO,
            before_rub: Some(before),
            group: None,
            calls: None,
        });
        for mut key in unused {
            self.bind(id, &mut key)?;
            snapshot.keys.push(key);
        }
        snapshot.keys.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Ok(snapshot)
    }

    fn stored_keys(&self, account_free: MicroRub) -> Result<Vec<StoredKey>> {
        let keys = self.records.iter().map(|(key, record)| {
            let field = |part: &str| self.fields.get(&format!("{key}.{part}")).cloned();
            let group = self.group_of(key);
            let group = group.map_or_else(Vec::new, |group| self.money_of_group(group));
            let row = (record.clone(), KEY_PARTS.map(field).to_vec(), group);
            stored(row, account_free, self.now)
        });
        keys.collect()
    }

    /// Returns a key's group and its limit of open calls from the key's field `s`, both as text.
    fn state_of(&self, key: &str) -> Option<(&str, &str)> {
        let state = self.fields.get(&format!("{key}.s"))?;
        state.split_once(':')?.1.split_once(':')
    }

    fn group_of(&self, key: &str) -> Option<&str> {
        let (group, _) = self.state_of(key)?;
        Some(group).filter(|group| !group.is_empty())
    }

    /// Sets the group of a key and the number of its open calls in a snapshot.
    fn bind(&self, id: &AccountId, key: &mut KeySnapshot) -> Result<()> {
        let Some((group, calls)) = self.state_of(&key.id) else {
            return Ok(());
        };
        if !group.is_empty() {
            let unexpected = |_| unexpected(id, &format!("{}.s", key.id));
            key.group = Some(group.parse().map_err(unexpected)?);
        }
        if !calls.is_empty() {
            let counted = self.number(id, &format!("{}.n", key.id))?;
            key.calls = Some(u64::try_from(counted.unwrap_or_default()).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    fn money_of_group(&self, group: &str) -> Vec<Option<String>> {
        let field = |part: &str| self.fields.get(&format!("g:{group}.{part}")).cloned();
        MONEY_PARTS.map(field).to_vec()
    }

    fn groups(&self, account_free: MicroRub) -> Result<Vec<GroupView>> {
        let ids = self.fields.get("groups").map_or("", String::as_str);
        let row = |id: &str| -> GroupRow {
            let field = |part: &str| self.fields.get(&format!("g:{id}.{part}"));
            let carried = field("c").and_then(|carried| carried.parse().ok());
            let name = field("name").cloned().unwrap_or_default();
            let carried = carried.unwrap_or_default();
            (id.to_owned(), name, carried, self.money_of_group(id))
        };
        views(
            ids.split(' ')
                .filter(|id| !id.is_empty())
                .map(row)
                .collect(),
            account_free,
            self.now,
        )
    }

    fn number(&self, id: &AccountId, name: &str) -> Result<Option<i64>> {
        match self.fields.get(name) {
            None => Ok(None),
            Some(value) => value.parse().map(Some).map_err(|_| unexpected(id, name)),
        }
    }
}

/// Returns what a group had spent before its current day or before its current month, whichever is more.
fn used_before(group: &GroupView) -> MicroRub {
    let (month, day) = group.periods();
    month.before.max(day.before)
}

fn unexpected(id: &AccountId, name: &str) -> RedisFault {
    RedisFault::Unexpected(format!(
        "account {id}: field {name} is not in a form that the gateway writes"
    ))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::audit::AccountAudit;

    fn number(n: u128) -> String {
        Uuid::from_u128(n).to_string()
    }

    fn record(id: &str) -> String {
        let digest = "00".repeat(32);
        format!(
            r#"{{"id":"{id}","account":"acme","digest":"{digest}","prefix":"","name":"","status":"active"}}"#
        )
    }

    /// An account with a payment of 100, charges of 10 and open holds of 30.
    fn reply(changed: &[(&str, &str)], due: &[u128]) -> StoredBooks {
        let holds = [1, 2].map(|n| format!("o:{}", number(n)));
        let good = [
            ("name", "Acme. Ltd"),
            ("b", "90"),
            ("h", "30"),
            ("s", "0"),
            ("loss", "0"),
            ("k1.s", "1"),
            ("k1.u", "10"),
            ("k1.h", "30"),
            ("k1.v", "1"),
            ("k2.s", "0"),
            (holds[0].as_str(), "20:k1:20:5"),
            (holds[1].as_str(), "10:k1:10:10"),
        ];
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let reply: Reply = (
            good.iter().chain(changed).map(owned).collect(),
            ["k1", "k2"].map(|id| (id.to_owned(), record(id))).into(),
            due.iter()
                .map(|n| (number(*n), "1700000000000".into()))
                .collect(),
            vec![150, -50],
            "0-0".into(),
            -1,
            20_512 * 86_400_000,
        );
        StoredBooks::from(reply)
    }

    fn breaches(changed: &[(&str, &str)], due: &[u128]) -> Vec<String> {
        let snapshot = reply(changed, due)
            .snapshot(&"acme".parse().unwrap())
            .unwrap();
        AccountAudit::new(snapshot).finish()
    }

    #[test]
    fn each_manipulation_of_books_in_redis_is_reported_as_a_breach() {
        assert_eq!(breaches(&[], &[1, 2]), Vec::<String>::new());
        for (changed, due, names) in [
            (("h", "31"), [1, 2], vec!["I2"]),
            (("k1.h", "0"), [1, 2], vec!["I2"]),
            (("b", "91"), [1, 2], vec!["I3"]),
            (("b", "29"), [1, 2], vec!["I4", "I3"]),
            (("k3.u", "5"), [1, 2], vec!["I3", "I3"]),
            (("k2.u", "-5"), [1, 2], vec!["I3", "I4", "I3"]),
            (("loss", "7"), [1, 3], vec!["I8"]),
        ] {
            let breaches = breaches(&[changed], &due);
            let found: Vec<&str> = breaches.iter().map(|breach| &breach[..2]).collect();
            assert_eq!(found, names, "{changed:?}: {breaches:?}");
        }
    }

    #[test]
    fn books_read_from_redis_contain_the_account_and_its_keys_and_holds() {
        let id: AccountId = "acme".parse().unwrap();
        let books = reply(&[("k2.l", "5")], &[1, 2]).books(&id).unwrap();
        let micro = MicroRub::micro;
        assert_eq!(books.view.name, "Acme. Ltd");
        assert_eq!(
            [
                books.view.balance_rub,
                books.view.free_rub,
                books.view.spent_rub
            ]
            .map(micro),
            [90, 60, 10]
        );
        assert_eq!(micro(books.entered_rub), 100);
        let keys: Vec<_> = books
            .keys
            .iter()
            .map(|key| (&*key.record.id, micro(key.held_rub), micro(key.free_rub)))
            .collect();
        assert_eq!(keys, [("k1", 30, 60), ("k2", 0, 5)]);
        assert_eq!(books.view.holds_open, 2);
        assert_eq!(books.holds[1].due_ms, Some(1_700_000_000_000));
        assert!(reply(&[("b", "1e+14")], &[]).books(&id).is_err());
        assert!(reply(&[("o:7", "1:k1:1:1")], &[]).books(&id).is_err());
    }

    #[test]
    fn books_read_from_redis_contain_what_keys_have_spent_today() {
        let id: AccountId = "acme".parse().unwrap();
        for (day, spent) in [("20512:4", 6), ("20511:4", 0)] {
            let books = reply(&[("k1.d", day)], &[1, 2]);
            let snapshot = books.snapshot_with_periods(&id).unwrap();
            assert_eq!(
                AccountAudit::new(snapshot).without_journal(),
                Vec::<String>::new()
            );
            let view = &books.books(&id).unwrap().keys[0];
            assert_eq!(view.day.spent_rub.micro(), spent, "{day}");
            assert_eq!(view.day.resets_at_ms, 20_513 * 86_400_000);
        }
        let torn = reply(&[("k1.m", "673:11")], &[1, 2]);
        let snapshot = torn.snapshot_with_periods(&id).unwrap();
        assert_eq!(
            AccountAudit::new(snapshot).without_journal(),
            ["I3 key k1: used 10, but 11 µ₽ before its day or month began"]
        );
    }
}

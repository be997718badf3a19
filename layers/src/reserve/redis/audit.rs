//! The audit of the ledger in Redis: the same words as that of [`crate::reserve::book`].

use std::collections::{BTreeMap, HashMap, HashSet};

use futures_util::future::join_all;

use super::{ACCOUNTS_AT_ONCE, RedisLedger, account_key, tombstone_key};
use crate::{facts::RequestNumber, key::AccountId, redis_conn::RedisFault, reserve::ledger::Audit};

/// How many holds are looked up at a call.
const HOLDS_AT_ONCE: usize = 500;

/// All that stands in one account, at one moment.
#[derive(Debug, Default)]
struct Books {
    balance: i128,
    held: i128,
    keys: BTreeMap<String, KeyBooks>,
    /// Key and amount by number.
    open: BTreeMap<String, (String, i128)>,
    due: HashSet<String>,
    entered: i128,
}

#[derive(Debug, Default)]
struct KeyBooks {
    used: i128,
    held: i128,
}

impl RedisLedger {
    pub(super) async fn audit_all(&self) -> Result<Audit, RedisFault> {
        let mut audit = Audit::default();
        for ids in self.account_ids().await?.chunks(ACCOUNTS_AT_ONCE) {
            for found in join_all(ids.iter().map(|id| self.audit_one(id))).await {
                let found = found?;
                audit.accounts += found.accounts;
                audit.keys += found.keys;
                audit.holds_open += found.holds_open;
                audit.breaches.extend(found.breaches);
            }
        }
        Ok(audit)
    }

    async fn audit_one(&self, id: &AccountId) -> Result<Audit, RedisFault> {
        let keys = ["", ":x", ":t"].map(|part| account_key(id, part));
        let (fields, due, entries): (HashMap<String, String>, HashSet<String>, Vec<i64>) = self
            .ask_patiently(&self.0.scripts.audit, &keys, &[])
            .await?;
        if !fields.contains_key("b") {
            return Ok(Audit::default());
        }
        let books = Books::read(&fields, due, &entries).ok_or_else(|| {
            RedisFault::Unexpected(format!("account {id}: a field that is no number"))
        })?;
        let mut breaches = books.breaches(id);
        if let Some(number) = self.open_and_ended(id, &books).await? {
            breaches.push(format!(
                "I5 account {id}: hold {number} is both open and ended"
            ));
        }
        Ok(Audit {
            accounts: 1,
            keys: books.keys.len() as u64,
            holds_open: books.open.len() as u64,
            breaches,
        })
    }

    /// The first hold that is both. Each is looked at anew: it may have ended since.
    async fn open_and_ended(
        &self,
        id: &AccountId,
        books: &Books,
    ) -> Result<Option<String>, RedisFault> {
        let numbers: Vec<RequestNumber> = books
            .open
            .keys()
            .filter_map(|number| number.parse().ok())
            .collect();
        for numbers in numbers.chunks(HOLDS_AT_ONCE) {
            let mut keys = vec![account_key(id, "")];
            keys.extend(numbers.iter().map(|number| tombstone_key(id, *number)));
            let args: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            let both: Vec<String> = self
                .ask_patiently(&self.0.scripts.open_and_ended, &keys, &args)
                .await?;
            if let Some(number) = both.into_iter().next() {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }
}

impl Books {
    /// `None` if a field is not what we write.
    fn read(
        fields: &HashMap<String, String>,
        due: HashSet<String>,
        entries: &[i64],
    ) -> Option<Self> {
        let mut books = Self {
            due,
            entered: entries.iter().copied().map(i128::from).sum(),
            ..Self::default()
        };
        for (name, value) in fields {
            if let Some(number) = name.strip_prefix("o:") {
                let mut parts = value.split(':');
                let (held, key) = (parts.next()?.parse().ok()?, parts.next()?.to_owned());
                books.open.insert(number.to_owned(), (key, held));
            } else if let Some((key, part)) = name.split_once('.') {
                let key = books.keys.entry(key.to_owned()).or_default();
                match part {
                    "u" => key.used = value.parse().ok()?,
                    "h" => key.held = value.parse().ok()?,
                    _ => {}
                }
            } else if name == "b" {
                books.balance = value.parse().ok()?;
            } else if name == "h" {
                books.held = value.parse().ok()?;
            }
        }
        Some(books)
    }

    fn breaches(&self, id: &AccountId) -> Vec<String> {
        let mut breaches = Vec::new();
        let Self {
            balance,
            held,
            entered,
            ..
        } = self;
        let sum: i128 = self.open.values().map(|(_, held)| held).sum();
        if sum != *held {
            breaches.push(format!(
                "I2 account {id}: held {held} but its holds sum to {sum} µ₽"
            ));
        }
        for (key_id, key) in &self.keys {
            let sum: i128 = self
                .open
                .values()
                .filter(|(key, _)| key == key_id)
                .map(|(_, held)| held)
                .sum();
            if sum != key.held {
                breaches.push(format!(
                    "I2 key {key_id}: held {} but its holds sum to {sum} µ₽",
                    key.held
                ));
            }
        }
        let used: i128 = self.keys.values().map(|key| key.used).sum();
        if *balance != entered - used {
            breaches.push(format!(
                "I3 account {id}: balance {balance}, entered {entered} less used {used} µ₽"
            ));
        }
        if *held < 0 || held > balance {
            breaches.push(format!(
                "I4 account {id}: held {held} of a balance of {balance} µ₽"
            ));
        }
        if let Some(number) = self.open.keys().find(|number| !self.due.contains(*number)) {
            breaches.push(format!("I8 account {id}: hold {number} would never expire"));
        }
        breaches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audited(changed: &[(&str, &str)], due: &[&str]) -> Vec<String> {
        let good = [
            ("name", "Acme. Ltd"),
            ("b", "90"),
            ("h", "30"),
            ("s", "0"),
            ("loss", "0"),
            ("k1.s", "1"),
            ("k1.u", "10"),
            ("k1.h", "30"),
            ("k2.s", "0"),
            ("o:n1", "20:k1:20:5"),
            ("o:n2", "10:k1:10:10"),
        ];
        let fields: HashMap<String, String> = good
            .iter()
            .chain(changed)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let due = due.iter().map(|number| (*number).to_owned()).collect();
        let books = Books::read(&fields, due, &[150, -50]).unwrap();
        books.breaches(&"acme".parse().unwrap())
    }

    #[test]
    fn sound_books_have_no_breach_and_every_breach_has_a_name() {
        assert_eq!(audited(&[], &["n1", "n2"]), Vec::<String>::new());
        for (changed, due, names) in [
            (("h", "31"), ["n1", "n2"], vec!["I2"]),
            (("k1.h", "0"), ["n1", "n2"], vec!["I2"]),
            (("b", "91"), ["n1", "n2"], vec!["I3"]),
            (("b", "29"), ["n1", "n2"], vec!["I3", "I4"]),
            (("loss", "7"), ["n1", "n3"], vec!["I8"]),
        ] {
            let breaches = audited(&[changed], &due);
            let found: Vec<&str> = breaches.iter().map(|breach| &breach[..2]).collect();
            assert_eq!(found, names, "{changed:?}: {breaches:?}");
        }
    }
}

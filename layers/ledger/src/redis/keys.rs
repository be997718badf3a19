//! API keys in the Redis ledger: their records, their money, and the copies of their records that are looked up by
//! digest.

use std::str::FromStr;

use super::{
    RedisLedger,
    books::done,
    ceiling_words,
    names::{account_key, digest_key, id_key},
    to_json,
};
use crate::{
    account::{AccountId, KeyId, KeyRecord},
    book::KeyBook,
    ceiling::Ceilings,
    conn::{OPERATOR_TIMEOUT, RedisFault, Result},
    contract::{BookError, KeyView},
    money::MicroRub,
};

pub(super) struct StoredKey {
    /// The record as it was read. A change is written only if the stored record is still exactly this text.
    pub(super) json: String,
    version: i64,
    pub(super) money: KeyBook,
    pub(super) view: KeyView,
}

/// New ceilings as arguments of a script: in total, per month, per day. `None` leaves a ceiling unchanged.
pub(super) type CeilingsSet = [Option<Option<MicroRub>>; 3];

impl RedisLedger {
    /// Handles the creation of a key that exists already. The creation succeeds if record and ceilings are the same.
    pub(super) async fn created_before(
        &self,
        known: StoredKey,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> Result<KeyView, BookError> {
        if known.view.record != *record || known.money.ceilings != ceilings {
            return Err(BookError::Exists);
        }
        // An earlier attempt may have stopped before it published the key's record.
        self.publish(record, known.version).await?;
        Ok(known.view)
    }

    /// Reserves the key's id and digest, so that no other account can use them.
    pub(super) async fn claim(&self, record: &KeyRecord) -> Result<(), BookError> {
        let conn = &self.0.conn;
        let by_id = id_key(&record.id);
        let _: i64 = conn
            .command_durably(&["SETNX", &by_id, &record.account], OPERATOR_TIMEOUT)
            .await?;
        let account: Option<String> = self.command(&["GET", &by_id]).await?;
        if account.as_deref() != Some(&*record.account) {
            return Err(BookError::Exists);
        }
        let by_digest = digest_key(&record.digest);
        let _: i64 = conn
            .command_durably(&["HSETNX", &by_digest, "id", &record.id], OPERATOR_TIMEOUT)
            .await?;
        let id: Option<String> = self.command(&["HGET", &by_digest, "id"]).await?;
        if id.as_deref() == Some(&*record.id) {
            Ok(())
        } else {
            Err(BookError::Exists)
        }
    }

    /// Replaces the record `before` by a new record, and returns the key's new version. Returns `None` if the stored
    /// record is not `before`.
    pub(super) async fn write_key(
        &self,
        before: &str,
        record: &KeyRecord,
        ceilings: CeilingsSet,
    ) -> Result<Option<i64>, BookError> {
        let after = to_json(record)?;
        let [total, month, day] = ceiling_words(ceilings);
        let keys = ["", ":k", ":x"].map(|part| account_key(&record.account, part));
        let args = [
            record.id.to_string(),
            before.to_owned(),
            after,
            state_of(record),
            total,
            month,
            day,
        ];
        let (word, version): (String, i64) = self
            .ask_durably(&self.0.scripts.set_key, &keys, &args)
            .await?;
        if word == "changed" {
            return Ok(None);
        }
        done(&word)?;
        Ok(Some(version))
    }

    /// Writes the copy of the record that is looked up by digest. Until it is written, calls are checked against the
    /// key's old lists of models and addresses. Everything that decides what the key may hold was already stored by
    /// [`RedisLedger::write_key`].
    pub(super) async fn publish(&self, record: &KeyRecord, version: i64) -> Result<(), BookError> {
        let json = to_json(record)?;
        let keys = [digest_key(&record.digest)];
        let args = [
            record.id.to_string(),
            record.account.to_string(),
            version.to_string(),
            json,
        ];
        let ours: bool = self
            .ask_durably(&self.0.scripts.publish_key, &keys, &args)
            .await?;
        self.0.keys.remove(&record.digest);
        if ours { Ok(()) } else { Err(BookError::Exists) }
    }

    pub(super) async fn stored_key(&self, id: &KeyId) -> Result<Option<StoredKey>, BookError> {
        let account: Option<String> = self.command(&["GET", &id_key(id)]).await?;
        let Some(account) = account else {
            return Ok(None);
        };
        let account = account
            .parse::<AccountId>()
            .map_err(|_| RedisFault::Unexpected(format!("key {id} of account {account:?}")))?;
        let keys = self.stored_keys(&account, &[id.to_string()]).await?;
        Ok(keys.and_then(|mut keys| keys.pop()))
    }

    /// Returns the named keys of an account, or all of its keys if no name is given. `None` if the account does not
    /// exist.
    pub(super) async fn stored_keys(
        &self,
        account: &AccountId,
        ids: &[String],
    ) -> Result<Option<Vec<StoredKey>>, BookError> {
        let keys = [account_key(account, ""), account_key(account, ":k")];
        let reply: Option<(i64, i64, u64, Vec<KeyRow>)> =
            self.ask_patiently(&self.0.scripts.keys, &keys, ids).await?;
        let Some((balance, held, now, rows)) = reply else {
            return Ok(None);
        };
        let free = MicroRub::new(balance).minus_or_zero(MicroRub::new(held));
        Ok(Some(
            rows.into_iter()
                .map(|row| stored(row, free, now))
                .collect::<Result<_, _>>()?,
        ))
    }
}

/// Returns the value of a key's field `s`, which `state.lua` reads.
pub(super) fn state_of(record: &KeyRecord) -> String {
    let enabled = u8::from(record.may_hold());
    match (&record.group, record.concurrency) {
        (None, None) => enabled.to_string(),
        (group, calls) => {
            let group = group.as_deref().unwrap_or_default();
            let calls = calls.map_or_else(String::new, |calls| calls.to_string());
            format!("{enabled}:{group}:{calls}")
        }
    }
}

/// A key as scripts return it: its record, its fields in the order of [`KEY_PARTS`], and its group's fields in the
/// order of [`MONEY_PARTS`], which are empty if the key is in no group.
pub(super) type KeyRow = (String, Vec<Option<String>>, Vec<Option<String>>);

/// The fields of a key that `keys.lua` returns, in this order.
pub(super) const KEY_PARTS: [&str; 9] = ["v", "s", "u", "h", "l", "lm", "ld", "m", "d"];

/// The money fields of a key or a group, in the order of `money.lua`.
pub(super) const MONEY_PARTS: [&str; 8] = ["s", "u", "h", "l", "lm", "ld", "m", "d"];

/// Returns a key's view at the time `now`. `account_free` is the free money of the key's account.
pub(super) fn stored(
    (json, fields, group): KeyRow,
    account_free: MicroRub,
    now: u64,
) -> Result<StoredKey> {
    let record: KeyRecord = serde_json::from_str(&json)
        .map_err(|error| RedisFault::Unexpected(format!("invalid key record: {error}")))?;
    let mut fields = fields.into_iter();
    let version = fields.next().flatten();
    let who = format!("key {}", record.id);
    let money = KeyBook {
        concurrency: record.concurrency,
        ..money_of(&who, fields.collect())?
    };
    let version = parsed(&who, version, "v")?.unwrap_or_default();
    let mut free = account_free;
    if !group.is_empty() {
        let money = money_of(&who, group)?;
        free = money.room(account_free, MicroRub::ZERO, now).0;
    }
    Ok(StoredKey {
        version,
        json,
        view: money.view(record, free, now),
        money,
    })
}

/// Returns the money of a key or a group from its fields, which are in the order of [`MONEY_PARTS`].
pub(super) fn money_of(who: &str, fields: Vec<Option<String>>) -> Result<KeyBook> {
    let fields: [Option<String>; MONEY_PARTS.len()] = fields
        .try_into()
        .map_err(|_| RedisFault::Unexpected(format!("{who}: an unexpected number of fields")))?;
    let [state, used, held, total, month, day, this_month, today] = fields;
    let amount = |field: Option<String>, part: &str| -> Result<Option<MicroRub>> {
        Ok(parsed(who, field, part)?.map(MicroRub::new))
    };
    Ok(KeyBook {
        enabled: state.is_some_and(|state| state.starts_with('1')),
        ceilings: Ceilings {
            total: amount(total, "l")?,
            month: amount(month, "lm")?,
            day: amount(day, "ld")?,
        },
        used: amount(used, "u")?.unwrap_or_default(),
        held: amount(held, "h")?.unwrap_or_default(),
        month: parsed(who, this_month, "m")?.unwrap_or_default(),
        day: parsed(who, today, "d")?.unwrap_or_default(),
        ..KeyBook::default()
    })
}

fn parsed<T: FromStr>(who: &str, field: Option<String>, part: &str) -> Result<Option<T>> {
    let Some(field) = field else { return Ok(None) };
    field.parse::<T>().map(Some).map_err(|_| {
        RedisFault::Unexpected(format!(
            "{who}: field {part} is not in a form that the gateway writes"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_can_spend_neither_more_than_its_ceilings_nor_more_than_the_accounts_free_money() {
        let json =
            r#"{"id":"k1","account":"acme","digest":"00","prefix":"","name":"","status":"active"}"#
                .replace("\"00\"", &format!("{:?}", "00".repeat(32)));
        let now = 20_512 * 86_400_000 + 1;
        let row = |ceiling: Option<&str>, ceiling_day: Option<&str>| {
            let fields = [
                Some("1"),
                Some("1"),
                Some("30"),
                Some("10"),
                ceiling,
                None,
                ceiling_day,
                None,
                Some("20512:20"),
            ];
            let fields = fields.map(|field| field.map(str::to_owned));
            (json.clone(), fields.to_vec(), Vec::new())
        };
        for (ceiling, ceiling_day, account_free, free) in [
            (None, None, 70, 70),
            (Some("100"), None, 70, 60),
            (Some("100"), None, 50, 50),
            (Some("5"), None, 70, 0),
            (Some("100"), Some("50"), 70, 30),
        ] {
            let row = row(ceiling, ceiling_day);
            let key = stored(row, MicroRub::new(account_free), now).unwrap();
            assert_eq!(
                key.view.free_rub,
                MicroRub::new(free),
                "{ceiling:?} {ceiling_day:?} {account_free}"
            );
            assert_eq!(key.view.day.spent_rub, MicroRub::new(10));
            // The key has no charge in this month yet.
            assert_eq!(key.view.month.spent_rub, MicroRub::ZERO);
        }
        let mut torn = row(None, None);
        torn.1[8] = Some("today".into());
        let fault = stored(torn, MicroRub::ZERO, now).err().unwrap();
        assert!(fault.to_string().contains("key k1: field d"), "{fault}");
    }
}

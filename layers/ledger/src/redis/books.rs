//! What an operator needs of the ledger in Redis.

use std::{collections::HashMap, str::FromStr};

use futures_util::future::join_all;

use super::{
    ACCOUNTS_AT_ONCE, RedisLedger, account_key, booked_of, digest_key, digits, receipt_key,
    retention_ms,
};
use crate::{
    account::{AccountId, KeyId, KeyRecord, KeyStatus},
    audit,
    book::KeyBook,
    ceiling::Ceilings,
    conn::{OPERATOR_TIMEOUT, RedisFault},
    contract::{
        AccountBooks, AccountView, Audit, BookError, Entry, JournalPage, JournalPart, KeyChange,
        KeyView, LedgerAdmin, Receipt, TariffVersion,
    },
    money::MicroRub,
    number::RequestNumber,
};

/// How often a key's change is tried again after another change came between.
const CHANGE_ATTEMPTS_MAX: usize = 16;

/// A key as it stands in the ledger.
pub(super) struct StoredKey {
    /// The record's very text: a change is written over this and nothing else.
    json: String,
    version: i64,
    pub(super) money: KeyBook,
    pub(super) view: KeyView,
}

/// A key's ceilings as a script is told of them: in all, of a month, of a day; `None` leaves one as it is.
type CeilingsSet = [Option<Option<MicroRub>>; 3];

impl LedgerAdmin for RedisLedger {
    async fn create_account(&self, id: &AccountId, name: &str) -> Result<AccountView, BookError> {
        // The index first: an id there without an account is passed over, the reverse would be lost.
        let _: i64 = self
            .0
            .conn
            .command_durably(&["SADD", "tg:accounts", id], OPERATOR_TIMEOUT)
            .await?;
        let keys = [account_key(id, "")];
        let word: String = self
            .ask_durably(&self.0.scripts.create_account, &keys, &[name.to_owned()])
            .await?;
        done(&word)?;
        self.account(id).await
    }

    async fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> Result<AccountView, BookError> {
        let mut args = Vec::new();
        if let Some(name) = name {
            args.extend(["name".to_owned(), name.to_owned()]);
        }
        if let Some(suspended) = suspended {
            args.extend(["s".to_owned(), u8::from(suspended).to_string()]);
        }
        let keys = [account_key(id, "")];
        let word: String = self
            .ask_durably(&self.0.scripts.change_account, &keys, &args)
            .await?;
        done(&word)?;
        self.account(id).await
    }

    async fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
        let keys = ["", ":k", ":x"].map(|part| account_key(id, part));
        let row: Option<(String, bool, i64, i64, i64, i64, u64)> = self
            .ask_patiently(&self.0.scripts.account, &keys, &[])
            .await?;
        let Some((name, suspended, balance, held, loss, spent, holds_open)) = row else {
            self.missing_account().await?;
            return Err(BookError::NotFound);
        };
        let [balance_rub, held_rub, loss_rub, spent_rub] =
            [balance, held, loss, spent].map(MicroRub::new);
        Ok(AccountView {
            id: id.clone(),
            name,
            suspended,
            balance_rub,
            held_rub,
            free_rub: balance_rub.minus_or_zero(held_rub),
            spent_rub,
            loss_rub,
            holds_open,
        })
    }

    async fn accounts(&self) -> Result<Vec<AccountView>, BookError> {
        let mut views = Vec::new();
        for ids in self.account_ids().await?.chunks(ACCOUNTS_AT_ONCE) {
            for view in join_all(ids.iter().map(|id| self.account(id))).await {
                match view {
                    Ok(view) => views.push(view),
                    Err(BookError::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(views)
    }

    async fn enter(&self, account: &AccountId, entry: &Entry) -> Result<AccountView, BookError> {
        let keys = ["", ":t", ":j"].map(|part| account_key(account, part));
        let reason = entry.reason.clone().unwrap_or_default();
        let args = [
            entry.id.clone(),
            digits(entry.amount),
            reason,
            retention_ms(),
        ];
        let word: String = self
            .ask_durably(&self.0.scripts.enter, &keys, &args)
            .await?;
        done(&word)?;
        self.account(account).await
    }

    async fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> Result<KeyView, BookError> {
        self.account(&record.account).await?;
        if let Some(known) = self.stored_key(&record.id).await? {
            return self.created_before(known, record, ceilings).await;
        }
        self.claim(record).await?;
        let Ceilings { total, month, day } = ceilings;
        let set = [total, month, day].map(Some);
        match self.write_key("", record, set).await? {
            Some(version) => self.publish(record, version).await?,
            // Somebody else has just created it.
            None => {
                let known = self
                    .stored_key(&record.id)
                    .await?
                    .ok_or(BookError::Exists)?;
                return self.created_before(known, record, ceilings).await;
            }
        }
        self.key(&record.id).await
    }

    async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
        for _ in 0..CHANGE_ATTEMPTS_MAX {
            let known = self.stored_key(id).await?.ok_or(BookError::NotFound)?;
            let mut record = known.view.record;
            change.clone().apply(&mut record);
            let set = [change.ceiling, change.ceiling_month, change.ceiling_day];
            if let Some(version) = self.write_key(&known.json, &record, set).await? {
                self.publish(&record, version).await?;
                return self.key(id).await;
            }
        }
        Err(RedisFault::Unexpected(format!(
            "key {id} is changed by others all the time; try again"
        ))
        .into())
    }

    async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        self.stored_key(id)
            .await?
            .map(|stored| stored.view)
            .ok_or(BookError::NotFound)
    }

    async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        let stored = self
            .stored_keys(account, &[])
            .await?
            .ok_or(BookError::NotFound)?;
        let mut views: Vec<KeyView> = stored.into_iter().map(|stored| stored.view).collect();
        views.sort_unstable_by(|a, b| a.record.id.cmp(&b.record.id));
        Ok(views)
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        // The number does not tell the account, only the day: those are asked first, then all.
        let of_day = self.accounts_of_day(number).await?;
        if let Some(receipt) = self.receipt_among(&of_day, number).await? {
            return Ok(receipt);
        }
        let all = self.account_ids().await?;
        let found = self.receipt_among(&all, number).await?;
        found.ok_or(BookError::NotFound)
    }

    async fn receipt_of(
        &self,
        account: &AccountId,
        number: RequestNumber,
    ) -> Result<Receipt, BookError> {
        let found = self.receipt_in(account, number).await?;
        found.ok_or(BookError::NotFound)
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        self.journal_page(account, part).await
    }

    async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError> {
        let stored = self.stored_books(account).await?;
        Ok(stored.ok_or(BookError::NotFound)?.books(account)?)
    }

    async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
        let keys = ["tg:sys".to_owned()];
        let (id, effective_from_ms): (u64, u64) = self
            .ask_patiently(&self.0.scripts.tariff, &keys, &[fingerprint.to_owned()])
            .await?;
        Ok(TariffVersion {
            id,
            effective_from_ms,
        })
    }

    async fn audit(&self) -> Result<Audit, BookError> {
        audit::over(self).await
    }
}

impl RedisLedger {
    /// A key that is there already may be created again if nothing differs.
    async fn created_before(
        &self,
        known: StoredKey,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> Result<KeyView, BookError> {
        if known.view.record != *record || known.money.ceilings != ceilings {
            return Err(BookError::Exists);
        }
        // The first attempt may have ended before the copy was written.
        self.publish(record, known.version).await?;
        Ok(known.view)
    }

    /// Takes the key's id and digest for it, so that no other account's key gets them.
    async fn claim(&self, record: &KeyRecord) -> Result<(), BookError> {
        let conn = &self.0.conn;
        let by_id = id_key(&record.id);
        let _: i64 = conn
            .command_durably(&["SETNX", &by_id, &record.account], OPERATOR_TIMEOUT)
            .await?;
        let account: Option<String> = conn.command(&["GET", &by_id], OPERATOR_TIMEOUT).await?;
        if account.as_deref() != Some(&*record.account) {
            return Err(BookError::Exists);
        }
        let by_digest = digest_key(&record.digest);
        let _: i64 = conn
            .command_durably(&["HSETNX", &by_digest, "id", &record.id], OPERATOR_TIMEOUT)
            .await?;
        let id: Option<String> = conn
            .command(&["HGET", &by_digest, "id"], OPERATOR_TIMEOUT)
            .await?;
        if id.as_deref() == Some(&*record.id) {
            Ok(())
        } else {
            Err(BookError::Exists)
        }
    }

    /// Writes a key over `before`, and says its version; `None` if it is not `before` any more.
    async fn write_key(
        &self,
        before: &str,
        record: &KeyRecord,
        ceilings: CeilingsSet,
    ) -> Result<Option<i64>, BookError> {
        let after =
            serde_json::to_string(record).map_err(|error| BookError::Unavailable(error.into()))?;
        let [total, month, day] = ceilings.map(|set| match set {
            None => "=".to_owned(),
            Some(None) => String::new(),
            Some(Some(ceiling)) => digits(ceiling),
        });
        let enabled = u8::from(record.status == KeyStatus::Active).to_string();
        let keys = [
            account_key(&record.account, ""),
            account_key(&record.account, ":k"),
        ];
        let args = [
            record.id.to_string(),
            before.to_owned(),
            after,
            enabled,
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

    /// Writes the copy that is found by digest. A copy that is late only shows old models and
    /// addresses: what the key may hold was decided by [`RedisLedger::write_key`].
    async fn publish(&self, record: &KeyRecord, version: i64) -> Result<(), BookError> {
        let json =
            serde_json::to_string(record).map_err(|error| BookError::Unavailable(error.into()))?;
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

    async fn stored_key(&self, id: &KeyId) -> Result<Option<StoredKey>, BookError> {
        let account: Option<String> = self
            .0
            .conn
            .command(&["GET", &id_key(id)], OPERATOR_TIMEOUT)
            .await?;
        let Some(account) = account else {
            return Ok(None);
        };
        let account = account
            .parse::<AccountId>()
            .map_err(|_| RedisFault::Unexpected(format!("key {id} of account {account:?}")))?;
        Ok(self
            .stored_keys(&account, &[id.to_string()])
            .await?
            .and_then(|mut keys| keys.pop()))
    }

    /// These keys of an account, all if none are named; `None` if there is no such account.
    async fn stored_keys(
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

    async fn receipt_among(
        &self,
        accounts: &[AccountId],
        number: RequestNumber,
    ) -> Result<Option<Receipt>, RedisFault> {
        for ids in accounts.chunks(ACCOUNTS_AT_ONCE) {
            for receipt in join_all(ids.iter().map(|id| self.receipt_in(id, number))).await {
                if let Some(receipt) = receipt? {
                    return Ok(Some(receipt));
                }
            }
        }
        Ok(None)
    }

    async fn receipt_in(
        &self,
        account: &AccountId,
        number: RequestNumber,
    ) -> Result<Option<Receipt>, RedisFault> {
        let keys = [
            account_key(account, ""),
            receipt_key(account, number),
            account_key(account, ":j"),
        ];
        let entry: Option<HashMap<String, String>> = self
            .ask_patiently(&self.0.scripts.receipt, &keys, &[])
            .await?;
        entry
            .map(|entry| receipt_of(account, number, &entry))
            .transpose()
    }
}

/// A key's record, and its fields in the order of [`KEY_PARTS`].
pub(super) type KeyRow = (String, Vec<Option<String>>);

/// The fields of a key, as `keys.lua` answers them.
pub(super) const KEY_PARTS: [&str; 9] = ["v", "s", "u", "h", "l", "lm", "ld", "m", "d"];

/// A key's view at the time `now`, where its account has so much free.
pub(super) fn stored(
    (json, fields): KeyRow,
    account_free: MicroRub,
    now: u64,
) -> Result<StoredKey, RedisFault> {
    let record: KeyRecord = serde_json::from_str(&json)
        .map_err(|error| RedisFault::Unexpected(format!("key record: {error}")))?;
    let fields: [Option<String>; KEY_PARTS.len()] = fields
        .try_into()
        .map_err(|_| RedisFault::Unexpected(format!("key {}: other fields", record.id)))?;
    let [
        version,
        enabled,
        used,
        held,
        total,
        month,
        day,
        this_month,
        today,
    ] = fields;
    let amount = |field: Option<String>, part: &str| -> Result<Option<MicroRub>, RedisFault> {
        Ok(parsed(&record, field, part)?.map(MicroRub::new))
    };
    let money = KeyBook {
        enabled: enabled.as_deref() == Some("1"),
        ceilings: Ceilings {
            total: amount(total, "l")?,
            month: amount(month, "lm")?,
            day: amount(day, "ld")?,
        },
        used: amount(used, "u")?.unwrap_or_default(),
        held: amount(held, "h")?.unwrap_or_default(),
        month: parsed(&record, this_month, "m")?.unwrap_or_default(),
        day: parsed(&record, today, "d")?.unwrap_or_default(),
    };
    Ok(StoredKey {
        version: parsed(&record, version, "v")?.unwrap_or_default(),
        json,
        view: money.view(record, account_free, now),
        money,
    })
}

fn parsed<T: FromStr>(
    record: &KeyRecord,
    field: Option<String>,
    part: &str,
) -> Result<Option<T>, RedisFault> {
    let Some(field) = field else { return Ok(None) };
    field.parse::<T>().map(Some).map_err(|_| {
        let id = &record.id;
        RedisFault::Unexpected(format!("key {id}: field {part} is not what we write"))
    })
}

pub(super) fn receipt_of(
    account: &AccountId,
    number: RequestNumber,
    entry: &HashMap<String, String>,
) -> Result<Receipt, RedisFault> {
    let unexpected = |name: &str| RedisFault::Unexpected(format!("receipt {number}: field {name}"));
    let field = |name: &str| entry.get(name).ok_or_else(|| unexpected(name));
    let amount = |name: &str| {
        field(name)?
            .parse()
            .map(MicroRub::new)
            .map_err(|_| unexpected(name))
    };
    Ok(Receipt {
        number,
        at_ms: field("at")?.parse().map_err(|_| unexpected("at"))?,
        account: account.clone(),
        key: field("key")?.parse().map_err(|_| unexpected("key"))?,
        held_rub: amount("held")?,
        cost_rub: amount("cost")?,
        charged_rub: amount("charged")?,
        loss_rub: amount("loss")?,
        booked: booked_of(field("booked")?)?,
        item: serde_json::from_str(field("item")?).map_err(|_| unexpected("item"))?,
    })
}

pub(super) fn id_key(id: &KeyId) -> String {
    format!("tg:id:{id}")
}

fn done(word: &str) -> Result<(), BookError> {
    Err(match word {
        "ok" => return Ok(()),
        "not_found" => BookError::NotFound,
        "exists" => BookError::Exists,
        "below_held" => BookError::BelowHeld,
        "above_max" => BookError::AboveMax,
        word => RedisFault::Unexpected(format!("answer {word:?}")).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        contract::{Booked, Item},
        usage::{End, Usage},
    };

    #[test]
    fn a_receipt_is_read_as_it_was_written() {
        let item = Item {
            model: "m".into(),
            vendor: "v".into(),
            usage: Usage {
                input: 1,
                cached_input: 2,
                cache_write: 3,
                output: u64::MAX,
            },
            price: None,
            estimated: true,
            bounded: true,
            end: End::ClientLeft,
            session: Some("s-1".parse().unwrap()),
        };
        let mut entry: HashMap<String, String> = [
            ("at", "1700000000000"),
            ("key", "k1"),
            ("held", "9007199254740991"),
            ("cost", "5"),
            ("charged", "3"),
            ("loss", "2"),
            ("booked", "late"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        entry.insert("item".into(), serde_json::to_string(&item).unwrap());
        let (account, number) = ("acme".parse().unwrap(), RequestNumber::now_v7());
        let receipt = receipt_of(&account, number, &entry).unwrap();
        assert_eq!(
            (receipt.held_rub, receipt.loss_rub),
            (MicroRub::MAX, MicroRub::new(2))
        );
        assert_eq!((receipt.booked, &receipt.item), (Booked::Late, &item));

        // What a later version writes is read by this one as far as it knows it; what an earlier one wrote has less.
        let later = serde_json::to_string(&receipt.item).unwrap();
        let later = later.replacen('{', r#"{"from_later":{"a":[1]},"#, 1);
        entry.insert("item".into(), later);
        entry.insert("from_later".into(), "x".into());
        let read = receipt_of(&account, number, &entry).unwrap();
        assert_eq!(read, receipt);
        let earlier = serde_json::to_string(&receipt.item).unwrap();
        entry.insert("item".into(), earlier.replace(r#","session":"s-1""#, ""));
        let read = receipt_of(&account, number, &entry).unwrap();
        let mut expected = receipt;
        expected.item.session = None;
        assert_eq!(read, expected);

        entry.remove("loss");
        let error = receipt_of(&account, number, &entry).unwrap_err();
        assert!(error.to_string().ends_with("field loss"), "{error}");
    }

    #[test]
    fn what_a_key_can_spend_is_the_less_of_account_and_ceiling() {
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
            (json.clone(), fields.to_vec())
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
            // Of its month nothing was written yet.
            assert_eq!(key.view.month.spent_rub, MicroRub::ZERO);
        }
        let mut torn = row(None, None);
        torn.1[8] = Some("today".into());
        let fault = stored(torn, MicroRub::ZERO, now).err().unwrap();
        assert!(fault.to_string().contains("key k1: field d"), "{fault}");
    }
}

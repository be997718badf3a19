//! Fills a Redis server with a copy of another ledger. Until the copy is complete, the server's schema version is a
//! word that gateways do not accept.

use std::{collections::HashMap, time::Duration};

use futures_util::future::try_join_all;

use super::{
    COPYING, RECEIPT_MS, RedisLedger, SCHEMA, digits,
    events::{FEED, feed_key, levels_field},
    keys::state_of,
    names::{account_key, digest_key, id_key, receipt_key},
    new_enough, other_schema, to_json,
};
use crate::{
    account::{AccountId, KeyRecord},
    ceiling::{Ceilings, Period},
    conn::{OPERATOR_TIMEOUT, RedisConn, RedisSettings, Result},
    contract::{
        AccountBooks, BookError, Document, GroupView, JournalLine, KeyView, LedgerAdmin,
        LedgerError, Receipt, TariffVersion, if_found,
    },
    embedded::now_ms,
    happening::{Event, Levels, Watched},
    money::MicroRub,
    transfer::{Source, Target, same},
};

/// The largest number of entries that one command writes. Redis refuses a command with more than 1 048 576 arguments,
/// and even a much shorter command blocks the server for long.
const ENTRIES_AT_ONCE: usize = 500;
/// The largest number of Redis keys that are written at the same time, and in one command.
const KEYS_AT_ONCE: usize = 64;
/// How often the copy checks whether a gateway uses the ledger. Every second, a running gateway writes a Redis key that
/// expires after one second (see [`RedisLedger::watch`]).
const SIGN_LOOKS: u32 = 10;
/// The interval between two checks whether a gateway uses the ledger.
const SIGN_LOOK_EVERY: Duration = Duration::from_millis(250);

/// A server or Cluster that is being filled with a copy. If a run is interrupted, the next run continues it.
#[derive(Debug)]
pub struct RedisCopy {
    ledger: RedisLedger,
    now_ms: u64,
    /// The account whose journal is being written, and the position of the journal's last line.
    journal: Option<(AccountId, u64, u64)>,
}

impl RedisCopy {
    /// Reserves an empty server for the copy. Also accepts a server that an interrupted run has reserved.
    ///
    /// # Errors
    /// An error if the server is unreachable, too old, used by a running gateway, or not empty.
    pub async fn begin(url: &str, settings: RedisSettings) -> Result<Self, LedgerError> {
        let conn = RedisConn::connect(url, settings).await?;
        new_enough(&conn)?;
        let schema: Option<String> = conn
            .command(&["HGET", "tg:sys", "schema"], OPERATOR_TIMEOUT)
            .await?;
        match schema.as_deref() {
            None | Some(COPYING) => {}
            Some(SCHEMA) => {
                let accounts: u64 = conn
                    .command(&["SCARD", "tg:accounts"], OPERATOR_TIMEOUT)
                    .await?;
                if accounts > 0 {
                    let text = format!(
                        "the server has accounts already ({accounts}): name an empty server"
                    );
                    return Err(LedgerError::Unavailable(text.into()));
                }
                if has_sign_of_life(&conn).await? {
                    let text = "a gateway is using this server: stop the gateway first";
                    return Err(LedgerError::Unavailable(text.into()));
                }
            }
            Some(schema) => return Err(other_schema(schema).into()),
        }
        let words = ["HSET", "tg:sys", "schema", COPYING];
        let _: i64 = conn.command(&words, OPERATOR_TIMEOUT).await?;
        Ok(Self {
            ledger: RedisLedger::begin(conn).await?,
            now_ms: now_ms(),
            journal: None,
        })
    }

    fn conn(&self) -> &RedisConn {
        self.ledger.conn()
    }

    async fn set(&self, words: &[&str]) -> Result<()> {
        let _: i64 = self.ledger.command(words).await?;
        Ok(())
    }

    async fn set_fields(&self, hash: &str, fields: &[(String, String)]) -> Result<()> {
        let mut words = vec!["HSET", hash];
        words.extend(
            fields
                .iter()
                .flat_map(|(name, value)| [name.as_str(), value.as_str()]),
        );
        self.set(&words).await
    }

    /// Writes a key's record to three places: to its account, under its id and under its digest.
    async fn key(&self, records: &str, record: &KeyRecord) -> Result<(), BookError> {
        let json = to_json(record)?;
        self.set(&["HSET", records, &record.id, &json]).await?;
        let (by_id, by_digest) = (id_key(&record.id), digest_key(&record.digest));
        let words = ["SET", &by_id, &record.account];
        let _: String = self.ledger.command(&words).await?;
        let fields = [
            ("id", &*record.id),
            ("account", &*record.account),
            ("version", "1"),
            ("record", &json),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(self.set_fields(&by_digest, &fields).await?)
    }

    /// Returns the next position in the journal for a line with this time. Positions only increase.
    fn place(&mut self, account: &AccountId, at_ms: u64) -> (u64, u64) {
        let (last_ms, last_sequence) = match &self.journal {
            Some((id, ms, sequence)) if id == account => (*ms, *sequence),
            // Position 0-1 is the marker for dropped lines, so the first line comes after it.
            _ => (0, 1),
        };
        let place = if at_ms > last_ms {
            (at_ms, 0)
        } else {
            (last_ms, last_sequence + 1)
        };
        self.journal = Some((account.clone(), place.0, place.1));
        place
    }
}

/// Returns a key's money as fields for the hash of its account.
fn key_fields(key: &KeyView) -> Vec<(String, String)> {
    let fields = vec![("s", state_of(&key.record)), ("v", "1".to_owned())];
    let (id, spent) = (&key.record.id, key.spent_rub);
    money_fields(id, fields, spent, key.periods(), key.ceilings())
}

/// Returns a group's money as fields for the hash of its account.
fn group_fields(group: &GroupView) -> Vec<(String, String)> {
    let record = &group.record;
    let fields = vec![
        ("name", record.name.clone()),
        ("s", u8::from(!record.removed).to_string()),
        ("c", digits(group.carried_rub)),
    ];
    let name = format!("g:{}", record.id);
    let (spent, periods) = (group.spent_rub, group.periods());
    money_fields(&name, fields, spent, periods, group.ceilings())
}

/// Adds the fields that keys and groups have in common. The held amount is zero, because all gateways are stopped
/// during a copy.
fn money_fields(
    name: &str,
    mut fields: Vec<(&str, String)>,
    spent: MicroRub,
    (month, day): (Period, Period),
    ceilings: Ceilings,
) -> Vec<(String, String)> {
    fields.extend([
        ("u", digits(spent)),
        ("h", "0".to_owned()),
        ("m", month.to_string()),
        ("d", day.to_string()),
    ]);
    let Ceilings { total, month, day } = ceilings;
    for (part, ceiling) in [("l", total), ("lm", month), ("ld", day)] {
        fields.extend(ceiling.map(|ceiling| (part, digits(ceiling))));
    }
    let named = |(part, value)| (format!("{name}.{part}"), value);
    fields.into_iter().map(named).collect()
}

impl Target for RedisCopy {
    type Ledger = RedisLedger;

    async fn has(&mut self, books: &AccountBooks) -> Result<bool, BookError> {
        let there = if_found(self.ledger.books(&books.view.id).await)?;
        Ok(there.is_some_and(|there| same(&there, books)))
    }

    /// Writes journal lines, except lines that the server would have dropped for their age by now.
    async fn lines(
        &mut self,
        account: &AccountId,
        lines: &[JournalLine],
        forgotten: bool,
    ) -> Result<(), BookError> {
        let stored = |line: &&JournalLine| line.at_ms().saturating_add(RECEIPT_MS) > self.now_ms;
        let stored: Vec<&JournalLine> = lines.iter().filter(stored).collect();
        let forgotten = forgotten || stored.len() < lines.len();
        let mut keys = vec![account_key(account, ""), account_key(account, ":j")];
        let mut args = vec![u8::from(forgotten).to_string()];
        for line in stored {
            let (ms, sequence) = self.place(account, line.at_ms());
            let (keep_ms, fields) = match line {
                JournalLine::Entry { .. } => (0, entry_fields(line)),
                JournalLine::Call(receipt) => {
                    keys.push(receipt_key(account, receipt.number));
                    self.ledger.note_day(receipt.number, account).await;
                    let age_ms = self.now_ms.saturating_sub(receipt.at_ms);
                    ((RECEIPT_MS - age_ms).max(1), call_fields(receipt)?)
                }
            };
            args.extend([ms, sequence, keep_ms, fields.len() as u64].map(|n| n.to_string()));
            args.extend(fields);
        }
        let _: u64 = self
            .ledger
            .ask_patiently(&self.ledger.0.scripts.copy_lines, &keys, &args)
            .await?;
        Ok(())
    }

    /// Writes an account. The balance is written last, because an account without a balance counts as missing: an
    /// interrupted copy of an account is repeated.
    async fn account(
        &mut self,
        books: &AccountBooks,
        entries: &HashMap<String, MicroRub>,
    ) -> Result<(), BookError> {
        let view = &books.view;
        self.set(&["SADD", "tg:accounts", &view.id]).await?;
        let entries: Vec<(String, String)> = entries
            .iter()
            .map(|(id, amount)| (id.clone(), digits(*amount)))
            .collect();
        let of_account = ["", ":k", ":t"].map(|part| account_key(&view.id, part));
        let [money, records, entered] = &of_account;
        for some in entries.chunks(ENTRIES_AT_ONCE) {
            self.set_fields(entered, some).await?;
        }
        for some in books.keys.chunks(KEYS_AT_ONCE) {
            let mut written = Vec::with_capacity(some.len());
            for key in some {
                written.push(self.key(records, &key.record));
            }
            try_join_all(written).await?;
            let fields: Vec<(String, String)> = some.iter().flat_map(key_fields).collect();
            self.set_fields(money, &fields).await?;
        }
        if !books.groups.is_empty() {
            let ids = books.groups.iter().map(|group| &*group.record.id);
            let ids = ids.collect::<Vec<_>>().join(" ");
            let mut fields: Vec<_> = books.groups.iter().flat_map(group_fields).collect();
            fields.push(("groups".to_owned(), ids));
            self.set_fields(money, &fields).await?;
        }
        let of_account = [
            ("name", view.name.clone()),
            ("s", u8::from(view.suspended).to_string()),
            ("h", "0".to_owned()),
            ("loss", digits(view.loss_rub)),
            ("b", digits(view.balance_rub)),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        Ok(self.set_fields(money, &of_account).await?)
    }

    async fn tariff(&mut self, version: TariffVersion, fingerprint: &str) -> Result<(), BookError> {
        let (id, from) = (
            version.id.to_string(),
            version.effective_from_ms.to_string(),
        );
        let words = [
            "HSET",
            "tg:sys",
            "tariff",
            fingerprint,
            "tariff_id",
            &id,
            "tariff_from",
            &from,
        ];
        Ok(self.set(&words).await?)
    }

    async fn levels(
        &mut self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> Result<(), BookError> {
        let fields = [(levels_field(of), levels.to_string())];
        Ok(self.set_fields(&account_key(account, ""), &fields).await?)
    }

    /// Writes events, except those that an interrupted run has already written.
    async fn events(&mut self, events: &[Event]) -> Result<(), BookError> {
        let last: Option<u64> = self.ledger.command(&["GET", &feed_key(":last")]).await?;
        let last = last.unwrap_or_default();
        for event in events.iter().filter(|event| event.number > last) {
            let (place, at) = (format!("{}-0", event.number), event.at_ms.to_string());
            let json = to_json(&event.what)?;
            let mut words = vec!["XADD", FEED, &place, "at", &at, "what", &json];
            if let Some(account) = &event.account {
                words.extend(["account", account]);
            }
            if let Some(key) = &event.key {
                words.extend(["key", key]);
            }
            let _: String = self.ledger.command(&words).await?;
            let (last, number) = (feed_key(":last"), event.number.to_string());
            let words = ["SET", last.as_str(), &number];
            let _: String = self.ledger.command(&words).await?;
        }
        Ok(())
    }

    async fn document(&mut self, document: &Document) -> Result<(), BookError> {
        let text = format!("{}:{}", document.version, document.text);
        let field = [(document.name.clone(), text)];
        Ok(self.set_fields(&feed_key(":notes"), &field).await?)
    }

    async fn filled(&mut self) -> Result<RedisLedger, BookError> {
        Ok(self.ledger.clone())
    }

    async fn publish(self, _: RedisLedger) -> Result<(), BookError> {
        let words = ["HSET", "tg:sys", "schema", SCHEMA];
        let conn = self.conn();
        let _: i64 = conn.command_durably(&words, OPERATOR_TIMEOUT).await?;
        Ok(())
    }
}

impl Source for RedisLedger {
    async fn entries(&self, account: &AccountId) -> Result<HashMap<String, MicroRub>, BookError> {
        let key = account_key(account, ":t");
        let entries: Vec<(String, i64)> = self.scan_hash(&key, "*").await?;
        let entries = entries.into_iter();
        Ok(entries
            .map(|(id, amount)| (id, MicroRub::new(amount)))
            .collect())
    }

    async fn unsettled(&self, account: &AccountId) -> Result<u64, BookError> {
        let key = account_key(account, ":e");
        Ok(self.command(&["HLEN", &key]).await?)
    }

    async fn tariff(&self) -> Result<Option<(TariffVersion, String)>, BookError> {
        let words = ["HMGET", "tg:sys", "tariff", "tariff_id", "tariff_from"];
        let (fingerprint, id, from): (Option<String>, Option<u64>, Option<u64>) =
            self.command(&words).await?;
        let (Some(fingerprint), Some(id), Some(effective_from_ms)) = (fingerprint, id, from) else {
            return Ok(None);
        };
        let version = TariffVersion {
            id,
            effective_from_ms,
        };
        Ok(Some((version, fingerprint)))
    }
}

impl RedisLedger {
    /// Returns whether a gateway uses the ledger now. In a Cluster this cannot be detected, so the result is always
    /// false.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger is unreachable.
    pub async fn is_served_from(&self) -> Result<bool, LedgerError> {
        Ok(has_sign_of_life(self.conn()).await?)
    }
}

async fn has_sign_of_life(conn: &RedisConn) -> Result<bool> {
    for look in 0..SIGN_LOOKS {
        if look > 0 {
            tokio::time::sleep(SIGN_LOOK_EVERY).await;
        }
        if conn.command(&["EXISTS", "tg:w"], OPERATOR_TIMEOUT).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the fields that `settle.lua` would write for this receipt.
fn call_fields(receipt: &Receipt) -> Result<Vec<String>, BookError> {
    let item = to_json(&receipt.item)?;
    let mut fields = in_turn([
        ("kind", "call".to_owned()),
        ("at", receipt.at_ms.to_string()),
        ("number", receipt.number.to_string()),
        ("key", receipt.key.to_string()),
        ("held", digits(receipt.held_rub)),
        ("cost", digits(receipt.cost_rub)),
        ("charged", digits(receipt.charged_rub)),
        ("loss", digits(receipt.loss_rub)),
        ("booked", receipt.booked.as_str().to_owned()),
        ("item", item),
    ]);
    if let Some(group) = &receipt.group {
        fields.extend(in_turn([("group", group.to_string())]));
    }
    Ok(fields)
}

/// Returns the fields that `enter.lua` would write for this entry. Returns no fields for a call.
fn entry_fields(line: &JournalLine) -> Vec<String> {
    let JournalLine::Entry {
        id,
        at_ms,
        amount_rub,
        reason,
        ..
    } = line
    else {
        return Vec::new();
    };
    in_turn([
        ("kind", "entry".to_owned()),
        ("at", at_ms.to_string()),
        ("id", id.clone()),
        ("amount", digits(*amount_rub)),
        ("reason", reason.clone().unwrap_or_default()),
    ])
}

fn in_turn<const N: usize>(fields: [(&str, String); N]) -> Vec<String> {
    fields
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::lines::{line_of, receipt_of};
    use super::*;
    use crate::{
        contract::{Booked, Item},
        number::RequestNumber,
        usage::End,
    };

    fn pairs(words: &[String]) -> HashMap<String, String> {
        words
            .chunks(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect()
    }

    #[test]
    fn copied_journal_lines_are_read_back_unchanged() {
        let account: AccountId = "acme".parse().unwrap();
        let receipt = Receipt {
            number: RequestNumber::now_v7(),
            at_ms: 5,
            account: account.clone(),
            key: "k1".parse().unwrap(),
            group: Some("g1".parse().unwrap()),
            held_rub: MicroRub::new(9),
            cost_rub: MicroRub::new(5),
            charged_rub: MicroRub::new(3),
            loss_rub: MicroRub::new(2),
            booked: Booked::Late,
            item: Item::new("m", "v", End::Finished),
        };
        let copied = pairs(&call_fields(&receipt).unwrap());
        assert_eq!(
            receipt_of(&account, receipt.number, &copied).unwrap(),
            receipt
        );
        let call = JournalLine::Call(receipt);
        assert_eq!(line_of(&account, "5-0", &copied).unwrap(), call);
        let entry = JournalLine::Entry {
            id: "p1".into(),
            at_ms: 7,
            account: account.clone(),
            amount_rub: MicroRub::new(-7),
            reason: Some("paid twice".into()),
        };
        let copied = pairs(&entry_fields(&entry));
        assert_eq!(line_of(&account, "7-0", &copied).unwrap(), entry);
    }
}

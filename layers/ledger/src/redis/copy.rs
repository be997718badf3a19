//! Fills a ledger in Redis with a copy of another ledger. Until the copy is published, its schema version is a word
//! that gateways do not accept.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::try_join_all;

use super::{
    COPYING, RECEIPT_MS, RedisLedger, SCHEMA, digits,
    events::{FEED, feed_key, levels_field},
    keys::state_of,
    names::{account_key, digest_key, id_key, receipt_key},
    new_enough, other_schema,
};
use crate::{
    account::{AccountId, KeyRecord},
    conn::{OPERATOR_TIMEOUT, RedisConn, RedisFault, RedisSettings},
    contract::{
        AccountBooks, BookError, Document, GroupView, JournalLine, KeyView, LedgerAdmin,
        LedgerError, Receipt, TariffVersion,
    },
    happening::{Event, Levels, Watched},
    money::MicroRub,
    transfer::{Source, Target, same},
};

/// The largest number of entries that one command writes. Redis refuses a command of more than 1 048 576 words, and
/// even a much shorter command blocks it for long.
const ENTRIES_AT_ONCE: usize = 500;
/// The largest number of keys that are written at the same time; also the largest number of keys in one command.
const KEYS_AT_ONCE: usize = 64;
/// The number of checks whether a gateway uses the ledger, and the interval between them. A running gateway writes a
/// key every second (see [`RedisLedger::watch`]), which expires after one second.
const SIGN_LOOKS: u32 = 10;
const SIGN_LOOK_EVERY: Duration = Duration::from_millis(250);

/// A server or Cluster that is being filled. If an earlier run was interrupted, the next run continues it.
#[derive(Debug)]
pub struct RedisCopy {
    ledger: RedisLedger,
    now_ms: u64,
    /// The account whose journal is being written, and the position of the journal's last line.
    journal: Option<(AccountId, u64, u64)>,
}

impl RedisCopy {
    /// Reserves an empty server for the copy, or the server that an earlier run has reserved.
    ///
    /// # Errors
    /// An error if the server is out of reach, too old, used by a running gateway, or has accounts.
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
                    let text =
                        format!("the server has accounts already ({accounts}): name an empty one");
                    return Err(LedgerError::Unavailable(text.into()));
                }
                if has_sign_of_life(&conn).await? {
                    let text = "a gateway serves from the server: stop it first";
                    return Err(LedgerError::Unavailable(text.into()));
                }
            }
            Some(schema) => return Err(other_schema(schema).into()),
        }
        let words = ["HSET", "tg:sys", "schema", COPYING];
        let _: i64 = conn.command(&words, OPERATOR_TIMEOUT).await?;
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            ledger: RedisLedger::begin(conn).await?,
            now_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
            journal: None,
        })
    }

    fn conn(&self) -> &RedisConn {
        self.ledger.conn()
    }

    async fn set(&self, words: &[&str]) -> Result<(), RedisFault> {
        let _: i64 = self.conn().command(words, OPERATOR_TIMEOUT).await?;
        Ok(())
    }

    /// Writes some fields of a hash.
    async fn set_fields(&self, hash: &str, fields: &[(String, String)]) -> Result<(), RedisFault> {
        let mut words = vec!["HSET", hash];
        words.extend(
            fields
                .iter()
                .flat_map(|(name, value)| [name.as_str(), value.as_str()]),
        );
        self.set(&words).await
    }

    /// Writes a key's record three times: in its account, under its id and under its digest.
    async fn key(&self, records: &str, record: &KeyRecord) -> Result<(), BookError> {
        let json =
            serde_json::to_string(record).map_err(|error| BookError::Unavailable(error.into()))?;
        self.set(&["HSET", records, &record.id, &json]).await?;
        let (by_id, by_digest) = (id_key(&record.id), digest_key(&record.digest));
        let _: String = self
            .conn()
            .command(&["SET", &by_id, &record.account], OPERATOR_TIMEOUT)
            .await?;
        let fields = [
            ("id", &*record.id),
            ("account", &*record.account),
            ("version", "1"),
            ("record", &json),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(self.set_fields(&by_digest, &fields).await?)
    }

    /// Returns the next position for a line with this time. Positions only increase.
    fn place(&mut self, account: &AccountId, at_ms: u64) -> (u64, u64) {
        let (last_ms, last_sequence) = match &self.journal {
            Some((id, ms, sequence)) if id == account => (*ms, *sequence),
            // The first line comes after the marker for dropped lines, which is at position 0-1.
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

/// Returns a key's money as fields of its account's hash. The held amount is zero, since the gateways are stopped
/// during a copy.
fn money_fields(key: &KeyView) -> Vec<(String, String)> {
    let record = &key.record;
    let (month, day) = key.periods();
    let mut fields = vec![
        ("s", state_of(record)),
        ("u", digits(key.spent_rub)),
        ("h", "0".to_owned()),
        ("v", "1".to_owned()),
        ("m", month.to_string()),
        ("d", day.to_string()),
    ];
    for (part, ceiling) in [
        ("l", key.ceiling_rub),
        ("lm", key.month.ceiling_rub),
        ("ld", key.day.ceiling_rub),
    ] {
        fields.extend(ceiling.map(|ceiling| (part, digits(ceiling))));
    }
    let named = |(part, value)| (format!("{}.{part}", record.id), value);
    fields.into_iter().map(named).collect()
}

/// Returns a group's money as fields of its account's hash.
fn group_fields(group: &GroupView) -> Vec<(String, String)> {
    let record = &group.record;
    let (month, day) = group.periods();
    let mut fields = vec![
        ("name", record.name.clone()),
        ("s", u8::from(!record.removed).to_string()),
        ("u", digits(group.spent_rub)),
        ("h", "0".to_owned()),
        ("c", digits(group.carried_rub)),
        ("m", month.to_string()),
        ("d", day.to_string()),
    ];
    for (part, ceiling) in [
        ("l", group.ceiling_rub),
        ("lm", group.month.ceiling_rub),
        ("ld", group.day.ceiling_rub),
    ] {
        fields.extend(ceiling.map(|ceiling| (part, digits(ceiling))));
    }
    let named = |(part, value)| (format!("g:{}.{part}", record.id), value);
    fields.into_iter().map(named).collect()
}

impl Target for RedisCopy {
    type Ledger = RedisLedger;

    async fn has(&mut self, books: &AccountBooks) -> Result<bool, BookError> {
        match self.ledger.books(&books.view.id).await {
            Ok(there) => Ok(same(&there, books)),
            Err(BookError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes lines of the journal, except those so old that the server would have dropped them by now.
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

    /// Writes an account. Its balance is last: an account without a balance counts as not existing yet.
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
            let fields: Vec<(String, String)> = some.iter().flat_map(money_fields).collect();
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

    /// Skips events that an earlier run of the copy has written.
    async fn events(&mut self, events: &[Event]) -> Result<(), BookError> {
        let last: Option<u64> = self
            .conn()
            .command(&["GET", &feed_key(":last")], OPERATOR_TIMEOUT)
            .await?;
        let last = last.unwrap_or_default();
        for event in events.iter().filter(|event| event.number > last) {
            let (place, at) = (format!("{}-0", event.number), event.at_ms.to_string());
            let json = serde_json::to_string(&event.what)
                .map_err(|error| BookError::Unavailable(error.into()))?;
            let mut words = vec!["XADD", FEED, &place, "at", &at, "what", &json];
            if let Some(account) = &event.account {
                words.extend(["account", account]);
            }
            if let Some(key) = &event.key {
                words.extend(["key", key]);
            }
            let _: String = self.conn().command(&words, OPERATOR_TIMEOUT).await?;
            let (last, number) = (feed_key(":last"), event.number.to_string());
            let words = ["SET", last.as_str(), &number];
            let _: String = self.conn().command(&words, OPERATOR_TIMEOUT).await?;
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
        let _: i64 = self
            .conn()
            .command_durably(&words, OPERATOR_TIMEOUT)
            .await?;
        Ok(())
    }
}

impl Source for RedisLedger {
    async fn entries(&self, account: &AccountId) -> Result<HashMap<String, MicroRub>, BookError> {
        let key = account_key(account, ":t");
        let mut entries = HashMap::new();
        let mut cursor = 0u64;
        loop {
            let (next, some): (u64, HashMap<String, i64>) = self
                .conn()
                .command(
                    &["HSCAN", &key, &cursor.to_string(), "COUNT", "1000"],
                    OPERATOR_TIMEOUT,
                )
                .await?;
            entries.extend(
                some.into_iter()
                    .map(|(id, amount)| (id, MicroRub::new(amount))),
            );
            cursor = next;
            if cursor == 0 {
                return Ok(entries);
            }
        }
    }

    async fn unsettled(&self, account: &AccountId) -> Result<u64, BookError> {
        let key = account_key(account, ":e");
        Ok(self
            .conn()
            .command(&["HLEN", &key], OPERATOR_TIMEOUT)
            .await?)
    }

    async fn tariff(&self) -> Result<Option<(TariffVersion, String)>, BookError> {
        let words = ["HMGET", "tg:sys", "tariff", "tariff_id", "tariff_from"];
        let (fingerprint, id, from): (Option<String>, Option<u64>, Option<u64>) =
            self.conn().command(&words, OPERATOR_TIMEOUT).await?;
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
    /// Returns whether a gateway uses the ledger now. Always false for a Cluster, which does not show whether a gateway
    /// uses it.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger is out of reach.
    pub async fn is_served_from(&self) -> Result<bool, LedgerError> {
        Ok(has_sign_of_life(self.conn()).await?)
    }
}

async fn has_sign_of_life(conn: &RedisConn) -> Result<bool, RedisFault> {
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

/// Returns the fields that `settle.lua` would write for a receipt.
fn call_fields(receipt: &Receipt) -> Result<Vec<String>, BookError> {
    let json = |error: serde_json::Error| BookError::Unavailable(error.into());
    let booked = serde_json::to_string(&receipt.booked).map_err(json)?;
    let item = serde_json::to_string(&receipt.item).map_err(json)?;
    let mut fields = in_turn([
        ("kind", "call".to_owned()),
        ("at", receipt.at_ms.to_string()),
        ("number", receipt.number.to_string()),
        ("key", receipt.key.to_string()),
        ("held", digits(receipt.held_rub)),
        ("cost", digits(receipt.cost_rub)),
        ("charged", digits(receipt.charged_rub)),
        ("loss", digits(receipt.loss_rub)),
        ("booked", booked.trim_matches('"').to_owned()),
        ("item", item),
    ]);
    if let Some(group) = &receipt.group {
        fields.extend(in_turn([("group", group.to_string())]));
    }
    Ok(fields)
}

/// Returns the fields that `enter.lua` would write for an entry; empty for a call.
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
    fn copied_journal_lines_are_read_unchanged() {
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

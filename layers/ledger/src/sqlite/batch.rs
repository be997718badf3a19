//! Records into the file: what came together, in one transaction.
//!
//! A charge leaves a receipt and the totals of its account and its key. Those are what they came to, so
//! that of a run of charges the last are enough: they are written once for each account and key, before
//! any other record and at the end.

use std::{collections::BTreeMap, sync::Arc};

use rusqlite::{CachedStatement, Connection, params};
use uuid::fmt::Hyphenated;

use super::file::{integer, one};
use crate::{
    account::{AccountId, KeyId},
    contract::{Item, Receipt, Settlement},
    durable::file::{in_one_commit, to_json},
    embedded::{Record, Used},
    money::MicroRub,
    number::RequestNumber,
    price::Price,
};

/// A dispute moved nothing: what is booked later takes its place. Anything else stands.
const RECEIPT: &str = "
INSERT INTO receipts (number, at_ms, account, key, model, vendor, input, cached_input, cache_write,
    output, held, cost, charged, loss, ended, booked, estimated, price, bounded, session,
    classes, unpriced, vendor_cost)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
    ?21, ?22, ?23)
ON CONFLICT (number) DO UPDATE SET
    at_ms = excluded.at_ms, account = excluded.account, key = excluded.key,
    model = excluded.model, vendor = excluded.vendor, input = excluded.input,
    cached_input = excluded.cached_input, cache_write = excluded.cache_write,
    output = excluded.output, held = excluded.held, cost = excluded.cost,
    charged = excluded.charged, loss = excluded.loss, ended = excluded.ended,
    booked = excluded.booked, estimated = excluded.estimated, price = excluded.price,
    bounded = excluded.bounded, session = excluded.session, classes = excluded.classes,
    unpriced = excluded.unpriced, vendor_cost = excluded.vendor_cost
WHERE receipts.booked = 'stale' AND excluded.booked <> 'stale'";

/// So many prices of a batch are remembered as text.
const PRICES_MAX: usize = 16;

/// Commits records in their order, all or none.
pub(super) fn commit<'a>(
    conn: &mut Connection,
    records: impl Iterator<Item = &'a Record>,
) -> rusqlite::Result<()> {
    let mut records = records.peekable();
    if records.peek().is_none() {
        return Ok(());
    }
    in_one_commit(conn, |conn| write(conn, records))
}

/// Writes records in their order; a transaction is open.
pub(super) fn write<'a>(
    conn: &Connection,
    records: impl Iterator<Item = &'a Record>,
) -> rusqlite::Result<()> {
    let mut batch = Batch {
        conn,
        receipts: Receipts::new(conn)?,
        totals: Totals::default(),
    };
    for record in records {
        batch.write(record)?;
    }
    batch.totals.write(conn)
}

struct Batch<'a, 'conn> {
    conn: &'conn Connection,
    receipts: Receipts<'conn>,
    totals: Totals<'a>,
}

impl<'a> Batch<'a, '_> {
    fn write(&mut self, record: &'a Record) -> rusqlite::Result<()> {
        let conn = self.conn;
        if !matches!(record, Record::Settled { .. }) {
            self.totals.write(conn)?;
        }
        match record {
            Record::Settled {
                receipt,
                balance,
                loss,
                used,
                noted,
            } => {
                self.receipts.write(receipt)?;
                if *noted {
                    forget(conn, receipt.number)?;
                }
                self.totals
                    .accounts
                    .insert(&receipt.account, (*balance, *loss));
                if let Some(used) = used {
                    self.totals.keys.insert(&receipt.key, *used);
                }
                Ok(())
            }
            Record::Account {
                id,
                name,
                suspended,
            } => {
                let sql = "INSERT INTO accounts (id, name, suspended, balance, loss) VALUES (?1, ?2, ?3, 0, 0)
                           ON CONFLICT (id) DO UPDATE SET name = excluded.name, suspended = excluded.suspended";
                one(conn
                    .prepare_cached(sql)?
                    .execute(params![&**id, name, suspended])?)
            }
            Record::Entry {
                account,
                entry,
                at_ms,
                balance,
            } => {
                let sql = "INSERT INTO entries (account, id, amount, reason, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)
                           ON CONFLICT (account, id) DO NOTHING";
                let row = params![
                    &**account,
                    entry.id,
                    entry.amount.micro(),
                    entry.reason,
                    integer(*at_ms)
                ];
                conn.prepare_cached(sql)?.execute(row)?;
                let sql = "UPDATE accounts SET balance = ?2 WHERE id = ?1";
                one(conn
                    .prepare_cached(sql)?
                    .execute(params![&**account, balance.micro()])?)
            }
            Record::Key { record, ceilings } => {
                // Nothing is written where there is no account.
                let sql = "INSERT INTO keys (id, account, digest, ceiling, ceiling_month, ceiling_day, used, record)
                           SELECT ?1, ?2, ?3, ?4, ?5, ?6, 0, ?7 FROM accounts WHERE id = ?2
                           ON CONFLICT (id) DO UPDATE SET
                               ceiling = excluded.ceiling, ceiling_month = excluded.ceiling_month,
                               ceiling_day = excluded.ceiling_day, record = excluded.record";
                let row = params![
                    &*record.id,
                    &*record.account,
                    record.digest.to_string(),
                    ceilings.total.map(MicroRub::micro),
                    ceilings.month.map(MicroRub::micro),
                    ceilings.day.map(MicroRub::micro),
                    to_json(record)?
                ];
                one(conn.prepare_cached(sql)?.execute(row)?)
            }
            Record::Noted(running) => note(conn, running),
            Record::Forgotten(number) => forget(conn, *number),
            Record::Tariff {
                version,
                fingerprint,
            } => {
                let sql =
                    "INSERT INTO tariff (id, effective_from_ms, fingerprint) VALUES (?1, ?2, ?3)";
                let row = params![
                    integer(version.id),
                    integer(version.effective_from_ms),
                    fingerprint
                ];
                one(conn.prepare_cached(sql)?.execute(row)?)
            }
        }
    }
}

/// Writes receipts.
pub(super) struct Receipts<'conn> {
    insert: CachedStatement<'conn>,
    /// As the column has them: calls of one model share a price.
    prices: Vec<(Arc<Price>, String)>,
}

impl<'conn> Receipts<'conn> {
    pub(super) fn new(conn: &'conn Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            insert: conn.prepare_cached(RECEIPT)?,
            prices: Vec::new(),
        })
    }

    pub(super) fn write(&mut self, receipt: &Receipt) -> rusqlite::Result<()> {
        let Item {
            model,
            vendor,
            usage,
            price,
            estimated,
            bounded,
            unpriced,
            vendor_cost_rub,
            end,
            session,
        } = &receipt.item;
        let classes = match usage.classes.is_empty() {
            true => None,
            false => Some(to_json(&usage.classes)?),
        };
        let price = match price {
            None => None,
            Some(price) => Some(price_text(&mut self.prices, price)?),
        };
        let mut number = [0; Hyphenated::LENGTH];
        let row = params![
            text(receipt.number, &mut number),
            integer(receipt.at_ms),
            &*receipt.account,
            &*receipt.key,
            model,
            vendor,
            integer(usage.input),
            integer(usage.cached_input),
            integer(usage.cache_write),
            integer(usage.output),
            receipt.held_rub.micro(),
            receipt.cost_rub.micro(),
            receipt.charged_rub.micro(),
            receipt.loss_rub.micro(),
            end.as_str(),
            receipt.booked.as_str(),
            estimated,
            price,
            bounded,
            session.as_deref(),
            classes,
            unpriced,
            vendor_cost_rub.map(MicroRub::micro),
        ];
        self.insert.execute(row)?;
        Ok(())
    }
}

fn price_text<'a>(
    known: &'a mut Vec<(Arc<Price>, String)>,
    price: &Arc<Price>,
) -> rusqlite::Result<&'a str> {
    let place = match known
        .iter()
        .position(|(known, _)| Arc::ptr_eq(known, price))
    {
        Some(place) => place,
        None => {
            let text = to_json(price)?;
            if known.len() >= PRICES_MAX {
                known.clear();
            }
            known.push((Arc::clone(price), text));
            known.len() - 1
        }
    };
    Ok(known[place].1.as_str())
}

/// What accounts and keys have come to and the file does not say yet.
#[derive(Default)]
struct Totals<'a> {
    /// Balance and loss.
    accounts: BTreeMap<&'a AccountId, (MicroRub, MicroRub)>,
    keys: BTreeMap<&'a KeyId, Used>,
}

impl Totals<'_> {
    /// Whoever was charged must be there: the receipts' foreign key is checked here, once.
    fn write(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        if !self.accounts.is_empty() {
            let sql = "UPDATE accounts SET balance = ?2, loss = ?3 WHERE id = ?1";
            let mut update = conn.prepare_cached(sql)?;
            while let Some((id, (balance, loss))) = self.accounts.pop_first() {
                one(update.execute(params![&**id, balance.micro(), loss.micro()])?)?;
            }
        }
        if !self.keys.is_empty() {
            let sql = "UPDATE keys SET used = ?2, month = ?3, month_before = ?4, day = ?5, day_before = ?6
                       WHERE id = ?1";
            let mut update = conn.prepare_cached(sql)?;
            while let Some((id, used)) = self.keys.pop_first() {
                let row = params![
                    &**id,
                    used.in_all.micro(),
                    integer(used.month.index),
                    used.month.before.micro(),
                    integer(used.day.index),
                    used.day.before.micro()
                ];
                one(update.execute(row)?)?;
            }
        }
        Ok(())
    }
}

fn note(conn: &Connection, running: &[Settlement]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO running (number, settlement) VALUES (?1, ?2)
               ON CONFLICT (number) DO UPDATE SET settlement = excluded.settlement";
    let mut insert = conn.prepare_cached(sql)?;
    for call in running {
        let mut number = [0; Hyphenated::LENGTH];
        let row = params![text(call.number, &mut number), to_json(call)?];
        one(insert.execute(row)?)?;
    }
    Ok(())
}

fn forget(conn: &Connection, number: RequestNumber) -> rusqlite::Result<()> {
    let sql = "DELETE FROM running WHERE number = ?1";
    conn.prepare_cached(sql)?
        .execute([text(number, &mut [0; Hyphenated::LENGTH])])?;
    Ok(())
}

/// A number as the file has it.
fn text(number: RequestNumber, buffer: &mut [u8; Hyphenated::LENGTH]) -> &str {
    number.uuid().as_hyphenated().encode_lower(buffer)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        account::{KeyDigest, KeyRecord, KeyStatus},
        ceiling::Ceilings,
        contract::{Entry, KeyChange},
        embedded::State,
        price::Rate,
        sqlite::file::{self, LEDGER},
        usage::End,
    };

    /// The last evening of a month, and the next day: both periods begin anew.
    const EVENING: u64 = 1_769_900_000_000;
    const MORNING: u64 = EVENING + 86_400_000;

    fn account(index: u8) -> AccountId {
        format!("a{index}").parse().unwrap()
    }

    fn key(index: u8) -> KeyId {
        format!("k{index}").parse().unwrap()
    }

    /// Two keys belong to each account.
    fn key_record(index: u8) -> KeyRecord {
        KeyRecord {
            id: key(index),
            account: account(index / 2),
            digest: KeyDigest::new([index; 32]),
            prefix: format!("tg-{index}…"),
            name: "laptop".into(),
            status: KeyStatus::Active,
            models: Vec::new(),
            addresses: Vec::new(),
            requests_per_second: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            expires_at_ms: None,
            created_at_ms: 0,
            changed_at_ms: 0,
        }
    }

    fn price(version: u64) -> Arc<Price> {
        let rate = Rate::new(version);
        Arc::new(Price {
            input: rate,
            cached_input: rate,
            output: rate,
            cache_write: rate,
            version,
            exchange_rate: "90.5".into(),
            ..Price::default()
        })
    }

    fn call(number: u8, on: u8, cost: i64, price: Option<&Arc<Price>>) -> Settlement {
        Settlement {
            number: RequestNumber::from_uuid(Uuid::from_u128(number.into())),
            account: account(on / 2),
            key: key(on),
            held: MicroRub::new(100),
            cost: MicroRub::new(cost),
            fresh: true,
            item: Item {
                price: price.cloned(),
                session: number.is_multiple_of(2).then(|| "s-1".parse().unwrap()),
                ..Item::new("m", "v", End::ClientLeft)
            },
        }
    }

    fn entry(id: &str, micro: i64) -> Entry {
        Entry {
            id: id.into(),
            amount: MicroRub::new(micro),
            reason: None,
        }
    }

    /// Two accounts with two keys and 1000 µ₽ each, and what a file has to be told of them.
    fn prepared() -> (State, Vec<Record>) {
        let mut state = State::default();
        let mut records = Vec::new();
        for index in 0..2 {
            let id = account(index);
            records.extend(state.create_account(&id, "Acme").unwrap().1);
            let (_, entered) = state.enter(&id, &entry("t1", 1_000), EVENING).unwrap();
            records.extend(entered);
        }
        for index in 0..4 {
            let made = state.create_key(&key_record(index), Ceilings::NONE, EVENING);
            records.extend(made.unwrap().1);
        }
        (state, records)
    }

    fn charge(state: &mut State, call: &Settlement, now: u64) -> Record {
        state.settle_unknown(call, now).1.expect("it is charged")
    }

    fn empty_file() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(LEDGER.schema).unwrap();
        conn.execute_batch(LEDGER.pragmas).unwrap();
        file::add_what_came_later(&conn).unwrap();
        conn
    }

    fn lines(conn: &Connection, sql: &str) -> Vec<String> {
        let mut select = conn.prepare(sql).unwrap();
        let lines = select.query_map([], |row| row.get(0)).unwrap();
        lines.collect::<rusqlite::Result<_>>().unwrap()
    }

    #[test]
    fn a_batch_leaves_what_its_records_leave_one_by_one() {
        let (mut state, mut records) = prepared();
        let (cheap, dear) = (price(1), price(2));
        let limited = KeyChange {
            ceiling_day: Some(Some(MicroRub::new(500))),
            ..KeyChange::default()
        };
        let one = account(0);
        records.push(charge(&mut state, &call(1, 0, 70, Some(&cheap)), EVENING));
        records.push(charge(&mut state, &call(2, 2, 30, Some(&dear)), EVENING));
        records.push(charge(&mut state, &call(3, 1, 5, None), EVENING));
        records.extend(state.enter(&one, &entry("t2", 500), EVENING).unwrap().1);
        records.push(charge(&mut state, &call(4, 0, 11, Some(&cheap)), EVENING));
        records.extend(state.enter(&one, &entry("c1", -40), EVENING).unwrap().1);
        records.extend(state.change_key(&key(0), &limited, EVENING).unwrap().1);
        records.push(charge(&mut state, &call(5, 0, 13, Some(&dear)), MORNING));
        records.push(charge(&mut state, &call(6, 0, 9_999, Some(&dear)), MORNING));
        let suspended = state.change_account(&one, Some("Acme Ltd"), Some(true));
        records.extend(suspended.unwrap().1);
        records.push(charge(&mut state, &call(7, 3, 17, Some(&cheap)), MORNING));

        let mut together = empty_file();
        commit(&mut together, records.iter()).unwrap();
        let mut singly = empty_file();
        for record in &records {
            commit(&mut singly, std::iter::once(record)).unwrap();
        }
        for table in ["accounts", "keys", "entries", "receipts"] {
            let columns = lines(
                &together,
                &format!("SELECT name FROM pragma_table_info('{table}')"),
            );
            let sql = format!(
                "SELECT json_array({}) FROM {table} ORDER BY 1",
                columns.join(", ")
            );
            assert_eq!(lines(&together, &sql), lines(&singly, &sql), "{table}");
            assert!(!lines(&together, &sql).is_empty(), "{table}");
        }
        assert_eq!(file::breaches(&together).unwrap(), Vec::<String>::new());
        let read = file::load(&together).unwrap();
        assert_eq!(read.accounts(), state.accounts());
        for index in 0..2 {
            assert_eq!(
                read.keys_of(&account(index), MORNING).unwrap(),
                state.keys_of(&account(index), MORNING).unwrap()
            );
        }
        for (number, price) in [
            (1, Some(&cheap)),
            (2, Some(&dear)),
            (3, None),
            (4, Some(&cheap)),
        ] {
            let number = call(number, 0, 0, None).number;
            let receipt = file::receipt(&together, number).unwrap().unwrap();
            assert_eq!(receipt.item.price.as_ref(), price);
        }
    }

    #[test]
    fn a_run_of_charges_writes_each_total_once() {
        let (mut state, records) = prepared();
        let mut conn = empty_file();
        commit(&mut conn, records.iter()).unwrap();
        conn.execute_batch(
            "CREATE TABLE written (line TEXT);
             CREATE TRIGGER of_account AFTER UPDATE ON accounts BEGIN
                 INSERT INTO written VALUES (format('%s %d', new.id, new.balance)); END;
             CREATE TRIGGER of_key AFTER UPDATE ON keys BEGIN
                 INSERT INTO written VALUES (format('%s %d', new.id, new.used)); END;",
        )
        .unwrap();
        let mut batch = Vec::new();
        for (number, on) in [(1, 0), (2, 3), (3, 0), (4, 1), (5, 0)] {
            batch.push(charge(&mut state, &call(number, on, 10, None), EVENING));
        }
        batch.extend(
            state
                .enter(&account(0), &entry("t2", 5), EVENING)
                .unwrap()
                .1,
        );
        batch.push(charge(&mut state, &call(6, 0, 10, None), EVENING));
        commit(&mut conn, batch.iter()).unwrap();
        assert_eq!(
            lines(&conn, "SELECT line FROM written ORDER BY rowid"),
            // Up to the payment, the payment, what came behind it.
            [
                "a0 960", "a1 990", "k0 30", "k1 10", "k3 10", "a0 965", "a0 955", "k0 40"
            ]
        );
    }

    #[test]
    fn nothing_is_written_of_an_account_that_is_not_there() {
        let (mut state, records) = prepared();
        let charged = charge(&mut state, &call(1, 0, 10, None), EVENING);
        let is_key = |record: &&Record| matches!(record, Record::Key { .. });
        for record in [&charged, records.iter().find(is_key).unwrap()] {
            let mut conn = empty_file();
            commit(&mut conn, std::iter::once(record)).unwrap_err();
            let rows = "SELECT id FROM keys UNION ALL SELECT number FROM receipts";
            assert_eq!(lines(&conn, rows), Vec::<String>::new());
        }
    }

    #[test]
    fn words_in_the_file_are_those_that_are_read() {
        use crate::contract::Booked;

        for booked in [
            Booked::Held,
            Booked::Late,
            Booked::Forced,
            Booked::Stale,
            Booked::NoAccount,
            Booked::Released,
        ] {
            assert_eq!(serde_json::to_value(booked).unwrap(), booked.as_str());
        }
    }
}

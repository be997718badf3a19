//! Tests that a batch writes the same data to the file as its records written one by one.

use std::sync::Arc;

use rusqlite::Connection;
use uuid::Uuid;

use crate::{
    account::{AccountId, KeyDigest, KeyId, KeyRecord},
    ceiling::Ceilings,
    contract::{Entry, Item, KeyChange, Settlement},
    embedded::{Record, State},
    money::MicroRub,
    number::RequestNumber,
    price::{Price, Rate},
    sqlite::{
        audit::{self, CheckPoint},
        batch::commit,
        file::{self, LEDGER},
        rows,
    },
    usage::End,
};

/// The last evening of a month, in Unix milliseconds. Both the day and the month change between it and `MORNING`.
const EVENING: u64 = 1_769_900_000_000;
const MORNING: u64 = EVENING + 86_400_000;

fn account(index: u8) -> AccountId {
    format!("a{index}").parse().unwrap()
}

fn key(index: u8) -> KeyId {
    format!("k{index}").parse().unwrap()
}

/// Returns the record of one of four keys. Each account has two of them.
fn key_record(index: u8) -> KeyRecord {
    KeyRecord {
        prefix: format!("tg-{index}…"),
        name: "laptop".into(),
        ..KeyRecord::new(key(index), account(index / 2), KeyDigest::new([index; 32]))
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
        lease: None,
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

/// Returns a state with two accounts, each with 1000 µ₽ and two keys, and the records that create them in a file.
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
fn batch_has_the_same_effect_as_its_records_written_one_by_one() {
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
    assert_eq!(
        audit::breaches(&together, CheckPoint::Opening).unwrap(),
        Vec::<String>::new()
    );
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
        let receipt = rows::receipt(&together, number).unwrap().unwrap();
        assert_eq!(receipt.item.price.as_ref(), price);
    }
}

#[test]
fn batch_of_charges_writes_each_balance_and_key_total_once() {
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
        // The batch first writes the totals of the calls before the payment, then the payment's row, and at the end the
        // other totals.
        [
            "a0 960", "a1 990", "k0 30", "k1 10", "k3 10", "a0 965", "a0 955", "k0 40"
        ]
    );
}

#[test]
fn batch_with_an_unknown_account_writes_nothing() {
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
fn every_value_of_the_booked_field_has_the_same_name_in_the_sqlite_file_as_in_json() {
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

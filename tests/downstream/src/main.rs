//! A shop that stores its orders in one SQLite file with sqlx, and its customers' money in another with
//! tollgate-ledger.

use std::{error::Error, time::Duration};

use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tollgate_ledger::{
    account::{AccountId, KeyDigest, KeyId, KeyRecord},
    ceiling::Ceilings,
    contract::{Entry, Hold, Ledger, LedgerAdmin},
    money::MicroRub,
    number::RequestNumber,
    sqlite::SqliteLedger,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: downstream FOLDER")?;
    let orders = SqliteConnectOptions::new()
        .filename(format!("{folder}/orders.db"))
        .create_if_missing(true);
    let mut orders = SqliteConnection::connect_with(&orders).await?;
    sqlx::query("CREATE TABLE orders (number TEXT PRIMARY KEY, held TEXT NOT NULL)")
        .execute(&mut orders)
        .await?;

    let (acme, web): (AccountId, KeyId) = ("acme".parse()?, "web".parse()?);
    let ledger = SqliteLedger::open(format!("{folder}/ledger.db").as_ref())?;
    ledger.create_account(&acme, "Acme").await?;
    let paid = Entry {
        id: "invoice-1".into(),
        amount: MicroRub::rubles(10),
        reason: None,
    };
    ledger.enter(&acme, &paid).await?;
    let key = KeyRecord::new(web.clone(), acme.clone(), KeyDigest::new([7; 32]));
    ledger.create_key(&key, Ceilings::NONE).await?;

    let (four, minute) = (MicroRub::rubles(4), Duration::from_secs(60));
    let hold = Hold::new(RequestNumber::now_v7(), acme.clone(), web, four, minute);
    let reserved = ledger.reserve(&hold).await?;
    sqlx::query("INSERT INTO orders VALUES (?, ?)")
        .bind(hold.number.to_string())
        .bind(reserved.held.to_string())
        .execute(&mut orders)
        .await?;
    let (number, held): (String, String) = sqlx::query_as("SELECT number, held FROM orders")
        .fetch_one(&mut orders)
        .await?;
    assert_eq!((number, held), (hold.number.to_string(), "4.00".into()));
    ledger.release(hold.number, &acme, &hold.key).await?;
    ledger.close().await;
    println!("one program, two crates, one SQLite");
    Ok(())
}

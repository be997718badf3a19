//! A prepaid ledger: money is held before work begins, and charged after it, whatever happens in between.
//! It knows accounts, keys, holds and receipts, and nothing of HTTP.
//!
//! ```
//! use std::time::Duration;
//!
//! use tollgate_ledger::{
//!     account::{AccountId, KeyId},
//!     contract::{Entry, Hold, Item, Ledger, LedgerAdmin, Settlement},
//!     memory::MemoryLedger,
//!     money::MicroRub,
//!     number::RequestNumber,
//!     usage::End,
//! };
//! # use tollgate_ledger::{account::{KeyDigest, KeyRecord, KeyStatus}, ceiling::Ceilings};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (acme, web): (AccountId, KeyId) = ("acme".parse()?, "web".parse()?);
//! let ledger = MemoryLedger::new();
//! ledger.create_account(&acme, "Acme").await?;
//! let paid = Entry { id: "invoice-1".into(), amount: MicroRub::rubles(10), reason: None };
//! ledger.enter(&acme, &paid).await?;
//! # let record = KeyRecord {
//! #     id: web.clone(), account: acme.clone(), digest: KeyDigest::new([7; 32]), prefix: "tg-…".into(), name: "web".into(),
//! #     status: KeyStatus::Active, models: vec![], addresses: vec![], requests_per_second: None, requests_per_minute: None,
//! #     tokens_per_minute: None, group: None, concurrency: None, idempotency: false, expires_at_ms: None, created_at_ms: 0,
//! #     changed_at_ms: 0,
//! # };
//! ledger.create_key(&record, Ceilings::NONE).await?;
//!
//! let hold = Hold {
//!     number: RequestNumber::now_v7(),
//!     account: acme.clone(),
//!     key: web.clone(),
//!     want: MicroRub::rubles(4),
//!     least: MicroRub::rubles(4),
//!     ttl: Duration::from_secs(60),
//! };
//! let reserved = ledger.reserve(&hold).await?;
//! assert_eq!(reserved.free, MicroRub::rubles(6));
//!
//! let settlement = Settlement {
//!     number: hold.number,
//!     account: acme.clone(),
//!     key: web,
//!     held: reserved.held,
//!     cost: "1.25".parse()?,
//!     fresh: true,
//!     lease: None,
//!     item: Item::new("a call", "us", End::Finished),
//! };
//! let settled = ledger.settle(&settlement).await?;
//! // Told twice, booked once.
//! assert!(ledger.settle(&settlement).await?.repeated);
//! assert_eq!(settled.charged, "1.25".parse()?);
//! assert_eq!(ledger.account(&acme).await?.balance_rub, "8.75".parse()?);
//! # Ok(())
//! # }
//! ```
//!
//! # The five invariants
//!
//! [`book`] is the state machine that keeps them, once, for all stores; the README says them in words.
//!
//! # Features
//!
//! None is on by default; without any there are the words alone ([`money`], [`price`], [`account`], [`number`],
//! [`usage`], [`ceiling`], [`endpoint`], [`happening`], [`timeline`]), and no runtime.
//!
//! | feature | what it brings |
//! |---|---|
//! | `settle` | the [`book`], its [`contract`], the [`memory`] store, answers kept for [`idempotency`] keys, the [`audit`], [`statement`]s, the [`rollup`], [`settle`]: how holds end |
//! | `sqlite` | [`sqlite`]: a ledger in a file (bundles SQLite: needs a C compiler) |
//! | `redis` | [`redis`]: a ledger that many processes share; [`conn`]: the connection to a server, Sentinels, Cluster |
//! | `outbox` | [`outbox`]: a record here of what a ledger elsewhere has still to be told |
//! | `testing` | [`testing`]: what every ledger promises, to be run on your own |
//! | `full` | all of them but `testing` |

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod account;
pub mod calendar;
pub mod ceiling;
pub mod endpoint;
pub mod happening;
pub mod money;
pub mod number;
pub mod price;
pub mod session;
pub mod setting;
pub mod timeline;
pub mod usage;

#[cfg(feature = "settle")]
pub mod audit;
#[cfg(feature = "settle")]
pub mod book;
#[cfg(feature = "redis")]
pub mod conn;
#[cfg(feature = "settle")]
pub mod contract;
#[cfg(feature = "settle")]
mod durable;
#[cfg(feature = "settle")]
mod embedded;
#[cfg(feature = "settle")]
pub mod idempotency;
#[cfg(feature = "redis")]
pub mod leases;
#[cfg(feature = "settle")]
pub mod memory;
#[cfg(feature = "outbox")]
pub mod outbox;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "settle")]
pub mod rollup;
#[cfg(feature = "settle")]
pub mod settle;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "settle")]
pub mod statement;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "settle")]
pub mod transfer;

/// Any error that can cross threads.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

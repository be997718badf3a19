//! A prepaid ledger: it holds money before work begins and charges it afterwards, even if a process dies in between. It
//! has accounts, keys, holds and receipts. It does not depend on HTTP.
//!
//! ```
//! use std::time::Duration;
//!
//! use tollgate_ledger::{
//!     account::{AccountId, KeyDigest, KeyId, KeyRecord},
//!     ceiling::Ceilings,
//!     contract::{Entry, Hold, Item, Ledger, LedgerAdmin, Settlement},
//!     memory::MemoryLedger,
//!     money::MicroRub,
//!     number::RequestNumber,
//!     usage::End,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (acme, web): (AccountId, KeyId) = ("acme".parse()?, "web".parse()?);
//! let ledger = MemoryLedger::new();
//! ledger.create_account(&acme, "Acme").await?;
//! let paid = Entry { id: "invoice-1".into(), amount: MicroRub::rubles(10), reason: None };
//! ledger.enter(&acme, &paid).await?;
//! let record = KeyRecord::new(web.clone(), acme.clone(), KeyDigest::new([7; 32]));
//! ledger.create_key(&record, Ceilings::NONE).await?;
//!
//! let (four, minute) = (MicroRub::rubles(4), Duration::from_secs(60));
//! let hold = Hold::new(RequestNumber::now_v7(), acme.clone(), web, four, minute);
//! let reserved = ledger.reserve(&hold).await?;
//! assert_eq!(reserved.free, MicroRub::rubles(6));
//!
//! let item = Item::new("a call", "us", End::Finished);
//! let settlement = Settlement::new(&hold, reserved.held, "1.25".parse()?, item);
//! let settled = ledger.settle(&settlement).await?;
//! // A repeated settlement charges once.
//! assert!(ledger.settle(&settlement).await?.repeated);
//! assert_eq!(settled.charged, "1.25".parse()?);
//! assert_eq!(ledger.account(&acme).await?.balance_rub, "8.75".parse()?);
//! # Ok(())
//! # }
//! ```
//!
//! # The five invariants
//!
//! The module [`book`] lists the invariants I1 to I5. The module is the state machine that keeps the invariants for all
//! stores. The README explains each invariant.
//!
//! # Features
//!
//! No feature is on by default. Without features, the crate contains only [`money`], the [`calendar`] and spending
//! limits ([`ceiling`]), and depends only on `thiserror`. An async runtime is needed only by the feature `settle` and
//! by the features that turn `settle` on.
//!
//! | feature | what it adds |
//! |---|---|
//! | `serde` | `Serialize` and `Deserialize` for all data types |
//! | `accounts` | [`account`]: accounts, keys, and the trait by which a key is looked up |
//! | `calls` | the data of a call: [`price`], [`usage`], [`number`], [`endpoint`], [`session`], [`timeline`], [`happening`]; turns on `accounts` and `serde` |
//! | `setting` | [`setting`]: a value that can be changed while services read it |
//! | `numbers` | [`RequestNumber::now_v7`](number::RequestNumber::now_v7), which generates request numbers and needs a source of random bytes |
//! | `settle` | [`book`], [`contract`], [`memory`], [`idempotency`], [`unbooked`], [`audit`], [`statement`], [`rollup`] and [`settle`]: the ledger itself, its contract and its memory store; stored answers; calls without a receipt; audits, statements and sums; and the task that ends holds |
//! | `sqlite` | [`sqlite`]: a ledger in a file; bundles SQLite, so building it needs a C compiler |
//! | `redis` | [`redis`]: a ledger in Redis that many processes share; [`conn`]: the connection to one Redis server, to Sentinels or to a Redis Cluster |
//! | `outbox` | [`outbox`]: a local file that records how each call ended until the remote ledger has acknowledged it |
//! | `testing` | [`testing`]: a test suite that checks your own ledger implementation against the contract |
//! | `full` | all features except `testing` |

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod calendar;
pub mod ceiling;
pub mod money;

#[cfg(feature = "accounts")]
pub mod account;
#[cfg(feature = "calls")]
pub mod endpoint;
#[cfg(feature = "calls")]
pub mod happening;
#[cfg(any(feature = "calls", feature = "numbers"))]
pub mod number;
#[cfg(feature = "calls")]
pub mod price;
#[cfg(feature = "calls")]
pub mod session;
#[cfg(feature = "setting")]
pub mod setting;
#[cfg(feature = "calls")]
pub mod timeline;
#[cfg(feature = "calls")]
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
#[cfg(feature = "settle")]
pub mod unbooked;

/// Any error that can be sent across threads.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

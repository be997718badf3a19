//! A prepaid ledger: it holds money before work begins and charges it afterwards, even if a process dies in between. It
//! has accounts, keys, holds and receipts, and does not depend on HTTP.
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
//! [`book`] is the state machine that keeps the invariants I1 to I5 for all stores, and lists them. The README explains
//! them.
//!
//! # Features
//!
//! No feature is on by default. Without features, the crate contains [`money`], the [`calendar`] and spending limits
//! ([`ceiling`]), and depends on `thiserror` alone. Only `settle` and the features that turn it on need an async
//! runtime.
//!
//! | feature | what it adds |
//! |---|---|
//! | `serde` | `Serialize` and `Deserialize` for all data types |
//! | `accounts` | [`account`]: accounts, keys, and the trait that looks keys up |
//! | `calls` | data of calls, with `accounts` and `serde`: [`price`], [`usage`], [`number`], [`endpoint`], [`session`], [`timeline`], [`happening`] |
//! | `setting` | [`setting`]: a value that can be changed while services read it |
//! | `numbers` | [`RequestNumber::now_v7`](number::RequestNumber::now_v7), which needs a source of random bytes |
//! | `settle` | the [`book`], its [`contract`], the [`memory`] store, answers stored for [`idempotency`] keys, the [`audit`], [`statement`]s, the [`rollup`], and [`settle`], which ends holds |
//! | `sqlite` | [`sqlite`]: a ledger in a file (bundles SQLite: needs a C compiler) |
//! | `redis` | [`redis`]: a ledger that many processes share; [`conn`]: the connection to a server, Sentinels or a Cluster |
//! | `outbox` | [`outbox`]: a local record of what a remote ledger has not acknowledged yet |
//! | `testing` | [`testing`]: tests of every promise of a ledger, to run on your own implementation |
//! | `full` | all features but `testing` |

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

/// Any error that can be sent across threads.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

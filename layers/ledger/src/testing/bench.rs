//! Measures how long a ledger takes for a hold and its settlement. The gateway's `cargo bench --bench ledger` uses this
//! module to measure the stores of this crate.
//!
//! ```
//! use tollgate_ledger::{
//!     account::{AccountId, KeyId}, ceiling::Ceilings, contract::LedgerAdmin, memory::MemoryLedger,
//!     testing::{self, bench},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // Replace `MemoryLedger` with your ledger.
//! let ledger = MemoryLedger::new();
//! let mut payers: Vec<(AccountId, KeyId)> = Vec::new();
//! for opening in testing::openings() {
//!     ledger.create_account(&opening.account, "").await.unwrap();
//!     ledger.enter(&opening.account, &opening.payment).await.unwrap();
//!     for key in &opening.keys {
//!         ledger.create_key(key, Ceilings::NONE).await.unwrap();
//!         payers.push((key.account.clone(), key.id.clone()));
//!     }
//! }
//!
//! // Latency: how long a call waits for its hold, and for its settlement.
//! let took = bench::one_after_another(&ledger, &payers, 10).await;
//! // Throughput.
//! let took = bench::at_a_time(&ledger, &payers, 10, 4).await;
//! # let _ = took;
//! # }
//! ```
//!
//! [`one_after_another`] and [`at_a_time`] take the number of calls and return how long all calls took, as criterion's
//! `Bencher::iter_custom` requires:
//!
//! ```ignore
//! bencher.iter_custom(|calls| runtime.block_on(bench::one_after_another(&ledger, &payers, calls)));
//! ```

#![expect(clippy::disallowed_types, reason = "a benchmark measures real time")]

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    account::{AccountId, KeyId},
    contract::{Hold, Item, Ledger, Settlement},
    money::MicroRub,
    number::RequestNumber,
    price::{Price, Rate},
    usage::{End, Usage},
};

/// The amount held per call. It is small, so that the accounts of [`super::openings`] can pay for some calls.
const HELD: MicroRub = MicroRub::new(10);
const COST: MicroRub = MicroRub::new(1);
const TTL: Duration = Duration::from_secs(960);
/// A prime number of payers to skip after each call, so that consecutive calls use payers that are far apart in the
/// ledger.
const STEP: u64 = 7919;

/// Makes `calls` calls one after another, each with one RESERVE of 10 µ₽ and one SETTLE of 1 µ₽. The accounts and keys
/// in `payers` are used in turn. Returns how long all calls took.
///
/// # Panics
/// If the ledger refuses a hold of 10 µ₽ or does not answer, or if `payers` is empty.
pub async fn one_after_another<L: Ledger>(
    ledger: &L,
    payers: &[(AccountId, KeyId)],
    calls: u64,
) -> Duration {
    let price = price();
    let began = Instant::now();
    for number in 0..calls {
        call(ledger, payers, number, &price).await;
    }
    began.elapsed()
}

/// Makes `calls` calls as [`one_after_another`] does, but in `tasks` concurrent tasks. Returns how long all calls took.
///
/// # Panics
/// If the ledger refuses a hold of 10 µ₽ or does not answer, or if `payers` is empty.
pub async fn at_a_time<L: Ledger + Clone>(
    ledger: &L,
    payers: &[(AccountId, KeyId)],
    calls: u64,
    tasks: usize,
) -> Duration {
    let (begun, payers): (Arc<AtomicU64>, Arc<[_]>) = (Arc::default(), payers.into());
    let price = price();
    let mut running = JoinSet::new();
    let began = Instant::now();
    for _ in 0..tasks {
        let (ledger, begun) = (ledger.clone(), Arc::clone(&begun));
        let (payers, price) = (Arc::clone(&payers), Arc::clone(&price));
        running.spawn(async move {
            loop {
                let number = begun.fetch_add(1, Ordering::Relaxed);
                if number >= calls {
                    break;
                }
                call(&ledger, &payers, number, &price).await;
            }
        });
    }
    running.join_all().await;
    began.elapsed()
}

async fn call<L: Ledger>(
    ledger: &L,
    payers: &[(AccountId, KeyId)],
    number: u64,
    price: &Arc<Price>,
) {
    let index = number.wrapping_mul(STEP) % payers.len() as u64;
    let (account, key) = &payers[index as usize];
    let number = RequestNumber::now_v7();
    let hold = Hold {
        number,
        account: account.clone(),
        key: key.clone(),
        want: HELD,
        least: HELD,
        ttl: TTL,
    };
    black_box(ledger.reserve(&hold).await.unwrap());
    let usage = Usage {
        input: 31,
        output: 40,
        ..Usage::default()
    };
    let settlement = Settlement {
        number,
        account: account.clone(),
        key: key.clone(),
        held: HELD,
        cost: COST,
        fresh: true,
        lease: None,
        item: Item {
            usage,
            price: Some(Arc::clone(price)),
            ..Item::new("plain", "plain-vendor", End::Finished)
        },
    };
    black_box(ledger.settle(&settlement).await.unwrap());
}

/// Returns a price with the fields that a gateway records in a receipt.
fn price() -> Arc<Price> {
    let rate = Rate::new(100_000_000);
    Arc::new(Price {
        input: rate,
        cached_input: rate,
        output: rate,
        cache_write: rate,
        version: 1,
        exchange_rate: "90.50".into(),
        ..Price::default()
    })
}

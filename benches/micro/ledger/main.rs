//! What do a hold and its settlement cost on each ledger, and do they cost more with more keys,
//! accounts and holds?
//!
//! ```text
//! cargo bench --bench ledger                            one RESERVE and its SETTLE, on each ledger
//! cargo bench --bench ledger -- growth                  10 to 100 000 keys; 0 to 10 000 open holds
//! cargo bench --bench ledger -- growth --max 1000000    to 1 000 000 keys
//! cargo bench --bench ledger -- growth --stores redis   these ledgers; what the others came to is kept
//! cargo bench --bench ledger -- leases                  one busy account: 1, 2 and 8 gateways, with leases and without
//! ```
//!
//! Each of criterion's lines is one RESERVE and its SETTLE, both waited for, over all keys in turn. One
//! after another it is what a call waits for and what its settling takes; 64 at a time it is what the
//! ledger carries. SQLite's SETTLE waits for the disk, together with others: no caller does.

#[path = "../../fixtures/mod.rs"]
mod fixtures;

mod books;
mod growth;
mod leases;
mod report;

use std::{
    cell::LazyCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use clap::{Parser as _, ValueEnum as _};
use criterion::{Criterion, Throughput};
use tokio::{runtime::Runtime, task::JoinSet, time::Instant};

use crate::books::{AT_A_TIME, Books, Kind};

const KEYS: usize = 10;

fn main() -> anyhow::Result<()> {
    let runtime = Runtime::new()?;
    // A word that criterion would take for the name of a line.
    if std::env::args().any(|word| word == "growth") {
        return growth::run(&runtime, &growth::Options::parse());
    }
    if std::env::args().any(|word| word == "leases") {
        return leases::run(&runtime, &leases::Options::parse());
    }
    each_ledger(&runtime);
    Ok(())
}

fn each_ledger(runtime: &Runtime) {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let mut group = criterion.benchmark_group("ledger");
    group.throughput(Throughput::Elements(1));
    for kind in Kind::value_variants() {
        if let Some(program) = kind.missing() {
            eprintln!(
                "ledger: no {program} on the PATH, so no lines for {}",
                kind.name()
            );
            continue;
        }
        // Opened by the first line that is not filtered out.
        let books = LazyCell::new(|| Arc::new(runtime.block_on(Books::open(*kind, KEYS))));
        let name = kind.name();
        group.bench_function(format!("{name}, one after another"), |bencher| {
            let books = &*books;
            bencher.iter_custom(|pairs| runtime.block_on(one_after_another(books, pairs)));
        });
        group.bench_function(format!("{name}, {AT_A_TIME} at a time"), |bencher| {
            let books = &*books;
            bencher.iter_custom(|pairs| runtime.block_on(many_at_a_time(books, pairs)));
        });
    }
    group.finish();
    criterion.final_summary();
}

async fn one_after_another(books: &Books, pairs: u64) -> Duration {
    books.looked_at();
    let began = Instant::now();
    for _ in 0..pairs {
        books.reserve_and_settle().await;
    }
    began.elapsed()
}

async fn many_at_a_time(books: &Arc<Books>, pairs: u64) -> Duration {
    books.looked_at();
    let taken = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    let began = Instant::now();
    for _ in 0..AT_A_TIME {
        let (books, taken) = (Arc::clone(books), Arc::clone(&taken));
        callers.spawn(async move {
            while taken.fetch_add(1, Ordering::Relaxed) < pairs {
                books.reserve_and_settle().await;
            }
        });
    }
    callers.join_all().await;
    began.elapsed()
}

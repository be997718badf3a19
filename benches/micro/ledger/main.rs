//! Measures how long a hold and its settlement take on each ledger, and whether this time grows with the number of
//! keys, accounts and holds.
//!
//! ```text
//! cargo bench --bench ledger                            one RESERVE and its SETTLE, on each ledger
//! cargo bench --bench ledger -- growth                  10 to 100 000 keys; 0 to 10 000 open holds
//! cargo bench --bench ledger -- growth --max 1000000    to 1 000 000 keys
//! cargo bench --bench ledger -- growth --stores redis   these ledgers; results of the others are kept
//! cargo bench --bench ledger -- leases                  one busy account: 1, 2 and 8 gateways, with leases and without
//! ```
//!
//! Each line of criterion's output measures one RESERVE and its SETTLE, both awaited, over all keys in turn. Calls made
//! one after another show the latency of a hold and its settlement. Calls made 64 at a time show the throughput of the
//! ledger. On SQLite, a SETTLE waits for a commit that it shares with other calls; in a gateway, no caller waits for
//! it.

#[path = "../../fixtures/mod.rs"]
mod fixtures;

mod books;
mod growth;
mod leases;
mod report;

use std::{cell::LazyCell, time::Duration};

use clap::{Parser as _, ValueEnum as _};
use criterion::{Criterion, Throughput};
use tokio::runtime::Runtime;

use crate::books::{AT_A_TIME, Books, Kind};

const KEYS: usize = 10;

fn main() -> anyhow::Result<()> {
    let runtime = Runtime::new()?;
    // Criterion would interpret the word `growth` as the name of a benchmark.
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
        // The ledger is opened by the first benchmark that uses it, because criterion's filter may skip all benchmarks
        // of this ledger.
        let books = LazyCell::new(|| runtime.block_on(Books::open(*kind, KEYS)));
        let name = kind.name();
        group.bench_function(format!("{name}, one after another"), |bencher| {
            let books = &*books;
            bencher.iter_custom(|pairs| runtime.block_on(books.one_after_another(pairs)));
        });
        group.bench_function(format!("{name}, {AT_A_TIME} at a time"), |bencher| {
            let books = &*books;
            bencher.iter_custom(|pairs| runtime.block_on(books.many_at_a_time(pairs)));
        });
    }
    group.finish();
    criterion.final_summary();
}

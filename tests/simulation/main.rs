//! Simulates gateways, a ledger and outboxes on a single thread, with a clock, a network and disks that depend only on
//! a seed. The layer, the settler and the outbox are the real ones. The ledger's server is the book.
//!
//! ```text
//! cargo test --test simulation                              10 000 seeds
//! cargo test --test simulation -- --seeds 100000 --from 1   more, others
//! cargo test --test simulation -- --seed 17 --trace         what happens in one of them
//! cargo test --test simulation -- --sabotage no-replay      until an injected fault is found
//! cargo test --test simulation -- --regions                 gateways far from their ledger: how often a caller waits for it
//! ```
//!
//! A round has fourteen seeds, one for each kind of fault. Every second round has leases.

// All randomness depends only on the seed.
#[path = "../support/random.rs"]
mod random;

mod arguments; // of the command line
mod disk; // what survives a crash, and a power cut
mod gateway; // one process, and its clients
mod leases; // leases of gateways
mod ledger; // the connection to the server
mod net; // late, lost and repeated messages
mod plan; // the run of a seed, and the possible cost of its faults
mod regions; // how often gateways far from their ledger wait for it
mod server; // the book, its replica, its clock
mod slices; // holds that follow the output of their calls
mod sweep; // many seeds on several threads
mod trace; // the log of a run
mod vendor; // the served tokens, and their log
mod verdict; // comparison of the vendor's log with the books
mod world; // one run

use std::process::ExitCode;

use tokio::time::Instant;

use crate::{
    arguments::{Arguments, Mode},
    plan::Kind,
    sweep::{Sweep, sweep},
    trace::Tracing,
    world::{Sabotage, play},
};

/// The number of seeds within which a sabotage must be found.
const SABOTAGE_SEEDS: u64 = 5_000;

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("simulation: {problem}");
            return ExitCode::from(64);
        }
    };
    let good = match arguments.mode {
        Mode::Nothing => true,
        Mode::One(seed) => one(seed, &arguments),
        Mode::Regions => regions::report(arguments.keep.as_deref()),
        Mode::Many => match arguments.sabotage {
            Some(sabotage) => finds(sabotage, &arguments),
            None => {
                reproduces(&arguments)
                    && Sabotage::ALL
                        .into_iter()
                        .all(|sabotage| finds(sabotage, &arguments))
                    && regions::holds()
                    && many(&arguments)
            }
        },
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs one seed, and prints its trace.
fn one(seed: u64, arguments: &Arguments) -> bool {
    let tracing = if arguments.trace {
        Tracing::Printed
    } else {
        Tracing::Off
    };
    let verdict = play(seed, tracing, arguments.sabotage);
    let leases = if Kind::has_leases(seed) {
        " with leases"
    } else {
        ""
    };
    println!("seed {seed}, {}{leases}: {verdict:#?}", verdict.kind);
    verdict.breaches.is_empty()
}

/// Checks that the same seed always gives the same run, by comparing every line of the log.
fn reproduces(arguments: &Arguments) -> bool {
    let differing: Vec<u64> = (0..4 * Kind::ALL.len() as u64)
        .map(|seed| arguments.from + seed)
        .filter(|seed| {
            let hash = || play(*seed, Tracing::Hashed, None).hash;
            hash() != hash()
        })
        .collect();
    if !differing.is_empty() {
        println!("simulation: these seeds do not reproduce their runs: {differing:?}");
    }
    differing.is_empty()
}

/// Checks that the verdict finds a sabotage.
fn finds(sabotage: Sabotage, arguments: &Arguments) -> bool {
    let seeds = arguments.seeds.unwrap_or(SABOTAGE_SEEDS);
    let found = sweep(arguments, seeds, Some(sabotage), 1);
    match found.failures.first() {
        Some((seed, breaches)) => {
            let breach = breaches.first().map_or("", String::as_str);
            println!(
                "sabotage {}: found, seed {seed}: {}",
                sabotage.name(),
                short(breach)
            );
            true
        }
        None => {
            println!("sabotage {}: not found in {seeds} seeds", sabotage.name());
            false
        }
    }
}

/// Runs many seeds, and prints a table of their results.
fn many(arguments: &Arguments) -> bool {
    let began = Instant::now();
    let seeds = arguments.seeds.unwrap_or(10_000);
    let done = sweep(arguments, seeds, None, 5);
    print_table(&done);
    println!(
        "{} of {seeds} seeds from {} in {} s on {} threads",
        done.runs(),
        arguments.from,
        began.elapsed().as_secs(),
        arguments.threads
    );
    for (seed, breaches) in &done.failures {
        println!("\nseed {seed}, {}:", Kind::of(*seed));
        for breach in breaches.iter().take(5) {
            println!("  {breach}");
        }
        println!("  cargo test --test simulation -- --seed {seed} --trace");
    }
    done.failures.is_empty()
}

fn print_table(done: &Sweep) {
    println!(
        "{:<30}{:>7}{:>8}{:>8}{:>8}{:>7}{:>7}{:>10}{:>10}{:>7}{:>9}",
        "fault",
        "runs",
        "calls",
        "served",
        "leased",
        "late",
        "forced",
        "short, ₽",
        "lost, ₽",
        "double",
        "negative"
    );
    for ((kind, leases), row) in &done.rows {
        let name = format!("{kind}{}", if *leases { ", leases" } else { "" });
        println!(
            "{name:<30}{:>7}{:>8}{:>8}{:>8}{:>7}{:>7}{:>10}{:>10}{:>7}{:>9}",
            row.runs,
            row.calls,
            row.served,
            row.leased,
            row.late,
            row.forced,
            rubles(row.short),
            rubles(row.lost),
            row.double,
            row.negative
        );
    }
}

fn rubles(micro: i64) -> String {
    format!("{}.{:03}", micro / 1_000_000, micro / 1_000 % 1_000)
}

fn short(text: &str) -> &str {
    let end = text
        .char_indices()
        .nth(120)
        .map_or(text.len(), |(at, _)| at);
    &text[..end]
}

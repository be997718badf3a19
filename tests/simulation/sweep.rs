//! Runs many seeds. Several simulated worlds run at the same time, each on a separate thread.

use std::{
    any::Any,
    collections::BTreeMap,
    io::{IsTerminal, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use crate::{
    arguments::Arguments,
    plan::Kind,
    trace::Tracing,
    verdict::Verdict,
    world::{Sabotage, lock, play},
};

/// The results of many runs, each with a different seed.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The results by kind of fault, and by whether the run had leases.
    pub(crate) rows: BTreeMap<(Kind, bool), Row>,
    /// The seeds whose runs failed, with the breaches that were found.
    pub(crate) failures: Vec<(u64, Vec<String>)>,
}

/// The sums over all runs of one kind.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) runs: u64,
    pub(crate) calls: u64,
    pub(crate) served: u64,
    pub(crate) leased: u64,
    pub(crate) late: u64,
    pub(crate) forced: u64,
    pub(crate) short: i64,
    pub(crate) lost: i64,
    pub(crate) double: u64,
    pub(crate) negative: u64,
}

impl Sweep {
    pub(crate) fn runs(&self) -> u64 {
        self.rows.values().map(|row| row.runs).sum()
    }

    fn add(&mut self, seed: u64, verdict: Verdict) {
        let row = self
            .rows
            .entry((verdict.kind, Kind::has_leases(seed)))
            .or_default();
        row.runs += 1;
        row.calls += verdict.calls;
        row.served += verdict.served;
        row.leased += verdict.leased;
        row.late += verdict.late;
        row.forced += verdict.forced;
        row.short += verdict.short;
        row.lost += verdict.lost;
        row.double += verdict.double;
        row.negative += verdict.negative;
        if !verdict.breaches.is_empty() {
            self.failures.push((seed, verdict.breaches));
        }
    }
}

/// Runs `seeds` seeds. Stops earlier if `failures_max` seeds have failed.
pub(crate) fn sweep(
    arguments: &Arguments,
    seeds: u64,
    sabotage: Option<Sabotage>,
    failures_max: usize,
) -> Sweep {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let done = Mutex::new(Sweep::default());
    let shows = std::io::stderr().is_terminal();
    let worker = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= seeds || stop.load(Ordering::Relaxed) {
                return;
            }
            let seed = arguments.from.wrapping_add(place);
            let other_kind = arguments.kind.is_some_and(|kind| kind != Kind::of(seed));
            let has_leases = Kind::has_leases(seed);
            if other_kind || arguments.leases.is_some_and(|leases| leases != has_leases) {
                continue;
            }
            let verdict = catch_unwind(AssertUnwindSafe(|| play(seed, Tracing::Off, sabotage)));
            let mut done = lock(&done);
            match verdict {
                Ok(verdict) => done.add(seed, verdict),
                Err(panic) => done.failures.push((seed, vec![words(&*panic)])),
            }
            if done.failures.len() >= failures_max {
                stop.store(true, Ordering::Relaxed);
            }
            if shows && place.is_multiple_of(50) {
                eprint!("\r{place} of {seeds} seeds ");
                drop(std::io::stderr().flush());
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(worker);
        }
    });
    if shows {
        eprint!("\r{:30}\r", "");
    }
    let mut done = done.into_inner().unwrap_or_default();
    done.failures.sort_unstable_by_key(|(seed, _)| *seed);
    done
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without words"))
}

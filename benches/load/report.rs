//! Computes medians over the rounds, and shows them in the text that a run prints and in the entries of the results
//! file.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    fixtures::results::{self, figure, figures, median},
    options::Options,
    scenario::ScenarioName,
    target::Seen,
};

/// The result of one round on one target. All times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) calls_per_second: f64,
    pub(crate) cpu_us: f64,
    /// The CPU time that the ledger's Redis server used. It is included in `cpu_us`.
    pub(crate) server_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Round {
    pub(crate) fn new(seen: &Seen) -> Self {
        let calls = seen.answered as f64;
        Self {
            calls_per_second: calls / seen.elapsed.as_secs_f64(),
            cpu_us: us(seen.cpu) / calls,
            server_us: us(seen.server_cpu) / calls,
            p50_us: us(seen.measured.quantile(0.50)),
            p99_us: us(seen.measured.quantile(0.99)),
        }
    }
}

pub(crate) fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A row of the table. A ratio is computed within each round, and the table shows the median of these ratios. If the
/// machine was slow in a round, both targets were slow, so their ratio is still correct.
pub(crate) struct Line<'a> {
    pub(crate) target: &'a str,
    pub(crate) rounds: &'a [Round],
    /// The rounds of the target that this row is compared with.
    pub(crate) base: &'a [Round],
}

impl Line<'_> {
    fn each(&self, part: fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(part))
    }

    fn ratio(&self, part: fn(&Round) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(self.base);
        median(pairs.map(|(round, base)| part(round) / part(base)))
    }

    fn added(&self, part: fn(&Round) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(self.base);
        median(pairs.map(|(round, base)| part(round) - part(base)))
    }

    pub(crate) fn json(&self) -> Value {
        let rounds = |part: fn(&Round) -> f64| figures(self.rounds.iter().map(part));
        json!({
            "target": self.target,
            "calls_per_second": figure(self.each(calls_per_second)),
            "calls_ratio": figure(self.ratio(calls_per_second)),
            "cpu_us": figure(self.each(cpu_us)),
            "cpu_ratio": figure(self.ratio(cpu_us)),
            "server_cpu_us": figure(self.each(server_us)),
            "p50_us": figure(self.each(p50_us)),
            "p50_added_us": figure(self.added(p50_us)),
            "p99_us": figure(self.each(p99_us)),
            "p99_added_us": figure(self.added(p99_us)),
            "rounds": {
                "calls_per_second": rounds(calls_per_second),
                "cpu_us": rounds(cpu_us),
                "server_cpu_us": rounds(server_us),
                "p50_us": rounds(p50_us),
                "p99_us": rounds(p99_us),
            },
        })
    }

    pub(crate) fn text(&self, scenario: &str) -> String {
        format!(
            "{scenario:<12} {:<20} {:>9.0} {:>7.2} {:>8.1} {:>7.2} {:>9.0} {:>+8.0} {:>9.0} {:>+8.0}",
            self.target,
            self.each(calls_per_second),
            self.ratio(calls_per_second),
            self.each(cpu_us),
            self.ratio(cpu_us),
            self.each(p50_us),
            self.added(p50_us),
            self.each(p99_us),
            self.added(p99_us),
        )
    }
}

/// The header of the results table.
pub(crate) const HEAD: &str = "\
scenario     target                 calls/s  × base   CPU µs  × base    p50 µs   + base    p99 µs   + base";

fn calls_per_second(round: &Round) -> f64 {
    round.calls_per_second
}

fn cpu_us(round: &Round) -> f64 {
    round.cpu_us
}

fn server_us(round: &Round) -> f64 {
    round.server_us
}

fn p50_us(round: &Round) -> f64 {
    round.p50_us
}

fn p99_us(round: &Round) -> f64 {
    round.p99_us
}

/// The results of a run, by scenario and target.
#[derive(Debug)]
pub(crate) struct Report {
    run: Value,
    entries: Vec<(String, Value)>,
}

impl Report {
    pub(crate) fn new(options: &Options) -> Self {
        let mut run = results::machine();
        run["rounds"] = options.rounds.into();
        run["round_seconds"] = options.round().as_secs_f64().into();
        run["connections"] = options.connections.into();
        Self {
            run,
            entries: Vec::new(),
        }
    }

    /// Adds the results of one scenario.
    pub(crate) fn add(&mut self, scenario: ScenarioName, results: &[Value]) {
        let entry = json!({ "run": self.run, "results": results });
        self.entries.push((scenario.name().to_owned(), entry));
    }

    /// Writes the results so far to the file. Called after a check that the gateways have charged all calls.
    pub(crate) fn keep(&mut self) -> anyhow::Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        results::keep("load.json", self.entries.drain(..))
    }
}

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
    fn each(&self, part: Part) -> f64 {
        median(self.rounds.iter().map(part))
    }

    fn ratio(&self, part: Part) -> f64 {
        let pairs = self.rounds.iter().zip(self.base);
        median(pairs.map(|(round, base)| part(round) / part(base)))
    }

    fn added(&self, part: Part) -> f64 {
        let pairs = self.rounds.iter().zip(self.base);
        median(pairs.map(|(round, base)| part(round) - part(base)))
    }

    pub(crate) fn json(&self) -> Value {
        let rounds = |part: Part| figures(self.rounds.iter().map(part));
        json!({
            "target": self.target,
            "calls_per_second": figure(self.each(CALLS_PER_SECOND)),
            "calls_ratio": figure(self.ratio(CALLS_PER_SECOND)),
            "cpu_us": figure(self.each(CPU_US)),
            "cpu_ratio": figure(self.ratio(CPU_US)),
            "server_cpu_us": figure(self.each(SERVER_US)),
            "p50_us": figure(self.each(P50_US)),
            "p50_added_us": figure(self.added(P50_US)),
            "p99_us": figure(self.each(P99_US)),
            "p99_added_us": figure(self.added(P99_US)),
            "rounds": {
                "calls_per_second": rounds(CALLS_PER_SECOND),
                "cpu_us": rounds(CPU_US),
                "server_cpu_us": rounds(SERVER_US),
                "p50_us": rounds(P50_US),
                "p99_us": rounds(P99_US),
            },
        })
    }

    pub(crate) fn text(&self, scenario: &str) -> String {
        format!(
            "{scenario:<12} {:<20} {:>9.0} {:>7.2} {:>8.1} {:>7.2} {:>9.0} {:>+8.0} {:>9.0} {:>+8.0}",
            self.target,
            self.each(CALLS_PER_SECOND),
            self.ratio(CALLS_PER_SECOND),
            self.each(CPU_US),
            self.ratio(CPU_US),
            self.each(P50_US),
            self.added(P50_US),
            self.each(P99_US),
            self.added(P99_US),
        )
    }
}

/// The header of the results table.
pub(crate) const HEAD: &str = "\
scenario     target                 calls/s  × base   CPU µs  × base    p50 µs   + base    p99 µs   + base";

/// One figure of a round.
type Part = fn(&Round) -> f64;

const CALLS_PER_SECOND: Part = |round| round.calls_per_second;
const CPU_US: Part = |round| round.cpu_us;
const SERVER_US: Part = |round| round.server_us;
const P50_US: Part = |round| round.p50_us;
const P99_US: Part = |round| round.p99_us;

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
        let entries = Vec::new();
        Self { run, entries }
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

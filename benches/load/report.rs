//! Medians over rounds: as a table, and as JSON lines in `target/bench/load.json`.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::PathBuf,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use crate::{fixtures::directory, options::Options};

/// What one round on one target came to. Times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) answered: u64,
    pub(crate) calls_per_second: f64,
    pub(crate) cpu_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Round {
    pub(crate) fn new(
        answered: u64,
        elapsed: Duration,
        cpu: Duration,
        mut samples: Vec<Duration>,
    ) -> Self {
        samples.sort_unstable();
        let calls = answered as f64;
        Self {
            answered,
            calls_per_second: calls / elapsed.as_secs_f64(),
            cpu_us: us(cpu) / calls,
            p50_us: us(quantile(&samples, 0.50)),
            p99_us: us(quantile(&samples, 0.99)),
        }
    }
}

/// The sample below which this part of all lies.
fn quantile(sorted: &[Duration], part: f64) -> Duration {
    let rank = (sorted.len() as f64 * part) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(rank.min(last)).copied().unwrap_or_default()
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// One line of the table. What is compared is compared within each round, and the median taken then:
/// a round in which the machine was slow was slow for both.
struct Line {
    scenario: &'static str,
    target: &'static str,
    calls_per_second: f64,
    calls_ratio: f64,
    cpu_us: f64,
    cpu_ratio: f64,
    p50_us: f64,
    p50_added_us: f64,
    p99_us: f64,
    p99_added_us: f64,
}

impl Line {
    fn new(scenario: &'static str, target: &'static str, rounds: &[Round], bare: &[Round]) -> Self {
        let each = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
        let beside = |figure: fn(&Round, &Round) -> f64| {
            let pairs = rounds.iter().zip(bare);
            median(pairs.map(|(round, bare)| figure(round, bare)).collect())
        };
        Self {
            scenario,
            target,
            calls_per_second: each(|round| round.calls_per_second),
            calls_ratio: beside(|round, bare| round.calls_per_second / bare.calls_per_second),
            cpu_us: each(|round| round.cpu_us),
            cpu_ratio: beside(|round, bare| round.cpu_us / bare.cpu_us),
            p50_us: each(|round| round.p50_us),
            p50_added_us: beside(|round, bare| round.p50_us - bare.p50_us),
            p99_us: each(|round| round.p99_us),
            p99_added_us: beside(|round, bare| round.p99_us - bare.p99_us),
        }
    }

    fn json(&self) -> Value {
        json!({
            "kind": "result",
            "scenario": self.scenario,
            "target": self.target,
            "calls_per_second": self.calls_per_second,
            "calls_ratio": self.calls_ratio,
            "cpu_us": self.cpu_us,
            "cpu_ratio": self.cpu_ratio,
            "p50_us": self.p50_us,
            "p50_added_us": self.p50_added_us,
            "p99_us": self.p99_us,
            "p99_added_us": self.p99_added_us,
        })
    }

    fn text(&self) -> String {
        format!(
            "{:<12} {:<8} {:>9.0} {:>7.2} {:>8.1} {:>7.2} {:>9.0} {:>+8.0} {:>9.0} {:>+8.0}",
            self.scenario,
            self.target,
            self.calls_per_second,
            self.calls_ratio,
            self.cpu_us,
            self.cpu_ratio,
            self.p50_us,
            self.p50_added_us,
            self.p99_us,
            self.p99_added_us,
        )
    }
}

const HEAD: &str = "\
scenario     target     calls/s  × bare   CPU µs  × bare    p50 µs   + bare    p99 µs   + bare";

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => figures[middle],
        _ => (figures[middle - 1] + figures[middle]) / 2.0,
    }
}

/// Where the figures go.
#[derive(Debug)]
pub(crate) struct Report {
    path: PathBuf,
    file: BufWriter<File>,
    table: Vec<String>,
}

impl Report {
    /// Begins the file anew.
    pub(crate) fn create(machine: &Value) -> anyhow::Result<Self> {
        let path = directory()?.join("load.json");
        let mut report = Self {
            file: BufWriter::new(File::create(&path)?),
            path,
            table: Vec::new(),
        };
        report.write(machine)?;
        Ok(report)
    }

    /// Takes down a scenario: its rounds by target, the bare proxy's first.
    pub(crate) fn scenario<'a>(
        &mut self,
        scenario: &'static str,
        targets: impl Iterator<Item = (&'static str, &'a Vec<Round>)>,
    ) -> anyhow::Result<()> {
        let mut bare: &[Round] = &[];
        for (index, (target, rounds)) in targets.enumerate() {
            if index == 0 {
                bare = rounds;
            }
            for (number, round) in rounds.iter().enumerate() {
                self.write(&json!({
                    "kind": "round",
                    "scenario": scenario,
                    "target": target,
                    "round": number + 1,
                    "answered": round.answered,
                    "calls_per_second": round.calls_per_second,
                    "cpu_us": round.cpu_us,
                    "p50_us": round.p50_us,
                    "p99_us": round.p99_us,
                }))?;
            }
            let line = Line::new(scenario, target, rounds, bare);
            self.write(&line.json())?;
            self.table.push(line.text());
        }
        Ok(())
    }

    /// Prints the table.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.file.flush()?;
        println!("{HEAD}");
        for line in &self.table {
            println!("{line}");
        }
        eprintln!("load: all rounds are in {}", self.path.display());
        Ok(())
    }

    fn write(&mut self, line: &Value) -> anyhow::Result<()> {
        writeln!(self.file, "{line}")?;
        Ok(())
    }
}

/// What the figures were measured on, and how.
pub(crate) fn machine(options: &Options) -> Value {
    let first_line = |path: &str, name: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name));
        line.map(|line| {
            line.rsplit(':')
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        })
    };
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    json!({
        "kind": "run",
        "unix_seconds": seconds,
        "cpu": first_line("/proc/cpuinfo", "model name"),
        "cores": thread::available_parallelism().map_or(0, usize::from),
        "memory": first_line("/proc/meminfo", "MemTotal"),
        "kernel": first_line("/proc/sys/kernel/osrelease", ""),
        "allocator": if cfg!(feature = "mimalloc") { "mimalloc" } else { "system" },
        "optimised": !cfg!(debug_assertions),
        "round_seconds": options.round().as_secs_f64(),
        "rounds": options.rounds,
        "connections": options.connections,
    })
}

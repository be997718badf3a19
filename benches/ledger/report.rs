//! Medians over rounds: as a table, as JSON and as a plot in `benches/results`.

use std::{
    fs,
    path::Path,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use crate::plot::{self, Line, Panel};

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A ledger with so many keys, on as many accounts.
    Keys(&'static str, usize),
    /// An account of a ledger with so many open holds.
    Holds(&'static str, usize),
}

impl Place {
    const fn store(self) -> &'static str {
        match self {
            Self::Keys(store, _) | Self::Holds(store, _) => store,
        }
    }

    const fn count(self) -> usize {
        match self {
            Self::Keys(_, count) | Self::Holds(_, count) => count,
        }
    }

    const fn counted(self) -> &'static str {
        match self {
            Self::Keys(..) => "keys",
            Self::Holds(..) => "holds",
        }
    }

    /// Whether the two differ in their count alone.
    fn is_beside(self, other: Self) -> bool {
        self.store() == other.store() && self.counted() == other.counted()
    }
}

/// What a call cost in one round, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) reserve_us: f64,
    /// RESERVE and SETTLE.
    pub(crate) both_us: f64,
}

/// All figures of a run.
#[derive(Debug)]
pub(crate) struct Report {
    rounds: u32,
    rows: Vec<Row>,
}

/// What is compared is compared within each round, and the median taken then: a round in which the
/// machine was slow was slow for both.
#[derive(Debug)]
struct Row {
    place: Place,
    rounds: Vec<Round>,
    reserve_us: f64,
    reserve_ratio: f64,
    both_us: f64,
    both_ratio: f64,
}

impl Report {
    pub(crate) const fn new(rounds: u32) -> Self {
        Self {
            rounds,
            rows: Vec::new(),
        }
    }

    /// Takes down the rounds of one place; of each ledger the smallest comes first.
    pub(crate) fn add(&mut self, place: Place, rounds: Vec<Round>) {
        let smallest = self.rows.iter().find(|row| row.place.is_beside(place));
        let smallest = smallest.map_or(&rounds, |row| &row.rounds);
        let each = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
        let beside = |figure: fn(&Round) -> f64| {
            let pairs = rounds.iter().zip(smallest);
            median(
                pairs
                    .map(|(round, least)| figure(round) / figure(least))
                    .collect(),
            )
        };
        let row = Row {
            place,
            reserve_us: each(|round| round.reserve_us),
            reserve_ratio: beside(|round| round.reserve_us),
            both_us: each(|round| round.both_us),
            both_ratio: beside(|round| round.both_us),
            rounds,
        };
        self.rows.push(row);
    }

    /// Prints the tables, and writes the files anew.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        for counted in ["keys", "holds"] {
            println!("{}", head(counted));
            for row in self.rows_of(counted) {
                println!("{}", row.text());
            }
            println!();
        }
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results");
        fs::create_dir_all(&directory)?;
        let json = serde_json::to_string_pretty(&self.json())? + "\n";
        fs::write(directory.join("ledger-growth.json"), json)?;
        fs::write(directory.join("ledger-growth.svg"), self.plot())?;
        eprintln!("ledger: figures and plot are in {}", directory.display());
        Ok(())
    }

    fn rows_of(&self, counted: &str) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(move |row| row.place.counted() == counted)
    }

    fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({ "run": machine(self.rounds), "results": rows })
    }

    fn plot(&self) -> String {
        let panel = |title, counted: &str| {
            let mut panel = Panel {
                title,
                places: Vec::new(),
                lines: Vec::new(),
            };
            for row in self.rows_of(counted) {
                let count = spaced(row.place.count());
                if !panel.places.contains(&count) {
                    panel.places.push(count);
                }
                let name = row.place.store();
                match panel.lines.last_mut() {
                    Some(line) if line.name == name => line.values.push(row.reserve_us),
                    _ => panel.lines.push(Line {
                        name,
                        values: vec![row.reserve_us],
                    }),
                }
            }
            panel
        };
        plot::svg(&[
            panel("RESERVE, µs, by keys and accounts", "keys"),
            panel("RESERVE, µs, by open holds of the account", "holds"),
        ])
    }
}

impl Row {
    fn json(&self) -> Value {
        let each = |figure: fn(&Round) -> f64| self.rounds.iter().map(figure).collect::<Vec<_>>();
        let mut json = json!({
            "store": self.place.store(),
            "reserve_us": self.reserve_us,
            "reserve_ratio": self.reserve_ratio,
            "reserve_and_settle_us": self.both_us,
            "reserve_and_settle_ratio": self.both_ratio,
            "rounds_reserve_us": each(|round| round.reserve_us),
            "rounds_reserve_and_settle_us": each(|round| round.both_us),
        });
        json[self.place.counted()] = self.place.count().into();
        json
    }

    fn text(&self) -> String {
        format!(
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} |",
            self.place.store(),
            spaced(self.place.count()),
            self.reserve_us,
            self.reserve_ratio,
            self.both_us,
            self.both_ratio,
        )
    }
}

fn head(counted: &str) -> String {
    let counted = match counted {
        "keys" => "keys and accounts",
        _ => "open holds",
    };
    format!(
        "| ledger | {counted} | reserve µs | × fewest | reserve + settle µs | × fewest |\n\
         |---|---:|---:|---:|---:|---:|"
    )
}

/// Digits in threes.
fn spaced(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => figures[middle],
        _ => (figures[middle - 1] + figures[middle]) / 2.0,
    }
}

/// What the figures were measured on, and how.
fn machine(rounds: u32) -> Value {
    let line = |path: &str, name: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name))?;
        let value = line.rsplit(':').next().unwrap_or_default();
        Some(value.trim().to_owned())
    };
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    json!({
        "unix_seconds": since_epoch.unwrap_or_default().as_secs(),
        "cpu": line("/proc/cpuinfo", "model name"),
        "cores": thread::available_parallelism().map_or(0, usize::from),
        "memory": line("/proc/meminfo", "MemTotal"),
        "kernel": line("/proc/sys/kernel/osrelease", ""),
        "optimised": !cfg!(debug_assertions),
        "rounds": rounds,
    })
}

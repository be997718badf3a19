//! Computes medians over the rounds, and shows them as a table and as entries of the results file.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::fixtures::results::{self, figure, figures, median};

/// The load that was measured: calls on all keys of a ledger, or calls on one account with open holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The ledger has this many keys, each with a separate account.
    Keys(&'static str, usize),
    /// The account of the calls, in a ledger with few keys, has this many open holds.
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

    /// Returns whether both loads are of the same kind and on the same ledger. Their counts may differ.
    fn is_beside(self, other: Self) -> bool {
        self.store() == other.store() && self.counted() == other.counted()
    }
}

/// Times per call in one round, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) reserve_us: f64,
    /// The time of a RESERVE and its SETTLE together.
    pub(crate) both_us: f64,
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Report {
    rounds: u32,
    rows: Vec<Row>,
}

/// A row of the table. The times of a round are divided by those of the smallest load in the same round, and the table
/// shows the median of these ratios. If the machine was slow in a round, both loads were slow, so their ratio is still
/// correct.
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
        let rows = Vec::new();
        Self { rounds, rows }
    }

    /// Adds the rounds of a load. The smallest load of each kind must be added first, because the ratios refer to it.
    pub(crate) fn add(&mut self, place: Place, rounds: Vec<Round>) {
        let smallest = self.rows.iter().find(|row| row.place.is_beside(place));
        let smallest = smallest.map_or(&rounds, |row| &row.rounds);
        let each = |part: fn(&Round) -> f64| median(rounds.iter().map(part));
        let beside = |part: fn(&Round) -> f64| {
            let pairs = rounds.iter().zip(smallest);
            median(pairs.map(|(round, least)| part(round) / part(least)))
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

    /// Prints the tables and stores the results. Stored results of other ledgers stay unchanged.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        for counted in ["keys", "holds"] {
            println!("{}", head(counted));
            for row in self.rows_of(counted) {
                println!("{}", row.text());
            }
            println!();
        }
        let mut run = results::machine();
        run["rounds"] = self.rounds.into();
        let mut of_store: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for row in &self.rows {
            let rows = of_store.entry(row.place.store()).or_default();
            rows.push(row.json());
        }
        let entries = of_store.into_iter().map(|(store, rows)| {
            let entry = json!({ "run": run, "results": rows });
            (store.to_owned(), entry)
        });
        results::keep("ledger-growth.json", entries)
    }

    fn rows_of(&self, counted: &str) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(move |row| row.place.counted() == counted)
    }
}

impl Row {
    fn json(&self) -> Value {
        let rounds = |part: fn(&Round) -> f64| figures(self.rounds.iter().map(part));
        let mut json = json!({
            "reserve_us": figure(self.reserve_us),
            "reserve_ratio": figure(self.reserve_ratio),
            "reserve_and_settle_us": figure(self.both_us),
            "reserve_and_settle_ratio": figure(self.both_ratio),
            "rounds": {
                "reserve_us": rounds(|round| round.reserve_us),
                "reserve_and_settle_us": rounds(|round| round.both_us),
            },
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

/// Writes a number with its digits in groups of three, for example `16 384`.
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

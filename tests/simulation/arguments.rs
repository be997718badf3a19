//! The command line of the simulation. It accepts the simulation's own flags, and those of Rust's usual test harness,
//! which `cargo test` passes to every test binary.

use std::{num::NonZero, thread::available_parallelism};

use crate::{plan::Kind, random::seed, world::Sabotage};

/// The parsed options of the command line.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) mode: Mode,
    /// The first seed, if many seeds are run. The default is the value of `TOLLGATE_SEED`.
    pub(crate) from: u64,
    pub(crate) seeds: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) trace: bool,
    pub(crate) sabotage: Option<Sabotage>,
    /// If set, only seeds with faults of this kind are run.
    pub(crate) kind: Option<Kind>,
    /// If set, only seeds with leases (`true`) or only seeds without leases (`false`) are run.
    pub(crate) leases: Option<bool>,
    /// The file to which the results of `--regions` are written.
    pub(crate) keep: Option<String>,
}

/// The runs that the command line requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing is run, because the command line names other tests, or only requests a list of tests.
    Nothing,
    One(u64),
    Regions,
    Many,
}

/// Flags of the usual test harness that take a value.
const VALUED: [&str; 7] = [
    "--test-threads",
    "--format",
    "--color",
    "--logfile",
    "--skip",
    "--shuffle-seed",
    "-Z",
];

impl Arguments {
    pub(crate) fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut read = Self {
            mode: Mode::Many,
            from: 0,
            seeds: None,
            threads: available_parallelism().map_or(1, NonZero::get),
            trace: false,
            sabotage: None,
            kind: None,
            leases: None,
            keep: None,
        };
        let (mut filters, mut nothing, mut from) = (Vec::new(), false, None);
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let (flag, attached) = match argument.split_once('=') {
                Some((flag, value)) if flag.starts_with('-') => (flag, Some(value.to_owned())),
                _ => (argument.as_str(), None),
            };
            let mut value = || {
                attached
                    .clone()
                    .or_else(|| arguments.next())
                    .ok_or_else(|| format!("{flag} wants a value"))
            };
            match flag {
                "--seed" => read.mode = Mode::One(number(flag, &value()?)?),
                "--seeds" => read.seeds = Some(number(flag, &value()?)?),
                "--from" => from = Some(number(flag, &value()?)?),
                "--threads" => {
                    let threads = number(flag, &value()?)?;
                    read.threads = usize::try_from(threads).unwrap_or(1).max(1);
                }
                "--trace" => read.trace = true,
                "--regions" => read.mode = Mode::Regions,
                "--keep" => read.keep = Some(value()?),
                "--leases" => {
                    read.leases = Some(match value()?.as_str() {
                        "on" => true,
                        "off" => false,
                        other => return Err(format!("{flag} is on or off, not {other:?}")),
                    });
                }
                "--sabotage" => {
                    let name = value()?;
                    let named = Sabotage::ALL.into_iter().find(|one| one.name() == name);
                    let all = Sabotage::ALL.map(Sabotage::name).join(", ");
                    read.sabotage =
                        Some(named.ok_or(format!("{flag} is one of {all}, not {name:?}"))?);
                }
                "--kind" => {
                    let name = value()?;
                    let named = Kind::ALL.into_iter().find(|one| one.name() == name);
                    let all = Kind::ALL.map(Kind::name).join(", ");
                    read.kind = Some(named.ok_or(format!("{flag} is one of {all}, not {name:?}"))?);
                }
                "--list" | "--ignored" => nothing = true,
                flag if VALUED.contains(&flag) => drop(value()?),
                flag if flag.starts_with('-') => {}
                filter => filters.push(filter.to_owned()),
            }
        }
        let named = filters.is_empty()
            || filters
                .iter()
                .any(|filter| "simulation".contains(filter.as_str()));
        if nothing || !named {
            read.mode = Mode::Nothing;
        }
        if read.mode == Mode::Many {
            read.from = from.unwrap_or_else(|| seed(0));
        }
        Ok(read)
    }
}

fn number(flag: &str, value: &str) -> Result<u64, String> {
    value
        .parse()
        .map_err(|_| format!("{flag} wants a whole number, not {value:?}"))
}

//! The run: every scenario in rounds, and in every round all targets in turn.

use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum as _;
use serde_json::Value;
use tokio::runtime::Runtime;
use tollgate_layers::call::Format;

use crate::{
    fixtures::{Canned, EVENTS},
    memory,
    options::Options,
    report::{HEAD, Line, Report, Round},
    scenario::{Kind, Pace, Scenario, ScenarioName},
    target::{Field, Target},
};

/// Load before the first round of a scenario; not counted.
pub(crate) const WARM_UP: Duration = Duration::from_millis(300);
/// Calls per second of `rate`.
const RATES: [u32; 9] = [100, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000];

/// Runs the requested scenarios, prints the tables and stores the results.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("load: not an optimised build; use `cargo bench`");
    }
    let runtime = one_thread()?;
    let mut report = Report::new(options);
    let mut field = None;
    let names = match options.named() {
        [] => ScenarioName::value_variants()
            .iter()
            .filter(|name| **name != ScenarioName::Peers)
            .collect(),
        named => named.iter().collect::<Vec<_>>(),
    };
    for name in names {
        match name.kind() {
            Kind::Compared(scenario) => {
                let field = started(&mut field, options)?;
                println!("{HEAD}");
                let results = compare(&runtime, field, &scenario, options, scenario.name)?;
                report.add(*name, &results);
            }
            Kind::Rate => {
                let results = rates(&runtime, started(&mut field, options)?, options)?;
                report.add(*name, &results);
            }
            Kind::Translated => {
                let results = translated(&runtime, started(&mut field, options)?, options)?;
                report.add(*name, &results);
            }
            // This scenario starts its own processes, and no others may run meanwhile.
            Kind::Memory => {
                end(&mut field, &mut report)?;
                memory::run(&runtime, options, &mut report)?;
                report.keep()?;
            }
            Kind::Peers(scenario) => {
                end(&mut field, &mut report)?;
                let mut peers = Field::with_peers()?;
                println!("{HEAD}");
                let results = compare(&runtime, &mut peers, &scenario, options, name.name())?;
                report.add(*name, &results);
                end(&mut Some(peers), &mut report)?;
            }
        }
    }
    end(&mut field, &mut report)
}

/// The client's runtime, with one thread: the other cores are for what is measured.
fn one_thread() -> anyhow::Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime)
}

fn started<'f>(field: &'f mut Option<Field>, options: &Options) -> anyhow::Result<&'f mut Field> {
    if field.is_none() {
        *field = Some(Field::start(options)?);
    }
    field.as_mut().context("it was started")
}

/// Stores the results after checking that the gateways have charged every call that they answered.
fn end(field: &mut Option<Field>, report: &mut Report) -> anyhow::Result<()> {
    if let Some(field) = field.take() {
        field.stop()?;
    }
    report.keep()
}

/// Puts the same load on each target and records the results.
fn compare(
    runtime: &Runtime,
    field: &mut Field,
    scenario: &Scenario,
    options: &Options,
    title: &str,
) -> anyhow::Result<Vec<Value>> {
    // With a fixed pace, the other proxies' capacity does not show.
    let all = matches!(scenario.pace, Pace::WhenAnswered);
    let mut targets: Vec<&mut Target> = field
        .targets
        .iter_mut()
        .filter(|target| all || !target.beside)
        .collect();
    let names: Vec<&'static str> = targets.iter().map(|target| target.name).collect();
    let time = options.round() * scenario.rounds_long;
    let rounds = in_rounds(title, &names, options.rounds, time, |index, time| {
        runtime
            .block_on(load(targets[index], scenario, options, time))
            .with_context(|| format!("{title} on {}", names[index]))
    })?;
    let lines = names.iter().zip(&rounds).map(|(target, of_target)| {
        let line = Line {
            target,
            rounds: of_target,
            base: &rounds[0],
        };
        println!("{}", line.text(title));
        line.json()
    });
    Ok(lines.collect())
}

/// Increasing calls per second, up to the requested maximum.
fn rates(runtime: &Runtime, field: &mut Field, options: &Options) -> anyhow::Result<Vec<Value>> {
    println!("{HEAD}");
    let mut results = Vec::new();
    for rate in RATES.into_iter().filter(|rate| *rate <= options.rate_max) {
        let title = format!("rate {rate}");
        let scenario = Scenario::at_rate(rate);
        for mut line in compare(runtime, field, &scenario, options, &title)? {
            line["rate"] = rate.into();
            results.push(line);
        }
    }
    Ok(results)
}

/// Each vendor's stream to a caller of either format, through the first gateway only: translation does not use the
/// ledger.
fn translated(
    runtime: &Runtime,
    field: &mut Field,
    options: &Options,
) -> anyhow::Result<Vec<Value>> {
    let gateway = &mut field.targets[1];
    // Each stream passed through, followed by the same one translated.
    let ways = [
        ("chat to chat", Canned::Stream, Format::Chat),
        ("chat to messages", Canned::Stream, Format::Messages),
        (
            "messages to messages",
            Canned::MessagesStream,
            Format::Messages,
        ),
        ("messages to chat", Canned::MessagesStream, Format::Chat),
    ];
    let names = ways.map(|(name, ..)| name);
    let scenarios = ways.map(|(_, canned, caller)| Scenario::translated(canned, caller));
    let title = ScenarioName::Translated.name();
    let rounds = in_rounds(
        title,
        &names,
        options.rounds,
        options.round(),
        |index, time| {
            runtime
                .block_on(load(gateway, &scenarios[index], options, time))
                .with_context(|| format!("{title}, {}", names[index]))
        },
    )?;
    println!("{HEAD}");
    let lines = names.iter().enumerate().map(|(index, target)| {
        let line = Line {
            target,
            rounds: &rounds[index],
            base: &rounds[index - index % 2],
        };
        println!("{}", line.text(title));
        let mut json = line.json();
        json["chunks"] = EVENTS.into();
        json
    });
    Ok(lines.collect())
}

/// Measures all places in each round, after a warm-up that is not counted. The order changes from round to round, so
/// that no place is always first.
fn in_rounds(
    title: &str,
    places: &[&str],
    rounds: u32,
    time: Duration,
    mut measure: impl FnMut(usize, Duration) -> anyhow::Result<Round>,
) -> anyhow::Result<Vec<Vec<Round>>> {
    let mut measured = vec![Vec::new(); places.len()];
    for index in 0..places.len() {
        measure(index, WARM_UP)?;
    }
    for number in 0..rounds as usize {
        eprint!("{title} {}/{rounds}:", number + 1);
        for turn in 0..places.len() {
            let index = (number + turn) % places.len();
            let round = measure(index, time)?;
            eprint!("  {} {:.0}/s", places[index], round.calls_per_second);
            measured[index].push(round);
        }
        eprintln!();
    }
    Ok(measured)
}

/// One round on one target.
async fn load(
    target: &mut Target,
    scenario: &Scenario,
    options: &Options,
    time: Duration,
) -> anyhow::Result<Round> {
    let seen = target.load(scenario, options.connections, time).await?;
    Ok(Round::new(&seen))
}

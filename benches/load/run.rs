//! Runs the scenarios. Each scenario has several rounds, and in each round all targets are measured in turn.

use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum as _;
use serde_json::Value;
use tokio::runtime::Runtime;
use tollgate_layers::call::Format;

use crate::{
    fixtures::{Canned, EVENTS, one_thread},
    memory,
    options::Options,
    report::{HEAD, Line, Report, Round},
    scenario::{Kind, Pace, Scenario, ScenarioName},
    target::{Field, Target},
};

/// The time for which a target is loaded before the first round of a scenario. This warm-up is not measured.
pub(crate) const WARM_UP: Duration = Duration::from_millis(300);
/// The rates that the scenario `rate` measures, in calls per second.
const RATES: [u32; 9] = [100, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000];

/// Runs the requested scenarios, prints the tables and stores the results.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("load: not an optimised build; use `cargo bench`");
    }
    // The client has one thread, so that the other cores are free for the measured processes.
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
            // No other process of the bench may run during this scenario, so the scenario starts its own processes.
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

fn started<'f>(field: &'f mut Option<Field>, options: &Options) -> anyhow::Result<&'f mut Field> {
    if field.is_none() {
        *field = Some(Field::start(options)?);
    }
    field.as_mut().context("it was started")
}

/// Checks that the gateways have charged every call that they have answered, and then stores the results.
fn end(field: &mut Option<Field>, report: &mut Report) -> anyhow::Result<()> {
    if let Some(field) = field.take() {
        field.stop()?;
    }
    report.keep()
}

/// Puts the same load on each target, and records the results.
fn compare(
    runtime: &Runtime,
    field: &mut Field,
    scenario: &Scenario,
    options: &Options,
    title: &str,
) -> anyhow::Result<Vec<Value>> {
    // At a fixed pace, every target answers the same number of calls. So a scenario with a fixed pace leaves out the
    // targets that only show the highest possible rate of calls.
    let all = matches!(scenario.pace, Pace::WhenAnswered);
    let is_shown = |target: &&mut Target| all || !target.beside;
    let mut targets: Vec<&mut Target> = field.targets.iter_mut().filter(is_shown).collect();
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

/// Measures the targets at increasing rates of calls, up to the requested maximum.
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

/// Measures the stream of each vendor for callers of the same format and of the other formats. Only the first gateway
/// is used, because translation does not depend on the ledger.
fn translated(
    runtime: &Runtime,
    field: &mut Field,
    options: &Options,
) -> anyhow::Result<Vec<Value>> {
    let gateway = &mut field.targets[1];
    // Each vendor's stream is measured twice: passed through, and translated.
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

/// Measures each target or load named in `places` once per round, after a warm-up that is not counted. The order
/// rotates from round to round, so that no place is always measured first.
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

/// Puts the load of a scenario on one target for one round.
async fn load(
    target: &mut Target,
    scenario: &Scenario,
    options: &Options,
    time: Duration,
) -> anyhow::Result<Round> {
    let seen = target.load(scenario, options.connections, time).await?;
    Ok(Round::new(&seen))
}

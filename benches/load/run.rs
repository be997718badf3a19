//! The run: every scenario in rounds, every round over all targets in turn.

use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Runtime;

use crate::{
    client::{Client, Seen},
    options::Options,
    report::{Report, Round, machine},
    scenario::{Pace, Scenario},
    target::{Field, Target},
};

/// Before the first round of a scenario; not counted.
const WARM_UP: Duration = Duration::from_millis(300);

/// Runs what was asked for, prints the table and writes the file.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("load: not an optimised build; use `cargo bench`");
    }
    let mut report = Report::create(&machine(options))?;
    let mut field = Field::start(options)?;
    // One thread: the client is to leave the cores to what is measured.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for name in options.scenarios() {
        let scenario = name.scenario();
        let mut rounds = vec![Vec::new(); field.targets.len()];
        for target in &mut field.targets {
            load(&runtime, target, &scenario, options, WARM_UP)?;
        }
        for number in 0..options.rounds as usize {
            eprint!("{} {}/{}:", scenario.name, number + 1, options.rounds);
            // Whoever goes first in one round does not in the next.
            for turn in 0..rounds.len() {
                let index = (number + turn) % rounds.len();
                let target = &mut field.targets[index];
                let round = load(&runtime, target, &scenario, options, options.round())?;
                eprint!("  {} {:.0}/s", target.name, round.calls_per_second);
                rounds[index].push(round);
            }
            eprintln!();
        }
        let names = field.targets.iter().map(|target| target.name);
        report.scenario(scenario.name, names.zip(&rounds))?;
    }
    field.stop()?;
    report.finish()
}

/// One round on one target.
fn load(
    runtime: &Runtime,
    target: &mut Target,
    scenario: &Scenario,
    options: &Options,
    time: Duration,
) -> anyhow::Result<Round> {
    let call = target.prepare(scenario)?;
    let answered = async {
        let (client, warmed) = match scenario.pace {
            Pace::WhenAnswered => Client::open(target.address, call, options.connections).await?,
            Pace::PerSecond(_) => Client::open_paced(target.address, call).await?,
        };
        let before = target.processes.used()?;
        let seen = match scenario.pace {
            Pace::WhenAnswered => client.when_answered(time).await?,
            Pace::PerSecond(calls) => client.per_second(calls, time).await?,
        };
        let used = target.processes.used()?.saturating_sub(before);
        anyhow::Ok((warmed, seen, used))
    };
    let (warmed, seen, used) = runtime
        .block_on(answered)
        .with_context(|| format!("{} on {}", scenario.name, target.name))?;
    let Seen {
        answered, elapsed, ..
    } = seen;
    target.answered += warmed + answered;
    Ok(Round::new(answered, elapsed, used, seen.samples))
}

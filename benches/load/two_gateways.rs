//! Two gateways on one Redis beside one: how many calls more, and what a call costs each process.
//!
//! A gateway has one thread here, so that two can do more than one where there are cores for the client,
//! the vendor, Redis and both of them.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    child::Child,
    client::Seen,
    cpu::Processes,
    fixtures::{
        redis_server,
        results::{figure, figures, median},
        support::redis::RedisServer,
    },
    options::{Options, RoleName},
    report::{Report, us},
    run::WARM_UP,
    scenario::{Scenario, ScenarioName},
    target::Target,
};

/// What one round came to.
#[derive(Clone, Copy, Debug)]
struct Round {
    calls_per_second: f64,
    /// CPU time of a call in the gateways, in microseconds.
    gateway_us: f64,
    redis_us: f64,
}

pub(crate) fn run(runtime: &Runtime, options: &Options, report: &mut Report) -> anyhow::Result<()> {
    if !RedisServer::is_installed() {
        eprintln!("load: no redis-server on the PATH, so there are no figures of two gateways");
        return Ok(());
    }
    println!("{HEAD}");
    let mut results = Vec::new();
    for leases in [false, true] {
        let rounds = measure(runtime, options, leases)?;
        for (gateways, of_number) in (1..).zip(&rounds) {
            let line = line(leases, gateways, of_number, &rounds[0]);
            println!("{}", text(&line));
            results.push(line);
        }
    }
    report.add(ScenarioName::TwoGateways, &results);
    Ok(())
}

/// The rounds of one gateway, and of two.
fn measure(runtime: &Runtime, options: &Options, leases: bool) -> anyhow::Result<[Vec<Round>; 2]> {
    let scenario = Scenario::plain();
    let vendor = Child::start(RoleName::Vendor, &[])?;
    let server = runtime.block_on(redis_server()).context("redis-server")?;
    let address = vendor.address()?;
    let mut gateways = [
        Target::gateway_of_one_thread("one", address, &server, leases)?,
        Target::gateway_of_one_thread("two", address, &server, leases)?,
    ];
    let redis = Processes::new([server.pid()]);
    let load = |gateways: &mut [Target], time| {
        let loaded = round(gateways, &redis, &scenario, options, time);
        runtime.block_on(loaded)
    };

    load(&mut gateways, WARM_UP)?;
    let mut rounds: [Vec<Round>; 2] = Default::default();
    for number in 0..options.rounds as usize {
        // Neither is always the one that works alone.
        let alone = number % gateways.len();
        for turn in 0..rounds.len() {
            // Whoever goes first in one round does not in the next.
            let index = (number + turn) % rounds.len();
            let round = match index {
                0 => load(&mut gateways[alone..=alone], options.round())?,
                _ => load(&mut gateways, options.round())?,
            };
            rounds[index].push(round);
        }
        let with = if leases { " with leases" } else { "" };
        eprintln!("two_gateways{with} {}/{}", number + 1, options.rounds);
    }
    for gateway in &mut gateways {
        gateway.stop()?;
    }
    Ok(rounds)
}

/// The same load on each of the gateways, at the same time.
async fn round(
    gateways: &mut [Target],
    redis: &Processes,
    scenario: &Scenario,
    options: &Options,
    time: Duration,
) -> anyhow::Result<Round> {
    let mut clients = Vec::new();
    for gateway in &mut *gateways {
        clients.push(gateway.warm(scenario, options.connections()).await?);
    }
    let used = |gateways: &[Target]| {
        let all: std::io::Result<Duration> = gateways
            .iter()
            .map(|gateway| gateway.processes.used())
            .sum();
        anyhow::Ok((all?, redis.used()?))
    };
    let before = used(gateways)?;
    let loads = gateways
        .iter_mut()
        .zip(clients)
        .map(|(gateway, client)| gateway.load(client, scenario.pace, time));
    let mut seen = Seen::default();
    for one in futures_util::future::try_join_all(loads).await? {
        seen.add(one);
    }
    let after = used(gateways)?;
    let calls = seen.answered as f64;
    Ok(Round {
        calls_per_second: calls / seen.elapsed.as_secs_f64(),
        gateway_us: us(after.0.saturating_sub(before.0)) / calls,
        redis_us: us(after.1.saturating_sub(before.1)) / calls,
    })
}

fn line(leases: bool, gateways: u32, rounds: &[Round], ones: &[Round]) -> Value {
    let each = |part: fn(&Round) -> f64| figure(median(rounds.iter().map(part)));
    let all = |part: fn(&Round) -> f64| figures(rounds.iter().map(part));
    let pairs = rounds.iter().zip(ones);
    let ratio = median(pairs.map(|(round, one)| round.calls_per_second / one.calls_per_second));
    json!({
        "leases": leases,
        "gateways": gateways,
        "calls_per_second": each(|round| round.calls_per_second),
        "calls_ratio": figure(ratio),
        "gateway_cpu_us": each(|round| round.gateway_us),
        "redis_cpu_us": each(|round| round.redis_us),
        "rounds": {
            "calls_per_second": all(|round| round.calls_per_second),
            "gateway_cpu_us": all(|round| round.gateway_us),
            "redis_cpu_us": all(|round| round.redis_us),
        },
    })
}

const HEAD: &str = "\
scenario     leases  gateways    calls/s   × one   CPU µs, gateways   CPU µs, Redis";

fn text(line: &Value) -> String {
    let figure = |name: &str| line[name].as_f64().unwrap_or_default();
    format!(
        "{:<12} {:>6} {:>9.0} {:>10.0} {:>7.2} {:>18.1} {:>15.1}",
        "two_gateways",
        if line["leases"] == true { "on" } else { "off" },
        figure("gateways"),
        figure("calls_per_second"),
        figure("calls_ratio"),
        figure("gateway_cpu_us"),
        figure("redis_cpu_us"),
    )
}

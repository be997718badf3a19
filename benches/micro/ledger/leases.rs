//! What does a call on one busy account cost Redis, with gateways that take leases of it and without?
//!
//! Gateways are ledgers in this process, each with a connection of its own: nothing but Redis is what they share. Calls
//! come at a rate, whether or not earlier ones have ended; a call's hold is waited for, its end is not, as in a gateway.
//! Of the server's processor time a call, `benches/report` makes the model of what one core of Redis carries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use clap::Parser;
use serde_json::{Value, json};
use tokio::{
    runtime::Runtime,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tollgate_layers::{
    ceiling::Ceilings,
    facts::RequestNumber,
    key::{AccountId, KeyDigest, KeyId},
    money::MicroRub,
    price::Price,
    reserve::{
        ledger::{Entry, Hold, Ledger, LedgerAdmin, Settlement},
        redis::{LeaseSettings, RedisLedger, RedisSettings},
    },
};

use crate::{
    books,
    fixtures::{
        key_record, redis_server,
        results::{self, figure, median},
        support::redis::RedisServer,
    },
};

const ACCOUNT: &str = "busy";
const HELD: MicroRub = MicroRub::new(200_000);
/// What `books::item` comes to at its prices.
const COST: MicroRub = MicroRub::new(7_100);
const PAID: MicroRub = MicroRub::new(1_000_000_000_000_000);
const CALL_TTL: Duration = Duration::from_secs(960);
const PATIENCE: Duration = Duration::from_secs(5);
const LEASE_MAX: Duration = Duration::from_secs(1);
/// Calls are let go so often.
const TICK: Duration = Duration::from_millis(1);
/// More are not under way at a time: Redis has not kept up.
const UNDER_WAY_MAX: u64 = 20_000;
/// As many ends as a turn tells at most.
const ENDS_ALONE: usize = 256;
const TURNS_ALONE: usize = 500;
/// Of an entry in the journal.
const PLACE: &str = "1795713301418-0";

/// Measures what calls on one busy account cost Redis.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// How many gateways.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 8])]
    gateways: Vec<usize>,
    /// Calls a second, of all gateways together.
    #[arg(long, value_delimiter = ',', default_values_t = [500, 2_000, 8_000, 32_000, 128_000])]
    rates: Vec<u64>,
    /// Length of a round.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// Rounds; the figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// The word `leases`, which led here.
    #[arg(hide = true)]
    _leases: String,
    /// What cargo says to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

/// What one round came to.
#[derive(Clone, Copy, Debug)]
struct Round {
    calls: u64,
    calls_per_second: f64,
    /// Commands that Redis executed for a call, those of scripts among them.
    commands: f64,
    /// Its processor time for a call, in microseconds.
    redis_us: f64,
    /// Of how many calls of a hundred Redis was asked for the hold.
    asked_percent: f64,
    /// Ends that one turn told; 0 without leases.
    ends_a_turn: f64,
    p50_us: f64,
    p99_us: f64,
    /// What Redis' memory has grown by for a call's receipt, with all that leads to it.
    bytes: f64,
}

pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<()> {
    anyhow::ensure!(RedisServer::is_installed(), "no redis-server on the PATH");
    let mut rows = Vec::new();
    println!("{HEAD}");
    for leases in [false, true] {
        for gateways in &options.gateways {
            for rate in &options.rates {
                let measured = measure(*gateways, leases, *rate, options);
                let rounds = runtime.block_on(measured)?;
                let row = row(*gateways, leases, *rate, &rounds);
                println!("{}", text(&row));
                rows.push(row);
            }
        }
    }
    let alone_us = runtime.block_on(commands_alone(options.rounds))?;
    println!("the commands of a turn alone, {ENDS_ALONE} ends at a time: {alone_us:.2} µs an end");
    let mut run = results::machine();
    run["rounds"] = options.rounds.into();
    run["round_seconds"] = figure(options.seconds);
    let entry = json!({ "run": run, "results": rows });
    let alone = json!({ "ends": ENDS_ALONE, "redis_us": figure(alone_us) });
    results::keep(
        "leases.json",
        [
            ("busy".to_owned(), entry),
            ("commands_alone".to_owned(), alone),
        ],
    )
}

/// What Redis takes for an end when it is sent the commands of a turn and no script around them: whether its number is
/// known, in a turn or alone, its line in the journal, and where that is. No script can take less.
async fn commands_alone(rounds: u32) -> anyhow::Result<f64> {
    let server = redis_server().await.context("redis-server")?;
    let mut conn = server.connection().await?;
    let item = serde_json::to_string(&books::item(&books::price()))?;
    let mut taken = Vec::new();
    // The first one warms up and does not count.
    for round in 0..=rounds {
        let used_before = used_us(&server).await?;
        for turn in 0..TURNS_ALONE {
            let places = format!("tg:{{busy}}:n:{round}:{}", turn / 64);
            let mut commands = redis::pipe();
            let [mut known, mut alone, mut found] = ["HMGET", "EXISTS", "HSET"].map(redis::cmd);
            known.arg(&places);
            found.arg(&places);
            let mut lines = String::new();
            for _ in 0..ENDS_ALONE {
                let number = RequestNumber::now_v7().to_string();
                known.arg(&number);
                alone.arg(format!("tg:{{busy}}:r:{number}"));
                found.arg(&number).arg(PLACE);
                lines.push_str(&format!("{number} 200000 7100 7100 0 held {item}\n"));
            }
            let mut entry = redis::cmd("XADD");
            entry.arg(&["tg:{busy}:j", "MINID", "~", "0", "*", "calls", &lines]);
            for command in [known, alone, entry, found] {
                commands.add_command(command).ignore();
            }
            let () = commands.query_async(&mut conn).await?;
        }
        if round > 0 {
            let used = used_us(&server).await? - used_before;
            taken.push(used / (TURNS_ALONE * ENDS_ALONE) as f64);
        }
    }
    Ok(median(taken))
}

async fn measure(
    gateways: usize,
    leases: bool,
    rate: u64,
    options: &Options,
) -> anyhow::Result<Vec<Round>> {
    let server = redis_server().await.context("redis-server")?;
    let url = server.url();
    let (mut fleet, mut tasks) = (Vec::new(), JoinSet::new());
    for n in 0..gateways {
        let settings = RedisSettings {
            response_timeout: PATIENCE,
            ..RedisSettings::default()
        };
        let mut ledger = RedisLedger::connect(&url, settings).await?;
        if leases {
            ledger = ledger.with_leases(LeaseSettings::new(LEASE_MAX, format!("gateway {n}")));
            let tended = ledger.clone();
            tasks.spawn(async move { tended.tend_leases().await });
        }
        fleet.push(ledger);
    }
    let account: AccountId = ACCOUNT.parse()?;
    let key: KeyId = "key".parse()?;
    fleet[0].create_account(&account, "").await?;
    let payment = Entry {
        id: "first".into(),
        amount: PAID,
        reason: None,
    };
    fleet[0].enter(&account, &payment).await?;
    let record = key_record(&account, "key", KeyDigest::new([1; 32]));
    fleet[0].create_key(&record, Ceilings::NONE).await?;

    let time = Duration::from_secs_f64(options.seconds);
    // The first one warms up and does not count.
    let (mut rounds, mut all) = (Vec::new(), 0);
    for number in 0..=options.rounds {
        let round = round(&server, &fleet, (&account, &key), rate, time).await?;
        all += round.calls;
        if number > 0 {
            rounds.push(round);
        }
    }
    for gateway in &fleet {
        gateway.give_back().await;
    }
    let view = fleet[0].account(&account).await?;
    let charged = i64::try_from(all)? * COST.micro();
    anyhow::ensure!(
        view.balance_rub.micro() == PAID.micro() - charged && view.held_rub == MicroRub::ZERO,
        "{all} calls, and the account is {view:?}"
    );
    tasks.shutdown().await;
    Ok(rounds)
}

async fn round(
    server: &RedisServer,
    fleet: &[RedisLedger],
    (account, key): (&AccountId, &KeyId),
    rate: u64,
    time: Duration,
) -> anyhow::Result<Round> {
    let _: String = server.ask(&["CONFIG", "RESETSTAT"]).await?;
    let counted = |fleet: &[RedisLedger]| {
        let counts = fleet.iter().filter_map(RedisLedger::lease_counts);
        counts.fold([0; 3], |[granted, turns, ends], counts| {
            [
                granted + counts.granted,
                turns + counts.turns,
                ends + counts.ends,
            ]
        })
    };
    let (before, used_before) = (counted(fleet), used_us(server).await?);
    let memory_before = memory(server).await?;
    let (under_way, price) = (Arc::new(AtomicU64::new(0)), books::price());
    let mut waits = JoinSet::new();
    let mut taken: Vec<u64> = Vec::new();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (began, mut sent) = (Instant::now(), 0u64);
    while began.elapsed() < time {
        tick.tick().await;
        let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        while sent < due && under_way.load(Ordering::Relaxed) < UNDER_WAY_MAX {
            let gateway = fleet[sent as usize % fleet.len()].clone();
            let call = call(gateway, account.clone(), key.clone(), Arc::clone(&price));
            let under_way = Arc::clone(&under_way);
            under_way.fetch_add(1, Ordering::Relaxed);
            waits.spawn(async move {
                let waited = call.await;
                under_way.fetch_sub(1, Ordering::Relaxed);
                waited
            });
            sent += 1;
        }
        while let Some(ended) = waits.try_join_next() {
            taken.push(ended??);
        }
    }
    while let Some(ended) = waits.join_next().await {
        taken.push(ended??);
    }
    let elapsed = began.elapsed();
    // The last turns.
    sleep(Duration::from_millis(100)).await;
    let (after, used_after) = (counted(fleet), used_us(server).await?);
    let stats: String = server.ask(&["INFO", "commandstats"]).await?;
    let grown = memory(server).await? - memory_before;
    taken.sort_unstable();
    let at = |percent: usize| {
        taken
            .get(taken.len() * percent / 100)
            .copied()
            .unwrap_or_default()
    };
    let calls = taken.len() as f64;
    let [granted, turns, ends] = [0, 1, 2].map(|n| (after[n] - before[n]) as f64);
    Ok(Round {
        calls: taken.len() as u64,
        calls_per_second: calls / elapsed.as_secs_f64(),
        commands: commands(&stats) / calls,
        redis_us: (used_after - used_before) / calls,
        asked_percent: 100.0 * (calls - granted) / calls,
        ends_a_turn: if turns > 0.0 { ends / turns } else { 0.0 },
        p50_us: at(50) as f64 / 1e3,
        p99_us: at(99) as f64 / 1e3,
        bytes: grown / calls,
    })
}

/// How long its hold took, in nanoseconds.
async fn call(
    gateway: RedisLedger,
    account: AccountId,
    key: KeyId,
    price: Arc<Price>,
) -> anyhow::Result<u64> {
    let number = RequestNumber::now_v7();
    let hold = Hold {
        number,
        account: account.clone(),
        key: key.clone(),
        want: HELD,
        least: HELD,
        ttl: CALL_TTL,
    };
    let began = Instant::now();
    let reserved = gateway.reserve(&hold).await?;
    let waited = began.elapsed();
    let settlement = Settlement {
        number,
        account,
        key,
        held: reserved.held,
        cost: COST,
        fresh: true,
        lease: None,
        item: books::item(&price),
    };
    gateway.settle(&settlement).await?;
    Ok(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX))
}

/// What the server has in memory, in bytes, without the buffers of its clients and its files.
async fn memory(server: &RedisServer) -> anyhow::Result<f64> {
    let stats: String = server.ask(&["INFO", "memory"]).await?;
    let of = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|bytes| bytes.trim().parse::<f64>().ok())
    };
    let [used, clients, file] = ["used_memory:", "mem_clients_normal:", "mem_aof_buffer:"].map(of);
    let held = used.zip(clients).zip(file);
    let ((used, clients), file) = held.with_context(|| format!("INFO memory: {stats}"))?;
    Ok(used - clients - file)
}

/// The server's processor time so far.
async fn used_us(server: &RedisServer) -> anyhow::Result<f64> {
    let stats: String = server.ask(&["INFO", "cpu"]).await?;
    let used = ["used_cpu_sys:", "used_cpu_user:"].map(|name| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|seconds| seconds.trim().parse::<f64>().ok())
    });
    match used {
        [Some(sys), Some(user)] => Ok((sys + user) * 1e6),
        _ => anyhow::bail!("INFO cpu: {stats}"),
    }
}

fn commands(stats: &str) -> f64 {
    let calls = stats.lines().filter_map(|line| {
        let (name, rest) = line.split_once(":calls=")?;
        let ours = !name.ends_with("info") && !name.contains("config");
        let calls: f64 = rest.split(',').next()?.parse().ok()?;
        ours.then_some(calls)
    });
    calls.sum()
}

fn row(gateways: usize, leases: bool, rate: u64, rounds: &[Round]) -> Value {
    let each = |part: fn(&Round) -> f64| figure(median(rounds.iter().map(part)));
    json!({
        "gateways": gateways,
        "leases": leases,
        "rate": rate,
        "calls_per_second": each(|round| round.calls_per_second),
        "commands": each(|round| round.commands),
        "redis_us": each(|round| round.redis_us),
        "asked_percent": each(|round| round.asked_percent),
        "ends_a_turn": each(|round| round.ends_a_turn),
        "p50_us": each(|round| round.p50_us),
        "p99_us": each(|round| round.p99_us),
        "bytes_a_receipt": each(|round| round.bytes),
    })
}

const HEAD: &str = "\
leases  gateways    rate   calls/s   commands   Redis µs   asked %   ends a turn    p50 µs    p99 µs   bytes a receipt";

fn text(row: &Value) -> String {
    let figure = |name: &str| row[name].as_f64().unwrap_or_default();
    format!(
        "{:<7} {:>8} {:>7} {:>9.0} {:>10.2} {:>10.2} {:>9.1} {:>13.1} {:>9.1} {:>9.1} {:>17.0}",
        if row["leases"] == true { "on" } else { "off" },
        row["gateways"],
        row["rate"],
        figure("calls_per_second"),
        figure("commands"),
        figure("redis_us"),
        figure("asked_percent"),
        figure("ends_a_turn"),
        figure("p50_us"),
        figure("p99_us"),
        figure("bytes_a_receipt"),
    )
}

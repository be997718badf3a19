//! Measures the work that a call on one busy account causes in Redis, for gateways that take leases on the account and
//! for gateways that do not.
//!
//! The gateways are ledgers in this process. Each has its own connection, and they share only Redis. Calls begin at a
//! fixed rate, whether or not earlier calls have ended. As in a gateway, a call waits for its hold but not for its
//! settlement. From the server's CPU time per call, `benches/report` computes the load that one core of Redis can
//! carry.

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
        ledger::{Booked, Entry, Hold, Ledger, LedgerAdmin, Settled, Settlement},
        redis::{LeaseSettings, RedisLedger, RedisSettings},
    },
};
use tollgate_ledger::leases::{LeaseLedger, Step, Turn, TurnEnd, Word};

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
/// The cost in micro-rubles of the call that `books::item` describes, at the prices of that call.
const COST: MicroRub = MicroRub::new(7_100);
const PAID: MicroRub = MicroRub::new(1_000_000_000_000_000);
const CALL_TTL: Duration = Duration::from_secs(960);
const PATIENCE: Duration = Duration::from_secs(5);
const LEASE_MAX: Duration = Duration::from_secs(1);
/// The interval at which due calls are started.
const TICK: Duration = Duration::from_millis(1);
/// The maximum number of calls in flight. If it is reached, Redis is too slow, and no more calls are started.
const UNDER_WAY_MAX: u64 = 20_000;
/// The numbers of ended calls that a lease turn reports. The last number is the maximum for one turn.
const ENDS_AT_THE_LIMIT: [usize; 5] = [1, 4, 16, 64, 256];
const LEASES_AT_THE_LIMIT: u8 = 4;
/// The maximum number of calls in a round that measures lease turns.
const CALLS_AT_THE_LIMIT: usize = 131_072;
/// The maximum number of turns of each lease in a round that measures lease turns.
const TURNS_AT_THE_LIMIT: usize = 2_048;
const LEASED: MicroRub = MicroRub::new(1_000_000_000);

/// Measures the work that calls on one busy account cause in Redis.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// The numbers of gateways to measure with.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 8])]
    gateways: Vec<usize>,
    /// The numbers of calls per second, of all gateways together.
    #[arg(long, value_delimiter = ',', default_values_t = [500, 2_000, 8_000, 32_000, 128_000])]
    rates: Vec<u64>,
    /// The length of a round, in seconds.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// The number of rounds. The results are medians over the rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// The word `leases`, which selects this bench.
    #[arg(hide = true)]
    _leases: String,
    /// An argument that cargo passes to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

/// The result of one round with one number of gateways.
#[derive(Clone, Copy, Debug)]
struct Round {
    calls: u64,
    calls_per_second: f64,
    /// The number of commands that Redis executed per call, including the commands of scripts.
    commands: f64,
    /// The CPU time that Redis used per call, in microseconds.
    redis_us: f64,
    /// The percentage of calls that requested their hold from Redis.
    asked_percent: f64,
    /// The mean number of ended calls that a lease turn reported; 0 without leases.
    ends_a_turn: f64,
    p50_us: f64,
    p99_us: f64,
    /// The growth of Redis' memory per receipt in bytes, including the receipt's entries in all indexes.
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
    let at_the_limit = runtime.block_on(turns_at_the_limit(options.rounds))?;
    println!("{LIMIT_HEAD}");
    for row in &at_the_limit {
        println!("{}", limit_text(row));
    }
    let mut run = results::machine();
    run["rounds"] = options.rounds.into();
    run["round_seconds"] = figure(options.seconds);
    let entry = json!({ "run": run, "results": rows });
    results::keep(
        "leases.json",
        [
            ("busy".to_owned(), entry),
            ("limit".to_owned(), json!({ "results": at_the_limit })),
        ],
    )
}

/// Measures lease turns that are sent without a pause, so that only Redis limits their rate. One account has four
/// leases, each of a different key, so that no turn waits for the response to another turn.
async fn turns_at_the_limit(rounds: u32) -> anyhow::Result<Vec<Value>> {
    let mut rows = Vec::new();
    for ends in ENDS_AT_THE_LIMIT {
        let server = redis_server().await.context("redis-server")?;
        let ledger = RedisLedger::connect(&server.url(), RedisSettings::default()).await?;
        let account = paid_account(&ledger).await?;
        let mut owners = Vec::new();
        for n in 0..LEASES_AT_THE_LIMIT {
            let key: KeyId = format!("key-{n}").parse()?;
            let record = key_record(&account, &key, KeyDigest::new([n; 32]));
            ledger.create_key(&record, Ceilings::NONE).await?;
            let mut owner = Owner::of(&account, key);
            owner.turn(&ledger, Vec::new()).await?;
            owners.push(owner);
        }
        let turns = (CALLS_AT_THE_LIMIT / ends / owners.len()).clamp(1, TURNS_AT_THE_LIMIT);
        let price = books::price();
        let mut taken = Vec::new();
        // The first round is a warm-up. Its results are not counted.
        for round in 0..=rounds {
            let reported = owners.iter().map(|owner| {
                let turns = (0..turns).map(|_| (0..ends).map(|_| owner.end(&price)).collect());
                turns.collect::<Vec<Vec<TurnEnd>>>()
            });
            let reported: Vec<_> = reported.collect();
            let used_before = used_us(&server).await?;
            let began = Instant::now();
            let all = owners
                .iter_mut()
                .zip(reported)
                .map(|(owner, reported)| async {
                    for ends in reported {
                        owner.turn(&ledger, ends).await?;
                    }
                    anyhow::Ok(())
                });
            futures_util::future::try_join_all(all).await?;
            let elapsed = began.elapsed().as_secs_f64() * 1e6;
            if round > 0 {
                let used = used_us(&server).await? - used_before;
                let calls = (turns * ends * owners.len()) as f64;
                taken.push((used / calls, 100.0 * used / elapsed, calls / elapsed * 1e6));
            }
        }
        let each = |part: fn(&(f64, f64, f64)) -> f64| figure(median(taken.iter().map(part)));
        rows.push(json!({
            "ends": ends,
            "redis_us": each(|taken| taken.0),
            "busy_percent": each(|taken| taken.1),
            "calls_per_second": each(|taken| taken.2),
        }));
    }
    Ok(rows)
}

/// A gateway with a lease, reduced to the commands that it sends to Redis.
struct Owner {
    lease: RequestNumber,
    account: AccountId,
    key: KeyId,
    word: String,
}

impl Owner {
    fn of(account: &AccountId, key: KeyId) -> Self {
        Self {
            lease: RequestNumber::now_v7(),
            account: account.clone(),
            key,
            word: String::new(),
        }
    }

    fn end(&self, price: &Arc<Price>) -> TurnEnd {
        let (account, key) = (self.account.clone(), self.key.clone());
        let hold = Hold::new(RequestNumber::now_v7(), account, key, HELD, CALL_TTL);
        let settlement = Settlement::new(&hold, HELD, COST, books::item(price));
        TurnEnd {
            settlement: Arc::new(settlement),
            cover: COST,
        }
    }

    /// Sends a lease turn, which opens the lease, or reports these ended calls and requests the amount that they have
    /// cost.
    async fn turn(&mut self, ledger: &RedisLedger, ends: Vec<TurnEnd>) -> anyhow::Result<()> {
        let opens = self.word.is_empty();
        let this = RequestNumber::now_v7().to_string();
        let reported = ends.len();
        let turn = Turn {
            lease: self.lease,
            account: self.account.clone(),
            key: self.key.clone(),
            step: if opens { Step::Open } else { Step::GoOn },
            before: self.word.clone(),
            this: this.clone(),
            give: MicroRub::ZERO,
            more: if opens {
                LEASED
            } else {
                MicroRub::new(COST.micro() * i64::try_from(reported)?)
            },
            raise: MicroRub::ZERO,
            short_of: MicroRub::ZERO,
            ttl_ms: 960_000,
            grants_ms: 1_000,
            ends,
        };
        let answer = ledger.turn(&turn).await?;
        let paid = |settled: &Settled| settled.booked == Booked::Held && settled.charged == COST;
        anyhow::ensure!(
            answer.word == Word::Done && answer.left == LEASED && answer.ends.iter().all(paid),
            "{reported} ends, answered {answer:?}"
        );
        self.word = this;
        Ok(())
    }
}

/// Creates an account with more money than a run can spend.
async fn paid_account(ledger: &RedisLedger) -> anyhow::Result<AccountId> {
    let account: AccountId = ACCOUNT.parse()?;
    ledger.create_account(&account, "").await?;
    let payment = Entry {
        id: "first".into(),
        amount: PAID,
        reason: None,
    };
    ledger.enter(&account, &payment).await?;
    Ok(account)
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
    let key: KeyId = "key".parse()?;
    let account = paid_account(&fleet[0]).await?;
    let record = key_record(&account, "key", KeyDigest::new([1; 32]));
    fleet[0].create_key(&record, Ceilings::NONE).await?;

    let time = Duration::from_secs_f64(options.seconds);
    // The first round is a warm-up. Its results are not counted.
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
    // This waits until the last turn of each gateway's lease has ended.
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

/// Makes one call. Returns how long its hold took, in nanoseconds.
async fn call(
    gateway: RedisLedger,
    account: AccountId,
    key: KeyId,
    price: Arc<Price>,
) -> anyhow::Result<u64> {
    let number = RequestNumber::now_v7();
    let hold = Hold::new(number, account, key, HELD, CALL_TTL);
    let began = Instant::now();
    let reserved = gateway.reserve(&hold).await?;
    let waited = began.elapsed();
    let settlement = Settlement::new(&hold, reserved.held, COST, books::item(&price));
    gateway.settle(&settlement).await?;
    Ok(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the memory of the Redis server in bytes, without the buffers of its clients and of its append-only file.
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

/// Returns the CPU time that the Redis server has used so far, in microseconds.
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

const LIMIT_HEAD: &str = "\
always another turn: ends a turn   Redis µs an end   busy %   calls/s";

fn limit_text(row: &Value) -> String {
    let figure = |name: &str| row[name].as_f64().unwrap_or_default();
    format!(
        "{:>32} {:>17.2} {:>8.0} {:>9.0}",
        row["ends"],
        figure("redis_us"),
        figure("busy_percent"),
        figure("calls_per_second"),
    )
}

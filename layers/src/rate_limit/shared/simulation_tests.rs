//! Simulates several gateways with a shared store, a clock and a network, from random seeds. The calls that the
//! gateways admit are compared with the calls that a single gateway would admit if it got all of them.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::rate_limit::{Gcra, Limiter, PostPaid};

const MINUTE: Duration = Duration::from_secs(60);

/// The random number generator splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }
}

/// A store in memory that works like `take.lua` and `spend.lua`. Its commands and answers pass a simulated network.
#[derive(Clone)]
struct SimulatedStore(Arc<Mutex<Simulated>>);

/// The permits that each gateway has, and when they expire.
type Permits = HashMap<u64, (u64, f64)>;

struct Simulated {
    began: Instant,
    random: Random,
    delay_us_max: u64,
    is_down: bool,
    /// If set to n, one in n responses is lost after the store has executed the command.
    lost_in: Option<u64>,
    /// For each caller: its theoretical arrival time, and the permits recorded for each gateway.
    permits: HashMap<String, (f64, Permits)>,
    /// For each caller: the amount taken, the time up to which it is refilled, and the number of each gateway's newest
    /// batch.
    spent: HashMap<String, (f64, f64, HashMap<u64, u64>)>,
}

impl SimulatedStore {
    fn new(seed: u64, delay_us_max: u64) -> Self {
        Self(Arc::new(Mutex::new(Simulated {
            began: Instant::now(),
            random: Random(seed),
            delay_us_max,
            is_down: false,
            lost_in: None,
            permits: HashMap::new(),
            spent: HashMap::new(),
        })))
    }

    fn set(&self, change: impl FnOnce(&mut Simulated)) {
        change(&mut self.0.lock().unwrap());
    }

    /// Delays a message on its way to or from the store. Fails if the store is down.
    async fn way(&self) -> Result<(), BoxError> {
        let delay = {
            let mut store = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if store.is_down {
                return Err("the store is down".into());
            }
            let most = store.delay_us_max;
            100 + store.random.below(most)
        };
        sleep(Duration::from_micros(delay)).await;
        Ok(())
    }

    async fn back(&self) -> Result<(), BoxError> {
        self.way().await?;
        let mut store = self.0.lock().unwrap();
        let lost_in = store.lost_in;
        match lost_in {
            Some(count) if store.random.below(count) == 0 => Err("no answer".into()),
            _ => Ok(()),
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_micros() as f64
}

impl RateStore for SimulatedStore {
    async fn take(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        take: Take,
        ttl: Duration,
    ) -> Result<Result<u64, Duration>, BoxError> {
        self.way().await?;
        let answer = {
            let mut store = self.0.lock().unwrap();
            let now = micros(store.began.elapsed());
            let (tat, held) = store.permits.entry(id.to_owned()).or_default();
            let (interval, burst) = (
                micros(quota.per) / f64::from(quota.count),
                f64::from(quota.burst),
            );
            let mut back = take.back as f64;
            held.retain(|holder, (permits, until)| {
                let is_gone = *holder != node && *until < now;
                back += if is_gone { *permits as f64 } else { 0.0 };
                !is_gone
            });
            *tat = (tat.min(now + burst * interval) - back * interval).max(now);
            let free = (burst - (*tat - now) / interval).floor();
            let wanted = take.calls + take.spare;
            let granted = (wanted as f64).min(free).max(0.0);
            *tat += granted * interval;
            let has = take.has + (granted as u64).saturating_sub(take.calls);
            held.remove(&node);
            if has > 0 {
                held.insert(node, (has, now + micros(ttl)));
            }
            if granted > 0.0 || wanted == 0 {
                Ok(granted as u64)
            } else {
                let wait = *tat - now - (burst - 1.0) * interval;
                Err(Duration::from_micros(wait.ceil().max(1.0) as u64))
            }
        };
        self.back().await?;
        Ok(answer)
    }

    async fn spend(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        batch: Batch,
    ) -> Result<u64, BoxError> {
        self.way().await?;
        let answer = {
            let mut store = self.0.lock().unwrap();
            let now = micros(store.began.elapsed());
            let (taken, at, batches) = store.spent.entry(id.to_owned()).or_default();
            let filled = (now - *at) * f64::from(quota.count) / micros(quota.per);
            (*taken, *at) = ((*taken - filled).max(0.0), now);
            if batch.units > 0 && batches.insert(node, batch.number) != Some(batch.number) {
                *taken += batch.units as f64;
            }
            (*taken * 1000.0).ceil() as u64
        };
        self.back().await?;
        Ok(answer)
    }
}

struct Gateway {
    rates: SharedRates<SimulatedStore>,
    requests: SharedGcra<String, SimulatedStore>,
    tokens: SharedPostPaid<String, SimulatedStore>,
    task: JoinSet<()>,
}

fn gateways(store: &SimulatedStore, count: usize) -> Vec<Gateway> {
    (0..count)
        .map(|_| {
            let (rates, mut run) = SharedRates::new(store.clone());
            let mut task = JoinSet::new();
            task.spawn(async move { run.run().await });
            Gateway {
                requests: SharedGcra::new(rates.clone(), "requests", 100),
                tokens: SharedPostPaid::new(rates.clone(), "tokens", 100),
                rates,
                task,
            }
        })
        .collect()
}

/// The calls of a test: how many arrive per second on average, and the percentage that each gateway gets.
#[derive(Clone, Copy, Debug)]
struct Load {
    per_second: f64,
    parts: [u64; 3],
    /// If set, all calls arrive in the first tenth of each period of this length, in seconds.
    bursts: Option<u64>,
}

/// Returns the times at which calls arrive, and the index of the gateway that gets each call.
fn arrivals(load: Load, time: Duration, random: &mut Random) -> Vec<(Duration, usize)> {
    let count = (load.per_second * time.as_secs_f64()) as u64;
    let mut all: Vec<(Duration, usize)> = (0..count)
        .map(|_| {
            let mut at = random.below(time.as_micros() as u64);
            if let Some(seconds) = load.bursts {
                let period = seconds * 1_000_000;
                at = at / period * period + at % period / 10;
            }
            let mut part = random.below(100);
            let is_before = |share: &u64| {
                let before = part < *share;
                part = part.saturating_sub(*share);
                before
            };
            let gateway = load.parts.iter().position(is_before).unwrap_or(0);
            (Duration::from_micros(at), gateway)
        })
        .collect();
    all.sort_unstable();
    all
}

/// The times at which calls were admitted: first by three gateways that share the calls, then by one gateway that got
/// all of them.
struct Outcome {
    let_in: Vec<Duration>,
    by_one: Vec<Duration>,
    requested: u64,
    calls: u64,
    waited: u64,
}

/// Sends the calls of `load` to three gateways. Before each call, the closure is called with the call's time and may
/// change the gateways or the store.
async fn requests(
    quota: Quota,
    load: Load,
    time: Duration,
    seed: u64,
    mut at: impl FnMut(Duration, &mut Vec<Gateway>, &SimulatedStore),
) -> Outcome {
    let mut random = Random(seed);
    let store = SimulatedStore::new(seed, 2_000);
    let mut nodes = gateways(&store, 3);
    let one = Gcra::new(10);
    let began = Instant::now();
    let (mut waiting, mut let_in, mut by_one) = (JoinSet::new(), Vec::new(), Vec::new());
    let calls = arrivals(load, time, &mut random);
    for (due, gateway) in &calls {
        tokio::time::sleep_until(began + *due).await;
        at(*due, &mut nodes, &store);
        if one.count(&"key", quota).is_ok() {
            by_one.push(*due);
        }
        let limiter = &nodes[*gateway % nodes.len()].requests;
        let id = "key".to_owned();
        match limiter.admit_now(&id, quota) {
            Some(Ok(())) => let_in.push(*due),
            Some(Err(wait)) => assert!(!wait.is_zero()),
            None => {
                let (limiter, due) = (limiter.clone(), *due);
                waiting.spawn(async move { limiter.admit(id, quota).await.is_ok().then_some(due) });
            }
        }
        while let Some(reported) = waiting.try_join_next() {
            let_in.extend(reported.unwrap());
        }
    }
    let_in.extend(waiting.join_all().await.into_iter().flatten());
    let_in.sort_unstable();
    let counts = nodes.iter().map(|node| node.rates.counts());
    Outcome {
        let_in,
        by_one,
        calls: calls.len() as u64,
        requested: counts.clone().map(|counts| counts.takes).sum(),
        waited: counts.map(|counts| counts.waited).sum(),
    }
}

impl Outcome {
    /// Compares, over all minutes that begin at a full second, how many calls the three gateways and the one gateway
    /// admitted. Returns the largest difference, in percent of the one gateway's calls.
    fn error_percent(&self, time: Duration) -> f64 {
        let within = |calls: &[Duration], from: Duration| {
            let end = calls.partition_point(|at| *at < from + MINUTE);
            (end - calls.partition_point(|at| *at < from)) as f64
        };
        (0..=time.saturating_sub(MINUTE).as_secs())
            .map(|from| {
                let from = Duration::from_secs(from);
                let ideal = within(&self.by_one, from);
                100.0 * (within(&self.let_in, from) - ideal).abs() / ideal.max(1.0)
            })
            .fold(0.0, f64::max)
    }
}

fn shapes(per_minute: u32) -> Vec<Load> {
    let rate = f64::from(per_minute) / 60.0;
    let even = |factor: f64| Load {
        per_second: rate * factor,
        parts: [34, 33, 33],
        bursts: None,
    };
    vec![
        even(0.8),
        even(1.05),
        even(3.0),
        Load {
            parts: [90, 8, 2],
            ..even(1.3)
        },
        Load {
            parts: [100, 0, 0],
            ..even(1.3)
        },
        Load {
            bursts: Some(5),
            ..even(1.5)
        },
    ]
}

#[tokio::test(start_paused = true)]
async fn three_gateways_together_admit_as_many_requests_as_one_gateway_to_within_2_percent() {
    let time = Duration::from_secs(100);
    for per_minute in [600, 6_000, 60_000] {
        let quota = Quota::per_minute(per_minute);
        for (shape, load) in shapes(per_minute).into_iter().enumerate() {
            let seed = u64::from(per_minute) + shape as u64;
            let outcome = requests(quota, load, time, seed, |_, _, _| {}).await;
            let error = outcome.error_percent(time);
            let per_call = outcome.requested as f64 / outcome.calls as f64;
            println!(
                "{per_minute} a minute, {load:?}: {} of {} calls, {error:.2} % off, {per_call:.3} commands and {:.3} waits a call",
                outcome.let_in.len(),
                outcome.calls,
                outcome.waited as f64 / outcome.calls as f64,
            );
            assert!(error < 2.0, "{per_minute}, {load:?}: {error} %");
            if per_minute == 60_000 {
                assert!(per_call < 0.2, "{load:?}: {per_call} commands a call");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn small_request_limits_are_exact_across_gateways() {
    let time = Duration::from_secs(300);
    for per_minute in [1, 5, 30, 200] {
        let quota = Quota::per_minute(per_minute);
        for seed in 0..20 {
            let load = Load {
                per_second: 8.0,
                parts: [50, 40, 10],
                bursts: (seed % 2 == 0).then_some(10),
            };
            let outcome = requests(quota, load, time, seed, |_, _, _| {}).await;
            let (ours, one) = (outcome.let_in.len(), outcome.by_one.len());
            // The network delays a permit by up to some milliseconds. So another call may get it, and the counts may
            // differ slightly.
            assert!(
                ours.abs_diff(one) <= 1 + one / 100,
                "{per_minute}, {seed}: {ours} for {one}"
            );
            // In each minute, at most the quota and a burst of calls may be admitted.
            for (index, from) in outcome.let_in.iter().enumerate() {
                let minute = &outcome.let_in[index..];
                let count = minute.partition_point(|at| *at < *from + MINUTE) as u32;
                assert!(
                    count <= quota.count + quota.burst + 1,
                    "{per_minute}: {count}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn permits_of_a_killed_gateway_are_returned() {
    let time = Duration::from_secs(90);
    let quota = Quota::per_minute(6_000);
    for seed in 0..5 {
        let load = Load {
            per_second: 200.0,
            parts: [34, 33, 33],
            bursts: None,
        };
        let mut killed = 0;
        // Every five seconds, a gateway stops without returning its permits, and a new gateway replaces it.
        let outcome = requests(quota, load, time, seed, |at, nodes, store| {
            if at.as_secs() / 5 > killed {
                killed += 1;
                let mut gone = nodes.remove(0);
                gone.task.abort_all();
                nodes.extend(gateways(store, 1));
            }
        })
        .await;
        let error = outcome.error_percent(time);
        println!("{killed} killed: {error:.2} % off");
        assert!(error < 2.0, "{seed}: {error} %");
    }
    // A gateway takes all permits, uses none and stops.
    let store = SimulatedStore::new(7, 100);
    let one = Quota::per_minute(6_000).with_burst(20);
    let take = Take {
        spare: 20,
        ..Take::default()
    };
    let taken = store.take(1, "x", one, take, Duration::from_secs(1));
    assert_eq!(taken.await.unwrap(), Ok(20));
    let call = Take {
        calls: 1,
        ..Take::default()
    };
    let none = store.take(2, "x", one, call, Duration::from_secs(1));
    assert!(none.await.unwrap().is_err());
    advance(Duration::from_millis(1_100)).await;
    let call = Take { calls: 20, ..call };
    let all = store.take(2, "x", one, call, Duration::from_secs(1));
    assert_eq!(all.await.unwrap(), Ok(20));
}

#[tokio::test(start_paused = true)]
async fn unused_permits_are_returned_before_they_expire() {
    let store = SimulatedStore::new(1, 100);
    let mut nodes = gateways(&store, 2);
    let quota = Quota::per_minute(6_000).with_burst(10);
    // The first gateway takes permits in advance and then gets no more calls.
    for _ in 0..9 {
        assert!(nodes[0].requests.admit("key".into(), quota).await.is_ok());
    }
    sleep(Duration::from_millis(400)).await;
    let counts = nodes[0].rates.counts();
    assert!(counts.given_back > 0, "{counts:?}");
    let held = |store: &SimulatedStore| {
        let store = store.0.lock().unwrap();
        store.permits["requests:key"].1.len()
    };
    assert_eq!(held(&store), 0);
    let mut let_in = 0;
    while nodes[1].requests.admit("key".into(), quota).await.is_ok() {
        let_in += 1;
    }
    assert!((10..=14).contains(&let_in), "{let_in}");
    nodes.clear();
}

#[tokio::test(start_paused = true)]
async fn each_gateway_enforces_the_limit_locally_while_the_store_is_down() {
    let store = SimulatedStore::new(1, 100);
    let nodes = gateways(&store, 3);
    let quota = Quota::per_minute(60);
    // The first gateway uses up the burst, and must still count it when the store fails.
    for _ in 0..10 {
        assert!(nodes[0].requests.admit("key".into(), quota).await.is_ok());
    }
    store.set(|store| store.is_down = true);
    let refused = nodes[0].requests.admit("key".into(), quota).await;
    assert!(refused.is_err());
    let mut let_in = 0;
    for _ in 0..60 {
        sleep(Duration::from_millis(500)).await;
        for node in &nodes {
            let_in += u64::from(node.requests.admit("key".into(), quota).await.is_ok());
        }
    }
    // Each of three gateways may admit the quota of half a minute, and two of them also a burst, because they had no
    // call before.
    assert!((90..=3 * 31 + 20).contains(&let_in), "{let_in}");
    assert!(nodes.iter().all(|node| node.rates.counts().failures > 0));
    store.set(|store| store.is_down = false);
    let mut let_in = 0;
    for _ in 0..120 {
        sleep(Duration::from_millis(500)).await;
        for node in &nodes {
            let_in += u64::from(node.requests.admit("key".into(), quota).await.is_ok());
        }
    }
    assert!((60..=70).contains(&let_in), "{let_in}");
}

/// Sends calls that use tokens to three gateways and to a single one. Returns the difference in percent, and the number
/// of commands and of waits per call.
async fn tokens(
    quota: Quota,
    load: Load,
    each: u64,
    seed: u64,
    lost_in: Option<u64>,
) -> (f64, f64, f64) {
    let mut random = Random(seed);
    let store = SimulatedStore::new(seed, 2_000);
    store.set(|store| store.lost_in = lost_in);
    let nodes = gateways(&store, 3);
    let one = PostPaid::new(10);
    let began = Instant::now();
    let mut running = JoinSet::new();
    let time = Duration::from_secs(120);
    let calls = arrivals(load, time, &mut random);
    for (due, gateway) in &calls {
        tokio::time::sleep_until(began + *due).await;
        let (limiter, one, id) = (
            nodes[*gateway].tokens.clone(),
            one.clone(),
            "key".to_owned(),
        );
        let (units, takes) = (each / 2 + random.below(each), 50 + random.below(400));
        running.spawn(async move {
            let (ours, theirs) = (
                limiter.admit(id.clone(), quota).await.is_ok(),
                one.admit(id.clone(), quota).await.is_ok(),
            );
            sleep(Duration::from_millis(takes)).await;
            if ours {
                limiter.take(&id, units);
            }
            if theirs {
                one.take(&id, units);
            }
            (if ours { units } else { 0 }, if theirs { units } else { 0 })
        });
    }
    let used = running.join_all().await;
    let ours: u64 = used.iter().map(|(ours, _)| ours).sum();
    let theirs: u64 = used.iter().map(|(_, theirs)| theirs).sum();
    let requested: u64 = nodes.iter().map(|node| node.rates.counts().spends).sum();
    let waited: u64 = nodes.iter().map(|node| node.rates.counts().waited).sum();
    let error = 100.0 * ours.abs_diff(theirs) as f64 / theirs as f64;
    let calls = calls.len() as f64;
    (error, requested as f64 / calls, waited as f64 / calls)
}

#[tokio::test(start_paused = true)]
async fn three_gateways_together_admit_as_many_tokens_as_one_gateway_to_within_2_percent() {
    for (per_minute, each, factor) in [
        (60_000, 500, 1.5),
        (60_000, 500, 4.0),
        (6_000_000, 500, 1.5),
        (6_000_000, 5_000, 3.0),
        (10_000, 100, 2.0),
    ] {
        let quota = Quota::per_minute(per_minute).with_burst(per_minute);
        for parts in [[34, 33, 33], [90, 8, 2]] {
            for lost_in in [None, Some(20)] {
                let load = Load {
                    // More calls arrive than the quota allows, because in the first minute the burst is available in
                    // addition to the quota.
                    per_second: f64::from(per_minute) / 60.0 / each as f64 * factor,
                    parts,
                    bursts: None,
                };
                let (error, requested, waited) =
                    tokens(quota, load, each, per_minute.into(), lost_in).await;
                println!(
                    "{per_minute} tokens a minute, {load:?}, lost {lost_in:?}: {error:.2} % off, {requested:.3} commands and {waited:.3} waits a call"
                );
                assert!(error < 2.0, "{per_minute}, {load:?}: {error} %");
                if load.per_second > 200.0 {
                    assert!(requested < 0.5, "{load:?}: {requested}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn large_calls_are_counted_exactly_and_the_next_call_gets_the_exact_wait() {
    let store = SimulatedStore::new(1, 1_000);
    let nodes = gateways(&store, 3);
    let quota = Quota::per_minute(1_000).with_burst(1_000);
    let id = "key".to_owned();
    for node in &nodes {
        assert!(node.tokens.admit(id.clone(), quota).await.is_ok());
        node.tokens.take(&id, 500);
        sleep(Duration::from_millis(20)).await;
    }
    for node in &nodes {
        let wait = node.tokens.admit(id.clone(), quota).await.unwrap_err();
        assert_eq!(wait.as_secs_f64().round(), 30.0, "{wait:?}");
    }
    // The batch that overdraws the bucket is sent again if its response is lost. The batch must count only once.
    store.set(|store| store.lost_in = Some(1));
    nodes[0].tokens.take(&id, 500);
    sleep(Duration::from_millis(20)).await;
    store.set(|store| store.lost_in = None);
    for node in &nodes {
        let wait = node.tokens.admit(id.clone(), quota).await.unwrap_err();
        assert_eq!(wait.as_secs_f64().round(), 60.0, "{wait:?}");
    }
    store.set(|store| store.is_down = true);
    sleep(Duration::from_secs(30)).await;
    let wait = nodes[1].tokens.admit(id.clone(), quota).await.unwrap_err();
    assert_eq!(
        wait.as_secs_f64().round(),
        30.0,
        "the gateway continues from the last known usage"
    );
}

#[tokio::test(start_paused = true)]
async fn token_usage_of_a_caller_evicted_from_memory_still_counts_in_the_store() {
    let store = SimulatedStore::new(1, 1_000);
    let (rates, mut run) = SharedRates::new(store.clone());
    let mut task = JoinSet::new();
    task.spawn(async move { run.run().await });
    let few = SharedPostPaid::new(rates, "tokens", 2);
    let quota = Quota::per_minute(60).with_burst(1_000);
    for _ in 0..3 {
        assert!(few.admit("key".to_owned(), quota).await.is_ok());
        few.take(&"key".to_owned(), 100);
        sleep(Duration::from_millis(50)).await;
        for other in 0..20 {
            let admitted = few.admit(format!("other{other}"), quota).await;
            assert!(admitted.is_ok());
        }
    }
    store.set(|store| {
        let (taken, ..) = store.spent["tokens:key"];
        assert!((298.0..=300.0).contains(&taken), "{taken}");
    });
}

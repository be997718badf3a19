//! Tests of a key's limits of requests and tokens per minute, across three gateways that share one Redis or a Cluster
//! (docs/leases.md, "Rates").

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tollgate_layers::{
    rate_limit::{
        Quota,
        shared::{Batch, RateStore, RedisRates, Take},
    },
    redis_conn::{RedisConn, RedisSettings},
};

use crate::{prelude::*, support::redis::RedisCluster};

async fn three(url: &str) -> Vec<Arc<World>> {
    let mut gateways = Vec::new();
    for _ in 0..3 {
        gateways.push(Arc::new(Setup::default().ledger(url).start().await));
    }
    gateways
}

/// Sends calls to each gateway at these rates for `time`. Returns the number of answered calls, and the total time.
async fn load(
    gateways: &[Arc<World>],
    key: &Key,
    per_second: [u32; 3],
    time: Duration,
) -> (Vec<Answer>, Duration) {
    let began = Instant::now();
    let mut loads = JoinSet::new();
    for (gateway, per_second) in gateways.iter().zip(per_second) {
        let (gateway, key) = (Arc::clone(gateway), key.clone());
        loads.spawn(async move {
            let mut calls = JoinSet::new();
            let mut due = interval(Duration::from_secs(1) / per_second);
            due.set_missed_tick_behavior(MissedTickBehavior::Burst);
            while began.elapsed() < time {
                due.tick().await;
                let (gateway, key) = (Arc::clone(&gateway), key.clone());
                calls.spawn(async move { gateway.chat(&key, &chat_body("x")).await });
            }
            calls.join_all().await
        });
    }
    let answers = loads.join_all().await.into_iter().flatten();
    let elapsed = began.elapsed();
    let good = answers.filter(|answer| match answer.status.as_u16() {
        200 => true,
        429 => {
            refused("rate", answer, 429, LIMIT, "rate_limit_exceeded");
            false
        }
        _ => panic!("{answer:?}"),
    });
    (good.collect(), elapsed)
}

/// Returns the number of commands that all gateways have sent to Redis for the rate limits of keys.
async fn commands(gateways: &[Arc<World>]) -> f64 {
    let mut sum = 0.0;
    for gateway in gateways {
        let text = gateway.admin(Method::GET, "/metrics", None).await.text();
        sum += text
            .lines()
            .filter(|line| line.starts_with("tollgate_rate_commands_total"))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum::<f64>();
    }
    sum
}

fn is_near(what: &str, count: f64, ideal: f64) {
    let error = 100.0 * (count - ideal) / ideal;
    println!("{what}: {count} for {ideal:.1}: {error:+.2} %");
    assert!(
        error.abs() < 2.0,
        "{what}: {count} for {ideal}: {error:+.2} %"
    );
}

async fn requests_hold(url: &str, what: &str, per_second: [u32; 3]) {
    let gateways = three(url).await;
    let limited = json!({ "requests_per_minute": 1200 });
    let key = gateways[0].key_with("acme", "1000", limited).await;
    let (good, elapsed) = load(&gateways, &key, per_second, Duration::from_secs(20)).await;
    // At 1200 requests per minute, a burst of 200 requests is admitted, and then 20 per second.
    let ideal = 200.0 + 20.0 * elapsed.as_secs_f64();
    is_near(what, good.len() as f64, ideal);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_per_minute_are_limited_across_three_gateways_under_even_load() {
    let redis = RedisServer::start().await;
    requests_hold(&redis.url(), "even", [15, 15, 15]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_per_minute_are_limited_across_three_gateways_under_uneven_load() {
    let redis = RedisServer::start().await;
    requests_hold(&redis.url(), "uneven", [40, 4, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_per_minute_are_limited_across_three_gateways_on_a_redis_cluster() {
    let cluster = RedisCluster::start(3, 0).await;
    requests_hold(&cluster.url(), "cluster", [25, 12, 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn low_request_limit_is_exact_across_gateways_and_retry_after_is_correct() {
    let redis = RedisServer::start().await;
    let gateways = three(&redis.url()).await;
    // At 30 requests per minute, a burst of five requests is admitted, and then one every two seconds.
    let limited = json!({ "requests_per_minute": 30 });
    let key = gateways[0].key_with("acme", "1000", limited).await;
    let began = Instant::now();
    let mut good = 0;
    let mut turn = gateways.iter().cycle();
    let last = loop {
        let gateway = turn.next().unwrap();
        let answer = gateway.chat(&key, &chat_body("x")).await;
        if answer.status == 200 {
            good += 1;
        } else {
            refused("few", &answer, 429, LIMIT, "rate_limit_exceeded");
            let text = answer.refusal();
            assert!(text.contains("запросов в минуту"), "{text}");
            if began.elapsed() > Duration::from_millis(10_300) {
                break answer;
            }
        }
    };
    // Five of the calls are the burst. Each of the other five waits two seconds.
    assert!(began.elapsed() < Duration::from_secs(12), "a slow machine");
    assert_eq!(good, 10);
    let wait: u64 = last.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=2).contains(&wait), "{wait}");
    sleep_until(Instant::now() + Duration::from_secs(wait)).await;
    let answer = turn.next().unwrap().chat(&key, &chat_body("x")).await;
    assert_eq!(
        answer.status, 200,
        "whoever waits as long as told is let in"
    );
    // The refused calls hold no money.
    gateways[0].settled(&key).await;
}

async fn tokens_hold(url: &str, what: &str, per_second: [u32; 3]) {
    let gateways = three(url).await;
    let limited = json!({ "tokens_per_minute": 6000 });
    let key = gateways[0].key_with("acme", "1000", limited).await;
    let (good, elapsed) = load(&gateways, &key, per_second, Duration::from_secs(20)).await;
    let used: u64 = good
        .iter()
        .map(|answer| answer.json()["usage"]["total_tokens"].as_u64().unwrap())
        .sum();
    // A burst of one minute's tokens is admitted, and then 100 tokens per second.
    let ideal = 6000.0 + 100.0 * elapsed.as_secs_f64();
    is_near(what, used as f64, ideal);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_per_minute_are_limited_across_three_gateways_under_even_load() {
    let redis = RedisServer::start().await;
    tokens_hold(&redis.url(), "tokens, even", [18, 18, 18]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_per_minute_are_limited_across_gateways_on_a_cluster_under_uneven_load() {
    let cluster = RedisCluster::start(3, 0).await;
    tokens_hold(&cluster.url(), "tokens, uneven, cluster", [45, 8, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limits_of_a_busy_key_need_far_fewer_redis_commands_than_calls() {
    let redis = RedisServer::start().await;
    let gateways = three(&redis.url()).await;
    let limited = json!({ "requests_per_minute": 60_000, "tokens_per_minute": 10_000_000 });
    let key = gateways[0].key_with("acme", "1000", limited).await;
    let before = commands(&gateways).await;
    let mut calls = JoinSet::new();
    for worker in 0..24 {
        let (gateway, key) = (Arc::clone(&gateways[worker % 3]), key.clone());
        calls.spawn(async move {
            for _ in 0..60 {
                gateway.chat(&key, &chat_body("x")).await.expect(200);
            }
        });
    }
    let began = Instant::now();
    calls.join_all().await;
    let elapsed = began.elapsed().as_secs_f64();
    let per_call = (commands(&gateways).await - before) / (24.0 * 60.0);
    println!(
        "{per_call:.3} commands a call at {:.0} calls a second and gateway",
        480.0 / elapsed
    );
    assert!(per_call < 0.5, "{per_call}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_refused_without_waiting_for_rate_limits_while_redis_is_down() {
    let redis = RedisServer::start().await;
    let gateway = Setup::default().ledger(&redis.url()).start().await;
    let limited = json!({ "requests_per_minute": 600, "tokens_per_minute": 1000 });
    let key = gateway.key_with("acme", "1000", limited).await;
    assert_eq!(gateway.chat(&key, &chat_body("x")).await.status, 200);
    redis.kill();
    for _ in 0..5 {
        let began = Instant::now();
        gateway.chat(&key, &chat_body("x")).await.expect(503);
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "one wait, not two"
        );
    }
}

#[tokio::test]
async fn permits_of_a_lost_gateway_become_free_and_each_batch_of_spent_tokens_is_counted_once() {
    let redis = RedisServer::start().await;
    let url = redis.url();
    let conn = RedisConn::connect(&url, RedisSettings::default());
    let store = RedisRates::new(conn.await.unwrap());
    // At a refill of one permit per minute, no permit is added during the test.
    let quota = Quota::per_minute(1).with_burst(20);
    let take = async |node: u64, take: Take, ttl_ms: u64| {
        let ttl = Duration::from_millis(ttl_ms);
        store
            .take(node, "limit:key", quota, take, ttl)
            .await
            .unwrap()
    };
    let spare = |spare| Take {
        spare,
        ..Take::default()
    };
    let calls = |calls| Take {
        calls,
        ..Take::default()
    };
    let back = |back| Take {
        back,
        ..Take::default()
    };
    let (gone, here, other) = (1, 2, 3);
    assert_eq!(take(gone, spare(12), 300).await, Ok(12));
    assert_eq!(take(here, calls(12), 300).await, Ok(8), "what there is");
    let wait = take(here, calls(1), 300).await.unwrap_err();
    assert!((59..=60).contains(&wait.as_secs()), "{wait:?}");
    let came_back = eventually("they come back", async || {
        take(here, calls(20), 300).await.ok()
    });
    assert_eq!(came_back.await, 12);
    // A gateway returns five permits. Another gateway can take each of them immediately, and only once.
    assert_eq!(take(here, back(5), 300).await, Ok(0));
    assert_eq!(take(other, calls(20), 300).await, Ok(5));
    assert!(take(other, calls(1), 300).await.is_err());

    let spend = async |node: u64, number: u64, units: u64| {
        let batch = Batch { number, units };
        (store.spend(node, "used:key", quota, batch).await.unwrap() + 500) / 1000
    };
    assert_eq!(spend(here, 1, 0).await, 0);
    assert_eq!(spend(here, 2, 500).await, 500);
    assert_eq!(spend(here, 2, 500).await, 500, "the same batch");
    assert_eq!(spend(other, 2, 500).await, 1000, "another gateway's");
    assert_eq!(spend(here, 3, 500).await, 1500);
    assert_eq!(spend(other, 3, 0).await, 1500, "it only asks");
}

/// The clock of Redis can go back, for example after a failover to a server whose clock is slow.
#[tokio::test]
async fn token_limit_refills_after_the_redis_clock_was_set_back() {
    let redis = RedisServer::start().await;
    let url = redis.url();
    let conn = RedisConn::connect(&url, RedisSettings::default());
    let store = RedisRates::new(conn.await.unwrap());
    let quota = Quota::per_second(100);
    let spend = async |number: u64, units: u64| {
        let batch = Batch { number, units };
        store.spend(1, "tokens:key", quota, batch).await.unwrap()
    };
    assert_eq!(spend(1, 50).await, 50_000);
    // This changes the stored state as if tokens had been taken at a time twenty minutes in the future.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let then = (now + Duration::from_secs(1200)).as_micros().to_string();
    let set: i64 = redis
        .ask(&["HSET", "tg:rl:tokens:key", "at", &then])
        .await
        .unwrap();
    assert_eq!(set, 0, "it was there");
    assert_eq!(spend(2, 0).await, 50_000, "nothing is filled yet");
    eventually("it is filled", async || {
        (spend(3, 0).await == 0).then_some(())
    })
    .await;
}

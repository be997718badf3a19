//! Tests of docs/decisions.md, "Limits" and specification section 8: request rates per address and per key, and maximum
//! sizes of a request.

use std::cell::Cell;

use tokio::time::Instant;

use crate::prelude::*;

const CATALOG: &str = "/v1/tollgate/models";

/// Sends requests until one is refused. Returns the number of admitted requests, and the refusal. Checks that the
/// gateway has admitted the burst, and as many further requests as the rate allows in the elapsed time.
async fn until_refused(per_second: u32, mut ask: impl AsyncFnMut() -> Answer) -> (u32, Answer) {
    let began = Instant::now();
    for let_in in 0..10_000 {
        let answer = ask().await;
        if answer.status == 429 {
            let earned = (began.elapsed().as_secs_f64() * f64::from(per_second)).ceil() as u32;
            assert!(let_in >= per_second, "{let_in} of a burst of {per_second}");
            assert!(let_in <= per_second + earned, "{let_in} in {earned} steps");
            return (let_in, answer);
        }
    }
    panic!("ten thousand requests were let in");
}

#[tokio::test]
async fn eleventh_catalog_request_within_a_second_from_one_address_is_refused_with_429() {
    let world = World::start().await;
    let (_, answer) = until_refused(10, async || world.get(CATALOG, &[]).await).await;
    refused(CATALOG, &answer, 429, LIMIT, "rate_limit_exceeded");
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test]
async fn catalog_rate_limit_is_configurable() {
    let world = limits("catalog_requests_per_second = 2").start().await;
    let (_, answer) = until_refused(2, async || world.get(CATALOG, &[]).await).await;
    refused(CATALOG, &answer, 429, LIMIT, "rate_limit_exceeded");
}

#[tokio::test]
async fn catalog_rate_limit_does_not_affect_other_paths() {
    let (world, key) = World::start_with_key().await;
    until_refused(10, async || world.get(CATALOG, &[]).await).await;
    for op in BOTH {
        assert_eq!(op.call(&world, &key, &op.body("x")).await.status, 200);
    }
}

#[tokio::test]
async fn catalog_rate_limit_holds_across_all_nodes_that_share_a_redis() {
    let redis = RedisServer::start().await;
    let one = Setup::default().ledger(&redis.url()).start().await;
    let two = Setup::default().ledger(&redis.url()).start().await;
    let turn = Cell::new(false);
    until_refused(10, async || {
        turn.set(!turn.get());
        let node = if turn.get() { &one } else { &two };
        node.get(CATALOG, &[]).await
    })
    .await;
}

#[tokio::test]
async fn calls_have_no_rate_limit_by_default() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for _ in 0..30 {
            assert_eq!(op.call(&world, &key, &op.body("x")).await.status, 200);
        }
    }
}

#[tokio::test]
async fn calls_can_be_limited_by_address_over_all_keys() {
    let world = limits("requests_per_second = 3").start().await;
    let keys = [
        world.key().await,
        world.another_key("acme", json!({})).await,
    ];
    let turn = Cell::new(0);
    let (_, answer) = until_refused(3, async || {
        turn.set(turn.get() + 1);
        let op = BOTH[turn.get() % 2];
        op.call(&world, &keys[turn.get() / 2 % 2], &op.body("x"))
            .await
    })
    .await;
    refused("address", &answer, 429, LIMIT, "rate_limit_exceeded");
}

#[tokio::test]
async fn limits_of_a_key_do_not_affect_other_keys_of_its_account() {
    let world = World::start().await;
    let other = world.key().await;
    for op in BOTH {
        let limited = json!({ "requests_per_second": 1 });
        let key = world.another_key("acme", limited).await;
        let (_, answer) =
            until_refused(1, async || op.call(&world, &key, &op.body("x")).await).await;
        refused("key", &answer, 429, LIMIT, "rate_limit_exceeded");
        assert_eq!(answer.headers["retry-after"], "1");
        assert_eq!(op.call(&world, &other, &op.body("x")).await.status, 200);
    }
}

#[tokio::test]
async fn per_minute_limit_of_a_key_is_enforced_and_named_in_the_refusal() {
    let world = World::start().await;
    let other = world.key().await;
    // At this rate, a burst of one request is admitted, and then one request every ten seconds.
    let limited = json!({ "requests_per_minute": 6 });
    for op in BOTH {
        let key = world.another_key("acme", limited.clone()).await;
        assert_eq!(op.call(&world, &key, &op.body("x")).await.status, 200);
        let answer = op.call(&world, &key, &op.body("x")).await;
        let text = refused("key", &answer, 429, LIMIT, "rate_limit_exceeded");
        let wait: u64 = answer.headers["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((1..=10).contains(&wait), "{wait}");
        assert!(text.contains("запросов в минуту"), "{text}");
        assert!(text.contains(&format!("через {wait} с")), "{text}");
        assert_eq!(op.call(&world, &other, &op.body("x")).await.status, 200);
    }
}

#[tokio::test]
async fn key_that_has_used_its_tokens_per_minute_waits_until_they_refill() {
    let world = World::start().await;
    let other = world.key().await;
    for op in BOTH {
        let limited = json!({ "tokens_per_minute": 1 });
        let key = world.another_key("acme", limited).await;
        let began = Instant::now();
        // The limit counts the tokens of a call when the call is settled. Until then, further calls are admitted.
        let mut used = 0_u64;
        let answer = eventually("it waits for what it has used", async || {
            let answer = op.call(&world, &key, &op.body("x")).await;
            if answer.status == 429 {
                // The text of the refusal states the complete wait. The `retry-after` header is at most a minute,
                // because clients do not wait longer.
                let text = answer.refusal();
                let wait = text.split("через ").nth(1).unwrap();
                let wait: u64 = wait.trim_end_matches(" с.").parse().unwrap();
                assert_eq!(answer.headers["retry-after"], wait.min(60).to_string());
                let debt = 60 * used.saturating_sub(1);
                let honest = wait <= debt && wait + began.elapsed().as_secs() + 1 >= debt;
                return honest.then_some(answer);
            }
            let receipt = world.receipt(&answer.number()).await;
            let classes = receipt["usage"].as_object().unwrap().values();
            used += classes.map(|tokens| tokens.as_u64().unwrap()).sum::<u64>();
            None
        })
        .await;
        let text = refused("key", &answer, 429, LIMIT, "rate_limit_exceeded");
        assert!(text.contains("токенов в минуту"), "{text}");
        // The refused key may still read its own data, and other keys may make calls.
        assert_eq!(world.get_by(&key, "/v1/tollgate/key").await.status, 200);
        assert_eq!(op.call(&world, &other, &op.body("x")).await.status, 200);
    }
}

#[tokio::test]
async fn forwarded_address_is_taken_only_from_a_trusted_proxy() {
    let line = "\n[limits]\ncatalog_requests_per_second = 1\n[tariff]";
    let start = |setup: Setup| setup.edit("[tariff]", line).start();
    let trusting = start(top("trusted_proxies = [\"127.0.0.0/8\"]")).await;
    let distrusting = start(Setup::default()).await;
    let ask = async |world: &World, forwarded: &str| {
        let headers = [("x-forwarded-for", forwarded)];
        world.get(CATALOG, &headers).await.status.as_u16()
    };
    // Each address has a separate burst. The gateway uses the rightmost address that is not trusted, and ignores the
    // entries to the left of it.
    for forwarded in [
        "203.0.113.1",
        "203.0.113.1, 203.0.113.2",
        "203.0.113.3, 127.0.0.2",
        "2001:db8:0:1::1",
        "2001:db8:0:2::1",
    ] {
        assert_eq!(ask(&trusting, forwarded).await, 200, "{forwarded}");
    }
    until_refused(1, async || {
        let headers = [("x-forwarded-for", "203.0.113.9, 203.0.113.4")];
        trusting.get(CATALOG, &headers).await
    })
    .await;

    // The peer is not a trusted proxy. So the gateway ignores the header, and the limit of the peer's address counts
    // all requests.
    let turn = Cell::new(0);
    until_refused(1, async || {
        turn.set(turn.get() + 1);
        let forwarded = format!("203.0.113.{}", turn.get() % 250);
        let headers = [("x-forwarded-for", forwarded.as_str())];
        distrusting.get(CATALOG, &headers).await
    })
    .await;
}

#[tokio::test]
async fn ipv6_addresses_in_one_network_of_prefix_length_64_count_as_one_client() {
    let world = limits("catalog_requests_per_second = 1")
        .edit(
            "base_url =",
            "trusted_proxies = [\"127.0.0.1\"]\nbase_url =",
        )
        .start()
        .await;
    let turn = Cell::new(0);
    until_refused(1, async || {
        turn.set(turn.get() + 1);
        let forwarded = format!("2001:db8:0:1::{:x}", turn.get());
        let headers = [("x-forwarded-for", forwarded.as_str())];
        world.get(CATALOG, &headers).await
    })
    .await;
}

#[tokio::test]
async fn conversation_of_more_than_10_000_messages_is_refused() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let turn = json!({ "role": "user", "content": "x" });
        for (count, status) in [(10_000, 200), (10_001, 400)] {
            let mut body = op.body("x");
            body["messages"] = vec![turn.clone(); count].into();
            let answer = op.call(&world, &key, &body).await;
            assert_eq!(answer.status, status, "{op:?}: {count}");
            if status == 400 {
                let text = refused("10 001", &answer, 400, INVALID, "");
                assert!(text.contains("«messages»"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn json_nested_more_than_64_levels_is_refused() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    for op in BOTH {
        // The object of the body itself is the first level of nesting.
        for (levels, status) in [(63, 200), (64, 400), (5_000, 400)] {
            let deep = "[".repeat(levels) + &"]".repeat(levels);
            let body = op
                .body("x")
                .to_string()
                .replacen('{', &format!("{{\"x\":{deep},"), 1);
            let headers = [("authorization", bearer.as_str())];
            let answer = op.post(&world, &headers, body).await;
            assert_eq!(answer.status, status, "{op:?}: {levels}");
            if status == 400 {
                refused("deep", &answer, 400, INVALID, "");
            }
        }
    }
}

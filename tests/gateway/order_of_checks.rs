//! Tests of docs/decisions.md, "Order of checks": if a request has two faults, the gateway reports the fault that it
//! checks first. Each test takes two neighbouring checks.
//!
//! The order of checks is: path, method → overload → address limit → key → declared size → body → model exists → model
//! allowed → hold → vendor.

use crate::prelude::*;

/// Sends requests until one is refused with 429. Returns this refusal.
async fn over_the_limit(mut ask: impl AsyncFnMut() -> Answer) -> Answer {
    for _ in 0..100 {
        let answer = ask().await;
        if answer.status == 429 {
            return answer;
        }
    }
    panic!("a hundred requests in a row, and one a second is allowed");
}

#[tokio::test]
async fn wrong_path_or_method_is_refused_before_overload_is_checked() {
    let (world, key) = limits("in_flight_max = 1").start_with_key().await;
    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("x")).await;
    let answer = world.get("/v1/nowhere", &[]).await;
    refused("path", &answer, 404, NOT_FOUND, "path_not_found");
    let answer = world.get(Op::Chat.path(), &[]).await;
    refused("method", &answer, 405, INVALID, "method_not_allowed");
    running.finish().await;
}

#[tokio::test]
async fn wrong_path_or_method_is_refused_before_the_body_is_read() {
    let world = World::start().await;
    let promised = head(Op::Chat, None, "content-length: 1000\r\n");
    let answer = raw(&world, &promised.replace("/completions", "/nowhere")).await;
    refused("path", &answer, 404, NOT_FOUND, "path_not_found");
    let answer = raw(&world, &promised.replace("POST", "PUT")).await;
    refused("method", &answer, 405, INVALID, "method_not_allowed");
    assert_eq!(answer.headers["allow"], "POST");
}

#[tokio::test]
async fn overload_is_checked_before_the_address_limit() {
    let (world, key) = limits("in_flight_max = 1\nrequests_per_second = 1")
        .start_with_key()
        .await;
    // The gateway admits only one call, which is in flight. This call has also used the only request per second that
    // the address may make.
    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("x")).await;
    for op in BOTH {
        let answer = op.call(&world, &key, &op.body("x")).await;
        refused(op.path(), &answer, 503, OVERLOADED, "overloaded");
    }
    running.finish().await;
}

#[tokio::test]
async fn address_limit_is_checked_before_the_key() {
    let world = limits("requests_per_second = 1").start().await;
    for op in BOTH {
        let answer = over_the_limit(async || {
            let answer = op.post(&world, &[], op.body("x").to_string()).await;
            assert!(answer.status == 401 || answer.status == 429, "{answer:?}");
            answer
        })
        .await;
        refused(op.path(), &answer, 429, LIMIT, "rate_limit_exceeded");
    }
}

#[tokio::test]
async fn wrong_paths_and_methods_count_towards_the_address_limit() {
    for path in ["/v1/nowhere", Op::Chat.path()] {
        let world = limits("requests_per_second = 1").start().await;
        let answer = over_the_limit(async || {
            let answer = world.get(path, &[]).await;
            assert!(
                matches!(answer.status.as_u16(), 404 | 405 | 429),
                "{answer:?}"
            );
            answer
        })
        .await;
        refused(path, &answer, 429, LIMIT, "rate_limit_exceeded");
    }
}

#[tokio::test]
async fn invalid_key_is_reported_before_a_declared_size_above_the_maximum() {
    let (world, key) = limits("body_bytes_max = 1000").start_with_key().await;
    for op in BOTH {
        let declared = "content-length: 1001\r\n";
        let answer = raw(&world, &head(op, None, declared)).await;
        refused(op.path(), &answer, 401, AUTHENTICATION, "invalid_api_key");
        let answer = raw(&world, &head(op, Some(&key.secret), declared)).await;
        refused(op.path(), &answer, 413, INVALID, "request_too_large");
    }
}

#[tokio::test]
async fn declared_size_above_the_maximum_is_refused_before_the_body_is_read() {
    let (world, key) = limits("body_bytes_max = 1000").start_with_key().await;
    for op in BOTH {
        // The request has further faults: its body is not JSON, its content type is wrong, and the format version is
        // missing.
        let head = head(op, Some(&key.secret), "content-length: 1001\r\n")
            .replace("application/json", "text/plain")
            .replace("anthropic-version", "x-version");
        let answer = raw(&world, &format!("{head}{}", "{".repeat(1001))).await;
        refused(op.path(), &answer, 413, INVALID, "request_too_large");
    }
}

#[tokio::test]
async fn invalid_body_is_reported_before_an_unknown_model() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let body = with(op.body("x"), json!({ "model": "nothing", "max_tokens": 0 }));
        let answer = op.call(&world, &key, &body).await;
        let text = refused(op.path(), &answer, 400, INVALID, "");
        assert!(text.contains("max_tokens"), "{text}");
    }
}

#[tokio::test]
async fn invalid_body_is_refused_before_the_balance_is_checked() {
    let world = World::start().await;
    let key = world.key_with("empty", "0", json!({})).await;
    for op in BOTH {
        let body = with(op.body("x"), json!({ "stream": 1 }));
        let answer = op.call(&world, &key, &body).await;
        refused(op.path(), &answer, 400, INVALID, "");
    }
}

#[tokio::test]
async fn exhausted_key_is_reported_before_an_unknown_model() {
    let world = World::start().await;
    let empty = world.key_with("empty", "0", json!({})).await;
    let spent = world
        .key_with("spent", "10", json!({ "ceiling_rub": "0" }))
        .await;
    for op in BOTH {
        let body = with(op.body("x"), json!({ "model": "nothing" }));
        for (key, code) in [(&empty, "account_empty"), (&spent, "ceiling_used_up")] {
            let answer = op.call(&world, key, &body).await;
            refused(op.path(), &answer, 401, AUTHENTICATION, code);
        }
    }
}

#[tokio::test]
async fn unknown_model_is_reported_as_unknown_even_if_the_key_does_not_allow_it() {
    let world = World::start().await;
    let key = world.key_with("acme", "10", json!({})).await;
    world.only_for(&key, &["other"]).await;
    for op in BOTH {
        let body = with(op.body("x"), json!({ "model": "nothing" }));
        let answer = op.call(&world, &key, &body).await;
        refused(op.path(), &answer, 503, NOT_FOUND, "model_not_found");
    }
}

#[tokio::test]
async fn key_errors_are_reported_before_a_missing_price() {
    let source = "[[rate.source]]\nurl = \"http://127.0.0.1:1/rate\"\nselect = \"/price\"\n";
    let world = Setup::default()
        .edit("[[rate.source]]\nfixed = \"100\"\n", source)
        .start()
        .await;
    let empty = world.key_with("empty", "0", json!({})).await;
    let spent = world
        .key_with("spent", "10", json!({ "ceiling_rub": "0" }))
        .await;
    let others = world.key_with("others", "0", json!({})).await;
    world.only_for(&others, &["other"]).await;
    let good = world.key_with("good", "10", json!({})).await;
    for op in BOTH {
        for (key, status, kind, code) in [
            (&others, 403, PERMISSION, "model_not_allowed"),
            (&empty, 401, AUTHENTICATION, "account_empty"),
            (&spent, 401, AUTHENTICATION, "ceiling_used_up"),
            (&good, 503, API, "price_unavailable"),
        ] {
            let answer = op.call(&world, key, &op.body("x")).await;
            refused(&key.account, &answer, status, kind, code);
        }
    }
}

#[tokio::test]
async fn disallowed_model_is_refused_before_money_is_held() {
    let world = World::start().await;
    let poor = world.key_with("poor", "0.000001", json!({})).await;
    let empty = world.key_with("empty", "0", json!({})).await;
    for key in [&poor, &empty] {
        world.only_for(key, &["other"]).await;
    }
    for op in BOTH {
        for key in [&poor, &empty] {
            let answer = op.call(&world, key, &op.body("x")).await;
            refused(&key.account, &answer, 403, PERMISSION, "model_not_allowed");
        }
    }
}

#[tokio::test]
async fn hold_is_refused_before_any_vendor_is_called() {
    let world = World::start().await;
    world.vendor_sends(refusal(500, "down"));
    let poor = world.key_with("poor", "0.000001", json!({})).await;
    let empty = world.key_with("empty", "0", json!({})).await;
    for op in BOTH {
        let answer = op.call(&world, &poor, &op.body("x")).await;
        refused(op.path(), &answer, 403, PERMISSION, "insufficient_balance");
        let answer = op.call(&world, &empty, &op.body("x")).await;
        refused(op.path(), &answer, 401, AUTHENTICATION, "account_empty");
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn unknown_path_is_404_without_a_key() {
    let world = World::start().await;
    for (method, path) in [
        (Method::POST, "/v1/completions"),
        (Method::POST, "/v1/messages/"),
        (Method::POST, "//v1/messages"),
        (Method::POST, "/V1/messages"),
        (Method::GET, "/admin/v1/accounts"),
    ] {
        let answer = world
            .ask(request(method, &world.url(path), &[], "".into()))
            .await;
        refused(path, &answer, 404, NOT_FOUND, "path_not_found");
    }
}

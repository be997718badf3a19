//! Tests of further rate classes (docs/prices.md, classes): reasoning separate from output, a price per call, and
//! cached audio and images.

use crate::{
    prelude::*,
    price_rules::{ask, receipt, says, usage},
};

/// Starts a gateway whose models have prices for these additional rate classes.
async fn world(classes: &str) -> World {
    let edits = ["0.5", "5"].map(|write| {
        let before = format!("cache_write = \"{write}\" }}");
        let after = format!("cache_write = \"{write}\", {classes} }}");
        (before, after)
    });
    edits
        .iter()
        .fold(Setup::default(), |setup, (from, to)| setup.edit(from, to))
        .start()
        .await
}

#[tokio::test]
async fn reasoning_tokens_and_the_call_itself_have_their_own_prices() {
    let world = world("output_reasoning = \"30\", request_call = \"0.01\"").await;
    let key = world.key().await;
    for op in BOTH {
        let more = match op {
            Op::Chat => json!({ "completion_tokens_details": { "reasoning_tokens": 8 } }),
            Op::Messages => json!({}),
        };
        says(&world, op, usage(op, 1000, more), json!({}));
        let answer = ask(&world, &key, op, 1000, json!({})).await;
        let receipt = receipt(&world, &answer).await;
        // Each call costs 1 ₽ in addition to its tokens. Messages vendors do not report reasoning separately.
        let (classes, charged) = match op {
            Op::Chat => (
                json!({ "output_reasoning": 8, "request_call": 1 }),
                1_000 * 100 + 2 * 200 + 8 * 3_000 + 1_000_000,
            ),
            Op::Messages => (
                json!({ "request_call": 1 }),
                1_000 * 1_000 + 10 * 2_000 + 1_000_000,
            ),
        };
        assert_eq!(receipt["usage"]["classes"], classes, "{receipt}");
        assert_eq!(micro(&receipt["charged_rub"]), charged, "{receipt}");
        assert_eq!(receipt.get("unpriced"), None);
    }
}

#[tokio::test]
async fn cached_images_are_charged_at_their_own_price_or_else_as_cached_input() {
    let details = json!({ "prompt_tokens_details": { "cached_tokens": 300, "image_tokens": 200,
        "cached_tokens_details": { "image_tokens": 100 } } });
    for (classes, expected, cached) in [
        (
            "input_image = \"7\", cached_input_image = \"3\"",
            json!({ "cached_input_image": 100, "input_image": 100 }),
            200,
        ),
        ("input_image = \"7\"", json!({ "input_image": 100 }), 300),
        ("request_call = \"0.01\"", json!({ "request_call": 1 }), 300),
    ] {
        let world = world(classes).await;
        let key = world.key().await;
        says(
            &world,
            Op::Chat,
            usage(Op::Chat, 1000, details.clone()),
            json!({}),
        );
        let answer = ask(&world, &key, Op::Chat, 1000, json!({})).await;
        let receipt = receipt(&world, &answer).await;
        assert_eq!(receipt["usage"]["classes"], expected, "{receipt}");
        assert_eq!(receipt["usage"]["cached_input"], cached, "{receipt}");
    }
}

/// A redeemed credit changes the amount that the vendor bills, and the request does not show by how much.
#[tokio::test]
async fn field_that_redeems_a_vendors_credit_is_refused_and_named() {
    let (world, key) = Setup::default().start_with_key().await;
    for (token, status) in [(json!("credit"), 400), (Value::Null, 200)] {
        says(
            &world,
            Op::Messages,
            usage(Op::Messages, 10, json!({})),
            json!({}),
        );
        let more = json!({ "fallback_credit_token": token });
        let answer = ask(&world, &key, Op::Messages, 10, more).await;
        assert_eq!(answer.status, status, "{answer:?}");
        if status == 400 {
            has(&answer.text(), "fallback_credit_token");
        }
    }
}

//! Tests of docs/prices.md for the Responses format: service tiers, long input and cache lifetimes, reported in a plain
//! response or in the last event of a stream.

use super::{answer, ask, beginning, body, delta, last, says, usage};
use crate::{
    prelude::*,
    price_rules::{computed, receipt, with_rules},
};

/// Returns a setup with a Responses vendor, whose model has price rules, and prices for more than the four usual rate
/// classes.
pub fn priced() -> Setup {
    with_rules().edit("format = \"chat\"", "format = \"responses\"")
}

/// Returns the same response as a plain reply and as a stream. The fields in `beside` are outside the usage.
pub fn both(used: &Value, beside: &Value) -> [(Reply, bool); 2] {
    let reported = with(answer("да", used), beside.clone());
    let mut events = beginning();
    events.push(delta(2, "да"));
    events.push(last(3, reported.clone()));
    [
        (Reply::json(200, &reported), false),
        (Reply::stream(events), true),
    ]
}

#[tokio::test]
async fn service_tier_without_a_price_is_refused_and_the_served_tier_is_charged() {
    let (world, key) = priced().start_with_key().await;
    let tier = |word: &str| json!({ "service_tier": word });
    for (served, condition) in [("priority", tier("priority")), ("default", Value::Null)] {
        for (reply, stream) in both(&usage([7, 0, 0, 10]), &tier(served)) {
            says(&world, reply);
            let requested = body(with(tier("priority"), json!({ "stream": stream })));
            let answered = ask(&world, &key, &requested).await;
            let receipt = receipt(&world, &answered).await;
            assert_eq!(receipt["price"]["condition"], condition, "{receipt}");
            assert_eq!(receipt.get("unpriced"), None, "{receipt}");
        }
    }
    let answered = ask(&world, &key, &body(tier("flex"))).await;
    let text = refused("flex", &answered, 400, INVALID, "");
    assert!(text.contains("«service_tier»"), "{text}");
    // The vendor reports a more expensive tier than the caller requested. There is no price for it, so the most
    // expensive price rule applies.
    for (reply, stream) in both(&usage([7, 0, 0, 10]), &tier("ultrafast")) {
        says(&world, reply);
        let answered = ask(&world, &key, &body(json!({ "stream": stream }))).await;
        let receipt = world.receipt(&answered.number()).await;
        assert_eq!(receipt["unpriced"], true, "{receipt}");
        assert_eq!(receipt["price"]["input"], "600.00", "{receipt}");
        assert_eq!(micro(&receipt["cost_rub"]), computed(&receipt), "{receipt}");
    }
}

#[tokio::test]
async fn call_with_long_input_is_held_and_charged_at_the_long_input_price_in_every_class() {
    let (world, key) = priced().start_with_key().await;
    let requested = |stream| body(json!({ "input": "x ".repeat(1000), "stream": stream }));
    for (input, condition) in [
        (1000, Value::Null),
        (1001, json!({ "above_input_tokens": 1000 })),
    ] {
        for (reply, stream) in both(&usage([input, 200, 100, 10]), &json!({})) {
            says(&world, reply);
            let answered = ask(&world, &key, &requested(stream)).await;
            let receipt = receipt(&world, &answered).await;
            assert_eq!(receipt["price"]["condition"], condition, "{receipt}");
            assert_eq!(receipt["usage"]["cached_input"], 200, "{receipt}");
        }
    }
}

#[tokio::test]
async fn cache_writes_of_a_responses_vendor_are_charged_by_their_lifetime() {
    let (world, key) = priced()
        .edit("cache_write_1h", "cache_write_12h")
        .start_with_key()
        .await;
    let lives = |ttl: &str| json!({ "prompt_cache_options": { "ttl": ttl } });
    let split = json!({ "ttl_30m_tokens": 10, "ttl_12h_tokens": 20 });
    // The columns are: the requested lifetime, the counts by lifetime that the vendor reports, the charged usual cache
    // writes, and the charged cache writes of 12 hours.
    for (ttl, returned, usual, long) in [
        ("12h", split.clone(), 10, 20),
        // The vendor reports no lifetimes, so all cache writes have the requested one.
        ("12h", Value::Null, 0, 30),
        ("30m", Value::Null, 30, 0),
    ] {
        let mut used = usage([100, 0, 30, 10]);
        used["input_tokens_details"]["cache_write_tokens_details"] = returned;
        for (reply, stream) in both(&used, &json!({})) {
            says(&world, reply);
            let requested = body(with(lives(ttl), json!({ "stream": stream })));
            let answered = ask(&world, &key, &requested).await;
            let receipt = receipt(&world, &answered).await;
            let found = &receipt["usage"];
            assert_eq!(found["input"], 70, "{receipt}");
            assert_eq!(found["cache_write"], usual, "{receipt}");
            let of_class = found["classes"]["cache_write_12h"].as_u64();
            assert_eq!(of_class.unwrap_or(0), long, "{receipt}");
            assert_eq!(receipt.get("unpriced"), None, "{receipt}");
        }
    }
    let usual = super::world().await;
    let key = usual.key().await;
    let answered = ask(&usual, &key, &body(lives("12h"))).await;
    let text = refused("12h", &answered, 400, INVALID, "");
    assert!(text.contains("«prompt_cache_options.ttl»"), "{text}");
}

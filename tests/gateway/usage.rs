//! Tests of vendors' usage reports (docs/decisions.md, "Money"): the gateway does not trust them, and charges usage
//! beyond a hold as far as the account has money.

use crate::prelude::*;

const TEXT: &str = "Это ответ, за который поставщик ничего разумного не насчитал.";

/// Returns the names of the input and output counts in the usage of this format.
const fn counts(op: Op) -> (&'static str, &'static str) {
    match op {
        Op::Chat => ("prompt_tokens", "completion_tokens"),
        Op::Messages => ("input_tokens", "output_tokens"),
    }
}

/// Returns usage reports that no honest vendor sends.
fn nonsense(op: Op) -> Vec<Value> {
    let (input, output) = counts(op);
    let mut all = vec![Value::Null, json!({}), json!("x"), json!([])];
    for (bad_input, bad_output) in [
        (json!(-1), json!(5)),
        (json!(9), json!(-5)),
        (json!(-9), json!(-5)),
        (Value::Null, Value::Null),
        (json!(0), json!(0)),
        (json!(0), json!(5)),
        (json!(9), json!(0)),
        (json!("9"), json!("5")),
        (json!(9.5), json!(5)),
        (json!(u64::MAX), json!(5)),
        (json!(9), json!(u64::MAX)),
        (json!(1e30), json!(1e30)),
        (json!(1_000_000), json!(1_000_000)),
    ] {
        all.push(json!({ input: bad_input, output: bad_output }));
    }
    all.push(json!({ input: 9 }));
    all.push(json!({ output: 5 }));
    all
}

/// Returns the token counts that were charged, from a receipt.
fn charged(receipt: &Value) -> Tokens {
    let count = |class: &str| receipt["usage"][class].as_u64().expect("a count");
    Tokens {
        input: count("input"),
        cached_input: count("cached_input"),
        cache_write: count("cache_write"),
        output: count("output"),
    }
}

#[tokio::test]
async fn implausible_usage_is_flagged_and_reduced_or_replaced_by_an_estimate() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for nonsense in nonsense(op) {
            let reported = answer(op, TEXT, &nonsense);
            let mut expected = reported.clone();
            world.vendor_sends(Reply::json(200, &reported));
            let answer = op.call(&world, &key, &op.body("вопрос")).await;
            let receipt = world.receipt(&answer.number()).await;
            let what = format!("{op:?}: {nonsense}: {receipt}");
            expected["usage"] = charged(&receipt).usage(op);
            assert_eq!(answer.json(), expected, "{what}");
            let length = answer.headers["content-length"].to_str().unwrap();
            assert_eq!(length, answer.body.len().to_string(), "{what}");
            assert_eq!(receipt["estimated"], true, "{what}");
            let huge = |field: &str| nonsense[field].as_u64().is_some_and(|it| it > 100_000);
            let (input, output) = counts(op);
            // Counts beyond what the hold allows are cut, and the receipt is marked as `bounded`.
            assert_eq!(receipt["bounded"], huge(input) || huge(output), "{what}");
            let (held, charged) = (micro(&receipt["held_rub"]), micro(&receipt["charged_rub"]));
            assert!(charged > 0, "{what}");
            // The hold counts one token for each 1.5 bytes of text. A vendor counts at most one token per byte, which
            // is 3/2 of the hold.
            assert!(2 * charged <= 3 * held, "{what}");
            assert_eq!(receipt["loss_rub"], "0.00", "{what}");
        }
    }
}

#[tokio::test]
async fn answer_reports_the_charged_usage() {
    let (world, key) = World::start_with_key().await;
    for (op, vendor) in [
        (Op::Chat, Op::Chat),
        (Op::Chat, Op::Messages),
        (Op::Messages, Op::Messages),
        (Op::Messages, Op::Chat),
    ] {
        let good = usage(vendor, 9, 5);
        for (reported, estimated) in nonsense(vendor)
            .into_iter()
            .map(|nonsense| (nonsense, true))
            .chain([(good, false)])
        {
            let what = format!("{op:?} {vendor:?}: {reported}");
            let without = reported.is_null();
            for null in [false, true] {
                let mut reported = answer(vendor, TEXT, &reported);
                if null && without {
                    reported["usage"] = Value::Null;
                }
                world.vendor_sends(Reply::json(200, &reported));
                let body = with(op.body("x"), json!({ "model": vendor.model() }));
                let answer = op.call(&world, &key, &body).await;
                let receipt = world.receipt(&answer.number()).await;
                assert_eq!(receipt["estimated"], estimated, "{what}: {receipt}");
                let (returned, charged) = (&answer.json()["usage"], charged(&receipt));
                let (input, output) = counts(op);
                let expected = charged.usage(op);
                for name in [input, output, "total_tokens"] {
                    assert_eq!(returned[name], expected[name], "{what}: {returned}");
                }
                let cost = answer.headers["x-cost-rub"].to_str().unwrap();
                assert_eq!(receipt["charged_rub"], cost, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn cached_tokens_that_contradict_the_prompt_count_are_flagged() {
    let (world, key) = World::start_with_key().await;
    for details in [
        json!({ "cached_tokens": 11 }),
        json!({ "cached_tokens": -1 }),
        json!({ "cached_tokens": 6, "cache_write_tokens": 6 }),
    ] {
        let mut usage = usage(Op::Chat, 10, 5);
        usage["prompt_tokens_details"] = details;
        world.vendor_sends(Reply::json(200, &answer(Op::Chat, TEXT, &usage)));
        let answer = world.chat(&key, &Op::Chat.body("x")).await;
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["estimated"], true, "{usage}: {receipt}");
    }
}

#[tokio::test]
async fn usage_whose_total_contradicts_its_parts_is_flagged() {
    let (world, key) = World::start_with_key().await;
    let mut usage = usage(Op::Chat, 10, 5);
    usage["total_tokens"] = json!(500);
    world.vendor_sends(Reply::json(200, &answer(Op::Chat, TEXT, &usage)));
    let answer = world.chat(&key, &Op::Chat.body("x")).await;
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(receipt["estimated"], true, "{receipt}");
}

#[tokio::test]
async fn a_stream_without_usage_is_estimated_and_flagged() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let without: Vec<String> = events(op, &[TEXT], 9, 5)
            .into_iter()
            .filter(|event| !event.contains("prompt_tokens"))
            .map(|event| event.replace("\"usage\":", "\"unusual\":"))
            .collect();
        world.vendor_sends(Reply::stream(without.clone()));
        let body = with(op.body("x"), json!({ "stream": true }));
        let answer = op.call(&world, &key, &body).await;
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["estimated"], true, "{receipt}");
        assert_eq!(receipt["end"], "finished", "{receipt}");
        assert!(receipt["usage"]["input"].as_u64() > Some(0), "{receipt}");
        assert!(receipt["usage"]["output"].as_u64() > Some(0), "{receipt}");
    }
}

#[tokio::test]
async fn usage_repeated_in_a_stream_is_charged_once_by_its_last_value() {
    let (world, key) = World::start_with_key().await;
    let mut reported = events(Op::Chat, &["да"], 9, 2);
    let again = reported[2].replace("\"completion_tokens\":2", "\"completion_tokens\":7");
    reported.insert(3, again);
    world.vendor_sends(Reply::stream(reported.clone()));
    let body = with(Op::Chat.body("x"), json!({ "stream": true }));
    let answer = world.chat(&key, &body).await;
    let receipt = world.receipt(&answer.number()).await;
    // The charge is 9 × 100 + 7 × 200 µ₽.
    assert_eq!(receipt["charged_rub"], "0.0023", "{receipt}");
}

/// Returns a body whose 3000 bytes of text the hold counts as 2000 tokens. The vendor may count up to 3000 tokens.
fn dense() -> Value {
    Op::Chat.body(&"x".repeat(3000))
}

/// Starts a gateway whose vendor reports 3000 input tokens and 100 output tokens, which cost 320 000 µ₽. Also returns
/// the amount that such a call holds.
async fn dense_world() -> (World, i64) {
    let world = World::start().await;
    world.vendor_sends(plain_reply(Op::Chat, TEXT, 3000, 100));
    let rich = world.key().await;
    let answer = world.chat(&rich, &dense()).await;
    let receipt = world.receipt(&answer.number()).await;
    let held = micro(&receipt["held_rub"]);
    assert!(held < 320_000, "{receipt}");
    // The account has enough money, so it also pays the part of the cost that exceeds the hold.
    assert_eq!(micro(&receipt["charged_rub"]), 320_000, "{receipt}");
    assert_eq!(receipt["loss_rub"], "0.00", "{receipt}");
    assert_eq!(receipt["estimated"], false, "{receipt}");
    (world, held)
}

#[tokio::test]
async fn cost_above_the_hold_is_charged_from_free_money_and_the_rest_is_a_loss() {
    let (world, held) = dense_world().await;
    let funds = held + 10_000;
    let poor = world.key_with("poor", &rubles(funds), json!({})).await;
    let answer = world.chat(&poor, &dense()).await.expect(200);
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(micro(&receipt["cost_rub"]), 320_000, "{receipt}");
    assert_eq!(micro(&receipt["charged_rub"]), funds, "{receipt}");
    assert_eq!(micro(&receipt["loss_rub"]), 320_000 - funds, "{receipt}");

    let account = world.settled(&poor).await;
    assert_eq!(account["balance_rub"], "0.00", "never negative: {account}");
    assert_eq!(account["loss_rub"], receipt["loss_rub"], "{account}");
    let answer = world.chat(&poor, &dense()).await;
    refused("spent", &answer, 401, AUTHENTICATION, "account_empty");
}

#[tokio::test]
async fn usage_above_the_hold_is_charged_only_up_to_the_keys_ceiling() {
    let (world, held) = dense_world().await;
    let ceiling = held + 10_000;
    let key = world
        .key_with("limited", "1000", json!({ "ceiling_rub": rubles(ceiling) }))
        .await;
    let answer = world.chat(&key, &dense()).await;
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(micro(&receipt["charged_rub"]), ceiling, "{receipt}");
    assert_eq!(micro(&receipt["loss_rub"]), 320_000 - ceiling, "{receipt}");
    let answer = world.chat(&key, &dense()).await;
    refused("spent", &answer, 401, AUTHENTICATION, "ceiling_used_up");
}

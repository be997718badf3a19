//! Tests of the cost of calls (docs/decisions.md, "Money"): exact to the micro-ruble, and nothing for calls that must
//! cost nothing.

use rust_decimal::{Decimal, prelude::ToPrimitive};
use tollgate::catalog::snapshot::RateReading;

use crate::prelude::*;

const CLASSES: [(&str, &str); 4] = [
    ("input", "input_rub_mtok"),
    ("cached_input", "cached_input_rub_mtok"),
    ("cache_write", "cache_write_rub_mtok"),
    ("output", "output_rub_mtok"),
];

fn tokens([input, cached_input, cache_write, output]: [u64; 4]) -> Tokens {
    Tokens {
        input,
        cached_input,
        cache_write,
        output,
    }
}

/// Makes a call for which the vendor reports this `usage`. Returns its receipt.
async fn sold(world: &World, key: &Key, op: Op, body: &Value, usage: Value) -> Value {
    world.vendor_sends(Reply::json(200, &answer(op, "да", &usage)));
    let answer = op.call(world, key, body).await.expect(200);
    world.receipt(&answer.number()).await
}

#[tokio::test]
async fn charge_can_be_recomputed_from_the_catalog() {
    let (world, key) = Setup::default()
        .edit("fixed = \"100\"", "fixed = \"81.432109\"")
        .edit(
            "sell_rate_multiplier = \"1\"",
            "sell_rate_multiplier = \"1.153\"",
        )
        .start_with_key()
        .await;
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    let mut spent = 0;
    for (op, model) in BOTH.into_iter().zip(catalog["models"].as_array().unwrap()) {
        let body = op.body(&"x".repeat(2000));
        for used in [
            [1, 0, 0, 1],
            [0, 1, 0, 1],
            [0, 0, 1, 1],
            [1, 1, 1, 1],
            [100, 37, 5, 3],
            [7, 1200, 11, 99],
            [333, 0, 777, 100],
        ] {
            let receipt = sold(&world, &key, op, &body, tokens(used).usage(op)).await;
            let sum: Decimal = CLASSES
                .iter()
                .zip(used)
                .map(|((_, rate), count)| Decimal::from(count) * decimal(&model[rate]))
                .sum();
            // Rubles per million tokens are equal to micro-rubles per token. The sum is rounded up once.
            let cost = sum.ceil().to_i64().unwrap();
            assert_eq!(micro(&receipt["charged_rub"]), cost, "{used:?}: {receipt}");
            assert_eq!(receipt["cost_rub"], receipt["charged_rub"]);
            assert_eq!(receipt["loss_rub"], "0.00");
            assert_eq!(receipt["estimated"], false, "{used:?}: {receipt}");
            for ((class, _), count) in CLASSES.into_iter().zip(used) {
                assert_eq!(receipt["usage"][class], count, "{class}: {receipt}");
            }
            spent += cost;
        }
    }
    let account = world.settled(&key).await;
    assert_eq!(micro(&account["spent_rub"]), spent);
    assert_eq!(micro(&account["balance_rub"]), 1_000_000_000 - spent);
}

#[tokio::test]
async fn charge_is_rounded_up_once_per_request() {
    // Every rate class costs 0.4 µ₽ per token.
    let (world, key) = Setup::default()
        .edit(
            "input = \"1\", cached_input = \"0.1\", output = \"2\", cache_write = \"0.5\"",
            "input = \"0.004\", cached_input = \"0.004\", output = \"0.004\", cache_write = \"0.004\"",
        )
        .start_with_key()
        .await;
    for (used, charged) in [
        ([1, 0, 0, 1], "0.000001"),
        ([1, 1, 1, 1], "0.000002"),
        ([2, 1, 1, 1], "0.000002"),
        ([2, 2, 1, 1], "0.000003"),
    ] {
        let used = tokens(used).usage(Op::Chat);
        let receipt = sold(&world, &key, Op::Chat, &Op::Chat.body("x"), used).await;
        assert_eq!(receipt["charged_rub"], charged, "{receipt}");
    }
}

#[tokio::test]
async fn a_stream_costs_as_much_as_the_same_answer_without_streaming() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let plain = sold(&world, &key, op, &op.body("x"), usage(op, 9, 2)).await;
        world.vendor_sends(Reply::stream(events(op, &["да"], 9, 2)));
        let body = with(op.body("x"), json!({ "stream": true }));
        let answer = op.call(&world, &key, &body).await;
        let stream = world.receipt(&answer.number()).await;
        for field in [
            "charged_rub",
            "usage",
            "price",
            "estimated",
            "end",
            "held_rub",
        ] {
            assert_eq!(plain[field], stream[field], "{field}");
        }
        assert_eq!(stream["end"], "finished");
    }
}

#[tokio::test]
async fn call_is_charged_at_the_rates_in_force_when_it_was_admitted() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        world
            .gateway
            .live()
            .set_rate(RateReading::fixed(Decimal::from(100)));
        let running = Running::start(&world, op, &key, &op.body("x")).await;
        let number = running.number.clone();
        world
            .gateway
            .live()
            .set_rate(RateReading::fixed(Decimal::from(300)));
        running.finish().await;
        let before = world.receipt(&number).await;
        assert_eq!(before["price"]["exchange_rate"], "100", "{before}");
        let after = sold(&world, &key, op, &op.body("x"), usage(op, 9, 2)).await;
        assert_eq!(after["price"]["exchange_rate"], "300", "{after}");
        assert_eq!(before["usage"], after["usage"]);
        assert_eq!(
            micro(&after["charged_rub"]),
            3 * micro(&before["charged_rub"])
        );
    }
}

#[tokio::test]
async fn receipt_keeps_the_tariff_version_and_the_exchange_rate_and_the_four_rates_of_its_call() {
    let (world, key) = World::start_with_key().await;
    let receipt = sold(
        &world,
        &key,
        Op::Chat,
        &Op::Chat.body("x"),
        usage(Op::Chat, 9, 2),
    )
    .await;
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    let price = json!({
        "input": "100.00", "cached_input": "10.00", "output": "200.00", "cache_write": "50.00",
        "version": catalog["price_version"]["id"], "exchange_rate": "100",
    });
    assert_eq!(receipt["price"], price);
    assert_eq!(receipt["model"], "chat");
    assert_eq!(receipt["vendor"], "chat-vendor");
    assert_eq!(receipt["account"], "acme");
    assert_eq!(receipt["key"], key.id.as_str());
    assert_eq!(receipt["end"], "finished");
    assert!(receipt["at"].as_str().unwrap().ends_with('Z'), "{receipt}");
}

#[tokio::test]
async fn refusal_by_the_gateway_costs_nothing() {
    let (world, key) = World::start_with_key().await;
    let limited = json!({ "ceiling_rub": "1" });
    let limited = world.another_key("acme", limited).await;
    world.only_for(&limited, &["other"]).await;
    for op in BOTH {
        let large = json!({ "max_tokens": 4_000_000_000_u32, "n": 100 });
        for (what, key, fields) in [
            ("400", &key, json!({ "stream": 1 })),
            ("403", &limited, json!({})),
            ("503", &key, json!({ "model": "nothing" })),
            ("400", &key, with(large, json!({ "model": 7 }))),
        ] {
            let answer = op.call(&world, key, &with(op.body("x"), fields)).await;
            assert_eq!(answer.status.as_str(), what);
            cost_nothing(what, &world, key, &answer).await;
        }
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn vendor_error_costs_nothing_and_the_next_call_is_charged() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for stream in [false, true] {
            world.vendor_sends(refusal(500, "down"));
            let body = with(op.body("x"), json!({ "stream": stream }));
            let before = world.settled(&key).await;
            op.call(&world, &key, &body).await.expect(503);
            assert_eq!(world.settled(&key).await, before, "{op:?}");
        }
        let receipt = sold(&world, &key, op, &op.body("x"), usage(op, 1, 1)).await;
        assert!(micro(&receipt["charged_rub"]) > 0);
    }
}

#[tokio::test]
async fn an_error_event_before_any_text_costs_nothing() {
    let (world, key) = World::start_with_key().await;
    for (op, event) in [
        (
            Op::Chat,
            "data: {\"error\":{\"message\":\"overloaded\"}}\n\n",
        ),
        (
            Op::Messages,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
        ),
    ] {
        world.vendor_sends(Reply::stream([event.to_owned()]));
        let body = with(op.body("x"), json!({ "stream": true }));
        let answer = op.call(&world, &key, &body).await;
        assert!(answer.text().contains("\"error\""), "{}", answer.text());
        cost_nothing(op.path(), &world, &key, &answer).await;
    }
}

#[tokio::test]
async fn audit_finds_no_breach_after_calls_of_all_kinds() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        sold(&world, &key, op, &op.body("x"), usage(op, 9, 2)).await;
        sold(&world, &key, op, &op.body("x"), Value::Null).await;
        let running = Running::start(&world, op, &key, &op.body("x")).await;
        running.finish().await;
        world.vendor_sends(refusal(400, "no"));
        op.call(&world, &key, &op.body("x")).await;
    }
    world.settled(&key).await;
    let audit = world
        .admin(http::Method::POST, "/admin/v1/audit", None)
        .await
        .json();
    assert_eq!(audit["breaches"], json!([]), "{audit}");
    assert_eq!(audit["holds_open"], 0, "{audit}");
}

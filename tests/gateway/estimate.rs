//! Tests of the estimate endpoint (docs/decisions.md, "Extra paths"): it returns the amount that a call would hold,
//! without making a hold and without calling a vendor.

use crate::prelude::*;

async fn estimate(world: &World, op: Op, key: &Key, body: &Value) -> Answer {
    op.call_at("/v1/tollgate/estimate", world, key, body).await
}

/// Returns a chat body without an output maximum.
fn without_max_tokens() -> Value {
    json!({ "model": "chat", "messages": [{ "role": "user", "content": "x" }] })
}

#[tokio::test]
async fn estimate_equals_the_hold_of_its_call_and_is_free() {
    let (world, key) = World::start_with_key().await;
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    let rates = |op: Op| {
        let models = catalog["models"].as_array().unwrap();
        let model = models.iter().find(|model| model["id"] == op.model());
        model.unwrap().clone()
    };
    let two = with(Op::Chat.body("x"), json!({ "n": 2 }));
    for (op, body, output) in [
        (Op::Chat, Op::Chat.body(&"слово ".repeat(100)), 100),
        (Op::Messages, Op::Messages.body("x"), 100),
        (Op::Chat, without_max_tokens(), 4000),
        (Op::Chat, two, 200),
    ] {
        let account = world.settled(&key).await;
        let answer = estimate(&world, op, &key, &body).await.expect(200);
        let reported = answer.json();
        assert_eq!(
            names(&reported),
            [
                "fits",
                "free_rub",
                "hold_min_rub",
                "hold_rub",
                "input_tokens_max",
                "model",
                "output_tokens_max",
                "price",
            ]
        );
        assert_eq!(reported["model"], op.model());
        assert_eq!(reported["fits"], true);
        assert_eq!(reported["output_tokens_max"], output, "{reported}");
        assert_eq!(reported["free_rub"], account["free_rub"], "{reported}");
        let rates = rates(op);
        for (class, rate) in [
            ("input", "input_rub_mtok"),
            ("cached_input", "cached_input_rub_mtok"),
            ("output", "output_rub_mtok"),
            ("cache_write", "cache_write_rub_mtok"),
        ] {
            assert_eq!(reported["price"][class], rates[rate], "{reported}");
        }
        // The estimate can be computed from its own fields: rubles per million tokens are equal to micro-rubles per
        // token.
        let count = |field: &str| reported[field].as_i64().unwrap();
        let rate = |rate: &str| micro(&rates[rate]) / 1_000_000;
        let hold = count("input_tokens_max") * rate("input_rub_mtok")
            + count("output_tokens_max") * rate("output_rub_mtok");
        assert_eq!(micro(&reported["hold_rub"]), hold, "{reported}");
        let held = world.account(&key).await["held_rub"].clone();
        assert_eq!(held, "0.00", "an estimate holds nothing");

        if body["n"].is_null() {
            let running = Running::start(&world, op, &key, &body).await;
            let held = world.account(&key).await["held_rub"].clone();
            assert_eq!(reported["hold_rub"], held, "{reported}");
            running.finish().await;
        }
    }
    assert_eq!(world.vendor.received().len(), 3, "the calls alone");
}

#[tokio::test]
async fn estimate_lowers_the_output_maximum_to_what_the_money_covers_just_like_a_call() {
    let world = World::start().await;
    let rich = world.key().await;
    let body = without_max_tokens();
    let all = estimate(&world, Op::Chat, &rich, &body).await.json();
    let funds = micro(&all["hold_rub"]) - 100_000;
    let key = world.key_with("poor", &rubles(funds), json!({})).await;
    let reported = estimate(&world, Op::Chat, &key, &body).await.json();
    assert_eq!(reported["fits"], true, "{reported}");
    assert_eq!(reported["hold_rub"], reported["free_rub"], "{reported}");
    assert_eq!(reported["output_tokens_max"], 4000 - 500, "{reported}");
    let running = Running::start(&world, Op::Chat, &key, &body).await;
    assert_eq!(world.account(&key).await["held_rub"], reported["hold_rub"]);
    running.finish().await;
}

#[tokio::test]
async fn estimate_of_a_call_that_the_money_does_not_cover_has_the_needed_amount() {
    let world = World::start().await;
    let key = world.key_with("poor", "0.02", json!({})).await;
    let spent = json!({ "ceiling_rub": "0.000001" });
    let spent = world.another_key("poor", spent).await;
    let empty = world.key_with("empty", "0", json!({})).await;
    for op in BOTH {
        let body = op.body("x");
        let reported = estimate(&world, op, &key, &body).await.json();
        assert_eq!(reported["fits"], false, "{reported}");
        assert_eq!(reported["free_rub"], "0.02", "{reported}");
        let answer = op.call(&world, &key, &body).await;
        let text = refused("the call", &answer, 403, PERMISSION, "insufficient_balance");
        let needs = reported["hold_rub"].as_str().unwrap().replace('.', ",");
        assert!(text.contains(&format!("нужно {needs}\u{a0}₽")), "{text}");

        for (key, free) in [(&spent, "0.000001"), (&empty, "0.00")] {
            let reported = estimate(&world, op, key, &body).await.json();
            assert_eq!(reported["fits"], false, "{reported}");
            assert_eq!(reported["free_rub"], free, "{reported}");
        }
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn estimate_is_refused_for_the_same_reasons_as_its_call() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let good = op.body("x");
        let other = BOTH
            .into_iter()
            .map(Op::model)
            .find(|model| *model != op.model());
        let other = json!({ "models": [other] });
        let narrow = world.another_key("acme", other).await;
        let forged = Key {
            secret: "tg-forged".to_owned(),
            ..key.clone()
        };
        let of_nothing = with(good.clone(), json!({ "messages": [] }));
        let of_nobody = with(good.clone(), json!({ "model": "nobody" }));
        for (key, body, status, kind, code) in [
            (&key, &of_nothing, 400, INVALID, ""),
            (&key, &of_nobody, 503, NOT_FOUND, "model_not_found"),
            (&narrow, &good, 403, PERMISSION, "model_not_allowed"),
            (&forged, &good, 401, AUTHENTICATION, "invalid_api_key"),
        ] {
            let reported = estimate(&world, op, key, body).await;
            let called = op.call(&world, key, body).await;
            let text = refused("an estimate", &reported, status, kind, code);
            assert_eq!(text, refused("a call", &called, status, kind, code));
        }
    }
    let suspended = json!({ "status": "suspended" });
    world
        .admin_patch("/admin/v1/accounts/acme", suspended)
        .await
        .expect(200);
    let reported = estimate(&world, Op::Chat, &key, &Op::Chat.body("x")).await;
    refused(
        "suspended",
        &reported,
        401,
        AUTHENTICATION,
        "account_suspended",
    );
    assert!(world.vendor.received().is_empty());
}

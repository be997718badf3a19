//! Tests of keys in the admin API, from their creation, which shows the secret once, to their deletion.

use crate::prelude::*;

fn path(key: &Key) -> String {
    format!("/admin/v1/keys/{}", key.id)
}

async fn patch(world: &World, key: &Key, change: Value) -> Value {
    let answer = world.admin_patch(&path(key), change).await.expect(200);
    answer.json()
}

async fn call(world: &World, key: &Key) -> Answer {
    world.chat(key, &Op::Chat.body("x")).await
}

#[tokio::test]
async fn secret_of_a_key_is_shown_only_when_it_is_created() {
    let world = World::start().await;
    world.key().await;
    let fields = json!({
        "name": "build server", "ceiling_rub": "12.5", "models": ["chat"],
        "addresses": ["127.0.0.0/8", "::1"], "requests_per_second": 7,
        "expires_at": "2099-12-31T00:00:00Z", "ceiling_month_rub": "10", "ceiling_day_rub": "1.5",
        "requests_per_minute": 8, "tokens_per_minute": 9,
    });
    let keys = "/admin/v1/accounts/acme/keys";
    let made = world.admin_post(keys, fields).await.expect(200);
    assert_eq!(made.headers["cache-control"], "no-store");
    let mut made = made.json();
    let secret = made["key"].as_str().unwrap().to_owned();
    made.as_object_mut().unwrap().remove("key");
    assert_eq!(made["account"], "acme");
    assert_eq!(made["name"], "build server");
    assert_eq!(made["status"], "active");
    assert_eq!(made["ceiling_rub"], "12.50");
    assert_eq!(made["spent_rub"], "0.00");
    assert_eq!(made["held_rub"], "0.00");
    assert_eq!(made["models"], json!(["chat"]));
    assert_eq!(made["addresses"], json!(["127.0.0.0/8", "::1/128"]));
    assert_eq!(made["requests_per_second"], 7);
    assert_eq!(made["requests_per_minute"], 8);
    assert_eq!(made["tokens_per_minute"], 9);
    assert_eq!(made["ceiling_month_rub"], "10.00");
    assert_eq!(made["ceiling_day_rub"], "1.50");
    assert_eq!(made["changed_at"], made["created_at"]);
    assert_eq!(made["expires_at"], "2099-12-31T00:00:00Z");
    assert!(secret.starts_with(made["prefix"].as_str().unwrap().trim_end_matches('…')));

    let shown = format!("/admin/v1/keys/{}", made["id"].as_str().unwrap());
    let shown = world.admin_get(&shown).await;
    assert_eq!(shown.json(), made);
    let listed = world.admin_get(keys).await;
    assert!(listed.json()["keys"].as_array().unwrap().contains(&made));
    for answer in [shown, listed] {
        assert!(!answer.text().contains(&secret[9..]), "{}", answer.text());
    }
}

#[tokio::test]
async fn new_keys_are_unique() {
    let world = World::start().await;
    let one = world.key().await;
    let two = world.another_key("acme", json!({})).await;
    assert_ne!(one.secret, two.secret);
    assert_ne!(one.id, two.id);
}

#[tokio::test]
async fn key_can_be_disabled_and_enabled_and_is_deleted_permanently() {
    let (world, key) = World::start_with_key().await;
    for _ in 0..2 {
        let disabled = patch(&world, &key, json!({ "status": "disabled" })).await;
        assert_eq!(disabled["status"], "disabled");
        let answer = call(&world, &key).await;
        refused("disabled", &answer, 401, AUTHENTICATION, "key_disabled");
        let active = patch(&world, &key, json!({ "status": "active" })).await;
        assert_eq!(active["status"], "active");
        assert_eq!(call(&world, &key).await.status, 200);
    }
    let deleted = world.admin(Method::DELETE, &path(&key), None).await;
    assert_eq!(deleted.json()["status"], "deleted");
    let answer = call(&world, &key).await;
    refused("deleted", &answer, 401, AUTHENTICATION, "key_disabled");
    let back = Some(json!({ "status": "active" }));
    world
        .admin(Method::PATCH, &path(&key), back)
        .await
        .expect(409);
    let answer = call(&world, &key).await;
    refused("deleted", &answer, 401, AUTHENTICATION, "key_disabled");
    let spent = world.settled(&key).await["spent_rub"].clone();
    assert!(micro(&spent) > 0, "its books are kept");
}

#[tokio::test]
async fn key_disabled_during_a_call_can_finish_that_call_but_start_no_other() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        patch(&world, &key, json!({ "status": "active" })).await;
        let running = Running::start(&world, op, &key, &op.body("x")).await;
        patch(&world, &key, json!({ "status": "disabled" })).await;
        let answer = op.call(&world, &key, &op.body("x")).await;
        refused(op.path(), &answer, 401, AUTHENTICATION, "key_disabled");
        let number = running.number.clone();
        assert!(running.finish().await.contains("два"));
        assert!(micro(&world.receipt(&number).await["charged_rub"]) > 0);
    }
}

#[tokio::test]
async fn key_disabled_at_another_gateway_gets_no_hold_despite_a_cached_key_record() {
    let redis = RedisServer::start().await;
    let here = Setup::default().ledger(&redis.url()).start().await;
    let there = Setup::default().ledger(&redis.url()).start().await;
    let key = here.key().await;
    // Because of this call, the first gateway caches the record of the key for five seconds.
    assert_eq!(call(&here, &key).await.status, 200);
    patch(&there, &key, json!({ "status": "disabled" })).await;
    for op in BOTH {
        let answer = op.call(&here, &key, &op.body("x")).await;
        refused(op.path(), &answer, 401, AUTHENTICATION, "key_disabled");
    }
    assert_eq!(here.vendor.received().len(), 1);
    patch(&there, &key, json!({ "status": "active" })).await;
    eventually("the key is good again", async || {
        let answer = call(&here, &key).await;
        (answer.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn ceiling_of_a_key_can_be_set_raised_and_removed() {
    let (world, key) = World::start_with_key().await;
    assert_eq!(call(&world, &key).await.status, 200);
    world.settled(&key).await;
    let low = patch(&world, &key, json!({ "ceiling_rub": "0.01" })).await;
    assert_eq!(low["ceiling_rub"], "0.01");
    let answer = call(&world, &key).await;
    refused("low", &answer, 403, PERMISSION, "insufficient_balance");
    patch(&world, &key, json!({ "ceiling_rub": "0.0001" })).await;
    let answer = call(&world, &key).await;
    refused("lower", &answer, 401, AUTHENTICATION, "ceiling_used_up");
    patch(&world, &key, json!({ "ceiling_rub": "10" })).await;
    assert_eq!(call(&world, &key).await.status, 200);
    let none = patch(&world, &key, json!({ "ceiling_rub": null })).await;
    assert_eq!(none["ceiling_rub"], Value::Null);
    assert_eq!(call(&world, &key).await.status, 200);
    for bad in [json!(10), json!("-1"), json!("all")] {
        let change = Some(json!({ "ceiling_rub": bad }));
        let answer = world.admin(Method::PATCH, &path(&key), change).await;
        assert_eq!(answer.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn renamed_key_shows_the_time_of_the_change() {
    let (world, key) = World::start_with_key().await;
    let before = world.admin_get(&path(&key)).await.json();
    let renamed = patch(&world, &key, json!({ "name": "build server" })).await;
    assert_eq!(renamed["name"], "build server");
    let time = |value: &Value| value.as_str().unwrap().to_owned();
    assert_eq!(renamed["created_at"], before["created_at"]);
    assert!(time(&renamed["changed_at"]) >= time(&before["changed_at"]));
    // A change of the account's name does not change the account's id.
    let name = Some(json!({ "name": "Acme Holding" }));
    let account = "/admin/v1/accounts/acme";
    let renamed = world.admin(Method::PATCH, account, name).await.json();
    assert_eq!(renamed["id"], "acme");
    assert_eq!(renamed["name"], "Acme Holding");
    assert_eq!(call(&world, &key).await.status, 200);
}

#[tokio::test]
async fn invalid_field_of_a_key_is_refused_with_400_and_named() {
    let (world, key) = World::start_with_key().await;
    let keys = "/admin/v1/accounts/acme/keys";
    for (fields, words) in [
        (
            json!({ "models": ["chat", "mesages"] }),
            &["models[1]: ", "\"messages\""][..],
        ),
        (
            json!({ "addresses": ["10.0.0.5/8"] }),
            &["addresses[0]: ", "10.0.0.0/8"],
        ),
        (
            json!({ "expires_at": "2001-01-01" }),
            &["expires_at: ", "past"],
        ),
        (json!({ "ceiling_day_rub": 5 }), &["ceiling_day_rub: "]),
        (
            json!({ "ceiling_month_rub": "-1" }),
            &["ceiling_month_rub: "],
        ),
        (
            json!({ "requests_per_minute": 0 }),
            &["requests_per_minute: "],
        ),
        (
            json!({ "tokens_per_minute": 1.5 }),
            &["tokens_per_minute: "],
        ),
    ] {
        let made = world.admin_post(keys, fields.clone()).await;
        let changed = world.admin_patch(&path(&key), fields).await;
        for answer in [made, changed] {
            assert_eq!(answer.status, 400, "{answer:?}");
            let text = answer.json()["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            assert!(text.starts_with(words[0]), "{text}");
        }
    }
    let listed = world.admin_get(keys).await.json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn the_models_and_addresses_of_a_key_can_be_changed() {
    let (world, key) = World::start_with_key().await;
    patch(&world, &key, json!({ "models": ["messages"] })).await;
    let answer = call(&world, &key).await;
    refused("model", &answer, 403, PERMISSION, "model_not_allowed");
    patch(
        &world,
        &key,
        json!({ "models": null, "addresses": ["203.0.113.7"] }),
    )
    .await;
    let answer = call(&world, &key).await;
    refused("address", &answer, 403, PERMISSION, "address_not_allowed");
    patch(&world, &key, json!({ "addresses": [] })).await;
    assert_eq!(call(&world, &key).await.status, 200);
}

#[tokio::test]
async fn key_shows_only_its_own_spending_and_holds() {
    let world = World::start().await;
    let one = world.key().await;
    let two = world.another_key("acme", json!({})).await;
    let answer = call(&world, &one).await;
    let charged = world.receipt(&answer.number()).await["charged_rub"].clone();
    let show = async |key: &Key| world.admin_get(&path(key)).await.json();
    assert_eq!(show(&one).await["spent_rub"], charged);
    assert_eq!(show(&two).await["spent_rub"], "0.00");
    let running = Running::start(&world, Op::Chat, &two, &Op::Chat.body("x")).await;
    assert_eq!(show(&one).await["held_rub"], "0.00");
    assert!(micro(&show(&two).await["held_rub"]) > 0);
    running.finish().await;
    world.settled(&one).await;
}

#[tokio::test]
async fn expiry_of_a_key_must_be_in_the_future_and_is_shown_in_utc() {
    let (world, key) = World::start_with_key().await;
    for bad in ["2001-01-01", "soon", "2099-02-30"] {
        let change = Some(json!({ "expires_at": bad }));
        let answer = world.admin(Method::PATCH, &path(&key), change).await;
        assert_eq!(answer.status, 400, "{bad}");
        let text = answer.text();
        assert!(text.contains("expires_at"), "{text}");
    }
    let shown = patch(&world, &key, json!({ "expires_at": "2099-12-31" })).await;
    assert_eq!(shown["expires_at"], "2099-12-31T00:00:00Z");
    assert_eq!(call(&world, &key).await.status, 200);
}

#[tokio::test]
async fn imported_key_is_recognised_by_its_sha256() {
    const FOREIGN: &str = "sk-live-AbCdEf0123456789";
    let world = World::start().await;
    world.key().await;
    let sha256 = tollgate_layers::auth::digest(FOREIGN.as_bytes()).to_string();
    let keys = "/admin/v1/accounts/acme/keys";
    let fields = json!({ "name": "old", "sha256": sha256.to_uppercase(), "prefix": "sk-live-…" });
    let made = world.admin_post(keys, fields.clone()).await.expect(200);
    let made = made.json();
    assert!(made.get("key").is_none(), "there is no secret to show");
    assert_eq!(made["name"], "old");
    assert_eq!(made["prefix"], "sk-live-…");

    let foreign = Key {
        secret: FOREIGN.to_owned(),
        id: made["id"].as_str().unwrap().to_owned(),
        account: "acme".to_owned(),
    };
    for op in BOTH {
        op.call(&world, &foreign, &op.body("x")).await.expect(200);
    }
    let stranger = Key {
        secret: format!("{FOREIGN}0"),
        ..foreign.clone()
    };
    let answer = call(&world, &stranger).await;
    refused("stranger", &answer, 401, AUTHENTICATION, "invalid_api_key");

    let again = world.admin_post(keys, fields).await.expect(409);
    assert!(again.text().contains(&foreign.id), "{}", again.text());
    let by_digest = format!("/admin/v1/keys/sha256-{sha256}");
    let shown = world.admin_get(&by_digest).await;
    assert_eq!(shown.json()["id"], foreign.id.as_str());
    assert!(!shown.text().contains(&sha256), "{}", shown.text());
    let nobody = format!("/admin/v1/keys/sha256-{}", "0".repeat(64));
    assert_eq!(world.admin_get(&nobody).await.status, 404);

    patch(&world, &foreign, json!({ "status": "disabled" })).await;
    let answer = call(&world, &foreign).await;
    refused("disabled", &answer, 401, AUTHENTICATION, "key_disabled");
    for (fields, says) in [
        (
            json!({ "sha256": "abc" }),
            "sha256: must be 64 hexadecimal digits",
        ),
        (
            json!({ "prefix": "sk-…" }),
            "prefix: valid only with sha256",
        ),
        (
            json!({ "sha256": "1".repeat(64), "prefix": FOREIGN }),
            "prefix: must be the first characters",
        ),
    ] {
        let wrong = world.admin_post(keys, fields).await;
        let text = wrong.json()["error"]["message"].to_string();
        assert!(wrong.status == 400 && text.contains(says), "{text}");
    }
}

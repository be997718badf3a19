//! Tests of specification section 5, and of docs/decisions.md, "Names" and the rows 401 and 403: which keys may make
//! calls, and how other keys are refused.

use tollgate_layers::{
    auth::SecretKey, ceiling::Ceilings, key::KeyRecord, reserve::ledger::LedgerAdmin,
};

use crate::prelude::*;

async fn patch(world: &World, path: &str, body: serde_json::Value) {
    let answer = world.admin_patch(path, body).await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
}

/// Creates a key that has just expired.
async fn expired(world: &World, account: &str) -> Key {
    world.key_with(account, "10", json!({})).await;
    let secret = SecretKey::generate();
    let (id, owner) = ("expired".parse().unwrap(), account.parse().unwrap());
    let mut record = KeyRecord::new(id, owner, secret.digest());
    record.prefix = secret.prefix();
    record.expires_at_ms = Some(1);
    world
        .gateway
        .store()
        .create_key(&record, Ceilings::NONE)
        .await
        .unwrap();
    Key {
        secret: secret.expose().to_owned(),
        id: "expired".to_owned(),
        account: account.to_owned(),
    }
}

/// Checks that both operations refuse a key with 401. `about` is what the refusal must name: the key or the balance.
async fn refused_with_401(what: &str, world: &World, key: &Key, code: &str, about: &str) {
    for op in BOTH {
        let answer = op.call(world, key, &op.body("x")).await;
        about_one(what, &answer, code, about);
    }
    assert!(world.vendor.received().is_empty(), "{what}");
}

fn about_one(what: &str, answer: &Answer, code: &str, about: &str) {
    let text = refused(what, answer, 401, AUTHENTICATION, code).to_lowercase();
    for word in ["ключ", "баланс"] {
        assert_eq!(text.contains(word), word == about, "{what}: {text}");
    }
}

#[tokio::test]
async fn key_is_accepted_as_bearer_or_x_api_key_or_both_if_equal() {
    let (world, key) = World::start_with_key().await;
    let (bearer, secret) = (bearer(&key), key.secret.as_str());
    let lower = bearer.replace("Bearer", "bearer");
    for op in BOTH {
        for headers in [
            &[("authorization", bearer.as_str())][..],
            &[("authorization", lower.as_str())],
            &[("x-api-key", secret)],
            &[("authorization", bearer.as_str()), ("x-api-key", secret)],
        ] {
            let answer = op.post(&world, headers, op.body("x").to_string()).await;
            assert_eq!(answer.status, 200, "{op:?}: {headers:?}");
        }
    }
}

/// A client that is also configured with a vendor's key sends both keys.
#[tokio::test]
async fn key_is_accepted_next_to_a_credential_of_another_service() {
    let (world, key) = World::start_with_key().await;
    let (bearer, secret) = (bearer(&key), key.secret.as_str());
    for op in BOTH {
        for headers in [
            [
                ("authorization", bearer.as_str()),
                ("x-api-key", "sk-ant-stale"),
            ],
            [("authorization", bearer.as_str()), ("x-api-key", "")],
            [
                ("authorization", "Bearer sk-ant-stale"),
                ("x-api-key", secret),
            ],
            [("authorization", "Bearer"), ("x-api-key", secret)],
        ] {
            let answer = op.post(&world, &headers, op.body("x").to_string()).await;
            assert_eq!(answer.status, 200, "{op:?} {headers:?}: {answer:?}");
        }
    }
    let received = format!("{:?}", world.vendor.received());
    assert!(!received.contains("sk-ant-stale") && !received.contains(secret));
}

#[tokio::test]
async fn call_without_exactly_one_valid_key_in_a_supported_scheme_is_refused_with_401() {
    let (world, key) = World::start_with_key().await;
    let other = world.another_key("acme", json!({})).await;
    let bearer = bearer(&key);
    let (typo, basic) = (format!("{bearer}x"), format!("Basic {}", key.secret));
    let (bearer, typo, basic) = (bearer.as_str(), typo.as_str(), basic.as_str());
    let (secret, other) = (key.secret.as_str(), other.secret.as_str());
    let unknown = SecretKey::generate();
    for (what, headers) in [
        ("no key", &[] as &[(&str, &str)]),
        (
            "two keys",
            &[("authorization", bearer), ("x-api-key", other)],
        ),
        ("another scheme", &[("authorization", basic)]),
        (
            "another scheme beside a good key",
            &[("authorization", "Basic eDp5"), ("x-api-key", secret)],
        ),
        ("a key without a scheme", &[("authorization", secret)]),
        ("a typo", &[("authorization", typo)]),
        (
            "a key of somebody else",
            &[("authorization", "Bearer sk-123")],
        ),
        ("empty", &[("x-api-key", "")]),
        ("an unknown key", &[("x-api-key", unknown.expose())]),
    ] {
        for op in BOTH {
            let answer = op.post(&world, headers, op.body("x").to_string()).await;
            about_one(what, &answer, "invalid_api_key", "ключ");
        }
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn disabled_deleted_or_expired_key_is_refused() {
    let world = World::start().await;
    let disabled = world.key_with("a", "10", json!({})).await;
    let path = format!("/admin/v1/keys/{}", disabled.id);
    patch(&world, &path, json!({ "status": "disabled" })).await;
    refused_with_401("disabled", &world, &disabled, "key_disabled", "ключ").await;

    let deleted = world.key_with("b", "10", json!({})).await;
    let path = format!("/admin/v1/keys/{}", deleted.id);
    assert_eq!(world.admin(Method::DELETE, &path, None).await.status, 200);
    refused_with_401("deleted", &world, &deleted, "key_disabled", "ключ").await;

    let expired = expired(&world, "c").await;
    refused_with_401("expired", &world, &expired, "key_expired", "ключ").await;
}

#[tokio::test]
async fn a_key_whose_ceiling_is_exhausted_is_refused_with_401() {
    let world = World::start().await;
    let nothing = world
        .key_with("a", "10", json!({ "ceiling_rub": "0" }))
        .await;
    refused_with_401("nothing", &world, &nothing, "ceiling_used_up", "ключ").await;

    let spent = world.key_with("b", "10", json!({})).await;
    let answer = world.chat(&spent, &Op::Chat.body("x")).await;
    let receipt = world.receipt(&answer.number()).await;
    let ceiling = json!({ "ceiling_rub": receipt["charged_rub"] });
    patch(&world, &format!("/admin/v1/keys/{}", spent.id), ceiling).await;
    let answer = world.chat(&spent, &Op::Chat.body("x")).await;
    about_one("spent", &answer, "ceiling_used_up", "ключ");
}

#[tokio::test]
async fn a_key_of_an_account_that_is_suspended_or_without_funds_is_refused_with_401() {
    let world = World::start().await;
    let empty = world.key_with("a", "0", json!({})).await;
    refused_with_401("empty", &world, &empty, "account_empty", "баланс").await;

    let suspended = world.key_with("b", "10", json!({})).await;
    patch(
        &world,
        "/admin/v1/accounts/b",
        json!({ "status": "suspended" }),
    )
    .await;
    refused_with_401(
        "suspended",
        &world,
        &suspended,
        "account_suspended",
        "баланс",
    )
    .await;
    patch(
        &world,
        "/admin/v1/accounts/b",
        json!({ "status": "active" }),
    )
    .await;
    world
        .chat(&suspended, &Op::Chat.body("x"))
        .await
        .expect(200);
}

#[tokio::test]
async fn request_beyond_the_remaining_balance_is_refused_with_403() {
    let world = World::start().await;
    let poor = world.key_with("a", "0.01", json!({})).await;
    let limited = world
        .key_with("b", "10", json!({ "ceiling_rub": "0.01" }))
        .await;
    for key in [poor, limited] {
        for op in BOTH {
            let answer = op.call(&world, &key, &op.body("x")).await;
            refused(
                &key.account,
                &answer,
                403,
                PERMISSION,
                "insufficient_balance",
            );
        }
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn key_without_permission_for_the_model_is_refused_with_403() {
    let world = World::start().await;
    for (op, other) in [(Op::Chat, Op::Messages), (Op::Messages, Op::Chat)] {
        let fields = json!({ "models": [other.model()] });
        let key = world.key_with(op.model(), "10", fields).await;
        let answer = op.call(&world, &key, &op.body("x")).await;
        let text = refused(op.path(), &answer, 403, PERMISSION, "model_not_allowed");
        assert!(text.contains(op.model()), "{text}");
        assert!(world.vendor.received().is_empty());
    }
    let both = world
        .key_with("both", "10", json!({ "models": ["chat", "messages"] }))
        .await;
    for op in BOTH {
        assert_eq!(op.call(&world, &both, &op.body("x")).await.status, 200);
    }
}

#[tokio::test]
async fn key_used_from_an_address_that_it_does_not_permit_is_refused_with_403() {
    let world = World::start().await;
    let elsewhere = json!({ "addresses": ["203.0.113.0/24", "2001:db8::/32"] });
    let key = world.key_with("a", "10", elsewhere).await;
    for op in BOTH {
        let answer = op.call(&world, &key, &op.body("x")).await;
        refused(op.path(), &answer, 403, PERMISSION, "address_not_allowed");
    }
    assert!(world.vendor.received().is_empty());
    let here = world
        .key_with("b", "10", json!({ "addresses": ["127.0.0.0/8"] }))
        .await;
    world.chat(&here, &Op::Chat.body("x")).await.expect(200);
}

#[tokio::test]
async fn key_begins_with_tg_and_is_shown_only_by_its_prefix() {
    let (world, key) = World::start_with_key().await;
    assert!(key.secret.starts_with("tg-"), "{}", key.secret);
    assert_eq!(key.secret.len(), 51);
    assert!(
        key.secret[3..]
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric())
    );
    let path = format!("/admin/v1/keys/{}", key.id);
    let shown = world.admin_get(&path).await;
    assert_eq!(shown.json()["prefix"], format!("{}…", &key.secret[..9]));
    assert!(!shown.text().contains(&key.secret[9..]));
}

#[tokio::test]
async fn every_answer_has_a_request_number_of_the_gateway() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    let mine = "01890000-0000-7000-8000-000000000000";
    let headers = [
        ("authorization", bearer.as_str()),
        ("x-request-id", mine),
        ("request-id", mine),
    ];
    let mut numbers = Vec::new();
    for op in BOTH {
        let good = op.post(&world, &headers, op.body("x").to_string()).await;
        assert_eq!(world.receipt(&good.number()).await["number"], good.number());
        let bad = op.post(&world, &headers, "{").await;
        assert_eq!((good.status.as_u16(), bad.status.as_u16()), (200, 400));
        numbers.extend([good, bad]);
    }
    numbers.push(world.get("/v1/tollgate/models", &headers).await);
    numbers.push(world.get("/nowhere", &headers).await);
    numbers.push(world.get("/", &headers).await);
    let mut seen = std::collections::HashSet::new();
    for answer in numbers {
        let number = answer.number();
        assert_eq!(answer.headers["request-id"], number.as_str());
        let uuid = uuid::Uuid::parse_str(&number).unwrap();
        assert_eq!(uuid.get_version_num(), 7, "{number}");
        assert_ne!(number, mine);
        assert!(seen.insert(number));
    }
}

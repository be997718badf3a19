//! Tests of owner keys, which manage the keys of their account and cannot call models.

use tollgate_ledger::{
    account::OWNER_MARK,
    contract::{Hold, Ledger, LedgerAdmin, LedgerError, Refusal},
    money::MicroRub,
    number::RequestNumber,
};

use crate::{ledger::folder, prelude::*};

const KEYS: &str = "/v1/tollgate/keys";

async fn ask(world: &World, key: &Key, method: Method, path: &str, body: Option<Value>) -> Answer {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let url = world.url(path);
    let req = json_request(method, &url, &key.secret, body);
    world.ask(req).await
}

async fn done(world: &World, key: &Key, method: Method, path: &str, body: Option<Value>) -> Value {
    let answer = ask(world, key, method, path, body).await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    assert_eq!(answer.headers["cache-control"], "no-store");
    answer.json()
}

async fn owner(world: &World) -> Key {
    world.another_key("acme", json!({ "kind": "owner" })).await
}

/// Checks on the ledger of this gateway what an owner key may do.
async fn looks_after_keys(world: &World) {
    let caller = world.key().await;
    let owner = owner(world).await;
    let shown = done(world, &owner, Method::GET, "/v1/tollgate/key", None).await;
    assert_eq!(shown["kind"], "owner");

    // The owner key creates an ordinary key, which can call models within its limits.
    let wanted = json!({ "name": "ci", "ceiling_day_rub": "5", "models": ["chat"] });
    let made = done(world, &owner, Method::POST, KEYS, Some(wanted)).await;
    let ci = Key {
        secret: made["key"].as_str().unwrap().to_owned(),
        id: made["id"].as_str().unwrap().to_owned(),
        account: "acme".into(),
    };
    assert_eq!(made["name"], "ci");
    assert_eq!(made["ceiling_day_rub"], "5.00");
    assert_eq!(made["models"], json!(["chat"]));
    let number = Op::Chat
        .call(world, &ci, &Op::Chat.body("x"))
        .await
        .number();
    let receipt = world.receipt(&number).await;

    // The owner key can see all keys, the spending and the receipts of its account, but no secrets.
    let listed = done(world, &owner, Method::GET, KEYS, None).await;
    let keys = listed["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 3, "{listed}");
    assert!(keys.iter().all(|key| key.get("key").is_none()), "{listed}");
    let spent = done(world, &owner, Method::GET, "/v1/tollgate/usage", None).await;
    assert_eq!(spent["total"]["charged_rub"], receipt["charged_rub"]);
    for (key, calls) in [(&ci, 1), (&caller, 0)] {
        let path = format!("/v1/tollgate/usage?key={}", key.id);
        let spent = done(world, &owner, Method::GET, &path, None).await;
        assert_eq!(spent["total"]["calls"], calls, "{spent}");
    }
    let receipts = done(world, &owner, Method::GET, "/v1/tollgate/receipts", None).await;
    assert_eq!(receipts["receipts"][0]["key"], *ci.id);
    let one = format!("/v1/tollgate/receipts/{number}");
    done(world, &owner, Method::GET, &one, None).await;

    // The owner key limits the ordinary key, and then deletes it. The gateway applies each of these changes to the next
    // call.
    let path = format!("{KEYS}/{}", ci.id);
    let change = json!({ "status": "disabled", "ceiling_day_rub": null });
    let changed = done(world, &owner, Method::PATCH, &path, Some(change)).await;
    assert_eq!(changed["status"], "disabled");
    assert_eq!(changed["ceiling_day_rub"], Value::Null);
    world.chat(&ci, &chat_body("x")).await.expect(401);
    let deleted = done(world, &owner, Method::DELETE, &path, None).await;
    assert_eq!(deleted["status"], "deleted");
    ask(world, &owner, Method::DELETE, &path, None)
        .await
        .expect(404);

    // The gateway refuses a model call with the owner key, and the ledger refuses a hold for it.
    for op in BOTH {
        let call = op.call(world, &owner, &op.body("x")).await;
        refused(op.path(), &call, 403, PERMISSION, "owner_key");
        let reported = call.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(reported.contains("ключ владельца"), "{reported}");
    }
    let hold = Hold::new(
        RequestNumber::now_v7(),
        "acme".parse().unwrap(),
        owner.id.parse().unwrap(),
        MicroRub::new(1),
        std::time::Duration::from_secs(60),
    );
    let held = world.gateway.store().reserve(&hold).await;
    assert!(
        matches!(held, Err(LedgerError::Refused(Refusal::Disabled))),
        "{held:?}"
    );
    // Gateways of a version without owner keys see a key whose only model does not exist. So they refuse its calls,
    // too.
    let record = world.gateway.store().key(&hold.key).await.unwrap().record;
    assert_eq!(record.models, [OWNER_MARK]);
}

#[tokio::test]
async fn owner_key_in_a_memory_ledger_manages_keys_and_calls_no_models() {
    looks_after_keys(&World::start().await).await;
}

#[tokio::test]
async fn owner_key_in_a_sqlite_ledger_manages_keys_and_calls_no_models() {
    let folder = folder();
    let url = format!("sqlite:{}", folder.path().join("books.db").display());
    looks_after_keys(&Setup::default().ledger(&url).start().await).await;
}

#[tokio::test]
async fn owner_key_in_a_redis_ledger_manages_keys_and_calls_no_models() {
    let server = RedisServer::start().await;
    looks_after_keys(&Setup::default().ledger(&server.url()).start().await).await;
}

#[tokio::test]
async fn key_that_makes_calls_cannot_manage_keys() {
    let (world, key) = World::start_with_key().await;
    for (method, path) in [
        (Method::GET, KEYS.to_owned()),
        (Method::POST, KEYS.to_owned()),
        (Method::PATCH, format!("{KEYS}/{}", key.id)),
        (Method::DELETE, format!("{KEYS}/{}", key.id)),
    ] {
        let answer = ask(&world, &key, method, &path, Some(json!({}))).await;
        refused(&path, &answer, 403, PERMISSION, "owner_key_required");
    }
    ask(&world, &key, Method::GET, "/v1/tollgate/usage?key=k1", None)
        .await
        .expect(400);
}

#[tokio::test]
async fn owner_key_cannot_access_other_accounts_or_owner_keys() {
    let world = World::start().await;
    world.key().await;
    let owner = owner(&world).await;
    let foreign = world.key_with("beta", "100", json!({})).await;
    for id in [&*foreign.id, &*owner.id, "nobody"] {
        let path = format!("{KEYS}/{id}");
        for (method, body) in [
            (Method::PATCH, Some(json!({ "status": "disabled" }))),
            (Method::DELETE, None),
        ] {
            let answer = ask(&world, &owner, method, &path, body).await;
            assert_eq!(answer.status, 404, "{id}: {answer:?}");
            assert_eq!(answer.json()["error"]["code"], "key_not_found");
        }
    }
    let spent = done(
        &world,
        &owner,
        Method::GET,
        &format!("/v1/tollgate/usage?key={}", foreign.id),
        None,
    )
    .await;
    assert_eq!(spent["total"]["calls"], 0);
    Op::Chat
        .call(&world, &foreign, &Op::Chat.body("x"))
        .await
        .expect(200);
}

#[tokio::test]
async fn limits_of_an_owner_key_apply_to_the_keys_that_it_creates() {
    let world = World::start().await;
    world.key().await;
    let limits = json!({
        "kind": "owner", "addresses": ["127.0.0.0/8"], "requests_per_second": 7, "requests_per_minute": 70,
        "tokens_per_minute": 700, "expires_at": "2100-01-01T00:00:00Z",
    });
    let owner = world.another_key("acme", limits.clone()).await;
    let made = done(&world, &owner, Method::POST, KEYS, Some(json!({}))).await;
    let path = format!("/admin/v1/keys/{}", made["id"].as_str().unwrap());
    let made = world.admin_get(&path).await.json();
    for (limit, value) in limits.as_object().unwrap() {
        let value = match limit.as_str() {
            "kind" => json!("caller"),
            _ => value.clone(),
        };
        assert_eq!(made[limit], value, "{limit}: {made}");
    }
}

#[tokio::test]
async fn misspelt_field_is_refused_and_creates_or_changes_no_key() {
    let world = World::start().await;
    world.key().await;
    let owner = owner(&world).await;
    for body in [
        json!({ "ceiling": "5" }),
        json!({ "ceiling_rub": 5 }),
        json!({ "ceiling_rub": "-5" }),
        json!({ "models": "chat" }),
        json!({ "kind": "owner" }),
        json!({ "status": "active" }),
        json!([]),
    ] {
        let answer = ask(&world, &owner, Method::POST, KEYS, Some(body.clone())).await;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
    }
    let unknown = json!({ "models": ["chta"] });
    ask(&world, &owner, Method::POST, KEYS, Some(unknown))
        .await
        .expect(404);
    let listed = done(&world, &owner, Method::GET, KEYS, None).await;
    assert_eq!(listed["keys"].as_array().unwrap().len(), 2, "{listed}");
}

/// No change can turn an owner key into a key that calls models.
#[tokio::test]
async fn owner_key_stays_an_owner_key_after_any_change() {
    let world = World::start().await;
    world.key().await;
    let owner = owner(&world).await;
    let path = format!("/admin/v1/keys/{}", owner.id);
    let models = json!({ "models": ["chat"] });
    world.admin_patch(&path, models).await.expect(400);
    let change = json!({ "name": "boss", "models": [], "status": "disabled" });
    world.admin_patch(&path, change).await;
    let change = json!({ "status": "active" });
    let changed = world.admin_patch(&path, change).await.json();
    assert_eq!(changed["kind"], "owner");
    assert_eq!(changed["name"], "boss");
    assert_eq!(changed["models"], json!([]));
    Op::Chat
        .call(&world, &owner, &Op::Chat.body("x"))
        .await
        .expect(403);
    let both = json!({ "kind": "owner", "models": ["chat"] });
    let keys = "/admin/v1/accounts/acme/keys";
    world.admin_post(keys, both).await.expect(400);
}

//! Tests of the admin API: accounts, payments and receipts.

use crate::prelude::*;

async fn post(world: &World, path: &str, body: Value) -> Answer {
    world.admin_post(path, body).await
}

/// Checks that the admin API has refused a request with this status. Returns the text of the refusal.
fn no(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    let body = answer.json();
    assert_eq!(names(&body), ["error"]);
    let text = body["error"]["message"].as_str().unwrap().to_owned();
    assert!(!is_russian(&text), "operators read English: {text}");
    text
}

const ACCOUNTS: &str = "/admin/v1/accounts";
const TOPUPS: &str = "/admin/v1/accounts/acme/topups";
const ADJUSTMENTS: &str = "/admin/v1/accounts/acme/adjustments";

async fn with_account() -> World {
    let world = World::start().await;
    let body = json!({ "id": "acme", "name": "Acme Ltd" });
    assert_eq!(post(&world, ACCOUNTS, body).await.status, 200);
    world
}

#[tokio::test]
async fn account_can_be_created_and_shown_and_listed_and_renamed() {
    let world = with_account().await;
    let account = json!({
        "id": "acme", "name": "Acme Ltd", "status": "active", "balance_rub": "0.00",
        "held_rub": "0.00", "free_rub": "0.00", "spent_rub": "0.00", "loss_rub": "0.00",
        "holds_open": 0,
    });
    let path = format!("{ACCOUNTS}/acme");
    let shown = world.admin_get(&path).await;
    let more = json!({ "spent_month_rub": "0.00", "spent_day_rub": "0.00", "keys": [], "debt_rub": "0.00" });
    assert_eq!(shown.json(), with(account.clone(), more));
    post(&world, ACCOUNTS, json!({ "id": "beta", "name": "Beta" })).await;
    let listed = world.admin_get(ACCOUNTS).await.json();
    let listed = listed["accounts"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 2);
    assert!(listed.contains(&account), "{listed:?}");

    let name = Some(json!({ "name": "Acme Inc" }));
    let renamed = world.admin(Method::PATCH, &path, name).await.json();
    assert_eq!(renamed["name"], "Acme Inc");
    let again = post(
        &world,
        ACCOUNTS,
        json!({ "id": "acme", "name": "Acme Ltd" }),
    )
    .await;
    let text = no(&again, 409);
    assert!(text.contains("tollgate account set acme"), "{text}");
}

#[tokio::test]
async fn account_shows_its_keys_its_holds_and_its_recent_spending() {
    let (world, key) = World::start_with_key().await;
    let other = world
        .another_key(
            "acme",
            json!({ "ceiling_day_rub": "3", "ceiling_month_rub": "40" }),
        )
        .await;
    let spent = world.chat(&key, &Op::Chat.body("x")).await;
    let charged = world.receipt(&spent.number()).await["charged_rub"].clone();
    let running = Running::start(&world, Op::Chat, &other, &Op::Chat.body("x")).await;

    let account = world.account(&key).await;
    assert_eq!(account["holds_open"], 1);
    for field in ["spent_rub", "spent_month_rub", "spent_day_rub"] {
        assert_eq!(account[field], charged, "{field}");
    }
    let keys = world.admin_get("/admin/v1/accounts/acme/keys");
    assert_eq!(account["keys"], keys.await.json()["keys"]);
    let shown = |key: &Key| {
        let mut keys = account["keys"].as_array().unwrap().iter();
        keys.find(|shown| shown["id"] == *key.id).unwrap()
    };
    assert_eq!(shown(&key)["spent_day_rub"], charged);
    assert_eq!(shown(&key)["ceiling_day_rub"], Value::Null);
    let other = shown(&other);
    assert_eq!(other["ceiling_day_rub"], "3.00");
    assert_eq!(other["ceiling_month_rub"], "40.00");
    assert_eq!(other["spent_day_rub"], "0.00");
    assert_eq!(other["held_rub"], account["held_rub"]);
    running.finish().await;
    assert_eq!(world.settled(&key).await["holds_open"], 0);
}

#[tokio::test]
async fn top_up_with_a_repeated_id_applies_once() {
    let world = with_account().await;
    for _ in 0..3 {
        let body = json!({ "id": "payment-1", "amount_rub": "100.50" });
        let account = post(&world, TOPUPS, body).await.json();
        assert_eq!(account["balance_rub"], "100.50");
    }
    let body = json!({ "id": "payment-2", "amount_rub": "0.000001" });
    let account = post(&world, TOPUPS, body).await.json();
    assert_eq!(account["balance_rub"], "100.500001");

    let body = json!({ "id": "payment-1", "amount_rub": "100.51" });
    let text = no(&post(&world, TOPUPS, body).await, 409);
    assert!(text.contains("payment-1"), "{text}");
    let account = world.admin_get("/admin/v1/accounts/acme");
    assert_eq!(account.await.json()["balance_rub"], "100.500001");
}

#[tokio::test]
async fn top_up_sent_many_times_at_once_applies_once() {
    let world = with_account().await;
    let body = json!({ "id": "payment", "amount_rub": "10" });
    let same = || post(&world, TOPUPS, body.clone());
    let (a, b, c, d) = tokio::join!(same(), same(), same(), same());
    for answer in [a, b, c, d] {
        assert_eq!(answer.json()["balance_rub"], "10.00");
    }
}

#[tokio::test]
async fn amount_must_be_a_decimal_string_and_a_top_up_must_be_positive() {
    let world = with_account().await;
    for amount in [
        json!(100),
        json!(0.5),
        json!("0"),
        json!("-5"),
        json!("1,5"),
        json!("1e3"),
        json!("0.0000001"),
        json!("9007199254.740992"),
        json!(""),
        Value::Null,
    ] {
        let body = json!({ "id": "payment", "amount_rub": amount });
        let text = no(&post(&world, TOPUPS, body).await, 400);
        assert!(text.starts_with("amount_rub: "), "{amount}: {text}");
    }
}

#[tokio::test]
async fn payment_requires_an_id() {
    let world = with_account().await;
    for (path, body) in [
        (TOPUPS, json!({ "amount_rub": "10" })),
        (TOPUPS, json!({ "id": "", "amount_rub": "10" })),
        (ADJUSTMENTS, json!({ "amount_rub": "10", "reason": "x" })),
    ] {
        let text = no(&post(&world, path, body).await, 400);
        assert!(text.starts_with("id: "), "{text}");
    }
}

#[tokio::test]
async fn correction_may_be_negative_and_must_have_a_reason_and_applies_once() {
    let world = with_account().await;
    for (id, amount, balance) in [
        ("a", "10", "10.00"),
        ("b", "-2.5", "7.50"),
        ("b", "-2.5", "7.50"),
        ("c", "-7.5", "0.00"),
    ] {
        let body = json!({ "id": id, "amount_rub": amount, "reason": "a mistake" });
        let account = post(&world, ADJUSTMENTS, body).await.json();
        assert_eq!(account["balance_rub"], balance, "{id}");
    }
    let below = json!({ "id": "d", "amount_rub": "-0.000001", "reason": "a mistake" });
    no(&post(&world, ADJUSTMENTS, below).await, 409);
    let other = json!({ "id": "b", "amount_rub": "-2.4", "reason": "a mistake" });
    no(&post(&world, ADJUSTMENTS, other).await, 409);
    for reason in [json!({}), json!({ "reason": "" }), json!({ "reason": 7 })] {
        let body = json!({ "id": "e", "amount_rub": "1" });
        let body = with(body, reason);
        let text = no(&post(&world, ADJUSTMENTS, body).await, 400);
        assert!(text.starts_with("reason: "), "{text}");
    }
}

#[tokio::test]
async fn correction_that_would_take_held_money_is_refused_with_409() {
    let (world, key) = World::start_with_key().await;
    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("x")).await;
    let free = world.account(&key).await["free_rub"].clone();
    let free = free.as_str().unwrap();
    let all = json!({ "id": "all", "amount_rub": "-1000", "reason": "x" });
    let text = no(&post(&world, ADJUSTMENTS, all).await, 409);
    assert!(text.contains("hold"), "{text}");
    let rest = json!({ "id": "rest", "amount_rub": format!("-{free}"), "reason": "x" });
    let account = post(&world, ADJUSTMENTS, rest).await.json();
    assert_eq!(account["free_rub"], "0.00");
    assert_eq!(account["balance_rub"], account["held_rub"]);
    running.finish().await;
    assert!(micro(&world.settled(&key).await["balance_rub"]) > 0);
}

#[tokio::test]
async fn unknown_field_in_an_admin_request_is_400() {
    let world = with_account().await;
    let key = world.another_key("acme", json!({})).await;
    let (account, of_key) = (
        format!("{ACCOUNTS}/acme"),
        format!("/admin/v1/keys/{}", key.id),
    );
    let keys = format!("{account}/keys");
    for (method, path, body) in [
        (
            Method::POST,
            ACCOUNTS,
            json!({ "id": "b", "name": "b", "x": 1 }),
        ),
        (
            Method::PATCH,
            account.as_str(),
            json!({ "name": "b", "x": 1 }),
        ),
        (
            Method::POST,
            TOPUPS,
            json!({ "id": "b", "amount_rub": "1", "x": 1 }),
        ),
        (
            Method::POST,
            ADJUSTMENTS,
            json!({ "id": "b", "amount_rub": "1", "reason": "b", "x": 1 }),
        ),
        (
            Method::POST,
            keys.as_str(),
            json!({ "ceiling_rub": "1", "x": 1 }),
        ),
        (
            Method::PATCH,
            of_key.as_str(),
            json!({ "ceiling_rub": "1", "x": 1 }),
        ),
        (Method::POST, "/admin/v1/audit", json!({ "x": 1 })),
    ] {
        let answer = world.admin(method, path, Some(body)).await;
        let text = no(&answer, 400);
        assert!(text.starts_with("x: unknown field"), "{path}: {text}");
    }
    let shown = world.admin_get(&account).await.json();
    assert_eq!(shown["name"], "Acme Ltd");
    assert_eq!(shown["balance_rub"], "0.00");
}

#[tokio::test]
async fn admin_api_requires_the_admin_key_and_health_probes_need_none() {
    let world = with_account().await;
    let key = world.another_key("acme", json!({})).await;
    let address = world.gateway.admin_address().unwrap();
    let admin = format!("Bearer {ADMIN_KEY}");
    let (longer, caller) = (format!("{admin}x"), format!("Bearer {}", key.secret));
    for (value, status) in [
        (None, 401),
        (Some("Bearer "), 401),
        (Some(longer.as_str()), 401),
        (Some(caller.as_str()), 401),
        (Some(ADMIN_KEY), 401),
        (Some(admin.as_str()), 200),
    ] {
        let headers: Vec<_> = value
            .map(|value| ("authorization", value))
            .into_iter()
            .collect();
        let url = format!("http://{address}{ACCOUNTS}");
        let answer = world
            .ask(request(Method::GET, &url, &headers, "".into()))
            .await;
        assert_eq!(answer.status, status, "{value:?}");
        if status == 401 {
            no(&answer, 401);
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
        }
    }
    for path in ["/livez", "/readyz"] {
        let url = format!("http://{address}{path}");
        let answer = world.ask(request(Method::GET, &url, &[], "".into())).await;
        assert_eq!(answer.status, 200, "{path}");
    }
}

#[tokio::test]
async fn admin_key_guesses_are_limited_per_forwarded_address() {
    let world = Setup::default()
        .edit(
            "base_url =",
            "trusted_proxies = [\"127.0.0.1\"]\nbase_url =",
        )
        .start()
        .await;
    let url = format!(
        "http://{}{ACCOUNTS}",
        world.gateway.admin_address().unwrap()
    );
    let right = format!("Bearer {ADMIN_KEY}");
    // Each request uses a new connection, because connections with an accepted key are not limited.
    let ask = async |key: &str, from: &str| {
        let headers = [("authorization", key), ("x-forwarded-for", from)];
        let req = request(Method::GET, &url, &headers, "".into());
        whole(client().request(req).await.unwrap()).await
    };
    for _ in 0..10 {
        no(&ask("Bearer wrong", "203.0.113.1").await, 401);
    }
    for key in ["Bearer wrong", &right] {
        let answer = ask(key, "203.0.113.1").await;
        no(&answer, 429);
        assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    }
    // A caller can forge the entries that precede the entry of the proxy. The limit counts only the proxy's entry.
    for forged in 0..20 {
        let from = format!("198.51.100.{forged}, 203.0.113.1");
        no(&ask("Bearer wrong", &from).await, 429);
    }
    assert_eq!(ask(&right, "203.0.113.2").await.status, 200);
}

#[tokio::test]
async fn admin_api_and_calls_are_served_only_on_their_own_ports() {
    let world = with_account().await;
    let bearer = format!("Bearer {ADMIN_KEY}");
    let headers = [("authorization", bearer.as_str())];
    for path in [ACCOUNTS, "/livez", "/readyz", "/metrics"] {
        assert_eq!(world.get(path, &headers).await.status, 404, "{path}");
    }
    for op in BOTH {
        no(&post(&world, op.path(), op.body("x")).await, 404);
    }
}

#[tokio::test]
async fn unknown_admin_resource_is_404_and_wrong_method_is_405() {
    let world = with_account().await;
    let number = "01890000-0000-7000-8000-000000000000";
    for path in [
        "/admin/v1/accounts/nobody",
        "/admin/v1/accounts/nobody/keys",
        "/admin/v1/keys/nothing",
        &format!("/admin/v1/receipts/{number}"),
        "/admin/v1/receipts/7",
        "/admin/v1/nowhere",
    ] {
        no(&world.admin_get(path).await, 404);
    }
    let payment = json!({ "id": "p", "amount_rub": "1" });
    no(
        &post(&world, "/admin/v1/accounts/nobody/topups", payment).await,
        404,
    );
    let answer = world.admin(Method::DELETE, TOPUPS, None).await;
    no(&answer, 405);
    assert_eq!(answer.headers["allow"], "POST");
}

#[tokio::test]
async fn receipt_has_the_cost_and_its_computation() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let answer = op.call(&world, &key, &op.body("Привет")).await;
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["number"], answer.number());
        assert_eq!(receipt["account"], "acme");
        assert_eq!(receipt["key"], key.id.as_str());
        assert_eq!(receipt["model"], op.model());
        assert_eq!(receipt["estimated"], false);
        assert_eq!(receipt["end"], "finished");
        for amount in ["held_rub", "cost_rub", "charged_rub", "loss_rub"] {
            assert!(micro(&receipt[amount]) >= 0, "{amount}");
        }
        for class in ["input", "cached_input", "cache_write", "output"] {
            assert!(receipt["usage"][class].is_u64(), "{class}");
            assert!(receipt["price"][class].is_string(), "{class}");
        }
        assert!(receipt["price"]["version"].is_u64());
        assert!(
            !receipt.to_string().contains("Привет"),
            "prompts are not kept"
        );
    }
}

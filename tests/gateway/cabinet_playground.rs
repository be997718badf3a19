//! Tests of the playground in the cabinet: calls of a signed-in member, their price and their receipts, and attacks.

use http::StatusCode;
use tollgate_layers::auth::digest;
use tollgate_ledger::contract::Documents;

use crate::{
    cabinet::{ANNA, Browser, DAVE, EVIL, FINN, Office},
    prelude::*,
};

const CALL: &str = "/cabinet/playground/call";
const ESTIMATE: &str = "/cabinet/playground/estimate";

/// Sends the request that the script of the playground page sends, with these additional headers.
async fn post(
    browser: &Browser,
    world: &World,
    path: &str,
    more: &[(&str, &str)],
    body: &Value,
) -> Answer {
    let cookie = browser.cookie();
    let mut headers = vec![
        ("content-type", "application/json"),
        ("accept-language", "en"),
        ("cookie", &*cookie),
    ];
    headers.extend_from_slice(more);
    let body = body.to_string().into();
    let url = world.url(path);
    world.ask(request(Method::POST, &url, &headers, body)).await
}

/// Sends a playground request with the CSRF token of the session.
async fn play(browser: &Browser, world: &World, path: &str, body: &Value) -> Answer {
    post(
        browser,
        world,
        path,
        &[("x-csrf-token", &*browser.csrf)],
        body,
    )
    .await
}

async fn person(office: &Office, mail: &str, role: &str) -> String {
    let member = office.member("acme", mail, role).await;
    member["id"].as_str().unwrap().to_owned()
}

/// Returns those keys of the account `acme` that members use in the playground.
async fn keys_of_members(world: &World) -> Vec<Value> {
    let path = "/admin/v1/accounts/acme/keys";
    let keys = world.admin_get(path).await.json();
    let keys = keys["keys"].as_array().unwrap().iter();
    let of_member = |key: &&Value| key["id"].as_str().unwrap().starts_with("member-");
    keys.filter(of_member).cloned().collect()
}

#[tokio::test]
async fn playground_call_costs_its_estimate_and_its_receipt_names_the_member() {
    let office = Office::start().await;
    let world = &office.world;
    let mut dave = office.signed_in(DAVE).await;
    let page = dave.get(world, "/cabinet/playground").await;
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    has(policy, "script-src 'self'");
    assert!(!policy.contains("unsafe"), "{policy}");
    let html = page.text();
    assert!(html.contains("<option value=\"chat\">"), "{html}");
    assert_eq!(html.matches("<script").count(), 1, "{html}");
    assert!(html.contains("<script src=\"/cabinet/playground.js\" defer></script>"));
    let script = dave.get(world, "/cabinet/playground.js").await;
    assert_eq!(
        script.headers["content-type"],
        "text/javascript; charset=utf-8"
    );

    let body = with(chat_body("a secret prompt"), json!({ "stream": true }));
    let estimate = play(&dave, world, ESTIMATE, &body).await.expect(200);
    assert_eq!(
        world.vendor.received().len(),
        0,
        "an estimate calls no vendor"
    );
    let answer = play(&dave, world, CALL, &body).await.expect(200);
    let kind = answer.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    assert!(answer.text().contains("secret"), "{answer:?}");
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(receipt["held_rub"], estimate.json()["hold_rub"]);
    let member = person(&office, DAVE, "developer").await;
    let key = receipt["key"].as_str().unwrap().to_owned();
    assert!(key.starts_with(&format!("{member}-")), "{key}");

    // The vendor receives no header of the member's session.
    let sent = format!("{:?}", world.vendor.received()[0].headers);
    assert!(!sent.contains(&dave.csrf), "{sent}");
    assert!(!sent.contains("cookie"), "{sent}");
    let call = dave
        .page(world, &format!("/cabinet/calls/{}", answer.number()))
        .await;
    assert!(call.contains(" × 100.00 ₽/million + "), "{call}");
    assert!(call.contains(&format!("/cabinet/keys/{key}")), "{call}");
    let keys = dave.page(world, "/cabinet/keys").await;
    assert!(keys.contains("playground dave@acme.example"), "{keys}");

    // Each member gets one key, even if several of the member's requests arrive at the same time.
    let anna = office.signed_in(ANNA).await;
    let many = (0..20).map(|_| play(&anna, world, CALL, &body));
    for answer in futures_util::future::join_all(many).await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(keys_of_members(world).await.len(), 2);
    for html in [call, keys, dave.page(world, "/cabinet/calls").await] {
        assert!(!html.contains("a secret prompt"), "{html}");
    }
    for document in world.gateway.store().documents("").await.unwrap() {
        assert!(!document.text.contains("a secret prompt"), "{document:?}");
    }
}

#[tokio::test]
async fn playground_refuses_calls_from_other_origins_or_by_other_roles_or_without_a_csrf_token() {
    let office = Office::start().await;
    let world = &office.world;
    let theirs = world.key_with("beta", "777", json!({})).await;
    let (mut anna, mut finn) = (office.signed_in(ANNA).await, office.signed_in(FINN).await);
    finn.get(world, "/cabinet/playground").await.expect(403);
    finn.page(world, "/cabinet").await;
    anna.page(world, "/cabinet").await;
    let token = anna.csrf.clone();
    let wrong = "0".repeat(token.len());
    let stranger = Browser::default();
    let by_key = format!("Bearer {}", theirs.secret);
    let by_digest = digest(theirs.secret.as_bytes()).to_string();
    let body = chat_body("x");
    let (csrf, keyed) = (
        |token| ("x-csrf-token", token),
        |key| ("authorization", key),
    );
    let ours = csrf(&*token);
    for path in [CALL, ESTIMATE] {
        for (browser, headers, code) in [
            (&anna, &[][..], "cabinet.forged"),
            (&anna, &[csrf(&*wrong)], "cabinet.forged"),
            (&anna, &[csrf(""), keyed(&*by_key)], "cabinet.forged"),
            (
                &anna,
                &[ours, ("origin", "https://evil.example")],
                "cabinet.foreign",
            ),
            (&anna, &[ours, ("origin", "null")], "cabinet.foreign"),
            (
                &anna,
                &[ours, ("sec-fetch-site", "cross-site")],
                "cabinet.foreign",
            ),
            (
                &anna,
                &[ours, ("sec-fetch-site", "same-site")],
                "cabinet.foreign",
            ),
            (&finn, &[csrf(&*finn.csrf)], "cabinet.refused"),
            (&finn, &[ours], "cabinet.forged"),
            (&stranger, &[ours], "cabinet.signed_out"),
            (&stranger, &[keyed(&*by_key)], "cabinet.signed_out"),
            (&stranger, &[keyed(&*by_digest)], "cabinet.signed_out"),
        ] {
            let status = if code == "cabinet.signed_out" {
                401
            } else {
                403
            };
            let answer = post(browser, world, path, headers, &body).await;
            assert_eq!(answer.status, status, "{headers:?} {answer:?}");
            assert_eq!(answer.json()["error"]["code"], code, "{headers:?}");
        }
    }
    assert_eq!(keys_of_members(world).await.len(), 0);
    assert_eq!(world.vendor.received().len(), 0);

    // If a playground request names a key of another account in its headers, that key pays nothing. On the paths of the
    // callers' API, the digest of a key is refused.
    for planted in [&*by_key, &*by_digest] {
        let headers = [("x-csrf-token", &*token), ("authorization", planted)];
        let answer = post(&anna, world, CALL, &headers, &body).await;
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["account"], "acme", "{receipt}");
    }
    let url = world.url("/v1/chat/completions");
    let sent = json_request(Method::POST, &url, &by_digest, body.to_string());
    assert_eq!(world.ask(sent).await.status, 401);

    // After the sign-out, neither the cookie nor the CSRF token can be used to call a model.
    anna.clone().post(world, "/cabinet/sign-out", &[]).await;
    play(&anna, world, CALL, &body).await.expect(401);
}

#[tokio::test]
async fn playground_enforces_the_limits_of_the_members_key_and_account() {
    let office = Office::start().await;
    let world = &office.world;
    let mut anna = office.signed_in(ANNA).await;
    let body = chat_body("x");
    assert_eq!(play(&anna, world, CALL, &body).await.status, 200);
    let key = keys_of_members(world).await[0]["id"].clone();
    let path = format!("/cabinet/keys/{}", key.as_str().unwrap());
    let refused = async |anna: &mut Browser, body: &Value| {
        let answer = play(anna, world, CALL, body).await;
        assert!(!answer.status.is_success(), "{answer:?}");
        let code = answer.json()["error"]["code"].as_str().unwrap().to_owned();
        let call = format!("/cabinet/calls/{}", answer.number());
        let cause = eventually("the refused call has a page", async || {
            let page = anna.get(world, &call).await;
            (page.status == StatusCode::OK).then(|| page.text())
        })
        .await;
        (code, cause)
    };
    let limit = |name: &'static str, value: &'static str| {
        [("do", "limits"), ("name", "play"), (name, value)]
    };
    for (pairs, expected, says) in [
        (
            limit("models", "messages"),
            "model_not_allowed",
            "does not allow this model",
        ),
        (
            limit("ceiling_rub", "0,000001"),
            "ceiling_used_up",
            "spending limit was used up",
        ),
        // The ceiling leaves less money than the highest price of the call.
        (
            limit("ceiling_rub", "0,01"),
            "insufficient_balance",
            "could cost more",
        ),
    ] {
        anna.done(world, &path, &pairs).await;
        let (code, cause) = refused(&mut anna, &body).await;
        assert_eq!(code, expected, "{cause}");
        assert!(cause.contains(says), "{code}: {cause}");
    }
    anna.done(world, &path, &limit("ceiling_rub", "")).await;
    let unknown = with(chat_body("x"), json!({ "model": EVIL }));
    let (code, _) = refused(&mut anna, &unknown).await;
    assert_eq!(code, "model_not_found");
    let messages = anna.page(world, "/cabinet/playground").await;
    assert!(messages.contains("value=\"chat\"") && messages.contains("value=\"messages\""));

    let status = async |status: &str| {
        let body = json!({ "status": status });
        let path = "/admin/v1/accounts/acme";
        world.admin_patch(path, body).await.expect(200);
    };
    status("suspended").await;
    let (code, _) = refused(&mut anna, &body).await;
    assert_eq!(code, "account_suspended");
    status("active").await;

    anna.done(world, &path, &[("do", "disable")]).await;
    let disabled = play(&anna, world, CALL, &body).await;
    assert_eq!(disabled.json()["error"]["code"], "key_disabled");
    // If the member's key was deleted, the next call creates a new one.
    anna.done(world, &path, &[("do", "delete"), ("sure", "1")])
        .await;
    assert_eq!(play(&anna, world, CALL, &body).await.status, 200);
    assert_eq!(keys_of_members(world).await.len(), 2);

    // The cabinet shows no page for a call of another account.
    let theirs = world.key_with("beta", "777", json!({})).await;
    let foreign = world.chat(&theirs, &unknown).await.number();
    anna.get(world, &format!("/cabinet/calls/{foreign}"))
        .await
        .expect(404);
}

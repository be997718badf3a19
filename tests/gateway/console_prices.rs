//! Tests of tariff versions over time: the ledger records them, and the console shows what each version has changed.

use tollgate_layers::money::MicroRub;

use crate::{console::Browser, ledger::folder, prelude::*};

async fn versions(world: &World) -> Vec<u64> {
    let answer = world.admin_get("/admin/v1/tariffs").await;
    let tariffs = answer.json()["tariffs"].as_array().unwrap().clone();
    let versions = tariffs.iter().map(|it| it["version"].as_u64().unwrap());
    versions.collect()
}

/// Makes a call with a new key of the account. Returns the call's charge.
async fn charged_for_a_call(world: &World, account: &str) -> MicroRub {
    let key = world.key_with(account, "1000", json!({})).await;
    let body = Op::Chat.body("x");
    let answer = world.ask(Op::Chat.request(world, &key, &body)).await;
    let receipt = world.receipt(&answer.number()).await;
    receipt["charged_rub"].as_str().unwrap().parse().unwrap()
}

/// Starts two gateways on one ledger, one after the other. The second gateway has higher prices.
async fn prices_are_shown_by_version(ledger: &str) {
    let first = Setup::default().ledger(ledger).start().await;
    assert_eq!(versions(&first).await, [1]);
    let me = Browser::admin(&first).await;
    let html = me.page(&first, "/console/prices").await;
    has(&html, "Tariff No. 1, since");
    has(&html, "earlier versions are unknown");
    assert!(!html.contains("<ins>"), "{html}");
    let at_one = charged_for_a_call(&first, "one").await;
    first.gateway.drain().await.unwrap();

    let dearer = || {
        Setup::default().ledger(ledger).edit(
            "sell_rate_multiplier = \"1\"",
            "sell_rate_multiplier = \"1.30\"",
        )
    };
    let second = dearer().start().await;
    assert_eq!(versions(&second).await, [2, 1]);
    let all = second
        .admin(Method::GET, "/admin/v1/tariffs", None)
        .await
        .json();
    assert_eq!(all["tariffs"][0]["multiplier"], "1.3");
    assert_eq!(
        all["tariffs"][0]["models"]["chat"],
        all["tariffs"][1]["models"]["chat"]
    );
    assert!(all["tariffs"][1]["models"]["chat"]["input"].is_string());
    let me = Browser::admin(&second).await;
    let html = me.page(&second, "/console/prices").await;
    assert!(html.contains("multiplier 1.3 (previously 1)"), "{html}");
    let at_more = charged_for_a_call(&second, "more").await;
    assert!(at_more > at_one, "{at_more:?} {at_one:?}");
    // The page computes what each call would cost at another multiplier. The computation starts from the multiplier at
    // which the call was charged.
    let html = me
        .page(&second, "/console/prices?days=2&multiplier=2.6")
        .await;
    let then = MicroRub::new((at_one.micro() * 26 + at_more.micro() * 20) / 10);
    for cell in [
        format!(
            "<td data-label=\"Charged, ₽\">{}</td>",
            MicroRub::new(at_one.micro() + at_more.micro())
        ),
        format!("<td data-label=\"Charged at multiplier 2.6, ₽\">{then}</td>"),
    ] {
        assert!(html.contains(&cell), "{cell}: {html}");
    }
    for beyond in ["0", "-1", "1000.5", "1e9", "two"] {
        let path = format!("/console/prices?multiplier={beyond}");
        let answer = me.get(&second, &path).await;
        assert_eq!(answer.status, 422, "{beyond}");
        let html = answer.text();
        has(&html, "Multiplier: enter a number above 0 and at most 1000");
    }
    second.gateway.drain().await.unwrap();

    // A start with unchanged prices does not record a new tariff version.
    let third = dearer().start().await;
    assert_eq!(versions(&third).await, [2, 1]);
    let audited = third
        .admin(Method::POST, "/admin/v1/audit", None)
        .await
        .json();
    assert_eq!(audited["breaches"], json!([]));
}

#[tokio::test]
async fn console_shows_tariff_versions_stored_in_sqlite() {
    let folder = folder();
    let url = format!("sqlite:{}", folder.path().join("books.db").display());
    prices_are_shown_by_version(&url).await;
}

#[tokio::test]
async fn console_shows_tariff_versions_stored_in_redis() {
    let server = RedisServer::start().await;
    prices_are_shown_by_version(&server.url()).await;
}

//! Tests of operators' invitations, of attacks on them, and of the console pages with payments of all accounts.

use std::fs;

use futures_util::future::join_all;

use crate::{
    console::{Browser, PASSWORD, named, operators_file_section},
    ledger::folder,
    prelude::*,
};

/// Invites an operator. Returns the token of the invitation link.
async fn invited(world: &World, me: &Browser, name: &str, role: &str) -> String {
    let form = [("do", "invite"), ("name", name), ("role", role)];
    let answer = me
        .post(world, "/console/operators", &form)
        .await
        .expect(200);
    let html = answer.text();
    let (_, after) = html.split_once("/console/invitation?token=").unwrap();
    after.split('<').next().unwrap().trim().to_owned()
}

fn accept(token: &str) -> [(&str, &str); 3] {
    // The new operator gets the role of the invitation, whatever role the form contains.
    [("token", token), ("password", PASSWORD), ("role", "admin")]
}

const PAGE: &str = "/console/invitation";

#[tokio::test]
async fn operator_invitation_works_once_and_creates_one_operator_with_its_role() {
    let stored = folder();
    let file = stored.path().join("operators.toml");
    let world = Setup::default()
        .edit("[admin]\n", &operators_file_section(&file))
        .start()
        .await;
    let me = Browser::admin(&world).await;
    let token = invited(&world, &me, "anna", "support").await;
    assert!(!fs::read_to_string(&file).unwrap().contains(&token));
    let again = me.page(&world, "/console/operators").await;
    assert!(again.contains("anna") && !again.contains(&token), "{again}");
    let nobody = Browser::default();
    let shown = nobody.get(&world, &format!("{PAGE}?token={token}")).await;
    assert_eq!(
        shown.status, 200,
        "opening the link uses nothing up: {shown:?}"
    );
    let short = [("token", &*token), ("password", "short")];
    assert_eq!(
        nobody.post_with(&world, PAGE, &[], &short).await.status,
        422
    );
    let foreign = [("origin", "https://evil.example")];
    assert_eq!(
        nobody
            .post_with(&world, PAGE, &foreign, &accept(&token))
            .await
            .status,
        403
    );
    // The gateway checks at most two passwords at the same time. Further requests are refused and must be sent again.
    let form = accept(&token);
    let tries = (0..8).map(|_| nobody.post_with(&world, PAGE, &[], &form));
    let statuses: Vec<u16> = join_all(tries)
        .await
        .iter()
        .map(|it| it.status.as_u16())
        .collect();
    assert_eq!(
        statuses.iter().filter(|it| **it == 303).count(),
        1,
        "{statuses:?}"
    );
    assert!(
        statuses.iter().all(|it| [303, 404, 409, 429].contains(it)),
        "{statuses:?}"
    );
    let anna = Browser::signed_in(&world, "anna", PASSWORD).await;
    let html = anna.page(&world, "/console/operators").await;
    has(&html, "<small>support</small>");
    assert!(!html.contains("value=\"invite\""), "{html}");
    anna.post(
        &world,
        "/console/operators",
        &[("do", "invite"), ("name", "x"), ("role", "admin")],
    )
    .await
    .expect(403);
    let removed = [("do", "remove-operator"), ("name", "anna")];
    assert_eq!(
        me.post(&world, "/console/operators", &removed).await.status,
        422,
        "not confirmed"
    );
    me.done(
        &world,
        "/console/operators",
        &[&removed[..], &[("sure", "1")]].concat(),
    )
    .await;
    assert_eq!(anna.get(&world, "/").await.status, 303, "signed out");
}

#[tokio::test]
async fn operator_invitation_token_cannot_be_guessed_or_used_after_expiry() {
    let stored = folder();
    let file = stored.path().join("operators.toml");
    named(&file, "boris", "admin");
    let world = Setup::default()
        .edit("[admin]\n", &operators_file_section(&file))
        .start()
        .await;
    let me = Browser::signed_in(&world, "boris", PASSWORD).await;
    for name in ["boris", "admin", "a b", "<b>", "../x"] {
        let form = [("do", "invite"), ("name", name), ("role", "read")];
        let refused = me.post(&world, "/console/operators", &form).await;
        assert!(refused.status.is_client_error(), "{name}: {refused:?}");
        assert!(!refused.text().contains("<b>\""), "{refused:?}");
    }
    let old = invited(&world, &me, "anna", "admin").await;
    let new = invited(&world, &me, "anna", "read").await;
    let nobody = Browser::default();
    let text = fs::read_to_string(&file).unwrap();
    let (_, digest) = text.split_once("token = \"").unwrap();
    let digest = digest.split('"').next().unwrap().to_owned();
    for token in [&*old, "", &digest, &new[..63], "0", "1"] {
        let answer = nobody.post_with(&world, PAGE, &[], &accept(token)).await;
        assert_eq!(answer.status, 404, "{token}: {answer:?}");
    }
    let late = nobody.post_with(&world, PAGE, &[], &accept(&new)).await;
    assert_eq!(
        late.status, 429,
        "guesses of an address are counted: {late:?}"
    );
    assert!(
        !fs::read_to_string(&file)
            .unwrap()
            .contains("name = \"anna\"\nrole = \"read\"\npassword")
    );
}

#[tokio::test]
async fn console_finds_payments_of_all_accounts_and_its_monthly_sums_equal_the_statements() {
    let world = World::start().await;
    for (account, name) in [("acme", "<script>alert(1)</script>"), ("beta", "Beta")] {
        let body = json!({ "id": account, "name": name });
        world.admin_post("/admin/v1/accounts", body).await;
    }
    let me = Browser::admin(&world).await;
    let pay = [
        ("do", "topup"),
        ("id", "invoice 17/a"),
        ("amount_rub", "1 000,50"),
    ];
    me.done(&world, "/console/accounts/beta", &pay).await;
    let fee = [
        ("do", "adjust"),
        ("id", "fee"),
        ("amount_rub", "-0,50"),
        ("reason", "a fee"),
    ];
    me.done(&world, "/console/accounts/beta", &fee).await;
    let formula = [
        ("do", "adjust"),
        ("id", "f"),
        ("amount_rub", "1"),
        ("reason", "=1+1"),
    ];
    me.done(&world, "/console/accounts/acme", &formula).await;
    let found = world
        .admin_get("/admin/v1/entries/invoice%2017%2Fa")
        .await
        .json();
    assert_eq!(
        found,
        json!({ "entries": [{ "account": "beta", "id": "invoice 17/a", "amount_rub": "1000.50", "reason": null }] })
    );
    let html = me.page(&world, "/console/payments?id=invoice+17%2Fa").await;
    has(&html, "invoice 17/a");
    has(&html, "/console/accounts/beta");
    let html = me.page(&world, "/console/payments?id=invoice+18").await;
    has(&html, "No account has a payment or correction with this ID");
    let html = me.page(&world, "/console/payments").await;
    has(&html, "a fee");
    assert!(!html.contains("<script>alert"), "{html}");
    let month = html.split("/statements/").nth(1).unwrap()[..7].to_owned();
    let all = world
        .admin_get(&format!("/admin/v1/statements/{month}"))
        .await
        .json();
    let beta = &all["accounts"][1];
    assert_eq!(beta["payments_rub"], "1000.50", "{all}");
    assert_eq!(beta["corrections_rub"], "-0.50", "{all}");
    assert_eq!(beta["closing_rub"], "1000.00", "{all}");
    let next = format!("/admin/v1/statements/{month}?after=acme");
    let next = world.admin_get(&next).await.json();
    assert_eq!(next["accounts"].as_array().unwrap().len(), 1);
    let first = format!("/admin/v1/statements/{month}?limit=1");
    let first = world.admin_get(&first).await.json();
    assert_eq!(first["accounts"].as_array().unwrap().len(), 1);
    assert_eq!(first["next_after"], "acme");
    let none = format!("/admin/v1/statements/{month}?limit=0");
    let none = world.admin_get(&none).await;
    assert!(none.status == 400, "{none:?}");
    assert!(
        none.text()
            .contains("limit: must be a whole number from 1 to 500"),
        "{none:?}"
    );
    let part = me
        .page(
            &world,
            &format!("/console/payments?month={month}&after=acme"),
        )
        .await;
    has(&part, "The CSV file has the payments of all accounts");
    assert!(!html.contains("The CSV file has"), "{part}");
    let csv = me
        .get(&world, &format!("/console/payments.csv?month={month}"))
        .await
        .text();
    assert!(csv.contains(",beta,invoice 17/a,1000.50,\r\n"), "{csv}");
    assert!(csv.contains(",acme,f,1.00,'=1+1\r\n"), "{csv}");
    for bad in ["2026-13", "x"] {
        let path = format!("/admin/v1/statements/{bad}");
        assert_eq!(world.admin_get(&path).await.status, 400);
    }
}

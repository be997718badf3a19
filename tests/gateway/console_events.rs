//! Tests of the console page with events. It shows the newest events first, the receivers and the dead letters. Events
//! and dead letters can be sent again.

use tollgate_ledger::contract::Documents;

use crate::{
    console::{Browser, PASSWORD, named, operators_file_section},
    ledger::folder,
    prelude::*,
    webhooks::{Hook, Say},
};

const PAGE: &str = "/console/events";

/// Starts a gateway with 62 events of two accounts. The first event is a dead letter of the receiver `crm`.
async fn world(hook: &Hook, file: &std::path::Path, ledger: Option<&str>) -> World {
    let sections = format!("{}[ledger]", hook.section("crm", ""));
    let mut setup = Setup::default()
        .edit("[ledger]", &sections)
        .edit("[admin]\n", &operators_file_section(file));
    if let Some(url) = ledger {
        setup = setup.ledger(url);
    }
    let world = setup.start().await;
    for account in ["acme", "beta"] {
        world.key_with(account, "10", json!({})).await;
    }
    for id in 0..60 {
        let body = json!({ "id": format!("p{id}"), "amount_rub": "1" });
        let path = "/admin/v1/accounts/acme/topups";
        world.admin_post(path, body).await;
    }
    hook.has(62).await;
    let events = world.admin_get("/admin/v1/events?limit=1").await.json();
    let letter = json!({ "event": events["events"][0], "dead_ms": 1_795_000_000_000_u64, "error": "500 <b>Oops</b>" });
    let name = format!("dead/crm/{:020}", 1);
    let store = world.gateway.store();
    store.write_value(&name, 0, &letter).await.unwrap();
    world
}

/// Returns the numbers of the events on a page.
fn numbers(html: &str) -> Vec<u64> {
    let table = html.split("id=\"receivers-title\"").next().unwrap();
    let rows = table.split("<tr><th scope=\"row\">").skip(1);
    rows.map(|row| row.split('<').next().unwrap().parse().unwrap())
        .collect()
}

async fn dead(world: &World) -> u64 {
    let all = world.admin_get("/admin/v1/receivers").await.json();
    all["receivers"][0]["dead"].as_u64().unwrap()
}

async fn events_are_shown_and_sent_again(ledger: Option<&str>) {
    let folder = folder();
    let file = folder.path().join("operators.toml");
    named(&file, "reader", "read");
    named(&file, "helper", "support");
    let hook = Hook::start().await;
    let world = world(&hook, &file, ledger).await;
    let me = Browser::signed_in(&world, "helper", PASSWORD).await;

    // The pages list each event once, from the newest to the first.
    let first = me.page(&world, PAGE).await;
    assert_eq!(numbers(&first), (13..=62).rev().collect::<Vec<_>>());
    assert!(first.contains("entry p59") && first.contains("/console/accounts/acme"));
    let older = first
        .split("<a href=\"")
        .find(|link| link.contains("before="));
    let older = older
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .replace("&#38;", "&");
    let rest = me.page(&world, &older).await;
    assert_eq!(numbers(&rest), (1..=12).rev().collect::<Vec<_>>());
    assert!(!rest.contains("before="), "{rest}");
    let of_beta = me
        .page(&world, &format!("{PAGE}?account=beta&kind=top_up"))
        .await;
    // The order in which events of different accounts are numbered is undefined. So the test reads the number of beta's
    // event from the API.
    let reported = world
        .admin_get("/admin/v1/events?account=beta")
        .await
        .json();
    let reported = reported["events"][0]["number"].as_u64().unwrap();
    assert_eq!(numbers(&of_beta), [reported]);
    let none = me.page(&world, &format!("{PAGE}?kind=debt")).await;
    assert!(none.contains("No events match"), "{none}");
    let wrong = me
        .get(&world, &format!("{PAGE}?account=a%2Fb"))
        .await
        .expect(400);
    assert!(wrong.text().contains("account: "), "{}", wrong.text());

    // The page shows the receiver and its dead letter. The error text of the receiver is escaped.
    for fact in [
        "<h3>crm</h3>",
        "webhook to 127.0.0.1",
        "500 &#60;b&#62;Oops&#60;/b&#62;",
    ] {
        assert!(first.contains(fact), "{fact}: {first}");
    }
    let replay = [("do", "replay"), ("receiver", "crm"), ("number", "1")];
    hook.script(|_| Say::Status(500, ""));
    let answer = me.post(&world, PAGE, &replay).await.expect(502);
    has(&answer.text(), "did not accept event 1");
    assert_eq!(dead(&world).await, 1);
    hook.script(|_| Say::Status(204, ""));
    let forged = [
        ("csrf", "0"),
        ("do", "replay"),
        ("receiver", "crm"),
        ("number", "1"),
    ];
    me.post_with(&world, PAGE, &[], &forged).await.expect(403);
    assert_eq!(dead(&world).await, 1);
    let done = me.done(&world, PAGE, &replay).await;
    has(&done, "was sent again, and the receiver accepted it");
    assert!(!done.contains("Send again"), "no letter is left: {done}");
    assert_eq!(dead(&world).await, 0);
    let posts = hook.posts();
    let [.., again] = &posts[..] else { panic!() };
    assert_eq!(again.number(), 1);
    for (number, status, says) in [
        ("9000", 404, "event 9000 is not stored any more"),
        ("x", 400, "number: "),
    ] {
        let replay = [("do", "replay"), ("receiver", "crm"), ("number", number)];
        let answer = me.post(&world, PAGE, &replay).await;
        assert_eq!(answer.status, status);
        assert!(answer.text().contains(says), "{}", answer.text());
    }

    // An operator with read access sees no button. If the operator sends the request anyway, the API refuses it.
    let reader = Browser::signed_in(&world, "reader", PASSWORD).await;
    let html = reader.page(&world, PAGE).await;
    assert!(!html.contains("Send again") && !html.contains("Stop crm"));
    let refused = reader.post(&world, PAGE, &replay).await.expect(403);
    assert!(refused.text().contains("the role read may not"));
    let stop = [("do", "stop"), ("receiver", "crm")];
    assert_eq!(me.post(&world, PAGE, &stop).await.status, 403);
    let admin = Browser::admin(&world).await;
    let stopped = admin.done(&world, PAGE, &stop).await;
    has(&stopped, "<strong class=\"bad\">stopped</strong>");
    let resume = [("do", "resume"), ("receiver", "crm")];
    admin.done(&world, PAGE, &resume).await;
    let state: Value = eventually("it is sent events again", async || {
        let all = world.admin_get("/admin/v1/receivers").await.json();
        (all["receivers"][0]["status"] == "active").then_some(all)
    })
    .await;
    assert_eq!(state["receivers"][0]["dead"], 0);
}

#[tokio::test]
async fn console_shows_and_replays_events_of_a_memory_ledger() {
    events_are_shown_and_sent_again(None).await;
}

#[tokio::test]
async fn console_shows_and_replays_events_of_a_redis_ledger() {
    let server = RedisServer::start().await;
    events_are_shown_and_sent_again(Some(&server.url())).await;
}

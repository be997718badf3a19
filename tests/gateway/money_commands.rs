//! Tests of the commands for groups of keys, owner keys, alerts, events and receivers, as an operator runs them: their
//! output, exit codes and effects.

use std::sync::atomic::{AtomicU16, Ordering};

use tollgate_ledger::{
    contract::{Documents, EventStore, OnceEvent},
    happening::Happening,
};

use crate::{
    prelude::*,
    usage_report::{complained, refused, tollgate, typed},
    webhooks::{Hook, Say},
};

/// Runs a command with `--json`. Returns the parsed output.
async fn answered(world: &World, line: &str) -> Value {
    serde_json::from_str(&typed(world, &format!("{line} --json"), 0).await).unwrap()
}

/// Returns the value that follows a label in the output.
fn fact(shown: &str, label: &str) -> String {
    let value = shown.lines().find_map(|line| {
        let value = line.strip_prefix(label)?;
        value.starts_with("  ").then(|| value.trim().to_owned())
    });
    value.unwrap_or_else(|| panic!("no {label} in {shown}"))
}

fn rows(table: &str) -> Vec<Vec<&str>> {
    let rows = table.lines().skip(1);
    rows.map(|row| row.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn groups_can_be_managed_and_given_keys_by_command() {
    let (world, key) = World::start_with_key().await;
    let none = typed(&world, "group list acme", 0).await;
    assert_eq!(
        none,
        "no groups yet; create one with: tollgate group create acme <id>\n"
    );
    let made = "group create acme support --name Support --ceiling-month 5000 --ceiling-day 300";
    let made = typed(&world, made, 0).await;
    for (label, value) in [
        ("id", "support"),
        ("name", "Support"),
        ("status", "active"),
        ("ceiling", "none"),
        ("monthly ceiling", "5000.00 ₽"),
        ("daily ceiling", "300.00 ₽"),
        ("spent today", "0.00 ₽"),
    ] {
        assert_eq!(fact(&made, label), value, "{made}");
    }
    // A second `group create` of the same group with other values is refused. So is the creation of a group in an
    // unknown account.
    let again = "group create acme support --name Other";
    let text = refused(&world, again, 1).await;
    assert!(text.contains("exists already"), "{text}");
    let text = refused(&world, "group create nobody support", 1).await;
    assert!(text.contains("no account nobody"), "{text}");
    let text = refused(&world, "group create acme a/b", 64).await;
    assert!(text.contains("a/b"), "{text}");

    let changed = "group update acme support --ceiling 9000 --no-ceiling-month";
    let changed = typed(&world, changed, 0).await;
    for (label, value) in [
        ("name", "Support"),
        ("ceiling", "9000.00 ₽"),
        ("monthly ceiling", "none"),
        ("daily ceiling", "300.00 ₽"),
    ] {
        assert_eq!(fact(&changed, label), value, "{changed}");
    }
    let text = refused(&world, "group update acme support", 64).await;
    has(&text, "nothing to change in group support");
    let text = refused(&world, "group update acme sales --ceiling 1", 1).await;
    assert!(text.contains("sales"), "{text}");

    let set = format!(
        "key set {} --group support --concurrency 3 --idempotency",
        key.id
    );
    let set = typed(&world, &set, 0).await;
    for (label, value) in [
        ("group", "support"),
        ("calls at once", "3"),
        ("idempotency", "true"),
    ] {
        assert_eq!(fact(&set, label), value, "{set}");
    }
    let listed = typed(&world, "key list acme", 0).await;
    assert!(rows(&listed)[0].contains(&"support"), "{listed}");
    let text = refused(&world, &format!("key set {} --group sales", key.id), 1).await;
    assert!(text.contains("no such group"), "{text}");
    let text = refused(&world, &format!("key set {} --concurrency 0", key.id), 64).await;
    assert!(text.contains("--concurrency"), "{text}");
    let text = refused(&world, "group remove acme support", 1).await;
    assert!(text.contains("keys that are not deleted"), "{text}");

    let set = format!(
        "key set {} --no-group --any-concurrency --no-idempotency",
        key.id
    );
    let set = typed(&world, &set, 0).await;
    for (label, value) in [
        ("group", "none"),
        ("calls at once", "no limit"),
        ("idempotency", "false"),
    ] {
        assert_eq!(fact(&set, label), value, "{set}");
    }
    let removed = typed(&world, "group remove acme support", 0).await;
    assert_eq!(fact(&removed, "status"), "removed");
    let listed = answered(&world, "group list acme").await;
    assert_eq!(listed["groups"][0]["status"], "removed", "{listed}");
    let text = refused(&world, &format!("key set {} --group support", key.id), 1).await;
    assert!(text.contains("no such group"), "{text}");
}

#[tokio::test]
async fn owner_key_command_creates_a_key_that_calls_no_models() {
    let world = World::start().await;
    world.key().await;
    let made = typed(&world, "key create acme --owner --name boss", 0).await;
    let secret = fact(&made, "key");
    let id = fact(&made, "id");
    let shown = answered(&world, &format!("key show {id}")).await;
    assert_eq!(shown["kind"], "owner");
    assert_eq!(shown["name"], "boss");
    let key = crate::harness::Key {
        account: "acme".into(),
        id,
        secret,
    };
    let answer = world
        .chat(&key, &crate::harness::chat_body("x"))
        .await
        .expect(403);
    assert_eq!(answer.json()["error"]["code"], "owner_key");
    let text = refused(&world, "key create acme --owner --model chat", 64).await;
    assert!(text.contains("--model"), "{text}");
}

#[tokio::test]
async fn alert_levels_can_be_set_shown_and_removed_by_command() {
    let (world, key) = World::start_with_key().await;
    let of_account = async |line: &str, shown: &str| {
        let returned = typed(&world, &format!("account alert acme{line}"), 0).await;
        assert_eq!(returned, shown, "{line}");
    };
    of_account("", "account acme: no events\n").await;
    of_account(
        " --at 200 --at 1000",
        "account acme: events at 1000.00 ₽, 200.00 ₽\n",
    )
    .await;
    let id = &key.id;
    let of_key = typed(&world, &format!("account alert acme --key {id} --at 50"), 0).await;
    assert_eq!(of_key, format!("key {id}: events at 50.00 ₽\n"));
    let both =
        format!("account acme: events at 1000.00 ₽, 200.00 ₽\nkey {id}: events at 50.00 ₽\n");
    of_account("", &both).await;
    of_account(
        " --none",
        &format!("account acme: no events\nkey {id}: events at 50.00 ₽\n"),
    )
    .await;

    world.key_with("beta", "1", json!({})).await;
    let text = refused(&world, &format!("account alert beta --key {id} --at 5"), 1).await;
    assert_eq!(
        text,
        format!("error: key {id} does not belong to account beta\n")
    );
    let text = refused(&world, "account alert nobody --at 5", 1).await;
    assert!(text.contains("no account nobody"), "{text}");
    let text = refused(&world, "account alert acme --at 0", 64).await;
    assert!(text.contains("--at"), "{text}");
    let text = refused(&world, "account alert acme --at 5 --none", 64).await;
    assert!(text.contains("--none"), "{text}");
}

#[tokio::test]
async fn events_command_filters_by_number_and_account_and_kind() {
    let world = World::start().await;
    for account in ["acme", "beta"] {
        world.key_with(account, "10", json!({})).await;
    }
    typed(&world, "topup acme 5 --id second", 0).await;
    let listed = typed(&world, "event list", 0).await;
    let lines = |text: &str| -> Vec<(String, String)> {
        let lines = text.lines().map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[2], "top_up", "{line}");
            (words[0].to_owned(), words[3].to_owned())
        });
        lines.collect()
    };
    let of = |place: &str, account: &str| (place.to_owned(), account.to_owned());
    assert_eq!(
        lines(&listed),
        [of("1", "acme"), of("2", "beta"), of("3", "acme")]
    );
    assert!(
        listed.ends_with("  amount_rub=5.00  balance_rub=15.00  entry=second\n"),
        "{listed}"
    );
    for (line, expected) in [
        ("event list --after 2", vec![of("3", "acme")]),
        ("event list --account beta", vec![of("2", "beta")]),
        ("event list --limit 1 --after 0", vec![of("1", "acme")]),
        ("event list --kind correction,debt", vec![]),
    ] {
        assert_eq!(lines(&typed(&world, line, 0).await), expected, "{line}");
    }
    let answer = answered(&world, "event list --after 0").await;
    assert_eq!(answer["last"], 3);
    assert_eq!(answer["events"][2]["entry"], "second");
    // The filter also finds events that are not on the first page.
    let store = world.gateway.store();
    for number in 1..=1200 {
        let event = OnceEvent {
            once: number.to_string(),
            account: None,
            key: None,
            what: Happening::RateStale { since_ms: number },
        };
        assert!(store.emit_once(&event).await.unwrap());
    }
    for (line, expected) in [
        ("event list --account beta", vec![of("2", "beta")]),
        (
            "event list --kind top_up --limit 2",
            vec![of("2", "beta"), of("3", "acme")],
        ),
    ] {
        assert_eq!(lines(&typed(&world, line, 0).await), expected, "{line}");
    }
    assert_eq!(typed(&world, "event list", 0).await.lines().count(), 50);
    let text = refused(&world, "event list --account nobody", 1).await;
    assert!(text.contains("no account nobody"), "{text}");
    let text = refused(&world, "event list --kind low", 1).await;
    assert!(text.contains("kind: must be one of balance_low"), "{text}");
    refused(&world, "event list --limit 0", 64).await;
}

/// Starts a gateway with a receiver that responds with this status. The test may change the status.
async fn with_receiver() -> (Hook, Arc<AtomicU16>, World) {
    let hook = Hook::start().await;
    let status = Arc::new(AtomicU16::new(200));
    let says = Arc::clone(&status);
    hook.script(move |_| Say::Status(says.load(Ordering::SeqCst), ""));
    let section = hook.section("crm", "");
    let setup = Setup::default().edit("[ledger]", &format!("{section}[ledger]"));
    (hook, status, setup.start().await)
}

#[tokio::test]
async fn command_shows_stops_and_resumes_an_event_receiver_and_sends_it_events_again() {
    let (hook, status, world) = with_receiver().await;
    world.key().await;
    hook.has(1).await;
    eventually("it is noted", async || {
        let receivers = answered(&world, "event receivers").await;
        (receivers["receivers"][0]["after"] == 1).then_some(())
    })
    .await;
    let shown = typed(&world, "event receivers", 0).await;
    assert!(shown.starts_with("RECEIVER"), "{shown}");
    let row = rows(&shown)[0].clone();
    assert_eq!(
        row[..5],
        ["crm", "webhook", "127.0.0.1", "active", "1"],
        "{shown}"
    );

    let stopped = typed(&world, "event stop crm", 0).await;
    assert_eq!(rows(&stopped)[0][3], "stopped", "{stopped}");
    typed(&world, "topup acme 5 --id second", 0).await;
    let resumed = typed(&world, "event resume crm", 0).await;
    assert_eq!(rows(&resumed)[0][3], "active", "{resumed}");
    hook.has(2).await;
    let sent = |from: usize| -> Vec<u64> {
        let posts = hook.posts();
        posts[from..]
            .iter()
            .map(crate::webhooks::Post::number)
            .collect()
    };
    assert_eq!(sent(0), [1, 2]);

    // `event replay` sends even events that the receiver has already accepted, in the order of its arguments.
    let again = typed(&world, "event replay crm 2 1", 0).await;
    assert_eq!(
        again,
        "the receiver accepted event 2\nthe receiver accepted event 1\n"
    );
    assert_eq!(sent(2), [2, 1]);
    status.store(500, Ordering::SeqCst);
    let args = ["event", "replay", "crm", "1", "2"];
    let text = complained(&tollgate(&world, &args, "").await, 1);
    assert!(text.starts_with("error: event 1: answered 500"), "{text}");
    assert_eq!(sent(4), [1], "the first that is not taken is the last");

    assert_eq!(
        typed(&world, "event replay crm --dead", 0).await,
        "no dead letters, so nothing was sent\n"
    );
    assert_eq!(answered(&world, "event dead crm").await["dead"], json!([]));
    // This stores a dead letter, as the gateway does after it has retried for days.
    let events = answered(&world, "event list --after 0").await;
    let letter = json!({ "event": events["events"][1], "dead_ms": 1_795_000_000_000_u64, "error": "answered 500" });
    let name = format!("dead/crm/{:020}", 2);
    let store = world.gateway.store();
    store.write_value(&name, 0, &letter).await.unwrap();
    let shown = typed(&world, "event dead crm", 0).await;
    let row = rows(&shown)[0].clone();
    assert_eq!((row[0], row[2], row[3]), ("2", "top_up", "acme"), "{shown}");
    assert!(shown.contains("answered 500"), "{shown}");
    complained(
        &tollgate(&world, &["event", "replay", "crm", "--dead"], "").await,
        1,
    );
    status.store(204, Ordering::SeqCst);
    let sent = typed(&world, "event replay crm --dead", 0).await;
    assert_eq!(sent, "the receiver accepted event 2\n");
    assert_eq!(answered(&world, "event dead crm").await["dead"], json!([]));
    for line in [
        "dead nobody",
        "stop nobody",
        "resume nobody",
        "replay nobody 1",
    ] {
        let text = refused(&world, &format!("event {line}"), 1).await;
        assert!(text.contains("no such receiver"), "{text}");
    }
    let text = refused(&world, "event replay crm 99", 1).await;
    assert!(text.contains("99"), "{text}");
    refused(&world, "event replay crm", 64).await;
    refused(&world, "event replay crm 1 --dead", 64).await;
}

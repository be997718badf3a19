//! Tests that this version reads and continues ledgers, outboxes and exports that released versions have written.
//!
//! `fixtures/released/record` writes one folder for each version, by running the binary of that version.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{ledger::folder, prelude::*, support::process::TOLLGATE, usage_report::reported};

/// Returns the folders of the released versions.
fn released() -> Vec<PathBuf> {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/gateway/fixtures/released"
    );
    let entries = fs::read_dir(folder).unwrap();
    let folders: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    assert!(!folders.is_empty());
    folders
}

fn text(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

/// Returns the lines of an export about all accounts except `late`. The spending of a day or a month is left out,
/// because it depends on the day of the export.
fn lasting(export: &str) -> Vec<Value> {
    let lines = export
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let is_lasting = |line: &Value| match line["kind"].as_str().unwrap() {
        "header" | "end" => false,
        "account" => line["id"] != "late",
        _ => line["account"] != "late",
    };
    let lines = lines.filter(is_lasting).map(|line: Value| {
        if line["kind"] != "account" {
            return line;
        }
        let some = |of: &Value, names: &[&str]| -> Value {
            names.iter().map(|name| (*name, of[*name].clone())).collect()
        };
        let keys = line["keys"].as_array().unwrap().iter();
        let of_key = ["id", "name", "status", "models", "ceiling_rub", "spent_rub"];
        let keys: Vec<Value> = keys.map(|key| some(key, &of_key)).collect();
        let sums = ["balance_rub", "spent_rub", "loss_rub", "entered_rub"];
        json!({
            "account": some(&line, &["id", "name", "status"]), "sums": some(&line, &sums), "keys": keys,
        })
    });
    lines.collect()
}

async fn is_sound(world: &World) {
    let path = "/admin/v1/audit";
    let audit = world.admin(Method::POST, path, None).await.json();
    assert_eq!(audit["breaches"], json!([]), "{audit}");
}

/// Checks that a gateway has the books of this export, and serves calls with the key that the released version has
/// created.
async fn continues(world: &World, folder: &Path, store: &str) {
    is_sound(world).await;
    let before = text(folder, &format!("{store}.jsonl"));
    let export = world.admin_get("/admin/v1/export").await;
    assert_eq!(lasting(&export.text()), lasting(&before));
    let events = world.admin_get("/admin/v1/events").await;
    for kind in ["top_up", "correction", "balance_low"] {
        assert!(events.text().contains(kind), "{kind}: {events:?}");
    }

    let keys: Value = serde_json::from_str(&text(folder, "keys.json")).unwrap();
    let key = Key {
        secret: keys[store].as_str().unwrap().to_owned(),
        id: String::new(),
        account: "acme".to_owned(),
    };
    let answer = world.chat(&key, &chat_body("x")).await.expect(200);
    assert_eq!(world.receipt(&answer.number()).await["group"], "team");
    let balance = world.settled(&key).await["balance_rub"].clone();
    let path = "/admin/v1/accounts/acme/topups";
    let again = json!({ "id": "p1", "amount_rub": "1000" });
    let again = world.admin_post(path, again).await;
    assert!(again.status.is_success(), "{again:?}");
    assert_eq!(world.account(&key).await["balance_rub"], balance);
    is_sound(world).await;
}

#[tokio::test]
async fn gateway_continues_a_ledger_file_of_a_released_version() {
    for version in released() {
        let folder = folder();
        let file = folder.path().join("ledger.db");
        fs::copy(version.join("ledger.sqlite"), &file).unwrap();
        let url = format!("sqlite:{}", file.display());
        let world = Setup::default().ledger(&url).start().await;
        continues(&world, &version, "file").await;
        world.gateway.drain().await.unwrap();
    }
}

/// A settlement in the outbox is booked, but a settlement whose record is older than a day is refused.
#[tokio::test]
async fn gateway_continues_a_redis_ledger_and_an_outbox_of_a_released_version() {
    for version in released() {
        let server = RedisServer::start().await;
        for line in text(&version, "redis.txt").lines() {
            let words: Vec<String> = serde_json::from_str(line).unwrap();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            server.ask::<redis::Value>(&words).await.unwrap();
        }
        let folder = folder();
        for end in ["", "-wal"] {
            let to = folder.path().join(format!("outbox.db{end}"));
            fs::copy(version.join(format!("outbox.sqlite{end}")), to).unwrap();
        }
        let outbox = folder.path().join("outbox.db");
        let outbox = format!("outbox = \"{}\" # ", outbox.display());
        let setup = Setup::default().ledger(&server.url());
        let world = setup.edit("outbox = ", &outbox).start().await;
        continues(&world, &version, "redis").await;
        eventually("the outbox is empty", async || {
            let path = "/admin/v1/accounts/late";
            let late = world.admin_get(path).await.json();
            (late["held_rub"] == "0.00").then_some(())
        })
        .await;
        is_sound(&world).await;
    }
}

#[test]
fn export_of_a_released_version_passes_the_audit() {
    for version in released() {
        for name in ["file.jsonl", "redis.jsonl"] {
            let mut audit = Command::new(TOLLGATE);
            audit.args(["audit", "--export"]).arg(version.join(name));
            reported(&audit.output().unwrap(), 0);
        }
    }
}

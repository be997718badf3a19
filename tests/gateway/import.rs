//! Tests of `tollgate import`, which imports accounts, payments and keys from a CSV file.

use std::{os::unix::fs::PermissionsExt, path::PathBuf};

use tollgate_layers::auth::digest;

use crate::{
    prelude::*,
    usage_report::{complained, reported, tollgate, typed},
};

const FOREIGN: &str = "sk-proj-0123456789_abcdef~!#";

fn sha256(key: &str) -> String {
    digest(key.as_bytes()).to_string()
}

fn written(world: &World, name: &str, text: &str) -> PathBuf {
    let path = world.dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn key(secret: &str, account: &str) -> Key {
    Key {
        secret: secret.to_owned(),
        id: String::new(),
        account: account.to_owned(),
    }
}

async fn accounts(world: &World) -> Value {
    let listed = world.admin_get("/admin/v1/accounts").await;
    listed.json()["accounts"].clone()
}

async fn keys(world: &World, account: &str) -> Vec<Value> {
    let path = format!("/admin/v1/accounts/{account}/keys");
    let listed = world.admin_get(&path).await;
    listed.json()["keys"].as_array().unwrap().clone()
}

/// Returns a CSV file with three lines: an account with a key that a caller already has, a second key of the same
/// account, and an account without keys.
fn customers() -> String {
    format!(
        "account,name,balance_rub,topup_id,key_name,key_sha256,key_prefix,ceiling_rub,models\n\
         acme,ООО «Акме»,1000.50,opening,old,{},sk-pro…,100,chat messages\n\
         acme,,,,new\n\
         beta,Beta\n",
        sha256(FOREIGN)
    )
}

async fn imports_once(world: &World) {
    let file = written(world, "customers.csv", &customers());
    // The file is in a separate folder, because a later check searches the gateway's folder for secrets.
    let place = tempfile::tempdir().unwrap();
    let made = place.path().join("made.csv");
    let (file, made_text) = (file.to_str().unwrap(), made.to_str().unwrap());
    let dry = typed(world, &format!("import {file} --dry-run"), 0).await;
    assert!(dry.contains("nothing was done"), "{dry}");
    assert_eq!(accounts(world).await, json!([]));

    let unsaid = tollgate(world, &["import", file], "").await;
    assert!(complained(&unsaid, 64).contains("the import would create 1 key: give --keys-out"));
    assert_eq!(accounts(world).await, json!([]));

    let args = ["import", file, "--keys-out", made_text, "--json"];
    let output = reported(&tollgate(world, &args, "").await, 0);
    let report: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(
        report["accounts"][0],
        json!({
            "account": "acme", "opened": true, "payments": 1, "payments_there": 0, "keys_made": 1, "keys_taken_over": 1, "keys_there": 0,
        })
    );
    assert_eq!(report["accounts"][1]["opened"], true);
    let mode = std::fs::metadata(&made).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the keys are their owner's alone");
    let text = std::fs::read_to_string(&made).unwrap();
    let secret = text
        .lines()
        .nth(1)
        .unwrap()
        .strip_prefix("acme,new,")
        .unwrap();
    assert!(!output.contains(secret), "no key on standard output");

    for secret in [FOREIGN, secret] {
        world
            .chat(&key(secret, "acme"), &chat_body("x"))
            .await
            .expect(200);
    }
    let account = world.settled(&key(FOREIGN, "acme")).await;
    assert_eq!(account["name"], "ООО «Акме»");
    let listed = keys(world, "acme").await;
    let old = listed.iter().find(|key| key["name"] == "old").unwrap();
    assert_eq!(old["prefix"], "sk-pro…");
    assert_eq!(old["ceiling_rub"], "100.00");
    assert_eq!(old["models"], json!(["chat", "messages"]));

    // A second import of the same file adds no payment and creates nothing, with or without `--keys-out`.
    let before = (accounts(world).await, listed);
    for args in [
        &["import", file, "--json", "--keys-out", made_text][..],
        &["import", file, "--json"],
    ] {
        let again = reported(&tollgate(world, args, "").await, 0);
        let report: Value = serde_json::from_str(&again).unwrap();
        assert_eq!(report["accounts"][0]["keys_there"], 2, "{report}");
        assert_eq!(report["accounts"][0]["opened"], false);
        assert_eq!(report["accounts"][0]["payments"], 0, "{report}");
        assert_eq!(report["accounts"][0]["payments_there"], 1, "{report}");
    }
    assert_eq!((accounts(world).await, keys(world, "acme").await), before);
    assert_eq!(std::fs::read_to_string(&made).unwrap(), text);

    // A deleted key still exists in the ledger but cannot be used. The import must not treat it as the key in the file.
    for key in keys(world, "acme").await {
        let path = format!("/admin/v1/keys/{}", key["id"].as_str().unwrap());
        let deleted = world.admin(Method::DELETE, &path, None).await;
        assert!(deleted.status.is_success(), "{deleted:?}");
    }
    let args = ["import", file, "--keys-out", made_text];
    let errors = complained(&tollgate(world, &args, "").await, 65);
    for says in [
        "line 2: key_sha256: this key was deleted",
        "line 3: key_name: an earlier import made a key \"new\", which was deleted",
    ] {
        assert!(errors.contains(says), "{says}: {errors}");
    }
}

#[tokio::test]
async fn repeated_import_changes_nothing_and_callers_keep_their_keys() {
    imports_once(&World::start().await).await;
    let folder = crate::ledger::folder();
    let file = format!("sqlite:{}", folder.path().join("books.db").display());
    imports_once(&Setup::default().ledger(&file).start().await).await;
    let server = RedisServer::start().await;
    imports_once(&Setup::default().ledger(&server.url()).start().await).await;
}

#[tokio::test]
async fn import_with_errors_reports_every_faulty_line_and_changes_nothing() {
    let world = World::start().await;
    let taken = world.key().await;
    let before = accounts(&world).await;
    let text = "account,name,balance_rub,key_name,key_sha256\n\
                beta,Beta,100\n\
                b c,,5\n\
                beta,,-5\n\
                beta,,,k,abc\n";
    let file = written(&world, "wrong.csv", text);
    let wrong = tollgate(&world, &["import", file.to_str().unwrap()], "").await;
    let errors = complained(&wrong, 65);
    for says in [
        "wrong.csv: line 3: account: an id must have",
        "wrong.csv: line 4: balance_rub: a payment must be more than 0",
        "wrong.csv: line 5: key_sha256: must be 64 hexadecimal digits",
        "wrong.csv: nothing was imported",
    ] {
        assert!(errors.contains(says), "{says}: {errors}");
    }

    // These mistakes can be found only by comparison with the ledger: the name of an account, and the account of a key.
    let text = format!(
        "account,name,key_sha256\nacme,Another\nbeta,Beta,{}\n",
        sha256(&taken.secret)
    );
    let wrong = tollgate(&world, &["import", "-"], &text).await;
    let errors = complained(&wrong, 65);
    for says in [
        "-: line 2: name: account acme already exists with the name \"acme\"",
        "-: line 3: key_sha256: this key already belongs to account acme",
    ] {
        assert!(errors.contains(says), "{says}: {errors}");
    }
    assert_eq!(accounts(&world).await, before);
}

#[tokio::test]
async fn command_that_cannot_read_a_file_exits_with_74() {
    let world = World::start().await;
    for line in [
        "import /no/such/file.csv",
        "statement acme --month 2026-11 --verify /no/such/file.csv",
        "account list --admin-key-file /no/such/file",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let errors = complained(&tollgate(&world, &args, "").await, 74);
        assert!(errors.contains("/no/such/file"), "{line}: {errors}");
    }
}

#[tokio::test]
async fn interrupted_import_continues_with_the_keys_that_it_has_created() {
    let world = World::start().await;
    // The account `beta` has a different payment with the id from the file's second line. So the import fails after the
    // first line.
    let file = written(
        &world,
        "customers.csv",
        "account,balance_rub,topup_id,key_name\nacme,,,one\nbeta,7,p1,two\n",
    );
    // The file is in a separate folder, because a later check searches the gateway's folder for secrets.
    let place = tempfile::tempdir().unwrap();
    let made = place.path().join("made.csv");
    world.key_with("beta", "0", json!({})).await;
    let paid = json!({ "id": "p1", "amount_rub": "8" });
    let topups = "/admin/v1/accounts/beta/topups";
    world.admin_post(topups, paid).await;
    let args = [
        "import",
        file.to_str().unwrap(),
        "--keys-out",
        made.to_str().unwrap(),
    ];
    let failed = tollgate(&world, &args, "").await;
    let errors = complained(&failed, 1);
    has(
        &errors,
        "customers.csv: line 3 (earlier lines were imported",
    );
    has(&errors, "p1");
    let first = std::fs::read_to_string(&made).unwrap();

    let mended = "account,balance_rub,topup_id,key_name\nacme,,,one\nbeta,8,p1,two\n";
    std::fs::write(&file, mended).unwrap();
    reported(&tollgate(&world, &args, "").await, 0);
    let text = std::fs::read_to_string(&made).unwrap();
    assert!(text.starts_with(&first), "{text}");
    assert!(text.lines().count() == 3, "{text}");
    let secret = first
        .lines()
        .nth(1)
        .unwrap()
        .strip_prefix("acme,one,")
        .unwrap();
    let answer = world.chat(&key(secret, "acme"), &chat_body("x")).await;
    assert!(
        answer.text().contains("баланс"),
        "known, with nothing to spend: {answer:?}"
    );
    assert_eq!(keys(&world, "acme").await.len(), 1);
}

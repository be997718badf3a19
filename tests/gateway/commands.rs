//! Tests of the commands as a shell runs them: exit codes and error texts.

use std::process::{Command, Output};

use crate::{
    prelude::*,
    support::process::TOLLGATE,
    usage_report::{complained, reported, tollgate, typed},
};

/// Runs the binary with this gateway address and this admin key, either of which may be wrong.
async fn at(url: &str, key: &str, args: &[&str]) -> Output {
    let mut command = Command::new(TOLLGATE);
    command
        .args(args)
        .env("TOLLGATE_ADMIN_URL", url)
        .env("TOLLGATE_ADMIN_KEY", key);
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

#[tokio::test]
async fn audit_command_exit_status_distinguishes_an_unreachable_gateway_from_a_breach() {
    let world = World::start().await;
    let admin = format!("http://{}", world.gateway.admin_address().unwrap());
    let callers = world.url("");
    for (url, key, code, says) in [
        (admin.as_str(), "wrong", 77, "rejected this admin key"),
        (
            "http://127.0.0.1:1",
            ADMIN_KEY,
            69,
            "no answer from http://127.0.0.1:1",
        ),
        (
            callers.as_str(),
            ADMIN_KEY,
            69,
            "this address is the listener for callers",
        ),
    ] {
        let errors = complained(&at(url, key, &["audit"]).await, code);
        assert!(errors.contains(says), "{errors}");
    }
    let missing = at(&admin, ADMIN_KEY, &["audit", "--export", "no-such-file"]).await;
    complained(&missing, 74);
    // The path is a folder, which cannot be read as a file.
    let folder = at(&admin, ADMIN_KEY, &["operator", "list", "--file", "."]).await;
    complained(&folder, 74);
    reported(&at(&admin, ADMIN_KEY, &["audit"]).await, 0);
}

#[tokio::test]
async fn command_exits_with_69_if_the_ledger_is_unreachable() {
    let server = RedisServer::start().await;
    let world = Setup::default().ledger(&server.url()).start().await;
    world.key().await;
    server.kill();
    for args in [
        &["audit"][..],
        &["account", "list"],
        &["key", "list", "acme"],
        // The commands below first read the state with a GET request. This request fails, so they change nothing.
        &["topup", "acme", "5", "--id", "p2"],
        &["account", "suspend", "acme"],
    ] {
        let errors = complained(&tollgate(&world, args, "").await, 69);
        assert!(
            errors.contains("the ledger is out of reach; try again"),
            "{args:?}: {errors}"
        );
    }
}

#[tokio::test]
async fn health_command_reports_readiness_without_an_admin_key() {
    let server = RedisServer::start().await;
    let world = Setup::default().ledger(&server.url()).start().await;
    let admin = format!("http://{}", world.gateway.admin_address().unwrap());
    let health = ["health", "--url", &admin];
    assert_eq!(
        reported(&at("http://127.0.0.1:1", "", &health).await, 0),
        "ready\n"
    );
    server.kill();
    let errors = eventually("it says that it is not ready", async || {
        let requested = at("http://127.0.0.1:1", "", &health).await;
        (requested.status.code() != Some(0)).then(|| complained(&requested, 69))
    })
    .await;
    assert!(errors.contains("not ready: Redis at"), "{errors}");
    assert!(errors.matches("out of reach").count() <= 1, "{errors}");
    complained(&at("http://127.0.0.1:1", "", &["health"]).await, 69);
}

#[tokio::test]
async fn usage_line_of_a_command_omits_options_set_by_the_environment() {
    let typed = at("http://127.0.0.1:1", ADMIN_KEY, &["topup", "acme", "5"]).await;
    let errors = complained(&typed, 64);
    assert!(errors.contains("Usage: tollgate topup --id"), "{errors}");
    assert!(!errors.contains("--admin-url"), "{errors}");
    let typed = at("ftp://127.0.0.1", "", &["health"]).await;
    let errors = complained(&typed, 64);
    assert!(errors.contains("--url (TOLLGATE_ADMIN_URL): "), "{errors}");
}

#[tokio::test]
async fn command_prints_its_result_with_the_next_step() {
    let world = World::start().await;
    world.key_with("acme", "1", json!({})).await;
    for booked in [
        "p1 is booked. ",
        "p1 was booked before, so nothing was booked now.",
    ] {
        let done = tollgate(&world, &["topup", "acme", "5", "--id", "p1"], "").await;
        assert!(reported(&done, 0).contains("6.00 ₽"), "{done:?}");
        let note = String::from_utf8_lossy(&done.stderr);
        assert!(note.contains(booked), "{note}");
    }
    let correction = [
        "adjust",
        "acme",
        "5",
        "--id",
        "p1",
        "--reason",
        "correction",
    ];
    let refused = complained(&tollgate(&world, &correction, "").await, 1);
    has(&refused, "before, with another kind (payment)");
    let done = tollgate(&world, &["vendor", "disable", "chat-vendor"], "").await;
    reported(&done, 0);
    let note = String::from_utf8_lossy(&done.stderr);
    has(&note, "tollgate vendor enable chat-vendor");
    let list = typed(&world, "vendor list", 0).await;
    let row = list.lines().find(|row| row.starts_with("chat-vendor"));
    assert_eq!(row.unwrap().matches("disabled").count(), 2, "{list}");
}

#[tokio::test]
async fn binary_prints_shell_completions_and_manual_pages() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man1");
    reported(
        &at("", "", &["man", "--out", out.to_str().unwrap()]).await,
        0,
    );
    for page in ["tollgate.1", "tollgate-audit.1", "tollgate-ledger-copy.1"] {
        assert!(out.join(page).exists(), "{page}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = reported(&at("", "", &["completions", shell]).await, 0);
        assert!(script.contains("topup"), "{shell}");
    }
}

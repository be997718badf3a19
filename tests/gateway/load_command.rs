//! Tests of `tollgate load`: the numbers that it prints, and its exit codes.

use std::{
    net::TcpListener,
    process::{Child, Command, Output, Stdio},
};

use tollgate::demo::{script::polite, vendor::ScriptedVendor};

use crate::{
    prelude::*,
    support::process::{Start, TOLLGATE, signal},
    upgrade::{both, funded_key},
    usage_report::{complained, reported},
};

fn load(url: &str, key: &str, args: &[&str]) -> Child {
    Command::new(TOLLGATE)
        .args(["load", "--url", url])
        .args(args)
        .env("TOLLGATE_KEY", key)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn finished(load: Child) -> Output {
    let ended = tokio::task::spawn_blocking(move || load.wait_with_output());
    ended.await.unwrap().unwrap()
}

fn report(output: &Output, code: i32) -> Value {
    serde_json::from_str(&reported(output, code)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_command_survives_a_gateway_restart_and_counts_refused_connections() {
    let vendor = ScriptedVendor::start().await.unwrap();
    vendor.script(polite);
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let port = port.unwrap().port();
    let ledger = format!("sqlite:{}", dir.path().join("books.db").display());
    let listen = format!("listen = \"127.0.0.1:{port}\"\nbase_url");
    let text = config_text(vendor.address(), &ledger, dir.path().join("outbox.db"))
        .replace("listen = \"127.0.0.1:0\"\nbase_url", &listen);
    let config = dir.path().join("tollgate.toml");
    std::fs::write(&config, text).unwrap();
    let start = || Start::new(&config, &dir.path().join("log")).spawn();
    let called = async |calls: usize| {
        eventually("calls arrive", async || {
            (vendor.received().len() >= calls).then_some(())
        })
        .await;
    };

    let old = start();
    let (address, operators) = both(old.serving().await);
    let key = funded_key(operators).await;
    let args = "--rate 200 --seconds 600 --calls-max 1000000 --failed-max 100% --json";
    let args: Vec<&str> = args.split(' ').collect();
    let running = load(&format!("http://{address}/v1"), &key, &args);
    called(50).await;
    old.signal("-TERM");
    assert_eq!(old.ended().await.code(), Some(0));
    let before = vendor.received().len();
    // A call begins every 5 ms. The new gateway takes longer than that to start and to open its ledger, so calls fail
    // meanwhile.
    let new = start();
    new.serving().await;
    called(before + 50).await;
    signal("-INT", running.id());
    let report = report(&finished(running).await, 0);

    assert!(report["answered"].as_u64().unwrap() >= 90, "{report}");
    assert!(
        report["errors"]["no connection"].as_u64().unwrap() > 0,
        "{report}"
    );
    assert_eq!(report["statuses"]["200"], report["answered"]);
    let whole = &report["whole_call_ms"];
    assert_eq!(whole["count"], report["answered"], "{report}");
    assert!(whole["p50"].as_f64() <= whole["max"].as_f64(), "{report}");
}

#[tokio::test]
async fn load_command_fails_if_failed_calls_exceed_a_threshold() {
    let world = World::start().await;
    let key = world.key().await.secret;
    // The first call checks the address, the key and the request, and succeeds. Every second one of the 11 calls of the
    // load fails.
    world.vendor.script({
        let calls = std::sync::atomic::AtomicU32::new(0);
        move |received| {
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if call.is_multiple_of(2) {
                return polite(received);
            }
            Reply::json(400, &json!({ "error": { "message": "no" } }))
        }
    });
    for (failed_max, code) in [("0", 1), ("5", 1), ("6", 0), ("54%", 1), ("55%", 0)] {
        let args = "--calls-max 12 --connections 1 --json --failed-max";
        let args: Vec<&str> = args.split(' ').chain([failed_max]).collect();
        let output = finished(load(&world.url(""), &key, &args)).await;
        let report = report(&output, code);
        assert_eq!(
            report["statuses"],
            json!({ "200": 5, "400": 6 }),
            "{report}"
        );
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            errors.contains("6 of 11 calls failed"),
            code == 1,
            "{errors}"
        );
    }
}

#[tokio::test]
async fn load_command_sends_custom_requests_in_turn_and_times_each_piece_of_a_stream() {
    let world = World::start().await;
    world.vendor.script(polite);
    let key = world.key().await.secret;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.ndjson");
    let body = |text: &str| json!({ "model": "chat", "stream": true, "max_tokens": 5, "messages": [{ "role": "user", "content": text }] });
    std::fs::write(&file, format!("{}\n{}\n", body("один"), body("два"))).unwrap();
    let file = file.to_str().unwrap();
    let args = [
        "--request",
        file,
        "--calls-max",
        "5",
        "--connections",
        "1",
        "--json",
    ];
    let report = report(&finished(load(&world.url(""), &key, &args)).await, 0);
    assert_eq!(report["answered"], 4, "{report}");
    assert_eq!(report["first_chunk_ms"]["count"], 4, "{report}");
    let received = world.vendor.received();
    let texts: Vec<_> = received
        .iter()
        .map(|call| call.json()["messages"][0]["content"].clone())
        .collect();
    // The first request is sent twice: once as a check, and once as a call of the load.
    assert_eq!(texts, ["один", "один", "два", "один", "два"]);
}

#[tokio::test]
async fn load_command_reports_an_invalid_request_once_before_the_load() {
    let world = World::start().await;
    let key = world.key().await.secret;
    let url = world.url("");
    for (url, key, args, code, says) in [
        (url.as_str(), "tg-wrong", &["--model", "m"][..], 1, "401"),
        (
            "http://127.0.0.1:1",
            &key,
            &["--model", "m"],
            69,
            "no connection",
        ),
        (
            &url,
            &key,
            &["--model", "no-such-model"],
            1,
            "no-such-model",
        ),
        (
            &url,
            &key,
            &["--request", "no-such-file"],
            74,
            "cannot read",
        ),
        (&url, &key, &["--failed-max", "many"], 64, "a share like 1%"),
    ] {
        let errors = complained(&finished(load(url, key, args)).await, code);
        assert!(errors.contains(says), "{errors}");
    }
}

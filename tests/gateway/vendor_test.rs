//! Tests of `tollgate vendor test` and `tollgate check --live`, which call a vendor and report its response, the cost,
//! and what to correct.

use std::process::{Command, Output};

use tempfile::TempDir;
use tollgate::demo::vendor::ScriptedVendor;

use crate::{
    prelude::*,
    secrets::has_secret,
    support::process::{TOLLGATE, with_secrets},
};

/// Runs a command with a configuration that has this vendor, and these lines for its `chat` vendor. Returns the exit
/// code, the output and the error output.
async fn run(vendor: &ScriptedVendor, lines: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let dir = TempDir::new().unwrap();
    let name = "name = \"chat-vendor\"\n";
    let text = config_text(vendor.address(), "memory:", dir.path().join("outbox.db"));
    let text = text.replace(name, &format!("{name}{lines}\n"));
    let file = dir.path().join("tollgate.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(TOLLGATE);
    with_secrets(command.args(args).arg("--config").arg(file));
    let output = tokio::task::spawn_blocking(move || command.output());
    let Output {
        status,
        stdout,
        stderr,
    } = output.await.unwrap().unwrap();
    let (stdout, stderr) = (
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    );
    assert!(!has_secret(&stdout), "{stdout}{stderr}");
    assert!(!has_secret(&stderr), "{stdout}{stderr}");
    (status.code(), stdout, stderr)
}

async fn polite() -> ScriptedVendor {
    let vendor = ScriptedVendor::start().await.unwrap();
    vendor.script(|received| {
        let op = if received.path.contains("chat") {
            Op::Chat
        } else {
            Op::Messages
        };
        match received.json()["stream"] == true {
            true => Reply::stream(events(op, &["o", "k"], 12, 2)),
            false => plain_reply(op, "ok", 10, 5),
        }
    });
    vendor
}

#[tokio::test]
async fn vendor_test_makes_and_prices_a_plain_call_and_a_stream() {
    let vendor = polite().await;
    let (code, printed, errors) =
        run(&vendor, "", &["vendor", "test", "chat-vendor", "--json"]).await;
    assert_eq!(code, Some(0), "{errors}");
    let printed: Value = serde_json::from_str(&printed).unwrap();
    // The costs are 10 × 1 + 5 × 2 and 12 × 1 + 2 × 2 millionths of a USDT.
    for (call, kind, input, output, cost) in [
        (&printed["calls"][0], "plain", 10, 5, "0.00002"),
        (&printed["calls"][1], "stream", 12, 2, "0.000016"),
    ] {
        assert_eq!(call["call"], kind);
        assert_eq!(call["result"], "ok", "{call}");
        assert_eq!(call["answer"], "ok", "{call}");
        assert_eq!(call["input"], json!(input));
        assert_eq!(call["output"], json!(output));
        assert_eq!(call["cost_usdt"], cost, "{call}");
    }
    let received = vendor.received();
    assert_eq!(received.len(), 2);
    assert!(
        received
            .iter()
            .all(|it| it.json()["model"] == "vendor-chat-1")
    );
    assert_eq!(received[0].json()["max_completion_tokens"], 16);
}

#[tokio::test]
async fn check_command_calls_every_vendor_only_with_the_option_live() {
    let vendor = polite().await;
    let (code, printed, errors) = run(&vendor, "", &["check"]).await;
    assert_eq!(code, Some(0), "{errors}");
    assert!(printed.starts_with("ok: ") && vendor.received().is_empty());
    let (code, printed, errors) = run(&vendor, "", &["check", "--live"]).await;
    assert_eq!(code, Some(0), "{errors}");
    has(&printed, "chat-vendor");
    has(&printed, "messages-vendor");
    assert_eq!(vendor.received().len(), 4);
}

#[tokio::test]
async fn failed_vendor_test_states_what_to_fix() {
    for (status, words, advice) in [
        (401, "Incorrect API key", "check the vendor's key or login"),
        (402, "Insufficient balance", "top up the account"),
        (403, "no access", "allow the key to call the model"),
        (
            404,
            "no such model",
            "check the vendor's url and path, and the route's model \"vendor-chat-1\"",
        ),
        (429, "slow down", "raise the limit"),
        (400, "unknown field", "check the model's fields"),
        (500, "oops", "try again later"),
    ] {
        let vendor = ScriptedVendor::start().await.unwrap();
        vendor.script(move |_| refusal(status, words));
        let (code, printed, errors) = run(&vendor, "", &["vendor", "test", "chat-vendor"]).await;
        assert_eq!(code, Some(1), "{status}: {errors}");
        assert!(printed.contains("failed"), "{status}: {errors}");
        assert!(errors.contains(advice), "{status}: {errors}");
    }
    let vendor = polite().await;
    for (lines, advice) in [
        (
            "login = { kind = \"command\", command = [\"false\"] }",
            "check the vendor's login",
        ),
        (
            "proxy = \"http://127.0.0.1:1\"",
            "check the vendor's url and proxy",
        ),
    ] {
        let (code, _, errors) = run(&vendor, lines, &["vendor", "test", "chat-vendor"]).await;
        assert_eq!(code, Some(1), "{errors}");
        assert!(errors.contains(advice), "{errors}");
    }
    assert!(vendor.received().is_empty());
}

#[tokio::test]
async fn vendor_test_of_an_unknown_vendor_or_model_is_a_usage_error() {
    let vendor = polite().await;
    let (code, _, errors) = run(&vendor, "", &["vendor", "test", "chat-vendr"]).await;
    assert_eq!(code, Some(64), "{errors}");
    assert!(errors.contains("did you mean chat-vendor?"), "{errors}");
    let args = ["vendor", "test", "chat-vendor", "messages"];
    let (code, _, errors) = run(&vendor, "", &args).await;
    assert_eq!(code, Some(64), "{errors}");
    assert!(errors.contains("no model \"messages\""), "{errors}");
    assert!(vendor.received().is_empty());
}

//! Tests of holds that grow with the output of their streams. If a hold cannot be raised, its stream ends as if it had
//! reached its output limit, in the format of its caller, and the generated output is charged.

use crate::prelude::*;

/// The number of words that the vendor sends. The vendor counts about 500 tokens for each word.
const WORDS: usize = 30;
const OUTPUT_TOKENS: u64 = 15_000;

fn word() -> String {
    "word ".repeat(500)
}

async fn growing(more: &str) -> World {
    let growing = format!(
        "output_tokens_max = 32000\noutput_tokens_per_second_max = 100\nhold = \"growing\"\n{more}"
    );
    Setup::default()
        .edit("output_tokens_max = 4000", &growing)
        .start()
        .await
}

/// Returns the vendor's stream. If `waits_after` is set, the vendor waits after this number of words until the handle
/// is notified.
fn reply(vendor: Op, waits_after: Option<(usize, &Arc<Notify>)>) -> Reply {
    let word = word();
    let words = vec![word.as_str(); WORDS];
    let reply = Reply::stream(events(vendor, &words, 9, OUTPUT_TOKENS));
    let before = match vendor {
        Op::Chat => 0,
        Op::Messages => 2,
    };
    match waits_after {
        None => reply,
        Some((words, go)) => reply.with_step(before + words, Step::Hold(Arc::clone(go))),
    }
}

/// The format of a caller: its path, the name of the field with the output limit, and how a stream ends at this limit.
const CALLERS: [(&str, &str, &str, &str); 3] = [
    (
        "/v1/chat/completions",
        "max_tokens",
        "\"finish_reason\":\"length\"",
        "data: [DONE]",
    ),
    (
        "/v1/messages",
        "max_tokens",
        "\"stop_reason\":\"max_tokens\"",
        "event: message_stop",
    ),
    (
        "/v1/responses",
        "max_output_tokens",
        "\"reason\":\"max_output_tokens\"",
        "event: response.incomplete",
    ),
];

fn call(
    world: &World,
    key: &Key,
    (path, limit): (&str, &str),
    model: &str,
) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let mut body = json!({ "model": model, "stream": true, limit: 30_000 });
    match path {
        "/v1/responses" => body["input"] = "Hello".into(),
        _ => body["messages"] = json!([{ "role": "user", "content": "Hello" }]),
    }
    let bearer = format!("Bearer {}", key.secret);
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("anthropic-version", "2026-10-21"),
    ];
    request(
        Method::POST,
        &world.url(path),
        &headers,
        body.to_string().into(),
    )
}

/// Makes a call. Returns its stream and its receipt.
async fn called(world: &World, key: &Key, caller: (&str, &str), model: &str) -> (String, Value) {
    let res = world.send(call(world, key, caller, model)).await;
    assert_eq!(res.status(), 200, "{caller:?} {model}");
    let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
    let stream = rest(&mut res.into_body()).await;
    (stream, world.receipt(&number).await)
}

fn is_covered(receipt: &Value) {
    let amount = |field: &str| micro(&receipt[field]);
    assert_eq!(receipt["loss_rub"], "0.00", "{receipt}");
    assert!(
        amount("charged_rub") <= amount("held_at_end_rub"),
        "{receipt}"
    );
    assert!(
        amount("held_at_end_rub") <= amount("held_max_rub"),
        "{receipt}"
    );
    assert!(amount("held_rub") <= amount("held_max_rub"), "{receipt}");
}

#[tokio::test]
async fn stream_covered_by_the_balance_is_complete_and_its_hold_grows() {
    let world = growing("").await;
    let key = world.key_with("rich", "1000", json!({})).await;
    for vendor in BOTH {
        world.vendor_sends(reply(vendor, None));
        for (path, limit, ceiling, _) in CALLERS {
            let (stream, receipt) = called(&world, &key, (path, limit), vendor.model()).await;
            assert!(!stream.contains(ceiling), "{path} {vendor:?}");
            assert_eq!(receipt["usage"]["output"], OUTPUT_TOKENS, "{receipt}");
            assert_eq!(receipt["stopped_by"], Value::Null, "{receipt}");
            assert!(
                micro(&receipt["held_rub"]) < micro(&receipt["charged_rub"]),
                "{receipt}"
            );
            is_covered(&receipt);
        }
    }
    assert_eq!(world.settled(&key).await["loss_rub"], "0.00");
}

#[tokio::test]
async fn stream_that_exceeds_the_balance_ends_as_if_its_output_limit_were_reached() {
    let world = growing("").await;
    for (vendor, balance) in [(Op::Chat, "1.3"), (Op::Messages, "13")] {
        let never = Arc::new(Notify::new());
        world.vendor_sends(reply(vendor, Some((WORDS, &never))));
        for (path, limit, ceiling, last) in CALLERS {
            let account = format!("{}-{}", vendor.model(), path.rsplit('/').next().unwrap());
            let key = world.key_with(&account, balance, json!({})).await;
            let (stream, receipt) = called(&world, &key, (path, limit), vendor.model()).await;
            assert_eq!(
                stream.matches(ceiling).count(),
                1,
                "{path} {vendor:?}: {stream}"
            );
            assert!(
                stream
                    .trim_end()
                    .lines()
                    .rev()
                    .take(3)
                    .any(|line| line.starts_with(last)),
                "{stream}"
            );
            assert_eq!(receipt["stopped_by"], "balance", "{receipt}");
            assert_eq!(receipt["end"], "finished", "{receipt}");
            let output = receipt["usage"]["output"].as_u64().unwrap();
            assert!((3_000..=4_096).contains(&output), "{receipt}");
            let account = world.settled(&key).await;
            assert!(micro(&account["balance_rub"]) > 0, "{account}");
            assert_eq!(account["loss_rub"], "0.00", "{account}");
            eventually("the vendor is cancelled", async || {
                (world.vendor.open() == 0).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn receipt_says_why_a_stream_was_stopped() {
    let world = growing("").await;
    let vendor = Op::Messages;
    for (why, path, change) in [
        ("key_disabled", "keys", json!({ "status": "disabled" })),
        ("ceiling", "keys", json!({ "ceiling_rub": "12" })),
        (
            "account_suspended",
            "accounts",
            json!({ "status": "suspended" }),
        ),
    ] {
        let go = Arc::new(Notify::new());
        let waits = Arc::clone(&go);
        world.vendor_sends(reply(vendor, Some((4, &waits))));
        let key = world
            .key_with(&why.replace('_', "-"), "1000", json!({}))
            .await;
        let res = world
            .send(call(
                &world,
                &key,
                ("/v1/messages", "max_tokens"),
                "messages",
            ))
            .await;
        let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
        let mut body = res.into_body();
        read_until(&mut body, "word").await;
        let id = if path == "keys" {
            &key.id
        } else {
            &key.account
        };
        let path = format!("/admin/v1/{path}/{id}");
        let answer = world.admin_patch(&path, change).await;
        assert!(answer.status.is_success(), "{why}: {answer:?}");
        go.notify_one();
        let stream = rest(&mut body).await;
        assert!(
            stream.contains("\"stop_reason\":\"max_tokens\""),
            "{why}: {stream}"
        );
        let receipt = world.receipt(&number).await;
        assert_eq!(receipt["stopped_by"], why, "{receipt}");
        assert_eq!(receipt["loss_rub"], "0.00", "{receipt}");
    }
}

/// If a vendor's setting is `on_disconnect = "drain"`, its stream is read to the end after a client disconnect. So the
/// stream cannot be stopped early, and the hold must cover the whole output.
#[tokio::test]
async fn hold_covers_the_whole_output_of_a_stream_read_to_the_end_after_a_client_disconnect() {
    let world = Setup::default()
        .edit(
            "output_tokens_max = 4000",
            "output_tokens_max = 32000\noutput_tokens_per_second_max = 100\nhold = \"growing\"",
        )
        .edit("[[vendor]]\n", "[[vendor]]\non_disconnect = \"drain\"\n")
        .start()
        .await;
    let key = world.key_with("rich", "1000", json!({})).await;
    let vendor = Op::Messages;
    world.vendor_sends(reply(vendor, None));
    let (_, receipt) = called(&world, &key, ("/v1/messages", "max_tokens"), "messages").await;
    assert!(
        micro(&receipt["held_rub"]) > micro(&receipt["charged_rub"]),
        "{receipt}"
    );
}

#[tokio::test]
async fn key_setting_enables_growing_holds_for_models_with_a_configured_speed() {
    let world = Setup::default()
        .edit(
            "output_tokens_max = 4000",
            "output_tokens_max = 32000\noutput_tokens_per_second_max = 100",
        )
        .start()
        .await;
    let vendor = Op::Messages;
    world.vendor_sends(reply(vendor, None));
    for grows in [false, true] {
        let account = format!("grows-{grows}");
        let key = world
            .key_with(&account, "1000", json!({ "growing_holds": grows }))
            .await;
        let (_, receipt) = called(&world, &key, ("/v1/messages", "max_tokens"), "messages").await;
        let is_small = micro(&receipt["held_rub"]) < micro(&receipt["charged_rub"]);
        assert_eq!(is_small, grows, "{receipt}");
    }
}

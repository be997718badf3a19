//! Tests that a key can read only the receipts of its own calls (docs/decisions.md, "Extra paths").

use crate::prelude::*;

const UNKNOWN: &str = "01a1f9e6-bc69-7767-a285-af3e6bb9c9ef";

async fn ask(world: &World, key: &Key, number: &str) -> Answer {
    let bearer = bearer(key);
    let path = format!("/v1/tollgate/receipts/{number}");
    world.get(&path, &[("authorization", &bearer)]).await
}

/// Returns the receipt as the key sees it. Waits until the call is settled.
async fn receipt(world: &World, key: &Key, number: &str) -> Value {
    eventually("the key finds its receipt", async || {
        let answer = ask(world, key, number).await;
        (answer.status == 200).then(|| answer.json())
    })
    .await
}

#[tokio::test]
async fn key_gets_the_same_receipt_as_operators() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let answer = op.call(&world, &key, &op.body("Привет")).await;
        let own = receipt(&world, &key, &answer.number()).await;
        assert_eq!(
            names(&own),
            [
                "at",
                "bounded",
                "charged_rub",
                "cost_rub",
                "end",
                "endpoint",
                "estimated",
                "held_rub",
                "key",
                "loss_rub",
                "model",
                "number",
                "price",
                "started_at",
                "usage",
            ]
        );
        let operators = world.receipt(&answer.number()).await;
        for field in names(&own) {
            if field != "started_at" {
                assert_eq!(own[field], operators[field], "{field}");
            }
        }
        assert_eq!(own["number"], answer.number());
        assert_eq!(own["model"], op.model());
        assert_eq!(own["end"], "finished");
        assert_eq!(
            format!("/v1/{}", own["endpoint"].as_str().unwrap()),
            op.path()
        );
        // The call has 9 input tokens and 3 output tokens.
        let charged = match op {
            Op::Chat => "0.0015",
            Op::Messages => "0.015",
        };
        assert_eq!(own["charged_rub"], charged);
        let second = |field: &str| own[field].as_str().unwrap()[..19].to_owned();
        assert!(second("started_at") <= second("at"), "{own}");
        assert!(!own.to_string().contains("vendor"), "{own}");
    }
}

#[tokio::test]
async fn receipt_states_the_end_reason_and_whether_its_usage_was_cut() {
    let (world, key) = World::start_with_key().await;
    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("x")).await;
    let left = running.number.clone();
    drop(running);
    let own = receipt(&world, &key, &left).await;
    assert_eq!(own["end"], "client_left", "{own}");
    assert_eq!(own["bounded"], false, "{own}");

    let absurd = json!({ "prompt_tokens": 9, "completion_tokens": 1_000_000_000 });
    let reported = answer(Op::Chat, "да", &absurd);
    world.vendor_sends(Reply::json(200, &reported));
    let answer = world.chat(&key, &Op::Chat.body("x")).await;
    let own = receipt(&world, &key, &answer.number()).await;
    assert_eq!(own["bounded"], true, "{own}");
    assert_eq!(own["estimated"], true, "{own}");
    // The vendor reported more than `max_tokens`. The receipt counts only the 100 tokens that were held.
    assert_eq!(own["usage"]["output"], 100, "{own}");
}

#[tokio::test]
async fn receipt_contains_the_session_id_sent_by_the_caller() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    let uuid = "0198c2de-7f10-7c3e-9d0e-6b1f2a3c4d5e";
    for op in BOTH {
        for (header, reported, session) in [
            ("x-claude-code-session-id", uuid, Some(uuid)),
            ("x-session-id", "nightly_7", Some("nightly_7")),
            ("x-session-affinity", "ses_2f", Some("ses_2f")),
            ("x-claude-code-agent-id", "a-1", None),
            // If the session id is invalid, the gateway ignores it and accepts the request.
            ("x-session-id", "two words", None),
            ("x-session-id", "=cmd()", None),
            ("x-session-id", "сессия", None),
            ("x-session-id", &"s".repeat(65), None),
        ] {
            for stream in [false, true] {
                let headers = [("authorization", bearer.as_str()), (header, reported)];
                let body = with(op.body("x"), json!({ "stream": stream })).to_string();
                let answer = op.post(&world, &headers, body).await;
                assert_eq!(answer.status, 200, "{header}: {reported}: {answer:?}");
                let own = receipt(&world, &key, &answer.number()).await;
                let operators = world.receipt(&answer.number()).await;
                for receipt in [own, operators] {
                    let found = receipt.get("session").map(|found| found.as_str().unwrap());
                    assert_eq!(found, session, "{header}: {reported}: {receipt}");
                }
            }
        }
    }
}

#[tokio::test]
async fn receipt_of_another_key_is_answered_like_an_unknown_receipt() {
    let (world, key) = World::start_with_key().await;
    let sibling = world.another_key("acme", json!({})).await;
    let stranger = world.key_with("other", "10", json!({})).await;
    let paid = world.chat(&key, &Op::Chat.body("x")).await.number();
    receipt(&world, &key, &paid).await;
    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("x")).await;

    let unknown = ask(&world, &key, UNKNOWN).await;
    let words = refused("unknown", &unknown, 404, NOT_FOUND, "receipt_not_found");
    for (what, key, number) in [
        ("of a key of the same account", &sibling, &paid),
        ("of another account", &stranger, &paid),
        ("of a call that runs", &key, &running.number),
    ] {
        let answer = ask(&world, key, number).await;
        let text = refused(what, &answer, 404, NOT_FOUND, "receipt_not_found");
        assert_eq!(text, words, "{what}");
    }
    running.finish().await;
}

/// A request for an unknown receipt needs one lookup in the caller's own account. It is so cheap that the gateway
/// answers it for free.
#[tokio::test]
async fn receipt_is_searched_for_only_in_the_callers_account() {
    let server = RedisServer::start().await;
    let (world, key) = Setup::default()
        .ledger(&server.url())
        .start_with_key()
        .await;
    world.key_with("other", "10", json!({})).await;
    // This entry in Redis has the wrong type, so a lookup in the other account would fail.
    let trap = format!("tg:{{other}}:r:{UNKNOWN}");
    let _: i64 = server.ask(&["LPUSH", &trap, "x"]).await.unwrap();
    let answer = ask(&world, &key, UNKNOWN).await;
    refused("unknown", &answer, 404, NOT_FOUND, "receipt_not_found");
    let paid = world.chat(&key, &Op::Chat.body("x")).await.number();
    assert_eq!(receipt(&world, &key, &paid).await["number"], paid);
}

#[tokio::test]
async fn invalid_receipt_number_is_refused_with_400_and_named() {
    let (world, key) = World::start_with_key().await;
    for number in ["1", "x", "01a1f9e6-bc69-7767-a285", "%20", "..."] {
        let answer = ask(&world, &key, number).await;
        let text = refused(number, &answer, 400, INVALID, "");
        assert!(text.contains("«number»"), "{number}: {text}");
    }
}

#[tokio::test]
async fn receipt_path_requires_a_key_and_contains_the_service_name() {
    let (world, key) = top("service = \"acme-ai\"").start_with_key().await;
    let path = format!("/v1/acme-ai/receipts/{UNKNOWN}");
    let answer = world.get(&path, &[]).await;
    refused("no key", &answer, 401, AUTHENTICATION, "invalid_api_key");
    let answer = world.get_by(&key, &path).await;
    refused("a key", &answer, 404, NOT_FOUND, "receipt_not_found");
    for path in [
        format!("/v1/tollgate/receipts/{UNKNOWN}"),
        "/v1/acme-ai/receipts/".to_owned(),
    ] {
        let answer = world.get_by(&key, &path).await;
        refused(&path, &answer, 404, NOT_FOUND, "path_not_found");
    }
}

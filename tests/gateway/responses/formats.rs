//! A vendor that speaks several formats: each caller is served in its own format, or in the vendor's first.

use http::Method;
use serde_json::{Value, json};
use tollgate::demo::vendor::{Received, Reply};

use super::{ask_raw, charged};
use crate::{
    harness::{Answer, Key, Setup, World, request, with},
    ops::Op,
    replies,
};

/// Callers, with the vendor's path for their format.
const CALLERS: [(&str, &str); 3] = [
    ("chat", "/chat/completions"),
    ("messages", "/v1/messages"),
    ("responses", "/responses"),
];
/// Nine tokens in and two out, at the model's prices.
const COST: u64 = 9 * 100 + 2 * 200;

/// A gateway whose model `chat` has a vendor of these formats, which answers in the format of the path.
async fn speaking(formats: &[&str]) -> World {
    let world = Setup::default()
        .edit("format = \"chat\"", &format!("formats = {formats:?}"))
        .edit("/v1\"\nkey = ", "\"\nkey = ")
        .start()
        .await;
    world.vendor.script(|received| {
        let answer = match received.path.as_str() {
            "/responses" => super::answer("да", &super::usage([9, 0, 0, 2])),
            "/v1/messages" => {
                let usage = replies::usage(Op::Messages, 9, 2);
                replies::answer(Op::Messages, "да", &usage)
            }
            _ => replies::answer(Op::Chat, "да", &replies::usage(Op::Chat, 9, 2)),
        };
        Reply::json(200, &answer)
    });
    world
}

/// The body of a caller of this format.
fn body(caller: &str) -> Value {
    match caller {
        "chat" => Op::Chat.body("привет"),
        "messages" => with(Op::Messages.body("привет"), json!({ "model": "chat" })),
        _ => super::body(json!({ "max_output_tokens": 100 })),
    }
}

/// A caller's body with a field that cannot be translated.
fn untranslatable(caller: &str) -> Value {
    with(body(caller), json!({ "of_tomorrow": 1 }))
}

async fn call(world: &World, key: &Key, caller: &str, body: &Value) -> (Answer, Received) {
    let answer = match caller {
        "chat" => Op::Chat.call(world, key, body).await,
        "messages" => Op::Messages.call(world, key, body).await,
        _ => ask_raw(world, key, &body.to_string()).await,
    };
    assert_eq!(answer.status, 200, "{caller}: {}", answer.text());
    (answer, world.vendor.received().pop().unwrap())
}

/// Checks that the answer is in the caller's format.
fn said(caller: &str, answer: &Answer) -> Value {
    let answer = answer.json();
    match caller {
        "chat" => answer["choices"][0]["message"]["content"].clone(),
        "messages" => answer["content"][0]["text"].clone(),
        _ => answer["output"][0]["content"][0]["text"].clone(),
    }
}

#[tokio::test]
async fn vendor_of_all_formats_gets_each_call_unchanged() {
    // Each format is once the first in the vendor's list.
    for first in 0..3 {
        let mut formats = CALLERS.map(|(format, _)| format);
        formats.rotate_left(first);
        let world = speaking(&formats).await;
        let key = world.key().await;
        for (caller, path) in CALLERS {
            let (answer, received) = call(&world, &key, caller, &untranslatable(caller)).await;
            assert_eq!(received.path, path, "{caller} of {formats:?}");
            let sent = received.json();
            assert_eq!(sent["model"], "vendor-chat-1", "{sent}");
            assert_eq!(sent["of_tomorrow"], 1, "{sent}");
            let of_messages = caller == "messages";
            let headers = &received.headers;
            assert_eq!(
                headers.contains_key("x-api-key"),
                of_messages,
                "{headers:?}"
            );
            assert_eq!(headers.contains_key("authorization"), !of_messages);
            assert_eq!(said(caller, &answer), "да");
            charged(caller, &world, &answer, COST, false).await;
        }
    }
}

#[tokio::test]
async fn caller_of_an_unsupported_format_is_translated_to_the_vendors_first() {
    for (formats, other, translated_to) in [
        (["responses", "chat"], "messages", "/responses"),
        (["chat", "responses"], "messages", "/chat/completions"),
        (["messages", "responses"], "chat", "/v1/messages"),
        (["chat", "messages"], "responses", "/chat/completions"),
    ] {
        let world = speaking(&formats).await;
        let key = world.key().await;
        for (caller, own) in CALLERS {
            let (path, body) = match caller == other {
                true => (translated_to, body(caller)),
                false => (own, untranslatable(caller)),
            };
            let (answer, received) = call(&world, &key, caller, &body).await;
            assert_eq!(received.path, path, "{caller} of {formats:?}");
            assert_eq!(received.json()["model"], "vendor-chat-1");
            assert_eq!(said(caller, &answer), "да");
            charged(caller, &world, &answer, COST, false).await;
        }
    }
}

#[tokio::test]
async fn hold_and_request_fit_the_format_of_the_vendor() {
    // Vendors of the responses format accept no maximum under 16: a translated one is raised, and no other.
    let world = speaking(&["responses", "chat"]).await;
    let key = world.key().await;
    for (caller, field, ceiling, cost, cut) in [
        // The vendor counts two tokens, of which one is allowed.
        ("chat", "max_tokens", 1, COST - 200, true),
        ("messages", "max_output_tokens", 16, COST, false),
    ] {
        let low = with(body(caller), json!({ "max_tokens": 1 }));
        let (answer, received) = call(&world, &key, caller, &low).await;
        assert_eq!(received.json()[field], ceiling, "{caller}");
        charged(caller, &world, &answer, cost, cut).await;
    }
}

#[tokio::test]
async fn vendor_with_messages_as_a_second_format_counts_tokens() {
    let world = speaking(&["chat", "messages"]).await;
    let key = world.key().await;
    world
        .vendor
        .script(|received| match received.path.as_str() {
            "/v1/messages/count_tokens" => Reply::json(200, &json!({ "input_tokens": 4711 })),
            _ => Reply::json(404, &json!({})),
        });
    let headers = [
        ("x-api-key", key.secret.as_str()),
        ("content-type", "application/json"),
        ("anthropic-version", "2023-06-01"),
    ];
    let url = world.url("/v1/messages/count_tokens");
    let body = body("messages").to_string().into();
    let counted = world.ask(request(Method::POST, &url, &headers, body)).await;
    assert_eq!(counted.json()["input_tokens"], 4711);
}

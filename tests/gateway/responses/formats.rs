//! Tests of a vendor that speaks several formats. It receives each call in the caller's format if it speaks that
//! format, and otherwise in the first format of its list.

use tollgate::demo::vendor::Received;

use super::{ask_raw, charged};
use crate::{prelude::*, replies};

/// The formats of callers, each with the path at which a vendor that speaks this format is called.
const CALLERS: [(&str, &str); 3] = [
    ("chat", "/chat/completions"),
    ("messages", "/v1/messages"),
    ("responses", "/responses"),
];
/// The cost of nine input tokens and two output tokens, in micro-rubles.
const COST: u64 = 9 * 100 + 2 * 200;

/// Starts a gateway whose model `chat` has a vendor with these formats. The vendor responds in the format of the
/// requested path.
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

/// Returns the body of a caller of this format.
fn body(caller: &str) -> Value {
    match caller {
        "chat" => Op::Chat.body("привет"),
        "messages" => with(Op::Messages.body("привет"), json!({ "model": "chat" })),
        _ => super::body(json!({ "max_output_tokens": 100 })),
    }
}

/// Returns a body with a field that exists only in the caller's format.
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

/// Returns the text of a response, from the field that contains it in the caller's format.
fn reported(caller: &str, answer: &Answer) -> Value {
    let answer = answer.json();
    match caller {
        "chat" => answer["choices"][0]["message"]["content"].clone(),
        "messages" => answer["content"][0]["text"].clone(),
        _ => answer["output"][0]["content"][0]["text"].clone(),
    }
}

#[tokio::test]
async fn vendor_with_all_formats_gets_each_call_untranslated() {
    // This tests all orders of the formats, so that each format is the vendor's first format once.
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
            assert_eq!(reported(caller, &answer), "да");
            charged(caller, &world, &answer, COST, false).await;
        }
    }
}

#[tokio::test]
async fn call_in_an_unsupported_format_is_translated_to_the_vendors_first_format() {
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
            assert_eq!(reported(caller, &answer), "да");
            charged(caller, &world, &answer, COST, false).await;
        }
    }
}

#[tokio::test]
async fn hold_and_output_maximum_follow_the_format_in_which_the_vendor_is_called() {
    // Vendors of the Responses format refuse an output maximum below 16, so a translated maximum is raised to 16.
    let world = speaking(&["responses", "chat"]).await;
    let key = world.key().await;
    for (caller, field, ceiling, cost, cut) in [
        // The request allows one output token. The vendor reports two, and one is charged.
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
async fn token_counting_uses_the_messages_format_even_if_it_is_the_vendors_second_format() {
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

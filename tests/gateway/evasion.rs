//! Ways to get more than is paid for, each closed.

use std::sync::Arc;

use http::{HeaderValue, header::HOST};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::Notify};
use tollgate::demo::vendor::{Reply, Step};

use crate::{
    harness::{Key, Setup, World, chat_body, eventually, messages_body, next_text, with},
    ops::limits,
};

/// The newest body that the vendor was sent.
fn sent(world: &World) -> Value {
    world.vendor.received().last().unwrap().json()
}

#[tokio::test]
async fn a_ceiling_above_the_models_own_reaches_the_vendor_as_the_models() {
    let world = World::start().await;
    let key = world.key().await;
    let chat = with(chat_body("x"), json!({ "max_tokens": 128_000 }));
    assert_eq!(world.chat(&key, &chat).await.status, 200);
    assert_eq!(sent(&world)["max_tokens"], 4000);
    let messages = with(messages_body("x"), json!({ "max_tokens": 128_000 }));
    assert_eq!(world.messages(&key, &messages).await.status, 200);
    assert_eq!(sent(&world)["max_tokens"], 4000);
}

/// And no other: a vendor may refuse the two together. Null is no ceiling, and may stay.
#[tokio::test]
async fn a_ceiling_has_the_name_that_the_vendor_knows() {
    const NAMES: [&str; 2] = ["max_tokens", "max_completion_tokens"];
    for (of_vendor, name) in NAMES.into_iter().enumerate() {
        let field = format!("id = \"chat\"\noutput_field = \"{name}\"");
        let setup = Setup::default().edit("id = \"chat\"", &field);
        let world = setup.start().await;
        let key = world.key().await;
        let other = NAMES[1 - of_vendor];
        // What the caller says by the vendor's name and by the other; which of them the vendor is sent, and how many.
        for (by_name, by_other, sent_by, tokens) in [
            (None, Some(json!(null)), name, 4000),
            (None, None, name, 4000),
            (Some(json!(7)), None, name, 7),
            (Some(json!(null)), None, name, 4000),
            (Some(json!(7)), Some(json!(null)), name, 7),
            (Some(json!(99_999)), Some(json!(null)), name, 4000),
            (Some(json!(null)), Some(json!(null)), name, 4000),
            // Every vendor knows the older one.
            (None, Some(json!(7)), "max_tokens", 7),
            (None, Some(json!(99_999)), "max_tokens", 4000),
            (Some(json!(null)), Some(json!(7)), "max_tokens", 7),
            (Some(json!(null)), Some(json!(99_999)), "max_tokens", 4000),
        ] {
            let mut body = chat_body("x");
            let fields = body.as_object_mut().unwrap();
            fields.remove("max_tokens");
            let given = [(name, by_name), (other, by_other)];
            let given = given
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            fields.extend(given);
            let answer = world.chat(&key, &body).await;
            assert_eq!(answer.status, 200, "{body}");
            let sent = sent(&world);
            for name in NAMES {
                let expected = if name == sent_by {
                    json!(tokens)
                } else {
                    json!(null)
                };
                assert_eq!(sent[name], expected, "{body}: {name}");
            }
        }
    }
}

#[tokio::test]
async fn names_that_differ_from_ours_by_case_alone_are_refused() {
    let world = World::start().await;
    let key = world.key().await;
    for name in [
        "Model",
        "MAX_TOKENS",
        "N",
        "me\u{17f}\u{17f}ages",
        "\u{212a}",
    ] {
        let body = with(chat_body("x"), json!({ name: 1 }));
        let answer = world.chat(&key, &body).await;
        // The last one folds to no name of ours.
        let expected = if name == "\u{212a}" { 200 } else { 400 };
        assert_eq!(answer.status, expected, "{name}: {answer:?}");
    }
}

#[tokio::test]
async fn fields_that_change_the_price_or_the_model_unseen_are_refused_by_name() {
    let world = World::start().await;
    let key = world.key().await;
    for (name, value) in [
        ("models", json!(["dearer"])),
        ("provider", json!({ "order": ["dearest"] })),
        ("fallbacks", json!(["dearer"])),
        ("route", json!("fallback")),
        ("plugins", json!([{ "id": "web" }])),
        ("search_parameters", json!({ "mode": "on" })),
        ("best_of", json!(20)),
    ] {
        let answer = world
            .chat(&key, &with(chat_body("x"), json!({ name: value })))
            .await;
        assert_eq!(answer.status, 400, "{name}");
        assert!(
            answer.refusal().contains(name),
            "{name}: {}",
            answer.refusal()
        );
    }
    let video = json!([{ "type": "video_url", "video_url": { "url": "https://a.example/v" } }]);
    let body = with(
        chat_body("x"),
        json!({ "messages": [{ "role": "user", "content": video }] }),
    );
    let refusal = world.chat(&key, &body).await.refusal();
    assert!(refusal.contains("messages[0].content[0].type"), "{refusal}");
}

#[tokio::test]
async fn betas_that_change_the_price_do_not_cross() {
    let world = World::start().await;
    let key = world.key().await;
    let mut req = world.messages_request(&key, &messages_body("x"));
    let betas = "effort-2025-11-24, context-1m-2025-08-07,Context-1M-2025-08-07,x-1";
    req.headers_mut()
        .insert("anthropic-beta", betas.parse().unwrap());
    assert_eq!(world.ask(req).await.status, 200);
    let received = world.vendor.received();
    assert_eq!(
        received[0].headers["anthropic-beta"],
        "effort-2025-11-24,x-1"
    );
}

#[tokio::test]
async fn a_messages_vendor_is_told_a_version_also_for_chat_callers() {
    let world = World::start().await;
    let key = world.key().await;
    let body = with(chat_body("x"), json!({ "model": "messages" }));
    assert_eq!(world.chat(&key, &body).await.status, 200);
    let received = world.vendor.received();
    assert_eq!(received[0].headers["anthropic-version"], "2023-06-01");
}

/// Reasoning that was not shown is in the usage alone.
#[tokio::test]
async fn whoever_leaves_between_the_last_text_and_the_usage_pays_the_usage() {
    let world = limits("in_flight_max = 1").start().await;
    let key = world.key().await;
    let go = Arc::new(Notify::new());
    let chunk = |choices: Value, usage: Value| {
        let chunk = json!({ "id": "1", "object": "chat.completion.chunk", "created": 1,
            "model": "m", "choices": choices, "usage": usage });
        Step::Send(format!("data: {chunk}\n\n").into())
    };
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 90, "total_tokens": 99 });
    let choice = json!([{ "index": 0, "delta": { "content": "42" }, "finish_reason": "stop" }]);
    let steps = vec![
        chunk(choice, Value::Null),
        Step::Hold(Arc::clone(&go)),
        chunk(json!([]), usage),
        Step::Send("data: [DONE]\n\n".into()),
    ];
    world
        .vendor
        .script(move |_| Reply::raw(200, "text/event-stream", steps.clone()));
    let number = leave_after_first_frame(&world, &key).await;
    // The gateway has noticed when the call's permit is free again.
    eventually("the gateway has noticed", async || {
        (world.get("/v1/tollgate/models", &[]).await.status == 200).then_some(())
    })
    .await;
    go.notify_one();
    let receipt = world.receipt(&number).await;
    assert_eq!(receipt["usage"]["output"], 90, "{receipt}");
    assert_eq!(
        (&receipt["estimated"], &receipt["end"]),
        (&json!(false), &json!("finished"))
    );
}

/// Sends a streamed chat call on a connection of its own, reads the first frame and closes it.
async fn leave_after_first_frame(world: &World, key: &Key) -> String {
    let socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
        .await
        .unwrap();
    let mut connections = tokio::task::JoinSet::new();
    connections.spawn(connection);
    let body = with(chat_body("x"), json!({ "stream": true }));
    let mut req = world.chat_request(key, &body);
    let host = HeaderValue::from_static("gateway.example");
    req.headers_mut().insert(HOST, host);
    let res = sender.send_request(req).await.unwrap();
    let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
    let mut body = res.into_body();
    assert!(next_text(&mut body).await.unwrap().contains("42"));
    drop((body, sender));
    connections.shutdown().await;
    number
}

#[tokio::test]
async fn an_answer_that_cannot_be_translated_costs_nothing() {
    let world = World::start().await;
    let key = world.key().await;
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 90, "total_tokens": 99 });
    world
        .vendor
        .script(move |_| Reply::json(200, &json!({ "choices": [], "usage": usage })));
    let body = with(messages_body("x"), json!({ "model": "chat" }));
    assert_eq!(world.messages(&key, &body).await.status, 502);
    assert_eq!(world.settled(&key).await["spent_rub"], "0.00");
}

/// What the vendor overran is the ledger's to weigh: charged from free money, else loss.
#[tokio::test]
async fn output_beyond_the_ceiling_is_charged_and_what_does_not_fit_is_loss() {
    let world = World::start().await;
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 3000, "total_tokens": 3009 });
    world.vendor.script(move |_| {
        let message = json!({ "role": "assistant", "content": "x" });
        let choices = json!([{ "index": 0, "message": message, "finish_reason": "stop" }]);
        Reply::json(
            200,
            &json!({ "id": "1", "object": "chat.completion", "created": 1,
            "model": "m", "choices": choices, "usage": usage }),
        )
    });
    let rich = world.key().await;
    let answer = world.chat(&rich, &chat_body("x")).await;
    assert_eq!(
        world.receipt(&answer.number()).await["charged_rub"],
        "0.6009"
    );
    let poor = world.key_with("poor", "0.10", json!({})).await;
    let answer = world.chat(&poor, &chat_body("x")).await;
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(
        (&receipt["charged_rub"], &receipt["loss_rub"]),
        (&json!("0.10"), &json!("0.5009"))
    );
    assert_eq!(world.settled(&poor).await["balance_rub"], "0.00");
}

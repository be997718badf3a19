//! Tests of specification sections 2.1, 2.2 and 4.1: the chat-completions operation.

use crate::prelude::*;

fn turns() -> Value {
    json!([{ "role": "user", "content": "x" }])
}

/// Returns a Chat Completions request with these messages.
fn of(messages: Value) -> Value {
    let mut body = json!({ "model": "chat" });
    body["messages"] = messages;
    body
}

/// Returns a valid Chat Completions request with this additional field.
fn also(name: &str, value: Value) -> Value {
    let mut body = of(turns());
    body[name] = value;
    body
}

#[tokio::test]
async fn model_is_a_required_string() {
    let bodies = [
        json!({ "messages": turns() }),
        also("model", Value::Null),
        also("model", json!(7)),
        also("model", json!(["chat"])),
    ];
    refuses(Op::Chat, "model", bodies).await;
}

#[tokio::test]
async fn messages_is_a_required_array_that_is_not_empty() {
    let bodies = [
        json!({ "model": "chat" }),
        of(Value::Null),
        of(json!("x")),
        of(json!({ "role": "user", "content": "x" })),
        of(json!([])),
    ];
    refuses(Op::Chat, "messages", bodies).await;
    refuses(Op::Chat, "messages[0]", [of(json!(["x"]))]).await;
}

#[tokio::test]
async fn message_role_is_required_and_must_be_known() {
    let bodies = [
        of(json!([{ "content": "x" }])),
        of(json!([{ "role": null, "content": "x" }])),
        of(json!([{ "role": 1, "content": "x" }])),
        of(json!([{ "role": "king", "content": "x" }])),
        of(json!([{ "role": "User", "content": "x" }])),
    ];
    refuses(Op::Chat, "messages[0].role", bodies).await;
}

#[tokio::test]
async fn message_content_is_required_and_must_be_text() {
    let bodies = [
        of(json!([{ "role": "user" }])),
        of(json!([{ "role": "user", "content": null }])),
        of(json!([{ "role": "user", "content": 5 }])),
        of(json!([{ "role": "system", "content": { "text": "x" } }])),
    ];
    refuses(Op::Chat, "messages[0].content", bodies).await;
    let second = json!([{ "role": "user", "content": "x" }, { "role": "user", "content": true }]);
    refuses(Op::Chat, "messages[1].content", [of(second)]).await;
}

#[tokio::test]
async fn max_tokens_is_an_integer_of_at_least_1() {
    let bad = [json!(0), json!(-1), json!(1.5), json!("5"), json!(true)];
    let bodies = bad.map(|value| also("max_tokens", value));
    refuses(Op::Chat, "max_tokens", bodies).await;
}

#[tokio::test]
async fn max_tokens_may_be_absent_or_1() {
    let (world, key) = World::start_with_key().await;
    for body in [of(turns()), also("max_tokens", json!(1))] {
        assert_eq!(world.chat(&key, &body).await.status, 200, "{body}");
    }
}

#[tokio::test]
async fn stream_field_must_be_a_boolean() {
    let bodies = [json!("true"), json!(1), json!({})].map(|value| also("stream", value));
    refuses(Op::Chat, "stream", bodies).await;
}

#[tokio::test]
async fn answer_is_json_if_stream_is_absent_or_false() {
    let (world, key) = World::start_with_key().await;
    for body in [of(turns()), also("stream", json!(false))] {
        let answer = world.chat(&key, &body).await;
        assert_eq!(answer.headers["content-type"], "application/json", "{body}");
        assert_eq!(answer.json()["object"], "chat.completion", "{body}");
    }
}

#[tokio::test]
async fn messages_of_all_roles_reach_the_model_in_order() {
    let (world, key) = World::start_with_key().await;
    let turns = json!([
        { "role": "system", "content": "Отвечай кратко." },
        { "role": "user", "content": "раз" },
        { "role": "assistant", "content": "два" },
        { "role": "user", "content": "три" },
    ]);
    let answer = world.chat(&key, &of(turns.clone())).await;
    assert_eq!(
        answer.json()["choices"][0]["message"]["content"],
        "Вы написали: три"
    );
    assert_eq!(world.vendor.received()[0].json()["messages"], turns);
}

#[tokio::test]
async fn catalog_name_selects_the_vendors_model() {
    let (world, key) = World::start_with_key().await;
    world.chat(&key, &chat_body("x")).await;
    let received = world.vendor.received();
    assert_eq!(received[0].path, "/v1/chat/completions");
    assert_eq!(received[0].json()["model"], "vendor-chat-1");
}

#[tokio::test]
async fn an_answer_has_every_field_that_the_specification_requires() {
    let (world, key) = World::start_with_key().await;
    let answer = world
        .chat(&key, &chat_body("Привет, мир"))
        .await
        .expect(200);
    let body = answer.json();
    assert!(body["id"].is_string(), "{body}");
    assert!(body["model"].is_string(), "{body}");
    assert_eq!(body["object"], "chat.completion");
    assert!(body["created"].is_u64(), "{body}");
    assert_eq!(body["choices"].as_array().unwrap().len(), 1);
    let choice = &body["choices"][0];
    assert_eq!(choice["index"], 0);
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "Вы написали: Привет, мир");
    assert_eq!(choice["finish_reason"], "stop");
    let tokens = |name: &str| body["usage"][name].as_u64().unwrap();
    assert_eq!(
        tokens("total_tokens"),
        tokens("prompt_tokens") + tokens("completion_tokens")
    );
}

#[tokio::test]
async fn a_reply_that_reaches_max_tokens_has_the_finish_reason_length() {
    let (world, key) = World::start_with_key().await;
    let body = with(chat_body("раз два три"), json!({ "max_tokens": 2 }));
    let answer = world.chat(&key, &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn answer_may_contain_the_vendors_full_model_name() {
    let (world, key) = World::start_with_key().await;
    let answer = world.chat(&key, &chat_body("x")).await;
    assert_eq!(answer.json()["model"], "vendor-chat-1");
}

#[tokio::test]
async fn output_includes_reasoning_and_is_charged_with_it() {
    let (world, key) = World::start_with_key().await;
    // 80 of the 90 output tokens are reasoning. Most vendors include reasoning in `completion_tokens`; one vendor
    // counts it in addition to them.
    for (completion, total) in [(90, 100), (10, 100)] {
        let usage = json!({
            "prompt_tokens": 10, "completion_tokens": completion, "total_tokens": total,
            "completion_tokens_details": { "reasoning_tokens": 80 },
        });
        world.vendor_sends(Reply::json(200, &answer(Op::Chat, "да", &usage)));
        let answer = world.chat(&key, &chat_body("x")).await;
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["usage"]["output"], 90, "{receipt}");
        // The charge is 10 × 100 + 90 × 200 µ₽.
        assert_eq!(receipt["charged_rub"], "0.019", "{receipt}");
    }
}

#[tokio::test]
async fn events_of_a_streamed_answer_add_up_to_the_reply_and_end_with_done() {
    let (world, key) = World::start_with_key().await;
    let body = with(chat_body("раз два"), json!({ "stream": true }));
    let answer = world.chat(&key, &body).await.expect(200);
    let kind = answer.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    let text = answer.text();
    let events: Vec<&str> = text
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").unwrap())
        .collect();
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!(*last, "[DONE]");
    let reply: String = chunks
        .iter()
        .map(|chunk| serde_json::from_str::<Value>(chunk).unwrap())
        .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert_eq!(reply, "Вы написали: раз два");
}

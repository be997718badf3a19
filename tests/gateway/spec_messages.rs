//! Tests of specification sections 2.3, 2.4 and 4.2: the messages operation.

use crate::prelude::*;

fn turns() -> Value {
    json!([{ "role": "user", "content": "x" }])
}

/// Returns a Messages request with these messages.
fn of(messages: Value) -> Value {
    let mut body = json!({ "model": "messages", "max_tokens": 100 });
    body["messages"] = messages;
    body
}

/// Returns a valid Messages request in which this field is added or replaced.
fn also(name: &str, value: Value) -> Value {
    let mut body = of(turns());
    body[name] = value;
    body
}

/// Returns a valid Messages request without this field.
fn without(name: &str) -> Value {
    let mut body = of(turns());
    body.as_object_mut().unwrap().remove(name);
    body
}

#[tokio::test]
async fn model_is_a_required_string() {
    let bodies = [
        without("model"),
        also("model", Value::Null),
        also("model", json!(7)),
    ];
    refuses(Op::Messages, "model", bodies).await;
}

#[tokio::test]
async fn max_tokens_is_required_and_an_integer_of_at_least_1() {
    let bad = [
        Value::Null,
        json!(0),
        json!(-1),
        json!(1.5),
        json!("5"),
        json!([5]),
    ];
    let bodies = bad.map(|value| also("max_tokens", value));
    refuses(Op::Messages, "max_tokens", bodies).await;
    refuses(Op::Messages, "max_tokens", [without("max_tokens")]).await;
}

#[tokio::test]
async fn system_is_optional_text_that_reaches_the_model() {
    let bodies = [json!(7), json!(true), json!({ "text": "x" })].map(|bad| also("system", bad));
    refuses(Op::Messages, "system", bodies).await;

    let (world, key) = World::start_with_key().await;
    let body = also("system", json!("Отвечай кратко."));
    assert_eq!(world.messages(&key, &body).await.status, 200);
    assert_eq!(
        world.vendor.received()[0].json()["system"],
        "Отвечай кратко."
    );
}

#[tokio::test]
async fn messages_is_a_required_array_that_is_not_empty() {
    let bodies = [
        without("messages"),
        of(Value::Null),
        of(json!("x")),
        of(json!([])),
    ];
    refuses(Op::Messages, "messages", bodies).await;
    refuses(Op::Messages, "messages[0]", [of(json!([7]))]).await;
}

#[tokio::test]
async fn message_role_is_required_and_must_be_known() {
    let bodies = [
        of(json!([{ "content": "x" }])),
        of(json!([{ "role": 1, "content": "x" }])),
        of(json!([{ "role": "tool", "content": "x" }])),
        of(json!([{ "role": "USER", "content": "x" }])),
    ];
    refuses(Op::Messages, "messages[0].role", bodies).await;
}

#[tokio::test]
async fn message_content_is_required_and_must_be_text() {
    let bodies = [
        of(json!([{ "role": "user" }])),
        of(json!([{ "role": "user", "content": null }])),
        of(json!([{ "role": "assistant", "content": 5 }])),
    ];
    refuses(Op::Messages, "messages[0].content", bodies).await;
}

#[tokio::test]
async fn stream_field_must_be_a_boolean_and_is_false_by_default() {
    let bodies = [json!("true"), json!(1)].map(|value| also("stream", value));
    refuses(Op::Messages, "stream", bodies).await;

    let (world, key) = World::start_with_key().await;
    for body in [of(turns()), also("stream", json!(false))] {
        let answer = world.messages(&key, &body).await;
        assert_eq!(answer.headers["content-type"], "application/json", "{body}");
        assert_eq!(answer.json()["type"], "message", "{body}");
    }
}

#[tokio::test]
async fn user_and_assistant_turns_reach_the_model_in_order() {
    let (world, key) = World::start_with_key().await;
    let turns = json!([
        { "role": "user", "content": "раз" },
        { "role": "assistant", "content": "два" },
        { "role": "user", "content": "три" },
    ]);
    assert_eq!(world.messages(&key, &of(turns.clone())).await.status, 200);
    let received = world.vendor.received();
    assert_eq!(received[0].path, "/v1/messages");
    assert_eq!(received[0].json()["messages"], turns);
    assert_eq!(received[0].json()["model"], "vendor-messages-1");
}

#[tokio::test]
async fn anthropic_version_header_is_required() {
    let (world, key) = World::start_with_key().await;
    let (bearer, url) = (bearer(&key), world.url("/v1/messages"));
    let body = messages_body("x").to_string();
    let good = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
    ];
    let empty = [good[0], good[1], ("anthropic-version", "")];
    for headers in [&good[..], &empty[..]] {
        let answer = world
            .ask(request(Method::POST, &url, headers, body.clone().into()))
            .await;
        let text = refused("version missing", &answer, 400, INVALID, "");
        assert!(text.contains("заголовок «anthropic-version»"), "{text}");
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn any_nonempty_anthropic_version_header_is_accepted_and_forwarded() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    let versions = ["2023-06-01", "2026-10-21", "1999-01-01", "next"];
    for version in versions {
        let headers = [
            ("authorization", bearer.as_str()),
            ("anthropic-version", version),
        ];
        let answer = Op::Messages
            .post(&world, &headers, messages_body("x").to_string())
            .await;
        assert_eq!(answer.status, 200, "{version}");
    }
    let received = world.vendor.received();
    let sent: Vec<_> = received
        .iter()
        .map(|received| &received.headers["anthropic-version"])
        .collect();
    assert_eq!(sent, versions);
}

#[tokio::test]
async fn an_answer_has_every_field_that_the_specification_requires() {
    let (world, key) = World::start_with_key().await;
    let answer = world
        .messages(&key, &messages_body("Привет, мир"))
        .await
        .expect(200);
    let body = answer.json();
    assert!(body["id"].is_string(), "{body}");
    assert!(body["model"].is_string(), "{body}");
    assert_eq!(body["type"], "message");
    assert_eq!(body["role"], "assistant");
    let expected = json!([{ "type": "text", "text": "Вы написали: Привет, мир" }]);
    assert_eq!(body["content"], expected);
    assert_eq!(body["stop_reason"], "end_turn");
    for count in ["input_tokens", "output_tokens"] {
        assert!(body["usage"][count].is_u64(), "{count}: {body}");
    }
}

#[tokio::test]
async fn a_reply_that_reaches_max_tokens_has_the_stop_reason_max_tokens() {
    let (world, key) = World::start_with_key().await;
    let body = with(messages_body("раз два три"), json!({ "max_tokens": 2 }));
    let answer = world.messages(&key, &body).await.json();
    assert_eq!(answer["stop_reason"], "max_tokens");
    assert_eq!(answer["usage"]["output_tokens"], 2);
}

#[tokio::test]
async fn events_of_a_streamed_answer_add_up_to_the_reply() {
    let (world, key) = World::start_with_key().await;
    let body = with(messages_body("раз два"), json!({ "stream": true }));
    let answer = world.messages(&key, &body).await.expect(200);
    let kind = answer.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    let (mut names, mut reply) = (Vec::new(), String::new());
    let text = answer.text();
    for event in told_cost(&text).0.split_terminator("\n\n") {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
        reply.push_str(data["delta"]["text"].as_str().unwrap_or_default());
        names.push(data["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(names.first().unwrap(), "message_start");
    assert_eq!(names.last().unwrap(), "message_stop");
    assert_eq!(reply, "Вы написали: раз два");
}

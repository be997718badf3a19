//! Tests of callers that try to get more than they pay for.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderValue, header::HOST};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::prelude::*;

/// Returns the latest body that the vendor has received.
fn sent(world: &World) -> Value {
    world.vendor.received().last().unwrap().json()
}

#[tokio::test]
async fn requested_output_maximum_is_capped_at_the_models_maximum() {
    let (world, key) = World::start_with_key().await;
    let chat = with(chat_body("x"), json!({ "max_tokens": 128_000 }));
    assert_eq!(world.chat(&key, &chat).await.status, 200);
    assert_eq!(sent(&world)["max_tokens"], 4000);
    let messages = with(messages_body("x"), json!({ "max_tokens": 128_000 }));
    assert_eq!(world.messages(&key, &messages).await.status, 200);
    assert_eq!(sent(&world)["max_tokens"], 4000);
}

/// Only the field that the vendor supports is sent, because a vendor may refuse a body with both fields. A field with
/// the value null sets no limit, so such a field may stay in the body.
#[tokio::test]
async fn output_maximum_is_sent_under_the_vendors_field_name() {
    const NAMES: [&str; 2] = ["max_tokens", "max_completion_tokens"];
    for (of_vendor, name) in NAMES.into_iter().enumerate() {
        let field = format!("id = \"chat\"\noutput_field = \"{name}\"");
        let setup = Setup::default().edit("id = \"chat\"", &field);
        let (world, key) = setup.start_with_key().await;
        let other = NAMES[1 - of_vendor];
        // The columns are: the caller's value in the field that the vendor supports, the caller's value in the other
        // field, and the field with the number that the vendor receives.
        for (by_name, by_other, sent_by, tokens) in [
            (None, Some(json!(null)), name, 4000),
            (None, None, name, 4000),
            (Some(json!(7)), None, name, 7),
            (Some(json!(null)), None, name, 4000),
            (Some(json!(7)), Some(json!(null)), name, 7),
            (Some(json!(99_999)), Some(json!(null)), name, 4000),
            (Some(json!(null)), Some(json!(null)), name, 4000),
            // A limit that the caller set in the other field is sent as `max_tokens`, which every vendor supports.
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
async fn field_names_that_differ_only_in_case_are_refused() {
    let (world, key) = World::start_with_key().await;
    for name in [
        "Model",
        "MAX_TOKENS",
        "N",
        "me\u{17f}\u{17f}ages",
        "\u{212a}",
    ] {
        let body = with(chat_body("x"), json!({ name: 1 }));
        let answer = world.chat(&key, &body).await;
        // In lower case, the Kelvin sign (U+212A) is the letter `k`. The gateway reads no field with the name `k`, so
        // it accepts this field.
        let expected = if name == "\u{212a}" { 200 } else { 400 };
        assert_eq!(answer.status, expected, "{name}: {answer:?}");
    }
}

#[tokio::test]
async fn field_that_could_secretly_change_the_price_or_model_is_refused_and_named() {
    let (world, key) = World::start_with_key().await;
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

/// Fields that select other models, routes or paid features are refused in every format.
#[tokio::test]
async fn price_changing_fields_reach_no_vendor() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for (name, value) in [
            ("models", json!(["dearer"])),
            ("provider", json!({ "order": ["dearest"] })),
            ("plugins", json!([{ "id": "web" }])),
            ("route", json!("fallback")),
            ("search_parameters", json!({ "mode": "on" })),
            ("enable_search", json!(true)),
            ("web_search_options", json!({})),
            ("best_of", json!(20)),
            ("anthropic_beta", json!(["context-1m-2025-08-07"])),
            ("betas", json!(["context-1m-2025-08-07"])),
            ("extra_body", json!({ "models": ["dearer"] })),
            ("tools", json!([{ "google_search": {} }])),
            ("tools", json!([{ "name": "f", "googleSearch": {} }])),
        ] {
            let what = format!("{op:?} {name}");
            let body = with(op.body("x"), json!({ name: value }));
            let answer = op.call(&world, &key, &body).await;
            assert_eq!(answer.status, 400, "{what}: {answer:?}");
            assert!(answer.refusal().contains(name), "{what}");
        }
        let nothing =
            json!({ "models": [], "provider": null, "enable_search": false, "betas": [] });
        let answer = op.call(&world, &key, &with(op.body("x"), nothing)).await;
        assert_eq!(answer.status, 200, "{op:?}: {answer:?}");
    }
    assert_eq!(world.vendor.received().len(), 2);
    let body = with(messages_body("x"), json!({ "n": 2 }));
    let refusal = world.messages(&key, &body).await.refusal();
    assert!(refusal.contains("«n»"), "{refusal}");
}

#[tokio::test]
async fn beta_headers_that_change_the_price_are_not_forwarded() {
    let (world, key) = World::start_with_key().await;
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
async fn messages_vendor_gets_a_version_header_with_calls_of_chat_callers() {
    let (world, key) = World::start_with_key().await;
    let body = with(chat_body("x"), json!({ "model": "messages" }));
    assert_eq!(world.chat(&key, &body).await.status, 200);
    let received = world.vendor.received();
    assert_eq!(received[0].headers["anthropic-version"], "2023-06-01");
}

/// The vendor reports hidden reasoning only in the usage, which arrives after the client has disconnected.
#[tokio::test]
async fn client_that_disconnects_before_the_usage_arrives_pays_for_it() {
    let (world, key) = limits("in_flight_max = 1").start_with_key().await;
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
    world.vendor_sends(Reply::raw(200, "text/event-stream", steps));
    let number = leave_after_first_frame(&world, &key).await;
    // The gateway admits one call at a time. When it admits another call, it has noticed the disconnect.
    eventually("the gateway has noticed", async || {
        (world.get("/v1/tollgate/models", &[]).await.status == 200).then_some(())
    })
    .await;
    go.notify_one();
    let receipt = world.receipt(&number).await;
    assert_eq!(receipt["usage"]["output"], 90, "{receipt}");
    assert_eq!(receipt["estimated"], false);
    assert_eq!(receipt["end"], "finished");
}

/// Sends a streamed chat call on a new connection, reads the first frame, and closes the connection.
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
async fn empty_answer_is_charged_by_its_usage_and_invalid_answer_is_free() {
    let (world, key) = World::start_with_key().await;
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 90, "total_tokens": 99 });
    let body = with(messages_body("x"), json!({ "model": "chat" }));
    for (choices, usage, status, spent) in [
        (json!([]), usage.clone(), 200, "0.0189"),
        // The gateway cannot translate this response, but the vendor bills for it.
        (
            json!([{ "message": { "tool_calls": [{}] } }]),
            usage,
            502,
            "0.0378",
        ),
        (
            json!([{ "message": { "tool_calls": [{}] } }]),
            Value::Null,
            502,
            "0.0378",
        ),
    ] {
        world.vendor_sends(Reply::json(
            200,
            &json!({ "choices": choices, "usage": usage }),
        ));
        let answer = world.messages(&key, &body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(world.settled(&key).await["spent_rub"], spent);
    }
}

/// A charge never exceeds what the request allows. The operator bears the cost of further output as a loss.
#[tokio::test]
async fn output_beyond_the_requested_maximum_is_not_charged_and_is_a_loss() {
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
    let key = world.key_with("poor", "0.10", json!({})).await;
    let answer = world.chat(&key, &chat_body("x")).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 100);
    let receipt = world.receipt(&answer.number()).await;
    let [charged, loss, cut] =
        ["charged_rub", "loss_rub", "bounded_loss_rub"].map(|field| &receipt[field]);
    // The charge is 9 × 100 + 100 × 200 µ₽. The vendor bills for 2900 further output tokens at 200 µ₽ each.
    assert_eq!((charged, loss), (&json!("0.0209"), &json!("0.00")));
    assert_eq!(cut, "0.58");
    assert_eq!(world.settled(&key).await["balance_rub"], "0.0791");
}

/// Returns a Messages request whose only content is an attached document with this source.
fn with_document(source: &Value) -> Value {
    let document = json!({ "type": "document", "source": source });
    let turns = json!([{ "role": "user", "content": [document] }]);
    with(messages_body("x"), json!({ "messages": turns }))
}

fn pdf(pages: usize) -> Value {
    let page = "3 0 obj << /Type /Page /Parent 2 0 R >> endobj\n".repeat(pages);
    let file = STANDARD.encode(format!("%PDF-1.7\n{page}"));
    json!({ "type": "base64", "media_type": "application/pdf", "data": file })
}

#[tokio::test]
async fn document_attached_by_url_is_refused_unless_a_context_window_bounds_its_hold() {
    let by_address = with_document(&json!({ "type": "url", "url": "https://files.example/1.pdf" }));
    let (world, key) = World::start_with_key().await;
    let reported = world.messages(&key, &by_address).await;
    let text = refused("by address", &reported, 400, INVALID, "");
    assert!(text.contains("messages[0].content[0].source"), "{text}");
    cost_nothing("a document by address", &world, &key, &reported).await;

    let window = "id = \"messages\"\ninput_tokens_max = 100_000";
    let (world, key) = Setup::default()
        .edit("id = \"messages\"", window)
        .start_with_key()
        .await;
    world.vendor_sends(plain_reply(Op::Messages, "x", 100_000, 5));
    let reported = world.messages(&key, &by_address).await;
    let receipt = world.receipt(&reported.number()).await;
    assert_eq!(receipt["usage"]["input"], 100_000, "{receipt}");
    hold_covers_charge(&receipt);
}

/// The vendor may count ninety pages as 720 000 tokens. A hold of 50 000 tokens would cover only a fourteenth of that.
#[tokio::test]
async fn hold_of_a_long_attached_document_covers_its_pages() {
    let (world, key) = World::start_with_key().await;
    for pages in [1, 90] {
        let tokens = 8_000 * pages as u64;
        world.vendor_sends(plain_reply(Op::Messages, "x", tokens, 5));
        let reported = world.messages(&key, &with_document(&pdf(pages))).await;
        let receipt = world.receipt(&reported.number()).await;
        assert_eq!(receipt["usage"]["input"], tokens, "{receipt}");
        hold_covers_charge(&receipt);
        assert_eq!(receipt["loss_rub"], "0.00", "{receipt}");
    }
}

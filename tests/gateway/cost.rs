//! Tests of a call's cost in its response: in a header of a plain response, or in a comment before the last event of a
//! stream.

use crate::prelude::*;

/// Pairs of formats: the operation that the caller uses, and the operation in whose format the vendor answers.
const WAYS: [(Op, Op); 4] = [
    (Op::Chat, Op::Chat),
    (Op::Chat, Op::Messages),
    (Op::Messages, Op::Messages),
    (Op::Messages, Op::Chat),
];

fn to(op: Op, vendor: Op, fields: Value) -> Value {
    let body = with(op.body("x"), json!({ "model": vendor.model() }));
    with(body, fields)
}

/// Returns a streamed request. A Chat Completions request also requests usage, which streams of the other formats
/// always contain.
fn streamed(op: Op, vendor: Op) -> Value {
    let body = to(op, vendor, json!({ "stream": true }));
    match op {
        Op::Chat => with(body, json!({ "stream_options": { "include_usage": true } })),
        Op::Messages => body,
    }
}

#[tokio::test]
async fn plain_answer_has_its_cost_in_a_header() {
    let (world, key) = World::start_with_key().await;
    for (op, vendor) in WAYS {
        world.vendor_sends(plain_reply(vendor, "да", 9, 2));
        let answer = op
            .call(&world, &key, &to(op, vendor, json!({})))
            .await
            .expect(200);
        let length = answer.headers["content-length"].to_str().unwrap();
        assert_eq!(length, answer.body.len().to_string(), "{op:?} {vendor:?}");
        let receipt = world.receipt(&answer.number()).await;
        let cost = answer.headers["x-cost-rub"].to_str().unwrap();
        assert_eq!(receipt["charged_rub"], cost, "{op:?} {vendor:?}");
        assert_eq!(receipt["end"], "finished", "{receipt}");
    }
}

#[tokio::test]
async fn stream_has_its_cost_in_a_comment_before_the_last_event() {
    let (world, key) = World::start_with_key().await;
    for (op, vendor) in WAYS {
        world.vendor_sends(Reply::stream(events(vendor, &["раз ", "два"], 9, 2)));
        let answer = op.call(&world, &key, &streamed(op, vendor)).await;
        assert!(!answer.headers.contains_key("x-cost-rub"));
        let text = answer.text();
        let (returned, cost) = told_cost(&text);
        let last = match op {
            Op::Chat => "data: [DONE]\n\n",
            Op::Messages => "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        };
        let end = format!("\n\n: cost_rub {cost}\n\n{last}");
        assert!(text.ends_with(&end), "{op:?} {vendor:?}: {text}");
        assert!(!returned.contains("cost_rub"), "once: {text}");
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["charged_rub"], cost, "{op:?} {vendor:?}");
    }
}

#[tokio::test]
async fn chat_stream_without_usage_has_no_cost() {
    let (world, key) = World::start_with_key().await;
    for vendor in BOTH {
        world.vendor_sends(Reply::stream(events(vendor, &["раз"], 9, 2)));
        let body = to(Op::Chat, vendor, json!({ "stream": true }));
        let text = world.chat(&key, &body).await.text();
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        assert!(!text.contains("cost_rub"), "{text}");
    }
}

#[tokio::test]
async fn cost_comment_is_on_its_own_line_even_if_the_vendor_omits_line_ends() {
    let (world, key) = World::start_with_key().await;
    let whole = events(Op::Chat, &["раз"], 9, 2).concat();
    for (end, gap) in [("", "\n\n"), ("\n", "\n"), ("\n\n", "")] {
        for size in [1, whole.len()] {
            let reported = format!("{}{end}", whole.trim_end());
            let steps: Vec<Step> = reported
                .as_bytes()
                .chunks(size)
                .map(|piece| Step::Send(piece.to_vec().into()))
                .collect();
            world.vendor_sends(Reply::raw(200, "text/event-stream", steps));
            let body = streamed(Op::Chat, Op::Chat);
            let text = world.chat(&key, &body).await.text();
            let (events, _) = told_cost(&text);
            assert_eq!(events, format!("{reported}{gap}"), "in pieces of {size}");
        }
    }
}

#[tokio::test]
async fn broken_stream_reports_no_cost() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let go = Arc::new(Notify::new());
        world.vendor_sends(
            Reply::stream(events(op, &["раз ", "два"], 9, 2))
                .with_step(begun(op), Step::Cut)
                .with_step(begun(op), Step::Hold(Arc::clone(&go))),
        );
        let req = op.request(&world, &key, &streamed(op, op));
        let mut body = world.send(req).await.into_body();
        let mut text = read_until(&mut body, "раз").await;
        go.notify_one();
        text.push_str(&rest(&mut body).await);
        assert!(text.contains("\"error\""), "{text}");
        assert!(!text.contains("cost_rub"), "{text}");
    }
}

#[tokio::test]
async fn refusal_reports_no_cost() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for status in [400, 500] {
            world.vendor_sends(refusal(status, "no"));
            let answer = op.call(&world, &key, &op.body("x")).await;
            assert!(!answer.headers.contains_key("x-cost-rub"), "{answer:?}");
        }
        let reported = answer(op, "да", &usage(op, 9, 2)).to_string();
        let half = reported[..reported.len() / 2].to_owned();
        world.vendor.script(move |_| {
            let steps = vec![Step::Send(half.clone().into()), Step::Cut];
            Reply::raw(200, "application/json", steps)
        });
        let answer = op.call(&world, &key, &op.body("x")).await.expect(502);
        assert!(!answer.headers.contains_key("x-cost-rub"), "{answer:?}");
    }
    assert_eq!(world.settled(&key).await["spent_rub"], "0.00");
}

#[tokio::test]
async fn full_cost_is_reported_even_if_the_funds_cover_only_a_smaller_charge() {
    let world = World::start().await;
    // The hold counts 3000 bytes of text as 2000 tokens, but the vendor may count up to 3000 tokens.
    let body = Op::Chat.body(&"x".repeat(3000));
    world.vendor_sends(plain_reply(Op::Chat, "да", 3000, 100));
    let key = world.key_with("poor", "0.3", json!({})).await;
    let answer = world.chat(&key, &body).await;
    assert_eq!(answer.headers["x-cost-rub"], "0.32");
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(receipt["cost_rub"], "0.32", "{receipt}");
    assert_eq!(receipt["charged_rub"], "0.30", "{receipt}");
    assert_eq!(micro(&receipt["loss_rub"]), 20_000, "{receipt}");
}

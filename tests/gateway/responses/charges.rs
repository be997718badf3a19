//! Tests that translated responses are charged by the vendor's counts at the model's prices, exact to the micro-ruble,
//! whatever the translation changes.

use super::{
    setup,
    translated::{COST, ask, charged, response, returned, says},
};
use crate::prelude::*;

/// Returns a usage in the format of this vendor. At the prices of the model `chat` it costs `COST`. One of its five
/// output tokens is reasoning.
fn counts(vendor: Op) -> Value {
    let tokens = Tokens {
        input: 4,
        cached_input: 3,
        cache_write: 2,
        output: 5,
    };
    let details = match vendor {
        Op::Chat => json!({ "completion_tokens_details": { "reasoning_tokens": 1 } }),
        Op::Messages => json!({ "output_tokens_details": { "thinking_tokens": 1 } }),
    };
    with(tokens.usage(vendor), details)
}

/// Returns the cost of `counts`. The prices of the model `messages` are ten times as high as those of `chat`.
const fn cost(vendor: Op) -> i64 {
    match vendor {
        Op::Chat => COST,
        Op::Messages => 10 * COST,
    }
}

/// Returns a response with these fields of a chat message, or with this content of a Messages response, and with the
/// vendor's stop reason.
fn ends(vendor: Op, chat: &Value, messages: &Value, stop: [&str; 2]) -> Value {
    let whole = answer(vendor, "", &counts(vendor));
    match vendor {
        Op::Chat => {
            let message = with(
                json!({ "role": "assistant", "content": null }),
                chat.clone(),
            );
            with(
                whole,
                json!({ "choices": [{ "index": 0, "message": message, "finish_reason": stop[0] }] }),
            )
        }
        Op::Messages => with(
            whole,
            json!({ "content": messages, "stop_reason": stop[1] }),
        ),
    }
}

#[tokio::test]
async fn responses_caller_is_charged_by_the_counts_of_chat_and_messages_vendors() {
    let (world, key) = World::start_with_key().await;
    let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let used = |id: &str| json!({ "type": "tool_use", "id": id, "name": "f", "input": {} });
    let text = json!([{ "type": "text", "text": "да" }]);
    let cases = [
        (
            "r47",
            json!({ "content": "да", "tool_calls": [call("a"), call("b")] }),
            json!([{ "type": "text", "text": "да" }, used("a"), used("b")]),
            ["tool_calls", "tool_use"],
        ),
        (
            "r48",
            json!({ "content": "да" }),
            text.clone(),
            ["length", "max_tokens"],
        ),
        (
            "r49",
            json!({ "refusal": "нет" }),
            text.clone(),
            ["stop", "refusal"],
        ),
        (
            "r50",
            json!({ "content": "да", "reasoning_content": "хм" }),
            json!([{ "type": "thinking", "thinking": "хм", "signature": "s" }, { "type": "text", "text": "да" }]),
            ["stop", "end_turn"],
        ),
        (
            "r51",
            json!({ "content": "да" }),
            text,
            ["stop", "end_turn"],
        ),
        (
            "r54",
            json!({ "content": "" }),
            json!([]),
            ["stop", "end_turn"],
        ),
    ];
    for (case, chat, messages, stop) in &cases {
        for vendor in BOTH {
            let reply = ends(vendor, chat, messages, *stop);
            says(&world, Reply::json(200, &reply));
            let got = ask(&world, &key, json!({ "model": vendor.model() })).await;
            assert_eq!(got.status, 200, "{case} {vendor:?}: {}", got.text());
            let usage = got.json()["usage"].clone();
            let details = &usage["input_tokens_details"];
            assert_eq!(
                [
                    &usage["input_tokens"],
                    &details["cached_tokens"],
                    &details["cache_write_tokens"],
                    &usage["output_tokens"]
                ],
                [9, 3, 2, 5],
                "{case} {vendor:?}: {usage}"
            );
            assert_eq!(
                usage["output_tokens_details"]["reasoning_tokens"], 1,
                "{case} {vendor:?}"
            );
            charged(case, &world, &got, cost(vendor)).await;
        }
    }
}

#[tokio::test]
async fn caller_of_another_format_is_charged_by_the_counts_of_a_responses_vendor() {
    let (world, key) = setup().start_with_key().await;
    let message = |text: &str, phase: &str| {
        json!({ "type": "message", "role": "assistant", "phase": phase,
        "content": [{ "type": "output_text", "text": text, "annotations": [] }] })
    };
    let call = json!({ "type": "function_call", "call_id": "a", "name": "f", "arguments": "" });
    let cut =
        json!({ "status": "incomplete", "incomplete_details": { "reason": "max_output_tokens" } });
    let cases = [
        (
            "r71",
            json!({ "output": [message("раз", "commentary"), message("два", "final_answer")] }),
        ),
        (
            "r72, r74",
            json!({ "output": [message("раз", "final_answer"), call] }),
        ),
        (
            "r86",
            with(json!({ "output": [message("раз", "final_answer")] }), cut),
        ),
        ("nothing said", json!({ "output": [] })),
    ];
    for (case, fields) in cases {
        let whole = with(response("да"), fields);
        for caller in BOTH {
            says(&world, Reply::json(200, &whole));
            let body = with(caller.body("привет"), json!({ "model": "chat" }));
            let got = caller.call(&world, &key, &body).await;
            assert_eq!(got.status, 200, "{case} {caller:?}: {}", got.text());
            charged(case, &world, &got, COST).await;

            let created = json!({ "type": "response.created", "response": with(whole.clone(), json!({ "output": [], "usage": null })) });
            let kind = format!("response.{}", whole["status"].as_str().unwrap());
            let done = json!({ "type": kind, "response": whole });
            says(
                &world,
                Reply::stream([created, done].map(|event| format!("data: {event}\n\n"))),
            );
            let got = caller
                .call(&world, &key, &with(body, json!({ "stream": true })))
                .await;
            assert!(!got.failed, "{case} {caller:?}");
            charged(case, &world, &got, COST).await;
        }
    }
}

/// Checks that the received text of a broken response was charged by an estimate, and that nothing is held.
async fn estimated(what: &str, world: &World, key: &Key, number: &str) {
    let receipt = world.receipt(number).await;
    assert_eq!(receipt["estimated"], true, "{what}: {receipt}");
    let charged = micro(&receipt["charged_rub"]);
    assert!(charged > 0, "{what}: {receipt}");
    assert!(charged <= micro(&receipt["held_rub"]), "{what}: {receipt}");
    assert_eq!(world.settled(key).await["held_rub"], "0.00", "{what}");
}

#[tokio::test]
async fn broken_responses_stream_is_charged_by_its_received_text() {
    let (world, key) = World::start_with_key().await;
    for vendor in BOTH {
        let mut cut = events(vendor, &["раз ", "два"], 9, 2);
        cut.truncate(if vendor == Op::Chat { 2 } else { 4 });
        says(&world, Reply::stream(cut).cut());
        let got = ask(
            &world,
            &key,
            json!({ "model": vendor.model(), "stream": true }),
        )
        .await;
        assert_eq!(returned(&got).last().unwrap()["type"], "response.failed");
        estimated("r89", &world, &key, &got.number()).await;
    }
    let (world, key) = setup().start_with_key().await;
    let created = json!({ "type": "response.created", "response": { "id": "resp_v", "model": "v", "output": [], "usage": null } });
    let delta = json!({ "type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "да" });
    let failed = json!({ "type": "response.failed", "response": { "id": "resp_v", "status": "failed", "output": [],
        "error": { "code": "server_error", "message": "x" }, "usage": null } });
    for caller in BOTH {
        let stream = [&created, &delta, &failed].map(|event| format!("data: {event}\n\n"));
        says(&world, Reply::stream(stream));
        let body = with(caller.body("x"), json!({ "model": "chat", "stream": true }));
        let got = caller.call(&world, &key, &body).await;
        estimated("r87", &world, &key, &got.number()).await;
    }
}

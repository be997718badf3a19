//! Tests of `POST /v1/responses` with a vendor of the same format: requests, refusals and forwarded data. Also tests
//! the Responses format on one side of the gateway and another format on the other side. The design cases R1, R2 and so
//! on are in `cases.md`.

use crate::prelude::*;

mod cases; // each case has its test
mod charges; // cost of translated answers
mod ends; // streams that fail, stop, or are left
mod failover; // the next vendor answers, or none
mod formats; // a vendor that speaks several
mod operation; // requests
mod passing; // answers, byte for byte
mod prices; // items with prices of their own
mod translated; // with another format on the other side
mod vendor_tools; // vendors' tools that no request asked for

/// Returns the setup of a gateway whose model `chat` has a vendor of the Responses format. The prices per token in
/// micro-rubles are: input 100, cached input 10, cache write 50, output 200.
fn setup() -> Setup {
    Setup::default().edit("format = \"chat\"", "format = \"responses\"")
}

async fn world() -> World {
    setup().start().await
}

/// Sends a request with this text as its body. The text need not be JSON.
async fn ask_raw(world: &World, key: &Key, body: &str) -> Answer {
    world.post("/v1/responses", key, body.to_owned()).await
}

pub async fn ask(world: &World, key: &Key, body: &Value) -> Answer {
    ask_raw(world, key, &body.to_string()).await
}

/// Returns a request body with these fields.
fn body(fields: Value) -> Value {
    crate::harness::with(json!({ "model": "chat", "input": "привет" }), fields)
}

/// Returns the latest body that the vendor has received.
fn sent(world: &World) -> Value {
    world.vendor.received().pop().unwrap().json()
}

/// Returns a usage with these counts: total input, the cached part of it, the written part of it, and output.
fn usage([input, cached, written, output]: [u64; 4]) -> Value {
    json!({ "input_tokens": input,
        "input_tokens_details": { "cached_tokens": cached, "cache_write_tokens": written },
        "output_tokens": output, "output_tokens_details": { "reasoning_tokens": 1 },
        "total_tokens": input + output })
}

/// Returns the cost of a usage with these counts, in micro-rubles.
fn cost([input, cached, written, output]: [u64; 4]) -> u64 {
    (input - cached - written) * 100 + cached * 10 + written * 50 + output * 200
}

pub fn answer(text: &str, usage: &Value) -> Value {
    json!({ "id": "resp_v1", "object": "response", "created_at": 1_790_000_000, "status": "completed",
        "model": "vendor-chat-1", "output": [{ "type": "message", "id": "msg_v1", "status": "completed",
            "role": "assistant", "content": [{ "type": "output_text", "text": text, "annotations": [] }] }],
        "usage": usage, "error": null, "incomplete_details": null })
}

fn event(data: &Value) -> String {
    let kind = data["type"].as_str().unwrap();
    format!("event: {kind}\ndata: {data}\n\n")
}

/// Returns the first two events of a stream.
pub fn beginning() -> Vec<String> {
    let response = json!({ "id": "resp_v1", "object": "response", "created_at": 1_790_000_000,
        "status": "in_progress", "model": "vendor-chat-1", "output": [], "usage": null });
    ["response.created", "response.in_progress"]
        .iter()
        .zip(0..)
        .map(|(kind, number)| {
            event(&json!({ "type": kind, "sequence_number": number, "response": response }))
        })
        .collect()
}

pub fn delta(number: u64, text: &str) -> String {
    event(
        &json!({ "type": "response.output_text.delta", "sequence_number": number, "item_id": "msg_v1",
        "output_index": 0, "content_index": 0, "delta": text, "logprobs": [] }),
    )
}

pub fn last(number: u64, response: Value) -> String {
    event(&json!({ "type": "response.completed", "sequence_number": number, "response": response }))
}

/// Returns a stream with these words and this usage.
fn stream(words: &[&str], usage: &Value) -> Vec<String> {
    let mut events = beginning();
    for (word, number) in words.iter().zip(2..) {
        events.push(delta(number, word));
    }
    events.push(last(2 + words.len() as u64, answer(&words.concat(), usage)));
    events
}

/// Makes the vendor respond with this reply from now on.
fn says(world: &World, reply: Reply) {
    world.vendor_sends(reply);
}

/// Checks the charge of a call in micro-rubles, and whether the call's usage was estimated.
async fn charged(what: &str, world: &World, answer: &Answer, charge: u64, estimated: bool) {
    let receipt = world.receipt(&answer.number()).await;
    let charge = i64::try_from(charge).unwrap();
    assert_eq!(micro(&receipt["charged_rub"]), charge, "{what}: {receipt}");
    assert_eq!(receipt["estimated"], estimated, "{what}: {receipt}");
}

//! Tests that a client which disconnects in the middle of a stream pays at most the price of the complete stream
//! (docs/decisions.md, "Money"). The samples are a Russian text, and a conversation whose input is cached.

use serde::Deserialize;
use tollgate_layers::call::Format;

use crate::prelude::*;

/// Sample texts, each with the number of tokens that a tokenizer has counted.
const TEXTS: &str = include_str!("../../layers/src/text_size/texts.jsonl");

#[derive(Deserialize)]
struct Counted {
    kind: String,
    text: String,
    tokens: u64,
}

fn text(kind: &str) -> Counted {
    let mut texts = TEXTS
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    texts.find(|text: &Counted| text.kind == kind).unwrap()
}

/// The number of pieces in which the response is sent. After [`HALF`] of them, the vendor waits for the test.
const PIECES: usize = 10;
const HALF: usize = PIECES / 2;

fn pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let pieces = chars.chunks(chars.len().div_ceil(PIECES));
    pieces.map(|piece| piece.iter().collect()).collect()
}

/// Returns the events of a stream with these pieces, and the number of events up to its middle. The usage has these
/// counts of input, cached input and output.
fn stream(
    format: Format,
    pieces: &[String],
    [input, cached, output]: [u64; 3],
) -> (Vec<String>, usize) {
    let named = |kind: &str, mut data: Value| {
        data["type"] = kind.into();
        format!("event: {kind}\ndata: {data}\n\n")
    };
    match format {
        Format::Chat => {
            let chunk = |delta: Value, finish: Value| {
                let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
                let chunk = json!({ "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                    "choices": [choice] });
                format!("data: {chunk}\n\n")
            };
            let texts = pieces
                .iter()
                .map(|piece| chunk(json!({ "content": piece }), Value::Null));
            let mut events: Vec<_> = texts.collect();
            events.push(chunk(json!({}), "stop".into()));
            let usage = json!({ "choices": [], "usage": { "prompt_tokens": input, "completion_tokens": output,
                "total_tokens": input + output, "prompt_tokens_details": { "cached_tokens": cached } } });
            events.push(format!("data: {usage}\n\ndata: [DONE]\n\n"));
            (events, HALF)
        }
        Format::Messages => {
            let usage = json!({ "input_tokens": input - cached, "cache_read_input_tokens": cached, "output_tokens": 1 });
            let mut events = vec![
                named(
                    "message_start",
                    json!({ "message": { "id": "m1", "type": "message", "role": "assistant",
                    "model": "m", "content": [], "stop_reason": null, "usage": usage } }),
                ),
                named(
                    "content_block_start",
                    json!({ "index": 0, "content_block": { "type": "text", "text": "" } }),
                ),
            ];
            events.extend(pieces.iter().map(|piece| {
                let delta = json!({ "type": "text_delta", "text": piece });
                named("content_block_delta", json!({ "index": 0, "delta": delta }))
            }));
            events.push(named("content_block_stop", json!({ "index": 0 })));
            events.push(named(
                "message_delta",
                json!({ "delta": { "stop_reason": "end_turn" },
                "usage": { "output_tokens": output } }),
            ));
            events.push(named("message_stop", json!({})));
            (events, 2 + HALF)
        }
        Format::Responses => {
            let response = |status: &str, output: Value, usage: Value| {
                json!({ "response": { "id": "resp_1", "object": "response", "created_at": 1, "status": status,
                    "model": "m", "output": output, "usage": usage } })
            };
            let mut events = vec![named(
                "response.created",
                response("in_progress", json!([]), Value::Null),
            )];
            events.extend(pieces.iter().map(|piece| {
                named(
                    "response.output_text.delta",
                    json!({ "item_id": "msg_1", "output_index": 0,
                    "content_index": 0, "delta": piece }),
                )
            }));
            let reported = json!([{ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{ "type": "output_text", "text": pieces.concat(), "annotations": [] }] }]);
            let usage = json!({ "input_tokens": input, "input_tokens_details": { "cached_tokens": cached },
                "output_tokens": output, "total_tokens": input + output });
            events.push(named(
                "response.completed",
                response("completed", reported, usage),
            ));
            (events, 1 + HALF)
        }
    }
}

fn ask(
    world: &World,
    key: &Key,
    format: Format,
    text: &str,
) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let turns = json!([{ "role": "user", "content": text }]);
    let (path, body) = match format {
        Format::Chat => (
            "/v1/chat/completions",
            json!({ "model": "chat", "max_tokens": 1000, "stream": true, "messages": turns }),
        ),
        Format::Messages => (
            "/v1/messages",
            json!({ "model": "messages", "max_tokens": 1000, "stream": true, "messages": turns }),
        ),
        Format::Responses => (
            "/v1/responses",
            json!({ "model": "chat", "max_output_tokens": 1000, "stream": true, "input": turns }),
        ),
    };
    let bearer = format!("Bearer {}", key.secret);
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("anthropic-version", "2023-06-01"),
        ("x-session-id", "one-conversation"),
    ];
    let body = body.to_string();
    request(Method::POST, &world.url(path), &headers, body.into())
}

#[tokio::test]
async fn caller_that_disconnects_early_pays_at_most_as_much_as_one_that_stays() {
    let (question, answer) = (text("ru prose"), text("ru technical"));
    let pieces = pieces(&answer.text);
    for format in [Format::Chat, Format::Messages, Format::Responses] {
        for cached_percent in [0, 80] {
            let setup = match format {
                Format::Chat | Format::Messages => Setup::default(),
                Format::Responses => {
                    Setup::default().edit("format = \"chat\"", "format = \"responses\"")
                }
            };
            let (world, key) = setup.start_with_key().await;
            let input = question.tokens + 8;
            let counts = [input, input * cached_percent / 100, answer.tokens];
            let (events, half) = stream(format, &pieces, counts);
            let spent = async || micro(&world.settled(&key).await["spent_rub"]);

            // The second call of the conversation is read to its end. The client of the third call disconnects in the
            // middle.
            world.vendor_sends(Reply::stream(events.clone()));
            let mut before = 0;
            let mut stays = 0;
            for _ in 0..2 {
                let mut res = world.send(ask(&world, &key, format, &question.text)).await;
                rest(res.body_mut()).await;
                let now = spent().await;
                (stays, before) = (now - before, now);
            }
            let never = Arc::new(Notify::new());
            world.vendor_sends(Reply::stream(events).with_step(half, Step::Hold(never)));
            let mut res = world.send(ask(&world, &key, format, &question.text)).await;
            let last = serde_json::to_string(&pieces[HALF - 1]).unwrap();
            read_until(res.body_mut(), last.trim_matches('"')).await;
            drop(res);
            let leaves = spent().await - before;
            assert!(
                leaves > 0 && leaves <= stays,
                "{format:?}, {cached_percent}: {leaves} of {stays}"
            );
            let account = world.account(&key).await;
            assert_eq!(account["loss_rub"], "0.00", "{account}");
        }
    }
}

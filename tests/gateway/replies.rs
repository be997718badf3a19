//! Responses of a scripted vendor: usage with every rate class, streams, and streams that wait in the middle until the
//! test lets them continue.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tollgate::demo::vendor::{Reply, Step};
use tollgate_layers::{call::Format, facts::EventStream, sse::Splitter};

use crate::{
    harness::{Key, World, next_text, with},
    ops::Op,
};

/// Token counts by rate class, under the names that receipts use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens {
    pub input: u64,
    pub cached_input: u64,
    pub cache_write: u64,
    pub output: u64,
}

impl Tokens {
    /// Returns counts without cached tokens.
    pub const fn plain(input: u64, output: u64) -> Self {
        Self {
            input,
            cached_input: 0,
            cache_write: 0,
            output,
        }
    }

    /// Returns the usage object of the format. In the Chat Completions format, the prompt includes the cached tokens;
    /// in the Messages format, it does not.
    pub fn usage(self, op: Op) -> Value {
        let prompt = self.input + self.cached_input + self.cache_write;
        match op {
            Op::Chat => json!({
                "prompt_tokens": prompt, "completion_tokens": self.output,
                "total_tokens": prompt + self.output,
                "prompt_tokens_details": {
                    "cached_tokens": self.cached_input, "cache_write_tokens": self.cache_write,
                },
            }),
            Op::Messages => json!({
                "input_tokens": self.input, "cache_read_input_tokens": self.cached_input,
                "cache_creation_input_tokens": self.cache_write, "output_tokens": self.output,
            }),
        }
    }
}

/// Returns a usage without cached tokens.
pub fn usage(op: Op, input: u64, output: u64) -> Value {
    Tokens::plain(input, output).usage(op)
}

/// Returns a plain response with this text. If `usage` is null, the response contains no usage.
pub fn answer(op: Op, text: &str, usage: &Value) -> Value {
    let mut answer = match op {
        Op::Chat => json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000,
            "model": "vendor-chat-1",
            "choices": [{ "index": 0, "message": { "role": "assistant", "content": text },
                          "finish_reason": "stop" }],
        }),
        Op::Messages => json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "vendor-messages-1",
            "content": [{ "type": "text", "text": text }], "stop_reason": "end_turn",
            "stop_sequence": null,
        }),
    };
    if !usage.is_null() {
        answer["usage"] = usage.clone();
    }
    answer
}

/// Returns a plain response with this text, and with a usage without cached tokens.
pub fn plain_reply(op: Op, text: &str, input: u64, output: u64) -> Reply {
    Reply::json(200, &answer(op, text, &usage(op, input, output)))
}

/// Returns the events of a stream that sends these words, and a usage with these counts.
pub fn events(op: Op, words: &[&str], input: u64, output: u64) -> Vec<String> {
    match op {
        Op::Chat => chat_events(words, input, output),
        Op::Messages => messages_events(words, input, output),
    }
}

/// Returns the number of events before the second word.
pub const fn begun(op: Op) -> usize {
    match op {
        Op::Chat => 1,
        Op::Messages => 3,
    }
}

/// Returns a chunk of a Chat Completions stream.
pub fn chunk(choices: Value, usage: Value) -> String {
    let chunk = json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000,
        "model": "vendor-chat-1", "choices": choices, "usage": usage,
    });
    format!("data: {chunk}\n\n")
}

/// Returns the choices of a chunk.
pub fn delta(delta: Value, finish: Value) -> Value {
    json!([{ "index": 0, "delta": delta, "finish_reason": finish }])
}

/// Returns an event of a Messages stream.
pub fn event(data: Value) -> String {
    let kind = data["type"].as_str().unwrap();
    format!("event: {kind}\ndata: {data}\n\n")
}

fn chat_events(words: &[&str], input: u64, output: u64) -> Vec<String> {
    let mut events: Vec<String> = words
        .iter()
        .map(|word| chunk(delta(json!({ "content": word }), Value::Null), Value::Null))
        .collect();
    events.push(chunk(delta(json!({}), "stop".into()), Value::Null));
    events.push(chunk(json!([]), usage(Op::Chat, input, output)));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn messages_events(words: &[&str], input: u64, output: u64) -> Vec<String> {
    let start = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "vendor-messages-1",
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": usage(Op::Messages, input, 1),
    });
    let block = json!({ "type": "text", "text": "" });
    let delta = json!({ "stop_reason": "end_turn", "stop_sequence": null });
    let mut events = vec![
        json!({ "type": "message_start", "message": start }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
    ];
    events.extend(words.iter().map(|word| {
        json!({ "type": "content_block_delta", "index": 0,
                "delta": { "type": "text_delta", "text": word } })
    }));
    events.extend([
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": delta, "usage": { "output_tokens": output } }),
        json!({ "type": "message_stop" }),
    ]);
    events.into_iter().map(event).collect()
}

/// Returns a refusal with this status and text, in the form in which a vendor writes it.
pub fn refusal(status: u16, text: &str) -> Reply {
    let error = json!({ "message": text, "type": "vendor_error", "code": null });
    Reply::json(status, &json!({ "type": "error", "error": error }))
}

/// A stream in flight: the client has read its first word, and the vendor waits before the second word.
pub struct Running {
    pub number: String,
    body: Incoming,
    go: Arc<Notify>,
}

impl Running {
    /// Starts a stream whose usage is nine input tokens and two output tokens.
    pub async fn start(world: &World, op: Op, key: &Key, body: &Value) -> Self {
        let then = events(op, &["раз ", "два"], 9, 2);
        Self::start_with(world, op, key, body, Reply::stream(then)).await
    }

    /// Starts a stream with this reply. The vendor waits before its second word.
    pub async fn start_with(world: &World, op: Op, key: &Key, body: &Value, reply: Reply) -> Self {
        let go = Arc::new(Notify::new());
        world.vendor_sends(reply.with_step(begun(op), Step::Hold(Arc::clone(&go))));
        let body = with(body.clone(), json!({ "stream": true }));
        let res = world.send(op.request(world, key, &body)).await;
        assert_eq!(res.status(), 200, "{op:?}");
        let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
        let mut body = res.into_body();
        read_until(&mut body, "раз").await;
        Self { number, body, go }
    }

    /// Lets the vendor continue. Returns the rest of the stream.
    pub async fn finish(mut self) -> String {
        self.go.notify_one();
        rest(&mut self.body).await
    }
}

/// Reads a body until `text` has arrived. Returns everything that was read.
pub async fn read_until(body: &mut Incoming, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match next_text(body).await {
            Some(more) => seen.push_str(&more),
            None => panic!("the answer ended without {text:?}: {seen}"),
        }
    }
    seen
}

/// Separates the cost comment from a stream. Returns the stream without the comment, and the cost.
pub fn told_cost(text: &str) -> (String, &str) {
    let (before, comment) = text
        .split_once(": cost_rub ")
        .unwrap_or_else(|| panic!("no cost in the stream: {text}"));
    let (cost, last) = comment
        .split_once("\n\n")
        .unwrap_or_else(|| panic!("the cost is the end of the stream: {text}"));
    assert!(cost.parse::<Decimal>().is_ok(), "{cost} is no amount");
    assert!(before.is_empty() || before.ends_with('\n'), "{text}");
    let last_event = Bytes::copy_from_slice(last.trim_end().as_bytes());
    let mut events = Vec::new();
    let mut splitter = Splitter::default();
    let blank = Bytes::from_static(b"\n\n");
    for piece in [last_event, blank] {
        let split = splitter.push(&piece, |event| events.push(event));
        split.expect("it is short");
    }
    assert!(
        events.len() == 1
            && [Format::Chat, Format::Messages, Format::Responses]
                .iter()
                .any(|format| EventStream(*format).last_event_at(events[0].raw()) == Some(0)),
        "no last event behind the cost, or more than that: {text}"
    );
    ([before, last].concat(), cost)
}

/// Reads a body to its end.
pub async fn rest(body: &mut Incoming) -> String {
    let mut seen = String::new();
    while let Some(more) = next_text(body).await {
        seen.push_str(&more);
    }
    seen
}

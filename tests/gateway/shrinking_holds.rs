//! Tests of holds that shrink during a call: the amounts that calls of a coding agent hold at their start, after the
//! vendor has counted their input, and at their end.
//!
//! `cargo test --test gateway holds_of_a_conversation_shrink_as_documented -- --nocapture` prints the numbers of
//! `docs/prices.md`.

use crate::prelude::*;

/// The prices of a large model at 104 ₽ per USDT, and an output maximum of 32 000 tokens.
const RATES: [&str; 4] = ["10", "0.25", "50", "12.5"];
const OUTPUT_TOKENS_MAX: u64 = 32_000;

const fn rubles(count: i64) -> i64 {
    count * 1_000_000
}

/// The conversation of a coding agent. Each call sends the complete conversation.
#[derive(Clone)]
struct Agent {
    turns: Vec<Value>,
    tokens: u64,
}

impl Agent {
    /// Begins a conversation with a text of about `bytes` bytes. The vendor counts four bytes as one token.
    fn new(name: &str, bytes: usize) -> Self {
        let mut agent = Self {
            turns: Vec::new(),
            tokens: 0,
        };
        let text = format!("{name} reads: fn main() {{ println!(\"hello\"); }}\n");
        agent.say("user", &text.repeat(bytes / text.len()));
        agent
    }

    fn say(&mut self, role: &str, text: &str) {
        self.turns
            .push(json!({ "role": role, "content": [{ "type": "text", "text": text }] }));
        self.tokens += text.len() as u64 / 4;
    }

    /// Adds the vendor's last response, and the file that the agent has read because of that response.
    fn goes_on(&mut self) {
        self.say("assistant", "раз два");
        self.say("user", &"The file does not exist.\n".repeat(80));
    }

    /// Returns the body of the next call. Like Claude Code, the agent sets `cache_control` on its last turn.
    fn body(&self) -> Value {
        let mut turns = self.turns.clone();
        let last = turns.last_mut().unwrap();
        last["content"][0]["cache_control"] = json!({ "type": "ephemeral" });
        json!({
            "model": "messages", "max_tokens": OUTPUT_TOKENS_MAX,
            "system": [{ "type": "text", "text": "You are an agent.", "cache_control": { "type": "ephemeral" } }],
            "messages": turns,
        })
    }
}

/// Returns a stream whose first event has the usage `first`, and whose next to last event has the usage `last`.
fn stream(first: Tokens, last: Tokens) -> Reply {
    let usage = |tokens: Tokens| tokens.usage(Op::Messages);
    let event = |event: Value| {
        format!(
            "event: {}\ndata: {event}\n\n",
            event["type"].as_str().unwrap()
        )
    };
    let start = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "x", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage(first) });
    let text = |text: &str| json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } });
    let events = [
        json!({ "type": "message_start", "message": start }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        text("раз "),
        text("два"),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn", "stop_sequence": null }, "usage": usage(last) }),
        json!({ "type": "message_stop" }),
    ];
    Reply::stream(events.map(event))
}

/// Returns the stream of a vendor that has 98 % of the input in its cache and reports this in the first event.
fn honest(tokens: u64) -> Reply {
    let counted = Tokens {
        input: 4,
        cached_input: tokens * 98 / 100,
        cache_write: tokens * 2 / 100,
        output: 1,
    };
    let last = Tokens {
        output: 300,
        ..counted
    };
    stream(counted, last)
}

async fn start(edit: &str) -> World {
    start_with(edit, "").await
}

/// Starts a gateway with these lines in the sections `[ledger]` and `[[model]]`.
async fn start_with(edit: &str, of_model: &str) -> World {
    let [input, cached, output, write] = RATES;
    Setup::default()
        .edit("fixed = \"100\"", "fixed = \"104\"")
        .edit(
            "input = \"10\", cached_input = \"1\", output = \"20\", cache_write = \"5\"",
            &format!("input = \"{input}\", cached_input = \"{cached}\", output = \"{output}\", cache_write = \"{write}\""),
        )
        .edit("output_tokens_max = 4000", &format!("output_tokens_max = {OUTPUT_TOKENS_MAX}\n{of_model}"))
        .edit("[ledger]\n", &format!("[ledger]\n{edit}\n"))
        .start()
        .await
}

/// Makes a call to its end, and returns its receipt. The vendor waits between its first usage count and its last, so
/// that the hold can shrink.
async fn called(world: &World, key: &Key, body: &Value, reply: Reply) -> Value {
    let running = Running::start_with(world, Op::Messages, key, body, reply).await;
    let number = running.number.clone();
    running.finish().await;
    let receipt = world.receipt(&number).await;
    world.settled(key).await;
    receipt
}

/// Returns the amounts on a receipt that were held at the start and at the end of the call.
fn held(receipt: &Value) -> (i64, i64) {
    let first = micro(&receipt["held_rub"]);
    let last = &receipt["held_at_end_rub"];
    (first, if last.is_null() { first } else { micro(last) })
}

#[tokio::test]
async fn holds_of_a_conversation_shrink_as_documented() {
    let world = start("").await;
    let key = world.key_with("acme", "3000", json!({})).await;
    let mut agent = Agent::new("main", 912_000 * 200_000 / 228_000);
    println!("| | held at start, ₽ | held at end, ₽ | charged, ₽ |\n|---|---:|---:|---:|");
    let first = called(&world, &key, &agent.body(), honest(agent.tokens)).await;
    row("first call of the conversation, and of the vendor", &first);
    assert!(held(&first).0 > rubles(800), "{first}");

    agent.goes_on();
    let body = agent.body();
    let running =
        Running::start_with(&world, Op::Messages, &key, &body, honest(agent.tokens)).await;
    let begun = tokio::time::Instant::now();
    eventually("the hold is lowered", async || {
        let account = world.account(&key).await;
        (micro(&account["held_rub"]) <= rubles(185)).then_some(())
    })
    .await;
    let lowered = begun.elapsed();
    let number = running.number.clone();
    running.finish().await;
    let second = world.receipt(&number).await;
    row("the next call", &second);
    println!("\nlowered {} ms after the first text", lowered.as_millis());
    let (at_start, at_end) = held(&second);
    assert!(at_start <= rubles(430), "{second}");
    assert!(at_end <= rubles(185), "{second}");
    assert_eq!(second["held_max_rub"], second["held_rub"], "{second}");
    assert!(micro(&second["charged_rub"]) <= at_end, "{second}");
}

/// Prints one row of the table in `docs/prices.md`.
fn row(what: &str, receipt: &Value) {
    let (first, last) = held(receipt);
    let [first, last] = [first, last].map(|micro| micro as f64 / 1e6);
    let charged = micro(&receipt["charged_rub"]) as f64 / 1e6;
    println!("| {what} | {first:.2} | {last:.2} | {charged:.2} |");
}

/// `cargo test --test gateway growing_holds_of_a_conversation_are_as_documented -- --nocapture` prints the numbers of
/// `docs/prices.md`.
#[tokio::test]
async fn growing_holds_of_a_conversation_are_as_documented() {
    let growing = "hold = \"growing\"\noutput_tokens_per_second_max = 100";
    let world = start_with("", growing).await;
    let key = world.key_with("acme", "3000", json!({})).await;
    let mut agent = Agent::new("main", 912_000 * 200_000 / 228_000);
    println!(
        "| growing output | held at start, ₽ | held at end, ₽ | charged, ₽ |\n|---|---:|---:|---:|"
    );
    let first = called(&world, &key, &agent.body(), honest(agent.tokens)).await;
    row("first call of the conversation, and of the vendor", &first);
    for turn in 0..3 {
        agent.goes_on();
        let next = called(&world, &key, &agent.body(), honest(agent.tokens)).await;
        row("the next call", &next);
        let (at_start, at_end) = held(&next);
        assert!(at_start <= rubles(290), "{turn} {next}");
        assert!(at_end <= rubles(45), "{turn} {next}");
        assert!(micro(&next["charged_rub"]) <= at_end, "{turn} {next}");
        assert_eq!(next["stopped_by"], Value::Null, "{next}");
    }
}

#[tokio::test]
async fn twenty_agents_run_side_by_side_on_a_thousand_rubles() {
    let growing = "hold = \"growing\"\noutput_tokens_per_second_max = 100";
    let world = start_with("", growing).await;
    let key = world.key_with("acme", "1000", json!({})).await;
    let mut agent = Agent::new("main", 800_000);
    called(&world, &key, &agent.body(), honest(agent.tokens)).await;
    agent.goes_on();
    let body = agent.body();
    let mut running = Vec::new();
    for _ in 0..20 {
        let before = micro(&world.account(&key).await["held_rub"]);
        let reply = honest(agent.tokens);
        running.push(Running::start_with(&world, Op::Messages, &key, &body, reply).await);
        eventually("the hold is lowered", async || {
            let held = micro(&world.account(&key).await["held_rub"]);
            (held <= before + rubles(45)).then_some(())
        })
        .await;
    }
    let account = world.account(&key).await;
    assert!(micro(&account["held_rub"]) <= rubles(1_000), "{account}");
    for call in running {
        let number = call.number.clone();
        call.finish().await;
        let receipt = world.receipt(&number).await;
        assert_eq!(receipt["end"], "finished", "{receipt}");
        assert_eq!(receipt["loss_rub"], "0.00", "{receipt}");
    }
}

#[tokio::test]
async fn vendors_first_input_count_lowers_a_hold_only_after_its_earlier_counts_proved_correct() {
    let world = start("").await;
    let key = world.key_with("acme", "9000", json!({})).await;
    let mut calls = 0;
    let mut call = async |reply: fn(u64) -> Reply| {
        calls += 1;
        let agent = Agent::new(&format!("agent {calls}"), 200_000);
        let receipt = called(&world, &key, &agent.body(), reply(agent.tokens)).await;
        let (first, last) = held(&receipt);
        let charged = micro(&receipt["charged_rub"]);
        assert!(charged <= first, "{receipt}");
        assert_eq!(receipt["loss_rub"], "0.00", "{receipt}");
        last < first
    };
    let guess = |tokens: u64| {
        let first = Tokens {
            input: 5,
            ..Tokens::default()
        };
        let last = Tokens::plain(tokens, 10);
        stream(first, last)
    };
    assert!(!call(honest).await, "not proved yet");
    assert!(call(honest).await);
    // The vendor's first count was too low. The account pays the difference from its free money.
    assert!(call(guess).await, "believed once too often");
    assert!(!call(honest).await, "not any more");
    assert!(!call(honest).await);
}

#[tokio::test]
async fn hold_is_not_lowered_after_a_count_of_zero_or_for_calls_with_searches() {
    let search = ", web_search_call = \"10\" }";
    let world = Setup::default()
        .edit(
            "cache_write = \"5\" }",
            &format!("cache_write = \"5\"{search}"),
        )
        .start()
        .await;
    let key = world.key_with("acme", "9000", json!({})).await;
    let zero = |tokens: u64| {
        let last = Tokens::plain(tokens, 10);
        stream(Tokens::default(), last)
    };
    let tools = json!({ "max_tokens": 100, "tools": [{ "type": "web_search_20250305", "name": "web_search", "max_uses": 1 }] });
    for (fields, reply) in [
        (json!({ "max_tokens": 100 }), honest as fn(u64) -> Reply),
        (tools, honest),
        (json!({ "max_tokens": 100 }), zero),
    ] {
        let agent = Agent::new("agent", 200_000);
        let body = with(agent.body(), fields.clone());
        let receipt = called(&world, &key, &body, reply(agent.tokens)).await;
        let (first, last) = held(&receipt);
        assert_eq!(first, last, "{receipt}");
    }
}

#[tokio::test]
async fn known_conversation_has_a_smaller_hold_only_for_its_own_key() {
    for (edit, is_known) in [("", true), ("hold_conversations_max = 0", false)] {
        let world = start(edit).await;
        let key = world.key_with("acme", "9000", json!({})).await;
        let other = world.another_key("acme", json!({})).await;
        let mut agent = Agent::new("agent", 200_000);
        let first = called(&world, &key, &agent.body(), honest(agent.tokens)).await;
        agent.goes_on();
        let body = agent.body();
        let foreign = called(&world, &other, &body, honest(agent.tokens)).await;
        let own = called(&world, &key, &body, honest(agent.tokens)).await;
        assert!(held(&foreign).0 >= held(&first).0, "{foreign}");
        assert_eq!(held(&own).0 < held(&first).0, is_known, "{own}");
        assert!(micro(&own["charged_rub"]) <= held(&own).1);
    }
}

#[tokio::test]
async fn estimate_shows_the_smaller_hold_of_a_known_conversation() {
    let world = start("").await;
    let key = world.key_with("acme", "9000", json!({})).await;
    let agent = Agent::new("agent", 200_000);
    let estimate = async |stream: bool| {
        let body = with(agent.body(), json!({ "stream": stream }));
        let url = world.url("/v1/tollgate/estimate");
        let headers = [
            ("x-api-key", key.secret.as_str()),
            ("content-type", "application/json"),
            ("anthropic-version", "2026-10-21"),
        ];
        let body = body.to_string().into();
        let req = crate::harness::request(http::Method::POST, &url, &headers, body);
        world.ask(req).await.json()
    };
    let hold = |estimate: &Value, field: &str| micro(&estimate[field]);
    let before = estimate(true).await;
    assert_eq!(hold(&before, "hold_min_rub"), hold(&before, "hold_rub"));
    let receipt = called(&world, &key, &agent.body(), honest(agent.tokens)).await;
    assert_eq!(hold(&before, "hold_rub"), held(&receipt).0);

    let after = estimate(true).await;
    assert!(hold(&after, "hold_rub") < hold(&before, "hold_rub"));
    let again = called(&world, &key, &agent.body(), honest(agent.tokens)).await;
    let (first, last) = held(&again);
    assert_eq!(hold(&after, "hold_rub"), first);
    assert!(hold(&after, "hold_min_rub") <= last, "{after} {again}");
    let plain = estimate(false).await;
    assert_eq!(hold(&plain, "hold_min_rub"), hold(&plain, "hold_rub"));
}

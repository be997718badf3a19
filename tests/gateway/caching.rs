//! Tests how much of a growing conversation a vendor reads from its prompt cache, for every pair of formats.
//!
//! The scripted vendor computes the cache hits that a real vendor would have. A vendor of the Chat Completions or the
//! Responses format caches automatically: the beginning that a request has in common with an earlier request is a hit.
//! A vendor of the Messages format caches a prompt up to a cache mark (`cache_control`). A mark in a request finds a
//! mark of an earlier request if the earlier mark is at most 20 content blocks before it.

use std::{collections::HashSet, sync::Mutex};

use tollgate::demo::vendor::Received;

use crate::{prelude::*, responses};

/// The number of bytes of a prompt that the scripted vendor counts as one token.
const TOKEN_BYTES: usize = 4;
/// The length in bytes of the shortest prompt that a vendor caches.
const CACHED_BYTES_MIN: usize = 1024 * TOKEN_BYTES;
/// An automatic cache stores the beginning of a prompt, rounded down to a multiple of this number of bytes.
const PIECE_BYTES: usize = 128 * TOKEN_BYTES;
/// A cache mark finds an earlier mark that is at most this number of content blocks before it.
const LOOKBACK: usize = 20;
const TURNS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    ClaudeCode,
    Codex,
    /// A client with a chat SDK, which sends no session, no cache key and no cache marks.
    ChatSdk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vendor {
    Chat,
    Messages,
    Responses,
}

/// The cache of the scripted vendor, and for each request its total bytes and its cached bytes.
#[derive(Default)]
struct Cache {
    /// Complete prompts of earlier requests, for vendors that cache automatically.
    prompts: Vec<String>,
    /// The beginnings of earlier requests up to a cache mark, for vendors that cache only marked prompts.
    marked: HashSet<String>,
    found: Vec<(usize, usize)>,
}

impl Cache {
    /// Returns how many bytes at the beginning of the prompt an automatic cache has stored from an earlier request.
    /// Stores the prompt.
    fn by_itself(&mut self, prompt: String) -> usize {
        let common = |earlier: &String| {
            let pairs = earlier.bytes().zip(prompt.bytes());
            pairs.take_while(|(one, other)| one == other).count()
        };
        let longest = self.prompts.iter().map(common).max().unwrap_or(0);
        let whole = longest / PIECE_BYTES * PIECE_BYTES;
        let cached = if whole < CACHED_BYTES_MIN { 0 } else { whole };
        self.found.push((prompt.len(), cached));
        self.prompts.push(prompt);
        cached
    }

    /// Returns how many bytes of the prompt a cache with marks reads, and how many bytes it writes. Each block is given
    /// as its text, and whether the block has a mark.
    fn by_marks(&mut self, blocks: &[(String, bool)]) -> (usize, usize) {
        let mut prefixes = vec![String::new()];
        for (text, _) in blocks {
            let longer = format!("{}{text}", prefixes[prefixes.len() - 1]);
            prefixes.push(longer);
        }
        let marks: Vec<usize> = (1..prefixes.len())
            .filter(|end| blocks[end - 1].1 && prefixes[*end].len() >= CACHED_BYTES_MIN)
            .collect();
        assert!(blocks.iter().filter(|(_, marked)| *marked).count() <= 4);
        let ends = marks
            .iter()
            .flat_map(|mark| mark.saturating_sub(LOOKBACK)..=*mark);
        let cached = ends
            .filter(|end| self.marked.contains(&prefixes[*end]))
            .map(|end| prefixes[end].len())
            .max()
            .unwrap_or(0);
        let written = marks.last().map_or(0, |last| prefixes[*last].len());
        self.marked
            .extend(marks.iter().map(|end| prefixes[*end].clone()));
        self.found
            .push((prefixes[prefixes.len() - 1].len(), cached));
        (cached, written.saturating_sub(cached))
    }

    /// Returns the share of all requests' bytes that was read from the cache, in thousandths.
    fn share(&self) -> usize {
        let [all, cached] = self
            .found
            .iter()
            .fold([0, 0], |sum, one| [sum[0] + one.0, sum[1] + one.1]);
        cached * 1000 / all
    }
}

/// Returns the JSON text of a block without its `cache_control`, and whether the block had one.
fn block(value: &Value) -> (String, bool) {
    let mut value = value.clone();
    let marked = value
        .as_object_mut()
        .is_some_and(|fields| fields.remove("cache_control").is_some());
    (value.to_string(), marked)
}

fn list(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(list) => list.clone(),
        one => vec![one.clone()],
    }
}

/// Responds to a request. The usage in the response contains what the vendor's cache read and wrote.
fn reply(cache: &mut Cache, vendor: Vendor, sent: &Value) -> Reply {
    let tokens = |bytes: usize| bytes / TOKEN_BYTES;
    let joined = |parts: &[&Value]| -> String {
        let parts = parts.iter().flat_map(|part| list(part));
        parts.map(|part| part.to_string() + "\n").collect()
    };
    match vendor {
        Vendor::Chat => {
            let prompt = joined(&[&sent["tools"], &sent["messages"]]);
            let all = tokens(prompt.len());
            let cached = tokens(cache.by_itself(prompt));
            Reply::json(
                200,
                &json!({ "id": "c", "object": "chat.completion", "created": 1, "model": "m",
                    "choices": [{ "index": 0, "message": { "role": "assistant", "content": "ok" }, "finish_reason": "stop" }],
                    "usage": { "prompt_tokens": all, "completion_tokens": 1, "total_tokens": all + 1,
                        "prompt_tokens_details": { "cached_tokens": cached } } }),
            )
        }
        Vendor::Responses => {
            let prompt = joined(&[&sent["tools"], &sent["instructions"], &sent["input"]]);
            let all = tokens(prompt.len());
            let cached = tokens(cache.by_itself(prompt));
            let usage = json!({ "input_tokens": all, "input_tokens_details": { "cached_tokens": cached },
                "output_tokens": 1, "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": all + 1 });
            Reply::json(200, &responses::answer("ok", &usage))
        }
        Vendor::Messages => {
            let mut blocks: Vec<_> = list(&sent["tools"]).iter().map(block).collect();
            // Claude Code sends a line for its vendor's billing, which changes with every call. The vendor does not
            // count this line.
            let billing = |block: &&Value| {
                let text = block["text"].as_str().unwrap_or_default();
                text.starts_with("x-anthropic-billing-header:")
            };
            let system = list(&sent["system"]);
            blocks.extend(system.iter().filter(|it| !billing(it)).map(block));
            for turn in list(&sent["messages"]) {
                let of_turn = list(&turn["content"]);
                blocks.extend(
                    of_turn
                        .iter()
                        .map(block)
                        .map(|(text, marked)| (format!("{}{text}", turn["role"]), marked)),
                );
            }
            let all: usize = blocks.iter().map(|(text, _)| text.len()).sum();
            let (cached, written) = cache.by_marks(&blocks);
            Reply::json(
                200,
                &json!({ "id": "m", "type": "message", "role": "assistant", "model": "m",
                    "content": [{ "type": "text", "text": "ok" }], "stop_reason": "end_turn", "stop_sequence": null,
                    "usage": { "input_tokens": tokens(all - cached - written), "output_tokens": 1,
                        "cache_read_input_tokens": tokens(cached), "cache_creation_input_tokens": tokens(written) } }),
            )
        }
    }
}

/// Returns a text of `count` words. Equal seeds give equal texts.
fn words(seed: usize, count: usize) -> String {
    (0..count)
        .map(|word| format!("word{} ", (seed * 7919 + word * 104_729) % 10_007))
        .collect()
}

fn schema() -> Value {
    json!({ "type": "object", "properties": { "command": { "type": "string", "description": words(3, 40) } },
        "required": ["command"] })
}

/// Returns call number `turn` of a Claude Code session. The session has a billing line that changes with every call,
/// cache marks that move, and an instruction in the middle.
fn claude_code(turn: usize, model: &str) -> Value {
    let mark = json!({ "type": "ephemeral" });
    let tools: Vec<Value> = ["Bash", "Read", "Edit"]
        .iter()
        .map(|name| json!({ "name": name, "description": words(name.len(), 150), "input_schema": schema() }))
        .collect();
    let mut messages = vec![json!({ "role": "user", "content": [
        { "type": "text", "text": words(11, 120) }, { "type": "text", "text": "Mend the test." }] })];
    for step in 0..turn {
        let id = format!("toolu_{step}");
        messages.push(json!({ "role": "assistant", "content": [
            { "type": "text", "text": words(step, 20) },
            { "type": "tool_use", "id": id, "name": "Bash", "input": { "command": words(step + 50, 15) } }] }));
        messages.push(json!({ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": id, "content": words(step + 100, 150) }] }));
        if step == 4 {
            messages
                .push(json!({ "role": "system", "content": "The user switched to plan mode." }));
            messages
                .push(json!({ "role": "user", "content": [{ "type": "text", "text": "Go on." }] }));
        }
    }
    let last = messages.last_mut().unwrap()["content"]
        .as_array_mut()
        .unwrap();
    last.last_mut().unwrap()["cache_control"] = mark.clone();
    json!({ "model": model, "max_tokens": 1000, "tools": tools, "messages": messages,
        "metadata": { "user_id": "{\"session_id\":\"01234567-89ab-cdef-0123-456789abcdef\"}" },
        "system": [
            { "type": "text", "text": format!("x-anthropic-billing-header: cc_version=2.1.177.abc; cch={turn:05x};") },
            { "type": "text", "text": "You are Claude Code.", "cache_control": mark },
            { "type": "text", "text": words(1, 900), "cache_control": mark }] })
}

/// Returns call number `turn` of a Codex session. The session has no cache marks. The text of its policy changes in the
/// middle of the session.
fn codex(turn: usize, model: &str) -> Value {
    let tools: Vec<Value> = ["shell", "apply_patch"]
        .iter()
        .map(|name| {
            json!({ "type": "function", "name": name, "description": words(name.len(), 200), "strict": false,
                "parameters": schema() })
        })
        .collect();
    let message = |role: &str, text: String| json!({ "type": "message", "role": role, "content": [{ "type": "input_text", "text": text }] });
    let mut input = vec![
        message("developer", words(21, 100)),
        message("user", words(22, 120)),
        message("user", "Mend the test.".to_owned()),
    ];
    for step in 0..turn {
        let id = format!("call_{step}");
        let arguments = json!({ "command": words(step + 50, 15) }).to_string();
        input.push(json!({ "type": "function_call", "call_id": id, "name": "shell", "arguments": arguments }));
        input.push(json!({ "type": "function_call_output", "call_id": id, "output": words(step + 100, 150) }));
        if step == 4 {
            input.push(message(
                "developer",
                "Writes are approved from now on.".to_owned(),
            ));
        }
    }
    json!({ "model": model, "max_output_tokens": 1000, "store": false, "stream": false,
        "instructions": words(1, 900), "tools": tools, "tool_choice": "auto", "input": input,
        "prompt_cache_key": "0198c2de-7f10-7c3e-9d0e-6b1f2a3c4d5e" })
}

/// Returns call number `turn` of a conversation by a client with a chat SDK.
fn chat_sdk(turn: usize, model: &str) -> Value {
    let mut messages = vec![
        json!({ "role": "system", "content": words(1, 900) }),
        json!({ "role": "user", "content": words(22, 60) }),
    ];
    for step in 0..turn {
        messages.push(json!({ "role": "assistant", "content": words(step, 120) }));
        if step == 4 {
            messages
                .push(json!({ "role": "developer", "content": "Answer in verse from now on." }));
        }
        messages.push(json!({ "role": "user", "content": words(step + 100, 60) }));
    }
    json!({ "model": model, "max_tokens": 1000, "messages": messages })
}

async fn call(world: &World, key: &Key, caller: Caller, turn: usize, model: &str) -> Answer {
    let (path, body) = match caller {
        Caller::ClaudeCode => ("/v1/messages", claude_code(turn, model)),
        Caller::Codex => ("/v1/responses", codex(turn, model)),
        Caller::ChatSdk => ("/v1/chat/completions", chat_sdk(turn, model)),
    };
    let bearer = format!("Bearer {}", key.secret);
    let mut headers = vec![
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("anthropic-version", "2026-10-21"),
    ];
    let session = "0198c2de-7f10-7c3e-9d0e-6b1f2a3c4d5e";
    match caller {
        Caller::ClaudeCode => headers.push(("x-claude-code-session-id", session)),
        Caller::Codex => headers.push(("session-id", session)),
        Caller::ChatSdk => {}
    }
    let url = world.url(path);
    let body = body.to_string().into();
    world.ask(request(Method::POST, &url, &headers, body)).await
}

/// Makes the ten calls of a session. Returns the cached share in thousandths, and the requests that the vendor
/// received.
async fn session(caller: Caller, vendor: Vendor, setup: Setup) -> (usize, Vec<Received>) {
    let (setup, model) = match vendor {
        Vendor::Chat => (setup, "chat"),
        Vendor::Messages => (setup, "messages"),
        Vendor::Responses => (
            setup.edit("format = \"chat\"", "format = \"responses\""),
            "chat",
        ),
    };
    let (world, key) = setup.start_with_key().await;
    let cache = Arc::new(Mutex::new(Cache::default()));
    let of_vendor = Arc::clone(&cache);
    world
        .vendor
        .script(move |sent| reply(&mut of_vendor.lock().unwrap(), vendor, &sent.json()));
    for turn in 0..TURNS {
        let answer = call(&world, &key, caller, turn, model).await;
        assert_eq!(answer.status, 200, "{caller:?} {vendor:?}: {answer:?}");
    }
    world.settled(&key).await;
    let share = cache.lock().unwrap().share();
    (share, world.vendor.received())
}

#[tokio::test]
async fn most_of_a_growing_conversation_is_cached_input_at_every_vendor() {
    for (caller, vendor, least) in [
        (Caller::ClaudeCode, Vendor::Chat, 800),
        (Caller::ClaudeCode, Vendor::Messages, 800),
        (Caller::ClaudeCode, Vendor::Responses, 800),
        (Caller::Codex, Vendor::Chat, 800),
        (Caller::Codex, Vendor::Messages, 800),
        (Caller::Codex, Vendor::Responses, 800),
        (Caller::ChatSdk, Vendor::Chat, 800),
        (Caller::ChatSdk, Vendor::Messages, 800),
        (Caller::ChatSdk, Vendor::Responses, 800),
    ] {
        let (share, _) = session(caller, vendor, Setup::default()).await;
        let per_cent = format!("{}.{}", share / 10, share % 10);
        println!("{caller:?} to a {vendor:?} vendor: {per_cent} per cent of ten calls cached");
        assert!(share >= least, "{caller:?} {vendor:?}: {per_cent} per cent");
    }
}

#[tokio::test]
async fn calls_of_a_session_share_one_prompt_cache_key() {
    let keys = |sent: &[Received]| -> HashSet<String> {
        let keys = sent
            .iter()
            .map(|sent| sent.json()["prompt_cache_key"].to_string());
        keys.collect()
    };
    let none = HashSet::from(["null".to_owned()]);
    let own = HashSet::from(["\"0198c2de-7f10-7c3e-9d0e-6b1f2a3c4d5e\"".to_owned()]);
    let set = |value: bool| {
        let line = format!("prompt_cache_key = {value}\noutput_tokens_max");
        Setup::default().edit("output_tokens_max", &line)
    };
    let (claude, codex) = (Caller::ClaudeCode, Caller::Codex);
    for vendor in [Vendor::Chat, Vendor::Responses] {
        let (_, sent) = session(claude, vendor, set(true)).await;
        let ours = keys(&sent);
        assert_eq!(ours.len(), 1, "{vendor:?}");
        let key = ours.iter().next().unwrap();
        assert!(key.starts_with("\"tg-"), "{key}");
        assert!(!key.contains("0198c2de"), "{key}");
        let (_, sent) = session(claude, vendor, set(false)).await;
        assert_eq!(keys(&sent), none, "{vendor:?}");
        let (_, sent) = session(codex, vendor, set(true)).await;
        assert_eq!(keys(&sent), own, "{vendor:?}");
    }
    // By default the gateway adds no cache marks to requests to Chat Completions vendors, because some refuse unknown
    // fields.
    let (_, sent) = session(claude, Vendor::Chat, Setup::default()).await;
    assert_eq!(keys(&sent), none);
    let (_, sent) = session(claude, Vendor::Responses, Setup::default()).await;
    assert!(keys(&sent) != none && keys(&sent).len() == 1);
    let (_, sent) = session(codex, Vendor::Chat, set(false)).await;
    assert_eq!(keys(&sent), none);
}

#[tokio::test]
async fn operator_can_disable_the_cache_control_that_the_gateway_adds() {
    let setup = Setup::default().edit(
        "output_tokens_max",
        "cache_marks = \"never\"\noutput_tokens_max",
    );
    let (share, sent) = session(Caller::Codex, Vendor::Messages, setup).await;
    assert_eq!(share, 0);
    let marked = |sent: &Received| sent.json().to_string().contains("cache_control");
    assert!(!sent.iter().any(marked));
}

/// A cache write is more expensive than other input, so the hold must cover it when the gateway adds cache marks.
#[tokio::test]
async fn prompt_cached_by_the_gateways_cache_control_costs_at_most_its_hold() {
    let setup = Setup::default().edit("cache_write = \"5\"", "cache_write = \"12.5\"");
    let (world, key) = setup.start_with_key().await;
    for caller in [Caller::Codex, Caller::ChatSdk] {
        for bytes_for_a_token in [1, 4] {
            world.vendor.script(move |sent| {
                let written = sent.body.len() / bytes_for_a_token;
                Reply::json(
                    200,
                    &json!({ "id": "m", "type": "message", "role": "assistant", "model": "m",
                        "content": [{ "type": "text", "text": "ok" }], "stop_reason": "end_turn", "stop_sequence": null,
                        "usage": { "input_tokens": 0, "output_tokens": 1000, "cache_read_input_tokens": 0,
                            "cache_creation_input_tokens": written } }),
                )
            });
            let answer = call(&world, &key, caller, 3, "messages").await.expect(200);
            let receipt = world.receipt(&answer.number()).await;
            assert!(
                receipt["usage"]["cache_write"].as_u64() > Some(1000),
                "{receipt}"
            );
            assert_eq!(receipt["bounded"], bytes_for_a_token == 1, "{receipt}");
            assert!(
                micro(&receipt["charged_rub"]) <= micro(&receipt["held_rub"]),
                "{receipt}"
            );
        }
    }
}

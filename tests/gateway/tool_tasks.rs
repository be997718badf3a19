//! Tests of tasks with tools over several turns, at strict Chat Completions vendors. Some vendors refuse a conversation
//! if an earlier tool call comes back without the reasoning that led to it, or without the signature that the vendor
//! has given it. No vendor accepts a tool name of more than 64 characters. The callers speak other formats, and send
//! back what they have received.

use tollgate::demo::vendor::Received;

use crate::{prelude::*, responses};

/// The number of model calls in a task. The vendor answers each of them except the last with two tool calls.
const TURNS: usize = 5;
/// A tool name of 82 characters. The Messages format allows it, but Chat Completions vendors do not.
const TOOL: &str =
    "mcp__plugin_a-rather-long-plugin-name_its-server-of-tools__a_tool_with_a_long_name";

/// The state that a vendor requires to be sent back with its earlier turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vendor {
    /// Reasoning as text, in the field with this name.
    Thinks(&'static str),
    /// Reasoning in the field `reasoning_details`, with a signature.
    Proves,
    /// A signature on the first tool call of each turn.
    Signs,
}

impl Vendor {
    /// Returns the fields that the vendor's message for this turn has in addition to its tool calls. The next request
    /// must contain them.
    fn reasoning(self, turn: usize) -> Value {
        let thought = format!("thought {turn} \"ж\"\n");
        match self {
            Self::Thinks(field) => json!({ field: thought }),
            Self::Proves => json!({ "reasoning": thought, "reasoning_details": [
                { "type": "reasoning.text", "text": thought, "signature": format!("s{turn}"), "index": 0 }] }),
            Self::Signs => json!({}),
        }
    }

    fn calls(self, turn: usize) -> Value {
        let call = |id: &str, name: &str| {
            json!({ "id": format!("call_{turn}{id}"), "type": "function",
                "function": { "name": name, "arguments": "{\"city\":\"Осло\"}" } })
        };
        let mut first = call("a", &short());
        if self == Self::Signs {
            first["extra_content"] =
                json!({ "google": { "thought_signature": format!("s{turn}+/==") } });
        }
        json!([first, call("b", "get_time")])
    }

    /// Returns the number of the next turn, or the reason why the vendor refuses the conversation.
    fn next_turn(self, sent: &Value) -> Result<usize, String> {
        let mut turn = 0;
        for message in sent["messages"].as_array().unwrap() {
            if message["content"].to_string().contains("thought") {
                return Err("reasoning in a text".to_owned());
            }
            if message["role"] != "assistant" {
                continue;
            }
            let mut expected = with(
                json!({ "role": "assistant", "content": null }),
                self.reasoning(turn),
            );
            expected["tool_calls"] = self.calls(turn);
            if *message != expected {
                return Err(format!("{message} instead of {expected}"));
            }
            turn += 1;
        }
        Ok(turn)
    }

    fn answer(self, received: &Received) -> Reply {
        let sent = received.json();
        let turn = match self.next_turn(&sent) {
            Ok(turn) => turn,
            Err(why) => return Reply::json(400, &json!({ "error": { "message": why } })),
        };
        let (message, finish) = if turn + 1 == TURNS {
            (json!({ "content": "готово" }), "stop")
        } else {
            let message = with(json!({ "content": null }), self.reasoning(turn));
            (
                with(message, json!({ "tool_calls": self.calls(turn) })),
                "tool_calls",
            )
        };
        let used = usage(Op::Chat, 9, 2);
        if sent["stream"] != true {
            return Reply::json(
                200,
                &json!({ "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "usage": used,
                    "choices": [{ "index": 0, "finish_reason": finish,
                        "message": with(json!({ "role": "assistant" }), message) }] }),
            );
        }
        let chunk = |delta: Value, finish: Value, used: &Value| {
            let chunk = json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }], "usage": used });
            format!("data: {chunk}\n\n")
        };
        let mut deltas = vec![json!({ "role": "assistant", "content": "" })];
        deltas.extend(in_pieces(&message));
        let mut events: Vec<String> = deltas
            .into_iter()
            .map(|delta| chunk(delta, Value::Null, &Value::Null))
            .collect();
        events.push(chunk(json!({}), json!(finish), &used));
        events.push("data: [DONE]\n\n".to_owned());
        Reply::stream(events)
    }
}

/// Returns the shortened name of the tool, which the gateway sends to the vendor.
fn short() -> String {
    let hash = TOOL.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{}-{hash:016x}", &TOOL[..47])
}

/// Splits a complete message into the deltas of a stream.
fn in_pieces(message: &Value) -> Vec<Value> {
    let mut deltas = Vec::new();
    let detail = &message["reasoning_details"][0];
    for field in ["reasoning_content", "reasoning"] {
        let Some(text) = message[field].as_str() else {
            continue;
        };
        let (head, tail) = text.split_at(3);
        for piece in [head, tail] {
            let mut delta = json!({ field: piece });
            if detail.is_object() {
                delta["reasoning_details"] =
                    json!([{ "type": detail["type"], "index": 0, "text": piece }]);
            }
            deltas.push(delta);
        }
    }
    if detail.is_object() {
        let proof = json!({ "type": detail["type"], "index": 0, "signature": detail["signature"] });
        deltas.push(json!({ "reasoning_details": [proof] }));
    }
    for (index, call) in message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        let mut begin = with(call.clone(), json!({ "index": index }));
        begin["function"]["arguments"] = json!("");
        deltas.push(json!({ "tool_calls": [begin] }));
        let arguments = call["function"]["arguments"].as_str().unwrap();
        for piece in [&arguments[..5], &arguments[5..]] {
            deltas.push(
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] }),
            );
        }
    }
    if let Some(text) = message["content"].as_str() {
        deltas.push(json!({ "content": text }));
    }
    deltas
}

/// A caller of one format, which sends back the content that it receives.
#[derive(Clone, Debug)]
enum Caller {
    /// Sends Messages requests that have these additional fields.
    Messages(Value),
    Responses(Value),
}

impl Caller {
    /// Returns the body of the next call: the first question, followed by these turns.
    fn body(&self, turns: &[Value], model: &str, stream: bool) -> Value {
        let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
        let names = [TOOL, "get_time"];
        let first = json!({ "role": "user", "content": "погода?" });
        let conversation: Vec<Value> = std::iter::once(first)
            .chain(turns.iter().cloned())
            .collect();
        let body = json!({ "model": model, "stream": stream });
        match self {
            Self::Messages(fields) => {
                let tools = names.map(|name| json!({ "name": name, "input_schema": schema }));
                let rest = json!({ "max_tokens": 4000, "tools": tools, "messages": conversation });
                with(with(body, rest), fields.clone())
            }
            Self::Responses(fields) => {
                let tools = names
                    .map(|name| json!({ "type": "function", "name": name, "parameters": schema }));
                let rest = json!({ "store": false, "tools": tools, "input": conversation });
                with(with(body, rest), fields.clone())
            }
        }
    }

    /// Makes a call. Returns the blocks or the items of its response.
    async fn ask(&self, world: &World, key: &Key, body: &Value) -> Vec<Value> {
        let answer = match self {
            Self::Messages(_) => Op::Messages.call(world, key, body).await,
            Self::Responses(_) => responses::ask(world, key, body).await,
        };
        let what = || format!("{self:?} {}", answer.text());
        assert_eq!(answer.status, 200, "{}", what());
        let stream = body["stream"] == true;
        let parts = match self {
            Self::Messages(_) if stream => blocks(&answer.text()),
            Self::Messages(_) => answer.json()["content"].clone(),
            Self::Responses(_) if stream => {
                let text = answer.text();
                let last = text
                    .lines()
                    .filter_map(|line| line.strip_prefix("data: "))
                    .next_back();
                let last: Value = serde_json::from_str(last.unwrap()).unwrap();
                assert_eq!(last["type"], "response.completed", "{}", what());
                last["response"]["output"].clone()
            }
            Self::Responses(_) => answer.json()["output"].clone(),
        };
        parts
            .as_array()
            .unwrap_or_else(|| panic!("{}", what()))
            .clone()
    }

    /// Returns the messages with the tools' results that follow the response in the next request. Returns `None` if the
    /// response calls no tool.
    fn results(&self, parts: &[Value]) -> Option<Vec<Value>> {
        let (kind, id) = match self {
            Self::Messages(_) => ("tool_use", "id"),
            Self::Responses(_) => ("function_call", "call_id"),
        };
        let calls: Vec<&Value> = parts.iter().filter(|part| part["type"] == kind).collect();
        if calls.is_empty() {
            return None;
        }
        let names: Vec<&Value> = calls.iter().map(|call| &call["name"]).collect();
        assert_eq!(names, [TOOL, "get_time"], "{parts:?}");
        let results = calls.iter().map(|call| match self {
            Self::Messages(_) => {
                json!({ "type": "tool_result", "tool_use_id": call[id], "content": "3 C" })
            }
            Self::Responses(_) => {
                json!({ "type": "function_call_output", "call_id": call[id], "output": "3 C" })
            }
        });
        let results: Vec<Value> = results.collect();
        Some(match self {
            Self::Messages(_) => vec![
                json!({ "role": "assistant", "content": parts }),
                json!({ "role": "user", "content": results }),
            ],
            Self::Responses(_) => parts.iter().cloned().chain(results).collect(),
        })
    }
}

/// Returns the content blocks of a streamed Messages response.
fn blocks(text: &str) -> Value {
    let mut blocks: Vec<Value> = Vec::new();
    let mut input = String::new();
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let data: Value = serde_json::from_str(data).unwrap();
        let delta = &data["delta"];
        match data["type"].as_str().unwrap() {
            "content_block_start" => blocks.push(data["content_block"].clone()),
            "content_block_delta" if delta["type"] == "input_json_delta" => {
                input += delta["partial_json"].as_str().unwrap();
            }
            "content_block_delta" => {
                let block = blocks.last_mut().unwrap();
                for field in ["text", "thinking", "signature"] {
                    if let Some(piece) = delta[field].as_str() {
                        block[field] = json!(format!("{}{piece}", block[field].as_str().unwrap()));
                    }
                }
            }
            "content_block_stop" if !input.is_empty() => {
                blocks.last_mut().unwrap()["input"] = serde_json::from_str(&input).unwrap();
                input.clear();
            }
            _ => {}
        }
    }
    Value::Array(blocks)
}

fn callers() -> Vec<Caller> {
    let include = json!({ "include": ["reasoning.encrypted_content"] });
    vec![
        Caller::Messages(json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } })),
        Caller::Messages(json!({ "thinking": { "type": "adaptive", "display": "omitted" } })),
        Caller::Messages(json!({})),
        Caller::Responses(include),
        Caller::Responses(json!({})),
    ]
}

#[tokio::test]
async fn tool_task_of_five_turns_works_with_vendors_whose_state_must_be_sent_back() {
    let (world, key) = World::start_with_key().await;
    for vendor in [
        Vendor::Thinks("reasoning_content"),
        Vendor::Thinks("reasoning"),
        Vendor::Proves,
        Vendor::Signs,
    ] {
        world.vendor.script(move |received| vendor.answer(received));
        for caller in callers() {
            for stream in [false, true] {
                let what = format!("{vendor:?} {caller:?} {stream}");
                let mut turns = Vec::new();
                for turn in 0..TURNS {
                    let body = caller.body(&turns, "chat", stream);
                    let parts = caller.ask(&world, &key, &body).await;
                    let results = caller.results(&parts);
                    assert_eq!(results.is_none(), turn + 1 == TURNS, "{what}: {parts:?}");
                    let shown = Value::from(parts).to_string().contains("thought");
                    let requested = matches!(&caller, Caller::Responses(_))
                        || body["thinking"]["type"] == "enabled";
                    let thinks = vendor != Vendor::Signs && turn + 1 < TURNS;
                    assert_eq!(shown, requested && thinks, "{what}: turn {turn}");
                    turns.extend(results.into_iter().flatten());
                }
                // The conversation continues at another vendor, which must not receive the state of the first vendor.
                world.vendor.script(tollgate::demo::script::polite);
                let body = caller.body(&turns, "messages", stream);
                caller.ask(&world, &key, &body).await;
                let sent = world.vendor.received().pop().unwrap().json().to_string();
                for state in ["tg1.", "thought", "s0+/=="] {
                    assert!(!sent.contains(state), "{what}: {sent}");
                }
                world.vendor.script(move |received| vendor.answer(received));
            }
        }
    }
}

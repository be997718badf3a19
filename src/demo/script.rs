//! The default script, which decides how the scripted vendor answers.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::vendor::{Received, Reply};

mod responses;

/// Answers a request by simple rules. In general, the answer repeats the last text of the request, or the result of a
/// tool. The answer ends before a stop sequence.
///
/// - If the request offers the tool `get_weather`, the script calls it.
/// - If the text names tools (`run-tool NAME {…} run-tool NAME {…}`), the script calls these tools one after the
///   other. For a tool that takes free text as input, the arguments in the text are `{"input":"…"}`. For a function in
///   a namespace, `NAME` is `NAMESPACE__NAME`.
/// - If the text contains `say-system`, the script repeats the request's instructions.
/// - If the text contains `say-json`, the script answers with the text after this word.
/// - If the text contains `vendor-400`, `vendor-429` or `vendor-500`, the script answers with this status.
/// - If the text contains `vendor-cut`, a streamed response breaks off.
#[must_use]
pub fn polite(received: &Received) -> Reply {
    if received.path.ends_with("/embeddings") {
        return embeddings(&received.json());
    }
    let responses = received.path.contains("/responses");
    let req = match responses {
        true => responses::as_chat(&received.json()),
        false => received.json(),
    };
    let messages = received.path.contains("/messages");
    let (reported, is_result) = last_text(&req);
    if let Some(failure) = failure(&reported) {
        return failure;
    }
    let input = 8 + reported.chars().count() as u64 / 4;
    if received.path.contains("/count_tokens") {
        return Reply::json(200, &json!({ "input_tokens": input }));
    }
    let model = req["model"].as_str().unwrap_or_default();
    let requested = is_result || reported.contains(RUN_TOOL);
    let mut calls = match requested.then(|| next_tool(&req)).flatten() {
        Some(call) => vec![call],
        None if is_result => vec![],
        None => weather_calls(&req, &reported),
    };
    if responses {
        calls.iter_mut().for_each(|call| call.as_offered(&req));
    }
    let mut text = text(&req, &reported, is_result);
    let stop = stop_sequences(&req)
        .into_iter()
        .filter_map(|stop| Some((text.find(stop)?, stop)))
        .min();
    if let Some((end, _)) = stop {
        text.truncate(end);
    }
    let (words, full) = words(&req, &text, calls.is_empty());
    let answer = Answer {
        model: model.to_owned(),
        full,
        words,
        stop: stop.map(|(_, stop)| stop.to_owned()),
        calls,
        input,
        cut: reported.contains("vendor-cut"),
    };
    match (messages, req["stream"] == true) {
        (_, false) if responses => answer.responses(),
        (_, true) if responses => answer.responses_stream(),
        (false, false) => answer.chat(),
        (false, true) => answer.chat_stream(req["stream_options"]["include_usage"] == true),
        (true, false) => answer.messages(),
        (true, true) => answer.messages_stream(),
    }
}

fn text(req: &Value, reported: &str, is_result: bool) -> String {
    if is_result {
        format!("Результат: {reported}")
    } else if reported.contains("say-system") {
        format!("Система: {}", instructions(req))
    } else if let Some((_, json)) = reported.split_once(SAY_JSON) {
        json.to_owned()
    } else {
        format!("Вы написали: {reported}")
    }
}

/// Returns the words of the response, and whether the response is complete. Like a real vendor, the script generates at
/// most as many tokens as the request allows; it counts each word as a token.
fn words(req: &Value, text: &str, is_text: bool) -> (Vec<String>, bool) {
    let ceiling = ["max_completion_tokens", "max_tokens", "max_output_tokens"]
        .iter()
        .find_map(|name| req[*name].as_u64())
        .and_then(|ceiling| usize::try_from(ceiling).ok())
        .unwrap_or(1000);
    let words = text.split_inclusive(' ').filter(|_| is_text);
    let stored: Vec<String> = words.clone().take(ceiling).map(str::to_owned).collect();
    let full = stored.len() == words.count();
    (stored, full)
}

/// Returns the failing response, if the request's text contains a word that demands one.
fn failure(reported: &str) -> Option<Reply> {
    let refuse = |status: u16, text: &str| {
        let error = json!({ "message": text, "type": "scripted", "code": null });
        Reply::json(status, &json!({ "error": error }))
    };
    if reported.contains("vendor-400") {
        Some(refuse(400, "the script refuses this request"))
    } else if reported.contains("vendor-429") {
        Some(refuse(429, "slow down").header("retry-after", "1"))
    } else if reported.contains("vendor-500") {
        Some(refuse(500, "the script fails"))
    } else {
        None
    }
}

/// Answers each input with a vector. The vector has three numbers that a 32-bit float can hold exactly, or `dimensions`
/// numbers if the request sets this field. It is encoded in base64 if the request demands that. As in the input of a
/// chat, four characters count as a token.
fn embeddings(req: &Value) -> Reply {
    let texts = match &req["input"] {
        Value::Array(items) if !items.iter().any(Value::is_number) => items.clone(),
        one => vec![one.clone()],
    };
    let failing = texts.iter().filter_map(Value::as_str).find_map(failure);
    if let Some(failure) = failing {
        return failure;
    }
    let tokens = |text: &Value| match text {
        Value::Array(tokens) => tokens.len() as u64,
        text => 1 + text.as_str().unwrap_or_default().chars().count() as u64 / 4,
    };
    let size = req["dimensions"].as_u64().unwrap_or(3).min(4096);
    let vector = |tokens: u64| {
        let number = |at| f32::from(u16::try_from((tokens + at) % 64).unwrap_or(0)) / 64.0;
        (0..size).map(number).collect::<Vec<f32>>()
    };
    let data = texts.iter().enumerate().map(|(index, text)| {
        let vector = vector(tokens(text));
        let vector = match req["encoding_format"] == "base64" {
            true => {
                let bytes = vector.iter().flat_map(|it| it.to_le_bytes());
                STANDARD.encode(bytes.collect::<Vec<u8>>()).into()
            }
            false => json!(vector),
        };
        json!({ "object": "embedding", "index": index, "embedding": vector })
    });
    let used: u64 = texts.iter().map(tokens).sum();
    Reply::json(
        200,
        &json!({
            "object": "list",
            "data": data.collect::<Vec<_>>(),
            "model": req["model"],
            "usage": { "prompt_tokens": used, "total_tokens": used },
        }),
    )
}

/// Returns the last text in the request from a user or a tool, and whether it is the result of a tool.
fn last_text(req: &Value) -> (String, bool) {
    let messages = req["messages"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let speaks = |message: &&Value| message["role"] == "user" || message["role"] == "tool";
    let last = messages.iter().rev().find(speaks).unwrap_or(&Value::Null);
    let is_tool = last["role"] == "tool";
    if let Some(text) = last["content"].as_str() {
        return (text.to_owned(), is_tool);
    }
    let part = last["content"].as_array().and_then(|parts| parts.last());
    let part = part.unwrap_or(&Value::Null);
    let is_result = part["type"] == "tool_result";
    let text = match is_result {
        true => part["content"]
            .as_str()
            .or_else(|| part["content"][0]["text"].as_str()),
        false => part["text"].as_str(),
    };
    (text.unwrap_or_default().to_owned(), is_tool || is_result)
}

fn instructions(req: &Value) -> String {
    let turns = req["messages"].as_array().into_iter().flatten();
    let returned = turns
        .filter(|turn| turn["role"] == "system" || turn["role"] == "developer")
        .map(|turn| &turn["content"]);
    let mut texts: Vec<&str> = Vec::new();
    for content in returned.chain([&req["system"]]) {
        match content {
            Value::Array(parts) => {
                texts.extend(parts.iter().filter_map(|part| part["text"].as_str()));
            }
            content => texts.extend(content.as_str()),
        }
    }
    texts.join("\n")
}

fn stop_sequences(req: &Value) -> Vec<&str> {
    match (&req["stop_sequences"], &req["stop"]) {
        (Value::Array(list), _) | (_, Value::Array(list)) => {
            list.iter().filter_map(Value::as_str).collect()
        }
        (_, Value::String(one)) => vec![one.as_str()],
        _ => vec![],
    }
}

/// A tool call of the script: its id, its name, and its arguments in the pieces in which a stream sends them.
struct ToolCall {
    id: String,
    name: String,
    pieces: [String; 2],
    /// The namespace of the function. Only the Responses format has namespaces.
    namespace: Option<String>,
    /// Whether the tool's input is free text instead of JSON. Only the Responses format has such tools.
    is_free: bool,
}

impl ToolCall {
    fn new(number: usize, name: &str, arguments: &str) -> Self {
        Self {
            id: format!("call_{number}"),
            name: name.to_owned(),
            pieces: halves(arguments),
            namespace: None,
            is_free: false,
        }
    }
}

fn halves(text: &str) -> [String; 2] {
    let middle = (text.len() / 2..=text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or_default();
    let (first, second) = text.split_at(middle);
    [first.to_owned(), second.to_owned()]
}

/// Marks the answer in a request's text: the script answers with the text after this word.
const SAY_JSON: &str = "say-json ";

/// This word in a request's text makes the script call a tool. The tool's name and arguments follow it.
const RUN_TOOL: &str = "run-tool ";

fn is_offered(req: &Value, name: &str) -> bool {
    let mut tools = req["tools"].as_array().into_iter().flatten();
    tools.any(|tool| {
        tool["name"] == name
            || tool["function"]["name"] == name
            || responses::grouped(tool, name).is_some()
    })
}

/// Returns the next tool call that the user's text demands: the first `run-tool NAME {"its": "arguments"}` whose result
/// is not in the request yet.
fn next_tool(req: &Value) -> Option<ToolCall> {
    let mut results = 0;
    let messages = req["messages"].as_array()?;
    let requested = messages.iter().rev().find_map(|message| {
        let content = &message["content"];
        let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
        let (of_user, of_tool) = (message["role"] == "user", message["role"] == "tool");
        let texts = parts.iter().filter_map(|part| part["text"].as_str());
        let mut texts = content.as_str().into_iter().chain(texts);
        let requested = texts.find(|text| of_user && text.contains(RUN_TOOL));
        if requested.is_none() {
            let is_result = |part: &&Value| part["type"] == "tool_result";
            results += usize::from(of_tool) + parts.iter().filter(is_result).count();
        }
        requested
    })?;
    let call = requested.split(RUN_TOOL).nth(1 + results)?;
    let (name, arguments) = call.trim().split_once(' ')?;
    is_offered(req, name).then(|| ToolCall::new(results + 1, name, arguments))
}

/// Returns calls of the tool `get_weather`, if the request offers it: one call, or two if the text contains `parallel`.
fn weather_calls(req: &Value, reported: &str) -> Vec<ToolCall> {
    const WEATHER: &str = "get_weather";
    let count = match (is_offered(req, WEATHER), reported.contains("parallel")) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 2,
    };
    (1..=count)
        .map(|number| ToolCall::new(number, WEATHER, "{\"city\":\"Москва\"}"))
        .collect()
}

const ID: &str = "scripted-1";
const CREATED: u64 = 1_790_000_000;

struct Answer {
    model: String,
    words: Vec<String>,
    full: bool,
    /// The stop sequence before which the response ended; `None` if it ended otherwise.
    stop: Option<String>,
    calls: Vec<ToolCall>,
    input: u64,
    cut: bool,
}

impl Answer {
    fn output(&self) -> u64 {
        (self.words.len() + 8 * self.calls.len()) as u64
    }

    fn chat_finish(&self) -> &'static str {
        match (self.calls.is_empty(), self.full) {
            (false, _) => "tool_calls",
            (true, true) => "stop",
            (true, false) => "length",
        }
    }

    fn chat_usage(&self) -> Value {
        let (input, output) = (self.input, self.output());
        json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
            "prompt_tokens_details": { "cached_tokens": 0 } })
    }

    fn chat(&self) -> Reply {
        let mut message =
            json!({ "role": "assistant", "content": self.words.concat(), "refusal": null });
        if !self.calls.is_empty() {
            message["content"] = Value::Null;
            message["tool_calls"] = self
                .calls
                .iter()
                .map(|call| chat_call(call, &call.pieces.concat()))
                .collect();
        }
        Reply::json(
            200,
            &json!({ "id": ID, "object": "chat.completion", "created": CREATED, "model": self.model,
                "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": self.chat_finish() }],
                "usage": self.chat_usage() }),
        )
    }

    fn chat_stream(&self, with_usage: bool) -> Reply {
        let chunk = |choices: Value, usage: Value| {
            let mut chunk = json!({ "id": ID, "object": "chat.completion.chunk", "created": CREATED,
                "model": self.model, "choices": choices });
            if with_usage {
                chunk["usage"] = usage;
            }
            format!("data: {chunk}\n\n")
        };
        let delta = |delta: Value, finish: Value| {
            let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
            chunk(json!([choice]), Value::Null)
        };
        let begin = json!({ "role": "assistant", "content": "" });
        let mut events = vec![delta(begin, Value::Null)];
        let words = self.words.iter();
        events.extend(words.map(|word| delta(json!({ "content": word }), Value::Null)));
        for (index, call) in self.calls.iter().enumerate() {
            let mut begin = chat_call(call, "");
            begin["index"] = index.into();
            events.push(delta(json!({ "tool_calls": [begin] }), Value::Null));
            for piece in &call.pieces {
                let call = json!({ "index": index, "function": { "arguments": piece } });
                events.push(delta(json!({ "tool_calls": [call] }), Value::Null));
            }
        }
        if self.cut {
            return cut_in_the_middle(events);
        }
        events.push(delta(json!({}), self.chat_finish().into()));
        if with_usage {
            events.push(chunk(json!([]), self.chat_usage()));
        }
        events.push("data: [DONE]\n\n".to_owned());
        Reply::stream(events)
    }

    fn messages_stop(&self) -> &'static str {
        match (self.calls.is_empty(), self.full) {
            (false, _) => "tool_use",
            (true, true) if self.stop.is_some() => "stop_sequence",
            (true, true) => "end_turn",
            (true, false) => "max_tokens",
        }
    }

    fn messages_stop_sequence(&self) -> Option<&str> {
        let stopped = self.messages_stop() == "stop_sequence";
        self.stop.as_deref().filter(|_| stopped)
    }

    fn messages(&self) -> Reply {
        let text = (!self.words.is_empty())
            .then(|| json!({ "type": "text", "text": self.words.concat() }));
        let calls = self.calls.iter().map(|call| {
            let input: Value = serde_json::from_str(&call.pieces.concat()).unwrap_or_default();
            json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
        });
        let content: Vec<Value> = text.into_iter().chain(calls).collect();
        Reply::json(
            200,
            &json!({ "id": ID, "type": "message", "role": "assistant", "model": self.model, "content": content,
                "stop_reason": self.messages_stop(), "stop_sequence": self.messages_stop_sequence(),
                "usage": self.messages_usage(self.output()) }),
        )
    }

    fn messages_usage(&self, output: u64) -> Value {
        json!({ "input_tokens": self.input, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": output })
    }

    fn messages_stream(&self) -> Reply {
        let event = |data: Value| {
            let kind = data["type"].as_str().unwrap_or_default();
            format!("event: {kind}\ndata: {data}\n\n")
        };
        let start = json!({ "id": ID, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": self.messages_usage(1) });
        let mut events = vec![event(json!({ "type": "message_start", "message": start }))];
        let mut block = |start: Value, deltas: Vec<Value>, index: usize| {
            let begin =
                json!({ "type": "content_block_start", "index": index, "content_block": start });
            let delta = |it| json!({ "type": "content_block_delta", "index": index, "delta": it });
            let stop = json!({ "type": "content_block_stop", "index": index });
            let block = std::iter::once(begin).chain(deltas.into_iter().map(delta));
            events.extend(block.chain([stop]).map(event));
        };
        if !self.words.is_empty() {
            let delta = |word| json!({ "type": "text_delta", "text": word });
            let deltas = self.words.iter().map(delta).collect();
            block(json!({ "type": "text", "text": "" }), deltas, 0);
        }
        for (index, call) in self.calls.iter().enumerate() {
            let delta = |piece| json!({ "type": "input_json_delta", "partial_json": piece });
            let start =
                json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
            block(start, call.pieces.iter().map(delta).collect(), index);
        }
        if self.cut {
            return cut_in_the_middle(events);
        }
        events.insert(1, event(json!({ "type": "ping" })));
        let delta = json!({ "stop_reason": self.messages_stop(), "stop_sequence": self.messages_stop_sequence() });
        events.push(event(json!({ "type": "message_delta", "delta": delta, "usage": { "output_tokens": self.output() } })));
        events.push(event(json!({ "type": "message_stop" })));
        Reply::stream(events)
    }
}

fn chat_call(call: &ToolCall, arguments: &str) -> Value {
    let function = json!({ "name": call.name, "arguments": arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}

fn cut_in_the_middle(mut events: Vec<String>) -> Reply {
    events.truncate(events.len().div_ceil(2).max(2));
    Reply::stream(events).cut()
}

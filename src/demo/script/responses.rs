//! The scripted vendor's responses in the Responses format.

use serde_json::{Value, json};

use super::{super::vendor::Reply, Answer, CREATED, ToolCall, cut_in_the_middle, halves};

const ID: &str = "resp_scripted_1";

/// Converts a request in the Responses format to Chat Completions messages, which the script reads.
pub(super) fn as_chat(req: &Value) -> Value {
    let mut turns = Vec::new();
    if let Some(reported) = req["instructions"].as_str() {
        turns.push(json!({ "role": "system", "content": reported }));
    }
    match &req["input"] {
        Value::String(text) => turns.push(json!({ "role": "user", "content": text })),
        items => turns.extend(items.as_array().into_iter().flatten().filter_map(turn)),
    }
    let mut chat = req.clone();
    chat["messages"] = turns.into();
    chat
}

fn turn(item: &Value) -> Option<Value> {
    match item["type"].as_str() {
        None | Some("message") => Some(json!({ "role": item["role"], "content": item["content"] })),
        Some("function_call_output" | "custom_tool_call_output") => {
            let output = &item["output"];
            let text = output.as_str().or_else(|| output[0]["text"].as_str());
            Some(json!({ "role": "tool", "content": text }))
        }
        Some(_) => None,
    }
}

/// Splits `NAMESPACE__NAME` into the namespace and the function's name, if `tool` is this namespace and has this
/// function.
pub(super) fn grouped<'a>(tool: &'a Value, name: &'a str) -> Option<(&'a str, &'a str)> {
    let namespace = tool["name"].as_str()?;
    let name = name.strip_prefix(namespace)?.strip_prefix("__")?;
    let mut functions = tool["tools"].as_array()?.iter();
    functions
        .any(|function| function["name"] == name)
        .then_some((namespace, name))
}

impl ToolCall {
    /// Adapts a tool call to the tool that the request offered. In the Responses format, a tool may be in a namespace,
    /// or take free text.
    pub(super) fn as_offered(&mut self, req: &Value) {
        let tools = || req["tools"].as_array().into_iter().flatten();
        let group = tools().find_map(|tool| grouped(tool, &self.name));
        let group = group.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        if let Some((namespace, name)) = group {
            (self.namespace, self.name) = (Some(namespace), name);
        }
        self.is_free = tools().any(|tool| tool["type"] == "custom" && tool["name"] == *self.name);
        if self.is_free {
            let arguments: Value = serde_json::from_str(&self.pieces.concat()).unwrap_or_default();
            self.pieces = halves(arguments["input"].as_str().unwrap_or_default());
        }
    }

    /// Returns four words that the Responses format uses for this kind of tool call: the item's id prefix, the item's
    /// type, the prefix of its event names, and the field of its arguments.
    const fn words(&self) -> [&'static str; 4] {
        match self.is_free {
            true => [
                "ctc",
                "custom_tool_call",
                "response.custom_tool_call_input",
                "input",
            ],
            false => [
                "fc",
                "function_call",
                "response.function_call_arguments",
                "arguments",
            ],
        }
    }

    fn item_id(&self, index: usize) -> String {
        format!("{}_scripted_{index}", self.words()[0])
    }
}

impl Answer {
    fn status(&self) -> &'static str {
        match self.full {
            true => "completed",
            false => "incomplete",
        }
    }

    /// Returns a response object with these items and this status.
    fn response(&self, status: &str, output: &[Value], usage: &Value) -> Value {
        let cut = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        json!({ "id": ID, "object": "response", "created_at": CREATED, "status": status, "error": null,
            "incomplete_details": cut, "instructions": null, "metadata": {}, "model": self.model,
            "output": output, "parallel_tool_calls": true, "temperature": 1.0, "tool_choice": "auto", "tools": [],
            "top_p": 1.0, "store": false, "usage": usage })
    }

    fn responses_usage(&self) -> Value {
        let (input, output) = (self.input, self.output());
        json!({ "input_tokens": input, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": output,
            "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": input + output })
    }

    fn items(&self) -> Vec<Value> {
        let calls = self.calls.iter().enumerate();
        let calls =
            calls.map(|(index, call)| call_item(index, call, &call.pieces.concat(), "completed"));
        if self.calls.is_empty() {
            let part = text_part(&self.words.concat());
            return vec![message(self.status(), &[part])];
        }
        calls.collect()
    }

    pub(super) fn responses(&self) -> Reply {
        let response = self.response(self.status(), &self.items(), &self.responses_usage());
        Reply::json(200, &response)
    }

    pub(super) fn responses_stream(&self) -> Reply {
        let begun = self.response("in_progress", &[], &Value::Null);
        let mut events = Events::default();
        events.push("response.created", json!({ "response": begun }));
        events.push("response.in_progress", json!({ "response": begun }));
        if self.calls.is_empty() {
            events.text(&self.words, self.status());
        }
        for (index, call) in self.calls.iter().enumerate() {
            events.call(index, call);
        }
        if self.cut {
            return cut_in_the_middle(events.written);
        }
        let response = self.response(self.status(), &self.items(), &self.responses_usage());
        let last = format!("response.{}", self.status());
        events.push(&last, json!({ "response": response }));
        Reply::stream(events.written)
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn message(status: &str, content: &[Value]) -> Value {
    json!({ "id": "msg_scripted_0", "type": "message", "status": status, "role": "assistant", "content": content })
}

fn call_item(index: usize, call: &ToolCall, arguments: &str, status: &str) -> Value {
    let [_, kind, _, field] = call.words();
    let mut item = json!({ "id": call.item_id(index), "type": kind, "status": status, "call_id": call.id,
        "name": call.name, field: arguments });
    if let Some(namespace) = &call.namespace {
        item["namespace"] = namespace.as_str().into();
    }
    item
}

/// The events of a response, which are given increasing sequence numbers.
#[derive(Default)]
struct Events {
    written: Vec<String>,
}

impl Events {
    fn push(&mut self, kind: &str, mut data: Value) {
        data["type"] = kind.into();
        data["sequence_number"] = self.written.len().into();
        self.written
            .push(format!("event: {kind}\ndata: {data}\n\n"));
    }

    /// Adds an event that contains the whole item with this index.
    fn push_item(&mut self, kind: &str, index: usize, item: &Value) {
        self.push(kind, json!({ "output_index": index, "item": item }));
    }

    /// Adds an event about the item with this index and id.
    fn push_of_item(&mut self, kind: &str, (index, id): (usize, &str), mut data: Value) {
        data["item_id"] = id.into();
        data["output_index"] = index.into();
        self.push(kind, data);
    }

    fn text(&mut self, words: &[String], status: &str) {
        let at = (0, "msg_scripted_0");
        let text = words.concat();
        let item = message("in_progress", &[]);
        self.push_item("response.output_item.added", 0, &item);
        let part = json!({ "content_index": 0, "part": text_part("") });
        self.push_of_item("response.content_part.added", at, part);
        for word in words {
            let delta = json!({ "content_index": 0, "delta": word, "logprobs": [] });
            self.push_of_item("response.output_text.delta", at, delta);
        }
        let done = json!({ "content_index": 0, "text": text, "logprobs": [] });
        self.push_of_item("response.output_text.done", at, done);
        let part = json!({ "content_index": 0, "part": text_part(&text) });
        self.push_of_item("response.content_part.done", at, part);
        let item = message(status, &[text_part(&text)]);
        self.push_item("response.output_item.done", 0, &item);
    }

    fn call(&mut self, index: usize, call: &ToolCall) {
        let id = call.item_id(index);
        let [_, _, events, field] = call.words();
        let at = (index, id.as_str());
        let item = call_item(index, call, "", "in_progress");
        self.push_item("response.output_item.added", index, &item);
        for piece in &call.pieces {
            self.push_of_item(&format!("{events}.delta"), at, json!({ "delta": piece }));
        }
        let arguments = call.pieces.concat();
        let mut done = json!({ field: arguments });
        if !call.is_free {
            done["name"] = call.name.as_str().into();
        }
        self.push_of_item(&format!("{events}.done"), at, done);
        let item = call_item(index, call, &arguments, "completed");
        self.push_item("response.output_item.done", index, &item);
    }
}

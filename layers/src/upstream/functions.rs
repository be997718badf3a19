//! The dialect of Chat Completions vendors that have `functions` instead of `tools`, for example GigaChat.
//!
//! In a request, tools, tool calls and results of tools are rewritten to functions, with one call per message. In a
//! response, a `function_call` becomes one entry of `tool_calls`, so that the layers above get only responses with
//! `tool_calls`.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value, json};

use crate::error::{Error, Problem};

/// The prefix of the ids of tool calls. It is followed by the vendor's `functions_state_id`, if the vendor sent one.
const ID: &str = "call_";

/// The maximum number of bytes of a plain response, and of one event of a stream.
const BYTES_MAX: usize = 64 << 20;

/// Rewrites a Chat Completions request for a vendor that has `functions` instead of `tools`.
///
/// # Errors
/// [`Error::Invalid`] if the request contains something that functions cannot express: an image, or a tool that is not
/// a function.
pub(super) fn request(body: &[u8]) -> Result<Bytes, Error> {
    let Ok(Value::Object(mut body)) = serde_json::from_slice(body) else {
        let why = "the request body is not a JSON object";
        return Err(Error::Internal(why.into()));
    };
    for removed in ["parallel_tool_calls", "stream_options"] {
        body.remove(removed);
    }
    let functions = functions(body.remove("tools"))?;
    let choice = body.remove("tool_choice");
    if !functions.is_empty() {
        body.insert(
            "function_call".to_owned(),
            function_choice(choice.as_ref(), &functions),
        );
        body.insert("functions".to_owned(), functions.into());
    }
    if let Some(Value::Array(given)) = body.remove("messages") {
        body.insert("messages".to_owned(), messages(given)?.into());
    }
    Ok(Value::Object(body).to_string().into())
}

fn unfit(field: &'static str) -> Error {
    Error::invalid(field, Problem::NotTranslated)
}

/// Removes a field from an object and returns its value. Returns null if the object has no such field.
fn take(object: &mut Value, field: &str) -> Value {
    object.get_mut(field).map(Value::take).unwrap_or_default()
}

fn functions(tools: Option<Value>) -> Result<Vec<Value>, Error> {
    let Some(Value::Array(tools)) = tools else {
        return Ok(Vec::new());
    };
    let function = |mut tool: Value| match take(&mut tool, "function") {
        Value::Object(mut function) if tool["type"] == "function" => {
            function.remove("strict");
            function
                .entry("parameters")
                .or_insert_with(|| json!({ "type": "object", "properties": {} }));
            Ok(Value::Object(function))
        }
        _ => Err(unfit("tools")),
    };
    tools.into_iter().map(function).collect()
}

/// Returns `function_call` for this `tool_choice`. A vendor with `functions` can require a call of one named function.
/// It cannot require a call and leave the choice of the function to the model.
fn function_choice(choice: Option<&Value>, functions: &[Value]) -> Value {
    let named = choice.map(|choice| &choice["function"]["name"]);
    match (choice.and_then(Value::as_str), named) {
        (Some("none"), _) => "none".into(),
        (Some("required"), _) => match functions {
            [only] => json!({ "name": only["name"] }),
            _ => "auto".into(),
        },
        (None, Some(name)) if name.is_string() => json!({ "name": name }),
        _ => "auto".into(),
    }
}

/// Rewrites the messages so that the result of each call directly follows the call.
fn messages(given: Vec<Value>) -> Result<Vec<Value>, Error> {
    let mut results: HashMap<String, Value> = HashMap::new();
    for message in &given {
        if let (Some("tool"), Some(id)) =
            (message["role"].as_str(), message["tool_call_id"].as_str())
        {
            results.insert(id.to_owned(), message["content"].clone());
        }
    }
    let mut written = Vec::with_capacity(given.len());
    for mut message in given {
        if message["role"] == "tool" {
            continue;
        }
        let content = text(take(&mut message, "content"))?;
        let calls = take(&mut message, "tool_calls");
        let Some(fields) = message.as_object_mut() else {
            continue;
        };
        fields.remove("tool_calls");
        fields.insert("content".to_owned(), content.into());
        let Value::Array(calls) = calls else {
            written.push(message);
            continue;
        };
        for call in calls {
            let id = call["id"].as_str().unwrap_or_default();
            let function = &call["function"];
            let arguments = function["arguments"].as_str().unwrap_or_default();
            let arguments: Map<String, Value> = serde_json::from_str(arguments).unwrap_or_default();
            let mut requested = message.clone();
            requested["function_call"] =
                json!({ "name": function["name"], "arguments": arguments });
            if let Some(state) = id.strip_prefix(ID).filter(|state| is_state(state)) {
                requested["functions_state_id"] = state.into();
            }
            written.push(requested);
            // Each function call becomes a message of its own, and only the first of these messages has the turn's
            // text.
            message["content"] = "".into();
            if let Some(result) = results.remove(id) {
                let result = as_json(text(result)?);
                written.push(
                    json!({ "role": "function", "name": function["name"], "content": result }),
                );
            }
        }
    }
    Ok(written)
}

/// Returns whether the text is a `functions_state_id`, which is a UUID. Ids of other vendors have the same prefix.
fn is_state(text: &str) -> bool {
    let is_uuid = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_uuid)
}

/// Returns the content of a message as one text.
fn text(content: Value) -> Result<String, Error> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let part = |part: &Value| match part["text"].as_str() {
                Some(text) => Ok(text.to_owned()),
                None => Err(unfit("messages")),
            };
            let texts: Vec<_> = parts.iter().map(part).collect::<Result<_, _>>()?;
            Ok(texts.join("\n"))
        }
        _ => Ok(String::new()),
    }
}

/// Returns the result of a call as the text of a JSON object, because the vendor accepts no other value.
fn as_json(result: String) -> String {
    match serde_json::from_str::<Value>(&result) {
        Ok(Value::Object(_)) => result,
        _ => json!({ "result": result }).to_string(),
    }
}

/// Rewrites the function calls in a response while the response arrives.
#[derive(Debug)]
pub(super) struct Answer {
    is_stream: bool,
    /// The bytes of the incomplete next event, or of the plain response, that were received so far.
    pending: BytesMut,
    has_ended: bool,
}

impl Answer {
    pub(super) fn new(is_stream: bool) -> Self {
        Self {
            is_stream,
            pending: BytesMut::new(),
            has_ended: false,
        }
    }

    /// Returns whether [`finish`](Self::finish) was called.
    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Adds received data, and returns the complete events, rewritten. May return no bytes.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if an event or a plain response is too long.
    pub(super) fn feed(&mut self, data: &[u8]) -> Result<Bytes, Error> {
        if self.pending.len() + data.len() > BYTES_MAX {
            let why = "an event of the stream is too long";
            return Err(Error::VendorBroken(why.into()));
        }
        let searched = self.pending.len().saturating_sub(3);
        self.pending.extend_from_slice(data);
        if !self.is_stream {
            return Ok(Bytes::new());
        }
        let Some(end) = last_end(&self.pending, searched) else {
            return Ok(Bytes::new());
        };
        let events = self.pending.split_to(end).freeze();
        if memchr::memmem::find(&events, b"function").is_none() {
            return Ok(events);
        }
        let mut written = Vec::with_capacity(events.len());
        for line in events.split_inclusive(|byte| *byte == b'\n') {
            match line.strip_prefix(b"data:").map(rewritten) {
                Some(Some(json)) => {
                    written.extend_from_slice(b"data: ");
                    written.extend_from_slice(json.as_bytes());
                    let end: &[u8] = if line.ends_with(b"\r\n") {
                        b"\r\n"
                    } else {
                        b"\n"
                    };
                    written.extend_from_slice(end);
                }
                _ => written.extend_from_slice(line),
            }
        }
        Ok(written.into())
    }

    /// Ends the response, and returns the rest of it. For a plain response, the rest is the whole response.
    pub(super) fn finish(&mut self) -> Bytes {
        self.has_ended = true;
        let rest = std::mem::take(&mut self.pending).freeze();
        if self.is_stream {
            return rest;
        }
        rewritten(&rest).map_or(rest, Bytes::from)
    }
}

/// Returns the position after the last complete event. No event ends before `searched`.
fn last_end(events: &[u8], searched: usize) -> Option<usize> {
    let after = |mark: &[u8]| {
        let at = memchr::memmem::rfind(&events[searched..], mark)?;
        Some(searched + at + mark.len())
    };
    after(b"\n\n").max(after(b"\r\n\r\n"))
}

/// Returns the JSON of a response or an event with its function call replaced by a tool call. `None` if it has no
/// function call.
fn rewritten(json: &[u8]) -> Option<String> {
    let mut answer: Value = serde_json::from_slice(json).ok()?;
    let choices = answer.get_mut("choices")?.as_array_mut()?;
    let mut has_changed = false;
    for choice in choices {
        let is_event = choice["delta"].is_object();
        let message = match is_event {
            true => choice.get_mut("delta"),
            false => choice.get_mut("message"),
        };
        if let Some(Value::Object(message)) = message {
            has_changed |= with_tool_calls(message, is_event);
        }
        if choice["finish_reason"] == "function_call" {
            choice["finish_reason"] = "tool_calls".into();
            has_changed = true;
        }
    }
    has_changed.then(|| answer.to_string())
}

fn with_tool_calls(message: &mut Map<String, Value>, is_event: bool) -> bool {
    let state = message.remove("functions_state_id");
    let Some(mut call) = message.remove("function_call").filter(Value::is_object) else {
        return state.is_some();
    };
    let id = match state.as_ref().and_then(Value::as_str) {
        Some(state) => format!("{ID}{state}"),
        None => own_id(),
    };
    let arguments = match call["arguments"].take() {
        Value::String(text) => text,
        Value::Null => "{}".to_owned(),
        object => object.to_string(),
    };
    let mut tool_call = json!({
        "id": id, "type": "function", "function": { "name": call["name"], "arguments": arguments },
    });
    if is_event {
        tool_call["index"] = 0.into();
    }
    message.insert("tool_calls".to_owned(), json!([tool_call]));
    true
}

/// Returns an id that no other tool call of the conversation has.
fn own_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{ID}{:x}{number:x}", since.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(body: Value) -> Value {
        serde_json::from_slice(&request(body.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn tools_are_translated_to_functions() {
        let tool = json!({ "type": "function", "function": {
            "name": "weather", "description": "d", "strict": true,
            "parameters": { "type": "object", "properties": { "city": { "type": "string" } } },
        } });
        let plain = json!({ "type": "function", "function": { "name": "now" } });
        let with = |choice: Value| {
            sent(
                json!({ "model": "GigaChat-2", "tools": [tool, plain], "tool_choice": choice, "parallel_tool_calls": true,
                         "stream_options": { "include_usage": true } }),
            )
        };
        let body = with("auto".into());
        assert_eq!(
            body,
            json!({ "model": "GigaChat-2", "function_call": "auto", "functions": [
                { "name": "weather", "description": "d", "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } },
                { "name": "now", "parameters": { "type": "object", "properties": {} } },
            ] })
        );
        assert_eq!(with("none".into())["function_call"], "none");
        assert_eq!(with("required".into())["function_call"], "auto");
        let named = json!({ "type": "function", "function": { "name": "now" } });
        assert_eq!(with(named)["function_call"], json!({ "name": "now" }));
        let only = sent(json!({ "tools": [plain], "tool_choice": "required" }));
        assert_eq!(only["function_call"], json!({ "name": "now" }));
        // A `tool_choice` without tools is removed.
        assert_eq!(sent(json!({ "tool_choice": "auto" })), json!({}));
    }

    #[test]
    fn each_function_call_is_followed_by_its_result() {
        let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        let body = sent(json!({ "messages": [
            { "role": "system", "content": "s" },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
            { "role": "assistant", "content": "I look", "tool_calls": [
                call("call_77d3fb14-457a-46ba-937e-8d856156d003", "weather", "{\"city\":\"Москва\"}"), call("call_other", "now", ""),
            ] },
            { "role": "tool", "tool_call_id": "call_other", "content": "{\"time\":\"12\"}" },
            { "role": "tool", "tool_call_id": "call_77d3fb14-457a-46ba-937e-8d856156d003", "content": [{ "type": "text", "text": "sunny" }] },
            { "role": "user", "content": "and?" },
        ] }));
        assert_eq!(
            body["messages"],
            json!([
                { "role": "system", "content": "s" },
                { "role": "user", "content": "a\nb" },
                { "role": "assistant", "content": "I look", "functions_state_id": "77d3fb14-457a-46ba-937e-8d856156d003",
                  "function_call": { "name": "weather", "arguments": { "city": "Москва" } } },
                { "role": "function", "name": "weather", "content": "{\"result\":\"sunny\"}" },
                { "role": "assistant", "content": "", "function_call": { "name": "now", "arguments": {} } },
                { "role": "function", "name": "now", "content": "{\"time\":\"12\"}" },
                { "role": "user", "content": "and?" },
            ])
        );
    }

    #[test]
    fn images_are_refused_and_so_are_tools_that_are_not_functions() {
        for body in [
            json!({ "tools": [{ "type": "custom", "custom": { "name": "x" } }] }),
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }] }),
        ] {
            let refused = request(body.to_string().as_bytes());
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{body}");
        }
    }

    /// A response with a function call, from GigaChat's documentation.
    const CALL: &str = r#"{"choices":[{"message":{"content":"","role":"assistant","function_call":{"name":"weather","arguments":{"city":"Москва"}},"functions_state_id":"77d3fb14-457a-46ba-937e-8d856156d003"},"index":0,"finish_reason":"function_call"}],"created":1700471392,"model":"GigaChat:2.0.28.2","object":"chat.completion","usage":{"prompt_tokens":150,"completion_tokens":32,"total_tokens":182,"precached_prompt_tokens":0}}"#;

    #[test]
    fn function_call_of_an_answer_becomes_a_tool_call() {
        let mut answer = Answer::new(false);
        let (one, other) = CALL.as_bytes().split_at(100);
        assert!(answer.feed(one).unwrap().is_empty() && answer.feed(other).unwrap().is_empty());
        let read: Value = serde_json::from_slice(&answer.finish()).unwrap();
        let choice = &read["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(
            choice["message"]["tool_calls"],
            json!([{ "id": "call_77d3fb14-457a-46ba-937e-8d856156d003", "type": "function",
                     "function": { "name": "weather", "arguments": "{\"city\":\"Москва\"}" } }])
        );
        assert!(choice["message"].get("function_call").is_none());
        assert_eq!(read["usage"]["prompt_tokens"], 150);
        // A response without a function call stays unchanged.
        let plain = r#"{"choices":[{"message":{"content":"hi", "role":"assistant"},"finish_reason":"stop"}]}"#;
        let mut answer = Answer::new(false);
        answer.feed(plain.as_bytes()).unwrap();
        assert_eq!(answer.finish(), plain);
    }

    #[test]
    fn stream_of_function_calls_is_rewritten_however_it_is_split() {
        let stream = concat!(
            "data: {\"choices\":[{\"delta\":{\"content\":\"Смотрю\",\"role\":\"assistant\"},\"index\":0}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"\",\"function_call\":{\"name\":\"weather\",\"arguments\":{\"city\":\"Москва\"}}},",
            "\"index\":0,\"finish_reason\":\"function_call\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2,\"total_tokens\":3}}\r\n\r\n",
            "data: [DONE]\n\n",
        );
        let whole = |size: usize| {
            let mut answer = Answer::new(true);
            let mut seen = Vec::new();
            for piece in stream.as_bytes().chunks(size) {
                seen.extend_from_slice(&answer.feed(piece).unwrap());
            }
            seen.extend_from_slice(&answer.finish());
            String::from_utf8(seen).unwrap()
        };
        for size in 1..stream.len() {
            let seen = whole(size);
            assert!(
                seen.starts_with("data: {\"choices\":[{\"delta\":{\"content\":\"Смотрю\""),
                "{size}: {seen}"
            );
            assert!(seen.ends_with("data: [DONE]\n\n"), "{size}: {seen}");
            let event = seen.lines().nth(2).unwrap().strip_prefix("data: ").unwrap();
            let event: Value = serde_json::from_str(event).unwrap();
            let call = &event["choices"][0]["delta"]["tool_calls"][0];
            assert_eq!(
                (&call["index"], &call["function"]["name"]),
                (&json!(0), &json!("weather"))
            );
            assert_eq!(call["function"]["arguments"], "{\"city\":\"Москва\"}");
            assert!(call["id"].as_str().unwrap().starts_with(ID));
            assert_eq!(event["choices"][0]["finish_reason"], "tool_calls");
        }
    }
}

//! Tests of a Chat Completions vendor that supports functions instead of tools, in the form that GigaChat documents.
//! Callers of each format use tools.

use tollgate::demo::vendor::Received;

use crate::prelude::*;

const ROUTE: &str = "{ vendor = \"chat-vendor\", model = \"vendor-chat-1\" }";
const STATE: &str = "77d3fb14-457a-46ba-937e-8d856156d003";

/// Starts a gateway whose Chat Completions vendor first calls a function, and answers after it has received the result.
async fn gigachat() -> World {
    let route = ROUTE.replace(" }", ", functions = true, output_field = \"max_tokens\" }");
    let world = Setup::default().edit(ROUTE, &route).start().await;
    world.vendor.script(|received: &Received| {
        let body = received.json();
        let usage = json!({ "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "precached_prompt_tokens": 7 });
        let messages = body["messages"].as_array().unwrap();
        let has_result = messages.iter().any(|message| message["role"] == "function");
        let (mut message, reason) = match has_result {
            true => (json!({ "role": "assistant", "content": "В Москве ясно" }), "stop"),
            false => (
                json!({ "role": "assistant", "content": "", "functions_state_id": STATE,
                        "function_call": { "name": "weather", "arguments": { "city": "Москва" } } }),
                "function_call",
            ),
        };
        let common = json!({ "created": 1_700_471_392, "model": "GigaChat:2.0.28.2", "usage": usage });
        if body["stream"] == true {
            message["role"] = "assistant".into();
            let choice = json!({ "index": 0, "delta": message, "finish_reason": reason });
            let event = with(common, json!({ "object": "chat.completion", "choices": [choice] }));
            return Reply::stream([format!("data: {event}\n\n"), "data: [DONE]\n\n".to_owned()]);
        }
        let choice = json!({ "index": 0, "message": message, "finish_reason": reason });
        let answer = with(common, json!({ "object": "chat.completion", "choices": [choice] }));
        Reply::json(200, &answer)
    });
    world
}

fn parameters() -> Value {
    json!({ "type": "object", "properties": { "city": { "type": "string" } } })
}

#[tokio::test]
async fn chat_tool_calls_are_translated_for_a_vendor_that_uses_function_calls() {
    let world = gigachat().await;
    let key = world.key().await;
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": parameters() } });
    let body = json!({ "model": "chat", "messages": [{ "role": "user", "content": "Погода?" }], "tools": [tool] });
    let answer = world.chat(&key, &body).await.expect(200);
    let message = &answer.json()["choices"][0]["message"];
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(message["tool_calls"][0]["function"]["name"], "weather");
    assert_eq!(
        message["tool_calls"][0]["function"]["arguments"],
        "{\"city\":\"Москва\"}"
    );

    let result = json!({ "role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ясно" });
    let next = with(
        body.clone(),
        json!({ "messages": [body["messages"][0], message, result] }),
    );
    let answer = world.chat(&key, &next).await;
    assert_eq!(
        answer.json()["choices"][0]["message"]["content"],
        "В Москве ясно"
    );
    let received = world.vendor.received();
    let sent = received[1].json();
    assert!(sent.get("tools").is_none() && sent["function_call"] == "auto");
    assert_eq!(
        sent["functions"][0],
        json!({ "name": "weather", "parameters": parameters() })
    );
    assert_eq!(sent["messages"][1]["functions_state_id"], STATE);
    assert_eq!(
        sent["messages"][1]["function_call"]["arguments"],
        json!({ "city": "Москва" })
    );
    assert_eq!(
        sent["messages"][2],
        json!({ "role": "function", "name": "weather", "content": "{\"result\":\"ясно\"}" })
    );
    // The vendor was called twice. Each call has 100 input tokens and 20 output tokens.
    let account = world.settled(&key).await;
    assert_eq!(account["balance_rub"], "999.972", "{account}");

    let streamed = with(body, json!({ "stream": true }));
    let answer = whole(world.send(world.chat_request(&key, &streamed)).await).await;
    let text = answer.text();
    has(&text, "\"tool_calls\"");
    assert!(!text.contains("function_call"), "{text}");
    assert!(text.contains("data: [DONE]"), "{text}");
}

#[tokio::test]
async fn messages_tool_calls_are_translated_for_a_vendor_that_uses_function_calls() {
    let world = gigachat().await;
    let key = world.key().await;
    let body = json!({
        "model": "chat", "max_tokens": 100, "messages": [{ "role": "user", "content": "Погода?" }],
        "tools": [{ "name": "weather", "input_schema": parameters() }],
    });
    for stream in [false, true] {
        let body = with(body.clone(), json!({ "stream": stream }));
        let answer = Op::Messages.call(&world, &key, &body).await.expect(200);
        let text = answer.text();
        has(&text, "\"tool_use\"");
        has(&text, "weather");
        assert!(text.contains("Москва"), "{text}");
    }
}

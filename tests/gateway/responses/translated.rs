//! Tests of the Responses format on one side of the gateway and another format on the other side, over real sockets:
//! the vendor's request, the caller's response, and the cost. The design cases R22 and so on are in `cases.md`.

use std::{fs, path::Path};

use http::Request;
use http_body_util::Full;

use super::setup;
use crate::prelude::*;

pub(super) async fn ask(world: &World, key: &Key, fields: Value) -> Answer {
    world.ask(requested(world, key, fields)).await
}

fn requested(world: &World, key: &Key, fields: Value) -> Request<Full<Bytes>> {
    let body = with(json!({ "input": "привет" }), fields).to_string();
    let url = world.url("/v1/responses");
    json_request(Method::POST, &url, &key.secret, body)
}

pub(super) fn says(world: &World, reply: Reply) {
    world.vendor_sends(reply);
}

pub(super) async fn charged(what: &str, world: &World, answer: &Answer, charge: i64) {
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(micro(&receipt["charged_rub"]), charge, "{what}: {receipt}");
    assert_eq!(receipt["estimated"], false, "{what}: {receipt}");
}

/// Returns the data of each event of a response, in order.
pub(super) fn returned(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .filter(|data| data.trim() != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// Checks that the values of `sequence_number` have no gap, and that the first event is `response.created`. Returns the
/// last event.
fn last(what: &str, events: &[Value]) -> Value {
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{what}: {event}");
    }
    assert_eq!(events[0]["type"], "response.created", "{what}");
    events.last().unwrap().clone()
}

/// Returns the cost of nine input tokens and two output tokens, in micro-rubles.
const fn cost(vendor: Op) -> i64 {
    match vendor {
        Op::Chat => 9 * 100 + 2 * 200,
        Op::Messages => 9 * 1000 + 2 * 2000,
    }
}

#[tokio::test]
async fn plain_chat_or_messages_answer_is_translated_to_responses_and_charged() {
    let (world, key) = World::start_with_key().await;
    for vendor in [Op::Chat, Op::Messages] {
        says(
            &world,
            Reply::json(200, &answer(vendor, "да", &usage(vendor, 9, 2))),
        );
        let body =
            json!({ "model": vendor.model(), "instructions": "коротко", "max_output_tokens": 50 });
        let got = ask(&world, &key, body).await;
        assert_eq!(got.status, 200, "{}", got.text());
        let reported = got.json();
        assert_eq!(reported["object"], "response");
        assert_eq!(reported["status"], "completed");
        let number = got.number().replace('-', "");
        assert_eq!(reported["id"], format!("resp_{number}"));
        assert_eq!(reported["output"][0]["content"][0]["text"], "да");
        assert_eq!(reported["usage"]["total_tokens"], 11);
        let received = world.vendor.received().pop().unwrap();
        let sent = received.json();
        assert_eq!(sent["model"], vendor.vendor_model());
        match vendor {
            Op::Chat => assert_eq!(
                (&sent["messages"][0]["role"], &sent["max_completion_tokens"]),
                (&json!("system"), &json!(50))
            ),
            Op::Messages => assert_eq!(
                (&sent["system"][0]["text"], &sent["max_tokens"]),
                (&json!("коротко"), &json!(50))
            ),
        }
        for field in ["store", "include", "input"] {
            assert!(sent.get(field).is_none(), "{sent}");
        }
        charged("plain", &world, &got, cost(vendor)).await;
    }
}

#[tokio::test]
async fn chat_or_messages_stream_is_translated_to_responses_and_charged() {
    let (world, key) = World::start_with_key().await;
    for vendor in [Op::Chat, Op::Messages] {
        says(
            &world,
            Reply::stream(events(vendor, &["раз ", "два"], 9, 2)),
        );
        let got = ask(
            &world,
            &key,
            json!({ "model": vendor.model(), "stream": true }),
        )
        .await;
        assert!(!got.failed && !got.text().contains("[DONE]"));
        let returned = returned(&got);
        let end = last("stream", &returned);
        assert_eq!(end["type"], "response.completed");
        let response = &end["response"];
        assert_eq!(response["output"][0]["content"][0]["text"], "раз два");
        let number = got.number().replace('-', "");
        assert_eq!(response["id"], format!("resp_{number}"));
        let deltas: String = returned
            .iter()
            .filter(|event| event["type"] == "response.output_text.delta")
            .map(|event| event["delta"].as_str().unwrap())
            .collect();
        assert_eq!(deltas, "раз два");
        charged("stream", &world, &got, cost(vendor)).await;
    }
}

#[tokio::test]
async fn tool_calls_of_a_coding_tool_round_trip_through_the_translation() {
    let (world, key) = World::start_with_key().await;
    let tools = json!([
        { "type": "function", "name": "exec", "parameters": { "type": "object", "properties": {} }, "strict": false },
        { "type": "custom", "name": "apply_patch", "format": { "type": "grammar", "syntax": "lark", "definition": "x" } },
        { "type": "namespace", "name": "agents", "description": "Others.", "tools": [
            { "type": "function", "name": "ask", "parameters": null }] },
        { "type": "web_search" }
    ]);
    let call = |index: u64, id: &str, name: &str, arguments: &str| {
        let call = json!({ "index": index, "id": id, "type": "function",
            "function": { "name": name, "arguments": arguments } });
        let choice =
            json!({ "index": 0, "delta": { "tool_calls": [call] }, "finish_reason": null });
        format!(
            "data: {}\n\n",
            json!({ "id": "c", "model": "v", "choices": [choice] })
        )
    };
    let mut stream = vec![
        call(0, "a", "exec", "{\"cmd\":\"ls\"}"),
        call(1, "b", "apply_patch", "{\"input\":\"*** Begin\"}"),
        call(2, "c", "agents__ask", "{}"),
    ];
    stream.extend(events(Op::Chat, &[], 9, 2));
    says(&world, Reply::stream(stream));
    let body = json!({ "model": "chat", "stream": true, "tools": tools, "tool_choice": "auto",
        "parallel_tool_calls": true, "client_metadata": { "session": "x" }, "include": ["reasoning.encrypted_content"] });
    let got = ask(&world, &key, body.clone()).await;
    let end = last("calls", &returned(&got));
    let output = end["response"]["output"].as_array().unwrap().clone();
    assert_eq!(output.len(), 3, "{end}");
    assert_eq!(output[0]["name"], "exec");
    assert_eq!(output[1]["type"], "custom_tool_call");
    assert_eq!(output[1]["input"], "*** Begin");
    assert_eq!(output[2]["namespace"], "agents");
    assert_eq!(output[2]["name"], "ask");
    assert_eq!(end["response"]["tools"].as_array().unwrap().len(), 3);
    let sent = world.vendor.received().pop().unwrap().json();
    assert_eq!(sent["tools"].as_array().unwrap().len(), 3);
    charged("calls", &world, &got, cost(Op::Chat)).await;

    // Case R55: the caller sends the output items back unchanged, together with the results of their tools.
    let mut input = vec![json!({ "role": "user", "content": "x" })];
    input.extend(output);
    for (kind, id) in [("function", "a"), ("custom_tool", "b"), ("function", "c")] {
        input.push(json!({ "type": format!("{kind}_call_output"), "call_id": id, "output": "ok" }));
    }
    for vendor in [Op::Chat, Op::Messages] {
        says(&world, Reply::stream(events(vendor, &["да"], 9, 2)));
        let next = with(
            body.clone(),
            json!({ "model": vendor.model(), "input": input }),
        );
        let got = ask(&world, &key, next).await;
        assert_eq!(
            last("next", &returned(&got))["type"],
            "response.completed",
            "{}",
            got.text()
        );
        let sent = world.vendor.received().pop().unwrap().json();
        let turns = sent["messages"].as_array().unwrap();
        match vendor {
            Op::Chat => {
                assert_eq!(turns[1]["tool_calls"].as_array().unwrap().len(), 3);
                assert_eq!(turns.len(), 5);
                let name = &turns[1]["tool_calls"][2]["function"]["name"];
                assert_eq!(name, "agents__ask");
            }
            Op::Messages => {
                assert_eq!(turns.len(), 3);
                assert_eq!(turns[1]["content"][1]["input"]["input"], "*** Begin");
                assert_eq!(turns[2]["content"][2]["tool_use_id"], "c");
            }
        }
    }
}

#[tokio::test]
async fn translated_response_of_a_failing_vendor_never_has_the_status_completed() {
    let (world, key) = World::start_with_key().await;
    for vendor in [Op::Chat, Op::Messages] {
        let mut cut = events(vendor, &["раз ", "два"], 9, 2);
        cut.truncate(if vendor == Op::Chat { 2 } else { 4 });
        says(&world, Reply::stream(cut).cut());
        let got = ask(
            &world,
            &key,
            json!({ "model": vendor.model(), "stream": true }),
        )
        .await;
        let returned = returned(&got);
        let end = last("cut", &returned);
        assert_eq!(end["type"], "response.failed");
        assert_eq!(returned[returned.len() - 2]["type"], "error");
        let number = got.number();
        assert_eq!(
            end["response"]["id"],
            format!("resp_{}", number.replace('-', ""))
        );
        assert_eq!(end["response"]["id"], returned[0]["response"]["id"]);
        let message = end["response"]["error"]["message"].as_str().unwrap();
        assert!(message.ends_with(&format!("({number})")), "{message}");
        assert!(!got.text().contains("response.completed"));
    }
}

#[tokio::test]
async fn untranslatable_responses_field_is_refused_before_the_vendor_is_called() {
    let (world, key) = World::start_with_key().await;
    let arguments =
        json!([{ "type": "function_call", "call_id": "a", "name": "f", "arguments": "{" }]);
    for (fields, field) in [
        (json!({ "input": arguments }), "input[0].arguments"),
        (json!({ "of_tomorrow": 1 }), "of_tomorrow"),
        (json!({ "top_logprobs": 3 }), "top_logprobs"),
    ] {
        let before = world.vendor.received().len();
        let got = ask(&world, &key, with(json!({ "model": "messages" }), fields)).await;
        assert_eq!(got.status, 400, "{}", got.text());
        let message = got.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(&format!("«{field}»")), "{message}");
        assert_eq!(world.vendor.received().len(), before);
        assert_eq!(micro(&world.account(&key).await["held_rub"]), 0);
    }
}

pub(super) fn response(text: &str) -> Value {
    json!({ "id": "resp_v", "object": "response", "status": "completed", "model": "vendor-chat-1", "error": null,
        "output": [
            { "type": "reasoning", "id": "rs_v", "summary": [{ "type": "summary_text", "text": "хм" }], "encrypted_content": "gAAA" },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": text, "annotations": [] }] }],
        "usage": { "input_tokens": 9, "input_tokens_details": { "cached_tokens": 3, "cache_write_tokens": 2 },
            "output_tokens": 5, "output_tokens_details": { "reasoning_tokens": 1 }, "total_tokens": 14 } })
}

/// The cost, at the prices of the model `chat`, of 4 uncached input tokens, 3 cached input tokens, 2 input tokens
/// written to the cache, and 5 output tokens.
pub(super) const COST: i64 = 4 * 100 + 3 * 10 + 2 * 50 + 5 * 200;

fn text_of(caller: Op, answer: &Value) -> Value {
    match caller {
        Op::Chat => answer["choices"][0]["message"]["content"].clone(),
        Op::Messages => answer["content"][0]["text"].clone(),
    }
}

#[tokio::test]
async fn responses_vendor_serves_callers_of_other_formats() {
    let (world, key) = setup().start_with_key().await;
    for caller in [Op::Chat, Op::Messages] {
        says(&world, Reply::json(200, &response("да")));
        let body = with(caller.body("привет"), json!({ "model": "chat" }));
        let got = caller.call(&world, &key, &body).await;
        assert_eq!(got.status, 200, "{}", got.text());
        assert_eq!(text_of(caller, &got.json()), "да");
        charged("plain", &world, &got, COST).await;
        let received = world.vendor.received().pop().unwrap();
        let sent = received.json();
        assert_eq!(sent["model"], "vendor-chat-1");
        assert_eq!(sent["store"], false);
        assert_eq!(sent["input"][0]["content"][0]["text"], "привет");
        assert_eq!(sent["max_output_tokens"], 100);

        let created = json!({ "type": "response.created", "response": with(response("да"), json!({ "output": [], "usage": null })) });
        let delta = json!({ "type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "да" });
        let done = json!({ "type": "response.completed", "response": response("да") });
        let stream = [created, delta, done].map(|event| format!("data: {event}\n\n"));
        says(&world, Reply::stream(stream));
        let body = with(body, json!({ "stream": true }));
        let got = caller.call(&world, &key, &body).await;
        let text: String = returned(&got)
            .iter()
            .filter_map(|data| {
                let text = data["choices"][0]["delta"]["content"].as_str();
                text.or(data["delta"]["text"].as_str()).map(str::to_owned)
            })
            .collect();
        assert_eq!(text, "да", "{}", got.text());
        let end = ["data: [DONE]", "\"message_stop\"}"][usize::from(caller == Op::Messages)];
        assert!(got.text().trim_end().ends_with(end), "{}", got.text());
        charged("stream", &world, &got, COST).await;
    }
}

#[tokio::test]
async fn output_maximum_below_16_becomes_16_in_the_hold_and_in_calls_of_a_responses_vendor() {
    let (world, key) = setup().start_with_key().await;
    says(&world, Reply::json(200, &response("да")));
    for caller in [Op::Chat, Op::Messages] {
        let body = with(
            caller.body("x"),
            json!({ "model": "chat", "max_tokens": 1 }),
        );
        let got = caller.call(&world, &key, &body).await;
        assert_eq!(got.status, 200, "{}", got.text());
        let sent = world.vendor.received().pop().unwrap().json();
        assert_eq!(sent["max_output_tokens"], 16);
        charged("low", &world, &got, COST).await;
    }
}

#[tokio::test]
async fn failure_within_a_responses_vendors_stream_is_reported_in_every_callers_format() {
    let (world, key) = setup().start_with_key().await;
    let created = json!({ "type": "response.created", "response": { "id": "resp_v", "model": "v", "output": [], "usage": null } });
    let delta = json!({ "type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "да" });
    let failed = json!({ "type": "response.failed", "response": { "id": "resp_v", "status": "failed", "output": [],
        "error": { "code": "server_error", "message": "x" }, "usage": null } });
    let stream = [created, delta, failed].map(|event| format!("data: {event}\n\n"));
    says(&world, Reply::stream(stream));
    for caller in [Op::Chat, Op::Messages] {
        let body = with(caller.body("x"), json!({ "model": "chat", "stream": true }));
        let got = caller.call(&world, &key, &body).await;
        let text = got.text();
        has(&text, "да");
        has(&text, &got.number());
        assert!(!text.contains("[DONE]"), "{text}");
        assert!(!text.contains("message_stop"), "{text}");
    }
}

#[tokio::test]
async fn invalid_answer_to_a_translated_responses_call_becomes_an_error_and_costs_nothing() {
    let (world, key) = World::start_with_key().await;
    for vendor in [Op::Chat, Op::Messages] {
        let whole = Reply::json(200, &answer(vendor, "да", &usage(vendor, 9, 2)));
        let stream = Reply::stream(events(vendor, &["да"], 9, 2));
        for (what, reply, streamed) in [
            ("JSON for a stream", whole, true),
            ("a stream for JSON", stream, false),
        ] {
            says(&world, reply);
            let body = json!({ "model": vendor.model(), "stream": streamed });
            let got = ask(&world, &key, body).await;
            refused(what, &got, 502, API, "vendor_broken");
            cost_nothing(what, &world, &key, &got).await;
        }
    }
}

/// Starts a gateway that waits at most one second for the vendor's content, and then sends the head of a stream.
async fn impatient(responses: bool) -> World {
    let setup = vendors("head_seconds = 1");
    let setup = if responses {
        setup.edit("format = \"chat\"", "format = \"responses\"")
    } else {
        setup
    };
    setup.start().await
}

#[tokio::test]
async fn responses_caller_gets_keep_alives_before_a_slow_vendors_first_event() {
    let created = json!({ "type": "response.created", "response": with(response("да"), json!({ "output": [], "usage": null })) });
    let done = json!({ "type": "response.completed", "response": response("да") });
    let own = [created, done].map(|event| format!("data: {event}\n\n"));
    for (responses, model, stream) in [
        (true, "chat", own.to_vec()),
        (false, "chat", events(Op::Chat, &["да"], 9, 2)),
        (false, "messages", events(Op::Messages, &["да"], 9, 2)),
    ] {
        let world = impatient(responses).await;
        let key = world.key().await;
        let go = Arc::new(Notify::new());
        let reply = Reply::stream(stream).with_step(0, Step::Hold(Arc::clone(&go)));
        says(&world, reply);
        let body = json!({ "model": model, "stream": true });
        let res = world.send(requested(&world, &key, body)).await;
        assert_eq!(res.status(), 200, "{model}: before any event");
        go.notify_one();
        let got = whole(res).await;
        let text = got.text();
        assert!(text.starts_with(": keep-alive\n\n"), "{model}: {text}");
        assert!(text.contains("да") && !got.failed, "{model}: {text}");
        assert_eq!(returned(&got).last().unwrap()["type"], "response.completed");
    }
}

/// Returns the recordings of a format whose files have this extension, except recordings of errors.
fn recorded(format: &str, ending: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/fixtures");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let is_error = name.contains("error-") || name.contains("failed-");
        if name.starts_with(format) && name.ends_with(ending) && !is_error {
            found.push((name, fs::read_to_string(entry.path()).unwrap()));
        }
    }
    assert!(found.len() >= 3, "{format}{ending}: {}", found.len());
    found
}

#[tokio::test]
async fn recorded_answers_of_other_formats_become_complete_responses_and_are_charged() {
    let world = World::start().await;
    let key = world.key_with("rich", "1000000", json!({})).await;
    let mut counted = 0;
    for vendor in [Op::Chat, Op::Messages] {
        for (name, reported) in recorded(&format!("{}-", vendor.model()), ".sse") {
            let step = Step::Send(reported.clone().into());
            says(&world, Reply::raw(200, "text/event-stream", vec![step]));
            let input = "слово ".repeat(20_000);
            let got = ask(
                &world,
                &key,
                json!({ "model": vendor.model(), "stream": true, "input": input }),
            )
            .await;
            let end = last(&name, &returned(&got));
            let response = &end["response"];
            // In this recording, the vendor ends its stream with an error.
            if end["type"] == "response.failed" {
                assert_eq!(name, "chat-length-openrouter_ai.sse");
                continue;
            }
            assert!(
                matches!(
                    response["status"].as_str(),
                    Some("completed" | "incomplete")
                ),
                "{name}: {end}"
            );
            assert!(!response["output"].as_array().unwrap().is_empty(), "{name}");
            let receipt = world.receipt(&got.number()).await;
            let usage = &response["usage"];
            let (input, details) = (
                usage["input_tokens"].as_i64().unwrap(),
                &usage["input_tokens_details"],
            );
            let cached = details["cached_tokens"].as_i64().unwrap();
            let written = details["cache_write_tokens"].as_i64().unwrap();
            let output = usage["output_tokens"].as_i64().unwrap();
            let rate = if vendor == Op::Chat { 1 } else { 10 };
            let cost = rate
                * ((input - cached - written) * 100 + cached * 10 + written * 50 + output * 200);
            assert_eq!(receipt["estimated"], false, "{name}: {receipt}");
            assert_eq!(
                micro(&receipt["charged_rub"]),
                cost,
                "{name}: {receipt} {usage}"
            );
            counted += 1;
        }
    }
    assert!(counted >= 15, "{counted} recordings were charged");
}

#[tokio::test]
async fn recorded_responses_reach_chat_and_messages_callers_and_are_charged() {
    let world = setup().start().await;
    let key = world.key_with("rich", "1000000", json!({})).await;
    for (name, reported) in recorded("responses-", ".sse") {
        let mut charges = Vec::new();
        for caller in [Op::Chat, Op::Messages] {
            let step = Step::Send(reported.clone().into());
            says(&world, Reply::raw(200, "text/event-stream", vec![step]));
            let text = "слово ".repeat(20_000);
            let body = with(
                caller.body(&text),
                json!({ "model": "chat", "stream": true, "max_tokens": 3000 }),
            );
            let got = caller.call(&world, &key, &body).await;
            let text = got.text();
            let end = ["data: [DONE]", "\"message_stop\"}"][usize::from(caller == Op::Messages)];
            assert!(text.trim_end().ends_with(end), "{name}: {text}");
            let receipt = world.receipt(&got.number()).await;
            charges.push(micro(&receipt["charged_rub"]));
        }
        let costs = cost_of_recording(&reported);
        assert_eq!(charges, [costs, costs], "{name}");
    }
}

/// Returns the cost of a recorded stream, by the last of its events that contains a usage.
fn cost_of_recording(reported: &str) -> i64 {
    let data = reported
        .lines()
        .filter_map(|line| line.strip_prefix("data:"));
    let last = data
        .filter_map(|data| serde_json::from_str::<Value>(data).ok())
        .rfind(|event| event["response"]["usage"].is_object())
        .unwrap();
    let usage = &last["response"]["usage"];
    let details = &usage["input_tokens_details"];
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    let cost = super::cost([
        count(&usage["input_tokens"]),
        count(&details["cached_tokens"]),
        count(&details["cache_write_tokens"]),
        count(&usage["output_tokens"]),
    ]);
    i64::try_from(cost).unwrap()
}

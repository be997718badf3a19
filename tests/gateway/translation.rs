//! Tests of translation through the complete gateway, in both directions: cases that need more than a pure function,
//! errors, charges, token counts, and conversations that are translated there and back.

use std::io::ErrorKind;

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::oneshot,
    time::timeout,
};
use tollgate_layers::{
    call::Format,
    model::Dialect,
    sse::{Event, Splitter},
    translate::{
        self, Origin, Translator,
        wire::{AnswerCx, CacheCx, RequestCx},
    },
};

use crate::prelude::*;

/// Pairs of formats: the caller's format, and the vendor's format.
const WAYS: [(Op, Op); 2] = [(Op::Chat, Op::Messages), (Op::Messages, Op::Chat)];

/// Returns a body in the format `caller` for a model whose vendor has the format `vendor`. A streamed request also
/// requests usage.
fn requested(caller: Op, vendor: Op, stream: bool) -> Value {
    let body = with(
        caller.body("x"),
        json!({ "model": vendor.model(), "stream": stream }),
    );
    match (caller, stream) {
        (Op::Chat, true) => with(body, json!({ "stream_options": { "include_usage": true } })),
        _ => body,
    }
}

/// Makes a call in the caller's format. The vendor of the other format responds with `reply`.
async fn returned(world: &World, key: &Key, way: (Op, Op), stream: bool, reply: Reply) -> Answer {
    let (caller, vendor) = way;
    world.vendor_sends(reply);
    caller
        .call(world, key, &requested(caller, vendor, stream))
        .await
}

/// Returns the data of each event of a stream, without pings and without the time of the translation.
fn spoken(text: &str) -> Vec<Value> {
    text.split_terminator("\n\n")
        .filter_map(|event| {
            let data = event.lines().find_map(|line| line.strip_prefix("data: "))?;
            if data == "[DONE]" {
                return Some(json!(data));
            }
            let mut data: Value =
                serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
            data.as_object_mut().unwrap().remove("created");
            (data["type"] != "ping").then_some(data)
        })
        .collect()
}

/// The content of a stream, collected from its events.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    text: String,
    /// The arguments of all tool calls, one after another.
    arguments: String,
    stop: Value,
    usage: Value,
    whole: bool,
}

fn received(caller: Op, text: &str) -> Heard {
    let mut received = Heard::default();
    for data in spoken(text) {
        match caller {
            Op::Chat if data == "[DONE]" => received.whole = true,
            Op::Chat => {
                let choice = &data["choices"][0];
                let (delta, finish) = (&choice["delta"], &choice["finish_reason"]);
                let call = &delta["tool_calls"][0]["function"];
                received.text += delta["content"].as_str().unwrap_or_default();
                received.arguments += call["arguments"].as_str().unwrap_or_default();
                if !finish.is_null() {
                    received.stop = finish.clone();
                }
                if !data["usage"].is_null() {
                    received.usage = data["usage"].clone();
                }
            }
            Op::Messages => {
                let delta = &data["delta"];
                received.text += delta["text"].as_str().unwrap_or_default();
                received.arguments += delta["partial_json"].as_str().unwrap_or_default();
                match data["type"].as_str().unwrap() {
                    "message_delta" => {
                        received.stop = delta["stop_reason"].clone();
                        received.usage = data["usage"].clone();
                    }
                    "message_stop" => received.whole = true,
                    _ => {}
                }
            }
        }
    }
    received
}

const fn stop(caller: Op) -> &'static str {
    match caller {
        Op::Chat => "stop",
        Op::Messages => "end_turn",
    }
}

/// Checks that `usage` contains every count of `expected`.
fn counts(what: &str, usage: &Value, expected: &Value) {
    for (name, count) in expected.as_object().unwrap() {
        match count {
            Value::Object(_) => counts(what, &usage[name], count),
            _ => assert_eq!(&usage[name], count, "{what}: {name} of {usage}"),
        }
    }
}

/// Checks the charge of a call in micro-rubles, and that it was not estimated.
async fn charged(what: &str, world: &World, answer: &Answer, charge: i64) {
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(micro(&receipt["charged_rub"]), charge, "{what}: {receipt}");
    assert_eq!(receipt["estimated"], false, "{what}: {receipt}");
}

/// Returns a reply with a stream in frames of this size. A frame may end anywhere in an event.
fn in_pieces(text: &str, size: usize) -> Reply {
    let steps = text
        .as_bytes()
        .chunks(size)
        .map(|piece| Step::Send(Bytes::copy_from_slice(piece)))
        .collect();
    Reply::raw(200, "text/event-stream", steps)
}

#[tokio::test]
async fn messages_body_reaches_a_messages_vendor_byte_for_byte() {
    let (world, key) = World::start_with_key().await;
    let betas = "claude-code-20250219,interleaved-thinking-2025-05-14";
    let headers = [
        ("x-api-key", key.secret.as_str()),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", betas),
        ("content-type", "application/json"),
    ];
    let body = r#"{ "model":"messages", "max_tokens":64,"thinking":{"type":"adaptive" },
        "context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},"of_tomorrow":[1.0e2 ,null],
        "messages":[{"role":"user","content":"x"},{"role":"assistant","content":[
        {"type":"thinking","thinking":"hm\u0020 ","signature":"c2ln\/+=="},{"type":"redacted_thinking","data":"EmwK"},
        {"type":"text","text":"y","of_tomorrow":{ }}]},{"role":"user","content":"z"}] }"#;
    let url = world.url("/v1/messages?beta=true");
    world
        .ask(request(Method::POST, &url, &headers, body.into()))
        .await
        .expect(200);
    let received = world.vendor.received().pop().unwrap();
    let expected = body.replacen("\"messages\"", "\"vendor-messages-1\"", 1);
    assert_eq!(String::from_utf8_lossy(&received.body), expected);
    assert_eq!(received.headers["anthropic-beta"], betas);
    assert_eq!(received.headers["anthropic-version"], "2023-06-01");
}

#[tokio::test]
async fn translated_refusal_of_the_gateways_key_becomes_503_for_the_caller() {
    let (world, key) = World::start_with_key().await;
    for way in WAYS {
        for status in [401, 402, 403] {
            for stream in [false, true] {
                let what = format!("{way:?} {status} {stream}");
                let reply = refusal(status, "invalid x-api-key sk-ant-AbC123");
                let answer = returned(&world, &key, way, stream, reply).await;
                let text = refused(&what, &answer, 503, API, "vendor_unavailable");
                assert!(!text.contains("sk-") && !text.contains("api-key"), "{text}");
                cost_nothing(&what, &world, &key, &answer).await;
            }
        }
    }
}

#[tokio::test]
async fn html_page_in_place_of_a_translated_answer_becomes_502() {
    let (world, key) = World::start_with_key().await;
    for way in WAYS {
        for kind in ["text/html", "application/json"] {
            for stream in [false, true] {
                let what = format!("{way:?} {kind} {stream}");
                let page = Step::Send(Bytes::from_static(b"<html>maintenance</html>"));
                let reply = Reply::raw(200, kind, vec![page]);
                let answer = returned(&world, &key, way, stream, reply).await;
                let text = refused(&what, &answer, 502, API, "vendor_broken");
                assert!(!text.contains("maintenance"), "{text}");
                cost_nothing(&what, &world, &key, &answer).await;
            }
        }
    }
}

#[tokio::test]
async fn unknown_input_count_is_reported_as_zero_until_the_end_of_a_translated_stream() {
    let (world, key) = World::start_with_key().await;
    let way = (Op::Messages, Op::Chat);
    let reply = Reply::stream(events(Op::Chat, &["да"], 9, 3));
    let answer = returned(&world, &key, way, true, reply).await;
    let reported = spoken(&answer.text());
    assert_eq!(reported[0]["type"], "message_start");
    let at_first = json!({ "input_tokens": 0, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0, "output_tokens": 0 });
    assert_eq!(reported[0]["message"]["usage"], at_first);
    let at_last = json!({ "input_tokens": 9, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0, "output_tokens": 3 });
    assert_eq!(received(Op::Messages, &answer.text()).usage, at_last);
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(micro(&receipt["charged_rub"]), 9 * 100 + 3 * 200);
}

#[tokio::test]
async fn finish_reason_and_usage_may_arrive_in_one_chunk() {
    let (world, key) = World::start_with_key().await;
    let way = (Op::Messages, Op::Chat);
    let used = Tokens::plain(9, 3).usage(Op::Chat);
    let done = "data: [DONE]\n\n".to_owned();
    let word = chunk(delta(json!({ "content": "да" }), Value::Null), Value::Null);
    let finish = |usage: Value| chunk(delta(json!({}), json!("stop")), usage);
    let in_two = [
        word.clone(),
        finish(Value::Null),
        chunk(json!([]), used.clone()),
        done.clone(),
    ];
    let in_one = [word, finish(used), done];
    let two = returned(&world, &key, way, true, Reply::stream(in_two)).await;
    let one = returned(&world, &key, way, true, Reply::stream(in_one)).await;
    assert_eq!(spoken(&one.text()), spoken(&two.text()));
    assert!(received(Op::Messages, &one.text()).whole);
    for (what, answer) in [("in one", one), ("in two", two)] {
        charged(what, &world, &answer, 9 * 100 + 3 * 200).await;
    }
}

#[tokio::test]
async fn repeated_usage_of_a_stream_is_not_added_up() {
    let (world, key) = World::start_with_key().await;
    let used = |output: u64| json!({ "prompt_tokens": 9, "completion_tokens": output, "total_tokens": 9 + output });
    let word = |word: &str, output: u64| {
        chunk(delta(json!({ "content": word }), Value::Null), used(output))
    };
    let chat = [
        word("раз ", 1),
        word("два", 2),
        chunk(delta(json!({}), json!("stop")), used(3)),
        chunk(json!([]), used(3)),
        "data: [DONE]\n\n".to_owned(),
    ];
    let mut messages = events(Op::Messages, &["раз ", "два"], 9, 3);
    let early = event(json!({ "type": "message_delta",
        "delta": { "stop_reason": null, "stop_sequence": null }, "usage": { "output_tokens": 2 } }));
    messages.insert(messages.len() - 2, early);
    for (way, reply, rate) in [
        ((Op::Messages, Op::Chat), Reply::stream(chat), 1),
        ((Op::Chat, Op::Messages), Reply::stream(messages), 10),
    ] {
        let answer = returned(&world, &key, way, true, reply).await;
        let received = received(way.0, &answer.text());
        assert_eq!((received.text.as_str(), received.whole), ("раз два", true));
        assert_eq!(received.stop, stop(way.0), "{way:?}");
        let tokens = Tokens::plain(9, 3);
        counts("last wins", &received.usage, &tokens.usage(way.0));
        let receipt = world.receipt(&answer.number()).await;
        let charged = rate * (9 * 100 + 3 * 200);
        assert_eq!(micro(&receipt["charged_rub"]), charged, "{receipt}");
    }
}

#[tokio::test]
async fn translated_usage_is_charged_whatever_the_choices_contain() {
    let (world, key) = World::start_with_key().await;
    let tokens = Tokens::plain(9, 3);
    let used = tokens.usage(Op::Chat);
    let word = chunk(delta(json!({ "content": "да" }), Value::Null), Value::Null);
    let finish = chunk(delta(json!({}), json!("length")), Value::Null);
    for odd in [
        Value::Null,
        json!({}),
        json!("x"),
        json!(7),
        json!([null]),
        json!(["x", 7]),
        json!([[]]),
        json!([{}]),
        json!([{ "index": "0", "delta": {} }]),
        json!([{ "index": 0, "delta": null }]),
        json!([{ "index": 0, "delta": "x" }]),
        json!([{ "index": 0, "delta": [] }]),
    ] {
        for caller in BOTH {
            let what = format!("{caller:?}: {odd}");
            let reported = [
                word.clone(),
                finish.clone(),
                chunk(odd.clone(), used.clone()),
                "data: [DONE]\n\n".to_owned(),
            ];
            let reply = Reply::stream(reported);
            let answer = returned(&world, &key, (caller, Op::Chat), true, reply).await;
            let received = received(caller, &answer.text());
            assert_eq!(received.text, "да", "{what}");
            assert!(received.whole, "{what}");
            let stop = match caller {
                Op::Chat => "length",
                Op::Messages => "max_tokens",
            };
            assert_eq!(received.stop, stop, "{what}");
            counts(&what, &received.usage, &tokens.usage(caller));
            charged(&what, &world, &answer, 9 * 100 + 3 * 200).await;

            let reported =
                json!({ "id": "chatcmpl-1", "model": "m", "choices": odd, "usage": used });
            let reply = Reply::json(200, &reported);
            let answer = returned(&world, &key, (caller, Op::Chat), false, reply).await;
            match caller {
                Op::Chat => assert_eq!(answer.json(), reported, "{what}"),
                // The vendor's response contains usage but no content. So does the caller's response.
                Op::Messages => assert_eq!(answer.json()["content"], json!([]), "{what}"),
            }
            charged(&what, &world, &answer, 9 * 100 + 3 * 200).await;
        }
    }

    // In one event, one of these fields has an invalid value. This changes neither the response nor the charge.
    for odd in [
        json!({ "delta": "x" }),
        json!({ "delta": [] }),
        json!({ "delta": { "stop_reason": 7 } }),
        json!({ "delta": { "stop_reason": null }, "index": "x" }),
        json!({ "message": 7 }),
    ] {
        let mut reported = events(Op::Messages, &["да"], 9, 2);
        let last = json!({ "type": "message_delta", "usage": { "output_tokens": 3 } });
        reported.insert(reported.len() - 1, event(with(last, odd.clone())));
        for caller in BOTH {
            let what = format!("{caller:?}: {odd}");
            let reply = Reply::stream(reported.clone());
            let answer = returned(&world, &key, (caller, Op::Messages), true, reply).await;
            let received = received(caller, &answer.text());
            assert_eq!(received.text, "да", "{what}");
            assert!(received.whole, "{what}");
            charged(&what, &world, &answer, 10 * (9 * 100 + 3 * 200)).await;
        }
    }
}

#[tokio::test]
async fn events_are_read_in_any_valid_sse_notation() {
    let (world, key) = World::start_with_key().await;
    for way in WAYS {
        let reported = events(way.1, &["раз ", "два"], 9, 2);
        let plain = reported.concat();
        let reply = in_pieces(&plain, plain.len());
        let expected = spoken(&returned(&world, &key, way, true, reply).await.text());
        assert!(expected.len() > 4, "{expected:?}");
        let each = |change: &dyn Fn(&str) -> String| -> String {
            reported.iter().map(|event| change(event)).collect()
        };
        for (what, framed) in [
            ("CRLF", plain.replace('\n', "\r\n")),
            ("CR", plain.replace('\n', "\r")),
            (
                "no blank",
                plain
                    .replace("data: ", "data:")
                    .replace("event: ", "event:"),
            ),
            (
                "several lines",
                each(&|event| event.replacen(",\"", ",\ndata: \"", 1)),
            ),
            (
                "comments between",
                each(&|event| format!(": still here\n\n{event}")),
            ),
            (
                "comments inside",
                each(&|event| format!(":\nid: 7\nretry: 10\n{event}")),
            ),
            ("BOM", format!("\u{feff}{plain}")),
        ] {
            for size in [framed.len(), 1] {
                let reply = in_pieces(&framed, size);
                let answer = returned(&world, &key, way, true, reply).await;
                assert_eq!(
                    spoken(&answer.text()),
                    expected,
                    "{way:?} {what} in pieces of {size}"
                );
            }
        }
    }
}

#[tokio::test]
async fn translated_stream_is_the_same_in_any_split_of_the_vendors_bytes() {
    let (world, key) = World::start_with_key().await;
    let words = ["при", "вет 🦀", " \"\\\n", "日本"];
    for way in WAYS {
        let plain = events(way.1, &words, 9, 4).concat();
        let mut expected = None;
        for size in [plain.len(), 1, 2, 3, 7, 64] {
            let reply = in_pieces(&plain, size);
            let answer = returned(&world, &key, way, true, reply).await;
            let received = received(way.0, &answer.text());
            assert_eq!(received.text, words.concat(), "{way:?} in pieces of {size}");
            assert!(received.whole, "{way:?} in pieces of {size}");
            let reported = spoken(&answer.text());
            assert_eq!(
                &reported,
                expected.get_or_insert(reported.clone()),
                "{way:?} {size}"
            );
        }
    }
}

/// A length that exceeds any line buffer of a plausible size.
const LONG: usize = 300 * 1024;

#[tokio::test]
async fn long_line_of_a_stream_is_delivered_complete() {
    let (world, key) = World::start_with_key().await;
    let arguments = json!({ "data": "QUJD".repeat(LONG / 4) }).to_string();
    let function = json!({ "name": "save", "arguments": arguments });
    let call = json!({ "index": 0, "id": "call_1", "type": "function", "function": function });
    let used = Tokens::plain(9, 50);
    let chat = [
        chunk(
            delta(
                json!({ "role": "assistant", "tool_calls": [call] }),
                Value::Null,
            ),
            Value::Null,
        ),
        chunk(delta(json!({}), json!("tool_calls")), Value::Null),
        chunk(json!([]), used.usage(Op::Chat)),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat();
    let mut messages = events(Op::Messages, &["x"], 9, 50);
    messages[1] = event(json!({ "type": "content_block_start", "index": 0,
        "content_block": { "type": "tool_use", "id": "toolu_1", "name": "save", "input": {} } }));
    messages[2] = event(json!({ "type": "content_block_delta", "index": 0,
        "delta": { "type": "input_json_delta", "partial_json": arguments } }));
    let messages = messages.concat();
    for (caller, vendor) in WAYS {
        let reported = match vendor {
            Op::Chat => &chat,
            Op::Messages => &messages,
        };
        for size in [reported.len(), 10_000] {
            let reply = in_pieces(reported, size);
            let answer = returned(&world, &key, (caller, vendor), true, reply).await;
            let received = received(caller, &answer.text());
            assert!(received.whole, "{caller:?} {size}");
            assert!(
                received.arguments == arguments,
                "{caller:?} {size}: not whole"
            );
        }
        let mut plain = answer(vendor, "", &used.usage(vendor));
        match vendor {
            Op::Chat => plain["choices"][0]["message"]["tool_calls"] = json!([call]),
            Op::Messages => {
                let input: Value = serde_json::from_str(&arguments).unwrap();
                plain["content"] = json!([{ "type": "tool_use", "id": "toolu_1", "name": "save",
                    "input": input }]);
            }
        }
        let reply = Reply::json(200, &plain);
        let answer = returned(&world, &key, (caller, vendor), false, reply).await;
        assert!(
            answer.text().contains(&"QUJD".repeat(LONG / 4)),
            "{caller:?}"
        );
    }
}

#[tokio::test]
async fn long_image_in_a_request_is_delivered_complete() {
    let (world, key) = World::start_with_key().await;
    let data = "QUJD".repeat(LONG / 4);
    for (caller, vendor) in WAYS {
        let image = match caller {
            Op::Chat => json!({ "type": "image_url",
                "image_url": { "url": format!("data:image/png;base64,{data}") } }),
            Op::Messages => json!({ "type": "image",
                "source": { "type": "base64", "media_type": "image/png", "data": data } }),
        };
        let text = json!({ "type": "text", "text": "x" });
        let turn = json!([{ "role": "user", "content": [image, text] }]);
        let body = with(
            requested(caller, vendor, false),
            json!({ "messages": turn }),
        );
        let answer = caller.call(&world, &key, &body).await;
        assert_eq!(answer.status, 200, "{caller:?}: {answer:?}");
        let sent = world.vendor.received().pop().unwrap().json();
        let part = &sent["messages"][0]["content"][0];
        match vendor {
            Op::Chat => {
                let url = part["image_url"]["url"].as_str().unwrap();
                assert!(url == format!("data:image/png;base64,{data}"));
            }
            Op::Messages => assert!(part["source"]["data"] == data),
        }
    }
}

#[tokio::test]
async fn compressed_answer_of_a_vendor_is_an_error() {
    let (world, key) = World::start_with_key().await;
    // The body begins like a gzip file and continues with invalid data.
    let packed = Bytes::from_static(b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\x56\x4a\x2d\n\n\x2a\x2a");
    for way in WAYS {
        for (stream, kind) in [(false, "application/json"), (true, "text/event-stream")] {
            let what = format!("{way:?} {kind}");
            let steps = vec![Step::Send(packed.clone())];
            let reply = Reply::raw(200, kind, steps).header("content-encoding", "gzip");
            let answer = returned(&world, &key, way, stream, reply).await;
            let headers = world.vendor.received().pop().unwrap().headers;
            assert_eq!(headers["accept-encoding"], "identity", "{what}");
            refused(&what, &answer, 502, API, "vendor_broken");
            cost_nothing(&what, &world, &key, &answer).await;
        }
    }
}

#[tokio::test]
async fn json_in_place_of_a_stream_is_answered_with_an_error_status() {
    let (world, key) = World::start_with_key().await;
    for way in WAYS {
        let used = json!({ "input_tokens": 9, "output_tokens": 1 });
        let whole = Reply::json(200, &answer(way.1, "да", &used));
        for (reply, status, kind, code) in [
            (whole, 502, API, "vendor_broken"),
            (refusal(200, "overloaded"), 502, API, "vendor_broken"),
            (refusal(429, "slow down"), 429, LIMIT, "vendor_rate_limit"),
            (refusal(529, "overloaded"), 503, API, "vendor_unavailable"),
        ] {
            let what = format!("{way:?} {reply:?}");
            let answer = returned(&world, &key, way, true, reply).await;
            refused(&what, &answer, status, kind, code);
            cost_nothing(&what, &world, &key, &answer).await;
        }
    }
}

#[tokio::test]
async fn translated_stream_event_is_forwarded_before_the_next_event_arrives() {
    let (world, key) = World::start_with_key().await;
    // For each event of the vendor: the text that the caller must have received before the vendor sends the next event.
    let of_messages = &[
        Some("\"role\":\"assistant\""),
        None,
        Some("раз"),
        Some("два"),
        None,
        Some("\"finish_reason\":\"stop\""),
        Some("[DONE]"),
    ] as &[Option<&str>];
    let of_chat = &[
        Some("раз"),
        Some("два"),
        None,
        None,
        Some("{\"type\":\"message_stop\"}"),
    ] as &[Option<&str>];
    for (caller, vendor, shown) in [
        (Op::Chat, Op::Messages, of_messages),
        (Op::Messages, Op::Chat, of_chat),
    ] {
        let reported = events(vendor, &["раз ", "два"], 9, 2);
        assert_eq!(reported.len(), shown.len());
        let holds: Vec<Arc<Notify>> = reported.iter().map(|_| Arc::default()).collect();
        let steps: Vec<Step> = reported
            .iter()
            .zip(&holds)
            .flat_map(|(event, hold)| {
                [
                    Step::Hold(Arc::clone(hold)),
                    Step::Send(event.clone().into()),
                ]
            })
            .collect();
        world.vendor_sends(Reply::raw(200, "text/event-stream", steps.clone()));
        // The gateway sends the head of its response together with the first event.
        holds[0].notify_one();
        let body = requested(caller, vendor, true);
        let res = world.send(caller.request(&world, &key, &body)).await;
        let header = |name: &str| res.headers()[name].to_str().unwrap();
        assert!(header("cache-control").contains("no-cache"));
        assert_eq!(header("x-accel-buffering"), "no");
        assert!(header("content-type").starts_with("text/event-stream"));
        let mut body = res.into_body();
        let mut seen = String::new();
        for (hold, shown) in holds.iter().zip(shown) {
            hold.notify_one();
            if let Some(shown) = shown {
                seen.push_str(&read_until(&mut body, shown).await);
            }
        }
        told_cost(&seen);
        assert_eq!(rest(&mut body).await, "", "{caller:?}");
    }
}

#[tokio::test]
async fn keep_alive_of_a_vendor_reaches_the_caller() {
    let (world, key) = World::start_with_key().await;
    for (way, sign, shown) in [
        (
            (Op::Chat, Op::Messages),
            "event: ping\ndata: {\"type\": \"ping\"}\n\n",
            ": keep-alive\n\n",
        ),
        (
            (Op::Messages, Op::Chat),
            ": OPENROUTER PROCESSING\n\n",
            "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        ),
    ] {
        let (caller, vendor) = way;
        let go = Arc::new(Notify::new());
        let mut reported = events(vendor, &["раз ", "два"], 9, 2);
        reported.insert(begun(vendor), sign.to_owned());
        world.vendor_sends(
            Reply::stream(reported).with_step(begun(vendor) + 1, Step::Hold(Arc::clone(&go))),
        );
        let body = requested(caller, vendor, true);
        let res = world.send(caller.request(&world, &key, &body)).await;
        let mut body = res.into_body();
        let mut text = read_until(&mut body, shown).await;
        go.notify_one();
        text.push_str(&rest(&mut body).await);
        let received = received(caller, &text);
        assert_eq!((received.text.as_str(), received.whole), ("раз два", true));
        assert_eq!(received.stop, stop(caller));
    }
}

/// `ENDLESS` is the size of the vendor's response if the gateway read all of it. `ON_THE_WAY_MAX` is the most that the
/// vendor may have sent while the client does not read, mainly into the kernel's socket buffers.
const ENDLESS: usize = 256 << 20;
const ON_THE_WAY_MAX: usize = 100 << 20;
/// If the gateway takes no bytes from the vendor for this time, it has stopped reading.
const STANDSTILL: Duration = Duration::from_secs(1);
const WORD_BYTES: usize = 64 * 1024;

#[tokio::test]
async fn vendor_is_not_read_while_the_client_does_not_read() {
    for (caller, vendor) in WAYS {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (format, path) = match vendor {
            Op::Chat => ("chat", "/v1"),
            Op::Messages => ("messages", ""),
        };
        // The address of the scripted vendor follows on this line. The `#` turns it into a comment.
        let (world, key) = Setup::default()
            .edit(
                &format!("format = \"{format}\"\nurl = \""),
                &format!("format = \"{format}\"\nurl = \"http://{address}{path}\" # "),
            )
            .start_with_key()
            .await;
        let (taken, standstill) = oneshot::channel();
        let mut talker = tokio::task::JoinSet::new();
        talker.spawn(talk_without_end(listener, vendor, taken));
        let body = requested(caller, vendor, true);
        let res = world.send(caller.request(&world, &key, &body)).await;
        assert_eq!(res.status(), 200);
        let taken = standstill.await.unwrap();
        assert!(taken < ON_THE_WAY_MAX, "{caller:?}: {taken} bytes taken");

        // The client continues to read, and receives every word that the vendor has sent.
        let answer = whole(res).await;
        let words = talker.join_next().await.unwrap().unwrap();
        let seen = answer.body.iter().filter(|byte| **byte == b'~').count();
        assert_eq!(seen, words * WORD_BYTES, "{caller:?}");
        let end = String::from_utf8_lossy(&answer.body[answer.body.len() - 80..]).into_owned();
        assert!(
            end.contains("[DONE]") || end.contains("message_stop"),
            "{end}"
        );
        assert_eq!(world.receipt(&answer.number()).await["end"], "finished");
    }
}

/// Sends words until the gateway stops reading, and reports the number of bytes to `taken`. When the gateway reads
/// again, ends the stream. Returns the number of words.
async fn talk_without_end(
    listener: TcpListener,
    vendor: Op,
    taken: oneshot::Sender<usize>,
) -> usize {
    let (mut socket, _) = listener.accept().await.unwrap();
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    while !read.ends_with(b"}") {
        let count = socket.read(&mut buffer).await.unwrap();
        assert!(count > 0, "the connection was closed too early");
        read.extend_from_slice(&buffer[..count]);
    }
    let reported = events(vendor, &["~".repeat(WORD_BYTES).as_str()], 9, 2);
    let first = begun(vendor) - 1;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let head = [head, &reported[..first].concat()].concat();
    socket.write_all(head.as_bytes()).await.unwrap();

    let word = reported[first].as_bytes();
    let (mut sent, mut words) = (0, 0);
    let mut rest = word;
    while sent < ENDLESS && timeout(STANDSTILL, socket.writable()).await.is_ok() {
        match socket.try_write(rest) {
            Ok(count) => {
                sent += count;
                rest = &rest[count..];
                if rest.is_empty() {
                    words += 1;
                    rest = word;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    taken.send(sent).unwrap();
    socket.write_all(rest).await.unwrap();
    let end = reported[first + 1..].concat();
    socket.write_all(end.as_bytes()).await.unwrap();
    words + 1
}

#[tokio::test]
async fn client_that_disconnects_after_the_last_translated_event_pays_in_full() {
    let (world, key) = World::start_with_key().await;
    for ((caller, vendor), last, rate) in [
        (WAYS[0], "data: [DONE]\n\n", 10),
        (WAYS[1], "data: {\"type\":\"message_stop\"}\n\n", 1),
    ] {
        let reported = events(vendor, &["раз ", "два"], 9, 2);
        let open = Step::Hold(Arc::new(Notify::new()));
        let behind = reported.len();
        world.vendor_sends(Reply::stream(reported).with_step(behind, open));
        let body = requested(caller, vendor, true);
        let res = world.send(caller.request(&world, &key, &body)).await;
        let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
        let mut body = res.into_body();
        read_until(&mut body, last).await;
        drop(body);
        let receipt = world.receipt(&number).await;
        assert_eq!(receipt["end"], "finished", "{receipt}");
        assert_eq!(receipt["estimated"], false, "{receipt}");
        let charged = rate * (9 * 100 + 2 * 200);
        assert_eq!(micro(&receipt["charged_rub"]), charged, "{receipt}");
        world.settled(&key).await;
    }
}

/// Returns the recorded responses of vendors, by format and file extension, except recordings of errors.
fn recorded(op: Op, ending: &str) -> Vec<(String, String)> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway/fixtures");
    let begin = format!("{}-", op.model());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let error = name.starts_with(&format!("{begin}error-"));
        if name.starts_with(&begin) && name.ends_with(ending) && !error {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            if !text.contains("\"error\":{") {
                found.push((name, text));
            }
        }
    }
    assert!(found.len() >= 3, "{op:?} {ending}: {}", found.len());
    found
}

/// Returns whether an event is a chunk that contains only the usage.
fn usage_alone(event: &str) -> bool {
    let data = event.trim_end().strip_prefix("data: ");
    let chunk: Value = data
        .and_then(|data| serde_json::from_str(data).ok())
        .unwrap_or_default();
    chunk["choices"] == json!([]) && chunk["usage"].is_object()
}

#[tokio::test]
async fn recorded_answers_are_forwarded_unchanged_between_equal_formats() {
    let world = World::start().await;
    let key = world.key_with("rich", "1000000", json!({})).await;
    for op in BOTH {
        // The request is long enough that its hold covers the recorded counts.
        let body = |stream: bool| {
            let long = op.body(&"x".repeat(20_000));
            with(
                requested(op, op, stream),
                json!({ "messages": long["messages"], "max_tokens": 4000 }),
            )
        };
        for (name, reported) in recorded(op, ".json") {
            let step = Step::Send(reported.clone().into());
            world.vendor_sends(Reply::raw(200, "application/json", vec![step]));
            let answer = op.call(&world, &key, &body(false)).await;
            assert_eq!(answer.text(), reported, "{name}");
        }
        for (name, reported) in recorded(op, ".sse") {
            for size in [100, reported.len()] {
                world.vendor_sends(in_pieces(&reported, size));
                let answer = op.call(&world, &key, &body(true)).await;
                let text = answer.text();
                assert!(told_cost(&text).0 == reported, "{name}: {text}");
            }
            // If the caller did not request usage, the gateway requests it from the vendor, and removes the usage chunk
            // from the caller's stream.
            let expected: String = reported
                .split_inclusive("\n\n")
                .filter(|event| op == Op::Messages || !usage_alone(event))
                .collect();
            world.vendor_sends(in_pieces(&reported, 100));
            let mut body = body(true);
            body.as_object_mut().unwrap().remove("stream_options");
            let text = op.call(&world, &key, &body).await.text();
            // The caller's stream has a cost comment only if the caller requested usage, or if the caller's format
            // always contains usage.
            let events = match op {
                Op::Chat => text,
                Op::Messages => told_cost(&text).0,
            };
            assert!(events == expected, "{name}: {events}");
        }
    }
}

#[tokio::test]
async fn vendor_refusal_of_a_translated_call_has_the_gateways_error_format() {
    let (world, key) = World::start_with_key().await;
    for way in WAYS {
        for stream in [false, true] {
            for (reported, status, kind, code) in [
                (400, 400, INVALID, ""),
                (413, 413, INVALID, ""),
                (429, 429, LIMIT, "vendor_rate_limit"),
                (500, 503, API, "vendor_unavailable"),
                (529, 503, API, "vendor_unavailable"),
            ] {
                let what = format!("{way:?} {reported} {stream}");
                let reply = refusal(reported, "engine-7 wants fewer tools");
                let answer = returned(&world, &key, way, stream, reply).await;
                let text = refused(&what, &answer, status, kind, code);
                let passed_on = text.contains("engine-7 wants fewer tools");
                assert_eq!(passed_on, kind == INVALID, "{what}: {text}");
                cost_nothing(&what, &world, &key, &answer).await;
            }
        }
    }
}

#[tokio::test]
async fn error_disguised_as_an_answer_is_detected_in_translated_calls() {
    let (world, key) = World::start_with_key().await;
    for way in WAYS {
        let what = format!("{way:?}");
        let reply = refusal(200, "org-Secret has no credit");
        let answer = returned(&world, &key, way, false, reply).await;
        let text = refused(&what, &answer, 503, API, "vendor_unavailable");
        assert!(!text.contains("Secret"), "{text}");
        cost_nothing(&what, &world, &key, &answer).await;
    }
}

/// Checks that a stream contains its first word, and then the error event of the caller's format.
fn failed(what: &str, caller: Op, text: &str, number: &str) {
    let reported = spoken(text);
    let error = reported.last().unwrap();
    let fields: &[&str] = match caller {
        Op::Chat => &["error"],
        Op::Messages => &["error", "type"],
    };
    assert_eq!(names(error), fields, "{what}: {text}");
    let last = text.split_terminator("\n\n").last().unwrap();
    assert_eq!(
        last.starts_with("event: error\n"),
        caller == Op::Messages,
        "{what}: {last}"
    );
    let error = &error["error"];
    assert_eq!(error["type"], "api_error", "{what}");
    let message = error["message"].as_str().unwrap();
    assert!(message.ends_with(&format!(" ({number})")), "{what}: {text}");
    assert!(is_russian(message), "{what}: {message}");
    assert!(!message.contains("Secret"), "{what}: {message}");

    let returned = &reported[..reported.len() - 1];
    assert!(!returned.is_empty(), "{what}: {text}");
    assert!(text.contains("раз"), "{what}: {text}");
    assert!(!text.contains("два"), "{what}: {text}");
    // A failed stream must not contain an event that reports a normal end.
    for end in [
        "[DONE]",
        "message_stop",
        "message_delta",
        "\"finish_reason\":\"stop\"",
    ] {
        assert!(!text.contains(end), "{what}: {end} in {text}");
    }
}

#[tokio::test]
async fn vendor_error_inside_a_translated_stream_is_an_error_event_in_the_callers_format() {
    let (world, key) = World::start_with_key().await;
    for (way, error) in [
        (
            (Op::Messages, Op::Chat),
            "data: {\"error\":{\"message\":\"org-Secret is overloaded\",\"code\":503}}\n\n",
        ),
        (
            (Op::Chat, Op::Messages),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"org-Secret\"}}\n\n",
        ),
    ] {
        let mut reported = events(way.1, &["раз ", "два"], 9, 2);
        reported.insert(begun(way.1), error.to_owned());
        let answer = returned(&world, &key, way, true, Reply::stream(reported)).await;
        assert_eq!(answer.status, 200, "{way:?}");
        failed("error", way.0, &answer.text(), &answer.number());
        assert!(!answer.failed, "the event is the end: {way:?}");
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["end"], "vendor_error", "{receipt}");
    }
}

#[tokio::test]
async fn truncated_translated_stream_never_looks_finished() {
    let (world, key) = World::start_with_key().await;
    for (caller, vendor) in WAYS {
        for ends_cleanly in [false, true] {
            let what = format!("{caller:?} {ends_cleanly}");
            let go = Arc::new(Notify::new());
            let mut steps: Vec<Step> = events(vendor, &["раз ", "два"], 9, 2)
                .drain(..begun(vendor))
                .map(|event| Step::Send(event.into()))
                .collect();
            steps.push(Step::Send(Bytes::from_static(b"data: {\"half")));
            steps.push(Step::Hold(Arc::clone(&go)));
            if !ends_cleanly {
                steps.push(Step::Cut);
            }
            world.vendor_sends(Reply::raw(200, "text/event-stream", steps.clone()));
            let body = requested(caller, vendor, true);
            let res = world.send(caller.request(&world, &key, &body)).await;
            let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
            let mut body = res.into_body();
            let mut text = read_until(&mut body, "раз").await;
            go.notify_one();
            text.push_str(&rest(&mut body).await);
            failed(&what, caller, &text, &number);
            let receipt = world.receipt(&number).await;
            assert_eq!(receipt["end"], "vendor_cut", "{what}: {receipt}");
            assert_eq!(receipt["estimated"], true, "{what}: {receipt}");
        }
    }
}

#[tokio::test]
async fn stream_that_cannot_be_translated_counts_as_a_vendor_failure() {
    let (world, key) = World::start_with_key().await;
    for (caller, vendor) in WAYS {
        let what = format!("{caller:?}");
        let mut reported = events(vendor, &["раз ", "два"], 9, 2);
        reported.insert(
            begun(vendor),
            "data: {\"choices\":7,\"type\":7}\n\n".to_owned(),
        );
        // The vendor sends nothing after the faulty event. If it sent more data at once, the gateway would also read
        // the counts in that data.
        let silent = Step::Hold(Arc::new(Notify::new()));
        let reply = Reply::stream(reported).with_step(begun(vendor) + 1, silent);
        let answer = returned(&world, &key, (caller, vendor), true, reply).await;
        failed(&what, caller, &answer.text(), &answer.number());
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["end"], "vendor_cut", "{what}: {receipt}");
        assert_eq!(receipt["estimated"], true, "{what}: {receipt}");
    }
    // A stream that contains only its end marker is an error for the caller.
    let reply = Reply::stream(["data: [DONE]\n\n".to_owned()]);
    let way = (Op::Messages, Op::Chat);
    let world = World::start().await;
    let unpaid = world.key().await;
    let answer = returned(&world, &unpaid, way, true, reply).await;
    refused("no answer", &answer, 502, API, "vendor_broken");
    cost_nothing("no answer", &world, &unpaid, &answer).await;
}

/// Returns the vendor's response with this usage, plain or streamed.
fn used(vendor: Op, tokens: Tokens, stream: bool) -> Reply {
    let usage = tokens.usage(vendor);
    if !stream {
        return Reply::json(200, &answer(vendor, "да", &usage));
    }
    let mut reported = events(vendor, &["да"], tokens.input, tokens.output);
    match vendor {
        Op::Chat => {
            let place = reported.len() - 2;
            reported[place] = chunk(json!([]), usage);
        }
        Op::Messages => {
            let empty = json!({ "content": [], "stop_reason": null });
            let message = with(answer(vendor, "", &usage), empty);
            reported[0] = event(json!({ "type": "message_start", "message": message }));
        }
    }
    Reply::stream(reported)
}

#[tokio::test]
async fn translated_call_costs_the_same_as_a_call_in_the_vendors_format() {
    let (world, key) = World::start_with_key().await;
    for [input, cached_input, cache_write, output] in [
        [9, 0, 0, 3],
        [9, 7, 0, 3],
        [9, 0, 5, 3],
        [9, 7, 5, 3],
        [0, 7, 0, 3],
        [1, 300, 100, 99],
    ] {
        let tokens = Tokens {
            input,
            cached_input,
            cache_write,
            output,
        };
        for (vendor, rate) in [(Op::Chat, 1), (Op::Messages, 10)] {
            let cost = input * 100 + cached_input * 10 + cache_write * 50 + output * 200;
            for caller in BOTH {
                for stream in [false, true] {
                    let what = format!("{tokens:?} {caller:?} of {vendor:?}, stream: {stream}");
                    let reply = used(vendor, tokens, stream);
                    let answer = returned(&world, &key, (caller, vendor), stream, reply).await;
                    assert_eq!(answer.status, 200, "{what}: {answer:?}");
                    let receipt = world.receipt(&answer.number()).await;
                    let charged = micro(&receipt["charged_rub"]);
                    assert_eq!(charged, (cost * rate) as i64, "{what}: {receipt}");
                    assert_eq!(receipt["estimated"], false, "{what}: {receipt}");
                    for (class, count) in [
                        ("input", input),
                        ("cached_input", cached_input),
                        ("cache_write", cache_write),
                        ("output", output),
                    ] {
                        assert_eq!(receipt["usage"][class], count, "{what}: {receipt}");
                    }
                    if caller == vendor {
                        continue;
                    }
                    let seen = if stream {
                        received(caller, &answer.text()).usage
                    } else {
                        answer.json()["usage"].clone()
                    };
                    counts(&what, &seen, &tokens.usage(caller));
                }
            }
        }
    }
}

async fn count(world: &World, headers: &[(&str, &str)], body: &Value) -> Answer {
    let mut all = vec![("content-type", "application/json")];
    all.extend_from_slice(headers);
    let url = world.url("/v1/messages/count_tokens");
    world
        .ask(request(Method::POST, &url, &all, body.to_string().into()))
        .await
}

const VERSION: (&str, &str) = ("anthropic-version", "2026-10-21");

/// Returns the body of a token-counting request, which needs no output maximum.
fn counted(model: &str) -> Value {
    json!({ "model": model, "system": "Be brief.", "messages": [{ "role": "user", "content": "привет" }] })
}

#[tokio::test]
async fn token_counting_by_a_messages_vendor_is_free() {
    let (world, key) = World::start_with_key().await;
    world.vendor_sends(Reply::json(
        200,
        &json!({ "input_tokens": 4321, "of_the_vendor": "x" }),
    ));
    let body = counted("messages");
    let headers = [("x-api-key", key.secret.as_str()), VERSION];
    let answer = count(&world, &headers, &body).await.expect(200);
    assert_eq!(answer.json(), json!({ "input_tokens": 4321 }));
    assert!(!answer.headers.contains_key("x-estimated"));
    let received = world.vendor.received();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].path, "/v1/messages/count_tokens");
    assert_eq!(received[0].headers["x-api-key"], VENDOR_KEY);
    assert_eq!(received[0].headers["anthropic-version"], VERSION.1);
    let expected = with(body, json!({ "model": "vendor-messages-1" }));
    assert_eq!(received[0].json(), expected);
    assert!(!format!("{received:?}").contains(&key.secret));
    cost_nothing("counting", &world, &key, &answer).await;
}

#[tokio::test]
async fn token_count_is_estimated_if_a_messages_vendor_cannot_count() {
    let (world, key) = World::start_with_key().await;
    let headers = [("x-api-key", key.secret.as_str()), VERSION];
    for status in [404, 405, 501] {
        world.vendor_sends(refusal(status, "no such path"));
        let answer = count(&world, &headers, &counted("messages")).await;
        assert_eq!(answer.status, 200, "{status}: {answer:?}");
        assert_eq!(names(&answer.json()), ["input_tokens"]);
        assert_eq!(answer.headers["x-estimated"], "true");
    }
    for status in [401, 500] {
        world.vendor_sends(refusal(status, "down"));
        let answer = count(&world, &headers, &counted("messages")).await;
        assert_eq!(answer.status, 503, "{status}: {answer:?}");
    }
}

#[tokio::test]
async fn token_count_for_a_chat_vendor_is_estimated_without_a_request() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    let headers = [("authorization", bearer.as_str()), VERSION];
    let short = count(&world, &headers, &counted("chat")).await.expect(200);
    assert_eq!(names(&short.json()), ["input_tokens"]);
    assert_eq!(short.headers["x-estimated"], "true");
    let tokens = |answer: &Answer| answer.json()["input_tokens"].as_u64().unwrap();
    assert!(tokens(&short) >= 1);
    let turn = json!([{ "role": "user", "content": "слово ".repeat(1000) }]);
    let long = with(counted("chat"), json!({ "messages": turn }));
    let long = count(&world, &headers, &long).await;
    assert!(tokens(&long) > tokens(&short) + 500, "{long:?}");
    assert!(world.vendor.received().is_empty());
    cost_nothing("estimating", &world, &key, &long).await;
}

#[tokio::test]
async fn token_counting_is_refused_for_the_same_reasons_as_calls() {
    let (world, key) = World::start_with_key().await;
    let ours = ("x-api-key", key.secret.as_str());
    let wrong = ("x-api-key", "tg-0000");
    for model in ["chat", "messages"] {
        let body = counted(model);
        for headers in [&[VERSION][..], &[wrong, VERSION]] {
            let answer = count(&world, headers, &body).await;
            refused(model, &answer, 401, AUTHENTICATION, "invalid_api_key");
        }
        let answer = count(&world, &[ours], &body).await;
        let text = refused(model, &answer, 400, INVALID, "");
        assert!(text.contains("anthropic-version"), "{text}");
        let nothing = with(body, json!({ "messages": [] }));
        let answer = count(&world, &[ours, VERSION], &nothing).await;
        let text = refused(model, &answer, 400, INVALID, "");
        assert!(text.contains("«messages»"), "{text}");
    }
    let answer = count(&world, &[ours, VERSION], &counted("nobody")).await;
    refused("nobody", &answer, 503, "not_found_error", "model_not_found");
    assert!(world.vendor.received().is_empty());

    let no_count = Reply::json(200, &json!({ "tokens": 7 }));
    for (reply, status, kind, code) in [
        (refusal(400, "too many tools"), 400, INVALID, ""),
        (refusal(401, "sk-ant-x"), 503, API, "vendor_unavailable"),
        (refusal(429, "slow"), 429, LIMIT, "vendor_rate_limit"),
        (refusal(500, "down"), 503, API, "vendor_unavailable"),
        (no_count, 502, API, "vendor_broken"),
    ] {
        world.vendor_sends(reply);
        let answer = count(&world, &[ours, VERSION], &counted("messages")).await;
        refused("of the vendor", &answer, status, kind, code);
        cost_nothing("of the vendor", &world, &key, &answer).await;
    }
}

/// Returns a conversation in the Chat Completions format that must be unchanged after a translation to the other format
/// and back.
fn chat_conversation() -> Value {
    let call = |id: &str, name: &str, arguments: Value| {
        json!({ "id": id, "type": "function",
            "function": { "name": name, "arguments": arguments.to_string() } })
    };
    let weather =
        json!({ "city": "Москва \"на\" реке\n", "days": [1, 2.5, null], "deep": { "a": {} } });
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!({
        "model": "vendor-model",
        "max_completion_tokens": 100,
        "messages": [
            { "role": "system", "content": "Be brief.\nОтвечай по-русски." },
            { "role": "user", "content": [
                { "type": "text", "text": "Что на картинках?" },
                { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } },
                { "type": "image_url", "image_url": { "url": "https://example.com/a.jpg?b=c" } },
            ] },
            { "role": "assistant", "content": "Секунду.", "tool_calls": [
                call("call_1", "get_weather", weather), call("call_2", "now", json!({})),
            ] },
            { "role": "tool", "tool_call_id": "call_1", "content": "+7 °C" },
            { "role": "tool", "tool_call_id": "call_2", "content": " 12:00\n" },
            { "role": "user", "content": "А завтра?" },
            { "role": "assistant", "content": null,
              "tool_calls": [call("call_3", "now", json!({ "n": 12_345_678_901_u64 }))] },
            { "role": "tool", "tool_call_id": "call_3", "content": "" },
            { "role": "assistant", "content": "Дождь." },
            { "role": "user", "content": [
                { "type": "text", "text": "И о чём здесь?" },
                { "type": "file", "file": { "filename": "отчёт.pdf",
                    "file_data": "data:application/pdf;base64,JVBERi0=" } },
            ] },
        ],
        "tools": [
            { "type": "function", "function": { "name": "get_weather", "description": "Погода",
                "parameters": schema, "strict": true } },
            { "type": "function", "function": { "name": "now",
                "parameters": { "type": "object", "properties": {} } } },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": false,
        "stop": ["a", "\n\nb"],
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "high",
        "response_format": { "type": "json_schema",
            "json_schema": { "name": "answer", "strict": true, "schema": { "type": "object" } } },
        "user": "u-1",
        "stream": true,
        "stream_options": { "include_usage": true },
    })
}

/// Returns a conversation in the Messages format that must be unchanged after a translation to the other format and
/// back.
fn messages_conversation() -> Value {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let source =
        |kind: &str, data: &str| json!({ "type": "base64", "media_type": kind, "data": data });
    let weather =
        json!({ "city": "Москва \"на\" реке\n", "days": [1, 2.5, null], "deep": { "a": {} } });
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!({
        "model": "vendor-model",
        "max_tokens": 100,
        "system": [text("Be brief.\nОтвечай по-русски.")],
        "messages": [
            { "role": "user", "content": [
                text("Что на картинках?"),
                { "type": "image", "source": source("image/webp", "UklGRg==") },
                { "type": "image", "source": { "type": "url", "url": "https://example.com/a.jpg?b=c" } },
            ] },
            { "role": "assistant", "content": [
                text("Секунду."),
                { "type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": weather },
                { "type": "tool_use", "id": "toolu_2", "name": "now", "input": {} },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "toolu_1", "content": [text("+7 °C")] },
                { "type": "tool_result", "tool_use_id": "toolu_2", "content": [text(" 12:00\n")] },
                text("А завтра?"),
            ] },
            { "role": "assistant", "content": [
                { "type": "tool_use", "id": "toolu_3", "name": "now", "input": { "n": 12_345_678_901_u64 } },
            ] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "toolu_3" }] },
            { "role": "assistant", "content": [text("Дождь.")] },
            { "role": "user", "content": [
                text("И о чём здесь?"),
                { "type": "document", "source": source("application/pdf", "JVBERi0="), "title": "отчёт.pdf" },
            ] },
        ],
        "tools": [
            { "name": "get_weather", "description": "Погода", "input_schema": schema, "strict": true },
            { "name": "now", "input_schema": { "type": "object", "properties": {} } },
        ],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        "stop_sequences": ["a", "\n\nb"],
        "temperature": 0.5,
        "top_p": 0.9,
        "output_config": { "effort": "high",
            "format": { "type": "json_schema", "schema": { "type": "object" } } },
        "metadata": { "user_id": "u-1" },
        "stream": true,
    })
}

fn parsed(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

#[test]
fn conversation_translated_there_and_back_is_unchanged() {
    let dialect = Dialect::default();
    let cx = RequestCx {
        model: "vendor-model",
        output_tokens: 100,
        dialect: &dialect,
        cache: CacheCx::default(),
    };
    let translated =
        |caller, vendor, body: &[u8]| translate::request(caller, vendor, body, "v", &cx).unwrap();
    let (chat, messages) = (Format::Chat, Format::Messages);
    for (conversation, caller, vendor) in [
        (chat_conversation(), chat, messages),
        (messages_conversation(), messages, chat),
    ] {
        let there = translated(caller, vendor, conversation.to_string().as_bytes());
        let back = translated(vendor, caller, &there);
        assert_eq!(parsed(&back), conversation);
    }
}

const ANSWER_CX: AnswerCx = AnswerCx {
    created: 1_790_000_000,
    usage_asked: true,
    thinking_asked: true,
};

#[test]
fn answer_translated_there_and_back_is_unchanged() {
    let function = json!({ "name": "f", "arguments": "{\"a\":[1,\"б\"]}" });
    let call = json!({ "id": "call_1", "type": "function", "function": function });
    let reasoned = json!({ "content": "но", "reasoning_content": "хм" });
    for (message, finish) in [
        (json!({ "content": "Да.\n\"Нет\"" }), "stop"),
        (json!({ "content": "" }), "length"),
        (reasoned, "length"),
        (json!({ "content": "x" }), "content_filter"),
        (
            json!({ "content": null, "tool_calls": [call] }),
            "tool_calls",
        ),
        (
            json!({ "content": "x", "tool_calls": [call] }),
            "tool_calls",
        ),
    ] {
        let message = with(json!({ "role": "assistant", "refusal": null }), message);
        let reported = json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": ANSWER_CX.created,
            "model": "gpt",
            "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": finish }],
            "usage": {
                "prompt_tokens": 21, "completion_tokens": 5, "total_tokens": 26,
                "prompt_tokens_details": { "cached_tokens": 7, "cache_write_tokens": 5 },
                "completion_tokens_details": { "reasoning_tokens": 3 },
            },
        });
        let there = Translator::to_messages(Format::Chat, Origin::default(), ANSWER_CX, true)
            .answer(reported.to_string().as_bytes())
            .unwrap();
        let back = Translator::to_chat(Format::Messages, Origin::default(), ANSWER_CX, true)
            .answer(&there)
            .unwrap();
        assert_eq!(parsed(&back), reported);
    }

    let text = json!({ "type": "text", "text": "Да.\n\"Нет\"" });
    let thinking = json!({ "type": "thinking", "thinking": "хм", "signature": "" });
    let call =
        json!({ "type": "tool_use", "id": "toolu_1", "name": "f", "input": { "a": [1, "б"] } });
    for (content, reason) in [
        (json!([text]), "end_turn"),
        (json!([]), "max_tokens"),
        (json!([thinking, text]), "max_tokens"),
        (json!([text]), "refusal"),
        (json!([call]), "tool_use"),
        (json!([thinking, text, call]), "tool_use"),
    ] {
        let reported = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "opus", "content": content,
            "stop_reason": reason, "stop_sequence": null,
            "usage": { "input_tokens": 9, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 7,
                "output_tokens": 5, "output_tokens_details": { "thinking_tokens": 3 } },
        });
        let there = Translator::to_chat(Format::Messages, Origin::default(), ANSWER_CX, true)
            .answer(reported.to_string().as_bytes())
            .unwrap();
        let back = Translator::to_messages(Format::Chat, Origin::default(), ANSWER_CX, true)
            .answer(&there)
            .unwrap();
        let mut back = parsed(&back);
        let first = back["content"].get_mut(0);
        if let Some(signature) = first.and_then(|block| block.get_mut("signature")) {
            // The thinking comes from a vendor of the other format, so its signature is the gateway's own envelope.
            let marked = std::mem::replace(signature, json!(""));
            assert!(marked.as_str().unwrap().starts_with("tg1."), "{marked}");
        }
        assert_eq!(back, reported);
    }
}

/// Splits the bytes into events, and collects the text that `each` writes for them.
fn translated(reported: &[u8], mut each: impl FnMut(&Event, &mut BytesMut)) -> BytesMut {
    let (mut splitter, mut out) = (Splitter::default(), BytesMut::new());
    splitter
        .push(&Bytes::copy_from_slice(reported), |event| {
            each(&event, &mut out);
        })
        .unwrap();
    out
}

fn to_messages(reported: &[u8]) -> BytesMut {
    let mut stream = Translator::to_messages(Format::Chat, Origin::default(), ANSWER_CX, false);
    translated(reported, |event, out| stream.event(event, out).unwrap())
}

fn to_chat(reported: &[u8]) -> BytesMut {
    let mut stream = Translator::to_chat(Format::Messages, Origin::default(), ANSWER_CX, false);
    translated(reported, |event, out| stream.event(event, out).unwrap())
}

#[test]
fn stream_translated_there_and_back_is_equivalent() {
    for op in BOTH {
        let reported = events(op, &["раз ", "два\n\"🦀\""], 9, 2).concat();
        let back = match op {
            Op::Chat => to_chat(&to_messages(reported.as_bytes())),
            Op::Messages => to_messages(&to_chat(reported.as_bytes())),
        };
        let before = received(op, &reported);
        let after = received(op, std::str::from_utf8(&back).unwrap());
        assert_eq!(after.text, before.text, "{op:?}");
        assert_eq!(after.stop, before.stop, "{op:?}");
        assert!(after.whole, "{op:?}");
        let tokens = Tokens::plain(9, 2);
        counts("there and back", &after.usage, &tokens.usage(op));
    }
}

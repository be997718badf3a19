//! Tests that streams between a caller and a vendor of the same format are forwarded unchanged, event by event
//! (specification section 6).

use crate::prelude::*;

fn streamed(body: Value) -> Value {
    with(body, json!({ "stream": true }))
}

/// Requests a stream with usage. Otherwise the gateway would remove the usage from the vendor's stream.
fn with_usage(body: Value) -> Value {
    with(
        streamed(body),
        json!({ "stream_options": { "include_usage": true } }),
    )
}

fn in_pieces(reported: &str, size: usize) -> Vec<Step> {
    let pieces = reported.as_bytes().chunks(size);
    pieces
        .map(|piece| Step::Send(Bytes::copy_from_slice(piece)))
        .collect()
}

#[tokio::test]
async fn a_stream_reaches_the_client_byte_for_byte() {
    let (world, key) = World::start_with_key().await;
    let chat = "\u{feff}: hello\n\ndata:{\"choices\" : [ {\"index\":0,\"delta\":{\"content\":\"a\\u0416\"}} ],\
                \"x\":1.0000000000000000001}   \n\nid: 7\r\nretry: 10\r\ndata: {\"choices\":[],\r\ndata: \"y\":null}\r\n\r\n\
                data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
                data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";
    let messages = "event: message_start\r\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":1,\
                \"output_tokens\":1}},\"new\":1e400}\r\n\r\nevent: ping\ndata: {\"type\": \"ping\"}\n\n: a comment\n\n\
                event: of_tomorrow\ndata: {\"type\":\"of_tomorrow\"}\n\n\
                event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
                \"usage\":{\"output_tokens\":2}}  \n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    for (op, reported) in [(Op::Chat, chat), (Op::Messages, messages)] {
        // The vendor's frames may end inside an event, a line or a character. The gateway drops data after the last
        // event.
        for (size, behind) in [(1, ": bye\n\n"), (7, ""), (64, ""), (10_000, ": bye\n\n")] {
            let steps = in_pieces(&[reported, behind].concat(), size);
            world.vendor_sends(Reply::raw(200, "text/event-stream", steps));
            let answer = op.call(&world, &key, &with_usage(op.body("x"))).await;
            let text = answer.text();
            assert_eq!(told_cost(&text).0, reported, "{op:?} in pieces of {size}");
            assert!(!answer.failed, "{op:?} in pieces of {size}");
        }
    }
}

#[tokio::test]
async fn each_stream_event_is_delivered_before_the_vendor_makes_the_next() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let reported = events(op, &["раз ", "два ", "три"], 9, 3);
        let go = Arc::new(Notify::new());
        // The vendor sends each event only after the client has read the previous event. It sends the first event
        // together with the head.
        let steps: Vec<Step> = reported
            .iter()
            .flat_map(|event| {
                [
                    Step::Hold(Arc::clone(&go)),
                    Step::Send(event.clone().into()),
                ]
            })
            .collect();
        world.vendor_sends(Reply::raw(200, "text/event-stream", steps));
        go.notify_one();
        let res = world
            .send(op.request(&world, &key, &with_usage(op.body("x"))))
            .await;
        let mut body = res.into_body();
        for (number, event) in reported.iter().enumerate() {
            if number > 0 {
                go.notify_one();
            }
            let mut seen = String::new();
            while !seen.ends_with(event) {
                seen.push_str(&next_text(&mut body).await.expect("another event"));
            }
            if number + 1 == reported.len() {
                seen = told_cost(&seen).0;
            }
            assert_eq!(&seen, event, "{op:?}");
        }
        assert_eq!(rest(&mut body).await, "", "{op:?}");
    }
}

/// The error event has the format of the vendor, which may differ from the caller's format.
#[tokio::test]
async fn error_as_the_first_event_has_an_error_status_and_costs_nothing() {
    let (world, key) = World::start_with_key().await;
    for (caller, vendor) in [
        (Op::Chat, "chat"),
        (Op::Chat, "messages"),
        (Op::Messages, "messages"),
        (Op::Messages, "chat"),
    ] {
        let error = json!({ "type": "overloaded_error", "message": "overloaded" });
        let event = match vendor {
            "chat" => format!("data: {}\n\n", json!({ "error": error })),
            _ => {
                let data = json!({ "type": "error", "error": error });
                format!("event: error\ndata: {data}\n\n")
            }
        };
        world.vendor_sends(Reply::stream([event]));
        let body = with(streamed(caller.body("x")), json!({ "model": vendor }));
        let answer = caller.call(&world, &key, &body).await;
        assert_eq!(answer.status, 503, "{caller:?} {vendor}: {answer:?}");
        answer.refusal();
    }
    assert_eq!(world.settled(&key).await["spent_rub"], "0.00");
}

#[tokio::test]
async fn usage_is_always_requested_but_its_chunk_is_removed_unless_the_client_requested_it() {
    let (world, key) = World::start_with_key().await;
    let reported = events(Op::Chat, &["раз"], 9, 1);
    let chunk = reported.len() - 2;
    assert!(reported[chunk].contains("prompt_tokens"));
    let expected = [&reported[..chunk], &reported[chunk + 1..]]
        .concat()
        .concat();
    world.vendor_sends(Reply::stream(reported));
    for options in [
        None,
        Some(Value::Null),
        Some(json!({})),
        Some(json!({ "include_usage": false })),
        Some(json!({ "include_usage": null })),
        Some(json!({ "include_obfuscation": false })),
    ] {
        let mut body = streamed(chat_body("x"));
        if let Some(options) = &options {
            body["stream_options"] = options.clone();
        }
        let answer = world.chat(&key, &body).await;
        assert_eq!(answer.text(), expected, "{options:?}");
        let sent = world.vendor.received().pop().unwrap().json();
        assert_eq!(sent["stream_options"]["include_usage"], true, "{options:?}");
        let other = options.and_then(|options| options.get("include_obfuscation").cloned());
        let sent = sent["stream_options"].get("include_obfuscation").cloned();
        assert_eq!(sent, other);
        // The gateway has read the usage nevertheless: the charge is 9 × 100 + 1 × 200 µ₽.
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["charged_rub"], "0.0011", "{receipt}");
        assert_eq!(receipt["estimated"], false, "{receipt}");
    }
}

#[tokio::test]
async fn usage_chunk_that_the_client_requested_is_kept() {
    let (world, key) = World::start_with_key().await;
    let reported = events(Op::Chat, &["раз"], 9, 1);
    let expected = reported.concat();
    world.vendor_sends(Reply::stream(reported));
    let body = with_usage(chat_body("x"));
    let text = world.chat(&key, &body).await.text();
    assert_eq!(told_cost(&text).0, expected);
    let sent = world.vendor.received().pop().unwrap().json();
    assert_eq!(sent["stream_options"], json!({ "include_usage": true }));
}

#[tokio::test]
async fn usage_in_a_chunk_with_choices_is_not_removed() {
    let (world, key) = World::start_with_key().await;
    let reported = [
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}],\
         \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}\n\n",
        "data: [DONE]\n\n",
    ];
    world.vendor_sends(Reply::stream(reported.map(str::to_owned)));
    let answer = world.chat(&key, &streamed(chat_body("x"))).await;
    assert_eq!(answer.text(), reported.concat());
}

#[tokio::test]
async fn chat_stream_ends_with_done_even_if_its_vendor_omits_it() {
    let (world, key) = World::start_with_key().await;
    let mut reported = events(Op::Chat, &["раз"], 9, 1);
    reported.pop();
    world.vendor_sends(Reply::stream(reported));
    let text = world.chat(&key, &streamed(chat_body("x"))).await.text();
    assert!(text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
    let text = world.chat(&key, &with_usage(chat_body("x"))).await.text();
    let (events, _) = told_cost(&text);
    assert!(events.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
}

/// Returns the error in the last event of a failed stream. Checks the format of the event, that its text ends with the
/// request number, and that no event reports a normal end.
fn error_event(op: Op, text: &str, number: &str) -> Value {
    assert!(!text.contains("[DONE]"), "{text}");
    assert!(!text.contains("message_stop"), "{text}");
    let last = text.split_terminator("\n\n").last().unwrap();
    let error = match op {
        Op::Chat => {
            let data = last.strip_prefix("data: ").expect("a chunk");
            let chunk: Value = serde_json::from_str(data).unwrap();
            assert_eq!(names(&chunk), ["error"], "{last}");
            chunk["error"].clone()
        }
        Op::Messages => {
            let data = last
                .strip_prefix("event: error\ndata: ")
                .expect("event: error");
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!(names(&event), ["error", "type"], "{last}");
            assert_eq!(event["type"], "error");
            event["error"].clone()
        }
    };
    let message = error["message"].as_str().unwrap();
    assert!(message.ends_with(&format!(" ({number})")), "{message}");
    assert!(is_russian(message), "{message}");
    error
}

#[tokio::test]
async fn vendor_error_inside_a_stream_becomes_an_error_event_without_the_vendors_text() {
    let (world, key) = World::start_with_key().await;
    for (op, error) in [
        (
            Op::Chat,
            "data: {\"error\":{\"message\":\"org-Secret is overloaded\",\"code\":503}}\n\n",
        ),
        (
            Op::Messages,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"org-Secret\"}}\n\n",
        ),
    ] {
        let mut reported = events(op, &["раз ", "два"], 9, 2);
        let before = reported[..begun(op)].concat();
        reported.insert(begun(op), error.to_owned());
        let reported = reported.concat();
        for size in [1, 50, reported.len()] {
            let steps = in_pieces(&reported, size);
            world.vendor_sends(Reply::raw(200, "text/event-stream", steps));
            let answer = op.call(&world, &key, &streamed(op.body("x"))).await;
            let text = answer.text();
            assert_eq!(answer.status, 200, "{op:?}");
            // The gateway forwards no part of the vendor's error event, wherever the vendor cuts the event.
            let ours = text
                .strip_prefix(&before)
                .unwrap_or_else(|| panic!("{text}"));
            let error = error_event(op, ours.trim_start(), &answer.number());
            assert_eq!(error["type"], "api_error", "{error}");
            assert_eq!(ours.matches("data:").count(), 1, "{ours}");
            assert!(!text.contains("два") && !text.contains("Secret"), "{text}");
            assert!(!answer.failed, "the event is the end: {op:?}");
        }
    }
}

#[tokio::test]
async fn truncated_stream_never_looks_finished() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for half_an_event in [false, true] {
            let go = Arc::new(Notify::new());
            let reported = events(op, &["раз ", "два"], 9, 2);
            let mut steps: Vec<Step> = reported[..begun(op)]
                .iter()
                .map(|event| Step::Send(event.clone().into()))
                .collect();
            if half_an_event {
                steps.push(Step::Send(Bytes::from_static(b"data: {\"half")));
            }
            // The vendor resets its connection only after the client has read the data, because a reset may arrive
            // before data that was sent earlier.
            steps.extend([Step::Hold(Arc::clone(&go)), Step::Cut]);
            world.vendor_sends(Reply::raw(200, "text/event-stream", steps));
            let res = world
                .send(op.request(&world, &key, &streamed(op.body("x"))))
                .await;
            let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
            let mut body = res.into_body();
            let mut text = read_until(&mut body, "раз").await;
            go.notify_one();
            text.push_str(&rest(&mut body).await);
            let error = error_event(op, &text, &number);
            assert_eq!(error["type"], "api_error", "{error}");
            let receipt = world.receipt(&number).await;
            assert_eq!(receipt["end"], "vendor_cut", "{receipt}");
            assert_eq!(receipt["estimated"], true, "{receipt}");
        }
    }
}

#[tokio::test]
async fn stream_whose_vendor_stops_sending_ends_with_an_error_event() {
    let (world, key) = vendors("idle_seconds = 1").start_with_key().await;
    for op in BOTH {
        let never = Step::Hold(Arc::new(Notify::new()));
        world.vendor_sends(
            Reply::stream(events(op, &["раз ", "два"], 9, 2)).with_step(begun(op), never),
        );
        let answer = op.call(&world, &key, &streamed(op.body("x"))).await;
        error_event(op, &answer.text(), &answer.number());
    }
}

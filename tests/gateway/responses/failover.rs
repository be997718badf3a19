//! Tests of vendors that fail before their first content. The next vendor answers, whatever the format of the caller.

use http::StatusCode;

use super::{ask_raw, beginning, body, event, setup};
use crate::{fleet::Fleet, prelude::*};

const CALLERS: [&str; 3] = ["responses", "chat", "messages"];

async fn call(world: &World, key: &Key, caller: &str, model: &str, stream: bool) -> Answer {
    let fields = json!({ "model": model, "stream": stream });
    match caller {
        "chat" => {
            Op::Chat
                .call(world, key, &with(Op::Chat.body("привет"), fields))
                .await
        }
        "messages" => {
            let body = with(Op::Messages.body("привет"), fields);
            Op::Messages.call(world, key, &body).await
        }
        _ => ask_raw(world, key, &body(fields).to_string()).await,
    }
}

/// Returns responses of a vendor that fails before any content: plain errors, and streams whose first events have no
/// content.
fn failures(stream: bool) -> Vec<Reply> {
    let error = json!({ "code": "server_error", "message": "x", "type": "x", "param": null });
    let failed = json!({ "id": "resp_v1", "object": "response", "status": "failed", "model": "vendor-chat-1",
        "output": [], "usage": null, "error": error });
    if !stream {
        return vec![
            refusal(500, "x"),
            Reply::json(200, &failed),
            Reply::json(200, &json!({ "error": error })),
        ];
    }
    let last = |data: Value| event(&with(data, json!({ "sequence_number": 2 })));
    let reported = [
        last(with(error.clone(), json!({ "type": "error" }))),
        last(json!({ "type": "error", "error": error })),
        last(json!({ "type": "response.failed", "response": failed })),
        String::new(),
    ];
    let begun = [String::new(), beginning().concat()];
    let replies = begun.iter().flat_map(|begun| {
        reported
            .iter()
            .map(move |reported| format!("{begun}{reported}"))
    });
    replies.map(|text| Reply::stream([text])).collect()
}

#[tokio::test]
async fn responses_failure_before_any_content_is_answered_by_the_next_vendor() {
    for stream in [false, true] {
        for (nth, failure) in failures(stream).into_iter().enumerate() {
            let route = |n| format!("priority = {}", 1 - n);
            let fleet = Fleet::start(setup(), 2, route, |_| String::new()).await;
            fleet.vendor(1).script(move |_| failure.clone());
            let key = fleet.world.key().await;
            let mut spent = 0;
            for caller in CALLERS {
                let what = format!("failure {nth}, {caller}, streamed: {stream}");
                let answer = call(&fleet.world, &key, caller, "chat", stream).await;
                assert_eq!(answer.status, 200, "{what}: {answer:?}");
                assert!(answer.text().contains("Вы"), "{what}: {}", answer.text());
                let receipt = fleet.world.receipt(&answer.number()).await;
                assert_eq!(
                    receipt["vendor"],
                    Fleet::name(Op::Chat, 0),
                    "{what}: {receipt}"
                );
                assert_eq!(receipt["end"], "finished", "{what}: {receipt}");
                assert_eq!(receipt["estimated"], false, "{what}: {receipt}");
                // The vendor that has answered counts nine input tokens, and one output token per word.
                assert_eq!(
                    micro(&receipt["charged_rub"]),
                    9 * 100 + 3 * 200,
                    "{what}: {receipt}"
                );
                spent += micro(&receipt["charged_rub"]);
                let account = fleet.world.settled(&key).await;
                assert_eq!(micro(&account["spent_rub"]), spent, "{what}");
            }
            assert!(fleet.requested(1) > 0, "the first vendor was asked");
            assert_eq!(fleet.requested(0), CALLERS.len());
        }
    }
}

/// Returns the parts of an error that exist in every format: its status, type and code.
fn returned(answer: &Answer) -> (StatusCode, Value, Value) {
    let error = &answer.json()["error"];
    let message = error["message"].as_str().unwrap();
    assert!(
        message.ends_with(&format!("({})", answer.number())),
        "{message}"
    );
    (answer.status, error["type"].clone(), error["code"].clone())
}

#[tokio::test]
async fn vendor_refusal_has_the_same_status_and_code_for_callers_of_all_formats() {
    let page = Step::Send("<html>maintenance</html>".into());
    let replies = [
        refusal(400, "x"),
        refusal(401, "x"),
        refusal(404, "x"),
        refusal(429, "slow").header("retry-after", "7"),
        refusal(500, "x"),
        Reply::raw(200, "text/html", vec![page]),
        refusal(200, "x"),
    ];
    for (nth, reply) in replies.into_iter().enumerate() {
        for stream in [false, true] {
            let mut seen = Vec::new();
            // This tests a vendor of each format. A vendor that has failed for one caller is tried again for the next
            // caller.
            for (vendor, model) in [
                ("chat", "chat"),
                ("messages", "messages"),
                ("responses", "chat"),
            ] {
                for caller in CALLERS {
                    let world = match vendor {
                        "responses" => super::world().await,
                        _ => World::start().await,
                    };
                    let key = world.key().await;
                    world.vendor_sends(reply.clone());
                    let answer = call(&world, &key, caller, model, stream).await;
                    let what = format!("{nth}: {caller} to {vendor}, streamed: {stream}");
                    assert_ne!(answer.status, 200, "{what}: {}", answer.text());
                    assert_eq!(world.vendor.received().len(), 1, "{what}");
                    cost_nothing(&what, &world, &key, &answer).await;
                    seen.push((what, returned(&answer)));
                }
            }
            for (what, returned) in &seen[1..] {
                assert_eq!(*returned, seen[0].1, "{what}, and {}", seen[0].0);
            }
        }
    }
}

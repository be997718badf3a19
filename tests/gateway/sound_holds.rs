//! Tests that the hold of a large document covers what the document may cost, and that the caller sees the charged
//! usage.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::prelude::*;

/// Returns a file of 8 MB that begins like a PDF. The gateway cannot count its pages.
fn large_pdf() -> Value {
    let mut file = b"%PDF-1.7\n".to_vec();
    file.extend((0..8_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8));
    let data = format!("data:application/pdf;base64,{}", STANDARD.encode(file));
    json!({ "type": "file", "file": { "filename": "a.pdf", "file_data": data } })
}

#[tokio::test]
async fn ten_concurrent_calls_with_large_documents_cause_no_loss_if_the_balance_is_too_small() {
    // A document of this size may fill the complete context window. The vendor then bills for the complete window.
    const WINDOW: u64 = 1_000_000;
    let limit = "output_tokens_max = 4000\ninput_tokens_max = 1000000";
    let world = Setup::default()
        .edit("output_tokens_max = 4000", limit)
        .start()
        .await;
    let usage =
        json!({ "prompt_tokens": WINDOW, "completion_tokens": 5, "total_tokens": WINDOW + 5 });
    world.vendor_sends(Reply::json(200, &answer(Op::Chat, "x", &usage)));
    let part = json!({ "type": "text", "text": "What is in it?" });
    let content = json!([part, large_pdf()]);
    let body = with(
        chat_body("x"),
        json!({ "messages": [{ "role": "user", "content": content }] }),
    );
    // The money of the first account covers ten texts. The money of the second account covers one full context window,
    // which costs a hundred rubles.
    for (account, rubles, accepted_max) in [("texts", "1", 0), ("one", "150", 1)] {
        let key = world.key_with(account, rubles, json!({})).await;
        let calls = (0..10).map(|_| world.chat(&key, &body));
        let answers = futures_util::future::join_all(calls).await;
        let accepted = answers.iter().filter(|answer| answer.status == 200).count();
        assert!(accepted <= accepted_max, "{account}: {accepted}");
        for answer in &answers {
            assert!(
                matches!(answer.status.as_u16(), 200 | 401 | 403 | 503),
                "{answer:?}"
            );
        }
        let account = world.settled(&key).await;
        assert_eq!(account["loss_rub"], "0.00", "{account}");
        assert!(micro(&account["balance_rub"]) >= 0, "{account}");
    }
}

#[tokio::test]
async fn translated_stream_without_usage_reports_the_charged_usage() {
    let (world, key) = World::start_with_key().await;
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        format!(
            "data: {}\n\n",
            json!({ "id": "c1", "model": "m", "choices": [choice] })
        )
    };
    let events = [
        chunk(
            json!({ "content": "Рассеяние света в атмосфере." }),
            Value::Null,
        ),
        chunk(json!({}), "stop".into()),
        "data: [DONE]\n\n".to_owned(),
    ];
    world.vendor_sends(Reply::stream(events));
    let body = json!({ "model": "chat", "max_tokens": 100, "stream": true,
        "messages": [{ "role": "user", "content": "Почему небо синее?" }] });
    let answered = world.messages(&key, &body).await;
    let receipt = world.receipt(&answered.number()).await;
    let text = answered.text();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut events = events.map(|data| serde_json::from_str::<Value>(data).unwrap());
    let delta = events
        .rfind(|data| data["type"] == "message_delta")
        .unwrap();
    assert_eq!(
        delta["usage"]["input_tokens"], receipt["usage"]["input"],
        "{text} {receipt}"
    );
    assert_eq!(
        delta["usage"]["output_tokens"], receipt["usage"]["output"],
        "{text} {receipt}"
    );
    assert_eq!(receipt["estimated"], true, "{receipt}");
}

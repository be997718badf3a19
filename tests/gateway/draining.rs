//! What a stop does to running calls.

use std::{sync::Arc, time::Duration};

use http_body_util::BodyExt;
use serde_json::json;
use tollgate::demo::vendor::{Reply, Step};
use tollgate_layers::reserve::ledger::Bookkeeping;

use crate::harness::{Setup, World, chat_body, next_text, with};

/// Fifty streams that have begun and would never end.
#[tokio::test]
async fn a_drain_cuts_what_is_left_with_an_error_event_and_charges_what_was_delivered() {
    let world = Setup::default()
        .edit("[ledger]", "[limits]\ndrain_seconds = 0\n[ledger]")
        .start()
        .await;
    let key = world.key().await;
    world.vendor.script(|_| {
        let event = json!({ "choices": [{ "index": 0, "delta": { "content": "x".repeat(400) } }] });
        let event = format!("data: {event}\n\n");
        Reply::raw(
            200,
            "text/event-stream",
            vec![Step::Send(event.into()), Step::Hold(Arc::default())],
        )
    });
    let body = with(chat_body("hi"), json!({ "stream": true }));
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut stream = world
            .send(world.chat_request(&key, &body))
            .await
            .into_body();
        assert!(next_text(&mut stream).await.unwrap().contains("xxx"));
        streams.push(stream);
    }
    let World {
        gateway,
        vendor: _vendor,
        client: _client,
        dir: _dir,
    } = world;
    let store = gateway.store().clone();
    tokio::time::timeout(Duration::from_secs(10), gateway.drain())
        .await
        .expect("the drain ends")
        .unwrap();

    for mut stream in streams {
        let mut rest = String::new();
        while let Some(frame) = stream.frame().await {
            let data = frame.expect("the stream ends in order").into_data();
            rest.push_str(std::str::from_utf8(&data.unwrap()).unwrap());
        }
        assert!(
            rest.contains("\"error\"") && rest.contains("перезапускается"),
            "{rest}"
        );
        assert!(!rest.contains("[DONE]"), "{rest}");
    }
    let account = store.account(&key.account.parse().unwrap()).await.unwrap();
    assert_eq!(account.held_rub.micro(), 0);
    // 100 tokens of text at 200 ₽ a million, and the estimated input.
    let each = account.spent_rub.micro() / 50;
    assert!((20_000..21_500).contains(&each), "{each}");
}

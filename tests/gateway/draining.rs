//! Tests of what a drain does to calls in flight.

use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, task::JoinSet};
use tollgate::demo::script::polite;
use tollgate_layers::reserve::ledger::LedgerAdmin;

use crate::prelude::*;

/// Starts fifty streams that would never end.
#[tokio::test]
async fn stream_that_outlasts_the_drain_ends_with_an_error_and_is_charged_for_the_delivered_part() {
    let (world, key) = Setup::default()
        .edit("[ledger]", "[limits]\ndrain_seconds = 0\n[ledger]")
        .start_with_key()
        .await;
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
        has(&rest, "\"error\"");
        has(&rest, "перезапускается");
        assert!(!rest.contains("[DONE]"), "{rest}");
    }
    let account = store.account(&key.account.parse().unwrap()).await.unwrap();
    assert_eq!(account.held_rub.micro(), 0);
    // Each stream is charged for its estimated input and for the 100 delivered tokens of text, at 200 µ₽ per output
    // token.
    let each = account.spent_rub.micro() / 50;
    assert!((20_000..21_500).contains(&each), "{each}");
}

/// A plain call whose client has disconnected is read to its end, and the drain waits for it.
#[tokio::test]
async fn drain_waits_for_calls_whose_clients_have_disconnected() {
    let (world, key) = World::start_with_key().await;
    let requested = Arc::new(Notify::new());
    let reported = Arc::clone(&requested);
    world.vendor.script(move |received| {
        reported.notify_one();
        polite(received).with_step(0, Step::Wait(Duration::from_millis(700)))
    });
    let request = world.chat_request(&key, &chat_body("Привет"));
    tokio::select! {
        _ = world.send(request) => panic!("the vendor has not answered yet"),
        () = requested.notified() => {}
    }
    let World {
        gateway,
        vendor: _vendor,
        client,
        dir: _dir,
    } = world;
    // Dropping the client closes its connections.
    drop(client);
    let store = gateway.store().clone();
    gateway.drain().await.unwrap();
    let account = store.account(&key.account.parse().unwrap()).await.unwrap();
    assert_eq!(account.held_rub.micro(), 0);
    assert_eq!(account.spent_rub.micro(), 1500);
}

/// The client never opens its HTTP/2 window, so the gateway cannot send the response. The hold must end nevertheless.
#[tokio::test]
async fn hold_ends_even_if_the_client_never_reads_the_answer() {
    let (world, key) = Setup::default()
        .edit(
            "[ledger]",
            "[limits]\ncall_seconds = 1\nrequest_seconds = 2\n[ledger]",
        )
        .start_with_key()
        .await;
    world.vendor.script(polite);
    let socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .handshake(TokioIo::new(socket))
        .await
        .unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let body = with(chat_body("Привет"), json!({ "stream": true }));
    let answer = sender.send_request(world.chat_request(&key, &body)).await;
    let _kept = answer.unwrap();
    assert_ne!(world.account(&key).await["held_rub"], "0.00");
    // The gateway checks its connections every five seconds.
    let deadline = Duration::from_secs(12);
    tokio::time::timeout(deadline, async {
        while world.account(&key).await["held_rub"] != "0.00" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("its hold ends");
}

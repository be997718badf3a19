//! Hardening, "h2": floods of frames, written by hand. The connection is closed or has to wait; the
//! process' memory stays what it was, another client is served, and nothing stays held.

use std::time::Duration;

use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use tollgate::demo::vendor::{Reply, Step};

use crate::{
    checks::{INVALID, refused},
    edge::Edge,
    harness::{World, chat_body, request, whole, with},
    ops::{Op, limits},
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// How much memory a flood may cost, in KiB: what a debug build's allocator keeps for itself, and not what
/// comes in.
const GROWTH_KIB_MAX: u64 = 64 * 1024;
/// How long a flood may go on.
const PATIENCE: Duration = Duration::from_secs(30);
/// A write that takes longer waits for us to read.
const THROTTLED: Duration = Duration::from_secs(1);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn opening() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes
}

/// A literal without indexing (RFC 7541, section 6.2.2), its name by its place in the static table.
fn literal(place: u8, value: &str) -> Vec<u8> {
    let mut field = match place {
        0..15 => vec![place],
        _ => vec![0x0f, place - 15],
    };
    field.push(u8::try_from(value.len()).unwrap());
    assert!(value.len() < 127, "longer ones take two bytes");
    field.extend(value.as_bytes());
    field
}

/// The head of a chat call.
fn call(key: &str) -> Vec<u8> {
    // POST, http
    let mut block = vec![0x83, 0x86];
    block.extend(literal(4, "/v1/chat/completions"));
    block.extend(literal(1, "gateway.example"));
    block.extend(literal(23, &format!("Bearer {key}")));
    block.extend(literal(31, "application/json"));
    block
}

/// How a flood ended.
#[derive(Debug, PartialEq)]
enum End {
    Closed,
    Throttled,
    /// All of it was taken, and the connection is still there.
    Taken,
}

/// Sends `opening` and then `times` what `unit` makes, in pieces of many units; reads only if `reads`.
async fn flood(
    edge: &Edge,
    opening: Vec<u8>,
    times: u32,
    reads: bool,
    mut unit: impl FnMut(u32) -> Vec<u8>,
) -> End {
    let socket = TcpStream::connect(edge.address).await.unwrap();
    let (mut reader, mut writer) = socket.into_split();
    let write = async {
        if writer.write_all(&opening).await.is_err() {
            return End::Closed;
        }
        let mut batch = Vec::new();
        for n in 0..times {
            batch.extend(unit(n));
            if batch.len() < 16 * 1024 && n + 1 < times {
                continue;
            }
            match timeout(THROTTLED, writer.write_all(&batch)).await {
                Ok(Ok(())) => batch.clear(),
                Ok(Err(_)) => return End::Closed,
                Err(_) => return End::Throttled,
            }
        }
        End::Taken
    };
    let read = async {
        let mut bytes = vec![0; 64 * 1024];
        if reads {
            loop {
                match reader.read(&mut bytes).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
        }
        std::future::pending().await
    };
    let ended = timeout(PATIENCE, async {
        tokio::select! {
            end = write => end,
            () = read => End::Closed,
        }
    });
    let end = ended.await.expect("a flood ends");
    if end != End::Taken {
        return end;
    }
    // It may just not have been read to its end yet.
    let mut rest = Vec::new();
    match timeout(Duration::from_secs(2), reader.read_to_end(&mut rest)).await {
        Ok(_) => End::Closed,
        Err(_) => End::Taken,
    }
}

async fn others_are_served(edge: &Edge, key: &str) {
    let begun = Instant::now();
    let answer = timeout(Duration::from_secs(5), edge.chat(key, &chat_body("x"))).await;
    let answer = answer.unwrap_or_else(|_| panic!("another client waits: {:?}", begun.elapsed()));
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_frames_end_their_connection_or_wait_and_cost_no_memory() {
    let mut edge = Edge::start("").await;
    let key = edge.key().await;
    let open = |flags: u8, stream: u32| frame(HEADERS, flags, stream, &call(&key));
    let with_call = [opening(), open(END_HEADERS, 1)].concat();
    let begun_head = [opening(), open(0, 1)].concat();
    for _ in 0..20 {
        others_are_served(&edge, &key).await;
    }
    let before = edge.rss_kib();
    // Reading or not, how often, and whether it must end the connection.
    for (what, times, reads, closes) in [
        ("rapid reset", 20_000, true, false),
        ("rapid reset, unread", 20_000, false, false),
        ("resets of what is refused", 20_000, true, false),
        ("continuation", 20_000, true, true),
        ("empty continuation", 100_000, true, true),
        ("empty data", 100_000, true, true),
        ("data of a byte", 100_000, true, false),
        ("settings", 200_000, true, false),
        ("settings, unread", 200_000, false, false),
        ("pings", 200_000, true, false),
        ("pings, unread", 200_000, false, false),
        ("windows of nothing", 10_000, true, true),
        ("windows of a byte", 200_000, true, false),
        ("frames of no known kind", 200_000, true, false),
        ("headers on stream 0", 1000, true, true),
    ] {
        let stream = |n: u32| 1 + 2 * n;
        let (opening, unit): (_, Box<dyn Fn(u32) -> Vec<u8>>) = match what {
            "rapid reset" | "rapid reset, unread" => (
                opening(),
                Box::new(|n: u32| {
                    let reset = frame(RST_STREAM, 0, stream(n), &8u32.to_be_bytes());
                    [open(END_HEADERS, stream(n)), reset].concat()
                }),
            ),
            "resets of what is refused" => (
                opening(),
                Box::new(|n: u32| {
                    let head = [&[0x82u8, 0x86][..], &literal(4, "/nowhere")].concat();
                    let reset = frame(RST_STREAM, 0, stream(n), &8u32.to_be_bytes());
                    [
                        frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &head),
                        reset,
                    ]
                    .concat()
                }),
            ),
            "continuation" => (
                begun_head.clone(),
                Box::new(|_| {
                    frame(
                        CONTINUATION,
                        0,
                        1,
                        &literal(31, &"x".repeat(100)).repeat(80),
                    )
                }),
            ),
            "empty continuation" => (
                begun_head.clone(),
                Box::new(|_| frame(CONTINUATION, 0, 1, &[])),
            ),
            "empty data" => (with_call.clone(), Box::new(|_| frame(DATA, 0, 1, &[]))),
            "data of a byte" => (with_call.clone(), Box::new(|_| frame(DATA, 0, 1, b" "))),
            "settings" | "settings, unread" => (
                opening(),
                Box::new(|n: u32| {
                    let window = (65_535 + n % 1000).to_be_bytes();
                    frame(SETTINGS, 0, 0, &[&[0u8, 4][..], &window].concat())
                }),
            ),
            "pings" | "pings, unread" => (
                opening(),
                Box::new(|n: u32| frame(PING, 0, 0, &u64::from(n).to_be_bytes())),
            ),
            "windows of nothing" => (
                opening(),
                Box::new(|_| frame(WINDOW_UPDATE, 0, 0, &0u32.to_be_bytes())),
            ),
            "windows of a byte" => (
                opening(),
                Box::new(|_| frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
            ),
            "frames of no known kind" => (opening(), Box::new(|_| frame(0xbe, 0, 0, b"what?"))),
            _ => (opening(), Box::new(|_| open(END_HEADERS, 0))),
        };
        let (end, ()) = tokio::join!(
            flood(&edge, opening, times, reads, unit),
            others_are_served(&edge, &key)
        );
        println!("{what}: {end:?}, {} KiB", edge.rss_kib());
        assert!(!closes || end == End::Closed, "{what}: {end:?}");
        others_are_served(&edge, &key).await;
        let grown = edge.rss_kib().saturating_sub(before);
        assert!(grown < GROWTH_KIB_MAX, "{what}: {grown} KiB more");
        assert!(edge.is_alive(), "{what}: {}", edge.log());
    }
    edge.nothing_is_held().await;
    assert!(!edge.log().contains("panicked"), "{}", edge.log());
}

#[tokio::test]
async fn a_client_that_opens_no_window_is_cut_and_its_call_ends() {
    let world = limits("write_seconds = 1").start().await;
    let key = world.key().await;
    world.vendor.script(|_| {
        let event = json!({ "choices": [{ "index": 0, "delta": { "content": "x".repeat(100) } }] });
        let mut steps = vec![Step::Send(format!("data: {event}\n\n").into()); 1000];
        steps.push(Step::Hold(std::sync::Arc::default()));
        Reply::raw(200, "text/event-stream", steps)
    });
    let body = with(chat_body("x"), json!({ "stream": true })).to_string();
    let no_window = [&[0u8, 4][..], &0u32.to_be_bytes()].concat();
    let bytes = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &no_window),
        frame(HEADERS, END_HEADERS, 1, &call(&key.secret)),
        frame(DATA, END_STREAM, 1, body.as_bytes()),
    ];
    let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    socket.write_all(&bytes.concat()).await.unwrap();
    // It reads all that comes: its socket is in good health.
    let mut read = Vec::new();
    let closed = timeout(Duration::from_secs(15), socket.read_to_end(&mut read)).await;
    assert!(closed.is_ok(), "it is still open");
    let account = world.settled(&key).await;
    assert_eq!(account["held_rub"], "0.00");
    let begun = Instant::now();
    while world.vendor.open() > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "the vendor's is open"
        );
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused_on_h2_in_the_shape_of_all_refusals() {
    let world = World::start().await;
    let key = world.key().await;
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let long = format!("{}?{}", Op::Chat.path(), "x".repeat(2048));
    let large = "x".repeat(33 * 1024);
    let many: Vec<_> = (0..65)
        .map(|n| (format!("x-{n}"), "x".to_owned()))
        .collect();
    for (what, path, more, status, code) in [
        ("address", long.as_str(), vec![], 414, "uri_too_long"),
        ("lines", Op::Chat.path(), many, 431, "headers_too_large"),
        (
            "bytes",
            Op::Chat.path(),
            vec![("x-large".to_owned(), large)],
            431,
            "headers_too_large",
        ),
    ] {
        let headers: Vec<_> = more
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let req = request(http::Method::POST, &world.url(path), &headers, "{}".into());
        let answer = whole(client.request(req).await.unwrap()).await;
        refused(what, &answer, status, INVALID, code);
    }
    // The connection is as good as before.
    let req = world.chat_request(&key, &chat_body("x"));
    let answer = whole(client.request(req).await.unwrap()).await;
    assert_eq!(answer.status, 200);
}

/// What comes back is frames, and the last of a connection that we end says so.
#[tokio::test]
async fn a_connection_that_is_ended_for_a_flood_is_told_why() {
    let world = World::start().await;
    let mut bytes = opening();
    bytes.extend(frame(HEADERS, 0, 1, &call("tg-none")));
    for _ in 0..5000 {
        bytes.extend(frame(CONTINUATION, 0, 1, &literal(31, "x")));
    }
    let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    let _ = socket.write_all(&bytes).await;
    let mut read = Vec::new();
    let closed = timeout(PATIENCE, socket.read_to_end(&mut read)).await;
    assert!(closed.is_ok(), "it is still open");
    let mut rest = &read[..];
    let mut kinds = Vec::new();
    while rest.len() >= 9 {
        let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
        kinds.push(rest[3]);
        rest = rest.get(9 + length..).unwrap_or_default();
    }
    // A reset may have overtaken it.
    assert!(
        kinds
            .last()
            .is_none_or(|kind| [GOAWAY, SETTINGS, WINDOW_UPDATE].contains(kind)),
        "{kinds:?}"
    );
}

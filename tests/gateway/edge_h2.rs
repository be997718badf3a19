//! Tests of floods of HTTP/2 frames. At each flood, the gateway closes the connection or stops reading it. The
//! gateway's memory does not grow, other clients are served, and no hold remains.

use std::convert::Infallible;

use futures_util::stream::{self, StreamExt};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::client::conn::http2;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tollgate::demo::script::polite;

use crate::{
    edge::{Edge, statuses},
    edge_unread::LARGE,
    prelude::*,
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: u8 = 4;
const REFUSED_STREAM: u32 = 7;

/// How much memory the gateway's process may gain during a flood, in KiB. The allocator of a debug build keeps some
/// memory, but the gateway must not store incoming data.
const GROWTH_KIB_MAX: u64 = 64 * 1024;
/// The time within which a flood must end.
const PATIENCE: Duration = Duration::from_secs(30);
/// If a write takes longer than this, it is blocked, because the gateway has stopped reading.
const THROTTLED: Duration = Duration::from_secs(1);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Splits bytes into HTTP/2 frames. Returns the type, the stream and the payload of each.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u32, &[u8])> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let Some((payload, rest)) = rest.split_at_checked(length) else {
            break;
        };
        frames.push((head[3], stream, payload));
        bytes = rest;
    }
    frames
}

/// Returns the client's connection preface, with a SETTINGS frame that contains this one setting.
fn setting(name: u8, value: u32) -> Vec<u8> {
    frame(
        SETTINGS,
        0,
        0,
        &[&[0, name][..], &value.to_be_bytes()].concat(),
    )
}

fn opening() -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes
}

/// Returns a header field without indexing (RFC 7541, section 6.2.2). Its name is entry `place` of the static table.
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

/// Returns the encoded header block of a chat call.
fn call(key: &str) -> Vec<u8> {
    // These bytes are the method POST and the scheme http, from the static table.
    let mut block = vec![0x83, 0x86];
    block.extend(literal(4, "/v1/chat/completions"));
    block.extend(literal(1, "gateway.example"));
    block.extend(literal(23, &format!("Bearer {key}")));
    block.extend(literal(31, "application/json"));
    block
}

/// How the gateway reacts to a flood of frames.
#[derive(Debug, PartialEq)]
enum End {
    Closed,
    Throttled,
    /// The gateway accepted all frames, and the connection is still open.
    Taken,
}

/// Sends `opening`, and then the results of calling `unit` `times` times, many per write. Reads the gateway's answers
/// only if `reads` is true.
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
    // All frames were sent. The gateway may still close the connection, when it has read the last of them.
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
async fn flood_of_h2_frames_closes_or_stalls_its_connection_and_uses_no_memory() {
    let mut edge = Edge::start("").await;
    let key = edge.key().await;
    let open = |flags: u8, stream: u32| frame(HEADERS, flags, stream, &call(&key));
    let with_call = [opening(), open(END_HEADERS, 1)].concat();
    let begun_head = [opening(), open(0, 1)].concat();
    for _ in 0..20 {
        others_are_served(&edge, &key).await;
    }
    let before = edge.rss_kib();
    // The columns are: the name of the flood, the number of repetitions, whether the client reads, and whether the
    // gateway must close the connection.
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
        ("windows of a byte", 200_000, true, true),
        ("windows of a byte, unread", 200_000, false, true),
        ("priorities", 200_000, true, true),
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
            "priorities" => (
                opening(),
                Box::new(|n: u32| frame(PRIORITY, 0, stream(n % 1000), &[0, 0, 0, 0, 16])),
            ),
            "windows of a byte" | "windows of a byte, unread" => (
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
async fn h2_client_that_opens_no_window_is_disconnected_and_its_call_ends() {
    let (world, key) = limits("write_seconds = 1").start_with_key().await;
    world.vendor.script(|_| {
        let event = json!({ "choices": [{ "index": 0, "delta": { "content": "x".repeat(100) } }] });
        let mut steps = vec![Step::Send(format!("data: {event}\n\n").into()); 1000];
        steps.push(Step::Hold(std::sync::Arc::default()));
        Reply::raw(200, "text/event-stream", steps)
    });
    let body = with(chat_body("x"), json!({ "stream": true })).to_string();
    let bytes = [
        PREFACE.to_vec(),
        setting(INITIAL_WINDOW_SIZE, 0),
        frame(HEADERS, END_HEADERS, 1, &call(&key.secret)),
        frame(DATA, END_STREAM, 1, body.as_bytes()),
    ];
    let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    socket.write_all(&bytes.concat()).await.unwrap();
    // The client reads everything that the gateway sends, so no write of the gateway blocks.
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

/// The whole response is ready at once. If the gateway passed it to the h2 library without waiting for the client's
/// window, no timeout would apply to a client that opens its window too slowly.
#[tokio::test]
async fn h2_client_that_opens_its_window_by_single_bytes_is_disconnected() {
    let (world, key) = limits("write_seconds = 1").start_with_key().await;
    for bytes in [1, 20_000, 2_000_000] {
        let text = "x".repeat(bytes);
        world.vendor.script(move |_| {
            let body = answer(Op::Chat, &text, &usage(Op::Chat, 9, 1)).to_string();
            Reply::raw(200, "application/json", vec![Step::Send(body.into())])
        });
        let opening = [
            PREFACE.to_vec(),
            setting(INITIAL_WINDOW_SIZE, 1),
            frame(HEADERS, END_HEADERS, 1, &call(&key.secret)),
            frame(DATA, END_STREAM, 1, chat_body("x").to_string().as_bytes()),
        ];
        let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
        socket.write_all(&opening.concat()).await.unwrap();
        let mut read = Vec::new();
        // An idle connection would stay open for 75 seconds, so this connection was not closed for being idle.
        let closed = timeout(Duration::from_secs(15), socket.read_to_end(&mut read)).await;
        assert!(closed.is_ok(), "{bytes}: it is still open");
        let came: usize = frames(&read)
            .iter()
            .filter(|(kind, ..)| *kind == DATA)
            .map(|(.., payload)| payload.len())
            .sum();
        assert_eq!(came, 1, "{bytes}: what fits into the window");
    }
    assert_eq!(world.settled(&key).await["held_rub"], "0.00");
}

/// A client that reads slowly but steadily gets its complete response.
#[tokio::test]
async fn answer_read_through_small_h2_windows_is_complete() {
    let (world, key) = World::start_with_key().await;
    let text = "я".repeat(100_000);
    let reported = text.clone();
    world.vendor.script(move |_| {
        let body = answer(Op::Chat, &reported, &usage(Op::Chat, 9, 1)).to_string();
        Reply::raw(200, "application/json", vec![Step::Send(body.into())])
    });
    for window in [1000, 16_384, 1 << 20] {
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .http2_initial_stream_window_size(window)
            .build_http();
        let req = world.chat_request(&key, &chat_body("x"));
        let whole = timeout(PATIENCE, async {
            whole(client.request(req).await.unwrap()).await
        });
        let answer = whole
            .await
            .unwrap_or_else(|_| panic!("{window}: it stalls"));
        assert!(answer.status == 200 && !answer.failed, "{window}");
        let content = &answer.json()["choices"][0]["message"]["content"];
        assert_eq!(content.as_str(), Some(&*text), "{window}");
    }
}

type AnyBody = UnsyncBoxBody<Bytes, Infallible>;

/// Returns a request body without a content length: these bytes, and then the end of the stream if `ends` is true.
/// Otherwise the body never ends.
fn unmeasured(bytes: impl Into<Bytes>, ends: bool) -> AnyBody {
    let first = stream::iter([Ok(Frame::data(bytes.into()))]);
    if ends {
        StreamBody::new(first).boxed_unsync()
    } else {
        StreamBody::new(first.chain(stream::pending())).boxed_unsync()
    }
}

#[tokio::test]
async fn body_refusals_are_the_same_on_http2_as_on_http1() {
    let (world, key) = limits("body_bytes_max = 1000\nbody_seconds = 1")
        .start_with_key()
        .await;
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let large = "x".repeat(1001);
    for op in BOTH {
        let body = op.body("x").to_string();
        let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
        let deep = body.replacen('{', &format!("{{\"x\":{deep},"), 1);
        let twice = body.replacen('{', "{\"mod\\u0065l\":\"other\",", 1);
        let full = |text: &str| Full::new(Bytes::copy_from_slice(text.as_bytes())).boxed_unsync();
        for (what, body, more, status, code) in [
            ("good", full(&body), None, 200, ""),
            (
                "counted",
                unmeasured(large.clone(), true),
                None,
                413,
                "request_too_large",
            ),
            ("declared", full(&large), None, 413, "request_too_large"),
            (
                "declared and not sent",
                unmeasured("", false),
                Some(("content-length", "1001")),
                413,
                "request_too_large",
            ),
            (
                "compressed",
                full(&body),
                Some(("content-encoding", "br")),
                415,
                "unsupported_media_type",
            ),
            ("deep", full(&deep), None, 400, ""),
            ("a field twice", full(&twice), None, 400, ""),
            (
                "slow",
                unmeasured("{\"model", false),
                None,
                408,
                "request_timeout",
            ),
        ] {
            let mut req = op.request(&world, &key, &json!({})).map(|_| body);
            if let Some((name, value)) = more {
                req.headers_mut().insert(name, value.parse().unwrap());
            }
            let answer = timeout(PATIENCE, async {
                whole(client.request(req).await.unwrap()).await
            });
            let answer = answer.await.unwrap_or_else(|_| panic!("{what}: no answer"));
            if status == 200 {
                assert_eq!(answer.status, 200, "{answer:?}");
            } else {
                refused(what, &answer, status, INVALID, code);
            }
        }
    }
    assert_eq!(world.vendor.received().len(), 2, "the good ones");
    assert_eq!(world.settled(&key).await["held_rub"], "0.00");
}

/// After the refusal, the gateway continues to open the client's flow-control windows, and does not reset the stream.
/// So the client can send its whole body and then read the refusal.
#[tokio::test]
async fn refusal_reaches_a_client_that_sends_its_large_body_before_reading_on_h2() {
    const PIECE: usize = 16_384;
    let world = World::start().await;
    let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    let begin = [opening(), frame(HEADERS, END_HEADERS, 1, &call("tg-wrong"))].concat();
    socket.write_all(&begin).await.unwrap();
    // These variables are the bytes that the client must still send, and the windows of the stream and of the
    // connection.
    let (mut left, mut stream_window, mut window) = (LARGE, 65_535, 65_535);
    let mut answered = false;
    while left > 0 {
        if PIECE <= stream_window && PIECE <= window {
            let piece = &[b' '; PIECE][..left.min(PIECE)];
            left -= piece.len();
            stream_window -= piece.len();
            window -= piece.len();
            let flags = if left == 0 { END_STREAM } else { 0 };
            socket
                .write_all(&frame(DATA, flags, 1, piece))
                .await
                .unwrap();
            continue;
        }
        let next = async {
            let mut head = [0; 9];
            socket.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            socket.read_exact(&mut payload).await.unwrap();
            (head[3], head[8], payload)
        };
        let (kind, stream, payload) = timeout(PATIENCE, next).await.expect("it is read on");
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap()) as usize;
        match (kind, stream) {
            (SETTINGS, _) if !payload.is_empty() => {
                let is_window = |setting: &&[u8]| setting[1] == INITIAL_WINDOW_SIZE;
                if let Some(setting) = payload.chunks(6).find(is_window) {
                    stream_window += number(&setting[2..]) - 65_535;
                }
                // The client acknowledges the gateway's settings, which apply from then on.
                let taken = frame(SETTINGS, ACK, 0, &[]);
                socket.write_all(&taken).await.unwrap();
            }
            (WINDOW_UPDATE, 0) => window += number(&payload),
            (WINDOW_UPDATE, _) => stream_window += number(&payload),
            (HEADERS, _) => answered = true,
            (RST_STREAM | GOAWAY, _) => panic!("reset with {left} bytes to send: {payload:?}"),
            _ => {}
        }
    }
    assert!(answered);
}

/// A body must arrive at a rate of at least one kilobyte per second. The rate is measured after the first five seconds.
#[tokio::test]
async fn slow_body_is_408_on_http1_and_h2() {
    const DROP_EVERY: Duration = Duration::from_millis(100);
    let (world, key) = World::start_with_key().await;
    let h2 = async {
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .build_http();
        let drops = stream::unfold((), |()| async {
            sleep(DROP_EVERY).await;
            Some((Ok(Frame::data(Bytes::from_static(b" "))), ()))
        });
        let body: AnyBody = StreamBody::new(drops).boxed_unsync();
        let req = Op::Chat.request(&world, &key, &json!({})).map(|_| body);
        let answer = whole(client.request(req).await.unwrap()).await;
        refused("it drips", &answer, 408, INVALID, "request_timeout");
    };
    let http1 = async {
        let lines = "transfer-encoding: chunked\r\n";
        let req = head(Op::Messages, Some(&key.secret), lines);
        let socket = TcpStream::connect(world.gateway.address()).await.unwrap();
        let (mut reader, mut writer) = socket.into_split();
        writer.write_all(req.as_bytes()).await.unwrap();
        let drip = async {
            while writer.write_all(b"1\r\n \r\n").await.is_ok() {
                sleep(DROP_EVERY).await;
            }
            std::future::pending::<()>().await;
        };
        let mut answer = [0; 12];
        tokio::select! {
            read = reader.read_exact(&mut answer) => assert_eq!(read.unwrap(), 12),
            () = drip => unreachable!("it drips for ever"),
        }
        assert_eq!(statuses(&answer), [408]);
    };
    let begun = Instant::now();
    let both = timeout(PATIENCE, async { tokio::join!(h2, http1) });
    both.await.expect("both are answered");
    // A body may take a minute in total, so these refusals were caused by the minimum rate.
    let time = begun.elapsed();
    assert!((4..20).contains(&time.as_secs()), "{time:?}");
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn connection_serves_a_hundred_h2_streams_at_a_time_and_refuses_the_next() {
    let (world, key) = World::start_with_key().await;
    let go = Arc::new(Notify::new());
    let hold = Arc::clone(&go);
    let held = answer(Op::Chat, "x", &usage(Op::Chat, 9, 1)).to_string();
    world.vendor.script(move |_| {
        let steps = vec![
            Step::Hold(Arc::clone(&hold)),
            Step::Send(held.clone().into()),
        ];
        Reply::raw(200, "application/json", steps)
    });
    let body = chat_body("x").to_string();
    let mut bytes = opening();
    for n in 0..101 {
        bytes.extend(frame(HEADERS, END_HEADERS, 1 + 2 * n, &call(&key.secret)));
        bytes.extend(frame(DATA, END_STREAM, 1 + 2 * n, body.as_bytes()));
    }
    let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    socket.write_all(&bytes).await.unwrap();
    eventually("a hundred calls are at the vendor", async || {
        (world.vendor.open() == 100).then_some(())
    })
    .await;
    let mut read = Vec::new();
    let resets = |read: &[u8]| -> Vec<(u32, u32)> {
        let all = frames(read).into_iter();
        all.filter(|(kind, ..)| *kind == RST_STREAM)
            .map(|(_, stream, code)| (stream, u32::from_be_bytes(code.try_into().unwrap())))
            .collect()
    };
    let returned = timeout(PATIENCE, async {
        while resets(&read).is_empty() {
            assert_ne!(socket.read_buf(&mut read).await.unwrap(), 0, "it is closed");
        }
    });
    returned.await.expect("the next one is refused");
    assert_eq!(resets(&read)[0], (201, REFUSED_STREAM));
    assert_eq!(world.vendor.received().len(), 100);
    // One stream was refused, but the other hundred streams end normally.
    let ended = timeout(PATIENCE, async {
        let answered = |read: &[u8]| {
            let all = frames(read);
            all.iter().filter(|(kind, ..)| *kind == HEADERS).count()
        };
        while answered(&read) < 100 {
            go.notify_waiters();
            let more = timeout(Duration::from_millis(50), socket.read_buf(&mut read)).await;
            assert!(!matches!(more, Ok(Ok(0) | Err(_))), "it is closed");
        }
    });
    ended.await.expect("a hundred answers");
    // The refused stream may be reset more than once. No other stream may be reset.
    assert!(resets(&read).iter().all(|(stream, _)| *stream == 201));
    world.settled(&key).await;

    // A client that opens at most a hundred streams at the same time gets all of its responses.
    world.vendor.script(polite);
    let client: HttpClient = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let mut calls = JoinSet::new();
    for _ in 0..250 {
        let (client, req) = (client.clone(), world.chat_request(&key, &chat_body("x")));
        calls.spawn(async move { whole(client.request(req).await.unwrap()).await.status });
    }
    while let Some(status) = calls.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
}

#[tokio::test]
async fn request_head_that_is_too_large_on_h2_gets_the_usual_error_format() {
    let (world, key) = World::start_with_key().await;
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
    // The connection can still be used after the refusal.
    let req = world.chat_request(&key, &chat_body("x"));
    whole(client.request(req).await.unwrap()).await.expect(200);
}

/// The pseudo-header `:authority` is the host, and an additional `host` header must not differ from it (RFC 9113,
/// section 8.3.1).
#[tokio::test]
async fn host_that_contradicts_the_authority_is_refused_on_h2() {
    let (world, key) = World::start_with_key().await;
    let socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
        .await
        .unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    for (authority, host, refused_field) in [
        ("gateway.example", &[][..], None),
        ("gateway.example", &["GATEWAY.example"], None),
        ("gateway.example:80", &["gateway.example"], None),
        ("[::1]:8080", &["[::1]:8080"], None),
        ("gateway.example", &["other.example"], Some("host")),
        ("gateway.example", &["gateway.example:8080"], Some("host")),
        ("gateway.example", &[""], Some("host")),
        ("gateway.example", &["user@gateway.example"], Some("host")),
        (
            "gateway.example",
            &["gateway.example", "gateway.example"],
            Some("host"),
        ),
        ("user@gateway.example", &[], Some(":authority")),
    ] {
        let what = format!("{authority} {host:?}");
        let mut req = world.chat_request(&key, &chat_body("x"));
        *req.uri_mut() = format!("http://{authority}{}", Op::Chat.path())
            .parse()
            .unwrap();
        for host in host {
            req.headers_mut().append("host", host.parse().unwrap());
        }
        let answer = whole(sender.send_request(req).await.unwrap()).await;
        let Some(field) = refused_field else {
            assert_eq!(answer.status, 200, "{what}: {answer:?}");
            continue;
        };
        let text = refused(&what, &answer, 400, INVALID, "");
        assert!(text.contains(&format!("«{field}»")), "{what}: {text}");
    }
    world.settled(&key).await;
}

/// The gateway sends only complete frames, and sends a GOAWAY frame before it closes a connection.
#[tokio::test]
async fn flooded_h2_connection_ends_with_a_reason() {
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
    let kinds: Vec<_> = frames(&read).iter().map(|frame| frame.0).collect();
    // A reset may have arrived before the response was read.
    assert!(
        kinds
            .last()
            .is_none_or(|kind| [GOAWAY, SETTINGS, WINDOW_UPDATE].contains(kind)),
        "{kinds:?}"
    );
}

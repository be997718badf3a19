//! Tests of random and mutated requests: the gateway must not panic, must not keep a hold, and must not grow in memory.
//!
//! The environment variable `EDGE_REQUESTS` sets the number of requests. `TOLLGATE_SEED` sets the random numbers, and
//! so the requests.

use std::{
    net::SocketAddr,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    edge::{Edge, connect_from},
    prelude::*,
    support::random::{Random, seed},
};

const REQUESTS: u64 = 20_000;
const ROUNDS: u64 = 10;
const CLIENTS: u64 = 48;
/// How long the client waits for a response. Most of these requests are incomplete and get none.
const PATIENCE: Duration = Duration::from_millis(100);
/// How much memory the gateway's process may gain during all requests together, in KiB.
const GROWTH_KIB_MAX: u64 = 96 * 1024;

fn noise(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.bits() as u8).collect()
}

/// Returns valid requests, from which the test makes mutated ones.
fn good(key: &str) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (path, body) in [
        ("/v1/chat/completions", chat_body("hello").to_string()),
        ("/v1/messages", messages_body("hello").to_string()),
        (
            "/v1/messages/count_tokens",
            messages_body("hello").to_string(),
        ),
    ] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: gateway.example\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\nanthropic-version: 2023-06-01\r\n"
        );
        all.push(format!(
            "{head}content-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        all.push(format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}"));
    }
    all.push(
        "GET /v1/tollgate/models HTTP/1.1\r\nhost: gateway.example\r\nconnection: close\r\n\r\n"
            .into(),
    );
    let mut all: Vec<_> = all.into_iter().map(String::into_bytes).collect();
    // The bytes of an HTTP/2 connection: preface, settings, and the head of `GET /`.
    let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frames.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    frames.extend([0, 0, 3, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84]);
    all.push(frames);
    all
}

/// Returns either a mutated valid request or random bytes.
fn spoiled(random: &mut Random, good: &[Vec<u8>]) -> Vec<u8> {
    const WORDS: [&[u8]; 14] = [
        b"\r\n",
        b"\n",
        b"\0",
        b": ",
        b"\r\n\r\n",
        b"transfer-encoding: chunked\r\n",
        b"content-length: 5\r\n",
        b"{",
        b"[[[[[[[[",
        b"\"model\":",
        b"1e999",
        b"\\ud800",
        b"-1",
        b"18446744073709551616",
    ];
    if random.index(20) == 0 {
        let count = random.index(4000);
        return noise(random, count);
    }
    let mut bytes = good[random.index(good.len())].clone();
    for _ in 0..=random.index(4) {
        let at = random.index(bytes.len() + 1);
        let until = (at + random.index(40)).min(bytes.len());
        match random.index(6) {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (random.bits() % 8);
                }
            }
            1 => drop(bytes.drain(at..until)),
            2 => {
                let twice = bytes[at..until].to_vec();
                bytes.splice(at..at, twice);
            }
            3 => {
                let count = random.index(20);
                bytes.splice(at..at, noise(random, count));
            }
            4 => {
                let word = WORDS[random.index(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            _ => bytes.truncate(at),
        }
    }
    bytes
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_and_mutated_requests_cause_no_panic_and_leak_no_hold_or_memory() {
    storm(Edge::start("").await, number("EDGE_REQUESTS", REQUESTS)).await;
}

/// To run this test: `cargo test --release --test gateway edge_random -- --ignored --nocapture`. It takes some minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and an optimised build"]
async fn a_million_random_and_mutated_requests_cause_no_panic_and_leak_no_hold_or_memory() {
    storm(Edge::quiet().await, number("EDGE_REQUESTS", 1_000_000)).await;
}

/// Sends this number of requests in ten rounds. Checks the gateway's process after each round.
async fn storm(mut edge: Edge, requests: u64) {
    let seed = seed(7);
    let key = edge.key().await;
    let good = Arc::new(good(&key));
    let begun = Instant::now();
    let (mut working_set, mut read, mut answered) = (0, 0, 0);
    for round in 1..=ROUNDS {
        let of_round = requests * (round - 1) / ROUNDS..requests * round / ROUNDS;
        let done = of_round.end;
        let count = of_round.end - of_round.start;
        let received = send(&edge, &good, seed, of_round).await;
        assert!(
            received > count / 100,
            "{received} of {count} got a word in answer"
        );
        answered += received;

        edge.nothing_is_held().await;
        assert_eq!(edge.chat(&key, &chat_body("x")).await.status, 200);
        let rss = edge.rss_kib();
        let log = edge.log_behind(&mut read);
        assert!(edge.is_alive() && !log.contains("panicked"), "{log}");
        // The memory after the first round is the working set, with which later rounds are compared.
        if round == 1 {
            working_set = rss;
        }
        let grown = rss.saturating_sub(working_set);
        println!(
            "{done} of {requests}: {answered} answered, {rss} KiB, {grown} more than at first, {:.0?}",
            begun.elapsed()
        );
        assert!(grown < GROWTH_KIB_MAX, "{grown} KiB more");
    }
    let audit = edge
        .admin(http::Method::POST, "/admin/v1/audit", None)
        .await
        .expect(200);
    assert_eq!(audit.json()["breaches"], serde_json::json!([]), "{audit:?}");
    // The vendor never receives an invalid request.
    for received in edge.vendor.received() {
        assert!(received.json().is_object(), "{received:?}");
    }
    let stopped = edge.stop().await;
    assert_eq!(stopped, Some(0), "{}", edge.log_behind(&mut read));
}

/// Sends the requests with these numbers. Returns how many of them got a response.
async fn send(edge: &Edge, good: &Arc<Vec<Vec<u8>>>, seed: u64, numbers: Range<u64>) -> u64 {
    let (next, end) = (Arc::new(AtomicU64::new(numbers.start)), numbers.end);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (good, next, to) = (Arc::clone(good), Arc::clone(&next), edge.address);
        clients.spawn(async move {
            let mut answered = 0;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= end {
                    return answered;
                }
                let mut random = Random::of(seed, &[n]);
                answered += u64::from(is_answered(&mut random, &good, n, to).await);
            }
        });
    }
    let mut answered = 0;
    while let Some(count) = clients.join_next().await {
        answered += count.unwrap();
    }
    answered
}

async fn is_answered(random: &mut Random, good: &[Vec<u8>], n: u64, to: SocketAddr) -> bool {
    let bytes = spoiled(random, good);
    // The requests come from many client addresses, because a single address would run out of ports: a port cannot be
    // used again for a minute.
    let from = usize::try_from(1000 + n % 256).unwrap_or_default();
    let Ok(mut socket) = connect_from(from, to).await else {
        return false;
    };
    let _ = socket.write_all(&bytes).await;
    // A third of the clients close their sending side, so that the gateway sees the end of incomplete requests.
    if random.index(3) == 0 {
        let _ = socket.shutdown().await;
    }
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, socket.read_to_end(&mut answer)).await;
    !answer.is_empty()
}

//! Random and mutated bytes: no panic, no hold that stays, no memory that is kept.
//!
//! `EDGE_REQUESTS` says how many requests there are, `EDGE_SEED` which ones.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::timeout,
};

use crate::{
    edge::{Edge, connect_from},
    harness::{chat_body, messages_body},
};

/// Of an optimised build there are a million in some minutes.
const REQUESTS: u64 = 20_000;
const CLIENTS: u64 = 24;
/// After this nothing more is waited for: most of these requests have no end.
const PATIENCE: Duration = Duration::from_millis(30);
/// What all of them together may leave behind, in KiB.
const GROWTH_KIB_MAX: u64 = 96 * 1024;

/// Numbers that are the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.draw() % end.max(1) as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.draw() as u8).collect()
    }
}

/// Requests as they should be.
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
    // h2: its preface, settings, and the head of `GET /`.
    let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frames.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    frames.extend([0, 0, 3, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84]);
    all.push(frames);
    all
}

/// One of the good ones, spoiled; or nothing but noise.
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
    if random.below(20) == 0 {
        let count = random.below(4000);
        return random.bytes(count);
    }
    let mut bytes = good[random.below(good.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let until = (at + random.below(40)).min(bytes.len());
        match random.below(6) {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (random.draw() % 8);
                }
            }
            1 => drop(bytes.drain(at..until)),
            2 => {
                let twice = bytes[at..until].to_vec();
                bytes.splice(at..at, twice);
            }
            3 => {
                let count = random.below(20);
                let noise = random.bytes(count);
                bytes.splice(at..at, noise);
            }
            4 => {
                let word = WORDS[random.below(WORDS.len())];
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
async fn random_and_mutated_requests_leave_no_hold_no_panic_and_no_memory_behind() {
    let (requests, seed) = (number("EDGE_REQUESTS", REQUESTS), number("EDGE_SEED", 7));
    let mut edge = Edge::start("").await;
    let key = edge.key().await;
    let good = Arc::new(good(&key));
    let run = async |from: u64, to: u64| {
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (good, address) = (Arc::clone(&good), edge.address);
            clients.spawn(async move {
                let mut answered = 0u64;
                for n in (from..to).filter(|n| n % CLIENTS == client) {
                    let mut random = Random(seed.wrapping_mul(0x1_0000_0001).wrapping_add(n));
                    let bytes = spoiled(&mut random, &good);
                    // Many addresses: one alone runs out of ports, which rest for a minute.
                    let from = usize::try_from(1000 + n % 256).unwrap_or_default();
                    let Ok(mut socket) = connect_from(from, address).await else {
                        continue;
                    };
                    let _ = socket.write_all(&bytes).await;
                    let mut answer = Vec::new();
                    let _ = timeout(PATIENCE, socket.read_to_end(&mut answer)).await;
                    answered += u64::from(!answer.is_empty());
                }
                answered
            });
        }
        let mut answered = 0;
        while let Some(count) = clients.join_next().await {
            answered += count.unwrap();
        }
        answered
    };
    // What the first ones make the process keep is its working set.
    let warm = requests / 10;
    run(0, warm).await;
    let before = edge.rss_kib();
    let answered = run(warm, requests).await;
    assert!(
        answered > (requests - warm) / 10,
        "{answered} of {requests} got a word in answer"
    );

    assert!(edge.is_alive(), "{}", edge.log());
    assert_eq!(edge.chat(&key, &chat_body("x")).await.status, 200);
    edge.nothing_is_held().await;
    let audit = edge
        .admin(http::Method::POST, "/admin/v1/audit", None)
        .await;
    assert_eq!(audit.status, 200, "{audit:?}");
    let grown = edge.rss_kib().saturating_sub(before);
    println!("{requests} requests, {answered} answered, {grown} KiB more");
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB more, {before} before");
    let log = edge.log();
    assert!(!log.contains("panicked"), "{log}");
    // A vendor is never sent what is no request.
    for received in edge.vendor.received() {
        assert!(received.json().is_object(), "{received:?}");
    }
    assert_eq!(edge.stop().await, Some(0), "{}", edge.log());
}

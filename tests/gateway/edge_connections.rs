//! Tests of attacks by connections: silent, slow and idle connections, clients that do not read, and the limit of
//! connections per address. `status_table` tests slow request bodies.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, interval, sleep, timeout},
};

use crate::{
    edge::{Edge, connect_from, percentile, read_to_close, statuses},
    prelude::*,
};

/// The maximum time until a connection must have ended. The gateway's timeouts in these tests are one second, and a
/// busy machine adds some time.
const SOON: Duration = Duration::from_secs(15);

#[tokio::test]
async fn silent_and_slow_connections_are_closed() {
    let world = limits("first_byte_seconds = 1\nhead_seconds = 1\nidle_seconds = 1")
        .start()
        .await;
    let to = world.gateway.address();
    // The columns are: the name of the case, the bytes that are sent at once, and whether the client then sends one
    // byte from time to time.
    for (what, reported, drips) in [
        ("silent", "", false),
        ("half an h2 preface", "PRI * HTTP/2.0\r\n", false),
        ("half a method", "PO", false),
        (
            "half a head",
            "POST /v1/messages HTTP/1.1\r\nhost: x\r\n",
            false,
        ),
        ("a head that drips", "GET / HTTP/1.1\r\nx: ", true),
        (
            "an h2 preface alone",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            false,
        ),
        (
            // The bytes are a complete SETTINGS frame, and the beginning of a HEADERS frame.
            "half a head on h2",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0\
             \0\0\u{1}\u{1}\0\0\0\0\u{1}\u{40}",
            false,
        ),
        (
            "idle behind a request",
            "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            false,
        ),
        (
            "half a head behind a request",
            "GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n",
            false,
        ),
    ] {
        let begun = Instant::now();
        let mut socket = TcpStream::connect(to).await.unwrap();
        socket.write_all(reported.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = socket.into_split();
        let drip = async {
            let mut tick = interval(Duration::from_millis(100));
            if drips {
                loop {
                    tick.tick().await;
                    if writer.write_all(b"x").await.is_err() {
                        break;
                    }
                }
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        let closed = tokio::select! {
            closed = timeout(SOON, reader.read_to_end(&mut answer)) => closed,
            () = drip => unreachable!("it drips for ever"),
        };
        assert!(
            closed.is_ok(),
            "{what}: it is open after {:?}",
            begun.elapsed()
        );
        let at_least = Duration::from_millis(900);
        assert!(begun.elapsed() > at_least, "{what}: {:?}", begun.elapsed());
    }
    // A request that arrives within the timeouts is served.
    assert_eq!(world.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn client_that_reads_nothing_is_disconnected_and_its_call_ends() {
    let (world, key) = limits("write_seconds = 1").start_with_key().await;
    world.vendor.script(|_| {
        let event =
            json!({ "choices": [{ "index": 0, "delta": { "content": "x".repeat(60_000) } }] });
        // The body is larger than the socket buffers of client and gateway together, so the gateway must wait for the
        // client to read.
        let steps = vec![Step::Send(format!("data: {event}\n\n").into()); 1000];
        Reply::raw(200, "text/event-stream", steps)
    });
    let body = with(chat_body("x"), json!({ "stream": true })).to_string();
    let lines = format!("content-length: {}\r\n", body.len());
    let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    let req = head(Op::Chat, Some(&key.secret), &lines) + &body;
    socket.write_all(req.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    socket.read_exact(&mut first).await.unwrap();
    assert_eq!(statuses(&first), [200]);
    let begun = Instant::now();
    while world.vendor.open() > 0 {
        assert!(begun.elapsed() < SOON, "the vendor's answer is still open");
        tokio::task::yield_now().await;
    }
    let account = world.settled(&key).await;
    assert_ne!(account["spent_rub"], "0.00", "what was delivered is paid");
    // The client still receives what the gateway sent before it closed the connection, but not the last chunk.
    let rest = read_to_close(&mut socket, SOON).await.expect("it was cut");
    assert!(!rest.ends_with(b"0\r\n\r\n"));
}

#[tokio::test]
async fn limit_of_connections_per_address_does_not_affect_other_addresses() {
    let world = limits("connections_per_address_max = 3").start().await;
    let to = world.gateway.address();
    let served = async |socket: &mut TcpStream| -> bool {
        let mut answer = [0; 12];
        let requested = socket.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        requested.is_ok() && socket.read_exact(&mut answer).await.is_ok()
    };
    let mut sockets = Vec::new();
    for _ in 0..3 {
        let mut socket = connect_from(7, to).await.unwrap();
        assert!(served(&mut socket).await);
        sockets.push(socket);
    }
    assert!(!served(&mut connect_from(7, to).await.unwrap()).await);
    assert!(served(&mut connect_from(8, to).await.unwrap()).await);
    sockets.pop();
    eventually("its place is free", async || {
        let mut socket = connect_from(7, to).await.unwrap();
        served(&mut socket).await.then_some(())
    })
    .await;
}

/// The number of slow connections. Their clients have ten addresses.
const SLOW: usize = 2000;
const SLOW_PER_ADDRESS: usize = 200;
/// The number of calls measured in each round.
const CALLS: usize = 200;
/// Added to the bound on the duration of a call, which is twice the duration without slow clients. The slow clients and
/// other tests use the same machine.
const SLACK: Duration = Duration::from_millis(50);

/// One of three measured rounds must be fast enough: other tests run on the same machine and may slow some rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_slow_connections_do_not_slow_other_clients() {
    let edge =
        Edge::start("connections_max = 5000\nhead_seconds = 60\nfirst_byte_seconds = 60").await;
    let key = edge.key().await;
    let body = chat_body("x");
    let round = async || {
        let mut times = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let begun = Instant::now();
            assert_eq!(edge.chat(&key, &body).await.status, 200);
            times.push(begun.elapsed());
        }
        percentile(&mut times, 99)
    };
    round().await;
    let mut rounds = Vec::new();
    for attempt in 0..3 {
        let alone = round().await;
        let slow = tokio::task::block_in_place(|| SlowClient::start(edge.address, attempt));
        assert!(
            slow.open >= 500,
            "this machine lets a process open {} sockets",
            slow.open
        );
        let among = round().await;
        rounds.push((slow.open, alone, among));
        if among <= alone * 2 + SLACK {
            println!(
                "{} slow connections: p99 {among:?}, alone {alone:?}",
                slow.open
            );
            return;
        }
    }
    panic!("slow connections, p99 alone, p99 among them: {rounds:?}");
}

/// A child process that opens the slow connections. It runs this test binary. On some machines, two thousand sockets
/// would exceed the open files that one process may have.
struct SlowClient {
    child: Child,
    open: usize,
}

impl SlowClient {
    fn start(to: SocketAddr, attempt: usize) -> Self {
        let mut child = Command::new("sh")
            .arg("-c")
            .arg("ulimit -n $(ulimit -Hn) 2>/dev/null; exec \"$0\" \"$@\"")
            .arg(std::env::current_exe().unwrap())
            .args([
                "edge_connections::helper_process_keeps_slow_connections_open",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env("EDGE_SLOW_TO", to.to_string())
            .env("EDGE_SLOW_FROM", (100 + attempt * 10).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let open = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("open ")?.parse().ok());
        Self {
            child,
            open: open.expect("it says how many it has opened"),
        }
    }
}

impl Drop for SlowClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
#[ignore = "a part of the test above, in a process of its own"]
async fn helper_process_keeps_slow_connections_open() {
    let (Ok(to), Ok(from)) = (
        std::env::var("EDGE_SLOW_TO"),
        std::env::var("EDGE_SLOW_FROM"),
    ) else {
        return;
    };
    let (to, from): (SocketAddr, usize) = (to.parse().unwrap(), from.parse().unwrap());
    let mut slow = JoinSet::new();
    for n in 0..SLOW {
        let Ok(mut socket) = connect_from(from + n / SLOW_PER_ADDRESS, to).await else {
            break;
        };
        slow.spawn(async move {
            let head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway.example\r\nx: ";
            for byte in head.iter().chain(std::iter::repeat(&b'x')) {
                if socket.write_all(&[*byte]).await.is_err() {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
        });
    }
    println!("\nopen {}", slow.len());
    // The child process ends when the gateway has closed all of its connections.
    while slow.join_next().await.is_some() {}
}

/// The gateway detects the HTTP version from the first three bytes of a connection. They may arrive one by one.
#[tokio::test]
async fn http_version_is_detected_even_if_the_first_bytes_arrive_one_by_one() {
    let world = limits("").start().await;
    let http1 = "HTTP/1.1 ".as_bytes();
    // The gateway's answer on HTTP/2 begins with a SETTINGS frame.
    let http2 = &b"\x04"[..];
    for (reported, begins, at) in [
        ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", http1, 0),
        (
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
            http1,
            0,
        ),
        ("PROPFIND / HTTP/1.1\r\nhost: x\r\n\r\n", http1, 0),
        (
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0",
            http2,
            3,
        ),
    ] {
        for first in 1..=4 {
            let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
            socket.set_nodelay(true).unwrap();
            for part in [&reported[..first], &reported[first..]] {
                socket.write_all(part.as_bytes()).await.unwrap();
                // Despite the pause, the kernel may deliver both parts together. This must work, too.
                sleep(Duration::from_millis(20)).await;
            }
            let mut answer = vec![0; at + begins.len()];
            let read = timeout(SOON, socket.read_exact(&mut answer)).await;
            read.expect("it is answered").unwrap();
            assert_eq!(&answer[at..], begins, "{first} bytes of {reported:?}");
        }
    }
}

/// Sends a `GET` request on a new connection, from loopback address number `from` if it is given. Returns the statuses
/// received.
async fn probe(to: SocketAddr, path: &str, from: Option<usize>) -> Vec<u16> {
    let socket = match from {
        None => TcpStream::connect(to).await,
        Some(nth) => connect_from(nth, to).await,
    };
    let asks = async {
        let mut socket = socket.unwrap();
        let text = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        socket.write_all(text.as_bytes()).await.unwrap();
        read_to_close(&mut socket, SOON).await.unwrap()
    };
    statuses(&asks.await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_key_do_not_block_the_operators_listener() {
    const CONNECTIONS: usize = 300;
    let edge = Edge::start("").await;
    let to = edge.admin_address;
    // This connection sends a request with an operator's key before the flood, and stays open.
    let known = async |socket: &mut TcpStream| {
        let text = format!(
            "GET /admin/v1/accounts HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n\r\n"
        );
        socket.write_all(text.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let count = socket.read(&mut answer).await.unwrap();
        statuses(&answer[..count])
    };
    let mut operator = TcpStream::connect(to).await.unwrap();
    assert_eq!(known(&mut operator).await, [200]);
    // The flood comes first from the address that health probes and operators use, and then from many addresses.
    for from_many in [false, true] {
        let mut stored = Vec::new();
        for nth in 0..CONNECTIONS {
            let socket = match from_many {
                false => TcpStream::connect(to).await,
                true => connect_from(nth, to).await,
            };
            stored.push(socket.unwrap());
        }
        let mut well = 0;
        for nth in 0..20 {
            let path = ["/livez", "/readyz", "/metrics"][nth % 3];
            let from = (nth % 2 == 1).then_some(1000 + nth);
            well += usize::from(probe(to, path, from).await == [200]);
        }
        println!("{well} of 20 probes answered");
        assert_eq!(well, 20);
        edge.admin(Method::GET, "/admin/v1/accounts", None)
            .await
            .expect(200);
        assert_eq!(
            known(&mut operator).await,
            [200],
            "its connection is still there"
        );
        drop(stored);
    }
}

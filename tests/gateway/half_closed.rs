//! Tests of clients that close their sending side after the request. Such a client gets one complete response. If it
//! disconnects later, the gateway detects this and closes the vendor's stream (README, "Money", 5).

use http::{Response, StatusCode};
use http_body_util::Empty;
use hyper::{
    Request,
    body::{Bytes, Incoming},
    client::conn::http1::handshake,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};
use tollgate::demo::script::polite;

use crate::{edge::statuses, prelude::*};

const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the bytes of a call whose request has no header `connection: close`.
pub fn call(op: Op, key: &Key, stream: bool) -> String {
    let body = with(op.body("Привет"), json!({ "stream": stream })).to_string();
    format!(
        "POST {} HTTP/1.1\r\nhost: gateway.example\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\nanthropic-version: 2026-10-21\r\ncontent-length: {}\r\n\r\n{body}",
        op.path(),
        key.secret,
        body.len()
    )
}

/// Sends these bytes on a new connection, and closes the sending side.
async fn reported(world: &World, bytes: &str) -> TcpStream {
    let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    socket.write_all(bytes.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
    socket
}

/// Reads from the socket until `last` has arrived.
async fn read_until(socket: &mut TcpStream, read: &mut Vec<u8>, last: &str) {
    while !String::from_utf8_lossy(read).contains(last) {
        let count = timeout(PATIENCE, socket.read_buf(read)).await;
        let count = count.unwrap_or_else(|_| panic!("no {last:?} in ten seconds"));
        assert_ne!(count.unwrap(), 0, "no {last:?} up to the end: {read:?}");
    }
}

/// Reads until the connection is closed.
async fn read_to_end(socket: &mut TcpStream, read: &mut Vec<u8>) {
    let ended = timeout(PATIENCE, socket.read_to_end(read)).await;
    ended.expect("the connection ends").unwrap();
}

/// Parses the bytes of a response as an ordinary HTTP client does.
pub async fn understood(bytes: &[u8]) -> Answer {
    let (mut ours, theirs) = duplex(bytes.len().max(1024));
    let (mut sender, connection) = handshake(TokioIo::new(theirs)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let req = Request::get("/").body(Empty::<Bytes>::new()).unwrap();
    let requested = sender.send_request(req);
    let answering = async {
        let _ = ours.read(&mut [0; 1024]).await.unwrap();
        ours.write_all(bytes).await.unwrap();
        ours.shutdown().await.unwrap();
    };
    let (answer, ()) = tokio::join!(requested, answering);
    let res: Response<Incoming> = answer.unwrap();
    whole(res).await
}

fn is_whole(op: Op, stream: bool, answer: &Answer) {
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert!(!answer.failed, "{answer:?}");
    if !stream {
        assert!(answer.json()["usage"].is_object(), "{answer:?}");
        return;
    }
    let last = match op {
        Op::Chat => "data: [DONE]",
        Op::Messages => "message_stop",
    };
    assert!(answer.text().contains(last), "{answer:?}");
}

/// Checks that the client's response belongs to a call that was made once, charged once, and recorded as finished.
async fn is_charged_once(world: &World, key: &Key, answer: &Answer) {
    let number = answer.headers["x-request-id"].to_str().unwrap();
    let receipt = world.receipt(number).await;
    assert_eq!(receipt["end"], "finished", "{receipt}");
    assert_eq!(receipt["estimated"], false, "{receipt}");
    let account = world.settled(key).await;
    assert_eq!(account["spent_rub"], receipt["charged_rub"], "{account}");
    assert_eq!(world.vendor.received().len(), 1);
}

#[tokio::test]
async fn half_closed_client_gets_the_whole_answer_and_is_charged_once() {
    for op in BOTH {
        for stream in [false, true] {
            let world = World::start().await;
            world.vendor.script(polite);
            let key = world.key().await;
            let mut socket = reported(&world, &call(op, &key, stream)).await;
            let mut read = Vec::new();
            read_to_end(&mut socket, &mut read).await;
            let answer = understood(&read).await;
            is_whole(op, stream, &answer);
            is_charged_once(&world, &key, &answer).await;
        }
    }
    let world = World::start().await;
    for path in ["/", "/v1/tollgate/models", "/openapi.yaml", "/nowhere"] {
        let bytes = format!("GET {path} HTTP/1.1\r\nhost: gateway.example\r\n\r\n");
        let mut read = Vec::new();
        read_to_end(&mut reported(&world, &bytes).await, &mut read).await;
        let expected = if path == "/nowhere" { 404 } else { 200 };
        assert_eq!(statuses(&read), [expected], "{path}");
    }
}

/// While the vendor sends nothing, the gateway probes the client with bytes that every HTTP client ignores.
#[tokio::test]
async fn half_closed_client_gets_its_answer_even_if_the_vendor_pauses() {
    for op in BOTH {
        for stream in [false, true] {
            // The vendor waits before the head of its response, or after the second piece of the response.
            for step in [0, 2] {
                let world = World::start().await;
                let (hold, key) = (Arc::new(Notify::new()), world.key().await);
                let held = Arc::clone(&hold);
                world.vendor.script(move |received| {
                    let reply = polite(received);
                    let step = if stream { step } else { 0 };
                    reply.with_step(step, Step::Hold(Arc::clone(&held)))
                });
                let mut socket = reported(&world, &call(op, &key, stream)).await;
                let mut read = Vec::new();
                let requested = if stream && step == 2 {
                    "\n\n\r\n0"
                } else {
                    "HTTP/1.1 100 Continue\r\n\r\n"
                };
                read_until(&mut socket, &mut read, requested).await;
                hold.notify_one();
                read_to_end(&mut socket, &mut read).await;
                let answer = understood(&read).await;
                is_whole(op, stream, &answer);
                is_charged_once(&world, &key, &answer).await;
            }
        }
    }
}

/// An HTTP/1.0 client supports neither interim responses nor chunks, so the gateway sends it no probes.
#[tokio::test]
async fn http_1_0_client_gets_no_interim_answer() {
    for op in BOTH {
        for stream in [false, true] {
            let world = World::start().await;
            world.vendor.script(move |received| {
                polite(received).with_step(0, Step::Wait(Duration::from_millis(500)))
            });
            let key = world.key().await;
            let bytes = call(op, &key, stream).replace("HTTP/1.1", "HTTP/1.0");
            let mut read = Vec::new();
            read_to_end(&mut reported(&world, &bytes).await, &mut read).await;
            let answer = understood(&read).await;
            is_whole(op, stream, &answer);
            assert_eq!(statuses(&read), [200]);
            is_charged_once(&world, &key, &answer).await;
        }
    }
}

/// The client has already closed its sending side, so the disconnect itself sends nothing to the gateway. The next
/// probe detects the disconnect.
#[tokio::test]
async fn half_closed_client_that_disconnects_later_is_detected() {
    for step in [0, 2] {
        let (world, key) = World::start_with_key().await;
        world
            .vendor
            .script(move |received| polite(received).with_step(step, Step::Hold(Arc::default())));
        let mut socket = reported(&world, &call(Op::Chat, &key, true)).await;
        let mut read = Vec::new();
        let requested = ["HTTP/1.1 100 Continue\r\n\r\n", "\n\n\r\n0"][step / 2];
        read_until(&mut socket, &mut read, requested).await;
        let left = Instant::now();
        drop(socket);
        eventually("the vendor's connection is closed", async || {
            (world.vendor.open() == 0).then_some(())
        })
        .await;
        assert!(
            left.elapsed() < Duration::from_secs(2),
            "{:?}",
            left.elapsed()
        );
        let account = world.settled(&key).await;
        assert_ne!(account["spent_rub"], "0.00", "{account}");
    }
}

/// An incomplete request is not served, even if the client still reads.
#[tokio::test]
async fn incomplete_request_of_a_half_closed_client_is_not_served() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let whole = call(op, &key, true);
        for cut in [1, 10, whole.len() / 2] {
            let mut read = Vec::new();
            let bytes = &whole[..whole.len() - cut];
            read_to_end(&mut reported(&world, bytes).await, &mut read).await;
            assert!(!statuses(&read).contains(&200), "{cut}: {read:?}");
        }
    }
    assert!(world.vendor.received().is_empty());
    assert_eq!(world.settled(&key).await["spent_rub"], "0.00");
}

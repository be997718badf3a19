//! Tests of refusals before the body is read. A client that sends its whole body first must still receive the refusal.
//! If the gateway then closes the connection, a header of the response announces this.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use tollgate_layers::auth::SecretKey;

use crate::{
    edge::{read_to_close, statuses},
    prelude::*,
};

const PATIENCE: Duration = Duration::from_secs(20);
/// The size of a body that does not fit into the socket buffers of client and gateway.
pub const LARGE: usize = 10_000_000;
const SAYS_SO: &str = "\r\nconnection: close\r\n";

/// Returns the head of a request that has no header `connection: close`.
fn stored(op: Op, key: Option<&str>, lines: &str) -> String {
    head(op, key, lines).replace("connection: close\r\n", "")
}

/// Sends head and body before it reads. Returns everything that arrives until the gateway closes the connection.
async fn told_at_last(world: &World, head: &str, body: &[u8]) -> String {
    let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
    let write = async {
        socket.write_all(head.as_bytes()).await?;
        socket.write_all(body).await
    };
    let written = timeout(PATIENCE, write).await;
    written.expect("it is taken").expect("nothing is cut");
    let reported = read_to_close(&mut socket, PATIENCE).await;
    String::from_utf8(reported.expect("the connection ends")).unwrap()
}

#[tokio::test]
async fn refusal_reaches_a_client_that_sends_its_large_body_before_reading() {
    let (world, key) = limits("body_bytes_max = 1000").start_with_key().await;
    let (good, wrong) = (key.secret.as_str(), SecretKey::generate());
    let length = format!("content-length: {LARGE}\r\n");
    let large = vec![b' '; LARGE];
    let in_a_chunk = [
        format!("{LARGE:x}\r\n").as_bytes(),
        &large,
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    let te = "transfer-encoding: chunked\r\n";
    for op in BOTH {
        for (what, key, lines, body, status) in [
            ("a wrong key", wrong.expose(), &*length, &large, 401),
            ("a wrong key, chunked", wrong.expose(), te, &in_a_chunk, 401),
            ("declared", good, &length, &large, 413),
            ("counted", good, te, &in_a_chunk, 413),
        ] {
            let reported = told_at_last(&world, &stored(op, Some(key), lines), body).await;
            assert_eq!(
                statuses(reported.as_bytes()),
                [status],
                "{what}: {reported}"
            );
            assert!(reported.contains(SAYS_SO), "{what}: {reported}");
            assert!(reported.ends_with("}}"), "{what}: {reported}");
        }
        let nowhere = stored(op, None, &length).replace(op.path(), "/v1/nowhere");
        let reported = told_at_last(&world, &nowhere, &large).await;
        assert_eq!(statuses(reported.as_bytes()), [404], "{reported}");
    }
    assert!(world.vendor.received().is_empty());
}

/// Python's `http.client` sends the head, then the body, and reads the response only after that.
#[tokio::test]
async fn connection_serves_the_next_request_after_a_short_unread_body() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let body = op.body("x").to_string();
        let length = format!("content-length: {}\r\n", body.len());
        let packed = format!("content-encoding: br\r\n{length}");
        let good = head(op, Some(&key.secret), &length) + &body;
        for (what, head, status) in [
            ("no key", stored(op, None, &length), 401),
            ("packed", stored(op, Some(&key.secret), &packed), 415),
            ("no JSON", stored(op, Some(&key.secret), &length), 400),
        ] {
            let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
            socket.write_all(head.as_bytes()).await.unwrap();
            let body = if status == 400 {
                body.replace('{', "[")
            } else {
                // The client receives the refusal before it sends any byte of the body.
                let mut begin = [0; 12];
                socket.read_exact(&mut begin).await.unwrap();
                assert_eq!(statuses(&begin), [status], "{what}");
                body.clone()
            };
            socket.write_all(body.as_bytes()).await.unwrap();
            socket.write_all(good.as_bytes()).await.unwrap();
            let reported = read_to_close(&mut socket, PATIENCE).await.unwrap();
            let reported = String::from_utf8(reported).unwrap();
            let (refusal, served) = reported.split_once("HTTP/1.1 200").expect(what);
            assert!(!refusal.contains(SAYS_SO), "{what}: {refusal}");
            assert!(served.contains(SAYS_SO), "{what}: {served}");
        }
    }
}

#[tokio::test]
async fn answer_sent_before_the_body_was_read_announces_that_the_connection_closes() {
    let (world, key) = limits("body_bytes_max = 1000\nbody_seconds = 1")
        .start_with_key()
        .await;
    let te = "transfer-encoding: chunked\r\n";
    for op in BOTH {
        for (what, lines, body, status) in [
            ("declared", "content-length: 1000000\r\n", "", 413),
            ("counted", te, &*format!("3e9\r\n{}", " ".repeat(1001)), 413),
            ("slow", "content-length: 100\r\n", "{", 408),
            ("slow, chunked", te, "1\r\n{\r\n", 408),
            ("broken", te, "1\r\n{\r\nzz\r\n", 400),
            (
                "waits to be asked for it",
                "content-type: text/plain\r\nexpect: 100-continue\r\ncontent-length: 5\r\n",
                "",
                415,
            ),
        ] {
            let begun = Instant::now();
            let head = stored(op, Some(&key.secret), lines);
            let head = match lines.contains("content-type") {
                true => head.replace("content-type: application/json\r\n", ""),
                false => head,
            };
            let reported = told_at_last(&world, &head, body.as_bytes()).await;
            assert_eq!(
                statuses(reported.as_bytes()),
                [status],
                "{what}: {reported}"
            );
            assert!(reported.contains(SAYS_SO), "{what}: {reported}");
            // The client has sent its whole body, so the gateway closes the connection without delay.
            let time = begun.elapsed();
            assert!(time < Duration::from_secs(5), "{what}: {time:?}");
        }
    }
    assert_eq!(world.settled(&key).await["held_rub"], "0.00");
}

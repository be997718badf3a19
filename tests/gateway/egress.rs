//! Tests of connections to vendors (docs/decisions.md, "Vendors"): proxies, trusted certificate authorities, protocols,
//! connections that end, and timeouts.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures_util::future::join_all;
use http::{Response, Version};
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    prelude::*,
    proxies::{
        Authority, KINDS, Kind, PASSWORD, Proxy, Taken, USERINFO, VENDOR_NAME, Vendor, secret_file,
    },
    support::redis::free_port,
};
use tollgate_layers::redis_conn::{RedisConn, RedisSettings};

/// Configures this URL for both vendors, and adds these lines for each. The address of the scripted vendor becomes the
/// beginning of the path.
fn vendors_by(url: &str, lines: &str) -> Setup {
    ["chat", "messages"]
        .into_iter()
        .fold(Setup::default(), |setup, format| {
            setup.edit(
                &format!("format = \"{format}\"\nurl = \"http://"),
                &format!("format = \"{format}\"\n{lines}\nurl = \"{url}/"),
            )
        })
}

/// Returns the normal response of a vendor to a chat or a messages call.
fn polite(taken: &Taken) -> Response<Full<Bytes>> {
    let op = if taken.path.ends_with("/chat/completions") {
        Op::Chat
    } else {
        Op::Messages
    };
    let requested: Value = serde_json::from_slice(&taken.body).unwrap();
    let (kind, body) = if requested["stream"] == true {
        ("text/event-stream", events(op, &["да"], 9, 1).concat())
    } else {
        let reported = answer(op, "да", &usage(op, 9, 1));
        ("application/json", reported.to_string())
    };
    Response::builder()
        .header("content-type", kind)
        .body(Full::from(body))
        .unwrap()
}

/// Makes a chat call and a messages call, plain and streamed, and checks that each is answered.
async fn all_answered(what: &str, world: &World, key: &Key) {
    for op in BOTH {
        for stream in [false, true] {
            let body = with(op.body("x"), json!({ "stream": stream }));
            let answer = op.call(world, key, &body).await;
            assert_eq!(answer.status, 200, "{what} {op:?} {stream}: {answer:?}");
            assert!(!answer.failed, "{what} {op:?} {stream}");
        }
    }
}

/// Makes a chat call and a messages call, and checks that neither is answered or charged. Returns the text of the
/// refusal.
async fn none_answered(what: &str, world: &World, key: &Key) -> String {
    let mut returned = String::new();
    for op in BOTH {
        let answer = op.call(world, key, &op.body("x")).await;
        returned.push_str(&refused(what, &answer, 503, API, "vendor_unavailable"));
        cost_nothing(what, world, key, &answer).await;
    }
    returned
}

#[tokio::test]
async fn vendor_is_reached_through_a_proxy_that_resolves_its_name() {
    for kind in KINDS {
        let proxy = Proxy::start(kind).await;
        let dir = tempfile::tempdir().unwrap();
        let secret = secret_file(dir.path(), &proxy.url(USERINFO));
        let url = format!("http://{VENDOR_NAME}");
        let world = vendors_by(&url, &format!("proxy = \"{secret}\""))
            .start()
            .await;
        proxy.knows(world.vendor.address());
        let key = world.key().await;
        all_answered(&format!("{kind:?}"), &world, &key).await;
        let received = world.vendor.received();
        assert_eq!(received.len(), 4, "{kind:?}");
        for received in received {
            assert_eq!(received.headers["host"], VENDOR_NAME, "{kind:?}");
            assert!(!received.headers.contains_key("proxy-authorization"));
        }
        let targets = proxy.targets();
        assert!(!targets.is_empty() && proxy.refused() == 0, "{kind:?}");
        assert_eq!(targets.len(), proxy.connections(), "{kind:?}");
        for target in targets {
            assert_eq!(target, format!("{VENDOR_NAME}:80"), "{kind:?}");
        }
    }
}

#[tokio::test]
async fn proxy_that_refuses_the_gateways_credentials_makes_the_vendor_unreachable() {
    for kind in KINDS {
        let proxy = Proxy::start(kind).await;
        let dir = tempfile::tempdir().unwrap();
        let secret = secret_file(dir.path(), &proxy.url("operator:hunter%403"));
        let (world, key) = vendors(&format!("proxy = \"{secret}\""))
            .start_with_key()
            .await;
        let returned = none_answered(&format!("{kind:?}"), &world, &key).await;
        assert!(!returned.contains(PASSWORD), "{returned}");
        assert!(proxy.refused() >= 2, "{kind:?}");
        assert!(proxy.targets().is_empty(), "{kind:?}");
        assert!(world.vendor.received().is_empty(), "never past the proxy");
    }
}

#[tokio::test]
async fn unreachable_proxy_is_never_bypassed() {
    for kind in KINDS {
        let proxy = Proxy::start(kind).await;
        let (dir, url) = (tempfile::tempdir().unwrap(), proxy.url(USERINFO));
        drop(proxy);
        let secret = secret_file(dir.path(), &url);
        let (world, key) = vendors(&format!("proxy = \"{secret}\""))
            .start_with_key()
            .await;
        none_answered(&format!("{kind:?}"), &world, &key).await;
        assert!(world.vendor.received().is_empty());
    }
}

#[tokio::test]
async fn tls_connection_reaches_the_vendor_through_the_proxy() {
    let authority = Authority::new();
    for kind in KINDS {
        let vendor = Vendor::secure(&authority, &["http/1.1"], polite).await;
        let proxy = Proxy::start(kind).await;
        proxy.knows(vendor.address());
        let dir = tempfile::tempdir().unwrap();
        let secret = secret_file(dir.path(), &proxy.url(USERINFO));
        let lines = format!("proxy = \"{secret}\"\nca_file = \"{}\"", authority.file());
        let (world, key) = vendors_by(&format!("https://{VENDOR_NAME}"), &lines)
            .start_with_key()
            .await;
        all_answered(&format!("{kind:?}"), &world, &key).await;
        assert_eq!(vendor.taken().len(), 4, "{kind:?}");
        assert!(
            vendor
                .taken()
                .iter()
                .all(|taken| !taken.headers.contains_key("proxy-authorization"))
        );
        for target in proxy.targets() {
            assert_eq!(target, format!("{VENDOR_NAME}:443"), "{kind:?}");
        }
    }
}

#[tokio::test]
async fn vendor_certificate_must_be_signed_by_the_ca_file() {
    let (authority, other) = (Authority::new(), Authority::new());
    let vendor = Vendor::secure(&authority, &[], polite).await;
    let url = format!("https://{}", vendor.address());
    for (ca_file, trusted) in [
        (authority.file(), true),
        (other.file(), false),
        // Without a `ca_file`, the gateway trusts Mozilla's list of certificate authorities.
        (String::new(), false),
    ] {
        let (world, key) = vendors_by(&url, &format!("ca_file = \"{ca_file}\""))
            .start_with_key()
            .await;
        let before = vendor.taken().len();
        if trusted {
            all_answered("trusted", &world, &key).await;
        } else {
            none_answered("not trusted", &world, &key).await;
        }
        let taken = vendor.taken().len() - before;
        assert_eq!(taken, if trusted { 4 } else { 0 }, "{ca_file:?}");
    }
}

/// The setting `ca_file` applies to TLS connections to Redis, too.
#[tokio::test]
async fn redis_certificate_must_be_signed_by_the_ca_file() {
    let (authority, other) = (Authority::new(), Authority::new());
    let file = |name: &str| authority.path(name).display().to_string();
    let port = free_port().to_string();
    let server = RedisServer::start_with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &file("vendor.pem"),
        "--tls-key-file",
        &file("vendor.key"),
        "--tls-ca-cert-file",
        &authority.file(),
        "--tls-auth-clients",
        "no",
    ])
    .await;
    let url = format!("rediss://127.0.0.1:{port}/0");
    for (authorities, trusted) in [
        (None, false),
        (Some(other.file()), false),
        (Some(authority.file()), true),
    ] {
        let settings = RedisSettings {
            authorities: authorities.map(|file| std::fs::read(file).unwrap().into()),
            ..RedisSettings::default()
        };
        let conn = RedisConn::connect(&url, settings).await;
        assert_eq!(conn.is_ok(), trusted, "{conn:?}");
    }
    let section = format!("[ledger]\nca_file = \"{}\"\n", authority.file());
    let (world, key) = Setup::default()
        .edit("[ledger]\n", &section)
        .ledger(&url)
        .start_with_key()
        .await;
    all_answered("over TLS", &world, &key).await;
    drop((world, server));
}

#[tokio::test]
async fn http2_is_used_if_configured_and_offered_by_the_vendor() {
    let authority = Authority::new();
    let ca_file = format!("ca_file = \"{}\"", authority.file());
    for (what, offered, lines, version) in [
        ("not wanted", &["h2", "http/1.1"][..], "", Version::HTTP_11),
        (
            "wanted",
            &["h2", "http/1.1"][..],
            "http2 = true",
            Version::HTTP_2,
        ),
        (
            "not offered",
            &["http/1.1"][..],
            "http2 = true",
            Version::HTTP_11,
        ),
    ] {
        let vendor = Vendor::secure(&authority, offered, polite).await;
        let url = format!("https://{}", vendor.address());
        let (world, key) = vendors_by(&url, &format!("{ca_file}\n{lines}"))
            .start_with_key()
            .await;
        all_answered(what, &world, &key).await;
        let taken = vendor.taken();
        assert!(
            taken.iter().all(|taken| taken.version == version),
            "{what}: {taken:?}"
        );
    }
    // Without TLS, no protocol is negotiated, and the gateway speaks HTTP/2 from the first byte.
    let vendor = Vendor::plain(polite).await;
    let url = format!("http://{}", vendor.address());
    let (world, key) = vendors_by(&url, "http2 = true").start_with_key().await;
    all_answered("without TLS", &world, &key).await;
    let taken = vendor.taken();
    assert!(
        taken.iter().all(|taken| taken.version == Version::HTTP_2),
        "{taken:?}"
    );
}

#[tokio::test]
async fn one_http2_connection_to_a_vendor_carries_many_calls_at_once() {
    let vendor = Vendor::plain(polite).await;
    let url = format!("http://{}", vendor.address());
    let (world, key) = vendors_by(&url, "http2 = true").start_with_key().await;
    let body = Op::Chat.body("x");
    let answers = join_all((0..50).map(|_| world.chat(&key, &body))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!((vendor.taken().len(), vendor.connections()), (50, 1));
}

#[tokio::test]
async fn large_body_is_sent_byte_for_byte_over_http2() {
    let vendor = Vendor::plain(polite).await;
    let url = format!("http://{}", vendor.address());
    let (world, key) = vendors_by(&url, "http2 = true").start_with_key().await;
    for op in BOTH {
        let body = op.body(&"x".repeat(90_000));
        assert_eq!(op.call(&world, &key, &body).await.status, 200);
        let taken = vendor.taken().pop().unwrap();
        let expected = with(body, json!({ "model": op.vendor_model() })).to_string();
        assert!(taken.body == expected, "{op:?}");
    }
}

/// The vendor's end of a connection, which the test reads and writes byte by byte.
struct Raw {
    socket: TcpStream,
}

impl Raw {
    /// Reads the next request to the end of its body. Returns `false` if the gateway has closed the connection.
    async fn request(&mut self) -> bool {
        let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let count = self.socket.read(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                assert!(read.is_empty(), "a request that breaks off");
                return false;
            }
            read.extend_from_slice(&buffer[..count]);
            let head = read.windows(4).position(|four| four == b"\r\n\r\n");
            if head.is_some_and(|at| read.len() > at + 4) && read.ends_with(b"}") {
                return true;
            }
        }
    }

    async fn answer(&mut self) {
        let reported = answer(Op::Chat, "да", &usage(Op::Chat, 9, 1)).to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            reported.len()
        );
        self.socket.write_all(head.as_bytes()).await.unwrap();
        self.socket.write_all(reported.as_bytes()).await.unwrap();
    }
}

/// Starts a gateway with a key, and a listener to which the gateway connects instead of both vendors.
async fn by_hand(lines: &str) -> (World, Key, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (world, key) = vendors_by(&format!("http://{address}"), lines)
        .start_with_key()
        .await;
    (world, key, listener)
}

#[tokio::test]
async fn no_call_fails_if_a_vendor_closes_idle_connections() {
    let (world, key, listener) = by_hand("").await;
    let closed = Arc::new(Notify::new());
    let connections = Arc::new(AtomicUsize::new(0));
    let mut vendor = JoinSet::new();
    let (signal, count) = (Arc::clone(&closed), Arc::clone(&connections));
    vendor.spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let mut raw = Raw { socket };
            assert!(raw.request().await);
            raw.answer().await;
            raw.socket.shutdown().await.unwrap();
            // The vendor has closed its side of the connection. The gateway must close it, too, and send no other
            // request on it.
            assert!(!raw.request().await);
            signal.notify_one();
        }
    });
    for call in 1..=10 {
        let answer = world.chat(&key, &Op::Chat.body("x")).await;
        assert_eq!(answer.status, 200, "call {call}: {answer:?}");
        closed.notified().await;
    }
    assert_eq!(connections.load(Ordering::SeqCst), 10);
}

/// An HTTP/1.1 response does not name the request that it belongs to. If bytes arrive late on an idle connection, the
/// next call on this connection would take them as its response.
#[tokio::test]
async fn connection_with_an_unexpected_second_answer_is_not_reused() {
    let (world, key, listener) = by_hand("").await;
    let (answered, sent) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let connections = Arc::new(AtomicUsize::new(0));
    let mut vendor = JoinSet::new();
    let (returned, tell, count) = (
        Arc::clone(&answered),
        Arc::clone(&sent),
        Arc::clone(&connections),
    );
    vendor.spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let mut raw = Raw { socket };
            assert!(raw.request().await);
            raw.answer().await;
            returned.notified().await;
            raw.answer().await;
            tell.notify_one();
            assert!(!raw.request().await, "a further call");
        }
    });
    for call in 1..=5 {
        let answer = world.chat(&key, &Op::Chat.body("x")).await;
        assert_eq!(answer.status, 200, "call {call}: {answer:?}");
        answered.notify_one();
        sent.notified().await;
    }
    assert_eq!(connections.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn request_is_sent_again_if_a_reused_connection_closes_before_any_response_byte() {
    let (world, key, listener) = by_hand("").await;
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let mut vendor = JoinSet::new();
    vendor.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let (mut raw, count) = (Raw { socket }, Arc::clone(&count));
            connections.spawn(async move {
                // On each connection, the vendor answers the first request, and closes the connection during the
                // second.
                assert!(raw.request().await);
                count.fetch_add(1, Ordering::SeqCst);
                raw.answer().await;
                if raw.request().await {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    // Usually a second call begins on the connection of the first call, fails there, and is sent again on a new
    // connection.
    const CALLS: usize = 10;
    for call in 1..=CALLS {
        world.chat(&key, &Op::Chat.body("x")).await.expect(200);
        let taken = taken.load(Ordering::SeqCst);
        assert!(
            (call..2 * call).contains(&taken),
            "{taken} for {call} calls"
        );
    }
    let taken = taken.load(Ordering::SeqCst);
    assert!(taken > CALLS, "no connection was used twice");
}

#[tokio::test]
async fn request_on_a_new_connection_is_not_sent_twice() {
    let (world, key, listener) = by_hand("").await;
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let mut vendor = JoinSet::new();
    vendor.spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            if (Raw { socket }).request().await {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let answer = world.chat(&key, &Op::Chat.body("x")).await;
    refused("taken", &answer, 503, API, "vendor_unavailable");
    assert_eq!(taken.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn idle_connection_to_a_vendor_is_closed_after_its_idle_time() {
    let (world, key, listener) = by_hand("idle_connection_seconds = 1").await;
    let body = Op::Chat.body("x");
    let vendor = async {
        let (socket, _) = listener.accept().await.unwrap();
        let mut raw = Raw { socket };
        assert!(raw.request().await);
        raw.answer().await;
        tokio::time::timeout(Duration::from_secs(10), raw.request()).await
    };
    let (answer, another) = tokio::join!(world.chat(&key, &body), vendor);
    assert_eq!(answer.status, 200);
    assert!(!another.expect("the gateway closes it"));
}

#[tokio::test]
async fn connect_timeout_includes_the_proxy() {
    // The listener at this address never accepts connections. They wait in its queue, so the proxy never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for kind in KINDS {
        let scheme = if kind == Kind::Connect {
            "http"
        } else {
            "socks5"
        };
        let proxy = format!("{scheme}://{}", silent.local_addr().unwrap());
        let (world, key) = vendors(&format!("connect_seconds = 1\nproxy = \"{proxy}\""))
            .start_with_key()
            .await;
        let answer = world.chat(&key, &Op::Chat.body("x")).await;
        refused("silent proxy", &answer, 504, API, "vendor_timeout");
        cost_nothing("silent proxy", &world, &key, &answer).await;
    }
}

#[tokio::test]
async fn plain_answer_may_take_longer_than_the_first_byte_timeout_of_streams() {
    let late = Duration::from_secs(2);
    let (world, key, listener) = by_hand("first_byte_seconds = 1").await;
    let body = Op::Chat.body("x");
    let vendor = async {
        let (socket, _) = listener.accept().await.unwrap();
        let mut raw = Raw { socket };
        assert!(raw.request().await);
        tokio::time::sleep(late).await;
        raw.answer().await;
    };
    let (answer, ()) = tokio::join!(world.chat(&key, &body), vendor);
    assert_eq!(answer.status, 200, "{answer:?}");

    let (world, key) = vendors("first_byte_seconds = 1").start_with_key().await;
    for op in BOTH {
        world.vendor_sends(Reply::stream(events(op, &["да"], 9, 1)).with_step(0, Step::Wait(late)));
        let body = with(op.body("x"), json!({ "stream": true }));
        let answer = op.call(&world, &key, &body).await;
        refused("late stream", &answer, 504, API, "vendor_timeout");
        cost_nothing("late stream", &world, &key, &answer).await;
    }
}

#[tokio::test]
async fn plain_answer_has_its_own_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let (world, key) = vendors_by(&url, "plain_seconds = 1").start_with_key().await;
    let answer = world.chat(&key, &Op::Chat.body("x")).await;
    refused("silent", &answer, 504, API, "vendor_timeout");
    cost_nothing("silent", &world, &key, &answer).await;
}

/// Returns a stream whose head is sent at once. Its events are sent when `go` is notified.
fn thinking(op: Op, go: &Arc<Notify>) -> Reply {
    Reply::stream(events(op, &["да"], 9, 1)).with_step(0, Step::Hold(Arc::clone(go)))
}

#[tokio::test]
async fn head_and_keep_alive_are_sent_before_a_slow_vendors_first_event() {
    let (world, key) = vendors("head_seconds = 1").start_with_key().await;
    for op in BOTH {
        let go = Arc::new(Notify::new());
        world.vendor_sends(thinking(op, &go));
        let body = with(op.body("x"), json!({ "stream": true }));
        let res = world.send(op.request(&world, &key, &body)).await;
        assert_eq!(res.status(), 200, "{op:?}: before any event");
        go.notify_one();
        let answer = whole(res).await;
        let sign = match op {
            Op::Chat => ": keep-alive\n\n",
            Op::Messages => "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        };
        assert!(answer.text().starts_with(sign), "{}", answer.text());
        assert!(answer.text().contains("да") && !answer.failed);
    }
    assert_eq!(world.settled(&key).await["held_rub"], "0.00");
}

#[tokio::test]
async fn call_gets_504_if_its_vendor_sends_a_head_but_no_event() {
    let (world, key) = vendors("first_byte_seconds = 1").start_with_key().await;
    for op in BOTH {
        world.vendor_sends(thinking(op, &Arc::new(Notify::new())));
        let body = with(op.body("x"), json!({ "stream": true }));
        let answer = op.call(&world, &key, &body).await;
        refused("head alone", &answer, 504, API, "vendor_timeout");
    }
}

#[tokio::test]
async fn error_status_is_returned_even_if_keep_alive_comments_precede_the_error() {
    let (world, key) = World::start_with_key().await;
    for (op, signs, error) in [
        (
            Op::Chat,
            ": OPENROUTER PROCESSING\n\n",
            "data: {\"error\":{\"message\":\"overloaded\",\"code\":503}}\n\n",
        ),
        (
            Op::Messages,
            "event: ping\ndata: {\"type\": \"ping\"}\n\n",
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n",
        ),
    ] {
        world.vendor_sends(
            Reply::stream([signs.to_owned(), signs.to_owned(), error.to_owned()])
                .with_step(1, Step::Wait(Duration::from_millis(50))),
        );
        let body = with(op.body("x"), json!({ "stream": true }));
        let answer = op.call(&world, &key, &body).await;
        refused("error", &answer, 503, API, "vendor_unavailable");
        cost_nothing("error", &world, &key, &answer).await;
    }
}

#[tokio::test]
async fn redirect_of_a_vendor_is_not_followed() {
    let elsewhere = Vendor::plain(polite).await;
    let (world, key) = World::start_with_key().await;
    let to = format!("http://{}/v1/chat/completions", elsewhere.address());
    for status in [301, 302, 303, 307, 308] {
        world.vendor_sends(Reply::json(status, &json!({})).header("location", to.clone()));
        let answer = world.chat(&key, &Op::Chat.body("x")).await;
        assert!(answer.status.is_server_error(), "{status}: {answer:?}");
        assert!(!answer.headers.contains_key("location"), "{status}");
    }
    assert_eq!(elsewhere.connections(), 0);
    eventually("nothing is held", async || {
        (world.account(&key).await["held_rub"] == "0.00").then_some(())
    })
    .await;
}

//! Tests of HTTP/1 framing attacks: requests as bytes, and the response that each must get. The vendor receives only
//! complete requests that the gateway itself has written.

use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    edge::{statuses, talk},
    prelude::*,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// The allowed outcomes of a connection. Each is the list of statuses that the connection returns; an empty list means
/// that the connection is closed without a response.
type Allowed = &'static [&'static [u16]];
const NOT_SO: Allowed = &[&[405]];
const NOWHERE: Allowed = &[&[404]];
const BAD: Allowed = &[&[400]];
const OK: Allowed = &[&[200]];
const NOWHERE_OR_NOT_SO: Allowed = &[&[404], &[405]];
const NOWHERE_OR_BAD: Allowed = &[&[404], &[400]];
const BAD_ONCE_OR_TWICE: Allowed = &[&[400], &[400, 400]];
const BAD_OR_SHUT: Allowed = &[&[400], &[]];
const OK_OR_BAD: Allowed = &[&[200], &[400]];
const OK_THEN_BAD: Allowed = &[&[200, 400]];
const OK_TWICE: Allowed = &[&[200, 200]];
const OK_THEN_BAD_OR_SHUT: Allowed = &[&[200, 400], &[200]];

/// Returns a Chat Completions request with this request line, these additional header lines, and these bytes after the
/// head.
fn chat(key: &Key, first: &str, lines: &str, body: &str) -> String {
    let secret = &key.secret;
    format!(
        "{first}\r\nhost: gateway.example\r\nauthorization: Bearer {secret}\r\n\
         content-type: application/json\r\n{lines}\r\n{body}"
    )
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

#[tokio::test]
async fn each_kind_of_request_framing_is_answered_and_vendors_get_only_complete_requests() {
    const POST: &str = "POST /v1/chat/completions HTTP/1.1";
    let (world, key) = World::start_with_key().await;
    let body = chat_body("x").to_string();
    let length = format!("content-length: {}\r\n", body.len());
    let close = format!("connection: close\r\n{length}");
    let te = "transfer-encoding: chunked\r\n";
    let te_close = format!("connection: close\r\n{te}");
    let req = |first: &str, lines: &str, body: &str| chat(&key, first, lines, body);
    let post = |lines: &str, body: &str| chat(&key, POST, lines, body);
    let good = post(&close, &body);
    let stored = post(&length, &body);
    let in_chunks = chunked(&body);
    let smuggled = "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n";
    let cl_te = format!("content-length: 5\r\n{te}");
    let te_cl = format!("{te}content-length: 4\r\n");
    let (shut, version_1_0) = ("connection: close\r\n", POST.replace("1.1", "1.0"));
    let websocket = "connection: close, upgrade\r\nupgrade: websocket\r\n";
    let h2c = format!("connection: close, upgrade\r\nupgrade: h2c\r\n{length}");
    let coded = post("transfer-encoding: gzip, chunked\r\n", &in_chunks);
    let two_lengths = post(&format!("{length}{te}"), &in_chunks);

    // The columns are: the name of the case, the bytes sent, the allowed outcomes, and the number of calls that the
    // vendor may receive.
    let mut table: Vec<(&str, String, Allowed, usize)> = vec![
        ("as it should be", good.clone(), OK, 1),
        ("chunked", post(&te_close, &in_chunks), OK, 1),
        (
            "one length twice",
            post(&format!("{length}{close}"), &body),
            OK_OR_BAD,
            1,
        ),
        (
            "chunked in large letters",
            post(&te_close.replace("chunked", "\tCHUNKED "), &in_chunks),
            OK,
            1,
        ),
        (
            "line feeds alone in the head",
            good.replace("\r\n", "\n"),
            OK_OR_BAD,
            1,
        ),
        // Each of the following requests states two lengths.
        ("length, then chunked", two_lengths.clone(), BAD, 0),
        (
            "chunked, then length",
            post(&format!("{te}{length}"), &in_chunks),
            BAD,
            0,
        ),
        (
            "CL.TE",
            post(&cl_te, &format!("0\r\n\r\n{smuggled}")),
            BAD,
            0,
        ),
        (
            "TE.CL",
            post(&te_cl, &format!("5\r\nhello\r\n0\r\n\r\n{smuggled}")),
            BAD,
            0,
        ),
        (
            "two different lengths",
            post(&format!("{length}content-length: 1\r\n"), &body),
            BAD,
            0,
        ),
        // The following requests have unusual codings, HTTP versions and methods.
        (
            "identity",
            post("transfer-encoding: identity\r\n", &body),
            BAD,
            0,
        ),
        (
            "two lines of codings",
            post(&format!("transfer-encoding: gzip\r\n{te}"), &in_chunks),
            BAD,
            0,
        ),
        (
            "two lines of chunked",
            post(&format!("{te}{te}"), &in_chunks),
            BAD,
            0,
        ),
        ("HTTP/1.0", req(&version_1_0, &length, &body), OK, 1),
        (
            "HTTP/1.0, chunked",
            req(&version_1_0, te, &in_chunks),
            BAD,
            0,
        ),
        ("HTTP/0.9", "GET /\r\n\r\n".to_owned(), BAD_OR_SHUT, 0),
        (
            "TRACE",
            req(&POST.replace("POST", "TRACE"), shut, ""),
            NOT_SO,
            0,
        ),
        (
            "CONNECT",
            req("CONNECT evil.example:443 HTTP/1.1", shut, ""),
            NOWHERE_OR_NOT_SO,
            0,
        ),
        (
            "OPTIONS *",
            req("OPTIONS * HTTP/1.1", shut, ""),
            NOWHERE_OR_NOT_SO,
            0,
        ),
        (
            "upgrade",
            req(&POST.replace("POST", "GET"), websocket, ""),
            NOT_SO,
            0,
        ),
        ("upgrade to h2c", post(&h2c, &body), OK, 1),
        // In the following cases, two requests are sent on one connection.
        ("pipelined", format!("{stored}{good}"), OK_TWICE, 2),
        (
            "pipelined, the second in two codings",
            format!("{stored}{coded}"),
            OK_THEN_BAD,
            1,
        ),
        (
            "pipelined, the second with two lengths",
            format!("{stored}{two_lengths}"),
            OK_THEN_BAD,
            1,
        ),
        (
            "pipelined behind chunks",
            post(te, &in_chunks) + &good,
            OK_TWICE,
            2,
        ),
        (
            "rubbish behind a request",
            format!("{stored}rubbish\r\n\r\n"),
            OK_THEN_BAD_OR_SHUT,
            1,
        ),
    ];
    for (what, length) in [
        ("length with a sign", "+5"),
        ("length below zero", "-1"),
        ("list of lengths", "5, 5"),
        ("length in hex", "0x5"),
        ("no length there", ""),
        ("length beyond all numbers", "99999999999999999999999"),
    ] {
        let bytes = post(&format!("content-length: {length}\r\n"), "hello");
        table.push((what, bytes, BAD, 0));
    }
    for (what, coding) in [
        ("chunked is not last", "chunked, gzip"),
        ("looks like chunked", "xchunked"),
        ("a coding before chunked", "gzip, chunked"),
        ("a coding that is none before chunked", "foo, chunked"),
        ("chunked twice", "chunked, chunked"),
        ("nothing before chunked", ",chunked"),
    ] {
        let bytes = post(&format!("transfer-encoding: {coding}\r\n"), &in_chunks);
        table.push((what, bytes, BAD, 0));
    }
    for (what, line) in [
        ("a carriage return alone", "x: a\rb"),
        ("a folded line", "x: a\r\n b"),
        ("a blank before the colon", "x : a"),
        ("a blank in a name", "x y: a"),
        ("no name", ": a"),
        ("a zero byte", "x: a\0b"),
        ("length behind a blank", " content-length: 5"),
    ] {
        table.push((what, post(&format!("{line}\r\n{close}"), &body), BAD, 0));
    }
    // Each of the following requests has a faulty chunk. The response may be lost, because the gateway closes the
    // connection.
    let no_number = in_chunks.replacen(&format!("{:x}", body.len()), "zz", 1);
    for (what, chunks) in [
        ("size is no number", &*no_number),
        (
            "size beyond all numbers",
            "fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        ),
        ("size below zero", "-1\r\n{}\r\n0\r\n\r\n"),
        (
            "line feeds alone in chunks",
            &in_chunks.replace("\r\n", "\n"),
        ),
        (
            "chunk longer than it says",
            &format!("1\r\n{body}\r\n0\r\n\r\n"),
        ),
    ] {
        table.push((what, post(te, chunks), BAD_OR_SHUT, 0));
    }
    for (what, first, allowed, calls) in [
        // The target is an absolute URL. The gateway ignores the host in it.
        (
            "absolute address",
            "POST http://evil.example/v1/chat/completions HTTP/1.1",
            OK,
            1,
        ),
        (
            "another path behind a host",
            "POST http://gateway.example/v1/nothing HTTP/1.1",
            NOWHERE,
            0,
        ),
        (
            "two slashes",
            "POST //v1/chat/completions HTTP/1.1",
            NOWHERE_OR_BAD,
            0,
        ),
        (
            "a way up",
            "POST /v1/messages/../chat/completions HTTP/1.1",
            NOWHERE,
            0,
        ),
        (
            "a slash in disguise",
            "POST /v1%2fchat/completions HTTP/1.1",
            NOWHERE,
            0,
        ),
        (
            "a blank in the address",
            "POST /v1/chat /completions HTTP/1.1",
            BAD,
            0,
        ),
        (
            "HTTP/7.3",
            "POST /v1/chat/completions HTTP/7.3",
            BAD_OR_SHUT,
            0,
        ),
        (
            "method in small letters",
            "post /v1/chat/completions HTTP/1.1",
            NOT_SO,
            0,
        ),
    ] {
        table.push((what, req(first, &close, &body), allowed, calls));
    }
    // The following bytes belong to other protocols than HTTP.
    for (what, bytes) in [
        (
            "an h2 preface that goes wrong",
            "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        ),
        ("PRI with a head", "PRI * HTTP/2.0\r\nhost: x\r\n\r\n"),
        ("TLS", "\u{16}\u{3}\u{1}\0\u{5}hello\r\n\r\n"),
    ] {
        table.push((what, bytes.to_owned(), BAD_OR_SHUT, 0));
    }
    for (what, bytes, allowed, calls) in table {
        let before = world.vendor.received().len();
        let answer = talk(world.gateway.address(), bytes.as_bytes(), PATIENCE).await;
        let answer = answer.unwrap_or_else(|| panic!("{what}: the connection is kept open"));
        let found = statuses(&answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(allowed.contains(&&found[..]), "{what}: {found:?} {text}");
        let received = world.vendor.received().split_off(before);
        let served = found.iter().filter(|status| **status == 200).count();
        assert_eq!(received.len(), served, "{what}: a call for each answer");
        assert!(received.len() <= calls, "{what}: {received:?}");
        for received in received {
            assert_eq!(received.path, "/v1/chat/completions", "{what}");
            assert_eq!(received.json()["model"], "vendor-chat-1", "{what}");
            let headers = &received.headers;
            assert!(!headers.contains_key("transfer-encoding"), "{what}");
            let length = headers["content-length"].to_str().unwrap();
            assert_eq!(length, received.body.len().to_string(), "{what}");
        }
    }
    world.settled(&key).await;
}

#[tokio::test]
async fn request_with_two_lengths_gets_the_usual_error_format_and_the_connection_ends() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let body = op.body("x").to_string();
        let lines = format!(
            "content-length: {}\r\ntransfer-encoding: chunked\r\n",
            body.len()
        );
        let head = head(op, Some(&key.secret), &lines).replace("connection: close\r\n", "");
        let answer = raw(&world, &format!("{head}{}", chunked(&body))).await;
        let text = refused(op.path(), &answer, 400, INVALID, "");
        assert!(text.contains("content-length"), "{text}");
    }
    assert!(world.vendor.received().is_empty());
    assert_eq!(world.settled(&key).await["spent_rub"], "0.00");
}

#[tokio::test]
async fn refusal_of_an_unsupported_transfer_coding_names_the_header_and_closes_the_connection() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let te = "transfer-encoding: gzip, chunked\r\n";
        let head = head(op, Some(&key.secret), te).replace("connection: close\r\n", "");
        let body = op.body("x").to_string();
        let answer = raw(&world, &format!("{head}{}", chunked(&body))).await;
        let text = refused(op.path(), &answer, 400, INVALID, "");
        assert!(text.contains("«transfer-encoding»"), "{text}");
        assert_eq!(answer.headers["connection"], "close");
    }
    assert!(world.vendor.received().is_empty());
    assert_eq!(world.settled(&key).await["spent_rub"], "0.00");
}

/// The columns are: the name of the case, the `host` lines of a request, and whether the gateway must accept them.
const HOSTS: &[(&str, &str, bool)] = &[
    ("none", "", false),
    ("two equal", "host: a\r\nhost: a\r\n", false),
    ("two different", "host: a\r\nHost: b\r\n", false),
    ("a blank within", "host: a b\r\n", false),
    ("two in a list", "host: a, b\r\n", false),
    ("a user", "host: user@a\r\n", false),
    ("a path", "host: a/b\r\n", false),
    ("a whole address", "host: http://a\r\n", false),
    ("a port of letters", "host: a:b\r\n", false),
    ("a port beyond all", "host: a:65536\r\n", false),
    ("a port alone", "host: :80\r\n", false),
    ("IPv6 without brackets", "host: ::1\r\n", false),
    ("IPv6 that is none", "host: [::g]:80\r\n", false),
    ("other letters", "host: п.example\r\n", false),
    ("empty", "host:\r\n", true),
    ("a name", "host: gateway.example\r\n", true),
    ("a name with a port", "HOST: Gateway.example:8080\r\n", true),
    ("IPv4", "host: 127.0.0.1:80\r\n", true),
    ("IPv6", "host: [2001:db8::1]:8443\r\n", true),
];

/// A proxy in front of the gateway may route by the host. So the gateway must refuse a request whose host can be read
/// in two ways (RFC 9112, section 3.2).
#[tokio::test]
async fn request_without_exactly_one_valid_host_is_400() {
    let (world, key) = World::start_with_key().await;
    let body = chat_body("x").to_string();
    let rest = format!(
        "connection: close\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        key.secret,
        body.len()
    );
    for (what, host, good) in HOSTS {
        for target in ["", "http://gateway.example"] {
            let bytes = format!("POST {target}/v1/chat/completions HTTP/1.1\r\n{host}{rest}");
            let answer = raw(&world, &bytes).await;
            if *good {
                assert_eq!(answer.status, 200, "{what}: {answer:?}");
            } else {
                let text = refused(what, &answer, 400, INVALID, "");
                assert!(text.contains("«host»"), "{what}: {text}");
            }
        }
        // The gateway checks the host before the path. An HTTP/1.0 request need not have a host, but a host that is
        // sent must be valid.
        for (version, good) in [("1.1", *good), ("1.0", *good || host.is_empty())] {
            let bytes = format!("GET /nowhere HTTP/{version}\r\n{host}connection: close\r\n\r\n");
            let answer = raw(&world, &bytes).await;
            let status = if good { 404 } else { 400 };
            assert_eq!(answer.status, status, "{what}, HTTP/{version}");
        }
    }
    let bytes = format!("POST http://user@a/v1/chat/completions HTTP/1.1\r\nhost: a\r\n{rest}");
    let text = refused("a user", &raw(&world, &bytes).await, 400, INVALID, "");
    assert!(text.contains("«host»"), "{text}");
    let good = HOSTS.iter().filter(|(_, _, good)| *good).count();
    assert_eq!(world.vendor.received().len(), 2 * good);
    world.settled(&key).await;
}

/// If the end of a refused request is clear, the connection stays open, and the next request on it is served.
#[tokio::test]
async fn request_without_a_host_does_not_affect_the_next_one() {
    let world = World::start().await;
    let bytes = "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answer = talk(world.gateway.address(), bytes.as_bytes(), PATIENCE).await;
    assert_eq!(statuses(&answer.unwrap()), [400, 200]);
}

#[tokio::test]
async fn operators_listener_requires_a_host() {
    let world = World::start().await;
    let to = world.gateway.admin_address().unwrap();
    for (what, host, good) in HOSTS {
        for path in ["/livez", "/metrics", "/admin/v1/accounts"] {
            let bytes = format!(
                "GET {path} HTTP/1.1\r\n{host}connection: close\r\n\
                 authorization: Bearer {ADMIN_KEY}\r\n\r\n"
            );
            let answer = talk(to, bytes.as_bytes(), PATIENCE).await.unwrap();
            let status = if *good { 200 } else { 400 };
            let text = String::from_utf8_lossy(&answer);
            assert_eq!(statuses(&answer), [status], "{what}: {text}");
            assert!(*good || text.contains("host: "), "{what}: {text}");
        }
    }
}

#[tokio::test]
async fn status_100_is_sent_at_most_once_and_only_for_a_valid_key() {
    let (world, key) = World::start_with_key().await;
    let body = chat_body("x").to_string();
    let lines = format!("expect: 100-continue\r\ncontent-length: {}\r\n", body.len());
    let req = head(Op::Chat, Some(&key.secret), &lines) + &body;
    let answer = talk(world.gateway.address(), req.as_bytes(), PATIENCE).await;
    let found = statuses(&answer.unwrap());
    assert!(found == [100, 200] || found == [200], "{found:?}");
    let stranger = head(Op::Chat, None, &lines);
    let answer = talk(world.gateway.address(), stranger.as_bytes(), PATIENCE).await;
    assert_eq!(statuses(&answer.unwrap()), [401], "no body is asked for");
}

#[tokio::test]
async fn body_shorter_than_its_length_never_reaches_a_vendor() {
    let (world, key) = World::start_with_key().await;
    let body = json!({ "model": "chat", "messages": [] }).to_string();
    for op in BOTH {
        let lines = format!("content-length: {}\r\n", body.len() + 10);
        let bytes = head(op, Some(&key.secret), &lines) + &body;
        let mut socket = TcpStream::connect(world.gateway.address()).await.unwrap();
        socket.write_all(bytes.as_bytes()).await.unwrap();
        drop(socket);
    }
    assert_eq!(world.settled(&key).await["held_rub"], "0.00");
    assert!(world.vendor.received().is_empty());
}

/// The operators' listener checks the framing, too. Otherwise a proxy in front of it could read a request differently,
/// and let a request pass that moves money.
#[tokio::test]
async fn operators_listener_refuses_a_request_with_contradictory_lengths() {
    let (world, key) = World::start_with_key().await;
    let to = world.gateway.admin_address().unwrap();
    let topup = |id: &str| json!({ "id": id, "amount_rub": "1" }).to_string();
    let req = |lines: &str, body: &str| {
        format!(
            "POST /admin/v1/accounts/acme/topups HTTP/1.1\r\nhost: operators.example\r\n\
             authorization: Bearer {ADMIN_KEY}\r\n{lines}\r\n{body}"
        )
    };
    let length = |body: &str| format!("content-length: {}\r\n", body.len());
    let te = "transfer-encoding: chunked\r\n";
    let close = "connection: close\r\n";
    let body = topup("paid");
    let smuggled = req(&(length(&topup("smuggled")) + close), &topup("smuggled"));
    let two_lengths = req(&(length(&body) + te), &chunked(&body));
    let good = req(&length(&topup("good")), &topup("good"));
    let in_chunks = chunked(&body) + &smuggled;
    let paid_twice = body.clone() + &smuggled;
    let cl_te = format!("content-length: 5\r\n{te}");
    let te_cl = format!("{te}content-length: 4\r\n");
    let ends_early = format!("0\r\n\r\n{smuggled}");
    let hello = format!("5\r\nhello\r\n{ends_early}");
    let length_twice = length(&body) + "content-length: 1\r\n";
    let te_close = te.to_owned() + close;
    // The columns are: the name of the case, the bytes sent, and the allowed statuses.
    for (what, bytes, allowed) in [
        ("length, then chunked", two_lengths.clone(), BAD),
        (
            "chunked, then length",
            req(&(te.to_owned() + &length(&body)), &chunked(&body)),
            BAD,
        ),
        ("CL.TE", req(&cl_te, &ends_early), BAD_ONCE_OR_TWICE),
        ("TE.CL", req(&te_cl, &hello), BAD_ONCE_OR_TWICE),
        (
            "two different lengths",
            req(&length_twice, &paid_twice),
            BAD,
        ),
        (
            "list of lengths",
            req("content-length: 5, 5\r\n", &smuggled),
            BAD,
        ),
        (
            "length with a sign",
            req("content-length: +5\r\n", &smuggled),
            BAD,
        ),
        (
            "chunked is not last",
            req("transfer-encoding: chunked, gzip\r\n", &in_chunks),
            BAD,
        ),
        (
            "a coding before chunked",
            req("transfer-encoding: gzip, chunked\r\n", &in_chunks),
            BAD,
        ),
        ("behind a good one", good + &two_lengths, OK_THEN_BAD),
        ("as it should be", req(&(length(&body) + close), &body), OK),
        (
            "chunked, as it should be",
            req(&te_close, &chunked(&topup("chunked"))),
            OK,
        ),
    ] {
        let answer = talk(to, bytes.as_bytes(), PATIENCE).await;
        let answer = answer.unwrap_or_else(|| panic!("{what}: the connection is kept open"));
        let found = statuses(&answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(allowed.contains(&&found[..]), "{what}: {found:?} {text}");
    }
    // The balance is the initial 1000 ₽, plus 1 ₽ from each of the three valid requests.
    assert_eq!(world.account(&key).await["balance_rub"], "1003.00");
}

//! Tests that the gateway refuses request heads that are too large, and that no secret appears in responses, logs and
//! files. `passthrough` tests which headers are forwarded.

use tollgate::demo::vendor::Received;
use tollgate_layers::auth::SecretKey;

use crate::{
    edge::{Edge, statuses, talk},
    prelude::*,
    secrets::{files_in, has_secret},
};

/// Returns the bytes of a `GET` request for this path with these header lines.
fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: gateway.example\r\nconnection: close\r\n{lines}\r\n")
}

#[tokio::test]
async fn request_target_over_2_kb_gets_414_even_if_there_are_other_errors() {
    let world = World::start().await;
    for path in [
        "/v1/tollgate/models",
        "/v1/chat/completions",
        "/nowhere",
        "/",
    ] {
        let long = |bytes: usize| format!("{path}?{}", "x".repeat(bytes - path.len() - 1));
        let answer = raw(&world, &get(&long(2049), "")).await;
        let text = refused(path, &answer, 414, INVALID, "uri_too_long");
        assert!(text.contains("2048"), "{text}");
        let answer = raw(&world, &get(&long(2048), "")).await;
        assert_ne!(answer.status, 414, "{path}");
    }
    // The limit applies to the path and query only. The host of an absolute URL is not counted.
    let host = format!("http://{}.example/", "x".repeat(3000));
    assert_eq!(raw(&world, &get(&host, "")).await.status, 200);
}

#[tokio::test]
async fn request_head_that_is_too_large_gets_431_in_the_usual_error_format() {
    let world = World::start().await;
    // The columns are: the number of header lines, the bytes of each value, and the status. The helper `get` adds two
    // lines.
    for (lines, bytes, status) in [
        (62, 1, 200),
        (63, 1, 431),
        (90, 1, 431),
        (2, 15_000, 200),
        (3, 15_000, 431),
    ] {
        let value = "x".repeat(bytes);
        let lines: String = (0..lines).map(|n| format!("x-{n}: {value}\r\n")).collect();
        let answer = raw(&world, &get("/", &lines)).await;
        assert_eq!(answer.status, status, "{}", lines.len());
        if status == 431 {
            refused("head", &answer, 431, INVALID, "headers_too_large");
        }
    }
}

/// The gateway stores no part of an oversized head in memory. The client gets a 431, or the connection is closed.
#[tokio::test]
async fn oversized_request_head_is_refused_without_being_read() {
    let world = World::start().await;
    for lines in [
        "x: x\r\n".repeat(10_000),
        format!("x: {}\r\n", "x".repeat(1 << 20)),
    ] {
        let req = get("/", &lines);
        let patience = std::time::Duration::from_secs(10);
        let answer = talk(world.gateway.address(), req.as_bytes(), patience).await;
        let statuses = statuses(&answer.expect("it is closed"));
        // The connection's reset may reach the client before the client has read the response.
        assert!(statuses.is_empty() || statuses == [431], "{statuses:?}");
    }
    assert_eq!(world.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn request_head_limit_is_configurable() {
    let world = limits("uri_bytes_max = 64\nheaders_max = 8\nhead_bytes_max = 4096")
        .start()
        .await;
    for (path, lines, status) in [
        ("/".to_owned(), String::new(), 200),
        (format!("/?{}", "x".repeat(63)), String::new(), 414),
        ("/".to_owned(), "x: x\r\n".repeat(7), 431),
        ("/".to_owned(), format!("x: {}\r\n", "x".repeat(4096)), 431),
    ] {
        let answer = raw(&world, &get(&path, &lines)).await;
        assert_eq!(answer.status, status, "{path} {lines}");
    }
}

/// The text of a prompt. The gateway must not write it into its log or files.
const PROMPT: &str = "a-prompt-that-nobody-writes-down";
const REPLY: &str = "a-reply-that-nobody-writes-down";
const ORGANISATION: &str = "org-SecretOfTheVendor";
const VENDOR_REQUEST: &str = "req_SecretOfTheVendor";
const CALLERS_ADDRESS: &str = "203.0.113.77";

/// Responds as a vendor that repeats everything that it receives, and fails in the way that the prompt requests.
fn gossip(received: &Received) -> Reply {
    let op = if received.path.contains("/messages") {
        Op::Messages
    } else {
        Op::Chat
    };
    let body = String::from_utf8_lossy(&received.body).into_owned();
    let returned = format!(
        "key {VENDOR_KEY} of {ORGANISATION} at https://api.vendor.example/v1, {VENDOR_REQUEST}"
    );
    let reply = if body.contains("fail-400") {
        refusal(400, &returned)
    } else if body.contains("fail-401") {
        refusal(401, &returned)
    } else if body.contains("fail-429") {
        refusal(429, &returned)
    } else if body.contains("fail-500") {
        refusal(500, &returned)
    } else if body.contains("fail-html") {
        Reply::raw(200, "text/html", vec![]).header("x-told", returned.clone())
    } else if body.contains("\"stream\":true") {
        let reply = Reply::stream(events(op, &[REPLY, "."], 9, 2));
        if body.contains("fail-cut") {
            reply.cut()
        } else {
            reply
        }
    } else {
        plain_reply(op, REPLY, 9, 2)
    };
    reply
        .header("openai-organization", ORGANISATION)
        .header("anthropic-organization-id", ORGANISATION)
        .header("x-request-id", VENDOR_REQUEST)
        .header("set-cookie", VENDOR_REQUEST)
        .header("x-our-key", VENDOR_KEY)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_appears_in_logs_answers_or_files() {
    let files = search(Edge::start("").await).await;
    for file in ["tollgate.toml", "books.db", "log"] {
        assert!(files.contains(&file.to_owned()), "{file}: {files:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_appears_in_redis_or_the_outbox() {
    let redis = RedisServer::start_durable().await;
    let files = search(Edge::over(&redis.url()).await).await;
    assert!(files.contains(&"outbox.db".to_owned()), "{files:?}");
    let stored = files_in(redis.dir());
    let books = stored.iter().any(|(_, bytes)| has(bytes, "acme"));
    assert!(books, "Redis has written what it was told");
    for (file, bytes) in stored {
        for secret in [
            VENDOR_KEY,
            ADMIN_KEY,
            PROMPT,
            REPLY,
            ORGANISATION,
            VENDOR_REQUEST,
        ] {
            assert!(!has(&bytes, secret), "{secret} is in {}", file.display());
        }
        let text = String::from_utf8_lossy(&bytes);
        assert!(!has_secret(&text), "a key is in {}", file.display());
    }
}

fn has(bytes: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(text)
}

/// Makes calls and operators' requests, and searches the responses, the log and the files for secrets and prompts.
/// Returns the names of the files.
async fn search(mut edge: Edge) -> Vec<String> {
    edge.vendor.script(gossip);
    let key = edge.key().await;
    let wrong = SecretKey::generate();
    let mut answers: Vec<(String, Answer)> = Vec::new();
    for op in BOTH {
        for fault in [
            "",
            "fail-400",
            "fail-html",
            "fail-cut",
            "fail-429",
            "fail-500",
            "fail-401",
        ] {
            for stream in [false, true] {
                for secret in [key.as_str(), wrong.expose(), "tg-rubbish"] {
                    let body = with(
                        op.body(&format!("{PROMPT} {fault}")),
                        json!({ "stream": stream }),
                    );
                    let bearer = format!("Bearer {secret}");
                    let url = format!("http://{}{}", edge.address, op.path());
                    let headers = [
                        ("authorization", bearer.as_str()),
                        ("content-type", "application/json"),
                        ("anthropic-version", "2023-06-01"),
                        ("x-forwarded-for", CALLERS_ADDRESS),
                        ("cookie", PROMPT),
                    ];
                    let req = request(Method::POST, &url, &headers, body.to_string().into());
                    let res = edge.client.request(req).await.unwrap();
                    answers.push((format!("{op:?} {fault} {stream}"), whole(res).await));
                }
            }
        }
    }
    // Each path of the admin API is requested with the operator's key, and with a wrong key.
    for path in [
        "/admin/v1/accounts",
        "/admin/v1/accounts/acme",
        "/admin/v1/accounts/acme/keys",
        "/admin/v1/usage",
        "/metrics",
        "/readyz",
    ] {
        answers.push((path.to_owned(), edge.admin(Method::GET, path, None).await));
        let url = format!("http://{}{path}", edge.admin_address);
        let bearer = format!("Bearer {}", wrong.expose());
        let req = request(Method::GET, &url, &[("authorization", &bearer)], "".into());
        let res = edge.client.request(req).await.unwrap();
        answers.push((format!("{path}, wrong key"), whole(res).await));
    }
    edge.nothing_is_held().await;
    let command_line = edge.command_line();
    let received = edge.vendor.received();
    assert_eq!(edge.stop().await, Some(0), "{}", edge.log());

    let secrets = [
        ("the vendor's key", VENDOR_KEY),
        ("the operator's key", ADMIN_KEY),
        ("the caller's key", key.as_str()),
        ("a wrong key", wrong.expose()),
    ];
    let vendors = [
        ("the organisation", ORGANISATION),
        ("the vendor's number", VENDOR_REQUEST),
    ];
    let reported = [("the prompt", PROMPT), ("the reply", REPLY)];
    let scan = |place: &str, text: &str, lists: &[&[(&str, &str)]]| {
        for (what, secret) in lists.concat() {
            assert!(!text.contains(secret), "{what} is in {place}");
        }
    };
    for (what, answer) in &answers {
        let text = format!(
            "{:?} {}",
            answer.headers,
            String::from_utf8_lossy(&answer.body)
        );
        scan(
            &format!("the answer to {what}: {text}"),
            &text,
            &[&secrets, &vendors],
        );
        assert!(!text.contains("vendor.example"), "{what}: {text}");
    }
    for received in &received {
        let text = format!(
            "{:?} {}",
            received.headers,
            String::from_utf8_lossy(&received.body)
        );
        scan("what a vendor was sent", &text, &[&secrets[1..]]);
        assert!(!text.contains(CALLERS_ADDRESS), "{text}");
    }
    scan("the command line", &command_line, &[&secrets]);
    let log = edge.log();
    scan("the log", &log, &[&secrets, &vendors, &reported]);
    assert!(log.contains("\"call\""), "{log}");
    assert!(!received.is_empty(), "{log}");
    assert!(answers.len() > 80, "{log}");
    // The folder contains the configuration as well, which refers to secrets only by the names of environment
    // variables.
    let mut files = Vec::new();
    for (file, bytes) in files_in(edge.dir.path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = String::from_utf8_lossy(&bytes);
        scan(&name, &text, &[&secrets, &vendors, &reported]);
        files.push(name);
    }
    files
}

#[tokio::test]
async fn crashed_process_writes_no_core_dump() {
    let edge = Edge::start("").await;
    let limit = edge.system_limit("Max core file size");
    let numbers: Vec<_> = limit.split_whitespace().take(2).collect();
    assert_eq!(numbers, ["0", "0"], "{limit}");
}

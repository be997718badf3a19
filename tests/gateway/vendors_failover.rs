//! Tests of failover (docs/decisions.md, "Vendors"): if a vendor fails before the first byte, the next route answers
//! under the same request number and the same hold, and the call is charged once.

use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};
use tollgate::demo::{
    script,
    vendor::{Received, ScriptedVendor},
};

use crate::{fleet::Fleet, prelude::*, proxies::secret_file, support::redis::free_port};

/// A failure of the first vendor: its name, and the vendor's response to an operation, plain or streamed. The response
/// is `None` if such a response cannot fail in this way.
type Failure = (&'static str, fn(Op, bool) -> Option<Reply>);

fn never() -> Step {
    Step::Hold(Arc::new(Notify::new()))
}

fn media_type(stream: bool) -> &'static str {
    if stream {
        "text/event-stream"
    } else {
        "application/json"
    }
}

const FAILURES: [Failure; 19] = [
    ("404", |_, _| Some(refusal(404, "x"))),
    ("408", |_, _| Some(refusal(408, "x"))),
    ("429", |_, _| {
        Some(refusal(429, "x").header("retry-after", "9"))
    }),
    ("500", |_, _| Some(refusal(500, "x"))),
    ("502", |_, _| Some(refusal(502, "x"))),
    ("503", |_, _| Some(refusal(503, "x"))),
    ("504", |_, _| Some(refusal(504, "x"))),
    ("529", |_, _| Some(refusal(529, "x"))),
    ("our key, 401", |_, _| Some(refusal(401, "x"))),
    ("our account, 402", |_, _| Some(refusal(402, "x"))),
    ("our key, 403", |_, _| Some(refusal(403, "x"))),
    ("a redirect", |_, _| {
        Some(refusal(307, "x").header("location", "/v1/elsewhere"))
    }),
    ("html", |_, _| {
        let page = Step::Send(Bytes::from_static(b"<html>maintenance</html>"));
        Some(Reply::raw(200, "text/html", vec![page]))
    }),
    ("a head and nothing", |_, stream| {
        Some(Reply::raw(200, media_type(stream), vec![never()]))
    }),
    ("cut behind the head", |_, stream| {
        Some(Reply::raw(200, media_type(stream), vec![Step::Cut]))
    }),
    ("cut in the first event, or in the answer", |op, stream| {
        let reported = if stream {
            events(op, &["да"], 9, 1).concat()
        } else {
            answer(op, "да", &usage(op, 9, 1)).to_string()
        };
        let half = Step::Send(Bytes::from(reported).slice(..20));
        Some(Reply::raw(200, media_type(stream), vec![half, Step::Cut]))
    }),
    ("an answer without a body", |_, stream| {
        Some(Reply::raw(200, media_type(stream), vec![]))
    }),
    ("an error as the first event", |op, stream| {
        let error = json!({ "type": "overloaded_error", "message": "x" });
        let event = match op {
            Op::Chat => format!(": hello\n\ndata: {}\n\n", json!({ "error": error })),
            Op::Messages => {
                let data = json!({ "type": "error", "error": error });
                format!("event: error\ndata: {data}\n\n")
            }
        };
        stream.then(|| Reply::stream([event]))
    }),
    ("an error in the clothes of an answer", |_, stream| {
        (!stream).then(|| refusal(200, "x"))
    }),
];

/// Checks that vendor 0 has answered after the other vendor had failed, and that only the response of vendor 0 is
/// charged.
async fn second_answered(what: &str, fleet: &Fleet, op: Op, key: &Key, answer: &Answer) {
    assert_eq!(answer.status, 200, "{what}: {answer:?}");
    assert!(!answer.failed, "{what}: {answer:?}");
    assert!(answer.text().contains("Вы"), "{what}: {answer:?}");
    let receipt = fleet.world.receipt(&answer.number()).await;
    assert_eq!(receipt["vendor"], Fleet::name(op, 0), "{what}: {receipt}");
    assert_eq!(receipt["end"], "finished", "{what}: {receipt}");
    let account = fleet.world.settled(key).await;
    assert_eq!(
        micro(&account["spent_rub"]),
        micro(&receipt["charged_rub"]),
        "{what}"
    );
    assert_eq!(fleet.requested(0), 1, "{what}");
}

#[tokio::test]
async fn any_failure_before_the_first_byte_is_answered_by_the_next_vendor() {
    for (what, failure) in FAILURES {
        for op in BOTH {
            for stream in [false, true] {
                let Some(reply) = failure(op, stream) else {
                    continue;
                };
                let what = format!("{what}, {op:?}, stream = {stream}");
                let fleet = Fleet::pair("first_byte_seconds = 1\nidle_seconds = 1").await;
                let key = fleet.world.key().await;
                fleet.vendor(1).script(move |_| reply.clone());
                let body = with(op.body("x"), json!({ "stream": stream }));
                let answer = op.call(&fleet.world, &key, &body).await;
                second_answered(&what, &fleet, op, &key, &answer).await;
                assert_eq!(fleet.requested(1), 1, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn next_vendor_answers_if_the_first_cannot_be_reached() {
    for op in BOTH {
        let mut fleet = Fleet::pair("").await;
        let key = fleet.world.key().await;
        fleet.others.clear();
        let answer = op.call(&fleet.world, &key, &op.body("x")).await;
        second_answered("refused connection", &fleet, op, &key, &answer).await;
    }
}

#[tokio::test]
async fn each_vendor_gets_the_request_with_its_own_model_name_and_format() {
    let setup = Setup::default()
        .edit("model = \"vendor-chat-1\"", "model = \"vendor-chat-2\"")
        .edit(
            "priority = 0",
            "priority = 0, output_field = \"max_tokens\"",
        );
    let fleet = Fleet::start(setup, 2, |n| format!("priority = {n}"), |_| String::new()).await;
    let key = fleet.world.key().await;
    let mut body = with(Op::Chat.body("x"), json!({ "max_completion_tokens": 7 }));
    body.as_object_mut().unwrap().remove("max_tokens");
    fleet.vendor(0).script(|_| refusal(500, "x"));
    assert_eq!(fleet.world.chat(&key, &body).await.status, 200);
    let sent = |n: usize| fleet.vendor(n).received().pop().unwrap().json();
    assert_eq!(
        sent(0),
        with(
            with(Op::Chat.body("x"), json!({ "model": "vendor-chat-2" })),
            json!({ "max_tokens": 7 })
        )
    );
    assert_eq!(sent(1), with(body, json!({ "model": "vendor-chat-2" })));
}

#[tokio::test]
async fn after_a_failure_the_next_vendor_may_have_another_format() {
    // One vendor speaks the caller's format and fails. The next vendor speaks the other format.
    let routes = "{ vendor = \"chat-vendor\", model = \"vendor-chat-1\" }";
    let other = "{ vendor = \"messages-vendor\", model = \"vendor-messages-1\" }";
    let own_first =
        |own: &str, other: &str| format!("{own}, {}", other.replace(" }", ", priority = 1 }"));
    for op in BOTH {
        let (from, to) = match op {
            Op::Chat => (routes, own_first(routes, other)),
            Op::Messages => (other, own_first(other, routes)),
        };
        let (world, key) = Setup::default().edit(from, &to).start_with_key().await;
        world.vendor.script(move |received: &Received| {
            if received.path.ends_with(op.path()) {
                refusal(503, "x")
            } else {
                script::polite(received)
            }
        });
        for stream in [false, true] {
            let body = with(op.body("x"), json!({ "stream": stream }));
            let answer = op.call(&world, &key, &body).await;
            assert_eq!(answer.status, 200, "{op:?} {stream}: {answer:?}");
            assert!(answer.text().contains("Вы"), "{op:?} {stream}: {answer:?}");
            let receipt = world.receipt(&answer.number()).await;
            let answered = match op {
                Op::Chat => "messages-vendor",
                Op::Messages => "chat-vendor",
            };
            assert_eq!(receipt["vendor"], answered, "{receipt}");
        }
    }
}

#[tokio::test]
async fn after_the_first_byte_no_other_vendor_is_tried() {
    for op in BOTH {
        let fleet = Fleet::pair("").await;
        let key = fleet.world.key().await;
        let go = Arc::new(Notify::new());
        let reply = Reply::stream(events(op, &["раз ", "два"], 9, 2))
            .with_step(begun(op), Step::Cut)
            .with_step(begun(op), Step::Hold(Arc::clone(&go)));
        fleet.vendor(1).script(move |_| reply.clone());
        let body = with(op.body("x"), json!({ "stream": true }));
        let res = fleet
            .world
            .send(op.request(&fleet.world, &key, &body))
            .await;
        assert_eq!(res.status(), 200, "{op:?}");
        let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
        let mut body = res.into_body();
        read_until(&mut body, "раз").await;
        go.notify_one();
        let mut text = String::new();
        while let Some(more) = next_text(&mut body).await {
            text.push_str(&more);
        }
        assert!(
            text.contains(&format!("({number})")),
            "an error event: {text}"
        );
        let receipt = fleet.world.receipt(&number).await;
        assert_eq!(receipt["vendor"], Fleet::name(op, 1), "{receipt}");
        assert_eq!(receipt["end"], "vendor_cut", "{receipt}");
        assert_eq!((fleet.requested(1), fleet.requested(0)), (1, 0), "{op:?}");
    }
}

#[tokio::test]
async fn error_caused_by_the_caller_is_returned_without_trying_the_next_vendor() {
    for status in [400, 413, 422] {
        for op in BOTH {
            let fleet = Fleet::pair("").await;
            let key = fleet.world.key().await;
            fleet
                .vendor(1)
                .script(move |_| refusal(status, "max_tokens is too large"));
            let answer = op.call(&fleet.world, &key, &op.body("x")).await;
            let text = refused("mistake", &answer, status, INVALID, "");
            assert!(text.contains("max_tokens is too large"), "{text}");
            cost_nothing("mistake", &fleet.world, &key, &answer).await;
            assert_eq!((fleet.requested(1), fleet.requested(0)), (1, 0), "{op:?}");
        }
    }
}

#[tokio::test]
async fn empty_answer_counts_as_a_failure_and_the_next_vendor_is_tried() {
    let plain = |op, answer: Value| (op, false, Reply::json(200, &answer));
    let done = Reply::stream(vec!["data: [DONE]\n\n".to_owned()]);
    for (op, stream, nothing) in [
        plain(Op::Chat, json!({})),
        plain(Op::Chat, json!({ "choices": [], "usage": null })),
        plain(Op::Messages, json!({})),
        (Op::Chat, true, done),
    ] {
        let fleet = Fleet::pair("").await;
        let key = fleet.world.key().await;
        fleet.vendor(1).script(move |_| nothing.clone());
        let body = with(op.body("x"), json!({ "stream": stream }));
        let answer = op.call(&fleet.world, &key, &body).await;
        assert_eq!(answer.status, 200, "{op:?}: {answer:?}");
        assert_eq!((fleet.requested(1), fleet.requested(0)), (1, 1), "{op:?}");
        let receipt = fleet.world.receipt(&answer.number()).await;
        assert_eq!(receipt["end"], "finished");
        assert_eq!(receipt["estimated"], false);
    }
}

/// The caller received the head of the response before the stream ended, so no other vendor can be tried.
#[tokio::test]
async fn stream_without_content_ends_with_an_error_and_costs_nothing() {
    let (world, key) = World::start_with_key().await;
    world.vendor.script(|_| {
        let nothing = r#"{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}"#;
        let events = ["{}", r#"{"choices":[]}"#, nothing, "[DONE]"];
        Reply::stream(events.map(|event| format!("data: {event}\n\n")))
    });
    let body = with(Op::Chat.body("x"), json!({ "stream": true }));
    let answer = Op::Chat.call(&world, &key, &body).await.expect(200);
    let text = answer.text();
    has(&text, "vendor_broken");
    assert!(!text.contains("[DONE]"), "{text}");
    cost_nothing("nothing", &world, &key, &answer).await;
}

#[tokio::test]
async fn if_all_vendors_fail_the_most_informative_error_is_returned_free_of_charge() {
    // The columns are: the statuses of two vendors, in either order, and the status, type and code of the response to
    // the caller.
    for (one, other, status, kind, code) in [
        (500, 429, 429, LIMIT, "vendor_rate_limit"),
        (401, 500, 503, API, "vendor_unavailable"),
        (307, 529, 503, API, "vendor_unavailable"),
        (401, 307, 502, API, "vendor_broken"),
    ] {
        for (first, second) in [(one, other), (other, one)] {
            let what = format!("{first}, then {second}");
            let fleet = Fleet::pair("").await;
            let key = fleet.world.key().await;
            for (n, status) in [(1, first), (0, second)] {
                fleet
                    .vendor(n)
                    .script(move |_| refusal(status, "engine-7").header("retry-after", "7"));
            }
            let answer = fleet.world.chat(&key, &Op::Chat.body("x")).await;
            let text = refused(&what, &answer, status, kind, code);
            assert!(!text.contains("engine-7"), "{what}: {text}");
            if status == 429 {
                assert_eq!(answer.headers["retry-after"], "7", "{what}");
            }
            cost_nothing(&what, &fleet.world, &key, &answer).await;
            assert_eq!((fleet.requested(1), fleet.requested(0)), (1, 1), "{what}");
        }
    }
}

/// One of a hundred callers repeatedly sends a request that makes the vendor fail. The other callers must still be
/// served.
#[tokio::test]
async fn failing_requests_of_one_caller_do_not_open_the_only_vendors_breaker() {
    const CALLERS: usize = 100;
    type Poison = fn(Op) -> Reply;
    let poisons: [(&str, Poison); 4] = [
        ("500", |_| refusal(500, "x")),
        ("404", |_| refusal(404, "x")),
        ("cut before an answer", |_| {
            Reply::raw(200, media_type(true), vec![Step::Cut])
        }),
        ("cut within an answer", |op| {
            Reply::stream(events(op, &["раз ", "два"], 9, 2)).with_step(begun(op), Step::Cut)
        }),
    ];
    for (what, poison) in poisons {
        let op = Op::Chat;
        let world = World::start().await;
        let mut keys = vec![world.key().await];
        while keys.len() < CALLERS {
            keys.push(world.another_key("acme", json!({})).await);
        }
        world.vendor.script(move |received| {
            let body = String::from_utf8_lossy(&received.body);
            if body.contains("poison") {
                poison(op)
            } else {
                script::polite(received)
            }
        });
        let (poisonous, others) = keys.split_first().unwrap();
        let poisoned = with(op.body("poison"), json!({ "stream": true }));
        let (poisoned, well) = (&poisoned, &op.body("x"));
        for _ in 0..3 {
            // If a breaker counted all failures, this number of failures in a row would open it.
            for _ in 0..12 {
                let answer = op.call(&world, poisonous, poisoned).await;
                assert!(answer.status != 200 || answer.text().contains("\"error\""));
            }
            // Further failing calls are made at the same time as the calls of the other callers.
            let poisoning = join_all((0..20).map(|_| op.call(&world, poisonous, poisoned)));
            let calling = join_all(others.iter().map(|key| op.call(&world, key, well)));
            let (_, answers) = tokio::join!(poisoning, calling);
            for answer in answers {
                assert_eq!(answer.status, 200, "{what}: {answer:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovered_vendor_is_used_immediately() {
    const CALLERS: usize = 4;
    /// The maximum time until a vendor that has recovered is used: a quarter of a second, plus the delays of a busy
    /// machine.
    const FOUND_WITHIN: Duration = Duration::from_millis(900);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (world, key) = vendors_at(&address.to_string(), "").start_with_key().await;
    let body = Op::Chat.body("x");
    let back = tokio::sync::OnceCell::new();
    let caller = async || {
        let (mut refused, mut wait_max) = (0, 0);
        loop {
            let answer = Op::Chat.call(&world, &key, &body).await;
            if answer.status == 200 {
                return (refused, wait_max, Instant::now());
            }
            assert_eq!(answer.status, 503, "{answer:?}");
            let wait = answer.headers["retry-after"].to_str().unwrap();
            wait_max = wait_max.max(wait.parse::<u64>().unwrap());
            refused += 1;
        }
    };
    let revival = async {
        // In this time, a breaker that doubles its interval would reach a wait of more than two seconds.
        tokio::time::sleep(Duration::from_millis(3_500)).await;
        let vendor = ScriptedVendor::start_at(address).await.unwrap();
        back.set(Instant::now()).unwrap();
        vendor
    };
    let (answered, _vendor) = tokio::join!(join_all((0..CALLERS).map(|_| caller())), revival);
    for (refused, wait_max, at) in answered {
        let after = at.duration_since(*back.get().unwrap());
        assert!(refused > 10, "it was dead");
        assert!(wait_max <= 1, "{wait_max} s");
        assert!(after <= FOUND_WITHIN, "{after:?}");
    }
}

#[tokio::test]
async fn rate_limited_vendor_is_avoided_during_its_retry_after_time() {
    let fleet = Fleet::pair("").await;
    let key = fleet.world.key().await;
    let began = Instant::now();
    fleet
        .vendor(1)
        .script(|_| refusal(429, "x").header("retry-after", "2"));
    let call = async || {
        fleet
            .world
            .chat(&key, &Op::Chat.body("x"))
            .await
            .expect(200);
        fleet.requested(1)
    };
    assert_eq!(call().await, 1);
    fleet.vendor(1).script(script::polite);
    eventually("it is asked again", async || {
        (call().await > 1).then_some(())
    })
    .await;
    let rested = began.elapsed();
    assert!(rested >= Duration::from_millis(1_900), "{rested:?}");
}

#[tokio::test]
async fn vendor_without_a_free_slot_is_skipped() {
    let one_at_a_time = |n: usize| ["", "connections_max = 1"][n].to_owned();
    let fleet = Fleet::start(
        Setup::default(),
        2,
        |n| format!("priority = {}", 1 - n),
        one_at_a_time,
    )
    .await;
    let key = fleet.world.key().await;
    for op in BOTH {
        let go = Arc::new(Notify::new());
        let reply = Reply::stream(events(op, &["раз ", "два"], 9, 2))
            .with_step(begun(op), Step::Hold(Arc::clone(&go)));
        fleet.vendor(1).script(move |_| reply.clone());
        let before = (fleet.requested(1), fleet.requested(0));
        let body = with(op.body("x"), json!({ "stream": true }));
        let res = fleet
            .world
            .send(op.request(&fleet.world, &key, &body))
            .await;
        // The stream counts as in flight at vendor 1 until it ends, so until then the calls go to vendor 0.
        for _ in 0..3 {
            assert_eq!(op.call(&fleet.world, &key, &op.body("x")).await.status, 200);
        }
        assert_eq!(fleet.requested(1), before.0 + 1);
        assert_eq!(fleet.requested(0), before.1 + 3);
        go.notify_one();
        assert!(!whole(res).await.failed);
        fleet.vendor(1).script(script::polite);
        eventually("its place is free again", async || {
            let before = fleet.requested(1);
            assert_eq!(op.call(&fleet.world, &key, &op.body("x")).await.status, 200);
            (fleet.requested(1) > before).then_some(())
        })
        .await;
    }
}

/// Starts a gateway whose vendors have two API keys each, `one` and `two`.
async fn two_keys() -> (World, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let secrets = ["one", "two"].map(|name| {
        let dir = dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        secret_file(&dir, &format!("sk-key-{name}"))
    });
    let keys = format!("keys = {secrets:?}");
    let world = Setup::default()
        .edit("key = \"${VENDOR_KEY}\"", &keys)
        .start()
        .await;
    (world, dir)
}

/// Returns how many requests the vendor received with key `one`, and how many with key `two`.
fn shown(world: &World) -> (usize, usize) {
    let of = |name: &str| {
        let received = world.vendor.received();
        let shows = |received: &&Received| key_of(received).contains(name);
        received.iter().filter(shows).count()
    };
    (of("sk-key-one"), of("sk-key-two"))
}

fn key_of(received: &Received) -> &str {
    let headers = &received.headers;
    let key = headers.get("authorization").or(headers.get("x-api-key"));
    key.unwrap().to_str().unwrap()
}

#[tokio::test]
async fn several_vendor_keys_are_used_in_turn() {
    let (world, _dir) = two_keys().await;
    let key = world.key().await;
    for op in BOTH {
        for _ in 0..10 {
            assert_eq!(op.call(&world, &key, &op.body("x")).await.status, 200);
        }
    }
    assert_eq!(shown(&world), (10, 10));
}

#[tokio::test]
async fn refused_or_rate_limited_vendor_key_is_skipped_and_no_call_fails() {
    for status in [401, 402, 403, 429] {
        for op in BOTH {
            let (world, _dir) = two_keys().await;
            let key = world.key().await;
            world.vendor.script(move |received| {
                if key_of(received).contains("sk-key-one") {
                    refusal(status, "sk-key-one").header("retry-after", "60")
                } else {
                    script::polite(received)
                }
            });
            for call in 0..6 {
                let answer = op.call(&world, &key, &op.body("x")).await;
                assert_eq!(answer.status, 200, "{status}, call {call}: {answer:?}");
            }
            assert_eq!(shown(&world), (1, 6), "{status} {op:?}");
        }
    }
}

#[tokio::test]
async fn failing_vendors_get_a_limited_number_of_retries() {
    const CALLS: usize = 100;
    let fleet = Fleet::pair("").await;
    let key = fleet.world.key().await;
    for n in [0, 1] {
        fleet.vendor(n).script(|_| refusal(500, "x"));
    }
    for _ in 0..CALLS {
        fleet
            .world
            .chat(&key, &Op::Chat.body("x"))
            .await
            .expect(503);
    }
    let requested = fleet.requested(0) + fleet.requested(1);
    assert!(
        requested <= CALLS * 12 / 10,
        "{requested} requests for {CALLS} calls"
    );
    assert_eq!(fleet.world.settled(&key).await["spent_rub"], "0.00");
}

/// Reads a request to its end. Returns whether a request has arrived.
async fn read_request(socket: &mut TcpStream) -> bool {
    let mut read = Vec::new();
    loop {
        if let Some(end) = memchr::memmem::find(&read, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
            let mut lines = head.lines();
            let length = lines.find_map(|line| line.strip_prefix("content-length: "));
            if read.len() >= end + 4 + length.unwrap().parse::<usize>().unwrap() {
                return true;
            }
        }
        if socket.read_buf(&mut read).await.unwrap_or(0) == 0 {
            return false;
        }
    }
}

/// A vendor may close an idle connection at the moment when the gateway sends the next request on it.
#[tokio::test]
async fn call_keeps_its_hold_if_a_reused_connection_closes_before_any_response_byte() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let body = answer(Op::Chat, "да", &usage(Op::Chat, 9, 1)).to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
    let reply = format!("{head} {}\r\n\r\n{body}", body.len());
    let mut vendor = JoinSet::new();
    vendor.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            // On each connection, the vendor answers one request, and closes the connection when a second one arrives.
            let (mut socket, _) = listener.accept().await.unwrap();
            let reply = reply.clone();
            connections.spawn(async move {
                if read_request(&mut socket).await {
                    socket.write_all(reply.as_bytes()).await.unwrap();
                    read_request(&mut socket).await;
                }
            });
        }
    });
    let (world, key) = vendors_at(&address, "").start_with_key().await;
    let mut costs = Vec::new();
    for call in 0..4 {
        let answer = world.chat(&key, &Op::Chat.body("x")).await;
        assert_eq!(answer.status, 200, "{call}: {answer:?}");
        let receipt = world.receipt(&answer.number()).await;
        costs.push(micro(&receipt["charged_rub"]));
    }
    let account = world.settled(&key).await;
    assert_eq!(micro(&account["spent_rub"]), costs.iter().sum::<i64>());
    assert!(
        costs.iter().all(|cost| *cost == costs[0] && *cost > 0),
        "{costs:?}"
    );
}

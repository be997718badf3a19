//! Tests of repeated calls: calls with the same idempotency key cause one vendor call, one hold and one charge
//! (docs/callers.md).

use http::{Request, header::HeaderValue};
use http_body_util::{BodyExt, Full};
use tollgate::demo::vendor::{Received, ScriptedVendor};

use crate::{
    prelude::*,
    support::{
        config::ConfigText,
        process::{Served, Start},
    },
};

const SECRET_PROMPT: &str = "a question that nobody else may read";
const SECRET_ANSWER: &str = "an answer that nobody else may read";

/// Returns streamed and plain calls of each operation: for each, the path, and a body with this `text`.
fn calls(text: &str) -> Vec<(&'static str, Value)> {
    let chat = json!({ "model": "chat", "max_tokens": 100, "messages": [{ "role": "user", "content": text }] });
    let messages = with(chat.clone(), json!({ "model": "messages" }));
    let responses = json!({ "model": "chat", "max_output_tokens": 100, "input": text });
    let mut calls = Vec::new();
    for (path, body) in [
        ("/v1/chat/completions", chat),
        ("/v1/messages", messages),
        ("/v1/responses", responses),
    ] {
        calls.push((path, body.clone()));
        calls.push((path, with(body, json!({ "stream": true }))));
    }
    calls
}

fn ask(origin: &str, key: &Key, path: &str, body: &Value, presented: &str) -> Request<Full<Bytes>> {
    let headers = [
        ("x-api-key", key.secret.as_str()),
        ("anthropic-version", "2026-10-21"),
        ("content-type", "application/json"),
    ];
    let url = format!("{origin}{path}");
    let mut req = request(Method::POST, &url, &headers, body.to_string().into());
    let presented = HeaderValue::from_bytes(presented.as_bytes()).unwrap();
    req.headers_mut().insert("idempotency-key", presented);
    req
}

async fn sent(world: &World, key: &Key, (path, body): &(&str, Value), presented: &str) -> Answer {
    let origin = world.url("");
    world.ask(ask(&origin, key, path, body, presented)).await
}

fn replayed(answer: &Answer) -> Option<&str> {
    assert_eq!(
        answer.headers.contains_key("idempotent-replayed"),
        answer.headers.contains_key("x-original-request-id")
    );
    let of = answer.headers.get("x-original-request-id")?;
    assert_eq!(answer.headers["idempotent-replayed"], "true");
    Some(of.to_str().unwrap())
}

async fn allowed(world: &World) -> Key {
    world
        .key_with("acme", "1000", json!({ "idempotency": true }))
        .await
}

fn chat(text: &str) -> (&'static str, Value) {
    calls(text).swap_remove(0)
}

fn streamed(text: &str) -> (&'static str, Value) {
    calls(text).swap_remove(1)
}

#[tokio::test]
async fn repeated_call_in_any_format_gets_the_first_answer_and_is_charged_once() {
    let world = World::start().await;
    let key = allowed(&world).await;
    for (index, call) in calls("привет").into_iter().enumerate() {
        let presented = format!("call-{index}");
        let first = sent(&world, &key, &call, &presented).await.expect(200);
        assert_eq!(replayed(&first), None);
        let after = world.settled(&key).await;
        // A repeat joins the call in flight until its response is stored. Later, a repeat gets the stored response. To
        // the client, both responses look the same.
        for _ in 0..2 {
            let again = sent(&world, &key, &call, &presented).await.expect(200);
            assert_eq!(again.text(), first.text());
            assert_eq!(replayed(&again), Some(first.number().as_str()));
            assert_ne!(again.number(), first.number());
            for name in ["content-type", "x-cost-rub"] {
                assert_eq!(again.headers.get(name), first.headers.get(name), "{name}");
            }
        }
        assert_eq!(world.vendor.received().len(), index + 1);
        assert_eq!(
            world.settled(&key).await["balance_rub"],
            after["balance_rub"]
        );
        world.receipt(&first.number()).await;
    }
    // An idempotency key belongs to the caller's key: another key of the same account may use the same idempotency key
    // for another call.
    let other = json!({ "idempotency": true });
    let other = world.another_key("acme", other).await;
    let fresh = sent(&world, &other, &calls("привет")[0], "call-0").await;
    assert_eq!((fresh.status.as_u16(), replayed(&fresh)), (200, None));
}

/// With Redis, the rate limit is decided in the background. The stored response is ready earlier but must wait for this
/// decision.
#[tokio::test]
async fn repeat_of_a_call_counts_towards_the_per_minute_limit_of_its_key() {
    let server = RedisServer::start().await;
    for ledger in ["memory:", &server.url()] {
        let world = Setup::default().ledger(ledger).start().await;
        // At this rate, a burst of two requests is admitted, and then one request every five seconds.
        let limits = json!({ "idempotency": true, "requests_per_minute": 12 });
        let key = world.key_with("acme", "1000", limits).await;
        let call = chat("привет");
        let first = sent(&world, &key, &call, "one").await;
        assert_eq!(first.status, 200, "{ledger}: {first:?}");
        let again = sent(&world, &key, &call, "one").await;
        assert_eq!(replayed(&again), Some(first.number().as_str()), "{ledger}");
        let refused = sent(&world, &key, &call, "one").await;
        assert_eq!(refused.status, 429, "{ledger}: {refused:?}");
        assert_eq!(world.vendor.received().len(), 1, "{ledger}");
    }
}

#[tokio::test]
async fn idempotency_header_is_ignored_if_the_key_has_no_permission_for_it() {
    let (world, key) = World::start_with_key().await;
    for presented in ["one", "one", "", "\u{20ac}"] {
        let answer = sent(&world, &key, &chat("привет"), presented).await;
        assert_eq!((answer.status.as_u16(), replayed(&answer)), (200, None));
    }
    assert_eq!(world.vendor.received().len(), 4);
    assert!(
        world
            .vendor
            .received()
            .iter()
            .all(|received| { !received.headers.contains_key("idempotency-key") })
    );
    // An operator can permit a key to use idempotency keys, and can revoke this permission.
    let path = format!("/admin/v1/keys/{}", key.id);
    for (flag, calls) in [(true, 5), (false, 7)] {
        let change = json!({ "idempotency": flag });
        let changed = world.admin_patch(&path, change).await;
        assert_eq!(changed.json()["idempotency"], flag, "{changed:?}");
        for _ in 0..2 {
            sent(&world, &key, &chat("привет"), "two").await;
        }
        assert_eq!(world.vendor.received().len(), calls);
    }
}

#[tokio::test]
async fn idempotency_key_that_is_malformed_or_reused_for_another_request_is_refused() {
    let world = World::start().await;
    let key = allowed(&world).await;
    for bad in ["", "two words", "ключ", &"x".repeat(256)] {
        let refused = sent(&world, &key, &chat("привет"), bad).await;
        assert_eq!(refused.status, 400, "{bad}");
        let text = refused.refusal();
        assert!(text.contains("«idempotency-key»"), "{text}");
    }
    let longest = "x".repeat(255);
    sent(&world, &key, &chat("привет"), &longest)
        .await
        .expect(200);
    for other in [chat("пока"), streamed("привет")] {
        let refused = sent(&world, &key, &other, &longest).await.expect(422);
        assert_eq!(refused.json()["error"]["code"], "idempotency_key_reused");
        assert!(refused.refusal().contains("новый ключ идемпотентности"));
        assert_eq!(refused.headers["x-should-retry"], "false");
    }
    assert_eq!(world.vendor.received().len(), 1);
}

#[tokio::test]
async fn repeat_of_a_call_that_cost_nothing_runs_again() {
    let world = World::start().await;
    let key = allowed(&world).await;
    world.vendor_sends(Reply::json(500, &json!({ "error": { "message": "no" } })));
    let failed = sent(&world, &key, &chat("привет"), "one").await;
    assert!(failed.status.is_server_error(), "{failed:?}");
    assert_eq!(world.settled(&key).await["balance_rub"], "1000.00");
    world.vendor.script(tollgate::demo::script::polite);
    let answer = sent(&world, &key, &chat("привет"), "one").await;
    assert_eq!((answer.status.as_u16(), replayed(&answer)), (200, None));
}

/// Returns a vendor whose stream waits after its first word until `hold` is notified.
fn held(hold: &Arc<Notify>) -> impl Fn(&Received) -> Reply + Send + Sync + use<> {
    let hold = Arc::clone(hold);
    move |received| {
        let reply = tollgate::demo::script::polite(received);
        reply.with_step(2, Step::Hold(Arc::clone(&hold)))
    }
}

#[tokio::test]
async fn repeated_call_joins_the_running_stream_from_its_start_even_if_the_first_client_leaves() {
    for first_leaves in [false, true] {
        let world = World::start().await;
        let key = allowed(&world).await;
        let hold = Arc::new(Notify::new());
        world.vendor.script(held(&hold));
        let (path, body) = streamed("привет");
        let origin = world.url("");
        let call = || ask(&origin, &key, path, &body, "one");
        let mut first = world.send(call()).await;
        let number = first.headers()["x-request-id"].to_str().unwrap().to_owned();
        let begin = first.frame().await.unwrap().unwrap().into_data().unwrap();
        let mut second = world.send(call()).await;
        assert_eq!(second.headers()["x-original-request-id"], number);
        let same = second.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(same.starts_with(&begin) || begin.starts_with(&same));
        let mut first = Some(first);
        if first_leaves {
            first = None;
        }
        // The gateway needs some time to detect that the client has disconnected.
        tokio::time::sleep(Duration::from_millis(50)).await;
        hold.notify_one();
        let rest = second.into_body().collect().await.unwrap().to_bytes();
        let joined = [&same[..], &rest].concat();
        assert!(String::from_utf8_lossy(&joined).contains("data: [DONE]"));
        if let Some(first) = first {
            let rest = first.into_body().collect().await.unwrap().to_bytes();
            assert_eq!([&begin[..], &rest].concat(), joined);
        }
        let receipt = world.receipt(&number).await;
        assert_eq!(receipt["end"], "finished", "{receipt}");
        let again = world.ask(call()).await;
        assert_eq!(again.body, joined);
        assert_eq!(world.vendor.received().len(), 1);
    }
}

#[tokio::test]
async fn repeated_call_at_another_gateway_waits_for_the_running_call_and_gets_its_answer() {
    let server = RedisServer::start().await;
    let one = Setup::default().ledger(&server.url()).start().await;
    let two = Setup::default().ledger(&server.url()).start().await;
    let key = allowed(&one).await;
    let hold = Arc::new(Notify::new());
    one.vendor.script(held(&hold));
    let (path, body) = streamed(SECRET_PROMPT);
    let origin = one.url("");
    let running = one.send(ask(&origin, &key, path, &body, "one")).await;
    let refused = sent(&two, &key, &(path, body.clone()), "one")
        .await
        .expect(409);
    assert_eq!(refused.json()["error"]["code"], "idempotency_key_in_use");
    let wait: u64 = refused.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=15).contains(&wait), "{wait}");
    sent(&two, &key, &streamed("другой"), "one")
        .await
        .expect(422);
    hold.notify_one();
    let whole = running.into_body().collect().await.unwrap().to_bytes();
    let again = eventually("the answer is stored", async || {
        let again = sent(&two, &key, &(path, body.clone()), "one").await;
        (again.status == 200).then_some(again)
    })
    .await;
    assert_eq!(again.body, whole);
    assert!(replayed(&again).is_some());
    assert!(two.vendor.received().is_empty());
    // The call was charged once, and both gateways return the same balance.
    let books = one.settled(&key).await;
    assert_eq!(two.settled(&key).await["balance_rub"], books["balance_rub"]);
    // The claim of the call is stored for a day, as long as the response. It contains no readable text.
    let names: Vec<String> = server.ask(&["KEYS", "tg:{acme}:i:*"]).await.unwrap();
    let [name] = &names[..] else {
        panic!("{names:?}");
    };
    let left: i64 = server.ask(&["PTTL", name]).await.unwrap();
    assert!((86_000_000..=86_400_000).contains(&left), "{left}");
    let stored: Vec<Vec<u8>> = server.ask(&["HGETALL", name]).await.unwrap();
    assert!(stored.concat().len() > whole.len());
    for secret in [
        SECRET_PROMPT,
        "Привет",
        "[DONE]",
        "chat/completions",
        &key.secret,
    ] {
        assert!(!holds(&stored.concat(), secret), "{secret}");
    }
}

/// A gateway caches the record of a key for some seconds. Nevertheless it must refuse a repeat as soon as the key is
/// disabled.
#[tokio::test]
async fn disabled_key_gets_no_stored_answer_at_any_gateway() {
    let server = RedisServer::start().await;
    let one = Setup::default().ledger(&server.url()).start().await;
    let two = Setup::default().ledger(&server.url()).start().await;
    let key = allowed(&one).await;
    let call = chat("x");
    sent(&one, &key, &call, "one").await.expect(200);
    for world in [&one, &two] {
        eventually("the answer is repeated", async || {
            let again = sent(world, &key, &call, "one").await;
            replayed(&again).map(|_| ())
        })
        .await;
    }
    let path = format!("/admin/v1/keys/{}", key.id);
    let disabled = json!({ "status": "disabled" });
    two.admin(Method::PATCH, &path, Some(disabled))
        .await
        .expect(200);
    for world in [&one, &two] {
        let again = sent(world, &key, &call, "one").await.expect(401);
        assert_eq!(replayed(&again), None);
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

#[tokio::test]
async fn stored_answer_is_unreadable_without_the_secret_of_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("books.db");
    let url = format!("sqlite:{}", ledger.display());
    let world = Setup::default().ledger(&url).start().await;
    assert!(
        !dir.path().join("books.db.answers").exists(),
        "made when it is needed"
    );
    let key = allowed(&world).await;
    world.vendor_sends(Reply::json(
        200,
        &json!({ "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{ "index": 0, "finish_reason": "stop",
            "message": { "role": "assistant", "content": SECRET_ANSWER } }],
        "usage": { "prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14 } }),
    ));
    let call = chat(SECRET_PROMPT);
    let first = sent(&world, &key, &call, "presented-key").await;
    assert!(first.text().contains(SECRET_ANSWER));
    let path = dir.path().join("books.db.answers");
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    eventually("it is stored", async || {
        let scrape = world.admin_get("/metrics").await.text();
        let mut lines = scrape.lines();
        let line =
            lines.find(|line| line.starts_with("tollgate_idempotent_stored_bytes_total "))?;
        (!line.ends_with(" 0")).then_some(())
    })
    .await;
    let mut files = 0;
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        files += 1;
        for secret in [SECRET_PROMPT, SECRET_ANSWER, "presented-key", &key.secret] {
            assert!(!holds(&bytes, secret), "{secret}");
        }
    }
    assert!(files >= 3, "the books, the answers and their logs");
    let again = sent(&world, &key, &call, "presented-key").await;
    assert_eq!(again.text(), first.text());
}

#[tokio::test]
async fn answer_beyond_the_size_limit_is_served_but_not_stored() {
    let bounds = "[idempotency]\nanswer_bytes_max = 64\naccount_calls_max = 1\n[admin]";
    let world = Setup::default().edit("[admin]", bounds).start().await;
    let key = allowed(&world).await;
    // The response is too long to be stored. The first caller gets all of it, and a repeat is refused.
    for call in [chat("привет"), streamed("привет")] {
        let account = format!("acme-{}", call.1["stream"] == true);
        let flag = json!({ "idempotency": true });
        let key = world.key_with(&account, "10", flag).await;
        let first = sent(&world, &key, &call, "one").await;
        assert_eq!((first.status.as_u16(), first.failed), (200, false));
        assert!(first.body.len() > 64, "{first:?}");
        let after = world.settled(&key).await;
        let refused = eventually("it has ended", async || {
            let again = sent(&world, &key, &call, "one").await;
            (again.status == 409).then_some(again)
        })
        .await;
        assert_eq!(refused.json()["error"]["code"], "idempotent_answer_gone");
        assert!(refused.refusal().contains("новый ключ идемпотентности"));
        assert_eq!(refused.headers["x-should-retry"], "false");
        assert_eq!(
            world.settled(&key).await["balance_rub"],
            after["balance_rub"]
        );
    }
    let first = sent(&world, &key, &chat("привет"), "one").await;
    assert!(!first.headers.contains_key("idempotent-stored"));
    for _ in 0..2 {
        let next = sent(&world, &key, &chat("привет"), "two").await;
        assert_eq!((next.status.as_u16(), replayed(&next)), (200, None));
        assert_eq!(next.headers["idempotent-stored"], "false");
    }
    assert_eq!(world.vendor.received().len(), 5);
}

/// Starts a gateway in a separate process, with its ledger on this Redis server.
fn process(dir: &std::path::Path, name: &str, ledger: &str, vendor: &ScriptedVendor) -> Served {
    let config = dir.join(format!("{name}.toml"));
    let text = ConfigText::over(ledger)
        .admin()
        .outbox(&dir.join(format!("{name}-outbox.db")))
        .chat_and_messages(vendor.address(), "", "")
        .text()
        .replacen("[admin]", "[idempotency]\nlease_seconds = 1\n[admin]", 1);
    std::fs::write(&config, text).unwrap();
    Start::new(&config, &dir.join(format!("{name}.log"))).spawn()
}

#[tokio::test]
async fn repeat_of_a_call_whose_gateway_was_killed_runs_elsewhere_and_is_charged_once() {
    let server = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let vendor = ScriptedVendor::start().await.unwrap();
    let one = process(dir.path(), "one", &server.url(), &vendor);
    let origin = format!("http://{}", one.serving().await.0);
    let world = Setup::default()
        .ledger(&server.url())
        .edit("[admin]", "[idempotency]\nlease_seconds = 1\n[admin]")
        .start()
        .await;
    let key = allowed(&world).await;
    vendor.script(held(&Arc::new(Notify::new())));
    let (path, body) = streamed("привет");
    let running = world.send(ask(&origin, &key, path, &body, "one")).await;
    assert_eq!(running.status(), 200);
    one.kill();
    sent(&world, &key, &(path, body.clone()), "one")
        .await
        .expect(409);
    let answer = eventually("the claim's time is over", async || {
        let answer = sent(&world, &key, &(path, body.clone()), "one").await;
        (answer.status != 409).then_some(answer)
    })
    .await;
    assert_eq!((answer.status.as_u16(), replayed(&answer)), (200, None));
    let receipt = world.receipt(&answer.number()).await;
    let spent = world.settled(&key).await;
    // The killed gateway recorded a checkpoint of its call. After its restart, it sends the checkpoint to the ledger.
    // The ledger charges nothing for it, because the repeated call was charged.
    let one = process(dir.path(), "one", &server.url(), &vendor);
    let origin = format!("http://{}", one.serving().await.0);
    let again = world.ask(ask(&origin, &key, path, &body, "one")).await;
    assert_eq!(again.body, answer.body);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let books = world.settled(&key).await;
    assert_eq!(books["balance_rub"], spent["balance_rub"]);
    assert_eq!(books["spent_rub"], receipt["charged_rub"]);
    assert_eq!(world.vendor.received().len(), 1);
}

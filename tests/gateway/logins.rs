//! Tests of vendors that accept no fixed key: vendors with login tokens, and vendors that need their own headers, paths
//! and queries.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::time::{Instant, sleep};
use tollgate::demo::vendor::{Received, ScriptedVendor};

use crate::{prelude::*, secrets::TOKEN};

const NAME: &str = "name = \"chat-vendor\"\n";

/// Starts a gateway whose Chat Completions vendor has these additional lines in the configuration.
async fn with_lines(lines: &str) -> World {
    let edit = format!("{NAME}{lines}\n");
    Setup::default().edit(NAME, &edit).start().await
}

/// Starts a gateway that gets tokens for its Chat Completions vendor from this token endpoint.
async fn with_tokens_of(endpoint: &ScriptedVendor) -> World {
    with_lines(&login_at(endpoint)).await
}

/// Returns the configuration of a vendor's login that gets tokens from this endpoint.
pub fn login_at(endpoint: &ScriptedVendor) -> String {
    format!(
        "login = {{ kind = \"oauth\", url = \"http://{}/oauth\", basic = \"${{VENDOR_KEY}}\", scope = \"S\" }}",
        endpoint.address()
    )
}

/// Starts a token endpoint that issues the tokens `TOKEN-0`, `TOKEN-1`, …, each valid for half an hour. `TOKEN` is one
/// of the secrets for which this test binary searches all logs, responses and files.
pub async fn token_endpoint() -> ScriptedVendor {
    let endpoint = ScriptedVendor::start().await.unwrap();
    let issued = AtomicUsize::new(0);
    endpoint.script(move |_| {
        let number = issued.fetch_add(1, Ordering::SeqCst);
        Reply::json(
            200,
            &json!({ "access_token": format!("{TOKEN}-{number}"), "expires_in": 1800 }),
        )
    });
    endpoint
}

/// Makes the vendor accept only tokens whose number is at least `first`.
fn accept_from(world: &World, first: &Arc<AtomicUsize>) {
    let first = Arc::clone(first);
    world.vendor.script(move |received: &Received| {
        let sent = received.headers["authorization"].to_str().unwrap();
        let (_, number) = sent.rsplit_once('-').unwrap();
        if number.parse::<usize>().unwrap() < first.load(Ordering::SeqCst) {
            return refusal(401, &format!("Token has expired: {sent}"));
        }
        plain_reply(Op::Chat, "hello", 10, 5)
    });
}

#[tokio::test]
async fn one_login_token_serves_all_calls_until_the_vendor_refuses_it() {
    let endpoint = token_endpoint().await;
    let world = with_tokens_of(&endpoint).await;
    let first = Arc::new(AtomicUsize::new(0));
    accept_from(&world, &first);
    let key = world.key().await;
    let body = chat_body("x");
    let calls = (0..20).map(|_| world.chat(&key, &body));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let requested = endpoint.received();
    assert_eq!(requested.len(), 1);
    assert_eq!(requested[0].path, "/oauth");
    assert_eq!(
        requested[0].headers["authorization"],
        format!("Basic {VENDOR_KEY}")
    );
    assert_eq!(requested[0].body, "grant_type=client_credentials&scope=S");

    // The gateway does not renew a token that is less than a second old.
    sleep(Duration::from_millis(1100)).await;
    first.store(1, Ordering::SeqCst);
    let body = chat_body("x");
    let calls = (0..20).map(|_| world.chat(&key, &body));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(endpoint.received().len(), 2);
    // The charge is that of 40 calls with 10 input tokens and 5 output tokens each. Attempts that the vendor refused
    // cost nothing.
    let account = world.settled(&key).await;
    assert_eq!(account["balance_rub"], "999.92", "{account}");
}

#[tokio::test]
async fn calls_continue_if_the_vendor_ends_tokens_early() {
    const LIFE: Duration = Duration::from_millis(1300);
    let endpoint = token_endpoint().await;
    let world = with_tokens_of(&endpoint).await;
    // The vendor accepts each token only for `LIFE` after its first use, although the token should be valid for half an
    // hour.
    let first_uses = Mutex::new(Vec::new());
    world.vendor.script(move |received: &Received| {
        let sent = received.headers["authorization"].to_str().unwrap();
        let (_, number) = sent.rsplit_once('-').unwrap();
        let mut uses = first_uses.lock().unwrap();
        let number: usize = number.parse().unwrap();
        if number == uses.len() {
            uses.push(Instant::now());
        }
        if uses[number].elapsed() > LIFE {
            return refusal(401, "Token has expired");
        }
        plain_reply(Op::Chat, "hello", 10, 5)
    });
    let key = world.key().await;
    let body = chat_body("x");
    let (began, mut calls) = (Instant::now(), 0);
    while began.elapsed() < 3 * LIFE {
        let answers = (0..4).map(|_| world.chat(&key, &body));
        for answer in futures_util::future::join_all(answers).await {
            assert_eq!(answer.status, 200, "{answer:?}");
            calls += 1;
        }
    }
    let refused = world.vendor.received().len() - calls;
    let tokens = endpoint.received().len();
    assert!((3..=4).contains(&tokens), "{tokens} tokens");
    // Each call in flight is repeated at most once for each token that the vendor stopped accepting.
    assert!((tokens - 1..=4 * tokens).contains(&refused), "{refused}");
}

#[tokio::test]
async fn metrics_show_the_age_of_a_vendors_login_token_and_its_login_failures() {
    let endpoint = token_endpoint().await;
    let world = with_tokens_of(&endpoint).await;
    let value = async |name: &str| {
        let text = world.admin_get("/metrics").await.text();
        let start = format!("{name}{{vendor=\"chat-vendor\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.map(|value| value.parse::<f64>().unwrap())
    };
    assert_eq!(value("tollgate_vendor_token_age_seconds").await, None);
    assert_eq!(value("tollgate_vendor_login_failures").await, Some(0.0));
    let key = world.key().await;
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);
    let age = value("tollgate_vendor_token_age_seconds").await.unwrap();
    let left = value("tollgate_vendor_token_left_seconds").await.unwrap();
    assert!((0.0..60.0).contains(&age), "{age}");
    assert!((1700.0..=1790.0).contains(&left), "{left}");

    // The vendor refuses the token, and the endpoint issues no other token.
    endpoint.script(|_| Reply::json(500, &json!({})));
    world.vendor_sends(refusal(401, "Token has expired"));
    sleep(Duration::from_millis(1100)).await;
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 503);
    assert_eq!(value("tollgate_vendor_token_age_seconds").await, None);
    assert_eq!(value("tollgate_vendor_login_failures").await, Some(1.0));
}

#[tokio::test]
async fn vendor_signature_is_corrected_within_one_call_if_the_clock_is_five_minutes_off() {
    for offset_s in [-300_i64, 300] {
        // Logins with equal settings share the correction of their clock. So the two logins of this test have different
        // access keys.
        let world = with_lines(&format!(
            "login = {{ kind = \"aws\", region = \"eu-west-1\", access_key_id = \"AKID{offset_s}\", \
             secret_access_key = \"${{VENDOR_KEY}}\" }}"
        ))
        .await;
        // AWS refuses a signature whose time differs from its own by more than five minutes. The fake refuses a
        // difference of more than one minute.
        world.vendor.script(move |received: &Received| {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_secs();
            let now = UNIX_EPOCH + Duration::from_secs(now.saturating_add_signed(offset_s));
            let date = httpdate::fmt_http_date(now);
            let near = [0, 1, 2, 3].map(|late| {
                let at = httpdate::HttpDate::from(now - Duration::from_secs(late));
                httpdate::fmt_http_date(at.into())
            });
            let sent = received.headers["x-amz-date"].to_str().unwrap();
            let is_near = near.iter().any(|date| date.contains(&clock_of(sent)));
            let reply = match is_near {
                true => plain_reply(Op::Chat, "hello", 10, 5),
                false => refusal(403, "Signature expired")
                    .header("x-amzn-errortype", "InvalidSignatureException"),
            };
            reply.header("date", date)
        });
        let key = world.key().await;
        for calls in [2, 3] {
            assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);
            assert_eq!(world.vendor.received().len(), calls, "{offset_s}");
        }
    }
}

/// Returns the time of day of a date in the format 20261129T170502Z, here 17:05:02.
fn clock_of(date: &str) -> String {
    let (_, time) = date.split_once('T').unwrap();
    format!("{}:{}:{}", &time[..2], &time[2..4], &time[4..6])
}

/// The fake vendor responds like `streamRawPredict` of Vertex AI, as Anthropic and Google document it: it refuses a
/// body with `model` or without `anthropic_version`.
#[tokio::test]
async fn request_to_vertex_has_the_model_in_its_path_and_the_version_in_its_body() {
    let lines = "name = \"messages-vendor\"\npath = \"/models/{model}:streamRawPredict\"\n\
                 anthropic_version = \"vertex-2023-10-16\"\nlogin = { prefix = \"Bearer \" }\n";
    let world = Setup::default()
        .edit("name = \"messages-vendor\"\n", lines)
        .start()
        .await;
    world.vendor.script(|received: &Received| {
        let body = received.json();
        let is_good =
            body.get("model").is_none() && body["anthropic_version"] == "vertex-2023-10-16";
        match is_good && body["max_tokens"].is_u64() {
            true => plain_reply(Op::Messages, "hello", 10, 5),
            false => refusal(400, "model: Extra inputs are not permitted"),
        }
    });
    let key = world.key().await;
    world.messages(&key, &messages_body("x")).await.expect(200);
    // The call has the Chat Completions format, so it is translated.
    let mut chat = chat_body("x");
    chat["model"] = "messages".into();
    world.chat(&key, &chat).await.expect(200);
    for received in world.vendor.received() {
        assert_eq!(received.path, "/models/vendor-messages-1:streamRawPredict");
        assert_eq!(
            received.headers["authorization"],
            format!("Bearer {VENDOR_KEY}")
        );
    }
}

#[tokio::test]
async fn refused_vendor_login_costs_nothing_and_is_answered_with_503_without_secrets() {
    let endpoint = ScriptedVendor::start().await.unwrap();
    endpoint.script(|_| {
        Reply::json(
            401,
            &json!({ "code": 6, "message": format!("bad key {VENDOR_KEY}") }),
        )
    });
    let world = with_tokens_of(&endpoint).await;
    let key = world.key().await;
    for _ in 0..3 {
        let answer = world.chat(&key, &chat_body("x")).await;
        refused("login", &answer, 503, API, "vendor_unavailable");
        cost_nothing("login", &world, &key, &answer).await;
    }
    assert!(world.vendor.received().is_empty());
    assert!(endpoint.received().len() < 3, "not called for each call");
}

#[tokio::test]
async fn vendor_that_refuses_every_login_token_is_called_twice() {
    let endpoint = token_endpoint().await;
    let world = with_tokens_of(&endpoint).await;
    let first = Arc::new(AtomicUsize::new(0));
    accept_from(&world, &first);
    let key = world.key().await;
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);
    sleep(Duration::from_millis(1100)).await;
    first.store(99, Ordering::SeqCst);
    let answer = world.chat(&key, &chat_body("x")).await;
    refused("refused twice", &answer, 503, API, "vendor_unavailable");
    assert_eq!(world.vendor.received().len(), 3);
    assert_eq!(endpoint.received().len(), 2);
}

#[tokio::test]
async fn request_to_a_vendor_has_the_configured_path_query_headers_and_key_header() {
    let lines = "path = \"/deployments/{model}/chat/completions\"\n\
                 query = { api-version = \"2024-10-21\" }\n\
                 headers = { OpenAI-Project = \"proj_1\" }\n\
                 login = { header = \"api-key\" }";
    let world = with_lines(lines).await;
    let key = world.key().await;
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);
    let received = &world.vendor.received()[0];
    assert_eq!(
        received.path,
        "/v1/deployments/vendor-chat-1/chat/completions?api-version=2024-10-21"
    );
    assert_eq!(received.headers["api-key"], VENDOR_KEY);
    assert_eq!(received.headers["openai-project"], "proj_1");
    assert!(!received.headers.contains_key("authorization"));
}

#[tokio::test]
async fn vendor_configured_without_a_login_gets_no_key() {
    let world = with_lines("login = { kind = \"none\" }").await;
    let key = world.key().await;
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);
    let received = &world.vendor.received()[0];
    assert!(!received.headers.contains_key("authorization"));
}

#[tokio::test]
async fn request_signed_for_aws_has_the_host_that_it_was_sent_to() {
    let world = with_lines(
        "login = { kind = \"aws\", region = \"eu-west-1\", access_key_id = \"AKIDEXAMPLE\", secret_access_key = \"${VENDOR_KEY}\" }",
    )
    .await;
    let key = world.key().await;
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);
    let received = &world.vendor.received()[0];
    let authorization = received.headers["authorization"].to_str().unwrap();
    has(
        authorization,
        "/eu-west-1/bedrock/aws4_request, SignedHeaders=content-type;host;x-amz-date, ",
    );
    assert_eq!(received.headers["host"], world.vendor.address().to_string());
}

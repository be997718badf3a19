//! Vendors that accept no fixed key: tokens over real sockets, and vendors with their own headers, paths and queries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::time::sleep;
use tollgate::demo::vendor::{Received, Reply, ScriptedVendor};

use crate::{
    checks::{API, cost_nothing, refused},
    harness::{Setup, VENDOR_KEY, World, chat_body},
    ops::Op,
    replies::{answer, refusal, usage},
};

const NAME: &str = "name = \"chat-vendor\"\n";

/// A gateway whose chat vendor has these further lines in its configuration.
async fn with_lines(lines: &str) -> World {
    let edit = format!("{NAME}{lines}\n");
    Setup::default().edit(NAME, &edit).start().await
}

/// A gateway that gets tokens for its chat vendor from this endpoint.
async fn with_tokens_of(endpoint: &ScriptedVendor) -> World {
    with_lines(&format!(
        "login = {{ kind = \"oauth\", url = \"http://{}/oauth\", basic = \"${{VENDOR_KEY}}\", scope = \"S\" }}",
        endpoint.address()
    ))
    .await
}

/// An endpoint that issues the tokens `t-0`, `t-1`, …, each valid for half an hour.
async fn token_endpoint() -> ScriptedVendor {
    let endpoint = ScriptedVendor::start().await.unwrap();
    let issued = AtomicUsize::new(0);
    endpoint.script(move |_| {
        let number = issued.fetch_add(1, Ordering::SeqCst);
        Reply::json(
            200,
            &json!({ "access_token": format!("t-{number}"), "expires_in": 1800 }),
        )
    });
    endpoint
}

/// From now on the vendor accepts only tokens whose number is at least `first`.
fn accept_from(world: &World, first: &Arc<AtomicUsize>) {
    let first = Arc::clone(first);
    world.vendor.script(move |received: &Received| {
        let sent = received.headers["authorization"].to_str().unwrap();
        let number = sent.strip_prefix("Bearer t-").unwrap();
        if number.parse::<usize>().unwrap() < first.load(Ordering::SeqCst) {
            return refusal(401, "Token has expired");
        }
        Reply::json(200, &answer(Op::Chat, "hello", &usage(Op::Chat, 10, 5)))
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
    let asked = endpoint.received();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].path, "/oauth");
    assert_eq!(
        asked[0].headers["authorization"],
        format!("Basic {VENDOR_KEY}")
    );
    assert_eq!(asked[0].body, "grant_type=client_credentials&scope=S");

    // The gateway does not renew a token that is less than a second old.
    sleep(Duration::from_millis(1100)).await;
    first.store(1, Ordering::SeqCst);
    let body = chat_body("x");
    let calls = (0..20).map(|_| world.chat(&key, &body));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(endpoint.received().len(), 2);
    // 40 calls with 10 input and 5 output tokens were charged. Attempts that the vendor refused cost nothing.
    let account = world.settled(&key).await;
    assert_eq!(account["balance_rub"], "999.92", "{account}");
}

#[tokio::test]
async fn refused_vendor_login_is_a_free_503_without_secrets() {
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
async fn vendor_gets_the_configured_key_header_path_query_and_headers() {
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
async fn vendor_whose_login_is_none_gets_no_key() {
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
    assert!(
        authorization.contains(
            "/eu-west-1/bedrock/aws4_request, SignedHeaders=content-type;host;x-amz-date, "
        ),
        "{authorization}"
    );
    assert_eq!(received.headers["host"], world.vendor.address().to_string());
}

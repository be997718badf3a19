//! Tests of calls without a receipt. A record of such a call is stored: it is found by the call's number after a
//! restart and on every gateway, and it does not contain the content of the call.

use std::collections::BTreeSet;

use http::Request;
use http_body_util::Full;
use tokio::task::JoinSet;
use tollgate_ledger::unbooked::{SqliteUnbooked, UnbookedBounds, UnbookedQuery, UnbookedStore};

use crate::{
    console::Browser,
    ledger::folder,
    prelude::*,
    support::{
        process::{PATIENCE, Start},
        redis::RedisCluster,
    },
};

const SECRET: &str = "a question that nobody else may read";

/// Makes a call that is refused. Returns its request number.
async fn refused(world: &World, key: &Key) -> String {
    let body = with(chat_body("x"), json!({ "model": "none" }));
    let answer = world.chat(key, &body).await.expect(503);
    answer.number()
}

async fn call(world: &World, number: &str) -> Answer {
    let path = format!("/admin/v1/calls/{number}");
    world.admin_get(&path).await
}

/// Waits until this gateway returns a record of the call.
async fn found(world: &World, number: &str) -> Value {
    eventually("the call is found", async || {
        let answer = call(world, number).await;
        (answer.status == 200).then(|| answer.json())
    })
    .await
}

async fn listed(world: &World, query: &str) -> Vec<String> {
    let path = format!("/admin/v1/calls?{query}");
    let page = world.admin_get(&path).await.json();
    let calls = page["calls"].as_array().unwrap_or_else(|| panic!("{page}"));
    let numbers = calls
        .iter()
        .map(|call| call["number"].as_str().unwrap().to_owned());
    numbers.collect()
}

#[tokio::test]
async fn refused_call_is_found_after_a_restart() {
    let folder = folder();
    let path = folder.path().join("books.db");
    let url = format!("sqlite:{}", path.display());
    let (world, key) = Setup::default().ledger(&url).start_with_key().await;
    let numbers = [refused(&world, &key).await, refused(&world, &key).await];
    let before = [
        found(&world, &numbers[0]).await,
        found(&world, &numbers[1]).await,
    ];
    assert_eq!(before[0]["code"], "model_not_found");
    world.gateway.drain().await.unwrap();
    let file = folder.path().join("books.db.calls");
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    let world = Setup::default().ledger(&url).start().await;
    for (number, before) in numbers.iter().zip(before) {
        assert_eq!(call(&world, number).await.json(), before);
    }
    let latest_first = [numbers[1].clone(), numbers[0].clone()];
    for query in [
        "".to_owned(),
        "account=acme".into(),
        format!("key={}", key.id),
        "code=model_not_found".into(),
        "model=none&since=2020-01-01".into(),
    ] {
        let found: BTreeSet<String> = listed(&world, &query).await.into_iter().collect();
        assert_eq!(found, latest_first.clone().into(), "{query}");
    }
    for query in ["account=other", "code=account_empty", "until=2020-01-01"] {
        assert_eq!(listed(&world, query).await, [""; 0], "{query}");
    }
}

async fn second_gateway_finds_a_refused_call(url: &str) {
    let one = Setup::default().ledger(url).start().await;
    let two = Setup::default().ledger(url).start().await;
    let key = one.key().await;
    let number = refused(&one, &key).await;
    let of_one = found(&one, &number).await;
    assert_eq!(found(&two, &number).await, of_one);
    let me = Browser::admin(&two).await;
    let html = me.page(&two, &format!("/console/calls/{number}")).await;
    assert!(html.contains("model_not_found"), "{html}");
    assert!(!html.contains("Only this node lists the call"), "{html}");
    let html = me.page(&two, "/console/calls?end=refused").await;
    assert!(html.contains(&number), "{html}");
    // When a gateway stops, it stores its last refused calls.
    let last = refused(&one, &key).await;
    one.gateway.drain().await.unwrap();
    assert_eq!(call(&two, &last).await.status, 200);
    // If the key was unknown, only the gateway that has refused the call has a record of it.
    let stranger = Key {
        secret: format!("{}x", key.secret),
        ..key
    };
    let answer = two.chat(&stranger, &chat_body("x")).await;
    assert_eq!(
        found(&two, &answer.number()).await["code"],
        "invalid_api_key"
    );
}

#[tokio::test]
async fn refused_call_is_found_by_another_gateway_on_the_same_redis_server() {
    let server = RedisServer::start().await;
    second_gateway_finds_a_refused_call(&server.url()).await;
}

#[tokio::test]
async fn refused_call_is_found_by_another_gateway_on_the_same_cluster() {
    let cluster = RedisCluster::start(3, 0).await;
    second_gateway_finds_a_refused_call(&cluster.url()).await;
}

#[tokio::test]
async fn stored_refused_calls_do_not_exceed_the_configured_number() {
    let few = "[ledger]\nrefused_calls_max = 3\n";
    let (world, key) = Setup::default()
        .edit("[ledger]\n", few)
        .start_with_key()
        .await;
    let mut numbers = BTreeSet::new();
    for _ in 0..6 {
        numbers.insert(refused(&world, &key).await);
        // The order of calls of the same millisecond is undefined.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let newest: BTreeSet<String> = numbers.iter().rev().take(3).cloned().collect();
    eventually("the oldest are removed", async || {
        let left: BTreeSet<String> = listed(&world, "").await.into_iter().collect();
        (left == newest).then_some(())
    })
    .await;
    let oldest = numbers.first().unwrap();
    let gone = call(&world, oldest).await.expect(404);
    has(
        &gone.text(),
        "at most 3 calls without a receipt are stored, for 30 days",
    );

    for off in ["refused_calls_max = 0", "refused_calls_days = 0"] {
        let off = format!("[ledger]\n{off}\n");
        let (world, key) = Setup::default()
            .edit("[ledger]\n", &off)
            .start_with_key()
            .await;
        let number = refused(&world, &key).await;
        let none = call(&world, &number).await.expect(404);
        assert!(none.text().contains("are not stored"), "{none:?}");
        assert_eq!(listed(&world, "").await, [""; 0]);
    }
}

#[tokio::test]
async fn stored_refused_call_contains_no_prompt_and_no_vendor_text() {
    let folder = folder();
    let url = format!("sqlite:{}", folder.path().join("books.db").display());
    let (world, key) = Setup::default().ledger(&url).start_with_key().await;
    world.vendor_sends(refusal(400, &format!("not allowed: {SECRET}")));
    let by_vendor = world.chat(&key, &chat_body(SECRET)).await;
    eventually("the hold is released", async || {
        let call = call(&world, &by_vendor.number()).await;
        (call.status == 200 && call.json()["state"] == "released").then_some(())
    })
    .await;
    let by_gateway =
        json!({ "model": "chat", "messages": [{ "role": SECRET, "content": SECRET }] });
    let by_gateway = world.chat(&key, &by_gateway).await.expect(400);
    let call = found(&world, &by_gateway.number()).await;
    assert_eq!(call["field"], "messages[0].role", "{call}");
    world.gateway.drain().await.unwrap();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap().path();
        let bytes = std::fs::read(&file).unwrap();
        let mut parts = bytes.windows(SECRET.len());
        assert!(!parts.any(|part| part == SECRET.as_bytes()), "{file:?}");
    }
}

/// A gateway is killed while it stores refused calls. After its restart, it returns every call that was stored.
#[tokio::test]
async fn stored_refused_calls_survive_a_kill_in_the_middle_of_a_flood() {
    let folder = folder();
    let books = folder.path().join("books.db");
    let url = format!("sqlite:{}", books.display());
    let (world, key) = Setup::default().ledger(&url).start_with_key().await;
    let config = folder.path().join("tollgate.toml");
    let outbox = folder.path().join("outbox.db");
    std::fs::write(&config, config_text(world.vendor.address(), &url, outbox)).unwrap();
    world.gateway.drain().await.unwrap();

    let log = folder.path().join("log");
    let served = Start::new(&config, &log).spawn();
    let (callers, _) = served.serving().await;
    let flood = format!("http://{callers}/v1/chat/completions");
    let bearer = format!("Bearer {}", key.secret);
    let mut senders = JoinSet::new();
    for _ in 0..4 {
        let (flood, bearer) = (flood.clone(), bearer.clone());
        senders.spawn(async move {
            let client = client();
            let body = with(chat_body("x"), json!({ "model": "none" }));
            let send = || -> Request<Full<bytes::Bytes>> {
                let headers = [
                    ("authorization", bearer.as_str()),
                    ("content-type", "application/json"),
                ];
                request(Method::POST, &flood, &headers, body.to_string().into())
            };
            while let Ok(answer) = client.request(send()).await {
                drop(answer);
            }
        });
    }
    let bounds = UnbookedBounds {
        calls_max: u64::MAX,
        age_max: Duration::from_secs(3600),
    };
    let file = SqliteUnbooked::new(&folder.path().join("books.db.calls"), bounds);
    let stored = within(PATIENCE, "calls are stored", async || {
        let page = <dyn UnbookedStore>::page(&file, &UnbookedQuery::latest(200)).await;
        let calls = page.unwrap().calls;
        (calls.len() >= 200).then_some(calls)
    })
    .await;
    served.kill();
    while senders.join_next().await.is_some() {}

    let served = Start::new(&config, &log).spawn();
    let (_, operators) = served.serving().await;
    let operators = operators.unwrap();
    let bearer = format!("Bearer {ADMIN_KEY}");
    for call in &stored {
        let path = format!("http://{operators}/admin/v1/calls/{}", call.number);
        let req = request(
            Method::GET,
            &path,
            &[("authorization", bearer.as_str())],
            "".into(),
        );
        let answer = whole(client().request(req).await.unwrap())
            .await
            .expect(200);
        assert_eq!(answer.json()["code"], "model_not_found");
    }
}

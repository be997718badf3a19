//! Tests of a Redis that dies, loses its data, or stops responding. Meanwhile nothing new is spent (invariant I13), no
//! charge is lost (invariant I7), and the gateway continues to run.

use http::{Response, StatusCode};
use hyper::body::Incoming;
use tokio::time::Instant;
use tollgate::demo::script::polite;
use tollgate_layers::reserve::ledger::{Ledger, LedgerAdmin};

use crate::{
    edge::Edge,
    ledger::{self, acme, hold, is_sound, number, open, settlement},
    prelude::*,
};

/// While the ledger does not respond, a caller must be refused within this time.
const SOON: Duration = Duration::from_secs(1);

/// The cost of a call with `chat_body("Привет")`, in rubles, if the vendor reports the usual usage.
const COST: &str = "0.0015";

async fn over(url: &str) -> World {
    Setup::default().ledger(url).start().await
}

/// Checks that the call is soon refused because the ledger is unreachable, with a `retry-after` header.
async fn is_away(answering: impl Future<Output = Answer>) -> Answer {
    let requested = Instant::now();
    let answer = answering.await;
    let took = requested.elapsed();
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    assert!(took < SOON, "{took:?}");
    let wait: u64 = answer.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(wait >= 1);
    assert_eq!(answer.json()["error"]["code"], "ledger_unavailable");
    answer.refusal();
    answer
}

/// Starts a stream, kills the Redis server in the middle of it, and checks that the stream ends normally. Returns its
/// request number.
async fn streams_past_its_death(server: &RedisServer, world: &World, key: &Key) -> String {
    let go_on = Arc::new(Notify::new());
    let res = half_read(world, key, &go_on).await;
    let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
    server.kill();
    go_on.notify_one();
    ends_undisturbed(res).await;
    number
}

/// Starts a stream whose vendor waits in the middle. Reads the stream up to its middle.
async fn half_read(world: &World, key: &Key, go_on: &Arc<Notify>) -> Response<Incoming> {
    let go_on = Arc::clone(go_on);
    world
        .vendor
        .script(move |received| polite(received).with_step(2, Step::Hold(Arc::clone(&go_on))));
    let req = world.chat_request(key, &with(chat_body("Привет"), json!({ "stream": true })));
    let mut res = world.send(req).await;
    assert_eq!(res.status(), StatusCode::OK);
    let mut read = String::new();
    while !read.contains("Вы ") {
        read += &next_text(res.body_mut()).await.unwrap();
    }
    world.vendor.script(polite);
    res
}

async fn ends_undisturbed(res: Response<Incoming>) {
    let rest = whole(res).await;
    assert!(!rest.failed, "{rest:?}");
    let text = rest.text();
    assert!(text.contains("Привет"), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test]
async fn call_is_refused_without_a_request_to_a_vendor_while_redis_is_down() {
    let server = RedisServer::start().await;
    let world = over(&server.url()).await;
    let known = world.key().await;
    // The gateway has never looked up this key. So the record of the key is not cached, and cannot be read now.
    let unknown = world.another_key("acme", json!({})).await;
    assert_eq!(world.chat(&known, &chat_body("Привет")).await.status, 200);
    world.settled(&known).await;
    server.kill();
    for _ in 0..3 {
        for key in [&known, &unknown] {
            is_away(world.chat(key, &chat_body("Привет"))).await;
            is_away(world.messages(key, &messages_body("Привет"))).await;
            let stream = with(chat_body("Привет"), json!({ "stream": true }));
            is_away(world.chat(key, &stream)).await;
        }
    }
    assert_eq!(world.vendor.received().len(), 1, "I6");
    // The gateway still answers requests that cost nothing.
    assert_eq!(world.get("/", &[]).await.status, 200);
    assert_eq!(world.get("/v1/tollgate/models", &[]).await.status, 200);
}

#[tokio::test]
async fn stream_finishes_while_redis_is_down_and_is_charged_once_afterwards() {
    let server = RedisServer::start_durable().await;
    let world = over(&server.url()).await;
    let key = world.key().await;
    let number = streams_past_its_death(&server, &world, &key).await;
    is_away(world.chat(&key, &chat_body("Привет"))).await;

    server.restart().await;
    let receipt = world.receipt(&number).await;
    assert_eq!(receipt["charged_rub"], COST, "{receipt}");
    assert_eq!(receipt["booked"], "held", "{receipt}");
    let account = world.settled(&key).await;
    assert_eq!(account["balance_rub"], "999.9985", "{account}");
    let served = served_again(&world, &key).await;
    world.receipt(&served).await;
    assert_eq!(world.settled(&key).await["balance_rub"], "999.997");
    is_sound(world.gateway.store()).await;
}

/// Repeats a call until it is served. Each earlier attempt must be refused with 503. Returns the request number of the
/// served call.
async fn served_again(world: &World, key: &Key) -> String {
    let answer = eventually("calls are served again", async || {
        let answer = world.chat(key, &chat_body("Привет")).await;
        let refused = answer.status == StatusCode::SERVICE_UNAVAILABLE;
        assert!(refused || answer.status == StatusCode::OK, "{answer:?}");
        (!refused).then_some(answer)
    });
    answer.await.number()
}

/// While Redis has no data, the gateway must not refuse keys as unknown, and must not lose a charge.
#[tokio::test]
async fn no_call_is_served_from_a_redis_that_lost_its_data_until_the_data_is_restored() {
    let server = RedisServer::start_durable().await;
    let world = over(&server.url()).await;
    let key = world.key().await;
    assert_eq!(world.chat(&key, &chat_body("Привет")).await.status, 200);
    world.settled(&key).await;
    // The gateway has never looked up this key, so the record of the key is not cached.
    let unknown = world.another_key("acme", json!({})).await;
    let go_on = Arc::new(Notify::new());
    let res = half_read(&world, &key, &go_on).await;
    let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(world.vendor.received().len(), 2);
    server.kill();
    let empty = RedisServer::start_on(server.port()).await;

    for _ in 0..5 {
        is_away(world.chat(&key, &chat_body("Привет"))).await;
        is_away(world.chat(&unknown, &chat_body("Привет"))).await;
    }
    assert_eq!(world.vendor.received().len(), 2, "I6");
    // The stream ends normally, although its account is missing from the empty Redis and cannot be charged now.
    go_on.notify_one();
    ends_undisturbed(res).await;
    is_away(world.chat(&key, &chat_body("Привет"))).await;
    // Operators get an error as well, and do not see an empty ledger.
    for (method, path) in [
        (Method::GET, "/admin/v1/accounts"),
        (Method::GET, "/admin/v1/accounts/acme"),
        (Method::POST, "/admin/v1/audit"),
    ] {
        let answer = world.admin(method, path, None).await;
        assert_eq!(answer.status, 503, "{path}: {answer:?}");
    }

    empty.kill();
    server.restart().await;
    let receipt = world.receipt(&number).await;
    assert_eq!(receipt["charged_rub"], COST, "{receipt}");
    assert_eq!(receipt["booked"], "held", "{receipt}");
    let served = served_again(&world, &key).await;
    world.receipt(&served).await;
    assert_eq!(world.settled(&key).await["spent_rub"], "0.0045");
    is_sound(world.gateway.store()).await;
}

#[tokio::test]
async fn restarted_gateway_on_an_empty_redis_starts_a_new_ledger() {
    let server = RedisServer::start().await;
    let world = over(&server.url()).await;
    let key = world.key().await;
    server.kill();
    let empty = RedisServer::start_on(server.port()).await;
    is_away(world.chat(&key, &chat_body("Привет"))).await;

    let anew = over(&empty.url()).await;
    let answer = anew.chat(&key, &chat_body("Привет")).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{answer:?}");
    let newcomer = anew.key_with("newcomer", "1", json!({})).await;
    let served = served_again(&anew, &newcomer).await;
    assert_eq!(anew.receipt(&served).await["charged_rub"], COST);
    assert_eq!(anew.settled(&newcomer).await["balance_rub"], "0.9985");
    is_sound(anew.gateway.store()).await;
    // The first gateway does not accept the new data set, even after another gateway has begun to use it.
    is_away(world.chat(&newcomer, &chat_body("Привет"))).await;
}

#[tokio::test]
async fn gateway_started_while_redis_loads_its_data_waits_and_then_serves() {
    // Redis is slowed down: it needs one millisecond to load each entry.
    let slowly = ["--key-load-delay", "1000"];
    let often = ["--loading-process-events-interval-bytes", "1024"];
    let server = RedisServer::start_with(&[slowly, often].concat()).await;
    let key = over(&server.url()).await.key().await;
    let fill = "for i = 1, 3000 do redis.call('SET', 'filler:' .. i, i) end return 1";
    let _: i64 = server.ask(&["EVAL", fill, "0"]).await.unwrap();
    let _: String = server.ask(&["SAVE"]).await.unwrap();
    server.restart_loading().await;
    let world = over(&server.url()).await;
    assert_eq!(world.chat(&key, &chat_body("Привет")).await.status, 200);
}

/// The outbox contains all charges that Redis has not acknowledged. So a shutdown waits only for a limited time and
/// loses nothing.
#[tokio::test]
async fn shutdown_without_redis_takes_bounded_time_and_loses_no_charge() {
    let server = RedisServer::start_durable().await;
    let (world, key) = Setup::default()
        .ledger(&server.url())
        .edit("[ledger]", "[limits]\ndrain_seconds = 0\n[ledger]")
        .start_with_key()
        .await;
    let number = streams_past_its_death(&server, &world, &key).await;
    let World { gateway, dir, .. } = world;
    let reported = Instant::now();
    gateway.drain().await.unwrap();
    // The shutdown waits at most five seconds for calls, and five seconds for the ledger. A busy machine adds some
    // time.
    let took = reported.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");

    server.restart().await;
    let outbox = dir.path().join("outbox.db");
    let outbox = format!("outbox = \"{}\" # \"", outbox.display());
    let next = Setup::default()
        .ledger(&server.url())
        .edit("outbox = \"", &outbox)
        .start()
        .await;
    assert_eq!(next.receipt(&number).await["charged_rub"], COST);
    assert_eq!(next.settled(&key).await["balance_rub"], "999.9985");
}

/// A shutdown waits at most `limits.drain_seconds` until the charges are acknowledged. It logs the charges that are
/// not, and the next start sends them.
#[tokio::test]
async fn shutdown_with_unacknowledged_charges_takes_the_drain_time_and_logs_them() {
    const DRAIN: Duration = Duration::from_secs(2);
    let server = RedisServer::start_durable().await;
    let limits = format!("[limits]\ndrain_seconds = {}\n[tariff]", DRAIN.as_secs());
    let edited = |text: String| text.replace("[tariff]", &limits);
    let mut edge = Edge::over_with(&server.url(), edited).await;
    edge.vendor.script(polite);
    let secret = edge.key().await;
    let body = chat_body("Привет");
    // Because of this call, the gateway caches the record of the key.
    assert_eq!(edge.chat(&secret, &body).await.status, 200);
    edge.nothing_is_held().await;
    let go_on = Arc::new(Notify::new());
    let held = Arc::clone(&go_on);
    edge.vendor
        .script(move |received| polite(received).with_step(0, Step::Hold(Arc::clone(&held))));
    let dying = async {
        eventually("the vendor is asked", async || {
            (edge.vendor.received().len() == 2).then_some(())
        })
        .await;
        server.kill();
        go_on.notify_one();
    };
    let (answer, ()) = tokio::join!(edge.chat(&secret, &body), dying);
    assert_eq!(answer.status, 200, "{answer:?}");
    edge.says("a call is not settled yet", 1).await;

    let reported = Instant::now();
    edge.signal("-TERM");
    let code = loop {
        if let Some(code) = edge.exit_code() {
            break code;
        }
        assert!(
            reported.elapsed() < Duration::from_secs(20),
            "{}",
            edge.log()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let took = reported.elapsed();
    assert_eq!(code, Some(0), "{}", edge.log());
    assert!(took >= DRAIN, "{took:?}");
    // A busy machine adds up to two seconds.
    assert!(took < DRAIN + Duration::from_secs(2), "{took:?}");
    let log = edge.log();
    let line = log
        .lines()
        .find(|line| line.contains("did not acknowledge"))
        .unwrap_or_else(|| panic!("{log}"));
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["calls"], 1, "{line}");
    let outbox = line["outbox"].as_str().unwrap();
    assert!(edge.config().contains(outbox), "{line}");

    server.restart().await;
    let next = Setup::default()
        .ledger(&server.url())
        .edit("outbox = \"", &format!("outbox = \"{outbox}\" # \""))
        .start()
        .await;
    assert_eq!(next.receipt(&answer.number()).await["charged_rub"], COST);
}

#[tokio::test]
async fn hold_requested_while_redis_was_suspended_does_not_remain() {
    let server = RedisServer::start_durable().await;
    let world = over(&server.url()).await;
    let key = world.key().await;
    // The gateway caches the record of the key for some seconds, so the next call fails only when it requests its hold.
    assert_eq!(world.chat(&key, &chat_body("Привет")).await.status, 200);
    world.settled(&key).await;
    server.stop_signal();
    // The request for the hold was sent to Redis. When Redis continues, it makes the hold, unless it has executed the
    // gateway's release of the hold before.
    let late = is_away(world.chat(&key, &chat_body("Привет")))
        .await
        .number();
    for _ in 0..3 {
        is_away(world.chat(&key, &chat_body("Привет"))).await;
    }
    server.continue_signal();

    served_again(&world, &key).await;
    let mut conn = server.connection().await.unwrap();
    let tombstone = eventually("the late hold has ended", async || {
        redis::cmd("GET")
            .arg(format!("tg:{{acme}}:d:{late}"))
            .query_async::<Option<String>>(&mut conn)
            .await
            .unwrap()
    })
    .await;
    assert_eq!(tombstone, "released:0:0");
    let account = eventually("two calls are charged and nothing is held", async || {
        let account = world.account(&key).await;
        let done = account["held_rub"] == "0.00" && account["spent_rub"] == "0.003";
        done.then_some(account)
    })
    .await;
    assert_eq!(account["balance_rub"], "999.997", "{account}");
    let audit = world.gateway.store().audit().await.unwrap();
    assert_eq!((audit.holds_open, audit.breaches), (0, Vec::new()));
    assert_eq!(world.vendor.received().len(), 2, "I6");
    let late = world.gateway.store().receipt(late.parse().unwrap()).await;
    assert!(late.is_err(), "{late:?}");
}

/// Invariant I10: data that was acknowledged before the server died still exists after the server's restart.
#[tokio::test]
async fn payments_and_keys_survive_a_redis_restart() {
    let server = RedisServer::start_durable().await;
    let world = over(&server.url()).await;
    let key = world
        .key_with("acme", "1000", json!({ "ceiling_rub": "5" }))
        .await;
    let before = world.account(&key).await;
    let operator = crate::console::Browser::admin(&world).await;
    let none = operator.get(&world, "/console/accounts/nobody").await;
    assert_eq!(none.status, StatusCode::NOT_FOUND);
    assert!(none.text().contains("Not found"), "{none:?}");
    server.kill();
    let unseen = operator.get(&world, "/console/accounts/acme").await;
    assert_eq!(unseen.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!unseen.text().contains("Not found"), "{unseen:?}");
    let topup = json!({ "id": "second", "amount_rub": "7" });
    let path = "/admin/v1/accounts/acme/topups";
    let pay = async || {
        let body: Value = topup.clone();
        world.admin_post(path, body).await
    };
    let answer = pay().await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers.contains_key("retry-after"));

    server.restart().await;
    // The refusal suggests a retry. The payment must be credited only once, however often the request is repeated.
    for _ in 0..2 {
        let paid = eventually("the payment is taken", async || {
            let answer = pay().await;
            answer.status.is_success().then_some(answer)
        })
        .await;
        assert_eq!(paid.json()["balance_rub"], "1007.00", "{before}");
    }
    served_again(&world, &key).await;
    world.settled(&key).await;
    is_sound(world.gateway.store()).await;
}

/// A repeated RESERVE may arrive after its call was settled and its tombstone was deleted. The new hold must not be
/// charged.
#[tokio::test]
async fn reserve_command_repeated_after_its_call_was_settled_causes_no_second_charge() {
    let server = RedisServer::start().await;
    let ledger = ledger::over(&server).await;
    open(&ledger, 1000).await;
    ledger.reserve(&hold(1, "k1", 100)).await.unwrap();
    let first = ledger.settle(&settlement(1, "k1", 70)).await.unwrap();
    let tombstone = format!("tg:{{acme}}:d:{}", number(1));
    let gone: i64 = server.ask(&["DEL", &tombstone]).await.unwrap();
    assert_eq!(gone, 1);

    ledger.reserve(&hold(1, "k1", 100)).await.unwrap();
    let again = ledger.settle(&settlement(1, "k1", 70)).await.unwrap();
    assert_eq!((again.charged, again.repeated), (first.charged, true));
    let account = ledger.account(&acme()).await.unwrap();
    assert_eq!(account.held_rub.micro(), 0);
    assert_eq!(account.spent_rub, first.charged);
    is_sound(&ledger).await;
}

//! Tests of events: an event is recorded together with the movement of money, and events can be read in order or
//! awaited. Also tests the alert levels of balances, at which events are emitted.

use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;
use tokio::time::Instant;

use crate::{
    prelude::*,
    usage_report::{reported, tollgate},
};
use tollgate_layers::reserve::ledger::{KeyChange, LedgerAdmin};
use tollgate_ledger::{
    redis::{RedisLedger, RedisSettings},
    rollup::{self, Scope},
    testing::spoil_sums,
};

const EVENTS: &str = "/admin/v1/events";

async fn get(world: &World, path: &str) -> Answer {
    world.admin_get(path).await
}

async fn events(world: &World, query: &str) -> Value {
    let answer = get(world, &format!("{EVENTS}?{query}")).await.expect(200);
    answer.json()
}

fn of<'a>(page: &'a Value, field: &str) -> Vec<&'a Value> {
    let events = page["events"].as_array().unwrap();
    events.iter().map(|event| &event[field]).collect()
}

async fn pay(world: &World, id: &str, rubles: &str) {
    let body = json!({ "id": id, "amount_rub": rubles });
    let path = "/admin/v1/accounts/acme/topups";
    world.admin_post(path, body).await.expect(200);
}

async fn alert(world: &World, path: &str, levels: Value) -> Answer {
    let body = json!({ "levels_rub": levels });
    let path = format!("/admin/v1/{path}/alerts");
    world.admin(Method::PUT, &path, Some(body)).await
}

/// Makes a call that costs 0.201 ₽.
async fn spend(world: &World, key: &Key) {
    world.vendor_sends(plain_reply(Op::Chat, "да", 10, 1000));
    let body = with(Op::Chat.body("x"), json!({ "max_tokens": 1000 }));
    world.chat(key, &body).await.expect(200);
}

#[tokio::test]
async fn events_can_be_paged_and_filtered_by_account_and_kind() {
    let world = World::start().await;
    for account in ["acme", "beta"] {
        world.key_with(account, "10", json!({})).await;
    }
    pay(&world, "second", "5").await;
    let fix = json!({ "id": "c", "amount_rub": "-1", "reason": "a mistake" });
    let path = "/admin/v1/accounts/acme/adjustments";
    world.admin_post(path, fix).await;

    let all = events(&world, "").await;
    assert_eq!(of(&all, "number"), [1, 2, 3, 4]);
    assert_eq!((&all["next_after"], &all["last"]), (&json!(4), &json!(4)));
    let first = &all["events"][0];
    assert!(first["at"].as_str().unwrap().ends_with('Z') && first["at_ms"].is_u64());
    let mut reported = first.clone();
    for time in ["at", "at_ms"] {
        reported.as_object_mut().unwrap().remove(time);
    }
    assert_eq!(
        reported,
        json!({ "number": 1, "account": "acme", "kind": "top_up", "entry": "first", "amount_rub": "10.00", "balance_rub": "10.00" })
    );
    let page = events(&world, "after=1&limit=2").await;
    assert_eq!(of(&page, "number"), [2, 3]);
    assert_eq!(page["next_after"], 3);
    let of_beta = events(&world, "account=beta").await;
    assert_eq!(of(&of_beta, "account"), ["beta"]);
    assert_eq!(of_beta["next_after"], 4, "all were looked at");
    let corrections = events(&world, "kind=correction,debt&account=acme").await;
    assert_eq!(of(&corrections, "number"), [4]);
    let none = events(&world, "after=4").await;
    assert_eq!(none["events"].as_array().unwrap().len(), 0);
    assert_eq!(none["next_after"], 4);
}

#[tokio::test]
async fn invalid_event_queries_are_400() {
    let world = World::start().await;
    for (query, begins) in [
        ("after=-1", "after: "),
        ("limit=0", "limit: must be 1 to 1000"),
        ("limit=1001", "limit: "),
        ("wait=51", "wait: must be 0 to 50"),
        ("kind=low", "kind: must be one of balance_low, "),
        ("account=a/b", "account: "),
        ("since=1", "since: unknown parameter"),
    ] {
        let answer = get(&world, &format!("{EVENTS}?{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        let text = answer.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(text.starts_with(begins), "{query}: {text}");
    }
    let url = format!("http://{}{EVENTS}", world.gateway.admin_address().unwrap());
    world
        .ask(request(Method::GET, &url, &[], Bytes::new()))
        .await
        .expect(401);
}

#[tokio::test]
async fn long_poll_returns_with_the_next_event() {
    for redis in [false, true] {
        let (server, world) = on(redis).await;
        world.key().await;
        let began = Instant::now();
        let (page, ()) = tokio::join!(events(&world, "after=1&wait=50"), async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            pay(&world, "second", "1").await;
        });
        assert_eq!(of(&page, "entry"), ["second"]);
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
        let began = Instant::now();
        let none = events(&world, "after=2&wait=1").await;
        assert_eq!(none["events"], json!([]));
        assert!(began.elapsed() >= Duration::from_secs(1));
        drop((world, server));
    }
}

/// Starts a gateway whose ledger is in memory, or in Redis.
async fn on(redis: bool) -> (Option<RedisServer>, World) {
    let limits = "[limits]\nconnections_per_address_max = 1000\n[ledger]";
    let setup = Setup::default().edit("[ledger]", limits);
    if !redis {
        return (None, setup.start().await);
    }
    let server = RedisServer::start().await;
    let world = setup.ledger(&server.url()).start().await;
    (Some(server), world)
}

/// A connection to the event stream, with the text received so far.
struct Stream {
    body: Incoming,
    text: String,
}

impl Stream {
    async fn open(world: &World, query: &str, more: &[(&str, &str)]) -> Self {
        let bearer = format!("Bearer {ADMIN_KEY}");
        let mut headers = vec![
            ("authorization", bearer.as_str()),
            ("accept", "text/event-stream"),
        ];
        headers.extend(more);
        let url = format!(
            "http://{}{EVENTS}?{query}",
            world.gateway.admin_address().unwrap()
        );
        let res = world
            .send(request(Method::GET, &url, &headers, Bytes::new()))
            .await;
        assert_eq!(res.status(), 200);
        assert_eq!(res.headers()["content-type"], "text/event-stream");
        let (body, text) = (res.into_body(), String::new());
        let mut stream = Self { body, text };
        stream.until("retry: 1000\n\n").await;
        stream
    }

    async fn until(&mut self, piece: &str) {
        let came = tokio::time::timeout(Duration::from_secs(10), async {
            while !self.text.contains(piece) {
                self.text += &next_text(&mut self.body).await.unwrap();
            }
        });
        came.await
            .unwrap_or_else(|_| panic!("no {piece:?} in {:?}", self.text));
    }
}

#[tokio::test]
async fn event_stream_delivers_new_events_and_resumes_after_the_last_received_one() {
    let world = World::start().await;
    world.key().await;
    let mut stream = Stream::open(&world, "kind=top_up", &[]).await;
    stream.until("id: 1\nevent: top_up\ndata: {\"at\":\"").await;
    pay(&world, "second", "1").await;
    stream.until("id: 2\nevent: top_up\n").await;
    drop(stream);
    pay(&world, "third", "1").await;
    let seen = [("last-event-id", "2")];
    let mut again = Stream::open(&world, "after=0", &seen).await;
    again.until("id: 3\n").await;
    assert!(!again.text.contains("id: 2\n"), "{}", again.text);
    let bearer = format!("Bearer {ADMIN_KEY}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("accept", "text/event-stream"),
        ("last-event-id", "x"),
    ];
    let url = format!("http://{}{EVENTS}", world.gateway.admin_address().unwrap());
    world
        .ask(request(Method::GET, &url, &headers, Bytes::new()))
        .await
        .expect(400);
}

#[tokio::test]
async fn alert_levels_can_be_set_for_accounts_and_keys_and_groups_and_then_emit_events() {
    for redis in [false, true] {
        let (server, world) = on(redis).await;
        let key = world
            .key_with("acme", "1", json!({ "ceiling_rub": "0.8" }))
            .await;
        let set = alert(&world, "accounts/acme", json!(["0.6", "0.8"])).await;
        assert_eq!(
            set.json(),
            json!({ "account": "acme", "levels_rub": ["0.80", "0.60"], "keys": {}, "groups": {} })
        );
        let of_key = format!("keys/{}", key.id);
        let set = alert(&world, &of_key, json!(["0.6"])).await.json();
        assert_eq!(
            set,
            json!({ "account": "acme", "key": key.id, "levels_rub": ["0.60"] })
        );
        let shown = get(&world, "/admin/v1/accounts/acme/alerts").await.json();
        assert_eq!(shown["keys"], json!({ &key.id: ["0.60"] }));
        let groups = "/admin/v1/accounts/acme/groups";
        let made = json!({ "id": "team", "ceiling_day_rub": "0.7" });
        world.admin_post(groups, made).await.expect(200);
        let into = json!({ "group": "team" });
        let path = format!("/admin/v1/{of_key}");
        world.admin_patch(&path, into).await.expect(200);
        let of_group = "accounts/acme/groups/team";
        let told_at = json!({ "account": "acme", "group": "team", "levels_rub": ["0.50"] });
        let set_group = alert(&world, of_group, json!(["0.5"])).await;
        assert_eq!(set_group.json(), told_at);
        let args = ["account", "alert", "acme", "--group", "team", "--json"];
        let shown = reported(&tollgate(&world, &args, "").await, 0);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown, told_at);
        let shown = get(&world, "/admin/v1/accounts/acme/alerts").await.json();
        assert_eq!(shown["groups"], json!({ "team": ["0.50"] }));
        assert_eq!(
            get(&world, &format!("/admin/v1/{of_key}/alerts"))
                .await
                .json(),
            set
        );

        spend(&world, &key).await;
        spend(&world, &key).await;
        world.settled(&key).await;
        let returned = events(&world, "after=1&kind=balance_low,ceiling_low").await;
        assert_eq!(
            of(&returned, "kind"),
            ["ceiling_low", "ceiling_low", "balance_low", "balance_low"]
        );
        assert_eq!(of(&returned, "level_rub"), ["0.60", "0.50", "0.80", "0.60"]);
        assert_eq!(returned["events"][0]["key"], *key.id);
        let of_team = &returned["events"][1];
        assert_eq!(of_team["group"], "team");
        assert_eq!(of_team.get("key"), None);
        drop((world, server));
    }
}

#[tokio::test]
async fn invalid_alert_levels_are_refused() {
    let (world, key) = World::start_with_key().await;
    for levels in [
        json!(["0"]),
        json!(["-1"]),
        json!(["1", "1.0"]),
        json!([1]),
        json!("1"),
        json!(["1", "2", "3", "4", "5"]),
    ] {
        let refused = alert(&world, "accounts/acme", levels.clone()).await;
        assert_eq!(refused.status, 400, "{levels}");
    }
    for path in [
        "accounts/nobody",
        "keys/nobody",
        "accounts/nobody/groups/team",
        "accounts/acme/groups/team",
    ] {
        let levels = json!(["1"]);
        assert_eq!(alert(&world, path, levels).await.status, 404, "{path}");
        let shown = get(&world, &format!("/admin/v1/{path}/alerts")).await;
        assert_eq!(shown.status, 404, "{path}");
    }
    let none = alert(&world, &format!("keys/{}", key.id), json!([])).await;
    assert_eq!(none.json()["levels_rub"], json!([]));
}

/// Together, the calls spend 100.50 ₽, so the balance crosses two alert levels.
#[tokio::test]
async fn alert_level_crossed_by_500_parallel_calls_emits_one_event() {
    for redis in [false, true] {
        let (server, world) = on(redis).await;
        let key = world.key_with("acme", "1000", json!({})).await;
        alert(&world, "accounts/acme", json!(["970", "900"])).await;
        world.vendor_sends(plain_reply(Op::Chat, "да", 10, 1000));
        let body = with(Op::Chat.body("x"), json!({ "max_tokens": 1000 }));
        let calls = (0..500).map(async |_| {
            loop {
                let answer = world.chat(&key, &body).await;
                // On a busy machine, Redis may not answer in time. The call then gets a 503 and is repeated.
                if answer.status != 503 {
                    assert_eq!(answer.status, 200, "{answer:?}");
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        futures_util::future::join_all(calls).await;
        // A settlement that has timed out is sent again later, so it may take a while until the sum is complete.
        within(Duration::from_secs(60), "all is charged", async || {
            let account = world.account(&key).await;
            (account["balance_rub"] == "899.50").then_some(())
        })
        .await;
        let returned = events(&world, "kind=balance_low").await;
        assert_eq!(of(&returned, "level_rub"), ["970.00", "900.00"]);
        // On a busy machine there may be further events, such as a vendor outage. They have no account, so the filter
        // excludes them.
        let numbers = events(&world, "account=acme&limit=1000").await;
        let numbers = of(&numbers, "number").len();
        assert_eq!(numbers, 3, "a payment and two levels");
        drop((world, server));
    }
}

/// Waits until there are this number of events of the kind. Returns the latest one.
async fn returned(world: &World, kind: &str, count: usize) -> Value {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let page = events(world, &format!("kind={kind}")).await;
        if page["events"].as_array().unwrap().len() >= count {
            return page;
        }
        assert!(Instant::now() < until, "no {kind}: {page}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn two_gateways_emit_one_event_for_a_vendors_outage_and_one_for_its_return() {
    let server = RedisServer::start().await;
    let start = async || Setup::default().ledger(&server.url()).start().await;
    let gateways = [start().await, start().await];
    let switch = async |world: &World, status: &str| {
        let path = "/admin/v1/vendors/chat-vendor";
        let body = json!({ "status": status });
        world.admin_patch(path, body).await.expect(200);
    };
    let both = "vendor_out,vendor_back";
    for world in &gateways {
        switch(world, "disabled").await;
    }
    returned(&gateways[0], both, 1).await;
    switch(&gateways[0], "active").await;
    // Gateway 1 still sends no calls to the vendor, so `vendor_back` is not emitted yet.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        of(&returned(&gateways[0], both, 1).await, "kind"),
        ["vendor_out"]
    );
    switch(&gateways[1], "active").await;
    let page = returned(&gateways[1], both, 2).await;
    assert_eq!(of(&page, "kind"), ["vendor_out", "vendor_back"]);
    assert_eq!(of(&page, "vendor"), ["chat-vendor", "chat-vendor"]);
}

#[tokio::test]
async fn expiring_key_emits_one_event_even_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("books.db").display());
    let start = async || Setup::default().ledger(&file).start().await;
    let world = start().await;
    world.key_with("acme", "1", json!({})).await;
    let mut ids = Vec::new();
    for days in [1, 30] {
        let at = SystemTime::now() + Duration::from_secs(days * 86_400);
        let at = at.duration_since(UNIX_EPOCH).unwrap().as_millis();
        let key = world.another_key("acme", json!({})).await;
        let change = KeyChange {
            expires_at_ms: Some(Some(u64::try_from(at).unwrap())),
            ..KeyChange::default()
        };
        let id = key.id.parse().unwrap();
        world
            .gateway
            .store()
            .change_key(&id, &change)
            .await
            .unwrap();
        ids.push(key.id);
    }
    world.gateway.drain().await.unwrap();
    for _ in 0..2 {
        let world = start().await;
        let page = returned(&world, "key_expiring", 1).await;
        assert_eq!(of(&page, "key"), [&json!(ids[0])]);
        assert_eq!(of(&page, "account"), ["acme"]);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(
            of(&returned(&world, "key_expiring", 1).await, "key").len(),
            1
        );
        world.gateway.drain().await.unwrap();
    }
}

#[tokio::test]
async fn calls_sold_below_cost_emit_one_event_per_day_and_model() {
    let route = "model = \"vendor-chat-1\" }";
    let cost = "{ input = \"9\", cached_input = \"9\", output = \"9\", cache_write = \"9\" }";
    let with_cost = format!("model = \"vendor-chat-1\", cost_usdt_mtok = {cost} }}");
    let (world, key) = Setup::default()
        .edit(route, &with_cost)
        .start_with_key()
        .await;
    for _ in 0..3 {
        spend(&world, &key).await;
    }
    let page = returned(&world, "margin_negative", 1).await;
    world.settled(&key).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(returned(&world, "margin_negative", 1).await, page);
    let event = &page["events"][0];
    assert_eq!(event["model"], "chat");
    assert_eq!(event["vendor"], "chat-vendor");
    assert_eq!(event["charged_rub"], "0.201");
    assert_eq!(event["vendor_cost_rub"], "0.909");
}

#[tokio::test]
async fn stale_exchange_rate_emits_one_event() {
    let closed = "[[rate.source]]\nurl = \"http://127.0.0.1:1/rate\"\nselect = \"/price\"\n";
    let setup = Setup::default().edit("[[rate.source]]\nfixed = \"100\"\n", closed);
    let world = setup.start().await;
    returned(&world, "rate_stale", 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        of(&returned(&world, "rate_stale", 1).await, "number").len(),
        1
    );
}

async fn audit(world: &World) -> Vec<Value> {
    let answer = world
        .admin(Method::POST, "/admin/v1/audit", None)
        .await
        .expect(200);
    answer.json()["breaches"].as_array().unwrap().clone()
}

#[tokio::test]
async fn audit_breach_emits_one_event_however_often_it_is_found() {
    let server = RedisServer::start().await;
    let start = async || Setup::default().ledger(&server.url()).start().await;
    let gateways = [start().await, start().await];
    let key = gateways[0].key().await;
    spend(&gateways[0], &key).await;
    gateways[0].settled(&key).await;
    let url = server.url();
    let ledger = RedisLedger::connect(&url, RedisSettings::default());
    let ledger = ledger.await.unwrap();
    rollup::roll_up(&ledger, u64::MAX).await.unwrap();
    assert_eq!(audit(&gateways[0]).await, Vec::<Value>::new());
    let kind = "kind=audit_breach";
    let none = events(&gateways[0], kind).await;
    assert_eq!(none["events"], json!([]));

    for expected in 1..=2 {
        spoil_sums(&ledger, Scope::Days).await;
        let found = audit(&gateways[0]).await;
        assert_eq!(found.len(), 1, "{found:?}");
        for world in gateways.iter().cycle().take(4) {
            assert_eq!(audit(world).await, found);
        }
        let returned = events(&gateways[1], kind).await;
        assert_eq!(of(&returned, "kind").len(), expected, "{returned}");
        let last = &returned["events"][expected - 1];
        assert_eq!((&last["breaches"], &last["first"]), (&json!(1), &found[0]));
        let text = found[0].as_str().unwrap();
        assert!(text.starts_with("U1 sums of all accounts"), "{text}");
    }
}

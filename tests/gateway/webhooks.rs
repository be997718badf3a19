//! Tests of webhooks: every event reaches every receiver, signed and in order, whatever fails at the gateway or at the
//! receiver.

use std::{
    collections::BTreeSet,
    io::Write as _,
    process::{Command, Stdio},
    sync::Mutex,
};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};
use tollgate::demo::vendor::ScriptedVendor;

use crate::{
    prelude::*,
    support::{config::edited, process::Start},
};

/// A webhook request that the receiver has received.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    at: Instant,
    path: String,
    id: String,
    timestamp: String,
    signature: String,
    body: String,
}

impl Post {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub(crate) fn number(&self) -> u64 {
        self.json()["data"]["number"].as_u64().unwrap()
    }
}

/// The response of the test's receiver to a webhook.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    Status(u16, &'static str),
    Nothing,
}

type Script = Box<dyn FnMut(&Post) -> Say + Send>;

/// A receiver of webhooks on a real socket.
pub(crate) struct Hook {
    port: u16,
    posts: Arc<Mutex<Vec<Post>>>,
    script: Arc<Mutex<Script>>,
    _tasks: JoinSet<()>,
}

impl Hook {
    pub(crate) async fn start() -> Self {
        Self::on(0).await
    }

    async fn on(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let posts = Arc::<Mutex<Vec<Post>>>::default();
        let script: Script = Box::new(|_| Say::Status(204, ""));
        let script = Arc::new(Mutex::new(script));
        let (to, says) = (Arc::clone(&posts), Arc::clone(&script));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                open.spawn(serve(stream, Arc::clone(&to), Arc::clone(&says)));
            }
        });
        Self {
            port,
            posts,
            script,
            _tasks: tasks,
        }
    }

    pub(crate) fn script(&self, script: impl FnMut(&Post) -> Say + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    pub(crate) fn posts(&self) -> Vec<Post> {
        self.posts.lock().unwrap().clone()
    }

    fn numbers(&self) -> Vec<u64> {
        self.posts().iter().map(Post::number).collect()
    }

    /// Returns the configuration section for this receiver.
    pub(crate) fn section(&self, name: &str, more: &str) -> String {
        let port = self.port;
        format!(
            "[[webhook]]\nname = \"{name}\"\nurl = \"http://127.0.0.1:{port}/hook\"\n\
             secrets = [\"${{WEBHOOK_SECRET}}\"]\nallow_private = true\n{more}\n"
        )
    }

    pub(crate) async fn has(&self, count: usize) -> Vec<Post> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let posts = self.posts();
            if posts.len() >= count {
                return posts;
            }
            assert!(Instant::now() < until, "{count} did not come: {posts:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn serve(mut stream: TcpStream, posts: Arc<Mutex<Vec<Post>>>, script: Arc<Mutex<Script>>) {
    let Some((head, body)) = read_request(&mut stream).await else {
        return;
    };
    let field = |name: &str| field(&head, name).unwrap().to_owned();
    let post = Post {
        at: Instant::now(),
        path: head.split(' ').nth(1).unwrap().to_owned(),
        id: field("webhook-id"),
        timestamp: field("webhook-timestamp"),
        signature: field("webhook-signature"),
        body,
    };
    let says = (script.lock().unwrap())(&post);
    posts.lock().unwrap().push(post);
    let Say::Status(status, headers) = says else {
        return std::future::pending().await;
    };
    let text =
        format!("HTTP/1.1 {status} X\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn setup(sections: &str) -> Setup {
    let sections = format!("{sections}[limits]\nconnections_per_address_max = 1000\n[ledger]");
    Setup::default().edit("[ledger]", &sections)
}

async fn world(sections: &str) -> World {
    setup(sections).start().await
}

async fn open(world: &World) {
    let body = json!({ "id": "acme", "name": "Acme" });
    world.admin_post("/admin/v1/accounts", body).await;
}

async fn pay(world: &World, id: &str) {
    let body = json!({ "id": id, "amount_rub": "1" });
    let path = "/admin/v1/accounts/acme/topups";
    world.admin_post(path, body).await.expect(200);
}

async fn receiver(world: &World, name: &str) -> Value {
    let all = world.admin_get("/admin/v1/receivers").await.json();
    let all = all["receivers"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).unwrap().clone()
}

/// Verifies the signature of a webhook with the Python code that `docs/events.md` shows.
fn verify(post: &Post) -> bool {
    let page = include_str!("../../docs/events.md");
    let code = page.split("```python\n").nth(1).unwrap();
    let code = code.split("```").next().unwrap();
    let run = format!(
        "{code}\nimport sys\nsys.exit(0 if verify(sys.argv[1], sys.argv[2], sys.argv[3], sys.stdin.buffer.read(), sys.argv[4]) else 1)\n"
    );
    let signed = [&post.id, &post.timestamp, &post.signature];
    let mut python = Command::new("python3");
    python.args(["-c", &run]).args(signed).arg(WEBHOOK_SECRET);
    let mut python = python.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = python.stdin.take().unwrap();
    input.write_all(post.body.as_bytes()).unwrap();
    drop(input);
    python.wait().unwrap().success()
}

#[tokio::test]
async fn each_event_is_posted_in_order_and_signed() {
    let hook = Hook::start().await;
    let world = world(&hook.section("crm", "")).await;
    open(&world).await;
    for id in ["a", "b", "c"] {
        pay(&world, id).await;
    }
    let posts = hook.has(3).await;
    assert_eq!(hook.numbers(), [1, 2, 3]);
    let first = posts[0].json();
    assert_eq!(first["type"], "top_up");
    assert_eq!(first["data"]["entry"], "a");
    assert_eq!(first["timestamp"], first["data"]["at"]);
    let id = format!("evt_{}_1", first["data"]["at_ms"]);
    assert_eq!(posts[0].id, id);
    assert_eq!(posts[0].path, "/hook");
    for post in &posts {
        assert!(verify(post), "{post:?}");
        let mut forged = post.clone();
        forged.body = post.body.replace("1.00", "9.00");
        assert!(!verify(&forged), "{forged:?}");
    }
    let state = eventually("all are taken", async || {
        let state = receiver(&world, "crm").await;
        (state["after"] == 3).then_some(state)
    })
    .await;
    assert_eq!(state["status"], "active");
    assert_eq!(state["dead"], 0);
    assert_eq!(state["to"], "127.0.0.1");
}

/// An operator may mistype an event's number, and thereby name an event of another customer. That event must not be
/// sent to this receiver.
#[tokio::test]
async fn event_excluded_by_a_receivers_filter_cannot_be_replayed_to_it() {
    let hook = Hook::start().await;
    let world = world(&hook.section("crm", "accounts = [\"beta\"]\n")).await;
    open(&world).await;
    world.key_with("beta", "1", json!({})).await;
    pay(&world, "a").await;
    hook.has(1).await;
    let ours = hook.posts()[0].number();
    let others = if ours == 1 { 2 } else { 1 };
    for (number, status, says) in [(others, 400, "number: "), (ours, 200, "true")] {
        let path = "/admin/v1/receivers/crm/replays";
        let body = json!({ "number": number });
        let answer = world.admin_post(path, body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.text().contains(says), "{answer:?}");
    }
    assert_eq!(hook.numbers(), [ours, ours]);
}

#[tokio::test]
async fn event_that_a_receiver_rejected_is_sent_again_before_later_events() {
    let hook = Hook::start().await;
    let mut failures = 2;
    hook.script(move |_| {
        let fails = failures > 0;
        failures -= i32::from(fails);
        Say::Status(if fails { 500 } else { 200 }, "")
    });
    let world = world(&hook.section("crm", "")).await;
    open(&world).await;
    pay(&world, "a").await;
    pay(&world, "b").await;
    let posts = hook.has(4).await;
    assert_eq!(hook.numbers(), [1, 1, 1, 2]);
    assert!(posts[..3].iter().all(|post| post.id == posts[0].id));
    assert!(
        posts[2].at - posts[1].at > posts[1].at - posts[0].at,
        "pauses grow"
    );
}

#[tokio::test]
async fn receiver_that_sends_retry_after_gets_no_event_during_that_time() {
    let hook = Hook::start().await;
    let mut first = true;
    hook.script(move |_| match std::mem::take(&mut first) {
        true => Say::Status(429, "retry-after: 3\r\n"),
        false => Say::Status(200, ""),
    });
    let world = world(&hook.section("crm", "")).await;
    open(&world).await;
    pay(&world, "a").await;
    let posts = hook.has(2).await;
    let waited = posts[1].at - posts[0].at;
    assert!(waited >= Duration::from_millis(2900), "{waited:?}");
}

#[tokio::test]
async fn receiver_that_answered_410_gets_no_event_until_it_is_resumed() {
    let hook = Hook::start().await;
    hook.script(|_| Say::Status(410, ""));
    let world = world(&hook.section("crm", "")).await;
    open(&world).await;
    pay(&world, "a").await;
    hook.has(1).await;
    eventually("it is stopped", async || {
        (receiver(&world, "crm").await["status"] == "stopped").then_some(())
    })
    .await;
    pay(&world, "b").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(hook.posts().len(), 1);
    hook.script(|_| Say::Status(200, ""));
    let path = "/admin/v1/receivers/crm";
    let resumed = world.admin_patch(path, json!({ "status": "active" })).await;
    assert_eq!(resumed.json()["status"], "active", "{resumed:?}");
    hook.has(3).await;
    assert_eq!(hook.numbers(), [1, 1, 2]);
    for (path, body) in [
        (path, json!({ "status": "gone" })),
        ("/admin/v1/receivers/nobody", json!({ "status": "active" })),
    ] {
        let refused = world.admin_patch(path, body).await;
        assert!(refused.status.is_client_error(), "{refused:?}");
    }
}

#[tokio::test]
async fn redirect_of_a_webhook_receiver_is_not_followed() {
    let (hook, other) = (Hook::start().await, Hook::start().await);
    let to = format!("location: http://127.0.0.1:{}/\r\n", other.port);
    let to: &'static str = to.leak();
    hook.script(move |_| Say::Status(307, to));
    let world = world(&hook.section("crm", "")).await;
    open(&world).await;
    pay(&world, "a").await;
    hook.has(2).await;
    assert!(other.posts().is_empty());
    let why = receiver(&world, "crm").await["error"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(why.contains("redirects are not followed"), "{why}");
}

#[tokio::test]
async fn webhook_to_localhost_by_name_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let section = format!(
        "[[webhook]]\nname = \"crm\"\nurl = \"https://localhost:{port}/\"\nsecrets = [\"${{WEBHOOK_SECRET}}\"]\n"
    );
    let world = world(&section).await;
    open(&world).await;
    pay(&world, "a").await;
    let why = eventually("it failed", async || {
        receiver(&world, "crm").await["error"]
            .as_str()
            .map(str::to_owned)
    })
    .await;
    assert!(why.contains("private, loopback or link-local"), "{why}");
    let came = tokio::time::timeout(Duration::from_millis(100), listener.accept()).await;
    assert!(came.is_err(), "it was connected to");
}

fn cheap(vendor: &ScriptedVendor) {
    vendor.script(move |_| plain_reply(Op::Chat, "да", 10, 1000));
}

fn body() -> Value {
    with(Op::Chat.body("x"), json!({ "max_tokens": 1000 }))
}

async fn alert(world: &World, levels: Value) {
    let path = "/admin/v1/accounts/acme/alerts";
    world
        .admin(Method::PUT, path, Some(json!({ "levels_rub": levels })))
        .await
        .expect(200);
}

#[tokio::test]
async fn receiver_that_hangs_delays_neither_calls_nor_other_receivers() {
    let (slow, quick) = (Hook::start().await, Hook::start().await);
    slow.script(|_| Say::Nothing);
    let sections = slow.section("slow", "") + &quick.section("quick", "");
    let world = world(&sections).await;
    let key = world.key().await;
    cheap(&world.vendor);
    // The receiver accepts the connection for the first event, and never answers on it.
    slow.has(1).await;
    quick.has(1).await;
    alert(&world, json!(["999.9", "999", "995"])).await;
    let began = Instant::now();
    for _ in 0..50 {
        world.chat(&key, &body()).await.expect(200);
    }
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    quick.has(4).await;
    assert_eq!(quick.numbers(), [1, 2, 3, 4]);
    assert_eq!(slow.posts().len(), 1);
    assert!(
        began.elapsed() < Duration::from_secs(12),
        "{:?}",
        began.elapsed()
    );
}

/// Makes a call. While Redis does not respond in time, as on a busy machine, repeats the call.
async fn all_of(world: &World, key: &Key, body: &Value) {
    loop {
        let answer = world.chat(key, body).await;
        if answer.status == 200 {
            return;
        }
        assert_eq!(answer.status, 503, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Two gateways share a ledger. Only one of them sends webhooks at a time.
#[tokio::test]
async fn each_alert_level_crossed_by_500_parallel_calls_is_delivered_once() {
    let (server, hook) = (RedisServer::start().await, Hook::start().await);
    let start = async || {
        let setup = setup(&hook.section("crm", "kinds = [\"balance_low\"]"));
        setup.ledger(&server.url()).start().await
    };
    let (one, other) = (start().await, start().await);
    let key = one.key().await;
    cheap(&one.vendor);
    cheap(&other.vendor);
    alert(&one, json!(["970", "940", "905"])).await;
    let body = body();
    let calls = (0..500).map(async |n| {
        let world = if n % 2 == 0 { &one } else { &other };
        all_of(world, &key, &body).await;
    });
    futures_util::future::join_all(calls).await;
    let posts = hook.has(3).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let levels: Vec<Value> = posts
        .iter()
        .map(|post| post.json()["data"]["level_rub"].clone())
        .collect();
    assert_eq!(levels, ["970.00", "940.00", "905.00"]);
    let ids: BTreeSet<String> = hook.posts().iter().map(|post| post.id.clone()).collect();
    assert_eq!((ids.len(), hook.posts().len()), (3, 3));

    // The first gateway stops. From now on, the other gateway sends the webhooks.
    one.gateway.drain().await.unwrap();
    alert(&other, json!(["899"])).await;
    for _ in 0..10 {
        all_of(&other, &key, &body).await;
    }
    let posts = hook.has(4).await;
    assert_eq!(posts[3].json()["data"]["level_rub"], "899.00");
}

/// The gateway that sends webhooks is killed. The other gateway sends them when the leader lease of the first gateway
/// has expired.
#[tokio::test]
async fn another_gateway_continues_the_deliveries_of_a_killed_gateway() {
    let (server, hook) = (RedisServer::start().await, Hook::start().await);
    let start = async || {
        let setup = setup(&hook.section("crm", ""));
        setup.ledger(&server.url()).start().await
    };
    let (one, other) = (start().await, start().await);
    open(&one).await;
    pay(&one, "a").await;
    hook.has(1).await;
    // If the stopped gateway was the one that sent webhooks, the other gateway must first detect that it has stopped.
    drop(one);
    pay(&other, "b").await;
    hook.has(2).await;
    pay(&other, "c").await;
    hook.has(3).await;
    assert_eq!(hook.numbers(), [1, 2, 3]);
}

/// A failover may lose events that the replica did not have. Later events get the same numbers, and must be sent
/// nevertheless.
#[tokio::test]
async fn event_that_reuses_the_number_of_a_lost_event_is_sent() {
    let (server, hook) = (RedisServer::start().await, Hook::start().await);
    let section = hook.section("crm", "kinds = [\"top_up\"]");
    let world = setup(&section).ledger(&server.url()).start().await;
    open(&world).await;
    pay(&world, "a").await;
    let after = hook.has(1).await[0].number();
    let correct = async |id: &str| {
        let entry = json!({ "id": id, "amount_rub": "-0.01", "reason": "test" });
        let path = "/admin/v1/accounts/acme/adjustments";
        world.admin_post(path, entry).await.expect(200);
    };
    for id in ["b", "c", "d"] {
        correct(id).await;
    }
    let feed = "tg:ev:{feed}";
    let last = async || -> u64 { server.ask(&["GET", "tg:ev:{feed}:last"]).await.unwrap() };
    eventually("they have numbers", async || {
        (last().await == after + 3).then_some(())
    })
    .await;
    // The filter of the receiver excludes these three events. During this pause, the gateway reads and skips them.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for number in 1..=3 {
        let place = format!("{}-0", after + number);
        server.ask::<u64>(&["XDEL", feed, &place]).await.unwrap();
    }
    let place = format!("{after}-0");
    server
        .ask::<String>(&["XSETID", feed, &place])
        .await
        .unwrap();
    let number = after.to_string();
    server
        .ask::<String>(&["SET", "tg:ev:{feed}:last", &number])
        .await
        .unwrap();

    pay(&world, "e").await;
    assert_eq!(hook.has(2).await[1].number(), after + 1);
}

/// A gateway in a separate process, which the test calls.
struct Outside {
    address: std::net::SocketAddr,
    admin: std::net::SocketAddr,
}

impl Outside {
    async fn operate(&self, method: Method, path: &str, body: Value) -> Value {
        let bearer = format!("Bearer {ADMIN_KEY}");
        let url = format!("http://{}{path}", self.admin);
        let headers = [("authorization", bearer.as_str())];
        let req = request(method, &url, &headers, body.to_string().into());
        let answer = whole(client().request(req).await.unwrap()).await;
        assert!(answer.status.is_success(), "{answer:?}");
        answer.json()
    }

    /// Makes a call. Returns whether it was answered.
    async fn call(&self, key: &Key) -> bool {
        let url = format!("http://{}/v1/chat/completions", self.address);
        let req = json_request(Method::POST, &url, &key.secret, body().to_string());
        client()
            .request(req)
            .await
            .is_ok_and(|answer| answer.status().is_success())
    }
}

/// Kills the gateway repeatedly while events wait for their receiver.
#[tokio::test]
async fn gateway_killed_between_charge_and_event_delivery_loses_no_event() {
    let (vendor, hook) = (ScriptedVendor::start().await.unwrap(), Hook::start().await);
    cheap(&vendor);
    let dir = tempfile::tempdir().unwrap();
    let ledger = format!("sqlite:{}", dir.path().join("books.db").display());
    let text = config_text(vendor.address(), &ledger, dir.path().join("outbox.db"));
    let section = format!("{}[ledger]", hook.section("crm", ""));
    let text = edited(text, &[("[ledger]".to_owned(), section)]);
    let config = dir.path().join("tollgate.toml");
    std::fs::write(&config, text).unwrap();
    let log = dir.path().join("log");
    let start = async || {
        let served = Start::new(&config, &log).spawn();
        let (address, admin) = served.serving().await;
        let admin = admin.unwrap();
        (served, Outside { address, admin })
    };
    // The receiver refuses every second webhook, so that some delivery is always pending.
    let mut turn = false;
    hook.script(move |_| {
        turn = !turn;
        Say::Status(if turn { 503 } else { 204 }, "")
    });
    let (mut served, mut outside) = start().await;
    let account = json!({ "id": "acme", "name": "Acme" });
    outside
        .operate(Method::POST, "/admin/v1/accounts", account)
        .await;
    let top_up = json!({ "id": "first", "amount_rub": "100" });
    outside
        .operate(Method::POST, "/admin/v1/accounts/acme/topups", top_up)
        .await;
    let made = outside
        .operate(Method::POST, "/admin/v1/accounts/acme/keys", json!({}))
        .await;
    let key = Key {
        secret: made["key"].as_str().unwrap().to_owned(),
        id: made["id"].as_str().unwrap().to_owned(),
        account: "acme".to_owned(),
    };
    let mut level = 100.0;
    for round in 0..6u64 {
        level -= 0.2;
        let levels = json!({ "levels_rub": [format!("{level:.2}")] });
        outside
            .operate(Method::PUT, "/admin/v1/accounts/acme/alerts", levels)
            .await;
        let returned = outside
            .operate(Method::GET, "/admin/v1/events", json!({}))
            .await;
        let last = returned["last"].as_u64().unwrap();
        assert!(outside.call(&key).await, "round {round}");
        if round % 2 == 0 {
            // In every second round, the gateway is killed only after the event was emitted, when the event may be on
            // its way to the receiver.
            let path = format!("/admin/v1/events?after={last}&wait=20");
            let returned = outside.operate(Method::GET, &path, json!({})).await;
            assert_ne!(returned["events"], json!([]), "round {round}");
        }
        tokio::time::sleep(Duration::from_millis(round * 15)).await;
        served.kill();
        (served, outside) = start().await;
    }
    hook.script(|_| Say::Status(204, ""));
    let returned = outside
        .operate(Method::GET, "/admin/v1/events", json!({}))
        .await;
    let last = returned["last"].as_u64().unwrap();
    assert!(last >= 2, "{returned}");
    let came: BTreeSet<u64> = loop {
        let came: BTreeSet<u64> = hook.numbers().into_iter().collect();
        if came.contains(&last) {
            break came;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(came, (1..=last).collect(), "{returned}");
    // The receiver gets the events in order. An event may arrive more than once.
    let numbers = hook.numbers();
    let mut highest = 0;
    for number in numbers {
        assert!(number <= highest + 1, "{number} before {}", highest + 1);
        highest = highest.max(number);
    }
    let returned = returned["events"].as_array().unwrap();
    let low = returned
        .iter()
        .filter(|event| event["kind"] == "balance_low")
        .count();
    assert!(
        low >= 3,
        "{low}: what is left was not charged before the kill"
    );
    drop(served);
}

//! Group 8: faults while events are delivered. The receiver is unreachable or slow, or its responses are lost. Gateways
//! are killed between a charge and the delivery of its event, or between a delivery and the record of this delivery.
//! Every event must reach its receiver in order and at least once; a repeated event has the same id.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tollgate::demo::vendor::{Received, Reply, ScriptedVendor};
use tollgate_layers::call::Format;

use crate::{
    proxy::{ANSWER_HEAD, Flow, Proxy, REQUEST, Then, Way, bytes, durable_script},
    redis_faults::promote,
    steps::reported,
    table::{Case, cases},
    verdict::{Charge, Verdict},
    world::{LedgerKind, Plan, World},
};

const LEDGERS: [LedgerKind; 2] = [LedgerKind::Sqlite, LedgerKind::Redis];
/// The maximum time until all events are delivered. The leader lease of a killed gateway lasts for another 30 s, and
/// the next gateway may wait between its attempts.
const DELIVERED_WITHIN: Duration = Duration::from_secs(75);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ledger in LEDGERS {
        let named = |fault: &str| format!("{fault}, {}", ledger.name());
        cases.extend(cases! {
            "8" named("receiver away, then back") => away(ledger);
            "8" named("receiver's answers lost") => answers_lost(ledger);
            "8" named("receiver slow, calls go on") => slow(ledger), alone;
            "8" named("kill -9 between a charge and its delivery") => killed(ledger, At::Delivery), long;
            "8" named("kill -9 between a delivery and its answer") => killed(ledger, At::Answer), long;
        });
    }
    cases.extend(cases! {
        "8" "kill -9 between a delivery and its mark, redis" => killed(LedgerKind::Redis, At::Mark), long;
        "8" "redis failover while events wait" => failover();
    });
    cases
}

/// The moment at which the gateway is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Killed when the charge and its event are recorded, and the receiver has not received the event that the gateway
    /// has sent.
    Delivery,
    /// Killed when the receiver has accepted the event, and its response has not reached the gateway.
    Answer,
    /// Killed when the gateway has received the response to the event, and has not recorded it.
    Mark,
}

/// A webhook request that the receiver has received. `taken` is true if the receiver accepted it.
#[derive(Clone, Debug)]
struct Post {
    id: String,
    data: Value,
    taken: bool,
}

/// A [`World`] in which gateways reach a receiver of events through a proxy.
struct Given {
    world: World,
    edge: Arc<Proxy>,
    posts: Arc<Mutex<Vec<Post>>>,
    status: Arc<Mutex<u16>>,
    _receiver: ScriptedVendor,
}

impl Given {
    async fn over(plan: Plan) -> Self {
        let receiver = ScriptedVendor::start().await.unwrap();
        let (posts, status) = (
            Arc::<Mutex<Vec<Post>>>::default(),
            Arc::new(Mutex::new(200)),
        );
        let (stored, says) = (Arc::clone(&posts), Arc::clone(&status));
        receiver.script(move |requested: &Received| {
            let status = *says.lock().unwrap();
            stored.lock().unwrap().push(Post {
                id: requested.headers["webhook-id"].to_str().unwrap().to_owned(),
                data: requested.json()["data"].clone(),
                taken: status == 200,
            });
            Reply::json(status, &json!({}))
        });
        let edge = Proxy::start(receiver.address()).await;
        let section = format!(
            "[[webhook]]\nname = \"crm\"\nurl = \"http://{}/hook\"\nsecrets = [\"${{WEBHOOK_SECRET}}\"]\n\
             allow_private = true\n",
            edge.address()
        );
        let anchor = "[[rate.source]]\n";
        let world = plan
            .edit(anchor, &format!("{section}{anchor}"))
            .start_warm()
            .await;
        let given = Self {
            world,
            edge,
            posts,
            status,
            _receiver: receiver,
        };
        // This waits until the event of the first payment in this test is delivered.
        given.delivered().await;
        given
    }

    fn posts(&self) -> Vec<Post> {
        self.posts.lock().unwrap().clone()
    }

    async fn top_up(&self, id: &str) {
        let body = json!({ "id": id, "amount_rub": "1" });
        let path = "/admin/v1/accounts/acme/topups";
        reported(&self.world, 0, Method::POST, path, Some(body)).await;
    }

    /// Makes a call whose charge emits an event, because the balance falls to an alert level.
    async fn charge(&self) {
        let path = "/admin/v1/accounts/acme";
        let account = reported(&self.world, 0, Method::GET, path, None).await;
        let levels = json!({ "levels_rub": [below(account["balance_rub"].as_str().unwrap())] });
        let path = "/admin/v1/accounts/acme/alerts";
        reported(&self.world, 0, Method::PUT, path, Some(levels)).await;
        let client = self.world.client(0);
        let call = client.call(Format::Messages).tokens(500);
        let outcome = client.ask(&call).await;
        assert!(outcome.answered(), "{}", outcome.text());
        self.world.expect(&call, Charge::Full);
    }

    /// Returns all events of the ledger.
    async fn events(&self) -> Result<Vec<Value>, String> {
        let path = "/admin/v1/events?after=0&limit=1000";
        let (status, page) = self.world.admin(0, Method::GET, path, None).await?;
        match page["events"].as_array() {
            Some(events) if status.is_success() => Ok(events.clone()),
            _ => Err(format!("{status} {page}")),
        }
    }

    /// Waits until the receiver has accepted every event of the ledger: in order, with the content that the ledger has,
    /// and with one id per event. Returns the number of events that were delivered again although the receiver had
    /// accepted them.
    async fn delivered(&self) -> usize {
        let until = Instant::now() + DELIVERED_WITHIN;
        loop {
            let events = self.events().await;
            let taken: BTreeSet<u64> = self
                .posts()
                .iter()
                .filter(|post| post.taken)
                .map(number)
                .collect();
            let all = |events: &Vec<Value>| {
                let numbers = events.iter().filter_map(|event| event["number"].as_u64());
                // Events that were emitted before the gateways had this receiver in their configuration are not sent to
                // it.
                numbers
                    .skip_while(|number| taken.first().is_some_and(|first| number < first))
                    .eq(taken.iter().copied())
            };
            if !taken.is_empty() && events.as_ref().is_ok_and(all) {
                return self.compared(&events.unwrap());
            }
            assert!(
                Instant::now() < until,
                "not all was delivered: {events:?} {:?}",
                self.posts()
            );
            sleep(LOOK_EVERY).await;
        }
    }

    fn compared(&self, events: &[Value]) -> usize {
        let mut ids: BTreeMap<u64, String> = BTreeMap::new();
        let (mut again, mut taken, mut newest) = (0, BTreeSet::new(), 0);
        for post in self.posts() {
            let number = number(&post);
            let known = events.iter().find(|event| event["number"] == number);
            assert_eq!(
                known,
                Some(&post.data),
                "what was sent is what the ledger has"
            );
            let id = ids.entry(number).or_insert_with(|| post.id.clone());
            assert_eq!(*id, post.id, "one id, whenever it is sent");
            assert!(
                number >= newest || taken.contains(&number),
                "out of order: {post:?}"
            );
            newest = newest.max(number);
            if post.taken && !taken.insert(number) {
                again += 1;
            }
        }
        let distinct: BTreeSet<&String> = ids.values().collect();
        assert_eq!(distinct.len(), ids.len(), "no two events share an id");
        again
    }
}

fn number(post: &Post) -> u64 {
    post.data["number"].as_u64().unwrap()
}

/// Returns the amount minus one micro-ruble.
fn below(rubles: &str) -> String {
    let micro = crate::verdict::micro(&json!(rubles)) - 1;
    format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000)
}

async fn away(ledger: LedgerKind) -> Verdict {
    let given = Given::over(Plan::over(ledger)).await;
    given.edge.refuse(true);
    given.edge.reset();
    for turn in 0..5 {
        given.charge().await;
        given.top_up(&format!("away-{turn}")).await;
    }
    *given.status.lock().unwrap() = 503;
    given.edge.refuse(false);
    sleep(Duration::from_secs(2)).await;
    *given.status.lock().unwrap() = 200;
    assert_eq!(given.delivered().await, 0, "what was taken comes no more");
    given.world.verdict().await
}

/// The receiver accepts the event, but its response is lost. The gateway must send the same event again, with the same
/// id.
async fn answers_lost(ledger: LedgerKind) -> Verdict {
    let given = Given::over(Plan::over(ledger)).await;
    for (turn, then) in [Then::LoseAnswer, Then::CutAnswer(5), Then::LoseAnswer]
        .into_iter()
        .enumerate()
    {
        let trap = given.edge.trap(Way::Up, bytes(REQUEST), then);
        given.charge().await;
        given.top_up(&format!("lost-{turn}")).await;
        trap.sprung().await;
        assert_eq!(given.delivered().await, turn + 1);
        given.world.round();
    }
    given.world.note("3 came again, each with its id");
    given.world.verdict().await
}

/// The receiver accepts every request, but its responses are delayed. Calls must be as fast as without this fault.
async fn slow(ledger: LedgerKind) -> Verdict {
    let given = Given::over(Plan::over(ledger)).await;
    let world = &given.world;
    let timed = async || {
        let began = Instant::now();
        let loaded = world.load(4, 60).await;
        assert_eq!(loaded.answered, 60, "{loaded:?}");
        began.elapsed()
    };
    let before = timed().await;
    given.edge.set(Way::Down, Flow::Stall);
    given.charge().await;
    given.top_up("slow").await;
    let meanwhile = timed().await;
    given.edge.heal();
    given.delivered().await;
    // If a call waited for the receiver, it would take 15 s, which is the gateway's timeout.
    assert!(
        meanwhile < before * 3 + Duration::from_secs(1),
        "{meanwhile:?}, {before:?} before"
    );
    world.note(format!(
        "60 calls in {} ms, {} ms before",
        meanwhile.as_millis(),
        before.as_millis()
    ));
    given.world.verdict().await
}

async fn killed(ledger: LedgerKind, at: At) -> Verdict {
    let given = Given::over(Plan::over(ledger).patience(Duration::from_secs(40))).await;
    let world = &given.world;
    let trap = match at {
        At::Delivery => given.edge.trap(Way::Up, bytes(REQUEST), Then::Hold),
        At::Answer => given.edge.trap(Way::Up, bytes(REQUEST), Then::HoldAnswer),
        At::Mark => given.edge.trap(Way::Down, bytes(ANSWER_HEAD), Then::Hold),
    };
    given.charge().await;
    trap.sprung().await;
    // The settlement of the call is acknowledged, so the fault affects only the call's event.
    world.settled().await;
    if at == At::Mark {
        let mark =
            world
                .redis_proxy(0)
                .trap(Way::Up, durable_script("compare_and_swap"), Then::Hold);
        trap.open();
        mark.sprung().await;
    }
    world.gateway(0).kill9();
    if at == At::Delivery {
        // The process that has sent the request is killed, and the request is dropped from the proxy.
        given.edge.reset();
    }
    given.edge.heal();
    world.gateway(0).restart().await;
    for proxy in &world.redis_proxies {
        proxy.heal();
    }
    let began = Instant::now();
    // The event of this top-up must be delivered after the event whose delivery was interrupted.
    given.top_up("after").await;
    let again = given.delivered().await;
    let expected = usize::from(at != At::Delivery);
    assert_eq!(again, expected, "events that came again");
    world.note(format!(
        "{again} came again, with its id, after {} s",
        began.elapsed().as_secs()
    ));
    given.world.verdict().await
}

/// The primary dies while events wait for their receiver. Its replica, which has all current data, takes over.
async fn failover() -> Verdict {
    let given = Given::over(Plan::over(LedgerKind::RedisReplica).gateways(2)).await;
    *given.status.lock().unwrap() = 500;
    for turn in 0..5 {
        given.charge().await;
        given.top_up(&format!("before-{turn}")).await;
    }
    given.world.redis().kill();
    sleep(Duration::from_millis(300)).await;
    promote(&given.world, 0..2).await;
    for gateway in 0..2 {
        given.world.ready(gateway, crate::steps::SOON).await;
    }
    *given.status.lock().unwrap() = 200;
    assert_eq!(given.delivered().await, 0);
    given.top_up("after").await;
    assert_eq!(given.delivered().await, 0);
    given.world.verdict().await
}

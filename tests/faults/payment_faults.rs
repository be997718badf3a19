//! Group 7: faults while customers pay. Notifications of the provider are lost, repeated, late or reordered, the
//! provider is down, and gateways are killed at each step between a notification and the ledger. The money that the
//! provider has received must be credited to the account once.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    proxy::{Proxy, Then, Trap, Way, bytes, durable_script},
    redis_faults::promote,
    steps::{SOON, ask, reported},
    support::shop::{Shop, canceled, paid, refunded},
    table::{Case, cases},
    verdict::{Verdict, micro},
    world::{LedgerKind, Plan, World, ask_admin},
};

const LEDGERS: [LedgerKind; 2] = [LedgerKind::Sqlite, LedgerKind::Redis];
const RUBLES: &str = "5000";
const FETCH: &[u8] = b"GET /v3/payments/";
const FETCH_OF_REFUNDS: &[u8] = b"GET /v3/refunds";
const MAKE: &[u8] = b"POST /v3/payments";
const CHARGE: &[u8] = b"POST /v3/payments ";
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ledger in LEDGERS {
        let named = |fault: &str| format!("{fault}, {}", ledger.name());
        cases.extend(cases! {
            "7" named("payment told never") => never(ledger);
            "7" named("payment told 20 times at once") => doubled(ledger);
            "7" named("payment told late, after a cancel") => late(ledger);
            "7" named("refund told before its payment") => reordered(ledger);
            "7" named("refund of what is spent") => owed(ledger);
            "7" named("provider down as it is told") => provider_down(ledger);
            "7" named("kill -9 between a notification and the fetch") => killed(ledger, At::Fetch);
            "7" named("kill -9 between the fetch and the top-up") => killed(ledger, At::Fetched);
            "7" named("kill -9 between the making of a payment and its link") => killed_as_made(ledger);
            "7" named("kill -9 between a refund's fetch and its correction")
                => killed_at_a_refund(ledger, Refunding::Fetched);
            "7" named("kill -9 before a saved card is charged") => charge_killed(ledger, At::Asked);
            "7" named("kill -9 between a charge and its answer") => charge_killed(ledger, At::Charged);
        });
    }
    let redis = LedgerKind::Redis;
    cases.extend(cases! {
        "7" "kill -9 before the top-up arrives, redis" => killed(redis, At::TopUp);
        "7" "kill -9 between the top-up and its answer, redis" => killed(redis, At::TopUpAnswered);
        "7" "kill -9 between the top-up and the payment's state, redis" => killed(redis, At::State);
        "7" "kill -9 before a refund's correction arrives, redis" => killed_at_a_refund(redis, Refunding::Correction);
        "7" "kill -9 between a correction and its answer, redis" => killed_at_a_refund(redis, Refunding::Corrected);
        "7" "kill -9 before a charge's top-up arrives, redis" => charge_killed(redis, At::TopUp);
        "7" "kill -9 between a charge's top-up and its answer, redis" => charge_killed(redis, At::TopUpAnswered);
        "7" "kill -9 between a charge's top-up and its rule, redis" => charge_killed(redis, At::State);
        "7" "redis failover between the fetch and the top-up" => failover();
        "7" "redis replica promoted behind a top-up" => promoted_behind();
        "7" "redis replica promoted behind a top-up whose event has no number yet" => promoted_behind_an_event();
    });
    cases
}

/// The moment at which the gateway is killed.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Killed when the gateway has requested the payment from the provider, which has not received the request.
    Fetch,
    /// Killed when the provider has sent the payment, and its response has not reached the gateway.
    Fetched,
    /// Killed when the gateway has sent the top-up to the ledger, which has not received it.
    TopUp,
    /// Killed when the top-up is recorded, and the ledger's response has not reached the gateway.
    TopUpAnswered,
    /// Killed when the top-up is recorded, and the payment is still recorded as open.
    State,
    /// Killed when the gateway has requested the charge of a saved card from the provider, which has not received the
    /// request.
    Asked,
    /// Killed when the card is charged, and the provider's response has not reached the gateway.
    Charged,
}

/// The moment at which a gateway is killed while it deducts a refund from the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refunding {
    /// Killed when the provider has reported the refund, and its response has not reached the gateway.
    Fetched,
    /// Killed when the gateway has sent the correction to the ledger, which has not received it.
    Correction,
    /// Killed when the correction is recorded, and the ledger's response has not reached the gateway.
    Corrected,
}

/// A [`World`] in which gateways reach a shop, the fake payment provider, through a proxy.
struct Given {
    world: World,
    shop: Shop,
    edge: Arc<Proxy>,
}

impl Given {
    async fn over(plan: Plan) -> Self {
        let shop = Shop::start().await;
        let edge = Proxy::start(shop.address()).await;
        let section = Shop::config_at(edge.address(), "poll_seconds = 1\nauto_check_seconds = 1");
        let anchor = "[[rate.source]]\n";
        let world = plan
            .edit(anchor, &format!("{section}{anchor}"))
            .start_warm()
            .await;
        Self { world, shop, edge }
    }

    async fn start(ledger: LedgerKind) -> Self {
        let gateways = if ledger == LedgerKind::Sqlite { 1 } else { 2 };
        Self::over(Plan::over(ledger).gateways(gateways)).await
    }

    /// Creates a payment for which the payer gets a link.
    async fn asked_for(&self) -> Value {
        let wanted = json!({ "account": "acme", "amount_rub": RUBLES });
        let path = "/admin/v1/payments";
        reported(&self.world, 0, Method::POST, path, Some(wanted)).await
    }

    /// Sends a notification to a gateway. Returns the status of the response, or `None` if no response arrived.
    async fn tell(&self, gateway: usize, notification: &Value) -> Option<StatusCode> {
        let front = self.world.client_proxy(gateway).address();
        let body = Some(notification.clone());
        let path = "/payments/yookassa";
        let requested = ask_admin(&self.world.admin, front, Method::POST, path, body);
        requested.await.ok().map(|(status, _)| status)
    }

    /// Repeats a notification, as the provider does, until it is answered with 200.
    async fn tell_until_done(&self, gateway: usize, notification: &Value) {
        let until = Instant::now() + SOON;
        while self.tell(gateway, notification).await != Some(StatusCode::OK) {
            assert!(Instant::now() < until, "it is never done: {notification}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn show(&self, payment: &Value) -> Result<Value, String> {
        let path = format!("/admin/v1/payments/{}", id(payment));
        let answer = self.world.admin(0, Method::GET, &path, None).await?;
        Ok(answer.1)
    }

    async fn is(&self, payment: &Value, state: &str) {
        let until = Instant::now() + SOON;
        loop {
            let shown = self.show(payment).await;
            if shown.as_ref().is_ok_and(|shown| shown["state"] == state) {
                return;
            }
            assert!(
                Instant::now() < until,
                "it does not become {state}: {shown:?}"
            );
            sleep(LOOK_EVERY).await;
        }
    }

    /// Returns the entries of a payment and its refunds, in the order of the ledger.
    async fn entered(&self, payment: &Value) -> Vec<(String, i64)> {
        let lines = self.world.exported().await;
        let entries = lines.iter().filter(|line| line["kind"] == "entry");
        let of_provider = entries.filter_map(|line| {
            let id = line["id"].as_str()?;
            let known = id.starts_with("yookassa:");
            known.then(|| (id.to_owned(), micro(&line["amount_rub"])))
        });
        let mut entered: Vec<_> = of_provider.collect();
        let name = format!("yookassa:{}", of(payment));
        entered.retain(|(id, _)| *id == name || id.contains(":refund:"));
        entered
    }

    /// Checks that the payment and its refunds are in the ledger once, with one event each.
    async fn is_booked(&self, payment: &Value, refunded: &[i64]) {
        self.is(payment, "paid").await;
        let entered = self.entered(payment).await;
        let amounts: Vec<i64> = entered.iter().map(|(_, amount)| *amount).collect();
        let mut expected = vec![micro(&json!(RUBLES))];
        expected.extend(refunded.iter().map(|rubles| -rubles * 1_000_000));
        assert_eq!(amounts, expected, "{entered:?}");
        for (id, _) in entered {
            let reported = self.events_of(&id).await;
            assert_eq!(reported, 1, "events of {id}");
        }
    }

    /// Returns the number of charges of saved cards in the ledger. Checks that each charge is in the ledger only once.
    async fn charges_booked(&self) -> i64 {
        let charges = self.shop.charges();
        let lines = self.world.exported().await;
        let entries = lines.iter().filter(|line| line["kind"] == "entry");
        let ids = entries.filter_map(|line| line["id"].as_str()?.strip_prefix("yookassa:"));
        let booked: Vec<_> = ids
            .filter(|id| charges.iter().any(|one| one == id))
            .collect();
        let mut once = booked.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), booked.len(), "{booked:?}");
        i64::try_from(booked.len()).unwrap()
    }

    /// Waits for an event about an entry. Returns the number of events about it.
    async fn events_of(&self, entry: &str) -> usize {
        let until = Instant::now() + SOON;
        loop {
            let path = "/admin/v1/events?after=0&limit=1000";
            let page = reported(&self.world, 0, Method::GET, path, None).await;
            let events = page["events"].as_array().into_iter().flatten();
            let count = events.filter(|event| event["entry"] == entry).count();
            if count > 0 || Instant::now() > until {
                return count;
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

fn id(payment: &Value) -> &str {
    payment["id"].as_str().unwrap()
}

/// Returns the provider's id of the payment.
fn of(payment: &Value) -> &str {
    payment["payment"].as_str().unwrap()
}

/// The notification never arrives. The gateway finds the payment when it polls the provider.
async fn never(ledger: LedgerKind) -> Verdict {
    let given = Given::start(ledger).await;
    for _ in 0..3 {
        let payment = given.asked_for().await;
        given.shop.pay(of(&payment));
        given.is_booked(&payment, &[]).await;
        given.world.round();
    }
    given.world.verdict().await
}

/// All gateways get the notification at the same time. If many copies arrive at once, most of them are answered with
/// "try again later".
async fn doubled(ledger: LedgerKind) -> Verdict {
    let given = Given::start(ledger).await;
    for _ in 0..3 {
        let payment = given.asked_for().await;
        given.shop.pay(of(&payment));
        let reported = paid(of(&payment));
        let gateways = given.world.gateways.len();
        let many = (0..20).map(|turn| given.tell(turn % gateways, &reported));
        let answers = futures_util::future::join_all(many).await;
        let known = [Some(StatusCode::OK), Some(StatusCode::SERVICE_UNAVAILABLE)];
        assert!(
            answers.iter().all(|answer| known.contains(answer)),
            "{answers:?}"
        );
        assert!(answers.contains(&known[0]), "{answers:?}");
        given.is_booked(&payment, &[]).await;
        assert_eq!(given.tell(0, &reported).await, Some(StatusCode::OK));
        given.is_booked(&payment, &[]).await;
        given.world.round();
    }
    given.world.verdict().await
}

/// The gateway has recorded the payment as canceled, but the money arrived nevertheless. Then the provider repeats its
/// notification that the payment was canceled.
async fn late(ledger: LedgerKind) -> Verdict {
    let given = Given::start(ledger).await;
    let payment = given.asked_for().await;
    given.shop.cancel(of(&payment));
    given.tell_until_done(0, &canceled(of(&payment))).await;
    given.is(&payment, "canceled").await;
    given.shop.pay(of(&payment));
    given.tell_until_done(0, &paid(of(&payment))).await;
    given.tell_until_done(0, &canceled(of(&payment))).await;
    given.is_booked(&payment, &[]).await;
    given.world.verdict().await
}

/// The notification of the refund arrives before the notification of the payment, and both arrive twice.
async fn reordered(ledger: LedgerKind) -> Verdict {
    let given = Given::start(ledger).await;
    let payment = given.asked_for().await;
    // This keeps the regular poll of the gateway from fetching the payment before the notification arrives.
    given.edge.refuse(true);
    given.edge.reset();
    given.shop.pay(of(&payment));
    given.shop.refund(of(&payment), "r-1", "2000.00");
    given.edge.refuse(false);
    for notification in [
        refunded(of(&payment), "r-1"),
        paid(of(&payment)),
        refunded(of(&payment), "r-1"),
        paid(of(&payment)),
    ] {
        given.tell_until_done(0, &notification).await;
    }
    given.is_booked(&payment, &[2000]).await;
    given.world.verdict().await
}

/// A refund exceeds the balance. The remaining money is deducted, the rest becomes a debt, and no balance is below
/// zero.
async fn owed(ledger: LedgerKind) -> Verdict {
    let plan = Plan::over(ledger).rubles(100);
    let given = Given::over(plan).await;
    let payment = given.asked_for().await;
    given.shop.pay(of(&payment));
    given.tell_until_done(0, &paid(of(&payment))).await;
    given.is_booked(&payment, &[]).await;
    let off = json!({ "id": "spent", "amount_rub": "-4000", "reason": "spent elsewhere" });
    let path = "/admin/v1/accounts/acme/adjustments";
    reported(&given.world, 0, Method::POST, path, Some(off)).await;
    given.shop.refund(of(&payment), "r-1", "5000.00");
    let refund = refunded(of(&payment), "r-1");
    for _ in 0..3 {
        given.tell_until_done(0, &refund).await;
    }
    let entered = given.entered(&payment).await;
    assert_eq!(entered.len(), 2, "{entered:?}");
    let debt = given.show(&payment).await.unwrap();
    let debt = micro(&debt["debt_rub"]);
    assert_eq!(debt - entered[1].1, 5_000_000_000, "{entered:?}");
    assert!(debt > 3_800_000_000, "{debt}");
    given
        .world
        .note(format!("{} ₽ owed", debt.unsigned_abs() / 1_000_000));
    given.world.verdict().await
}

/// While the provider is down, the gateway answers a notification with 503, so that the provider repeats it. If the
/// provider never repeats it, the poll finds the payment.
async fn provider_down(ledger: LedgerKind) -> Verdict {
    let given = Given::start(ledger).await;
    for comes_again in [true, false] {
        let payment = given.asked_for().await;
        given.edge.refuse(true);
        given.edge.reset();
        given.shop.pay(of(&payment));
        let answer = given.tell(0, &paid(of(&payment))).await;
        assert_eq!(answer, Some(StatusCode::SERVICE_UNAVAILABLE));
        given.edge.refuse(false);
        if comes_again {
            given.tell_until_done(0, &paid(of(&payment))).await;
        }
        given.is_booked(&payment, &[]).await;
        given.world.round();
    }
    given.world.verdict().await
}

/// The gateway that got the notification is killed. In some cases the provider repeats the notification, in others it
/// never does.
async fn killed(ledger: LedgerKind, at: At) -> Verdict {
    let given = Given::over(Plan::over(ledger)).await;
    let world = &given.world;
    for comes_again in [true, false] {
        let payment = given.asked_for().await;
        let trap = match at {
            At::Fetch => given.edge.trap(Way::Up, bytes(FETCH), Then::Hold),
            At::Fetched => given.edge.trap(Way::Up, bytes(FETCH), Then::HoldAnswer),
            At::TopUp => world
                .redis_proxy(0)
                .trap(Way::Up, durable_script("enter"), Then::Hold),
            At::TopUpAnswered => {
                world
                    .redis_proxy(0)
                    .trap(Way::Up, durable_script("enter"), Then::HoldAnswer)
            }
            At::Asked | At::Charged => unreachable!("these are of saved cards"),
            At::State => {
                // A trap first holds the ledger's response to the top-up. Another trap then holds the record of the
                // payment's new status.
                let booked =
                    world
                        .redis_proxy(0)
                        .trap(Way::Up, durable_script("enter"), Then::HoldAnswer);
                given.shop.pay(of(&payment));
                let reported = paid(of(&payment));
                let (_, trap) = tokio::join!(
                    async {
                        let _ =
                            tokio::time::timeout(Duration::from_secs(8), given.tell(0, &reported))
                                .await;
                    },
                    async {
                        booked.sprung().await;
                        let trap = world.redis_proxy(0).trap(
                            Way::Up,
                            durable_script("compare_and_swap"),
                            Then::Hold,
                        );
                        booked.open();
                        trap.sprung().await;
                        world.gateway(0).kill9();
                        trap
                    }
                );
                trap
            }
        };
        if world.gateway(0).is_running() {
            given.shop.pay(of(&payment));
            let reported = paid(of(&payment));
            let (answer, ()) = tokio::join!(given.tell(0, &reported), async {
                trap.sprung().await;
                world.gateway(0).kill9();
            });
            assert_eq!(answer, None, "nobody can have answered it");
        }
        trap.open();
        world.gateway(0).restart().await;
        world.ready(0, SOON).await;
        if comes_again {
            given.tell_until_done(0, &paid(of(&payment))).await;
        }
        given.is_booked(&payment, &[]).await;
        world.round();
    }
    given.world.verdict().await
}

/// The provider has created the payment, and the gateway is killed before it receives the response. If the operator
/// repeats the request with the same id, the response contains the link of the same payment.
async fn killed_as_made(ledger: LedgerKind) -> Verdict {
    let given = Given::over(Plan::over(ledger)).await;
    let world = &given.world;
    for turn in 0..2 {
        let wanted = json!({
            "id": format!("0190163d-8694-739b-aea5-966c26f8ad9{turn}"), "account": "acme", "amount_rub": RUBLES,
        });
        let path = "/admin/v1/payments";
        let trap = given.edge.trap(Way::Up, bytes(MAKE), Then::HoldAnswer);
        let requested = world.admin(0, Method::POST, path, Some(wanted.clone()));
        let (answer, ()) = tokio::join!(requested, async {
            trap.sprung().await;
            world.gateway(0).kill9();
        });
        assert!(answer.is_err(), "nobody can have answered it: {answer:?}");
        trap.open();
        assert_eq!(given.shop.payments().len(), turn + 1);
        world.gateway(0).restart().await;
        world.ready(0, SOON).await;
        let payment = reported(world, 0, Method::POST, path, Some(wanted.clone())).await;
        assert_eq!(payment["id"], wanted["id"]);
        let again = reported(world, 0, Method::POST, path, Some(wanted)).await;
        assert_eq!((of(&again), &again["url"]), (of(&payment), &payment["url"]));
        assert_eq!(
            given.shop.payments().len(),
            turn + 1,
            "one payment for an id"
        );
        given.shop.pay(of(&payment));
        given.tell_until_done(0, &paid(of(&payment))).await;
        given.is_booked(&payment, &[]).await;
        world.round();
    }
    given.world.verdict().await
}

/// The gateway that got the notification of a refund is killed. The provider then repeats the notification. If the
/// refund was recorded before the kill, it is completed without a repeated notification.
async fn killed_at_a_refund(ledger: LedgerKind, at: Refunding) -> Verdict {
    let given = Given::over(Plan::over(ledger)).await;
    let world = &given.world;
    for comes_again in [true, false] {
        let payment = given.asked_for().await;
        given.shop.pay(of(&payment));
        given.tell_until_done(0, &paid(of(&payment))).await;
        given.is(&payment, "paid").await;
        let refund = format!("r-{comes_again}");
        let redis = |then| {
            let needles = durable_script("enter");
            world.redis_proxy(0).trap(Way::Up, needles, then)
        };
        let trap = match at {
            Refunding::Fetched => {
                given
                    .edge
                    .trap(Way::Up, bytes(FETCH_OF_REFUNDS), Then::HoldAnswer)
            }
            Refunding::Correction => redis(Then::Hold),
            Refunding::Corrected => redis(Then::HoldAnswer),
        };
        given.shop.refund(of(&payment), &refund, "2000.00");
        let reported = refunded(of(&payment), &refund);
        let (answer, ()) = tokio::join!(given.tell(0, &reported), async {
            trap.sprung().await;
            world.gateway(0).kill9();
        });
        assert_eq!(answer, None, "nobody can have answered it");
        trap.open();
        world.gateway(0).restart().await;
        world.ready(0, SOON).await;
        // If the refund is not recorded, the provider repeats the notification until it is answered.
        if comes_again || at == Refunding::Fetched {
            given.tell_until_done(0, &reported).await;
        }
        let taken = format!("yookassa:refund:{refund}");
        let until = Instant::now() + SOON;
        let entries = loop {
            let entered = given.entered(&payment).await;
            let of_refund = entered.iter().filter(|(id, _)| *id == taken);
            let amounts: Vec<i64> = of_refund.map(|(_, amount)| *amount).collect();
            if !amounts.is_empty() || Instant::now() > until {
                break amounts;
            }
            sleep(LOOK_EVERY).await;
        };
        assert_eq!(entries, [-2_000_000_000], "{refund}");
        given.tell_until_done(0, &reported).await;
        let shown = given.show(&payment).await.unwrap();
        assert_eq!(micro(&shown["debt_rub"]), 0, "{shown}");
        assert_eq!(given.events_of(&taken).await, 1);
        world.round();
    }
    given.world.verdict().await
}

/// The gateway that charges a saved card is killed, and another process continues. The card is charged once, and the
/// ledger contains the charge once.
async fn charge_killed(ledger: LedgerKind, at: At) -> Verdict {
    let given = Given::over(Plan::over(ledger).rubles(100)).await;
    let world = &given.world;
    let rule = "/admin/v1/accounts/acme/auto_topup";
    let wanted = json!({ "below_rub": "2000", "amount_rub": RUBLES, "month_max_rub": "100000" });
    let made = reported(world, 0, Method::PUT, rule, Some(wanted)).await;
    let first = given.shop.payments().pop().unwrap();
    given.shop.pay(&first);
    given.tell_until_done(0, &paid(&first)).await;
    let shown = reported(world, 0, Method::GET, rule, None).await;
    assert_eq!(shown["status"], "on", "{made}: {shown}");
    for crossing in 1..=2 {
        let requested = match at {
            At::Charged => given.edge.trap(Way::Up, bytes(CHARGE), Then::HoldAnswer),
            _ => given.edge.trap(Way::Up, bytes(CHARGE), Then::Hold),
        };
        let off = json!({ "id": format!("spent-{crossing}"), "amount_rub": "-4500", "reason": "spent elsewhere" });
        let path = "/admin/v1/accounts/acme/adjustments";
        reported(world, 0, Method::POST, path, Some(off)).await;
        requested.sprung().await;
        let redis = || world.redis_proxy(0);
        let last = match at {
            At::TopUp => Some(redis().trap(Way::Up, durable_script("enter"), Then::Hold)),
            At::TopUpAnswered | At::State => {
                Some(redis().trap(Way::Up, durable_script("enter"), Then::HoldAnswer))
            }
            _ => None,
        };
        if let Some(last) = &last {
            requested.open();
            last.sprung().await;
        }
        if let (At::State, Some(booked)) = (at, &last) {
            let noted = redis().trap(Way::Up, durable_script("compare_and_swap"), Then::Hold);
            booked.open();
            noted.sprung().await;
            world.gateway(0).kill9();
            noted.open();
        } else {
            world.gateway(0).kill9();
        }
        requested.open();
        if let Some(last) = &last {
            last.open();
        }
        world.gateway(0).restart().await;
        world.ready(0, SOON).await;
        let until = Instant::now() + SOON;
        loop {
            let shown = world.admin(0, Method::GET, rule, None).await;
            let charged = shown.as_ref().is_ok_and(|(_, rule)| {
                micro(&rule["month_rub"]) == crossing * micro(&json!(RUBLES))
                    && rule["declines"] == 0
            });
            if charged && given.charges_booked().await == crossing {
                break;
            }
            assert!(
                Instant::now() < until,
                "{crossing} is not charged: {shown:?}"
            );
            sleep(LOOK_EVERY).await;
        }
        assert_eq!(i64::try_from(given.shop.charges().len()), Ok(crossing));
        world.round();
    }
    given.world.verdict().await
}

/// The primary dies while the provider responds. Its replica, which has all current data, takes over.
async fn failover() -> Verdict {
    let given = Given::over(Plan::over(LedgerKind::RedisReplica).gateways(2)).await;
    let payment = given.asked_for().await;
    let trap = given.edge.trap(Way::Up, bytes(FETCH), Then::HoldAnswer);
    given.shop.pay(of(&payment));
    let reported = paid(of(&payment));
    tokio::join!(given.tell(0, &reported), async {
        trap.sprung().await;
        given.world.redis().kill();
        trap.open();
        sleep(Duration::from_millis(300)).await;
        promote(&given.world, 0..2).await;
    });
    given.is_booked(&payment, &[]).await;
    given.tell_until_done(1, &reported).await;
    given.is_booked(&payment, &[]).await;
    given.world.verdict().await
}

/// The replica that takes over has neither the top-up nor the record that the payment is complete. So the gateway
/// fetches the payment again.
async fn promoted_behind() -> Verdict {
    let given = Given::over(Plan::over(LedgerKind::RedisReplica).gateways(2)).await;
    let payment = given.asked_for().await;
    ask::<i64>(given.world.redis(), &["WAIT", "1", "5000"]).await;
    ask::<String>(given.world.replica(), &["REPLICAOF", "127.0.0.1", "1"]).await;
    given.shop.pay(of(&payment));
    given.tell_until_done(0, &paid(of(&payment))).await;
    given.is_booked(&payment, &[]).await;
    given.world.redis().kill();
    promote(&given.world, 0..2).await;
    for gateway in 0..2 {
        given.world.ready(gateway, SOON).await;
    }
    // The provider got 200 for its notification, so it does not repeat the notification.
    given.is_booked(&payment, &[]).await;
    given.world.note("booked again by its id");
    given.world.verdict().await
}

/// Like [`promoted_behind`], but a gateway has read the event of the top-up from the old primary and is about to number
/// it. The new primary does not have this event. The event is emitted once, when the top-up is recorded again.
async fn promoted_behind_an_event() -> Verdict {
    let given = Given::over(Plan::over(LedgerKind::RedisReplica).gateways(2)).await;
    let payment = given.asked_for().await;
    // Reading events makes the gateways number all earlier events.
    for gateway in 0..2 {
        let path = "/admin/v1/events";
        reported(&given.world, gateway, Method::GET, path, None).await;
    }
    ask::<i64>(given.world.redis(), &["WAIT", "1", "5000"]).await;
    ask::<String>(given.world.replica(), &["REPLICAOF", "127.0.0.1", "1"]).await;
    let numbered = [0, 1].map(|gateway| {
        let redis = given.world.redis_proxy(gateway);
        redis.trap(Way::Up, durable_script("gather"), Then::Hold)
    });
    given.shop.pay(of(&payment));
    let notification = paid(of(&payment));
    // The response to the notification may depend on the held script, so the case does not wait for the response alone.
    let telling = async {
        given.tell_until_done(0, &notification).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = telling => {}
        () = numbered[0].sprung() => {}
        () = numbered[1].sprung() => {}
    }
    // The replica is promoted first. So a request that is repeated after a lost connection reaches the new primary at
    // once.
    promote(&given.world, 0..2).await;
    given.world.redis().kill();
    numbered.iter().for_each(Trap::open);
    for gateway in 0..2 {
        given.world.ready(gateway, SOON).await;
    }
    given.tell_until_done(0, &notification).await;
    // If this later event has a number, all earlier events of the account have numbers, too.
    let off = json!({ "id": "behind", "amount_rub": "-1", "reason": "behind the top-up" });
    let path = "/admin/v1/accounts/acme/adjustments";
    reported(&given.world, 0, Method::POST, path, Some(off)).await;
    assert_eq!(given.events_of("behind").await, 1);
    given.is_booked(&payment, &[]).await;
    given.world.verdict().await
}

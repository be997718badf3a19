//! Tests of customers' payments. A fake provider on a real socket speaks the real format of the provider.

mod auto;
mod auto_elsewhere;
mod cloudpayments;
mod killed;
mod stripe;

use futures_util::future::join_all;
use http::StatusCode;
use tollgate_layers::reserve::ledger::{JournalLine, JournalPart, LedgerAdmin};
use tollgate_ledger::contract::{BookError, Documents, Update};

use crate::{
    console::{Browser, PASSWORD, named, operators_file_section},
    leases::{busy, leases, metric},
    prelude::*,
    support::shop::{Shop, canceled, paid, refunded},
    usage_report::{complained, tollgate, typed},
};

const ANCHOR: &str = "[[rate.source]]\nfixed = \"100\"\n";

async fn start(shop: &Shop, payments: &str, ledger: &str) -> World {
    start_with(&shop.config(payments), ledger).await
}

/// Starts a gateway whose configuration has these additional sections.
async fn start_with(sections: &str, ledger: &str) -> World {
    let sections = format!("{sections}{ANCHOR}");
    Setup::default()
        .ledger(ledger)
        .edit(ANCHOR, &sections)
        .start()
        .await
}

/// Starts a gateway and the fake shop of its payment provider. Creates an account `acme` without money.
async fn begun(payments: &str) -> (World, Shop) {
    let shop = Shop::start().await;
    let world = start(&shop, payments, "memory:").await;
    world.key_with("acme", "0", json!({})).await;
    (world, shop)
}

/// Starts what [`begun`] starts, and requests a payment of 5000 ₽ that the customer makes. The gateway does not know of
/// it yet.
async fn paid_at_shop(payments: &str) -> (World, Shop, Value) {
    let (world, shop) = begun(payments).await;
    let made = create(&world, "5000").await;
    shop.pay(id(&made));
    (world, shop, made)
}

async fn create(world: &World, rubles: &str) -> Value {
    let wanted = json!({ "account": "acme", "amount_rub": rubles });
    let made = world.admin_post("/admin/v1/payments", wanted).await;
    made.expect(200).json()
}

fn path(payment: &Value) -> String {
    format!("/admin/v1/payments/{}", payment["id"].as_str().unwrap())
}

async fn show(world: &World, payment: &Value) -> Value {
    world.admin_get(&path(payment)).await.json()
}

async fn check(world: &World, payment: &Value) -> Answer {
    let path = path(payment) + "/check";
    world.admin(Method::POST, &path, None).await
}

async fn tell(world: &World, notification: &Value) -> StatusCode {
    let headers = [("content-type", "application/json")];
    let url = world.url("/payments/yookassa");
    let body = notification.to_string().into();
    world
        .ask(request(Method::POST, &url, &headers, body))
        .await
        .status
}

async fn balance(world: &World) -> Value {
    let account = world.admin_get("/admin/v1/accounts/acme").await;
    account.json()["balance_rub"].clone()
}

/// Returns the account's debt: the amount of refunds for which it had no money.
async fn owed(world: &World) -> Value {
    let account = world.admin_get("/admin/v1/accounts/acme").await;
    account.json()["debt_rub"].clone()
}

/// Returns the id and the amount of each of the account's entries, for example `yookassa:refund:r-1 -500.00`.
async fn entries(world: &World) -> Vec<String> {
    let account = "acme".parse().unwrap();
    let page = world
        .gateway
        .store()
        .journal(&account, &JournalPart::whole())
        .await;
    let lines = page.unwrap().lines.into_iter();
    lines
        .filter_map(|line| match line {
            JournalLine::Entry { id, amount_rub, .. } => Some(format!("{id} {amount_rub}")),
            JournalLine::Call(_) => None,
        })
        .collect()
}

/// Changes a stored intent to the following state: a top-up rule has charged a saved card, the response was lost, and
/// the rule was removed.
async fn charged_by_a_rule_that_is_gone(world: &World, payment: &Value) {
    change_intent(world, payment, |intent| {
        intent["card"] = json!("saved");
        intent["state"] = json!("canceled");
        for made in ["payment", "url"] {
            intent.as_object_mut().unwrap().remove(made);
        }
    })
    .await;
}

/// Changes the stored document of a payment's intent.
async fn change_intent(world: &World, payment: &Value, change: impl Fn(&mut Value) + Send) {
    let name = format!("payment/{}", payment["id"].as_str().unwrap());
    let change = move |intent: Option<Value>| {
        let mut intent = intent.unwrap();
        change(&mut intent);
        Ok::<_, BookError>(Update::Write(intent, ()))
    };
    let changed = world.gateway.store().update(&name, change).await;
    changed.unwrap();
}

async fn is_sound(world: &World) {
    let audit = world.admin(Method::POST, "/admin/v1/audit", None).await;
    let audit = audit.json();
    assert_eq!(audit["breaches"], json!([]), "{audit}");
}

fn id(payment: &Value) -> &str {
    payment["payment"].as_str().unwrap()
}

#[tokio::test]
async fn payment_made_with_the_link_is_credited_once() {
    let (world, shop) = begun("").await;
    let made = create(&world, "5000").await;
    assert_eq!(made["state"], "open");
    let url = made["url"].as_str().unwrap();
    assert!(url.starts_with("https://yoomoney.example/checkout"));
    let order = &shop.received()[0];
    let number = made["id"].as_str().unwrap();
    assert_eq!(order.headers["idempotence-key"], number);
    let order = order.json();
    let amount = json!({ "value": "5000.00", "currency": "RUB" });
    assert_eq!(order["amount"], amount);
    assert_eq!(order["capture"], true);
    assert_eq!(order["metadata"]["tollgate_intent"], made["id"]);

    shop.pay(id(&made));
    for _ in 0..3 {
        assert_eq!(tell(&world, &paid(id(&made))).await, 200);
    }
    assert_eq!(shop.fetches(), 1, "what is paid is not fetched again");
    let entry = format!("yookassa:{}", id(&made));
    assert_eq!(entries(&world).await, [format!("{entry} 5000.00")]);
    let shown = show(&world, &made).await;
    assert_eq!(shown["state"], "paid");
    assert_eq!(shown["entry"], entry);
    is_sound(&world).await;
}

#[tokio::test]
async fn payments_can_be_created_listed_and_checked_by_command() {
    let (world, shop) = begun("").await;
    let link = typed(&world, "payment create acme 5000", 0).await;
    let payment = shop.payments().pop().unwrap();
    has(&link, &format!("checkout?orderId={payment}"));
    let made = typed(&world, "payment list --account acme --json", 0).await;
    let made: Value = serde_json::from_str(&made).unwrap();
    let made = made["payments"][0]["id"].as_str().unwrap();
    shop.pay(&payment);
    let checked = typed(&world, &format!("payment check {made}"), 0).await;
    has(&checked, &format!("yookassa:{payment}"));
    let listed = typed(&world, "payment list --state paid", 0).await;
    has(&listed, made);
    has(&listed, "5000.00");
}

#[tokio::test]
async fn repeated_payment_request_returns_the_same_payment() {
    let (world, shop) = begun("").await;
    let wanted = |rubles: &str| json!({ "id": "019ac3f0-1c2e-7b4d-9f00-5d3b6a7c8e90", "account": "acme", "amount_rub": rubles });
    let ask = async |rubles: &str| world.admin_post("/admin/v1/payments", wanted(rubles)).await;
    // The provider fails at first and creates nothing, so the caller may repeat the request.
    shop.break_with(Some(500));
    assert_eq!(ask("10").await.status, 502);
    shop.break_with(None);
    let made = join_all((0..5).map(|_| ask("10"))).await;
    let url = made[0].json()["url"].clone();
    assert!(made.iter().all(|made| made.json()["url"] == url));
    assert_eq!(shop.payments().len(), 1);
    assert_eq!(ask("11").await.status, 409);
    let path = "/admin/v1/payments";
    for rubles in ["0.001", "0", "-5"] {
        let wanted = json!({ "account": "acme", "amount_rub": rubles });
        let refused = world.admin_post(path, wanted).await;
        assert_eq!(refused.status, 400, "{rubles}");
        let text = refused.text();
        assert!(text.contains("whole kopecks"), "{rubles}: {text}");
    }
    let nobody = json!({ "account": "nobody", "amount_rub": "10" });
    world.admin_post(path, nobody).await.expect(404);
}

#[tokio::test]
async fn ten_notifications_to_two_gateways_on_one_redis_make_one_top_up() {
    let redis = RedisServer::start().await;
    let shop = Shop::start().await;
    let one = start(&shop, "", &redis.url()).await;
    let other = start(&shop, "", &redis.url()).await;
    one.key_with("acme", "0", json!({})).await;
    let made = create(&one, "5000").await;
    shop.pay(id(&made));
    let tell_both = async |notification: &Value| {
        let returned = (0..10).map(|n| tell(if n % 2 == 0 { &one } else { &other }, notification));
        for status in join_all(returned).await {
            assert_eq!(status, 200);
        }
    };
    let notification = paid(id(&made));
    tell_both(&notification).await;
    assert_eq!(balance(&other).await, "5000.00");
    assert_eq!(entries(&one).await.len(), 1);

    // The account has spent a part of the money. Both gateways get the notification of the refund, and together they
    // record it once.
    let off = json!({ "id": "spent", "amount_rub": "-4000", "reason": "spent" });
    let path = "/admin/v1/accounts/acme/adjustments";
    other.admin_post(path, off).await;
    shop.refund(id(&made), "r-1", "3000.00");
    let notification = refunded(id(&made), "r-1");
    tell_both(&notification).await;
    assert_eq!(entries(&one).await.len(), 3);
    assert_eq!(balance(&one).await, "0.00");
    let shown = show(&other, &made).await;
    assert_eq!(shown["debt_rub"], "2000.00", "{shown}");
    is_sound(&one).await;
}

#[tokio::test]
async fn forged_payment_notification_has_no_effect() {
    let (world, shop) = begun("").await;
    let made = create(&world, "5000").await;
    // The gateway fetches the payment, and the provider reports that it was not made.
    assert_eq!(tell(&world, &paid(id(&made))).await, 200);
    assert_eq!(shop.fetches(), 1);
    // The gateway does not even fetch a payment that it has not created.
    for unknown in [
        "2d009999-000f-5000-8000-18db351245c7",
        "../../secrets",
        "",
        "*",
    ] {
        assert_eq!(tell(&world, &paid(unknown)).await, 200, "{unknown}");
        let refund = refunded(unknown, "r");
        assert_eq!(tell(&world, &refund).await, 200, "{unknown}");
    }
    // The notification names another payment for the intent. The intent keeps the first payment.
    let mut other = paid("2d009999-000f-5000-8000-18db351245c7");
    other["object"]["metadata"] = json!({ "tollgate_intent": made["id"] });
    assert_eq!(tell(&world, &other).await, 200);
    assert_eq!(shop.fetches(), 1);
    for unread in [json!([]), json!({ "event": "payment.succeeded" })] {
        assert_eq!(tell(&world, &unread).await, 400);
    }
    let url = world.url("/payments/paypal");
    world
        .ask(request(Method::POST, &url, &[], "{}".into()))
        .await
        .expect(404);
    let large = vec![b' '; 65 * 1024];
    let url = world.url("/payments/yookassa");
    let large = world
        .ask(request(Method::POST, &url, &[], large.into()))
        .await;
    assert!(large.status.is_client_error(), "{large:?}");
    assert_eq!(balance(&world).await, "0.00");
    assert_eq!(show(&world, &made).await["state"], "open");
}

#[tokio::test]
async fn flood_of_payment_notifications_causes_few_requests_to_the_provider() {
    let (world, shop) = begun("").await;
    let made = create(&world, "5000").await;
    let returned = join_all((0..200).map(|_| async { tell(&world, &paid(id(&made))).await })).await;
    let later = returned.iter().filter(|status| **status == 503).count();
    assert!(shop.fetches() <= 25, "{}", shop.fetches());
    assert!(later >= 175, "{later}");
}

#[tokio::test]
async fn payment_that_does_not_match_its_intent_is_refused_with_an_event() {
    for amount in [
        json!({ "value": "4999.99", "currency": "RUB" }),
        json!({ "value": "5000.00", "currency": "USD" }),
        json!({ "value": "50000.00", "currency": "RUB" }),
        json!({ "value": "many", "currency": "RUB" }),
    ] {
        let (world, shop, made) = paid_at_shop("").await;
        shop.set(id(&made), &json!({ "amount": amount }));
        assert_eq!(tell(&world, &paid(id(&made))).await, 200);
        let shown = show(&world, &made).await;
        assert_eq!(shown["state"], "refused", "{shown}");
        let why = shown["reason"].as_str().unwrap();
        assert!(why.contains(amount["value"].as_str().unwrap()), "{why}");
        assert!(why.contains(amount["currency"].as_str().unwrap()), "{why}");
        assert_eq!(balance(&world).await, "0.00");
        let listed = world.admin_get("/admin/v1/payments?state=refused").await;
        assert_eq!(listed.json()["payments"].as_array().unwrap().len(), 1);
        let lost = "/admin/v1/payments?state=lost";
        world.admin_get(lost).await.expect(400);
        let scrape = world.admin_get("/metrics").await.text();
        let counted = "tollgate_payments_total{result=\"refused\"} 1";
        assert!(scrape.contains(counted), "{scrape}");
    }
}

#[tokio::test]
async fn payment_without_a_notification_is_found_by_a_check_or_a_poll() {
    let (world, shop, made) = paid_at_shop("").await;
    assert_eq!(check(&world, &made).await.json()["state"], "paid");
    // The notification of the refund is lost, like that of the payment.
    shop.refund(id(&made), "r-1", "1000.00");
    assert_eq!(check(&world, &made).await.json()["debt_rub"], "0.00");
    assert_eq!(balance(&world).await, "4000.00");

    let (world, shop, made) = paid_at_shop("poll_seconds = 1").await;
    eventually("the clock finds it", async || {
        (show(&world, &made).await["state"] == "paid").then_some(())
    })
    .await;
    assert_eq!(balance(&world).await, "5000.00");
    // The poll does not fetch payments that are closed.
    let of_paid = || {
        let mut received = shop.received();
        received.retain(|requested| requested.path.ends_with(id(&made)));
        received.len()
    };
    let before = of_paid();
    let other = create(&world, "7").await;
    shop.cancel(id(&other));
    eventually("the clock closes it", async || {
        (show(&world, &other).await["state"] == "canceled").then_some(())
    })
    .await;
    assert_eq!(of_paid(), before);
}

#[tokio::test]
async fn payment_notifications_may_arrive_in_any_order() {
    // The notification of a refund may arrive before the notification of its payment.
    let (world, shop, made) = paid_at_shop("").await;
    shop.refund(id(&made), "r-1", "5000.00");
    assert_eq!(tell(&world, &refunded(id(&made), "r-1")).await, 200);
    assert_eq!(tell(&world, &paid(id(&made))).await, 200);
    let entry = format!("yookassa:{}", id(&made));
    let expected = [
        format!("{entry} 5000.00"),
        "yookassa:refund:r-1 -5000.00".to_owned(),
    ];
    assert_eq!(entries(&world).await, expected);

    // The notification of a success may arrive before or after the notification of a cancellation.
    let made = create(&world, "300").await;
    shop.cancel(id(&made));
    assert_eq!(tell(&world, &canceled(id(&made))).await, 200);
    let shown = show(&world, &made).await;
    assert_eq!(shown["state"], "canceled");
    assert_eq!(shown["reason"], "yoo_money: expired_on_confirmation");
    shop.pay(id(&made));
    assert_eq!(tell(&world, &paid(id(&made))).await, 200);
    assert_eq!(tell(&world, &canceled(id(&made))).await, 200);
    assert_eq!(show(&world, &made).await["state"], "paid");
    assert_eq!(balance(&world).await, "300.00");
    is_sound(&world).await;
}

#[tokio::test]
async fn payment_notification_may_arrive_before_the_answer_that_names_the_payment() {
    let (world, shop) = begun("").await;
    let until = Arc::new(Notify::new());
    shop.hold(Some(Arc::clone(&until)));
    let telling = async {
        let payment = eventually("the shop has made it", async || shop.payments().pop()).await;
        shop.pay(&payment);
        let mut notification = paid(&payment);
        notification["object"]["metadata"] = json!({ "tollgate_intent": shop.received()[0].headers["idempotence-key"].to_str().unwrap() });
        let status = tell(&world, &notification).await;
        until.notify_one();
        status
    };
    let (made, returned) = tokio::join!(create(&world, "5000"), telling);
    assert_eq!(returned, 200);
    let shown = show(&world, &made).await;
    assert_eq!(shown["state"], "paid", "{shown}");
    assert_eq!(balance(&world).await, "5000.00");
    assert_eq!(entries(&world).await.len(), 1);
}

#[tokio::test]
async fn payment_cancelled_after_success_emits_an_event_and_moves_no_money() {
    let (world, shop, made) = paid_at_shop("").await;
    assert_eq!(tell(&world, &paid(id(&made))).await, 200);
    shop.cancel(id(&made));
    for _ in 0..3 {
        assert_eq!(tell(&world, &canceled(id(&made))).await, 200);
    }
    let path = "/admin/v1/events?after=0&kind=payment_reversed";
    let returned = world.admin_get(path).await.json();
    let returned = returned["events"].as_array().unwrap();
    assert_eq!(returned.len(), 1, "{returned:?}");
    let entry = format!("yookassa:{}", id(&made));
    assert_eq!(returned[0]["entry"], entry);
    assert_eq!(returned[0]["amount_rub"], "5000.00");
    let reason = "yoo_money: expired_on_confirmation";
    assert_eq!(returned[0]["reason"], reason);
    assert_eq!(show(&world, &made).await["state"], "paid");
    assert_eq!(balance(&world).await, "5000.00");
    let reversed = "tollgate_payments_total{result=\"reversed\"}";
    assert_eq!(metric(&world, reversed).await, 1.0);
}

#[tokio::test]
async fn refund_that_yookassa_cancels_after_it_succeeded_is_credited_back() {
    let (world, shop, made) = paid_at_shop("").await;
    assert_eq!(tell(&world, &paid(id(&made))).await, 200);
    shop.refund(id(&made), "r-1", "2000.00");
    assert_eq!(tell(&world, &refunded(id(&made), "r-1")).await, 200);
    assert_eq!(balance(&world).await, "3000.00");
    shop.refund_fails("r-1");
    assert_eq!(check(&world, &made).await.status, 200);
    assert_eq!(balance(&world).await, "5000.00");
    is_sound(&world).await;
}

#[tokio::test]
async fn refund_takes_free_money_and_the_rest_becomes_a_debt() {
    let (world, shop, made) = paid_at_shop("on_page = true").await;
    tell(&world, &paid(id(&made))).await;
    let adjust = async |id: &str, rubles: &str| {
        let body = json!({ "id": id, "amount_rub": rubles, "reason": "as calls would" });
        world
            .admin_post("/admin/v1/accounts/acme/adjustments", body)
            .await
            .expect(200);
    };
    adjust("spent", "-4500").await;
    shop.refund(id(&made), "r-1", "2000.00");
    for _ in 0..3 {
        assert_eq!(tell(&world, &refunded(id(&made), "r-1")).await, 200);
    }
    assert_eq!(balance(&world).await, "0.00");
    let shown = show(&world, &made).await;
    assert_eq!(shown["debt_rub"], "1500.00");
    assert_eq!(shown["refunds"][0]["taken_rub"], json!(["500.00"]));
    let listed = world.admin_get("/admin/v1/payments?account=acme").await;
    assert_eq!(listed.json()["debt_rub"], "1500.00");
    assert_eq!(owed(&world).await, "1500.00");
    let returned = typed(&world, "account show acme", 0).await;
    let debt = "owed for refunds  1500.00 ₽";
    assert!(returned.contains(debt), "{returned}");
    let key = world.another_key("acme", json!({})).await;
    let offer = offered(&world, &key).await.json();
    assert_eq!(offer["debt_rub"], "1500.00", "{offer}");
    // The account has no free money. So the second refund deducts nothing now, and its whole amount is added to the
    // debt.
    shop.refund(id(&made), "r-2", "1.00");
    tell(&world, &refunded(id(&made), "r-2")).await;
    assert_eq!(show(&world, &made).await["debt_rub"], "1501.00");
    assert_eq!(owed(&world).await, "1501.00");
    let path = "/admin/v1/events?after=0&kind=debt";
    let returned = world.admin_get(path).await.json();
    let returned = returned["events"].as_array().unwrap().iter();
    let returned: Vec<_> = returned
        .map(|event| json!([event["entry"], event["debt_rub"]]))
        .collect();
    let once_each = [
        json!(["yookassa:refund:r-1", "1500.00"]),
        json!(["yookassa:refund:r-2", "1.00"]),
    ];
    assert_eq!(returned, once_each);
    // A check of the payment collects the debt from the account's free money, but never more than the debt.
    adjust("given", "1000").await;
    assert_eq!(check(&world, &made).await.json()["debt_rub"], "501.00");
    assert_eq!(owed(&world).await, "501.00");
    adjust("given again", "1000").await;
    assert_eq!(check(&world, &made).await.json()["debt_rub"], "0.00");
    assert_eq!(check(&world, &made).await.json()["debt_rub"], "0.00");
    assert_eq!(owed(&world).await, "0.00");
    assert_eq!(balance(&world).await, "499.00");
    let mut taken = entries(&world).await;
    taken.retain(|entry| entry.contains(":refund:"));
    let expected = [
        "yookassa:refund:r-1 -500.00",
        "yookassa:refund:r-2 0.00",
        "yookassa:refund:r-1:2 -1000.00",
        "yookassa:refund:r-1:3 -500.00",
        "yookassa:refund:r-2:2 -1.00",
    ];
    assert_eq!(taken, expected);
    is_sound(&world).await;
}

/// A lease holds the account's money, and no call uses it. The refund recalls the lease.
#[tokio::test]
async fn unused_money_of_a_lease_can_be_refunded() {
    let (server, shop) = (RedisServer::start().await, Shop::start().await);
    let sections = format!("{}{ANCHOR}", shop.config(""));
    let world = Setup::default()
        .ledger(&server.url())
        .edit("[ledger]\n", "[ledger]\nlease_ms_max = 2000\n")
        .edit(ANCHOR, &sections)
        .start()
        .await;
    let key = world.key_with("acme", "0", json!({})).await;
    let made = create(&world, "5000").await;
    shop.pay(id(&made));
    assert_eq!(tell(&world, &paid(id(&made))).await, 200);
    world.vendor_sends(plain_reply(Op::Chat, "да", 9, 2));
    let lease = eventually("a lease has heard of all ends, and stands", async || {
        busy(&world, &key).await;
        let counts = ["tollgate_lease_holds_total", "tollgate_lease_ends_total"];
        let [held, ended] = counts.map(|name| metric(&world, name));
        let all = held.await == ended.await;
        let mut left = leases(&world, "?account=acme").await;
        if all { left.pop() } else { None }
    })
    .await;
    assert_ne!(lease["held_rub"], "0.00", "{lease}");

    shop.refund(id(&made), "r-1", "5000.00");
    assert_eq!(tell(&world, &refunded(id(&made), "r-1")).await, 200);
    assert_eq!(balance(&world).await, "0.00");
    let path = format!("/admin/v1/keys/{}", key.id);
    let shown = world.admin_get(&path).await.json();
    let spent = &shown["spent_rub"];
    assert_eq!(&show(&world, &made).await["debt_rub"], spent);
    assert_eq!(owed(&world).await, *spent);
    is_sound(&world).await;
}

#[tokio::test]
async fn provider_that_does_not_answer_is_called_again() {
    let (world, shop, made) = paid_at_shop("").await;
    for status in [500, 429, 401] {
        shop.break_with(Some(status));
        assert_eq!(tell(&world, &paid(id(&made))).await, 503, "{status}");
        assert_eq!(check(&world, &made).await.status, 502, "{status}");
    }
    shop.break_with(None);
    assert_eq!(tell(&world, &paid(id(&made))).await, 200);
    assert_eq!(balance(&world).await, "5000.00");
}

#[tokio::test]
async fn payment_that_the_provider_did_not_create_is_requested_again_with_the_same_id() {
    let (world, shop) = begun("").await;
    shop.break_with(Some(500));
    let args = ["payment", "create", "acme", "5000"];
    let failed = complained(&tollgate(&world, &args, "").await, 1);
    let (_, id) = failed.split_once("--id ").unwrap();
    let id = id.split(')').next().unwrap();
    shop.break_with(None);
    let again = format!("payment create acme 5000 --id {id}");
    let made = typed(&world, &again, 0).await;
    assert!(made.contains(id) && made.contains("https://"), "{made}");
    assert_eq!(shop.payments().len(), 1);
}

/// Requests a payment with a caller's key.
async fn asked_by(world: &World, key: &Key, body: &Value) -> Answer {
    let path = "/v1/tollgate/payments";
    world.post(path, key, body.to_string()).await
}

#[tokio::test]
async fn reported_payment_limits_equal_the_smallest_and_largest_accepted_amount() {
    let shop = Shop::start().await;
    let bounds = "on_page = true\nmin_rub = \"100.50\"\nmax_rub = \"1000.50\"";
    let world = start(&shop, bounds, "memory:").await;
    let key = world.key_with("acme", "0", json!({})).await;
    for (amount, returned) in [("50", "101"), ("5000", "1000")] {
        let mut requested = amount;
        for status in [400, 200] {
            let answer = asked_by(&world, &key, &json!({ "amount_rub": requested })).await;
            assert_eq!(answer.status, status, "{requested}: {answer:?}");
            assert!(
                status == 200 || answer.refusal().contains(returned),
                "{answer:?}"
            );
            requested = returned;
        }
    }
}

/// An owner key can create and remove a rule that charges the account's card. So only some roles may create an owner
/// key.
#[tokio::test]
async fn only_roles_that_manage_money_create_owner_keys_while_payments_are_enabled() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("operators.toml");
    for role in ["support", "admin"] {
        named(&file, &format!("{role}-1"), role);
    }
    let shop = Shop::start().await;
    for offered in [false, true] {
        let payments = shop.config(if offered { "on_page = true" } else { "" });
        let world = Setup::default()
            .edit(ANCHOR, &format!("{payments}{ANCHOR}"))
            .edit("[admin]\n", &operators_file_section(&file))
            .start()
            .await;
        world.key_with("acme", "0", json!({})).await;
        let owner = world.another_key("acme", json!({ "kind": "owner" })).await;
        for (who, may) in [("support-1", !offered), ("admin-1", true)] {
            let me = Browser::signed_in(&world, who, PASSWORD).await;
            let path = format!("/console/keys/{}", owner.id);
            for wanted in ["disable", "enable", "delete"] {
                let fields = [("do", wanted), ("sure", "1")];
                let answer = me.post(&world, &path, &fields).await;
                let is_refused = answer.status == 403;
                assert_eq!(is_refused, !may, "{who} {wanted} {offered}: {answer:?}");
            }
        }
        for (who, owner, may) in [
            ("support-1", "", true),
            ("support-1", "1", !offered),
            ("admin-1", "1", true),
        ] {
            let me = Browser::signed_in(&world, who, PASSWORD).await;
            let wanted = [("do", "create-key"), ("name", "x"), ("owner", owner)];
            let answer = me.post(&world, "/console/accounts/acme", &wanted).await;
            let status = if may { 200 } else { 403 };
            assert_eq!(answer.status, status, "{who} {owner} {offered}: {answer:?}");
        }
    }
}

/// Returns what the gateway offers a caller's key: the limits of payments, and the payments so far.
async fn offered(world: &World, key: &Key) -> Answer {
    world.get_by(key, "/v1/tollgate/payments").await
}

/// Checks that a requested payment was refused because of this field.
fn is_refused(answer: &Answer, body: &Value, field: &str, says: &str) {
    assert_eq!(answer.status, 400, "{body}: {answer:?}");
    let text = answer.refusal();
    let named = text.contains(&format!("«{field}»"));
    assert!(named && text.contains(says), "{body}: {text}");
}

#[tokio::test]
async fn callers_key_can_start_payments_only_within_the_configured_limits() {
    let shop = Shop::start().await;
    let bounds = "on_page = true\nmin_rub = \"100\"\nmax_rub = \"1000\"\nopen_max = 2";
    let world = start(&shop, bounds, "memory:").await;
    let key = world.key_with("acme", "0", json!({})).await;
    let ask = async |body: Value| asked_by(&world, &key, &body).await;
    for (body, status) in [
        (json!({ "amount_rub": "99.99" }), 400),
        (json!({ "amount_rub": "1000.01" }), 400),
        (json!({ "amount_rub": "100", "provider": "paypal" }), 400),
        (json!({ "amount_rub": "100" }), 200),
        (json!({ "amount_rub": "1000", "email": "a@b.example" }), 200),
        (json!({ "amount_rub": "100" }), 429),
    ] {
        let answer = ask(body.clone()).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
    }
    for (field, value, says) in [
        ("amount_rub", json!("1,5"), "целыми копейками"),
        ("amount_rub", json!("100.001"), "целыми копейками"),
        ("amount_rub", json!(100), "в кавычках, например \"12.50\""),
        ("account", json!("other"), "не поддерживает"),
        ("email", json!("nobody"), "адрес почты, например"),
        ("email", json!(1), "строка"),
    ] {
        let mut body = json!({ "amount_rub": "100" });
        body[field] = value;
        is_refused(&ask(body.clone()).await, &body, field, says);
    }
    is_refused(
        &ask(json!({})).await,
        &json!({}),
        "amount_rub",
        "отсутствует",
    );
    let offer = offered(&world, &key).await.json();
    assert_eq!(offer["min_rub"], "100.00");
    assert_eq!(offer["max_rub"], "1000.00");
    assert_eq!(offer["payments"].as_array().unwrap().len(), 2);
    // The number of open payments is limited. A paid payment is not open any more.
    let first = shop.payments()[0].clone();
    shop.pay(&first);
    tell(&world, &paid(&first)).await;
    assert_eq!(balance(&world).await, "100.00");
    assert_eq!(ask(json!({ "amount_rub": "100" })).await.status, 200);
    assert_eq!(world.get("/v1/tollgate/payments", &[]).await.status, 401);
    let page = async |world: &World| world.get("/usage", &[]).await.text();
    assert!(page(&world).await.contains("<form id=\"pay\""));

    // If a gateway does not offer payments to callers, the path does not exist.
    let (world, _shop) = begun("").await;
    assert!(!page(&world).await.contains("<form id=\"pay\""));
    let key = world.another_key("acme", json!({})).await;
    assert_eq!(offered(&world, &key).await.status, 404);
    let (world, key) = World::start_with_key().await;
    assert_eq!(offered(&world, &key).await.status, 404);
    let wanted = json!({ "account": "acme", "amount_rub": "10" });
    let refused = world.admin_post("/admin/v1/payments", wanted).await;
    let text = refused.expect(400).text();
    assert!(text.contains("[payments]"), "{text}");
}

//! Tests of Stripe in its real format: Checkout sessions, and events with a signature over their time and body.

use std::{
    sync::Mutex,
    time::{SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use http::StatusCode;
use sha2::Sha256;
use tollgate::{
    demo::vendor::{Received, ScriptedVendor},
    payments::IntentId,
};
use tollgate_layers::money::MicroRub;

use super::{
    balance, charged_by_a_rule_that_is_gone, check, create, entries, is_sound,
    killed::{self, until_killed, wish_of},
    show, start_with,
};
use crate::prelude::*;

#[derive(Default)]
struct Books {
    session: Value,
    refunds: Vec<Value>,
    disputes: Vec<Value>,
}

struct Account {
    vendor: ScriptedVendor,
    books: Arc<Mutex<Books>>,
}

/// Starts a gateway whose Stripe section has these additional lines, and requests a payment of 5000.50 ₽ for an account
/// without money.
async fn requested(lines: &str) -> (World, Account, Value) {
    let (sections, account) = open_account().await;
    let sections = format!("{sections}{lines}");
    let world = start_with(&sections, "memory:").await;
    world.key_with("acme", "0", json!({})).await;
    let made = create(&world, "5000.5").await;
    (world, account, made)
}

/// Starts a fake Stripe account. Returns the configuration sections of a gateway that uses it, and the fake.
async fn open_account() -> (String, Account) {
    let vendor = ScriptedVendor::start().await.unwrap();
    let books = Arc::new(Mutex::new(Books::default()));
    let stored = Arc::clone(&books);
    vendor.script(move |requested| answer(&mut stored.lock().unwrap(), requested));
    let sections = format!(
        "[payments.stripe]\nsecret_key = \"${{VENDOR_KEY}}\"\nwebhook_secret = \"${{VENDOR_KEY}}\"\nurl = \"http://{}\"\n\
         return_url = \"https://pay.example/usage\"\n",
        vendor.address()
    );
    (sections, Account { vendor, books })
}

fn answer(books: &mut Books, requested: &Received) -> Reply {
    assert_eq!(
        requested.headers["authorization"],
        format!("Bearer {VENDOR_KEY}")
    );
    if requested.path == "/v1/checkout/sessions" {
        let id = requested.headers["idempotency-key"].to_str().unwrap();
        let form = String::from_utf8(requested.body.to_vec()).unwrap();
        for field in [
            "mode=payment",
            "line_items%5B0%5D%5Bprice_data%5D%5Bunit_amount%5D=500050",
            "line_items%5B0%5D%5Bprice_data%5D%5Bcurrency%5D=rub",
            &format!("metadata%5Btollgate_intent%5D={id}"),
            &format!("payment_intent_data%5Bmetadata%5D%5Btollgate_intent%5D={id}"),
        ] {
            assert!(form.split('&').any(|pair| pair == field), "{field}: {form}");
        }
        books.session = json!({
            "id": "cs_test_a1", "object": "checkout.session", "url": "https://checkout.example/c/pay/cs_test_a1",
            "status": "open", "payment_status": "unpaid", "amount_total": 500_050, "currency": "rub",
            "payment_intent": null, "client_reference_id": id, "metadata": { "tollgate_intent": id },
        });
        return Reply::json(200, &books.session);
    }
    if requested.path == "/v1/checkout/sessions/cs_test_a1" {
        return Reply::json(200, &books.session);
    }
    if let Some(paid) = requested.path.strip_prefix("/v1/payment_intents/") {
        let ours = json!({ "tollgate_intent": books.session["client_reference_id"] });
        let metadata = if paid == "pi_1" { ours } else { json!({}) };
        let paid = json!({ "id": paid, "object": "payment_intent", "metadata": metadata, "status": "succeeded",
            "amount": 500_050, "currency": "rub" });
        return Reply::json(200, &paid);
    }
    let listed = match requested.path.as_str() {
        "/v1/refunds?limit=100&payment_intent=pi_1" => &books.refunds,
        "/v1/disputes?limit=100&payment_intent=pi_1" => &books.disputes,
        path => panic!("{path}"),
    };
    let list = json!({ "object": "list", "data": listed, "has_more": false });
    Reply::json(200, &list)
}

/// Returns a refund of 1000 ₽ as Stripe lists it.
fn refund(id: &str, status: &str) -> Value {
    json!({ "id": id, "amount": 100_000, "currency": "rub", "status": status })
}

impl Account {
    fn set(&self, fields: &Value) {
        let mut books = self.books.lock().unwrap();
        for (name, value) in fields.as_object().unwrap() {
            books.session[name] = value.clone();
        }
    }

    fn pay(&self) {
        self.set(
            &json!({ "status": "complete", "payment_status": "paid", "payment_intent": "pi_1" }),
        );
    }

    fn refund_is(&self, status: &str) {
        self.books.lock().unwrap().refunds = vec![refund("re_1", status)];
    }

    fn dispute_is(&self, status: &str) {
        self.books.lock().unwrap().disputes = vec![json!({
            "id": "du_1", "object": "dispute", "amount": 200_000, "currency": "rub", "status": status,
        })];
    }

    fn fetches(&self) -> usize {
        let received = self.vendor.received();
        received
            .iter()
            .filter(|requested| requested.body.is_empty())
            .count()
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn signature(secret: &str, time: u64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{time}.{body}").as_bytes());
    let bytes = mac.finalize().into_bytes();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={time},v1={hex}")
}

async fn tell_signed(world: &World, event: &Value, shown: &str) -> StatusCode {
    let headers = [
        ("content-type", "application/json"),
        ("stripe-signature", shown),
    ];
    let url = world.url("/payments/stripe");
    let body = event.to_string().into();
    world
        .ask(request(Method::POST, &url, &headers, body))
        .await
        .status
}

async fn tell(world: &World, event: &Value) -> StatusCode {
    let shown = signature(VENDOR_KEY, now(), &event.to_string());
    tell_signed(world, event, &shown).await
}

fn event(kind: &str, made: &Value, id: &str) -> Value {
    json!({ "id": "evt_1", "object": "event", "type": kind, "data": { "object": {
        "id": id, "metadata": { "tollgate_intent": made["id"] }, "amount_total": 99_999_999, "payment_status": "paid",
    } } })
}

#[tokio::test]
async fn paid_stripe_session_is_credited_once_and_its_refunds_deducted() {
    let (world, account, made) = requested("").await;
    assert_eq!(made["url"], "https://checkout.example/c/pay/cs_test_a1");
    // The payer has completed the session, but the bank has not paid yet.
    account.set(&json!({ "status": "complete" }));
    let completed = event("checkout.session.completed", &made, "cs_test_a1");
    assert_eq!(tell(&world, &completed).await, 200);
    assert_eq!(show(&world, &made).await["state"], "open");
    account.pay();
    let succeeded = "checkout.session.async_payment_succeeded";
    let succeeded = event(succeeded, &made, "cs_test_a1");
    for paid in [&succeeded, &completed, &succeeded] {
        assert_eq!(tell(&world, paid).await, 200);
    }
    assert_eq!(entries(&world).await, ["stripe:cs_test_a1 5000.50"]);
    account.books.lock().unwrap().refunds =
        vec![refund("re_1", "succeeded"), refund("re_2", "failed")];
    let refunded = event("charge.refunded", &made, "ch_1");
    for _ in 0..2 {
        assert_eq!(tell(&world, &refunded).await, 200);
    }
    assert_eq!(balance(&world).await, "4000.50");
    assert_eq!(entries(&world).await[1], "stripe:refund:re_1 -1000.00");
    // The event of a refund names only the payment, not the session.
    let reported = |paid: &str| {
        json!({ "id": "evt_2", "object": "event", "type": "refund.updated", "data": { "object": {
            "id": "re_2", "object": "refund", "payment_intent": paid, "metadata": {}, "status": "succeeded",
        } } })
    };
    account.books.lock().unwrap().refunds[1]["status"] = json!("succeeded");
    assert_eq!(tell(&world, &reported("pi_of_others")).await, 200);
    assert_eq!(balance(&world).await, "4000.50");
    for _ in 0..2 {
        assert_eq!(tell(&world, &reported("pi_1")).await, 200);
    }
    assert_eq!(balance(&world).await, "3000.50");
    assert_eq!(entries(&world).await.len(), 3);
    is_sound(&world).await;
}

/// Stripe's payment object does not contain refunds, so the gateway must continue from its own record.
#[tokio::test]
async fn refund_interrupted_by_a_kill_is_finished_by_the_poll() {
    let mut steps = 0;
    for polls in 0.. {
        let (sections, account) = open_account().await;
        let books = killed::Books::over(&sections).await;
        let id = IntentId::new();
        let requested = wish_of(id, MicroRub::new(5_000_500_000));
        books.process().create(requested).await.unwrap();
        account.pay();
        books.process().check(id).await.unwrap();
        account.refund_is("succeeded");
        let ended = until_killed(books.process().check(id), polls).await;
        let found = books.process().find(id).await.unwrap();
        if found.refunds.is_empty() {
            // Stripe got no response to its event, so it sends the event again.
            books.process().check(id).await.unwrap();
        } else {
            books.process().poll().await.unwrap();
        }
        let taken = books.entries().await.split_off(1);
        let once = ("stripe:refund:re_1".to_owned(), MicroRub::rubles(-1000));
        assert_eq!(taken, [once], "{polls}");
        let found = books.process().find(id).await.unwrap();
        assert_eq!(found.debt(), MicroRub::ZERO, "{polls}: {found:?}");
        // The refund is complete, so the next poll does not fetch the payment again.
        let fetches = account.fetches();
        books.process().poll().await.unwrap();
        assert_eq!(account.fetches(), fetches, "{polls}");
        if ended {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 8, "{steps}");
}

#[tokio::test]
async fn ten_stripe_events_to_two_gateways_on_one_redis_make_one_top_up() {
    let redis = RedisServer::start().await;
    let (sections, account) = open_account().await;
    let one = start_with(&sections, &redis.url()).await;
    let other = start_with(&sections, &redis.url()).await;
    one.key_with("acme", "0", json!({})).await;
    let made = create(&one, "5000.5").await;
    account.pay();
    for (kind, object, booked, left) in [
        ("checkout.session.completed", "cs_test_a1", 1, "5000.50"),
        ("charge.refunded", "ch_1", 2, "4000.50"),
    ] {
        let reported = event(kind, &made, object);
        let at = |turn| if turn % 2 == 0 { &one } else { &other };
        let answers = join_all((0..10).map(|turn| tell(at(turn), &reported))).await;
        assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
        assert_eq!(entries(&one).await.len(), booked);
        assert_eq!(balance(&other).await, left);
        account.refund_is("succeeded");
    }
    is_sound(&one).await;
}

/// Returns an event of a refund or a dispute. It contains the id of the payment, but not the id of the intent.
fn of_payment(kind: &str, id: &str) -> Value {
    json!({ "id": "evt_3", "object": "event", "type": kind, "data": { "object": {
        "id": id, "payment_intent": "pi_1", "metadata": {},
    } } })
}

/// Deducts this amount from the account's balance.
async fn spend(world: &World, rubles: &str) {
    let off = json!({ "id": format!("spent {rubles}"), "amount_rub": rubles, "reason": "spent" });
    let path = "/admin/v1/accounts/acme/adjustments";
    world.admin_post(path, off).await.expect(200);
}

/// Returns the statuses in the dispute events that the gateway has emitted.
async fn disputes_told(world: &World) -> Vec<String> {
    let path = "/admin/v1/events?after=0&kind=payment_disputed";
    let reported = world.admin_get(path).await.json();
    let reported = reported["events"].as_array().unwrap().iter();
    reported
        .map(|event| event["status"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn refund_that_fails_after_it_succeeded_is_credited_back_once() {
    for kind in ["refund.failed", "refund.updated", "charge.refund.updated"] {
        let (world, account, made) = requested("").await;
        account.pay();
        check(&world, &made).await;
        // The account has spent a part of the refunded money. This part is a debt until the refund fails.
        spend(&world, "-4500.5").await;
        account.refund_is("succeeded");
        let updated = of_payment("refund.updated", "re_1");
        assert_eq!(tell(&world, &updated).await, 200);
        assert_eq!(balance(&world).await, "0.00");
        assert_eq!(show(&world, &made).await["debt_rub"], "500.00");
        account.refund_is("failed");
        for _ in 0..2 {
            assert_eq!(tell(&world, &of_payment(kind, "re_1")).await, 200);
        }
        check(&world, &made).await;
        assert_eq!(balance(&world).await, "500.00", "{kind}");
        let last = entries(&world).await.pop().unwrap();
        assert_eq!(last, "stripe:refund:re_1:back 500.00");
        assert_eq!(show(&world, &made).await["debt_rub"], "0.00", "{kind}");
        assert_eq!(super::owed(&world).await, "0.00", "{kind}");
        is_sound(&world).await;
    }
}

#[tokio::test]
async fn refund_that_failed_before_the_gateway_saw_it_moves_no_money() {
    let (world, account, made) = requested("").await;
    account.pay();
    account.refund_is("failed");
    check(&world, &made).await;
    tell(&world, &of_payment("refund.failed", "re_1")).await;
    assert_eq!(entries(&world).await.len(), 1);
    assert_eq!(show(&world, &made).await.get("refunds"), None);
}

/// The refund fails at Stripe. The process is killed at each step, either while it deducts the money or while it
/// credits the money back.
#[tokio::test]
async fn refund_being_credited_back_when_the_process_was_killed_is_finished_by_the_poll() {
    for taken in [6, 14, 100] {
        let mut steps = 0;
        for polls in 0.. {
            let (sections, account) = open_account().await;
            let books = killed::Books::over(&sections).await;
            let id = IntentId::new();
            let requested = wish_of(id, MicroRub::new(5_000_500_000));
            books.process().create(requested).await.unwrap();
            account.pay();
            books.process().check(id).await.unwrap();
            account.refund_is("succeeded");
            until_killed(books.process().check(id), taken).await;
            account.refund_is("failed");
            let ended = until_killed(books.process().check(id), polls).await;
            // Stripe got no response to its event, so it sends the event again.
            books.process().check(id).await.unwrap();
            books.process().poll().await.unwrap();
            let moved = books.entries().await.split_off(1);
            let sum: i64 = moved.iter().map(|(_, amount)| amount.micro()).sum();
            assert_eq!(sum, 0, "{taken}, {polls}: {moved:?}");
            assert!(moved.len() <= 2, "{taken}, {polls}: {moved:?}");
            if ended {
                break;
            }
            steps += 1;
        }
        assert!(steps >= 4, "{steps}");
    }
}

#[tokio::test]
async fn dispute_emits_one_event_per_status_and_moves_money_only_if_configured() {
    let (world, account, made) = requested("").await;
    account.pay();
    check(&world, &made).await;
    for (status, kind) in [
        ("warning_needs_response", "charge.dispute.created"),
        ("needs_response", "charge.dispute.updated"),
        ("under_review", "charge.dispute.funds_withdrawn"),
        ("lost", "charge.dispute.closed"),
    ] {
        account.dispute_is(status);
        for _ in 0..2 {
            assert_eq!(tell(&world, &of_payment(kind, "du_1")).await, 200);
        }
    }
    assert_eq!(disputes_told(&world).await, ["inquiry", "open", "lost"]);
    assert_eq!(show(&world, &made).await["disputes"][0]["status"], "lost");
    assert_eq!(balance(&world).await, "5000.50");
    assert_eq!(entries(&world).await.len(), 1);
}

#[tokio::test]
async fn disputed_amount_is_deducted_until_the_dispute_is_won() {
    for (end, left, last) in [
        ("won", "3000.50", "stripe:dispute:du_1:back 2000.00"),
        ("lost", "1000.50", "stripe:dispute:du_1 -2000.00"),
    ] {
        let (world, account, made) = requested("hold_disputed = true\n").await;
        account.pay();
        check(&world, &made).await;
        spend(&world, "-2000").await;
        account.dispute_is("warning_needs_response");
        tell(&world, &of_payment("charge.dispute.created", "du_1")).await;
        assert_eq!(balance(&world).await, "3000.50", "an inquiry takes nothing");
        for status in ["needs_response", "under_review"] {
            account.dispute_is(status);
            tell(&world, &of_payment("charge.dispute.updated", "du_1")).await;
            assert_eq!(balance(&world).await, "1000.50", "{status}");
        }
        account.dispute_is(end);
        for _ in 0..2 {
            tell(&world, &of_payment("charge.dispute.closed", "du_1")).await;
        }
        assert_eq!(balance(&world).await, left, "{end}");
        assert_eq!(entries(&world).await.pop().unwrap(), last);
        assert_eq!(disputes_told(&world).await, ["inquiry", "open", end]);
        is_sound(&world).await;
    }
}

#[tokio::test]
async fn stripe_event_with_an_old_signature_is_refused() {
    let (world, account, made) = requested("").await;
    account.pay();
    let paid = event("checkout.session.completed", &made, "cs_test_a1");
    let body = paid.to_string();
    for shown in [
        String::new(),
        signature("whsec_other", now(), &body),
        signature(VENDOR_KEY, now() - 400, &body),
        signature(VENDOR_KEY, now() + 400, &body),
        signature(VENDOR_KEY, now(), &format!("{body} ")),
    ] {
        assert_eq!(tell_signed(&world, &paid, &shown).await, 400, "{shown}");
    }
    assert_eq!(account.fetches(), 0);
    assert_eq!(balance(&world).await, "0.00");
    assert_eq!(tell(&world, &paid).await, 200);
    assert_eq!(balance(&world).await, "5000.50");
}

#[tokio::test]
async fn payment_in_another_currency_is_refused_and_an_expired_session_is_cancelled() {
    let (world, account, made) = requested("").await;
    account.pay();
    account.set(&json!({ "currency": "usd" }));
    let checked = check(&world, &made).await.json();
    assert_eq!(checked["state"], "refused", "{checked}");
    assert!(
        checked["reason"].as_str().unwrap().contains("5000.50 usd"),
        "{checked}"
    );
    assert_eq!(balance(&world).await, "0.00");

    let (world, account, made) = requested("").await;
    account.set(&json!({ "status": "expired" }));
    let expired = event("checkout.session.expired", &made, "cs_test_a1");
    assert_eq!(tell(&world, &expired).await, 200);
    assert_eq!(show(&world, &made).await["state"], "canceled");
}

#[tokio::test]
async fn card_charge_of_a_removed_top_up_rule_is_credited_when_notified() {
    let (world, _account, made) = requested("").await;
    let paid = event("payment_intent.succeeded", &made, "pi_1");
    // The payer must pay this intent through a session. So an event of the payment object is accepted but credits
    // nothing.
    assert_eq!(tell(&world, &paid).await, StatusCode::OK);
    assert_eq!(show(&world, &made).await["state"], "open");
    charged_by_a_rule_that_is_gone(&world, &made).await;
    // The event names a payment of another shop. Whatever the event contains, nothing is credited.
    let other = event("payment_intent.succeeded", &made, "pi_2");
    tell(&world, &other).await;
    assert_eq!(balance(&world).await, "0.00");
    for _ in 0..2 {
        assert_eq!(tell(&world, &paid).await, StatusCode::OK);
    }
    assert_eq!(show(&world, &made).await["state"], "paid");
    assert_eq!(entries(&world).await, ["stripe:pi_1 5000.50"]);
    is_sound(&world).await;
}

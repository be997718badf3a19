//! Tests of CloudPayments in its real format: orders, the search for payments, and signed notifications as forms and as
//! JSON.

use std::sync::Mutex;

use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tollgate::demo::vendor::{Received, ScriptedVendor};

use super::{
    balance, change_intent, charged_by_a_rule_that_is_gone, check, create, entries, is_sound, show,
    start_with,
};
use crate::prelude::*;

#[derive(Default)]
struct Books {
    orders: Vec<Value>,
    canceled: Vec<Value>,
    /// The payment that a search by invoice returns, formatted as the API does.
    found: Option<String>,
    /// The payment that the API returns for transaction 504.
    got: Option<String>,
    broken: bool,
}

struct Site {
    vendor: ScriptedVendor,
    books: Arc<Mutex<Books>>,
}

/// Starts a gateway with a fake CloudPayments, and requests a payment of 5000.50 ₽ for an account without money.
async fn requested() -> (World, Site, Value) {
    let (sections, site) = open_site().await;
    let world = start_with(&sections, "memory:").await;
    world.key_with("acme", "0", json!({})).await;
    let made = create(&world, "5000.5").await;
    (world, site, made)
}

/// Starts a fake CloudPayments. Returns the configuration sections of a gateway that uses it, and the fake.
async fn open_site() -> (String, Site) {
    let vendor = ScriptedVendor::start().await.unwrap();
    let books = Arc::new(Mutex::new(Books::default()));
    let stored = Arc::clone(&books);
    vendor.script(move |requested| answer(&mut stored.lock().unwrap(), requested));
    let sections = format!(
        "[payments.cloudpayments]\npublic_id = \"pk_1\"\napi_secret = \"${{VENDOR_KEY}}\"\nurl = \"http://{}\"\n\
         return_url = \"https://pay.example/usage\"\n",
        vendor.address()
    );
    (sections, Site { vendor, books })
}

fn answer(books: &mut Books, requested: &Received) -> Reply {
    let shown = requested.headers["authorization"].to_str().unwrap();
    assert!(shown.starts_with("Basic cGtfMT"), "pk_1:…");
    let text = |body: String| Reply::raw(200, "application/json", vec![Step::Send(body.into())]);
    if books.broken {
        return Reply::json(502, &json!({}));
    }
    match requested.path.as_str() {
        "/orders/create" => {
            let order = requested.json();
            // The amount is sent as a JSON number with kopecks, not as a string.
            assert!(
                String::from_utf8_lossy(&requested.body).contains("\"Amount\":5000.50"),
                "{order}"
            );
            books.orders.push(order.clone());
            let id = format!("f2K8LV6reGE9WBF{}", books.orders.len());
            text(format!(
                r#"{{"Model":{{"Id":"{id}","Number":61,"Amount":5000.50,"Currency":"RUB","CurrencyCode":0,"Email":null,
                "Description":"x","RequireConfirmation":false,"Url":"https://orders.example/d/{id}"}},"Success":true,"Message":null}}"#
            ))
        }
        "/payments/find" => match &books.found {
            Some(found) => text(found.clone()),
            None => text(r#"{"Success":false,"Message":"Not found"}"#.into()),
        },
        "/payments/get" => match &books.got {
            Some(got) if requested.json() == json!({ "TransactionId": 504 }) => text(got.clone()),
            _ => text(r#"{"Success":false,"Message":"Not found"}"#.into()),
        },
        "/orders/cancel" => {
            books.canceled.push(requested.json());
            text(r#"{"Success":true,"Message":null}"#.into())
        }
        path => panic!("{path}"),
    }
}

impl Site {
    fn finds(&self, invoice: &str, amount: &str, currency: &str, status: &str) {
        self.books.lock().unwrap().found = Some(format!(
            r#"{{"Model":{{"PublicId":"pk_1","TransactionId":504,"Amount":{amount},"Currency":"{currency}","CurrencyCode":0,
            "Type":0,"InvoiceId":"{invoice}","AccountId":"acme","Status":"{status}","StatusCode":3,"Reason":"Approved","ReasonCode":0,
            "Refunded":false}},"Success":true,"Message":null}}"#
        ));
    }

    fn searches(&self) -> usize {
        let received = self.vendor.received();
        received
            .iter()
            .filter(|requested| requested.path == "/payments/find")
            .count()
    }
}

fn signature(secret: &str, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    STANDARD.encode(mac.finalize().into_bytes())
}

async fn tell_with(world: &World, kind: &str, body: &str, header: (&str, &str)) -> Answer {
    let url = world.url(&format!("/payments/cloudpayments{kind}"));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let body = body.to_owned().into();
    world
        .ask(request(Method::POST, &url, &[form, header], body))
        .await
}

/// Sends a notification with a valid signature.
async fn tell_signed(world: &World, kind: &str, body: &str) -> Answer {
    let header = ("Content-HMAC", &*signature(VENDOR_KEY, body));
    tell_with(world, kind, body, header).await
}

/// Sends a notification with a valid signature. Returns the `code` in the gateway's response.
async fn tell(world: &World, kind: &str, body: &str) -> Value {
    let answer = tell_signed(world, kind, body).await.expect(200);
    answer.json()["code"].clone()
}

/// Sends a notification of a payment twice, as the provider may, and checks that both are accepted.
async fn tell_twice(world: &World, body: &str) {
    for _ in 0..2 {
        assert_eq!(tell(world, "", body).await, 0);
    }
}

fn body(invoice: &str, rest: &str) -> String {
    format!(
        "TransactionId=504&CardFirstSix=411111&DateTime=2026-11-23+10%3A00%3A00&InvoiceId={invoice}{rest}"
    )
}

/// Returns the notification that transaction 504 has paid this intent.
fn told_paid(made: &Value) -> String {
    let rest = "&Amount=5000.50&Currency=RUB&Status=Completed&OperationType=Payment&AccountId=acme";
    body(&id(made), rest)
}

/// Returns the notification that the next transaction refunds this amount of a payment.
fn refund_of(payment: u32, amount: &str, made: &Value) -> String {
    let refund = payment + 1;
    format!(
        "TransactionId={refund}&PaymentTransactionId={payment}&InvoiceId={}&Amount={amount}",
        id(made)
    )
}

fn id(made: &Value) -> String {
    made["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn payment_is_credited_once_and_its_refund_is_deducted() {
    let (world, site, made) = requested().await;
    assert_eq!(made["url"], "https://orders.example/d/f2K8LV6reGE9WBF1");
    let order = site.books.lock().unwrap().orders[0].clone();
    assert_eq!(order["InvoiceId"], made["id"]);
    let pay = told_paid(&made);
    // The notification arrives before the search can find the payment. The gateway answers 503, and the provider
    // repeats the notification.
    tell_signed(&world, "", &pay).await.expect(503);
    site.finds(&id(&made), "5000.50", "RUB", "Completed");
    for _ in 0..3 {
        assert_eq!(tell(&world, "", &pay).await, 0);
    }
    assert_eq!(entries(&world).await, ["cloudpayments:504 5000.50"]);
    let refund = refund_of(504, "1000.5&OperationType=Refund", &made);
    for _ in 0..3 {
        assert_eq!(tell(&world, "", &refund).await, 0);
    }
    assert_eq!(balance(&world).await, "4000.00");
    assert_eq!(
        entries(&world).await[1],
        "cloudpayments:refund:505 -1000.50"
    );
    is_sound(&world).await;
}

#[tokio::test]
async fn ten_notifications_to_two_gateways_on_one_redis_make_one_top_up() {
    let redis = RedisServer::start().await;
    let (sections, site) = open_site().await;
    let one = start_with(&sections, &redis.url()).await;
    let other = start_with(&sections, &redis.url()).await;
    one.key_with("acme", "0", json!({})).await;
    let made = create(&one, "5000.5").await;
    site.finds(&id(&made), "5000.50", "RUB", "Completed");
    let pay = told_paid(&made);
    let refund = refund_of(504, "1000.5&OperationType=Refund", &made);
    for (reported, booked, left) in [(pay, 1, "5000.50"), (refund, 2, "4000.00")] {
        let at = |turn| if turn % 2 == 0 { &one } else { &other };
        let answers = join_all((0..10).map(|turn| tell(at(turn), "", &reported))).await;
        assert!(answers.iter().all(|code| *code == 0), "{answers:?}");
        assert_eq!(entries(&one).await.len(), booked);
        assert_eq!(balance(&other).await, left);
    }
    is_sound(&one).await;
}

#[tokio::test]
async fn refund_notification_may_arrive_before_that_of_the_payment_or_never_arrive() {
    let (world, site, made) = requested().await;
    let refund = refund_of(504, "5000.50", &made);
    tell_signed(&world, "", &refund).await.expect(503);
    site.finds(&id(&made), "5000.5", "RUB", "Completed");
    assert_eq!(tell(&world, "", &refund).await, 0);
    assert_eq!(balance(&world).await, "0.00");
    assert_eq!(entries(&world).await.len(), 2);

    let made = create(&world, "5000.5").await;
    site.finds(&id(&made), "5000.5", "RUB", "Declined");
    assert_eq!(check(&world, &made).await.json()["state"], "open");
    site.finds(&id(&made), "5000.5", "RUB", "Completed");
    // The search returns transaction 504 for another intent as well. The transaction is already credited, so it is not
    // credited again.
    assert_eq!(check(&world, &made).await.json()["state"], "paid");
    assert_eq!(
        entries(&world).await.len(),
        2,
        "one transaction is booked once"
    );
}

#[tokio::test]
async fn paid_attempt_is_found_by_its_number_even_if_a_later_attempt_was_declined() {
    let (world, site, made) = requested().await;
    site.finds(&id(&made), "5000.50", "RUB", "Completed");
    let paid = site.books.lock().unwrap().found.take();
    // The payer's last attempt was declined. The search returns only the last attempt.
    site.finds(&id(&made), "5000.50", "RUB", "Declined");
    assert_eq!(check(&world, &made).await.json()["state"], "open");
    site.books.lock().unwrap().got = paid;
    let pay = told_paid(&made);
    tell_twice(&world, &pay).await;
    assert_eq!(entries(&world).await, ["cloudpayments:504 5000.50"]);
    // The gateway does not trust the notification. It fetches transaction 504, which belongs to another intent.
    let other = create(&world, "5000.5").await;
    let pay = body(
        &id(&other),
        "&Amount=5000.50&Currency=RUB&Status=Completed&AccountId=acme",
    );
    assert_eq!(tell(&world, "", &pay).await, 0);
    assert_eq!(show(&world, &other).await["state"], "refused");
    assert_eq!(balance(&world).await, "5000.50");
    is_sound(&world).await;
}

/// The gateway has answered the notification of the first payment with 503. The payer saw no money on the account, and
/// paid a second time with the same link.
#[tokio::test]
async fn second_payment_for_an_already_paid_intent_is_refused() {
    let (world, site, made) = requested().await;
    site.finds(&id(&made), "5000.50", "RUB", "Completed");
    {
        let mut books = site.books.lock().unwrap();
        let first = books.found.take().unwrap();
        books.found = Some(first.replace("504", "505"));
        books.got = Some(first);
    }
    let first = told_paid(&made);
    let second = first.replace("504", "505");
    let refused = async || {
        let scraped = world.admin_get("/metrics").await.text();
        scraped.contains("tollgate_payments_total{result=\"refused\"} 1")
    };
    tell_twice(&world, &second).await;
    assert!(!refused().await);
    assert_eq!(tell(&world, "", &first).await, 0);
    assert!(refused().await);
    assert_eq!(show(&world, &made).await["state"], "paid");
    assert_eq!(entries(&world).await, ["cloudpayments:505 5000.50"]);
    is_sound(&world).await;
}

#[tokio::test]
async fn refunded_payment_is_not_credited_and_refund_of_an_uncredited_payment_deducts_nothing() {
    let (world, site, made) = requested().await;
    site.finds(&id(&made), "5000.50", "RUB", "Completed");
    let payment = site.books.lock().unwrap().found.take().unwrap();
    let refund = payment.replace("\"Type\":0", "\"Type\":1");
    site.books.lock().unwrap().found = Some(refund);
    assert_eq!(check(&world, &made).await.json()["state"], "open");
    assert_eq!(balance(&world).await, "0.00");

    site.books.lock().unwrap().found = Some(payment);
    assert_eq!(check(&world, &made).await.json()["state"], "paid");
    // The second payment was never credited, so its refund deducts nothing from the account.
    let refund = refund_of(506, "5000.50", &made);
    assert_eq!(tell(&world, "", &refund).await, 0);
    assert_eq!(balance(&world).await, "5000.50");
    is_sound(&world).await;
}

#[tokio::test]
async fn cloudpayments_check_notification_verifies_the_intent_before_the_payment() {
    let (world, site, made) = requested().await;
    let ask = async |invoice: &str, rest: &str| tell(&world, "?check", &body(invoice, rest)).await;
    let good = "&Amount=5000.50&Currency=RUB&AccountId=acme";
    let made_id = id(&made);
    for (invoice, rest, code) in [
        (made_id.as_str(), good, 0),
        ("", good, 10),
        ("019ac3f0-1c2e-7b4d-9f00-5d3b6a7c8e90", good, 10),
        (&made_id, "&Amount=5000.50&Currency=RUB&AccountId=other", 11),
        (&made_id, "&Amount=5000.51&Currency=RUB&AccountId=acme", 12),
        (&made_id, "&Amount=5000.50&Currency=USD&AccountId=acme", 12),
    ] {
        assert_eq!(ask(invoice, rest).await, code, "{invoice} {rest}");
    }
    // CloudPayments sends a check before the payment. The check credits nothing, even if it contains the fields of a
    // payment.
    assert_eq!(ask(&made_id, &format!("{good}&Status=Completed")).await, 0);
    assert_eq!(site.searches(), 0);
    assert_eq!(balance(&world).await, "0.00");
    // A declined card changes nothing. The gateway accepts the notification, so the provider does not repeat it.
    let declined = "&Amount=5000.50&Currency=RUB&Reason=InsufficientFunds";
    let declined = body(&made_id, declined);
    assert_eq!(tell(&world, "", &declined).await, 0);
    site.finds(&made_id, "5000.50", "RUB", "Completed");
    assert_eq!(check(&world, &made).await.json()["state"], "paid");
    assert_eq!(ask(&made_id, good).await, 13);
}

#[tokio::test]
async fn unsigned_notification_is_refused_unread() {
    let (world, site, made) = requested().await;
    site.finds(&id(&made), "5000.50", "RUB", "Completed");
    let pay = body(
        &id(&made),
        "&Amount=5000.50&Currency=RUB&Status=Completed&AccountId=acme+",
    );
    for header in [
        ("x-nothing", "1".to_owned()),
        ("Content-HMAC", signature("another secret", &pay)),
        ("Content-HMAC", signature(VENDOR_KEY, &format!("{pay}&a=b"))),
        ("Content-HMAC", "not base64!".to_owned()),
        ("X-Content-HMAC", String::new()),
    ] {
        let answer = tell_with(&world, "", &pay, (header.0, &header.1)).await;
        assert_eq!(answer.status, 400, "{header:?}");
    }
    assert_eq!(site.searches(), 0);
    assert_eq!(balance(&world).await, "0.00");
    // The header `X-Content-HMAC` signs the decoded form, and `Content-HMAC` signs the raw form. A notification may be
    // JSON, too.
    let plain = pay.replace('+', " ").replace("%3A", ":");
    let header = ("X-Content-HMAC", &*signature(VENDOR_KEY, &plain));
    tell_with(&world, "", &pay, header).await.expect(200);
    assert_eq!(balance(&world).await, "5000.50");
    let refund = json!({ "TransactionId": 505, "PaymentTransactionId": 504, "Amount": 0.5, "InvoiceId": made["id"] });
    assert_eq!(tell(&world, "", &refund.to_string()).await, 0);
    assert_eq!(balance(&world).await, "5000.00");
}

#[tokio::test]
async fn payment_of_another_amount_or_currency_is_refused() {
    for (amount, currency) in [("5000.51", "RUB"), ("5000.50", "USD")] {
        let (world, site, made) = requested().await;
        site.finds(&id(&made), amount, currency, "Completed");
        let checked = check(&world, &made).await.json();
        assert_eq!(checked["state"], "refused", "{checked}");
        assert_eq!(balance(&world).await, "0.00");
    }
}

/// Changes the stored intent as if it had been created two days ago, so that its payment link is old.
async fn made_two_days_ago(world: &World, made: &Value) {
    change_intent(world, made, |intent| {
        let created_ms = intent["created_ms"].as_u64().unwrap();
        intent["created_ms"] = json!(created_ms - 2 * 86_400_000);
    })
    .await;
}

/// The gateway cancels an old payment link, either before the late notification of its payment arrives or when it
/// arrives.
#[tokio::test]
async fn payment_whose_notification_is_a_day_late_is_credited() {
    for swept in [true, false] {
        let (world, site, made) = requested().await;
        site.finds(&id(&made), "5000.50", "RUB", "Completed");
        let paid = site.books.lock().unwrap().found.take();
        site.finds(&id(&made), "5000.50", "RUB", "Declined");
        made_two_days_ago(&world, &made).await;
        if swept {
            assert_eq!(check(&world, &made).await.json()["state"], "canceled");
        }
        site.books.lock().unwrap().got = paid;
        let pay = told_paid(&made);
        tell_twice(&world, &pay).await;
        assert_eq!(show(&world, &made).await["state"], "paid");
        assert_eq!(balance(&world).await, "5000.50");
        is_sound(&world).await;
    }
}

#[tokio::test]
async fn unpaid_payment_link_is_cancelled_after_a_day() {
    let (world, site, made) = requested().await;
    assert_eq!(check(&world, &made).await.json()["state"], "open");
    made_two_days_ago(&world, &made).await;
    site.books.lock().unwrap().broken = true;
    assert_eq!(check(&world, &made).await.status, 502);
    assert_eq!(show(&world, &made).await["state"], "open");
    site.books.lock().unwrap().broken = false;
    let checked = check(&world, &made).await.json();
    assert_eq!(checked["state"], "canceled");
    assert_eq!(checked["reason"], "not paid in time");
    let canceled = site.books.lock().unwrap().canceled.clone();
    assert_eq!(canceled, [json!({ "Id": "f2K8LV6reGE9WBF1" })]);
    let ask = body(&id(&made), "&Amount=5000.50&Currency=RUB");
    assert_eq!(tell(&world, "?check", &ask).await, 20);
}

#[tokio::test]
async fn card_charge_of_a_removed_top_up_rule_is_credited_when_notified() {
    let (world, site, made) = requested().await;
    charged_by_a_rule_that_is_gone(&world, &made).await;
    site.finds(&id(&made), "5000.50", "RUB", "Completed");
    let pay = told_paid(&made);
    tell_twice(&world, &pay).await;
    assert_eq!(show(&world, &made).await["state"], "paid");
    assert_eq!(balance(&world).await, "5000.50");
    is_sound(&world).await;
}

#[tokio::test]
async fn cancellation_of_a_paid_attempt_emits_an_event_and_a_decline_of_another_does_not() {
    let (world, site, made) = requested().await;
    let invoice = made["id"].as_str().unwrap();
    site.finds(invoice, "5000.50", "RUB", "Completed");
    check(&world, &made).await;
    assert_eq!(balance(&world).await, "5000.50");
    let reported = async || {
        let path = "/admin/v1/events?after=0&kind=payment_reversed";
        let reported = world.admin_get(path).await.json();
        reported["events"].as_array().unwrap().len()
    };
    // Another attempt of the payer was declined. The paid transaction stays paid.
    let declined = body(invoice, "&Amount=5000.50&Currency=RUB&Status=Declined");
    let declined = declined.replace("TransactionId=504", "TransactionId=505");
    let searches = site.searches();
    assert_eq!(tell(&world, "", &declined).await, 0);
    assert_eq!((reported().await, site.searches()), (0, searches));
    site.finds(invoice, "5000.50", "RUB", "Cancelled");
    let canceled = body(invoice, "&Amount=5000.50&AccountId=acme");
    tell_twice(&world, &canceled).await;
    assert_eq!(reported().await, 1);
    assert_eq!(show(&world, &made).await["state"], "paid");
    assert_eq!(balance(&world).await, "5000.50");
}

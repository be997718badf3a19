//! Tests of automatic top-up with Stripe and with CloudPayments, in their real formats: how each provider saves,
//! charges, declines, confirms and deletes a card.

use std::{collections::BTreeMap, sync::Mutex};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tollgate::demo::vendor::{Received, ScriptedVendor};
use tollgate_ledger::contract::{BookError, Documents, Update};

use super::{
    auto::{failures, paid_in, round, rule, spend, wanted},
    killed::{Books, until_killed},
    start_with,
};
use crate::prelude::*;

/// The state of a fake provider: the objects that requests have created, and how it responds to the next requests.
#[derive(Default)]
struct State {
    /// The responses so far, by path and idempotency key.
    answered: BTreeMap<(String, String), (u16, Value)>,
    /// The sessions or orders that requests have created, in the form in which the provider returns them.
    made: Vec<Value>,
    charged: Vec<Value>,
    /// The error with which card charges are declined; `None` if they succeed.
    declines: Option<Value>,
    /// The number of card charges, from the next one on, that are made but whose response is lost.
    lost: usize,
    forgotten: Vec<String>,
}

struct Fake {
    vendor: ScriptedVendor,
    state: Arc<Mutex<State>>,
}

impl Fake {
    async fn start(answer: fn(&mut State, &Received) -> Reply) -> Self {
        let vendor = ScriptedVendor::start().await.unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let stored = Arc::clone(&state);
        vendor.script(move |requested| answer(&mut stored.lock().unwrap(), requested));
        Self { vendor, state }
    }

    fn charges(&self) -> usize {
        self.state.lock().unwrap().charged.len()
    }
}

fn form(requested: &Received) -> BTreeMap<String, String> {
    let text = std::str::from_utf8(&requested.body).unwrap();
    let plain = |text: &str| {
        percent_encoding::percent_decode_str(text)
            .decode_utf8()
            .unwrap()
            .into_owned()
    };
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (plain(name), plain(value)))
        .collect()
}

/// Responds as Stripe, which repeats its response to an idempotency key, and refuses a request with the same key and
/// another body.
fn stripe(state: &mut State, requested: &Received) -> Reply {
    let path = requested.path.split('?').next().unwrap().to_owned();
    if let Some(key) = requested.headers.get("idempotency-key") {
        let key = key.to_str().unwrap().to_owned();
        let elsewhere = |(known, of): &(String, String)| *of == key && *known != path;
        if state.answered.keys().any(elsewhere) {
            return Reply::json(400, &json!({ "error": { "type": "idempotency_error" } }));
        }
        let known = (path.clone(), key);
        let (status, body) = match state.answered.get(&known) {
            Some(answer) => answer.clone(),
            None => {
                let answer = make_at_stripe(state, &path, &form(requested));
                state.answered.insert(known, answer.clone());
                answer
            }
        };
        if path == "/v1/payment_intents" && state.lost > 0 {
            state.lost -= 1;
            return Reply::json(500, &json!({ "error": { "type": "api_error" } }));
        }
        return Reply::json(status, &body);
    }
    if let Some(card) = path
        .strip_prefix("/v1/payment_methods/")
        .and_then(|rest| rest.strip_suffix("/detach"))
    {
        state.forgotten.push(card.to_owned());
        return Reply::json(200, &json!({ "id": card, "customer": null }));
    }
    if matches!(path.as_str(), "/v1/refunds" | "/v1/disputes") {
        return Reply::json(200, &json!({ "data": [], "has_more": false }));
    }
    if requested.path == "/v1/payment_intents/pi_consent?expand%5B%5D=payment_method" {
        return Reply::json(
            200,
            &json!({ "id": "pi_consent", "status": "succeeded", "customer": "cus_1", "metadata": {}, "amount": 200_000,
                "currency": "rub", "payment_method": { "id": "pm_card", "type": "card", "card": { "last4": "4242" } } }),
        );
    }
    let id = path.rsplit('/').next().unwrap();
    let mut made = state.made.iter().chain(&state.charged);
    match made.find(|made| made["id"] == id) {
        Some(made) => Reply::json(200, made),
        None => Reply::json(404, &json!({ "error": { "code": "resource_missing" } })),
    }
}

fn make_at_stripe(state: &mut State, path: &str, form: &BTreeMap<String, String>) -> (u16, Value) {
    let intent = json!({ "tollgate_intent": form["metadata[tollgate_intent]"] });
    if path == "/v1/checkout/sessions" {
        let saves = form
            .get("payment_intent_data[setup_future_usage]")
            .is_some_and(|usage| usage == "off_session");
        assert_eq!(saves, form.contains_key("customer_creation"));
        let id = format!("cs_test_{}", state.made.len());
        let session = json!({
            "id": id, "url": format!("https://checkout.example/c/pay/{id}"), "status": "open", "payment_status": "unpaid",
            "amount_total": 200_000, "currency": "rub", "payment_intent": null, "customer": null, "metadata": intent,
            "saves": saves,
        });
        state.made.push(session.clone());
        return (200, session);
    }
    assert_eq!(path, "/v1/payment_intents");
    for (name, value) in [
        ("amount", "200000"),
        ("currency", "rub"),
        ("customer", "cus_1"),
        ("payment_method", "pm_card"),
        ("off_session", "true"),
        ("confirm", "true"),
    ] {
        assert_eq!(form[name], value, "{name}");
    }
    let id = format!("pi_{}", state.charged.len());
    let mut payment = json!({
        "id": id, "object": "payment_intent", "status": "succeeded", "amount": 200_000, "currency": "rub",
        "customer": "cus_1", "payment_method": "pm_card", "metadata": intent, "last_payment_error": null,
    });
    let answer = match &state.declines {
        None => (200, payment.clone()),
        Some(error) => {
            payment["status"] = json!("requires_payment_method");
            payment["last_payment_error"] = error.clone();
            (402, json!({ "error": error }))
        }
    };
    state.charged.push(payment);
    answer
}

/// Creates books with an active top-up rule, and with a card that Stripe has saved.
async fn at_stripe(more: &str) -> (Books, Fake) {
    let fake = Fake::start(stripe).await;
    let books = Books::over(&format!(
        "[payments]\n{more}\n[payments.stripe]\nsecret_key = \"${{VENDOR_KEY}}\"\nwebhook_secret = \"${{VENDOR_KEY}}\"\n\
         url = \"http://{}\"\nreturn_url = \"https://pay.example/usage\"\n",
        fake.vendor.address()
    ))
    .await;
    books.process().set_auto(wanted(20_000)).await.unwrap();
    {
        let mut state = fake.state.lock().unwrap();
        let session = &mut state.made[0];
        assert_eq!(session["saves"], true);
        session["status"] = json!("complete");
        session["payment_status"] = json!("paid");
        session["payment_intent"] = json!("pi_consent");
        session["customer"] = json!("cus_1");
    }
    books.process().poll().await.unwrap();
    let shown = rule(&books).await;
    assert_eq!(shown["status"], "on");
    assert_eq!(shown["card"], "····4242");
    (books, fake)
}

/// First makes several processes see the same low balance, and loses a response of the provider. Then, with new books
/// each time, kills a process at each step. `open` creates the books with a saved card. At the end there must be
/// `charges` payments at the provider, and a top-up with the id `entry` in the ledger.
async fn charged_once(open: impl AsyncFn() -> (Books, Fake), charges: usize, entry: &str) {
    let (books, fake) = open().await;
    spend(&books, 1900).await;
    fake.state.lock().unwrap().lost = 1;
    for _ in 0..2 {
        let processes: Vec<_> = (0..5).map(|_| books.process()).collect();
        let looks = join_all(processes.iter().map(|process| process.charge_due())).await;
        assert!(looks.iter().all(Result::is_ok), "{looks:?}");
    }
    assert_eq!(fake.charges(), charges);
    assert_eq!(paid_in(&books).await, [2000, 2000]);
    assert!(books.entries().await.iter().any(|(id, _)| id == entry));

    for polls in 0.. {
        let (books, fake) = open().await;
        spend(&books, 1900).await;
        let ended = until_killed(books.process().charge_due(), polls).await;
        if entry.starts_with("cloudpayments") {
            // An hour has passed, so the provider has deleted its idempotency keys.
            fake.state.lock().unwrap().answered.clear();
        }
        round(&books).await;
        round(&books).await;
        assert_eq!(fake.charges(), charges, "{polls}");
        assert_eq!(paid_in(&books).await, [2000, 2000], "{polls}");
        if ended {
            break;
        }
    }
}

#[tokio::test]
async fn stripe_card_is_charged_once_per_low_balance_despite_kills_and_lost_answers() {
    charged_once(async || at_stripe("").await, 1, "stripe:pi_0").await;
}

#[tokio::test]
async fn stripe_decline_and_confirmation_emit_events_and_a_removed_card_is_detached() {
    let (books, fake) = at_stripe("auto_retry_seconds = 1").await;
    let declined = json!({ "type": "card_error", "code": "card_declined", "decline_code": "insufficient_funds" });
    fake.state.lock().unwrap().declines = Some(declined);
    spend(&books, 1900).await;
    round(&books).await;
    let why = "card_declined: insufficient_funds";
    assert_eq!(failures(&books).await, [(why.to_owned(), false, None)]);
    let account = "acme".parse().unwrap();
    let needed = json!({ "type": "card_error", "code": "authentication_required", "decline_code": "authentication_required" });
    fake.state.lock().unwrap().declines = Some(needed);
    books.process().resume_auto(&account).await.unwrap();
    round(&books).await;
    let reported = failures(&books).await;
    let link = "https://checkout.example/c/pay/cs_test_1";
    assert_eq!(reported[1].2.as_deref(), Some(link), "{reported:?}");
    // The link is for the amount of the declined card charge. A payment through this link is credited like any other
    // payment.
    {
        let mut state = fake.state.lock().unwrap();
        assert_eq!(state.made[1]["saves"], false);
        state.made[1]["payment_status"] = json!("paid");
        state.made[1]["payment_intent"] = json!("pi_link");
    }
    books.process().poll().await.unwrap();
    assert_eq!(paid_in(&books).await, [2000, 2000]);
    books.process().remove_auto(&account).await.unwrap();
    assert_eq!(fake.state.lock().unwrap().forgotten, ["pm_card"]);
}

/// Responds as CloudPayments, which finds only the last attempt to pay an invoice. Card charges with the same
/// idempotency key count as one charge.
fn cloudpayments(state: &mut State, requested: &Received) -> Reply {
    let body = requested.json();
    let reply = |model: &Value, success: bool| {
        let body = json!({ "Model": model, "Success": success, "Message": null });
        Reply::json(200, &body)
    };
    let found = |model: &Value| reply(model, model["Status"] == "Completed");
    match requested.path.as_str() {
        "/orders/create" => {
            let id = format!("order{}", state.made.len());
            let order = json!({ "Id": id, "Url": format!("https://orders.example/d/{id}"), "InvoiceId": body["InvoiceId"] });
            state.made.push(order.clone());
            reply(&order, true)
        }
        "/payments/find" => {
            let mut tries = state.charged.iter().rev();
            match tries.find(|tried| tried["InvoiceId"] == body["InvoiceId"]) {
                Some(tried) => found(tried),
                None => Reply::json(200, &json!({ "Success": false, "Message": "Not found" })),
            }
        }
        "/payments/tokens/charge" => {
            assert_eq!(body["Token"], "tk-card");
            assert_eq!(body["AccountId"], "acme");
            assert_eq!(body["TrInitiatorCode"], 0);
            assert!(String::from_utf8_lossy(&requested.body).contains("\"Amount\":2000.00"));
            let key = requested.headers["x-request-id"].to_str().unwrap();
            assert_eq!(body["InvoiceId"], key);
            let known = (requested.path.clone(), key.to_owned());
            let number = 700 + state.charged.len();
            let tried = match state.answered.get(&known) {
                Some((_, tried)) => tried.clone(),
                None => {
                    let mut tried = json!({
                        "TransactionId": number, "Amount": 2000.0, "Currency": "RUB", "InvoiceId": body["InvoiceId"],
                        "AccountId": "acme", "Status": "Completed", "Type": 0, "Token": "tk-card", "CardLastFour": "4242",
                    });
                    if let Some(declines) = &state.declines {
                        for (name, value) in declines.as_object().unwrap() {
                            tried[name] = value.clone();
                        }
                    }
                    state.answered.insert(known, (200, tried.clone()));
                    // An attempt with an `AcsUrl` becomes a charge when the payer confirms it at that URL.
                    if tried.get("AcsUrl").is_none() {
                        state.charged.push(tried.clone());
                    }
                    tried
                }
            };
            if state.lost > 0 {
                state.lost -= 1;
                return Reply::json(502, &json!({}));
            }
            found(&tried)
        }
        path => panic!("{path}"),
    }
}

fn site(fake: &Fake, more: &str) -> String {
    format!(
        "[payments]\n{more}\n[payments.cloudpayments]\npublic_id = \"pk_1\"\napi_secret = \"${{VENDOR_KEY}}\"\n\
         url = \"http://{}\"\nreturn_url = \"https://pay.example/usage\"\n",
        fake.vendor.address()
    )
}

/// Pays, as the payer, the order with which the card is saved. The payment gets this card token. Returns the invoice of
/// the order.
fn pay_order(fake: &Fake, token: Value) -> String {
    let mut state = fake.state.lock().unwrap();
    let invoice = state.made[0]["InvoiceId"].as_str().unwrap().to_owned();
    state.charged.push(json!({
        "TransactionId": 504, "Amount": 2000.0, "Currency": "RUB", "InvoiceId": invoice, "AccountId": "acme",
        "Status": "Completed", "Type": 0, "Token": token, "CardLastFour": "4242",
    }));
    invoice
}

async fn at_cloudpayments(more: &str) -> (Books, Fake) {
    let fake = Fake::start(cloudpayments).await;
    let books = Books::over(&site(&fake, more)).await;
    books.process().set_auto(wanted(20_000)).await.unwrap();
    pay_order(&fake, json!("tk-card"));
    books.process().poll().await.unwrap();
    let shown = rule(&books).await;
    assert_eq!(shown["status"], "on");
    assert_eq!(shown["card"], "····4242");
    (books, fake)
}

#[tokio::test]
async fn cloudpayments_card_is_charged_once_per_low_balance_despite_lost_answers() {
    // There are two payments: the payer's own payment, with which the card was saved, and exactly one card charge.
    charged_once(async || at_cloudpayments("").await, 2, "cloudpayments:701").await;
}

#[tokio::test]
async fn cloudpayments_decline_and_confirmation_emit_events() {
    let (books, fake) = at_cloudpayments("").await;
    fake.state.lock().unwrap().declines =
        Some(json!({ "Status": "Declined", "Reason": "InsufficientFunds", "ReasonCode": 5051 }));
    spend(&books, 1900).await;
    round(&books).await;
    let why = "InsufficientFunds".to_owned();
    assert_eq!(failures(&books).await, [(why, false, None)]);
    fake.state.lock().unwrap().declines =
        Some(json!({ "Status": null, "AcsUrl": "https://acs.example", "PaReq": "x" }));
    let account = "acme".parse().unwrap();
    books.process().resume_auto(&account).await.unwrap();
    round(&books).await;
    let reported = failures(&books).await;
    let link = "https://orders.example/d/order1";
    assert_eq!(reported[1].2.as_deref(), Some(link), "{reported:?}");
    assert_eq!(paid_in(&books).await, [2000]);
}

#[tokio::test]
async fn card_token_is_stored_only_from_a_signed_notification() {
    let fake = Fake::start(cloudpayments).await;
    let world = start_with(&site(&fake, ""), "memory:").await;
    world.key_with("acme", "0", json!({})).await;
    let path = "/admin/v1/accounts/acme/auto_topup";
    let wanted = json!({ "below_rub": "500", "amount_rub": "2000", "month_max_rub": "20000" });
    world
        .admin(Method::PUT, path, Some(wanted))
        .await
        .expect(200);
    // The search returns the payment without the card's token. Only the notification contains the token.
    let invoice = pay_order(&fake, Value::Null);
    let body = format!(
        "TransactionId=504&Amount=2000.00&Currency=RUB&Status=Completed&InvoiceId={invoice}&AccountId=acme&\
         Token=tk-card&CardLastFour=4242"
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(VENDOR_KEY.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    let good = STANDARD.encode(mac.finalize().into_bytes());
    for (signature, status, state) in [("bm8=", 400, "waiting"), (&*good, 200, "on")] {
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("content-hmac", signature),
        ];
        let url = world.url("/payments/cloudpayments");
        let reported = request(Method::POST, &url, &headers, body.clone().into());
        assert_eq!(world.ask(reported).await.status, status);
        let shown = world.admin_get(path).await.json();
        assert_eq!(shown["status"], state, "{shown}");
    }
}

#[tokio::test]
async fn automatic_top_up_is_off_if_the_payer_saved_no_card() {
    let fake = Fake::start(cloudpayments).await;
    let books = Books::over(&site(&fake, "")).await;
    books.process().set_auto(wanted(20_000)).await.unwrap();
    // The payment was not made with a card, so it has no card token.
    pay_order(&fake, Value::Null);
    books.process().poll().await.unwrap();
    for _ in 0..2 {
        round(&books).await;
        assert_eq!(rule(&books).await["status"], "waiting");
    }
    // After an hour, the provider has deleted its idempotency keys.
    let age = |rule: Option<Value>| {
        let mut rule = rule.unwrap();
        let until = rule["not_before_ms"].as_u64().unwrap();
        rule["not_before_ms"] = (until - 3_700_000).into();
        Ok::<_, BookError>(Update::Write(rule, ()))
    };
    let aged = books.store.update("payment-auto/acme", age).await;
    aged.unwrap();
    round(&books).await;
    let shown = rule(&books).await;
    assert_eq!(shown["status"], "off", "{shown}");
    let why = "the payer used a payment method that cannot be saved";
    assert_eq!(shown["reason"], why, "{shown}");
    assert_eq!(paid_in(&books).await, [2000]);
}

//! A fake of the payment provider YooKassa: version 3 of its API, for one shop, on a real socket.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tollgate::demo::vendor::{Received, Reply, ScriptedVendor, Step};

#[derive(Default)]
struct Books {
    /// The ids of payments and refunds, by idempotency key.
    made: BTreeMap<String, String>,
    payments: BTreeMap<String, Value>,
    refunds: Vec<Value>,
    /// If set, every response of the shop has this status.
    broken: Option<u16>,
    /// The reason why the bank declines charges of saved cards; `None` if the charges succeed.
    declines: Option<String>,
    /// Whether the payer must confirm a charge of a saved card.
    confirms: bool,
    /// The number of payments that the shop will still make although it responds with an error.
    lost: usize,
    /// If set, the shop makes payments, but delays its responses until this notification.
    held: Option<Arc<Notify>>,
}

pub struct Shop {
    vendor: ScriptedVendor,
    books: Arc<Mutex<Books>>,
}

impl Shop {
    pub async fn start() -> Self {
        let vendor = ScriptedVendor::start().await.unwrap();
        let books = Arc::new(Mutex::new(Books::default()));
        let stored = Arc::clone(&books);
        vendor.script(move |requested| answer(&mut stored.lock().unwrap(), requested));
        Self { vendor, books }
    }

    pub fn address(&self) -> SocketAddr {
        self.vendor.address()
    }

    /// Returns the `[payments]` sections of a configuration that uses this shop.
    pub fn config(&self, payments: &str) -> String {
        Self::config_at(self.address(), payments)
    }

    /// Returns the `[payments]` sections of a configuration that reaches the shop through a proxy at this address.
    pub fn config_at(address: SocketAddr, payments: &str) -> String {
        format!(
            "[payments]\n{payments}\n[payments.yookassa]\nshop_id = \"100500\"\nsecret_key = \"${{VENDOR_KEY}}\"\n\
             url = \"http://{address}/v3\"\nreturn_url = \"https://pay.example/usage\"\n"
        )
    }

    /// Returns how many times a client has fetched an existing payment or refund.
    pub fn fetches(&self) -> usize {
        let received = self.vendor.received();
        received
            .iter()
            .filter(|requested| requested.body.is_empty())
            .count()
    }

    pub fn received(&self) -> Vec<Received> {
        self.vendor.received()
    }

    /// Returns the ids of all payments.
    pub fn payments(&self) -> Vec<String> {
        self.books
            .lock()
            .unwrap()
            .payments
            .keys()
            .cloned()
            .collect()
    }

    pub fn set(&self, payment: &str, fields: &Value) {
        let mut books = self.books.lock().unwrap();
        let known = books.payments.get_mut(payment).unwrap();
        for (name, value) in fields.as_object().unwrap() {
            known[name] = value.clone();
        }
    }

    pub fn pay(&self, payment: &str) {
        self.set(payment, &json!({ "status": "succeeded", "paid": true }));
        self.pay_by(
            payment,
            json!({ "type": "bank_card", "card": { "first6": "555555", "last4": "4444" } }),
        );
    }

    /// Completes a payment with this payment method. The shop saves the method if the payment requests it.
    fn pay_by(&self, payment: &str, method: Value) {
        let mut books = self.books.lock().unwrap();
        let known = books.payments.get_mut(payment).unwrap();
        let saved = known["save_payment_method"] == true;
        known["payment_method"] = method;
        known["payment_method"]["id"] = json!(card_of(payment));
        known["payment_method"]["saved"] = json!(saved);
    }

    /// Completes a payment with a payment method that cannot be saved.
    pub fn pay_once(&self, payment: &str) {
        self.pay(payment);
        let method = json!({ "type": "sbp", "id": "x", "saved": false });
        self.set(payment, &json!({ "payment_method": method }));
    }

    pub fn decline(&self, reason: Option<&str>) {
        self.books.lock().unwrap().declines = reason.map(str::to_owned);
    }

    /// Makes charges of saved cards wait for the payer's confirmation from now on.
    pub fn confirm(&self) {
        self.books.lock().unwrap().confirms = true;
    }

    /// Makes the next payments, but responds to the first `answers` requests for payments with an error.
    pub fn lose(&self, answers: usize) {
        self.books.lock().unwrap().lost = answers;
    }

    /// Returns the ids of all charges of saved cards.
    pub fn charges(&self) -> Vec<String> {
        let books = self.books.lock().unwrap();
        let charges = books.payments.values();
        let charges = charges.filter(|payment| payment.get("charged").is_some());
        charges
            .map(|payment| payment["id"].as_str().unwrap().to_owned())
            .collect()
    }

    pub fn cancel(&self, payment: &str) {
        let why = json!({ "party": "yoo_money", "reason": "expired_on_confirmation" });
        self.set(
            payment,
            &json!({ "status": "canceled", "cancellation_details": why }),
        );
    }

    pub fn refund(&self, payment: &str, id: &str, rubles: &str) {
        let amount = json!({ "value": rubles, "currency": "RUB" });
        self.set(payment, &json!({ "refunded_amount": amount }));
        self.books.lock().unwrap().refunds.push(json!({
            "id": id, "payment_id": payment, "status": "succeeded", "amount": amount,
            "created_at": "2026-11-23T10:00:00.000Z",
        }));
    }

    pub fn refund_fails(&self, id: &str) {
        let mut books = self.books.lock().unwrap();
        let mut refunds = books.refunds.iter_mut();
        let refund = refunds.find(|refund| refund["id"] == id).unwrap();
        refund["status"] = json!("canceled");
    }

    pub fn break_with(&self, status: Option<u16>) {
        self.books.lock().unwrap().broken = status;
    }

    pub fn hold(&self, until: Option<Arc<Notify>>) {
        self.books.lock().unwrap().held = until;
    }
}

fn answer(books: &mut Books, requested: &Received) -> Reply {
    let error = |status, code: &str| {
        Reply::json(
            status,
            &json!({ "type": "error", "id": "e", "code": code, "description": "words" }),
        )
    };
    if let Some(status) = books.broken {
        return error(status, "internal_server_error");
    }
    // The required credentials are `100500:sk-…`, the `VENDOR_KEY` of the harness.
    let shown = requested.headers.get("authorization");
    if !shown.is_some_and(|shown| shown.to_str().unwrap().starts_with("Basic MTAwNTAwO")) {
        return error(401, "invalid_credentials");
    }
    let path = requested.path.strip_prefix("/v3").unwrap();
    if path == "/payments" {
        return make(books, requested);
    }
    if let Some(payment) = path.strip_prefix("/refunds?payment_id=") {
        let payment = payment.split('&').next().unwrap();
        let of_it = books
            .refunds
            .iter()
            .filter(|refund| refund["payment_id"] == payment);
        let items: Vec<_> = of_it.collect();
        return Reply::json(200, &json!({ "type": "list", "items": items }));
    }
    let payment = path.strip_prefix("/payments/").unwrap();
    match books.payments.get(payment) {
        Some(payment) => Reply::json(200, payment),
        None => error(404, "not_found"),
    }
}

fn make(books: &mut Books, requested: &Received) -> Reply {
    let key = requested.headers["idempotence-key"]
        .to_str()
        .unwrap()
        .to_owned();
    let order = requested.json();
    let next = format!("2d00{:04}-000f-5000-8000-18db351245c7", books.made.len());
    let id = books.made.entry(key).or_insert(next).clone();
    let charged = order["payment_method_id"].as_str().map(str::to_owned);
    let (declines, confirms) = (books.declines.clone(), books.confirms);
    if let Some(card) = &charged {
        let stored = books.payments.values().any(|payment| {
            payment["payment_method"]["saved"] == true && payment["payment_method"]["id"] == **card
        });
        if !stored {
            return Reply::json(400, &json!({ "type": "error", "code": "invalid_request" }));
        }
        assert!(order.get("confirmation").is_none(), "{order}");
    }
    let payment = books.payments.entry(id.clone()).or_insert_with(|| {
        json!({
            "id": id, "status": "pending", "paid": false, "amount": order["amount"],
            "confirmation": {
                "type": "redirect", "return_url": order["confirmation"]["return_url"],
                "confirmation_url": format!("https://yoomoney.example/checkout?orderId={id}"),
            },
            "created_at": "2026-11-23T10:00:00.000Z", "description": order["description"],
            "metadata": order["metadata"], "recipient": { "account_id": "100500", "gateway_id": "1" },
            "refundable": false, "test": true, "save_payment_method": order["save_payment_method"],
        })
    });
    if let Some(card) = charged
        && payment.get("charged").is_none()
    {
        payment["charged"] = json!(card);
        payment["payment_method"] = json!({ "type": "bank_card", "id": card, "saved": true });
        if !confirms {
            payment["confirmation"] = Value::Null;
            payment["status"] = json!(if declines.is_some() {
                "canceled"
            } else {
                "succeeded"
            });
        }
        if let Some(reason) = declines {
            payment["cancellation_details"] =
                json!({ "party": "payment_network", "reason": reason });
        }
    }
    let body = payment.to_string();
    if books.lost > 0 {
        books.lost -= 1;
        return Reply::json(
            500,
            &json!({ "type": "error", "code": "internal_server_error" }),
        );
    }
    match &books.held {
        None => Reply::raw(200, "application/json", vec![Step::Send(body.into())]),
        Some(held) => Reply::raw(
            200,
            "application/json",
            vec![Step::Hold(Arc::clone(held)), Step::Send(body.into())],
        ),
    }
}

/// Returns the handle of the card with which a payment was made.
pub fn card_of(payment: &str) -> String {
    format!("card-{payment}")
}

/// Returns the shop's notification about a payment.
pub fn paid(payment: &str) -> Value {
    json!({ "type": "notification", "event": "payment.succeeded", "object": {
        "id": payment, "status": "succeeded", "paid": true, "amount": { "value": "999999.00", "currency": "RUB" },
    } })
}

pub fn canceled(payment: &str) -> Value {
    json!({ "type": "notification", "event": "payment.canceled", "object": { "id": payment, "status": "canceled" } })
}

pub fn refunded(payment: &str, refund: &str) -> Value {
    json!({ "type": "notification", "event": "refund.succeeded", "object": {
        "id": refund, "payment_id": payment, "status": "succeeded", "amount": { "value": "999999.00", "currency": "RUB" },
    } })
}

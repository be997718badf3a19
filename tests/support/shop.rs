//! A shop at YooKassa, by its API of version 3, on a real socket.

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
    /// By the key of idempotency: the id.
    made: BTreeMap<String, String>,
    payments: BTreeMap<String, Value>,
    refunds: Vec<Value>,
    /// What every request is answered with.
    broken: Option<u16>,
    /// Payments are made, and nothing is answered until somebody notifies.
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
        let kept = Arc::clone(&books);
        vendor.script(move |asked| answer(&mut kept.lock().unwrap(), asked));
        Self { vendor, books }
    }

    pub fn address(&self) -> SocketAddr {
        self.vendor.address()
    }

    /// What `[payments]` says of it.
    pub fn config(&self, payments: &str) -> String {
        Self::config_at(self.address(), payments)
    }

    /// The same, of a shop behind something at this address.
    pub fn config_at(address: SocketAddr, payments: &str) -> String {
        format!(
            "[payments]\n{payments}\n[payments.yookassa]\nshop_id = \"100500\"\nsecret_key = \"${{VENDOR_KEY}}\"\n\
             url = \"http://{address}/v3\"\nreturn_url = \"https://pay.example/usage\"\n"
        )
    }

    /// The requests that were made for payments and refunds that are there.
    pub fn fetches(&self) -> usize {
        let received = self.vendor.received();
        received
            .iter()
            .filter(|asked| asked.body.is_empty())
            .count()
    }

    pub fn received(&self) -> Vec<Received> {
        self.vendor.received()
    }

    /// The ids of all payments.
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

    pub fn break_with(&self, status: Option<u16>) {
        self.books.lock().unwrap().broken = status;
    }

    pub fn hold(&self, until: Option<Arc<Notify>>) {
        self.books.lock().unwrap().held = until;
    }
}

fn answer(books: &mut Books, asked: &Received) -> Reply {
    let error = |status, code: &str| {
        Reply::json(
            status,
            &json!({ "type": "error", "id": "e", "code": code, "description": "words" }),
        )
    };
    if let Some(status) = books.broken {
        return error(status, "internal_server_error");
    }
    // 100500:sk-… as `VENDOR_KEY` of the harness.
    let shown = asked.headers.get("authorization");
    if !shown.is_some_and(|shown| shown.to_str().unwrap().starts_with("Basic MTAwNTAwO")) {
        return error(401, "invalid_credentials");
    }
    let path = asked.path.strip_prefix("/v3").unwrap();
    if path == "/payments" {
        return make(books, asked);
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

fn make(books: &mut Books, asked: &Received) -> Reply {
    let key = asked.headers["idempotence-key"]
        .to_str()
        .unwrap()
        .to_owned();
    let order = asked.json();
    let next = format!("2d00{:04}-000f-5000-8000-18db351245c7", books.made.len());
    let id = books.made.entry(key).or_insert(next).clone();
    let payment = books.payments.entry(id.clone()).or_insert_with(|| {
        json!({
            "id": id, "status": "pending", "paid": false, "amount": order["amount"],
            "confirmation": {
                "type": "redirect", "return_url": order["confirmation"]["return_url"],
                "confirmation_url": format!("https://yoomoney.example/checkout?orderId={id}"),
            },
            "created_at": "2026-11-23T10:00:00.000Z", "description": order["description"],
            "metadata": order["metadata"], "recipient": { "account_id": "100500", "gateway_id": "1" },
            "refundable": false, "test": true,
        })
    });
    let body = payment.to_string();
    match &books.held {
        None => Reply::raw(200, "application/json", vec![Step::Send(body.into())]),
        Some(held) => Reply::raw(
            200,
            "application/json",
            vec![Step::Hold(Arc::clone(held)), Step::Send(body.into())],
        ),
    }
}

/// What the shop tells of a payment.
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

//! YooKassa: its API of version 3, and its notifications. The notifications are not signed, so the payment is always
//! fetched.

use bytes::Bytes;
use http::{Method, Request, header::AUTHORIZATION, request::Builder};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tollgate_layers::money::MicroRub;

use super::{
    auto::SavedCard,
    intent::{CardUse, Intent},
    provider::{
        Amount, CardReport, Charged, Created, Notice, ProviderError, ProviderPayment,
        ProviderRefund, ProviderStatus, ask, basic,
    },
};
use crate::{config::YooKassaConfig, net::https::HttpsClient, text::percent::encoded};

/// The name of the metadata field in which a payment contains the intent's id.
const INTENT: &str = "tollgate_intent";
/// Maximum number of pages of refunds that are read for one payment.
const PAGES_MAX: usize = 10;

#[derive(Clone, Debug)]
pub(super) struct YooKassa {
    pub(super) client: HttpsClient,
    pub(super) config: YooKassaConfig,
}

#[derive(Deserialize)]
struct Payment {
    id: String,
    status: String,
    amount: Amount,
    refunded_amount: Option<Amount>,
    confirmation: Option<Confirmation>,
    #[serde(default)]
    metadata: Value,
    cancellation_details: Option<Cancellation>,
    payment_method: Option<Way>,
}

/// A payment method, as YooKassa's API describes it.
#[derive(Deserialize)]
struct Way {
    id: String,
    #[serde(default)]
    saved: bool,
    card: Option<Card>,
}

#[derive(Deserialize)]
struct Card {
    last4: Option<String>,
}

impl From<Way> for CardReport {
    fn from(way: Way) -> Self {
        if way.saved {
            let last4 = way.card.and_then(|card| card.last4);
            Self::Saved(SavedCard::new(way.id, None, last4))
        } else {
            Self::NotSaved
        }
    }
}

#[derive(Deserialize)]
struct Confirmation {
    confirmation_url: Option<String>,
}

#[derive(Deserialize)]
struct Cancellation {
    party: String,
    reason: String,
}

#[derive(Deserialize)]
struct Refunds {
    items: Vec<Refund>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Refund {
    id: String,
    payment_id: String,
    status: String,
    amount: Amount,
}

#[derive(Deserialize)]
struct Notification {
    event: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    id: String,
    payment_id: Option<String>,
    #[serde(default)]
    metadata: Value,
}

impl YooKassa {
    pub(super) async fn create(&self, intent: &Intent) -> Result<Created, ProviderError> {
        let mut order = order(&self.config, intent);
        order["confirmation"] = json!({ "type": "redirect", "return_url": self.config.return_url });
        if intent.card == Some(CardUse::Save) {
            order["save_payment_method"] = true.into();
        }
        let payment = self.make(intent, &order).await?;
        let url = payment.confirmation.and_then(|way| way.confirmation_url);
        Ok(Created {
            payment: payment.id,
            url: url.ok_or_else(|| {
                ProviderError::Unread("the answer contains no payment link".into())
            })?,
        })
    }

    /// Charges a saved card. Usually the payer need not confirm the charge.
    pub(super) async fn charge(
        &self,
        intent: &Intent,
        card: &SavedCard,
    ) -> Result<Charged, ProviderError> {
        let mut order = order(&self.config, intent);
        order["payment_method_id"] = card.handle.as_str().into();
        let payment = self.make(intent, &order).await?;
        let confirmation = payment.confirmation.filter(|_| payment.status == "pending");
        Ok(Charged::Made {
            payment: payment.id,
            url: confirmation.and_then(|way| way.confirmation_url),
        })
    }

    async fn make(&self, intent: &Intent, order: &Value) -> Result<Payment, ProviderError> {
        let req = self
            .request(Method::POST, "/payments")
            .header("Idempotence-Key", intent.id.to_string())
            .header("content-type", "application/json");
        ask(&self.client, req, order.to_string().into()).await
    }

    pub(super) async fn fetch(
        &self,
        intent: &Intent,
        payment: &str,
        refunds: bool,
    ) -> Result<ProviderPayment, ProviderError> {
        let path = format!("/payments/{}", encoded(payment));
        let found: Payment = self.get(&path).await?;
        if found.id != payment {
            return Err(ProviderError::NotFound);
        }
        let provider_status = match found.status.as_str() {
            "succeeded" => ProviderStatus::Succeeded,
            "canceled" => ProviderStatus::Canceled(found.cancellation_details.map_or_else(
                || "canceled".to_owned(),
                |why| format!("{}: {}", why.party, why.reason),
            )),
            _ => ProviderStatus::Pending,
        };
        let refunded = found.refunded_amount.map(|amount| amount.rubles());
        let has_some = refunded.is_some_and(|refunded| refunded != Some(MicroRub::ZERO));
        let refunds = if provider_status == ProviderStatus::Succeeded && (refunds || has_some) {
            self.refunds(&found.id).await?
        } else {
            Vec::new()
        };
        Ok(ProviderPayment {
            payment: found.id,
            intent: found.metadata[INTENT].as_str().map(str::to_owned),
            provider_status,
            amount: found.amount,
            refunds,
            card: match (intent.card, found.payment_method) {
                (Some(CardUse::Save), Some(way)) => way.into(),
                (Some(CardUse::Save), None) => CardReport::NotSaved,
                _ => CardReport::NotReported,
            },
            ..ProviderPayment::default()
        })
    }

    async fn refunds(&self, payment: &str) -> Result<Vec<ProviderRefund>, ProviderError> {
        let (mut refunds, mut cursor) = (Vec::new(), None::<String>);
        for _ in 0..PAGES_MAX {
            let mut path = format!("/refunds?payment_id={}&limit=100", encoded(payment));
            if let Some(cursor) = &cursor {
                path.push_str("&cursor=");
                path.push_str(&encoded(cursor));
            }
            let page: Refunds = self.get(&path).await?;
            let ours = page
                .items
                .into_iter()
                .filter(|refund| refund.payment_id == payment && is_over(&refund.status));
            refunds.extend(ours.map(|refund| ProviderRefund {
                failed: refund.status == "canceled",
                id: refund.id,
                amount: refund.amount,
            }));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(refunds)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ProviderError> {
        ask(&self.client, self.request(Method::GET, path), Bytes::new()).await
    }

    fn request(&self, method: Method, path: &str) -> Builder {
        let shop = &self.config;
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", shop.url))
            .header(
                AUTHORIZATION,
                basic(&shop.shop_id, shop.secret_key.expose()),
            )
    }

    /// Parses a notification; `None` if it is malformed.
    pub(super) fn read(body: &[u8]) -> Option<Notice> {
        let Notification { event, object } = serde_json::from_slice(body).ok()?;
        let is_refund = event.starts_with("refund.");
        let payment = if is_refund {
            object.payment_id
        } else {
            Some(object.id)
        };
        Some(Notice {
            canceled: payment.clone().filter(|_| event == "payment.canceled"),
            payment,
            intent: object.metadata[INTENT].as_str().map(str::to_owned),
            is_refund,
            ..Notice::default()
        })
    }
}

/// Returns the body of the request that creates an intent's payment.
fn order(config: &YooKassaConfig, intent: &Intent) -> Value {
    let amount = json!({ "value": kopecks(intent.amount_rub), "currency": "RUB" });
    let mut order = json!({
        "amount": amount,
        "capture": true,
        "description": intent.description(),
        "metadata": { INTENT: intent.id, "tollgate_account": intent.account },
    });
    if let Some((vat_code, email)) = &config.receipt {
        order["receipt"] = json!({
            "customer": { "email": intent.email.as_ref().unwrap_or(email) },
            "items": [{
                "description": "Пополнение счёта",
                "quantity": "1.00",
                "amount": amount,
                "vat_code": vat_code,
                // The fiscal receipt is for an advance payment, because it is not known yet what the money will be used
                // for.
                "payment_subject": "payment",
                "payment_mode": "advance",
            }],
        });
    }
    order
}

/// Returns whether a refund with this status has ended.
fn is_over(status: &str) -> bool {
    matches!(status, "succeeded" | "canceled")
}

/// Returns an amount in rubles with two decimal digits, even if they are zero.
pub(super) fn kopecks(amount: MicroRub) -> String {
    let kopecks = amount.micro() / 10_000;
    format!("{}.{:02}", kopecks / 100, kopecks % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payments::intent::IntentId;

    fn shop(receipt: Option<(u8, String)>) -> YooKassaConfig {
        YooKassaConfig {
            shop_id: "1".into(),
            secret_key: "s".into(),
            url: "http://127.0.0.1:1".into(),
            return_url: "https://pay.example/usage".into(),
            receipt,
        }
    }

    #[test]
    fn yookassa_payment_request_names_the_intent_and_has_a_receipt_if_configured() {
        let (id, account) = (IntentId::new(), "acme".parse().unwrap());
        let amount = "5000.5".parse().unwrap();
        let mut intent = Intent::new(id, &account, amount, "yookassa", "admin");
        let bare = order(&shop(None), &intent);
        assert_eq!(
            bare["amount"],
            json!({ "value": "5000.50", "currency": "RUB" })
        );
        assert_eq!(bare["metadata"][INTENT], intent.id.to_string());
        assert!(bare.get("receipt").is_none());
        let with = shop(Some((4, "buh@example.com".into())));
        let receipt = &order(&with, &intent)["receipt"];
        assert_eq!(receipt["customer"]["email"], "buh@example.com");
        assert_eq!(receipt["items"][0]["vat_code"], 4);
        assert_eq!(receipt["items"][0]["amount"]["value"], "5000.50");
        intent.email = Some("payer@example.com".into());
        assert_eq!(
            order(&with, &intent)["receipt"]["customer"]["email"],
            "payer@example.com"
        );
    }

    #[test]
    fn payment_is_read_from_a_yookassa_notification() {
        let read = |text: &str| YooKassa::read(text.as_bytes());
        let paid = read(
            r#"{"type":"notification","event":"payment.succeeded","object":{"id":"p-1","status":"succeeded","paid":true,
                "amount":{"value":"1.00","currency":"RUB"},"metadata":{"tollgate_intent":"i"}}}"#,
        );
        let paid = paid.unwrap();
        assert_eq!(paid.payment.as_deref(), Some("p-1"));
        assert_eq!(paid.intent.as_deref(), Some("i"));
        assert!(!paid.is_refund);
        let refund = read(
            r#"{"type":"notification","event":"refund.succeeded","object":{"id":"r-1","payment_id":"p-1"}}"#,
        );
        let refund = refund.unwrap();
        assert_eq!(refund.payment.as_deref(), Some("p-1"));
        assert!(refund.is_refund);
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"event":"payment.succeeded","object":{"id":7}}"#,
        ] {
            assert!(read(bad).is_none(), "{bad}");
        }
    }
}

//! Stripe: sessions of its Checkout, and events signed over their time and body.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, header::AUTHORIZATION, request::Builder};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    intent::Intent,
    provider::{
        Amount, Created, Notice, ProviderError, Seen, SeenRefund, Standing, ask, is_signed,
    },
};
use crate::{config::StripeConfig, node::https::HttpsClient, text::percent::encoded};

const INTENT: &str = "tollgate_intent";
/// An event that was signed longer ago may be one that somebody repeats.
const TOLERANCE_SECONDS: u64 = 300;
/// Pages of refunds that are read at most.
const PAGES_MAX: usize = 10;

#[derive(Clone, Debug)]
pub(super) struct Stripe(pub(super) StripeConfig);

#[derive(Deserialize)]
struct Session {
    id: String,
    url: Option<String>,
    status: Option<String>,
    payment_status: String,
    amount_total: Option<i64>,
    currency: Option<String>,
    payment_intent: Option<String>,
    #[serde(default)]
    metadata: Value,
}

#[derive(Deserialize)]
struct Refunds {
    data: Vec<Refund>,
    #[serde(default)]
    has_more: bool,
}

#[derive(Deserialize)]
struct Refund {
    id: String,
    amount: i64,
    currency: String,
    status: Option<String>,
}

#[derive(Deserialize)]
struct Event {
    r#type: String,
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    id: String,
    #[serde(default)]
    metadata: Value,
    payment_intent: Option<String>,
}

#[derive(Deserialize)]
struct PaymentIntent {
    #[serde(default)]
    metadata: Value,
}

impl Stripe {
    pub(super) async fn create(
        &self,
        client: &HttpsClient,
        intent: &Intent,
    ) -> Result<Created, ProviderError> {
        let Self(config) = self;
        let (id, kopecks) = (intent.id.to_string(), intent.amount_rub.micro() / 10_000);
        let kopecks = kopecks.to_string();
        let name = format!("Пополнение счёта {}", intent.account);
        let mut form = vec![
            ("mode", "payment"),
            ("line_items[0][quantity]", "1"),
            ("line_items[0][price_data][currency]", "rub"),
            ("line_items[0][price_data][unit_amount]", &kopecks),
            ("line_items[0][price_data][product_data][name]", &name),
            ("client_reference_id", &id),
            ("metadata[tollgate_intent]", &id),
            ("payment_intent_data[metadata][tollgate_intent]", &id),
            ("success_url", &config.return_url),
            ("cancel_url", &config.return_url),
        ];
        form.extend(
            intent
                .email
                .as_deref()
                .map(|email| ("customer_email", email)),
        );
        let pairs = form
            .iter()
            .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
        let body = pairs.collect::<Vec<_>>().join("&");
        let req = self
            .request(Method::POST, "/v1/checkout/sessions")
            .header("Idempotency-Key", &id)
            .header("content-type", "application/x-www-form-urlencoded");
        let session: Session = ask(client, req, body.into()).await?;
        Ok(Created {
            payment: session.id,
            url: (session.url)
                .ok_or_else(|| ProviderError::Unread("it names no address to pay at".into()))?,
        })
    }

    pub(super) async fn fetch(
        &self,
        client: &HttpsClient,
        payment: &str,
        refunds: bool,
    ) -> Result<Seen, ProviderError> {
        let path = format!("/v1/checkout/sessions/{}", encoded(payment));
        let found: Session = self.get(client, &path).await?;
        let standing = match (found.payment_status.as_str(), found.status.as_deref()) {
            ("paid", _) => Standing::Succeeded,
            (_, Some("expired")) => Standing::Canceled("expired".to_owned()),
            _ => Standing::Pending,
        };
        let refunds = match &found.payment_intent {
            Some(paid) if refunds && standing == Standing::Succeeded => {
                self.refunds(client, paid).await?
            }
            _ => Vec::new(),
        };
        Ok(Seen {
            payment: found.id,
            intent: found.metadata[INTENT].as_str().map(str::to_owned),
            standing,
            amount: amount(
                found.amount_total.unwrap_or_default(),
                found.currency.unwrap_or_default(),
            ),
            refunds,
        })
    }

    async fn refunds(
        &self,
        client: &HttpsClient,
        paid: &str,
    ) -> Result<Vec<SeenRefund>, ProviderError> {
        let mut refunds: Vec<SeenRefund> = Vec::new();
        let mut path = format!("/v1/refunds?limit=100&payment_intent={}", encoded(paid));
        for _ in 0..PAGES_MAX {
            let page: Refunds = self.get(client, &path).await?;
            let last = page.data.last().map(|refund| encoded(&refund.id));
            let done = page.data.into_iter().filter(|refund| {
                let status = refund.status.as_deref();
                status == Some("succeeded")
            });
            refunds.extend(done.map(|refund| SeenRefund {
                id: refund.id,
                amount: amount(refund.amount, refund.currency),
            }));
            let Some(last) = last.filter(|_| page.has_more) else {
                break;
            };
            path = format!(
                "/v1/refunds?limit=100&payment_intent={}&starting_after={last}",
                encoded(paid)
            );
        }
        Ok(refunds)
    }

    /// A refund names the payment alone that it is of, and that names the intent.
    pub(super) async fn intent_of(
        &self,
        client: &HttpsClient,
        paid: &str,
    ) -> Result<Option<String>, ProviderError> {
        let path = format!("/v1/payment_intents/{}", encoded(paid));
        let found: PaymentIntent = self.get(client, &path).await?;
        Ok(found.metadata[INTENT].as_str().map(str::to_owned))
    }

    async fn get<T: DeserializeOwned>(
        &self,
        client: &HttpsClient,
        path: &str,
    ) -> Result<T, ProviderError> {
        ask(client, self.request(Method::GET, path), Bytes::new()).await
    }

    fn request(&self, method: Method, path: &str) -> Builder {
        let Self(config) = self;
        let bearer = format!("Bearer {}", config.secret_key.expose());
        let req = Request::builder()
            .method(method)
            .uri(format!("{}{path}", config.url));
        match HeaderValue::try_from(bearer) {
            Ok(mut bearer) => {
                bearer.set_sensitive(true);
                req.header(AUTHORIZATION, bearer)
            }
            // It is refused without one.
            Err(_) => req,
        }
    }

    /// What an event names, if it is signed, and not long ago.
    pub(super) fn read(&self, headers: &HeaderMap, body: &[u8], now_ms: u64) -> Option<Notice> {
        let shown = headers.get("Stripe-Signature")?.to_str().ok()?;
        let secret = self.0.webhook_secret.expose();
        if !is_signed_lately(secret, shown, body, now_ms / 1000) {
            return None;
        }
        let Event { r#type, data } = serde_json::from_slice(body).ok()?;
        let object = data.object;
        let is_refund = r#type == "charge.refunded" || r#type.starts_with("refund.");
        Some(Notice {
            payment: r#type.starts_with("checkout.session.").then_some(object.id),
            intent: object.metadata[INTENT].as_str().map(str::to_owned),
            via: object.payment_intent.filter(|_| is_refund),
            is_refund,
            ..Notice::default()
        })
    }
}

/// Of kopecks, or of whatever a hundredth of the currency is.
fn amount(hundredths: i64, currency: String) -> Amount {
    let (whole, part) = (hundredths / 100, (hundredths % 100).abs());
    Amount {
        value: format!("{whole}.{part:02}"),
        currency,
    }
}

/// `t=1492774577,v1=5257a8…,v1=…`: one of the signatures has to be right.
fn is_signed_lately(secret: &str, shown: &str, body: &[u8], now: u64) -> bool {
    let parts = || {
        shown
            .split(',')
            .filter_map(|part| part.trim().split_once('='))
    };
    let Some((_, time)) = parts().find(|(name, _)| *name == "t") else {
        return false;
    };
    let is_lately = time
        .parse::<u64>()
        .is_ok_and(|time| time.abs_diff(now) <= TOLERANCE_SECONDS);
    is_lately
        && parts()
            .filter(|(name, _)| *name == "v1")
            .filter_map(|(_, hex)| bytes_of(hex))
            .any(|shown| is_signed(secret, &[time.as_bytes(), b".", body], &shown))
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    if !hex.is_ascii() || hex.len() != 64 {
        return None;
    }
    let pairs = (0..hex.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As computed by another implementation: `printf '1700000000.{}' | openssl dgst -sha256 -hmac whsec_test`.
    const SIGNATURE: &str = "35495024f4ef3f94e5a93e22221544c4b75e9a42300cd965ab81cb85cd994e91";

    #[test]
    fn an_event_is_signed_lately_or_not_believed() {
        let good = format!("t=1700000000,v1={},v1={SIGNATURE},v0=x", "0".repeat(64));
        for (shown, body, now, is_good) in [
            (good.as_str(), "{}", 1_700_000_000, true),
            (&good, "{}", 1_700_000_300, true),
            (&good, "{}", 1_700_000_301, false),
            (&good, "{}", 1_699_999_699, false),
            (&good, "{ }", 1_700_000_000, false),
            (&good.replace("t=17", "t=18"), "{}", 1_800_000_000, false),
            ("", "{}", 1_700_000_000, false),
            ("t=1700000000", "{}", 1_700_000_000, false),
            ("t=1700000000,v1=é", "{}", 1_700_000_000, false),
        ] {
            assert_eq!(
                is_signed_lately("whsec_test", shown, body.as_bytes(), now),
                is_good,
                "{shown} {body} {now}"
            );
        }
        assert!(!is_signed_lately("other", &good, b"{}", 1_700_000_000));
    }

    #[test]
    fn amounts_are_whole_kopecks() {
        assert_eq!(
            amount(500_050, "rub".into()).rubles(),
            "5000.50".parse().ok()
        );
        assert_eq!(amount(5, "rub".into()).rubles(), "0.05".parse().ok());
        assert_eq!(amount(500_050, "usd".into()).rubles(), None);
    }
}

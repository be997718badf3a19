//! Stripe: Checkout sessions, charges of saved cards, and events, whose signature covers the time and the body.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, StatusCode, header::AUTHORIZATION, request::Builder,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    auto::SavedCard,
    intent::{CardUse, DisputeStatus, Intent},
    provider::{
        Amount, CardReport, Charged, Created, Notice, ProviderDispute, ProviderError,
        ProviderPayment, ProviderRefund, ProviderStatus, answer, ask, is_signed, not_done, read,
    },
};
use crate::{config::StripeConfig, net::https::HttpsClient, text::percent::encoded};

const INTENT: &str = "tollgate_intent";
/// The prefix of payment intent ids; Checkout session ids have another prefix.
const PAYMENT_INTENT: &str = "pi_";
/// Maximum age of a signature, in seconds. An older notification may be a replay.
const TOLERANCE_SECONDS: u64 = 300;
/// Maximum number of pages of refunds that are read for one payment.
const PAGES_MAX: usize = 10;

#[derive(Clone, Debug)]
pub(super) struct Stripe {
    pub(super) client: HttpsClient,
    pub(super) config: StripeConfig,
}

#[derive(Deserialize)]
struct Session {
    id: String,
    url: Option<String>,
    status: Option<String>,
    payment_status: String,
    amount_total: Option<i64>,
    currency: Option<String>,
    payment_intent: Option<String>,
    customer: Option<String>,
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
struct Disputes {
    data: Vec<Dispute>,
}

#[derive(Deserialize)]
struct Dispute {
    id: String,
    amount: i64,
    currency: String,
    #[serde(default)]
    status: String,
}

impl Dispute {
    fn status(&self) -> DisputeStatus {
        match self.status.as_str() {
            "warning_needs_response" | "warning_under_review" => DisputeStatus::Inquiry,
            // `charge_refunded` means that the dispute ended because the payment was refunded. Stripe reports this
            // refund separately.
            "won" | "warning_closed" | "prevented" | "charge_refunded" => DisputeStatus::Won,
            "lost" => DisputeStatus::Lost,
            _ => DisputeStatus::Open,
        }
    }
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

#[derive(Default, Deserialize)]
#[serde(default)]
struct PaymentIntent {
    metadata: Value,
    id: String,
    status: String,
    amount: i64,
    currency: String,
    customer: Option<String>,
    /// The payment method: a complete object if the request has `expand` for it, otherwise its id.
    payment_method: Value,
    last_payment_error: Option<Declined>,
}

#[derive(Deserialize)]
struct Failed {
    error: Declined,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Declined {
    code: String,
    decline_code: String,
}

impl Declined {
    /// Returns whether the payer's bank requires the payer to authenticate.
    fn needs_payer(&self) -> bool {
        let is = |word: &str| self.code == word || self.decline_code == word;
        is("authentication_required") || is("payment_intent_authentication_failure")
    }

    fn reason(self) -> String {
        let Self { code, decline_code } = self;
        match (code.is_empty(), decline_code.is_empty()) {
            (true, _) => "declined".to_owned(),
            (false, true) => code,
            (false, false) => format!("{code}: {decline_code}"),
        }
    }
}

impl Stripe {
    pub(super) async fn create(&self, intent: &Intent) -> Result<Created, ProviderError> {
        let config = &self.config;
        let (id, name) = (intent.id.to_string(), intent.description());
        let kopecks = (intent.amount_rub.micro() / 10_000).to_string();
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
        if let Some(email) = &intent.email {
            form.push(("customer_email", email));
        }
        if intent.card == Some(CardUse::Save) {
            form.push(("customer_creation", "always"));
            form.push(("payment_intent_data[setup_future_usage]", "off_session"));
        }
        let req = self.post("/v1/checkout/sessions", &intent.link_key());
        let session: Session = ask(&self.client, req, body(&form)).await?;
        Ok(Created {
            payment: session.id,
            url: (session.url).ok_or_else(|| {
                ProviderError::Unread("the answer contains no payment link".into())
            })?,
        })
    }

    /// Charges a saved card; the card's owner does not take part.
    pub(super) async fn charge(
        &self,
        intent: &Intent,
        card: &SavedCard,
    ) -> Result<Charged, ProviderError> {
        let (id, name) = (intent.id.to_string(), intent.description());
        let kopecks = (intent.amount_rub.micro() / 10_000).to_string();
        let mut form = vec![
            ("amount", kopecks.as_str()),
            ("currency", "rub"),
            ("payment_method", &card.handle),
            ("off_session", "true"),
            ("confirm", "true"),
            ("description", &name),
            ("metadata[tollgate_intent]", &id),
        ];
        if let Some(customer) = &card.customer {
            form.push(("customer", customer));
        }
        if let Some(email) = &intent.email {
            form.push(("receipt_email", email));
        }
        let req = self.post("/v1/payment_intents", &id);
        let (status, body) = answer(&self.client, req, body(&form)).await?;
        if status == StatusCode::PAYMENT_REQUIRED {
            let Failed { error } = read(&body)?;
            return Ok(if error.needs_payer() {
                Charged::NeedsPayer
            } else {
                Charged::Declined(error.reason())
            });
        }
        if !status.is_success() {
            return Err(not_done(status, &body));
        }
        let made: PaymentIntent = read(&body)?;
        Ok(match made.status.as_str() {
            "requires_action" | "requires_confirmation" => Charged::NeedsPayer,
            "requires_payment_method" => {
                Charged::Declined(made.last_payment_error.unwrap_or_default().reason())
            }
            _ => Charged::Made {
                payment: made.id,
                url: None,
            },
        })
    }

    /// Detaches a saved card from its customer. After that, the card cannot be charged.
    pub(super) async fn forget(&self, card: &SavedCard) -> Result<(), ProviderError> {
        let path = format!("/v1/payment_methods/{}/detach", encoded(&card.handle));
        let req = self.request(Method::POST, &path);
        let answer = ask::<Value>(&self.client, req, Bytes::new()).await;
        answer.map(drop)
    }

    pub(super) async fn fetch(
        &self,
        intent: &Intent,
        payment: &str,
        refunds: bool,
    ) -> Result<ProviderPayment, ProviderError> {
        if payment.starts_with(PAYMENT_INTENT) {
            return self.fetch_charge(payment, refunds).await;
        }
        let path = format!("/v1/checkout/sessions/{}", encoded(payment));
        let found: Session = self.get(&path).await?;
        let provider_status = match (found.payment_status.as_str(), found.status.as_deref()) {
            ("paid", _) => ProviderStatus::Succeeded,
            (_, Some("expired")) => ProviderStatus::Canceled("expired".to_owned()),
            _ => ProviderStatus::Pending,
        };
        let (refunds, disputes) = match &found.payment_intent {
            Some(paid) if refunds && provider_status == ProviderStatus::Succeeded => {
                self.gone_back(paid).await?
            }
            _ => Default::default(),
        };
        let card = match (&found.payment_intent, intent.card) {
            (Some(paid), Some(CardUse::Save)) if provider_status == ProviderStatus::Succeeded => {
                self.card(paid, found.customer).await?
            }
            _ => CardReport::NotReported,
        };
        Ok(ProviderPayment {
            payment: found.id,
            intent: found.metadata[INTENT].as_str().map(str::to_owned),
            provider_status,
            amount: amount(
                found.amount_total.unwrap_or_default(),
                found.currency.unwrap_or_default(),
            ),
            refunds,
            disputes,
            card,
        })
    }

    async fn fetch_charge(
        &self,
        payment: &str,
        refunds: bool,
    ) -> Result<ProviderPayment, ProviderError> {
        let path = format!("/v1/payment_intents/{}", encoded(payment));
        let found: PaymentIntent = self.get(&path).await?;
        let provider_status = match found.status.as_str() {
            "succeeded" => ProviderStatus::Succeeded,
            "canceled" => ProviderStatus::Canceled("canceled".to_owned()),
            "requires_payment_method" => {
                ProviderStatus::Canceled(found.last_payment_error.unwrap_or_default().reason())
            }
            _ => ProviderStatus::Pending,
        };
        let (refunds, disputes) = if refunds && provider_status == ProviderStatus::Succeeded {
            self.gone_back(payment).await?
        } else {
            Default::default()
        };
        Ok(ProviderPayment {
            payment: found.id,
            intent: found.metadata[INTENT].as_str().map(str::to_owned),
            provider_status,
            amount: amount(found.amount, found.currency),
            refunds,
            disputes,
            ..ProviderPayment::default()
        })
    }

    /// Returns the card with which the intent was paid, if the intent was to save the card.
    async fn card(
        &self,
        paid: &str,
        customer: Option<String>,
    ) -> Result<CardReport, ProviderError> {
        let path = format!(
            "/v1/payment_intents/{}?expand%5B%5D=payment_method",
            encoded(paid)
        );
        let found: PaymentIntent = self.get(&path).await?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let method = &found.payment_method;
        let customer = customer.or(found.customer);
        Ok(match (text(&method["id"]), customer) {
            (Some(handle), Some(customer)) => {
                let last4 = text(&method["card"]["last4"]);
                CardReport::Saved(SavedCard::new(handle, Some(customer), last4))
            }
            // A card that does not belong to a customer cannot be charged again.
            _ => CardReport::NotSaved,
        })
    }

    /// Fetches the refunds and disputes of a payment.
    async fn gone_back(
        &self,
        paid: &str,
    ) -> Result<(Vec<ProviderRefund>, Vec<ProviderDispute>), ProviderError> {
        let refunds = self.refunds(paid).await?;
        // One page is enough, because a payment has only a few disputes.
        let path = format!("/v1/disputes?limit=100&payment_intent={}", encoded(paid));
        let found: Disputes = self.get(&path).await?;
        let disputes = found.data.into_iter().map(|dispute| ProviderDispute {
            status: dispute.status(),
            id: dispute.id,
            amount: amount(dispute.amount, dispute.currency),
            is_held: self.config.hold_disputed,
        });
        Ok((refunds, disputes.collect()))
    }

    async fn refunds(&self, paid: &str) -> Result<Vec<ProviderRefund>, ProviderError> {
        let mut refunds: Vec<ProviderRefund> = Vec::new();
        let first = format!("/v1/refunds?limit=100&payment_intent={}", encoded(paid));
        let mut path = first.clone();
        for _ in 0..PAGES_MAX {
            let page: Refunds = self.get(&path).await?;
            let last = page.data.last().map(|refund| encoded(&refund.id));
            refunds.extend(page.data.into_iter().filter_map(|refund| {
                let failed = match refund.status.as_deref()? {
                    "succeeded" => false,
                    "failed" | "canceled" => true,
                    _ => return None,
                };
                Some(ProviderRefund {
                    id: refund.id,
                    amount: amount(refund.amount, refund.currency),
                    failed,
                })
            }));
            let Some(last) = last.filter(|_| page.has_more) else {
                break;
            };
            path = format!("{first}&starting_after={last}");
        }
        Ok(refunds)
    }

    /// Fetches the id of a refund's intent. A refund names only its payment, but the payment names the intent.
    pub(super) async fn intent_of(&self, paid: &str) -> Result<Option<String>, ProviderError> {
        let path = format!("/v1/payment_intents/{}", encoded(paid));
        let found: PaymentIntent = self.get(&path).await?;
        Ok(found.metadata[INTENT].as_str().map(str::to_owned))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ProviderError> {
        ask(&self.client, self.request(Method::GET, path), Bytes::new()).await
    }

    fn post(&self, path: &str, key: &str) -> Builder {
        self.request(Method::POST, path)
            .header("Idempotency-Key", key)
            .header("content-type", "application/x-www-form-urlencoded")
    }

    fn request(&self, method: Method, path: &str) -> Builder {
        let config = &self.config;
        let bearer = format!("Bearer {}", config.secret_key.expose());
        let req = Request::builder()
            .method(method)
            .uri(format!("{}{path}", config.url));
        match HeaderValue::try_from(bearer) {
            Ok(mut bearer) => {
                bearer.set_sensitive(true);
                req.header(AUTHORIZATION, bearer)
            }
            // If the key is not a valid header value, the request is sent without the header, and Stripe refuses the
            // request.
            Err(_) => req,
        }
    }

    /// Parses an event, if its signature is valid and recent.
    pub(super) fn read(&self, headers: &HeaderMap, body: &[u8], now_ms: u64) -> Option<Notice> {
        let shown = headers.get("Stripe-Signature")?.to_str().ok()?;
        let secret = self.config.webhook_secret.expose();
        if !is_signed_lately(secret, shown, body, now_ms / 1000) {
            return None;
        }
        let Event { r#type, data } = serde_json::from_slice(body).ok()?;
        let object = data.object;
        let is_of = |prefix: &str| r#type.starts_with(prefix);
        let mut of_refunds = ["charge.refund", "refund.", "charge.dispute."].into_iter();
        let is_refund = of_refunds.any(is_of);
        Some(Notice {
            charge: is_of("payment_intent.").then(|| object.id.clone()),
            payment: is_of("checkout.session.").then_some(object.id),
            intent: object.metadata[INTENT].as_str().map(str::to_owned),
            via: object.payment_intent.filter(|_| is_refund),
            is_refund,
            ..Notice::default()
        })
    }
}

fn body(form: &[(&str, &str)]) -> Bytes {
    let pairs = form.iter();
    let pairs = pairs.map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
    pairs.collect::<Vec<_>>().join("&").into()
}

/// Converts an amount in hundredths of the currency, such as kopecks.
fn amount(hundredths: i64, currency: String) -> Amount {
    let (whole, part) = (hundredths / 100, (hundredths % 100).abs());
    Amount {
        value: format!("{whole}.{part:02}"),
        currency,
    }
}

/// Checks the signature header `t=1492774577,v1=5257a8…,v1=…`: the time must be recent, and at least one signature must
/// be valid.
fn is_signed_lately(secret: &str, shown: &str, body: &[u8], now: u64) -> bool {
    let parts = shown.split(',');
    let mut parts = parts.filter_map(|part| part.trim().split_once('='));
    let Some((_, time)) = parts.clone().find(|(name, _)| *name == "t") else {
        return false;
    };
    let at = time.parse::<u64>();
    let is_lately = at.is_ok_and(|at| at.abs_diff(now) <= TOLERANCE_SECONDS);
    let is_valid = |shown: Vec<u8>| is_signed(secret, &[time.as_bytes(), b".", body], &shown);
    is_lately && parts.any(|(name, hex)| name == "v1" && bytes_of(hex).is_some_and(is_valid))
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

    /// A signature that `printf '1700000000.{}' | openssl dgst -sha256 -hmac whsec_test` computed.
    const SIGNATURE: &str = "35495024f4ef3f94e5a93e22221544c4b75e9a42300cd965ab81cb85cd994e91";

    #[test]
    fn stripe_event_without_a_recent_signature_is_refused() {
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
    fn stripe_amounts_are_whole_kopecks() {
        assert_eq!(
            amount(500_050, "rub".into()).rubles(),
            "5000.50".parse().ok()
        );
        assert_eq!(amount(5, "rub".into()).rubles(), "0.05".parse().ok());
        assert_eq!(amount(500_050, "usd".into()).rubles(), None);
    }
}

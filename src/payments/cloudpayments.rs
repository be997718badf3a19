//! CloudPayments: payment links, charges of saved cards, and notifications, whose signature covers the body.
//!
//! A notification's body does not contain the kind of notification; only `Check` notifications are sent to a URL of
//! their own. So even a valid signature does not prove that a payment was made, and the payment is always fetched from
//! the provider by the intent's id. Refunds of a payment cannot be fetched, so they are read from the signed
//! notification.

use std::collections::HashMap;

use http::{HeaderMap, Method, Request, header::AUTHORIZATION, request::Builder};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tollgate_layers::key::AccountId;

use super::{
    auto::SavedCard,
    intent::{Intent, IntentId},
    provider::{
        Amount, CardReport, Charged, Created, Notice, ProviderError, ProviderPayment,
        ProviderRefund, ProviderStatus, Question, ask, basic, is_signed,
    },
    yookassa::kopecks,
};
use crate::{config::CloudPaymentsConfig, net::https::HttpsClient, text::percent::decoded};

#[derive(Clone, Debug)]
pub(super) struct CloudPayments {
    pub(super) client: HttpsClient,
    pub(super) config: CloudPaymentsConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer<T> {
    success: bool,
    message: Option<String>,
    model: Option<T>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct NewOrder<'a> {
    amount: Box<RawValue>,
    currency: &'a str,
    description: String,
    invoice_id: IntentId,
    account_id: &'a AccountId,
    email: Option<&'a str>,
    require_confirmation: bool,
    send_email: bool,
    success_redirect_url: &'a str,
    fail_redirect_url: &'a str,
}

/// A request to charge a saved card; the card's owner does not take part.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct NewCharge<'a> {
    amount: Box<RawValue>,
    currency: &'a str,
    account_id: &'a AccountId,
    token: &'a str,
    /// Always 0: the shop initiates the charge, not the payer.
    tr_initiator_code: u8,
    /// Always 0: the charge is not on a schedule that was agreed in advance.
    payment_scheduled: u8,
    description: String,
    invoice_id: IntentId,
    email: Option<&'a str>,
}

/// The response to a card charge: a transaction, or the URL at which the payer must confirm the charge.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Try {
    transaction_id: u64,
    status: Option<String>,
    reason: Option<String>,
    acs_url: Option<String>,
}

impl From<Try> for Charged {
    fn from(tried: Try) -> Self {
        if tried.acs_url.is_some() {
            return Self::NeedsPayer;
        }
        match tried.status.as_deref().unwrap_or_default() {
            "Declined" | "Cancelled" => {
                Self::Declined(tried.reason.unwrap_or_else(|| "declined".to_owned()))
            }
            "AwaitingAuthentication" => Self::NeedsPayer,
            _ => Self::Made {
                payment: tried.transaction_id.to_string(),
                url: None,
            },
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Order {
    id: String,
    url: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Transaction {
    transaction_id: u64,
    amount: Box<RawValue>,
    currency: String,
    invoice_id: Option<String>,
    status: String,
    /// The kind of transaction: 0 is a payment, and other values are refunds and payouts.
    #[serde(default)]
    r#type: u8,
    /// The token of the card, if the provider has saved the card.
    token: Option<String>,
    card_last_four: Option<String>,
}

impl Transaction {
    /// Returns what the transaction means for an intent. If the transaction has paid the intent and was canceled later,
    /// its money was returned, and no other transaction can pay this intent any more.
    fn for_intent(self, intent: &Intent) -> ProviderPayment {
        let entry = format!("cloudpayments:{}", self.transaction_id);
        let is_gone = self.status == "Cancelled" && intent.entry == Some(entry);
        let mut remote = self.payment();
        if is_gone {
            remote.provider_status = ProviderStatus::Canceled("canceled".to_owned());
        }
        remote
    }

    fn payment(self) -> ProviderPayment {
        ProviderPayment {
            payment: self.transaction_id.to_string(),
            intent: self.invoice_id,
            // After a declined transaction the intent stays pending, because the payer may try again with another
            // transaction.
            provider_status: match self.status.as_str() {
                "Completed" if self.r#type == 0 => ProviderStatus::Succeeded,
                _ => ProviderStatus::Pending,
            },
            amount: Amount {
                value: self.amount.get().trim_matches('"').to_owned(),
                currency: self.currency,
            },
            card: match self.token.filter(|token| !token.is_empty()) {
                Some(token) => CardReport::Saved(SavedCard::new(token, None, self.card_last_four)),
                None => CardReport::NotReported,
            },
            ..ProviderPayment::default()
        }
    }
}

impl CloudPayments {
    pub(super) async fn create(&self, intent: &Intent) -> Result<Created, ProviderError> {
        let config = &self.config;
        let order = NewOrder {
            amount: number(&kopecks(intent.amount_rub))?,
            currency: "RUB",
            description: intent.description(),
            invoice_id: intent.id,
            account_id: &intent.account,
            email: intent.email.as_deref(),
            require_confirmation: false,
            send_email: false,
            success_redirect_url: &config.return_url,
            fail_redirect_url: &config.return_url,
        };
        // For the same key, the provider repeats its response only for an hour. If it creates a second link for the
        // intent later, only one of the two links can be paid: see `Check`.
        let req = self
            .request("/orders/create")
            .header("X-Request-ID", intent.link_key());
        let order: Order = made(self.send(req, &order).await?)?;
        Ok(Created {
            payment: order.id,
            url: order.url,
        })
    }

    /// Charges a saved card. First looks for an earlier charge for the same intent, because the provider forgets an
    /// idempotency key after an hour.
    pub(super) async fn charge(
        &self,
        intent: &Intent,
        card: &SavedCard,
    ) -> Result<Charged, ProviderError> {
        let body = json!({ "InvoiceId": intent.id });
        let found: Answer<Try> = self.post("/payments/find", &body).await?;
        if let Some(tried) = found.model {
            return Ok(tried.into());
        }
        let charge = NewCharge {
            amount: number(&kopecks(intent.amount_rub))?,
            currency: "RUB",
            // The card's token is valid only for this account id.
            account_id: &intent.account,
            token: &card.handle,
            tr_initiator_code: 0,
            payment_scheduled: 0,
            description: intent.description(),
            invoice_id: intent.id,
            email: intent.email.as_deref(),
        };
        let req = self
            .request("/payments/tokens/charge")
            .header("X-Request-ID", intent.id.to_string());
        let answer: Answer<Try> = self.send(req, &charge).await?;
        match answer.model {
            Some(tried) => Ok(tried.into()),
            // The charge was rejected, with this reason, before there was a transaction.
            None => Err(ProviderError::Refused(
                http::StatusCode::OK,
                answer.message.unwrap_or_default(),
            )),
        }
    }

    /// Fetches the payment with the intent's id. Uses version 1 of the search, which returns only payments; version 2
    /// would return refunds as well.
    pub(super) async fn fetch(&self, intent: &Intent) -> Result<ProviderPayment, ProviderError> {
        let body = json!({ "InvoiceId": intent.id });
        let answer: Answer<Transaction> = self.post("/payments/find", &body).await?;
        // If there is no transaction, nobody has tried to pay yet.
        let found = answer.model.map(|found| found.for_intent(intent));
        Ok(found.unwrap_or_default())
    }

    /// Fetches a transaction by its own id. The search by intent returns only the intent's last transaction,
    /// which may be another transaction.
    pub(super) async fn transaction(
        &self,
        transaction: &str,
    ) -> Result<Option<ProviderPayment>, ProviderError> {
        let Ok(number) = transaction.parse::<u64>() else {
            return Ok(None);
        };
        let body = json!({ "TransactionId": number });
        let answer: Answer<Transaction> = self.post("/payments/get", &body).await?;
        let found = answer.model.map(Transaction::payment);
        Ok(found.filter(|found| found.payment == transaction))
    }

    /// Cancels a payment link. A link at CloudPayments never expires by itself.
    pub(super) async fn withdraw(&self, order: &str) -> Result<(), ProviderError> {
        // If the provider does not have the link any more, the result is the same as if it were canceled now.
        let _: Answer<Value> = self.post("/orders/cancel", &json!({ "Id": order })).await?;
        Ok(())
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<Answer<T>, ProviderError> {
        self.send(self.request(path), body).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        req: Builder,
        body: &impl Serialize,
    ) -> Result<Answer<T>, ProviderError> {
        let body = serde_json::to_vec(body).map_err(|error| ProviderError::Unread(error.into()))?;
        ask(&self.client, req, body.into()).await
    }

    fn request(&self, path: &str) -> Builder {
        let config = &self.config;
        Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", config.url))
            .header("content-type", "application/json")
            .header(
                AUTHORIZATION,
                basic(&config.public_id, config.api_secret.expose()),
            )
    }

    /// Parses a notification; `None` if its signature is not valid.
    pub(super) fn read(&self, query: &str, headers: &HeaderMap, body: &[u8]) -> Option<Notice> {
        let secret = self.config.api_secret.expose();
        let text = std::str::from_utf8(body).ok()?;
        // One of the two signatures covers the body as it was sent, and the other covers the decoded body.
        let plain = decoded(&text.replace('+', " "));
        let signed = |name: &str, over: &[u8]| {
            let shown = headers.get(name).and_then(|value| value.to_str().ok());
            shown.is_some_and(|shown| is_signed_in_base64(secret, over, shown))
        };
        let is_good = signed("Content-HMAC", body)
            || signed("X-Content-HMAC", body)
            || plain.is_some_and(|plain| signed("X-Content-HMAC", plain.as_bytes()));
        if !is_good {
            return None;
        }
        let fields = fields(text)?;
        let field = |name: &str| fields.get(name).filter(|text| !text.is_empty()).cloned();
        let amount = || {
            Some(Amount {
                value: field("Amount")?,
                currency: field("Currency").unwrap_or_else(|| "RUB".to_owned()),
            })
        };
        let mut notice = Notice {
            intent: Some(field("InvoiceId").unwrap_or_default()),
            ..Notice::default()
        };
        if query == "check" {
            let account = field("AccountId");
            notice.question = Some(Question {
                account,
                amount: amount()?,
            });
        } else if field("PaymentTransactionId").is_none() {
            notice.is_success = field("Status").as_deref() == Some("Completed");
            notice.transaction = field("TransactionId").filter(|_| notice.is_success);
            notice.charge = notice.transaction.clone();
            notice.canceled = field("TransactionId").filter(|_| !notice.is_success);
            notice.card = field("Token")
                .filter(|_| notice.is_success)
                .map(|token| SavedCard::new(token, None, field("CardLastFour")));
        } else {
            notice.is_refund = true;
            notice.refund_of = field("PaymentTransactionId");
            notice.transaction = notice.refund_of.clone();
            notice.refund = Some(ProviderRefund {
                id: field("TransactionId")?,
                amount: amount()?,
                failed: false,
            });
        }
        Some(notice)
    }
}

fn made<T>(answer: Answer<T>) -> Result<T, ProviderError> {
    let reported = answer.message.unwrap_or_default();
    let model = answer.model.filter(|_| answer.success);
    model.ok_or(ProviderError::Refused(http::StatusCode::OK, reported))
}

/// Returns a JSON number with all digits of `text`, without a conversion to float.
fn number(text: &str) -> Result<Box<RawValue>, ProviderError> {
    RawValue::from_string(text.to_owned()).map_err(|error| ProviderError::Unread(error.into()))
}

fn is_signed_in_base64(secret: &str, over: &[u8], shown: &str) -> bool {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let shown = STANDARD.decode(shown.trim());
    shown.is_ok_and(|shown| is_signed(secret, &[over], &shown))
}

/// Returns the fields of a form or of a JSON object, with their values as text.
fn fields(body: &str) -> Option<HashMap<String, String>> {
    if body.trim_start().starts_with('{') {
        let fields: HashMap<String, Box<RawValue>> = serde_json::from_str(body).ok()?;
        let text = |value: &RawValue| {
            serde_json::from_str::<Option<String>>(value.get())
                .map(Option::unwrap_or_default)
                .unwrap_or_else(|_| value.get().to_owned())
        };
        let fields = fields.iter();
        return Some(
            fields
                .map(|(name, value)| (name.clone(), text(value)))
                .collect(),
        );
    }
    let pairs = body.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = |text: &str| decoded(&text.replace('+', " "));
            Some((plain(name)?, plain(value)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payment_notification_is_read_from_a_form_or_from_json() {
        let form = fields("TransactionId=455&Amount=10.00&Description=%D0%B0+b&Email=").unwrap();
        assert_eq!(form["Amount"], "10.00");
        assert_eq!(form["Description"], "а b");
        let json =
            fields(r#"{"TransactionId":455,"Amount":10.00,"Description":"а b","Email":null}"#);
        let json = json.unwrap();
        assert_eq!(
            (&*json["TransactionId"], &*json["Amount"]),
            ("455", "10.00")
        );
        assert_eq!(json["Description"], "а b");
        assert_eq!(json["Email"], "");
        assert!(fields("a=%zz").is_none() && fields("{").is_none());
    }
}

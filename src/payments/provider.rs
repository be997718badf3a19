//! The parts of requests to providers and of their answers that are the same for all providers.

use std::{fmt, time::Duration};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{
    HeaderMap, HeaderValue, Request, StatusCode,
    header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT},
    request::Builder,
};
use http_body_util::{BodyExt, Full, Limited};
use serde::de::DeserializeOwned;
use sha2::Sha256;
use tollgate_layers::{error::BoxError, money::MicroRub};

use super::{
    auto::SavedCard,
    cloudpayments::{CloudPayments, Question},
    intent::{DisputeStatus, Intent},
    stripe::Stripe,
    yookassa::YooKassa,
};
use crate::{net::https::HttpsClient, text::time::now_ms};

/// The timeout for a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// The largest size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// The maximum number of characters that are kept of a provider's error message.
const SAID_CHARS_MAX: usize = 200;

/// A provider of payments, with its own API.
#[derive(Clone, Debug)]
pub(super) enum Provider {
    YooKassa(YooKassa),
    CloudPayments(CloudPayments),
    Stripe(Stripe),
}

/// A payment created at the provider for an intent.
#[derive(Debug)]
pub(super) struct Created {
    /// The provider's id of the payment.
    pub(super) payment: String,
    /// The URL at which the payer pays.
    pub(super) url: String,
}

/// A payment as the provider reports it.
#[derive(Debug)]
pub(super) struct Seen {
    /// The provider's id of the transaction, from which the top-up's id is derived.
    pub(super) payment: String,
    /// The id of the intent that the payment's metadata names.
    pub(super) intent: Option<String>,
    pub(super) standing: Standing,
    pub(super) amount: Amount,
    /// The payment's refunds that were made, or have failed.
    pub(super) refunds: Vec<SeenRefund>,
    pub(super) disputes: Vec<SeenDispute>,
    /// The card that was saved with the payment.
    pub(super) card: SeenCard,
}

/// A provider's report about the card of a payment that should save one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum SeenCard {
    /// No report in this answer: the card is reported elsewhere, or no card was to be saved.
    #[default]
    Untold,
    /// The payment method cannot be saved.
    NotSaved,
    /// The provider has saved the card.
    Saved(SavedCard),
}

/// The outcome of charging a saved card. Money is booked only after the payment has been fetched.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Charged {
    /// A payment was created; if the payer must confirm it, contains the URL.
    Made {
        /// The provider's id of the payment that charges the card.
        payment: String,
        /// The URL at which the payer confirms the charge.
        url: Option<String>,
    },
    /// The payer must be present: only a payment by link is possible.
    NeedsPayer,
    /// The provider declined the charge, with this reason.
    Declined(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Pending,
    Succeeded,
    Canceled(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenRefund {
    pub(super) id: String,
    pub(super) amount: Amount,
    /// Whether the refund failed, so that the payer did not get it. The provider may have reported it as made before.
    pub(super) failed: bool,
}

/// A dispute as the provider reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenDispute {
    pub(super) id: String,
    pub(super) amount: Amount,
    pub(super) status: DisputeStatus,
    /// Whether the amount is taken off the account while the dispute is open or lost.
    pub(super) is_held: bool,
}

/// An amount with its currency, as the provider writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) value: String,
    pub(super) currency: String,
}

impl Amount {
    /// Returns the amount in rubles; `None` if it is in another currency or invalid.
    pub(super) fn rubles(&self) -> Option<MicroRub> {
        let rubles = self.currency.eq_ignore_ascii_case("RUB");
        rubles.then(|| self.value.parse().ok()).flatten()
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.value, self.currency)
    }
}

/// The contents of a notification. An unsigned notification is not trusted: it only causes a fetch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Notice {
    /// The provider's id of the payment.
    pub(super) payment: Option<String>,
    /// The id of the intent.
    pub(super) intent: Option<String>,
    /// The id of another object at the provider that leads to the intent, if the notification names neither payment nor
    /// intent. Only from a signed notification.
    pub(super) via: Option<String>,
    /// The provider's id of a payment that charged a saved card. The gateway may not have this id because the answer
    /// was lost. Only from a signed notification.
    pub(super) charge: Option<String>,
    /// The provider's id of the transaction, if a fetch of the payment may return another transaction. Only from a
    /// signed notification.
    pub(super) transaction: Option<String>,
    /// Whether the notification concerns money that is returned: a refund or a dispute.
    pub(super) is_refund: bool,
    /// The provider's id of a transaction that the notification reports as canceled.
    pub(super) canceled: Option<String>,
    /// Whether the notification reports a success. Then a payment that cannot be found yet will be found soon.
    pub(super) is_success: bool,
    /// A refund that cannot be fetched. Only from a signed notification.
    pub(super) refund: Option<SeenRefund>,
    /// The provider's id of the payment to which the refund belongs.
    pub(super) refund_of: Option<String>,
    /// The saved card, if the notification reports it. Only from a signed notification.
    pub(super) card: Option<SavedCard>,
    /// The provider's question whether it may take money.
    pub(super) question: Option<Question>,
}

impl Provider {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::YooKassa(_) => "yookassa",
            Self::CloudPayments(_) => "cloudpayments",
            Self::Stripe(_) => "stripe",
        }
    }

    /// Creates a payment for an intent. A repeated call with the same intent returns the same payment.
    pub(super) async fn create(
        &self,
        client: &HttpsClient,
        intent: &Intent,
    ) -> Result<Created, ProviderError> {
        match self {
            Self::YooKassa(shop) => shop.create(client, intent).await,
            Self::CloudPayments(site) => site.create(client, intent).await,
            Self::Stripe(stripe) => stripe.create(client, intent).await,
        }
    }

    /// Returns the current state of an intent's payment. Includes refunds if `refunds` is set or the payment has
    /// refunds.
    pub(super) async fn fetch(
        &self,
        client: &HttpsClient,
        intent: &Intent,
        payment: &str,
        refunds: bool,
    ) -> Result<Seen, ProviderError> {
        match self {
            Self::YooKassa(shop) => shop.fetch(client, intent, payment, refunds).await,
            Self::CloudPayments(site) => site.fetch(client, intent).await,
            Self::Stripe(stripe) => stripe.fetch(client, intent, payment, refunds).await,
        }
    }

    /// Charges a saved card for an intent. A repeated call with the same intent does not charge the card again.
    pub(super) async fn charge(
        &self,
        client: &HttpsClient,
        intent: &Intent,
        card: &SavedCard,
    ) -> Result<Charged, ProviderError> {
        match self {
            Self::YooKassa(shop) => shop.charge(client, intent, card).await,
            Self::CloudPayments(site) => site.charge(client, intent, card).await,
            Self::Stripe(stripe) => stripe.charge(client, intent, card).await,
        }
    }

    /// Deletes a saved card at the provider, if the provider supports that.
    pub(super) async fn forget(
        &self,
        client: &HttpsClient,
        card: &SavedCard,
    ) -> Result<(), ProviderError> {
        match self {
            // YooKassa and CloudPayments cannot delete a card; without the handle nobody can charge it.
            Self::YooKassa(_) | Self::CloudPayments(_) => Ok(()),
            Self::Stripe(stripe) => stripe.forget(client, card).await,
        }
    }

    /// Returns whether a decline for this reason is permanent.
    pub(super) fn is_for_good(reason: &str) -> bool {
        const FOR_GOOD: [&str; 14] = [
            // YooKassa's reasons:
            "permission_revoked",
            "card_expired",
            "invalid_card_number",
            "payment_method_restricted",
            // Stripe's reasons:
            "expired_card",
            "lost_card",
            "stolen_card",
            "pickup_card",
            "revocation_of",
            // CloudPayments' reasons:
            "LostCard",
            "StolenCard",
            "ExpiredCard",
            "RestrictedCard",
            "PickUpCard",
        ];
        FOR_GOOD.iter().any(|word| reason.contains(word))
    }

    /// Requests from the provider the id of the intent to which [`Notice::via`] leads.
    pub(super) async fn intent_of(
        &self,
        client: &HttpsClient,
        via: &str,
    ) -> Result<Option<String>, ProviderError> {
        match self {
            Self::YooKassa(_) | Self::CloudPayments(_) => Ok(None),
            Self::Stripe(stripe) => stripe.intent_of(client, via).await,
        }
    }

    /// Returns the current state of [`Notice::transaction`], if a fetch of the payment may return another transaction.
    pub(super) async fn transaction(
        &self,
        client: &HttpsClient,
        transaction: &str,
    ) -> Result<Option<Seen>, ProviderError> {
        match self {
            Self::YooKassa(_) | Self::Stripe(_) => Ok(None),
            Self::CloudPayments(site) => site.transaction(client, transaction).await,
        }
    }

    /// Cancels an unpaid link that would never expire by itself.
    pub(super) async fn withdraw(
        &self,
        client: &HttpsClient,
        payment: &str,
    ) -> Result<bool, ProviderError> {
        match self {
            // Links of YooKassa and Stripe expire by themselves.
            Self::YooKassa(_) | Self::Stripe(_) => Ok(false),
            Self::CloudPayments(site) => site.withdraw(client, payment).await.map(|()| true),
        }
    }

    /// Reads a notification; `None` if it is malformed or its signature is missing or invalid.
    pub(super) fn read(&self, query: &str, headers: &HeaderMap, body: &[u8]) -> Option<Notice> {
        match self {
            Self::YooKassa(_) => YooKassa::read(body),
            Self::CloudPayments(site) => site.read(query, headers, body),
            Self::Stripe(stripe) => stripe.read(headers, body, now_ms()),
        }
    }

    /// The answer body for a notification that was handled or needs no handling.
    pub(super) const fn thanks(&self) -> &'static str {
        match self {
            Self::CloudPayments(_) => r#"{"code":0}"#,
            Self::YooKassa(_) | Self::Stripe(_) => "",
        }
    }
}

/// The reason why a request to a provider failed.
#[derive(Debug)]
pub enum ProviderError {
    /// The provider did not answer in time.
    Timeout,
    /// The provider could not be reached.
    Unreached(BoxError),
    /// The provider does not have the requested object.
    NotFound,
    /// The provider refused the credentials or the request, and would also refuse a retry.
    Refused(StatusCode, String),
    /// The provider answered with another error status, so a retry may succeed.
    Answered(StatusCode, String),
    /// The answer could not be parsed.
    Unread(BoxError),
}

impl ProviderError {
    /// Returns whether a retry may succeed.
    pub(crate) const fn may_pass(&self) -> bool {
        !matches!(self, Self::NotFound | Self::Refused(..))
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => write!(f, "no answer within {} s", ANSWER_TIMEOUT.as_secs()),
            Self::Unreached(_) => f.write_str("could not be reached"),
            Self::NotFound => f.write_str("the provider has no such payment"),
            Self::Refused(status, said) | Self::Answered(status, said) => {
                write!(f, "answered {status}: {said}")
            }
            Self::Unread(_) => f.write_str("the provider's answer cannot be read"),
        }
    }
}

impl std::error::Error for ProviderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreached(error) | Self::Unread(error) => Some(&**error),
            _ => None,
        }
    }
}

/// Sends a request once, and parses the JSON of the answer.
pub(super) async fn ask<T: DeserializeOwned>(
    client: &HttpsClient,
    req: Builder,
    body: Bytes,
) -> Result<T, ProviderError> {
    let (status, body) = answer(client, req, body).await?;
    if status == StatusCode::NOT_FOUND {
        return Err(ProviderError::NotFound);
    }
    if !status.is_success() {
        return Err(not_done(status, &body));
    }
    serde_json::from_slice(&body).map_err(|error| ProviderError::Unread(error.into()))
}

/// Sends a request once, without retries, and returns the status and body of the answer.
pub(super) async fn answer(
    client: &HttpsClient,
    req: Builder,
    body: Bytes,
) -> Result<(StatusCode, Bytes), ProviderError> {
    let req: Request<Full<Bytes>> = req
        .header(ACCEPT, HeaderValue::from_static("application/json"))
        .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"))
        .header(
            USER_AGENT,
            HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION"))),
        )
        .body(Full::new(body))
        .map_err(|error| ProviderError::Unread(error.into()))?;
    let answer = async {
        let res = client
            .request(req)
            .await
            .map_err(|error| ProviderError::Unreached(error.into()))?;
        let status = res.status();
        let body = Limited::new(res.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await;
        let body = body.map_err(ProviderError::Unreached)?;
        Ok((status, body.to_bytes()))
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
    answer.unwrap_or(Err(ProviderError::Timeout))
}

/// Returns the error for an answer whose status is not a success.
pub(super) fn not_done(status: StatusCode, body: &[u8]) -> ProviderError {
    let said: String = String::from_utf8_lossy(body)
        .chars()
        .filter(|c| !c.is_control())
        .take(SAID_CHARS_MAX)
        .collect();
    // Rate limits, timeouts, a concurrent request with the same key, and server errors are transient.
    let passes = status.is_server_error()
        || matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT
        );
    if passes {
        ProviderError::Answered(status, said)
    } else {
        ProviderError::Refused(status, said)
    }
}

/// Returns whether `shown` is the HMAC-SHA256 of these parts, compared in constant time.
pub(super) fn is_signed(secret: &str, parts: &[&[u8]], shown: &[u8]) -> bool {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC accepts keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.verify_slice(shown).is_ok()
}

/// Builds the value of `Authorization`, marked as sensitive.
pub(super) fn basic(user: &str, password: &str) -> HeaderValue {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let text = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
    let mut value = HeaderValue::try_from(text).expect("base64 is plain ASCII");
    value.set_sensitive(true);
    value
}

//! The parts of requests and responses that all payment providers have in common.

use std::{fmt, time::Duration};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{
    HeaderValue, Request, StatusCode,
    header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT},
    request::Builder,
};
use http_body_util::{BodyExt, Full, Limited};
use serde::{Deserialize, de::DeserializeOwned};
use sha2::Sha256;
use tollgate_layers::{error::BoxError, money::MicroRub};

use super::{
    auto::SavedCard,
    intent::{DisputeStatus, Intent, State},
};
use crate::net::https::{self, HttpsClient};

/// How long to wait for a provider's complete response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of a provider's response, in bytes.
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// How many characters of a provider's error message are kept.
const MESSAGE_CHARS_MAX: usize = 200;

/// A payment that the provider has created for an intent.
#[derive(Debug)]
pub(super) struct Created {
    /// The payment's id at the provider.
    pub(super) payment: String,
    /// The URL at which the payer pays.
    pub(super) url: String,
}

/// The state of a payment, as the provider reports it.
#[derive(Debug, Default)]
pub(super) struct ProviderPayment {
    /// The transaction's id at the provider. The id of the top-up is derived from it.
    pub(super) payment: String,
    /// The id of the intent, if the payment's metadata contains one.
    pub(super) intent: Option<String>,
    pub(super) provider_status: ProviderStatus,
    pub(super) amount: Amount,
    /// The refunds of the payment that were made or have failed.
    pub(super) refunds: Vec<ProviderRefund>,
    pub(super) disputes: Vec<ProviderDispute>,
    /// The provider's report about saving the payment's card.
    pub(super) card: CardReport,
}

/// A provider's report about the card of a payment that is to save a card.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum CardReport {
    /// The response does not mention a card: another message reports it, or no card was to be saved.
    #[default]
    NotReported,
    /// The payer's payment method cannot be saved.
    NotSaved,
    /// The provider has saved the card.
    Saved(SavedCard),
}

/// The outcome of a request to charge a saved card. Money is booked only after the payment has been fetched.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Charged {
    /// The provider has created a payment.
    Made {
        /// The id at the provider of the payment that charges the card.
        payment: String,
        /// The URL at which the payer must confirm the charge; `None` if no confirmation is needed.
        url: Option<String>,
    },
    /// The provider requires that the payer takes part, so the payment can be made only by a link.
    NeedsPayer,
    /// The provider declined the charge; contains the provider's reason.
    Declined(String),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum ProviderStatus {
    #[default]
    Pending,
    Succeeded,
    Canceled(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderRefund {
    pub(super) id: String,
    pub(super) amount: Amount,
    /// Whether the refund failed, so the payer did not get the money. Before the failure, the provider may have
    /// reported the refund as made.
    pub(super) failed: bool,
}

/// A dispute as the provider reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderDispute {
    pub(super) id: String,
    pub(super) amount: Amount,
    pub(super) status: DisputeStatus,
    /// Whether the disputed amount must be taken off the account: the dispute is open or lost, and the bank has the
    /// money.
    pub(super) is_held: bool,
}

/// An amount with its currency, in the form in which the provider writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Amount {
    pub(super) value: String,
    pub(super) currency: String,
}

impl Amount {
    /// Returns the amount in rubles; `None` if the currency is not the ruble or the amount is invalid.
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

/// The contents of a provider's notification. A notification that is not signed only causes a fetch, and its contents
/// are not trusted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Notice {
    /// The payment's id at the provider.
    pub(super) payment: Option<String>,
    /// The id of the intent.
    pub(super) intent: Option<String>,
    /// The id at the provider of another object that leads to the intent, if the notification names neither a payment
    /// nor an intent. Taken only from signed notifications.
    pub(super) via: Option<String>,
    /// The id at the provider of a payment that charged a saved card. The gateway does not have this id yet if the
    /// provider's response was lost. Taken only from signed notifications.
    pub(super) charge: Option<String>,
    /// The transaction's id at the provider, if a fetch of the payment could return another transaction. Taken only
    /// from signed notifications.
    pub(super) transaction: Option<String>,
    /// Whether the notification is about money that goes back to the payer: a refund or a dispute.
    pub(super) is_refund: bool,
    /// The id at the provider of a transaction that the notification reports as canceled.
    pub(super) canceled: Option<String>,
    /// Whether the notification reports a success. If it does and a fetch finds no payment yet, a later fetch will.
    pub(super) is_success: bool,
    /// A refund, if the provider's API cannot return it. Taken only from signed notifications.
    pub(super) refund: Option<ProviderRefund>,
    /// The id at the provider of the payment that was refunded.
    pub(super) refund_of: Option<String>,
    /// The saved card, if the notification reports one. Taken only from signed notifications.
    pub(super) card: Option<SavedCard>,
    /// The provider's question whether it may take the money, if the notification contains this question.
    pub(super) question: Option<Question>,
}

/// A `Check` notification, by which the provider requests permission to take the money. The gateway's response can
/// refuse the payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(super) account: Option<String>,
    pub(super) amount: Amount,
}

/// The code with which the gateway answers a `Check` notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The provider may take the money.
    Good = 0,
    /// There is no intent with the id that the provider sent.
    NoIntent = 10,
    /// The intent belongs to another account than the notification states.
    OtherAccount = 11,
    /// The intent has another amount than the notification states.
    OtherAmount = 12,
    /// The intent is already paid.
    Paid = 13,
    /// The intent has expired.
    Over = 20,
}

impl Question {
    pub(super) fn verdict(&self, intent: Option<&Intent>) -> Verdict {
        let Some(intent) = intent else {
            return Verdict::NoIntent;
        };
        let account = self.account.as_deref();
        if account.is_some_and(|account| account != &*intent.account) {
            return Verdict::OtherAccount;
        }
        if self.amount.rubles() != Some(intent.amount_rub) {
            return Verdict::OtherAmount;
        }
        match intent.state {
            State::Creating | State::Open => Verdict::Good,
            State::Paid | State::Refused => Verdict::Paid,
            State::Canceled => Verdict::Over,
        }
    }
}

/// Why a request to a provider failed.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The provider did not respond in time.
    #[error("no answer within {seconds} s", seconds = RESPONSE_TIMEOUT.as_secs())]
    Timeout,
    /// The provider could not be reached.
    #[error("could not be reached")]
    Unreached(#[source] BoxError),
    /// The provider does not have the object that was requested.
    #[error("the provider has no such payment")]
    NotFound,
    /// The provider refused the credentials or the request. A retry would be refused as well.
    #[error("answered {0}: {1}")]
    Refused(StatusCode, String),
    /// The provider answered with another error status. A retry may succeed.
    #[error("answered {0}: {1}")]
    Answered(StatusCode, String),
    /// The provider's response could not be parsed.
    #[error("the provider's answer cannot be read")]
    Unread(#[source] BoxError),
}

impl ProviderError {
    /// Returns whether a retry of the request may succeed.
    pub(crate) const fn may_pass(&self) -> bool {
        !matches!(self, Self::NotFound | Self::Refused(..))
    }
}

/// Sends a request to a provider once, and parses the JSON of the response.
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
    read(&body)
}

/// Parses the JSON of a response.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ProviderError> {
    serde_json::from_slice(body).map_err(|error| ProviderError::Unread(error.into()))
}

/// Sends a request to a provider once, without retries, and returns the status and the body of the response.
pub(super) async fn answer(
    client: &HttpsClient,
    req: Builder,
    body: Bytes,
) -> Result<(StatusCode, Bytes), ProviderError> {
    let req: Request<Full<Bytes>> = req
        .header(ACCEPT, HeaderValue::from_static("application/json"))
        .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"))
        .header(USER_AGENT, https::USER_AGENT)
        .body(Full::new(body))
        .map_err(|error| ProviderError::Unread(error.into()))?;
    let answer = async {
        let res = client.request(req).await;
        let res = res.map_err(|error| ProviderError::Unreached(error.into()))?;
        let status = res.status();
        let body = Limited::new(res.into_body(), RESPONSE_BYTES_MAX);
        let body = body.collect().await.map_err(ProviderError::Unreached)?;
        Ok((status, body.to_bytes()))
    };
    let answer = tokio::time::timeout(RESPONSE_TIMEOUT, answer).await;
    answer.unwrap_or(Err(ProviderError::Timeout))
}

/// Returns the error for a response with this status, which is not a success.
pub(super) fn not_done(status: StatusCode, body: &[u8]) -> ProviderError {
    let reported: String = String::from_utf8_lossy(body)
        .chars()
        .filter(|c| !c.is_control())
        .take(MESSAGE_CHARS_MAX)
        .collect();
    // These failures are transient: rate limits, timeouts, a concurrent request with the same key, and server errors.
    let passes = status.is_server_error()
        || matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT
        );
    if passes {
        ProviderError::Answered(status, reported)
    } else {
        ProviderError::Refused(status, reported)
    }
}

/// Returns whether `shown` is the HMAC-SHA256 of these parts. Compares in constant time.
pub(super) fn is_signed(secret: &str, parts: &[&[u8]], shown: &[u8]) -> bool {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC accepts keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.verify_slice(shown).is_ok()
}

/// Returns the value of an `Authorization` header with Basic authentication, marked as sensitive.
pub(super) fn basic(user: &str, password: &str) -> HeaderValue {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let text = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
    let mut value = HeaderValue::try_from(text).expect("base64 is plain ASCII");
    value.set_sensitive(true);
    value
}

//! The parts of requests to providers, and of their answers, that are the same for all providers.

use std::{fmt, time::Duration};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{
    HeaderValue, Request, StatusCode,
    header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT},
    request::Builder,
};
use http_body_util::{BodyExt, Full, Limited};
use serde::de::DeserializeOwned;
use sha2::Sha256;
use tollgate_layers::{error::BoxError, money::MicroRub};

use super::{
    auto::SavedCard,
    intent::{DisputeStatus, Intent, State},
};
use crate::net::https::HttpsClient;

/// The timeout for a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// The largest size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// The maximum number of characters that are kept of a provider's error message.
const SAID_CHARS_MAX: usize = 200;

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
    pub(super) provider_status: ProviderStatus,
    pub(super) amount: Amount,
    /// The payment's refunds that were made, or have failed.
    pub(super) refunds: Vec<SeenRefund>,
    pub(super) disputes: Vec<SeenDispute>,
    /// The card that was saved with the payment.
    pub(super) card: SeenCard,
}

/// A provider's report about the card of a payment that should save a card.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum SeenCard {
    /// This answer has no report about a card: the card is reported elsewhere, or no card was to be saved.
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
    /// A payment was created. If the payer must confirm it, contains the URL for that.
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
pub(super) enum ProviderStatus {
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
    /// The provider's id of another object from which the intent can be found, if the notification names neither a
    /// payment nor an intent. Only from a signed notification.
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

/// A `Check` notification, which the provider sends before it takes money. The gateway's answer may refuse the payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(super) account: Option<String>,
    pub(super) amount: Amount,
}

/// The answer codes to a `Check` notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The provider may take the money.
    Good = 0,
    /// No intent has the id that the provider sent.
    NoIntent = 10,
    /// The intent belongs to another account.
    OtherAccount = 11,
    /// The intent has another amount.
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
        if self
            .account
            .as_deref()
            .is_some_and(|account| account != &*intent.account)
        {
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
            Self::Refused(status, reported) | Self::Answered(status, reported) => {
                write!(f, "answered {status}: {reported}")
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
    let reported: String = String::from_utf8_lossy(body)
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
        ProviderError::Answered(status, reported)
    } else {
        ProviderError::Refused(status, reported)
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

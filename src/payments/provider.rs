//! What a provider is asked and answers, whichever one it is.

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
    intent::Intent,
    stripe::Stripe,
    yookassa::YooKassa,
};
use crate::{admin::now_ms, node::https::HttpsClient};

/// Time for a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Most bytes of one.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// How much of what a provider said is kept.
const SAID_CHARS_MAX: usize = 200;

/// A provider of payments.
#[derive(Clone, Debug)]
pub(super) enum Provider {
    YooKassa(YooKassa),
    CloudPayments(CloudPayments),
    Stripe(Stripe),
}

/// A payment that the provider has made for an intent.
#[derive(Debug)]
pub(super) struct Created {
    /// The provider's id for it.
    pub(super) payment: String,
    /// Where the payer pays.
    pub(super) url: String,
}

/// A payment as the provider has it.
#[derive(Debug)]
pub(super) struct Seen {
    /// The provider's id for the money, of which the id of the top-up is made.
    pub(super) payment: String,
    /// The intent that it says it is for.
    pub(super) intent: Option<String>,
    pub(super) standing: Standing,
    pub(super) amount: Amount,
    /// Refunds that have been made.
    pub(super) refunds: Vec<SeenRefund>,
    /// The card that it was to be saved with.
    pub(super) card: SeenCard,
}

/// What a provider says of the card of a payment that saves one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum SeenCard {
    /// Nothing here: it is told elsewhere, or no card was to be saved.
    #[default]
    Untold,
    /// It was paid in a way that cannot be saved.
    NotSaved,
    /// It is kept.
    Saved(SavedCard),
}

/// What came of charging a saved card. Money is believed in only once the payment is fetched.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Charged {
    /// There is a payment; where the payer has to confirm it, at this address.
    Made {
        /// The provider's id for it.
        payment: String,
        /// Where it is confirmed.
        url: Option<String>,
    },
    /// The payer has to be there: only a payment by a link can be had.
    NeedsPayer,
    /// There is no money, and why.
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
}

/// An amount in some currency, as a provider writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) value: String,
    pub(super) currency: String,
}

impl Amount {
    /// `None`: it is no amount of rubles.
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

/// What a notification names. Of an unsigned one nothing is believed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Notice {
    /// The provider's payment.
    pub(super) payment: Option<String>,
    /// The intent.
    pub(super) intent: Option<String>,
    /// What the provider knows the intent of, where neither stands in it: of a signed one.
    pub(super) via: Option<String>,
    /// What a card was charged by: a payment that may not be known, where the answer was lost. Of a signed one.
    pub(super) charge: Option<String>,
    /// The provider's number of the money, where the payment alone does not lead to it: of a signed one.
    pub(super) transaction: Option<String>,
    /// Whether it is about a refund.
    pub(super) is_refund: bool,
    /// Whether it says that the money is there: what cannot be found yet will be soon.
    pub(super) is_success: bool,
    /// The refund, where it cannot be fetched: of a signed one.
    pub(super) refund: Option<SeenRefund>,
    /// The payment that this refund is of.
    pub(super) refund_of: Option<String>,
    /// The card that is kept, where it is told here: by a signed one.
    pub(super) card: Option<SavedCard>,
    /// Whether the money may be taken, which is asked before it is.
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

    /// Makes a payment for an intent: the same intent again is the same payment.
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

    /// The payment of an intent as it is now, with its refunds if `refunds` asks for them or it says that it has some.
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

    /// Charges a saved card for an intent: the same intent again is the same charge.
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

    /// Lets the provider forget a card, where it can be told to.
    pub(super) async fn forget(
        &self,
        client: &HttpsClient,
        card: &SavedCard,
    ) -> Result<(), ProviderError> {
        match self {
            // They have no call for it: without the handle nobody can charge it.
            Self::YooKassa(_) | Self::CloudPayments(_) => Ok(()),
            Self::Stripe(stripe) => stripe.forget(client, card).await,
        }
    }

    /// Whether a card is not to be tried again that was declined for this.
    pub(super) fn is_for_good(reason: &str) -> bool {
        const FOR_GOOD: [&str; 14] = [
            // YooKassa
            "permission_revoked",
            "card_expired",
            "invalid_card_number",
            "payment_method_restricted",
            // Stripe
            "expired_card",
            "lost_card",
            "stolen_card",
            "pickup_card",
            "revocation_of",
            // CloudPayments
            "LostCard",
            "StolenCard",
            "ExpiredCard",
            "RestrictedCard",
            "PickUpCard",
        ];
        FOR_GOOD.iter().any(|word| reason.contains(word))
    }

    /// The intent that the provider has for [`Notice::via`].
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

    /// The money of [`Notice::transaction`] as it is now, where the payment alone may lead to other money.
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

    /// Takes a link back that nobody has paid by, where it would be good for ever.
    pub(super) async fn withdraw(
        &self,
        client: &HttpsClient,
        payment: &str,
    ) -> Result<bool, ProviderError> {
        match self {
            // They expire by themselves.
            Self::YooKassa(_) | Self::Stripe(_) => Ok(false),
            Self::CloudPayments(site) => site.withdraw(client, payment).await.map(|()| true),
        }
    }

    /// What a notification names; `None`: it cannot be read, or is not signed as it has to be.
    pub(super) fn read(&self, query: &str, headers: &HeaderMap, body: &[u8]) -> Option<Notice> {
        match self {
            Self::YooKassa(_) => YooKassa::read(body),
            Self::CloudPayments(site) => site.read(query, headers, body),
            Self::Stripe(stripe) => stripe.read(headers, body, now_ms()),
        }
    }

    /// What a notification is answered that has done what it should, or about which there is nothing to do.
    pub(super) const fn thanks(&self) -> &'static str {
        match self {
            Self::CloudPayments(_) => r#"{"code":0}"#,
            Self::YooKassa(_) | Self::Stripe(_) => "",
        }
    }
}

/// Why a provider did not do what it was asked.
#[derive(Debug)]
pub enum ProviderError {
    /// It did not answer in time.
    Timeout,
    /// It was not reached.
    Unreached(BoxError),
    /// It has no such thing.
    NotFound,
    /// It refuses us or what we ask, and will again.
    Refused(StatusCode, String),
    /// It answered something else.
    Answered(StatusCode, String),
    /// Its answer cannot be read.
    Unread(BoxError),
}

impl ProviderError {
    /// Whether the same may be answered otherwise later.
    pub(crate) const fn may_pass(&self) -> bool {
        !matches!(self, Self::NotFound | Self::Refused(..))
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => write!(f, "no answer within {} s", ANSWER_TIMEOUT.as_secs()),
            Self::Unreached(_) => f.write_str("not reached"),
            Self::NotFound => f.write_str("it has no such payment"),
            Self::Refused(status, said) | Self::Answered(status, said) => {
                write!(f, "answered {status}: {said}")
            }
            Self::Unread(_) => f.write_str("its answer cannot be read"),
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

/// Asks once, and reads the answer's JSON.
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

/// Asks once.
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

/// What an answer means that is none of success.
pub(super) fn not_done(status: StatusCode, body: &[u8]) -> ProviderError {
    let said: String = String::from_utf8_lossy(body)
        .chars()
        .filter(|c| !c.is_control())
        .take(SAID_CHARS_MAX)
        .collect();
    // A limit of requests, a timeout, the same request under way, and a fault of theirs pass.
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

/// Whether `shown` is the HMAC-SHA256 of these parts, told in constant time.
pub(super) fn is_signed(secret: &str, parts: &[&[u8]], shown: &[u8]) -> bool {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length is a key");
    parts.iter().for_each(|part| mac.update(part));
    mac.verify_slice(shown).is_ok()
}

/// For `Authorization`, marked as a secret.
pub(super) fn basic(user: &str, password: &str) -> HeaderValue {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let text = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
    let mut value = HeaderValue::try_from(text).expect("base64 is plain ASCII");
    value.set_sensitive(true);
    value
}

//! Payments: `POST /payments/<provider>` accepts providers' notifications, and `/v1/<service>/payments` lets the holder
//! of a key start a payment.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header::RETRY_AFTER};
use serde::Serialize;
use serde_json::{Map, Value};
use tollgate_layers::{
    Error,
    body::{AnswerBody, full},
    error::{Limit, Problem},
    facts::Caller,
    key::KeyRecord,
    money::MicroRub,
};

use crate::{
    config::{PaymentsConfig, is_email, is_whole_kopecks},
    edge::{
        body_limit::UnreadBody,
        routes::{Matched, Route},
    },
    endpoints::{
        error::EndpointError, handler::Handler, key_info::no_books, own_keys::read,
        params::unknown_field, reply,
    },
    payments::{
        AutoShown, Intent, IntentId, NewAutoTopup, NewPayment, Notified, PaymentError, Payments,
        State,
    },
    text::{causes::chain, time::rfc3339},
};

/// The delay after which a provider should repeat a notification, in seconds.
const AGAIN_SECONDS: &str = "30";
/// The delay after which a key's holder may start another payment.
const WAIT: Duration = Duration::from_secs(60);
const MICRO: i64 = 1_000_000;

/// Serves notifications of payment providers.
#[derive(Clone, Debug)]
pub struct Notifications(pub(crate) Payments);

impl Handler<UnreadBody> for Notifications {
    async fn handle(self, req: Request<UnreadBody>) -> Result<Response<AnswerBody>, Error> {
        let Self(payments) = self;
        let provider = Matched::from_request(&req)?.parameter.clone();
        let provider = provider.as_deref().unwrap_or_default();
        let (head, body) = req.into_parts();
        if !payments.has(provider) {
            return Err(Error::PathUnknown);
        }
        let Ok(body) = body.whole().await else {
            return Ok(response(StatusCode::BAD_REQUEST, Bytes::new()));
        };
        let query = head.uri.query().unwrap_or_default();
        let notified = payments.notified(provider, query, &head.headers, &body);
        Ok(match notified.await {
            Notified::Done(thanks) => response(StatusCode::OK, thanks.into()),
            Notified::Answer(code) => {
                response(StatusCode::OK, format!("{{\"code\":{code}}}").into())
            }
            Notified::NoProvider => return Err(Error::PathUnknown),
            Notified::Unread => response(StatusCode::BAD_REQUEST, Bytes::new()),
            Notified::Later => {
                let mut res = response(StatusCode::SERVICE_UNAVAILABLE, Bytes::new());
                let again = HeaderValue::from_static(AGAIN_SECONDS);
                res.headers_mut().insert(RETRY_AFTER, again);
                res
            }
        })
    }
}

fn response(status: StatusCode, body: Bytes) -> Response<AnswerBody> {
    let mut res = Response::new(full(body));
    *res.status_mut() = status;
    res
}

/// Serves a key's holder: returns the bounds of payments and the unpaid payments, or creates a payment. Must be below
/// `auth`, which identifies the key.
#[derive(Clone, Debug)]
pub struct KeyPayments(pub(crate) Payments);

const FIELDS: &[&str] = &["amount_rub", "email", "provider"];
const AUTO_FIELDS: &[&str] = &[
    "below_rub",
    "amount_rub",
    "month_max_rub",
    "email",
    "provider",
];

/// The account's automatic top-up rule, if it has one.
#[derive(Serialize)]
struct AutoOffer {
    auto_topup: Option<AutoShown>,
}

#[derive(Serialize)]
struct Offer {
    min_rub: MicroRub,
    max_rub: MicroRub,
    providers: Vec<&'static str>,
    /// The account's debt for refunds.
    debt_rub: MicroRub,
    payments: Vec<Shown>,
}

/// A payment's intent, as the payer sees it.
#[derive(Serialize)]
struct Shown {
    id: IntentId,
    amount_rub: MicroRub,
    provider: String,
    state: State,
    url: Option<String>,
    created_at: String,
}

impl From<Intent> for Shown {
    fn from(intent: Intent) -> Self {
        Self {
            id: intent.id,
            amount_rub: intent.amount_rub,
            provider: intent.provider,
            state: intent.state,
            url: intent.url,
            created_at: rfc3339(intent.created_ms),
        }
    }
}

impl KeyPayments {
    async fn offer(&self, key: &KeyRecord, config: &PaymentsConfig) -> Result<Offer, Error> {
        let open = self.0.open_of(&key.account).await;
        let open = open.map_err(|error| refusal(error, config))?;
        let debt_rub = self.0.debt_of(&key.account).await;
        let debt_rub = debt_rub.map_err(|error| refusal(error.into(), config))?;
        Ok(Offer {
            min_rub: config.min,
            max_rub: config.max,
            providers: self.0.providers(),
            debt_rub,
            payments: open.into_iter().map(Shown::from).collect(),
        })
    }

    async fn create(
        &self,
        key: &KeyRecord,
        config: &PaymentsConfig,
        fields: &Map<String, Value>,
    ) -> Result<Shown, Error> {
        let amount = rubles(fields, "amount_rub")?;
        let email = text(fields, "email")?;
        is_payable(amount, email.as_deref(), config)?;
        let wanted = NewPayment {
            id: IntentId::new(),
            account: key.account.clone(),
            amount,
            provider: self.or_first(text(fields, "provider")?),
            email,
            by: format!("key:{}", key.id),
            saves_card: false,
        };
        let made = self.0.create(wanted).await;
        let made = made.map_err(|error| refusal(error, config))?;
        tracing::info!(
            target: "audit", who = made.by, what = "payment.create", account = %made.account, intent = %made.id,
            provider = made.provider, amount_rub = %made.amount_rub
        );
        Ok(made.into())
    }

    fn or_first(&self, provider: Option<String>) -> Option<String> {
        let providers = self.0.providers();
        provider.or_else(|| providers.first().map(|&name| name.to_owned()))
    }

    /// Serves `/payments/auto`: returns the account's automatic top-up rule, or changes the rule. A change requires an
    /// owner key.
    async fn auto(
        &self,
        key: &KeyRecord,
        config: &PaymentsConfig,
        req: Request<UnreadBody>,
    ) -> Result<Response<AnswerBody>, Error> {
        let account = &key.account;
        if req.method() == Method::GET {
            let auto_topup = match self.0.auto_of(account).await {
                Ok(rule) => Some(rule),
                Err(PaymentError::NoRule) => None,
                Err(error) => return Err(refusal(error, config)),
            };
            return Ok(reply::json(&AutoOffer { auto_topup }));
        }
        if !key.is_owner() {
            return Err(Error::custom(EndpointError::OwnerKeyNeeded));
        }
        let who = format!("key:{}", key.id);
        if req.method() == Method::DELETE {
            match self.0.remove_auto(account).await {
                Ok(_) => {
                    tracing::info!(target: "audit", who, what = "account.auto_topup_remove", account = %account);
                }
                // The account already has no rule, so the request to remove the rule has succeeded.
                Err(PaymentError::NoRule) => {}
                Err(error) => return Err(refusal(error, config)),
            }
            return Ok(reply::json(&AutoOffer { auto_topup: None }));
        }
        let fields = &fields(req.into_body(), AUTO_FIELDS).await?;
        let [below, amount, month_max] = [
            rubles(fields, "below_rub")?,
            rubles(fields, "amount_rub")?,
            rubles(fields, "month_max_rub")?,
        ];
        let email = text(fields, "email")?;
        is_payable(amount, email.as_deref(), config)?;
        let wanted = NewAutoTopup {
            id: IntentId::new(),
            account: account.clone(),
            below,
            amount,
            month_max,
            provider: self.or_first(text(fields, "provider")?),
            email,
            by: who.clone(),
        };
        let made = self.0.set_auto(wanted).await;
        let made = made.map_err(|error| refusal(error, config))?;
        tracing::info!(
            target: "audit", who, what = "account.auto_topup", account = %account, below_rub = %below, amount_rub = %amount,
            month_max_rub = %month_max
        );
        Ok(reply::json(&AutoOffer {
            auto_topup: Some(made),
        }))
    }
}

/// Returns the fields of a body. Unknown fields are refused, so that a misspelt field is not ignored.
async fn fields(body: UnreadBody, known: &[&str]) -> Result<Map<String, Value>, Error> {
    let fields = read(body).await?;
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(fields),
        Some(name) => Err(unknown_field(name)),
    }
}

fn rubles(fields: &Map<String, Value>, name: &'static str) -> Result<MicroRub, Error> {
    let value = fields.get(name);
    let value = value.ok_or_else(|| Error::invalid(name, Problem::Missing))?;
    let amount = value.as_str().and_then(|text| text.parse().ok());
    amount
        .filter(|amount| *amount > MicroRub::ZERO && is_whole_kopecks(*amount))
        .ok_or_else(|| Error::invalid(name, Problem::NotKopecks))
}

fn text(fields: &Map<String, Value>, name: &'static str) -> Result<Option<String>, Error> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Error::invalid(name, Problem::WrongType("string"))),
    }
}

/// Checks that the amount is within the bounds for a key's holder, and that the email address for the receipt is valid.
fn is_payable(amount: MicroRub, email: Option<&str>, config: &PaymentsConfig) -> Result<(), Error> {
    // The limits are shown in whole rubles: the minimum is rounded up, the maximum is rounded down.
    let rubles = |micro: i64| u64::try_from(micro / MICRO).unwrap_or_default();
    let (field, problem) = if amount < config.min {
        let least = config.min.micro().saturating_add(MICRO - 1);
        ("amount_rub", Problem::BelowMin(rubles(least)))
    } else if amount > config.max {
        let most = config.max.micro();
        ("amount_rub", Problem::AboveMax(rubles(most)))
    } else if email.is_some_and(|email| !is_email(email)) {
        let wanted = "an email address, for example name@example.com";
        ("email", Problem::WrongType(wanted))
    } else {
        return Ok(());
    };
    Err(Error::invalid(field, problem))
}

impl Handler<UnreadBody> for KeyPayments {
    async fn handle(self, req: Request<UnreadBody>) -> Result<Response<AnswerBody>, Error> {
        let Caller(key) = Caller::of(&req)?;
        let key = key.clone();
        let config = self.0.config().filter(|config| config.is_offered());
        let config = config.ok_or(Error::PathUnknown)?;
        if Matched::from_request(&req)?.route == Route::AutoTopup {
            return self.auto(&key, config, req).await;
        }
        if req.method() == Method::GET {
            return Ok(reply::json(&self.offer(&key, config).await?));
        }
        let fields = fields(req.into_body(), FIELDS).await?;
        Ok(reply::json(&self.create(&key, config, &fields).await?))
    }
}

fn refusal(error: PaymentError, config: &PaymentsConfig) -> Error {
    match error {
        PaymentError::Ledger(error) => no_books(error),
        PaymentError::TooMany(_) => Error::TooManyRequests {
            limit: Limit::Requests,
            retry_after: WAIT.max(config.poll),
        },
        PaymentError::Rule(field, _) => {
            let problem = match field {
                "amount_rub" => Problem::LessThan("below_rub"),
                "month_max_rub" => Problem::LessThan("amount_rub"),
                _ => Problem::NotKopecks,
            };
            Error::invalid(field, problem)
        }
        PaymentError::NoProvider(_) => {
            Error::invalid("provider", Problem::NotOneOf("the configured providers"))
        }
        error @ PaymentError::Provider(..) => {
            tracing::warn!(
                error = chain(&error),
                "the payment provider did not create a payment"
            );
            Error::Overloaded
        }
        error => Error::Internal(error.into()),
    }
}

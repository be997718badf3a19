//! Endpoints for payments through providers: create, list, resolve. Received and refunded amounts are entries of the
//! journal.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use tollgate_layers::{key::AccountId, money::MicroRub};

use super::{
    Admin, Answer, Right,
    fields::Fields,
    ok,
    query::Query,
    refusal::Refusal,
    route::{AdminRequest, Route, routes},
};
use crate::{
    api::fields,
    config::is_email,
    payments::{Intent, IntentId, NewPayment, PaymentError, State},
    text::time::rfc3339,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/payments" => list_payments .with_query();
    post "/admin/v1/payments" => create_payment .needs(Right::Money);
    get "/admin/v1/payments/{payment}" => show_payment;
    post "/admin/v1/payments/{payment}/check" => check_payment .needs(Right::Money);
};

const FIELDS: &[&str] = &["id", "account", "amount_rub", "provider", "email"];
/// The largest number of payments in one response.
const LISTED_MAX: usize = 1000;

/// An intent with its times as text, and the debt for refunds of its account.
#[derive(Serialize)]
struct PaymentAnswer<'a> {
    created_at: String,
    debt_rub: MicroRub,
    #[serde(flatten)]
    intent: &'a Intent,
}

impl<'a> From<&'a Intent> for PaymentAnswer<'a> {
    fn from(intent: &'a Intent) -> Self {
        Self {
            created_at: rfc3339(intent.created_ms),
            debt_rub: intent.debt(),
            intent,
        }
    }
}

/// The latest payments, newest first.
#[derive(Serialize)]
struct PaymentsAnswer<'a> {
    payments: Vec<PaymentAnswer<'a>>,
    /// The number of older payments that the response omits.
    left_out: usize,
    /// The sum of all accounts' debts for refunds.
    debt_rub: MicroRub,
}

impl Admin {
    async fn list_payments(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let mut query = Query::parse(request.query(), &["account", "state"])?;
        let account: Option<AccountId> = query.optional("account", |text| {
            text.parse::<AccountId>().map_err(|error| error.to_string())
        })?;
        let state = query.optional("state", state)?;
        let listed = self.payments.list(account.as_ref()).await;
        let mut intents = listed.map_err(|error| refusal(error, None))?;
        intents.retain(|intent| state.is_none_or(|state| intent.state == state));
        let debts = intents.iter().map(Intent::debt);
        let debt_rub = debts.fold(MicroRub::ZERO, MicroRub::plus_or_max);
        let left_out = intents.len().saturating_sub(LISTED_MAX);
        intents.truncate(LISTED_MAX);
        ok(&PaymentsAnswer {
            payments: intents.iter().map(PaymentAnswer::from).collect(),
            left_out,
            debt_rub,
        })
    }

    async fn create_payment(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, FIELDS)?;
        let id = fields.optional("id", fields::id::<IntentId>)?;
        let account: AccountId = fields.required("account", fields::id)?;
        let amount = fields.required("amount_rub", fields::amount)?;
        let provider = fields.optional("provider", fields::words)?;
        let email = fields.optional("email", email)?;
        let id = id.unwrap_or_default();
        let query = NewPayment {
            id,
            account: account.clone(),
            amount,
            provider,
            email,
            by: who.name().to_owned(),
            saves_card: false,
        };
        let made = self.payments.create(query).await;
        let made = made.map_err(|error| not_made(error, id, &account))?;
        tracing::info!(
            target: "audit", who = who.name(), what = "payment.create", account = %made.account, intent = %made.id,
            provider = made.provider, amount_rub = %made.amount_rub
        );
        ok(&PaymentAnswer::from(&made))
    }

    async fn show_payment(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let id = payment_id(request.named())?;
        let found = self.payments.find(id).await;
        ok(&PaymentAnswer::from(
            &found.map_err(|error| refusal(error, None))?,
        ))
    }

    async fn check_payment(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let id = payment_id(request.named())?;
        let who = request.who();
        let checked = self.payments.check(id).await;
        let checked = checked.map_err(|error| refusal(error, None))?;
        tracing::info!(
            target: "audit", who = who.name(), what = "payment.check", account = %checked.account, intent = %id,
            state = checked.state.as_str(), debt_rub = %checked.debt()
        );
        ok(&PaymentAnswer::from(&checked))
    }
}

fn payment_id(text: &str) -> Result<IntentId, Refusal> {
    text.parse()
        .map_err(|problem| Refusal::NotFound(format!("no such payment: {problem}")))
}

fn state(text: &str) -> Result<State, String> {
    let known = State::ALL.into_iter().find(|state| state.as_str() == text);
    known.ok_or_else(|| {
        format!(
            "must be one of {}",
            State::ALL.map(State::as_str).join(", ")
        )
    })
}

pub(super) fn email(value: &Value) -> Result<String, String> {
    let text = value.as_str().filter(|text| is_email(text));
    text.map(str::to_owned)
        .ok_or_else(|| "must be an email address, for example name@example.com".to_owned())
}

/// Returns the error for a payment that the provider did not create. Its intent is kept, and the request can be
/// repeated with the intent's id.
pub(super) fn not_made(error: PaymentError, id: IntentId, account: &AccountId) -> Refusal {
    match &error {
        PaymentError::Provider(_, cause) if cause.may_pass() => Refusal::ProviderFailed(format!(
            "{error}; to repeat the request for the same payment, send the payment's id (--id {id})"
        )),
        _ => refusal(error, Some(account)),
    }
}

pub(super) fn refusal(error: PaymentError, account: Option<&AccountId>) -> Refusal {
    match error {
        PaymentError::Unknown => Refusal::NotFound(error.to_string()),
        PaymentError::NotKopecks => Refusal::invalid("amount_rub", error.to_string()),
        PaymentError::NoProvider(_) => Refusal::invalid("provider", error.to_string()),
        PaymentError::Rule(field, problem) => Refusal::invalid(field, problem),
        PaymentError::NoRule => Refusal::NotFound(error.to_string()),
        PaymentError::Exists | PaymentError::TooMany(_) | PaymentError::NoCard => {
            Refusal::Conflict(error.to_string())
        }
        PaymentError::Provider(..) => Refusal::ProviderFailed(error.to_string()),
        PaymentError::Ledger(error) => {
            let what = account.map_or_else(|| "payment".to_owned(), |id| format!("account {id}"));
            Refusal::of_change(&error, &what)
        }
    }
}

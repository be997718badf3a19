//! Endpoints that list calls without a receipt: calls that gateways stored, and calls that this gateway has in memory.

use std::sync::Arc;

use serde::Serialize;
use tollgate_layers::{error::BoxError, facts::RequestNumber, reserve::ledger::BookError};
use tollgate_ledger::unbooked::{UnbookedBounds, UnbookedCall, UnbookedQuery, UnbookedState};

use super::{
    Admin, Answer, NOT_A_NUMBER, ok,
    query::{self, Query},
    receipts::{RECEIPTS, RECEIPTS_MAX, call_number},
    refusal::Refusal,
    route::{AdminRequest, Route, routes},
};
use crate::{observe::record::STRANGERS_MAX, text::time::rfc3339};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/calls" => list_calls .with_query();
    get "/admin/v1/calls/{number}" => show_call;
};

const DAY_SECONDS: u64 = 86_400;

fn parse(query: Option<&str>) -> Result<UnbookedQuery, Refusal> {
    const KNOWN: &[&str] = &[
        "account", "key", "model", "vendor", "session", "state", "code", "since", "until", "after",
        "limit",
    ];
    let text = |text: &str| Ok(text.to_owned());
    let number = |text: &str| text.parse().map_err(|_| NOT_A_NUMBER.to_owned());
    let mut query = Query::parse(query, KNOWN)?;
    Ok(UnbookedQuery {
        account: query.optional("account", query::id)?,
        key: query.optional("key", query::id)?,
        model: query.optional("model", text)?,
        vendor: query.optional("vendor", text)?,
        session: query.optional("session", query::id)?,
        state: query.optional("state", state)?,
        code: query.optional("code", text)?,
        since_ms: query.optional("since", query::time)?.unwrap_or(0),
        until_ms: query.optional("until", query::time)?.unwrap_or(u64::MAX),
        before: query.optional("after", number)?,
        limit: query
            .optional("limit", query::up_to(RECEIPTS_MAX))?
            .unwrap_or(RECEIPTS),
    })
}

fn state(text: &str) -> Result<UnbookedState, String> {
    serde_json::from_value(text.into()).map_err(|_| "must be refused, released or running".into())
}

/// A page of calls without a receipt, latest first.
#[derive(Serialize)]
struct CallsAnswer<'a> {
    calls: Vec<CallAnswer<'a>>,
    /// The cursor of the next page, for the parameter `after`; null on the last page.
    next: Option<String>,
}

impl Admin {
    async fn list_calls(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let query = parse(request.query())?;
        let page = self.scrape.calls().unbooked_page(&query).await;
        let page = page.map_err(out_of_reach)?;
        ok(&CallsAnswer {
            next: page.next.map(|next| next.to_string()),
            calls: page.calls.iter().map(CallAnswer::from).collect(),
        })
    }

    async fn show_call(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let number = call_number(&request)?;
        let calls = self.scrape.calls();
        match calls.unbooked(number).await.map_err(out_of_reach)? {
            Some(call) => ok(&CallAnswer::from(&call)),
            None => Err(Refusal::NotFound(unknown(number, calls.unbooked_bounds()))),
        }
    }
}

fn out_of_reach(error: BoxError) -> Refusal {
    Refusal::of_ledger(&BookError::Unavailable(error), "calls")
}

fn unknown(number: RequestNumber, bounds: Option<UnbookedBounds>) -> String {
    let stored = match bounds {
        None => "calls without a receipt are not stored (ledger.refused_calls_max is 0)".to_owned(),
        Some(UnbookedBounds { calls_max, age_max }) => {
            let days = age_max.as_secs() / DAY_SECONDS;
            format!("at most {calls_max} calls without a receipt are stored, for {days} days")
        }
    };
    format!(
        "no record of call {number}: {stored}. Each gateway remembers only the latest {STRANGERS_MAX} calls with unknown \
         keys since its start. A charged call has a receipt: GET /admin/v1/receipts/{number}"
    )
}

#[derive(Serialize)]
struct CallAnswer<'a> {
    number: String,
    /// The time at which the call arrived.
    at: String,
    /// `running`, `refused` (before money was held), or `released` (the call ended without a charge).
    state: UnbookedState,
    path: &'a str,
    account: Option<&'a str>,
    key: Option<&'a str>,
    model: Option<&'a str>,
    session: Option<&'a str>,
    vendor: Option<&'a str>,
    status: Option<u16>,
    code: Option<&'a str>,
    field: Option<&'a str>,
    error: Option<&'a str>,
    whole_ms: u32,
}

impl<'a> From<&'a UnbookedCall> for CallAnswer<'a> {
    fn from(call: &'a UnbookedCall) -> Self {
        Self {
            number: call.number.to_string(),
            at: rfc3339(call.number.unix_ms()),
            state: call.state,
            path: &call.path,
            account: call.account.as_deref(),
            key: call.key.as_deref(),
            model: call.model.as_deref(),
            session: call.session.as_deref(),
            vendor: call.vendor.as_deref(),
            status: call.status,
            code: call.code.as_deref(),
            field: call.field.as_deref(),
            error: call.error.as_deref(),
            whole_ms: call.whole_ms,
        }
    }
}

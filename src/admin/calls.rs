//! Endpoints that list calls without a receipt, from the records that this gateway has not discarded yet.

use std::sync::Arc;

use serde::Serialize;
use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    session::SessionId,
};

use super::{
    Admin, Answer, NOT_A_NUMBER, ok,
    query::{self, Query},
    receipts::{RECEIPTS, limit},
    refusal::Refusal,
    route::{AdminRequest, Route, routes},
};
use crate::{
    observe::record::{How, UNBOOKED_MAX, Unbooked},
    text::time::rfc3339,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/calls" => list_calls .with_query();
    get "/admin/v1/calls/{number}" => show_call;
};

/// The parameters that select calls without a receipt.
struct CallsQuery {
    account: Option<AccountId>,
    key: Option<KeyId>,
    model: Option<String>,
    vendor: Option<String>,
    session: Option<SessionId>,
    state: Option<&'static str>,
    code: Option<String>,
    since_ms: u64,
    until_ms: u64,
    after: Option<RequestNumber>,
    limit: usize,
}

impl CallsQuery {
    fn parse(query: Option<&str>) -> Result<Self, Refusal> {
        const KNOWN: &[&str] = &[
            "account", "key", "model", "vendor", "session", "state", "code", "since", "until",
            "after", "limit",
        ];
        let text = |text: &str| Ok(text.to_owned());
        let number = |text: &str| text.parse().map_err(|_| NOT_A_NUMBER.to_owned());
        let mut query = Query::parse(query, KNOWN)?;
        Ok(Self {
            account: query.optional("account", query::id)?,
            key: query.optional("key", query::id)?,
            model: query.optional("model", text)?,
            vendor: query.optional("vendor", text)?,
            session: query.optional("session", query::id)?,
            state: query.optional("state", state)?,
            code: query.optional("code", text)?,
            since_ms: query.optional("since", query::time)?.unwrap_or(0),
            until_ms: query.optional("until", query::time)?.unwrap_or(u64::MAX),
            after: query.optional("after", number)?,
            limit: query.optional("limit", limit)?.unwrap_or(RECEIPTS),
        })
    }

    fn asks_for(&self, call: &Unbooked) -> bool {
        let key = call.key.as_deref();
        let code = match &call.how {
            How::Running => None,
            How::Ended { code, .. } => *code,
        };
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.is_none() || wanted.as_deref() == found
        };
        self.after.is_none_or(|after| call.number < after)
            && (self.since_ms..self.until_ms).contains(&call.came_ms)
            && (self.account.is_none() || self.account.as_ref() == key.map(|key| &key.account))
            && (self.key.is_none() || self.key.as_ref() == key.map(|key| &key.id))
            && is(&self.model, call.model.as_deref())
            && is(&self.vendor, call.vendor.as_deref())
            && (self.session.is_none() || self.session == call.session)
            && self.state.is_none_or(|state| state == state_of(call))
            && is(&self.code, code)
    }
}

fn state(text: &str) -> Result<&'static str, String> {
    let known = ["refused", "released", "running"];
    let found = known.into_iter().find(|known| *known == text);
    found.ok_or_else(|| "must be refused, released or running".into())
}

fn state_of(call: &Unbooked) -> &'static str {
    match &call.how {
        How::Running => "running",
        How::Ended { released: true, .. } => "released",
        How::Ended { .. } => "refused",
    }
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
        let query = CallsQuery::parse(request.query())?;
        let mut calls = self
            .scrape
            .calls()
            .all_unbooked(|call| query.asks_for(call));
        let has_more = calls.len() > query.limit;
        calls.truncate(query.limit);
        let last = calls.last().filter(|_| has_more);
        ok(&CallsAnswer {
            next: last.map(|call| call.number.to_string()),
            calls: calls.iter().map(CallAnswer::from).collect(),
        })
    }

    async fn show_call(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let number: RequestNumber = request
            .named()
            .parse()
            .map_err(|_| Refusal::NotFound(format!("no call: {NOT_A_NUMBER}")))?;
        let Some(call) = self.scrape.calls().unbooked(number) else {
            return Err(Refusal::NotFound(format!(
                "this gateway has no record of call {number} without a receipt: it keeps the latest {UNBOOKED_MAX} since \
                 its start, and as many with unknown keys; other gateways keep their own. If charged, GET /admin/v1/receipts/{number} has its receipt"
            )));
        };
        ok(&CallAnswer::from(&call))
    }
}

#[derive(Serialize)]
struct CallAnswer<'a> {
    number: String,
    /// The time at which the call arrived.
    at: String,
    /// `running`, `refused` (before money was held), or `released` (the call ended without a charge).
    state: &'static str,
    path: &'a str,
    account: Option<&'a str>,
    key: Option<&'a str>,
    model: Option<&'a str>,
    session: Option<&'a SessionId>,
    vendor: Option<&'a str>,
    status: Option<u16>,
    code: Option<&'static str>,
    error: Option<&'a str>,
    whole_ms: u32,
}

impl<'a> From<&'a Unbooked> for CallAnswer<'a> {
    fn from(call: &'a Unbooked) -> Self {
        let (status, code, error) = match &call.how {
            How::Running => (None, None, None),
            How::Ended {
                status, code, text, ..
            } => (Some(*status), *code, text.as_deref()),
        };
        let key = call.key.as_deref();
        Self {
            number: call.number.to_string(),
            at: rfc3339(call.came_ms),
            state: state_of(call),
            path: &call.path,
            account: key.map(|key| &*key.account),
            key: key.map(|key| &*key.id),
            model: call.model.as_deref(),
            session: call.session.as_ref(),
            vendor: call.vendor.as_deref(),
            status,
            code,
            error,
            whole_ms: call.whole_ms,
        }
    }
}

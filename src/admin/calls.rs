//! Endpoint for calls without a receipt: the records that this gateway still has of them.

use std::sync::Arc;

use serde::Serialize;
use tollgate_layers::facts::RequestNumber;

use super::{
    Admin, Answer, NOT_A_NUMBER, ok,
    refusal::Refusal,
    route::{Asked, Route},
};
use crate::{
    observe::record::{How, UNBOOKED_MAX, Unbooked},
    text::time::rfc3339,
};

pub(super) const ROUTES: &[Route] = &[Route::get("/admin/v1/calls/{number}", |admin, asked| {
    Box::pin(admin.show_call(asked))
})];

impl Admin {
    async fn show_call(self: Arc<Self>, asked: Asked) -> Result<Answer, Refusal> {
        let number: RequestNumber = asked
            .named()
            .parse()
            .map_err(|_| Refusal::NotFound(format!("no call: {NOT_A_NUMBER}")))?;
        let Some(call) = self.scrape.calls().unbooked(number) else {
            return Err(Refusal::NotFound(format!(
                "this gateway has no record of call {number} without a receipt: it keeps the latest {UNBOOKED_MAX} since \
                 its start; other gateways keep their own. If charged, GET /admin/v1/receipts/{number} has its receipt"
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
    /// `running`, `refused` before money was held, or `released`: it ended without a charge.
    state: &'static str,
    path: &'a str,
    account: Option<&'a str>,
    key: Option<&'a str>,
    model: Option<&'a str>,
    vendor: Option<&'a str>,
    status: Option<u16>,
    code: Option<&'static str>,
    error: Option<&'a str>,
    whole_ms: u32,
}

impl<'a> From<&'a Unbooked> for CallAnswer<'a> {
    fn from(call: &'a Unbooked) -> Self {
        let (state, status, code, error) = match &call.how {
            How::Running => ("running", None, None, None),
            How::Ended {
                status,
                code,
                text,
                released,
            } => {
                let state = if *released { "released" } else { "refused" };
                (state, Some(*status), *code, text.as_deref())
            }
        };
        let key = call.key.as_deref();
        Self {
            number: call.number.to_string(),
            at: rfc3339(call.came_ms),
            state,
            path: &call.path,
            account: key.map(|key| &*key.account),
            key: key.map(|key| &*key.id),
            model: call.model.as_deref(),
            vendor: call.vendor.as_deref(),
            status,
            code,
            error,
            whole_ms: call.whole_ms,
        }
    }
}

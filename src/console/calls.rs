//! The page of a call: its receipt, or if it has none, what this gateway remembers of it.

use askama::Template;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::{
    Answer, Visit,
    api::Refused,
    pages::{Frame, status_of, written},
    views::{Chapter, story},
};
use crate::admin::Refusal;

/// The times of a call, in milliseconds since its request arrived.
#[derive(Deserialize)]
struct Timeline {
    held_ms: u32,
    attempts: Vec<Attempt>,
    first_byte_ms: Option<u32>,
    whole_ms: u32,
    status: Option<u16>,
    code: Option<String>,
}

#[derive(Deserialize)]
struct Attempt {
    vendor: String,
    at_ms: u32,
    took_ms: u32,
    status: u16,
    code: Option<String>,
}

impl Timeline {
    /// Returns the status and the code that the caller received.
    fn told(&self) -> String {
        match (self.status, &self.code) {
            (Some(status), Some(code)) => format!("{status} {code}"),
            (Some(status), None) => status.to_string(),
            (None, _) => "nothing: it had left".to_owned(),
        }
    }
}

/// A call that has no receipt, as the API returns it.
#[derive(Deserialize)]
struct Unbooked {
    state: String,
    account: Option<String>,
    key: Option<String>,
}

#[derive(Template)]
#[template(path = "call.html", config = "src/console/templates/askama.toml")]
struct CallHtml<'a> {
    page: Frame<'a>,
    chapters: Vec<Chapter>,
    /// Attempts and durations; absent on receipts of earlier versions.
    timeline: Option<Timeline>,
    /// The state of a call that has no receipt.
    unbooked: Option<String>,
    account: &'a str,
    key: &'a str,
}

impl Visit {
    pub(super) async fn call(&self, number: &str) -> Result<Result<Answer, Refused>, Refusal> {
        let path = format!("/admin/v1/receipts/{number}");
        let mut receipt = match self.api.get::<Value>(&path).await? {
            Ok(receipt) => receipt,
            Err(refused) if refused.status == StatusCode::NOT_FOUND => {
                return self.unbooked(number, refused).await;
            }
            Err(refused) => return Ok(Err(refused)),
        };
        let timeline = receipt.as_object_mut();
        let timeline = timeline.and_then(|fields| fields.remove("timeline"));
        let text = |field: &str| receipt[field].as_str().unwrap_or_default();
        Ok(Ok(written(
            StatusCode::OK,
            &CallHtml {
                page: self.frame(format!("Call {}", text("number")), "Calls", None),
                chapters: story(&receipt),
                timeline: timeline.and_then(|it| serde_json::from_value(it).ok()),
                unbooked: None,
                account: text("account"),
                key: text("key"),
            },
        )))
    }

    /// Returns a call without a receipt in the ledger: it was refused, cost nothing, or is still running.
    async fn unbooked(
        &self,
        number: &str,
        no_receipt: Refused,
    ) -> Result<Result<Answer, Refused>, Refusal> {
        let path = format!("/admin/v1/calls/{number}");
        let mut call = match self.api.get::<Value>(&path).await? {
            Ok(call) => call,
            // The page shows both reasons: where the receipt may be, and that this gateway does not have the call.
            Err(refused) => {
                let text = format!("{}. {}", no_receipt.text, refused.text);
                return Ok(Err(Refused { text, ..no_receipt }));
            }
        };
        let Unbooked {
            state,
            account,
            key,
        } = Unbooked::deserialize(&call).map_err(Refusal::fault)?;
        if let Some(fields) = call.as_object_mut() {
            fields.remove("state");
        }
        Ok(Ok(written(
            status_of(None),
            &CallHtml {
                page: self.frame(format!("Call {number}"), "Calls", None),
                chapters: story(&call),
                timeline: None,
                unbooked: Some(state),
                account: account.as_deref().unwrap_or_default(),
                key: key.as_deref().unwrap_or_default(),
            },
        )))
    }
}

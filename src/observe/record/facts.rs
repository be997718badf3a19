//! The facts about a request that its record contains. The layers of the stack determine them one after the other.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tollgate_layers::respond::{Refused, Severity};
use tollgate_ledger::{
    account::KeyRecord,
    contract::{Settled, Settlement},
    number::RequestNumber,
    session::SessionId,
};

use crate::observe::traces::Trail;

/// The facts about one request that layers have recorded so far.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) admitted: bool,
    pub(super) key: Option<Arc<KeyRecord>>,
    /// When the gateway began to read the request's body; `body_took` is how long the reading took.
    pub(super) body_began: Option<Instant>,
    pub(super) body_took: Duration,
    pub(super) model: Option<String>,
    pub(super) session: Option<SessionId>,
    pub(super) streamed: Option<bool>,
    /// The number of the vendor's tools that the gateway removed from the request, because the request offered but did
    /// not require them.
    pub(super) tools_cut: Option<u64>,
    pub(super) held: bool,
    pub(super) vendor: Option<Arc<str>>,
    pub(super) overhead: Option<Duration>,
    /// The tracing state of the request; `None` if the request is not traced.
    pub(super) trail: Option<Trail>,
    /// How the call ended for its client. This is stored until the call has also ended in the ledger.
    pub(super) answered: Option<Answered>,
    /// How the call ended in the ledger. This is stored until the call has also ended for its client.
    pub(super) booked: Option<Booked>,
}

/// How a request ended for its client.
pub(super) struct Answered {
    pub(super) status: u16,
    /// The time from the request's arrival to the head of the response; `None` if the client disconnected before the
    /// head.
    pub(super) head: Option<Duration>,
    pub(super) whole: Duration,
    /// Why the request failed. Boxed to keep `Answered` small, because every request moves it and few requests fail.
    pub(super) failure: Option<Box<Failure>>,
}

/// Why a request was refused, or why its response was aborted.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: &'static str,
    pub(super) severity: Severity,
    pub(super) text: String,
    pub(super) cause: Option<String>,
    /// The invalid field, if the request was refused because of one field.
    pub(super) field: Option<String>,
    /// The text to store instead of `text`, if `text` may quote the request or a vendor's response.
    pub(super) without_quotes: Option<String>,
}

/// How a call ended in the ledger: settled or released.
pub(super) enum Booked {
    Settled(Box<(Settlement, Settled)>),
    Released,
}

/// A request that has ended for its client and, if it held money, also in the ledger.
pub(super) struct EndedCall<'a> {
    pub(super) number: RequestNumber,
    /// The request's path, as it is counted and logged.
    pub(super) path: &'a str,
    /// Whether the request called a model.
    pub(super) is_call: bool,
    pub(super) facts: &'a Facts,
    pub(super) answered: &'a Answered,
    /// The settlement; `None` if the call was not settled.
    pub(super) booked: Option<(&'a Settlement, &'a Settled)>,
}

pub(super) fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Returns a word for the cause of a refusal: its code or, if the code is empty, its kind.
pub(super) fn code(refused: &Refused<'_>) -> &'static str {
    match refused.code() {
        "" => refused.kind(),
        code => code,
    }
}

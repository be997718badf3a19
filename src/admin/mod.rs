//! The operators' API: accounts, payments, keys, receipts, usage, vendors, export and the audit, on a
//! listener of its own. `stack` lists the layers above it.
//!
//! Every call needs the admin key, or comes from the console in the name of somebody who has signed in there; every
//! change leaves a line under the log target `audit`: who, what, and from what to what. An unknown field, parameter or model is refused, never ignored: a misspelt ceiling
//! must not become no ceiling.

mod accounts;
mod alerts;
mod answer;
mod audit;
mod auth;
mod auto_topups;
mod body;
mod body_limit;
mod calls;
mod change;
mod events;
pub(crate) mod export;
mod fields;
mod groups;
mod keys;
mod leases;
mod payments;
mod probes;
mod query;
mod receipts;
mod receivers;
mod refusal;
mod routes;
mod shape;
mod statements;
mod tariffs;
#[cfg(test)]
pub(crate) mod tests;
mod usage;
mod vendors;
mod who;

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use http::{Response, StatusCode};
use tollgate_layers::failover::Health;

use self::refusal::{Refusal, json_response};
use crate::{
    catalog::snapshot::Live, events::Dispatcher, ledger::AnyLedger, node::readiness::Readiness,
    observe::Scrape, payments::Payments,
};

pub use self::{
    auth::{AdminAuth, AdminAuthLayer},
    body::AnswerBody,
    body_limit::{BodyLimit, BodyLimitLayer, UnreadBody},
    routes::Routes,
    shape::{OperatorsShape, WhichCall},
    who::{Operator, Role},
};
pub(crate) use self::{
    fields::{
        address, amount, ceiling, line, parse_address, prefix, requests, sha256, time_after,
        tokens, words,
    },
    keys::new_key_id,
    refusal::refusal_of,
    vendors::path_segment,
    who::Right,
};

/// What a call's number looks like, for those who wrote something else.
pub(crate) const NOT_A_NUMBER: &str = "a call's number looks like 0190163d-8694-739b-aea5-966c26f8ad91; it stands \
    in the header x-request-id of the answer, and in parentheses at the end of an error";

type Answer = Response<AnswerBody>;

/// What the operators' API is about: one ledger, one catalog, one node's vendors and counters.
pub struct Admin {
    store: AnyLedger,
    live: Arc<Live>,
    health: Health,
    readiness: Readiness,
    scrape: Scrape,
    dispatcher: Dispatcher,
    payments: Payments,
}

impl Admin {
    /// An API over `store`, `live`, `health` and `payments` that also answers probes and scrapers.
    #[must_use]
    pub(crate) fn new(
        store: AnyLedger,
        live: Arc<Live>,
        health: Health,
        readiness: Readiness,
        scrape: Scrape,
        dispatcher: Dispatcher,
        payments: Payments,
    ) -> Self {
        Self {
            store,
            live,
            health,
            readiness,
            scrape,
            dispatcher,
            payments,
        }
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

fn ok(body: &impl serde::Serialize) -> Result<Answer, Refusal> {
    Ok(json_response(StatusCode::OK, body).map(AnswerBody::from))
}

/// Unix time in milliseconds.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

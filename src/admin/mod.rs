//! The operators' API: accounts, payments, keys, receipts, usage, vendors, export and audit. It has a listener of its
//! own. The module `stack` lists the layers above this API.
//!
//! Every request needs the admin key, or comes from the console on behalf of a signed-in operator. Every change writes
//! a line to the log target `audit`: the operator, the object, the old and the new value. An unknown field, parameter
//! or model is refused, never ignored: a misspelt ceiling must not result in no ceiling.

mod accounts;
mod alerts;
mod answer;
mod audit;
mod auth;
mod auto_topups;
mod body;
mod calls;
mod change;
mod codes;
mod configuration;
mod events;
pub(crate) mod export;
mod fields;
mod groups;
mod invoices;
mod keys;
mod leases;
mod members;
mod past_changes;
mod payments;
mod people;
mod probes;
mod query;
mod receipts;
mod receivers;
mod refusal;
mod route;
mod routes;
mod shape;
mod statements;
mod tariffs;
#[cfg(test)]
pub(crate) mod tests;
mod usage;
pub(crate) mod vendor_test;
mod vendors;

use std::{fmt, path::PathBuf, sync::Arc};

use http::{Response, StatusCode};
use tollgate_layers::{
    body::{AnswerBody, full},
    failover::Health,
};

use self::{configuration::Configuration, refusal::json_response, vendor_test::OneVendor};
use crate::{
    catalog::snapshot::Live,
    events::Dispatcher,
    ledger::AnyLedger,
    members::Members,
    operators::{Operator, Right, Role},
    payments::Payments,
    state::{config_file::ConfigFile, readiness::Readiness, scrape::Scrape},
    text::time::now_ms,
};

pub(crate) use self::body::streamed;
pub use self::{
    auth::{AdminAuth, AdminAuthLayer},
    refusal::{Refusal, answer_refusals},
    routes::Routes,
    shape::{OperatorsShape, WhichCall},
};

/// Error text for an invalid request number, with an example of a valid one.
pub(crate) const NOT_A_NUMBER: &str = "a call's number looks like 0190163d-8694-739b-aea5-966c26f8ad91; the response \
    has it in the header x-request-id, and an error text has it in parentheses at the end";

type Answer = Response<AnswerBody>;

/// The state of the operators' API: the ledger, the catalog, and the vendors and counters of this node.
pub struct Admin {
    store: AnyLedger,
    live: Arc<Live>,
    health: Health,
    readiness: Readiness,
    scrape: Scrape,
    dispatcher: Dispatcher,
    payments: Payments,
    configuration: Option<Configuration>,
    operators_file: Option<PathBuf>,
}

impl Admin {
    /// Creates an API over `store`, `live`, `health` and `payments`, which also serves probes and metrics.
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
            configuration: None,
            operators_file: None,
        }
    }

    /// Adds the operators file, so that operators can invite others through the API.
    #[must_use]
    pub(crate) fn with_operators(self, file: Option<PathBuf>) -> Self {
        Self {
            operators_file: file,
            ..self
        }
    }

    /// Adds the configuration file, so that operators can change it. Vendors are tested by calls through `one_vendor`.
    #[must_use]
    pub(crate) fn with_configuration(self, file: ConfigFile, one_vendor: OneVendor) -> Self {
        Self {
            configuration: Configuration::new(file, one_vendor),
            ..self
        }
    }
}

impl Admin {
    fn members(&self) -> Members {
        Members::new(self.store.clone())
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

fn ok(body: &impl serde::Serialize) -> Result<Answer, Refusal> {
    Ok(json_response(StatusCode::OK, body).map(full))
}

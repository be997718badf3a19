//! Observability: a record of each request, metrics, the log, traces. Nothing here influences requests.

pub mod log;
pub mod metrics;
pub mod record;
pub(crate) mod traces;

//! Observability: a record of each request, metrics, the log, and traces. No code in this module influences how
//! requests are handled.

pub mod log;
pub mod metrics;
pub mod record;
#[cfg(test)]
mod testing;
pub(crate) mod traces;

//! What is seen of the gateway: a record of each request, counters, the log, traces. Nothing here decides anything.

pub mod log;
pub mod metrics;
pub mod record;
mod scrape;
#[cfg_attr(not(feature = "otel"), path = "traces/none.rs")]
pub(crate) mod traces;

pub use self::scrape::Scrape;
pub(crate) use self::scrape::Sources;

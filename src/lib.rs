//! Tollgate: a prepaid gateway for language models, built of tower layers over a raw hyper client.
//!
//! Read [`stack`] and you have read the program: it lists every layer that a request goes through.
//! The layers themselves are the crate `tollgate-layers`; this crate assembles them.

pub mod stack;

pub mod config;
pub mod live;
pub mod reload;
pub mod runtime;
pub mod server;

mod catalog;
pub mod count_tokens;
pub mod estimate;
pub mod files;
pub mod head;
pub mod limiter;
pub mod live_limits;
mod openapi;
pub mod own;
mod page;
pub mod panics;
pub mod paths;
pub mod rate_feed;
pub mod readiness;
pub mod receipts;
mod reply;
pub mod select_json;
pub mod store;
pub mod tls;

pub mod calls;
pub mod log;
pub mod metrics;
#[cfg_attr(not(feature = "otel"), path = "traces/none.rs")]
mod traces;

pub mod admin;
pub mod cli;
pub mod demo;

mod causes;
mod https;
mod percent;
mod similar;
mod time_text;

pub use runtime::Gateway;

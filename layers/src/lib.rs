//! Tower layers for a prepaid gateway in front of language models.
//!
//! Each module below the vocabulary is one [`tower::Layer`] (`upstream` is the service at the bottom)
//! behind a feature of its name, with dashes, and none of them imports another: what two layers share
//! stands in the vocabulary. A request changes
//! its type on the way down, so an order that would be wrong does not compile:
//!
//! ```text
//! Request<B> ─ parse ─► Request<Call> ─ select ─► Request<Priced> ─ reserve ─► Request<Priced>
//!            ─ failover ─► Request<Attempt> ─ translate ─► Request<Outbound> ─ passthrough ─► upstream
//! ```
//!
//! The vocabulary is always compiled: [`body`], [`call`], [`error`], [`facts`], [`json`], [`key`], [`money`],
//! [`model`], [`price`], [`scrub`], [`sse`], [`usage`],
//! [`vendor_usage`].

#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests are given JSON as it is written"
    )
)]

pub mod body;
pub mod call;
pub mod error;
pub mod facts;
pub mod json;
pub mod key;
pub mod model;
pub mod money;
pub mod price;
pub mod scrub;
pub mod sse;
pub mod usage;
pub mod vendor_usage;

#[cfg(feature = "auth")]
pub mod auth;
#[cfg(feature = "failover")]
pub mod failover;
#[cfg(feature = "in-flight")]
pub mod in_flight;
#[cfg(feature = "parse")]
pub mod parse;
#[cfg(feature = "passthrough")]
pub mod passthrough;
#[cfg(feature = "rate-limit")]
pub mod rate_limit;
#[cfg(feature = "redis")]
pub mod redis_conn;
#[cfg(feature = "request-number")]
pub mod request_number;
#[cfg(feature = "reserve")]
pub mod reserve;
#[cfg(feature = "respond")]
pub mod respond;
#[cfg(feature = "select")]
pub mod select;
#[cfg(feature = "translate")]
pub mod translate;
#[cfg(feature = "upstream")]
pub mod upstream;

pub use error::Error;

//! Tower layers for a prepaid gateway in front of language models. Each layer also works alone, over any hyper, axum or
//! tonic service: keys, limits, holds and charges, numbered errors.
//!
//! # A server with two layers
//!
//! A hyper server that accepts ten requests per second from an address. It answers further requests with 429, a
//! `retry-after`, and a JSON body that ends with the request's number:
//!
//! ```no_run
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use hyper::{body::Incoming, server::conn::http1};
//! use hyper_util::{
//!     rt::{TokioIo, TokioTimer},
//!     service::TowerToHyperService,
//! };
//! use tollgate_layers::{
//!     facts::ClientAddr,
//!     rate_limit::{Gcra, Quota, RateLimitLayer, by_address},
//!     respond::{Language, RespondLayer},
//! };
//! use tower::ServiceBuilder;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let ten_a_second = by_address(Quota::per_second(10));
//!     let service = ServiceBuilder::new()
//!         .layer(RespondLayer::new(Language::En))
//!         .layer(RateLimitLayer::new(Gcra::new(100_000), ten_a_second))
//!         .service_fn(|_: Request<Incoming>| async {
//!             Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello\n"))))
//!         });
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     loop {
//!         let (stream, peer) = listener.accept().await?;
//!         let of_this_peer = ServiceBuilder::new()
//!             .map_request(move |mut req: Request<Incoming>| {
//!                 req.extensions_mut().insert(ClientAddr(peer.ip()));
//!                 req
//!             })
//!             .service(service.clone());
//!         tokio::spawn(async move {
//!             let mut server = http1::Builder::new();
//!             server.timer(TokioTimer::new());
//!             let served = server
//!                 .serve_connection(TokioIo::new(stream), TowerToHyperService::new(of_this_peer))
//!                 .await;
//!             if let Err(error) = served {
//!                 eprintln!("{peer}: {error}");
//!             }
//!         });
//!     }
//! }
//! ```
//!
//! Every module has an example, and `examples/` has whole programs; the README shows their output.
//!
//! # Features
//!
//! Each layer is a module behind a feature of the same name, with dashes. No feature is on by default, and none changes
//! the behaviour of another.
//!
//! | feature | what it does |
//! |---|---|
//! | `request-number` | [`request_number`] numbers each request |
//! | `respond` | [`respond`] turns every [`Error`] into an answer, in your shape if you like |
//! | `in-flight` | [`in_flight`] allows at most N requests at a time; a request counts until its answer's body ends |
//! | `rate-limit` | [`rate_limit`] limits requests, and what they use, per caller and time |
//! | `auth` | [`auth`] identifies the caller, in any store of keys |
//! | `parse` | [`parse`] reads and checks calls to language models, in three formats |
//! | `idempotency` | [`idempotency`] returns the stored answer to a repeated call |
//! | `select` | [`select`] finds a call's model and price |
//! | `reserve` | [`reserve`] holds money before a request and charges after it, in any ledger, for anything |
//! | `failover` | [`failover`] chooses a vendor, and another vendor if the first one fails |
//! | `translate` | [`translate`] translates calls and answers between formats |
//! | `passthrough` | [`passthrough`] forwards answers unchanged and reads their usage |
//! | `upstream` | [`upstream`] sends calls to their vendors (hyper, rustls) |
//! | `sqlite` | [`reserve::sqlite`]: a ledger in a file (bundles SQLite: needs a C compiler) |
//! | `redis` | [`reserve::redis`]: a ledger that many processes share, and [`rate_limit::redis`] |
//! | `outbox` | [`reserve::outbox`]: a local file with the ends of calls that a ledger on another machine has not
//! acknowledged |
//! | `model-calls` | what the layers for model calls share: [`call`], [`model`], [`price`], [`usage`], [`sse`], [`vendor_usage`], [`scrub`] |
//! | `accounts` | accounts, keys and key stores: [`key`] |
//! | `setting` | limits that can change at run time: [`setting`] |
//! | `testing` | [`reserve::testing`]: tests of the ledger contract, for your own ledger |
//! | `full` | all features except `testing` |
//!
//! # Vocabulary that layers share
//!
//! No layer imports another. These modules are always compiled: the error type, [`Error`] ([`error`]); request context
//! ([`facts`]); answer bodies ([`body`]); money without floats ([`money`]), spending limits ([`ceiling`]) and their
//! [`calendar`]. The other shared modules are behind `accounts`, `setting` and `model-calls` (with logins at vendors,
//! [`login`]): the layers that need them turn them on.
//!
//! A model call changes its type on the way down, so a wrong order of layers does not compile:
//!
//! ```text
//! Request<B> ─ parse ─► Request<Call> ─ select ─► Request<Priced> ─ reserve ─► Request<Priced>
//!            ─ failover ─► Request<Attempt> ─ translate ─► Request<Outbound> ─ passthrough ─► upstream
//! ```
//!
//! The other layers accept requests of any type.
//!
//! Requires Rust 1.95. The CHANGELOG lists what a version may change.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests are given JSON as it is written"
    )
)]

pub mod body;
#[cfg(any(feature = "parse", feature = "passthrough"))]
mod body_budget;
#[cfg(feature = "model-calls")]
pub mod call;
#[cfg(any(feature = "parse", feature = "translate"))]
mod capsule;
pub mod error;
#[cfg(feature = "model-calls")]
mod event_stream;
pub mod facts;
#[cfg(feature = "model-calls")]
mod format;
#[cfg(feature = "translate")]
mod formats;
#[cfg(any(feature = "auth", feature = "rate-limit", feature = "select"))]
mod forward;
#[cfg(any(feature = "passthrough", feature = "upstream"))]
mod heads;
#[cfg(feature = "model-calls")]
#[doc(hidden)]
pub mod json;
#[cfg(feature = "accounts")]
pub mod key;
#[cfg(feature = "model-calls")]
pub mod login;
#[cfg(feature = "model-calls")]
pub mod model;
#[cfg(any(feature = "parse", feature = "translate"))]
mod path;
#[cfg(feature = "model-calls")]
pub mod scrub;
#[cfg(feature = "model-calls")]
mod segments;
#[cfg(feature = "upstream")]
#[doc(hidden)]
pub mod self_wake;
#[cfg(feature = "model-calls")]
pub mod session;
#[cfg(feature = "model-calls")]
pub mod sse;
#[cfg(feature = "model-calls")]
#[doc(hidden)]
pub mod stream_progress;
#[cfg(feature = "model-calls")]
pub mod text_sample;
#[cfg(feature = "model-calls")]
pub mod text_size;
#[cfg(any(feature = "idempotency", feature = "rate-limit"))]
mod undecided;
#[cfg(any(feature = "auth", feature = "passthrough", feature = "reserve"))]
mod unix_time;
#[cfg(feature = "model-calls")]
pub mod vendor_usage;
#[cfg(any(feature = "passthrough", feature = "upstream"))]
mod vendor_words;

#[cfg(feature = "auth")]
pub mod auth;
#[cfg(feature = "failover")]
pub mod failover;
#[cfg(feature = "idempotency")]
pub mod idempotency;
#[cfg(feature = "in-flight")]
pub mod in_flight;
#[cfg(feature = "parse")]
pub mod parse;
#[cfg(feature = "passthrough")]
pub mod passthrough;
#[cfg(feature = "rate-limit")]
pub mod rate_limit;
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
#[cfg(feature = "redis")]
pub use tollgate_ledger::conn as redis_conn;
#[cfg(feature = "setting")]
pub use tollgate_ledger::setting;
pub use tollgate_ledger::{calendar, ceiling, money};
#[cfg(feature = "model-calls")]
pub use tollgate_ledger::{endpoint, price, timeline, usage};

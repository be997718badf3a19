//! Tower layers for a prepaid gateway in front of language models. Each layer also works alone, over any hyper, axum or
//! tonic service: keys, limits, holds and charges, errors with the request's number.
//!
//! # A server with two layers
//!
//! The following hyper server accepts ten requests per second from each address. It answers further requests with 429,
//! a `retry-after` header, and a JSON body whose message ends with the request's number:
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
//! Every module has an example. `examples/` has whole programs; the README shows what they print.
//!
//! # Features
//!
//! Each layer is a module behind a feature of the same name, written with dashes. No feature is on by default, and no
//! feature changes the behaviour of another.
//!
//! | feature | what it does |
//! |---|---|
//! | `request-number` | [`request_number`] numbers each request |
//! | `respond` | [`respond`] turns every [`Error`] into a response, optionally in a shape that you define |
//! | `in-flight` | [`in_flight`] allows at most N requests in flight, each until its response's body has ended |
//! | `rate-limit` | [`rate_limit`] limits the requests, tokens or other units that each caller may use in a period |
//! | `auth` | [`auth`] identifies the caller by a key, in any key store |
//! | `parse` | [`parse`] reads and checks calls to language models, in three wire formats |
//! | `idempotency` | [`idempotency`] answers a repeated call with the stored response |
//! | `select` | [`select`] finds a call's model and price |
//! | `reserve` | [`reserve`] holds money before a request and charges after it, in any ledger, for any product |
//! | `failover` | [`failover`] chooses a vendor for a call, and tries another vendor if the first one fails |
//! | `translate` | [`translate`] translates calls and responses between wire formats |
//! | `passthrough` | [`passthrough`] forwards responses unchanged and reads the usage in them |
//! | `upstream` | [`upstream`] sends calls to vendors, with hyper and rustls |
//! | `sqlite` | [`reserve::sqlite`] is a ledger in a file; it bundles SQLite, so it needs a C compiler |
//! | `redis` | [`reserve::redis`] is a ledger that many processes share; [`rate_limit::redis`] shares rate limits |
//! | `outbox` | [`reserve::outbox`] stores in a file how calls ended, until a remote ledger acknowledges it |
//! | `model-calls` | turns on the modules that layers for model calls share: [`call`], [`model`], [`price`], [`usage`], [`sse`], [`vendor_usage`], [`scrub`] |
//! | `accounts` | turns on [`key`]: accounts, keys and key stores |
//! | `setting` | turns on [`setting`]: limits that can change at run time |
//! | `testing` | turns on [`reserve::testing`]: tests of the ledger contract, for a ledger of your own |
//! | `full` | turns on all features except `testing` |
//!
//! # Vocabulary that layers share
//!
//! No layer imports another layer. These modules are always compiled: the error type, [`Error`] ([`error`]); request
//! context ([`facts`]); response bodies ([`body`]); money without floats ([`money`]), spending ceilings ([`ceiling`])
//! and their [`calendar`]. Other shared modules need the feature `accounts`, `setting` or `model-calls`; [`login`], for
//! logins at vendors, needs `model-calls`. A layer's feature turns on the features that the layer needs.
//!
//! Each layer for model calls changes the request's type, so layers in a wrong order do not compile:
//!
//! ```text
//! Request<B> ─ parse ─► Request<Call> ─ select ─► Request<Priced> ─ reserve ─► Request<Priced>
//!            ─ failover ─► Request<Attempt> ─ translate ─► Request<Outbound> ─ passthrough ─► upstream
//! ```
//!
//! Layers that are not specific to model calls accept requests of any type.
//!
//! This crate requires Rust 1.95. The CHANGELOG states what may change in a new version.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "test helpers take JSON by value, so that tests can pass a json! literal"
    )
)]

#[macro_use]
#[allow(
    unused_macros,
    reason = "not every set of features has a type that uses it"
)]
mod debug;

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
#[cfg(feature = "model-calls")]
mod formats;
#[cfg(any(
    feature = "auth",
    feature = "rate-limit",
    feature = "select",
    feature = "idempotency",
    feature = "translate"
))]
#[allow(dead_code, reason = "each of these layers uses a part of it")]
mod forward;
#[cfg(any(feature = "passthrough", feature = "upstream"))]
mod heads;
#[cfg(feature = "model-calls")]
#[doc(hidden)]
pub mod json;
#[cfg(feature = "accounts")]
pub mod key;
#[cfg(any(feature = "failover", feature = "upstream"))]
mod lock;
#[cfg(feature = "model-calls")]
pub mod login;
#[cfg(feature = "model-calls")]
pub mod model;
#[cfg(any(feature = "parse", feature = "translate"))]
mod path;
#[cfg(any(feature = "parse", feature = "passthrough"))]
mod pieces;
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

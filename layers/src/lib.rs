//! Tower layers for a prepaid gateway in front of language models. Each of them is good alone, over any
//! hyper, axum or tonic service: keys, limits, holds and charges, errors with a number.
//!
//! # A server with two layers
//!
//! A hyper server that takes ten requests a second from an address, and answers the others with 429, a
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
//!     adapt::AdaptLayer,
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
//!         // Below it stands a service that has never heard of these layers.
//!         .layer(AdaptLayer::new())
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
//! Every module has an example of its own, and `examples/` has whole programs; the README shows what they
//! print.
//!
//! # Features
//!
//! A layer is a module behind a feature of its name, with dashes. None is on by default, and none changes
//! what another does.
//!
//! | feature | what it does |
//! |---|---|
//! | `request-number` | [`request_number`] numbers each request |
//! | `respond` | [`respond`] turns every [`Error`] into an answer, in your shape if you like |
//! | `in-flight` | [`in_flight`] lets so many requests run at a time, to the ends of their bodies |
//! | `rate-limit` | [`rate_limit`] counts requests and what they use over time, for whomever you say |
//! | `auth` | [`auth`] finds out who calls, in any store of keys |
//! | `parse` | [`parse`] reads and checks calls to language models, in two formats |
//! | `idempotency` | [`idempotency`] repeats the answer of a call that is sent again |
//! | `select` | [`select`] finds a call's model and price |
//! | `reserve` | [`reserve`] holds money before a request and charges after it, in any ledger, for anything |
//! | `failover` | [`failover`] chooses a vendor, and another one when it fails |
//! | `translate` | [`translate`] puts calls and answers from one format into the other |
//! | `passthrough` | [`passthrough`] lets answers through and reads off them what was used |
//! | `upstream` | [`upstream`] sends calls to their vendors (hyper, rustls) |
//! | `adapt` | [`adapt`] lets a service that knows nothing of these layers stand below them |
//! | `sqlite` | [`reserve::sqlite`]: a ledger in a file (bundles SQLite: needs a C compiler) |
//! | `redis` | [`reserve::redis`]: a ledger that many processes share, and [`rate_limit::redis`] |
//! | `outbox` | [`reserve::outbox`]: a ledger on another machine, with a record here of what it has still to be told |
//! | `testing` | [`reserve::testing`]: what every ledger promises, to be run on your own |
//! | `full` | all of them but `testing` |
//!
//! # What two layers share
//!
//! No layer imports another. What they share is always compiled and small: the one error, [`Error`]
//! ([`error`]); what is ambient in a request ([`facts`]); accounts and keys ([`key`]); money without floats
//! ([`money`], [`price`]), ceilings of it, and the days and months that those go by ([`ceiling`],
//! [`calendar`]); the body of an answer ([`body`]); server-sent events ([`sse`]); limits that change while
//! calls run ([`setting`]). Of model calls there are [`call`], [`model`], [`usage`], [`vendor_usage`],
//! [`json`] and [`scrub`].
//!
//! A model call changes its type on the way down, so that an order that would be wrong does not compile:
//!
//! ```text
//! Request<B> ─ parse ─► Request<Call> ─ select ─► Request<Priced> ─ reserve ─► Request<Priced>
//!            ─ failover ─► Request<Attempt> ─ translate ─► Request<Outbound> ─ passthrough ─► upstream
//! ```
//!
//! The other layers take requests of any type.
//!
//! Rust 1.95 or newer. What a version may change is said in the CHANGELOG.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests are given JSON as it is written"
    )
)]

pub mod body;
pub mod call;
#[cfg(any(feature = "parse", feature = "translate"))]
mod capsule;
pub mod error;
pub mod facts;
mod format;
#[cfg(any(feature = "auth", feature = "rate-limit", feature = "select"))]
mod forward;
#[cfg(any(feature = "passthrough", feature = "upstream"))]
mod heads;
pub mod json;
pub mod key;
pub mod model;
#[cfg(any(feature = "parse", feature = "translate"))]
mod path;
pub mod scrub;
mod segments;
pub mod self_wake;
pub mod session;
pub mod sse;
pub mod stream_progress;
#[cfg(any(feature = "idempotency", feature = "rate-limit"))]
mod undecided;
pub mod vendor_usage;
#[cfg(any(feature = "passthrough", feature = "respond", feature = "upstream"))]
mod vendor_words;

#[cfg(feature = "adapt")]
pub mod adapt;
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
pub use tollgate_ledger::{calendar, ceiling, endpoint, money, price, setting, timeline, usage};

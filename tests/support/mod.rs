//! Code that test binaries and benches share: the text of configurations, the binary as a process, Redis, a shop that
//! takes payments, and one seed for all randomness.
//!
//! A test binary includes this module with `#[path = "../support/mod.rs"] mod support;`. Benches include it together
//! with their `fixtures`.
//!
//! Some code is deliberately not here. The scripted vendor is the gateway's own (`tollgate::demo::vendor`), except in
//! `benches/load`, whose vendor must be fast and has its responses ready. `tests/gateway` starts most gateways in its
//! own process, so that it can search every response and log line for secrets. `tests/simulation` has no process and no
//! configuration: it uses only `random`. `tests/first_day` and `tests/deploy` do what an operator does, with an
//! operator's files.

#![allow(dead_code, reason = "nobody needs all of it")]
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "tests unwrap what must be there, and have no public API"
)]

pub mod config;
pub mod process;
pub mod random;
pub mod redis;
pub mod shop;

//! Code shared by test binaries and benches: configuration text, the binary as a process, Redis, a shop that takes
//! payments, and one seed for all randomness.
//!
//! Include it with `#[path = "../support/mod.rs"] mod support;`; benches include it with their `fixtures`.
//!
//! Some code is not here, on purpose. The scripted vendor is the gateway's own (`tollgate::demo::vendor`), except in
//! `benches/load`, whose vendor must be fast and has its answers ready. `tests/gateway` starts most gateways in its own
//! process, so that it can search every answer and log line for secrets. `tests/simulation` has no process and no
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

//! What test binaries and benches share: the text of a configuration, the binary as a process, Redis, a shop that
//! takes payments, and the one seed of what is random.
//!
//! Taken in with `#[path = "../support/mod.rs"] mod support;`, by benches with their `fixtures`.
//!
//! What is not here, on purpose: the scripted vendor is the gateway's own (`tollgate::demo::vendor`), but for the one
//! of `benches/load`, which is timed and has its answers ready. `tests/gateway` builds most gateways in its own
//! process, where each answer and log line can be searched for secrets. `tests/simulation` has no process and no
//! config: of `support` it takes `random` alone. `tests/first_day` and `tests/deploy` do what an operator does, with
//! the files that an operator has.

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

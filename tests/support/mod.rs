//! What test binaries and benches share: the text of a configuration, the binary as a process, Redis, and the one
//! seed of what is random.
//!
//! Taken in with `#[path = "../support/mod.rs"] mod support;`, by benches with their `fixtures`. The scripted vendor is the gateway's own
//! (`tollgate::demo::vendor`); that of `benches/load` is another one: it is timed.

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

//! Tollgate: a prepaid gateway for language models, built of tower layers over a raw hyper client.
//!
//! To see how a request is processed, read [`stack`] first: it lists every layer that a request passes through. The
//! layers are in the crate `tollgate-layers`; this crate assembles them.

pub mod stack;
pub mod state;

pub mod catalog;
mod codes;
pub mod config;
pub mod edge;
pub mod endpoints;
mod events;
mod idempotency;
pub mod ledger;
mod logins;
mod members;
pub mod net;
pub mod node;
pub mod observe;
pub mod operators;
pub mod payments;

pub mod admin;
mod api;
pub mod cabinet;
pub mod cli;
pub mod console;
pub mod demo;
pub mod load;

mod statement;
pub mod text;

#[cfg(test)]
mod floors_tests;

pub use node::Gateway;

/// The commit from which a release was built; `deploy/build` passes it at compile time. `None` in all other builds, so
/// that they are not rebuilt whenever the commit changes.
pub const COMMIT: Option<&str> = option_env!("TOLLGATE_COMMIT");

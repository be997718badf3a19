//! Tollgate: a prepaid gateway for language models, built of tower layers over a raw hyper client.
//!
//! Read [`stack`] and you have read the program: it lists every layer that a request goes through.
//! The layers themselves are the crate `tollgate-layers`; this crate assembles them.

pub mod stack;

pub mod catalog;
pub mod config;
pub mod edge;
pub mod endpoints;
mod events;
mod idempotency;
mod latest;
pub mod ledger;
pub mod node;
pub mod observe;
pub mod payments;

pub mod admin;
pub mod cli;
pub mod console;
pub mod demo;

mod statement;
mod text;

pub use node::Gateway;

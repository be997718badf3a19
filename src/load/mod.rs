//! The load generator of `tollgate load` and of the benches. It sends prepared calls over many connections, and records
//! latencies, statuses and failures.

mod client;
mod connection;
mod histogram;
mod record;

pub use self::{
    client::{Call, Client, Failures, Pace, Terms},
    connection::{CallError, Connection, Origin, Prepared, next},
    histogram::Histogram,
    record::{Record, Results},
};

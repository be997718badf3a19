//! The gateway as its callers, operators and vendors see it: real sockets, a scripted vendor, real
//! ledgers. One file for each kind of promise.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a test binary has no public API"
)]

mod harness;

mod smoke;

//! Where callers come in: sockets, TLS, what a head may be, who the client is, and what panics.

pub mod head;
pub(crate) mod host;
pub mod limiter;
pub mod panics;
pub mod server;
pub mod tls;

//! The edge, where requests enter the gateway: sockets, TLS, limits on heads and bodies, client addresses, handling of
//! panics, and the router for callers' paths.

pub mod body_limit;
pub mod cors;
pub mod head;
pub(crate) mod host;
pub mod panics;
pub(crate) mod router;
pub(crate) mod routes;
pub mod server;
pub mod tls;

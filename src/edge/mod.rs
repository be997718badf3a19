//! Where requests enter the gateway: sockets, TLS, limits of heads and bodies, client addresses, panics, and the router
//! of the callers' paths.

pub mod body_limit;
pub mod cors;
pub mod head;
pub(crate) mod host;
pub mod panics;
pub(crate) mod router;
pub(crate) mod routes;
pub mod server;
pub mod tls;

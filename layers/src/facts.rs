//! Context of a request or a response, as typed extensions. Each type names the layer that inserts it.

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use http::HeaderName;
#[cfg(any(
    feature = "model-calls",
    feature = "request-number",
    feature = "respond"
))]
pub use tollgate_ledger::number::RequestNumber;

#[cfg(feature = "model-calls")]
pub use crate::event_stream::EventStream;
use crate::money::MicroRub;
#[cfg(feature = "accounts")]
use crate::{error::Error, key::KeyRecord};

/// The client's IP address, resolved through trusted proxies. The server inserts it into each request.
///
/// On axum, take the address from `ConnectInfo` above every layer that uses it, and serve the app with
/// `app.into_make_service_with_connect_info::<SocketAddr>()`:
///
/// ```
/// use std::net::SocketAddr;
///
/// use axum::{Router, extract::{ConnectInfo, Request}, routing::get};
/// use tollgate_layers::facts::ClientAddr;
/// use tower::util::MapRequestLayer;
///
/// let address = MapRequestLayer::new(|mut req: Request| {
///     if let Some(ConnectInfo(address)) = req.extensions().get::<ConnectInfo<SocketAddr>>() {
///         let address = ClientAddr(address.ip());
///         req.extensions_mut().insert(address);
///     }
///     req
/// });
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(address);
/// # let _ = app;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddr(pub IpAddr);

impl ClientAddr {
    /// Returns the block of addresses that a rate limit counts as one client: a single IPv4 address, or an IPv6 /64.
    #[must_use]
    pub fn block(&self) -> IpAddr {
        match self.0.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        }
    }
}

/// The caller of a request: its key and account. The `auth` layer inserts it.
#[cfg(feature = "accounts")]
#[derive(Clone, Debug)]
pub struct Caller(pub Arc<KeyRecord>);

#[cfg(feature = "accounts")]
impl Caller {
    /// Returns the caller of a request.
    ///
    /// # Errors
    /// [`Error::Internal`] if no `auth` layer is above. Then the stack is wrong, not the caller's request.
    pub fn of<B>(req: &http::Request<B>) -> Result<&Self, Error> {
        let caller = req.extensions().get();
        caller.ok_or_else(|| {
            Error::Internal("the request has no caller: put the auth layer above this layer".into())
        })
    }
}

/// Header with the idempotency key of a call. If a client sends a call again with the same key, the call is still made
/// and charged only once.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The key that encrypts responses stored for this caller. `auth` derives it from the secret that the caller presents,
/// which the gateway never stores. `auth` inserts this extension if the request has an [`IDEMPOTENCY_KEY`] and the
/// caller's key permits stored responses.
#[derive(Clone)]
pub struct AnswerKey(pub [u8; 32]);

impl fmt::Debug for AnswerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerKey")
    }
}

/// Extension of a request whose response will be stored: the cost of the call. The cost is set when the call's hold
/// ends.
#[derive(Clone, Debug, Default)]
pub struct CallCost(Arc<AtomicI64>);

impl CallCost {
    /// Sets the cost of the call, when its hold has ended.
    pub fn set(&self, cost: MicroRub) {
        self.0.store(cost.micro(), Ordering::Release);
    }

    /// Returns whether the call cost something. False until the call's hold has ended.
    #[must_use]
    pub fn is_charged(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// Extension of a streamed response whose head was forwarded before the vendor sent any event. `passthrough` inserts
/// it. For such a response, `failover` waits for the first event before it counts the vendor as healthy.
#[derive(Clone, Copy, Debug)]
pub struct NothingSaid;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "accounts")]
    #[test]
    fn request_without_a_caller_extension_causes_an_internal_error() {
        let req = http::Request::new(());
        let refused = Caller::of(&req);
        assert!(matches!(refused, Err(Error::Internal(_))), "{refused:?}");
    }

    #[test]
    fn ipv6_clients_are_limited_by_64_bit_prefix_and_ipv4_mapped_addresses_by_ipv4_address() {
        let block = |text: &str| ClientAddr(text.parse().unwrap()).block().to_string();
        assert_eq!(block("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(block("::ffff:192.0.2.7"), "192.0.2.7");
    }
}

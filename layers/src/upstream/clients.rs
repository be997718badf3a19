//! One client with a pool of connections for each [`Egress`].

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
    time::Duration,
};

use foldhash::fast::RandomState;
use http::{Response, Uri};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{CaptureConnection, capture_connection},
    },
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::{Instant, timeout_at};

use super::{
    body::VendorBody,
    connect::{Connector, Retires},
    driven::{Alarm, Http1Client},
    request::{BoxRequest, RequestBody},
};
use crate::{
    error::BoxError,
    lock::{read, write},
    model::{Egress, Protocol},
};

/// The maximum number of clients. Clients that are no longer configured are dropped long before this maximum is
/// reached.
const CLIENTS_MAX: usize = 1024;
/// The HTTP/2 window of a stream: the number of bytes that may arrive before the gateway reads them. An event of a
/// model's stream has some hundred bytes.
const HTTP2_STREAM_BYTES: u32 = 64 * 1024;
/// The HTTP/2 window of a connection. A few hundred streams can remain unread while the other streams continue.
const HTTP2_CONNECTION_BYTES: u32 = 16 * 1024 * 1024;
/// The interval of HTTP/2 pings while a call uses the connection. A missing response shows that the connection is lost.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(30);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The client of one egress. It makes connections as the egress configures them.
#[derive(Clone)]
pub(super) enum VendorClient {
    /// HTTP/1.1: each connection has one call at a time.
    Http1(Arc<Http1Client>),
    /// HTTP/2 is allowed: a connection may have several calls at a time.
    Shared(Arc<Client<Connector, RequestBody>>),
}

impl VendorClient {
    pub(super) fn new(egress: &Egress) -> Result<Self, BoxError> {
        let connector = Connector::new(egress)?;
        let idle_timeout = egress.idle_connection_timeout;
        if egress.protocol == Protocol::Http1 {
            return Ok(Self::Http1(Arc::new(Http1Client::new(
                connector,
                idle_timeout,
            ))));
        }
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle_timeout)
            // If a connection was closed before any byte of the request was sent, the request is sent on another
            // connection. All other failures are left to the failover layer.
            .retry_canceled_requests(true)
            .http2_only(egress.protocol == Protocol::Http2)
            .http2_adaptive_window(false)
            .http2_initial_stream_window_size(HTTP2_STREAM_BYTES)
            .http2_initial_connection_window_size(HTTP2_CONNECTION_BYTES)
            .http2_keep_alive_interval(HTTP2_PING_EVERY)
            .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT);
        Ok(Self::Shared(Arc::new(builder.build(connector))))
    }

    /// Sends a request to an absolute URL, and returns the head of the response. Returns `None` if the head has not
    /// arrived by `until`.
    ///
    /// # Errors
    /// An error if no connection could be made, or if the connection broke before the head arrived.
    pub(super) async fn send(
        &self,
        address: &Uri,
        mut req: BoxRequest,
        now: Instant,
        until: Instant,
    ) -> Result<Option<Response<VendorBody>>, BoxError> {
        match self {
            Self::Http1(client) => {
                let res = client.send(address, req, now, until).await?;
                Ok(res.map(|res| res.map(VendorBody::Driven)))
            }
            Self::Shared(client) => {
                *req.uri_mut() = address.clone();
                let connection = capture_connection(req.as_mut());
                let Ok(res) = timeout_at(until, client.request(*req)).await else {
                    return Ok(None);
                };
                let res = res?;
                retire(&res, &connection);
                let res = res.map(|inner| VendorBody::Shared(inner, Alarm::default()));
                Ok(Some(res))
            }
        }
    }
}

/// Removes a connection from the pool if it is old enough to be closed.
fn retire(res: &Response<Incoming>, connection: &CaptureConnection) {
    let retires = res.extensions().get::<Retires>();
    if retires.is_some_and(|retires| Instant::now() >= retires.0)
        && let Some(connected) = &*connection.connection_metadata()
    {
        connected.poison();
    }
}

/// The clients of all egresses, each with its own pool of connections.
#[derive(Default)]
pub(super) struct Clients {
    /// The operator chooses the keys of this map, so a fast hash is safe against attacks.
    by_egress: RwLock<HashMap<Arc<Egress>, VendorClient, RandomState>>,
}

impl Clients {
    /// Returns the client of this egress. Creates the client when it is first needed.
    ///
    /// # Errors
    /// The error of [`Connector::new`], if the egress has an invalid certificate or proxy.
    pub(super) fn get(&self, egress: &Arc<Egress>) -> Result<VendorClient, BoxError> {
        let clients = read(&self.by_egress);
        if let Some(client) = clients.get(egress) {
            return Ok(client.clone());
        }
        drop(clients);
        let made = VendorClient::new(egress)?;
        let mut clients = write(&self.by_egress);
        if clients.len() >= CLIENTS_MAX {
            // Running calls have their own references to the clients, so they continue.
            clients.clear();
        }
        Ok(clients.entry(Arc::clone(egress)).or_insert(made).clone())
    }

    /// Drops the clients, with their idle connections, of all egresses that are not in `used`.
    pub(super) fn retain(&self, used: &[&Egress]) {
        let mut clients = write(&self.by_egress);
        clients.retain(|egress, _| used.contains(&&**egress));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_egress.read().unwrap().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Proxy;

    fn egress(seconds: u64, proxy: Option<&str>) -> Arc<Egress> {
        Arc::new(Egress {
            connect_timeout: Duration::from_secs(seconds),
            proxy: proxy.map(|address| Proxy::new(address.to_owned())),
            authorities: None,
            protocol: Protocol::Http1,
            idle_connection_timeout: Duration::from_secs(50),
        })
    }

    #[tokio::test]
    async fn vendors_with_equal_connection_settings_share_a_client() {
        let clients = Clients::default();
        let through = egress(3, Some("socks5://u:p@127.0.0.1:1080"));
        for egress in [
            &egress(3, None),
            &egress(3, None),
            &egress(5, None),
            &through,
        ] {
            clients.get(egress).unwrap();
        }
        assert_eq!(clients.len(), 3);
        clients.retain(&[&*egress(5, None), &*through]);
        assert_eq!(clients.len(), 2);
        clients.retain(&[]);
        assert_eq!(clients.len(), 0);
    }

    #[test]
    fn invalid_certificate_is_refused() {
        let mut broken = (*egress(3, None)).clone();
        broken.authorities = Some("hello".into());
        assert!(Clients::default().get(&Arc::new(broken)).is_err());
    }
}

//! A pool of connections for each way to make them.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
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
    model::{Egress, Protocol},
};

/// Most ways to connect that are kept; one that is left out of the config is dropped long before.
const CLIENTS_MAX: usize = 1024;
/// What is read from a stream of HTTP/2 ahead of whoever takes it. An event of a model's stream has some
/// hundred bytes.
const HTTP2_STREAM_BYTES: u32 = 64 * 1024;
/// For a connection of HTTP/2: a few hundred streams may stand still and the others still move.
const HTTP2_CONNECTION_BYTES: u32 = 16 * 1024 * 1024;
/// Whether a connection of HTTP/2 still lives is asked this often while a call runs on it.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(30);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends requests one way.
#[derive(Clone)]
pub(super) enum VendorClient {
    /// One call at a time on a connection.
    Http1(Arc<Http1Client>),
    /// Where HTTP/2 may be spoken: many on one.
    Shared(Arc<Client<Connector, RequestBody>>),
}

impl VendorClient {
    fn new(egress: &Egress) -> Result<Self, BoxError> {
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
            // A request that no byte of was sent, as its connection turned out to be closed, goes over
            // another one. Any other is failover's business.
            .retry_canceled_requests(true)
            .http2_only(egress.protocol == Protocol::Http2)
            .http2_adaptive_window(false)
            .http2_initial_stream_window_size(HTTP2_STREAM_BYTES)
            .http2_initial_connection_window_size(HTTP2_CONNECTION_BYTES)
            .http2_keep_alive_interval(HTTP2_PING_EVERY)
            .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT);
        Ok(Self::Shared(Arc::new(builder.build(connector))))
    }

    /// The head of the answer to a request that is sent to this address `now`; `None` if the head has not come
    /// by `until`.
    ///
    /// # Errors
    /// There is no connection, or it broke before that.
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

/// A connection that is old enough takes no other call.
fn retire(res: &Response<Incoming>, connection: &CaptureConnection) {
    let retires = res.extensions().get::<Retires>();
    if retires.is_some_and(|retires| Instant::now() >= retires.0)
        && let Some(connected) = &*connection.connection_metadata()
    {
        connected.poison();
    }
}

/// A client for each way to connect.
#[derive(Default)]
pub(super) struct Clients {
    /// The keys are the operator's, so a hash that is quick will do.
    by_egress: RwLock<HashMap<Arc<Egress>, VendorClient, RandomState>>,
}

impl Clients {
    /// The client for this way, made when it is asked for first.
    ///
    /// # Errors
    /// See [`Connector::new`].
    pub(super) fn get(&self, egress: &Arc<Egress>) -> Result<VendorClient, BoxError> {
        let clients = self
            .by_egress
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(egress) {
            return Ok(client.clone());
        }
        drop(clients);
        let made = VendorClient::new(egress)?;
        let mut clients = self
            .by_egress
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= CLIENTS_MAX {
            // Calls that run keep theirs.
            clients.clear();
        }
        Ok(clients.entry(Arc::clone(egress)).or_insert(made).clone())
    }

    /// Drops the clients, with their idle connections, for ways that are not among these.
    pub(super) fn retain(&self, used: &[&Egress]) {
        let mut clients = self
            .by_egress
            .write()
            .unwrap_or_else(PoisonError::into_inner);
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
    async fn equal_ways_share_a_client_and_one_that_nobody_uses_is_dropped() {
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
    fn a_certificate_that_is_none_is_refused() {
        let mut broken = (*egress(3, None)).clone();
        broken.authorities = Some("hello".into());
        assert!(Clients::default().get(&Arc::new(broken)).is_err());
    }
}

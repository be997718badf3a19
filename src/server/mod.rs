//! Sockets: accepts connections, tells each request its client's address, speaks HTTP/1.1 and h2, and
//! drains.

mod address;
mod attend;
mod peers;
mod socket;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use ipnet::IpNet;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tollgate_layers::{error::BoxError, facts::ClientAddr};
use tower::{Service, ServiceExt};

use self::{
    address::client_address,
    attend::{Activity, attend},
    peers::Peers,
    socket::Socket,
};

const HEADERS_MAX: usize = 64;
/// Of a head, and of what is read ahead of a body.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
/// After a failed accept (out of file descriptors, say) there is a pause, or the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a server needs beside a listener and a service.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Peers whose `x-forwarded-for` is believed.
    pub trusted_proxies: Arc<[IpNet]>,
    /// How patient it is with connections.
    pub connections: ConnectionLimits,
}

/// How patient a server is with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections in all.
    pub max: usize,
    /// Connections from one address block; a trusted proxy has as many as there are.
    pub per_address_max: usize,
    /// Time for the first byte.
    pub first_byte_timeout: Duration,
    /// Time for a request's head.
    pub head_timeout: Duration,
    /// Time without a request.
    pub idle_timeout: Duration,
    /// Age at which a connection is closed after its running answers; up to a tenth more.
    pub age_max: Duration,
    /// Time for a request and all of its answer.
    pub request_timeout: Duration,
    /// Time for the client to take what is written.
    pub write_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max: files_max() * 9 / 10,
            per_address_max: 256,
            first_byte_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            age_max: Duration::from_secs(3600),
            request_timeout: Duration::from_secs(1260),
            write_timeout: Duration::from_secs(30),
        }
    }
}

/// How many files this process may have open; 1024 where that is not told.
fn files_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok())
        .unwrap_or(1024)
}

/// Serves until `draining` turns true; then takes no more connections and lets running answers finish.
/// Dropped, it cuts what is left.
pub async fn serve<S, A>(
    listener: TcpListener,
    service: S,
    settings: ServerSettings,
    draining: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<A>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    let peers = Peers::new(settings.connections, Arc::clone(&settings.trusted_proxies));
    let mut connections = JoinSet::new();
    let mut told = std::pin::pin!(drain_begins(draining.clone()));
    loop {
        let (socket, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = &mut told => break,
        };
        // The socket is closed by being dropped: a full server has no time for words.
        if let Some(place) = peers.admit(peer.ip()) {
            let connection = connection(socket, peer, service.clone(), &settings, draining.clone());
            connections.spawn(async move {
                connection.await;
                drop(place);
            });
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn drain_begins(mut draining: watch::Receiver<bool>) {
    // A sender that is gone has nothing to say any more.
    drop(draining.wait_for(|draining| *draining).await);
}

/// One connection to its end.
fn connection<S, A>(
    socket: TcpStream,
    peer: SocketAddr,
    service: S,
    settings: &ServerSettings,
    draining: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + use<S, A>
where
    S: Service<Request<Incoming>, Response = Response<A>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    // Small frames leave at once.
    let _ = socket.set_nodelay(true);
    let (trusted, limits) = (Arc::clone(&settings.trusted_proxies), settings.connections);
    let activity = Activity::new();
    let socket = Socket::new(socket, limits.write_timeout, activity.clone());
    let seen = activity.clone();
    let service = service_fn(move |mut req: Request<Incoming>| {
        let address = client_address(peer.ip(), req.headers(), &trusted);
        req.extensions_mut().insert(ClientAddr(address));
        let running = seen.begin();
        let answer = service.clone().oneshot(req);
        async move { Ok::<_, Infallible>(running.until_end_of(answer.await?)) }
    });
    let builder = builder(limits);
    async move {
        let served = builder.serve_connection(TokioIo::new(socket), service);
        let served = std::pin::pin!(served);
        if let Err(error) = attend(served, &activity, limits, drain_begins(draining)).await {
            tracing::debug!(error, "connection ended");
        }
    }
}

fn builder(limits: ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // It also runs while a connection idles; the first head is timed by `attend`.
        .header_read_timeout(limits.idle_timeout.max(limits.head_timeout))
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(100)
        .initial_stream_window_size(64 * 1024)
        .initial_connection_window_size(1024 * 1024)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_header_list_size(32 * 1024);
    builder
}

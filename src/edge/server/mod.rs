//! Sockets: accepts connections, tells each request its client's address, speaks HTTP/1.1 and h2, in TLS or
//! without, and drains.

mod address;
mod body;
mod framing;
mod half_closed;
mod inherited;
mod listen;
mod open;
mod peers;
mod socket;
mod supervise;
mod transport;
mod unread;

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, LazyLock},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{TryFutureExt, future::Either};
use http::{Extensions, Request, Response, Version, header::EXPECT};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use ipnet::IpNet;
use tokio::{net::TcpStream, sync::watch, task::JoinSet, time::timeout};
use tollgate_layers::{error::BoxError, facts::ClientAddr, setting::Setting};
use tower::{Service, ServiceExt, util::Oneshot};

pub use self::{
    address::client_address, body::RequestBody, inherited::InheritedSockets, listen::Listener,
    open::OpenConnections,
};
use self::{
    framing::{AmbiguousFraming, Framing},
    peers::Peers,
    socket::Socket,
    supervise::{Activity, supervise},
    transport::Transport,
};
use crate::{
    edge::{panics::catch_round, tls::Tls},
    node::files::Shares,
};

/// With the usual limit these make a hundred, for which hyper allocates nothing.
const HEADERS_SPARE: usize = 36;
/// So much is read from a connection at a time, where there is so much: a body of a coding tool then is one frame,
/// which is not copied.
const BUFFER_BYTES_MIN: usize = 128 * 1024;
/// After a failed accept (out of file descriptors, say) there is a pause, or the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A request's extensions, with room for all that we insert: their table need not grow on the way.
static ROOMY: LazyLock<Extensions> = LazyLock::new(|| {
    let mut extensions = Extensions::new();
    // The first table has room for three.
    extensions.insert(1_u8);
    extensions.insert(2_u16);
    extensions.insert(3_u32);
    extensions.insert(4_u64);
    extensions.clear();
    extensions
});

/// What a server needs beside a listener and a service. Changed, it holds for connections from then on.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Peers whose `x-forwarded-for` is believed.
    pub trusted_proxies: Setting<Arc<[IpNet]>>,
    /// How patient it is with connections.
    pub connections: Setting<ConnectionLimits>,
    /// How many there are.
    pub open: OpenConnections,
    /// Speaks TLS, and nothing without it.
    pub tls: Option<Tls>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        let nobody: Arc<[IpNet]> = Arc::new([]);
        Self {
            trusted_proxies: nobody.into(),
            connections: ConnectionLimits::default().into(),
            open: OpenConnections::default(),
            tls: None,
        }
    }
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
    /// Lines of a request's head.
    pub headers_max: usize,
    /// Bytes of a request's head. What is beyond twice that, and beyond 128 KB, is not read.
    pub head_bytes_max: usize,
    /// What holds on HTTP/2 alone.
    pub h2: H2Limits,
}

/// How much a client may do at a time on one HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2Limits {
    /// Requests at a time.
    pub streams_max: u32,
    /// Bytes of one request's body that may be under way.
    pub stream_window_bytes: u32,
    /// Bytes of all bodies that may be under way.
    pub connection_window_bytes: u32,
    /// Time between two pings of ours.
    pub ping_interval: Duration,
    /// Time for the answer to one.
    pub ping_timeout: Duration,
}

impl Default for H2Limits {
    fn default() -> Self {
        Self {
            streams_max: 100,
            stream_window_bytes: 64 * 1024,
            connection_window_bytes: 1024 * 1024,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(20),
        }
    }
}

/// Streams that a client opened and reset before we looked at them; more end the connection
/// (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 20;
/// Streams that we had to reset for what the client did on them; more end the connection.
const LOCAL_RESETS_MAX: usize = 1024;

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max: Shares::of_process(0).callers,
            per_address_max: 256,
            first_byte_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            age_max: Duration::from_secs(3600),
            request_timeout: Duration::from_secs(1260),
            write_timeout: Duration::from_secs(30),
            headers_max: 64,
            head_bytes_max: 32 * 1024,
            h2: H2Limits::default(),
        }
    }
}

/// Serves until `draining` turns true; then takes no more connections than have come already, and lets running
/// answers finish. Dropped, it cuts what is left.
pub async fn serve<S, A>(
    listener: impl Into<Listener>,
    service: S,
    settings: ServerSettings,
    draining: watch::Receiver<bool>,
) where
    S: Service<Request<RequestBody>, Response = Response<A>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    let listener = listener.into();
    let peers = Peers::new(
        settings.connections.clone(),
        settings.trusted_proxies.clone(),
    );
    let mut connections = JoinSet::new();
    let begin = |connections: &mut JoinSet<()>, (socket, peer): (TcpStream, SocketAddr)| {
        // The socket is closed by being dropped: a full server has no time for words.
        if let Some(permit) = peers.admit(peer.ip()) {
            let kept = (permit, settings.open.another());
            let (service, draining) = (service.clone(), draining.clone());
            connections.spawn(connection(socket, peer, service, &settings, draining, kept));
        }
    };
    // With this task all connections would be cut.
    let part = "the beginning of a connection";
    let mut drains = std::pin::pin!(drain_begins(draining.clone()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = &mut drains => break,
        };
        catch_round(part, async { begin(&mut connections, accepted) }).await;
    }
    match listener.close() {
        Ok(waiting) => {
            for accepted in waiting {
                catch_round(part, async { begin(&mut connections, accepted) }).await;
            }
        }
        Err(error) => tracing::warn!(%error, "connections that waited to be accepted are lost"),
    }
    while connections.join_next().await.is_some() {}
}

async fn drain_begins(mut draining: watch::Receiver<bool>) {
    // A sender that is gone has nothing to say any more.
    drop(draining.wait_for(|draining| *draining).await);
}

/// One connection to its end. What it is to keep is dropped behind it; not by a future around this one, which
/// would have room for it twice.
fn connection<S, A, K>(
    socket: TcpStream,
    peer: SocketAddr,
    service: S,
    settings: &ServerSettings,
    draining: watch::Receiver<bool>,
    kept: K,
) -> impl Future<Output = ()> + Send + use<S, A, K>
where
    K: Send,
    S: Service<Request<RequestBody>, Response = Response<A>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    // Small frames leave at once.
    let _ = socket.set_nodelay(true);
    let trusted = settings.trusted_proxies.get();
    let (limits, tls) = (settings.connections.get(), settings.tls.clone());
    async move {
        let _kept = kept;
        let Some(transport) = transport(socket, tls.as_ref(), limits.first_byte_timeout).await
        else {
            return;
        };
        let (activity, doubt) = (Activity::new(), AmbiguousFraming::default());
        let framing = Framing::new(doubt.clone());
        let socket = Socket::new(transport, limits.write_timeout, activity.clone(), framing);
        let seen = activity.clone();
        let service = service_fn(move |mut req: Request<Incoming>| {
            let address = client_address(peer.ip(), req.headers(), &trusted);
            let there = std::mem::replace(req.extensions_mut(), ROOMY.clone());
            req.extensions_mut().extend(there);
            req.extensions_mut().insert(ClientAddr(address));
            let (running, nth) = seen.begin(req.version());
            if let Some(fault) = doubt.of(nth) {
                req.extensions_mut().insert(fault);
            }
            let of_one_task = req.version() != Version::HTTP_2;
            let awaited = req.headers().contains_key(EXPECT);
            let req =
                req.map(|incoming| RequestBody::new(incoming, of_one_task, awaited, seen.clone()));
            let answer = call_ready(service.clone(), req);
            answer.map_ok(move |res| running.until_end_of(res))
        });
        let builder = builder(limits);
        let served = builder.serve_connection(TokioIo::new(socket), service);
        let served = std::pin::pin!(served);
        if let Err(error) = supervise(served, &activity, &limits, drain_begins(draining)).await {
            tracing::debug!(error, "connection ended");
        }
    }
}

/// [`ServiceExt::oneshot`], but without its states for a service that is ready, as ours always are.
fn call_ready<S, R>(mut service: S, req: R) -> Either<S::Future, Oneshot<S, R>>
where
    S: Service<R>,
{
    match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(())) => Either::Left(service.call(req)),
        _ => Either::Right(service.oneshot(req)),
    }
}

/// Agrees on TLS, if it is spoken here, within the time for the first byte. `None`: the client did not.
async fn transport(socket: TcpStream, tls: Option<&Tls>, patience: Duration) -> Option<Transport> {
    let Some(tls) = tls else {
        return Some(Transport::Plain(socket));
    };
    match timeout(patience, tls.acceptor().accept(socket)).await {
        Ok(Ok(stream)) => Some(Transport::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no TLS agreed on");
            None
        }
        Err(_) => {
            tracing::debug!("no TLS agreed on in time: limits.first_byte_seconds");
            None
        }
    }
}

fn builder(limits: ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let ConnectionLimits {
        headers_max,
        head_bytes_max,
        h2,
        ..
    } = limits;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Somewhat more than is allowed reaches `head`, which refuses in the shape of all refusals; hyper's own
    // refusal has no body.
    builder
        .http1()
        // Heads are timed by `supervise`, which needs no timer for each of them.
        .header_read_timeout(None::<Duration>)
        .max_headers(headers_max + HEADERS_SPARE)
        // Frames that are there leave in one write. Each has three parts in chunked encoding, and the
        // parts of five are as many as hyper hands to the system at a time; copied, they are one.
        .writev(false)
        .max_buf_size((head_bytes_max * 2).max(BUFFER_BYTES_MIN));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(h2.streams_max)
        .initial_stream_window_size(h2.stream_window_bytes)
        .initial_connection_window_size(h2.connection_window_bytes)
        .keep_alive_interval(h2.ping_interval)
        .keep_alive_timeout(h2.ping_timeout)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(LOCAL_RESETS_MAX)
        .max_header_list_size(u32::try_from(head_bytes_max * 2).unwrap_or(u32::MAX));
    builder
}

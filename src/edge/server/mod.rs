//! The server: accepts connections, adds the client's address to each request, and speaks HTTP/1.1 and HTTP/2, with or
//! without TLS. When the server drains, running answers may finish.

mod address;
mod body;
mod control_frames;
mod framing;
mod half_closed;
mod inherited;
mod listen;
mod open;
mod peers;
mod seats;
mod socket;
mod supervise;
mod transport;
mod unread;

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
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
    open::OpenConnections, seats::Seat,
};
use self::{
    framing::{AmbiguousFraming, Framing},
    open::Open,
    peers::{ConnectionPermit, Peers},
    seats::{SeatPermit, Seats},
    socket::Socket,
    supervise::{Activity, supervise},
    transport::Transport,
};
use crate::{
    edge::{panics::catch_round, tls::Tls},
    net::files::Shares,
};

/// The number of header lines that hyper allows in addition to `headers_max`, so that the gateway itself refuses
/// requests with too many. With the default maximum hyper allows a hundred lines, for which it does not allocate.
const HEADERS_SPARE: usize = 36;
/// Lower bound of hyper's read buffer. The request body of a typical coding tool then fits into a single frame, which
/// is not copied.
const BUFFER_BYTES_MIN: usize = 128 * 1024;
/// The pause after a failed accept (for example, if no file descriptor is free), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Request extensions with room for everything that the gateway inserts, so that their table does not grow later.
static ROOMY: LazyLock<Extensions> = LazyLock::new(|| {
    let mut extensions = Extensions::new();
    // The first insertion allocates the map's table, which then has room for three entries.
    extensions.insert(1_u8);
    extensions.insert(2_u16);
    extensions.insert(3_u32);
    extensions.insert(4_u64);
    extensions.clear();
    extensions
});

/// The settings of a server, apart from its listener and its service. Changes apply to new connections.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The networks whose `x-forwarded-for` header is trusted.
    pub trusted_proxies: Setting<Arc<[IpNet]>>,
    /// The limits and timeouts of this listener's connections.
    pub connections: Setting<ConnectionLimits>,
    /// Counts open connections.
    pub open: OpenConnections,
    /// The treatment of a new connection if the server has its maximum number of connections.
    pub when_full: WhenFull,
    /// TLS; if configured, plain HTTP is not served.
    pub tls: Option<Tls>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        let nobody: Arc<[IpNet]> = Arc::new([]);
        Self {
            trusted_proxies: nobody.into(),
            connections: ConnectionLimits::default().into(),
            open: OpenConnections::default(),
            when_full: WhenFull::Refuse,
            tls: None,
        }
    }
}

/// How a server treats a new connection if it has its maximum number of connections already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Refuses the new connection. Connections above the limit of their address are refused, too.
    Refuse,
    /// Admits the new connection, and closes another connection that has not signed in. Each request carries its
    /// connection's [`Seat`].
    ReplaceStrangers,
}

/// Counts connections and decides which are admitted.
enum Admission {
    Counted(Peers),
    Seats(Seats),
}

/// The right of a connection to be open. The connection counts until this value is dropped.
enum AdmissionPermit {
    Counted(
        #[expect(dead_code, reason = "dropping it frees the connection's slot")] ConnectionPermit,
    ),
    Seat(SeatPermit),
}

impl Admission {
    fn new(settings: &ServerSettings) -> Self {
        let (limits, proxies) = (
            settings.connections.clone(),
            settings.trusted_proxies.clone(),
        );
        match settings.when_full {
            WhenFull::Refuse => Self::Counted(Peers::new(limits, proxies)),
            WhenFull::ReplaceStrangers => Self::Seats(Seats::new(limits, proxies)),
        }
    }

    fn admit(&self, peer: IpAddr) -> Option<AdmissionPermit> {
        match self {
            Self::Counted(peers) => peers.admit(peer).map(AdmissionPermit::Counted),
            Self::Seats(seats) => seats.admit(peer).map(AdmissionPermit::Seat),
        }
    }
}

impl AdmissionPermit {
    fn seat(&self) -> Option<Arc<Seat>> {
        match self {
            Self::Counted(_) => None,
            Self::Seat(permit) => Some(Arc::clone(&permit.seat)),
        }
    }
}

/// The limits and timeouts of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The largest number of connections.
    pub max: usize,
    /// The maximum number of connections per address block; does not apply to trusted proxies.
    pub per_address_max: usize,
    /// The timeout for a new connection's first byte.
    pub first_byte_timeout: Duration,
    /// The timeout for receiving a request's head.
    pub head_timeout: Duration,
    /// The longest time for which a connection may stay open without a request.
    pub idle_timeout: Duration,
    /// The age at which a connection is closed once its running answers have ended; up to a tenth is added.
    pub age_max: Duration,
    /// The maximum time for a request and its whole answer.
    pub request_timeout: Duration,
    /// The time after which a client that accepts no data is disconnected.
    pub write_timeout: Duration,
    /// The largest number of header lines.
    pub headers_max: usize,
    /// The maximum bytes of a request's head. The server reads at most twice as many, or 128 KB if that is more.
    pub head_bytes_max: usize,
    /// The limits of HTTP/2.
    pub h2: H2Limits,
}

/// The limits of an HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2Limits {
    /// The largest number of concurrent requests.
    pub streams_max: u32,
    /// The flow-control window per stream, in bytes.
    pub stream_window_bytes: u32,
    /// The flow-control window per connection, in bytes.
    pub connection_window_bytes: u32,
    /// The interval between the gateway's pings.
    pub ping_interval: Duration,
    /// The timeout for the answer to a ping.
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

/// The maximum number of streams that a client has opened and reset before the gateway handled them; beyond it the
/// connection is closed (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 20;
/// The maximum number of streams that the gateway had to reset because of the client's errors; beyond it the
/// connection is closed.
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

/// Serves until `draining` becomes true; then accepts only connections that have already arrived, and lets running
/// answers finish. If the future is dropped, all remaining connections are aborted.
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
    let admission = Admission::new(&settings);
    let mut connections = JoinSet::new();
    let begin = |connections: &mut JoinSet<()>, (socket, peer): (TcpStream, SocketAddr)| {
        // If the limit is reached, dropping the socket closes it: a full server does not spend time on an answer.
        if let Some(place) = admission.admit(peer.ip()) {
            let seat = place.seat();
            let stored = (place, seat.clone(), settings.open.another());
            let (service, draining) = (service.clone(), draining.clone());
            let run = connection(socket, peer, service, &settings, draining, stored);
            match seat {
                None => connections.spawn(run),
                Some(seat) => connections.spawn(async move {
                    tokio::select! {
                        () = seat.replaced() => {}
                        () = run => {}
                    }
                }),
            };
        }
    };
    // Panics are caught here, because a panic would end the accepting task, and with it all connections.
    let part = "the start of a connection";
    let mut drains = std::pin::pin!(drain_begins(draining.clone()));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
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

/// Returns the next connection. Pauses after an error, for example if the process has no free file.
async fn accept(listener: &Listener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn drain_begins(mut draining: watch::Receiver<bool>) {
    // An error means that the sender was dropped; the server drains in that case too.
    drop(draining.wait_for(|draining| *draining).await);
}

/// Serves one connection until it ends. The guards in `kept` are dropped after the connection. They are a part of this
/// future, because an outer future with the guards would need space for the connection twice.
fn connection<S, A>(
    socket: TcpStream,
    peer: SocketAddr,
    service: S,
    settings: &ServerSettings,
    draining: watch::Receiver<bool>,
    stored: (AdmissionPermit, Option<Arc<Seat>>, Open),
) -> impl Future<Output = ()> + Send + use<S, A>
where
    S: Service<Request<RequestBody>, Response = Response<A>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    // TCP sends small frames immediately, without waiting for more data.
    let _ = socket.set_nodelay(true);
    let trusted = settings.trusted_proxies.get();
    let (limits, tls) = (settings.connections.get(), settings.tls.clone());
    async move {
        let (_place, seat, _open) = stored;
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
            if let Some(seat) = &seat {
                seat.touch();
                req.extensions_mut().insert(Arc::clone(seat));
            }
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

/// Like [`ServiceExt::oneshot`], but without its states for a service that is already ready, as the gateway's always
/// are.
fn call_ready<S, R>(mut service: S, req: R) -> Either<S::Future, Oneshot<S, R>>
where
    S: Service<R>,
{
    match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(())) => Either::Left(service.call(req)),
        _ => Either::Right(service.oneshot(req)),
    }
}

/// Performs the TLS handshake, if TLS is configured, within the timeout for the first byte. Returns `None` if the
/// client did not complete the handshake.
async fn transport(socket: TcpStream, tls: Option<&Tls>, patience: Duration) -> Option<Transport> {
    let Some(tls) = tls else {
        return Some(Transport::Plain(socket));
    };
    match timeout(patience, tls.acceptor().accept(socket)).await {
        Ok(Ok(stream)) => Some(Transport::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!("TLS handshake too slow: limits.first_byte_seconds");
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
    // hyper's limit is somewhat larger, so that the layer `head` refuses the request in the form of all refusals;
    // hyper's own refusal has no body.
    builder
        .http1()
        // `supervise` limits the time of heads, without a timer for each head.
        .header_read_timeout(None::<Duration>)
        .max_headers(headers_max + HEADERS_SPARE)
        // All available frames are sent in one write. With chunked encoding a frame has three parts, and a vectored
        // write of hyper covers at most five frames. Without vectored writes hyper copies all parts into one.
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

//! The HTTP server. It accepts connections, adds the client's address to each request, and speaks HTTP/1.1 and HTTP/2,
//! with or without TLS. When the server drains, it accepts no more connections and lets the requests in flight end.

mod activity;
mod address;
mod answer_body;
mod body;
mod control_frames;
mod framing;
mod half_closed;
mod inherited;
mod limits;
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
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use tokio::{net::TcpStream, sync::watch, task::JoinSet, time::timeout};
use tollgate_layers::{error::BoxError, facts::ClientAddr, setting::Setting};
use tower::{Service, ServiceExt, util::Oneshot};

use self::{
    activity::Activity,
    framing::{AmbiguousFraming, Framing},
    open::Open,
    peers::{ConnectionPermit, Peers},
    seats::{SeatPermit, Seats},
    socket::Socket,
    supervise::supervise,
    transport::Transport,
};
pub use self::{
    address::client_address,
    body::RequestBody,
    inherited::InheritedSockets,
    limits::{ConnectionLimits, H2Limits},
    listen::Listener,
    open::OpenConnections,
    seats::Seat,
};
use crate::edge::{panics::catch_round, tls::Tls};

/// The pause after a connection could not be accepted (for example, because no file descriptor is free). Without the
/// pause, the accept loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Creates request extensions with space for everything that the gateway inserts, so that their table need not grow
/// later.
static ROOMY: LazyLock<Extensions> = LazyLock::new(|| {
    let mut extensions = Extensions::new();
    // The first insertion allocates the map's table with space for three entries.
    extensions.insert(1_u8);
    extensions.insert(2_u16);
    extensions.insert(3_u32);
    extensions.insert(4_u64);
    extensions.clear();
    extensions
});

/// The settings of a server, except its listener and its service. A changed setting applies to new connections.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The networks of proxies whose `x-forwarded-for` header is trusted.
    pub trusted_proxies: Setting<Arc<[IpNet]>>,
    /// Limits and timeouts of the listener's connections.
    pub connections: Setting<ConnectionLimits>,
    /// Counts the open connections of the listener.
    pub open: OpenConnections,
    /// How the server treats a new connection if it already has its maximum number of connections.
    pub when_full: WhenFull,
    /// The TLS settings. If present, the server does not serve plain HTTP.
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

/// How the server treats a new connection if it already has its maximum number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The new connection is refused. It is also refused if its address block already has its maximum number of
    /// connections.
    Refuse,
    /// The new connection is admitted, and a connection that has not signed in is closed. Each request carries the
    /// [`Seat`] of its connection as an extension.
    ReplaceStrangers,
}

/// Counts the open connections and decides whether a new one is admitted.
enum Admission {
    Counted(Peers),
    Seats(Seats),
}

/// Permission for a connection to be open. The connection is counted until this permit is dropped.
type AdmissionPermit = Either<ConnectionPermit, SeatPermit>;

impl Admission {
    fn new(settings: &ServerSettings) -> Self {
        let limits = settings.connections.clone();
        let proxies = settings.trusted_proxies.clone();
        match settings.when_full {
            WhenFull::Refuse => Self::Counted(Peers::new(limits, proxies)),
            WhenFull::ReplaceStrangers => Self::Seats(Seats::new(limits, proxies)),
        }
    }

    fn admit(&self, peer: IpAddr) -> Option<(AdmissionPermit, Option<Arc<Seat>>)> {
        match self {
            Self::Counted(peers) => Some((Either::Left(peers.admit(peer)?), None)),
            Self::Seats(seats) => {
                let permit = seats.admit(peer)?;
                let seat = Arc::clone(&permit.seat);
                Some((Either::Right(permit), Some(seat)))
            }
        }
    }
}

/// Serves connections until `draining` becomes true. Then accepts only connections that have already arrived, and lets
/// the requests in flight end. If the returned future is dropped, all remaining connections are aborted.
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
        // If the maximum number of connections is reached, the socket is dropped, which closes it. A full server does
        // not spend time on a response.
        if let Some((permit, seat)) = admission.admit(peer.ip()) {
            let guards = (permit, seat.clone(), settings.open.another());
            let (service, draining) = (service.clone(), draining.clone());
            let run = connection(socket, peer, service, &settings, draining, guards);
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
    // Panics are caught here: an uncaught panic would end the accepting task, and with it all connections.
    let part = "the task that accepts connections";
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
        Err(error) => tracing::warn!(%error, "connections that waited to be accepted were lost"),
    }
    while connections.join_next().await.is_some() {}
}

/// Returns the next connection that arrives. If it cannot be accepted (for example, because the process has no free
/// file descriptor), pauses and tries again.
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
    // An error means that the sender was dropped. The server drains in this case, too.
    drop(draining.wait_for(|draining| *draining).await);
}

/// Serves one connection until it ends, and then drops `guards`. The guards are part of this future because an outer
/// future that holds them would need space for the connection twice.
fn connection<S, A>(
    socket: TcpStream,
    peer: SocketAddr,
    service: S,
    settings: &ServerSettings,
    draining: watch::Receiver<bool>,
    guards: (AdmissionPermit, Option<Arc<Seat>>, Open),
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
    // With this option, TCP sends small frames immediately instead of waiting for more data.
    let _ = socket.set_nodelay(true);
    let trusted = settings.trusted_proxies.get();
    let (limits, tls) = (settings.connections.get(), settings.tls.clone());
    async move {
        let (_permit, seat, _open) = guards;
        let Some(transport) = transport(socket, tls.as_ref(), limits.first_byte_timeout).await
        else {
            return;
        };
        let (activity, ambiguous) = (Activity::new(), AmbiguousFraming::default());
        let framing = Framing::new(ambiguous.clone());
        let socket = Socket::new(transport, limits.write_timeout, activity.clone(), framing);
        let of_requests = activity.clone();
        let service = service_fn(move |mut req: Request<Incoming>| {
            let address = client_address(peer.ip(), req.headers(), &trusted);
            let before = std::mem::replace(req.extensions_mut(), ROOMY.clone());
            req.extensions_mut().extend(before);
            req.extensions_mut().insert(ClientAddr(address));
            if let Some(seat) = &seat {
                seat.touch();
                req.extensions_mut().insert(Arc::clone(seat));
            }
            let (in_flight, nth) = of_requests.begin(req.version());
            if let Some(fault) = ambiguous.at_request(nth) {
                req.extensions_mut().insert(fault);
            }
            let shares_task = req.version() != Version::HTTP_2;
            let awaited = req.headers().contains_key(EXPECT);
            let activity = of_requests.clone();
            let req = req.map(|body| RequestBody::new(body, shares_task, awaited, activity));
            let answer = call_ready(service.clone(), req);
            answer.map_ok(move |res| in_flight.until_end_of(res))
        });
        let builder = limits.server();
        let served = builder.serve_connection(TokioIo::new(socket), service);
        let served = std::pin::pin!(served);
        if let Err(error) = supervise(served, &activity, &limits, drain_begins(draining)).await {
            tracing::debug!(error, "connection ended");
        }
    }
}

/// Calls a service once, like [`ServiceExt::oneshot`], but with a smaller future, because the gateway's services are
/// always ready.
fn call_ready<S, R>(mut service: S, req: R) -> Either<S::Future, Oneshot<S, R>>
where
    S: Service<R>,
{
    match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(())) => Either::Left(service.call(req)),
        _ => Either::Right(service.oneshot(req)),
    }
}

/// If TLS is configured, performs the TLS handshake within the timeout for the first byte. Returns `None` if the
/// handshake fails or takes too long.
async fn transport(socket: TcpStream, tls: Option<&Tls>, time_max: Duration) -> Option<Transport> {
    let Some(tls) = tls else {
        return Some(Transport::Plain(socket));
    };
    match timeout(time_max, tls.acceptor().accept(socket)).await {
        Ok(Ok(stream)) => return Some(Transport::Tls(Box::new(stream))),
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took longer than limits.first_byte_seconds"),
    }
    None
}

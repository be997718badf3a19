//! Sockets: accepts connections, tells each request its client's address, speaks HTTP/1.1 and h2, and
//! drains.

use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use ipnet::IpNet;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};
use tollgate_layers::{error::BoxError, facts::ClientAddr};
use tower::{Service, ServiceExt};

/// How long a request's head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
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
    /// How long running answers may take once draining began.
    pub drain_timeout: Duration,
}

/// Serves until `draining` turns true; then takes no more connections, lets running answers finish for
/// a while, and cuts the rest.
pub async fn serve<S, A>(
    listener: TcpListener,
    service: S,
    settings: ServerSettings,
    mut draining: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<A>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    let builder = builder();
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut told =
        std::pin::pin!(async move { drop(draining.wait_for(|draining| *draining).await) });
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
        // Small frames leave at once.
        let _ = socket.set_nodelay(true);
        let (service, trusted) = (service.clone(), Arc::clone(&settings.trusted_proxies));
        let service = service_fn(move |mut req: Request<Incoming>| {
            let address = client_address(peer.ip(), req.headers(), &trusted);
            req.extensions_mut().insert(ClientAddr(address));
            service.clone().oneshot(req)
        });
        let connection = builder
            .serve_connection(TokioIo::new(socket), service)
            .into_owned();
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error, "connection ended");
            }
        });
    }
    drop(listener);
    if timeout(settings.drain_timeout, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!(
            connections = connections.len(),
            "cutting what did not finish in time"
        );
    }
    // Answers that are cut are dropped: they are charged as if their clients had left.
    connections.shutdown().await;
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(100)
        .max_header_list_size(32 * 1024);
    builder
}

/// The socket's address, unless the peer is a trusted proxy: then the rightmost entry of
/// `x-forwarded-for` that is not one.
fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    let peer = peer.to_canonical();
    if trusted.is_empty() || !is_trusted(&peer) {
        return peer;
    }
    let lines: Vec<&str> = headers
        .get_all("x-forwarded-for")
        .iter()
        .filter_map(|line| line.to_str().ok())
        .collect();
    let mut nearest = peer;
    for entry in lines.iter().rev().flat_map(|line| line.rsplit(',')) {
        // What stands left of something that is no address is hearsay.
        let Some(address) = parse_address(entry.trim()) else {
            return nearest;
        };
        if !is_trusted(&address) {
            return address;
        }
        nearest = address;
    }
    nearest
}

/// An address, with or without a port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse().ok().or_else(|| {
        text.parse()
            .ok()
            .map(|socket: std::net::SocketAddr| socket.ip())
    });
    address.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_proxies_are_believed_about_the_client() {
        let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        for (peer, forwarded, client) in [
            ("192.0.2.1", &["203.0.113.9"][..], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1", "203.0.113.9:4711"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1, nonsense, 10.0.0.3"], "10.0.0.3"),
            ("10.0.0.1", &["nonsense"], "10.0.0.1"),
            ("::ffff:10.0.0.1", &["[2001:db8::1]:80"], "2001:db8::1"),
            ("::1", &["2001:db8::2"], "2001:db8::2"),
        ] {
            let mut headers = HeaderMap::new();
            for line in forwarded {
                headers.append("x-forwarded-for", line.parse().unwrap());
            }
            let found = client_address(peer.parse().unwrap(), &headers, &trusted);
            assert_eq!(found.to_string(), client, "{peer} {forwarded:?}");
        }
    }
}

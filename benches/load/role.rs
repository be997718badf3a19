//! A process that was started for the bench: how it says where it is, and when it ends.

use std::{
    fmt::Display,
    io,
    net::{Ipv4Addr, SocketAddr},
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, runtime, task::JoinSet};

/// Runs a role to its end. What goes wrong is told to the process that started it.
pub(crate) fn play(
    runtime: &mut runtime::Builder,
    role: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let runtime = runtime.enable_all().build()?;
    let played = runtime.block_on(role);
    if let Err(error) = &played {
        say("error", &format!("{error:#}").replace('\n', " "));
    }
    // The thread that waits for the end of the standard input may wait for ever.
    runtime.shutdown_background();
    played
}

/// A fact for the process that started this one.
pub(crate) fn say(name: &str, value: &dyn Display) {
    println!("{name}: {value}");
}

/// All that had to be said before the first call has been said.
pub(crate) fn ready() {
    println!("ready");
}

/// Until the process that started this one lets go of it, or has died.
pub(crate) async fn until_told_to_stop() {
    let waited = tokio::task::spawn_blocking(|| {
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    });
    drop(waited.await);
}

pub(crate) async fn listen() -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .context("cannot listen on a port of 127.0.0.1")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// An HTTP/1.1 server as hyper makes it: no timeouts, no limits, no shutdown.
pub(crate) async fn serve<F, R, B, E>(listener: TcpListener, answer: F) -> anyhow::Result<()>
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Result<Response<B>, E>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            Some(_) = connections.join_next() => continue,
        };
        socket.set_nodelay(true)?;
        let service = service_fn(answer.clone());
        let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
        connections.spawn(async move { drop(connection.await) });
    }
}

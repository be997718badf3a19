//! The client: so many calls a second, answered or not, on one thread. Slow answers do not slow the calls
//! down, or they would hide themselves.

use std::{cell::Cell, convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::{fixtures::chat_request, gateway::Gateway};

/// How often the gateway's memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What became of a load. Times are from the moment a call was sent to its last byte, sorted.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) per_second: u32,
    pub(crate) elapsed: Duration,
    pub(crate) served: Vec<Duration>,
    /// 503 with `retry-after`.
    pub(crate) refused: Vec<Duration>,
    /// Whatever else came.
    pub(crate) others: Vec<String>,
    /// How far behind its pace the client was at most.
    pub(crate) behind: Duration,
    /// The most memory that the gateway had.
    pub(crate) rss_kib: u64,
}

impl Seen {
    /// So many in all, as a rate.
    pub(crate) fn each_second(&self, count: usize) -> f64 {
        count as f64 / self.elapsed.as_secs_f64()
    }
}

/// Sends so many calls a second for so long, and waits for all of them.
pub(crate) async fn load(
    gateway: &Gateway,
    per_second: u32,
    time: Duration,
) -> anyhow::Result<Seen> {
    let rss_kib = Cell::new(0);
    let mut seen = tokio::select! {
        seen = send(gateway, per_second, time) => seen?,
        failed = watch(gateway, &rss_kib) => match failed? {},
    };
    seen.rss_kib = rss_kib.get();
    seen.served.sort_unstable();
    seen.refused.sort_unstable();
    Ok(seen)
}

async fn watch(gateway: &Gateway, rss_kib: &Cell<u64>) -> anyhow::Result<Infallible> {
    loop {
        rss_kib.set(gateway.rss_kib().max(rss_kib.get()));
        sleep(LOOK_EVERY).await;
    }
}

async fn send(gateway: &Gateway, per_second: u32, time: Duration) -> anyhow::Result<Seen> {
    let call = Arc::new(Call::new(gateway)?);
    let every = Duration::from_secs(1) / per_second.max(1);
    let mut seen = Seen {
        per_second,
        ..Seen::default()
    };
    let (mut idle, mut under_way) = (Vec::new(), JoinSet::new());
    let began = Instant::now();
    let mut due = began;
    loop {
        tokio::select! {
            biased;
            () = sleep_until(due), if due < began + time => {
                seen.behind = seen.behind.max(due.elapsed());
                let (call, free) = (Arc::clone(&call), idle.pop());
                under_way.spawn(async move { call.send(free).await });
                due += every;
            }
            Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                let (connection, time, came) = done??;
                idle.push(connection);
                match came {
                    Came::Answer => seen.served.push(time),
                    Came::Refusal => seen.refused.push(time),
                    Came::Other(text) => seen.others.push(text),
                }
            }
            else => break,
        }
    }
    seen.elapsed = began.elapsed();
    Ok(seen)
}

/// What a call got.
enum Came {
    Answer,
    Refusal,
    Other(String),
}

/// A call, ready to be sent again and again.
struct Call {
    address: SocketAddr,
    headers: HeaderMap,
    body: Bytes,
}

impl Call {
    fn new(gateway: &Gateway) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::HOST, gateway.address.to_string().try_into()?);
        headers.insert(header::CONTENT_TYPE, json);
        let bearer = format!("Bearer {}", gateway.key);
        headers.insert(header::AUTHORIZATION, bearer.try_into()?);
        Ok(Self {
            address: gateway.address,
            headers,
            body: chat_request("plain", false),
        })
    }

    /// Sends it on a connection that is free, or on a new one.
    async fn send(&self, free: Option<Connection>) -> anyhow::Result<(Connection, Duration, Came)> {
        let began = Instant::now();
        // The gateway may have closed one whose request it did not read to its end.
        if let Some(mut connection) = free
            && let Ok(came) = connection.send(self).await
        {
            return Ok((connection, began.elapsed(), came));
        }
        let mut connection = Connection::open(self.address).await?;
        let came = connection.send(self).await?;
        Ok((connection, began.elapsed(), came))
    }
}

/// A connection, and the task that drives it, which ends with it.
struct Connection {
    requests: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Connection {
    async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address)
            .await
            .context("the gateway takes no connection")?;
        socket.set_nodelay(true)?;
        let (requests, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Self {
            requests,
            _driver: driver,
        })
    }

    async fn send(&mut self, call: &Call) -> anyhow::Result<Came> {
        let mut req = Request::new(Full::new(call.body.clone()));
        *req.method_mut() = Method::POST;
        *req.uri_mut() = http::Uri::from_static("/v1/chat/completions");
        req.headers_mut().clone_from(&call.headers);
        self.requests.ready().await?;
        let res = self.requests.send_request(req).await?;
        let (status, waits) = (
            res.status(),
            res.headers().contains_key(header::RETRY_AFTER),
        );
        let bytes = res.into_body().collect().await?.to_bytes();
        Ok(match status {
            StatusCode::OK => Came::Answer,
            StatusCode::SERVICE_UNAVAILABLE if waits => Came::Refusal,
            _ => Came::Other(format!("{status} {}", String::from_utf8_lossy(&bytes))),
        })
    }
}

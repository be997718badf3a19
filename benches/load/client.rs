//! The client: hyper connections on one thread, as light as they can be.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, interval},
};

use crate::{scenario::Measure, vendor::unix_ns};

/// Connections that are open before a load with a pace begins; more are opened if it needs them.
const PACED_CONNECTIONS: u32 = 16;

/// A call, ready to be sent again and again.
pub(crate) struct Prepared {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) measure: Measure,
}

/// What a load has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answered: u64,
    pub(crate) elapsed: Duration,
    pub(crate) samples: Vec<Duration>,
}

/// Open connections to a target, each of which has carried a call.
pub(crate) struct Client {
    address: SocketAddr,
    call: Arc<Prepared>,
    connections: Vec<Connection>,
}

impl Client {
    /// Opens connections for a load of so many callers at a time; says how many calls that took.
    pub(crate) async fn open(
        address: SocketAddr,
        call: Arc<Prepared>,
        connections: u32,
    ) -> anyhow::Result<(Self, u64)> {
        let mut opening = JoinSet::new();
        for _ in 0..connections {
            let call = Arc::clone(&call);
            opening.spawn(async move {
                let mut connection = Connection::open(address).await?;
                connection.send(&call, &mut Vec::new()).await?;
                anyhow::Ok(connection)
            });
        }
        let mut client = Self {
            address,
            call,
            connections: Vec::new(),
        };
        while let Some(opened) = opening.join_next().await {
            client.connections.push(opened??);
        }
        Ok((client, u64::from(connections)))
    }

    /// Opens connections for a load with a pace.
    pub(crate) async fn open_paced(
        address: SocketAddr,
        call: Arc<Prepared>,
    ) -> anyhow::Result<(Self, u64)> {
        Self::open(address, call, PACED_CONNECTIONS).await
    }

    /// Sends the next call on each connection when the last one is answered. Every call that was
    /// begun in time is waited for and counts.
    pub(crate) async fn when_answered(self, time: Duration) -> anyhow::Result<Seen> {
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for mut connection in self.connections {
            let call = Arc::clone(&self.call);
            callers.spawn(async move {
                let mut seen = Seen::default();
                while began.elapsed() < time {
                    connection.send(&call, &mut seen.samples).await?;
                    seen.answered += 1;
                }
                anyhow::Ok(seen)
            });
        }
        let mut seen = Seen::default();
        while let Some(done) = callers.join_next().await {
            let mut done = done??;
            seen.answered += done.answered;
            seen.samples.append(&mut done.samples);
        }
        seen.elapsed = began.elapsed();
        Ok(seen)
    }

    /// Sends so many calls each second, each on a free connection, answered or not: slow answers do
    /// not slow the calls down, or they would hide themselves.
    pub(crate) async fn per_second(self, calls: u32, time: Duration) -> anyhow::Result<Seen> {
        let mut idle = self.connections;
        let mut ticks = interval(Duration::from_secs(1) / calls);
        let mut under_way = JoinSet::new();
        let mut seen = Seen::default();
        let began = Instant::now();
        loop {
            tokio::select! {
                biased;
                Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                    let (connection, mut samples) = done??;
                    seen.answered += 1;
                    seen.samples.append(&mut samples);
                    idle.push(connection);
                }
                _ = ticks.tick(), if began.elapsed() < time => {
                    let (call, address, free) = (Arc::clone(&self.call), self.address, idle.pop());
                    under_way.spawn(async move {
                        let mut connection = match free {
                            Some(connection) => connection,
                            None => Connection::open(address).await?,
                        };
                        let mut samples = Vec::new();
                        connection.send(&call, &mut samples).await?;
                        anyhow::Ok((connection, samples))
                    });
                }
                else => break,
            }
        }
        seen.elapsed = began.elapsed();
        Ok(seen)
    }
}

/// A connection, and the task that drives it, which ends with it.
struct Connection {
    requests: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Connection {
    async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (requests, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Self {
            requests,
            _driver: driver,
        })
    }

    /// Sends a call, reads its answer to the end and takes down what is measured.
    async fn send(&mut self, call: &Prepared, samples: &mut Vec<Duration>) -> anyhow::Result<()> {
        let mut req = Request::new(Full::new(call.body.clone()));
        *req.method_mut() = Method::POST;
        *req.uri_mut() = call.uri.clone();
        req.headers_mut().clone_from(&call.headers);
        self.requests.ready().await?;
        let began = Instant::now();
        let res = self.requests.send_request(req).await?;
        let status = res.status();
        let mut body = res.into_body();
        if status != StatusCode::OK {
            let bytes = body.collect().await?.to_bytes();
            anyhow::bail!("{status}: {}", String::from_utf8_lossy(&bytes));
        }
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.context("an answer broke off")?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            match call.measure {
                Measure::FirstByte if bytes == 0 => samples.push(began.elapsed()),
                Measure::ChunkDelay => take_down_delays(data, samples),
                Measure::FirstByte | Measure::Whole => {}
            }
            bytes += data.len();
        }
        ensure!(bytes > 0, "an answer was empty");
        if let Measure::Whole = call.measure {
            samples.push(began.elapsed());
        }
        Ok(())
    }
}

/// Reads when the vendor sent the chunks that are in `data`.
fn take_down_delays(data: &[u8], samples: &mut Vec<Duration>) {
    const STAMP: &[u8] = b"\"sent\":";
    let now = unix_ns();
    for (at, window) in data.windows(STAMP.len()).enumerate() {
        if window != STAMP {
            continue;
        }
        let digits = data[at + STAMP.len()..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let sent = digits.fold(0, |sent: u64, digit| {
            sent.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
        });
        samples.push(Duration::from_nanos(now.saturating_sub(sent)));
    }
}

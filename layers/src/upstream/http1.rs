//! Connections of HTTP/1.1, each driven by the call that has it.
//!
//! hyper-util's client spawns a task for each connection, and a body comes over from it frame by frame:
//! a switch of tasks, and a write to the caller, for each. Here whoever reads the body drives the
//! connection too, so that all frames that have come are there at once, and a call waits for no other task.
//! A connection whose call is dropped is closed; one whose answer has ended waits for the next call.

use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, Uri,
    header::HOST,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body::{Body, Frame, SizeHint};
use hyper::{
    body::Incoming,
    client::conn::http1::{Builder, Connection, SendRequest},
    rt::Executor,
};
use hyper_util::rt::TokioExecutor;
use tokio::time::{Instant, sleep};
use tower::Service;

use super::{
    body::RequestBody,
    connect::{Connector, Stream},
};
use crate::error::BoxError;

/// What is read from a connection ahead of whoever takes it.
const BUFFER_BYTES: usize = 64 * 1024;

/// A pool of connections, and the way to open more.
pub(super) struct Http1Client {
    connector: Connector,
    pool: Arc<Pool>,
}

impl Http1Client {
    pub(super) fn new(connector: Connector, idle_timeout: Duration) -> Self {
        let pool = Arc::new(Pool {
            idle: Mutex::default(),
            idle_timeout,
        });
        TokioExecutor::new().execute(tidy(Arc::downgrade(&pool), idle_timeout));
        Self { connector, pool }
    }

    /// Sends a request whose address is absolute. One that no byte of was written, as its connection
    /// turned out to be closed, goes over another one.
    ///
    /// # Errors
    /// There is no connection, or it broke before the head of an answer.
    pub(super) async fn send(
        &self,
        mut req: Request<RequestBody>,
    ) -> Result<Response<DrivenBody>, BoxError> {
        let address = req.uri().clone();
        let origin = origin_form(&mut req).ok_or("an address without a host")?;
        loop {
            let idle = self.pool.take(&origin);
            let reused = idle.is_some();
            let mut line = match idle {
                Some(line) => line,
                None => self.connect(address.clone(), origin.clone()).await?,
            };
            match line.exchange(req).await {
                Ok(res) => {
                    return Ok(res.map(|incoming| DrivenBody {
                        incoming,
                        line: Some(line),
                    }));
                }
                Err((_, Some(unsent))) if reused => req = unsent,
                Err((error, _)) => return Err(error.into()),
            }
        }
    }

    async fn connect(&self, address: Uri, origin: Origin) -> Result<Box<Line>, BoxError> {
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let stream = connector.call(address).await?;
        let retires = stream.retires();
        let (requests, connection) = Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(stream)
            .await?;
        Ok(Box::new(Line {
            requests,
            connection: Some(connection),
            retires,
            home: Arc::downgrade(&self.pool),
            origin,
        }))
    }
}

/// Makes the address relative and says where it led to.
fn origin_form(req: &mut Request<RequestBody>) -> Option<Origin> {
    let parts = req.uri().clone().into_parts();
    let (scheme, authority) = (parts.scheme?, parts.authority?);
    let is_default = match authority.port_u16() {
        None => true,
        Some(80) => scheme == Scheme::HTTP,
        Some(443) => scheme == Scheme::HTTPS,
        Some(_) => false,
    };
    let host = if is_default {
        HeaderValue::from_str(authority.host())
    } else {
        HeaderValue::from_str(authority.as_str())
    };
    req.headers_mut().insert(HOST, host.ok()?);
    let path = parts
        .path_and_query
        .unwrap_or(PathAndQuery::from_static("/"));
    *req.uri_mut() = Uri::from(path);
    Some((scheme, authority))
}

type Origin = (Scheme, Authority);

/// A connection between two calls, or in one. It is large, and goes from hand to hand in its box.
struct Line {
    requests: SendRequest<RequestBody>,
    /// `None` once it is closed.
    connection: Option<Connection<Stream, RequestBody>>,
    retires: Instant,
    /// Where it goes when its call is done.
    home: Weak<Pool>,
    origin: Origin,
}

impl Line {
    /// An answer's head, or the error with the request if no byte of that was written.
    async fn exchange(
        &mut self,
        req: Request<RequestBody>,
    ) -> Result<Response<Incoming>, (hyper::Error, Option<Request<RequestBody>>)> {
        let mut answer = pin!(self.requests.try_send_request(req));
        let connection = &mut self.connection;
        let answered = poll_fn(|cx| {
            drive(connection, cx);
            answer.as_mut().poll(cx)
        });
        answered.await.map_err(|mut error| {
            let unsent = error.take_message();
            (error.into_error(), unsent)
        })
    }

    /// Whether it is open, and done with the last call.
    fn is_idle(&mut self) -> bool {
        // Nobody waits for it: what the peer did in the meantime is seen here.
        drive(
            &mut self.connection,
            &mut Context::from_waker(Waker::noop()),
        );
        self.connection.is_some() && self.requests.is_ready()
    }
}

/// Moves bytes in both directions. What a connection fails with is told to its call.
fn drive(connection: &mut Option<Connection<Stream, RequestBody>>, cx: &mut Context<'_>) {
    if let Some(open) = connection
        && Pin::new(open).poll(cx).is_ready()
    {
        *connection = None;
    }
}

/// Connections that wait for their next call.
struct Pool {
    /// By where they lead to: the few hosts that vendors have, so that looking through them costs less than a hash.
    idle: Mutex<Vec<(Origin, Vec<Idle>)>>,
    idle_timeout: Duration,
}

struct Idle {
    line: Box<Line>,
    until: Instant,
}

impl Pool {
    /// The one that was used last: the others may then be closed for want of work.
    fn take(&self, origin: &Origin) -> Option<Box<Line>> {
        let now = Instant::now();
        loop {
            let Idle { mut line, until } = of(&mut self.lock(), origin)?.pop()?;
            if until > now && line.is_idle() {
                return Some(line);
            }
        }
    }

    fn put(&self, mut line: Box<Line>) {
        let now = Instant::now();
        if line.retires <= now || !line.is_idle() {
            return;
        }
        let until = line.retires.min(now + self.idle_timeout);
        let mut idle = self.lock();
        match of(&mut idle, &line.origin) {
            Some(lines) => lines.push(Idle { line, until }),
            None => {
                let origin = line.origin.clone();
                idle.push((origin, vec![Idle { line, until }]));
            }
        }
    }

    /// Closes what has waited too long, or was closed by its peer.
    fn tidy(&self) {
        let now = Instant::now();
        let mut closed = Vec::new();
        self.lock().retain_mut(|(_, lines)| {
            closed.extend(lines.extract_if(.., |idle| idle.until <= now || !idle.line.is_idle()));
            !lines.is_empty()
        });
        // Outside the lock: closing is a call to the system.
        drop(closed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Origin, Vec<Idle>)>> {
        // A connection is either in it or not.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those that lead there.
fn of<'a>(idle: &'a mut [(Origin, Vec<Idle>)], origin: &Origin) -> Option<&'a mut Vec<Idle>> {
    let found = idle.iter_mut().find(|(other, _)| other == origin);
    found.map(|(_, lines)| lines)
}

/// Until the pool's last user is gone.
async fn tidy(pool: Weak<Pool>, idle_timeout: Duration) {
    let often = (idle_timeout / 2).clamp(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        sleep(often).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.tidy();
    }
}

/// A body, and the connection that brings it.
pub(super) struct DrivenBody {
    incoming: Incoming,
    /// `None` once the connection has gone home, or is closed.
    line: Option<Box<Line>>,
}

impl DrivenBody {
    fn go_home(&mut self) {
        // A pool that is gone was left out of the config, and its connections go with it.
        if let Some(line) = self.line.take()
            && let Some(pool) = line.home.upgrade()
        {
            pool.put(line);
        }
    }
}

impl Body for DrivenBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let mut frame = Pin::new(&mut this.incoming).poll_frame(cx);
        if frame.is_pending()
            && let Some(line) = this.line.as_deref_mut()
        {
            drive(&mut line.connection, cx);
            frame = Pin::new(&mut this.incoming).poll_frame(cx);
        }
        let frame = ready!(frame);
        if frame.is_none() {
            this.go_home();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for DrivenBody {
    fn drop(&mut self) {
        // Readers of a body of known length stop before they are told that it has ended.
        if self.incoming.is_end_stream() {
            self.go_home();
        }
    }
}

impl fmt::Debug for DrivenBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrivenBody")
            .field("incoming", &self.incoming)
            .finish_non_exhaustive()
    }
}

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
use tokio::{
    task::coop::unconstrained,
    time::{Instant, sleep},
};
use tower::Service;

use super::{
    body::RequestBody,
    connect::{Connector, Stream},
};
use crate::{
    error::BoxError,
    hush::{Hush, hushed},
};

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

    /// Sends a request whose address is absolute, `now`. One that no byte of was written, as its connection
    /// turned out to be closed, goes over another one.
    ///
    /// # Errors
    /// There is no connection, or it broke before the head of an answer.
    pub(super) async fn send(
        &self,
        mut req: Box<Request<RequestBody>>,
        now: Instant,
    ) -> Result<Response<DrivenBody>, BoxError> {
        let address = std::mem::take(req.uri_mut());
        let (Some(scheme), Some(authority)) = (address.scheme(), address.authority()) else {
            return Err("an address without a host".into());
        };
        let path = address.path_and_query().cloned();
        *req.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
        loop {
            let idle = self.pool.take(scheme, authority, now);
            let reused = idle.is_some();
            let mut line = match idle {
                Some(line) => line,
                // Boxed: each call has room for this future, which has a stream in it.
                None => Box::pin(self.connect(&address, scheme, authority)).await?,
            };
            req.headers_mut().insert(HOST, line.origin.host.clone());
            match line.exchange(req).await {
                Ok(res) => {
                    return Ok(res.map(|incoming| DrivenBody {
                        incoming,
                        line: Some(line),
                        stirred: true,
                    }));
                }
                Err((_, Some(unsent))) if reused => req = Box::new(unsent),
                Err((error, _)) => return Err(error.into()),
            }
        }
    }

    async fn connect(
        &self,
        address: &Uri,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Result<Box<Line>, BoxError> {
        let origin = Origin::new(scheme, authority).ok_or("an address without a host")?;
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let stream = connector.call(address.clone()).await?;
        let retires = stream.retires();
        let (requests, connection) = Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(stream)
            .await?;
        Ok(Box::new(Line {
            requests,
            connection: Some(connection),
            hush: Hush::default(),
            retires,
            home: Arc::downgrade(&self.pool),
            origin,
        }))
    }
}

/// Where a connection leads to.
#[derive(Clone)]
struct Origin {
    scheme: Scheme,
    authority: Authority,
    /// What requests say of it.
    host: HeaderValue,
}

impl Origin {
    fn new(scheme: &Scheme, authority: &Authority) -> Option<Self> {
        let is_default = match authority.port_u16() {
            None => true,
            Some(80) => *scheme == Scheme::HTTP,
            Some(443) => *scheme == Scheme::HTTPS,
            Some(_) => false,
        };
        let host = if is_default {
            authority.host()
        } else {
            authority.as_str()
        };
        Some(Self {
            scheme: scheme.clone(),
            authority: authority.clone(),
            host: HeaderValue::from_str(host).ok()?,
        })
    }
}

/// A connection between two calls, or in one. It is large, and goes from hand to hand in its box.
struct Line {
    requests: SendRequest<RequestBody>,
    /// `None` once it is closed.
    connection: Option<Connection<Stream, RequestBody>>,
    /// Of the task of its call, which is at both ends of it.
    hush: Hush,
    retires: Instant,
    /// Where it goes when its call is done.
    home: Weak<Pool>,
    origin: Origin,
}

impl Line {
    /// An answer's head, or the error with the request if no byte of that was written.
    async fn exchange(
        &mut self,
        req: Box<Request<RequestBody>>,
    ) -> Result<Response<Incoming>, (hyper::Error, Option<Request<RequestBody>>)> {
        // Nobody else brings the answer, so nobody has to wake this task for it.
        let mut answer = pin!(unconstrained(self.requests.try_send_request(*req)));
        let (connection, hush) = (&mut self.connection, &mut self.hush);
        let answered = poll_fn(|cx| {
            drive(connection, hush.waker(cx.waker()));
            answer
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        });
        answered.await.map_err(|mut error| {
            let unsent = error.take_message();
            (error.into_error(), unsent)
        })
    }

    /// Whether it is open, and done with the last call.
    fn is_idle(&mut self) -> bool {
        // Nobody waits for it: what the peer did in the meantime is seen here.
        drive(&mut self.connection, Waker::noop());
        self.connection.is_some() && self.requests.is_ready()
    }
}

/// Moves bytes in both directions. What a connection fails with is told to its call.
fn drive(connection: &mut Option<Connection<Stream, RequestBody>>, waker: &Waker) {
    if let Some(open) = connection
        && Pin::new(open)
            .poll(&mut Context::from_waker(waker))
            .is_ready()
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
    fn take(&self, scheme: &Scheme, authority: &Authority, now: Instant) -> Option<Box<Line>> {
        loop {
            let Idle { mut line, until } = of(&mut self.lock(), scheme, authority)?.pop()?;
            if until > now && line.is_idle() {
                return Some(line);
            }
        }
    }

    fn put(&self, mut line: Box<Line>) {
        let now = Instant::now();
        // One that waits for work already is looked at when it is taken.
        if line.retires <= now || !(line.requests.is_ready() || line.is_idle()) {
            return;
        }
        line.hush = Hush::default();
        let until = line.retires.min(now + self.idle_timeout);
        let mut idle = self.lock();
        match of(&mut idle, &line.origin.scheme, &line.origin.authority) {
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
fn of<'a>(
    idle: &'a mut [(Origin, Vec<Idle>)],
    scheme: &Scheme,
    authority: &Authority,
) -> Option<&'a mut Vec<Idle>> {
    let found = idle
        .iter_mut()
        .find(|(origin, _)| origin.authority == *authority && origin.scheme == *scheme);
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
    /// The connection has work that nobody wakes it for: a frame was taken, and it may bring the next one.
    stirred: bool,
}

impl DrivenBody {
    /// What the connection has brought. It is driven by whoever asks for more, so neither of the two has to
    /// wake the other.
    fn take(&mut self) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let incoming = Pin::new(&mut self.incoming);
        let nobody = &mut Context::from_waker(Waker::noop());
        let (frame, heard) = hushed(|| incoming.poll_frame(nobody));
        self.stirred |= frame.is_ready() || heard.is_some();
        frame
    }

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
        let mut frame = this.take();
        // hyper asks once more behind each write, when nothing can have changed.
        if frame.is_pending()
            && let Some(line) = this.line.as_deref_mut()
            && (std::mem::take(&mut this.stirred) | line.hush.was_woken(cx.waker()))
        {
            drive(&mut line.connection, line.hush.waker(cx.waker()));
            frame = this.take();
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

//! Connections of HTTP/1.1, each driven by the call that has it.
//!
//! hyper-util's client spawns a task for each connection, and a body comes over from it frame by frame:
//! a switch of tasks, and a write to the caller, for each. Here whoever reads the body drives the
//! connection too, so that all frames that have come are there at once, and a call waits for no other task.
//! A connection whose call is dropped is closed; one whose answer has ended waits for the next call.

mod alarm;

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
    time::{Instant, sleep, timeout_at},
};
use tower::Service;

pub(super) use self::alarm::Alarm;
use super::{
    body::RequestBody,
    connect::{Connector, Stream},
};
use crate::{
    error::BoxError,
    self_wake::{SelfWake, suppress_wakes},
};

/// It is large, and goes through many hands.
type BoxRequest = Box<Request<RequestBody>>;

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

    /// Sends a request to an absolute address, `now`; `None` if no head of an answer has come by `until`. One
    /// that no byte of was written, as its connection turned out to be closed, goes over another one.
    ///
    /// # Errors
    /// There is no connection, or it broke before the head of an answer.
    pub(super) async fn send(
        &self,
        address: &Uri,
        mut req: BoxRequest,
        now: Instant,
        until: Instant,
    ) -> Result<Option<Response<DrivenBody>>, BoxError> {
        let (Some(scheme), Some(authority)) = (address.scheme(), address.authority()) else {
            return Err("an address without a host".into());
        };
        let path = address.path_and_query().cloned();
        *req.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        loop {
            let idle = self.pool.take(scheme, authority, now);
            let reused = idle.is_some();
            let mut line = match idle {
                Some(line) => line,
                None => {
                    // Boxed: each call has room for this future, which has a stream in it.
                    let connecting =
                        Box::pin(timeout_at(until, self.connect(address, scheme, authority)));
                    match connecting.await {
                        Ok(line) => line?,
                        Err(_) => return Ok(None),
                    }
                }
            };
            req.headers_mut().insert(HOST, line.origin.host.clone());
            match line.exchange(req, until).await {
                Ok(res) => {
                    return Ok(Some(res.map(|incoming| DrivenBody {
                        incoming,
                        alarm: std::mem::take(&mut line.alarm),
                        line: Some(line),
                        unread: true,
                        needs_poll: true,
                    })));
                }
                Err(NoHead::Late) => return Ok(None),
                Err(NoHead::Broken(_, Some(unsent))) if reused => req = unsent,
                Err(NoHead::Broken(error, _)) => return Err(error.into()),
            }
        }
    }

    async fn connect(
        &self,
        address: &Uri,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Result<Box<PooledConnection>, BoxError> {
        let origin = Origin::new(scheme, authority).ok_or("an address without a host")?;
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let stream = connector.call(address.clone()).await?;
        let retires = stream.retires();
        let (requests, connection) = Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(stream)
            .await?;
        Ok(Box::new(PooledConnection {
            requests,
            connection: Some(connection),
            self_wake: SelfWake::default(),
            alarm: Alarm::default(),
            retires,
            pool: Arc::downgrade(&self.pool),
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

    fn is(&self, scheme: &Scheme, authority: &Authority) -> bool {
        // Mostly they are the same bytes of one config.
        let is_same = std::ptr::eq(self.authority.as_str(), authority.as_str());
        (is_same || self.authority == *authority) && self.scheme == *scheme
    }
}

/// A connection between two calls, or in one. It is large, and goes from hand to hand in its box.
struct PooledConnection {
    requests: SendRequest<RequestBody>,
    /// `None` once it is closed.
    connection: Option<Connection<Stream, RequestBody>>,
    /// Of the task of its call, which is at both ends of it.
    self_wake: SelfWake,
    alarm: Alarm,
    retires: Instant,
    /// Where it goes when its call is done.
    pool: Weak<Pool>,
    origin: Origin,
}

/// Why there is no head of an answer.
enum NoHead {
    /// It took too long.
    Late,
    /// With the request, if no byte of that was written.
    Broken(hyper::Error, Option<BoxRequest>),
}

impl PooledConnection {
    /// An answer's head, if it comes before `until`. What the peer did while the connection waited is seen before
    /// a byte is written: it is read first.
    async fn exchange(
        &mut self,
        req: BoxRequest,
        until: Instant,
    ) -> Result<Response<Incoming>, NoHead> {
        // The connection knows the task of its last call, and that has nothing to do with this one.
        let (answer, _) = suppress_wakes(|| self.requests.try_send_request(*req));
        // Nobody else brings the answer, so nobody has to wake this task for it.
        let mut answer = pin!(unconstrained(answer));
        let (connection, self_wake, alarm) =
            (&mut self.connection, &mut self.self_wake, &mut self.alarm);
        poll_fn(|cx| {
            drive(connection, self_wake.waker(cx.waker()));
            let answer = answer
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            if answer.is_pending() && alarm.poll(until, cx).is_ready() {
                return Poll::Ready(Err(NoHead::Late));
            }
            answer.map_err(|mut error| {
                let unsent = error.take_message().map(Box::new);
                NoHead::Broken(error.into_error(), unsent)
            })
        })
        .await
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
    line: Box<PooledConnection>,
    until: Instant,
}

impl Pool {
    /// The one that was used last: the others may then be closed for want of work. Its peer may have closed it.
    fn take(
        &self,
        scheme: &Scheme,
        authority: &Authority,
        now: Instant,
    ) -> Option<Box<PooledConnection>> {
        loop {
            let Idle { line, until } = of(&mut self.lock(), scheme, authority)?.pop()?;
            if until > now {
                return Some(line);
            }
        }
    }

    fn put(&self, mut line: Box<PooledConnection>) {
        let now = Instant::now();
        // What the peer does to one that waits for work already is seen when it is used.
        if line.retires <= now || !(line.requests.is_ready() || line.is_idle()) {
            return;
        }
        line.self_wake = SelfWake::default();
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
        .find(|(origin, _)| origin.is(scheme, authority));
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
    /// The connection's.
    alarm: Alarm,
    /// `None` once the connection has gone back to its pool, or is closed.
    line: Option<Box<PooledConnection>>,
    /// Nobody has looked yet for what came with the head.
    unread: bool,
    /// The connection has work that nobody wakes it for: a frame was taken, and it may bring the next one.
    needs_poll: bool,
}

impl DrivenBody {
    /// What the connection has brought. It is driven by whoever asks for more, so neither of the two has to
    /// wake the other.
    fn take(&mut self) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let incoming = Pin::new(&mut self.incoming);
        let nobody = &mut Context::from_waker(Waker::noop());
        let (frame, heard) = suppress_wakes(|| incoming.poll_frame(nobody));
        self.needs_poll |= frame.is_ready() || heard.is_some();
        frame
    }

    /// For whoever waits for it.
    pub(super) fn alarm(&mut self) -> &mut Alarm {
        &mut self.alarm
    }

    fn return_to_pool(&mut self) {
        // A pool that is gone was left out of the config, and its connections go with it.
        if let Some(mut line) = self.line.take()
            && let Some(pool) = line.pool.upgrade()
        {
            line.alarm = std::mem::take(&mut self.alarm);
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
        // What the connection brings is taken at once, so nothing is there before it is driven again: but for
        // what came with the head, and the end.
        let looks = std::mem::take(&mut this.unread)
            || this.line.is_none()
            || this.incoming.is_end_stream();
        let mut frame = if looks { this.take() } else { Poll::Pending };
        // hyper asks once more behind each write, when nothing can have changed.
        if frame.is_pending()
            && let Some(line) = this.line.as_deref_mut()
            && (std::mem::take(&mut this.needs_poll) | line.self_wake.was_woken(cx.waker()))
        {
            drive(&mut line.connection, line.self_wake.waker(cx.waker()));
            frame = this.take();
        }
        let frame = ready!(frame);
        if frame.is_none() {
            this.return_to_pool();
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
            self.return_to_pool();
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{SocketAddr, TcpListener},
        sync::{
            Barrier,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
        thread,
    };

    use http_body_util::BodyExt;
    use tokio::task::yield_now;
    use tower::ServiceExt;

    use super::*;
    use crate::{
        call::{Format, Outbound},
        model::{Route, Vendor},
        upstream::Upstream,
        usage::Meter,
    };

    /// A vendor that answers a call on each of two connections. Between two waits of the barrier it takes its
    /// leave of the first one and closes it.
    fn vendor(farewell: &'static str) -> (SocketAddr, Arc<Barrier>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let leaves = Arc::new(Barrier::new(2));
        let leaving = Arc::clone(&leaves);
        thread::spawn(move || {
            let answer = || {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut seen, mut buffer) = (Vec::new(), [0; 1024]);
                while !seen.ends_with(b"ping") {
                    let count = stream.read(&mut buffer).unwrap();
                    assert!(count > 0, "it was closed before the request was there");
                    seen.extend_from_slice(&buffer[..count]);
                }
                let pong = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npong";
                stream.write_all(pong).unwrap();
                stream
            };
            let mut first = answer();
            leaving.wait();
            first.write_all(farewell.as_bytes()).unwrap();
            drop(first);
            leaving.wait();
            answer();
        });
        (address, leaves)
    }

    /// A way to that vendor, with connections of its own.
    fn way(address: SocketAddr) -> (Upstream, Arc<Route>) {
        let endpoint = format!("http://{address}/v1/chat/completions");
        let key = Format::Chat.credential("k").unwrap();
        let vendor = Vendor::new("v", Format::Chat, endpoint.parse().unwrap(), key);
        let upstream = Upstream::new(Duration::from_secs(60));
        (upstream, Arc::new(Route::new(vendor, "m")))
    }

    /// The whole answer to a ping.
    async fn pong((upstream, route): &(Upstream, Arc<Route>)) -> Bytes {
        let outbound = Outbound {
            route: Arc::clone(route),
            credential: 0,
            body: "ping".into(),
            stream: false,
            choices: 1,
            strip_usage: false,
            meter: Meter::default(),
        };
        let answer = upstream.clone().oneshot(Request::new(outbound));
        let body = answer.await.unwrap().into_body();
        body.collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_while_it_waited_costs_no_call() {
        for farewell in [
            "",
            "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
        ] {
            let (address, leaves) = vendor(farewell);
            let way = way(address);
            assert_eq!(pong(&way).await, "pong");
            leaves.wait();
            leaves.wait();
            // The runtime learns of it.
            for _ in 0..3 {
                yield_now().await;
            }
            assert_eq!(pong(&way).await, "pong", "{farewell:?}");
        }
    }

    /// Counts what wakes a task.
    struct Counted {
        task: Waker,
        wakes: AtomicUsize,
    }

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            self.task.wake_by_ref();
        }
    }

    #[tokio::test]
    async fn a_call_does_not_wake_the_task_that_had_its_connection_before() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = way(listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut buffer = [0; 1024];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                seen.extend_from_slice(&buffer[..count]);
                if seen.ends_with(b"ping") {
                    seen.clear();
                    let pong = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npong";
                    stream.write_all(pong).unwrap();
                }
            }
        });
        let mut before = pin!(pong(&way));
        let mut its_task = None;
        poll_fn(|cx| {
            let task = its_task.get_or_insert_with(|| {
                let (task, wakes) = (cx.waker().clone(), AtomicUsize::new(0));
                Arc::new(Counted { task, wakes })
            });
            let waker = Waker::from(Arc::clone(task));
            before.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await;
        let wakes = || {
            its_task
                .as_ref()
                .map(|task| task.wakes.load(Ordering::Relaxed))
        };
        let woken = wakes();
        assert!(woken > Some(0));
        assert_eq!(pong(&way).await, "pong");
        assert_eq!(wakes(), woken);
    }
}

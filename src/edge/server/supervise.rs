//! Supervises a connection until it ends. The client must send its first bytes soon, must accept answers, and must not
//! idle for long. The connection is closed gracefully when it is old or the server drains.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::{
    HeaderValue, Request, Response, Version,
    header::{CONNECTION, CONTENT_LENGTH},
};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Connection,
};
use pin_project_lite::pin_project;
use tokio::{sync::Notify, time::Instant};
use tollgate_layers::{error::BoxError, self_wake::SelfWake};

use super::{ConnectionLimits, socket::Socket, transport::PREFACE, unread::Unread};

/// The time for which a connection without running answers may stay open after a graceful close was requested.
const FAREWELL: Duration = Duration::from_secs(5);
/// The time for which, during a drain, a new connection may still send its first request. The server may have accepted
/// the connection just before the drain, and its client would treat a close as a refusal.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The maximum bytes of an answer that are passed to h2 at once. If a single byte fits into the client's window, h2
/// takes and buffers all data that is passed to it. So for a client that opens a window of one byte, h2 would buffer
/// whole answers.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// The maximum bytes of an answer that are passed to hyper's HTTP/1 at once, because hyper copies them.
const HTTP1_PIECE_BYTES_MAX: usize = 256 * 1024;

/// The activity on a connection. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    read: AtomicBool,
    /// Whether the input begins like HTTP/2.
    http2: AtomicBool,
    /// Notified when the first request begins.
    first: Notify,
    /// The [`Stage`] of the running answer on HTTP/1.
    stage: AtomicU8,
    requests: Mutex<Requests>,
    /// Request bodies that no task reads any more; on HTTP/1 at most one.
    unread: Mutex<Vec<Unread<Incoming>>>,
    /// The task that discards the rests of bodies.
    discards: AtomicWaker,
}

/// Stage of the running answer on HTTP/1. It decides which probe may be sent to a half-closed client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No part of the answer has been sent, and the client speaks HTTP/1.1, so it accepts an interim answer.
    Awaited = 0,
    /// The answer is sent in chunks.
    InChunks = 1,
    /// The answer is not sent in chunks, or the client does not speak HTTP/1.1, so no probe can be sent.
    Other = 2,
}

#[derive(Debug)]
struct Requests {
    /// The times at which the running requests began.
    running: Vec<Instant>,
    /// The total number of requests.
    begun: usize,
    /// The delivery of each running answer on HTTP/2.
    hands: Vec<Weak<Delivery>>,
    /// The time at which the last request ended.
    idle_since: Instant,
}

impl Activity {
    pub(super) fn new() -> Self {
        let began = Instant::now();
        let requests = Requests {
            running: Vec::new(),
            begun: 0,
            hands: Vec::new(),
            idle_since: began,
        };
        Self(Arc::new(Inner {
            began,
            read: AtomicBool::new(false),
            http2: AtomicBool::new(false),
            first: Notify::new(),
            stage: AtomicU8::new(Stage::Other as u8),
            requests: Mutex::new(requests),
            unread: Mutex::default(),
            discards: AtomicWaker::new(),
        }))
    }

    /// Records that bytes were received.
    pub(super) fn has_read(&self, bytes: &[u8]) {
        if !self.0.read.load(Ordering::Relaxed) {
            let http2 = bytes.starts_with(PREFACE);
            self.0.http2.store(http2, Ordering::Relaxed);
            self.0.read.store(true, Ordering::Relaxed);
        }
    }

    /// Begins a request, which runs until the returned value is dropped. Also returns the request's index among the
    /// requests of the connection, counted from 1.
    pub(super) fn begin(&self, version: Version) -> (Running, usize) {
        let began = Instant::now();
        self.is_at(match version {
            Version::HTTP_11 => Stage::Awaited,
            _ => Stage::Other,
        });
        let hand = (version == Version::HTTP_2).then(Arc::<Delivery>::default);
        let mut requests = self.lock();
        requests.running.push(began);
        requests.begun += 1;
        requests.hands.retain(|hand| hand.strong_count() > 0);
        requests.hands.extend(hand.as_ref().map(Arc::downgrade));
        let nth = requests.begun;
        drop(requests);
        if nth == 1 {
            self.0.first.notify_one();
        }
        let running = Running {
            activity: self.clone(),
            began,
            hand,
        };
        (running, nth)
    }

    /// Takes the rest of a request body that no task reads any more, to discard it.
    pub(super) fn discard(&self, rest: Unread<Incoming>) {
        self.unread().push(rest);
        self.0.discards.wake();
    }

    /// Discards the unread rests of bodies.
    fn poll_discards(&self, cx: &mut Context<'_>) -> Poll<Infallible> {
        self.0.discards.register(cx.waker());
        self.unread()
            .retain_mut(|rest| rest.poll_discard(cx).is_pending());
        Poll::Pending
    }

    /// Returns whether an HTTP/1 connection must be closed because of an unread body.
    fn is_spoilt(&self) -> bool {
        self.unread().iter().any(Unread::ends_connection)
    }

    fn unread(&self) -> MutexGuard<'_, Vec<Unread<Incoming>>> {
        self.0.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_at(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Returns the stage of the running or last answer on HTTP/1.
    pub(super) fn stage(&self) -> Stage {
        match self.0.stage.load(Ordering::Relaxed) {
            0 => Stage::Awaited,
            1 => Stage::InChunks,
            _ => Stage::Other,
        }
    }

    /// Returns whether an answer is in progress.
    pub(super) fn is_running(&self) -> bool {
        !self.lock().running.is_empty()
    }

    /// Returns when the oldest running request began.
    fn oldest(&self) -> Option<Instant> {
        self.lock().running.iter().min().copied()
    }

    /// Returns whether the client has accepted no further part of an answer for `patience`. This detects HTTP/2 clients
    /// that open no window although their socket works; on HTTP/1 the write to the socket itself stalls.
    fn holds_out(&self, patience: Duration) -> bool {
        let now = self.now_ms();
        let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let requests = self.lock();
        requests.hands.iter().filter_map(Weak::upgrade).any(|hand| {
            let given = hand.given_ms.load(Ordering::Relaxed);
            given != 0 && now.saturating_sub(given) >= patience
        })
    }

    /// Returns the milliseconds since the connection began; never zero.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether only a part of the first HTTP/1 head has arrived.
    fn has_no_head(&self) -> bool {
        !self.has_begun() && !self.0.http2.load(Ordering::Relaxed)
    }

    /// Returns whether the connection has received a request.
    fn has_begun(&self) -> bool {
        self.lock().begun > 0
    }

    /// Returns how long the connection may stay open without a running answer; `None` while an answer runs. `drained`
    /// is when a drain began.
    fn idle(&self, limits: &ConnectionLimits, drained: Option<Instant>) -> Option<Idle> {
        let requests = self.lock();
        if !requests.running.is_empty() {
            return None;
        }
        let since = requests.idle_since;
        let until = match (requests.begun > 0, self.0.read.load(Ordering::Relaxed)) {
            (true, _) => since + limits.idle_timeout,
            (false, true) => since + limits.first_byte_timeout + limits.head_timeout,
            (false, false) => {
                let until = since + limits.first_byte_timeout;
                drained.map_or(until, |drained| until.min(since.max(drained) + LAST_WORD))
            }
        };
        Some(Idle { since, until })
    }
}

/// A connection on which no answer is running.
struct Idle {
    since: Instant,
    until: Instant,
}

/// Delivery of an answer: whether a frame was passed on and the next frame was not requested yet.
#[derive(Debug, Default)]
struct Delivery {
    /// When the frame was passed on, in milliseconds since the connection began; zero while the body is being polled.
    given_ms: AtomicU64,
}

/// A request that is running.
#[derive(Debug)]
pub(super) struct Running {
    activity: Activity,
    began: Instant,
    /// Present on HTTP/2, where answers are passed on in pieces.
    hand: Option<Arc<Delivery>>,
}

impl Running {
    /// Keeps the request running until the answer's body has ended.
    pub(super) fn until_end_of<A: Body>(self, mut res: Response<A>) -> Response<TrackedBody<A>> {
        if self.hand.is_none() && self.activity.is_spoilt() {
            // If a client reused a connection on which a request body is still unread, its next request would be lost (RFC 9112,
            // section 9.6).
            let close = HeaderValue::from_static("close");
            res.headers_mut().insert(CONNECTION, close);
        }
        // On HTTP/1.1 hyper sends answers of unknown length in chunks.
        let in_chunks = self.activity.stage() == Stage::Awaited
            && res.body().size_hint().exact().is_none()
            && !res.headers().contains_key(CONTENT_LENGTH);
        self.activity.is_at(match in_chunks {
            true => Stage::InChunks,
            false => Stage::Other,
        });
        res.map(|inner| TrackedBody {
            inner,
            rest: Bytes::new(),
            running: self,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut requests = self.activity.lock();
        let index = requests.running.iter().position(|at| *at == self.began);
        if let Some(index) = index {
            requests.running.swap_remove(index);
        }
        requests.idle_since = Instant::now();
    }
}

pin_project! {
    /// An answer's body; the request counts as running until this body is dropped.
    #[derive(Debug)]
    pub(super) struct TrackedBody<A> {
        #[pin]
        inner: A,
        // The remainder of a frame that is passed on in pieces.
        rest: Bytes,
        running: Running,
    }
}

impl<A: Body<Data = Bytes>> Body for TrackedBody<A> {
    type Data = Bytes;
    type Error = A::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, A::Error>>> {
        let mut this = self.project();
        let Some(hand) = &this.running.hand else {
            if !this.rest.is_empty() {
                let data = first_of(std::mem::take(this.rest), HTTP1_PIECE_BYTES_MAX, this.rest);
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            let frame = ready!(this.inner.poll_frame(cx));
            return Poll::Ready(frame.map(|frame| {
                Ok(frame?.map_data(|data| first_of(data, HTTP1_PIECE_BYTES_MAX, this.rest)))
            }));
        };
        hand.given_ms.store(0, Ordering::Relaxed);
        let frame = if this.rest.is_empty() {
            ready!(this.inner.as_mut().poll_frame(cx))
        } else {
            Some(Ok(Frame::data(std::mem::take(this.rest))))
        };
        let frame = match frame {
            Some(Ok(frame)) => {
                let is_last = this.inner.is_end_stream();
                Some(Ok(
                    frame.map_data(|data| first_piece(data, is_last, this.rest))
                ))
            }
            frame => frame,
        };
        let now_ms = this.running.activity.now_ms();
        hand.given_ms.store(now_ms, Ordering::Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

/// Returns the part of `data` that is passed on now; `rest` receives the remainder.
///
/// The last byte of an answer is passed on separately. The last byte is requested only when all bytes before it fit
/// into the client's window. So the request runs until then, and a client that does not accept the answer is noticed.
fn first_piece(data: Bytes, is_last: bool, rest: &mut Bytes) -> Bytes {
    let mut data = first_of(data, PIECE_BYTES_MAX, rest);
    if rest.is_empty() && is_last && data.len() > 1 {
        *rest = data.split_off(data.len() - 1);
    }
    data
}

/// Returns the first `bytes_max` of `data`; `rest` is the remainder.
fn first_of(mut data: Bytes, bytes_max: usize, rest: &mut Bytes) -> Bytes {
    if data.len() > bytes_max {
        *rest = data.split_off(bytes_max);
    }
    data
}

/// Runs the connection. Requests a graceful close when the connection has reached its maximum age or `draining`
/// resolves.
pub(super) async fn supervise<S, A>(
    mut connection: Pin<&mut Connection<'_, TokioIo<Socket>, S, TokioExecutor>>,
    activity: &Activity,
    limits: &ConnectionLimits,
    draining: impl Future<Output = ()>,
) -> Result<(), BoxError>
where
    S: hyper::service::Service<Request<Incoming>, Response = Response<A>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    let mut draining = std::pin::pin!(draining);
    let (mut self_wake, mut seldom) = (SelfWake::default(), SelfWake::default());
    let old = activity.0.began + jittered(limits.age_max, activity);
    let mut ending: Option<Instant> = None;
    let mut farewell = FAREWELL;
    let mut drained: Option<Instant> = None;
    loop {
        let look_again = match (ending, activity.idle(limits, drained)) {
            // Checks from time to time whether the running answers have ended.
            (_, None) => Instant::now() + FAREWELL.min(limits.write_timeout),
            (Some(requested), Some(idle)) => requested.max(idle.since) + farewell,
            (None, Some(idle)) => old.min(idle.until),
        };
        let event = {
            let mut next = std::pin::pin!(async {
                tokio::select! {
                    biased;
                    () = draining.as_mut(), if drained.is_none() => Event::Drain,
                    () = activity.0.first.notified(), if drained.is_some() && ending.is_none() => {
                        Event::LastRequest
                    }
                    () = tokio::time::sleep_until(look_again) => Event::Time,
                    never = poll_fn(|cx| activity.poll_discards(cx)) => match never {},
                }
            });
            poll_fn(|cx| {
                let waker = self_wake.waker(cx.waker());
                let served = connection.as_mut().poll(&mut Context::from_waker(waker));
                if let Poll::Ready(served) = served {
                    return Poll::Ready(Event::Served(served));
                }
                // Timeouts are checked at intervals, not at every poll of the connection.
                seldom.poll(cx, next.as_mut())
            })
            .await
        };
        match event {
            Event::Served(served) => return served,
            Event::Drain => {
                let now = *drained.insert(Instant::now());
                if activity.has_begun() {
                    connection.as_mut().graceful_shutdown();
                    ending.get_or_insert(now);
                }
            }
            Event::LastRequest => {
                connection.as_mut().graceful_shutdown();
                ending = Some(Instant::now());
            }
            Event::Time => {
                if activity.holds_out(limits.write_timeout) {
                    tracing::debug!("connection ended: limits.write_seconds");
                    return Ok(());
                }
                let now = Instant::now();
                // A request that runs longer than any call is ended. If a client grants no window, the body of its
                // answer is never polled to the end, and only dropping the connection ends the request.
                let too_long = |began: Instant| began + limits.request_timeout <= now;
                if activity.oldest().is_some_and(too_long) {
                    return Ok(());
                }
                match (ending, activity.idle(limits, drained)) {
                    // The gateway has requested the close of an idle connection, but the client does not react.
                    (Some(requested), Some(idle))
                        if requested.max(idle.since) + farewell <= now =>
                    {
                        return Ok(());
                    }
                    (None, Some(idle)) if idle.until <= now => {
                        connection.as_mut().graceful_shutdown();
                        ending = Some(now);
                        // On HTTP/1 a connection with an incomplete later head is also closed at once: hyper does not
                        // wait for the rest of that head.
                        if activity.has_no_head() {
                            farewell = Duration::ZERO;
                        }
                    }
                    (None, _) if old <= now => {
                        connection.as_mut().graceful_shutdown();
                        ending = Some(now);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The events that a connection waits for.
enum Event {
    /// The connection has ended.
    Served(Result<(), BoxError>),
    /// The server has begun to drain.
    Drain,
    /// The first request of a connection arrived during a drain. The connection was accepted before the drain, so the
    /// request is served.
    LastRequest,
    /// A timeout may have expired.
    Time,
}

/// Returns the maximum age plus up to a tenth, so that connections that began together do not end together.
fn jittered(age: Duration, activity: &Activity) -> Duration {
    let random = Arc::as_ptr(&activity.0) as usize / 64 % 256;
    age + age / 10 * u32::try_from(random).unwrap_or_default() / 256
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[tokio::test]
    async fn body_on_h2_is_sent_in_small_pieces_with_its_last_byte_separate() {
        for (version, bytes, pieces) in [
            (Version::HTTP_11, 40_000, &[40_000_usize][..]),
            (Version::HTTP_11, 600_000, &[262_144, 262_144, 75_712]),
            (Version::HTTP_2, 40_000, &[16_384, 16_384, 7231, 1]),
            (Version::HTTP_2, 16_385, &[16_384, 1]),
            (Version::HTTP_2, 16_384, &[16_383, 1]),
            (Version::HTTP_2, 2, &[1, 1]),
            (Version::HTTP_2, 1, &[1]),
            (Version::HTTP_2, 0, &[]),
        ] {
            let (running, _) = Activity::new().begin(version);
            let whole: Bytes = (0..=u8::MAX).cycle().take(bytes).collect();
            let mut body = running
                .until_end_of(Response::new(Full::new(whole.clone())))
                .into_body();
            assert_eq!(body.size_hint().exact(), Some(bytes as u64));
            let (mut lengths, mut given) = (Vec::new(), Vec::new());
            while let Some(frame) = body.frame().await {
                let data = frame.unwrap().into_data().unwrap();
                lengths.push(data.len());
                given.extend_from_slice(&data);
                let left = (bytes - given.len()) as u64;
                assert_eq!(body.size_hint().exact(), Some(left));
                assert_eq!(body.is_end_stream(), left == 0);
            }
            assert_eq!(lengths, pieces, "{version:?} {bytes}");
            assert_eq!(given, whole);
        }
    }
}

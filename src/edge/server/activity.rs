//! Records the activity on a connection: the requests in flight, their times, and the unread request bodies that must
//! be discarded.

use std::{
    convert::Infallible,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use http::Version;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{limits::ConnectionLimits, transport::PREFACE, unread::Unread};
use crate::text::time::millis;

/// During a drain, a new connection may still send its first request for this long. The server may have accepted the
/// connection just before the drain, and the client would treat a close as a refusal.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(1);

/// The activity on one connection. Clones share the record.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    read: AtomicBool,
    /// Whether the received bytes begin like HTTP/2.
    http2: AtomicBool,
    /// Notified when the first request of the connection begins.
    first: Notify,
    /// The [`Stage`] of the connection's latest HTTP/1 response.
    stage: AtomicU8,
    requests: Mutex<Requests>,
    /// Unread request bodies that must be discarded. On HTTP/1 there is at most one.
    unread: Mutex<Vec<Unread<Incoming>>>,
    /// Wakes the task that discards unread request bodies.
    discards: AtomicWaker,
}

/// How much of an HTTP/1 response has been sent. It determines which bytes may be sent to probe a half-closed client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing of the response has been sent. The client speaks HTTP/1.1, so it accepts an interim response as a probe.
    Awaited = 0,
    /// The response is being sent in chunks, so a probe may be sent between two chunks.
    InChunks = 1,
    /// No probe can be sent, because the response is not sent in chunks, or because the client does not speak HTTP/1.1.
    Other = 2,
}

#[derive(Debug)]
struct Requests {
    /// The time at which each request in flight began.
    in_flight: Vec<Instant>,
    /// The number of requests that the connection has received.
    begun: usize,
    /// On HTTP/2, the delivery of each response that is being sent.
    deliveries: Vec<Weak<Delivery>>,
    /// The time at which the last request ended, or at which the connection began.
    idle_since: Instant,
}

impl Activity {
    pub(super) fn new() -> Self {
        let began = Instant::now();
        let requests = Requests {
            in_flight: Vec::new(),
            begun: 0,
            deliveries: Vec::new(),
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

    /// Records that bytes were received. The first bytes determine whether the connection speaks HTTP/2.
    pub(super) fn has_read(&self, bytes: &[u8]) {
        if !self.0.read.load(Ordering::Relaxed) {
            let http2 = bytes.starts_with(PREFACE);
            self.0.http2.store(http2, Ordering::Relaxed);
            self.0.read.store(true, Ordering::Relaxed);
        }
    }

    /// Begins a request. The request is in flight until the returned guard is dropped. Also returns the number of
    /// requests that the connection has received so far.
    pub(super) fn begin(&self, version: Version) -> (InFlight, usize) {
        let began = Instant::now();
        self.set_stage(match version {
            Version::HTTP_11 => Stage::Awaited,
            _ => Stage::Other,
        });
        let delivery = (version == Version::HTTP_2).then(Arc::<Delivery>::default);
        let mut requests = self.0.requests.lock();
        requests.in_flight.push(began);
        requests.begun += 1;
        let deliveries = &mut requests.deliveries;
        deliveries.retain(|delivery| delivery.strong_count() > 0);
        deliveries.extend(delivery.as_ref().map(Arc::downgrade));
        let nth = requests.begun;
        drop(requests);
        if nth == 1 {
            self.0.first.notify_one();
        }
        let request = InFlight {
            activity: self.clone(),
            began,
            delivery,
        };
        (request, nth)
    }

    /// Takes over the unread rest of a request body, which no task will read, in order to discard it.
    pub(super) fn discard(&self, rest: Unread<Incoming>) {
        self.0.unread.lock().push(rest);
        self.0.discards.wake();
    }

    /// Reads and discards the unread rests of request bodies.
    pub(super) fn poll_discards(&self, cx: &mut Context<'_>) -> Poll<Infallible> {
        self.0.discards.register(cx.waker());
        let mut unread = self.0.unread.lock();
        unread.retain_mut(|rest| rest.poll_discard(cx).is_pending());
        Poll::Pending
    }

    /// Returns whether an HTTP/1 connection must be closed because a request body was not read.
    pub(super) fn must_close(&self) -> bool {
        self.0.unread.lock().iter().any(|it| it.ends_connection)
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Returns the stage of the connection's latest HTTP/1 response.
    pub(super) fn stage(&self) -> Stage {
        match self.0.stage.load(Ordering::Relaxed) {
            0 => Stage::Awaited,
            1 => Stage::InChunks,
            _ => Stage::Other,
        }
    }

    /// Returns whether any request is in flight.
    pub(super) fn has_requests(&self) -> bool {
        !self.0.requests.lock().in_flight.is_empty()
    }

    /// Returns when the oldest request in flight began; `None` if no request is in flight.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.0.requests.lock().in_flight.iter().min().copied()
    }

    /// Returns whether the client has accepted no part of some response for at least `timeout`. This detects HTTP/2
    /// clients that do not open the flow-control window although their socket works. On HTTP/1, a write to the socket
    /// stalls in this case.
    pub(super) fn is_stalled(&self, timeout: Duration) -> bool {
        let now = self.now_ms();
        let timeout = millis(timeout);
        let requests = self.0.requests.lock();
        let mut deliveries = requests.deliveries.iter().filter_map(Weak::upgrade);
        deliveries.any(|delivery| {
            let passed = delivery.passed_ms.load(Ordering::Relaxed);
            passed != 0 && now.saturating_sub(passed) >= timeout
        })
    }

    /// Returns the time since the connection began, in milliseconds. The value is at least 1.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    pub(super) fn began(&self) -> Instant {
        self.0.began
    }

    /// Returns a number that identifies the connection: no other open connection has it.
    pub(super) fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Completes when the first request of the connection begins.
    pub(super) async fn first_request(&self) {
        self.0.first.notified().await;
    }

    /// Returns whether an HTTP/1 connection has not received a complete request head yet.
    pub(super) fn has_no_head(&self) -> bool {
        !self.has_begun() && !self.0.http2.load(Ordering::Relaxed)
    }

    /// Returns whether the connection has received a request.
    pub(super) fn has_begun(&self) -> bool {
        self.0.requests.lock().begun > 0
    }

    /// Returns since when the connection is idle, and until when it may stay idle; `None` if a request is in flight.
    /// `drained` is the time at which the server began to drain.
    pub(super) fn idle(&self, limits: &ConnectionLimits, drained: Option<Instant>) -> Option<Idle> {
        let requests = self.0.requests.lock();
        if !requests.in_flight.is_empty() {
            return None;
        }
        let since = requests.idle_since;
        let until = match (requests.begun > 0, self.0.read.load(Ordering::Relaxed)) {
            (true, _) => since + limits.idle_timeout,
            (false, true) => since + limits.first_byte_timeout + limits.head_timeout,
            (false, false) => {
                let until = since + limits.first_byte_timeout;
                drained.map_or(until, |drained| {
                    until.min(since.max(drained) + FIRST_REQUEST_GRACE)
                })
            }
        };
        Some(Idle { since, until })
    }
}

/// Since when a connection is idle, and until when it may stay idle.
pub(super) struct Idle {
    pub(super) since: Instant,
    pub(super) until: Instant,
}

/// The delivery of an HTTP/2 response: whether hyper has received a frame and not requested the next frame yet.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// When hyper received the frame, in milliseconds since the connection began. Zero while hyper requests a frame.
    pub(super) passed_ms: AtomicU64,
}

/// Guard of a request in flight: dropping it ends the request.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) activity: Activity,
    began: Instant,
    /// Present for HTTP/2 responses, which are passed to hyper in smaller pieces.
    pub(super) delivery: Option<Arc<Delivery>>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut requests = self.activity.0.requests.lock();
        let index = requests.in_flight.iter().position(|at| *at == self.began);
        if let Some(index) = index {
            requests.in_flight.swap_remove(index);
        }
        requests.idle_since = Instant::now();
    }
}

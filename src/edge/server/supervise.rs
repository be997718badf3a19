//! Supervises a connection until it ends. The client must send its first bytes soon, must read its responses, and must
//! not stay idle for long. If the connection is too old, or if the server drains, the connection is closed gracefully.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Connection,
};
use tokio::time::Instant;
use tollgate_layers::{error::BoxError, self_wake::SelfWake};

use super::{activity::Activity, limits::ConnectionLimits, socket::Socket};

/// How long an idle connection may stay open after a graceful close was requested.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the connection until it ends. Closes it gracefully when it reaches its maximum age or when `draining`
/// completes.
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
    let (mut self_wake, mut timer_wake) = (SelfWake::default(), SelfWake::default());
    let mut lifetime = Lifetime::new(activity, limits);
    loop {
        let check_at = lifetime.next_check();
        let event = {
            let mut next = std::pin::pin!(async {
                tokio::select! {
                    biased;
                    () = draining.as_mut(), if lifetime.drained.is_none() => Event::Drain,
                    () = activity.first_request(), if lifetime.awaits_first_request() => {
                        Event::FirstRequest
                    }
                    () = tokio::time::sleep_until(check_at) => Event::Timer,
                    never = poll_fn(|cx| activity.poll_discards(cx)) => match never {},
                }
            });
            poll_fn(|cx| {
                let waker = self_wake.waker(cx.waker());
                let served = connection.as_mut().poll(&mut Context::from_waker(waker));
                if let Poll::Ready(served) = served {
                    return Poll::Ready(Event::Served(served));
                }
                // The timeouts are checked at intervals, because a check at every poll of the connection would cost
                // more.
                timer_wake.poll(cx, next.as_mut())
            })
            .await
        };
        let action = match event {
            Event::Served(served) => return served,
            Event::Drain => lifetime.drain(),
            Event::FirstRequest => lifetime.close(),
            Event::Timer => lifetime.check(),
        };
        match action {
            Action::Continue => {}
            Action::Close => connection.as_mut().graceful_shutdown(),
            Action::Abort => return Ok(()),
        }
    }
}

/// The events that the supervisor of a connection waits for.
enum Event {
    /// The connection has ended by itself, with this result.
    Served(Result<(), BoxError>),
    /// The server has begun to drain.
    Drain,
    /// The connection was accepted before the drain, and its first request has arrived during the drain. The request is
    /// served.
    FirstRequest,
    /// The time of the next check has come, so a timeout may have expired.
    Timer,
}

/// The decision about a connection after a check of its deadlines.
enum Action {
    Continue,
    /// Accept no more requests, answer the requests in flight, and close the connection.
    Close,
    Abort,
}

/// The times at which a connection must be closed.
struct Lifetime<'a> {
    activity: &'a Activity,
    limits: &'a ConnectionLimits,
    /// The time at which the connection reaches its maximum age.
    too_old_at: Instant,
    /// The time at which the server began to drain.
    drained: Option<Instant>,
    /// The time at which a graceful close of the connection was requested.
    closing: Option<Instant>,
    close_timeout: Duration,
}

impl<'a> Lifetime<'a> {
    fn new(activity: &'a Activity, limits: &'a ConnectionLimits) -> Self {
        Self {
            activity,
            limits,
            too_old_at: activity.began() + jittered(limits.age_max, activity),
            drained: None,
            closing: None,
            close_timeout: CLOSE_TIMEOUT,
        }
    }

    fn awaits_first_request(&self) -> bool {
        self.drained.is_some() && self.closing.is_none()
    }

    /// Returns when the timeouts of the connection must be checked again.
    fn next_check(&self) -> Instant {
        match (self.closing, self.activity.idle(self.limits, self.drained)) {
            // While requests are in flight, the timeouts are checked at an interval, because it is unknown when the
            // requests end.
            (_, None) => Instant::now() + CLOSE_TIMEOUT.min(self.limits.write_timeout),
            (Some(requested), Some(idle)) => requested.max(idle.since) + self.close_timeout,
            (None, Some(idle)) => self.too_old_at.min(idle.until),
        }
    }

    fn drain(&mut self) -> Action {
        self.drained = Some(Instant::now());
        match self.activity.has_begun() {
            true => self.close(),
            false => Action::Continue,
        }
    }

    fn close(&mut self) -> Action {
        self.closing.get_or_insert_with(Instant::now);
        Action::Close
    }

    fn check(&mut self) -> Action {
        if self.activity.is_stalled(self.limits.write_timeout) {
            tracing::debug!("connection closed: the client read nothing for limits.write_seconds");
            return Action::Abort;
        }
        let now = Instant::now();
        // A request that takes longer than `request_timeout` is aborted. If the client opens no flow-control window,
        // the response's body is never polled to its end, so only dropping the connection ends the request.
        let is_too_long = |began: Instant| began + self.limits.request_timeout <= now;
        if self.activity.oldest().is_some_and(is_too_long) {
            return Action::Abort;
        }
        match (self.closing, self.activity.idle(self.limits, self.drained)) {
            // The connection is idle after a graceful close was requested, but the client has not closed it.
            (Some(requested), Some(idle))
                if requested.max(idle.since) + self.close_timeout <= now =>
            {
                Action::Abort
            }
            (None, Some(idle)) if idle.until <= now => {
                // On HTTP/1, a connection on which only a part of the next request's head has arrived is also closed at
                // once, because hyper does not wait for the rest of that head.
                if self.activity.has_no_head() {
                    self.close_timeout = Duration::ZERO;
                }
                self.close()
            }
            (None, _) if self.too_old_at <= now => self.close(),
            _ => Action::Continue,
        }
    }
}

/// Returns the maximum age plus up to a tenth, so that connections that began together do not all end together.
fn jittered(age: Duration, activity: &Activity) -> Duration {
    let random = activity.address() / 64 % 256;
    age + age / 10 * u32::try_from(random).unwrap_or_default() / 256
}

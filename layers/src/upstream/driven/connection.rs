//! An HTTP/1.1 connection polled by the task that uses it; there is no driver task.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use http::Response;
use hyper::{
    body::Incoming,
    client::conn::http1::{self, Builder, SendRequest},
};
use tokio::{task::coop::unconstrained, time::Instant};

use super::alarm::Alarm;
use crate::{
    self_wake::{SelfWake, suppress_wakes},
    upstream::{
        connect::Stream,
        request::{BoxRequest, RequestBody},
    },
};

/// The maximum bytes read from a connection ahead of its reader.
const BUFFER_BYTES: usize = 64 * 1024;

/// A connection, idle or in use by a call.
pub(super) struct Connection {
    requests: SendRequest<RequestBody>,
    /// The connection; `None` once it is closed.
    open: Option<http1::Connection<Stream, RequestBody>>,
    /// Whether the connection was closed in the middle of a head.
    cut_in_head: bool,
    /// Filters the wake-ups that the call's own task causes.
    self_wake: SelfWake,
    /// Timer for the call; a body uses it while it is read.
    pub(super) alarm: Alarm,
}

/// The reason why the head of an answer is missing.
pub(super) enum NoHead {
    /// The head did not arrive before the deadline.
    Late,
    /// The connection failed. Has the request if no byte of it was written.
    Broken(hyper::Error, Option<BoxRequest>),
}

impl Connection {
    pub(super) async fn open(stream: Stream) -> Result<Self, hyper::Error> {
        let (requests, connection) = Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(stream)
            .await?;
        Ok(Self {
            requests,
            open: Some(connection),
            cut_in_head: false,
            self_wake: SelfWake::default(),
            alarm: Alarm::default(),
        })
    }

    /// Sends a request and returns the answer's head, if it arrives before `until`. It reads before it writes, so it
    /// notices what the peer did while the connection was idle.
    pub(super) async fn exchange(
        &mut self,
        req: BoxRequest,
        until: Instant,
    ) -> Result<Response<Incoming>, NoHead> {
        // The connection still has the waker of its last call's task, which must not be woken for this one.
        let (answer, _) = suppress_wakes(|| self.requests.try_send_request(*req));
        // Only this task delivers the answer, so no wake-up is needed for it.
        let mut answer = pin!(unconstrained(answer));
        let (open, cut, self_wake, alarm) = (
            &mut self.open,
            &mut self.cut_in_head,
            &mut self.self_wake,
            &mut self.alarm,
        );
        poll_fn(|cx| {
            drive(open, cut, self_wake.waker(cx.waker()));
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

    /// Returns whether an [`exchange`](Self::exchange) that failed with this error has received no byte of an answer.
    /// Interim answers (1xx) do not count.
    pub(super) fn got_nothing(&mut self, error: &hyper::Error) -> bool {
        if let Some(open) = self.open.take() {
            self.cut_in_head = has_unread(open);
        }
        !error.is_parse() && !self.cut_in_head
    }

    /// Moves bytes in both directions, on behalf of the call's task.
    pub(super) fn drive(&mut self, task: &Waker) {
        let waker = self.self_wake.waker(task);
        drive(&mut self.open, &mut self.cut_in_head, waker);
    }

    /// Returns whether the task was woken for this connection since the last query.
    pub(super) fn was_woken(&self, task: &Waker) -> bool {
        self.self_wake.was_woken(task)
    }

    /// Returns whether it can be given to the next call. If so, it no longer wakes the task of the last call.
    pub(super) fn is_free(&mut self) -> bool {
        // A peer's close of a connection that is already idle is noticed when it is next used.
        let free = self.requests.is_ready() || self.is_idle();
        if free {
            self.self_wake = SelfWake::default();
        }
        free
    }

    /// Returns whether the connection is open, and done with its last call.
    pub(super) fn is_idle(&mut self) -> bool {
        // No task waits for the connection, so a close by the peer is noticed here.
        drive(&mut self.open, &mut self.cut_in_head, Waker::noop());
        self.open.is_some() && self.requests.is_ready()
    }
}

/// Moves bytes in both directions. The connection's error is returned to its call.
fn drive(
    connection: &mut Option<http1::Connection<Stream, RequestBody>>,
    cut_in_head: &mut bool,
    waker: &Waker,
) {
    if let Some(open) = connection
        && Pin::new(open)
            .poll(&mut Context::from_waker(waker))
            .is_ready()
    {
        *cut_in_head = connection.take().is_some_and(has_unread);
    }
}

/// Returns whether bytes were received that are not a complete head.
fn has_unread(closed: http1::Connection<Stream, RequestBody>) -> bool {
    !closed.into_parts().read_buf.is_empty()
}

//! An HTTP/1.1 connection that the task of a call polls; it has no task of its own.

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

/// The maximum number of bytes that a connection reads ahead of the reader of the body.
const BUFFER_BYTES: usize = 64 * 1024;

/// A connection, idle or in use by a call.
pub(super) struct Connection {
    requests: SendRequest<RequestBody>,
    /// The connection; `None` once it is closed.
    open: Option<http1::Connection<Stream, RequestBody>>,
    /// Whether the connection was closed after a part of an answer's head.
    cut_in_head: bool,
    /// Suppresses the wake-ups of the call's task that the task itself causes.
    self_wake: SelfWake,
    /// The timer of the connection; a body has it while the body is read.
    pub(super) alarm: Alarm,
}

/// The reason why the head of an answer is missing.
pub(super) enum NoHead {
    /// The head did not arrive before the deadline.
    Late,
    /// The connection failed. Contains the request if no byte of it was written.
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

    /// Sends a request and returns the head of the answer, if it arrives before `until`. It reads before it writes, so
    /// that a close by the peer while the connection was idle is noticed.
    pub(super) async fn exchange(
        &mut self,
        req: BoxRequest,
        until: Instant,
    ) -> Result<Response<Incoming>, NoHead> {
        // The connection may still have the waker of the task of an earlier call, which must not be woken for this
        // request.
        let (answer, _) = suppress_wakes(|| self.requests.try_send_request(*req));
        // The answer arrives only while this task polls the connection, and the task then reads it, so that no waker is needed.
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

    /// Returns whether not a single byte of an answer was received when [`exchange`](Self::exchange) failed with this
    /// error. Interim answers (1xx) do not count.
    pub(super) fn got_nothing(&mut self, error: &hyper::Error) -> bool {
        if let Some(open) = self.open.take() {
            self.cut_in_head = has_unread(open);
        }
        !error.is_parse() && !self.cut_in_head
    }

    /// Reads and writes on the connection, on behalf of the task of the call.
    pub(super) fn drive(&mut self, task: &Waker) {
        let waker = self.self_wake.waker(task);
        drive(&mut self.open, &mut self.cut_in_head, waker);
    }

    /// Returns whether the connection has woken the task since the last call of this function.
    pub(super) fn was_woken(&self, task: &Waker) -> bool {
        self.self_wake.was_woken(task)
    }

    /// Returns whether the connection can be used for another call. If so, the connection no longer wakes the task of
    /// this call.
    pub(super) fn is_free(&mut self) -> bool {
        // If a request could be sent now, the connection is not polled: a close by the peer is noticed at the next use.
        let free = self.requests.is_ready() || self.is_idle();
        if free {
            self.self_wake = SelfWake::default();
        }
        free
    }

    /// Returns whether the connection is open and has finished its last call.
    pub(super) fn is_idle(&mut self) -> bool {
        // No task is woken for an idle connection, so it is polled here to notice a close by the peer.
        drive(&mut self.open, &mut self.cut_in_head, Waker::noop());
        self.open.is_some() && self.requests.is_ready()
    }
}

/// Reads and writes on the connection. Its errors are returned to the call that uses it.
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

/// Returns whether the closed connection had received bytes that were not a complete head.
fn has_unread(closed: http1::Connection<Stream, RequestBody>) -> bool {
    !closed.into_parts().read_buf.is_empty()
}

//! An HTTP/1.1 connection that has no task of its own: the task of a call polls it.

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

/// The maximum number of bytes that a connection reads before the reader of the body takes them.
const BUFFER_BYTES: usize = 64 * 1024;

/// An HTTP/1.1 connection, idle or in use by one call.
pub(super) struct Connection {
    requests: SendRequest<RequestBody>,
    /// hyper's connection. `None` after it was closed.
    open: Option<http1::Connection<Stream, RequestBody>>,
    /// Whether the connection was closed after only a part of a response's head had arrived.
    cut_in_head: bool,
    /// Suppresses wakes of the call's task that the task itself causes.
    self_wake: SelfWake,
    /// The timer of the connection. While a body is read, the body has the timer.
    pub(super) alarm: Alarm,
}

/// The reason for which an exchange did not return the head of a response.
pub(super) enum NoHead {
    /// The head has not arrived before the deadline.
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

    /// Sends a request, and returns the head of the response if it arrives before `until`. The connection is read
    /// before the request is written, to find out whether the peer has closed the idle connection.
    pub(super) async fn exchange(
        &mut self,
        req: BoxRequest,
        until: Instant,
    ) -> Result<Response<Incoming>, NoHead> {
        // The connection may still have the waker of an earlier call's task, which must not be woken for this request.
        let (answer, _) = suppress_wakes(|| self.requests.try_send_request(*req));
        // The head arrives only while this task polls the connection, and the task then reads it. So no waker is
        // needed.
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

    /// Returns whether no byte of a response had been received when [`exchange`](Self::exchange) failed with this
    /// error. Interim responses (1xx) do not count.
    pub(super) fn got_nothing(&mut self, error: &hyper::Error) -> bool {
        if let Some(open) = self.open.take() {
            self.cut_in_head = has_unread(open);
        }
        !error.is_parse() && !self.cut_in_head
    }

    /// Reads and writes on the connection. `task` is woken when this must be done again.
    pub(super) fn drive(&mut self, task: &Waker) {
        let waker = self.self_wake.waker(task);
        drive(&mut self.open, &mut self.cut_in_head, waker);
    }

    /// Returns whether the connection has woken the task since the last call of this function.
    pub(super) fn was_woken(&self, task: &Waker) -> bool {
        self.self_wake.was_woken(task)
    }

    /// Returns whether the connection can be used for another call. If so, it no longer wakes the task of this call.
    pub(super) fn is_free(&mut self) -> bool {
        // If a request could be sent now, the connection is not polled. If the peer has closed it, the next use notices
        // this.
        let free = self.requests.is_ready() || self.is_idle();
        if free {
            self.self_wake = SelfWake::default();
        }
        free
    }

    /// Returns whether the connection is open and has finished its last call.
    pub(super) fn is_idle(&mut self) -> bool {
        // No task is woken for an idle connection, so it is polled here to notice whether the peer has closed it.
        drive(&mut self.open, &mut self.cut_in_head, Waker::noop());
        self.open.is_some() && self.requests.is_ready()
    }
}

/// Reads and writes on the connection. Errors are reported to the call that uses the connection.
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

/// Returns whether the closed connection had received bytes that did not make a complete head.
fn has_unread(closed: http1::Connection<Stream, RequestBody>) -> bool {
    !closed.into_parts().read_buf.is_empty()
}

//! One connection, at both ends of which is the task of its call.

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

/// What is read from a connection ahead of whoever takes it.
const BUFFER_BYTES: usize = 64 * 1024;

/// A connection between two calls, or in one.
pub(super) struct Connection {
    requests: SendRequest<RequestBody>,
    /// `None` once it is closed.
    open: Option<http1::Connection<Stream, RequestBody>>,
    /// Of the task of its call.
    self_wake: SelfWake,
    /// A body that is read has it.
    pub(super) alarm: Alarm,
}

/// Why there is no head of an answer.
pub(super) enum NoHead {
    /// It took too long.
    Late,
    /// With the request, if no byte of that was written.
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
            self_wake: SelfWake::default(),
            alarm: Alarm::default(),
        })
    }

    /// An answer's head, if it comes before `until`. What the peer did while the connection waited is seen before
    /// a byte is written: it is read first.
    pub(super) async fn exchange(
        &mut self,
        req: BoxRequest,
        until: Instant,
    ) -> Result<Response<Incoming>, NoHead> {
        // The connection knows the task of its last call, and that has nothing to do with this one.
        let (answer, _) = suppress_wakes(|| self.requests.try_send_request(*req));
        // Nobody else brings the answer, so nobody has to wake this task for it.
        let mut answer = pin!(unconstrained(answer));
        let (open, self_wake, alarm) = (&mut self.open, &mut self.self_wake, &mut self.alarm);
        poll_fn(|cx| {
            drive(open, self_wake.waker(cx.waker()));
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

    /// Moves bytes in both directions, for the task of its call.
    pub(super) fn drive(&mut self, task: &Waker) {
        drive(&mut self.open, self.self_wake.waker(task));
    }

    /// Whether its task was woken for it since this was asked last.
    pub(super) fn was_woken(&self, task: &Waker) -> bool {
        self.self_wake.was_woken(task)
    }

    /// Whether it can be given to the next call, which then does not wake the task of the last one.
    pub(super) fn is_free(&mut self) -> bool {
        // What the peer does to one that waits for work already is seen when it is used.
        let free = self.requests.is_ready() || self.is_idle();
        if free {
            self.self_wake = SelfWake::default();
        }
        free
    }

    /// Whether it is open, and done with the last call.
    pub(super) fn is_idle(&mut self) -> bool {
        // Nobody waits for it: what the peer did in the meantime is seen here.
        drive(&mut self.open, Waker::noop());
        self.open.is_some() && self.requests.is_ready()
    }
}

/// Moves bytes in both directions. What a connection fails with is told to its call.
fn drive(connection: &mut Option<http1::Connection<Stream, RequestBody>>, waker: &Waker) {
    if let Some(open) = connection
        && Pin::new(open)
            .poll(&mut Context::from_waker(waker))
            .is_ready()
    {
        *connection = None;
    }
}

//! A response body that polls the connection on which it arrives.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{alarm::Alarm, pool::PooledConnection};
use crate::{body::PolledFrame, self_wake::suppress_wakes};

/// Ready frames are joined up to this number of bytes, because each frame causes work in the layers above and in the
/// connection to the caller.
const JOINED_BYTES_MAX: usize = 16 * 1024;

/// The result of polling a body for a frame.
/// A response body, with the connection on which it arrives.
pub(in crate::upstream) struct DrivenBody {
    incoming: Incoming,
    /// The timer of the connection, with which the body waits for frames.
    alarm: Alarm,
    /// The connection. `None` after it was returned to its pool or closed.
    pooled: Option<Box<PooledConnection>>,
    /// Whether the body has not been polled yet. Then data that arrived with the head may be ready.
    unread: bool,
    /// Whether the connection must be polled even if it was not woken: another frame may follow a frame that was taken.
    needs_poll: bool,
    /// The frame, error or end of the body that follows the joined frames. The next poll returns it.
    next: Option<Option<Result<Frame<Bytes>, hyper::Error>>>,
}

impl DrivenBody {
    pub(super) fn new(incoming: Incoming, mut pooled: Box<PooledConnection>) -> Self {
        Self {
            incoming,
            alarm: std::mem::take(&mut pooled.connection.alarm),
            pooled: Some(pooled),
            unread: true,
            needs_poll: true,
            next: None,
        }
    }

    /// Returns a frame that the connection has already received. The same task reads the body and polls the connection,
    /// so they need not wake each other.
    fn take(&mut self) -> PolledFrame<hyper::Error> {
        let incoming = Pin::new(&mut self.incoming);
        let nobody = &mut Context::from_waker(Waker::noop());
        let (frame, received) = suppress_wakes(|| incoming.poll_frame(nobody));
        self.needs_poll |= frame.is_ready() || received.is_some();
        frame
    }

    /// Polls for the next frame, without joining it with further frames.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> PolledFrame<hyper::Error> {
        // A frame is taken as soon as the connection has received it. So no frame can be ready before the connection is
        // polled again, except data that arrived with the head, and the end of the body.
        let looks = std::mem::take(&mut self.unread)
            || self.pooled.is_none()
            || self.incoming.is_end_stream();
        let mut frame = if looks { self.take() } else { Poll::Pending };
        // hyper wakes the task once more after each write, although the state of the connection cannot have changed.
        // Such polls are skipped.
        if frame.is_pending()
            && let Some(pooled) = self.pooled.as_deref_mut()
            && (std::mem::take(&mut self.needs_poll) | pooled.connection.was_woken(cx.waker()))
        {
            pooled.connection.drive(cx.waker());
            frame = self.take();
        }
        if matches!(frame, Poll::Ready(None)) {
            self.return_to_pool();
        }
        frame
    }

    /// Joins the data of the first frame with the data of all frames that are ready, without waiting for more.
    fn join(&mut self, first: Bytes, cx: &mut Context<'_>) -> Bytes {
        let mut joined = BytesMut::new();
        let mut length = first.len();
        while length < JOINED_BYTES_MAX && !self.incoming.is_end_stream() {
            let Poll::Ready(next) = self.poll_next(cx) else {
                break;
            };
            let data = match next {
                Some(Ok(frame))
                    if frame
                        .data_ref()
                        .is_some_and(|data| data.len() <= JOINED_BYTES_MAX - length) =>
                {
                    frame.into_data().ok()
                }
                other => {
                    self.next = Some(other);
                    None
                }
            };
            let Some(data) = data else {
                break;
            };
            if joined.is_empty() {
                joined.reserve(JOINED_BYTES_MAX.min(4 * (length + data.len())));
                joined.extend_from_slice(&first);
            }
            length += data.len();
            joined.extend_from_slice(&data);
        }
        if joined.is_empty() {
            first
        } else {
            joined.freeze()
        }
    }

    /// Returns the timer with which the reading task waits for frames.
    pub(in crate::upstream) fn alarm(&mut self) -> &mut Alarm {
        &mut self.alarm
    }

    fn return_to_pool(&mut self) {
        // If the pool was dropped, because its egress is no longer configured, the connection is closed.
        if let Some(mut pooled) = self.pooled.take()
            && let Some(pool) = pooled.pool.upgrade()
        {
            pooled.connection.alarm = std::mem::take(&mut self.alarm);
            pool.put(pooled);
        }
    }
}

impl Body for DrivenBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<hyper::Error> {
        let this = &mut *self;
        let frame = match this.next.take() {
            Some(next) => next,
            None => ready!(this.poll_next(cx)),
        };
        Poll::Ready(match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => Some(Ok(Frame::data(this.join(data, cx)))),
            Some(Ok(Err(trailers))) => Some(Ok(trailers)),
            Some(Err(error)) => Some(Err(error)),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.next {
            Some(next) => next.is_none(),
            None => self.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.next {
            // The inner body's hint does not include frames that were taken from it but not returned yet.
            Some(_) => SizeHint::default(),
            None => self.incoming.size_hint(),
        }
    }
}

impl Drop for DrivenBody {
    fn drop(&mut self) {
        // If the body's length is declared, the reader does not poll the body's end, so the connection is returned
        // here.
        if self.incoming.is_end_stream() {
            self.return_to_pool();
        }
    }
}

debug_fields!(impl[] DrivenBody { incoming: incoming });

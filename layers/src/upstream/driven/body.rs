//! A body that drives the connection which brings it.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{alarm::Alarm, pool::PooledConnection};
use crate::self_wake::suppress_wakes;

/// A body, and the connection that brings it.
pub(in crate::upstream) struct DrivenBody {
    incoming: Incoming,
    /// The connection's.
    alarm: Alarm,
    /// `None` once the connection has gone back to its pool, or is closed.
    pooled: Option<Box<PooledConnection>>,
    /// Nobody has looked yet for what came with the head.
    unread: bool,
    /// The connection has work that nobody wakes it for: a frame was taken, and it may bring the next one.
    needs_poll: bool,
}

impl DrivenBody {
    pub(super) fn new(incoming: Incoming, mut pooled: Box<PooledConnection>) -> Self {
        Self {
            incoming,
            alarm: std::mem::take(&mut pooled.connection.alarm),
            pooled: Some(pooled),
            unread: true,
            needs_poll: true,
        }
    }

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
    pub(in crate::upstream) fn alarm(&mut self) -> &mut Alarm {
        &mut self.alarm
    }

    fn return_to_pool(&mut self) {
        // A pool that is gone was left out of the config, and its connections go with it.
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

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        // What the connection brings is taken at once, so nothing is there before it is driven again: but for
        // what came with the head, and the end.
        let looks = std::mem::take(&mut this.unread)
            || this.pooled.is_none()
            || this.incoming.is_end_stream();
        let mut frame = if looks { this.take() } else { Poll::Pending };
        // hyper asks once more behind each write, when nothing can have changed.
        if frame.is_pending()
            && let Some(pooled) = this.pooled.as_deref_mut()
            && (std::mem::take(&mut this.needs_poll) | pooled.connection.was_woken(cx.waker()))
        {
            pooled.connection.drive(cx.waker());
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

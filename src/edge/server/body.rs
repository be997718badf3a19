//! The body of a request. The rest that nobody has read is discarded.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tollgate_layers::self_wake::suppress_wakes;

use super::{activity::Activity, unread::Unread};

/// The body of a request. If it is dropped before its end, the connection reads and discards the rest.
#[derive(Debug)]
pub struct RequestBody {
    /// The body as hyper receives it; `None` after its end.
    incoming: Option<Incoming>,
    /// Whether the same task handles the request and polls the connection, as on HTTP/1.
    shares_task: bool,
    /// Whether a task has begun to read the body, or the client waits for `100 Continue` before it sends the body.
    begun: bool,
    activity: Activity,
}

impl RequestBody {
    /// Wraps a body that hyper receives. `awaited` means that the client sends the body only after `100 Continue`.
    pub(super) const fn new(
        incoming: Incoming,
        shares_task: bool,
        awaited: bool,
        activity: Activity,
    ) -> Self {
        Self {
            incoming: Some(incoming),
            shares_task,
            begun: awaited,
            activity,
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take()
            && !incoming.is_end_stream()
        {
            self.activity.discard(Unread::new(incoming, self.begun));
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let Some(incoming) = &mut this.incoming else {
            return Poll::Ready(None);
        };
        this.begun = true;
        let mut incoming = Pin::new(incoming);
        let frame = if this.shares_task {
            let (frame, received) = suppress_wakes(|| incoming.as_mut().poll_frame(cx));
            // If nothing is left to read, the connection need not be woken.
            if let Some(connection) = received
                && !incoming.is_end_stream()
            {
                connection.wake();
            }
            frame
        } else {
            incoming.poll_frame(cx)
        };
        if let Poll::Ready(None) = frame {
            this.incoming = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let nothing = || SizeHint::with_exact(0);
        self.incoming.as_ref().map_or_else(nothing, Body::size_hint)
    }
}

//! The body of a request, as the server receives it.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tollgate_layers::self_wake::suppress_wakes;

use super::{supervise::Activity, unread::Unread};

/// The body of a request, as the connection delivers it. If this value is dropped before the body's end, the connection
/// discards the rest.
#[derive(Debug)]
pub struct RequestBody {
    /// The body as hyper receives it; `None` after its end.
    incoming: Option<Incoming>,
    /// Whether the task that answers the request also polls the connection, as on HTTP/1.
    of_one_task: bool,
    /// Whether reading of the body has begun, or the client waits for `100 Continue`.
    begun: bool,
    activity: Activity,
}

impl RequestBody {
    /// Wraps a body. `awaited` means that the client sends the body only after `100 Continue`.
    pub(super) const fn new(
        incoming: Incoming,
        of_one_task: bool,
        awaited: bool,
        activity: Activity,
    ) -> Self {
        Self {
            incoming: Some(incoming),
            of_one_task,
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
        let frame = if this.of_one_task {
            let (frame, received) = suppress_wakes(|| incoming.as_mut().poll_frame(cx));
            // The connection need not be woken if there is nothing left to read.
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

//! What a request brings.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tollgate_layers::self_wake::suppress_wakes;

/// The body of a request, as it comes from the connection.
#[derive(Debug)]
pub struct RequestBody {
    incoming: Incoming,
    /// On HTTP/1 the task that answers drives the connection too.
    of_one_task: bool,
}

impl RequestBody {
    pub(super) const fn new(incoming: Incoming, of_one_task: bool) -> Self {
        Self {
            incoming,
            of_one_task,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let of_one_task = self.of_one_task;
        let mut incoming = Pin::new(&mut self.incoming);
        if !of_one_task {
            return incoming.poll_frame(cx);
        }
        let (frame, heard) = suppress_wakes(|| incoming.as_mut().poll_frame(cx));
        // The connection need not be woken for more where there is no more.
        if let Some(connection) = heard
            && !incoming.is_end_stream()
        {
            connection.wake();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

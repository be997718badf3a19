//! The body of a request to a vendor.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};

use crate::{call::Segments, usage::Meter};

/// A request to a vendor. It is boxed because it is large and often moved.
pub(super) type BoxRequest = Box<Request<RequestBody>>;

/// A complete body. When a connection takes it, the meter is notified, because the vendor may work on the call from
/// then on.
#[derive(Clone, Debug)]
pub(super) struct RequestBody {
    /// The body is boxed, because for each connection, hyper has a channel with space for 32 requests.
    body: Option<Box<Segments>>,
    meter: Meter,
}

// This size matters, because each connection reserves space for 32 request bodies.
const _: () = assert!(size_of::<RequestBody>() <= 2 * size_of::<usize>());

impl RequestBody {
    pub(super) fn new(body: Segments, meter: Meter) -> Self {
        let body = Some(Box::new(body));
        Self { body, meter }
    }

    /// Returns the segments of a body that was not sent yet.
    pub(super) fn segments(&self) -> Vec<Bytes> {
        let body = self.body.as_deref();
        body.into_iter().flat_map(Segments::iter).cloned().collect()
    }
}

/// Returns a copy of the request. The body of the copy shares the bytes of the original body.
pub(super) fn copy(req: &BoxRequest) -> BoxRequest {
    let mut copy = Request::new(req.body().clone());
    copy.method_mut().clone_from(req.method());
    copy.uri_mut().clone_from(req.uri());
    copy.headers_mut().clone_from(req.headers());
    Box::new(copy)
}

impl Body for RequestBody {
    // All segments are one frame, because hyper flushes a full buffer between two frames, and HTTP/2 adds a header to
    // each frame.
    type Data = Box<Segments>;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Box<Segments>>, Infallible>>> {
        self.meter.dispatched();
        Poll::Ready(self.body.take().map(|body| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.as_ref().map_or(0, |body| body.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn segmented_body_is_one_frame_of_known_length() {
        let mut segments = Segments::from("{\"model\":\"");
        segments.push("large-2".into());
        segments.push("\"}".into());
        let meter = Meter::default();
        let mut body = RequestBody::new(segments, meter.clone());
        assert!(!body.is_end_stream() && !meter.read().dispatched);
        assert_eq!(body.size_hint().exact(), Some(19));
        let taken = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(body.is_end_stream() && meter.read().dispatched);
        assert_eq!(body.size_hint().exact(), Some(0));
        assert!(taken.iter().eq(["{\"model\":\"", "large-2", "\"}"]));
    }
}

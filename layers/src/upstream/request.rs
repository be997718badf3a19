//! What a vendor is sent.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use http::Request;
use http_body::{Body, Frame, SizeHint};

use crate::{call::Segments, usage::Meter};

/// It is large, and goes through many hands.
pub(super) type BoxRequest = Box<Request<RequestBody>>;

/// A whole body that tells the meter when a connection takes it: from then on the vendor may work.
#[derive(Debug)]
pub(super) struct RequestBody {
    /// Boxed: a connection has room for 32 requests, in a channel of hyper's.
    body: Option<Box<Segments>>,
    meter: Meter,
}

// An open stream pays for each byte of it 32 times.
const _: () = assert!(size_of::<RequestBody>() <= 2 * size_of::<usize>());

impl RequestBody {
    pub(super) fn new(body: Segments, meter: Meter) -> Self {
        Self {
            body: Some(Box::new(body)),
            meter,
        }
    }
}

impl Body for RequestBody {
    // All segments are one frame: hyper flushes between two frames once its buffer is full, and HTTP/2 has a
    // header for each.
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
    async fn a_body_in_segments_is_one_frame_of_known_length_and_on_its_way_when_it_is_taken() {
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

//! Response bodies: complete, or generated while they are sent.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tollgate_layers::{Error, error::BoxError};

/// The body of a response of the admin API.
pub struct AnswerBody(Kind);

enum Kind {
    Whole(Full<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>),
}

impl AnswerBody {
    /// A body that is generated piece by piece: each piece is generated after the previous one was sent. An error
    /// aborts the response.
    pub(crate) fn stream(
        pieces: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
    ) -> Self {
        Self(Kind::Stream(Box::pin(pieces)))
    }
}

impl From<Bytes> for AnswerBody {
    fn from(whole: Bytes) -> Self {
        Self(Kind::Whole(Full::new(whole)))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.get_mut().0 {
            Kind::Whole(whole) => {
                let frame = ready!(Pin::new(whole).poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})))
            }
            Kind::Stream(pieces) => {
                let piece = ready!(pieces.as_mut().poll_next(cx));
                Poll::Ready(piece.map(|piece| piece.map(Frame::data).map_err(Error::Internal)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(whole) => whole.is_end_stream(),
            Kind::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(whole) => whole.size_hint(),
            Kind::Stream(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerBody").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn complete_body_has_a_length_and_streamed_body_ends_at_an_error() {
        let whole = AnswerBody::from(Bytes::from_static(b"abc"));
        assert_eq!(whole.size_hint().exact(), Some(3));
        assert_eq!(whole.collect().await.unwrap().to_bytes(), "abc");

        let pieces = || [Ok(Bytes::from_static(b"a")), Ok(Bytes::from_static(b"b"))];
        let good = AnswerBody::stream(stream::iter(pieces()));
        assert_eq!(good.size_hint().exact(), None);
        assert_eq!(good.collect().await.unwrap().to_bytes(), "ab");

        let broken = pieces().into_iter().chain([Err("disk".into())]);
        let broken = AnswerBody::stream(stream::iter(broken));
        let Err(Error::Internal(cause)) = broken.collect().await else {
            panic!("it was not broken off");
        };
        assert_eq!(cause.to_string(), "disk");
    }
}

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Answering, Shape, UsualShape};
use crate::{
    body::PolledFrame,
    call::Format,
    error::{BoxError, Error},
    stream_progress::StreamProgress,
};

pin_project! {
    /// The body of a response: either the body of the service below, or the body of the response to an error.
    ///
    /// If an event stream fails before its end, this body ends it with one more event, which has the error in the
    /// caller's format. If a body of any other kind fails, this body fails too: the server then closes the connection,
    /// and the client sees that the response is incomplete.
    pub struct ResponseBody<A, P = UsualShape> {
        #[pin]
        inner: Option<A>,
        refusal: Option<Bytes>,
        answering: Option<Answering<P>>,
        format: Option<Format>,
        progress: Option<StreamProgress>,
        ended: bool,
    }
}

impl<A, P> ResponseBody<A, P> {
    /// `progress` is the position in the stream, for a format whose events have sequence numbers.
    pub(super) fn answer(
        inner: A,
        answering: Answering<P>,
        format: Option<Format>,
        progress: Option<StreamProgress>,
    ) -> Self {
        Self {
            inner: Some(inner),
            refusal: None,
            answering: Some(answering),
            format,
            progress,
            ended: false,
        }
    }

    pub(super) fn refusal(bytes: Bytes) -> Self {
        Self {
            inner: None,
            refusal: Some(bytes),
            answering: None,
            format: None,
            progress: None,
            ended: false,
        }
    }
}

debug_fields!(impl[A: fmt::Debug, P] ResponseBody<A, P> { inner: inner, refusal: refusal });

impl<A, P> Body for ResponseBody<A, P>
where
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static>,
    P: Shape,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(this.refusal.take().map(|bytes| Ok(Frame::data(bytes))));
        };
        let frame = ready!(inner.poll_frame(cx));
        let error = match frame {
            Some(Err(error)) => Error::from_below(error),
            Some(Ok(frame)) => return Poll::Ready(Some(Ok(frame))),
            None => return Poll::Ready(None),
        };
        *this.ended = true;
        let Some(answering) = this.answering else {
            return Poll::Ready(Some(Err(error)));
        };
        let refused = answering.refused(&error).within(this.progress.as_ref());
        Poll::Ready(Some(match *this.format {
            Some(format) => Ok(Frame::data(answering.shape.event(&refused, format))),
            None => Err(error),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
            || match &self.inner {
                Some(inner) => inner.is_end_stream(),
                None => self.refusal.is_none(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.inner, &self.refusal, self.format) {
            // An error event at the end may make the stream longer than the size hint of the inner body.
            (Some(_), _, Some(_)) => SizeHint::default(),
            (Some(inner), _, None) => inner.size_hint(),
            (None, refusal, _) => {
                SizeHint::with_exact(refusal.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::{facts::RequestNumber, respond::Language};

    fn broken(format: Option<Format>) -> ResponseBody<impl Body<Data = Bytes, Error = Error>> {
        let frames = [
            Ok(Frame::data(Bytes::from_static(b"data: {\"half"))),
            Err(Error::VendorBroken("cut".into())),
            Ok(Frame::data(Bytes::from_static(b"never"))),
        ];
        let answering = Answering {
            number: RequestNumber::now_v7(),
            language: Language::Ru,
            logs: true,
            shape: UsualShape,
        };
        ResponseBody::answer(
            StreamBody::new(futures_util::stream::iter(frames)),
            answering,
            format,
            None,
        )
    }

    #[tokio::test]
    async fn failed_stream_ends_with_an_error_in_its_format() {
        for (format, begin) in [
            (Format::Chat, "\n\ndata: {\"error\":{"),
            (Format::Messages, "\n\nevent: error\ndata: {\"error\":{"),
        ] {
            let bytes = broken(Some(format)).collect().await.unwrap().to_bytes();
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let tail = text.strip_prefix("data: {\"half").unwrap();
            assert!(tail.starts_with(begin), "{tail}");
            assert!(
                tail.ends_with("}\n\n") && !tail.contains("never") && !tail.contains("[DONE]"),
                "{tail}"
            );
        }
    }

    #[tokio::test]
    async fn body_of_a_plain_response_that_fails_midway_ends_with_an_error() {
        assert!(broken(None).collect().await.is_err());
    }
}

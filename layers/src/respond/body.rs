use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use serde_json::json;

use super::{Shape, class, log};
use crate::{call::Format, error::Error};

pin_project! {
    /// An answer's body: the inner one, or a refusal.
    ///
    /// When an event stream fails in the middle, its last event says so in the caller's format; any
    /// other body fails, so that the connection is cut and the answer looks as broken as it is.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: Option<A>,
        refusal: Option<Bytes>,
        shape: Option<Shape>,
        format: Option<Format>,
        ended: bool,
    }
}

impl<A> ResponseBody<A> {
    pub(super) fn answer(inner: A, shape: Shape, format: Option<Format>) -> Self {
        Self {
            inner: Some(inner),
            refusal: None,
            shape: Some(shape),
            format,
            ended: false,
        }
    }

    pub(super) fn refusal(bytes: Bytes) -> Self {
        Self {
            inner: None,
            refusal: Some(bytes),
            shape: None,
            format: None,
            ended: false,
        }
    }
}

impl<A> Body for ResponseBody<A>
where
    A: Body<Data = Bytes, Error = Error>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(this.refusal.take().map(|bytes| Ok(Frame::data(bytes))));
        };
        Poll::Ready(
            match (ready!(inner.poll_frame(cx)), *this.format, *this.shape) {
                (Some(Err(error)), format, Some(shape)) => {
                    *this.ended = true;
                    let class = class(&error);
                    log(&error, class.status, shape.number);
                    Some(match format {
                        Some(format) => Ok(Frame::data(error_event(format, shape, &error))),
                        None => Err(error),
                    })
                }
                (frame, ..) => frame,
            },
        )
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
            // A stream's last event may be longer than what the inner body promises.
            (Some(_), _, Some(_)) => SizeHint::default(),
            (Some(inner), _, None) => inner.size_hint(),
            (None, refusal, _) => {
                SizeHint::with_exact(refusal.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

/// The last event of a stream that failed: no `[DONE]` and no `message_stop` follows it.
fn error_event(format: Format, shape: Shape, error: &Error) -> Bytes {
    let class = class(error);
    let object = shape.object(error, class.kind, class.code);
    Bytes::from(match format {
        // The blank line first: the vendor may have been cut off in the middle of an event.
        Format::Chat => format!("\n\ndata: {}\n\n", json!({ "error": object })),
        Format::Messages => format!(
            "\n\nevent: error\ndata: {}\n\n",
            json!({ "type": "error", "error": object })
        ),
    })
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
        let shape = Shape {
            number: RequestNumber::now_v7(),
            language: Language::Ru,
        };
        ResponseBody::answer(
            StreamBody::new(futures_util::stream::iter(frames)),
            shape,
            format,
        )
    }

    #[tokio::test]
    async fn a_stream_that_fails_says_so_in_its_own_format_and_ends() {
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
    async fn a_plain_answer_that_fails_is_cut() {
        assert!(broken(None).collect().await.is_err());
    }
}

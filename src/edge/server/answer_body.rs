//! The body of a response as hyper receives it: in pieces of bounded size. The request is in flight until this body is
//! dropped.

use std::{
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderValue, Response,
    header::{CONNECTION, CONTENT_LENGTH},
};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::activity::{InFlight, Stage};

/// The maximum number of bytes of a response that are passed to h2 at once. If a single byte fits into the client's
/// window, h2 takes and buffers all data that it is given. Without this limit, h2 would buffer whole responses for a
/// client that opens a window of one byte.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// The maximum number of bytes of a response that are passed to hyper's HTTP/1 at once. The size is limited because
/// hyper copies these bytes.
const HTTP1_PIECE_BYTES_MAX: usize = 256 * 1024;

impl InFlight {
    /// Wraps the response so that its request stays in flight until the response's body has ended.
    pub(super) fn until_end_of<A: Body>(self, mut res: Response<A>) -> Response<TrackedBody<A>> {
        if self.delivery.is_none() && self.activity.must_close() {
            // If the client reused a connection on which a request body is still unread, its next request would be
            // lost. So this connection is closed (RFC 9112, section 9.6).
            let close = HeaderValue::from_static("close");
            res.headers_mut().insert(CONNECTION, close);
        }
        // On HTTP/1.1, hyper sends a response of unknown length in chunks.
        let in_chunks = self.activity.stage() == Stage::Awaited
            && res.body().size_hint().exact().is_none()
            && !res.headers().contains_key(CONTENT_LENGTH);
        self.activity.set_stage(match in_chunks {
            true => Stage::InChunks,
            false => Stage::Other,
        });
        res.map(|inner| TrackedBody {
            inner,
            rest: Bytes::new(),
            request: self,
        })
    }
}

pin_project! {
    /// The body of a response, which hyper reads in pieces. The request is in flight until this body is dropped.
    #[derive(Debug)]
    pub(super) struct TrackedBody<A> {
        #[pin]
        inner: A,
        // The remainder of a frame of which hyper has received the first pieces.
        rest: Bytes,
        request: InFlight,
    }
}

impl<A: Body<Data = Bytes>> Body for TrackedBody<A> {
    type Data = Bytes;
    type Error = A::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, A::Error>>> {
        let mut this = self.project();
        let Some(delivery) = &this.request.delivery else {
            if !this.rest.is_empty() {
                let data = first_of(std::mem::take(this.rest), HTTP1_PIECE_BYTES_MAX, this.rest);
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            let frame = ready!(this.inner.poll_frame(cx));
            return Poll::Ready(frame.map(|frame| {
                Ok(frame?.map_data(|data| first_of(data, HTTP1_PIECE_BYTES_MAX, this.rest)))
            }));
        };
        delivery.passed_ms.store(0, Ordering::Relaxed);
        let frame = if this.rest.is_empty() {
            ready!(this.inner.as_mut().poll_frame(cx))
        } else {
            Some(Ok(Frame::data(std::mem::take(this.rest))))
        };
        let frame = match frame {
            Some(Ok(frame)) => {
                let is_last = this.inner.is_end_stream();
                Some(Ok(
                    frame.map_data(|data| first_piece(data, is_last, this.rest))
                ))
            }
            frame => frame,
        };
        let now_ms = this.request.activity.now_ms();
        delivery.passed_ms.store(now_ms, Ordering::Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

/// Returns the first piece of `data`, which is passed to hyper now. The remainder is stored in `rest`.
///
/// The last byte of a response is a piece of its own, because hyper requests it only when all bytes before it fit into
/// the client's window. So the request is in flight until then, and a client that does not read its response is
/// detected.
fn first_piece(data: Bytes, is_last: bool, rest: &mut Bytes) -> Bytes {
    let mut data = first_of(data, PIECE_BYTES_MAX, rest);
    if rest.is_empty() && is_last && data.len() > 1 {
        *rest = data.split_off(data.len() - 1);
    }
    data
}

/// Returns the first `bytes_max` bytes of `data`. The remainder is stored in `rest`.
fn first_of(mut data: Bytes, bytes_max: usize, rest: &mut Bytes) -> Bytes {
    if data.len() > bytes_max {
        *rest = data.split_off(bytes_max);
    }
    data
}

#[cfg(test)]
mod tests {
    use http::Version;
    use http_body_util::{BodyExt, Full};

    use super::{super::activity::Activity, *};

    #[tokio::test]
    async fn body_is_passed_to_hyper_in_pieces_of_bounded_size() {
        for (version, bytes, pieces) in [
            (Version::HTTP_11, 40_000, &[40_000_usize][..]),
            (Version::HTTP_11, 600_000, &[262_144, 262_144, 75_712]),
            (Version::HTTP_2, 40_000, &[16_384, 16_384, 7231, 1]),
            (Version::HTTP_2, 16_385, &[16_384, 1]),
            (Version::HTTP_2, 16_384, &[16_383, 1]),
            (Version::HTTP_2, 2, &[1, 1]),
            (Version::HTTP_2, 1, &[1]),
            (Version::HTTP_2, 0, &[]),
        ] {
            let (request, _) = Activity::new().begin(version);
            let whole: Bytes = (0..=u8::MAX).cycle().take(bytes).collect();
            let mut body = request
                .until_end_of(Response::new(Full::new(whole.clone())))
                .into_body();
            assert_eq!(body.size_hint().exact(), Some(bytes as u64));
            let (mut lengths, mut given) = (Vec::new(), Vec::new());
            while let Some(frame) = body.frame().await {
                let data = frame.unwrap().into_data().unwrap();
                lengths.push(data.len());
                given.extend_from_slice(&data);
                let left = (bytes - given.len()) as u64;
                assert_eq!(body.size_hint().exact(), Some(left));
                assert_eq!(body.is_end_stream(), left == 0);
            }
            assert_eq!(lengths, pieces, "{version:?} {bytes}");
            assert_eq!(given, whole);
        }
    }
}

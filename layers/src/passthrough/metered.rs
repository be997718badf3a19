//! Meters the responses of a service that is not this gateway: a client of a vendor's API, or a handler of your own.
//!
//! The response is forwarded unchanged. The layer writes the usage in the response to the [`Meter`] that `reserve` has
//! inserted into the request's extensions. It also records how the response ended. The recorded end is not
//! [`End::Finished`] if the service failed, if it returned a status other than 2xx, or if its body broke off. The
//! tariff's `Bill` can make such a response free.
//!
//! ```
//! use http::{Request, Response, header::CONTENT_TYPE};
//! use http_body_util::{BodyExt, Full};
//! use tollgate_layers::{call::Format, passthrough::metered::MeteredLayer, usage::{End, Meter}};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const ANSWER: &str = r#"{"choices":[{"message":{"content":"Hi"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
//! let handler = async |_: Request<()>| {
//!     let answer = Response::builder().header(CONTENT_TYPE, "application/json");
//!     answer.body(Full::new(bytes::Bytes::from(ANSWER)))
//! };
//! let service = ServiceBuilder::new()
//!     .layer(MeteredLayer::new(Format::Chat, 1 << 20))
//!     .service_fn(handler);
//!
//! let meter = Meter::default();
//! let req = Request::builder().extension(meter.clone()).body(())?;
//! let answer: Response<_> = service.oneshot(req).await?;
//! assert_eq!(answer.into_body().collect().await?.to_bytes(), ANSWER);
//!
//! let reading = meter.read();
//! let usage = reading.usage.expect("the answer states it");
//! assert_eq!((usage.input, usage.output, reading.end), (9, 1, Some(End::Finished)));
//! # Ok(())
//! # }
//! ```

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::{Body, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    media_type,
    usage::{self, Reader, Seen},
};
use crate::{
    body::PolledFrame,
    call::Format,
    sse::Splitter,
    usage::{End, Meter},
};

/// Meters the responses of any service, not only those of vendors.
#[derive(Clone, Copy, Debug)]
pub struct MeteredLayer {
    format: Format,
    answer_bytes_max: usize,
}

impl MeteredLayer {
    /// Creates a layer that reads the usage of responses in `format`, from event streams and from JSON. It copies JSON
    /// responses to read them. It does not read the usage of a JSON response with more than `answer_bytes_max` bytes.
    #[must_use]
    pub const fn new(format: Format, answer_bytes_max: usize) -> Self {
        Self {
            format,
            answer_bytes_max,
        }
    }
}

impl<S> Layer<S> for MeteredLayer {
    type Service = Metered<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = *self;
        Metered { inner, layer }
    }
}

/// The service of [`MeteredLayer`].
#[derive(Clone, Debug)]
pub struct Metered<S> {
    inner: S,
    layer: MeteredLayer,
}

impl<S, B, A> Service<Request<B>> for Metered<S>
where
    S: Service<Request<B>, Response = Response<A>>,
{
    type Response = Response<ResponseBody<A>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let meter = req.extensions().get::<Meter>().cloned();
        if let Some(meter) = &meter {
            meter.dispatched();
        }
        ResponseFuture {
            call: self.inner.call(req),
            meter,
            layer: self.layer,
        }
    }
}

pin_project! {
    /// The future of [`Metered`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        call: F,
        meter: Option<Meter>,
        layer: MeteredLayer,
    }
}

impl<F, A, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, E>>,
{
    type Output = Result<Response<ResponseBody<A>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let res = ready!(this.call.poll(cx));
        let answered = res.as_ref().is_ok_and(|res| res.status().is_success());
        let mut tap = this.meter.take().map(|meter| (meter, *this.layer));
        if !answered && let Some((meter, _)) = tap.take() {
            meter.failed();
        }
        Poll::Ready(res.map(|res| {
            let tap = tap.map(|(meter, layer)| Box::new(Tap::new(&res, layer, meter)));
            res.map(|inner| ResponseBody { inner, tap })
        }))
    }
}

pin_project! {
    /// A response body whose usage is read while its bytes are forwarded.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: A,
        // `None` after the response has ended.
        tap: Option<Box<Tap>>,
    }
}

impl<A: Body<Data = Bytes>> Body for ResponseBody<A> {
    type Data = Bytes;
    type Error = A::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<A::Error> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        if let Some(tap) = this.tap {
            if let Some(Ok(frame)) = &frame
                && let Some(data) = frame.data_ref()
            {
                tap.pass(data);
            }
            let broken = matches!(frame, Some(Err(_)));
            // A server does not poll the body again after the body has reported its end, so the usage is recorded
            // before.
            if (frame.is_none() || broken || this.inner.is_end_stream())
                && let Some(tap) = this.tap.take()
            {
                tap.end(broken);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Reads the usage of a response from its bytes.
#[derive(Debug)]
struct Tap {
    meter: Meter,
    layer: MeteredLayer,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Events(EventTap),
    Json(BytesMut),
    /// A response of a content type from which no usage can be read.
    Other,
}

#[derive(Debug)]
struct EventTap {
    splitter: Splitter,
    reader: Box<Reader>,
    failed: bool,
}

impl Tap {
    fn new<A>(res: &Response<A>, layer: MeteredLayer, meter: Meter) -> Self {
        let media_type = media_type(res.headers());
        let kind = if media_type.eq_ignore_ascii_case(b"text/event-stream") {
            Kind::Events(EventTap {
                splitter: Splitter::default(),
                reader: Box::new(Reader::new(layer.format)),
                failed: false,
            })
        } else if media_type.eq_ignore_ascii_case(b"application/json") {
            Kind::Json(BytesMut::new())
        } else {
            Kind::Other
        };
        Self { meter, layer, kind }
    }

    fn pass(&mut self, data: &Bytes) {
        match &mut self.kind {
            Kind::Events(tap) => {
                let split = tap.splitter.push(data, |event| {
                    tap.failed |= matches!(tap.reader.event(&event), Seen::Failure(_));
                });
                self.meter.update(|reading| {
                    tap.reader.note(reading);
                    reading.usage_due = tap.reader.usage_due();
                    if tap.reader.finished() {
                        reading.end = Some(match tap.failed {
                            true => End::VendorError,
                            false => End::Finished,
                        });
                    }
                });
                if split.is_err() {
                    self.kind = Kind::Other;
                }
            }
            Kind::Json(bytes) if bytes.len() + data.len() <= self.layer.answer_bytes_max => {
                bytes.extend_from_slice(data);
            }
            Kind::Json(_) => self.kind = Kind::Other,
            Kind::Other => {}
        }
    }

    fn end(mut self, broken: bool) {
        let end = match &mut self.kind {
            Kind::Events(tap) => {
                if let Some(event) = tap.splitter.finish() {
                    tap.failed |= matches!(tap.reader.event(&event), Seen::Failure(_));
                }
                self.meter.update(|reading| tap.reader.note(reading));
                match (tap.failed, tap.reader.may_end()) {
                    (true, _) => End::VendorError,
                    (false, true) => End::Finished,
                    (false, false) => End::VendorCut,
                }
            }
            _ if broken => End::VendorCut,
            Kind::Json(bytes) => match usage::plain(self.layer.format, bytes, &self.meter) {
                Ok(_) => End::Finished,
                Err(_) => End::VendorError,
            },
            Kind::Other => End::Finished,
        };
        self.meter.update(|reading| {
            reading.usage_due = false;
            reading.end.get_or_insert(end);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io};

    use http::{StatusCode, header::CONTENT_TYPE};
    use http_body::Frame;
    use http_body_util::{BodyExt, StreamBody};
    use tower::ServiceExt;

    use super::*;
    use crate::usage::Reading;

    const JSON: &str = r#"{"choices":[{"message":{"content":"Hi"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    const TEXT: &str = r#"data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}"#;
    const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    const DONE: &str = "data: [DONE]";

    /// Returns what the meter recorded for a response that consists of these pieces and may break off.
    async fn metered(status: u16, kind: &'static str, pieces: &[&str], breaks: bool) -> Reading {
        let pieces: Vec<Bytes> = pieces
            .iter()
            .map(|piece| Bytes::from(piece.to_string()))
            .collect();
        let service =
            MeteredLayer::new(Format::Chat, 1000).layer(tower::service_fn(move |_: Request<()>| {
                let data = pieces
                    .clone()
                    .into_iter()
                    .map(|piece| Ok(Frame::data(piece)));
                let frames = data.chain(breaks.then(|| Err(io::Error::other("reset"))));
                let body = StreamBody::new(futures_util::stream::iter(frames));
                let mut res = Response::new(body);
                *res.status_mut() = StatusCode::from_u16(status).unwrap();
                res.headers_mut()
                    .insert(CONTENT_TYPE, kind.parse().unwrap());
                async { Ok::<_, Infallible>(res) }
            }));
        let meter = Meter::default();
        let req = Request::builder().extension(meter.clone());
        let res = service.oneshot(req.body(()).unwrap()).await.unwrap();
        assert_eq!(res.into_body().collect().await.is_err(), breaks);
        meter.read()
    }

    #[tokio::test]
    async fn usage_and_end_of_any_response_are_recorded_and_failed_responses_are_free() {
        let stream = [TEXT, "\n\n", USAGE, "\n\n", DONE, "\n\n"];
        let long = "x".repeat(2000);
        // Columns: the status, the content type, the pieces of the body, and whether the body breaks off; then the
        // expected results: whether usage is recorded, and how the response ended.
        type Case<'a> = (u16, &'static str, &'a [&'a str], bool, bool, Option<End>);
        let cases: &[Case<'_>] = &[
            (
                200,
                "application/json",
                &[&JSON[..20], &JSON[20..]],
                false,
                true,
                Some(End::Finished),
            ),
            (
                200,
                "application/json",
                &[&JSON[..20]],
                true,
                false,
                Some(End::VendorCut),
            ),
            (
                200,
                "application/json",
                &["[]"],
                false,
                false,
                Some(End::VendorError),
            ),
            (
                200,
                "application/json",
                &[&long],
                false,
                false,
                Some(End::Finished),
            ),
            (500, "application/json", &[JSON], false, false, None),
            (429, "text/event-stream", &stream, false, false, None),
            (
                200,
                "text/event-stream; charset=utf-8",
                &stream,
                false,
                true,
                Some(End::Finished),
            ),
            (
                200,
                "text/event-stream",
                &stream[..4],
                true,
                true,
                Some(End::VendorCut),
            ),
            (
                200,
                "text/event-stream",
                &["data: {\"error\":{\"message\":\"no\"}}\n\n"],
                false,
                false,
                Some(End::VendorError),
            ),
            (
                200,
                "text/plain",
                &["hello"],
                false,
                false,
                Some(End::Finished),
            ),
            (
                200,
                "text/plain",
                &["hel"],
                true,
                false,
                Some(End::VendorCut),
            ),
        ];
        for (status, kind, pieces, breaks, has_usage, end) in cases {
            let reading = metered(*status, kind, pieces, *breaks).await;
            let case = format!("{status} {kind} {pieces:?}: {reading:?}");
            let usage = reading.usage.map(|usage| (usage.input, usage.output));
            assert_eq!(usage, has_usage.then_some((9, 1)), "{case}");
            assert_eq!(reading.end, *end, "{case}");
            assert_eq!(reading.dispatched, end.is_some(), "{case}");
        }
    }

    #[tokio::test]
    async fn request_without_a_meter_is_forwarded() {
        let service = MeteredLayer::new(Format::Chat, 1000).layer(tower::service_fn(
            async |_: Request<()>| {
                Ok::<_, Infallible>(Response::new(http_body_util::Full::new(Bytes::from(JSON))))
            },
        ));
        let res = service.oneshot(Request::new(())).await.unwrap();
        assert_eq!(res.into_body().collect().await.unwrap().to_bytes(), JSON);
    }
}

//! Lets a vendor's answer through as it is, and reads the usage off the bytes on their way.
//!
//! A stream passes event by event: each goes on with the frame that ends it, and frames of whole events are
//! not copied. An event that is not whole waits, since its end may say that it is the vendor's error, in
//! words that are not for the caller. Nothing goes on behind the last event. The head of the answer waits
//! a while for the first event, so that an error that comes first still has its status; comments and pings
//! before it are no event.
//!
//! A plain answer is read whole first: only then is it known that it is one. Where its usage is missing or makes
//! no sense, and the meter knows by what the call is charged, that stands in it; every other byte stays.
//! In a stream it stays as the vendor said it.
//!
//! ```
//! # use std::sync::Arc;
//! # use http::Uri;
//! # use tollgate_layers::call::Format;
//! # use tollgate_layers::model::{ModelKind, Route, Vendor};
//! # use tollgate_layers::usage::Meter;
//! use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
//! use http_body_util::BodyExt;
//! use tollgate_layers::{Error, body, call::Outbound, passthrough::PassthroughLayer};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # fn outbound(body: &'static str) -> Outbound {
//! #     let endpoint = Uri::from_static("https://vendor.example/v1/chat/completions");
//! #     let key = Format::Chat.credential("our key").unwrap();
//! #     let vendor = Vendor::new("vendor", Format::Chat, endpoint, key);
//! #     Outbound {
//! #         route: Arc::new(Route::new(vendor, "large-2")),
//! #         credential: 0,
//! #         body: body.into(),
//! #         stream: true,
//! #         choices: 1,
//! #         kind: ModelKind::Chat,
//! #         strip_usage: false,
//! #         meter: Meter::default(),
//! #     }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const STREAM: &str = concat!(
//!     r#"data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}"#, "\n\n",
//!     r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#, "\n\n",
//!     "data: [DONE]\n\n",
//! );
//! let vendor = |_: Request<Outbound>| async {
//!     let mut res = Response::new(body::full(STREAM));
//!     let kind = HeaderValue::from_static("text/event-stream");
//!     res.headers_mut().insert(CONTENT_TYPE, kind);
//!     Ok::<_, Error>(res)
//! };
//! let service = ServiceBuilder::new()
//!     .layer(PassthroughLayer::new(1 << 20))
//!     .service_fn(vendor);
//!
//! // `outbound` puts the way to that vendor beside the body.
//! let outbound = outbound(
//!     r#"{"model":"large-2","stream":true,"messages":[{"role":"user","content":"Hello"}]}"#,
//! );
//! let meter = outbound.meter.clone();
//! let answer = service.oneshot(Request::new(outbound)).await?.into_body().collect().await?;
//!
//! assert_eq!(answer.to_bytes(), STREAM);
//! let usage = meter.read().usage.expect("the vendor said it");
//! assert_eq!((usage.input, usage.output), (9, 1));
//! # Ok(())
//! # }
//! ```

mod body;
#[cfg(test)]
mod ends_tests;
mod responses;
mod text;
mod tool_calls;
pub mod usage;
mod vendor_error;

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response,
    header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE},
    response::Parts,
};
use http_body::Body;
use http_body_util::BodyExt;
use tower::{Layer, Service};

use self::body::Pieces;
pub use self::body::ResponseBody;
use crate::{
    call::{Format, Outbound},
    error::{BoxError, Error},
    facts::{EventStream, NothingSaid},
    heads::emptied,
    model::ModelKind,
    setting::Setting,
    usage::{End, Meter},
};

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, no-store");
const NO: HeaderValue = HeaderValue::from_static("no");

/// Meters answers.
#[derive(Clone, Debug)]
pub struct PassthroughLayer {
    answer_bytes_max: Setting<usize>,
}

impl PassthroughLayer {
    /// A plain answer may have `answer_bytes_max` bytes.
    #[must_use]
    pub fn new(answer_bytes_max: impl Into<Setting<usize>>) -> Self {
        Self {
            answer_bytes_max: answer_bytes_max.into(),
        }
    }
}

impl<S> Layer<S> for PassthroughLayer {
    type Service = Passthrough<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Passthrough {
            inner,
            answer_bytes_max: self.answer_bytes_max.clone(),
        }
    }
}

/// The service of [`PassthroughLayer`].
#[derive(Clone, Debug)]
pub struct Passthrough<S> {
    inner: S,
    answer_bytes_max: Setting<usize>,
}

impl<S, A> Service<Request<Outbound>> for Passthrough<S>
where
    S: Service<Request<Outbound>, Response = Response<A>, Error = Error>,
    S::Future: Send + 'static,
    A: Body<Data = Bytes, Error = Error> + Send + Unpin + 'static,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<Outbound>) -> Self::Future {
        let Outbound {
            route,
            stream,
            choices,
            kind,
            strip_usage,
            meter,
            ..
        } = req.body();
        let (format, stream, strip_usage, meter) =
            (route.vendor.format, *stream, *strip_usage, meter.clone());
        let (choices, asked) = (*choices, *kind);
        let head_timeout = route.vendor.head_timeout;
        let bytes_max = self.answer_bytes_max.get();
        let call = self.inner.call(req);
        Box::pin(async move {
            // Nothing else of the head is needed, least of all for as long as the body takes.
            let (Parts { headers, .. }, mut body) = call.await?.into_parts();
            if is_packed(&headers) {
                meter.refused();
                return Err(broken("a content-encoding that was not asked for"));
            }
            let kind = media_type(&headers);
            let expected: &[u8] = match stream {
                true => b"text/event-stream",
                false => b"application/json",
            };
            if !kind.eq_ignore_ascii_case(expected) {
                meter.refused();
                let kind = String::from_utf8_lossy(kind).to_ascii_lowercase();
                return Err(broken(format!(
                    "content-type {kind:?} for stream = {stream}"
                )));
            }
            let headers = emptied(headers);
            if stream {
                let reader = usage::Reader::new(format).choices(choices);
                let progress = reader.progress();
                let body = ResponseBody::stream(body, reader, strip_usage, meter.clone());
                // Boxed: a plain answer, too, has room for this future. What never began for the client is not
                // paid for, unless its vendor has counted it.
                let begun = Box::pin(body.begun(head_timeout)).await;
                let begun = begun.inspect_err(|_| {
                    // Here an error that comes first refuses the call, whatever else it says.
                    if format != Format::Responses {
                        meter.update(|reading| reading.usage = None);
                    }
                    meter.failed();
                })?;
                let nothing_said = !begun.spoke();
                let mut res = answer(begun, headers, (EVENTS, NO_CACHE));
                if nothing_said {
                    res.extensions_mut().insert(NothingSaid);
                }
                res.headers_mut().insert(X_ACCEL_BUFFERING, NO);
                res.extensions_mut().insert(EventStream(format));
                if let Some(progress) = progress {
                    res.extensions_mut().insert(progress);
                }
                return Ok(res);
            }
            let whole = whole(&mut body, format, bytes_max, &meter).await;
            let bytes = match whole.and_then(|bytes| {
                let charged = match asked {
                    ModelKind::Embedding => usage::embeddings(&bytes, &meter),
                    ModelKind::Chat => usage::plain(format, &bytes, &meter),
                }?;
                Ok(charged.unwrap_or(bytes))
            }) {
                Ok(bytes) => bytes,
                Err(error) => {
                    meter.update(|reading| {
                        reading.end.get_or_insert(End::VendorCut);
                    });
                    return Err(error);
                }
            };
            let body = ResponseBody::whole(bytes);
            Ok(answer(body, headers, (JSON, NO_STORE)))
        })
    }
}

async fn whole<A>(
    body: &mut A,
    format: Format,
    bytes_max: usize,
    meter: &Meter,
) -> Result<Bytes, Error>
where
    A: Body<Data = Bytes, Error = Error> + Unpin,
{
    let (mut pieces, mut room) = (Pieces::default(), bytes_max);
    while let Some(frame) = body.frame().await.transpose()? {
        let piece = frame.into_data().unwrap_or_default();
        let Some(left) = room.checked_sub(piece.len()) else {
            // Were this free, its length would be a way not to pay.
            let text = text::text_bytes(format, &pieces.joined());
            meter.update(|reading| (reading.answered, reading.text_bytes) = (true, text));
            let why = format!("an answer of more than {bytes_max} bytes");
            return Err(Error::AnswerTooLong(why.into()));
        };
        room = left;
        pieces.push(piece);
    }
    Ok(pieces.joined())
}

fn is_packed(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_ENCODING)
        .is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn media_type(headers: &HeaderMap) -> &[u8] {
    let value = headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    value
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii()
}

/// Headers are made anew: nothing of the vendor's crosses but the kind of the body, and the empty map.
fn answer<A>(
    body: ResponseBody<A>,
    mut headers: HeaderMap,
    (content_type, cache_control): (HeaderValue, HeaderValue),
) -> Response<ResponseBody<A>> {
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, cache_control);
    let mut res = Response::new(body);
    *res.headers_mut() = headers;
    res
}

fn broken(why: impl Into<BoxError>) -> Error {
    Error::VendorBroken(why.into())
}

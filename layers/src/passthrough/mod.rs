//! Forwards a vendor's response unchanged, and reads the usage from its bytes.
//!
//! A stream is forwarded event by event. Each event is forwarded with the frame that completes it, and frames that
//! consist of whole events are not copied. An incomplete event is kept back, because its end may prove that it is an
//! error of the vendor, whose text is not meant for the caller. Nothing is forwarded after the last event. The
//! response's head waits for the first event for a limited time, so that an error in this event can still set the
//! status. Comments and pings do not count as events.
//!
//! A plain response is read completely before any byte is forwarded, because only a complete response can be checked.
//! If its usage is missing or contradictory, and the call has a hold that determines the charge, the charged usage is
//! written into the response. All other bytes are forwarded unchanged. In a stream, usage that the vendor reports is
//! replaced in the same way. Missing usage is added only to a stream that is translated.
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
//! // `outbound` adds the route to that vendor.
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
pub mod metered;
pub mod usage;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response,
    header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE},
    response::Parts,
};
use http_body::Body;
use http_body_util::BodyExt;
use tower_layer::Layer;
use tower_service::Service;

pub use self::body::ResponseBody;
use crate::{
    body_budget::{AnswerRoom, BodyBudget, ReservedBytes},
    call::{Format, Outbound},
    error::{BoxError, Error},
    facts::{Caller, EventStream, NothingSaid},
    formats::{errors::broken, scan::text_size},
    heads::emptied,
    model::ModelKind,
    pieces::Pieces,
    setting::Setting,
    stream_progress::StreamProgress,
    text_size::TextSize,
    unix_time::unix_ms,
    usage::{End, Meter, Reading},
};

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, no-store");
const NO: HeaderValue = HeaderValue::from_static("no");

/// The default limit of the bytes of all plain responses in memory.
const ANSWERS_BYTES_MAX: u64 = 256 << 20;

/// How long a response waits for memory. Meanwhile the gateway reads no more of it from the vendor.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);

/// If a plain response declares its length, or is longer than this many bytes, all of its memory is allocated at once.
/// A growing buffer would copy the response, whereas memory that is never written costs nothing.
const GROWN_BYTES_MAX: usize = 1 << 20;

/// Forwards the responses of vendors, and reads their usage into the call's meter.
#[derive(Clone, Debug)]
pub struct PassthroughLayer {
    answer_bytes_max: Setting<usize>,
    answers_bytes_max: Setting<u64>,
    taken: BodyBudget,
}

impl PassthroughLayer {
    /// Creates a layer that forwards plain responses of at most `answer_bytes_max` bytes.
    #[must_use]
    pub fn new(answer_bytes_max: impl Into<Setting<usize>>) -> Self {
        Self {
            answer_bytes_max: answer_bytes_max.into(),
            answers_bytes_max: ANSWERS_BYTES_MAX.into(),
            taken: BodyBudget::default(),
        }
    }

    /// Sets the limit of the bytes of all plain responses in memory, which is 256 MiB by default. One response at a
    /// time may exceed it. An account may use at most as many bytes as remain free, and a key half as many, but each of
    /// them may always have two responses of the maximum size. A response waits for memory for up to 30 seconds; after
    /// that, the call fails as if the response were too long.
    #[must_use]
    pub fn answers_bytes_max(mut self, answers_bytes_max: impl Into<Setting<u64>>) -> Self {
        self.answers_bytes_max = answers_bytes_max.into();
        self
    }
}

impl<S> Layer<S> for PassthroughLayer {
    type Service = Passthrough<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = self.clone();
        Passthrough { inner, layer }
    }
}

/// The service of [`PassthroughLayer`].
#[derive(Clone, Debug)]
pub struct Passthrough<S> {
    inner: S,
    layer: PassthroughLayer,
}

impl<S, A> Service<Request<Outbound>> for Passthrough<S>
where
    S: Service<Request<Outbound>, Response = Response<A>, Error: Into<BoxError> + 'static>,
    S::Future: Send + 'static,
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + Unpin + 'static,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<Outbound>) -> Self::Future {
        let outbound = req.body();
        let (format, stream) = (outbound.route.vendor.format, outbound.stream);
        let (choices, requested, strip_usage) =
            (outbound.choices, outbound.kind, outbound.strip_usage);
        let (meter, head_timeout) = (outbound.meter.clone(), outbound.route.vendor.head_timeout);
        let bytes_max = self.layer.answer_bytes_max.get();
        let key = req.extensions().get().map(|Caller(key)| Arc::clone(key));
        let reserved = ReservedBytes::new(
            &self.layer.taken,
            key,
            bytes_max as u64,
            self.layer.answers_bytes_max.get(),
        );
        let call = self.inner.call(req);
        Box::pin(async move {
            // The head is dropped here except for its headers, which are needed while the body is read.
            let res = call.await.map_err(Error::from_below)?;
            meter.update(|reading| reading.first_byte_at_ms = Some(unix_ms()));
            let (Parts { headers, .. }, mut body) = res.into_parts();
            check_type(&headers, stream).inspect_err(|_| meter.refused())?;
            let headers = emptied(headers);
            if stream {
                let reader = usage::Reader::new(format).choices(choices);
                let progress = reader.progress();
                let body = ResponseBody::stream(body, reader, strip_usage, meter.clone());
                // This future is boxed, because otherwise plain responses would also reserve space for it. If a stream
                // ends before the client gets its head, the call is free, unless the vendor has reported usage.
                let begun = Box::pin(body.begun(head_timeout)).await;
                let begun = begun.inspect_err(|_| {
                    // In every format except Responses, a stream that begins with an error is a rejection. It is free
                    // even if it has usage.
                    if format != Format::Responses {
                        meter.update(|reading| reading.usage = None);
                    }
                    meter.failed();
                })?;
                return Ok(events(begun, headers, format, progress));
            }
            let whole = whole(&mut body, format, bytes_max, reserved, &meter).await;
            let (bytes, room) = match whole.and_then(|(bytes, reserved)| {
                let charged = match requested {
                    ModelKind::Embedding => usage::embeddings(&bytes, &meter),
                    ModelKind::Chat => usage::plain(format, &bytes, &meter),
                }?;
                Ok((charged.unwrap_or(bytes), AnswerRoom::new(reserved)))
            }) {
                Ok(whole) => whole,
                Err(error) => {
                    meter.update(|reading| {
                        reading.end.get_or_insert(End::VendorCut);
                    });
                    return Err(error);
                }
            };
            let body = ResponseBody::whole(room.clone().kept_by(bytes));
            let mut res = answer(body, headers, (JSON, NO_STORE));
            res.extensions_mut().insert(room);
            Ok(res)
        })
    }
}

/// Refuses a response whose content encoding or content type was not requested.
fn check_type(headers: &HeaderMap, stream: bool) -> Result<(), Error> {
    if is_packed(headers) {
        return Err(broken("a content-encoding that was not requested"));
    }
    let kind = media_type(headers);
    let expected: &[u8] = match stream {
        true => b"text/event-stream",
        false => b"application/json",
    };
    if kind.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let kind = String::from_utf8_lossy(kind).to_ascii_lowercase();
    Err(broken(format!(
        "content-type {kind:?} for stream = {stream}"
    )))
}

/// Builds the response whose body is an event stream.
fn events<A>(
    begun: ResponseBody<A>,
    headers: HeaderMap,
    format: Format,
    progress: Option<StreamProgress>,
) -> Response<ResponseBody<A>> {
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
    res
}

/// Records in the meter how much text has been received so far.
fn note_text(text: &TextSize, reading: &mut Reading) {
    (reading.text_bytes, reading.text_tokens) = (text.bytes(), text.tokens());
}

async fn whole<A>(
    body: &mut A,
    format: Format,
    bytes_max: usize,
    mut reserved: ReservedBytes,
    meter: &Meter,
) -> Result<(Bytes, ReservedBytes), Error>
where
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Unpin,
{
    let declared = body.size_hint().exact().unwrap_or_default();
    let declared = usize::try_from(declared).unwrap_or(bytes_max);
    let mut pieces = Pieces::default();
    while let Some(frame) = body.frame().await.transpose().map_err(Error::from_below)? {
        let piece = frame.into_data().unwrap_or_default();
        let bytes = pieces.len() + piece.len();
        let too_much = if bytes > bytes_max {
            Some(format!("the response has more than {bytes_max} bytes"))
        } else {
            let room = reserved.wait_for(bytes as u64, ROOM_TIMEOUT).await;
            room.err().map(|_| {
                "no memory for the response: all responses together reach their limit".into()
            })
        };
        if let Some(why) = too_much {
            // The call is charged as if it was answered. Otherwise a caller could avoid payment by requesting a
            // response that is too long.
            let text = text_size(format, &pieces.joined());
            meter.update(|reading| {
                reading.answered = true;
                note_text(&text, reading);
            });
            return Err(Error::AnswerTooLong(why.into()));
        }
        let least = match declared {
            0 if bytes > GROWN_BYTES_MAX => bytes_max,
            _ => declared.min(bytes_max),
        };
        pieces.push_within(piece, least);
    }
    Ok((pieces.joined(), reserved))
}

fn is_packed(headers: &HeaderMap) -> bool {
    let coding = headers.get(CONTENT_ENCODING);
    coding.is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn media_type(headers: &HeaderMap) -> &[u8] {
    let value = headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let mut parts = value.split(|byte| *byte == b';');
    parts.next().unwrap_or_default().trim_ascii()
}

/// Builds the headers of the response to the caller in the memory of the vendor's header map. No header of the vendor
/// remains in it.
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

//! Reads the body once, bounded in size and time, and checks it once: `Request<B>` → `Request<Call>`.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tollgate_layers::{
//!     Error, body,
//!     call::Call,
//!     error::Problem,
//!     parse::{ParseLayer, ParseLimits},
//! };
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let service = ServiceBuilder::new()
//!     .layer(ParseLayer::new(ParseLimits { body_bytes_max: 64 << 10, ..ParseLimits::default() }))
//!     .service_fn(|req: Request<Call>| async move {
//!         let Call { model, input, .. } = req.into_body();
//!         let text = format!("{model} is told {} bytes", input.text_bytes);
//!         Ok::<_, Error>(Response::new(body::full(text)))
//!     });
//! let ask = |body: &'static str| {
//!     Request::post("/v1/chat/completions").body(Full::new(Bytes::from(body))).unwrap()
//! };
//!
//! let good = ask(r#"{"model":"small","messages":[{"role":"user","content":"Hello"}]}"#);
//! let answer = service.clone().oneshot(good).await?.into_body().collect().await?;
//! assert_eq!(answer.to_bytes(), "small is told 5 bytes");
//!
//! let bad = ask(r#"{"model":"small","messages":[{"role":"tool box","content":"Hello"}]}"#);
//! let Err(Error::Invalid { field, problem }) = service.oneshot(bad).await else {
//!     panic!("there is no such role");
//! };
//! assert_eq!(field, "messages[0].role");
//! assert!(matches!(problem, Problem::NotOneOf(_)));
//! # Ok(())
//! # }
//! ```

mod cache;
mod chat;
mod content;
mod embeddings;
mod json;
mod messages;
mod responses;
mod room;
mod sound;

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, Request,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{Layer, Service};

use self::room::{Room, Taken};
use crate::{
    call::{Call, Format, Operation},
    error::{BoxError, Error, Problem},
    json::members,
    session,
    setting::Setting,
};

const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// What a request may weigh.
#[derive(Clone, Copy, Debug)]
pub struct ParseLimits {
    /// Bytes of a body.
    pub body_bytes_max: u64,
    /// Bytes of all bodies that are being read or still needed, over all services of a layer. Whatever
    /// comes in beyond it is [`Error::Overloaded`], also a body that has come halfway.
    pub bodies_bytes_max: u64,
    /// Time for the whole body.
    pub body_time_max: Duration,
    /// Bytes that must come each second, on average, once [`SLOW_START`] is over.
    pub body_rate_min: u64,
    /// Messages of a conversation, or inputs of a call for embeddings.
    pub messages_max: u64,
}

impl Default for ParseLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: 32 << 20,
            bodies_bytes_max: 512 << 20,
            body_time_max: Duration::from_secs(60),
            body_rate_min: 1024,
            messages_max: 10_000,
        }
    }
}

/// How long a body may come as slowly as it likes.
pub const SLOW_START: Duration = Duration::from_secs(5);

/// For a body that comes in several frames, so much of what was declared is allocated at once: who declares more
/// has to send it.
const DECLARED_BYTES_MAX: u64 = 128 * 1024;

/// JSON may be nested this deep.
pub const DEPTH_MAX: usize = 64;

/// Parses calls of all formats, and for embeddings; which it is is said by the path ([`Operation::of_path`]).
#[derive(Clone, Debug)]
pub struct ParseLayer {
    limits: Setting<ParseLimits>,
    taken: Taken,
}

impl Default for ParseLayer {
    fn default() -> Self {
        Self::new(ParseLimits::default())
    }
}

impl ParseLayer {
    /// Parses within `limits`.
    #[must_use]
    pub fn new(limits: impl Into<Setting<ParseLimits>>) -> Self {
        Self {
            limits: limits.into(),
            taken: Taken::default(),
        }
    }
}

impl<S> Layer<S> for ParseLayer {
    type Service = Parse<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Parse {
            inner,
            layer: Arc::new(self.clone()),
        }
    }
}

/// The service of [`ParseLayer`].
#[derive(Clone, Debug)]
pub struct Parse<S> {
    inner: S,
    /// One for all clones, of which each call makes some.
    layer: Arc<ParseLayer>,
}

impl<S, B> Service<Request<B>> for Parse<S>
where
    S: Service<Request<Call>, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let limits = self.layer.limits.get();
        let room = Room::new(&self.layer.taken, limits.bodies_bytes_max);
        // Outside of the future, which would have room for the whole request beside its parts.
        let (parts, body) = req.into_parts();
        Box::pin(async move {
            let operation = Operation::of_path(parts.uri.path()).ok_or(Error::PathUnknown)?;
            // What `content-length` says, where there is one.
            let declared = body.size_hint().exact();
            check_headers(
                &parts.headers,
                operation.format(),
                declared,
                limits.body_bytes_max,
            )?;
            room.could_hold(declared.unwrap_or(0))?;
            let body = read(body, declared, &limits, room).await?;
            let mut call = call(operation, &body, limits.messages_max)?;
            call.session = session::from_headers(&parts.headers);
            inner.call(Request::from_parts(parts, call)).await
        })
    }
}

/// Reads the request of an operation from its bytes; what its headers say is not known.
///
/// # Errors
/// [`Error::Invalid`] that names the field.
pub fn call(operation: Operation, body: &Bytes, messages_max: u64) -> Result<Call, Error> {
    let mut call = match operation {
        Operation::Chat => chat::call(body, messages_max),
        Operation::Messages => messages::call(body, messages_max),
        Operation::CountTokens => messages::count(body, messages_max),
        Operation::Responses => responses::call(body, messages_max),
        Operation::ChatOrResponses if has_input(body) => responses::call(body, messages_max),
        Operation::ChatOrResponses => chat::call(body, messages_max),
        Operation::Embeddings => embeddings::call(body, messages_max),
    }?;
    call.body = body.clone();
    Ok(call)
}

/// Whether a conversation stands where the responses format has it.
fn has_input(body: &Bytes) -> bool {
    let Ok(body) = std::str::from_utf8(body) else {
        return false;
    };
    let found = members(body, &["messages", "input"]);
    matches!(found, Ok([None, Some(_)]))
}

fn check_headers(
    headers: &HeaderMap,
    format: Format,
    declared: Option<u64>,
    bytes_max: u64,
) -> Result<(), Error> {
    if declared.is_some_and(|bytes| bytes > bytes_max) {
        return Err(Error::BodyTooLarge { bytes_max });
    }
    let json = |value: &http::HeaderValue| {
        let kind = value
            .as_bytes()
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
    };
    if headers.get(CONTENT_TYPE).is_some_and(|value| !json(value)) {
        return Err(Error::ContentType);
    }
    if headers
        .get(CONTENT_ENCODING)
        .is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(Error::ContentEncoding);
    }
    let versioned = || {
        headers
            .get(ANTHROPIC_VERSION)
            .is_some_and(|version| !version.as_bytes().trim_ascii().is_empty())
    };
    if format == Format::Messages && !versioned() {
        return Err(Error::invalid("anthropic-version", Problem::HeaderMissing));
    }
    Ok(())
}

async fn read<B>(
    body: B,
    declared: Option<u64>,
    limits: &ParseLimits,
    mut room: Room,
) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let bytes_max = limits.body_bytes_max;
    let mut body = std::pin::pin!(body);
    let mut alarm = None;
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    loop {
        let bytes = (first.len() + rest.len()) as u64;
        let earned = Duration::from_millis(bytes * 1000 / limits.body_rate_min.max(1));
        let patience = limits.body_time_max.min(SLOW_START + earned);
        let next = next_frame(body.as_mut(), &mut alarm, patience).await?;
        let Some(frame) = next else {
            break;
        };
        let Ok(data) = frame
            .map_err(|error| Error::BodyBroken(error.into()))?
            .into_data()
        else {
            continue;
        };
        if (first.len() + rest.len() + data.len()) as u64 > bytes_max {
            return Err(Error::BodyTooLarge { bytes_max });
        }
        room.make((first.len() + rest.len() + data.len()) as u64)?;
        // A body that comes as one frame, as most do, is not copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                let declared = declared.unwrap_or(0).min(DECLARED_BYTES_MAX);
                rest.reserve(usize::try_from(declared).unwrap_or_default());
            }
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&data);
        }
    }
    Ok(room.kept_by(if rest.is_empty() {
        first
    } else {
        rest.freeze()
    }))
}

/// There once a body had to be waited for: most have come with their head.
struct Alarm {
    begin: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Alarm {
    fn new(patience: Duration) -> Self {
        let begin = Instant::now();
        Self {
            begin,
            sleep: Box::pin(sleep_until(begin + patience)),
        }
    }
}

/// The next frame, if it comes within `patience` of when the body had first to be waited for. The alarm is not moved
/// by every frame: when it goes off it is set to what is due by then.
async fn next_frame<B: Body>(
    mut body: Pin<&mut B>,
    alarm: &mut Option<Alarm>,
    patience: Duration,
) -> Result<Option<Result<Frame<B::Data>, B::Error>>, Error> {
    poll_fn(|cx| {
        if let Poll::Ready(frame) = body.as_mut().poll_frame(cx) {
            return Poll::Ready(Ok(frame));
        }
        let Alarm { begin, sleep } = alarm.get_or_insert_with(|| Alarm::new(patience));
        let due = *begin + patience;
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= due {
                return Poll::Ready(Err(Error::BodyTooSlow));
            }
            sleep.as_mut().reset(due);
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use tokio::time::sleep;

    use super::*;

    /// A body of so many frames of so many bytes, one each second.
    fn each_second(frames: usize, bytes: usize) -> impl Body<Data = Bytes, Error = BoxError> {
        StreamBody::new(futures_util::stream::unfold(0, move |sent| async move {
            sleep(Duration::from_secs(1)).await;
            let data = Bytes::from(vec![b' '; bytes]);
            (sent < frames).then(|| (Ok(Frame::data(data)), sent + 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_must_come_at_a_kilobyte_a_second_once_it_has_begun() {
        // frames, bytes of each, what becomes of it
        for (frames, bytes, read_bytes) in [
            (3, 1, Some(3)),
            (50, 1, None),
            (50, 800, None),
            // Behind by little more than a second, which the slow start allows.
            (50, 1000, Some(50_000)),
            // Fast enough, but for too long.
            (70, 5000, None),
        ] {
            let limits = ParseLimits::default();
            let room = Room::new(&Taken::default(), limits.bodies_bytes_max);
            let body = read(each_second(frames, bytes), None, &limits, room).await;
            let length = match body {
                Ok(body) => Some(body.len()),
                Err(Error::BodyTooSlow) => None,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(length, read_bytes, "{frames} × {bytes}");
        }
    }
}

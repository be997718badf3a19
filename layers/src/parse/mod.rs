//! Reads the body of a call within limits of size and time, and checks it once: `Request<B>` → `Request<Call>`.
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
//! let mut limits = ParseLimits::default();
//! limits.body_bytes_max = 64 << 10;
//! let service = ServiceBuilder::new()
//!     .layer(ParseLayer::new(limits))
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

mod gzip;

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};
use tower_layer::Layer;
use tower_service::Service;

pub use crate::formats::reading::DEPTH_MAX;
#[cfg(test)]
pub(crate) use crate::formats::reading::encode;
use crate::{
    body_budget::{BodyBudget, ReservedBytes},
    call::{Call, Format, Operation},
    error::{BoxError, Error, Problem},
    facts::{AnswerKey, Caller},
    formats::{chat, messages, responses},
    json::members,
    key::{Funds, KeyRecord, WithoutLedger},
    pieces::Pieces,
    session,
    setting::Setting,
};

const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// The limits of a request's body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ParseLimits {
    /// The maximum size of one body, in bytes.
    pub body_bytes_max: u64,
    /// The maximum number of bytes of all bodies that are being read or still used, over all services of a layer. A
    /// request fails with [`Error::Overloaded`] when its body would exceed this maximum, even if a part of the body has
    /// already arrived. It also fails if the bodies of its account would take more than the bytes that remain free, or
    /// the bodies of its key more than half of these. Each account and each key may always have two bodies of the
    /// maximum size.
    pub bodies_bytes_max: u64,
    /// The maximum time in which the whole body must arrive.
    pub body_time_max: Duration,
    /// The minimum average rate at which a body must arrive after [`SLOW_START`], in bytes per second.
    pub body_rate_min: u64,
    /// The maximum number of messages of a conversation, or of inputs of an embeddings call.
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

impl ParseLimits {
    fn reserve(&self, all: &BodyBudget, key: Option<Arc<KeyRecord>>) -> ReservedBytes {
        ReservedBytes::new(all, key, self.body_bytes_max, self.bodies_bytes_max)
    }
}

/// How long a body may arrive slowly before the minimum rate applies.
pub const SLOW_START: Duration = Duration::from_secs(5);

/// The maximum number of bytes that are allocated in advance for a body of several frames, even if its declared length
/// is larger.
const DECLARED_BYTES_MAX: u64 = 128 * 1024;

/// The number of bytes up to which a body is read without a check of its key's funds. Most bodies are shorter; for
/// their calls, the hold checks the funds.
const UNCHECKED_BYTES_MAX: u64 = 1 << 20;

/// Parses calls of all formats, including embeddings. The path selects the format ([`Operation::of_path`]).
#[derive(Clone, Debug)]
pub struct ParseLayer<F = WithoutLedger> {
    limits: Setting<ParseLimits>,
    taken: BodyBudget,
    funds: F,
}

impl Default for ParseLayer {
    fn default() -> Self {
        Self::new(ParseLimits::default())
    }
}

impl ParseLayer {
    /// Creates a layer that accepts requests within `limits`.
    #[must_use]
    pub fn new(limits: impl Into<Setting<ParseLimits>>) -> Self {
        Self {
            limits: limits.into(),
            taken: BodyBudget::default(),
            funds: WithoutLedger,
        }
    }

    /// Returns a layer that refuses a large body unread if its key has nothing to spend. The returned layer shares this
    /// layer's memory limit. Do not use it if keys without money may still get responses.
    #[must_use]
    pub fn with_funds<F: Funds + Clone>(self, funds: F) -> ParseLayer<F> {
        ParseLayer {
            limits: self.limits,
            taken: self.taken,
            funds,
        }
    }
}

impl<S, F: Clone> Layer<S> for ParseLayer<F> {
    type Service = Parse<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = Arc::new(self.clone());
        Parse { inner, layer }
    }
}

/// The service of [`ParseLayer`].
#[derive(Clone, Debug)]
pub struct Parse<S, F = WithoutLedger> {
    inner: S,
    /// The layer. All clones of the service share it, because every call clones the service.
    layer: Arc<ParseLayer<F>>,
}

impl<S, F, B> Service<Request<B>> for Parse<S, F>
where
    F: Funds + Clone,
    S: Service<Request<Call>, Error: Into<BoxError> + 'static> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let limits = self.layer.limits.get();
        let key = req.extensions().get().map(|Caller(key)| Arc::clone(key));
        let room = limits.reserve(&self.layer.taken, key.clone());
        // A repeated call with an idempotency key costs nothing, so its key needs no money. An owner key is refused
        // later, with an error of its own.
        let is_checked = req.extensions().get::<AnswerKey>().is_none();
        let payer = key.filter(|key| is_checked && !key.is_owner());
        let mut payer = payer.map(|key| (self.layer.funds.clone(), key));
        // The request is split outside the future, because the future would otherwise store the whole request and its
        // parts.
        let (parts, body) = req.into_parts();
        Box::pin(async move {
            let operation = Operation::of_path(parts.uri.path()).ok_or(Error::PathUnknown)?;
            // The exact size is the value of `content-length`, if the request has one.
            let declared = body.size_hint().exact();
            let is_packed = check_headers(
                &parts.headers,
                operation.format(),
                declared,
                limits.body_bytes_max,
            )?;
            check_funds(declared.unwrap_or(0), &mut payer).await?;
            room.could_hold(declared.unwrap_or(0))?;
            let body = read(body, declared, &limits, room, payer, is_packed).await?;
            let mut call = call(operation, &body, limits.messages_max)?;
            call.session = session::from_headers(&parts.headers);
            let answered = inner.call(Request::from_parts(parts, call)).await;
            answered.map_err(Error::from_below)
        })
    }
}

/// Parses the request body of this operation. Does not check headers.
///
/// # Errors
/// [`Error::Invalid`], which names the invalid field.
pub fn call(operation: Operation, body: &Bytes, messages_max: u64) -> Result<Call, Error> {
    let mut call = match operation {
        Operation::Chat => chat::parse::call(body, messages_max),
        Operation::Messages => messages::parse::call(body, messages_max),
        Operation::CountTokens => messages::parse::count(body, messages_max),
        Operation::Responses => responses::parse::call(body, messages_max),
        Operation::ChatOrResponses if has_input(body) => responses::parse::call(body, messages_max),
        Operation::ChatOrResponses => chat::parse::call(body, messages_max),
        Operation::Embeddings => chat::embeddings::call(body, messages_max),
    }?;
    call.body = body.clone();
    Ok(call)
}

/// Returns whether the body has the field `input` but not `messages`, which makes it a request of the Responses format.
fn has_input(body: &Bytes) -> bool {
    let Ok(body) = std::str::from_utf8(body) else {
        return false;
    };
    let found = members(body, &["messages", "input"]);
    matches!(found, Ok([None, Some(_)]))
}

/// Checks the headers and the declared length of the body. Returns whether the body is compressed with gzip.
fn check_headers(
    headers: &HeaderMap,
    format: Format,
    declared: Option<u64>,
    bytes_max: u64,
) -> Result<bool, Error> {
    if declared.is_some_and(|bytes| bytes > bytes_max) {
        return Err(Error::BodyTooLarge { bytes_max });
    }
    let json = |value: &HeaderValue| {
        let mut parts = value.as_bytes().split(|byte| *byte == b';');
        let kind = parts.next().unwrap_or_default().trim_ascii();
        kind.eq_ignore_ascii_case(b"application/json")
    };
    if headers.get(CONTENT_TYPE).is_some_and(|value| !json(value)) {
        return Err(Error::ContentType);
    }
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    let is_packed = match (codings.next().map(HeaderValue::as_bytes), codings.next()) {
        (None, _) => false,
        (Some(coding), None) if coding.eq_ignore_ascii_case(b"identity") => false,
        (Some(coding), None) if coding.eq_ignore_ascii_case(b"gzip") => true,
        _ => return Err(Error::ContentEncoding),
    };
    let version = headers.get(ANTHROPIC_VERSION).map(HeaderValue::as_bytes);
    let versioned = || version.is_some_and(|version| !version.trim_ascii().is_empty());
    if format == Format::Messages && !versioned() {
        return Err(Error::invalid("anthropic-version", Problem::HeaderMissing));
    }
    Ok(is_packed)
}

/// If the body is large, refuses a key with nothing to spend. Checks the key at most once per request.
async fn check_funds<F: Funds>(
    bytes: u64,
    payer: &mut Option<(F, Arc<KeyRecord>)>,
) -> Result<(), Error> {
    if bytes > UNCHECKED_BYTES_MAX
        && let Some((funds, key)) = payer.take()
    {
        // This future is boxed because few calls run it. Otherwise every call's future would reserve space for it.
        Box::pin(async move { funds.check(&key).await }).await?;
    }
    Ok(())
}

async fn read<B, F: Funds>(
    body: B,
    declared: Option<u64>,
    limits: &ParseLimits,
    mut room: ReservedBytes,
    mut payer: Option<(F, Arc<KeyRecord>)>,
    is_packed: bool,
) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let bytes_max = limits.body_bytes_max;
    let mut body = std::pin::pin!(body);
    let mut alarm = None;
    let mut pieces = Pieces::default();
    loop {
        let bytes = pieces.len() as u64;
        let earned = Duration::from_millis(bytes * 1000 / limits.body_rate_min.max(1));
        let patience = limits.body_time_max.min(SLOW_START + earned);
        let data = match next_frame(body.as_mut(), &mut alarm, patience).await? {
            None => break,
            Some(frame) => frame
                .map_err(|error| Error::BodyBroken(error.into()))?
                .into_data(),
        };
        let Ok(data) = data else {
            continue;
        };
        let bytes = (pieces.len() + data.len()) as u64;
        if bytes > bytes_max {
            return Err(Error::BodyTooLarge { bytes_max });
        }
        check_funds(bytes, &mut payer).await?;
        room.make(bytes)?;
        // Most bodies arrive in a single frame, which is not copied.
        let declared = declared.unwrap_or(0).min(DECLARED_BYTES_MAX);
        pieces.push_within(data, usize::try_from(declared).unwrap_or_default());
    }
    let body = pieces.joined();
    if is_packed {
        // This future is boxed because few bodies are compressed.
        let unpacked = Box::pin(gzip::decompressed(&body, bytes_max, &mut room)).await?;
        check_funds(unpacked.len() as u64, &mut payer).await?;
        return Ok(room.kept_by(unpacked));
    }
    Ok(room.kept_by(body))
}

/// The timer of a body. It is created when the first frame is not ready at once, which is rare: most bodies arrive with
/// their request's head.
struct Alarm {
    begin: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Alarm {
    fn new(patience: Duration) -> Self {
        let begin = Instant::now();
        let sleep = Box::pin(sleep_until(begin + patience));
        Self { begin, sleep }
    }
}

/// Returns the next frame if it arrives within `patience`, counted from the first wait for the body. Frames do not
/// reset the timer. If the timer fires before the current deadline, it is set to that deadline.
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

    /// Returns a body of this many frames of this size, one per second.
    fn each_second(frames: usize, bytes: usize) -> impl Body<Data = Bytes, Error = BoxError> {
        StreamBody::new(futures_util::stream::unfold(0, move |sent| async move {
            sleep(Duration::from_secs(1)).await;
            let data = Bytes::from(vec![b' '; bytes]);
            (sent < frames).then(|| (Ok(Frame::data(data)), sent + 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn body_slower_than_a_kilobyte_per_second_is_refused() {
        // Columns: number of frames, bytes per frame, total bytes if the body is accepted.
        for (frames, bytes, read_bytes) in [
            (3, 1, Some(3)),
            (50, 1, None),
            (50, 800, None),
            // This body is slower than the minimum rate, but it arrives only a little more than a second too late,
            // which [`SLOW_START`] allows.
            (50, 1000, Some(50_000)),
            // This body arrives fast enough, but takes longer than the maximum time.
            (70, 5000, None),
        ] {
            let limits = ParseLimits::default();
            let room = limits.reserve(&BodyBudget::default(), None);
            let payer = None::<(WithoutLedger, _)>;
            let body = read(
                each_second(frames, bytes),
                None,
                &limits,
                room,
                payer,
                false,
            )
            .await;
            let length = match body {
                Ok(body) => Some(body.len()),
                Err(Error::BodyTooSlow) => None,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(length, read_bytes, "{frames} × {bytes}");
        }
    }

    #[tokio::test]
    async fn request_dropped_at_any_await_releases_its_memory() {
        const BODY: &[u8] =
            br#"{"model":"m","messages":[{"role":"user","content":"Hello, and more"}]}"#;
        let mut most = 0;
        for polls in 0..12 {
            let layer = ParseLayer::new(ParseLimits::default());
            let taken = layer.taken.clone();
            let service = layer.layer(tower::service_fn(|req: Request<Call>| async move {
                let _call = req;
                std::future::pending::<Result<(), Error>>().await
            }));
            let pieces = BODY.chunks(16).map(Bytes::from_static);
            let pieces = futures_util::stream::unfold(pieces, async |mut pieces| {
                tokio::task::yield_now().await;
                let piece = pieces.next()?;
                Some((Ok::<_, BoxError>(Frame::data(piece)), pieces))
            });
            let req = Request::post("/v1/chat/completions");
            let req = req.body(StreamBody::new(pieces)).unwrap();
            let mut call = Box::pin(tower::ServiceExt::oneshot(service, req));
            for _ in 0..polls {
                poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
            }
            most = taken.taken().max(most);
            drop(call);
            assert_eq!(taken.taken(), 0, "{polls}");
        }
        assert_eq!(most, BODY.len() as u64, "some were dropped below the layer");
    }
}

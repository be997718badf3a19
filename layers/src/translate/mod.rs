//! Translates a call to its vendor's format, and the response to the caller's format: `Request<Attempt>` →
//! `Request<Outbound>`.
//!
//! If caller and vendor use the same format, the caller's bytes are forwarded, except for the parts that must change
//! ([`splice`]), and the frames of the response are not changed. Otherwise, requests and responses are translated
//! through a neutral form, for which `formats` has a reader and a writer per format. Texts, numbers and schemas are
//! copied as they are written. If the vendor's format cannot express a field, the request is refused with 400, and the
//! error names the field. The page [translation] lists the translation of each field, and the fields that are left out
//! because they cannot change the response.
//!
//! Nothing is stored between calls: `parse` has already refused requests that refer to stored state. A vendor's signed
//! reasoning is sent through the caller in a capsule, and only back to the same vendor.
//!
//! ```
//! # use std::sync::Arc;
//! # use bytes::Bytes;
//! # use http::Uri;
//! # use tollgate_layers::call::{Attempt, Format, Operation, Priced};
//! # use tollgate_layers::model::{Model, Route, Vendor};
//! # use tollgate_layers::{parse, price::{Price, Rate}, usage::Meter};
//! use http::{Request, Response};
//! use http_body_util::BodyExt;
//! use tollgate_layers::{Error, body, call::Outbound, translate::TranslateLayer};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # fn attempt(body: &'static str) -> Attempt {
//! #     let endpoint = Uri::from_static("https://vendor.example/v1/messages");
//! #     let key = Format::Messages.credential("our key").unwrap();
//! #     let vendor = Vendor::new("vendor", Format::Messages, endpoint, key);
//! #     let route = Arc::new(Route::new(vendor, "large-2"));
//! #     let model = Model::new("large", 4096).route(Arc::clone(&route));
//! #     let rate = Rate::new(1);
//! #     let price = Price {
//! #         input: rate,
//! #         cached_input: rate,
//! #         output: rate,
//! #         cache_write: rate,
//! #         version: 1,
//! #         exchange_rate: "1".into(),
//! #         ..Price::default()
//! #     };
//! #     let body = Bytes::from_static(body.as_bytes());
//! #     let call = parse::call(Operation::Chat, &body, 100).unwrap();
//! #     let priced = Priced {
//! #         call: Arc::new(call),
//! #         model: Arc::new(model),
//! #         prices: price.into(),
//! #         output_tokens: 100,
//! #         meter: Meter::default(),
//! #     };
//! #     Attempt { priced, route, credential: 0 }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A vendor of the messages format.
//! let vendor = |req: Request<Outbound>| async move {
//!     let sent = req.body().body.to_bytes();
//!     let sent: serde_json::Value = serde_json::from_slice(&sent).expect("it is JSON");
//!     assert_eq!(sent["model"], "large-2");
//!     assert_eq!(sent["messages"][0]["role"], "user");
//!     Ok::<_, Error>(Response::new(body::full(
//!         r#"{"id":"msg_1","type":"message","role":"assistant","model":"large-2",
//!             "content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn",
//!             "usage":{"input_tokens":9,"output_tokens":1}}"#,
//!     )))
//! };
//! let service = ServiceBuilder::new()
//!     .layer(TranslateLayer::new())
//!     .service_fn(vendor);
//!
//! // A caller of the chat format; `attempt` puts the way to that vendor beside the call.
//! let call = attempt(
//!     r#"{"model":"large","messages":[
//!         {"role":"system","content":"Be short."},{"role":"user","content":"Hello"}]}"#,
//! );
//! let answer = service.oneshot(Request::new(call)).await?.into_body().collect().await?;
//! let answer: serde_json::Value = serde_json::from_slice(&answer.to_bytes())?;
//! assert_eq!(answer["choices"][0]["message"]["content"], "Hi");
//! assert_eq!(answer["choices"][0]["finish_reason"], "stop");
//! # Ok(())
//! # }
//! ```
//!
//! You can also translate without a gateway, with [`request`] and [`Translator`]: `examples/convert_sse.rs` translates a
//! recorded stream.
//!
//! [translation]: https://github.com/tollgate-rs/tollgate/blob/main/docs/translation.md

mod body;
mod capsules;
#[cfg(test)]
mod chat;
pub mod messages;
mod pair;
#[cfg(test)]
mod responses;
mod roles;
pub mod splice;
#[cfg(test)]
#[cfg(feature = "parse")]
mod too_much_tests;

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, header::CONTENT_LENGTH};
use http_body::Body;
use http_body_util::BodyExt;
use tower_layer::Layer;
use tower_service::Service;

pub use self::body::ResponseBody;
use self::pair::{Answering, Pair};
#[cfg(feature = "passthrough")]
use crate::body_budget::AnswerRoom;
pub use crate::formats::{
    origin::Origin,
    responses::requested::RequestEcho,
    turn::{Translator, request::translate as request},
};
pub use crate::forward::{Mapped, ResponseFuture};
use crate::{
    call::{Attempt, Call, Format, Outbound},
    error::{BoxError, Error},
    facts::{Caller, EventStream, RequestNumber},
    formats::{
        text,
        wire::{CacheCx, RequestCx, mended},
    },
    price::{Class, Price},
    stream_progress::StreamProgress,
    usage::{End, Meter, Reading},
};

/// The context of a translation.
pub mod wire {
    pub use crate::formats::wire::{AnswerCx, CacheCx, RequestCx};
}

/// Translates calls to the format of the route's vendor, and the vendor's responses to the caller's format.
#[derive(Clone, Copy, Debug, Default)]
pub struct TranslateLayer(());

impl TranslateLayer {
    /// Creates the layer.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for TranslateLayer {
    type Service = Translate<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Translate { inner }
    }
}

/// The service of [`TranslateLayer`].
#[derive(Clone, Debug)]
pub struct Translate<S> {
    inner: S,
}

impl<S, A> Service<Request<Attempt>> for Translate<S>
where
    S: Service<Request<Outbound>, Response = Response<A>, Error: Into<BoxError> + 'static>,
    S::Future: Send + 'static,
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static> + Send + 'static,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Error;
    type Future = ResponseFuture<Mapped<S::Future, A, ResponseBody<A>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<Attempt>) -> Self::Future {
        let (parts, attempt) = req.into_parts();
        let number = parts.extensions.get::<RequestNumber>().copied();
        let meter = attempt.priced.meter.clone();
        let made = Answering::of(&attempt, number);
        let caller = parts.extensions.get::<Caller>();
        let made = made.and_then(|answering| Ok((answering, outbound(attempt, caller)?)));
        let (answering, outbound) = match made {
            Ok(made) => made,
            Err(error) => return ResponseFuture::refused(error),
        };
        let call = self.inner.call(Request::from_parts(parts, outbound));
        let Some(answering) = answering else {
            return ResponseFuture::forwarded(Mapped::new(call, ResponseBody::same));
        };
        ResponseFuture::boxed(async move {
            let res = call.await.map_err(Error::from_below)?;
            translated(res, answering, &meter)
                .await
                .inspect_err(|error| undelivered(error, &meter))
        })
    }
}

/// Records in the meter that a response cannot be delivered. The call is free, unless the vendor counted its usage, or
/// the response was too long, which the caller's request can cause.
fn undelivered(error: &Error, meter: &Meter) {
    let is_too_long = matches!(error, Error::AnswerTooLong(_));
    let counted = |reading: &Reading| reading.usage.is_some_and(|usage| !usage.is_zero());
    if !is_too_long && !meter.look(counted) {
        return meter.refused();
    }
    meter.update(|reading| {
        reading.answered |= is_too_long;
        reading.end = Some(End::VendorCut);
    });
}

fn outbound(attempt: Attempt, caller: Option<&Caller>) -> Result<Outbound, Error> {
    let pair = Pair::of(&attempt);
    let Attempt {
        priced,
        route,
        credential,
    } = attempt;
    let call = &priced.call;
    let cache_key = pair.and_then(|_| cache_key(caller, call));
    let hour = |price: &Arc<Price>| price.classes.get(Class::CacheWrite1h).is_some();
    let cx = RequestCx {
        model: &route.model,
        output_tokens: priced.output_tokens,
        dialect: &route.dialect,
        cache: CacheCx {
            key: cache_key.as_deref(),
            hour_priced: priced.prices.prices().all(hour),
        },
    };
    let body = match pair {
        None => splice::body(&priced, &route),
        Some(Pair { caller, vendor }) => {
            let body = request(caller, vendor, &call.body, &route.vendor.name, &cx)?;
            match route.vendor.anthropic_version {
                Some(version) => splice::versioned(body, &route.model, version),
                None => body,
            }
            .into()
        }
    };
    Ok(Outbound {
        body,
        stream: call.stream,
        choices: call.choices,
        kind: call.kind,
        // In a translated stream, `passthrough` removes no usage: the translation needs it, and decides whether the
        // caller gets it.
        strip_usage: pair.is_none()
            && call.format == Format::Chat
            && call.stream
            && !call.usage_asked,
        meter: priced.meter.clone(),
        route,
        credential,
    })
}

/// Returns the key by which the vendor's cache groups the calls of a session. It is a hash, so that the vendor does not
/// learn the caller's key.
fn cache_key(caller: Option<&Caller>, call: &Call) -> Option<String> {
    let session = call.session.as_deref()?;
    let key: &str = caller.map_or("", |Caller(key)| &key.id);
    let hash = text::hash(format!("{key}\n{session}").as_bytes());
    Some(format!("tg-{hash:016x}"))
}

async fn translated<A>(
    res: Response<A>,
    answering: Answering,
    meter: &Meter,
) -> Result<Response<ResponseBody<A>>, Error>
where
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static>,
{
    let (mut parts, body) = res.into_parts();
    parts.extensions.remove::<StreamProgress>();
    if parts.extensions.remove::<EventStream>().is_some() {
        parts.extensions.insert(EventStream(answering.pair.caller));
        let translator = answering.translator(false);
        if let Some(progress) = translator.progress() {
            parts.extensions.insert(progress);
        }
        return Ok(Response::from_parts(
            parts,
            ResponseBody::events(body, translator, meter.clone()),
        ));
    }
    let whole = body.collect().await.map_err(Error::from_below)?;
    let bytes = whole.to_bytes();
    let spare = mended(&bytes).map(|mended| (mended, answering.clone()));
    let bytes = answering.translator(true).answer(&bytes);
    let bytes = bytes.or_else(|error| {
        let (mended, answering) = spare.ok_or(error)?;
        answering.translator(true).answer(&mended)
    })?;
    #[cfg(feature = "passthrough")]
    let bytes = match parts.extensions.remove::<AnswerRoom>() {
        Some(room) => room.kept_by(bytes),
        None => bytes,
    };
    parts.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(parts, ResponseBody::whole(bytes)))
}

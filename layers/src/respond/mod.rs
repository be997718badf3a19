//! Turns every [`Error`] into an HTTP response that contains the request's number. No other module writes HTTP for an
//! error.
//!
//! Layers above this layer never get an error: the layer's error type is [`Infallible`].
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use http_body_util::BodyExt;
//! use tollgate_layers::{Error, body::AnswerBody, respond::{Language, RespondLayer}};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = ServiceBuilder::new()
//!     .layer(RespondLayer::new(Language::En))
//!     .service_fn(async |_: Request<()>| Err::<Response<AnswerBody>, _>(Error::KeyMissing));
//!
//! let res = service.oneshot(Request::new(())).await?;
//!
//! assert_eq!(res.status(), StatusCode::UNAUTHORIZED);
//! let number = res.headers()["x-request-id"].to_str()?.to_owned();
//! let body = res.into_body().collect().await?.to_bytes();
//! let body: serde_json::Value = serde_json::from_slice(&body)?;
//! assert_eq!(body["error"]["type"], "authentication_error");
//! assert_eq!(
//!     body["error"]["message"],
//!     format!("No API key. Send 'Authorization: Bearer <key>'. ({number})"),
//! );
//! # Ok(())
//! # }
//! ```
//!
//! To answer errors in another form, implement [`Shape`], or pass a closure. You can start from [`Refused::usual`],
//! which has the status and the headers that clients depend on:
//!
//! ```
//! # use bytes::Bytes;
//! # use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
//! # use http_body_util::BodyExt;
//! # use tollgate_layers::{Error, body::AnswerBody};
//! # use tower::{ServiceBuilder, ServiceExt};
//! use tollgate_layers::respond::{Language, Refused, RespondLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // RFC 9457: problem details.
//! let problem = |refused: &Refused<'_>| {
//!     let body = serde_json::json!({
//!         "title": refused.text(),
//!         "status": refused.status().as_u16(),
//!         "instance": format!("urn:uuid:{}", refused.number()),
//!     });
//!     let mut res = refused.usual().map(|_| Bytes::from(body.to_string()));
//!     let kind = HeaderValue::from_static("application/problem+json");
//!     res.headers_mut().insert(CONTENT_TYPE, kind);
//!     res
//! };
//! let service = ServiceBuilder::new()
//!     .layer(RespondLayer::new(Language::En).shaped_by(problem))
//!     .service_fn(async |_: Request<()>| Err::<Response<AnswerBody>, _>(Error::Overloaded));
//!
//! let res = service.oneshot(Request::new(())).await?;
//!
//! assert_eq!(res.headers()["retry-after"], "1");
//! let body = res.into_body().collect().await?.to_bytes();
//! let body: serde_json::Value = serde_json::from_slice(&body)?;
//! assert_eq!(body["title"], "The service is overloaded. Try again later.");
//! # Ok(())
//! # }
//! ```
//!
//! For errors of your own, implement [`CustomError`](crate::error::CustomError), which defines the status and the
//! texts:
//!
//! ```
//! # use http::{Request, Response, StatusCode};
//! # use tollgate_layers::{body::AnswerBody, respond::RespondLayer};
//! # use tower::{ServiceBuilder, ServiceExt};
//! use tollgate_layers::error::{CustomError, Error, Language};
//!
//! #[derive(Debug, thiserror::Error)]
//! #[error("no order {0}")]
//! struct OrderUnknown(u64);
//!
//! impl CustomError for OrderUnknown {
//!     fn status(&self) -> StatusCode {
//!         StatusCode::NOT_FOUND
//!     }
//!
//!     fn kind(&self) -> &'static str {
//!         "not_found_error"
//!     }
//!
//!     fn text(&self, language: Language) -> String {
//!         match language {
//!             Language::Ru => format!("Заказа {} нет. Проверьте номер.", self.0),
//!             _ => format!("There is no order {}. Check the number.", self.0),
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = ServiceBuilder::new()
//!     .layer(RespondLayer::new(Language::En))
//!     .service_fn(async |_: Request<()>| {
//!         Err::<Response<AnswerBody>, _>(Error::custom(OrderUnknown(7)))
//!     });
//!
//! let res = service.oneshot(Request::new(())).await?;
//!
//! assert_eq!(res.status(), StatusCode::NOT_FOUND);
//! # Ok(())
//! # }
//! ```
//!
//! To write the request's number into other headers, or into none, override [`Shape::stamp`].

mod body;
mod refused;
mod text;

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;
use uuid::fmt::Hyphenated;

pub use self::{
    body::ResponseBody,
    refused::{Refused, Severity},
};
pub use crate::error::Language;
use crate::{
    call::Format,
    error::{BoxError, Error},
    facts::{EventStream, RequestNumber},
    stream_progress::StreamProgress,
};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Header that SDKs of the Messages format show as the request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Turns errors of the services below into HTTP responses.
#[derive(Clone, Copy)]
pub struct RespondLayer<P = UsualShape> {
    language: Language,
    logs: bool,
    shape: P,
}

impl RespondLayer {
    /// Creates a layer that writes error texts in `language` and responses in the [`UsualShape`].
    #[must_use]
    pub const fn new(language: Language) -> Self {
        Self {
            language,
            logs: true,
            shape: UsualShape,
        }
    }
}

impl<P> RespondLayer<P> {
    /// Sets the shape of error responses.
    #[must_use]
    pub fn shaped_by<Q: Shape>(self, shape: Q) -> RespondLayer<Q> {
        RespondLayer {
            language: self.language,
            logs: self.logs,
            shape,
        }
    }

    /// Turns off the logging of errors, for programs that log errors elsewhere.
    #[must_use]
    pub fn without_log(mut self) -> Self {
        self.logs = false;
        self
    }
}

debug_fields!(impl[P] RespondLayer<P> { language: language });

/// The shape of error responses. A closure that turns a [`Refused`] into a response is a shape.
///
/// The layer logs the error and the error's cause before it calls a shape.
pub trait Shape: Clone + Send + Sync + 'static {
    /// Returns the complete response to a request that failed.
    fn answer(&self, refused: &Refused<'_>) -> Response<Bytes>;

    /// Writes the request's number into the headers `x-request-id` and `request-id` of each response, including
    /// successful responses. SDKs of the Messages format show `request-id`.
    fn stamp(&self, number: RequestNumber, headers: &mut HeaderMap) {
        let mut text = [0; Hyphenated::LENGTH];
        let text = number.uuid().hyphenated().encode_lower(&mut text);
        let number = HeaderValue::from_str(text).expect("a UUID is a valid header value");
        headers.insert(X_REQUEST_ID, number.clone());
        headers.insert(REQUEST_ID, number);
    }

    /// Returns the last event of a stream that failed. A blank line precedes and follows the event.
    fn event(&self, refused: &Refused<'_>, format: Format) -> Bytes {
        refused.usual_event(format)
    }
}

impl<F> Shape for F
where
    F: Fn(&Refused<'_>) -> Response<Bytes> + Clone + Send + Sync + 'static,
{
    fn answer(&self, refused: &Refused<'_>) -> Response<Bytes> {
        self(refused)
    }
}

/// The default shape of error responses, which the SDKs of OpenAI and Anthropic can read:
/// `{"error":{"message","type","code"}}`.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsualShape;

impl Shape for UsualShape {
    fn answer(&self, refused: &Refused<'_>) -> Response<Bytes> {
        refused.usual()
    }
}

impl<S, P: Clone> Layer<S> for RespondLayer<P> {
    type Service = Respond<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        Respond {
            inner,
            unready: None,
            layer: self.clone(),
        }
    }
}

/// The service of [`RespondLayer`].
pub struct Respond<S, P = UsualShape> {
    inner: S,
    /// The error with which the inner service failed to become ready. The next request is answered with this error,
    /// without a call of the inner service.
    unready: Option<Error>,
    layer: RespondLayer<P>,
}

/// A clone does not inherit the error with which the inner service of the original failed to become ready.
impl<S: Clone, P: Clone> Clone for Respond<S, P> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            unready: None,
            layer: self.layer.clone(),
        }
    }
}

debug_fields!(impl[S: fmt::Debug, P] Respond<S, P> { inner: inner, language: layer.language });

impl<S, B, A, P> Service<Request<B>> for Respond<S, P>
where
    S: Service<Request<B>, Response = Response<A>, Error: Into<BoxError> + 'static>,
    P: Shape,
{
    type Response = Response<ResponseBody<A, P>>;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future, P>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.unready.is_none() {
            // The readiness error is stored until the next request, which is answered with it.
            let ready = ready!(self.inner.poll_ready(cx));
            self.unready = ready.map_err(Error::from_below).err();
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        // The request's number is read before the inner service takes the request, because a service that fails does
        // not return the request.
        let number = req.extensions().get::<RequestNumber>().copied();
        let number = number.unwrap_or_else(RequestNumber::now_v7);
        let inner = match self.unready.take() {
            None => Inner::Called {
                call: self.inner.call(req),
            },
            unready => Inner::Refused { error: unready },
        };
        ResponseFuture {
            inner,
            answering: Some(Answering {
                number,
                language: self.layer.language,
                logs: self.layer.logs,
                shape: self.layer.shape.clone(),
            }),
        }
    }
}

pin_project! {
    /// The future of [`Respond`].
    pub struct ResponseFuture<F, P = UsualShape> {
        #[pin]
        inner: Inner<F>,
        // The data from which an error response is built; taken when the response is ready.
        answering: Option<Answering<P>>,
    }
}

pin_project! {
    #[project = Projected]
    enum Inner<F> {
        Called { #[pin] call: F },
        // The error that answers the request. `None` after the response was returned.
        Refused { error: Option<Error> },
    }
}

debug_fields!(impl[F, P] ResponseFuture<F, P> {});

impl<F, A, E, P> Future for ResponseFuture<F, P>
where
    F: Future<Output = Result<Response<A>, E>>,
    E: Into<BoxError> + 'static,
    P: Shape,
{
    type Output = Result<Response<ResponseBody<A, P>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = match this.inner.project() {
            Projected::Called { call } => ready!(call.poll(cx)).map_err(Error::from_below),
            Projected::Refused { error } => Err(error
                .take()
                .expect("a future must not be polled after it has completed")),
        };
        let answering = this.answering.take();
        let answering = answering.expect("a future must not be polled after it has completed");
        let number = answering.number;
        Poll::Ready(Ok(match result {
            Ok(mut res) => {
                answering.shape.stamp(number, res.headers_mut());
                let format = res.extensions().get::<EventStream>().map(|stream| stream.0);
                let progress = match format {
                    Some(Format::Responses) => res.extensions_mut().remove::<StreamProgress>(),
                    _ => None,
                };
                res.map(|inner| ResponseBody::answer(inner, answering, format, progress))
            }
            Err(error) => {
                let refused = answering.refused(&error);
                let mut res = answering.shape.answer(&refused);
                answering.shape.stamp(number, res.headers_mut());
                res.map(ResponseBody::refusal)
            }
        }))
    }
}

/// Everything from which the response to an error is built, except the error itself.
struct Answering<P> {
    number: RequestNumber,
    language: Language,
    logs: bool,
    shape: P,
}

impl<P> Answering<P> {
    /// Logs the error, and returns it in the form from which a [`Shape`] builds a response.
    fn refused<'a>(&self, error: &'a Error) -> Refused<'a> {
        let refused = Refused::new(error, self.number, self.language);
        if self.logs {
            log(&refused);
        }
        refused
    }
}

/// Logs the error with its cause. The log line has the request's number, by which support finds the line.
fn log(refused: &Refused<'_>) {
    let (error, number) = (refused.error(), refused.number());
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let status = refused.status().as_u16();
    match refused.severity() {
        Severity::Error => tracing::error!(%number, status, cause, "{error}"),
        Severity::Warn => tracing::warn!(%number, status, cause, "{error}"),
        Severity::Info => tracing::info!(%number, status, cause, "{error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, time::Duration};

    use http::{
        StatusCode,
        header::{RETRY_AFTER, WWW_AUTHENTICATE},
    };
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::{refused::X_SHOULD_RETRY, *};
    use crate::{
        ceiling::Ceiling,
        error::{CustomError, Limit, Problem},
        money::MicroRub,
    };

    async fn answer(
        language: Language,
        error: fn() -> Error,
    ) -> (Response<()>, serde_json::Value, RequestNumber) {
        let number = RequestNumber::now_v7();
        let service =
            RespondLayer::new(language).layer(tower::service_fn(
                move |_: Request<()>| async move {
                    Err::<Response<crate::body::AnswerBody>, _>(error())
                },
            ));
        let mut req = Request::new(());
        req.extensions_mut().insert(number);
        let Ok(res) = service.oneshot(req).await;
        let (parts, body) = res.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (
            Response::from_parts(parts, ()),
            serde_json::from_slice(&bytes).unwrap(),
            number,
        )
    }

    /// A service that always fails to become ready. It panics if it is called.
    #[derive(Clone)]
    struct Full;

    impl Service<Request<()>> for Full {
        type Response = Response<http_body_util::Empty<Bytes>>;
        type Error = &'static str;
        type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Err("no worker is left"))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            panic!("called though it refused");
        }
    }

    #[tokio::test]
    async fn readiness_error_of_the_inner_service_becomes_the_response() {
        let mut service = RespondLayer::new(Language::En)
            .shaped_by(|refused: &Refused<'_>| {
                let cause = std::error::Error::source(refused.error()).map(ToString::to_string);
                let mut res = Response::new(Bytes::from(cause.unwrap_or_default()));
                *res.status_mut() = refused.status();
                res
            })
            .layer(Full);
        for _ in 0..2 {
            let Ok(res) = service.ready().await.unwrap().call(Request::new(())).await;
            assert_eq!(res.status(), StatusCode::INTERNAL_SERVER_ERROR);
            let body = res.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, "no worker is left");
        }
    }

    #[tokio::test]
    async fn response_body_may_fail_with_any_error_type() {
        let service = RespondLayer::new(Language::En).layer(tower::service_fn(|_: Request<()>| {
            let frames = [Err::<http_body::Frame<Bytes>, _>(std::io::Error::other(
                "disk full",
            ))];
            let frames = futures_util::stream::iter(frames);
            ready(Ok::<_, Infallible>(Response::new(
                http_body_util::StreamBody::new(frames),
            )))
        }));
        let Ok(res) = service.oneshot(Request::new(())).await;
        let Err(Error::Internal(cause)) = res.into_body().collect().await else {
            panic!("the body failed");
        };
        assert_eq!(cause.to_string(), "disk full");
    }

    #[tokio::test]
    async fn every_refusal_has_its_request_number_in_the_text_and_in_the_header() {
        type Make = fn() -> Error;
        let errors: &[(Make, u16)] = &[
            (|| Error::PathUnknown, 404),
            (|| Error::custom(Closed(None)), 423),
            (|| Error::invalid("model", Problem::Missing), 400),
            (|| Error::KeyMissing, 401),
            (|| Error::AccountEmpty, 401),
            (
                || Error::DoesNotFit {
                    needs: MicroRub::rubles(3),
                    free: MicroRub::rubles(1),
                    held: MicroRub::rubles(2),
                    ceiling: Some(Ceiling::Total),
                    has_output: true,
                },
                403,
            ),
            (
                || Error::TooManyRequests {
                    limit: Limit::KeyTokensPerMinute,
                    retry_after: Duration::from_millis(1500),
                },
                429,
            ),
            (
                || Error::ModelUnknown {
                    model: "gpt".into(),
                    similar: Some("gpt-5".into()),
                },
                503,
            ),
            (|| Error::Internal("secret cause".into()), 500),
        ];
        for (error, status) in errors {
            for language in [Language::Ru, Language::En] {
                let (res, body, number) = answer(language, *error).await;
                assert_eq!(res.status(), *status);
                assert_eq!(res.headers()["x-request-id"], number.to_string());
                assert_eq!(res.headers()["request-id"], number.to_string());
                let message = body["error"]["message"].as_str().unwrap();
                assert!(message.ends_with(&format!(" ({number})")), "{message}");
                assert!(!message.contains("secret"), "{message}");
                let russian = message.chars().any(|c| ('а'..='я').contains(&c));
                assert_eq!(russian, language == Language::Ru, "{message}");
            }
        }
    }

    /// The error type of a service that is not a layer. Contains the wait before a retry.
    #[derive(Debug, thiserror::Error)]
    #[error("shop closed")]
    struct Closed(Option<Duration>);

    impl CustomError for Closed {
        fn status(&self) -> StatusCode {
            StatusCode::LOCKED
        }

        fn kind(&self) -> &'static str {
            "closed_error"
        }

        fn text(&self, language: Language) -> String {
            match language {
                Language::Ru => "Магазин закрыт.".into(),
                Language::En => "The shop is closed.".into(),
            }
        }

        fn retry_after(&self) -> Option<Duration> {
            self.0
        }
    }

    #[tokio::test]
    async fn custom_error_defines_the_response() {
        let (res, body, number) = answer(Language::En, || Error::custom(Closed(None))).await;
        assert_eq!(res.status(), StatusCode::LOCKED);
        let message = format!("The shop is closed. ({number})");
        let expected =
            serde_json::json!({ "message": message, "type": "closed_error", "code": "" });
        assert_eq!(body["error"], expected);
        assert_eq!(res.headers()[X_SHOULD_RETRY], "false");
        assert!(!res.headers().contains_key(RETRY_AFTER));

        let wait = || Error::custom(Closed(Some(Duration::from_millis(1500))));
        let (res, ..) = answer(Language::En, wait).await;
        assert_eq!(res.headers()[RETRY_AFTER], "2");
        assert!(!res.headers().contains_key(X_SHOULD_RETRY));
    }

    /// The log must show the error and its cause, and a shape must be able to find the error's type.
    #[test]
    fn custom_error_keeps_its_text_cause_and_type() {
        #[derive(Debug, thiserror::Error)]
        #[error("no order")]
        struct NoOrder(#[source] std::io::Error);

        impl CustomError for NoOrder {
            fn status(&self) -> StatusCode {
                StatusCode::NOT_FOUND
            }

            fn kind(&self) -> &'static str {
                "not_found_error"
            }

            fn text(&self, _: Language) -> String {
                String::new()
            }
        }

        let boxed: BoxError = Error::custom(NoOrder(std::io::Error::other("disk full"))).into();
        let error = Error::from_below(boxed);
        assert_eq!(error.to_string(), "no order");
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(cause.as_deref(), Some("disk full"));
        let Error::Custom(custom) = error else {
            panic!("another variant");
        };
        let custom: &(dyn std::error::Error + 'static) = &*custom;
        assert!(custom.is::<NoOrder>());
    }

    #[tokio::test]
    async fn error_shape_decides_where_the_request_number_appears() {
        #[derive(Clone)]
        struct Bare;

        impl Shape for Bare {
            fn answer(&self, _: &Refused<'_>) -> Response<Bytes> {
                Response::new(Bytes::from_static(b"no"))
            }

            fn stamp(&self, _: RequestNumber, _: &mut HeaderMap) {}
        }

        let service = RespondLayer::new(Language::En)
            .shaped_by(Bare)
            .layer(tower::service_fn(async |req: Request<bool>| {
                let answer = Response::new(crate::body::full(Bytes::new()));
                req.into_body().then_some(answer).ok_or(Error::KeyMissing)
            }));
        for answered in [true, false] {
            let Ok(res) = service.clone().oneshot(Request::new(answered)).await;
            assert!(res.headers().is_empty(), "{:?}", res.headers());
        }
    }

    #[tokio::test]
    async fn retry_after_is_rounded_up_to_seconds_and_useless_retries_are_forbidden() {
        let (res, ..) = answer(Language::Ru, || Error::TooManyRequests {
            limit: Limit::Requests,
            retry_after: Duration::from_millis(1500),
        })
        .await;
        assert_eq!(res.headers()[RETRY_AFTER], "2");
        let (res, ..) = answer(Language::Ru, || Error::ModelUnknown {
            model: "x".into(),
            similar: None,
        })
        .await;
        assert_eq!(res.headers()[X_SHOULD_RETRY], "false");
        assert!(!res.headers().contains_key(RETRY_AFTER));
        let (res, ..) = answer(Language::Ru, || Error::KeyUnknown).await;
        assert_eq!(res.headers()[WWW_AUTHENTICATE], "Bearer");
    }

    /// Some clients give up if `retry-after` is longer than a minute, so longer waits are cut to 60 seconds.
    #[tokio::test]
    async fn retry_after_is_whole_seconds_from_1_to_60() {
        fn waits(make: fn(Duration) -> Error) -> Vec<Error> {
            let waits = [0, 1, 999, 1000, 1001, 59_001, 60_001, 300_000, 3_600_000];
            let waits = waits.map(Duration::from_millis);
            waits.into_iter().chain([Duration::MAX]).map(make).collect()
        }
        let limit = |limit| move |retry_after| Error::TooManyRequests { limit, retry_after };
        let mut errors = waits(|retry_after| Error::VendorLimit { retry_after });
        errors.extend(waits(|retry_after| Error::RoutesOut { retry_after }));
        for one in [
            Limit::Requests,
            Limit::KeyRequestsPerSecond,
            Limit::KeyRequestsPerMinute,
            Limit::KeyTokensPerMinute,
        ] {
            let waits = [0, 1001, 3_600_000].map(Duration::from_millis);
            errors.extend(waits.map(limit(one)));
        }
        errors.extend([
            Error::PriceUnavailable,
            Error::LedgerUnavailable("away".into()),
            Error::Overloaded,
            Error::Draining,
            Error::VendorUnavailable("away".into()),
            Error::VendorKeyRefused {
                status: StatusCode::UNAUTHORIZED,
            },
        ]);
        for error in &errors {
            let refused = Refused::new(error, RequestNumber::now_v7(), Language::En);
            let res = refused.usual();
            let reported = res.headers()[RETRY_AFTER].to_str().unwrap().to_owned();
            let seconds: u64 = reported.parse().unwrap();
            assert!((1..=60).contains(&seconds), "{error:?}: {reported}");
            assert_eq!(reported, seconds.to_string(), "{error:?}");
            assert_eq!(refused.retry_after(), Some(Duration::from_secs(seconds)));
        }
        let reported = |millis| {
            let retry_after = Duration::from_millis(millis);
            let error = Error::VendorLimit { retry_after };
            let refused = Refused::new(&error, RequestNumber::now_v7(), Language::En);
            refused.usual().headers()[RETRY_AFTER]
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            [0, 1001, 59_001, 300_000].map(reported),
            ["1", "2", "60", "60"]
        );
    }

    #[tokio::test]
    async fn refusal_names_the_ceiling_or_limit_that_was_reached() {
        let day = || Error::CeilingUsedUp(Ceiling::of_day(20_512));
        let month = || Error::DoesNotFit {
            needs: MicroRub::rubles(3),
            free: MicroRub::rubles(1),
            held: MicroRub::ZERO,
            ceiling: Some(Ceiling::of_month(56 * 12 + 1)),
            has_output: true,
        };
        let tokens = || Error::TooManyRequests {
            limit: Limit::KeyTokensPerMinute,
            retry_after: Duration::from_millis(30_001),
        };
        type Make = fn() -> Error;
        let cases: [(Make, [&str; 2], [&str; 2]); 3] = [
            (
                day,
                ["Дневной лимит", "01.03.2026 в 00:00 UTC"],
                ["daily", "on 2026-03-01 at 00:00 UTC"],
            ),
            (
                month,
                ["Месячный лимит", "01.03.2026"],
                ["monthly", "2026-03-01"],
            ),
            (
                tokens,
                ["токенов в минуту", "через 31 с"],
                ["tokens per minute", "in 31 s"],
            ),
        ];
        for (error, russian, english) in cases {
            for (language, words) in [(Language::Ru, russian), (Language::En, english)] {
                let (_, body, _) = answer(language, error).await;
                let message = body["error"]["message"].as_str().unwrap();
                for word in words {
                    assert!(message.contains(word), "{word}: {message}");
                }
            }
        }
    }

    #[test]
    fn refusal_text_contains_the_next_step() {
        let address = Some(std::net::Ipv4Addr::LOCALHOST.into());
        let model = String::from("gpt");
        for (error, russian, english) in [
            (
                Error::BodyTooSlow,
                "слишком медленно. Проверьте",
                "arrives too slowly. Check",
            ),
            (
                Error::CeilingUsedUp(Ceiling::Total),
                "исчерпан. Попросите увеличить",
                "is used up. Ask for a higher ceiling",
            ),
            (
                Error::CeilingUsedUp(Ceiling::of_day(20_512)),
                "UTC. Дождитесь обновления или попросите",
                "UTC. Wait until it resets, or ask",
            ),
            (
                Error::ModelNotAllowed { model },
                "модель «gpt». Выберите другую",
                "the model 'gpt'. Choose another",
            ),
            (
                Error::AddressNotAllowed { address },
                "с вашего адреса 127.0.0.1. Используйте другой ключ",
                "from your address 127.0.0.1. Use another key",
            ),
            (
                Error::AddressNotAllowed { address: None },
                "с вашего адреса. Используйте",
                "from your address. Use",
            ),
            (
                Error::VendorBroken("cut".into()),
                "с ошибкой. Повторите",
                "with an error. Try again",
            ),
            (
                Error::VendorTimeout {
                    awaited: "first byte",
                },
                "вовремя. Повторите",
                "in time. Try again",
            ),
            (
                Error::VendorRefused {
                    status: StatusCode::BAD_REQUEST,
                    text: "prompt is too long".into(),
                    too_long: true,
                },
                "prompt is too long — отказ поставщика модели. Запрос вместе с ответом не помещается",
                "prompt is too long — refused by the model's vendor. The request and its answer do not fit",
            ),
            (
                Error::invalid("after", crate::error::Problem::WrongType("cursor")),
                "нужно: значение next из предыдущей страницы",
                "expected the value of 'next' from the previous page",
            ),
        ] {
            for (language, words) in [(Language::Ru, russian), (Language::En, english)] {
                let refused = Refused::new(&error, RequestNumber::now_v7(), language);
                let text = refused.text();
                assert!(text.contains(words), "{words}: {text}");
            }
        }
    }

    #[tokio::test]
    async fn refusal_of_a_call_that_the_money_does_not_cover_names_the_remedy() {
        let (running, none) = (MicroRub::new(1), MicroRub::ZERO);
        for (held, ceiling, russian, english) in [
            (none, None, "пополните баланс.", "top up the balance."),
            (
                none,
                Some(Ceiling::of_day(20_512)),
                "дождитесь обновления лимита.",
                "wait until the ceiling resets.",
            ),
            (
                none,
                Some(Ceiling::GroupTotal),
                "попросите увеличить лимит.",
                "ask for a higher ceiling.",
            ),
            (
                running,
                Some(Ceiling::Total),
                "дождитесь завершения текущих запросов.",
                "wait for the running requests to end.",
            ),
        ] {
            let error = Error::DoesNotFit {
                needs: MicroRub::rubles(3),
                free: MicroRub::rubles(1),
                held,
                ceiling,
                has_output: true,
            };
            for (language, end) in [(Language::Ru, russian), (Language::En, english)] {
                let refused = Refused::new(&error, RequestNumber::now_v7(), language);
                assert!(refused.text().contains(end), "{end}: {}", refused.text());
            }
        }
    }

    #[test]
    fn amounts_in_a_refusal_are_formatted_for_the_language_of_the_refusal() {
        let error = Error::DoesNotFit {
            needs: MicroRub::new(1_234_567_500_000),
            free: MicroRub::new(20_000),
            held: MicroRub::new(1),
            ceiling: None,
            has_output: true,
        };
        for (language, words) in [
            (
                Language::Ru,
                "нужно 1\u{202f}234\u{202f}567,50\u{a0}₽, свободно 0,02\u{a0}₽, занято резервом текущих запросов \
                 0,000001\u{a0}₽.",
            ),
            (
                Language::En,
                "it needs 1,234,567.50 RUB, 0.02 RUB is free, the key's running requests hold 0.000001 RUB.",
            ),
        ] {
            let refused = Refused::new(&error, RequestNumber::now_v7(), language);
            let text = refused.text();
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[tokio::test]
    async fn custom_error_shape_keeps_the_request_number_in_headers() {
        let shape = |refused: &Refused<'_>| {
            let mut res = refused.usual();
            *res.status_mut() = StatusCode::IM_A_TEAPOT;
            res.map(|_| Bytes::from(format!("{}: {}", refused.code(), refused.text())))
        };
        let service = RespondLayer::new(Language::En)
            .shaped_by(shape)
            .layer(tower::service_fn(async |_: Request<()>| {
                Err::<Response<crate::body::AnswerBody>, _>(Error::Overloaded)
            }));
        let Ok(res) = service.oneshot(Request::new(())).await;
        assert_eq!(res.status(), StatusCode::IM_A_TEAPOT);
        assert!(res.headers().contains_key("x-request-id"));
        assert_eq!(res.headers()[RETRY_AFTER], "1");
        let body = res.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(
            body,
            "overloaded: The service is overloaded. Try again later."
        );
    }
}

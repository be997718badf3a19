//! Turns every [`Error`] into an answer of the service, with its request number (specification 2.5
//! and 7; docs/decisions.md, "Status table"). Nothing else makes an error's HTTP.
//!
//! Above it nothing fails: its error is [`Infallible`].
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
//! Whoever wants another shape gives it in a [`Shape`], most shortly a closure. It begins with
//! [`Refused::usual`], which has the status and the headers that clients go by:
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
//! A refusal of one's own travels as the cause of an [`Error::Internal`]; a shape finds it there by
//! `downcast_ref`. Whoever numbers answers otherwise, or not at all, says so in [`Shape::stamp`].

mod body;
mod refused;
mod responses;
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
use tower::{Layer, Service};
use uuid::fmt::Hyphenated;

pub use self::{
    body::ResponseBody,
    refused::{Refused, Severity},
};
use crate::{
    call::Format,
    error::Error,
    facts::{EventStream, RequestNumber},
    stream_progress::StreamProgress,
};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What the messages SDK shows as the request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The language of texts for callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Language {
    /// Russian.
    #[default]
    Ru,
    /// English.
    En,
}

/// Answers every error of the services below, so that above it nothing can fail.
#[derive(Clone, Copy)]
pub struct RespondLayer<P = UsualShape> {
    language: Language,
    logs: bool,
    shape: P,
}

impl RespondLayer {
    /// Answers in `language` and in the [`UsualShape`].
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
    /// Answers in a shape of one's own.
    #[must_use]
    pub fn shaped_by<Q: Shape>(self, shape: Q) -> RespondLayer<Q> {
        RespondLayer {
            language: self.language,
            logs: self.logs,
            shape,
        }
    }

    /// Leaves the log to whoever else sees the errors.
    #[must_use]
    pub fn without_log(mut self) -> Self {
        self.logs = false;
        self
    }
}

impl<P> fmt::Debug for RespondLayer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespondLayer")
            .field("language", &self.language)
            .finish_non_exhaustive()
    }
}

/// What an error looks like to a caller. A closure from [`Refused`] to the answer is one.
///
/// The log has the error with its cause already.
pub trait Shape: Clone + Send + Sync + 'static {
    /// The whole answer of a request that was refused.
    fn answer(&self, refused: &Refused<'_>) -> Response<Bytes>;

    /// Writes the request's number into the headers of each answer, refused or not: `x-request-id`, and
    /// `request-id`, which is what the messages SDK shows.
    fn stamp(&self, number: RequestNumber, headers: &mut HeaderMap) {
        let mut text = [0; Hyphenated::LENGTH];
        let text = number.uuid().hyphenated().encode_lower(&mut text);
        let number = HeaderValue::from_str(text).expect("a UUID is a header value");
        headers.insert(X_REQUEST_ID, number.clone());
        headers.insert(REQUEST_ID, number);
    }

    /// The last event of a stream that failed, with the blank lines around it.
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

/// The shape that SDKs of both formats read: `{"error":{"message","type","code"}}`.
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
            language: self.language,
            logs: self.logs,
            shape: self.shape.clone(),
        }
    }
}

/// The service of [`RespondLayer`].
#[derive(Clone)]
pub struct Respond<S, P = UsualShape> {
    inner: S,
    language: Language,
    logs: bool,
    shape: P,
}

impl<S: fmt::Debug, P> fmt::Debug for Respond<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Respond")
            .field("inner", &self.inner)
            .field("language", &self.language)
            .finish_non_exhaustive()
    }
}

impl<S, B, A, P> Service<Request<B>> for Respond<S, P>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error>,
    P: Shape,
{
    type Response = Response<ResponseBody<A, P>>;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future, P>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // An inner service that is not ready any more says so to the call, which has a number.
        self.inner.poll_ready(cx).map(|_| Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        // Taken before the call: an error brings no request back.
        let number = req
            .extensions()
            .get::<RequestNumber>()
            .copied()
            .unwrap_or_else(RequestNumber::now_v7);
        ResponseFuture {
            inner: self.inner.call(req),
            answering: Some(Answering {
                number,
                language: self.language,
                logs: self.logs,
                shape: self.shape.clone(),
            }),
        }
    }
}

pin_project! {
    /// The future of [`Respond`].
    pub struct ResponseFuture<F, P = UsualShape> {
        #[pin]
        inner: F,
        // There until the answer is, which takes it along.
        answering: Option<Answering<P>>,
    }
}

impl<F, P> fmt::Debug for ResponseFuture<F, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<F, A, P> Future for ResponseFuture<F, P>
where
    F: Future<Output = Result<Response<A>, Error>>,
    P: Shape,
{
    type Output = Result<Response<ResponseBody<A, P>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let answering = this.answering.take().expect("polled after it was ready");
        let number = answering.number;
        Poll::Ready(Ok(match result {
            Ok(mut res) => {
                answering.shape.stamp(number, res.headers_mut());
                let format = res.extensions().get::<EventStream>().map(|stream| stream.0);
                let progress = match format {
                    Some(Format::Responses) => res.extensions_mut().remove::<StreamProgress>(),
                    _ => None,
                };
                res.map(|inner| ResponseBody::answer(inner, answering, format).within(progress))
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

/// What an error's answer needs beside the error.
struct Answering<P> {
    number: RequestNumber,
    language: Language,
    logs: bool,
    shape: P,
}

impl<P> Answering<P> {
    /// Tells the log of the error, and hands out what the caller may be told.
    fn refused<'a>(&self, error: &'a Error) -> Refused<'a> {
        let refused = Refused::new(error, self.number, self.language);
        if self.logs {
            log(&refused);
        }
        refused
    }
}

/// The operator's side of an error: what support finds under its number.
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
    use std::time::Duration;

    use http::{
        StatusCode,
        header::{RETRY_AFTER, WWW_AUTHENTICATE},
    };
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::{refused::X_SHOULD_RETRY, *};
    use crate::{
        ceiling::Ceiling,
        error::{Limit, Problem},
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

    #[tokio::test]
    async fn every_refusal_ends_with_its_number_in_the_text_and_in_the_header() {
        type Make = fn() -> Error;
        let errors: &[(Make, u16)] = &[
            (|| Error::PathUnknown, 404),
            (|| Error::ReceiptUnknown, 404),
            (
                || Error::ModelNotListed {
                    model: "gpt".into(),
                },
                404,
            ),
            (
                || Error::ClientUnknown {
                    client: "emacs".into(),
                    known: "curl, zed".into(),
                },
                404,
            ),
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

    #[tokio::test]
    async fn a_shape_says_where_the_number_goes() {
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
    async fn waits_are_said_in_whole_seconds_and_useless_retries_forbidden() {
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

    /// There are clients that give up where they are told to wait for longer than a minute.
    #[tokio::test]
    async fn a_wait_is_said_in_a_whole_number_of_seconds_from_1_to_60() {
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
            let said = res.headers()[RETRY_AFTER].to_str().unwrap().to_owned();
            let seconds: u64 = said.parse().unwrap();
            assert!((1..=60).contains(&seconds), "{error:?}: {said}");
            assert_eq!(said, seconds.to_string(), "{error:?}");
            assert_eq!(refused.retry_after(), Some(Duration::from_secs(seconds)));
        }
        let said = |millis| {
            let retry_after = Duration::from_millis(millis);
            let error = Error::VendorLimit { retry_after };
            let refused = Refused::new(&error, RequestNumber::now_v7(), Language::En);
            refused.usual().headers()[RETRY_AFTER]
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!([0, 1001, 59_001, 300_000].map(said), ["1", "2", "60", "60"]);
    }

    #[tokio::test]
    async fn callers_are_told_which_ceiling_and_which_limit_they_have_met() {
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
                ["Дневной лимит", "2026-03-01 в 00:00 UTC"],
                ["daily", "on 2026-03-01 at 00:00 UTC"],
            ),
            (
                month,
                ["Месячный лимит", "2026-03-01"],
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
    fn whoever_is_refused_is_told_what_to_do_next() {
        let address = Some(std::net::Ipv4Addr::LOCALHOST.into());
        let model = String::from("gpt");
        for (error, russian, english) in [
            (
                Error::BodyTooSlow,
                "слишком медленно. Проверьте",
                "too slowly. Check",
            ),
            (
                Error::CeilingUsedUp(Ceiling::Total),
                "исчерпан. Попросите увеличить",
                "is used up. Ask for a higher",
            ),
            (
                Error::CeilingUsedUp(Ceiling::of_day(20_512)),
                "UTC. Дождитесь этого или попросите",
                "UTC. Wait for that, or ask",
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
                Error::invalid("after", crate::error::Problem::WrongType("cursor")),
                "нужно: next предыдущей страницы",
                "expected cursor",
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
    async fn who_asks_for_too_much_is_told_what_helps() {
        let (running, none) = (MicroRub::new(1), MicroRub::ZERO);
        for (held, ceiling, russian, english) in [
            (none, None, "пополните баланс.", "top the balance up."),
            (
                none,
                Some(Ceiling::of_day(20_512)),
                "дождитесь обновления лимита.",
                "wait until the limit is renewed.",
            ),
            (
                none,
                Some(Ceiling::GroupTotal),
                "попросите увеличить лимит.",
                "ask for a higher limit.",
            ),
            (
                running,
                Some(Ceiling::Total),
                "дождитесь завершения текущих запросов.",
                "wait for the running calls.",
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

    #[tokio::test]
    async fn a_shape_of_ones_own_is_answered_with_the_number_all_the_same() {
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

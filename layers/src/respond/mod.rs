//! Turns every [`Error`] into an answer of the service, with its request number (specification 2.5
//! and 7; decisions, "Status table"). Nothing else makes an error's HTTP.

mod body;
mod text;

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Request, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use pin_project_lite::pin_project;
use serde_json::json;
use tower::{Layer, Service};

pub use self::body::ResponseBody;
use crate::{
    error::{Error, Problem},
    facts::{EventStream, RequestNumber},
    money::MicroRub,
};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What the messages SDK shows as the request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// SDKs of both formats retry every 5xx twice unless told not to.
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The language of texts for callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Russian.
    #[default]
    Ru,
    /// English.
    En,
}

/// Answers every error of the services below, so that above it nothing can fail.
#[derive(Clone, Copy, Debug)]
pub struct RespondLayer {
    language: Language,
}

impl RespondLayer {
    /// Answers in `language`.
    #[must_use]
    pub const fn new(language: Language) -> Self {
        Self { language }
    }
}

impl<S> Layer<S> for RespondLayer {
    type Service = Respond<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Respond {
            inner,
            language: self.language,
        }
    }
}

/// The service of [`RespondLayer`].
#[derive(Clone, Debug)]
pub struct Respond<S> {
    inner: S,
    language: Language,
}

impl<S, B, A> Service<Request<B>> for Respond<S>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error>,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future>;

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
            shape: Shape {
                number,
                language: self.language,
            },
        }
    }
}

pin_project! {
    /// The future of [`Respond`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        shape: Shape,
    }
}

impl<F, A> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, Error>>,
{
    type Output = Result<Response<ResponseBody<A>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let shape = *this.shape;
        let mut res = match ready!(this.inner.poll(cx)) {
            Ok(res) => {
                let format = res.extensions().get::<EventStream>().map(|stream| stream.0);
                res.map(|inner| ResponseBody::answer(inner, shape, format))
            }
            Err(error) => shape.refusal(&error).map(ResponseBody::refusal),
        };
        let number =
            HeaderValue::try_from(shape.number.to_string()).expect("a UUID is a header value");
        res.headers_mut().insert(X_REQUEST_ID, number.clone());
        res.headers_mut().insert(REQUEST_ID, number);
        Poll::Ready(Ok(res))
    }
}

/// What an error's answer needs beside the error.
#[derive(Clone, Copy, Debug)]
struct Shape {
    number: RequestNumber,
    language: Language,
}

impl Shape {
    /// An error as a whole answer.
    fn refusal(self, error: &Error) -> Response<Bytes> {
        let Class { status, kind, code } = class(error);
        log(error, status, self.number);
        let mut res = Response::new(Bytes::from(
            json!({ "error": self.object(error, kind, code) }).to_string(),
        ));
        *res.status_mut() = status;
        let headers = res.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Error::MethodNotAllowed { allow } = error {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        match retry(error) {
            Retry::After(wait) => {
                let seconds = wait.as_millis().div_ceil(1000).max(1);
                headers.insert(
                    RETRY_AFTER,
                    HeaderValue::try_from(seconds.to_string()).expect("digits"),
                );
            }
            Retry::Never => {
                headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Retry::AsTheyLike => {}
        }
        res
    }

    /// The object under `error`, in answers and in streams alike.
    fn object(self, error: &Error, kind: &'static str, code: &'static str) -> serde_json::Value {
        let message = format!("{} ({})", text::caller(error, self.language), self.number);
        let mut object = json!({ "message": message, "type": kind, "code": code });
        if let Error::Invalid {
            problem: Problem::ThreadUnsupported,
            ..
        } = error
        {
            // What makes the messages SDK send the whole conversation again.
            object["details"] =
                json!({ "error_code": "thread_unsupported_request", "unsupported": [] });
        }
        object
    }
}

struct Class {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
}

/// The status table, whole.
fn class(error: &Error) -> Class {
    use StatusCode as S;
    const INVALID: &str = "invalid_request_error";
    const AUTHENTICATION: &str = "authentication_error";
    const PERMISSION: &str = "permission_error";
    const LIMIT: &str = "rate_limit_error";
    const OVERLOADED: &str = "overloaded_error";
    const API: &str = "api_error";
    let (status, kind, code) = match error {
        Error::PathUnknown => (S::NOT_FOUND, "not_found_error", "path_not_found"),
        Error::MethodNotAllowed { .. } => (S::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed"),
        Error::Invalid {
            problem: Problem::ThreadUnsupported,
            ..
        } => (S::BAD_REQUEST, INVALID, "thread_unsupported_request"),
        Error::Invalid { .. } => (S::BAD_REQUEST, INVALID, ""),
        Error::BodyTooSlow => (S::REQUEST_TIMEOUT, INVALID, "request_timeout"),
        Error::BodyTooLarge { .. } => (S::PAYLOAD_TOO_LARGE, INVALID, "request_too_large"),
        Error::ContentType | Error::ContentEncoding => {
            (S::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_media_type")
        }
        Error::BodyBroken(_) => (S::BAD_REQUEST, INVALID, ""),
        Error::KeyMissing | Error::KeyMalformed | Error::KeyConflict | Error::KeyUnknown => {
            (S::UNAUTHORIZED, AUTHENTICATION, "invalid_api_key")
        }
        Error::KeyDisabled => (S::UNAUTHORIZED, AUTHENTICATION, "key_disabled"),
        Error::KeyExpired => (S::UNAUTHORIZED, AUTHENTICATION, "key_expired"),
        Error::CeilingUsedUp => (S::UNAUTHORIZED, AUTHENTICATION, "ceiling_used_up"),
        Error::AccountEmpty => (S::UNAUTHORIZED, AUTHENTICATION, "account_empty"),
        Error::AccountSuspended => (S::UNAUTHORIZED, AUTHENTICATION, "account_suspended"),
        Error::DoesNotFit { .. } => (S::FORBIDDEN, PERMISSION, "insufficient_balance"),
        Error::ModelNotAllowed { .. } => (S::FORBIDDEN, PERMISSION, "model_not_allowed"),
        Error::AddressNotAllowed => (S::FORBIDDEN, PERMISSION, "address_not_allowed"),
        Error::TooManyRequests { .. } => (S::TOO_MANY_REQUESTS, LIMIT, "rate_limit_exceeded"),
        Error::VendorLimit { .. } => (S::TOO_MANY_REQUESTS, LIMIT, "vendor_rate_limit"),
        Error::ModelUnknown { .. } => {
            (S::SERVICE_UNAVAILABLE, "not_found_error", "model_not_found")
        }
        Error::PriceUnavailable => (S::SERVICE_UNAVAILABLE, API, "price_unavailable"),
        Error::LedgerUnavailable(_) => (S::SERVICE_UNAVAILABLE, API, "ledger_unavailable"),
        Error::Overloaded => (S::SERVICE_UNAVAILABLE, OVERLOADED, "overloaded"),
        Error::Draining => (S::SERVICE_UNAVAILABLE, OVERLOADED, "draining"),
        Error::VendorUnavailable(_)
        | Error::VendorKeyRefused { .. }
        | Error::RoutesOut { .. } => (S::SERVICE_UNAVAILABLE, API, "vendor_unavailable"),
        Error::VendorRefused { status, .. } => (*status, INVALID, ""),
        Error::VendorBroken(_) => (S::BAD_GATEWAY, API, "vendor_broken"),
        Error::VendorTimeout { .. } => (S::GATEWAY_TIMEOUT, API, "vendor_timeout"),
        Error::Internal(_) => (S::INTERNAL_SERVER_ERROR, API, ""),
    };
    Class { status, kind, code }
}

enum Retry {
    /// `retry-after`.
    After(Duration),
    /// `x-should-retry: false`.
    Never,
    /// The client's own rule for the status.
    AsTheyLike,
}

fn retry(error: &Error) -> Retry {
    match error {
        Error::TooManyRequests { retry_after }
        | Error::VendorLimit { retry_after }
        | Error::RoutesOut { retry_after } => Retry::After(*retry_after),
        Error::ModelUnknown { .. } => Retry::Never,
        // Running calls may give money back.
        Error::DoesNotFit { held, .. } if *held > MicroRub::ZERO => Retry::AsTheyLike,
        Error::PriceUnavailable => Retry::After(Duration::from_secs(30)),
        Error::VendorKeyRefused { .. } => Retry::After(Duration::from_secs(10)),
        Error::LedgerUnavailable(_)
        | Error::Overloaded
        | Error::Draining
        | Error::VendorUnavailable(_) => Retry::After(Duration::from_secs(1)),
        // A client that tries a wrong key or a wrong field again is told the same again.
        _ if class(error).status.is_client_error() => Retry::Never,
        _ => Retry::AsTheyLike,
    }
}

/// The operator's side of an error: what support finds under its number.
fn log(error: &Error, status: StatusCode, number: RequestNumber) {
    let cause = std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default();
    let status = status.as_u16();
    match error {
        // Nothing gets better until the operator acts.
        Error::VendorKeyRefused { .. } | Error::Internal(_) => {
            tracing::error!(%number, status, cause, "{error}")
        }
        Error::ModelUnknown { .. } => tracing::info!(%number, status, "{error}"),
        _ if status >= 500 => tracing::warn!(%number, status, cause, "{error}"),
        _ => tracing::info!(%number, status, cause, "{error}"),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

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
            (|| Error::invalid("model", Problem::Missing), 400),
            (|| Error::KeyMissing, 401),
            (|| Error::AccountEmpty, 401),
            (
                || Error::DoesNotFit {
                    needs: MicroRub::rubles(3),
                    free: MicroRub::rubles(1),
                    held: MicroRub::rubles(2),
                },
                403,
            ),
            (
                || Error::TooManyRequests {
                    retry_after: Duration::from_millis(1500),
                },
                429,
            ),
            (
                || Error::ModelUnknown {
                    model: "gpt".into(),
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
    async fn waits_are_said_in_whole_seconds_and_useless_retries_forbidden() {
        let (res, ..) = answer(Language::Ru, || Error::TooManyRequests {
            retry_after: Duration::from_millis(1500),
        })
        .await;
        assert_eq!(res.headers()[RETRY_AFTER], "2");
        let (res, ..) = answer(Language::Ru, || Error::ModelUnknown { model: "x".into() }).await;
        assert_eq!(res.headers()[X_SHOULD_RETRY], "false");
        assert!(!res.headers().contains_key(RETRY_AFTER));
        let (res, ..) = answer(Language::Ru, || Error::KeyUnknown).await;
        assert_eq!(res.headers()[WWW_AUTHENTICATE], "Bearer");
    }
}

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde_json::json;

use super::{Language, text};
use crate::{
    call::Format,
    error::{Error, Problem, TOO_LONG},
    facts::RequestNumber,
    formats::errors::StreamError,
    money::MicroRub,
    stream_progress::StreamProgress,
};

/// Header that forbids a retry. Without it, the SDKs of OpenAI and Anthropic retry a request twice after any 5xx.
pub(super) const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The largest `retry-after`, in seconds. Some clients give up if it is longer. A client that retries too early gets
/// another `retry-after`.
const RETRY_AFTER_SECONDS_MAX: u64 = 60;

/// An error with everything from which a [`Shape`](super::Shape) builds the response.
#[derive(Debug)]
pub struct Refused<'a> {
    error: &'a Error,
    class: Class,
    number: RequestNumber,
    language: Language,
    progress: Option<&'a StreamProgress>,
}

impl<'a> Refused<'a> {
    /// Prepares the response to `error`, with its text in `language`.
    #[must_use]
    pub fn new(error: &'a Error, number: RequestNumber, language: Language) -> Self {
        Self {
            error,
            class: class(error),
            number,
            language,
            progress: None,
        }
    }

    /// Adds the position in the stream at which the error occurred. Error events of the Responses format need it.
    #[must_use]
    pub const fn within(mut self, progress: Option<&'a StreamProgress>) -> Self {
        self.progress = progress;
        self
    }

    /// Returns the error. Its [`std::fmt::Display`] and its source are for the log, not for callers.
    #[must_use]
    pub const fn error(&self) -> &'a Error {
        self.error
    }

    /// Returns the HTTP status of the response.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.class.status
    }

    /// Returns the class of the error, which is `error.type` in the body of [`Refused::usual`].
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.class.kind
    }

    /// Returns a stable code for programs, which is `error.code` in the body of [`Refused::usual`]. The code may be
    /// empty.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.class.code
    }

    /// Returns how urgent the error is for an operator.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self.error {
            // Refused vendor keys and internal errors persist until the operator acts.
            Error::VendorKeyRefused { .. } | Error::Internal(_) => Severity::Error,
            Error::ModelUnknown { .. } => Severity::Info,
            _ if self.status().is_server_error() => Severity::Warn,
            _ => Severity::Info,
        }
    }

    /// Returns the request's number, which [`super::Shape::stamp`] writes into the headers of every response.
    #[must_use]
    pub const fn number(&self) -> RequestNumber {
        self.number
    }

    /// Returns the language of the response's text.
    #[must_use]
    pub const fn language(&self) -> Language {
        self.language
    }

    /// Returns the text for people, in [`Self::language`]. It contains neither the cause nor the request's number.
    #[must_use]
    pub fn text(&self) -> String {
        text::caller(self.error, self.language)
    }

    /// Returns the text followed by the request's number in parentheses. In the body of [`Refused::usual`], this text
    /// is `error.message`.
    #[must_use]
    pub fn message(&self) -> String {
        format!("{} ({})", self.text(), self.number)
    }

    /// Returns how long the client should wait before a retry, in whole seconds from 1 to 60. `None` if the client may
    /// choose the wait, or if no retry can succeed.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match retry(self.error) {
            Retry::After(wait) => {
                let seconds = text::whole_seconds(wait).min(RETRY_AFTER_SECONDS_MAX);
                Some(Duration::from_secs(seconds))
            }
            Retry::Never | Retry::AsTheyLike => None,
        }
    }

    /// Returns the response in the default shape: status, headers, and the body `{"error":{"message","type","code"}}`.
    #[must_use]
    pub fn usual(&self) -> Response<Bytes> {
        let mut res = Response::new(Bytes::from(json!({ "error": self.object() }).to_string()));
        *res.status_mut() = self.status();
        let headers = res.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Error::MethodNotAllowed { allow } = self.error {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(wait) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs()));
        }
        if let Retry::Never = retry(self.error) {
            headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        res
    }

    /// Returns the bytes with which the default shape ends a failed stream: one or several events in the given format.
    /// Neither `[DONE]` nor `message_stop` follows them.
    #[must_use]
    pub fn usual_event(&self, format: Format) -> Bytes {
        let failure = StreamError {
            error: self.error,
            object: self.object(),
            kind: self.kind(),
            message: self.message(),
            number: self.number,
            progress: self.progress,
        };
        failure.written(format).into()
    }

    /// Returns the object in the field `error` of a body or an event. Plain responses and streams have the same object.
    fn object(&self) -> serde_json::Value {
        let mut object =
            json!({ "message": self.message(), "type": self.kind(), "code": self.code() });
        if let Error::Invalid {
            problem: Problem::ThreadUnsupported,
            ..
        } = self.error
        {
            // On the code `thread_unsupported_request`, SDKs of the Messages format send the whole conversation again.
            object["details"] =
                json!({ "error_code": "thread_unsupported_request", "unsupported": [] });
        }
        if let Error::VendorRefused { text, .. } = self.error {
            // Some clients compare the vendor's whole message, so the response has the unchanged message in a field of
            // its own.
            object["vendor"] = json!({ "message": text });
        }
        object
    }
}

/// How urgent an error is for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The caller can correct the request; the operator need not act.
    Info,
    /// The fault may disappear without the operator's help.
    Warn,
    /// The fault persists until the operator acts.
    Error,
}

#[derive(Debug)]
struct Class {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
}

/// Returns the status, the type and the code of the response to an error.
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
        Error::UriTooLong { .. } => (S::URI_TOO_LONG, INVALID, "uri_too_long"),
        Error::HeadTooLarge { .. } => (
            S::REQUEST_HEADER_FIELDS_TOO_LARGE,
            INVALID,
            "headers_too_large",
        ),
        Error::Invalid {
            problem: Problem::ThreadUnsupported,
            ..
        } => (S::BAD_REQUEST, INVALID, "thread_unsupported_request"),
        Error::Invalid {
            problem:
                Problem::StateUnsupported | Problem::StoreUnsupported | Problem::ReferenceUnsupported,
            ..
        } => (S::BAD_REQUEST, INVALID, "state_unsupported"),
        Error::Invalid {
            problem: Problem::ToolUnsupported | Problem::SearchUnsupported,
            ..
        } => (S::BAD_REQUEST, INVALID, "tool_unsupported"),
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
        Error::CeilingUsedUp(_) => (S::UNAUTHORIZED, AUTHENTICATION, "ceiling_used_up"),
        Error::AccountEmpty => (S::UNAUTHORIZED, AUTHENTICATION, "account_empty"),
        Error::AccountSuspended => (S::UNAUTHORIZED, AUTHENTICATION, "account_suspended"),
        Error::DoesNotFit { .. } => (S::FORBIDDEN, PERMISSION, "insufficient_balance"),
        Error::ModelNotAllowed { .. } => (S::FORBIDDEN, PERMISSION, "model_not_allowed"),
        Error::OwnerKey => (S::FORBIDDEN, PERMISSION, "owner_key"),
        Error::AddressNotAllowed { .. } => (S::FORBIDDEN, PERMISSION, "address_not_allowed"),
        Error::IdempotencyKeyInUse { .. } => (S::CONFLICT, INVALID, "idempotency_key_in_use"),
        Error::IdempotentAnswerGone => (S::CONFLICT, INVALID, "idempotent_answer_gone"),
        Error::IdempotencyKeyReused => (S::UNPROCESSABLE_ENTITY, INVALID, "idempotency_key_reused"),
        Error::TooManyRequests { .. } => (S::TOO_MANY_REQUESTS, LIMIT, "rate_limit_exceeded"),
        Error::TooManyCalls { .. } => (S::TOO_MANY_REQUESTS, LIMIT, "concurrency_limit_exceeded"),
        Error::VendorLimit { .. } => (S::TOO_MANY_REQUESTS, LIMIT, "vendor_rate_limit"),
        Error::ModelUnknown { .. } => {
            (S::SERVICE_UNAVAILABLE, "not_found_error", "model_not_found")
        }
        Error::PriceUnavailable => (S::SERVICE_UNAVAILABLE, API, "price_unavailable"),
        Error::LedgerUnavailable(_) => (S::SERVICE_UNAVAILABLE, API, "ledger_unavailable"),
        Error::Overloaded => (S::SERVICE_UNAVAILABLE, OVERLOADED, "overloaded"),
        Error::Draining => (S::SERVICE_UNAVAILABLE, OVERLOADED, "draining"),
        Error::VendorUnavailable(_) | Error::VendorKeyRefused { .. } | Error::RoutesOut { .. } => {
            (S::SERVICE_UNAVAILABLE, API, "vendor_unavailable")
        }
        Error::VendorRefused {
            status, too_long, ..
        } => (*status, INVALID, if *too_long { TOO_LONG } else { "" }),
        Error::VendorBroken(_) => (S::BAD_GATEWAY, API, "vendor_broken"),
        Error::AnswerTooLong(_) => (S::BAD_GATEWAY, API, "answer_too_long"),
        Error::VendorTimeout { .. } => (S::GATEWAY_TIMEOUT, API, "vendor_timeout"),
        Error::Internal(_) => (S::INTERNAL_SERVER_ERROR, API, ""),
        Error::Custom(custom) => (custom.status(), custom.kind(), custom.code()),
    };
    Class { status, kind, code }
}

enum Retry {
    /// A retry after this time may succeed: the response has `retry-after`.
    After(Duration),
    /// A retry cannot succeed: the response has `x-should-retry: false`.
    Never,
    /// The response has neither `retry-after` nor `x-should-retry`, so the client applies its own rule for the status.
    AsTheyLike,
}

fn retry(error: &Error) -> Retry {
    match error {
        Error::TooManyRequests { retry_after, .. }
        | Error::VendorLimit { retry_after }
        | Error::IdempotencyKeyInUse { retry_after }
        | Error::RoutesOut { retry_after } => Retry::After(*retry_after),
        Error::Custom(custom) => match custom.retry_after() {
            Some(wait) => Retry::After(wait),
            None if custom.status().is_client_error() => Retry::Never,
            None => Retry::AsTheyLike,
        },
        Error::ModelUnknown { .. } | Error::AnswerTooLong(_) => Retry::Never,
        // A retry may succeed, because in-flight calls may end and return the money that they hold.
        Error::DoesNotFit { held, .. } if *held > MicroRub::ZERO => Retry::AsTheyLike,
        Error::PriceUnavailable => Retry::After(Duration::from_secs(30)),
        Error::VendorKeyRefused { .. } => Retry::After(Duration::from_secs(10)),
        Error::LedgerUnavailable(_)
        | Error::TooManyCalls { .. }
        | Error::Overloaded
        | Error::Draining
        | Error::VendorUnavailable(_) => Retry::After(Duration::from_secs(1)),
        // A request with a wrong key or field fails again, whenever it is sent.
        _ if class(error).status.is_client_error() => Retry::Never,
        _ => Retry::AsTheyLike,
    }
}

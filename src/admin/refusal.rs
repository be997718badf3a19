//! All refusals of the operators' API and their HTTP form.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use tollgate_layers::{
    Error,
    body::{AnswerBody, full},
    facts::RequestNumber,
    reserve::ledger::BookError,
};

use super::Role;
use crate::{
    edge::body_limit::BodyError,
    text::{causes::chain, similar::hint},
};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The reason why a request was refused. The texts are for operators and end with what to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 404: the path does not exist.
    PathUnknown,
    /// 405: the path exists, but does not take this method.
    MethodNotAllowed {
        /// The methods that the path takes, for the header `allow`.
        allow: String,
    },
    /// 401: the request has no admin key, or a wrong one.
    KeyRefused,
    /// 429: too many wrong admin keys from the address.
    TooManyGuesses {
        /// The seconds until the next request is admitted.
        seconds: u64,
    },
    /// 403: a request without the admin key for a host name that is not configured.
    HostUnknown,
    /// 403: the operator's role lacks the right.
    RoleRefused(Role),
    /// 413: the body is too large.
    BodyTooLarge {
        /// The largest size of a body that is read, in bytes.
        bytes_max: usize,
    },
    /// 408: the body arrived too slowly.
    BodyTooSlow,
    /// 400: the connection ended before the whole body arrived.
    BodyBroken,
    /// 400: an invalid field, or the body if `field` is empty.
    Invalid {
        /// The name of the invalid field.
        field: String,
        /// The mistake in the field, and a valid value.
        problem: String,
    },
    /// 404: the account, key or receipt does not exist.
    NotFound(String),
    /// 409: the change conflicts with the current state of the ledger or of a file.
    Conflict(String),
    /// 503: the ledger could not be reached, or its reply was lost.
    LedgerOutOfReach(String),
    /// 502: the payment provider failed.
    ProviderFailed(String),
    /// 500: an internal error of the gateway; the log has the cause.
    Internal,
    /// 500: the gateway panicked at an unknown point of the request.
    Panicked {
        /// The request's number, under which the error is logged.
        number: RequestNumber,
    },
}

impl Refusal {
    /// Logs the cause of an internal error, and returns a refusal without the cause.
    pub(crate) fn fault(cause: impl fmt::Display) -> Self {
        tracing::error!(%cause, "the admin API failed with an internal error");
        Self::Internal
    }

    pub(super) fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// Refuses a change that names none of the fields that it can change.
    pub(super) fn nothing_to_change(fields: &[&str]) -> Self {
        let problem = format!("nothing to change: send one of {}", fields.join(", "));
        Self::invalid("", problem)
    }

    /// Refuses `name`, which is not in `known`. `kind` is `field` or `parameter`. If `known` is empty, the error text
    /// contains `none` in place of the known names.
    pub(super) fn unknown(kind: &str, none: &str, name: &str, known: &[&str]) -> Self {
        let name: String = name.chars().take(64).collect();
        let takes = if known.is_empty() {
            none.to_owned()
        } else {
            known.join(", ")
        };
        let hint = hint(&name, known.iter().copied());
        Self::invalid(
            name,
            format!("unknown {kind}; this call takes {takes}{hint}"),
        )
    }

    /// Converts the ledger's error for a change of `subject`, for example `account acme`. If the ledger's reply was
    /// lost, the change may have been made.
    pub(super) fn of_change(error: &BookError, subject: &str) -> Self {
        match Self::of_ledger(error, subject) {
            Self::LedgerOutOfReach(_) => Self::LedgerOutOfReach(
                "the ledger is out of reach, and the change may have been made: repeat the request with the same id"
                    .into(),
            ),
            refusal => refusal,
        }
    }

    /// Converts the ledger's error for a query about `subject`, for example `account acme`.
    pub(super) fn of_ledger(error: &BookError, subject: &str) -> Self {
        match error {
            BookError::NotFound => Self::NotFound(format!("no {subject}")),
            BookError::Exists => {
                Self::Conflict(format!("{subject} exists already, with different contents"))
            }
            BookError::BelowHeld => Self::Conflict(format!(
                "the balance of {subject} would fall below zero or below what running calls hold; \
                 enter a smaller amount, or wait until the calls end"
            )),
            BookError::AboveMax => Self::Conflict(format!(
                "the balance of {subject} would exceed 9007199254.740991 rubles; enter a smaller amount"
            )),
            BookError::NoGroup => Self::invalid(
                "group",
                "the account has no such group, or the group was removed; create a group first",
            ),
            BookError::GroupInUse => Self::Conflict(format!(
                "{subject} has keys that are not deleted: take these keys out of the group, or delete them"
            )),
            BookError::Unavailable(source) => {
                tracing::warn!(
                    error = chain(&**source),
                    subject,
                    "the admin API cannot reach the ledger"
                );
                let text = "the ledger is out of reach; try again. If this persists, `tollgate health` gives the reason";
                Self::LedgerOutOfReach(text.into())
            }
            other => {
                tracing::error!(error = %other, subject, "the ledger returned an unexpected error to the admin API");
                Self::Internal
            }
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::PathUnknown | Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::KeyRefused => StatusCode::UNAUTHORIZED,
            Self::TooManyGuesses { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::RoleRefused(_) | Self::HostUnknown => StatusCode::FORBIDDEN,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::BodyBroken | Self::Invalid { .. } => StatusCode::BAD_REQUEST,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::LedgerOutOfReach(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::ProviderFailed(_) => StatusCode::BAD_GATEWAY,
            Self::Internal | Self::Panicked { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) fn message(&self) -> String {
        match self {
            Self::PathUnknown => "the admin API has no such path; its paths begin with /admin/v1/".into(),
            Self::MethodNotAllowed { allow } => format!("this path allows only the method {allow}"),
            Self::KeyRefused => {
                "the admin key is missing or wrong; send it as \"Authorization: Bearer <key>\""
                    .into()
            }
            Self::TooManyGuesses { seconds } => {
                format!(
                    "too many wrong admin keys from your address; send the right one in {seconds} s"
                )
            }
            Self::HostUnknown => {
                "this listener does not serve the host of the request: use the listener's address, add the host to \
                 admin.hosts, or send the admin key"
                    .into()
            }
            Self::RoleRefused(role) => {
                format!("the role {role} may not do this; an operator with another role can")
            }
            Self::BodyTooLarge { bytes_max } => {
                format!("the request body is larger than {bytes_max} bytes")
            }
            Self::BodyTooSlow => "the request body arrived too slowly; repeat the request".into(),
            Self::BodyBroken => "the request body was incomplete; repeat the request".into(),
            Self::Invalid { field, problem } if field.is_empty() => problem.clone(),
            Self::Invalid { field, problem } => format!("{field}: {problem}"),
            Self::NotFound(text)
            | Self::Conflict(text)
            | Self::LedgerOutOfReach(text)
            | Self::ProviderFailed(text) => text.clone(),
            Self::Internal => "an internal error of the gateway; see the gateway's log".into(),
            Self::Panicked { number } => format!(
                "an internal error of the gateway, and the change may have been made; see the gateway's log ({number})"
            ),
        }
    }

    fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::FORBIDDEN => "permission_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }

    pub(super) fn answer(&self) -> Response<Bytes> {
        #[derive(Serialize)]
        struct Inner {
            message: String,
            r#type: &'static str,
            code: &'static str,
        }

        let inner = Inner {
            message: self.message(),
            r#type: self.kind(),
            code: "",
        };
        let body = BTreeMap::from([("error", inner)]);
        let mut response = json_response(self.status(), &body);
        let (name, value) = match self {
            Self::MethodNotAllowed { allow } => (header::ALLOW, HeaderValue::try_from(allow)),
            Self::KeyRefused => (header::WWW_AUTHENTICATE, HeaderValue::try_from("Bearer")),
            Self::TooManyGuesses { seconds } => (
                header::RETRY_AFTER,
                HeaderValue::try_from(seconds.to_string()),
            ),
            Self::LedgerOutOfReach(_) => (header::RETRY_AFTER, HeaderValue::try_from("1")),
            Self::Panicked { number } => (X_REQUEST_ID, HeaderValue::try_from(number.to_string())),
            _ => return response,
        };
        let value = value.expect("a header value of letters, digits and commas is valid");
        response.headers_mut().insert(name, value);
        response
    }
}

/// Converts errors of the ledger into refusals.
pub(super) trait OrRefuse<T> {
    /// Converts the error of a query about `subject`, for example `account acme`.
    fn or_refuse(self, subject: impl fmt::Display) -> Result<T, Refusal>;

    /// Converts the error of a change of `subject`. If the ledger's reply was lost, the change may have been made.
    fn or_refuse_change(self, subject: impl fmt::Display) -> Result<T, Refusal>;
}

impl<T> OrRefuse<T> for Result<T, BookError> {
    fn or_refuse(self, subject: impl fmt::Display) -> Result<T, Refusal> {
        self.map_err(|error| Refusal::of_ledger(&error, &subject.to_string()))
    }

    fn or_refuse_change(self, subject: impl fmt::Display) -> Result<T, Refusal> {
        self.map_err(|error| Refusal::of_change(&error, &subject.to_string()))
    }
}

/// Returns the text of the error response.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl std::error::Error for Refusal {}

/// Answers refused requests with error texts for operators. Layers above therefore see no refusals. They handle only
/// errors of layers that the operators' and the callers' listeners share.
pub fn answer_refusals(
    result: Result<Response<AnswerBody>, Refusal>,
) -> Result<Response<AnswerBody>, Error> {
    Ok(result.unwrap_or_else(|refusal| refusal.answer().map(full)))
}

/// A refusal without a request, which a service reports while it is not ready.
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Internal(refusal.into())
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge { bytes_max } => Self::BodyTooLarge { bytes_max },
            BodyError::TooSlow => Self::BodyTooSlow,
            BodyError::Broken => Self::BodyBroken,
        }
    }
}

/// A response in JSON that must not be cached.
pub(super) fn json_response(status: StatusCode, body: &impl Serialize) -> Response<Bytes> {
    let bytes = serde_json::to_vec(body)
        .expect("serializing an answer with string keys to JSON cannot fail");
    let mut response = response(Bytes::from(bytes), "application/json");
    *response.status_mut() = status;
    response
}

/// Builds a response that must not be cached.
pub(super) fn response<B>(body: B, content_type: &'static str) -> Response<B> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn error_mentions_a_possible_change_only_if_the_ledgers_reply_to_a_change_was_lost() {
        let lost = BookError::Unavailable("down".into());
        let read = Refusal::of_ledger(&lost, "account a").message();
        assert!(!read.contains("made"), "{read}");
        let change = Refusal::of_change(&lost, "account a").message();
        assert!(change.contains("may have been made"), "{change}");
        let other = Refusal::of_change(&BookError::NotFound, "account a").message();
        assert_eq!(other, "no account a");
    }

    #[test]
    fn each_admin_refusal_has_its_status_and_header() {
        for (refusal, status, name, value) in [
            (Refusal::PathUnknown, 404, "cache-control", "no-store"),
            (
                Refusal::MethodNotAllowed {
                    allow: "POST".into(),
                },
                405,
                "allow",
                "POST",
            ),
            (Refusal::KeyRefused, 401, "www-authenticate", "Bearer"),
            (
                Refusal::BodyTooLarge { bytes_max: 1 },
                413,
                "content-type",
                "application/json",
            ),
            (
                Refusal::BodyTooSlow,
                408,
                "content-type",
                "application/json",
            ),
            (Refusal::BodyBroken, 400, "content-type", "application/json"),
            (
                Refusal::invalid("id", "required"),
                400,
                "content-type",
                "application/json",
            ),
            (
                Refusal::of_ledger(&BookError::NotFound, "account a"),
                404,
                "content-type",
                "application/json",
            ),
            (
                Refusal::of_ledger(&BookError::Exists, "account a"),
                409,
                "content-type",
                "application/json",
            ),
            (
                Refusal::of_ledger(&BookError::BelowHeld, "account a"),
                409,
                "content-type",
                "application/json",
            ),
            (
                Refusal::of_ledger(&BookError::AboveMax, "account a"),
                409,
                "content-type",
                "application/json",
            ),
            (
                Refusal::of_ledger(&BookError::Unavailable("down".into()), "account a"),
                503,
                "retry-after",
                "1",
            ),
            (Refusal::Internal, 500, "content-type", "application/json"),
            (
                Refusal::Panicked {
                    number: RequestNumber::from_uuid(Uuid::nil()),
                },
                500,
                "x-request-id",
                "00000000-0000-0000-0000-000000000000",
            ),
        ] {
            let text = format!("{refusal:?}");
            let response = refusal.answer();
            assert_eq!(response.status(), status, "{text}");
            assert_eq!(response.headers()[name], value, "{text}");
        }
    }
}

//! Every reason for which a request is refused or fails, as one flat enum.
//!
//! Only the `respond` layer turns an [`Error`] into an HTTP response. [`std::fmt::Display`] gives the English message
//! for the log, with the cause in `source`; `respond` writes the message for the caller.

use std::{any::Any, borrow::Cow, net::IpAddr, time::Duration};

use http::StatusCode;

pub use tollgate_ledger::BoxError;

#[cfg(feature = "model-calls")]
use crate::model::ModelKind;
use crate::{ceiling::Ceiling, money::MicroRub};

/// The reason why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// 404: the path does not exist.
    #[error("no such path")]
    PathUnknown,
    /// 405: the path exists, but does not accept the request's method.
    #[error("method not allowed; the path accepts only {allow}")]
    MethodNotAllowed {
        /// The value of the `allow` header: the methods that the path accepts.
        allow: &'static str,
    },
    /// 414: the request's URI is too long.
    #[error("request URI longer than {bytes_max} bytes")]
    UriTooLong {
        /// The maximum length of the URI, in bytes.
        bytes_max: usize,
    },
    /// 431: the request has too many headers, or they are too large.
    #[error(
        "request has more than {headers_max} header lines, or more than {bytes_max} bytes of headers"
    )]
    HeadTooLarge {
        /// The maximum number of header lines.
        headers_max: usize,
        /// The maximum size of all header names and values together, in bytes.
        bytes_max: usize,
    },
    /// 400: the request violates its format.
    #[error("invalid request: {field}: {problem}")]
    Invalid {
        /// The path of the field, for example `messages[2].role`. Empty if the problem is in the body as a whole.
        field: Cow<'static, str>,
        /// The problem with the field.
        problem: Problem,
    },
    /// 408: the body arrived too slowly.
    #[error("request body too slow")]
    BodyTooSlow,
    /// 413: the body is too large.
    #[error("request body larger than {bytes_max} bytes")]
    BodyTooLarge {
        /// The maximum size of the body, in bytes.
        bytes_max: u64,
    },
    /// 415: the content type is not JSON.
    #[error("content-type is not application/json")]
    ContentType,
    /// 415: the content encoding is neither `identity` nor `gzip`.
    #[error("content-encoding is neither identity nor gzip")]
    ContentEncoding,
    /// The request body ended early because the client has disconnected. Nobody reads the response to this error.
    #[error("request body incomplete")]
    BodyBroken(#[source] BoxError),

    /// 401: the request has no key.
    #[error("no key")]
    KeyMissing,
    /// 401: the credential cannot be a key of this gateway, because its form or its checksum is wrong.
    #[error("malformed key")]
    KeyMalformed,
    /// 401: `authorization` and `x-api-key` have different keys.
    #[error("request has two different keys")]
    KeyConflict,
    /// 401: the key does not exist.
    #[error("unknown key")]
    KeyUnknown,
    /// 401: the key is disabled or deleted.
    #[error("key disabled or deleted")]
    KeyDisabled,
    /// 401: the key has expired.
    #[error("key expired")]
    KeyExpired,
    /// 401: a spending ceiling of the key or of its group is used up.
    #[error("spending ceiling used up: {0:?}")]
    CeilingUsedUp(Ceiling),
    /// 401: the account has no money left.
    #[error("account empty")]
    AccountEmpty,
    /// 401: the account is suspended.
    #[error("account suspended")]
    AccountSuspended,

    /// 403: the hold that the call needs is larger than the free money.
    #[error(
        "hold of {needs} does not fit into the {free} that is free; the key's other calls hold {held}"
    )]
    DoesNotFit {
        /// The most that the call can cost.
        needs: MicroRub,
        /// The money that is free: not held by other calls.
        free: MicroRub,
        /// The money that the key's in-flight calls hold.
        held: MicroRub,
        /// The spending ceiling of the key or of its group that is too low; `None` if the account's balance is too low.
        ceiling: Option<Ceiling>,
        /// Whether the hold includes output tokens. If so, a lower output limit can make the call fit.
        has_output: bool,
    },
    /// 429: the key already has its maximum number of calls open.
    #[error("the key already has its maximum of {most} open calls")]
    TooManyCalls {
        /// The maximum number of open calls of the key.
        most: u32,
    },
    /// 403: the key may not call this model.
    #[error("the model {model:?} is not allowed for this key")]
    ModelNotAllowed {
        /// The model's name in the catalog.
        model: String,
    },
    /// 403: an owner key manages keys and cannot call models.
    #[error("an owner key cannot call models")]
    OwnerKey,
    /// 403: the key may not be used from this address.
    #[error("the client's address is not allowed for this key")]
    AddressNotAllowed {
        /// The client's IP address; `None` if it is unknown.
        address: Option<IpAddr>,
    },

    /// 409: a call with this idempotency key is running on another node.
    #[error(
        "a call with this idempotency key is running on another node; retry after {retry_after:?}"
    )]
    IdempotencyKeyInUse {
        /// The time after which a retry may succeed.
        retry_after: Duration,
    },
    /// 409: a call with this idempotency key was charged, or may still be charged, but its response is not stored.
    #[error("a call with this idempotency key has run, but its response is not stored")]
    IdempotentAnswerGone,
    /// 422: the idempotency key was already used for a different request.
    #[error("idempotency key already used for a different request")]
    IdempotencyKeyReused,

    /// 429: too many requests from this address or key, or too many tokens used by the key.
    #[error("rate limit {limit:?} reached; retry after {retry_after:?}")]
    TooManyRequests {
        /// The rate limit that was reached.
        limit: Limit,
        /// The time after which the next request is allowed.
        retry_after: Duration,
    },
    /// 429: the vendor's rate limit was reached.
    #[error("vendor's rate limit reached; retry after {retry_after:?}")]
    VendorLimit {
        /// The wait that the vendor has requested.
        retry_after: Duration,
    },

    /// 503 without `retry-after`: the catalog has no such model.
    #[error("no such model {model:?}")]
    ModelUnknown {
        /// The requested model name.
        model: String,
        /// The most similar model name in the catalog; `None` if no name is similar.
        similar: Option<String>,
    },
    /// 503: the model has no price at present.
    #[error("the model has no price at present")]
    PriceUnavailable,
    /// 503: the ledger cannot be reached, so no money can be held.
    #[error("the ledger cannot be reached")]
    LedgerUnavailable(#[source] BoxError),
    /// 503: this node already runs its maximum number of calls.
    #[error("overloaded")]
    Overloaded,
    /// 503: this node is shutting down.
    #[error("draining")]
    Draining,
    /// 503: no vendor could answer. The cause is a [`VendorAnswered`] if a vendor answered with an error status, or a
    /// [`VendorUnreached`] if no connection was made.
    #[error("vendor unavailable")]
    VendorUnavailable(#[source] BoxError),
    /// 503: every route to the model is paused after failures, so the call was sent to no vendor.
    #[error("every route to the model is paused; retry after {retry_after:?}")]
    RoutesOut {
        /// The time until the gateway uses one of these routes again.
        retry_after: Duration,
    },
    /// 503: the vendor refused the operator's key or account. Alerts the operator.
    #[error("vendor refused the gateway's key with {status}")]
    VendorKeyRefused {
        /// The HTTP status with which the vendor refused the key.
        status: StatusCode,
    },

    /// 400, 413, 422: the vendor refused the caller's request.
    #[error("vendor refused the request with {status}: {text}")]
    VendorRefused {
        /// The HTTP status with which the vendor refused the request.
        status: StatusCode,
        /// The vendor's message, scrubbed of keys, addresses and organisations.
        text: String,
        /// Whether the reason is that the request exceeds the model's context window.
        too_long: bool,
    },
    /// 502: the vendor's response is malformed.
    #[error("malformed response from the vendor")]
    VendorBroken(#[source] BoxError),
    /// 502: the vendor's response is longer than the gateway buffers. The request can be the cause, so the call is
    /// charged and not retried.
    #[error("the vendor's response is longer than the gateway buffers")]
    AnswerTooLong(#[source] BoxError),
    /// 504: the vendor did not answer in time.
    #[error("vendor timeout: no {awaited} in time")]
    VendorTimeout {
        /// The stage that timed out: `connection`, `first byte` or `next bytes`.
        awaited: &'static str,
    },
    /// 500: an internal error.
    #[error("internal error")]
    Internal(#[source] BoxError),
    /// An error of your own service or layer, which defines the response itself: see [`Error::custom`].
    #[error(transparent)]
    Custom(Box<dyn CustomError>),
}

impl Error {
    /// Converts an error of the service or body that a layer wraps. An [`Error`], boxed or not, is returned unchanged;
    /// an error of any other type becomes the cause of an [`Error::Internal`].
    ///
    /// Because every layer makes this conversion, the wrapped service may have any error type.
    pub fn from_below<E: Into<BoxError> + 'static>(error: E) -> Self {
        // The type is compared first: this needs no box, and if `E` is `Self`, the compiler removes the comparison.
        let mut error = Some(error);
        if let Some(ours) = (&mut error as &mut dyn Any).downcast_mut::<Option<Self>>()
            && let Some(ours) = ours.take()
        {
            return ours;
        }
        match error.map(|error| error.into().downcast::<Self>()) {
            Some(Ok(ours)) => *ours,
            Some(Err(other)) => Self::Internal(other),
            None => unreachable!("the error is taken only when it is returned"),
        }
    }

    /// Creates an error for which this enum has no variant. `error` defines the response's status, code and text.
    #[must_use]
    pub fn custom(error: impl CustomError) -> Self {
        Self::Custom(Box::new(error))
    }

    /// Creates a 400 error that names a field of the request and what is wrong with it.
    #[must_use]
    pub fn invalid(field: impl Into<Cow<'static, str>>, problem: Problem) -> Self {
        let field = field.into();
        Self::Invalid { field, problem }
    }

    /// Returns whether the vendor caused the error, and not the request or this gateway. A vendor's rate limit and a
    /// vendor's refusal of the gateway's key count as caused by the vendor; its refusal of the request does not.
    #[must_use]
    pub const fn is_the_vendors(&self) -> bool {
        matches!(
            self,
            Self::VendorUnavailable(_)
                | Self::VendorBroken(_)
                | Self::VendorTimeout { .. }
                | Self::VendorLimit { .. }
                | Self::VendorKeyRefused { .. }
        )
    }

    /// Returns whether a vendor answered 404: it does not have the model, or its base URL is wrong. Retries cannot
    /// succeed until the operator acts.
    #[must_use]
    pub fn is_model_unknown_to_vendor(&self) -> bool {
        let Self::VendorUnavailable(cause) = self else {
            return false;
        };
        let answered = cause.downcast_ref::<VendorAnswered>();
        answered.is_some_and(|answered| answered.status == StatusCode::NOT_FOUND)
    }
}

/// Error code of the Chat Completions and Responses formats for a request that exceeds the model's context window. On
/// this code, clients drop or summarise the beginning of the conversation and send the request again.
#[cfg(any(feature = "passthrough", feature = "respond", feature = "upstream"))]
pub(crate) const TOO_LONG: &str = "context_length_exceeded";

/// An error of your own service or layer that defines its response. [`Error::custom`] makes an [`Error`] of it.
///
/// The error's [`std::fmt::Display`] and its source are for the log; callers get only [`text`](Self::text).
pub trait CustomError: std::error::Error + Send + Sync + 'static {
    /// Returns the HTTP status of the response, a 4xx or a 5xx.
    fn status(&self) -> StatusCode;

    /// Returns the class of the error, such as `not_found_error`. The default response body has it in `error.type`.
    fn kind(&self) -> &'static str;

    /// Returns a stable code for programs, which the default response body has in `error.code`. By default, the code is
    /// empty.
    fn code(&self) -> &'static str {
        ""
    }

    /// Returns the text for people, in `language` and without secrets.
    fn text(&self, language: Language) -> String;

    /// Returns how long the client should wait before a retry. The default is `None`: a 4xx response then forbids
    /// retries, and after a 5xx the client decides.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

impl std::error::Error for Box<dyn CustomError> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        (**self).source()
    }
}

/// The language of the texts for callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "model-calls",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum Language {
    /// The texts are in Russian, which is the default.
    #[default]
    Ru,
    /// The texts are in English.
    En,
}

/// A rate limit, by the name that a refusal shows to the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// A limit of requests that is not a key's limit, such as a limit per client address.
    #[default]
    Requests,
    /// The limit of requests per second, per key.
    KeyRequestsPerSecond,
    /// The limit of requests per minute, per key.
    KeyRequestsPerMinute,
    /// The limit of tokens per minute, per key.
    KeyTokensPerMinute,
}

/// The cause of an [`Error::VendorUnavailable`] if the vendor answered with an error status.
#[derive(Debug, thiserror::Error)]
#[error("the vendor answered {status}: {text}")]
pub struct VendorAnswered {
    /// The HTTP status that the vendor returned.
    pub status: StatusCode,
    /// The vendor's message, without secrets.
    pub text: String,
    /// The wait that the vendor has requested, if any.
    pub retry_after: Option<Duration>,
}

/// The cause of an [`Error::VendorUnavailable`] if no connection to the vendor was made, so that nothing was sent.
/// Contains the reason as text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct VendorUnreached(pub String);

/// A reason for which a field of a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The body is not JSON. Contains the error's position, for example `1:14` (line and column), or a message.
    #[error("not JSON, {0}")]
    NotJson(String),
    /// The field is required, but is missing.
    #[error("missing")]
    Missing,
    /// The header is required, but is missing.
    #[error("the header is missing")]
    HeaderMissing,
    /// The idempotency key is invalid: it must be one header of 1 to 255 visible ASCII characters.
    #[error("the value is not 1 to 255 visible ASCII characters")]
    NotAnIdempotencyKey,
    /// The value is not of the named type.
    #[error("the value is not of type {0}")]
    WrongType(&'static str),
    /// The value is not one of the values that this text lists.
    #[error("the value is not one of {0}")]
    NotOneOf(&'static str),
    /// The number is below this minimum.
    #[error("below {0}")]
    BelowMin(u64),
    /// The number, or the count of elements, is above this maximum.
    #[error("above {0}")]
    AboveMax(u64),
    /// The field or header occurs twice.
    #[error("it occurs twice")]
    Duplicate,
    /// The value is nested deeper than this many levels.
    #[error("nested deeper than {0} levels")]
    TooDeep(usize),
    /// The value must not be empty.
    #[error("empty")]
    Empty,
    /// The conversation has instructions but no message, which the model's vendor does not accept.
    #[error("no message in the conversation has content")]
    NothingSaid,
    /// The value is not a positive amount of rubles in whole kopecks.
    #[error("not an amount of rubles above 0 in whole kopecks")]
    NotKopecks,
    /// The value is less than that of the named field.
    #[error("the value is less than that of {0}")]
    LessThan(&'static str),
    /// The value contradicts the named field.
    #[error("contradicts {0}")]
    Contradicts(&'static str),
    /// The value is not a host, optionally with a port.
    #[error("not a host")]
    NotAHost,
    /// The field requests something that this gateway cannot count or forward.
    #[error("unsupported")]
    Unsupported,
    /// The field refers to a conversation that the vendor stores; the client must send the conversation itself.
    #[error("refers to a conversation that the vendor stores")]
    ThreadUnsupported,
    /// The field refers to stored state, and nothing is stored between calls.
    #[error("the gateway stores no state between calls")]
    StateUnsupported,
    /// The field requests that the response be stored, which this gateway does not do.
    #[error("the gateway does not store responses")]
    StoreUnsupported,
    /// The field refers to a part of the conversation that is stored elsewhere.
    #[error("the gateway does not store items")]
    ReferenceUnsupported,
    /// The field requests a tool that the vendor runs and that has no price.
    #[error("the vendor runs this tool, and the tool has no price")]
    ToolUnsupported,
    /// The field requests a web search that the vendor runs and that has no price.
    #[error("the vendor runs this tool, and the tool has no price")]
    SearchUnsupported,
    /// The size of the input cannot be determined before the call, so no hold can cover its cost.
    #[error("the size of this input is unknown before the call")]
    SizeUnseen,
    /// The field has no equivalent in the format of the model's vendor.
    #[error("the vendor's format has no equivalent")]
    NotTranslated,
    /// The field requests something that has no price for this model.
    #[error("the model has no price for this")]
    Unpriced,
    /// The model is of this kind, which is called at other paths than the request's: see [`ModelKind::surfaces`].
    #[cfg(feature = "model-calls")]
    #[error("the model can only be called at {}", .0.surfaces().join(", "))]
    ModelOfKind(ModelKind),
    /// The request's cache marks have different lifetimes, but a price is valid for only one lifetime.
    #[error("cache marks have different lifetimes")]
    MixedLifetimes,
    /// The input may have more tokens than the largest input for which the model has a price.
    #[error("the input may have {tokens} tokens, but the model has a price only up to {max}")]
    InputUnpriced {
        /// The upper bound of the input tokens that the hold assumes.
        tokens: u64,
        /// The largest number of input tokens for which the model has a price.
        max: u64,
    },
}

//! Every reason for which a request is refused or fails, as one flat enum.
//!
//! Only the `respond` layer turns an [`Error`] into an HTTP answer. [`std::fmt::Display`] gives the English message for
//! the log, with the cause in `source`; `respond` writes the message for the caller.

use std::{any::Any, borrow::Cow, fmt, net::IpAddr, time::Duration};

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
    /// 405: the path exists, but takes other methods.
    #[error("method not allowed, only {allow}")]
    MethodNotAllowed {
        /// The value of the `allow` header: the methods that the path takes.
        allow: &'static str,
    },
    /// 414: the request's URI is too long.
    #[error("request address longer than {bytes_max} bytes")]
    UriTooLong {
        /// The largest allowed length, in bytes.
        bytes_max: usize,
    },
    /// 431: the request has too many headers, or they are too large.
    #[error("more than {headers_max} headers or {bytes_max} bytes of them")]
    HeadTooLarge {
        /// The largest number of header lines.
        headers_max: usize,
        /// The maximum size of names and values together, in bytes.
        bytes_max: usize,
    },
    /// 400: the request violates its format.
    #[error("invalid request: {field}: {problem}")]
    Invalid {
        /// The path of the field, like `messages[2].role`; empty for the whole body.
        field: Cow<'static, str>,
        /// The mistake in the named field.
        problem: Problem,
    },
    /// 408: the body arrived too slowly.
    #[error("request body too slow")]
    BodyTooSlow,
    /// 413: the body is too large.
    #[error("request body larger than {bytes_max} bytes")]
    BodyTooLarge {
        /// The largest allowed size, in bytes.
        bytes_max: u64,
    },
    /// 415: the content type is not JSON.
    #[error("content-type is not application/json")]
    ContentType,
    /// 415: the content encoding is neither `identity` nor `gzip`.
    #[error("content-encoding is neither identity nor gzip")]
    ContentEncoding,
    /// The client's body broke off: the client has disconnected, so nobody reads this error's answer.
    #[error("request body incomplete")]
    BodyBroken(#[source] BoxError),

    /// 401: the request has no key.
    #[error("no key")]
    KeyMissing,
    /// 401: the credential is not a key of this gateway, by its form or its checksum.
    #[error("malformed key")]
    KeyMalformed,
    /// 401: `authorization` and `x-api-key` have different keys.
    #[error("two different keys")]
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
    #[error("key ceiling used up: {0:?}")]
    CeilingUsedUp(Ceiling),
    /// 401: the account has no money left.
    #[error("account empty")]
    AccountEmpty,
    /// 401: the account is suspended.
    #[error("account suspended")]
    AccountSuspended,

    /// 403: the hold that the call needs is larger than the free money.
    #[error("hold of {needs} does not fit: {free} free, {held} held")]
    DoesNotFit {
        /// The highest amount that the call can cost.
        needs: MicroRub,
        /// The money that is free: not held by other calls.
        free: MicroRub,
        /// The money that the key's running calls hold.
        held: MicroRub,
        /// The spending ceiling of the key or of its group that is too low; `None` if the account's balance is too low.
        ceiling: Option<Ceiling>,
        /// Whether the hold includes output tokens. If so, the caller can make the call fit by a lower output ceiling.
        has_output: bool,
    },
    /// 429: the key already has its maximum number of calls open.
    #[error("the key has {most} open calls, which is its maximum")]
    TooManyCalls {
        /// The largest number of open calls of the key.
        most: u32,
    },
    /// 403: the key may not call this model.
    #[error("model {model:?} not allowed for this key")]
    ModelNotAllowed {
        /// The catalog name.
        model: String,
    },
    /// 403: an owner key manages keys and cannot call models.
    #[error("an owner key cannot call models")]
    OwnerKey,
    /// 403: the key may not be used from this address.
    #[error("address not allowed for this key")]
    AddressNotAllowed {
        /// The client's address; `None` if unknown.
        address: Option<IpAddr>,
    },

    /// 409: a call with this idempotency key is running on another node.
    #[error("idempotency key in use, wait {retry_after:?}")]
    IdempotencyKeyInUse {
        /// The time after which a retry may succeed.
        retry_after: Duration,
    },
    /// 409: a call with this idempotency key was charged, or may still be, but its answer is not stored.
    #[error("the answer for this idempotency key is gone")]
    IdempotentAnswerGone,
    /// 422: the idempotency key was already used for a different request.
    #[error("idempotency key used for another request")]
    IdempotencyKeyReused,

    /// 429: too many requests from this address or key, or too many tokens used by the key.
    #[error("too many requests ({limit:?}), wait {retry_after:?}")]
    TooManyRequests {
        /// The rate limit that was reached.
        limit: Limit,
        /// The time after which the next request is allowed.
        retry_after: Duration,
    },
    /// 429: the vendor's rate limit was reached.
    #[error("vendor limit, wait {retry_after:?}")]
    VendorLimit {
        /// The wait that the vendor has requested.
        retry_after: Duration,
    },

    /// 503 without `retry-after`: the catalog has no such model.
    #[error("no such model {model:?}")]
    ModelUnknown {
        /// The requested name.
        model: String,
        /// The closest name in the catalog, if any is close.
        similar: Option<String>,
    },
    /// 503: the model has no price at present.
    #[error("no price at present")]
    PriceUnavailable,
    /// 503: the ledger cannot be reached, so no money can be held.
    #[error("ledger out of reach")]
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
    /// 503: every route to the model is temporarily not used, so no vendor received the call.
    #[error("no route is open, wait {retry_after:?}")]
    RoutesOut {
        /// The time after which the gateway tries the first of these routes again.
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
    /// 502: the vendor's answer is malformed.
    #[error("vendor answer broken")]
    VendorBroken(#[source] BoxError),
    /// 502: the vendor's answer is longer than the gateway buffers. The caller's request can cause that, so the call is
    /// charged and not retried.
    #[error("answer too large")]
    AnswerTooLong(#[source] BoxError),
    /// 504: the vendor did not answer in time.
    #[error("vendor too slow: no {awaited} in time")]
    VendorTimeout {
        /// The stage that timed out: `connection`, `first byte` or `next bytes`.
        awaited: &'static str,
    },
    /// 500: an internal error.
    #[error("internal")]
    Internal(#[source] BoxError),
    /// An error of your own service or layer, with its answer: see [`Error::custom`].
    #[error(transparent)]
    Custom(Box<dyn CustomError>),
}

impl Error {
    /// Converts the error of the service or body below a layer: an [`Error`], boxed or not, is returned unchanged; any
    /// other error becomes the cause of an [`Error::Internal`].
    ///
    /// Every layer calls this on errors of the service that it wraps, so that service may have any error type.
    pub fn from_below<E: Into<BoxError> + 'static>(error: E) -> Self {
        // Checks by type first: this needs no box, and if the type is `Self`, the compiler removes the check.
        let mut error = Some(error);
        if let Some(ours) = (&mut error as &mut dyn Any).downcast_mut::<Option<Self>>()
            && let Some(ours) = ours.take()
        {
            return ours;
        }
        match error.map(|error| error.into().downcast::<Self>()) {
            Some(Ok(ours)) => *ours,
            Some(Err(other)) => Self::Internal(other),
            None => unreachable!("taken only if it was returned"),
        }
    }

    /// Creates an error for which no variant exists. `error` defines its status, code and text.
    #[must_use]
    pub fn custom(error: impl CustomError) -> Self {
        Self::Custom(Box::new(error))
    }

    /// Creates a 400 error that names a field of the request and what is wrong with it.
    #[must_use]
    pub fn invalid(field: impl Into<Cow<'static, str>>, problem: Problem) -> Self {
        Self::Invalid {
            field: field.into(),
            problem,
        }
    }

    /// Returns whether the vendor, and not the request or this gateway, caused the error. Includes a vendor's rate
    /// limit and its refusal of our key, but not its refusal of the request.
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

/// Error code for a request with more tokens than its model reads, in the chat and responses formats. If an error has
/// this code, clients drop or summarise the beginning of the conversation and send the request again.
#[cfg(any(feature = "passthrough", feature = "respond", feature = "upstream"))]
pub(crate) const TOO_LONG: &str = "context_length_exceeded";

/// An error of your own service or layer that defines its answer. [`Error::custom`] makes an [`Error`] of it.
///
/// The error's [`std::fmt::Display`] and its source are for the log; callers get only [`text`](Self::text).
pub trait CustomError: std::error::Error + Send + Sync + 'static {
    /// The status of the answer, a 4xx or a 5xx.
    fn status(&self) -> StatusCode;

    /// Returns the class of the error, such as `not_found_error`: `error.type` of the usual body.
    fn kind(&self) -> &'static str;

    /// Returns a stable code for programs: `error.code` of the usual body. Empty by default.
    fn code(&self) -> &'static str {
        ""
    }

    /// Returns the text for people, in their language, without secrets.
    fn text(&self, language: Language) -> String;

    /// Returns how long the client should wait before a retry. The default is `None`: then an answer with a 4xx forbids
    /// a retry, and after a 5xx the client decides.
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
    /// Requests, counted for whatever the quota applies to, such as the client's address.
    #[default]
    Requests,
    /// The limit of requests per second, per key.
    KeyRequestsPerSecond,
    /// The limit of requests per minute, per key.
    KeyRequestsPerMinute,
    /// The limit of tokens per minute, per key.
    KeyTokensPerMinute,
}

/// A vendor answered with an error status: the cause of an [`Error::VendorUnavailable`].
#[derive(Debug, thiserror::Error)]
#[error("answered {status}: {text}")]
pub struct VendorAnswered {
    /// The HTTP status that the vendor returned.
    pub status: StatusCode,
    /// The vendor's message, without secrets.
    pub text: String,
    /// The wait that the vendor has requested.
    pub retry_after: Option<Duration>,
}

/// No connection to the vendor was made, so nothing was sent: the cause of an [`Error::VendorUnavailable`]. Contains
/// the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct VendorUnreached(pub String);

/// A reason for which a field of a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The body is not JSON. Contains the parser's message.
    NotJson(String),
    /// The field is required, but is missing.
    Missing,
    /// The header is required, but is missing.
    HeaderMissing,
    /// Not an idempotency key, which is one header of 1 to 255 visible ASCII characters.
    NotAnIdempotencyKey,
    /// The value is not of the named type.
    WrongType(&'static str),
    /// The value is not one of the values named here.
    NotOneOf(&'static str),
    /// The number is below this minimum.
    BelowMin(u64),
    /// The number, or the count of elements, is above this maximum.
    AboveMax(u64),
    /// The field occurs twice.
    Duplicate,
    /// The value is nested deeper than this many levels.
    TooDeep(usize),
    /// The value must not be empty.
    Empty,
    /// The conversation has instructions but no message, which the model's vendor does not accept.
    NothingSaid,
    /// Not a positive amount of rubles in whole kopecks.
    NotKopecks,
    /// The value is less than that of the named field.
    LessThan(&'static str),
    /// The value contradicts the named field.
    Contradicts(&'static str),
    /// The value is not a host name, or the port after the host is missing.
    NotAHost,
    /// The field requests something that this gateway cannot count or forward.
    Unsupported,
    /// The field refers to a conversation that the vendor stores; the client must send the conversation itself.
    ThreadUnsupported,
    /// The field refers to stored state, and nothing is stored between calls.
    StateUnsupported,
    /// The field requests that the answer is stored.
    StoreUnsupported,
    /// The field refers to a part of the conversation that is stored elsewhere.
    ReferenceUnsupported,
    /// The field requests a tool that the vendor runs and that has no price.
    ToolUnsupported,
    /// The field requests a web search that the vendor runs and that has no price.
    SearchUnsupported,
    /// The size of the input cannot be determined before the call, so no hold can cover its cost.
    SizeUnseen,
    /// The field has no equivalent in the format of the model's vendor.
    NotTranslated,
    /// The field requests something that has no price for this model.
    Unpriced,
    /// The model is of this kind and is called at other paths: see [`ModelKind::surfaces`].
    #[cfg(feature = "model-calls")]
    ModelOfKind(ModelKind),
    /// Fields of the request name different lifetimes in the vendor's cache; one price covers only one lifetime.
    MixedLifetimes,
    /// The input may have more tokens than the model's price covers.
    InputUnpriced {
        /// The number of input tokens, as the hold counts them: an upper bound.
        tokens: u64,
        /// The largest number of input tokens that the model's price covers.
        max: u64,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson(why) => write!(f, "not JSON, {why}"),
            Self::Missing => f.write_str("missing"),
            Self::HeaderMissing => f.write_str("a header that is missing"),
            Self::NotAnIdempotencyKey => f.write_str("not 1 to 255 visible ASCII characters"),
            Self::WrongType(wanted) => write!(f, "not of type {wanted}"),
            Self::NotOneOf(wanted) => write!(f, "not one of {wanted}"),
            Self::BelowMin(min) => write!(f, "below {min}"),
            Self::AboveMax(max) => write!(f, "above {max}"),
            Self::Duplicate => f.write_str("there twice"),
            Self::TooDeep(levels) => write!(f, "deeper than {levels} levels"),
            Self::Empty => f.write_str("empty"),
            Self::NothingSaid => f.write_str("no message has content"),
            Self::NotKopecks => f.write_str("not rubles above 0 in whole kopecks"),
            Self::LessThan(other) => write!(f, "less than {other}"),
            Self::Contradicts(other) => write!(f, "contradicts {other}"),
            Self::NotAHost => f.write_str("not a host"),
            Self::Unsupported => f.write_str("unsupported"),
            Self::ThreadUnsupported => f.write_str("a conversation that the vendor stores"),
            Self::StateUnsupported => f.write_str("nothing is kept between calls"),
            Self::StoreUnsupported => f.write_str("answers are not kept"),
            Self::ReferenceUnsupported => f.write_str("items are not kept"),
            Self::ToolUnsupported | Self::SearchUnsupported => {
                f.write_str("a tool that the vendor runs, without a price")
            }
            Self::SizeUnseen => f.write_str("of a size that cannot be determined"),
            Self::NotTranslated => f.write_str("not in the vendor's format"),
            Self::Unpriced => f.write_str("no price for it"),
            #[cfg(feature = "model-calls")]
            Self::ModelOfKind(kind) => {
                write!(f, "only callable at {}", kind.surfaces().join(", "))
            }
            Self::MixedLifetimes => f.write_str("several cache lifetimes"),
            Self::InputUnpriced { tokens, max } => {
                write!(f, "up to {tokens} tokens of input, priced up to {max}")
            }
        }
    }
}

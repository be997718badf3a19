//! Every way a request can be refused, in one flat enum named by what was refused.
//!
//! The `respond` layer alone turns an [`Error`] into HTTP. [`std::fmt::Display`] is the message for
//! the log (English, with the cause behind `source`); the message for the caller is `respond`'s.

use std::{borrow::Cow, fmt, net::IpAddr, time::Duration};

use http::StatusCode;

pub use tollgate_ledger::BoxError;

use crate::{ceiling::Ceiling, model::ModelKind, money::MicroRub};

/// Why a call was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// 404: no such path.
    #[error("no such path")]
    PathUnknown,
    /// 404: no call of this key has a receipt under that number.
    #[error("no such receipt")]
    ReceiptUnknown,
    /// 404: no model of that name is listed for this key.
    #[error("model {model:?} not listed for this key")]
    ModelNotListed {
        /// What was asked for.
        model: String,
    },
    /// 404: there is no ready-made set-up for a client of that name.
    #[error("no set-up for client {client:?}")]
    ClientUnknown {
        /// What was asked for.
        client: String,
        /// The names that there are, separated by commas.
        known: String,
    },
    /// 405: the path takes other methods.
    #[error("method not allowed, only {allow}")]
    MethodNotAllowed {
        /// The `allow` header.
        allow: &'static str,
    },
    /// 414: the request's address is too long.
    #[error("request address longer than {bytes_max} bytes")]
    UriTooLong {
        /// The limit.
        bytes_max: usize,
    },
    /// 431: there are too many headers, or they are too large.
    #[error("more than {headers_max} headers or {bytes_max} bytes of them")]
    HeadTooLarge {
        /// Most lines.
        headers_max: usize,
        /// Most bytes of names and values.
        bytes_max: usize,
    },
    /// 400: the request is not what its format asks for.
    #[error("invalid request: {field}: {problem}")]
    Invalid {
        /// Path of the field, like `messages[2].role`; empty for the body as a whole.
        field: Cow<'static, str>,
        /// What is wrong with it.
        problem: Problem,
    },
    /// 408: the body came too slowly.
    #[error("request body too slow")]
    BodyTooSlow,
    /// 413: the body is too large.
    #[error("request body larger than {bytes_max} bytes")]
    BodyTooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// 415: the content-type is not JSON.
    #[error("content-type is not application/json")]
    ContentType,
    /// 415: the content-encoding is not identity.
    #[error("content-encoding is not identity")]
    ContentEncoding,
    /// The client's body broke off; nobody will read the answer.
    #[error("request body broke off")]
    BodyBroken(#[source] BoxError),

    /// 401: no key was shown.
    #[error("no key")]
    KeyMissing,
    /// 401: what was shown is no key of ours, by form or checksum.
    #[error("malformed key")]
    KeyMalformed,
    /// 401: `authorization` and `x-api-key` differ.
    #[error("two different keys")]
    KeyConflict,
    /// 401: no such key.
    #[error("unknown key")]
    KeyUnknown,
    /// 401: the key is disabled or deleted.
    #[error("key disabled or deleted")]
    KeyDisabled,
    /// 401: the key is past its time.
    #[error("key expired")]
    KeyExpired,
    /// 401: a ceiling of the key, or of its group, is used up.
    #[error("key ceiling used up: {0:?}")]
    CeilingUsedUp(Ceiling),
    /// 401: the account has no funds.
    #[error("account empty")]
    AccountEmpty,
    /// 401: the account is suspended.
    #[error("account suspended")]
    AccountSuspended,

    /// 403: the hold does not fit in what is left.
    #[error("hold of {needs} does not fit: {free} free, {held} held")]
    DoesNotFit {
        /// What the call could cost.
        needs: MicroRub,
        /// What is left beside other calls' holds.
        free: MicroRub,
        /// What the key's running calls hold.
        held: MicroRub,
        /// The ceiling that leaves no more, of the key or of its group; `None` where the account's balance does.
        ceiling: Option<Ceiling>,
        /// A part of it is output, whose ceiling the caller may lower.
        has_output: bool,
    },
    /// 429: as many calls of the key are open as may be at once.
    #[error("{most} calls of the key are open, and no more may be")]
    TooManyCalls {
        /// How many that are.
        most: u32,
    },
    /// 403: the key may not call this model.
    #[error("model {model:?} not allowed for this key")]
    ModelNotAllowed {
        /// The catalog name.
        model: String,
    },
    /// 403: an owner key calls no models.
    #[error("an owner key calls no models")]
    OwnerKey,
    /// 403: only an owner key looks after keys.
    #[error("only an owner key looks after keys")]
    OwnerKeyNeeded,
    /// 404: the account has no such key that its owner could change.
    #[error("no such key of this account")]
    OwnKeyUnknown,
    /// 403: the key may not be used from this address.
    #[error("address not allowed for this key")]
    AddressNotAllowed {
        /// Which; `None` where nobody knows it.
        address: Option<IpAddr>,
    },

    /// 409: a call with this idempotency key runs on another node.
    #[error("idempotency key in use, wait {retry_after:?}")]
    IdempotencyKeyInUse {
        /// When to ask again.
        retry_after: Duration,
    },
    /// 409: a call with this idempotency key was charged, or may yet be, and there is no answer to repeat.
    #[error("the answer for this idempotency key is gone")]
    IdempotentAnswerGone,
    /// 422: the idempotency key was used for another request.
    #[error("idempotency key used for another request")]
    IdempotencyKeyReused,

    /// 429: too many requests from this address or key, or too much used by it.
    #[error("too many requests ({limit:?}), wait {retry_after:?}")]
    TooManyRequests {
        /// The limit that was met.
        limit: Limit,
        /// When the next one is let in.
        retry_after: Duration,
    },
    /// 429: the vendor is at its limit.
    #[error("vendor limit, wait {retry_after:?}")]
    VendorLimit {
        /// What the vendor asks for.
        retry_after: Duration,
    },

    /// 503 without retry: no such model in the catalog.
    #[error("no such model {model:?}")]
    ModelUnknown {
        /// What was asked for.
        model: String,
        /// What was likely meant.
        similar: Option<String>,
    },
    /// 503: there is no price now.
    #[error("no price for now")]
    PriceUnavailable,
    /// 503: the ledger is out of reach, so nothing can be held.
    #[error("ledger out of reach")]
    LedgerUnavailable(#[source] BoxError),
    /// 503: as many calls run as may.
    #[error("overloaded")]
    Overloaded,
    /// 503: this node is going down.
    #[error("draining")]
    Draining,
    /// 503: no vendor could answer. Where one answered with a status, the cause is a [`VendorAnswered`]; where
    /// no connection came about, a [`VendorUnreached`].
    #[error("vendor unavailable")]
    VendorUnavailable(#[source] BoxError),
    /// 503: every route to the model is out for now, so nobody was asked.
    #[error("no route is open, wait {retry_after:?}")]
    RoutesOut {
        /// When the first of them is tried again.
        retry_after: Duration,
    },
    /// 503: the vendor refused *our* key or account: an alert for the operator.
    #[error("vendor refused our key with {status}")]
    VendorKeyRefused {
        /// What the vendor answered.
        status: StatusCode,
    },

    /// 400, 413, 422: the vendor refused the caller's request; the text is scrubbed.
    #[error("vendor refused the request with {status}: {text}")]
    VendorRefused {
        /// What the vendor answered.
        status: StatusCode,
        /// Why, in the vendor's words, scrubbed of keys, addresses and organisations.
        text: String,
        /// The request has more tokens than the model reads.
        too_long: bool,
    },
    /// 502: the vendor answered something broken.
    #[error("vendor answer broken")]
    VendorBroken(#[source] BoxError),
    /// 502: there is more of the vendor's answer than is kept. Its caller can have brought that about, so it is charged, and
    /// nobody is asked for it again.
    #[error("too much of an answer")]
    AnswerTooLong(#[source] BoxError),
    /// 504: the vendor did not answer in time.
    #[error("vendor too slow: no {awaited} in time")]
    VendorTimeout {
        /// What did not come: `connection`, `first byte`, `next bytes`.
        awaited: &'static str,
    },
    /// 500: our own fault.
    #[error("internal")]
    Internal(#[source] BoxError),
}

impl Error {
    /// A 400 that names a field.
    #[must_use]
    pub fn invalid(field: impl Into<Cow<'static, str>>, problem: Problem) -> Self {
        Self::Invalid {
            field: field.into(),
            problem,
        }
    }

    /// Whether the vendor owes the answer, and not the request or ourselves: a limit and a refusal of our key too, a
    /// refusal of the request not.
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

    /// Whether a vendor answered 404: it has no such model, or its address is another. Nothing gets better until
    /// the operator acts.
    #[must_use]
    pub fn is_model_unknown_to_vendor(&self) -> bool {
        let Self::VendorUnavailable(cause) = self else {
            return false;
        };
        let answered = cause.downcast_ref::<VendorAnswered>();
        answered.is_some_and(|answered| answered.status == StatusCode::NOT_FOUND)
    }
}

/// A limit of what may be done over time. Callers are told which one they have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Of requests, whoever makes them.
    #[default]
    Requests,
    /// Of a key's requests in a second.
    KeyRequestsPerSecond,
    /// Of a key's requests in a minute.
    KeyRequestsPerMinute,
    /// Of the tokens that a key uses in a minute.
    KeyTokensPerMinute,
}

/// A vendor's status that is no answer: the cause of an [`Error::VendorUnavailable`].
#[derive(Debug, thiserror::Error)]
#[error("answered {status}: {text}")]
pub struct VendorAnswered {
    /// What the vendor answered.
    pub status: StatusCode,
    /// Its words, scrubbed.
    pub text: String,
    /// The wait that it asks for.
    pub retry_after: Option<Duration>,
}

/// No connection to the vendor came about, so that it was sent nothing: the cause of an
/// [`Error::VendorUnavailable`]. Its text says why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct VendorUnreached(pub String);

/// What is wrong with a field of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The body is not JSON; the parser's words.
    NotJson(String),
    /// It is required.
    Missing,
    /// It is a header, and required.
    HeaderMissing,
    /// It is no idempotency key: 1 to 255 visible ASCII characters, once.
    NotAnIdempotencyKey,
    /// It has another type than the one named.
    WrongType(&'static str),
    /// It is not one of the values named.
    NotOneOf(&'static str),
    /// It is a number below the least one allowed.
    BelowMin(u64),
    /// There are more than so many, or the number is larger.
    AboveMax(u64),
    /// It stands there twice.
    Duplicate,
    /// It is nested deeper than so many levels.
    TooDeep(usize),
    /// It is empty where it may not be.
    Empty,
    /// A conversation in which nobody says anything: instructions alone are none to the model's vendor.
    NothingSaid,
    /// It is no amount of rubles above 0, in whole kopecks.
    NotKopecks,
    /// It is less than the field named.
    LessThan(&'static str),
    /// It contradicts the field named.
    Contradicts(&'static str),
    /// It is no host, or no port stands behind it.
    NotAHost,
    /// It asks for something that this gateway cannot count or carry.
    Unsupported,
    /// A conversation kept by the vendor: the client must send all of it.
    ThreadUnsupported,
    /// It points at something that was kept, and nothing is kept between calls.
    StateUnsupported,
    /// The answer is to be kept.
    StoreUnsupported,
    /// A part of the conversation that is kept elsewhere.
    ReferenceUnsupported,
    /// A tool that the vendor runs, and that has no price.
    ToolUnsupported,
    /// The same, a search of the web.
    SearchUnsupported,
    /// Input whose size nobody sees beforehand.
    SizeUnseen,
    /// The format of the model's vendor has nothing like it.
    NotTranslated,
    /// What it asks for has no price at this model.
    Unpriced,
    /// It names a model of this kind, which is asked elsewhere: see [`ModelKind::surfaces`].
    ModelOfKind(ModelKind),
    /// Other fields of the request ask the vendor's cache for another lifetime; one price covers one of them.
    MixedLifetimes,
    /// The model's price ends at fewer tokens of input than there may be.
    InputUnpriced {
        /// Most tokens of input that it may be, as the hold counts them.
        tokens: u64,
        /// Most tokens that have a price.
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
            Self::NothingSaid => f.write_str("without a message that says something"),
            Self::NotKopecks => f.write_str("not rubles above 0 in whole kopecks"),
            Self::LessThan(other) => write!(f, "less than {other}"),
            Self::Contradicts(other) => write!(f, "contradicts {other}"),
            Self::NotAHost => f.write_str("not a host"),
            Self::Unsupported => f.write_str("unsupported"),
            Self::ThreadUnsupported => f.write_str("a conversation kept by the vendor"),
            Self::StateUnsupported => f.write_str("nothing is kept between calls"),
            Self::StoreUnsupported => f.write_str("answers are not kept"),
            Self::ReferenceUnsupported => f.write_str("items are not kept"),
            Self::ToolUnsupported | Self::SearchUnsupported => {
                f.write_str("a tool of the vendor's without a price")
            }
            Self::SizeUnseen => f.write_str("of a size that nobody sees"),
            Self::NotTranslated => f.write_str("not in the vendor's format"),
            Self::Unpriced => f.write_str("no price for it"),
            Self::ModelOfKind(kind) => {
                write!(f, "asked at {} alone", kind.surfaces().join(", "))
            }
            Self::MixedLifetimes => f.write_str("several lifetimes in the cache"),
            Self::InputUnpriced { tokens, max } => {
                write!(f, "up to {tokens} tokens of input, priced up to {max}")
            }
        }
    }
}

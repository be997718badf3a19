//! Classifies an error by its consequences for the route and for the call, and selects which of several errors the
//! caller gets.

use std::{cmp::Ordering, time::Duration};

use http::StatusCode;

use super::breaker::Trouble;
use crate::error::{Error, VendorAnswered, VendorUnreached};

/// The consequence of a failed attempt whose response has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The request itself was rejected, as every vendor would reject it. The route counts as healthy.
    Request,
    /// The format of the route's vendor cannot express this request, so the vendor was not called. Another route's
    /// format may be able to express it.
    Unfit,
    /// The vendor failed. The duration is the wait that the vendor requested, if any.
    Failed(Trouble, Option<Duration>),
    /// The vendor does not have the model, or the configured URL of the vendor is wrong.
    ModelUnknown,
    /// The vendor's rate limit is reached; the vendor accepts calls again after this time.
    Limited(Duration),
    /// The vendor rejected the operator's API key or account.
    KeyRefused(StatusCode),
    /// The vendor forbade the content of this request, or this model. Other calls may still use the API key.
    Forbidden,
    /// The gateway itself has a fault that would occur on any route.
    Own,
}

impl Class {
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::VendorRefused { .. } | Error::AnswerTooLong(_) => Self::Request,
            Error::Invalid { .. } => Self::Unfit,
            Error::VendorLimit { retry_after } => Self::Limited(*retry_after),
            Error::VendorKeyRefused {
                status: StatusCode::FORBIDDEN,
            } => Self::Forbidden,
            Error::VendorKeyRefused { status } => Self::KeyRefused(*status),
            error if error.is_model_unknown_to_vendor() => Self::ModelUnknown,
            Error::VendorUnavailable(cause) => match cause.downcast_ref::<VendorAnswered>() {
                Some(answered) if is_requests_own(answered.status) => Self::Request,
                Some(answered) => Self::Failed(Trouble::Answered, answered.retry_after),
                None if cause.is::<VendorUnreached>() => Self::Failed(Trouble::Away, None),
                None => Self::Failed(Trouble::Answered, None),
            },
            Error::VendorTimeout {
                awaited: "connection",
            } => Self::Failed(Trouble::Away, None),
            Error::VendorTimeout { .. } => Self::Failed(Trouble::Silent, None),
            Error::VendorBroken(_) => Self::Failed(Trouble::Answered, None),
            _ => Self::Own,
        }
    }
}

/// Returns the HTTP status that the vendor returned, if the error contains one.
pub(super) fn status_of(error: &Error) -> Option<StatusCode> {
    match error {
        Error::VendorLimit { .. } => Some(StatusCode::TOO_MANY_REQUESTS),
        Error::VendorKeyRefused { status } => Some(*status),
        Error::VendorUnavailable(cause) => {
            let answered = cause.downcast_ref::<VendorAnswered>();
            answered.map(|answered| answered.status)
        }
        _ => None,
    }
}

/// Returns whether every vendor would return this 4xx status. 408 does not count: the gateway has sent the whole
/// request, so the vendor caused the timeout.
fn is_requests_own(status: StatusCode) -> bool {
    status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT
}

/// Returns the more informative of two errors of one call. If they are equally informative, returns the first.
///
/// Errors that state when to retry are preferred. Of two rate limits, the limit that ends sooner is preferred, because
/// the call could be answered then. Next are errors that are likely to pass by themselves. An error about a rejected
/// API key, or about a model that a vendor does not have, does not help a caller. The error of a route whose format
/// cannot express the request is chosen only if no other route failed temporarily.
pub(super) fn more_telling(first: Error, second: Error) -> Error {
    match rank(&second).cmp(&rank(&first)) {
        Ordering::Less => second,
        Ordering::Equal | Ordering::Greater => first,
    }
}

fn rank(error: &Error) -> (u8, Duration) {
    match error {
        Error::VendorLimit { retry_after } => (0, *retry_after),
        error if error.is_model_unknown_to_vendor() => (4, Duration::ZERO),
        Error::VendorUnavailable(_) => (1, Duration::ZERO),
        Error::VendorTimeout { .. } => (2, Duration::ZERO),
        Error::VendorBroken(_) => (3, Duration::ZERO),
        Error::VendorKeyRefused { .. } => (4, Duration::ZERO),
        _ => (5, Duration::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use Trouble::{Answered, Away, Silent};

    use super::*;
    use crate::error::Problem;

    fn answered(status: u16, retry_after: Option<u64>) -> Error {
        Error::VendorUnavailable(Box::new(VendorAnswered {
            status: StatusCode::from_u16(status).unwrap(),
            text: String::new(),
            retry_after: retry_after.map(Duration::from_secs),
        }))
    }

    fn limit(seconds: u64) -> Error {
        Error::VendorLimit {
            retry_after: Duration::from_secs(seconds),
        }
    }

    fn silent() -> Error {
        Error::VendorTimeout {
            awaited: "first byte",
        }
    }

    fn key() -> Error {
        Error::VendorKeyRefused {
            status: StatusCode::PAYMENT_REQUIRED,
        }
    }

    fn unfit() -> Error {
        Error::invalid("tools", Problem::NotTranslated)
    }

    #[test]
    fn each_error_is_classified_for_failover() {
        let refused = Error::VendorRefused {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            text: String::new(),
            too_long: false,
        };
        for (error, class) in [
            (refused, Class::Request),
            (answered(404, Some(7)), Class::ModelUnknown),
            (answered(409, None), Class::Request),
            (answered(408, None), Class::Failed(Answered, None)),
            (answered(500, None), Class::Failed(Answered, None)),
            (
                answered(529, Some(7)),
                Class::Failed(Answered, Some(Duration::from_secs(7))),
            ),
            (
                Error::VendorUnavailable(VendorUnreached("connection refused".into()).into()),
                Class::Failed(Away, None),
            ),
            (
                Error::VendorTimeout {
                    awaited: "connection",
                },
                Class::Failed(Away, None),
            ),
            (
                Error::VendorUnavailable("connection closed before message completed".into()),
                Class::Failed(Answered, None),
            ),
            (
                Error::VendorBroken("html".into()),
                Class::Failed(Answered, None),
            ),
            (silent(), Class::Failed(Silent, None)),
            (limit(3), Class::Limited(Duration::from_secs(3))),
            (key(), Class::KeyRefused(StatusCode::PAYMENT_REQUIRED)),
            (
                Error::VendorKeyRefused {
                    status: StatusCode::FORBIDDEN,
                },
                Class::Forbidden,
            ),
            (unfit(), Class::Unfit),
            (Error::Internal("bug".into()), Class::Own),
        ] {
            assert_eq!(Class::of(&error), class, "{error:?}");
        }
    }

    #[test]
    fn most_informative_error_is_returned_whatever_the_order_of_errors() {
        let down = || answered(500, None);
        let broken = || Error::VendorBroken("html".into());
        let returned = |errors: Vec<Error>| {
            let returned = errors.into_iter().reduce(more_telling).unwrap();
            format!("{returned:?}")
        };
        for (errors, expected) in [
            ((limit(9), limit(2)), limit(2)),
            ((down(), limit(60)), limit(60)),
            ((silent(), down()), down()),
            ((broken(), silent()), silent()),
            ((key(), broken()), broken()),
            ((unfit(), key()), key()),
            ((answered(404, None), broken()), broken()),
        ] {
            let expected = format!("{expected:?}");
            let (one, other) = errors;
            assert_eq!(returned(vec![one, other]), expected);
        }
        for (errors, expected) in [
            ((limit(2), limit(9)), limit(2)),
            ((down(), silent()), down()),
            ((key(), unfit()), key()),
        ] {
            let (one, other) = errors;
            assert_eq!(returned(vec![one, other]), format!("{expected:?}"));
        }
    }
}

//! The error type of Redis calls.

use std::{sync::Arc, time::Duration};

use redis::{RedisError, ServerErrorKind};

use super::{breaker::PROBE_EVERY, is};
use crate::BoxError;

/// The result of a request to Redis.
pub(crate) type Result<T, E = RedisFault> = std::result::Result<T, E>;

/// The reason why a Redis call failed. Unless the error is a reply of the server, the server may have executed the
/// command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields have descriptive names")]
pub enum RedisFault {
    /// The address is not a valid Redis URL; the text is the reason. The URL is left out, because it may contain a
    /// password.
    #[error("invalid Redis URL: {0}")]
    Url(&'static str),
    /// A connection could not be opened, or it broke.
    #[error("Redis at {address} is out of reach")]
    OutOfReach {
        address: Arc<str>,
        #[source]
        cause: BoxError,
    },
    /// The server did not answer before the deadline.
    #[error("Redis at {address} did not answer within {} ms", .limit.as_millis())]
    TooSlow {
        address: Arc<str>,
        /// The time that was allowed for the answer.
        limit: Duration,
    },
    /// The server counts as down after recent failures, so the call was not sent.
    #[error("Redis at {address} is down; it is probed every {} ms", PROBE_EVERY.as_millis())]
    Down { address: Arc<str> },
    /// The server replied with an error.
    #[error("Redis at {address} returned an error")]
    Refused {
        address: Arc<str>,
        #[source]
        cause: BoxError,
    },
    /// The server executed the write, but no replica has acknowledged it. A failover now would lose it.
    #[error(
        "Redis at {address} made the change, but no replica has acknowledged it yet; retry with the same id"
    )]
    NotReplicated { address: Arc<str> },
    /// The server is empty, or contains another data set than the one with which the gateway started.
    #[error(
        "the data set in Redis is not the one that this gateway started with: restore the original data set, or \
         restart the gateway"
    )]
    OtherData,
    /// The server's reply has an unexpected form, or the data was not written by this crate.
    #[error("unexpected reply or data from Redis: {0}")]
    Unexpected(String),
}

impl RedisFault {
    pub(super) fn out_of_reach(address: &Arc<str>, cause: impl Into<BoxError>) -> Self {
        Self::OutOfReach {
            address: Arc::clone(address),
            cause: cause.into(),
        }
    }

    /// Returns whether the server is still loading its data. When the data is loaded, the server answers without any
    /// action of the operator.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        let Self::OutOfReach { cause, .. } = self else {
            return false;
        };
        let error = cause.downcast_ref::<RedisError>();
        error.is_some_and(|error| is(error, ServerErrorKind::BusyLoading))
    }

    /// Returns whether the server refused the command because it is out of memory. Such a command was not executed.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        let Self::Refused { cause, .. } = self else {
            return false;
        };
        let error = cause.downcast_ref::<RedisError>();
        // Before Redis 7, the error of a command in a script is contained only in the text of the script's error.
        error.is_some_and(|error| {
            let in_words = || error.detail().is_some_and(|words| words.contains("-OOM "));
            error.code() == Some("OOM") || in_words()
        })
    }
}

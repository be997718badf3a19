//! The reason why a Redis call failed.

use std::{sync::Arc, time::Duration};

use redis::{RedisError, ServerErrorKind};

use super::{breaker::PROBE_EVERY, is};
use crate::BoxError;

/// The reason why a Redis call failed. Unless the server replied with the error, the command may have been executed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisFault {
    /// The address is not a valid Redis URL, with the reason. The URL is left out, since it may contain a password.
    #[error("not a Redis URL: {0}")]
    Url(&'static str),
    /// A connection could not be made, or it broke.
    #[error("Redis at {address} is out of reach")]
    OutOfReach {
        /// Host and port of the server.
        address: Arc<str>,
        /// The reason why the connection failed.
        #[source]
        cause: BoxError,
    },
    /// The server did not answer in time.
    #[error("Redis at {address} did not answer within {} ms", .limit.as_millis())]
    TooSlow {
        /// Host and port of the server.
        address: Arc<str>,
        /// The deadline that the answer missed.
        limit: Duration,
    },
    /// The server's breaker is open after recent failures, so the call was not sent.
    #[error("Redis at {address} is down; it is probed every {} ms", PROBE_EVERY.as_millis())]
    Down {
        /// Host and port of the server.
        address: Arc<str>,
    },
    /// The server returned an error.
    #[error("Redis at {address} returned an error")]
    Refused {
        /// Host and port of the server.
        address: Arc<str>,
        /// The error that the server returned.
        #[source]
        cause: BoxError,
    },
    /// The write was executed, but no replica has acknowledged it, so that a failover now would lose it.
    #[error(
        "Redis at {address} executed the change, but no replica has it yet; retry with the same id"
    )]
    NotReplicated {
        /// Hosts and ports of the Redis URL.
        address: Arc<str>,
    },
    /// The server is empty, or contains other data than when the gateway started.
    #[error(
        "the data set is not the one that this gateway started with: restore it, or restart the gateway"
    )]
    OtherData,
    /// The server returned something unexpected, or contains data that this crate did not write.
    #[error("unexpected from Redis: {0}")]
    Unexpected(String),
}

impl RedisFault {
    /// Returns whether the server is still loading its data, and will serve without any action of the operator.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        let Self::OutOfReach { cause, .. } = self else {
            return false;
        };
        let error = cause.downcast_ref::<RedisError>();
        error.is_some_and(|error| is(error, ServerErrorKind::BusyLoading))
    }

    /// Returns whether the server refused the command for lack of memory. Such a command was not executed.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        let Self::Refused { cause, .. } = self else {
            return false;
        };
        let error = cause.downcast_ref::<RedisError>();
        // Before Redis 7, the error of a command in a script is only in the text of the script's error.
        error.is_some_and(|error| {
            let in_words = || error.detail().is_some_and(|words| words.contains("-OOM "));
            error.code() == Some("OOM") || in_words()
        })
    }
}

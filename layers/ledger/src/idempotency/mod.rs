//! Claims on idempotency keys: which call runs under an idempotency key, and the stored responses of earlier calls.
//!
//! This store is not part of the books. It may lose its contents; a repeated call then runs as a new call. Only the
//! ledger decides whether an earlier call was charged. The store never receives a caller's text: ids and fingerprints
//! are keyed digests, and the user of the store encrypts responses.
//!
//! Each claim contains a request number as its fencing token. A call that has lost its claim can therefore change
//! nothing.

mod memory;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;

use std::{fmt, future::Future, time::Duration};

pub use self::memory::MemoryAnswers;
#[cfg(feature = "redis")]
pub use self::redis::RedisAnswers;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteAnswers;
use crate::{BoxError, account::AccountId, number::RequestNumber};

/// A keyed digest of an idempotency key or of a request body.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// A claim: it makes a call the only one that runs under its idempotency key.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The account whose limits apply to the claim and the response.
    pub account: AccountId,
    /// Identifies the claim within the account. The caller's API key is part of the digest.
    pub id: Digest,
    /// A digest of the request, to detect a different request under the same idempotency key.
    pub fingerprint: Digest,
    /// The number of the call that makes the claim.
    pub number: RequestNumber,
    /// How long an in-flight call keeps the claim without renewing it.
    pub lease: Duration,
    /// How long the claim, and later the response, is stored.
    pub stored: Duration,
}

/// The result of an attempt to claim an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// This call has the claim and may run. No other call runs under this idempotency key.
    Mine,
    /// Another call has claimed the idempotency key before.
    Earlier(Earlier),
    /// The account has reached its limit of claims.
    Full,
}

/// The call that has claimed the idempotency key before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// The number of the earlier call.
    pub number: RequestNumber,
    /// The digest of the earlier call's request.
    pub fingerprint: Digest,
    /// The state of the earlier call.
    pub stage: Stage,
}

/// The state of a claimed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The call is in flight. Its claim expires after this time, unless it is renewed.
    Running(Duration),
    /// The call has not ended, but its claim was not renewed in time.
    Abandoned,
    /// The call has ended with this response, which is encrypted.
    Answered(Vec<u8>),
    /// The call was charged, but there is no stored response to replay.
    Unanswered,
}

/// How a call ended, as recorded in its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The call has ended with this response, which is encrypted.
    Answered(&'a [u8]),
    /// The call was charged, but there is no response to replay.
    Unanswered,
    /// The call was free, so its claim is deleted and the same request may run again.
    Free,
}

/// The result of storing the outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The outcome was stored.
    Kept,
    /// The response would exceed a limit, so the outcome was stored without it.
    TooMuch,
    /// Another call has the claim now, so nothing was stored.
    NotMine,
}

/// Limits of the stored claims and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The largest number of claims per account.
    pub account_calls_max: u64,
    /// The largest total size of the stored responses per account, in bytes.
    pub account_bytes_max: u64,
    /// The largest total size of all stored responses, in bytes.
    pub bytes_max: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            account_calls_max: 10_000,
            account_bytes_max: 64 << 20,
            bytes_max: 1 << 30,
        }
    }
}

/// Stores claims and responses.
pub trait AnswerStore: Send + Sync + 'static {
    /// Claims an idempotency key in one atomic step. With `from`, takes over the abandoned claim of the call with that
    /// number. A repeated claim with the same number gets the same result.
    ///
    /// # Errors
    /// An error if the store did not answer, or if its answer was lost.
    fn claim(
        &self,
        claim: &Claim,
        from: Option<RequestNumber>,
    ) -> impl Future<Output = Result<Claimed, BoxError>> + Send;

    /// Renews the claim of an in-flight call. Returns whether the call still has the claim.
    ///
    /// # Errors
    /// An error if the store did not answer, or if its answer was lost.
    fn renew(&self, claim: &Claim) -> impl Future<Output = Result<bool, BoxError>> + Send;

    /// Stores the outcome of the call in its claim.
    ///
    /// # Errors
    /// The errors of [`AnswerStore::claim`].
    fn finish(
        &self,
        claim: &Claim,
        outcome: Outcome<'_>,
    ) -> impl Future<Output = Result<Finished, BoxError>> + Send;
}

/// Returns a duration in milliseconds, at most one year, so that every store can represent it.
#[cfg(any(feature = "redis", feature = "sqlite"))]
fn millis(duration: Duration) -> u64 {
    const MAX: u64 = 365 * 24 * 3_600_000;
    u64::try_from(duration.as_millis()).unwrap_or(MAX).min(MAX)
}

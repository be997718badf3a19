//! Claims on calls with an idempotency key, and their answers: which call runs, and how earlier calls were answered.
//!
//! The store of claims is not part of the books: it may lose its contents, and a repeated call then runs as a new call.
//! Only the ledger decides whether an earlier call was charged. A store never gets a caller's text: the id and the
//! fingerprint are keyed digests, and the code that uses the store encrypts the answer.
//!
//! A claim has a request number as its fencing token: a call that has lost its claim cannot change anything.

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

/// A keyed digest of an idempotency key or of a request.
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

/// A claim: a call's attempt to become the only call that runs under its idempotency key.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The account whose limits on claims and stored answers apply.
    pub account: AccountId,
    /// Identifies the claim within the account. The digest includes the caller's API key.
    pub id: Digest,
    /// A digest of the call's request.
    pub fingerprint: Digest,
    /// The number of the call that makes the claim.
    pub number: RequestNumber,
    /// The time for which a running call keeps the claim unless it renews or finishes it.
    pub lease: Duration,
    /// The time for which the claim, and later its answer, is stored.
    pub stored: Duration,
}

/// The result of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// This call has the claim and runs. No other call under this idempotency key runs.
    Mine,
    /// An earlier call has claimed the idempotency key.
    Earlier(Earlier),
    /// The account already has as many claims as it may have.
    Full,
}

/// The call that has claimed the idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// The number of that call.
    pub number: RequestNumber,
    /// The digest of that call's request.
    pub fingerprint: Digest,
    /// The state of that call.
    pub stage: Stage,
}

/// The state of a claimed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The call runs. Its claim expires after this time unless it is renewed.
    Running(Duration),
    /// The call has not ended, and its claim was not renewed in time.
    Abandoned,
    /// The call has ended with this answer, encrypted.
    Answered(Vec<u8>),
    /// The call was charged, but has no answer that could be replayed.
    Unanswered,
}

/// The way in which a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The call ended with this answer, encrypted.
    Answered(&'a [u8]),
    /// The call was charged, but has no answer that could be replayed.
    Unanswered,
    /// The call was free of charge, so the claim is deleted and the same request may run again.
    Free,
}

/// The result of storing an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The outcome is stored.
    Kept,
    /// The answer would exceed a bound, so the outcome is stored without the answer.
    TooMuch,
    /// Another call has the claim, so nothing is stored.
    NotMine,
}

/// Limits on stored claims and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The largest number of claims per account.
    pub account_calls_max: u64,
    /// The largest number of bytes of answers per account.
    pub account_bytes_max: u64,
    /// The largest number of bytes of answers over all accounts.
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

/// Stores claims and answers.
pub trait AnswerStore: Send + Sync + 'static {
    /// Claims a call. With `from`, takes over the abandoned claim of the call with that number. The claim is made
    /// atomically. If it is repeated under the same number, the same result is returned.
    ///
    /// # Errors
    /// An error if the store did not answer, or if its answer was lost.
    fn claim(
        &self,
        claim: &Claim,
        from: Option<RequestNumber>,
    ) -> impl Future<Output = Result<Claimed, BoxError>> + Send;

    /// Renews the claim of a running call. Returns whether the call still has the claim.
    ///
    /// # Errors
    /// An error if the store did not answer, or if its answer was lost.
    fn renew(&self, claim: &Claim) -> impl Future<Output = Result<bool, BoxError>> + Send;

    /// Ends the claim and stores the outcome of the call.
    ///
    /// # Errors
    /// The errors of [`AnswerStore::claim`].
    fn finish(
        &self,
        claim: &Claim,
        outcome: Outcome<'_>,
    ) -> impl Future<Output = Result<Finished, BoxError>> + Send;
}

/// A duration in milliseconds, at most one year, so that every store can represent it.
#[cfg(any(feature = "redis", feature = "sqlite"))]
fn millis(duration: Duration) -> u64 {
    const MAX: u64 = 365 * 24 * 3_600_000;
    u64::try_from(duration.as_millis()).unwrap_or(MAX).min(MAX)
}

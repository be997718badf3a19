//! What is known of calls that carry an idempotency key: who runs them, and how they were answered.
//!
//! No books: what stands here may be lost, and then a call that is sent again is another call. Whether an earlier one was
//! charged is said by the ledger alone. A store never sees a caller's words: the id and the fingerprint are keyed digests,
//! and the answer is sealed by whoever stores it.
//!
//! A claim is made under a request number, which fences it: whoever has it no more changes nothing.

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

/// A keyed digest: of the key that was presented, or of the request.
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

/// The wish to run a call.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Whose bounds it counts in.
    pub account: AccountId,
    /// Of the account's claims, which one: the caller's key is part of it.
    pub id: Digest,
    /// What is asked.
    pub fingerprint: Digest,
    /// Who asks.
    pub number: RequestNumber,
    /// How long it lives unless it is renewed or finished.
    pub lease: Duration,
    /// How long it is known, and its answer.
    pub kept: Duration,
}

/// What became of the wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It runs under this number; nobody else runs it.
    Mine,
    /// Another one was there first.
    Earlier(Earlier),
    /// As many are kept for the account as may be.
    Full,
}

/// The call that came first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Its number.
    pub number: RequestNumber,
    /// What it asked.
    pub fingerprint: Digest,
    /// How far it is.
    pub stage: Stage,
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It runs; somebody says so for so long from now.
    Running(Duration),
    /// It ran, and nobody says any more that it does.
    Abandoned,
    /// It was answered.
    Answered(Vec<u8>),
    /// It was charged, and there is no answer to repeat.
    Unanswered,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// With an answer, sealed.
    Answered(&'a [u8]),
    /// Charged, without an answer that could be repeated.
    Unanswered,
    /// It cost nothing, and may run again.
    Free,
}

/// What became of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It is kept.
    Kept,
    /// It would have been beyond a bound: it is kept without the answer.
    TooMuch,
    /// Somebody else has the claim.
    NotMine,
}

/// What may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Calls of one account.
    pub account_calls_max: u64,
    /// Bytes of answers of one account.
    pub account_bytes_max: u64,
    /// Bytes of answers of all accounts.
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

/// Where answers are kept.
pub trait AnswerStore: Send + Sync + 'static {
    /// Claims a call. With `from`, takes over one that was abandoned under that number. One atomic step; asked again under
    /// the same number, it answers the same.
    ///
    /// # Errors
    /// The store is out of reach, or its answer was lost.
    fn claim(
        &self,
        claim: &Claim,
        from: Option<RequestNumber>,
    ) -> impl Future<Output = Result<Claimed, BoxError>> + Send;

    /// Says that the call still runs. Answers whether it is still the claim's.
    ///
    /// # Errors
    /// As for [`AnswerStore::claim`].
    fn renew(&self, claim: &Claim) -> impl Future<Output = Result<bool, BoxError>> + Send;

    /// Ends the claim.
    ///
    /// # Errors
    /// As for [`AnswerStore::claim`].
    fn finish(
        &self,
        claim: &Claim,
        outcome: Outcome<'_>,
    ) -> impl Future<Output = Result<Finished, BoxError>> + Send;
}

/// Milliseconds of a time that is kept, within what every store can count.
#[cfg(any(feature = "redis", feature = "sqlite"))]
fn millis(duration: Duration) -> u64 {
    const MAX: u64 = 365 * 24 * 3_600_000;
    u64::try_from(duration.as_millis()).unwrap_or(MAX).min(MAX)
}

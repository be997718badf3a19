//! Holds: money that is reserved for a call before it runs, and changed while it runs.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    BoxError,
    account::{AccountId, KeyId},
    ceiling::Ceiling,
    money::MicroRub,
    number::RequestNumber,
};

/// A request to hold money for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// The call's number, which is also the hold's id.
    pub number: RequestNumber,
    /// The account that pays.
    pub account: AccountId,
    /// The key that the call is made with.
    pub key: KeyId,
    /// The most that the call can cost.
    pub want: MicroRub,
    /// The smallest acceptable hold. If less than `want` is free, all free money is held; if even less than this amount
    /// is free, the hold is refused.
    pub least: MicroRub,
    /// The time after which the hold expires unless it is settled, released or extended.
    pub ttl: Duration,
}

impl Hold {
    /// Creates a request to hold `amount`, in full or not at all.
    #[must_use]
    pub const fn new(
        number: RequestNumber,
        account: AccountId,
        key: KeyId,
        amount: MicroRub,
        ttl: Duration,
    ) -> Self {
        Self {
            number,
            account,
            key,
            want: amount,
            least: amount,
            ttl,
        }
    }

    /// Returns the request with `least` equal to `want`, so that the hold is granted in full or refused.
    #[cfg(feature = "redis")]
    pub(crate) fn whole(&self) -> Self {
        Self {
            least: self.want,
            ..self.clone()
        }
    }
}

/// The answer to a request for a hold that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The amount held: `min(want, free)`.
    pub held: MicroRub,
    /// The amount that this key can still hold after this hold.
    pub free: MicroRub,
}

/// The reason why a hold was refused. The enum is exhaustive on purpose: code that converts a refusal to an answer must
/// handle every reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The account or the key does not exist.
    Unknown,
    /// The account is suspended.
    Suspended,
    /// The key is disabled or deleted.
    Disabled,
    /// The account has no balance left.
    AccountEmpty,
    /// A ceiling of the key, or of its group, is used up.
    CeilingUsedUp(Ceiling),
    /// The free money is less than the smallest acceptable hold, although neither the balance nor a ceiling is used up.
    DoesNotFit {
        /// The amount that this key can still hold now.
        free: MicroRub,
        /// The amount that the key's running calls hold.
        held: MicroRub,
        /// The ceiling of the key or its group that limits `free`; `None` if the account's balance limits it.
        ceiling: Option<Ceiling>,
    },
    /// The key has reached the limit of its open calls.
    TooManyCalls {
        /// The limit of the key's open calls.
        most: u32,
    },
    /// The call was settled or released before.
    Gone,
    /// The call already has a hold with another amount, account or key.
    Conflict,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Unknown => "unknown",
            Self::Suspended => "suspended",
            Self::Disabled => "disabled",
            Self::AccountEmpty => "account_empty",
            Self::CeilingUsedUp(_) => "ceiling_used_up",
            Self::TooManyCalls { most } => return write!(f, "too_many_calls: {most} at once"),
            Self::DoesNotFit { free, held, .. } => {
                return write!(f, "does_not_fit: {free} free, {held} held");
            }
            Self::Gone => "gone",
            Self::Conflict => "conflict",
        };
        f.write_str(word)
    }
}

/// A change of the amount that a running call holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// The call's number.
    pub number: RequestNumber,
    /// The account that pays.
    pub account: AccountId,
    /// The key that the call is made with.
    pub key: KeyId,
    /// The number of this change among the changes of the call's hold, from 1. If the ledger has already carried out a
    /// change with the same or a higher number, this change has no effect.
    pub sequence: u32,
    /// The amount that is held from now on.
    pub amount: MicroRub,
}

/// The answer to an [`Adjustment`] that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Adjusted {
    /// The call holds this amount now: the requested amount, or that of a change with a higher number.
    Held(MicroRub),
    /// The call holds nothing: it has ended, its hold has expired or was lost, or it was never held.
    Gone,
    /// This ledger cannot change holds; the hold is as before.
    Unsupported,
}

/// The reason why a ledger operation failed.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The ledger refused the request.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The ledger did not answer, or its answer was lost. The operation may have been carried out.
    #[error("ledger out of reach")]
    Unavailable(#[source] BoxError),
}

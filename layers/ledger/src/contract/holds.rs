//! Holds: money that is reserved for a call before the call is sent, and that may change while the call is in flight.

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
    /// The key with which the call is made.
    pub key: KeyId,
    /// The amount to hold: the most that the call can cost.
    pub want: MicroRub,
    /// The smallest acceptable hold. If the free money is less than `want`, all of the free money is held. If the free
    /// money is less than `least`, the hold is refused.
    pub least: MicroRub,
    /// The time after which the hold expires unless it is settled, released or extended.
    pub ttl: Duration,
}

impl Hold {
    /// Creates a request to hold `amount`; the ledger grants it in full or refuses it.
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

    /// Returns the same request with `least` equal to `want`: the ledger grants it in full or refuses it.
    #[cfg(feature = "redis")]
    pub(crate) fn whole(&self) -> Self {
        Self {
            least: self.want,
            ..self.clone()
        }
    }
}

/// A granted hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The amount held: `min(want, free)`.
    pub held: MicroRub,
    /// The amount that the key can still hold after this hold.
    pub free: MicroRub,
}

/// The reason why a hold was refused. The enum is not `#[non_exhaustive]`, because code that converts a refusal to a
/// response must handle every reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The account or the key does not exist in this ledger.
    Unknown,
    /// The account is suspended.
    Suspended,
    /// The key is disabled or deleted.
    Disabled,
    /// The account's balance is used up.
    AccountEmpty,
    /// A ceiling of the key, or of the key's group, is used up.
    CeilingUsedUp(Ceiling),
    /// The free money is less than the smallest acceptable hold, although some balance is left and no ceiling is used
    /// up.
    DoesNotFit {
        /// The amount that the key can hold now.
        free: MicroRub,
        /// The amount that the key's in-flight calls hold.
        held: MicroRub,
        /// The ceiling of the key, or of its group, that limits `free`; `None` if the account's balance limits it.
        ceiling: Option<Ceiling>,
    },
    /// The key already has the maximum number of open calls.
    TooManyCalls {
        /// The maximum number of open calls of the key.
        most: u32,
    },
    /// The call was settled or released before the hold was requested.
    Gone,
    /// The call already has a hold whose amount, account or key differs.
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
            Self::TooManyCalls { most } => {
                return write!(f, "too_many_calls: at most {most} at once");
            }
            Self::DoesNotFit { free, held, .. } => {
                return write!(f, "does_not_fit: {free} free, {held} held");
            }
            Self::Gone => "gone",
            Self::Conflict => "conflict",
        };
        f.write_str(word)
    }
}

/// A request to change the amount that an in-flight call holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// The call's number.
    pub number: RequestNumber,
    /// The account that pays.
    pub account: AccountId,
    /// The key with which the call is made.
    pub key: KeyId,
    /// The number of this change, counted from 1 per call. If the ledger has already carried out a change of this call
    /// with the same number or a higher one, the request has no effect.
    pub sequence: u32,
    /// The amount that the call is to hold from now on, in total.
    pub amount: MicroRub,
}

/// The result of an [`Adjustment`] that the ledger did not refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Adjusted {
    /// The amount that the call holds now: the requested amount, or the amount of a change with a higher number that
    /// was carried out earlier.
    Held(MicroRub),
    /// The call holds nothing: the call has ended, or its hold expired, was lost, or never existed.
    Gone,
    /// This ledger cannot change the amount of a hold. The hold is unchanged.
    Unsupported,
}

/// The reason why a ledger operation failed.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The ledger refused the request.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The ledger did not respond, or its response was lost. It may have carried out the operation.
    #[error("ledger out of reach")]
    Unavailable(#[from] BoxError),
}

//! How a call ends, and how its end is sent to the ledger: by the settler, or by the outbox after an earlier process
//! has died.

use std::{sync::Arc, time::Duration};

use super::Event;
use crate::contract::{Ledger, LedgerError, Settled, Settlement};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    number::RequestNumber,
};

/// For this time after the first attempt to settle a call, settlements of the call count as fresh. The tombstone of a
/// settled hold lives for ten minutes. So if there is neither a hold nor a tombstone within this time, the hold was
/// lost and not settled. Later, the tombstone may have expired.
pub(crate) const FRESH: Duration = Duration::from_secs(300);

/// The way in which a call ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The call is charged.
    Settle(Arc<Settlement>),
    /// The call was free; its hold is released.
    Release {
        /// The call's number.
        number: RequestNumber,
        /// The account that would have paid.
        account: AccountId,
        /// The key that the call was made with.
        key: KeyId,
    },
}

impl Ending {
    /// Returns the call's number.
    #[must_use]
    pub fn number(&self) -> RequestNumber {
        match self {
            Self::Settle(settlement) => settlement.number,
            Self::Release { number, .. } => *number,
        }
    }

    /// Separates settlements, which are sent to the ledger together, from releases, which are sent one by one.
    pub(crate) fn sorted(endings: impl IntoIterator<Item = Self>) -> (Vec<Settlement>, Vec<Self>) {
        let (mut settlements, mut releases) = (Vec::new(), Vec::new());
        for ending in endings {
            match ending {
                Self::Settle(settlement) => settlements.push(Arc::unwrap_or_clone(settlement)),
                release @ Self::Release { .. } => releases.push(release),
            }
        }
        (settlements, releases)
    }

    /// Sends the end to the ledger. For a settlement, returns the ledger's result.
    pub(crate) async fn submit<L: Ledger>(
        &self,
        ledger: &L,
    ) -> Result<Option<Settled>, LedgerError> {
        match self {
            Self::Settle(settlement) => ledger.settle(settlement).await.map(Some),
            Self::Release {
                number,
                account,
                key,
            } => ledger.release(*number, account, key).await.map(|()| None),
        }
    }

    /// The event to report when the ledger has acknowledged the end.
    pub(crate) fn acknowledged<'a>(&'a self, settled: Option<&'a Settled>) -> Event<'a> {
        match (self, settled) {
            (Self::Settle(settlement), Some(settled)) => Event::Settled {
                settlement,
                settled,
            },
            _ => Event::Released {
                number: self.number(),
            },
        }
    }
}

/// The reason why a ledger did not acknowledge an end.
pub(crate) fn cause_of(error: LedgerError) -> BoxError {
    match error {
        LedgerError::Unavailable(cause) => cause,
        // A ledger has no reason to refuse an end. If it does, the end is retried, and the refusal appears in the log.
        refused @ LedgerError::Refused(_) => refused.into(),
    }
}

/// A time between half of `wait` and `wait`, chosen by the random bits of the call's number: gateways that lost their
/// ledger at the same time do not all retry at the same time.
pub(crate) fn jittered(wait: Duration, number: RequestNumber) -> Duration {
    let random = u32::from(number.uuid().as_bytes()[15]);
    wait / 2 + wait / 2 * random / 255
}

//! A call's end (a settlement or a release), and how it is sent to the ledger. The settler sends it, or, after a
//! process has died, the outbox of the next process.

use std::{sync::Arc, time::Duration};

use super::Event;
use crate::contract::{Ledger, LedgerError, Settled, Settlement};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    number::RequestNumber,
};

/// A settlement counts as fresh for this time after the first attempt to send it. The ledger keeps the tombstone of a
/// settled hold for ten minutes. Therefore, if a fresh settlement finds neither a hold nor a tombstone, the hold was
/// lost and the call was not settled. For an older settlement, the tombstone may have expired.
pub(crate) const FRESH: Duration = Duration::from_secs(300);

/// How a call ends: with a settlement or with a release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have descriptive names")]
pub enum Ending {
    /// The call is charged with this settlement.
    Settle(Arc<Settlement>),
    /// The call was free, so its hold is released.
    Release {
        number: RequestNumber,
        account: AccountId,
        key: KeyId,
    },
}

impl Ending {
    #[cfg(any(feature = "outbox", test))]
    pub(crate) const fn release(number: RequestNumber, account: AccountId, key: KeyId) -> Self {
        Self::Release {
            number,
            account,
            key,
        }
    }

    /// Returns the call's number.
    #[must_use]
    pub fn number(&self) -> RequestNumber {
        match self {
            Self::Settle(settlement) => settlement.number,
            Self::Release { number, .. } => *number,
        }
    }

    /// Separates settlements from releases: settlements are sent to the ledger together, releases one by one.
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

    /// Sends the settlement or release to the ledger. Returns the ledger's result of a settlement.
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

    /// Returns the event to report when the ledger has acknowledged the settlement or release.
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

/// Returns the reason why a ledger did not acknowledge a settlement or release.
pub(crate) fn cause_of(error: LedgerError) -> BoxError {
    match error {
        LedgerError::Unavailable(cause) => cause,
        // A ledger should never refuse a settlement or release. If it does, the gateway retries and logs the refusal.
        refused @ LedgerError::Refused(_) => refused.into(),
    }
}

/// Returns a time between half of `wait` and `wait`, chosen by the random bits of the call's number. Gateways that lost
/// their ledger at the same time then do not all retry at the same time.
pub(crate) fn jittered(wait: Duration, number: RequestNumber) -> Duration {
    let random = u32::from(number.uuid().as_bytes()[15]);
    wait / 2 + wait / 2 * random / 255
}

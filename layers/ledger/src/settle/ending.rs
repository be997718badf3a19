//! How a call ends, and how a ledger is told: by the settler, and by the outbox what an earlier process left.

use std::{sync::Arc, time::Duration};

use super::Event;
use crate::contract::{Ledger, LedgerError, Settled, Settlement};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    number::RequestNumber,
};

/// A tombstone of a settled hold lives for ten minutes: a first attempt older than this might find
/// it gone, and then only an unknown hold's age tells a lost one from one that was settled.
pub(crate) const FRESH: Duration = Duration::from_secs(300);

/// How a call ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It is charged.
    Settle(Arc<Settlement>),
    /// It cost nothing.
    Release {
        /// The call's number.
        number: RequestNumber,
        /// Who would have paid.
        account: AccountId,
        /// On which key.
        key: KeyId,
    },
}

impl Ending {
    /// The call's number.
    #[must_use]
    pub fn number(&self) -> RequestNumber {
        match self {
            Self::Settle(settlement) => settlement.number,
            Self::Release { number, .. } => *number,
        }
    }

    /// What a ledger is told together, and what it is told one by one.
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

    /// Submits it to the ledger. A settlement is answered with what was booked.
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

    /// What is reported once the ledger has answered so.
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

/// Why a ledger did not acknowledge an end.
pub(crate) fn cause_of(error: LedgerError) -> BoxError {
    match error {
        LedgerError::Unavailable(cause) => cause,
        // A ledger has no ground to refuse an end; one that does is asked again, and seen in the log.
        refused @ LedgerError::Refused(_) => refused.into(),
    }
}

/// Between half the wait and all of it, by the call's random bits: those that lost their ledger together
/// do not come back to it together.
pub(crate) fn jittered(wait: Duration, number: RequestNumber) -> Duration {
    let random = u32::from(number.uuid().as_bytes()[15]);
    wait / 2 + wait / 2 * random / 255
}

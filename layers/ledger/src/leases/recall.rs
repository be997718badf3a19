//! Nobody is refused while money lies in leases that no call holds anything of.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, sleep};

use super::{LeaseLedger, Leases};
use crate::contract::{Hold, LedgerError, Refusal, Reserved};

/// How long it is waited, before a call is refused, that other gateways give back what no call holds.
pub(crate) const RECALL_WAIT: Duration = Duration::from_millis(150);
/// How often the ledger is asked meanwhile.
pub(crate) const RECALL_LOOK_EVERY: Duration = Duration::from_millis(15);

/// RESERVE at a ledger, beside its gateway's leases where it has any.
///
/// # Errors
/// The ledger refused, or is out of reach.
pub async fn reserve<L: LeaseLedger>(
    ledger: &L,
    leases: Option<&Leases>,
    hold: &Hold,
) -> Result<Reserved, LedgerError> {
    let Some(leases) = leases else {
        let answer = ledger.hold(hold).await;
        return unless_leased(ledger, None, hold, answer).await;
    };
    if let Some(answer) = leases.reserve(hold) {
        return answer.map_err(LedgerError::Refused);
    }
    // All or nothing at first: nobody gets less because the rest is leased.
    let whole = hold.whole();
    let answer = ledger.hold(&whole).await;
    unless_leased(ledger, Some(leases), hold, answer).await
}

/// The answer, unless money lies in leases.
async fn unless_leased<L: LeaseLedger>(
    ledger: &L,
    leases: Option<&Leases>,
    hold: &Hold,
    answer: Result<Reserved, LedgerError>,
) -> Result<Reserved, LedgerError> {
    match answer {
        Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) => {
            // Boxed: seldom, and each call would have room for it.
            Box::pin(after_recall(ledger, leases, hold, answer)).await
        }
        answer => answer,
    }
}

/// A hold that did not fit: what leases have and no call holds is asked for first, of this gateway and of others.
async fn after_recall<L: LeaseLedger>(
    ledger: &L,
    leases: Option<&Leases>,
    hold: &Hold,
    answer: Result<Reserved, LedgerError>,
) -> Result<Reserved, LedgerError> {
    if ledger.recall(&hold.account).await? == 0 {
        // One without leases has asked for no more than this.
        return match leases {
            None => answer,
            Some(_) => ledger.hold(hold).await,
        };
    }
    if let Some(leases) = leases {
        leases.counters.recalls.fetch_add(1, Ordering::Relaxed);
        leases.recalled(&hold.account);
    }
    let (whole, until) = (hold.whole(), Instant::now() + RECALL_WAIT);
    while Instant::now() < until {
        sleep(RECALL_LOOK_EVERY).await;
        // Counted before the ledger is asked: what is given back between the two is seen.
        let left = ledger.recall(&hold.account).await?;
        match ledger.hold(&whole).await {
            Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) if left > 0 => {}
            Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) => break,
            answer => return answer,
        }
    }
    let answer = ledger.hold(hold).await;
    if let (Some(leases), Err(LedgerError::Refused(_))) = (leases, &answer) {
        leases.counters.refused.fetch_add(1, Ordering::Relaxed);
    }
    answer
}

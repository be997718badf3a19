//! Lease recalls. Before a call is refused for lack of money, all gateways are requested to give back leased money that
//! no call holds.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, sleep};

use super::{LeaseLedger, Leases};
use crate::contract::{Adjusted, Adjustment, Hold, LedgerError, Refusal, Reserved};

/// How long a call waits for gateways to give leased money back before the call is refused.
pub(crate) const RECALL_WAIT: Duration = Duration::from_millis(150);
/// How often a call retries its hold while it waits for recalled money.
pub(crate) const RECALL_LOOK_EVERY: Duration = Duration::from_millis(15);
/// How long a call waits for an earlier call's settlement before the waiting call is refused. A caller that makes one
/// call after another sends the next call while the settlement of the previous one is still on its way to the ledger.
const END_WAIT: Duration = Duration::from_millis(10);

/// Makes a hold, against a lease if possible and otherwise in the ledger. If the ledger refuses the hold for lack of
/// money, waits for settlements of other calls, recalls leased money, and retries before returning the refusal.
///
/// # Errors
/// [`LedgerError::Refused`] or [`LedgerError::Unavailable`], as from [`LeaseLedger::hold`].
pub async fn reserve<L: LeaseLedger>(
    ledger: &L,
    leases: Option<&Leases>,
    hold: &Hold,
) -> Result<Reserved, LedgerError> {
    if let Some(leases) = leases
        && let Some(answer) = leases.reserve(hold)
    {
        return answer.map_err(LedgerError::Refused);
    }
    // The first request is for the full amount or nothing: a smaller hold would be wrong while money is leased or
    // about to be released. If the gateway takes no leases, the hold is sent unchanged, because a repeated hold is
    // recognized only if all its fields are equal.
    let whole;
    let first = match leases {
        Some(_) => {
            whole = hold.whole();
            &whole
        }
        None => hold,
    };
    match ledger.hold(first).await {
        // Few calls have to wait. The wait is boxed, so that the futures of all other calls do not reserve space for
        // it.
        Err(LedgerError::Refused(refusal @ Refusal::DoesNotFit { .. })) => {
            Box::pin(after_recall(ledger, leases, hold, first, refusal)).await
        }
        Err(LedgerError::Refused(Refusal::TooManyCalls { .. })) => {
            Box::pin(behind_an_end(ledger, leases, hold, first)).await
        }
        answer => answer,
    }
}

/// Changes a hold: in the lease from which it was granted, or in the ledger if it is not from a lease. If an increase
/// does not fit, it is retried like a new hold: after waiting for settlements of other calls and recalling leased
/// money.
///
/// # Errors
/// [`LedgerError::Refused`] or [`LedgerError::Unavailable`], as from [`LeaseLedger::adjust_hold`].
pub async fn adjust<L: LeaseLedger>(
    ledger: &L,
    leases: Option<&Leases>,
    adjustment: &Adjustment,
) -> Result<Adjusted, LedgerError> {
    match adjust_once(ledger, leases, adjustment).await {
        Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) => {
            Box::pin(adjust_after_recall(ledger, leases, adjustment)).await
        }
        answer => answer,
    }
}

async fn adjust_once<L: LeaseLedger>(
    ledger: &L,
    leases: Option<&Leases>,
    adjustment: &Adjustment,
) -> Result<Adjusted, LedgerError> {
    if let Some(leases) = leases
        && let Some(answer) = leases.adjust(adjustment).await
    {
        return answer;
    }
    ledger.adjust_hold(adjustment).await
}

async fn adjust_after_recall<L: LeaseLedger>(
    ledger: &L,
    leases: Option<&Leases>,
    adjustment: &Adjustment,
) -> Result<Adjusted, LedgerError> {
    let until = Instant::now() + RECALL_WAIT;
    let mut left = ledger.recall(&adjustment.account).await?;
    if left == 0 {
        sleep(END_WAIT).await;
        return adjust_once(ledger, leases, adjustment).await;
    }
    if let Some(leases) = leases {
        leases.counters.recalls.fetch_add(1, Ordering::Relaxed);
        leases.recalled(&adjustment.account);
    }
    loop {
        sleep(RECALL_LOOK_EVERY).await;
        let answer = adjust_once(ledger, leases, adjustment).await;
        match answer {
            Err(LedgerError::Refused(Refusal::DoesNotFit { .. }))
                if left > 0 && Instant::now() < until => {}
            answer => return answer,
        }
        left = ledger.recall(&adjustment.account).await?;
    }
}

/// Retries a hold that was refused because the key has too many open calls. Waits first, so that the settlement of an
/// open call can arrive.
async fn behind_an_end<L: LeaseLedger>(
    ledger: &L,
    leases: Option<&Leases>,
    hold: &Hold,
    first: &Hold,
) -> Result<Reserved, LedgerError> {
    sleep(END_WAIT).await;
    match ledger.hold(first).await {
        Err(LedgerError::Refused(refusal @ Refusal::DoesNotFit { .. })) => {
            after_recall(ledger, leases, hold, first, refusal).await
        }
        answer => answer,
    }
}

/// Returns whether settlements of in-flight calls may free enough money for the full hold, or for the smallest
/// acceptable one.
fn may_fit_behind_ends(refusal: Refusal, hold: &Hold) -> bool {
    let Refusal::DoesNotFit { free, held, .. } = refusal else {
        return false;
    };
    let at_most = free.plus_or_max(held);
    at_most >= hold.want || (free < hold.least && at_most >= hold.least)
}

/// Retries a hold after `first` was refused. Before returning the refusal, recalls leased money that no call holds,
/// from this gateway and from all others.
async fn after_recall<L: LeaseLedger>(
    ledger: &L,
    leases: Option<&Leases>,
    hold: &Hold,
    first: &Hold,
    refusal: Refusal,
) -> Result<Reserved, LedgerError> {
    if ledger.recall(&hold.account).await? == 0 {
        let mut answer = Err(LedgerError::Refused(refusal));
        if may_fit_behind_ends(refusal, hold) {
            sleep(END_WAIT).await;
            answer = ledger.hold(first).await;
        }
        return match answer {
            // If the gateway takes no leases, the first request already allowed a smaller hold.
            Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) if leases.is_some() => {
                ledger.hold(hold).await
            }
            answer => answer,
        };
    }
    if let Some(leases) = leases {
        leases.counters.recalls.fetch_add(1, Ordering::Relaxed);
        leases.recalled(&hold.account);
    }
    let (whole, until) = (hold.whole(), Instant::now() + RECALL_WAIT);
    while Instant::now() < until {
        sleep(RECALL_LOOK_EVERY).await;
        // The number of leases that may still grant holds is read before the hold is requested. In the opposite order,
        // money that is given back between the two requests could be missed.
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        account::AccountId,
        leases::{Turn, TurnAnswer},
        money::MicroRub,
        number::RequestNumber,
    };

    const LEAST: MicroRub = MicroRub::new(20);
    const WANT: MicroRub = MicroRub::new(100);

    /// A ledger that answers holds with these results, the last one first.
    struct Ledger(Mutex<Vec<Result<Reserved, LedgerError>>>);

    impl LeaseLedger for Ledger {
        async fn turn(&self, _: &Turn) -> Result<TurnAnswer, LedgerError> {
            unreachable!("no gateway has a lease")
        }

        async fn recall(&self, _: &AccountId) -> Result<u64, LedgerError> {
            Ok(0)
        }

        async fn hold(&self, _: &Hold) -> Result<Reserved, LedgerError> {
            self.0.lock().unwrap().pop().expect("asked too often")
        }
    }

    fn short(free: i64, held: i64) -> Result<Reserved, LedgerError> {
        Err(LedgerError::Refused(Refusal::DoesNotFit {
            free: MicroRub::new(free),
            held: MicroRub::new(held),
            ceiling: None,
        }))
    }

    fn too_many() -> Result<Reserved, LedgerError> {
        Err(LedgerError::Refused(Refusal::TooManyCalls { most: 1 }))
    }

    fn granted(held: i64) -> Result<Reserved, LedgerError> {
        Ok(Reserved {
            held: MicroRub::new(held),
            free: MicroRub::ZERO,
        })
    }

    /// Requests a hold. Returns the amount held (0 if refused), and how often the call waited.
    async fn requested(answers: Vec<Result<Reserved, LedgerError>>) -> (i64, u128) {
        let ledger = Ledger(Mutex::new(answers.into_iter().rev().collect()));
        let hold = Hold {
            number: RequestNumber::now_v7(),
            account: "a".parse().unwrap(),
            key: "k".parse().unwrap(),
            want: WANT,
            least: LEAST,
            ttl: Duration::from_secs(60),
        };
        let begun = Instant::now();
        let answer = reserve(&ledger, None, &hold).await;
        let held = answer.map_or(0, |reserved| reserved.held.micro());
        let waits = begun.elapsed().as_millis() / END_WAIT.as_millis();
        assert!(
            ledger.0.into_inner().unwrap().is_empty(),
            "asked too seldom"
        );
        (held, waits)
    }

    #[tokio::test(start_paused = true)]
    async fn hold_waits_once_for_settlements_of_other_calls_before_it_is_refused() {
        assert_eq!(requested(vec![granted(100)]).await, (100, 0));
        // The settlement of the key's previous call arrives only after the next call has requested its hold.
        assert_eq!(requested(vec![short(10, 90), granted(100)]).await, (100, 1));
        // The full hold would not fit even after all settlements, but the smallest acceptable hold would.
        assert_eq!(requested(vec![short(10, 10), granted(20)]).await, (20, 1));
        // The call that holds the money is still in flight, so no settlement arrives.
        assert_eq!(requested(vec![short(10, 90), short(10, 90)]).await, (0, 1));
        // Even the settlements of all in-flight calls would not free enough money, so the call does not wait.
        assert_eq!(requested(vec![short(10, 9)]).await, (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn call_above_the_concurrency_limit_waits_once_for_the_end_of_an_earlier_call() {
        assert_eq!(requested(vec![too_many(), granted(100)]).await, (100, 1));
        assert_eq!(requested(vec![too_many(), too_many()]).await, (0, 1));
        // The open calls have ended, but now money is short: the hold is retried like any other hold.
        let then_short = vec![too_many(), short(10, 90), granted(100)];
        assert_eq!(requested(then_short).await, (100, 2));
    }
}

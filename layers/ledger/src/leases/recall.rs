//! Recalls money from leases before a call is refused, so that no call is refused while leases have money that no call
//! holds.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, sleep};

use super::{LeaseLedger, Leases};
use crate::contract::{Adjusted, Adjustment, Hold, LedgerError, Refusal, Reserved};

/// The time for which a call waits, before it is refused, for other gateways to give money back.
pub(crate) const RECALL_WAIT: Duration = Duration::from_millis(150);
/// The interval at which a call retries its hold during a recall.
pub(crate) const RECALL_LOOK_EVERY: Duration = Duration::from_millis(15);
/// The time for which a call waits, before it is refused, for the end of an earlier call. A caller that makes one call
/// after another sends its next call while the end of its last call is still on its way to the ledger.
const END_WAIT: Duration = Duration::from_millis(10);

/// Makes a hold in a ledger of which this gateway may have leases. Before the hold is refused for lack of money, waits
/// for ends of other calls and recalls leased money.
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
    // The first request accepts only the whole amount, so that no call gets less because money is leased or about to be
    // released. If the gateway takes no leases, the hold is sent unchanged: a repeated hold is identified by all its
    // fields.
    let whole;
    let first = match leases {
        Some(_) => {
            whole = hold.whole();
            &whole
        }
        None => hold,
    };
    match ledger.hold(first).await {
        // Boxed because this wait is rare: otherwise the future of every call would reserve space for it.
        Err(LedgerError::Refused(refusal @ Refusal::DoesNotFit { .. })) => {
            Box::pin(after_recall(ledger, leases, hold, first, refusal)).await
        }
        Err(LedgerError::Refused(Refusal::TooManyCalls { .. })) => {
            Box::pin(behind_an_end(ledger, leases, hold, first)).await
        }
        answer => answer,
    }
}

/// Changes a hold in a ledger of which this gateway may have leases. A larger amount that does not fit is not refused
/// at once: like a new hold, it waits for the ends of other calls and for leased money.
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

/// Retries a hold that was refused because too many calls were open. Before the retry, waits for the end of an open
/// call.
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

/// Returns whether the ends of running calls may free enough money for the whole hold, or for its smallest amount.
fn may_fit_behind_ends(refusal: Refusal, hold: &Hold) -> bool {
    let Refusal::DoesNotFit { free, held, .. } = refusal else {
        return false;
    };
    let at_most = free.plus_or_max(held);
    at_most >= hold.want || (free < hold.least && at_most >= hold.least)
}

/// Retries a hold that was refused in the form `first`. Before the call is refused, leased money that no call holds is
/// recalled from this gateway and from others.
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
            // If the gateway takes no leases, the first request already allowed the smaller hold.
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
        // Counts the granting leases before it requests the hold, so that money given back in between is not missed.
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

    /// A ledger that answers holds with these results, from the last to the first.
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

    /// Requests a hold. Returns the amount held, 0 if refused, and the number of times that the call waited.
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
    async fn hold_waits_once_for_reported_ends_of_calls_before_it_is_refused() {
        assert_eq!(requested(vec![granted(100)]).await, (100, 0));
        // The end of the key's last call arrives after the next call has requested its hold.
        assert_eq!(requested(vec![short(10, 90), granted(100)]).await, (100, 1));
        // The whole hold would not fit even after all ends, but the smallest acceptable hold would.
        assert_eq!(requested(vec![short(10, 10), granted(20)]).await, (20, 1));
        // The end does not arrive, because the call is still running.
        assert_eq!(requested(vec![short(10, 90), short(10, 90)]).await, (0, 1));
        // Even the ends of all running calls would not free enough, so the call does not wait.
        assert_eq!(requested(vec![short(10, 9)]).await, (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn call_beyond_the_concurrency_waits_once_for_the_end_of_an_earlier_call() {
        assert_eq!(requested(vec![too_many(), granted(100)]).await, (100, 1));
        assert_eq!(requested(vec![too_many(), too_many()]).await, (0, 1));
        // The key's open calls have ended, but the hold does not fit: money is short, and the hold is retried like any
        // other hold.
        let then_short = vec![too_many(), short(10, 90), granted(100)];
        assert_eq!(requested(then_short).await, (100, 2));
    }
}

//! Nobody is refused while money lies in leases that no call holds anything of.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, sleep};

use super::{LeaseLedger, Leases};
use crate::contract::{Hold, LedgerError, Refusal, Reserved};

/// How long it is waited, before a call is refused, that other gateways give back what no call holds.
pub(crate) const RECALL_WAIT: Duration = Duration::from_millis(150);
/// How often the ledger is asked meanwhile.
pub(crate) const RECALL_LOOK_EVERY: Duration = Duration::from_millis(15);
/// How long it is waited, before a call is refused, for the end of a call that its caller has heard already: who makes
/// one call behind the other asks for the next while the end of the last is under way to the ledger.
const END_WAIT: Duration = Duration::from_millis(10);

/// RESERVE at a ledger, beside its gateway's leases where it has any.
///
/// # Errors
/// The ledger refused, or is out of reach.
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
    // All or nothing at first: nobody gets less because the rest is leased, or is coming back. Without leases it is asked as
    // it is: a hold that is asked for again is known by all that it asks for.
    let whole;
    let first = match leases {
        Some(_) => {
            whole = hold.whole();
            &whole
        }
        None => hold,
    };
    match ledger.hold(first).await {
        // Boxed: seldom, and each call would have room for it.
        Err(LedgerError::Refused(refusal @ Refusal::DoesNotFit { .. })) => {
            Box::pin(after_recall(ledger, leases, hold, first, refusal)).await
        }
        Err(LedgerError::Refused(Refusal::TooManyCalls { .. })) => {
            Box::pin(behind_an_end(ledger, leases, hold, first)).await
        }
        answer => answer,
    }
}

/// A hold for which too many calls were open.
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

/// Whether calls whose ends are under way may bring what is missing: to all of the hold, or to the least of it.
fn may_fit_behind_ends(refusal: Refusal, hold: &Hold) -> bool {
    let Refusal::DoesNotFit { free, held, .. } = refusal else {
        return false;
    };
    let at_most = free.plus_or_max(held);
    at_most >= hold.want || (free < hold.least && at_most >= hold.least)
}

/// A hold that did not fit as it was asked for `first`: what leases have and no call holds is asked for before anybody is
/// refused, of this gateway and of others.
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
            // One without leases has asked for no more than this.
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

    /// Answers holds with these, the last one first.
    struct Ledger(Mutex<Vec<Result<Reserved, LedgerError>>>);

    impl LeaseLedger for Ledger {
        async fn turn(&self, _: &Turn) -> Result<TurnAnswer, LedgerError> {
            unreachable!("nobody has a lease")
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

    /// What is held in the end, 0 where it is refused; how often it was waited for.
    async fn asked(answers: Vec<Result<Reserved, LedgerError>>) -> (i64, u128) {
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
    async fn nobody_is_refused_before_the_end_of_the_call_before_is_told() {
        assert_eq!(asked(vec![granted(100)]).await, (100, 0));
        // The last call's end comes behind the next one's hold.
        assert_eq!(asked(vec![short(10, 90), granted(100)]).await, (100, 1));
        // There would not be enough for all of it, but for the least.
        assert_eq!(asked(vec![short(10, 10), granted(20)]).await, (20, 1));
        // It does not come, since the call still runs.
        assert_eq!(asked(vec![short(10, 90), short(10, 90)]).await, (0, 1));
        // Nothing that ends would bring enough, so nobody waits.
        assert_eq!(asked(vec![short(10, 9)]).await, (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_calls_as_may_be_at_once_may_be_one_behind_the_other() {
        assert_eq!(asked(vec![too_many(), granted(100)]).await, (100, 1));
        assert_eq!(asked(vec![too_many(), too_many()]).await, (0, 1));
        // What does not fit behind that is money, and asked for as money is.
        let then_short = vec![too_many(), short(10, 90), granted(100)];
        assert_eq!(asked(then_short).await, (100, 2));
    }
}

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
        let answer = match leases {
            None => answer,
            Some(_) => ledger.hold(hold).await,
        };
        if !would_fit_behind_ends(&answer, hold) {
            return answer;
        }
        sleep(END_WAIT).await;
        return ledger.hold(hold).await;
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

/// Whether there would be enough for the hold if calls of its key that run now cost nothing.
fn would_fit_behind_ends(answer: &Result<Reserved, LedgerError>, hold: &Hold) -> bool {
    let Err(LedgerError::Refused(Refusal::DoesNotFit { free, held, .. })) = answer else {
        return false;
    };
    free.plus_or_max(*held) >= hold.least
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

    const LEAST: MicroRub = MicroRub::new(100);

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

    fn refused(free: i64, held: i64) -> Result<Reserved, LedgerError> {
        Err(LedgerError::Refused(Refusal::DoesNotFit {
            free: MicroRub::new(free),
            held: MicroRub::new(held),
            ceiling: None,
        }))
    }

    fn granted() -> Result<Reserved, LedgerError> {
        Ok(Reserved {
            held: LEAST,
            free: MicroRub::ZERO,
        })
    }

    async fn asked(answers: Vec<Result<Reserved, LedgerError>>) -> (bool, usize) {
        let ledger = Ledger(Mutex::new(answers.into_iter().rev().collect()));
        let hold = Hold {
            number: RequestNumber::now_v7(),
            account: "a".parse().unwrap(),
            key: "k".parse().unwrap(),
            want: LEAST,
            least: LEAST,
            ttl: Duration::from_secs(60),
        };
        let answer = reserve(&ledger, None, &hold).await;
        (answer.is_ok(), ledger.0.into_inner().unwrap().len())
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_refused_before_the_end_of_the_call_before_is_told() {
        // The last call's end comes behind the next one's hold.
        assert_eq!(asked(vec![refused(10, 90), granted()]).await, (true, 0));
        // It does not come, since the call still runs.
        assert_eq!(
            asked(vec![refused(10, 90), refused(10, 90)]).await,
            (false, 0)
        );
        // There would not be enough, so nobody waits.
        assert_eq!(asked(vec![refused(10, 89), granted()]).await, (false, 1));
        assert_eq!(asked(vec![refused(99, 0), granted()]).await, (false, 1));
    }
}

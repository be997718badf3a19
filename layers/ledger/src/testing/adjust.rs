//! Tests of holds that are changed while their calls are in flight. If a ledger cannot change holds, these tests check
//! nothing.

use super::{
    Books,
    calls::free,
    desk::{
        booked, does_not_fit, key_money, money, open, release, reserved, set_ceiling, set_status,
        settled, under,
    },
    given::{acme, due, hold, key, micro, number},
};
use crate::{
    account::KeyStatus,
    ceiling::Ceiling,
    contract::{Adjusted, Adjustment, Booked, Ledger, LedgerError, Refusal},
};

/// Returns a request to change the hold of call `n` on a key of `acme`.
pub(super) fn to(n: u128, id: &str, sequence: u32, amount: i64) -> Adjustment {
    Adjustment {
        number: number(n),
        account: acme(),
        key: key(id),
        sequence,
        amount: micro(amount),
    }
}

/// Returns whether the ledger can change holds. A ledger that can must return `Gone` for this call, which has no hold.
pub(super) async fn can_adjust<L: Ledger>(ledger: &L) -> bool {
    match ledger.adjust(&to(999, "k1", 1, 1)).await {
        Ok(Adjusted::Unsupported) => false,
        Ok(Adjusted::Gone) => true,
        answer => panic!("an adjustment of an unknown call: expected Gone, found {answer:?}"),
    }
}

pub(super) async fn adjusted<L: Ledger>(
    ledger: &L,
    adjustment: &Adjustment,
) -> Result<Adjusted, Refusal> {
    match ledger.adjust(adjustment).await {
        Ok(adjusted) => Ok(adjusted),
        Err(LedgerError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{adjustment:?}: expected an answer, found {error}"),
    }
}

pub(super) const fn held(amount: i64) -> Result<Adjusted, Refusal> {
    Ok(Adjusted::Held(micro(amount)))
}

/// Invariant I2: the held money never exceeds the balance.
pub(super) async fn a_smaller_hold_frees_money_at_once<L: Ledger>(ledger: &L) {
    if !can_adjust(ledger).await {
        return;
    }
    reserved(ledger, &hold(1, "k1", 700)).await;
    for (sequence, amount) in [(1, 400), (2, 400), (3, 1), (4, 0)] {
        let answer = adjusted(ledger, &to(1, "k1", sequence, amount)).await;
        expect_eq!(answer, held(amount), "{sequence}");
        expect_eq!(free(ledger, "k2").await, 1000 - amount, "{sequence}");
    }
    // The call continues, and its full cost is charged.
    let paid = settled(ledger, 1, "k1", 150).await;
    expect_eq!(paid, booked(Booked::Held, 150, 0));
    expect_eq!(free(ledger, "k1").await, 850);
}

/// Invariant I1: an increase is granted in full or refused, and a refusal changes nothing.
pub(super) async fn a_hold_grows_only_into_free_money<L: Ledger>(ledger: &L) {
    if !can_adjust(ledger).await {
        return;
    }
    reserved(ledger, &hold(1, "k1", 300)).await;
    reserved(ledger, &hold(2, "k2", 200)).await;
    expect_eq!(
        adjusted(ledger, &to(1, "k1", 1, 801)).await,
        Err(does_not_fit(500, 300))
    );
    expect_eq!(free(ledger, "k1").await, 500, "free after a refusal");
    expect_eq!(adjusted(ledger, &to(1, "k1", 2, 800)).await, held(800));
    expect_eq!(free(ledger, "k1").await, 0, "free next to the larger hold");
    expect_eq!(
        adjusted(ledger, &to(2, "k2", 1, 201)).await,
        Err(does_not_fit(0, 200))
    );
    // The call is charged from its hold up to the increased amount.
    let paid = settled(ledger, 1, "k1", 800).await;
    expect_eq!(paid, booked(Booked::Held, 800, 0));
    let paid = settled(ledger, 2, "k2", 200).await;
    expect_eq!(paid, booked(Booked::Held, 200, 0));
}

/// Invariant I1: an expired hold does not prevent another hold from growing.
pub(super) async fn an_expired_hold_does_not_keep_another_from_growing<L: Ledger>(ledger: &L) {
    if !can_adjust(ledger).await {
        return;
    }
    reserved(ledger, &due(1, "k1", 600)).await;
    reserved(ledger, &hold(2, "k2", 100)).await;
    expect_eq!(adjusted(ledger, &to(2, "k2", 1, 1000)).await, held(1000));
}

/// Invariant I5: hold changes may arrive twice, or in another order than they were sent.
pub(super) async fn an_older_adjustment_changes_nothing<L: Ledger>(ledger: &L) {
    if !can_adjust(ledger).await {
        return;
    }
    let new_hold = hold(1, "k1", 500);
    reserved(ledger, &new_hold).await;
    for (sequence, amount, now) in [
        (2, 300, 300),
        (2, 300, 300),
        (1, 600, 300),
        (2, 100, 300),
        (7, 400, 400),
        (3, 10, 400),
        (6, 1_000_000, 400),
    ] {
        let answer = adjusted(ledger, &to(1, "k1", sequence, amount)).await;
        expect_eq!(answer, held(now), "{sequence}: {amount}");
        expect_eq!(free(ledger, "k1").await, 1000 - now, "{sequence}: {amount}");
    }
    // A late copy of the first request for a hold gets the present amount of the hold.
    let again = reserved(ledger, &new_hold).await;
    expect_eq!([again.held, again.free], [400, 600].map(micro));
}

/// Invariant I5: a hold change that arrives after the end of its call does not hold money again.
pub(super) async fn an_ended_hold_is_not_adjusted<L: Ledger>(ledger: &L) {
    if !can_adjust(ledger).await {
        return;
    }
    for n in [1, 2, 4] {
        reserved(ledger, &hold(n, "k1", 100)).await;
    }
    reserved(ledger, &due(3, "k1", 100)).await;
    settled(ledger, 1, "k1", 10).await;
    release(ledger, 2, "k1").await;
    ledger.expire().await.expect("holds expire");
    for (n, id) in [(1, "k1"), (2, "k1"), (3, "k1"), (4, "k2"), (5, "k1")] {
        for (sequence, amount) in [(1, 50), (2, 500)] {
            let answer = adjusted(ledger, &to(n, id, sequence, amount)).await;
            expect_eq!(answer, Ok(Adjusted::Gone), "call {n} on {id}: {amount}");
        }
    }
    expect_eq!(free(ledger, "k1").await, 890);
    let paid = settled(ledger, 4, "k1", 100).await;
    expect_eq!(paid, booked(Booked::Held, 100, 0));
    expect_eq!(
        settled(ledger, 3, "k1", 5).await,
        booked(Booked::Late, 5, 0)
    );
}

/// Invariant I4: money that other calls hold is not charged.
pub(super) async fn a_cost_is_charged_up_to_the_adjusted_hold_and_free_money<L: Ledger>(
    ledger: &L,
) {
    if !can_adjust(ledger).await {
        return;
    }
    reserved(ledger, &hold(1, "k1", 500)).await;
    expect_eq!(adjusted(ledger, &to(1, "k1", 1, 100)).await, held(100));
    reserved(ledger, &hold(2, "k2", 850)).await;
    let paid = settled(ledger, 1, "k1", 400).await;
    expect_eq!(paid, booked(Booked::Held, 150, 250));
    let paid = settled(ledger, 2, "k2", 850).await;
    expect_eq!(paid, booked(Booked::Held, 850, 0));
}

/// Invariants I1 and I12: an increase is granted under the same conditions as a new hold; a decrease is always granted.
pub(super) async fn a_hold_grows_only_if_account_and_key_allow_it<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    if !can_adjust(ledger).await {
        return;
    }
    set_ceiling(ledger, "k1", Some(400)).await;
    reserved(ledger, &hold(1, "k1", 300)).await;
    reserved(ledger, &hold(2, "k1", 50)).await;
    expect_eq!(
        adjusted(ledger, &to(1, "k1", 1, 351)).await,
        Err(under(Ceiling::Total, 50, 350))
    );
    expect_eq!(adjusted(ledger, &to(1, "k1", 2, 350)).await, held(350));
    expect_eq!(key_money(ledger, "k1").await, [0, 400, 0]);
    // A hold remains when the ceiling of its key is lowered below the hold's amount. The hold may then be decreased
    // even to an amount that is still above the ceiling.
    set_ceiling(ledger, "k1", Some(100)).await;
    expect_eq!(adjusted(ledger, &to(1, "k1", 3, 200)).await, held(200));
    expect_eq!(
        adjusted(ledger, &to(1, "k1", 4, 201)).await,
        Err(under(Ceiling::Total, 0, 250))
    );
    set_ceiling(ledger, "k1", None).await;

    set_status(ledger, "k1", KeyStatus::Disabled).await;
    expect_eq!(
        adjusted(ledger, &to(1, "k1", 5, 201)).await,
        Err(Refusal::Disabled)
    );
    expect_eq!(adjusted(ledger, &to(1, "k1", 6, 150)).await, held(150));
    set_status(ledger, "k1", KeyStatus::Active).await;
    let suspended = ledger.change_account(&acme(), None, Some(true)).await;
    suspended.unwrap();
    expect_eq!(
        adjusted(ledger, &to(1, "k1", 7, 151)).await,
        Err(Refusal::Suspended)
    );
    expect_eq!(adjusted(ledger, &to(1, "k1", 8, 120)).await, held(120));
    expect_eq!(money(ledger).await, [1000, 170, 0, 0]);
    expect_eq!(key_money(ledger, "k1").await, [0, 170, 830]);
}

/// Invariant I1: the refusal of an increase gives the reason. If the ledger has leases, some of the 30 calls hold money
/// from a lease.
pub(super) async fn a_larger_hold_is_refused_for_the_reason_of_a_new_one<L: Books>(ledger: &L) {
    const CALLS: u128 = 30;
    open(ledger, 1000).await;
    if !can_adjust(ledger).await {
        return;
    }
    for n in 1..=CALLS {
        reserved(ledger, &hold(n, "k1", 10)).await;
    }
    let mut sequence = 0;
    let mut raise = async |n: u128, amount: i64| {
        sequence += 1;
        adjusted(ledger, &to(n, "k1", sequence, amount)).await
    };
    for n in [1, CALLS / 2, CALLS] {
        set_status(ledger, "k1", KeyStatus::Disabled).await;
        expect_eq!(raise(n, 900).await, Err(Refusal::Disabled), "{n}");
        set_status(ledger, "k1", KeyStatus::Active).await;
        let suspended = ledger.change_account(&acme(), None, Some(true)).await;
        suspended.unwrap();
        expect_eq!(raise(n, 900).await, Err(Refusal::Suspended), "{n}");
        let resumed = ledger.change_account(&acme(), None, Some(false)).await;
        resumed.unwrap();
        set_ceiling(ledger, "k1", Some(400)).await;
        let by = match raise(n, 900).await {
            Err(Refusal::DoesNotFit { ceiling, .. }) => ceiling,
            answer => panic!("{n}: expected a refusal by the ceiling, found {answer:?}"),
        };
        expect_eq!(by, Some(Ceiling::Total), "{n}");
        set_ceiling(ledger, "k1", None).await;
        let by = match raise(n, 2000).await {
            Err(Refusal::DoesNotFit { ceiling, .. }) => ceiling,
            answer => panic!("{n}: expected a refusal by the balance, found {answer:?}"),
        };
        expect_eq!(by, None, "{n}");
    }
}

/// Invariant I8: when a hold expires, its present amount is freed, including all increases.
pub(super) async fn the_whole_adjusted_hold_expires<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    if !can_adjust(ledger).await {
        return;
    }
    for (n, amount) in [(1, 100), (2, 500)] {
        reserved(ledger, &due(n, "k1", 300)).await;
        expect_eq!(
            adjusted(ledger, &to(n, "k1", 1, amount)).await,
            held(amount)
        );
    }
    expect_eq!(money(ledger).await, [1000, 600, 0, 0]);
    expect_eq!(ledger.expire().await.unwrap(), 2);
    expect_eq!(money(ledger).await, [1000, 0, 0, 0]);
    expect_eq!(key_money(ledger, "k1").await, [0, 0, 1000]);
}

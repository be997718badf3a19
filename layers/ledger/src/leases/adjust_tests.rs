//! Tests changes of the amount that a call holds against a lease: which changes the lease decides in memory, and which
//! amounts its next turn (request to the ledger) requests.

use std::time::Duration;

use tokio::sync::oneshot::error::TryRecvError;
use uuid::Uuid;

use super::{
    Now, Step, Turn, TurnAnswer, Word,
    lease::{Adjusting, Lease, NOTHING, Size},
    raises::Raised,
};
use crate::{
    account::KeyId,
    ceiling::Ceiling,
    contract::{Adjusted, Adjustment, Hold, Item, Refusal, Settlement},
    money::MicroRub,
    testing::given::{acme as account, number},
    usage::End,
};

/// How long a lease may grant holds after each answered turn, in milliseconds.
const GRANTS_MS: u64 = 1_000;
const AT: Now = Now {
    steady: 100,
    wall: 100,
};
/// A time after the lease's permission to grant holds has ended.
const LATER: Now = Now {
    steady: 100 + GRANTS_MS,
    wall: 100 + GRANTS_MS,
};
/// With this target size, a lease neither requests money nor gives money back.
const KEEP: Size = Size {
    free: MicroRub::new(100),
    short_of: MicroRub::ZERO,
};

fn key() -> KeyId {
    "k1".parse().unwrap()
}

fn to(n: u128, sequence: u32, amount: i64) -> Adjustment {
    Adjustment {
        number: number(n),
        account: account(),
        key: key(),
        sequence,
        amount: MicroRub::new(amount),
    }
}

fn answer(word: Word, left: i64, free: i64) -> TurnAnswer {
    TurnAnswer {
        word,
        left: MicroRub::new(left),
        free: MicroRub::new(free),
        short: false,
        recalled: false,
        refusal: None,
        last: String::new(),
        ends: Vec::new(),
    }
}

/// Creates a lease of 100 µ₽ in which call 1 holds the first amount, call 2 the second, and so on.
fn lease(holds: &[i64]) -> Lease {
    let mut lease = Lease::new(number(1_000), &account(), &key(), GRANTS_MS);
    let open = lease.turn(KEEP, AT, Uuid::now_v7());
    lease.answered(&open, &answer(Word::Done, 100, 500));
    for (n, amount) in (1..).zip(holds) {
        let hold = Hold::new(
            number(n),
            account(),
            key(),
            MicroRub::new(*amount),
            Duration::from_secs(60),
        );
        lease.reserve(&hold, AT).unwrap().unwrap();
    }
    lease
}

fn settlement(n: u128, cost: i64) -> Settlement {
    Settlement {
        number: number(n),
        account: account(),
        key: key(),
        held: MicroRub::new(cost),
        cost: MicroRub::new(cost),
        fresh: true,
        lease: None,
        item: Item::new("m", "v", End::Finished),
    }
}

/// Changes a call's hold and returns the result that the lease decided in memory. Panics if the lease must wait for the
/// ledger.
fn local_answer(lease: &mut Lease, adjustment: &Adjustment, now: Now) -> Adjusted {
    match lease.adjust(adjustment, now) {
        Some(Adjusting::Done(adjusted)) => adjusted,
        Some(Adjusting::Waits(_)) => panic!("the lease waits for the ledger"),
        None => panic!("the lease does not have the call"),
    }
}

/// Changes a call's hold and returns the receiver of the ledger's answer. Panics if the lease decides the change in
/// memory.
fn waits(
    lease: &mut Lease,
    adjustment: &Adjustment,
    now: Now,
) -> tokio::sync::oneshot::Receiver<Raised> {
    match lease.adjust(adjustment, now) {
        Some(Adjusting::Waits(receiver)) => receiver,
        Some(Adjusting::Done(adjusted)) => panic!("the lease decided alone: {adjusted:?}"),
        None => panic!("the lease does not have the call"),
    }
}

fn next_turn(lease: &mut Lease, now: Now) -> Turn {
    lease.turn(KEEP, now, Uuid::now_v7())
}

fn held(amount: i64) -> Adjusted {
    Adjusted::Held(MicroRub::new(amount))
}

fn in_lease(lease: &Lease) -> (i64, i64) {
    (lease.held_by_calls().micro(), lease.free().micro())
}

fn received(receiver: &mut tokio::sync::oneshot::Receiver<Raised>) -> Result<Adjusted, Refusal> {
    receiver.try_recv().unwrap().unwrap()
}

#[test]
fn hold_is_changed_in_memory_while_the_lease_has_enough_money() {
    let mut lease = lease(&[60]);
    for (sequence, amount) in [(1, 10), (2, 100), (3, 0), (4, 40)] {
        assert_eq!(
            local_answer(&mut lease, &to(1, sequence, amount), AT),
            held(amount)
        );
        assert_eq!(in_lease(&lease), (amount, 100 - amount));
    }
    // A change with a lower sequence number has no effect, whatever its amount.
    assert_eq!(local_answer(&mut lease, &to(1, 4, 1_000), AT), held(40));
    assert!(lease.adjust(&to(2, 1, 1), AT).is_none());
    assert!(!lease.has_raises());
}

#[test]
fn hold_can_be_lowered_in_memory_but_not_raised_after_the_lease_stopped_granting_holds() {
    let mut lease = lease(&[60]);
    assert_eq!(local_answer(&mut lease, &to(1, 1, 20), LATER), held(20));
    assert_eq!(in_lease(&lease), (20, 80));
    // The lease is not allowed to grant now, so it must not use its free money: the ledger decides on the whole
    // increase.
    let mut receiver = waits(&mut lease, &to(1, 2, 50), LATER);
    let turn = lease.turn(NOTHING, LATER, Uuid::now_v7());
    assert_eq!(
        (turn.step, turn.give.micro(), turn.raise.micro()),
        (Step::GoOn, 80, 30)
    );
    lease.answered(&turn, &answer(Word::Refused, 20, 500));
    assert!(matches!(
        received(&mut receiver),
        Err(Refusal::DoesNotFit { .. })
    ));
    assert_eq!(in_lease(&lease), (20, 0));
}

#[test]
fn raise_that_the_ledger_refuses_fails_with_the_ledgers_reason() {
    let by_group = Refusal::DoesNotFit {
        free: MicroRub::new(7),
        held: MicroRub::new(300),
        ceiling: Some(Ceiling::GroupTotal),
    };
    let found = |refusal| {
        let mut lease = lease(&[60]);
        let mut receiver = waits(&mut lease, &to(1, 1, 900), AT);
        let turn = next_turn(&mut lease, AT);
        let word = match refusal {
            Some(Refusal::Disabled | Refusal::CeilingUsedUp(_)) => Word::Refused,
            _ => Word::Done,
        };
        let answer = TurnAnswer {
            refusal,
            ..answer(word, 100, 5)
        };
        lease.answered(&turn, &answer);
        received(&mut receiver)
    };
    let used_up = Refusal::CeilingUsedUp(Ceiling::Total);
    for refusal in [Refusal::Disabled, used_up] {
        assert_eq!(found(Some(refusal)), Err(refusal));
    }
    // In the refusal, `held` is the amount that the lease's calls hold by the lease's count, not by the ledger's count.
    for (refusal, ceiling) in [(Some(by_group), Some(Ceiling::GroupTotal)), (None, None)] {
        let free = MicroRub::new(45);
        let held = MicroRub::new(60);
        let expected = Refusal::DoesNotFit {
            free,
            held,
            ceiling,
        };
        assert_eq!(found(refusal), Err(expected));
    }
}

#[test]
fn next_lease_turn_requests_the_money_that_the_lease_lacks_for_raised_holds() {
    let mut lease = lease(&[60, 20]);
    let mut first = waits(&mut lease, &to(1, 1, 90), AT);
    let mut second = waits(&mut lease, &to(2, 1, 45), AT);
    assert!(lease.has_raises());
    let turn = next_turn(&mut lease, AT);
    // The holds of the two calls grow by 55 in total. The lease has 20 free, so its turn requests 35 from the ledger.
    assert_eq!(turn.raise.micro(), 35);
    assert!(matches!(first.try_recv(), Err(TryRecvError::Empty)));
    lease.answered(&turn, &answer(Word::Done, 135 + turn.more.micro(), 365));
    assert_eq!(received(&mut first), Ok(held(90)));
    assert_eq!(received(&mut second), Ok(held(45)));
    assert_eq!(in_lease(&lease), (135, turn.more.micro()));
    assert!(!lease.has_raises());
}

#[test]
fn hold_raises_are_granted_in_order_until_the_money_is_used_up() {
    let mut lease = lease(&[50, 50]);
    let mut large = waits(&mut lease, &to(1, 1, 90), AT);
    let mut small = waits(&mut lease, &to(2, 1, 60), AT);
    let turn = next_turn(&mut lease, AT);
    assert_eq!(turn.raise.micro(), 50);
    // The ledger grants only 15 of the requested 50.
    lease.answered(&turn, &answer(Word::Done, 115, 0));
    assert_eq!(
        received(&mut large),
        Err(Refusal::DoesNotFit {
            free: MicroRub::new(15),
            held: MicroRub::new(100),
            ceiling: None
        })
    );
    assert_eq!(received(&mut small), Ok(held(60)));
    assert_eq!(in_lease(&lease), (110, 5));
}

#[test]
fn hold_changes_fail_if_the_lease_turn_that_requests_them_gets_no_answer() {
    let mut lease = lease(&[100]);
    let mut first = waits(&mut lease, &to(1, 1, 150), AT);
    let turn = next_turn(&mut lease, AT);
    lease.unanswered("away".into());
    assert!(first.try_recv().unwrap().is_err());
    let mut again = waits(&mut lease, &to(1, 1, 150), AT);
    let repeated = next_turn(&mut lease, AT);
    assert_eq!(
        (&repeated.this, repeated.raise.micro()),
        (&turn.this, 50),
        "the same turn is sent again"
    );
    lease.answered(&repeated, &answer(Word::Done, 150, 0));
    // The answered turn was built before the second change was requested, so its answer does not decide the second
    // change.
    assert!(matches!(again.try_recv(), Err(TryRecvError::Empty)));
    let next = next_turn(&mut lease, AT);
    assert_eq!(next.raise.micro(), 0, "the lease has the money by now");
    lease.answered(&next, &answer(Word::Done, 150, 0));
    assert_eq!(received(&mut again), Ok(held(150)));
    assert_eq!(in_lease(&lease), (150, 0));
}

#[test]
fn no_money_is_requested_for_a_raised_hold_after_its_caller_disconnected() {
    let mut lease = lease(&[100]);
    drop(waits(&mut lease, &to(1, 1, 150), AT));
    assert_eq!(next_turn(&mut lease, AT).raise.micro(), 0);
}

#[test]
fn hold_change_has_no_effect_after_the_call_has_ended() {
    let mut lease = lease(&[50, 50]);
    let mut first = waits(&mut lease, &to(1, 1, 90), AT);
    let turn = next_turn(&mut lease, AT);
    assert_eq!(turn.raise.micro(), 40);
    lease.settle(&settlement(1, 50), AT).unwrap();
    assert!(lease.release(number(2), &key()));
    // The money that was requested for the ended call is in the lease now, as free money.
    lease.answered(&turn, &answer(Word::Done, 140, 0));
    assert_eq!(received(&mut first), Ok(Adjusted::Gone));
    assert_eq!(in_lease(&lease), (0, 90));
    assert_eq!(local_answer(&mut lease, &to(1, 2, 10), AT), Adjusted::Gone);
    assert!(lease.adjust(&to(2, 1, 10), AT).is_none());
}

#[test]
fn hold_against_a_lost_lease_can_be_lowered_but_not_raised() {
    let mut lease = lease(&[60]);
    let mut waiting = waits(&mut lease, &to(1, 1, 200), AT);
    let turn = next_turn(&mut lease, AT);
    lease.answered(&turn, &answer(Word::Gone, 0, 0));
    assert_eq!(received(&mut waiting), Ok(Adjusted::Gone));
    assert_eq!(local_answer(&mut lease, &to(1, 2, 70), AT), Adjusted::Gone);
    // A call's hold against a lost lease can still be lowered.
    assert_eq!(local_answer(&mut lease, &to(1, 3, 30), AT), held(30));
}

//! Tests of the promises that calls rely on: the ledger's answers to holds and settlements. They use only [`Ledger`].
//!
//! Each test begins with the accounts of [`super::openings`]: `acme` has 1000 µ₽ and the keys `k1` and `k2`; `other`
//! has 100 µ₽ and the key `k3`.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    desk::{again, booked, does_not_fit, probed, refused, release, reserved, settled},
    given::{HOUR, account, acme, due, hold, key, micro, number, settlement},
};
use crate::{
    account::AccountId,
    contract::{Booked, Hold, Ledger, LedgerError, Refusal, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// Returns the amount that a key of `acme` could hold now. To measure it, the function holds everything that is free,
/// and releases it.
pub(super) async fn free<L: Ledger>(ledger: &L, id: &str) -> i64 {
    free_of(ledger, &acme(), id).await
}

async fn free_of<L: Ledger>(ledger: &L, account: &AccountId, id: &str) -> i64 {
    let all = Hold {
        number: RequestNumber::now_v7(),
        account: account.clone(),
        least: MicroRub::ZERO,
        ..hold(0, id, MicroRub::MAX.micro())
    };
    match ledger.reserve(&all).await {
        Ok(reserved) => {
            expect_eq!(
                reserved.free,
                MicroRub::ZERO,
                "free next to a hold of everything"
            );
            ledger
                .release(all.number, account, &key(id))
                .await
                .expect("a hold is released");
            reserved.held.micro()
        }
        Err(LedgerError::Refused(Refusal::AccountEmpty)) => 0,
        answer => panic!("a hold of all that is free: expected to be granted, found {answer:?}"),
    }
}

/// Invariant I1: a hold gets at most the free money; if less than `least` is free, the hold is refused.
pub(super) async fn a_reserve_grants_between_the_least_and_the_wanted_amount<L: Ledger>(
    ledger: &L,
) {
    for (n, (want, least, answer)) in (1..).zip([
        (999, 999, Ok((999, 1))),
        (1000, 1000, Ok((1000, 0))),
        (1001, 1001, Err(does_not_fit(1000, 0))),
        (1500, 1, Ok((1000, 0))),
        (1500, 1000, Ok((1000, 0))),
        (1500, 1001, Err(does_not_fit(1000, 0))),
        (0, 0, Ok((0, 1000))),
    ]) {
        let hold = Hold {
            least: micro(least),
            ..hold(n, "k1", want)
        };
        match answer {
            Err(refusal) => expect_eq!(refused(ledger, &hold).await, refusal, "{hold:?}"),
            Ok((held, free)) => {
                let granted = reserved(ledger, &hold).await;
                let amounts = [granted.held, granted.free].map(MicroRub::micro);
                expect_eq!(amounts, [held, free], "{hold:?}");
                release(ledger, n, "k1").await;
            }
        }
        expect_eq!(free(ledger, "k1").await, 1000, "{hold:?}");
    }
}

/// Invariants I1 and I2: all keys of an account share its money; accounts share nothing.
pub(super) async fn holds_of_all_keys_count_against_the_account<L: Ledger>(ledger: &L) {
    reserved(ledger, &hold(1, "k1", 700)).await;
    let refusal = refused(ledger, &hold(2, "k1", 301)).await;
    expect_eq!(refusal, does_not_fit(300, 700));
    let refusal = refused(ledger, &hold(3, "k2", 301)).await;
    expect_eq!(refusal, does_not_fit(300, 0));
    reserved(ledger, &hold(4, "k2", 300)).await;
    for id in ["k1", "k2"] {
        expect_eq!(free(ledger, id).await, 0, "{id}");
    }
    expect_eq!(free_of(ledger, &account("other"), "k3").await, 100);
}

/// Invariant I1: concurrent holds never get more than the free money together.
pub(super) async fn concurrent_holds_are_granted_only_up_to_the_free_money<L: Ledger>(ledger: &L) {
    let holds: Vec<Hold> = (1..=200)
        .map(|n| hold(n, if n.is_multiple_of(2) { "k1" } else { "k2" }, 27))
        .collect();
    let answers = join_all(holds.iter().map(|hold| ledger.reserve(hold))).await;
    let granted = answers.iter().filter(|answer| answer.is_ok()).count();
    expect_eq!(granted, 37, "27 µ₽ each, of 1000");
    for (hold, answer) in holds.iter().zip(answers) {
        match answer {
            Ok(reserved) => {
                expect_eq!(reserved.held, hold.want);
                let settled = Settlement {
                    number: hold.number,
                    key: hold.key.clone(),
                    ..settlement(0, "k1", 27)
                };
                let settled = ledger.settle(&settled).await.expect("a hold is settled");
                expect_eq!(settled, booked(Booked::Held, 27, 0));
            }
            Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) => {}
            Err(error) => panic!("{hold:?}: {error:?}"),
        }
    }
    expect_eq!(free(ledger, "k1").await, 1000 - 37 * 27);
}

/// Invariant I5: a RESERVE whose answer was lost may be sent again.
pub(super) async fn a_repeated_reserve_is_granted_once<L: Ledger>(ledger: &L) {
    let new_hold = Hold {
        least: micro(50),
        ..hold(1, "k1", 80)
    };
    let first = reserved(ledger, &new_hold).await;
    expect_eq!([first.held, first.free], [80, 920].map(micro));
    expect_eq!(reserved(ledger, &new_hold).await, first);
    expect_eq!(free(ledger, "k1").await, 920);
    for other in [
        hold(1, "k2", 80),
        hold(1, "k1", 81),
        Hold {
            least: micro(51),
            ..new_hold
        },
    ] {
        expect_eq!(refused(ledger, &other).await, Refusal::Conflict);
    }
    expect_eq!(free(ledger, "k1").await, 920);
}

/// Invariant I5: no second hold can be made under the same request number.
pub(super) async fn a_reserve_for_an_ended_call_holds_nothing<L: Ledger>(ledger: &L) {
    for n in [1, 2] {
        reserved(ledger, &hold(n, "k1", 100)).await;
    }
    reserved(ledger, &due(3, "k1", 100)).await;
    settled(ledger, 1, "k1", 10).await;
    release(ledger, 2, "k1").await;
    expect_eq!(ledger.expire().await.expect("holds expire"), 1);
    settled(ledger, 4, "k1", 10).await;
    for n in 1..=4 {
        let refusal = refused(ledger, &hold(n, "k1", 100)).await;
        expect_eq!(refusal, Refusal::Gone, "{n}");
    }
    expect_eq!(free(ledger, "k1").await, 980);
}

/// If all money of an account is held but not spent, another hold is refused with "does not fit" and not with "empty".
pub(super) async fn an_account_is_empty_only_without_posted_money<L: Ledger>(ledger: &L) {
    reserved(ledger, &hold(1, "k1", 1000)).await;
    let refusal = refused(ledger, &hold(2, "k1", 1)).await;
    expect_eq!(refusal, does_not_fit(0, 1000));
    expect_eq!(probed(ledger, &acme(), "k1").await, Ok(()));
    settled(ledger, 1, "k1", 1000).await;
    for id in ["k1", "k2"] {
        let refusal = refused(ledger, &hold(3, id, 1)).await;
        expect_eq!(refusal, Refusal::AccountEmpty);
        expect_eq!(probed(ledger, &acme(), id).await, Err(refusal));
    }
}

/// Invariant I12: no request affects another account.
pub(super) async fn a_key_cannot_hold_money_of_another_account<L: Ledger>(ledger: &L) {
    for (call_scope, id) in [("acme", "k3"), ("nobody", "k1"), ("other", "k1")] {
        let call_scope = account(call_scope);
        let hold = Hold {
            account: call_scope.clone(),
            ..hold(1, id, 1)
        };
        let refusal = refused(ledger, &hold).await;
        expect_eq!(refusal, Refusal::Unknown, "{call_scope} {id}");
        expect_eq!(probed(ledger, &call_scope, id).await, Err(Refusal::Unknown));
        // To release or extend a hold of an unknown account or key does nothing, and is not an error.
        let released = ledger.release(number(2), &call_scope, &key(id)).await;
        released.expect("there is nothing to release");
        let extended = ledger.extend(number(3), &call_scope, HOUR).await;
        let extended = extended.expect("the ledger answers");
        expect_eq!(extended, false, "extends a hold that does not exist");
    }
    expect_eq!(free(ledger, "k1").await, 1000);
}

/// Invariants I2 and I3: a settlement moves the cost of the call from the balance to the spending, and ends the hold.
pub(super) async fn a_settlement_charges_the_cost_and_frees_the_hold<L: Ledger>(ledger: &L) {
    let mut left = 1000;
    for (n, cost) in [(1, 100), (2, 1), (3, 0), (4, 99)] {
        reserved(ledger, &hold(n, "k1", 100)).await;
        let paid = settled(ledger, n, "k1", cost).await;
        expect_eq!(paid, booked(Booked::Held, cost, 0));
        left -= cost;
        expect_eq!(free(ledger, "k1").await, left);
    }
}

/// Invariants I3 and I4: the balance never falls below the held amount, and every part of a cost is recorded in the
/// books.
pub(super) async fn a_cost_beyond_the_hold_takes_free_money<L: Ledger>(ledger: &L) {
    // The hold of another call is not charged, whatever this call costs.
    reserved(ledger, &hold(1, "k2", 300)).await;
    reserved(ledger, &hold(2, "k1", 100)).await;
    let paid = settled(ledger, 2, "k1", 150).await;
    expect_eq!(paid, booked(Booked::Held, 150, 0));
    reserved(ledger, &hold(3, "k1", 100)).await;
    let paid = settled(ledger, 3, "k1", 2000).await;
    expect_eq!(paid, booked(Booked::Held, 550, 1450));
    expect_eq!(free(ledger, "k1").await, 0);
    let paid = settled(ledger, 1, "k2", 301).await;
    expect_eq!(paid, booked(Booked::Held, 300, 1));
}

/// Invariant I5: a repeated settlement changes nothing, even if its amounts differ.
pub(super) async fn a_repeated_settlement_gets_the_first_result<L: Ledger>(ledger: &L) {
    reserved(ledger, &hold(1, "k1", 80)).await;
    let first = settled(ledger, 1, "k1", 70).await;
    for cost in [70, 0, 500] {
        expect_eq!(settled(ledger, 1, "k1", cost).await, again(first));
    }
    let stale = Settlement {
        fresh: false,
        ..settlement(1, "k1", 70)
    };
    let repeated = ledger
        .settle(&stale)
        .await
        .expect("the call was settled before");
    expect_eq!(repeated, again(first));
    release(ledger, 1, "k1").await;
    let extended = ledger.extend(number(1), &acme(), HOUR).await;
    let extended = extended.expect("the ledger answers");
    expect_eq!(extended, false, "extends a hold that was settled");
    expect_eq!(free(ledger, "k1").await, 930);
}

/// Invariants I3, I5 and I7: calls that are settled together get the same results as calls that are settled one by one.
pub(super) async fn settlements_of_one_batch_are_answered_in_order<L: Ledger>(ledger: &L) {
    expect_eq!(
        ledger.settle_all(&[]).await.len(),
        0,
        "answers to an empty batch"
    );
    reserved(ledger, &hold(1, "k1", 100)).await;
    reserved(ledger, &hold(2, "k2", 100)).await;
    let stale = Settlement {
        fresh: false,
        ..settlement(4, "k1", 40)
    };
    let calls = [
        settlement(1, "k1", 10),
        // The ledger has lost the hold of this call.
        settlement(3, "k1", 20),
        stale,
        settlement(2, "k2", 30),
    ];
    let first = [
        booked(Booked::Held, 10, 0),
        booked(Booked::Forced, 20, 0),
        booked(Booked::Stale, 0, 0),
        booked(Booked::Held, 30, 0),
    ];
    // A disputed settlement moved no money, so the next settlement of the same call does not count as a repeat.
    let repeated = first.map(|first| match first.booked {
        Booked::Stale => first,
        _ => again(first),
    });
    for expected in [first, repeated] {
        let answers = ledger.settle_all(&calls).await;
        let answers: Vec<_> = answers
            .into_iter()
            .map(|answer| answer.expect("the ledger answers"))
            .collect();
        expect_eq!(answers, expected);
        expect_eq!(free(ledger, "k1").await, 940);
    }
}

/// Invariants I5 and I9. When a caller disconnects, its RESERVE may still be in flight, and arrive after the release.
pub(super) async fn a_release_costs_nothing_and_blocks_later_requests_of_its_call<L: Ledger>(
    ledger: &L,
) {
    reserved(ledger, &hold(1, "k1", 100)).await;
    for _ in 0..2 {
        release(ledger, 1, "k1").await;
        expect_eq!(free(ledger, "k1").await, 1000);
    }
    let late = settled(ledger, 1, "k1", 40).await;
    expect_eq!(late, again(booked(Booked::Released, 0, 0)));
    release(ledger, 2, "k1").await;
    expect_eq!(refused(ledger, &hold(2, "k1", 10)).await, Refusal::Gone);
    expect_eq!(free(ledger, "k1").await, 1000);
}

/// Invariant I8: a hold expires if its owner does not end it.
pub(super) async fn holds_end_by_themselves_after_their_expiry<L: Ledger>(ledger: &L) {
    for n in 1..=3 {
        reserved(ledger, &due(n, "k1", 10)).await;
    }
    reserved(ledger, &hold(4, "k2", 10)).await;
    let extend = async |n: u128, ttl: Duration| {
        let extended = ledger.extend(number(n), &acme(), ttl).await;
        extended.expect("the ledger answers")
    };
    expect_eq!(extend(1, HOUR).await, true, "extends an open hold");
    expect_eq!(ledger.expire().await.expect("holds expire"), 2);
    expect_eq!(ledger.expire().await.expect("holds expire"), 0);
    expect_eq!(extend(4, Duration::ZERO).await, true, "shortens a hold");
    expect_eq!(ledger.expire().await.expect("holds expire"), 1);
    // A hold that has ended cannot be extended.
    for n in [2, 3, 4, 5] {
        expect_eq!(
            extend(n, HOUR).await,
            false,
            "extends hold {n}, which has ended"
        );
    }
    expect_eq!(free(ledger, "k1").await, 990);
}

/// Invariant I8: an expired hold ends when another hold needs its money, even before a sweep.
pub(super) async fn an_expired_hold_blocks_no_other_hold<L: Ledger>(ledger: &L) {
    for n in 1..=3 {
        reserved(ledger, &due(n, "k1", 300)).await;
    }
    reserved(ledger, &hold(4, "k2", 1000)).await;
}

/// Invariant I5: an expired hold is settled at most once. Invariant I4: its charge takes no money that another call
/// holds.
pub(super) async fn an_expired_hold_is_settled_late_once<L: Ledger>(ledger: &L) {
    for (n, want) in [(1, 500), (2, 400), (3, 100)] {
        reserved(ledger, &due(n, "k1", want)).await;
    }
    expect_eq!(ledger.expire().await.expect("holds expire"), 3);
    reserved(ledger, &hold(4, "k2", 600)).await;
    let first = settled(ledger, 1, "k1", 300).await;
    expect_eq!(first, booked(Booked::Late, 300, 0));
    let second = settled(ledger, 2, "k1", 400).await;
    expect_eq!(second, booked(Booked::Late, 100, 300));
    expect_eq!(settled(ledger, 1, "k1", 300).await, again(first));
    expect_eq!(settled(ledger, 2, "k1", 400).await, again(second));
    // This hold was released after it had expired, so it cannot be settled any more.
    release(ledger, 3, "k1").await;
    let third = settled(ledger, 3, "k1", 10).await;
    expect_eq!(third, again(booked(Booked::Released, 0, 0)));
}

/// Invariant I7: if a ledger has lost a hold, a settlement marked `fresh` is still charged. Invariant I3: without this
/// mark it moves no money, because the call may have been charged before.
pub(super) async fn a_call_without_a_hold_is_charged_by_force_while_fresh_and_is_stale_later<
    L: Ledger,
>(
    ledger: &L,
) {
    reserved(ledger, &hold(1, "k2", 300)).await;
    let first = settled(ledger, 2, "k1", 500).await;
    expect_eq!(first, booked(Booked::Forced, 500, 0));
    expect_eq!(settled(ledger, 2, "k1", 500).await, again(first));
    let second = settled(ledger, 3, "k1", 500).await;
    expect_eq!(second, booked(Booked::Forced, 200, 300));
    let stale = Settlement {
        fresh: false,
        ..settlement(4, "k1", 50)
    };
    for _ in 0..2 {
        let answer = ledger.settle(&stale).await.ok();
        expect_eq!(answer, Some(booked(Booked::Stale, 0, 0)));
    }
    // Even a fresh settlement moves no money if its key does not exist.
    let stray = settled(ledger, 5, "k9", 50).await;
    expect_eq!(stray, booked(Booked::Stale, 0, 0));
    let paid = settled(ledger, 1, "k2", 300).await;
    expect_eq!(paid, booked(Booked::Held, 300, 0));
}

/// Invariant I12: no request affects the money of another key.
pub(super) async fn a_settlement_by_a_key_without_the_hold_charges_nothing<L: Ledger>(ledger: &L) {
    reserved(ledger, &hold(1, "k1", 50)).await;
    for _ in 0..2 {
        let stray = settled(ledger, 1, "k2", 50).await;
        expect_eq!(stray, booked(Booked::Stale, 0, 0));
    }
    expect_eq!(free(ledger, "k2").await, 950);
    let own = settled(ledger, 1, "k1", 30).await;
    expect_eq!(own, booked(Booked::Held, 30, 0));
    let stray = Settlement {
        account: account("nobody"),
        ..settlement(2, "k1", 50)
    };
    for _ in 0..2 {
        let answer = ledger.settle(&stray).await.ok();
        expect_eq!(answer, Some(booked(Booked::NoAccount, 0, 0)));
    }
    expect_eq!(free(ledger, "k1").await, 970);
}

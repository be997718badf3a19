//! Tests that drop a future at each of its awaits, as happens when a caller disconnects or a timeout fires.
//!
//! A dropped future may have done all, some or none of its work. So each test repeats the operation and checks that the
//! money moved once.

use std::{future::poll_fn, pin::pin, task::Poll};

use super::{
    adjust::{adjusted, can_adjust, held, to},
    calls::free,
    desk::{again, booked, release, reserved, settled},
    given::{HOUR, acme, due, hold, micro, number, settlement},
};
use crate::contract::{Booked, Ledger, Settled, Settlement};

/// At most this many awaits of one future are tested.
const AWAITS_MAX: u16 = 64;
/// The largest number of sweeps after one dropped future; fewer suffice to end all holds.
const SWEEPS_MAX: u16 = 16;

/// Polls a future until it has been pending `awaits` times, and drops it when it is pending once more. Returns the
/// output of the future if it completes before that.
async fn dropped_after<F: Future>(awaits: u16, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = awaits;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Invariants I2 and I8: the hold exists in full or not at all, so releasing the call frees all of its money.
pub(super) async fn a_dropped_reserve_leaves_no_hold_after_its_release<L: Ledger>(ledger: &L) {
    for awaits in 0..AWAITS_MAX {
        let n = u128::from(awaits);
        let new_hold = hold(n, "k1", 300);
        let ended = dropped_after(awaits, ledger.reserve(&new_hold)).await;
        release(ledger, n, "k1").await;
        expect_eq!(
            free(ledger, "k1").await,
            1000,
            "free after a reserve was dropped at await {awaits} and its number released"
        );
        if ended.is_some() {
            break;
        }
    }
}

/// Invariant I8: money that a dropped RESERVE has taken is free again after the hold's time to live, even if no release
/// arrives.
pub(super) async fn a_dropped_reserve_leaves_no_hold_after_its_expiry<L: Ledger>(ledger: &L) {
    for awaits in 0..AWAITS_MAX {
        let new_hold = due(u128::from(awaits), "k1", 300);
        let ended = dropped_after(awaits, ledger.reserve(&new_hold)).await;
        // Makes another hold on the same account. The dropped RESERVE must not affect this other hold.
        free(ledger, "k1").await;
        ledger.expire().await.expect("holds expire");
        expect_eq!(
            free(ledger, "k1").await,
            1000,
            "free after a reserve was dropped at await {awaits} and its time to live passed"
        );
        if ended.is_some() {
            break;
        }
    }
}

/// Invariant I5: a dropped RESERVE can be repeated, like a RESERVE whose answer was lost.
pub(super) async fn a_dropped_reserve_that_is_repeated_is_granted_once<L: Ledger>(ledger: &L) {
    for awaits in 0..AWAITS_MAX {
        let n = u128::from(awaits);
        let new_hold = hold(n, "k1", 300);
        let ended = dropped_after(awaits, ledger.reserve(&new_hold)).await;
        let granted = reserved(ledger, &new_hold).await;
        expect_eq!(
            [granted.held, granted.free],
            [300, 700].map(micro),
            "held and free after a reserve was dropped at await {awaits} and sent again"
        );
        release(ledger, n, "k1").await;
        if ended.is_some() {
            break;
        }
    }
}

/// Invariants I3, I5 and I7: a settlement whose future was dropped is charged once when it is repeated.
pub(super) async fn a_dropped_settlement_that_is_repeated_charges_once<L: Ledger>(ledger: &L) {
    let mut left = 1000;
    for awaits in 0..AWAITS_MAX {
        let n = u128::from(awaits);
        reserved(ledger, &hold(n, "k1", 20)).await;
        let ended = dropped_after(awaits, ledger.settle(&settlement(n, "k1", 10))).await;
        left -= 10;
        let paid = settled(ledger, n, "k1", 10).await;
        expect_first(paid, 10, awaits);
        expect_eq!(
            free(ledger, "k1").await,
            left,
            "free after a settlement was dropped at await {awaits} and sent again"
        );
        if ended.is_some() {
            break;
        }
    }
}

/// Invariants I3, I5 and I7: each call of a batch whose future was dropped is charged once when the batch is repeated.
pub(super) async fn a_dropped_batch_of_settlements_that_is_repeated_charges_once<L: Ledger>(
    ledger: &L,
) {
    let mut left = 1000;
    for awaits in 0..AWAITS_MAX {
        let numbers = [1, 2, 3].map(|n| u128::from(awaits) * 3 + n);
        for n in numbers {
            reserved(ledger, &hold(n, "k1", 4)).await;
        }
        let calls: Vec<Settlement> = numbers.map(|n| settlement(n, "k1", 2)).into();
        let ended = dropped_after(awaits, ledger.settle_all(&calls)).await;
        left -= 6;
        for answer in ledger.settle_all(&calls).await {
            expect_first(answer.expect("a call is settled"), 2, awaits);
        }
        expect_eq!(
            free(ledger, "k1").await,
            left,
            "free after settlements were dropped at await {awaits} and sent again"
        );
        if ended.is_some() {
            break;
        }
    }
}

/// Asserts that the result is that of the first settlement. The result must be marked as repeated if the dropped
/// settlement was booked.
fn expect_first(paid: Settled, cost: i64, awaits: u16) {
    let first = booked(Booked::Held, cost, 0);
    assert!(
        paid == first || paid == again(first),
        "a settlement dropped at await {awaits} and sent again: expected {first:?}, perhaps marked as repeated, \
         found {paid:?}"
    );
}

/// Invariants I2 and I9: a release whose future was dropped frees the full hold when it is repeated.
pub(super) async fn a_dropped_release_that_is_repeated_frees_the_hold<L: Ledger>(ledger: &L) {
    for awaits in 0..AWAITS_MAX {
        let n = u128::from(awaits);
        let new_hold = hold(n, "k1", 300);
        reserved(ledger, &new_hold).await;
        let released = ledger.release(number(n), &new_hold.account, &new_hold.key);
        let ended = dropped_after(awaits, released).await;
        release(ledger, n, "k1").await;
        expect_eq!(
            free(ledger, "k1").await,
            1000,
            "free after a release was dropped at await {awaits} and sent again"
        );
        expect_eq!(
            settled(ledger, n, "k1", 10).await,
            again(booked(Booked::Released, 0, 0)),
            "a settlement after a release that was dropped at await {awaits} and sent again"
        );
        if ended.is_some() {
            break;
        }
    }
}

/// Invariant I5: after a dropped EXTEND, the hold still belongs to its call.
pub(super) async fn a_dropped_extension_does_not_end_the_hold<L: Ledger>(ledger: &L) {
    for awaits in 0..AWAITS_MAX {
        let n = u128::from(awaits);
        reserved(ledger, &hold(n, "k1", 10)).await;
        let account = acme();
        let ended = dropped_after(awaits, ledger.extend(number(n), &account, HOUR)).await;
        expect_eq!(
            settled(ledger, n, "k1", 10).await,
            booked(Booked::Held, 10, 0),
            "a settlement after an extension was dropped at await {awaits}"
        );
        if ended.is_some() {
            break;
        }
    }
}

/// Invariants I2 and I5: a dropped change of a hold, be it a decrease or an increase, counts once when it is repeated.
pub(super) async fn a_dropped_adjustment_that_is_repeated_counts_once<L: Ledger>(ledger: &L) {
    if !can_adjust(ledger).await {
        return;
    }
    for awaits in 0..AWAITS_MAX {
        let n = u128::from(awaits);
        reserved(ledger, &hold(n, "k1", 300)).await;
        let mut ended = true;
        for (sequence, amount) in [(1, 100), (2, 500)] {
            let adjustment = to(n, "k1", sequence, amount);
            ended &= dropped_after(awaits, ledger.adjust(&adjustment))
                .await
                .is_some();
            expect_eq!(
                adjusted(ledger, &adjustment).await,
                held(amount),
                "an adjustment to {amount} that was dropped at await {awaits} and sent again"
            );
            expect_eq!(
                free(ledger, "k1").await,
                1000 - amount,
                "free after an adjustment to {amount} was dropped at await {awaits} and sent again"
            );
        }
        release(ledger, n, "k1").await;
        if ended {
            break;
        }
    }
}

/// Invariants I2, I3 and I5: the hold has either its old or its new amount, and no money is held after the call has
/// ended.
pub(super) async fn a_dropped_adjustment_leaves_no_hold_after_its_call_ends<L: Ledger>(ledger: &L) {
    if !can_adjust(ledger).await {
        return;
    }
    let mut left = 1000;
    for awaits in 0..AWAITS_MAX {
        let mut ended = true;
        for (nth, amount) in [(1, 100), (2, 500)] {
            let n = u128::from(awaits) * 3 + nth;
            reserved(ledger, &hold(n, "k1", 300)).await;
            let adjustment = to(n, "k1", 1, amount);
            ended &= dropped_after(awaits, ledger.adjust(&adjustment))
                .await
                .is_some();
            expect_eq!(
                settled(ledger, n, "k1", 10).await,
                booked(Booked::Held, 10, 0),
                "a settlement after an adjustment to {amount} was dropped at await {awaits}"
            );
            left -= 10;
            expect_eq!(
                free(ledger, "k1").await,
                left,
                "free after an adjustment to {amount} was dropped at await {awaits} and its call settled"
            );
        }
        if ended {
            break;
        }
    }
}

/// Ends all expired holds. A single sweep may leave some of them.
async fn sweep_all<L: Ledger>(ledger: &L) {
    let mut ended = 0;
    for _ in 0..SWEEPS_MAX {
        ended = ledger.expire().await.expect("holds expire");
        if ended == 0 {
            return;
        }
    }
    panic!("holds ended by sweep {SWEEPS_MAX}: expected 0, found {ended}");
}

/// Invariants I2, I5 and I8: every expired hold ends, even if sweeps are dropped.
pub(super) async fn a_dropped_sweep_loses_no_hold<L: Ledger>(ledger: &L) {
    let mut left = 1000;
    for awaits in 0..AWAITS_MAX {
        let numbers = [1, 2, 3].map(|n| u128::from(awaits) * 3 + n);
        for n in numbers {
            reserved(ledger, &due(n, "k1", 100)).await;
        }
        let ended = dropped_after(awaits, ledger.expire()).await;
        sweep_all(ledger).await;
        expect_eq!(
            free(ledger, "k1").await,
            left,
            "free after a sweep was dropped at await {awaits} and another ended"
        );
        for n in numbers {
            expect_eq!(
                settled(ledger, n, "k1", 1).await,
                booked(Booked::Late, 1, 0),
                "a late settlement after a sweep was dropped at await {awaits}"
            );
        }
        left -= 3;
        if ended.is_some() {
            break;
        }
    }
}

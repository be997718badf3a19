//! Tests of holds: which amounts they get, when they are refused, and how long they live.

use super::{
    Books,
    desk::{
        booked, does_not_fit, key_money, money, now_ms, open, pay, probed, refused, release,
        reserved, set_ceiling, set_ceilings, set_status, settled, under,
    },
    given::{acme, due, hold, key, micro, record, topup},
};
use crate::{
    account::{AccountId, KeyDigest, KeyStatus},
    book::EXPIRE_ON_RESERVE_MAX,
    calendar::DAY_MS,
    ceiling::{Ceiling, Ceilings},
    contract::{BookError, Booked, Hold, KeyChange, Refusal},
};

/// Invariants I1 and I2: several holds together stay within the account's money and under the ceiling of each key.
pub(super) async fn holds_of_all_keys_count_against_the_account_and_a_ceiling_against_its_key<
    L: Books,
>(
    ledger: &L,
) {
    open(ledger, 1000).await;
    set_ceiling(ledger, "k2", Some(250)).await;
    reserved(ledger, &hold(1, "k1", 700)).await;
    expect_eq!(
        refused(ledger, &hold(2, "k1", 301)).await,
        does_not_fit(300, 700)
    );
    // Here, less remains under the key's ceiling than is free on the account.
    expect_eq!(
        refused(ledger, &hold(2, "k2", 251)).await,
        under(Ceiling::Total, 250, 0)
    );
    reserved(ledger, &hold(3, "k2", 200)).await;
    expect_eq!(
        refused(ledger, &hold(4, "k2", 51)).await,
        under(Ceiling::Total, 50, 200)
    );
    let part = Hold {
        least: micro(1),
        ..hold(4, "k2", 51)
    };
    expect_eq!(reserved(ledger, &part).await.held, micro(50));
    release(ledger, 4, "k2").await;
    reserved(ledger, &hold(5, "k1", 60)).await;
    // Here, less is free on the account than remains under the key's ceiling.
    expect_eq!(
        refused(ledger, &hold(6, "k2", 41)).await,
        does_not_fit(40, 200)
    );
    expect_eq!(money(ledger).await, [1000, 960, 0, 0]);
    expect_eq!(key_money(ledger, "k1").await, [0, 760, 40]);
    expect_eq!(key_money(ledger, "k2").await, [0, 200, 40]);
    for (n, id, cost) in [(1, "k1", 700), (3, "k2", 150), (5, "k1", 1)] {
        let paid = settled(ledger, n, id, cost).await;
        expect_eq!(paid, booked(Booked::Held, cost, 0));
    }
    expect_eq!(money(ledger).await, [149, 0, 851, 0]);
    expect_eq!(key_money(ledger, "k2").await, [150, 0, 100]);
}

pub(super) async fn a_ceiling_can_be_raised_lowered_and_removed<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    settled(ledger, 1, "k1", 100).await;
    for (ceiling, free) in [
        (Some(400), 300),
        (Some(100), 0),
        (Some(40), 0),
        (Some(0), 0),
        (Some(5000), 900),
        (None, 900),
    ] {
        let view = set_ceiling(ledger, "k1", ceiling).await;
        expect_eq!(view.ceiling_rub, ceiling.map(micro));
        expect_eq!(view.free_rub, micro(free), "{ceiling:?}");
        let probe = probed(ledger, &acme(), "k1").await;
        let expected = match free {
            0 => Err(Refusal::CeilingUsedUp(Ceiling::Total)),
            _ => Ok(()),
        };
        expect_eq!(probe, expected, "{ceiling:?}");
    }
}

/// Invariant I1: each of a key's ceilings limits its holds. A refusal names the ceiling with the smallest remainder,
/// and when it resets.
pub(super) async fn a_key_has_separate_ceilings_of_day_and_month<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    let ceilings = Ceilings {
        total: Some(micro(600)),
        month: Some(micro(400)),
        day: Some(micro(250)),
    };
    let view = set_ceilings(ledger, "k1", ceilings).await;
    let shown = [view.month, view.day].map(|period| (period.ceiling_rub, period.spent_rub));
    let expected = [400, 250].map(|ceiling| (Some(micro(ceiling)), micro(0)));
    expect_eq!((shown, view.free_rub), (expected, micro(250)));
    let [month, day] = [view.month, view.day].map(|period| period.resets_at_ms);
    let now = now_ms();
    assert!(day > now && day <= now + DAY_MS && day.is_multiple_of(DAY_MS));
    assert!(month >= day && month <= now + 31 * DAY_MS && month.is_multiple_of(DAY_MS));
    let (month, day) = (
        Ceiling::Month {
            resets_at_ms: month,
        },
        Ceiling::Day { resets_at_ms: day },
    );

    expect_eq!(
        refused(ledger, &hold(1, "k1", 251)).await,
        under(day, 250, 0)
    );
    reserved(ledger, &hold(1, "k1", 200)).await;
    expect_eq!(
        refused(ledger, &hold(2, "k1", 51)).await,
        under(day, 50, 200)
    );
    // Held money counts against both the ceiling per month and the ceiling per day, because it is unknown on which day
    // the call will be charged.
    let part = Hold {
        least: micro(1),
        ..hold(2, "k1", 500)
    };
    let rest = reserved(ledger, &part).await;
    expect_eq!((rest.held, rest.free), (micro(50), micro(0)));
    settled(ledger, 2, "k1", 50).await;
    settled(ledger, 1, "k1", 200).await;
    expect_eq!(
        refused(ledger, &hold(3, "k1", 1)).await,
        Refusal::CeilingUsedUp(day)
    );
    expect_eq!(
        probed(ledger, &acme(), "k1").await,
        Err(Refusal::CeilingUsedUp(day))
    );

    // The charges also count under the key's other ceilings.
    let without_day = Ceilings {
        day: None,
        ..ceilings
    };
    let view = set_ceilings(ledger, "k1", without_day).await;
    expect_eq!((view.day.ceiling_rub, view.free_rub), (None, micro(150)));
    expect_eq!(
        [view.day, view.month].map(|period| period.spent_rub),
        [250, 250].map(micro)
    );
    expect_eq!(
        refused(ledger, &hold(4, "k1", 151)).await,
        under(month, 150, 0)
    );
    reserved(ledger, &hold(5, "k1", 150)).await;
    settled(ledger, 5, "k1", 150).await;
    expect_eq!(
        refused(ledger, &hold(6, "k1", 1)).await,
        Refusal::CeilingUsedUp(month)
    );
    // If two ceilings are used up, the refusal names the one that resets later.
    set_ceilings(ledger, "k1", ceilings).await;
    expect_eq!(
        probed(ledger, &acme(), "k1").await,
        Err(Refusal::CeilingUsedUp(month))
    );
    let view = set_ceilings(ledger, "k1", Ceilings::total(micro(600))).await;
    expect_eq!(view.free_rub, micro(200));
    // The ceilings of key `k1` do not limit other keys.
    reserved(ledger, &hold(7, "k2", 600)).await;
}

/// Invariant I5: a RESERVE whose answer was lost may be sent again.
pub(super) async fn a_repeated_hold_is_granted_once<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let new_hold = Hold {
        least: micro(50),
        ..hold(1, "k1", 80)
    };
    let first = reserved(ledger, &new_hold).await;
    expect_eq!(first.free, micro(20));
    expect_eq!(reserved(ledger, &new_hold).await, first);
    // If another hold was granted before the repeat, the answer to the repeated RESERVE has the amount that is free
    // now.
    reserved(ledger, &hold(2, "k2", 15)).await;
    let second = reserved(ledger, &new_hold).await;
    expect_eq!((second.held, second.free), (micro(80), micro(5)));
    // The repeat succeeds even on a disabled key, because the hold exists.
    set_status(ledger, "k1", KeyStatus::Disabled).await;
    expect_eq!(reserved(ledger, &new_hold).await, second);
    expect_eq!(money(ledger).await, [100, 95, 0, 0]);
}

pub(super) async fn unknown_accounts_and_keys_cannot_be_read_or_changed<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let nobody: AccountId = "nobody".parse().unwrap();
    let missing = [
        ledger.account(&nobody).await.map(drop),
        ledger.keys(&nobody).await.map(drop),
        ledger.key(&key("k3")).await.map(drop),
        ledger.change_account(&nobody, None, None).await.map(drop),
        ledger.enter(&nobody, &topup("t", 1)).await.map(drop),
        ledger
            .change_key(&key("k3"), &KeyChange::default())
            .await
            .map(drop),
        ledger
            .create_key(&record(&nobody, "k3", 3), Ceilings::NONE)
            .await
            .map(drop),
    ];
    for answer in missing {
        expect_matches!(answer, Err(BookError::NotFound));
    }
    let found = ledger.find_key(&KeyDigest::new([3; 32])).await.unwrap();
    expect_eq!(found, None);
}

/// Invariant I12: once the ledger has acknowledged that a key is disabled, the key gets no hold, even at a gateway that
/// has cached the key.
pub(super) async fn a_disabled_key_gets_no_new_hold_and_its_running_calls_are_charged<L: Books>(
    ledger: &L,
) {
    open(ledger, 1000).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    set_status(ledger, "k1", KeyStatus::Disabled).await;
    expect_eq!(refused(ledger, &hold(2, "k1", 1)).await, Refusal::Disabled);
    expect_eq!(probed(ledger, &acme(), "k1").await, Err(Refusal::Disabled));
    reserved(ledger, &hold(3, "k2", 1)).await;
    let paid = settled(ledger, 1, "k1", 60).await;
    expect_eq!(paid, booked(Booked::Held, 60, 0));
    set_status(ledger, "k1", KeyStatus::Active).await;
    reserved(ledger, &hold(4, "k1", 1)).await;
    expect_eq!(money(ledger).await, [940, 2, 60, 0]);
}

pub(super) async fn a_suspended_account_gets_no_new_hold_and_its_running_calls_are_charged<
    L: Books,
>(
    ledger: &L,
) {
    open(ledger, 1000).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    let suspend = async |suspended: bool| {
        let view = ledger.change_account(&acme(), None, Some(suspended)).await;
        expect_eq!(view.unwrap().suspended, suspended);
    };
    suspend(true).await;
    for id in ["k1", "k2"] {
        expect_eq!(refused(ledger, &hold(2, id, 1)).await, Refusal::Suspended);
        expect_eq!(probed(ledger, &acme(), id).await, Err(Refusal::Suspended));
    }
    pay(ledger, "second", 5).await;
    let paid = settled(ledger, 1, "k1", 60).await;
    expect_eq!(paid, booked(Booked::Held, 60, 0));
    suspend(false).await;
    reserved(ledger, &hold(3, "k2", 1)).await;
    expect_eq!(money(ledger).await, [945, 1, 60, 0]);
}

pub(super) async fn the_most_serious_refusal_is_reported<L: Books>(ledger: &L) {
    open(ledger, 0).await;
    set_ceiling(ledger, "k1", Some(0)).await;
    set_status(ledger, "k1", KeyStatus::Disabled).await;
    let suspend = async |suspended: bool| {
        let view = ledger.change_account(&acme(), None, Some(suspended)).await;
        view.unwrap();
    };
    suspend(true).await;
    let check = async |refusal: Refusal| {
        expect_eq!(refused(ledger, &hold(1, "k1", 1)).await, refusal);
        expect_eq!(probed(ledger, &acme(), "k1").await, Err(refusal));
    };
    check(Refusal::Disabled).await;
    set_status(ledger, "k1", KeyStatus::Active).await;
    check(Refusal::Suspended).await;
    suspend(false).await;
    check(Refusal::AccountEmpty).await;
    pay(ledger, "first", 10).await;
    check(Refusal::CeilingUsedUp(Ceiling::Total)).await;
    set_ceiling(ledger, "k1", None).await;
    expect_eq!(
        refused(ledger, &hold(1, "k1", 11)).await,
        does_not_fit(10, 0)
    );
    expect_eq!(probed(ledger, &acme(), "k1").await, Ok(()));
}

/// Invariant I8: in an idle account, expired holds end without a request of a caller.
pub(super) async fn only_holds_past_their_expiry_are_ended<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    ledger
        .create_key(&record(&other, "k3", 3), Ceilings::NONE)
        .await
        .unwrap();
    ledger.enter(&other, &topup("first", 100)).await.unwrap();
    for n in 1..=4 {
        reserved(ledger, &due(n, "k1", 10)).await;
    }
    reserved(ledger, &hold(5, "k2", 10)).await;
    let others = Hold {
        account: other.clone(),
        ..due(6, "k3", 50)
    };
    reserved(ledger, &others).await;
    settled(ledger, 1, "k1", 5).await;
    release(ledger, 2, "k1").await;
    expect_eq!(ledger.expire().await.unwrap(), 3);
    expect_eq!(ledger.expire().await.unwrap(), 0);
    expect_eq!(money(ledger).await, [995, 10, 5, 0]);
    let view = ledger.account(&other).await.unwrap();
    expect_eq!((view.held_rub, view.free_rub), (micro(0), micro(100)));
}

/// Invariant I8: a RESERVE that does not fit ends expired holds of its account, but only a limited number.
pub(super) async fn a_reserve_that_does_not_fit_ends_some_expired_holds_of_its_account<L: Books>(
    ledger: &L,
) {
    let some = i64::try_from(EXPIRE_ON_RESERVE_MAX).unwrap();
    open(ledger, some + 8).await;
    for n in 1..=u128::try_from(some + 8).unwrap() {
        reserved(ledger, &due(n, "k1", 1)).await;
    }
    expect_eq!(
        refused(ledger, &hold(100, "k2", some + 8)).await,
        does_not_fit(some, 0)
    );
    expect_eq!(money(ledger).await, [some + 8, 8, 0, 0]);
    // A RESERVE that fits does not end the remaining expired holds.
    reserved(ledger, &hold(101, "k2", some)).await;
    expect_eq!(money(ledger).await, [some + 8, some + 8, 0, 0]);
    reserved(ledger, &hold(102, "k2", 8)).await;
    expect_eq!(key_money(ledger, "k1").await, [0, 0, 0]);
    expect_eq!(money(ledger).await, [some + 8, some + 8, 0, 0]);
}

//! Tests of how a hold ends (it is settled, released or expires exactly once), and of the charge and the receipt that
//! follow.

use super::{
    Books,
    desk::{
        again, booked, money, now_ms, open, pay, refused, release, reserved, set_ceiling,
        set_ceilings, settled,
    },
    given::{HOUR, acme, due, hold, item, key, micro, number, settlement},
};
use crate::{
    account::AccountId,
    ceiling::Ceilings,
    contract::{BookError, Booked, Item, JournalLine, JournalPart, Receipt, Settlement},
    usage::End,
};

/// Invariants I3 and I4: the balance never falls below the held amount, and every part of a cost is recorded in the
/// books.
pub(super) async fn a_cost_beyond_the_hold_takes_free_money_and_the_rest_is_loss<L: Books>(
    ledger: &L,
) {
    open(ledger, 1000).await;
    // The hold of another call is not charged, whatever this call costs.
    reserved(ledger, &hold(1, "k2", 300)).await;
    reserved(ledger, &hold(2, "k1", 100)).await;
    let paid = settled(ledger, 2, "k1", 150).await;
    expect_eq!(paid, booked(Booked::Held, 150, 0));
    // The ceiling of a key limits a charge too. 250 are spent or held, so 30 remain under the ceiling.
    set_ceiling(ledger, "k1", Some(280)).await;
    reserved(ledger, &hold(3, "k1", 100)).await;
    let paid = settled(ledger, 3, "k1", 200).await;
    expect_eq!(paid, booked(Booked::Held, 130, 70));
    set_ceiling(ledger, "k1", None).await;
    reserved(ledger, &hold(4, "k1", 100)).await;
    let paid = settled(ledger, 4, "k1", 1000).await;
    expect_eq!(paid, booked(Booked::Held, 420, 580));
    expect_eq!(money(ledger).await, [300, 300, 700, 650]);
    let paid = settled(ledger, 1, "k2", 301).await;
    expect_eq!(paid, booked(Booked::Held, 300, 1));
    expect_eq!(money(ledger).await, [0, 0, 1000, 651]);
}

/// Invariant I1: the ceilings per day and per month also limit a charge beyond the hold.
pub(super) async fn a_cost_beyond_the_hold_stays_below_the_days_ceiling<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    let ceilings = Ceilings {
        day: Some(micro(250)),
        ..Ceilings::NONE
    };
    set_ceilings(ledger, "k1", ceilings).await;
    reserved(ledger, &hold(1, "k1", 100)).await;
    reserved(ledger, &hold(2, "k1", 60)).await;
    // In addition to the two holds, the key has 90 free under its ceiling per day.
    let paid = settled(ledger, 1, "k1", 300).await;
    expect_eq!(paid, booked(Booked::Held, 190, 110));
    // The second call is still charged from its hold, although nothing more is free under the ceilings.
    let paid = settled(ledger, 2, "k1", 61).await;
    expect_eq!(paid, booked(Booked::Held, 60, 1));
    let paid = settled(ledger, 3, "k1", 5).await;
    expect_eq!(paid, booked(Booked::Forced, 0, 5));
    let view = ledger.key(&key("k1")).await.unwrap();
    expect_eq!(
        [view.spent_rub, view.day.spent_rub, view.month.spent_rub],
        [250; 3].map(micro)
    );
}

pub(super) async fn a_lowered_ceiling_does_not_take_back_a_hold<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    set_ceiling(ledger, "k1", Some(500)).await;
    reserved(ledger, &hold(1, "k1", 400)).await;
    let view = set_ceiling(ledger, "k1", Some(50)).await;
    expect_eq!((view.held_rub, view.free_rub), (micro(400), micro(0)));
    let paid = settled(ledger, 1, "k1", 450).await;
    expect_eq!(paid, booked(Booked::Held, 400, 50));
    expect_eq!(money(ledger).await, [600, 0, 400, 50]);
}

/// Invariant I5: a repeated settlement changes nothing, even if its amounts differ.
pub(super) async fn a_repeated_settlement_is_answered_with_the_first_result<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 80)).await;
    let first = settled(ledger, 1, "k1", 120).await;
    expect_eq!(first, booked(Booked::Held, 100, 20));
    pay(ledger, "second", 500).await;
    for cost in [120, 0, 500] {
        expect_eq!(settled(ledger, 1, "k1", cost).await, again(first));
    }
    let stale = Settlement {
        fresh: false,
        ..settlement(1, "k1", 120)
    };
    expect_eq!(ledger.settle(&stale).await.unwrap(), again(first));
    release(ledger, 1, "k1").await;
    assert!(!ledger.extend(number(1), &acme(), HOUR).await.unwrap());
    expect_eq!(money(ledger).await, [500, 0, 100, 20]);
    let receipt = ledger.receipt(number(1)).await.unwrap();
    expect_eq!(
        ledger.receipt_of(&acme(), number(1)).await.unwrap(),
        receipt
    );
    let other: AccountId = "other".parse().unwrap();
    expect_matches!(
        ledger.receipt_of(&other, number(1)).await,
        Err(BookError::NotFound)
    );
    expect_eq!(
        (receipt.cost_rub, receipt.charged_rub),
        (micro(120), micro(100))
    );
}

/// Invariant I12: no request affects the money of another key. The hold remains, and a settlement by the hold's own key
/// is booked and has a receipt.
pub(super) async fn a_settlement_by_another_key_than_the_holds_charges_nothing<L: Books>(
    ledger: &L,
) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 50)).await;
    reserved(ledger, &due(2, "k1", 20)).await;
    ledger.expire().await.unwrap();
    for n in [1, 2] {
        for _ in 0..2 {
            let stray = settled(ledger, n, "k2", 50).await;
            expect_eq!(stray, booked(Booked::Stale, 0, 0));
        }
        // The ledger records the disputed settlement as a receipt.
        let receipt = ledger.receipt(number(n)).await.unwrap();
        expect_eq!((&*receipt.key, receipt.booked), ("k2", Booked::Stale));
    }
    expect_eq!(money(ledger).await, [100, 50, 0, 0]);
    for (n, cost, how) in [(1, 30, Booked::Held), (2, 10, Booked::Late)] {
        let own = settled(ledger, n, "k1", cost).await;
        expect_eq!(own, booked(how, cost, 0));
        let receipt = ledger.receipt(number(n)).await.unwrap();
        expect_eq!(
            (&*receipt.key, receipt.booked, receipt.charged_rub),
            ("k1", how, micro(cost))
        );
    }
    expect_eq!(money(ledger).await, [60, 0, 40, 0]);
}

/// A settlement without a hold that is not marked `fresh` is recorded as disputed. The call may still be charged later.
pub(super) async fn a_stale_settlement_can_be_charged_later<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    for n in [1, 2] {
        let stale = Settlement {
            fresh: false,
            ..settlement(n, "k1", 50)
        };
        let answer = ledger.settle(&stale).await.unwrap();
        expect_eq!(answer, booked(Booked::Stale, 0, 0));
    }
    let forced = settled(ledger, 1, "k1", 30).await;
    expect_eq!(forced, booked(Booked::Forced, 30, 0));
    reserved(ledger, &hold(2, "k1", 40)).await;
    let paid = settled(ledger, 2, "k1", 40).await;
    expect_eq!(paid, booked(Booked::Held, 40, 0));
    for (n, first) in [(1, forced), (2, paid)] {
        let receipt = ledger.receipt(number(n)).await.unwrap();
        expect_eq!(
            (receipt.booked, receipt.charged_rub),
            (first.booked, first.charged)
        );
        expect_eq!(settled(ledger, n, "k1", 50).await, again(first));
    }
    expect_eq!(money(ledger).await, [30, 0, 70, 0]);
}

/// Invariants I3 and I11: a receipt contains every field of the settlement, including the prices from the beginning of
/// the call, and the journal contains the same receipt.
pub(super) async fn a_receipt_has_the_amounts_of_its_settlement<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 60)).await;
    reserved(ledger, &due(2, "k2", 30)).await;
    ledger.expire().await.unwrap();
    let full = item(0);
    let plain = Item::new(full.model, full.vendor, End::Finished);
    let calls = [
        (settlement(1, "k1", 70), Booked::Held, 70, 0),
        (
            Settlement {
                item: Item {
                    end: End::VendorCut,
                    ..item(10)
                },
                held: micro(30),
                ..settlement(2, "k2", 10)
            },
            Booked::Late,
            10,
            0,
        ),
        (
            Settlement {
                item: Item {
                    end: End::VendorError,
                    ..plain.clone()
                },
                held: micro(0),
                ..settlement(3, "k2", 50)
            },
            Booked::Forced,
            20,
            30,
        ),
        (
            Settlement {
                fresh: false,
                lease: None,
                item: plain,
                ..settlement(4, "k1", 5)
            },
            Booked::Stale,
            0,
            0,
        ),
    ];
    let mut receipts = Vec::new();
    for (call, how, charged, loss) in calls {
        let before = now_ms();
        let answer = ledger.settle(&call).await.unwrap();
        let after = now_ms();
        expect_eq!(answer, booked(how, charged, loss));
        let receipt = ledger.receipt(call.number).await.unwrap();
        assert!(
            (before..=after).contains(&receipt.at_ms),
            "{before} {after} {receipt:?}"
        );
        let expected = Receipt {
            number: call.number,
            at_ms: receipt.at_ms,
            account: call.account,
            key: call.key,
            group: None,
            held_rub: call.held,
            cost_rub: call.cost,
            charged_rub: micro(charged),
            loss_rub: micro(loss),
            booked: how,
            item: call.item,
        };
        expect_eq!(receipt, expected);
        receipts.push(receipt);
    }
    let page = ledger.journal(&acme(), &JournalPart::whole()).await;
    let lines = page
        .unwrap()
        .lines
        .into_iter()
        .filter_map(|line| match line {
            JournalLine::Call(receipt) => Some(receipt),
            JournalLine::Entry { .. } => None,
        });
    expect_eq!(lines.collect::<Vec<_>>(), receipts);
}

/// Invariant I9: only a charged call has a receipt.
pub(super) async fn only_settled_calls_have_a_receipt<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    for n in [1, 2] {
        reserved(ledger, &hold(n, "k1", 10)).await;
    }
    reserved(ledger, &due(3, "k1", 10)).await;
    ledger.expire().await.unwrap();
    release(ledger, 2, "k1").await;
    settled(ledger, 2, "k1", 5).await;
    refused(ledger, &hold(4, "k1", 1000)).await;
    for n in 1..=5 {
        let answer = ledger.receipt(number(n)).await;
        expect_matches!(answer, Err(BookError::NotFound));
    }
}

//! Tests of the events that a ledger emits.

use futures_util::future::join_all;

use super::{
    Books,
    desk::{
        levels, of_group, of_key, open, pay, reserved, set, set_ceiling, set_ceilings, settled,
    },
    given::{acme, correction, hold, key, micro, number, settlement},
    groups::make,
};
use crate::{
    ceiling::Ceilings,
    contract::{BookError, EventStore, OnceEvent},
    happening::{CeilingKind, Event, Happening, Levels, Watched},
};

async fn reported<L: EventStore>(ledger: &L) -> Vec<Event> {
    let last = ledger.gather().await.unwrap();
    let events = ledger.events(0, 1000).await.unwrap();
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    expect_eq!(numbers, (1..=last).collect::<Vec<_>>());
    events
}

async fn kinds<L: EventStore>(ledger: &L) -> Vec<&'static str> {
    let events = reported(ledger).await;
    events.iter().map(|event| event.what.kind()).collect()
}

async fn charge<L: Books>(ledger: &L, n: u128, id: &str, cost: i64) {
    reserved(ledger, &hold(n, id, cost)).await;
    settled(ledger, n, id, cost).await;
}

/// Invariant I10: an entry is booked once, so it emits one event.
pub(super) async fn each_entry_emits_one_event_in_order<L: Books + EventStore>(ledger: &L) {
    open(ledger, 100).await;
    pay(ledger, "first", 100).await;
    ledger.enter(&acme(), &correction("c", -30)).await.unwrap();
    let refused = ledger.enter(&acme(), &correction("d", -100)).await;
    expect_matches!(refused, Err(BookError::BelowHeld));
    let events = reported(ledger).await;
    let reported: Vec<_> = events.iter().map(|event| event.what.clone()).collect();
    expect_eq!(
        reported,
        [
            Happening::TopUp {
                entry: "first".into(),
                amount_rub: micro(100),
                balance_rub: micro(100),
            },
            Happening::Correction {
                entry: "c".into(),
                amount_rub: micro(-30),
                reason: "a mistake".into(),
                balance_rub: micro(70),
            },
        ]
    );
    assert!(
        events
            .iter()
            .all(|event| event.account == Some(acme()) && event.at_ms > 0)
    );
    expect_eq!(ledger.events(1, 10).await.unwrap(), events[1..]);
    expect_eq!(ledger.events(0, 1).await.unwrap(), events[..1]);
    expect_eq!(ledger.events(2, 10).await.unwrap(), []);
}

pub(super) async fn of_many_charges_at_once_one_passes_a_level<L: Books + EventStore>(ledger: &L) {
    open(ledger, 1000).await;
    let of_account = levels(&[700, 600]);
    set(ledger, &Watched::Balance, of_account).await;
    let calls: Vec<u128> = (1..=500).collect();
    let holds: Vec<_> = calls.iter().map(|n| hold(*n, "k1", 1)).collect();
    for held in join_all(holds.iter().map(|hold| ledger.reserve(hold))).await {
        held.unwrap();
    }
    let ends: Vec<_> = calls.iter().map(|n| settlement(*n, "k1", 1)).collect();
    for end in join_all(ends.iter().map(|end| ledger.settle(end))).await {
        end.unwrap();
    }
    // Repeated settlements move no money and emit no event.
    for end in join_all(ends.iter().take(50).map(|end| ledger.settle(end))).await {
        assert!(end.unwrap().repeated);
    }
    let events = reported(ledger).await;
    let low: Vec<_> = events[1..].iter().map(|event| &event.what).collect();
    let [
        Happening::BalanceLow {
            level_rub: first,
            balance_rub: left,
            ..
        },
        Happening::BalanceLow {
            level_rub: second, ..
        },
    ] = low.as_slice()
    else {
        panic!("{events:?}");
    };
    expect_eq!([*first, *left, *second], [700, 700, 600].map(micro));
}

pub(super) async fn a_payment_above_a_level_lets_it_be_reported_again<L: Books + EventStore>(
    ledger: &L,
) {
    open(ledger, 100).await;
    set(ledger, &Watched::Balance, levels(&[50, 20])).await;
    charge(ledger, 1, "k1", 50).await;
    charge(ledger, 2, "k1", 10).await;
    // The balance is 40, which is below the alert level of 50. If it is still below 50 after a payment, the level is
    // not reported again.
    pay(ledger, "second", 5).await;
    charge(ledger, 3, "k2", 5).await;
    pay(ledger, "third", 60).await;
    // If the balance falls below two levels at once, only the lower level is reported.
    ledger.enter(&acme(), &correction("c", -90)).await.unwrap();
    expect_eq!(
        kinds(ledger).await,
        [
            "top_up",
            "balance_low",
            "top_up",
            "top_up",
            "correction",
            "balance_low"
        ]
    );
    let last = reported(ledger).await.pop().unwrap();
    let expected = Happening::BalanceLow {
        level_rub: micro(20),
        balance_rub: micro(10),
        by: "c".into(),
    };
    expect_eq!((last.what, last.key), (expected, None));
}

pub(super) async fn ceilings_tell_when_they_run_low_and_when_they_are_reached<
    L: Books + EventStore,
>(
    ledger: &L,
) {
    open(ledger, 10_000).await;
    let day = Ceilings {
        day: Some(micro(500)),
        ..Ceilings::total(micro(1000))
    };
    set_ceilings(ledger, "k1", day).await;
    set(ledger, &of_key("k1"), levels(&[300])).await;
    charge(ledger, 1, "k1", 200).await;
    charge(ledger, 2, "k1", 295).await;
    // The ceiling of another key has its own events.
    set_ceiling(ledger, "k2", Some(100)).await;
    charge(ledger, 3, "k2", 98).await;
    charge(ledger, 4, "k2", 1).await;
    charge(ledger, 5, "k2", 1).await;
    let events = reported(ledger).await;
    let reported: Vec<_> = events[1..]
        .iter()
        .map(|event| (event.key.as_deref(), event.what.clone()))
        .collect();
    let by = |n: u128| number(n).to_string();
    let low = Happening::CeilingLow {
        group: None,
        ceiling: CeilingKind::Day,
        ceiling_rub: micro(500),
        level_rub: micro(300),
        left_rub: micro(300),
        by: by(1),
    };
    let reached = |ceiling, of, left, n| Happening::CeilingReached {
        group: None,
        ceiling,
        ceiling_rub: micro(of),
        left_rub: micro(left),
        by: by(n),
    };
    expect_eq!(
        reported,
        [
            (Some("k1"), low),
            (Some("k1"), reached(CeilingKind::Day, 500, 5, 2)),
            (Some("k2"), reached(CeilingKind::Total, 100, 1, 4)),
        ]
    );
}

pub(super) async fn levels_are_those_that_were_set<L: Books + EventStore>(ledger: &L) {
    open(ledger, 0).await;
    make(ledger, "g1", Ceilings::NONE).await;
    expect_eq!(ledger.levels(&acme()).await.unwrap(), []);
    // A group may have the same id as a key.
    make(ledger, "k2", Ceilings::NONE).await;
    let some = [
        (Watched::Balance, levels(&[5, 7])),
        (of_key("k2"), levels(&[3])),
        (of_group("g1"), levels(&[4])),
        (of_group("k2"), levels(&[2, 1])),
    ];
    for (of, levels) in &some {
        set(ledger, of, *levels).await;
    }
    expect_eq!(ledger.levels(&acme()).await.unwrap(), some);
    for (of, _) in &some {
        set(ledger, of, Levels::NONE).await;
    }
    expect_eq!(ledger.levels(&acme()).await.unwrap(), []);
    let (nobody, some) = ("nobody".parse().unwrap(), levels(&[5]));
    for refused in [
        ledger.set_levels(&nobody, &Watched::Balance, some).await,
        ledger.set_levels(&nobody, &of_group("g1"), some).await,
        ledger.set_levels(&acme(), &of_key("k9"), some).await,
        ledger.set_levels(&acme(), &of_group("k1"), some).await,
        ledger.levels(&nobody).await.map(drop),
    ] {
        expect_matches!(refused, Err(BookError::NotFound));
    }
}

pub(super) async fn an_event_with_the_same_name_is_emitted_once<L: Books + EventStore>(ledger: &L) {
    open(ledger, 0).await;
    let event = |once: &str| OnceEvent {
        once: once.into(),
        account: Some(acme()),
        key: Some(key("k1")),
        what: Happening::KeyExpiring { expires_at_ms: 7 },
    };
    let one = event("expiring:k1:7");
    let many = join_all((0..20).map(|_| ledger.emit_once(&one))).await;
    let added = many.into_iter().map(Result::unwrap).filter(|added| *added);
    expect_eq!(added.count(), 1);
    assert!(ledger.emit_once(&event("expiring:k1:8")).await.unwrap());
    let events = reported(ledger).await;
    expect_eq!(events.len(), 2);
    expect_eq!(events[0].what, one.what);
    expect_eq!(
        (&events[0].account, &events[0].key),
        (&one.account, &one.key)
    );
}

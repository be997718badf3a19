//! What a ledger tells.

use futures_util::future::join_all;

use super::{
    Books,
    desk::{open, pay, reserved, set_ceiling, set_ceilings, settled},
    given::{acme, correction, hold, key, micro, number, settlement},
    groups::make,
};
use crate::{
    ceiling::Ceilings,
    contract::{BookError, Feed, Telling},
    happening::{CeilingKind, Event, Happening, Levels, Watched},
};

async fn told<L: Feed>(ledger: &L) -> Vec<Event> {
    let last = ledger.gather().await.unwrap();
    let events = ledger.events(0, 1000).await.unwrap();
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    assert_eq!(numbers, (1..=last).collect::<Vec<_>>());
    events
}

async fn kinds<L: Feed>(ledger: &L) -> Vec<&'static str> {
    let events = told(ledger).await;
    events.iter().map(|event| event.what.kind()).collect()
}

pub(super) fn levels(amounts: &[i64]) -> Levels {
    let amounts: Vec<_> = amounts.iter().copied().map(micro).collect();
    Levels::new(&amounts).unwrap()
}

pub(super) fn of_key(id: &str) -> Watched {
    Watched::Key(key(id))
}

pub(super) fn of_group(id: &str) -> Watched {
    Watched::Group(id.parse().unwrap())
}

pub(super) async fn set<L: Feed>(ledger: &L, of: &Watched, levels: Levels) {
    ledger.set_levels(&acme(), of, levels).await.unwrap();
}

async fn charge<L: Books>(ledger: &L, n: u128, id: &str, cost: i64) {
    reserved(ledger, &hold(n, id, cost)).await;
    settled(ledger, n, id, cost).await;
}

/// I10.
pub(super) async fn each_entry_is_told_once_in_order<L: Books + Feed>(ledger: &L) {
    open(ledger, 100).await;
    pay(ledger, "first", 100).await;
    ledger.enter(&acme(), &correction("c", -30)).await.unwrap();
    let refused = ledger.enter(&acme(), &correction("d", -100)).await;
    assert!(matches!(refused, Err(BookError::BelowHeld)), "{refused:?}");
    let events = told(ledger).await;
    let told: Vec<_> = events.iter().map(|event| event.what.clone()).collect();
    assert_eq!(
        told,
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
    assert_eq!(ledger.events(1, 10).await.unwrap(), events[1..]);
    assert_eq!(ledger.events(0, 1).await.unwrap(), events[..1]);
    assert_eq!(ledger.events(2, 10).await.unwrap(), []);
}

pub(super) async fn of_many_charges_at_once_one_passes_a_level<L: Books + Feed>(ledger: &L) {
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
    // Told again, nothing moves, and nothing is told.
    for end in join_all(ends.iter().take(50).map(|end| ledger.settle(end))).await {
        assert!(end.unwrap().repeated);
    }
    let events = told(ledger).await;
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
    assert_eq!([*first, *left, *second], [700, 700, 600].map(micro));
}

pub(super) async fn a_payment_lets_a_level_be_told_again<L: Books + Feed>(ledger: &L) {
    open(ledger, 100).await;
    set(ledger, &Watched::Balance, levels(&[50, 20])).await;
    charge(ledger, 1, "k1", 50).await;
    charge(ledger, 2, "k1", 10).await;
    // 40 left: what does not get it above the level does not let it be told again.
    pay(ledger, "second", 5).await;
    charge(ledger, 3, "k2", 5).await;
    pay(ledger, "third", 60).await;
    // Both at once: the lower one is told.
    ledger.enter(&acme(), &correction("c", -90)).await.unwrap();
    assert_eq!(
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
    let last = told(ledger).await.pop().unwrap();
    let expected = Happening::BalanceLow {
        level_rub: micro(20),
        balance_rub: micro(10),
        by: "c".into(),
    };
    assert_eq!((last.what, last.key), (expected, None));
}

pub(super) async fn ceilings_tell_when_they_run_low_and_when_they_are_reached<L: Books + Feed>(
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
    // Another key is nobody's but its own.
    set_ceiling(ledger, "k2", Some(100)).await;
    charge(ledger, 3, "k2", 98).await;
    charge(ledger, 4, "k2", 1).await;
    charge(ledger, 5, "k2", 1).await;
    let events = told(ledger).await;
    let told: Vec<_> = events[1..]
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
    assert_eq!(
        told,
        [
            (Some("k1"), low),
            (Some("k1"), reached(CeilingKind::Day, 500, 5, 2)),
            (Some("k2"), reached(CeilingKind::Total, 100, 1, 4)),
        ]
    );
}

pub(super) use super::groups::{
    a_group_tells_when_its_ceiling_is_reached, a_group_tells_when_its_ceilings_run_low,
};

pub(super) async fn levels_are_those_that_were_set<L: Books + Feed>(ledger: &L) {
    open(ledger, 0).await;
    make(ledger, "g1", Ceilings::NONE).await;
    assert_eq!(ledger.levels(&acme()).await.unwrap(), []);
    // A group may be called as a key is.
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
    assert_eq!(ledger.levels(&acme()).await.unwrap(), some);
    for (of, _) in &some {
        set(ledger, of, Levels::NONE).await;
    }
    assert_eq!(ledger.levels(&acme()).await.unwrap(), []);
    let (nobody, some) = ("nobody".parse().unwrap(), levels(&[5]));
    for refused in [
        ledger.set_levels(&nobody, &Watched::Balance, some).await,
        ledger.set_levels(&nobody, &of_group("g1"), some).await,
        ledger.set_levels(&acme(), &of_key("k9"), some).await,
        ledger.set_levels(&acme(), &of_group("k1"), some).await,
        ledger.levels(&nobody).await.map(drop),
    ] {
        assert!(matches!(refused, Err(BookError::NotFound)), "{refused:?}");
    }
}

pub(super) async fn what_was_told_before_is_not_told_again<L: Books + Feed>(ledger: &L) {
    open(ledger, 0).await;
    let telling = |once: &str| Telling {
        once: once.into(),
        account: Some(acme()),
        key: Some(key("k1")),
        what: Happening::KeyExpiring { expires_at_ms: 7 },
    };
    let one = telling("expiring:k1:7");
    let many = join_all((0..20).map(|_| ledger.tell(&one))).await;
    let added = many.into_iter().map(Result::unwrap).filter(|added| *added);
    assert_eq!(added.count(), 1);
    assert!(ledger.tell(&telling("expiring:k1:8")).await.unwrap());
    let events = told(ledger).await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].what, one.what);
    assert_eq!(
        (&events[0].account, &events[0].key),
        (&one.account, &one.key)
    );
}

pub(super) async fn a_note_is_changed_by_who_knows_its_version<L: Books + Feed>(ledger: &L) {
    assert_eq!(ledger.note("a/1").await.unwrap(), None);
    let tries = join_all((0..10).map(|_| ledger.put_note("a/1", 0, "один: {}"))).await;
    let (written, refused): (Vec<_>, Vec<_>) = tries.into_iter().partition(Result::is_ok);
    assert_eq!((written.len(), refused.len()), (1, 9));
    assert!(
        refused
            .iter()
            .all(|answer| matches!(answer, Err(BookError::Exists)))
    );
    let note = ledger.note("a/1").await.unwrap().unwrap();
    assert_eq!((note.version, note.text.as_str()), (1, "один: {}"));
    ledger.put_note("a/1", 1, "two").await.unwrap();
    ledger.put_note("a/2", 0, "three").await.unwrap();
    ledger.put_note("b/1", 0, "four").await.unwrap();
    let notes = ledger.notes("a/").await.unwrap();
    let notes: Vec<_> = notes
        .iter()
        .map(|note| (&*note.name, note.version, &*note.text))
        .collect();
    assert_eq!(notes, [("a/1", 2, "two"), ("a/2", 1, "three")]);
    assert!(ledger.put_note("a/1", 1, "").await.is_err());
    ledger.put_note("a/1", 2, "").await.unwrap();
    assert_eq!(ledger.note("a/1").await.unwrap(), None);
}

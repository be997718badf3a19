//! Contract tests of groups of keys, and of the limit of a key's open calls.

use std::collections::BTreeMap;

use super::{
    Books,
    adjust::{adjusted, can_adjust, held, to},
    desk::{
        levels, of_group, of_key, open, refused, release, reserved, set, set_ceiling, set_status,
        settled,
    },
    given::{acme, due, hold, key, micro, record, settlement},
};
use crate::{
    account::{GroupId, KeyStatus},
    ceiling::{Ceiling, Ceilings},
    contract::{
        BookError, Booked, EventStore, GroupChange, GroupRecord, GroupView, Hold, JournalLine,
        JournalPart, KeyChange, LedgerError, Refusal, Settlement,
    },
    happening::{CeilingKind, Happening},
};

/// How many holds are requested at the same time.
const AT_ONCE: u128 = 64;

fn group(id: &str) -> GroupId {
    id.parse().unwrap()
}

pub(super) async fn make<L: Books>(ledger: &L, id: &str, ceilings: Ceilings) -> GroupView {
    let record = GroupRecord {
        id: group(id),
        name: "Отдел".into(),
        removed: false,
    };
    let made = ledger.create_group(&acme(), &record, ceilings).await;
    made.unwrap()
}

async fn put<L: Books>(ledger: &L, id: &str, into: Option<&str>) {
    let change = KeyChange {
        group: Some(into.map(group)),
        ..KeyChange::default()
    };
    let view = ledger.change_key(&key(id), &change).await.unwrap();
    expect_eq!(view.record.group, into.map(group));
}

async fn change<L: Books>(
    ledger: &L,
    id: &str,
    change: GroupChange,
) -> Result<GroupView, BookError> {
    ledger.change_group(&acme(), &group(id), &change).await
}

async fn set_group_ceiling<L: Books>(ledger: &L, id: &str, ceiling: Option<i64>) -> GroupView {
    let lowered = GroupChange {
        ceiling: Some(ceiling.map(micro)),
        ..GroupChange::default()
    };
    change(ledger, id, lowered).await.unwrap()
}

async fn set_concurrency<L: Books>(ledger: &L, id: &str, concurrency: Option<u32>) {
    let change = KeyChange {
        concurrency: Some(concurrency),
        ..KeyChange::default()
    };
    let view = ledger.change_key(&key(id), &change).await.unwrap();
    expect_eq!(view.record.concurrency, concurrency);
}

/// Returns a group's spending, held amount, free amount and amount carried by keys that joined or left, in this order.
async fn money_of<L: Books>(ledger: &L, id: &str) -> [i64; 4] {
    let groups = ledger.groups(&acme()).await.unwrap();
    let view = groups.iter().find(|view| view.record.id == group(id));
    let view = view.unwrap();
    let shown = ledger.books(&acme()).await.unwrap().groups;
    assert!(shown.iter().any(|shown| shown.record == view.record));
    [
        view.spent_rub,
        view.held_rub,
        view.free_rub,
        view.carried_rub,
    ]
    .map(crate::money::MicroRub::micro)
}

fn beyond(ceiling: Ceiling, free: i64, held: i64) -> Refusal {
    Refusal::DoesNotFit {
        free: micro(free),
        held: micro(held),
        ceiling: Some(ceiling),
    }
}

/// Invariants I1 and I2: a group's ceiling limits what all keys of the group hold and spend together.
pub(super) async fn all_keys_of_a_group_together_spend_at_most_its_ceiling<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    make(ledger, "g1", Ceilings::total(micro(300))).await;
    put(ledger, "k1", Some("g1")).await;
    put(ledger, "k2", Some("g1")).await;
    let granted = reserved(ledger, &hold(1, "k1", 200)).await;
    expect_eq!(granted.free, micro(100));
    expect_eq!(
        refused(ledger, &hold(2, "k2", 101)).await,
        beyond(Ceiling::GroupTotal, 100, 0)
    );
    let less = Hold {
        least: micro(10),
        ..hold(3, "k2", 150)
    };
    expect_eq!(reserved(ledger, &less).await.held, micro(100));
    expect_eq!(money_of(ledger, "g1").await, [0, 300, 0, 0]);
    let view = ledger.key(&key("k2")).await.unwrap();
    expect_eq!((view.free_rub, view.held_rub), (micro(0), micro(100)));
    release(ledger, 3, "k2").await;
    // A call that costs more than its hold is charged at most what was still free under the group's ceiling.
    expect_eq!(settled(ledger, 1, "k1", 350).await.charged, micro(300));
    expect_eq!(money_of(ledger, "g1").await, [300, 0, 0, 0]);
    for id in ["k1", "k2"] {
        expect_eq!(
            refused(ledger, &hold(4, id, 1)).await,
            Refusal::CeilingUsedUp(Ceiling::GroupTotal)
        );
        let probed = ledger.probe(&acme(), &key(id)).await.unwrap_err();
        assert!(matches!(
            probed,
            LedgerError::Refused(Refusal::CeilingUsedUp(Ceiling::GroupTotal))
        ));
    }
    set_group_ceiling(ledger, "g1", Some(301)).await;
    reserved(ledger, &hold(5, "k2", 1)).await;
    set_group_ceiling(ledger, "g1", None).await;
    reserved(ledger, &hold(6, "k2", 600)).await;
}

/// A hold must fit under the group's ceiling, under the key's own ceiling, and into the account's money.
pub(super) async fn a_hold_is_granted_only_if_account_key_and_group_allow_it<L: Books>(ledger: &L) {
    open(ledger, 250).await;
    make(ledger, "g1", Ceilings::total(micro(200))).await;
    put(ledger, "k1", Some("g1")).await;
    set_ceiling(ledger, "k1", Some(50)).await;
    expect_eq!(
        refused(ledger, &hold(1, "k1", 51)).await,
        beyond(Ceiling::Total, 50, 0)
    );
    set_ceiling(ledger, "k1", None).await;
    expect_eq!(
        refused(ledger, &hold(1, "k1", 201)).await,
        beyond(Ceiling::GroupTotal, 200, 0)
    );
    // Key `k2` is in no group, so its holds do not count for the group.
    reserved(ledger, &hold(2, "k2", 100)).await;
    expect_eq!(
        refused(ledger, &hold(1, "k1", 151)).await,
        Refusal::DoesNotFit {
            free: micro(150),
            held: micro(0),
            ceiling: None
        }
    );
    reserved(ledger, &hold(3, "k1", 150)).await;
}

/// Invariants I1 and I2: a hold grows only as far as the ceiling of its key's group allows.
pub(super) async fn a_hold_grows_only_if_the_group_allows_it<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    if !can_adjust(ledger).await {
        return;
    }
    make(ledger, "g1", Ceilings::total(micro(300))).await;
    put(ledger, "k1", Some("g1")).await;
    put(ledger, "k2", Some("g1")).await;
    reserved(ledger, &hold(1, "k1", 150)).await;
    reserved(ledger, &hold(2, "k2", 100)).await;
    expect_eq!(
        adjusted(ledger, &to(1, "k1", 1, 201)).await,
        Err(beyond(Ceiling::GroupTotal, 50, 150))
    );
    expect_eq!(adjusted(ledger, &to(1, "k1", 2, 200)).await, held(200));
    expect_eq!(money_of(ledger, "g1").await, [0, 300, 0, 0]);
    expect_eq!(adjusted(ledger, &to(2, "k2", 1, 40)).await, held(40));
    expect_eq!(money_of(ledger, "g1").await, [0, 240, 60, 0]);
    settled(ledger, 1, "k1", 20).await;
    release(ledger, 2, "k2").await;
    expect_eq!(money_of(ledger, "g1").await, [20, 0, 280, 0]);
}

/// Invariant I1: concurrent calls of two keys in one group never get more than the group's ceiling allows.
pub(super) async fn a_group_admits_concurrent_calls_only_up_to_its_ceiling<L: Books>(ledger: &L) {
    open(ledger, 1_000_000).await;
    make(ledger, "g1", Ceilings::total(micro(100))).await;
    put(ledger, "k1", Some("g1")).await;
    put(ledger, "k2", Some("g1")).await;
    let holds: Vec<Hold> = (0..AT_ONCE)
        .map(|n| hold(n, ["k1", "k2"][usize::from(n % 2 == 1)], 10))
        .collect();
    let requested = holds.iter().map(|hold| ledger.reserve(hold));
    let answers = futures_util::future::join_all(requested).await;
    expect_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 10);
    expect_eq!(money_of(ledger, "g1").await, [0, 100, 0, 0]);
    for (hold, answer) in holds.iter().zip(answers) {
        if answer.is_ok() {
            ledger
                .release(hold.number, &acme(), &hold.key)
                .await
                .unwrap();
        }
    }
    expect_eq!(money_of(ledger, "g1").await, [0, 0, 100, 0]);
}

/// Invariants I2 and I3: the sums of a group stay right while keys join and leave it.
pub(super) async fn a_key_that_joins_a_group_brings_its_holds_and_its_spending_stays_when_it_leaves<
    L: Books,
>(
    ledger: &L,
) {
    open(ledger, 1000).await;
    make(ledger, "g1", Ceilings::total(micro(500))).await;
    make(ledger, "g2", Ceilings::NONE).await;
    reserved(ledger, &hold(1, "k1", 70)).await;
    settled(ledger, 1, "k1", 70).await;
    reserved(ledger, &hold(2, "k1", 30)).await;
    put(ledger, "k1", Some("g1")).await;
    expect_eq!(money_of(ledger, "g1").await, [0, 30, 470, -70]);
    settled(ledger, 2, "k1", 30).await;
    reserved(ledger, &hold(3, "k1", 40)).await;
    put(ledger, "k1", Some("g2")).await;
    expect_eq!(money_of(ledger, "g1").await, [30, 0, 470, 30]);
    expect_eq!(money_of(ledger, "g2").await, [0, 40, 860, -100]);
    settled(ledger, 3, "k1", 40).await;
    expect_eq!(money_of(ledger, "g2").await, [40, 0, 860, -100]);
    put(ledger, "k1", None).await;
    expect_eq!(money_of(ledger, "g2").await, [40, 0, 860, 40]);
    let elsewhere = KeyChange {
        group: Some(Some(group("nowhere"))),
        ..KeyChange::default()
    };
    let refused = ledger.change_key(&key("k1"), &elsewhere).await.unwrap_err();
    expect_matches!(refused, BookError::NoGroup);
    expect_eq!(ledger.key(&key("k1")).await.unwrap().record.group, None);
    // A key may be created in a group. If the group does not exist, the creation fails.
    let mut third = record(&acme(), "k3", 3);
    third.group = Some(group("nowhere"));
    let refused = ledger.create_key(&third, Ceilings::NONE).await.unwrap_err();
    expect_matches!(refused, BookError::NoGroup);
    third.group = Some(group("g1"));
    ledger.create_key(&third, Ceilings::NONE).await.unwrap();
    reserved(ledger, &hold(4, "k3", 11)).await;
    expect_eq!(money_of(ledger, "g1").await, [30, 11, 459, 30]);
}

/// A receipt names the group whose spending includes the charge: the group that the key was in when the call was
/// booked. So the receipts of a group add up to its spending.
pub(super) async fn receipts_of_a_group_add_up_to_its_spending<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    make(ledger, "g1", Ceilings::total(micro(100))).await;
    make(ledger, "g2", Ceilings::NONE).await;
    reserved(ledger, &hold(1, "k1", 70)).await;
    settled(ledger, 1, "k1", 70).await;
    // The hold of call 2 is made while its key is in no group, and the call is charged while the key is in a group.
    // Call 5 is held in one group and charged in another.
    reserved(ledger, &hold(2, "k1", 30)).await;
    put(ledger, "k1", Some("g1")).await;
    settled(ledger, 2, "k1", 20).await;
    put(ledger, "k2", Some("g1")).await;
    for (n, cost) in [(3, 7), (4, 5)] {
        reserved(ledger, &hold(n, "k2", 10)).await;
        settled(ledger, n, "k2", cost).await;
    }
    reserved(ledger, &hold(5, "k1", 40)).await;
    put(ledger, "k1", Some("g2")).await;
    settled(ledger, 5, "k1", 40).await;
    // Call 6 is charged although its hold was lost. Call 7 never had a hold, so its charge is disputed.
    settled(ledger, 6, "k2", 3).await;
    let unknown = Settlement {
        fresh: false,
        ..settlement(7, "k2", 3)
    };
    let unknown = ledger.settle(&unknown).await.unwrap();
    expect_eq!(unknown.booked, Booked::Stale);
    put(ledger, "k1", None).await;
    put(ledger, "k2", None).await;
    let page = ledger.journal(&acme(), &JournalPart::whole()).await;
    let mut charged: BTreeMap<Option<GroupId>, Vec<i64>> = BTreeMap::new();
    for line in page.unwrap().lines {
        if let JournalLine::Call(receipt) = line {
            expect_eq!(ledger.receipt(receipt.number).await.unwrap(), receipt);
            let of_group = charged.entry(receipt.group).or_default();
            of_group.push(receipt.charged_rub.micro());
        }
    }
    let expected = [
        (None, vec![70, 0]),
        (Some(group("g1")), vec![20, 7, 5, 3]),
        (Some(group("g2")), vec![40]),
    ];
    expect_eq!(charged, BTreeMap::from(expected));
    for id in ["g1", "g2"] {
        let sum: i64 = charged[&Some(group(id))].iter().sum();
        expect_eq!(money_of(ledger, id).await[0], sum, "{id}");
    }
}

pub(super) async fn expired_holds_no_longer_count_in_their_group<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    make(ledger, "g1", Ceilings::total(micro(100))).await;
    put(ledger, "k1", Some("g1")).await;
    put(ledger, "k2", Some("g1")).await;
    reserved(ledger, &due(1, "k1", 60)).await;
    // An expired hold counts in its group until another hold needs the money.
    reserved(ledger, &hold(2, "k2", 90)).await;
    expect_eq!(money_of(ledger, "g1").await, [0, 90, 10, 0]);
    // The expired call is charged late, from the amount that is free under the group's ceiling.
    let late = settled(ledger, 1, "k1", 60).await;
    expect_eq!((late.booked, late.charged), (Booked::Late, micro(10)));
    expect_eq!(money_of(ledger, "g1").await, [10, 90, 0, 0]);
}

pub(super) async fn a_group_is_created_once_and_removed_only_without_keys<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let ceilings = Ceilings {
        total: None,
        month: Some(micro(50)),
        day: Some(micro(40)),
    };
    let made = make(ledger, "g1", ceilings).await;
    expect_eq!(make(ledger, "g1", ceilings).await, made);
    expect_eq!(made.ceilings(), ceilings);
    let other = GroupRecord {
        name: "Другой".into(),
        ..made.record.clone()
    };
    let refused = ledger.create_group(&acme(), &other, ceilings).await;
    expect_matches!(refused, Err(BookError::Exists));
    let renamed = GroupChange {
        name: Some("Другой".into()),
        ..GroupChange::default()
    };
    let renamed = change(ledger, "g1", renamed).await.unwrap();
    expect_eq!((renamed.record, renamed.ceiling_rub), (other, None));
    put(ledger, "k1", Some("g1")).await;
    let day = refused_by(ledger, 1, 41).await;
    assert!(matches!(
        day,
        Refusal::DoesNotFit {
            ceiling: Some(Ceiling::GroupDay { .. }),
            ..
        }
    ));
    let remove = || GroupChange {
        remove: true,
        ..GroupChange::default()
    };
    let in_use = change(ledger, "g1", remove()).await;
    expect_matches!(in_use, Err(BookError::GroupInUse));
    set_status(ledger, "k1", KeyStatus::Deleted).await;
    assert!(change(ledger, "g1", remove()).await.unwrap().record.removed);
    let again = ledger
        .create_group(&acme(), &made.record, ceilings)
        .await
        .unwrap_err();
    expect_matches!(again, BookError::Exists);
    let into = KeyChange {
        group: Some(Some(group("g1"))),
        ..KeyChange::default()
    };
    let refused = ledger.change_key(&key("k2"), &into).await.unwrap_err();
    expect_matches!(refused, BookError::NoGroup);
    let nowhere = change(ledger, "nowhere", remove()).await;
    expect_matches!(nowhere, Err(BookError::NotFound));
}

async fn refused_by<L: Books>(ledger: &L, n: u128, want: i64) -> Refusal {
    refused(ledger, &hold(n, "k1", want)).await
}

/// A key has at most as many open calls as its limit allows, whatever they cost. When a call ends, another one may
/// begin.
pub(super) async fn a_key_has_at_most_its_limit_of_open_calls<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    // Calls that were opened before the limit was set count towards it.
    reserved(ledger, &hold(1, "k1", 10)).await;
    set_concurrency(ledger, "k1", Some(2)).await;
    reserved(ledger, &hold(2, "k1", 0)).await;
    let full = Refusal::TooManyCalls { most: 2 };
    expect_eq!(refused_by(ledger, 3, 1).await, full);
    // A repeated hold belongs to the same call, so it is granted.
    reserved(ledger, &hold(2, "k1", 0)).await;
    reserved(ledger, &hold(4, "k2", 10)).await;
    settled(ledger, 1, "k1", 10).await;
    reserved(ledger, &due(5, "k1", 10)).await;
    // At the limit of open calls, an expired hold is ended to admit another call.
    reserved(ledger, &hold(6, "k1", 10)).await;
    expect_eq!(refused_by(ledger, 7, 1).await, full);
    release(ledger, 2, "k1").await;
    reserved(ledger, &hold(8, "k1", 10)).await;
    expect_eq!(refused_by(ledger, 9, 1).await, full);
    set_concurrency(ledger, "k1", Some(3)).await;
    reserved(ledger, &hold(10, "k1", 10)).await;
    set_concurrency(ledger, "k1", None).await;
    reserved(ledger, &hold(11, "k1", 10)).await;
    set_concurrency(ledger, "k1", Some(1)).await;
    for n in [6, 8, 10, 11] {
        expect_eq!(
            refused_by(ledger, 12, 1).await,
            Refusal::TooManyCalls { most: 1 }
        );
        release(ledger, n, "k1").await;
    }
    reserved(ledger, &hold(13, "k1", 10)).await;
}

pub(super) async fn concurrent_calls_of_a_key_are_admitted_up_to_its_limit<L: Books>(ledger: &L) {
    open(ledger, 1_000_000).await;
    make(ledger, "g1", Ceilings::NONE).await;
    put(ledger, "k1", Some("g1")).await;
    set_concurrency(ledger, "k1", Some(7)).await;
    let holds: Vec<Hold> = (0..AT_ONCE).map(|n| hold(n, "k1", 10)).collect();
    let requested = holds.iter().map(|hold| ledger.reserve(hold));
    let answers = futures_util::future::join_all(requested).await;
    expect_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 7);
}

/// The event for a reached ceiling of a group is emitted once, and names the group but no key.
pub(in crate::testing) async fn a_group_reports_when_its_ceiling_is_reached<
    L: Books + EventStore,
>(
    ledger: &L,
) {
    open(ledger, 1000).await;
    make(ledger, "g1", Ceilings::total(micro(100))).await;
    put(ledger, "k1", Some("g1")).await;
    put(ledger, "k2", Some("g1")).await;
    for (n, id, cost) in [(1, "k1", 60), (2, "k2", 39), (3, "k1", 1)] {
        reserved(ledger, &hold(n, id, cost)).await;
        settled(ledger, n, id, cost).await;
    }
    ledger.gather().await.unwrap();
    let events = ledger.events(0, 10).await.unwrap();
    let [_, reported] = &events[..] else {
        panic!("{events:?}")
    };
    expect_eq!(reported.key, None);
    expect_eq!(
        reported.what,
        Happening::CeilingReached {
            group: Some(group("g1")),
            ceiling: CeilingKind::Total,
            ceiling_rub: micro(100),
            left_rub: micro(1),
            by: super::given::number(2).to_string(),
        }
    );
}

/// A group's alert levels work like those of a key: each level is reported once, whichever key's charge makes the
/// remaining amount fall to it.
pub(in crate::testing) async fn a_group_reports_when_its_ceilings_run_low<L: Books + EventStore>(
    ledger: &L,
) {
    open(ledger, 10_000).await;
    let ceilings = Ceilings {
        day: Some(micro(500)),
        ..Ceilings::total(micro(1000))
    };
    make(ledger, "g1", ceilings).await;
    put(ledger, "k1", Some("g1")).await;
    put(ledger, "k2", Some("g1")).await;
    set(ledger, &of_group("g1"), levels(&[400, 300])).await;
    // The alert levels of the key's own ceiling are reported independently of the group's.
    set_ceiling(ledger, "k2", Some(450)).await;
    set(ledger, &of_key("k2"), levels(&[350])).await;
    for (n, id, cost) in [(1, "k1", 60), (2, "k2", 60), (3, "k2", 30), (4, "k2", 60)] {
        reserved(ledger, &hold(n, id, cost)).await;
        settled(ledger, n, id, cost).await;
    }
    // After a key has left the group, its charges emit no events of the group.
    put(ledger, "k1", None).await;
    reserved(ledger, &hold(5, "k1", 500)).await;
    settled(ledger, 5, "k1", 500).await;
    ledger.gather().await.unwrap();
    let events = ledger.events(0, 100).await.unwrap();
    let reported: Vec<_> = events[1..]
        .iter()
        .map(|event| (event.key.as_deref(), event.what.clone()))
        .collect();
    let low = |of, ceiling, limit, level, left, n| Happening::CeilingLow {
        group: of,
        ceiling,
        ceiling_rub: micro(limit),
        level_rub: micro(level),
        left_rub: micro(left),
        by: super::given::number(n).to_string(),
    };
    let of_g1 = |level, left, n| low(Some(group("g1")), CeilingKind::Day, 500, level, left, n);
    expect_eq!(
        reported,
        [
            (None, of_g1(400, 380, 2)),
            (Some("k2"), low(None, CeilingKind::Total, 450, 350, 300, 4)),
            (None, of_g1(300, 290, 4)),
        ]
    );
}

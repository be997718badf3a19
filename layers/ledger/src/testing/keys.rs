//! Tests of keys, from their creation to their deletion.

use super::{
    Books,
    desk::{booked, key_money, open, refused, reserved, set_status, settled},
    given::{acme, hold, key, micro, record},
};
use crate::{
    account::{AccountId, KeyDigest, KeyRecord, KeyStatus},
    ceiling::Ceilings,
    contract::{BookError, Booked, KeyChange, KeyView, PeriodView, Refusal},
};

const CEILINGS: Ceilings = Ceilings {
    total: Some(micro(60)),
    month: Some(micro(70)),
    day: Some(micro(80)),
};

/// Returns a key's record in which every field differs from its default.
fn full_record() -> KeyRecord {
    KeyRecord {
        prefix: "tg-«ё»…".into(),
        name: "Ключ \"1\": {a}'\\\n".into(),
        status: KeyStatus::Disabled,
        models: vec!["chat".into(), "модель:2".into()],
        addresses: vec![
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8::/32".parse().unwrap(),
        ],
        requests_per_second: Some(7),
        requests_per_minute: Some(8),
        tokens_per_minute: Some(9),
        idempotency: true,
        growing_holds: true,
        expires_at_ms: Some(4_000_000_000_001),
        changed_at_ms: 1_790_000_000_001,
        ..record(&acme(), "K-9_z", 0xab)
    }
}

pub(super) async fn a_key_is_read_as_it_was_written<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let record = full_record();
    let made = ledger.create_key(&record, CEILINGS).await.unwrap();
    let view = KeyView {
        record: record.clone(),
        ceiling_rub: Some(micro(60)),
        spent_rub: micro(0),
        held_rub: micro(0),
        free_rub: micro(60),
        month: PeriodView {
            ceiling_rub: Some(micro(70)),
            spent_rub: micro(0),
            ..made.month
        },
        day: PeriodView {
            ceiling_rub: Some(micro(80)),
            spent_rub: micro(0),
            ..made.day
        },
    };
    expect_eq!(made, view);
    expect_eq!(ledger.key(&record.id).await.unwrap(), view);
    let found = ledger.find_key(&record.digest).await.unwrap();
    expect_eq!(found.as_deref(), Some(&record));
    let keys = ledger.keys(&acme()).await.unwrap();
    let ids: Vec<&str> = keys.iter().map(|key| &*key.record.id).collect();
    expect_eq!(ids, ["K-9_z", "k1", "k2"]);
    expect_eq!(keys[0], view);
}

pub(super) async fn a_key_is_created_once<L: Books>(ledger: &L) {
    open(ledger, 0).await;
    let other: AccountId = "other".parse().unwrap();
    ledger.create_account(&other, "Other").await.unwrap();
    let first = ledger.create_key(&full_record(), CEILINGS).await.unwrap();
    let second = ledger.create_key(&full_record(), CEILINGS).await;
    expect_eq!(second.unwrap(), first);
    let renamed = KeyRecord {
        name: "desk".into(),
        ..full_record()
    };
    let of_another_digest = KeyRecord {
        digest: KeyDigest::new([9; 32]),
        ..full_record()
    };
    let of_another_account = KeyRecord {
        account: other.clone(),
        ..full_record()
    };
    let of_another_day = Ceilings {
        day: Some(micro(81)),
        ..CEILINGS
    };
    for (record, ceilings) in [
        (renamed, CEILINGS),
        (of_another_digest, CEILINGS),
        (of_another_account, CEILINGS),
        (full_record(), of_another_day),
        (full_record(), Ceilings::NONE),
        // A digest belongs to one key only, over all accounts.
        (record(&acme(), "k3", 0xab), Ceilings::NONE),
        (record(&other, "k4", 0xab), Ceilings::NONE),
    ] {
        let answer = ledger.create_key(&record, ceilings).await;
        expect_matches!(answer, Err(BookError::Exists));
    }
    expect_eq!(ledger.key(&full_record().id).await.unwrap(), first);
    let found = ledger.find_key(&full_record().digest).await.unwrap();
    expect_eq!(found.as_deref(), Some(&full_record()));
    assert!(ledger.keys(&other).await.unwrap().is_empty());
}

type Edit = fn(&mut KeyView);

pub(super) async fn a_change_of_a_key_changes_only_the_named_fields<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    let mut view = ledger.create_key(&full_record(), CEILINGS).await.unwrap();
    let id = full_record().id;
    let steps: [(KeyChange, Edit); 15] = [
        (KeyChange::default(), |_| {}),
        (
            KeyChange {
                name: Some("desk".into()),
                ..KeyChange::default()
            },
            |view| view.record.name = "desk".into(),
        ),
        (
            KeyChange {
                status: Some(KeyStatus::Active),
                ..KeyChange::default()
            },
            |view| view.record.status = KeyStatus::Active,
        ),
        (
            KeyChange {
                ceiling: Some(Some(micro(40))),
                ..KeyChange::default()
            },
            |view| {
                view.ceiling_rub = Some(micro(40));
                view.free_rub = micro(40);
            },
        ),
        (
            KeyChange {
                ceiling_month: Some(Some(micro(30))),
                ..KeyChange::default()
            },
            |view| {
                view.month.ceiling_rub = Some(micro(30));
                view.free_rub = micro(30);
            },
        ),
        (
            KeyChange {
                ceiling_month: Some(None),
                ceiling_day: Some(Some(micro(20))),
                ..KeyChange::default()
            },
            |view| {
                view.month.ceiling_rub = None;
                view.day.ceiling_rub = Some(micro(20));
                view.free_rub = micro(20);
            },
        ),
        (
            KeyChange {
                models: Some(vec!["messages".into()]),
                ..KeyChange::default()
            },
            |view| view.record.models = vec!["messages".into()],
        ),
        (
            KeyChange {
                addresses: Some(Vec::new()),
                ..KeyChange::default()
            },
            |view| view.record.addresses = Vec::new(),
        ),
        (
            KeyChange {
                requests_per_second: Some(None),
                ..KeyChange::default()
            },
            |view| view.record.requests_per_second = None,
        ),
        (
            KeyChange {
                requests_per_minute: Some(Some(5)),
                tokens_per_minute: Some(None),
                ..KeyChange::default()
            },
            |view| {
                view.record.requests_per_minute = Some(5);
                view.record.tokens_per_minute = None;
            },
        ),
        (
            KeyChange {
                idempotency: Some(false),
                ..KeyChange::default()
            },
            |view| view.record.idempotency = false,
        ),
        (
            KeyChange {
                growing_holds: Some(false),
                ..KeyChange::default()
            },
            |view| view.record.growing_holds = false,
        ),
        (
            KeyChange {
                changed_at_ms: Some(1_790_000_000_002),
                ..KeyChange::default()
            },
            |view| view.record.changed_at_ms = 1_790_000_000_002,
        ),
        (
            KeyChange {
                expires_at_ms: Some(None),
                ..KeyChange::default()
            },
            |view| view.record.expires_at_ms = None,
        ),
        (
            KeyChange {
                name: Some("all".into()),
                ceiling: Some(None),
                ceiling_day: Some(None),
                requests_per_second: Some(Some(3)),
                expires_at_ms: Some(Some(5)),
                ..KeyChange::default()
            },
            |view| {
                view.record.name = "all".into();
                view.ceiling_rub = None;
                view.day.ceiling_rub = None;
                view.free_rub = micro(100);
                view.record.requests_per_second = Some(3);
                view.record.expires_at_ms = Some(5);
            },
        ),
    ];
    for (change, edit) in steps {
        // The key is read before the change, so that a cache contains it and must be invalidated.
        ledger.find_key(&view.record.digest).await.unwrap();
        edit(&mut view);
        let changed = ledger.change_key(&id, &change).await.unwrap();
        expect_eq!(changed, view, "{change:?}");
        expect_eq!(ledger.key(&id).await.unwrap(), view, "{change:?}");
        let found = ledger.find_key(&view.record.digest).await.unwrap();
        expect_eq!(found.as_deref(), Some(&view.record), "{change:?}");
    }
    // Other keys are unchanged.
    let other = ledger.key(&key("k1")).await.unwrap();
    expect_eq!(other.record, record(&acme(), "k1", 1));
}

pub(super) async fn a_deleted_key_can_be_read_and_stays_deleted<L: Books>(ledger: &L) {
    open(ledger, 100).await;
    reserved(ledger, &hold(1, "k1", 50)).await;
    for status in [KeyStatus::Deleted, KeyStatus::Active, KeyStatus::Disabled] {
        let view = set_status(ledger, "k1", status).await;
        expect_eq!(view.record.status, KeyStatus::Deleted, "{status:?}");
        expect_eq!(refused(ledger, &hold(2, "k1", 1)).await, Refusal::Disabled);
    }
    let found = ledger.find_key(&KeyDigest::new([1; 32])).await.unwrap();
    expect_eq!(found.unwrap().status, KeyStatus::Deleted);
    // The in-flight call of the deleted key is still charged, and the key's digest cannot be used again.
    let paid = settled(ledger, 1, "k1", 50).await;
    expect_eq!(paid, booked(Booked::Held, 50, 0));
    expect_eq!(key_money(ledger, "k1").await[0], 50);
    expect_eq!(ledger.keys(&acme()).await.unwrap().len(), 2);
    let answer = ledger
        .create_key(&record(&acme(), "k3", 1), Ceilings::NONE)
        .await;
    expect_matches!(answer, Err(BookError::Exists));
}

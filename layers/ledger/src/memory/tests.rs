use uuid::Uuid;

use super::*;
use crate::{
    account::KeyStatus,
    book::Account,
    contract::{Item, Refusal},
    money::MicroRub,
    usage::{End, Usage},
};

fn account() -> AccountId {
    "acme".parse().unwrap()
}

fn record(id: &str, digest: u8) -> KeyRecord {
    KeyRecord {
        prefix: "tg-AbC123…".into(),
        name: "laptop".into(),
        ..KeyRecord::new(id.parse().unwrap(), account(), KeyDigest::new([digest; 32]))
    }
}

fn hold(number: u128, want: i64) -> Hold {
    Hold {
        number: RequestNumber::from_uuid(Uuid::from_u128(number)),
        account: account(),
        key: "k1".parse().unwrap(),
        want: MicroRub::new(want),
        least: MicroRub::new(want),
        ttl: Duration::from_secs(60),
    }
}

fn settlement(number: u128, cost: i64, fresh: bool) -> Settlement {
    Settlement {
        number: RequestNumber::from_uuid(Uuid::from_u128(number)),
        account: account(),
        key: "k1".parse().unwrap(),
        held: MicroRub::new(100),
        cost: MicroRub::new(cost),
        fresh,
        lease: None,
        item: Item {
            usage: Usage {
                input: 1,
                cached_input: 2,
                cache_write: 3,
                output: 4,
                ..Usage::default()
            },
            ..Item::new("m", "v", End::Finished)
        },
    }
}

fn topup(id: &str, micro: i64) -> Entry {
    Entry {
        id: id.into(),
        amount: MicroRub::new(micro),
        reason: None,
    }
}

async fn funded() -> MemoryLedger {
    let ledger = MemoryLedger::new();
    ledger.create_account(&account(), "Acme").await.unwrap();
    ledger
        .create_key(&record("k1", 1), Ceilings::NONE)
        .await
        .unwrap();
    ledger.enter(&account(), &topup("t1", 1_000)).await.unwrap();
    ledger
}

#[tokio::test]
async fn repeated_command_changes_nothing_unless_its_data_differs_then_it_is_refused() {
    let ledger = funded().await;
    let before = ledger.account(&account()).await.unwrap();
    assert_eq!(
        ledger.create_account(&account(), "Acme").await.unwrap(),
        before
    );
    assert_eq!(
        ledger.enter(&account(), &topup("t1", 1_000)).await.unwrap(),
        before
    );
    assert_eq!(
        ledger
            .create_key(&record("k1", 1), Ceilings::NONE)
            .await
            .unwrap()
            .record,
        record("k1", 1)
    );

    let refusals = [
        ledger.create_account(&account(), "Other").await.map(drop),
        ledger.enter(&account(), &topup("t1", 999)).await.map(drop),
        ledger
            .create_key(&record("k1", 2), Ceilings::NONE)
            .await
            .map(drop),
        ledger
            .create_key(&record("k1", 1), Ceilings::total(MicroRub::new(5)))
            .await
            .map(drop),
        ledger
            .create_key(&record("k2", 1), Ceilings::NONE)
            .await
            .map(drop),
    ];
    for (index, refusal) in refusals.into_iter().enumerate() {
        assert!(
            matches!(refusal, Err(BookError::Exists)),
            "{index}: {refusal:?}"
        );
    }
    let stray = KeyRecord {
        account: "nobody".parse().unwrap(),
        ..record("k3", 3)
    };
    assert!(matches!(
        ledger.create_key(&stray, Ceilings::NONE).await,
        Err(BookError::NotFound)
    ));
}

#[tokio::test]
async fn settled_call_is_charged_once_and_has_a_receipt() {
    let ledger = funded().await;
    ledger.reserve(&hold(1, 100)).await.unwrap();
    let first = ledger.settle(&settlement(1, 70, true)).await.unwrap();
    let again = ledger.settle(&settlement(1, 70, true)).await.unwrap();
    assert_eq!(
        (first.booked, first.charged, first.repeated),
        (Booked::Held, MicroRub::new(70), false)
    );
    assert_eq!(
        again,
        Settled {
            repeated: true,
            ..first
        }
    );

    let receipt = ledger.receipt(hold(1, 100).number).await.unwrap();
    assert_eq!(
        (receipt.charged_rub, receipt.held_rub),
        (MicroRub::new(70), MicroRub::new(100))
    );
    let view = ledger.account(&account()).await.unwrap();
    assert_eq!(
        (view.balance_rub, view.held_rub, view.spent_rub),
        (MicroRub::new(930), MicroRub::ZERO, first.charged)
    );
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
}

#[tokio::test]
async fn settlement_without_a_hold_is_charged_only_while_fresh() {
    let ledger = funded().await;
    let forced = ledger.settle(&settlement(1, 70, true)).await.unwrap();
    assert_eq!(
        (forced.booked, forced.charged),
        (Booked::Forced, MicroRub::new(70))
    );
    for _ in 0..2 {
        let stale = ledger.settle(&settlement(2, 70, false)).await.unwrap();
        assert_eq!(
            (stale.booked, stale.charged, stale.repeated),
            (Booked::Stale, MicroRub::ZERO, false)
        );
    }
    assert_eq!(
        ledger.receipt(hold(2, 0).number).await.unwrap().booked,
        Booked::Stale
    );
}

#[tokio::test]
async fn deleted_key_is_shown_but_cannot_be_reactivated_or_get_holds() {
    let ledger = funded().await;
    let change = |status| KeyChange {
        status: Some(status),
        ..KeyChange::default()
    };
    let id: KeyId = "k1".parse().unwrap();
    ledger
        .change_key(&id, &change(KeyStatus::Deleted))
        .await
        .unwrap();
    ledger
        .change_key(&id, &change(KeyStatus::Active))
        .await
        .unwrap();

    let found = ledger
        .find_key(&KeyDigest::new([1; 32]))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.status, KeyStatus::Deleted);
    let refused = ledger.reserve(&hold(1, 100)).await;
    assert!(
        matches!(refused, Err(LedgerError::Refused(Refusal::Disabled))),
        "{refused:?}"
    );
    assert_eq!(ledger.keys(&account()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_tariff_version_grows_with_each_change() {
    let ledger = MemoryLedger::new();
    for (fingerprint, id) in [("a", 1), ("a", 1), ("b", 2), ("a", 3)] {
        assert_eq!(
            ledger.tariff_version(fingerprint).await.unwrap().id,
            id,
            "{fingerprint}"
        );
    }
}

#[test]
fn oldest_receipt_is_evicted_first() {
    let mut state = State::default();
    state.put_account(account(), "Acme".into(), Account::default());
    state
        .create_key(&record("k1", 1), Ceilings::NONE, 0)
        .unwrap();
    let (_, record) = state.settle_unknown(&settlement(0, 0, true), 0);
    let Some(Record::Settled { receipt, .. }) = record else {
        panic!("no receipt")
    };

    let mut journal = Journal::default();
    let numbered = |number| RequestNumber::from_uuid(Uuid::from_u128(number));
    for number in 0..=RECEIPTS_MAX as u128 {
        assert!(!journal.has_forgotten);
        journal.call(Receipt {
            number: numbered(number),
            ..receipt.clone()
        });
    }
    assert!(journal.has_forgotten);
    assert_eq!(journal.calls.len(), RECEIPTS_MAX);
    assert_eq!(journal.lines[&account()].len(), RECEIPTS_MAX);
    assert!(journal.receipt(numbered(0)).is_none() && journal.receipt(numbered(1)).is_some());
}

#[tokio::test]
async fn audit_finds_a_receipt_missing_from_the_journal() {
    let ledger = funded().await;
    ledger.reserve(&hold(1, 100)).await.unwrap();
    ledger.settle(&settlement(1, 70, true)).await.unwrap();
    let sound = ledger.audit().await.unwrap();
    assert_eq!(sound.breaches, Vec::<String>::new());

    let forgotten = hold(1, 100).number;
    ledger.inner.lock().unwrap().journal.forget(forgotten);
    assert_eq!(
        ledger.audit().await.unwrap().breaches,
        ["I3 key k1: used 70, but its receipts sum to 0 µ₽"]
    );
}

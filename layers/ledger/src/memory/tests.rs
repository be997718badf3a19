use super::*;
use crate::{
    book::Account,
    testing::{
        given::{acme, hold, number, record, settlement},
        open,
    },
};

#[test]
fn full_journal_in_memory_drops_its_oldest_receipt() {
    let mut state = State::default();
    state.put_account(acme(), "Acme".into(), Account::default());
    state
        .create_key(&record(&acme(), "k1", 1), Ceilings::NONE, 0)
        .unwrap();
    let (_, record) = state.settle_unknown(&settlement(0, "k1", 0), 0);
    let Some(Record::Settled(settled)) = record else {
        panic!("no receipt")
    };

    let mut journal = Journal::default();
    for n in 0..=RECEIPTS_MAX as u128 {
        assert!(!journal.has_forgotten);
        journal.call(Receipt {
            number: number(n),
            ..settled.receipt.clone()
        });
    }
    assert!(journal.has_forgotten);
    assert_eq!(journal.calls.len(), RECEIPTS_MAX);
    assert_eq!(journal.lines[&acme()].len(), RECEIPTS_MAX);
    assert!(journal.receipt(number(0)).is_none() && journal.receipt(number(1)).is_some());
}

#[tokio::test]
async fn audit_finds_a_receipt_missing_from_the_journal() {
    let ledger = MemoryLedger::new();
    open(&ledger, 1_000).await;
    ledger.reserve(&hold(1, "k1", 100)).await.unwrap();
    ledger.settle(&settlement(1, "k1", 70)).await.unwrap();
    let sound = ledger.audit().await.unwrap();
    assert_eq!(sound.breaches, Vec::<String>::new());

    ledger.inner.lock().unwrap().journal.forget(number(1));
    assert_eq!(
        ledger.audit().await.unwrap().breaches,
        ["I3 key k1: used 70, but its receipts sum to 0 µ₽"]
    );
}

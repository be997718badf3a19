//! Tests of the documents that a ledger stores next to the books.

use futures_util::future::join_all;

use crate::contract::{BookError, Document, Documents, Update, Versioned};

async fn swap<L: Documents>(ledger: &L, name: &str, version: u64, text: &str) -> bool {
    ledger.compare_and_swap(name, version, text).await.unwrap()
}

pub(super) async fn a_document_is_changed_only_at_its_current_version<L: Documents>(ledger: &L) {
    expect_eq!(ledger.document("a/1").await.unwrap(), None);
    let written = join_all((0..10).map(|_| swap(ledger, "a/1", 0, "один: {}"))).await;
    expect_eq!(written.into_iter().filter(|written| *written).count(), 1);
    let document = |name: &str, version, text: &str| Document {
        name: name.to_owned(),
        version,
        text: text.to_owned(),
    };
    let first = document("a/1", 1, "один: {}");
    expect_eq!(ledger.document("a/1").await.unwrap(), Some(first));
    assert!(swap(ledger, "a/1", 1, "two").await);
    assert!(swap(ledger, "a/2", 0, "three").await);
    assert!(swap(ledger, "b/1", 0, "four").await);
    let found = ledger.documents("a/").await.unwrap();
    expect_eq!(
        found,
        [document("a/1", 2, "two"), document("a/2", 1, "three")]
    );
    assert!(!swap(ledger, "a/1", 1, "").await);
    assert!(swap(ledger, "a/1", 2, "").await);
    expect_eq!(ledger.document("a/1").await.unwrap(), None);
}

pub(super) async fn concurrent_updates_of_a_document_all_take_effect<L: Documents>(ledger: &L) {
    let add = |count: Option<u64>| {
        let count = count.unwrap_or_default() + 1;
        Ok::<_, BookError>(Update::Write(count, count))
    };
    let mut counts = join_all((0..10).map(|_| ledger.update("count", add))).await;
    counts.sort_by_key(|count| *count.as_ref().unwrap());
    let counts: Vec<u64> = counts.into_iter().map(Result::unwrap).collect();
    expect_eq!(counts, (1..=10).collect::<Vec<_>>());
    let stored = ledger.update("count", |count: Option<u64>| {
        Ok::<_, BookError>(Update::Keep(count))
    });
    expect_eq!(stored.await.unwrap(), Some(10));
    let refused = ledger.update("count", |_: Option<u64>| {
        Err::<Update<u64, ()>, _>(BookError::NotFound)
    });
    expect_matches!(refused.await, Err(BookError::NotFound));
    let (version, value) = (10, Some(10_u64));
    let found = ledger.read_value("count").await.unwrap();
    expect_eq!(found, Versioned { version, value });
}

pub(super) async fn a_removed_value_keeps_its_document_s_version<L: Documents>(ledger: &L) {
    assert!(ledger.write_value("rule", 0, &"one").await.unwrap());
    let remove = |rule: Option<String>| Ok::<_, BookError>(Update::Remove(rule));
    let removed = ledger.update("rule", remove).await.unwrap();
    expect_eq!(removed.as_deref(), Some("one"));
    let found = ledger.read_value::<String>("rule").await.unwrap();
    let value = None;
    expect_eq!(found, Versioned { version: 2, value });
    // A process that has read the removed value cannot overwrite a newer value.
    assert!(!ledger.write_value("rule", 1, &"late").await.unwrap());
    assert!(ledger.write_value("rule", 2, &"two").await.unwrap());
}

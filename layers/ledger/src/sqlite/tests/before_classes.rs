//! A file that the release before classes wrote, as it wrote it: `tests/before_classes` of this crate.

use super::*;
use crate::{
    contract::Receipt,
    price::{Class, Counts, Rates},
};

const BOOKS: &str = include_str!("../../../tests/before_classes/books.sql");
/// What that release said of them.
const EXPORT: &str = include_str!("../../../tests/before_classes/books.ndjson");

/// What that release could not say.
fn item() -> Item {
    let item = settlement(1, 70, true).item;
    let price = Price {
        classes: Rates::default().with(Class::CacheWrite1h, Some(Rate::default())),
        ..Price::clone(item.price.as_ref().unwrap())
    };
    Item {
        usage: Usage {
            classes: Counts::default().with(Class::CacheWrite1h, 5),
            ..item.usage
        },
        price: Some(price.into()),
        unpriced: true,
        vendor_cost_rub: Some(MicroRub::new(17)),
        ..item
    }
}

/// The calls of the export, as JSON.
fn calls() -> Vec<serde_json::Value> {
    let lines = EXPORT
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let calls: Vec<serde_json::Value> = lines
        .filter(|line: &serde_json::Value| line["kind"] == "call")
        .collect();
    assert_eq!(calls.len(), 2);
    calls
}

#[tokio::test]
async fn old_receipts_read_as_they_were_and_new_ones_carry_classes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    Connection::open(&path)
        .unwrap()
        .execute_batch(BOOKS)
        .unwrap();
    let ledger = SqliteLedger::open(&path).unwrap();
    let mut charged = 0;
    for told in calls() {
        let receipt: Receipt = serde_json::from_value(told.clone()).unwrap();
        let read = ledger.receipt(receipt.number).await.unwrap();
        assert_eq!(read, receipt);
        assert!(read.item.usage.classes.is_empty() && !read.item.unpriced);
        assert_eq!(
            (read.item.vendor_cost_rub, read.item.endpoint),
            (None, None)
        );
        // To the letter: who reads exports sees no field that was not there.
        let mut shown = serde_json::to_value(&read).unwrap();
        shown["kind"] = "call".into();
        assert_eq!(shown, told);
        charged += read.charged_rub.micro();
    }

    // The call that ran when that release was killed is charged as it had noted last.
    let acme: AccountId = "acme".parse().unwrap();
    let noted: Settlement = {
        let (_, row) = BOOKS.split_once("INSERT INTO running VALUES(").unwrap();
        let row = row.lines().next().unwrap();
        let json = &row[row.find('{').unwrap()..=row.rfind('}').unwrap()];
        serde_json::from_str(json).unwrap()
    };
    let stopped = ledger.receipt(noted.number).await.unwrap();
    assert_eq!(
        (stopped.item, stopped.charged_rub),
        (noted.item, noted.cost)
    );
    charged += noted.cost.micro();

    // What is settled from now on has all there is, also when it is read again.
    let (number, key) = (number(1), noted.key);
    let hold = Hold {
        number,
        account: acme.clone(),
        key: key.clone(),
        want: MicroRub::new(100),
        least: MicroRub::new(100),
        ttl: HOUR,
    };
    ledger.reserve(&hold).await.unwrap();
    let settlement = Settlement {
        number,
        account: acme.clone(),
        key,
        held: MicroRub::new(100),
        cost: MicroRub::new(70),
        fresh: true,
        lease: None,
        item: item(),
    };
    ledger.settle(&settlement).await.unwrap();
    charged += 70;
    ledger.close().await;
    let ledger = SqliteLedger::open(&path).unwrap();
    assert_eq!(ledger.receipt(number).await.unwrap().item, item());
    let view = ledger.account(&acme).await.unwrap();
    assert_eq!(view.balance_rub.micro(), 1_000_000_000 - charged);
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
}

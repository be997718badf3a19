//! Tests which files are opened, and how files of earlier versions are upgraded.

use super::*;
use crate::durable::test_files::{edit, foreign_files};

#[tokio::test]
async fn ledger_file_can_be_open_in_only_one_gateway_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    let refused = SqliteLedger::open(&path).unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    ledger.close().await;
    SqliteLedger::open(&path).unwrap();
}

#[tokio::test]
async fn books_that_do_not_balance_are_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    for (index, (tampering, breach)) in [
        (
            "UPDATE accounts SET balance = balance + 1",
            "I3 account a0: balance 931",
        ),
        (
            "DELETE FROM entries",
            "I3 account a0: balance 930, entered 0",
        ),
        (
            "UPDATE keys SET used = used - 1 WHERE used > 0",
            "I3 account a0: balance",
        ),
        (
            "UPDATE receipts SET charged = charged + 1, cost = cost + 1",
            "I3 key k0: used 70",
        ),
        (
            "UPDATE receipts SET loss = loss + 1, cost = cost + 1",
            "I3 account a0: loss 0",
        ),
        (
            "UPDATE receipts SET cost = cost + 1",
            "I3 key k0: call 00000000-0000-0000-0000-000000000000 cost 71, was charged 70 and lost 0",
        ),
        (
            "UPDATE receipts SET booked = 'stale'",
            "I3 key k0: call 00000000-0000-0000-0000-000000000000 cost 70, was charged 70 and lost 0",
        ),
        (
            "UPDATE receipts SET key = 'k7'",
            "I3 key k7: account a0 has no such key, but its receipts sum to 70",
        ),
        (
            "UPDATE receipts SET account = 'a7'",
            "I3 account a7: receipts exist, but the account does not",
        ),
        (
            "UPDATE entries SET account = 'a7'",
            "I3 account a7: entries exist, but the account does not",
        ),
        (
            "UPDATE keys SET account = 'a7'",
            "I3 account a7: keys exist, but the account does not",
        ),
        (
            "DELETE FROM accounts",
            "I3 account a0: entries exist, but the account does not",
        ),
        (
            "UPDATE keys SET day_before = used + 1 WHERE id = 'k0'",
            "I3 key k0: used 70, but 71 µ₽ before its day or month began",
        ),
        (
            "UPDATE keys SET month_before = used + 1 WHERE id = 'k1'",
            "I3 key k1: used 0, but 1 µ₽ before its day or month began",
        ),
        (
            "UPDATE accounts SET balance = -1; UPDATE entries SET amount = 69",
            "I4 account a0: held 0 of a balance of -1",
        ),
        (
            "UPDATE accounts SET loss = -1",
            "I4 account a0: loss -1",
        ),
        (
            "UPDATE keys SET used = -1 WHERE id = 'k1'",
            "I4 key k1: used -1",
        ),
        (
            "UPDATE receipts SET charged = -1, cost = -1",
            "I3 key k0: call 00000000-0000-0000-0000-000000000000 cost -1, was charged -1 and lost 0",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let copy = dir.path().join(format!("copy{index}.db"));
        fs::copy(&path, &copy).unwrap();
        // A disk fault does not respect the tables' constraints.
        let pragmas = "PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF";
        edit(&copy, &format!("{pragmas}; {tampering}"));
        match SqliteLedger::open(&copy) {
            Err(OpenError::Mismatch { breaches, .. }) => {
                assert!(
                    breaches.iter().any(|found| found.starts_with(breach)),
                    "{tampering}: {breaches:?}"
                );
            }
            other => panic!("{tampering}: {other:?}"),
        }
    }
    SqliteLedger::open(&path).unwrap();
}

#[tokio::test]
async fn file_of_an_earlier_version_gets_missing_indexes_and_columns() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    edit(
        &path,
        "DROP INDEX entries_by_time; DROP INDEX receipts_by_time;
         ALTER TABLE receipts DROP COLUMN bounded",
    );
    let ledger = SqliteLedger::open(&path).unwrap();
    assert!(!ledger.receipt(number(0)).await.unwrap().item.bounded);
    ledger.close().await;
    let raw = Connection::open(&path).unwrap();
    let indexes: i64 = raw
        .query_row(
            "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name LIKE '%_by_time'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(indexes, 2);
}

/// The file stays valid even if the earlier version writes to it again.
#[tokio::test]
async fn upgraded_file_of_an_earlier_version_stores_sessions_endpoints_and_timelines() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    edit(
        &path,
        "ALTER TABLE receipts DROP COLUMN session; ALTER TABLE receipts DROP COLUMN endpoint;
         ALTER TABLE receipts DROP COLUMN timeline; ALTER TABLE receipts DROP COLUMN key_group",
    );

    let ledger = SqliteLedger::open(&path).unwrap();
    let mut receipt = ledger.receipt(number(0)).await.unwrap();
    let mut as_settled = settlement(0, 70, true).item;
    as_settled.session = None;
    as_settled.endpoint = None;
    as_settled.timeline = None;
    assert_eq!(receipt.item, as_settled);
    ledger.settle(&settlement(4, 10, true)).await.unwrap();
    let named = ledger.receipt(number(4)).await.unwrap();
    assert_eq!(named.item, settlement(4, 10, true).item);
    ledger.close().await;

    // These are exactly the columns of an earlier version's file.
    let columns =
        "at_ms, account, key, model, vendor, input, cached_input, cache_write, output, held, cost,
                   charged, loss, ended, booked, estimated, price, bounded";
    edit(&path, &format!(
        "INSERT INTO receipts (number, {columns}) SELECT '{}', {columns} FROM receipts WHERE number = '{}';
         UPDATE keys SET used = used + 70 WHERE id = 'k0';
         UPDATE accounts SET balance = balance - 70",
        number(8),
        number(0)
    ));
    let ledger = SqliteLedger::open(&path).unwrap();
    receipt.number = number(8);
    assert_eq!(ledger.receipt(number(8)).await.unwrap(), receipt);
    assert_eq!(ledger.receipt(number(4)).await.unwrap(), named);
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
    ledger.close().await;

    // A later version has endpoints that are unknown to this version.
    edit(
        &path,
        "UPDATE receipts SET endpoint = 'audio/speech' WHERE endpoint IS NULL",
    );
    let ledger = SqliteLedger::open(&path).unwrap();
    assert_eq!(ledger.receipt(number(8)).await.unwrap(), receipt);
    assert_eq!(ledger.receipt(number(4)).await.unwrap(), named);
}

#[tokio::test]
async fn monthly_and_daily_ceilings_count_spending_from_the_upgrade_of_the_file_on() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    for column in file::KEY_COLUMNS {
        edit(&path, &format!("ALTER TABLE keys DROP COLUMN {column}"));
    }

    for _ in 0..2 {
        let ledger = SqliteLedger::open(&path).unwrap();
        let view = ledger.key(&key(0)).await.unwrap();
        assert_eq!(view.spent_rub, MicroRub::new(70));
        // The earlier version did not store when this amount was charged.
        assert_eq!(
            (view.day.spent_rub, view.month.spent_rub),
            (MicroRub::ZERO, MicroRub::ZERO)
        );
        ledger.close().await;
    }
    let ledger = SqliteLedger::open(&path).unwrap();
    let limited = KeyChange {
        ceiling_day: Some(Some(MicroRub::new(100))),
        ceiling_month: Some(Some(MicroRub::new(300))),
        ..KeyChange::default()
    };
    ledger.change_key(&key(0), &limited).await.unwrap();
    ledger.reserve(&hold(4, 100, 100, HOUR)).await.unwrap();
    ledger.settle(&settlement(4, 60, true)).await.unwrap();
    let before = ledger.key(&key(0)).await.unwrap();
    assert_eq!(
        (
            before.day.spent_rub,
            before.month.spent_rub,
            before.free_rub
        ),
        (MicroRub::new(60), MicroRub::new(60), MicroRub::new(40))
    );
    ledger.close().await;
    let ledger = SqliteLedger::open(&path).unwrap();
    assert_eq!(ledger.key(&key(0)).await.unwrap(), before);
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
}

#[tokio::test]
async fn only_a_valid_ledger_file_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for path in foreign_files(dir.path()) {
        let refused = SqliteLedger::open(&path).unwrap_err();
        assert!(matches!(refused, OpenError::NotALedger { .. }), "{refused}");
    }

    SqliteLedger::open(&path("newer")).unwrap().close().await;
    edit(&path("newer"), "PRAGMA user_version = 2");
    let refused = SqliteLedger::open(&path("newer")).unwrap_err();
    assert!(
        matches!(refused, OpenError::Version { found: 2, .. }),
        "{refused}"
    );

    let refused = SqliteLedger::open(&path("missing/ledger.db")).unwrap_err();
    assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
}

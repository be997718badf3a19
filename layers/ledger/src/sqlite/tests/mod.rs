mod batch;

use std::fs;

use futures_util::future::join_all;
use proptest::prelude::*;
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::{
    account::KeyStatus,
    ceiling::Ceiling,
    contract::{Booked, Item, JournalLine, Refusal},
    memory::MemoryLedger,
    money::MicroRub,
    price::{Price, Rate},
    usage::{End, Usage},
};

fn account(index: u8) -> AccountId {
    format!("a{index}").parse().unwrap()
}

fn key(index: u8) -> KeyId {
    format!("k{index}").parse().unwrap()
}

fn number(index: u8) -> RequestNumber {
    RequestNumber::from_uuid(Uuid::from_u128(u128::from(index)))
}

/// Two keys belong to each account.
fn record(index: u8) -> KeyRecord {
    KeyRecord {
        id: key(index),
        account: account(index / 2),
        digest: KeyDigest::new([index; 32]),
        prefix: format!("tg-{index}…"),
        name: "laptop".into(),
        status: KeyStatus::Active,
        models: vec!["m".into()],
        addresses: vec!["192.0.2.0/24".parse().unwrap()],
        requests_per_second: Some(3),
        requests_per_minute: None,
        tokens_per_minute: None,
        expires_at_ms: Some(4_000_000_000_000),
        created_at_ms: 5,
        changed_at_ms: 0,
    }
}

fn topup(id: &str, micro: i64) -> Entry {
    Entry {
        id: id.into(),
        amount: MicroRub::new(micro),
        reason: None,
    }
}

/// A call's number says which of the four keys it is on.
fn hold(index: u8, want: i64, least: i64, ttl: Duration) -> Hold {
    Hold {
        number: number(index),
        account: account(index % 4 / 2),
        key: key(index % 4),
        want: MicroRub::new(want),
        least: MicroRub::new(least),
        ttl,
    }
}

fn settlement(index: u8, cost: i64, fresh: bool) -> Settlement {
    let rate = Rate::new(1_500_000);
    let price = Price {
        input: rate,
        cached_input: rate,
        output: rate,
        cache_write: rate,
        version: 7,
        exchange_rate: "90.5".into(),
    };
    Settlement {
        number: number(index),
        account: account(index % 4 / 2),
        key: key(index % 4),
        held: MicroRub::new(100),
        cost: MicroRub::new(cost),
        fresh,
        item: Item {
            model: "m".into(),
            vendor: "v".into(),
            usage: Usage {
                input: 1,
                cached_input: 2,
                cache_write: 3,
                output: 4,
            },
            price: Some(Arc::new(price)),
            estimated: true,
            bounded: true,
            end: End::ClientLeft,
            session: Some("s-1".parse().unwrap()),
        },
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// A ledger with one account, two keys, a top-up of 1000 and a charge of 70 on key 0, call 0.
async fn used(dir: &TempDir) -> (SqliteLedger, PathBuf) {
    let path = dir.path().join("ledger.db");
    let ledger = SqliteLedger::open(&path).unwrap();
    ledger.create_account(&account(0), "Acme").await.unwrap();
    ledger
        .enter(&account(0), &topup("t1", 1_000))
        .await
        .unwrap();
    ledger.create_key(&record(0), Ceilings::NONE).await.unwrap();
    ledger
        .create_key(&record(1), Ceilings::total(MicroRub::new(500)))
        .await
        .unwrap();
    ledger.reserve(&hold(0, 100, 100, HOUR)).await.unwrap();
    let settled = ledger.settle(&settlement(0, 70, true)).await.unwrap();
    assert_eq!(
        (settled.booked, settled.charged),
        (Booked::Held, MicroRub::new(70))
    );
    (ledger, path)
}

#[tokio::test]
async fn what_was_acknowledged_outlives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger
        .change_account(&account(0), Some("Acme Ltd"), Some(true))
        .await
        .unwrap();
    let correction = Entry {
        reason: Some("paid twice".into()),
        ..topup("c1", -30)
    };
    ledger.enter(&account(0), &correction).await.unwrap();
    let disabled = KeyChange {
        status: Some(KeyStatus::Disabled),
        ceiling: Some(None),
        ..KeyChange::default()
    };
    ledger.change_key(&key(1), &disabled).await.unwrap();
    let version = ledger.tariff_version("f1").await.unwrap();
    let before = (
        ledger.accounts().await.unwrap(),
        ledger.keys(&account(0)).await.unwrap(),
        ledger.receipt(number(0)).await.unwrap(),
    );
    ledger.close().await;

    let ledger = SqliteLedger::open(&path).unwrap();
    let after = (
        ledger.accounts().await.unwrap(),
        ledger.keys(&account(0)).await.unwrap(),
        ledger.receipt(number(0)).await.unwrap(),
    );
    assert_eq!(after, before);
    assert_eq!(after.0[0].balance_rub, MicroRub::new(900));
    assert_eq!(after.2.item, settlement(0, 70, true).item);
    assert_eq!(ledger.tariff_version("f1").await.unwrap(), version);
    assert_eq!(ledger.tariff_version("f2").await.unwrap().id, 2);
    let found = ledger
        .find_key(&KeyDigest::new([1; 32]))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (found.id.clone(), found.status),
        (key(1), KeyStatus::Disabled)
    );
    // I10: the same top-up again, after the restart, changes nothing.
    assert_eq!(
        ledger
            .enter(&account(0), &topup("t1", 1_000))
            .await
            .unwrap(),
        after.0[0]
    );
    assert!(matches!(
        ledger.enter(&account(0), &topup("t1", 5)).await,
        Err(BookError::Exists)
    ));
}

#[tokio::test]
async fn what_was_acknowledged_outlives_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    // What a killed process leaves behind: the file and its log, as they stand.
    let copy = dir.path().join("copy.db");
    fs::copy(&path, &copy).unwrap();
    fs::copy(
        dir.path().join("ledger.db-wal"),
        dir.path().join("copy.db-wal"),
    )
    .unwrap();

    let revived = SqliteLedger::open(&copy).unwrap();
    assert_eq!(
        revived.accounts().await.unwrap(),
        ledger.accounts().await.unwrap()
    );
    assert_eq!(
        revived.receipt(number(0)).await.unwrap(),
        ledger.receipt(number(0)).await.unwrap()
    );
}

#[tokio::test]
async fn a_charge_is_not_made_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;

    let ledger = SqliteLedger::open(&path).unwrap();
    for fresh in [true, false] {
        let again = ledger.settle(&settlement(0, 70, fresh)).await.unwrap();
        assert_eq!(
            (again.booked, again.charged, again.repeated),
            (Booked::Held, MicroRub::new(70), true)
        );
    }
    assert_eq!(
        ledger.account(&account(0)).await.unwrap().balance_rub,
        MicroRub::new(930)
    );
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
}

#[tokio::test]
async fn a_file_has_one_gateway_at_a_time() {
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
            "I3 key k0: on 1 receipts",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let copy = dir.path().join(format!("copy{index}.db"));
        fs::copy(&path, &copy).unwrap();
        let raw = Connection::open(&copy).unwrap();
        raw.execute_batch(tampering).unwrap();
        drop(raw);
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
async fn the_audit_finds_what_the_start_lets_pass() {
    for (tampering, breach) in [
        (
            "DELETE FROM receipts",
            "I3 key k0: used 70, but its receipts sum to 0",
        ),
        (
            "UPDATE accounts SET loss = loss + 1",
            "I3 account a0: loss 1, but its receipts sum to 0",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, path) = used(&dir).await;
        ledger.close().await;
        Connection::open(&path)
            .unwrap()
            .execute_batch(tampering)
            .unwrap();
        let ledger = SqliteLedger::open(&path).unwrap();
        let breaches = ledger.audit().await.unwrap().breaches;
        assert!(
            breaches.iter().any(|found| found.starts_with(breach)),
            "{tampering}: {breaches:?}"
        );
    }
}

#[tokio::test]
async fn the_audit_finds_a_hold_whose_call_was_charged() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    // Its tombstone died with the process: nothing but the receipt knows.
    let ledger = SqliteLedger::open(&path).unwrap();
    ledger.reserve(&hold(0, 100, 100, HOUR)).await.unwrap();
    let breaches = ledger.audit().await.unwrap().breaches;
    let number = number(0);
    assert_eq!(
        breaches,
        [format!(
            "I5 account a0: hold {number} is both open and ended"
        )]
    );
}

#[tokio::test]
async fn journals_never_go_back_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    // The clock was an hour ahead when this was written, and two years when that was.
    for (ahead_ms, followed) in [(3_600_000, true), (63_072_000_000, false)] {
        let ahead = crate::embedded::now_ms() + ahead_ms;
        Connection::open(&path)
            .unwrap()
            .execute("UPDATE receipts SET at_ms = ?1", [ahead.cast_signed()])
            .unwrap();
        let ledger = SqliteLedger::open(&path).unwrap();
        let id = format!("after-{ahead_ms}");
        ledger.enter(&account(0), &topup(&id, 1)).await.unwrap();
        let page = ledger.journal(&account(0), &JournalPart::whole()).await;
        let entered = page.unwrap().lines.into_iter().find_map(|line| match line {
            JournalLine::Entry {
                id: found, at_ms, ..
            } if found == id => Some(at_ms),
            _ => None,
        });
        assert_eq!(entered.unwrap() >= ahead, followed, "{ahead_ms}");
        ledger.close().await;
    }
}

#[tokio::test]
async fn calls_of_one_millisecond_are_each_on_one_page() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    for call in [4, 8, 12] {
        ledger.settle(&settlement(call, 10, true)).await.unwrap();
    }
    ledger.close().await;
    Connection::open(&path)
        .unwrap()
        .execute_batch("UPDATE receipts SET at_ms = (SELECT max(at_ms) FROM receipts)")
        .unwrap();
    let ledger = SqliteLedger::open(&path).unwrap();
    let mut found = Vec::new();
    let mut after = None;
    // One page for each line, and one that is empty.
    for _ in 0..6 {
        let part = JournalPart {
            after: after.as_deref(),
            limit: 1,
            ..JournalPart::whole()
        };
        let page = ledger.journal(&account(0), &part).await.unwrap();
        found.extend(page.lines.into_iter().filter_map(|line| match line {
            JournalLine::Call(receipt) => Some(receipt.number),
            JournalLine::Entry { .. } => None,
        }));
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    assert_eq!(found, [0, 4, 8, 12].map(number));
}

#[tokio::test]
async fn a_file_of_an_earlier_version_gets_its_indexes_and_columns() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch(
        "DROP INDEX entries_by_time; DROP INDEX receipts_by_time;
         ALTER TABLE receipts DROP COLUMN bounded",
    )
    .unwrap();
    drop(raw);
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

/// Also where the earlier version writes to it again.
#[tokio::test]
async fn a_file_of_an_earlier_version_keeps_sessions_from_then_on() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch("ALTER TABLE receipts DROP COLUMN session")
        .unwrap();
    drop(raw);

    let ledger = SqliteLedger::open(&path).unwrap();
    let mut receipt = ledger.receipt(number(0)).await.unwrap();
    let mut as_settled = settlement(0, 70, true).item;
    as_settled.session = None;
    assert_eq!(receipt.item, as_settled);
    ledger.settle(&settlement(4, 10, true)).await.unwrap();
    let named = ledger.receipt(number(4)).await.unwrap();
    assert_eq!(named.item, settlement(4, 10, true).item);
    ledger.close().await;

    // The earlier one knows all of these columns, and no other.
    let columns =
        "at_ms, account, key, model, vendor, input, cached_input, cache_write, output, held, cost,
                   charged, loss, ended, booked, estimated, price, bounded";
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch(&format!(
        "INSERT INTO receipts (number, {columns}) SELECT '{}', {columns} FROM receipts WHERE number = '{}';
         UPDATE keys SET used = used + 70 WHERE id = 'k0';
         UPDATE accounts SET balance = balance - 70",
        number(8),
        number(0)
    ))
    .unwrap();
    drop(raw);
    let ledger = SqliteLedger::open(&path).unwrap();
    receipt.number = number(8);
    assert_eq!(ledger.receipt(number(8)).await.unwrap(), receipt);
    assert_eq!(ledger.receipt(number(4)).await.unwrap(), named);
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
}

#[tokio::test]
async fn a_call_that_ran_when_its_process_was_killed_keeps_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.reserve(&hold(4, 100, 100, HOUR)).await.unwrap();
    let noted = settlement(4, 30, true);
    ledger
        .checkpoint(std::slice::from_ref(&noted))
        .await
        .unwrap();
    ledger.close().await;
    let ledger = SqliteLedger::open(&path).unwrap();
    assert_eq!(ledger.receipt(number(4)).await.unwrap().item, noted.item);
}

#[tokio::test]
async fn a_file_of_an_earlier_version_gets_its_columns_and_counts_from_then_on() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    let raw = Connection::open(&path).unwrap();
    for column in [
        "ceiling_month",
        "ceiling_day",
        "month",
        "month_before",
        "day",
        "day_before",
    ] {
        raw.execute_batch(&format!("ALTER TABLE keys DROP COLUMN {column}"))
            .unwrap();
    }
    drop(raw);

    for _ in 0..2 {
        let ledger = SqliteLedger::open(&path).unwrap();
        let view = ledger.key(&key(0)).await.unwrap();
        assert_eq!(view.spent_rub, MicroRub::new(70));
        // Nobody knows when that was.
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
async fn a_day_that_has_passed_bounds_nothing_and_its_charges_stay_in_the_month() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    let limited = KeyChange {
        ceiling_day: Some(Some(MicroRub::new(100))),
        ceiling_month: Some(Some(MicroRub::new(150))),
        ..KeyChange::default()
    };
    ledger.change_key(&key(0), &limited).await.unwrap();
    ledger.close().await;
    // What stands in the file on the morning after.
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch("UPDATE keys SET day = day - 2 WHERE id = 'k0'")
        .unwrap();
    drop(raw);

    let ledger = SqliteLedger::open(&path).unwrap();
    let view = ledger.key(&key(0)).await.unwrap();
    assert_eq!(
        (view.day.spent_rub, view.month.spent_rub, view.free_rub),
        (MicroRub::ZERO, MicroRub::new(70), MicroRub::new(80))
    );
    ledger.reserve(&hold(4, 80, 80, HOUR)).await.unwrap();
    ledger.settle(&settlement(4, 80, true)).await.unwrap();
    let refused = ledger.reserve(&hold(8, 1, 1, HOUR)).await;
    assert!(
        matches!(
            refused,
            Err(LedgerError::Refused(Refusal::CeilingUsedUp(
                Ceiling::Month { .. }
            )))
        ),
        "{refused:?}"
    );
    let view = ledger.key(&key(0)).await.unwrap();
    assert_eq!(
        (view.day.spent_rub, view.month.spent_rub),
        (MicroRub::new(80), MicroRub::new(150))
    );
    ledger.close().await;

    let raw = Connection::open(&path).unwrap();
    raw.execute_batch("UPDATE keys SET day_before = used + 1 WHERE id = 'k0'")
        .unwrap();
    drop(raw);
    match SqliteLedger::open(&path) {
        Err(OpenError::Mismatch { breaches, .. }) => {
            assert!(breaches[0].starts_with("I3 key k0: used 150, but 151"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_no_ledger_of_ours_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);

    fs::write(
        path("text"),
        "not a database, but long enough to have a header of its own, which is no header at all",
    )
    .unwrap();
    Connection::open(path("foreign"))
        .unwrap()
        .execute_batch("CREATE TABLE t (x)")
        .unwrap();
    for name in ["text", "foreign"] {
        let refused = SqliteLedger::open(&path(name)).unwrap_err();
        assert!(
            matches!(refused, OpenError::NotALedger { .. }),
            "{name}: {refused}"
        );
    }

    SqliteLedger::open(&path("newer")).unwrap().close().await;
    Connection::open(path("newer"))
        .unwrap()
        .execute_batch("PRAGMA user_version = 2")
        .unwrap();
    let refused = SqliteLedger::open(&path("newer")).unwrap_err();
    assert!(
        matches!(refused, OpenError::Version { found: 2, .. }),
        "{refused}"
    );

    let refused = SqliteLedger::open(&path("missing/ledger.db")).unwrap_err();
    assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
}

#[tokio::test]
async fn a_ledger_whose_file_failed_serves_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.reserve(&hold(4, 100, 100, HOUR)).await.unwrap();
    Connection::open(&path)
        .unwrap()
        .execute_batch("DROP TABLE receipts")
        .unwrap();

    let unsettled = ledger.settle(&settlement(4, 70, true)).await;
    assert!(
        matches!(unsettled, Err(LedgerError::Unavailable(_))),
        "{unsettled:?}"
    );
    let calls = [settlement(4, 70, true), settlement(8, 70, true)];
    let unsettled = ledger.settle_all(&calls).await;
    assert!(
        matches!(
            unsettled[..],
            [
                Err(LedgerError::Unavailable(_)),
                Err(LedgerError::Unavailable(_))
            ]
        ),
        "{unsettled:?}"
    );
    let Err(LedgerError::Unavailable(cause)) = ledger.reserve(&hold(8, 1, 1, HOUR)).await else {
        panic!("a hold on a broken ledger")
    };
    assert!(
        cause.to_string().contains("no such table") && cause.to_string().contains("restart"),
        "{cause}"
    );
    let unbooked = ledger.enter(&account(0), &topup("t2", 1)).await;
    assert!(
        matches!(unbooked, Err(BookError::Unavailable(_))),
        "{unbooked:?}"
    );
    assert!(ledger.find_key(&KeyDigest::new([0; 32])).await.is_err());
    ledger.close().await;
}

#[tokio::test]
async fn a_closed_ledger_serves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = used(&dir).await;
    ledger.close().await;
    ledger.close().await;
    assert!(matches!(
        ledger.reserve(&hold(4, 1, 1, HOUR)).await,
        Err(LedgerError::Unavailable(_))
    ));
    assert!(matches!(
        ledger.settle(&settlement(4, 1, true)).await,
        Err(LedgerError::Unavailable(_))
    ));
    assert!(matches!(
        ledger.receipt(number(0)).await,
        Err(BookError::Unavailable(_))
    ));
}

#[tokio::test]
async fn of_calls_at_once_as_many_are_held_as_can_be_paid() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    // 930 is left: nine times 100. All on key 0.
    let calls: Vec<u8> = (1..=50).map(|index| index * 4).collect();
    let served = join_all(calls.iter().map(|&index| {
        let ledger = ledger.clone();
        async move {
            match ledger.reserve(&hold(index, 100, 100, HOUR)).await {
                Ok(_) => {
                    ledger
                        .settle(&settlement(index, 100, true))
                        .await
                        .unwrap()
                        .charged
                        == MicroRub::new(100)
                }
                Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) => false,
                Err(error) => panic!("{error:?}"),
            }
        }
    }))
    .await;
    assert_eq!(served.into_iter().filter(|served| *served).count(), 9);
    ledger.close().await;

    let view = SqliteLedger::open(&path)
        .unwrap()
        .account(&account(0))
        .await
        .unwrap();
    assert_eq!(
        (view.balance_rub, view.held_rub, view.loss_rub),
        (MicroRub::new(30), MicroRub::ZERO, MicroRub::ZERO)
    );
}

#[derive(Clone, Debug)]
enum Step {
    Enter {
        account: u8,
        id: u8,
        micro: i64,
    },
    Suspend {
        account: u8,
        suspended: bool,
    },
    Ceiling {
        key: u8,
        micro: Option<i64>,
    },
    Status {
        key: u8,
        status: KeyStatus,
    },
    Reserve {
        call: u8,
        want: i64,
        least: i64,
        due: bool,
    },
    Settle {
        call: u8,
        cost: i64,
        fresh: bool,
    },
    Release {
        call: u8,
    },
    Extend {
        call: u8,
        due: bool,
    },
    Probe {
        key: u8,
    },
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    let status = prop_oneof![
        4 => Just(KeyStatus::Active),
        2 => Just(KeyStatus::Disabled),
        1 => Just(KeyStatus::Deleted),
    ];
    prop_oneof![
        3 => (0..3u8, 0..4u8, -300..1_000i64).prop_map(|(account, id, micro)| Step::Enter { account, id, micro }),
        1 => (0..3u8, any::<bool>()).prop_map(|(account, suspended)| Step::Suspend { account, suspended }),
        1 => (0..5u8, proptest::option::of(0..800i64)).prop_map(|(key, micro)| Step::Ceiling { key, micro }),
        1 => (0..5u8, status).prop_map(|(key, status)| Step::Status { key, status }),
        6 => (0..8u8, 0..400i64, 0..400i64, any::<bool>())
            .prop_map(|(call, want, least, due)| Step::Reserve { call, want, least, due }),
        5 => (0..8u8, 0..600i64, any::<bool>()).prop_map(|(call, cost, fresh)| Step::Settle { call, cost, fresh }),
        1 => (0..8u8).prop_map(|call| Step::Release { call }),
        1 => (0..8u8, any::<bool>()).prop_map(|(call, due)| Step::Extend { call, due }),
        1 => (0..5u8).prop_map(|key| Step::Probe { key }),
        1 => Just(Step::Expire),
    ]
}

/// Carries out a step; the answer as text, since errors have no equality.
async fn play<L: Ledger + LedgerAdmin>(ledger: &L, step: &Step) -> String {
    let ttl = |due: bool| if due { Duration::ZERO } else { HOUR };
    match *step {
        Step::Enter {
            account: index,
            id,
            micro,
        } => {
            format!(
                "{:?}",
                ledger
                    .enter(&account(index), &topup(&format!("t{id}"), micro))
                    .await
            )
        }
        Step::Suspend {
            account: index,
            suspended,
        } => {
            format!(
                "{:?}",
                ledger
                    .change_account(&account(index), None, Some(suspended))
                    .await
            )
        }
        Step::Ceiling { key: index, micro } => {
            let change = KeyChange {
                ceiling: Some(micro.map(MicroRub::new)),
                ..KeyChange::default()
            };
            format!("{:?}", ledger.change_key(&key(index), &change).await)
        }
        Step::Status { key: index, status } => {
            let change = KeyChange {
                status: Some(status),
                ..KeyChange::default()
            };
            format!("{:?}", ledger.change_key(&key(index), &change).await)
        }
        Step::Reserve {
            call,
            want,
            least,
            due,
        } => {
            format!(
                "{:?}",
                ledger
                    .reserve(&hold(call, want, least.min(want), ttl(due)))
                    .await
            )
        }
        Step::Settle { call, cost, fresh } => {
            format!("{:?}", ledger.settle(&settlement(call, cost, fresh)).await)
        }
        Step::Release { call } => {
            let Hold {
                number,
                account,
                key,
                ..
            } = hold(call, 0, 0, HOUR);
            format!("{:?}", ledger.release(number, &account, &key).await)
        }
        Step::Extend { call, due } => {
            let Hold {
                number, account, ..
            } = hold(call, 0, 0, HOUR);
            format!("{:?}", ledger.extend(number, &account, ttl(due)).await)
        }
        Step::Probe { key: index } => {
            format!("{:?}", ledger.probe(&account(index / 2), &key(index)).await)
        }
        Step::Expire => format!("{:?}", ledger.expire().await),
    }
}

/// All that a ledger shows, times of booking apart.
async fn shown<L: LedgerAdmin>(
    ledger: &L,
) -> (Vec<AccountView>, Vec<KeyView>, Vec<Option<Receipt>>) {
    let mut keys = Vec::new();
    for index in 0..2 {
        keys.extend(ledger.keys(&account(index)).await.unwrap());
    }
    let mut receipts = Vec::new();
    for call in 0..8 {
        let receipt = ledger.receipt(number(call)).await.ok();
        receipts.push(receipt.map(|receipt| Receipt {
            at_ms: 0,
            ..receipt
        }));
    }
    (ledger.accounts().await.unwrap(), keys, receipts)
}

async fn prepare<L: LedgerAdmin>(ledger: &L) {
    for index in 0..2 {
        ledger
            .create_account(&account(index), "Acme")
            .await
            .unwrap();
    }
    for index in 0..4 {
        ledger
            .create_key(&record(index), Ceilings::NONE)
            .await
            .unwrap();
    }
}

async fn memory_and_file_agree(steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    let memory = MemoryLedger::new();
    let file = SqliteLedger::open(&path).unwrap();
    prepare(&memory).await;
    prepare(&file).await;
    for step in steps {
        assert_eq!(
            play(&file, step).await,
            play(&memory, step).await,
            "{step:?}"
        );
        assert_eq!(
            memory.audit().await.unwrap().breaches,
            Vec::<String>::new(),
            "{step:?}"
        );
    }
    assert_eq!(shown(&file).await, shown(&memory).await);
    assert_eq!(file.audit().await.unwrap(), memory.audit().await.unwrap());
    file.close().await;

    // Holds die with the process; all else is the same after a restart.
    let file = SqliteLedger::open(&path).unwrap();
    let (accounts, keys, receipts) = shown(&file).await;
    let (accounts_before, keys_before, receipts_before) = shown(&memory).await;
    assert_eq!(receipts, receipts_before);
    for (after, before) in accounts.into_iter().zip(accounts_before) {
        assert_eq!(
            after,
            AccountView {
                held_rub: MicroRub::ZERO,
                free_rub: before.balance_rub,
                holds_open: 0,
                ..before
            }
        );
    }
    for (after, before) in keys.into_iter().zip(keys_before) {
        assert_eq!(
            after,
            KeyView {
                held_rub: MicroRub::ZERO,
                free_rub: after.free_rub,
                ..before
            }
        );
    }
    assert_eq!(file.audit().await.unwrap().breaches, Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn the_file_answers_and_remembers_as_the_memory_does(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(memory_and_file_agree(&steps));
    }
}

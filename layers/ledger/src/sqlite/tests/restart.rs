//! Tests that acknowledged changes survive the process, and that nothing is served after a failed commit.

use futures_util::FutureExt as _;
use tokio::task::JoinSet;

use super::*;
use crate::durable::test_files::copy_of_open_file;

#[tokio::test]
async fn acknowledged_changes_survive_a_restart() {
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
    // Invariant I10: booking the same payment again after the restart changes nothing.
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
async fn acknowledged_changes_survive_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    let copy = copy_of_open_file(&path);
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
async fn repeated_settlement_after_a_restart_charges_nothing() {
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
async fn receipt_of_a_call_left_open_by_a_killed_process_has_the_content_of_its_checkpoint() {
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
async fn release_is_acknowledged_only_after_the_deletion_of_its_checkpoint_is_written() {
    const SLOW: &str = "CREATE TRIGGER slow AFTER INSERT ON notes WHEN NEW.name = 'slow' BEGIN \
         SELECT count(*) FROM (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 60000000) \
         SELECT n FROM c); END";
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.close().await;
    edit(&path, SLOW);
    let ledger = SqliteLedger::open(&path).unwrap();
    ledger.reserve(&hold(4, 100, 100, HOUR)).await.unwrap();
    let noted = settlement(4, 30, true);
    ledger
        .checkpoint(std::slice::from_ref(&noted))
        .await
        .unwrap();
    // While the writer works on one change, further changes are queued until the queue is full.
    let (mut tasks, slow) = (JoinSet::new(), ledger.clone());
    tasks.spawn(async move { slow.compare_and_swap("slow", 0, "").await.map(drop) });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut waiting = Vec::new();
    loop {
        let name = format!("n{}", waiting.len());
        let ledger = ledger.clone();
        let mut put = Box::pin(async move { ledger.compare_and_swap(&name, 0, "").await });
        match (&mut put).now_or_never() {
            None => waiting.push(put),
            Some(Ok(_)) => {}
            Some(Err(_)) => break,
        }
    }
    let release = || ledger.release(number(4), &noted.account, &noted.key);
    release().await.unwrap_err();
    tasks.join_next().await.unwrap().unwrap().unwrap();
    // Retries, as the settler does, until the queue has room.
    while release().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ledger.close().await;
    let ledger = SqliteLedger::open(&path).unwrap();
    assert!(ledger.receipt(number(4)).await.is_err());
}

#[tokio::test]
async fn ledger_refuses_every_call_after_a_failed_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    ledger.reserve(&hold(4, 100, 100, HOUR)).await.unwrap();
    edit(&path, "DROP TABLE receipts");

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
async fn closed_ledger_refuses_every_call() {
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

/// Groups keep their spending across a restart. Charges of a version without groups do not count as spending of a
/// group.
#[tokio::test]
async fn groups_survive_a_restart_and_use_of_the_file_by_an_earlier_version() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    let group = GroupRecord {
        id: "g1".parse().unwrap(),
        name: "Отдел".into(),
        removed: false,
    };
    let ceilings = Ceilings {
        day: Some(MicroRub::new(500)),
        ..Ceilings::NONE
    };
    let made = ledger.create_group(&account(0), &group, ceilings).await;
    made.unwrap();
    let into = KeyChange {
        group: Some(Some(group.id.clone())),
        concurrency: Some(Some(7)),
        ..KeyChange::default()
    };
    ledger.change_key(&key(0), &into).await.unwrap();
    ledger.reserve(&hold(4, 40, 40, HOUR)).await.unwrap();
    ledger.settle(&settlement(4, 40, true)).await.unwrap();
    let before = (
        ledger.groups(&account(0)).await.unwrap(),
        ledger.key(&key(0)).await.unwrap(),
    );
    assert_eq!(before.0[0].day.spent_rub, MicroRub::new(40));
    ledger.close().await;

    let ledger = SqliteLedger::open(&path).unwrap();
    let after = (
        ledger.groups(&account(0)).await.unwrap(),
        ledger.key(&key(0)).await.unwrap(),
    );
    assert_eq!(after, before);
    assert_eq!(ledger.audit().await.unwrap().breaches, Vec::<String>::new());
    ledger.close().await;

    // Writes a charge as a version without groups writes it.
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch(
        "UPDATE keys SET used = used + 5 WHERE id = 'k0'; UPDATE accounts SET balance = balance - 5 WHERE id = 'a0';",
    )
    .unwrap();
    drop(conn);
    let ledger = SqliteLedger::open(&path).unwrap();
    let groups = ledger.groups(&account(0)).await.unwrap();
    assert_eq!(groups[0].spent_rub, MicroRub::new(40));
}

/// The other program may be a SQLite console with an open transaction.
#[tokio::test]
async fn ledger_file_locked_by_another_program_is_written_after_it_is_unlocked() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    let before = ledger.account(&account(0)).await.unwrap();
    ledger.reserve(&hold(4, 100, 100, HOUR)).await.unwrap();
    let console = rusqlite::Connection::open(&path).unwrap();
    console.execute_batch("BEGIN IMMEDIATE").unwrap();
    let end = Settlement {
        held: MicroRub::new(100),
        ..settlement(4, 70, true)
    };
    let error = ledger.settle(&end).await.unwrap_err();
    assert!(
        format!("{error:?}").contains("another program keeps the ledger file locked"),
        "{error:?}"
    );
    // No call is served, but operators can still read.
    let refused = ledger.reserve(&hold(8, 1, 1, HOUR)).await;
    assert!(matches!(refused, Err(LedgerError::Unavailable(_))));
    assert!(ledger.check().is_err());
    ledger.account(&account(0)).await.unwrap();

    console.execute_batch("COMMIT").unwrap();
    // The settlement is retried until it succeeds, as the settler does.
    let told_again = async {
        loop {
            match ledger.settle(&end).await {
                Ok(settled) => break settled,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(60), told_again).await;
    assert_eq!(settled.unwrap().charged, MicroRub::new(70));
    ledger.check().unwrap();
    ledger.reserve(&hold(8, 1, 1, HOUR)).await.unwrap();
    ledger.close().await;
    let ledger = SqliteLedger::open(&path).unwrap();
    let view = ledger.account(&account(0)).await.unwrap();
    assert_eq!(
        before.balance_rub.micro() - view.balance_rub.micro(),
        70,
        "charged once"
    );
}

use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
};

use proptest::prelude::*;
use tempfile::TempDir;
use uuid::Uuid;

use super::{
    queue::{END_WAIT, INTENT_WAIT, NOTE_WAIT},
    *,
};
use crate::{
    account::KeyId,
    contract::{Item, Settlement},
    durable::test_files::{copy_of_open_file, edit, foreign_files},
    money::MicroRub,
    number::RequestNumber,
    outbox::log::{self, Ending},
    testing::given::acme as account,
    usage::{End, Usage},
};

fn key() -> KeyId {
    "k1".parse().unwrap()
}

fn number(index: u16) -> RequestNumber {
    RequestNumber::from_uuid(Uuid::from_u128(u128::from(index)))
}

fn settlement(index: u16, cost: i64) -> Arc<Settlement> {
    Arc::new(Settlement {
        number: number(index),
        account: account(),
        key: key(),
        held: MicroRub::new(1_000_000),
        cost: MicroRub::new(cost),
        fresh: true,
        lease: None,
        item: Item {
            usage: Usage {
                input: 1,
                cached_input: 2,
                cache_write: 3,
                output: 4,
                ..Usage::default()
            },
            price: None,
            estimated: true,
            bounded: false,
            session: (index != 3).then(|| "s-1".parse().unwrap()),
            endpoint: Some(crate::endpoint::Endpoint::Messages),
            timeline: "3 - 1500 5003 200|4 1059 502 vendor_unavailable acme"
                .parse()
                .ok(),
            ..Item::new("модель", "v", End::GatewayStopped)
        },
    })
}

fn intent(index: u16) -> CallStep {
    CallStep::Intent {
        number: number(index),
        account: account(),
        key: key(),
        at_ms: 1_000 + u64::from(index),
    }
}

fn checkpoint(index: u16) -> CallStep {
    CallStep::Checkpoint(settlement(index, 40))
}

fn settle(index: u16) -> CallStep {
    CallStep::Settle(settlement(index, 70), 2_000 + u64::from(index))
}

fn release(index: u16) -> CallStep {
    CallStep::Release {
        number: number(index),
        account: account(),
        key: key(),
        at_ms: 2_000 + u64::from(index),
    }
}

fn done(index: u16) -> CallStep {
    CallStep::Done {
        number: number(index),
        at_ms: 3_000 + u64::from(index),
    }
}

/// Writes calls in every state, with one commit per step.
async fn used(dir: &TempDir) -> (SqliteLog, PathBuf) {
    let path = dir.path().join("outbox.db");
    let log = SqliteLog::open(&path).unwrap();
    for line in [
        intent(1),
        intent(2),
        checkpoint(2),
        intent(3),
        settle(3),
        intent(4),
        release(4),
        intent(5),
        settle(5),
        done(5),
        intent(6),
        release(6),
        done(6),
        // The hold of call 7 was refused, so the call is done without a settlement or release.
        intent(7),
        done(7),
    ] {
        log.append(line);
        log.sync().await.unwrap();
    }
    (log, path)
}

fn released(index: u16) -> Ending {
    Ending::Release {
        number: number(index),
        account: account(),
        key: key(),
    }
}

/// The calls that an outbox must find after `used` has written their steps, sorted by number, and whether each is done.
fn left_of_used() -> Vec<(Ending, bool)> {
    vec![
        (released(1), false),
        (Ending::Settle(settlement(2, 40)), false),
        (Ending::Settle(settlement(3, 70)), false),
        (released(4), false),
        (Ending::Settle(settlement(5, 70)), true),
        (released(6), true),
    ]
}

fn by_number(left: &[Pending]) -> Vec<(Ending, bool)> {
    let mut left: Vec<_> = left
        .iter()
        .map(|call| (call.ending.clone(), call.done))
        .collect();
    left.sort_by_key(|(ending, _)| ending.number());
    left
}

#[tokio::test]
async fn written_outbox_steps_are_read_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = used(&dir).await;
    assert_eq!(log.load().await.unwrap(), []);
    log.close().await;

    let log = SqliteLog::open(&path).unwrap();
    let left = log.load().await.unwrap();
    assert_eq!(by_number(&left), left_of_used());
    // Calls that are done come first, in the order in which they became done.
    let numbers: Vec<_> = left.iter().map(|call| call.ending.number()).collect();
    assert_eq!(numbers[..2], [number(5), number(6)]);
    let dates: HashMap<_, _> = left
        .iter()
        .map(|call| (call.ending.number(), call.at_ms))
        .collect();
    assert_eq!((dates[&number(1)], dates[&number(3)]), (1_001, 2_003));
    // The log stores the current time for a checkpoint, which has no time of its own.
    assert!(dates[&number(2)] > 1_700_000_000_000);

    // The next process marks these calls as done in the same file.
    for index in 1..=4 {
        log.append(done(index));
    }
    log.close().await;
    let log = SqliteLog::open(&path).unwrap();
    // Calls 1 and 2 had neither a settlement nor a release, so the step `Done` deletes them from the file.
    let left: Vec<_> = left_of_used()
        .into_iter()
        .skip(2)
        .map(|(ending, _)| (ending, true))
        .collect();
    assert_eq!(by_number(&log.load().await.unwrap()), left);
}

#[tokio::test]
async fn synced_outbox_steps_survive_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, path) = used(&dir).await;
    let copy = copy_of_open_file(&path);
    let revived = SqliteLog::open(&copy).unwrap();
    assert_eq!(by_number(&revived.load().await.unwrap()), left_of_used());
}

#[tokio::test]
async fn outbox_step_is_written_to_the_file_without_a_sync_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("outbox.db");
    let log = SqliteLog::open(&path).unwrap();
    let looker = Connection::open(&path).unwrap();
    for (line, kind) in [
        (intent(1), "intent"),
        (checkpoint(1), "checkpoint"),
        (settle(1), "settle"),
    ] {
        log.append(line);
        let written = tokio::time::timeout(Duration::from_secs(5), async {
            loop {
                let found =
                    looker.query_row("SELECT kind FROM calls", [], |row| row.get::<_, String>(0));
                if found.is_ok_and(|found| found == kind) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        });
        written.await.unwrap_or_else(|_| panic!("no {kind}"));
    }
}

#[tokio::test]
async fn acknowledged_calls_are_deleted_from_the_outbox_in_batches_and_other_calls_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("outbox.db");
    let log = SqliteLog::open(&path).unwrap();
    // It takes more than one commit to delete these calls. One other call is not done.
    for index in 0..2_500 {
        log.append(settle(index));
    }
    log.sync().await.unwrap();
    for index in 1..2_500 {
        log.append(done(index));
    }
    log.sync().await.unwrap();
    log.forget(3_000 + 2_400);
    let looker = Connection::open(&path).unwrap();
    let forgotten = tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            let rows: i64 = looker
                .query_row("SELECT count(*) FROM calls", [], |row| row.get(0))
                .unwrap();
            if rows == 100 {
                break;
            }
            tokio::task::yield_now().await;
        }
    });
    forgotten.await.unwrap();
    log.close().await;
    let left = SqliteLog::open(&path).unwrap().load().await.unwrap();
    assert_eq!(left.iter().filter(|call| call.done).count(), 99);
    let first = left.iter().find(|call| !call.done).unwrap();
    assert_eq!(first.ending.number(), number(0));
}

#[tokio::test]
async fn outbox_file_can_be_open_in_only_one_gateway_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = used(&dir).await;
    let refused = SqliteLog::open(&path).unwrap_err();
    assert!(matches!(refused, LogError::InUse { .. }), "{refused}");
    let text = refused.to_string();
    assert!(
        text.contains("outbox.db") && text.contains("a file of its own"),
        "{text}"
    );
    log.close().await;
    SqliteLog::open(&path).unwrap();
}

#[tokio::test]
async fn closed_outbox_writes_nothing_and_returns_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = used(&dir).await;
    log.close().await;
    log.close().await;
    assert_eq!(log.fault().as_deref(), Some("the outbox file is closed"));
    assert!(log.sync().await.is_err());
    log.append(intent(8));
    let log = SqliteLog::open(&path).unwrap();
    assert_eq!(by_number(&log.load().await.unwrap()), left_of_used());
}

#[tokio::test]
async fn only_a_valid_outbox_file_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let ledger = crate::sqlite::SqliteLedger::open(&path("ledger")).unwrap();
    ledger.close().await;
    for path in foreign_files(dir.path()).iter().chain([&path("ledger")]) {
        let refused = SqliteLog::open(path).unwrap_err();
        assert!(matches!(refused, LogError::NotAnOutbox { .. }), "{refused}");
    }

    SqliteLog::open(&path("newer")).unwrap().close().await;
    edit(&path("newer"), "PRAGMA user_version = 2");
    let refused = SqliteLog::open(&path("newer")).unwrap_err();
    assert!(
        matches!(refused, LogError::Version { found: 2, .. }),
        "{refused}"
    );

    let refused = SqliteLog::open(&path("missing/outbox.db")).unwrap_err();
    assert!(matches!(refused, LogError::Io { .. }), "{refused}");
}

#[tokio::test]
async fn read_only_outbox_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = used(&dir).await;
    log.close().await;
    let read_only = |path: &Path| {
        let refused = SqliteLog::open(path).unwrap_err();
        assert!(matches!(refused, LogError::ReadOnly { .. }), "{refused}");
    };

    // This file header allows only a newer version of SQLite to write to the file.
    let newer = dir.path().join("newer.db");
    let mut bytes = fs::read(&path).unwrap();
    bytes[18] = 3;
    fs::write(&newer, bytes).unwrap();
    read_only(&newer);

    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    // The root user may write to any file, so the test is skipped for root.
    if OpenOptions::new().write(true).open(&path).is_err() {
        read_only(&path);
    }
}

/// Opens a tampered file. Returns true if it contains exactly the written calls, and false if an error names the file.
/// Panics otherwise.
fn opens_rightly(dir: &TempDir, bytes: &[u8], what: &str) -> bool {
    let copy = dir.path().join("tampered.db");
    fs::write(&copy, bytes).unwrap();
    for beside in ["tampered.db-wal", "tampered.db-shm"] {
        let _ = fs::remove_file(dir.path().join(beside));
    }
    match rows::open(&copy) {
        Ok((_file, left)) => {
            assert_eq!(by_number(&left), left_of_used(), "{what}");
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("tampered.db"), "{what}: {error}");
            false
        }
    }
}

#[tokio::test]
async fn no_call_is_charged_from_a_damaged_outbox_file() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = used(&dir).await;
    log.close().await;
    let bytes = fs::read(&path).unwrap();
    assert!(opens_rightly(&dir, &bytes, "untouched"));

    for stored in [
        1,
        100,
        4_095,
        4_096,
        bytes.len() / 2,
        bytes.len() - 4_096,
        bytes.len() - 100,
    ] {
        let torn = &bytes[..stored];
        assert!(
            !opens_rightly(&dir, torn, &format!("{stored} bytes")) || stored > bytes.len() - 4_096
        );
    }
    let mut found = 0;
    for offset in (0..bytes.len()).step_by(61) {
        let mut flipped = bytes.clone();
        flipped[offset] ^= 1 << (offset % 8);
        found += u32::from(!opens_rightly(&dir, &flipped, &format!("byte {offset}")));
    }
    assert!(found > 0, "no flipped bit was found");
}

#[tokio::test]
async fn error_for_a_manipulated_outbox_names_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = used(&dir).await;
    log.close().await;
    for (index, tampering) in [
        "UPDATE calls SET settlement = replace(settlement, '0.00007', '0.00009')",
        "UPDATE calls SET account = 'other'",
        "UPDATE calls SET kind = 'settle' WHERE kind = 'checkpoint'",
        "UPDATE calls SET at_ms = at_ms + 1",
        "UPDATE calls SET done_at_ms = 0 WHERE done_at_ms IS NULL",
        "DROP TABLE calls",
        "DELETE FROM synced",
    ]
    .into_iter()
    .enumerate()
    {
        let copy = dir.path().join(format!("copy{index}.db"));
        fs::copy(&path, &copy).unwrap();
        edit(&copy, tampering);
        let refused = SqliteLog::open(&copy).unwrap_err();
        assert!(
            matches!(refused, LogError::Damaged { .. }),
            "{tampering}: {refused}"
        );
        let text = refused.to_string();
        assert!(
            text.contains(&format!("copy{index}.db")) && text.contains("move it away"),
            "{text}"
        );
    }
    SqliteLog::open(&path).unwrap();
}

#[tokio::test]
async fn steps_before_a_truncation_of_the_write_ahead_log_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("outbox.db");
    let log = SqliteLog::open(&path).unwrap();
    let calls = 10;
    for index in 1..=calls {
        log.append(settle(index));
        log.sync().await.unwrap();
    }
    let (file, wal) = (
        fs::read(&path).unwrap(),
        fs::read(dir.path().join("outbox.db-wal")).unwrap(),
    );
    let copy = dir.path().join("copy.db");
    let mut most = 0;
    for stored in (0..wal.len()).step_by(1_999).chain([wal.len()]) {
        let _ = fs::remove_file(dir.path().join("copy.db-shm"));
        fs::write(&copy, &file).unwrap();
        fs::write(dir.path().join("copy.db-wal"), &wal[..stored]).unwrap();
        let (opened, left) = rows::open(&copy).unwrap();
        drop(opened);
        let numbers: Vec<_> = left.iter().map(|call| call.ending.number()).collect();
        let first: Vec<_> = (1..=calls).map(number).take(numbers.len()).collect();
        assert_eq!(numbers, first, "{stored} bytes");
        assert!(numbers.len() >= most, "{stored} bytes");
        most = numbers.len();
    }
    assert_eq!(most, usize::from(calls));
}

#[tokio::test]
async fn outbox_reports_a_full_disk_until_there_is_space_again() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = used(&dir).await;
    let limit = |pages_max| locked(&log.inner.writer).queue.pages_max = Some(pages_max);
    limit(1);
    for index in 100..300 {
        log.append(settle(index));
    }
    let full = log.sync().await.unwrap_err().to_string();
    assert!(full.contains("full") && full.contains("retries"), "{full}");
    assert_eq!(log.fault(), Some(full));
    // The log accepts steps even while the disk is full, because these steps belong to in-flight calls.
    log.append(done(100));

    limit(1_000_000);
    let healed = tokio::time::timeout(Duration::from_secs(10), async {
        while log.sync().await.is_err() {}
    });
    healed.await.unwrap();
    assert_eq!(log.fault(), None);
    log.close().await;
    let left = SqliteLog::open(&path).unwrap().load().await.unwrap();
    assert_eq!(left.len(), left_of_used().len() + 200);
    let done = left.iter().filter(|call| call.done);
    assert_eq!(done.count(), 2 + 1);
}

#[tokio::test]
async fn outbox_reports_a_broken_file_until_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = used(&dir).await;
    edit(&path, "DROP TABLE calls");
    log.append(settle(8));
    assert!(log.sync().await.is_err());
    let fault = log.fault().unwrap();
    assert!(
        fault.contains("no such table") && fault.contains("restart"),
        "{fault}"
    );
    log.append(settle(9));
    assert!(log.sync().await.is_err());
    log.close().await;
}

/// Returns one text for each call that has waiting steps, for comparison.
fn waiting(queue: &Queue) -> Vec<String> {
    let mut shown = Vec::new();
    for (number, waiting) in queue.iter() {
        let word = match &waiting.note {
            None => "-",
            Some(note) => match (&note.ending, note.ended) {
                (Ending::Release { .. }, false) => "intent",
                (Ending::Settle(call), false) if call.cost.micro() == 40 => "noted",
                (Ending::Settle(_), false) => "noted again",
                (Ending::Settle(_), true) => "settle",
                (Ending::Release { .. }, true) => "release",
            },
        };
        let done = if waiting.done_at_ms.is_some() {
            ", done"
        } else {
            ""
        };
        shown.push(format!("{} {word}{done}", number.uuid().as_u128()));
    }
    shown
}

fn queue(lines: &[CallStep], now: Moment) -> Queue {
    let mut queue = Queue::default();
    for line in lines {
        queue.add(line.clone(), now);
    }
    queue
}

#[test]
fn queued_steps_of_a_call_are_merged_into_at_most_one_row() {
    let again = CallStep::Checkpoint(settlement(1, 41));
    for (lines, rows) in [
        (&[intent(1)][..], &["1 intent"][..]),
        (
            &[intent(1), checkpoint(1), again.clone()],
            &["1 noted again"],
        ),
        (&[intent(1), checkpoint(1), settle(1)], &["1 settle"]),
        (&[intent(1), checkpoint(1), settle(1), done(1)], &[]),
        (&[intent(1), release(1), done(1), intent(2)], &["2 intent"]),
        (&[intent(1), done(1)], &[]),
        // The intent of call 1 is already in the file, so the queue contains only the checkpoints.
        (&[checkpoint(1), again], &["1 noted again"]),
        (&[settle(1), done(1)], &["1 settle, done"]),
        (&[done(1)], &["1 -, done"]),
        // A checkpoint has no effect after the settlement of its call.
        (&[settle(1), checkpoint(1)], &["1 settle"]),
        (&[done(1), checkpoint(1)], &["1 -, done"]),
        (
            &[intent(2), release(1), settle(2)],
            &["1 release", "2 settle"],
        ),
    ] {
        assert_eq!(waiting(&queue(lines, Moment::now())), rows, "{lines:?}");
    }
}

#[test]
fn write_of_a_step_is_delayed_in_case_a_later_step_replaces_it() {
    let now = Moment::now();
    for (lines, wait) in [
        (&[intent(1)][..], Some(INTENT_WAIT)),
        (&[checkpoint(1)], Some(NOTE_WAIT)),
        (&[intent(1), checkpoint(1)], Some(NOTE_WAIT)),
        (&[intent(1), settle(1), intent(2)], Some(END_WAIT)),
        (&[intent(1), release(1)], Some(END_WAIT)),
        (&[done(1)], Some(NOTE_WAIT)),
        (&[intent(1), settle(1), done(1)], None),
    ] {
        let mut queue = queue(lines, now);
        let due = wait.map(|wait| now + wait);
        assert_eq!(queue.first_due(), due, "{lines:?}");
        if let Some(due) = due {
            let early = due - Duration::from_nanos(1);
            assert!(queue.take_due(early).is_empty(), "{lines:?}");
            assert_eq!(waiting(&queue.take_due(due)).len(), 1, "{lines:?}");
        }
    }

    // A settlement that arrives when the intent of its call is due does not share the intent's commit: it waits for its
    // own time.
    let mut late = queue(&[intent(1)], now);
    let end = now + INTENT_WAIT;
    late.add(settle(1), end);
    assert!(late.take_due(end).is_empty());
    assert_eq!(late.add(done(1), end), None);
    assert!(late.is_empty());

    // Steps whose write failed are due immediately.
    let mut fresh = queue(&[settle(1)], now);
    fresh.put_back(queue(&[intent(1)], now), now);
    assert_eq!(waiting(&fresh.take_due(now)), ["1 settle"]);
}

#[test]
fn outbox_writer_wakes_for_a_step_that_is_due_before_the_writers_next_check() {
    let writer = GroupCommit::without_thread(Work::default());
    let soon = Moment::now();
    let late = soon + Duration::from_secs(3_600);
    for (line, sleeps_until, woken) in [
        (intent(1), late, true),
        (intent(2), soon, false),
        (settle(1), soon, false),
        (settle(2), late, true),
        // Calls 1 and 2 have neither a row in the file nor a step in the queue, so nothing is due.
        (done(1), late, false),
        (done(2), late, false),
        // Call 3 has a row in the file that must be changed, since its intent and settlement are not in the queue.
        (done(3), late, true),
    ] {
        let what = format!("{line:?}");
        writer.pretend_asleep(sleeps_until);
        append(&writer, line);
        assert_eq!(writer.is_awake(), woken, "{what}");
    }
}

#[tokio::test]
async fn steps_of_a_finished_call_do_not_delay_steps_of_other_calls() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("outbox.db");
    let log = SqliteLog::open(&path).unwrap();
    let looker = Connection::open(&path).unwrap();
    for index in 1..=20 {
        for line in [intent(index), settle(index), done(index)] {
            log.append(line);
        }
    }
    log.append(intent(21));
    let written = tokio::time::timeout(Duration::from_secs(5), async {
        let sql = "SELECT count(*) FROM calls WHERE kind = 'intent'";
        while looker
            .query_row(sql, [], |row| row.get::<_, i64>(0))
            .unwrap()
            == 0
        {
            tokio::task::yield_now().await;
        }
    });
    written.await.unwrap();
}

#[test]
fn steps_put_back_into_the_queue_are_merged_as_older_than_the_steps_already_in_it() {
    for (older, newer, rows) in [
        (&[intent(1)][..], &[settle(1)][..], &["1 settle"][..]),
        (&[intent(1)], &[], &["1 intent"]),
        (&[intent(1), settle(1)], &[done(1)], &[]),
        (&[settle(1)], &[done(1)], &["1 settle, done"]),
        (
            &[settle(1), done(1)],
            &[intent(2)],
            &["1 settle, done", "2 intent"],
        ),
        (&[intent(1)], &[settle(1), done(1)], &[]),
        (&[intent(1)], &[checkpoint(1)], &["1 noted"]),
    ] {
        let now = Moment::now();
        let mut queue_now = queue(newer, now);
        queue_now.put_back(queue(older, now), now);
        assert_eq!(waiting(&queue_now), rows, "{older:?}, {newer:?}");
    }
}

/// Writes these steps and checks the file. Each tuple contains a call, the kind of the call's next step, and whether
/// the log is synced afterwards.
async fn file_keeps_what_lines_come_to(steps: &[(u16, u8, bool)]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("outbox.db");
    let log = SqliteLog::open(&path).unwrap();
    let mut lines = Vec::new();
    let mut progress = HashMap::new();
    for &(call, step, sync) in steps {
        // The steps of a call come in this order: intent, checkpoints, a settlement or release, `Done`.
        let stage = progress.entry(call).or_insert(0);
        let (line, next) = match (*stage, step) {
            (0, _) => (intent(call), 1),
            (1, 0) => (checkpoint(call), 1),
            (1, 1) => (settle(call), 2),
            (1, 2) => (release(call), 2),
            (1 | 2, _) => (done(call), 3),
            _ => continue,
        };
        *stage = next;
        lines.push(line.clone());
        log.append(line);
        if sync {
            log.sync().await.unwrap();
        }
    }
    log.close().await;
    let found = by_number(&SqliteLog::open(&path).unwrap().load().await.unwrap());
    let expected = by_number(&log::pending(lines));
    // If a call was done before the writer wrote its first step, the file need not contain the call.
    assert!(
        found.iter().all(|call| expected.contains(call)),
        "{found:?}"
    );
    for call in expected {
        assert!(call.1 || found.contains(&call), "{call:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn outbox_file_contains_the_merged_steps_of_each_call(
        steps in prop::collection::vec((0..6u16, 0..5u8, any::<bool>()), 1..60)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(file_keeps_what_lines_come_to(&steps));
    }
}

#[tokio::test]
async fn charges_in_the_outbox_of_one_ledger_are_not_sent_to_another_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = used(&dir).await;
    log.close().await;
    // Files of versions that did not record the data set belong to the data set for which they are first opened.
    for books in ["first", "first"] {
        let log = SqliteLog::open_for(&path, books).unwrap();
        assert_eq!(by_number(&log.load().await.unwrap()), left_of_used());
        log.close().await;
    }
    let error = SqliteLog::open_for(&path, "second").unwrap_err();
    assert!(
        matches!(error, LogError::OtherBooks { .. }) && error.to_string().contains("outbox.db"),
        "{error}"
    );

    // After all its charges are acknowledged, the file may be used for another data set.
    let log = SqliteLog::open_for(&path, "first").unwrap();
    for number in 1..=4 {
        log.append(done(number));
    }
    log.sync().await.unwrap();
    log.close().await;
    for _ in 0..2 {
        let log = SqliteLog::open_for(&path, "second").unwrap();
        assert!(log.load().await.unwrap().is_empty());
        log.close().await;
    }
}

//! Tests of `tollgate ledger copy`, which copies all books from one ledger to another: between files, Redis servers and
//! a Cluster.

use std::{
    path::Path,
    process::{Command, Output},
    time::{SystemTime, UNIX_EPOCH},
};

use tollgate_layers::{
    ceiling::Ceilings,
    reserve::{
        copy::{self, Source, Target},
        ledger::{BookError, JournalLine, JournalPart, KeyChange, Ledger, LedgerAdmin},
        memory::MemoryLedger,
        redis::{RedisCopy, RedisLedger, RedisSettings},
        sqlite::{SqliteCopy, SqliteLedger},
    },
};

use crate::{
    ledger::{
        Books, acme, folder, hold, is_sound, micro, number, open, over, over_url, record,
        settlement, topup,
    },
    prelude::*,
    support::process::TOLLGATE,
    support::redis::RedisCluster,
    usage_report::{complained, reported},
};

const DAY_MS: u64 = 24 * 3_600_000;

/// Runs `tollgate ledger copy`. No gateway is running.
async fn ledger_copy(from: &str, to: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(TOLLGATE);
    command
        .args(["ledger", "copy", "--from", from, "--to", to])
        .args(flags);
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

fn file(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

/// Fills the ledger with two accounts, keys of all kinds, a correction, charges, a loss, and a tariff version.
async fn busy<L: Books>(ledger: &L) {
    open(ledger, 1000).await;
    let limited = record(&acme(), "k3", 3);
    let ceilings = Ceilings {
        total: Some(micro(500)),
        month: Some(micro(400)),
        day: Some(micro(300)),
    };
    ledger.create_key(&limited, ceilings).await.unwrap();
    for (n, key, cost) in [(1, "k1", 70), (2, "k3", 30), (3, "k1", 90)] {
        ledger.reserve(&hold(n, key, 80)).await.unwrap();
        ledger.settle(&settlement(n, key, cost)).await.unwrap();
    }
    let off = KeyChange {
        status: Some(tollgate_layers::key::KeyStatus::Disabled),
        ..KeyChange::default()
    };
    ledger.change_key(&limited.id, &off).await.unwrap();
    ledger.enter(&acme(), &topup("more", 5)).await.unwrap();
    let beta = "beta".parse().unwrap();
    ledger.create_account(&beta, "Бета").await.unwrap();
    ledger
        .change_account(&beta, None, Some(true))
        .await
        .unwrap();
    ledger.tariff_version("one").await.unwrap();
    ledger.tariff_version("two").await.unwrap();
}

/// Returns everything that operators and callers can see of a ledger, except details of its store, such as positions in
/// the journal.
async fn seen<L: Books>(ledger: &L) -> Vec<Value> {
    let mut seen = Vec::new();
    for view in ledger.accounts().await.unwrap() {
        let mut books = serde_json::to_value(ledger.books(&view.id).await.unwrap()).unwrap();
        books["journal_end"] = Value::Null;
        seen.push(books);
        for line in lines(ledger, &view.id).await {
            if let JournalLine::Call(receipt) = &line {
                assert_eq!(ledger.receipt(receipt.number).await.unwrap(), *receipt);
            }
            seen.push(serde_json::to_value(line).unwrap());
        }
    }
    seen
}

async fn lines<L: Books>(
    ledger: &L,
    account: &tollgate_layers::key::AccountId,
) -> Vec<JournalLine> {
    let page = ledger
        .journal(account, &JournalPart::whole())
        .await
        .unwrap();
    assert_eq!(page.next, None);
    page.lines
}

/// Checks that a copied ledger accepts new entries and calls, and still contains the entries and settlements of its
/// source.
async fn goes_on<L: Books>(ledger: &L) {
    is_sound(ledger).await;
    let balance = ledger.account(&acme()).await.unwrap().balance_rub;
    ledger.enter(&acme(), &topup("first", 1000)).await.unwrap();
    let other_amount = ledger.enter(&acme(), &topup("first", 7)).await;
    assert!(matches!(other_amount, Err(BookError::Exists)));
    let again = ledger.settle(&settlement(1, "k1", 70)).await.unwrap();
    assert!(again.repeated, "{again:?}");
    assert_eq!(ledger.account(&acme()).await.unwrap().balance_rub, balance);

    let known = ledger.find_key(&record(&acme(), "k1", 1).digest).await;
    assert_eq!(known.unwrap().unwrap().id.to_string(), "k1");
    let version = ledger.tariff_version("two").await.unwrap();
    assert_eq!(version.id, 2);

    ledger.reserve(&hold(50, "k1", 10)).await.unwrap();
    ledger.settle(&settlement(50, "k1", 10)).await.unwrap();
    is_sound(ledger).await;
}

#[tokio::test]
async fn books_copied_from_a_file_to_redis_to_a_cluster_and_back_lose_nothing() {
    let folder = folder();
    let (first, last) = (folder.path().join("a.db"), folder.path().join("b.db"));
    let ledger = SqliteLedger::open(&first).unwrap();
    busy(&ledger).await;
    let before = seen(&ledger).await;
    ledger.close().await;

    let server = RedisServer::start().await;
    let cluster = RedisCluster::start(3, 0).await;
    for (from, to) in [
        (file(&first), server.url()),
        (server.url(), cluster.url()),
        (cluster.url(), file(&last)),
    ] {
        let copied = ledger_copy(&from, &to, &[]).await;
        let text = reported(&copied, 0);
        has(&text, "ok: source and target are the same");
    }
    assert_eq!(seen(&over(&server).await).await, before);
    assert_eq!(seen(&over_url(&cluster.url()).await).await, before);
    let back = SqliteLedger::open(&last).unwrap();
    assert_eq!(seen(&back).await, before);

    goes_on(&over(&server).await).await;
    goes_on(&over_url(&cluster.url()).await).await;
    goes_on(&back).await;
    back.close().await;
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name.to_string_lossy().contains("copy"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn gateway_serves_calls_from_a_copied_ledger_with_the_same_keys() {
    let (server, folder) = (RedisServer::start().await, folder());
    let path = folder.path().join("books.db");
    let (world, key) = Setup::default().ledger(&file(&path)).start_with_key().await;
    let answer = world.chat(&key, &chat_body("x")).await;
    let receipt = world.receipt(&answer.number()).await;
    let account = world.settled(&key).await;

    let served = ledger_copy(&file(&path), &server.url(), &[]).await;
    assert!(complained(&served, 1).contains("in use by another gateway"));
    world.gateway.drain().await.unwrap();
    let report = reported(
        &ledger_copy(&file(&path), &server.url(), &["--json"]).await,
        0,
    );
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["accounts"], 1);
    assert_eq!(report["from"], report["to"]);

    let world = Setup::default().ledger(&server.url()).start().await;
    assert_eq!(world.account(&key).await, account);
    assert_eq!(world.receipt(&answer.number()).await, receipt);
    assert_eq!(world.chat(&key, &chat_body("x")).await.status, 200);

    let back = file(&folder.path().join("back.db"));
    let served = ledger_copy(&server.url(), &back, &[]).await;
    assert!(complained(&served, 1).contains("a gateway still serves from this ledger"));
}

#[tokio::test]
async fn ledger_copy_reports_open_holds_and_releases_them_only_on_request() {
    let (server, folder) = (RedisServer::start().await, folder());
    let ledger = over(&server).await;
    busy(&ledger).await;
    ledger.reserve(&hold(9, "k1", 40)).await.unwrap();
    let to = file(&folder.path().join("books.db"));
    let refused = complained(&ledger_copy(&server.url(), &to, &[]).await, 1);
    has(&refused, "1 hold still open, 0.00004 ₽ in total");
    has(&refused, "--release");
    reported(&ledger_copy(&server.url(), &to, &["--release"]).await, 0);
    assert_eq!(ledger.account(&acme()).await.unwrap().held_rub, micro(0));

    // The expiry time of the hold has passed. So the hold ends while the command waits, and the copy can begin.
    let mut due = hold(10, "k1", 40);
    due.ttl = std::time::Duration::ZERO;
    ledger.reserve(&due).await.unwrap();
    let to = file(&folder.path().join("other.db"));
    let waited = reported(&ledger_copy(&server.url(), &to, &["--wait", "60"]).await, 0);
    has(&waited, "the charges of 1 call are not in the copy");
}

#[tokio::test]
async fn ledger_copy_does_not_change_a_target_that_is_not_empty() {
    let (server, folder) = (RedisServer::start().await, folder());
    let (path, taken) = (folder.path().join("a.db"), folder.path().join("b.db"));
    let ledger = SqliteLedger::open(&path).unwrap();
    busy(&ledger).await;
    ledger.close().await;
    std::fs::write(&taken, "").unwrap();
    let refused = ledger_copy(&file(&path), &file(&taken), &[]).await;
    assert!(complained(&refused, 1).contains("exists already"));

    let other = over(&server).await;
    open(&other, 5).await;
    let refused = ledger_copy(&file(&path), &server.url(), &[]).await;
    assert!(complained(&refused, 1).contains("has accounts already (1)"));
    assert_eq!(other.accounts().await.unwrap().len(), 1);

    let nothing = ledger_copy(
        "redis://127.0.0.1:1",
        &file(&folder.path().join("c.db")),
        &[],
    )
    .await;
    assert!(complained(&nothing, 69).contains("out of reach"));
}

#[tokio::test]
async fn interrupted_copy_of_a_ledger_serves_no_call_and_can_continue() {
    let (server, folder) = (RedisServer::start().await, folder());
    let path = folder.path().join("a.db");
    let ledger = SqliteLedger::open(&path).unwrap();
    busy(&ledger).await;
    let before = seen(&ledger).await;
    // All data is copied, but the process dies before it marks the copy as complete.
    let mut target = RedisCopy::begin(&server.url(), RedisSettings::default())
        .await
        .unwrap();
    copy::copy(&ledger, &mut target, |_| {}).await.unwrap();
    drop(target);
    // This simulates a copy that was interrupted before one of the accounts was copied.
    server.ask::<i64>(&["DEL", "tg:{acme}"]).await.unwrap();
    ledger.close().await;

    let error = RedisLedger::connect(&server.url(), RedisSettings::default()).await;
    let error = std::error::Error::source(&error.unwrap_err())
        .unwrap()
        .to_string();
    assert!(error.contains("an incomplete copy of a ledger"), "{error}");
    let report = ledger_copy(&file(&path), &server.url(), &["--json"]).await;
    let report: Value = serde_json::from_str(&reported(&report, 0)).unwrap();
    assert_eq!(report["accounts"], 2);
    assert_eq!(report["accounts_there_already"], 1);
    assert_eq!(seen(&over(&server).await).await, before);
    goes_on(&over(&server).await).await;

    // If a copy into a file was interrupted, the command starts again from the beginning. The incomplete file cannot be
    // opened as a ledger.
    let target = folder.path().join("c.db");
    let begun = SqliteCopy::begin(&target).unwrap();
    drop(begun);
    assert!(!target.exists());
    reported(&ledger_copy(&file(&path), &file(&target), &[]).await, 0);
    let copied = SqliteLedger::open(&target).unwrap();
    assert_eq!(seen(&copied).await, before);
    copied.close().await;
}

#[tokio::test]
async fn ledger_copy_fails_if_the_source_changes_meanwhile() {
    let (server, folder) = (RedisServer::start().await, folder());
    let ledger = SqliteLedger::open(&folder.path().join("a.db")).unwrap();
    busy(&ledger).await;
    let mut target = RedisCopy::begin(&server.url(), RedisSettings::default())
        .await
        .unwrap();
    copy::copy(&ledger, &mut target, |_| {}).await.unwrap();
    ledger.enter(&acme(), &topup("late", 1)).await.unwrap();
    let copied = target.filled().await.unwrap();
    let found = copy::compare(&ledger, &copied).await.unwrap();
    assert_eq!(found.different, [acme()]);
    ledger.close().await;
}

/// Returns a ledger in a file whose journal lines are this number of days old.
async fn aged(path: &Path, days: u64) -> SqliteLedger {
    let ledger = MemoryLedger::new();
    busy(&ledger).await;
    let mut target = SqliteCopy::begin(path).unwrap();
    for view in ledger.accounts().await.unwrap() {
        let mut lines = lines(&ledger, &view.id).await;
        for line in &mut lines {
            match line {
                JournalLine::Entry { at_ms, .. } => *at_ms -= days * DAY_MS,
                JournalLine::Call(receipt) => receipt.at_ms -= days * DAY_MS,
            }
        }
        target.lines(&view.id, &lines, false).await.unwrap();
        let books = ledger.books(&view.id).await.unwrap();
        target.account(&books, &Default::default()).await.unwrap();
    }
    let version = ledger.tariff_version("two").await.unwrap();
    target.tariff(version, "two").await.unwrap();
    let filled = target.filled().await.unwrap();
    target.publish(filled).await.unwrap();
    SqliteLedger::open(path).unwrap()
}

#[tokio::test]
async fn ledger_copy_to_redis_omits_old_receipts_and_books_no_payment_twice() {
    let (server, folder) = (RedisServer::start().await, folder());
    let (old, back) = (folder.path().join("old.db"), folder.path().join("back.db"));
    let ledger = aged(&old, 500).await;
    is_sound(&ledger).await;
    let account = ledger.account(&acme()).await.unwrap();
    ledger.close().await;

    reported(&ledger_copy(&file(&old), &server.url(), &[]).await, 0);
    let in_redis = over(&server).await;
    assert_eq!(in_redis.account(&acme()).await.unwrap(), account);
    assert!(lines(&in_redis, &acme()).await.is_empty());
    assert!(!in_redis.books(&acme()).await.unwrap().journal_complete);
    assert_eq!(in_redis.entries(&acme()).await.unwrap().len(), 2);
    in_redis
        .enter(&acme(), &topup("first", 1000))
        .await
        .unwrap();
    assert_eq!(in_redis.account(&acme()).await.unwrap(), account);

    reported(&ledger_copy(&server.url(), &file(&back), &[]).await, 0);
    let ledger = SqliteLedger::open(&back).unwrap();
    is_sound(&ledger).await;
    assert!(!ledger.books(&acme()).await.unwrap().journal_complete);
    ledger.enter(&acme(), &topup("first", 1000)).await.unwrap();
    assert_eq!(ledger.account(&acme()).await.unwrap(), account);
    // The copied journal does not contain the older charges, which is not a breach. It contains all later charges.
    ledger.reserve(&hold(60, "k1", 10)).await.unwrap();
    ledger.settle(&settlement(60, "k1", 10)).await.unwrap();
    is_sound(&ledger).await;
    ledger.close().await;
    let reopened = SqliteLedger::open(&back).unwrap();
    is_sound(&reopened).await;
    assert!(reopened.receipt(number(60)).await.is_ok());
    reopened.close().await;
}

#[tokio::test]
async fn copied_receipts_keep_their_age_in_redis() {
    let (server, folder) = (RedisServer::start().await, folder());
    let path = folder.path().join("a.db");
    aged(&path, 300).await.close().await;
    reported(&ledger_copy(&file(&path), &server.url(), &[]).await, 0);
    let ledger = over(&server).await;
    let receipt = ledger.receipt(number(1)).await.unwrap();
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    assert!(now_ms - receipt.at_ms >= 300 * DAY_MS);
    let place = format!("tg:{{acme}}:r:{}", number(1));
    let left_ms: u64 = server.ask(&["PTTL", &place]).await.unwrap();
    assert!((99 * DAY_MS..=100 * DAY_MS).contains(&left_ms), "{left_ms}");
}

#[tokio::test]
async fn account_with_sixty_thousand_keys_is_copied_to_redis() {
    const KEYS: usize = 60_000;
    let (server, folder) = (RedisServer::start().await, folder());
    let first = folder.path().join("a.db");
    let ledger = SqliteLedger::open(&first).unwrap();
    ledger.create_account(&acme(), "Acme").await.unwrap();
    let ceilings = Ceilings {
        total: Some(micro(500)),
        month: Some(micro(400)),
        day: Some(micro(300)),
    };
    let keys: Vec<_> = (0..KEYS)
        .map(|index| {
            let mut key = record(&acme(), &format!("k{index}"), 1);
            let digest = format!("{index:064x}");
            key.digest = digest.parse().unwrap();
            key
        })
        .collect();
    // Concurrent changes share commits to the file, which makes them faster.
    for some in keys.chunks(2000) {
        let made = some.iter().map(|key| ledger.create_key(key, ceilings));
        for made in futures_util::future::join_all(made).await {
            made.unwrap();
        }
    }
    ledger.close().await;

    let report = reported(
        &ledger_copy(&file(&first), &server.url(), &["--json"]).await,
        0,
    );
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["from"], report["to"]);
    assert_eq!(report["to"]["keys"], KEYS, "{report}");
}

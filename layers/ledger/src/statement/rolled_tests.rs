//! Tests that a statement from the roll-up equals the statement that is computed from all journal lines.

use proptest::prelude::*;

use super::{rolled, *};
use crate::{
    contract::Entry,
    memory::MemoryLedger,
    redis::test_server::Server,
    rollup::{
        DAY_MS, HOUR_MS, Rollup, Scope, roll_up,
        tests::{
            ACCOUNTS, DAYS, end_of_today, in_file, in_redis, now, some_calls, sorted,
            try_random_calls,
        },
    },
    testing::{given, spoil_sums},
};

/// Rolls up in steps, and computes statements for several periods after each step.
async fn try_all<L: Rollup>(ledger: &L, times: &[Range<u64>], now_ms: u64) {
    for before_ms in [0, now_ms - 12 * DAY_MS, now_ms - HOUR_MS, u64::MAX] {
        roll_up(ledger, before_ms).await.unwrap();
        for account in ACCOUNTS.map(given::account) {
            for time in times {
                let reported = Statement::read(ledger, &account, time.clone()).await;
                let all = Statement::read_all(ledger, &account, time.clone()).await;
                let (reported, all) = (reported.unwrap(), all.unwrap());
                assert_eq!(reported, all, "{account} {time:?} {before_ms}");
                assert_eq!(reported.kopecks(), all.kopecks());
            }
        }
    }
    let acme = given::account(ACCOUNTS[0]);
    for time in times
        .iter()
        .filter(|time| time.end - time.start > 2 * DAY_MS)
    {
        let rolled = rolled::read(ledger, &acme, time).await.unwrap();
        assert!(rolled.is_some(), "{time:?}");
    }
}

#[test]
fn statement_from_roll_up_sums_equals_statement_from_journal_lines() {
    let ago = prop_oneof![
        (0..DAYS, 0..DAYS).prop_map(|(a, b)| (a * DAY_MS, b * DAY_MS)),
        (0..DAYS * DAY_MS, 0..DAYS * DAY_MS),
        // The periods are months in Moscow time (UTC+3).
        (0..DAYS, 0..DAYS).prop_map(|(a, b)| (a * DAY_MS + 3 * HOUR_MS, b * DAY_MS + 3 * HOUR_MS)),
    ];
    try_random_calls(12, 120, ago, end_of_today, &async |filled, times| {
        let month = end_of_today(filled.now_ms) - 30 * DAY_MS..u64::MAX;
        let times = [&[0..u64::MAX, month][..], times].concat();
        try_all(&filled.file, &times, filled.now_ms).await;
        try_all(&filled.redis, &times, filled.now_ms).await;
    });
}

/// An entry that is booked after the sums were made appears on the statement, because the books include it.
#[tokio::test]
async fn entries_booked_after_the_roll_up_are_on_the_statement() {
    async fn try_it<L: Rollup>(ledger: &L) {
        let acme = given::account("acme");
        roll_up(ledger, u64::MAX).await.unwrap();
        let paid = Entry {
            id: "late".into(),
            amount: MicroRub::new(123_456),
            reason: None,
        };
        ledger.enter(&acme, &paid).await.unwrap();
        let time = 0..u64::MAX;
        let reported = Statement::read(ledger, &acme, time.clone()).await.unwrap();
        let all = Statement::read_all(ledger, &acme, time).await.unwrap();
        assert_eq!(reported, all);
        assert_eq!(reported.payments.last().unwrap().id, "late");
    }
    let now_ms = now();
    let receipts = sorted(&some_calls(), now_ms);
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start().await);
    try_it(&in_file(dir.path(), &receipts, now_ms - 3 * DAY_MS).await).await;
    try_it(&in_redis(&server, &receipts, now_ms - 3 * DAY_MS).await).await;
    let memory = MemoryLedger::new();
    memory
        .create_account(&given::account("acme"), "")
        .await
        .unwrap();
    try_it(&memory).await;
}

/// If the sums do not equal the account's spending, the statement is computed without them.
#[tokio::test]
async fn statement_ignores_roll_up_sums_that_contradict_the_books() {
    let now_ms = now();
    let receipts = sorted(&some_calls(), now_ms);
    let dir = tempfile::tempdir().unwrap();
    let ledger = in_file(dir.path(), &receipts, now_ms - 3 * DAY_MS).await;
    roll_up(&ledger, u64::MAX).await.unwrap();
    let (acme, time) = (given::account("acme"), 0..u64::MAX);
    let right = rolled::read(&ledger, &acme, &time).await.unwrap().unwrap();
    let scope = Scope::Account(acme.clone());
    spoil_sums(&ledger, scope).await;
    assert_eq!(rolled::read(&ledger, &acme, &time).await.unwrap(), None);
    assert_eq!(Statement::read(&ledger, &acme, time).await.unwrap(), right);
}

/// Redis finds payments among millions of calls in a list next to the sums. An earlier version made sums without this
/// list.
#[tokio::test]
async fn entries_that_an_earlier_version_did_not_store_with_the_sums_are_on_the_statement() {
    let now_ms = now();
    let receipts = sorted(&some_calls(), now_ms);
    let server = Server::start().await;
    let ledger = in_redis(&server, &receipts, now_ms - 3 * DAY_MS).await;
    roll_up(&ledger, u64::MAX).await.unwrap();
    let acme = given::account("acme");
    let end = ledger.books(&acme).await.unwrap().journal_end;
    let stored = ledger.entries(&acme, &end).await.unwrap().unwrap();
    assert_eq!(stored.len(), 4);
    let _: i64 = server.ask(&["HDEL", "tg:sums:{sums}", "e:acme"]).await;
    let keys: Vec<String> = server
        .ask(&["KEYS", "tg:sums:{sums}:=entries:acme:*"])
        .await;
    assert!(!keys.is_empty());
    for key in keys {
        let _: i64 = server.ask(&["DEL", &key]).await;
    }
    assert_eq!(ledger.entries(&acme, &end).await.unwrap(), None);
    assert_eq!(
        rolled::read(&ledger, &acme, &(0..u64::MAX)).await.unwrap(),
        None
    );
    roll_up(&ledger, u64::MAX).await.unwrap();
    assert_eq!(ledger.entries(&acme, &end).await.unwrap(), Some(stored));
}

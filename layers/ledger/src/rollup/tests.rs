//! Tests that the sums plus the journal lines after them equal the total of all receipts.

use std::{collections::BTreeMap, ops::ControlFlow, path::Path};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use super::*;
use crate::{
    ceiling::Ceilings,
    contract::{AccountBooks, Booked, Entry, Item},
    memory::MemoryLedger,
    money::MicroRub,
    redis::{RedisCopy, RedisLedger, RedisSettings, test_server::Server},
    sqlite::{SqliteCopy, SqliteLedger},
    testing::{given, spoil_sums},
    timeline::Timeline,
    transfer::Target,
    usage::{End, Usage},
};

pub(crate) const ACCOUNTS: [&str; 3] = ["acme", "beta", "gone"];
const KEYS: usize = 2;
/// A time range of this many days always includes a whole month.
pub(crate) const DAYS: u64 = 70;
/// A payment that is larger than all charges together, in micro-rubles.
const PAID: i64 = 1_000_000_000_000;
/// The payments and corrections of each account: id, age in milliseconds, amount, reason.
const MOVED: [(&str, u64, i64, Option<&str>); 3] = [
    ("p2", 20 * DAY_MS + 5 * HOUR_MS, 70_000_000, None),
    ("c1", 10 * DAY_MS, -30_000_001, Some("paid twice")),
    ("c2", 3 * HOUR_MS, 5, Some("rounded")),
];

/// Sums by account, time and the fields of [`Words`].
type Table = BTreeMap<(Option<AccountId>, u64, Words), Sums>;

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) account: usize,
    pub(crate) key: usize,
    /// How long ago the call was booked, in milliseconds.
    pub(crate) ago_ms: u64,
    pub(crate) model: u8,
    pub(crate) vendor: u8,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) charged: i64,
    pub(crate) vendor_cost: Option<i64>,
    pub(crate) failed: bool,
    pub(crate) stale: bool,
}

pub(crate) fn call() -> impl Strategy<Value = Call> {
    let ago = prop_oneof![0..HOUR_MS, 0..3 * DAY_MS, 0..DAYS * DAY_MS];
    let what = (
        0..3u8,
        0..2u8,
        prop::option::of(0..Endpoint::ALL.len()),
        0..1_000_000i64,
    );
    let rest = (
        prop::option::of(0..1_000_000i64),
        any::<bool>(),
        prop::bool::weighted(0.1),
    );
    (0..2usize, 0..KEYS, ago, what, rest).prop_map(|(account, key, ago_ms, what, rest)| Call {
        account,
        key,
        ago_ms,
        model: what.0,
        vendor: what.1,
        endpoint: what.2.map(|at| Endpoint::ALL[at]),
        charged: what.3,
        vendor_cost: rest.0,
        failed: rest.1,
        stale: rest.2,
    })
}

fn receipt(at: usize, call: &Call, now_ms: u64) -> Receipt {
    let end = match call.failed {
        true => End::VendorCut,
        false => End::Finished,
    };
    let loss = if call.failed && !call.stale { 7 } else { 0 };
    Receipt {
        number: given::number(at as u128 + 1),
        at_ms: now_ms - call.ago_ms,
        account: given::account(ACCOUNTS[call.account]),
        key: key_of(call.account, call.key),
        // The key is in a group for only some of its calls.
        group: (call.model > 0 && !call.stale).then(|| format!("g{}", call.key).parse().unwrap()),
        held_rub: MicroRub::new(call.charged),
        cost_rub: MicroRub::new(call.charged + loss),
        charged_rub: MicroRub::new(if call.stale { 0 } else { call.charged }),
        loss_rub: MicroRub::new(loss),
        booked: if call.stale {
            Booked::Stale
        } else {
            Booked::Held
        },
        item: Item {
            usage: Usage {
                output: 1 + u64::from(call.model),
                ..given::item(1 + i64::from(call.model)).usage
            },
            price: given::item(0).price.filter(|_| call.charged % 2 == 0),
            estimated: call.charged % 5 == 0,
            vendor_cost_rub: call.vendor_cost.map(MicroRub::new),
            endpoint: call.endpoint,
            // Receipts of an earlier version have no timeline.
            timeline: (call.charged % 3 != 0).then(|| Timeline {
                first_byte_ms: u32::try_from(call.charged % 700).ok(),
                whole_ms: u32::try_from(call.charged % 9_000).unwrap(),
                ..Timeline::default()
            }),
            ..Item::new(format!("m{}", call.model), format!("v{}", call.vendor), end)
        },
    }
}

pub(crate) fn key_of(account: usize, key: usize) -> KeyId {
    given::key(&format!("k{account}-{key}"))
}

/// Returns the books that result from these receipts.
async fn books(account: usize, receipts: &[&Receipt]) -> AccountBooks {
    let (ledger, id) = (MemoryLedger::new(), given::account(ACCOUNTS[account]));
    ledger.create_account(&id, "").await.unwrap();
    let paid = Entry {
        id: "p".into(),
        amount: MicroRub::new(PAID),
        reason: None,
    };
    ledger.enter(&id, &paid).await.unwrap();
    for (id_of, _, amount, reason) in MOVED {
        let moved = Entry {
            id: id_of.into(),
            amount: MicroRub::new(amount),
            reason: reason.map(str::to_owned),
        };
        ledger.enter(&id, &moved).await.unwrap();
    }
    for key in 0..KEYS {
        let digest = u8::try_from(1 + account * KEYS + key).unwrap();
        let record = given::record(&id, &key_of(account, key), digest);
        ledger.create_key(&record, Ceilings::NONE).await.unwrap();
    }
    let mut books = ledger.books(&id).await.unwrap();
    let mut spent = 0;
    for key in &mut books.keys {
        let of_key = receipts
            .iter()
            .filter(|receipt| receipt.key == key.record.id);
        let charged: i64 = of_key.map(|receipt| receipt.charged_rub.micro()).sum();
        key.spent_rub = MicroRub::new(charged);
        spent += charged;
    }
    let lost = receipts.iter().map(|receipt| receipt.loss_rub.micro());
    books.view.loss_rub = MicroRub::new(lost.sum());
    books.view.balance_rub = MicroRub::new(books.entered_rub.micro() - spent);
    books.view.spent_rub = MicroRub::new(spent);
    books
}

async fn fill<T: Target>(mut target: T, receipts: &[Receipt], first_ms: u64) -> T::Ledger {
    let now_ms = now();
    for (at, name) in ACCOUNTS.iter().enumerate() {
        let of_account: Vec<&Receipt> = receipts
            .iter()
            .filter(|receipt| &*receipt.account == *name)
            .collect();
        let books = books(at, &of_account).await;
        let paid = JournalLine::Entry {
            id: "p".into(),
            at_ms: first_ms,
            account: books.view.id.clone(),
            amount_rub: MicroRub::new(PAID),
            reason: None,
        };
        let moved = MOVED.map(|(id, ago_ms, amount, reason)| JournalLine::Entry {
            id: id.into(),
            at_ms: now_ms - ago_ms,
            account: books.view.id.clone(),
            amount_rub: MicroRub::new(amount),
            reason: reason.map(str::to_owned),
        });
        let calls = of_account.into_iter().cloned().map(JournalLine::Call);
        let mut lines: Vec<JournalLine> = std::iter::once(paid).chain(moved).chain(calls).collect();
        lines.sort_by_key(JournalLine::at_ms);
        target.lines(&books.view.id, &lines, false).await.unwrap();
        let mut entries: std::collections::HashMap<String, MicroRub> =
            [("p".to_owned(), MicroRub::new(PAID))].into();
        entries.extend(MOVED.map(|(id, _, amount, _)| (id.to_owned(), MicroRub::new(amount))));
        target.account(&books, &entries).await.unwrap();
    }
    target.filled().await.unwrap()
}

/// Adds up the receipts of a time range one by one, for comparison.
fn one_by_one(
    receipts: &[Receipt],
    call_scope: &CallScope<'_>,
    time: &Range<u64>,
    step: &Scope,
) -> Table {
    let mut table = Table::new();
    for receipt in receipts {
        let requested = match call_scope {
            CallScope::Account(id) => receipt.account == **id,
            CallScope::All | CallScope::AllByHour | CallScope::AllByMonth => true,
        };
        if requested && receipt.booked != Booked::Stale && time.contains(&receipt.at_ms) {
            let sums = Sums::from_receipt(receipt);
            add(
                &mut table,
                call_scope,
                &Part::from_receipt(receipt, &sums),
                step,
            );
        }
    }
    table
}

fn add(table: &mut Table, call_scope: &CallScope<'_>, part: &Part<'_>, step: &Scope) {
    let of_one = matches!(call_scope, CallScope::Account(_));
    let words = Words {
        key: part.key.filter(|_| of_one).cloned(),
        group: part.group.filter(|_| of_one).cloned(),
        model: part.model.to_owned(),
        vendor: part.vendor.to_owned(),
        endpoint: part.endpoint,
    };
    let row = table.entry((None, step.begin_ms(part.at_ms), words));
    let row = row.or_default();
    row.add(part.sums);
}

async fn requested<L: Rollup>(
    ledger: &L,
    call_scope: CallScope<'_>,
    time: &Range<u64>,
    step: &Scope,
) -> (Table, usize) {
    let (mut table, mut parts) = (Table::new(), 0);
    let reported = read(ledger, call_scope, time.clone(), |part| {
        add(&mut table, &call_scope, part, step);
        parts += 1;
        ControlFlow::Continue(())
    });
    reported.await.unwrap();
    (table, parts)
}

/// Rolls up in steps. After each step, reads several time ranges and compares the results with the receipts.
async fn try_all<L: Rollup>(ledger: &L, receipts: &[Receipt], times: &[Range<u64>], now_ms: u64) {
    let acme = given::account(ACCOUNTS[0]);
    for before_ms in [0, now_ms - 2 * DAY_MS, now_ms - HOUR_MS, u64::MAX] {
        roll_up(ledger, before_ms).await.unwrap();
        for time in times {
            for (call_scope, step) in [
                (CallScope::Account(&acme), Scope::Days),
                (CallScope::All, Scope::Days),
                (CallScope::AllByHour, Scope::Hours),
                (CallScope::AllByMonth, Scope::Months),
            ] {
                let (reported, _) = requested(ledger, call_scope, time, &step).await;
                let expected = one_by_one(receipts, &call_scope, time, &step);
                assert_eq!(reported, expected, "{call_scope:?} {time:?} {before_ms}");
            }
        }
        assert_eq!(check(ledger).await.unwrap(), Vec::<String>::new());
    }
    assert_eq!(
        roll_up(ledger, u64::MAX).await.unwrap(),
        0,
        "all lines are in the sums"
    );
    let added_up_ms = ledger.marks().await.unwrap().months_end_ms;
    // The newest line of the journal is either a call or the entry from three hours ago.
    let newest = receipts.iter().map(|receipt| receipt.at_ms);
    let newest_ms = newest.fold(now_ms - 3 * HOUR_MS, u64::max);
    let begin_ms = Scope::Months.begin_ms(newest_ms);
    assert!(added_up_ms >= begin_ms, "the months, too");
    ledger.clear_sums().await.unwrap();
    let (reported, _) = requested(ledger, CallScope::All, &(0..u64::MAX), &Scope::Days).await;
    let whole = one_by_one(receipts, &CallScope::All, &(0..u64::MAX), &Scope::Days);
    assert_eq!(reported, whole, "nothing is rolled up");
    roll_up(ledger, u64::MAX).await.unwrap();
    let (reported, _) = requested(ledger, CallScope::All, &(0..u64::MAX), &Scope::Days).await;
    assert_eq!(reported, whole, "computed again");
}

pub(crate) fn now() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since_epoch.unwrap().as_millis()).unwrap()
}

pub(crate) fn sorted(calls: &[Call], now_ms: u64) -> Vec<Receipt> {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| std::cmp::Reverse(call.ago_ms));
    let calls = calls.iter().enumerate();
    calls.map(|(at, call)| receipt(at, call, now_ms)).collect()
}

pub(crate) async fn in_file(dir: &Path, receipts: &[Receipt], first_ms: u64) -> SqliteLedger {
    let copy = SqliteCopy::begin(&dir.join("ledger.db")).unwrap();
    fill(copy, receipts, first_ms).await
}

pub(crate) async fn in_redis(server: &Server, receipts: &[Receipt], first_ms: u64) -> RedisLedger {
    let _: String = server.ask(&["FLUSHALL"]).await;
    let copy = RedisCopy::begin(&server.url, RedisSettings::default());
    fill(copy.await.unwrap(), receipts, first_ms).await
}

/// Ledgers of all kinds that contain the same random calls.
pub(crate) struct Filled {
    pub(crate) file: SqliteLedger,
    pub(crate) redis: RedisLedger,
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) now_ms: u64,
}

/// Runs a test on ledgers with random calls, and with random time ranges. `ago` is a time range in milliseconds before
/// `until_ms`.
pub(crate) fn try_random_calls(
    cases: u32,
    calls_max: usize,
    ago: impl Strategy<Value = (u64, u64)>,
    until_ms: fn(u64) -> u64,
    test: &impl AsyncFn(&Filled, &[Range<u64>]),
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    let calls = prop::collection::vec(call(), 0..calls_max);
    let given = (calls, prop::collection::vec(ago, 1..4));
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let tried = TestRunner::new(config).run(&given, |(calls, ago)| {
        let now_ms = now();
        let until_ms = until_ms(now_ms);
        let receipts = sorted(&calls, now_ms);
        let times = ago
            .iter()
            .map(|(a, b)| until_ms - a.max(b)..until_ms - a.min(b));
        let times: Vec<_> = times.collect();
        let first_ms = now_ms - (DAYS + 1) * DAY_MS;
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let filled = Filled {
                file: in_file(dir.path(), &receipts, first_ms).await,
                redis: in_redis(&server, &receipts, first_ms).await,
                receipts,
                now_ms,
            };
            test(&filled, &times).await;
            filled.file.close().await;
        });
        Ok(())
    });
    tried.unwrap();
}

pub(crate) fn end_of_today(now_ms: u64) -> u64 {
    now_ms - now_ms % DAY_MS + DAY_MS
}

#[test]
fn roll_up_sums_and_later_journal_lines_count_every_receipt_once() {
    let ago = prop_oneof![
        (0..DAYS, 0..DAYS).prop_map(|(a, b)| (a * DAY_MS, b * DAY_MS)),
        (0..DAYS * DAY_MS, 0..DAYS * DAY_MS),
        (0..2 * DAY_MS, 0..2 * DAY_MS),
    ];
    try_random_calls(12, 120, ago, end_of_today, &async |filled, times| {
        let Filled {
            file,
            redis,
            receipts,
            now_ms,
        } = filled;
        let month = end_of_today(*now_ms) - 30 * DAY_MS..u64::MAX;
        let times = [&[0..u64::MAX, month][..], times].concat();
        try_all(file, receipts, &times, *now_ms).await;
        try_all(redis, receipts, &times, *now_ms).await;
    });
}

pub(crate) fn some_calls() -> Vec<Call> {
    let call = Call {
        account: 0,
        key: 0,
        ago_ms: 0,
        model: 0,
        vendor: 0,
        endpoint: None,
        charged: 5,
        vendor_cost: None,
        failed: false,
        stale: false,
    };
    let ago = |ago_ms| Call {
        ago_ms,
        ..call.clone()
    };
    (0..500).map(|n| ago(DAY_MS + n * 60_000)).collect()
}

/// A report that uses the roll-up must read fewer lines than a report without it.
#[tokio::test]
async fn report_does_not_read_journal_lines_that_the_roll_up_sums_already_contain() {
    let now_ms = now();
    let receipts = sorted(&some_calls(), now_ms);
    let dir = tempfile::tempdir().unwrap();
    let ledger = in_file(dir.path(), &receipts, now_ms - 3 * DAY_MS).await;
    let (_, parts) = requested(&ledger, CallScope::All, &(0..u64::MAX), &Scope::Days).await;
    assert_eq!(parts, 500);
    roll_up(&ledger, u64::MAX).await.unwrap();
    let (_, parts) = requested(&ledger, CallScope::All, &(0..u64::MAX), &Scope::Days).await;
    assert!((1..=2).contains(&parts), "{parts}");
}

#[tokio::test]
async fn journal_lines_that_a_failover_may_lose_are_not_rolled_up() {
    let now_ms = now();
    let mut calls = some_calls();
    calls.push(Call {
        ago_ms: 1_000,
        ..calls[0].clone()
    });
    let receipts = sorted(&calls, now_ms);
    let dir = tempfile::tempdir().unwrap();
    let ledger = in_file(dir.path(), &receipts, now_ms - 3 * DAY_MS).await;
    let mut roller = Roller::default();
    // Payments and corrections are journal lines too.
    let entries = ACCOUNTS.len() * (1 + MOVED.len());
    let unrolled = u64::try_from(500 + entries).unwrap();
    assert_eq!(roller.round(&ledger).await.unwrap(), unrolled);
    assert_eq!(roller.round(&ledger).await.unwrap(), 0);
    assert_eq!(roll_up(&ledger, u64::MAX).await.unwrap(), 1);
}

/// Tested twice: with the readable account before the unreadable one, and after it.
#[tokio::test]
async fn unreadable_journal_does_not_stop_the_roll_up_of_other_journals() {
    let now_ms = now();
    let of_both = some_calls().into_iter().enumerate().map(|(at, call)| Call {
        account: at % 2,
        ..call
    });
    let receipts = sorted(&of_both.collect::<Vec<_>>(), now_ms);
    let server = Server::start().await;
    let ledger = in_redis(&server, &receipts, now_ms - 3 * DAY_MS).await;
    let mut in_sums = 0;
    for (spoilt, other) in [(0, 1), (1, 0)] {
        ledger.clear_sums().await.unwrap();
        let journal = format!("tg:{{{}}}:j", ACCOUNTS[spoilt]);
        let unknown = ["XADD", &journal, "*", "kind", "loan", "at", "5"];
        let place: String = server.ask(&unknown).await;
        assert!(roll_up(&ledger, u64::MAX).await.is_err());
        let places = ledger.marks().await.unwrap().places;
        in_sums += usize::from(places.contains_key(&given::account(ACCOUNTS[other])));
        assert!(!places.contains_key(&given::account(ACCOUNTS[spoilt])));
        let _: i64 = server.ask(&["XDEL", &journal, &place]).await;
    }
    assert_eq!(in_sums, 1);
    roll_up(&ledger, u64::MAX).await.unwrap();
    assert_eq!(check(&ledger).await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_roll_ups_count_no_receipt_twice() {
    let now_ms = now();
    let receipts = sorted(&some_calls(), now_ms);
    let server = Server::start().await;
    let one = in_redis(&server, &receipts, now_ms - 3 * DAY_MS).await;
    let _: i64 = server.ask(&["HSET", "tg:sys", "schema", "1"]).await;
    let other = server.ledger().await;
    for _ in 0..10 {
        one.clear_sums().await.unwrap();
        let (a, b) = tokio::join!(roll_up(&one, u64::MAX), roll_up(&other, u64::MAX));
        assert!(a.is_ok() && b.is_ok());
        assert_eq!(check(&one).await.unwrap(), Vec::<String>::new());
    }
}

/// The failover has lost one gateway's write, and since then another gateway has written to the new primary.
#[tokio::test]
async fn roll_up_sums_computed_before_a_failover_are_not_written_after_it() {
    let now_ms = now();
    let receipts = sorted(&some_calls(), now_ms);
    let server = Server::start().await;
    let ledger = in_redis(&server, &receipts, now_ms - 3 * DAY_MS).await;
    roll_up(&ledger, u64::MAX).await.unwrap();
    let _: i64 = server.ask(&["COPY", "tg:sums:{sums}", "replica"]).await;
    spoil_sums(&ledger, Scope::Days).await;
    let taken = ledger.marks().await.unwrap().version;
    let back = ["COPY", "replica", "tg:sums:{sums}", "REPLACE"];
    let _: i64 = server.ask(&back).await;
    spoil_sums(&ledger, Scope::Days).await;
    let behind_it = Change {
        version: taken,
        ..Change::default()
    };
    assert_eq!(ledger.change_sums(&behind_it).await.unwrap(), None);
}

#[tokio::test]
async fn wrong_roll_up_sum_is_reported_and_can_be_computed_again() {
    let now_ms = now();
    let receipts = sorted(&some_calls(), now_ms);
    let dir = tempfile::tempdir().unwrap();
    let ledger = in_file(dir.path(), &receipts, now_ms - 3 * DAY_MS).await;
    roll_up(&ledger, u64::MAX).await.unwrap();
    let scope = Scope::Account(given::account("acme"));
    let change = spoil_sums(&ledger, scope).await;
    let again = ledger.change_sums(&change).await.unwrap();
    assert_eq!(again, None, "an old version");
    let found = check(&ledger).await.unwrap();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[0].starts_with("U1 sums of account acme on "),
        "{found:?}"
    );
    ledger.clear_sums().await.unwrap();
    roll_up(&ledger, u64::MAX).await.unwrap();
    assert_eq!(check(&ledger).await.unwrap(), Vec::<String>::new());
}

/// An earlier version writes sums without durations, possibly while later versions are running.
#[tokio::test]
async fn check_of_roll_up_sums_accepts_missing_durations_but_not_additional_ones() {
    let now_ms = now();
    let receipts = sorted(&some_calls(), now_ms);
    let dir = tempfile::tempdir().unwrap();
    let ledger = in_file(dir.path(), &receipts, now_ms - 3 * DAY_MS).await;
    roll_up(&ledger, u64::MAX).await.unwrap();
    let scope = Scope::Account(given::account("acme"));
    let rows = ledger
        .rolled(&[(scope.clone(), 0..u64::MAX)])
        .await
        .unwrap()
        .rows;
    let timed: u64 = rows.iter().map(|(_, _, sums)| sums.whole.calls()).sum();
    assert_eq!(timed, 500);
    for (whole, found) in [
        (Latency::default(), 0),
        (Latency::of_ms(77_777), rows.len()),
    ] {
        let rows = rows.iter().map(|(at_ms, words, sums)| {
            let id = RowId {
                scope: scope.clone(),
                at_ms: *at_ms,
                words: words.clone(),
            };
            let whole = whole.clone();
            (
                id,
                Sums {
                    whole,
                    ..sums.clone()
                },
            )
        });
        let change = Change {
            version: ledger.marks().await.unwrap().version,
            rows: rows.collect(),
            ..Change::default()
        };
        assert!(ledger.change_sums(&change).await.unwrap().is_some());
        assert_eq!(check(&ledger).await.unwrap().len(), found, "{whole}");
    }
}

/// Sums in the form in which a version without groups stores them.
#[test]
fn sums_without_a_group_are_stored_as_they_were_before_groups_existed() {
    let json = r#"{"k":"k1","m":"m","v":"v","e":"messages"}"#;
    let words: Words = serde_json::from_str(json).unwrap();
    assert_eq!(words.group, None);
    assert_eq!(serde_json::to_string(&words).unwrap(), json);
    let words = Words {
        group: Some("g1".parse().unwrap()),
        ..words
    };
    let json = json.replace(r#""k1""#, r#""k1","g":"g1""#);
    assert_eq!(serde_json::to_string(&words).unwrap(), json);
}

/// A line is dated into a month that is over if a clock is set back, or if another version has summed the month too
/// early.
#[tokio::test]
async fn journal_lines_dated_in_a_finished_month_are_added_to_the_sums_of_that_month() {
    // The calls are booked in a month that is over.
    let then_ms = now() - 40 * DAY_MS;
    let receipts = sorted(&some_calls(), then_ms);
    let dir = tempfile::tempdir().unwrap();
    let file = in_file(dir.path(), &receipts, then_ms - 3 * DAY_MS).await;
    added_late(&file, &receipts).await;
    let server = Server::start().await;
    let redis = in_redis(&server, &receipts, then_ms - 3 * DAY_MS).await;
    added_late(&redis, &receipts).await;
}

async fn added_late<L: Rollup>(ledger: &L, receipts: &[Receipt]) {
    let change = Change {
        version: ledger.marks().await.unwrap().version,
        months_end_ms: Some(Scope::Months.begin_ms(now())),
        ..Change::default()
    };
    assert!(ledger.change_sums(&change).await.unwrap().is_some());
    roll_up(ledger, u64::MAX).await.unwrap();
    let rolled = ledger.rolled(&[(Scope::Months, 0..u64::MAX)]);
    let rows = rolled.await.unwrap().rows;
    let calls: u64 = rows.iter().map(|(_, _, sums)| sums.calls).sum();
    let counted = receipts
        .iter()
        .filter(|receipt| receipt.booked != Booked::Stale);
    assert_eq!(calls, counted.count() as u64);
    assert_eq!(check(ledger).await.unwrap(), Vec::<String>::new());
    spoil_sums(ledger, Scope::Months).await;
    let found = check(ledger).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    let named = "U1 sums of all accounts in the month that begins on ";
    assert!(found[0].starts_with(named), "{found:?}");
    let (reported, _) = requested(
        ledger,
        CallScope::AllByMonth,
        &(0..u64::MAX),
        &Scope::Months,
    )
    .await;
    let [reported, due] = [
        reported,
        one_by_one(receipts, &CallScope::All, &(0..u64::MAX), &Scope::Months),
    ]
    .map(|table| table.values().map(|sums| sums.charged_micro).sum::<i128>());
    assert_eq!(reported, due + 1, "months are read");
}

/// Another gateway deletes all sums while this gateway computes monthly sums. The ledger's clock is far behind this
/// machine's clock.
#[tokio::test]
async fn monthly_sums_are_not_stored_if_the_daily_sums_changed_meanwhile() {
    let then_ms = now() - 40 * DAY_MS;
    let receipts = sorted(&some_calls(), then_ms);
    let dir = tempfile::tempdir().unwrap();
    let ledger = in_file(dir.path(), &receipts, then_ms - 3 * DAY_MS).await;
    // Rolls up all lines except the entries after `then_ms`.
    roll_up(&ledger, then_ms + 1).await.unwrap();
    let seen = ledger.marks().await.unwrap();
    let newest_ms = receipts.iter().map(|receipt| receipt.at_ms).max().unwrap();
    let begin_ms = Scope::Months.begin_ms(newest_ms);
    assert_eq!(seen.months_end_ms, begin_ms, "not by this machine's clock");
    let seen = Marks {
        months_end_ms: 0,
        ..seen
    };
    ledger.clear_sums().await.unwrap();
    roll::add_up_months(&ledger, &seen, u64::MAX).await.unwrap();
    assert_eq!(ledger.marks().await.unwrap().months_end_ms, 0);
    roll_up(&ledger, then_ms + 1).await.unwrap();
    assert_eq!(ledger.marks().await.unwrap().months_end_ms, begin_ms);
}

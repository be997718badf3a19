//! Tests that a search skips only days without matching calls, and that a page that is read backwards from a time
//! contains all lines before that time.

use proptest::prelude::*;

use super::{
    tests::{
        ACCOUNTS, Call, DAYS, Filled, in_file, in_redis, key_of, now, some_calls, sorted,
        try_random_calls,
    },
    *,
};
use crate::{contract::Booked, number::RequestNumber, redis::test_server::Server, testing::given};

/// Searches for receipts of an account. Returns them newest first, and how many lines were read.
async fn found<L: Rollup>(
    ledger: &L,
    account: &AccountId,
    alone: bool,
    sought: Sought<'_>,
    time: Range<u64>,
    limit: usize,
) -> (Vec<Receipt>, usize) {
    let of = Some(account).filter(|_| alone);
    let mut search = Search::begin(ledger, of, sought, time).await.unwrap();
    let (mut receipts, mut read) = (Vec::new(), 0);
    while let Some(stretch) = search.next(ledger).await.unwrap() {
        let Times { mut times, behind } = stretch.times(&search, account);
        let mut behind = behind.map(str::to_owned);
        while let Some(time) = times.pop() {
            let mut after: Option<String> = None;
            loop {
                let part = JournalPart {
                    since_ms: time.start,
                    until_ms: time.end,
                    after: after.as_deref(),
                    behind: behind.as_deref(),
                    newest_first: true,
                    limit,
                    ..JournalPart::whole()
                };
                // A second account is requested too, because a request for one account takes another path in the code.
                let nobody = given::account("nobody");
                let mut pages = match alone {
                    true => ledger.journals(&[(account, part)]).await.unwrap(),
                    false => ledger
                        .journals(&[(account, part), (&nobody, part)])
                        .await
                        .unwrap(),
                };
                let page = pages.swap_remove(0).unwrap();
                read += page.lines.len();
                for line in page.lines {
                    if let JournalLine::Call(receipt) = line {
                        receipts.push(receipt);
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            behind = None;
        }
    }
    (receipts, read)
}

fn is_sought(receipt: &Receipt, sought: &Sought<'_>) -> bool {
    let item = &receipt.item;
    receipt.booked != Booked::Stale
        && sought.key.is_none_or(|key| receipt.key == *key)
        && sought.model.is_none_or(|model| item.model == model)
        && sought.vendor.is_none_or(|vendor| item.vendor == vendor)
        && (sought.failed).is_none_or(|failed| is_failed(item.end) == failed)
}

fn numbers<'a>(receipts: impl IntoIterator<Item = &'a Receipt>) -> Vec<RequestNumber> {
    receipts.into_iter().map(|receipt| receipt.number).collect()
}

/// Checks `newest_ms` against the calls, unless the ledger could answer it only by reading the calls.
async fn newest_is_that_of_the_calls<L: Rollup>(
    ledger: &L,
    account: &AccountId,
    time: &Range<u64>,
    behind: Option<&str>,
) {
    let part = JournalPart {
        since_ms: time.start,
        until_ms: time.end,
        newest_first: true,
        behind,
        ..JournalPart::whole()
    };
    if let Some(newest) = ledger.newest_ms(&[(account, part)]).await.unwrap() {
        let lines = ledger.journal(account, &part).await.unwrap().lines;
        let mut calls = lines
            .iter()
            .filter(|line| matches!(line, JournalLine::Call(_)));
        let first = calls.next().map(JournalLine::at_ms);
        assert_eq!(newest, [first], "{time:?} {behind:?}");
    }
}

async fn try_all<L: Rollup>(ledger: &L, receipts: &[Receipt], times: &[Range<u64>], now_ms: u64) {
    let acme = given::account(ACCOUNTS[0]);
    let key = key_of(0, 1);
    let any = Sought::default();
    let wanted = [
        any,
        Sought {
            model: Some("m1"),
            ..any
        },
        Sought {
            model: Some("m2"),
            vendor: Some("v0"),
            ..any
        },
        Sought {
            key: Some(&key),
            ..any
        },
        Sought {
            failed: Some(true),
            model: Some("m0"),
            ..any
        },
        Sought {
            failed: Some(false),
            ..any
        },
        Sought {
            model: Some("none"),
            ..any
        },
    ];
    for before_ms in [0, now_ms - 2 * DAY_MS, now_ms - HOUR_MS, u64::MAX] {
        roll_up(ledger, before_ms).await.unwrap();
        let places = ledger.marks().await.unwrap().places;
        for time in times {
            for behind in [None, places.get(&acme).map(String::as_str)] {
                newest_is_that_of_the_calls(ledger, &acme, time, behind).await;
            }
            for sought in wanted {
                for (alone, limit) in [(true, 1000), (false, 7)] {
                    let all = receipts.iter().rev();
                    let wanted = all.filter(|receipt| {
                        receipt.account == acme
                            && time.contains(&receipt.at_ms)
                            && is_sought(receipt, &sought)
                    });
                    let wanted = numbers(wanted);
                    let (reported, _) =
                        found(ledger, &acme, alone, sought, time.clone(), limit).await;
                    let reported = reported
                        .iter()
                        .filter(|receipt| is_sought(receipt, &sought));
                    assert_eq!(
                        numbers(reported),
                        wanted,
                        "{sought:?} {time:?} {before_ms} {alone}"
                    );
                }
            }
        }
    }
}

#[test]
fn search_over_roll_up_sums_finds_every_matching_receipt() {
    let ago = prop_oneof![
        (0..DAYS * DAY_MS, 0..DAYS * DAY_MS),
        (0..2 * DAY_MS, 0..2 * DAY_MS),
    ];
    try_random_calls(8, 80, ago, |now_ms| now_ms, &async |filled, times| {
        let Filled {
            file,
            redis,
            receipts,
            now_ms,
        } = filled;
        let month = now_ms - 35 * DAY_MS..now_ms - DAY_MS;
        let times = [&[0..u64::MAX, month][..], times].concat();
        try_all(file, receipts, &times, *now_ms).await;
        try_all(redis, receipts, &times, *now_ms).await;
    });
}

#[tokio::test]
async fn search_for_a_model_does_not_read_days_without_the_model() {
    let now_ms = now();
    let mut calls = some_calls();
    calls.push(Call {
        model: 1,
        ago_ms: 30 * DAY_MS,
        ..calls[0].clone()
    });
    let receipts = sorted(&calls, now_ms);
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = in_file(dir.path(), &receipts, now_ms - 40 * DAY_MS).await;
    let redis = in_redis(&server, &receipts, now_ms - 40 * DAY_MS).await;
    let account = given::account(ACCOUNTS[0]);
    roll_up(&file, u64::MAX).await.unwrap();
    roll_up(&redis, u64::MAX).await.unwrap();
    for (model, receipts) in [("m1", 1), ("none", 0)] {
        let sought = Sought {
            model: Some(model),
            ..Sought::default()
        };
        for alone in [true, false] {
            let (reported, read) = found(&file, &account, alone, sought, 0..u64::MAX, 1000).await;
            assert_eq!((reported.len(), read), (receipts, receipts), "{model}");
            let (reported, read) = found(&redis, &account, alone, sought, 0..u64::MAX, 1000).await;
            assert_eq!((reported.len(), read), (receipts, receipts), "{model}");
        }
    }
}

/// After a server's clock was set back, ids of lines continue from the last id. The time in such an id is later than
/// the time of its line.
#[tokio::test]
async fn backward_page_includes_lines_whose_ids_are_later_than_their_times() {
    let now_ms = now();
    let begun_ms = now_ms - DAY_MS;
    let minute = 60_000;
    // The minutes of one hour; then the clock is set back by half an hour; then two more hours.
    let minutes = (0..60).chain(30..60).chain(60..180);
    let mut receipts = Vec::new();
    for (number, at) in minutes.enumerate() {
        let ago_ms = now_ms - (begun_ms + at * minute);
        let call = Call {
            ago_ms,
            ..some_calls()[0].clone()
        };
        let mut receipt = sorted(&[call], now_ms).remove(0);
        receipt.number = given::number(number as u128 + 1);
        receipts.push(receipt);
    }
    let server = Server::start().await;
    let ledger = in_redis(&server, &receipts, begun_ms - minute).await;
    let account = given::account(ACCOUNTS[0]);
    for before_ms in [0, begun_ms + 45 * minute, begun_ms + 100 * minute, u64::MAX] {
        roll_up(&ledger, before_ms).await.unwrap();
        for until in [0, 10, 29, 31, 45, 59, 60, 61, 75, 120, 180] {
            let until_ms = begun_ms + until * minute + 1;
            let part = JournalPart {
                until_ms,
                newest_first: true,
                ..JournalPart::whole()
            };
            let page = ledger.journal(&account, &part).await.unwrap();
            let calls = page.lines.iter().filter_map(|line| match line {
                JournalLine::Call(receipt) => Some(receipt),
                JournalLine::Entry { .. } => None,
            });
            let mut reported = numbers(calls);
            let wanted = receipts.iter().filter(|receipt| receipt.at_ms < until_ms);
            let mut wanted = numbers(wanted);
            reported.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(reported, wanted, "{until} {before_ms}");
        }
    }
}

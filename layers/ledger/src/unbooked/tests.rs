//! Tests of the contract that every store of calls without a receipt must keep.

use super::*;
use crate::number::RequestNumber;

const DAY: Duration = Duration::from_secs(24 * 3600);

const BOUNDS: UnbookedBounds = UnbookedBounds {
    calls_max: 100,
    age_max: DAY,
};

/// Returns the number of a call that arrived `ago_ms` milliseconds ago.
fn number(ago_ms: u64, n: u64) -> RequestNumber {
    let text = format!(
        "{:012x}70008{:015x}",
        now_ms().saturating_sub(ago_ms),
        n & 0xfff_ffff_ffff_ffff
    );
    text.parse().unwrap()
}

/// Returns a call of an account that arrived a minute ago. Calls with a higher `n` arrived later.
fn call(account: &str, n: u64) -> UnbookedCall {
    UnbookedCall {
        number: number(60_000 - n, n),
        state: UnbookedState::Refused,
        path: "/v1/messages".into(),
        account: (!account.is_empty()).then(|| account.parse().unwrap()),
        key: (!account.is_empty()).then(|| format!("key-of-{account}").parse().unwrap()),
        model: Some("model \"x\"".into()),
        session: Some("s-1".parse().unwrap()),
        vendor: None,
        status: Some(400),
        code: Some("invalid_request".into()),
        field: Some("messages[0].role".into()),
        error: Some("invalid request: messages[0].role: missing".into()),
        whole_ms: 7,
    }
}

fn numbers(calls: &[UnbookedCall]) -> Vec<RequestNumber> {
    calls.iter().map(|call| call.number).collect()
}

/// Reads all pages.
async fn all(store: &dyn UnbookedStore, mut query: UnbookedQuery) -> Vec<UnbookedCall> {
    let mut calls = Vec::new();
    loop {
        let page = store.page(&query).await.unwrap();
        assert!(page.calls.len() <= query.limit);
        calls.extend(page.calls);
        match page.next {
            Some(next) => query.before = Some(next),
            None => return calls,
        }
    }
}

fn of_account(account: &str, limit: usize) -> UnbookedQuery {
    UnbookedQuery {
        account: Some(account.parse().unwrap()),
        ..UnbookedQuery::latest(limit)
    }
}

/// Runs the contract tests on an empty store.
async fn contract(store: &dyn UnbookedStore) {
    stored_call_is_found_by_its_number(store).await;
    pages_have_each_selected_call_once(store).await;
    flood_of_one_account_removes_only_its_own_oldest_calls(store).await;
    old_calls_are_removed_a_few_at_a_time(store).await;
}

async fn stored_call_is_found_by_its_number(store: &dyn UnbookedStore) {
    let (mut free, stranger) = (call("acme", 1), call("", 2));
    (free.state, free.code) = (UnbookedState::Released, None);
    (free.field, free.error, free.session) = (None, None, None);
    for _ in 0..2 {
        // The answer to the write was lost, so the write is repeated.
        store
            .write(&[free.clone(), stranger.clone()])
            .await
            .unwrap();
    }
    for stored in [&free, &stranger] {
        assert_eq!(
            store.find(stored.number).await.unwrap().as_ref(),
            Some(stored)
        );
    }
    assert_eq!(store.find(number(9, 9)).await.unwrap(), None);
    let listed = all(store, UnbookedQuery::latest(1)).await;
    assert_eq!(listed, [stranger, free], "each once, latest first");
}

async fn pages_have_each_selected_call_once(store: &dyn UnbookedStore) {
    let mut calls: Vec<UnbookedCall> = (10..30)
        .map(|n| call(if n % 2 == 0 { "even" } else { "odd" }, n))
        .collect();
    for call in &mut calls[..5] {
        call.code = Some("account_empty".into());
        call.state = UnbookedState::Released;
        call.vendor = Some("v".into());
    }
    store.write(&calls).await.unwrap();
    calls.reverse();
    let (since_ms, until_ms) = (calls[14].number.unix_ms(), calls[5].number.unix_ms());
    for limit in [1, 3, 50] {
        let latest = UnbookedQuery::latest(limit);
        for (query, selects) in [
            (of_account("even", limit), "account"),
            (
                UnbookedQuery {
                    key: Some("key-of-odd".parse().unwrap()),
                    ..latest.clone()
                },
                "key",
            ),
            (
                UnbookedQuery {
                    code: Some("account_empty".into()),
                    ..latest.clone()
                },
                "cause",
            ),
            (
                UnbookedQuery {
                    state: Some(UnbookedState::Released),
                    vendor: Some("v".into()),
                    ..of_account("odd", limit)
                },
                "fields without an index",
            ),
            (
                UnbookedQuery {
                    since_ms,
                    until_ms,
                    ..latest.clone()
                },
                "dates",
            ),
            (
                UnbookedQuery {
                    since_ms: until_ms,
                    until_ms: since_ms,
                    ..latest
                },
                "no time at all",
            ),
        ] {
            let expected = calls.iter().filter(|call| query.selects(call)).cloned();
            let expected: Vec<UnbookedCall> = expected.collect();
            assert_eq!(
                expected.is_empty(),
                selects == "no time at all",
                "{selects}"
            );
            let found = all(store, query).await;
            assert_eq!(numbers(&found), numbers(&expected), "{limit} by {selects}");
        }
    }
}

async fn flood_of_one_account_removes_only_its_own_oldest_calls(store: &dyn UnbookedStore) {
    let before = all(store, UnbookedQuery::latest(50)).await;
    let flood: Vec<UnbookedCall> = (1_000..1_600).map(|n| call("flood", n)).collect();
    for some in flood.chunks(77) {
        store.write(some).await.unwrap();
    }
    for _ in 0..5 {
        store.write(&[]).await.unwrap();
    }
    let left = all(store, UnbookedQuery::latest(50)).await;
    assert_eq!(left.len(), 100);
    let (own, others): (Vec<_>, Vec<_>) = left
        .into_iter()
        .partition(|call| call.account.as_deref() == Some("flood"));
    assert_eq!(numbers(&others), numbers(&before));
    let newest: Vec<UnbookedCall> = flood.into_iter().rev().take(own.len()).collect();
    assert_eq!(numbers(&own), numbers(&newest));
    assert_eq!(all(store, of_account("flood", 50)).await.len(), own.len());
}

async fn old_calls_are_removed_a_few_at_a_time(store: &dyn UnbookedStore) {
    // All accounts have calls that are too old, and the store is full.
    let old_ms = u64::try_from(DAY.as_millis()).unwrap() + 1_000;
    let old = (0..70).map(|n| UnbookedCall {
        number: number(old_ms, n),
        ..call("late", n)
    });
    let old: Vec<UnbookedCall> = old.collect();
    store.write(&old).await.unwrap();
    assert_eq!(store.find(old[69].number).await.unwrap(), None, "too old");
    assert_eq!(all(store, of_account("late", 50)).await, []);
    store.write(&[]).await.unwrap();
    let all_time = RequestNumber::first_at(0)..RequestNumber::first_at(u64::MAX);
    let stored = store.read(UnbookedIndex::All, all_time, 1_000).await;
    let stored = stored.unwrap();
    assert_eq!(stored.len(), 100, "the new calls stay");
    assert!(
        stored
            .iter()
            .all(|call| call.account.as_deref() != Some("late"))
    );
}

/// Most of the stored calls do not match the query, so a page reads only some of them.
async fn long_search_continues_on_the_next_page(store: &dyn UnbookedStore) {
    let calls_at_all = u64::try_from(READ_MAX).unwrap() + 1_000;
    let calls: Vec<UnbookedCall> = (0..calls_at_all).map(|n| call("acme", n)).collect();
    store.write(&calls).await.unwrap();
    let wanted = UnbookedCall {
        number: number(120_000, 1),
        model: Some("rare".into()),
        ..call("acme", 1)
    };
    store.write(std::slice::from_ref(&wanted)).await.unwrap();
    let mut query = UnbookedQuery {
        model: wanted.model.clone(),
        ..of_account("acme", 5)
    };
    let mut pages = 0;
    let found = loop {
        let page = store.page(&query).await.unwrap();
        pages += 1;
        match (page.next, page.calls) {
            (Some(next), calls) => {
                assert_eq!(calls, []);
                query.before = Some(next);
            }
            (None, calls) => break calls,
        }
    };
    assert_eq!((found, pages), (vec![wanted], 2));
}

const MANY: UnbookedBounds = UnbookedBounds {
    calls_max: 1_000_000,
    age_max: DAY,
};

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn unbooked_call_store_in_memory_passes_the_contract_tests() {
    contract(&SqliteUnbooked::in_memory(BOUNDS)).await;
    long_search_continues_on_the_next_page(&SqliteUnbooked::in_memory(MANY)).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn unbooked_call_store_in_a_file_passes_the_contract_tests_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls");
    contract(&SqliteUnbooked::new(&path, BOUNDS)).await;
    let again = SqliteUnbooked::new(&path, BOUNDS);
    assert_eq!(all(&again, UnbookedQuery::latest(50)).await.len(), 100);
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn unbooked_call_store_in_redis_passes_the_contract_tests_and_its_calls_expire() {
    let server = crate::redis::test_server::Server::start().await;
    contract(&RedisUnbooked::new(server.conn.clone(), BOUNDS)).await;
    let again = RedisUnbooked::new(server.conn.clone(), BOUNDS);
    assert_eq!(all(&again, UnbookedQuery::latest(50)).await.len(), 100);
    let key = |part: &str| format!("tg:unbooked:{{all}}{part}");
    let (calls, index): (u64, u64) = (
        server.ask(&["HLEN", &key("")]).await,
        server.ask(&["ZCARD", &key(":i")]).await,
    );
    // The free call has no error code, and the call with an unknown key has no key.
    assert_eq!((calls, index), (100, 4 * 100 - 2), "no index is left over");
    for part in ["", ":i", ":n"] {
        let left: u64 = server.ask(&["PTTL", &key(part)]).await;
        assert!(left <= u64::try_from(DAY.as_millis()).unwrap(), "{left}");
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn long_search_for_unbooked_calls_in_redis_continues_on_the_next_page() {
    let server = crate::redis::test_server::Server::start().await;
    let store = RedisUnbooked::new(server.conn.clone(), MANY);
    long_search_continues_on_the_next_page(&store).await;
}

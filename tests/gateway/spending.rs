//! Tests of a key's spending and its latest receipts, as the page at `/usage` shows them.

use crate::{ledger::folder, prelude::*};

async fn own(world: &World, key: &Key, path: &str) -> Answer {
    let bearer = bearer(key);
    let path = format!("/v1/tollgate/{path}");
    world.get(&path, &[("authorization", &bearer)]).await
}

async fn own_json(world: &World, key: &Key, path: &str) -> Value {
    let answer = own(world, key, path).await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    assert_eq!(answer.headers["cache-control"], "no-store");
    answer.json()
}

/// Makes calls with the key in two sessions, and calls with a second key of the same account in between. Returns the
/// request numbers of the first key's calls, latest first.
async fn busy(world: &World, key: &Key, sibling: &Key) -> Vec<String> {
    let mut numbers = Vec::new();
    for (n, session) in ["night", "night", "day", ""].into_iter().enumerate() {
        for op in BOTH {
            let bearer = bearer(key);
            let mut headers = vec![("authorization", bearer.as_str())];
            if !session.is_empty() {
                headers.push(("x-session-id", session));
            }
            let answer = op.post(world, &headers, op.body(&"x".repeat(n + 1)).to_string());
            numbers.push(answer.await.number());
            world.receipt(numbers.last().unwrap()).await;
            let other = op.call(world, sibling, &op.body("x")).await.number();
            world.receipt(&other).await;
        }
    }
    numbers.reverse();
    numbers
}

fn numbers(page: &Value) -> Vec<&str> {
    let receipts = page["receipts"].as_array().unwrap().iter();
    receipts
        .map(|row| row["number"].as_str().unwrap())
        .collect()
}

/// Checks that the key's sums, its receipts and the operators' usage report agree.
async fn agrees(world: &World) {
    let key = world.key().await;
    let sibling = world.another_key("acme", json!({})).await;
    let calls = busy(world, &key, &sibling).await;

    let report = own_json(world, &key, "usage").await;
    assert_eq!(report["complete"], true, "{report}");
    assert_eq!(report["counted_since"], report["since"]);
    for (group, rows) in [
        ("day", "days"),
        ("model", "models"),
        ("session", "sessions"),
    ] {
        let path = format!("/admin/v1/usage?key={}&group={group}", key.id);
        let operators = world.admin_get(&path).await.json();
        let mut own: Vec<Value> = report[rows].as_array().unwrap().clone();
        own.sort_by_key(|row| row[group].as_str().unwrap_or_default().to_owned());
        let wanted = operators["rows"].as_array().unwrap();
        assert_eq!(own.len(), wanted.len(), "{group}: {report}");
        for (own, wanted) in own.iter().zip(wanted) {
            for field in [group, "calls", "usage", "charged_rub"] {
                assert_eq!(own[field], wanted[field], "{group}: {field}");
            }
        }
        for field in ["calls", "usage", "charged_rub"] {
            assert_eq!(report["total"][field], operators["total"][field], "{field}");
        }
    }
    let charges: Vec<_> = report["models"].as_array().unwrap().iter().collect();
    assert!(charges.is_sorted_by_key(|row| -micro(&row["charged_rub"])));

    // With every page size, the list contains each call of the key once, latest first, and no call of the second key.
    for (filter, wanted) in [
        ("", (0..8).collect()),
        ("&model=chat", vec![1, 3, 5, 7]),
        ("&session=night", vec![4, 5, 6, 7]),
        ("&session=day&model=messages", vec![2]),
        ("&model=none", vec![]),
    ] {
        let wanted: Vec<&str> = wanted.into_iter().map(|at: usize| &*calls[at]).collect();
        for limit in [1, 3, 8, 200] {
            let requested = format!("receipts?limit={limit}{filter}");
            let (mut seen, mut path) = (Vec::new(), requested.clone());
            loop {
                let page = own_json(world, &key, &path).await;
                seen.extend(numbers(&page).into_iter().map(str::to_owned));
                assert!(numbers(&page).len() <= limit);
                let Some(next) = page["next"].as_str() else {
                    assert_eq!(page["searched_since"], Value::Null, "{requested}");
                    break;
                };
                assert!(page["searched_since"].is_string(), "{requested}: {page}");
                path = format!("{requested}&after={next}");
            }
            assert_eq!(seen, wanted, "{requested}");
        }
    }
    let one = own_json(world, &key, &format!("receipts/{}", calls[0])).await;
    let first = own_json(world, &key, "receipts?limit=1").await;
    assert_eq!(first["receipts"], json!([one]));
}

#[tokio::test]
async fn key_in_a_memory_ledger_sees_the_same_sums_and_receipts_as_operators() {
    agrees(&World::start().await).await;
}

#[tokio::test]
async fn key_in_a_sqlite_ledger_sees_the_same_sums_and_receipts_as_operators() {
    let folder = folder();
    let url = format!("sqlite:{}", folder.path().join("books.db").display());
    agrees(&Setup::default().ledger(&url).start().await).await;
}

#[tokio::test]
async fn key_in_a_redis_ledger_sees_the_same_sums_and_receipts_as_operators() {
    let server = RedisServer::start().await;
    agrees(&Setup::default().ledger(&server.url()).start().await).await;
}

#[tokio::test]
async fn receipts_of_a_key_are_found_by_model_session_and_time() {
    let (world, key) = World::start_with_key().await;
    let sibling = world.another_key("acme", json!({})).await;
    let calls = busy(&world, &key, &sibling).await;
    for (query, wanted) in [
        ("model=chat", vec![1, 3, 5, 7]),
        ("session=night", vec![4, 5, 6, 7]),
        ("session=day&model=messages", vec![2]),
        ("session=other", vec![]),
        ("since=2000-01-01", (0..8).collect()),
        ("until=2000-01-01", vec![]),
        ("since=2999-01-01", vec![]),
    ] {
        let page = own_json(&world, &key, &format!("receipts?{query}")).await;
        let wanted: Vec<&str> = wanted.into_iter().map(|at: usize| &*calls[at]).collect();
        assert_eq!(numbers(&page), wanted, "{query}");
        assert_eq!(page["next"], Value::Null, "{query}");
    }
}

#[tokio::test]
async fn usage_endpoint_refuses_a_misspelt_parameter_and_requires_a_key() {
    let (world, key) = World::start_with_key().await;
    for (path, field) in [
        ("receipts?modle=chat", "modle"),
        ("receipts?limit=0", "limit"),
        ("receipts?limit=201", "limit"),
        ("receipts?limit=1&limit=2", "limit"),
        ("receipts?session=a%20b", "session"),
        ("receipts?since=yesterday", "since"),
        ("receipts?model=", "model"),
        ("receipts?after=x", "after"),
        ("usage?days=32", "days"),
        ("usage?days=x", "days"),
        ("usage?group=day", "group"),
    ] {
        let answer = own(&world, &key, path).await;
        let text = refused(path, &answer, 400, INVALID, "");
        assert!(text.contains(&format!("«{field}»")), "{path}: {text}");
    }
    for path in ["receipts", "usage"] {
        let answer = world.get(&format!("/v1/tollgate/{path}"), &[]).await;
        refused(path, &answer, 401, AUTHENTICATION, "invalid_api_key");
    }
}

/// A key that has made no call gets a report with empty sums.
#[tokio::test]
async fn a_key_without_calls_has_zero_usage_and_no_receipts() {
    let (world, key) = World::start_with_key().await;
    let report = own_json(&world, &key, "usage?days=7").await;
    assert_eq!(report["total"]["calls"], 0);
    for rows in ["days", "models", "sessions"] {
        assert_eq!(report[rows], json!([]), "{rows}");
    }
    let page = own_json(&world, &key, "receipts").await;
    assert_eq!(page, json!({ "receipts": [], "next": null }));
}

//! Tests of how operators see the lease that a gateway takes for a busy key.

use std::collections::BTreeSet;

use crate::{prelude::*, usage_report::typed};

async fn world(server: &RedisServer) -> World {
    Setup::default()
        .ledger(&server.url())
        .edit("[ledger]\n", "[ledger]\nlease_ms_max = 2000\n")
        .start()
        .await
}

/// Makes concurrent calls until the gateway has a lease for the key. Returns all leases of the account.
pub async fn busy(world: &World, key: &Key) -> Vec<Value> {
    eventually("a busy key has a lease", async || {
        let body = chat_body("x");
        let calls = (0..16).map(|_| world.chat(key, &body));
        for answer in futures_util::future::join_all(calls).await {
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let leases = leases(world, "?account=acme").await;
        (!leases.is_empty()).then_some(leases)
    })
    .await
}

pub async fn leases(world: &World, query: &str) -> Vec<Value> {
    let path = format!("/admin/v1/leases{query}");
    let answer = world.admin_get(&path).await.expect(200);
    answer.json()["leases"].as_array().unwrap().clone()
}

pub async fn metric(world: &World, name: &str) -> f64 {
    let url = format!("http://{}/metrics", world.gateway.admin_address().unwrap());
    let scrape = world
        .ask(request(Method::GET, &url, &[], Default::default()))
        .await
        .text();
    let line = scrape.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn lease_of_a_busy_key_is_listed_and_counted() {
    let server = RedisServer::start().await;
    let world = world(&server).await;
    let key = world.key_with("acme", "10000", json!({})).await;
    assert_eq!(leases(&world, "").await, [] as [Value; 0]);
    let said_none = typed(&world, "lease list", 0).await;
    assert!(said_none.starts_with("no leases"), "{said_none}");
    world.vendor_sends(plain_reply(Op::Chat, "да", 9, 2));

    let listed = busy(&world, &key).await;
    let [lease] = listed.as_slice() else {
        panic!("{listed:?}")
    };
    assert_eq!(lease["account"], "acme");
    let owner = lease["owner"].as_str().unwrap();
    assert!(owner.ends_with("outbox.db"), "{owner}");
    // For its own leases, a gateway also reports the amounts that calls hold.
    assert!(lease["calls_rub"].is_string(), "{lease}");
    assert_eq!(leases(&world, "").await.len(), 1);
    let table = typed(&world, "lease list --account acme", 0).await;
    assert!(table.contains(owner), "{table}");

    let counted = eventually("turns are counted", async || {
        busy(&world, &key).await;
        let ends = metric(&world, "tollgate_lease_ends_total").await;
        (ends > 0.0).then_some(ends)
    })
    .await;
    assert!(metric(&world, "tollgate_lease_holds_total").await >= counted);
    assert!(metric(&world, "tollgate_lease_turns_total").await > 0.0);
    // The key has been idle for a while, so the gateway returns the lease.
    eventually("the lease is given back", async || {
        leases(&world, "").await.is_empty().then_some(())
    })
    .await;
    eventually("that is counted", async || {
        let open = metric(&world, "tollgate_leases_open").await;
        let rubles = metric(&world, "tollgate_leased_rubles").await;
        (open + rubles == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn lease_of_another_gateway_is_listed_without_the_holds_of_its_calls() {
    let server = RedisServer::start().await;
    let (one, other) = (world(&server).await, world(&server).await);
    let key = one.key_with("acme", "10000", json!({})).await;
    let reply = answer(Op::Chat, "да", &usage(Op::Chat, 9, 2));
    one.vendor.script(move |_| Reply::json(200, &reply));
    let seen = eventually("the other gateway lists it", async || {
        busy(&one, &key).await;
        let listed = leases(&other, "?account=acme").await;
        (!listed.is_empty()).then_some(listed)
    })
    .await;
    assert!(
        seen.iter().all(|lease| lease["calls_rub"].is_null()),
        "{seen:?}"
    );
    let owners: BTreeSet<&str> = seen
        .iter()
        .filter_map(|lease| lease["owner"].as_str())
        .collect();
    assert_eq!(owners.len(), 1);
}

#[tokio::test]
async fn invalid_lease_queries_are_refused() {
    let world = World::start().await;
    for (query, status) in [
        ("?account=none", 404),
        ("?account=a/b", 400),
        ("?acount=acme", 400),
        ("", 200),
    ] {
        let path = format!("/admin/v1/leases{query}");
        let answer = world.admin_get(&path).await;
        assert_eq!(answer.status, status, "{query}: {answer:?}");
    }
}

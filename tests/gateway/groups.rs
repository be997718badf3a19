//! Tests of groups of keys, and of the maximum number of concurrent calls of a key, with several gateways that share a
//! ledger. The limits hold whichever keys call at whichever gateway, even if a gateway is killed.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::{task::JoinSet, time::Instant};
use tollgate_layers::{
    ceiling::Ceilings,
    facts::RequestNumber,
    reserve::{
        ledger::{
            GroupRecord, Hold, KeyChange, Ledger, LedgerAdmin, LedgerError, Refusal, Settlement,
        },
        redis::{LeaseSettings, RedisLedger, RedisSettings},
    },
};

use crate::{
    harness::{World, eventually, request, within},
    ledger::{acme, hold, is_sound, micro, over, record, settlement, topup},
    ops::{BOTH, Op, bearer},
    replies::Running,
    support::redis::RedisServer,
};

const CALLS: u128 = 500;
const KEYS: u128 = 10;
const PRICE: i64 = 10;
/// How long a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

async fn group_of_keys(ledger: &RedisLedger, ceiling: i64) {
    ledger.create_account(&acme(), "Acme").await.unwrap();
    ledger
        .enter(&acme(), &topup("first", 1_000_000))
        .await
        .unwrap();
    let group = GroupRecord {
        id: "team".parse().unwrap(),
        name: "Team".into(),
        removed: false,
    };
    let ceilings = Ceilings {
        day: Some(micro(ceiling)),
        ..Ceilings::NONE
    };
    ledger
        .create_group(&acme(), &group, ceilings)
        .await
        .unwrap();
    for n in 0..KEYS {
        let digest = u8::try_from(n).unwrap() + 1;
        let mut key = record(&acme(), &format!("k{n}"), digest);
        key.group = Some(group.id.clone());
        ledger.create_key(&key, Ceilings::NONE).await.unwrap();
    }
}

fn call(n: u128) -> Hold {
    let mut hold = hold(n, &format!("k{}", n % KEYS), PRICE);
    hold.number = RequestNumber::now_v7();
    hold
}

fn end(hold: &Hold, cost: i64) -> Settlement {
    let mut end = settlement(0, &hold.key, cost);
    (end.number, end.held) = (hold.number, hold.want);
    end
}

/// Requests the holds of all calls before any call is settled. Exactly `paid_for` calls must get a hold.
async fn as_many_as_the_group_pays_for(gateways: &[RedisLedger], paid_for: usize) {
    let mut asking = JoinSet::new();
    for n in 0..CALLS {
        let gateway = gateways[usize::try_from(n).unwrap() % gateways.len()].clone();
        asking.spawn(async move {
            let hold = call(n);
            let answer = gateway.reserve(&hold).await;
            (gateway, hold, answer)
        });
    }
    let mut granted = Vec::new();
    for (gateway, hold, answer) in asking.join_all().await {
        match answer {
            Ok(_) => granted.push((gateway, hold)),
            Err(LedgerError::Refused(Refusal::DoesNotFit { ceiling, .. })) => {
                let resets = ceiling.and_then(|ceiling| ceiling.resets_on());
                assert!(resets.is_some(), "{ceiling:?}");
            }
            Err(LedgerError::Refused(Refusal::CeilingUsedUp(_))) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(granted.len(), paid_for);
    // Each call costs more than its hold, but the charges must not exceed the group's ceiling.
    let mut charged = 0;
    for (gateway, hold) in &granted {
        let settled = gateway.settle(&end(hold, PRICE + 1)).await.unwrap();
        charged += settled.charged.micro();
    }
    let ceiling = i64::try_from(paid_for).unwrap() * PRICE;
    assert_eq!(charged, ceiling);
    let groups = gateways[0].groups(&acme()).await.unwrap();
    assert_eq!(groups[0].day.spent_rub, micro(ceiling));
    assert_eq!(
        (groups[0].held_rub, groups[0].free_rub),
        (micro(0), micro(0))
    );
    is_sound(&gateways[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_together_never_hold_more_than_the_ceiling_of_a_group() {
    let server = RedisServer::start().await;
    let gateways = [
        over(&server).await,
        over(&server).await,
        over(&server).await,
    ];
    group_of_keys(&gateways[0], 37 * PRICE).await;
    as_many_as_the_group_pays_for(&gateways, 37).await;
}

/// With leases, a group gets exactly as many calls as its ceiling covers, whichever of its keys make them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_with_leases_gets_exactly_the_calls_that_its_ceiling_pays_for() {
    let server = RedisServer::start().await;
    let mut tasks = JoinSet::new();
    let mut gateways = Vec::new();
    for n in 0..3 {
        let settings = LeaseSettings {
            calls_per_second_min: 0,
            ..LeaseSettings::new(Duration::from_millis(500), format!("gateway {n}"))
        };
        let patient = RedisSettings {
            response_timeout: PATIENCE,
            ..RedisSettings::default()
        };
        let ledger = RedisLedger::connect(&server.url(), patient).await.unwrap();
        let ledger = ledger.with_leases(settings);
        let tended = ledger.clone();
        tasks.spawn(async move { tended.tend_leases().await });
        gateways.push(ledger);
    }
    group_of_keys(&gateways[0], 600 * PRICE).await;
    let mut calling = JoinSet::new();
    for n in 0..KEYS * 3 {
        let gateway = gateways[usize::try_from(n).unwrap() % gateways.len()].clone();
        calling.spawn(async move {
            let (mut served, mut refused_since) = (0, None);
            loop {
                let hold = call(n);
                match gateway.reserve(&hold).await {
                    Ok(_) => {
                        gateway.settle(&end(&hold, PRICE)).await.unwrap();
                        (served, refused_since) = (served + 1, None);
                    }
                    Err(LedgerError::Refused(Refusal::CeilingUsedUp(_))) => return served,
                    // On a busy machine, another gateway may return the money of its lease too late for this call. The
                    // call is then repeated.
                    Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) => {
                        let since = refused_since.get_or_insert_with(Instant::now);
                        assert!(since.elapsed() < PATIENCE, "money is kept from a call");
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
    }
    let served: u64 = calling.join_all().await.into_iter().sum();
    let counts = gateways.iter().filter_map(RedisLedger::lease_counts);
    let granted: u64 = counts.map(|counts| counts.granted).sum();
    for gateway in &gateways {
        within(PATIENCE, "all leases are given back", async || {
            gateway.give_back().await.then_some(())
        })
        .await;
    }
    let groups = gateways[0].groups(&acme()).await.unwrap();
    assert_eq!(
        (served, groups[0].spent_rub),
        (600, micro(600 * PRICE)),
        "{groups:?}"
    );
    assert!(granted > 60, "{granted} holds came from leases");
    assert_eq!(groups[0].held_rub, micro(0));
    is_sound(&gateways[0]).await;
    tasks.shutdown().await;
}

async fn limit(ledger: &RedisLedger, concurrency: u32) {
    let change = KeyChange {
        concurrency: Some(Some(concurrency)),
        ..KeyChange::default()
    };
    ledger
        .change_key(&"k0".parse().unwrap(), &change)
        .await
        .unwrap();
}

/// The call of a killed gateway counts as open until its hold expires. After that, another call may be open instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_never_exceed_the_concurrency_of_a_key() {
    let server = RedisServer::start().await;
    let gateways = [
        over(&server).await,
        over(&server).await,
        over(&server).await,
    ];
    group_of_keys(&gateways[0], 1_000_000).await;
    limit(&gateways[0], 5).await;
    let wanted = |ttl| {
        let mut hold = hold(0, "k0", PRICE);
        hold.number = RequestNumber::now_v7();
        hold.ttl = ttl;
        hold
    };
    let mut asking = JoinSet::new();
    for n in 0..500 {
        let gateway = gateways[n % 3].clone();
        let hold = wanted(Duration::from_secs(2));
        asking.spawn(async move { (gateway.reserve(&hold).await, hold) });
    }
    let mut open = Vec::new();
    for (answer, hold) in asking.join_all().await {
        match answer {
            Ok(_) => open.push(hold),
            Err(LedgerError::Refused(Refusal::TooManyCalls { most })) => assert_eq!(most, 5),
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(open.len(), 5);
    // Two calls end. The settlement of one is sent twice. Three calls stay open.
    for hold in [&open[0], &open[1], &open[1]] {
        gateways[1].settle(&end(hold, PRICE)).await.unwrap();
    }
    for _ in 0..2 {
        gateways[2]
            .reserve(&wanted(Duration::from_secs(600)))
            .await
            .unwrap();
    }
    let refused = gateways[0].reserve(&wanted(Duration::from_secs(600))).await;
    assert!(matches!(
        refused,
        Err(LedgerError::Refused(Refusal::TooManyCalls { most: 5 }))
    ));
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    for _ in 0..3 {
        gateways[0]
            .reserve(&wanted(Duration::from_secs(600)))
            .await
            .unwrap();
    }
    assert!(
        gateways[1]
            .reserve(&wanted(Duration::from_secs(600)))
            .await
            .is_err()
    );
    is_sound(&gateways[0]).await;
    let count: Option<String> = server.ask(&["HGET", "tg:{acme}", "k0.n"]).await.unwrap();
    assert_eq!(json!(count), json!("5"));
}

/// Creates and limits a group with the operators' API. Uses it with an owner key and with an ordinary key.
#[tokio::test]
async fn group_can_be_created_and_limited_and_is_named_in_refusals() {
    let world = World::start().await;
    let caller = world.key().await;
    let groups = "/admin/v1/accounts/acme/groups";
    let made = json!({ "id": "team", "name": "Отдел", "ceiling_day_rub": "0.01" });
    let made = world.admin(Method::POST, groups, Some(made)).await;
    assert_eq!(made.status, 200, "{made:?}");
    let shown = made.json();
    assert_eq!(
        (
            &shown["id"],
            &shown["status"],
            &shown["ceiling_day_rub"],
            &shown["spent_rub"]
        ),
        (
            &json!("team"),
            &json!("active"),
            &json!("0.01"),
            &json!("0.00")
        )
    );
    for (method, path, body, status, says) in [
        (
            Method::POST,
            groups.to_owned(),
            json!({ "id": "team" }),
            409,
            "exists already",
        ),
        (
            Method::POST,
            groups.to_owned(),
            json!({ "name": "x" }),
            400,
            "id: required",
        ),
        (
            Method::POST,
            groups.to_owned(),
            json!({ "id": "a b" }),
            400,
            "id: an id must have",
        ),
        (
            Method::PATCH,
            format!("{groups}/nowhere"),
            json!({ "name": "x" }),
            404,
            "no group nowhere",
        ),
        (
            Method::PATCH,
            format!("{groups}/team"),
            json!({}),
            400,
            "nothing to change",
        ),
        (
            Method::PATCH,
            format!("/admin/v1/keys/{}", caller.id),
            json!({ "group": "nowhere" }),
            400,
            "group: the account has no such group",
        ),
    ] {
        let answer = world.admin(method, &path, Some(body)).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(answer.text().contains(says), "{path}: {}", answer.text());
    }

    let key = format!("/admin/v1/keys/{}", caller.id);
    let put = world
        .admin(Method::PATCH, &key, Some(json!({ "group": "team" })))
        .await;
    assert_eq!(
        (put.status.as_u16(), &put.json()["group"]),
        (200, &json!("team"))
    );
    // The group's owner key creates a second key, which belongs to the same group.
    let owner = world
        .another_key("acme", json!({ "kind": "owner", "group": "team" }))
        .await;
    let own = request(
        Method::POST,
        &world.url("/v1/tollgate/keys"),
        &[
            ("authorization", &*bearer(&owner)),
            ("content-type", "application/json"),
        ],
        json!({ "name": "ci" }).to_string().into(),
    );
    let own = world.ask(own).await;
    assert_eq!(
        (own.status.as_u16(), &own.json()["group"]),
        (200, &json!("team")),
        "{own:?}"
    );
    let out = request(
        Method::PATCH,
        &world.url(&format!("/v1/tollgate/keys/{}", caller.id)),
        &[
            ("authorization", &*bearer(&owner)),
            ("content-type", "application/json"),
        ],
        json!({ "group": null }).to_string().into(),
    );
    let out = world.ask(out).await;
    assert_eq!(out.status, 400, "{out:?}");
    // An owner key of a group cannot change keys of another group, or keys without a group.
    let beside = world.another_key("acme", json!({})).await;
    let to_beside = request(
        Method::PATCH,
        &world.url(&format!("/v1/tollgate/keys/{}", beside.id)),
        &[
            ("authorization", &*bearer(&owner)),
            ("content-type", "application/json"),
        ],
        json!({ "ceiling_rub": null }).to_string().into(),
    );
    let to_beside = world.ask(to_beside).await;
    assert_eq!(to_beside.status, 404, "{to_beside:?}");
    let seen = request(
        Method::GET,
        &world.url("/v1/tollgate/keys"),
        &[("authorization", &*bearer(&owner))],
        bytes::Bytes::new(),
    );
    let seen = world.ask(seen).await.text();
    assert!(
        seen.contains(&caller.id) && !seen.contains(&beside.id),
        "{seen}"
    );

    // A key of the group may hold at most the amount that the group has left. The refusal names the group's ceiling.
    let call = world.chat(&caller, &Op::Chat.body("x")).await;
    assert_eq!(call.status, 403, "{call:?}");
    let reported = call.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        reported.contains("Дневной лимит расходов группы ключей был бы превышен; он обновится "),
        "{reported}"
    );
    let raised = json!({ "ceiling_day_rub": null });
    let raised = world
        .admin(Method::PATCH, &format!("{groups}/team"), Some(raised))
        .await;
    assert_eq!(raised.status, 200, "{raised:?}");
    let number = world.chat(&caller, &Op::Chat.body("x")).await.number();
    let receipt = world.receipt(&number).await;
    let listed = world.admin(Method::GET, groups, None).await.json();
    assert_eq!(listed["groups"][0]["spent_rub"], receipt["charged_rub"]);

    let used = json!({ "ceiling_rub": receipt["charged_rub"] });
    world
        .admin(Method::PATCH, &format!("{groups}/team"), Some(used))
        .await;
    let call = world.chat(&caller, &Op::Chat.body("x")).await;
    assert_eq!(call.status, 401, "{call:?}");
    let reported = call.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        reported.contains("Общий лимит расходов группы ключей исчерпан"),
        "{reported}"
    );

    let removed = world
        .admin(Method::DELETE, &format!("{groups}/team"), None)
        .await;
    assert_eq!(removed.status, 409, "{removed:?}");
    let audit = world.admin(Method::POST, "/admin/v1/audit", None).await;
    assert_eq!(audit.json()["breaches"], json!([]), "{audit:?}");
}

/// A call is open until its stream has ended. A call above the maximum is refused with a `retry-after` header.
#[tokio::test]
async fn call_beyond_the_maximum_concurrency_is_refused_with_retry_after() {
    let world = World::start().await;
    let caller = world
        .key_with("acme", "100", json!({ "concurrency": 1 }))
        .await;
    let shown = world
        .admin(Method::GET, &format!("/admin/v1/keys/{}", caller.id), None)
        .await;
    assert_eq!(shown.json()["concurrency"], 1);
    let running = Running::start(&world, Op::Chat, &caller, &Op::Chat.body("x")).await;
    for op in BOTH {
        let refused = op.call(&world, &caller, &op.body("x")).await;
        assert_eq!(refused.status, 429, "{refused:?}");
        assert_eq!(refused.headers["retry-after"], "1");
        let reported = refused.text();
        assert!(
            reported.contains("Достигнут предел одновременных запросов ключа API: 1"),
            "{reported}"
        );
    }
    running.finish().await;
    let path = format!("/admin/v1/keys/{}", caller.id);
    eventually("the call has ended", async || {
        let key = world.admin(Method::GET, &path, None).await.json();
        (key["held_rub"] == "0.00").then_some(())
    })
    .await;
    let next = Running::start(&world, Op::Chat, &caller, &Op::Chat.body("x")).await;
    next.finish().await;
}

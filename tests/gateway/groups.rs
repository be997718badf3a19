//! Tests of groups of keys, and of the maximum number of concurrent calls of a key, with several gateways that share a
//! ledger. The limits hold whichever keys call at whichever gateway, even if a gateway is killed.

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
    ledger::{acme, hold, is_sound, micro, over, record, settlement, topup},
    prelude::*,
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
    assert_eq!(groups[0].held_rub, micro(0));
    assert_eq!(groups[0].free_rub, micro(0));
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
    assert_eq!(served, 600, "{groups:?}");
    assert_eq!(groups[0].spent_rub, micro(600 * PRICE), "{groups:?}");
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
    let long = || wanted(Duration::from_secs(600));
    for _ in 0..2 {
        gateways[2].reserve(&long()).await.unwrap();
    }
    let refused = gateways[0].reserve(&long()).await;
    assert!(matches!(
        refused,
        Err(LedgerError::Refused(Refusal::TooManyCalls { most: 5 }))
    ));
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    for _ in 0..3 {
        gateways[0].reserve(&long()).await.unwrap();
    }
    assert!(gateways[1].reserve(&long()).await.is_err());
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
    let made = world.admin_post(groups, made).await.expect(200);
    let shown = made.json();
    for (field, value) in [
        ("id", "team"),
        ("status", "active"),
        ("ceiling_day_rub", "0.01"),
        ("spent_rub", "0.00"),
    ] {
        assert_eq!(shown[field], value, "{field}");
    }
    let (team, key) = (
        format!("{groups}/team"),
        format!("/admin/v1/keys/{}", caller.id),
    );
    for (body, status, says) in [
        (json!({ "id": "team" }), 409, "exists already"),
        (json!({ "name": "x" }), 400, "id: required"),
        (json!({ "id": "a b" }), 400, "id: an id must have"),
    ] {
        let answer = world.admin_post(groups, body).await;
        assert_eq!(answer.status, status, "{says}: {answer:?}");
        has(&answer.text(), says);
    }
    let nowhere = json!({ "group": "nowhere" });
    let no_such = "group: the account has no such group";
    for (path, body, status, says) in [
        (
            &format!("{groups}/nowhere"),
            json!({ "name": "x" }),
            404,
            "no group nowhere",
        ),
        (&team, json!({}), 400, "nothing to change"),
        (&key, nowhere, 400, no_such),
    ] {
        let answer = world.admin_patch(path, body).await;
        assert_eq!(answer.status, status, "{says}: {answer:?}");
        has(&answer.text(), says);
    }

    let put = world.admin_patch(&key, json!({ "group": "team" })).await;
    assert_eq!(put.expect(200).json()["group"], "team");
    // The group's owner key creates a second key, which belongs to the same group.
    let owner = json!({ "kind": "owner", "group": "team" });
    let owner = world.another_key("acme", owner).await;
    let own_keys = world.url("/v1/tollgate/keys");
    let own = async |method: Method, id: &str, body: Value| {
        let url = format!("{own_keys}{id}");
        let req = json_request(method, &url, &owner.secret, body.to_string());
        world.ask(req).await
    };
    let made = own(Method::POST, "", json!({ "name": "ci" })).await;
    assert_eq!(made.expect(200).json()["group"], "team");
    let of_caller = format!("/{}", caller.id);
    let out = own(Method::PATCH, &of_caller, json!({ "group": null })).await;
    out.expect(400);
    // An owner key of a group cannot change keys of another group, or keys without a group.
    let beside = world.another_key("acme", json!({})).await;
    let (of_beside, change) = (format!("/{}", beside.id), json!({ "ceiling_rub": null }));
    own(Method::PATCH, &of_beside, change).await.expect(404);
    let seen = world.get_by(&owner, "/v1/tollgate/keys").await.text();
    has(&seen, &caller.id);
    assert!(!seen.contains(&beside.id), "{seen}");

    // A key of the group may hold at most the amount that the group has left. The refusal names the group's ceiling.
    let call = world.chat(&caller, &Op::Chat.body("x")).await.expect(403);
    let says = "Дневной лимит расходов группы ключей был бы превышен; он обновится ";
    has(&call.refusal(), says);
    let raised = json!({ "ceiling_day_rub": null });
    world.admin_patch(&team, raised).await.expect(200);
    let number = world.chat(&caller, &Op::Chat.body("x")).await.number();
    let receipt = world.receipt(&number).await;
    let listed = world.admin_get(groups).await.json();
    assert_eq!(listed["groups"][0]["spent_rub"], receipt["charged_rub"]);

    let used = json!({ "ceiling_rub": receipt["charged_rub"] });
    world.admin_patch(&team, used).await;
    let call = world.chat(&caller, &Op::Chat.body("x")).await.expect(401);
    has(
        &call.refusal(),
        "Общий лимит расходов группы ключей исчерпан",
    );

    let remove = world.admin(Method::DELETE, &team, None).await;
    remove.expect(409);
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
        .admin_get(&format!("/admin/v1/keys/{}", caller.id))
        .await;
    assert_eq!(shown.json()["concurrency"], 1);
    let running = Running::start(&world, Op::Chat, &caller, &Op::Chat.body("x")).await;
    for op in BOTH {
        let refused = op.call(&world, &caller, &op.body("x")).await.expect(429);
        assert_eq!(refused.headers["retry-after"], "1");
        let reported = refused.text();
        has(
            &reported,
            "Достигнут предел одновременных запросов ключа API: 1",
        );
    }
    running.finish().await;
    let path = format!("/admin/v1/keys/{}", caller.id);
    eventually("the call has ended", async || {
        let key = world.admin_get(&path).await.json();
        (key["held_rub"] == "0.00").then_some(())
    })
    .await;
    let next = Running::start(&world, Op::Chat, &caller, &Op::Chat.body("x")).await;
    next.finish().await;
}

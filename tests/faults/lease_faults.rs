//! Group 6: faults of gateways that have leases of busy keys.
//!
//! A kill must lose no more charges than without leases. The lease of a killed gateway lasts as long as the longest
//! call, so the calls of these cases are short.

use std::{fs, time::Duration};

use http::{Method, StatusCode};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    client::Asked,
    gateway_faults::{
        charged_by_checkpoint, dies_and_comes_back, large, prove_first_counts, under_load,
    },
    load::Load,
    proxy::{Then, Way, script},
    redis_faults::{fails_over, promoted_under_load},
    steps::{SOON, reported, serves, warm_up, written},
    table::{Case, cases},
    vendor_log::Call,
    verdict::{Bound, Verdict, micro},
    world::{LedgerKind, Plan, World},
};

/// The number of concurrent callers. It is large enough to keep a key busy.
const CALLERS: usize = 24;

pub fn cases() -> Vec<Case> {
    let plan = |ledger| Plan::over(ledger).leases();
    let cluster = |replicas| LedgerKind::Cluster {
        primaries: 3,
        replicas,
    };
    cases! {
        "6" "leases, kill -9 between the grant and its use" => at_a_turn(false, Then::HoldAnswer), alone;
        "6" "leases, kill -9 between calls' ends and their turn" => at_a_turn(true, Then::Hold), alone;
        "6" "leases, kill -9 between a turn and its answer" => at_a_turn(true, Then::HoldAnswer), alone;
        "6" "leases, a turn's answer is lost" => answers_lost();
        "6" "leases, kill -9 after adjustments" => after_adjustments();
        "6" "leases, kill -9 under load, redis" => under_load(plan(LedgerKind::Redis), 3, 400), alone;
        "6" "leases, kill -9 under load, redis cluster" => under_load(plan(cluster(0)), 3, 400), long;
        "6" "leases, redis failover in the middle of load" => promoted_under_load(plan(LedgerKind::RedisReplica));
        "6" "leases, redis sentinel failover in the middle of load" => fails_over(plan(LedgerKind::Sentinel)), long;
        "6" "leases, redis cluster failover in the middle of load" => fails_over(plan(cluster(1))), long;
        "6" "leases, a copied outbox tells the ends too" => copied_outbox();
        "6" "leases, suspended under load" => suspended();
    }
}

/// Waits until a gateway under load has a lease.
async fn leased(world: &World, gateway: usize) {
    let until = Instant::now() + SOON;
    loop {
        let path = "/admin/v1/leases?account=acme";
        let requested = world.admin(gateway, Method::GET, path, None).await;
        if let Ok((StatusCode::OK, answer)) = &requested {
            let leases = answer["leases"].as_array().into_iter().flatten();
            // This gateway has a lease, and its calls in flight hold money against this lease.
            if leases
                .into_iter()
                .any(|lease| lease["calls_rub"].is_string())
            {
                return;
            }
        }
        assert!(Instant::now() < until, "no lease under load: {requested:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the amount that the calls in flight of a gateway hold against its leases, in micro-rubles.
async fn held_in_leases(world: &World, gateway: usize) -> i64 {
    let path = "/admin/v1/leases?account=acme";
    let answer = reported(world, gateway, Method::GET, path, None).await;
    let leases = answer["leases"].as_array().into_iter().flatten();
    let held = leases.map(|lease| &lease["calls_rub"]);
    held.filter(|held| held.is_string()).map(micro).sum()
}

async fn ends(world: &World, load: Load) {
    let loaded = load.end().await;
    world.note(format!(
        "{} answered, {} refused, {} cut",
        loaded.answered, loaded.refused, loaded.broken
    ));
}

/// The gateway is killed while it sends a turn of its lease that requests money or reports settlements. The turn either
/// is still in the proxy, or was executed but its response was lost.
async fn at_a_turn(of_ends: bool, then: Then) -> Verdict {
    let world = Plan::over(LedgerKind::Redis)
        .leases()
        .call_seconds(3)
        .start()
        .await;
    world.stated(Bound::killed());
    warm_up(&world).await;
    for _ in 0..3 {
        let load = if of_ends {
            let load = world.load_until_told(CALLERS);
            leased(&world, 0).await;
            let trap = world.redis_proxy(0).trap(Way::Up, script("turn"), then);
            trap.sprung().await;
            load
        } else {
            world.settled().await;
            let trap = world.redis_proxy(0).trap(Way::Up, script("turn"), then);
            let load = world.load_until_told(CALLERS);
            trap.sprung().await;
            load
        };
        dies_and_comes_back(&world).await;
        serves(&world.client(0)).await;
        ends(&world, load).await;
    }
    world.verdict().await
}

/// The holds of calls are lowered within the lease of their gateway, without a request to Redis. Then the gateway is
/// killed, and the next process charges the checkpoints of the calls.
async fn after_adjustments() -> Verdict {
    let world = Plan::over(LedgerKind::Redis)
        .leases()
        .call_seconds(5)
        .start()
        .await;
    world.stated(Bound::killed());
    warm_up(&world).await;
    let client = world.client(0);
    for _ in 0..2 {
        let load = world.load_until_told(CALLERS);
        prove_first_counts(&client).await;
        leased(&world, 0).await;
        let calls: Vec<Call> = (0..8).map(|_| large(&client)).collect();
        let requested: Vec<Asked> = calls
            .iter()
            .map(|call| client.ask_in_background(call))
            .collect();
        for call in &calls {
            world.vendor().wait_served(call, 5).await;
        }
        ends(&world, load).await;
        written(&world, 0, &calls, |call| call.output >= 5 && call.adjusted).await;
        assert!(held_in_leases(&world, 0).await > 0, "no call has a lease");
        dies_and_comes_back(&world).await;
        for (call, requested) in calls.iter().zip(requested) {
            assert!(!requested.outcome().await.answered());
            charged_by_checkpoint(&world, call).await;
        }
        let lines = world.exported().await;
        for call in &calls {
            let line = lines.iter().find(|it| it["usage"]["input"] == call.input());
            let held = &line.expect("it is charged")["held_at_end_rub"];
            assert!(held.is_string(), "the hold was not lowered: {line:?}");
            assert_eq!(micro(held), call.full_cost(), "{line:?}");
        }
        serves(&client).await;
    }
    world.verdict().await
}

/// The responses to lease turns are lost. The gateway sends each turn again, and the repeated turn changes nothing.
async fn answers_lost() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).leases().start_warm().await;
    let load = world.load_until_told(CALLERS);
    leased(&world, 0).await;
    for then in [Then::LoseAnswer, Then::CutAnswer(3), Then::Reset] {
        for _ in 0..4 {
            let trap = world.redis_proxy(0).trap(Way::Up, script("turn"), then);
            trap.sprung().await;
            sleep(Duration::from_millis(150)).await;
            world.round();
        }
    }
    ends(&world, load).await;
    world.verdict().await
}

/// A gateway is killed with settlements that it has not reported. Another gateway gets a copy of the killed gateway's
/// outbox, as if a machine had been restored from an image. Both gateways report the settlements.
async fn copied_outbox() -> Verdict {
    let world = Plan::over(LedgerKind::Redis)
        .leases()
        .gateways(2)
        .call_seconds(3)
        .start()
        .await;
    world.stated(Bound::killed());
    warm_up(&world).await;
    let load = world.load_until_told(CALLERS);
    leased(&world, 0).await;
    let trap = world
        .redis_proxy(0)
        .trap(Way::Up, script("turn"), Then::Hold);
    trap.sprung().await;
    // The outbox has recorded settlements. The turn that would report them to the ledger is held in the proxy.
    sleep(Duration::from_millis(100)).await;
    world.gateway(0).kill9();
    // The case deletes the outbox of gateway 1, which therefore has to settle all its calls before it exits.
    world.gateway(1).term();
    assert!(world.gateway(1).wait_exit(SOON).await.is_some());
    ends(&world, load).await;
    for end in ["", "-wal", "-shm"] {
        let [from, to] = [0, 1].map(|n| world.dir().join(format!("outbox-{n}.db{end}")));
        if from.exists() {
            fs::copy(from, to).unwrap();
        } else if to.exists() {
            fs::remove_file(to).unwrap();
        }
    }
    for gateway in 0..2 {
        world.vendor_proxy(gateway).reset();
        world.redis_proxy(gateway).reset();
    }
    world.heal().await;
    for gateway in 0..2 {
        world.ready(gateway, SOON).await;
    }
    world.verdict().await
}

/// When an operator's suspension of the account is acknowledged, no gateway serves a call that begins later.
async fn suspended() -> Verdict {
    const GATEWAYS: usize = 3;
    let world = Plan::over(LedgerKind::Redis)
        .leases()
        .gateways(GATEWAYS)
        .start_warm()
        .await;
    for _ in 0..3 {
        let load = world.load_until_told(GATEWAYS * CALLERS);
        for gateway in 0..GATEWAYS {
            leased(&world, gateway).await;
        }
        let suspend = async |suspended: &str| {
            let change = Some(json!({"status": suspended}));
            let path = "/admin/v1/accounts/acme";
            let answer = world.admin(0, Method::PATCH, path, change).await;
            assert!(matches!(answer, Ok((StatusCode::OK, _))), "{answer:?}");
        };
        let began = Instant::now();
        suspend("suspended").await;
        let took = began.elapsed();
        for gateway in 0..GATEWAYS {
            let client = world.client(gateway);
            for _ in 0..8 {
                let outcome = client.ask(&client.call(crate::steps::FORMATS[0])).await;
                assert!(
                    outcome.refused(),
                    "gateway {gateway} serves: {}",
                    outcome.text()
                );
            }
        }
        world.note(format!("forbidden within {} ms", took.as_millis()));
        suspend("active").await;
        ends(&world, load).await;
        world.round();
    }
    world.verdict().await
}

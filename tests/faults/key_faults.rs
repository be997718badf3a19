//! Group 9: limits of a key other than its own ceiling, while responses are lost and gateways are killed. A call with
//! an idempotency key is charged once, whichever gateway runs it. A group spends at most its ceiling. The limits on
//! open calls and on rates still apply to all remaining gateways together.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tollgate_layers::call::Format;

use crate::{
    client::{Client, Key, Outcome},
    proxy::{REQUEST, Then, Way, answers_script, bytes, script},
    steps::{SOON, each_kind, reported, warm_up, written},
    table::{Case, cases},
    vendor_log::{Call, Gate},
    verdict::{Bound, Charge, Verdict, micro},
    world::{LedgerKind, Plan, World},
};

const LEDGERS: [LedgerKind; 2] = [LedgerKind::Sqlite, LedgerKind::Redis];
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A configuration in which a claim on an idempotency key expires after one second without renewal.
const CLAIM: &str = "[idempotency]\nlease_seconds = 1\n";

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ledger in LEDGERS {
        let named = |fault: &str| format!("{fault}, {}", ledger.name());
        cases.extend(cases! {
            "9" named("answer lost, sent again with its key") => answers_lost(ledger);
            "9" named("kill -9 while a call with a key runs") => killed(Plan::over(ledger), At::Running);
        });
    }
    let redis = || Plan::over(LedgerKind::Redis);
    let leases = move || redis().leases();
    cases.extend(cases! {
        "9" "kill -9 between a call's end and its charge, redis" => killed(redis(), At::Ended);
        "9" "kill -9 between a charge and its answer's keeping, redis" => killed(redis(), At::Charged);
        "9" "kill -9 between an answer's keeping and the word of it, redis" => killed(redis(), At::Kept);
        "9" "leases, kill -9 while a call with a key runs" => killed(leases(), At::Running);
        "9" "group's ceiling under load, kill -9, redis" => ceiling_of_a_group(redis(), 3);
        "9" "group's ceiling under load, kill -9, leases" => ceiling_of_a_group(leases(), 3), long;
        "9" "calls at once of a gateway that was killed" => calls_at_once();
        "9" "rate over three gateways, one killed" => rates(), long;
    });
    cases
}

/// The moment at which the gateway is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Killed when the vendor has sent a part of its response.
    Running,
    /// Killed when the caller has received the response, but the call is not charged and its response is not stored.
    Ended,
    /// Killed when the call is charged, and its response is not stored.
    Charged,
    /// Killed when the response of the call is stored, and the gateway has not received the acknowledgement.
    Kept,
}

/// Creates a key of the first account with these fields, and uses it for all later calls. The key must be new: gateways
/// cache key records for a while, so a change of the old key would apply late.
async fn key_with(world: &mut World, fields: Value) {
    let path = "/admin/v1/accounts/acme/keys";
    let made = reported(world, 0, Method::POST, path, Some(fields)).await;
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    world.key = Key {
        secret: text("key"),
        id: text("id"),
        account: "acme".to_owned(),
    };
}

/// Starts gateways on one ledger, with a key for whose calls the responses are stored.
async fn started(plan: Plan) -> World {
    let gateways = if plan.ledger == LedgerKind::Sqlite {
        1
    } else {
        2
    };
    let mut world = plan
        .gateways(gateways)
        .edit("[admin]\n", &format!("{CLAIM}[admin]\n"))
        .start()
        .await;
    warm_up(&world).await;
    key_with(&mut world, json!({ "idempotency": true })).await;
    // Because of these calls, every gateway loads its scripts into the server.
    for gateway in 0..gateways {
        let client = world.client(gateway);
        let outcome = client.ask(&client.call(Format::Chat).once()).await;
        assert!(outcome.answered(), "{}", outcome.text());
    }
    world.settled().await;
    world
}

/// Repeats a call until no gateway reports that the call is still in flight.
async fn sent_again(client: &Client, call: &Call) -> Outcome {
    let until = Instant::now() + SOON;
    loop {
        let outcome = client.ask(call).await;
        let runs = outcome.text().contains("idempotency_key_in_use");
        if !runs && outcome.status.is_some() {
            return outcome;
        }
        assert!(Instant::now() < until, "it runs for ever: {call:?}");
        sleep(LOOK_EVERY).await;
    }
}

/// For each kind of call: the caller receives nothing, or only the beginning of the response, and repeats the call at
/// all gateways. The vendor receives the call only once.
async fn answers_lost(ledger: LedgerKind) -> Verdict {
    let world = started(Plan::over(ledger)).await;
    let first = world.client(0);
    for then in [Then::LoseAnswer, Then::CutAnswer(64)] {
        for call in each_kind(&first) {
            let call = call.once();
            let trap = world.client_proxy(0).trap(Way::Up, bytes(REQUEST), then);
            let lost = first.ask(&call).await;
            trap.sprung().await;
            assert!(!lost.answered(), "{}", lost.text());
            let mut bodies = Vec::new();
            for turn in 0..4 {
                let client = world.client(turn % world.gateways.len());
                let again = sent_again(&client, &call).await;
                assert!(again.answered(), "{call:?}: {}", again.text());
                bodies.push(again.body);
            }
            bodies.dedup();
            assert_eq!(bodies.len(), 1, "{call:?}: {bodies:?}");
            assert_eq!(world.vendor().requested(&call), 1);
            world.expect(&call, Charge::Full);
            world.round();
        }
    }
    world.verdict().await
}

/// The gateway that runs a call is killed. The caller repeats the call at another gateway, or at the same gateway after
/// its restart. Before the repeat, the ledger has decided whether the call was charged.
async fn killed(plan: Plan, at: At) -> Verdict {
    let ledger = plan.ledger;
    let world = started(plan.call_seconds(5).patience(Duration::from_secs(40))).await;
    world.stated(Bound::running_text());
    let last = world.gateways.len() - 1;
    let (first, other) = (world.client(0), world.client(last));
    for format in [Format::Chat, Format::Messages] {
        let call = first.call(format).once();
        let call = match at {
            At::Running => call.gate(Gate::Token(5)),
            _ => call,
        };
        let redis = |then, needles| world.redis_proxy(0).trap(Way::Up, needles, then);
        let traps = match at {
            At::Running => Vec::new(),
            // The gateway sends these two commands in either order. The traps hold the command that is sent first, or
            // both.
            At::Ended => vec![
                redis(Then::Hold, script("settle")),
                redis(Then::Hold, answers_script("room")),
            ],
            At::Charged => vec![redis(Then::HoldAnswer, answers_script("room"))],
            At::Kept => vec![redis(Then::HoldAnswer, answers_script("finish"))],
        };
        let requested = first.ask_in_background(&call);
        if at == At::Running {
            world.vendor().wait_served(&call, 5).await;
            // With SQLite, the next start charges the checkpoint, so the test waits until it is recorded.
            written(&world, 0, [&call], |call| call.output > 0).await;
        } else {
            world.vendor().wait_told(&call).await;
        }
        match at {
            At::Running => {}
            At::Ended => {
                while !traps.iter().any(crate::proxy::Trap::has_sprung) {
                    sleep(LOOK_EVERY).await;
                }
                written(&world, 0, [&call], |call| call.ended).await;
            }
            At::Charged => {
                traps[0].sprung().await;
                charged(&world, last, &call).await;
            }
            At::Kept => {
                traps[0].sprung().await;
                charged(&world, last, &call).await;
            }
        }
        let kill = || {
            world.gateway(0).kill9();
            for proxy in [&world.vendor_proxies, &world.redis_proxies]
                .into_iter()
                .flatten()
            {
                proxy.reset();
            }
        };
        // In this case, the call is still in flight when the gateway is killed, and its caller is cut off. In all other
        // cases, the caller has received the complete response before the kill.
        let outcome = if at == At::Running {
            kill();
            requested.outcome().await
        } else {
            let outcome = requested.outcome().await;
            kill();
            outcome
        };
        assert_eq!(outcome.answered(), at != At::Running, "{}", outcome.text());
        for trap in &traps {
            trap.open();
        }
        if last == 0 {
            world.gateway(0).restart().await;
        }
        let again = tokio::select! {
            again = sent_again(&other, &call) => again,
            // This lets the vendor continue, so that the repeated call can end.
            () = opens_gates(&world, &call) => unreachable!("it goes on"),
        };
        let gone = again.text().contains("idempotent_answer_gone");
        let requested = world.vendor().requested(&call);
        match at {
            // The checkpoint of the call is charged already, or will be charged when the killed gateway restarts. In
            // both cases, the call must not run again.
            At::Running if ledger == LedgerKind::Sqlite => {
                assert!(gone, "{requested} asked: {}", again.text());
                assert!(requested == 1, "{requested} asked: {}", again.text());
                world.expect(&call, Charge::Any);
            }
            At::Charged => {
                assert!(gone, "{requested} asked: {}", again.text());
                assert!(requested == 1, "{requested} asked: {}", again.text());
                world.expect(&call, Charge::Full);
            }
            At::Kept => {
                assert_eq!((again.answered(), requested), (true, 1), "{}", again.text());
                assert_eq!(again.body, outcome.body);
                world.expect(&call, Charge::Full);
            }
            // The key is not busy, so no lease pays for the call.
            At::Running | At::Ended => {
                assert_eq!((again.answered(), requested), (true, 2), "{}", again.text());
                world.expect(&call, Charge::Full);
            }
        }
        // All later repeats get the same response, even at the gateway that was killed.
        world.heal().await;
        world.ready(0, SOON).await;
        for client in [&first, &other] {
            let third = sent_again(client, &call).await;
            assert_eq!(third.status, again.status, "{}", third.text());
            assert!(
                !again.answered() || third.body == again.body,
                "{}",
                third.text()
            );
        }
        assert_eq!(world.vendor().requested(&call), requested);
        world.settled().await;
        world.round();
    }
    world.verdict().await
}

async fn opens_gates(world: &World, call: &Call) {
    loop {
        sleep(LOOK_EVERY).await;
        world.vendor().open_gate(call);
    }
}

/// Waits until this gateway returns a charge for a call.
async fn charged(world: &World, gateway: usize, call: &Call) {
    let until = Instant::now() + SOON;
    loop {
        let path = format!(
            "/admin/v1/receipts?account={}&limit=50",
            world.key().account
        );
        let receipts = reported(world, gateway, Method::GET, &path, None).await;
        let mut receipts = receipts["receipts"].as_array().into_iter().flatten();
        if receipts.any(|receipt| receipt["usage"]["input"] == call.input()) {
            return;
        }
        assert!(Instant::now() < until, "{call:?} is not charged");
        sleep(LOOK_EVERY).await;
    }
}

/// Calls of many keys at three gateways would cost more than the ceiling of the keys' group. Meanwhile, gateways are
/// killed in turn.
async fn ceiling_of_a_group(plan: Plan, kills: usize) -> Verdict {
    const CEILING: i64 = 10_000_000;
    let mut world = plan.gateways(3).call_seconds(3).start().await;
    world.stated(Bound::killed());
    warm_up(&world).await;
    let group = json!({ "id": "team", "ceiling_rub": "10" });
    let path = "/admin/v1/accounts/acme/groups";
    reported(&world, 0, Method::POST, path, Some(group)).await;
    key_with(&mut world, json!({ "group": "team" })).await;
    let spent = async |gateway: usize| {
        let groups = world.admin(gateway, Method::GET, path, None).await;
        let Ok((StatusCode::OK, groups)) = groups else {
            return 0;
        };
        let group = &groups["groups"][0];
        let spent = micro(&group["spent_rub"]);
        assert!(spent <= CEILING, "{group}");
        spent
    };
    let load = world.load_until_told(12);
    for turn in 0..kills {
        sleep(Duration::from_millis(350 + 37 * (turn as u64 % 11))).await;
        let gateway = turn % 3;
        spent((gateway + 1) % 3).await;
        world.gateway(gateway).kill9();
        sleep(Duration::from_millis(100)).await;
        spent((gateway + 1) % 3).await;
        world.gateway(gateway).restart().await;
        world.round();
    }
    load.has_refused(60).await;
    let loaded = load.end().await;
    world.settled().await;
    let all = spent(0).await;
    // The calls of killed gateways may hold a part of the money until their holds expire.
    assert!(all > CEILING * 3 / 4, "{all}");
    world.note(format!(
        "{all} of {CEILING} micro-rubles, {} answered, {} refused",
        loaded.answered, loaded.refused
    ));
    world.verdict().await
}

/// A key may have four open calls, and has four at a gateway that is killed. These calls count as open until their
/// holds end and not longer, whether or not the gateway restarts.
async fn calls_at_once() -> Verdict {
    const AT_ONCE: usize = 4;
    let mut world = Plan::over(LedgerKind::Redis)
        .gateways(2)
        .call_seconds(3)
        .start()
        .await;
    world.stated(Bound::running_text());
    warm_up(&world).await;
    key_with(&mut world, json!({ "concurrency": AT_ONCE })).await;
    let open = async |gateway: usize| {
        let client = world.client(gateway);
        let mut running = Vec::new();
        for _ in 0..AT_ONCE {
            let call = client.call(Format::Chat).gate(Gate::Token(5));
            let requested = client.ask_in_background(&call);
            world.vendor().wait_served(&call, 5).await;
            running.push((call, requested));
        }
        running
    };
    let refused = async |gateway: usize| {
        let client = world.client(gateway);
        let call = client.call(Format::Chat);
        let outcome = client.ask(&call).await;
        assert_eq!(
            outcome.status,
            Some(StatusCode::TOO_MANY_REQUESTS),
            "{}",
            outcome.text()
        );
        world.expect(&call, Charge::Nothing);
    };
    let lost = open(0).await;
    refused(1).await;
    let died = world.gateway(0).kill9();
    refused(1).await;
    // The holds of the killed gateway's calls end: first one of them, later all of them.
    let until = died + SOON;
    let client = world.client(1);
    while !client.ask(&client.call(Format::Chat)).await.answered() {
        assert!(Instant::now() < until, "its places do not come back");
        sleep(LOOK_EVERY).await;
    }
    let back = died.elapsed();
    while micro(&world.accounts(1).await.unwrap()[0]["held_rub"]) > 0 {
        assert!(Instant::now() < until, "it is held for ever");
        sleep(LOOK_EVERY).await;
    }
    let running = open(1).await;
    refused(1).await;
    // The restarted gateway refuses a further call, too.
    world.vendor_proxy(0).reset();
    world.redis_proxy(0).reset();
    world.gateway(0).restart().await;
    world.ready(0, SOON).await;
    refused(0).await;
    for (call, requested) in running {
        world.vendor().open_gate(&call);
        assert!(requested.outcome().await.answered());
        world.expect(&call, Charge::Full);
    }
    drop(lost);
    world.note(format!(
        "{AT_ONCE} places were back after {} ms",
        back.as_millis()
    ));
    world.round();
    world.verdict().await
}

/// The rate limit of a key applies to all gateways together and, after one of them is killed, to the remaining
/// gateways. No permit is used twice. The permits of a killed gateway become available again when they expire.
async fn rates() -> Verdict {
    // The maximum burst of requests, and the number of requests per second.
    const BURST: f64 = 200.0;
    const PER_SECOND: f64 = 20.0;
    let world = Plan::over(LedgerKind::Redis).gateways(3).start().await;
    world.stated(Bound::killed());
    warm_up(&world).await;
    let limited: Key = world.account("beta", "1000").await;
    let path = format!("/admin/v1/keys/{}", limited.id);
    let rate = json!({ "requests_per_minute": 1200 });
    reported(&world, 0, Method::PATCH, &path, Some(rate)).await;
    let count = async |gateways: &[usize], seconds: u64| {
        let began = Instant::now();
        let until = began + Duration::from_secs(seconds);
        let callers = (0..12).map(async |turn: usize| {
            let client = world.client_of(gateways[turn % gateways.len()], &limited);
            let mut answered = 0_u32;
            while Instant::now() < until {
                let outcome = client
                    .ask(&client.call(Format::Chat).tokens(1).plain())
                    .await;
                answered += u32::from(outcome.answered());
                if !outcome.answered() {
                    sleep(LOOK_EVERY).await;
                }
            }
            answered
        });
        let answered = futures_util::future::join_all(callers).await;
        (answered.iter().sum::<u32>(), began.elapsed().as_secs_f64())
    };
    let (first, took) = count(&[0, 1, 2], 12).await;
    let most = (BURST + PER_SECOND * took) * 1.02 + 1.0;
    assert!(f64::from(first) <= most, "{first} answered in {took} s");
    // The burst is used up. From here on, only the rate per second is available.
    world.gateway(0).kill9();
    world.round();
    let (left, took_left) = count(&[1, 2], 15).await;
    let (ideal, count_left) = (PER_SECOND * took_left, f64::from(left));
    // Each gateway may have 1/300 of the quota in memory, as permits.
    assert!(
        count_left <= ideal * 1.02 + 8.0 && count_left >= ideal * 0.9,
        "{left} answered in {took_left} s by those that are left"
    );
    world.note(format!(
        "{first} in {took:.1} s by three, then {left} in {took_left:.1} s by two: {:+.1} %",
        100.0 * (count_left - ideal) / ideal
    ));
    world.verdict().await
}

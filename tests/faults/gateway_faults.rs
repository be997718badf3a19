//! Group 1: the gateway is killed at every step of a call, suspended for longer than its holds live, drained, and run
//! without free file descriptors.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tollgate_layers::call::Format;

use crate::{
    client::{Asked, Client, Key},
    proxy::{REQUEST, Then, Way, bytes, script},
    steps::{FORMATS, SOON, ask, each_kind, warm_up, written},
    table::{Case, cases},
    vendor_log::{Call, Gate},
    verdict::{Bound, Charge, Verdict, micro, proves_itself},
    world::{LedgerKind, Plan, World},
};

const LEDGERS: [LedgerKind; 2] = [LedgerKind::Sqlite, LedgerKind::Redis];
/// The maximum duration of a drain: the 30 seconds of the gateway's setting, plus the delays of a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(40);
/// An amount in rubles. It covers the first hold of one large call and the lowered hold of another, but not the first
/// holds of both.
const HOLDS_ONE: &str = "17.50";
/// The number of streams that are open when a fault affects all of them at the same time.
const STREAMS: usize = 50;

pub fn cases() -> Vec<Case> {
    let mut cases = cases! {
        "-" "the verdict itself can fail" => proves_itself();
        "1" "kill -9 before the reserve arrives, redis" => at_the_reserve(Then::Hold);
        "1" "kill -9 before the reserve's answer, redis" => at_the_reserve(Then::HoldAnswer);
        "1" "kill -9 between usage and settle, redis" => at_the_settle(Then::Hold);
        "1" "kill -9 between settle and its answer, redis" => at_the_settle(Then::HoldAnswer);
        "1" "answer to the settle lost, redis" => settle_answer_lost();
        "1" "kill -9 before an adjustment arrives, redis" => at_the_adjustment(Then::Hold);
        "1" "kill -9 between an adjustment and its answer, redis" => at_the_adjustment(Then::HoldAnswer);
    };
    for ledger in LEDGERS {
        let named = |fault: &str| format!("{fault}, {}", ledger.name());
        cases.extend(cases! {
            "1" named("kill -9 after the reserve, before the vendor") => before_the_vendor(ledger);
            "1" named("kill -9 mid-stream, 50 streams") => mid_stream(ledger);
            "1" named("kill -9 after an adjustment") => after_the_adjustment(ledger);
            "1" named("kill -9 as calls end") => as_calls_end(ledger), alone;
            "1" named("kill -9 under load") => under_load(Plan::over(ledger), 3, 400), alone;
            "1" named("kill -9 under load, 20 times") => under_load(Plan::over(ledger), 20, 4000), long;
            "1" named("SIGSTOP past the TTL") => stopped(ledger);
            "1" named("SIGTERM, 50 streams finish") => drain_finishes(ledger);
            "1" named("SIGTERM, 50 streams are cut") => drain_cuts(ledger);
            "1" named("SIGTERM twice, 50 streams") => stopped_twice(ledger);
            "1" named("out of files") => out_of_files(ledger);
        });
    }
    cases
}

/// Kills the gateway, drops the data in its proxies, and starts it again.
pub(crate) async fn dies_and_comes_back(world: &World) {
    world.gateway(0).kill9();
    world.vendor_proxy(0).reset();
    if world.has_redis_proxies() {
        world.redis_proxy(0).reset();
    }
    world.heal().await;
    world.round();
}

/// The gateway is killed after it has sent a RESERVE. The RESERVE either has not arrived, or was executed but its
/// response was lost. No request may reach a vendor (invariant I6), nothing may be charged, and the hold must end
/// (invariant I8).
async fn at_the_reserve(then: Then) -> Verdict {
    let world = Plan::over(LedgerKind::Redis)
        .call_seconds(2)
        .start_warm()
        .await;
    let client = world.client(0);
    for call in each_kind(&client) {
        world.settled().await;
        let trap = world.redis_proxy(0).trap(Way::Up, script("reserve"), then);
        let requested = client.ask_in_background(&call);
        trap.sprung().await;
        dies_and_comes_back(&world).await;
        assert!(!requested.outcome().await.answered());
        assert_eq!(world.vendor().requested(&call), 0, "I6");
        world.expect(&call, Charge::Nothing);
    }
    world.verdict().await
}

/// The gateway is killed when the hold exists, but the request has not reached the vendor.
async fn before_the_vendor(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).call_seconds(2).start().await;
    // The warm-up calls end just before the first kill, so the kill may lose their settlements.
    world.stated(Bound::killed());
    warm_up(&world).await;
    let client = world.client(0);
    for call in each_kind(&client) {
        let trap = world
            .vendor_proxy(0)
            .trap(Way::Up, bytes(REQUEST), Then::Hold);
        let requested = client.ask_in_background(&call);
        trap.sprung().await;
        dies_and_comes_back(&world).await;
        assert!(!requested.outcome().await.answered());
        assert_eq!(world.vendor().requested(&call), 0);
        world.expect(&call, Charge::Nothing);
    }
    world.verdict().await
}

/// Starts streams of both formats, and waits until each of them has delivered this number of tokens.
async fn streams(world: &World, tokens: u64, shape: impl Fn(Call) -> Call) -> Vec<(Call, Asked)> {
    let client = world.client(0);
    let streams: Vec<(Call, Asked)> = (0..STREAMS)
        .map(|turn| {
            let call = shape(client.call(FORMATS[turn % 2]));
            let requested = client.ask_in_background(&call);
            (call, requested)
        })
        .collect();
    for (call, _) in &streams {
        world.vendor().wait_served(call, tokens).await;
    }
    streams
}

/// The gateway is killed in the middle of streams. The next start charges the checkpoints of the streams.
async fn mid_stream(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    world.stated(Bound::running_text());
    warm_up(&world).await;
    let gap = Duration::from_millis(20);
    let running = streams(&world, 80, |call| call.tokens(2000).gap(gap)).await;
    written(&world, 0, running.iter().map(|(call, _)| call), |call| {
        call.output > 0
    })
    .await;
    dies_and_comes_back(&world).await;
    let mut paid = 0;
    for (call, requested) in running {
        assert!(!requested.outcome().await.answered());
        let line = world.line_of(&call).await;
        assert_eq!(line.end, "gateway_stopped", "{line:?}");
        paid += line.output;
    }
    world.note(format!("{paid} tokens paid of streams that were cut"));
    warm_up(&world).await;
    world.verdict().await
}

/// The gateway is killed when a call has ended for its client. The settlement of the call either has not arrived, or
/// was executed but its response was lost.
async fn at_the_settle(then: Then) -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let client = world.client(0);
    for call in each_kind(&client) {
        world.settled().await;
        let trap = world.redis_proxy(0).trap(Way::Up, script("settle"), then);
        let outcome = client.ask(&call).await;
        assert!(outcome.answered(), "{}", outcome.text());
        trap.sprung().await;
        written(&world, 0, [&call], |call| call.ended).await;
        dies_and_comes_back(&world).await;
        // The restarted gateway sends the charge again. Without this wait, the next trap would hold that charge.
        world.gateway(0).says("call", SOON).await;
        world.expect(&call, Charge::Full);
    }
    world.verdict().await
}

/// The gateway is killed after the vendor has counted the input. The lower hold either was not requested, or was set
/// but the response was lost. In both cases, the text up to the last checkpoint is charged, and all money that the call
/// held is released. A call of the same account at another gateway keeps its hold.
async fn at_the_adjustment(then: Then) -> Verdict {
    let world = Plan::over(LedgerKind::Redis).gateways(2).start().await;
    world.stated(Bound::running_text());
    warm_up(&world).await;
    let (client, other) = (world.client(0), world.client(1));
    prove_first_counts(&client).await;
    // The first call whose hold is lowered makes Redis load the script. From then on, the gateway sends the hash of the
    // script, and the trap looks for this hash.
    prove_first_counts(&client).await;
    for _ in 0..3 {
        world.settled().await;
        // This vendor reports its counts at the end, so the hold of the call is not lowered.
        let uncounted = other.call(Format::Chat).gate(Gate::Token(5));
        let answered = other.ask_in_background(&uncounted);
        world.vendor().wait_served(&uncounted, 5).await;
        let held_by_other = held_in_redis(&world).await;
        assert!(held_by_other > 0);

        let trap = world.redis_proxy(0).trap(Way::Up, script("adjust"), then);
        let call = large(&client);
        let requested = client.ask_in_background(&call);
        trap.sprung().await;
        written(&world, 0, [&call], |call| call.output >= 5).await;
        let held = held_in_redis(&world).await - held_by_other;
        let is_recorded = matches!(then, Then::HoldAnswer);
        assert_eq!(is_lowered(held, &call), is_recorded, "{held}: {call:?}");
        dies_and_comes_back(&world).await;
        assert!(!requested.outcome().await.answered());
        charged_by_checkpoint(&world, &call).await;
        assert_eq!(held_in_redis(&world).await, held_by_other);

        world.vendor().open_gate(&uncounted);
        assert!(answered.outcome().await.answered());
        world.expect(&uncounted, Charge::Full);
        prove_first_counts(&client).await;
    }
    warm_up(&world).await;
    world.verdict().await
}

/// Returns the total amount that the calls of the first account hold, in micro-rubles.
async fn held_in_redis(world: &World) -> i64 {
    ask(world.redis(), &["HGET", "tg:{acme}", "h"]).await
}

/// A hold is lowered, another call holds the money that was freed, and then the gateway is killed. The account pays for
/// both calls, although its balance did not cover the first holds of both.
async fn after_the_adjustment(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    world.stated(Bound::running_text());
    for id in ["one", "two", "three"] {
        // A new process does not lower a hold until the final count of a call has shown that the vendor's first count
        // is correct. The first call of this account shows it.
        let key = world.account(&format!("{id}-unproved"), HOLDS_ONE).await;
        let client = world.client_of(0, &key);
        let running = || large(&client);
        let (call, refused) = (running(), running());
        let requested = client.ask_in_background(&call);
        world.vendor().wait_served(&call, 5).await;
        assert!(client.ask(&refused).await.refused(), "both fit");
        world.vendor().open_gate(&call);
        assert!(requested.outcome().await.answered());

        let key = world.account(id, HOLDS_ONE).await;
        let client = world.client_of(0, &key);
        let calls = [running(), running()];
        let first = client.ask_in_background(&calls[0]);
        lowered(&world, &key, &calls[0]).await;
        let second = client.ask_in_background(&calls[1]);
        world.vendor().wait_served(&calls[1], 5).await;
        written(&world, 0, &calls, |call| call.output >= 5).await;
        dies_and_comes_back(&world).await;
        for (call, requested) in calls.iter().zip([first, second]) {
            assert!(!requested.outcome().await.answered());
            charged_by_checkpoint(&world, call).await;
        }
    }
    warm_up(&world).await;
    world.verdict().await
}

/// Makes a call to its end. A process trusts a vendor's first count only after a call has ended with the same count.
/// The tokens arrive slowly, so that the ledger answers a change of this call's hold before the call ends.
pub(crate) async fn prove_first_counts(client: &Client) {
    // On a busy machine, the gateway may read the first count of a call together with the end of the call. Such a call
    // proves nothing, so there are three calls.
    for _ in 0..3 {
        let call = client.call(Format::Messages).large();
        let call = call.gap(Duration::from_millis(50));
        let outcome = client.ask(&call).await;
        assert!(outcome.answered(), "{}", outcome.text());
    }
}

/// Creates a large call whose vendor waits after five tokens.
pub(crate) fn large(client: &Client) -> Call {
    client.call(Format::Messages).large().gate(Gate::Token(5))
}

/// Returns whether a hold was lowered to about the cost of its call. The first hold is at least 1.5 times the cost.
fn is_lowered(held: i64, call: &Call) -> bool {
    held > 0 && held * 4 < call.full_cost() * 5
}

/// Waits until the account holds the lowered amount of its only call.
async fn lowered(world: &World, key: &Key, call: &Call) {
    let until = Instant::now() + SOON;
    loop {
        let accounts = world.accounts(0).await.unwrap();
        let account = accounts.iter().find(|it| it["id"] == key.account.as_str());
        let held = micro(&account.expect("the account was created")["held_rub"]);
        if is_lowered(held, call) {
            return;
        }
        assert!(Instant::now() < until, "{held} stay held of {call:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Checks that a call whose response broke off after five tokens is charged for five tokens.
pub(crate) async fn charged_by_checkpoint(world: &World, call: &Call) {
    let line = world.line_of(call).await;
    assert_eq!(line.end.as_str(), "gateway_stopped", "{line:?}");
    assert_eq!(line.output, 5, "{line:?}");
    assert_eq!(line.charged, call.cost(5), "{line:?}");
    assert_eq!(line.loss, 0, "{line:?}");
    world.expect(call, Charge::Tokens(5));
}

/// The ledger has settled the call, but its response is lost. The gateway repeats the settlement, which changes
/// nothing.
async fn settle_answer_lost() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let client = world.client(0);
    for then in [Then::LoseAnswer, Then::CutAnswer(3), Then::Reset] {
        for call in each_kind(&client) {
            let trap = world.redis_proxy(0).trap(Way::Up, script("settle"), then);
            assert!(client.ask(&call).await.answered());
            trap.sprung().await;
            world.settled().await;
            world.expect(&call, Charge::Full);
            world.round();
        }
    }
    world.verdict().await
}

/// Calls end, and some milliseconds later the gateway is killed.
async fn as_calls_end(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).call_seconds(4).start().await;
    world.stated(Bound::killed());
    warm_up(&world).await;
    let client = world.client(0);
    for ms in [0, 1, 2, 4, 8, 16, 32, 64] {
        let calls = [each_kind(&client), each_kind(&client)].concat();
        let requested: Vec<Asked> = calls
            .iter()
            .map(|call| client.ask_in_background(call))
            .collect();
        for call in &calls {
            world.vendor().wait_told(call).await;
        }
        sleep(Duration::from_millis(ms)).await;
        dies_and_comes_back(&world).await;
        drop(requested);
    }
    world.verdict().await
}

/// Calls of all kinds continue while gateways are killed in turn, at arbitrary moments.
pub(crate) async fn under_load(plan: Plan, kills: usize, calls: usize) -> Verdict {
    let gateways = if plan.ledger == LedgerKind::Sqlite {
        1
    } else {
        3
    };
    // The calls are short, so that their holds expire soon: if a killed gateway has not recorded a call in its outbox,
    // only expiry ends the call's hold.
    let world = plan.gateways(gateways).call_seconds(4).start().await;
    world.stated(Bound::killed());
    warm_up(&world).await;
    let load = world.load_until_told(12);
    for turn in 0..kills {
        // The delays between the kills vary. Otherwise the kills would always interrupt the same part of the work that
        // gateways do once a second.
        sleep(Duration::from_millis(350 + 37 * (turn as u64 % 11))).await;
        let gateway = world.gateway(turn % gateways);
        gateway.kill9();
        sleep(Duration::from_millis(100)).await;
        gateway.restart().await;
        world.round();
    }
    load.has_answered(calls).await;
    let loaded = load.end().await;
    world.note(format!(
        "{} answered, {} cut",
        loaded.answered, loaded.broken
    ));
    world.verdict().await
}

/// A gateway is suspended for longer than its holds last, and continues after they have expired. The delivered part of
/// its calls is charged late, but only once.
async fn stopped(ledger: LedgerKind) -> Verdict {
    let gateways = if ledger == LedgerKind::Sqlite { 1 } else { 2 };
    let world = Plan::over(ledger)
        .gateways(gateways)
        .call_seconds(2)
        .start_warm()
        .await;
    let client = world.client(0);
    let (mut opened, mut requested) = (Vec::new(), Vec::new());
    for format in FORMATS {
        let stream = client.call(format).gate(Gate::Token(5));
        let mut open = client.open(&stream).await.unwrap();
        open.read_tokens(5).await;
        opened.push(open);
        world.expect(&stream, Charge::Tokens(5));
        // The response to this call has not begun when the gateway is suspended, so no part of it is delivered.
        let plain = client.call(format).plain().gate(Gate::Head);
        requested.push(client.ask_in_background(&plain));
        world.vendor().wait_asked(&plain).await;
        world.expect(&plain, Charge::Nothing);
    }
    world.gateway(0).stop();
    if gateways == 1 {
        sleep(Duration::from_secs(4)).await;
    } else {
        // The sweep of the other gateway ends the expired holds.
        let expired = Instant::now() + Duration::from_secs(15);
        while held(&world, 1).await {
            assert!(Instant::now() < expired, "the holds do not expire: I8");
            sleep(Duration::from_millis(100)).await;
        }
    }
    world.gateway(0).cont();
    for open in opened {
        assert!(!open.rest().await.answered());
    }
    for requested in requested {
        assert!(!requested.outcome().await.answered());
    }
    world.round();
    world.verdict().await
}

async fn held(world: &World, gateway: usize) -> bool {
    let accounts = world.accounts(gateway).await.unwrap();
    accounts.iter().any(|account| account["held_rub"] != "0.00")
}

/// A draining gateway accepts no new calls, and lets the calls in flight end.
async fn drain_finishes(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    let gap = Duration::from_millis(30);
    let running = streams(&world, 5, |call| call.tokens(50).gap(gap)).await;
    let gateway = world.gateway(0);
    gateway.term();
    gateway.says("draining", SOON).await;
    // The gateway logs that it drains immediately before it closes its listener.
    let closed = timeout(SOON, async {
        while TcpStream::connect(world.client_proxy(0).target())
            .await
            .is_ok()
        {
            sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(closed.await.is_ok(), "it goes on listening");
    let client = world.client(0);
    let late = client.call(Format::Chat);
    assert!(!client.ask(&late).await.answered());
    world.expect(&late, Charge::Nothing);
    let status = gateway.wait_exit(ENDS_WITHIN).await;
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    for (call, requested) in running {
        let outcome = requested.outcome().await;
        assert!(outcome.answered(), "{call:?}: {}", outcome.text());
        world.expect(&call, Charge::Full);
    }
    world.round();
    world.verdict().await
}

/// A drain cuts short the calls that do not end in time. These calls are charged for the part that was delivered.
async fn drain_cuts(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).drain_seconds(1).start().await;
    let running = streams(&world, 10, |call| call.tokens(20).gate(Gate::Token(10))).await;
    let gateway = world.gateway(0);
    gateway.term();
    let status = gateway.wait_exit(ENDS_WITHIN).await;
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    for (call, requested) in running {
        assert!(!requested.outcome().await.answered());
        world.expect(&call, Charge::Tokens(10));
    }
    world.round();
    world.verdict().await
}

/// A second signal ends a draining gateway at once. The next start charges the checkpoints of calls that are not
/// charged yet.
async fn stopped_twice(ledger: LedgerKind) -> Verdict {
    let world = Plan::over(ledger).start().await;
    world.stated(Bound::running_text());
    let running = streams(&world, 10, |call| call.tokens(20).gate(Gate::Token(10))).await;
    written(&world, 0, running.iter().map(|(call, _)| call), |call| {
        call.output == 10
    })
    .await;
    let gateway = world.gateway(0);
    gateway.term();
    gateway.says("draining", SOON).await;
    // The gateway reacts to a second signal only some time after it has logged the drain, so the test repeats the
    // signal.
    let until = Instant::now() + SOON;
    while gateway.is_running() {
        assert!(Instant::now() < until, "it goes on after the second signal");
        gateway.term();
        sleep(Duration::from_millis(50)).await;
    }
    assert!(gateway.wait_exit(SOON).await.is_some());
    for (call, requested) in running {
        assert!(!requested.outcome().await.answered());
        world.expect(&call, Charge::Tokens(10));
    }
    world.round();
    world.verdict().await
}

/// Without free file descriptors, calls in flight continue, new calls are refused without a charge, and the gateway
/// recovers without a restart.
async fn out_of_files(ledger: LedgerKind) -> Verdict {
    // There are more connections than free descriptors. The test does not depend on how many of them are refused.
    let world = Plan::over(ledger)
        .nofile(64)
        .edit("[limits]", "[limits]\nconnections_max = 1000")
        .start()
        .await;
    let client = world.client(0);
    let mut running = Vec::new();
    for turn in 0..8 {
        let call = client.call(FORMATS[turn % 2]).gate(Gate::Token(5));
        let requested = client.ask_in_background(&call);
        world.vendor().wait_served(&call, 5).await;
        world.expect(&call, Charge::Full);
        running.push((call, requested));
    }
    let front = world.client_proxy(0).address();
    let mut spare = TcpStream::connect(front).await.unwrap();
    // The gateway accepts this connection before the others arrive.
    spare
        .write_all(b"GET /nowhere HTTP/1.1\r\nhost: g\r\n\r\n")
        .await
        .unwrap();
    let refused = head(&mut spare).await;
    assert!(refused.starts_with("HTTP/1.1 404"), "{refused}");
    let mut crowd = Vec::new();
    for _ in 0..80 {
        crowd.push(TcpStream::connect(front).await.unwrap());
    }
    world
        .gateway(0)
        .says("cannot accept a connection", SOON)
        .await;

    // No descriptor is free for a connection to the vendor, so the call is refused.
    let call = client.call(Format::Chat);
    world.vendor().register(&call);
    spare.write_all(&client.bytes(&call)).await.unwrap();
    let refused = head(&mut spare).await;
    assert!(refused.contains("HTTP/1.1 50"), "{refused}");
    world.expect(&call, Charge::Nothing);

    for (call, requested) in running {
        world.vendor().open_gate(&call);
        let outcome = requested.outcome().await;
        assert!(outcome.answered(), "{call:?}: {}", outcome.text());
    }
    drop((crowd, spare));
    let back = timeout(Duration::from_secs(15), async {
        while !client.ask(&client.call(Format::Messages)).await.answered() {
            sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(back.await.is_ok(), "it does not come back");
    world.round();
    world.verdict().await
}

/// Reads until the head of a response has arrived. Returns the head, and the data that arrived after it.
async fn head(socket: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let come = timeout(Duration::from_secs(10), async {
        while !String::from_utf8_lossy(&read).contains("\r\n\r\n") {
            let mut piece = [0; 4096];
            match socket.read(&mut piece).await {
                Ok(0) | Err(_) => return,
                Ok(count) => read.extend_from_slice(&piece[..count]),
            }
        }
    });
    let _ = come.await;
    String::from_utf8_lossy(&read).into_owned()
}

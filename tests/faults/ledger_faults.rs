//! Group 5: calls that cost more than their account has, changes of ceilings, prices and balances while many calls are
//! in flight, amounts at the largest balance, and files that are full, torn, corrupted or read-only.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tollgate_layers::{call::Format, facts::RequestNumber, money::MicroRub};

use crate::{
    client::{Client, Outcome},
    proxy::script_text,
    steps::{
        FORMATS, SOON, SURVIVES_FILE_LIMIT, ask, beside, each_kind, fails_to_start, limit_files,
        midway, not_ready, nothing_sold, reported, run, serves, size_of, skipped, stops_well,
        warm_up,
    },
    table::{Case, cases},
    vendor_log::{Call, Gate},
    verdict::{Bound, Charge, Line, Verdict, micro},
    world::{LedgerKind, Plan, World, any_call},
};

const CLUSTER: LedgerKind = LedgerKind::Cluster {
    primaries: 3,
    replicas: 0,
};
const LEDGERS: [LedgerKind; 2] = [LedgerKind::Sqlite, LedgerKind::Redis];
/// The number of concurrent calls, and the number of these calls that the account's money covers.
const STORM: usize = 500;
const PAID_FOR: usize = 10;
/// The largest balance that a ledger allows.
const CAP: &str = "9007199254.740991";
/// By how many bytes a file may still grow before its disk counts as full.
const ROOM: u64 = 64 * 1024;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ledger in [LedgerKind::Sqlite, LedgerKind::Redis, CLUSTER] {
        let name = format!("500 at once on a balance for 10, {}", ledger.name());
        cases.push(Case::new("5", name, move || at_once(ledger)).alone());
    }
    for ledger in LEDGERS {
        let named = |fault: &str| format!("{fault}, {}", ledger.name());
        cases.extend(cases! {
            "5" named("ceiling lowered in a storm") => ceiling_lowered(ledger);
            "5" named("price changed in a storm") => price_changed(ledger);
            "5" named("top-ups in a storm") => topped_up(ledger);
            "5" named("balance at the cap") => at_the_cap(ledger);
        });
    }
    cases.extend(cases! {
        "5" "outbox full" => outbox_full();
        "5" "outbox torn, bits flipped" => outbox_damaged();
        "5" "outbox's log torn" => outbox_log_torn();
        "5" "outbox disk full" => outbox_disk_full();
        "5" "two script versions at once" => two_versions();
        "5" "sqlite file read-only" => sqlite_read_only();
        "5" "sqlite disk full" => sqlite_disk_full();
    });
    cases
}

/// Returns the number of gateways for a ledger: three if the ledger supports several gateways.
fn gateways_of(ledger: LedgerKind) -> usize {
    if ledger == LedgerKind::Sqlite { 1 } else { 3 }
}

async fn start(ledger: LedgerKind) -> World {
    Plan::over(ledger)
        .gateways(gateways_of(ledger))
        .start()
        .await
}

/// Converts micro-rubles to rubles as an operator writes them.
fn rubles(micro: i64) -> String {
    MicroRub::new(micro).to_string()
}

/// Returns an account as a gateway reports it.
async fn account(world: &World, gateway: usize, id: &str) -> Value {
    let path = format!("/admin/v1/accounts/{id}");
    reported(world, gateway, Method::GET, &path, None).await
}

/// Returns the amount that one of the concurrent calls holds, in micro-rubles.
async fn hold_of_one(world: &World) -> i64 {
    let client = world.client(0);
    let call = client.call(Format::Chat).same_hold().gate(Gate::Head);
    let requested = client.ask_in_background(&call);
    world.vendor().wait_asked(&call).await;
    let held = micro(&account(world, 0, "acme").await["held_rub"]);
    world.vendor().open_gate(&call);
    assert!(requested.outcome().await.answered());
    world.settled().await;
    held
}

/// Calls are served as long as the account's money covers one more hold. All other calls are refused and not charged.
async fn at_once(ledger: LedgerKind) -> Verdict {
    let world = start(ledger).await;
    warm_up(&world).await;
    let hold = hold_of_one(&world).await;
    let paid_for = i64::try_from(PAID_FOR).unwrap();
    let key = world.account("ten", &rubles(hold * paid_for)).await;
    let clients: Vec<Client> = (0..gateways_of(ledger))
        .map(|gateway| world.client_of(gateway, &key))
        .collect();
    let mut storm: JoinSet<(Call, Outcome)> = JoinSet::new();
    let mut calls = Vec::new();
    for turn in 0..STORM {
        let client = clients[turn % clients.len()].clone();
        let call = client.call(Format::Chat).same_hold().gate(Gate::Head);
        calls.push(call.clone());
        storm.spawn(async move {
            // Repeats a call that gets 503, as an SDK does, because on a busy machine the ledger may not answer in
            // time. A call that gets 503 is not charged.
            loop {
                let outcome = client.ask(&call).await;
                if outcome.status != Some(StatusCode::SERVICE_UNAVAILABLE) {
                    return (call, outcome);
                }
            }
        });
    }
    for refused in 0..STORM - PAID_FOR {
        let ended = timeout(Duration::from_secs(30), storm.join_next()).await;
        let Ok(Some(Ok((call, outcome)))) = ended else {
            panic!("{refused} are refused, and the others are served");
        };
        // The status is 403, because the account has the money but calls hold it.
        assert_eq!(
            outcome.status,
            Some(StatusCode::FORBIDDEN),
            "{}",
            outcome.text()
        );
        world.expect(&call, Charge::Nothing);
    }
    let until = Instant::now() + SOON;
    let served = loop {
        let requested = calls
            .iter()
            .filter(|call| world.vendor().requested(call) > 0);
        let served: Vec<&Call> = requested.collect();
        if served.len() >= PAID_FOR || Instant::now() > until {
            break served;
        }
        sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(served.len(), PAID_FOR, "I1");
    let ten = account(&world, 0, "ten").await;
    assert_eq!(micro(&ten["held_rub"]), hold * paid_for, "I2");
    assert_eq!(micro(&ten["free_rub"]), 0);
    for client in &clients {
        let one_more = client.call(Format::Chat).same_hold();
        let outcome = client.ask(&one_more).await;
        assert_eq!(
            outcome.status,
            Some(StatusCode::FORBIDDEN),
            "{}",
            outcome.text()
        );
        world.expect(&one_more, Charge::Nothing);
    }
    for call in &served {
        world.vendor().open_gate(call);
        world.expect(call, Charge::Full);
    }
    while let Some(ended) = storm.join_next().await {
        let (call, outcome) = ended.unwrap();
        assert!(outcome.answered(), "{call:?}: {}", outcome.text());
    }
    world.note(format!("{} of {STORM} served", served.len()));

    // The served calls cost less than they held. The money that they returned covers more calls, and no call ends with
    // a loss.
    let mut rest: JoinSet<bool> = JoinSet::new();
    for turn in 0..100 {
        let client = clients[turn % clients.len()].clone();
        let call = client.call(Format::Chat).same_hold();
        rest.spawn(async move { client.ask(&call).await.answered() });
    }
    let rest = rest.join_all().await;
    let rest = rest.into_iter().filter(|answered| *answered).count();
    assert!(rest > 0, "what was given back is gone");
    world.settled().await;
    let ten = account(&world, 0, "ten").await;
    assert_eq!(micro(&ten["loss_rub"]), 0, "{ten}");
    assert!(micro(&ten["balance_rub"]) >= 0, "I4: {ten}");
    world.verdict().await
}

async fn key_of(world: &World, method: Method, body: Option<Value>) -> Value {
    let path = format!("/admin/v1/keys/{}", world.key().id);
    reported(world, world.gateways.len() - 1, method, &path, body).await
}

/// When the new ceiling is acknowledged, no gateway makes a hold beyond it. Existing holds are still charged.
async fn ceiling_lowered(ledger: LedgerKind) -> Verdict {
    let world = start(ledger).await;
    warm_up(&world).await;
    let load = world.load_until_told(8);
    sleep(Duration::from_millis(500)).await;
    let spent = micro(&key_of(&world, Method::GET, None).await["spent_rub"]);
    // The new ceiling is slightly above the current spending, so that a few more holds fit before calls are refused.
    let ceiling = spent + 400_000;
    let body = json!({ "ceiling_rub": rubles(ceiling) });
    let key = key_of(&world, Method::PATCH, Some(body)).await;
    let most = ceiling.max(micro(&key["spent_rub"]) + micro(&key["held_rub"]));
    load.has_refused(1).await;
    // The load contains calls that would exceed the new ceiling. They must be refused.
    sleep(Duration::from_millis(200)).await;
    let loaded = load.end().await;
    world.settled().await;
    let spent = micro(&key_of(&world, Method::GET, None).await["spent_rub"]);
    assert!(
        spent <= most,
        "{spent} of {most} micro-rubles are spent: I1"
    );
    for gateway in 0..gateways_of(ledger) {
        let client = world.client(gateway);
        // The maximum cost of this call exceeds what the ceiling leaves, so it must be refused.
        let call = client.call(Format::Messages).tokens(4000);
        let outcome = client.ask(&call).await;
        assert!(outcome.refused(), "{outcome:?}");
        assert_eq!(world.vendor().requested(&call), 0, "I6");
        world.expect(&call, Charge::Nothing);
    }
    let none = json!({ "ceiling_rub": null });
    key_of(&world, Method::PATCH, Some(none)).await;
    for gateway in 0..gateways_of(ledger) {
        serves(&world.client(gateway)).await;
    }
    world.note(format!("{} refused", loaded.refused));
    world.verdict().await
}

/// Halves the prices in a gateway's configuration file.
fn halve_prices(config: &Path) {
    let text = fs::read_to_string(config).unwrap();
    let halved = [
        ("input = \"1\",", "input = \"0.5\","),
        ("output = \"2\",", "output = \"1\","),
        ("input = \"10\",", "input = \"5\","),
        ("output = \"20\",", "output = \"10\","),
    ];
    let text = halved.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "the config has no {from:?}");
        text.replace(from, to)
    });
    fs::write(config, text).unwrap();
}

/// A call is charged at the price that was in force when its hold was made (invariant I11). Later calls are charged at
/// the new price.
async fn price_changed(ledger: LedgerKind) -> Verdict {
    let world = start(ledger).await;
    warm_up(&world).await;
    let gateways = gateways_of(ledger);
    let running = midway(&world, &world.client(gateways - 1)).await;
    let calls: Vec<(Client, Call)> = (0..240)
        .map(|turn| {
            let client = world.client(turn % gateways);
            let call = any_call(&client, turn);
            // Each of these calls may be charged at either price. The test checks the total below.
            world.expect(&call, Charge::Any);
            (client, call)
        })
        .collect();
    let mut storm: JoinSet<usize> = JoinSet::new();
    for caller in 0..6 {
        let own: Vec<(Client, Call)> = calls.iter().skip(caller).step_by(6).cloned().collect();
        storm.spawn(async move {
            let mut served = 0;
            for (client, call) in own {
                served += usize::from(client.ask(&call).await.answered());
            }
            served
        });
    }
    sleep(Duration::from_millis(300)).await;
    for gateway in 0..gateways {
        halve_prices(&world.dir().join(format!("gateway-{gateway}.toml")));
        world.gateway(gateway).hangup();
        world.gateway(gateway).says("reloaded", SOON).await;
    }
    let mut later = Vec::new();
    for gateway in 0..gateways {
        let client = world.client(gateway);
        for call in each_kind(&client) {
            world.expect(&call, Charge::Any);
            assert!(client.ask(&call).await.answered());
            later.push(call);
        }
    }
    let served: usize = storm.join_all().await.into_iter().sum();
    assert_eq!(served, calls.len(), "a change of prices refuses nobody");
    // The calls in flight are charged in full, at the price that applied before the change.
    running.end(&world).await;
    for call in later {
        let line = world.line_of(&call).await;
        assert_eq!(line.cost * 2, call.full_cost(), "{line:?}");
    }
    world.settled().await;
    let lines = world.exported().await;
    let lines: Vec<Line> = lines
        .iter()
        .filter(|line| line["kind"] == "call")
        .map(Line::read)
        .collect();
    let (mut old, mut new) = (0, 0);
    for (_, call) in &calls {
        let line = lines.iter().find(|line| line.input == call.input());
        let cost = line
            .unwrap_or_else(|| panic!("{call:?} is not booked"))
            .cost;
        if cost == call.full_cost() {
            old += 1;
        } else {
            assert_eq!(cost * 2, call.full_cost(), "neither price: {line:?}");
            new += 1;
        }
    }
    world.note(format!("{old} at the old price, {new} at the new one"));
    world.verdict().await
}

/// Payments arrive while calls spend them. Each payment is sent to two gateways at the same time, and is credited once
/// (invariant I10).
async fn topped_up(ledger: LedgerKind) -> Verdict {
    const PAYMENTS: usize = 40;
    let world = start(ledger).await;
    warm_up(&world).await;
    let gateways = gateways_of(ledger);
    let key = world.account("poor", "0.30").await;
    let mut storm: JoinSet<usize> = JoinSet::new();
    for spender in 0..8 {
        let client = world.client_of(spender % gateways, &key);
        storm.spawn(async move {
            let mut served = 0;
            for turn in 0..60 {
                let outcome = client.ask(&any_call(&client, spender + turn)).await;
                served += usize::from(outcome.answered());
                sleep(Duration::from_millis(5)).await;
            }
            served
        });
    }
    for payment in 0..PAYMENTS {
        let path = "/admin/v1/accounts/poor/topups";
        let body = json!({ "id": format!("payment-{payment}"), "amount_rub": "0.10" });
        let (one, other) = (payment % gateways, (payment + 1) % gateways);
        tokio::join!(
            reported(&world, one, Method::POST, path, Some(body.clone())),
            reported(&world, other, Method::POST, path, Some(body)),
        );
    }
    let served: usize = storm.join_all().await.into_iter().sum();
    assert!(served > 0, "nothing was sold");
    world.settled().await;
    let lines = world.exported().await;
    let entered: Vec<&Value> = lines
        .iter()
        .filter(|line| line["kind"] == "entry" && line["account"] == "poor")
        .collect();
    let ids: BTreeSet<&str> = entered
        .iter()
        .filter_map(|line| line["id"].as_str())
        .collect();
    assert_eq!(entered.len(), PAYMENTS + 1, "I10");
    assert_eq!(ids.len(), PAYMENTS + 1, "I10");
    let sum: i64 = entered.iter().map(|line| micro(&line["amount_rub"])).sum();
    let poor = account(&world, 0, "poor").await;
    assert_eq!(
        micro(&poor["balance_rub"]) + micro(&poor["spent_rub"]),
        sum,
        "I3: {poor}"
    );
    world.note(format!("{served} served"));
    world.verdict().await
}

async fn top_up(
    world: &World,
    account: &str,
    id: &str,
    amount: &str,
) -> Result<StatusCode, String> {
    let path = format!("/admin/v1/accounts/{account}/topups");
    let body = json!({ "id": id, "amount_rub": amount });
    let answer = world.admin(0, Method::POST, &path, Some(body)).await;
    answer.map(|(status, _)| status)
}

/// Balances stop at the largest amount that can be represented exactly. Up to this amount, every micro-ruble counts.
async fn at_the_cap(ledger: LedgerKind) -> Verdict {
    let world = start(ledger).await;
    let key = world.account("rich", CAP).await;
    let over = top_up(&world, "rich", "over", "0.000001").await;
    assert_eq!(over, Ok(StatusCode::CONFLICT));
    let mut cost = 0;
    for gateway in 0..gateways_of(ledger) {
        let client = world.client_of(gateway, &key);
        for call in each_kind(&client) {
            assert!(client.ask(&call).await.answered());
            world.expect(&call, Charge::Full);
            cost += call.full_cost();
        }
    }
    world.settled().await;
    let rich = account(&world, 0, "rich").await;
    let cap = micro(&json!(CAP));
    assert_eq!(micro(&rich["balance_rub"]), cap - cost, "{rich}");
    let too_much = top_up(&world, "rich", "too-much", &rubles(cost + 1)).await;
    assert_eq!(too_much, Ok(StatusCode::CONFLICT));
    let just_so = top_up(&world, "rich", "just-so", &rubles(cost)).await;
    assert!(just_so.is_ok_and(|status| status.is_success()));
    let rich = account(&world, 0, "rich").await;
    assert_eq!(rich["balance_rub"], CAP, "{rich}");
    serves(&world.client_of(0, &key)).await;
    world.verdict().await
}

/// The outbox is full. The gateway reports this, admits no calls, and recovers without a restart.
async fn outbox_full() -> Verdict {
    // Redis syncs every write. With `everysec`, it may delay writes while a busy disk syncs, and a kill would lose
    // these writes.
    let world = Plan::over(LedgerKind::Redis)
        .redis_args(&["--appendonly", "yes", "--appendfsync", "always"])
        .edit("outbox_calls_max = 100000", "outbox_calls_max = 5")
        .start_warm()
        .await;
    let client = world.client(0);
    let few = async |count: &str| {
        let words = ["CONFIG", "SET", "min-replicas-to-write", count];
        ask::<String>(world.redis(), &words).await;
    };
    for dead in [false, true] {
        let running = [midway(&world, &client).await, midway(&world, &client).await];
        if dead {
            world.redis().kill();
        } else {
            // Redis refuses writes, because the required replicas are missing.
            few("1").await;
        }
        for running in running {
            running.end(&world).await;
        }
        not_ready(&world, 0, if dead { "" } else { "the outbox is full" }).await;
        nothing_sold(&world, &client).await;
        if dead {
            world.redis().restart().await;
        } else {
            few("0").await;
        }
        world.ready(0, SOON).await;
        serves(&client).await;
        world.settled().await;
        world.round();
    }
    world.verdict().await
}

fn write_alone(path: &Path, bytes: &[u8]) {
    for path in beside(path) {
        let _ = fs::remove_file(path);
    }
    fs::write(path, bytes).unwrap();
}

/// Returns the number of calls that are recorded in the outbox's file and its write-ahead log.
fn intents(path: &Path) -> usize {
    let files = beside(path);
    let texts = files.iter().map(PathBuf::as_path).chain([path]);
    let bytes = texts.filter_map(|path| fs::read(path).ok());
    bytes
        .map(|bytes| bytes.windows(6).filter(|word| word == b"intent").count())
        .sum()
}

/// If the outbox is damaged, the gateway names the file and does not start. If the file is removed, the gateway starts.
async fn outbox_damaged() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let path = world.dir().join("outbox-0.db");
    let before = intents(&path);
    let calls = midway(&world, &world.client(0)).await;
    // The outbox writes the intent of a call to its file only after a delay. So a call that ends earlier has no row in
    // the file.
    let written = async {
        while intents(&path) <= before {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, written)
        .await
        .expect("running calls are written down");
    calls.end(&world).await;
    world.settled().await;
    let gateway = world.gateway(0);
    stops_well(gateway, SOON).await;
    let whole = fs::read(&path).unwrap();
    let name = path.display().to_string();
    let mut flipped = whole.clone();
    let needle = b"\"cost\"";
    let mut flips = 0;
    for at in 0..whole.len() - needle.len() {
        if whole[at..].starts_with(needle) {
            // The text is changed wherever it is in the file, because SQLite may have left copies of rewritten rows.
            flipped[at + 1] ^= 1;
            flips += 1;
        }
    }
    assert!(flips > 0, "no charge is in the file");
    for damaged in [&whole[..whole.len() / 2], &flipped[..]] {
        write_alone(&path, damaged);
        fails_to_start(gateway, &["ledger.outbox", "damaged", &name]).await;
        world.round();
    }
    write_alone(&path, b"something else");
    fails_to_start(gateway, &["ledger.outbox", &name]).await;
    world.round();
    for path in beside(&path).iter().chain([&path]) {
        let _ = fs::remove_file(path);
    }
    gateway.restart().await;
    warm_up(&world).await;
    world.verdict().await
}

/// A power cut may lose the newest lines of the write-ahead log. Only calls that are recorded in no other line may be
/// lost. No call is charged twice or keeps its hold.
async fn outbox_log_torn() -> Verdict {
    let world = Plan::over(LedgerKind::Redis)
        .call_seconds(4)
        .start_warm()
        .await;
    let running = midway(&world, &world.client(0)).await;
    world.redis().kill();
    let waiting = running.end(&world).await;
    not_ready(&world, 0, "").await;
    world.gateway(0).kill9();
    let [log, _] = beside(&world.dir().join("outbox-0.db"));
    let file = fs::OpenOptions::new().write(true).open(&log).unwrap();
    file.set_len(size_of(&log) * 2 / 3).unwrap();
    drop(file);
    for call in &waiting {
        world.expect(call, Charge::Any);
    }
    world.redis().restart().await;
    world.redis_proxy(0).reset();
    world.gateway(0).restart().await;
    warm_up(&world).await;
    world.stated(Bound::lost(
        waiting.len(),
        "calls whose ends the torn log alone knew",
    ));
    world.verdict().await
}

/// A gateway that cannot record charges admits no calls. It reports to the ledger the calls that have ended.
async fn outbox_disk_full() -> Verdict {
    if let Err(why) = run("prlimit", &["--version"]) {
        return skipped(why);
    }
    let world = Plan::over(LedgerKind::Redis)
        .shells(&[SURVIVES_FILE_LIMIT])
        .start_warm()
        .await;
    let client = world.client(0);
    let running = midway(&world, &client).await;
    let [log, _] = beside(&world.dir().join("outbox-0.db"));
    limit_files(world.gateway(0), Some(size_of(&log) + ROOM)).unwrap();
    let mut served = 0;
    loop {
        // The call lasts long enough that the gateway must record a checkpoint.
        let gap = Duration::from_millis(10);
        let call = client.call(FORMATS[served % 2]).tokens(20).gap(gap);
        if !client.ask(&call).await.answered() {
            break;
        }
        served += 1;
        assert!(served < 500, "an outbox with a full disk goes on");
    }
    not_ready(&world, 0, "ledger.outbox").await;
    nothing_sold(&world, &client).await;
    running.end(&world).await;
    world.settled().await;
    world.gateway(0).restart().await;
    warm_up(&world).await;
    world.note(format!("{served} served before it was full"));
    world.verdict().await
}

/// Returns the script of this name as an earlier version would have it: its hash is different.
fn earlier(name: &str) -> redis::Script {
    redis::Script::new(&format!("{}\n-- an earlier version\n", script_text(name)))
}

/// During a rolling upgrade, gateways of two versions use one account, each with its own scripts. Sometimes the server
/// loses all scripts.
async fn two_versions() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).gateways(2).start_warm().await;
    let load = world.load_until_told(6);
    let (reserve, release) = (earlier("reserve"), earlier("release"));
    let mut conn = world.redis().connection().await.unwrap();
    let key = world.key().id.clone();
    for turn in 0..100 {
        let number = RequestNumber::now_v7().to_string();
        let keys = ["", ":x", ":e", ":ex", &format!(":d:{number}")]
            .map(|rest| format!("tg:{{acme}}{rest}"));
        let mut call = reserve.prepare_invoke();
        for key in &keys {
            call.key(key);
        }
        call.arg(&number)
            .arg(&key)
            .arg("5000")
            .arg("5000")
            .arg("60000");
        let (held, _free): (i64, i64) = call.invoke_async(&mut conn).await.unwrap();
        assert_eq!(held, 5000);
        let mut call = release.prepare_invoke();
        for key in &keys {
            call.key(key);
        }
        call.arg(&number);
        let released: i64 = call.invoke_async(&mut conn).await.unwrap();
        assert_eq!(released, 1);
        if turn % 10 == 0 {
            ask::<String>(world.redis(), &["SCRIPT", "FLUSH"]).await;
        }
        world.round();
    }
    let loaded = load.end().await;
    assert_eq!((loaded.refused, loaded.broken), (0, 0), "{loaded:?}");
    world.verdict().await
}

fn may_be_written(path: &Path, may: bool) {
    use std::os::unix::fs::PermissionsExt;
    let mode = if may { 0o600 } else { 0o400 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns shell text that starts a process which must obey file modes, even if root runs the tests.
fn bound_by_modes() -> Result<&'static str, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    may_be_written(&file, false);
    if fs::OpenOptions::new().write(true).open(&file).is_err() {
        return Ok("exec \"$0\" \"$@\"");
    }
    // A process of root must drop the capability that lets it ignore file modes.
    let bound = "exec setpriv --bounding-set -dac_override -- \"$0\" \"$@\"";
    let script = format!("echo x >> {}", file.display());
    match run("sh", &["-c", bound, "sh", "-c", &script]) {
        Ok(_) => Err("modes of files bind nobody here".to_owned()),
        Err(why) if why.contains("denied") => Ok(bound),
        Err(why) => Err(why),
    }
}

/// A gateway does not start on a read-only file. A file that is already open stays writable if its mode changes.
async fn sqlite_read_only() -> Verdict {
    let shell = match bound_by_modes() {
        Ok(shell) => shell,
        Err(why) => return skipped(why),
    };
    let world = Plan::over(LedgerKind::Sqlite)
        .shells(&[shell])
        .start_warm()
        .await;
    let (gateway, books) = (world.gateway(0), world.dir().join("books.db"));
    may_be_written(&books, false);
    warm_up(&world).await;
    let paid = top_up(&world, "acme", "while-read-only", "1").await;
    assert!(paid.is_ok_and(|status| status.is_success()));
    stops_well(gateway, SOON).await;
    fails_to_start(gateway, &["ledger.url", &books.display().to_string()]).await;
    may_be_written(&books, true);
    gateway.restart().await;
    warm_up(&world).await;
    world.note("an open file is written on");
    world.verdict().await
}

/// If the file cannot grow, the gateway admits no more calls. Everything that the gateway has acknowledged is in the
/// file.
async fn sqlite_disk_full() -> Verdict {
    if let Err(why) = run("prlimit", &["--version"]) {
        return skipped(why);
    }
    let world = Plan::over(LedgerKind::Sqlite)
        .shells(&[SURVIVES_FILE_LIMIT])
        .start_warm()
        .await;
    let client = world.client(0);
    let books = world.dir().join("books.db");
    let largest = beside(&books).map(|path| size_of(&path)).into_iter().max();
    let full = largest.unwrap_or_default().max(size_of(&books)) + ROOM;
    limit_files(world.gateway(0), Some(full)).unwrap();
    let mut acknowledged = BTreeSet::new();
    for payment in 0.. {
        assert!(payment < 500, "a ledger with a full disk goes on");
        client.ask(&any_call(&client, payment)).await;
        let id = format!("payment-{payment}");
        match top_up(&world, "acme", &id, "0.01").await {
            Ok(status) if status.is_success() => acknowledged.insert(id),
            _ => break,
        };
    }
    not_ready(&world, 0, "").await;
    nothing_sold(&world, &client).await;
    // There is free space again, but the book in memory still differs from the file, so the gateway must be restarted.
    limit_files(world.gateway(0), None).unwrap();
    nothing_sold(&world, &client).await;
    world.gateway(0).restart().await;
    let lines = world.exported().await;
    let entered: BTreeSet<String> = lines
        .iter()
        .filter(|line| line["kind"] == "entry")
        .filter_map(|line| line["id"].as_str().map(str::to_owned))
        .collect();
    assert!(acknowledged.is_subset(&entered), "I10: {acknowledged:?}");
    warm_up(&world).await;
    world.note(format!(
        "{} top-ups acknowledged, all there",
        acknowledged.len()
    ));
    world.stated(Bound::lost(2, "calls that end as the disk fills up"));
    world.verdict().await
}

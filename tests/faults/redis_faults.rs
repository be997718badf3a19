//! Group 4: Redis is down, slow, emptied, out of memory or disk, promoted with old data, partitioned, or resharded.
//!
//! In almost all of these cases, gateways send again what a server has lost, so no charge may be lost.

use std::{collections::BTreeMap, fs, path::Path, path::PathBuf, time::Duration};

use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    client::Key,
    proxy::{Flow, Then, Way, script},
    steps::{
        FORMATS, SOON, answer, ask, each_kind, fails_to_start, midway, not_ready, nothing_sold,
        run, serves, skipped, stops_well, warm_up, written,
    },
    support::redis::{RedisCluster, RedisServer, free_port, slot_of},
    table::{Case, cases},
    verdict::{Charge, Verdict},
    world::{LedgerKind, Plan, World, address_of},
};

const CLUSTER: LedgerKind = LedgerKind::Cluster {
    primaries: 3,
    replicas: 0,
};
const CLUSTER_WITH_REPLICAS: LedgerKind = LedgerKind::Cluster {
    primaries: 3,
    replicas: 1,
};
/// The Redis keys of the first account's journal and of its holds.
const JOURNAL: &str = "tg:{acme}:j";
const DUE: &str = "tg:{acme}:x";
const HOUR_MS: i64 = 3_600_000;

pub fn cases() -> Vec<Case> {
    cases! {
        "4" "redis down at start" => down_at_start();
        "4" "redis down at reserve" => down_at_reserve();
        "4" "redis down at settle" => down_at_settle(false);
        "4" "redis down at settle, gateway restarted" => down_at_settle(true);
        "4" "redis down at settle, gateway told to end" => stopped_while_down(), long;
        "4" "redis SIGSTOP for 5 s" => stands_still();
        "4" "redis answers late" => answers_late();
        "4" "redis answers lost" => answers_lost();
        "4" "redis FLUSHALL" => flushed();
        "4" "redis out of memory" => out_of_memory();
        "4" "redis AOF disk full" => aof_disk_full();
        "4" "redis AOF truncated" => aof_truncated();
        "4" "redis SCRIPT FLUSH in traffic" => scripts_flushed();
        "4" "redis replica promoted behind" => promoted_behind();
        "4" "redis failover in the middle of load" => promoted_under_load(Plan::over(LedgerKind::RedisReplica));
        "4" "redis sentinel failover in the middle of load" => fails_over(Plan::over(LedgerKind::Sentinel)), long;
        "4" "redis cluster failover in the middle of load" => fails_over(Plan::over(CLUSTER_WITH_REPLICAS)), long;
        "4" "redis minority partition" => minority();
        "4" "redis cluster slots moving" => slots_move(), long;
        "4" "redis cluster, one of three primaries gone" => one_of_three(), long;
        "4" "redis clock one hour ahead" => clock_jumps(HOUR_MS);
        "4" "redis clock one hour behind" => clock_jumps(-HOUR_MS);
        "4" "gateways' clocks two hours apart" => clocks_apart();
    }
}

fn said_in(slowest: Duration) -> String {
    format!("refused within {} ms", slowest.as_millis())
}

/// Waits until all gateways are ready and serve calls.
async fn all_serve(world: &World) {
    for gateway in 0..world.gateways.len() {
        world.ready(gateway, SOON).await;
        serves(&world.client(gateway)).await;
    }
}

/// If a gateway cannot reach its ledger at the start, it exits with an error that states the reason. It neither serves
/// nor waits.
async fn down_at_start() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let gateway = world.gateway(0);
    stops_well(gateway, SOON).await;
    let mut slowest = Duration::ZERO;
    for stands_still in [false, true] {
        if stands_still {
            world.redis().stop_signal();
        } else {
            world.redis().kill();
        }
        let took = fails_to_start(gateway, &["ledger.url", "Redis"]).await;
        slowest = slowest.max(took);
        if stands_still {
            world.redis().continue_signal();
        } else {
            world.redis().restart().await;
        }
        world.round();
    }
    gateway.restart().await;
    warm_up(&world).await;
    world.note(format!("ends after {} ms", slowest.as_millis()));
    world.verdict().await
}

/// No call is served without a ledger: the server is dead, refuses connections, or does not respond on an open
/// connection.
async fn down_at_reserve() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let client = world.client(0);
    let mut slowest = Duration::ZERO;
    for fault in ["dead", "refuses", "silent"] {
        match fault {
            "dead" => world.redis().kill(),
            "refuses" => {
                world.redis_proxy(0).refuse(true);
                world.redis_proxy(0).reset();
            }
            _ => world.redis_proxy(0).set(Way::Down, Flow::Stall),
        }
        slowest = slowest.max(nothing_sold(&world, &client).await);
        not_ready(&world, 0, "").await;
        slowest = slowest.max(nothing_sold(&world, &client).await);
        if fault == "dead" {
            world.redis().restart().await;
        }
        world.heal().await;
        all_serve(&world).await;
        world.settled().await;
        world.round();
    }
    world.note(said_in(slowest));
    world.verdict().await
}

/// Calls that end while Redis is down are charged when Redis is back. A charge is sent by the gateway that has recorded
/// it, or by the next process of this gateway.
async fn down_at_settle(gateway_dies: bool) -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let client = world.client(0);
    let running = midway(&world, &client).await;
    world.redis().kill();
    let ended = running.end(&world).await;
    not_ready(&world, 0, "").await;
    nothing_sold(&world, &client).await;
    if gateway_dies {
        written(&world, 0, &ended, |call| call.ended).await;
        world.gateway(0).kill9();
    }
    world.redis().restart().await;
    if gateway_dies {
        world.redis_proxy(0).reset();
        world.gateway(0).restart().await;
    }
    all_serve(&world).await;
    world.settled().await;
    world.verdict().await
}

/// A draining gateway exits although its ledger is down. The next start sends the charges.
async fn stopped_while_down() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let running = midway(&world, &world.client(0)).await;
    world.redis().kill();
    running.end(&world).await;
    stops_well(world.gateway(0), Duration::from_secs(60)).await;
    world.redis().restart().await;
    world.gateway(0).restart().await;
    warm_up(&world).await;
    world.verdict().await
}

/// Redis is suspended: its sockets stay open, but it does not respond. When it continues, it executes all received
/// commands at once.
async fn stands_still() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).gateways(2).start_warm().await;
    let running = midway(&world, &world.client(0)).await;
    let load = world.load_until_told(4);
    sleep(Duration::from_millis(300)).await;
    world.redis().stop_signal();
    let goes_on = Instant::now() + Duration::from_secs(5);
    running.end(&world).await;
    let mut slowest = Duration::ZERO;
    for gateway in 0..2 {
        not_ready(&world, gateway, "").await;
        slowest = slowest.max(nothing_sold(&world, &world.client(gateway)).await);
    }
    sleep_until(goes_on).await;
    world.redis().continue_signal();
    all_serve(&world).await;
    let loaded = load.end().await;
    assert!(loaded.answered > 0, "{loaded:?}");
    world.note(said_in(slowest));
    world.verdict().await
}

/// Redis responds slowly: within the gateway's timeout, after the timeout, or only after the waiting call was refused.
async fn answers_late() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let client = world.client(0);
    for late in [100, 700] {
        let late = Duration::from_millis(late);
        world.redis_proxy(0).set(Way::Down, Flow::Delay(late));
        let loaded = world.load(4, 16).await;
        assert_eq!(loaded.broken, 0, "{loaded:?}");
        world.heal().await;
        all_serve(&world).await;
        world.settled().await;
        world.round();
    }
    for call in each_kind(&client) {
        all_serve(&world).await;
        world.settled().await;
        let trap = world
            .redis_proxy(0)
            .trap(Way::Up, script("reserve"), Then::HoldAnswer);
        let refused = answer(&client, &call).await;
        trap.sprung().await;
        assert_eq!(refused.status, 503, "{}", refused.text);
        assert_eq!(world.vendor().requested(&call), 0, "I6");
        world.expect(&call, Charge::Nothing);
        trap.open();
        // The hold of the refused call is released (I8), long before it would expire.
        all_serve(&world).await;
        world.settled().await;
        world.round();
    }
    for call in each_kind(&client) {
        all_serve(&world).await;
        world.settled().await;
        let trap = world
            .redis_proxy(0)
            .trap(Way::Up, script("settle"), Then::HoldAnswer);
        let outcome = client.ask(&call).await;
        assert!(outcome.answered(), "{}", outcome.text());
        world.expect(&call, Charge::Full);
        trap.sprung().await;
        // During this pause, the gateway sends the charge again, because the ledger has not answered.
        sleep(Duration::from_millis(800)).await;
        trap.open();
        world.round();
    }
    world.verdict().await
}

/// Redis executes commands, but their responses are lost.
async fn answers_lost() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let client = world.client(0);
    for then in [Then::LoseAnswer, Then::CutAnswer(3), Then::Reset] {
        for call in each_kind(&client) {
            all_serve(&world).await;
            world.settled().await;
            let trap = world.redis_proxy(0).trap(Way::Up, script("reserve"), then);
            let outcome = client.ask(&call).await;
            trap.sprung().await;
            // The gateway may repeat the RESERVE and receive the response, so that the call is served after all.
            if outcome.answered() {
                world.expect(&call, Charge::Full);
            } else {
                assert!(outcome.refused(), "{outcome:?}");
                assert_eq!(world.vendor().requested(&call), 0, "I6");
                world.expect(&call, Charge::Nothing);
            }
            world.round();
        }
    }
    let load = world.load_until_told(4);
    sleep(Duration::from_millis(200)).await;
    world.redis_proxy(0).set(Way::Down, Flow::Discard);
    sleep(Duration::from_millis(1500)).await;
    // After a part of the responses on a connection was lost, the connection must not be used any more.
    world.redis_proxy(0).reset();
    world.heal().await;
    all_serve(&world).await;
    load.end().await;
    world.round();
    world.verdict().await
}

/// A copy of the files of a Redis server.
struct Copied {
    from: PathBuf,
    copy: TempDir,
}

impl Copied {
    fn of(server: &RedisServer) -> Self {
        let copied = Self {
            from: server.dir().join("appendonlydir"),
            copy: tempfile::tempdir().unwrap(),
        };
        copy_files(&copied.from, copied.copy.path());
        copied
    }

    fn put_back(&self) {
        fs::remove_dir_all(&self.from).unwrap();
        fs::create_dir(&self.from).unwrap();
        copy_files(self.copy.path(), &self.from);
    }
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// An emptied server has no keys of callers, but gateways must not refuse callers because their keys are unknown.
/// Settlements of calls are kept until the right data set is back.
async fn flushed() -> Verdict {
    let world = Plan::over(LedgerKind::Redis)
        .gateways(2)
        .redis_args(&["--appendonly", "yes", "--appendfsync", "always"])
        .start()
        .await;
    // No gateway has cached the record of this key.
    let strange = world.account("other", "100").await;
    warm_up(&world).await;
    let running = midway(&world, &world.client(0)).await;
    let copied = Copied::of(world.redis());
    ask::<String>(world.redis(), &["FLUSHALL"]).await;
    let nothing_is_sold = async || {
        for gateway in 0..2 {
            for key in [&strange, world.key()] {
                nothing_sold(&world, &world.client_of(gateway, key)).await;
            }
        }
    };
    nothing_is_sold().await;
    running.end(&world).await;
    for gateway in 0..2 {
        not_ready(&world, gateway, "data set").await;
    }
    nothing_is_sold().await;
    world.redis().kill();
    copied.put_back();
    world.redis().restart().await;
    all_serve(&world).await;
    serves(&world.client_of(1, &strange)).await;
    world.verdict().await
}

/// A server without free memory makes no new hold, but settles existing holds.
async fn out_of_memory() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).start_warm().await;
    let client = world.client(0);
    let running = midway(&world, &client).await;
    ask::<String>(world.redis(), &["CONFIG", "SET", "maxmemory", "1"]).await;
    nothing_sold(&world, &client).await;
    for call in running.end(&world).await {
        let line = world.line_of(&call).await;
        assert_eq!(line.booked, "held", "{line:?}");
    }
    world.settled().await;
    nothing_sold(&world, &client).await;
    ask::<String>(world.redis(), &["CONFIG", "SET", "maxmemory", "0"]).await;
    all_serve(&world).await;
    world.verdict().await
}

/// A file system of a few megabytes, which is unmounted on drop.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Result<Self, String> {
        let disk = tempfile::tempdir().unwrap();
        let at = disk.path().to_str().unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=4m", "tmpfs", at])?;
        Ok(Self(disk))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills the disk of the Redis server.
    fn fill(&self) {
        let mut file = fs::File::create(self.filler()).unwrap();
        while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", self.path().to_str().unwrap_or_default()]);
    }
}

/// A server that cannot write its append-only file refuses writes. The acknowledged writes are still in its memory.
async fn aof_disk_full() -> Verdict {
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(why) => return skipped(format!("no small file system: {why}")),
    };
    let dir = disk.path().to_str().unwrap().to_owned();
    let args = [
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        "--dir",
        &dir,
    ];
    let world = Plan::over(LedgerKind::Redis)
        .redis_args(&args)
        .start_warm()
        .await;
    let client = world.client(0);
    let running = midway(&world, &client).await;
    disk.fill();
    let mut served = 0;
    while client
        .ask(&client.call(FORMATS[served % 2]))
        .await
        .answered()
    {
        served += 1;
        assert!(served < 100, "a server with a full disk goes on");
    }
    nothing_sold(&world, &client).await;
    running.end(&world).await;
    fs::remove_file(disk.filler()).unwrap();
    all_serve(&world).await;
    world.settled().await;
    // After this restart, the file of the server contains all of its data.
    world.redis().restart().await;
    all_serve(&world).await;
    world.note(format!("{served} calls served before it noticed"));
    world.verdict().await
}

/// The end of the server's append-only file is lost, as in a power cut. The server starts without this lost part.
async fn aof_truncated() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).gateways(2).start_warm().await;
    let running = midway(&world, &world.client(0)).await;
    world.load(4, 40).await;
    // The gateways are suspended, so that the loss can be observed before they send the charges again.
    for gateway in 0..2 {
        world.gateway(gateway).stop();
    }
    let before: i64 = ask(world.redis(), &["XLEN", JOURNAL]).await;
    world.redis().kill();
    let files = fs::read_dir(world.redis().dir().join("appendonlydir")).unwrap();
    let file = files
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .unwrap();
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    let whole = file.metadata().unwrap().len();
    // The file now ends in the middle of a command.
    file.set_len(whole * 2 / 3 + 1).unwrap();
    drop(file);
    world.redis().restart().await;
    let after: i64 = ask(world.redis(), &["XLEN", JOURNAL]).await;
    assert!(0 < after && after < before, "{after} of {before} entries");
    for gateway in 0..2 {
        world.gateway(gateway).cont();
    }
    all_serve(&world).await;
    running.end(&world).await;
    world.note(format!("{} charges told again", before - after));
    world.verdict().await
}

/// The server loses its scripts. The next call sends the missing script again, and does not fail.
async fn scripts_flushed() -> Verdict {
    let world = Plan::over(LedgerKind::Redis).gateways(2).start_warm().await;
    let load = world.load_until_told(6);
    for _ in 0..40 {
        ask::<String>(world.redis(), &["SCRIPT", "FLUSH"]).await;
        sleep(Duration::from_millis(25)).await;
        world.round();
    }
    let loaded = load.end().await;
    assert_eq!((loaded.refused, loaded.broken), (0, 0), "{loaded:?}");
    world.verdict().await
}

/// Cuts the replica off from its primary. The replica keeps its data.
async fn cut_off(world: &World) {
    let nobody = free_port().to_string();
    ask::<String>(world.replica(), &["REPLICAOF", "127.0.0.1", &nobody]).await;
}

/// Makes the replica a primary, and redirects the proxies of these gateways to it.
pub(crate) async fn promote(world: &World, gateways: impl IntoIterator<Item = usize>) {
    ask::<String>(world.replica(), &["REPLICAOF", "NO", "ONE"]).await;
    for gateway in gateways {
        world
            .redis_proxy(gateway)
            .set_target(address_of(world.replica()));
        world.redis_proxy(gateway).reset();
    }
}

/// Waits until the replica has this number of holds.
async fn replica_holds(world: &World, holds: i64) {
    let until = Instant::now() + SOON;
    while ask::<i64>(world.replica(), &["ZCARD", DUE]).await != holds {
        assert!(Instant::now() < until, "the replica does not catch up");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A replica without the newest holds and charges takes over. The gateways send the charges again. If the replica does
/// not have the hold of a call, the call is charged from free money.
async fn promoted_behind() -> Verdict {
    let world = Plan::over(LedgerKind::RedisReplica)
        .gateways(2)
        .start_warm()
        .await;
    let known = midway(&world, &world.client(0)).await;
    replica_holds(&world, 4).await;
    cut_off(&world).await;
    let loaded = world.load(4, 40).await;
    assert_eq!(loaded.answered, 40, "{loaded:?}");
    let unknown = midway(&world, &world.client(1)).await;
    let ahead: i64 = ask(world.redis(), &["XLEN", JOURNAL]).await;
    let behind: i64 = ask(world.replica(), &["XLEN", JOURNAL]).await;
    assert!(behind < ahead, "the replica is not behind");
    world.redis().kill();
    promote(&world, 0..2).await;
    all_serve(&world).await;
    for (running, booked) in [(known, "held"), (unknown, "forced")] {
        for call in running.end(&world).await {
            let line = world.line_of(&call).await;
            assert_eq!(line.booked, booked, "{line:?}");
        }
    }
    world.note(format!("{} charges behind, told again", ahead - behind));
    world.verdict().await
}

/// The primary dies during calls of all kinds. Its replica, which has all current data, takes over.
pub(crate) async fn promoted_under_load(plan: Plan) -> Verdict {
    let world = plan.gateways(3).start_warm().await;
    let load = world.load_until_told(8);
    sleep(Duration::from_secs(1)).await;
    world.redis().kill();
    sleep(Duration::from_millis(500)).await;
    promote(&world, 0..3).await;
    all_serve(&world).await;
    sleep(Duration::from_secs(1)).await;
    let loaded = load.end().await;
    world.note(format!(
        "{} served, {} refused",
        loaded.answered, loaded.refused
    ));
    world.verdict().await
}

/// The primary dies, and the Sentinels or the Cluster promote a replica.
pub(crate) async fn fails_over(plan: Plan) -> Verdict {
    let ledger = plan.ledger;
    let world = plan
        .gateways(3)
        .patience(Duration::from_secs(60))
        .start_warm()
        .await;
    let load = world.load_until_told(8);
    sleep(Duration::from_secs(1)).await;
    let died = Instant::now();
    let gone = if ledger == LedgerKind::Sentinel {
        world.redis()
    } else {
        let cluster = world.cluster();
        &cluster.nodes()[cluster.primary_of("acme")]
    };
    gone.kill();
    nothing_or_all(&world).await;
    let away = died.elapsed();
    for gateway in 0..3 {
        world.ready(gateway, Duration::from_secs(30)).await;
    }
    sleep(Duration::from_secs(1)).await;
    let loaded = load.end().await;
    world.note(format!(
        "served again after {} ms, {} served, {} refused",
        away.as_millis(),
        loaded.answered,
        loaded.refused
    ));
    world.verdict().await
}

/// Checks that each gateway refuses all calls until the new primary is ready, and then serves calls.
async fn nothing_or_all(world: &World) {
    let until = Instant::now() + Duration::from_secs(30);
    for gateway in 0..world.gateways.len() {
        let client = world.client(gateway);
        loop {
            let outcome = client.ask(&client.call(FORMATS[0])).await;
            if outcome.answered() {
                break;
            }
            let output = outcome.text();
            assert_eq!(
                outcome.status.map(|status| status.as_u16()),
                Some(503),
                "{output}"
            );
            assert!(Instant::now() < until, "no failover in 30 s: {output}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The old primary and one of the gateways are cut off from the rest. The old primary serves this gateway until it
/// notices that its replicas are unreachable. Then it refuses writes, and the gateway sends to the new primary what it
/// had written to the old one.
async fn minority() -> Verdict {
    let world = Plan::over(LedgerKind::RedisReplica)
        .gateways(2)
        .start_warm()
        .await;
    let cut = midway(&world, &world.client(0)).await;
    let other = midway(&world, &world.client(1)).await;
    replica_holds(&world, 8).await;
    cut_off(&world).await;
    promote(&world, [1]).await;
    let lonely = world.client(0);
    for call in each_kind(&lonely) {
        assert!(lonely.ask(&call).await.answered());
        world.expect(&call, Charge::Full);
    }
    while !ask::<String>(world.redis(), &["INFO", "replication"])
        .await
        .contains("connected_slaves:0")
    {
        sleep(Duration::from_millis(10)).await;
    }
    let few = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    ask::<String>(world.redis(), &few).await;
    nothing_sold(&world, &lonely).await;
    cut.end(&world).await;
    world.ready(1, SOON).await;
    serves(&world.client(1)).await;
    other.end(&world).await;

    let port = world.replica().port().to_string();
    ask::<String>(world.redis(), &["REPLICAOF", "127.0.0.1", &port]).await;
    world.redis_proxy(0).set_target(address_of(world.replica()));
    world.redis_proxy(0).reset();
    all_serve(&world).await;
    world.verdict().await
}

/// Moves a slot with its keys to another server, as `redis-cli --cluster reshard` does.
async fn move_slot(cluster: &RedisCluster, slot: u16, from: usize, to: usize) {
    let nodes = cluster.nodes();
    let slot = slot.to_string();
    let from_id: String = ask(&nodes[from], &["CLUSTER", "MYID"]).await;
    let to_id: String = ask(&nodes[to], &["CLUSTER", "MYID"]).await;
    let importing = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id];
    ask::<String>(&nodes[to], &importing).await;
    let migrating = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id];
    ask::<String>(&nodes[from], &migrating).await;
    loop {
        let some = ["CLUSTER", "GETKEYSINSLOT", &slot, "100"];
        let keys: Vec<String> = ask(&nodes[from], &some).await;
        if keys.is_empty() {
            break;
        }
        let moved = nodes[from].migrate(&nodes[to], &keys).await;
        moved.unwrap();
    }
    let rest = (0..nodes.len()).filter(|node| *node != to && *node != from);
    for node in [to, from].into_iter().chain(rest) {
        ask::<String>(&nodes[node], &["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
    }
}

/// The slot of the account is moved across all three servers while calls continue.
async fn slots_move() -> Verdict {
    let world = Plan::over(CLUSTER).gateways(3).start_warm().await;
    let running = midway(&world, &world.client(0)).await;
    let load = world.load_until_told(6);
    let mut at = world.cluster().primary_of("acme");
    for _ in 0..6 {
        sleep(Duration::from_millis(400)).await;
        let to = (at + 1) % 3;
        move_slot(world.cluster(), slot_of("acme"), at, to).await;
        at = to;
        world.round();
    }
    all_serve(&world).await;
    running.end(&world).await;
    let loaded = load.end().await;
    assert!(loaded.answered > loaded.refused, "{loaded:?}");
    world.note(format!(
        "{} served, {} refused",
        loaded.answered, loaded.refused
    ));
    world.verdict().await
}

/// One of three servers is down. Accounts on the other servers are served.
async fn one_of_three() -> Verdict {
    let world = Plan::over(CLUSTER).gateways(2).start().await;
    let cluster = world.cluster();
    let gone = cluster.primary_of("acme");
    let mut keys: BTreeMap<usize, Key> = BTreeMap::from([(gone, world.key().clone())]);
    for turn in 0.. {
        if keys.len() == 3 {
            break;
        }
        let id = format!("a{turn}");
        let at = cluster.primary_of(&id);
        if keys.contains_key(&at) {
            continue;
        }
        let key = world.account(&id, "1000").await;
        keys.insert(at, key);
    }
    // The records of keys may be on any of the three servers. Gateways cache them for some seconds, so the case loads
    // them before the fault.
    for gateway in 0..2 {
        for key in keys.values() {
            serves(&world.client_of(gateway, key)).await;
        }
    }
    let running = midway(&world, &world.client(0)).await;
    cluster.nodes()[gone].kill();
    for (gateway, format) in FORMATS.into_iter().enumerate() {
        for (at, key) in &keys {
            let client = world.client_of(gateway, key);
            if *at != gone {
                let outcome = client.ask(&client.call(format)).await;
                assert!(outcome.answered(), "{}", outcome.text());
            }
        }
    }
    for gateway in 0..2 {
        nothing_sold(&world, &world.client(gateway)).await;
    }
    running.end(&world).await;
    cluster.nodes()[gone].restart().await;
    for gateway in 0..2 {
        world.ready(gateway, SOON).await;
        for key in keys.values() {
            serves(&world.client_of(gateway, key)).await;
        }
    }
    world.verdict().await
}

/// The clock of the server jumps. The clock affects only the times at which holds expire, so the test moves the expiry
/// times in the opposite direction instead.
async fn clock_jumps(by_ms: i64) -> Verdict {
    let world = Plan::over(LedgerKind::Redis).gateways(2).start_warm().await;
    let running = midway(&world, &world.client(0)).await;
    let holds: Vec<String> = ask(world.redis(), &["ZRANGE", DUE, "0", "-1"]).await;
    assert_eq!(holds.len(), 4);
    let other_way = (-by_ms).to_string();
    for hold in &holds {
        let moved = ["ZINCRBY", DUE, &other_way, hold];
        ask::<f64>(world.redis(), &moved).await;
    }
    let booked = if by_ms > 0 {
        world.nothing_is_held().await;
        "late"
    } else {
        "held"
    };
    for call in running.end(&world).await {
        let line = world.line_of(&call).await;
        assert_eq!(line.booked, booked, "{line:?}");
    }
    world.verdict().await
}

/// The clocks of the gateways are off by an hour. This has no effect, because only the server's time counts.
async fn clocks_apart() -> Verdict {
    if let Err(why) = run("faketime", &["--version"]) {
        return skipped(format!("no other clock to be had: {why}"));
    }
    let clocks = ["+1h", "-1h"].map(|by| {
        // The library is preloaded directly. With the command `faketime`, the test would kill that command and not the
        // gateway.
        let preload = "LD_PRELOAD=$(faketime -f +0 sh -c 'echo $LD_PRELOAD')";
        format!("{preload} FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME={by} exec \"$0\" \"$@\"")
    });
    let world = Plan::over(LedgerKind::Redis)
        .gateways(2)
        .shells(&[&clocks[0], &clocks[1]])
        .start_warm()
        .await;
    for gateway in 0..2 {
        let running = midway(&world, &world.client(gateway)).await;
        world.redis().kill();
        let ended = running.end(&world).await;
        not_ready(&world, gateway, "").await;
        written(&world, gateway, &ended, |call| call.ended).await;
        world.gateway(gateway).kill9();
        world.redis().restart().await;
        world.gateway(gateway).restart().await;
        all_serve(&world).await;
        world.round();
    }
    world.load(4, 40).await;
    world.verdict().await
}

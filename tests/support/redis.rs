//! Redis servers for one test: a single server, a server with replicas, a server under Sentinels, a Cluster. All use
//! free ports of 127.0.0.1, and are stopped on drop.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use redis::{ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, aio::MultiplexedConnection};
use tempfile::TempDir;

/// The maximum time that an operation of a server, such as a start or a failover, may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which a test checks whether an operation of a server has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// If a primary of a Cluster has not responded for this number of milliseconds, the Cluster declares it failed and
/// promotes a replica.
const GIVEN_UP_AFTER_MS: &str = "1000";

/// The configuration file of this repository for an operator's Redis servers.
const OPERATORS_CONF: &str = include_str!("../../deploy/redis.conf");
/// A user with all rights on a server, for tests, for other servers and for Sentinels. A connection without a login has
/// the rights of a gateway.
const OPERATOR: (&str, &str) = ("operator", "password-of-the-tests");

/// A redis-server, without persistence unless it is requested. Gateways have the rights that `deploy/redis.conf` gives
/// them.
#[derive(Debug)]
pub struct RedisServer {
    child: Mutex<Child>,
    port: u16,
    args: Vec<String>,
    dir: TempDir,
}

impl RedisServer {
    /// Starts a server that loses its data when it stops.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server on the port of a server that has stopped. The new server loses its data when it stops.
    pub async fn start_on(port: u16) -> Self {
        let server = Self::spawn(port, &[]);
        server.answers().await;
        server
    }

    /// Starts a server with additional options, for example `["--appendonly", "yes"]`. They override the usual options.
    pub async fn start_with(args: &[&str]) -> Self {
        let server = Self::spawn(free_port(), args);
        server.answers().await;
        server
    }

    /// Starts a server whose data survives a kill: each write is on the disk before it is acknowledged.
    pub async fn start_durable() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await
    }

    /// Starts a server that is configured to keep money, like an operator's server: with an append-only file that is
    /// flushed every second. Rewrites of the file are off, because they could happen at any time.
    pub async fn keeping_money(dir: TempDir) -> Self {
        let args = ["--appendonly", "yes", "--appendfsync", "everysec"];
        let never = ["--auto-aof-rewrite-percentage", "0"];
        let server = Self::spawn_in(dir, free_port(), &[args.as_slice(), &never].concat());
        server.answers().await;
        server
    }

    /// Returns whether redis-server is installed on this machine.
    pub fn is_installed() -> bool {
        let mut server = Command::new("redis-server");
        server
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        server.status().is_ok_and(|status| status.success())
    }

    /// Starts a replica, and waits until it has all data of its primary.
    pub async fn replica_of(primary: &Self) -> Self {
        let port = primary.port.to_string();
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &port]).await;
        eventually("the replica has caught up", async || {
            let info: String = replica.ask(&["INFO", "replication"]).await.ok()?;
            info.contains("master_link_status:up").then_some(())
        })
        .await;
        replica
    }

    fn spawn(port: u16, args: &[&str]) -> Self {
        Self::spawn_in(tempfile::tempdir().unwrap(), port, args)
    }

    fn spawn_in(dir: TempDir, port: u16, args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self {
            child: Mutex::new(redis_server(port, &args, dir.path())),
            port,
            args,
            dir,
        }
    }

    /// Returns the URL of the server for a gateway.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Returns the host and port of the server.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the folder with the server's files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// Kills the server, and waits until its process has ended.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        child.wait().unwrap();
    }

    /// Suspends the process with SIGSTOP: its sockets stay open, but the process sends nothing.
    pub fn stop_signal(&self) {
        self.signal("STOP");
    }

    /// Continues the suspended process with SIGCONT.
    pub fn continue_signal(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.pid());
        let sent = Command::new("sh").args(["-c", &kill]).status();
        assert!(sent.unwrap().success(), "{kill}");
    }

    /// Starts the server again at the same address, with the data in its files. If it is still running, kills it first.
    pub async fn restart(&self) {
        self.start_again();
        self.answers().await;
    }

    /// Starts the server again. Returns while the server is still loading its data.
    pub async fn restart_loading(&self) {
        self.start_again();
        eventually("redis-server loads its data", async || {
            let error = self.ask::<String>(&["PING"]).await.err()?;
            let loads = error.kind() == ErrorKind::Server(ServerErrorKind::BusyLoading);
            loads.then_some(())
        })
        .await;
    }

    fn start_again(&self) {
        self.kill();
        *self.child.lock().unwrap() = redis_server(self.port, &self.args, self.dir.path());
    }

    /// Opens a connection with all rights, unlike a gateway's connection.
    pub async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let (name, password) = OPERATOR;
        let client = redis::Client::open(format!("redis://{name}:{password}@{}", self.address()))?;
        client.get_multiplexed_async_connection().await
    }

    /// Sends one command on a new connection with all rights.
    pub async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut conn = self.connection().await?;
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query_async(&mut conn).await
    }

    /// Moves keys to another server of the Cluster.
    pub async fn migrate(&self, to: &Self, keys: &[String]) -> RedisResult<String> {
        let port = to.port.to_string();
        let (name, password) = OPERATOR;
        let login = ["AUTH2", name, password, "KEYS"];
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
        words.extend(login.into_iter().chain(keys.iter().map(String::as_str)));
        self.ask(&words).await
    }

    async fn answers(&self) {
        eventually("redis-server answers", async || {
            let ended = self.child.lock().unwrap().try_wait().unwrap();
            assert_eq!(
                ended, None,
                "redis-server has ended: its port is {}",
                self.port
            );
            self.ask::<String>(&["PING"]).await.ok()
        })
        .await;
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Returns the rights of a gateway, which are those of the user in `deploy/redis.conf`.
fn rights() -> impl Iterator<Item = &'static str> {
    let line = OPERATORS_CONF
        .lines()
        .find_map(|line| line.strip_prefix("user tollgate on #"));
    let (_digest, rights) = line.unwrap().split_once(' ').unwrap();
    rights.split(' ')
}

fn redis_server(port: u16, args: &[String], dir: &Path) -> Child {
    let (name, password) = OPERATOR;
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(["--maxmemory-policy", "noeviction"])
        // The primary synchronises a replica immediately. By default, it would wait five seconds for further replicas.
        .args(["--repl-diskless-sync-delay", "0", "--dir"])
        .arg(dir)
        .args(["--user", "default", "on", "nopass"])
        .args(rights())
        .args(["--user", name, "on", &format!(">{password}")])
        .args(["~*", "&*", "+@all", "--masteruser", name, "--masterauth"])
        .arg(password)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed (tests/run does it)")
}

/// A Redis Cluster, created by `redis-cli --cluster create`. A node serves its slots even if other nodes are down
/// (`cluster-require-full-coverage no`). The Cluster declares a primary failed after one second.
#[derive(Debug)]
pub struct RedisCluster {
    /// The nodes of the Cluster: first the original primaries, then their replicas.
    nodes: Vec<RedisServer>,
    primaries: usize,
}

impl RedisCluster {
    /// Starts this number of primaries, each with this number of replicas. All slots are assigned.
    pub async fn start(primaries: usize, replicas_each: usize) -> Self {
        Self::start_with(primaries, replicas_each, &[]).await
    }

    /// Starts a Cluster as `start` does, with additional options for each node.
    pub async fn start_with(primaries: usize, replicas_each: usize, args: &[&str]) -> Self {
        let nodes: Vec<(RedisServer, u16)> = (0..primaries * (1 + replicas_each))
            .map(|_| {
                let bus = free_port();
                let bus_text = bus.to_string();
                let mut all = vec![
                    "--cluster-enabled",
                    "yes",
                    "--cluster-config-file",
                    "nodes.conf",
                    "--cluster-port",
                    &bus_text,
                    "--cluster-require-full-coverage",
                    "no",
                    "--cluster-replica-validity-factor",
                    "0",
                ];
                all.extend(args);
                (RedisServer::spawn(free_port(), &all), bus)
            })
            .collect();
        let mut addresses = Vec::new();
        for (node, bus) in &nodes {
            node.answers().await;
            addresses.push(format!("{}@{bus}", node.address()));
        }
        create(addresses, replicas_each).await;
        let nodes = nodes.into_iter().map(|(node, _)| node).collect();
        let cluster = Self { nodes, primaries };
        cluster.is_whole(replicas_each).await;
        // This option is set only after the start. If it applied earlier, a primary that pauses for a second on a busy
        // machine would be replaced during the start.
        for node in cluster.nodes() {
            let words = ["CONFIG", "SET", "cluster-node-timeout", GIVEN_UP_AFTER_MS];
            node.ask::<String>(&words).await.unwrap();
        }
        cluster
    }

    /// Returns the URL for a gateway, which contains all primaries.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes[..self.primaries]
            .iter()
            .map(RedisServer::address)
            .collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// Returns the nodes: first the original primaries, then their replicas.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the index of the node that is now the primary of an account's slot.
    pub fn primary_of(&self, account: &str) -> usize {
        self.primary_of_slot(slot_of(account))
            .unwrap_or_else(|| panic!("no node is the primary of {account}"))
    }

    /// Returns the index of the node that is now the primary of a slot, as a connected node reports it. Returns `None`
    /// from the time when the primary was declared failed until another node replaces it.
    pub fn primary_of_slot(&self, slot: u16) -> Option<usize> {
        self.nodes.iter().find_map(|node| {
            let seen = seen_by(node.port).ok()?;
            let port = seen.lines().find_map(|line| owner(line, slot))?;
            self.nodes.iter().position(|node| node.port == port)
        })
    }

    /// Returns the first of the accounts `a0`, `a1` and so on whose slot is on this node.
    pub fn account_on(&self, index: usize) -> String {
        (0..1000)
            .map(|n| format!("a{n}"))
            .find(|account| self.primary_of(account) == index)
            .unwrap_or_else(|| panic!("node {index} has no slots"))
    }

    /// Deletes the data of every primary of the Cluster.
    pub async fn flush(&self) {
        for node in &self.nodes {
            let role: Vec<redis::Value> = node.ask(&["ROLE"]).await.unwrap();
            let primary = matches!(&role[0], redis::Value::BulkString(role) if role == b"master");
            if primary {
                node.ask::<String>(&["FLUSHALL"]).await.unwrap();
            }
        }
    }

    /// Waits until every node reports that every slot is served and that every replica is connected.
    async fn is_whole(&self, replicas_each: usize) {
        for (index, node) in self.nodes.iter().enumerate() {
            eventually("the cluster is whole", async || {
                let info: String = node.ask(&["CLUSTER", "INFO"]).await.ok()?;
                let whole = info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_ok:16384")
                    && info.contains(&format!("cluster_known_nodes:{}", self.nodes.len()));
                let info: String = node.ask(&["INFO", "replication"]).await.ok()?;
                let in_place = if index < self.primaries {
                    info.contains(&format!("connected_slaves:{replicas_each}"))
                } else {
                    info.contains("master_link_status:up")
                };
                (whole && in_place).then_some(())
            })
            .await;
        }
    }
}

async fn create(addresses: Vec<String>, replicas_each: usize) {
    let created = tokio::task::spawn_blocking(move || {
        let (name, password) = OPERATOR;
        Command::new("redis-cli")
            .args(["--no-auth-warning", "--user", name, "--pass", password])
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", &replicas_each.to_string()])
            .arg("--cluster-yes")
            .stdin(Stdio::null())
            .output()
    });
    let output = created
        .await
        .unwrap()
        .expect("redis-cli is installed (tests/run does it)");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns the response of a node to `CLUSTER NODES`. Fails if the node is stopped.
fn seen_by(port: u16) -> io::Result<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let (name, password) = OPERATOR;
    write!(
        socket,
        "AUTH {name} {password}\r\nCLUSTER NODES\r\nQUIT\r\n"
    )?;
    let mut seen = String::new();
    socket.read_to_string(&mut seen)?;
    Ok(seen)
}

/// Returns the port in a line of `CLUSTER NODES` if the line is about the primary of the slot: `<id>
/// <host>:<port>@<bus> <flags> - <ping> <pong> <epoch> <link> <slot> <slot>-<slot> ...`.
fn owner(line: &str, slot: u16) -> Option<u16> {
    let mut fields = line.split(' ');
    let address = fields.nth(1)?.split_once('@')?.0;
    let flags: BTreeSet<&str> = fields.next()?.split(',').collect();
    if !flags.contains("master") || flags.contains("fail") {
        return None;
    }
    let owns = fields.skip(5).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.parse::<u16>(), last.parse::<u16>()) {
            (Ok(first), Ok(last)) => (first..=last).contains(&slot),
            _ => false,
        }
    });
    let port = address.rsplit_once(':')?.1.parse().ok()?;
    owns.then_some(port)
}

/// Returns the slot of an account's keys: the CRC-16 of the account's id, which is in braces in each key.
pub fn slot_of(account: &str) -> u16 {
    let crc = account.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % 16_384
}

/// Three Sentinels that monitor one primary. They promote a replica one second after the primary was lost.
#[derive(Debug)]
pub struct RedisSentinels {
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RedisSentinels {
    /// The name that the Sentinels use for the primary.
    pub const NAME: &str = "mymaster";

    /// Starts the Sentinels. Waits until they have found each other and all current replicas of the primary.
    pub async fn start(primary: &RedisServer) -> Self {
        let info: String = primary.ask(&["INFO", "replication"]).await.unwrap();
        let replicas: u32 = info
            .lines()
            .find_map(|line| line.strip_prefix("connected_slaves:"))
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let sentinels: Vec<Sentinel> = (0..3).map(|_| sentinel(primary.port)).collect();
        let started = Self { sentinels };
        for sentinel in &started.sentinels {
            eventually("the Sentinel knows everybody", async || {
                let fields: Vec<String> = ask_sentinel(sentinel.port, "MASTER").await.ok()?;
                let field = |name: &str| {
                    let mut pairs = fields.chunks(2);
                    pairs.find_map(|pair| (pair[0] == name).then(|| pair[1].clone()))
                };
                let all = field("num-slaves")? == replicas.to_string()
                    && field("num-other-sentinels")? == "2"
                    && field("flags")? == "master";
                all.then_some(())
            })
            .await;
        }
        started
    }

    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port))
            .collect();
        format!("redis-sentinel://{}/{}", hosts.join(","), Self::NAME)
    }

    /// Returns the port of the server that most of the Sentinels consider the primary.
    pub async fn primary(&self) -> u16 {
        eventually("the Sentinels agree", async || {
            let mut ports: Vec<u16> = Vec::new();
            for sentinel in &self.sentinels {
                let answer = ask_sentinel(sentinel.port, "GET-MASTER-ADDR-BY-NAME").await;
                ports.push(answer.ok()?.get(1)?.parse().ok()?);
            }
            ports
                .windows(2)
                .all(|pair| pair[0] == pair[1])
                .then(|| ports[0])
        })
        .await
    }
}

async fn ask_sentinel(port: u16, word: &str) -> RedisResult<Vec<String>> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut conn = client.get_multiplexed_async_connection().await?;
    redis::cmd("SENTINEL")
        .arg(word)
        .arg(RedisSentinels::NAME)
        .query_async(&mut conn)
        .await
}

fn sentinel(primary: u16) -> Sentinel {
    let (dir, port, name) = (
        tempfile::tempdir().unwrap(),
        free_port(),
        RedisSentinels::NAME,
    );
    let (user, password) = OPERATOR;
    // Sentinels write their state into their configuration files.
    let file = dir.path().join("sentinel.conf");
    let config = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\n\
         sentinel monitor {name} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {name} 1000\n\
         sentinel failover-timeout {name} 3000\n\
         sentinel parallel-syncs {name} 1\n\
         sentinel auth-user {name} {user}\n\
         sentinel auth-pass {name} {password}\n",
        dir.path().display()
    );
    std::fs::write(&file, config).unwrap();
    let child = Command::new("redis-server")
        .arg(&file)
        .arg("--sentinel")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed (tests/run does it)");
    Sentinel {
        child,
        port,
        _dir: dir,
    }
}

/// Returns a port on which no process listens. Each port is returned only once. All ports are below the ephemeral
/// ports, so that no outgoing connection takes a port before the server starts.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const SPAN: u32 = 22_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Test binaries that run at the same time start with different ports.
    let begin = std::process::id().wrapping_mul(1009);
    (0..SPAN)
        .map(|_| begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)))
        .map(|nth| u16::try_from(FIRST + nth % SPAN).unwrap())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("one of so many ports is free")
}

/// Repeats `probe` until it returns a result. The time limit is long enough for a failover.
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let patience = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(value) = probe().await {
                return value;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
    patience
        .await
        .unwrap_or_else(|_| panic!("{PATIENCE:?}, and it is still not true that {what}"))
}

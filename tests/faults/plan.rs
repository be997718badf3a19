//! The plan of a fault case: its processes, and the configuration of its gateways.

use std::{net::SocketAddr, path::Path, time::Duration};

use crate::{steps::warm_up, support::config::ConfigText, world::World};

/// The kind of ledger that the gateways of a case use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerKind {
    /// A ledger in a file, which one gateway uses.
    Sqlite,
    /// A ledger in one Redis server. Each gateway reaches it through a separate proxy.
    Redis,
    /// A Redis server and its replica. Each gateway has a separate proxy, which leads to the primary.
    RedisReplica,
    /// A primary, its replica, and three Sentinels that report the address of the primary to gateways. There are no
    /// proxies.
    Sentinel,
    /// A Redis Cluster, which gateways reach without proxies.
    Cluster { primaries: usize, replicas: usize },
}

impl LedgerKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::RedisReplica => "redis with replica",
            Self::Sentinel => "redis sentinel",
            Self::Cluster { .. } => "redis cluster",
        }
    }
}

/// The ledger, the gateways and the settings that a case chooses for its [`World`](crate::world::World).
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) ledger: LedgerKind,
    pub(crate) gateways: usize,
    pub(crate) edits: Vec<(String, String)>,
    pub(crate) rubles: u64,
    pub(crate) shells: Vec<String>,
    pub(crate) redis_args: Vec<String>,
    pub(crate) patience: Duration,
}

impl Plan {
    pub fn over(ledger: LedgerKind) -> Self {
        let redis_args = ["--appendonly", "yes", "--appendfsync", "everysec"];
        Self {
            ledger,
            gateways: 1,
            edits: Vec::new(),
            rubles: 1_000_000,
            shells: Vec::new(),
            redis_args: redis_args.map(str::to_owned).to_vec(),
            patience: Duration::from_secs(20),
        }
    }

    pub fn gateways(mut self, count: usize) -> Self {
        assert!(
            count == 1 || self.ledger != LedgerKind::Sqlite,
            "a file has one gateway"
        );
        self.gateways = count;
        self
    }

    /// Replaces a part of the text that [`config_text`] returns.
    pub fn edit(mut self, from: &str, to: &str) -> Self {
        self.edits.push((from.to_owned(), to.to_owned()));
        self
    }

    /// Limits the duration of calls to this number of seconds. The hold of a call lasts one second longer than this
    /// limit.
    pub fn call_seconds(self, seconds: u64) -> Self {
        self.edit("call_seconds = 900", &format!("call_seconds = {seconds}"))
            .edit("hold_grace_seconds = 60", "hold_grace_seconds = 1")
    }

    /// Lets the gateways grant holds from leases.
    pub fn leases(self) -> Self {
        self.edit("lease_ms_max = 0", "lease_ms_max = 1000")
    }

    pub fn drain_seconds(self, seconds: u64) -> Self {
        self.edit("drain_seconds = 30", &format!("drain_seconds = {seconds}"))
    }

    /// Sets the first payment of the account `acme`, in rubles.
    pub fn rubles(mut self, rubles: u64) -> Self {
        self.rubles = rubles;
        self
    }

    /// Sets the maximum number of open files of a gateway's process.
    pub fn nofile(self, files: u64) -> Self {
        self.shells(&[&format!("ulimit -n {files}; exec \"$0\" \"$@\"")])
    }

    /// Starts gateways with a shell whose text ends with `exec … "$0" "$@"`. If there are several texts, each gateway
    /// gets its own.
    pub fn shells(mut self, texts: &[&str]) -> Self {
        self.shells = texts.iter().map(|text| (*text).to_owned()).collect();
        self
    }

    pub(crate) fn shell_of(&self, gateway: usize) -> Option<String> {
        let turn = gateway.checked_rem(self.shells.len())?;
        Some(self.shells[turn].clone())
    }

    /// Sets the options of the Redis servers. They replace the usual options for an append-only file.
    pub fn redis_args(mut self, args: &[&str]) -> Self {
        self.redis_args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self
    }

    /// Sets the maximum duration of the drain at the end of the case.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub async fn start(self) -> World {
        World::start(self).await
    }

    /// Starts the gateways, and makes the calls of [`warm_up`].
    pub async fn start_warm(self) -> World {
        let world = self.start().await;
        warm_up(&world).await;
        world
    }
}

/// Returns the configuration of a gateway: the shared text with every vendor twice, a Responses vendor with the prices
/// of the Chat Completions vendor, and limits that a case may change.
pub fn config_text(vendor: SocketAddr, ledger: &str, outbox: &Path) -> String {
    let responses = |text: ConfigText, suffix: &str, more: &str| {
        let name = format!("responses-vendor{suffix}");
        let route = (name.as_str(), "vendor-responses-1");
        text.vendor(&name, "responses", &format!("http://{vendor}/v1"), more)
            .model(
                &format!("responses{suffix}"),
                ["1", "0.1", "2", "0.5"],
                4000,
                route,
            )
    };
    let (cancel, drain) = ("on_disconnect = \"cancel\"", "on_disconnect = \"drain\"");
    let text = ConfigText::over(ledger)
        .admin()
        .outbox(outbox)
        .ledger("outbox_calls_max = 100000")
        .ledger("outbox_age_max_seconds = 3600")
        .ledger("hold_grace_seconds = 60")
        .ledger("lease_ms_max = 0")
        .limit("connections_per_address_max = 100000")
        .limit("in_flight_max = 10000")
        .limit("call_seconds = 900")
        .limit("drain_seconds = 30")
        .chat_and_messages(vendor, "", cancel)
        .chat_and_messages(vendor, "-drained", drain);
    let text = responses(text, "", cancel);
    responses(text, "-drained", drain).text()
}

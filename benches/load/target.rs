//! The targets that calls are sent to: the bare proxy, gateways, and other proxies.

use std::{
    io,
    net::SocketAddr,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use tempfile::TempDir;
use tokio::time::Instant;
use tollgate::load::{self, Call, Client, Failures, Histogram, Origin, Prepared, Record, Terms};

use crate::{
    child::Child,
    cpu::Processes,
    fixtures::{
        Canned, directory, gateway_path, one_thread, redis_server, support::random::Random,
        support::redis::RedisServer, vendor::unix_ns,
    },
    options::{Ledger, Options, RoleName},
    scenario::{Measure, Pace, Scenario},
};

/// The number of connections that are opened before a paced load begins. More are opened if needed.
const PACED_CONNECTIONS: u32 = 16;
/// The maximum duration of a call. If a call takes longer, the run ends with an error.
const CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// The result of one load on one target.
pub(crate) struct Seen {
    pub(crate) answered: u64,
    pub(crate) elapsed: Duration,
    /// The durations that the scenario measures.
    pub(crate) measured: Histogram,
    /// The CPU time that the processes of the target have used.
    pub(crate) cpu: Duration,
    /// The CPU time that the ledger's Redis server has used. It is included in `cpu`.
    pub(crate) server_cpu: Duration,
}

/// The vendor, and the targets that forward calls to it.
pub(crate) struct Field {
    /// The bare proxy is the first target. The gateways follow, and then the targets that are only for comparison.
    pub(crate) targets: Vec<Target>,
    _vendor: Child,
}

impl Field {
    pub(crate) fn start(options: &Options) -> anyhow::Result<Self> {
        let vendor = Child::start(RoleName::Vendor, &[])?;
        let address = vendor.address()?;
        let mut targets = vec![Target::bare(address)?];
        for ledger in ledgers(options)? {
            targets.push(Target::gateway(address, ledger)?);
        }
        if is_installed("nginx") {
            targets.push(Target::peer("nginx", address)?);
        }
        targets.push(Target::nothing(address));
        Ok(Self {
            targets,
            _vendor: vendor,
        })
    }

    /// Starts the bare proxy, a gateway on SQLite, and the programs that `benches/peers` starts.
    pub(crate) fn with_peers() -> anyhow::Result<Self> {
        let vendor = Child::start(RoleName::Vendor, &[])?;
        let address = vendor.address()?;
        let mut targets = vec![
            Target::bare(address)?,
            Target::gateway(address, Ledger::Sqlite)?,
        ];
        for name in ["nginx", "haproxy", "portkey", "litellm"] {
            eprintln!("load: starting {name}");
            targets.push(Target::peer(name, address)?);
        }
        Ok(Self {
            targets,
            _vendor: vendor,
        })
    }

    /// Drains the gateways, and checks that each has charged every call that it has answered.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        for target in &mut self.targets {
            target.stop()?;
        }
        Ok(())
    }
}

/// Returns the gateways to run: the requested ones, or one for each ledger that an operator would choose. The list is
/// never empty.
pub(crate) fn ledgers(options: &Options) -> anyhow::Result<Vec<Ledger>> {
    let has_redis = RedisServer::is_installed();
    if !options.targets.is_empty() {
        let needs_redis = options.targets.iter().any(|ledger| ledger.has_server());
        ensure!(
            has_redis || !needs_redis,
            "--targets redis and leases need redis-server on the PATH: install it, or leave them out"
        );
        return Ok(options.targets.clone());
    }
    if has_redis {
        Ok(vec![Ledger::Sqlite, Ledger::Redis, Ledger::Leases])
    } else {
        eprintln!("load: no redis-server on the PATH, so there are no figures with Redis");
        Ok(vec![Ledger::Sqlite])
    }
}

fn is_installed(program: &str) -> bool {
    let version = Command::new(program)
        .arg("-v")
        .stderr(Stdio::null())
        .status();
    version.is_ok_and(|status| status.success())
}

/// A proxy that is put under load, or the vendor itself.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    /// The processes whose CPU time counts as the cost of a call.
    pub(crate) processes: Processes,
    /// Those of `processes` that are the Redis server of the ledger. Empty if the ledger is not Redis.
    pub(crate) server: Processes,
    /// The key for the gateway; `None` for a proxy that needs no key.
    key: Option<String>,
    /// The path of calls, if the target does not forward the vendor's path.
    path: Option<String>,
    /// Headers that give the vendor's address to a target that needs it.
    headers: HeaderMap,
    /// The number of calls that the target has answered.
    answered: u64,
    /// Whether the target is only for comparison. Such a target is not measured in scenarios with a fixed pace.
    pub(crate) beside: bool,
    /// The process that is the proxy, or that starts it; `None` if the target is the vendor itself.
    child: Option<Child>,
    // Fields are dropped in the order of their declaration. The process uses the next two fields, so these must be
    // dropped after it.
    _directory: Option<TempDir>,
    _redis: Option<RedisServer>,
}

impl Target {
    pub(crate) fn bare(vendor: SocketAddr) -> anyhow::Result<Self> {
        let child = Child::start(RoleName::Bare, &[("--vendor", &vendor.to_string())])?;
        Ok(Self {
            name: "bare",
            address: child.address()?,
            processes: Processes::new([child.pid()]),
            beside: false,
            child: Some(child),
            ..Self::nothing(vendor)
        })
    }

    /// Starts another proxy or gateway with `benches/peers`. Its charges are not checked.
    pub(crate) fn peer(name: &'static str, vendor: SocketAddr) -> anyhow::Result<Self> {
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers"));
        command.args([name, &vendor.to_string()]);
        let child = Child::run(name, command)?;
        let pids: Result<Vec<u32>, _> =
            child.reported("pids")?.split(' ').map(str::parse).collect();
        let mut headers = HeaderMap::new();
        for (header, value) in child.all_said("header ") {
            headers.insert(HeaderName::try_from(header)?, value.try_into()?);
        }
        Ok(Self {
            name,
            address: child.address()?,
            processes: Processes::new(pids?),
            path: child.reported("path").ok().map(ToOwned::to_owned),
            headers,
            child: Some(child),
            ..Self::nothing(vendor)
        })
    }

    /// Returns the vendor itself as a target, without a proxy. Measuring this target shows the highest rate of calls
    /// that client and vendor can reach on this machine.
    pub(crate) fn nothing(vendor: SocketAddr) -> Self {
        Self {
            name: "nothing",
            address: vendor,
            processes: Processes::new([]),
            server: Processes::new([]),
            key: None,
            path: None,
            headers: HeaderMap::new(),
            answered: 0,
            beside: true,
            child: None,
            _directory: None,
            _redis: None,
        }
    }

    pub(crate) fn gateway(vendor: SocketAddr, ledger: Ledger) -> anyhow::Result<Self> {
        let server = if ledger.has_server() {
            Some(
                one_thread()?
                    .block_on(redis_server())
                    .context("redis-server")?,
            )
        } else {
            None
        };
        let url = match &server {
            Some(server) => server.url(),
            None if ledger == Ledger::Memory => "memory:".to_owned(),
            None => "sqlite:ledger.db".to_owned(),
        };
        let more = match ledger {
            Ledger::Leases => &[LEASE_MS][..],
            _ => &[],
        };
        Self::on(ledger.name(), vendor, &url, more, server)
    }

    /// Starts a gateway on a ledger, with its files in a separate folder. If only this gateway uses the ledger's Redis
    /// server, the server's CPU time counts as part of a call's CPU time.
    fn on(
        name: &'static str,
        vendor: SocketAddr,
        ledger: &str,
        more: &[(&str, &str)],
        server: Option<RedisServer>,
    ) -> anyhow::Result<Self> {
        let place = TempDir::new_in(directory()?)?;
        let vendor = vendor.to_string();
        let mut args = vec![("--vendor", vendor.as_str()), ("--ledger", ledger)];
        args.extend_from_slice(more);
        let child = Child::start_in(place.path(), RoleName::Gateway, &args)?;
        let server_pid = server.as_ref().map(RedisServer::pid);
        Ok(Self {
            name,
            address: child.address()?,
            processes: Processes::new([child.pid()].into_iter().chain(server_pid)),
            server: Processes::new(server_pid),
            key: Some(child.reported("key")?.to_owned()),
            path: None,
            headers: HeaderMap::new(),
            answered: 0,
            beside: false,
            child: Some(child),
            _directory: Some(place),
            _redis: server,
        })
    }

    /// Returns the id of the process that is the proxy, or that starts it.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    /// Returns the path of calls that get this response.
    pub(crate) fn path(&self, canned: Canned) -> String {
        match (&self.key, &self.path) {
            (Some(_), _) => gateway_path(canned.format()).to_owned(),
            (None, Some(path)) => path.clone(),
            // The bare proxy forwards the path unchanged, so the vendor's path is used.
            (None, None) => canned.vendor_path(),
        }
    }

    /// Returns the key for the gateway. For a proxy without a key, returns a key of the same length, which the proxy
    /// forwards.
    pub(crate) fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(NO_KEY)
    }

    /// Returns the call of the scenario, as it is sent to this target.
    pub(crate) fn prepare(&self, scenario: &Scenario) -> anyhow::Result<Arc<Call>> {
        let path = if scenario.caller == scenario.canned.format() {
            self.path(scenario.canned)
        } else {
            gateway_path(scenario.caller).to_owned()
        };
        let host = self.address.to_string();
        let body = scenario.body.clone();
        let mut prepared = Prepared::post(&host, &path, scenario.caller, self.key(), body)?;
        prepared.headers.extend(self.headers.clone());
        let delays = matches!(scenario.measure, Measure::ChunkDelay);
        Ok(Arc::new(Call {
            prepared: vec![prepared],
            each: delays.then_some(record_delays),
        }))
    }

    /// Opens connections, sends one call over each, and then measures a load.
    pub(crate) async fn load(
        &mut self,
        scenario: &Scenario,
        connections: u32,
        time: Duration,
    ) -> anyhow::Result<Seen> {
        let record = Record::default();
        let client = self.warm(scenario, connections, &record).await?;
        let before = self.used()?;
        let began = Instant::now();
        match scenario.pace {
            Pace::WhenAnswered => {
                client
                    .run(load::Pace::WhenAnswered, connections, time)
                    .await
            }
            Pace::PerSecond(calls) => client.run(load::Pace::PerSecond(calls), 0, time).await,
            Pace::AtRandom(calls) => client.when_due(at_random(calls, time)).await,
        }?;
        let elapsed = began.elapsed();
        let after = self.used()?;
        let results = record.results();
        self.answered += results.answered;
        Ok(Seen {
            answered: results.answered,
            elapsed,
            measured: match scenario.measure {
                Measure::Whole => results.whole,
                Measure::FirstByte => results.first_chunk,
                Measure::ChunkDelay => results.own,
            },
            cpu: after.0.saturating_sub(before.0),
            server_cpu: after.1.saturating_sub(before.1),
        })
    }

    /// Opens connections and sends one call over each.
    pub(crate) async fn warm(
        &mut self,
        scenario: &Scenario,
        connections: u32,
        record: &Record,
    ) -> anyhow::Result<Client> {
        let (origin, call) = (Origin::Loopback(self.address), self.prepare(scenario)?);
        let terms = Terms::new(Failures::EndIt, u64::MAX, CALL_TIMEOUT);
        let mut client = Client::new(origin, call, terms, record.clone());
        let opened = match scenario.pace {
            Pace::WhenAnswered => connections,
            Pace::PerSecond(calls) | Pace::AtRandom(calls) => calls.min(PACED_CONNECTIONS),
        };
        client.warm_up(opened).await?;
        self.answered += u64::from(opened);
        Ok(client)
    }

    /// Returns the CPU time that the target's processes have used so far, and the part of it that the ledger's server
    /// has used.
    fn used(&self) -> io::Result<(Duration, Duration)> {
        Ok((self.processes.used()?, self.server.used()?))
    }

    /// Drains the target, and checks that it has charged the calls that it has answered.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        child.stop()?;
        if self.key.is_some() {
            let charged: u64 = child.reported("charged")?.parse()?;
            ensure!(
                charged == self.answered,
                "the gateway {} has answered {} calls and charged {charged}",
                self.name,
                self.answered
            );
        }
        Ok(())
    }
}

/// A lease duration that an operator would set, in milliseconds.
const LEASE_MS: (&str, &str) = ("--lease-ms", "1000");
const NO_KEY: &str = "tg-000000000000000000000000000000000000000000000000";

/// Returns `calls` random moments per second, distributed like Poisson arrivals at that rate. They are the same in each
/// run, so that every target gets the same load.
fn at_random(calls: u32, time: Duration) -> impl Iterator<Item = Instant> {
    let began = Instant::now();
    let count = (f64::from(calls) * time.as_secs_f64()).round() as usize;
    let mut random = Random::of(0, &[]);
    let mut due: Vec<Instant> = (0..count)
        .map(|_| began + time.mul_f64(random.bits() as f64 / u64::MAX as f64))
        .collect();
    due.sort_unstable();
    due.into_iter()
}

/// Records the delay of each chunk in `data`: the time from its sending, which the vendor wrote into the chunk, until
/// now.
fn record_delays(data: &Bytes, delays: &mut Vec<Duration>) {
    const STAMP: &[u8] = b"\"sent\":";
    let now = unix_ns();
    for (at, window) in data.windows(STAMP.len()).enumerate() {
        if window != STAMP {
            continue;
        }
        let digits = data[at + STAMP.len()..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let sent = digits.fold(0, |sent: u64, digit| {
            sent.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
        });
        delays.push(Duration::from_nanos(now.saturating_sub(sent)));
    }
}

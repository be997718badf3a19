//! What the calls are sent to.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::{
    child::Child,
    client::{Call, Client, Seen, Terms},
    cpu::Processes,
    disturbance::Disturbance,
    fixtures::{
        Canned,
        caller::{Origin, Prepared},
        directory, gateway_path, redis_server,
        support::redis::RedisServer,
    },
    nginx::Nginx,
    options::{Ledger, Options, RoleName},
    scenario::{Pace, Scenario},
};

/// The vendor, and the proxies before it.
pub(crate) struct Field {
    /// The bare proxy first, then the gateways, then what is there to compare with alone.
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
        targets.push(Target::layers(address)?);
        if Nginx::is_installed() {
            targets.push(Target::nginx(address)?);
        }
        targets.push(Target::nothing(address));
        Ok(Self {
            targets,
            _vendor: vendor,
        })
    }

    /// Lets the gateways drain, and checks that each has charged every call that was answered.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        for target in &mut self.targets {
            target.stop()?;
        }
        Ok(())
    }
}

/// The gateways to run: those asked for, or one for each ledger that an operator would choose. Never
/// empty.
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

/// A proxy under load.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    /// Whose CPU time a call costs.
    pub(crate) processes: Processes,
    /// Of these the ledger's server, where it has one.
    pub(crate) server: Processes,
    /// Something else wants the cores while it is under load.
    is_disturbed: bool,
    /// The caller's key; a bare proxy asks for none.
    key: Option<String>,
    /// Calls that were answered.
    answered: u64,
    /// It is there to compare with where there is no pace, and in no other scenario.
    pub(crate) beside: bool,
    /// None of this bench's programs where it is another one, or nothing at all.
    child: Option<Child>,
    _nginx: Option<Nginx>,
    // Both go after the process that uses them.
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

    /// The callers' layers, without the gateway around them.
    pub(crate) fn layers(vendor: SocketAddr) -> anyhow::Result<Self> {
        let child = Child::start(RoleName::Layers, &[("--vendor", &vendor.to_string())])?;
        Ok(Self {
            name: "layers",
            address: child.address()?,
            processes: Processes::new([child.pid()]),
            key: Some(child.said("key")?.to_owned()),
            child: Some(child),
            ..Self::nothing(vendor)
        })
    }

    pub(crate) fn nginx(vendor: SocketAddr) -> anyhow::Result<Self> {
        let place = TempDir::new_in(directory()?)?;
        let nginx = Nginx::start(place.path(), vendor)?;
        Ok(Self {
            name: "nginx",
            address: nginx.address,
            processes: Processes::new(nginx.pids()?),
            _nginx: Some(nginx),
            _directory: Some(place),
            ..Self::nothing(vendor)
        })
    }

    /// The vendor itself: what the client and the vendor can do together on this machine.
    pub(crate) fn nothing(vendor: SocketAddr) -> Self {
        Self {
            name: "nothing",
            address: vendor,
            processes: Processes::new([]),
            server: Processes::new([]),
            is_disturbed: false,
            key: None,
            answered: 0,
            beside: true,
            child: None,
            _nginx: None,
            _directory: None,
            _redis: None,
        }
    }

    pub(crate) fn gateway(vendor: SocketAddr, ledger: Ledger) -> anyhow::Result<Self> {
        let server = if ledger.has_server() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            Some(runtime.block_on(redis_server()).context("redis-server")?)
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
        let is_disturbed = ledger == Ledger::Disturbed;
        Ok(Self {
            is_disturbed,
            ..Self::on(ledger.name(), vendor, &url, more, server)?
        })
    }

    /// One of several gateways on a ledger's server, with one thread and callers of its own.
    pub(crate) fn gateway_of_one_thread(
        name: &'static str,
        vendor: SocketAddr,
        server: &RedisServer,
        leases: bool,
    ) -> anyhow::Result<Self> {
        let mut more = vec![("--threads", "1"), ("--account", name)];
        if leases {
            more.push(LEASE_MS);
        }
        Self::on(name, vendor, &server.url(), &more, None)
    }

    /// A gateway on a ledger, and the ledger's server where it works for this gateway alone: a call's CPU
    /// time is that of both. Its files are in a folder of its own.
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
            is_disturbed: false,
            key: Some(child.said("key")?.to_owned()),
            answered: 0,
            beside: false,
            child: Some(child),
            _nginx: None,
            _directory: Some(place),
            _redis: server,
        })
    }

    /// Of the bench's own program.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    /// Where it takes the calls that a vendor answers so.
    pub(crate) fn path(&self, canned: Canned) -> String {
        match self.key {
            Some(_) => gateway_path(canned.format()).to_owned(),
            // It goes on to the vendor as it is.
            None => canned.vendor_path(),
        }
    }

    /// The bare proxy gets a header of the same length, and passes it on.
    pub(crate) fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(NO_KEY)
    }

    /// The scenario's call to this target.
    pub(crate) fn prepare(&self, scenario: &Scenario) -> anyhow::Result<Arc<Call>> {
        let path = if scenario.caller == scenario.canned.format() {
            self.path(scenario.canned)
        } else {
            gateway_path(scenario.caller).to_owned()
        };
        let host = self.address.to_string();
        let body = scenario.body.clone();
        Ok(Arc::new(Call {
            prepared: Prepared::post(&host, &path, scenario.caller, self.key(), body)?,
            measure: scenario.measure,
        }))
    }

    /// Opens connections and sends a call over each.
    pub(crate) async fn warm(
        &mut self,
        scenario: &Scenario,
        connections: u32,
    ) -> anyhow::Result<Client> {
        let (origin, call) = (Origin::Loopback(self.address), self.prepare(scenario)?);
        let terms = Terms::of_a_bench();
        let mut client = Client::open(origin, call, terms, scenario.pace, connections).await?;
        self.answered += client.warm_up().await?;
        Ok(client)
    }

    /// Puts a load on it.
    pub(crate) async fn load(
        &mut self,
        client: Client,
        pace: Pace,
        time: Duration,
    ) -> anyhow::Result<Seen> {
        let disturbance = self.is_disturbed.then(Disturbance::begin);
        let seen = client.run(pace, time).await?;
        drop(disturbance);
        self.answered += seen.answered;
        Ok(seen)
    }

    /// Lets it drain, and checks that it has charged what it answered.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        child.stop()?;
        if self.key.is_some() {
            let charged: u64 = child.said("charged")?.parse()?;
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

/// As an operator would set it who has leases.
const LEASE_MS: (&str, &str) = ("--lease-ms", "1000");
const NO_KEY: &str = "tg-000000000000000000000000000000000000000000000000";

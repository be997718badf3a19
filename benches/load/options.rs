//! The command line of the bench `load`.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};

use crate::scenario::ScenarioName;

/// Puts load on the gateway and on a bare hyper reverse proxy, and compares them.
///
/// The bench starts all processes that it needs, and sends requests to no other server. It writes the results to
/// benches/results/load.json, and tables and plots next to that file.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench load --", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Names of the scenarios to run. By default all scenarios are run.
    #[arg(value_enum)]
    scenarios: Vec<ScenarioName>,
    /// The length of a round, in seconds.
    #[arg(long, value_name = "S", default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// Number of rounds of each scenario. The figures are medians over the rounds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Number of connections, in scenarios that send the next call when the previous call is answered.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Gateways to compare with the bare proxy [default: sqlite; redis and leases too if redis-server is installed].
    #[arg(long, value_name = "LEDGER,…", value_enum, value_delimiter = ',')]
    pub(crate) targets: Vec<Ledger>,
    /// In the scenario `memory`: the largest number of streams to open. Fewer are opened if the system does not allow
    /// that many open files.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    pub(crate) streams: u32,
    /// In the scenario `rate`: the highest number of calls per second.
    #[arg(long, value_name = "N", default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub(crate) rate_max: u32,

    /// An argument that cargo passes to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
    /// The role of this process. The parent process sets this option and all options below it.
    #[arg(long, hide = true, value_enum)]
    pub(crate) role: Option<RoleName>,
    #[arg(long, hide = true)]
    vendor: Option<SocketAddr>,
    #[arg(long, hide = true)]
    ledger: Option<String>,
    #[arg(long, hide = true)]
    lease_ms: Option<u32>,
    #[arg(long, hide = true)]
    to: Option<SocketAddr>,
    #[arg(long, hide = true)]
    path: Option<String>,
    #[arg(long, hide = true)]
    key: Option<String>,
    #[arg(long, hide = true)]
    open: Option<u32>,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench --bench load                                        everything, about 10 minutes
  cargo bench --bench load -- plain stream                        these scenarios
  cargo bench --bench load -- plain --seconds 5 --rounds 9        longer, for steadier figures
  cargo bench --bench load -- --targets memory,sqlite,leases      gateways on these ledgers

A gateway that runs elsewhere: tollgate load --url https://gateway.example/v1";

/// The kind of ledger that a gateway uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ledger {
    Memory,
    Sqlite,
    Redis,
    /// Redis, with a gateway that grants holds from leases.
    Leases,
}

impl Ledger {
    /// Returns the name of this kind of ledger on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Leases => "leases",
        }
    }

    /// Returns whether this kind of ledger needs a redis-server.
    pub(crate) const fn has_server(self) -> bool {
        matches!(self, Self::Redis | Self::Leases)
    }
}

/// The role of a process that the bench starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleName {
    Vendor,
    Bare,
    Gateway,
    Holder,
}

impl RoleName {
    /// Returns the name of the role on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Vendor => "vendor",
            Self::Bare => "bare",
            Self::Gateway => "gateway",
            Self::Holder => "holder",
        }
    }
}

/// The settings of a process that runs a gateway.
#[derive(Debug)]
pub(crate) struct GatewayRole<'a> {
    pub(crate) vendor: SocketAddr,
    pub(crate) ledger: &'a str,
    /// The duration of a lease. If `None`, the gateway uses no leases.
    pub(crate) lease_ms: Option<u32>,
}

/// The settings of a process that keeps streams open.
#[derive(Debug)]
pub(crate) struct HolderRole<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) path: &'a str,
    pub(crate) key: &'a str,
    pub(crate) open: u32,
}

impl Options {
    /// Returns the scenarios to run, in their order. The list is empty if all are to be run.
    pub(crate) fn named(&self) -> &[ScenarioName] {
        &self.scenarios
    }

    /// Returns the length of a round.
    pub(crate) fn round(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub(crate) fn vendor(&self) -> anyhow::Result<SocketAddr> {
        self.vendor.context("--vendor is missing")
    }

    pub(crate) fn gateway(&self) -> anyhow::Result<GatewayRole<'_>> {
        Ok(GatewayRole {
            vendor: self.vendor()?,
            ledger: self.ledger.as_deref().context("--ledger is missing")?,
            lease_ms: self.lease_ms,
        })
    }

    pub(crate) fn holder(&self) -> anyhow::Result<HolderRole<'_>> {
        Ok(HolderRole {
            to: self.to.context("--to is missing")?,
            path: self.path.as_deref().context("--path is missing")?,
            key: self.key.as_deref().context("--key is missing")?,
            open: self.open.context("--open is missing")?,
        })
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=600.0).contains(seconds))
        .ok_or_else(|| "give seconds from 0.1 to 600".to_owned())
}

//! The command line.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};

use crate::scenario::ScenarioName;

/// Loads the gateway and a bare hyper reverse proxy to compare them.
///
/// Starts everything that it needs and calls no other server; results are written to benches/results/load.json, with
/// tables and plots next to it.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench load --", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The names of the scenarios to run; all by default.
    #[arg(value_enum)]
    scenarios: Vec<ScenarioName>,
    /// The length of a round, in seconds.
    #[arg(long, value_name = "S", default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// Rounds of each scenario; the figures are medians over them.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Connections in scenarios that send the next call when the previous one is answered.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Gateways to compare with the bare proxy [default: sqlite; redis and leases too if redis-server is installed].
    #[arg(long, value_name = "LEDGER,…", value_enum, value_delimiter = ',')]
    pub(crate) targets: Vec<Ledger>,
    /// Scenario `memory`: the largest number of streams to open; fewer if the system allows fewer open files.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    pub(crate) streams: u32,
    /// Scenario `rate`: the highest number of calls per second.
    #[arg(long, value_name = "N", default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub(crate) rate_max: u32,

    /// An argument that cargo passes to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
    /// The role of this process; set by its parent process, as are all options below.
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

/// The ledger of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ledger {
    Memory,
    Sqlite,
    Redis,
    /// Redis, with a gateway that takes leases.
    Leases,
}

impl Ledger {
    /// Returns the ledger's name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Leases => "leases",
        }
    }

    /// Whether this kind of ledger needs a redis-server.
    pub(crate) const fn has_server(self) -> bool {
        matches!(self, Self::Redis | Self::Leases)
    }
}

/// The role of a started process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleName {
    Vendor,
    Bare,
    Gateway,
    Holder,
}

impl RoleName {
    /// Returns the role's name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Vendor => "vendor",
            Self::Bare => "bare",
            Self::Gateway => "gateway",
            Self::Holder => "holder",
        }
    }
}

/// The settings of a gateway's process.
#[derive(Debug)]
pub(crate) struct GatewayRole<'a> {
    pub(crate) vendor: SocketAddr,
    pub(crate) ledger: &'a str,
    /// If `None`, the gateway takes no leases.
    pub(crate) lease_ms: Option<u32>,
}

/// The settings of a process that holds streams open.
#[derive(Debug)]
pub(crate) struct HolderRole<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) path: &'a str,
    pub(crate) key: &'a str,
    pub(crate) open: u32,
}

impl Options {
    /// The scenarios to run, in order; empty for all.
    pub(crate) fn named(&self) -> &[ScenarioName] {
        &self.scenarios
    }

    /// The length of a round.
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

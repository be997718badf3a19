//! What can be asked on the command line.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};

use crate::scenario::ScenarioName;

/// Loads the gateway beside a bare hyper reverse proxy.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// What to run; everything when none is named.
    #[arg(value_enum)]
    scenarios: Vec<ScenarioName>,
    /// Length of a round.
    #[arg(long, default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// Rounds of each scenario; the figures are medians over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Connections of scenarios that send the next call when the last one is answered.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Gateways to run beside the bare proxy; sqlite, and redis where there is a redis-server.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) targets: Vec<Ledger>,

    /// What cargo says to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
    /// What this process is; set by the process that starts it.
    #[arg(long, hide = true, value_enum)]
    pub(crate) role: Option<RoleName>,
    #[arg(long, hide = true)]
    vendor: Option<SocketAddr>,
    #[arg(long, hide = true)]
    ledger: Option<String>,
}

/// The ledger of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ledger {
    Memory,
    Sqlite,
    Redis,
}

/// What a started process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleName {
    Vendor,
    Bare,
    Gateway,
}

impl RoleName {
    /// As [`ValueEnum`] reads it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Vendor => "vendor",
            Self::Bare => "bare",
            Self::Gateway => "gateway",
        }
    }
}

impl Options {
    /// What to run, in order.
    pub(crate) fn scenarios(&self) -> &[ScenarioName] {
        if self.scenarios.is_empty() {
            ScenarioName::value_variants()
        } else {
            &self.scenarios
        }
    }

    /// Length of a round.
    pub(crate) fn round(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub(crate) fn vendor(&self) -> anyhow::Result<SocketAddr> {
        self.vendor.context("--vendor is missing")
    }

    pub(crate) fn ledger(&self) -> anyhow::Result<&str> {
        self.ledger.as_deref().context("--ledger is missing")
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=600.0).contains(seconds))
        .ok_or_else(|| "give seconds from 0.1 to 600".to_owned())
}

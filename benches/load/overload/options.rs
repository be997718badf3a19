//! What can be asked on the command line.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};

/// Sends the gateway more than it can serve, and looks at what becomes of it.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// What to measure; both when none is named.
    #[arg(value_enum)]
    scenarios: Vec<ScenarioName>,
    /// Length of each load.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// `limits.in_flight_max` of the gateway that is overloaded.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) in_flight: u32,
    /// How long its vendor takes for an answer.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) vendor_ms: u64,

    /// What cargo says to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
    /// What this process is; set by the process that starts it.
    #[arg(long, hide = true, value_enum)]
    pub(crate) role: Option<RoleName>,
    #[arg(long, hide = true)]
    to: Option<SocketAddr>,
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) from: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScenarioName {
    /// Three times the load that is served without a refusal.
    Load,
    /// Two thousand slow connections beside a client that behaves well.
    Slow,
}

/// What a started process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleName {
    Vendor,
    Slow,
}

impl RoleName {
    /// As [`ValueEnum`] reads it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Vendor => "vendor",
            Self::Slow => "slow",
        }
    }
}

impl Options {
    /// What to measure, in order.
    pub(crate) fn scenarios(&self) -> &[ScenarioName] {
        if self.scenarios.is_empty() {
            ScenarioName::value_variants()
        } else {
            &self.scenarios
        }
    }

    pub(crate) const fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub(crate) const fn vendor_time(&self) -> Duration {
        Duration::from_millis(self.vendor_ms)
    }

    pub(crate) fn to(&self) -> anyhow::Result<SocketAddr> {
        self.to.context("--to is missing")
    }
}

//! What can be asked on the command line.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use clap::{Args, Parser, ValueEnum};
use http::Uri;
use tollgate_layers::call::Format;

use crate::scenario::ScenarioName;

/// Connections of scenarios without a pace: on this machine, and to somebody's gateway.
const CONNECTIONS: u32 = 64;
const CONNECTIONS_TO_URL: u32 = 4;

/// Loads the gateway beside a bare hyper reverse proxy, or a gateway that runs somewhere.
///
/// Without --url it starts all that it needs and calls nobody else; the figures go to
/// benches/results/load.json, the tables and plots made of them beside it. With --url it calls what you
/// name: real calls, which cost what the key's owner pays for them.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench load --", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// What to run; everything when none is named.
    #[arg(value_enum)]
    scenarios: Vec<ScenarioName>,
    /// Length of a round.
    #[arg(long, value_name = "S", default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// Rounds of each scenario; the figures are medians over them.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Connections of scenarios that send the next call when the last one is answered [default: 64; 4 with --url]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,
    /// Gateways to run beside the bare proxy; sqlite, and redis and leases (on a Redis of their own) where there is a
    /// redis-server. `disturbed` is sqlite beside a task that takes a core as Redis does of `leases` at 500 calls a second.
    #[arg(long, value_name = "LEDGER,…", value_enum, value_delimiter = ',')]
    pub(crate) targets: Vec<Ledger>,
    /// `memory`: the most streams to open; fewer where the system allows fewer open files.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    pub(crate) streams: u32,
    /// `rate`: the most calls a second.
    #[arg(long, value_name = "N", default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub(crate) rate_max: u32,

    #[command(flatten, next_help_heading = "A gateway that runs somewhere")]
    elsewhere: Elsewhere,

    /// What cargo says to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
    /// What this process is; set by the process that starts it, as all below.
    #[arg(long, hide = true, value_enum)]
    pub(crate) role: Option<RoleName>,
    #[arg(long, hide = true)]
    vendor: Option<SocketAddr>,
    #[arg(long, hide = true)]
    ledger: Option<String>,
    #[arg(long, hide = true, default_value = "bench")]
    account: String,
    #[arg(long, hide = true)]
    threads: Option<usize>,
    #[arg(long, hide = true)]
    lease_ms: Option<u32>,
    #[arg(long, hide = true)]
    to: Option<SocketAddr>,
    #[arg(long, hide = true)]
    path: Option<String>,
    #[arg(long, hide = true)]
    open: Option<u32>,
}

// Of a load on a gateway that was not started for it. A text for documentation here would go into the help.
#[derive(Args, Debug)]
struct Elsewhere {
    /// Its address, with or without /v1.
    #[arg(long)]
    url: Option<Uri>,
    /// A key of it; better in the environment, where other users of the machine do not see it.
    #[arg(long, env = "TOLLGATE_KEY", hide_env_values = true)]
    key: Option<String>,
    /// The model to call; the first that the key may call when none is named.
    #[arg(long)]
    model: Option<String>,
    /// The operation to call.
    #[arg(long, value_enum, default_value = "chat")]
    format: Operation,
    /// Calls in all, whatever else is asked for.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    calls_max: u64,
    /// `max_tokens` of each call.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_tokens: u32,
    /// Calls a second of `paced` and `first_byte`.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench --bench load                                        everything, about 10 minutes
  cargo bench --bench load -- plain stream                        these scenarios
  cargo bench --bench load -- plain --seconds 5 --rounds 9        longer, for steadier figures
  cargo bench --bench load -- --targets memory,sqlite,leases      gateways on these ledgers
  TOLLGATE_KEY=tg-… cargo bench --bench load -- --url https://gateway.example/v1 --calls-max 200
  TOLLGATE_KEY=tg-… cargo bench --bench load -- plain --url http://127.0.0.1:8080 --model demo-chat";

/// The ledger of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ledger {
    Memory,
    Sqlite,
    Redis,
    /// Redis, and a gateway that holds money by itself.
    Leases,
    /// SQLite, beside a task that takes a core as often and as long as Redis does for such a gateway.
    Disturbed,
}

impl Ledger {
    /// As [`ValueEnum`] reads it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Leases => "leases",
            Self::Disturbed => "disturbed",
        }
    }

    /// Whether a redis-server is needed.
    pub(crate) const fn has_server(self) -> bool {
        matches!(self, Self::Redis | Self::Leases)
    }
}

/// An operation of a running gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    Chat,
    Messages,
}

/// What a started process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleName {
    Vendor,
    Bare,
    Layers,
    Gateway,
    Holder,
}

impl RoleName {
    /// As [`ValueEnum`] reads it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Vendor => "vendor",
            Self::Bare => "bare",
            Self::Layers => "layers",
            Self::Gateway => "gateway",
            Self::Holder => "holder",
        }
    }
}

/// What a gateway's process is told.
#[derive(Debug)]
pub(crate) struct GatewayRole<'a> {
    pub(crate) vendor: SocketAddr,
    pub(crate) ledger: &'a str,
    /// Whose calls it carries.
    pub(crate) account: &'a str,
    /// As many as there are cores when absent.
    pub(crate) threads: Option<usize>,
    /// Without leases when absent.
    pub(crate) lease_ms: Option<u32>,
}

/// What a process is told that holds streams open.
#[derive(Debug)]
pub(crate) struct HolderRole<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) path: &'a str,
    pub(crate) key: &'a str,
    pub(crate) open: u32,
}

/// A gateway that runs somewhere, and how far a load on it may go.
#[derive(Debug)]
pub(crate) struct Deployment<'a> {
    pub(crate) url: &'a Uri,
    pub(crate) key: &'a str,
    pub(crate) model: Option<&'a str>,
    pub(crate) format: Format,
    pub(crate) calls_max: u64,
    pub(crate) max_tokens: u32,
    pub(crate) rate: u32,
}

impl Options {
    /// What to run, in order; empty for everything.
    pub(crate) fn named(&self) -> &[ScenarioName] {
        &self.scenarios
    }

    /// Length of a round.
    pub(crate) fn round(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Connections of scenarios without a pace.
    pub(crate) fn connections(&self) -> u32 {
        let usual = match self.elsewhere.url {
            None => CONNECTIONS,
            Some(_) => CONNECTIONS_TO_URL,
        };
        self.connections.unwrap_or(usual)
    }

    /// The gateway that was named, if one was.
    pub(crate) fn deployment(&self) -> anyhow::Result<Option<Deployment<'_>>> {
        let given = &self.elsewhere;
        let Some(url) = &given.url else {
            return Ok(None);
        };
        ensure!(
            matches!(url.scheme_str(), Some("http" | "https")) && url.query().is_none(),
            "--url: give an address like https://gateway.example/v1"
        );
        let key = given.key.as_deref();
        Ok(Some(Deployment {
            url,
            key: key.context("--url needs a key: set TOLLGATE_KEY, or give --key")?,
            model: given.model.as_deref(),
            format: match given.format {
                Operation::Chat => Format::Chat,
                Operation::Messages => Format::Messages,
            },
            calls_max: given.calls_max,
            max_tokens: given.max_tokens,
            rate: given.rate,
        }))
    }

    pub(crate) fn vendor(&self) -> anyhow::Result<SocketAddr> {
        self.vendor.context("--vendor is missing")
    }

    pub(crate) fn gateway(&self) -> anyhow::Result<GatewayRole<'_>> {
        Ok(GatewayRole {
            vendor: self.vendor()?,
            ledger: self.ledger.as_deref().context("--ledger is missing")?,
            account: &self.account,
            threads: self.threads,
            lease_ms: self.lease_ms,
        })
    }

    pub(crate) fn holder(&self) -> anyhow::Result<HolderRole<'_>> {
        Ok(HolderRole {
            to: self.to.context("--to is missing")?,
            path: self.path.as_deref().context("--path is missing")?,
            key: self.elsewhere.key.as_deref().context("--key is missing")?,
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

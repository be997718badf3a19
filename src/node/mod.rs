//! Everything with a socket or a task, in the order of a gateway's life: `build` opens the ledger and the ports, `run`
//! serves until the process is told to stop, [`reload`] takes changed files meanwhile, `drain` ends it.
//!
//! Beside that stand what a reload changes ([`limits`]), whether this node should be sent calls ([`readiness`]), what the
//! settler's events are used for (`events`), what has a thread of its own (`apart`), and the files that the process may open
//! ([`files`]).

mod apart;
mod build;
mod drain;
mod events;
pub mod files;
pub(crate) mod https;
pub mod limits;
pub mod rates;
pub mod readiness;
pub mod reload;
mod run;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet};
use tollgate_layers::{failover::Health, reserve::Settler, upstream::Upstream};

pub use self::{
    events::log_event,
    run::{serve, until_told_to_stop},
};
use self::{limits::LiveLimits, readiness::Readiness};
use crate::{
    catalog::snapshot::Live,
    config::{RateConfig, ReceiverConfig},
    edge::tls::Tls,
    events::Dispatcher,
    ledger::AnyLedger,
    observe::{metrics::Metrics, traces::Exporter},
};

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    store: AnyLedger,
    live: Arc<Live>,
    /// Of the tariff in force.
    fingerprint: String,
    limits: LiveLimits,
    tls: Option<Tls>,
    health: Health,
    upstream: Upstream,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    draining: watch::Sender<bool>,
    /// Operators are served to the end of the drain.
    _admin_end: watch::Sender<bool>,
    /// Accept loops: they end when draining does.
    servers: JoinSet<()>,
    /// Cuts the calls that still run when the drain's time is up.
    calls: Settler,
    /// Ends when the last answer is settled.
    settler: JoinSet<()>,
    /// Loops without an end of their own.
    loops: JoinSet<()>,
    /// Keeps what the ledger could not be told.
    outbox: PathBuf,
    /// Who is sent events.
    dispatcher: Dispatcher,
    /// Sends them.
    deliveries: JoinSet<()>,
    receivers: Vec<ReceiverConfig>,
    /// Asks for the exchange rate.
    feed: JoinSet<()>,
    /// Where it asks.
    rate: RateConfig,
    /// Sends the spans of calls.
    exporter: Option<Exporter>,
}

impl Gateway {
    /// Where callers are served.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where operators are served.
    #[must_use]
    pub const fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// The ledger.
    #[must_use]
    pub const fn store(&self) -> &AnyLedger {
        &self.store
    }

    /// The catalog and its prices.
    #[must_use]
    pub const fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// What this node knows of its vendors.
    #[must_use]
    pub const fn health(&self) -> &Health {
        &self.health
    }

    /// What this node counts.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Time for running calls when it is drained.
    #[must_use]
    pub fn drain_timeout(&self) -> Duration {
        self.limits.drain_timeout.get()
    }
}

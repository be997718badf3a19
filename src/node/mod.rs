//! The gateway's sockets and tasks: `build` opens the ledger and the ports, `run` serves until the process gets a
//! signal to stop, [`reload`] applies changed files while the gateway runs, and `drain` ends the gateway.
//!
//! The other modules handle the settler's events (`events`) and run work on a dedicated thread (`apart`).

mod apart;
mod build;
mod drain;
mod events;
pub mod reload;
mod run;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet};
use tollgate_layers::{failover::Health, reserve::Settler, upstream::Upstream};

pub use self::{
    events::log_event,
    run::{serve, until_told_to_stop},
};
use crate::{
    catalog::snapshot::Live,
    config::{RateConfig, ReceiverConfig},
    edge::tls::Tls,
    events::Dispatcher,
    ledger::AnyLedger,
    observe::{metrics::Metrics, traces::Exporter},
    state::{config_file::ReloadRequests, limits::LiveLimits, readiness::Readiness},
};

/// A gateway that is running.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    store: AnyLedger,
    live: Arc<Live>,
    /// The fingerprint of the tariff in force.
    fingerprint: String,
    limits: LiveLimits,
    tls: Option<Tls>,
    health: Health,
    upstream: Upstream,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    draining: watch::Sender<bool>,
    /// Ends the operators' listener when dropped. This field is dropped last, so that operators are served until the
    /// drain has ended.
    _admin_end: watch::Sender<bool>,
    /// The listeners' accept loops, which end during the drain.
    servers: JoinSet<()>,
    /// The settler's handle. At the end of the drain it cuts the calls that are still running.
    calls: Settler,
    /// The settler's task, which ends when the last answer is settled.
    settler: JoinSet<()>,
    /// Background loops that do not end by themselves.
    loops: JoinSet<()>,
    /// The file with charges that the ledger has not acknowledged.
    outbox: PathBuf,
    /// The receivers of events.
    dispatcher: Dispatcher,
    /// The tasks that deliver events.
    deliveries: JoinSet<()>,
    receivers: Vec<ReceiverConfig>,
    /// The task that reads the exchange rate.
    feed: JoinSet<()>,
    /// The settings of the task that reads the exchange rate.
    rate: RateConfig,
    /// The task that exports the spans of calls.
    exporter: Option<Exporter>,
    /// Requests of operators to apply the configuration file.
    reloads: ReloadRequests,
}

impl Gateway {
    /// Returns the address on which callers are served.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address on which operators are served, if the operators' listener is configured.
    #[must_use]
    pub const fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Returns the ledger in which calls are booked.
    #[must_use]
    pub const fn store(&self) -> &AnyLedger {
        &self.store
    }

    /// Returns the catalog and its prices.
    #[must_use]
    pub const fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Returns the health of the vendors as this node sees it.
    #[must_use]
    pub const fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the metrics of this node.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns how long running calls may take when the gateway is drained.
    #[must_use]
    pub fn drain_timeout(&self) -> Duration {
        self.limits.drain_timeout.get()
    }
}

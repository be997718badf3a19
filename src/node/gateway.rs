//! The running gateway: the sockets and tasks that `build` creates.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet};
use tollgate_layers::{failover::Health, reserve::Settler, upstream::Upstream};

use crate::{
    catalog::snapshot::Live,
    config::{RateConfig, ReceiverConfig},
    edge::tls::Tls,
    events::Dispatcher,
    ledger::AnyLedger,
    observe::{metrics::Metrics, record::Calls, traces::Exporter},
    state::{config_file::ReloadRequests, limits::LiveLimits, readiness::Readiness},
};

/// A gateway that is running, with its sockets and background tasks.
#[derive(Debug)]
pub struct Gateway {
    pub(super) address: SocketAddr,
    pub(super) admin_address: Option<SocketAddr>,
    pub(super) store: AnyLedger,
    pub(super) live: Arc<Live>,
    /// The fingerprint of the prices in force.
    pub(super) fingerprint: String,
    pub(super) limits: LiveLimits,
    pub(super) tls: Option<Tls>,
    pub(super) health: Health,
    pub(super) upstream: Upstream,
    pub(super) metrics: Arc<Metrics>,
    pub(super) readiness: Readiness,
    pub(super) draining: watch::Sender<bool>,
    /// When this sender is dropped, the operators' listener ends. The field is dropped last, so that operators are
    /// served until the drain has ended.
    pub(super) _admin_end: watch::Sender<bool>,
    /// The accept loops of the listeners. They end during the drain.
    pub(super) servers: JoinSet<()>,
    /// The records of calls. A drain stores the records of the last refused calls.
    pub(super) records: Calls,
    /// The handle of the settler. A drain uses it to cut short the calls that are still in flight.
    pub(super) calls: Settler,
    /// The task of the settler. It ends when the last call is settled.
    pub(super) settler: JoinSet<()>,
    /// Background tasks that run until the gateway is dropped.
    pub(super) loops: JoinSet<()>,
    /// The path of the outbox: the file with charges that the ledger has not acknowledged.
    pub(super) outbox: PathBuf,
    /// Sends the ledger's events to the configured receivers.
    pub(super) dispatcher: Dispatcher,
    /// The tasks that deliver events to receivers.
    pub(super) deliveries: JoinSet<()>,
    pub(super) receivers: Vec<ReceiverConfig>,
    /// The task that reads the exchange rate.
    pub(super) feed: JoinSet<()>,
    /// The settings with which the exchange rate is read. A reload compares them with the new settings.
    pub(super) rate: RateConfig,
    /// The task that exports the spans of calls.
    pub(super) exporter: Option<Exporter>,
    /// Operators' requests to apply the configuration file now.
    pub(super) reloads: ReloadRequests,
}

impl Gateway {
    /// Returns the address at which callers are served.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address at which operators are served; `None` if `[admin]` is not configured.
    #[must_use]
    pub const fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Returns the ledger in which the calls are booked.
    #[must_use]
    pub const fn store(&self) -> &AnyLedger {
        &self.store
    }

    /// Returns the models and the prices in force.
    #[must_use]
    pub const fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Returns this node's record of which routes to vendors fail.
    #[must_use]
    pub const fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the metrics of this node.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns how long a drain waits for calls in flight.
    #[must_use]
    pub fn drain_timeout(&self) -> Duration {
        self.limits.drain_timeout.get()
    }
}

//! Builds a gateway: opens the ledger, binds the ports, and starts all background tasks.

use std::{
    future::pending,
    net::{SocketAddr, TcpListener as StdListener},
    sync::Arc,
};

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use tokio::{sync::watch, task::JoinSet};
use tollgate_layers::{
    failover::Health,
    rate_limit::shared::SharedRatesTask,
    reserve::{Event, Settler, SettlerSettings, ledger::LedgerAdmin},
    upstream::Upstream,
};

use super::{
    dedicated_thread,
    events::{reporting, take_tokens},
    gateway::Gateway,
};
use crate::{
    admin::Admin,
    cabinet::{Cabinet, Mails},
    catalog::{rate_feed::RateFeed, snapshot::Live, tariffs},
    config::{CabinetConfig, Config, RateConfig},
    console::ConsoleLayer,
    edge::{
        panics::{RESTART_PAUSE, catch_round, restarted},
        server::{self, InheritedSockets, Listener, OpenConnections, ServerSettings, WhenFull},
        tls::{Identity, Tls},
    },
    endpoints::RENDERERS,
    events::{Dispatcher, Tail, Watcher},
    ledger::AnyLedger,
    observe::{
        metrics::{Metrics, ledger::InstrumentedLedger},
        record::Calls,
        traces::{self, Exporter},
    },
    payments::Payments,
    stack::{self, Shared},
    state::{
        config_file::ConfigFile,
        limits::LiveLimits,
        rates::KeyRates,
        readiness::{self, Readiness},
        scrape::Scrape,
    },
};

/// The maximum number of calls that are in flight or wait for their settlement. It is also the largest value that a
/// reload can give `limits.in_flight_max`.
const CALLS_MAX: usize = 1_000_000;

impl Gateway {
    /// Opens the ledger, binds the ports and serves requests. `report` receives an event for each settled or released
    /// call; see [`log_event`](super::log_event). `report` need not log calls, because the gateway itself writes a log
    /// line for each call.
    ///
    /// # Errors
    /// An error if the ledger cannot be opened, or if a port cannot be bound. The error names the ledger or the port.
    pub async fn build(
        config: &Config,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        Self::build_on(config, InheritedSockets::default(), report).await
    }

    /// Builds a gateway like [`Gateway::build`], but listens on sockets inherited from the parent process. A port
    /// without an inherited socket is bound by this process.
    ///
    /// # Errors
    /// An error if the ledger cannot be opened, or if a port cannot be bound. The error names the ledger or the port.
    pub async fn build_on(
        config: &Config,
        inherited: InheritedSockets,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let (parts, tasks, exporter) = Parts::open(config, report).await?;
        let mut loops = JoinSet::new();
        let cabinet = config.cabinet.as_ref().map(|config| parts.cabinet(config));
        let (cabinet, mails) = cabinet.unzip();
        if let Some(mails) = mails {
            loops.spawn(mails.run());
        }
        let upstream = Upstream::new(parts.limits.call_time_max.clone());
        let service = stack::callers(parts.shared(config, &upstream, cabinet.as_ref()));
        let deliveries = parts.dispatcher.replace(&config.receivers);
        parts.dispatcher.begin().await;
        let (admin_end, admin_open) = watch::channel(false);
        let (config_file, reloads) = ConfigFile::new(config.file.clone());
        let admin_address =
            parts.serve_operators(config, inherited.admin, config_file, admin_open, &mut loops)?;
        let settler = parts.start(tasks, &mut loops).await?;
        let feed = start_feed(&config.live.rate, &parts.live).await;
        // The callers' port is bound last, when this process can serve requests. If another process listens on the same
        // port, the kernel distributes connections between both as soon as the port is bound.
        let listener = listen(inherited.public, config.listen, config.reuse_port, "listen")?;
        let address = listener.local_addr()?;
        let tls = config.tls.as_ref().map(Tls::new);
        let mut servers = JoinSet::new();
        let (draining, drained) = watch::channel(false);
        let settings = parts.server_settings(tls.clone());
        servers.spawn(server::serve(listener, service, settings, drained));
        parts.readiness.serving(true);
        Ok(Self {
            address,
            admin_address,
            store: parts.store,
            live: parts.live,
            fingerprint: config.live.fingerprint(),
            limits: parts.limits,
            tls,
            health: parts.health,
            upstream,
            metrics: parts.metrics,
            readiness: parts.readiness,
            draining,
            _admin_end: admin_end,
            records: parts.calls,
            calls: parts.settler,
            servers,
            settler,
            loops,
            outbox: config.ledger.outbox.path.clone(),
            feed,
            dispatcher: parts.dispatcher,
            deliveries,
            receivers: config.receivers.clone(),
            rate: config.live.rate.clone(),
            exporter,
            reloads,
        })
    }
}

/// The state that a gateway's listeners and background tasks share.
struct Parts {
    store: AnyLedger,
    ledger: InstrumentedLedger<AnyLedger>,
    live: Arc<Live>,
    limits: LiveLimits,
    rates: KeyRates,
    metrics: Arc<Metrics>,
    calls: Calls,
    health: Health,
    readiness: Readiness,
    settler: Settler,
    payments: Payments,
    dispatcher: Dispatcher,
    /// The number of open connections of callers.
    open: OpenConnections,
}

type Report = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// Background tasks that are created but not started yet.
struct Tasks {
    settling: BoxFuture<'static, ()>,
    /// Handles the events of the settler, and the events from the recovery of an earlier process's calls.
    report: Report,
    watcher: Watcher,
    tail: Tail,
    shared_rates: Option<SharedRatesTask>,
}

impl Parts {
    /// Opens the ledger, and creates the parts of the gateway that need it. This starts only one task, the export
    /// of traces.
    async fn open(
        config: &Config,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> anyhow::Result<(Self, Tasks, Option<Exporter>)> {
        let store = AnyLedger::open(&config.ledger).await?;
        let version = store.tariff_version(&config.live.fingerprint()).await;
        let no_version = "the ledger returned no tariff version for the configured prices";
        let version = version.context(no_version)?;
        tariffs::keep(&store, version, &config.live).await;
        let live = Arc::new(Live::new(config, version, RENDERERS));
        let metrics = Arc::new(Metrics::new(&config.service));
        metrics.follow(&live.snapshot());
        if let Some(identity) = &config.tls {
            publish_expiry(&metrics, identity);
        }
        let (traces, exporter) = traces::start(config, &metrics.traces_dropped).unzip();
        let refused = store.unbooked_store(&config.ledger);
        let calls = Calls::stored(Arc::clone(&metrics), traces, refused);
        let report: Report = Arc::new(reporting(calls.clone(), report));
        let (rates, shared_rates) = KeyRates::new(&store);
        let health = Health::new();
        follow(&health, &live);
        let (watcher, margins) = Watcher::new(store.clone(), Arc::clone(&live), health.clone());
        let ledger = InstrumentedLedger::new(store.clone(), Arc::clone(&metrics.ledger));
        let (used, settled) = (rates.tokens.clone(), Arc::clone(&report));
        let (settler, settling) = Settler::new(ledger.clone(), settler_settings(), move |event| {
            take_tokens(&used, event);
            margins.check(event);
            settled(event);
        });
        let payments = Payments::for_gateway(
            store.clone(),
            config.payments.clone(),
            config.language,
            metrics.payments.clone(),
            settler.calls(),
        );
        let tail = Tail::new(store.clone());
        let tasks = Tasks {
            settling: Box::pin(settling.run()),
            report,
            watcher,
            tail: tail.clone(),
            shared_rates,
        };
        let parts = Self {
            store,
            ledger,
            live,
            limits: LiveLimits::new(config),
            rates,
            dispatcher: Dispatcher::new(tail, Arc::clone(&metrics)),
            metrics,
            calls,
            health,
            readiness: Readiness::default(),
            settler,
            payments,
            open: OpenConnections::default(),
        };
        Ok((parts, tasks, exporter))
    }

    fn cabinet(&self, config: &CabinetConfig) -> (Cabinet, Mails) {
        Cabinet::new(config, &self.store, &self.live, &self.calls, &self.payments)
    }

    /// Returns the part of the gateway's state that the stack of layers for callers uses.
    const fn shared<'a>(
        &'a self,
        config: &'a Config,
        upstream: &'a Upstream,
        cabinet: Option<&'a Cabinet>,
    ) -> Shared<'a> {
        Shared {
            config,
            limits: &self.limits,
            live: &self.live,
            store: &self.store,
            settler: &self.settler,
            rates: &self.rates,
            health: &self.health,
            upstream,
            calls: &self.calls,
            payments: &self.payments,
            cabinet,
        }
    }

    fn server_settings(&self, tls: Option<Tls>) -> ServerSettings {
        ServerSettings {
            trusted_proxies: self.limits.trusted_proxies.clone(),
            connections: self.limits.connections.clone(),
            open: self.open.clone(),
            when_full: WhenFull::Refuse,
            tls,
        }
    }

    /// Serves operators if `[admin]` is configured. Stops when `ended` becomes true, or when its sender is dropped.
    fn serve_operators(
        &self,
        config: &Config,
        inherited: Option<StdListener>,
        config_file: ConfigFile,
        ended: watch::Receiver<bool>,
        loops: &mut JoinSet<()>,
    ) -> anyhow::Result<Option<SocketAddr>> {
        let Some(admin) = &config.admin else {
            if inherited.is_some() {
                tracing::warn!(
                    "the parent process passed a socket named \"admin\", but the configuration has no section [admin]"
                );
            }
            return Ok(None);
        };
        let listener = listen(inherited, admin.listen, config.reuse_port, "admin.listen")?;
        let address = listener.local_addr()?;
        let scrape = Scrape {
            calls: self.calls.clone(),
            live: Arc::clone(&self.live),
            store: self.store.clone(),
            rates: self.rates.clone(),
            health: self.health.clone(),
            readiness: self.readiness.clone(),
            connections: self.open.clone(),
        };
        let api = Admin::new(
            self.store.clone(),
            Arc::clone(&self.live),
            self.health.clone(),
            self.readiness.clone(),
            scrape,
            self.dispatcher.clone(),
            self.payments.clone(),
        )
        .with_configuration(config_file, stack::one_vendor)
        .with_operators(admin.operators_file.clone());
        let console = ConsoleLayer::new(admin, Arc::clone(&self.live));
        let service = stack::operators(admin, &self.metrics, api, console);
        let settings = ServerSettings {
            connections: self.limits.admin_connections.clone(),
            open: OpenConnections::default(),
            when_full: WhenFull::ReplaceStrangers,
            ..self.server_settings(None)
        };
        loops.spawn(server::serve(listener, service, settings, ended));
        Ok(Some(address))
    }

    /// Starts the background tasks. Returns the settler's task separately from the others, because a drain waits until
    /// it ends.
    async fn start(&self, tasks: Tasks, loops: &mut JoinSet<()>) -> anyhow::Result<JoinSet<()>> {
        let Self {
            store,
            readiness,
            payments,
            ..
        } = self;
        loops.spawn(tasks.tail.run());
        loops.spawn(tasks.watcher.run());
        let mut settler = JoinSet::new();
        settler.spawn(readiness::settle(tasks.settling, readiness.clone()));
        let (ledger, readiness) = (self.ledger.clone(), readiness.clone());
        loops.spawn(readiness::watch(store.clone(), ledger, readiness));
        if store.takes_leases() {
            let leases = store.clone();
            let renewal = async move {
                restarted("the task that renews leases", || leases.tend_leases()).await;
            };
            let thread = dedicated_thread::run("leases", renewal).await;
            loops.spawn(thread.context("cannot start the thread that renews leases")?);
        }
        if let Some(mut shared_rates) = tasks.shared_rates {
            loops.spawn(async move {
                let part = "the task that counts rate limits in Redis";
                while catch_round(part, shared_rates.run()).await.is_none() {
                    tokio::time::sleep(RESTART_PAUSE).await;
                }
            });
        }
        let refused = self.calls.clone();
        loops.spawn(async move {
            let store = || refused.store_unbooked();
            restarted("the task that stores refused calls", store).await;
        });
        let journals = store.clone();
        loops.spawn(async move {
            restarted("the task that rolls up journals", || journals.roll_up()).await
        });
        loops.spawn(payments.clone().run());
        loops.spawn(payments.clone().keep_topped_up());
        let (earlier, report) = (store.clone(), tasks.report);
        loops.spawn(async move {
            // If the recovery panics and is started again, it skips the calls that it has already settled.
            let recover = || earlier.recover(&*report);
            restarted("the task that settles calls of an earlier process", recover).await;
        });
        Ok(settler)
    }
}

fn settler_settings() -> SettlerSettings {
    let mut settings = SettlerSettings::default();
    settings.calls_max = CALLS_MAX;
    // The settler sends each settlement to the store at once. If it waited for earlier settlements, later ones would
    // not reach the store's outbox, which keeps charges while Redis cannot accept them.
    settings.under_way_max = CALLS_MAX;
    settings
}

/// Starts the task that reads the exchange rate. Waits for the first rate, so that even the first call has a price.
async fn start_feed(config: &RateConfig, live: &Arc<Live>) -> JoinSet<()> {
    let mut rates = RateFeed::new(config);
    rates.refresh_into(live).await;
    let mut feed = JoinSet::new();
    feed.spawn(rates.run(Arc::clone(live), pending()));
    feed
}

/// Publishes the expiry time of the callers' TLS certificate in the metrics.
pub(super) fn publish_expiry(metrics: &Metrics, identity: &Identity) {
    if let Some(at_ms) = identity.expires_at_ms() {
        metrics.certificate_expires(at_ms / 1000);
    }
}

/// Returns the inherited socket if there is one, or else a new socket bound to the address.
fn listen(
    inherited: Option<StdListener>,
    address: SocketAddr,
    reuse_port: bool,
    field: &str,
) -> anyhow::Result<Listener> {
    match inherited {
        Some(socket) => Listener::inherited(socket).with_context(|| {
            format!("{field}: cannot listen on the socket that the parent process passed")
        }),
        None => Listener::bind(address, reuse_port)
            .with_context(|| format!("{field}: cannot listen on {address}")),
    }
}

/// Keeps the health records of the configured routes, and drops those of routes that were removed from the
/// configuration.
pub(super) fn follow(health: &Health, live: &Live) {
    let snapshot = live.snapshot();
    health.follow(snapshot.models().flat_map(|(model, _)| &model.routes));
}

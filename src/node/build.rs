//! Builds a gateway: opens the ledger, binds the ports, and starts all background tasks.

use std::{
    net::{SocketAddr, TcpListener as StdListener},
    sync::Arc,
};

use anyhow::Context as _;
use tokio::{sync::watch, task::JoinSet};
use tollgate_layers::{
    failover::Health,
    reserve::{Event, Settler, SettlerSettings, ledger::LedgerAdmin},
    upstream::Upstream,
};

use super::{
    Gateway, apart,
    events::{reporting, take_tokens},
};
use crate::{
    admin::Admin,
    cabinet::Cabinet,
    catalog::{rate_feed::RateFeed, snapshot::Live, tariffs},
    config::Config,
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
        metrics::{Metrics, ledger::Measured},
        record::Calls,
        traces,
    },
    payments::Payments,
    stack::{self, Shared},
    state::{
        config_file::ConfigFile,
        limits::LiveLimits,
        rates::KeyRates,
        readiness::{self, Readiness},
        scrape::{Scrape, Sources},
    },
};

/// The maximum number of calls that run or wait for their settlement, and so the highest value that a reload can give
/// `limits.in_flight_max`.
const CALLS_MAX: usize = 1_000_000;

impl Gateway {
    /// Opens the ledger, binds the ports and serves. `report` gets an event for each settled or released call; see
    /// [`log_event`](super::log_event). The log line of each call is written in any case.
    ///
    /// # Errors
    /// An error if the ledger cannot be opened, or if a port cannot be bound. Its text names the ledger or the port.
    pub async fn build(
        config: &Config,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        Self::build_on(config, InheritedSockets::default(), report).await
    }

    /// Builds a gateway like [`Gateway::build`], but on inherited sockets. A port without an inherited socket is bound.
    ///
    /// # Errors
    /// An error if the ledger cannot be opened, or if a port cannot be bound. Its text names the ledger or the port.
    pub async fn build_on(
        config: &Config,
        passed: InheritedSockets,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let store = AnyLedger::open(&config.ledger).await?;
        let fingerprint = config.live.fingerprint();
        let version = store
            .tariff_version(&fingerprint)
            .await
            .context("cannot read the tariff version")?;
        tariffs::keep(&store, version, &config.live).await;
        let limits = LiveLimits::new(config);
        let live = Arc::new(Live::new(config, version, RENDERERS));
        let metrics = Arc::new(Metrics::new(&config.service));
        metrics.follow(&live.snapshot());
        let (traces, exporter) = traces::start(config, &metrics.traces_dropped).unzip();
        let calls = Calls::traced(Arc::clone(&metrics), traces);
        let report = Arc::new(reporting(calls.clone(), report));
        let mut settings = SettlerSettings::default();
        settings.calls_max = CALLS_MAX;
        // The settler sends the end of every call to the store at once: even if Redis cannot accept a charge now, the
        // store may have an outbox that keeps the charge.
        settings.under_way_max = CALLS_MAX;
        let (rates_of_keys, counting) = KeyRates::of(&store);
        let (settled, used) = (Arc::clone(&report), rates_of_keys.tokens.clone());
        let health = Health::new();
        follow(&health, &live);
        let (watcher, margins) = Watcher::new(store.clone(), Arc::clone(&live), health.clone());
        let ledger = Measured::new(store.clone(), Arc::clone(&metrics.ledger));
        let (settler, settler_task) = Settler::new(ledger.clone(), settings, move |event| {
            take_tokens(&used, event);
            margins.note(event);
            settled(event);
        });
        let upstream = Upstream::new(limits.call_time_max.clone());
        let payments = Payments::of_gateway(
            store.clone(),
            config.payments.clone(),
            config.language,
            metrics.payments.clone(),
            settler.calls(),
        );
        let cabinet = config.cabinet.as_ref();
        let cabinet = cabinet.map(|config| Cabinet::new(config, &store, &live, &calls, &payments));
        let (cabinet, mails) = cabinet.unzip();
        let service = stack::callers(Shared {
            config,
            limits: &limits,
            live: &live,
            store: &store,
            settler: &settler,
            rates: &rates_of_keys,
            health: &health,
            upstream: &upstream,
            calls: &calls,
            payments: &payments,
            cabinet: cabinet.as_ref(),
        });

        let (draining, drained) = watch::channel(false);
        let tls = config.tls.as_ref().map(Tls::new);
        if let Some(identity) = &config.tls {
            tell_expiry(&metrics, identity);
        }
        let server_settings = ServerSettings {
            trusted_proxies: limits.trusted_proxies.clone(),
            connections: limits.connections.clone(),
            open: OpenConnections::default(),
            when_full: WhenFull::Refuse,
            tls: None,
        };
        let readiness = Readiness::default();
        let (mut servers, mut loops, mut settler_run) =
            (JoinSet::new(), JoinSet::new(), JoinSet::new());
        let tail = Tail::new(store.clone());
        loops.spawn(tail.clone().run());
        loops.spawn(watcher.run());
        if let Some(mails) = mails {
            loops.spawn(mails.run());
        }
        let dispatcher = Dispatcher::new(tail, Arc::clone(&metrics));
        let deliveries = dispatcher.replace(&config.receivers);
        dispatcher.begin().await;
        let mut admin_address = None;
        let (admin_end, admin_open) = watch::channel(false);
        let (config_file, reloads) = ConfigFile::new(config.file.clone());
        if let Some(admin) = &config.admin {
            let listener = listen(
                passed.admin,
                admin.listen,
                config.reuse_port,
                "admin.listen",
            )?;
            admin_address = Some(listener.local_addr()?);
            let sources = Sources {
                calls,
                live: Arc::clone(&live),
                store: store.clone(),
                rates: rates_of_keys,
                health: health.clone(),
                readiness: readiness.clone(),
                connections: server_settings.open.clone(),
            };
            let api = Admin::new(
                store.clone(),
                Arc::clone(&live),
                health.clone(),
                readiness.clone(),
                Scrape::new(Arc::clone(&metrics), sources),
                dispatcher.clone(),
                payments.clone(),
            )
            .with_configuration(config_file, stack::one_vendor)
            .with_operators(admin.operators_file.clone());
            let console = ConsoleLayer::new(admin, Arc::clone(&live));
            let service = stack::operators(admin, &metrics, api, console);
            let settings = ServerSettings {
                connections: limits.admin_connections.clone(),
                open: OpenConnections::default(),
                when_full: WhenFull::ReplaceStrangers,
                ..server_settings.clone()
            };
            loops.spawn(server::serve(listener, service, settings, admin_open));
        } else if passed.admin.is_some() {
            tracing::warn!(
                "a socket for operators was passed, but the configuration has no [admin]"
            );
        }
        settler_run.spawn(readiness::settle(settler_task.run(), readiness.clone()));
        loops.spawn(readiness::watch(store.clone(), ledger, readiness.clone()));
        if store.takes_leases() {
            let leases = store.clone();
            let tended = async move {
                restarted("the renewal of leases", || leases.tend_leases()).await;
            };
            let running = apart::run("leases", tended).await;
            loops.spawn(running.context("cannot start the thread for leases")?);
        }
        if let Some(mut counting) = counting {
            loops.spawn(async move {
                while catch_round("the rate limits over all gateways", counting.run())
                    .await
                    .is_none()
                {
                    tokio::time::sleep(RESTART_PAUSE).await;
                }
            });
        }
        let journals = store.clone();
        loops.spawn(async move {
            restarted("the roll-up", || journals.roll_up()).await;
        });
        loops.spawn(payments.clone().run(std::future::pending()));
        loops.spawn(payments.keep_topped_up(std::future::pending()));
        let earlier = store.clone();
        loops.spawn(async move {
            // If the recovery is started again, it skips the calls that it has already ended.
            let recover = || earlier.recover(&*report);
            restarted("the recovery of earlier calls", recover).await;
        });
        let mut rates = RateFeed::new(&config.live.rate);
        // Fetch the exchange rate now, so that the first call has a price.
        rates.refresh_into(&live).await;
        let mut feed = JoinSet::new();
        feed.spawn(rates.run(Arc::clone(&live), std::future::pending()));
        // The port is bound last. If another process serves the same port meanwhile, the kernel assigns connections to
        // this process only when it can serve them.
        let listener = listen(passed.public, config.listen, config.reuse_port, "listen")?;
        let address = listener.local_addr()?;
        let server_settings = ServerSettings {
            tls: tls.clone(),
            ..server_settings
        };
        servers.spawn(server::serve(listener, service, server_settings, drained));
        readiness.serving(true);
        Ok(Self {
            address,
            admin_address,
            store,
            live,
            fingerprint,
            limits,
            tls,
            health,
            upstream,
            metrics,
            readiness,
            draining,
            _admin_end: admin_end,
            calls: settler,
            servers,
            settler: settler_run,
            loops,
            outbox: config.ledger.outbox.path.clone(),
            feed,
            dispatcher,
            deliveries,
            receivers: config.receivers.clone(),
            rate: config.live.rate.clone(),
            exporter,
            reloads,
        })
    }
}

pub(super) fn tell_expiry(metrics: &Metrics, identity: &Identity) {
    if let Some(at_ms) = identity.expires_at_ms() {
        metrics.certificate_expires(at_ms / 1000);
    }
}

/// Returns the inherited socket, or a new one bound to the address.
fn listen(
    passed: Option<StdListener>,
    address: SocketAddr,
    reuse_port: bool,
    field: &str,
) -> anyhow::Result<Listener> {
    match passed {
        Some(socket) => Listener::passed(socket)
            .with_context(|| format!("{field}: cannot listen on the socket that was passed")),
        None => Listener::bind(address, reuse_port)
            .with_context(|| format!("{field}: cannot listen on {address}")),
    }
}

/// Keeps the health records of configured routes, and drops the records of all other routes.
pub(super) fn follow(health: &Health, live: &Live) {
    let snapshot = live.snapshot();
    health.follow(snapshot.models().flat_map(|(model, _)| &model.routes));
}

//! Everything with a socket or a task: builds the gateway from its config, runs it, and drains it.

pub mod files;
pub(crate) mod https;
pub mod limits;
pub mod readiness;
pub mod reload;

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener as StdListener},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::Instant,
};
use tollgate_layers::{
    failover::Health,
    key::KeyId,
    rate_limit::PostPaid,
    reserve::{
        Event, Settler, SettlerSettings,
        ledger::{BookError, Booked, LedgerAdmin, TariffVersion},
    },
    upstream::Upstream,
};

use crate::{
    admin::Admin,
    catalog::{rate_feed::RateFeed, snapshot::Live},
    config::{Config, Files, RateConfig},
    edge::{
        panics::catch_round,
        server::{self, InheritedSockets, Listener, OpenConnections, ServerSettings},
        tls::{Identity, Tls},
    },
    endpoints::RENDERERS,
    ledger::AnyLedger,
    node::{files::Shares, limits::LiveLimits, readiness::Readiness, reload::Reload},
    observe::{
        Scrape, Sources,
        metrics::{Metrics, ledger::Measured},
        record::Calls,
        traces::{self, Exporter},
    },
    stack::{self, KEYS_MAX, Shared},
};

/// How long answers that are cut may take to say so.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often it is looked whether calls without clients have ended.
const FAREWELL_LOOK: Duration = Duration::from_millis(20);
/// Before what an earlier process left is looked at again, where that panicked.
const RECOVER_AGAIN: Duration = Duration::from_secs(1);
/// How long the charges of cut calls may take to be told, beyond the drain's own time.
const CUT_CHARGES: Duration = Duration::from_secs(5);
/// How long those of calls that have ended by themselves may at least, be it beyond that time.
const LAST_CHARGES: Duration = Duration::from_secs(1);
/// Calls that may run or wait to be settled: as many as `limits.in_flight_max` may be set to while they do.
const CALLS_MAX: usize = 1_000_000;

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
    /// Asks for the exchange rate.
    feed: JoinSet<()>,
    /// Where it asks.
    rate: RateConfig,
    /// Sends the spans of calls.
    exporter: Option<Exporter>,
}

impl Gateway {
    /// Opens the ledger, binds the ports and serves. Each settled or released call is told to
    /// `report`; see [`log_event`]. The line of each call in the log is written in any case.
    ///
    /// # Errors
    /// The ledger cannot be opened, or a port cannot be bound; the text says which.
    pub async fn build(
        config: &Config,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        Self::build_on(config, InheritedSockets::default(), report).await
    }

    /// The same, on sockets that are there already; where one is missing, its port is bound.
    ///
    /// # Errors
    /// See [`Gateway::build`].
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
        let limits = LiveLimits::new(config);
        let live = Arc::new(Live::new(config, version, RENDERERS));
        let metrics = Arc::new(Metrics::new(&config.service));
        metrics.follow(&live.snapshot());
        let (traces, exporter) = traces::start(config, &metrics.traces_dropped).unzip();
        let calls = Calls::traced(Arc::clone(&metrics), traces);
        let report = Arc::new(reporting(calls.clone(), report));
        let settings = SettlerSettings {
            calls_max: CALLS_MAX,
            // All that has ended goes to the store at once: it may keep what its server cannot take.
            under_way_max: CALLS_MAX,
            ..SettlerSettings::default()
        };
        let tokens = PostPaid::new(KEYS_MAX);
        let (settled, used) = (Arc::clone(&report), tokens.clone());
        let ledger = Measured::new(store.clone(), Arc::clone(&metrics));
        let (settler, settler_task) = Settler::new(ledger.clone(), settings, move |event| {
            take_tokens(&used, event);
            settled(event);
        });
        let health = Health::new();
        follow(&health, &live);
        let upstream = Upstream::new(limits.call_time_max.clone());
        let service = stack::callers(Shared {
            config,
            limits: &limits,
            live: &live,
            store: &store,
            settler: &settler,
            tokens: &tokens,
            health: &health,
            upstream: &upstream,
            calls: &calls,
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
            tls: None,
        };
        let readiness = Readiness::default();
        let (mut servers, mut loops, mut settler_run) =
            (JoinSet::new(), JoinSet::new(), JoinSet::new());
        let mut admin_address = None;
        let (admin_end, admin_open) = watch::channel(false);
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
            );
            let service = stack::operators(&admin.key, api);
            let settings = ServerSettings {
                connections: limits.admin_connections.clone(),
                open: OpenConnections::default(),
                ..server_settings.clone()
            };
            loops.spawn(server::serve(listener, service, settings, admin_open));
        } else if passed.admin.is_some() {
            tracing::warn!(
                "a socket was passed for operators, and the configuration has no [admin]"
            );
        }
        settler_run.spawn(readiness::settle(settler_task.run(), readiness.clone()));
        loops.spawn(readiness::watch(store.clone(), ledger, readiness.clone()));
        let earlier = store.clone();
        loops.spawn(async move {
            // What it has ended by then is not left any more.
            while catch_round("the end of earlier calls", earlier.recover(&*report))
                .await
                .is_none()
            {
                tokio::time::sleep(RECOVER_AGAIN).await;
            }
        });
        let mut rates = RateFeed::new(&config.live.rate);
        // So that the first call has a price.
        rates.refresh_into(&live).await;
        let mut feed = JoinSet::new();
        feed.spawn(rates.run(Arc::clone(&live), std::future::pending()));
        // Last: beside another process on the same port, whoever is sent here waits for nothing.
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
            rate: config.live.rate.clone(),
            exporter,
        })
    }

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

    /// Takes models, prices, vendors, rate sources, limits and the certificate of another configuration; what it
    /// does not take, [`need_restart`](crate::config::need_restart) says. Running calls and open connections go
    /// on as they began. Asks nobody but the ledger, and that only where prices have changed.
    ///
    /// # Errors
    /// The ledger gave no version for the changed prices. Nothing is taken then.
    pub async fn reload(&mut self, config: &Config) -> Result<TariffVersion, BookError> {
        let fingerprint = config.live.fingerprint();
        let version = if fingerprint == self.fingerprint {
            self.live.snapshot().version()
        } else {
            self.store.tariff_version(&fingerprint).await?
        };
        self.fingerprint = fingerprint;
        self.live.replace(config, version);
        follow(&self.health, &self.live);
        let snapshot = self.live.snapshot();
        self.metrics.follow(&snapshot);
        self.upstream
            .retain(snapshot.vendors().map(|vendor| &**vendor));
        self.limits.replace(config);
        if let (Some(tls), Some(identity)) = (&self.tls, &config.tls) {
            tls.renew(identity);
            tell_expiry(&self.metrics, identity);
        }
        if config.live.rate != self.rate {
            self.rate.clone_from(&config.live.rate);
            self.live.unfix_rate();
            let (mut feed, live) = (RateFeed::new(&self.rate), Arc::clone(&self.live));
            // The old one ends here. A slow source holds nothing up: the rate in force stays until it answers.
            self.feed = JoinSet::new();
            self.feed.spawn(async move {
                feed.refresh_into(&live).await;
                feed.run(live, std::future::pending()).await;
            });
        }
        Ok(version)
    }

    /// Takes no more calls, lets the running ones finish for a while, settles all, closes the ledger. It has
    /// [`Gateway::drain_timeout`] for all of that, and a few seconds more where calls had to be cut.
    ///
    /// # Errors
    /// Some calls could not be settled, and nothing keeps them: the ledger was out of reach to the end.
    pub async fn drain(mut self) -> anyhow::Result<()> {
        self.readiness.serving(false);
        self.draining.send_replace(true);
        let patience = self.drain_timeout();
        let until = Instant::now() + patience;
        let mut done = ended(&mut self.servers, patience).await;
        // Calls that go on without their clients have the same time.
        while done && self.calls.running() > 0 {
            tokio::time::sleep(FAREWELL_LOOK).await;
            done = Instant::now() < until;
        }
        if !done {
            tracing::warn!(
                calls = self.calls.running(),
                "cutting what did not finish in time"
            );
            self.calls.cut_running();
            ended(&mut self.servers, FAREWELL).await;
            self.servers.shutdown().await;
        }
        let unacknowledged = self.calls.unacknowledged();
        drop(self.calls);
        // With the last answer the last way into the settler's queue is gone.
        let patience = patience_for_charges(until, Instant::now(), !done);
        let settled = ended(&mut self.settler, patience).await && !self.readiness.is_broken();
        if !settled {
            // Or it would write into an outbox that is closed.
            self.settler.shutdown().await;
        }
        self.feed.shutdown().await;
        self.loops.shutdown().await;
        let kept = self.store.close().await;
        if let Some(exporter) = self.exporter {
            exporter.flush().await;
        }
        if settled {
            return Ok(());
        }
        // What could not be told to the ledger is on this machine's disk, or lost.
        let calls = unacknowledged.count();
        // What a settler that has died was told is neither in the ledger nor in the outbox.
        anyhow::ensure!(
            kept && !self.readiness.is_broken(),
            "the ledger could not be told of the end of {calls} calls in time; the next start charges what was \
             noted of them"
        );
        tracing::warn!(
            calls,
            outbox = %self.outbox.display(),
            "the ledger could not be told of the end of these calls: their charges are kept in the outbox, and \
             the next start on it tells them"
        );
        Ok(())
    }
}

/// How long the last charges may take to be told, where a drain has time `until` then.
fn patience_for_charges(until: Instant, now: Instant, calls_were_cut: bool) -> Duration {
    let least = if calls_were_cut {
        CUT_CHARGES
    } else {
        LAST_CHARGES
    };
    until.saturating_duration_since(now).max(least)
}

/// Whether all tasks end within a time.
async fn ended(tasks: &mut JoinSet<()>, patience: Duration) -> bool {
    let all = async { while tasks.join_next().await.is_some() {} };
    tokio::time::timeout(patience, all).await.is_ok()
}

fn tell_expiry(metrics: &Metrics, identity: &Identity) {
    if let Some(at_ms) = identity.expires_at_ms() {
        metrics.certificate_expires(at_ms / 1000);
    }
}

/// What is done with an event of the settler's: it is counted, logged and told to `report`, which may
/// panic for itself alone.
fn reporting(
    calls: Calls,
    report: impl Fn(&Event<'_>) + Send + Sync + 'static,
) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
    move |event: &Event<'_>| {
        calls.event(event);
        if catch_unwind(AssertUnwindSafe(|| report(event))).is_err() {
            tracing::error!("the report of a call panicked");
        }
    }
}

/// Serves until SIGTERM or SIGINT, then drains. SIGHUP, or a change of the files, lets it read them again.
///
/// # Errors
/// See [`Gateway::build`].
pub async fn serve(config: Config, file: &Path, files: Files) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let mut gateway = Gateway::build_on(&config, InheritedSockets::from_env()?, log_event).await?;
    let mut stop = StopSignals::listen()?;
    shares(&config, &gateway).warn_if_short();
    let admin = gateway.admin_address().map(tracing::field::display);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        address = %gateway.address(),
        admin,
        ledger = config.ledger.url.kind(),
        models = config.live.models.len(),
        "serving"
    );
    let mut reload = Reload::new(file, config, files);
    loop {
        tokio::select! {
            () = stop.next() => break,
            Some(()) = hangup.recv() => reload.now(&mut gateway).await,
            () = reload.due() => reload.look(&mut gateway).await,
        }
    }
    tracing::info!(
        seconds_max = gateway.drain_timeout().as_secs(),
        "draining; stop again to cut"
    );
    tokio::select! {
        drained = gateway.drain() => drained?,
        () = stop.next() => {
            anyhow::bail!("told to stop twice: running calls were cut; the next start charges what was noted of them");
        }
    }
    tracing::info!("stopped");
    Ok(())
}

/// The connections that the config allows.
fn shares(config: &Config, gateway: &Gateway) -> Shares {
    let snapshot = gateway.live.snapshot();
    // One comes as often as it has routes.
    let vendors: BTreeMap<_, _> = snapshot
        .vendors()
        .map(|vendor| (&*vendor.name, vendor.connections_max))
        .collect();
    let vendors = vendors.values().sum();
    let admin = config.admin.as_ref();
    Shares {
        callers: config.limits.connections.max,
        operators: admin.map_or(0, |admin| admin.connections_max),
        vendors,
        ..Shares::of_process(vendors)
    }
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// The signals cannot be listened to.
pub async fn until_told_to_stop() -> anyhow::Result<()> {
    StopSignals::listen()?.next().await;
    Ok(())
}

/// SIGTERM and SIGINT. One that comes while nobody waits is kept for the next who does.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Counts the tokens of a call towards its key's limit.
fn take_tokens(tokens: &PostPaid<KeyId>, event: &Event<'_>) {
    if let Event::Settled {
        settlement,
        settled,
    } = event
        && settled.moved()
    {
        let usage = settlement.item.usage;
        let total = usage.input_total().saturating_add(usage.output);
        tokens.take(&settlement.key, total);
    }
}

/// What an operator should know of an event beside the call's own line.
pub fn log_event(event: &Event<'_>) {
    match event {
        Event::Settled {
            settlement,
            settled,
        } if matches!(
            settled.booked,
            Booked::Stale | Booked::NoAccount | Booked::Released
        ) =>
        {
            tracing::error!(
                number = %settlement.number,
                account = %settlement.account,
                cost_rub = %settlement.cost,
                booked = settled.booked.as_str(),
                "a call was not charged: look into it"
            );
        }
        Event::Released { number } => tracing::debug!(%number, "released"),
        Event::Untended { cause } => {
            tracing::warn!(%cause, "running calls could not be noted or extended yet");
        }
        Event::Unavailable { number, cause } => tracing::warn!(%number, %cause, "not settled yet"),
        _ => {}
    }
}

/// A socket that was passed, or the address itself.
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

/// Keeps the health of the routes in force, and of no others.
fn follow(health: &Health, live: &Live) {
    let snapshot = live.snapshot();
    health.follow(snapshot.models().flat_map(|(model, _)| &model.routes));
}

#[cfg(test)]
mod tests {
    use tollgate_layers::facts::RequestNumber;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_charges_have_what_the_drain_has_left() {
        let now = Instant::now();
        for (left, cut, patience) in [(60, false, 60), (2, false, 2), (0, false, 1), (0, true, 5)] {
            let until = now + Duration::from_secs(left);
            let found = patience_for_charges(until, now, cut);
            assert_eq!(found, Duration::from_secs(patience), "{left} {cut}");
        }
        let over = patience_for_charges(now, now + Duration::from_secs(5), true);
        assert_eq!(over, CUT_CHARGES);
    }

    #[test]
    fn a_report_that_panics_is_caught() {
        let calls = Calls::new(Arc::new(Metrics::new("tollgate")));
        let report = reporting(calls, |_| panic!("a panic of the test's"));
        let number = RequestNumber::now_v7();
        report(&Event::Released { number });
    }
}

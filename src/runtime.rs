//! Everything with a socket or a task: builds the gateway from its config, runs it, and drains it.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use http::Request;
use hyper::body::Incoming;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::Instant,
};
use tollgate_layers::{
    failover::Health,
    parse::ParseLimits,
    reserve::{
        Event, Settler, SettlerSettings,
        ledger::{Booked, Bookkeeping},
    },
    upstream::Upstream,
};
use tower::service_fn;

use crate::{
    admin::Admin,
    config::{Config, Limits},
    live::Live,
    rate_feed::RateFeed,
    readiness::{self, Readiness},
    server::{self, ServerSettings},
    stack::stack,
    store::Store,
};

/// How long answers that are cut may take to say so.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often it is looked whether calls without clients have ended.
const FAREWELL_LOOK: Duration = Duration::from_millis(20);
/// How long the settler may go on after the last answer.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    store: Store,
    live: Arc<Live>,
    health: Health,
    upstream: Upstream,
    readiness: Readiness,
    draining: watch::Sender<bool>,
    /// Operators are served to the end of the drain.
    _admin_end: watch::Sender<bool>,
    /// Accept loops: they end when draining does.
    servers: JoinSet<()>,
    drain_timeout: Duration,
    /// Cuts the calls that still run when the drain's time is up.
    calls: Settler,
    /// Ends when the last answer is settled.
    settler: JoinSet<()>,
    /// Loops without an end of their own.
    loops: JoinSet<()>,
    /// Asks for the exchange rate.
    feed: JoinSet<()>,
}

impl Gateway {
    /// Opens the ledger, binds the ports and serves. Each settled or released call is told to
    /// `report`; see [`log_event`].
    ///
    /// # Errors
    /// The ledger cannot be opened, or a port cannot be bound; the text says which.
    pub async fn build(
        config: &Config,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let store = Store::open(&config.ledger).await?;
        let version = store
            .tariff_version(&config.live.fingerprint())
            .await
            .context("cannot read the tariff version")?;
        let live = Arc::new(Live::new(&config.live, version, &config.base_url));
        let report = Arc::new(report);
        let settings = SettlerSettings {
            calls_max: config.limits.in_flight_max,
            // All that has ended goes to the store at once: it may keep what its server cannot take.
            under_way_max: config.limits.in_flight_max,
            ..SettlerSettings::default()
        };
        let settled = Arc::clone(&report);
        let (settler, settler_task) =
            Settler::new(store.clone(), settings, move |event| settled(event));
        let health = Health::new();
        follow(&health, &live);
        let upstream = Upstream::new(config.limits.call_time_max);
        let service = stack(config, &live, &store, &settler, &health, &upstream);

        let listener = bind(config.listen, "listen").await?;
        let address = listener.local_addr()?;
        let (draining, drained) = watch::channel(false);
        let server_settings = ServerSettings {
            trusted_proxies: config.trusted_proxies.clone().into(),
            connections: config.limits.connections,
        };
        let readiness = Readiness::default();
        let (mut servers, mut loops, mut settler_run) =
            (JoinSet::new(), JoinSet::new(), JoinSet::new());
        let mut admin_address = None;
        let (admin_end, admin_open) = watch::channel(false);
        if let Some(admin) = &config.admin {
            let listener = bind(admin.listen, "admin.listen").await?;
            admin_address = Some(listener.local_addr()?);
            let admin = Arc::new(Admin::new(
                store.clone(),
                health.clone(),
                &admin.key,
                readiness.clone(),
            ));
            let service = service_fn(move |req: Request<Incoming>| {
                let admin = Arc::clone(&admin);
                async move { Ok(admin.handle(req).await) }
            });
            loops.spawn(server::serve(
                listener,
                service,
                server_settings.clone(),
                admin_open,
            ));
        }
        settler_run.spawn(settler_task.run());
        loops.spawn(readiness::watch(store.clone(), readiness.clone()));
        let earlier = store.clone();
        loops.spawn(async move { earlier.recover(&*report).await });
        let feed = feed(config, &live).await;
        servers.spawn(server::serve(listener, service, server_settings, drained));
        readiness.serving(true);
        Ok(Self {
            address,
            admin_address,
            store,
            live,
            health,
            upstream,
            readiness,
            draining,
            _admin_end: admin_end,
            drain_timeout: config.limits.drain_timeout,
            calls: settler,
            servers,
            settler: settler_run,
            loops,
            feed,
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
    pub const fn store(&self) -> &Store {
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

    /// Takes no more calls, lets the running ones finish for a while, settles all, closes the ledger.
    ///
    /// # Errors
    /// Some calls could not be settled: the ledger was out of reach to the end.
    pub async fn drain(mut self) -> anyhow::Result<()> {
        self.readiness.serving(false);
        self.draining.send_replace(true);
        let until = Instant::now() + self.drain_timeout;
        let mut done = ended(&mut self.servers, self.drain_timeout).await;
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
        drop(self.calls);
        // With the last answer the last way into the settler's queue is gone.
        let settled = ended(&mut self.settler, SETTLE_TIMEOUT).await;
        if !settled {
            // Or it would write into an outbox that is closed.
            self.settler.shutdown().await;
        }
        self.feed.shutdown().await;
        self.loops.shutdown().await;
        let kept = self.store.close().await;
        if settled {
            return Ok(());
        }
        // What could not be told to the ledger is on this machine's disk, or lost.
        let waiting = kept.context(
            "some calls were not settled in time; the next start charges what was noted of them",
        )?;
        tracing::warn!(
            waiting,
            "entries wait in the outbox for the ledger: they are booked at the next start"
        );
        Ok(())
    }
}

/// Whether all tasks end within a time.
async fn ended(tasks: &mut JoinSet<()>, patience: Duration) -> bool {
    let all = async { while tasks.join_next().await.is_some() {} };
    tokio::time::timeout(patience, all).await.is_ok()
}

/// Serves until SIGTERM or SIGINT, then drains. SIGHUP reads the file again.
///
/// # Errors
/// See [`Gateway::build`].
pub async fn serve(config: Config, file: &Path) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut gateway = Gateway::build(&config, log_event).await?;
    let mut stop = StopSignals::listen()?;
    let admin = gateway.admin_address().map(tracing::field::display);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        address = %gateway.address(),
        admin,
        ledger = config.ledger.url.kind(),
        models = config.live.models.len(),
        "serving"
    );
    loop {
        tokio::select! {
            () = stop.next() => break,
            Some(()) = hangup.recv() => reload(&mut gateway, file).await,
        }
    }
    tracing::info!(
        seconds_max = config.limits.drain_timeout.as_secs(),
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

/// Takes models, prices and vendors from the file. A file with mistakes changes nothing.
async fn reload(gateway: &mut Gateway, file: &Path) {
    let config = match Config::load(file) {
        Ok(config) => config,
        Err(errors) => {
            for error in errors.iter() {
                tracing::error!("not reloaded: {error}");
            }
            return;
        }
    };
    match gateway
        .store
        .tariff_version(&config.live.fingerprint())
        .await
    {
        Ok(version) => {
            gateway
                .live
                .replace(&config.live, version, &config.base_url);
            follow(&gateway.health, &gateway.live);
            let snapshot = gateway.live.snapshot();
            let vendors = snapshot.vendors().map(|vendor| &**vendor);
            gateway.upstream.retain(vendors);
            gateway.feed = feed(&config, &gateway.live).await;
            tracing::info!(
                price_version = version.id,
                "reloaded models, prices, vendors and rate sources; the rest needs a restart"
            );
        }
        Err(error) => tracing::error!(%error, "not reloaded: the tariff version cannot be read"),
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

/// One line in the log for each call that was charged.
pub fn log_event(event: &Event<'_>) {
    match event {
        Event::Settled {
            settlement,
            settled,
        } => {
            let usage = settlement.item.usage;
            if matches!(
                settled.booked,
                Booked::Stale | Booked::NoAccount | Booked::Released
            ) {
                tracing::error!(
                    number = %settlement.number,
                    account = %settlement.account,
                    cost_rub = %settlement.cost,
                    booked = ?settled.booked,
                    "a call was not charged: look into it"
                );
            }
            tracing::info!(
                number = %settlement.number,
                account = %settlement.account,
                key = %settlement.key,
                model = settlement.item.model,
                vendor = settlement.item.vendor,
                input = usage.input,
                cached_input = usage.cached_input,
                cache_write = usage.cache_write,
                output = usage.output,
                held_rub = %settlement.held,
                charged_rub = %settled.charged,
                loss_rub = %settled.loss,
                booked = ?settled.booked,
                end = ?settlement.item.end,
                estimated = settlement.item.estimated,
                "call"
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

/// The part of the limits that `parse` keeps.
pub(crate) fn parse_limits(limits: &Limits) -> ParseLimits {
    ParseLimits {
        body_bytes_max: limits.body_bytes_max,
        bodies_bytes_max: limits.body_bytes_in_flight_max,
        body_time_max: limits.body_timeout,
        body_rate_min: limits.body_rate_min,
        messages_max: limits.messages_max,
    }
}

async fn bind(address: SocketAddr, field: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("{field}: cannot listen on {address}"))
}

/// Keeps the health of the routes in force, and of no others.
fn follow(health: &Health, live: &Live) {
    let snapshot = live.snapshot();
    health.follow(snapshot.models().flat_map(|(model, _)| &model.routes));
}

/// Asks for the exchange rate once, so that the first call has a price, and then again and again.
async fn feed(config: &Config, live: &Arc<Live>) -> JoinSet<()> {
    let mut feed = RateFeed::new(&config.live.rate);
    feed.refresh_into(live).await;
    let mut run = JoinSet::new();
    run.spawn(feed.run(Arc::clone(live), std::future::pending()));
    run
}

//! Everything with a socket or a task: builds the gateway from its config, runs it, and drains it.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use http::Request;
use hyper::body::Incoming;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
};
use tollgate_layers::{
    failover::Health,
    parse::ParseLimits,
    reserve::{
        Event, Settler, SettlerSettings,
        ledger::{Bookkeeping, Ledger},
    },
};
use tower::service_fn;

use crate::{
    admin::Admin,
    config::{Config, Limits},
    live::Live,
    rate_feed::RateFeed,
    server::{self, ServerSettings},
    stack::stack,
    store::Store,
};

/// The longest a call may take.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(15 * 60);
/// A hold outlives the longest call: the last attempt begins within 150 s, and takes no longer than one
/// call may.
pub const HOLD_TTL: Duration = Duration::from_secs(19 * 60);
/// How often holds past their time are looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(5);
/// How long the settler may go on after the last answer.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether this node should get traffic: it serves, and its ledger answers.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Ready>);

#[derive(Debug, Default)]
struct Ready {
    serving: AtomicBool,
    ledger_answers: AtomicBool,
}

impl Readiness {
    /// Whether it should.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.serving.load(Ordering::Relaxed) && self.0.ledger_answers.load(Ordering::Relaxed)
    }

    fn serving(&self, serving: bool) {
        self.0.serving.store(serving, Ordering::Relaxed);
    }

    fn ledger_answers(&self, answers: bool) {
        self.0.ledger_answers.store(answers, Ordering::Relaxed);
    }
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    store: Store,
    live: Arc<Live>,
    health: Health,
    readiness: Readiness,
    draining: watch::Sender<bool>,
    /// Accept loops: they end when draining does.
    servers: JoinSet<()>,
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
        let store = Store::open(&config.ledger.url).await?;
        let version = store
            .tariff_version(&config.live.fingerprint())
            .await
            .context("cannot read the tariff version")?;
        let live = Arc::new(Live::new(&config.live, version, &config.base_url));
        let settings = SettlerSettings {
            calls_max: config.limits.in_flight_max,
            ..SettlerSettings::default()
        };
        let (settler, settler_task) = Settler::new(store.clone(), settings, report);
        let health = Health::new();
        follow(&health, &live);
        let service = stack(config, &live, &store, &settler, &health);

        let listener = bind(config.listen, "listen").await?;
        let address = listener.local_addr()?;
        let (draining, drained) = watch::channel(false);
        let server_settings = ServerSettings {
            trusted_proxies: config.trusted_proxies.clone().into(),
            drain_timeout: config.limits.drain_timeout,
        };
        let readiness = Readiness::default();
        let (mut servers, mut loops, mut settler_run) =
            (JoinSet::new(), JoinSet::new(), JoinSet::new());
        let mut admin_address = None;
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
                drained.clone(),
            ));
        }
        settler_run.spawn(settler_task.run());
        readiness.ledger_answers(true);
        loops.spawn(expire(store.clone(), readiness.clone()));
        let feed = feed(config, &live).await;
        servers.spawn(server::serve(listener, service, server_settings, drained));
        readiness.serving(true);
        Ok(Self {
            address,
            admin_address,
            store,
            live,
            health,
            readiness,
            draining,
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
        while self.servers.join_next().await.is_some() {}
        // With the last answer the last way into the settler's queue is gone.
        let settled = async { while self.settler.join_next().await.is_some() {} };
        let settled = tokio::time::timeout(SETTLE_TIMEOUT, settled).await;
        self.feed.shutdown().await;
        self.loops.shutdown().await;
        self.store.close().await;
        settled.context("some calls were not charged: the ledger stayed out of reach")
    }
}

/// Serves until SIGTERM or SIGINT, then drains. SIGHUP reads the file again.
///
/// # Errors
/// See [`Gateway::build`].
pub async fn serve(config: Config, file: &Path) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut gateway = Gateway::build(&config, log_event).await?;
    let admin = gateway.admin_address().map(tracing::field::display);
    tracing::info!(address = %gateway.address(), admin, "serving");
    let mut stop = std::pin::pin!(until_told_to_stop());
    loop {
        tokio::select! {
            stopped = &mut stop => break stopped?,
            Some(()) = hangup.recv() => reload(&mut gateway, file).await,
        }
    }
    tracing::info!(
        seconds_max = config.limits.drain_timeout.as_secs(),
        "draining; stop again to cut"
    );
    tokio::select! {
        drained = gateway.drain() => drained?,
        stopped = until_told_to_stop() => {
            stopped?;
            anyhow::bail!("told to stop twice: running calls were cut and may not be charged");
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
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// One line in the log for each call that was charged.
pub fn log_event(event: &Event<'_>) {
    match event {
        Event::Settled {
            settlement,
            settled,
        } => {
            let usage = settlement.item.usage;
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
        Event::Unavailable { number, cause } => tracing::warn!(%number, %cause, "not settled yet"),
        _ => {}
    }
}

/// The part of the limits that `parse` keeps.
pub(crate) fn parse_limits(limits: &Limits) -> ParseLimits {
    ParseLimits {
        body_bytes_max: limits.body_bytes_max,
        body_time_max: limits.body_timeout,
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

/// Ends holds that are past their time; where that cannot be asked, this node is not ready.
async fn expire(store: Store, readiness: Readiness) {
    loop {
        tokio::time::sleep(EXPIRE_EVERY).await;
        let expired = store.expire().await;
        readiness.ledger_answers(expired.is_ok());
        match expired {
            Ok(0) => {}
            Ok(count) => tracing::warn!(count, "holds expired"),
            Err(error) => tracing::warn!(%error, "not ready: the ledger is out of reach"),
        }
    }
}

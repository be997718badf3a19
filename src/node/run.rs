//! The process: serves until it is told to stop, and takes changed files meanwhile.

use std::{collections::BTreeMap, path::Path};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Gateway, events::log_event, files::Shares, reload::Reload};
use crate::{
    config::{Config, Files},
    edge::server::InheritedSockets,
};

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

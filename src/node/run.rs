//! The gateway process: serves until a signal stops it, and meanwhile reloads changed files.

use std::{collections::BTreeMap, path::Path};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{events::log_event, gateway::Gateway, reload::Reload};
use crate::{
    config::{Config, Files},
    edge::server::InheritedSockets,
    net::files::Shares,
};

/// Serves until SIGTERM or SIGINT, then drains. Meanwhile, reloads the files on SIGHUP and when they change.
///
/// # Errors
/// An error if the gateway cannot be built (see [`Gateway::build`]), if signals cannot be received, or if the drain
/// loses charges.
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
        commit = crate::COMMIT,
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
            Some(()) = hangup.recv() => drop(reload.now(&mut gateway).await),
            Some(done) = gateway.reloads.recv() => {
                // The sending fails if the operator no longer waits for the result.
                let _ = done.send(reload.now(&mut gateway).await);
            }
            () = reload.due() => reload.look(&mut gateway).await,
        }
    }
    tracing::info!(
        seconds_max = gateway.drain_timeout().as_secs(),
        "draining: waiting for calls in flight; send the signal again to cut them"
    );
    tokio::select! {
        drained = gateway.drain() => drained?,
        () = stop.next() => {
            anyhow::bail!(
                "stopped by a second signal: calls in flight were cut; the next start charges the costs recorded at \
                 their last checkpoints"
            );
        }
    }
    tracing::info!("stopped");
    Ok(())
}

/// Returns how many connections the configuration allows for callers, for operators and for vendors. All of them count
/// towards the number of files that the process may open.
fn shares(config: &Config, gateway: &Gateway) -> Shares {
    let snapshot = gateway.live.snapshot();
    // The snapshot contains a vendor once per route of this vendor. The map keeps it once.
    let vendors = snapshot.vendors();
    let vendors = vendors.map(|vendor| (&*vendor.name, vendor.connections_max));
    let vendors = BTreeMap::from_iter(vendors).values().sum();
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
/// An error if signals cannot be received.
pub async fn until_told_to_stop() -> anyhow::Result<()> {
    StopSignals::listen()?.next().await;
    Ok(())
}

/// Receives SIGTERM and SIGINT. A signal that arrives while no task waits for it is returned by the next wait.
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

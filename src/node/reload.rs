//! Reloads the configuration of a running gateway: on SIGHUP, and when the configuration's files have changed.
//!
//! A changed file is applied when two consecutive checks have found the same content. So a file is never applied while
//! it is being written. A mistake in the file is logged once, and the old configuration stays in force.

use std::{
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tollgate_layers::reserve::ledger::{BookError, LedgerAdmin, TariffVersion};

use super::{
    build::{follow, publish_expiry},
    gateway::Gateway,
};
use crate::{
    catalog::{rate_feed::RateFeed, tariffs},
    config::{Config, Files, Loaded, need_restart},
    edge::panics::catch_round,
};

/// The pause before files that have just changed are checked again.
const SETTLE: Duration = Duration::from_secs(1);
/// The pause before a reload is repeated if the ledger did not respond. Used only if the files are not polled.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// The configuration in force, and the state of its files when they were last checked.
#[derive(Debug)]
pub struct Reload {
    file: PathBuf,
    /// The configuration with which the process started. Settings that need a restart keep these values until the
    /// process ends.
    started: Config,
    /// The interval between checks of the files; `None` if the files are checked only on SIGHUP.
    every: Option<Duration>,
    next_look: Option<Instant>,
    /// The state of the files when they were last applied or rejected.
    known: Files,
    /// The state of the files at the last check, if it differs from `known`.
    changed: Option<Files>,
    /// Whether a reload is due again because the ledger did not respond.
    put_off: bool,
}

impl Reload {
    /// Creates the state of reloads for a gateway that was started with `config`, which was read from `files`.
    #[must_use]
    pub fn new(file: &Path, config: Config, files: Files) -> Self {
        let every = config.reload_poll;
        Self {
            file: file.to_owned(),
            started: config,
            every,
            next_look: every.map(|every| Instant::now() + every),
            known: files,
            changed: None,
            put_off: false,
        }
    }

    /// Completes when the next check of the files is due.
    pub async fn due(&self) {
        match self.next_look {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Checks the files. If they have changed and are no longer being written, applies them.
    pub async fn look(&mut self, gateway: &mut Gateway) {
        self.next_look = self.every.map(|every| Instant::now() + every);
        let ended = catch_round("the reload", self.look_once(gateway)).await;
        ended.unwrap_or_else(|| gateway.metrics().reloaded(false));
    }

    /// Applies the files now, even if they are unchanged. Returns whether the content of the files is in force
    /// afterwards.
    pub async fn now(&mut self, gateway: &mut Gateway) -> bool {
        self.put_off = false;
        let ended = catch_round("the reload", self.read(gateway, None)).await;
        if ended.is_none() {
            gateway.metrics().reloaded(false);
        }
        ended == Some(true)
    }

    async fn look_once(&mut self, gateway: &mut Gateway) {
        let known = self.known.clone();
        let found = off_thread(move || known.look()).await;
        if found == self.known {
            self.changed = None;
        } else if self.changed.as_ref() == Some(&found) {
            let _applied = self.read(gateway, Some(&found)).await;
        } else {
            self.look_soon(found);
        }
    }

    fn look_soon(&mut self, found: Files) {
        self.changed = Some(found);
        let soon = self.every.map_or(SETTLE, |every| every.min(SETTLE));
        self.next_look = Some(Instant::now() + soon);
    }

    /// Reads and applies the files. Files that differ from `found` are still being written; they are not applied now,
    /// but checked again soon. Returns whether the content of the files is in force.
    async fn read(&mut self, gateway: &mut Gateway, found: Option<&Files>) -> bool {
        let file = self.file.clone();
        let Loaded { config, files } = off_thread(move || Config::read(&file)).await;
        if found.is_some_and(|found| !found.agrees_with(&files)) {
            self.look_soon(files);
            return false;
        }
        let config = match config {
            Ok(config) => config,
            Err(errors) => {
                for error in errors.iter() {
                    tracing::error!(file = %self.file.display(), "configuration not reloaded: {error}");
                }
                gateway.metrics().reloaded(false);
                self.settled(files);
                return false;
            }
        };
        match gateway.reload(&config).await {
            Ok(version) => {
                gateway.metrics().reloaded(true);
                tracing::info!(price_version = version.id, "reloaded");
                for warning in &config.warnings {
                    tracing::warn!("{warning}");
                }
                let fields = need_restart(&self.started, &config);
                if !fields.is_empty() {
                    let fields = fields.join(", ");
                    tracing::warn!(
                        needs_restart = fields,
                        "some of the changed settings take effect only after a restart"
                    );
                }
                self.every = config.reload_poll;
                self.next_look = self.every.map(|every| Instant::now() + every);
                self.settled(files);
                true
            }
            Err(error) => {
                if !self.put_off {
                    gateway.metrics().reloaded(false);
                    tracing::error!(
                        %error,
                        "configuration not reloaded yet: the ledger returned no tariff version for the changed prices"
                    );
                }
                self.put_off = true;
                self.changed = Some(files);
                self.next_look = Some(Instant::now() + self.every.unwrap_or(ASK_AGAIN));
                false
            }
        }
    }

    fn settled(&mut self, files: Files) {
        self.known = files;
        self.changed = None;
        self.put_off = false;
    }
}

impl Gateway {
    /// Applies the models, prices, vendors, rate sources, limits and the certificate of another configuration.
    /// [`need_restart`] lists the settings that a reload cannot apply. Calls in flight and open connections continue
    /// under the old settings. If the prices have changed, their tariff version is requested from the ledger. A reload
    /// changes only this process.
    ///
    /// # Errors
    /// An error if the ledger returns no tariff version for the changed prices. In this case, nothing is applied.
    pub async fn reload(&mut self, config: &Config) -> Result<TariffVersion, BookError> {
        let fingerprint = config.live.fingerprint();
        let version = if fingerprint == self.fingerprint {
            self.live.snapshot().version()
        } else {
            let version = self.store.tariff_version(&fingerprint).await?;
            tariffs::keep(&self.store, version, &config.live).await;
            version
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
            publish_expiry(&self.metrics, identity);
        }
        if config.receivers != self.receivers {
            self.receivers.clone_from(&config.receivers);
            // Deliveries in progress to the old receivers are dropped, and their events are sent again.
            self.deliveries = self.dispatcher.replace(&self.receivers);
        }
        if config.live.rate != self.rate {
            self.rate.clone_from(&config.live.rate);
            self.live.unfix_rate();
            let (mut feed, live) = (RateFeed::new(&self.rate), Arc::clone(&self.live));
            // Replacing the set of tasks ends the old task. A slow source delays nothing: the old rate stays in force
            // until the source responds.
            self.feed = JoinSet::new();
            self.feed.spawn(async move {
                feed.refresh_into(&live).await;
                feed.run(live, std::future::pending()).await;
            });
        }
        Ok(version)
    }
}

/// Runs `work`, which waits for the disk, on a thread for blocking work. Panics if `work` panics.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|ended| resume_unwind(ended.into_panic()))
}

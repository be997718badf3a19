//! Emits events for conditions that the ledger itself does not detect: unavailable vendors, a stale exchange rate, keys
//! that expire soon, and calls sold below cost. Each event is emitted once, even if several gateways detect the
//! condition.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Instant,
};
use tollgate_layers::{
    failover::{BreakerState, Health, VendorState},
    key::KeyStatus,
    reserve::Event as Ended,
};
use tollgate_ledger::{
    contract::{BookError, EventStore, LeaderLease, LedgerAdmin, OnceEvent},
    happening::Happening,
};
use uuid::Uuid;

use super::conditions::{Events, Report, known, report};
use crate::{
    catalog::snapshot::Live,
    edge::panics::catch_round,
    ledger::AnyLedger,
    text::time::{day, millis, now_ms},
};

const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How often the reports of killed gateways are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How often one gateway of a ledger checks the expiry of all keys.
const KEYS_EVERY: Duration = Duration::from_secs(3600);
/// How long before a key's expiry the event about it is emitted: 7 days, in milliseconds.
const EXPIRING_MS: u64 = 7 * 24 * 3_600_000;
/// Maximum number of calls sold below cost that wait in the queue. Further calls are dropped, because later calls of
/// the same model and vendor cause the same event.
const MARGINS_MAX: usize = 64;

const RATE: &str = "rate";
const VENDOR: &str = "vendor/";

/// A call that was sold below its cost, waiting until an event about it is emitted.
#[derive(Debug)]
pub(crate) struct Below(Happening);

/// Gets each ended call from the settler, and queues those that were sold below their cost. Never blocks.
#[derive(Clone, Debug)]
pub(crate) struct Margins(Sender<Below>);

impl Margins {
    /// Queues a charged call, if it was sold below its cost.
    pub(crate) fn check(&self, ended: &Ended<'_>) {
        let Ended::Settled {
            settlement,
            settled,
        } = ended
        else {
            return;
        };
        let item = &settlement.item;
        let Some(cost) = item.vendor_cost_rub.filter(|cost| settled.charged < *cost) else {
            return;
        };
        if !settled.moved() {
            return;
        }
        let below = Happening::MarginNegative {
            model: item.model.clone(),
            vendor: item.vendor.clone(),
            charged_rub: settled.charged,
            vendor_cost_rub: cost,
            by: settlement.number.to_string(),
        };
        // If the queue is full, this event is dropped. A later call of the same model and vendor will cause it again.
        let _ = self.0.try_send(Below(below));
    }
}

/// Checks conditions periodically, and emits the events about them.
#[derive(Debug)]
pub(crate) struct Watcher {
    store: AnyLedger,
    live: Arc<Live>,
    health: Health,
    owner: String,
    below: Receiver<Below>,
    /// The conditions that this gateway reported at the last check.
    reported: HashSet<String>,
    /// The Unix time (ms) at which the exchange rate was last read.
    rate_ms: u64,
    swept: Option<Instant>,
    keys_checked: Option<Instant>,
    /// A day, and the models and vendors for which an event about calls sold below cost was emitted on this day.
    margins: (String, HashSet<String>),
}

impl Watcher {
    pub(crate) fn new(store: AnyLedger, live: Arc<Live>, health: Health) -> (Self, Margins) {
        let (sender, below) = channel(MARGINS_MAX);
        let watcher = Self {
            store,
            live,
            health,
            owner: Uuid::now_v7().to_string(),
            below,
            reported: HashSet::new(),
            rate_ms: now_ms(),
            swept: None,
            keys_checked: None,
            margins: Default::default(),
        };
        (watcher, Margins(sender))
    }

    /// Checks all conditions periodically. Never returns.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {
                    let checked = catch_round("the vendor check", self.check(now_ms())).await;
                    if let Some(Err(error)) = checked {
                        tracing::debug!(%error, "the gateway's own events are not emitted yet");
                    }
                }
                Some(Below(what)) = self.below.recv() => {
                    let reported = catch_round("the margin check", self.report_margin(what, now_ms()));
                    if let Some(Err(error)) = reported.await {
                        tracing::debug!(%error, "the event for a call sold below its cost is not emitted yet");
                    }
                }
            }
        }
    }

    async fn check(&mut self, now_ms: u64) -> Result<(), BookError> {
        let conditions = self.conditions(now_ms);
        let sweep = self.swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY);
        let mut names = &self.reported | &conditions;
        if sweep {
            names.extend(known(&self.store).await?);
        }
        for name in names {
            let is_true = conditions.contains(&name);
            let Some(events) = self.events_of(&name) else {
                continue;
            };
            let own = Report {
                name: &name,
                owner: &self.owner,
                is_true,
            };
            report(&self.store, &own, &events, now_ms).await?;
            if is_true {
                self.reported.insert(name);
            } else {
                self.reported.remove(&name);
            }
        }
        if sweep {
            self.swept = Some(Instant::now());
        }
        let is_due = |at: Instant| at.elapsed() >= KEYS_EVERY;
        if self.keys_checked.is_none_or(is_due) {
            self.check_keys(now_ms).await?;
            self.keys_checked = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns the conditions that are true at this gateway now.
    fn conditions(&mut self, now_ms: u64) -> HashSet<String> {
        let vendors = self.health.snapshot();
        let out = vendors.iter().filter(|vendor| is_out(vendor));
        let out = out.map(|vendor| format!("{VENDOR}{}", vendor.name));
        let mut conditions: HashSet<_> = out.collect();
        match self.live.snapshot().rate() {
            Some(reading) => {
                let age = reading.at.map(|at| at.elapsed()).unwrap_or_default();
                self.rate_ms = now_ms.saturating_sub(millis(age));
            }
            None => drop(conditions.insert(RATE.to_owned())),
        }
        conditions
    }

    fn events_of(&self, name: &str) -> Option<Events> {
        if name == RATE {
            let since_ms = self.rate_ms;
            return Some(Events {
                begin: Happening::RateStale { since_ms },
                end: None,
            });
        }
        let vendor = name.strip_prefix(VENDOR)?;
        let vendor = vendor.to_owned();
        Some(Events {
            end: Some(Happening::VendorBack {
                vendor: vendor.clone(),
            }),
            begin: Happening::VendorOut { vendor },
        })
    }

    async fn check_keys(&self, now_ms: u64) -> Result<(), BookError> {
        let nearly = KEYS_EVERY * 9 / 10;
        if !self.store.lead("keys", &self.owner, nearly).await? {
            return Ok(());
        }
        for account in self.store.accounts().await? {
            for key in self.store.keys(&account.id).await? {
                let record = key.record;
                let Some(expires_at_ms) = record.expires_at_ms else {
                    continue;
                };
                let soon = (now_ms..now_ms + EXPIRING_MS).contains(&expires_at_ms);
                if !soon || record.status != KeyStatus::Active {
                    continue;
                }
                let event = OnceEvent {
                    once: format!("key_expiring:{}:{expires_at_ms}", record.id),
                    account: Some(record.account),
                    key: Some(record.id),
                    what: Happening::KeyExpiring { expires_at_ms },
                };
                self.store.emit_once(&event).await?;
            }
        }
        Ok(())
    }

    /// Emits an event about a call sold below its cost, at most once per day for each model and vendor.
    async fn report_margin(&mut self, what: Happening, now_ms: u64) -> Result<(), BookError> {
        let Happening::MarginNegative { model, vendor, .. } = &what else {
            return Ok(());
        };
        let today = day(now_ms);
        if self.margins.0 != today {
            self.margins = (today, HashSet::new());
        }
        let once = format!("margin_negative:{}:{model}:{vendor}", self.margins.0);
        if self.margins.1.contains(&once) {
            return Ok(());
        }
        let event = OnceEvent {
            once: once.clone(),
            account: None,
            key: None,
            what,
        };
        self.store.emit_once(&event).await?;
        self.margins.1.insert(once);
        Ok(())
    }
}

/// Returns whether a vendor gets no calls: an operator has disabled it, or none of its routes has a closed breaker.
fn is_out(vendor: &VendorState) -> bool {
    let mut routes = vendor.routes.iter();
    let is_shut = !vendor.routes.is_empty() && routes.all(|it| it.breaker != BreakerState::Closed);
    vendor.disabled || is_shut
}

//! Emits events for conditions that the ledger does not detect itself: unavailable vendors, a stale exchange rate, keys
//! that expire soon, calls sold below their cost. Each event is emitted once, even if several gateways detect its
//! cause.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

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

use super::conditions::{Told, Word, known, say};
use crate::{
    catalog::snapshot::Live,
    edge::panics::catch_round,
    ledger::AnyLedger,
    text::time::{day, now_ms},
};

const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The interval at which reports of gateways that were killed are swept.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// The interval at which all keys are checked, by one gateway of a ledger.
const KEYS_EVERY: Duration = Duration::from_secs(3600);
/// How long before a key's expiry the event is emitted: 7 days.
const EXPIRING_MS: u64 = 7 * 24 * 3_600_000;
/// The maximum number of calls in the queue for events. Further calls are dropped from the queue, because later calls
/// of the same model and vendor will cause the same event.
const MARGINS_MAX: usize = 64;

const RATE: &str = "rate";
const VENDOR: &str = "vendor/";

/// A call that was sold below its cost, queued until its event is emitted.
#[derive(Debug)]
pub(crate) struct Below(Happening);

/// Receives ended calls from the settler, and queues those sold below their cost. Never blocks.
#[derive(Clone, Debug)]
pub(crate) struct Margins(Sender<Below>);

impl Margins {
    /// Checks whether a charged call was sold below its cost.
    pub(crate) fn note(&self, ended: &Ended<'_>) {
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
        // If the queue is full, a later call of the same model and vendor causes the event.
        let _ = self.0.try_send(Below(below));
    }
}

/// Checks the conditions periodically, and emits their events.
#[derive(Debug)]
pub(crate) struct Watcher {
    store: AnyLedger,
    live: Arc<Live>,
    health: Health,
    owner: String,
    below: Receiver<Below>,
    /// The conditions that this gateway has reported.
    seen: HashSet<String>,
    /// The time at which the exchange rate was last read, in Unix milliseconds.
    rate_ms: u64,
    swept: Option<Instant>,
    keys_looked: Option<Instant>,
    /// A day, and the models and vendors for which an event was emitted on that day.
    reported: (String, HashSet<String>),
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
            seen: HashSet::new(),
            rate_ms: now_ms(),
            swept: None,
            keys_looked: None,
            reported: Default::default(),
        };
        (watcher, Margins(sender))
    }

    /// Runs the checks of all conditions. Never returns.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {
                    let looked = catch_round("the check of vendors", self.look(now_ms())).await;
                    if let Some(Err(error)) = looked {
                        tracing::debug!(%error, "the gateway's own events are not emitted yet");
                    }
                }
                Some(Below(what)) = self.below.recv() => {
                    let reported = catch_round("the check of margins", self.tell_margin(what, now_ms()));
                    if let Some(Err(error)) = reported.await {
                        tracing::debug!(%error, "the event for a call sold below its cost is not emitted yet");
                    }
                }
            }
        }
    }

    async fn look(&mut self, now_ms: u64) -> Result<(), BookError> {
        let sees = self.sees(now_ms);
        let sweep = self.swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY);
        let mut names: HashSet<String> = self.seen.iter().cloned().collect();
        names.extend(sees.keys().cloned());
        if sweep {
            names.extend(known(&self.store).await?);
        }
        for name in names {
            let (owner, sees_it) = (self.owner.as_str(), sees.contains_key(&name));
            let Some(reported) = self.told_of(&name) else {
                continue;
            };
            let word = Word {
                name: &name,
                owner,
                sees: sees_it,
            };
            say(&self.store, &word, &reported, now_ms).await?;
            if sees_it {
                self.seen.insert(name);
            } else {
                self.seen.remove(&name);
            }
        }
        if sweep {
            self.swept = Some(Instant::now());
        }
        if self.keys_looked.is_none_or(|at| at.elapsed() >= KEYS_EVERY) {
            self.look_at_keys(now_ms).await?;
            self.keys_looked = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns the conditions that are true on this gateway now.
    fn sees(&mut self, now_ms: u64) -> BTreeMap<String, ()> {
        let vendors = self.health.snapshot();
        let out = vendors.iter().filter(|vendor| is_out(vendor));
        let mut sees: BTreeMap<_, _> = out
            .map(|vendor| (format!("{VENDOR}{}", vendor.name), ()))
            .collect();
        match self.live.snapshot().rate() {
            Some(reading) => {
                let age = reading.at.map(|at| at.elapsed()).unwrap_or_default();
                let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                self.rate_ms = now_ms.saturating_sub(age);
            }
            None => drop(sees.insert(RATE.to_owned(), ())),
        }
        sees
    }

    fn told_of(&self, name: &str) -> Option<Told> {
        if name == RATE {
            let since_ms = self.rate_ms;
            return Some(Told {
                begin: Happening::RateStale { since_ms },
                end: None,
            });
        }
        let vendor = name.strip_prefix(VENDOR)?;
        Some(Told {
            begin: Happening::VendorOut {
                vendor: vendor.to_owned(),
            },
            end: Some(Happening::VendorBack {
                vendor: vendor.to_owned(),
            }),
        })
    }

    async fn look_at_keys(&self, now_ms: u64) -> Result<(), BookError> {
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

    /// Emits at most one event per day for each model at each vendor.
    async fn tell_margin(&mut self, what: Happening, now_ms: u64) -> Result<(), BookError> {
        let Happening::MarginNegative { model, vendor, .. } = &what else {
            return Ok(());
        };
        let today = day(now_ms);
        if self.reported.0 != today {
            self.reported = (today, HashSet::new());
        }
        let once = format!("margin_negative:{}:{model}:{vendor}", self.reported.0);
        if self.reported.1.contains(&once) {
            return Ok(());
        }
        let event = OnceEvent {
            once: once.clone(),
            account: None,
            key: None,
            what,
        };
        self.store.emit_once(&event).await?;
        self.reported.1.insert(once);
        Ok(())
    }
}

/// Returns whether no calls are sent to the vendor, because an operator has disabled it or none of its routes has a
/// closed breaker.
fn is_out(vendor: &VendorState) -> bool {
    let shut =
        |route: &tollgate_layers::failover::RouteState| route.breaker != BreakerState::Closed;
    vendor.disabled || (!vendor.routes.is_empty() && vendor.routes.iter().all(shut))
}

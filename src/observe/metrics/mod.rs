//! Metrics of the gateway, served at `GET /metrics` on the operators' listener.
//!
//! Counters are incremented when a request, an attempt or a ledger operation ends, and when a call is settled. Current
//! state (open holds, breakers, the outbox) is read at each scrape and passed in as `Readings`, so this module depends
//! neither on calls nor on the components that have this state. The only labels are paths, statuses, codes and names
//! from the configuration, so callers cannot create series. There is no global registry: each gateway creates its own
//! [`Metrics`].
//!
//! `docs/metrics.md` lists all metrics; a test compares the list with a scrape.

/// Registers metrics that are fields of a struct. Each metric is given as its field, its name and its help text.
macro_rules! series {
    ($registry:ident, $of:ident: $($($field:tt).+ $name:literal $help:literal;)+) => {
        $($registry.register($name, $help, $of.$($field).+.clone());)+
    };
}

pub(crate) mod events;
mod families;
pub(crate) mod idempotency;
mod leases;
pub(crate) mod ledger;
mod parts;
pub(crate) mod payments;
mod process;
mod rates;
pub(crate) mod requests;
pub(crate) mod sales;
mod state;
pub(crate) mod text;
pub(crate) mod vendors;

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

pub(crate) use self::state::Readings;
use self::{
    events::Deliveries, families::WordLabel, idempotency::Idempotency, leases::Leases,
    ledger::LedgerTimes, payments::Payments, process::Process, rates::Rates, requests::Requests,
    sales::Sales, state::State, text::Format, vendors::Vendors,
};
use crate::{catalog::snapshot::Snapshot, text::time::now_ms};

/// All metrics of a gateway.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub(crate) requests: Requests,
    pub(crate) sales: Sales,
    pub(crate) vendors: Vendors,
    pub(crate) ledger: Arc<LedgerTimes>,
    pub(crate) events: Deliveries,
    pub(crate) payments: Payments,
    pub(crate) idempotency: Idempotency,
    /// Number of traced calls whose spans were dropped.
    pub(crate) traces_dropped: Counter,
    /// Number of unbooked calls (calls without a receipt) whose records were dropped before they were stored.
    pub(crate) refused_calls_dropped: Counter,
    reloads: Family<WordLabel, Counter>,
    loaded: Gauge,
    /// Metrics that are set when they are read. The mutex lets one scrape at a time set and read them.
    scraped: Mutex<(State, Leases, Rates, Process)>,
}

impl Metrics {
    /// Creates all metrics, with counters at zero. `service` is the path segment of the service, which appears in path
    /// labels.
    #[must_use]
    pub fn new(service: &str) -> Self {
        let mut registry = Registry::default();
        let mut metrics = Self {
            requests: Requests::register(&mut registry, service),
            sales: Sales::register(&mut registry),
            vendors: Vendors::register(&mut registry),
            ledger: Arc::new(LedgerTimes::register(&mut registry)),
            events: Deliveries::register(&mut registry),
            payments: Payments::register(&mut registry),
            idempotency: Idempotency::register(&mut registry),
            scraped: Mutex::new((
                State::register(&mut registry),
                Leases::register(&mut registry),
                Rates::register(&mut registry),
                Process::register(&mut registry),
            )),
            traces_dropped: Counter::default(),
            refused_calls_dropped: Counter::default(),
            reloads: Family::default(),
            loaded: Gauge::default(),
            registry: Registry::default(),
        };
        for result in ["ok", "failed"] {
            drop(metrics.reloads.get_or_create(&[("result", result)]));
        }
        let build = Family::<WordLabel, Gauge>::default();
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        build.get_or_create(&version).set(1);
        series! { registry, metrics:
            traces_dropped "tollgate_traces_dropped" "Traced calls whose spans the collector did not accept, or that were dropped because the queue to the collector was full";
            refused_calls_dropped "tollgate_refused_calls_dropped" "Calls without a charge that were not stored, because too many calls waited for the store";
            reloads "tollgate_config_reloads" "Reloads of the configuration, by result; a failed reload changes nothing";
            loaded "tollgate_config_loaded_timestamp_seconds" "Unix time at which the configuration in force was loaded";
        }
        let help = "Always 1; the label has the version of the gateway";
        registry.register("tollgate_build_info", help, build);
        metrics.registry = registry;
        metrics
    }

    /// Creates the series of the models and vendors in a new snapshot. Series of earlier snapshots are kept.
    pub fn follow(&self, snapshot: &Snapshot) {
        self.sales.follow(snapshot);
        self.vendors.follow(snapshot);
        self.loaded.set((now_ms() / 1000).cast_signed());
    }

    /// Counts a reload of the configuration, as succeeded or failed.
    pub fn reloaded(&self, is_in_force: bool) {
        let result = if is_in_force { "ok" } else { "failed" };
        self.reloads.get_or_create(&[("result", result)]).inc();
    }

    /// Sets the time at which the certificate of the callers' listener expires, in Unix seconds.
    pub fn certificate_expires(&self, unix_seconds: u64) {
        self.scraped.lock().0.certificate_expires(unix_seconds);
    }

    /// Returns all metrics as text. If another scrape is running, waits for it.
    pub(crate) fn text(&self, now: Readings, format: Format) -> Result<String, fmt::Error> {
        let mut text = String::new();
        {
            let mut scraped = self.scraped.lock();
            let (state, leases, rates, process) = &mut *scraped;
            leases.set(&now.leases);
            rates.set(&now.rates);
            state.set(now);
            process.read();
            encode(&mut text, &self.registry)?;
        }
        Ok(match format {
            Format::OpenMetrics => text,
            Format::Classic => text::classic(&text),
        })
    }
}

//! Metrics of the gateway: `GET /metrics` on the operators' listener.
//!
//! Counters are incremented where something happens: at the end of a request or an attempt, when the ledger answers,
//! when a call is settled. Current state (open holds, breakers, the outbox) is read at a scrape and passed as
//! `Readings`. This module depends neither on calls nor on the components that have the state. Labels are only paths,
//! statuses, codes and names from the configuration, so callers cannot create series. There is no global registry:
//! [`Metrics`] is created with its gateway.
//!
//! `docs/metrics.md` lists all metrics; a test compares it with a scrape.

/// Registers the series that are fields of a struct: field, name and help.
macro_rules! series {
    ($registry:ident, $of:ident: $($($field:tt).+ $name:literal $help:literal;)+) => {
        $($registry.register($name, $help, $of.$($field).+.clone());)+
    };
}

pub(crate) mod events;
mod histograms;
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

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

pub(crate) use self::state::Readings;
use self::{
    events::Deliveries, idempotency::Idempotency, leases::Leases, ledger::LedgerTimes,
    payments::Payments, process::Process, rates::Rates, requests::Requests, sales::Sales,
    state::State, text::Format, vendors::Vendors,
};
use crate::catalog::snapshot::Snapshot;

/// All metrics of a gateway.
pub struct Metrics {
    registry: Registry,
    pub(crate) requests: Requests,
    pub(crate) sales: Sales,
    pub(crate) vendors: Vendors,
    pub(crate) ledger: Arc<LedgerTimes>,
    pub(crate) events: Deliveries,
    pub(crate) payments: Payments,
    pub(crate) idempotency: Idempotency,
    /// The number of traced calls whose spans were dropped.
    pub(crate) traces_dropped: Counter,
    reloads: Family<ReloadResult, Counter>,
    loaded: Gauge,
    /// Metrics of the current state. One scrape at a time sets and reads them.
    scraped: Mutex<(State, Leases, Rates, Process)>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReloadResult {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Version {
    version: &'static str,
}

impl Metrics {
    /// Creates all counters at zero. `service` is the service's path segment.
    #[must_use]
    pub fn new(service: &str) -> Self {
        let mut registry = Registry::default();
        let requests = Requests::register(&mut registry, service);
        let sales = Sales::register(&mut registry);
        let vendors = Vendors::register(&mut registry);
        let ledger = Arc::new(LedgerTimes::register(&mut registry));
        let events = Deliveries::register(&mut registry);
        let payments = Payments::register(&mut registry);
        let idempotency = Idempotency::register(&mut registry);
        let state = State::register(&mut registry);
        let leases = Leases::register(&mut registry);
        let rates = Rates::register(&mut registry);
        let process = Process::register(&mut registry);
        let traces_dropped = Counter::default();
        registry.register(
            "tollgate_traces_dropped",
            "Traced calls whose spans the collector did not accept, or that were dropped because its queue was full",
            traces_dropped.clone(),
        );
        let reloads = Family::<ReloadResult, Counter>::default();
        for result in ["ok", "failed"] {
            drop(reloads.get_or_create(&ReloadResult { result }));
        }
        registry.register(
            "tollgate_config_reloads",
            "Reloads of the configuration; a failed one changes nothing",
            reloads.clone(),
        );
        let loaded: Gauge = Gauge::default();
        registry.register(
            "tollgate_config_loaded_timestamp_seconds",
            "Unix time at which the configuration in force was loaded",
            loaded.clone(),
        );
        let build = Family::<Version, Gauge>::default();
        let version = env!("CARGO_PKG_VERSION");
        build.get_or_create(&Version { version }).set(1);
        registry.register(
            "tollgate_build_info",
            "Always 1; the label is the version",
            build,
        );
        Self {
            registry,
            requests,
            sales,
            vendors,
            ledger,
            events,
            payments,
            idempotency,
            traces_dropped,
            reloads,
            loaded,
            scraped: Mutex::new((state, leases, rates, process)),
        }
    }

    /// Creates the series for the models and vendors of a new snapshot. Series of earlier snapshots stay.
    pub fn follow(&self, snapshot: &Snapshot) {
        self.sales.follow(snapshot);
        self.vendors.follow(snapshot);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = now.unwrap_or_default().as_secs();
        self.loaded.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// Counts a reload of the configuration, and whether it succeeded.
    pub fn reloaded(&self, is_in_force: bool) {
        let result = if is_in_force { "ok" } else { "failed" };
        self.reloads.get_or_create(&ReloadResult { result }).inc();
    }

    /// Sets the expiry of the callers' certificate, in Unix seconds.
    pub fn certificate_expires(&self, unix_seconds: u64) {
        let scraped = self.scraped.lock().unwrap_or_else(PoisonError::into_inner);
        scraped.0.certificate_expires(unix_seconds);
    }

    /// Returns all metrics as text. Waits only for another scrape.
    pub(crate) fn text(&self, now: Readings, format: Format) -> Result<String, fmt::Error> {
        let mut text = String::new();
        {
            let mut scraped = self.scraped.lock().unwrap_or_else(PoisonError::into_inner);
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

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

//! Reads the current state of the gateway when metrics are scraped, and renders all metrics.

use std::{fmt, sync::Arc};

use tollgate_layers::failover::Health;

use super::{rates::KeyRates, readiness::Readiness};
use crate::{
    catalog::snapshot::Live,
    edge::server::OpenConnections,
    ledger::AnyLedger,
    logins,
    observe::{
        metrics::{Readings, text::Format},
        record::Calls,
    },
};

/// Renders the metrics for scrapes, from the parts of the gateway in its fields. Reading them never waits for another
/// machine.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// The records of this gateway's requests.
    pub(crate) calls: Calls,
    pub(crate) live: Arc<Live>,
    pub(crate) store: AnyLedger,
    pub(crate) rates: KeyRates,
    pub(crate) health: Health,
    pub(crate) readiness: Readiness,
    pub(crate) connections: OpenConnections,
}

impl Scrape {
    fn read(&self) -> Readings {
        let (holds_open, hold_oldest) = self.calls.holds();
        let backlog = self.store.backlog();
        let snapshot = self.live.snapshot();
        let credentials = snapshot.vendors().filter_map(|vendor| {
            let state = logins::credential_state(vendor.credentials.first()?)?;
            Some((vendor.name.to_string(), state))
        });
        let (outbox_rows, waited) =
            backlog.map_or((0, None), |backlog| (backlog.calls, backlog.oldest));
        Readings {
            holds_open,
            hold_oldest,
            vendors: self.health.snapshot(),
            credentials: credentials.collect(),
            outbox_rows,
            outbox_oldest: waited.unwrap_or_default(),
            leases: self.store.lease_counts(),
            rates: self.rates.counts(),
            connections: self.connections.count(),
            rate: snapshot.rate(),
            is_ready: self.readiness.check().is_ok(),
        }
    }

    pub(crate) const fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Returns all metrics as text in the given format.
    pub(crate) fn text(&self, format: Format) -> Result<String, fmt::Error> {
        self.calls.metrics().text(self.read(), format)
    }
}

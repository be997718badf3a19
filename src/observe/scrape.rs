//! A scrape: what is looked up for it, and its answer.

use std::{fmt, sync::Arc};

use tollgate_layers::failover::Health;

use super::{
    metrics::{Metrics, text::Format},
    record::Calls,
};
use crate::{
    catalog::snapshot::Live, edge::server::OpenConnections, ledger::AnyLedger,
    node::readiness::Readiness,
};

/// What is looked at when somebody scrapes. Nothing of it waits for another machine.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub(crate) calls: Calls,
    pub(crate) live: Arc<Live>,
    pub(crate) store: AnyLedger,
    pub(crate) health: Health,
    pub(crate) readiness: Readiness,
    pub(crate) connections: OpenConnections,
}

/// Answers scrapes.
#[derive(Clone, Debug)]
pub struct Scrape {
    metrics: Arc<Metrics>,
    sources: Sources,
}

impl Scrape {
    pub(crate) const fn new(metrics: Arc<Metrics>, sources: Sources) -> Self {
        Self { metrics, sources }
    }

    /// All metrics as text.
    pub(crate) fn text(&self, format: Format) -> Result<String, fmt::Error> {
        self.metrics.text(&self.sources, format)
    }
}

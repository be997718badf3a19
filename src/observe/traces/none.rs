//! A build without traces: the same names, and no value of any. What is done with them is compiled away.

use std::{sync::Arc, time::Duration};

use http::Request;
use prometheus_client::metrics::counter::Counter;
use tollgate_layers::{call::Call, model::Route};
use tollgate_ledger::number::RequestNumber;

use crate::config::Config;

/// There is none: `check` refuses `[traces]`.
pub(crate) const fn start(_: &Config, _: &Counter) -> Option<(Traces, Exporter)> {
    None
}

pub(crate) enum Traces {}

impl Traces {
    pub(crate) fn begin<B>(&self, _: RequestNumber, _: &Request<B>) -> Option<Trail> {
        match *self {}
    }
}

pub(crate) enum Trail {}

impl Trail {
    pub(crate) fn parsed(&mut self, _: &Call) {
        match *self {}
    }

    pub(crate) fn attempt(&mut self, _: &Arc<Route>, _: Duration) {
        match *self {}
    }

    pub(crate) fn attempt_failed(&mut self, _: &'static str, _: Duration) {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Exporter {}

impl Exporter {
    pub(crate) async fn flush(self) {
        match self {}
    }
}

//! Counters of the attempts to deliver events, by receiver.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::families::NameLabels;
use crate::text::words::words;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Label {
    receiver: Arc<str>,
    result: &'static str,
}

words! {
    /// The result of one attempt to deliver an event; only `dead` is the result of the whole delivery.
    pub(crate) enum Outcome {
        Delivered = "delivered",
        Failed = "failed",
        Dead = "dead",
    }
}

/// Metrics of event delivery to all receivers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deliveries {
    results: Family<Label, Counter>,
    lag: Family<NameLabels<1>, Gauge<f64, AtomicU64>>,
}

impl Deliveries {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let deliveries = Self::default();
        series! { registry, deliveries:
            results "tollgate_event_deliveries" "Attempts to send events, by result; the result dead counts events that became dead letters";
            lag "tollgate_event_lag_seconds" "Age of the oldest event that the receiver has not accepted yet; 0 if this gateway does not send to it";
        }
        deliveries
    }

    /// Returns the metrics of event delivery to this receiver.
    pub(crate) fn for_receiver(&self, receiver: &str) -> Outgoing {
        let receiver: Arc<str> = receiver.into();
        let counter = |outcome: Outcome| {
            let (receiver, result) = (Arc::clone(&receiver), outcome.as_str());
            self.results
                .get_or_create_owned(&Label { receiver, result })
        };
        Outgoing {
            results: Outcome::ALL.map(counter),
            lag: self
                .lag
                .get_or_create_owned(&[("receiver", Arc::clone(&receiver))]),
        }
    }
}

/// Metrics of event delivery to one receiver: attempts by result, and the age of the oldest undelivered event.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// One counter per result, in the order of [`Outcome::ALL`].
    results: [Counter; Outcome::ALL.len()],
    lag: Gauge<f64, AtomicU64>,
}

impl Outgoing {
    pub(crate) fn count(&self, outcome: Outcome) {
        self.results[outcome as usize].inc();
    }

    pub(crate) fn lag(&self, time: Duration) {
        self.lag.set(time.as_secs_f64());
    }
}

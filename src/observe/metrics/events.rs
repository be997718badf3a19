//! Counters of event deliveries, by receiver.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Receiver {
    receiver: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Label {
    receiver: Arc<str>,
    result: &'static str,
}

/// The outcome of an attempt to deliver an event, or of the whole delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Delivered,
    Failed,
    Dead,
}

impl Outcome {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Delivered, "delivered"),
        (Self::Failed, "failed"),
        (Self::Dead, "dead"),
    ];
}

/// The counters of all receivers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deliveries {
    results: Family<Label, Counter>,
    lag: Family<Receiver, Gauge<f64, AtomicU64>>,
}

impl Deliveries {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let deliveries = Self::default();
        series! { registry, deliveries:
            results "tollgate_event_deliveries" "Attempts to send an event, by result; dead: events that became dead letters";
            lag "tollgate_event_lag_seconds" "Age of the oldest event that the receiver has not accepted yet; 0 if this gateway does not send to it";
        }
        deliveries
    }

    /// Returns the counters of one receiver.
    pub(crate) fn of(&self, receiver: &str) -> Outgoing {
        let receiver: Arc<str> = receiver.into();
        let counter = |(_, result)| {
            let receiver = Arc::clone(&receiver);
            self.results
                .get_or_create_owned(&Label { receiver, result })
        };
        Outgoing {
            results: Outcome::ALL.map(counter),
            lag: self.lag.get_or_create_owned(&Receiver {
                receiver: Arc::clone(&receiver),
            }),
        }
    }
}

/// The counters of one receiver.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// The counters, in the order of [`Outcome::ALL`].
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

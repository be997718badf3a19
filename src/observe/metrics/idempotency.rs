//! Counters of calls with an idempotency key.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::{Registry, Unit},
};
use tollgate_layers::idempotency::Event;

use super::families::WordLabel;

/// Counts the outcomes of calls with an idempotency key. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Idempotency {
    calls: Family<WordLabel, Counter>,
    stored: Counter,
}

const RESULTS: &str = "ran ran_again replayed joined conflict mismatch gone not_stored not_written";

impl Idempotency {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let idempotency = Self::default();
        for result in RESULTS.split(' ') {
            drop(idempotency.calls.get_or_create(&[("result", result)]));
        }
        series! { registry, idempotency:
            calls "tollgate_idempotent_calls" "Calls with an idempotency key on this node, by outcome";
        }
        registry.register_with_unit(
            "tollgate_idempotent_stored",
            "Bytes of sealed answers stored for calls with an idempotency key",
            Unit::Bytes,
            idempotency.stored.clone(),
        );
        idempotency
    }

    pub(crate) fn count(&self, event: Event) {
        let result = match event {
            Event::Stored(bytes) => {
                self.stored.inc_by(bytes);
                return;
            }
            Event::Ran => "ran",
            Event::RanAgain => "ran_again",
            Event::Replayed(..) => "replayed",
            Event::Joined(..) => "joined",
            Event::Conflict => "conflict",
            Event::Mismatch => "mismatch",
            Event::Gone => "gone",
            Event::NotStored => "not_stored",
            _ => "not_written",
        };
        self.calls.get_or_create(&[("result", result)]).inc();
    }
}

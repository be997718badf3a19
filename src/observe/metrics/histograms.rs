//! Families of histograms for metrics.

use std::hash::Hash;

use prometheus_client::metrics::{family::Family, histogram::Histogram};

/// A family of histograms whose buckets come from `constructor`.
pub(super) fn histograms<S: Clone + Hash + Eq>(
    constructor: fn() -> Histogram,
) -> Family<S, Histogram> {
    Family::new_with_constructor(constructor)
}

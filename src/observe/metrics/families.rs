//! Types for metric families: their labels, and histograms with given buckets.

use std::{hash::Hash, sync::Arc};

use prometheus_client::metrics::{family::Family, histogram::Histogram};

/// A label whose possible values are known at compile time.
pub(super) type WordLabel = [(&'static str, &'static str); 1];
/// Labels whose values are names in the configuration.
pub(super) type NameLabels<const COUNT: usize> = [(&'static str, Arc<str>); COUNT];
/// Histograms with one label, whose value is a name in the configuration.
pub(super) type Histograms = Family<NameLabels<1>, Histogram>;

/// Creates a family of histograms; `constructor` creates each histogram with its buckets.
pub(super) fn histograms<S: Clone + Hash + Eq>(
    constructor: fn() -> Histogram,
) -> Family<S, Histogram> {
    Family::new_with_constructor(constructor)
}

//! Counters of fractional amounts, stored as integers so that sums are exact.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::{Atomic, Counter};

/// A counter of rubles, stored in micro-rubles. The sum is exact; only the displayed value is rounded.
pub(super) type Rubles = Counter<f64, Parts<1_000_000>>;

/// A counter's value as a whole number of parts; `PER_UNIT` parts are displayed as 1.
#[derive(Debug, Default)]
pub(super) struct Parts<const PER_UNIT: u32>(AtomicU64);

impl<const PER_UNIT: u32> Parts<PER_UNIT> {
    pub(super) fn add(&self, parts: u64) {
        self.0.fetch_add(parts, Ordering::Relaxed);
    }

    /// Sets the counter to a value that another component counts.
    pub(super) fn set(&self, parts: u64) {
        self.0.store(parts, Ordering::Relaxed);
    }

    fn shown(parts: u64) -> f64 {
        parts as f64 / f64::from(PER_UNIT)
    }
}

impl<const PER_UNIT: u32> Atomic<f64> for Parts<PER_UNIT> {
    fn inc(&self) -> f64 {
        self.inc_by(1.0)
    }

    fn inc_by(&self, units: f64) -> f64 {
        let parts = (units * f64::from(PER_UNIT)).round() as u64;
        Self::shown(self.0.fetch_add(parts, Ordering::Relaxed))
    }

    fn get(&self) -> f64 {
        Self::shown(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_a_million_micro_rubles_is_exactly_one_ruble() {
        let rubles = Rubles::default();
        for _ in 0..1_000_000 {
            rubles.inner().add(1);
        }
        assert_eq!(rubles.get().to_bits(), 1.0_f64.to_bits());
        rubles.inner().add(859);
        assert_eq!(rubles.get().to_string(), "1.000859");
        rubles.inc_by(0.5);
        assert_eq!(rubles.get().to_string(), "1.500859");
    }
}

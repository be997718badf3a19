//! A histogram of durations that needs a fixed amount of memory.

use std::time::Duration;

/// How many leading bits of a duration (in ns) select its bucket. With 10 bits, a bucket is at most 0.1 % wide.
const BITS: u32 = 10;
const BUCKETS: u64 = 1 << BITS;

/// Counts durations in buckets. The width of a bucket grows with the duration, so the memory does not depend on how
/// many durations are recorded.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: Duration,
    max: Duration,
}

impl Histogram {
    /// Adds a duration to the histogram.
    pub fn record(&mut self, duration: Duration) {
        let index = index(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.count += 1;
        self.sum += duration;
        self.max = self.max.max(duration);
    }

    /// Returns how many durations were recorded.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the longest duration; 0 if there are no durations.
    #[must_use]
    pub const fn max(&self) -> Duration {
        self.max
    }

    /// Returns the mean duration; 0 if there are no durations.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let ns = self.sum.as_nanos() / u128::from(self.count.max(1));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Returns a quantile of the durations, exact to 0.1 %: the share `part` (0 to 1) of all durations is shorter.
    /// Returns 0 if there are no durations.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        let rank = ((self.count as f64 * part) as u64).min(self.count.saturating_sub(1));
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if rank < below {
                return self.max.min(Duration::from_nanos(lower_bound(index)));
            }
        }
        Duration::ZERO
    }

    /// Returns how many durations are between each bound and the previous bound; the bounds must increase. The last
    /// number counts the durations that are not below any bound.
    #[must_use]
    pub fn between(&self, bounds: &[Duration]) -> Vec<u64> {
        let mut counts = vec![0; bounds.len() + 1];
        for (index, count) in self.counts.iter().enumerate() {
            let duration = Duration::from_nanos(lower_bound(index));
            counts[bounds.partition_point(|bound| *bound <= duration)] += count;
        }
        counts
    }
}

/// Returns the index of a duration's bucket, computed from the duration's highest bits and the number of bits below
/// them.
const fn index(ns: u64) -> usize {
    let dropped = (u64::BITS - (ns | 1).leading_zeros()).saturating_sub(BITS + 1);
    ((dropped as u64) * BUCKETS + (ns >> dropped)) as usize
}

/// Returns the shortest duration (ns) that belongs to a bucket.
const fn lower_bound(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * BUCKETS {
        return index;
    }
    ((index % BUCKETS) + BUCKETS) << (index / BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bucket_is_at_most_a_thousandth_of_its_duration_wide() {
        let mut last = 0;
        for shift in 0..64 {
            for ns in [1_u64 << shift, (1 << shift) | (1 << shift >> 3)] {
                let found = index(ns);
                assert!(found >= last, "{ns}");
                last = found;
                let low = lower_bound(found);
                assert!(low <= ns && ns - low <= ns / 1000, "{ns}: {low}");
            }
        }
        assert!((0..5000).all(|at| index(lower_bound(at)) == at));
    }

    #[test]
    fn histogram_quantiles_and_counts_match_the_recorded_durations() {
        let mut durations = Histogram::default();
        assert_eq!(durations.quantile(0.5), Duration::ZERO);
        for ms in (1..=1000).rev() {
            durations.record(Duration::from_millis(ms));
        }
        for (part, ms) in [(0.0, 1), (0.5, 501), (0.99, 991), (1.0, 1000)] {
            let off = durations.quantile(part).abs_diff(Duration::from_millis(ms));
            assert!(off <= Duration::from_millis(ms) / 1000, "{part}");
        }
        assert_eq!(durations.max(), Duration::from_secs(1));
        assert_eq!(durations.mean(), Duration::from_micros(500_500));
        let bounds = [10, 100].map(Duration::from_millis);
        let counts = durations.between(&bounds);
        assert_eq!(counts.iter().sum::<u64>(), durations.count());
        assert!(
            counts[0].abs_diff(9) <= 1 && counts[1].abs_diff(90) <= 1,
            "{counts:?}"
        );
    }
}

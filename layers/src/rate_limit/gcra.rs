use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::{Limiter, Quota, get_or_insert};

/// Counts requests in the memory of this process, in a table of bounded size. If the table is full, it evicts the
/// callers seen longest ago; an evicted caller may get more requests admitted, never fewer.
#[derive(Clone)]
pub struct Gcra<K> {
    begin: Instant,
    /// The theoretical arrival time of each caller, in nanoseconds since `begin`.
    arrivals: Arc<Cache<K, Arc<AtomicU64>>>,
}

impl<K: Eq + Hash + Clone> Gcra<K> {
    /// Creates a limiter that tracks at most `callers_max` callers.
    #[must_use]
    pub fn new(callers_max: usize) -> Self {
        Self {
            begin: Instant::now(),
            arrivals: Arc::new(Cache::new(callers_max)),
        }
    }

    pub(super) fn count(&self, id: &K, quota: Quota) -> Result<(), Duration> {
        let now = u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let arrival = get_or_insert(&self.arrivals, id, Arc::default);
        let mut wait = Duration::ZERO;
        let step = |arrival| {
            arrive(arrival, now, quota)
                .inspect_err(|duration| wait = *duration)
                .ok()
        };
        arrival
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step)
            .map(drop)
            .map_err(|_| wait)
    }
}

/// Returns the new theoretical arrival time if a request at `now` is admitted; otherwise returns how long the caller
/// must wait. All times are in nanoseconds. `gcra.lua` makes the same computation in microseconds.
fn arrive(arrival: u64, now: u64, quota: Quota) -> Result<u64, Duration> {
    let interval = quota.per.as_nanos() / u128::from(quota.count.max(1));
    let interval = u64::try_from(interval).unwrap_or(u64::MAX);
    let tolerance = interval.saturating_mul(u64::from(quota.burst.max(1) - 1));
    let earliest = arrival.saturating_sub(tolerance);
    if now < earliest {
        return Err(Duration::from_nanos(earliest - now));
    }
    Ok(arrival.max(now).saturating_add(interval))
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Limiter<K> for Gcra<K> {
    async fn admit(&self, id: K, quota: Quota) -> Result<(), Duration> {
        self.count(&id, quota)
    }

    fn admit_now(&self, id: &K, quota: Quota) -> Option<Result<(), Duration>> {
        Some(self.count(id, quota))
    }
}

debug_fields!(impl[K] Gcra<K> {});

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_request_per_100_ms_is_admitted_after_a_burst_of_ten() {
        let gcra = Gcra::new(100);
        let quota = Quota::per_second(10);
        for _ in 0..10 {
            assert_eq!(gcra.count(&"a", quota), Ok(()));
        }
        assert_eq!(gcra.count(&"a", quota), Err(Duration::from_millis(100)));
        assert_eq!(
            gcra.count(&"b", quota),
            Ok(()),
            "other callers are not limited"
        );
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(gcra.count(&"a", quota), Ok(()));
        assert_eq!(gcra.count(&"a", quota), Err(Duration::from_millis(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn burst_of_a_quota_per_minute_is_ten_seconds_worth_of_requests() {
        let gcra = Gcra::new(100);
        let quota = Quota::per_minute(30);
        for _ in 0..5 {
            assert_eq!(gcra.count(&"a", quota), Ok(()));
        }
        assert_eq!(gcra.count(&"a", quota), Err(Duration::from_secs(2)));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(gcra.count(&"a", quota), Ok(()));
        assert_eq!(gcra.count(&"a", quota), Err(Duration::from_secs(2)));
        // If the quota for ten seconds is less than one request, the burst is still one request.
        let (one, few) = (Gcra::new(100), Quota::per_minute(1));
        assert_eq!(one.count(&"a", few), Ok(()));
        assert_eq!(one.count(&"a", few), Err(Duration::from_secs(60)));
    }

    #[test]
    fn each_second_admits_at_most_rate_plus_burst() {
        let quota = Quota::per_second(7).with_burst(3);
        let (mut arrival, mut let_in) = (0, Vec::new());
        for now in (0..5_000_000_000u64).step_by(10_000_000) {
            if let Ok(next) = arrive(arrival, now, quota) {
                arrival = next;
                let_in.push(now);
            }
        }
        for window in 0..let_in.len() {
            let count = let_in[window..]
                .iter()
                .take_while(|at| **at < let_in[window] + 1_000_000_000)
                .count();
            assert!(count <= 7 + 3, "{count}");
        }
        assert!(let_in.len() >= 35);
    }

    #[test]
    fn number_of_remembered_callers_is_limited() {
        let limiter = Gcra::new(1000);
        for caller in 0..100_000 {
            limiter.count(&caller, Quota::per_second(10)).unwrap();
        }
        let stored = limiter.arrivals.len();
        // The cache may exceed its capacity slightly, because each of its shards rounds up.
        assert!((1..=1100).contains(&stored), "{stored}");
    }
}

use std::{
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::{Limiter, Quota, get_or_insert};

/// Limits what requests use, for example tokens. The usage of a request is known only when the request has ended: then
/// [`PostPaid::take`] takes the usage from the caller's bucket.
///
/// The bucket holds the quota's burst and refills at the quota's rate. If a caller has taken more than the bucket held,
/// the bucket is overdrawn: the caller's requests are refused until the overdraft is refilled. Concurrent requests are
/// counted when they end, so together they can take more than the bucket holds.
///
/// The buckets are in the memory of this process, in a table of bounded size. If the table is full, it evicts the
/// callers seen longest ago; an evicted caller may get more requests admitted, never fewer.
///
/// ```
/// use tollgate_layers::rate_limit::{Limiter, PostPaid, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// // A thousand tokens per minute, all of them at once if necessary.
/// let quota = Quota::per_minute(1000).with_burst(1000);
/// let tokens = PostPaid::new(10_000);
/// assert!(tokens.admit("acme", quota).await.is_ok());
/// tokens.take(&"acme", 1500);
/// let wait = tokens.admit("acme", quota).await.unwrap_err();
/// assert_eq!(wait.as_secs_f64().round(), 30.0);
/// # }
/// ```
#[derive(Clone)]
pub struct PostPaid<K> {
    begin: Instant,
    buckets: Arc<Cache<K, Arc<Mutex<Bucket>>>>,
}

/// Billionths of a unit. They are fine enough that rounding loses nothing, however often a bucket is refilled.
type Nanos = u128;

pub(super) const UNIT: Nanos = 1_000_000_000;

pub(super) struct Bucket {
    pub(super) quota: Quota,
    /// The units that were taken from the bucket and are not refilled yet.
    pub(super) taken: Nanos,
    /// The time up to which the refill is included in `taken`, in nanoseconds since `begin`.
    pub(super) at: u128,
}

impl<K: Eq + Hash + Clone> PostPaid<K> {
    /// Creates a limiter that tracks at most `callers_max` callers.
    #[must_use]
    pub fn new(callers_max: usize) -> Self {
        Self {
            begin: Instant::now(),
            buckets: Arc::new(Cache::new(callers_max)),
        }
    }

    /// Takes the units that a request of the caller `id` has used. Does nothing if this limiter has admitted no request
    /// of the caller.
    pub fn take(&self, id: &K, units: u64) {
        if let Some(bucket) = self.buckets.get(id) {
            let now = self.begin.elapsed().as_nanos();
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.fill(now);
            bucket.take(units);
        }
    }

    fn look(&self, id: &K, quota: Quota) -> Result<(), Duration> {
        let now = self.begin.elapsed().as_nanos();
        let new = || Arc::new(Mutex::new(Bucket::new(quota, now)));
        let bucket = get_or_insert(&self.buckets, id, new);
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.fill(now);
        bucket.quota = quota;
        bucket.debt_paid_in()
    }
}

impl Bucket {
    pub(super) const fn new(quota: Quota, now: u128) -> Self {
        Self {
            quota,
            taken: 0,
            at: now,
        }
    }

    pub(super) fn take(&mut self, units: u64) {
        self.taken = self.taken.saturating_add(Nanos::from(units) * UNIT);
    }

    pub(super) fn fill(&mut self, now: u128) {
        let elapsed = now.saturating_sub(self.at);
        let filled = elapsed
            .saturating_mul(self.count())
            .saturating_mul(UNIT)
            .checked_div(self.per());
        self.taken = self.taken.saturating_sub(filled.unwrap_or(Nanos::MAX));
        self.at = self.at.max(now);
    }

    pub(super) fn debt_paid_in(&self) -> Result<(), Duration> {
        let holds = Nanos::from(self.quota.burst.max(1)) * UNIT;
        let debt = self.taken.saturating_sub(holds);
        if debt == 0 {
            return Ok(());
        }
        let wait = debt
            .saturating_mul(self.per())
            .div_ceil(self.count() * UNIT);
        Err(Duration::from_nanos(
            u64::try_from(wait).unwrap_or(u64::MAX),
        ))
    }

    fn count(&self) -> u128 {
        self.quota.count.max(1).into()
    }

    const fn per(&self) -> u128 {
        self.quota.per.as_nanos()
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Limiter<K> for PostPaid<K> {
    async fn admit(&self, id: K, quota: Quota) -> Result<(), Duration> {
        self.look(&id, quota)
    }

    fn admit_now(&self, id: &K, quota: Quota) -> Option<Result<(), Duration>> {
        Some(self.look(id, quota))
    }
}

debug_fields!(impl[K] PostPaid<K> {});

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota::per_minute(60).with_burst(60);

    #[tokio::test(start_paused = true)]
    async fn caller_that_overused_its_token_limit_waits_until_the_bucket_recovers() {
        let tokens = PostPaid::new(100);
        assert_eq!(tokens.look(&"a", QUOTA), Ok(()));
        // A caller may use up the bucket, and a request that was admitted before may use still more.
        tokens.take(&"a", 60);
        assert_eq!(tokens.look(&"a", QUOTA), Ok(()));
        tokens.take(&"a", 30);
        assert_eq!(tokens.look(&"a", QUOTA), Err(Duration::from_secs(30)));
        assert_eq!(
            tokens.look(&"b", QUOTA),
            Ok(()),
            "other callers are not limited"
        );
        tokio::time::advance(Duration::from_millis(29_999)).await;
        assert_eq!(tokens.look(&"a", QUOTA), Err(Duration::from_millis(1)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(tokens.look(&"a", QUOTA), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn token_bucket_never_exceeds_its_capacity() {
        let tokens = PostPaid::new(100);
        assert_eq!(tokens.look(&"a", QUOTA), Ok(()));
        tokio::time::advance(Duration::from_secs(3600)).await;
        tokens.take(&"a", 61);
        assert_eq!(tokens.look(&"a", QUOTA), Err(Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn higher_quota_shortens_the_wait_after_overuse() {
        let tokens = PostPaid::new(100);
        assert_eq!(tokens.look(&"a", QUOTA), Ok(()));
        tokens.take(&"a", 660);
        assert_eq!(tokens.look(&"a", QUOTA), Err(Duration::from_secs(600)));
        let higher = Quota::per_minute(600).with_burst(60);
        assert_eq!(tokens.look(&"a", higher), Err(Duration::from_secs(60)));
    }

    #[tokio::test(start_paused = true)]
    async fn usage_of_an_unknown_caller_is_ignored_and_huge_usage_does_not_overflow() {
        let tokens = PostPaid::new(100);
        tokens.take(&"a", 1_000);
        assert_eq!(tokens.look(&"a", QUOTA), Ok(()));
        for _ in 0..3 {
            tokens.take(&"a", u64::MAX);
        }
        assert!(tokens.look(&"a", QUOTA).is_err());
    }
}

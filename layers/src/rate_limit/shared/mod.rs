//! Limits that several gateways enforce together, because they share a [`RateStore`].
//!
//! | limiter | what it limits |
//! |---|---|
//! | [`SharedGcra`] | requests: a gateway takes permits in advance and admits calls by them, in memory |
//! | [`SharedPostPaid`] | usage of requests: a gateway reports usage to the store in batches, and the store answers
//! with the usage over all gateways |
//!
//! If a gateway cannot decide a call from memory, it queries the store at once and awaits the decision later. An
//! [`EarlyRateLimitLayer`](super::EarlyRateLimitLayer) above all layers that wait for the ledger sends the query, and a
//! [`RateVerdictLayer`](super::RateVerdictLayer) below them awaits the decision. No call is refused without a recent
//! answer of the store.
//!
//! **Requests.** The store counts by the generic cell rate algorithm, as [`Gcra`](super::Gcra) does. Each permit that
//! it grants is used at most once. So in any period, all gateways together admit at most as many requests as one
//! gateway would, plus the permits that they had in memory before. A gateway takes permits in advance for the calls of
//! one [`SLICE`], at most 1/300 of the quota. If the quota is below 300, it takes none in advance: each call takes its
//! own permit, and the limit is exact.
//!
//! **Usage.** A gateway decides by the usage in the store's last answer. While a caller has used more than half of its
//! quota, that answer is at most [`NEAR_FRESH`] old. If sixteen calls can use the whole quota, each call queries the
//! store. Usage above the quota that happens meanwhile overdraws the caller's bucket, and later calls wait until the
//! overdraft is refilled.
//!
//! While the store cannot be reached, each gateway counts by itself, starting from the last state that it received.

mod permits;
mod redis;
#[cfg(test)]
mod simulation_tests;
mod tokens;

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::mpsc, task::JoinSet};

pub use self::{
    permits::{IDLE, SLICE, SharedGcra},
    redis::RedisRates,
    tokens::{NEAR_FRESH, SharedPostPaid},
};
use super::Quota;
use crate::{error::BoxError, facts::RequestNumber};

/// A gateway's request for permits of one caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Take {
    /// The number of calls that wait for a permit.
    pub calls: u64,
    /// The number of permits that the gateway requests in advance, for later calls.
    pub spare: u64,
    /// The number of permits that the gateway still has in memory.
    pub has: u64,
    /// The number of unused permits that the gateway returns.
    pub back: u64,
}

/// A store, such as Redis, with the totals over all gateways.
pub trait RateStore: Clone + Send + Sync + 'static {
    /// Takes permits of the caller `id` for the gateway `node`. Returns the number of granted permits, or the time
    /// until a permit is available. If the gateway sends no command for `ttl`, the store takes back the permits that it
    /// has recorded for this gateway.
    fn take(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        take: Take,
        ttl: Duration,
    ) -> impl Future<Output = Result<Result<u64, Duration>, BoxError>> + Send;

    /// Adds the units of a gateway's batch to the usage of the caller `id`; a batch that is sent twice counts once.
    /// Returns the usage that is not refilled yet, in thousandths of a unit.
    fn spend(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        batch: Batch,
    ) -> impl Future<Output = Result<u64, BoxError>> + Send;
}

/// The usage of calls that ended since the gateway's previous batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The number of the batch, unique per gateway.
    pub number: u64,
    /// The number of units that the calls used, such as tokens.
    pub units: u64,
}

/// Counts of the commands sent to the store, and of their results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateCounts {
    /// The number of commands that requested or returned permits.
    pub takes: u64,
    /// The number of permits received.
    pub permits: u64,
    /// The number of permits returned.
    pub given_back: u64,
    /// The number of commands that reported or queried usage.
    pub spends: u64,
    /// The number of calls that waited for the store's answer, while they also waited for the ledger's.
    pub waited: u64,
    /// The number of commands that got no answer, so that the gateway decided alone.
    pub failures: u64,
}

#[derive(Debug, Default)]
struct Counters {
    takes: AtomicU64,
    permits: AtomicU64,
    given_back: AtomicU64,
    spends: AtomicU64,
    waited: AtomicU64,
    failures: AtomicU64,
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The connection to a store. All limits that use the store share it; clones share it too.
pub struct SharedRates<S> {
    store: S,
    node: u64,
    jobs: mpsc::Sender<Job>,
    counters: Arc<Counters>,
    /// The last batch number that was used. A number is never reused, because the store ignores a batch whose number it
    /// has already received.
    batches: Arc<AtomicU64>,
}

/// The longest wait for an answer. The store reports an error earlier; if this time passes, the task that queries the
/// store has stopped.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// The largest number of commands that wait to be sent.
const JOBS_MAX: usize = 10_000;

impl<S: RateStore> SharedRates<S> {
    /// Creates shared rates over `store`. Run [`SharedRatesTask::run`], which sends the commands to the store.
    #[must_use]
    pub fn new(store: S) -> (Self, SharedRatesTask) {
        let (jobs, requested) = mpsc::channel(JOBS_MAX);
        let rates = Self {
            store,
            node: RequestNumber::now_v7().uuid().as_u64_pair().1,
            jobs,
            counters: Arc::default(),
            batches: Arc::default(),
        };
        (rates, SharedRatesTask { requested })
    }

    /// Returns the counts since this object was created.
    #[must_use]
    pub fn counts(&self) -> RateCounts {
        let Counters {
            takes,
            permits,
            given_back,
            spends,
            waited,
            failures,
        } = &*self.counters;
        RateCounts {
            takes: takes.load(Ordering::Relaxed),
            permits: permits.load(Ordering::Relaxed),
            given_back: given_back.load(Ordering::Relaxed),
            spends: spends.load(Ordering::Relaxed),
            waited: waited.load(Ordering::Relaxed),
            failures: failures.load(Ordering::Relaxed),
        }
    }

    fn next_batch(&self) -> u64 {
        self.batches.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Queues a command. Returns false if the queue is full or the task that sends commands has stopped.
    fn begin(&self, job: impl Future<Output = ()> + Send + 'static) -> bool {
        self.jobs.try_send(Box::pin(job)).is_ok()
    }
}

impl<S: Clone> Clone for SharedRates<S> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            node: self.node,
            jobs: self.jobs.clone(),
            counters: Arc::clone(&self.counters),
            batches: Arc::clone(&self.batches),
        }
    }
}

impl<S> fmt::Debug for SharedRates<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRates")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The task that sends commands to the store, so that calls need not wait while a command is sent.
#[derive(Debug)]
pub struct SharedRatesTask {
    requested: mpsc::Receiver<Job>,
}

impl SharedRatesTask {
    /// Sends commands until every [`SharedRates`] is dropped; then commands without an answer are cancelled.
    pub async fn run(&mut self) {
        let mut jobs = JoinSet::new();
        loop {
            tokio::select! {
                job = self.requested.recv() => match job {
                    Some(job) => drop(jobs.spawn(job)),
                    None => break,
                },
                Some(_) = jobs.join_next() => {}
            }
        }
    }
}

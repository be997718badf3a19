//! One limit over several gateways that share a [`RateStore`].
//!
//! | | |
//! |---|---|
//! |---|---|
//! | [`SharedGcra`] | requests: a gateway takes permits in advance and admits calls by them, in memory |
//! | [`SharedPostPaid`] | usage of requests: reported to the store in batches; its answers have the usage over all gateways |
//!
//! If memory cannot decide a call, the store is queried at once and the decision is awaited later: an
//! [`EarlyRateLimitLayer`](super::EarlyRateLimitLayer) is above everything else that waits for the store, and a
//! [`RateVerdictLayer`](super::RateVerdictLayer) below it. No call is refused without a recent answer of the store.
//!
//! **Requests.** The store counts by the generic cell rate algorithm, as [`Gcra`](super::Gcra) does, and each permit
//! that it grants is used at most once. So in any period all gateways together admit at most what one gateway would,
//! plus the permits that they had before. A gateway has permits for the calls of one [`SLICE`], at most 1/300 of the
//! quota. For a quota below 300 it has none: each call takes its own permit, and the limit is exact.
//!
//! **Usage.** A gateway has the usage as of the store's last answer. That answer is at most [`NEAR_FRESH`] old while
//! more than half is taken. If sixteen calls would use the whole quota, each call queries the store. Usage above the
//! quota in the meantime is a debt, and later calls wait until it is paid.
//!
//! While the store is out of reach, each gateway counts by itself, starting from its last known state.

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

/// A gateway's request for permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Take {
    /// The number of calls that wait for a permit.
    pub calls: u64,
    /// The number of further permits, requested in advance.
    pub spare: u64,
    /// The number of permits that the gateway has in memory.
    pub has: u64,
    /// The number of permits that the gateway had and returns.
    pub back: u64,
}

/// The totals over all gateways.
pub trait RateStore: Clone + Send + Sync + 'static {
    /// Takes permits of `id` for a gateway, and returns their number or the time until there is one. If a gateway sends
    /// nothing for `ttl`, its permits are returned to the bucket.
    fn take(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        take: Take,
        ttl: Duration,
    ) -> impl Future<Output = Result<Result<u64, Duration>, BoxError>> + Send;

    /// Takes the units of a gateway's batch; a repeated batch counts once. Returns the amount taken and not refilled,
    /// in thousandths of a unit.
    fn spend(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        batch: Batch,
    ) -> impl Future<Output = Result<u64, BoxError>> + Send;
}

/// The usage of the calls that ended since the previous batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The number of the batch, unique per gateway.
    pub number: u64,
    /// The number of units that were used.
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
    /// Calls that waited for the store's answer, in parallel with the ledger's.
    pub waited: u64,
    /// The number of commands without an answer, after which the gateway decided alone.
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

/// State shared by all limits over one store, and by clones.
pub struct SharedRates<S> {
    store: S,
    node: u64,
    jobs: mpsc::Sender<Job>,
    counters: Arc<Counters>,
    /// Last batch number used. Numbers are never reused: the store ignores a batch whose number it has seen.
    batches: Arc<AtomicU64>,
}

/// Upper bound on waiting for an answer. The store reports an error sooner; if this passes, the task that queries it
/// has stopped.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// The largest number of queued commands.
const JOBS_MAX: usize = 10_000;

impl<S: RateStore> SharedRates<S> {
    /// Creates limits over `store`. [`SharedRatesTask::run`] sends the commands.
    #[must_use]
    pub fn new(store: S) -> (Self, SharedRatesTask) {
        let (jobs, asked) = mpsc::channel(JOBS_MAX);
        let rates = Self {
            store,
            node: RequestNumber::now_v7().uuid().as_u64_pair().1,
            jobs,
            counters: Arc::default(),
            batches: Arc::default(),
        };
        (rates, SharedRatesTask { asked })
    }

    /// Returns the counts since the start.
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

    /// Queues a command; false if the queue is full or its task has stopped.
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

/// Sends commands to the store, outside the path of calls.
#[derive(Debug)]
pub struct SharedRatesTask {
    asked: mpsc::Receiver<Job>,
}

impl SharedRatesTask {
    /// Runs until every [`SharedRates`] is dropped; its running commands are cancelled then.
    pub async fn run(&mut self) {
        let mut jobs = JoinSet::new();
        loop {
            tokio::select! {
                job = self.asked.recv() => match job {
                    Some(job) => drop(jobs.spawn(job)),
                    None => break,
                },
                Some(_) = jobs.join_next() => {}
            }
        }
    }
}

//! Limits that several gateways enforce together through a shared [`RateStore`].
//!
//! | limiter | what it limits |
//! |---|---|
//! | [`SharedGcra`] | requests: a gateway takes permits from the store in advance, and spends them on calls in memory |
//! | [`SharedPostPaid`] | usage of requests: a gateway reports usage to the store in batches, and the store answers
//! with the usage over all gateways |
//!
//! If a gateway cannot decide a call from memory, it queries the store at once and awaits the response later. An
//! [`EarlyRateLimitLayer`](super::EarlyRateLimitLayer) sends the query above all layers that wait for the ledger, and a
//! [`RateVerdictLayer`](super::RateVerdictLayer) below these layers awaits the decision. No call is refused without a
//! recent response of the store.
//!
//! **Requests.** The store counts by the generic cell rate algorithm, as [`Gcra`](super::Gcra) does, and each permit
//! that it grants is used at most once. So in any period, all gateways together admit at most as many requests as one
//! gateway would, plus the permits that the gateways had in memory at the start of the period. A gateway takes permits
//! in advance for the calls of one [`SLICE`], but at most 1/300 of the quota. If the quota is below 300, it takes none
//! in advance: each call takes its own permit, and the limit is exact.
//!
//! **Usage.** A gateway decides by the usage in the store's last response. For a caller that has used more than half of
//! its quota, the gateway queries the store again when that response is older than [`NEAR_FRESH`]. If sixteen calls
//! could use up the whole quota, each call queries the store. Usage that exceeds the quota meanwhile overdraws the
//! caller's bucket, and later calls wait until the overdraft is refilled.
//!
//! While the store cannot be reached, each gateway counts by itself, starting from the store's last response.

mod permits;
mod redis;
#[cfg(test)]
mod simulation_tests;
mod tokens;

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};

pub use self::{
    permits::{IDLE, SLICE, SharedGcra},
    redis::RedisRates,
    tokens::{NEAR_FRESH, SharedPostPaid},
};
use super::Quota;
use crate::{error::BoxError, facts::RequestNumber};

/// A gateway's command to take or return permits of one caller.
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

/// A store, for example Redis, of the totals over all gateways.
pub trait RateStore: Clone + Send + Sync + 'static {
    /// Takes permits of the caller `id` for the gateway `node`. Returns the number of granted permits, or the time
    /// until a permit is available. The store records the granted permits for the gateway, and takes them back if the
    /// gateway sends no command for `ttl`.
    fn take(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        take: Take,
        ttl: Duration,
    ) -> impl Future<Output = Result<Result<u64, Duration>, BoxError>> + Send;

    /// Adds the units of a gateway's batch to the usage of the caller `id`. A batch that is sent twice counts once.
    /// Returns the caller's usage that is not refilled yet, in thousandths of a unit.
    fn spend(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        batch: Batch,
    ) -> impl Future<Output = Result<u64, BoxError>> + Send;
}

/// The usage of the calls that have ended since the gateway's previous batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The number of the batch. A gateway never uses a number twice.
    pub number: u64,
    /// The number of units that the calls used, such as tokens.
    pub units: u64,
}

/// Counts of the commands sent to the store, and of their results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateCounts {
    /// The number of commands that requested or returned permits.
    pub takes: u64,
    /// The number of permits received from the store.
    pub permits: u64,
    /// The number of permits returned to the store.
    pub given_back: u64,
    /// The number of commands that reported or queried usage.
    pub spends: u64,
    /// The number of calls that waited for the store's response, while they also waited for the ledger's response.
    pub waited: u64,
    /// The number of commands without a response, after which the gateway decided alone.
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

/// A caller of a limit, and the limit's state for this caller.
struct Slot<K, T> {
    id: K,
    state: Mutex<T>,
}

impl<K, T> Slot<K, T> {
    fn new(id: K, state: T) -> Arc<Self> {
        let state = Mutex::new(state);
        Arc::new(Self { id, state })
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Verdict = Result<(), Duration>;

/// The decision on a call, or the channel on which it arrives after the store's response.
enum Begun {
    Decided(Verdict),
    Sent(oneshot::Receiver<Verdict>),
}

impl Begun {
    /// Waits for the decision. Returns `None` if the task that sends commands has stopped.
    async fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Decided(verdict) => Some(verdict),
            Self::Sent(reported) => timeout(ANSWER_TIME_MAX, reported).await.ok()?.ok(),
        }
    }
}

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The connection to a store. All limits that use the store share it, and so do clones.
#[derive(Clone)]
pub struct SharedRates<S> {
    store: S,
    node: u64,
    jobs: mpsc::Sender<Job>,
    counters: Arc<Counters>,
    /// The last batch number that was used. No number is reused, because the store ignores a batch whose number it has
    /// already received.
    batches: Arc<AtomicU64>,
}

/// The longest wait for the task that queries the store. If the store fails, that task reports an error sooner; after
/// this time, the task itself must have stopped.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// The maximum number of commands that wait to be sent.
const JOBS_MAX: usize = 10_000;

impl<S: RateStore> SharedRates<S> {
    /// Creates shared rates over `store`, and the task that sends commands to the store. The caller must run
    /// [`SharedRatesTask::run`].
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

    /// Returns the counts of commands and calls since this object was created.
    #[must_use]
    pub fn counts(&self) -> RateCounts {
        let counters = &*self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RateCounts {
            takes: read(&counters.takes),
            permits: read(&counters.permits),
            given_back: read(&counters.given_back),
            spends: read(&counters.spends),
            waited: read(&counters.waited),
            failures: read(&counters.failures),
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

debug_fields!(impl[S] SharedRates<S> { node: node });

/// The task that sends commands to the store, so that calls do not wait while a command is sent.
#[derive(Debug)]
pub struct SharedRatesTask {
    requested: mpsc::Receiver<Job>,
}

impl SharedRatesTask {
    /// Sends commands until every [`SharedRates`] is dropped. Commands that have no response by then are cancelled.
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

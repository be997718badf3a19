//! One limit over several gateways that share a [`RateStore`].
//!
//! | | |
//! |---|---|
//! | [`SharedGcra`] | requests: a gateway takes permits in advance and lets calls in by them, in memory |
//! | [`SharedPostPaid`] | what requests use: told to the store in batches, whose answers say what all have used |
//!
//! A call that memory cannot decide is asked for at once, and told later: above whatever else waits for the store
//! stands an [`EarlyRateLimitLayer`](super::EarlyRateLimitLayer), and below it a
//! [`RateVerdictLayer`](super::RateVerdictLayer). Nobody is refused unless the store was asked a moment ago.
//!
//! **Requests.** The store counts by the generic cell rate algorithm, as [`Gcra`](super::Gcra) does, and each permit
//! that it gives is used once at most. So all gateways together let no more in, in whatever time, than one would, and the permits
//! that they had before: a gateway has what its calls took in [`SLICE`], and a 300th of the quota at most. Of a quota
//! below 300 that is none: each call takes its own permit, and the limit is exact.
//!
//! **What requests use** is known to a gateway as of the last answer of the store, which is [`NEAR_FRESH`] old at most
//! while more than half is taken, and is asked for by each call where sixteen calls would use all of it. What was taken
//! too much meanwhile is a debt, and is waited for by those who come next.
//!
//! While the store is out of reach, each gateway counts for itself, going on from what it knows.

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

/// What a gateway asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Take {
    /// Calls that wait for a permit.
    pub calls: u64,
    /// Further permits that it would like.
    pub spare: u64,
    /// Permits that it has in memory.
    pub has: u64,
    /// Permits that it had, and gives back.
    pub back: u64,
}

/// Counts for all gateways.
pub trait RateStore: Clone + Send + Sync + 'static {
    /// Takes permits of `id` for a gateway: so many, or how long it is until there is one. What a gateway has is
    /// given back for it when it was not heard of for `ttl`.
    fn take(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        take: Take,
        ttl: Duration,
    ) -> impl Future<Output = Result<Result<u64, Duration>, BoxError>> + Send;

    /// Takes the units of a gateway's batch; the same batch twice counts once. What is taken and not filled again,
    /// in thousandths of a unit.
    fn spend(
        &self,
        node: u64,
        id: &str,
        quota: Quota,
        batch: Batch,
    ) -> impl Future<Output = Result<u64, BoxError>> + Send;
}

/// What calls have used that ended since the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Of this gateway.
    pub number: u64,
    /// Used.
    pub units: u64,
}

/// What a gateway has asked of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateCounts {
    /// Times that permits were asked for or given back: a command each.
    pub takes: u64,
    /// Permits that were got.
    pub permits: u64,
    /// Permits that were given back.
    pub given_back: u64,
    /// Times that it was told what calls have used, or asked for it: a command each.
    pub spends: u64,
    /// Calls that waited for its answer, beside the ledger's.
    pub waited: u64,
    /// Times that it did not answer: calls were counted by this gateway alone.
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

/// What limits over one store share. Clones share it too.
pub struct SharedRates<S> {
    store: S,
    node: u64,
    jobs: mpsc::Sender<Job>,
    counters: Arc<Counters>,
    /// Numbers of batches that were given. They never begin anew: a store takes a number that it knows for a repeat.
    batches: Arc<AtomicU64>,
}

/// A store says sooner than this that it cannot answer; then nobody has asked it.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// How much may wait to be asked of the store.
const JOBS_MAX: usize = 10_000;

impl<S: RateStore> SharedRates<S> {
    /// Over `store`, which [`SharedRatesTask::run`] asks.
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

    /// What was asked so far.
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

    /// Whether it will be done.
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

/// Asks the store, off the callers' way.
#[derive(Debug)]
pub struct SharedRatesTask {
    asked: mpsc::Receiver<Job>,
}

impl SharedRatesTask {
    /// Does not end before whoever asks is gone. What it has begun ends with it.
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

//! A record, on this machine, of what a ledger elsewhere has still to be told.
//!
//! Every call leaves steps in a [`Log`]: the intent to hold money, what it has cost so far, how it
//! ended, and that the ledger has acknowledged the end. A process that dies leaves them behind, and
//! the next one ends its calls ([`Outbox::recover`]). A ledger that falls back to an older state, as
//! after a failover, is told again what it acknowledged last ([`Outbox::replay`]).
//!
//! The ledger is asked by the call's number and answers a repeat with the first result, so telling it
//! twice is never wrong; not telling it is. Hence the order: a step that says how a call ends is
//! appended before the ledger is told, and the step that it is done after the ledger has answered.
//! The intent is appended before the ledger is asked, but it is not waited for: a process that dies
//! before it is written leaves a hold that expires by itself, and a call that nobody charges.

mod calls;
pub mod log;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{join, join_all},
    stream,
};
use tokio::time::{Instant, sleep};

use self::calls::{Acknowledged, Ended, Inner, NotAdmitted, OutboxState, Since};

pub use self::log::{CallStep, Ending, Log, Pending};
use super::{
    contract::{Hold, Ledger, LedgerError, Reserved, Settled, Settlement},
    embedded::now_ms,
    settle::{Event, jittered},
};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    number::RequestNumber,
};

/// Calls that the ledger is told of at the same time.
const AT_ONCE: usize = 64;
/// Ends that a replay tells together.
const REPLAYED_AT_ONCE: usize = 256;
/// First wait after the ledger could not be told what an earlier process left; doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// Longest wait.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A ledger with a record, on this machine, of what it has still to be told. Clones share it.
pub struct Outbox<L, G> {
    inner: Arc<Inner<L, G>>,
}

/// How much an outbox takes on.
#[derive(Clone, Debug)]
pub struct OutboxSettings {
    /// Calls that may wait for the ledger to acknowledge their end; then no new call is admitted. As
    /// many acknowledged ones are kept for a replay at most.
    pub calls_max: usize,
    /// How long one may wait before the outbox counts as overdue.
    pub age_max: Duration,
    /// How far back a ledger may have lost what it acknowledged.
    pub replay_window: Duration,
}

impl Default for OutboxSettings {
    fn default() -> Self {
        Self {
            calls_max: 100_000,
            age_max: Duration::from_secs(3_600),
            replay_window: Duration::from_secs(60),
        }
    }
}

/// What waits for the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Calls whose end the ledger was told at least once and has not acknowledged.
    pub calls: usize,
    /// For how long the oldest of them has waited.
    pub oldest: Option<Duration>,
    /// One of them has waited for too long.
    pub overdue: bool,
    /// There are so many that no new call is admitted.
    pub full: bool,
    /// Why nothing can be written down, if so: then no new call is admitted.
    pub broken: Option<String>,
}

impl<L: Ledger, G: Log> Outbox<L, G> {
    /// Reads what an earlier process left unfinished.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn open(ledger: L, log: G, settings: OutboxSettings) -> Result<Self, BoxError> {
        Self::open_by_clock(ledger, log, settings, now_ms).await
    }

    /// As [`Outbox::open`], with another clock for the dates of steps: Unix time in milliseconds.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn open_by_clock(
        ledger: L,
        log: G,
        settings: OutboxSettings,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Self, BoxError> {
        let (left, now, at_ms) = (log.load().await?, Instant::now(), clock());
        let mut state = OutboxState {
            calls: HashMap::new(),
            left: BTreeMap::new(),
            failed: HashMap::new(),
            acknowledged: VecDeque::new(),
            replay_due: false,
            forget_until_ms: None,
            forgot: now,
        };
        for pending in left {
            let ended = Ended {
                ending: pending.ending,
                at_ms: pending.at_ms,
                since: Since {
                    at: now,
                    // A clock that was set back since makes it old, too.
                    before: Duration::from_millis(at_ms.abs_diff(pending.at_ms)),
                },
            };
            if pending.done {
                // The ledger may have fallen back while nobody was here to see it.
                state.replay_due = true;
                state.acknowledged.push_back(Acknowledged {
                    ended,
                    at: now,
                    at_ms,
                });
            } else {
                state.left.insert(ended.ending.number(), ended);
            }
        }
        Ok(Self {
            inner: Arc::new(Inner {
                ledger,
                log,
                settings,
                clock: Box::new(clock),
                state: Mutex::new(state),
            }),
        })
    }

    /// The ledger itself.
    #[must_use]
    pub fn ledger(&self) -> &L {
        &self.inner.ledger
    }

    /// The record itself.
    #[must_use]
    pub fn log(&self) -> &G {
        &self.inner.log
    }

    /// Ends what an earlier process left: settles it as it noted last, releases the rest, and replays
    /// what it had told the ledger lately. Returns when the ledger has answered for all of it.
    pub async fn recover(&self, report: &(dyn Fn(&Event<'_>) + Send + Sync)) {
        let inner = &*self.inner;
        let mut wait = RETRY_MIN;
        loop {
            if inner.lock().replay_due {
                match self.replay().await {
                    Ok(0) => {}
                    Ok(booked) => tracing::warn!(
                        booked,
                        "the ledger had lost charges of an earlier process; they are booked again"
                    ),
                    Err(error) => {
                        tracing::warn!(%error, "what the ledger was told last could not be told again")
                    }
                }
            }
            let left: Vec<Ended> = inner.lock().left.values().cloned().collect();
            stream::iter(left)
                .for_each_concurrent(AT_ONCE, |ended| inner.end_left(ended, report))
                .await;
            let first = {
                let state = inner.lock();
                if state.left.is_empty() && !state.replay_due {
                    return;
                }
                let oldest = || {
                    state
                        .acknowledged
                        .front()
                        .map(|oldest| oldest.ended.ending.number())
                };
                state.left.keys().next().copied().or_else(oldest)
            };
            sleep(first.map_or(wait / 2, |number| jittered(wait, number))).await;
            wait = RETRY_MAX.min(wait * 2);
        }
    }

    /// Tells the ledger again what it was told lately: after a failover it may have lost its newest
    /// steps. Repeats are cheap. Returns how many calls were booked anew.
    ///
    /// # Errors
    /// The ledger could not be told everything: replay again. Until that has succeeded, nothing is
    /// forgotten.
    pub async fn replay(&self) -> Result<usize, LedgerError> {
        let inner = &*self.inner;
        let began = Instant::now();
        let lately: Vec<Ended> = {
            let mut state = inner.lock();
            state.replay_due = true;
            state
                .acknowledged
                .iter()
                .map(|call| call.ended.clone())
                .collect()
        };
        let (mut booked_anew, mut failed) = (0, None);
        for some in lately.chunks(REPLAYED_AT_ONCE) {
            let (settlements, releases) = Ending::sorted(some.iter().map(Ended::as_of_now));
            let releasing = releases.iter().map(|release| release.submit(&inner.ledger));
            let settling = inner.ledger.settle_all(&settlements);
            let (settled, released) = join(settling, join_all(releasing)).await;
            let settled = settled.into_iter().map(|answer| answer.map(Some));
            for answer in settled.chain(released) {
                match answer {
                    Ok(Some(settled)) if settled.moved() => booked_anew += 1,
                    Ok(_) => {}
                    // The others are told all the same.
                    Err(error) => failed = Some(error),
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let mut state = inner.lock();
        state.replay_due = false;
        // The ledger may fall back once more, to before this replay.
        for call in state
            .acknowledged
            .iter_mut()
            .take_while(|call| call.at < began)
        {
            call.at = began;
        }
        Ok(booked_anew)
    }

    /// Whether a replay was begun and did not succeed: until one has, nothing is forgotten.
    #[must_use]
    pub fn replay_due(&self) -> bool {
        self.inner.lock().replay_due
    }

    /// The ledger has just been seen to be the same as before: what is older than the replay window
    /// need not be kept for a replay.
    pub fn confirmed(&self) {
        let (inner, now) = (&*self.inner, Instant::now());
        let mut state = inner.lock();
        if state.replay_due {
            return;
        }
        while let Some(oldest) = state.acknowledged.front()
            && now.duration_since(oldest.at) > inner.settings.replay_window
        {
            state.forget_oldest();
        }
        inner.trim_log(&mut state);
    }

    /// What waits for the ledger.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        let inner = &*self.inner;
        let broken = inner.log.fault();
        let state = inner.lock();
        let oldest = state.failed.values().map(|since| since.age()).max();
        Backlog {
            calls: state.failed.len(),
            oldest,
            overdue: oldest.is_some_and(|age| age > inner.settings.age_max),
            full: inner.is_full(&state),
            broken,
        }
    }

    /// Resolves when all that was appended would survive a power cut.
    ///
    /// # Errors
    /// The log cannot be written.
    pub async fn sync(&self) -> Result<(), BoxError> {
        self.inner.log.sync().await
    }
}

impl<L, G> Clone for Outbox<L, G> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<L: fmt::Debug, G> fmt::Debug for Outbox<L, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("ledger", &self.inner.ledger)
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

impl<L: Ledger, G: Log> Ledger for Outbox<L, G> {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let inner = &*self.inner;
        let new = inner
            .admit(hold)
            .map_err(|why| LedgerError::Unavailable(why.into()))?;
        let answer = inner.ledger.reserve(hold).await;
        if new && matches!(answer, Err(LedgerError::Refused(_))) {
            inner.refused(hold.number);
        }
        answer
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let inner = &*self.inner;
        let settlement = &inner.with_lease(settlement);
        inner.ends(Ending::Settle(Arc::clone(settlement)));
        let answer = inner.ledger.settle(settlement).await;
        if answer.is_ok() {
            inner.acknowledged(settlement.number);
        } else {
            inner.unacknowledged(settlement.number).await;
        }
        answer
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        let inner = &*self.inner;
        if !inner.knows(number) {
            // Not admitted here, so there is no hold of ours to remember: an outbox that is full must
            // not fill further with what it refused.
            return inner.ledger.release(number, account, key).await;
        }
        inner.ends(Ending::Release {
            number,
            account: account.clone(),
            key: key.clone(),
        });
        let answer = inner.ledger.release(number, account, key).await;
        if answer.is_ok() {
            inner.acknowledged(number);
        } else {
            inner.unacknowledged(number).await;
        }
        answer
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        self.inner.ledger.extend(number, account, ttl).await
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        self.inner.ledger.probe(account, key).await
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        self.inner.ledger.expire().await
    }

    async fn checkpoint(&self, running: &[Settlement]) -> Result<(), LedgerError> {
        let inner = &*self.inner;
        for settlement in running {
            inner.note(settlement);
        }
        match inner.log.fault() {
            None => Ok(()),
            Some(fault) => Err(LedgerError::Unavailable(NotAdmitted::Broken(fault).into())),
        }
    }
}

#[cfg(test)]
mod tests;

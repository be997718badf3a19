//! The outbox: a file on this machine that records settlements and releases until the remote ledger has acknowledged
//! them.
//!
//! The outbox writes the steps of every call to a [`Log`]: the intent to hold money, the cost so far, the settlement or
//! release, and the ledger's acknowledgement. If a process dies, the next process reads these steps and settles or
//! releases the calls ([`Outbox::recover`]). If a ledger falls back to older data, for example in a failover, the
//! outbox sends the last acknowledged settlements and releases again ([`Outbox::replay`]).
//!
//! The ledger identifies a call by its number, and answers a repeated settlement with the first result. Sending a
//! settlement twice is therefore harmless, but losing it is not. This determines the order: a settlement is appended to
//! the log before it is sent to the ledger, and the step `Done` is appended after the ledger has answered. An intent is
//! appended before the hold is requested, but the request does not wait until the intent is written. If the process
//! dies before the intent is written, the hold expires by itself and the call is not charged.

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
    contract::{Adjusted, Adjustment, Hold, Ledger, LedgerError, Reserved, Settled, Settlement},
    embedded::now_ms,
    settle::{Event, jittered},
};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    number::RequestNumber,
};

/// The largest number of settlements and releases that are sent at the same time when the outbox recovers.
const AT_ONCE: usize = 64;
/// The largest number of settlements that a replay sends in one request.
const REPLAYED_AT_ONCE: usize = 256;
/// The wait before the second attempt to settle a call that an earlier process left. The wait doubles after each
/// attempt.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest wait between two attempts to settle a call that an earlier process left.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A ledger with an outbox: it records settlements and releases on this machine until the ledger has acknowledged them.
/// Clones share the outbox.
pub struct Outbox<L, G> {
    inner: Arc<Inner<L, G>>,
}

/// The limits of an outbox, and how long it keeps acknowledged calls.
#[derive(Clone, Debug)]
pub struct OutboxSettings {
    /// The largest number of calls that may wait for the ledger's acknowledgement; if there are more, no call is
    /// admitted. It is also the largest number of acknowledged calls that are kept for a replay.
    pub calls_max: usize,
    /// The backlog is overdue if a call waits longer than this for the ledger's acknowledgement.
    pub age_max: Duration,
    /// How long an acknowledged call is kept for a replay. A failover of the ledger must not lose older
    /// acknowledgements.
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

/// The calls that wait for the ledger to acknowledge their settlement or release, and whether new calls are admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of calls whose settlement or release was sent at least once and is not acknowledged.
    pub calls: usize,
    /// How long the oldest call has waited for the ledger's acknowledgement.
    pub oldest: Option<Duration>,
    /// Whether a call has waited longer than [`OutboxSettings::age_max`].
    pub overdue: bool,
    /// Whether the outbox is full, so that no new call is admitted.
    pub full: bool,
    /// The reason why the log cannot be written; `None` if it can. While there is a reason, no call is admitted.
    pub broken: Option<String>,
}

impl<L: Ledger, G: Log> Outbox<L, G> {
    /// Opens an outbox and reads the calls that an earlier process left.
    ///
    /// # Errors
    /// An error if the log cannot be read.
    pub async fn open(ledger: L, log: G, settings: OutboxSettings) -> Result<Self, BoxError> {
        Self::open_by_clock(ledger, log, settings, now_ms).await
    }

    /// Opens an outbox as [`Outbox::open`] does, with another clock. `clock` returns Unix time in milliseconds, which
    /// is recorded in the steps.
    ///
    /// # Errors
    /// An error if the log cannot be read.
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
                    // If the clock was set back, the recorded time is in the future. The difference then counts as the
                    // age.
                    before: Duration::from_millis(at_ms.abs_diff(pending.at_ms)),
                },
            };
            if pending.done {
                // The ledger may have fallen back to older data while no gateway was running.
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

    /// Returns the ledger that the outbox wraps.
    #[must_use]
    pub fn ledger(&self) -> &L {
        &self.inner.ledger
    }

    /// Returns the log that the outbox writes.
    #[must_use]
    pub fn log(&self) -> &G {
        &self.inner.log
    }

    /// Ends the calls that an earlier process left. It settles calls that have a settlement or a checkpoint, and
    /// releases the others. It also replays recently acknowledged calls. Returns when the ledger has acknowledged all
    /// of them.
    pub async fn recover(&self, report: &(dyn Fn(&Event<'_>) + Send + Sync)) {
        let inner = &*self.inner;
        let mut wait = RETRY_MIN;
        loop {
            if inner.lock().replay_due {
                match self.replay().await {
                    Ok(0) => {}
                    Ok(booked) => tracing::warn!(
                        booked,
                        "the ledger had lost charges of an earlier process; the outbox has charged them again"
                    ),
                    Err(error) => {
                        tracing::warn!(%error, "the outbox could not replay its last charges to the ledger")
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
                let oldest = state.acknowledged.front();
                let oldest = || oldest.map(|oldest| oldest.ended.ending.number());
                state.left.keys().next().copied().or_else(oldest)
            };
            sleep(first.map_or(wait / 2, |number| jittered(wait, number))).await;
            wait = RETRY_MAX.min(wait * 2);
        }
    }

    /// Sends recently acknowledged settlements and releases again, in case the ledger has lost them in a failover.
    /// Returns the number of calls whose charges the ledger had lost and this replay has restored.
    ///
    /// # Errors
    /// The [`LedgerError`] of a settlement or release that the ledger did not acknowledge. After an error, call this
    /// method again: the outbox keeps all calls until a replay has succeeded.
    pub async fn replay(&self) -> Result<usize, LedgerError> {
        let inner = &*self.inner;
        let began = Instant::now();
        let lately: Vec<Ended> = {
            let mut state = inner.lock();
            state.replay_due = true;
            let acknowledged = state.acknowledged.iter();
            acknowledged.map(|call| call.ended.clone()).collect()
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
                    // After one failure, the remaining calls are still sent.
                    Err(error) => failed = Some(error),
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let mut state = inner.lock();
        state.replay_due = false;
        // The ledger may fall back again, to data from before this replay. So each replayed call is kept as if it was
        // acknowledged when this replay began.
        let calls = state.acknowledged.iter_mut();
        for call in calls.take_while(|call| call.at < began) {
            call.at = began;
        }
        Ok(booked_anew)
    }

    /// Returns whether a replay was started but has not succeeded yet. Until it succeeds, the outbox keeps all
    /// acknowledged calls.
    #[must_use]
    pub fn replay_due(&self) -> bool {
        self.inner.lock().replay_due
    }

    /// Deletes acknowledged calls that are older than the replay window. Call this when the ledger has just proved that
    /// it has lost no data.
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

    /// Returns the current backlog: the calls that wait for the ledger's acknowledgement.
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

    /// Resolves when all steps appended so far are stored durably: they survive a power cut.
    ///
    /// # Errors
    /// An error if the log cannot be written.
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
        let new = inner.admit(hold);
        let new = new.map_err(|why| LedgerError::Unavailable(why.into()))?;
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
        inner.answered(settlement.number, answer.is_ok()).await;
        answer
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        let inner = &*self.inner;
        if !inner.has_call(number) {
            // This call was not admitted, so the outbox does not record its release: a full outbox must not grow by the
            // calls that it refuses.
            return inner.ledger.release(number, account, key).await;
        }
        inner.ends(Ending::release(number, account.clone(), key.clone()));
        let answer = inner.ledger.release(number, account, key).await;
        inner.answered(number, answer.is_ok()).await;
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

    /// A hold change needs no step in the log. A settlement or release ends the full hold, whatever its amount. The
    /// cost in a checkpoint fits into the hold at that time, so a restart can charge it in full.
    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        self.inner.ledger.adjust(adjustment).await
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

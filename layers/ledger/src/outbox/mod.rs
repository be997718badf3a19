//! A record, on this machine, of ends of calls that a remote ledger has not acknowledged yet.
//!
//! Every call writes steps to a [`Log`]: the intent to hold money, its cost so far, how it ended, and that the ledger
//! has acknowledged the end. If a process dies, the next process reads these steps and ends the calls
//! ([`Outbox::recover`]). If a ledger falls back to an older state, as after a failover, the ends that it acknowledged
//! last are sent again ([`Outbox::replay`]).
//!
//! The ledger identifies a call by its number, and answers a repeated end of the call with the first result. So sending
//! an end twice is harmless, but losing an end is not. Hence the order: the step with a call's end is appended before
//! the end is sent to the ledger, and the step `done` after the ledger has answered. The intent is appended before the
//! hold is requested from the ledger, but the request does not wait until the intent is written. If the process dies
//! first, the hold expires by itself, and the call is not charged.

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

/// The largest number of calls whose ends are sent to the ledger at the same time.
const AT_ONCE: usize = 64;
/// The largest number of ends that a replay sends together.
const REPLAYED_AT_ONCE: usize = 256;
/// The first wait before a call's end that an earlier process left is sent again. The wait doubles after each attempt.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest wait before ends are sent again.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A ledger with a local record of the ends that it has not acknowledged. Clones share the record.
pub struct Outbox<L, G> {
    inner: Arc<Inner<L, G>>,
}

/// The limits of an outbox.
#[derive(Clone, Debug)]
pub struct OutboxSettings {
    /// The largest number of calls that may wait for the ledger to acknowledge their end; beyond it no new call is
    /// admitted. Also the largest number of acknowledged calls that are kept for a replay.
    pub calls_max: usize,
    /// The time for which a call may wait before the outbox counts as overdue.
    pub age_max: Duration,
    /// How far back a failover of the ledger may lose acknowledged ends: older ends are safe.
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

/// The calls whose ends wait for the ledger's acknowledgement, and whether new calls are admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of calls whose end was sent at least once and is not acknowledged.
    pub calls: usize,
    /// The time for which the oldest call has waited.
    pub oldest: Option<Duration>,
    /// Whether a call has waited longer than [`OutboxSettings::age_max`].
    pub overdue: bool,
    /// Whether the outbox is full, so that no new call is admitted.
    pub full: bool,
    /// The reason why the log cannot be written; `None` if it can be written. While there is a reason, no new call is
    /// admitted.
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

    /// Opens an outbox as [`Outbox::open`] does. `clock` returns the times of steps: Unix time in milliseconds.
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
                    // If the clock was set back, the step's time is in the future; then it counts as equally old.
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

    /// Ends the calls that an earlier process left: settles those with a checkpoint, releases the others, and replays
    /// the ends that the ledger acknowledged recently. Returns when the ledger has acknowledged all ends.
    pub async fn recover(&self, report: &(dyn Fn(&Event<'_>) + Send + Sync)) {
        let inner = &*self.inner;
        let mut wait = RETRY_MIN;
        loop {
            if inner.lock().replay_due {
                match self.replay().await {
                    Ok(0) => {}
                    Ok(booked) => tracing::warn!(
                        booked,
                        "the ledger had lost charges of an earlier process; they are charged again"
                    ),
                    Err(error) => {
                        tracing::warn!(%error, "the last charges could not be sent to the ledger again")
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

    /// Sends recently acknowledged ends again: after a failover the ledger may have lost them. Repeats are cheap.
    /// Returns the number of calls that the ledger had lost and has now charged again.
    ///
    /// # Errors
    /// The [`LedgerError`] of an end that the ledger did not acknowledge. Call this method again: the outbox keeps all
    /// ends until a replay has succeeded.
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
                    // If an end cannot be sent, the remaining ends are still sent.
                    Err(error) => failed = Some(error),
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let mut state = inner.lock();
        state.replay_due = false;
        // The ledger may fall back again, to a state before this replay. So the ends count as acknowledged just now.
        for call in state
            .acknowledged
            .iter_mut()
            .take_while(|call| call.at < began)
        {
            call.at = began;
        }
        Ok(booked_anew)
    }

    /// Returns whether a replay was started and has not succeeded. Until then, the outbox keeps all ends.
    #[must_use]
    pub fn replay_due(&self) -> bool {
        self.inner.lock().replay_due
    }

    /// Call this when the ledger has just shown that it has lost no data. Deletes ends older than the replay window.
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

    /// Returns the current backlog: the calls whose ends wait for the ledger's acknowledgement.
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

    /// Resolves when all steps appended so far would survive a power cut.
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
            // This call was not admitted, so the outbox has no hold of it to end. An outbox that is full must not grow
            // by the calls that it refused.
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

    /// Appends no step: a settlement or a release ends the whole hold, whatever its amount. The cost in a checkpoint
    /// fits into the hold at the time of the checkpoint, so after a restart the whole cost is charged.
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

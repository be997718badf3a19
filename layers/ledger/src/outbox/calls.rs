//! The calls that an outbox tracks, and the steps that each call writes to the log.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, hash_map},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, timeout};

use super::{
    OutboxSettings,
    log::{CallStep, Ending, Log},
};
use crate::{
    contract::{Hold, Ledger, Settlement},
    number::RequestNumber,
    settle::{Event, FRESH, cause_of},
};

/// The time for which the retry of a failed settlement waits until the log is synced. It is bounded because the ledger
/// may answer again while the disk hangs.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval at which the outbox lets its log delete steps of calls whose end is acknowledged.
const FORGET_EVERY: Duration = Duration::from_secs(10);

/// The reason why a call was not admitted.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotAdmitted {
    #[error("the outbox cannot be written: {0}")]
    Broken(String),
    #[error("the outbox is full: {0} calls wait for the ledger to acknowledge their end")]
    Full(usize),
}

pub(super) struct Inner<L, G> {
    pub(super) ledger: L,
    pub(super) log: G,
    pub(super) settings: OutboxSettings,
    pub(super) clock: Clock,
    pub(super) state: Mutex<OutboxState>,
}

/// The clock of steps: Unix time in milliseconds.
type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The outbox's state. Steps are appended while it is locked, so that the steps of one call are in order in the log.
pub(super) struct OutboxState {
    /// This process's calls, until their ends are acknowledged.
    pub(super) calls: HashMap<RequestNumber, Call>,
    /// Ends of calls that an earlier process left, oldest first.
    pub(super) left: BTreeMap<RequestNumber, Ended>,
    /// The calls, of this or an earlier process, whose end got no answer from the ledger, with the time of the first
    /// attempt to send the end.
    pub(super) failed: HashMap<RequestNumber, Since>,
    /// Ends that the ledger has acknowledged recently, oldest first.
    pub(super) acknowledged: VecDeque<Acknowledged>,
    /// Whether a replay was started and not finished. If so, the ledger may have lost the ends in `acknowledged`.
    pub(super) replay_due: bool,
    /// The log may delete steps of acknowledged calls up to this time. `forgot` is when the log last received a new
    /// value of this time.
    pub(super) forget_until_ms: Option<u64>,
    pub(super) forgot: Instant,
}

pub(super) enum Call {
    Running,
    Ending(Ended),
}

#[derive(Clone)]
pub(super) struct Ended {
    pub(super) ending: Ending,
    /// The time of the end's step in the log, in Unix milliseconds.
    pub(super) at_ms: u64,
    pub(super) since: Since,
}

impl Ended {
    /// The end to send to the ledger now, with `fresh` according to its age.
    pub(super) fn as_of_now(&self) -> Ending {
        match &self.ending {
            Ending::Settle(settlement) => Ending::Settle(Arc::new(Settlement {
                fresh: self.since.age() < FRESH,
                ..Settlement::clone(settlement)
            })),
            release @ Ending::Release { .. } => release.clone(),
        }
    }
}

pub(super) struct Acknowledged {
    pub(super) ended: Ended,
    pub(super) at: Instant,
    pub(super) at_ms: u64,
}

/// The time at which the end was first sent to the ledger. For an end of an earlier process, `before` is its age when
/// this process started.
#[derive(Clone, Copy)]
pub(super) struct Since {
    pub(super) at: Instant,
    pub(super) before: Duration,
}

impl Since {
    pub(super) fn now() -> Self {
        Self {
            at: Instant::now(),
            before: Duration::ZERO,
        }
    }

    pub(super) fn age(self) -> Duration {
        self.before.saturating_add(self.at.elapsed())
    }
}

/// The steps of this process's calls. Each method takes the lock once and does not wait while it has the lock.
impl<L: Ledger, G: Log> Inner<L, G> {
    /// Appends the intent of a new call. Returns whether the number is new.
    pub(super) fn admit(&self, hold: &Hold) -> Result<bool, NotAdmitted> {
        if let Some(fault) = self.log.fault() {
            return Err(NotAdmitted::Broken(fault));
        }
        let mut state = self.lock();
        if self.is_full(&state) {
            return Err(NotAdmitted::Full(state.failed.len()));
        }
        let hash_map::Entry::Vacant(place) = state.calls.entry(hold.number) else {
            return Ok(false);
        };
        place.insert(Call::Running);
        self.log.append(CallStep::Intent {
            number: hold.number,
            account: hold.account.clone(),
            key: hold.key.clone(),
            at_ms: (self.clock)(),
        });
        Ok(true)
    }

    /// Records that the ledger refused the hold, so that the call has no hold to end.
    pub(super) fn refused(&self, number: RequestNumber) {
        let mut state = self.lock();
        // The caller may have disconnected and ended the call before the refusal arrived.
        if matches!(state.calls.get(&number), Some(Call::Running)) {
            state.calls.remove(&number);
            let at_ms = (self.clock)();
            self.log.append(CallStep::Done { number, at_ms });
        }
    }

    /// Appends a checkpoint of what a call has cost so far, unless the call has already ended.
    pub(super) fn note(&self, settlement: &Settlement) {
        let state = self.lock();
        if matches!(state.calls.get(&settlement.number), Some(Call::Running)) {
            let settlement = self.with_lease(settlement);
            self.log.append(CallStep::Checkpoint(settlement));
        }
    }

    /// Adds to a settlement the lease that holds the call's money. If this process dies, the next process could not
    /// find out which lease it was.
    pub(super) fn with_lease(&self, settlement: &Settlement) -> Arc<Settlement> {
        let lease = || self.ledger.lease_of(settlement.number, &settlement.key);
        Arc::new(Settlement {
            lease: settlement.lease.or_else(lease),
            ..settlement.clone()
        })
    }

    pub(super) fn knows(&self, number: RequestNumber) -> bool {
        self.lock().calls.contains_key(&number)
    }

    /// Appends the end of a call. Does nothing if the call's end was appended before.
    pub(super) fn ends(&self, ending: Ending) {
        let number = ending.number();
        let mut state = self.lock();
        if matches!(state.calls.get(&number), Some(Call::Ending(_))) {
            return;
        }
        let at_ms = (self.clock)();
        self.log.append(ending.step(at_ms));
        let ended = Ended {
            ending,
            at_ms,
            since: Since::now(),
        };
        state.calls.insert(number, Call::Ending(ended));
    }

    pub(super) fn acknowledged(&self, number: RequestNumber) {
        let mut state = self.lock();
        if let Some(Call::Ending(ended)) = state.calls.remove(&number) {
            self.done(&mut state, ended);
        }
    }

    /// Syncs the log after an end was not acknowledged: the end will be sent again, and must survive a power cut until
    /// then.
    pub(super) async fn unacknowledged(&self, number: RequestNumber) {
        {
            let state = &mut *self.lock();
            if let Some(Call::Ending(ended)) = state.calls.get(&number) {
                state.failed.insert(number, ended.since);
            }
        }
        match timeout(SYNC_TIMEOUT, self.log.sync()).await {
            Ok(Ok(())) => {}
            Ok(Err(cause)) => {
                tracing::error!(%number, %cause, "the end of a call is only in memory")
            }
            Err(_) => {
                tracing::error!(%number, "the end of a call is only in memory: the disk does not respond")
            }
        }
    }

    /// Makes one attempt to end a call that an earlier process left.
    pub(super) async fn end_left(&self, ended: Ended, report: &(dyn Fn(&Event<'_>) + Send + Sync)) {
        let ending = ended.as_of_now();
        let number = ending.number();
        match ending.submit(&self.ledger).await {
            Ok(settled) => {
                {
                    let mut state = self.lock();
                    if state.left.remove(&number).is_none() {
                        return;
                    }
                    // The log may have only the intent or a checkpoint of the call. Append the end that was sent, so
                    // that it can be replayed.
                    self.log.append(ended.ending.step(ended.at_ms));
                    self.done(&mut state, ended);
                }
                report(&ending.acknowledged(settled.as_ref()));
            }
            Err(error) => {
                {
                    let mut state = self.lock();
                    if state.left.contains_key(&number) {
                        state.failed.insert(number, ended.since);
                    }
                }
                report(&Event::Unavailable {
                    number,
                    cause: &cause_of(error),
                });
            }
        }
    }

    /// Records that the ledger has acknowledged the end. The end is kept for a replay, since the ledger may still lose
    /// it.
    pub(super) fn done(&self, state: &mut OutboxState, ended: Ended) {
        let (number, at_ms) = (ended.ending.number(), (self.clock)());
        state.failed.remove(&number);
        self.log.append(CallStep::Done { number, at_ms });
        state.acknowledged.push_back(Acknowledged {
            ended,
            at: Instant::now(),
            at_ms,
        });
        if state.acknowledged.len() > self.settings.calls_max.max(1) {
            state.forget_oldest();
            self.trim_log(state);
        }
    }

    pub(super) fn trim_log(&self, state: &mut OutboxState) {
        if state.forgot.elapsed() >= FORGET_EVERY
            && let Some(until_ms) = state.forget_until_ms.take()
        {
            state.forgot = Instant::now();
            self.log.forget(until_ms);
        }
    }

    pub(super) fn is_full(&self, state: &OutboxState) -> bool {
        state.failed.len() >= self.settings.calls_max.max(1)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, OutboxState> {
        // The state is consistent after a panic: each map is changed at once, and each step is appended whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutboxState {
    pub(super) fn forget_oldest(&mut self) {
        if let Some(oldest) = self.acknowledged.pop_front() {
            self.forget_until_ms = Some(oldest.at_ms);
        }
    }
}

//! The calls that an outbox tracks, and the steps that it writes to the log for each call.

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

/// How long the retry of a failed settlement waits for the log to be synced. The wait is bounded, because the ledger
/// may answer again while the disk hangs.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the outbox lets its log delete the steps of calls that the ledger has acknowledged.
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

/// Returns the time that is recorded in steps: Unix time in milliseconds.
type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The outbox's state. Steps are appended to the log under the lock of this state, so that the steps of one call are in
/// order in the log.
pub(super) struct OutboxState {
    /// Calls of this process, until the ledger has acknowledged their settlement or release.
    pub(super) calls: HashMap<RequestNumber, Call>,
    /// Settlements and releases of calls that an earlier process left, oldest call first.
    pub(super) left: BTreeMap<RequestNumber, Ended>,
    /// Calls whose settlement or release was sent but not answered, with the time of the first attempt. They are calls
    /// of this process or of an earlier one.
    pub(super) failed: HashMap<RequestNumber, Since>,
    /// Settlements and releases that the ledger has acknowledged recently, oldest first.
    pub(super) acknowledged: VecDeque<Acknowledged>,
    /// Whether a replay was started but has not finished. If so, the ledger may have lost the calls in `acknowledged`.
    pub(super) replay_due: bool,
    /// The log may delete the steps of calls that were acknowledged before this time. `forgot` is when the log was last
    /// given such a time.
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
    /// Unix time in milliseconds at which the settlement or release was appended to the log.
    pub(super) at_ms: u64,
    pub(super) since: Since,
}

impl Ended {
    /// Returns the settlement or release to send to the ledger now. A settlement is marked as fresh if its first
    /// attempt is recent.
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

/// When a settlement or release was first sent to the ledger. If an earlier process sent it, `before` is the time from
/// that attempt to the start of this process.
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

/// The steps of this process's calls. Each method takes the lock at most once and does not wait while it has the lock.
impl<L: Ledger, G: Log> Inner<L, G> {
    /// Appends the intent of a new call. Returns false if the call's number is already in use.
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

    /// Records that the ledger refused the hold of a call, so there is no hold to settle or release.
    pub(super) fn refused(&self, number: RequestNumber) {
        let mut state = self.lock();
        // The caller may have disconnected before the refusal arrived, and the call may have been released already.
        if matches!(state.calls.get(&number), Some(Call::Running)) {
            state.calls.remove(&number);
            let at_ms = (self.clock)();
            self.log.append(CallStep::Done { number, at_ms });
        }
    }

    /// Appends a checkpoint with the cost of a call so far, unless the call has already ended.
    pub(super) fn note(&self, settlement: &Settlement) {
        let state = self.lock();
        if matches!(state.calls.get(&settlement.number), Some(Call::Running)) {
            let settlement = self.with_lease(settlement);
            self.log.append(CallStep::Checkpoint(settlement));
        }
    }

    /// Returns the settlement with the number of the lease against which the call has its hold. The lease's number must
    /// be recorded: if this process dies, the next process cannot find it out.
    pub(super) fn with_lease(&self, settlement: &Settlement) -> Arc<Settlement> {
        let lease = || self.ledger.lease_of(settlement.number, &settlement.key);
        Arc::new(Settlement {
            lease: settlement.lease.or_else(lease),
            ..settlement.clone()
        })
    }

    pub(super) fn has_call(&self, number: RequestNumber) -> bool {
        self.lock().calls.contains_key(&number)
    }

    /// Appends the settlement or release of a call to the log, unless it was appended before.
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

    /// Records whether the ledger has acknowledged a settlement or release. If it has not, the log is synced: the
    /// settlement or release will be sent again, and must survive a power cut until then.
    pub(super) async fn answered(&self, number: RequestNumber, is_acknowledged: bool) {
        {
            let state = &mut *self.lock();
            if is_acknowledged {
                if let Some(Call::Ending(ended)) = state.calls.remove(&number) {
                    self.done(state, ended);
                }
                return;
            }
            if let Some(Call::Ending(ended)) = state.calls.get(&number) {
                state.failed.insert(number, ended.since);
            }
        }
        match timeout(SYNC_TIMEOUT, self.log.sync()).await {
            Ok(Ok(())) => {}
            Ok(Err(cause)) => {
                tracing::error!(%number, %cause, "how a call ended is stored only in memory")
            }
            Err(_) => {
                tracing::error!(%number, "how a call ended is stored only in memory: the disk does not respond")
            }
        }
    }

    /// Makes one attempt to settle or release a call that an earlier process left.
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
                    // The log may contain only the intent or a checkpoint of the call. Append the settlement or release
                    // that was sent, so that it can be replayed.
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

    /// Records that the ledger has acknowledged a settlement or release. The settlement or release is kept for a
    /// replay, because the ledger may lose it in a failover.
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
        // The state is consistent after a panic: each map is changed in one operation, and each step is appended as a
        // whole.
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

//! The calls that an outbox knows of, and the steps that each leaves in the log.

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

/// How long a settlement that failed waits for the log. A disk that hangs must not keep it from the
/// ledger, which may be there again.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the log is told what it need not keep.
const FORGET_EVERY: Duration = Duration::from_secs(10);

/// Why a call was not admitted.
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

/// Unix time in milliseconds.
type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// Steps are appended under its lock: in the log, those of one number stand in the order of its steps.
pub(super) struct OutboxState {
    /// This process's calls, until their end is acknowledged.
    pub(super) calls: HashMap<RequestNumber, Call>,
    /// What an earlier process left to be told, oldest first.
    pub(super) left: BTreeMap<RequestNumber, Ended>,
    /// Of both, those that the ledger was told of without an answer, and since when.
    pub(super) failed: HashMap<RequestNumber, Since>,
    /// What the ledger has acknowledged lately, oldest first.
    pub(super) acknowledged: VecDeque<Acknowledged>,
    /// A replay was begun and has not come to its end: what is in `acknowledged` may have been lost.
    pub(super) replay_due: bool,
    /// What the log need not keep any more, and when it was told so last.
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
    /// The date of its step.
    pub(super) at_ms: u64,
    pub(super) since: Since,
}

impl Ended {
    /// What the ledger is to be told now.
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

/// When the ledger was told first. What an earlier process did lies before this one's clock.
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

/// The steps of this process's calls. Each takes the lock once and waits for nothing under it.
impl<L: Ledger, G: Log> Inner<L, G> {
    /// Says whether the number is new: then the intent is written down.
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

    /// Nothing is held: there is nothing to end.
    pub(super) fn refused(&self, number: RequestNumber) {
        let mut state = self.lock();
        // Its caller may have given up, and ended it, while the refusal was on its way.
        if matches!(state.calls.get(&number), Some(Call::Running)) {
            state.calls.remove(&number);
            let at_ms = (self.clock)();
            self.log.append(CallStep::Done { number, at_ms });
        }
    }

    /// Notes what a call has cost so far, unless it has ended meanwhile.
    pub(super) fn note(&self, settlement: &Settlement) {
        let state = self.lock();
        if matches!(state.calls.get(&settlement.number), Some(Call::Running)) {
            let settlement = self.with_lease(settlement);
            self.log.append(CallStep::Checkpoint(settlement));
        }
    }

    /// With the lease that holds money for the call: the next process would not know.
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

    /// Writes down how a call ends. A further attempt to tell the ledger changes nothing.
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

    /// It will be told again; until then a power cut must not take it.
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
                tracing::error!(%number, %cause, "the end of a call is in memory alone")
            }
            Err(_) => {
                tracing::error!(%number, "the end of a call is in memory alone: the disk does not answer")
            }
        }
    }

    /// One attempt to end what an earlier process left.
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
                    // It may have been noted or intended only; what was told is kept for a replay.
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

    /// The ledger has acknowledged it. It may lose it yet.
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
        // Nothing leaves the state half changed: maps, and steps that are appended whole.
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

//! A key's lease, shared by its calls and by the task that tells the ledger.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use super::{
    Leases,
    lease::{ENDS_MAX, Lease, NOTHING, Now, Size, Told},
    pace::Pace,
};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    book::Millis,
    contract::{Hold, Refusal, Reserved, Settlement},
    number::RequestNumber,
    redis::turn::{RECALLED_FOR, Turn, TurnAnswer},
};

/// Ends wait so long for others, so that one turn tells them all.
const GATHER_MS: Millis = 5;
/// A lease that is granted from is told of so often: so soon it is given back when others ask for it.
const TURN_MS: Millis = 40;
/// One that nothing is granted from lives on with its calls, and is told of so often at least.
const QUIET_TURN_MS: Millis = 5_000;
/// A key without calls for so long has no lease.
const SILENT_MS: Millis = 1_000;
/// How long a turn that was not answered waits to be told again, at most.
const RETRY_MAX_MS: Millis = 1_000;

pub(super) struct Slot {
    account: AccountId,
    key: KeyId,
    state: Mutex<State>,
    /// Its task has something to look at.
    wake: Notify,
}

#[derive(Default)]
struct State {
    pace: Pace,
    lease: Option<Lease>,
    /// Money was short: until then there is no lease.
    short_until: Millis,
    /// What was free in the ledger when it was told last.
    free: crate::money::MicroRub,
    last_turn: Millis,
    /// Turns in a row that were not answered.
    unanswered: u32,
}

/// What the task has to do.
pub(super) enum Due {
    Turn(Box<Turn>),
    /// Nothing for so long, unless it is woken.
    Wait(Duration),
    /// Its lease is over.
    Done,
}

impl Slot {
    pub(super) fn new(account: &AccountId, key: &KeyId) -> Self {
        Self {
            account: account.clone(),
            key: key.clone(),
            state: Mutex::default(),
            wake: Notify::new(),
        }
    }

    pub(super) const fn account(&self) -> &AccountId {
        &self.account
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(super) fn has_lease(&self) -> bool {
        self.lock().lease.is_some()
    }

    /// What the lease says to a hold, if anything; and whether the key has a lease from here on.
    pub(super) fn reserve(
        &self,
        hold: &Hold,
        leases: &Leases,
        now: Now,
    ) -> (Option<Result<Reserved, Refusal>>, bool) {
        if hold.account != self.account {
            // Nobody's call: the ledger says so.
            return (None, false);
        }
        let mut state = self.lock();
        state.pace.note(hold.want, now.steady);
        if state.lease.is_none() {
            let busy =
                state.pace.calls_per_second(now.steady) >= leases.settings.calls_per_second_min;
            let takes = busy && state.short_until <= now.steady && !leases.is_stopping();
            if takes {
                state.lease = Some(Lease::new(&self.account, &self.key, leases.lease_ms()));
            }
            return (None, takes);
        }
        let free = state.free;
        let Some(lease) = &mut state.lease else {
            return (None, false);
        };
        let answer = lease.reserve(hold, now).map(|answer| {
            answer.map(|reserved| Reserved {
                free: reserved.free.plus_or_max(free),
                ..reserved
            })
        });
        if answer.is_none() && lease.is_open() {
            self.wake.notify_one();
        }
        (answer, false)
    }

    pub(super) fn settle(
        &self,
        settlement: &Settlement,
        now: Now,
    ) -> Option<oneshot::Receiver<Told>> {
        if settlement.account != self.account {
            return None;
        }
        let mut state = self.lock();
        let lease = state.lease.as_mut()?;
        let waited = lease.ends_waiting();
        let told = lease.settle(settlement, now)?;
        if waited == 0 || lease.ends_waiting() >= ENDS_MAX {
            self.wake.notify_one();
        }
        Some(told)
    }

    pub(super) fn release(&self, number: RequestNumber, key: &KeyId) -> bool {
        let mut state = self.lock();
        let lease = state.lease.as_mut();
        let released = lease.is_some_and(|lease| lease.release(number, key));
        if released {
            // It may have been the last one.
            self.wake.notify_one();
        }
        released
    }

    pub(super) fn extend(&self, number: RequestNumber, ttl: Duration, now: Now) -> bool {
        let mut state = self.lock();
        let lease = state.lease.as_mut();
        lease.is_some_and(|lease| lease.extend(number, ttl, now))
    }

    pub(super) fn lease_of(&self, number: RequestNumber) -> Option<RequestNumber> {
        let state = self.lock();
        let lease = state.lease.as_ref()?;
        lease.knows(number).then(|| lease.number())
    }

    /// A lease that nobody looks after is none: nothing was asked for it.
    pub(super) fn forget_lease(&self) {
        self.lock().lease = None;
    }

    /// What no call holds is given back at once.
    pub(super) fn recalled(&self, now: Now) {
        let mut state = self.lock();
        state.is_short(now);
        if state.lease.is_some() {
            self.wake.notify_one();
        }
    }

    /// What is to be done now.
    pub(super) fn due(&self, leases: &Leases, now: Now) -> Due {
        let state = &mut *self.lock();
        let Some(lease) = &mut state.lease else {
            return Due::Done;
        };
        lease.close_if_done();
        if lease.is_closed() {
            state.lease = None;
            return Due::Done;
        }
        let size = wished(&mut state.pace, state.short_until, leases, now);
        let at = next_turn(lease, size, state.last_turn, state.unanswered);
        if at > now.steady {
            return Due::Wait(Duration::from_millis(at - now.steady));
        }
        state.last_turn = now.steady;
        Due::Turn(Box::new(lease.turn(size, now)))
    }

    /// Says whether the lease was lost.
    pub(super) fn answered(&self, turn: &Turn, answer: &TurnAnswer, now: Now) -> bool {
        let state = &mut *self.lock();
        let Some(lease) = &mut state.lease else {
            return false;
        };
        let was_lost = lease.is_lost();
        lease.answered(turn, answer);
        let lost = !was_lost && lease.is_lost();
        state.free = answer.free;
        state.unanswered = 0;
        if answer.short {
            state.is_short(now);
        }
        lost
    }

    pub(super) fn unanswered(&self, cause: BoxError) {
        let state = &mut *self.lock();
        state.unanswered = state.unanswered.saturating_add(1);
        if let Some(lease) = &mut state.lease {
            lease.unanswered(cause);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each step leaves a whole state behind, and money is safe with any: the ledger has the last word.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_short(&mut self, now: Now) {
        let short_for = u64::try_from(RECALLED_FOR.as_millis()).unwrap_or(u64::MAX);
        self.short_until = now.steady.saturating_add(short_for);
    }
}

/// How large the lease is to be now.
fn wished(pace: &mut Pace, short_until: Millis, leases: &Leases, now: Now) -> Size {
    let slow = pace.calls_per_second(now.steady) < leases.settings.calls_per_second_min.div_ceil(2);
    let silent = pace.silent_ms(now.steady) > SILENT_MS;
    if slow || silent || short_until > now.steady || leases.is_stopping() {
        NOTHING
    } else {
        pace.size(now.steady)
    }
}

/// When the ledger is to be told next.
fn next_turn(lease: &Lease, size: Size, last_turn: Millis, unanswered: u32) -> Millis {
    if lease.has_turn_under_way() {
        let wait = GATHER_MS.saturating_mul(1 << unanswered.min(10));
        return last_turn.saturating_add(wait.min(RETRY_MAX_MS));
    }
    if !lease.is_open() {
        // One that is opening has no time to lose; one that is lost has ends to tell, or waits for them.
        let idle = lease.is_lost() && lease.ends_waiting() == 0;
        return last_turn.saturating_add(if idle { QUIET_TURN_MS } else { GATHER_MS });
    }
    let free = lease.free();
    let gives_back = size == NOTHING && (lease.is_idle() || free > size.free);
    let runs_low = size != NOTHING && free.plus_or_max(free) < size.free;
    let wait = if gives_back || runs_low || lease.ends_waiting() > 0 {
        GATHER_MS
    } else if size == NOTHING {
        let ttl = u64::try_from(lease.ttl().as_millis()).unwrap_or(u64::MAX);
        QUIET_TURN_MS.min(ttl / 4).max(GATHER_MS)
    } else {
        TURN_MS
    };
    last_turn.saturating_add(wait)
}

//! A key's lease, shared by its calls and by the task that tells the ledger.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use super::{
    Leases, Now, RECALLED_FOR, Turn, TurnAnswer,
    lease::{ENDS_MAX, Lease, NOTHING, Size, Told},
    pace::Pace,
};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    book::Millis,
    contract::{Hold, Refusal, Reserved, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// There is no turn sooner after another. Where many calls end, the ledger has acknowledged most ends before an outbox
/// writes them down.
const GATHER_MS: Millis = 2;
/// Ends wait for so many of others, so that one turn tells them all; but no longer than this.
const GATHER_ENDS: u64 = 64;
const GATHER_MS_MAX: Millis = 32;
/// A lease that is granted from is told of so often: so soon it is given back when others ask for it.
const TURN_MS: Millis = 40;
/// One that nothing is granted from lives on with its calls, and is told of so often at least.
const QUIET_TURN_MS: Millis = 5_000;
/// A key without calls for so long, or with too few of them, has no lease.
const SILENT_MS: Millis = 1_000;
/// How long a turn that was not answered waits to be told again, at most.
const RETRY_MAX_MS: Millis = 1_000;

/// What a turn's answer has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// The lease is another's, or none's.
    pub(crate) lost: bool,
    /// Somebody asks for its money, and nobody had said so.
    pub(crate) recalled: bool,
    /// For how long the oldest of the turn's ends had waited.
    pub(crate) waited: Millis,
}

pub(crate) struct Slot {
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
    /// When it had calls enough for a lease last.
    busy_at: Millis,
    /// Money was short: until then there is no lease.
    short_until: Millis,
    /// What was free in the ledger when it was told last.
    free: MicroRub,
    last_turn: Millis,
    /// Turns in a row that were not answered.
    unanswered: u32,
}

/// What the task has to do.
pub(crate) enum Due {
    Turn(Box<Turn>),
    /// Nothing for so long, unless it is woken.
    Wait(Duration),
    /// Its lease is over; some time later there may be one more turn.
    Done(Option<Box<Turn>>),
}

impl Slot {
    pub(crate) fn new(account: &AccountId, key: &KeyId) -> Self {
        Self {
            account: account.clone(),
            key: key.clone(),
            state: Mutex::default(),
            wake: Notify::new(),
        }
    }

    pub(crate) const fn account(&self) -> &AccountId {
        &self.account
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(crate) fn has_lease(&self) -> bool {
        self.lock().lease.is_some()
    }

    /// What the lease says to a hold, if anything; and whether the key has a lease from here on.
    pub(crate) fn reserve(
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
                let number = RequestNumber::from_uuid(leases.source.name());
                let grants_ms = leases.lease_ms();
                let mut lease = Lease::new(number, &self.account, &self.key, grants_ms);
                // Calls that it holds money for may run on when its next turn does not come.
                lease.lives_for(hold.ttl);
                state.lease = Some(lease);
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

    pub(crate) fn settle(
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

    pub(crate) fn release(&self, number: RequestNumber, key: &KeyId) -> bool {
        let mut state = self.lock();
        let lease = state.lease.as_mut();
        let released = lease.is_some_and(|lease| lease.release(number, key));
        if released {
            // It may have been the last one.
            self.wake.notify_one();
        }
        released
    }

    pub(crate) fn extend(&self, number: RequestNumber, ttl: Duration, now: Now) -> bool {
        let mut state = self.lock();
        let lease = state.lease.as_mut();
        lease.is_some_and(|lease| lease.extend(number, ttl, now))
    }

    pub(crate) fn lease_of(&self, number: RequestNumber) -> Option<RequestNumber> {
        let state = self.lock();
        let lease = state.lease.as_ref()?;
        lease.knows(number).then(|| lease.number())
    }

    /// What the ledger has in its lease, as far as it has answered.
    pub(crate) fn leased(&self) -> MicroRub {
        let state = self.lock();
        state.lease.as_ref().map_or(MicroRub::ZERO, Lease::leased)
    }

    /// What running calls hold of a lease, if it is this one's.
    pub(crate) fn held_by_calls(&self, lease: RequestNumber) -> Option<MicroRub> {
        let state = self.lock();
        let own = state.lease.as_ref().filter(|own| own.number() == lease)?;
        Some(own.held_by_calls())
    }

    /// A lease that nobody looks after is none: nothing was asked for it.
    pub(crate) fn forget_lease(&self) {
        self.lock().lease = None;
    }

    /// What no call holds is given back at once.
    pub(crate) fn recalled(&self, now: Now) {
        let mut state = self.lock();
        state.is_short(now);
        if state.lease.is_some() {
            self.wake.notify_one();
        }
    }

    /// What is to be done now.
    pub(crate) fn due(&self, leases: &Leases, now: Now) -> Due {
        let state = &mut *self.lock();
        let Some(lease) = &mut state.lease else {
            return Due::Done(None);
        };
        lease.close_if_done();
        if lease.is_closed() {
            let left = lease.left_behind(leases.source.name());
            state.lease = None;
            return Due::Done(left.map(Box::new));
        }
        let enough = leases.settings.calls_per_second_min.div_ceil(2);
        if state.pace.calls_per_second(now.steady) >= enough {
            state.busy_at = now.steady;
        }
        // A few calls less for once are no reason to give it back.
        let slow = now.steady.saturating_sub(state.busy_at) > SILENT_MS;
        let gives_back = slow || state.short_until > now.steady || leases.is_stopping();
        let size = wished(&mut state.pace, gives_back, now);
        let wait = next_turn(lease, size, gathers(&mut state.pace, now), state.unanswered);
        let at = state.last_turn.saturating_add(wait);
        if at > now.steady {
            return Due::Wait(Duration::from_millis(at - now.steady));
        }
        state.last_turn = now.steady;
        Due::Turn(Box::new(lease.turn(size, now, leases.source.name())))
    }

    pub(crate) fn answered(&self, turn: &Turn, answer: &TurnAnswer, now: Now) -> Heard {
        let state = &mut *self.lock();
        let Some(lease) = &mut state.lease else {
            return Heard::default();
        };
        let was_lost = lease.is_lost();
        let oldest = lease.answered(turn, answer);
        let heard = Heard {
            lost: !was_lost && lease.is_lost(),
            recalled: answer.recalled && state.short_until <= now.steady,
            waited: oldest.map_or(0, |oldest| now.steady.saturating_sub(oldest)),
        };
        state.free = answer.free;
        if state.unanswered == 0 {
            let took = now.steady.saturating_sub(state.last_turn);
            state.pace.note_round_trip(took);
        }
        state.unanswered = 0;
        if answer.short {
            state.is_short(now);
        }
        heard
    }

    pub(crate) fn unanswered(&self, cause: BoxError) {
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
fn wished(pace: &mut Pace, gives_back: bool, now: Now) -> Size {
    if gives_back || pace.silent_ms(now.steady) > SILENT_MS {
        NOTHING
    } else {
        pace.size(now.steady)
    }
}

/// How long ends wait for others.
fn gathers(pace: &mut Pace, now: Now) -> Millis {
    let a_second = pace.calls_per_second(now.steady).max(1);
    (GATHER_ENDS * 1_000 / a_second).clamp(GATHER_MS, GATHER_MS_MAX)
}

/// How long after the turn before it the ledger is to be told next.
fn next_turn(lease: &Lease, size: Size, gathers: Millis, unanswered: u32) -> Millis {
    if lease.has_turn_under_way() {
        let wait = GATHER_MS.saturating_mul(1 << unanswered.min(10));
        return wait.min(RETRY_MAX_MS);
    }
    if !lease.is_open() {
        // One that is opening has no time to lose; one that is lost has ends to tell, or waits for them.
        let idle = lease.is_lost() && lease.ends_waiting() == 0;
        return if idle { QUIET_TURN_MS } else { GATHER_MS };
    }
    let free = lease.free();
    let gives_back = size == NOTHING && (lease.is_idle() || free > size.free);
    let runs_low = size != NOTHING && free.plus_or_max(free) < size.free;
    if gives_back || runs_low {
        GATHER_MS
    } else if lease.ends_waiting() > 0 {
        gathers
    } else if size == NOTHING {
        let ttl = u64::try_from(lease.ttl().as_millis()).unwrap_or(u64::MAX);
        QUIET_TURN_MS.min(ttl / 4).max(GATHER_MS)
    } else {
        TURN_MS
    }
}

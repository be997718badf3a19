//! A key's lease. Calls of the key and the task that sends the lease's turns to the ledger share it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use super::{
    Leases, Now, RECALLED_FOR, Turn, TurnAnswer,
    lease::{Acknowledged, Adjusting, ENDS_MAX, Lease, NOTHING, Size},
    pace::Pace,
};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    book::{Millis, millis},
    contract::{Adjustment, Hold, Refusal, Reserved, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// The shortest time between two turns of a lease, in milliseconds. It is short enough that the ledger acknowledges
/// most settlements before the outbox would write them to its file.
const GATHER_MS: Millis = 2;
/// The number of settlements for which a turn waits, so that one turn reports all of them. The turn waits for at most
/// [`GATHER_MS_MAX`].
const GATHER_ENDS: u64 = 64;
const GATHER_MS_MAX: Millis = 32;
/// The interval between turns of a lease that may grant holds, in milliseconds. A recall reaches the lease after at
/// most this time.
const TURN_MS: Millis = 40;
/// The interval between turns of a lease that may not grant holds but has in-flight calls, in milliseconds.
const QUIET_TURN_MS: Millis = 5_000;
/// A key that makes no calls, or too few calls, for this time in milliseconds gives its lease back.
const IDLE_MS: Millis = 1_000;
/// The longest wait before an unanswered turn is sent again, in milliseconds.
const RETRY_MAX_MS: Millis = 1_000;

/// The effects of the ledger's answer to a turn, for the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerEffect {
    /// Whether the answer reports for the first time that the lease is missing or owned by another gateway.
    pub(crate) lost: bool,
    /// Whether this answer is the first one to report a recall of leased money.
    pub(crate) recalled: bool,
    /// How long the oldest settlement in the turn has waited for this answer, in milliseconds.
    pub(crate) waited: Millis,
}

pub(crate) struct Slot {
    account: AccountId,
    key: KeyId,
    state: Mutex<State>,
    /// Wakes the task that sends the lease's turns.
    wake: Notify,
}

#[derive(Default)]
struct State {
    pace: Pace,
    lease: Option<Lease>,
    /// When the key last made enough calls to deserve a lease.
    busy_at: Millis,
    /// The key takes no lease before this time, because its account has too little free money.
    short_until: Millis,
    /// The account's free money outside its leases, according to the ledger's last answer.
    free: MicroRub,
    last_turn: Millis,
    /// The number of consecutive turns without an answer.
    unanswered: u32,
}

/// The next action of the task that sends a lease's turns.
pub(crate) enum Due {
    Turn(Box<Turn>),
    /// Wait for this time, or until a wake-up.
    Wait(Duration),
    /// The lease is closed. If there is a turn, send it later: it gives back money that the lost lease has in the
    /// ledger.
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

    /// Grants or refuses a hold if the lease can decide. The second returned value is true if the key has just taken a
    /// lease.
    pub(crate) fn reserve(
        &self,
        hold: &Hold,
        leases: &Leases,
        now: Now,
    ) -> (Option<Result<Reserved, Refusal>>, bool) {
        if hold.account != self.account {
            // The slot's key belongs to another account than the account of the call. The ledger must refuse such a
            // call.
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
                // The ledger must keep the lease for the lifetime of this hold, even if the ledger receives no further
                // turn.
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
    ) -> Option<oneshot::Receiver<Acknowledged>> {
        if settlement.account != self.account {
            return None;
        }
        let mut state = self.lock();
        let lease = state.lease.as_mut()?;
        let waited = lease.ends_waiting();
        let acknowledged = lease.settle(settlement, now)?;
        if waited == 0 || lease.ends_waiting() >= ENDS_MAX {
            self.wake.notify_one();
        }
        Some(acknowledged)
    }

    pub(crate) fn release(&self, number: RequestNumber, key: &KeyId) -> bool {
        let mut state = self.lock();
        let lease = state.lease.as_mut();
        let released = lease.is_some_and(|lease| lease.release(number, key));
        if released {
            // If the released call was the lease's last, the lease can give its money back now.
            self.wake.notify_one();
        }
        released
    }

    pub(crate) fn extend(&self, number: RequestNumber, ttl: Duration, now: Now) -> bool {
        let mut state = self.lock();
        let lease = state.lease.as_mut();
        lease.is_some_and(|lease| lease.extend(number, ttl, now))
    }

    /// Changes the amount that a call holds against the lease. Returns `None` if the call has no hold against it.
    pub(crate) fn adjust(&self, adjustment: &Adjustment, now: Now) -> Option<Adjusting> {
        if adjustment.account != self.account {
            return None;
        }
        let mut state = self.lock();
        let lease = state.lease.as_mut()?;
        let adjusting = lease.adjust(adjustment, now)?;
        // A lease that may grant holds sends its next turn soon anyway. Any other lease must send a turn now, to give
        // the freed money back.
        if matches!(adjusting, Adjusting::Waits(_)) || !lease.may_grant(now) {
            self.wake.notify_one();
        }
        Some(adjusting)
    }

    pub(crate) fn lease_of(&self, number: RequestNumber) -> Option<RequestNumber> {
        let state = self.lock();
        let lease = state.lease.as_ref()?;
        lease.has_call(number).then(|| lease.number())
    }

    /// Returns the lease's money in the ledger, according to the ledger's last answer.
    pub(crate) fn leased(&self) -> MicroRub {
        let state = self.lock();
        state.lease.as_ref().map_or(MicroRub::ZERO, Lease::leased)
    }

    /// Returns the sum of the holds that in-flight calls have against the lease `lease`; `None` if this slot does not
    /// have it.
    pub(crate) fn held_by_calls(&self, lease: RequestNumber) -> Option<MicroRub> {
        let state = self.lock();
        let own = state.lease.as_ref().filter(|own| own.number() == lease)?;
        Some(own.held_by_calls())
    }

    /// Drops a new lease whose turns no task can send. No request about this lease has reached the ledger yet.
    pub(crate) fn forget_lease(&self) {
        self.lock().lease = None;
    }

    /// Wakes the task to give back immediately the leased money that no call holds.
    pub(crate) fn recalled(&self, now: Now) {
        let mut state = self.lock();
        state.is_short(now);
        if state.lease.is_some() {
            self.wake.notify_one();
        }
    }

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
        // A short drop in the call rate is not a reason to give the lease back.
        let slow = now.steady.saturating_sub(state.busy_at) > IDLE_MS;
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

    pub(crate) fn answered(&self, turn: &Turn, answer: &TurnAnswer, now: Now) -> AnswerEffect {
        let state = &mut *self.lock();
        let Some(lease) = &mut state.lease else {
            return AnswerEffect::default();
        };
        let was_lost = lease.is_lost();
        let oldest = lease.answered(turn, answer);
        let answered_to = AnswerEffect {
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
        answered_to
    }

    pub(crate) fn unanswered(&self, cause: BoxError) {
        let state = &mut *self.lock();
        state.unanswered = state.unanswered.saturating_add(1);
        if let Some(lease) = &mut state.lease {
            lease.unanswered(cause);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic the state is still consistent. Even an inconsistent state could lose no money, because the
        // ledger decides about money.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_short(&mut self, now: Now) {
        self.short_until = now.steady.saturating_add(millis(RECALLED_FOR));
    }
}

fn wished(pace: &mut Pace, gives_back: bool, now: Now) -> Size {
    if gives_back || pace.idle_ms(now.steady) > IDLE_MS {
        NOTHING
    } else {
        pace.size(now.steady)
    }
}

/// Returns how long a settlement waits for further settlements that the same turn can report, in milliseconds.
fn gathers(pace: &mut Pace, now: Now) -> Millis {
    let a_second = pace.calls_per_second(now.steady).max(1);
    (GATHER_ENDS * 1_000 / a_second).clamp(GATHER_MS, GATHER_MS_MAX)
}

/// Returns how long after the last turn the next turn is due, in milliseconds.
fn next_turn(lease: &Lease, size: Size, gathers: Millis, unanswered: u32) -> Millis {
    if lease.has_turn_under_way() {
        let wait = GATHER_MS.saturating_mul(1 << unanswered.min(10));
        return wait.min(RETRY_MAX_MS);
    }
    if !lease.is_open() {
        // A lease that is being opened needs its first turn soon. A lost lease needs a turn soon only if it has
        // settlements to report.
        let idle = lease.is_lost() && lease.ends_waiting() == 0;
        return if idle { QUIET_TURN_MS } else { GATHER_MS };
    }
    let free = lease.free();
    let gives_back = size == NOTHING && (lease.is_idle() || free > size.free);
    let runs_low = size != NOTHING && free.plus_or_max(free) < size.free;
    if gives_back || runs_low || lease.has_raises() {
        GATHER_MS
    } else if lease.ends_waiting() > 0 {
        gathers
    } else if size == NOTHING {
        QUIET_TURN_MS.min(millis(lease.ttl()) / 4).max(GATHER_MS)
    } else {
        TURN_MS
    }
}

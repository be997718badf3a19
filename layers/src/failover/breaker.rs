//! The breaker of one route: shut after some failures in a row, and tried again by one call at a time.
//!
//! ```text
//! closed ──FAILURES_MAX in a row──► open ──its time is over──► half-open: one probe is out
//!    ▲                               ▲ │                            │
//!    ├── first byte of a last resort │─┘                            │
//!    └── first byte of the probe ────│──────────────────────────────┤
//!                                    └─────────── failed ───────────┘
//! ```
//!
//! A probe closes it with the first byte: a stream may run for minutes, and nobody else would be let in.
//! Until a call has come to its end the breaker stays on probation: one more failure opens it again, for
//! twice as long.
//!
//! **For whom it is shut.** A caller can make a vendor fail, again and again. Where all failures of the row
//! are one caller's it is shut for that caller alone; where two callers have met them, or no connection came
//! about, which is no request's doing, for all. One caller's name is all that this takes.
//!
//! **The last resort.** A route that is shut is passed by, which helps as long as another one can answer. A
//! call that has no other is let through all the same: at once where the vendor answered, whatever it said;
//! where it could not be reached or kept silent, one call each [`PROBE_EVERY`], so that callers do not wait
//! for what will not come, and an outage lasts hardly longer for them than it does.
//!
//! A vendor that has no such model (404) is not sick, and one word of it is enough: see [`Breaker::lacks`].
//!
//! Pure: the time and the randomness are given.

use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row open it. Answers that do come reset the count, so a vendor that fails now
/// and then is left to the choice by load and to the next attempt.
pub(super) const FAILURES_MAX: u32 = 5;
/// How often a route that is shut may be tried by calls that have no other.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(250);
/// The first time that it stays open; doubled each time that the probe fails.
const OPEN_MIN: Duration = Duration::from_secs(1);
const OPEN_MAX: Duration = Duration::from_secs(60);
/// What is said while a probe is out: nobody knows when it will be answered.
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// How long a vendor is not asked again for a model that it does not have.
const LACKING_REST: Duration = Duration::from_secs(30);

/// Lets calls through, or not.
#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    failures: u32,
    /// Who has met them.
    whose: Whose,
    /// What the newest of them was.
    trouble: Trouble,
    /// How often it was opened since a call came to its end.
    opened: u32,
    /// How often it went from closed to open: tells calls from before that apart.
    turn: u32,
    /// Probes so far: the last one's number is its own.
    probes: u32,
    /// When a call was let through last although it was shut.
    tried: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Instant },
    Probing,
}

/// What was wrong with a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No connection: the vendor was sent nothing.
    Away,
    /// It took the request, and said nothing in time.
    Silent,
    /// It answered something that is no answer, or broke off.
    Answered,
    /// It has no such model.
    Lacking,
}

/// Whose calls have met the failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Nobodys,
    One(u64),
    All,
}

/// A call that was let through; told back with how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    caller: u64,
    turn: u32,
    /// Its number; 0 where it is none.
    probe: u32,
}

/// What a breaker shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Lets calls through.
    Closed,
    /// Lets the next call through, as a probe.
    Due,
    /// Lets nobody through for so long.
    Open(Duration),
    /// A probe is out; come back after so long.
    Probing(Duration),
}

impl Breaker {
    pub(super) const fn new() -> Self {
        Self {
            state: State::Closed,
            failures: 0,
            whose: Whose::Nobodys,
            trouble: Trouble::Answered,
            opened: 0,
            turn: 0,
            probes: 0,
            tried: None,
        }
    }

    /// What it shows to those that it is shut for.
    pub(super) fn shown(&self, now: Instant) -> Shown {
        match self.state {
            State::Closed => Shown::Closed,
            State::Open { until } if until <= now => Shown::Due,
            State::Open { until } => Shown::Open(until - now),
            State::Probing => Shown::Probing(PROBE_WAIT),
        }
    }

    /// What it shows to this caller.
    pub(super) fn shown_to(&self, caller: u64, now: Instant) -> Shown {
        if self.whose.covers(caller) {
            self.shown(now)
        } else {
            Shown::Closed
        }
    }

    /// Failures in a row.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether the newest that its vendor has said is that it has no such model.
    pub(super) fn is_lacking(&self) -> bool {
        self.state != State::Closed && self.trouble == Trouble::Lacking
    }

    /// Lets a call through, if it does.
    pub(super) fn pass(&mut self, caller: u64, now: Instant) -> Option<Pass> {
        match self.shown_to(caller, now) {
            Shown::Closed => Some(self.let_through(caller)),
            Shown::Due => {
                self.probes += 1;
                self.state = State::Probing;
                self.tried = Some(now);
                Some(Pass {
                    probe: self.probes,
                    ..self.let_through(caller)
                })
            }
            Shown::Open(_) | Shown::Probing(_) => None,
        }
    }

    /// Lets a call through that has no other route; with the attempt that is not its `first` it has asked
    /// somebody already, and a call is not to become many.
    pub(super) fn last_resort(&mut self, caller: u64, first: bool, now: Instant) -> Option<Pass> {
        let wait = if first {
            self.last_resort_in(now)
        } else {
            self.probe_in(now)
        };
        if self.state != State::Closed {
            if !wait.is_zero() {
                return None;
            }
            self.tried = Some(now);
        }
        Some(self.let_through(caller))
    }

    /// In how long a call is let through that has no other route.
    pub(super) fn last_resort_in(&self, now: Instant) -> Duration {
        match self.trouble {
            Trouble::Answered | Trouble::Lacking => Duration::ZERO,
            Trouble::Away | Trouble::Silent => self.probe_in(now),
        }
    }

    /// The first byte came.
    pub(super) fn began(&mut self, pass: Pass) {
        if self.state == State::Closed || !self.counts(pass) || !self.whose.covers(pass.caller) {
            return;
        }
        self.failures = match self.trouble {
            Trouble::Lacking => 0,
            _ => FAILURES_MAX - 1,
        };
        (self.state, self.whose) = (State::Closed, Whose::Nobodys);
    }

    /// A connection has come about.
    pub(super) fn reached(&mut self) {
        if self.trouble == Trouble::Away {
            self.trouble = Trouble::Answered;
        }
    }

    /// The call came to its end.
    pub(super) fn succeeded(&mut self, pass: Pass) {
        if self.counts(pass) {
            self.close();
        }
    }

    /// The vendor failed the call; `random` spreads the time of the next probe.
    pub(super) fn failed(&mut self, pass: Pass, trouble: Trouble, now: Instant, random: u8) {
        if !self.counts(pass) {
            return;
        }
        let probe = self.is_out(pass);
        if self.is_lacking() {
            // It has the model, and something else to say.
            self.close();
        }
        // No request is to blame for a connection.
        let caller = (trouble != Trouble::Away).then_some(pass.caller);
        self.whose = self.whose.and(caller);
        self.trouble = trouble;
        self.failures = self.failures.saturating_add(1);
        match self.state {
            State::Closed if self.failures >= FAILURES_MAX => {
                self.turn += 1;
                self.tried = Some(now);
                self.opened = self.opened.saturating_add(1);
            }
            State::Probing if probe => self.opened = self.opened.saturating_add(1),
            // Of several routes that are shut another one is tried next.
            State::Open { .. } => {}
            State::Closed | State::Probing => return,
        }
        let doublings = self.opened.saturating_sub(1).min(6);
        let wait = OPEN_MAX.min(OPEN_MIN * (1_u32 << doublings));
        self.state = State::Open {
            until: now + jittered(wait, random),
        };
    }

    /// The vendor says that it has no such model. That is asked for with each call, so the route rests, and for
    /// all as soon as two callers have heard it: it may have been about something that the one asked for.
    pub(super) fn lacks(&mut self, pass: Pass, now: Instant) {
        if !self.counts(pass) {
            return;
        }
        let whose = if self.is_lacking() {
            self.whose
        } else {
            Whose::Nobodys
        };
        if self.state == State::Closed {
            self.turn += 1;
        }
        (self.failures, self.opened) = (0, 0);
        self.whose = whose.and(Some(pass.caller));
        self.trouble = Trouble::Lacking;
        self.tried = Some(now);
        self.state = State::Open {
            until: now + LACKING_REST,
        };
    }

    /// The call ended without a word about the vendor: its client left, say. A probe's place is free again.
    pub(super) fn abandoned(&mut self, pass: Pass, now: Instant) {
        if self.is_out(pass) {
            self.state = State::Open { until: now };
        }
    }

    const fn let_through(&self, caller: u64) -> Pass {
        Pass {
            caller,
            turn: self.turn,
            probe: 0,
        }
    }

    fn close(&mut self) {
        (self.state, self.whose) = (State::Closed, Whose::Nobodys);
        (self.failures, self.opened) = (0, 0);
    }

    fn probe_in(&self, now: Instant) -> Duration {
        let due = self.tried.map(|tried| tried + PROBE_EVERY);
        due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now))
    }

    /// Calls that began before it opened say nothing about now.
    fn counts(&self, pass: Pass) -> bool {
        pass.turn == self.turn
    }

    fn is_out(&self, pass: Pass) -> bool {
        self.state == State::Probing && pass.probe == self.probes
    }
}

impl Whose {
    /// One more of this caller's; `None`: of anybody's.
    fn and(self, caller: Option<u64>) -> Self {
        match (self, caller) {
            (Self::Nobodys, Some(caller)) => Self::One(caller),
            (Self::One(one), Some(caller)) if one == caller => self,
            _ => Self::All,
        }
    }

    fn covers(self, caller: u64) -> bool {
        match self {
            Self::One(one) => one == caller,
            Self::Nobodys | Self::All => true,
        }
    }
}

/// Between half the wait and all of it: nodes that saw the same failure do not come back together.
fn jittered(wait: Duration, random: u8) -> Duration {
    wait / 2 + wait / 2 * u32::from(random) / 255
}

#[cfg(test)]
mod tests;

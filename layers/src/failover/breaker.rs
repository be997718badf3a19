//! The circuit breaker of one route. It opens after several failures in a row, and later admits one call at a time as a
//! probe.
//!
//! ```text
//! closed ──FAILURES_MAX in a row──► open ──its time is over──► half-open: one probe is out
//!    ▲                               ▲ │                            │
//!    ├── first byte of a last resort │─┘                            │
//!    └── first byte of the probe ────│──────────────────────────────┤
//!                                    └─────────── failed ───────────┘
//! ```
//!
//! The first byte of a response to a probe closes the breaker: the response may be a stream that lasts for minutes, and
//! other calls must not wait for its end. Until a call has been answered completely, a single failure opens the breaker
//! again, for twice as long.
//!
//! **Scope.** If all failures in a row occurred in calls of one caller, the breaker opens for that caller only, because
//! that caller's requests may make the vendor fail. It opens for all callers if calls of two callers failed, or if no
//! connection could be made, which no request can cause. So a breaker stores the id of at most one caller.
//!
//! **The last resort.** Skipping a route whose breaker is open helps only if another route can answer. So a call
//! without another route is admitted. If the vendor's last failure was a response, such a call is admitted at once. If
//! the vendor was unreachable or silent, one such call is admitted every [`PROBE_EVERY`]. So the end of an outage is
//! noticed soon, and other callers need not wait for the same failure.
//!
//! A vendor that does not have the model (404) has not failed, but one such response opens the breaker: see
//! [`Breaker::lacks`].
//!
//! The breaker is a state machine without a clock: its functions take the time and random numbers as arguments.

use std::time::Duration;

use tokio::time::Instant;

/// The number of failures in a row that opens the breaker. A success resets the count, because load balancing and
/// retries suffice for occasional failures.
pub(super) const FAILURES_MAX: u32 = 5;
/// How often calls without another route may try a route whose breaker is open.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(250);
/// How long the breaker stays open the first time. The time doubles whenever a probe fails.
const OPEN_MIN: Duration = Duration::from_secs(1);
const OPEN_MAX: Duration = Duration::from_secs(60);
/// The wait that is reported to callers while a probe runs. How long the probe will take is unknown.
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// How long the gateway does not call a vendor for a model that the vendor does not have.
const LACKING_REST: Duration = Duration::from_secs(30);

/// The circuit breaker of a route: decides whether the route admits calls.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    state: State,
    failures: u32,
    /// The callers to whom the breaker applies, because their calls failed.
    failed_for: FailedFor,
    /// The kind of the route's latest failure.
    trouble: Trouble,
    /// How many times the breaker has opened since a call last completed. Each time, the wait doubles.
    opened: u32,
    /// How many times the breaker has changed from closed to open. By this number, calls from before and after the last
    /// change are distinguished.
    turn: u32,
    /// The number of probes so far, which is also the number of the last probe.
    probes: u32,
    /// The time at which the open breaker last admitted a call as a last resort.
    tried: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    Open {
        until: Instant,
    },
    Probing,
}

/// The kind of a route's failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No connection was made, so the vendor received nothing.
    Away,
    /// The vendor accepted the connection, but sent no byte in time.
    Silent,
    /// The vendor's response was invalid or broke off.
    #[default]
    Answered,
    /// The vendor answered that it does not have the model.
    Lacking,
}

/// The callers to whom the breaker applies: those whose calls failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FailedFor {
    #[default]
    NoCaller,
    One(u64),
    All,
}

/// The admission of a call by the breaker. It is passed back to the breaker when the call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    caller: u64,
    turn: u32,
    /// The probe's number; 0 if the call is not a probe.
    probe: u32,
}

/// The state of the breaker for one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// The breaker is closed: the route admits calls.
    Closed,
    /// The route admits the next call as a probe.
    Due,
    /// The route refuses calls for this long.
    Open(Duration),
    /// A probe is running. The next call may be sent after this time.
    Probing(Duration),
}

impl Breaker {
    /// Returns the breaker's state for callers to whom the breaker applies.
    pub(super) fn shown(&self, now: Instant) -> Shown {
        match self.state {
            State::Closed => Shown::Closed,
            State::Open { until } if until <= now => Shown::Due,
            State::Open { until } => Shown::Open(until - now),
            State::Probing => Shown::Probing(PROBE_WAIT),
        }
    }

    /// Returns the breaker's state for this caller. It is closed if the breaker applies only to another caller.
    pub(super) fn shown_to(&self, caller: u64, now: Instant) -> Shown {
        if self.failed_for.covers(caller) {
            self.shown(now)
        } else {
            Shown::Closed
        }
    }

    /// Returns the number of failures in a row on this route.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns whether the vendor's latest response was a 404, that is, the vendor does not have the model.
    pub(super) fn is_lacking(&self) -> bool {
        self.state != State::Closed && self.trouble == Trouble::Lacking
    }

    /// Admits a call of this caller, as an ordinary call or as a probe. `None` if the breaker is open for the caller.
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

    /// Admits a call that has no other route to try. If this is not the `first` attempt of the call, a vendor has
    /// already received the call. Failures must not multiply calls, so at most one later attempt per `PROBE_EVERY` is
    /// admitted.
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

    /// Returns the time until a call without another route is admitted.
    pub(super) fn last_resort_in(&self, now: Instant) -> Duration {
        match self.trouble {
            Trouble::Answered | Trouble::Lacking => Duration::ZERO,
            Trouble::Away | Trouble::Silent => self.probe_in(now),
        }
    }

    /// Records that the first byte of a response has arrived, which closes an open breaker.
    pub(super) fn began(&mut self, pass: Pass) {
        if self.state == State::Closed || !self.counts(pass) || !self.failed_for.covers(pass.caller)
        {
            return;
        }
        self.failures = match self.trouble {
            Trouble::Lacking => 0,
            _ => FAILURES_MAX - 1,
        };
        (self.state, self.failed_for) = (State::Closed, FailedFor::NoCaller);
    }

    /// Records that a connection to the vendor was made, so the vendor is reachable again.
    pub(super) fn reached(&mut self) {
        if self.trouble == Trouble::Away {
            self.trouble = Trouble::Answered;
        }
    }

    /// Records that the vendor answered a call completely.
    pub(super) fn succeeded(&mut self, pass: Pass) {
        if self.counts(pass) {
            self.close();
        }
    }

    /// Records that the vendor failed a call. `random` spreads the time of the next probe, so that nodes do not probe
    /// together.
    pub(super) fn failed(&mut self, pass: Pass, trouble: Trouble, now: Instant, random: u8) {
        if !self.counts(pass) {
            return;
        }
        let probe = self.is_out(pass);
        if self.is_lacking() {
            // The latest response is not a 404, so the vendor has the model after all.
            self.close();
        }
        // A request cannot cause a failure to connect, so this failure counts for all callers.
        let caller = (trouble != Trouble::Away).then_some(pass.caller);
        self.failed_for = self.failed_for.and(caller);
        self.trouble = trouble;
        self.failures = self.failures.saturating_add(1);
        match self.state {
            State::Closed if self.failures >= FAILURES_MAX => {
                self.turn += 1;
                self.tried = Some(now);
                self.opened = self.opened.saturating_add(1);
            }
            State::Probing if probe => self.opened = self.opened.saturating_add(1),
            // The breaker was already open and now stays open for longer. So the next call whose routes all have open
            // breakers tries another route first.
            State::Open { .. } => {}
            State::Closed | State::Probing => return,
        }
        let doublings = self.opened.saturating_sub(1).min(6);
        let wait = OPEN_MAX.min(OPEN_MIN * (1_u32 << doublings));
        self.state = State::Open {
            until: now + jittered(wait, random),
        };
    }

    /// Records that the vendor does not have the model. Every call of the model would get this response, so the route
    /// is not used for a while. At first only this caller's calls skip the route, because a fault in the caller's
    /// request may be the cause. After a 404 to a second caller, all calls skip the route.
    pub(super) fn lacks(&mut self, pass: Pass, now: Instant) {
        if !self.counts(pass) {
            return;
        }
        let failed_for = if self.is_lacking() {
            self.failed_for
        } else {
            FailedFor::NoCaller
        };
        if self.state == State::Closed {
            self.turn += 1;
        }
        (self.failures, self.opened) = (0, 0);
        self.failed_for = failed_for.and(Some(pass.caller));
        self.trouble = Trouble::Lacking;
        self.tried = Some(now);
        self.state = State::Open {
            until: now + LACKING_REST,
        };
    }

    /// Records that a call ended without a result, for example because its client disconnected. If the call was a
    /// probe, the next call may be the probe.
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
        (self.state, self.failed_for) = (State::Closed, FailedFor::NoCaller);
        (self.failures, self.opened) = (0, 0);
    }

    fn probe_in(&self, now: Instant) -> Duration {
        let due = self.tried.map(|tried| tried + PROBE_EVERY);
        due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now))
    }

    /// Returns whether the call began after the breaker last opened. Results of earlier calls are ignored.
    fn counts(&self, pass: Pass) -> bool {
        pass.turn == self.turn
    }

    fn is_out(&self, pass: Pass) -> bool {
        self.state == State::Probing && pass.probe == self.probes
    }
}

impl FailedFor {
    /// Adds a failure of this caller's call. `None` means a failure that counts for all callers.
    fn and(self, caller: Option<u64>) -> Self {
        match (self, caller) {
            (Self::NoCaller, Some(caller)) => Self::One(caller),
            (Self::One(one), Some(caller)) if one == caller => self,
            _ => Self::All,
        }
    }

    fn covers(self, caller: u64) -> bool {
        match self {
            Self::One(one) => one == caller,
            Self::NoCaller | Self::All => true,
        }
    }
}

/// Returns a random time between half the wait and the whole wait, so that nodes do not all retry at the same time.
fn jittered(wait: Duration, random: u8) -> Duration {
    wait / 2 + wait / 2 * u32::from(random) / 255
}

#[cfg(test)]
mod tests;

//! The breaker of one route: shut after some failures in a row, and tried again by one call at a time.
//!
//! ```text
//! closed ──FAILURES_MAX in a row──► open ──its time is over──► half-open: one probe is out
//!    ▲                               ▲                              │
//!    └───────── first byte ──────────│────────── failed ────────────┤
//!                                    └──────────────────────────────┘
//! ```
//!
//! A probe closes it with the first byte: a stream may run for minutes, and nobody else would be let in.
//! Until a call has come to its end the breaker stays on probation: one more failure opens it again, for
//! twice as long. Pure: the time and the randomness are given.

use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row open it. Answers that do come reset the count, so a vendor that fails now
/// and then is left to the choice by load and to the next attempt.
pub(super) const FAILURES_MAX: u32 = 5;
/// The first time that it stays open; doubled each time that the probe fails.
const OPEN_MIN: Duration = Duration::from_secs(1);
const OPEN_MAX: Duration = Duration::from_secs(60);
/// What is said while a probe is out: nobody knows when it will be answered.
const PROBE_WAIT: Duration = Duration::from_secs(1);

/// Lets calls through, or not.
#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    failures: u32,
    /// How often it was opened since a call came to its end.
    opened: u32,
    /// Probes so far: the last one's number is its own.
    probes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Instant },
    Probing,
}

/// A call that was let through; told back with how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    probe: Option<u64>,
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
            opened: 0,
            probes: 0,
        }
    }

    pub(super) fn shown(&self, now: Instant) -> Shown {
        match self.state {
            State::Closed => Shown::Closed,
            State::Open { until } if until <= now => Shown::Due,
            State::Open { until } => Shown::Open(until - now),
            State::Probing => Shown::Probing(PROBE_WAIT),
        }
    }

    /// Failures in a row.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// Lets a call through, if it does.
    pub(super) fn pass(&mut self, now: Instant) -> Option<Pass> {
        match self.shown(now) {
            Shown::Closed => Some(Pass { probe: None }),
            Shown::Due => {
                self.probes += 1;
                self.state = State::Probing;
                Some(Pass {
                    probe: Some(self.probes),
                })
            }
            Shown::Open(_) | Shown::Probing(_) => None,
        }
    }

    /// The first byte came.
    pub(super) fn began(&mut self, pass: Pass) {
        if self.is_out(pass) {
            self.state = State::Closed;
            self.failures = FAILURES_MAX - 1;
        }
    }

    /// The call came to its end.
    pub(super) fn succeeded(&mut self, pass: Pass) {
        // Calls that began before it opened say nothing about now.
        if self.state == State::Closed || self.is_out(pass) {
            self.state = State::Closed;
            (self.failures, self.opened) = (0, 0);
        }
    }

    /// The vendor failed the call; `random` spreads the time of the next probe.
    pub(super) fn failed(&mut self, pass: Pass, now: Instant, random: u8) {
        let probe = self.is_out(pass);
        if self.state != State::Closed && !probe {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if probe || self.failures >= FAILURES_MAX {
            let wait = OPEN_MAX.min(OPEN_MIN * (1_u32 << self.opened.min(6)));
            self.opened = self.opened.saturating_add(1);
            self.state = State::Open {
                until: now + jittered(wait, random),
            };
        }
    }

    /// The call ended without a word about the vendor: its client left, say. A probe's place is free again.
    pub(super) fn abandoned(&mut self, pass: Pass, now: Instant) {
        if self.is_out(pass) {
            self.state = State::Open { until: now };
        }
    }

    fn is_out(&self, pass: Pass) -> bool {
        self.state == State::Probing && pass.probe == Some(self.probes)
    }
}

/// Between half the wait and all of it: nodes that saw the same failure do not come back together.
fn jittered(wait: Duration, random: u8) -> Duration {
    wait / 2 + wait / 2 * u32::from(random) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new();
        for _ in 0..FAILURES_MAX {
            let pass = breaker.pass(now).unwrap();
            breaker.failed(pass, now, 255);
        }
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_it_and_an_answer_between_them_does_not() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        for _ in 0..3 {
            for _ in 1..FAILURES_MAX {
                let pass = breaker.pass(now).unwrap();
                breaker.failed(pass, now, 0);
            }
            let pass = breaker.pass(now).unwrap();
            breaker.began(pass);
            assert_eq!(
                breaker.failures(),
                FAILURES_MAX - 1,
                "a first byte is no end"
            );
            breaker.succeeded(pass);
            assert_eq!(breaker.failures(), 0);
        }
        assert_eq!(
            opened(now).shown(now),
            Shown::Open(OPEN_MIN),
            "five in a row"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_is_let_through_when_its_time_is_over() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert_eq!(breaker.pass(now), None);
        let later = now + OPEN_MIN;
        assert_eq!(breaker.shown(later), Shown::Due);
        let probe = breaker.pass(later).unwrap();
        assert_eq!(breaker.pass(later), None, "exactly one");
        assert!(matches!(breaker.shown(later), Shown::Probing(_)));
        breaker.abandoned(probe, later);
        let probe = breaker.pass(later).expect("the place is free again");
        breaker.began(probe);
        assert_eq!(breaker.shown(later), Shown::Closed);
        // A stream that is cut behind the first byte of a probe: no second chance.
        breaker.failed(probe, later, 255);
        assert_eq!(breaker.shown(later), Shown::Open(2 * OPEN_MIN));
    }

    #[tokio::test(start_paused = true)]
    async fn each_failed_probe_doubles_the_time_up_to_a_minute_with_jitter() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(breaker.shown(now), Shown::Open(wait));
            now += wait;
            let probe = breaker.pass(now).unwrap();
            breaker.failed(probe, now, 255);
        }
        now += OPEN_MAX;
        let probe = breaker.pass(now).unwrap();
        breaker.failed(probe, now, 0);
        assert_eq!(breaker.shown(now), Shown::Open(OPEN_MAX / 2));
        now += OPEN_MAX;
        let probe = breaker.pass(now).unwrap();
        breaker.succeeded(probe);
        assert_eq!((breaker.shown(now), breaker.failures()), (Shown::Closed, 0));
        for _ in 0..FAILURES_MAX {
            let pass = breaker.pass(now).unwrap();
            breaker.failed(pass, now, 255);
        }
        assert_eq!(
            breaker.shown(now),
            Shown::Open(OPEN_MIN),
            "the doubling begins anew"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn calls_from_before_it_opened_say_nothing() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        let old = breaker.pass(now).unwrap();
        for _ in 0..FAILURES_MAX {
            let pass = breaker.pass(now).unwrap();
            breaker.failed(pass, now, 255);
        }
        breaker.succeeded(old);
        breaker.failed(old, now, 255);
        breaker.abandoned(old, now);
        assert_eq!(breaker.shown(now), Shown::Open(OPEN_MIN));

        let first = breaker.pass(now + OPEN_MIN).unwrap();
        breaker.began(first);
        breaker.failed(first, now + OPEN_MIN, 255);
        let later = now + 3 * OPEN_MIN;
        let second = breaker.pass(later).unwrap();
        // An earlier probe's word is not the second one's.
        breaker.failed(first, later, 255);
        breaker.succeeded(first);
        assert!(matches!(breaker.shown(later), Shown::Probing(_)));
        breaker.succeeded(second);
        assert_eq!(breaker.shown(later), Shown::Closed);
    }
}

//! Decides when a hold that covers one slice of a stream's output is raised by the next slice, and when the stream must
//! stop.
//!
//! The output that a vendor has generated is at most the larger of two amounts: the output that has arrived, and the
//! model's top speed times the time since the hold was granted. The second amount also bounds reasoning that the vendor
//! does not show. After a cancellation, a vendor may generate for a while until it notices. The stream is stopped while
//! the hold still covers the output of this time too.

use std::time::Duration;

use crate::usage::StoppedBy;

/// The smallest slice of output, in tokens.
const SLICE_TOKENS_MIN: u64 = 4_096;
/// The shortest time that a slice lasts, at the model's top speed.
const SLICE_LASTS: Duration = Duration::from_secs(8);
/// The time that a vendor needs to notice that its call was cancelled. After this time, the vendor generates nothing
/// more.
const CANCEL: Duration = Duration::from_secs(1);
/// How long before a slice is used up the next slice is requested. The ledger has this time to answer.
const AHEAD: Duration = Duration::from_secs(4);
/// The time between a refusal and the next request for a larger hold. If the covered output is used up less than twice
/// this time after a refusal, the call is stopped for the reason of the refusal.
const RETRY: Duration = Duration::from_secs(1);

/// Returns the number of output tokens that a hold covers at first.
pub(super) fn slice(tokens_per_second_max: u64) -> u64 {
    SLICE_TOKENS_MIN.max(generated(tokens_per_second_max, SLICE_LASTS))
}

/// Returns the most output tokens that a model of this speed can generate in this time.
fn generated(tokens_per_second_max: u64, time: Duration) -> u64 {
    let tokens = u128::from(tokens_per_second_max) * time.as_millis();
    u64::try_from(tokens.div_ceil(1000)).unwrap_or(u64::MAX)
}

/// The growth of one hold. All times count from the moment at which the hold was granted.
#[derive(Debug)]
pub(super) struct Growth {
    tokens_per_second_max: u64,
    /// The maximum number of output tokens that the request allows.
    output_max: u64,
    /// The number of output tokens that the hold covers now.
    covered: u64,
    /// The number of output tokens by which the next request raises the hold.
    step: u64,
    /// The last request, while the ledger has not answered it.
    requested: Option<Request>,
    /// The time and the reason of the last refusal, if the last answer was a refusal.
    refused: Option<(Duration, StoppedBy)>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    at: Duration,
    /// The number of output tokens that the requested hold covers.
    tokens: u64,
    /// Whether the covered output was already used up when the request was made. This happens if nobody polled the
    /// response for a while, because its client did not read it, or if the model is faster than stated.
    is_late: bool,
}

/// The next action for a growing hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// The hold covers all output that the request allows.
    Finished,
    /// Do nothing until this time.
    WaitUntil(Duration),
    /// Request a hold that covers this number of output tokens.
    Raise(u64),
    /// The covered output may be used up, and the ledger has not answered. Forward nothing until the ledger answers,
    /// but at most until this time.
    BlockUntil(Duration),
    /// Cancel the call at the vendor, for this reason.
    Stop(StoppedBy),
}

impl Growth {
    pub(super) fn new(tokens_per_second_max: u64, output_max: u64, covered: u64) -> Self {
        Self {
            tokens_per_second_max,
            output_max,
            covered,
            step: slice(tokens_per_second_max),
            requested: None,
            refused: None,
        }
    }

    /// Returns what to do at this time, after `seen` output tokens have arrived.
    pub(super) fn next(&self, now: Duration, seen: u64) -> Move {
        if self.covered >= self.output_max {
            return Move::Finished;
        }
        if self.needed(now, seen) > self.covered {
            return match (self.requested, self.refused) {
                (Some(request), None) if request.is_late && now < request.at + AHEAD => {
                    Move::BlockUntil(request.at + AHEAD)
                }
                (Some(_), refused) => Move::Stop(refused.map_or(StoppedBy::Ledger, |(_, why)| why)),
                (None, Some((at, why))) if now < at + 2 * RETRY => Move::Stop(why),
                (None, _) => self.raise(now, seen),
            };
        }
        let used_up = self.used_up().max(now + Duration::from_millis(1));
        if self.requested.is_some() {
            return Move::WaitUntil(used_up);
        }
        let due = match self.refused {
            Some((at, _)) => at + RETRY,
            None => used_up.saturating_sub(AHEAD),
        };
        let is_due = now >= due || (self.refused.is_none() && self.is_short(now, seen));
        match is_due {
            true => self.raise(now, seen),
            false => Move::WaitUntil(due.min(used_up)),
        }
    }

    /// Records that a hold that covers this number of output tokens was requested at this time.
    pub(super) fn requested(&mut self, now: Duration, seen: u64, tokens: u64) {
        let is_late = self.needed(now, seen) > self.covered;
        if is_late {
            self.refused = None;
        }
        self.requested = Some(Request {
            at: now,
            tokens,
            is_late,
        });
    }

    /// Returns whether a request has been made that the ledger has not answered.
    pub(super) const fn is_requested(&self) -> bool {
        self.requested.is_some()
    }

    /// Records that the ledger granted the last request. Returns the number of output tokens that the hold covers now.
    pub(super) fn granted(&mut self) -> u64 {
        if let Some(request) = self.requested.take() {
            self.covered = self.covered.max(request.tokens);
        }
        self.refused = None;
        self.step = slice(self.tokens_per_second_max);
        self.covered
    }

    /// Records that the ledger did not grant the last request. The next request is for less.
    pub(super) fn refused(&mut self, now: Duration, why: StoppedBy) {
        self.requested = None;
        self.refused = Some((now, why));
        self.step = (self.step / 2).max(self.generated(AHEAD));
    }

    fn raise(&self, now: Duration, seen: u64) -> Move {
        let needed = self.needed(now, seen).max(self.covered);
        Move::Raise(needed.saturating_add(self.step).min(self.output_max))
    }

    fn is_short(&self, now: Duration, seen: u64) -> bool {
        let ahead = self.generated(AHEAD);
        self.needed(now, seen.saturating_add(ahead)) > self.covered
    }

    /// Returns the output that must be covered at this time: what has been generated, and what will be generated until
    /// the vendor has noticed a cancellation.
    fn needed(&self, now: Duration, seen: u64) -> u64 {
        let generated = self.generated(now).max(seen);
        let all = generated.saturating_add(self.generated(CANCEL));
        all.min(self.output_max)
    }

    /// Returns the time at which the covered output is used up if the vendor generates at top speed.
    fn used_up(&self) -> Duration {
        let tokens = self.covered.saturating_sub(self.generated(CANCEL));
        let ms = u128::from(tokens) * 1000 / u128::from(self.tokens_per_second_max.max(1));
        Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    fn generated(&self, time: Duration) -> u64 {
        generated(self.tokens_per_second_max, time)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn next_slice_of_a_growing_hold_is_requested_ahead_of_need() {
        // At 100 tokens per second, 4 096 tokens last for 40.96 s. One second of it is kept for the cancellation.
        let mut growth = Growth::new(100, 32_000, slice(100));
        assert_eq!(growth.next(ms(0), 0), Move::WaitUntil(ms(35_960)));
        assert_eq!(growth.next(ms(35_960), 900), Move::Raise(8_192));
        growth.requested(ms(35_960), 900, 8_192);
        assert_eq!(growth.next(ms(36_000), 900), Move::WaitUntil(ms(39_960)));
        assert_eq!(growth.granted(), 8_192);
        assert_eq!(growth.next(ms(36_000), 900), Move::WaitUntil(ms(76_920)));
        // Text that arrives faster than the stated speed counts too.
        assert!(matches!(growth.next(ms(36_000), 7_800), Move::Raise(_)));
        // The last slice covers all output that the request allows.
        let mut growth = Growth::new(100, 5_000, 4_096);
        growth.requested(ms(1), 0, 5_000);
        growth.granted();
        assert_eq!(growth.next(ms(90_000), 5_000), Move::Finished);
    }

    #[test]
    fn refused_slice_is_requested_again_with_a_smaller_amount_and_a_used_up_hold_stops_the_call() {
        let mut growth = Growth::new(100, 32_000, 4_096);
        let mut requests = Vec::new();
        let mut now = ms(35_960);
        let stopped = loop {
            match growth.next(now, 0) {
                Move::Raise(tokens) => {
                    requests.push((now.as_millis(), tokens));
                    growth.requested(now, 0, tokens);
                    growth.refused(now, StoppedBy::Ceiling);
                }
                Move::WaitUntil(at) => now = at,
                other => break other,
            }
        };
        assert_eq!(stopped, Move::Stop(StoppedBy::Ceiling));
        let steps: Vec<u64> = requests.iter().map(|(_, tokens)| tokens - 4_096).collect();
        assert_eq!(steps, [4_096, 2_048, 1_024, 512, 400]);
        assert_eq!(now, ms(39_961));
    }

    #[test]
    fn call_stops_if_the_ledger_does_not_answer() {
        let mut growth = Growth::new(100, 32_000, 4_096);
        growth.requested(ms(35_960), 0, 8_000);
        assert_eq!(
            growth.next(ms(39_961), 0),
            Move::Stop(StoppedBy::Ledger),
            "after the time in which the ledger has to answer"
        );
        // The client did not read for a minute. The call continues after the ledger has granted what was used in that
        // time.
        let mut growth = Growth::new(100, 32_000, 4_096);
        let Move::Raise(tokens) = growth.next(ms(90_000), 300) else {
            panic!("the hold is not raised");
        };
        assert!(tokens >= 9_100);
        growth.requested(ms(90_000), 300, tokens);
        assert_eq!(growth.next(ms(90_001), 300), Move::BlockUntil(ms(94_000)));
        growth.granted();
        assert!(matches!(growth.next(ms(90_002), 300), Move::WaitUntil(_)));
    }

    /// How the ledger answers a request.
    #[derive(Clone, Copy, Debug)]
    enum Answer {
        Granted,
        Refused,
    }

    proptest! {
        /// Simulates a stream of a vendor that is at most as fast as stated. The stream is polled at random times at
        /// most a second apart, and whenever a wait ends. Whatever the ledger answers, and however late, the hold must
        /// cover all output until the call stops or ends, including what the vendor generates until it notices a
        /// cancellation.
        #[test]
        fn growing_hold_covers_all_output_until_the_call_stops(
            rate in 1_u64..3_000,
            output_max in 1_u64..60_000,
            polls in prop::collection::vec((1_u64..1_000, 0_u64..=100), 1..300),
            answers in prop::collection::vec((0_u64..6_000, prop_oneof![Just(Answer::Granted), Just(Answer::Refused)]), 0..40),
        ) {
            let mut growth = Growth::new(rate, output_max, slice(rate).min(output_max));
            let mut answers = answers.into_iter();
            let mut due: Option<(Duration, Answer)> = None;
            let (mut now, mut seen) = (Duration::ZERO, 0);
            'stream: for (wait, shown) in polls {
                let until = now + ms(wait);
                loop {
                    if let Some((at, answer)) = due.filter(|(at, _)| *at <= now) {
                        due = None;
                        match answer {
                            Answer::Granted => { growth.granted(); }
                            Answer::Refused => growth.refused(at, StoppedBy::Balance),
                        }
                    }
                    let made = generated(rate, now).min(output_max);
                    seen = seen.max(made * shown / 100);
                    let next = growth.next(now, seen);
                    if matches!(next, Move::Stop(_)) {
                        break 'stream;
                    }
                    // The call continues, so the hold must cover all that can be generated until a second from now.
                    let noticed = generated(rate, now + CANCEL).min(output_max);
                    prop_assert!(noticed <= growth.covered, "{noticed} > {}: {next:?}", growth.covered);
                    prop_assert!(!matches!(next, Move::BlockUntil(_)));
                    if let Move::Raise(tokens) = next {
                        prop_assert!(tokens > growth.covered && tokens <= output_max);
                        growth.requested(now, seen, tokens);
                        let (late, answer) = answers.next().unwrap_or((0, Answer::Granted));
                        due = Some((now + ms(late), answer));
                        continue;
                    }
                    let wake = match next {
                        Move::WaitUntil(at) => Some(at),
                        _ => None,
                    };
                    let next_event = [wake, due.map(|(at, _)| at)].into_iter().flatten().filter(|at| *at > now).min();
                    match next_event.filter(|at| *at < until) {
                        Some(at) => now = at,
                        None => break,
                    }
                }
                now = until;
            }
        }
    }
}

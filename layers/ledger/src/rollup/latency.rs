//! Call durations, counted per step of a logarithmic scale. The counts are small enough to be part of every sum, and
//! adding the counts of two sums is exact.
//!
//! The scale has eight steps per doubling. Times below 16 ms are exact to the millisecond. For longer times, the width
//! of a step is at most one eighth of the time. A percentile is the upper end of a step, so it is never less than the
//! true time and at most one eighth more.

use std::{fmt, str::FromStr};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

/// The binary logarithm of the number of steps per doubling.
const STEPS_LOG: u32 = 3;
const STEPS: u32 = 1 << STEPS_LOG;

/// A histogram of call durations. The text form is one line: `57:3 60` means three calls on step 57 and one call on
/// step 60.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency(Vec<(u8, u64)>);

impl Latency {
    /// Creates the histogram of one call.
    #[must_use]
    pub fn of_ms(ms: u32) -> Self {
        Self(vec![(step_of(ms), 1)])
    }

    /// Adds the duration of one call.
    pub fn count(&mut self, ms: u32) {
        let step = step_of(ms);
        match self.0.binary_search_by_key(&step, |(step, _)| *step) {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => self.0.insert(at, (step, 1)),
        }
    }

    /// Adds all calls of another histogram.
    pub fn add(&mut self, other: &Self) {
        // Inserting the steps one at a time is fast enough, because this histogram usually has all of the other's steps
        // already.
        let mut at = 0;
        for (step, calls) in &other.0 {
            at += self.0[at..]
                .iter()
                .take_while(|(own, _)| own < step)
                .count();
            match self.0.get_mut(at) {
                Some((own, sum)) if own == step => *sum += calls,
                _ => self.0.insert(at, (*step, *calls)),
            }
        }
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.iter().map(|(_, calls)| calls).sum()
    }

    /// Returns the time in milliseconds that `percent` of the calls did not exceed, for example the 99th percentile;
    /// `None` if there are no calls.
    #[must_use]
    pub fn percentile_ms(&self, percent: u64) -> Option<u32> {
        // The rank is rounded up: the 1st percentile of 100 calls is the shortest call.
        let rank = (self.calls() * percent).div_ceil(100).max(1);
        let mut below = 0;
        let step = self.0.iter().find(|(_, calls)| {
            below += *calls;
            below >= rank
        });
        step.map(|(step, _)| last_ms_of(*step))
    }

    /// Returns whether the other histogram has at least as many calls on every step.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        let mut steps = self.0.iter();
        steps.all(|(step, calls)| {
            let at = other.0.binary_search_by_key(step, |(step, _)| *step);
            at.is_ok_and(|at| *calls <= other.0[at].1)
        })
    }

    /// Returns whether the histogram contains no calls.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

fn step_of(ms: u32) -> u8 {
    let doublings = ms.max(1).ilog2().saturating_sub(STEPS_LOG);
    let step = doublings * STEPS + (ms >> doublings);
    u8::try_from(step).unwrap_or(u8::MAX)
}

/// Returns the longest duration that is counted on a step, in milliseconds.
fn last_ms_of(step: u8) -> u32 {
    let step = u32::from(step);
    let doublings = (step / STEPS).saturating_sub(1);
    let next = u64::from(step - doublings * STEPS + 1) << doublings;
    u32::try_from(next - 1).unwrap_or(u32::MAX)
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (step, calls)) in self.0.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{step}")?;
            if *calls != 1 {
                write!(f, ":{calls}")?;
            }
        }
        Ok(())
    }
}

/// The error for a text that is not a valid histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid histogram of call durations")]
pub struct LatencyError;

impl FromStr for Latency {
    type Err = LatencyError;

    fn from_str(text: &str) -> Result<Self, LatencyError> {
        // A page may contain ten thousand histograms, so each is parsed in one pass over its bytes.
        let words = text.as_bytes().split(u8::is_ascii_whitespace);
        let words = words.filter(|word| !word.is_empty());
        let mut steps: Vec<(u8, u64)> = Vec::with_capacity(text.len() / 4 + 1);
        for word in words {
            let mut numbers = word.splitn(2, |byte| *byte == b':');
            let step = number(numbers.next()).and_then(|step| u8::try_from(step).ok());
            let calls = match numbers.next() {
                Some(calls) => number(Some(calls)),
                None => Some(1),
            };
            let (step, calls) = step.zip(calls).ok_or(LatencyError)?;
            if steps.last().is_some_and(|(before, _)| *before >= step) {
                return Err(LatencyError);
            }
            steps.push((step, calls));
        }
        Ok(Self(steps))
    }
}

fn number(digits: Option<&[u8]>) -> Option<u64> {
    let digits = digits.filter(|digits| !digits.is_empty())?;
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Latency {
    /// If a later version wrote a text that this version cannot parse, reads an empty histogram: the sums must stay
    /// readable.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Line)
    }
}

/// Parses the text of a histogram without copying it.
struct Line;

impl Visitor<'_> for Line {
    type Value = Latency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a histogram as a line of text")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Latency, E> {
        Ok(text.parse().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(times: &[u32]) -> Latency {
        let mut latency = Latency::default();
        for ms in times {
            latency.count(*ms);
        }
        latency
    }

    #[test]
    fn histogram_round_trips_as_a_short_line() {
        for (times, text) in [
            (&[][..], ""),
            (&[0], "0"),
            (&[15, 15, 16, 17, 18], "15:2 16:2 17"),
            (&[u32::MAX], "239"),
        ] {
            let latency = histogram(times);
            assert_eq!(latency.to_string(), text);
            assert_eq!(text.parse(), Ok(latency.clone()));
            let json = serde_json::to_string(&latency).unwrap();
            assert_eq!(serde_json::from_str::<Latency>(&json).unwrap(), latency);
        }
        for bad in ["x", "1:", "256", "1:x", "2 1", "1 1"] {
            assert_eq!(bad.parse::<Latency>(), Err(LatencyError), "{bad}");
        }
        let later: Latency = serde_json::from_str(r#""2 7;x""#).unwrap();
        assert!(later.is_none());
    }

    #[test]
    fn every_duration_belongs_to_exactly_one_histogram_step() {
        let mut first = 0;
        for step in 0..240 {
            let last = last_ms_of(step);
            assert_eq!((step_of(first), step_of(last)), (step, step), "{step}");
            first = last.saturating_add(1);
        }
        assert_eq!(first, u32::MAX);
    }

    proptest! {
        #[test]
        fn percentile_is_exact_or_at_most_an_eighth_higher(
            mut times in prop::collection::vec(prop_oneof![0..40u32, 0..100_000u32, any::<u32>()], 1..300),
            percent in 1..=100u64,
        ) {
            let latency = histogram(&times);
            times.sort_unstable();
            let rank = (times.len() * percent as usize).div_ceil(100);
            let exact = u64::from(times[rank - 1]);
            let reported = u64::from(latency.percentile_ms(percent).unwrap());
            prop_assert!(exact <= reported && reported <= exact + exact / 8, "{reported} for {exact}");
        }

        #[test]
        fn sum_of_partial_histograms_equals_the_histogram_of_all_calls(
            times in prop::collection::vec(prop_oneof![0..20u32, any::<u32>()], 0..50),
            at in 0..50usize,
        ) {
            let (a, b) = times.split_at(at.min(times.len()));
            let mut added = histogram(a);
            added.add(&histogram(b));
            prop_assert_eq!(&added, &histogram(&times));
            prop_assert_eq!(added.calls(), times.len() as u64);
            prop_assert!(histogram(a).is_within(&added));
            prop_assert_eq!(added.is_within(&histogram(a)), b.is_empty());
        }
    }
}

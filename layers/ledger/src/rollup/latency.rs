//! How long calls took: counts on a scale of times, small enough to stand in every sum, and exact when sums are added.
//!
//! A scale has eight steps to each doubling: times below 16 ms are told apart by the millisecond, and later ones by an
//! eighth at most. What is read off it is the last time of a step: never less than it was, and at most an eighth more.

use std::{fmt, str::FromStr};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

/// How many steps a doubling has, as a power of two.
const STEPS_LOG: u32 = 3;
const STEPS: u32 = 1 << STEPS_LOG;

/// How many calls took how long. In sums it is a line of text, `57:3 60`: three calls on step 57, one on step 60.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency(Vec<(u8, u64)>);

impl Latency {
    /// Of one call.
    #[must_use]
    pub fn of_ms(ms: u32) -> Self {
        Self(vec![(step_of(ms), 1)])
    }

    /// Adds a call.
    pub fn count(&mut self, ms: u32) {
        let step = step_of(ms);
        match self.0.binary_search_by_key(&step, |(step, _)| *step) {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => self.0.insert(at, (step, 1)),
        }
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        // Mostly all of their steps are there already.
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

    /// Of how many calls it is.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.iter().map(|(_, calls)| calls).sum()
    }

    /// A time, in milliseconds, that so many of a hundred calls did not take longer than; `None` where there are none.
    #[must_use]
    pub fn percentile_ms(&self, percent: u64) -> Option<u32> {
        // The first of a hundred calls is a hundredth of them.
        let rank = (self.calls() * percent).div_ceil(100).max(1);
        let mut below = 0;
        let step = self.0.iter().find(|(_, calls)| {
            below += *calls;
            below >= rank
        });
        step.map(|(step, _)| last_ms_of(*step))
    }

    /// Whether it is of some of the same calls.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        let mut steps = self.0.iter();
        steps.all(|(step, calls)| {
            let at = other.0.binary_search_by_key(step, |(step, _)| *step);
            at.is_ok_and(|at| *calls <= other.0[at].1)
        })
    }

    /// Whether it is of no call.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where a time stands on the scale.
fn step_of(ms: u32) -> u8 {
    let doublings = ms.max(1).ilog2().saturating_sub(STEPS_LOG);
    let step = doublings * STEPS + (ms >> doublings);
    u8::try_from(step).unwrap_or(u8::MAX)
}

/// The longest time on a step.
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

/// A text is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("does not say how long calls took")]
pub struct LatencyError;

impl FromStr for Latency {
    type Err = LatencyError;

    fn from_str(text: &str) -> Result<Self, LatencyError> {
        // A page may read ten thousand of them: one pass over bytes.
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

/// A whole number in decimal.
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
    /// A later version may say it in other words: what calls came to must be read all the same.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Line)
    }
}

/// Reads the line where it lies.
struct Line;

impl Visitor<'_> for Line {
    type Value = Latency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a line of text")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Latency, E> {
        Ok(text.parse().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u32]) -> Latency {
        let mut latency = Latency::default();
        for ms in times {
            latency.count(*ms);
        }
        latency
    }

    #[test]
    fn it_is_a_short_line_and_is_read_as_it_was_written() {
        for (times, text) in [
            (&[][..], ""),
            (&[0], "0"),
            (&[15, 15, 16, 17, 18], "15:2 16:2 17"),
            (&[u32::MAX], "239"),
        ] {
            let latency = of(times);
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
    fn steps_follow_each_other_without_a_gap() {
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
        fn a_percentile_is_that_of_all_times_or_up_to_an_eighth_more(
            mut times in prop::collection::vec(prop_oneof![0..40u32, 0..100_000u32, any::<u32>()], 1..300),
            percent in 1..=100u64,
        ) {
            let latency = of(&times);
            times.sort_unstable();
            let rank = (times.len() * percent as usize).div_ceil(100);
            let exact = u64::from(times[rank - 1]);
            let told = u64::from(latency.percentile_ms(percent).unwrap());
            prop_assert!(exact <= told && told <= exact + exact / 8, "{told} for {exact}");
        }

        #[test]
        fn parts_added_are_the_whole(
            times in prop::collection::vec(prop_oneof![0..20u32, any::<u32>()], 0..50),
            at in 0..50usize,
        ) {
            let (a, b) = times.split_at(at.min(times.len()));
            let mut added = of(a);
            added.add(&of(b));
            prop_assert_eq!(&added, &of(&times));
            prop_assert_eq!(added.calls(), times.len() as u64);
            prop_assert!(of(a).is_within(&added));
            prop_assert_eq!(added.is_within(&of(a)), b.is_empty());
        }
    }
}

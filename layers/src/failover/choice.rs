//! Chooses the next route among those that can be tried. The choice has no state; random numbers are arguments.
//!
//! Only candidates with the lowest priority number are considered. If the model is sticky, the conversation's previous
//! route is chosen. Otherwise, if the weights differ, a route is chosen at random by weight. If the weights are equal,
//! two routes are picked at random, and the one with less load is chosen; that spreads load almost as well as comparing
//! all routes, and never sends all calls to the same route. A route whose time to the first byte was never measured
//! counts as fast as the fastest route, so that it gets its share of calls, but not all of them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::load::cost;

/// A route that can be tried now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The route's index in the model's list of routes.
    pub(super) index: usize,
    /// The route's priority; routes with lower numbers are tried first.
    pub(super) priority: u32,
    /// The route's share of calls, relative to the weights of the other routes.
    pub(super) weight: u32,
    /// The expected time to the first byte; `None` if it was never measured.
    pub(super) expected: Option<Duration>,
    /// The number of calls in flight on the route.
    pub(super) in_flight: usize,
    /// A hash that identifies the route, equal on every node and after restarts.
    pub(super) identity: u64,
}

/// Returns the index, in the model's list of routes, of the route to try next.
pub(super) fn choose(
    candidates: &[Candidate],
    conversation: Option<u64>,
    draw: &Draw,
) -> Option<usize> {
    if let [only] = candidates {
        return Some(only.index);
    }
    let priorities = candidates.iter().map(|candidate| candidate.priority);
    let tier = priorities.min()?;
    let is_in_tier = |candidate: &&Candidate| candidate.priority == tier;
    let tier: Vec<&Candidate> = candidates.iter().filter(is_in_tier).collect();
    let chosen = match (tier.as_slice(), conversation) {
        ([only], _) => *only,
        (tier, Some(conversation)) => home(tier, conversation),
        (tier, None) if tier.iter().all(|other| other.weight == tier[0].weight) => {
            less_loaded(tier, draw)
        }
        (tier, None) => by_weight(tier, draw),
    };
    Some(chosen.index)
}

/// Returns the route on which the conversation stays, by weighted rendezvous hashing. If a route is unavailable, only
/// its own conversations move to other routes. They return when the route is available again.
fn home<'a>(tier: &[&'a Candidate], conversation: u64) -> &'a Candidate {
    let distance = |candidate: &Candidate| {
        let hash = mixed(conversation ^ candidate.identity);
        // The result is in (0, 1]. The 53 bits fit into an `f64` without rounding.
        let unit = ((hash >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        -unit.ln() / f64::from(candidate.weight.max(1))
    };
    tier.iter()
        .copied()
        .min_by(|one, other| distance(one).total_cmp(&distance(other)))
        .expect("there is at least one candidate of the lowest priority number")
}

fn less_loaded<'a>(tier: &[&'a Candidate], draw: &Draw) -> &'a Candidate {
    let fastest = tier.iter().filter_map(|candidate| candidate.expected).min();
    let cost_of = |candidate: &Candidate| {
        let expected = candidate.expected.or(fastest).unwrap_or_default();
        cost(expected, candidate.in_flight)
    };
    let first = draw.below(tier.len() as u64) as usize;
    let second = (first + 1 + draw.below(tier.len() as u64 - 1) as usize) % tier.len();
    if cost_of(tier[second]) < cost_of(tier[first]) {
        tier[second]
    } else {
        tier[first]
    }
}

fn by_weight<'a>(tier: &[&'a Candidate], draw: &Draw) -> &'a Candidate {
    let weights = tier.iter().map(|candidate| u64::from(candidate.weight));
    let mut place = draw.below(weights.sum::<u64>().max(1));
    for candidate in tier.iter().copied() {
        match place.checked_sub(u64::from(candidate.weight)) {
            Some(rest) => place = rest,
            None => return candidate,
        }
    }
    tier[0]
}

/// A fast random generator (SplitMix64). It is not cryptographically secure.
#[derive(Debug)]
pub(super) struct Draw(AtomicU64);

impl Draw {
    pub(super) const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(super) fn next(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        mixed(self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
    }

    /// Returns a random number below `max`, which must not be 0. The bias is at most `max` / 2^64.
    fn below(&self, max: u64) -> u64 {
        self.next() % max
    }
}

/// Mixes a number with SplitMix64's finalizer, so that each bit of the result depends on every bit of the number.
pub(super) const fn mixed(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates candidates from (priority, weight, seconds to the first byte).
    fn candidates(of: &[(u32, u32, u64)]) -> Vec<Candidate> {
        let of = of.iter().enumerate();
        of.map(|(index, (priority, weight, seconds))| Candidate {
            index,
            priority: *priority,
            weight: *weight,
            expected: Some(Duration::from_secs(*seconds)),
            in_flight: 0,
            identity: mixed(index as u64 + 1),
        })
        .collect()
    }

    /// Returns how many times each candidate is chosen in 100 000 choices.
    fn shares(candidates: &[Candidate], conversations: bool) -> Vec<usize> {
        let draw = Draw::new(7);
        let mut counts = vec![0; candidates.len()];
        for number in 0..100_000_u64 {
            let conversation = conversations.then(|| mixed(number));
            counts[choose(candidates, conversation, &draw).unwrap()] += 1;
        }
        counts
    }

    fn is_about(counts: &[usize], expected: &[usize]) {
        for (count, expected) in counts.iter().zip(expected) {
            assert!(
                count.abs_diff(*expected) < 1_000,
                "{counts:?}, not about {expected:?}"
            );
        }
    }

    #[test]
    fn route_with_the_lowest_priority_number_is_chosen_first() {
        let all = candidates(&[(2, 9, 0), (1, 1, 9), (2, 9, 0)]);
        assert_eq!(shares(&all, false), [0, 100_000, 0]);
        assert_eq!(shares(&all, true), [0, 100_000, 0]);
        assert_eq!(choose(&[], None, &Draw::new(0)), None);
    }

    #[test]
    fn routes_with_different_weights_share_calls_by_weight_at_any_load() {
        let all = candidates(&[(0, 7, 100), (0, 2, 0), (0, 1, 0)]);
        for conversations in [false, true] {
            is_about(&shares(&all, conversations), &[70_000, 20_000, 10_000]);
        }
    }

    #[test]
    fn routes_of_equal_weight_are_chosen_by_load_and_evenly_if_loads_are_equal() {
        for (seconds, expected) in [
            ([1, 1, 1], [33_333, 33_333, 33_333]),
            // Two of the three routes are compared. If the slower route is one of them, the other one is chosen.
            ([1, 1, 2], [50_000, 50_000, 0]),
            ([1, 2, 3], [66_667, 33_333, 0]),
        ] {
            let mut all = candidates(&seconds.map(|seconds| (0, 5, seconds)));
            is_about(&shares(&all, false), &expected);
            // In the second run, the times of the slower routes are unknown, so each of them counts as equal to the
            // fastest time. Instead, the slower routes have more calls in flight.
            for (candidate, seconds) in all.iter_mut().zip(seconds) {
                candidate.expected = (seconds == 1).then_some(Duration::from_secs(1));
                candidate.in_flight = usize::try_from(seconds).unwrap() - 1;
            }
            is_about(&shares(&all, false), &expected);
        }
    }

    #[test]
    fn conversation_stays_on_its_route_while_the_route_is_available() {
        let all = candidates(&[(0, 1, 0), (0, 1, 0), (0, 1, 0)]);
        let without = &all[1..];
        let draw = Draw::new(7);
        let mut moved = 0;
        for number in 0..10_000 {
            let conversation = Some(mixed(number));
            let home = choose(&all, conversation, &draw).unwrap();
            assert_eq!(choose(&all, conversation, &draw), Some(home), "it stays");
            let refuge = choose(without, conversation, &draw).unwrap();
            assert!(home == 0 || home == refuge);
            moved += usize::from(home == 0);
        }
        assert!((3_000..3_700).contains(&moved), "{moved}");
    }
}

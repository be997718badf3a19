//! The load of a route: its time to the first byte multiplied by its calls in flight, as in tower's `PeakEwma`.
//!
//! If a measured time is longer than the estimate, it replaces the estimate at once. After that, the estimate decays
//! slowly. So a route that becomes slow loses calls immediately and regains them gradually. This module has no clock:
//! its functions take the time as an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The time after which an old measurement has lost about two thirds of its weight.
const DECAY: Duration = Duration::from_secs(10);
/// If a client waits for less than this on a route that was never measured and then disconnects, the estimate does not
/// change.
const NOTABLE: Duration = Duration::from_secs(1);
/// Shorter times to the first byte count as equal, so that the number of calls in flight decides.
const FLOOR: Duration = Duration::from_millis(1);

/// A moving average of the time to the first byte. It rises at once to each higher measurement.
#[derive(Debug, Default)]
pub(super) struct PeakEwma(Option<Estimate>);

#[derive(Clone, Copy, Debug)]
struct Estimate {
    seconds: f64,
    at: Instant,
}

impl PeakEwma {
    /// Records the time that a first byte took to arrive.
    pub(super) fn observe(&mut self, took: Duration, now: Instant) {
        let took = took.as_secs_f64();
        let seconds = self.0.map_or(took, |before| before.towards(took, now));
        self.0 = Some(Estimate { seconds, at: now });
    }

    /// Records that a call has waited this long without a first byte, which is a lower bound of the time to the first
    /// byte.
    pub(super) fn at_least(&mut self, waited: Duration, now: Instant) {
        let notable = self
            .0
            .map_or(NOTABLE.as_secs_f64(), |before| before.towards(0.0, now));
        if waited.as_secs_f64() > notable {
            self.observe(waited, now);
        }
    }

    /// Returns the time to the first byte that is expected now; `None` if it was never measured.
    pub(super) fn expected(&self, now: Instant) -> Option<Duration> {
        let seconds = self.0?.towards(0.0, now);
        Some(Duration::from_secs_f64(seconds))
    }
}

impl Estimate {
    fn towards(&self, seconds: f64, now: Instant) -> f64 {
        if self.seconds < seconds {
            return seconds;
        }
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        let stored = (-elapsed / DECAY.as_secs_f64()).exp();
        self.seconds * stored + seconds * (1.0 - stored)
    }
}

/// Returns the load that the route would have with one more call.
pub(super) fn cost(expected: Duration, in_flight: usize) -> f64 {
    expected.max(FLOOR).as_secs_f64() * (in_flight as f64 + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn higher_latency_counts_at_once_and_decays_slowly() {
        let now = Instant::now();
        let mut load = PeakEwma::default();
        assert_eq!(load.expected(now), None);
        load.observe(2 * SECOND, now);
        assert_eq!(load.expected(now), Some(2 * SECOND), "the first one counts");
        load.observe(8 * SECOND, now);
        load.observe(SECOND, now);
        assert_eq!(load.expected(now), Some(8 * SECOND), "one good time");
        let later = now + DECAY;
        load.observe(SECOND, later);
        let expected = load.expected(later).unwrap().as_secs_f64();
        assert!((3.5..3.6).contains(&expected), "1 + 7/e: {expected}");
        let quiet = later + 100 * DECAY;
        assert!(load.expected(quiet).unwrap() < FLOOR);
    }

    #[tokio::test(start_paused = true)]
    async fn latency_is_at_least_the_wait_of_a_client_that_left_without_a_response() {
        let now = Instant::now();
        let mut load = PeakEwma::default();
        load.at_least(SECOND / 2, now);
        assert_eq!(load.expected(now), None, "the client disconnected early");
        load.at_least(3 * SECOND, now);
        load.at_least(2 * SECOND, now);
        assert_eq!(load.expected(now), Some(3 * SECOND));
    }

    #[test]
    fn calls_in_flight_count_as_load_even_on_fast_routes() {
        assert!(cost(SECOND, 1) < cost(3 * SECOND, 0));
        assert!(cost(SECOND, 4) > cost(3 * SECOND, 0));
        assert!(cost(Duration::ZERO, 1) > cost(Duration::ZERO, 0));
    }
}

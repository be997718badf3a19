//! What a call used: tokens by rate class, and the meter that the layers below write and the hold's
//! owner reads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Model tokens by rate class. The classes do not overlap: a token is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Input that was neither read from nor written to the vendor's cache.
    pub input: u64,
    /// Input read from the vendor's cache.
    pub cached_input: u64,
    /// Input written to the vendor's cache.
    pub cache_write: u64,
    /// Output, reasoning included.
    pub output: u64,
}

impl Usage {
    /// All three classes of input.
    #[must_use]
    pub const fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cached_input)
            .saturating_add(self.cache_write)
    }

    /// Whether no token was used.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.input_total() == 0 && self.output == 0
    }

    /// Holds the counts within `input_max` and `output_max` tokens; says whether it had to.
    ///
    /// Surplus input is taken from the ordinary class first, then from what was read from the cache,
    /// then from what was written to it.
    #[must_use]
    pub fn clamped(mut self, input_max: u64, output_max: u64) -> (Self, bool) {
        // Three counts of 64 bits may overflow their sum, and a sum that saturates hides what is above it.
        let total = [self.input, self.cached_input, self.cache_write]
            .map(u128::from)
            .iter()
            .sum::<u128>();
        let mut surplus = total.saturating_sub(input_max.into());
        let clamped = surplus > 0 || self.output > output_max;
        for class in [
            &mut self.input,
            &mut self.cached_input,
            &mut self.cache_write,
        ] {
            let cut = u64::try_from(surplus).unwrap_or(u64::MAX).min(*class);
            *class -= cut;
            surplus -= u128::from(cut);
        }
        self.output = self.output.min(output_max);
        (self, clamped)
    }
}

/// How a call ended. The receipt keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum End {
    /// The answer came to its end.
    Finished,
    /// The client left before the end.
    ClientLeft,
    /// The vendor's answer broke off.
    VendorCut,
    /// The vendor answered an error inside its answer.
    VendorError,
    /// The gateway was killed; what it had noted last is what was settled.
    GatewayStopped,
}

impl End {
    /// The word that receipts, logs and metrics have for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::ClientLeft => "client_left",
            Self::VendorCut => "vendor_cut",
            Self::VendorError => "vendor_error",
            Self::GatewayStopped => "gateway_stopped",
        }
    }
}

/// What is known of a running call.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The vendor that is asked, or was asked last.
    pub vendor: Option<Arc<str>>,
    /// That vendor's stream is read to its end when the client leaves it.
    pub outlives_client: bool,
    /// The client has left, and what the vendor makes is taken to its end without it.
    pub client_gone: bool,
    /// A vendor has been sent the request: input may have been used.
    pub dispatched: bool,
    /// The newest usage that the vendor reported.
    pub usage: Option<Usage>,
    /// The usage's output is a count, not the first guess that messages streams begin with.
    pub output_counted: bool,
    /// Something about the reported usage made no sense and was repaired.
    pub suspect: bool,
    /// UTF-8 bytes of text, reasoning and tool arguments seen so far.
    pub text_bytes: u64,
    /// All text has come, and only the usage is missing.
    pub usage_due: bool,
    /// How the vendor's answer ended; `None` while it has not.
    pub end: Option<End>,
}

/// The meter of one call. Made with the call's price by `select`, written by the layers below the
/// hold, read by the hold's owner: a call dropped at any await still knows what it used.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<Reading>>);

impl Meter {
    /// What is known now.
    #[must_use]
    pub fn read(&self) -> Reading {
        self.lock().clone()
    }

    /// Looks at what is known now, in place.
    pub fn look<T>(&self, look: impl FnOnce(&Reading) -> T) -> T {
        look(&self.lock())
    }

    /// A vendor is about to be asked: what an earlier attempt used is no part of the call.
    pub fn attempt(&self, vendor: Arc<str>, outlives_client: bool) {
        let mut reading = self.lock();
        *reading = Reading {
            vendor: Some(vendor),
            outlives_client,
            client_gone: reading.client_gone,
            ..Reading::default()
        };
    }

    /// The request is on its way to a vendor.
    pub fn dispatched(&self) {
        self.lock().dispatched = true;
    }

    /// The vendor refused before it worked: nothing was used.
    pub fn refused(&self) {
        let mut reading = self.lock();
        *reading = Reading {
            vendor: reading.vendor.take(),
            outlives_client: reading.outlives_client,
            client_gone: reading.client_gone,
            ..Reading::default()
        };
    }

    /// Changes several readings at once.
    pub fn update(&self, change: impl FnOnce(&mut Reading)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        // A panic under this lock leaves plain numbers, never a torn state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_begins_anew_and_a_refusal_keeps_whose_it_was() {
        let meter = Meter::default();
        let used = |reading: &mut Reading| {
            reading.dispatched = true;
            reading.text_bytes = 7;
            reading.end = Some(End::VendorCut);
        };
        meter.attempt("first".into(), true);
        meter.update(used);
        meter.update(|reading| reading.client_gone = true);
        meter.attempt("second".into(), false);
        let reading = meter.read();
        assert_eq!(reading.vendor.as_deref(), Some("second"));
        assert!(!reading.outlives_client && !reading.dispatched && reading.client_gone);
        assert_eq!((reading.text_bytes, reading.end), (0, None));
        meter.update(used);
        meter.refused();
        let reading = meter.read();
        assert_eq!(reading.vendor.as_deref(), Some("second"));
        assert!(!reading.dispatched && reading.client_gone && reading.end.is_none());
    }

    #[test]
    fn an_end_has_one_word_everywhere() {
        for end in [
            End::Finished,
            End::ClientLeft,
            End::VendorCut,
            End::VendorError,
            End::GatewayStopped,
        ] {
            assert_eq!(serde_json::to_value(end).unwrap(), end.as_str());
        }
    }

    #[test]
    fn clamping_keeps_each_class_within_the_bound() {
        let usage = Usage {
            input: 10,
            cached_input: 5,
            cache_write: 1,
            output: 7,
        };
        assert_eq!(usage.clamped(16, 7), (usage, false));
        assert_eq!(
            usage.clamped(4, 3),
            (
                Usage {
                    input: 0,
                    cached_input: 3,
                    cache_write: 1,
                    output: 3
                },
                true
            )
        );
        let absurd = Usage {
            input: u64::MAX,
            cached_input: 0,
            cache_write: 0,
            output: u64::MAX,
        };
        let (held, clamped) = absurd.clamped(100, 100);
        assert!(clamped && held.input_total() <= 100 && held.output <= 100);
    }

    #[test]
    fn counts_that_overflow_their_sum_are_held_at_the_bound_all_the_same() {
        let usage = Usage {
            input: u64::MAX,
            cached_input: u64::MAX,
            cache_write: u64::MAX,
            output: u64::MAX,
        };
        for (input_max, output_max) in [(0, 0), (10, 5), (u64::MAX, 1)] {
            let (clamped, had_to) = usage.clamped(input_max, output_max);
            assert!(had_to);
            assert_eq!(clamped.input_total(), input_max);
            assert_eq!((clamped.input, clamped.cached_input), (0, 0));
            assert_eq!(clamped.output, output_max);
        }
    }
}

//! What a call used: tokens by rate class, and the meter that the layers below write and the hold's
//! owner reads.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use crate::{
    price::{Class, Counts, Kind, Served},
    timeline::Timeline,
};

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
    /// What some vendors bill apart.
    #[serde(default, skip_serializing_if = "Counts::is_empty")]
    pub classes: Counts,
}

impl Usage {
    /// All classes of input.
    #[must_use]
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cached_input)
            .saturating_add(self.cache_write)
            .saturating_add(self.classes.total(Kind::Input))
    }

    /// All classes of output.
    #[must_use]
    pub fn output_total(&self) -> u64 {
        self.output.saturating_add(self.classes.total(Kind::Output))
    }

    /// What was used in both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let classes = Class::ALL.into_iter().map(|class| {
            let (one, other) = (self.classes.get(class), other.classes.get(class));
            (class, one.saturating_add(other))
        });
        Self {
            input: self.input.saturating_add(other.input),
            cached_input: self.cached_input.saturating_add(other.cached_input),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            output: self.output.saturating_add(other.output),
            classes: classes.collect(),
        }
    }

    /// Whether nothing was used.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.input_total() == 0 && self.output == 0 && self.classes.is_empty()
    }

    /// Holds the counts within `input_max` and `output_max` tokens; says whether it had to.
    ///
    /// Surplus is taken from the ordinary class first; of input then from what was read from the cache, from what was
    /// written to it, and from the other classes.
    #[must_use]
    pub fn clamped(mut self, input_max: u64, output_max: u64) -> (Self, bool) {
        let Self {
            input,
            cached_input,
            cache_write,
            output,
            classes,
        } = &mut self;
        let inputs = [input, cached_input, cache_write];
        let cut = [
            hold_within(input_max, inputs, classes, Kind::Input),
            hold_within(output_max, [output], classes, Kind::Output),
        ];
        (self, cut.contains(&true))
    }
}

/// Takes from `counts`, and then from the classes of this kind, what is beyond `max` in all; says whether there was any.
fn hold_within<const N: usize>(
    max: u64,
    counts: [&mut u64; N],
    classes: &mut Counts,
    kind: Kind,
) -> bool {
    // Counts of 64 bits may overflow their sum, and a sum that saturates hides what is above it.
    let of_kind = |class: &Class| class.kind() == kind;
    let apart = Class::ALL.into_iter().filter(of_kind);
    let mut total = counts.iter().map(|count| u128::from(**count)).sum::<u128>();
    if !classes.is_empty() {
        total += apart
            .map(|class| u128::from(classes.get(class)))
            .sum::<u128>();
    }
    let mut surplus = total.saturating_sub(max.into());
    if surplus == 0 {
        return false;
    }
    let mut take = |count: &mut u64| {
        let cut = u64::try_from(surplus).unwrap_or(u64::MAX).min(*count);
        *count -= cut;
        surplus -= u128::from(cut);
    };
    counts.into_iter().for_each(&mut take);
    for class in Class::ALL.into_iter().filter(of_kind) {
        take(classes.get_mut(class));
    }
    true
}

/// Bytes of text for one token where a vendor left out the usage: English has 4.0, Russian 7.7.
pub const ESTIMATE_BYTES: u64 = 4;

/// What a call can have used, by its request and by what was held for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The input tokens that were held for.
    pub input_bound: u64,
    /// What no honest count of input exceeds.
    pub input_limit: u64,
    /// The input where nobody has counted it.
    pub input_estimate: u64,
    /// Of that, what is sound.
    pub sound_estimate: u64,
    /// The output tokens that were held for.
    pub output_bound: u64,
    /// What no honest count of output exceeds.
    pub output_limit: u64,
    /// The calls of a vendor's tools that were held for; `None`: none were asked for, and what comes is charged.
    pub calls_max: Option<u64>,
    /// The class of what was written to the cache for a time that the vendor does not tell, if it is none of the four.
    pub cache_write: Option<Class>,
    /// The class of output that nobody has counted, if it may be more than text.
    pub output_class: Option<Class>,
}

/// The usage that a call is charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The tokens.
    pub usage: Usage,
    /// Not all of it is the vendor's own word, or that made no sense.
    pub estimated: bool,
    /// The vendor's word was cut to what was held for.
    pub bounded: bool,
}

impl Bounds {
    /// What is charged by this reading.
    #[must_use]
    pub fn count(&self, reading: &Reading) -> Counted {
        let seen = reading.text_bytes.div_ceil(ESTIMATE_BYTES);
        let reported = reading.usage.unwrap_or_default();
        // What no answer can have used is held to what was held for; anything less is the vendor's word,
        // also where it is more than was held: the ledger knows what is loss then.
        let input_max = match reported.input_total() > self.input_limit {
            true => self.input_bound,
            false => u64::MAX,
        };
        let output_max = match reported.output_total() > self.output_limit {
            true => self.output_bound,
            false => u64::MAX,
        };
        let (mut usage, mut bounded) = reported.clamped(input_max, output_max);
        if !usage.classes.is_empty() || self.cache_write.is_some() {
            bounded |= self.count_classes(&mut usage, reading);
        }
        let mut estimated = bounded || reading.suspect;
        // No call is without input.
        if usage.input_total() == 0 {
            let sound = self.sound_estimate;
            (usage.input, estimated) = (self.input_estimate.saturating_sub(sound), true);
            *usage.classes.get_mut(Class::InputAudio) = sound;
        }
        // No output reported for text that was there, or no count of it yet.
        let missing = match reading.end {
            Some(End::Finished) if reading.output_counted => usage.output_total() == 0 && seen > 0,
            _ => !reading.output_counted && usage.output < seen,
        };
        if missing {
            // The vendor was sent this ceiling; by bytes alone Russian would be counted twice.
            let output = seen.min(self.output_bound).max(usage.output);
            estimated = true;
            match self.output_class {
                None => usage.output = output,
                Some(class) => {
                    // Not less than what is counted apart already.
                    let counted = usage.output_total();
                    let more = usage.classes.get_mut(class);
                    *more = more.saturating_add(output.saturating_sub(counted));
                }
            }
        }
        Counted {
            usage,
            estimated,
            bounded,
        }
    }

    /// Holds calls of tools to what was held for, and says whether it had to; counts as the dearest that was asked for
    /// what was written to the cache for a time that the vendor has not told.
    fn count_classes(&self, usage: &mut Usage, reading: &Reading) -> bool {
        // Marks for the cache reach no vendor of another format.
        if let Some(class) = self.cache_write.filter(|_| !reading.translated) {
            let untold = usage.cache_write.saturating_sub(reading.cache_write_usual);
            usage.cache_write -= untold;
            let written = usage.classes.get_mut(class);
            *written = written.saturating_add(untold);
        }
        let calls = usage.classes.get_mut(Class::WebSearchCall);
        let max = self.calls_max.unwrap_or(UNASKED_CALLS_MAX);
        let had_to = *calls > max;
        *calls = (*calls).min(max);
        had_to
    }
}

/// No honest answer has more calls of tools that nobody asked for.
const UNASKED_CALLS_MAX: u64 = 100;

/// How a call ended. The receipt keeps it. Exhaustive on purpose: each end says something about who pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// What it calls the model, where that matters.
    pub vendor_model: Option<Arc<str>>,
    /// It speaks another format than the caller.
    pub translated: bool,
    /// That vendor's stream is read to its end when the client leaves it.
    pub outlives_client: bool,
    /// The client has left, and what the vendor makes is taken to its end without it.
    pub client_gone: bool,
    /// A vendor has been sent the request: input may have been used.
    pub dispatched: bool,
    /// The newest usage that the vendor reported.
    pub usage: Option<Usage>,
    /// Of the usage's `cache_write`, what the vendor said is kept for its usual time.
    pub cache_write_usual: u64,
    /// How the vendor said that it served the call.
    pub served: Served,
    /// The usage's output is a count, not the first guess that messages streams begin with.
    pub output_counted: bool,
    /// The vendor counted something that is billed apart and has no class here.
    pub unknown: bool,
    /// Something about the reported usage made no sense and was repaired.
    pub suspect: bool,
    /// The vendor has answered what its caller cannot be given, since the call brought about too much of it: it is
    /// charged as an answer that has come.
    pub answered: bool,
    /// UTF-8 bytes of text, reasoning and tool arguments seen so far.
    pub text_bytes: u64,
    /// All text has come, and only the usage is missing.
    pub usage_due: bool,
    /// How the vendor's answer ended; `None` while it has not.
    pub end: Option<End>,
    /// How the call went so far; `None` where nobody watches.
    pub timeline: Option<Timeline>,
}

/// The vendor that is about to be asked.
#[derive(Clone, Debug)]
pub struct Attempted {
    /// Its name.
    pub vendor: Arc<str>,
    /// What it calls the model, where that matters.
    pub model: Option<Arc<str>>,
    /// It speaks another format than the caller.
    pub translated: bool,
    /// Its stream is read to its end when the client leaves it.
    pub outlives_client: bool,
}

/// The meter of one call. Made with the call's price by `select`, written by the layers below the
/// hold, read by the hold's owner: a call dropped at any await still knows what it used.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    reading: Mutex<Reading>,
    bounds: OnceLock<Bounds>,
}

impl Meter {
    /// By what the call will be charged. The hold's owner says so, once.
    pub fn charge_within(&self, bounds: Bounds) {
        // Nobody else holds money for this call.
        let _ = self.0.bounds.set(bounds);
    }

    /// What the call is charged for if nothing more is known of it; `None` where no money is held for it, or
    /// not by tokens.
    #[must_use]
    pub fn counted(&self) -> Option<Counted> {
        let bounds = self.0.bounds.get()?;
        Some(self.look(|reading| bounds.count(reading)))
    }

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
    pub fn attempt(&self, attempted: Attempted) {
        let mut reading = self.lock();
        *reading = Reading {
            vendor: Some(attempted.vendor),
            vendor_model: attempted.model,
            translated: attempted.translated,
            outlives_client: attempted.outlives_client,
            client_gone: reading.client_gone,
            timeline: reading.timeline.take(),
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
            vendor_model: reading.vendor_model.take(),
            translated: reading.translated,
            outlives_client: reading.outlives_client,
            client_gone: reading.client_gone,
            timeline: reading.timeline.take(),
            ..Reading::default()
        };
    }

    /// The vendor's answer is an error: nothing was used, unless it has counted something, or had answered.
    pub fn failed(&self) {
        let used = |reading: &Reading| {
            reading.answered || reading.usage.is_some_and(|usage| !usage.is_zero())
        };
        if !self.look(used) {
            self.refused();
        }
    }

    /// Changes several readings at once.
    pub fn update(&self, change: impl FnOnce(&mut Reading)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        // A panic under this lock leaves plain numbers, never a torn state.
        let reading = self.0.reading.lock();
        reading.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_that_no_count_followed_is_no_count_of_a_finished_answer() {
        let bounds = Bounds {
            input_limit: 150,
            output_bound: 1000,
            output_limit: 1000,
            ..Bounds::default()
        };
        let guess = Usage {
            input: 9,
            output: 1,
            ..Usage::default()
        };
        for (output_counted, output) in [(false, 100), (true, 1)] {
            let counted = bounds.count(&Reading {
                usage: Some(guess),
                output_counted,
                text_bytes: 400,
                end: Some(End::Finished),
                ..Reading::default()
            });
            assert_eq!(counted.usage.output, output);
            assert_eq!(counted.estimated, !output_counted);
        }
    }

    #[test]
    fn an_estimate_is_never_more_output_than_the_vendor_was_allowed() {
        let bounds = Bounds {
            input_bound: 100,
            input_limit: 150,
            input_estimate: 20,
            output_bound: 50,
            output_limit: 60,
            ..Bounds::default()
        };
        for end in [
            End::Finished,
            End::ClientLeft,
            End::VendorCut,
            End::GatewayStopped,
        ] {
            // Four bytes a token would make 100 of it.
            let reading = Reading {
                text_bytes: 400,
                end: Some(end),
                ..Reading::default()
            };
            let counted = bounds.count(&reading);
            assert_eq!(
                (counted.usage.output, counted.estimated),
                (50, true),
                "{end:?}"
            );
        }
    }

    #[test]
    fn what_nobody_has_counted_is_of_the_class_that_was_asked_for() {
        let bounds = Bounds {
            input_bound: 100,
            input_limit: 150,
            input_estimate: 20,
            sound_estimate: 15,
            output_bound: 50,
            output_limit: 60,
            output_class: Some(Class::OutputAudio),
            ..Bounds::default()
        };
        let counted = bounds.count(&Reading {
            text_bytes: 40,
            end: Some(End::ClientLeft),
            ..Reading::default()
        });
        let classes = Counts::default()
            .with(Class::InputAudio, 15)
            .with(Class::OutputAudio, 10);
        let usage = Usage {
            input: 5,
            classes,
            ..Usage::default()
        };
        assert_eq!((counted.usage, counted.estimated), (usage, true));
    }

    #[test]
    fn an_attempt_begins_anew_and_a_refusal_keeps_whose_it_was() {
        let meter = Meter::default();
        let attempted = |vendor: &str, outlives_client| Attempted {
            vendor: vendor.into(),
            model: None,
            translated: false,
            outlives_client,
        };
        let used = |reading: &mut Reading| {
            reading.dispatched = true;
            reading.text_bytes = 7;
            reading.end = Some(End::VendorCut);
        };
        meter.attempt(attempted("first", true));
        meter.update(used);
        meter.update(|reading| reading.client_gone = true);
        meter.attempt(attempted("second", false));
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
            ..Usage::default()
        };
        assert_eq!(usage.clamped(16, 7), (usage, false));
        assert_eq!(
            usage.clamped(4, 3),
            (
                Usage {
                    input: 0,
                    cached_input: 3,
                    cache_write: 1,
                    output: 3,
                    ..Usage::default()
                },
                true
            )
        );
        let absurd = Usage {
            input: u64::MAX,
            cached_input: 0,
            cache_write: 0,
            output: u64::MAX,
            ..Usage::default()
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
            ..Usage::default()
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

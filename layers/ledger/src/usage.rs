//! The usage of a call: tokens by rate class, and the meter that records them. The layers below the layer `reserve`
//! write the meter, and `reserve` reads it.

mod end;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Serialize};

pub use self::end::{End, StoppedBy};
use crate::{
    price::{Class, Counts, Kind, Served},
    timeline::Timeline,
};

/// Tokens of a call, by rate class. The classes do not overlap: every token is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens that were neither read from nor written to the vendor's cache.
    pub input: u64,
    /// Input tokens that were read from the vendor's cache.
    pub cached_input: u64,
    /// Input tokens that were written to the vendor's cache.
    pub cache_write: u64,
    /// Output tokens, including reasoning tokens if no price has a separate rate for them.
    pub output: u64,
    /// Tokens and units of further classes, which some vendors bill separately.
    #[serde(default, skip_serializing_if = "Counts::is_empty")]
    pub classes: Counts,
}

impl Usage {
    /// Returns the sum of all input classes.
    #[must_use]
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cached_input)
            .saturating_add(self.cache_write)
            .saturating_add(self.classes.total(Kind::Input))
    }

    /// Returns a copy that contains only the input classes.
    #[must_use]
    pub fn input_alone(&self) -> Self {
        let of_input = |(class, _): &(Class, u64)| class.kind() == Kind::Input;
        Self {
            output: 0,
            classes: self.classes.iter().filter(of_input).collect(),
            ..*self
        }
    }

    /// Returns the sum of all output classes.
    #[must_use]
    pub fn output_total(&self) -> u64 {
        self.output.saturating_add(self.classes.total(Kind::Output))
    }

    fn tokens(&self) -> u64 {
        self.input_total().saturating_add(self.output_total())
    }

    /// Returns the sum of this usage and `other`, class by class.
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

    /// Returns whether all counts are zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.input_total() == 0 && self.output == 0 && self.classes.is_empty()
    }

    /// Reduces the counts to at most `input_max` input tokens and `output_max` output tokens. The second value is
    /// whether any count was reduced.
    ///
    /// The tokens above a maximum are taken from the ordinary class first. For input, the rest is taken from cached
    /// input, from cache writes, and from the other input classes.
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

/// Takes the surplus above `max` from `counts`, in their order, and then from the further classes with the unit `kind`.
/// Returns whether any count was reduced.
fn hold_within<const N: usize>(
    max: u64,
    counts: [&mut u64; N],
    classes: &mut Counts,
    kind: Kind,
) -> bool {
    // The sum is computed with more than 64 bits: a sum that saturates at 64 bits would hide the surplus over `max`.
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

/// Limits of the usage that a call may be charged for. They follow from its request and its hold.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// The number of input tokens that the hold covers.
    pub input_bound: u64,
    /// The largest plausible number of input tokens.
    pub input_limit: u64,
    /// Estimates the input tokens if the vendor does not report them. If `None`, the estimate is zero.
    pub input_estimate: Option<Arc<dyn EstimateInput>>,
    /// The number of output tokens that the request allows. The hold covers them, unless the hold grows with the
    /// output.
    pub output_bound: u64,
    /// The output that a growing hold covers now. Output beyond it is not charged. `None` if the hold does not grow.
    pub growing: Option<Arc<CoveredOutput>>,
    /// The largest number of output tokens that the model can generate.
    pub output_limit: u64,
    /// How many calls of the vendor's tools the hold covers. `None` if the request offers no such tools; even then,
    /// tool calls that the vendor reports are charged.
    pub calls_max: Option<u64>,
    /// The class that counts cache writes whose lifetime the vendor does not report; `None` for the ordinary class of
    /// cache writes.
    pub cache_write: Option<Class>,
    /// The class in which estimated output is counted, if the output may be other than text.
    pub output_class: Option<Class>,
}

/// How much output a growing hold covers. The owner of the hold raises this number while the call is in flight.
#[derive(Debug)]
pub struct CoveredOutput {
    /// The largest number of output tokens that the model generates per second.
    pub tokens_per_second_max: u64,
    covered: AtomicU64,
}

impl CoveredOutput {
    /// Creates the value for a hold that covers `covered` output tokens.
    #[must_use]
    pub const fn new(tokens_per_second_max: u64, covered: u64) -> Self {
        Self {
            tokens_per_second_max,
            covered: AtomicU64::new(covered),
        }
    }

    /// Returns the number of output tokens that the hold covers.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.covered.load(Ordering::Acquire)
    }

    /// Records that the hold covers at least this number of output tokens.
    pub fn raise_to(&self, tokens: u64) {
        self.covered.fetch_max(tokens, Ordering::AcqRel);
    }
}

/// Estimates the input tokens of a call. Vendors report the input of nearly all calls, so most estimates are never
/// computed.
pub trait EstimateInput: fmt::Debug + Send + Sync {
    /// Returns the estimate. Repeated calls return the same value.
    fn estimate(&self) -> InputEstimate;
}

/// The estimated input tokens of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputEstimate {
    /// All tokens of the input.
    pub tokens: u64,
    /// The part of `tokens` that is audio.
    pub sound: u64,
    /// The part of `tokens` that the vendor probably still has in its cache from the previous call of the conversation.
    pub cached: u64,
}

impl EstimateInput for InputEstimate {
    fn estimate(&self) -> Self {
        *self
    }
}

/// The usage that a call is charged for, and how it differs from the vendor's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The tokens by rate class.
    pub usage: Usage,
    /// Whether some of the usage was estimated or repaired, because the vendor did not report it or reported an
    /// implausible number.
    pub estimated: bool,
    /// The vendor's report, if the charged usage is less than the reported usage.
    pub overcount: Option<Overcount>,
}

/// A usage that a vendor reported and that was reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcount {
    /// The usage as the vendor reported it.
    pub reported: Usage,
    /// The part of the reported usage that the vendor may bill: at most as much as its model can read and generate.
    pub billable: Usage,
}

impl Bounds {
    /// Returns how many output tokens the hold covers now. Output beyond this number is not charged.
    #[must_use]
    pub fn output_covered(&self) -> u64 {
        match &self.growing {
            None => self.output_bound,
            Some(covered) => covered.tokens().min(self.output_bound),
        }
    }

    /// Returns the usage that a call is charged for if the meter has this reading.
    #[must_use]
    pub fn count(&self, reading: &Reading) -> Counted {
        let output_covered = self.output_covered();
        let seen = reading.text_tokens;
        let reported = reading.usage.unwrap_or_default();
        let read = self.possible(reported, &reading.others, output_covered);
        // Output is reduced to what the hold covers. Input that is possible for this request is charged even if it
        // exceeds the hold; the ledger books the difference as a loss. Impossible or contradictory input is reduced to
        // what the hold covers.
        let input_max = match reading.suspect || read.input_total() > self.input_limit {
            true => self.input_bound,
            false => u64::MAX,
        };
        let (mut usage, mut cut) = read.clamped(input_max, output_covered);
        cut |= read.tokens() < reported.tokens();
        if !usage.classes.is_empty() || self.cache_write.is_some() {
            cut |= self.count_classes(&mut usage, reading);
        }
        let mut estimated = cut || reading.suspect;
        // Every call has input, so a count of zero means that the vendor did not report the input.
        if usage.input_total() == 0 {
            let input = self.input_estimate.as_ref().map(|input| input.estimate());
            let input = input.unwrap_or_default();
            let text = input.tokens.saturating_sub(input.sound);
            usage.cached_input = input.cached.min(text);
            (usage.input, estimated) = (text - usage.cached_input, true);
            *usage.classes.get_mut(Class::InputAudio) = input.sound;
        }
        // The vendor sent text but reported no output tokens, or its report has not arrived yet.
        let missing = match reading.end {
            Some(End::Finished) if reading.output_counted => usage.output_total() == 0 && seen > 0,
            _ => !reading.output_counted && usage.output < seen,
        };
        if missing {
            // The vendor received a limit of output tokens with the request, so it cannot have generated more. The hold
            // may cover fewer tokens than this limit.
            let output = seen.min(output_covered).max(usage.output);
            estimated = true;
            match self.output_class {
                None => usage.output = output,
                Some(class) => {
                    // Adds only tokens that are not already counted in other output classes.
                    let counted = usage.output_total();
                    let more = usage.classes.get_mut(class);
                    *more = more.saturating_add(output.saturating_sub(counted));
                }
            }
        }
        Counted {
            usage,
            estimated,
            overcount: cut.then(|| self.overcount(reported)),
        }
    }

    /// Returns the record of a report that was reduced, with the part that the vendor may bill.
    fn overcount(&self, reported: Usage) -> Overcount {
        let (mut billable, _) = reported.clamped(self.input_limit, self.output_limit);
        let calls = billable.classes.get_mut(Class::WebSearchCall);
        *calls = (*calls).min(UNASKED_CALLS_MAX.max(self.calls_max.unwrap_or(0)));
        Overcount { reported, billable }
    }

    /// Returns the first interpretation of the vendor's counts that the request allows, or the last one if it allows
    /// none.
    fn possible(&self, first: Usage, others: &[Option<Usage>], output_max: u64) -> Usage {
        let mut last = first;
        for read in std::iter::once(first).chain(others.iter().copied().flatten()) {
            if read.input_total() <= self.input_limit && read.output_total() <= output_max {
                return read;
            }
            last = read;
        }
        last
    }

    /// Reduces the tool calls to what the hold covers, and returns whether they were reduced. Cache writes whose
    /// lifetime the vendor has not reported are counted in the most expensive class that the request may use.
    fn count_classes(&self, usage: &mut Usage, reading: &Reading) -> bool {
        // If the vendor uses another format than the caller, the caller's cache marks are not sent. So the vendor
        // writes no cache entries with a longer lifetime.
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

/// The largest plausible number of tool calls in a call whose request offers no tools.
const UNASKED_CALLS_MAX: u64 = 100;

/// The state of a call's meter, as recorded by the layers below the layer `reserve`.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The vendor of the current or the last attempt.
    pub vendor: Option<Arc<str>>,
    /// The vendor's name for the model; `None` if no vendor's prices are configured.
    pub vendor_model: Option<Arc<str>>,
    /// Whether the vendor uses another format than the caller.
    pub translated: bool,
    /// Whether the vendor's stream is read to its end after a client disconnect.
    pub outlives_client: bool,
    /// Whether the client has disconnected and the gateway reads the vendor's response to its end anyway.
    pub client_gone: bool,
    /// Whether the request was sent to a vendor, which may have processed the input.
    pub dispatched: bool,
    /// The usage that the vendor reported last.
    pub usage: Option<Usage>,
    /// Other interpretations of the vendor's counts, if the counts contradict each other. The first interpretation that
    /// the request allows is charged.
    pub others: [Option<Usage>; 2],
    /// The part of `usage.cache_write` that the vendor reported with the default cache lifetime.
    pub cache_write_usual: u64,
    /// The part of the output tokens in `usage` that the vendor reported as reasoning.
    pub reasoning: u64,
    /// How the vendor served the call, according to its response.
    pub served: Served,
    /// Whether the output tokens in `usage` are a final count. A stream in the Messages format begins with a
    /// preliminary number.
    pub output_counted: bool,
    /// Whether the vendor reported usage that it bills separately and that has no rate class in this version of the
    /// gateway.
    pub unknown: bool,
    /// Whether a part of the reported usage was implausible and was repaired.
    pub suspect: bool,
    /// Whether the vendor has answered, but with a response that is too large to pass on. Such a response is charged as
    /// if it were delivered; otherwise a caller could avoid payment by requesting very long responses.
    pub answered: bool,
    /// When the head of the vendor's response arrived, in Unix milliseconds; `None` until then.
    pub first_byte_at_ms: Option<u64>,
    /// How many UTF-8 bytes of text, reasoning and tool arguments have arrived so far.
    pub text_bytes: u64,
    /// The estimated number of tokens in the bytes that `text_bytes` counts.
    pub text_tokens: u64,
    /// Whether all text has arrived and only the vendor's usage report is missing.
    pub usage_due: bool,
    /// How the vendor's response ended; `None` until then.
    pub end: Option<End>,
    /// Why the call's hold could not be raised, so that the gateway must stop the call; `None` if it need not.
    pub stopped_by: Option<StoppedBy>,
    /// The call's timing so far; `None` if it is not recorded.
    pub timeline: Option<Timeline>,
}

/// The vendor of an attempt that is about to begin.
#[derive(Clone, Debug)]
pub struct Attempted {
    /// The vendor's name.
    pub vendor: Arc<str>,
    /// The vendor's name for the model; `None` if no vendor's prices are configured.
    pub model: Option<Arc<str>>,
    /// Whether the vendor uses another format than the caller.
    pub translated: bool,
    /// Whether the vendor's stream is read to its end after a client disconnect.
    pub outlives_client: bool,
}

/// The meter of one call. The layer `select` creates it with the call's price, the layers below the layer `reserve`
/// write it, and `reserve` reads it. So the usage is known even if the call's future is dropped at any await.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    reading: Mutex<Reading>,
    bounds: OnceLock<Bounds>,
}

impl Meter {
    /// Sets the limits of the usage that the call may be charged for. The layer `reserve` calls this once.
    pub fn charge_within(&self, bounds: Bounds) {
        // A call has only one hold, so the limits are set only once.
        let _ = self.0.bounds.set(bounds);
    }

    /// Returns the limits of the usage that the call may be charged for; `None` until they are set.
    #[must_use]
    pub fn bounds(&self) -> Option<&Bounds> {
        self.0.bounds.get()
    }

    /// Returns the usage that the call is charged for if nothing more arrives. `None` if no money is held for the call,
    /// or if the call is not charged by tokens.
    #[must_use]
    pub fn counted(&self) -> Option<Counted> {
        let bounds = self.0.bounds.get()?;
        Some(self.look(|reading| bounds.count(reading)))
    }

    /// Returns the usage that the call is charged for if its response ends with `end`.
    #[must_use]
    pub fn counted_at(&self, end: End) -> Option<Counted> {
        let bounds = self.0.bounds.get()?;
        let reading = Reading {
            end: Some(end),
            ..self.read()
        };
        Some(bounds.count(&reading))
    }

    /// Returns a copy of the meter's state.
    #[must_use]
    pub fn read(&self) -> Reading {
        self.lock().clone()
    }

    /// Calls `look` with the meter's state, without copying it.
    pub fn look<T>(&self, look: impl FnOnce(&Reading) -> T) -> T {
        look(&self.lock())
    }

    /// Starts an attempt. Drops the usage of an earlier attempt, for which the caller does not pay.
    pub fn attempt(&self, attempted: Attempted) {
        let mut reading = self.lock();
        reading.vendor = Some(attempted.vendor);
        reading.vendor_model = attempted.model;
        reading.translated = attempted.translated;
        reading.outlives_client = attempted.outlives_client;
        start_again(&mut reading);
    }

    /// Records that the request is being sent to a vendor.
    pub fn dispatched(&self) {
        self.lock().dispatched = true;
    }

    /// Records that the vendor refused the request before it did any work: nothing was used.
    pub fn refused(&self) {
        start_again(&mut self.lock());
    }

    /// Records that the vendor's response is an error: nothing was used, unless the vendor has reported usage or has
    /// already answered.
    pub fn failed(&self) {
        let used = |reading: &Reading| {
            reading.answered || reading.usage.is_some_and(|usage| !usage.is_zero())
        };
        if !self.look(used) {
            self.refused();
        }
    }

    /// Changes several fields under one lock.
    pub fn update(&self, change: impl FnOnce(&mut Reading)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        // A panic under this lock leaves valid numbers, so poisoning is ignored.
        let reading = self.0.reading.lock();
        reading.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops the usage of an attempt, and keeps what is known about the attempt and its call.
fn start_again(reading: &mut Reading) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preliminary_usage_is_not_charged_as_final_usage() {
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
                text_tokens: 100,
                end: Some(End::Finished),
                ..Reading::default()
            });
            assert_eq!(counted.usage.output, output);
            assert_eq!(counted.estimated, !output_counted);
        }
    }

    #[test]
    fn ambiguous_usage_is_charged_by_the_first_interpretation_that_the_request_allows() {
        let bounds = Bounds {
            input_bound: 100,
            input_limit: 150,
            output_bound: 50,
            output_limit: 60,
            ..Bounds::default()
        };
        let usage = |input: u64, output: u64| Usage {
            input,
            output,
            ..Usage::default()
        };
        let of_both = |first, second, third| [Some(first), Some(second), Some(third)];
        // The columns are: the readings, the charged usage, and the usage that was cut off.
        for (readings, charged, cut) in [
            (
                of_both(usage(9, 50), usage(58, 1), usage(9, 1)),
                usage(9, 50),
                None,
            ),
            (
                of_both(usage(9, 51), usage(59, 1), usage(9, 1)),
                usage(59, 1),
                None,
            ),
            // No interpretation explains the reported total, so the surplus is cut off.
            (
                of_both(usage(9, 151), usage(159, 1), usage(9, 1)),
                usage(9, 1),
                Some(usage(9, 60)),
            ),
            (
                of_both(usage(9, 151), usage(159, 1), usage(9, 55)),
                usage(9, 50),
                Some(usage(9, 60)),
            ),
            // If the vendor's counts contradict each other, the call is charged at most what its hold covers.
            (
                [Some(usage(101, 1)), None, None],
                usage(100, 1),
                Some(usage(101, 1)),
            ),
            (
                [Some(usage(1 << 60, 1 << 60)), None, None],
                usage(100, 50),
                Some(usage(150, 60)),
            ),
        ] {
            let [first, second, third] = readings;
            let counted = bounds.count(&Reading {
                usage: first,
                others: [second, third],
                suspect: true,
                output_counted: true,
                end: Some(End::Finished),
                ..Reading::default()
            });
            assert_eq!(
                (counted.usage, counted.estimated),
                (charged, true),
                "{readings:?}"
            );
            let billable = counted.overcount.map(|cut| cut.billable);
            assert_eq!(billable, cut, "{readings:?}");
            let reported = counted.overcount.map(|cut| cut.reported);
            assert_eq!(reported, first.filter(|_| cut.is_some()), "{readings:?}");
        }
    }

    #[test]
    fn estimated_output_is_at_most_what_the_request_allowed() {
        let bounds = Bounds {
            input_bound: 100,
            input_limit: 150,
            input_estimate: Some(Arc::new(InputEstimate {
                tokens: 20,
                ..InputEstimate::default()
            })),
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
            let reading = Reading {
                text_tokens: 100,
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
    fn output_beyond_a_growing_hold_is_not_charged_until_the_hold_is_raised() {
        let covered = Arc::new(CoveredOutput::new(100, 30));
        let bounds = Bounds {
            input_bound: 100,
            input_limit: 150,
            output_bound: 50,
            output_limit: 60,
            growing: Some(Arc::clone(&covered)),
            ..Bounds::default()
        };
        let counted = |usage: Option<Usage>| {
            bounds.count(&Reading {
                usage,
                output_counted: usage.is_some(),
                text_tokens: 80,
                end: Some(End::Finished),
                ..Reading::default()
            })
        };
        let usage = Usage {
            input: 5,
            output: 45,
            ..Usage::default()
        };
        for (raised_to, output) in [(30, 30), (20, 30), (40, 40), (90, 50)] {
            covered.raise_to(raised_to);
            assert_eq!(counted(None).usage.output, output);
            let reported = counted(Some(usage));
            assert_eq!(reported.usage.output, output.min(45));
            assert_eq!(reported.overcount.is_some(), output < 45);
        }
    }

    #[test]
    fn output_without_a_count_is_estimated_in_the_requested_class() {
        let bounds = Bounds {
            input_bound: 100,
            input_limit: 150,
            input_estimate: Some(Arc::new(InputEstimate {
                tokens: 20,
                sound: 15,
                cached: 0,
            })),
            output_bound: 50,
            output_limit: 60,
            output_class: Some(Class::OutputAudio),
            ..Bounds::default()
        };
        let counted = bounds.count(&Reading {
            text_tokens: 10,
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
    fn new_attempt_and_refusal_reset_the_usage_but_only_a_new_attempt_changes_the_vendor() {
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
    fn end_reason_has_the_same_name_in_json_and_text() {
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
    fn stop_reason_has_the_same_name_in_json_and_text() {
        for reason in StoppedBy::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
            assert_eq!(StoppedBy::from_word(reason.as_str()), Some(reason));
        }
        assert_eq!(StoppedBy::from_word("weather"), None);
    }

    #[test]
    fn usage_above_the_limits_is_reduced_to_them_in_every_class() {
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
    fn token_counts_whose_sum_overflows_are_reduced_to_the_limits() {
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

//! Usage in the responses format: the input includes cached tokens, and the output includes reasoning.

use serde_json::value::RawValue;

use crate::{
    price::Class,
    usage::Usage,
    vendor_usage::{counts, responses_usage},
};

/// The usage of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All input tokens, including those read from the cache or written to it.
    pub(super) input: u64,
    pub(super) cached: u64,
    pub(super) written: u64,
    /// All output tokens, including reasoning.
    pub(super) output: u64,
    pub(super) reasoning: u64,
}

impl Counts {
    /// Reads the usage of a responses answer, with the code that also reads it for the charge. `None` if it counts
    /// nothing.
    pub(super) fn read(usage: &RawValue) -> Option<Self> {
        let counted = responses_usage(usage.get())?;
        let [details] = crate::json::members(usage.get(), &["output_tokens_details"]).ok()?;
        let reasoning = details
            .and_then(|json| counts(json, &["reasoning_tokens"]))
            .and_then(|[reasoning]| reasoning.tokens);
        Some(Self::of_usage(&counted.usage, reasoning))
    }

    /// Converts a usage by rate class and its reasoning tokens to the counts of this format.
    pub(super) fn of_usage(usage: &Usage, reasoning: Option<u64>) -> Self {
        let classes = usage.classes;
        let written = usage
            .cache_write
            .saturating_add(classes.get(Class::CacheWrite1h))
            .saturating_add(classes.get(Class::CacheWrite12h));
        let fresh = usage
            .input
            .saturating_add(classes.get(Class::InputAudio))
            .saturating_add(classes.get(Class::InputImage));
        let output = usage.output_total();
        Self {
            input: fresh
                .saturating_add(usage.cached_input)
                .saturating_add(written),
            cached: usage.cached_input,
            written,
            output,
            reasoning: reasoning.unwrap_or(0).min(output),
        }
    }

    /// Returns the object `usage` of the responses format.
    pub(super) fn json(&self) -> String {
        let Self {
            input,
            cached,
            written,
            output,
            reasoning,
        } = self;
        let total = input.saturating_add(*output);
        format!(
            "{{\"input_tokens\":{input},\"input_tokens_details\":{{\"cached_tokens\":{cached},\
             \"cache_write_tokens\":{written}}},\"output_tokens\":{output},\
             \"output_tokens_details\":{{\"reasoning_tokens\":{reasoning}}},\"total_tokens\":{total}}}"
        )
    }

    /// Returns the input tokens that were neither read from the cache nor written to it.
    pub(super) const fn fresh(&self) -> u64 {
        self.input - self.cached - self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(usage: &str) -> Counts {
        Counts::read(&RawValue::from_string(usage.to_owned()).unwrap()).unwrap()
    }

    #[test]
    fn callers_see_the_charged_usage() {
        let usual = r#"{"input_tokens":100,"input_tokens_details":{"cached_tokens":40,"cache_write_tokens":10},
            "output_tokens":30,"output_tokens_details":{"reasoning_tokens":20},"total_tokens":130}"#;
        let counts = read(usual);
        assert_eq!(
            (counts.input, counts.cached, counts.written, counts.fresh()),
            (100, 40, 10, 50)
        );
        assert_eq!((counts.output, counts.reasoning), (30, 20));
        // Some vendors report reasoning in addition to the output.
        let beside = r#"{"input_tokens":10,"output_tokens":5,"total_tokens":115,
            "output_tokens_details":{"reasoning_tokens":100}}"#;
        let counts = read(beside);
        assert_eq!((counts.output, counts.reasoning), (105, 100));
        assert!(Counts::read(&RawValue::from_string("{}".to_owned()).unwrap()).is_none());
    }

    #[test]
    fn one_hour_cache_writes_are_part_of_the_input() {
        let mut usage = Usage {
            input: 1000,
            ..Usage::default()
        };
        *usage.classes.get_mut(Class::CacheWrite1h) = 4000;
        let counts = Counts::of_usage(&usage, None);
        assert_eq!((counts.input, counts.written), (5000, 4000));
    }
}

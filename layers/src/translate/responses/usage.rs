//! Token counts as the responses format has them: the cache inside the input, reasoning inside the output.

use serde_json::value::RawValue;

use crate::{
    price::Class,
    usage::Usage,
    vendor_usage::{Count, counts},
};

/// What an answer used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All of the input, cached and written too.
    pub(super) input: u64,
    pub(super) cached: u64,
    pub(super) written: u64,
    /// All of the output, reasoning too.
    pub(super) output: u64,
    pub(super) reasoning: u64,
}

impl Counts {
    /// Reads a responses answer's usage. `None` if it counts nothing.
    pub(super) fn read(usage: &RawValue) -> Option<Self> {
        const DETAILS: [&str; 2] = ["input_tokens_details", "output_tokens_details"];
        let [input, output] = counts(usage.get(), &["input_tokens", "output_tokens"])?;
        if input.tokens.is_none() && output.tokens.is_none() {
            return None;
        }
        let [of_input, of_output] = crate::json::members(usage.get(), &DETAILS).ok()?;
        let none = [Count::default(); 2];
        let [cached, written] = of_input
            .and_then(|json| counts(json, &["cached_tokens", "cache_write_tokens"]))
            .unwrap_or(none);
        let [reasoning, _] = of_output
            .and_then(|json| counts(json, &["reasoning_tokens", "text_tokens"]))
            .unwrap_or(none);
        let tokens = |count: Count| count.tokens.unwrap_or(0);
        let (input, output) = (tokens(input), tokens(output));
        let cached = tokens(cached).min(input);
        Some(Self {
            input,
            cached,
            written: tokens(written).min(input - cached),
            output,
            reasoning: tokens(reasoning).min(output),
        })
    }

    /// What stands in a chat answer.
    pub(super) fn of_usage(usage: &Usage, reasoning: Option<u64>) -> Self {
        let classes = usage.classes;
        let written = usage
            .cache_write
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

    /// As the responses format writes them.
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

    /// What is neither cached nor written.
    pub(super) const fn fresh(&self) -> u64 {
        self.input - self.cached - self.written
    }
}

//! Translates token counts from the messages format to the chat format.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    json::members,
    price::Class,
    vendor_usage::{MessagesUsage, counts},
};

/// Counts of a messages answer, read as they are charged. Cumulative: a later event replaces the counts of an earlier
/// one. Invalid counts are ignored: the meter has marked them as suspect, and the answer continues.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::translate) struct Counts {
    usage: MessagesUsage,
    /// Thinking tokens, which are part of the output and not charged separately.
    thinking: Option<u64>,
}

impl Counts {
    /// Applies the counts of the newest `usage`.
    pub(in crate::translate) fn replace_by(&mut self, usage: &RawValue) {
        if let Some(newer) = MessagesUsage::of(usage.get()) {
            self.usage.replace_by(newer);
        }
        self.thinking = thinking(usage.get()).or(self.thinking);
    }

    /// Input, cache writes, cache reads, output, and the thinking tokens within the output.
    pub(in crate::translate) fn parts(&self) -> [u64; 5] {
        let counts = self.usage.counts().unwrap_or_default();
        let usage = counts.usage;
        [
            usage.input,
            // The chat format does not distinguish cache lifetimes.
            usage
                .cache_write
                .saturating_add(usage.classes.get(Class::CacheWrite1h)),
            usage.cached_input,
            usage.output,
            self.thinking.unwrap_or_default(),
        ]
    }

    /// The counts in the chat format, where the prompt includes the cache and the completion includes the reasoning.
    pub(in crate::translate) fn chat(&self) -> ChatUsage {
        let [
            input,
            cache_write_tokens,
            cached_tokens,
            completion_tokens,
            thinking,
        ] = self.parts();
        let prompt_tokens = input
            .saturating_add(cache_write_tokens)
            .saturating_add(cached_tokens);
        ChatUsage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptDetails {
                cached_tokens,
                cache_write_tokens,
            },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: thinking.min(completion_tokens),
            },
        }
    }
}

/// The object `usage` of a chat answer.
#[derive(Debug, Serialize)]
pub(in crate::translate) struct ChatUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Debug, Serialize)]
struct CompletionDetails {
    reasoning_tokens: u64,
}

/// Thinking tokens within the output, if the vendor reports them.
fn thinking(usage: &str) -> Option<u64> {
    let [details] = members(usage, &["output_tokens_details"]).ok()?;
    let [thinking] = counts(details?, &["thinking_tokens"])?;
    thinking.tokens
}

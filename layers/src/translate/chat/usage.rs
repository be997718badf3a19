//! Translates token counts from the messages format to the chat format.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    json::members,
    price::Class,
    vendor_usage::{MessagesUsage, counts},
};

/// The usage of a messages answer, read in the same way as for the charge. Counts are cumulative: those of a later
/// event replace those of an earlier event. Invalid counts are ignored here; the meter has marked them as suspect.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::translate) struct Counts {
    usage: MessagesUsage,
    /// Thinking tokens, which are a part of the output and have no price of their own.
    thinking: Option<u64>,
}

impl Counts {
    /// Replaces the counts by those of a newer `usage`.
    pub(in crate::translate) fn replace_by(&mut self, usage: &RawValue) {
        if let Some(newer) = MessagesUsage::of(usage.get()) {
            self.usage.replace_by(newer);
        }
        self.thinking = thinking(usage.get()).or(self.thinking);
    }

    /// Returns the tokens: input, cache writes, cache reads, output, and the thinking within the output.
    pub(in crate::translate) fn parts(&self) -> [u64; 5] {
        let counts = self.usage.counts().unwrap_or_default();
        let usage = counts.usage;
        [
            usage.input,
            // The chat format does not distinguish the lifetimes of cache writes.
            usage
                .cache_write
                .saturating_add(usage.classes.get(Class::CacheWrite1h)),
            usage.cached_input,
            usage.output,
            self.thinking.unwrap_or_default(),
        ]
    }

    /// Returns the counts in the chat format: its prompt includes cached tokens, and its completion includes reasoning.
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

/// Returns the thinking tokens within the output, if the vendor reports them.
fn thinking(usage: &str) -> Option<u64> {
    let [details] = members(usage, &["output_tokens_details"]).ok()?;
    let [thinking] = counts(details?, &["thinking_tokens"])?;
    thinking.tokens
}

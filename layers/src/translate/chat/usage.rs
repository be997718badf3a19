//! Token counts, from the messages format's to the chat format's.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    json::members,
    price::Class,
    vendor_usage::{MessagesUsage, counts},
};

/// What a messages answer counts, read as it is charged. Cumulative: what a later event repeats replaces what an earlier
/// one said. What is no count is left out: the meter has called it suspect, and the answer goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::translate) struct Counts {
    usage: MessagesUsage,
    /// How much of the output was thinking, for which nothing is charged beside it.
    thinking: Option<u64>,
}

impl Counts {
    /// Takes the counts of the newest `usage`.
    pub(in crate::translate) fn replace_by(&mut self, usage: &RawValue) {
        if let Some(newer) = MessagesUsage::of(usage.get()) {
            self.usage.replace_by(newer);
        }
        self.thinking = thinking(usage.get()).or(self.thinking);
    }

    /// Input, written to the cache, read from it, output, and how much of that was thinking.
    pub(in crate::translate) fn parts(&self) -> [u64; 5] {
        let counts = self.usage.counts().unwrap_or_default();
        let usage = counts.usage;
        [
            usage.input,
            // That format tells no lifetimes apart.
            usage
                .cache_write
                .saturating_add(usage.classes.get(Class::CacheWrite1h)),
            usage.cached_input,
            usage.output,
            self.thinking.unwrap_or_default(),
        ]
    }

    /// The same, as the chat format counts: the cache inside the prompt, the reasoning inside the
    /// completion.
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

/// `usage` of a chat answer.
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

/// The thinking inside the output, if the vendor says.
fn thinking(usage: &str) -> Option<u64> {
    let [details] = members(usage, &["output_tokens_details"]).ok()?;
    let [thinking] = counts(details?, &["thinking_tokens"])?;
    thinking.tokens
}

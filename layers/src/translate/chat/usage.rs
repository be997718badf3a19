//! Token counts, from the messages format's to the chat format's.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::vendor_usage::Count;

/// What a messages answer counts. Cumulative: what a later event repeats replaces what an earlier one
/// said. What is no count is left out: the meter has called it suspect, and the answer goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::translate) struct Counts {
    input: Option<u64>,
    cache_write: Option<u64>,
    cache_read: Option<u64>,
    output: Option<u64>,
    thinking: Option<u64>,
}

impl Counts {
    /// Takes the counts of the newest `usage`.
    pub(in crate::translate) fn replace_by(&mut self, usage: &RawValue) {
        let newer: MessagesUsage<'_> = serde_json::from_str(usage.get()).unwrap_or_default();
        let details = newer.output_tokens_details.map(|details| details.get());
        let details: Details<'_> = details
            .and_then(|details| serde_json::from_str(details).ok())
            .unwrap_or_default();
        for (old, new) in [
            (&mut self.input, newer.input_tokens),
            (&mut self.cache_write, newer.cache_creation_input_tokens),
            (&mut self.cache_read, newer.cache_read_input_tokens),
            (&mut self.output, newer.output_tokens),
            (&mut self.thinking, details.thinking_tokens),
        ] {
            // As the meter reads them: some write 5.0.
            *old = new
                .and_then(|count| Count::of(count.get())?.tokens)
                .or(*old);
        }
    }

    /// Input, written to the cache, read from it, output, and how much of that was thinking.
    pub(in crate::translate) fn parts(&self) -> [u64; 5] {
        let Self {
            input,
            cache_write,
            cache_read,
            output,
            thinking,
        } = *self;
        [input, cache_write, cache_read, output, thinking].map(Option::unwrap_or_default)
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
        ] = [
            self.input,
            self.cache_write,
            self.cache_read,
            self.output,
            self.thinking,
        ]
        .map(Option::unwrap_or_default);
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

#[derive(Default, Deserialize)]
#[serde(default)]
struct MessagesUsage<'a> {
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_creation_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_read_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens_details: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details<'a> {
    #[serde(borrow)]
    thinking_tokens: Option<&'a RawValue>,
}

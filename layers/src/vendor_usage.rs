//! Usage as vendors write it: counts that may be missing, null or nonsense.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::usage::Usage;

/// What a vendor said that an answer used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VendorUsage {
    /// By rate class.
    pub usage: Usage,
    /// Of the output, what was reasoning, if the vendor says.
    pub reasoning: Option<u64>,
    /// Something is missing or contradicts itself.
    pub suspect: bool,
}

/// A count: absent, null, or a number. Anything else is suspect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// The number, if it is one of tokens.
    pub tokens: Option<u64>,
    /// There is something, and it is no number of tokens.
    pub suspect: bool,
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Value::deserialize(deserializer)? {
            Value::Null => Self::default(),
            Value::Number(number) => {
                // Some write 5.0.
                let text = number.to_string();
                let tokens = text.strip_suffix(".0").unwrap_or(&text).parse().ok();
                Self {
                    tokens,
                    suspect: tokens.is_none(),
                }
            }
            _ => Self {
                tokens: None,
                suspect: true,
            },
        })
    }
}

/// Reads the `usage` object of a chat answer, JSON, where cached and cache-written tokens stand inside
/// the prompt. `None` if it is no such object or counts nothing.
#[must_use]
pub fn chat_usage(json: &str) -> Option<VendorUsage> {
    let usage: ChatUsage = serde_json::from_str(json).ok()?;
    if usage.prompt_tokens.tokens.is_none() && usage.completion_tokens.tokens.is_none() {
        return None;
    }
    Some(usage.read())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatUsage {
    prompt_tokens: Count,
    completion_tokens: Count,
    total_tokens: Count,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
    /// One vendor's name for cached tokens.
    prompt_cache_hit_tokens: Count,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Count,
    cache_write_tokens: Count,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: Count,
}

impl ChatUsage {
    fn read(self) -> VendorUsage {
        let PromptDetails {
            cached_tokens,
            cache_write_tokens,
        } = self.prompt_tokens_details.unwrap_or_default();
        let details = self.completion_tokens_details.unwrap_or_default();
        let reasoning = details.reasoning_tokens.tokens.filter(|tokens| *tokens > 0);
        let prompt = self.prompt_tokens.tokens.unwrap_or(0);
        let mut output = self.completion_tokens.tokens.unwrap_or(0);
        let sum = prompt.saturating_add(output);
        let contradicted = match (self.total_tokens.tokens, reasoning) {
            (None, _) => false,
            (Some(total), _) if total == sum => false,
            // One vendor reports reasoning beside the completion; its total gives it away.
            (Some(total), Some(beside)) if total == sum.saturating_add(beside) => {
                output = output.saturating_add(beside);
                false
            }
            (Some(_), _) => true,
        };
        let cached = cached_tokens
            .tokens
            .or(self.prompt_cache_hit_tokens.tokens)
            .unwrap_or(0);
        let written = cache_write_tokens.tokens.unwrap_or(0);
        let cached_input = cached.min(prompt);
        let cache_write = written.min(prompt - cached_input);
        let input = prompt - cached_input - cache_write;
        VendorUsage {
            usage: Usage {
                input,
                cached_input,
                cache_write,
                output,
            },
            reasoning,
            suspect: contradicted
                || self.prompt_tokens.tokens.is_none()
                || self.completion_tokens.tokens.is_none()
                || cached_tokens.suspect
                || cache_write_tokens.suspect
                || cached_input != cached
                || cache_write != written,
        }
    }
}

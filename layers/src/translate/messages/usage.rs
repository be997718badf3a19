//! Usage: the chat format counts what was read from and written to the cache inside the prompt, the
//! messages format beside the input.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::usage::Usage;

/// Bytes of text for one token where a vendor never says.
const BYTES_PER_TOKEN: u64 = 4;

/// What an answer used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    usage: Usage,
    /// How much of the output was thinking, if the vendor says.
    thinking: Option<u64>,
}

impl Tally {
    /// Reads a chat answer's usage. `None` if it says nothing.
    pub(super) fn read(usage: &RawValue) -> Option<Self> {
        let usage: ChatUsage = serde_json::from_str(usage.get()).ok()?;
        if usage.prompt_tokens.0.is_none() && usage.completion_tokens.0.is_none() {
            return None;
        }
        Some(usage.tally())
    }

    /// What an answer of so many bytes of text comes to, where the vendor never says.
    pub(super) fn estimated(text_bytes: u64) -> Self {
        let output = text_bytes.div_ceil(BYTES_PER_TOKEN);
        Self {
            usage: Usage {
                output,
                ..Usage::default()
            },
            thinking: None,
        }
    }
}

/// As the messages format writes it.
impl Serialize for Tally {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written {
            input_tokens: u64,
            cache_creation_input_tokens: u64,
            cache_read_input_tokens: u64,
            output_tokens: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            output_tokens_details: Option<Details>,
        }
        #[derive(Serialize)]
        struct Details {
            thinking_tokens: u64,
        }
        let Self { usage, thinking } = *self;
        let details = |thinking_tokens| Details { thinking_tokens };
        Written {
            input_tokens: usage.input,
            cache_creation_input_tokens: usage.cache_write,
            cache_read_input_tokens: usage.cached_input,
            output_tokens: usage.output,
            output_tokens_details: thinking.map(details),
        }
        .serialize(serializer)
    }
}

/// A count as vendors write it: a number, or something else, which counts as left out.
#[derive(Clone, Copy, Debug, Default)]
struct Count(Option<u64>);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Ok(Self(raw.get().parse().ok()))
    }
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
    /// The same classes as the call is charged by.
    fn tally(self) -> Tally {
        let prompt = self.prompt_tokens.0.unwrap_or(0);
        let mut output = self.completion_tokens.0.unwrap_or(0);
        let details = self.prompt_tokens_details.unwrap_or_default();
        let cached = details.cached_tokens.0.or(self.prompt_cache_hit_tokens.0);
        let cached_input = cached.unwrap_or(0).min(prompt);
        let cache_write = details.cache_write_tokens.0.unwrap_or(0);
        let cache_write = cache_write.min(prompt - cached_input);
        let thinking = self
            .completion_tokens_details
            .and_then(|details| details.reasoning_tokens.0)
            .filter(|tokens| *tokens > 0);
        // One vendor reports reasoning beside the completion; its total gives it away.
        if let (Some(beside), Some(total)) = (thinking, self.total_tokens.0) {
            let sum = prompt
                .checked_add(output)
                .and_then(|sum| sum.checked_add(beside));
            if sum == Some(total) {
                output += beside;
            }
        }
        Tally {
            usage: Usage {
                input: prompt - cached_input - cache_write,
                cached_input,
                cache_write,
                output,
            },
            thinking,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(usage: &str) -> Value {
        let raw = serde_json::from_str(usage).unwrap();
        serde_json::to_value(Tally::read(raw)).unwrap()
    }

    #[test]
    fn case_57_the_cache_leaves_the_prompt_and_nothing_goes_below_zero() {
        for (usage, [input, write, read_, output]) in [
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}"#,
                [10, 0, 0, 5],
            ),
            (
                r#"{"prompt_tokens":4020,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":4012}}"#,
                [8, 4012, 0, 8],
            ),
            (
                r#"{"prompt_tokens":12,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":11}}"#,
                [1, 0, 11, 1],
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_cache_hit_tokens":4}"#,
                [6, 0, 4, 5],
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":11,"cache_write_tokens":7}}"#,
                [0, 0, 10, 5],
            ),
            (
                r#"{"prompt_tokens":10,"completion_tokens":-3,"prompt_tokens_details":null}"#,
                [10, 0, 0, 0],
            ),
        ] {
            assert_eq!(
                read(usage),
                json!({"input_tokens": input, "cache_creation_input_tokens": write,
                       "cache_read_input_tokens": read_, "output_tokens": output}),
                "{usage}"
            );
        }
        for nothing in ["{}", "7", r#"{"prompt_tokens":null}"#] {
            assert_eq!(read(nothing), Value::Null);
        }
    }

    #[test]
    fn case_58_reasoning_is_in_the_output_once() {
        for (usage, output) in [
            (
                r#"{"prompt_tokens":18,"completion_tokens":345,"total_tokens":363,"completion_tokens_details":{"reasoning_tokens":315}}"#,
                345,
            ),
            // Beside the completion, as its total says.
            (
                r#"{"prompt_tokens":18,"completion_tokens":30,"total_tokens":363,"completion_tokens_details":{"reasoning_tokens":315}}"#,
                345,
            ),
        ] {
            let read = read(usage);
            assert_eq!(read["output_tokens"], output);
            assert_eq!(
                read["output_tokens_details"],
                json!({"thinking_tokens": 315})
            );
        }
    }
}

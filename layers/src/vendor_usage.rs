//! Usage as vendors write it: counts that may be missing, null or nonsense.

use serde::{Deserialize, Deserializer};
use serde_json::{Number, Value};

use crate::{json::members, usage::Usage};

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

/// Whether what an answer has as its `error`, in JSON, is one. Some vendors write an empty one into each answer.
#[must_use]
pub fn is_error(error: &str) -> bool {
    !matches!(error, "null" | "\"\"" | "{}" | "false")
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
            Value::Number(number) => Self::of_number(&number),
            _ => Self::NONSENSE,
        })
    }
}

impl Count {
    const NONSENSE: Self = Self {
        tokens: None,
        suspect: true,
    };

    /// A value of checked JSON. `None` of a number that no type holds.
    pub(crate) fn of(json: &str) -> Option<Self> {
        if let Ok(tokens) = json.parse::<u64>() {
            return Some(Self {
                tokens: Some(tokens),
                suspect: false,
            });
        }
        match json.as_bytes() {
            b"null" => Some(Self::default()),
            [b'-' | b'0'..=b'9', ..] => {
                let number = json.parse::<Number>().ok()?;
                Some(Self::of_number(&number))
            }
            _ => Some(Self::NONSENSE),
        }
    }

    fn of_number(number: &Number) -> Self {
        // Some write 5.0.
        let text = number.to_string();
        let tokens = text.strip_suffix(".0").unwrap_or(&text).parse().ok();
        Self {
            tokens,
            suspect: tokens.is_none(),
        }
    }
}

/// Reads the counts of these names off a JSON object. `None` if it is no object, has one of them twice, or
/// a number that no type holds.
#[must_use]
pub fn counts<const N: usize>(json: &str, names: &[&str; N]) -> Option<[Count; N]> {
    let mut counts = [Count::default(); N];
    for (count, value) in counts.iter_mut().zip(members(json, names).ok()?) {
        if let Some(value) = value {
            *count = Count::of(value)?;
        }
    }
    Some(counts)
}

/// The same of an object that may be missing, or null.
fn details<const N: usize>(json: Option<&str>, names: &[&str; N]) -> Option<[Count; N]> {
    match json {
        None | Some("null") => Some([Count::default(); N]),
        Some(json) => counts(json, names),
    }
}

/// Reads the `usage` object of a chat answer, JSON, where cached and cache-written tokens stand inside
/// the prompt. `None` if it is no such object or counts nothing.
#[must_use]
pub fn chat_usage(json: &str) -> Option<VendorUsage> {
    let usage = ChatUsage::of(json)?;
    if usage.prompt_tokens.tokens.is_none() && usage.completion_tokens.tokens.is_none() {
        return None;
    }
    Some(usage.read())
}

#[derive(Clone, Copy, Debug)]
struct ChatUsage {
    prompt_tokens: Count,
    completion_tokens: Count,
    total_tokens: Count,
    /// One vendor's name for cached tokens.
    prompt_cache_hit_tokens: Count,
    cached_tokens: Count,
    cache_write_tokens: Count,
    reasoning_tokens: Count,
}

impl ChatUsage {
    fn of(json: &str) -> Option<Self> {
        const NAMES: [&str; 6] = [
            "prompt_tokens",
            "completion_tokens",
            "total_tokens",
            "prompt_cache_hit_tokens",
            "prompt_tokens_details",
            "completion_tokens_details",
        ];
        let [prompt, completion, total, hit, of_prompt, of_completion] =
            members(json, &NAMES).ok()?;
        let [cached_tokens, cache_write_tokens] =
            details(of_prompt, &["cached_tokens", "cache_write_tokens"])?;
        let [reasoning_tokens] = details(of_completion, &["reasoning_tokens"])?;
        let count = |value: Option<&str>| value.map_or(Some(Count::default()), Count::of);
        Some(Self {
            prompt_tokens: count(prompt)?,
            completion_tokens: count(completion)?,
            total_tokens: count(total)?,
            prompt_cache_hit_tokens: count(hit)?,
            cached_tokens,
            cache_write_tokens,
            reasoning_tokens,
        })
    }

    fn read(self) -> VendorUsage {
        let Self {
            cached_tokens,
            cache_write_tokens,
            ..
        } = self;
        let reasoning = self.reasoning_tokens.tokens.filter(|tokens| *tokens > 0);
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
                ..Usage::default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_the_same_however_it_is_read() {
        for json in [
            "0",
            "5",
            "5.0",
            "5.00",
            "5e0",
            "5.5",
            "-0",
            "-1",
            "1e2",
            "1e16",
            "1e400",
            "18446744073709551615",
            "18446744073709551616",
            "null",
            "true",
            "\"5\"",
            "[5]",
            "{}",
        ] {
            let read = |count: Count| (count.tokens, count.suspect);
            assert_eq!(
                Count::of(json).map(read),
                serde_json::from_str::<Count>(json).ok().map(read),
                "{json}"
            );
        }
    }

    #[test]
    fn usage_that_is_no_object_of_counts_is_none() {
        for json in [
            "null",
            "[10,5,15]",
            "\"10\"",
            "{}",
            r#"{"prompt_tokens":null}"#,
            r#"{"prompt_tokens":1,"prompt_tokens":1}"#,
            r#"{"prompt_tokens":1e400,"completion_tokens":1}"#,
            r#"{"prompt_tokens":1,"prompt_tokens_details":5}"#,
            r#"{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":1,"cached_tokens":1}}"#,
        ] {
            assert_eq!(chat_usage(json), None, "{json}");
        }
        let usage = chat_usage(
            r#"{"prompt_tokens":10,"x":[{}],"completion_tokens":5.0,"prompt_tokens_details":null}"#,
        )
        .unwrap();
        assert_eq!((usage.usage.input, usage.usage.output), (10, 5));
        assert!(!usage.suspect);
    }
}

//! Translates usage from the chat format, whose prompt includes cache reads and writes, to the messages format, whose
//! input does not.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::{
    price::Class,
    usage::Usage,
    vendor_usage::{VendorUsage, chat_usage},
};

/// The usage of a chat answer, as it is reported to a messages caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::translate) struct Tally {
    usage: Usage,
    /// Thinking tokens within the output, if the vendor reports them.
    thinking: Option<u64>,
}

impl Tally {
    /// Reads the usage of a chat answer; `None` if it counts nothing.
    pub(in crate::translate) fn read(usage: &RawValue) -> Option<Self> {
        let VendorUsage {
            usage, reasoning, ..
        } = chat_usage(usage.get())?;
        Some(Self {
            usage,
            thinking: reasoning,
        })
    }

    /// Returns the newer of two usages; each of them counts the whole answer so far. Zeros after a usage with counts
    /// are ignored, as in the meter.
    pub(in crate::translate) fn latest(known: Option<Self>, newer: Option<Self>) -> Option<Self> {
        newer
            .filter(|newer| known.is_none() || !newer.usage.is_zero())
            .or(known)
    }

    /// Returns the usage, and the thinking tokens within the output.
    pub(in crate::translate) const fn parts(&self) -> (&Usage, Option<u64>) {
        (&self.usage, self.thinking)
    }
}

/// Serializes the usage in the messages format.
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
        let classes = usage.classes;
        let details = |thinking_tokens| Details { thinking_tokens };
        Written {
            // The messages format counts sound and images as ordinary input.
            input_tokens: usage.input
                + classes.get(Class::InputAudio)
                + classes.get(Class::InputImage),
            cache_creation_input_tokens: usage.cache_write
                + classes.get(Class::CacheWrite1h)
                + classes.get(Class::CacheWrite12h),
            cache_read_input_tokens: usage.cached_input,
            output_tokens: usage.output_total(),
            output_tokens_details: thinking.map(details),
        }
        .serialize(serializer)
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
                [3, 7, 11, 5],
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
            // The total shows that the vendor counts reasoning in addition to the completion.
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

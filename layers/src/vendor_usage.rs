//! Usage as vendors report it: counts may be missing, null or invalid. The readers of each format, in the folders of
//! `formats`, use these types.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};
use serde_json::{Number, Value};

#[cfg(all(test, feature = "passthrough"))]
pub(crate) use crate::formats::messages::usage::MessagesUsage;
pub use crate::formats::{
    chat::usage::{chat_usage, embeddings_usage},
    responses::usage::responses_usage,
};
use crate::{
    json::members,
    price::{Label, Served},
    usage::Usage,
};

/// The usage of a response as its vendor reported it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VendorUsage {
    /// The reported number of tokens in each rate class.
    pub usage: Usage,
    /// Further possible interpretations of the reported counts, if the counts do not add up to the reported total.
    pub others: [Option<Usage>; 2],
    /// The part of `cache_write` that the vendor reported for the default lifetime of its cache.
    pub cache_write_usual: u64,
    /// How the vendor served the call, according to the response: for example, the service tier.
    pub served: Served,
    /// Whether the vendor counted something that it bills separately and for which no rate class exists.
    pub unknown: bool,
    /// Reasoning tokens within the output, if the vendor reports them.
    pub reasoning: Option<u64>,
    /// Whether reported counts are missing or contradict each other.
    pub suspect: bool,
}

impl VendorUsage {
    /// Adds the `service_tier` of a response, given as JSON. In the Chat Completions format it is outside the `usage`.
    #[must_use]
    pub fn served_as(mut self, service_tier: Option<&str>) -> Self {
        if let Some(json) = service_tier {
            self.served.service_tier = tier(json);
        }
        self
    }
}

/// Reads the value of a `service_tier`, given as JSON.
pub(crate) fn tier(json: &str) -> Label {
    label(json).as_tier()
}

/// Returns the text of a JSON string. Empty for any other JSON value, and for a string with escapes.
pub(crate) fn label(json: &str) -> Label {
    let word = json
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    word.map(Label::new).unwrap_or_default()
}

/// Returns whether the `error` field of a response, given as JSON, reports an error. Some vendors add an empty `error`
/// to every response.
#[must_use]
pub fn is_error(error: &str) -> bool {
    !matches!(error, "null" | "\"\"" | "{}" | "false")
}

/// A count in a usage object: absent, null, or a number. Any other value is suspect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// The number of tokens; `None` if the value is absent or cannot be a number of tokens.
    pub tokens: Option<u64>,
    /// Whether the value is present and cannot be a number of tokens.
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

    /// Returns this count; if it is absent, returns `other`.
    pub(crate) const fn or(self, other: Self) -> Self {
        if self.tokens.is_some() || self.suspect {
            self
        } else {
            other
        }
    }

    /// Reads the count in a field of a usage object, which may be missing.
    pub(crate) fn in_field(json: Option<&str>) -> Option<Self> {
        json.map_or(Some(Self::default()), Self::of)
    }

    /// Reads a count from valid JSON. `None` if it is a number outside the range of every numeric type.
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
        // Some vendors write whole numbers with a fraction, for example 5.0.
        let text = number.to_string();
        let tokens = text.strip_suffix(".0").unwrap_or(&text).parse().ok();
        let suspect = tokens.is_none();
        Self { tokens, suspect }
    }
}

/// Reads the counts with these names from a JSON object. `None` if the text is not an object, if a name occurs twice,
/// or if a number is outside the range of every numeric type.
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

/// Reads the counts of an object. If the object is missing or null, the counts are absent.
pub(crate) fn details<const N: usize>(json: Option<&str>, names: &[&str; N]) -> Option<[Count; N]> {
    match json {
        None | Some("null") => Some([Count::default(); N]),
        Some(json) => counts(json, names),
    }
}

/// The number of calls of the tools that the vendor itself ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tools {
    pub(crate) web_searches: u64,
    /// Whether the vendor ran a tool for which no price exists.
    pub(crate) unknown: bool,
}

impl Tools {
    /// Reads the field `server_tool_use` of the Messages format. Some vendors of other formats send this field too.
    pub(crate) fn of(json: Option<&str>) -> Self {
        // Fetching a page has no price of its own; only the page's tokens are billed.
        Self::named(json, "web_search_requests", "web_fetch_requests")
    }

    /// Reads a field that contains only the number of web searches.
    pub(crate) fn searches(count: Count) -> Self {
        Self {
            web_searches: count.tokens.unwrap_or(0),
            unknown: count.suspect,
        }
    }

    /// Combines two reports of the same tool calls from different fields: the larger count is used.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            web_searches: self.web_searches.max(other.web_searches),
            unknown: self.unknown || other.unknown,
        }
    }

    /// Reads the number of calls of each tool. `searches` is the name of the web search count, and `free` the name of
    /// the count of a tool that is not billed.
    pub(crate) fn named(json: Option<&str>, searches: &str, free: &str) -> Self {
        let Some(json) = json.filter(|json| *json != "null") else {
            return Self::default();
        };
        let Ok(counts) = serde_json::from_str::<HashMap<String, Count>>(json) else {
            return Self {
                unknown: true,
                ..Self::default()
            };
        };
        let others = counts
            .iter()
            .filter(|(name, _)| *name != free && *name != searches);
        let search = counts.get(searches).copied().unwrap_or_default();
        Self {
            web_searches: search.tokens.unwrap_or(0),
            unknown: search.suspect
                || others.into_iter().any(|(_, count)| {
                    count.tokens != Some(0) && (count.tokens.is_some() || count.suspect)
                }),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "passthrough")]
mod class_tests;
#[cfg(test)]
#[cfg(feature = "passthrough")]
mod published_prices_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_read_as_the_same_count_by_every_parser() {
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
    fn usage_of_embeddings_has_only_input() {
        for (json, input) in [
            (r#"{"prompt_tokens":8,"total_tokens":8}"#, Some((8, false))),
            // An additional or a missing field does not change the count of the input.
            (
                r#"{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":8}}"#,
                Some((8, false)),
            ),
            (r#"{"total_tokens":8}"#, Some((8, false))),
            (r#"{"prompt_tokens":8}"#, Some((8, false))),
            (r#"{"prompt_tokens":8,"total_tokens":7}"#, Some((8, true))),
            (r#"{"prompt_tokens":"8","total_tokens":8}"#, Some((8, true))),
            (r#"{"prompt_tokens":0,"total_tokens":0}"#, Some((0, false))),
            ("{}", None),
            ("null", None),
            (r#"{"prompt_tokens":-1}"#, None),
        ] {
            let read = embeddings_usage(json).map(|counts| {
                let others = Usage {
                    input: 0,
                    ..counts.usage
                };
                assert!(others.is_zero(), "{json}");
                (counts.usage.input, counts.suspect)
            });
            assert_eq!(read, input, "{json}");
        }
    }

    #[test]
    fn invalid_usage_is_ignored() {
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

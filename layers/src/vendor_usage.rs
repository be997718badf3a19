//! Reads usage as vendors report it: counts may be missing, null or invalid.

mod of_chat;

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};
#[cfg(any(feature = "passthrough", feature = "translate"))]
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use self::of_chat::ChatUsage;
#[cfg(any(feature = "passthrough", feature = "translate"))]
use crate::price::{Class, Counts};
use crate::{
    json::members,
    price::{Label, Served},
    usage::Usage,
};

/// The usage of an answer, as reported by its vendor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VendorUsage {
    /// The counts by rate class.
    pub usage: Usage,
    /// Other possible interpretations of the counts, if the counts do not add up.
    pub others: [Option<Usage>; 2],
    /// The part of `cache_write` that the vendor reported for its cache's default lifetime.
    pub cache_write_usual: u64,
    /// How the vendor served the call, according to its answer, for example its service tier.
    pub served: Served,
    /// Whether the vendor counted something that it bills separately and for which no rate class exists.
    pub unknown: bool,
    /// Reasoning tokens within the output, if the vendor reports them.
    pub reasoning: Option<u64>,
    /// Whether counts are missing or contradict each other.
    pub suspect: bool,
}

impl VendorUsage {
    /// Adds the `service_tier`, given as JSON, which chat answers report outside their `usage`.
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

/// Only the responses format reports tool calls outside the usage.
#[cfg(feature = "passthrough")]
impl VendorUsage {
    /// Adds the calls of the vendor's own tools, which were reported outside the usage.
    pub(crate) fn with_calls(mut self, web_searches: u64, unknown: bool) -> Self {
        let searches = self.usage.classes.get_mut(Class::WebSearchCall);
        *searches = (*searches).max(web_searches);
        self.unknown |= unknown;
        self
    }
}

/// Returns the text of a JSON string; empty for other values and for strings with escapes.
fn label(json: &str) -> Label {
    let word = json
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    word.map(Label::new).unwrap_or_default()
}

/// Returns whether the `error` field of an answer, given as JSON, reports an error. Some vendors add an empty `error`
/// to every answer.
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

    /// Returns this count or, if it is absent, `other`.
    const fn or(self, other: Self) -> Self {
        if self.tokens.is_some() || self.suspect {
            self
        } else {
            other
        }
    }

    /// Reads a count from valid JSON. `None` if the number is outside the range of every numeric type.
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
        // Some vendors write whole numbers as 5.0.
        let text = number.to_string();
        let tokens = text.strip_suffix(".0").unwrap_or(&text).parse().ok();
        Self {
            tokens,
            suspect: tokens.is_none(),
        }
    }
}

/// Reads the counts of these names from a JSON object. `None` if the text is not an object, has a name twice, or has a
/// number outside the range of every numeric type.
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

/// Reads the counts of an object that may be missing or null; then they are absent.
fn details<const N: usize>(json: Option<&str>, names: &[&str; N]) -> Option<[Count; N]> {
    match json {
        None | Some("null") => Some([Count::default(); N]),
        Some(json) => counts(json, names),
    }
}

/// Reads the `usage` object of a chat answer, given as JSON. Its prompt includes cached and cache-written tokens.
/// `None` if the text is not a usage object or counts nothing.
#[must_use]
pub fn chat_usage(json: &str) -> Option<VendorUsage> {
    counted(ChatUsage::of(json, &ChatUsage::CHAT)?)
}

/// Reads the `usage` object of a responses answer, given as JSON. Its input includes cached and cache-written tokens,
/// and its output includes reasoning. `None` if the text is not a usage object or counts nothing.
#[must_use]
pub fn responses_usage(json: &str) -> Option<VendorUsage> {
    counted(ChatUsage::of(json, &ChatUsage::RESPONSES)?)
}

fn counted(usage: ChatUsage) -> Option<VendorUsage> {
    if usage.prompt_tokens.tokens.is_none() && usage.completion_tokens.tokens.is_none() {
        return None;
    }
    Some(usage.read())
}

/// Reads the `usage` object of an embeddings answer, given as JSON: `prompt_tokens`, or else `total_tokens`. All tokens
/// are ordinary input. `None` if the text is not a usage object or counts nothing.
#[must_use]
pub fn embeddings_usage(json: &str) -> Option<VendorUsage> {
    let [prompt, total] = counts(json, &["prompt_tokens", "total_tokens"])?;
    let input = prompt.tokens.or(total.tokens)?;
    Some(VendorUsage {
        usage: Usage {
            input,
            ..Usage::default()
        },
        suspect: prompt.suspect || total.tokens.is_some_and(|total| total < input),
        ..VendorUsage::default()
    })
}

/// The `usage` of a messages answer. Counts are cumulative: those of a later event replace those of an earlier event.
#[cfg(any(feature = "passthrough", feature = "translate"))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessagesUsage {
    input_tokens: Count,
    cache_creation_input_tokens: Count,
    cache_read_input_tokens: Count,
    output_tokens: Count,
    written_5m: Count,
    written_1h: Count,
    /// Usage of passes that the other counts of this object do not include.
    apart: Apart,
    tools: Tools,
    served: Served,
}

/// The usage of passes in which the vendor summarized the conversation. The other counts of `usage` do not include it.
#[cfg(any(feature = "passthrough", feature = "translate"))]
#[derive(Clone, Copy, Debug, Default)]
struct Apart {
    usage: Usage,
    /// Whether the vendor made a pass of a kind whose cost is unknown.
    unknown: bool,
}

#[cfg(any(feature = "passthrough", feature = "translate"))]
impl Apart {
    /// Reads the field `iterations`, which lists the passes of the model.
    fn of(json: Option<&str>) -> Option<Self> {
        let mut apart = Self::default();
        let Some(json) = json.filter(|json| *json != "null") else {
            return Some(apart);
        };
        for pass in serde_json::from_str::<Vec<&RawValue>>(json).ok()? {
            let [kind] = members(pass.get(), &["type"]).ok()?;
            match kind.unwrap_or_default() {
                "\"message\"" => {}
                "\"compaction\"" => {
                    let counts = MessagesUsage::of_one_pass(pass.get())?.0.counts();
                    let usage = counts.map(|counts| counts.usage).unwrap_or_default();
                    apart.usage = apart.usage.plus(&usage);
                }
                _ => apart.unknown = true,
            }
        }
        Some(apart)
    }
}

#[cfg(any(feature = "passthrough", feature = "translate"))]
impl MessagesUsage {
    /// Reads the `usage` object, given as JSON; `None` if the text is not a usage object.
    pub(crate) fn of(json: &str) -> Option<Self> {
        let (usage, iterations) = Self::of_one_pass(json)?;
        Some(Self {
            apart: Apart::of(iterations).unwrap_or(Apart {
                usage: Usage::default(),
                unknown: true,
            }),
            ..usage
        })
    }

    /// Reads the `usage` object, given as JSON, without its `iterations`, which are returned as JSON.
    fn of_one_pass(json: &str) -> Option<(Self, Option<&str>)> {
        const NAMES: [&str; 10] = [
            "input_tokens",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
            "output_tokens",
            "cache_creation",
            "server_tool_use",
            "service_tier",
            "speed",
            "inference_geo",
            "iterations",
        ];
        let [
            input,
            written,
            read,
            output,
            lives,
            tools,
            service_tier,
            speed,
            inference_geo,
            iterations,
        ] = members(json, &NAMES).ok()?;
        let count = |value: Option<&str>| value.map_or(Some(Count::default()), Count::of);
        let label = |value: Option<&str>| value.map(label).unwrap_or_default();
        let [written_5m, written_1h] = details(
            lives,
            &["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"],
        )?;
        let usage = Self {
            input_tokens: count(input)?,
            cache_creation_input_tokens: count(written)?,
            cache_read_input_tokens: count(read)?,
            output_tokens: count(output)?,
            written_5m,
            written_1h,
            apart: Apart::default(),
            tools: Tools::of(tools),
            served: Served {
                service_tier: label(service_tier).as_tier(),
                speed: label(speed),
                inference_geo: label(inference_geo),
            },
        };
        Some((usage, iterations))
    }

    /// Returns whether the event counts output.
    #[cfg(feature = "passthrough")]
    pub(crate) const fn counts_output(&self) -> bool {
        self.output_tokens.tokens.is_some()
    }

    /// Replaces counts by those of a later event.
    pub(crate) fn replace_by(&mut self, newer: Self) {
        let inputs = [
            newer.input_tokens,
            newer.cache_creation_input_tokens,
            newer.cache_read_input_tokens,
        ];
        let says_input = inputs.iter().any(|count| count.tokens > Some(0));
        for (old, new) in [
            (&mut self.input_tokens, newer.input_tokens),
            (
                &mut self.cache_creation_input_tokens,
                newer.cache_creation_input_tokens,
            ),
            (
                &mut self.cache_read_input_tokens,
                newer.cache_read_input_tokens,
            ),
            (&mut self.written_5m, newer.written_5m),
            (&mut self.written_1h, newer.written_1h),
        ] {
            // The input was counted when the answer began. A zero in a later event is not a count, so it is ignored.
            *old = match new.tokens {
                Some(0) if old.tokens.is_some() && !says_input => *old,
                _ => new.or(*old),
            };
        }
        self.output_tokens = newer.output_tokens.or(self.output_tokens);
        if !newer.apart.usage.is_zero() || newer.apart.unknown {
            self.apart = newer.apart;
        }
        self.tools = self.tools.or(newer.tools);
        for (old, new) in [
            (&mut self.served.service_tier, newer.served.service_tier),
            (&mut self.served.speed, newer.served.speed),
            (&mut self.served.inference_geo, newer.served.inference_geo),
        ] {
            if !new.is_empty() {
                *old = new;
            }
        }
    }

    /// Returns the usage; `None` if the vendor has not reported any count.
    pub(crate) fn counts(&self) -> Option<VendorUsage> {
        let all = [
            self.input_tokens,
            self.cache_creation_input_tokens,
            self.cache_read_input_tokens,
            self.output_tokens,
        ];
        let suspect = all.iter().any(|count| count.suspect);
        if !suspect && all.iter().all(|count| count.tokens.is_none()) {
            return None;
        }
        let [input, written, cached_input, output] = all.map(|count| count.tokens.unwrap_or(0));
        let [usual, hour] =
            [self.written_5m, self.written_1h].map(|count| count.tokens.unwrap_or(0));
        // The vendor may report the split by lifetime without a total. A total above the split was raised by a later
        // event.
        let written = written.max(usual.saturating_add(hour));
        let usage = Usage {
            input,
            cached_input,
            cache_write: written - hour,
            output,
            classes: Counts::default()
                .with(Class::CacheWrite1h, hour)
                .with(Class::WebSearchCall, self.tools.web_searches),
        };
        Some(VendorUsage {
            usage: usage.plus(&self.apart.usage),
            others: [None; 2],
            cache_write_usual: usual,
            served: self.served,
            unknown: self.tools.unknown || self.apart.unknown,
            reasoning: None,
            suspect: suspect || self.written_5m.suspect || self.written_1h.suspect,
        })
    }
}

/// The calls of the tools that the vendor itself ran.
#[derive(Clone, Copy, Debug, Default)]
struct Tools {
    web_searches: u64,
    /// Whether the vendor ran a tool for which no price exists.
    unknown: bool,
}

impl Tools {
    /// Reads the field `server_tool_use`.
    fn of(json: Option<&str>) -> Self {
        // Fetching a page has no price of its own: only its tokens are billed.
        Self::named(json, "web_search_requests", "web_fetch_requests")
    }

    /// Reads `server_side_tool_usage_details`, xAI's field. All tools in it are billed, and only web searches have a
    /// price here.
    fn of_xai(json: Option<&str>) -> Self {
        Self::named(json, "web_search_calls", "")
    }

    /// Reads `num_search_queries`, another field for the number of web searches.
    fn searches(count: Count) -> Self {
        Self {
            web_searches: count.tokens.unwrap_or(0),
            unknown: count.suspect,
        }
    }

    /// Combines two reports of the same calls, from different fields: takes the larger count.
    fn or(self, other: Self) -> Self {
        Self {
            web_searches: self.web_searches.max(other.web_searches),
            unknown: self.unknown || other.unknown,
        }
    }

    fn named(json: Option<&str>, searches: &str, free: &str) -> Self {
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
mod published_prices;

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
            // Compares usage objects with more fields than usual, and with fewer.
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
    fn usage_other_than_an_object_of_counts_is_ignored() {
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

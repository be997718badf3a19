//! Usage as vendors write it: counts that may be missing, null or nonsense.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};
#[cfg(any(feature = "passthrough", feature = "translate"))]
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use crate::{
    json::members,
    price::{Class, Counts, Label, Served},
    usage::Usage,
};

/// What a vendor said that an answer used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VendorUsage {
    /// By rate class.
    pub usage: Usage,
    /// Of `cache_write`, what the vendor said is kept for its usual time.
    pub cache_write_usual: u64,
    /// How it said that it served the call.
    pub served: Served,
    /// It counted something that is billed apart and has no class here.
    pub unknown: bool,
    /// Of the output, what was reasoning, if the vendor says.
    pub reasoning: Option<u64>,
    /// Something is missing or contradicts itself.
    pub suspect: bool,
}

impl VendorUsage {
    /// With the `service_tier` that stands beside the usage of a chat answer, JSON.
    #[must_use]
    pub fn served_as(mut self, service_tier: Option<&str>) -> Self {
        if let Some(json) = service_tier {
            self.served.service_tier = tier(json);
        }
        self
    }
}

/// A `service_tier`, JSON.
pub(crate) fn tier(json: &str) -> Label {
    label(json).as_tier()
}

/// Only the responses format tells calls of tools beside the usage.
#[cfg(feature = "passthrough")]
impl VendorUsage {
    /// With calls of the vendor's own tools that stand beside the usage.
    pub(crate) fn with_calls(mut self, web_searches: u64, unknown: bool) -> Self {
        let searches = self.usage.classes.get_mut(Class::WebSearchCall);
        *searches = (*searches).max(web_searches);
        self.unknown |= unknown;
        self
    }
}

/// The word that a JSON string is; nothing of anything else, and of a word that would have to be decoded.
fn label(json: &str) -> Label {
    let word = json
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    word.map(Label::new).unwrap_or_default()
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

    /// This one, or the other where there is none.
    const fn or(self, other: Self) -> Self {
        if self.tokens.is_some() || self.suspect {
            self
        } else {
            other
        }
    }

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
    counted(ChatUsage::of(json, &ChatUsage::CHAT)?)
}

/// Reads the `usage` object of a responses answer, JSON, where cached and cache-written tokens stand inside the
/// input, and reasoning inside the output. `None` if it is no such object or counts nothing.
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

/// Reads the `usage` object of embeddings, JSON: `prompt_tokens`, or `total_tokens` where that stands alone. All of it is
/// ordinary input. `None` if it is no such object or counts nothing.
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

#[derive(Clone, Copy, Debug)]
struct ChatUsage {
    prompt_tokens: Count,
    completion_tokens: Count,
    total_tokens: Count,
    cached_tokens: Count,
    cache_write_tokens: Count,
    /// Of what is written, what is kept for the usual time, for an hour and for half a day.
    usual_tokens: Count,
    hour_tokens: Count,
    half_day_tokens: Count,
    input_audio: Count,
    input_image: Count,
    reasoning_tokens: Count,
    output_audio: Count,
    output_image: Count,
    tools: Tools,
}

impl ChatUsage {
    /// The chat format's names of what is read.
    const CHAT: [&str; 9] = [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
        "server_tool_use",
        "server_side_tool_usage_details",
    ];

    /// The same in the responses format, which counts alike.
    const RESPONSES: [&str; 9] = [
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "input_tokens_details",
        "output_tokens_details",
        "server_tool_use",
        "server_side_tool_usage_details",
    ];

    fn of(json: &str, names: &[&str; 9]) -> Option<Self> {
        let [
            prompt,
            completion,
            total,
            hit,
            cached,
            of_prompt,
            of_completion,
            tools,
            tools_of_xai,
        ] = members(json, names).ok()?;
        let of_prompt = of_prompt.filter(|json| *json != "null");
        let of_prompt = of_prompt.map_or(Some([None; 7]), |json| {
            const NAMES: [&str; 7] = [
                "cached_tokens",
                "cache_write_tokens",
                "audio_tokens",
                "image_tokens",
                "cache_write_tokens_details",
                // In the words of the messages format, as one vendor has it.
                "cache_creation_input_tokens",
                "cache_creation",
            ];
            members(json, &NAMES).ok()
        })?;
        let [
            of_prompt_cached,
            written,
            input_audio,
            input_image,
            lives,
            created,
            lives_created,
        ] = of_prompt;
        let [ttl_30m, half_day_tokens] = details(lives, &["ttl_30m_tokens", "ttl_12h_tokens"])?;
        let [ttl_5m, hour_tokens] = details(
            lives_created,
            &["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"],
        )?;
        let [reasoning_tokens, output_audio, output_image] = details(
            of_completion,
            &["reasoning_tokens", "audio_tokens", "image_tokens"],
        )?;
        let count = |value: Option<&str>| value.map_or(Some(Count::default()), Count::of);
        Some(Self {
            prompt_tokens: count(prompt)?,
            completion_tokens: count(completion)?,
            total_tokens: count(total)?,
            cached_tokens: count(of_prompt_cached)?.or(count(hit)?).or(count(cached)?),
            cache_write_tokens: count(written)?.or(count(created)?),
            usual_tokens: ttl_30m.or(ttl_5m),
            hour_tokens,
            half_day_tokens,
            input_audio: count(input_audio)?,
            input_image: count(input_image)?,
            reasoning_tokens,
            output_audio,
            output_image,
            tools: Tools::of(tools).or(Tools::of_xai(tools_of_xai)),
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
        let completion = self.completion_tokens.tokens.unwrap_or(0);
        let sum = prompt.saturating_add(completion);
        let (mut output, contradicted) = match (self.total_tokens.tokens, reasoning) {
            // What is reasoning is no more than all of the completion, unless it stands beside it.
            (None, Some(beside)) if beside > completion => {
                (completion.saturating_add(beside), true)
            }
            (None, _) => (completion, false),
            (Some(total), _) if total == sum => (completion, false),
            // Some vendors report reasoning beside the completion, or not at all; their total gives it away, and is billed.
            (Some(total), reasoning) if total > sum && self.prompt_tokens.tokens.is_some() => {
                let beside = total - sum;
                (total - prompt, reasoning != Some(beside))
            }
            (Some(_), _) => (completion, true),
        };
        let cached = cached_tokens.tokens.unwrap_or(0);
        // Vendors repeat the lifetimes in the total, or leave it out.
        let [usual, hour, half_day] = [self.usual_tokens, self.hour_tokens, self.half_day_tokens]
            .map(|count| count.tokens.unwrap_or(0));
        let longer = hour.saturating_add(half_day);
        let written = cache_write_tokens
            .tokens
            .unwrap_or(0)
            .max(usual.saturating_add(longer));
        // Each token once. Sound has a price of its own, so it goes before the cache that it may stand in, too; images
        // may have one, and go last.
        let mut input = prompt;
        let mut take = |count: u64| {
            let taken = count.min(input);
            input -= taken;
            taken
        };
        let input_audio = take(self.input_audio.tokens.unwrap_or(0));
        let (hour, half_day) = (take(hour), take(half_day));
        let longer = hour + half_day;
        let cached_input = take(cached);
        let cache_write = take(written.saturating_sub(longer));
        let input_image = take(self.input_image.tokens.unwrap_or(0));
        // What is sound may be in the cache, too.
        let overlap = input_audio;
        let mut classes = Counts::default();
        for (class, count) in [
            (Class::InputAudio, input_audio),
            (Class::InputImage, input_image),
            (Class::CacheWrite1h, hour),
            (Class::CacheWrite12h, half_day),
            (Class::WebSearchCall, self.tools.web_searches),
        ] {
            *classes.get_mut(class) = count;
        }
        for (class, count) in [
            (Class::OutputAudio, self.output_audio),
            (Class::OutputImage, self.output_image),
        ] {
            let taken = count.tokens.unwrap_or(0).min(output);
            *classes.get_mut(class) = taken;
            output -= taken;
        }
        VendorUsage {
            usage: Usage {
                input,
                cached_input,
                cache_write,
                output,
                classes,
            },
            cache_write_usual: usual.min(cache_write),
            served: Served::default(),
            unknown: self.tools.unknown,
            reasoning,
            suspect: contradicted
                || self.prompt_tokens.tokens.is_none()
                || self.completion_tokens.tokens.is_none()
                || cached_tokens.suspect
                || cache_write_tokens.suspect
                || cached - cached_input > overlap
                || written - cache_write.saturating_add(longer).min(written) > overlap,
        }
    }
}

/// The `usage` of a messages answer. Cumulative: what a later event repeats replaces what an earlier one said.
#[cfg(any(feature = "passthrough", feature = "translate"))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessagesUsage {
    input_tokens: Count,
    cache_creation_input_tokens: Count,
    cache_read_input_tokens: Count,
    output_tokens: Count,
    written_5m: Count,
    written_1h: Count,
    /// What stands in no other count.
    apart: Apart,
    tools: Tools,
    served: Served,
}

/// Passes over the conversation that the other counts leave out: summing it up.
#[cfg(any(feature = "passthrough", feature = "translate"))]
#[derive(Clone, Copy, Debug, Default)]
struct Apart {
    usage: Usage,
    /// There was a pass of which nobody knows what it costs.
    unknown: bool,
}

#[cfg(any(feature = "passthrough", feature = "translate"))]
impl Apart {
    /// `iterations`.
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
    /// Reads the object, JSON; `None` if it is no such object.
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

    /// The same without its `iterations`, which stand beside it.
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

    /// Whether it counts output.
    #[cfg(feature = "passthrough")]
    pub(crate) const fn counts_output(&self) -> bool {
        self.output_tokens.tokens.is_some()
    }

    /// Takes what a later one says.
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
            // The input was read when the answer began: none behind some says nothing.
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

    /// `None` while nothing was reported.
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
        // The split may come without its total; a total beyond it was raised by a later event.
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
            cache_write_usual: usual,
            served: self.served,
            unknown: self.tools.unknown || self.apart.unknown,
            reasoning: None,
            suspect: suspect || self.written_5m.suspect || self.written_1h.suspect,
        })
    }
}

/// Calls of tools that the vendor ran.
#[derive(Clone, Copy, Debug, Default)]
struct Tools {
    web_searches: u64,
    /// There are calls of a tool that nobody knows the price of.
    unknown: bool,
}

impl Tools {
    /// `server_tool_use`.
    fn of(json: Option<&str>) -> Self {
        // Fetching costs nothing but its tokens.
        Self::named(json, "web_search_requests", "web_fetch_requests")
    }

    /// `server_side_tool_usage_details`, one vendor's name. Whatever else it runs is billed.
    fn of_xai(json: Option<&str>) -> Self {
        Self::named(json, "web_search_calls", "")
    }

    /// With what is told elsewhere, or again.
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
    fn embeddings_have_input_alone() {
        for (json, input) in [
            (r#"{"prompt_tokens":8,"total_tokens":8}"#, Some((8, false))),
            // Of vendors that say more, and less.
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

//! Reads the usage of the chat and the responses format, which have the same rules: the prompt includes cached and
//! cache-written tokens, and the completion includes reasoning. If the counts do not add up to their total, this module
//! finds another interpretation that does.

use super::{Count, Tools, VendorUsage, details};
use crate::{
    json::members,
    price::{Class, Counts, Served},
    usage::Usage,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct ChatUsage {
    pub(super) prompt_tokens: Count,
    pub(super) completion_tokens: Count,
    total_tokens: Count,
    cached_tokens: Count,
    cache_write_tokens: Count,
    /// Parts of the cache-written tokens by lifetime: the default lifetime, an hour, and half a day.
    usual_tokens: Count,
    hour_tokens: Count,
    half_day_tokens: Count,
    input_audio: Count,
    input_image: Count,
    /// Parts of the cached tokens by what they encode.
    cached_audio: Count,
    cached_image: Count,
    reasoning_tokens: Count,
    /// `reasoning_tokens` outside the details object, where some vendors report it.
    top_reasoning_tokens: Count,
    output_audio: Count,
    output_image: Count,
    tools: Tools,
}

impl ChatUsage {
    /// The names of the counts in the chat format.
    pub(super) const CHAT: [&str; 11] = [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
        "server_tool_use",
        "server_side_tool_usage_details",
        "reasoning_tokens",
        "num_search_queries",
    ];

    /// The names of the same counts in the responses format.
    pub(super) const RESPONSES: [&str; 11] = [
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "input_tokens_details",
        "output_tokens_details",
        "server_tool_use",
        "server_side_tool_usage_details",
        "reasoning_tokens",
        "num_search_queries",
    ];

    pub(super) fn of(json: &str, names: &[&str; 11]) -> Option<Self> {
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
            top_reasoning,
            searches,
        ] = members(json, names).ok()?;
        let of_prompt = of_prompt.filter(|json| *json != "null");
        let of_prompt = of_prompt.map_or(Some([None; 8]), |json| {
            const NAMES: [&str; 8] = [
                "cached_tokens",
                "cache_write_tokens",
                "audio_tokens",
                "image_tokens",
                "cache_write_tokens_details",
                // One vendor uses the name that this count has in the messages format.
                "cache_creation_input_tokens",
                "cache_creation",
                "cached_tokens_details",
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
            cached_parts,
        ] = of_prompt;
        let [cached_audio, cached_image] =
            details(cached_parts, &["audio_tokens", "image_tokens"])?;
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
            cached_audio,
            cached_image,
            reasoning_tokens,
            top_reasoning_tokens: count(top_reasoning)?,
            output_audio,
            output_image,
            tools: Tools::of(tools)
                .or(Tools::of_xai(tools_of_xai))
                .or(Tools::searches(count(searches)?)),
        })
    }

    pub(super) fn read(self) -> VendorUsage {
        let (readings, contradicted) = self.readings();
        let [first, second, third] = readings.map(|beside| beside.map(|beside| self.split(beside)));
        let (usage, overflows) = first.unwrap_or_default();
        let other = |read: Option<(Usage, bool)>| read.map(|(usage, _)| usage);
        VendorUsage {
            usage,
            others: [other(second), other(third)],
            cache_write_usual: self.usual_tokens.tokens.unwrap_or(0).min(usage.cache_write),
            served: Served::default(),
            unknown: self.tools.unknown,
            reasoning: self.reasoning().filter(|tokens| *tokens > 0),
            suspect: contradicted
                || overflows
                || self.prompt_tokens.tokens.is_none()
                || self.completion_tokens.tokens.is_none()
                || self.cached_tokens.suspect
                || self.cache_write_tokens.suspect,
        }
    }

    /// Returns the reasoning tokens, reported in the details object or outside it.
    fn reasoning(&self) -> Option<u64> {
        self.reasoning_tokens.or(self.top_reasoning_tokens).tokens
    }

    /// Returns the tokens written to the cache, and the parts of them with lifetimes of an hour and of half a day.
    /// Vendors either include these parts in the total or omit the total.
    fn written(&self) -> (u64, [u64; 2]) {
        let [usual, hour, half_day] = [self.usual_tokens, self.hour_tokens, self.half_day_tokens]
            .map(|count| count.tokens.unwrap_or(0));
        let all = usual.saturating_add(hour).saturating_add(half_day);
        let written = self.cache_write_tokens.tokens.unwrap_or(0).max(all);
        (written, [hour, half_day])
    }

    /// Returns the possible interpretations, the likeliest first, and whether the counts contradict each other. An
    /// interpretation is the number of tokens to add to the prompt and to the completion so that they reach the total.
    fn readings(&self) -> ([Option<Beside>; 3], bool) {
        let prompt = self.prompt_tokens.tokens.unwrap_or(0);
        let completion = self.completion_tokens.tokens.unwrap_or(0);
        let cached = self.cached_tokens.tokens.unwrap_or(0);
        let (written, _) = self.written();
        let reasoning = self.reasoning().unwrap_or(0);
        let top_reasoning = self.top_reasoning_tokens.tokens.unwrap_or(0);
        let beside = |input: u64, output: u64| Some(Beside { input, output });
        let nothing = beside(0, 0);
        let sum = prompt.saturating_add(completion);
        // A part that is larger than the sum cannot be included in it, so it is added.
        let more_than = |whole: u64, part: u64| if part > whole { part } else { 0 };
        match self.total_tokens.tokens {
            None => {
                let input = match self.prompt_tokens.tokens {
                    Some(_) => more_than(prompt, cached).saturating_add(more_than(prompt, written)),
                    None => 0,
                };
                let output = more_than(completion, reasoning);
                match (input, output) {
                    (0, 0) => ([nothing, None, None], false),
                    _ => ([beside(input, output), nothing, None], true),
                }
            }
            // One vendor counts reasoning neither in the completion nor in the total.
            Some(total) if total == sum && top_reasoning > completion => {
                ([beside(0, top_reasoning), nothing, None], true)
            }
            Some(total) if total == sum => ([nothing, None, None], false),
            // Some vendors report the cache outside the prompt, or reasoning outside the completion, or both. The
            // vendor bills the total, so the total decides which. The cheapest explanation is tried first.
            Some(total) if total > sum && self.prompt_tokens.tokens.is_some() => {
                let extra = total - sum;
                let both = cached.saturating_add(written);
                let explains =
                    |(input, output): &(u64, u64)| input.checked_add(*output) == Some(extra);
                let inputs = [cached, written, both];
                let explained = inputs.map(|input| (input, 0)).into_iter();
                let explained = explained
                    .chain([(0, reasoning)])
                    .chain(inputs.map(|input| (input, reasoning)))
                    .find(explains);
                match explained {
                    Some((0, output)) => ([beside(0, output), None, None], false),
                    Some((input, output)) => ([beside(input, output), nothing, None], true),
                    // Search results are input. Without searches, the difference is thinking if the request allows that
                    // much output.
                    None if self.tools.web_searches > 0 => {
                        ([beside(extra, 0), beside(0, extra), nothing], true)
                    }
                    None => ([beside(0, extra), beside(extra, 0), nothing], true),
                }
            }
            Some(_) => ([nothing, None, None], true),
        }
    }

    /// Returns the usage by rate class in this interpretation, with each token counted once, and whether a part of the
    /// input is larger than the input.
    fn split(&self, beside: Beside) -> (Usage, bool) {
        let cached = self.cached_tokens.tokens.unwrap_or(0);
        let (written, [hour, half_day]) = self.written();
        let whole = |count: Count, beside: u64| count.tokens.unwrap_or(0).saturating_add(beside);
        let mut input = whole(self.prompt_tokens, beside.input);
        let mut output = whole(self.completion_tokens, beside.output);
        // Sound is taken before the cache, because it has its own price and may also be cached. Images are taken last,
        // because they may have no price of their own.
        let mut take = |count: u64| {
            let taken = count.min(input);
            input -= taken;
            taken
        };
        let part = |count: Count, whole: u64| count.tokens.unwrap_or(0).min(whole);
        let input_audio = take(self.input_audio.tokens.unwrap_or(0));
        let cached_audio = part(self.cached_audio, input_audio).min(cached);
        let (input_audio, cached) = (input_audio - cached_audio, cached - cached_audio);
        let (hour, half_day) = (take(hour), take(half_day));
        let longer = hour + half_day;
        let cached_input = take(cached);
        let cache_write = take(written.saturating_sub(longer));
        let images = self.input_image.tokens.unwrap_or(0);
        let cached_image = part(self.cached_image, cached_input).min(images);
        let input_image = take(images - cached_image);
        // The vendor may count the same sound as cached.
        let overlap = input_audio;
        let overflows = cached - cached_input > overlap
            || written - cache_write.saturating_add(longer).min(written) > overlap;
        let mut classes = Counts::default();
        for (class, count) in [
            (Class::CachedInputAudio, cached_audio),
            (Class::CachedInputImage, cached_image),
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
        let usage = Usage {
            input,
            cached_input: cached_input - cached_image,
            cache_write,
            output,
            classes,
        };
        (usage, overflows)
    }
}

/// The tokens that an interpretation adds to the prompt and to the completion.
#[derive(Clone, Copy, Debug)]
struct Beside {
    input: u64,
    output: u64,
}

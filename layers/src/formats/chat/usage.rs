//! The `usage` object of the Chat Completions format. The Responses format has the same rules: the prompt includes
//! cached and cache-written tokens, and the completion includes reasoning. If the counts do not add up to their total,
//! this module finds another interpretation in which they do.

#[cfg(any(feature = "passthrough", feature = "translate"))]
use crate::formats::{counts, messages::usage::server_tool_use};
use crate::{
    json::members,
    price::{Class, Counts, Served},
    usage::Usage,
    vendor_usage::{Count, Tools, VendorUsage, counts as counts_of, details},
};

/// Reads the `usage` object of a Chat Completions response, given as JSON. Its prompt includes cached and cache-written
/// tokens. `None` if the text is not a usage object or counts nothing.
#[must_use]
pub fn chat_usage(json: &str) -> Option<VendorUsage> {
    read(
        json,
        [
            "prompt_tokens",
            "completion_tokens",
            "total_tokens",
            "prompt_tokens_details",
            "completion_tokens_details",
        ],
    )
}

/// Reads a usage object. `totals` are the names of the prompt, the completion, the total, the details of the prompt,
/// and the details of the completion. `None` if the text is not a usage object or counts nothing.
pub(crate) fn read(json: &str, totals: [&str; 5]) -> Option<VendorUsage> {
    let usage = ChatUsage::of(json, totals)?;
    let (prompt, completion) = (usage.prompt_tokens, usage.completion_tokens);
    let counted = prompt.tokens.or(completion.tokens);
    counted.map(|_| usage.read())
}

/// Reads the `usage` object of an embeddings response, given as JSON. The count is `prompt_tokens`, or else
/// `total_tokens`, and all tokens are ordinary input. `None` if the text is not a usage object or counts nothing.
#[must_use]
pub fn embeddings_usage(json: &str) -> Option<VendorUsage> {
    let [prompt, total] = counts_of(json, &["prompt_tokens", "total_tokens"])?;
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
    prompt: PromptDetails,
    reasoning_tokens: Count,
    /// The value of `reasoning_tokens` outside the details object, where some vendors report it.
    top_reasoning_tokens: Count,
    output_audio: Count,
    output_image: Count,
    tools: Tools,
}

/// The counts of parts of the prompt.
#[derive(Clone, Copy, Debug, Default)]
struct PromptDetails {
    cached: Count,
    written: Count,
    /// The tokens written to the cache, by lifetime: the default lifetime, an hour, and half a day.
    usual: Count,
    hour: Count,
    half_day: Count,
    audio: Count,
    image: Count,
    /// The cached tokens, by what they encode.
    cached_audio: Count,
    cached_image: Count,
}

impl PromptDetails {
    /// Reads the details object of the prompt. `None` if its counts cannot be read.
    fn of(json: Option<&str>) -> Option<Self> {
        const NAMES: [&str; 8] = [
            "cached_tokens",
            "cache_write_tokens",
            "audio_tokens",
            "image_tokens",
            "cache_write_tokens_details",
            // One vendor uses the name that this count has in the Messages format.
            "cache_creation_input_tokens",
            "cache_creation",
            "cached_tokens_details",
        ];
        let Some(json) = json.filter(|json| *json != "null") else {
            return Some(Self::default());
        };
        let [
            cached,
            written,
            audio,
            image,
            lives,
            created,
            created_lives,
            parts,
        ] = members(json, &NAMES).ok()?;
        let count = Count::in_field;
        let [cached_audio, cached_image] = details(parts, &["audio_tokens", "image_tokens"])?;
        let [ttl_30m, half_day] = details(lives, &["ttl_30m_tokens", "ttl_12h_tokens"])?;
        let [ttl_5m, hour] = details(
            created_lives,
            &["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"],
        )?;
        Some(Self {
            cached: count(cached)?,
            written: count(written)?.or(count(created)?),
            usual: ttl_30m.or(ttl_5m),
            hour,
            half_day,
            audio: count(audio)?,
            image: count(image)?,
            cached_audio,
            cached_image,
        })
    }
}

impl ChatUsage {
    /// Reads the usage object. `totals` are the names of the prompt, the completion, the total, the details of the
    /// prompt, and the details of the completion. `None` if the text is not a usage object.
    fn of(json: &str, totals: [&str; 5]) -> Option<Self> {
        const OTHERS: [&str; 6] = [
            "prompt_cache_hit_tokens",
            "cached_tokens",
            "server_tool_use",
            "server_side_tool_usage_details",
            "reasoning_tokens",
            "num_search_queries",
        ];
        let mut names = [""; 11];
        names[..5].copy_from_slice(&totals);
        names[5..].copy_from_slice(&OTHERS);
        let found = members(json, &names).ok()?;
        let [
            prompt,
            completion,
            total,
            of_prompt,
            of_completion,
            others @ ..,
        ] = found;
        let [hit, cached, tools, xai_tools, top_reasoning, searches] = others;
        let count = Count::in_field;
        let prompt_details = PromptDetails::of(of_prompt)?;
        let [reasoning_tokens, output_audio, output_image] = details(
            of_completion,
            &["reasoning_tokens", "audio_tokens", "image_tokens"],
        )?;
        // xAI bills all tools that its field counts, but the catalog has a price only for web searches.
        let xai_tools = Tools::named(xai_tools, "web_search_calls", "");
        Some(Self {
            prompt_tokens: count(prompt)?,
            completion_tokens: count(completion)?,
            total_tokens: count(total)?,
            cached_tokens: prompt_details.cached.or(count(hit)?).or(count(cached)?),
            prompt: prompt_details,
            reasoning_tokens,
            top_reasoning_tokens: count(top_reasoning)?,
            output_audio,
            output_image,
            tools: Tools::of(tools)
                .or(xai_tools)
                .or(Tools::searches(count(searches)?)),
        })
    }

    fn read(self) -> VendorUsage {
        let (readings, contradicted) = self.readings();
        let [first, second, third] = readings.map(|beside| beside.map(|beside| self.split(beside)));
        let (usage, overflows) = first.unwrap_or_default();
        let other = |read: Option<(Usage, bool)>| read.map(|(usage, _)| usage);
        VendorUsage {
            usage,
            others: [other(second), other(third)],
            cache_write_usual: self.prompt.usual.tokens.unwrap_or(0).min(usage.cache_write),
            served: Served::default(),
            unknown: self.tools.unknown,
            reasoning: self.reasoning().filter(|tokens| *tokens > 0),
            suspect: contradicted
                || overflows
                || self.prompt_tokens.tokens.is_none()
                || self.completion_tokens.tokens.is_none()
                || self.cached_tokens.suspect
                || self.prompt.written.suspect,
        }
    }

    /// Returns the reasoning tokens, from the details object or from outside it.
    fn reasoning(&self) -> Option<u64> {
        self.reasoning_tokens.or(self.top_reasoning_tokens).tokens
    }

    /// Returns the tokens written to the cache, and the parts of them with lifetimes of an hour and of half a day.
    /// Vendors either include these parts in the total or omit the total.
    fn written(&self) -> (u64, [u64; 2]) {
        let [usual, hour, half_day] = [self.prompt.usual, self.prompt.hour, self.prompt.half_day]
            .map(|count| count.tokens.unwrap_or(0));
        let all = usual.saturating_add(hour).saturating_add(half_day);
        let written = self.prompt.written.tokens.unwrap_or(0).max(all);
        (written, [hour, half_day])
    }

    /// Returns the possible interpretations, the likeliest first, and whether the counts contradict each other. An
    /// interpretation is the number of tokens to add to the prompt and to the completion to reach the total.
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
        // A part that is larger than the sum cannot be included in the sum, so it is added.
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
            // vendor bills the total, so the total decides which of these is true. The cheapest explanation is tried
            // first.
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
                    // If the vendor ran searches, the difference to the total is the results of the searches, which are
                    // input. Otherwise the difference is thinking, if the request allows that much output.
                    None if self.tools.web_searches > 0 => {
                        ([beside(extra, 0), beside(0, extra), nothing], true)
                    }
                    None => ([beside(0, extra), beside(extra, 0), nothing], true),
                }
            }
            Some(_) => ([nothing, None, None], true),
        }
    }

    /// Returns the usage by rate class in this interpretation, with each token counted once. Also returns whether a
    /// part of the input is larger than the whole input.
    fn split(&self, beside: Beside) -> (Usage, bool) {
        let cached = self.cached_tokens.tokens.unwrap_or(0);
        let (written, [hour, half_day]) = self.written();
        let whole = |count: Count, beside: u64| count.tokens.unwrap_or(0).saturating_add(beside);
        let mut input = whole(self.prompt_tokens, beside.input);
        let mut output = whole(self.completion_tokens, beside.output);
        // Sound is subtracted from the input before cached tokens, because sound has its own price and may also be
        // cached. Images are subtracted last, because they may have no price of their own.
        let mut take = |count: u64| {
            let taken = count.min(input);
            input -= taken;
            taken
        };
        let part = |count: Count, whole: u64| count.tokens.unwrap_or(0).min(whole);
        let input_audio = take(self.prompt.audio.tokens.unwrap_or(0));
        let cached_audio = part(self.prompt.cached_audio, input_audio).min(cached);
        let (input_audio, cached) = (input_audio - cached_audio, cached - cached_audio);
        let (hour, half_day) = (take(hour), take(half_day));
        let longer = hour + half_day;
        let cached_input = take(cached);
        let cache_write = take(written.saturating_sub(longer));
        let images = self.prompt.image.tokens.unwrap_or(0);
        let cached_image = part(self.prompt.cached_image, cached_input).min(images);
        let input_image = take(images - cached_image);
        // The vendor may count the same tokens both as sound and as cached.
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

/// An interpretation of contradictory counts: the tokens that it adds to the prompt and to the completion.
#[derive(Clone, Copy, Debug)]
struct Beside {
    input: u64,
    output: u64,
}

/// Writes the usage object. `classes` are further counts that are stated in addition to the totals.
#[cfg(any(feature = "passthrough", feature = "translate"))]
pub(crate) fn write(counts: &counts::Counts, classes: &Counts) -> String {
    let some = |count: u64, text: String| if count > 0 { text } else { String::new() };
    let (written, cached, output) = (counts.written, counts.cached, counts.output);
    let (prompt, total) = (counts.input(), counts.total());
    let class = |class| classes.get(class);
    let half_day = class(Class::CacheWrite12h);
    let lives = some(
        half_day,
        format!(
            ",\"cache_write_tokens_details\":{{\"ttl_30m_tokens\":{},\"ttl_12h_tokens\":{half_day}}}",
            written - half_day
        ),
    );
    let (cached_sound, cached_image) = (
        class(Class::CachedInputAudio),
        class(Class::CachedInputImage),
    );
    let sound = class(Class::InputAudio).saturating_add(cached_sound);
    let images = class(Class::InputImage).saturating_add(cached_image);
    let parts = some(sound, format!(",\"audio_tokens\":{sound}"))
        + &some(images, format!(",\"image_tokens\":{images}"))
        + &some(
            cached_sound.saturating_add(cached_image),
            format!(
                ",\"cached_tokens_details\":{{\"audio_tokens\":{cached_sound},\"image_tokens\":{cached_image}}}"
            ),
        );
    let (spoken, drawn) = (class(Class::OutputAudio), class(Class::OutputImage));
    let made = match counts.reasoning {
        Some(reasoning) => format!("\"reasoning_tokens\":{reasoning}"),
        None => some(
            spoken.saturating_add(drawn),
            format!("\"audio_tokens\":{spoken},\"image_tokens\":{drawn}"),
        ),
    };
    let made = match made.is_empty() {
        true => made,
        false => format!(",\"completion_tokens_details\":{{{made}}}"),
    };
    let tools = server_tool_use(classes);
    format!(
        "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{output},\"total_tokens\":{total},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached},\
         \"cache_write_tokens\":{written}{lives}{parts}}}{made}{tools}}}"
    )
}

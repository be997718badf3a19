//! The `usage` object of the Messages format. Its input includes neither cache reads nor cache writes.

use serde_json::value::RawValue;

use crate::{
    formats::counts::Counts,
    json::members,
    price::{Class, Counts as ClassCounts, Served},
    usage::Usage,
    vendor_usage::{Count, Tools, VendorUsage, details, label},
};

/// The `usage` of a Messages response. Counts are cumulative: a later event replaces those of an earlier event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessagesUsage {
    /// The input tokens that the cache did not affect, those written to the cache, and those read from it.
    input: [Count; 3],
    /// The parts of the tokens written to the cache for five minutes and for an hour.
    written: [Count; 2],
    output: Count,
    /// The usage of passes of the model that the other counts of this object do not include.
    apart: Apart,
    tools: Tools,
    served: Served,
}

/// The usage of passes in which the vendor summarized the conversation. The other counts of `usage` do not include it.
#[derive(Clone, Copy, Debug, Default)]
struct Apart {
    usage: Usage,
    /// Whether the vendor made a pass of a kind whose cost is unknown.
    unknown: bool,
}

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

impl MessagesUsage {
    /// Reads the `usage` object, given as JSON. `None` if the text is not a usage object.
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

    /// Reads the `usage` object, given as JSON, except its `iterations`, which are returned as JSON.
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
        let label = |value: Option<&str>| value.map(label).unwrap_or_default();
        let lifetimes = ["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"];
        let count = Count::in_field;
        let usage = Self {
            input: [count(input)?, count(written)?, count(read)?],
            output: count(output)?,
            written: details(lives, &lifetimes)?,
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

    /// Returns whether the vendor has reported a count of output tokens.
    #[cfg(feature = "passthrough")]
    pub(crate) const fn counts_output(&self) -> bool {
        self.output.tokens.is_some()
    }

    /// Replaces the counts by those of a later event.
    pub(crate) fn replace_by(&mut self, newer: Self) {
        let says_input = newer.input.iter().any(|count| count.tokens > Some(0));
        let counts = self.input.iter_mut().chain(&mut self.written);
        for (old, new) in counts.zip(newer.input.into_iter().chain(newer.written)) {
            // The input was counted when the response began. A zero in a later event is not a count and is ignored.
            *old = match new.tokens {
                Some(0) if old.tokens.is_some() && !says_input => *old,
                _ => new.or(*old),
            };
        }
        self.output = newer.output.or(self.output);
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

    /// Returns the usage. `None` if the vendor has not reported any count.
    pub(crate) fn counts(&self) -> Option<VendorUsage> {
        let [input, written, read] = self.input;
        let all = [input, written, read, self.output];
        let suspect = all.iter().any(|count| count.suspect);
        if !suspect && all.iter().all(|count| count.tokens.is_none()) {
            return None;
        }
        let [input, written, cached_input, output] = all.map(|count| count.tokens.unwrap_or(0));
        let [usual, hour] = self.written.map(|count| count.tokens.unwrap_or(0));
        // The vendor may report the split by lifetime without a total. If the total is larger than the split, a later
        // event has raised it.
        let written = written.max(usual.saturating_add(hour));
        let usage = Usage {
            input,
            cached_input,
            cache_write: written - hour,
            output,
            classes: ClassCounts::default()
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
            suspect: suspect || self.written.iter().any(|count| count.suspect),
        })
    }
}

/// Writes the usage object. `classes` are further counts that are stated in addition to the totals.
pub(crate) fn write(counts: &Counts, classes: &ClassCounts) -> String {
    let (fresh, written) = (counts.fresh, counts.written);
    let (cached, output) = (counts.cached, counts.output);
    let details = counts.reasoning.map_or_else(String::new, |reasoning| {
        format!(",\"output_tokens_details\":{{\"thinking_tokens\":{reasoning}}}")
    });
    let lives = match classes.get(Class::CacheWrite1h) {
        0 => String::new(),
        hour => format!(
            ",\"cache_creation\":{{\"ephemeral_5m_input_tokens\":{},\"ephemeral_1h_input_tokens\":{hour}}}",
            written - hour
        ),
    };
    let tools = server_tool_use(classes);
    format!(
        "{{\"input_tokens\":{fresh},\"cache_creation_input_tokens\":{written},\
         \"cache_read_input_tokens\":{cached},\"output_tokens\":{output}{details}{lives}{tools}}}"
    )
}

/// Writes the number of web searches as an additional member of a usage object. Writes nothing if it is 0.
pub(crate) fn server_tool_use(classes: &ClassCounts) -> String {
    match classes.get(Class::WebSearchCall) {
        0 => String::new(),
        searches => format!(",\"server_tool_use\":{{\"web_search_requests\":{searches}}}"),
    }
}

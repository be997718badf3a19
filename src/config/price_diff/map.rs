//! Reads a model's prices from a public price map, in the same way as the script `presets/update`.

use rust_decimal::Decimal;
use serde_json::{Map, Value};
use tollgate_layers::price::Currency;

use super::{
    listed::{Listed, Rates, When},
    off_peak::peak_hours,
};

/// Rate classes, each with the field of the map that contains the price of the class.
const CLASSES: [(&str, &str); 12] = [
    ("input", "input_cost_per_token"),
    ("cached_input", "cache_read_input_token_cost"),
    ("output", "output_cost_per_token"),
    ("cache_write", "cache_creation_input_token_cost"),
    (
        "cache_write_1h",
        "cache_creation_input_token_cost_above_1hr",
    ),
    (
        "cache_write_12h",
        "cache_creation_input_token_cost_above_12hr",
    ),
    ("cached_input_audio", "cache_read_input_audio_token_cost"),
    ("cached_input_image", "cache_read_input_image_token_cost"),
    ("input_audio", "input_cost_per_audio_token"),
    ("input_image", "input_cost_per_image_token"),
    ("output_audio", "output_cost_per_audio_token"),
    ("output_image", "output_cost_per_image_token"),
];
/// Rate classes that every chat model has. If the map has no price for one of them, this class gets the input price.
const FOUR: [&str; 4] = ["input", "cached_input", "output", "cache_write"];
const TIERS: [&str; 3] = ["flex", "priority", "ultrafast"];
/// If the name of a price field contains one of these parts, the price applies to no call at the gateway's endpoints.
const ELSEWHERE: [&str; 10] = [
    "batches",
    "decisions",
    "per_second",
    "per_character",
    "per_page",
    "per_pixel",
    "per_query",
    "_video_",
    "per_session",
    "cost_per_token_cache_hit",
];

/// Returns a vendor's prices for a model. `None` if the map does not contain them.
pub(super) fn prices(map: &Map<String, Value>, preset: &str, model: &str) -> Option<Listed> {
    let provider = match preset {
        "google" => "gemini",
        "qwen" => "dashscope",
        "vertex" | "vertex-claude" => "vertex_ai",
        "bedrock-claude" => "bedrock_converse",
        "bedrock" => match map.get(model) {
            Some(entry) if entry["litellm_provider"] == "bedrock_converse" => "bedrock_converse",
            _ => "bedrock/us-east-1",
        },
        other => other,
    };
    let model = model.strip_prefix("google/").unwrap_or(model);
    let bare = map
        .get(model)
        .filter(|entry| entry["litellm_provider"] == provider);
    let entry = bare.or_else(|| map.get(&format!("{provider}/{model}")));
    let entry = Entry(entry?.as_object()?);
    let mut rates = entry.rates("", entry.0)?;
    let mut rules = entry.rules(&rates);
    let mut unread = entry.unread();
    if rules.is_empty()
        && let Some((cheap, peak)) = entry.off_peak(&rates, preset)
    {
        rules = peak;
        rates = cheap;
        unread.retain(|field| field != OFF_PEAK);
    }
    for rule in &mut rules {
        rule.1.retain(|class, _| rates.contains_key(class));
    }
    Some(Listed {
        currency: Currency::Usdt,
        rates,
        rules,
        unread,
    })
}

const OFF_PEAK: &str = "off_peak_pricing";

struct Entry<'m>(&'m Map<String, Value>);

impl Entry<'_> {
    /// Returns the rates in the fields whose names end in `suffix`. `None` if no input price has this suffix.
    fn rates(&self, suffix: &str, own: &Map<String, Value>) -> Option<Rates> {
        let price = |field: &str| {
            let price = number(own.get(&format!("{field}{suffix}"))?)?;
            price
                .checked_mul(Decimal::from(1_000_000))
                .map(|it| it.normalize())
        };
        let mut rates = Rates::new();
        for (class, field) in CLASSES {
            rates.extend(price(field).map(|rate| (class.to_owned(), rate)));
        }
        let Some(input) = rates.get("input").copied() else {
            let first = own
                .get("tiered_pricing")
                .and_then(|it| it.get(0)?.as_object());
            return first
                .filter(|_| suffix.is_empty())
                .and_then(|first| self.rates("", first));
        };
        if self.0.get("mode").is_some_and(|mode| mode == "embedding") {
            return Some(Rates::from([("input".to_owned(), input)]));
        }
        let reasoning = price("output_cost_per_reasoning_token");
        let reasoning = reasoning.filter(|rate| Some(rate) != rates.get("output"));
        rates.extend(reasoning.map(|rate| ("output_reasoning".to_owned(), rate)));
        for class in FOUR {
            // The map has 0 for vendors that bill cache writes as ordinary input.
            if rates.get(class).is_none_or(Decimal::is_zero) {
                rates.insert(class.to_owned(), input);
            }
        }
        if rates.get("input_image") == Some(&input) {
            rates.remove("input_image");
        }
        let fee = own.get("input_cost_per_request").and_then(number);
        rates.extend(fee.map(|fee| ("request_call".to_owned(), fee.normalize())));
        let searches = self.0.get("search_context_cost_per_query");
        let searches = searches.and_then(Value::as_object).into_iter().flatten();
        let search = searches.filter_map(|(_, rate)| number(rate)).max();
        rates.extend(search.map(|rate| ("web_search_call".to_owned(), rate.normalize())));
        rates.retain(|_, rate| !rate.is_zero());
        Some(rates)
    }

    /// Returns the price rules for long input, service tiers, speeds and regions, and for their combinations.
    fn rules(&self, usual: &Rates) -> Vec<(When, Rates)> {
        let mut rules = Vec::new();
        let mut sizes: Vec<u64> = self.0.keys().filter_map(|field| above(field)).collect();
        sizes.sort_unstable();
        let steps = std::iter::once(None).chain(sizes.into_iter().map(Some));
        for size in steps {
            let suffix = size.map_or_else(String::new, |size| format!("_above_{size}k_tokens"));
            let long = match size {
                None => usual.clone(),
                Some(_) => filled(self.rates(&suffix, self.0).as_ref(), usual),
            };
            for tier in std::iter::once("").chain(TIERS) {
                let rates = match tier {
                    "" => long.clone(),
                    tier if self.rates(&format!("_{tier}"), self.0).is_none() => continue,
                    // If the map has no price of a tier for long input, the tier gets the base price for long input.
                    tier => match self.rates(&format!("{suffix}_{tier}"), self.0) {
                        None => long.clone(),
                        Some(rates) => filled(Some(&rates), &long),
                    },
                };
                for (speed, region, factor) in self.uplifts() {
                    let mut when = When::new();
                    if let Some(size) = size {
                        when.insert("above_input_tokens".to_owned(), (size * 1000).to_string());
                    }
                    for (field, word) in [
                        ("service_tier", tier),
                        ("speed", speed),
                        ("inference_geo", region),
                    ] {
                        if !word.is_empty() {
                            when.insert(field.to_owned(), format!("\"{word}\""));
                        }
                    }
                    if !when.is_empty() {
                        rules.push((when, times(&rates, factor)));
                    }
                }
            }
        }
        rules.extend(self.tiered_rules(usual));
        rules
    }

    /// Returns the price rules for long input that the map states in the field `tiered_pricing`.
    fn tiered_rules(&self, usual: &Rates) -> Vec<(When, Rates)> {
        let tiers = self.0.get("tiered_pricing").and_then(Value::as_array);
        let tiers = tiers.into_iter().flatten().skip(1);
        let rules = tiers.filter_map(Value::as_object).map(|tier| {
            let start = tier.get("range").and_then(|range| number(range.get(0)?));
            let start = start.map(|start| start.trunc().normalize().to_string());
            let when = start.map(|start| ("above_input_tokens".to_owned(), start));
            let rates = filled(self.rates("", tier).as_ref(), usual);
            (when.into_iter().collect(), rates)
        });
        rules.collect()
    }

    /// Returns the rates outside peak hours, and price rules with the regular rates for the peak hours. `None` if the
    /// map states no off-peak windows.
    fn off_peak(&self, usual: &Rates, preset: &str) -> Option<(Rates, Vec<(When, Rates)>)> {
        let cheap = self.0.get(OFF_PEAK)?;
        let peak = peak_hours(cheap.get("windows")?, preset)?;
        let cheap = self.rates("", cheap.as_object()?)?;
        let rules = peak.into_iter().map(|when| (when, usual.clone()));
        Some((filled(Some(&cheap), usual), rules.collect()))
    }

    /// Returns combinations of speed and region, each with the factor for token prices. The first one is the standard
    /// service.
    fn uplifts(&self) -> Vec<(&'static str, &'static str, Decimal)> {
        let special = self.0.get("provider_specific_entry");
        let factor = |name: &'static str| Some((name, number(special?.get(name)?)?));
        let usual = ("", Decimal::ONE);
        let speeds = std::iter::once(usual).chain(factor("fast"));
        let regions: Vec<_> = std::iter::once(usual)
            .chain(factor("us"))
            .chain(factor("eu"))
            .collect();
        let pairs = speeds.flat_map(|(speed, one)| {
            let regions = regions.iter();
            regions.map(move |(region, other)| (speed, *region, one * other))
        });
        pairs.collect()
    }

    /// Returns the names of the price fields that this module does not read.
    fn unread(&self) -> Vec<String> {
        let is_known = |field: &str| {
            let mut tiers = TIERS.iter();
            let untiered = tiers.find_map(|tier| field.strip_suffix(&format!("_{tier}")));
            let field = untiered.unwrap_or(field);
            let field = match field.split_once("_above_") {
                Some((start, size)) if size.ends_with("k_tokens") => start,
                _ => field,
            };
            ["output_cost_per_reasoning_token", "input_cost_per_request"].contains(&field)
                || CLASSES.iter().any(|(_, known)| field == *known)
        };
        let fields = self.0.keys().filter(|field| {
            let is_price = field.contains("cost") || field.contains("uplift") || *field == OFF_PEAK;
            let is_elsewhere = ELSEWHERE.iter().any(|part| field.contains(part));
            is_price && !is_known(field) && !is_elsewhere
        });
        fields.cloned().collect()
    }
}

/// Returns the number of thousands in a field's name, for example 200 for `input_cost_per_token_above_200k_tokens`.
fn above(field: &str) -> Option<u64> {
    let size = field.strip_prefix("input_cost_per_token_above_")?;
    size.strip_suffix("k_tokens")?.parse().ok()
}

/// Returns `rates` with exactly the rate classes of the base prices `usual`. A missing rate is taken from the input
/// rate or from `usual`.
fn filled(rates: Option<&Rates>, usual: &Rates) -> Rates {
    let value = |class: &String, rate: &Decimal| {
        let rates = rates?;
        let like_input = ["cached_input", "cache_write"].contains(&class.as_str())
            && usual.get("input") == Some(rate);
        rates
            .get(class)
            .or_else(|| rates.get("input").filter(|_| like_input))
            .copied()
    };
    let classes = usual.iter();
    classes
        .map(|(class, rate)| (class.clone(), value(class, rate).unwrap_or(*rate)))
        .collect()
}

/// Multiplies the rates of tokens by a vendor's factor. Rates per call or per search do not change.
fn times(rates: &Rates, factor: Decimal) -> Rates {
    let rate = |class: &str, rate: &Decimal| match class.ends_with("_call") {
        true => *rate,
        false => (*rate * factor).normalize(),
    };
    let rates = rates.iter();
    rates
        .map(|(class, it)| (class.clone(), rate(class, it)))
        .collect()
}

/// Returns a JSON number as a decimal. The decimal is parsed from the float's shortest text, which is what the map's
/// author wrote.
fn number(value: &Value) -> Option<Decimal> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return None,
    };
    Decimal::from_str_exact(&text)
        .or_else(|_| Decimal::from_scientific(&text))
        .ok()
}

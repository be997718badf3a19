//! From the bytes of a request to its charge, in all three formats: no answer that a vendor can make of the request costs
//! more than was held for it. What it can make of it is counted here, part by part, and not by what is tested.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{tests::caller, *};
use crate::{
    call::Operation,
    parse,
    price::{Condition, Label, Price, Rate},
    usage::{Meter, Usage},
    vendor_usage::{MessagesUsage, VendorUsage, chat_usage, responses_usage},
};

const IMAGE_TOKENS: u64 = 5_000;
const DOCUMENT_TOKENS: u64 = 50_000;
const SEARCH_TOKENS: u64 = 15_000;
const OUTPUT_TOKENS_MAX: u64 = 1_000;

#[derive(Clone, Debug)]
enum Part {
    /// With a lifetime in the cache: none, five minutes, an hour.
    Text(String, usize),
    Image,
    Document,
    /// A tenth of a second, which is three tokens at the dearest vendor.
    Sound,
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = prop_oneof![
        4 => ("[a-zа-я \"\\\\\n]{0,60}", 0..3_usize).prop_map(|(text, ttl)| Part::Text(text, ttl)),
        1 => Just(Part::Image),
        1 => Just(Part::Document),
        1 => Just(Part::Sound),
    ];
    prop::collection::vec(part, 1..6)
}

#[derive(Clone, Copy, Debug)]
struct Wishes {
    priority: bool,
    fast: bool,
    us: bool,
    half_day: bool,
    speaks: bool,
    draws: bool,
    function: bool,
    searches: u64,
    choices: u64,
    max_tokens: Option<u64>,
}

fn wishes() -> impl Strategy<Value = Wishes> {
    (
        prop::array::uniform7(any::<bool>()),
        0..4_u64,
        1..3_u64,
        prop::option::of(1..500_u64),
    )
        .prop_map(|(flags, searches, choices, max_tokens)| {
            let [priority, fast, us, half_day, speaks, draws, function] = flags;
            Wishes {
                priority,
                fast,
                us,
                half_day,
                speaks,
                draws,
                function,
                searches,
                choices,
                max_tokens,
            }
        })
}

/// What a request can bring about, and what it may be billed as.
#[derive(Debug, Default)]
struct Most {
    input: u64,
    images: u64,
    sound: u64,
    searches: u64,
    output: u64,
    hour: bool,
    half_day: bool,
    speaks: bool,
    draws: bool,
    priority: bool,
    fast: bool,
    us: bool,
}

/// A body, and what can come of it. A wish that a format has no field for is none.
fn request(op: Operation, parts: &[Part], wishes: &Wishes, mode: HoldMode) -> (Value, Most) {
    const PNG: &str = "data:image/png;base64,AAAA";
    // 48 bytes of head, and silence.
    let wav = format!(
        "UklGRuQSAABXQVZFZm10IBAAAAABAAEAwF0AAIC7AAACABAAZGF0YcASAAAAAAAA{}",
        "A".repeat(6396)
    );
    let mut most = Most::default();
    let (mut content, mut text_bytes) = (Vec::new(), 0);
    // A turn that says nothing is none.
    let first = Part::Text("x".into(), 0);
    for part in std::iter::once(&first).chain(parts) {
        let sent = match (part, op) {
            (Part::Text(text, ttl), _) => {
                text_bytes += text.len() as u64;
                let mut part = match op {
                    Operation::Responses => json!({ "type": "input_text", "text": text }),
                    _ => json!({ "type": "text", "text": text }),
                };
                if *ttl > 0 && op != Operation::Responses {
                    most.hour |= *ttl == 2;
                    let lives = ["", "5m", "1h"][*ttl];
                    part["cache_control"] = json!({ "type": "ephemeral", "ttl": lives });
                }
                part
            }
            (Part::Image, _) => {
                most.images += IMAGE_TOKENS;
                match op {
                    Operation::Chat => json!({ "type": "image_url", "image_url": { "url": PNG } }),
                    Operation::Messages => json!({ "type": "image",
                        "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } }),
                    _ => json!({ "type": "input_image", "image_url": PNG }),
                }
            }
            (Part::Document, Operation::Chat) => {
                most.input += DOCUMENT_TOKENS;
                json!({ "type": "file", "file": { "file_data": "data:application/pdf;base64,AAAA" } })
            }
            (Part::Document, Operation::Messages) => {
                most.input += DOCUMENT_TOKENS;
                json!({ "type": "document",
                    "source": { "type": "base64", "media_type": "application/pdf", "data": "AAAA" } })
            }
            (Part::Sound, Operation::Chat) => {
                most.sound += 3;
                json!({ "type": "input_audio", "input_audio": { "data": wav, "format": "wav" } })
            }
            (Part::Document | Part::Sound, _) => continue,
        };
        content.push(sent);
    }
    most.input += most.images + most.sound;
    most.input += match mode {
        HoldMode::Usual => text_bytes * 2 / 3,
        HoldMode::Strict => text_bytes,
    };
    let turns = json!([{ "role": "user", "content": content }]);
    let mut body = json!({ "model": "m" });
    let choices = if op == Operation::Chat {
        wishes.choices
    } else {
        1
    };
    // The messages format always has a ceiling.
    let ceiling = match op {
        Operation::Messages => Some(wishes.max_tokens.unwrap_or(100)),
        _ => wishes.max_tokens,
    };
    most.output = ceiling.unwrap_or(OUTPUT_TOKENS_MAX) * choices;
    if let Some(tokens) = ceiling {
        let field = match op {
            Operation::Responses => "max_output_tokens",
            _ => "max_tokens",
        };
        body[field] = tokens.into();
    }
    let mut tools = Vec::new();
    match op {
        Operation::Chat => {
            body["messages"] = turns;
            body["n"] = choices.into();
            let mut modalities = vec!["text"];
            if wishes.speaks {
                modalities.push("audio");
                body["audio"] = json!({ "voice": "alloy", "format": "wav" });
            }
            if wishes.draws {
                modalities.push("image");
            }
            (most.speaks, most.draws) = (wishes.speaks, wishes.draws);
            body["modalities"] = json!(modalities);
            if wishes.function {
                tools.push(json!({ "type": "function", "function": { "name": "f" } }));
            }
        }
        Operation::Messages => {
            body["messages"] = turns;
            if wishes.searches > 0 {
                tools.push(json!({ "type": "web_search_20250305", "name": "web_search",
                    "max_uses": wishes.searches }));
                // All is read again behind each search, and what the searches before it found.
                let steps = wishes.searches + 1;
                most.searches = wishes.searches;
                most.images *= steps;
                most.input = most.input * steps + SEARCH_TOKENS * wishes.searches * steps / 2;
            }
            if wishes.fast {
                body["speed"] = json!("fast");
            }
            if wishes.us {
                body["inference_geo"] = json!("us");
            }
            (most.fast, most.us) = (wishes.fast, wishes.us);
        }
        _ => {
            body["input"] = turns;
            if wishes.function {
                tools.push(json!({ "type": "function", "name": "f" }));
            }
        }
    }
    if op != Operation::Messages && wishes.half_day {
        body["prompt_cache_options"] = json!({ "ttl": "12h" });
        most.half_day = true;
    }
    if wishes.priority {
        body["service_tier"] = json!("priority");
        most.priority = true;
    }
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    }
    (body, most)
}

/// A price of every class for each set of conditions.
fn prices(rates: &[u64]) -> PriceList {
    let word = |said: bool, word: &str| {
        if said {
            Label::new(word)
        } else {
            Label::default()
        }
    };
    let mut all = rates.chunks(11).zip(0_u8..16).map(|(rates, set)| {
        let rate = |index: usize| Rate::new(rates[index]);
        let classes = Class::ALL.into_iter().zip(4..);
        Price {
            input: rate(0),
            cached_input: rate(1),
            output: rate(2),
            cache_write: rate(3),
            classes: classes
                .map(|(class, index)| (class, Some(rate(index))))
                .collect(),
            condition: Condition {
                above_input_tokens: (set & 1 > 0).then_some(300),
                service_tier: word(set & 2 > 0, "priority"),
                speed: word(set & 4 > 0, "fast"),
                inference_geo: word(set & 8 > 0, "us"),
            },
            ..Price::default()
        }
    });
    let usual = all.next().expect("there are sixteen");
    PriceList::from(usual).rules(all)
}

/// What the vendor says: so many thousandths of the most, of the input that is left, and so on.
fn said(op: Operation, most: &Most, input: u64, thousandths: [u64; 10], flags: [bool; 4]) -> Value {
    let [
        _,
        cached,
        written,
        long,
        sound,
        images,
        output,
        spoken,
        drawn,
        searches,
    ] = thousandths;
    let [told, priority, fast, us] = flags;
    let part = |of: u64, thousandths: u64| of * thousandths / 1000;
    let if_asked = |asked: bool, count: u64| if asked { count } else { 0 };
    let cached = part(input, cached);
    let written = part(input - cached, written);
    let (hour, half_day) = (
        if_asked(most.hour, part(written, long)),
        if_asked(most.half_day, part(written, long)),
    );
    let output = part(most.output, output);
    let mut said = match op {
        Operation::Messages => {
            let mut said = json!({ "input_tokens": input - cached - written,
                "cache_read_input_tokens": cached, "cache_creation_input_tokens": written,
                "output_tokens": output,
                "server_tool_use": { "web_search_requests": part(most.searches, searches) } });
            if told {
                said["cache_creation"] = json!({ "ephemeral_1h_input_tokens": hour,
                    "ephemeral_5m_input_tokens": written - hour });
            }
            said
        }
        _ => {
            let spoken = if_asked(most.speaks, part(output, spoken));
            let drawn = if_asked(most.draws, part(output - spoken, drawn));
            let mut of_input = json!({ "cached_tokens": cached, "cache_write_tokens": written,
                "audio_tokens": part(most.sound.min(input), sound),
                "image_tokens": part(most.images.min(input), images) });
            if told {
                of_input["cache_write_tokens_details"] = json!({ "ttl_12h_tokens": half_day,
                    "ttl_30m_tokens": written - half_day });
            }
            let of_output = json!({ "audio_tokens": spoken, "image_tokens": drawn });
            match op {
                Operation::Chat => json!({ "prompt_tokens": input, "completion_tokens": output,
                    "prompt_tokens_details": of_input, "completion_tokens_details": of_output }),
                _ => json!({ "input_tokens": input, "output_tokens": output,
                    "input_tokens_details": of_input, "output_tokens_details": of_output }),
            }
        }
    };
    for (field, word, served) in [
        ("service_tier", "priority", priority && most.priority),
        ("speed", "fast", fast && most.fast),
        ("inference_geo", "us", us && most.us),
    ] {
        if served {
            said[field] = json!(word);
        }
    }
    said
}

fn read(op: Operation, said: &Value) -> VendorUsage {
    let json = said.to_string();
    let tier = said.get("service_tier").map(ToString::to_string);
    let read = match op {
        Operation::Chat => chat_usage(&json).map(|usage| usage.served_as(tier.as_deref())),
        Operation::Messages => MessagesUsage::of(&json).and_then(|usage| usage.counts()),
        _ => responses_usage(&json).map(|usage| usage.served_as(tier.as_deref())),
    };
    read.unwrap_or_else(|| panic!("{said}"))
}

proptest! {
    #[test]
    fn no_answer_that_a_request_can_bring_about_costs_more_than_was_held_for_it(
        op in prop::sample::select(vec![Operation::Chat, Operation::Messages, Operation::Responses]),
        strict in any::<bool>(), parts in parts(), wishes in wishes(), window in prop::option::of(500..100_000_u64),
        rates in prop::collection::vec(0..10_000_000_000_u64, 16 * 11),
        thousandths in prop::array::uniform10(0..=1000_u64), flags in prop::array::uniform4(any::<bool>()),
    ) {
        let mode = if strict { HoldMode::Strict } else { HoldMode::Usual };
        let (body, most) = request(op, &parts, &wishes, mode);
        let call = parse::call(op, &Bytes::from(body.to_string()), 100);
        let call = call.unwrap_or_else(|error| panic!("{body}: {error}"));
        let list = prices(&rates);
        if let Some(asks) = &call.asks {
            prop_assert_eq!(list.unpriced(asks.asked()), None);
            prop_assert_eq!((asks.unknown(), asks.unmeasured()), (None, None));
        }
        let mut model = Model::new("m", OUTPUT_TOKENS_MAX);
        model.input_tokens_max = window;
        let output_tokens = call.output_tokens.unwrap_or(OUTPUT_TOKENS_MAX);
        let mut req = Request::new(Priced {
            call: Arc::new(call),
            model: Arc::new(model),
            prices: list,
            output_tokens,
            meter: Meter::default(),
        });
        req.extensions_mut().insert(caller());
        let tariff = ByTokens::new(mode, IMAGE_TOKENS, DOCUMENT_TOKENS).search_tokens(SEARCH_TOKENS);
        let Quote { want, bill, .. } = tariff.quote(&req).unwrap();

        // Each step of the call has the window for itself.
        let most_input = window.map_or(most.input, |window| most.input.min(window * (most.searches + 1)));
        let input = (most_input * thousandths[0] / 1000).max(1);
        let said = said(op, &most, input, thousandths, flags);
        let VendorUsage { usage, cache_write_usual, served, unknown, suspect, .. } = read(op, &said);
        let reading = Reading {
            dispatched: true,
            usage: Some(usage),
            cache_write_usual,
            served,
            unknown,
            suspect,
            output_counted: true,
            end: Some(End::Finished),
            ..Reading::default()
        };
        let (charged, item) = bill.charge(&reading).unwrap();
        prop_assert!(charged <= want, "{charged:?} of {want:?}: {body} {said} {item:?}");
        prop_assert!(!item.bounded && !item.unpriced, "{body} {said} {item:?}");
        // Nothing of it is lost, and anyone can reckon it again.
        prop_assert_eq!(item.usage.input_total(), input);
        prop_assert_eq!(item.usage.output_total(), usage.output_total());
        let searches = |usage: Usage| usage.classes.get(Class::WebSearchCall);
        prop_assert_eq!(searches(item.usage), searches(usage));
        prop_assert_eq!(item.price.unwrap().cost(&item.usage), charged);
    }
}

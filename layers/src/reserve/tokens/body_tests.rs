//! Tests that no response that a vendor can give to a request costs more than the request's hold. The tests cover all
//! three formats, from the bytes of the request to its charge. They add up the most that a vendor can bill for each
//! part, independently of the code that they test.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{tests::caller, *};
use crate::{
    call::Operation,
    parse::{self, encode},
    price::{Condition, Label, Price, PriceList, Rate},
    reserve::Bill,
    usage::{End, Meter, Reading, Usage},
    vendor_usage::{MessagesUsage, VendorUsage, chat_usage, responses_usage},
};

const IMAGE_TOKENS: u64 = 5_000;
const DOCUMENT_TOKENS: u64 = 50_000;
const SEARCH_TOKENS: u64 = 15_000;
const OUTPUT_TOKENS_MAX: u64 = 1_000;

#[derive(Clone, Debug)]
enum Part {
    /// A text with a cache lifetime: 0 for none, 1 for five minutes, 2 for an hour.
    Text(String, usize),
    /// A PNG of this size in pixels. `None` if the request has only its URL.
    Image(Option<(u32, u32)>),
    /// A PDF with this many pages. `None` if the request has only its URL.
    Document(Option<u64>),
    /// The result of a tool call, with these parts.
    Result(Vec<Self>),
    /// Sound of a tenth of a second, which is three tokens at the vendor that counts most.
    Sound,
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = prop_oneof![
        4 => ("[a-zа-я \"\\\\\n]{0,60}", 0..3_usize).prop_map(|(text, ttl)| Part::Text(text, ttl)),
        2 => prop::option::of((1..5000_u32, 1..5000_u32)).prop_map(Part::Image),
        2 => prop::option::of(1..200_u64).prop_map(Part::Document),
        1 => Just(Part::Sound),
    ];
    let inside = part
        .clone()
        .prop_filter("sound is no result", |part| !matches!(part, Part::Sound));
    let result = prop::collection::vec(inside, 1..4).prop_map(Part::Result);
    prop::collection::vec(prop_oneof![6 => part, 1 => result], 1..6)
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

/// The most that a vendor can bill for a request, and the billed features that the request allows.
#[derive(Debug, Default)]
struct Most {
    input: u64,
    images: u64,
    sound: u64,
    text_bytes: u64,
    /// Whether a document of the request can fill the context window.
    unseen: bool,
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

/// Returns the largest number of tokens that any vendor counts for an image of this size, according to the vendors'
/// guides.
fn image_tokens(width: u64, height: u64) -> u64 {
    // The image is scaled down until its longer side is at most `long_max` and its shorter side at most `short_max`.
    let fit = |long_max: u64, short_max: u64| {
        let (long, short) = (width.max(height), width.min(height));
        let (mut long, mut short) = (long, short.max(1));
        if long > long_max {
            (long, short) = (long_max, (short * long_max / long).max(1));
        }
        if short > short_max {
            (long, short) = (long * short_max / short, short_max);
        }
        (long, short)
    };
    let grid = |(long, short): (u64, u64), side: u64| long.div_ceil(side) * short.div_ceil(side);
    // Vendors count an image in one of these ways: 85 tokens and 170 per tile; 2.46 tokens per patch; patches of 28
    // pixels, at most 4 784; patches of 16 pixels, with a mark after each row.
    let tiles = 85 + 170 * grid(fit(2048, 768), 512);
    let patches = grid((width, height), 32).min(1536) * 246 / 100;
    let small = grid(fit(2576, 2576), 28).min(4784);
    let (long, short) = fit(1024, 1024);
    let smallest = grid((long, short), 16) + long.div_ceil(16);
    tiles.max(patches).max(small).max(smallest).max(258)
}

/// Returns a part in the wire format, and adds the most that it can cost to `most`. `None` if the format has no such
/// part.
fn content(op: Operation, part: &Part, mode: HoldMode, most: &mut Most) -> Option<Value> {
    // Creates a WAV file: a header of 48 bytes, then silence.
    let wav = || {
        format!(
            "UklGRuQSAABXQVZFZm10IBAAAAABAAEAwF0AAIC7AAACABAAZGF0YcASAAAAAAAA{}",
            "A".repeat(6396)
        )
    };
    Some(match part {
        Part::Text(text, ttl) => {
            most.text_bytes += text.len() as u64;
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
        Part::Image(size) => {
            most.images += size.map_or(IMAGE_TOKENS, |(width, height)| {
                image_tokens(width.into(), height.into())
            });
            let url = size.map_or("https://images.example/1".to_owned(), |(width, height)| {
                format!("data:image/png;base64,{}", encode(&png(width, height)))
            });
            match op {
                Operation::Chat => json!({ "type": "image_url", "image_url": { "url": url } }),
                Operation::Messages => json!({ "type": "image", "source": source(&url) }),
                _ => json!({ "type": "input_image", "image_url": url }),
            }
        }
        Part::Document(pages) => {
            // The Responses format refuses a document that is only a URL.
            let pages = pages.or((op == Operation::Responses).then_some(1));
            let is_unseen = pages.is_none() || mode == HoldMode::Strict;
            most.unseen |= is_unseen;
            // A vendor counts each page as text and as an image.
            most.input += pages.unwrap_or(0) * 3_000;
            most.images += pages.unwrap_or(0) * 4_784;
            let url = pages.map_or("https://files.example/1.pdf".to_owned(), |pages| {
                let page = "<< /Type /Page /Parent 2 0 R >>\n".repeat(pages as usize);
                let file = encode(format!("%PDF-1.7\n{page}").as_bytes());
                format!("data:application/pdf;base64,{file}")
            });
            match op {
                Operation::Chat => json!({ "type": "file", "file": { "file_data": url } }),
                Operation::Messages => json!({ "type": "document", "source": source(&url) }),
                _ => json!({ "type": "input_file", "file_data": url }),
            }
        }
        Part::Sound if op == Operation::Chat => {
            most.sound += 3;
            json!({ "type": "input_audio", "input_audio": { "data": wav(), "format": "wav" } })
        }
        Part::Result(parts) if op == Operation::Messages => {
            let parts = parts
                .iter()
                .filter_map(|part| content(op, part, mode, most));
            let parts = parts.collect::<Vec<_>>();
            json!({ "type": "tool_result", "tool_use_id": "t", "content": parts })
        }
        Part::Sound | Part::Result(_) => return None,
    })
}

/// Returns the head of a PNG file of this size.
fn png(width: u32, height: u32) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1A\n\0\0\0\rIHDR".to_vec();
    file.extend(width.to_be_bytes());
    file.extend(height.to_be_bytes());
    file
}

/// Returns the field `source` of a part in the Messages format.
fn source(url: &str) -> Value {
    match url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"))
    {
        Some((kind, data)) => json!({ "type": "base64", "media_type": kind, "data": data }),
        None => json!({ "type": "url", "url": url }),
    }
}

/// Returns a request body, and the most that a vendor can bill for it. Features in `wishes` for which the format has no
/// field are left out.
fn request(op: Operation, parts: &[Part], wishes: &Wishes, mode: HoldMode) -> (Value, Most) {
    let mut most = Most::default();
    // A turn must have content, so each body has at least this text.
    let first = Part::Text("x".into(), 0);
    let content = std::iter::once(&first)
        .chain(parts)
        .filter_map(|part| content(op, part, mode, &mut most))
        .collect::<Vec<_>>();
    most.input += most.images + most.sound;
    most.input += match mode {
        HoldMode::Usual => most.text_bytes * 2 / 3,
        HoldMode::Strict => most.text_bytes,
    };
    let turns = json!([{ "role": "user", "content": content }]);
    let mut body = json!({ "model": "m" });
    let choices = if op == Operation::Chat {
        wishes.choices
    } else {
        1
    };
    // In the Messages format, `max_tokens` is required.
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
                // After each search, the vendor reads the whole input again, together with the results of all searches
                // so far.
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

/// Returns prices for all classes: one list for each combination of the four conditions.
fn prices(rates: &[u64]) -> PriceList {
    let word = |reported: bool, word: &str| {
        if reported {
            Label::new(word)
        } else {
            Label::default()
        }
    };
    let mut all = rates.chunks(15).zip(0_u8..16).map(|(rates, set)| {
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
                ..Condition::default()
            },
            ..Price::default()
        }
    });
    let usual = all.next().expect("there are sixteen");
    PriceList::from(usual).rules(all)
}

/// Returns a usage that the vendor may report. Each count is given in thousandths of its maximum or, for input, of the
/// input that remains.
fn reported(
    op: Operation,
    most: &Most,
    input: u64,
    thousandths: [u64; 10],
    flags: [bool; 4],
) -> Value {
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
    let [returned, priority, fast, us] = flags;
    let part = |of: u64, thousandths: u64| of * thousandths / 1000;
    let if_asked = |requested: bool, count: u64| if requested { count } else { 0 };
    let cached = part(input, cached);
    let written = part(input - cached, written);
    let (hour, half_day) = (
        if_asked(most.hour, part(written, long)),
        if_asked(most.half_day, part(written, long)),
    );
    let output = part(most.output, output);
    let mut reported = match op {
        Operation::Messages => {
            let mut reported = json!({ "input_tokens": input - cached - written,
                "cache_read_input_tokens": cached, "cache_creation_input_tokens": written,
                "output_tokens": output,
                "server_tool_use": { "web_search_requests": part(most.searches, searches) } });
            if returned {
                reported["cache_creation"] = json!({ "ephemeral_1h_input_tokens": hour,
                    "ephemeral_5m_input_tokens": written - hour });
            }
            reported
        }
        _ => {
            let spoken = if_asked(most.speaks, part(output, spoken));
            let drawn = if_asked(most.draws, part(output - spoken, drawn));
            let mut of_input = json!({ "cached_tokens": cached, "cache_write_tokens": written,
                "audio_tokens": part(most.sound.min(input), sound),
                "image_tokens": part(most.images.min(input), images) });
            if returned {
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
            reported[field] = json!(word);
        }
    }
    reported
}

fn read(op: Operation, reported: &Value) -> VendorUsage {
    let json = reported.to_string();
    let tier = reported.get("service_tier").map(ToString::to_string);
    let read = match op {
        Operation::Chat => chat_usage(&json).map(|usage| usage.served_as(tier.as_deref())),
        Operation::Messages => MessagesUsage::of(&json).and_then(|usage| usage.counts()),
        _ => responses_usage(&json).map(|usage| usage.served_as(tier.as_deref())),
    };
    read.unwrap_or_else(|| panic!("{reported}"))
}

proptest! {
    #[test]
    fn no_response_costs_more_than_the_hold_of_its_request(
        op in prop::sample::select(vec![Operation::Chat, Operation::Messages, Operation::Responses]),
        strict in any::<bool>(), parts in parts(), wishes in wishes(), window in prop::option::of(500..100_000_u64),
        rates in prop::collection::vec(0..10_000_000_000_u64, 16 * 15),
        thousandths in prop::array::uniform10(0..=1000_u64), flags in prop::array::uniform4(any::<bool>()),
    ) {
        let mode = if strict { HoldMode::Strict } else { HoldMode::Usual };
        let (body, mut most) = request(op, &parts, &wishes, mode);
        let call = parse::call(op, &Bytes::from(body.to_string()), 100);
        let call = call.unwrap_or_else(|error| panic!("{body}: {error}"));
        let list = prices(&rates);
        if let Some(asks) = &call.asks {
            prop_assert_eq!(list.unpriced(asks.extras()), None);
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
        let quote = tariff.quote(&req);
        // A request whose content can fill the context window is accepted only if the window's size is known.
        if let Err(error) = quote {
            let refused = matches!(error, Error::Invalid { problem: Problem::SizeUnseen, .. });
            prop_assert!(refused && most.unseen && window.is_none(), "{body}: {error}");
            return Ok(());
        }
        let Quote { want, bill, .. } = quote.unwrap();
        if most.unseen && let Some(window) = window {
            most.input = most.input.max(window * (most.searches + 1));
        }

        // A call has a step after each search, and each step may fill the context window.
        let most_input = window.map_or(most.input, |window| most.input.min(window * (most.searches + 1)));
        let input = (most_input * thousandths[0] / 1000).max(1);
        let reported = reported(op, &most, input, thousandths, flags);
        let VendorUsage { usage, cache_write_usual, served, unknown, suspect, .. } = read(op, &reported);
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
        prop_assert!(charged <= want, "{charged:?} of {want:?}: {body} {reported} {item:?}");
        prop_assert!(!item.bounded && !item.unpriced, "{body} {reported} {item:?}");
        // The receipt has the complete usage, from which anybody can compute the charge again.
        prop_assert_eq!(item.usage.input_total(), input);
        prop_assert_eq!(item.usage.output_total(), usage.output_total());
        let searches = |usage: Usage| usage.classes.get(Class::WebSearchCall);
        prop_assert_eq!(searches(item.usage), searches(usage));
        prop_assert_eq!(item.price.unwrap().cost(&item.usage), charged);
    }
}

/// Generates a count that may contradict other counts, or an invalid value.
fn any_count() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => (0..400_u64).prop_map(Value::from),
        2 => (0..40_000_u64).prop_map(Value::from),
        1 => prop::sample::select(vec![json!(null), json!(-1), json!("7"), json!(u64::MAX), json!(1e30)]),
    ]
}

proptest! {
    /// Even if the vendor's counts contradict each other, the call is charged at most its hold, and no class has more
    /// tokens than the request allows.
    #[test]
    fn contradictory_vendor_counts_cost_at_most_what_the_request_allowed(
        op in prop::sample::select(vec![Operation::Chat, Operation::Messages, Operation::Responses]),
        strict in any::<bool>(), counts in prop::array::uniform7(any_count()), total in 0..3_usize, shown in 0..128_u8,
        rates in prop::collection::vec(0..10_000_000_000_u64, 15), text_bytes in 0..400_u64,
    ) {
        let mode = if strict { HoldMode::Strict } else { HoldMode::Usual };
        let text = "вопрос и ещё немного текста";
        let turns = json!([{ "role": "user", "content": text }]);
        let body = match op {
            Operation::Responses => json!({ "model": "m", "max_output_tokens": 300, "input": turns }),
            _ => json!({ "model": "m", "max_tokens": 300, "messages": turns }),
        };
        let call = parse::call(op, &Bytes::from(body.to_string()), 100).unwrap();
        let mut req = Request::new(Priced {
            call: Arc::new(call),
            model: Arc::new(Model::new("m", OUTPUT_TOKENS_MAX)),
            prices: PriceList::from(prices(&rates).usual),
            output_tokens: 300,
            meter: Meter::default(),
        });
        req.extensions_mut().insert(caller());
        let Quote { want, bill, .. } = ByTokens::new(mode, 0, 0).quote(&req).unwrap();
        let limit = bill.bounds.input_limit;

        let shown = |place: usize| (shown >> place & 1 > 0).then(|| counts[place].clone());
        let sum: u64 = counts[..5].iter().filter_map(Value::as_u64).fold(0, u64::saturating_add);
        let total = [None, shown(5), Some(sum.into())][total].clone();
        let reported = match op {
            Operation::Messages => json!({ "input_tokens": shown(0), "output_tokens": shown(1),
                "cache_read_input_tokens": shown(2), "cache_creation_input_tokens": shown(3) }),
            Operation::Chat => json!({ "prompt_tokens": shown(0), "completion_tokens": shown(1), "total_tokens": total,
                "prompt_tokens_details": { "cached_tokens": shown(2), "cache_write_tokens": shown(3) },
                "completion_tokens_details": { "reasoning_tokens": shown(4) }, "reasoning_tokens": shown(6) }),
            _ => json!({ "input_tokens": shown(0), "output_tokens": shown(1), "total_tokens": total,
                "input_tokens_details": { "cached_tokens": shown(2), "cache_write_tokens": shown(3) },
                "output_tokens_details": { "reasoning_tokens": shown(4) }, "reasoning_tokens": shown(6) }),
        };
        let json = reported.to_string();
        let read = match op {
            Operation::Chat => chat_usage(&json),
            Operation::Messages => MessagesUsage::of(&json).and_then(|usage| usage.counts()),
            _ => responses_usage(&json),
        };
        let suspect = read.is_none_or(|read| read.suspect);
        let reading = Reading {
            dispatched: true,
            usage: read.map(|read| read.usage),
            others: read.map_or([None; 2], |read| read.others),
            suspect,
            output_counted: read.is_some(),
            text_bytes,
            text_tokens: text_bytes / 3,
            end: Some(End::Finished),
            ..Reading::default()
        };
        let (charged, item) = bill.charge(&reading).unwrap();
        prop_assert!(item.usage.input_total() <= limit, "{reported} {item:?}");
        prop_assert!(item.usage.output_total() <= 300, "{reported} {item:?}");
        prop_assert!(charged <= want, "{charged:?} of {want:?}: {reported} {item:?}");
        prop_assert_eq!(item.price.unwrap().cost(&item.usage), charged);
        prop_assert_eq!(item.bounded, item.vendor_usage.is_some());
        prop_assert_eq!(item.bounded, item.bounded_loss_rub.is_some());
        prop_assert!(!suspect || item.estimated);
    }
}

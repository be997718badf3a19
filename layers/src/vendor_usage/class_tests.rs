//! Tests that every rate class that vendors count is read from the usage of the Chat Completions and Messages formats,
//! in plain responses and in streams.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::price::{Class, Kind};

fn chat(usage: &Value) -> VendorUsage {
    chat_usage(&usage.to_string()).unwrap_or_else(|| panic!("{usage}"))
}

/// Reads the usage of a Messages stream from its events.
fn messages(events: &[Value]) -> VendorUsage {
    let mut all = MessagesUsage::default();
    for event in events {
        all.replace_by(MessagesUsage::of(&event.to_string()).unwrap());
    }
    all.counts().unwrap_or_else(|| panic!("{events:?}"))
}

/// The counts of input, cached, written and output tokens, followed by the counts of the other rate classes.
type Read = ([u64; 4], Vec<(Class, u64)>);

fn read(reported: &VendorUsage) -> Read {
    let Usage {
        input,
        cached_input,
        cache_write,
        output,
        classes,
    } = reported.usage;
    (
        [input, cached_input, cache_write, output],
        classes.iter().collect(),
    )
}

#[test]
fn class_counts_of_chat_usage_are_parts_of_its_totals() {
    let of = |prompt: Value, completion: Value| {
        chat(&json!({ "prompt_tokens": 100, "completion_tokens": 50,
            "prompt_tokens_details": prompt, "completion_tokens_details": completion }))
    };
    for (prompt, completion, four, classes) in [
        (Value::Null, Value::Null, [100, 0, 0, 50], vec![]),
        (json!({}), json!({}), [100, 0, 0, 50], vec![]),
        (
            json!({ "cached_tokens": 30, "cache_write_tokens": 20 }),
            Value::Null,
            [50, 30, 20, 50],
            vec![],
        ),
        (
            json!({ "audio_tokens": 40 }),
            Value::Null,
            [60, 0, 0, 50],
            vec![(Class::InputAudio, 40)],
        ),
        (
            json!({ "image_tokens": 40 }),
            Value::Null,
            [60, 0, 0, 50],
            vec![(Class::InputImage, 40)],
        ),
        (
            Value::Null,
            json!({ "audio_tokens": 10 }),
            [100, 0, 0, 40],
            vec![(Class::OutputAudio, 10)],
        ),
        (
            Value::Null,
            json!({ "image_tokens": 10, "audio_tokens": 40, "reasoning_tokens": 0 }),
            [100, 0, 0, 0],
            vec![(Class::OutputAudio, 40), (Class::OutputImage, 10)],
        ),
        (
            json!({ "cache_write_tokens": 30, "cache_write_tokens_details": { "ttl_30m_tokens": 10, "ttl_12h_tokens": 20 } }),
            Value::Null,
            [70, 0, 10, 50],
            vec![(Class::CacheWrite12h, 20)],
        ),
        // In the following cases, the total of tokens written to the cache is missing, or is larger than the sum of the
        // counts for both cache lifetimes.
        (
            json!({ "cache_write_tokens_details": { "ttl_30m_tokens": 10, "ttl_12h_tokens": 20 } }),
            Value::Null,
            [70, 0, 10, 50],
            vec![(Class::CacheWrite12h, 20)],
        ),
        (
            json!({ "cache_write_tokens": 35, "cache_write_tokens_details": { "ttl_30m_tokens": 10, "ttl_12h_tokens": 20 } }),
            Value::Null,
            [65, 0, 15, 50],
            vec![(Class::CacheWrite12h, 20)],
        ),
        // The vendor reports how many cached tokens are sound and how many are images.
        (
            json!({ "audio_tokens": 40, "image_tokens": 20, "cached_tokens": 35,
                "cached_tokens_details": { "audio_tokens": 10, "image_tokens": 5, "text_tokens": 20 } }),
            Value::Null,
            [20, 20, 0, 50],
            vec![
                (Class::CachedInputAudio, 10),
                (Class::CachedInputImage, 5),
                (Class::InputAudio, 30),
                (Class::InputImage, 15),
            ],
        ),
        (
            json!({ "audio_tokens": 5, "cached_tokens": 9, "cached_tokens_details": { "audio_tokens": 70 } }),
            Value::Null,
            [91, 4, 0, 50],
            vec![(Class::CachedInputAudio, 5)],
        ),
        // Sound that was read from the cache counts as sound, not as cached text.
        (
            json!({ "audio_tokens": 90, "cached_tokens": 30 }),
            Value::Null,
            [0, 10, 0, 50],
            vec![(Class::InputAudio, 90)],
        ),
    ] {
        let reported = of(prompt.clone(), completion.clone());
        assert_eq!(read(&reported), (four, classes), "{prompt} {completion}");
        assert!(
            !reported.suspect && !reported.unknown,
            "{prompt} {completion}"
        );
    }
}

#[test]
fn counts_per_cache_lifetime_in_message_start_survive_later_totals() {
    let start = |written: u64, usual: u64, hour: u64| {
        json!({ "input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 7, "cache_creation_input_tokens": written,
            "cache_creation": { "ephemeral_5m_input_tokens": usual, "ephemeral_1h_input_tokens": hour },
            "service_tier": "priority", "speed": "fast", "inference_geo": "us" })
    };
    let hour = |count: u64| vec![(Class::CacheWrite1h, count)];
    for (events, four, classes) in [
        (vec![start(30, 10, 20)], [5, 7, 10, 1], hour(20)),
        (
            vec![start(30, 10, 20), json!({ "output_tokens": 9 })],
            [5, 7, 10, 9],
            hour(20),
        ),
        // A later event repeats the total of tokens written to the cache: the same number, a higher number, or null.
        (
            vec![
                start(30, 10, 20),
                json!({ "output_tokens": 9, "cache_creation_input_tokens": 30 }),
            ],
            [5, 7, 10, 9],
            hour(20),
        ),
        (
            vec![
                start(30, 10, 20),
                json!({ "output_tokens": 9, "cache_creation_input_tokens": 44, "input_tokens": 6 }),
            ],
            [6, 7, 24, 9],
            hour(20),
        ),
        (
            vec![
                start(30, 10, 20),
                json!({ "output_tokens": 9, "cache_creation_input_tokens": null }),
            ],
            [5, 7, 10, 9],
            hour(20),
        ),
        // The last event reports its own split of written tokens by cache lifetime. The last split replaces the split
        // of the first event.
        (
            vec![
                start(30, 10, 20),
                json!({ "output_tokens": 9, "cache_creation_input_tokens": 50,
                    "cache_creation": { "ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 40 } }),
            ],
            [5, 7, 10, 9],
            hour(40),
        ),
        // The vendor reports the number of searches in the last event.
        (
            vec![
                start(0, 0, 0),
                json!({ "output_tokens": 9, "server_tool_use": { "web_search_requests": 2 } }),
                json!({ "output_tokens": 9 }),
            ],
            [5, 7, 0, 9],
            vec![(Class::WebSearchCall, 2)],
        ),
    ] {
        let reported = messages(&events);
        assert_eq!(read(&reported), (four, classes), "{events:?}");
        assert!(!reported.suspect && !reported.unknown, "{events:?}");
        let [tier, speed, geo] = ["priority", "fast", "us"].map(Label::new);
        let served = Served {
            service_tier: tier,
            speed,
            inference_geo: geo,
        };
        assert_eq!(reported.served, served, "{events:?}");
    }
}

#[test]
fn tokens_missing_from_the_details_are_counted_from_the_totals() {
    for details in [
        json!({}),
        json!({ "cache_creation": null, "server_tool_use": null }),
        json!({ "cache_creation": {} }),
        json!({ "cache_creation": { "ephemeral_5m_input_tokens": null } }),
    ] {
        let mut usage =
            json!({ "input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 30 });
        for (name, value) in details.as_object().unwrap() {
            usage[name] = value.clone();
        }
        assert_eq!(
            read(&messages(&[usage])),
            ([1, 0, 30, 2], vec![]),
            "{details}"
        );
    }
}

#[test]
fn calls_of_an_unknown_tool_are_reported_as_unknown() {
    for (tools, searches, unknown) in [
        (json!(null), 0, false),
        (json!({}), 0, false),
        (
            json!({ "web_search_requests": 3, "web_fetch_requests": 9 }),
            3,
            false,
        ),
        (
            json!({ "web_search_requests": 0, "code_runs": 0 }),
            0,
            false,
        ),
        (json!({ "code_runs": null }), 0, false),
        (json!({ "web_search_requests": 3, "code_runs": 1 }), 3, true),
        (json!({ "web_search_requests": "3" }), 0, true),
        (json!({ "code_runs": { "seconds": 3 } }), 0, true),
        (json!([1]), 0, true),
        (json!(5), 0, true),
    ] {
        let reported = [
            messages(&[json!({ "input_tokens": 1, "output_tokens": 2, "server_tool_use": tools })]),
            chat(&json!({ "prompt_tokens": 1, "completion_tokens": 2, "server_tool_use": tools })),
        ];
        for reported in reported {
            let read = reported.usage.classes.get(Class::WebSearchCall);
            assert_eq!((read, reported.unknown), (searches, unknown), "{tools}");
        }
    }
}

#[test]
fn tool_calls_are_counted_under_other_vendors_field_names() {
    for (tools, searches, unknown) in [
        (json!(null), 0, false),
        (
            json!({ "web_search_calls": 0, "x_search_calls": 0 }),
            0,
            false,
        ),
        (json!({ "web_search_calls": 2, "mcp_calls": 0 }), 2, false),
        (
            json!({ "web_search_calls": 2, "x_search_calls": 1 }),
            2,
            true,
        ),
        (json!({ "web_search_calls": -1 }), 0, true),
        (json!("2"), 0, true),
    ] {
        let chat = chat(&json!({ "prompt_tokens": 1, "completion_tokens": 2,
            "server_side_tool_usage_details": tools }));
        let responses = json!({ "input_tokens": 1, "output_tokens": 2,
            "server_side_tool_usage_details": tools });
        let responses = responses_usage(&responses.to_string()).unwrap();
        for reported in [chat, responses] {
            let read = reported.usage.classes.get(Class::WebSearchCall);
            assert_eq!((read, reported.unknown), (searches, unknown), "{tools}");
        }
    }
}

#[test]
fn invalid_class_counts_are_flagged() {
    for usage in [
        json!({ "prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": "x" } }),
        json!({ "prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": { "cache_write_tokens": -1 } }),
        json!({ "prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 10 } }),
    ] {
        assert!(chat(&usage).suspect, "{usage}");
    }
    let split = json!({ "input_tokens": 1, "output_tokens": 2, "cache_creation": { "ephemeral_1h_input_tokens": "x" } });
    assert!(messages(&[split]).suspect);
}

proptest! {
    /// Each token of a total is counted in exactly one class, for any split by cache lifetime. Tokens that are in
    /// neither the 5-minute nor the 1-hour count are charged too.
    #[test]
    fn every_token_is_counted_exactly_once(
        parts in prop::array::uniform4(0u64..1000), beyond in 0u64..100, prompt in 0u64..5000, completion in 0u64..500,
        details in prop::array::uniform8(0u64..1500),
    ) {
        let [input, cached, usual, hour] = parts;
        let reported = messages(&[json!({ "input_tokens": input, "cache_read_input_tokens": cached, "output_tokens": 1,
            "cache_creation_input_tokens": usual + hour + beyond,
            "cache_creation": { "ephemeral_5m_input_tokens": usual, "ephemeral_1h_input_tokens": hour } })]);
        prop_assert_eq!(reported.usage.input_total(), input + cached + usual + hour + beyond);
        prop_assert_eq!(reported.usage.cache_write, usual + beyond);
        prop_assert_eq!(reported.cache_write_usual, usual);
        let [audio, image, cached, written, half_hour, half_day, sound, picture] = details;
        let reported = chat(&json!({ "prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion, "prompt_tokens_details": { "audio_tokens": audio, "image_tokens": image, "cached_tokens": cached,
                "cache_write_tokens": written,
                "cache_write_tokens_details": { "ttl_30m_tokens": half_hour, "ttl_12h_tokens": half_day } },
            "completion_tokens_details": { "audio_tokens": sound, "image_tokens": picture } }));
        prop_assert_eq!(reported.usage.input_total(), prompt);
        prop_assert_eq!(reported.usage.output_total(), completion);
        prop_assert_eq!(reported.usage.classes.get(Class::InputAudio), audio.min(prompt));
        prop_assert_eq!(reported.usage.classes.total(Kind::Call), 0);
    }
}

#[test]
fn output_reported_only_in_the_total_is_counted() {
    for (usage, output, suspect) in [
        // The vendor counts thinking tokens only in the total.
        (
            json!({ "prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 103 }),
            94,
            true,
        ),
        (
            json!({ "prompt_tokens": 8, "completion_tokens": 9, "total_tokens": 400,
                "completion_tokens_details": { "reasoning_tokens": 383 } }),
            392,
            false,
        ),
        (
            json!({ "prompt_tokens": 8, "completion_tokens": 9, "total_tokens": 400,
                "completion_tokens_details": { "reasoning_tokens": 380 } }),
            392,
            true,
        ),
        (
            json!({ "prompt_tokens": 8, "completion_tokens": 100,
                "completion_tokens_details": { "reasoning_tokens": 300 } }),
            400,
            true,
        ),
        // A total that is lower than the sum of its parts is ignored.
        (
            json!({ "prompt_tokens": 8, "completion_tokens": 9, "total_tokens": 9 }),
            9,
            true,
        ),
        (
            json!({ "completion_tokens": 9, "total_tokens": 17 }),
            9,
            true,
        ),
    ] {
        let reported = chat(&usage);
        assert_eq!(
            (reported.usage.output, reported.suspect),
            (output, suspect),
            "{usage}"
        );
    }
}

#[test]
fn cached_tokens_are_counted_under_each_chat_vendors_field_name() {
    for (usage, four, hour) in [
        (
            json!({ "prompt_tokens": 1500, "completion_tokens": 20, "prompt_tokens_details":
                { "cached_tokens": 0, "cache_creation_input_tokens": 1400 } }),
            [100, 0, 1400, 20],
            0,
        ),
        (
            json!({ "prompt_tokens": 1500, "completion_tokens": 20, "prompt_tokens_details":
                { "cache_creation_input_tokens": 1400, "cache_creation":
                    { "ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 1000 } } }),
            [100, 0, 400, 20],
            1000,
        ),
        (
            json!({ "prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 60 }),
            [40, 60, 0, 20],
            0,
        ),
        (
            json!({ "prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 60,
                "prompt_tokens_details": { "cached_tokens": 50 } }),
            [50, 50, 0, 20],
            0,
        ),
    ] {
        let (counts, classes) = read(&chat(&usage));
        assert_eq!(counts, four, "{usage}");
        let expected: Vec<_> = (hour > 0)
            .then_some((Class::CacheWrite1h, hour))
            .into_iter()
            .collect();
        assert_eq!(classes, expected, "{usage}");
    }
}

#[test]
fn tokens_for_summarizing_a_conversation_are_counted_with_those_of_the_response() {
    let reported = messages(&[
        json!({ "input_tokens": 23_000, "output_tokens": 1000, "iterations": [
        { "type": "compaction", "input_tokens": 180_000, "output_tokens": 3500, "cache_read_input_tokens": 7 },
        { "type": "message", "input_tokens": 23_000, "output_tokens": 1000 },
    ] }),
    ]);
    assert_eq!(read(&reported).0, [203_000, 7, 0, 4500]);
    assert!(!reported.unknown);
    let reported = messages(&[
        json!({ "input_tokens": 1, "output_tokens": 1, "iterations": [
        { "type": "advisor_message", "input_tokens": 5, "output_tokens": 5 },
    ] }),
    ]);
    assert!(reported.unknown);
    // If `iterations` cannot be parsed, the other counts still apply.
    for odd in [json!(1), json!([1]), json!({ "type": "compaction" })] {
        let reported =
            messages(&[json!({ "input_tokens": 100, "output_tokens": 20, "iterations": odd })]);
        assert_eq!(read(&reported).0, [100, 0, 0, 20]);
        assert!(reported.unknown);
    }
}

#[test]
fn input_count_of_zero_in_a_later_event_is_ignored() {
    let reported = messages(&[
        json!({ "input_tokens": 100, "cache_creation_input_tokens": 1000, "cache_read_input_tokens": 5,
            "cache_creation": { "ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600 }, "output_tokens": 1 }),
        json!({ "input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7 }),
    ]);
    assert_eq!(
        read(&reported),
        ([100, 5, 400, 7], vec![(Class::CacheWrite1h, 600)])
    );
    // If a later event counts the input again, its counts replace all earlier counts of the input. A zero in one class
    // is then valid if another class has a count.
    let reported = messages(&[
        json!({ "input_tokens": 1000, "output_tokens": 0 }),
        json!({ "input_tokens": 0, "cache_read_input_tokens": 1000, "output_tokens": 7 }),
    ]);
    assert_eq!(read(&reported), ([0, 1000, 0, 7], vec![]));
}

/// The counts of prompt, completion, total, cached and written tokens, of reasoning inside and outside the details
/// object, and of searches.
type Said = [Option<u64>; 8];

fn in_both_formats(reported: Said) -> [VendorUsage; 2] {
    let [
        prompt,
        completion,
        total,
        cached,
        written,
        reasoning,
        top,
        searches,
    ] = reported;
    let usage = |input: &str, output: &str| {
        let of_input = json!({ "cached_tokens": cached, "cache_write_tokens": written });
        json!({ format!("{input}_tokens"): prompt, format!("{output}_tokens"): completion, "total_tokens": total,
            format!("{input}_tokens_details"): of_input,
            format!("{output}_tokens_details"): { "reasoning_tokens": reasoning },
            "reasoning_tokens": top, "num_search_queries": searches })
    };
    let responses = responses_usage(&usage("input", "output").to_string()).unwrap();
    [chat(&usage("prompt", "completion")), responses]
}

#[test]
fn interpretations_of_contradictory_counts_add_up_and_the_cheapest_is_first() {
    let reported = |counts: [u64; 3], more: &[(usize, u64)]| {
        let mut reported: Said = [None; 8];
        for (place, count) in counts
            .into_iter()
            .enumerate()
            .filter(|(_, count)| *count > 0)
        {
            reported[place] = Some(count);
        }
        more.iter()
            .for_each(|(place, count)| reported[*place] = Some(*count));
        reported
    };
    const CACHED: usize = 3;
    const WRITTEN: usize = 4;
    const REASONING: usize = 5;
    const TOP: usize = 6;
    const SEARCHES: usize = 7;
    // Columns: the counts of prompt, completion and total; other fields; the input, cached, written and output tokens
    // of each interpretation; whether the usage is suspect.
    for (counts, more, readings, suspect) in [
        // The vendor counts cached tokens in addition to the prompt. It reports a total, or none.
        (
            [479, 373, 14_164],
            &[(CACHED, 13_312)][..],
            vec![[479, 13_312, 0, 373], [0, 479, 0, 373]],
            true,
        ),
        (
            [479, 373, 0],
            &[(CACHED, 13_312)],
            vec![[479, 13_312, 0, 373], [0, 479, 0, 373]],
            true,
        ),
        (
            [1000, 10, 1410],
            &[(CACHED, 400)],
            vec![[1000, 400, 0, 10], [600, 400, 0, 10]],
            true,
        ),
        (
            [10, 5, 4027],
            &[(WRITTEN, 4012)],
            vec![[10, 0, 4012, 5], [0, 0, 10, 5]],
            true,
        ),
        (
            [10, 5, 4327],
            &[(WRITTEN, 4012), (CACHED, 300)],
            vec![[10, 300, 4012, 5], [0, 10, 0, 5]],
            true,
        ),
        // The vendor counts cached tokens as a part of the prompt, as the format defines it.
        (
            [1000, 10, 1010],
            &[(CACHED, 400)],
            vec![[600, 400, 0, 10]],
            false,
        ),
        // If the total includes both the completion and the reasoning, the vendor counts reasoning in addition to the
        // completion. One vendor counts reasoning neither in the completion nor in the total. So if the total does not
        // include the reasoning, a reasoning count outside the details object that is larger than the completion is
        // additional.
        (
            [18, 30, 363],
            &[(REASONING, 315)],
            vec![[18, 0, 0, 345]],
            false,
        ),
        ([18, 30, 363], &[(TOP, 315)], vec![[18, 0, 0, 345]], false),
        ([18, 345, 363], &[(TOP, 315)], vec![[18, 0, 0, 345]], false),
        (
            [33, 7163, 7196],
            &[(TOP, 73_995)],
            vec![[33, 0, 0, 81_158], [33, 0, 0, 7163]],
            true,
        ),
        (
            [43, 10, 53],
            &[(REASONING, 11)],
            vec![[43, 0, 0, 10]],
            false,
        ),
        // The vendor counts cached tokens in addition to the prompt, and reasoning in addition to the completion.
        (
            [100, 10, 730],
            &[(CACHED, 500), (REASONING, 120)],
            vec![[100, 500, 0, 130], [0, 100, 0, 10]],
            true,
        ),
        // A difference to the total that no other rule explains is thinking, or input that tools have read. If tools
        // were used, the first interpretation is input.
        (
            [9, 1, 103],
            &[],
            vec![[9, 0, 0, 94], [102, 0, 0, 1], [9, 0, 0, 1]],
            true,
        ),
        (
            [9, 1, 103],
            &[(SEARCHES, 2)],
            vec![[102, 0, 0, 1], [9, 0, 0, 94], [9, 0, 0, 1]],
            true,
        ),
        // A total that is lower than the sum of its parts is ignored.
        ([9, 5, 3], &[], vec![[9, 0, 0, 5]], true),
    ] {
        for read in in_both_formats(reported(counts, more)) {
            let all = std::iter::once(Some(read.usage))
                .chain(read.others)
                .flatten();
            let four = |usage: Usage| {
                [
                    usage.input,
                    usage.cached_input,
                    usage.cache_write,
                    usage.output,
                ]
            };
            let found: Vec<_> = all.map(four).collect();
            assert_eq!(
                (found, read.suspect),
                (readings.clone(), suspect),
                "{counts:?} {more:?}"
            );
        }
    }
    let [read, _] = in_both_formats(reported([9, 1, 10], &[(SEARCHES, 18)]));
    assert_eq!(read.usage.classes.get(Class::WebSearchCall), 18);
    let odd =
        chat(&json!({ "prompt_tokens": 9, "completion_tokens": 1, "num_search_queries": "many" }));
    assert!(odd.unknown);
}

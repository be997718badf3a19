//! Every class that vendors count, in both formats, plain and in streams.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::price::Kind;

fn chat(usage: &Value) -> VendorUsage {
    chat_usage(&usage.to_string()).unwrap_or_else(|| panic!("{usage}"))
}

/// One event behind the other.
fn messages(events: &[Value]) -> VendorUsage {
    let mut all = MessagesUsage::default();
    for event in events {
        all.replace_by(MessagesUsage::of(&event.to_string()).unwrap());
    }
    all.counts().unwrap_or_else(|| panic!("{events:?}"))
}

/// Input, cached, written, output, and what else there is.
type Read = ([u64; 4], Vec<(Class, u64)>);

fn read(said: &VendorUsage) -> Read {
    let Usage {
        input,
        cached_input,
        cache_write,
        output,
        classes,
    } = said.usage;
    (
        [input, cached_input, cache_write, output],
        classes.iter().collect(),
    )
}

#[test]
fn the_chat_format_has_every_class_inside_its_totals() {
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
        // Without the total, and with a total above both.
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
        // Sound that was read from the cache is sound.
        (
            json!({ "audio_tokens": 90, "cached_tokens": 30 }),
            Value::Null,
            [0, 10, 0, 50],
            vec![(Class::InputAudio, 90)],
        ),
    ] {
        let said = of(prompt.clone(), completion.clone());
        assert_eq!(read(&said), (four, classes), "{prompt} {completion}");
        assert!(!said.suspect && !said.unknown, "{prompt} {completion}");
    }
}

#[test]
fn a_split_in_message_start_stays_and_totals_that_are_raised_are_not_lost() {
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
        // The same total again, a higher one, null.
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
        // A split of its own.
        (
            vec![
                start(30, 10, 20),
                json!({ "output_tokens": 9, "cache_creation_input_tokens": 50,
                    "cache_creation": { "ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 40 } }),
            ],
            [5, 7, 10, 9],
            hour(40),
        ),
        // Searches come with the end.
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
        let said = messages(&events);
        assert_eq!(read(&said), (four, classes), "{events:?}");
        assert!(!said.suspect && !said.unknown, "{events:?}");
        let [tier, speed, geo] = ["priority", "fast", "us"].map(Label::new);
        let served = Served {
            service_tier: tier,
            speed,
            inference_geo: geo,
        };
        assert_eq!(said.served, served, "{events:?}");
    }
}

#[test]
fn what_the_details_leave_out_is_in_the_totals_all_the_same() {
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
fn a_tool_that_nobody_knows_is_never_free_of_notice() {
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
        let said = [
            messages(&[json!({ "input_tokens": 1, "output_tokens": 2, "server_tool_use": tools })]),
            chat(&json!({ "prompt_tokens": 1, "completion_tokens": 2, "server_tool_use": tools })),
        ];
        for said in said {
            let read = said.usage.classes.get(Class::WebSearchCall);
            assert_eq!((read, said.unknown), (searches, unknown), "{tools}");
        }
    }
}

#[test]
fn what_one_vendor_calls_otherwise_is_counted_alike() {
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
        for said in [chat, responses] {
            let read = said.usage.classes.get(Class::WebSearchCall);
            assert_eq!((read, said.unknown), (searches, unknown), "{tools}");
        }
    }
}

#[test]
fn counts_of_classes_that_are_none_are_suspect() {
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
    /// Each token of a total is in one class, whatever the split says: total − 5 minutes − 1 hour is never free.
    #[test]
    fn no_token_is_counted_twice_or_not_at_all(
        parts in prop::array::uniform4(0u64..1000), beyond in 0u64..100, prompt in 0u64..5000, completion in 0u64..500,
        details in prop::array::uniform8(0u64..1500),
    ) {
        let [input, cached, usual, hour] = parts;
        let said = messages(&[json!({ "input_tokens": input, "cache_read_input_tokens": cached, "output_tokens": 1,
            "cache_creation_input_tokens": usual + hour + beyond,
            "cache_creation": { "ephemeral_5m_input_tokens": usual, "ephemeral_1h_input_tokens": hour } })]);
        prop_assert_eq!(said.usage.input_total(), input + cached + usual + hour + beyond);
        prop_assert_eq!(said.usage.cache_write, usual + beyond);
        prop_assert_eq!(said.cache_write_usual, usual);
        let [audio, image, cached, written, half_hour, half_day, sound, picture] = details;
        let said = chat(&json!({ "prompt_tokens": prompt, "completion_tokens": completion,
            "prompt_tokens_details": { "audio_tokens": audio, "image_tokens": image, "cached_tokens": cached,
                "cache_write_tokens": written,
                "cache_write_tokens_details": { "ttl_30m_tokens": half_hour, "ttl_12h_tokens": half_day } },
            "completion_tokens_details": { "audio_tokens": sound, "image_tokens": picture } }));
        prop_assert_eq!(said.usage.input_total(), prompt);
        prop_assert_eq!(said.usage.output_total(), completion);
        prop_assert_eq!(said.usage.classes.get(Class::InputAudio), audio.min(prompt));
        prop_assert_eq!(said.usage.classes.total(Kind::Call), 0);
    }
}

#[test]
fn output_that_only_the_total_tells_is_counted() {
    for (usage, output, suspect) in [
        // As one vendor counts thinking: nowhere else.
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
        // A total that is less tells nothing.
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
        let said = chat(&usage);
        assert_eq!(
            (said.usage.output, said.suspect),
            (output, suspect),
            "{usage}"
        );
    }
}

#[test]
fn the_cache_is_counted_by_whichever_name_a_chat_vendor_has() {
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
fn what_summing_a_conversation_up_took_is_counted_beside_the_answer() {
    let said = messages(&[
        json!({ "input_tokens": 23_000, "output_tokens": 1000, "iterations": [
        { "type": "compaction", "input_tokens": 180_000, "output_tokens": 3500, "cache_read_input_tokens": 7 },
        { "type": "message", "input_tokens": 23_000, "output_tokens": 1000 },
    ] }),
    ]);
    assert_eq!(read(&said).0, [203_000, 7, 0, 4500]);
    assert!(!said.unknown);
    let said = messages(&[
        json!({ "input_tokens": 1, "output_tokens": 1, "iterations": [
        { "type": "advisor_message", "input_tokens": 5, "output_tokens": 5 },
    ] }),
    ]);
    assert!(said.unknown);
    // What cannot be read of them takes nothing from what was counted.
    for odd in [json!(1), json!([1]), json!({ "type": "compaction" })] {
        let said =
            messages(&[json!({ "input_tokens": 100, "output_tokens": 20, "iterations": odd })]);
        assert_eq!(read(&said).0, [100, 0, 0, 20]);
        assert!(said.unknown);
    }
}

#[test]
fn no_input_behind_some_says_nothing() {
    let said = messages(&[
        json!({ "input_tokens": 100, "cache_creation_input_tokens": 1000, "cache_read_input_tokens": 5,
            "cache_creation": { "ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600 }, "output_tokens": 1 }),
        json!({ "input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7 }),
    ]);
    assert_eq!(
        read(&said),
        ([100, 5, 400, 7], vec![(Class::CacheWrite1h, 600)])
    );
    // Input that is counted anew is counted whole: none of a class beside some of another is none.
    let said = messages(&[
        json!({ "input_tokens": 1000, "output_tokens": 0 }),
        json!({ "input_tokens": 0, "cache_read_input_tokens": 1000, "output_tokens": 7 }),
    ]);
    assert_eq!(read(&said), ([0, 1000, 0, 7], vec![]));
}

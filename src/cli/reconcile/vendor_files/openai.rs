//! OpenAI's reports of usage and costs (`GET /v1/organization/usage/completions` with `group_by=model`, and `GET
//! /v1/organization/costs` with `group_by=line_item`).
//!
//! The fields are described at <https://platform.openai.com/docs/api-reference/usage>, read on 2026-11-23.
//! `input_tokens` includes cached tokens and cache writes. `input_uncached_tokens` and the counts of audio and images
//! include neither. The reference does not describe the form of a `line_item`. The code below reads forms that
//! organisations have received, for example `"gpt-5-mini-2025-08-07, cached input"`, `"gpt-5.6-terra, cache writes"`,
//! `"gpt-image-1 image, output"` and `"priority | gpt-5.6-sol, output, long context"`.

use std::ops::Range;

use super::{CALLS, Kind, OTHER, Object, VendorUsage};

const USAGE: &str = "organization.usage.completions.result";
const COSTS: &str = "organization.costs.result";

/// All known fields with counts: the fields that this module reads, and the fields that count a part of another field.
const KNOWN: &[&str] = &[
    "input_tokens",
    "input_cached_tokens",
    "input_cache_write_tokens",
    "input_cache_write_12h_tokens",
    "input_uncached_tokens",
    "input_text_tokens",
    "input_audio_tokens",
    "input_image_tokens",
    "input_cached_text_tokens",
    "input_cached_audio_tokens",
    "input_cached_image_tokens",
    "output_tokens",
    "output_text_tokens",
    "output_audio_tokens",
    "output_image_tokens",
    "num_model_requests",
];

/// Returns the begin and end of a bucket, in Unix milliseconds.
pub(super) fn bucket(bucket: &Object<'_>) -> Result<Range<u64>, String> {
    let ms = |field: &str| Ok::<_, String>(bucket.required_count(field)?.saturating_mul(1000));
    Ok(ms("start_time")?..ms("end_time")?)
}

pub(super) fn result(
    result: &Object<'_>,
    day: u64,
    vendor: &mut VendorUsage,
) -> Result<Kind, String> {
    match result.text("object")? {
        Some(USAGE) => usage(result, day, vendor),
        Some(COSTS) => costs(result, day, vendor),
        Some(object) => Err(result.wrong(
            "object",
            format!("is {object}, but only {USAGE} and {COSTS} can be read"),
        )),
        None => Err(result.wrong("object", "the field is missing")),
    }
}

fn usage(result: &Object<'_>, day: u64, vendor: &mut VendorUsage) -> Result<Kind, String> {
    let model = result.model()?;
    let count = |field: &str| Ok::<_, String>(result.count(field)?.unwrap_or_default());
    let all_input = result.required_count("input_tokens")?;
    let all_output = result.required_count("output_tokens")?;
    let cached = count("input_cached_tokens")?;
    let (written, written_12h) = (
        count("input_cache_write_tokens")?,
        count("input_cache_write_12h_tokens")?,
    );
    let (audio, image) = (count("input_audio_tokens")?, count("input_image_tokens")?);
    let (audio_out, image_out) = (count("output_audio_tokens")?, count("output_image_tokens")?);
    let less = |all: u64, parts: &[u64], field: &str, what: &str| {
        let rest = parts
            .iter()
            .try_fold(all, |rest, part| rest.checked_sub(*part));
        rest.ok_or_else(|| {
            result.wrong(field, format!("is {all}, but {what} in it add up to more"))
        })
    };
    let uncached = match result.count("input_uncached_tokens")? {
        Some(uncached) => uncached,
        None => less(
            all_input,
            &[cached, written, written_12h],
            "input_tokens",
            "the cached and cache-written tokens",
        )?,
    };
    let input = less(
        uncached,
        &[audio, image],
        "input_tokens",
        "the audio and image tokens",
    )?;
    let output = less(
        all_output,
        &[audio_out, image_out],
        "output_tokens",
        "the audio and image tokens",
    )?;
    for (class, count) in [
        ("input", input),
        ("cached_input", cached),
        ("cache_write", written),
        ("cache_write_12h", written_12h),
        ("output", output),
        ("input_audio", audio),
        ("input_image", image),
        ("output_audio", audio_out),
        ("output_image", image_out),
        (CALLS, count("num_model_requests")?),
    ] {
        vendor.count((day, model.to_owned(), class), count)?;
    }
    result.report_unknown(KNOWN, vendor);
    Ok(Kind::OpenAiUsage)
}

fn costs(result: &Object<'_>, day: u64, vendor: &mut VendorUsage) -> Result<Kind, String> {
    let Some(item) = result.text("line_item")? else {
        return Err(result.wrong(
            "line_item",
            "the field is missing; request the report with group_by=line_item",
        ));
    };
    let amount = Object::new(result.required("amount")?, &result.path("amount"))?;
    amount.dollars("currency")?;
    let (model, class) = line_item(item);
    vendor.cost((day, model.to_owned(), class), amount.amount("value")?)?;
    Ok(Kind::OpenAiCosts)
}

/// Returns the model and the rate class of a line on the bill. If the line belongs to none of our rate classes, the
/// whole line is returned as the model.
fn line_item(item: &str) -> (&str, &'static str) {
    // A `line_item` begins with the service tier, unless it is the standard tier.
    let bare = item.split_once(" | ").map_or(item, |(_, bare)| bare);
    let Some((model, way)) = bare.split_once(", ") else {
        return (item, OTHER);
    };
    // After the class there may be a condition of the price, such as "long context".
    let way = way.split_once(", ").map_or(way, |(way, _)| way);
    let (model, kind) = match model.rsplit_once(' ') {
        Some((model, kind @ ("text" | "audio" | "image"))) => (model, kind),
        _ => (model, "text"),
    };
    let class = match (way.to_ascii_lowercase().as_str(), kind) {
        ("cached input", _) => "cached_input",
        ("cache writes" | "cache write", _) => "cache_write",
        ("input", "audio") => "input_audio",
        ("input", "image") => "input_image",
        ("input", _) => "input",
        ("output", "audio") => "output_audio",
        ("output", "image") => "output_image",
        ("output", _) => "output",
        _ => return (item, OTHER),
    };
    (model, class)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::tests::{read, reported},
        *,
    };

    /// The day 2024-11-01, which the example in the vendor's reference uses.
    const DAY: u64 = 20_028;

    fn page(result: &Value) -> String {
        json!({
            "object": "page",
            "data": [{
                "object": "bucket", "start_time": 1_730_419_200, "end_time": 1_730_505_600, "results": [result],
            }],
            "has_more": false, "next_page": null,
        })
        .to_string()
    }

    /// Returns the "Completions usage object" of the vendor's reference, with fields that were added later.
    fn usage() -> Value {
        json!({
            "object": "organization.usage.completions.result", "input_tokens": 5000, "output_tokens": 1000,
            "input_cached_tokens": 3000, "input_cache_write_tokens": 200, "input_cache_write_12h_tokens": 100,
            "input_audio_tokens": 300, "output_audio_tokens": 200, "num_model_requests": 5,
            "project_id": "proj_abc", "user_id": "user-abc", "api_key_id": "key_abc",
            "model": "gpt-4o-mini-2024-07-18", "batch": false, "service_tier": "default",
        })
    }

    #[test]
    fn openai_usage_is_read_by_rate_class_without_counting_a_token_twice() {
        let expected = [
            (CALLS, 5),
            ("input", 1400),
            ("cached_input", 3000),
            ("cache_write", 200),
            ("cache_write_12h", 100),
            ("output", 800),
            ("input_audio", 300),
            ("output_audio", 200),
        ]
        .map(|(class, count)| (class, count, "0.00".to_owned()));
        let mut told_so = usage();
        told_so["input_uncached_tokens"] = json!(1700);
        for result in [usage(), told_so] {
            let vendor = read(&page(&result)).unwrap();
            assert_eq!(reported(&vendor, DAY, "gpt-4o-mini-2024-07-18"), expected);
            assert!(vendor.has_counts && !vendor.has_costs && vendor.unknown.is_empty());
        }
    }

    #[test]
    fn error_in_an_openai_file_names_the_field_at_fault() {
        type Edit = fn(&mut Value);
        let cases: [(Edit, &str); 8] = [
            (
                |result| result["input_tokens"] = json!("5000"),
                "data[0].results[0].input_tokens: must be a whole number, at least 0, but is \"5000\"",
            ),
            (
                |result| result["input_tokens"] = json!(-1),
                "data[0].results[0].input_tokens: must be a whole number",
            ),
            (
                |result| {
                    let count = result
                        .as_object_mut()
                        .unwrap()
                        .remove("output_tokens")
                        .unwrap();
                    result["output_tokenz"] = count;
                },
                "data[0].results[0].output_tokens: the field is missing; did you mean output_tokenz?",
            ),
            (
                |result| result["model"] = Value::Null,
                "data[0].results[0].model: the field is missing; request the report with group_by=model",
            ),
            (
                |result| result["input_cached_tokens"] = json!(9000),
                "data[0].results[0].input_tokens: is 5000, but the cached and cache-written tokens in it add up to more",
            ),
            (
                |result| result["output_audio_tokens"] = json!(9000),
                "data[0].results[0].output_tokens: is 1000, but the audio and image tokens",
            ),
            (
                |result| result["object"] = json!("organization.usage.images.result"),
                "data[0].results[0].object: is organization.usage.images.result, but only",
            ),
            (
                |result| {
                    *result = json!({
                        "object": "organization.costs.result", "line_item": "a, input",
                        "amount": {"value": 1, "currency": "eur"},
                    });
                },
                "data[0].results[0].amount.currency: must be USD, but is eur",
            ),
        ];
        for (edit, says) in cases {
            let mut result = usage();
            edit(&mut result);
            let error = read(&page(&result)).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }

    #[test]
    fn unknown_count_field_of_an_openai_file_is_reported_if_it_is_not_zero() {
        let mut result = usage();
        result["output_video_tokens"] = json!(7);
        result["input_smell_tokens"] = json!(0);
        assert_eq!(
            read(&page(&result)).unwrap().unknown,
            ["output_video_tokens"]
        );
    }

    #[test]
    fn openai_costs_are_read_by_line_item() {
        for (item, model, class) in [
            (
                "gpt-5-mini-2025-08-07, input",
                "gpt-5-mini-2025-08-07",
                "input",
            ),
            ("gpt-4o-2024-08-06, Output", "gpt-4o-2024-08-06", "output"),
            (
                "gpt-5.6-terra, cached input",
                "gpt-5.6-terra",
                "cached_input",
            ),
            (
                "gpt-5.6-terra, cache writes",
                "gpt-5.6-terra",
                "cache_write",
            ),
            ("gpt-image-1 image, output", "gpt-image-1", "output_image"),
            (
                "gpt-audio-mini-2025-12-15 audio, input",
                "gpt-audio-mini-2025-12-15",
                "input_audio",
            ),
            (
                "gpt-image-2-2026-04-21 text, cached input",
                "gpt-image-2-2026-04-21",
                "cached_input",
            ),
            (
                "priority | gpt-5.6-sol, output, long context",
                "gpt-5.6-sol",
                "output",
            ),
            ("web search tool calls", "web search tool calls", OTHER),
            ("whisper-1, audio", "whisper-1, audio", OTHER),
        ] {
            assert_eq!(line_item(item), (model, class), "{item}");
        }
        let result = |value: Value| {
            json!({
                "object": "organization.costs.result", "amount": {"value": value, "currency": "usd"},
                "line_item": "gpt-5-mini-2025-08-07, input", "project_id": null, "organization_id": "org-1",
            })
        };
        for (value, shown) in [
            (json!(0.06), "0.06"),
            (json!("0.8958740000000000"), "0.895874"),
            (json!(0.130_804_38), "0.13080438"),
        ] {
            let vendor = read(&page(&result(value))).unwrap();
            assert_eq!(
                reported(&vendor, DAY, "gpt-5-mini-2025-08-07"),
                [("input", 0, shown.to_owned())]
            );
            assert!(vendor.has_costs && !vendor.has_counts);
        }
        let mut ungrouped = result(json!(1));
        ungrouped["line_item"] = Value::Null;
        let error = read(&page(&ungrouped)).unwrap_err();
        assert!(
            error.ends_with(
                "line_item: the field is missing; request the report with group_by=line_item"
            ),
            "{error}"
        );
    }
}

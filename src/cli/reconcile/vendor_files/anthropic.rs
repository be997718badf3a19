//! Anthropic's usage and cost reports (`GET /v1/organizations/usage_report/messages` with `group_by[]=model`, and
//! `GET /v1/organizations/cost_report` with `group_by[]=description`).
//!
//! The fields are described at <https://platform.claude.com/docs/en/api/admin/usage_report/retrieve_messages> and
//! <https://platform.claude.com/docs/en/api/admin/cost_report/retrieve>, read on 2026-11-23. Amounts are decimal text
//! in cents: `"123.45"` is $1.2345. Priority Tier is included in the usage but not in the costs.

use std::ops::Range;

use super::{Kind, OTHER, Object, VendorUsage};
use crate::text::time::parse_rfc3339_ms;

const KNOWN: &[&str] = &[
    "uncached_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
];
const KNOWN_WRITES: [&str; 2] = ["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"];
const KNOWN_TOOLS: &[&str] = &["web_search_requests"];

/// Returns the begin and end of a bucket, in Unix milliseconds.
pub(super) fn bucket(bucket: &Object<'_>) -> Result<Range<u64>, String> {
    let ms = |field: &str| {
        bucket.required(field)?;
        let text = bucket.text(field)?.unwrap_or_default();
        let problem = || format!("must be a time like 2026-11-20T00:00:00Z, but is {text:?}");
        parse_rfc3339_ms(text).ok_or_else(|| bucket.wrong(field, problem()))
    };
    Ok(ms("starting_at")?..ms("ending_at")?)
}

pub(super) fn result(
    result: &Object<'_>,
    day: u64,
    vendor: &mut VendorUsage,
) -> Result<Kind, String> {
    match result.has("amount") {
        true => costs(result, day, vendor),
        false => usage(result, day, vendor),
    }
}

fn usage(result: &Object<'_>, day: u64, vendor: &mut VendorUsage) -> Result<Kind, String> {
    let model = result.model()?;
    let input = result.required_count("uncached_input_tokens")?;
    let cached = result.required_count("cache_read_input_tokens")?;
    let mut counts = vec![
        ("input", input),
        ("cached_input", cached),
        ("output", result.required_count("output_tokens")?),
    ];
    if let Some(writes) = result.object("cache_creation")? {
        let [short, long] = KNOWN_WRITES.map(|field| writes.required_count(field));
        counts.extend([("cache_write", short?), ("cache_write_1h", long?)]);
        writes.report_unknown(&KNOWN_WRITES, vendor);
    }
    if let Some(tools) = result.object("server_tool_use")? {
        let searches = tools.count("web_search_requests")?;
        counts.push(("web_search_call", searches.unwrap_or_default()));
        tools.report_unknown(KNOWN_TOOLS, vendor);
    }
    for (class, count) in counts {
        vendor.count((day, model.to_owned(), class), count)?;
    }
    result.report_unknown(KNOWN, vendor);
    Ok(Kind::AnthropicUsage)
}

fn costs(result: &Object<'_>, day: u64, vendor: &mut VendorUsage) -> Result<Kind, String> {
    result.dollars("currency")?;
    let cost = result.amount("amount")?.hundredth();
    let kind = result.text("cost_type")?;
    let class = match (result.text("token_type")?, kind) {
        (Some("uncached_input_tokens"), _) => "input",
        (Some("cache_read_input_tokens"), _) => "cached_input",
        (Some("cache_creation.ephemeral_5m_input_tokens"), _) => "cache_write",
        (Some("cache_creation.ephemeral_1h_input_tokens"), _) => "cache_write_1h",
        (Some("output_tokens"), _) => "output",
        (None, Some("web_search")) => "web_search_call",
        (None, None) => {
            return Err(result.wrong(
                "cost_type",
                "the field is missing; request the report with group_by[]=description",
            ));
        }
        _ => OTHER,
    };
    // A cost that is not for tokens has no model, so the cost's description is used as the model's name.
    let model = match result.text("model")? {
        Some(model) => model,
        None => result.text("description")?.or(kind).unwrap_or(OTHER),
    };
    vendor.cost((day, model.to_owned(), class), cost)?;
    Ok(Kind::AnthropicCosts)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{read, reported};

    /// The day 2025-08-01, which the example in the vendor's reference uses.
    const DAY: u64 = 20_301;
    const MODEL: &str = "claude-sonnet-4-20250514";

    fn page(results: &Value) -> String {
        json!({
            "data": [{"starting_at": "2025-08-01T00:00:00Z", "ending_at": "2025-08-02T00:00:00Z", "results": results}],
            "has_more": false, "next_page": null,
        })
        .to_string()
    }

    /// Returns the example of a usage report in the vendor's reference.
    fn usage() -> Value {
        json!({
            "api_key_id": "apikey_01Rj2N8SVvo6BePZj99NhmiT",
            "cache_creation": {"ephemeral_1h_input_tokens": 1000, "ephemeral_5m_input_tokens": 500},
            "cache_read_input_tokens": 200, "context_window": "0-200k", "model": MODEL, "output_tokens": 500,
            "server_tool_use": {"web_search_requests": 10}, "service_tier": "standard",
            "uncached_input_tokens": 1500, "workspace_id": "wrkspc_01JwQvzr7rXLA5AGx3HKfFUJ",
        })
    }

    fn cost(token_type: &str, amount: &str) -> Value {
        json!({
            "amount": amount, "currency": "USD", "cost_type": "tokens", "token_type": token_type, "model": MODEL,
            "description": "Claude Sonnet 4 Usage", "context_window": "0-200k", "service_tier": "standard",
            "inference_geo": "global", "workspace_id": null,
        })
    }

    #[test]
    fn anthropic_usage_is_read_by_rate_class() {
        // Two results for the same model, for example for two service tiers, are added up.
        let vendor = read(&page(&json!([usage(), usage()]))).unwrap();
        let expected = [
            ("input", 3000),
            ("cached_input", 400),
            ("cache_write", 1000),
            ("cache_write_1h", 2000),
            ("output", 1000),
            ("web_search_call", 20),
        ]
        .map(|(class, count)| (class, count, "0.00".to_owned()));
        assert_eq!(reported(&vendor, DAY, MODEL), expected);
    }

    #[test]
    fn anthropic_costs_are_read_as_decimal_cents() {
        let mut search = cost("", "1000");
        for (field, value) in [
            ("cost_type", json!("web_search")),
            ("token_type", Value::Null),
            ("model", Value::Null),
            ("description", json!("Web Search Usage")),
        ] {
            search[field] = value;
        }
        let results = json!([
            cost("uncached_input_tokens", "38.2799"),
            cost("uncached_input_tokens", "0.0001"),
            cost("cache_creation.ephemeral_1h_input_tokens", "1134.3390"),
            cost("output_tokens", "123.45"),
            search,
        ]);
        let vendor = read(&page(&results)).unwrap();
        let costs = |model: &str| {
            let reported = reported(&vendor, DAY, model).into_iter();
            reported
                .map(|(class, _, cost)| (class, cost))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            costs(MODEL),
            [
                ("input", "0.3828".to_owned()),
                ("cache_write_1h", "11.34339".to_owned()),
                ("output", "1.2345".to_owned())
            ]
        );
        assert_eq!(
            costs("Web Search Usage"),
            [("web_search_call", "10.00".to_owned())]
        );
        assert!(vendor.has_costs && !vendor.has_counts);
    }

    #[test]
    fn error_in_an_anthropic_file_names_the_field_at_fault() {
        type Edit = fn(&mut Value);
        let cases: [(Edit, &str); 5] = [
            (
                |result| result["cache_creation"]["ephemeral_5m_input_tokens"] = json!(1.5),
                "data[0].results[0].cache_creation.ephemeral_5m_input_tokens: must be a whole number",
            ),
            (
                |result| {
                    result
                        .as_object_mut()
                        .unwrap()
                        .remove("uncached_input_tokens");
                },
                "data[0].results[0].uncached_input_tokens: the field is missing",
            ),
            (
                |result| result["model"] = Value::Null,
                "data[0].results[0].model: the field is missing; request the report with",
            ),
            (
                |result| *result = json!({"amount": "12,5", "currency": "USD"}),
                "data[0].results[0].amount: must be a decimal number, but is \"12,5\"",
            ),
            (
                |result| *result = json!({"amount": "12.5", "currency": "USD"}),
                "data[0].results[0].cost_type: the field is missing; request the report with group_by[]=description",
            ),
        ];
        for (edit, says) in cases {
            let mut result = usage();
            edit(&mut result);
            let error = read(&page(&json!([result]))).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
        let bad_time = page(&json!([])).replace("2025-08-01T", "2025-08-41T");
        let error = read(&bad_time).unwrap_err();
        assert!(
            error.starts_with("data[0].starting_at: must be a time like"),
            "{error}"
        );
    }
}

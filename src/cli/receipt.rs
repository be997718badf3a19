//! `tollgate receipt`: prints what a call cost, and why.

use http::Method;
use serde_json::Value;
use tollgate_layers::facts::RequestNumber;

use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    show::{self, Cell, facts},
};
use crate::admin::NOT_A_NUMBER;

const CALL: &[Cell] = &[
    Cell::text("number", "/number"),
    Cell::text("at", "/at"),
    Cell::text("account", "/account"),
    Cell::text("key", "/key"),
    Cell::text("group", "/group"),
    Cell::text("session", "/session"),
    Cell::text("endpoint", "/endpoint"),
    Cell::text("model", "/model"),
    Cell::text("vendor", "/vendor"),
    Cell::text("end", "/end"),
    Cell::text("input tokens", "/usage/input"),
    Cell::text("cached input tokens", "/usage/cached_input"),
    Cell::text("cache write tokens", "/usage/cache_write"),
    Cell::text("output tokens", "/usage/output"),
];
const PRICE: &[Cell] = &[
    Cell::text("usage estimated", "/estimated"),
    Cell::text("usage bounded", "/bounded"),
    Cell::text("vendor's input tokens", "/vendor_usage/input"),
    Cell::text("vendor's cached input tokens", "/vendor_usage/cached_input"),
    Cell::text("vendor's cache write tokens", "/vendor_usage/cache_write"),
    Cell::text("vendor's output tokens", "/vendor_usage/output"),
    Cell::text("charged without a price", "/unpriced"),
    Cell::rubles("input, per million", "/price/input"),
    Cell::rubles("cached input, per million", "/price/cached_input"),
    Cell::rubles("cache write, per million", "/price/cache_write"),
    Cell::rubles("output, per million", "/price/output"),
];
const MONEY: &[Cell] = &[
    Cell::text("input tokens above", "/price/condition/above_input_tokens"),
    Cell::text("service tier", "/price/condition/service_tier"),
    Cell::text("speed", "/price/condition/speed"),
    Cell::text("inference geo", "/price/condition/inference_geo"),
    Cell::text("hours, UTC", "/price/condition/hours_utc"),
    Cell::text("weekdays, UTC", "/price/condition/weekdays"),
    Cell::text("moment compared with hours", "/price/condition/hours_at"),
    Cell::text("valid from, Unix ms", "/price/condition/valid_from_ms"),
    Cell::text("price version", "/price/version"),
    Cell::text("price rule", "/price_rule"),
    Cell::rubles("USDT rate", "/price/exchange_rate"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("held at most", "/held_max_rub"),
    Cell::rubles("held at the end", "/held_at_end_rub"),
    Cell::text("stopped by", "/stopped_by"),
    Cell::rubles("cost", "/cost_rub"),
    Cell::rubles("charged", "/charged_rub"),
    Cell::rubles("loss", "/loss_rub"),
    Cell::rubles("loss from usage above request limits", "/bounded_loss_rub"),
    Cell::rubles("vendor cost", "/vendor_cost_rub"),
    Cell::rubles("margin", "/margin_rub"),
    Cell::text("booked", "/booked"),
];

/// The cells of a call without a receipt.
const UNBOOKED: &[Cell] = &[
    Cell::text("at", "/at"),
    Cell::text("account", "/account"),
    Cell::text("key", "/key"),
    Cell::text("path", "/path"),
    Cell::text("model", "/model"),
    Cell::text("vendor", "/vendor"),
    Cell::text("status", "/status"),
    Cell::text("code", "/code"),
    Cell::text("field", "/field"),
    Cell::text("error", "/error"),
];

/// Declares the cells for the counts and prices of all rate classes except the basic four. Most receipts have few of
/// these classes.
macro_rules! classes {
    ($($name:literal $unit:literal),+ $(,)?) => {
        const COUNTS: &[Cell] = &[$(Cell::text($name, concat!("/usage/classes/", $name))),+];
        const RATES: &[Cell] = &[
            $(Cell::rubles(concat!($name, ", ", $unit), concat!("/price/classes/", $name))),+
        ];
        #[cfg(test)]
        const NAMES: &[&str] = &[$($name),+];
    };
}

classes! {
    "cache_write_1h" "per million",
    "cache_write_12h" "per million",
    "cached_input_audio" "per million",
    "cached_input_image" "per million",
    "input_audio" "per million",
    "input_image" "per million",
    "output_audio" "per million",
    "output_image" "per million",
    "output_reasoning" "per million",
    "web_search_call" "each",
    "request_call" "each",
}

fn cells() -> Vec<Cell> {
    [CALL, COUNTS, PRICE, RATES, MONEY].concat()
}

pub(super) async fn receipt(admin: &AdminArgs, number: RequestNumber) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    if let Some(receipt) = client.find(&format!("/admin/v1/receipts/{number}")).await? {
        return show::print(admin.json, &receipt, |receipt| facts(&cells(), receipt));
    }
    let path = format!("/admin/v1/calls/{number}");
    let call = client.call(Method::GET, &path, None).await;
    Err(Failure::Refused(match call {
        Ok(call) => without_receipt(&call),
        Err(Failure::Refused(why)) => format!("no receipt {number}\n{why}"),
        Err(failure) => return Err(failure),
    }))
}

/// Returns a text about a call that has no receipt: its state, and the known facts.
fn without_receipt(call: &Value) -> String {
    let state = match call["state"].as_str() {
        Some("running") => "the call is still running",
        Some("released") => "the call ended and cost nothing",
        _ => "the call was refused and cost nothing",
    };
    format!(
        "no receipt {}: {state}\n{}",
        Cell::text("", "/number").raw(call),
        facts(UNBOOKED, call)
    )
}

/// Parses a request number, with or without the parentheses in which error texts print it.
pub(super) fn number(text: &str) -> Result<RequestNumber, String> {
    let bare = text.trim_matches(['(', ')', ' ']);
    bare.parse().map_err(|_| NOT_A_NUMBER.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tollgate_layers::price::Class;

    use super::*;

    #[test]
    fn receipt_shows_all_numbers_from_which_its_charge_is_computed() {
        assert_eq!(NAMES, Class::ALL.map(Class::name));
        let receipt = json!({
            "usage": {"input": 10, "classes": {"web_search_call": 2}},
            "price": {
                "input": "1.00", "classes": {"web_search_call": "1.50"}, "condition": {"service_tier": "flex"},
            },
            "unpriced": true, "vendor_cost_rub": "2.00", "margin_rub": "-0.50",
        });
        let text = facts(&cells(), &receipt);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| {
                line.split("  ")
                    .map(str::trim)
                    .filter(|part| !part.is_empty())
                    .collect()
            })
            .collect();
        assert_eq!(
            lines,
            [
                ["input tokens", "10"],
                ["web_search_call", "2"],
                ["charged without a price", "true"],
                ["input, per million", "1.00 ₽"],
                ["web_search_call, each", "1.50 ₽"],
                ["service tier", "flex"],
                ["vendor cost", "2.00 ₽"],
                ["margin", "-0.50 ₽"],
            ]
        );
    }

    #[test]
    fn a_receipt_shows_tokens_and_money() {
        let receipt = json!({
            "number": "n", "at": "2027-01-31T00:00:00Z", "estimated": false,
            "bounded": true, "usage": {"input": 10, "output": 3},
            "price": {"input": "26.018751"}, "charged_rub": "0.000361"
        });
        let text = facts(&cells(), &receipt);
        assert!(
            text.contains("input tokens        10\n")
                && text.contains("usage estimated     false\n")
                && text.contains("usage bounded       true\n"),
            "{text}"
        );
        assert!(
            text.contains("26.018751 ₽\n") && text.contains("charged             0.000361 ₽\n"),
            "{text}"
        );
    }
}

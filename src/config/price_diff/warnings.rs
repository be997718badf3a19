//! Warnings about likely mistakes in prices and vendors' URLs, found by comparison with the presets.

use rust_decimal::Decimal;
use toml::de::DeTable;

use super::{
    file::{Prices, string, tables},
    listed::Listed,
    source::{PriceSource, vendors},
};
use crate::config::{presets::presets, prices::field};

/// A price per million tokens below this value causes a warning: vendors charge at least ten times as much.
const PRICE_MIN: Decimal = Decimal::from_parts(1, 0, 0, false, 3);

/// Returns the path of each suspicious setting, and why it is suspicious.
pub(in crate::config) fn warnings(root: &DeTable<'_>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let urls: Vec<_> = presets()
        .iter()
        .filter_map(|preset| Some((preset.name, preset.vendor_url()?)))
        .collect();
    for (index, vendor) in tables(root, "vendor").into_iter().enumerate() {
        let problem = short_url(vendor, &urls);
        found.extend(problem.map(|problem| (format!("vendor[{index}].url"), problem)));
    }
    let vendors = vendors(root);
    for (index, model) in tables(root, "model").into_iter().enumerate() {
        let path = format!("model[{index}]");
        let sale = Prices::read(model, "", "price_rules");
        per_token(sale.as_ref(), &path, "", "price_rules", &mut found);
        let mut unpriced = None;
        for (number, route) in tables(model, "routes").into_iter().enumerate() {
            let cost = Prices::read(route, "cost_", "cost_rules");
            let route_path = format!("{path}.routes[{number}]");
            per_token(
                cost.as_ref(),
                &route_path,
                "cost_",
                "cost_rules",
                &mut found,
            );
            let vendor = string(route, "vendor").unwrap_or_default();
            let preset = vendors.get(vendor).copied().flatten();
            let name = string(route, "model").or_else(|| string(model, "id"));
            let listed = preset.and_then(|it| PriceSource::Presets.listed(it, name?));
            let missing = listed.and_then(|it| missing_classes(sale.as_ref()?, vendor, &it));
            unpriced = unpriced.or(missing);
        }
        found.extend(unpriced.map(|(currency, problem)| (format!("{path}.{currency}"), problem)));
    }
    for (index, rule) in tables(root, "price_rule").into_iter().enumerate() {
        let prices = Prices::read(rule, "", "price_rules");
        let path = format!("price_rule[{index}]");
        per_token(prices.as_ref(), &path, "", "price_rules", &mut found);
    }
    found
}

/// Adds a warning for prices that were probably copied per token instead of per million tokens.
fn per_token(
    prices: Option<&Prices<'_>>,
    path: &str,
    prefix: &str,
    rules: &str,
    found: &mut Vec<(String, String)>,
) {
    let Some(prices) = prices else { return };
    let currency = field(prices.currency);
    for (number, (_, rates)) in prices.lists.iter().enumerate() {
        let low = rates
            .iter()
            .filter(|(class, rate)| rate.value < PRICE_MIN && !class.ends_with("_call"));
        let low: Vec<_> = low
            .map(|(class, rate)| format!("{class} {}", rate.value))
            .collect();
        if low.is_empty() {
            continue;
        }
        let field = match number.checked_sub(1) {
            None => format!("{path}.{prefix}{currency}"),
            Some(rule) => format!("{path}.{rules}[{rule}].{currency}"),
        };
        let problem = format!(
            "is a price per million tokens, and these prices are below {PRICE_MIN}: {}. If they are prices per token, \
             multiply them by 1000000",
            low.join(", ")
        );
        found.push((field, problem));
    }
}

/// Returns a warning that lists the rate classes that the vendor bills and for which the model has no price.
fn missing_classes(
    sale: &Prices<'_>,
    vendor: &str,
    listed: &Listed,
) -> Option<(&'static str, String)> {
    let (_, usual) = sale.lists.first()?;
    let classes = listed.rates.iter();
    let missing: Vec<_> = classes
        .filter(|(class, _)| !usual.contains_key(class.as_str()))
        .map(|(class, rate)| format!("{class} {rate}"))
        .collect();
    let problem = format!(
        "lacks prices for classes that the vendor {vendor:?} bills: {}. Add them. Until then, a call that requests \
         such a class is refused; if callers cannot choose the class, its tokens are priced as ordinary tokens",
        missing.join(", ")
    );
    let is_warned = sale.currency == listed.currency && !missing.is_empty();
    is_warned.then_some((field(sale.currency), problem))
}

/// Returns a warning for a vendor's URL that lacks the end of a preset's URL, for example `/v1`.
fn short_url(vendor: &DeTable<'_>, presets: &[(&'static str, String)]) -> Option<String> {
    let url = string(vendor, "url")?.trim_end_matches('/');
    let is_complete = presets.iter().any(|(_, known)| known == url);
    if is_complete || string(vendor, "format") == Some("messages") || vendor.contains_key("path") {
        return None;
    }
    let (name, known) = presets.iter().find(|(_, known)| {
        let root = known.strip_suffix("/v1");
        root.is_some_and(|root| root == url || root.starts_with(&format!("{url}/")))
    })?;
    Some(format!(
        "is shorter than the URL of preset {name:?} ({known}), so calls go to {url}/chat/completions: complete the URL \
         if this is not intended"
    ))
}

//! `tollgate vendor test` and `tollgate check --live`: send one plain call and one stream to a vendor, without a
//! gateway.

use std::{path::Path, sync::Arc};

use serde_json::{Value, json};
use tollgate_layers::model::Route;

use super::{
    check::mistakes,
    failure::Failure,
    show::{self, Cell, table},
};
use crate::{
    admin::vendor_test::{calls, target},
    config::{Config, ModelConfig},
    stack,
};

const CALL: &[Cell] = &[
    Cell::text("vendor", "/vendor"),
    Cell::text("model", "/model"),
    Cell::text("call", "/call"),
    Cell::text("result", "/result"),
    Cell::number("ms", "/ms"),
    Cell::number("input", "/input"),
    Cell::number("output", "/output"),
    Cell::number("usdt", "/cost_usdt"),
    Cell::number("rub", "/cost_rub"),
    Cell::text("answer", "/answer"),
];

/// Sends the test calls to one vendor of a configuration.
///
/// # Errors
/// If the configuration is invalid, no model has a route to the vendor, or a call fails.
pub(super) async fn vendor_test(
    file: &Path,
    vendor: &str,
    model: Option<&str>,
    as_json: bool,
) -> Result<(), Failure> {
    let config = Config::load(file).map_err(|errors| mistakes(file, &errors))?;
    let target = target(&config, vendor, model).map_err(Failure::Usage)?;
    report(&calls(stack::one_vendor, &[target]).await, as_json)
}

/// Sends the test calls to each vendor of a configuration.
///
/// # Errors
/// If a call fails.
pub(super) async fn all(config: &Config, as_json: bool) -> Result<(), Failure> {
    let mut targets: Vec<(&ModelConfig, &Arc<Route>)> = Vec::new();
    for model in &config.live.models {
        for route in &model.routes {
            let is_new = |(_, known): &(_, &Arc<Route>)| known.vendor.name != route.vendor.name;
            if targets.iter().all(is_new) {
                targets.push((model, route));
            }
        }
    }
    report(&calls(stack::one_vendor, &targets).await, as_json)
}

fn report(calls: &[Value], as_json: bool) -> Result<(), Failure> {
    show::print(as_json, &json!({ "calls": calls }), |_| table(CALL, calls))?;
    let failed = calls.iter().filter(|call| call["result"] != "ok");
    let lines = failed.map(|call| {
        let text = |field: &str| call[field].as_str().unwrap_or_default();
        ["vendor", "call", "problem", "advice"].map(text).join(": ")
    });
    match lines.collect::<Vec<_>>() {
        failed if failed.is_empty() => Ok(()),
        failed => Err(Failure::Refused(failed.join("\n"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_test_table_has_each_column_once() {
        let headings = table(CALL, &[]);
        let headings: Vec<_> = headings.split_whitespace().collect();
        let mut distinct = headings.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), headings.len(), "{headings:?}");
    }
}

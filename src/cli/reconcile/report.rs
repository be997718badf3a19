//! Writes the result of a comparison as JSON, and as text made from this JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tollgate_layers::price::Currency;

use super::{
    amount::{Tolerance, percent_apart},
    books::{Books, Suspects, classes_of},
    compare::Row,
    vendor_files::CALLS,
};
use crate::{
    cli::show::{self, Cell, counted, plain, table},
    text::time::rfc3339,
};

/// Maximum number of pairs of day and model whose drift the text explains. Further pairs are only counted.
const EXPLAINED_MAX: usize = 100;

const COLUMNS: &[Cell] = &[
    Cell::text("day (UTC)", "/day"),
    Cell::text("model", "/model"),
    Cell::text("class", "/class"),
    Cell::number("ours", "/ours"),
    Cell::number("vendor's", "/vendors"),
    Cell::number("difference", "/difference"),
    Cell::number("%", "/difference_percent"),
];
const COST_COLUMNS: [&[Cell]; 2] = [
    &[
        Cell::number("our cost, USDT", "/our_cost_usdt"),
        Cell::number("vendor's, USD", "/vendors_cost_usd"),
    ],
    &[
        Cell::number("our cost, ₽", "/our_cost_rub"),
        Cell::number("vendor's, ₽", "/vendors_cost_rub"),
    ],
];
const COST_DIFFERENCE: &[Cell] = &[
    Cell::number("difference", "/cost_difference"),
    Cell::number("%", "/cost_difference_percent"),
];
const VERDICT: Cell = Cell::text("", "/verdict").or("");

/// The result and the settings of a comparison of the books with a vendor's files.
#[derive(Debug)]
pub(super) struct Compared<'a> {
    pub(super) vendors: Vec<&'a str>,
    /// The beginning of the compared period, in Unix milliseconds.
    pub(super) since_ms: u64,
    pub(super) until_ms: u64,
    pub(super) tolerance: Tolerance,
    pub(super) rows: &'a [Row],
}

impl Compared<'_> {
    pub(super) fn drifts(&self) -> usize {
        self.rows.iter().filter(|row| row.is_drift).count()
    }

    pub(super) fn as_json(&self, books: &Books<'_>) -> Value {
        let mut drifted: BTreeMap<(u64, &str), Vec<&str>> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.is_drift) {
            let classes = drifted.entry((row.day, &row.model)).or_default();
            classes.push(row.class);
        }
        let none = Suspects::default();
        let explained = drifted.iter().map(|((day, model), classes)| {
            let books = books.days.get(&(*day, (*model).to_owned()));
            let suspects = books.map_or(&none, |books| &books.suspects);
            explained(*day, model, classes, suspects)
        });
        json!({
            "vendors": self.vendors, "since": rfc3339(self.since_ms), "until": rfc3339(self.until_ms),
            "tolerance_percent": self.tolerance.to_string(),
            "rows": self.rows.iter().map(|it| row(it, books.currency)).collect::<Vec<_>>(),
            "drifts": self.drifts(),
            "explained": explained.collect::<Vec<_>>(),
        })
    }
}

fn row(row: &Row, currency: Currency) -> Value {
    let [our_cost, vendors_cost] = match currency {
        Currency::Usdt => ["our_cost_usdt", "vendors_cost_usd"],
        Currency::Rub => ["our_cost_rub", "vendors_cost_rub"],
    };
    let apart = |ours: i128, vendors: i128| {
        // If the vendor's number is zero, no percentage can be computed.
        let whole = || if ours == 0 { "0.00" } else { "all" }.to_owned();
        percent_apart(ours, vendors).unwrap_or_else(whole)
    };
    let costs = row.our_cost.zip(row.vendors_cost);
    let counts = row.ours.zip(row.vendors);
    json!({
        "day": day(row.day), "model": row.model, "class": row.class,
        "ours": row.ours, "vendors": row.vendors,
        "difference": counts.map(|(ours, vendors)| signed(i128::from(ours) - i128::from(vendors))),
        "difference_percent": counts.map(|(ours, vendors)| apart(ours.into(), vendors.into())),
        our_cost: row.our_cost.map(|cost| cost.to_string()),
        vendors_cost: row.vendors_cost.map(|cost| cost.to_string()),
        "cost_difference": costs.map(|(ours, vendors)| ours.minus(vendors).to_string()),
        "cost_difference_percent": costs.map(|(ours, vendors)| apart(ours.nano(), vendors.nano())),
        "drift": row.is_drift,
    })
}

/// Returns the difference of two counts, clamped to the range of JSON's integers.
fn signed(difference: i128) -> i64 {
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

fn explained(of_day: u64, model: &str, classes: &[&str], suspects: &Suspects) -> Value {
    let receipts = suspects.largest.iter().map(|suspect| {
        let usage: BTreeMap<_, _> = classes_of(&suspect.usage).collect();
        json!({"number": suspect.number, "reasons": suspect.reasons, "usage": usage})
    });
    let receipts: Vec<Value> = receipts.collect();
    let more = suspects.calls - receipts.len() as u64;
    json!({
        "day": day(of_day), "model": model, "classes": classes, "calls": suspects.calls,
        "by_reason": suspects.by_reason,
        "receipts": receipts, "more": more,
    })
}

/// Writes a day (UTC) as a date.
fn day(day: u64) -> String {
    let mut text = rfc3339(tollgate_layers::calendar::day_begins_ms(day));
    text.truncate("2026-01-31".len());
    text
}

pub(super) fn text(answer: &Value) -> String {
    let rows = show::rows(answer, "rows");
    let tolerance = answer["tolerance_percent"].as_str().unwrap_or_default();
    let drifts = answer["drifts"].as_u64().unwrap_or_default();
    if rows.is_empty() {
        return "neither the books nor the vendor's files have usage in the compared time\n".into();
    }
    let mut columns = COLUMNS.to_vec();
    let costs = ["vendors_cost_usd", "vendors_cost_rub"];
    for (field, cells) in costs.into_iter().zip(COST_COLUMNS) {
        if rows.iter().any(|row| !row[field].is_null()) {
            columns.extend(cells.iter().chain(COST_DIFFERENCE));
        }
    }
    columns.push(VERDICT);
    let mut marked = rows.to_vec();
    for row in &mut marked {
        row["verdict"] = if row["drift"] == true { "drift" } else { "" }.into();
    }
    let mut text = table(&columns, &marked);
    let explained = show::rows(answer, "explained");
    for one in explained.iter().take(EXPLAINED_MAX) {
        text.push('\n');
        text.push_str(&explanation(one));
    }
    if explained.len() > EXPLAINED_MAX {
        let rest = explained.len() - EXPLAINED_MAX;
        text.push_str(&format!("\n{rest} further pairs of day and model have drift; only the output of --json explains them\n"));
    }
    text.push('\n');
    let compared = rows.iter().filter(|row| row["class"] != CALLS).count() as u64;
    let compared = counted(compared, "row");
    text + &match drifts {
        0 => format!("ok: {compared}, no difference above {tolerance} %\n"),
        _ => format!("{drifts} of {compared} differ by more than {tolerance} %\n"),
    }
}

fn explanation(one: &Value) -> String {
    let words = |value: &Value| {
        let words = value.as_array().into_iter().flatten();
        words
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (day, model) = (plain(&one["day"]), plain(&one["model"]));
    let mut text = format!("{day} {model} ({}): ", words(&one["classes"]));
    let calls = one["calls"].as_u64().unwrap_or_default();
    if calls == 0 {
        text.push_str(
            "no receipt explains the drift; docs/statements.md lists usage that has no receipt\n",
        );
        return text;
    }
    let by_reason = one["by_reason"].as_object().into_iter().flatten();
    let by_reason = by_reason.map(|(reason, count)| format!("{count} {reason}"));
    let by_reason = by_reason.collect::<Vec<_>>().join(", ");
    let receipts = counted(calls, "receipt");
    text.push_str(&format!("{receipts} may explain the drift: {by_reason}\n"));
    for receipt in show::rows(one, "receipts") {
        let usage = receipt["usage"].as_object().into_iter().flatten();
        let usage = usage.filter(|(_, count)| count.as_u64() != Some(0));
        let usage: Vec<_> = usage
            .map(|(class, count)| format!("{class} {count}"))
            .collect();
        let number = receipt["number"].as_str().unwrap_or_default();
        let (reasons, usage) = (words(&receipt["reasons"]), usage.join(", "));
        text.push_str(&format!("  {number}  {reasons}: {usage}\n"));
    }
    match one["more"].as_u64() {
        None | Some(0) => {}
        Some(more) => text.push_str(&format!("  and {more} more receipts\n")),
    }
    text
}

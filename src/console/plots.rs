//! Sums over time as bars: drawn on the server as SVG, with a scale and the names of times.

use std::collections::HashMap;

use tollgate_layers::respond::Language;

use super::{
    pages::{DAY_MS, HOUR_MS},
    shown,
    texts::{english, filled, translated},
    views::{Sums, UsageRow, micro},
};
use crate::text::time::{day, rfc3339};

/// The height of the highest bar, in units of the drawing; the end of the scale has the same height.
const HEIGHT: u64 = 100;
/// The width of a bar with the space after it, in units of the drawing.
const STEP: usize = 10;
/// A drawing has room for at least this many bars, so that a few bars do not fill it.
const BARS_MIN: usize = 12;
/// A span of time for which sums are drawn, with the titles of its table and plots.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) table: &'static str,
    charged: &'static str,
    calls: &'static str,
    latency: &'static str,
}

pub(crate) const HOURS: &Span = &Span {
    table: english("Table by hour"),
    charged: english("Charged per hour, last 24 hours, ₽"),
    calls: english("Calls per hour, last 24 hours"),
    latency: english("Latency of calls per hour, last 24 hours, ms"),
};
pub(crate) const DAYS: &Span = &Span {
    table: english("Table by day"),
    charged: english("Charged per day, last 30 days, ₽"),
    calls: english("Calls per day, last 30 days"),
    latency: english("Latency of calls per day, last 30 days, ms"),
};
pub(crate) const MONTHS: &Span = &Span {
    table: english("Table by month"),
    charged: english("Charged per month, last 12 months, ₽"),
    calls: english("Calls per month, last 12 months"),
    latency: english("Latency of calls per month, last 12 months, ms"),
};

/// Two series over time. The exact numbers are in a table below the plot and in the bars' titles.
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    /// Names the two series; empty for a single series.
    pub(crate) legend: &'static str,
    /// Labels of the scale: its upper end and its middle.
    pub(crate) scale: [String; 2],
    pub(crate) bars: Vec<Bar>,
    /// Labels of the time axis: its first, its middle and its last time.
    pub(crate) times: Vec<String>,
}

/// The two bars of one time. The second bar is drawn in front of the first.
pub(crate) struct Bar {
    pub(crate) title: String,
    pub(crate) x: usize,
    /// The style class and the height of each bar.
    pub(crate) parts: [(&'static str, u64); 2],
}

/// A series' unit and how its values are written.
#[derive(Clone, Copy)]
enum Unit {
    /// The values are micro-rubles, written as rubles.
    Rubles,
    Count,
    Milliseconds,
}

impl Plot {
    pub(crate) fn width(&self) -> usize {
        STEP * self.bars.len().max(BARS_MIN)
    }

    /// Draws values by time. `times` has the names of all times to draw, with or without a value.
    fn new(
        title: &'static str,
        unit: Unit,
        classes: [&'static str; 2],
        values: &[(String, String, [i128; 2])],
        language: Language,
    ) -> Self {
        let most = values.iter().flat_map(|(_, _, values)| values).max();
        let top = scale_end(most.copied().unwrap_or(0), unit);
        let bar = |(index, (_, title, values)): (usize, &(String, String, [i128; 2]))| Bar {
            title: title.clone(),
            x: index * STEP,
            parts: [0, 1].map(|part| (classes[part], height(values[part], top))),
        };
        let name = |index: usize| values.get(index).map(|(name, ..)| short(name, language));
        let last = values.len().saturating_sub(1);
        let times = match values.len() {
            0..3 => values
                .iter()
                .map(|(name, ..)| short(name, language))
                .collect(),
            _ => [0, last / 2, last].into_iter().filter_map(name).collect(),
        };
        Self {
            title,
            legend: "",
            scale: [unit.label(top, language), unit.label(top / 2, language)],
            bars: values.iter().enumerate().map(bar).collect(),
            times,
        }
    }

    /// Draws the charges by time.
    pub(crate) fn charged(
        title: &'static str,
        times: &[String],
        rows: &[(String, String)],
        language: Language,
    ) -> Self {
        let found: HashMap<&str, &str> = rows.iter().map(|(at, sum)| (&**at, &**sum)).collect();
        let values: Vec<_> = times
            .iter()
            .map(|at| {
                let sum = found.get(&**at).copied().unwrap_or("0.00");
                let shown = shown::short(micro(sum), language);
                let title = format!("{}: {shown} ₽", moment(at, language));
                (at.clone(), title, [micro(sum).max(0), 0])
            })
            .collect();
        Self::new(title, Unit::Rubles, ["bar", "bar"], &values, language)
    }
}

impl Unit {
    fn label(self, value: i128, language: Language) -> String {
        match self {
            Self::Rubles => {
                let text = shown::short(value, language);
                let whole = text
                    .strip_suffix("00")
                    .and_then(|it| it.strip_suffix(['.', ',']));
                whole.map_or(text.clone(), str::to_owned)
            }
            Self::Count | Self::Milliseconds => value.to_string(),
        }
    }
}

/// Returns the end of a scale that includes `most`: 1, 2, 4 or 10 times a power of ten, so that half of it is round,
/// too.
fn scale_end(most: i128, unit: Unit) -> i128 {
    let mut power = match unit {
        Unit::Rubles => 10_000,
        Unit::Count | Unit::Milliseconds => 1,
    };
    loop {
        if let Some(factor) = [2, 4, 10].into_iter().find(|factor| factor * power >= most) {
            return factor * power;
        }
        power *= 10;
    }
}

/// Returns the height of a value. A value above zero is visible.
fn height(value: i128, top: i128) -> u64 {
    let height = value.max(0) * i128::from(HEIGHT) / top;
    u64::try_from(height).map_or(HEIGHT, |height| height.max(u64::from(value > 0)))
}

/// Formats a time as the axis shows it: `20:00`, `28 Nov`, `Nov 2026`.
fn short(name: &str, language: Language) -> String {
    match name.len() {
        10 => {
            let date = shown::day(name, language);
            let year = date.rfind(' ').unwrap_or(date.len());
            date[..year].to_owned()
        }
        16.. => name[11..16].to_owned(),
        _ => shown::day(name, language),
    }
}

/// Formats a time as a bar's title shows it: an hour with its day.
fn moment(name: &str, language: Language) -> String {
    match name.len() {
        16.. => format!("{}, {}", shown::day(&name[..10], language), &name[11..16]),
        _ => shown::day(name, language),
    }
}

/// Returns the names of all hours that begin in `from_ms..=until_ms`, as reports name them.
pub(crate) fn hours(from_ms: u64, until_ms: u64) -> Vec<String> {
    let first = from_ms - from_ms % HOUR_MS;
    (first..=until_ms)
        .step_by(HOUR_MS as usize)
        .map(rfc3339)
        .collect()
}

/// Returns the names of all days in `from_ms..=until_ms`, as reports name them.
pub(crate) fn days(from_ms: u64, until_ms: u64) -> Vec<String> {
    let first = from_ms - from_ms % DAY_MS;
    (first..=until_ms)
        .step_by(DAY_MS as usize)
        .map(day)
        .collect()
}

/// Returns the names of all months in `from_ms..=until_ms`, as reports name them.
pub(crate) fn months(from_ms: u64, until_ms: u64) -> Vec<String> {
    let mut names = days(from_ms, until_ms);
    names.iter_mut().for_each(|name| name.truncate(7));
    names.dedup();
    names
}

/// A development over time: plots of charges, number of calls, and latency, with the table of their numbers.
pub(super) struct Course {
    pub(super) span: &'static Span,
    pub(super) plots: Vec<Plot>,
    /// The table's rows: only the times in which there were calls.
    pub(super) rows: Vec<(String, Sums)>,
}

impl Course {
    pub(super) fn new(
        span: &'static Span,
        times: &[String],
        rows: &[UsageRow],
        language: Language,
    ) -> Self {
        let name = |row: &UsageRow| {
            let names = [&row.hour, &row.day, &row.month];
            names
                .into_iter()
                .flatten()
                .next()
                .cloned()
                .unwrap_or_default()
        };
        let rows: Vec<(String, Sums)> = rows
            .iter()
            .map(|row| (name(row), row.sums.clone()))
            .collect();
        if rows.is_empty() {
            return Self {
                span,
                plots: Vec::new(),
                rows,
            };
        }
        let found: HashMap<&str, &Sums> = rows.iter().map(|(at, sums)| (&**at, sums)).collect();
        let values = |value: fn(&Sums, Language) -> (String, [i128; 2])| -> Vec<_> {
            times
                .iter()
                .map(|at| {
                    let none = || (translated(english("no calls"), language).to_owned(), [0, 0]);
                    let (reported, values) = found
                        .get(&**at)
                        .map_or_else(none, |sums| value(sums, language));
                    (
                        at.clone(),
                        format!("{}: {reported}", moment(at, language)),
                        values,
                    )
                })
                .collect()
        };
        let charged: Vec<(String, String)> = rows
            .iter()
            .map(|(at, sums)| (at.clone(), sums.charged_rub.clone()))
            .collect();
        let calls = values(|sums, language| {
            let (calls, failed) = (sums.calls, sums.failed_calls);
            let text = english("{0} calls, {1} cut or failed");
            (
                filled(text, language, &[&calls, &failed]),
                [calls.into(), failed.into()],
            )
        });
        let mut plots = vec![
            Plot::charged(span.charged, times, &charged, language),
            Plot {
                legend: english("All calls; cut or failed ones in red."),
                ..Plot::new(
                    span.calls,
                    Unit::Count,
                    ["bar", "bar failed"],
                    &calls,
                    language,
                )
            },
        ];
        if rows.iter().any(|(_, sums)| sums.whole.is_some()) {
            let latency = values(|sums, language| {
                let (p99, p50) = sums.whole.map_or((0, 0), |it| (it.p99_ms, it.p50_ms));
                let text = english("half within {0} ms, 99 % within {1} ms");
                (
                    filled(text, language, &[&p50, &p99]),
                    [p99.into(), p50.into()],
                )
            });
            plots.push(Plot {
                legend: english("Dark part: the median (p50). Light part: 99 % of the calls took at most this long (p99)."),
                ..Plot::new(
                    span.latency,
                    Unit::Milliseconds,
                    ["bar most", "bar"],
                    &latency,
                    language,
                )
            });
        }
        Self { span, plots, rows }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tollgate_layers::usage::Usage;

    use super::*;

    fn row(hour: &str, calls: u64, failed: u64, whole: &Value) -> UsageRow {
        serde_json::from_value(json!({
            "hour": hour, "calls": calls, "failed_calls": failed, "usage": Usage::default(), "charged_rub": "1.50",
            "cost_known_calls": 0, "margin_rub": null, "vendor_cost_rub": null, "whole": whole, "first_byte": null,
        }))
        .unwrap()
    }

    #[test]
    fn hours_without_calls_are_drawn_empty() {
        let times = hours(7 * HOUR_MS + 1, 10 * HOUR_MS);
        let rows = [
            row(
                &times[0],
                40,
                4,
                &json!({"calls": 40, "p50_ms": 100, "p99_ms": 400}),
            ),
            row(&times[3], 10, 0, &Value::Null),
        ];
        let course = Course::new(HOURS, &times, &rows, Language::En);
        let heights = |plot: &Plot| -> Vec<[u64; 2]> {
            let bars = plot.bars.iter();
            bars.map(|bar| bar.parts.map(|(_, height)| height))
                .collect()
        };
        let [charged, calls, latency] = &course.plots[..] else {
            panic!("three plots");
        };
        assert_eq!(heights(charged), [[75, 0], [0, 0], [0, 0], [75, 0]]);
        assert_eq!(charged.scale, ["2", "1"]);
        assert_eq!(heights(calls), [[100, 10], [0, 0], [0, 0], [25, 0]]);
        assert_eq!(calls.scale, ["40", "20"]);
        assert_eq!(heights(latency), [[100, 25], [0, 0], [0, 0], [0, 0]]);
        assert_eq!(charged.times, ["07:00", "08:00", "10:00"]);
        assert_eq!(course.rows.len(), 2);
        assert_eq!(
            Course::new(HOURS, &times, &rows[1..], Language::En)
                .plots
                .len(),
            2
        );
        assert!(
            Course::new(HOURS, &times, &[], Language::En)
                .plots
                .is_empty()
        );
    }

    #[test]
    fn plot_scale_ends_at_a_round_number_whose_half_is_round_too() {
        for (most, unit, end, half) in [
            (0, Unit::Count, "2", "1"),
            (3, Unit::Count, "4", "2"),
            (5, Unit::Count, "10", "5"),
            (101, Unit::Milliseconds, "200", "100"),
            (0, Unit::Rubles, "0.02", "0.01"),
            (1_234_567, Unit::Rubles, "2", "1"),
            (25_000_001, Unit::Rubles, "40", "20"),
        ] {
            let top = scale_end(most, unit);
            assert_eq!(
                [
                    unit.label(top, Language::En),
                    unit.label(top / 2, Language::En)
                ],
                [end, half],
                "{most}"
            );
        }
    }

    #[test]
    fn every_plot_range_has_a_label() {
        let november = 1_795_824_000_000; // 2026-11-28
        assert_eq!(
            days(november, november + 3 * DAY_MS)[2..],
            ["2026-11-30", "2026-12-01"]
        );
        assert_eq!(
            months(november, november + 40 * DAY_MS),
            ["2026-11", "2026-12", "2027-01"]
        );
        for (name, shown) in [
            ("2026-11", "Nov 2026"),
            ("2026-11-28", "28\u{a0}Nov"),
            ("2026-11-28T20:00:00Z", "20:00"),
        ] {
            assert_eq!(short(name, Language::En), shown);
        }
    }
}

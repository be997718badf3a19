//! Bar charts of sums over time, drawn on the server as SVG, with a scale and a time axis.

use std::{collections::HashMap, fmt::Write as _};

use tollgate_layers::respond::Language;

use super::{
    pages::{DAY_MS, HOUR_MS},
    shown,
    texts::{english, filled, translated},
    views::{Sums, UsageRow, micro},
};
use crate::text::time::{day, rfc3339};

/// The maximum height of a bar, in SVG units. The upper end of the scale is at this height.
const HEIGHT: u64 = 100;
/// The y coordinate of the bottom of the bars, in SVG units.
const BASE: u64 = HEIGHT + 2;
/// The width of a bar and the space after it, in SVG units.
const STEP: usize = 10;
/// A chart has room for at least this number of bars, so that a few bars do not fill it.
const BARS_MIN: usize = 12;
/// A period for which sums are drawn, with the titles of its table and its charts.
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
    latency: english("Call latency per hour, last 24 hours, ms"),
};
pub(crate) const DAYS: &Span = &Span {
    table: english("Table by day"),
    charged: english("Charged per day, last 30 days, ₽"),
    calls: english("Calls per day, last 30 days"),
    latency: english("Call latency per day, last 30 days, ms"),
};
pub(crate) const MONTHS: &Span = &Span {
    table: english("Table by month"),
    charged: english("Charged per month, last 12 months, ₽"),
    calls: english("Calls per month, last 12 months"),
    latency: english("Call latency per month, last 12 months, ms"),
};

/// A bar chart of one or two series over time, optionally compared with the previous period. The exact numbers are in a
/// table below the chart and in the bars' titles.
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    /// The style class and the name of each series; empty for a single series.
    pub(crate) legend: Vec<(&'static str, &'static str)>,
    /// The labels of the scale: at its upper end and in its middle.
    pub(crate) scale: [String; 2],
    pub(crate) bars: Vec<Bar>,
    /// The SVG path of the marks for the previous period; empty if that period had no values.
    pub(crate) before: String,
    /// The labels of the time axis: its first, its middle and its last time.
    pub(crate) times: Vec<String>,
}

/// The two bars at one time. The second bar is drawn in front of the first.
pub(crate) struct Bar {
    pub(crate) title: String,
    pub(crate) x: usize,
    /// The CSS class and the height of each of the two bars.
    pub(crate) parts: [(&'static str, u64); 2],
}

/// The values at one time.
struct Point {
    at: String,
    /// The title of the bar, which a browser shows when the pointer is over it.
    title: String,
    values: [i128; 2],
    /// The value of the first series in the previous period.
    before: i128,
}

/// The CSS class of the marks for the previous period.
const BEFORE: &str = "before";

/// The unit of a series, and the way in which its values are written.
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

    /// Draws values by time. `classes` are the CSS classes of the two series.
    fn new(
        title: &'static str,
        unit: Unit,
        classes: [&'static str; 2],
        points: &[Point],
        language: Language,
    ) -> Self {
        let most = points
            .iter()
            .flat_map(|it| [it.values[0], it.values[1], it.before]);
        let top = scale_end(most.max().unwrap_or(0), unit);
        let bar = |(index, point): (usize, &Point)| Bar {
            title: point.title.clone(),
            x: index * STEP,
            parts: [0, 1].map(|part| (classes[part], height(point.values[part], top))),
        };
        let mut before = String::new();
        for (index, point) in points.iter().enumerate().filter(|(_, it)| it.before > 0) {
            let (x, y) = (index * STEP, BASE - height(point.before, top));
            let _ = write!(before, "M{x} {y}h{STEP}");
        }
        Self {
            title,
            legend: Vec::new(),
            scale: [unit.label(top, language), unit.label(top / 2, language)],
            bars: points.iter().enumerate().map(bar).collect(),
            before,
            times: labels(points, language),
        }
    }

    /// Returns the chart with the names of its series. If the previous period has values, its name is added.
    fn with_legend(mut self, series: &[(&'static str, &'static str)]) -> Self {
        self.legend = series.to_vec();
        if !self.before.is_empty() {
            self.legend.push((BEFORE, english("previous period")));
        }
        self
    }

    /// Draws the charges by time, compared with those of the previous period. `times` has the names of all times to draw,
    /// including those without a charge. `before` has one amount for each of `times`, or is empty.
    pub(crate) fn compared(
        title: &'static str,
        times: &[String],
        rows: &[(String, String)],
        before: &[String],
        language: Language,
    ) -> Self {
        let found: HashMap<&str, &str> = rows.iter().map(|(at, sum)| (&**at, &**sum)).collect();
        let point = |(index, at): (usize, &String)| {
            let sum = micro(found.get(&**at).copied().unwrap_or("0.00"));
            let earlier = before.get(index).map_or(0, |sum| micro(sum));
            let mut title = format!(
                "{}: {} ₽",
                moment(at, language),
                shown::short(sum, language)
            );
            if earlier > 0 {
                let text = english("{0}; previous period: {1} ₽");
                title = filled(text, language, &[&title, &shown::short(earlier, language)]);
            }
            Point {
                at: at.clone(),
                title,
                values: [sum.max(0), 0],
                before: earlier,
            }
        };
        let points: Vec<Point> = times.iter().enumerate().map(point).collect();
        let plot = Self::new(title, Unit::Rubles, ["bar", "bar"], &points, language);
        match plot.before.is_empty() {
            true => plot,
            false => plot.with_legend(&[("bar", english("this period"))]),
        }
    }
}

/// Returns the labels of the time axis.
fn labels(points: &[Point], language: Language) -> Vec<String> {
    let last = points.len().saturating_sub(1);
    let shown = match points.len() {
        0..3 => (0..points.len()).collect(),
        _ => vec![0, last / 2, last],
    };
    let labels = shown
        .iter()
        .map(|index: &usize| short(&points[*index].at, language));
    labels.collect()
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

/// Returns the upper end of a scale that includes `most`: 1, 2, 4 or 10 times a power of ten, so that the middle of the
/// scale is a round number, too.
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

/// Returns the height of a bar for a value. A value above zero gets a visible bar.
fn height(value: i128, top: i128) -> u64 {
    let height = value.max(0) * i128::from(HEIGHT) / top;
    u64::try_from(height).map_or(HEIGHT, |height| height.max(u64::from(value > 0)))
}

/// Formats a time for the time axis: `20:00`, `28 Nov`, `Nov 2026`.
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

/// Formats a time for a bar's title: an hour with its day.
fn moment(name: &str, language: Language) -> String {
    match name.len() {
        16.. => format!("{}, {}", shown::day(&name[..10], language), &name[11..16]),
        _ => shown::day(name, language),
    }
}

/// Returns the names of all hours that begin in `from_ms..=until_ms`, in the form that reports use.
pub(crate) fn hours(from_ms: u64, until_ms: u64) -> Vec<String> {
    times(from_ms, until_ms, HOUR_MS, rfc3339)
}

/// Returns the names of all days in `from_ms..=until_ms`, in the form that reports use.
pub(crate) fn days(from_ms: u64, until_ms: u64) -> Vec<String> {
    times(from_ms, until_ms, DAY_MS, day)
}

fn times(from_ms: u64, until_ms: u64, step_ms: u64, name: fn(u64) -> String) -> Vec<String> {
    let times = (from_ms - from_ms % step_ms..=until_ms).step_by(step_ms as usize);
    times.map(name).collect()
}

/// Returns the names of all months in `from_ms..=until_ms`, in the form that reports use.
pub(crate) fn months(from_ms: u64, until_ms: u64) -> Vec<String> {
    let mut names = days(from_ms, until_ms);
    names.iter_mut().for_each(|name| name.truncate(7));
    names.dedup();
    names
}

/// Charts of charges, number of calls and latency over a period, with a table of the numbers.
pub(super) struct Course {
    pub(super) span: &'static Span,
    pub(super) plots: Vec<Plot>,
    /// The rows of the table: only the times at which there were calls.
    pub(super) rows: Vec<CourseRow>,
}

/// The sums at one time, and the charges at the corresponding time of the previous period.
pub(super) struct CourseRow {
    pub(super) at: String,
    pub(super) sums: Sums,
    pub(super) before_rub: Option<String>,
}

impl Course {
    /// `times` has the names of the times of the period, and `before` those of the previous period; `before` is empty
    /// if the periods are not compared. `rows` has the sums of both periods.
    pub(super) fn new(
        span: &'static Span,
        times: &[String],
        before: &[String],
        rows: &[UsageRow],
        language: Language,
    ) -> Self {
        let found: HashMap<&str, &Sums> = rows.iter().map(|row| (row.time(), &row.sums)).collect();
        let earlier = |index: usize| found.get(&**before.get(index)?).copied();
        let row = |(index, at): (usize, &String)| {
            Some(CourseRow {
                at: at.clone(),
                sums: (*found.get(&**at)?).clone(),
                before_rub: earlier(index).map(|sums| sums.charged_rub.clone()),
            })
        };
        let rows: Vec<CourseRow> = times.iter().enumerate().filter_map(row).collect();
        if rows.is_empty() {
            let plots = Vec::new();
            return Self { span, plots, rows };
        }
        let points = |value: fn(&Sums, Language) -> (String, [i128; 2])| -> Vec<Point> {
            let point = |(index, at): (usize, &String)| {
                let none = || (translated(english("no calls"), language).to_owned(), [0, 0]);
                let sums = found.get(&**at);
                let (reported, values) = sums.map_or_else(none, |sums| value(sums, language));
                Point {
                    at: at.clone(),
                    title: format!("{}: {reported}", moment(at, language)),
                    values,
                    before: earlier(index).map_or(0, |sums| value(sums, language).1[0]),
                }
            };
            times.iter().enumerate().map(point).collect()
        };
        let charged = rows.iter();
        let charged = charged.map(|it| (it.at.clone(), it.sums.charged_rub.clone()));
        let charged: Vec<_> = charged.collect();
        let charged_before = (0..times.len())
            .map(|index| earlier(index).map_or_else(String::new, |sums| sums.charged_rub.clone()));
        let charged_before: Vec<String> = charged_before.collect();
        let mut plots = vec![
            Plot::compared(span.charged, times, &charged, &charged_before, language),
            calls_plot(span, &points(calls), language),
        ];
        if rows.iter().any(|row| row.sums.whole.is_some()) {
            plots.push(latency_plot(span, points(latency), language));
        }
        Self { span, plots, rows }
    }
}

fn calls(sums: &Sums, language: Language) -> (String, [i128; 2]) {
    let (calls, failed) = (sums.calls, sums.failed_calls);
    let text = english("{0} calls, {1} of them cut off or failed");
    let title = filled(text, language, &[&calls, &failed]);
    (title, [calls.into(), failed.into()])
}

fn calls_plot(span: &Span, points: &[Point], language: Language) -> Plot {
    let classes = ["bar", "bar failed"];
    let plot = Plot::new(span.calls, Unit::Count, classes, points, language);
    plot.with_legend(&[
        ("bar", english("all calls")),
        ("bar failed", english("cut off or failed")),
    ])
}

fn latency(sums: &Sums, language: Language) -> (String, [i128; 2]) {
    let (p99, p50) = sums.whole.map_or((0, 0), |it| (it.p99_ms, it.p50_ms));
    let text = english("p50: {0} ms, p99: {1} ms");
    let title = filled(text, language, &[&p50, &p99]);
    (title, [p99.into(), p50.into()])
}

/// Draws two percentiles. The previous period has no marks, because they would be taken for a third percentile.
fn latency_plot(span: &Span, mut points: Vec<Point>, language: Language) -> Plot {
    for point in &mut points {
        point.before = 0;
    }
    let classes = ["bar most", "bar"];
    let plot = Plot::new(span.latency, Unit::Milliseconds, classes, &points, language);
    plot.with_legend(&[
        ("bar", english("median (p50)")),
        ("bar most", english("99th percentile (p99)")),
    ])
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
    fn hours_without_calls_are_plotted_as_empty() {
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
        let course = Course::new(HOURS, &times, &[], &rows, Language::En);
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
            Course::new(HOURS, &times, &[], &rows[1..], Language::En)
                .plots
                .len(),
            2
        );
        assert!(
            Course::new(HOURS, &times, &[], &[], Language::En)
                .plots
                .is_empty()
        );
    }

    #[test]
    fn previous_period_is_marked_at_corresponding_times_and_included_in_the_scale() {
        let times = hours(7 * HOUR_MS, 8 * HOUR_MS);
        let before = hours(5 * HOUR_MS, 6 * HOUR_MS);
        let rows = [
            row(&before[1], 80, 0, &Value::Null),
            row(&times[0], 40, 4, &Value::Null),
            row(&times[1], 20, 0, &Value::Null),
        ];
        let course = Course::new(HOURS, &times, &before, &rows, Language::En);
        let [charged, calls] = &course.plots[..] else {
            panic!("two plots");
        };
        assert_eq!(charged.before, "M10 27h10");
        assert!(
            charged.bars[1]
                .title
                .ends_with("1.50 ₽; previous period: 1.50 ₽")
        );
        assert_eq!((&*calls.before, &*calls.scale[0]), ("M10 22h10", "100"));
        let legend: Vec<_> = calls.legend.iter().map(|(class, _)| *class).collect();
        assert_eq!(legend, ["bar", "bar failed", BEFORE]);
        let table: Vec<_> = course
            .rows
            .iter()
            .map(|it| it.before_rub.as_deref())
            .collect();
        assert_eq!(table, [None, Some("1.50")], "only the times of this period");
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
    fn plot_periods_include_every_day_and_month_and_have_short_labels() {
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

//! Writes the results of a load as text with a plot, or as JSON.

use std::{fmt::Write as _, time::Duration};

use http::Uri;
use serde_json::{Value, json};

use crate::load::{Histogram, Results};

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];
/// The length of the plot's longest bar, in characters.
const BAR_MAX: u64 = 40;
/// The maximum number of lines of the plot.
const LINES_MAX: usize = 24;

pub(super) fn text(results: &Results, elapsed: Duration) -> String {
    let calls = results.answered + results.failed;
    let seconds = elapsed.as_secs_f64();
    let mut text = format!(
        "{calls} calls in {seconds:.1} s: {} answered ({:.1} a second), {} failed\n",
        results.answered,
        results.answered as f64 / seconds,
        results.failed,
    );
    for (status, count) in &results.statuses {
        let _ = writeln!(text, "  {status:<14} {count:>8}");
    }
    for (kind, count) in &results.errors {
        let _ = writeln!(text, "  {kind:<14} {count:>8}");
    }
    if let Some(failure) = &results.first_failure {
        let _ = writeln!(text, "the first failure: {failure}");
    }
    let _ = write!(text, "\n{:<16}", "ms");
    for (name, _) in QUANTILES {
        let _ = write!(text, "{name:>10}");
    }
    let _ = writeln!(text, "{:>10}", "max");
    for (name, durations) in parts(results) {
        if durations.count() == 0 {
            continue;
        }
        let _ = write!(text, "{:<16}", name.replace('_', " "));
        for (_, part) in QUANTILES {
            let _ = write!(text, "{:>10.2}", ms(durations.quantile(part)));
        }
        let _ = writeln!(text, "{:>10.2}", ms(durations.max()));
    }
    text.push_str(&plot(&results.whole));
    text
}

/// Returns the plot: one bar per range of latencies. The bounds of the ranges are 1, 2 or 5 times a power of ten.
fn plot(durations: &Histogram) -> String {
    let lines = buckets(durations);
    let highest = lines.iter().map(|(.., count)| *count).max().unwrap_or(0);
    let mut text = String::new();
    if highest > 0 {
        text.push_str("\nwhole call, ms\n");
    }
    for (from, to, count) in lines {
        // Every range with at least one call gets a bar, however few its calls are.
        let letters = (count * BAR_MAX).div_ceil(highest) as usize;
        let bar = "█".repeat(letters);
        let _ = writeln!(text, "{:>8} – {:<8} {bar} {count}", ms(from), ms(to));
    }
    text
}

/// Returns the number of calls in each range of latencies, without the empty ranges at both ends.
fn buckets(durations: &Histogram) -> Vec<(Duration, Duration, u64)> {
    let bounds: Vec<Duration> = (4..13)
        .flat_map(|power| [1, 2, 5].map(|digit| Duration::from_nanos(digit * 10_u64.pow(power))))
        .collect();
    let counts = durations.between(&bounds);
    let mut lines: Vec<_> = (1..bounds.len())
        .map(|index| (bounds[index - 1], bounds[index], counts[index]))
        .collect();
    if let Some(first) = lines.first_mut() {
        first.2 += counts[0];
    }
    let filled = |line: &(_, _, u64)| line.2 > 0;
    let first = lines.iter().position(filled).unwrap_or(lines.len());
    let end = lines
        .iter()
        .rposition(filled)
        .map_or(first, |last| last + 1);
    lines.drain(first..end).take(LINES_MAX).collect()
}

pub(super) fn json(url: &Uri, results: &Results, elapsed: Duration) -> Value {
    let seconds = elapsed.as_secs_f64();
    let mut report = json!({
        "url": url.to_string(),
        "seconds": seconds,
        "calls": results.answered + results.failed,
        "answered": results.answered,
        "answered_per_second": results.answered as f64 / seconds,
        "failed": results.failed,
        "statuses": results.statuses,
        "errors": results.errors,
        "first_failure": results.first_failure,
    });
    for (name, durations) in parts(results) {
        let mut part = json!({
            "count": durations.count(),
            "mean": ms(durations.mean()),
            "max": ms(durations.max()),
        });
        for (name, share) in QUANTILES {
            part[name] = ms(durations.quantile(share)).into();
        }
        part["histogram"] = buckets(durations)
            .into_iter()
            .map(|(from, to, count)| json!({ "from": ms(from), "to": ms(to), "count": count }))
            .collect();
        report[format!("{name}_ms")] = part;
    }
    report
}

fn parts(results: &Results) -> [(&'static str, &Histogram); 3] {
    [
        ("whole_call", &results.whole),
        ("first_chunk", &results.first_chunk),
        ("between_chunks", &results.between_chunks),
    ]
}

fn ms(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results {
            answered: 3,
            failed: 2,
            statuses: [(200, 3), (503, 1)].into(),
            errors: [("no connection", 1)].into(),
            first_failure: Some("503 Service Unavailable: draining".into()),
            ..Results::default()
        };
        for ms in [3, 4, 30] {
            results.whole.record(Duration::from_millis(ms));
        }
        results
    }

    #[test]
    fn text_report_counts_calls_by_status_and_plots_latencies() {
        let text = text(&results(), Duration::from_secs(2));
        for line in [
            "5 calls in 2.0 s: 3 answered (1.5 a second), 2 failed",
            "  503                   1",
            "  no connection         1",
            "the first failure: 503 Service Unavailable: draining",
            &format!("       2 – 5        {} 2", "█".repeat(40)),
            "       5 – 10        0",
            &format!("      20 – 50       {} 1", "█".repeat(20)),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("between chunks"), "{text}");
    }

    #[test]
    fn json_report_has_counts_and_histograms() {
        let url = Uri::from_static("http://localhost/v1");
        let json = json(&url, &results(), Duration::from_secs(2));
        assert_eq!(json["statuses"], json!({ "200": 3, "503": 1 }));
        assert_eq!(json["errors"], json!({ "no connection": 1 }));
        assert_eq!(json["whole_call_ms"]["max"], 30.0);
        let first = &json["whole_call_ms"]["histogram"][0];
        assert_eq!(first, &json!({ "from": 2.0, "to": 5.0, "count": 2 }));
    }
}

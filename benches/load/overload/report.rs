//! The table, and the bounds.

use std::{process::ExitCode, time::Duration};

use crate::client::Seen;

/// Above the lines of a scenario.
pub(crate) fn head() {
    println!(
        "{:<16} {:>7} {:>8} {:>8} {:>6}  {:>8} {:>8}  {:>8} {:>8} {:>8}  {:>8} {:>7}",
        "load",
        "calls/s",
        "served/s",
        "503/s",
        "others",
        "p50 ms",
        "p99 ms",
        "503 p50",
        "503 p99",
        "503 max",
        "RSS MiB",
        "behind",
    );
}

/// A line, as soon as it is known.
pub(crate) fn line(name: &str, seen: &Seen) {
    println!(
        "{name:<16} {:>7} {:>8.0} {:>8.0} {:>6}  {:>8.2} {:>8.2}  {:>8.2} {:>8.2} {:>8.2}  {:>8.1} {:>7.1}",
        seen.per_second,
        seen.each_second(seen.served.len()),
        seen.each_second(seen.refused.len()),
        seen.others.len(),
        millis(quantile(&seen.served, 0.50)),
        millis(quantile(&seen.served, 0.99)),
        millis(quantile(&seen.refused, 0.50)),
        millis(quantile(&seen.refused, 0.99)),
        millis(quantile(&seen.refused, 1.0)),
        seen.rss_kib as f64 / 1024.0,
        millis(seen.behind),
    );
}

/// What was promised, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Bounds(Vec<(String, bool)>);

impl Bounds {
    pub(crate) fn at_most(&mut self, what: &str, found: f64, bound: f64) {
        let text = format!("{what}: {found:.2}, at most {bound:.2}");
        self.0.push((text, found <= bound));
    }

    pub(crate) fn at_least(&mut self, what: &str, found: f64, bound: f64) {
        let text = format!("{what}: {found:.2}, at least {bound:.2}");
        self.0.push((text, found >= bound));
    }

    /// Prints them; a failure if one is broken.
    pub(crate) fn finish(self) -> ExitCode {
        for (text, kept) in &self.0 {
            println!("{} {text}", if *kept { "ok    " } else { "BROKEN" });
        }
        if self.0.iter().all(|(_, kept)| *kept) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// The time below which this part of all lies; nothing where there are none.
pub(crate) fn quantile(sorted: &[Duration], part: f64) -> Duration {
    let rank = (sorted.len() as f64 * part) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(rank.min(last)).copied().unwrap_or_default()
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

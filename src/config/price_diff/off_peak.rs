//! Converts a vendor's off-peak windows into peak hours, because the gateway's price rules state the hours of the
//! higher price.

use std::collections::BTreeMap;

use serde_json::Value;

use super::listed::When;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const DAY_MINUTES: usize = 1440;

/// Returns the conditions of the price rules for the times in which no window of `off_peak_pricing.windows` applies.
/// Weekdays with the same hours share one condition. `None` if a window has an unknown form.
pub(super) fn peak_hours(windows: &Value, preset: &str) -> Option<Vec<When>> {
    let mut is_cheap = vec![[false; DAY_MINUTES]; DAYS.len()];
    for window in windows.as_array()? {
        let hours = window.get("hours_utc")?;
        let spans = match hours.as_array() {
            Some(spans) => spans.iter().collect(),
            None => vec![hours],
        };
        let every_day: Vec<_> = (1..=7).collect();
        let days = match window.get("weekdays") {
            None => every_day,
            Some(days) => {
                let days = days.as_array()?.iter().map(Value::as_u64);
                days.collect::<Option<Vec<_>>>()?
            }
        };
        for span in spans {
            let (start, end) = span.as_str()?.split_once('-')?;
            let (start, end) = (minute(start)?, minute(end)?);
            let length = match (end + DAY_MINUTES - start) % DAY_MINUTES {
                0 => DAY_MINUTES,
                length => length,
            };
            for day in &days {
                let day = usize::try_from(day.checked_sub(1)?).ok()?;
                for minute in start..start + length {
                    // A span may continue after midnight, on the next day.
                    let day = (day + minute / DAY_MINUTES) % DAYS.len();
                    is_cheap[day][minute % DAY_MINUTES] = true;
                }
            }
        }
    }
    let mut groups: BTreeMap<Vec<String>, Vec<&str>> = BTreeMap::new();
    for (day, minutes) in DAYS.into_iter().zip(&is_cheap) {
        let spans = dear_spans(minutes);
        if !spans.is_empty() {
            groups.entry(spans).or_default().push(day);
        }
    }
    let rules = groups.into_iter().map(|(hours, days)| {
        let mut when = When::from([("hours_utc".to_owned(), list(&hours))]);
        if days.len() < DAYS.len() {
            when.insert("weekdays".to_owned(), list(&days));
        }
        // At this vendor, the end of the response decides which price applies. The preset's notes explain why.
        if preset == "deepseek" {
            when.insert("hours_at".to_owned(), "\"end\"".to_owned());
        }
        when
    });
    Some(rules.collect())
}

/// Returns the spans of a day that contain no off-peak minute, for example `01:00-04:00`.
fn dear_spans(is_cheap: &[bool; DAY_MINUTES]) -> Vec<String> {
    let mut spans = Vec::new();
    let mut start = None;
    for minute in 0..=DAY_MINUTES {
        let is_dear = is_cheap.get(minute).is_some_and(|is_cheap| !is_cheap);
        match (is_dear, start) {
            (true, None) => start = Some(minute),
            (false, Some(from)) => {
                spans.push(format!("{}-{}", clock(from), clock(minute)));
                start = None;
            }
            _ => {}
        }
    }
    spans
}

fn clock(minute: usize) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

/// Parses a time of day, for example `04:30`, and returns its minute of the day.
fn minute(text: &str) -> Option<usize> {
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes): (usize, usize) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours <= 24 && minutes < 60).then_some(hours * 60 + minutes)
}

/// Returns a list of texts in TOML.
fn list(items: &[impl AsRef<str>]) -> String {
    let items = items.iter().map(|it| format!("\"{}\"", it.as_ref()));
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

//! What the pages show of the admin API's answers.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_layers::{money::MicroRub, reserve::ledger::AccountView, usage::Usage};

use crate::text::rubles::Rubles;

#[derive(Deserialize)]
pub(super) struct Accounts {
    pub(super) accounts: Vec<AccountView>,
}

/// An account with its keys.
#[derive(Deserialize)]
pub(super) struct Account {
    #[serde(flatten)]
    pub(super) view: AccountView,
    pub(super) spent_month_rub: MicroRub,
    pub(super) spent_day_rub: MicroRub,
    /// Owed for refunds.
    pub(super) debt_rub: MicroRub,
    pub(super) keys: Vec<Key>,
}

/// By which rule a card is charged.
#[derive(Deserialize)]
pub(super) struct AutoTopup {
    pub(super) provider: String,
    pub(super) below_rub: MicroRub,
    pub(super) amount_rub: MicroRub,
    pub(super) month_max_rub: MicroRub,
    pub(super) month_rub: MicroRub,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) card: Option<String>,
    pub(super) url: Option<String>,
    pub(super) next_try_at: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Key {
    /// The secret: in the answer that made it.
    #[serde(default)]
    pub(super) key: Option<String>,
    pub(super) id: String,
    pub(super) account: String,
    /// `caller` or `owner`.
    pub(super) kind: String,
    pub(super) prefix: String,
    pub(super) name: String,
    pub(super) status: String,
    pub(super) ceiling_rub: Option<MicroRub>,
    pub(super) spent_rub: MicroRub,
    pub(super) ceiling_month_rub: Option<MicroRub>,
    pub(super) spent_month_rub: MicroRub,
    pub(super) ceiling_day_rub: Option<MicroRub>,
    pub(super) spent_day_rub: MicroRub,
    pub(super) held_rub: MicroRub,
    pub(super) free_rub: MicroRub,
    pub(super) models: Vec<String>,
    pub(super) addresses: Vec<String>,
    pub(super) requests_per_second: Option<u32>,
    pub(super) requests_per_minute: Option<u32>,
    pub(super) tokens_per_minute: Option<u32>,
    pub(super) group: Option<String>,
    /// How many calls at once.
    pub(super) concurrency: Option<u32>,
    pub(super) idempotency: bool,
    pub(super) expires_at: Option<String>,
    pub(super) created_at: String,
    pub(super) changed_at: String,
}

impl Key {
    /// Whether its id begins so, or its secret, of which the beginning is known: more of it may have been typed.
    pub(super) fn is_like(&self, begins: &str) -> bool {
        let known = self.prefix.trim_end_matches('…');
        let is_longer = !known.is_empty() && begins.starts_with(known);
        self.id.starts_with(begins) || known.starts_with(begins) || is_longer
    }
}

#[derive(Deserialize)]
pub(super) struct Groups {
    pub(super) groups: Vec<Group>,
}

/// Keys with ceilings in common.
#[derive(Deserialize)]
pub(super) struct Group {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) status: String,
    pub(super) ceiling_rub: Option<MicroRub>,
    pub(super) spent_rub: MicroRub,
    pub(super) ceiling_month_rub: Option<MicroRub>,
    pub(super) spent_month_rub: MicroRub,
    pub(super) ceiling_day_rub: Option<MicroRub>,
    pub(super) spent_day_rub: MicroRub,
}

#[derive(Deserialize)]
pub(super) struct Calls {
    pub(super) receipts: Vec<Call>,
    pub(super) next: Option<String>,
    pub(super) searched_since: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Call {
    pub(super) number: String,
    pub(super) at: String,
    pub(super) account: String,
    pub(super) key: String,
    pub(super) model: String,
    pub(super) vendor: String,
    pub(super) end: String,
    pub(super) charged_rub: MicroRub,
    pub(super) margin_rub: Option<MicroRub>,
    pub(super) session: Option<String>,
    pub(super) usage: Usage,
}

#[derive(Deserialize)]
pub(super) struct Vendors {
    pub(super) vendors: Vec<Vendor>,
}

#[derive(Deserialize)]
pub(super) struct Vendor {
    pub(super) name: String,
    pub(super) status: String,
    pub(super) in_flight: u64,
    pub(super) connections_max: u64,
    pub(super) keys: u64,
    pub(super) keys_parked: u64,
    pub(super) routes: Vec<Route>,
}

#[derive(Deserialize)]
pub(super) struct Route {
    pub(super) model: String,
    pub(super) state: String,
    pub(super) failures: u64,
    pub(super) in_flight: u64,
    pub(super) ewma_ms: Option<u64>,
    pub(super) last_error: Option<LastError>,
}

#[derive(Deserialize)]
pub(super) struct LastError {
    pub(super) at: String,
    pub(super) text: String,
}

#[derive(Deserialize)]
pub(super) struct Usages {
    pub(super) rows: Vec<UsageRow>,
    pub(super) total: Sums,
}

#[derive(Deserialize)]
pub(super) struct UsageRow {
    pub(super) day: Option<String>,
    pub(super) model: Option<String>,
    pub(super) group: Option<String>,
    pub(super) hour: Option<String>,
    pub(super) month: Option<String>,
    #[serde(flatten)]
    pub(super) sums: Sums,
}

#[derive(Clone, Deserialize)]
pub(super) struct Sums {
    pub(super) calls: u64,
    pub(super) failed_calls: u64,
    pub(super) usage: Usage,
    /// Sums of many accounts may be beyond what one can have: they stay text.
    pub(super) charged_rub: String,
    pub(super) margin_rub: Option<String>,
    pub(super) vendor_cost_rub: Option<String>,
    pub(super) whole: Option<Latency>,
    pub(super) first_byte: Option<Latency>,
}

/// How long calls took.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct Latency {
    pub(super) p50_ms: u64,
    pub(super) p99_ms: u64,
}

/// Names and values of a receipt that belong together.
pub(super) struct Chapter {
    pub(super) title: &'static str,
    pub(super) facts: Vec<(String, String)>,
}

/// All that a receipt says, chapter by chapter: what is in none of those that have a name comes first.
pub(super) fn story(receipt: &Value) -> Vec<Chapter> {
    const MONEY: [&str; 6] = [
        "held_rub",
        "cost_rub",
        "charged_rub",
        "loss_rub",
        "vendor_cost_rub",
        "margin_rub",
    ];
    let mut chapters = ["The call", "Money", "Tokens", "Price"].map(|title| Chapter {
        title,
        facts: Vec::new(),
    });
    for (name, value) in receipt.as_object().into_iter().flatten() {
        let at = match name.as_str() {
            name if MONEY.contains(&name) => 1,
            "usage" => 2,
            "price" | "price_rule" => 3,
            _ => 0,
        };
        let is_part = matches!(name.as_str(), "usage" | "price");
        facts(
            if is_part { "" } else { name },
            value,
            &mut chapters[at].facts,
        );
    }
    Vec::from(chapters)
}

pub(super) fn facts(name: &str, value: &Value, into: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = match name {
                    "" => field.clone(),
                    name => format!("{name}.{field}"),
                };
                facts(&name, value, into);
            }
        }
        Value::Null => {}
        Value::String(text) => into.push((name.to_owned(), text.clone())),
        other => into.push((name.to_owned(), other.to_string())),
    }
}

/// What this node counts since it was started, out of the text of `/metrics`.
#[derive(Default, Serialize)]
pub(super) struct Counters {
    pub(super) calls: u64,
    pub(super) failed: u64,
    pub(super) released: u64,
    pub(super) in_flight: u64,
    pub(super) refusals: u64,
}

impl Counters {
    pub(super) fn of(text: &str) -> Self {
        let mut counters = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap_or((line, ""));
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let value: u64 = value.parse().unwrap_or(0);
            match name {
                "tollgate_calls_total" if labels.contains("end=\"released\"") => {
                    counters.released += value;
                }
                "tollgate_calls_total" => {
                    counters.calls += value;
                    if labels.contains("end=\"vendor_") {
                        counters.failed += value;
                    }
                }
                "tollgate_in_flight" => counters.in_flight = value,
                "tollgate_refusals_total" => counters.refusals += value,
                _ => {}
            }
        }
        counters
    }
}

/// Charges one after the other, for the eye: a table has the numbers.
pub(super) struct Plot {
    /// By what: `by day`.
    pub(super) by: &'static str,
    pub(super) bars: Vec<Bar>,
    /// In all.
    pub(super) charged: String,
    /// Where the numbers stand, if they do.
    pub(super) table: &'static str,
}

impl Plot {
    pub(super) fn width(&self) -> usize {
        width(self.bars.len())
    }
}

/// How wide a plot is drawn: a few bars do not fill it.
fn width(bars: usize) -> usize {
    10 * bars.max(12)
}

/// One time after the other: what was charged, how many calls there were, and how long they took.
pub(super) struct Course {
    pub(super) charged: Plot,
    pub(super) calls: u64,
    pub(super) failed_calls: u64,
    /// Whether it is known of any call how long it took.
    pub(super) is_timed: bool,
    pub(super) times: Vec<Time>,
}

impl Course {
    pub(super) fn width(&self) -> usize {
        width(self.times.len())
    }
}

/// An hour, a day or a month. Heights are parts of the highest, which is 100.
pub(super) struct Time {
    pub(super) name: String,
    pub(super) x: usize,
    pub(super) sums: Sums,
    pub(super) calls_height: u64,
    pub(super) failed_height: u64,
    pub(super) p50_height: u64,
    pub(super) p99_height: u64,
}

impl Course {
    pub(super) fn of(by: &'static str, rows: &[UsageRow]) -> Self {
        let name = |row: &UsageRow| {
            let names = [&row.hour, &row.day, &row.month];
            names
                .into_iter()
                .flatten()
                .next()
                .cloned()
                .unwrap_or_default()
        };
        let charged = rows
            .iter()
            .map(|row| (name(row), row.sums.charged_rub.clone()));
        let charged: Vec<(String, String)> = charged.collect();
        let sums = || rows.iter().map(|row| &row.sums);
        let most_calls = sums().map(|sums| sums.calls).max().unwrap_or(0).max(1);
        let longest = sums()
            .filter_map(|sums| sums.whole)
            .map(|whole| whole.p99_ms);
        let longest_ms = longest.max();
        let longest = longest_ms.unwrap_or(0).max(1);
        let time = |(index, row): (usize, &UsageRow)| Time {
            name: name(row),
            x: index * 10,
            calls_height: row.sums.calls * 100 / most_calls,
            failed_height: row.sums.failed_calls * 100 / most_calls,
            p50_height: row
                .sums
                .whole
                .map_or(0, |whole| whole.p50_ms * 100 / longest),
            p99_height: row
                .sums
                .whole
                .map_or(0, |whole| whole.p99_ms * 100 / longest),
            sums: row.sums.clone(),
        };
        Self {
            calls: sums().map(|sums| sums.calls).sum(),
            failed_calls: sums().map(|sums| sums.failed_calls).sum(),
            is_timed: longest_ms.is_some(),
            times: rows.iter().enumerate().map(time).collect(),
            charged: Plot {
                by,
                bars: bars(&charged),
                charged: sum_of(&charged),
                table: "; the table below has the numbers",
            },
        }
    }
}

/// What rows come to in all.
pub(super) struct Total {
    pub(super) calls: u64,
    pub(super) failed_calls: u64,
    pub(super) charged_rub: String,
    pub(super) margin_rub: Option<String>,
}

impl Total {
    pub(super) fn of<'a>(rows: impl Iterator<Item = &'a UsageRow>) -> Self {
        let (mut calls, mut failed_calls, mut charged) = (0, 0, 0);
        let mut margin: Option<i128> = None;
        for UsageRow { sums, .. } in rows {
            calls += sums.calls;
            failed_calls += sums.failed_calls;
            charged += micro(&sums.charged_rub);
            if let Some(rubles) = &sums.margin_rub {
                *margin.get_or_insert(0) += micro(rubles);
            }
        }
        Self {
            calls,
            failed_calls,
            charged_rub: Rubles(charged).to_string(),
            margin_rub: margin.map(|micro| Rubles(micro).to_string()),
        }
    }
}

/// The charges of rows in all.
pub(super) fn sum_of(rows: &[(String, String)]) -> String {
    let micro = rows.iter().map(|(_, rubles)| micro(rubles));
    Rubles(micro.sum()).to_string()
}

/// As sums are written: they may be beyond what one account can have.
pub(super) fn micro(rubles: &str) -> i128 {
    let (whole, fraction) = rubles.split_once('.').unwrap_or((rubles, ""));
    let digits = format!("{whole}{fraction:0<6}");
    digits.parse().unwrap_or(0)
}

/// A bar for each day, as parts of the highest, which is 100; for a drawing alone.
pub(super) struct Bar {
    pub(super) day: String,
    pub(super) shown: String,
    pub(super) x: usize,
    pub(super) height: u64,
}

pub(super) fn bars(rows: &[(String, String)]) -> Vec<Bar> {
    let above = |text: &str| micro(text).max(0);
    let most = rows.iter().map(|(_, rubles)| above(rubles)).max();
    let most = most.unwrap_or(0).max(1);
    let bar = |(index, (day, rubles)): (usize, &(String, String))| Bar {
        day: day.clone(),
        shown: rubles.clone(),
        x: index * 10,
        height: u64::try_from(above(rubles) * 100 / most).unwrap_or(0),
    };
    rows.iter().enumerate().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_story_of_a_receipt_leaves_nothing_out() {
        let receipt = json!({
            "number": "n", "charged_rub": "1.00", "usage": {"input": 3, "classes": {"input_image": 4}},
            "price": {"input": "2", "condition": {"speed": "fast"}}, "session": null, "estimated": true,
        });
        let told: Vec<(&str, Vec<String>)> = story(&receipt)
            .into_iter()
            .map(|chapter| {
                let fact = |(name, value): (String, String)| format!("{name}={value}");
                (chapter.title, chapter.facts.into_iter().map(fact).collect())
            })
            .collect();
        assert_eq!(
            told[0],
            ("The call", vec!["estimated=true".into(), "number=n".into()])
        );
        assert_eq!(told[1].1, ["charged_rub=1.00"]);
        assert_eq!(told[2].1, ["classes.input_image=4", "input=3"]);
        assert_eq!(told[3].1, ["condition.speed=fast", "input=2"]);
    }

    #[test]
    fn counters_are_read_off_the_metrics() {
        let counters = Counters::of(
            "# HELP tollgate_calls x\ntollgate_calls_total{model=\"a\",vendor=\"v\",end=\"finished\"} 7\n\
             tollgate_calls_total{model=\"a\",vendor=\"v\",end=\"vendor_cut\"} 2\n\
             tollgate_calls_total{model=\"a\",vendor=\"v\",end=\"released\"} 3\ntollgate_in_flight 4\n\
             tollgate_refusals_total{code=\"x\"} 5\n",
        );
        let Counters {
            calls,
            failed,
            released,
            in_flight,
            refusals,
        } = counters;
        assert_eq!(
            [calls, failed, released, in_flight, refusals],
            [9, 2, 3, 4, 5]
        );
    }

    #[test]
    fn a_key_is_found_by_how_its_id_or_its_secret_begins() {
        let key: Key = serde_json::from_value(json!({
            "id": "kAbc", "account": "acme", "kind": "caller", "prefix": "tg-5X8JaF…", "name": "ci",
            "status": "active", "ceiling_rub": null, "spent_rub": "0", "ceiling_month_rub": null,
            "spent_month_rub": "0", "ceiling_day_rub": null, "spent_day_rub": "0", "held_rub": "0",
            "free_rub": "0", "models": [], "addresses": [], "requests_per_second": null,
            "requests_per_minute": null, "tokens_per_minute": null, "group": null, "concurrency": null,
            "idempotency": false, "expires_at": null, "created_at": "", "changed_at": "",
        }))
        .unwrap();
        for (begins, is_like) in [
            ("kAb", true),
            ("tg-5X", true),
            ("tg-5X8JaFzz", true),
            ("kabc", false),
            ("5X8", false),
            ("tg-6", false),
        ] {
            assert_eq!(key.is_like(begins), is_like, "{begins}");
        }
    }

    #[test]
    fn a_course_has_what_each_time_has_and_heights_beside_the_highest() {
        let row = |hour: &str, calls: u64, failed: u64, whole: Value| {
            serde_json::from_value::<UsageRow>(json!({
                "hour": hour, "calls": calls, "failed_calls": failed, "usage": Usage::default(), "charged_rub": "1.50",
                "margin_rub": null, "vendor_cost_rub": null, "whole": whole, "first_byte": null,
            }))
            .unwrap()
        };
        let rows = [
            row(
                "1",
                40,
                4,
                json!({"calls": 40, "p50_ms": 100, "p99_ms": 400}),
            ),
            row("2", 10, 0, Value::Null),
        ];
        let course = Course::of("by hour", &rows);
        assert_eq!((course.calls, course.failed_calls), (50, 4));
        assert!(course.is_timed);
        assert_eq!(course.charged.charged, "3.00");
        let heights = course.times.iter().map(|time| {
            let Time {
                calls_height,
                failed_height,
                p50_height,
                p99_height,
                ..
            } = time;
            [*calls_height, *failed_height, *p50_height, *p99_height]
        });
        assert_eq!(
            heights.collect::<Vec<_>>(),
            [[100, 10, 25, 100], [25, 0, 0, 0]]
        );
        assert!(!Course::of("by hour", &rows[1..]).is_timed);
        assert!(Course::of("by hour", &[]).times.is_empty());
    }

    #[test]
    fn bars_are_parts_of_the_highest() {
        let rows = [
            ("1".into(), "5.00".into()),
            ("2".into(), "20.00".into()),
            ("3".into(), "0.00".into()),
        ];
        let heights: Vec<u64> = bars(&rows).iter().map(|bar| bar.height).collect();
        assert_eq!(heights, [25, 100, 0]);
        assert!(bars(&[]).is_empty());
    }
}

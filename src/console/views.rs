//! The admin API's responses, with the fields that the console's pages show.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_layers::{money::MicroRub, reserve::ledger::AccountView, usage::Usage};

use super::texts::english;
use crate::{
    api::ceilings::Spending,
    config::{described::Described, sections::KEY_FILE},
    text::rubles::Rubles,
};

/// An account with its keys, with the fields that a page shows.
#[derive(Deserialize)]
pub(super) struct Account {
    #[serde(flatten)]
    pub(super) view: AccountView,
    pub(super) spent_month_rub: MicroRub,
    pub(super) spent_day_rub: MicroRub,
    /// The account's debt for refunds.
    pub(super) debt_rub: MicroRub,
    pub(super) keys: Vec<Key>,
}

/// The rule by which a saved card is charged when the balance is low.
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
    /// The key's secret; present only in the response to the request that created the key.
    #[serde(default)]
    pub(super) key: Option<String>,
    pub(super) id: String,
    pub(super) account: String,
    /// The kind of the key: `caller` or `owner`.
    pub(super) kind: String,
    pub(super) prefix: String,
    pub(super) name: String,
    pub(super) status: String,
    #[serde(flatten)]
    pub(super) spending: Spending,
    pub(super) held_rub: MicroRub,
    pub(super) free_rub: MicroRub,
    pub(super) models: Vec<String>,
    pub(super) addresses: Vec<String>,
    pub(super) requests_per_second: Option<u32>,
    pub(super) requests_per_minute: Option<u32>,
    pub(super) tokens_per_minute: Option<u32>,
    pub(super) group: Option<String>,
    /// The maximum number of concurrent calls with the key.
    pub(super) concurrency: Option<u32>,
    pub(super) idempotency: bool,
    pub(super) growing_holds: bool,
    pub(super) expires_at: Option<String>,
    pub(super) created_at: String,
    pub(super) changed_at: String,
}

impl Key {
    /// Returns whether the key's id or secret begins with `begins`. Only the first characters of the secret are known,
    /// so a longer text matches if it begins with these characters.
    pub(super) fn is_like(&self, begins: &str) -> bool {
        let known = self.prefix.trim_end_matches('…');
        let is_longer = !known.is_empty() && begins.starts_with(known);
        self.id.starts_with(begins) || known.starts_with(begins) || is_longer
    }
}

/// A group of an account's keys.
#[derive(Deserialize)]
pub(super) struct Group {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) status: String,
    #[serde(flatten)]
    pub(super) spending: Spending,
}

impl Group {
    /// For each period, returns the amount spent and its ceiling, each with its label.
    pub(super) fn columns(&self) -> Vec<(&'static str, MicroRub, &'static str, Option<MicroRub>)> {
        let rows = self.spending.rows().into_iter();
        rows.map(|(ceiling, value, spent)| (ceiling.labels.2, spent, ceiling.labels.1, value))
            .collect()
    }
}

/// The vendors and models of the configuration file.
#[derive(Deserialize)]
pub(super) struct Configuration {
    pub(super) hash: String,
    /// Whether a previous version of the file is kept.
    pub(super) previous: bool,
    #[serde(flatten)]
    pub(super) described: Described,
    pub(super) presets: Vec<Preset>,
}

#[derive(Deserialize)]
pub(super) struct Preset {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) key_page: Option<String>,
    pub(super) logins: Vec<Login>,
}

/// A login (authentication method) of a preset's vendor.
#[derive(Deserialize)]
pub(super) struct Login {
    /// The login's name; `None` for the preset's default login.
    pub(super) name: Option<String>,
    title: Option<String>,
    pub(super) key_variable: Option<String>,
    key_setting: Option<String>,
    pub(super) values: Vec<PresetValue>,
}

#[derive(Deserialize)]
pub(super) struct PresetValue {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) find: String,
    pub(super) example: String,
}

impl Login {
    /// Returns the login's name; empty for the preset's default login.
    pub(super) fn word(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    pub(super) fn label(&self) -> &str {
        let usual = match self.needs_file() {
            true => english("a service account's JSON file"),
            false => english("an API key"),
        };
        self.title.as_deref().unwrap_or(usual)
    }

    /// Returns whether the key is a service account's JSON file.
    pub(super) fn needs_file(&self) -> bool {
        self.key_setting.as_deref() == Some(KEY_FILE)
    }
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

impl Route {
    /// Returns whether the route gets calls as usual: it is answering, or has not been tried yet.
    pub(super) fn is_well(&self) -> bool {
        matches!(&*self.state, "answering" | "untried")
    }
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
    pub(super) vendor: Option<String>,
    pub(super) key: Option<String>,
    pub(super) group: Option<String>,
    pub(super) hour: Option<String>,
    pub(super) month: Option<String>,
    #[serde(flatten)]
    pub(super) sums: Sums,
}

impl UsageRow {
    /// Returns the name of the row's hour, day or month; empty if the report is not grouped by time.
    pub(super) fn time(&self) -> &str {
        let mut times = [&self.hour, &self.day, &self.month].into_iter().flatten();
        times.next().map_or("", String::as_str)
    }
}

#[derive(Clone, Deserialize)]
pub(super) struct Sums {
    pub(super) calls: u64,
    pub(super) failed_calls: u64,
    pub(super) usage: Usage,
    /// The sum as a text. It is not an amount type, because a sum over many accounts may exceed the maximum of one
    /// account.
    pub(super) charged_rub: String,
    /// The number of calls whose vendor cost is known. The margin covers only these calls.
    pub(super) cost_known_calls: u64,
    pub(super) margin_rub: Option<String>,
    pub(super) vendor_cost_rub: Option<String>,
    pub(super) whole: Option<Latency>,
    pub(super) first_byte: Option<Latency>,
}

/// The latency percentiles of the calls.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct Latency {
    pub(super) p50_ms: u64,
    pub(super) p99_ms: u64,
}

/// Fields of a receipt that the page shows together under one title.
pub(super) struct Chapter {
    pub(super) title: &'static str,
    pub(super) facts: Vec<(String, String)>,
}

/// Returns all fields of a receipt, by chapter. Fields that belong to no other chapter are in the first one.
pub(super) fn story(receipt: &Value) -> Vec<Chapter> {
    const MONEY: [&str; 9] = [
        "held_rub",
        "held_max_rub",
        "held_at_end_rub",
        "stopped_by",
        "cost_rub",
        "charged_rub",
        "loss_rub",
        "vendor_cost_rub",
        "margin_rub",
    ];
    let mut chapters = [
        english("The call"),
        english("Money"),
        english("Tokens"),
        english("Price"),
    ]
    .map(|title| Chapter {
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
        let name = if is_part { "" } else { name };
        facts(name, value, &mut chapters[at].facts);
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

/// This node's counters since the process started, parsed from the text of `/metrics`.
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

/// The sums over some rows of a usage report.
pub(super) struct Total {
    pub(super) calls: u64,
    pub(super) failed_calls: u64,
    pub(super) charged_rub: String,
    /// The number of calls whose vendor cost is known. The margin covers only these calls.
    pub(super) cost_known_calls: u64,
    pub(super) margin_rub: Option<String>,
}

impl Total {
    pub(super) fn of<'a>(rows: impl Iterator<Item = &'a UsageRow>) -> Self {
        let (mut calls, mut failed_calls, mut charged, mut cost_known_calls) = (0, 0, 0, 0);
        let mut margin: Option<i128> = None;
        for UsageRow { sums, .. } in rows {
            calls += sums.calls;
            failed_calls += sums.failed_calls;
            charged += micro(&sums.charged_rub);
            cost_known_calls += sums.cost_known_calls;
            if let Some(rubles) = &sums.margin_rub {
                *margin.get_or_insert(0) += micro(rubles);
            }
        }
        Self {
            calls,
            failed_calls,
            charged_rub: Rubles(charged).to_string(),
            cost_known_calls,
            margin_rub: margin.map(|micro| Rubles(micro).to_string()),
        }
    }
}

/// Parses a sum of rubles into micro-rubles. The sum may exceed the maximum of one account.
pub(super) fn micro(rubles: &str) -> i128 {
    let (whole, fraction) = rubles.split_once('.').unwrap_or((rubles, ""));
    let digits = format!("{whole}{fraction:0<6}");
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn receipt_page_shows_every_field() {
        let receipt = json!({
            "number": "n", "charged_rub": "1.00", "usage": {"input": 3, "classes": {"input_image": 4}},
            "price": {"input": "2", "condition": {"speed": "fast"}}, "session": null, "estimated": true,
        });
        let message_page: Vec<(&str, Vec<String>)> = story(&receipt)
            .into_iter()
            .map(|chapter| {
                let fact = |(name, value): (String, String)| format!("{name}={value}");
                (chapter.title, chapter.facts.into_iter().map(fact).collect())
            })
            .collect();
        assert_eq!(
            message_page[0],
            ("The call", vec!["estimated=true".into(), "number=n".into()])
        );
        assert_eq!(message_page[1].1, ["charged_rub=1.00"]);
        assert_eq!(message_page[2].1, ["classes.input_image=4", "input=3"]);
        assert_eq!(message_page[3].1, ["condition.speed=fast", "input=2"]);
    }

    #[test]
    fn console_counters_are_read_from_the_metrics() {
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
    fn key_is_found_by_the_beginning_of_its_id_or_of_its_secret() {
        let key: Key = serde_json::from_value(json!({
            "id": "kAbc", "account": "acme", "kind": "caller", "prefix": "tg-5X8JaF…", "name": "ci",
            "status": "active", "ceiling_rub": null, "spent_rub": "0", "ceiling_month_rub": null,
            "spent_month_rub": "0", "ceiling_day_rub": null, "spent_day_rub": "0", "held_rub": "0",
            "free_rub": "0", "models": [], "addresses": [], "requests_per_second": null,
            "requests_per_minute": null, "tokens_per_minute": null, "group": null, "concurrency": null,
            "idempotency": false, "growing_holds": false, "expires_at": null, "created_at": "", "changed_at": "",
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
}

//! Charges usage as vendors report it at the prices that vendors publish. `usages.jsonl` has the usage, recorded or
//! built from the vendors' documentation, and `prices.json` the prices, both with sources. The expected charge is
//! computed by a calculator that shares no code with the product. Both charges must be equal to the micro-ruble.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{MessagesUsage, chat_usage, embeddings_usage, responses_usage};
use crate::price::{CallTimes, Class, Condition, Currency, Price, PriceList, Rate};

/// A number for each rate class, by the name of the class.
type Numbers<T> = BTreeMap<String, T>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    /// The address of the page with the prices, and the date on which it was read.
    source: String,
    /// Whether the prices are invented for the test.
    #[serde(default)]
    made: bool,
    #[serde(default, rename = "notes")]
    _notes: String,
    /// The currency of the prices.
    #[serde(default)]
    currency: Currency,
    usual: Numbers<String>,
    rules: Vec<PublishedRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedRule {
    when: Condition,
    rates: Numbers<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    list: String,
    format: String,
    /// The usage of each event of a stream, in order; one usage for a plain response.
    usage: Vec<Box<serde_json::value::RawValue>>,
    service_tier: Option<String>,
    /// When the call was made, if the price depends on it: Unix milliseconds, and the same time in readable form.
    #[serde(default)]
    at: Option<(u64, String)>,
    /// The counts by rate class that a person would derive from the usage.
    counts: Numbers<u64>,
    /// The condition of the price that applies. Empty if the price without a condition applies.
    #[serde(default)]
    rule: String,
    exchange_rate: String,
    multiplier: String,
    /// The source of the usage: a recording, the vendor's documentation, or "invented".
    source: String,
}

fn lists() -> BTreeMap<String, Published> {
    serde_json::from_str(include_str!("prices.json")).unwrap()
}

fn rows() -> Vec<Row> {
    include_str!("usages.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Parses a decimal number and returns it in billionths.
fn billionths(text: &str) -> i128 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    assert!(fraction.len() <= 9, "{text}");
    format!("{whole}{fraction:0<9}").parse().unwrap()
}

/// Returns the rate in micro-rubles per million tokens, or per call, rounded up as in the catalog.
fn rate(row: &Row, currency: Currency, price: &str) -> i128 {
    let exchange_rate = match currency {
        Currency::Usdt => row.exchange_rate.as_str(),
        Currency::Rub => "1",
    };
    let product =
        billionths(price) * billionths(exchange_rate) / 1000 * billionths(&row.multiplier) / 1000;
    // The product is in units of 10⁻⁹ · 10⁻⁶ · 10⁻⁶ rubles. The two divisions by 1000 are exact if each number has at
    // most six decimal places.
    (product + 999_999_999_999_999) / 1_000_000_000_000_000
}

/// Returns the cost in micro-rubles, rounded up once at the end.
fn reckoned(row: &Row, currency: Currency, rates: &Numbers<String>) -> i128 {
    let mut sum = 0;
    for (class, count) in &row.counts {
        let unit = if class.ends_with("_call") {
            1_000_000
        } else {
            1
        };
        sum += i128::from(*count) * rate(row, currency, &rates[class]) * unit;
    }
    (sum + 999_999) / 1_000_000
}

fn price(row: &Row, list: &Published, rates: &Numbers<String>, condition: Condition) -> Price {
    let of = |class: &str| {
        let micro = rate(row, list.currency, rates.get(class)?);
        Some(Rate::new(u64::try_from(micro).unwrap()))
    };
    // An embeddings model has a price only for input.
    let input = of("input").unwrap();
    let other = |class: &str| match (of(class), rates.len()) {
        (None, 1) => input,
        (rate, _) => rate.unwrap(),
    };
    Price {
        input,
        cached_input: other("cached_input"),
        output: other("output"),
        cache_write: other("cache_write"),
        classes: Class::ALL
            .into_iter()
            .map(|class| (class, of(class.name())))
            .collect(),
        condition,
        currency: list.currency,
        ..Price::default()
    }
}

fn reported(row: &Row) -> super::VendorUsage {
    let tier = row.service_tier.as_ref().map(|tier| format!("\"{tier}\""));
    // The last chunk of a stream has all counts in every format except Messages.
    let last = row.usage.last().unwrap().get();
    match &*row.format {
        "messages" => {
            let mut all = MessagesUsage::default();
            for usage in &row.usage {
                all.replace_by(MessagesUsage::of(usage.get()).unwrap());
            }
            all.counts().unwrap()
        }
        "responses" => responses_usage(last).unwrap().served_as(tier.as_deref()),
        "chat" => chat_usage(last).unwrap().served_as(tier.as_deref()),
        "embeddings" => embeddings_usage(last).unwrap(),
        other => panic!("unknown format: {other}"),
    }
}

#[test]
fn reported_usage_costs_exactly_the_published_prices() {
    let (lists, rows) = (lists(), rows());
    assert!(rows.len() >= 120, "{}", rows.len());
    let mut met = std::collections::BTreeSet::new();
    for (number, row) in (1..).zip(&rows) {
        let list = &lists[&row.list];
        let name = format!("usages.jsonl:{number}: {}", row.source);
        let conditions: Vec<_> = list.rules.iter().map(|rule| rule.when).collect();
        assert_eq!(crate::price::ambiguous(&conditions), None, "{name}");
        let prices = PriceList::from(price(row, list, &list.usual, Condition::default())).rules(
            list.rules
                .iter()
                .map(|rule| price(row, list, &rule.rates, rule.when)),
        );
        let reported = reported(row);
        assert!(
            !reported.suspect && !reported.unknown,
            "{name}: {reported:?}"
        );
        let times = CallTimes::at(row.at.as_ref().map_or(0, |(ms, _)| *ms));
        let usage = prices.distinguished(reported.usage, reported.reasoning.unwrap_or(0));
        let charge = prices.charge(usage, &reported.served, &times);
        assert!(!charge.unpriced, "{name}: {charge:?}");
        assert_eq!(charge.price.condition.to_string(), row.rule, "{name}");
        let rates = list
            .rules
            .iter()
            .find(|rule| rule.when.to_string() == row.rule);
        let rates = rates.map_or(&list.usual, |rule| &rule.rates);
        assert_eq!(
            i128::from(charge.cost.micro()),
            reckoned(row, list.currency, rates),
            "{name}: {charge:?}"
        );
        // The usage on the receipt, at the price on the receipt, must give the receipt's cost.
        assert_eq!(charge.price.cost(&charge.usage), charge.cost, "{name}");
        let usage = charge.usage;
        let four = [
            ("input", usage.input),
            ("cached_input", usage.cached_input),
            ("cache_write", usage.cache_write),
            ("output", usage.output),
        ];
        let others = usage
            .classes
            .iter()
            .map(|(class, count)| (class.name(), count));
        let counts: Numbers<u64> = four
            .into_iter()
            .chain(others)
            .filter(|(_, count)| *count > 0)
            .map(|(class, count)| (class.to_owned(), count))
            .collect();
        assert_eq!(counts, row.counts, "{name}");
        met.extend(row.counts.keys().cloned());
        met.insert(row.rule.clone());
        if let Some((ms, text)) = &row.at {
            assert_eq!(crate::calendar::rfc3339(*ms), *text, "{name}");
        }
    }
    // The recorded usages must cover every rate class, and every condition on which a price depends.
    for class in Class::ALL {
        assert!(met.contains(class.name()), "{class}");
    }
    for rule in lists.values().flat_map(|list| &list.rules) {
        assert!(met.contains(&rule.when.to_string()), "{}", rule.when);
    }
}

/// Prices and usages without a source must be marked as invented.
#[test]
fn every_published_price_and_recorded_usage_names_its_source() {
    let lists = lists();
    for (name, list) in &lists {
        let vendors = [
            "gpt-",
            "claude-",
            "gemini-",
            "text-embedding-",
            "deepseek-",
            "GigaChat",
            "yandexgpt",
            "aliceai",
        ];
        assert_ne!(
            list.made,
            vendors.iter().any(|it| name.starts_with(it)),
            "{name}"
        );
        assert_ne!(list.made, list.source.starts_with("https://"), "{name}");
    }
    let recordings = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings/");
    for row in rows() {
        let Row { source, list, .. } = &row;
        match source.split(['/', ':']).next() {
            Some("fixtures") => {
                let recorded = std::fs::read_to_string(source.replace("fixtures/", recordings));
                let recorded = recorded.unwrap_or_else(|error| panic!("{source}: {error}"));
                // The recording must contain each of these counts. Only the digits are compared, because white space
                // may differ.
                let digits = |text: &str| -> Vec<u64> {
                    let numbers = text.split(|it: char| !it.is_ascii_digit());
                    numbers.filter_map(|it| it.parse().ok()).collect()
                };
                let recorded = digits(&recorded);
                let usage = row.usage.iter().flat_map(|usage| digits(usage.get()));
                for count in usage {
                    assert!(recorded.contains(&count), "{source}: {count}");
                }
            }
            Some("https") => {}
            _ => assert!(source.starts_with("made: ") && lists[list].made, "{source}"),
        }
    }
}

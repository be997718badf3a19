//! Tests of prices that depend on the time of day in UTC (docs/prices.md, hours). The receipt names the hours, the
//! catalog shows which price is in force, and the vendor's cost follows the hours of the vendor.

use tollgate_layers::{calendar::rfc3339, facts::RequestNumber};

use crate::{
    prelude::*,
    price_rules::{ask, receipt, says, usage},
};

const WEEK: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Returns the current minute of the day, by the clock that the gateway uses.
fn now() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    since.as_secs() / 60 % 1440
}

/// Returns a span of hours as receipts write it, from minutes of the day. An end at midnight is written as 24:00.
fn span(first: u64, end: u64) -> String {
    let (first, end) = (first % 1440, (end + 1439) % 1440 + 1);
    format!(
        "{:02}:{:02}-{:02}:{:02}",
        first / 60,
        first % 60,
        end / 60,
        end % 60
    )
}

/// Returns a setup with other prices in these hours, and with vendors' costs of 1 USDT per million tokens instead of
/// 0.1 USDT.
fn with_hours(hours: &str, hours_at: &str) -> Setup {
    let rule = |rates: [u32; 4]| {
        let [input, cached, output, write] = rates;
        format!(
            "{{ hours_utc = [\"{hours}\"], weekdays = {WEEK:?}, hours_at = \"{hours_at}\", usdt_mtok = {{ input = \
             \"{input}\", cached_input = \"{cached}\", output = \"{output}\", cache_write = \"{write}\" }} }}"
        )
    };
    let cost = |vendor: &str| {
        let route = format!("model = \"{vendor}\" }} ]");
        (
            route.clone(),
            format!(
                "model = \"{vendor}\", cost_usdt_mtok = {{ input = \"0.1\", cached_input = \"0.1\", output = \"0.1\", \
                 cache_write = \"0.1\" }}, cost_rules = [ {} ] }} ]\nprice_rules = [ {} ]",
                rule([1; 4]),
                rule([3, 3, 9, 3])
            ),
        )
    };
    [cost("vendor-chat-1"), cost("vendor-messages-1")]
        .iter()
        .fold(Setup::default(), |setup, (from, to)| setup.edit(from, to))
}

#[tokio::test]
async fn price_by_hour_applies_to_the_charge_and_the_cost_and_the_receipt_and_the_catalog() {
    // The span begins an hour before now and ends an hour after it, so that the test may run at any minute.
    let (from, until) = (now() + 1380, now() + 60);
    for hours_at in ["request", "first_byte", "end"] {
        for (hours, is_peak) in [(span(from, until), true), (span(until, from), false)] {
            let (world, key) = with_hours(&hours, hours_at).start_with_key().await;
            let expected = match (is_peak, hours_at) {
                (false, _) => Value::Null,
                (true, "request") => json!({ "hours_utc": [&hours] }),
                (true, _) => json!({ "hours_utc": [&hours], "hours_at": hours_at }),
            };
            for op in BOTH {
                says(&world, op, usage(op, 1000, json!({})), json!({}));
                let answer = ask(&world, &key, op, 1000, json!({})).await;
                let receipt = receipt(&world, &answer).await;
                assert_eq!(receipt["price"]["condition"], expected, "{receipt}");
                // The vendor's cost of 1000 input tokens and 10 output tokens, at 1 USDT per million tokens in these
                // hours and at 0.1 USDT otherwise. One USDT is 100 ₽.
                let cost = if is_peak { 101_000 } else { 10_100 };
                assert_eq!(micro(&receipt["vendor_cost_rub"]), cost, "{receipt}");
            }
            let catalog = world.get("/v1/tollgate/models", &[]).await.json();
            let model = &catalog["models"][0];
            assert_eq!(
                model.get("price_condition").unwrap_or(&Value::Null),
                &expected
            );
            let rules = model["price_rules"]["rules"].as_array().unwrap();
            assert_eq!(rules.len(), 2, "{model}");
            let shown = &rules[usize::from(is_peak)];
            assert_eq!(model["input_rub_mtok"], shown["input_rub_mtok"], "{model}");
            let changes_at = model["price_changes_at"].as_str().unwrap();
            let edge = hours[if is_peak { 6.. } else { 0.. }][..5].replace("24:", "00:");
            assert!(
                changes_at.ends_with(&format!("T{edge}:00Z")),
                "{changes_at} {hours}"
            );
        }
    }
}

/// A price is written into the configuration before it applies. From its first millisecond on, calls are charged at
/// this price, and the catalog shows it without a reload.
#[tokio::test]
async fn dated_price_comes_into_force_in_a_running_gateway() {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let from_ms = u64::try_from(since.as_millis()).unwrap() + 2000;
    let from = rfc3339(from_ms);
    let route = "model = \"vendor-chat-1\" } ]".to_owned();
    let rule = format!(
        "{route}\nprice_rules = [ {{ valid_from = \"{from}\", usdt_mtok = {{ input = \"9\", cached_input = \"9\", output = \
         \"9\", cache_write = \"9\" }} }} ]"
    );
    let (world, key) = Setup::default().edit(&route, &rule).start_with_key().await;
    says(&world, Op::Chat, usage(Op::Chat, 100, json!({})), json!({}));
    let changes_at = async || {
        let catalog = world.get("/v1/tollgate/models", &[]).await.json();
        catalog["models"][0].get("price_changes_at").cloned()
    };
    let announced = changes_at().await;
    let charged_by_it = async || {
        let answer = ask(&world, &key, Op::Chat, 100, json!({})).await;
        let number: RequestNumber = answer.number().parse().unwrap();
        let receipt = receipt(&world, &answer).await;
        let condition = &receipt["price"]["condition"];
        let is_dated = condition["valid_from_ms"] == json!(from_ms);
        assert_eq!(is_dated, number.unix_ms() >= from_ms, "{from_ms} {receipt}");
        is_dated.then_some(())
    };
    eventually("the price is in force", charged_by_it).await;
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    let model = &catalog["models"][0];
    assert_eq!(model["input_rub_mtok"], "900.00", "{model}");
    assert_eq!(
        model["price_condition"],
        json!({ "valid_from_ms": from_ms })
    );
    assert_eq!(changes_at().await, None, "nothing else is announced");
    // On a busy machine, the gateway may have started after the price came into force. Then it announces no change of
    // the price.
    assert!(announced.is_none_or(|at| at == json!(from)));
}
